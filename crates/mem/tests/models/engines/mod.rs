//! The engines of the core over modelled memory: a daemon with one slot or more, its sections,
//! and a master that answers at once. What two parties share is memory of the model checker; what
//! is the daemon's alone is plain, so that its many accesses are no steps of the model. Of each
//! frame the first [`SHARED_BYTES`] are modelled.
#![allow(dead_code)]

#[cfg(feature = "loom")]
pub mod model;

use rackpool_core::client::{Client, OWN, RackView, Reach};
use rackpool_core::constants::PAGE_ID_LEASE;
use rackpool_core::daemon::{ClientId, Daemon, LocalClient, Outbox, World, format};
use rackpool_core::layout::{AllocationKind, RegionLayout, SlotWord, cell_offset};
use rackpool_core::persist::Persist;
use rackpool_core::seam::{Mem, Mutation, Probe, Rare};
use rackpool_core::spill::SpillFile;
use rackpool_core::target::TargetMemory;
use rackpool_core::wire::{
    MasterAnswer, MasterCall, MasterReply, PageHome, Reply, ReplyFrame, Request, RequestFrame,
};
use rackpool_core::{GAddr, PageGeometry, PageId, RackId, Result, SessionId};
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const RACK: RackId = RackId(0);
pub const PAGE: u64 = 4096;
/// What is modelled of each frame.
pub const SHARED_BYTES: u64 = 16;
/// Cells of each slot that the daemon looks at: accesses and one pin.
const CELLS: u32 = 2;

type Words = Arc<Mutex<Vec<u64>>>;

fn words(bytes: u64) -> Words {
    Arc::new(Mutex::new(vec![0; bytes as usize / 8]))
}

/// Where a section's words are.
#[derive(Clone)]
enum Place {
    /// Words of the model.
    Shared(Window),
    /// The beginnings of frames, one behind the other.
    Frames(Window),
    /// Words that one thread uses.
    Private(Words),
    /// The frames' generation words, and behind them those of replicas, which no model has.
    Table(Window, Words),
}

/// A section with answers to the engines' questions that a test chooses.
#[derive(Clone)]
pub struct Section {
    place: Place,
    bytes: u64,
    mutation: Option<Mutation>,
    rare: Option<Rare>,
}

impl Section {
    pub fn shared(window: Window, mutation: Option<Mutation>) -> Section {
        let bytes = window.bytes();
        Section { place: Place::Shared(window), bytes, mutation, rare: None }
    }

    fn window(&self, offset: u64, bytes: u64) -> Option<(&Window, u64)> {
        match &self.place {
            Place::Shared(window) => Some((window, offset)),
            Place::Frames(window) => {
                let (frame, within) = (offset / PAGE, offset % PAGE);
                assert!(within + bytes <= SHARED_BYTES, "the model knows a frame's beginning only");
                Some((window, frame * SHARED_BYTES + within))
            }
            Place::Table(window, _) => (offset < window.bytes()).then_some((window, offset)),
            Place::Private(_) => None,
        }
    }

    fn private<R>(&self, run: impl FnOnce(&mut [u64]) -> R) -> R {
        let (Place::Private(words) | Place::Table(_, words)) = &self.place else {
            unreachable!("window() was asked before")
        };
        run(&mut words.lock().expect("no step happens under this lock"))
    }

    fn punch(&self, offset: u64, bytes: u64) {
        if let Place::Frames(window) = &self.place {
            for frame in offset / PAGE..(offset + bytes) / PAGE {
                window.zero(frame * SHARED_BYTES, SHARED_BYTES);
            }
        } else {
            self.zero(offset, bytes);
        }
    }
}

impl Probe for Section {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
    fn rare(&self, rare: Rare) -> bool {
        self.rare == Some(rare)
    }
}

impl Persist for Section {}

