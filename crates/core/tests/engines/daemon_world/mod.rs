//! The world of the daemon tests: sections in plain memory that know which blocks are backed, a
//! fuse that ends the daemon at its n-th effect, a master that remembers what it committed, and a
//! rig that plays clients against a model of what they must hold.
#![allow(dead_code)]

mod answers;
pub mod loans;
mod master;
mod mem;
mod power;
pub mod travel;
mod users;
mod words;

pub use answers::Answers;
pub use master::FakeMaster;
pub use mem::{Crash, Durability, Fuse, TestMem};

use rackpool_core::constants::{CELLS, LOAN_IDLE_NS, SLOTS_MAX};
use rackpool_core::daemon::{
    ClientId, Daemon, LocalClient, Outbox, RemoteClient, World, WriteBack, format,
};
use rackpool_core::layout::{
    AllocationKind, BLOCK_BYTES, RegionLayout, SlotWord, frame_word, table_word,
};
use rackpool_core::seam::Mem;
use rackpool_core::tier::Tiers;
use rackpool_core::wire::{MasterCall, PageHome, Reply, ReplyFrame, Request, RequestFrame};
use rackpool_core::{
    Error, FrameIndex, GAddr, Generation, PageGeometry, RackId, Result, SessionId,
};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

pub const RACK: RackId = RackId(3);
pub const PAGE: u64 = 4096;

/// A client of one process of the rack, with its first hello.
pub fn local_client(session: SessionId) -> LocalClient {
    LocalClient { session, hello: 1, pid: 1, start_time: 2 }
}

pub fn remote_client(session: SessionId) -> RemoteClient {
    RemoteClient { session, next: session, pid: 7 }
}

/// Of memory that a session owns or not.
pub fn kind_of(owned: bool) -> AllocationKind {
    if owned { AllocationKind::Session } else { AllocationKind::User }
}

pub struct TestWorld {
    pub layout: RegionLayout,
    pub fuse: Rc<Fuse>,
    private: TestMem,
    table: TestMem,
    pages: TestMem,
    /// Of a client that a test plays.
    slot: TestMem,
    pub cells: Vec<u64>,
    pub consumed: BTreeMap<u32, u64>,
    /// Sections of slots; a slot without one has the words above alone.
    pub slots: BTreeMap<u32, TestMem>,
    /// The word `Changing` of slots.
    pub changing: BTreeMap<u32, u64>,
    pub host_blocks_free: u64,
    pub tiers: Tiers,
    pub barriers: u64,
    pub calls: VecDeque<(u64, MasterCall)>,
    pub replies: VecDeque<(ClientId, ReplyFrame)>,
    /// What the fabric was told to do; it is not done here.
    pub write_backs: Vec<(ClientId, WriteBack)>,
    pub master: FakeMaster,
    /// Whether the host booted since a daemon attached.
    pub lost_power: bool,
    /// Chooses what a loss of power leaves: nothing new, everything new, or something of both.
    pub power_seed: u64,
}

impl TestWorld {
    pub fn new(frame_count: u32) -> TestWorld {
        TestWorld::with_pages(PAGE, frame_count)
    }

    pub fn with_pages(page_bytes: u64, frame_count: u32) -> TestWorld {
        let pages = PageGeometry::from_page_bytes(page_bytes).unwrap();
        let layout = RegionLayout { pages, frame_count };
        let fuse = Rc::new(Fuse::default());
        TestWorld {
            layout,
            private: TestMem::new(layout.private_bytes(), false, &fuse),
            table: TestMem::new(layout.table_bytes(), true, &fuse),
            pages: TestMem::new(layout.pages_bytes(), false, &fuse),
            slot: TestMem::new(BLOCK_BYTES, true, &fuse),
            fuse,
            cells: vec![0; (SLOTS_MAX * CELLS) as usize],
            consumed: BTreeMap::new(),
            slots: BTreeMap::new(),
            changing: BTreeMap::new(),
            host_blocks_free: u64::MAX / 2,
            tiers: Tiers::default(),
            barriers: 0,
            calls: VecDeque::new(),
            replies: VecDeque::new(),
            write_backs: Vec::new(),
            master: FakeMaster::default(),
            lost_power: false,
            power_seed: 0,
        }
    }

