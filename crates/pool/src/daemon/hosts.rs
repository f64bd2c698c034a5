//! Other hosts that have the rack's memory: their agents, and the slots of their clients. In: what
//! agents say. Out: answers to them, and calls of [`Clients`].
//!
//! A slot of another host is given back when it is certain that no process touches its frames any
//! more: the agent says that the process has ended, or the host has come back with another boot, or
//! an operator has fenced it. The end of an agent's connection says nothing of that kind; until the
//! agent is back its clients are not served, and what they hold stays theirs.
//!
//! Source: DESIGN §3 (expiry never permits reuse).

use super::clients::{Clients, Welcome};
use super::world::RegionWorld;
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::daemon::Daemon;
use rackpool_core::seam::{Nanos, PeerId};
use rackpool_core::wire::{AgentEvent, AgentRequest, HostTag, WIRE_VERSION};
use rackpool_core::{Error, Result};
use rackpool_hw::event::Poller;
use std::collections::BTreeMap;
use tracing::warn;

/// The agents that are connected.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    agents: BTreeMap<PeerId, Host>,
}

#[derive(Debug)]
struct Host {
    name: String,
    tag: HostTag,
    /// When it last sent something.
    heard: Nanos,
}

/// What is needed of the daemon to do what an agent says.
pub(super) struct Rack<'a> {
    pub clients: &'a mut Clients,
    pub engine: &'a mut Daemon,
    pub world: &'a mut RegionWorld,
    pub poller: &'a Poller,
}

impl Hosts {
    /// An agent, or an operator, sent a message; the answer, and which connection ends because the
    /// agent has a new one.
    pub(super) fn hear(
        &mut self,
        peer: PeerId,
        now: Nanos,
        says: AgentRequest,
        rack: &mut Rack<'_>,
        welcome: &Welcome<'_>,
    ) -> (Option<AgentEvent>, Option<PeerId>) {
        let mut replaced = None;
        if let Some(host) = self.agents.get_mut(&peer) {
            host.heard = now;
        }
        let answer = match says {
            AgentRequest::Hello { version, host, boot, region_id } => {
                let own = (rack.engine.region_id(), welcome.region.rack);
                let checked = check(version).and_then(|()| match region_id == own.0 {
                    true => Ok(()),
                    false => Err(Error::BadRegion {
                        reason: format!(
                            "the memory of host {host} holds another region than rack {} serves: \
                             name the device that both hosts share",
                            own.1
                        ),
                    }),
                });
                Some(match checked {
                    Err(error) => AgentEvent::Refused(error),
                    Ok(()) => {
                        replaced = self.leave_others(&host);
                        let tag = HostTag::new(&host, &boot);
                        let slots =
                            rack.clients.host_is_back(tag, rack.engine, rack.world, rack.poller);
                        self.agents.insert(peer, Host { name: host, tag, heard: now });
                        AgentEvent::Welcome { slots }
                    }
                })
            }
            AgentRequest::Join { number, hello, process } => self.agents.get(&peer).map(|host| {
                let Rack { clients, engine, world, .. } = rack;
                let reply =
                    clients.join_of_host((host.tag, process), &hello, engine, world, welcome);
                AgentEvent::Joined { number, reply }
            }),
            AgentRequest::Left { slot, session } => {
                if let Some(host) = self.agents.get(&peer) {
                    let of = (slot, session, host.tag);
                    rack.clients.left_of_host(of, rack.engine, rack.world, rack.poller);
                }
                None
            }
            AgentRequest::Ring => None,
            AgentRequest::Fence { version, host } => {
                let fenced = check(version).and_then(|()| self.fence(&host, now, rack));
                if fenced.is_ok() {
                    replaced = self.leave_others(&host);
                }
                Some(match fenced {
                    Ok(clients) => AgentEvent::Fenced { clients },
                    Err(error) => AgentEvent::Refused(error),
                })
            }
        };
        (answer, replaced)
    }

    /// A host has one agent; an earlier connection is over whether its end was seen or not.
    fn leave_others(&mut self, name: &str) -> Option<PeerId> {
        let old = self.agents.iter().find(|(_, host)| host.name == name).map(|(peer, _)| *peer)?;
        self.agents.remove(&old);
        Some(old)
    }

    fn fence(&self, name: &str, now: Nanos, rack: &mut Rack<'_>) -> Result<u32> {
        let lease_ns = LEASE_MS_DEFAULT * 1_000_000;
        let is_alive = |host: &Host| host.name == name && now.saturating_sub(host.heard) < lease_ns;
        if self.agents.values().any(is_alive) {
            return Err(Error::Denied {
                reason: format!("the agent of host {name} is connected: that host is alive"),
            });
        }
        let host = HostTag::new(name, "").host;
        let clients = rack.clients.host_is_gone(host, rack.engine, rack.world, rack.poller);
        let is_known = self.agents.values().any(|host| host.name == name);
        if clients == 0 && !is_known {
            let names: Vec<&str> = self.agents.values().map(|host| host.name.as_str()).collect();
            let there = match names.is_empty() {
                true => "no host has an agent here".into(),
                false => format!("hosts with an agent here: {}", names.join(", ")),
            };
            let reason = format!("no client of a host {name} holds anything here; {there}");
            return Err(Error::Config { reason });
        }
        Ok(clients)
    }

    pub(super) fn on_closed(&mut self, peer: PeerId, clients: &mut Clients) {
        if let Some(host) = self.agents.remove(&peer) {
            warn!(
                target: "daemon",
                "the agent of host {} is gone; what its clients hold stays theirs", host.name
            );
            clients.detach(host.tag.host);
        }
    }

    /// The agent of a slot's host.
    pub(super) fn agent_of(&self, tag: HostTag) -> Option<PeerId> {
        self.agents.iter().find(|(_, host)| host.tag == tag).map(|(peer, _)| *peer)
    }
}

fn check(version: u32) -> Result<()> {
    let supported = WIRE_VERSION;
    match version == supported {
        true => Ok(()),
        false => Err(Error::Version { peer: "agent".into(), found: version, supported }),
    }
}
