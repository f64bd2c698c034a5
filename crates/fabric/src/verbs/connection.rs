//! One connection of an endpoint: its queue of work requests and how far each is, the keys of the
//! target's frames that it knows, its control line, and its way back after a failure.
//! Order: work is posted in the order of posting and completed to its user in that order. READ,
//! WRITE and WRITE_IMM are the device's; SEND, and atomics unless the device's are good enough,
//! are messages to the target, which answers. One-sided work waits for atomics that are messages;
//! whatever follows a READ is fenced.
//!
//! Keys: the device's key of a frame is asked for at its first use and kept until the target
//! withdraws it, or until the device refuses it: then the work is `BadKey`, the queue pair is
//! renewed at both ends, and all behind it, of which nothing was executed, is posted again. After
//! any other failure what was done is not known, so the connection ends.
//!
//! Called by `endpoint.rs`, which owns buffers, slots and the completion queue.

use super::control::ControlLine;
use super::device::DeviceLimits;
use super::lane::{Arrived, Lane, LaneEvent};
use super::local::{Locals, STAGED_BYTES_MAX};
use super::queue::{Completion, CompletionStatus, Flags};
use super::wire::{Control, Head, WireError};
use super::work::{Posting, State, VerbsWork, WorkTag, operation_of};
use crate::FabricStats;
use crate::close::CloseReason;
use crate::tcp::frame::HelloStatus;
use crate::waiting::{Lease, Liveness};
use rackpool_core::addr::Generation;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::fabric::work_queue::{Work, WorkQueue};
use rackpool_core::seam::{
    BufId, FabricEvent, Nanos, PeerId, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Most bytes of one work request on the device; longer ones are several.
const CHUNK_BYTES: u64 = 1 << 20;
/// The same for a WRITE: four packets. Its packets are acknowledged by message, and each that is
/// lost counts as a try until the acknowledgement comes; of a long message several always are where
/// one in ten is, and the device would give up.
const WRITE_BYTES: u64 = 16 << 10;
/// The control line is looked at this often while nothing is expected of it.
const LOOK_NS: Nanos = 1_000_000;
/// A device that has completed nothing for so long, though it has work, is reminded of it: longer
/// than a packet waits for its acknowledgement. Soft-RoCE of Linux 6.1 forgets a fenced work
/// request if the READ before it ends between its look at the queue and its note that it waits, and
/// only goes on when more is posted.
pub(super) const REMIND_NS: Nanos = 100_000_000;

/// What a connection needs of its endpoint.
pub(super) struct Context {
    pub(super) locals: Locals,
    pub(super) stats: FabricStats,
    pub(super) limits: DeviceLimits,
    pub(super) device_atomics: bool,
    pub(super) lease: Lease,
    /// What has happened and was not taken.
    pub(super) events: Vec<FabricEvent>,
    /// Room for what completions mean.
    pub(super) outcomes: Vec<LaneEvent<WorkTag>>,
}

/// The device's number for work behind a failed one, and for a refused key.
const FLUSHED: i32 = 5;
const ACCESS: i32 = 10;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerbsStage {
    /// The target's welcome was not received.
    Greeting,
    Up,
    /// The queue pair failed; its work is to come back, since then.
    Draining {
        since: Nanos,
    },
    /// The target was asked to renew its queue pair.
    Recovering,
}

/// What the oldest answer that is missing is for.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Work(u64),
    Open(RemoteAddr),
}

/// The geometry of the target's pages.
#[derive(Clone, Copy, Debug, Default)]
struct TargetGeometry {
    page_shift: u8,
    frame_count: u32,
}

pub(super) struct VerbsConnection {
    /// Set when the connection has its place in the table.
    pub(super) peer: PeerId,
    pub(super) lane: Lane<WorkTag>,
    pub(super) control: ControlLine,
    pub(super) addr: SocketAddr,
    pub(super) broken: Option<CloseReason>,
    /// What the endpoint's epoll waits for: also room to send.
    pub(super) polls_out: bool,
    stage: VerbsStage,
    geometry: TargetGeometry,
    queue: WorkQueue<Posting>,
    /// How many of the queue are posted to their end or over.
    next: usize,
    expected: VecDeque<Expected>,
    keys: BTreeMap<u32, (Generation, u32)>,
    asked: Option<(u32, Generation)>,
    /// READs and atomics that the device has under way.
    reads: u32,
    /// Atomics that are messages and are not answered.
    remote_atomics: u32,
    liveness: Liveness,
    looked: Nanos,
    /// Since when the device has work and completes none of it, or when it was reminded.
    at_work: Option<Nanos>,
    reminders: u64,
    recoveries: u64,
}

