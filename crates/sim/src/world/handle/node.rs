//! What the links of a handle stand on in virtual time: the clock, the inbox, the master, control
//! connections and the fabric.

use super::fabric::Fabric;
use super::local::{Home, SimSlot};
use super::{ConnId, Ctx, Inbox, Input, MasterCaller, MasterLink, Path, sort};
use crate::time::Ps;
use crate::world::Cluster;
use rackpool_core::error::DeathCause;
use rackpool_core::runtime::Environment;
use rackpool_core::runtime::client::{
    Joined, LinkMessage, LocalLink, Platform, RingEvent, Sent, Transport, Wait, Welcome,
};
use rackpool_core::seam::{Nanos, PeerId, PostError, WorkStatus};
use rackpool_core::wire::{self, ControlHello, MasterAnswer, MasterCall, RackInfo};
use rackpool_core::{Error, RackId, Result, SessionId};
use std::cell::Cell;
use std::rc::Rc;

/// How long is waited for a daemon to hear that a handle leaves: it notices by itself, later.
const LEAVE_MAX: Ps = Ps::ms(5);
/// How long after a bell the ring is looked at again at first, and at last: the pause doubles,
/// because the bell may have been for something else.
const RING_LOOK: Ps = Ps::us(1);
const RING_LOOK_MAX: Ps = Ps::ms(1);

pub(super) struct Node {
    pub(super) ctx: Ctx,
    pub(super) cluster: Rc<Cluster>,
    pub(super) rack: RackId,
    pub(super) path: Path,
    pub(super) master: MasterLink,
    pub(super) fabric: Fabric,
    pub(super) inbox: Inbox,
    /// Calls to daemons through rings, and to the master.
    pub(super) sent: (u64, u64),
    /// The message that was sent last, and when.
    pub(super) last_sent: Option<(u64, Ps)>,
    pub(super) hellos: u64,
}

impl Node {
    /// Takes what the daemon's work has come to; whether there was anything.
    fn poll_proxy(&mut self) -> bool {
        let poll_cost = self.cluster.costs.client_poll;
        let events = self.fabric.poll(&self.ctx, poll_cost, &self.inbox.closed_conns);
        let happened = !events.is_empty();
        for event in events {
            let (endpoint, input) = (self.fabric.endpoint, Input::Fabric(event));
            sort(&self.ctx, endpoint, &mut self.master, &mut self.inbox, input);
        }
        happened
    }

    /// Takes the next input and sorts it; `false` when the time is up.
    pub(super) async fn turn(&mut self, until: Ps) -> bool {
        let due = self.master.due().unwrap_or(Ps(u64::MAX));
        if self.poll_proxy() {
            return true;
        }
        match self.ctx.recv(Some(until.min(due))).await {
            Some(input) => {
                let endpoint = self.fabric.endpoint;
                sort(&self.ctx, endpoint, &mut self.master, &mut self.inbox, input);
                self.poll_proxy();
                true
            }
            None => {
                self.master.connect(&self.ctx, &self.cluster);
                self.ctx.now() < until
            }
        }
    }

    /// Charges for copying bytes of the client's own memory.
    pub(super) fn charge_copied(&self, bytes: usize) {
        let lines = (bytes as u64).div_ceil(64);
        self.ctx.cpu.charge(self.cluster.costs.client_copied_line.times(lines));
    }

    async fn welcome(&mut self, conn: ConnId, home: &Home, deadline: Ps) -> Result<Welcome> {
        loop {
            if let Some(at) = self.inbox.controls.iter().position(|(of, _)| *of == conn) {
                return self.inbox.controls.swap_remove(at).1;
            }
            if self.inbox.closed_conns.contains(&conn) {
                return Err(home.dead());
            }
            let Some(input) = self.ctx.recv(Some(deadline)).await else {
                let waited_ms = self.cluster.request_timeout.as_ns() / 1_000_000;
                return Err(Error::Timeout { peer: home.name(), waited_ms });
            };
            let endpoint = self.fabric.endpoint;
            sort(&self.ctx, endpoint, &mut self.master, &mut self.inbox, input);
        }
    }

    /// Every daemon here keeps to the protocol: a ring that does not is a defect of ours.
    fn broken(&self, what: &str) {
        self.ctx.kernel.fail("ring", format!("client of rack {}: {what}", self.rack));
    }
}

impl Environment for Node {
    type Instant = Ps;

    fn now(&self) -> Ps {
        self.ctx.now()
    }

    fn after_ms(&self, ms: u64) -> Ps {
        self.ctx.now() + Ps::ms(ms)
    }

    fn between_ms(from: Ps, to: Ps) -> u64 {
        Ps(to.0.saturating_sub(from.0)).as_ns() / 1_000_000
    }

    async fn sleep_ns(&mut self, ns: Nanos) {
        self.ctx.sleep(Ps::ns(ns)).await;
    }

    fn new_session(&mut self) -> Result<SessionId> {
        Ok(self.cluster.new_session())
    }
}

impl Platform for Node {
    type Slot = SimSlot;

    async fn master(&mut self, call: MasterCall, deadline: Ps) -> Result<MasterAnswer> {
        self.sent.1 += 1;
        let mut caller = MasterCaller {
            ctx: &self.ctx,
            endpoint: self.fabric.endpoint,
            cluster: &self.cluster,
            master: &mut self.master,
            inbox: &mut self.inbox,
        };
        caller.call(call, deadline).await
    }

    fn daemon_of(&self, info: &RackInfo) -> Result<Option<Home>> {
        let is_mapped = self.path == Path::Mapped || info.rack.same_rack(self.rack);
        let rack = self.cluster.rack_of(info.rack);
        Ok(is_mapped.then(|| Home { rack: rack.clone(), region_id: Cell::default() }))
    }

