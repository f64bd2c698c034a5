//! The link to a daemon over the fabric: connecting, joining, requests and their repetition.

use super::join::layout_of;
use super::{Link, Path, RETRY_PAUSE_MAX, SimHandle};
use crate::time::Ps;
use rackpool_core::client::{LinkId, LinkLoss, OWN, Reach, Session, Taken};
use rackpool_core::coherence::Coherence;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{PeerId, PostError};
use rackpool_core::wire::{
    self, MasterCall, RackInfo, RegionInfo, RemoteReply, RemoteRequest, Reply, Request, Routed,
};
use rackpool_core::{Error, RackId, Result};

pub(super) struct RemoteLink {
    pub(super) peer: Option<PeerId>,
    pub(super) session: Session,
    /// Locks that the daemon says are lost; `None` for all.
    pub(super) lost: Option<Vec<u64>>,
    pub(super) region: RegionInfo,
}

impl SimHandle {
    async fn wait_for_rack(&mut self, rack: RackId, deadline: Ps) -> Result<RackInfo> {
        let mut pause = Ps::ms(1);
        loop {
            let info = self.master_call(MasterCall::Rack { rack }, deadline).await?.rack()?;
            if info.alive {
                return Ok(info);
            }
            if self.ctx.now() >= deadline {
                let peer = format!("daemon of rack {rack}");
                return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    /// Connects, or connects again, the link to a rack.
    pub(super) async fn connect(&mut self, rack: RackId, deadline: Ps) -> Result<()> {
        let mut pause = Ps::ms(1);
        loop {
            let info = self.wait_for_rack(rack, deadline).await?;
            if !self.fabric.is_served() {
                // It finds its own daemon again first.
                self.daemon_call(OWN, Request::Ping, deadline).await?;
            }
            self.ctx.kernel.say(|| format!("process {}: connects to rack {rack}", self.ctx.id.0));
            match self.connect_once(&info, deadline).await {
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if self.ctx.now() < deadline => {}
                result => return result,
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    async fn connect_once(&mut self, info: &RackInfo, deadline: Ps) -> Result<()> {
        if let Some(id) = self.client.link_of(info.rack) {
            if let Link::Remote(remote) = &self.links[id.0 as usize] {
                let region = remote.region.region_id;
                self.reconnect(id, deadline).await?;
                let remote = self.remote(id);
                let layout = layout_of(&remote.region);
                let lost = remote.lost.take();
                let is_new_region = remote.region.region_id != region;
                self.locks.lose(info.rack, lost.as_deref());
                if is_new_region {
                    self.client.forget_link(id);
                }
                self.client.add_link(info.rack, Reach::OneSided(layout))?;
            }
            return Ok(());
        }
        let rack = self.cluster.rack_of(info.rack).clone();
        if self.path == Path::Mapped || info.rack.same_rack(self.rack) {
            let session = self.cluster.new_session();
            let join = self.join(&rack, deadline);
            let link = join.until(&mut self.inbox, &mut self.master, session, None).await?;
            let reach = Reach::Mapped(link.view.clone());
            self.client.add_link(info.rack, reach)?;
            self.links.push(Link::Local(Box::new(link)));
            return Ok(());
        }
        let link = RemoteLink {
            peer: None,
            session: Session::over_fabric(
                format!("daemon of rack {}", info.rack),
                self.cluster.new_session(),
            ),
            lost: None,
            region: RegionInfo {
                rack: info.rack,
                region_id: info.region_id,
                epoch: 0,
                page_shift: info.page_shift,
                frame_count: info.frame_count,
                emulate_cxl_ns: 0,
                emulate_rdma_ns: 0,
                counts_use: false,
                coherence: Coherence::default(),
            },
        };
        let id = LinkId(self.links.len() as u16);
        self.links.push(Link::Remote(Box::new(link)));
        if let Err(error) = self.reconnect(id, deadline).await {
            self.links.pop();
            return Err(error);
        }
        let layout = layout_of(&self.remote(id).region);
        let given = self.client.add_link(info.rack, Reach::OneSided(layout))?;
        assert_eq!(given, id, "links are numbered alike");
        Ok(())
    }

    pub(super) fn remote(&mut self, id: LinkId) -> &mut RemoteLink {
        match &mut self.links[id.0 as usize] {
            Link::Remote(link) => link,
            Link::Local(_) => unreachable!("only called for links over the fabric"),
        }
    }

    /// Connects a remote link anew and says which session it is.
    async fn reconnect(&mut self, id: LinkId, deadline: Ps) -> Result<()> {
        let rack = self.remote(id).region.rack;
        if let Some(old) = self.remote(id).peer.take() {
            self.fabric.close(&self.ctx, old);
        }
        let home = self.cluster.rack_of(rack).clone();
        let peer = self.fabric.connect(&self.ctx, &self.links, &home);
        let name = self.remote(id).session.peer().to_string();
        loop {
            if let Some(at) = self.inbox.connected.iter().position(|of| *of == peer) {
                self.inbox.connected.remove(at);
                self.ctx.kernel.say(|| format!("process {}: is connected", self.ctx.id.0));
                break;
            }
            self.step_of(peer, &name, deadline).await?;
        }
        let pid = self.ctx.id.0;
        let locks = self.locks.held.held_in(rack);
        let join = self.remote(id).session.join(pid, locks);
        if self.send_remote(peer, &join).is_err() {
            return Err(Error::PeerDead { peer: name, cause: DeathCause::Closed });
        }
        loop {
            while let Some(message) = self.take_message(peer) {
                match decode(&message, &name)? {
                    RemoteReply::Joined { known, lost, region } => {
                        let fresh = self.cluster.new_session();
                        let link = self.remote(id);
                        link.session.joined(known, fresh);
                        link.lost = known.then_some(lost);
                        link.peer = Some(peer);
                        link.region = region;
                        return Ok(());
                    }
                    RemoteReply::Refused(error) => return Err(error),
                    _ => {}
                }
            }
            self.step_of(peer, &name, deadline).await?;
        }
    }

    pub(super) fn take_message(&mut self, peer: PeerId) -> Option<Vec<u8>> {
        let at = self.inbox.messages.iter().position(|(of, _)| *of == peer)?;
        let (_, message) = self.inbox.messages.remove(at)?;
        self.ctx.cpu.charge(self.cluster.costs.client_message);
        self.charge_copied(message.len());
        Some(message)
    }

    /// Charges for copying bytes of the client's own memory.
    pub(super) fn charge_copied(&self, bytes: usize) {
        let lines = (bytes as u64).div_ceil(64);
        self.ctx.cpu.charge(self.cluster.costs.client_copied_line.times(lines));
    }

    /// Waits for the next input; an error if the connection is closed or the time is up.
    pub(super) async fn step_of(&mut self, peer: PeerId, name: &str, deadline: Ps) -> Result<()> {
        if self.inbox.closed_peers.contains(&peer) {
            return Err(Error::PeerDead { peer: name.into(), cause: DeathCause::Closed });
        }
        if !self.turn(deadline).await {
            let waited_ms = self.timeout.as_ns() / 1_000_000;
            return Err(Error::Timeout { peer: name.into(), waited_ms });
        }
        Ok(())
    }

    pub(super) fn send_remote(
        &mut self,
        peer: PeerId,
        message: &RemoteRequest,
    ) -> Result<u64, PostError> {
        let bytes = wire::encode_vec(&Routed { channel: 0, message });
        self.sent.0 += u64::from(matches!(message, RemoteRequest::Request(_)));
        self.fabric.send(&self.ctx, &self.links, peer, bytes)
    }

    pub(super) async fn remote_call(
        &mut self,
        id: LinkId,
        request: Request,
        deadline: Ps,
    ) -> Result<Reply> {
        let rack = self.client.rack_of(id);
        self.note_closed();
        let (is_access, losses) = (request.is_access(), self.locks.losses.count());
        if self.remote(id).peer.is_none() {
            self.connect(rack, deadline).await?;
        }
        if is_access && self.locks.losses.count() != losses {
            return Err(self.locks.losses.told());
        }
        let started = self.ctx.now();
        self.remote(id).session.begin(request);
        loop {
            match self.remote_try(id, started, deadline).await {
                Some(reply) => return reply,
                None => {
                    self.remote(id).peer = None;
                    if let Err(error) = self.connect(rack, deadline).await {
                        return Err(self.remote(id).session.give_up(error));
                    }
                    if is_access && self.locks.losses.count() != losses {
                        let lost = self.locks.losses.last();
                        let error = self.remote(id).session.give_up(lost);
                        return Err(self.locks.losses.ended(error));
                    }
                    if let Some(ended) = self.remote(id).session.rejoined() {
                        return ended;
                    }
                }
            }
        }
    }

    /// Sends the request under way and waits for its answer; `None` if the connection was lost.
    async fn remote_try(&mut self, id: LinkId, started: Ps, deadline: Ps) -> Option<Result<Reply>> {
        let link = self.remote(id);
        let peer = link.peer?;
        let frame = link.session.under_way().expect("a request was begun").clone();
        let seq = frame.seq;
        let name = link.session.peer().to_string();
        self.send_remote(peer, &RemoteRequest::Request(frame)).ok()?;
        loop {
            while let Some(message) = self.take_message(peer) {
                match decode(&message, &name) {
                    Ok(RemoteReply::Reply(frame)) if frame.seq == seq => {
                        let session = &mut self.remote(id).session;
                        let taken = session.on_remote_reply(frame);
                        return match taken.expect("the sequence number was compared") {
                            Taken::Done(reply) => Some(reply),
                            Taken::Confirm(seq) => {
                                self.confirm(id, peer, seq, started, deadline).await
                            }
                        };
                    }
                    Ok(_) => {}
                    Err(error) => {
                        return Some(Err(self.remote(id).session.give_up(error)));
                    }
                }
            }
            match self.step_of(peer, &name, deadline).await {
                Ok(()) => {}
                Err(Error::PeerDead { .. }) => return None,
                Err(_) => {
                    return Some(self.remote_time_up(id, started));
                }
            }
        }
    }

    fn remote_time_up(&mut self, id: LinkId, started: Ps) -> Result<Reply> {
        let waited_ms = (self.ctx.now() - started).as_ns() / 1_000_000;
        let ended = self.remote(id).session.on_loss(LinkLoss::TimeUp { waited_ms });
        ended.expect("time up ends a request")
    }

    /// Says that the answer to an allocation was taken, and waits until the daemon has stored it.
    async fn confirm(
        &mut self,
        id: LinkId,
        peer: PeerId,
        seq: u64,
        started: Ps,
        deadline: Ps,
    ) -> Option<Result<Reply>> {
        let name = self.remote(id).session.peer().to_string();
        self.send_remote(peer, &RemoteRequest::Consumed(seq)).ok()?;
        loop {
            while let Some(message) = self.take_message(peer) {
                match decode(&message, &name) {
                    Ok(RemoteReply::Consumed(known)) if known == seq => {
                        return self.remote(id).session.confirmed().map(Ok);
                    }
                    _ => {}
                }
            }
            match self.step_of(peer, &name, deadline).await {
                Ok(()) => {}
                Err(Error::PeerDead { .. }) => return None,
                Err(_) => {
                    self.remote(id).peer = None;
                    self.fabric.close(&self.ctx, peer);
                    return Some(self.remote_time_up(id, started));
                }
            }
        }
    }

    /// Sends a message and waits until it has arrived or never will.
    pub(super) async fn send_surely(
        &mut self,
        peer: PeerId,
        message: &RemoteRequest,
        deadline: Ps,
    ) {
        let Ok(id) = self.send_remote(peer, message) else { return };
        self.inbox.awaited = Some(id);
        while self.inbox.awaited.is_some() && self.turn(deadline).await {}
    }
}

pub(super) fn decode(message: &[u8], peer: &str) -> Result<RemoteReply> {
    wire::decode::<Routed<RemoteReply>>(message, peer).map(|routed| routed.message)
}