impl VerbsConnection {
    pub(super) fn new(
        lane: Lane<WorkTag>,
        control: ControlLine,
        addr: SocketAddr,
        now: Nanos,
    ) -> Self {
        Self {
            peer: PeerId(0),
            lane,
            control,
            addr,
            broken: None,
            polls_out: false,
            stage: VerbsStage::Greeting,
            geometry: TargetGeometry::default(),
            queue: WorkQueue::new(FABRIC_OUTSTANDING_MAX as usize),
            next: 0,
            expected: VecDeque::new(),
            keys: BTreeMap::new(),
            asked: None,
            reads: 0,
            remote_atomics: 0,
            liveness: Liveness::new(now),
            looked: now,
            at_work: None,
            reminders: 0,
            recoveries: 0,
        }
    }

    /// How often its queue pair was renewed.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// How often its device had to be reminded of its work.
    pub(super) fn reminders(&self) -> u64 {
        self.reminders
    }

    /// The next tick looks at the control line.
    pub(super) fn look_soon(&mut self) {
        self.looked = 0;
    }

    /// Appends a work request without posting it; `false` if the queue is full.
    pub(super) fn enqueue(&mut self, work: &WorkRequest<'_>) -> bool {
        if self.queue.len() >= FABRIC_OUTSTANDING_MAX as usize {
            return false;
        }
        self.queue.push(Work::new(work, Posting::new()));
        true
    }

    /// Posts what can be posted, all under one doorbell.
    pub(super) fn advance(&mut self, cx: &mut Context) -> Result<(), CloseReason> {
        if self.stage != VerbsStage::Up || self.lane.has_failed() {
            return Ok(());
        }
        while let Some(work) = self.queue.at(self.next) {
            let is_through = match work.state.state {
                State::Queued => self.post_next(cx)?,
                _ => true,
            };
            if !is_through {
                break;
            }
            self.next += 1;
        }
        self.lane.tell(|| WorkTag::Credit);
        Ok(self.lane.ring()?)
    }

    /// Posts the next work request; `false` if it has to wait.
    fn post_next(&mut self, cx: &mut Context) -> Result<bool, CloseReason> {
        let number = self.queue.number(self.next);
        let work = self.queue.at(self.next).expect("the caller looked");
        if let Some(status) = self.refusal(work, cx) {
            self.work(number).expect("it was just found").state.state = State::Ended(status);
            return Ok(true);
        }
        let work = self.queue.at(self.next).expect("the caller looked");
        let Some(at) = work.at() else { return Ok(self.post_message(number, Head::Send, cx)) };
        let head = match work.verb {
            Verb::Cas { at, expected, new } => Some(Head::Cas { at, expected, new }),
            Verb::FetchAdd { at, n } => Some(Head::FetchAdd { at, n }),
            _ => None,
        };
        if let Some(head) = head.filter(|_| !cx.device_atomics) {
            let is_posted = self.post_message(number, head, cx);
            self.remote_atomics += u32::from(is_posted);
            return Ok(is_posted);
        }
        if self.remote_atomics > 0 {
            return Ok(false);
        }
        let frame = (at.offset >> self.geometry.page_shift) as u32;
        match self.keys.get(&frame) {
            Some((key, remote)) if *key == at.key => {
                let remote = *remote;
                self.post_parts(number, at.offset, remote, cx)
            }
            _ => {
                if self.asked != Some((frame, at.key)) && self.lane.has_credit() {
                    self.asked = Some((frame, at.key));
                    self.expected.push_back(Expected::Open(at));
                    self.lane.message(Head::Open(at), 0, |_, _| (), false, WorkTag::Open);
                }
                Ok(false)
            }
        }
    }

