//! The queues of segments: how they are linked, and how a flush moves all of them to one.

use super::{FLUSHED, FLUSHED_SEQ_AT, NONE, QUEUES, Segment, SegmentQueue, Segments, Stream};

impl Segments {
    /// All segments are flushed from now on, for a later process, too.
    pub fn flush(&mut self) {
        for stream in Stream::ALL {
            self.seal_stream(stream);
        }
        self.hand = NONE;
        for queue in 0..QUEUES {
            let empty = SegmentQueue { first: NONE, last: NONE, count: 0 };
            let moved = std::mem::replace(&mut self.queues[queue], empty);
            if moved.first == NONE {
                continue;
            }
            let flushed = &mut self.queues[FLUSHED];
            self.of[moved.first as usize].prev = flushed.last;
            match flushed.last {
                NONE => flushed.first = moved.first,
                last => self.of[last as usize].next = moved.first,
            }
            flushed.last = moved.last;
            flushed.count += moved.count;
        }
        self.flushed_before = self.next_seq;
        self.note(FLUSHED_SEQ_AT, self.flushed_before);
        (self.live_bytes, self.payload_bytes, self.far_bytes) = (0, 0, 0);
    }

    #[inline]
    pub fn is_flushed(&self, unit: u32) -> bool {
        self.of[unit as usize].seq < self.flushed_before
    }

    pub fn first_flushed(&self) -> Option<u32> {
        self.oldest(FLUSHED as u8)
    }

    pub(super) fn link(&mut self, unit: u32, before: u32) {
        let queue = self.queue_of(unit);
        let queue = &mut self.queues[queue];
        queue.count += 1;
        let prev = if before == NONE {
            std::mem::replace(&mut queue.last, unit)
        } else {
            std::mem::replace(&mut self.of[before as usize].prev, unit)
        };
        if prev == NONE {
            queue.first = unit;
        } else {
            self.of[prev as usize].next = unit;
        }
        self.of[unit as usize].prev = prev;
        self.of[unit as usize].next = before;
    }

    pub(super) fn unlink(&mut self, unit: u32) {
        let Segment { prev, next, .. } = self.of[unit as usize];
        if self.hand == unit {
            self.hand = next;
        }
        let queue = self.queue_of(unit);
        let queue = &mut self.queues[queue];
        queue.count -= 1;
        if prev == NONE {
            queue.first = next;
        } else {
            self.of[prev as usize].next = next;
        }
        if next == NONE {
            queue.last = prev;
        } else {
            self.of[next as usize].prev = prev;
        }
    }
}
