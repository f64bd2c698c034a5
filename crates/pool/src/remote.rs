//! A handle's link to a daemon that is reached over the fabric: one-sided operations are posted
//! by the handle itself; this holds the connection and the session for requests by SEND.

use crate::clock;
use crate::links::{Inbox, fabric_error, require_same};
use crate::local::new_session;
use rackpool_core::client::{LinkLoss, Session, Taken};
use rackpool_core::coherence::Coherence;
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::error::DeathCause;
use rackpool_core::layout::RegionLayout;
use rackpool_core::rrpc::CALLS_MAX;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, Sge, Verb, WorkRequest};
use rackpool_core::wire::{
    self, RackInfo, RegionInfo, RemoteReply, RemoteRequest, Reply, ReplyFrame, Request, Routed,
};
use rackpool_core::{Error, GAddr, PageGeometry, Result};
use rackpool_hw::fabric::{Endpoint, LocalBuffers};

/// The link; see the module.
pub(crate) struct RemoteLink {
    session: Session,
    peer: Option<PeerId>,
    region: RegionInfo,
    /// Locks that the daemon says are lost; `None` for all.
    lost: Option<Vec<u64>>,
    buffer: BufId,
    started_ns: u64,
}

/// What was answered to several requests.
struct Answers {
    /// In the order of the requests, with the number of each.
    replies: Vec<(u64, Option<Result<Reply>>)>,
    /// Answers that are still to come.
    left: usize,
}

impl Answers {
    /// Takes an answer; whether it was the last one.
    fn take(&mut self, frame: ReplyFrame) -> bool {
        let asked = self.replies.iter_mut().find(|(seq, _)| *seq == frame.seq);
        if let Some((_, reply @ None)) = asked {
            *reply = Some(frame.reply);
            self.left -= 1;
        }
        self.left == 0
    }
}

/// Id of the work requests that carry messages; their completions are not looked at.
const SEND_ID: u64 = u64::MAX;

impl RemoteLink {
    /// Connects to a rack's fabric endpoint and joins its daemon.
    pub(crate) fn connect(
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        info: &RackInfo,
        deadline_ns: u64,
    ) -> Result<Self> {
        let peer = format!("daemon of rack {}", info.rack);
        let session = Session::over_fabric(peer, new_session()?);
        let buffer =
            endpoint.register(vec![0; MESSAGE_BYTES_MAX as usize]).map_err(fabric_error)?;
        let mut link = Self {
            session,
            peer: None,
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
            lost: None,
            buffer,
            started_ns: clock::now_ns(),
        };
        match link.reconnect(endpoint, inbox, info, Vec::new(), deadline_ns) {
            Ok(()) => Ok(link),
            Err(error) => {
                endpoint.take(buffer);
                Err(error)
            }
        }
    }

