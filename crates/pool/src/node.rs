//! What the links of a handle to mapped daemons stand on: this process's clock, the master, control
//! connections, and the rings of slots.

use crate::agent::control_on;
use crate::clock;
use crate::drive::block;
use crate::link::MasterLink;
use crate::links::Shared;
use crate::local::{JoinOptions, MappedSlot, greet, map};
use crate::options::{FabricChoice, Options};
use rackpool_core::runtime::client::{
    Joined, LocalLink, Platform, RingEvent, Welcome, wait_for_rack,
};
use rackpool_core::wire::{ControlHello, FabricKind, MasterAnswer, MasterCall, RackInfo};
use rackpool_core::{Error, RackId, Result, SessionId};
use rackpool_mem::ring;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the master is asked at once where a daemon that is gone serves now, ms.
const CONTROL_ANSWER_MS_MAX: u64 = 200;
/// How long one wait for a reply lasts before the control socket is looked at, ns.
const WAIT_SLICE_NS: u64 = 20_000_000;

/// Hellos that this process has said: the number of the last one.
static HELLOS: AtomicU64 = AtomicU64::new(0);

/// The time and the names of this process, for a host that blocks.
macro_rules! environment {
    ($host:ty) => {
        impl rackpool_core::runtime::Environment for $host {
            type Instant = u64;

            fn now(&self) -> u64 {
                $crate::clock::now_ns()
            }

            fn after_ms(&self, ms: u64) -> u64 {
                $crate::clock::deadline_ns(ms)
            }

            fn between_ms(from: u64, to: u64) -> u64 {
                to.saturating_sub(from) / 1_000_000
            }

            async fn sleep_ns(&mut self, ns: u64) {
                $crate::clock::sleep_ns(ns);
            }

            fn new_session(&mut self) -> rackpool_core::Result<rackpool_core::SessionId> {
                $crate::local::new_session()
            }
        }
    };
}
pub(crate) use environment;

/// What the links of one handle to mapped daemons stand on.
pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    /// The own rack, or the own one of its shards.
    pub(crate) own: RackId,
    pub(crate) master: MasterLink,
    /// Racks that were alive once.
    met: BTreeSet<RackId>,
    /// Requests sent through rings, for counts in tests and `stats`.
    pub(crate) ring_requests: u64,
}

environment!(Node);

impl Node {
    pub(crate) fn new(shared: Arc<Shared>, master: MasterLink) -> Self {
        let (own, met) = (shared.options.rack_id(), BTreeSet::new());
        Self { shared, own, master, met, ring_requests: 0 }
    }

    pub(crate) fn join_options(&self, control: String, as_remote: bool) -> JoinOptions {
        let Options { read_only, daemon_user, .. } = self.shared.options;
        JoinOptions { control, read_only, as_remote, daemon_user }
    }

    /// The own rack's daemon; of a divided rack that of the shard on which the session falls, or
    /// which the options name.
    pub(crate) fn wait_for_own(
        &mut self,
        session: SessionId,
        deadline_ns: u64,
    ) -> Result<RackInfo> {
        let own = self.own;
        let any = block(wait_for_rack(self, own, deadline_ns))?;
        let (number, shards) = (any.rack.number(), any.rack.shards());
        let own = match self.shared.options.shard {
            None => any.rack.shard_of(session.0),
            Some(shard) => RackId::sharded(number, shard, shards).ok_or_else(|| Error::Config {
                reason: format!("shard {shard} of rack {number}, which has {shards}"),
            })?,
        };
        if own == any.rack {
            return Ok(any);
        }
        match block(wait_for_rack(self, own, deadline_ns)) {
            // Its daemon was never started yet: another one of the rack does as well.
            Err(Error::NoSuchRack { .. }) if self.shared.options.shard.is_none() => Ok(any),
            result => result,
        }
    }

