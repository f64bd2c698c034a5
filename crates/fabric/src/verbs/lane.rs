//! A queue pair with what both ends of a connection do on it: messages in slots of registered
//! memory, counted by credits so that there is always a receive for each; work requests in their
//! order until they have completed; and a way back after a failure.
//!
//! Credits: an end has at most [`SLOTS`] messages with the other one that this has not used up,
//! WRITE_IMMs among them. Each message says how many its sender has used up; if there is none to
//! say it with, a message of no bytes is sent, for which some slots are kept free.
//!
//! Signalling: of the work requests under one doorbell the last is always completed, so none is
//! ever left without a completion; before it those that a caller waits for, and each
//! [`SIGNAL_EACH`]th.
//!
//! Failure: when one work request fails, the device gives back all behind it as not done, and both
//! queues are to come back whole ([`Lane::is_drained`]) before the queue pair is renewed.
//!
//! `T` says what a work request was for.

use super::VerbsError;
use super::device::{Device, Domain};
use super::memory::{Region, Rights};
use super::queue::{
    Address, Completion, CompletionStatus, Completions, Depths, Flags, Operation, QueuePair,
    QueuePairKind,
};
use super::wire::{HEAD_BYTES, Head, WireError};
use crate::close::CloseReason;
use rackpool_core::constants::{FABRIC_SGES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::collections::VecDeque;

/// Messages of one direction that the other end has not used up.
pub(super) const SLOTS: u32 = 32;
/// Of these, slots that only messages of no bytes may take.
const KEPT: u32 = 4;
/// After so many the other end is told, if no message does it along the way.
const TOLD_EACH: u32 = SLOTS / 4;
/// Work requests under way on a queue pair of an initiator …
pub(super) const DEPTH: u32 = 256;
/// … and of a target, which sends messages and no more.
pub(super) const TARGET_DEPTH: u32 = 2 * SLOTS;
/// One in so many work requests is completed whatever is asked for.
const SIGNAL_EACH: u32 = 16;
/// Bytes that travel inside a work request, if the device can.
pub(super) const INLINE_BYTES: u32 = 128;
const SLOT_BYTES: u64 = (HEAD_BYTES + MESSAGE_BYTES_MAX as usize) as u64;
/// In the number of a work request: it is a receive.
const RECEIVE: u64 = 1 << 31;
const NUMBER: u32 = (1 << 31) - 1;

/// How many connections with queues of `depth` one completion queue bears, at most `wanted`, and
/// the length that it then needs.
pub(super) fn fit(device: &Device, depth: u32, wanted: u32) -> (u32, u32) {
    let each = depth + SLOTS;
    let connections = wanted.min(device.limits.completions_max / each);
    (connections, connections * each)
}

/// The connection that a completion is for.
pub(super) fn peer_of(completion: &Completion) -> u32 {
    (completion.id >> 32) as u32
}

/// A work request that is under way.
struct Posted<T> {
    number: u32,
    /// A message's slot and its bytes there, and which message it is, counted from 1.
    slot: Option<(u16, u64)>,
    message: Option<u32>,
    tag: T,
}

pub(super) enum LaneEvent<T> {
    /// A message has come; it stays in its slot until [`Lane::used`].
    Received(Arrived),
    /// A work request has ended. Behind a failed one none was executed.
    Ended(T, CompletionStatus),
}

/// A message, or the four bytes of a WRITE_IMM, that is in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    slot: u16,
    bytes: u32,
    pub(super) imm: Option<u32>,
}

impl Arrived {
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// How a lane is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneOptions {
    /// Comes back by [`peer_of`].
    pub(super) peer: u32,
    /// Bounds the work requests under way.
    pub(super) depth: u32,
    /// Whether messages that a failed queue pair gives back are kept, to be sent again.
    pub(super) keeps: bool,
}

/// The queue pair of one end of a connection.
pub(super) struct Lane<T> {
    /// Before what it uses, so that it ends first.
    pair: QueuePair,
    memory: Region,
    window: Window,
    peer: u32,
    depth: usize,
    posted: VecDeque<Posted<T>>,
    number_next: u32,
    since_signalled: u32,
    /// Messages that a failed queue pair gave back are kept, to be sent again.
    keeps: bool,
    given_back: VecDeque<(Option<(u16, u64)>, u32)>,
    slots_free: Vec<u16>,
    receives_posted: u32,
    receives_free: Vec<u16>,
    /// Messages, counted from the beginning of the connection: sent, used up there; received,
    /// used up here, and how many of these the other end knows of.
    sent: u32,
    used_there: u32,
    received: u32,
    used: u32,
    told: u32,
    has_failed: bool,
    /// A work request has failed, so those behind it were not executed.
    work_has_failed: bool,
}

