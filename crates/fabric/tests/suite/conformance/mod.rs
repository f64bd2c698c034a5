//! What every fabric must do, as checks that know only a [`Rig`]: a fabric with its target's memory
//! in reach. Run for `tcp`, `shm` and `verbs` by this crate's tests, and for the simulated network
//! by those of `rackpool-sim`.
//!
//! [`table`] says which checks there are, which fabric is excused from which and why, and writes
//! that down in `docs/fabrics.md`.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod checks;
pub mod table;

use rackpool_core::addr::{FrameIndex, Generation, PageGeometry};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Mem, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest,
    WorkStatus,
};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::Window;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PAGE: u64 = 8 << 20;
pub const FRAMES: u32 = 4;
/// Moments at which a key is revoked in the midst of a page, at least.
pub const REVOCATIONS: u64 = 20;
/// Announce cells: one for a target's own accesses, others for frames that it has opened.
const CELL_BYTES: u64 = 64;

/// The memory that a fabric gives access to.
#[derive(Clone)]
pub struct Memory {
    pub pages: Window,
    pub table: Window,
    pub cell: Window,
    pub layout: RegionLayout,
}

impl Memory {
    pub fn new() -> Self {
        let pages = PageGeometry::from_page_bytes(PAGE).unwrap();
        let layout = RegionLayout { pages, frame_count: FRAMES };
        let memory = Memory {
            pages: Window::heap(layout.pages_bytes()),
            table: Window::heap(layout.table_bytes()),
            cell: Window::heap(CELL_BYTES),
            layout,
        };
        memory.set_keys();
        memory
    }

    /// The same on shared memory, as it is.
    pub fn kept_on(window: &Window) -> Self {
        let pages = PageGeometry::from_page_bytes(PAGE).unwrap();
        let layout = RegionLayout { pages, frame_count: FRAMES };
        let (pages_bytes, table_bytes) = (layout.pages_bytes(), layout.table_bytes());
        Memory {
            pages: window.slice(0, pages_bytes),
            table: window.slice(pages_bytes, table_bytes),
            cell: window.slice(pages_bytes + table_bytes.next_multiple_of(4096), CELL_BYTES),
            layout,
        }
    }

    /// The same on shared memory, as new.
    pub fn on(window: &Window) -> Self {
        let memory = Self::kept_on(window);
        for part in [&memory.pages, &memory.table, &memory.cell] {
            part.zero(0, part.bytes());
        }
        memory.set_keys();
        memory
    }

    fn set_keys(&self) {
        for frame in 0..FRAMES {
            self.set_key(frame, key(frame));
        }
    }

    pub fn set_key(&self, frame: u32, key: Generation) {
        self.table.store(table_word(FrameIndex(frame)), key.0);
    }

    /// Revokes a frame as its owner does: new table word, barrier, wait for the cells.
    pub fn revoke(&self, frame: u32) {
        self.set_key(frame, Generation(0));
        self.table.fence();
        let is_announced = |cell: u64| self.cell.load(8 * cell) == u64::from(frame) + 1;
        wait_until(|| !(0..CELL_BYTES / 8).any(is_announced));
    }

    pub fn bytes(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut to = vec![0; bytes as usize];
        self.pages.copy_out(offset, &mut to);
        to
    }
}

pub fn key(frame: u32) -> Generation {
    Generation(100 + u64::from(frame))
}

pub fn at(offset: u64) -> RemoteAddr {
    RemoteAddr { offset, key: key((offset / PAGE) as u32) }
}

pub fn sge(buf: BufId, offset: u64, bytes: u64) -> Sge {
    Sge { buf, offset, bytes }
}

pub fn statuses(events: &[FabricEvent]) -> Vec<(u64, WorkStatus)> {
    let completed = events.iter().filter_map(|event| match event {
        FabricEvent::Completed { id, status, .. } => Some((*id, *status)),
        _ => None,
    });
    completed.collect()
}

/// Has `look` append to `events` until it is enough.
#[track_caller]
pub fn extend_until(
    events: &mut Vec<FabricEvent>,
    mut look: impl FnMut(&mut Vec<FabricEvent>),
    mut is_enough: impl FnMut(&[FabricEvent]) -> bool,
) {
    let start = Instant::now();
    while !is_enough(events) {
        look(events);
        assert!(start.elapsed() < PATIENCE, "{events:?}");
    }
}

/// A work request that tells how it ended.
pub fn work(id: u64, verb: Verb, local: &[Sge]) -> WorkRequest<'_> {
    WorkRequest { id, verb, local, signalled: true }
}

