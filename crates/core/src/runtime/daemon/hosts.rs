//! Other hosts that have the rack's memory: their agents, and the slots of their clients.
//!
//! A slot of another host is given back when it is certain that no process touches its frames any
//! more: the agent says that the process has ended, or the host has come back with another boot, or
//! an operator has fenced it. The end of an agent's connection says nothing of that kind; until the
//! agent is back its clients are not served, and what they hold stays theirs.
//!
//! Source: DESIGN §3 (expiry never permits reuse).

use super::{Client, DaemonHost, DaemonLoop, Fault, SlotGrant, TargetCommand};
use crate::SessionId;
use crate::constants::{LEASE_MS_DEFAULT, SLOTS_MAX};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::seam::{Nanos, PeerId};
use crate::wire::{
    AgentEvent, AgentRequest, ControlHello, ControlReply, HostProcess, HostTag, WIRE_VERSION,
};
use std::collections::BTreeMap;

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

/// A slot of a client of another host.
struct HostSlot {
    slot: u32,
    session: SessionId,
    tag: HostTag,
    process: HostProcess,
}

impl Hosts {
    /// A host has one agent; an earlier connection is over whether its end was seen or not.
    fn replace(&mut self, name: &str) -> Option<PeerId> {
        let old = self.agents.iter().find(|(_, host)| host.name == name).map(|(peer, _)| *peer)?;
        self.agents.remove(&old);
        Some(old)
    }

    /// The agent of a slot's host.
    pub(super) fn agent_of(&self, tag: HostTag) -> Option<PeerId> {
        self.agents.iter().find(|(_, host)| host.tag == tag).map(|(peer, _)| *peer)
    }
}

impl<H: DaemonHost> DaemonLoop<H> {
    /// An agent, or an operator, sent a message.
    pub(super) fn on_agent(&mut self, peer: PeerId, request: AgentRequest) {
        let now = self.host.now();
        if let Some(host) = self.hosts.agents.get_mut(&peer) {
            host.heard = now;
        }
        let answer = match request {
            AgentRequest::Hello { version, host, boot, region_id } => {
                Some(match self.check_agent(version, &host, region_id) {
                    Err(error) => AgentEvent::Refused(error),
                    Ok(()) => {
                        self.close_agent(&host);
                        let tag = HostTag::new(&host, &boot);
                        let slots = self.host_is_back(tag);
                        self.hosts.agents.insert(peer, Host { name: host, tag, heard: now });
                        AgentEvent::Welcome { slots }
                    }
                })
            }
            AgentRequest::Join { number, hello, process } => {
                let tag = self.hosts.agents.get(&peer).map(|host| host.tag);
                tag.map(|tag| {
                    let reply = self.join_of_host(tag, process, &hello);
                    AgentEvent::Joined { number, reply }
                })
            }
            AgentRequest::Left { slot, session } => {
                if let Some(tag) = self.hosts.agents.get(&peer).map(|host| host.tag) {
                    let its =
                        |one: &HostSlot| (one.slot, one.session, one.tag) == (slot, session, tag);
                    if slots_of(tag.host, &self.engine).iter().any(its) {
                        self.leave(slot);
                    }
                }
                None
            }
            AgentRequest::Ring => None,
            AgentRequest::Fence { version, host } => {
                let fenced = check_version(version).and_then(|()| self.fence(&host, now));
                if fenced.is_ok() {
                    self.close_agent(&host);
                }
                Some(match fenced {
                    Ok(clients) => AgentEvent::Fenced { clients },
                    Err(error) => AgentEvent::Refused(error),
                })
            }
        };
        if let Some(answer) = answer {
            self.send_agent(peer, answer);
        }
    }

    fn check_agent(&self, version: u32, host: &str, region_id: [u64; 2]) -> Result<()> {
        check_version(version)?;
        if region_id == self.engine.region_id() {
            return Ok(());
        }
        Err(Error::BadRegion {
            reason: format!(
                "the memory of host {host} holds another region than rack {} serves: name the \
                 device that both hosts share",
                self.region.rack
            ),
        })
    }

