//! A link with its queue: one packet after the other, each only when there is room for it at the
//! far end. A packet that finds the link free costs no event of its own.

use super::Packet;
use super::config::Rate;
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What a link wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This packet's last bit leaves the link's near end then.
    Departs(Packet, Ps),
    /// [`Link::serve`] is to be called then.
    Serve(Ps),
    /// Nothing: it is empty, waits for room, or has asked before.
    Nothing,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Link {
    rate: Rate,
    /// Until when the last departure takes.
    busy: Ps,
    /// Bytes that the far end has room for.
    credit: u64,
    /// Packets that wait, each with the time from which it may leave.
    queue: VecDeque<(Ps, Packet)>,
    queue_bytes: u64,
    /// Whether a call of `serve` is to come.
    is_asked: bool,
    /// Whether the first one waits for room at the far end.
    is_blocked: bool,
    /// How often one began to wait for room.
    pub(super) blocked_count: u64,
    /// Most bytes that ever waited.
    pub(super) queue_bytes_max: u64,
}

impl Link {
    pub(super) fn new(rate: Rate, credit: u64) -> Link {
        Link {
            rate,
            busy: Ps::ZERO,
            credit,
            queue: VecDeque::new(),
            queue_bytes: 0,
            is_asked: false,
            is_blocked: false,
            blocked_count: 0,
            queue_bytes_max: 0,
        }
    }

    pub(super) fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// A packet that may leave from `ready` on; packets are offered in the order of that time.
    #[inline]
    pub(super) fn offer(&mut self, ready: Ps, packet: Packet) -> Next {
        let bytes = u64::from(packet.bytes);
        if self.queue.is_empty() && self.busy <= ready && self.credit >= bytes {
            return self.depart(ready, packet);
        }
        self.queue.push_back((ready, packet));
        self.queue_bytes += bytes;
        self.queue_bytes_max = self.queue_bytes_max.max(self.queue_bytes);
        self.ask()
    }

    #[inline]
    fn depart(&mut self, at: Ps, packet: Packet) -> Next {
        self.credit -= u64::from(packet.bytes);
        self.busy = at + self.rate.time(packet.bytes);
        Next::Departs(packet, self.busy)
    }

    fn ask(&mut self) -> Next {
        match self.queue.front() {
            Some((ready, _)) if !self.is_asked && !self.is_blocked => {
                self.is_asked = true;
                Next::Serve(self.busy.max(*ready))
            }
            _ => Next::Nothing,
        }
    }

    /// Lets the first one leave, at the time that was asked for; then what is wanted after it.
    pub(super) fn serve(&mut self, now: Ps) -> (Next, Next) {
        self.is_asked = false;
        let Some((ready, packet)) = self.queue.front().copied() else {
            return (Next::Nothing, Next::Nothing);
        };
        if self.busy.max(ready) > now {
            return (Next::Nothing, self.ask());
        }
        if self.credit < u64::from(packet.bytes) {
            self.is_blocked = true;
            self.blocked_count += 1;
            return (Next::Nothing, Next::Nothing);
        }
        self.queue.pop_front();
        self.queue_bytes -= u64::from(packet.bytes);
        (self.depart(now, packet), self.ask())
    }

    /// The far end has room again for so many bytes.
    #[inline]
    pub(super) fn give_room(&mut self, now: Ps, bytes: u32) -> Next {
        self.credit += u64::from(bytes);
        match self.queue.front() {
            Some((_, first)) if self.is_blocked && self.credit >= u64::from(first.bytes) => {
                self.is_blocked = false;
                self.is_asked = true;
                Next::Serve(self.busy.max(now))
            }
            _ => Next::Nothing,
        }
    }
}
