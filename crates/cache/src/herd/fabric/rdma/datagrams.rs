//! A queue pair with memory to send from and to receive into ([`SendQueue`]), and what its
//! completions say ([`Ends`]); the datagrams of one ([`Datagrams`]). What cannot be sent now is not
//! sent: a client that misses it asks again. What has come is kept until a caller asks for it,
//! whichever one looked at the completions.
//!
//! A completion that says that something failed is the end of the queue pair: it sends and receives
//! nothing more, and says so ([`Ends::take_failure`]).

use rackpool_core::seam::Mem;
use rackpool_fabric::verbs::device::Domain;
use rackpool_fabric::verbs::memory::{Region, Rights};
use rackpool_fabric::verbs::queue::{
    Address, Completion, CompletionStatus, Completions, Depths, Flags, GRH_BYTES, Operation, Peer,
    QueuePair, QueuePairKind,
};
use rackpool_fabric::verbs::{Device, VerbsError};
use rackpool_mem::window::Window;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Work requests under way on a send queue.
const SENDS: u32 = 256;
/// Bytes that travel inside a work request, if the device grants it: HERD's limit (§3.1). What it
/// granted is what is used, and what is longer is sent out of registered memory. HERD itself stops
/// earlier, where its cards were faster without (decision 0045).
const INLINE_BYTES: u32 = 256;

/// The entries of a send queue that are in use.
#[derive(Default)]
struct Sends {
    /// Work requests of each doorbell, of which the last one is completed.
    rung: VecDeque<u32>,
    in_use: u32,
    pending: u32,
}

impl Sends {
    fn has_room(&self, depth: u32) -> bool {
        self.in_use < depth
    }

    fn pushed(&mut self) {
        self.in_use += 1;
        self.pending += 1;
    }

    /// Whether a doorbell is due, which is noted.
    fn take_pending(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        if pending > 0 {
            self.rung.push_back(pending);
        }
        pending > 0
    }

    /// The last work request of a doorbell has completed.
    fn completed(&mut self) {
        self.in_use -= self.rung.pop_front().unwrap_or(0);
    }
}

/// What completions of one queue pair say, of sends and of receives: the numbers of these begin
/// behind the depth of the send queue. No device is needed for this.
pub(super) struct Ends {
    sends: Sends,
    depth: u32,
    /// Receives that have ended, in their order, with a message in their memory that was not taken:
    /// as many as were posted at most, since none is posted again before that.
    arrived: VecDeque<Completion>,
    has_failed: bool,
    /// Whether this was not reported yet.
    is_news: bool,
}

impl Ends {
    pub(super) fn new(depth: u32) -> Ends {
        let (sends, arrived) = (Sends::default(), VecDeque::new());
        Ends { sends, depth, arrived, has_failed: false, is_news: false }
    }

    pub(super) fn note(&mut self, completion: Completion) {
        let is_receive = completion.id >= u64::from(self.depth);
        if !is_receive {
            self.sends.completed();
        }
        match completion.status {
            CompletionStatus::Done if is_receive => self.arrived.push_back(completion),
            CompletionStatus::Done => {}
            _ => self.fail(),
        }
    }

    /// Notes that the queue pair has failed.
    pub(super) fn fail(&mut self) {
        self.is_news |= !self.has_failed;
        self.has_failed = true;
    }

    /// The next receive with a message to be taken.
    fn arrival(&mut self) -> Option<Completion> {
        self.arrived.pop_front()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    pub(super) fn has_room(&self) -> bool {
        self.sends.has_room(self.depth)
    }

    pub(super) fn pushed(&mut self) {
        self.sends.pushed();
    }

    /// Whether a doorbell is due, which is noted.
    pub(super) fn take_pending(&mut self) -> bool {
        self.sends.take_pending()
    }
}

/// The queue pair and all it needs; what uses something is declared, and so dropped, before it.
pub(super) struct SendQueue {
    pub pair: QueuePair,
    completions: Completions,
    region: Region,
    pub memory: Window,
    domain: Domain,
    pub ends: Ends,
    found: Vec<Completion>,
}

impl SendQueue {
    /// One with so much memory. Errors: `Os`, `Pin`.
    pub fn new(
        device: &Device,
        kind: QueuePairKind,
        receives: u32,
        bytes: u64,
    ) -> Result<SendQueue, VerbsError> {
        let send = SENDS.min(device.limits.work_max);
        let domain = Domain::new(device)?;
        let memory = Window::private(bytes).map_err(|error| VerbsError::Os {
            what: "memory for messages",
            code: error.raw_os_error().unwrap_or(0),
        })?;
        let rights = Rights::Local { writable: kind == QueuePairKind::Datagram };
        let region = Region::of_window(&domain, &memory, 0, rights)?;
        let completions = Completions::new(device, send + receives)?;
        let depths = Depths { send, receive: receives, pieces: 1, inline_bytes: INLINE_BYTES };
        let pair = QueuePair::new(device, &domain, &completions, kind, depths)?;
        let (ends, found) = (Ends::new(send), Vec::with_capacity(64));
        Ok(SendQueue { pair, completions, region, memory, domain, ends, found })
    }