impl<T> Lane<T> {
    /// The queue pair with its receives posted; not connected.
    pub(super) fn new(
        device: &Device,
        domain: &Domain,
        completions: &Completions,
        options: LaneOptions,
    ) -> Result<Self, VerbsError> {
        let LaneOptions { peer, depth, keeps } = options;
        let limit = device.limits.work_max;
        let depths = Depths {
            send: depth.min(limit),
            receive: SLOTS,
            pieces: FABRIC_SGES_MAX as u32,
            inline_bytes: INLINE_BYTES,
        };
        let pair = QueuePair::new(device, domain, completions, QueuePairKind::Reliable, depths)?;
        let bytes = 2 * u64::from(SLOTS) * SLOT_BYTES;
        let window = Window::private(bytes).map_err(|error| VerbsError::Os {
            what: "memory for messages",
            code: error.raw_os_error().unwrap_or(0),
        })?;
        let rights = Rights::Local { writable: true };
        let memory = Region::of_window(domain, &window, 0, rights)?;
        let mut lane = Self {
            pair,
            memory,
            window,
            peer,
            depth: depths.send as usize,
            posted: VecDeque::with_capacity(depth as usize),
            number_next: 0,
            since_signalled: 0,
            keeps,
            given_back: VecDeque::with_capacity(SLOTS as usize),
            slots_free: (0..SLOTS as u16).collect(),
            receives_posted: 0,
            receives_free: (0..SLOTS as u16).collect(),
            sent: 0,
            used_there: 0,
            received: 0,
            used: 0,
            told: 0,
            has_failed: false,
            work_has_failed: false,
        };
        lane.post_receives()?;
        Ok(lane)
    }

    pub(super) fn address(&self) -> Address {
        self.pair.address()
    }

    pub(super) fn connect(&mut self, to: &Address) -> Result<(), VerbsError> {
        self.pair.connect(to)
    }

    pub(super) fn inline_bytes_max(&self) -> u32 {
        self.pair.inline_bytes_max()
    }