    /// The connection, if it is up.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.peer
    }

    pub(crate) fn region(&self) -> &RegionInfo {
        &self.region
    }

    pub(crate) fn layout(&self) -> RegionLayout {
        let pages = PageGeometry::new(self.region.page_shift);
        RegionLayout {
            pages: pages.expect("checked when the daemon's welcome came"),
            frame_count: self.region.frame_count,
        }
    }

    /// Which locks the last reconnect has shown to be lost; `None` for all.
    pub(crate) fn lost_locks(&self) -> Option<&[u64]> {
        self.lost.as_deref()
    }

    /// What waits at the daemon is sent again, to wait until a while before `deadline_ns`.
    pub(crate) fn shorten_wait(&mut self, deadline_ns: u64) {
        self.session.shorten_wait(crate::locks::wait_left_ms(deadline_ns));
    }

    pub(crate) fn on_closed(&mut self, peer: PeerId) {
        if self.peer == Some(peer) {
            self.peer = None;
        }
    }

    /// Connects anew and says which session this is and which locks it holds.
    pub(crate) fn reconnect(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        info: &RackInfo,
        locks: Vec<(GAddr, u64)>,
        deadline_ns: u64,
    ) -> Result<()> {
        let name = self.session.peer().to_string();
        if let Some(old) = self.peer.take() {
            endpoint.close(old);
        }
        let peer = connect(endpoint, info)?;
        self.wait(endpoint, inbox, peer, deadline_ns, |event| match event {
            FabricEvent::Connected { .. } => Some(Ok(())),
            _ => None,
        })?;
        let fresh = new_session()?;
        let join = self.session.join(std::process::id(), locks);
        self.send(endpoint, peer, &join)?;
        let (known, lost, region) = self.wait(endpoint, inbox, peer, deadline_ns, |event| {
            let FabricEvent::Received { message, .. } = event else { return None };
            match decode(message, &name) {
                Ok(RemoteReply::Joined { known, lost, region }) => Some(Ok((known, lost, region))),
                Ok(RemoteReply::Refused(error)) | Err(error) => Some(Err(error)),
                Ok(_) => None,
            }
        })?;
        if PageGeometry::new(region.page_shift).is_none() {
            return Err(Error::Protocol { peer: name, reason: "a page size".into() });
        }
        endpoint.set_emulated_delay(region.emulate_rdma_ns);
        self.peer = Some(peer);
        self.session.joined(known, fresh);
        self.lost = known.then_some(lost);
        self.region = region;
        Ok(())
    }

    fn send(
        &mut self,
        endpoint: &mut Endpoint,
        peer: PeerId,
        message: &RemoteRequest,
    ) -> Result<()> {
        // The connection is the handle's, or the shared endpoint sets the channel of the message.
        let message = Routed { channel: 0, message };
        let bytes = wire::encode(&message, endpoint.buffer_mut(self.buffer))?.len() as u64;
        let sge = [Sge { buf: self.buffer, offset: 0, bytes }];
        let request = WorkRequest { id: SEND_ID, verb: Verb::Send, local: &sge, signalled: false };
        endpoint.post(peer, &[request]).map_err(|_| Error::PeerDead {
            peer: self.session.peer().into(),
            cause: DeathCause::Closed,
        })
    }

    /// Waits for an event of `peer` that `pick` takes. Completions and ends of connections that
    /// came along stay in `events`: a transfer may be in the midst of them.
    fn wait<T>(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        peer: PeerId,
        deadline_ns: u64,
        mut pick: impl FnMut(&FabricEvent) -> Option<Result<T>>,
    ) -> Result<T> {
        let started_ns = clock::now_ns();
        loop {
            endpoint.wait(deadline_ns, &mut inbox.events);
            let mut result = None;
            inbox.sort(|event| match event {
                FabricEvent::Closed { peer: of, cause } if *of == peer && result.is_none() => {
                    result = Some(Err(Error::of_death(self.session.peer(), *cause)));
                }
                FabricEvent::Connected { peer: of } | FabricEvent::Received { peer: of, .. }
                    if *of == peer && result.is_none() =>
                {
                    result = pick(event);
                }
                _ => {}
            });
            if let Some(result) = result {
                return result;
            }
            let now_ns = clock::now_ns();
            if now_ns >= deadline_ns {
                let peer = self.session.peer().into();
                let waited_ms = (now_ns - started_ns) / 1_000_000;
                return Err(Error::Timeout { peer, waited_ms });
            }
        }
    }

    /// Starts a request; [`RemoteLink::call`] sends it.
    pub(crate) fn begin(&mut self, request: Request) {
        self.started_ns = clock::now_ns();
        self.session.begin(request);
    }

    /// Sends the request under way and waits for its answer. `None` if the connection was lost:
    /// reconnect, then ask [`RemoteLink::resumed`] whether to call again.
    pub(crate) fn call(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        deadline_ns: u64,
    ) -> Option<Result<Reply>> {
        let peer = self.peer?;
        let frame = self.session.under_way().expect("a request was begun").clone();
        let seq = frame.seq;
        let name = self.session.peer().to_string();
        if self.send(endpoint, peer, &RemoteRequest::Request(frame)).is_err() {
            self.peer = None;
            return None;
        }
        let reply = self.wait(endpoint, inbox, peer, deadline_ns, |event| {
            let FabricEvent::Received { message, .. } = event else { return None };
            match decode(message, &name) {
                Ok(RemoteReply::Reply(frame)) if frame.seq == seq => Some(Ok(frame)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            }
        });
        match reply {
            Ok(frame) => {
                match self.session.on_remote_reply(frame).expect("the number was compared") {
                    Taken::Done(reply) => Some(reply),
                    Taken::Confirm(seq) => self.confirm(endpoint, inbox, peer, seq, deadline_ns),
                }
            }
            Err(Error::PeerDead { .. }) => {
                self.peer = None;
                None
            }
            Err(Error::Timeout { .. }) => Some(self.time_up()),
            Err(error) => Some(Err(self.session.give_up(error))),
        }
    }

    /// Sends requests that repeat without harm, as many under one doorbell as the buffer holds, and
    /// waits for their answers. What has none when the connection ends or time is up ends with
    /// that.
    pub(crate) fn call_many(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        requests: Vec<Request>,
        deadline_ns: u64,
    ) -> Vec<Result<Reply>> {
        let count = requests.len();
        let mut answers = Answers { replies: Vec::with_capacity(count), left: 0 };
        let mut requests = requests.into_iter().peekable();
        let mut failed = None;
        while failed.is_none() && requests.peek().is_some() {
            let sent = self.send_many(endpoint, &mut requests, &mut answers);
            failed = sent
                .and_then(|peer| self.gather(endpoint, inbox, peer, &mut answers, deadline_ns))
                .err();
        }
        if matches!(failed, Some(Error::PeerDead { .. })) {
            self.peer = None;
        }
        let error = || failed.clone().expect("without an error all were answered");
        let mut replies: Vec<_> = answers
            .replies
            .into_iter()
            .map(|(_, reply)| reply.unwrap_or_else(|| Err(error())))
            .collect();
        replies.resize_with(count, || Err(error()));
        replies
    }

    /// Sends the next requests under one doorbell.
    fn send_many(
        &mut self,
        endpoint: &mut Endpoint,
        requests: &mut std::iter::Peekable<std::vec::IntoIter<Request>>,
        answers: &mut Answers,
    ) -> Result<PeerId> {
        let name = self.session.peer().to_string();
        let dead = || Error::PeerDead { peer: name.clone(), cause: DeathCause::Closed };
        let peer = self.peer.ok_or_else(dead)?;
        let (mut pieces, mut used) = (Vec::new(), 0);
        while let Some(request) = requests.peek().filter(|_| pieces.len() < CALLS_MAX) {
            let frame = self.session.aside(request.clone());
            let seq = frame.seq;
            let free = &mut endpoint.buffer_mut(self.buffer)[used as usize..];
            let bytes = match wire::encode(
                &Routed { channel: 0, message: RemoteRequest::Request(frame) },
                free,
            ) {
                Ok(encoded) => encoded.len() as u64,
                Err(error) if pieces.is_empty() => return Err(error),
                Err(_) => break,
            };
            answers.replies.push((seq, None));
            pieces.push([Sge { buf: self.buffer, offset: used, bytes }]);
            used += bytes;
            requests.next();
        }
        answers.left = pieces.len();
        let work = |local| WorkRequest { id: SEND_ID, verb: Verb::Send, local, signalled: false };
        let batch: Vec<_> = pieces.iter().map(|piece| work(&piece[..])).collect();
        endpoint.post(peer, &batch).map_err(|_| dead())?;
        Ok(peer)
    }

    /// Waits for the answers to all that was sent.
    fn gather(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        peer: PeerId,
        answers: &mut Answers,
        deadline_ns: u64,
    ) -> Result<()> {
        let name = self.session.peer().to_string();
        self.wait(endpoint, inbox, peer, deadline_ns, |event| {
            let FabricEvent::Received { message, .. } = event else { return None };
            match decode(message, &name) {
                Ok(RemoteReply::Reply(frame)) => answers.take(frame).then_some(Ok(())),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// Says that the answer to an allocation was taken, and waits until the daemon has stored it:
    /// no daemon ever takes for abandoned what another client may have learnt of by now. If the
    /// connection breaks first, the next join says it.
    fn confirm(
        &mut self,
        endpoint: &mut Endpoint,
        inbox: &mut Inbox,
        peer: PeerId,
        seq: u64,
        deadline_ns: u64,
    ) -> Option<Result<Reply>> {
        let name = self.session.peer().to_string();
        let sent = self.send(endpoint, peer, &RemoteRequest::Consumed(seq));
        let known = sent.and_then(|()| {
            self.wait(endpoint, inbox, peer, deadline_ns, |event| {
                let FabricEvent::Received { message, .. } = event else { return None };
                match decode(message, &name) {
                    Ok(RemoteReply::Consumed(known)) if known == seq => Some(Ok(())),
                    Ok(_) => None,
                    Err(error) => Some(Err(error)),
                }
            })
        });
        match known {
            Ok(()) => self.session.confirmed().map(Ok),
            Err(Error::Timeout { .. }) => {
                // Whether it was stored cannot be told: the next join says what was taken.
                endpoint.close(peer);
                self.peer = None;
                Some(self.time_up())
            }
            Err(_) => {
                endpoint.close(peer);
                self.peer = None;
                None
            }
        }
    }

    fn time_up(&mut self) -> Result<Reply> {
        let waited_ms = (clock::now_ns() - self.started_ns) / 1_000_000;
        self.session.on_loss(LinkLoss::TimeUp { waited_ms }).expect("time up ends a request")
    }

    /// Says that this session is over. What cannot be sent at once is not worth waiting for: the
    /// daemon notices by itself.
    pub(crate) fn leave(&mut self, endpoint: &mut Endpoint) {
        if let Some(peer) = self.peer.take() {
            let _ = self.send(endpoint, peer, &RemoteRequest::Leave);
        }
    }

    /// After a reconnect: `None` says call again, else the request ended with this.
    pub(crate) fn resumed(&mut self) -> Option<Result<Reply>> {
        self.session.rejoined()
    }

    /// The rack could not be reached again: how the request under way ends.
    pub(crate) fn give_up(&mut self, error: Error) -> Error {
        self.session.give_up(error)
    }
}

/// Begins a connection: one of the endpoint's own, a part of a shared one, or one through the own
/// rack's daemon.
fn connect(endpoint: &mut Endpoint, info: &RackInfo) -> Result<PeerId> {
    require_same(endpoint, info)?;
    let addr = info.fabric_addr.parse().map_err(|_| Error::Protocol {
        peer: "master".into(),
        reason: format!("fabric address `{}`", info.fabric_addr),
    })?;
    endpoint.connect(info.rack, addr, clock::now_ns()).map_err(fabric_error)
}

fn decode(message: &[u8], peer: &str) -> Result<RemoteReply> {
    wire::decode::<Routed<RemoteReply>>(message, peer).map(|routed| routed.message)
}
