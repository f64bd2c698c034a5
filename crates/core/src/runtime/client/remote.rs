//! The link to a daemon that is reached over the fabric: one-sided operations are posted by the
//! handle itself; this holds the connection and the session for requests by SEND.

use super::{Host, Link, Runtime, layout_of, locks};
use crate::addr::GAddr;
use crate::client::{LinkId, Session, Taken};
use crate::coherence::Coherence;
use crate::error::{DeathCause, Error, Result};
use crate::layout::RegionLayout;
use crate::runtime::Environment;
use crate::seam::{PeerId, WorkStatus};
use crate::wire::{self, RackInfo, RegionInfo, RemoteReply, RemoteRequest, Reply, Request, Routed};

/// For what on which connection is waited.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a, I> {
    pub peer: PeerId,
    /// The peer's name for messages.
    pub name: &'a str,
    pub started: I,
    pub deadline: I,
}

pub type LinkMessage = Routed<RemoteRequest>;

/// What has become of messages that were to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many of them, at least one.
    Count(usize),
    /// None: the send queue is full.
    Busy,
    /// None: the connection is down.
    Down,
}

/// What links over the fabric need of a host.
#[allow(async_fn_in_trait, reason = "as Environment")]
pub trait Transport: Environment {
    /// Where messages of one link are sent from.
    type Buffer;
    /// For people.
    fn process_id(&self) -> u32;
    /// Whether a process works for this handle's fabric endpoint, or none has to.
    fn is_served(&mut self) -> bool;
    fn open_buffer(&mut self) -> Result<Self::Buffer>;
    fn close_buffer(&mut self, buffer: Self::Buffer);
    fn connect(&mut self, info: &RackInfo) -> Result<PeerId>;
    /// Ends a connection, if it has not ended.
    fn close(&mut self, peer: PeerId);
    /// Sends as many messages as the buffer and the send queue hold, under one doorbell.
    ///
    /// # Errors
    /// A message that is too long.
    fn send(
        &mut self,
        peer: PeerId,
        buffer: &mut Self::Buffer,
        messages: &[LinkMessage],
    ) -> Result<Sent>;
    /// Waits for what was sent last, but not for long: a daemon notices by itself, later.
    async fn wait_sent(&mut self) {}
    /// Whether a connection has come up since the last call.
    fn take_connected(&mut self, peer: PeerId) -> bool;
    /// The next message of a connection.
    fn take_message(&mut self, peer: PeerId) -> Option<Vec<u8>>;
    /// A connection that has ended.
    fn take_closed(&mut self) -> Option<PeerId>;
    /// Work requests that ended and were not handed to their operation yet.
    fn completions(&mut self) -> &mut Vec<(u64, WorkStatus)>;
    /// Waits for the next event; `false` if there was none until the deadline.
    async fn next_event(&mut self, deadline: Self::Instant) -> bool;
    /// Waits for the next event, of which there may be one of this connection.
    ///
    /// # Errors
    /// What the end of the connection means ([`Error::of_death`]); `timeout`.
    async fn wait(&mut self, wait: &Wait<'_, Self::Instant>) -> Result<()>;
    /// Delays what is posted from now on, ns: see [`RegionInfo::emulate_rdma_ns`].
    fn set_emulated_delay(&mut self, _delay_ns: u32) {}
}

/// The link; see the module.
pub struct RemoteLink<B> {
    pub session: Session,
    peer: Option<PeerId>,
    region: RegionInfo,
    buffer: B,
    /// The last request that was sent and waited for.
    sent_seq: u64,
    requests_sent: u64,
}

/// A link with what it stands on, until a deadline.
pub struct OpenLink<'a, T: Transport> {
    link: &'a mut RemoteLink<T::Buffer>,
    transport: &'a mut T,
    deadline: T::Instant,
}