impl Mem for Section {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn load(&self, offset: u64) -> u64 {
        match self.window(offset, 8) {
            Some((window, offset)) => window.load(offset),
            None => self.private(|words| words[offset as usize / 8]),
        }
    }
    fn store(&self, offset: u64, value: u64) {
        match self.window(offset, 8) {
            Some((window, offset)) => window.store(offset, value),
            None => self.private(|words| words[offset as usize / 8] = value),
        }
    }
    fn announce(&self, offset: u64, value: u64) {
        let (window, offset) = self.window(offset, 8).expect("cells are shared");
        window.announce(offset, value);
    }
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        let (window, offset) = self.window(offset, 8).expect("words of pages are shared");
        window.compare_exchange(offset, expected, new)
    }
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        let (window, offset) = self.window(offset, 8).expect("words of pages are shared");
        window.fetch_add(offset, n)
    }
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        match self.window(offset, to.len() as u64) {
            Some((window, offset)) => window.copy_out(offset, to),
            None => self.private(|words| {
                for (chunk, word) in to.chunks_mut(8).zip(&words[offset as usize / 8..]) {
                    chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
                }
            }),
        }
    }
    fn copy_in(&self, offset: u64, from: &[u8]) {
        let (window, offset) = self.window(offset, from.len() as u64).expect("pages are shared");
        window.copy_in(offset, from);
    }
    fn zero(&self, offset: u64, bytes: u64) {
        match self.window(offset, bytes) {
            Some((window, offset)) => window.zero(offset, bytes),
            None => self.private(|words| {
                words[offset as usize / 8..(offset + bytes) as usize / 8].fill(0);
            }),
        }
    }
    fn prefetch(&self, _offset: u64) {}
    fn fence(&self) {
        if let Some((window, _)) = self.window(0, 0) {
            window.fence();
        }
    }
    fn flush(&self, _offset: u64, _bytes: u64) {}
}

pub struct Rack {
    layout: RegionLayout,
    private: Section,
    table: Section,
    pages: Section,
    slots: BTreeMap<u32, Section>,
    target_cell: Section,
    mutation: Option<Mutation>,
    calls: Vec<(u64, MasterCall)>,
    pub replies: Vec<(ClientId, ReplyFrame)>,
    directory: BTreeMap<u64, PageHome>,
    next_page: u64,
}

impl Rack {
    /// A formatted region and its daemon, which leaves `mutation` out.
    pub fn start(frame_count: u32, mutation: Option<Mutation>) -> (Rack, Daemon) {
        let pages = PageGeometry::from_page_bytes(PAGE).expect("a page size");
        let layout = RegionLayout { pages, frame_count };
        let shared = |bytes| Section::shared(Window::heap(bytes), mutation);
        let section = |place, bytes| Section { place, bytes, mutation, rare: None };
        let frames = Window::heap(u64::from(frame_count) * SHARED_BYTES);
        let private = Place::Private(words(layout.private_bytes()));
        let keys = Window::heap(8 * u64::from(frame_count));
        let table = Place::Table(keys, words(layout.table_bytes()));
        let mut rack = Rack {
            layout,
            private: section(private, layout.private_bytes()),
            table: section(table, layout.table_bytes()),
            pages: section(Place::Frames(frames), layout.pages_bytes()),
            slots: BTreeMap::new(),
            target_cell: shared(8),
            mutation,
            calls: Vec::new(),
            replies: Vec::new(),
            directory: BTreeMap::new(),
            next_page: PAGE_ID_LEASE,
        };
        format(&mut rack, RACK, [1, 2], layout).expect("a fresh region");
        let mut daemon = Daemon::attach(&mut rack, RACK, None).expect("a formatted region");
        daemon.master_up(&mut rack);
        rack.serve_master(&mut daemon);
        (rack, daemon)
    }

    /// A local client joins: its slot, and its engine with room for `translations` pages.
    pub fn join(
        &mut self,
        daemon: &mut Daemon,
        session: u64,
        translations: u32,
    ) -> (u32, Client<Section>) {
        let session = SessionId(session);
        let joining = LocalClient { session, hello: 1, pid: 1, start_time: 1 };
        let slot = daemon.join_local(joining, self).expect("a slot is free");
        let section = Section::shared(Window::heap(SlotWord::Changing as u64 + 8), self.mutation);
        self.slots.insert(slot, section.clone());
        let (pages, table) = (self.pages.clone(), self.table.clone());
        let view = RackView { pages, table, slot: section, layout: self.layout };
        (slot, Client::new(RACK, Reach::Mapped(view), translations))
    }

    /// The client's process is dead, or it left: its cells and words are not looked at any more
    /// once the daemon has given back what it held.
    pub fn leave(&mut self, daemon: &mut Daemon, slot: u32) {
        daemon.leave(slot, self);
        self.slots.remove(&slot);
        self.serve_master(daemon);
    }

    /// A word of a slot's header.
    pub fn slot_section(&self, slot: u32) -> &Section {
        &self.slots[&slot]
    }

    /// What executes one-sided operations here, always taking a rare branch.
    pub fn target(&self, rare: Option<Rare>) -> TargetMemory<Section> {
        let (pages, table) = (self.pages.clone(), self.table.clone());
        let cell = Section { rare, ..self.target_cell.clone() };
        TargetMemory::new(pages, table, cell, self.layout).expect("the sections fit")
    }