    pub fn formatted(frame_count: u32) -> TestWorld {
        TestWorld::new(frame_count).format()
    }

    fn format(mut self) -> TestWorld {
        let layout = self.layout;
        format(&mut self, RACK, [7, 8], layout).unwrap();
        self
    }

    pub fn pages_mem(&self) -> &TestMem {
        &self.pages
    }

    pub fn private_mem(&self) -> &TestMem {
        &self.private
    }

    pub fn table_mem(&self) -> &TestMem {
        &self.table
    }

    /// The generation that the table has for a frame.
    pub fn table_word(&self, frame: FrameIndex) -> u64 {
        self.table.peek(table_word(frame))
    }

    /// Where an address lies, asked of the master and checked against table and frame entry.
    pub fn offset_of(&self, addr: GAddr) -> u64 {
        let page = self.layout.pages.page(addr);
        let home = self.master.pages.get(&page.0).expect("the directory knows a live page");
        // With replicas or without.
        let word = self.table.peek(table_word(home.frame));
        let is_known = word == home.generation.0 || Generation(word).is_shared();
        assert!(is_known, "table of {page}: {word:#x}");
        self.layout.frame_offset(home.frame) + self.layout.pages.offset(addr)
    }
}

impl World for TestWorld {
    type Mem = TestMem;
    type Persistent = TestMem;
    type Outbox = Self;
    fn private(&self) -> &TestMem {
        &self.private
    }
    fn table(&self) -> &TestMem {
        &self.table
    }
    fn pages(&self) -> &TestMem {
        &self.pages
    }
    fn tiers(&self) -> Tiers {
        self.tiers.clone()
    }
    fn lost_power(&self) -> bool {
        self.lost_power
    }
    fn cell_count(&self) -> u32 {
        self.cells.len() as u32
    }
    fn cell(&self, index: u32) -> u64 {
        self.cells[index as usize]
    }
    fn slot(&self, slot: u32) -> Option<&Self::Mem> {
        self.slots.get(&slot)
    }
    fn slot_word(&self, slot: u32, word: SlotWord) -> Option<u64> {
        match word {
            SlotWord::Changing => Some(self.changing.get(&slot).copied().unwrap_or(0)),
            word => {
                assert_eq!(word, SlotWord::ConsumedSeq);
                self.consumed.get(&slot).copied()
            }
        }
    }
    fn back_pages(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.fuse.burn();
        let blocks = bytes / BLOCK_BYTES;
        if blocks > self.host_blocks_free {
            let free_bytes = self.host_blocks_free * BLOCK_BYTES;
            return Err(Error::Full { bytes, free_bytes, place: "host".into() });
        }
        assert!(self.pages.peek(offset) == 0, "a fresh frame is zero");
        self.host_blocks_free -= self.pages.back(offset, bytes);
        Ok(())
    }
    fn punch_pages(&mut self, offset: u64, bytes: u64) {
        self.fuse.burn();
        let page_bytes = self.layout.pages.page_bytes();
        for frame in offset / page_bytes..(offset + bytes) / page_bytes {
            let frame = FrameIndex(frame as u32);
            assert!(!self.cells.contains(&(u64::from(frame.0) + 1)), "frame {frame} is announced");
            assert_eq!(self.table.peek(table_word(frame)), 0, "frame {frame} is in the table");
            let here = |home: &PageHome| home.rack == RACK && home.frame == frame;
            let known = self.master.pages.values().any(here);
            assert!(!known || self.layout.frame_count > 100, "the master knows frame {frame}");
        }
        self.host_blocks_free += self.pages.punch(offset, bytes);
    }
    fn back_private(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.fuse.burn();
        self.private.back(offset, bytes);
        Ok(())
    }
    fn punch_private(&mut self, offset: u64, bytes: u64) {
        self.fuse.burn();
        self.private.punch(offset, bytes);
    }
    fn barrier(&mut self) {
        self.fuse.burn();
        self.barriers += 1;
    }
    fn metadata_bytes(&self) -> u64 {
        self.private.backed_bytes() + self.table.backed_bytes()
    }
    fn outbox(&mut self) -> &mut Self {
        self
    }
}