    fn hello_number(&mut self) -> u64 {
        self.hellos += 1;
        self.hellos
    }

    async fn join(
        &mut self,
        home: &Home,
        hello: ControlHello,
        deadline: Ps,
    ) -> Result<Joined<SimSlot>> {
        // The control socket's name is the region's.
        if hello.resume_slot.is_some() && home.rack.region.borrow().id != home.region_id.get() {
            return Err(Error::Denied { reason: "another region".into() });
        }
        let (daemon, _) = home.rack.daemon.get().ok_or_else(|| home.dead())?;
        let conn = self.ctx.connect(daemon);
        self.ctx.send(conn, wire::encode_vec(&hello));
        let joined = self.welcome(conn, home, deadline).await.and_then(|welcome| {
            let slot = home.map(&self.ctx, conn, &welcome).ok_or_else(|| home.dead())?;
            Ok(Joined { slot, welcome })
        });
        if joined.is_err() {
            self.ctx.close(conn);
        }
        joined
    }

    fn ring_bell(&mut self, slot: &mut SimSlot) {
        self.sent.0 += 1;
        // Setting the bell's bit is an atomic operation.
        self.ctx.cpu.drain();
        slot.ring(&self.ctx);
    }

    async fn answer(&mut self, link: &mut LocalLink<SimSlot>, deadline: Ps) -> Result<RingEvent> {
        let mut look = RING_LOOK;
        let rack = u32::from(link.slot().rack.id.0);
        loop {
            self.ctx.cpu.charge(self.cluster.costs.client_poll);
            let heard = self.inbox.rung.len();
            self.inbox.rung.retain(|one| *one != rack);
            let rung = self.inbox.rung.len() < heard;
            match link.pop() {
                Some(Ok(frame)) => return Ok(RingEvent::Answer(frame)),
                Some(Err(error)) => self.broken(&error.to_string()),
                None => {}
            }
            if link.slot().conn.is_none_or(|conn| self.inbox.closed_conns.contains(&conn)) {
                return Ok(RingEvent::Closed);
            }
            let now = self.ctx.now();
            if now >= deadline {
                self.ctx.kernel.say(|| format!("process {}: no answer in time", self.ctx.id.0));
                return Ok(RingEvent::TimeUp);
            }
            let until = if rung { deadline.min(now + look) } else { deadline };
            look = Ps((2 * look.0).min(RING_LOOK_MAX.0));
            self.turn(until).await;
            if rung && !self.inbox.rung.contains(&rack) {
                // What rang without an answer is looked at again.
                self.inbox.rung.push(rack);
            }
        }
    }
}

impl Transport for Node {
    type Buffer = ();

    fn process_id(&self) -> u32 {
        self.ctx.id.0
    }

    fn is_served(&mut self) -> bool {
        self.fabric.is_served()
    }

    fn open_buffer(&mut self) -> Result<()> {
        Ok(())
    }

    fn close_buffer(&mut self, (): ()) {}

    fn connect(&mut self, info: &RackInfo) -> Result<PeerId> {
        self.ctx.kernel.say(|| format!("process {}: connects to {}", self.ctx.id.0, info.rack));
        Ok(self.fabric.connect(&self.ctx, self.cluster.rack_of(info.rack)))
    }

    fn close(&mut self, peer: PeerId) {
        self.fabric.close(&self.ctx, peer);
    }

    fn send(&mut self, peer: PeerId, (): &mut (), messages: &[LinkMessage]) -> Result<Sent> {
        for (count, message) in messages.iter().enumerate() {
            let bytes = wire::encode_vec(message);
            let now = self.ctx.now();
            let sent = self.fabric.send(&self.ctx, peer, bytes);
            match sent {
                Ok(id) => self.last_sent = Some((id, now)),
                Err(PostError::Down) => return Ok(Sent::Down),
                Err(PostError::Busy) if count == 0 => return Ok(Sent::Busy),
                Err(PostError::Busy) => return Ok(Sent::Count(count)),
            }
        }
        Ok(Sent::Count(messages.len()))
    }

    async fn wait_sent(&mut self) {
        let Some((id, at)) = self.last_sent else { return };
        self.inbox.awaited = Some(id);
        while self.inbox.awaited.is_some() && self.turn(at + LEAVE_MAX).await {}
    }

    fn take_connected(&mut self, peer: PeerId) -> bool {
        let at = self.inbox.connected.iter().position(|of| *of == peer);
        if let Some(at) = at {
            self.inbox.connected.remove(at);
            self.ctx.kernel.say(|| format!("process {}: is connected", self.ctx.id.0));
        }
        at.is_some()
    }

    fn take_message(&mut self, peer: PeerId) -> Option<Vec<u8>> {
        let at = self.inbox.messages.iter().position(|(of, _)| *of == peer)?;
        let (_, message) = self.inbox.messages.remove(at)?;
        self.ctx.cpu.charge(self.cluster.costs.client_message);
        self.charge_copied(message.len());
        Some(message)
    }

    fn take_closed(&mut self) -> Option<PeerId> {
        self.inbox.closed_peers.pop()
    }

    fn completions(&mut self) -> &mut Vec<(u64, WorkStatus)> {
        &mut self.inbox.completions
    }

    async fn next_event(&mut self, deadline: Ps) -> bool {
        self.turn(deadline).await
    }

    async fn wait(&mut self, wait: &Wait<'_, Ps>) -> Result<()> {
        let peer = wait.name.into();
        if self.inbox.closed_peers.contains(&wait.peer) {
            return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
        }
        if !self.turn(wait.deadline).await {
            let waited_ms = Self::between_ms(wait.started, self.ctx.now());
            return Err(Error::Timeout { peer, waited_ms });
        }
        Ok(())
    }
}