    /// What is known to be wrong without asking anybody.
    fn refusal(&self, work: &VerbsWork, cx: &Context) -> Option<WorkStatus> {
        let Some(at) = work.at() else {
            let is_long = work.bytes > u64::from(MESSAGE_BYTES_MAX);
            return is_long.then_some(WorkStatus::BadRange);
        };
        let is_ours = !work.is_atomic() || cx.device_atomics;
        if !is_ours {
            return None;
        }
        let bytes = if work.is_atomic() { 8 } else { work.bytes };
        if work.is_atomic() && !at.offset.is_multiple_of(8) {
            return Some(WorkStatus::BadRange);
        }
        if work.is_atomic() && at.key.is_shared() {
            return Some(WorkStatus::BadKey);
        }
        let shift = self.geometry.page_shift;
        let within = at.offset & ((1 << shift) - 1);
        let is_outside = at.offset >> shift >= u64::from(self.geometry.frame_count);
        if is_outside || bytes > (1 << shift) - within {
            return Some(WorkStatus::BadRange);
        }
        (at.key.0 == 0).then_some(WorkStatus::BadKey)
    }

    /// Posts a work request as a message; `false` if there is no room for it now.
    fn post_message(&mut self, number: u64, head: Head, cx: &mut Context) -> bool {
        if !self.lane.has_credit() {
            return false;
        }
        let work = self.queue.get_mut(number).expect("it is in the queue");
        let locals = &cx.locals;
        let pieces = work.pieces();
        let fill =
            |window: &rackpool_mem::window::Window, offset| locals.gather(pieces, window, offset);
        let fence = self.reads > 0;
        self.lane.message(head, work.bytes, fill, fence, WorkTag::Message { work: number });
        work.state.state = State::Posted { is_done: false, is_answered: false };
        self.expected.push_back(Expected::Work(number));
        true
    }

    /// Posts the parts of a one-sided work request that there is room for; whether all are.
    fn post_parts(
        &mut self,
        number: u64,
        offset: u64,
        key: u32,
        cx: &mut Context,
    ) -> Result<bool, CloseReason> {
        let work = self.queue.get_mut(number).expect("it is in the queue");
        let needs_answer = matches!(work.verb, Verb::WriteImm(..));
        let chunk = if work.is_read() { CHUNK_BYTES } else { WRITE_BYTES };
        let chunk = chunk.min(u64::from(cx.limits.message_bytes_max));
        loop {
            if self.lane.room() < 2 || needs_answer && !self.lane.has_credit() {
                return Ok(false);
            }
            let uses_slot = (Posting::is_staged(work) || work.discard) && work.bytes > 0;
            if (uses_slot || work.is_atomic()) && work.state.slot.is_none() {
                let Some(slot) = cx.locals.take_slot() else { return Ok(false) };
                work.state.slot = Some(slot);
                if !work.is_read() && !work.is_atomic() {
                    cx.locals.stage(slot, work.pieces());
                }
            }
            let limit = if work.discard { STAGED_BYTES_MAX } else { chunk };
            let posted_bytes = work.state.posted_bytes;
            let bytes = limit.min(work.bytes - posted_bytes);
            let is_last = posted_bytes + bytes == work.bytes;
            let operation = operation_of(&work.verb, offset + posted_bytes, key, is_last);
            let is_small =
                Posting::is_staged(work) && bytes <= u64::from(self.lane.inline_bytes_max());
            let is_from = !work.is_read() && !work.is_atomic();
            let flags = Flags {
                signalled: work.signalled && is_last,
                inline: is_from && is_small && bytes > 0,
                fence: is_from && self.reads > 0,
            };
            let uses_slot = uses_slot || work.is_atomic();
            if !uses_slot {
                cx.locals.pin(work.pieces(), work.is_read())?;
            }
            let slot_bytes = if work.is_atomic() { 8 } else { bytes };
            let slot = work.state.slot.filter(|_| uses_slot);
            let slot = slot.map(|slot| cx.locals.slot(slot, slot_bytes));
            let from_buffers = if uses_slot { 0 } else { bytes };
            let parts = work.parts(posted_bytes, from_buffers).map(|part| cx.locals.part(&part));
            let tag = WorkTag::Part { work: number, is_last };
            self.lane.one_sided(&operation, slot.into_iter().chain(parts), flags, tag);
            work.state.posted_bytes += bytes;
            work.state.parts += 1;
            self.reads += u32::from(!is_from);
            if is_last {
                work.state.state = State::Posted { is_done: false, is_answered: !needs_answer };
                if needs_answer {
                    self.expected.push_back(Expected::Work(number));
                }
                return Ok(true);
            }
        }
    }