    pub fn reap(&mut self) {
        self.completions.poll(&mut self.found);
        for completion in self.found.drain(..) {
            self.ends.note(completion);
        }
    }

    /// Whether there is room for one more, perhaps since some have completed.
    pub fn has_room(&mut self) -> bool {
        if !self.ends.has_room() {
            self.reap();
        }
        self.ends.has_room()
    }

    /// Adds what is to be done with so many bytes of its memory.
    pub fn push(&mut self, operation: &Operation<'_>, at: u64, bytes: u64) {
        let inline = bytes <= u64::from(self.pair.inline_bytes_max());
        let flags = Flags { inline, ..Flags::default() };
        self.pair.push(0, operation, [(&self.region, at, bytes)], flags);
        self.ends.pushed();
    }

    /// Begins what was added, under one doorbell.
    pub fn ring(&mut self) {
        if self.ends.take_pending() && self.pair.ring().is_err() {
            self.ends.fail();
        }
    }
}

pub(super) struct Datagrams {
    queue: SendQueue,
    device: Device,
    depth: u32,
    /// The next slot to send from.
    next: u32,
    slot_bytes: u64,
    /// Receives that are posted, those of messages that wait to be taken among them.
    receives: u32,
    /// Receives to be posted again.
    again: Vec<u64>,
    bytes: Vec<u8>,
}

impl Datagrams {
    /// One for messages of up to `message_bytes`, with so many receives posted. Errors: `Os`,
    /// `Pin`.
    pub(super) fn new(
        device: &Device,
        message_bytes: u64,
        receives: u32,
    ) -> Result<Datagrams, VerbsError> {
        let limit = device.limits.work_max;
        let (depth, receives) = (SENDS.min(limit), receives.min(limit));
        let slot_bytes = (GRH_BYTES + message_bytes).next_multiple_of(64);
        let bytes = slot_bytes * u64::from(depth + receives);
        let mut queue = SendQueue::new(device, QueuePairKind::Datagram, receives, bytes)?;
        let numbers = (depth..depth + receives).map(u64::from);
        let SendQueue { pair, region, .. } = &mut queue;
        let region = &*region;
        pair.receive(numbers.map(|id| (id, (region, id * slot_bytes, slot_bytes))))?;
        let to_nobody = pair.address();
        pair.connect(&to_nobody)?;
        Ok(Datagrams {
            queue,
            device: device.clone(),
            depth,
            next: 0,
            slot_bytes,
            receives,
            again: Vec::new(),
            bytes: Vec::new(),
        })
    }

    pub(super) fn address(&self) -> Address {
        self.queue.pair.address()
    }

    /// A way to another one. Errors: `Os`.
    pub(super) fn peer(&self, to: &Address) -> Result<Peer, VerbsError> {
        Peer::new(&self.device, &self.queue.domain, to)
    }

    /// Longest message, bytes: a packet.
    pub(super) fn bytes_max(&self) -> usize {
        (self.device.limits.mtu_bytes as usize).min((self.slot_bytes - GRH_BYTES) as usize)
    }

    /// Puts a message of these pieces behind those that [`Datagrams::ring`] sends; `false` if it is
    /// too long or there is no room.
    pub(super) fn send(&mut self, to: &Peer, pieces: [&[u8]; 2]) -> bool {
        let bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let is_too_long = bytes > self.bytes_max();
        let queue = &mut self.queue;
        if is_too_long || !queue.has_room() || queue.ends.has_failed() {
            return false;
        }
        let at = u64::from(self.next) * self.slot_bytes;
        self.next = (self.next + 1) % self.depth;
        queue.memory.copy_in(at, pieces[0]);
        queue.memory.copy_in(at + pieces[0].len() as u64, pieces[1]);
        queue.push(&Operation::SendTo { to, imm: 0 }, at, bytes as u64);
        true
    }