impl<B> RemoteLink<B> {
    /// Connects to a rack's fabric endpoint and joins its daemon.
    ///
    /// # Errors
    /// `peer-dead`, `timeout`; what the daemon refuses with.
    pub async fn connect<T: Transport<Buffer = B>>(
        transport: &mut T,
        info: &RackInfo,
        deadline: T::Instant,
    ) -> Result<Self> {
        let name = format!("daemon of rack {}", info.rack);
        let session = Session::over_fabric(name, transport.new_session()?);
        let buffer = transport.open_buffer()?;
        let region = RegionInfo {
            rack: info.rack,
            region_id: info.region_id,
            epoch: 0,
            page_shift: info.page_shift,
            frame_count: info.frame_count,
            emulate_cxl_ns: 0,
            emulate_rdma_ns: 0,
            counts_use: false,
            coherence: Coherence::default(),
        };
        let mut link = Self { session, peer: None, region, buffer, sent_seq: 0, requests_sent: 0 };
        match link.over(transport, deadline).reconnect(info, Vec::new()).await {
            Ok(_) => Ok(link),
            Err(error) => {
                transport.close_buffer(link.buffer);
                Err(error)
            }
        }
    }

    /// Leaves, and gives back the connection and the buffer.
    pub async fn end<T: Transport<Buffer = B>>(mut self, transport: &mut T, deadline: T::Instant) {
        let peer = self.peer;
        self.over(transport, deadline).leave().await;
        peer.into_iter().for_each(|peer| transport.close(peer));
        transport.close_buffer(self.buffer);
    }

    pub fn over<'a, T: Transport<Buffer = B>>(
        &'a mut self,
        transport: &'a mut T,
        deadline: T::Instant,
    ) -> OpenLink<'a, T> {
        OpenLink { link: self, transport, deadline }
    }

    /// The connection, if it is up.
    pub fn peer(&self) -> Option<PeerId> {
        self.peer
    }

    pub fn region(&self) -> &RegionInfo {
        &self.region
    }

    pub fn layout(&self) -> RegionLayout {
        layout_of(&self.region).expect("checked when the daemon's answer came")
    }

    /// Requests that were sent, those sent again among them.
    pub fn requests_sent(&self) -> u64 {
        self.requests_sent
    }

    pub fn on_closed(&mut self, peer: PeerId) {
        self.peer.take_if(|own| *own == peer);
    }
}