impl Outbox for TestWorld {
    fn to_master(&mut self, id: u64, call: MasterCall) {
        self.fuse.burn();
        self.calls.push_back((id, call));
    }
    fn reply(&mut self, to: ClientId, frame: ReplyFrame) {
        self.fuse.burn();
        self.replies.push_back((to, frame));
    }
    fn write_back(&mut self, to: ClientId, job: WriteBack) {
        self.fuse.burn();
        self.replies.push_back((to, job.done.clone()));
        self.write_backs.push((to, job));
    }
}

/// A client as the rig plays it.
#[derive(Debug)]
pub struct Client {
    pub id: ClientId,
    pub session: SessionId,
    pub seq: u64,
    /// The last request with an answer that it noted as taken.
    pub consumed: u64,
    /// Whether it notes that it has taken answers.
    pub consumes: bool,
    pub pending: Option<Request>,
    /// What the request under way frees: address, model, first word.
    pub freeing: Option<(u64, Live, u64)>,
    pub last: Option<Result<Reply>>,
}

/// An allocation that must be there.
#[derive(Clone, Debug)]
pub struct Live {
    pub bytes: u64,
    pub owner: Option<SessionId>,
    pub tag: u64,
}

/// Plays clients, the master and restarts, and checks everything that must hold.
pub struct Rig {
    pub world: TestWorld,
    pub daemon: Option<Daemon>,
    pub clients: BTreeMap<u32, Client>,
    /// By address: what must be there, first word aside, which the atomics use.
    pub live: BTreeMap<u64, Live>,
    pub words: BTreeMap<u64, u64>,
    /// Sessions of processes that died: left at the next chance.
    pub dead: Vec<SessionId>,
    pub now: u64,
    pub restarts: u32,
    pub unknown: u32,
    /// What is lost in a crash: calls on the wire and answers not taken yet.
    pub loses: bool,
    /// Ends the first attach after a crash at that effect.
    pub second_crash: Option<u64>,
    /// Whether a burnt fuse is a loss of power: then it is the caller's.
    pub loses_power: bool,
    tags: u64,
}

impl Rig {
    pub fn new(frame_count: u32) -> Rig {
        Rig::with_pages(PAGE, frame_count)
    }

    pub fn with_pages(page_bytes: u64, frame_count: u32) -> Rig {
        Rig::on(TestWorld::with_pages(page_bytes, frame_count))
    }

    /// A rack with memories of several nodes, by weights.
    pub fn with_tiers(frame_count: u32, nodes: &[(u16, u16)]) -> Rig {
        let tiers = Tiers::by_weights(frame_count, nodes).unwrap();
        Rig::on(TestWorld { tiers, ..TestWorld::new(frame_count) })
    }

    fn on(world: TestWorld) -> Rig {
        let mut rig = Rig::unstarted(world.format());
        rig.start();
        rig
    }

    fn unstarted(world: TestWorld) -> Rig {
        Rig {
            world,
            daemon: None,
            clients: BTreeMap::new(),
            live: BTreeMap::new(),
            words: BTreeMap::new(),
            dead: Vec::new(),
            now: 0,
            restarts: 0,
            unknown: 0,
            loses: false,
            second_crash: None,
            loses_power: false,
            tags: 0,
        }
    }

    /// Runs a piece of the daemon; `None` if it crashed in it.
    pub fn run<T>(&mut self, piece: impl FnOnce(&mut Daemon, &mut TestWorld) -> T) -> Option<T> {
        let mut daemon = self.daemon.take().expect("the daemon runs");
        let world = &mut self.world;
        match catch_unwind(AssertUnwindSafe(|| (piece(&mut daemon, world), daemon))) {
            Ok((result, daemon)) => {
                self.daemon = Some(daemon);
                Some(result)
            }
            Err(cause) if cause.is::<Crash>() && !self.loses_power => {
                self.after_crash();
                None
            }
            Err(cause) => resume_unwind(cause),
        }
    }

