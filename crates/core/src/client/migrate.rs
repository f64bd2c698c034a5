//! Moving a page to another rack, as its mover does it: asks the master for the right, the new home
//! for a frame and the old one to shut the page, copies it, has the new home commit, and tells the
//! old one that the move is over. Source: Rcmp §5.3 (swap).
//!
//! ```text
//! master     BeginMove ->  where the page is
//! new home   MoveIn    ->  Room: a frame and the key to fill it with
//! old home   MoveOut   ->  Shut: the key to read it with; nobody else can touch the page
//!            old frame -> buffer -> new frame, chunk by chunk
//! new home   MoveCommit -> Moved: the directory has swapped the home
//! old home   MoveSettle -> Settled: its frame is free
//! ```
//!
//! The directory alone decides. A mover that dies at any point leaves a page that its old home
//! takes back by itself, or that has moved; one that fails tells both sides, so that nobody has to
//! wait for that. Whatever it copies goes under keys that only it was told, so that it can neither
//! read what is another page's by now nor write to what is.

use super::locate::unexpected;
use super::{Access, Client, Io, LinkId, Need, Operation, Reach, Step, Translation};
use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId};
use crate::constants::{MOVE_BITMAP_WORDS_MAX, MOVE_CHUNK_BYTES};
use crate::error::{Error, Result};
use crate::seam::{Mem, PostError, Race, RemoteAddr, Verb, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, PageHome, PageKeep, Reply, Request, Resolved};

/// Where the move stands: what is asked for next, or whose answer is awaited.
#[derive(Debug)]
enum Stage {
    Begin,
    /// The old home's rack has to be connected. Then the master is asked again: it knows a region
    /// before it names its daemon, so its next answer is of the region that was connected to.
    Connect(RackId),
    MoveIn,
    MoveOut,
    Copy(Copy),
    Commit(PageKeep),
    /// The page has moved.
    Settle(PageHome),
    GiveUp(Error),
    Done(PageHome),
}

/// How far the bytes have come.
#[derive(Debug)]
struct Copy {
    key: Generation,
    keep: PageKeep,
    /// Bytes of the page that have arrived.
    done: u64,
    /// Whether the next chunk is in the buffer.
    filled: bool,
    /// Whether a work request is under way.
    posted: bool,
}

