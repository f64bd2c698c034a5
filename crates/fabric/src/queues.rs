//! The queues between the thread of a target and its application: events out, messages in. Owned by
//! both; the application calls from any thread and never waits for the target's thread.
//!
//! Ordering rule: a caller puts its work under the lock, then sets `has_commands`, then looks
//! at `sleeping`; the thread sets `sleeping`, then looks at `has_commands`, then sleeps.
//!
//! Source: DESIGN §3 (waiting), §4 (bounded queues).

use super::{FabricError, FabricStats};
use rackpool_core::constants::{FABRIC_EVENTS_MAX, FABRIC_MESSAGES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{EncodedWriteBack, FabricEvent, PeerId};
use rackpool_mem::event::WakeEvent;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const STATS: usize = size_of::<FabricStats>() / 8;

/// What the application puts in for a connection.
pub(super) enum TargetCommand {
    Message(Vec<u8>),
    WriteBack(Box<EncodedWriteBack>),
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetSendError {
    /// Retry after a pause.
    #[error("{FABRIC_MESSAGES_MAX} messages wait for this connection")]
    Busy,
    /// The connection is gone. Do not retry.
    #[error("the connection is down")]
    Down,
    /// Do not retry.
    #[error("a message of {bytes} bytes; at most {MESSAGE_BYTES_MAX} bytes fit")]
    TooLong { bytes: usize },
}

/// What the thread and the application share.
pub(super) struct TargetQueues {
    state: Mutex<QueuesState>,
    has_commands: AtomicBool,
    sleeping: AtomicBool,
    stop: AtomicBool,
    pub(super) wake: WakeEvent,
    waker: Arc<dyn Fn() + Send + Sync>,
    stats: [AtomicU64; STATS],
}

#[derive(Default)]
struct QueuesState {
    events: VecDeque<FabricEvent>,
    messages: usize,
    /// A connection waits for room among the messages.
    room_wanted: bool,
    outgoing: BTreeMap<PeerId, PeerQueue>,
    ready: VecDeque<PeerId>,
}

#[derive(Default)]
struct PeerQueue {
    commands: VecDeque<TargetCommand>,
    is_ready: bool,
    close: bool,
}

impl TargetQueues {
    pub(super) fn new(waker: Arc<dyn Fn() + Send + Sync>) -> Result<Self, FabricError> {
        let wake = WakeEvent::new().map_err(FabricError::io("an event descriptor"))?;
        Ok(Self {
            state: Mutex::default(),
            has_commands: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake,
            waker,
            stats: Default::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, QueuesState> {
        self.state.lock().expect("no panic happens under this lock")
    }

    /// Makes the thread look for commands.
    pub(super) fn notify(&self) {
        // SeqCst: pairs with the swap in `take_notification` and the load in `begin_sleep`.
        self.has_commands.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store in `begin_sleep`: either we see that the thread sleeps or it
        // sees the commands.
        if self.sleeping.load(Ordering::SeqCst) {
            self.wake.notify();
        }
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        // SeqCst: pairs with the loads in `is_stopping`; `notify` orders it before the wake-up.
        self.stop.store(true, Ordering::SeqCst);
        self.notify();
    }

    pub(super) fn is_stopping(&self) -> bool {
        // SeqCst: pairs with the store in `stop`.
        self.stop.load(Ordering::SeqCst)
    }

    /// Whether the thread was notified since it was asked last.
    pub(super) fn take_notification(&self) -> bool {
        // Relaxed: only saves the exchange, which orders.
        self.has_commands.load(Ordering::Relaxed)
            // SeqCst: pairs with the store in `notify`.
            && self.has_commands.swap(false, Ordering::SeqCst)
    }

    /// The thread is going to sleep until it is woken, unless this answers that it must not.
    pub(super) fn begin_sleep(&self) -> bool {
        // SeqCst: pairs with the load in `notify`.
        self.sleeping.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store in `notify`.
        self.has_commands.load(Ordering::SeqCst) || self.is_stopping()
    }

    pub(super) fn end_sleep(&self) {
        // SeqCst: pairs with the load in `notify`; a notification too many is harmless.
        self.sleeping.store(false, Ordering::SeqCst);
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

    pub(super) fn send(&self, peer: PeerId, command: TargetCommand) -> Result<(), TargetSendError> {
        let mut state = self.state();
        let queue = state.outgoing.get_mut(&peer).filter(|queue| !queue.close);
        let queue = queue.ok_or(TargetSendError::Down)?;
        if queue.commands.len() == FABRIC_MESSAGES_MAX {
            return Err(TargetSendError::Busy);
        }
        queue.commands.push_back(command);
        state.mark_ready(peer);
        drop(state);
        self.notify();
        Ok(())
    }

    pub(super) fn close(&self, peer: PeerId) {
        let mut state = self.state();
        if let Some(queue) = state.outgoing.get_mut(&peer) {
            queue.close = true;
            state.mark_ready(peer);
            drop(state);
            self.notify();
        }
    }

    pub(super) fn stats(&self) -> FabricStats {
        // Relaxed: counters for people; each is whole by itself.
        let values = self.stats.each_ref().map(|value| value.load(Ordering::Relaxed));
        zerocopy::transmute!(values)
    }

    pub(super) fn publish(&self, stats: &FabricStats) {
        let values: &[u64; STATS] = zerocopy::transmute_ref!(stats);
        for (cell, value) in self.stats.iter().zip(values) {
            // Relaxed: as in `stats`; only this thread writes.
            cell.store(*value, Ordering::Relaxed);
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
        state.outgoing.insert(peer, PeerQueue::default());
        self.push(state, FabricEvent::Connected { peer });
    }

    pub(super) fn closed(&self, peer: PeerId, event: FabricEvent) {
        let mut state = self.state();
        state.outgoing.remove(&peer);
        self.push(state, event);
    }

    fn push(&self, mut state: MutexGuard<'_, QueuesState>, event: FabricEvent) {
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

    /// The application's next command to a connection.
    pub(super) fn take_command(&self, peer: PeerId) -> Option<TargetCommand> {
        self.state().outgoing.get_mut(&peer)?.commands.pop_front()
    }

    /// A connection that has commands, and whether it is to be closed.
    pub(super) fn take_ready(&self) -> Option<(PeerId, bool)> {
        let mut state = self.state();
        while let Some(peer) = state.ready.pop_front() {
            if let Some(queue) = state.outgoing.get_mut(&peer) {
                queue.is_ready = false;
                return Some((peer, queue.close));
            }
        }
        None
    }
}

impl QueuesState {
    fn mark_ready(&mut self, peer: PeerId) {
        if let Some(queue) = self.outgoing.get_mut(&peer)
            && !queue.is_ready
        {
            queue.is_ready = true;
            self.ready.push_back(peer);
        }
    }
}