    /// Takes a completion of the device in.
    pub(super) fn completed(
        &mut self,
        completion: &Completion,
        cx: &mut Context,
    ) -> Result<(), CloseReason> {
        let mut outcomes = std::mem::take(&mut cx.outcomes);
        self.at_work = None;
        let taken = self.lane.completed(completion, &mut outcomes);
        for outcome in outcomes.drain(..) {
            match outcome {
                LaneEvent::Received(arrived) => self.received(arrived, cx)?,
                LaneEvent::Ended(tag, CompletionStatus::Done) => self.part_done(tag, cx),
                LaneEvent::Ended(tag, CompletionStatus::Access) => self.part_refused(tag)?,
                LaneEvent::Ended(tag, CompletionStatus::Failed(0 | FLUSHED)) => {
                    self.part_undone(tag)
                }
                LaneEvent::Ended(_, CompletionStatus::Failed(status)) => {
                    return Err(CloseReason::Work { status });
                }
            }
        }
        cx.outcomes = outcomes;
        taken
    }

    fn work(&mut self, number: u64) -> Option<&mut VerbsWork> {
        self.queue.get_mut(number)
    }

    fn part_done(&mut self, tag: WorkTag, cx: &mut Context) {
        let (number, is_last) = match tag {
            WorkTag::Part { work, is_last } => (work, is_last),
            WorkTag::Message { .. } | WorkTag::Open | WorkTag::Credit => return,
        };
        let Some(work) = self.work(number) else { return };
        work.state.parts -= 1;
        let uses_device = work.is_read() || work.is_atomic();
        if let (true, State::Posted { is_answered, .. }) = (is_last, work.state.state) {
            let mut value = 0;
            if let Some(slot) = work.state.slot.take() {
                if work.is_atomic() {
                    value = cx.locals.word(slot);
                } else if work.is_read() && !work.discard {
                    cx.locals.unstage(slot, work.pieces());
                }
                cx.locals.free_slot(slot);
            }
            work.state.state = match is_answered {
                true => State::Ended(WorkStatus::Done(value)),
                false => State::Posted { is_done: true, is_answered },
            };
        }
        self.reads -= u32::from(uses_device);
    }

    /// The device of the target refused a key. Nothing behind this was executed.
    fn part_refused(&mut self, tag: WorkTag) -> Result<(), CloseReason> {
        let WorkTag::Part { work: number, .. } = tag else {
            return Err(CloseReason::Work { status: ACCESS });
        };
        self.part_undone(tag);
        let shift = self.geometry.page_shift;
        let Some(work) = self.work(number) else { return Ok(()) };
        work.state.state = State::Ended(WorkStatus::BadKey);
        if let Some(at) = work.at() {
            self.keys.remove(&((at.offset >> shift) as u32));
        }
        Ok(())
    }

    /// A work request of the device came back without having been executed.
    fn part_undone(&mut self, tag: WorkTag) {
        match tag {
            WorkTag::Credit => self.lane.unsend(),
            WorkTag::Open => {
                self.lane.unsend();
                self.expected.pop_back();
                self.asked = None;
            }
            WorkTag::Message { work: number } => {
                self.lane.unsend();
                self.expected.pop_back();
                let Some(work) = self.work(number) else { return };
                work.state.state = State::Queued;
                let (is_atomic, is_gone) = (work.is_atomic(), work.discard);
                self.remote_atomics -= u32::from(is_atomic);
                if is_gone {
                    self.broken.get_or_insert(CloseReason::BufferGone);
                }
            }
            WorkTag::Part { work: number, is_last } => {
                let Some(work) = self.work(number) else { return };
                work.state.parts -= 1;
                let uses_device = work.is_read() || work.is_atomic();
                let is_message = is_last && matches!(work.verb, Verb::WriteImm(..));
                if !matches!(work.state.state, State::Ended(_)) {
                    work.state.state = State::Queued;
                }
                // A slot stays as it is: what a WRITE has put there is not put there again.
                work.state.posted_bytes = 0;
                self.reads -= u32::from(uses_device);
                if is_message {
                    self.lane.unsend();
                    self.expected.pop_back();
                }
            }
        }
    }