/// Whom to tell if the move is given up.
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
/// buffer of [`Migrate::buffer_bytes`] that it uses alone.
///
/// If whoever drives it fails (a rack cannot be connected, the time is up), it says so by
/// [`Migrate::give_up`] and drives it to its end, which is that error.
#[derive(Debug)]
pub struct Migrate {
    addr: GAddr,
    page: PageId,
    to: RackId,
    /// Of its work requests, one after another.
    id: u64,
    stage: Stage,
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
        let (stage, open) = (Stage::Begin, Open::default());
        let regions = [0; 2];
        Self { addr, page, to, id, stage, open, from: nowhere, room: nowhere, regions }
    }

    /// The length of the buffer that a move needs, bytes.
    pub fn buffer_bytes<M: Mem>(client: &Client<M>) -> u64 {
        client.geometry().page_bytes().min(MOVE_CHUNK_BYTES)
    }

    /// Where the page shall go.
    pub fn to(&self) -> RackId {
        self.to
    }

    /// Ends the move with this error, unless it has ended: the next steps tell both racks.
    pub fn give_up(&mut self, error: Error) {
        if !matches!(self.stage, Stage::GiveUp(_) | Stage::Settle(_) | Stage::Done(_)) {
            self.stage = Stage::GiveUp(error);
        }
    }

    fn stays(&self, reason: &str) -> Error {
        Error::Stays { page: self.page, reason: reason.into() }
    }

    /// The answer of a daemon to a stage that cannot be repeated by its own.
    fn on_answer<M: Mem>(&mut self, client: &mut Client<M>, reply: Reply) -> Result<Stage> {
        match (&self.stage, reply) {
            (Stage::MoveIn, Reply::Room { frame, generation }) => {
                let frames = frames_of(client, self.to)?;
                if frame.0 >= frames || generation == Generation(0) {
                    return Err(unexpected("daemon", "a frame for a page"));
                }
                self.room = PageHome { frame, generation, ..self.room };
                self.regions[1] = client.regions_of(link_of(client, self.to)?);
                Ok(Stage::MoveOut)
            }
            (Stage::MoveOut, Reply::Shut { key, keep }) => {
                if key == Generation(0) || keep.objects.len() > MOVE_BITMAP_WORDS_MAX {
                    return Err(unexpected("daemon", "a page that is shut"));
                }
                self.regions[0] = client.regions_of(link_of(client, self.from.rack)?);
                Ok(Stage::Copy(Copy { key, keep, done: 0, filled: false, posted: false }))
            }
            (Stage::Commit(_), Reply::Moved(home)) if home == self.room => {
                self.open.target = false;
                let link = client.link_of(self.to).ok_or(Error::NoSuchRack { rack: self.to })?;
                client.install(link, &[home])?;
                Ok(Stage::Settle(home))
            }
            _ => Err(unexpected("daemon", "a page's move")),
        }
    }

    /// A daemon's refusal. What it says itself it has not done.
    fn on_refusal(&mut self, error: Error) {
        if !error.is_open() {
            match self.stage {
                Stage::MoveIn | Stage::Commit(_) => self.open.target = false,
                Stage::MoveOut => self.open.source = false,
                _ => {}
            }
        }
        self.give_up(match (&self.stage, error) {
            // The master named it as the home a moment ago: it has left since, or is not told yet
            // that it has come.
            (Stage::MoveOut, Error::NotMapped { .. }) => {
                Error::Moving { addr: self.addr, retries: 0 }
            }
            (_, error) => error,
        });
    }

    /// Goes on with the copy as far as possible; the stage that follows, or what is needed.
    fn copy_step<M: Mem>(&mut self, client: &Client<M>, io: &mut impl Io) -> Result<Option<Need>> {
        loop {
            let Stage::Copy(copy) = &self.stage else { return Ok(None) };
            if copy.posted {
                return Ok(Some(Need::Completions));
            }
            let page_bytes = client.geometry().page_bytes();
            let bytes = MOVE_CHUNK_BYTES.min(page_bytes - copy.done);
            if bytes == 0 {
                self.stage = Stage::Commit(copy.keep.clone());
                return Ok(None);
            }
            let (home, key, kind, region) = if copy.filled {
                (&self.room, self.room.generation, Access::Write, self.regions[1])
            } else {
                (&self.from, copy.key, Access::Read, self.regions[0])
            };
            let link = link_of(client, home.rack)?;
            if client.regions_of(link) != region {
                // The rack lost its region since: the key may open a frame of the new one.
                return Err(self.taken_back());
            }
            let (page, generation, frame, at) = (self.page, key, home.frame, copy.done);
            match client.reach(link) {
                Reach::Mapped(view) => {
                    let base = view.layout.frame_offset(frame);
                    let entry = Translation { page, generation, base, frame, link };
                    let run = |pages: &M| match kind {
                        Access::Read => pages.copy_out(base + at, io.target(0, 0, bytes)),
                        Access::Write => pages.copy_in(base + at, io.source(0, 0, bytes)),
                    };
                    Client::guarded(view, &entry, (kind, base + at, bytes), run)
                        .ok_or_else(|| self.taken_back())?;
                    self.chunk_done(bytes);
                }
                Reach::OneSided(layout) => {
                    let at = RemoteAddr { offset: layout.frame_offset(frame) + at, key };
                    return Ok(Some(self.post((link, home.rack), (kind, at, bytes), io)));
                }
            }
        }
    }

    fn post(
        &mut self,
        (link, rack): (LinkId, RackId),
        (kind, at, bytes): (Access, RemoteAddr, u64),
        io: &mut impl Io,
    ) -> Need {
        let verb = match kind {
            Access::Read => Verb::Read(at),
            Access::Write => Verb::Write(at),
        };
        let local = [io.sge(0, 0, bytes)];
        let request = WorkRequest { id: self.id, verb, local: &local, signalled: true };
        match io.post(link, &[request]) {
            Ok(()) => {
                if let Stage::Copy(copy) = &mut self.stage {
                    copy.posted = true;
                }
                Need::Completions
            }
            Err((_, PostError::Busy)) => Need::Completions,
            Err((_, PostError::Down)) => Need::Link(rack),
        }
    }

    fn chunk_done(&mut self, bytes: u64) {
        if let Stage::Copy(copy) = &mut self.stage {
            copy.done += if copy.filled { bytes } else { 0 };
            copy.filled = !copy.filled;
        }
    }

    fn taken_back(&self) -> Error {
        self.stays("a rack took its frame back while it was copied")
    }

    /// Whom to tell next that the move is over.
    fn abandon<M: Mem>(&self, client: &Client<M>) -> Option<Need> {
        let Self { page, open, from, .. } = self;
        let settle = |rack: RackId| {
            let link = client.link_of(rack)?;
            Some(Need::Daemon(link, Request::MoveSettle { page: *page }))
        };
        if open.source {
            return settle(from.rack);
        }
        if open.target {
            return settle(self.to);
        }
        // Whoever asks to move a page to where it is gives up his right to move it.
        let give_back = MasterCall::BeginMove { page: *page, to: from.rack };
        open.claim.then_some(Need::Master(give_back))
    }
}