impl<T: Transport> OpenLink<'_, T> {
    /// Connects anew and says which session this is and which locks it holds. Which of them are
    /// lost; `None` for all.
    ///
    /// # Errors
    /// As [`RemoteLink::connect`].
    pub async fn reconnect(
        &mut self,
        info: &RackInfo,
        locks: Vec<(GAddr, u64)>,
    ) -> Result<Option<Vec<u64>>> {
        if let Some(old) = self.link.peer.take() {
            self.transport.close(old);
        }
        let peer = self.transport.connect(info)?;
        let joined = self.join(peer, locks).await;
        if joined.is_err() {
            self.transport.close(peer);
        }
        joined
    }

    /// Joins over a connection that was begun.
    async fn join(&mut self, peer: PeerId, locks: Vec<(GAddr, u64)>) -> Result<Option<Vec<u64>>> {
        let name = self.link.session.peer().to_string();
        let wait = self.wait(peer, &name);
        while !self.transport.take_connected(peer) {
            self.transport.wait(&wait).await?;
        }
        let join = self.link.session.join(self.transport.process_id(), locks);
        self.send(&wait, join).await?;
        let wait = self.wait(peer, &name);
        let (known, lost, region) = answer(self.transport, &wait, |reply| match reply {
            RemoteReply::Joined { known, lost, region } => Some(Ok((known, lost, region))),
            RemoteReply::Refused(error) => Some(Err(error)),
            _ => None,
        })
        .await?;
        layout_of(&region)?;
        let fresh = self.transport.new_session()?;
        self.transport.set_emulated_delay(region.emulate_rdma_ns);
        self.link.session.joined(known, fresh);
        (self.link.peer, self.link.region) = (Some(peer), region);
        Ok(known.then_some(lost))
    }

    fn wait<'n>(&self, peer: PeerId, name: &'n str) -> Wait<'n, T::Instant> {
        Wait { peer, name, started: self.transport.now(), deadline: self.deadline }
    }

    /// Sends one message, once there is room for it.
    async fn send(&mut self, wait: &Wait<'_, T::Instant>, message: RemoteRequest) -> Result<()> {
        self.send_some(wait, &[unrouted(message)]).await.map(drop)
    }

    /// Sends messages, once there is room for one of them; how many. What is under way in the
    /// queue are one-sided operations of the handle: they end without the link.
    async fn send_some(
        &mut self,
        wait: &Wait<'_, T::Instant>,
        messages: &[LinkMessage],
    ) -> Result<usize> {
        loop {
            match self.transport.send(wait.peer, &mut self.link.buffer, messages)? {
                Sent::Count(count) => return Ok(count),
                Sent::Busy => self.transport.wait(wait).await?,
                Sent::Down => return Err(dead(wait.name)),
            }
        }
    }

    /// Sends the request under way, which began at `started`, and waits for its answer. `None` if
    /// the connection was lost: reconnect, then ask [`Session::rejoined`] whether to call again.
    pub async fn call(&mut self, started: T::Instant) -> Option<Result<Reply>> {
        let peer = self.link.peer?;
        let frame = self.link.session.under_way().expect("a request was begun").clone();
        let seq = frame.seq;
        let name = self.link.session.peer().to_string();
        let wait = Wait { started, ..self.wait(peer, &name) };
        match self.send(&wait, RemoteRequest::Request(frame)).await {
            Ok(()) => {
                self.link.sent_seq = seq;
                self.link.requests_sent += 1;
            }
            Err(Error::PeerDead { .. }) => {
                self.link.peer = None;
                return None;
            }
            Err(error) => {
                let was_sent = self.link.sent_seq == seq;
                return Some(Err(self.link.session.end(was_sent, error)));
            }
        }
        let reply = answer(self.transport, &wait, |reply| match reply {
            RemoteReply::Reply(frame) if frame.seq == seq => Some(Ok(frame)),
            _ => None,
        });
        let error = match reply.await {
            Ok(frame) => {
                let taken = self.link.session.on_remote_reply(frame);
                return match taken.expect("the number was compared") {
                    Taken::Done(reply) => Some(reply),
                    Taken::Confirm(seq) => self.confirm(&wait, seq).await,
                };
            }
            Err(error) => error,
        };
        match error {
            Error::PeerDead { .. } => {
                self.link.peer = None;
                None
            }
            Error::Timeout { waited_ms, .. } => Some(self.link.session.time_up(waited_ms)),
            error => Some(Err(self.link.session.give_up(error))),
        }
    }

    /// Says that the answer to an allocation was taken, and waits until the daemon has stored it:
    /// no daemon ever takes for abandoned what another client may have learnt of by now. If the
    /// connection breaks first, the next join says it.
    async fn confirm(&mut self, wait: &Wait<'_, T::Instant>, seq: u64) -> Option<Result<Reply>> {
        let mut stored = self.send(wait, RemoteRequest::Consumed(seq)).await;
        if stored.is_ok() {
            let is_known = |reply| matches!(reply, RemoteReply::Consumed(known) if known == seq);
            stored = answer(self.transport, wait, |reply| is_known(reply).then_some(Ok(()))).await;
        }
        let Err(error) = stored else { return self.link.session.confirmed().map(Ok) };
        self.link.peer = None;
        if matches!(error, Error::PeerDead { .. }) {
            return None;
        }
        self.transport.close(wait.peer);
        match error {
            // Whether it was stored cannot be told: the next join says what was taken.
            Error::Timeout { waited_ms, .. } => Some(self.link.session.time_up(waited_ms)),
            _ => None,
        }
    }

    /// Sends requests that repeat without harm, as many under one doorbell as the buffer holds,
    /// and waits for their answers. What has none when the connection ends or time is up ends with
    /// that.
    pub async fn call_many(&mut self, requests: Vec<Request>) -> Vec<Result<Reply>> {
        let frames = requests.into_iter().map(|request| self.link.session.aside(request));
        let (mut replies, mut messages) = (Vec::new(), Vec::new());
        for frame in frames {
            replies.push((frame.seq, None));
            messages.push(unrouted(RemoteRequest::Request(frame)));
        }
        let failed = self.ask_many(&messages, &mut replies).await.err();
        if matches!(failed, Some(Error::PeerDead { .. })) {
            self.link.peer = None;
        }
        let error = || failed.clone().expect("without an error all were answered");
        replies.into_iter().map(|(_, reply)| reply.unwrap_or_else(|| Err(error()))).collect()
    }

    /// `replies`: the number of each message's request, and its answer once there is one.
    async fn ask_many(
        &mut self,
        messages: &[LinkMessage],
        replies: &mut [(u64, Option<Result<Reply>>)],
    ) -> Result<()> {
        let name = self.link.session.peer().to_string();
        let peer = self.link.peer.ok_or_else(|| dead(&name))?;
        let mut sent = 0;
        while sent < messages.len() {
            let wait = self.wait(peer, &name);
            let count = self.send_some(&wait, &messages[sent..]).await?;
            self.link.requests_sent += count as u64;
            sent += count;
            answer(self.transport, &wait, |reply| {
                if let RemoteReply::Reply(frame) = reply
                    && let Some((_, reply)) = replies.iter_mut().find(|(seq, _)| *seq == frame.seq)
                {
                    *reply = Some(frame.reply);
                }
                replies[..sent].iter().all(|(_, reply)| reply.is_some()).then_some(Ok(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Says that this session is over.
    pub async fn leave(&mut self) {
        let Some(peer) = self.link.peer.take() else { return };
        let name = self.link.session.peer().to_string();
        if self.send(&self.wait(peer, &name), RemoteRequest::Leave).await.is_ok() {
            self.transport.wait_sent().await;
        }
    }
}

impl<H: Host> Runtime<'_, H> {
    /// Asks the daemon behind a link, through its restarts, until the deadline.
    pub async fn daemon_call(
        &mut self,
        id: LinkId,
        request: Request,
        deadline: H::Instant,
    ) -> Result<Reply> {
        match &self.links[id.0 as usize] {
            Link::Local(_) => self.local_call(id, request, deadline).await,
            Link::Remote(_) => self.remote_call(id, request, deadline).await,
        }
    }

    async fn remote_call(
        &mut self,
        id: LinkId,
        request: Request,
        deadline: H::Instant,
    ) -> Result<Reply> {
        let rack = self.client.rack_of(id);
        self.note_closed();
        let (is_access, losses) = (request.is_access(), self.losses.count());
        if self.links[id.0 as usize].peer().is_none() {
            self.connect(rack, deadline).await?;
        }
        if is_access && self.losses.count() != losses {
            return Err(self.losses.told());
        }
        let started = self.host.transport().now();
        self.remote(id).session.begin(request);
        loop {
            let link = self.links[id.0 as usize].remote_mut().expect("links keep their kind");
            if let Some(reply) = link.over(self.host.transport(), deadline).call(started).await {
                return reply;
            }
            // The connection was lost: a new one knows the session or not.
            if let Err(error) = self.connect(rack, deadline).await {
                return Err(self.remote(id).session.give_up(error));
            }
            if is_access && self.losses.count() != losses {
                let lost = self.losses.last();
                let error = self.remote(id).session.give_up(lost);
                return Err(self.losses.ended(error));
            }
            if let Some(ended) = self.remote(id).session.rejoined() {
                return ended;
            }
            let left_ms = locks::wait_left_ms(self.host.transport(), deadline);
            self.remote(id).session.shorten_wait(left_ms);
        }
    }

    fn remote(&mut self, id: LinkId) -> &mut RemoteLink<<H::Transport as Transport>::Buffer> {
        self.links[id.0 as usize].remote_mut().expect("only called for links over the fabric")
    }
}

/// The connection is the handle's, or a shared endpoint sets the channel.
fn unrouted(message: RemoteRequest) -> LinkMessage {
    Routed { channel: 0, message }
}

fn dead(peer: &str) -> Error {
    Error::PeerDead { peer: peer.into(), cause: DeathCause::Closed }
}

/// Waits for a message that `take` takes.
async fn answer<T: Transport, R>(
    transport: &mut T,
    wait: &Wait<'_, T::Instant>,
    mut take: impl FnMut(RemoteReply) -> Option<Result<R>>,
) -> Result<R> {
    loop {
        while let Some(message) = transport.take_message(wait.peer) {
            let reply = wire::decode::<Routed<RemoteReply>>(&message, wait.name)?.message;
            if let Some(result) = take(reply) {
                return result;
            }
        }
        transport.wait(wait).await?;
    }
}
