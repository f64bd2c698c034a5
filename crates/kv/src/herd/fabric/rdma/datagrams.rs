//! A datagram queue pair with memory to send from and to receive into, and how many work requests a
//! send queue has under way. What cannot be sent now is not sent: whoever misses it asks again.

use rackpool_core::seam::Mem;
use rackpool_hw::fabric::verbs::device::Domain;
use rackpool_hw::fabric::verbs::memory::{Region, Rights};
use rackpool_hw::fabric::verbs::queue::{
    Address, Completion, Completions, Depths, Flags, GRH_BYTES, Kind, Operation, Peer, QueuePair,
    Status,
};
use rackpool_hw::fabric::verbs::{Device, VerbsError};
use rackpool_hw::window::Window;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Work requests under way on a send queue.
pub(super) const SENDS: u32 = 256;
/// Bytes that travel inside a work request, if the device can: HERD's limit (§3.1).
pub(super) const INLINE_BYTES: u32 = 256;

/// What of a send queue is in use.
#[derive(Default)]
pub(super) struct Sends {
    /// Work requests of each doorbell, of which the last one is completed.
    rung: VecDeque<u32>,
    in_use: u32,
    pending: u32,
}

impl Sends {
    pub(super) fn has_room(&self, depth: u32) -> bool {
        self.in_use < depth
    }

    pub(super) fn pushed(&mut self) {
        self.in_use += 1;
        self.pending += 1;
    }

    /// Whether a doorbell is due, which is noted.
    pub(super) fn take_pending(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        if pending > 0 {
            self.rung.push_back(pending);
        }
        pending > 0
    }

    /// The last work request of a doorbell has completed.
    pub(super) fn completed(&mut self) {
        self.in_use -= self.rung.pop_front().unwrap_or(0);
    }
}

/// The queue pair and all it needs; what uses something is declared, and so dropped, before it.
pub(super) struct Datagrams {
    pair: QueuePair,
    completions: Completions,
    region: Region,
    memory: Window,
    domain: Domain,
    device: Device,
    sends: Sends,
    depth: u32,
    /// The next slot to send from.
    next: u32,
    slot_bytes: u64,
    found: Vec<Completion>,
    bytes: Vec<u8>,
    has_failed: bool,
}

impl Datagrams {
    /// One whose messages have up to `message_bytes`, with so many receives posted. Errors: `Os`,
    /// `Pin`.
    pub(super) fn new(
        device: &Device,
        message_bytes: u64,
        receives: u32,
    ) -> Result<Datagrams, VerbsError> {
        let limit = device.limits.work_max;
        let (depth, receives) = (SENDS.min(limit), receives.min(limit));
        let domain = Domain::new(device)?;
        let slot_bytes = (GRH_BYTES + message_bytes).next_multiple_of(64);
        let bytes = slot_bytes * u64::from(depth + receives);
        let memory = Window::private(bytes).map_err(|error| VerbsError::Os {
            what: "memory for datagrams",
            code: error.raw_os_error().unwrap_or(0),
        })?;
        let region = Region::of_window(&domain, &memory, 0, Rights::Local { writable: true })?;
        let completions = Completions::new(device, depth + receives)?;
        let depths =
            Depths { send: depth, receive: receives, pieces: 1, inline_bytes: INLINE_BYTES };
        let mut pair = QueuePair::new(device, &domain, &completions, Kind::Datagram, depths)?;
        let place = |index: u32| u64::from(depth + index) * slot_bytes;
        pair.receive(
            (0..receives)
                .map(|index| (u64::from(depth + index), (&region, place(index), slot_bytes))),
        )?;
        let to_nobody = pair.address();
        pair.connect(&to_nobody)?;
        Ok(Datagrams {
            pair,
            completions,
            region,
            memory,
            domain,
            device: device.clone(),
            sends: Sends::default(),
            depth,
            next: 0,
            slot_bytes,
            found: Vec::with_capacity(64),
            bytes: Vec::new(),
            has_failed: false,
        })
    }

    pub(super) fn address(&self) -> Address {
        self.pair.address()
    }

    /// A way to another one. Errors: `Os`.
    pub(super) fn peer(&self, to: &Address) -> Result<Peer, VerbsError> {
        Peer::new(&self.device, &self.domain, to)
    }

    /// Longest message, bytes: a packet.
    pub(super) fn bytes_max(&self) -> usize {
        (self.device.limits.mtu_bytes as usize).min((self.slot_bytes - GRH_BYTES) as usize)
    }

    /// Puts a message of these pieces behind those that [`Datagrams::ring`] sends; `false` if it is
    /// too long or there is no room.
    pub(super) fn send(&mut self, to: &Peer, pieces: [&[u8]; 2]) -> bool {
        let bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if bytes > self.bytes_max() || self.has_failed {
            return false;
        }
        if !self.sends.has_room(self.depth) {
            self.reap(&mut |_, _| {});
            if !self.sends.has_room(self.depth) {
                return false;
            }
        }
        let at = u64::from(self.next) * self.slot_bytes;
        self.next = (self.next + 1) % self.depth;
        self.memory.copy_in(at, pieces[0]);
        self.memory.copy_in(at + pieces[0].len() as u64, pieces[1]);
        let inline = bytes as u32 <= self.pair.inline_bytes_max();
        let flags = Flags { inline, ..Flags::default() };
        let piece = (&self.region, at, bytes as u64);
        self.pair.push(0, &Operation::SendTo { to, imm: 0 }, [piece], flags);
        self.sends.pushed();
        true
    }

    /// Sends what was put behind one another, under one doorbell.
    pub(super) fn ring(&mut self) {
        if self.sends.take_pending() {
            self.has_failed |= self.pair.ring().is_err();
        }
    }

    /// Gives each message that has come to `take`, with the number of the queue pair that sent it;
    /// how many.
    pub(super) fn poll(&mut self, take: &mut dyn FnMut(&[u8], u32)) -> usize {
        self.reap(take)
    }

    fn reap(&mut self, take: &mut dyn FnMut(&[u8], u32)) -> usize {
        let mut found = std::mem::take(&mut self.found);
        let mut count = 0;
        if self.completions.poll(&mut found) > 0 {
            for completion in &found {
                let is_receive = completion.id >= u64::from(self.depth);
                if !is_receive {
                    self.sends.completed();
                }
                self.has_failed |= completion.status != Status::Done;
                if is_receive && completion.status == Status::Done {
                    count += usize::from(self.take(completion, take));
                }
            }
            let again = found
                .iter()
                .filter(|one| one.id >= u64::from(self.depth))
                .map(|one| (one.id, (&self.region, one.id * self.slot_bytes, self.slot_bytes)));
            self.has_failed |= !self.has_failed && self.pair.receive(again).is_err();
        }
        found.clear();
        self.found = found;
        count
    }

    fn take(&mut self, completion: &Completion, take: &mut dyn FnMut(&[u8], u32)) -> bool {
        let Some(bytes) = u64::from(completion.bytes).checked_sub(GRH_BYTES) else { return false };
        self.bytes.resize(bytes as usize, 0);
        self.memory.copy_out(completion.id * self.slot_bytes + GRH_BYTES, &mut self.bytes);
        take(&self.bytes, completion.source);
        true
    }

    /// Asks to be told of what comes next by [`Datagrams::fd`]; what has come is to be polled once
    /// more after this.
    pub(super) fn arm(&mut self) {
        self.completions.arm();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }
}