impl<M: Mem> Operation<M> for Migrate {
    type Output = PageHome;

    fn give_up(&mut self, error: Error) -> bool {
        Migrate::give_up(self, error);
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<PageHome>> {
        if let (Stage::Begin, Some(to)) = (&self.stage, client.home_in(self.to)) {
            // A shard of the rack that was named.
            (self.to, self.room.rack) = (to, to);
        }
        let (page, to) = (self.page, self.to);
        loop {
            let (rack, request) = match &self.stage {
                Stage::Begin if client.link_of(to).is_none() => {
                    return Ok(Step::Need(Need::Link(to)));
                }
                Stage::Begin => {
                    return Ok(Step::Need(Need::Master(MasterCall::BeginMove { page, to })));
                }
                Stage::Connect(rack) if client.link_of(*rack).is_none() => {
                    return Ok(Step::Need(Need::Link(*rack)));
                }
                Stage::Connect(_) => {
                    self.stage = Stage::Begin;
                    continue;
                }
                Stage::MoveIn => {
                    self.open.target = true;
                    (to, Request::MoveIn { page })
                }
                Stage::MoveOut => {
                    self.open.source = true;
                    let generation = self.from.generation;
                    (self.from.rack, Request::MoveOut { page, generation })
                }
                Stage::Copy(_) => match self.copy_step(client, io) {
                    Ok(Some(need)) => return Ok(Step::Need(need)),
                    Ok(None) => continue,
                    Err(error) => {
                        self.give_up(error);
                        continue;
                    }
                },
                Stage::Commit(keep) => {
                    let (from, generation) = (self.from, self.room.generation);
                    (to, Request::MoveCommit { from, generation, keep: keep.clone() })
                }
                Stage::Settle(_) => (self.from.rack, Request::MoveSettle { page }),
                Stage::GiveUp(error) => match self.abandon(client) {
                    Some(need) => return Ok(Step::Need(need)),
                    None => return Err(error.clone()),
                },
                Stage::Done(home) => return Ok(Step::Done(*home)),
            };
            let link = link_of(client, rack)?;
            return Ok(Step::Need(Need::Daemon(link, request)));
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match &self.stage {
            // The old home finds it out by itself if it could not be told.
            Stage::Settle(home) => self.stage = Stage::Done(*home),
            Stage::GiveUp(_) if self.open.source => {
                self.open.source = false;
                // The page's home was asked whose it is, which ends the right to move it.
                self.open.claim &= reply.is_err();
            }
            Stage::GiveUp(_) => self.open.target = false,
            _ => match reply.and_then(|reply| self.on_answer(client, reply)) {
                Ok(next) => self.stage = next,
                Err(error) => self.on_refusal(error),
            },
        }
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        if matches!(self.stage, Stage::GiveUp(_)) {
            self.open.claim = false;
            return Ok(());
        }
        let MasterAnswer::Homes(resolved) = answer? else {
            return Err(unexpected("master", "a move"));
        };
        let home = match resolved[..] {
            [Resolved::Home(home)] if home.page == self.page => home,
            [Resolved::Unmapped] => return Err(Error::NotMapped { addr: self.addr }),
            [Resolved::Lost(rack)] => return Err(Error::Lost { addr: self.addr, rack }),
            _ => return Err(unexpected("master", "a move")),
        };
        if home.rack.same_rack(self.to) {
            // Also in another shard of the rack: it is as near there.
            self.stage = match client.link_of(home.rack) {
                None => Stage::Connect(home.rack),
                Some(link) => {
                    client.install(link, &[home])?;
                    Stage::Done(home)
                }
            };
            return Ok(());
        }
        self.open.claim = true;
        self.stage = match client.link_of(home.rack) {
            None => Stage::Connect(home.rack),
            Some(_) if home.frame.0 >= frames_of(client, home.rack)? => {
                return Err(unexpected("master", "a frame of that rack"));
            }
            Some(_) => Stage::MoveIn,
        };
        self.from = home;
        Ok(())
    }

    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        let bytes = match &mut self.stage {
            Stage::Copy(copy) if id == self.id && copy.posted => {
                copy.posted = false;
                MOVE_CHUNK_BYTES.min(client.geometry().page_bytes() - copy.done)
            }
            _ => return Ok(()),
        };
        match status {
            WorkStatus::Done(_) => self.chunk_done(bytes),
            // The same bytes once more; what is late of the first try finds its connection ended.
            WorkStatus::Flushed { .. } => {}
            WorkStatus::BadKey => {
                client.met(Race::KeyRefused);
                self.give_up(self.taken_back());
            }
            WorkStatus::BadRange => self.give_up(unexpected("fabric target", "a page's bytes")),
        }
        Ok(())
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
