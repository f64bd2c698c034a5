//! Where the lines of the guide's machine wait: requests by their ids, the queues of a channel, the
//! link to the other socket. What moves them is in `machine.rs`.

use super::costs::{REMOTE_CLWB, REMOTE_NT, REMOTE_READ};
use super::memory::GuideDevice;
use rackpool_sim::time::Ps;
use std::collections::VecDeque;

pub(super) const NEVER: Ps = Ps(u64::MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineKind {
    Read,
    /// A line's read before a store to it; it is written when it has come.
    ReadForWrite,
    /// A line's read ahead of a store, or one that only the cache asked for.
    ReadAhead,
    Nt,
    Clwb,
}

impl LineKind {
    pub(super) fn is_write(self) -> bool {
        matches!(self, LineKind::Nt | LineKind::Clwb)
    }

    /// What it takes more from afar, one way.
    pub(super) fn remote(self) -> Ps {
        let both = match self {
            LineKind::Nt => REMOTE_NT,
            LineKind::Clwb => REMOTE_CLWB,
            _ => REMOTE_READ,
        };
        Ps(both.0 / 2)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineRequest {
    pub(super) thread: usize,
    pub(super) what: LineKind,
    pub(super) addr: u64,
    pub(super) number: u64,
}

/// A request in a channel or before it, by its id.
#[derive(Debug, Default)]
pub(super) struct LineRequests {
    all: Vec<Option<LineRequest>>,
    free: Vec<u64>,
}

impl LineRequests {
    pub(super) fn add(&mut self, request: LineRequest) -> u64 {
        match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = Some(request);
                id
            }
            None => {
                self.all.push(Some(request));
                self.all.len() as u64 - 1
            }
        }
    }

    pub(super) fn take(&mut self, id: u64) -> LineRequest {
        self.free.push(id);
        self.all[id as usize].take().expect("a request is over once")
    }
}

#[derive(Debug)]
pub(super) struct GuideChannel {
    pub(super) device: GuideDevice,
    /// Those that it had no room for.
    pub(super) waiting: VecDeque<LineRequest>,
    pub(super) wake: Ps,
}

impl GuideChannel {
    pub(super) fn new(device: GuideDevice) -> GuideChannel {
        GuideChannel { device, waiting: VecDeque::new(), wake: NEVER }
    }
}

#[derive(Debug, Default)]
pub(super) struct SocketLink {
    pub(super) queue: VecDeque<LineRequest>,
    /// Whether those under way are writes, and how many there are.
    pub(super) is_writing: bool,
    pub(super) under_way: usize,
    pub(super) free: Ps,
    pub(super) is_asked: bool,
}