    pub(super) fn received(&self) -> u32 {
        self.received
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether everything has come back from a queue pair that has failed.
    pub(super) fn is_drained(&self) -> bool {
        self.posted.is_empty() && self.receives_posted == 0
    }

    /// Work requests that may still be added.
    pub(super) fn room(&self) -> usize {
        self.depth - self.posted.len()
    }

    /// Whether a message or WRITE_IMM may be added.
    pub(super) fn has_credit(&self) -> bool {
        !self.has_failed
            && self.sent.wrapping_sub(self.used_there) < SLOTS - KEPT
            && !self.slots_free.is_empty()
            && self.room() > 1
    }

    /// Notes a work request of the batch; its number for the device.
    fn note(&mut self, slot: Option<(u16, u64)>, message: Option<u32>, tag: T) -> u64 {
        let number = self.number_next;
        self.number_next = number.wrapping_add(1) & NUMBER;
        self.posted.push_back(Posted { number, slot, message, tag });
        u64::from(self.peer) << 32 | u64::from(number)
    }

    /// Adds a one-sided operation to the batch, with pieces of other regions of the domain.
    pub(super) fn one_sided<'a>(
        &mut self,
        operation: &Operation<'_>,
        pieces: impl IntoIterator<Item = (&'a Region, u64, u64)>,
        mut flags: Flags,
        tag: T,
    ) {
        let is_message = matches!(operation, Operation::WriteImm { .. });
        self.sent = self.sent.wrapping_add(u32::from(is_message));
        self.since_signalled += 1;
        flags.signalled |= self.since_signalled >= SIGNAL_EACH || is_message;
        if flags.signalled {
            self.since_signalled = 0;
        }
        let id = self.note(None, is_message.then_some(self.sent), tag);
        self.pair.push(id, operation, pieces, flags);
    }

    /// Adds a message to the batch. `payload` fills its bytes behind the head.
    pub(super) fn message(
        &mut self,
        head: Head,
        bytes: u64,
        payload: impl FnOnce(&Window, u64),
        fence: bool,
        tag: T,
    ) {
        let slot = self.slots_free.pop().expect("has_credit was asked");
        let offset = send_offset(slot);
        self.window.copy_in(offset, &head.to_bytes());
        payload(&self.window, offset + HEAD_BYTES as u64);
        self.sent = self.sent.wrapping_add(1);
        self.send(Some((slot, HEAD_BYTES as u64 + bytes)), self.sent, fence, tag);
    }

    fn send(&mut self, slot: Option<(u16, u64)>, message: u32, fence: bool, tag: T) {
        let (offset, bytes) = slot.map_or((0, 0), |(slot, bytes)| (send_offset(slot), bytes));
        self.told = self.used;
        self.since_signalled = 0;
        let inline = bytes <= u64::from(self.pair.inline_bytes_max());
        let flags = Flags { signalled: true, inline, fence };
        let operation = Operation::Send { imm: self.used };
        let id = self.note(slot, Some(message), tag);
        self.pair.push(id, &operation, [(&self.memory, offset, bytes)], flags);
    }

    /// Tells the other end of what was used up, if it is time and no message did.
    pub(super) fn tell(&mut self, tag: impl FnOnce() -> T) {
        if self.used.wrapping_sub(self.told) >= TOLD_EACH {
            self.send_nothing(tag);
        }
    }

    /// Adds a message of no bytes, if one fits; whether.
    fn send_nothing(&mut self, tag: impl FnOnce() -> T) -> bool {
        let fits = self.sent.wrapping_sub(self.used_there) < SLOTS && self.room() > 0;
        if fits && !self.has_failed {
            self.sent = self.sent.wrapping_add(1);
            self.send(None, self.sent, false, tag());
        }
        fits && !self.has_failed
    }

    /// Whether work requests are under way.
    pub(super) fn has_work(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Posts a message of no bytes: its doorbell has the device look at its queue once more;
    /// whether one fitted.
    pub(super) fn remind(&mut self, tag: T) -> Result<bool, VerbsError> {
        let fits = self.send_nothing(|| tag);
        self.ring()?;
        Ok(fits)
    }

    /// Posts free slots, which the batch may announce, and then the batch under one doorbell.
    pub(super) fn ring(&mut self) -> Result<(), VerbsError> {
        self.post_receives()?;
        self.since_signalled = 0;
        self.pair.ring()
    }

    /// Posts what slots are free, unless the queue pair has failed.
    pub(super) fn post_receives(&mut self) -> Result<(), VerbsError> {
        if self.has_failed || self.receives_free.is_empty() {
            return Ok(());
        }
        let base = u64::from(self.peer) << 32 | RECEIVE;
        let memory = &self.memory;
        let receive = |slot: &u16| {
            let offset = u64::from(*slot) * SLOT_BYTES;
            (base | u64::from(*slot), (memory, offset, SLOT_BYTES))
        };
        self.pair.receive(self.receives_free.iter().map(receive))?;
        self.receives_posted += self.receives_free.len() as u32;
        self.receives_free.clear();
        Ok(())
    }

    /// Takes a completion in; what it means is appended in order.
    pub(super) fn completed(
        &mut self,
        completion: &Completion,
        outcomes: &mut Vec<LaneEvent<T>>,
    ) -> Result<(), CloseReason> {
        if completion.id & RECEIVE != 0 {
            return self.receive_completed(completion, outcomes);
        }
        let number = completion.id as u32 & NUMBER;
        // A receive may have come back before; that says nothing about work.
        let after_failure = self.work_has_failed;
        self.work_has_failed |= completion.status != CompletionStatus::Done;
        self.has_failed |= self.work_has_failed;
        let is_there = self.posted.iter().any(|posted| posted.number == number);
        while is_there && let Some(posted) = self.posted.pop_front() {
            let Posted { slot, message, tag, .. } = posted;
            let is_last = posted.number == number;
            // What is before it in the queue was done, or, behind a failure, was not either.
            let status = match (is_last, after_failure) {
                (true, _) => completion.status,
                (false, true) => CompletionStatus::Failed(0),
                (false, false) => CompletionStatus::Done,
            };
            match message {
                Some(message) if self.keeps && status != CompletionStatus::Done => {
                    self.given_back.push_back((slot, message));
                }
                _ => self.slots_free.extend(slot.map(|(slot, _)| slot)),
            }
            outcomes.push(LaneEvent::Ended(tag, status));
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn receive_completed(
        &mut self,
        completion: &Completion,
        outcomes: &mut Vec<LaneEvent<T>>,
    ) -> Result<(), CloseReason> {
        let slot = (completion.id & 0xffff) as u16;
        self.receives_posted -= 1;
        if completion.status != CompletionStatus::Done {
            self.has_failed = true;
            self.receives_free.push(slot);
            return Ok(());
        }
        self.received = self.received.wrapping_add(1);
        let imm = completion.is_write.then_some(completion.imm);
        if imm.is_none() {
            let used_there = completion.imm;
            if used_there.wrapping_sub(self.used_there) > self.sent.wrapping_sub(self.used_there) {
                return Err(WireError::Field { what: "messages used up" }.into());
            }
            self.used_there = used_there;
        }
        outcomes.push(LaneEvent::Received(Arrived { slot, bytes: completion.bytes, imm }));
        Ok(())
    }

    /// The head of a message; `None` for one of no bytes.
    pub(super) fn head(&self, arrived: &Arrived) -> Result<Option<Head>, CloseReason> {
        if arrived.bytes == 0 {
            return Ok(None);
        }
        let payload = u64::from(arrived.bytes).checked_sub(HEAD_BYTES as u64);
        let payload = payload.ok_or(WireError::Field { what: "length of a message" })?;
        let mut bytes = [0; HEAD_BYTES];
        self.window.copy_out(u64::from(arrived.slot) * SLOT_BYTES, &mut bytes);
        let head = Head::parse(&bytes)?;
        if payload > 0 && !head.has_payload() {
            return Err(WireError::Field { what: "length of a message" }.into());
        }
        Ok(Some(head))
    }

    /// The payload of a message that has a head.
    pub(super) fn payload(&self, arrived: &Arrived) -> Vec<u8> {
        let bytes = u64::from(arrived.bytes) - HEAD_BYTES as u64;
        let mut payload = Vec::with_capacity(bytes as usize);
        let offset = u64::from(arrived.slot) * SLOT_BYTES + HEAD_BYTES as u64;
        self.window.append_to(offset, bytes, &mut payload);
        payload
    }

    /// A message's slot may be used again. To be posted by [`Lane::post_receives`].
    pub(super) fn used(&mut self, arrived: Arrived) {
        self.receives_free.push(arrived.slot);
        self.used = self.used.wrapping_add(1);
    }

    /// A message that was given back undone never came there: it is to be sent anew.
    pub(super) fn unsend(&mut self) {
        self.sent = self.sent.wrapping_sub(1);
    }

    /// Ends all that is under way.
    pub(super) fn fail(&mut self) -> Result<(), VerbsError> {
        self.has_failed = true;
        self.pair.fail()
    }

    /// Renews the queue pair, of which everything has come back, with its receives posted.
    pub(super) fn renew(&mut self) -> Result<(), VerbsError> {
        assert!(self.is_drained(), "what is posted would be lost");
        self.pair.renew()?;
        (self.has_failed, self.work_has_failed) = (false, false);
        self.since_signalled = 0;
        self.post_receives()
    }

    /// Sends again what was given back and has not come there: the other end has received so many
    /// messages from the beginning.
    pub(super) fn resend(&mut self, received: u32, tag: impl Fn() -> T) -> Result<(), CloseReason> {
        if self.sent.wrapping_sub(received) > SLOTS {
            return Err(WireError::Field { what: "messages received" }.into());
        }
        for (slot, message) in std::mem::take(&mut self.given_back) {
            if message.wrapping_sub(received) as i32 > 0 {
                self.send(slot, message, false, tag());
            } else {
                self.slots_free.extend(slot.map(|(slot, _)| slot));
            }
        }
        Ok(self.ring()?)
    }
}

/// Where a slot for sending is: behind those for receiving.
fn send_offset(slot: u16) -> u64 {
    (u64::from(SLOTS) + u64::from(slot)) * SLOT_BYTES
}