    fn after_crash(&mut self) {
        self.restarts += 1;
        if self.loses {
            self.world.replies.clear();
        } else {
            self.take_replies();
            let calls = std::mem::take(&mut self.world.calls);
            for (id, call) in calls {
                self.world.master.serve(id, &call);
            }
        }
        self.world.calls.clear();
        if let Some(effects) = self.second_crash.take() {
            self.world.fuse.arm(effects);
        }
        self.start();
        self.world.fuse.disarm();
        self.resend();
    }

    /// Attaches and does what a runtime does after it.
    pub fn start(&mut self) {
        self.world.master.parked = None;
        loop {
            let world = &mut self.world;
            let attached = catch_unwind(AssertUnwindSafe(|| {
                let mut daemon = Daemon::attach(world, RACK, Some(world.layout.pages)).unwrap();
                let slots: Vec<u32> = world.slots.keys().copied().collect();
                slots.into_iter().for_each(|slot| daemon.recover_loans(slot, world));
                daemon.master_up(world);
                daemon
            }));
            match attached {
                Ok(daemon) => {
                    self.daemon = Some(daemon);
                    break;
                }
                Err(cause) if cause.is::<Crash>() => {
                    if self.loses_power {
                        self.world.lose_power();
                    }
                    self.world.calls.clear();
                    self.world.master.parked = None;
                }
                Err(cause) => resume_unwind(cause),
            }
        }
        let known: Vec<_> = self.clients.values().map(|c| (c.id, c.session, c.consumed)).collect();
        for (id, session, consumed) in known {
            let came_back = self.run(|daemon, world| match id {
                ClientId::Slot(slot) => daemon.resume_local(session, 1, slot).unwrap(),
                ClientId::Remote(record) => {
                    let joined = daemon.join_remote(remote_client(session), world).unwrap();
                    assert_eq!(joined, (record, true), "a remote session is kept");
                    daemon.note_consumed(record, consumed, world);
                }
            });
            if came_back.is_none() {
                // It crashed and was started anew in there.
                return;
            }
        }
        self.bury();
    }

    pub fn resend(&mut self) {
        let pending: Vec<_> = self.clients.values().filter(|c| c.pending.is_some()).collect();
        let frames: Vec<_> = pending
            .iter()
            .map(|c| (c.id, RequestFrame { seq: c.seq, request: c.pending.clone().unwrap() }))
            .collect();
        for (id, frame) in frames {
            if self.run(|daemon, world| daemon.on_request(id, frame, world)).is_none() {
                return;
            }
        }
    }

    pub fn join(&mut self, name: u32) {
        let session = SessionId(u64::from(name) + 100);
        loop {
            let known = self.daemon.as_ref().unwrap().sessions().find(|s| s.session == session);
            let slot = match known {
                Some(info) => Some(info.record),
                None => self
                    .run(|daemon, world| daemon.join_local(local_client(session), world).unwrap()),
            };
            if let Some(slot) = slot {
                self.world.consumed.insert(slot, 0);
                self.add_client(name, session, ClientId::Slot(slot));
                return;
            }
        }
    }

    pub fn join_remote(&mut self, name: u32) {
        let session = SessionId(u64::from(name) + 100);
        loop {
            let joined = self
                .run(|daemon, world| daemon.join_remote(remote_client(session), world).unwrap());
            if let Some((record, _)) = joined {
                self.add_client(name, session, ClientId::Remote(record));
                return;
            }
        }
    }

    fn add_client(&mut self, name: u32, session: SessionId, id: ClientId) {
        let client = Client {
            id,
            session,
            seq: 0,
            consumed: 0,
            consumes: true,
            pending: None,
            freeing: None,
            last: None,
        };
        assert!(self.clients.insert(name, client).is_none());
    }

    /// The client's process dies, with whatever it has under way.
    pub fn kill(&mut self, name: u32) {
        let client = self.clients.remove(&name).expect("a client is killed once");
        assert!(client.pending.is_none() || matches!(client.id, ClientId::Slot(_)));
        self.live.retain(|_, live| live.owner != Some(client.session));
        self.dead.push(client.session);
        self.bury();
        // Its slot's rings go with it.
        self.world.replies.retain(|(to, _)| *to != client.id);
        if let ClientId::Slot(slot) = client.id {
            self.world.slots.remove(&slot);
        }
        self.end_of_word(client);
    }

