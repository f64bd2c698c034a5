//! Moving a page to another rack, as its mover does it: asks the master for the right, the new home
//! for a frame and the old one to shut the page, copies it, has the new home commit, and tells the
//! old one that the move is over. Source: Rcmp §5.3 (swap).
//!
//! ```text
//! master     BeginMove ->  where the page is
//! new home   MoveIn    ->  Room: a frame and the key to fill it with
//! old home   MoveOut   ->  Shut: the key to read it with; no other can touch the page
//!            old frame -> buffer -> new frame, chunk by chunk
//! new home   MoveCommit -> Moved: the directory has swapped the home
//! old home   MoveSettle -> Settled: its frame is free
//! ```
//!
//! The directory alone decides. A mover that dies at any point leaves a page that its old home
//! takes back by itself, or that has moved; one that fails tells both sides, so that neither has to
//! wait for that. Whatever it copies goes under keys that only it was told, so that it can neither
//! read what is another page's by now nor write to what is.

use super::locate::unexpected;
use super::{Access, Client, Context, Io, LinkId, Operation, Reach, Translation};
use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId};
use crate::constants::{MOVE_BITMAP_WORDS_MAX, MOVE_CHUNK_BYTES};
use crate::error::{Error, Result};
use crate::seam::{Mem, PostError, Race, RemoteAddr, Verb, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, PageHome, PageMetadata, Reply, Request, Resolved};

/// The peers to tell if the move is given up.
#[derive(Debug, Default)]
struct Open {
    /// The master may have noted the move.
    claim: bool,
    /// The old home may have shut the page.
    source: bool,
    /// The new home may keep a frame.
    target: bool,
}

/// A page's move to another rack. Its result is where the page is then. Piece 0 of its `Io` is a
/// buffer of [`Migrate::buffer_bytes`] that it uses alone. Whatever fails, both racks and the
/// master are told, so that none of them waits for it.
#[derive(Debug)]
pub struct Migrate {
    addr: GAddr,
    page: PageId,
    to: RackId,
    /// Of its work requests, one after another.
    id: u64,
    open: Open,
    /// The old home; set after `Begin`.
    from: PageHome,
    /// The new home; set after `MoveIn`.
    room: PageHome,
    /// Which regions of the old and of the new home the keys are of, as their links count them.
    regions: [u32; 2],
}

impl Migrate {
    /// Starts the move of the page at `addr` to `to`. `id` must differ from the work requests of
    /// all other operations of the handle.
    pub fn new<M: Mem>(client: &Client<M>, addr: GAddr, to: RackId, id: u64) -> Self {
        let page = client.geometry().page(addr);
        let (frame, generation) = (FrameIndex(0), Generation(0));
        let nowhere = PageHome { page, rack: to, frame, generation };
        let (open, regions) = (Open::default(), [0; 2]);
        Self { addr, page, to, id, open, from: nowhere, room: nowhere, regions }
    }

    /// The length of the buffer that a move needs, bytes.
    pub fn buffer_bytes<M: Mem>(client: &Client<M>) -> u64 {
        client.geometry().page_bytes().min(MOVE_CHUNK_BYTES)
    }

    /// Where the page shall go.
    pub fn to(&self) -> RackId {
        self.to
    }

    fn stays(&self, reason: &str) -> Error {
        Error::Stays { page: self.page, reason: reason.into() }
    }

    fn taken_back(&self) -> Error {
        self.stays("a rack took its frame back while it was copied")
    }

    /// Asks the master for the right to move the page, from where it is; or says that it is in the
    /// rack already.
    async fn begin<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<PageHome>> {
        loop {
            if let Some(to) = cx.client().home_in(self.to) {
                // A shard of the rack that was named.
                (self.to, self.room.rack) = (to, to);
            }
            if cx.client().link_of(self.to).is_none() {
                cx.connect(self.to).await?;
                continue;
            }
            let home = self.claim(cx).await?;
            let is_there = home.rack.same_rack(self.to);
            if !is_there {
                (self.open.claim, self.from) = (true, home);
            }
            let client = cx.client();
            match client.link_of(home.rack) {
                // Also in another shard of the rack: it is as near there.
                Some(link) if is_there => {
                    client.install(link, &[home])?;
                    return Ok(Some(home));
                }
                Some(_) if home.frame.0 >= frames_of(client, home.rack)? => {
                    return Err(unexpected("master", "a frame of that rack"));
                }
                Some(_) => return Ok(None),
                // Then the master is asked again: it knows a region before it names its daemon, so
                // its next answer is of the region that was connected to.
                None => {
                    while cx.client().link_of(home.rack).is_none() {
                        cx.connect(home.rack).await?;
                    }
                }
            }
        }
    }

