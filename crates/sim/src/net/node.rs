//! A node's card, its cable, and the switch's port towards it.

use super::Packet;
use crate::device::{Profile, QpCache, Server};
use crate::time::Ps;
use rackpool_core::addr::Generation;
use std::collections::VecDeque;

pub(super) struct Node {
    pub up: bool,
    pub paused_until: Ps,
    pub slow_percent: u32,
    /// Lines written by processors.
    pub lines: Server,
    pub send: Server,
    pub receive: Server,
    pub shared: Server,
    pub fetch: Server,
    pub store: Server,
    pub cable: Server,
    pub cache: QpCache,
    /// Packets that wait for room in the switch, in order; an `Unstall` is scheduled.
    pub stalled: VecDeque<Packet>,
    /// The switch's output towards this node.
    pub port: Server,
    /// Bytes on their way to that output.
    pub port_reserved: u64,
    /// Operations handed to the executor.
    pub executing: Vec<(u32, Generation)>,
    revocations: Vec<Revocation>,
    revocations_begun: u32,
}

/// A direction of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Send,
    Receive,
}

struct Revocation {
    number: u32,
    key: Generation,
    cookie: u64,
    /// The card has confirmed; only executions are waited for.
    confirmed: bool,
}

impl Node {
    pub fn new(profile: &Profile) -> Node {
        Node {
            up: true,
            paused_until: Ps::ZERO,
            slow_percent: 100,
            lines: Server::default(),
            send: Server::default(),
            receive: Server::default(),
            shared: Server::default(),
            fetch: Server::default(),
            store: Server::default(),
            cable: Server::default(),
            cache: QpCache::new(profile.rnic.qp_cache.0 as usize),
            stalled: VecDeque::new(),
            port: Server::default(),
            port_reserved: 0,
            executing: Vec::new(),
            revocations: Vec::new(),
            revocations_begun: 0,
        }
    }

    /// A time of this node, stretched if it is slow.
    #[inline]
    pub fn stretch(&self, time: Ps) -> Ps {
        match self.slow_percent {
            100 => time,
            percent => Ps(time.0 * u64::from(percent) / 100),
        }
    }

    /// A message passes an engine that takes `service` and, meanwhile, `share` of what both
    /// engines share: when it is through.
    #[inline]
    pub fn pass(&mut self, engine: Engine, now: Ps, service: Ps, share: Ps) -> Ps {
        let (service, share) = (self.stretch(service), self.stretch(share));
        let server = match engine {
            Engine::Send => &mut self.send,
            Engine::Receive => &mut self.receive,
        };
        let (_, end) = server.serve(now, service);
        match share {
            Ps::ZERO => end,
            share => end.max(self.shared.serve(now, share).1),
        }
    }

    /// Loses its power; the packets that waited here.
    pub fn power_off(&mut self, now: Ps) -> VecDeque<Packet> {
        self.up = false;
        self.revocations.clear();
        for server in [
            &mut self.lines,
            &mut self.send,
            &mut self.receive,
            &mut self.shared,
            &mut self.fetch,
            &mut self.store,
            &mut self.cable,
        ] {
            server.reset(now);
        }
        std::mem::take(&mut self.stalled)
    }

    pub fn begin_revocation(&mut self, key: Generation, cookie: u64) -> u32 {
        let number = self.revocations_begun;
        self.revocations_begun += 1;
        self.revocations.push(Revocation { number, key, cookie, confirmed: false });
        number
    }

    pub fn confirm_revocation(&mut self, number: u32) {
        if let Some(found) = self.revocations.iter_mut().find(|other| other.number == number) {
            found.confirmed = true;
        }
    }

    /// The cookie of a confirmed revocation, once nothing is being executed under its key.
    pub fn next_revoked(&mut self) -> Option<u64> {
        if self.revocations.is_empty() {
            return None;
        }
        let executing = &self.executing;
        let over = |revocation: &Revocation| {
            revocation.confirmed && executing.iter().all(|(_, key)| *key != revocation.key)
        };
        let index = self.revocations.iter().position(over)?;
        Some(self.revocations.remove(index).cookie)
    }
}