    fn bury(&mut self) {
        let mut tries = 0;
        while let Some(session) = self.dead.last().copied() {
            // A crash on the way makes it begin anew.
            tries += 1;
            assert!(tries < 1000, "session {session} does not end");
            let daemon = self.daemon.as_ref().unwrap();
            let Some(info) = daemon.sessions().find(|s| s.session == session) else {
                self.dead.pop();
                continue;
            };
            self.run(|daemon, world| match info.record {
                slot if slot < SLOTS_MAX => daemon.leave(slot, world),
                record => daemon.end_remote(record, world),
            });
        }
    }

    /// Sends a request without waiting for the answer.
    pub fn submit(&mut self, name: u32, request: Request) {
        let frees = match request {
            Request::Free { addr, bytes } => Some((addr.0, bytes)),
            Request::FreeApart { addr, bytes, .. } => Some((addr.0, bytes)),
            Request::FreeFrom { word, bytes } => {
                Some((self.words.get(&word.0).copied().unwrap_or(0), bytes))
            }
            _ => None,
        };
        let mut freeing = None;
        if let Some((addr, bytes)) = frees
            && self.live.get(&addr).is_some_and(|live| live.bytes == bytes)
        {
            let live = self.live.remove(&addr).unwrap();
            freeing = Some((addr, live, self.words.remove(&addr).unwrap()));
        }
        let client = self.clients.get_mut(&name).expect("the client lives");
        assert!(client.pending.is_none());
        client.seq += 1;
        client.pending = Some(request.clone());
        client.freeing = freeing;
        client.last = None;
        let (id, frame) = (client.id, RequestFrame { seq: client.seq, request });
        self.run(|daemon, world| daemon.on_request(id, frame, world));
    }

    /// Lets master, ticks and restarts happen until everything is answered.
    pub fn settle(&mut self) {
        for _ in 0..20_000 {
            self.take_replies();
            if self.clients.values().all(|client| client.pending.is_none()) {
                return;
            }
            self.turn();
        }
        panic!("no answer to {:?}", self.clients);
    }

    /// One thing that the outside does: an answer of the master, else a tick.
    pub fn turn(&mut self) {
        self.now += 100_000_000;
        let now = self.now;
        match self.world.calls.pop_front() {
            Some((id, call)) => {
                if let Some(reply) = self.world.master.serve(id, &call) {
                    self.run(|daemon, world| daemon.on_master(now, reply, world));
                }
            }
            None if let Some(reply) = self.world.master.ripe() => {
                self.run(|daemon, world| daemon.on_master(now, reply, world));
            }
            None => {
                self.run(|daemon, world| daemon.tick(now, world));
            }
        }
    }

    /// Until nothing is left to do.
    pub fn quiesce(&mut self) {
        self.settle();
        for _ in 0..20_000 {
            let tick_ns = self.daemon.as_ref().unwrap().tick_ns();
            let busy = tick_ns.is_some_and(|ns| ns != LOAN_IDLE_NS);
            let told = self.world.master.is_told_all();
            if !busy && told && self.world.calls.is_empty() {
                return;
            }
            self.turn();
        }
        panic!("the daemon never comes to rest");
    }

    pub fn ask(&mut self, name: u32, request: Request) -> Result<Reply> {
        self.submit(name, request);
        self.settle();
        self.clients.get_mut(&name).unwrap().last.take().expect("it was answered")
    }

    pub fn alloc(&mut self, name: u32, bytes: u64, owned: bool) -> GAddr {
        match self.ask(name, Request::Alloc { bytes, kind: kind_of(owned) }) {
            Ok(Reply::Allocated { addr }) => addr,
            other => panic!("{bytes} bytes for {name}: {other:?}"),
        }
    }

    pub fn free(&mut self, name: u32, addr: GAddr, bytes: u64) {
        let reply = self.ask(name, Request::Free { addr, bytes });
        assert_eq!(reply, Ok(Reply::Freed), "{addr} {bytes}");
    }