    async fn claim<M: Mem>(&self, cx: &mut impl Context<M>) -> Result<PageHome> {
        let (page, to) = (self.page, self.to);
        let MasterAnswer::Homes(resolved) = cx.master(MasterCall::BeginMove { page, to }).await?
        else {
            return Err(unexpected("master", "a move"));
        };
        match resolved[..] {
            [Resolved::Home(home)] if home.page == page => Ok(home),
            [Resolved::Unmapped] => Err(Error::NotMapped { addr: self.addr }),
            [Resolved::Lost(rack)] => Err(Error::Lost { addr: self.addr, rack }),
            _ => Err(unexpected("master", "a move")),
        }
    }

    /// Asks the new home for a frame.
    async fn move_in<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let link = link_of(cx.client(), self.to)?;
        self.open.target = true;
        match cx.daemon(link, Request::MoveIn { page: self.page }).await {
            Ok(Reply::Room { frame, generation }) => {
                let client = cx.client();
                if frame.0 >= frames_of(client, self.to)? || generation == Generation(0) {
                    return Err(unexpected("daemon", "a frame for a page"));
                }
                self.room = PageHome { frame, generation, ..self.room };
                self.regions[1] = client.regions_of(link);
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "a page's move")),
            Err(error) => {
                self.open.target = is_in_doubt(cx, &error);
                Err(error)
            }
        }
    }

    /// Asks the old home to shut the page; the key to read it with, and what is in it.
    async fn move_out<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
    ) -> Result<(Generation, PageMetadata)> {
        let PageHome { rack, generation, .. } = self.from;
        let link = link_of(cx.client(), rack)?;
        self.open.source = true;
        match cx.daemon(link, Request::MoveOut { page: self.page, generation }).await {
            Ok(Reply::Shut { key, keep }) => {
                if key == Generation(0) || keep.objects.len() > MOVE_BITMAP_WORDS_MAX {
                    return Err(unexpected("daemon", "a page that is shut"));
                }
                self.regions[0] = cx.client().regions_of(link);
                Ok((key, keep))
            }
            Ok(_) => Err(unexpected("daemon", "a page's move")),
            Err(error) => {
                self.open.source = is_in_doubt(cx, &error);
                Err(match error {
                    // The master named it as the home a moment ago: it has left since, or is not
                    // told yet that it has come.
                    Error::NotMapped { .. } => Error::Moving { addr: self.addr, retries: 0 },
                    error => error,
                })
            }
        }
    }

    async fn copy<M: Mem>(&self, cx: &mut impl Context<M>, key: Generation) -> Result<()> {
        let page_bytes = cx.client().geometry().page_bytes();
        let (mut offset, new_key) = (0, self.room.generation);
        while offset < page_bytes {
            let bytes = MOVE_CHUNK_BYTES.min(page_bytes - offset);
            let (from, to) = (&self.from, &self.room);
            let read = Chunk { home: from, key, region: self.regions[0], offset, bytes };
            self.move_chunk(cx, Access::Read, read).await?;
            let write = Chunk { home: to, key: new_key, region: self.regions[1], offset, bytes };
            self.move_chunk(cx, Access::Write, write).await?;
            offset += bytes;
        }
        Ok(())
    }

    /// Reads a chunk into the buffer, or writes it from there.
    async fn move_chunk<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        kind: Access,
        chunk: Chunk<'_>,
    ) -> Result<()> {
        let Chunk { home, key, region, offset, bytes } = chunk;
        loop {
            let (client, mut io) = cx.access()?;
            let link = link_of(client, home.rack)?;
            if client.regions_of(link) != region {
                // The rack lost its region since: the key may open a frame of the new one.
                return Err(self.taken_back());
            }
            let at = match client.reach(link) {
                Reach::Mapped(view) => {
                    let base = view.layout.frame_offset(home.frame);
                    let (page, generation, frame) = (self.page, key, home.frame);
                    let entry = Translation { page, generation, base, frame, link };
                    let at = base + offset;
                    let run = |pages: &M| match kind {
                        Access::Read => pages.copy_out(at, io.target(0, 0, bytes)),
                        Access::Write => pages.copy_in(at, io.source(0, 0, bytes)),
                    };
                    return Client::guarded(view, &entry, (kind, at, bytes), run)
                        .ok_or_else(|| self.taken_back());
                }
                Reach::OneSided(layout) => {
                    RemoteAddr { offset: layout.frame_offset(home.frame) + offset, key }
                }
            };
            let verb = match kind {
                Access::Read => Verb::Read(at),
                Access::Write => Verb::Write(at),
            };
            let local = [io.sge(0, 0, bytes)];
            let posted =
                io.post(link, &[WorkRequest { id: self.id, verb, local: &local, signalled: true }]);
            drop(io);
            match posted {
                Ok(()) => match cx.completion(self.id).await? {
                    WorkStatus::Done(_) => return Ok(()),
                    // The same bytes once more; what is late of the first try finds its connection
                    // ended.
                    WorkStatus::Flushed { .. } => {}
                    WorkStatus::BadKey => {
                        cx.client().met(Race::KeyRefused);
                        return Err(self.taken_back());
                    }
                    WorkStatus::BadRange => {
                        return Err(unexpected("fabric target", "a page's bytes"));
                    }
                },
                Err((_, PostError::Busy)) => cx.room().await?,
                Err((_, PostError::Down)) => cx.connect(home.rack).await?,
            }
        }
    }

    /// Has the new home commit.
    async fn commit<M: Mem>(&mut self, cx: &mut impl Context<M>, keep: PageMetadata) -> Result<()> {
        let (from, generation) = (self.from, self.room.generation);
        let link = link_of(cx.client(), self.to)?;
        match cx.daemon(link, Request::MoveCommit { from, generation, keep }).await {
            Ok(Reply::Moved(home)) if home == self.room => {
                self.open.target = false;
                cx.client().install(link, &[home])
            }
            Ok(_) => Err(unexpected("daemon", "a page's move")),
            Err(error) => {
                self.open.target = is_in_doubt(cx, &error);
                Err(error)
            }
        }
    }

    async fn settle<M: Mem>(&self, cx: &mut impl Context<M>, rack: RackId) -> Result<Reply> {
        let link = link_of(cx.client(), rack)?;
        cx.daemon(link, Request::MoveSettle { page: self.page }).await
    }

    async fn go<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<PageHome> {
        if let Some(home) = self.begin(cx).await? {
            return Ok(home);
        }
        self.move_in(cx).await?;
        let (key, keep) = self.move_out(cx).await?;
        self.copy(cx, key).await?;
        self.commit(cx, keep).await?;
        // The old home finds it out by itself if it could not be told.
        let _ = self.settle(cx, self.from.rack).await;
        Ok(self.room)
    }

    /// Tells all peers that the move is over. A peer that cannot be told finds it out.
    async fn give_up<M: Mem>(&mut self, cx: &mut impl Context<M>) {
        if self.open.source {
            // The page's home has asked where the page is, which ends the right to move it.
            self.open.claim &= self.settle(cx, self.from.rack).await.is_err();
        }
        if self.open.target {
            let _ = self.settle(cx, self.to).await;
        }
        if self.open.claim {
            // A mover that asks to move a page to where it is gives up its right to move it.
            let give_back = MasterCall::BeginMove { page: self.page, to: self.from.rack };
            let _ = cx.master(give_back).await;
        }
    }
}

/// A part of the page in one of its homes.
#[derive(Clone, Copy)]
struct Chunk<'h> {
    home: &'h PageHome,
    key: Generation,
    /// Of which the key is.
    region: u32,
    offset: u64,
    bytes: u64,
}

/// Whether a daemon may have done what it answers so. What it says itself it has not done.
fn is_in_doubt<M: Mem>(cx: &impl Context<M>, error: &Error) -> bool {
    error.is_open() || cx.has_failed()
}

impl<M: Mem> Operation<M> for Migrate {
    type Output = PageHome;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<PageHome> {
        let moved = self.go(cx).await;
        if moved.is_err() {
            self.give_up(cx).await;
        }
        moved
    }
}

fn link_of<M: Mem>(client: &Client<M>, rack: RackId) -> Result<LinkId> {
    client.link_of(rack).ok_or(Error::NoSuchRack { rack })
}

/// How many frames a rack has.
fn frames_of<M: Mem>(client: &Client<M>, rack: RackId) -> Result<u32> {
    Ok(match client.reach(link_of(client, rack)?) {
        Reach::Mapped(view) => view.layout.frame_count,
        Reach::OneSided(layout) => layout.frame_count,
    })
}
