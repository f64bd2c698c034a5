//! Writing to a page that has replicas, everywhere.
//!
//! ```text
//! find   where the replicas are: asked of the home once for each key of the page
//! close  each: one atomic add, all at once; a writer that was not alone undoes it and retries
//! write  to the page, at its home, by the key under which the replicas are all that there are
//! open   each: the bytes, then one atomic add, with one doorbell
//! ```
//!
//! From the first close to the last open no other process writes to the page and its replicas, and
//! none reads a replica. A writer that is stopped or dies in between leaves replicas closed, and so
//! does a write if it is not known whether it will be executed; their keeper ends them when it
//! wants them back ([`REPLICA_STUCK_NS`](crate::constants::REPLICA_STUCK_NS)). Replicas that cannot
//! be reached, and writers that come in each other's way, are left to the home.
//!
//! A [`Spread`] waits for the fabric between two of its stages, and a submission that waits holds
//! nothing of its handle: so how far it is, is a value ([`Stage`]) beside its transfer's tables.
//!
//! Source: decision 0031; Rcmp has one copy of a page, or copies that writes end.

use super::locate::unexpected;
use super::{Access, Client, Context, Io, LinkId, Locate, Operation, Reach, Translation};
use crate::addr::{GAddr, Generation, PageId, RackId};
use crate::constants::{
    FABRIC_OUTSTANDING_MAX, REPLICA_PLACES_MAX, REPLICA_TRIES_MAX, SHARERS_MAX, STALE_RETRIES_MAX,
};
use crate::error::{Error, Result};
use crate::replica::{EntryWord, ReplicaLocation};
use crate::seam::{
    ByteRange, Mem, Mutation, PostError, Race, RemoteAddr, Verb, WorkRequest, WorkStatus,
};
use crate::wire::{Reply, Request};
use std::collections::BTreeMap;

/// Writes that are left to a page's home before it is asked again whether it still wants that.
const BY_HOME: u32 = 64;
/// Marks the write to the home among the work requests.
const HOME: u64 = 2 * REPLICA_PLACES_MAX as u64;
const _: () = assert!(FABRIC_OUTSTANDING_MAX as u64 + HOME < 256);

/// What a handle knows of the replicas of pages that it writes to.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<PageId, KnownPage>);

#[derive(Debug)]
struct KnownPage {
    home: Home,
    places: Vec<ReplicaLocation>,
    /// So many writes are left to the home.
    by_home: u32,
    /// Whether the last write by it was done everywhere: else the home is asked again.
    sure: bool,
}

impl Known {
    fn note(&mut self, page: PageId, home: Home, places: Vec<ReplicaLocation>) {
        if self.0.len() >= SHARERS_MAX {
            self.0.clear();
        }
        let is_direct = (1..=REPLICA_PLACES_MAX).contains(&places.len());
        let by_home = if is_direct { 0 } else { BY_HOME };
        self.0.insert(page, KnownPage { home, places, by_home, sure: false });
    }

    /// A page was written by what is known of it, everywhere.
    fn trust(&mut self, page: PageId, home: Home) {
        let known = self.0.get_mut(&page).filter(|known| known.home == home);
        known.into_iter().for_each(|known| known.sure = true);
    }
}

/// A page's home with its key: a link, how often its region was replaced, the key.
type Home = (LinkId, u32, Generation);

/// How far a write is.
#[derive(Debug)]
pub(super) enum Spreading {
    /// It waits for completions.
    Posted,
    Done,
    /// The daemon behind the link has to do it. Nothing was written.
    ByHome(LinkId),
    /// The page is not there any more. Nothing was written.
    Stale,
    /// It is not known whether the page is, or will be, written: to be repeated.
    Unknown,
}

/// A work request for one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Not,
    Posted,
    Done(u64),
    /// It cannot be, or that is not known.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    place: ReplicaLocation,
    /// Where the entry's word and the bytes are.
    word: Option<Translation>,
    data: Option<Translation>,
    /// The add to the word that is under way.
    add: Sent,
    copy: Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ask,
    Find,
    Close,
    /// What was added is taken back; then this.
    Undo(After),
    Write(Sent),
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Close,
    /// The connection to the home is down.
    Connect,
    ByHome,
    Stale,
}