    pub fn take_replies(&mut self) {
        while let Some((to, frame)) = self.world.replies.pop_front() {
            let Some(name) = self
                .clients
                .iter()
                .find(|(_, c)| c.id == to && c.seq == frame.seq && c.pending.is_some())
                .map(|(name, _)| *name)
            else {
                continue;
            };
            let client = self.clients.get_mut(&name).unwrap();
            let request = client.pending.take().unwrap();
            client.last = Some(frame.reply.clone());
            self.check(name, request, frame.reply);
        }
    }

    fn check(&mut self, name: u32, request: Request, reply: Result<Reply>) {
        let client = &self.clients[&name];
        match (request, reply) {
            (
                Request::Alloc { bytes, kind } | Request::AllocIn { bytes, kind, .. },
                Ok(Reply::Allocated { addr }),
            ) => {
                let owner = kind.is_owned().then_some(client.session);
                if client.consumes {
                    self.consume(name);
                    self.born(addr, bytes, owner);
                }
            }
            (Request::Free { .. }, Ok(Reply::Freed)) => {}
            (Request::AllocInto { word, bytes }, Ok(Reply::Allocated { addr })) => {
                assert_eq!(self.word(word), addr.0, "the word {word} names what was allocated");
                self.named(word, addr, bytes);
            }
            (Request::AllocInto { word, .. }, Err(Error::Occupied { addr, found })) => {
                assert_eq!((addr, self.word(word)), (word, found));
                assert_ne!(found, 0);
            }
            (Request::FreeFrom { .. }, Ok(Reply::Apart { addr })) => {
                let client = self.clients.get_mut(&name).expect("it asked");
                if let Some((at, live, word)) = client.freeing.take() {
                    assert_eq!(at, addr.0);
                    self.live.insert(at, live);
                    self.words.insert(at, word);
                }
            }
            (
                Request::FreeFrom { word, .. } | Request::FreeApart { word, .. },
                Ok(Reply::Freed),
            ) => {
                assert_eq!(self.word(word), 0, "the word {word} names nothing any more");
                self.words.insert(word.0, 0);
            }
            (Request::FetchAdd { addr, n }, reply) => {
                let old = self.words.get(&addr.0).copied().unwrap_or(0);
                self.check_atomic(addr, old, old.wrapping_add(n), reply);
            }
            (Request::Cas { addr, expected, new }, reply) => {
                let old = self.words.get(&addr.0).copied().unwrap_or(0);
                self.check_atomic(addr, old, if old == expected { new } else { old }, reply);
            }
            _ => {}
        }
    }

    /// The client has taken its last answer.
    fn consume(&mut self, name: u32) {
        let client = self.clients.get_mut(&name).unwrap();
        client.consumed = client.seq;
        match (client.id, client.seq) {
            (ClientId::Slot(slot), seq) => {
                self.world.consumed.insert(slot, seq);
            }
            // A daemon that is down hears of it when the client joins again.
            (ClientId::Remote(_), _) if self.daemon.is_none() => {}
            (ClientId::Remote(record), seq) => {
                self.run(|daemon, world| daemon.note_consumed(record, seq, world));
            }
        }
    }

    fn check_atomic(&mut self, addr: GAddr, old: u64, new: u64, reply: Result<Reply>) {
        let word = self.world.pages.peek(self.world.offset_of(addr));
        match reply {
            Ok(Reply::Old { value }) => assert_eq!((value, word), (old, new), "at {addr}"),
            Err(Error::OutcomeUnknown { .. }) => {
                assert!(word == old || word == new, "{word} at {addr}, {old} or {new} expected");
                self.unknown += 1;
            }
            other => panic!("atomic at {addr}: {other:?}"),
        }
        self.words.insert(addr.0, word);
    }

