//! A handle's fabric connections: what [`RemoteLink`](rackpool_core::runtime::client::RemoteLink)
//! stands on. One-sided operations are posted by the handle itself.

use crate::clock;
use crate::links::{fabric_error, require_same};
use crate::node::environment;
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::error::DeathCause;
use rackpool_core::rrpc::CALLS_MAX;
use rackpool_core::runtime::client::{LinkMessage, Sent, Transport, Wait};
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, PeerId, PostError, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_core::wire::{self, RackInfo};
use rackpool_core::{Error, Result};
use rackpool_fabric::{Endpoint, LocalBuffers};
use std::collections::VecDeque;

/// Id of the work requests that carry messages; their completions are not looked at.
const SEND_ID: u64 = u64::MAX;

/// Events of the fabric that nothing has taken yet.
#[derive(Default)]
pub(crate) struct Inbox {
    /// As they came; empty between calls.
    pub events: Vec<FabricEvent>,
    /// Work requests that ended and were not handed to their operation yet.
    pub completions: Vec<(u64, WorkStatus)>,
    /// Connections that closed; their links do not know it yet.
    pub closed: Vec<(PeerId, DeathCause)>,
    /// Of the connection that was waited for last.
    connected: Option<PeerId>,
    messages: VecDeque<(PeerId, Vec<u8>)>,
}

impl Inbox {
    /// Sorts `events`. Completions and ends of connections are kept, because a transfer may be in
    /// the midst of them; of the rest, what is of `waited`. Whether something was of that.
    pub(crate) fn sort(&mut self, waited: Option<PeerId>) -> bool {
        let mut is_there = false;
        for event in self.events.drain(..) {
            match event {
                FabricEvent::Completed { id, status, .. } => self.completions.push((id, status)),
                FabricEvent::Closed { peer, cause } => {
                    is_there |= Some(peer) == waited;
                    self.closed.push((peer, cause));
                }
                FabricEvent::Connected { peer } if Some(peer) == waited => {
                    (self.connected, is_there) = (waited, true);
                }
                FabricEvent::Received { peer, message } if Some(peer) == waited => {
                    is_there = true;
                    self.messages.push_back((peer, message));
                }
                _ => {}
            }
        }
        is_there
    }
}

/// The endpoint of a handle with what came over it.
pub(crate) struct Network<'a> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) inbox: &'a mut Inbox,
}

environment!(Network<'_>);

impl Network<'_> {
    fn death_of(&self, peer: PeerId) -> Option<DeathCause> {
        let mut closed = self.inbox.closed.iter();
        closed.find(|(of, _)| *of == peer).map(|(_, cause)| *cause)
    }
}

impl Transport for Network<'_> {
    type Buffer = BufId;

    fn process_id(&self) -> u32 {
        std::process::id()
    }

    fn is_served(&mut self) -> bool {
        match self.endpoint {
            Endpoint::Proxied(proxied) => proxied.is_attached(),
            _ => true,
        }
    }

    fn open_buffer(&mut self) -> Result<BufId> {
        self.endpoint.register(vec![0; MESSAGE_BYTES_MAX as usize]).map_err(fabric_error)
    }

    fn close_buffer(&mut self, buffer: BufId) {
        self.endpoint.take(buffer);
    }

    fn connect(&mut self, info: &RackInfo) -> Result<PeerId> {
        require_same(self.endpoint, info)?;
        let addr = info.fabric_addr.parse().map_err(|_| Error::Protocol {
            peer: "master".into(),
            reason: format!("fabric address `{}`", info.fabric_addr),
        })?;
        self.endpoint.connect(info.rack, addr, clock::now_ns()).map_err(fabric_error)
    }

    fn close(&mut self, peer: PeerId) {
        self.endpoint.close(peer);
    }

    fn send(&mut self, peer: PeerId, buffer: &mut BufId, messages: &[LinkMessage]) -> Result<Sent> {
        let work = |local| WorkRequest { id: SEND_ID, verb: Verb::Send, local, signalled: false };
        if let [message] = messages {
            // Most calls are one message.
            let bytes = wire::encode(message, self.endpoint.buffer_mut(*buffer))?.len() as u64;
            let local = [Sge { buf: *buffer, offset: 0, bytes }];
            return Ok(sent(1, self.endpoint.post(peer, &[work(&local)])));
        }
        let mut pieces = [[Sge { buf: *buffer, offset: 0, bytes: 0 }]; CALLS_MAX];
        let (mut count, mut used) = (0, 0);
        for (message, piece) in messages.iter().zip(&mut pieces) {
            let free = &mut self.endpoint.buffer_mut(*buffer)[used as usize..];
            let bytes = match wire::encode(message, free) {
                Ok(encoded) => encoded.len() as u64,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            };
            piece[0] = Sge { buf: *buffer, offset: used, bytes };
            (count, used) = (count + 1, used + bytes);
        }
        let batch: [_; CALLS_MAX] = std::array::from_fn(|index| work(&pieces[index][..]));
        Ok(sent(count, self.endpoint.post(peer, &batch[..count])))
    }

    fn take_connected(&mut self, peer: PeerId) -> bool {
        self.inbox.connected.take_if(|of| *of == peer).is_some()
    }

    fn take_message(&mut self, peer: PeerId) -> Option<Vec<u8>> {
        // No call waits for those of other connections any more.
        while let Some((of, message)) = self.inbox.messages.pop_front() {
            if of == peer {
                return Some(message);
            }
        }
        None
    }

    fn take_closed(&mut self) -> Option<PeerId> {
        self.inbox.closed.pop().map(|(peer, _)| peer)
    }

    fn completions(&mut self) -> &mut Vec<(u64, WorkStatus)> {
        &mut self.inbox.completions
    }

    async fn next_event(&mut self, deadline_ns: u64) -> bool {
        if clock::now_ns() >= deadline_ns {
            return false;
        }
        self.endpoint.wait(clock::slice(deadline_ns), &mut self.inbox.events);
        self.inbox.sort(None);
        true
    }

    async fn wait(&mut self, wait: &Wait<'_, u64>) -> Result<()> {
        if let Some(cause) = self.death_of(wait.peer) {
            return Err(Error::of_death(wait.name, cause));
        }
        self.endpoint.wait(clock::slice(wait.deadline), &mut self.inbox.events);
        let is_there = self.inbox.sort(Some(wait.peer));
        let now_ns = clock::now_ns();
        if !is_there && now_ns >= wait.deadline {
            let waited_ms = (now_ns - wait.started) / 1_000_000;
            return Err(Error::Timeout { peer: wait.name.into(), waited_ms });
        }
        Ok(())
    }

    fn set_emulated_delay(&mut self, delay_ns: u32) {
        self.endpoint.set_emulated_delay(delay_ns);
    }
}

/// What a doorbell for `count` messages has come to.
fn sent(count: usize, posted: std::result::Result<(), (usize, PostError)>) -> Sent {
    match posted {
        Ok(()) => Sent::Count(count),
        Err((_, PostError::Down)) => Sent::Down,
        Err((0, PostError::Busy)) => Sent::Busy,
        Err((posted, PostError::Busy)) => Sent::Count(posted),
    }
}