    /// A message of the target.
    fn received(&mut self, arrived: Arrived, cx: &mut Context) -> Result<(), CloseReason> {
        cx.stats.received_bytes += u64::from(arrived.bytes());
        match self.lane.head(&arrived)? {
            None => {}
            Some(Head::Message) => {
                let message = self.lane.payload(&arrived);
                cx.events.push(FabricEvent::Received { peer: self.peer, message });
            }
            Some(Head::Closed(at)) => {
                let frame = (at.offset >> self.geometry.page_shift) as u32;
                if self.keys.get(&frame).is_some_and(|(key, _)| *key == at.key) {
                    self.keys.remove(&frame);
                }
            }
            Some(Head::Answer(status)) => self.answered(status)?,
            Some(_) => return Err(WireError::Kind { kind: 0 }.into()),
        }
        self.lane.used(arrived);
        Ok(())
    }

    fn answered(&mut self, status: WorkStatus) -> Result<(), CloseReason> {
        let expected = self.expected.pop_front();
        let unasked = WireError::Field { what: "an answer to no request" };
        match expected.ok_or(unasked)? {
            Expected::Open(at) => {
                self.asked = None;
                let frame = (at.offset >> self.geometry.page_shift) as u32;
                if let WorkStatus::Done(remote) = status {
                    let remote = u32::try_from(remote);
                    let remote = remote.map_err(|_| WireError::Field { what: "a key" })?;
                    self.keys.insert(frame, (at.key, remote));
                } else if let Some(work) = self.queue.at_mut(self.next)
                    && work.state.state == State::Queued
                    && work.at() == Some(at)
                {
                    // It was for this one that the key was asked for.
                    work.state.state = State::Ended(status);
                }
            }
            Expected::Work(number) => {
                let Some(work) = self.work(number) else { return Ok(()) };
                let is_atomic = work.is_atomic();
                let is_message = is_atomic || work.verb == Verb::Send;
                work.state.state = match work.state.state {
                    State::Posted { is_done: false, .. } if !is_message => {
                        State::Posted { is_done: false, is_answered: true }
                    }
                    _ => State::Ended(status),
                };
                self.remote_atomics -= u32::from(is_atomic);
            }
        }
        Ok(())
    }

    /// Tells the user of the work that has ended, in order.
    pub(super) fn settle(&mut self, cx: &mut Context) {
        while let Some(Posting { state: State::Ended(status), parts: 0, slot, .. }) =
            self.queue.at(0).map(|work| &work.state)
        {
            let status = *status;
            slot.iter().for_each(|slot| cx.locals.free_slot(*slot));
            let work = self.queue.pop().expect("there is one");
            self.next = self.next.saturating_sub(1);
            cx.stats.ops += 1;
            work.tell(self.peer, status, &mut cx.events);
        }
    }

    /// What time and the control line bring about. `true` if anything moved.
    pub(super) fn tick(&mut self, now: Nanos, cx: &mut Context) -> Result<bool, CloseReason> {
        let mut moved = false;
        if self.stage != VerbsStage::Up || now.saturating_sub(self.looked) >= LOOK_NS {
            self.looked = now;
            self.control.flush()?;
            while let Some(control) = self.control.receive()? {
                self.liveness.heard(now);
                self.told(control, cx)?;
                moved = true;
            }
        }
        self.recover(now, cx)?;
        self.remind(now)?;
        if self.stage == VerbsStage::Greeting {
            cx.lease.check(self.liveness.heard, now)?;
        } else if self.liveness.is_due(now, cx.lease)? {
            self.control.send(Control::Ping)?;
            cx.stats.pings += 1;
        }
        Ok(moved)
    }

    /// Posts a message of no bytes behind work that the device seems to have forgotten.
    fn remind(&mut self, now: Nanos) -> Result<(), CloseReason> {
        if self.stage != VerbsStage::Up || !self.lane.has_work() {
            self.at_work = None;
            return Ok(());
        }
        let since = *self.at_work.get_or_insert(now);
        if now.saturating_sub(since) >= REMIND_NS {
            self.at_work = Some(now);
            self.reminders += u64::from(self.lane.remind(WorkTag::Credit)?);
        }
        Ok(())
    }