    pub fn born(&mut self, addr: GAddr, bytes: u64, owner: Option<SessionId>) {
        let before = self.live.range(..=addr.0).next_back();
        let after = self.live.range(addr.0..).next();
        assert!(before.is_none_or(|(at, live)| at + live.bytes <= addr.0), "{addr} overlaps");
        assert!(after.is_none_or(|(at, _)| addr.0 + bytes <= *at), "{addr} overlaps");
        self.tags += 1;
        let live = Live { bytes, owner, tag: self.tags };
        for at in words_of(addr, bytes) {
            let offset = self.world.offset_of(GAddr(at));
            assert_eq!(self.world.pages.load(offset), 0, "{addr} is zeroed");
            if at != addr.0 {
                self.world.pages.poke(offset, self.tags << 32 | (at & 0xffff_ffff));
            }
        }
        self.live.insert(addr.0, live);
        self.words.insert(addr.0, 0);
    }

    /// Every acknowledged allocation holds what was written into it.
    pub fn verify(&mut self) {
        self.verify_content();
        let live = self.live.len() as u64;
        assert_eq!(self.daemon.as_ref().unwrap().stats(&self.world).allocations, live);
    }

    /// As [`Rig::verify`], whatever else is allocated.
    pub fn verify_content(&mut self) {
        self.verify_resolve();
        for (addr, live) in &self.live {
            for at in words_of(GAddr(*addr), live.bytes) {
                let found = self.world.pages.load(self.world.offset_of(GAddr(at)));
                let written = live.tag << 32 | (at & 0xffff_ffff);
                let wanted = if at == *addr { self.words[addr] } else { written };
                assert_eq!(found, wanted, "{at:#x} in {addr:#x} with {} bytes", live.bytes);
            }
        }
    }

    /// The daemon and the master tell the same homes of everything that lives.
    fn verify_resolve(&mut self) {
        let Some(id) = self.clients.values().next().map(|client| client.id) else { return };
        let spans: Vec<_> = self.live.iter().map(|(addr, l)| (*addr, l.bytes)).collect();
        for (addr, bytes) in spans {
            let page = self.world.layout.pages.page(GAddr(addr));
            let count = bytes.div_ceil(self.world.layout.pages.page_bytes()).min(256) as u32;
            let frame = RequestFrame { seq: 0, request: Request::Resolve { page, count } };
            if self.run(|daemon, world| daemon.on_request(id, frame, world)).is_none() {
                return;
            }
            let Some((_, answer)) = self.world.replies.pop_back() else { return };
            let homes = (page.0..page.0 + u64::from(count)).map(|p| self.world.master.pages[&p]);
            assert_eq!(answer.reply, Ok(Reply::Homes(homes.collect())), "{addr:#x}");
        }
    }

    /// Frees everything, lets all clients leave, and checks that nothing is missing.
    pub fn finish(mut self) {
        self.quiesce();
        self.verify();
        self.join(900);
        let all: Vec<_> = self.live.iter().map(|(addr, live)| (*addr, live.bytes)).collect();
        for (addr, bytes) in all {
            self.free(900, GAddr(addr), bytes);
        }
        let names: Vec<_> = self.clients.keys().copied().collect();
        for name in names {
            self.kill(name);
        }
        self.run(|daemon, world| daemon.release_cached_pages(world));
        self.quiesce();
        let daemon = self.daemon.as_ref().unwrap();
        let stats = daemon.stats(&self.world);
        assert_eq!(u64::from(daemon.frames_free()), stats.frames, "frames leak: {stats:?}");
        assert_eq!((stats.allocations, stats.allocated_bytes), (0, 0));
        assert_eq!((stats.slots_used, stats.remote_sessions, stats.frames_slab), (0, 0, 0));
        assert_eq!(self.world.pages.backed_bytes(), 0, "memory leaks");
        assert!(self.world.master.pages.is_empty(), "directory: {:?}", self.world.master.pages);
        for frame in 0..self.world.layout.frame_count {
            assert_eq!(self.world.table.peek(table_word(FrameIndex(frame))), 0);
            let state = frame_word(FrameIndex(frame), rackpool_core::layout::FrameWord::State);
            assert_eq!(self.world.private.peek(state) & 0xff, 0);
        }
    }
}

/// The words of an allocation that the rig fills: all of a small one, some of a large one.
fn words_of(addr: GAddr, bytes: u64) -> impl Iterator<Item = u64> {
    let step = if bytes > 64 << 10 { 4096 } else { 8 };
    (addr.0..addr.0 + bytes / 8 * 8).step_by(step)
}