/// A part of a transfer's piece within one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) piece: u32,
    pub(super) offset: u64,
    pub(super) addr: GAddr,
    pub(super) bytes: u64,
    /// The key that it was posted with.
    pub(super) key: Generation,
}

/// One write within a page.
#[derive(Debug, Default)]
pub(super) struct Spread {
    under_way: Option<ReplicatedWrite>,
    targets: Vec<Target>,
    pub(super) count: u64,
}

#[derive(Debug)]
struct ReplicatedWrite {
    fragment: Fragment,
    /// The page's home, with the key `home.generation`.
    home: Translation,
    stage: Stage,
    tries: u32,
    pending: u32,
    ids: u64,
}

impl Spread {
    /// Begins to write a fragment of a page that is shared. `round` as in
    /// [`Transfer::new`](super::Transfer::new). Whether there is anything that it can do.
    pub(super) fn begin<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        fragment: Fragment,
        round: u64,
    ) -> bool {
        let page = client.geometry().page(fragment.addr);
        let Some(home) = client.translation(page).copied() else { return false };
        self.targets.clear();
        let mut stage = Stage::Ask;
        let at = home_of(client, &home);
        if let Some(known) = client.known.0.get_mut(&page).filter(|known| known.home == at) {
            if known.by_home > 0 {
                known.by_home -= 1;
                return false;
            }
            if std::mem::take(&mut known.sure) {
                self.targets.extend(known.places.iter().map(|place| Target::new(*place)));
                stage = Stage::Find;
            }
        }
        let ids = round << 8 | u64::from(FABRIC_OUTSTANDING_MAX);
        let (tries, pending) = (0, 0);
        self.under_way = Some(ReplicatedWrite { fragment, home, stage, tries, pending, ids });
        true
    }

    pub(super) fn fragment(&self) -> Option<Fragment> {
        self.under_way.as_ref().map(|one| one.fragment)
    }

    /// Ends without an outcome.
    pub(super) fn clear(&mut self) {
        self.under_way = None;
    }

    /// Goes as far as possible. `waits`: completions of other work requests are to come, so that
    /// there will be room.
    pub(super) async fn advance<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        waits: bool,
    ) -> Result<Spreading> {
        let Self { under_way, targets, count } = self;
        let Some(one) = under_way else { return Ok(Spreading::Done) };
        let ended = loop {
            one.stage = match one.stage {
                Stage::Ask => one.ask(cx, targets).await?,
                Stage::Find => one.find(cx, targets).await?,
                _ => {
                    let (client, mut io) = cx.access()?;
                    match one.advance(client, &mut Work { targets, io: &mut io, waits }) {
                        Step::Stage(stage) => stage,
                        Step::Wait => return Ok(Spreading::Posted),
                        Step::Connect(rack) => {
                            drop(io);
                            cx.connect(rack).await?;
                            Stage::Close
                        }
                        Step::End(ended) => break ended,
                    }
                }
            };
        };
        if matches!(ended, Spreading::Done) {
            let client = cx.client();
            *count += 1;
            client.met(Race::ReplicaWritten);
            client.note_remote(one.fragment.addr, Access::Write);
            if targets.iter().all(|target| matches!(target.add, Sent::Done(_))) {
                let home = home_of(client, &one.home);
                client.known.trust(one.home.page, home);
            }
        }
        self.under_way = None;
        Ok(ended)
    }

    /// A work request with this in the last byte of its id ended.
    pub(super) fn on_completion(&mut self, mark: u64, status: WorkStatus) -> Result<()> {
        let Some(one) = &mut self.under_way else { return Ok(()) };
        one.pending = one.pending.saturating_sub(1);
        let index = mark.saturating_sub(FABRIC_OUTSTANDING_MAX.into());
        if index == HOME {
            one.stage = match status {
                WorkStatus::Done(_) => Stage::Write(Sent::Done(0)),
                WorkStatus::BadKey => begin_undo(&mut self.targets, After::Stale),
                WorkStatus::Flushed { .. } => Stage::Write(Sent::Failed),
                WorkStatus::BadRange => {
                    let reason = format!("refused a write at {}", one.fragment.addr);
                    return Err(Error::Protocol { peer: "fabric target".into(), reason });
                }
            };
            return Ok(());
        }
        let Some(target) = self.targets.get_mut(index as usize / 2) else { return Ok(()) };
        let sent = match status {
            WorkStatus::Done(old) => Sent::Done(old),
            _ => Sent::Failed,
        };
        match index % 2 {
            0 => target.add = sent,
            _ => target.copy = sent,
        }
        Ok(())
    }
}

