//! One connection of a target: its control line, its queue pair, and the messages that have come
//! and are not answered. One-sided operations pass by without a trace here.
//!
//! Order: messages and WRITE_IMMs are executed and answered in the order in which they came. One
//! that the application has no room for stays, and all behind it, until the initiator has no more
//! credit.
//!
//! Called by `target.rs`, on its thread.

use super::broken::Broken;
use super::control::ControlLine;
use super::device::{Device, Domain};
use super::keys::Keys;
use super::lane::{Arrived, Lane, Outcome, TARGET_DEPTH};
use super::queue::{Address, Completion, Completions, Status};
use super::wire::{Control, Head, WireError};
use crate::addresses::Place;
use crate::fabric::FabricStats;
use crate::fabric::doors::Doors;
use crate::fabric::peers::Guest;
use crate::fabric::shm::ShmPeer;
use crate::fabric::tcp::Mail;
use rackpool_core::seam::{FabricEvent, Mem, Nanos, PeerId, RemoteAddr, WorkStatus};
use std::collections::VecDeque;

/// What a connection needs of the target.
pub(super) struct Service<'a> {
    pub(super) device: &'a Device,
    pub(super) completions: &'a Completions,
    pub(super) memory: &'a ShmPeer,
    pub(super) keys: &'a mut Keys,
    pub(super) doors: &'a Doors,
    pub(super) stats: &'a mut FabricStats,
    /// Keys that were closed, for the connections that had them.
    pub(super) closed: &'a mut Vec<(PeerId, RemoteAddr)>,
    pub(super) lease_ms: u64,
    pub(super) now: Nanos,
}

/// A failed queue pair, on its way back.
struct Recovery {
    address: Address,
    since: Nanos,
}

pub(super) struct Served {
    peer: PeerId,
    pub(super) control: ControlLine,
    place: Place,
    /// Since when it is there.
    pub(super) since: Nanos,
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

/// One-sided operations pass by: nothing here sees whether they ask for nothing.
impl Guest for Served {
    fn place(&self) -> &Place {
        &self.place
    }

    fn waits(&self) -> Option<Nanos> {
        (!self.is_greeted).then_some(self.since)
    }
}

impl Served {
    pub(super) fn new(peer: PeerId, control: ControlLine, place: Place, now: Nanos) -> Self {
        Self {
            peer,
            control,
            place,
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

    /// Whether the application knows of it.
    pub(super) fn is_greeted(&self) -> bool {
        self.is_greeted
    }

    /// Reads the control line.
    pub(super) fn listen(&mut self, service: &mut Service<'_>) -> Result<(), Broken> {
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
                        service.doors.connected(self.peer);
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

    fn greet(&mut self, address: &Address, service: &mut Service<'_>) -> Result<(), Broken> {
        let domain = Domain::new(service.device)?;
        let (device, completions) = (service.device, service.completions);
        let mut lane = Lane::new(device, &domain, completions, self.peer.0, (TARGET_DEPTH, true))?;
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
    pub(super) fn completed(&mut self, completion: &Completion) -> Result<(), Broken> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        let mut outcomes = Vec::new();
        lane.completed(completion, &mut outcomes)?;
        for outcome in outcomes {
            match outcome {
                Outcome::Received(arrived) => self.arrived.push_back(arrived),
                // The device has tried for as long as it does.
                Outcome::Ended((), Status::Failed(status @ (12 | 13))) => {
                    return Err(Broken::Work { status });
                }
                Outcome::Ended((), _) => {}
            }
        }
        Ok(())
    }

    /// Executes and answers what has come, and sends what the application put in; whether anything
    /// moved.
    pub(super) fn progress(&mut self, service: &mut Service<'_>) -> Result<bool, Broken> {
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
        moved |= self.take_mail(service);
        let Some((lane, _)) = &mut self.lane else { return Ok(moved) };
        lane.tell(|| ());
        lane.ring()?;
        Ok(moved)
    }

    /// Executes a message; `false` if there is no room for it or its answer now.
    fn execute(&mut self, arrived: &Arrived, service: &mut Service<'_>) -> Result<bool, Broken> {
        let peer = self.peer;
        let Some((lane, domain)) = &mut self.lane else { return Ok(false) };
        let deliver = |event| service.doors.deliver(event).is_ok();
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
                Head::Open(at) => service.keys.open(at, peer, domain, service.closed)?,
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

    fn take_mail(&mut self, service: &mut Service<'_>) -> bool {
        let Some((lane, _)) = &mut self.lane else { return false };
        let mut moved = false;
        while self.has_mail && lane.has_credit() {
            let message = match service.doors.take_mail(self.peer) {
                Some(Mail::Message(message)) => message,
                // Initiators of this fabric expose nothing.
                Some(Mail::WriteBack(job)) => job.refused,
                None => {
                    self.has_mail = false;
                    break;
                }
            };
            let bytes = message.len() as u64;
            let fill = |window: &crate::window::Window, offset| window.copy_in(offset, &message);
            lane.message(Head::Message, bytes, fill, false, ());
            moved = true;
        }
        moved
    }

    /// Says that a key is revoked, if there is room: a peer that is not told finds out.
    pub(super) fn tell_closed(&mut self, at: RemoteAddr) -> Result<(), Broken> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        if self.is_ready && lane.has_credit() {
            lane.message(Head::Closed(at), 0, |_, _| (), false, ());
            lane.ring()?;
        }
        Ok(())
    }

    /// Brings a failed queue pair back when the initiator has asked and everything is here.
    fn recover(&mut self, service: &mut Service<'_>) -> Result<(), Broken> {
        let Some((lane, _)) = &mut self.lane else { return Ok(()) };
        let lease_ms = service.lease_ms;
        let is_late = |since: Nanos| service.now.saturating_sub(since) >= lease_ms * 1_000_000;
        if let Some(Recovery { address, since }) = &self.recovery {
            if lane.is_drained() {
                lane.renew()?;
                lane.connect(address)?;
                self.control.send(Control::Recovered(lane.address()))?;
                (self.recovery, self.failed_since) = (None, None);
            } else if is_late(*since) {
                return Err(Broken::Stuck { lease_ms });
            }
        } else if lane.has_failed() {
            let since = *self.failed_since.get_or_insert(service.now);
            // The initiator has not asked for recovery.
            if is_late(since) {
                return Err(Broken::Silent { lease_ms });
            }
        }
        Ok(())
    }
}
