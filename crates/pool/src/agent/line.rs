//! The agent's connection to the daemon: messages out in their order, one under way at a time, and
//! messages in. Owns the endpoint; one connection, and after its end a new `Line`.

use super::AgentOptions;
use crate::clock;
use crate::links::fabric_error;
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, Sge, Verb, WorkRequest};
use rackpool_core::wire::{
    self, AgentEvent, AgentRequest, FabricKind, RackInfo, RemoteReply, RemoteRequest, Routed,
};
use rackpool_core::{Error, Result};
use rackpool_fabric::{Endpoint, FabricOptions, LocalBuffers, Over};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Messages that wait; a daemon that takes none of so many is not there.
const WAITING_MAX: usize = 4096;

pub(super) struct Line {
    endpoint: Endpoint,
    peer: PeerId,
    buffer: BufId,
    outbox: VecDeque<Vec<u8>>,
    is_connected: bool,
    is_sending: bool,
    name: String,
    events: Vec<FabricEvent>,
}

impl Line {
    pub(super) fn new(options: &AgentOptions, info: &RackInfo) -> Result<Self> {
        let over = match info.fabric {
            FabricKind::Verbs => Over::Verbs,
            FabricKind::Tcp | FabricKind::Shm => Over::Tcp,
        };
        let (device, secret) = (options.verbs_device.clone(), options.secret.clone());
        let fabric = FabricOptions { over, device, secret };
        let mut endpoint = Endpoint::new(fabric).map_err(fabric_error)?;
        let buffer =
            endpoint.register(vec![0; MESSAGE_BYTES_MAX as usize]).map_err(fabric_error)?;
        let addr = info.fabric_addr.parse().map_err(|_| Error::Protocol {
            peer: "master".into(),
            reason: format!("fabric address `{}`", info.fabric_addr),
        })?;
        let peer = endpoint.connect(info.rack, addr, clock::now_ns()).map_err(fabric_error)?;
        Ok(Self {
            endpoint,
            peer,
            buffer,
            outbox: VecDeque::new(),
            is_connected: false,
            is_sending: false,
            name: format!("daemon of rack {}", info.rack),
            events: Vec::new(),
        })
    }

    /// Puts a message in. Errors: `Busy` if the daemon takes none.
    pub(super) fn say(&mut self, says: &AgentRequest) -> Result<()> {
        if self.outbox.len() >= WAITING_MAX {
            let limit = WAITING_MAX as u64;
            return Err(Error::Busy { what: "messages to the daemon".into(), limit });
        }
        let message = RemoteRequest::Agent(says.clone());
        self.outbox.push_back(wire::encode_vec(&Routed { channel: 0, message }));
        self.send();
        Ok(())
    }

    fn send(&mut self) {
        if !self.is_connected || self.is_sending {
            return;
        }
        let Some(message) = self.outbox.pop_front() else { return };
        let bytes = message.len();
        self.endpoint.buffer_mut(self.buffer)[..bytes].copy_from_slice(&message);
        let local = [Sge { buf: self.buffer, offset: 0, bytes: bytes as u64 }];
        let work = WorkRequest { id: 1, verb: Verb::Send, local: &local, signalled: true };
        // A connection that is down says so with the next poll.
        self.is_sending = self.endpoint.post(self.peer, &[work]).is_ok();
    }

    /// What has come. Errors: `PeerDead` when the connection is over; `Protocol`.
    pub(super) fn poll(&mut self) -> Result<Vec<AgentEvent>> {
        let mut events = std::mem::take(&mut self.events);
        self.endpoint.poll(clock::now_ns(), &mut events);
        let mut heard = Vec::new();
        for event in events.drain(..) {
            match event {
                FabricEvent::Connected { .. } => self.is_connected = true,
                FabricEvent::Completed { .. } => self.is_sending = false,
                FabricEvent::Closed { cause, .. } => {
                    return Err(Error::of_death(&self.name, cause));
                }
                FabricEvent::Received { message, .. } => {
                    let routed = wire::decode::<Routed<RemoteReply>>(&message, &self.name)?;
                    match routed.message {
                        RemoteReply::Agent(hears) => heard.push(hears),
                        _ => return Err(self.strange()),
                    }
                }
                FabricEvent::ReceivedImm { .. } => return Err(self.strange()),
            }
        }
        self.events = events;
        self.send();
        Ok(heard)
    }

    /// Waits for something that `pick` takes.
    pub(super) fn wait<T>(
        &mut self,
        deadline_ns: u64,
        mut pick: impl FnMut(AgentEvent) -> Option<T>,
    ) -> Result<T> {
        let started_ns = clock::now_ns();
        loop {
            for heard in self.poll()? {
                if let Some(picked) = pick(heard) {
                    return Ok(picked);
                }
            }
            let now_ns = clock::now_ns();
            if now_ns >= deadline_ns {
                let waited_ms = (now_ns - started_ns) / 1_000_000;
                return Err(Error::Timeout { peer: self.name.clone(), waited_ms });
            }
            self.endpoint.wait(deadline_ns, &mut self.events);
        }
    }

    /// To be asked for before each sleep, after which comes a poll.
    pub(super) fn prepare_sleep(&mut self) -> Result<BorrowedFd<'_>> {
        self.endpoint.prepare_sleep().map_err(fabric_error)
    }

    fn strange(&self) -> Error {
        Error::Protocol { peer: self.name.clone(), reason: "no answer to an agent".into() }
    }
}