impl Target {
    fn new(place: ReplicaLocation) -> Target {
        Target { place, word: None, data: None, add: Sent::Not, copy: Sent::Not }
    }
}

/// What a step works with.
struct Work<'w, I> {
    targets: &'w mut Vec<Target>,
    io: &'w mut I,
    waits: bool,
}

/// What a write does next.
enum Step {
    Stage(Stage),
    /// For completions.
    Wait,
    /// To this rack; then all is closed again.
    Connect(RackId),
    End(Spreading),
}

impl ReplicatedWrite {
    /// Goes on with what needs no answer of a daemon.
    fn advance<M: Mem, I: Io>(&mut self, client: &Client<M>, work: &mut Work<'_, I>) -> Step {
        match self.stage {
            Stage::Ask | Stage::Find => unreachable!("daemons are asked apart"),
            Stage::Close => match self.add(client, work, EntryWord::BEGIN) {
                true => Step::Wait,
                false => Step::Stage(self.judge(work.targets)),
            },
            Stage::Undo(after) => match self.add(client, work, EntryWord::UNDO) {
                true => Step::Wait,
                false => self.after(after, client, work),
            },
            Stage::Write(Sent::Not) => self.write(client, work),
            Stage::Write(Sent::Posted) => Step::Wait,
            Stage::Write(Sent::Failed) => Step::End(Spreading::Unknown),
            Stage::Write(Sent::Done(_)) => {
                work.targets.iter_mut().for_each(|target| target.add = Sent::Not);
                Step::Stage(Stage::Open)
            }
            Stage::Open => match self.open(client, work) {
                true => Step::Wait,
                false => Step::End(Spreading::Done),
            },
        }
    }