    fn close_agent(&mut self, name: &str) {
        if let Some(old) = self.hosts.replace(name) {
            self.host.tell_target(TargetCommand::Close(old));
        }
    }

    /// A client of another host says hello, by its agent. It fences for itself: the barrier of this
    /// host's kernel does not reach it.
    fn join_of_host(
        &mut self,
        tag: HostTag,
        process: HostProcess,
        hello: &ControlHello,
    ) -> ControlReply {
        let slot = match self.admit(|_| Ok(tag.pack(process)), hello) {
            Ok(slot) => slot,
            Err(error) => return ControlReply::Refused(error),
        };
        let client = self.begin(slot).of_host(tag, hello);
        self.slots[slot as usize] = Some(client);
        let (region, read_only) = (self.region.clone(), hello.read_only);
        let welcome = SlotGrant { slot, read_only, region };
        welcome.reply(false, false, H::offsets(&self.world, slot))
    }

    /// The agent of a host is there: slots of its clients of before, which are not served until
    /// they take them up again. Those of an earlier boot are given back.
    fn host_is_back(&mut self, tag: HostTag) -> Vec<(u32, SessionId, HostProcess)> {
        self.detach(tag.host);
        let mut kept = Vec::new();
        for HostSlot { slot, session, tag: found, process } in slots_of(tag.host, &self.engine) {
            if found == tag {
                kept.push((slot, session, process));
            } else {
                self.leave(slot);
            }
        }
        kept
    }

    /// The clients of a host are not served until its agent is back.
    fn detach(&mut self, host: u32) {
        let of_host = |client: &&mut Client<H>| client.host.is_some_and(|tag| tag.host == host);
        self.slots.iter_mut().flatten().filter(of_host).for_each(|one| one.is_attached = false);
    }

    /// Gives back all slots of a host that an operator says is off; how many.
    fn fence(&mut self, name: &str, now: Nanos) -> Result<u32> {
        let lease_ns = LEASE_MS_DEFAULT * 1_000_000;
        let agents = &self.hosts.agents;
        let is_alive = |host: &Host| host.name == name && now.saturating_sub(host.heard) < lease_ns;
        if agents.values().any(is_alive) {
            return Err(Error::Denied {
                reason: format!("the agent of host {name} is connected: that host is alive"),
            });
        }
        let slots = slots_of(HostTag::new(name, "").host, &self.engine);
        let is_known = agents.values().any(|host| host.name == name);
        if slots.is_empty() && !is_known {
            let names: Vec<&str> = agents.values().map(|host| host.name.as_str()).collect();
            let there = match names.is_empty() {
                true => "no host has an agent here".into(),
                false => format!("hosts with an agent here: {}", names.join(", ")),
            };
            let reason = format!("no client of a host {name} holds anything here; {there}");
            return Err(Error::Config { reason });
        }
        slots.iter().for_each(|one| self.leave(one.slot));
        Ok(slots.len() as u32)
    }

    pub(super) fn on_agent_closed(&mut self, peer: PeerId) {
        if let Some(host) = self.hosts.agents.remove(&peer) {
            let what = format!(
                "the agent of host {} is gone; what its clients hold stays theirs",
                host.name
            );
            self.host.report(Fault::Fabric, &what);
            self.detach(host.tag.host);
        }
    }
}

fn check_version(version: u32) -> Result<()> {
    let supported = WIRE_VERSION;
    match version == supported {
        true => Ok(()),
        false => Err(Error::Version { peer: "agent".into(), found: version, supported }),
    }
}

fn slots_of(host: u32, engine: &Daemon) -> Vec<HostSlot> {
    let local = engine.sessions().filter(|info| info.record < SLOTS_MAX);
    let known = local.filter_map(|info| {
        let (tag, process) = HostTag::unpack(info.pid, info.start_time)?;
        let (slot, session) = (info.record, info.session);
        (tag.host == host).then_some(HostSlot { slot, session, tag, process })
    });
    known.collect()
}
