//! One connection of a target: its control line, its queue pair, and the messages that have come
//! and are not answered. One-sided operations pass by without a trace here.
//!
//! Order: messages and WRITE_IMMs are executed and answered in the order in which they came. One
//! that the application has no room for stays, and all behind it, until the initiator has no more
//! credit.
//!
//! Called by `target.rs`, on its thread.

use super::control::ControlLine;
use super::device::{Device, Domain};
use super::keys::Keys;
use super::lane::{Arrived, Lane, LaneEvent, LaneOptions, TARGET_DEPTH};
use super::queue::{Address, Completion, CompletionStatus, Completions};
use super::wire::{Control, Head, WireError};
use crate::FabricStats;
use crate::addresses::ConnectionPermit;
use crate::close::CloseReason;
use crate::limits::ServedConnection;
use crate::queues::{TargetCommand, TargetQueues};
use crate::shm::ShmPeer;
use crate::waiting::Lease;
use rackpool_core::seam::{FabricEvent, Mem, Nanos, PeerId, RemoteAddr, WorkStatus};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What a connection needs of the target.
pub(super) struct VerbsServeContext {
    pub(super) keys: Keys,
    pub(super) completions: Completions,
    pub(super) device: Device,
    pub(super) memory: ShmPeer,
    pub(super) queues: Arc<TargetQueues>,
    pub(super) stats: FabricStats,
    /// Keys that were closed, for the connections that had them.
    pub(super) closed: Vec<(PeerId, RemoteAddr)>,
    pub(super) lease: Lease,
    pub(super) now: Nanos,
}

/// A failed queue pair, on its way back.
struct Recovery {
    address: Address,
    since: Nanos,
}

pub(super) struct VerbsSession {
    peer: PeerId,
    control: ControlLine,
    permit: ConnectionPermit,
    /// Since when it is there.
    since: Nanos,
    /// After the hello; the queue pair goes before its domain.
    lane: Option<(Lane<()>, Domain)>,
    /// The initiator may be sent to.
    is_ready: bool,
    is_greeted: bool,
    /// Messages that the initiator had when it asked for recovery.
    received_there: u32,
    recovery: Option<Recovery>,
    failed_since: Option<Nanos>,
    arrived: VecDeque<Arrived>,
    pub(super) has_mail: bool,
}

/// What is one-sided passes by: nobody here sees whether it asks for nothing.
impl ServedConnection for VerbsSession {
    fn fd(&self) -> BorrowedFd<'_> {
        self.control.fd()
    }

    fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    fn waits(&self) -> Option<Nanos> {
        (!self.is_greeted).then_some(self.since)
    }
}

impl VerbsSession {
    pub(super) fn new(
        peer: PeerId,
        control: ControlLine,
        permit: ConnectionPermit,
        now: Nanos,
    ) -> Self {
        Self {
            peer,
            control,
            permit,
            since: now,
            lane: None,
            is_ready: false,
            is_greeted: false,
            received_there: 0,
            recovery: None,
            failed_since: None,
            arrived: VecDeque::new(),
            has_mail: false,
        }
    }

    /// Reads the control line.
    pub(super) fn listen(&mut self, service: &mut VerbsServeContext) -> Result<(), CloseReason> {
        self.control.flush()?;
        while let Some(control) = self.control.receive()? {
            match (control, &mut self.lane) {
                (Control::Hello(address), None) => self.greet(&address, service)?,
                (Control::Ping, _) => {
                    service.stats.pings += 1;
                    self.control.send(Control::Pong)?;
                }
                (Control::Ready, Some((lane, _))) if !self.is_ready => {
                    self.is_ready = true;
                    if self.is_greeted {
                        lane.resend(self.received_there, || ())?;
                    } else {
                        self.is_greeted = true;
                        service.queues.connected(self.peer);
                    }
                }
                (Control::Recover { address, received }, Some((lane, _))) if self.is_ready => {
                    lane.fail()?;
                    self.is_ready = false;
                    self.received_there = received;
                    self.recovery = Some(Recovery { address, since: service.now });
                }
                _ => return Err(WireError::Kind { kind: 0 }.into()),
            }
        }
        Ok(())
    }

    fn greet(
        &mut self,
        address: &Address,
        service: &mut VerbsServeContext,
    ) -> Result<(), CloseReason> {
        let domain = Domain::new(&service.device)?;
        let (device, completions) = (&service.device, &service.completions);
        let options = LaneOptions { peer: self.peer.0, depth: TARGET_DEPTH, keeps: true };
        let mut lane = Lane::new(device, &domain, completions, options)?;
        lane.connect(address)?;
        let layout = service.memory.layout();
        self.control.send(Control::Welcome {
            address: lane.address(),
            page_shift: layout.pages.page_shift(),
            frame_count: layout.frame_count,
        })?;
        self.lane = Some((lane, domain));
        Ok(())
    }