    /// Sends what was put behind one another, under one doorbell.
    pub(super) fn ring(&mut self) {
        self.queue.ring();
    }

    /// Gives each message that has come to `take`, with the number of the queue pair that sent it;
    /// how many.
    pub(super) fn poll(&mut self, take: &mut dyn FnMut(&[u8], u32)) -> usize {
        self.queue.reap();
        let mut count = 0;
        while let Some(completion) = self.queue.ends.arrival() {
            self.receives -= 1;
            count += usize::from(self.take(&completion, take));
            self.again.push(completion.id);
        }
        let SendQueue { pair, region, ends, .. } = &mut self.queue;
        if !self.again.is_empty() && !ends.has_failed() {
            let (region, slot_bytes) = (&*region, self.slot_bytes);
            let again = self.again.iter().map(|id| (*id, (region, id * slot_bytes, slot_bytes)));
            match pair.receive(again) {
                Ok(()) => self.receives += self.again.len() as u32,
                Err(_) => ends.fail(),
            }
        }
        self.again.clear();
        count
    }

    pub(super) fn receives(&self) -> u32 {
        self.receives
    }

    fn take(&mut self, completion: &Completion, take: &mut dyn FnMut(&[u8], u32)) -> bool {
        let Some(bytes) = u64::from(completion.bytes).checked_sub(GRH_BYTES) else { return false };
        self.bytes.resize(bytes as usize, 0);
        let at = completion.id * self.slot_bytes + GRH_BYTES;
        self.queue.memory.copy_out(at, &mut self.bytes);
        take(&self.bytes, completion.source);
        true
    }

    /// Arms [`Datagrams::fd`] for the next completion; what has come is to be polled once more
    /// after this.
    pub(super) fn arm(&mut self) {
        self.queue.completions.arm();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.queue.completions.fd()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.queue.ends.has_failed()
    }

    /// Whether the queue pair has failed; `true` once.
    pub(super) fn take_failure(&mut self) -> bool {
        self.queue.ends.take_failure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: u32 = 256;

    fn completion(id: u64, status: CompletionStatus) -> Completion {
        let (is_write, has_header) = (false, true);
        let is_receive = id >= u64::from(DEPTH);
        Completion { id, is_receive, is_write, status, bytes: 64, imm: 0, source: 9, has_header }
    }

    /// A full send queue looks at the completions, among which are requests.
    #[test]
    fn what_comes_while_the_send_queue_is_full_is_taken_later_in_its_order() {
        let mut ends = Ends::new(DEPTH);
        for _ in 0..DEPTH / 64 {
            (0..64).for_each(|_| ends.pushed());
            assert!(ends.take_pending() && !ends.take_pending());
        }
        assert!(!ends.has_room());
        for receive in 0..20 {
            ends.note(completion(u64::from(DEPTH) + receive, CompletionStatus::Done));
        }
        assert!(!ends.has_room());
        ends.note(completion(0, CompletionStatus::Done));
        assert!(ends.has_room());
        (0..64).for_each(|_| ends.pushed());
        assert!(!ends.has_room(), "a doorbell's work requests are free together");
        let arrived: Vec<_> = std::iter::from_fn(|| ends.arrival()).map(|one| one.id).collect();
        assert_eq!(arrived, (256..276).collect::<Vec<_>>());
        assert!(!ends.has_failed());
    }

    #[test]
    fn a_queue_pair_that_fails_says_so_once_and_stays_failed() {
        for id in [0, u64::from(DEPTH)] {
            let mut ends = Ends::new(DEPTH);
            ends.pushed();
            ends.take_pending();
            assert!(!ends.take_failure());
            ends.note(completion(id, CompletionStatus::Failed(5)));
            ends.note(completion(id, CompletionStatus::Failed(5)));
            assert!(ends.has_failed() && ends.take_failure());
            assert!(ends.has_failed() && !ends.take_failure());
            assert_eq!(ends.arrival(), None, "what failed brought nothing");
        }
    }
}
