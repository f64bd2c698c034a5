//! Records that come a little out of order are put into order.

use crate::trace::Record;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Records that wait for earlier ones of other cores.
const WAITING_MAX: usize = 1 << 16;

/// A record without its time; its order has no meaning.
type Packed = (u64, u16, u32, u32, u16, bool);

/// Records that wait until nothing can come before them.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// By time, then in the order in which they came.
    waiting: BinaryHeap<Reverse<(u64, u64, Packed)>>,
    number: u64,
    last: u64,
}

impl ReorderBuffer {
    pub(crate) fn put(&mut self, record: Record) {
        self.number += 1;
        let Record { at, node, pid, tid, addr, size, write } = record;
        self.waiting.push(Reverse((at, self.number, (addr, node, pid, tid, size, write))));
    }

    /// The next record of a time up to `sure`, or any time if too many wait.
    #[inline]
    pub(crate) fn take(&mut self, sure: u64) -> Option<Record> {
        let Reverse((at, ..)) = self.waiting.peek()?;
        if *at > sure && self.waiting.len() < WAITING_MAX {
            return None;
        }
        let Reverse((at, _, (addr, node, pid, tid, size, write))) = self.waiting.pop()?;
        // Only if too many waited could one be late.
        self.last = self.last.max(at);
        Some(Record { at: self.last, node, pid, tid, addr, size, write })
    }
}