    /// Takes a completion of the device in.
    pub(super) fn completed(&mut self, completion: &Completion) -> Result<(), CloseReason> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        let mut outcomes = Vec::new();
        lane.completed(completion, &mut outcomes)?;
        for outcome in outcomes {
            match outcome {
                LaneEvent::Received(arrived) => self.arrived.push_back(arrived),
                // The device has tried for as long as it does.
                LaneEvent::Ended((), CompletionStatus::Failed(status @ (12 | 13))) => {
                    return Err(CloseReason::Work { status });
                }
                LaneEvent::Ended((), _) => {}
            }
        }
        Ok(())
    }

    /// Executes and answers what has come, and sends what the application put in; whether anything
    /// moved.
    pub(super) fn progress(
        &mut self,
        service: &mut VerbsServeContext,
    ) -> Result<bool, CloseReason> {
        self.recover(service)?;
        if !self.is_ready {
            return Ok(false);
        }
        let mut moved = false;
        while let Some(arrived) = self.arrived.front().copied() {
            if !self.execute(&arrived, service)? {
                break;
            }
            self.arrived.pop_front();
            moved = true;
        }
        moved |= self.take_command(service);
        let Some((lane, _)) = &mut self.lane else { return Ok(moved) };
        lane.tell(|| ());
        lane.ring()?;
        Ok(moved)
    }

    /// Executes a message; `false` if there is no room for it or its answer now.
    fn execute(
        &mut self,
        arrived: &Arrived,
        service: &mut VerbsServeContext,
    ) -> Result<bool, CloseReason> {
        let peer = self.peer;
        let Some((lane, domain)) = &mut self.lane else { return Ok(false) };
        let deliver = |event| service.queues.deliver(event).is_ok();
        let status = if let Some(imm) = arrived.imm {
            if !lane.has_credit() || !deliver(FabricEvent::ReceivedImm { peer, imm }) {
                return Ok(false);
            }
            WorkStatus::Done(0)
        } else {
            let Some(head) = lane.head(arrived)? else {
                lane.used(*arrived);
                return Ok(true);
            };
            if !lane.has_credit() {
                return Ok(false);
            }
            match head {
                Head::Send => {
                    let message = lane.payload(arrived);
                    if !deliver(FabricEvent::Received { peer, message }) {
                        return Ok(false);
                    }
                    WorkStatus::Done(0)
                }
                Head::Cas { at, expected, new } => {
                    service.memory.cas(at.offset, at.key, expected, new)
                }
                Head::FetchAdd { at, n } => service.memory.fetch_add(at.offset, at.key, n),
                Head::Open(at) => service.keys.open(at, peer, domain, &mut service.closed)?,
                Head::Answer(_) | Head::Message | Head::Closed(_) => {
                    return Err(WireError::Kind { kind: 0 }.into());
                }
            }
        };
        service.stats.ops += 1;
        lane.used(*arrived);
        lane.message(Head::Answer(status), 0, |_, _| (), false, ());
        Ok(true)
    }

    fn take_command(&mut self, service: &mut VerbsServeContext) -> bool {
        let Some((lane, _)) = &mut self.lane else { return false };
        let mut moved = false;
        while self.has_mail && lane.has_credit() {
            let message = match service.queues.take_command(self.peer) {
                Some(TargetCommand::Message(message)) => message,
                // Initiators of this fabric expose nothing.
                Some(TargetCommand::WriteBack(job)) => job.refused,
                None => {
                    self.has_mail = false;
                    break;
                }
            };
            let bytes = message.len() as u64;
            let fill =
                |window: &rackpool_mem::window::Window, offset| window.copy_in(offset, &message);
            lane.message(Head::Message, bytes, fill, false, ());
            moved = true;
        }
        moved
    }

    /// Says that a key is no more, if there is room: a client that does not hear it finds out.
    pub(super) fn tell_closed(&mut self, at: RemoteAddr) -> Result<(), CloseReason> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        if self.is_ready && lane.has_credit() {
            lane.message(Head::Closed(at), 0, |_, _| (), false, ());
            lane.ring()?;
        }
        Ok(())
    }

    /// Brings a failed queue pair back when the initiator has asked and everything is here.
    fn recover(&mut self, service: &mut VerbsServeContext) -> Result<(), CloseReason> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        let (now, lease) = (service.now, service.lease);
        if let Some(Recovery { address, since }) = &self.recovery {
            if lane.is_drained() {
                lane.renew()?;
                lane.connect(address)?;
                self.control.send(Control::Recovered(lane.address()))?;
                (self.recovery, self.failed_since) = (None, None);
            } else {
                let lease_ms = lease.lease_ms;
                lease.check(*since, now).map_err(|_| CloseReason::Stuck { lease_ms })?;
            }
        } else if lane.has_failed() {
            // The initiator has not asked for recovery.
            lease.check(*self.failed_since.get_or_insert(now), now)?;
        }
        Ok(())
    }
}