    /// Asks the home where the replicas are.
    async fn ask<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        targets: &mut Vec<Target>,
    ) -> Result<Stage> {
        let page = self.home.page;
        let reply = cx.daemon(self.home.link, Request::Sharers { page }).await;
        let client = cx.client();
        match reply {
            Ok(Reply::Sharers(sharers)) if sharers.key == self.home.generation => {
                let starts_page = |at| client.geometry().offset(at) == 0;
                let is_sound = |place: &ReplicaLocation| {
                    place.word.0.is_multiple_of(8) && starts_page(place.data)
                };
                if !sharers.places.iter().all(is_sound) {
                    return Err(unexpected("daemon", "where replicas are"));
                }
                targets.extend(sharers.places.iter().map(|place| Target::new(*place)));
                let home = home_of(client, &self.home);
                client.known.note(page, home, sharers.places);
                Ok(match (1..=REPLICA_PLACES_MAX).contains(&targets.len()) {
                    true => Stage::Find,
                    false => begin_undo(targets, After::ByHome),
                })
            }
            Ok(Reply::Sharers(_)) | Err(Error::Moving { .. } | Error::NotMapped { .. }) => {
                Ok(begin_undo(targets, After::Stale))
            }
            Ok(_) => Err(unexpected("daemon", "where replicas are")),
            Err(error) => Err(error),
        }
    }

    /// Looks up where the replicas are.
    async fn find<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        targets: &mut [Target],
    ) -> Result<Stage> {
        loop {
            let client = cx.client();
            let mut missing = None;
            for target in &mut *targets {
                let ReplicaLocation { word, data, .. } = target.place;
                for (addr, found) in [(word, &mut target.word), (data, &mut target.data)] {
                    let page = client.geometry().page(addr);
                    *found = found.or_else(|| client.translation(page).copied());
                    missing =
                        missing.or_else(|| found.is_none().then_some((target.place.rack, addr)));
                }
            }
            let Some((rack, addr)) = missing else {
                let skips = client.mutated(Mutation::WriteOpenReplica);
                return Ok(if skips { Stage::Write(Sent::Not) } else { Stage::Close });
            };
            self.tries += 1;
            if client.link_of(rack).is_none() || self.tries as usize > 2 * targets.len() {
                // No write waits for a rack without a connection, and what is searched for again
                // and again is not there.
                return Ok(begin_undo(targets, After::ByHome));
            }
            if let Err(error) = Locate::new(client, addr, 8).run(cx).await {
                if cx.has_failed() {
                    return Err(error);
                }
                cx.check()?;
                return Ok(begin_undo(targets, After::ByHome));
            }
        }
    }

    /// Adds to the words of those replicas where that is left to do. Whether there is something to
    /// wait for.
    fn add<M: Mem, I: Io>(&mut self, client: &Client<M>, work: &mut Work<'_, I>, n: u64) -> bool {
        for (index, target) in work.targets.iter_mut().enumerate() {
            let Some(word) = target.word.filter(|_| target.add == Sent::Not) else { continue };
            let at = word.base + client.geometry().offset(target.place.word);
            let range = ByteRange { offset: at, bytes: 8 };
            let remote = match mapped(client, &word, range, |pages| pages.fetch_add(at, n)) {
                Ok(old) => {
                    target.add = old.map_or(Sent::Failed, Sent::Done);
                    continue;
                }
                Err(OneSided) => RemoteAddr { offset: at, key: word.generation },
            };
            let verb = Verb::FetchAdd { at: remote, n };
            let request =
                WorkRequest { id: self.ids + 2 * index as u64, verb, local: &[], signalled: true };
            match work.io.post(word.link, &[request]) {
                Ok(()) => {
                    target.add = Sent::Posted;
                    self.pending += 1;
                }
                Err((_, PostError::Busy)) if work.waits || self.pending > 0 => return true,
                Err(_) => target.add = Sent::Failed,
            }
        }
        self.pending > 0
    }

    /// Whether all replicas are closed now, and by no other writer.
    fn judge(&mut self, targets: &mut [Target]) -> Stage {
        let mut busy = false;
        for target in &*targets {
            let Sent::Done(old) = target.add else { return begin_undo(targets, After::ByHome) };
            let old = EntryWord(old);
            if old.placement() != target.place.placement {
                return begin_undo(targets, After::ByHome);
            }
            busy |= !old.is_open();
        }
        if !busy {
            return Stage::Write(Sent::Not);
        }
        self.tries += 1;
        let is_enough = self.tries > REPLICA_TRIES_MAX;
        begin_undo(targets, if is_enough { After::ByHome } else { After::Close })
    }

    /// What was added is taken back.
    fn after<M: Mem, I>(&self, after: After, client: &Client<M>, work: &mut Work<'_, I>) -> Step {
        match after {
            After::ByHome => Step::End(Spreading::ByHome(self.home.link)),
            After::Stale => Step::End(Spreading::Stale),
            After::Close | After::Connect => {
                work.targets.iter_mut().for_each(|target| target.add = Sent::Not);
                match after {
                    After::Connect => Step::Connect(client.rack_of(self.home.link)),
                    _ => Step::Stage(Stage::Close),
                }
            }
        }
    }

    /// Writes to the page at its home.
    fn write<M: Mem, I: Io>(&mut self, client: &Client<M>, work: &mut Work<'_, I>) -> Step {
        let Fragment { piece, offset, addr, bytes, .. } = self.fragment;
        let at = self.home.base + client.geometry().offset(addr);
        let source = work.io.source(piece, offset, bytes);
        let range = ByteRange { offset: at, bytes };
        match mapped(client, &self.home, range, |pages| pages.copy_in(at, source)) {
            Ok(Some(())) => return Step::Stage(Stage::Write(Sent::Done(0))),
            Ok(None) => return Step::Stage(begin_undo(work.targets, After::Stale)),
            Err(OneSided) => {}
        }
        let verb = Verb::Write(RemoteAddr { offset: at, key: self.home.generation });
        let local = [work.io.sge(piece, offset, bytes)];
        let request = WorkRequest { id: self.ids + HOME, verb, local: &local, signalled: true };
        match work.io.post(self.home.link, &[request]) {
            Ok(()) => {
                self.pending += 1;
                Step::Stage(Stage::Write(Sent::Posted))
            }
            Err((_, PostError::Busy)) if work.waits => Step::Wait,
            Err(_) => Step::Stage(begin_undo(work.targets, After::Connect)),
        }
    }

    /// Writes to the replicas and opens them. Whether there is something to wait for.
    fn open<M: Mem, I: Io>(&mut self, client: &Client<M>, work: &mut Work<'_, I>) -> bool {
        let Fragment { piece, offset, addr, bytes, .. } = self.fragment;
        for (index, target) in work.targets.iter_mut().enumerate() {
            let Some(data) = target.data.filter(|_| target.copy == Sent::Not) else { continue };
            let at = data.base + client.geometry().offset(addr);
            let source = work.io.source(piece, offset, bytes);
            let range = ByteRange { offset: at, bytes };
            let remote = match mapped(client, &data, range, |pages| pages.copy_in(at, source)) {
                Ok(done) => {
                    target.copy = done.map_or(Sent::Failed, |()| Sent::Done(0));
                    continue;
                }
                Err(OneSided) => RemoteAddr { offset: at, key: data.generation },
            };
            let local = [work.io.sge(piece, offset, bytes)];
            let (add, copy) = (self.ids + 2 * index as u64, self.ids + 2 * index as u64 + 1);
            let word = target.word.filter(|word| word.link == data.link);
            let Some(word) = word else {
                target.copy = Sent::Failed;
                continue;
            };
            let at = word.base + client.geometry().offset(target.place.word);
            let at = RemoteAddr { offset: at, key: word.generation };
            let verb = Verb::FetchAdd { at, n: EntryWord::END };
            // The adding is never executed before the copying: they take one way.
            let batch = [
                WorkRequest { id: copy, verb: Verb::Write(remote), local: &local, signalled: true },
                WorkRequest { id: add, verb, local: &[], signalled: true },
            ];
            let posted = match work.io.post(data.link, &batch) {
                Ok(()) => 2,
                Err((0, PostError::Busy)) if work.waits || self.pending > 0 => return true,
                Err((posted, _)) => posted,
            };
            self.pending += posted as u32;
            (target.copy, target.add) = match posted {
                0 => (Sent::Failed, Sent::Failed),
                1 => (Sent::Posted, Sent::Not),
                _ => (Sent::Posted, Sent::Posted),
            };
        }
        let open = !client.mutated(Mutation::WriteOpenReplica);
        for target in work.targets.iter_mut().filter(|target| target.add == Sent::Not) {
            match target.copy {
                Sent::Done(_) if open => {}
                // It stays closed until its keeper ends it.
                Sent::Failed | Sent::Done(_) => target.add = Sent::Failed,
                Sent::Not | Sent::Posted => return true,
            }
        }
        self.add(client, work, EntryWord::END)
    }
}

fn home_of<M: Mem>(client: &Client<M>, entry: &Translation) -> Home {
    (entry.link, client.regions_of(entry.link), entry.generation)
}

/// The page is reached over the fabric.
struct OneSided;

/// Runs `access` on a mapped page; `None` if it is not there any more.
fn mapped<M: Mem, R>(
    client: &Client<M>,
    entry: &Translation,
    range: ByteRange,
    access: impl Fn(&M) -> R,
) -> std::result::Result<Option<R>, OneSided> {
    let Reach::Mapped(view) = client.reach(entry.link) else { return Err(OneSided) };
    // That it counts as stale once says nothing: what has gone stays so.
    let run = |_| Client::guarded(view, entry, Access::Write, range, &access);
    Ok((0..STALE_RETRIES_MAX).find_map(run))
}

/// What was added is to be taken back before this.
fn begin_undo(targets: &mut [Target], after: After) -> Stage {
    for target in targets {
        target.add = match target.add {
            Sent::Done(_) => Sent::Not,
            _ => Sent::Failed,
        };
    }
    Stage::Undo(after)
}
