//! The queues between the thread of a target and its application: events out, messages in. Owned by
//! both; the application calls from any thread and never waits for the target's thread.
//!
//! Ordering rule: a caller puts its work under the lock, then sets `mail`, then looks at
//! `sleeping`; the thread sets `sleeping`, then looks at `mail`, then sleeps.
//!
//! Source: DESIGN §3 (waiting), §4 (bounded queues).

use super::tcp::{Mail, TargetSendError};
use super::{FabricError, FabricStats};
use rackpool_core::constants::{FABRIC_EVENTS_MAX, FABRIC_MESSAGES_MAX};
use rackpool_core::seam::{FabricEvent, PeerId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What the thread and the application share.
pub(super) struct Doors {
    state: Mutex<DoorState>,
    pub(super) mail: AtomicBool,
    pub(super) sleeping: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) wake: OwnedFd,
    waker: Arc<dyn Fn() + Send + Sync>,
    stats: [AtomicU64; 9],
}

#[derive(Default)]
struct DoorState {
    events: VecDeque<FabricEvent>,
    messages: usize,
    /// A connection waits for room among the messages.
    room_wanted: bool,
    boxes: BTreeMap<PeerId, Mailbox>,
    touched: VecDeque<PeerId>,
}

#[derive(Default)]
struct Mailbox {
    messages: VecDeque<Mail>,
    is_touched: bool,
    close: bool,
}

impl Doors {
    pub(super) fn new(waker: Arc<dyn Fn() + Send + Sync>) -> Result<Self, FabricError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(FabricError::io("an event descriptor"))?;
        Ok(Self {
            state: Mutex::default(),
            mail: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake,
            waker,
            stats: Default::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().expect("nobody panics while the doors are locked")
    }

    /// Makes the thread look at what was put in.
    pub(super) fn notify(&self) {
        // SeqCst: pairs with the swap in the thread's loop and the load in the thread's sleep.
        self.mail.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store in the thread's sleep: either we see that it sleeps or it
        // sees the mail.
        if self.sleeping.load(Ordering::SeqCst) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn take_events(&self, events: &mut Vec<FabricEvent>) -> usize {
        let mut state = self.state();
        let count = state.events.len();
        events.extend(state.events.drain(..));
        state.messages = 0;
        let room_wanted = std::mem::take(&mut state.room_wanted);
        drop(state);
        if room_wanted {
            self.notify();
        }
        count
    }

    pub(super) fn send(&self, peer: PeerId, mail: Mail) -> Result<(), TargetSendError> {
        let mut state = self.state();
        let mailbox = state.boxes.get_mut(&peer).filter(|mailbox| !mailbox.close);
        let mailbox = mailbox.ok_or(TargetSendError::Down)?;
        if mailbox.messages.len() == FABRIC_MESSAGES_MAX {
            return Err(TargetSendError::Busy);
        }
        mailbox.messages.push_back(mail);
        state.touch(peer);
        drop(state);
        self.notify();
        Ok(())
    }

    pub(super) fn close(&self, peer: PeerId) {
        let mut state = self.state();
        if let Some(mailbox) = state.boxes.get_mut(&peer) {
            mailbox.close = true;
            state.touch(peer);
            drop(state);
            self.notify();
        }
    }

    pub(super) fn stats(&self) -> FabricStats {
        // Relaxed: counters for people; each is whole by itself.
        let value = |index: usize| self.stats[index].load(Ordering::Relaxed);
        FabricStats {
            ops: value(0),
            send_calls: value(1),
            recv_calls: value(2),
            empty_calls: value(3),
            sent_bytes: value(4),
            received_bytes: value(5),
            pings: value(6),
            connections: value(7),
            refused: value(8),
        }
    }

    pub(super) fn publish(&self, stats: &FabricStats) {
        let values = [
            stats.ops,
            stats.send_calls,
            stats.recv_calls,
            stats.empty_calls,
            stats.sent_bytes,
            stats.received_bytes,
            stats.pings,
            stats.connections,
            stats.refused,
        ];
        for (cell, value) in self.stats.iter().zip(values) {
            // Relaxed: as in `stats`; only this thread writes.
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Hands a message to the application, or gives it back if there is no room; the thread is
    /// then notified when there is.
    pub(super) fn deliver(&self, event: FabricEvent) -> Result<(), FabricEvent> {
        let mut state = self.state();
        if state.messages >= FABRIC_EVENTS_MAX {
            state.room_wanted = true;
            return Err(event);
        }
        state.messages += 1;
        self.push(state, event);
        Ok(())
    }

    /// Reports a new connection. Connections are accepted only while there is room for messages
    /// (see `is_congested`), which bounds the number of these events.
    pub(super) fn connected(&self, peer: PeerId) {
        let mut state = self.state();
        state.boxes.insert(peer, Mailbox::default());
        self.push(state, FabricEvent::Connected { peer });
    }

    pub(super) fn closed(&self, peer: PeerId, event: FabricEvent) {
        let mut state = self.state();
        state.boxes.remove(&peer);
        self.push(state, event);
    }

    fn push(&self, mut state: MutexGuard<'_, DoorState>, event: FabricEvent) {
        state.events.push_back(event);
        let is_first = state.events.len() == 1;
        drop(state);
        if is_first {
            (self.waker)();
        }
    }

    /// Whether the application has left so many events that no connection may be accepted.
    pub(super) fn is_congested(&self) -> bool {
        let mut state = self.state();
        let is_congested = state.events.len() >= FABRIC_EVENTS_MAX;
        state.room_wanted |= is_congested;
        is_congested
    }

    /// The application's next message to a connection.
    pub(super) fn take_mail(&self, peer: PeerId) -> Option<Mail> {
        self.state().boxes.get_mut(&peer)?.messages.pop_front()
    }

    /// A connection for which something was put in, and whether it is to be closed.
    pub(super) fn take_touched(&self) -> Option<(PeerId, bool)> {
        let mut state = self.state();
        while let Some(peer) = state.touched.pop_front() {
            if let Some(mailbox) = state.boxes.get_mut(&peer) {
                mailbox.is_touched = false;
                return Some((peer, mailbox.close));
            }
        }
        None
    }
}

impl DoorState {
    fn touch(&mut self, peer: PeerId) {
        if let Some(mailbox) = self.boxes.get_mut(&peer)
            && !mailbox.is_touched
        {
            mailbox.is_touched = true;
            self.touched.push_back(peer);
        }
    }
}