    fn told(&mut self, control: Control, cx: &mut Context) -> Result<(), CloseReason> {
        match (control, self.stage) {
            (Control::Welcome { address, page_shift, frame_count }, VerbsStage::Greeting) => {
                if !(12..=40).contains(&page_shift) {
                    return Err(WireError::Field { what: "page size" }.into());
                }
                self.geometry = TargetGeometry { page_shift, frame_count };
                self.lane.connect(&address)?;
                self.control.send(Control::Ready)?;
                self.stage = VerbsStage::Up;
                cx.events.push(FabricEvent::Connected { peer: self.peer });
            }
            (Control::Busy, VerbsStage::Greeting) => {
                return Err(CloseReason::Refused(HelloStatus::Busy));
            }
            (Control::Secret, VerbsStage::Greeting) => {
                return Err(CloseReason::Refused(HelloStatus::Secret));
            }
            (Control::Recovered(address), VerbsStage::Recovering) => {
                self.lane.connect(&address)?;
                self.control.send(Control::Ready)?;
                self.stage = VerbsStage::Up;
            }
            (Control::Pong, _) => self.liveness.answered(),
            _ => return Err(WireError::Kind { kind: 0 }.into()),
        }
        Ok(())
    }

    /// Brings a failed queue pair back, as far as it has come.
    fn recover(&mut self, now: Nanos, cx: &Context) -> Result<(), CloseReason> {
        if self.stage == VerbsStage::Up && self.lane.has_failed() {
            self.lane.fail()?;
            self.stage = VerbsStage::Draining { since: now };
        }
        let VerbsStage::Draining { since } = self.stage else { return Ok(()) };
        if !self.lane.is_drained() {
            let lease_ms = cx.lease.lease_ms;
            return cx.lease.check(since, now).map_err(|_| CloseReason::Stuck { lease_ms });
        }
        self.lane.renew()?;
        let received = self.lane.received();
        self.control.send(Control::Recover { address: self.lane.address(), received })?;
        self.stage = VerbsStage::Recovering;
        self.recoveries += 1;
        let is_queued = |work: &VerbsWork| work.state.state == State::Queued;
        self.next = self.queue.iter().position(is_queued).unwrap_or(self.queue.len());
        Ok(())
    }

    /// Ends everything; the connection is down and its queue pair with it.
    pub(super) fn drain(mut self, reason: &CloseReason, cx: &mut Context) {
        let Context { locals, events, .. } = cx;
        let peer = self.peer;
        // First: from here on the device touches nothing of ours.
        drop(self.lane);
        let status = |_: usize, work: &VerbsWork| {
            let Posting { state, slot, posted_bytes, .. } = work.state;
            slot.iter().for_each(|slot| locals.free_slot(*slot));
            let executed = match state {
                State::Queued if posted_bytes == 0 => Some(false),
                _ => None,
            };
            Some(match state {
                State::Ended(status) => status,
                _ => WorkStatus::Flushed { executed },
            })
        };
        self.queue.flush(peer, status, events);
        events.push(FabricEvent::Closed { peer, cause: reason.cause() });
    }

    /// Makes sure that no work that is not with the device names a buffer for which `named` holds;
    /// whether some that is with it does, which is to be waited for.
    pub(super) fn let_go(&mut self, named: impl Fn(BufId) -> bool) -> bool {
        let mut is_used = false;
        for work in self.queue.iter_mut().filter(|work| work.names(&named)) {
            let Posting { state, posted_bytes, parts, .. } = work.state;
            let is_begun = parts > 0 || posted_bytes > 0;
            match state {
                State::Ended(_) if parts == 0 => {}
                _ if work.is_read() && Posting::is_staged(work) => work.discard = true,
                // Whether its message has to be sent again is not known yet.
                State::Posted { .. } if work.verb == Verb::Send => work.discard = true,
                State::Queued if work.is_read() && !is_begun => work.discard = true,
                State::Queued if !is_begun => {
                    self.broken.get_or_insert(CloseReason::BufferGone);
                }
                _ => is_used |= !Posting::is_staged(work) && !work.discard,
            }
        }
        is_used
    }

    /// Whether the device may touch `piece` now, or, unless its user only `reads`, look at it.
    pub(super) fn uses(&self, piece: &Sge, reads: bool) -> bool {
        let is_it = |work: &VerbsWork| {
            Posting::is_direct(work) && (!reads || work.is_read()) && work.overlaps(piece)
        };
        self.queue.iter().any(is_it)
    }
}