/// All that `look` has appended when it is enough.
#[track_caller]
pub fn events_until(
    look: impl FnMut(&mut Vec<FabricEvent>),
    is_enough: impl FnMut(&[FabricEvent]) -> bool,
) -> Vec<FabricEvent> {
    let mut events = Vec::new();
    extend_until(&mut events, look, is_enough);
    events
}

pub fn is_closed(events: &[FabricEvent]) -> bool {
    matches!(events.last(), Some(FabricEvent::Closed { .. }))
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it never was so");
        std::thread::yield_now();
    }
}

/// Numbers that differ at every place.
pub fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let words = std::iter::repeat_with(next).take(bytes as usize / 8 + 1);
    let mut all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    all.truncate(bytes as usize);
    all
}

/// A fabric with both ends here.
pub trait Rig {
    type End: Fabric;
    const REVOCATIONS: u64 = REVOCATIONS;
    fn new() -> Self;
    /// Gives a buffer to the end.
    fn register(&mut self, bytes: Vec<u8>) -> BufId;
    fn take(&mut self, buf: BufId) -> Vec<u8>;
    fn bytes_of(&mut self, buf: BufId) -> Vec<u8>;
    fn end(&mut self) -> &mut Self::End;
    fn peer(&self) -> PeerId;
    fn memory(&self) -> Memory;
    /// What the target's application receives, without connection events.
    fn application(&mut self) -> Vec<FabricEvent>;
    /// A message of the target's application to us.
    fn application_sends(&mut self, message: &[u8]);
    fn kill(&mut self);
    /// The target starts again with the same memory and is connected to.
    fn restart(&mut self);

    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        let count = self.end().poll(monotonic_ns(), events);
        if count == 0 {
            std::thread::yield_now();
        }
        count
    }

    /// Polls until it is enough; what has happened.
    #[track_caller]
    fn poll_until(&mut self, is_enough: impl FnMut(&[FabricEvent]) -> bool) -> Vec<FabricEvent> {
        events_until(|events| _ = self.poll(events), is_enough)
    }

    /// The same after what has happened already.
    #[track_caller]
    fn poll_on(
        &mut self,
        events: &mut Vec<FabricEvent>,
        is_enough: impl FnMut(&[FabricEvent]) -> bool,
    ) {
        extend_until(events, |events| _ = self.poll(events), is_enough);
    }

    fn post(&mut self, id: u64, verb: Verb, local: &[Sge]) {
        let peer = self.peer();
        self.end().post(peer, &[work(id, verb, local)]).unwrap();
    }

    /// Posts all of a batch, however often the queue is full, and waits for all completions.
    fn run(&mut self, batch: &[WorkRequest<'_>]) -> Vec<(u64, WorkStatus)> {
        let peer = self.peer();
        let (mut posted, mut events) = (0, Vec::new());
        let start = Instant::now();
        while posted < batch.len() || statuses(&events).len() < batch.len() {
            if posted < batch.len() {
                posted += match self.end().post(peer, &batch[posted..]) {
                    Ok(()) => batch.len() - posted,
                    Err((some, PostError::Busy)) => some,
                    Err((_, PostError::Down)) => panic!("the connection is down: {events:?}"),
                };
            }
            self.poll(&mut events);
            assert!(start.elapsed() < PATIENCE, "{} completed", statuses(&events).len());
        }
        statuses(&events)
    }

    fn one(&mut self, verb: Verb, local: &[Sge]) -> WorkStatus {
        let done = self.run(&[work(7, verb, local)]);
        assert_eq!((done.len(), done[0].0), (1, 7));
        done[0].1
    }

    fn read(&mut self, at: RemoteAddr, to: &mut [u8]) -> WorkStatus {
        let bytes = to.len() as u64;
        let buf = self.register(vec![0xee; to.len()]);
        let status = self.one(Verb::Read(at), &[sge(buf, 0, bytes)]);
        to.copy_from_slice(&self.take(buf));
        status
    }

    fn write(&mut self, at: RemoteAddr, from: &[u8]) -> WorkStatus {
        let buf = self.register(from.to_vec());
        let status = self.one(Verb::Write(at), &[sge(buf, 0, from.len() as u64)]);
        self.take(buf);
        status
    }

    fn await_application(&mut self, count: usize) -> Vec<FabricEvent> {
        let look = |events: &mut Vec<FabricEvent>| {
            events.extend(self.application());
            self.poll(&mut Vec::new());
        };
        events_until(look, |events| events.len() >= count)
    }
}