    /// Whether a rack is to be mapped; never decided silently.
    fn is_mapped(&self, info: &RackInfo) -> Result<bool> {
        let same_host = info.host == self.shared.host;
        if info.rack.same_rack(self.own) && same_host {
            return Ok(true);
        }
        match (self.shared.options.fabric, &info.fabric) {
            (FabricChoice::Shm, _) | (FabricChoice::Auto, FabricKind::Shm) if !same_host => {
                Err(Error::Config {
                    reason: format!(
                        "rack {} is on another host, fabric `shm` cannot reach it: use `tcp`",
                        info.rack
                    ),
                })
            }
            (FabricChoice::Shm, _) | (FabricChoice::Auto, FabricKind::Shm) => Ok(true),
            (FabricChoice::Tcp | FabricChoice::Verbs | FabricChoice::Proxied, _)
            | (FabricChoice::Auto, FabricKind::Tcp | FabricKind::Verbs) => Ok(false),
        }
    }

    pub(crate) fn is_own(&self, rack: RackId) -> bool {
        rack.same_rack(self.own)
    }
}

impl Platform for Node {
    type Slot = MappedSlot;

    async fn master(&mut self, call: MasterCall, deadline_ns: u64) -> Result<MasterAnswer> {
        self.master.call(call, clock::instant(deadline_ns))
    }

    /// As long as this is its first contact, only so long as the options say.
    fn dead_rack_deadline(&self, rack: RackId, deadline_ns: u64) -> u64 {
        let limit_ms = self.shared.options.dead_rack_ms.filter(|_| !self.met.contains(&rack));
        limit_ms.map_or(deadline_ns, |ms| clock::deadline_ns(ms).min(deadline_ns))
    }

    fn met(&mut self, asked: RackId, info: &RackInfo) {
        self.met.extend([asked, info.rack]);
    }

    fn daemon_of(&self, info: &RackInfo) -> Result<Option<JoinOptions>> {
        let as_remote = !self.is_own(info.rack);
        let is_mapped = self.is_mapped(info)?;
        Ok(is_mapped.then(|| self.join_options(info.control.clone(), as_remote)))
    }

    fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    fn hello_number(&mut self) -> u64 {
        // Relaxed: only the order of the hellos of one handle counts, which one thread says.
        HELLOS.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn join(
        &mut self,
        daemon: &JoinOptions,
        hello: ControlHello,
        deadline_ns: u64,
    ) -> Result<Joined<MappedSlot>> {
        let (control, reply) = greet(daemon, &hello, deadline_ns)?;
        let welcome = Welcome::of(reply)?;
        Ok(Joined { slot: map(daemon, control, &welcome)?, welcome })
    }

    fn is_squatted(&self, daemon: &JoinOptions) -> bool {
        daemon.is_squatted()
    }

    async fn find(
        &mut self,
        rack: RackId,
        known: &JoinOptions,
        deadline_ns: u64,
    ) -> Result<Option<JoinOptions>> {
        let soon_ns = deadline_ns.min(clock::deadline_ns(CONTROL_ANSWER_MS_MAX));
        match self.master(MasterCall::Rack { rack }, soon_ns).await {
            Ok(MasterAnswer::Rack(info)) if info.alive => {
                let control = control_on(&info, &self.shared.host);
                let is_new = control != known.control;
                Ok(is_new.then(|| JoinOptions { control, ..known.clone() }))
            }
            Err(error @ Error::NoSuchRack { .. }) => Err(error),
            _ => Ok(None),
        }
    }

    fn ring_bell(&mut self, slot: &mut MappedSlot) {
        self.ring_requests += 1;
        slot.ring();
    }

    async fn answer(
        &mut self,
        link: &mut LocalLink<MappedSlot>,
        deadline_ns: u64,
    ) -> Result<RingEvent> {
        loop {
            if let Some(frame) = link.pop() {
                return frame.map(RingEvent::Answer);
            }
            let now_ns = clock::now_ns();
            if now_ns >= deadline_ns {
                return Ok(RingEvent::TimeUp);
            }
            let until_ns = clock::slice(deadline_ns);
            let slice = WAIT_SLICE_NS.min(until_ns.saturating_sub(now_ns));
            let slice = Duration::from_nanos(slice);
            let MappedSlot { consumer, waiter, .. } = &mut link.joined.slot;
            let ready = ring::wait(consumer, waiter, Instant::now() + slice);
            if !ready && link.slot().is_closed() {
                return Ok(RingEvent::Closed);
            }
        }
    }
}