    /// A request of a client, served to its end.
    pub fn request(&mut self, daemon: &mut Daemon, slot: u32, seq: u64, request: Request) -> Reply {
        daemon.on_request(ClientId::Slot(slot), RequestFrame { seq, request }, self);
        self.serve_master(daemon);
        let (to, frame) = self.replies.pop().expect("the master answers at once");
        assert_eq!((to, frame.seq), (ClientId::Slot(slot), seq));
        frame.reply.expect("the request is served")
    }

    /// A page of its own for a client; its translation is in the client's cache.
    pub fn page(
        &mut self,
        daemon: &mut Daemon,
        (slot, client): (u32, &mut Client<Section>),
        seq: u64,
        owned: bool,
    ) -> (GAddr, PageHome) {
        let kind = if owned { AllocationKind::Session } else { AllocationKind::User };
        let reply = self.request(daemon, slot, seq, Request::Alloc { bytes: PAGE, kind });
        let Reply::Allocated { addr } = reply else { panic!("{reply:?} to an allocation") };
        let home = self.directory[&self.layout.pages.page(addr).0];
        client.install(OWN, &[home]).expect("a home in the region");
        (addr, home)
    }

    /// Bytes of a page, as its owner sees them.
    pub fn write_page(&self, home: PageHome, bytes: &[u8]) {
        self.pages.copy_in(self.layout.frame_offset(home.frame), bytes);
    }

    pub fn read_page(&self, home: PageHome) -> [u8; SHARED_BYTES as usize] {
        let mut bytes = [0; SHARED_BYTES as usize];
        self.pages.copy_out(self.layout.frame_offset(home.frame), &mut bytes);
        bytes
    }

    /// Answers what the daemon asked the master, until it asks nothing more.
    pub fn serve_master(&mut self, daemon: &mut Daemon) {
        while !self.calls.is_empty() {
            for (id, call) in std::mem::take(&mut self.calls) {
                // As the master, which answers once there is something to free.
                if call == MasterCall::NextOrphans {
                    continue;
                }
                let answer = Ok(self.answer(call));
                daemon.on_master(0, MasterReply { id, term: 1, index: 1, answer }, self);
            }
        }
    }

    fn answer(&mut self, call: MasterCall) -> MasterAnswer {
        match call {
            MasterCall::LeasePageIds { count } => {
                let first = PageId(self.next_page);
                self.next_page += count;
                return MasterAnswer::PageIds { first, count };
            }
            MasterCall::CommitPages { homes } => {
                self.directory.extend(homes.into_iter().map(|home| (home.page.0, home)));
            }
            MasterCall::RemovePages { pages, .. } => {
                self.directory.retain(|page, _| !pages.contains(&PageId(*page)));
            }
            other => panic!("a daemon never asks {other:?}"),
        }
        MasterAnswer::Done
    }
}

impl SpillFile for Rack {}

impl World for Rack {
    type Mem = Section;
    type Persistent = Section;
    type Outbox = Self;
    fn private(&self) -> &Section {
        &self.private
    }
    fn table(&self) -> &Section {
        &self.table
    }
    fn pages(&self) -> &Section {
        &self.pages
    }
    fn cell_count(&self) -> u32 {
        self.slots.len() as u32 * CELLS + 1
    }
    fn cell(&self, index: u32) -> u64 {
        match self.slots.values().nth((index / CELLS) as usize) {
            Some(slot) => slot.load(cell_offset(index % CELLS)),
            None => self.target_cell.load(0),
        }
    }
    fn slot(&self, slot: u32) -> Option<&Section> {
        self.slots.get(&slot)
    }
    fn back_pages(&mut self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
    fn punch_pages(&mut self, offset: u64, bytes: u64) {
        self.pages.punch(offset, bytes);
    }
    fn back_private(&mut self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
    fn punch_private(&mut self, offset: u64, bytes: u64) {
        self.private.punch(offset, bytes);
    }
    fn barrier(&mut self) {
        self.table.fence();
    }
    fn metadata_bytes(&self) -> u64 {
        0
    }
    fn outbox(&mut self) -> &mut Self {
        self
    }
}

impl Outbox for Rack {
    fn to_master(&mut self, id: u64, call: MasterCall) {
        self.calls.push((id, call));
    }
    fn reply(&mut self, to: ClientId, frame: ReplyFrame) {
        self.replies.push((to, frame));
    }
}
