//! A client handle: the client engine with its links, driven in virtual time. Its calls are
//! `async`; a process that runs on its own stack can make them blocking.
//!
//! What a lost link means, when a request is repeated and when its outcome is unknown is decided
//! by the engine ([`Session`]); here is who is asked next, and until when.

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, Message};
use super::master::{MasterLink, unexpected};
use super::rack::Rack;
use crate::mem::SimMem;
use crate::net::EndpointId;
use crate::time::Ps;
use rackpool_core::client::{
    Access, Alloc, Atomic, AtomicOp, Client, Free, Io, LinkId, LinkLoss, Need, OWN, Operation,
    Piece, Placement, RackView, Reach, Session, Step, Transfer, TransferTables,
};
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::error::DeathCause;
use rackpool_core::layout::{RING_BYTES, SLOT_REPLY_RING, SLOT_REQUEST_RING, SlotWord};
use rackpool_core::seam::{
    BufId, FabricEvent, Mem, PeerId, PostError, Sge, WorkRequest, WorkStatus,
};
use rackpool_core::wire::{
    self, ControlHello, ControlReply, MasterAnswer, MasterCall, RackInfo, RegionInfo, RemoteReply,
    RemoteRequest, Reply, ReplyFrame, Request, WIRE_VERSION,
};
use rackpool_core::{Error, GAddr, PageGeometry, RackId, Result, SessionId};
use rackpool_hw::ring::{Consumer, Producer};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Longest pause between two tries to reach a daemon that is gone.
const RETRY_PAUSE_MAX: Ps = Ps::ms(50);
/// How long is waited for a daemon to hear that a handle leaves: it notices by itself, later.
const LEAVE_MAX: Ps = Ps::ms(5);
/// Nearly all requests are shorter.
const MESSAGE_BYTES_USUAL: usize = 64;
/// How long after a bell the ring is looked at again.
const RING_LOOK: Ps = Ps::us(1);
/// Marks the ids of atomics, apart from those of transfers and messages.
const ATOMIC_ID: u64 = 1 << 63;

struct LocalLink {
    rack: Rc<Rack>,
    conn: Option<ConnId>,
    session_id: SessionId,
    session: Session,
    slot: u32,
    region_id: [u64; 2],
    view: RackView<SimMem>,
    producer: Producer<SimMem>,
    consumer: Consumer<SimMem>,
}

struct RemoteLink {
    peer: Option<PeerId>,
    session_id: SessionId,
    session: Session,
    consumed_seq: u64,
    known: bool,
    region: RegionInfo,
}

enum Link {
    Local(Box<LocalLink>),
    Remote(Box<RemoteLink>),
}

/// What came and was not asked for yet.
#[derive(Default)]
struct Inbox {
    controls: Vec<(ConnId, ControlReply)>,
    answers: Vec<(u64, Result<MasterAnswer>)>,
    messages: VecDeque<(PeerId, Vec<u8>)>,
    connected: Vec<PeerId>,
    closed_conns: Vec<ConnId>,
    /// Racks whose answer may be in the ring.
    rung: Vec<u32>,
    closed_peers: Vec<PeerId>,
    completions: Vec<(u64, WorkStatus)>,
    /// A message whose completion is waited for.
    awaited: Option<u64>,
    told: Vec<u64>,
}

/// How a handle reaches other racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Their memory is mapped (fabric `shm`).
    Mapped,
    /// One-sided operations.
    OneSided,
}

/// The handle.
pub struct SimHandle {
    /// Its process.
    pub ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: RackId,
    path: Path,
    client: Client<SimMem>,
    links: Vec<Link>,
    master: MasterLink,
    endpoint: EndpointId,
    inbox: Inbox,
    /// `None` while a transfer uses them.
    tables: Option<Box<TransferTables>>,
    round: u64,
    spare: Spare,
    completions: Vec<(u64, WorkStatus)>,
    /// How long a call rides through the restart of a peer.
    pub timeout: Ps,
    /// Requests sent to daemons, and calls to the master.
    pub sent: (u64, u64),
}

impl SimHandle {
    /// Joins the own rack's daemon, waiting for it until the time is up.
    pub async fn open(
        ctx: Ctx,
        cluster: Rc<Cluster>,
        rack: RackId,
        path: Path,
        translations: u32,
    ) -> Result<SimHandle> {
        let endpoint = cluster.add_endpoint(&ctx, ctx.id);
        let session = cluster.new_session();
        let mut master = MasterLink::new(MasterCall::JoinClient { session, rack });
        master.connect(&ctx, &cluster);
        let mut inbox = Inbox::default();
        let timeout = cluster.request_timeout;
        let deadline = ctx.now() + timeout;
        let home = cluster.racks[usize::from(rack.0)].clone();
        let join =
            Join { ctx: ctx.clone(), endpoint, cluster: cluster.clone(), rack: home, deadline };
        let link = join.until(&mut inbox, &mut master, cluster.new_session(), None).await?;
        let client = Client::new(rack, Reach::Mapped(link.view.clone()), translations);
        Ok(SimHandle {
            client,
            links: vec![Link::Local(Box::new(link))],
            master,
            endpoint,
            inbox,
            tables: Some(Box::default()),
            round: 0,
            spare: Spare::default(),
            completions: Vec::new(),
            timeout,
            sent: (0, 0),
            ctx,
            cluster,
            rack,
            path,
        })
    }

    /// The handle's rack.
    pub fn rack(&self) -> RackId {
        self.rack
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.client.geometry().page_bytes()
    }

    /// The sessions with daemons.
    pub fn session_ids(&self) -> Vec<u64> {
        let id = |link: &Link| match link {
            Link::Local(link) => link.session_id.0,
            Link::Remote(link) => link.session_id.0,
        };
        self.links.iter().map(id).collect()
    }

    /// The engine.
    pub fn client(&self) -> &Client<SimMem> {
        &self.client
    }

    /// Forgets where the page at `addr` lives, so that the next access is a first touch.
    pub fn forget(&mut self, addr: GAddr) {
        let page = self.client.geometry().page(addr);
        self.client.forget(page);
    }

    /// Racks that it has links to, its own among them.
    pub fn link_count(&self) -> u64 {
        self.links.len() as u64
    }

    /// Reads `to.len()` bytes at `addr`.
    pub async fn read(&mut self, addr: GAddr, to: &mut [u8]) -> Result<()> {
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        if self.client.read_warm(addr, to).is_ok() {
            return Ok(());
        }
        self.client.check(addr, to.len() as u64)?;
        let pieces = [Piece { addr, bytes: to.len() as u64 }];
        self.transfer(Access::Read, &pieces, Local::Into(to)).await
    }

    /// Writes `from` at `addr`.
    pub async fn write(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        if self.client.write_warm(addr, from).is_ok() {
            return Ok(());
        }
        self.client.check(addr, from.len() as u64)?;
        let pieces = [Piece { addr, bytes: from.len() as u64 }];
        self.transfer(Access::Write, &pieces, Local::From(from)).await
    }

    /// Reads an aligned word.
    pub async fn read_u64(&mut self, addr: GAddr) -> Result<u64> {
        self.client.check_atomic(addr)?;
        if let Ok(value) = self.client.load_warm(addr) {
            self.ctx.cpu.charge(self.cluster.costs.client_submit);
            return Ok(value);
        }
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes).await?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an aligned word.
    pub async fn write_u64(&mut self, addr: GAddr, value: u64) -> Result<()> {
        self.client.check_atomic(addr)?;
        match self.client.store_warm(addr, value) {
            Ok(()) => {
                self.ctx.cpu.charge(self.cluster.costs.client_submit);
                Ok(())
            }
            Err(_) => self.write(addr, &value.to_le_bytes()).await,
        }
    }

    /// Compares and swaps an aligned word. Inner `Err` carries the value that was there.
    pub async fn cas(
        &mut self,
        addr: GAddr,
        expected: u64,
        new: u64,
    ) -> Result<std::result::Result<u64, u64>> {
        self.client.check_atomic(addr)?;
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        if let Ok(result) = self.client.cas_warm(addr, expected, new) {
            return Ok(result);
        }
        let old = self.atomic(addr, AtomicOp::Cas { expected, new }).await?;
        Ok(if old == expected { Ok(old) } else { Err(old) })
    }

    /// Adds to an aligned word; the value before.
    pub async fn fetch_add(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        self.client.check_atomic(addr)?;
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        match self.client.fetch_add_warm(addr, n) {
            Ok(old) => Ok(old),
            Err(_) => self.atomic(addr, AtomicOp::FetchAdd { n }).await,
        }
    }

    async fn atomic(&mut self, addr: GAddr, op: AtomicOp) -> Result<u64> {
        self.round += 1;
        let mut op = Atomic::new(addr, op, ATOMIC_ID | self.round);
        self.drive(&mut op, Local::None).await
    }

    /// Allocates zeroed memory.
    pub async fn alloc(&mut self, bytes: u64, placement: Placement, owned: bool) -> Result<GAddr> {
        let mut op = Alloc::new(&self.client, bytes, placement, owned);
        self.drive(&mut op, Local::None).await
    }

    /// Frees an allocation.
    pub async fn free(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        self.client.check(addr, bytes)?;
        self.drive(&mut Free::new(addr, bytes), Local::None).await
    }

    /// The address under a name.
    pub async fn root(&mut self, name: &str) -> Result<Option<GAddr>> {
        let deadline = self.ctx.now() + self.timeout;
        match self.master_call(MasterCall::GetRoot { name: name.into() }, deadline).await? {
            MasterAnswer::Root(addr) => Ok((!addr.is_null()).then_some(addr)),
            other => unexpected(&other),
        }
    }

    /// Sets the address under a name if it is `expected` now.
    pub async fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> Result<GAddr> {
        let deadline = self.ctx.now() + self.timeout;
        let call = MasterCall::SetRoot { name: name.into(), expected, addr };
        match self.master_call(call, deadline).await? {
            MasterAnswer::Root(addr) => Ok(addr),
            other => unexpected(&other),
        }
    }

    /// Asks the own rack's daemon something.
    pub async fn ask(&mut self, request: Request) -> Result<Reply> {
        let deadline = self.ctx.now() + self.timeout;
        self.daemon_call(OWN, request, deadline).await
    }

    /// Leaves: daemons over the fabric are told, connections close.
    pub async fn leave(mut self) {
        for index in 0..self.links.len() {
            match &mut self.links[index] {
                Link::Local(link) => {
                    if let Some(conn) = link.conn.take() {
                        link.view.slot.store(SlotWord::Left as u64, 1);
                        self.ctx.close(conn);
                    }
                }
                Link::Remote(link) => {
                    if let Some(peer) = link.peer.take() {
                        let soon = self.ctx.now() + LEAVE_MAX;
                        self.send_surely(peer, &RemoteRequest::Leave, soon).await;
                    }
                }
            }
        }
    }

    async fn transfer(&mut self, access: Access, pieces: &[Piece], local: Local<'_>) -> Result<()> {
        if self.cluster.registration_fails() {
            return Err(Error::Busy { what: "fabric buffers".into(), limit: 0 });
        }
        self.round += 1;
        // A transfer whose process died here took its tables with it.
        let mut tables = self.tables.take().unwrap_or_default();
        let mut op = Transfer::new(&mut tables, self.round, access, pieces);
        let result = self.drive(&mut op, local).await;
        self.tables = Some(tables);
        result
    }

    /// Runs one operation to its end, or to the deadline with a typed error.
    async fn drive<O: Operation<SimMem>>(
        &mut self,
        op: &mut O,
        local: Local<'_>,
    ) -> Result<O::Output> {
        // Whoever was ahead of the world acts on others in the order of time.
        self.ctx.sync(Ps::ZERO).await;
        let (mut ranges, posted) = std::mem::take(&mut self.spare);
        ranges.clear();
        let (lent, ranges) = (Cell::new(None), RefCell::new(ranges));
        let mut buffers = Buffers { local, lent, ranges, posted };
        let result = self.drive_with(op, &mut buffers).await;
        if result.is_err() {
            // Nothing that is still under way may read from the buffer after this.
            let posted = std::mem::take(&mut buffers.posted);
            posted.into_iter().for_each(|peer| self.ctx.close_peer(self.endpoint, peer));
        }
        self.spare = buffers.end(&self.cluster, self.endpoint);
        result
    }

    async fn drive_with<O: Operation<SimMem>>(
        &mut self,
        op: &mut O,
        buffers: &mut Buffers<'_>,
    ) -> Result<O::Output> {
        let deadline = self.ctx.now() + self.timeout;
        loop {
            self.ctx.cpu.charge(self.cluster.costs.client_step);
            let mut io = SimIo {
                ctx: &self.ctx,
                cluster: &self.cluster,
                endpoint: self.endpoint,
                links: &self.links,
                buffers,
            };
            match op.step(&mut self.client, &mut io)? {
                Step::Done(output) => return Ok(output),
                Step::Need(Need::Link(rack)) => {
                    // Boxed, as it is rare and large.
                    Box::pin(self.connect(rack, deadline)).await?;
                }
                Step::Need(Need::Master(call)) => {
                    let answer = self.master_call(call, deadline).await;
                    op.on_master(&mut self.client, answer)?;
                }
                Step::Need(Need::Daemon(link, request)) => {
                    let reply = self.daemon_call(link, request, deadline).await;
                    op.on_reply(&mut self.client, reply)?;
                }
                Step::Need(Need::Completions) => {
                    let in_time = self.wait_completions(deadline).await;
                    let mut result = Ok(());
                    std::mem::swap(&mut self.completions, &mut self.inbox.completions);
                    for (id, status) in self.completions.drain(..) {
                        self.ctx.cpu.charge(self.cluster.costs.client_completion);
                        result = result.and(op.on_completion(&mut self.client, id, status));
                    }
                    result?;
                    if !in_time {
                        return Err(op.on_deadline(self.timeout.as_ns() / 1_000_000));
                    }
                }
            }
        }
    }

    /// Takes the next input and sorts it; `false` when the time is up.
    async fn turn(&mut self, until: Ps) -> bool {
        let due = self.master.due().unwrap_or(Ps(u64::MAX));
        match self.ctx.recv(Some(until.min(due))).await {
            Some(input) => {
                let at = (&self.ctx, self.endpoint);
                sort(at, &mut self.master, &mut self.inbox, input);
                true
            }
            None => {
                self.master.connect(&self.ctx, &self.cluster);
                self.ctx.now() < until
            }
        }
    }

    /// Waits for something that the cluster tells this process.
    pub async fn told(&mut self, until: Ps) -> Option<u64> {
        loop {
            if !self.inbox.told.is_empty() {
                return Some(self.inbox.told.remove(0));
            }
            if !self.turn(until).await {
                return None;
            }
        }
    }

    async fn wait_completions(&mut self, deadline: Ps) -> bool {
        loop {
            self.note_closed();
            if !self.inbox.completions.is_empty() {
                return true;
            }
            if !self.turn(deadline).await {
                return false;
            }
        }
    }

    fn note_closed(&mut self) {
        for peer in std::mem::take(&mut self.inbox.closed_peers) {
            for link in &mut self.links {
                if let Link::Remote(link) = link
                    && link.peer == Some(peer)
                {
                    link.peer = None;
                }
            }
        }
    }

    /// Asks the master, through its restarts, until the deadline.
    async fn master_call(&mut self, call: MasterCall, deadline: Ps) -> Result<MasterAnswer> {
        self.sent.1 += 1;
        call_master(
            (&self.ctx, self.endpoint, &self.cluster),
            (&mut self.master, &mut self.inbox),
            call,
            deadline,
        )
        .await
    }

    async fn wait_for_rack(&mut self, rack: RackId, deadline: Ps) -> Result<RackInfo> {
        let mut pause = Ps::ms(1);
        loop {
            let racks = match self.master_call(MasterCall::Racks, deadline).await? {
                MasterAnswer::Racks(racks) => racks,
                other => return unexpected(&other),
            };
            match racks.into_iter().find(|info| info.rack == rack) {
                None => return Err(Error::NoSuchRack { rack }),
                Some(info) if info.alive => return Ok(info),
                Some(_) if self.ctx.now() >= deadline => {
                    let peer = format!("daemon of rack {rack}");
                    return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
                }
                Some(_) => {}
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    /// Connects, or connects again, the link to a rack.
    async fn connect(&mut self, rack: RackId, deadline: Ps) -> Result<()> {
        let mut pause = Ps::ms(1);
        loop {
            let info = self.wait_for_rack(rack, deadline).await?;
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
                if remote.region.region_id != region {
                    self.client.forget_link(id);
                }
                self.client.add_link(info.rack, Reach::OneSided(layout))?;
            }
            return Ok(());
        }
        let rack = self.cluster.racks[usize::from(info.rack.0)].clone();
        if self.path == Path::Mapped {
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
            session_id: self.cluster.new_session(),
            session: Session::new(format!("daemon of rack {}", info.rack)),
            consumed_seq: 0,
            known: false,
            region: RegionInfo {
                rack: info.rack,
                region_id: info.region_id,
                epoch: 0,
                page_shift: info.page_shift,
                frame_count: info.frame_count,
                emulate_cxl_ns: 0,
                emulate_rdma_ns: 0,
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

    fn join(&self, rack: &Rc<Rack>, deadline: Ps) -> Join {
        Join {
            ctx: self.ctx.clone(),
            endpoint: self.endpoint,
            cluster: self.cluster.clone(),
            rack: rack.clone(),
            deadline,
        }
    }

    fn remote(&mut self, id: LinkId) -> &mut RemoteLink {
        match &mut self.links[id.0 as usize] {
            Link::Remote(link) => link,
            Link::Local(_) => unreachable!("only called for links over the fabric"),
        }
    }

    /// Connects a remote link anew and says which session it is.
    async fn reconnect(&mut self, id: LinkId, deadline: Ps) -> Result<()> {
        let rack = self.remote(id).region.rack;
        if let Some(old) = self.remote(id).peer.take() {
            self.ctx.close_peer(self.endpoint, old);
        }
        let home = self.cluster.racks[usize::from(rack.0)].clone();
        let peer = self.ctx.connect_peer(self.endpoint, home.endpoint.get());
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
        let link = self.remote(id);
        let join = RemoteRequest::Join {
            version: WIRE_VERSION,
            session: link.session_id,
            consumed_seq: link.consumed_seq,
            pid,
            locks: Vec::new(),
        };
        if self.send_remote(peer, &join).is_err() {
            return Err(Error::PeerDead { peer: name, cause: DeathCause::Closed });
        }
        loop {
            while let Some(message) = self.take_message(peer) {
                match wire::decode::<RemoteReply>(&message, &name)? {
                    RemoteReply::Joined { known, region, .. } => {
                        let link = self.remote(id);
                        link.peer = Some(peer);
                        link.known = known;
                        link.region = region;
                        return Ok(());
                    }
                    RemoteReply::Refused(error) => return Err(error),
                    RemoteReply::Reply(_) => {}
                }
            }
            self.step_of(peer, &name, deadline).await?;
        }
    }

    fn take_message(&mut self, peer: PeerId) -> Option<Vec<u8>> {
        let at = self.inbox.messages.iter().position(|(of, _)| *of == peer)?;
        self.inbox.messages.remove(at).map(|(_, message)| message)
    }

    /// Waits for the next input; an error if the connection is closed or the time is up.
    async fn step_of(&mut self, peer: PeerId, name: &str, deadline: Ps) -> Result<()> {
        if self.inbox.closed_peers.contains(&peer) {
            return Err(Error::PeerDead { peer: name.into(), cause: DeathCause::Closed });
        }
        if !self.turn(deadline).await {
            let waited_ms = self.timeout.as_ns() / 1_000_000;
            return Err(Error::Timeout { peer: name.into(), waited_ms });
        }
        Ok(())
    }

    fn send_remote(&mut self, peer: PeerId, message: &RemoteRequest) -> Result<u64, PostError> {
        let bytes = wire::encode_vec(message);
        self.sent.0 += u64::from(matches!(message, RemoteRequest::Request(_)));
        self.ctx.send_message(self.endpoint, peer, bytes)
    }

    async fn daemon_call(&mut self, link: LinkId, request: Request, deadline: Ps) -> Result<Reply> {
        match &self.links[link.0 as usize] {
            Link::Local(_) => self.local_call(link, request, deadline).await,
            Link::Remote(_) => Box::pin(self.remote_call(link, request, deadline)).await,
        }
    }

    async fn remote_call(&mut self, id: LinkId, request: Request, deadline: Ps) -> Result<Reply> {
        let rack = self.client.rack_of(id);
        self.note_closed();
        if self.remote(id).peer.is_none() {
            self.connect(rack, deadline).await?;
        }
        let started = self.ctx.now();
        self.remote(id).session.begin(request);
        loop {
            match self.remote_try(id, started, deadline).await {
                Some(reply) => return reply,
                None => {
                    self.remote(id).peer = None;
                    if let Err(error) = self.connect(rack, deadline).await {
                        return Err(self.give_up(id, error));
                    }
                    let link = self.remote(id);
                    let loss =
                        if link.known { LinkLoss::Resumed } else { LinkLoss::SessionForgotten };
                    if let Some(error) = link.session.on_loss(loss) {
                        return Err(error);
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
                match wire::decode::<RemoteReply>(&message, &name) {
                    Ok(RemoteReply::Reply(frame)) if frame.seq == seq => {
                        return Some(self.take_remote(id, frame, deadline).await);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        self.remote(id).session.abandon_unsent();
                        return Some(Err(error));
                    }
                }
            }
            match self.step_of(peer, &name, deadline).await {
                Ok(()) => {}
                Err(Error::PeerDead { .. }) => return None,
                Err(_) => {
                    let waited_ms = (self.ctx.now() - started).as_ns() / 1_000_000;
                    let link = self.remote(id);
                    let error = link.session.on_loss(LinkLoss::TimeUp { waited_ms });
                    return Some(Err(error.expect("time up ends a request")));
                }
            }
        }
    }

    async fn take_remote(&mut self, id: LinkId, frame: ReplyFrame, deadline: Ps) -> Result<Reply> {
        let seq = frame.seq;
        let link = self.remote(id);
        let reply = link.session.on_reply(frame).expect("the sequence number was compared");
        if matches!(reply, Ok(Reply::Allocated { .. })) {
            link.consumed_seq = seq;
            if let Some(peer) = link.peer {
                // It is there before the caller learns of the memory; if the connection breaks
                // first, the next join says it.
                self.send_surely(peer, &RemoteRequest::Consumed(seq), deadline).await;
            }
        }
        reply
    }

    /// Sends a message and waits until it has arrived or never will.
    async fn send_surely(&mut self, peer: PeerId, message: &RemoteRequest, deadline: Ps) {
        let Ok(id) = self.send_remote(peer, message) else { return };
        self.inbox.awaited = Some(id);
        while self.inbox.awaited.is_some() && self.turn(deadline).await {}
    }

    fn give_up(&mut self, id: LinkId, error: Error) -> Error {
        let session = &mut self.remote(id).session;
        match error {
            Error::Timeout { .. } | Error::PeerDead { .. } => {
                session.on_loss(LinkLoss::Gone(DeathCause::Closed)).unwrap_or(error)
            }
            other => {
                session.abandon_unsent();
                other
            }
        }
    }

    fn local(&mut self, id: LinkId) -> &mut LocalLink {
        match &mut self.links[id.0 as usize] {
            Link::Local(link) => link,
            Link::Remote(_) => unreachable!("only called for mapped links"),
        }
    }

    async fn local_call(&mut self, id: LinkId, request: Request, deadline: Ps) -> Result<Reply> {
        let started = self.ctx.now();
        let mutates = request.is_mutating();
        self.local(id).session.begin(request);
        let mut sent = self.send_local(id);
        loop {
            if let Err(error) = sent {
                self.local(id).session.abandon_unsent();
                return Err(error);
            }
            match self.wait_local(id, deadline).await {
                Waited::Reply(frame) => {
                    let seq = frame.seq;
                    let link = self.local(id);
                    if let Some(reply) = link.session.on_reply(frame) {
                        if mutates {
                            link.view.slot.store(SlotWord::ConsumedSeq as u64, seq);
                        }
                        return reply;
                    }
                }
                Waited::Closed => {
                    let loss = Box::pin(self.resume(id, deadline)).await;
                    if let Some(error) = self.local(id).session.on_loss(loss) {
                        return Err(error);
                    }
                    sent = self.send_local(id);
                }
                Waited::TimeUp => {
                    let waited_ms = (self.ctx.now() - started).as_ns() / 1_000_000;
                    let loss = LinkLoss::TimeUp { waited_ms };
                    let error = self.local(id).session.on_loss(loss);
                    return Err(error.expect("time up ends a request"));
                }
            }
        }
    }

    fn send_local(&mut self, id: LinkId) -> Result<()> {
        let mut message = self.ctx.kernel.spare();
        message.resize(MESSAGE_BYTES_USUAL, 0);
        let link = self.local(id);
        let frame = link.session.under_way().expect("only called with a request under way");
        if wire::encode(frame, &mut message).is_err() {
            message.resize(MESSAGE_BYTES_MAX as usize, 0);
        }
        let result = wire::encode(frame, &mut message).and_then(|bytes| {
            link.producer.push(bytes).map_err(|_| Error::Busy {
                what: "request ring".into(),
                limit: u64::from(rackpool_core::constants::RING_ENTRIES),
            })
        });
        let (slot, rack) = (link.slot, link.rack.clone());
        self.sent.0 += 1;
        self.ctx.kernel.recycle(message);
        result?;
        // Setting the bell's bit is an atomic operation.
        self.ctx.cpu.drain();
        if let Some((daemon, _)) = rack.daemon.get() {
            self.ctx.ring(daemon, Input::Bell(slot));
        }
        Ok(())
    }

    async fn wait_local(&mut self, id: LinkId, deadline: Ps) -> Waited {
        loop {
            self.ctx.cpu.charge(self.cluster.costs.client_poll);
            let rack = u32::from(self.local(id).rack.id.0);
            let heard = self.inbox.rung.len();
            self.inbox.rung.retain(|one| *one != rack);
            let rung = self.inbox.rung.len() < heard;
            let link = self.local(id);
            let LocalLink { session, consumer, .. } = link;
            let popped = consumer.pop(|bytes| wire::decode::<ReplyFrame>(bytes, session.peer()));
            match popped {
                Some(Ok(Ok(frame))) => return Waited::Reply(frame),
                Some(Ok(Err(error))) => self.broken(&error.to_string()),
                Some(Err(error)) => self.broken(&error.to_string()),
                None => {}
            }
            let conn = self.local(id).conn;
            if conn.is_none_or(|conn| self.inbox.closed_conns.contains(&conn)) {
                return Waited::Closed;
            }
            let now = self.ctx.now();
            if now >= deadline {
                self.ctx.kernel.say(|| format!("process {}: no answer in time", self.ctx.id.0));
                return Waited::TimeUp;
            }
            let until = if rung { deadline.min(now + RING_LOOK) } else { deadline };
            self.turn(until).await;
            if rung && !self.inbox.rung.contains(&rack) {
                // What rang without an answer is looked at again.
                self.inbox.rung.push(rack);
            }
        }
    }

    /// Every daemon here keeps to the protocol: a ring that does not is a defect of ours.
    fn broken(&self, what: &str) {
        self.ctx.kernel.fail("ring", format!("client of rack {}: {what}", self.rack));
    }

    /// Finds the next daemon of the region and takes the slot up again there.
    async fn resume(&mut self, id: LinkId, deadline: Ps) -> LinkLoss {
        let link = self.local(id);
        let (rack, slot, session) = (link.rack.clone(), link.slot, link.session_id);
        let region_id = link.region_id;
        let mut pause = Ps::ms(1);
        loop {
            // The control socket's name is the region's.
            let same_region = rack.region.borrow().id == region_id;
            let join = self.join(&rack, deadline);
            let joined = if same_region {
                join.once(&mut self.inbox, &mut self.master, session, Some(slot)).await
            } else {
                Err(Error::Denied { reason: "another region".into() })
            };
            match joined {
                Ok(joined) => return self.rejoined(id, joined, session, LinkLoss::Resumed),
                Err(Error::BadRegion { .. } | Error::Denied { .. }) => {
                    let session = self.cluster.new_session();
                    let (inbox, master) = (&mut self.inbox, &mut self.master);
                    return match join.until(inbox, master, session, None).await {
                        Ok(joined) => {
                            self.rejoined(id, joined, session, LinkLoss::SessionForgotten)
                        }
                        Err(_) => LinkLoss::Gone(DeathCause::Closed),
                    };
                }
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if self.ctx.now() < deadline => {}
                Err(_) => return LinkLoss::Gone(DeathCause::Closed),
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    fn rejoined(
        &mut self,
        id: LinkId,
        joined: LocalLink,
        session: SessionId,
        loss: LinkLoss,
    ) -> LinkLoss {
        let link = self.local(id);
        let is_new_region = joined.region_id != link.region_id;
        let under_way = std::mem::replace(&mut link.session, Session::new(String::new()));
        *link = LocalLink { session: under_way, session_id: session, ..joined };
        let view = link.view.clone();
        let rack = self.client.rack_of(id);
        if is_new_region {
            self.client.forget_link(id);
        }
        self.client.add_link(rack, Reach::Mapped(view)).expect("a region keeps its geometry");
        loss
    }
}

enum Waited {
    Reply(ReplyFrame),
    Closed,
    TimeUp,
}

fn layout_of(region: &RegionInfo) -> rackpool_core::layout::RegionLayout {
    let pages = PageGeometry::new(region.page_shift).expect("a daemon's page size");
    rackpool_core::layout::RegionLayout { pages, frame_count: region.frame_count }
}

/// Sorts an input into what waits for it.
fn sort(
    (ctx, endpoint): (&Ctx, EndpointId),
    master: &mut MasterLink,
    inbox: &mut Inbox,
    input: Input,
) {
    match input {
        Input::Message(conn, message) => match *message {
            Message::Control(reply) => inbox.controls.push((conn, reply)),
            Message::Answer(reply) if master.owns(conn) => {
                if let Some(reply) = master.on_answer(ctx, reply) {
                    inbox.answers.push((reply.id, reply.answer));
                }
            }
            _ => {}
        },
        Input::Closed(conn) if master.owns(conn) => master.on_closed(ctx),
        Input::Closed(conn) => inbox.closed_conns.push(conn),
        Input::Ring(rack) => {
            if !inbox.rung.contains(&rack) {
                inbox.rung.push(rack);
            }
        }
        Input::Fabric(FabricEvent::Completed { id, status, .. }) => {
            if !ctx.sent(endpoint, id) {
                inbox.completions.push((id, status));
            } else if inbox.awaited == Some(id) {
                inbox.awaited = None;
            }
        }
        Input::Fabric(FabricEvent::Received { peer, message }) => {
            inbox.messages.push_back((peer, message));
        }
        Input::Fabric(FabricEvent::Connected { peer }) => inbox.connected.push(peer),
        Input::Fabric(FabricEvent::Closed { peer, .. }) => inbox.closed_peers.push(peer),
        Input::Tell(word) => inbox.told.push(word),
        _ => {}
    }
}

/// One master call: see [`SimHandle::master_call`].
async fn call_master(
    (ctx, endpoint, cluster): (&Ctx, EndpointId, &Rc<Cluster>),
    (master, inbox): (&mut MasterLink, &mut Inbox),
    call: MasterCall,
    deadline: Ps,
) -> Result<MasterAnswer> {
    let started = ctx.now();
    let mut sent: Option<u64> = None;
    loop {
        master.connect(ctx, cluster);
        if sent.is_none() && master.is_up() {
            inbox.answers.clear();
            sent = master.send(ctx, call.clone());
        }
        if let Some(id) = sent {
            if let Some(at) = inbox.answers.iter().position(|(of, _)| *of == id) {
                match inbox.answers.swap_remove(at).1 {
                    Err(Error::Busy { .. }) => sent = None,
                    answer => return answer,
                }
                ctx.sleep(Ps::ms(1)).await;
            }
            if !master.is_up() {
                sent = None;
            }
        }
        if ctx.now() >= deadline {
            let waited_ms = (ctx.now() - started).as_ns() / 1_000_000;
            return Err(Error::Timeout { peer: "master".into(), waited_ms });
        }
        let until = deadline.min(master.due().unwrap_or(deadline));
        if let Some(input) = ctx.recv(Some(until)).await {
            sort((ctx, endpoint), master, inbox, input);
        }
    }
}

/// Joining a daemon of this host.
struct Join {
    ctx: Ctx,
    endpoint: EndpointId,
    cluster: Rc<Cluster>,
    rack: Rc<Rack>,
    deadline: Ps,
}

impl Join {
    async fn until(
        &self,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
        resume_slot: Option<u32>,
    ) -> Result<LocalLink> {
        let mut pause = Ps::ms(1);
        loop {
            match self.once(inbox, master, session, resume_slot).await {
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if self.ctx.now() < self.deadline => {}
                result => return result,
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    async fn once(
        &self,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
        resume_slot: Option<u32>,
    ) -> Result<LocalLink> {
        let (daemon, _) = self.rack.daemon.get().ok_or_else(|| self.dead())?;
        let conn = self.ctx.connect(daemon);
        let hello = ControlHello { version: WIRE_VERSION, session, resume_slot, read_only: false };
        self.ctx.send(conn, Message::Hello(hello));
        let joined = self.welcomed(conn, inbox, master, session).await;
        if joined.is_err() {
            self.ctx.close(conn);
        }
        joined
    }

    fn dead(&self) -> Error {
        let peer = format!("daemon of rack {}", self.rack.id);
        Error::PeerDead { peer, cause: DeathCause::Closed }
    }

    async fn welcomed(
        &self,
        conn: ConnId,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
    ) -> Result<LocalLink> {
        loop {
            if let Some(at) = inbox.controls.iter().position(|(of, _)| *of == conn) {
                return match inbox.controls.swap_remove(at).1 {
                    ControlReply::Refused(error) => Err(error),
                    ControlReply::Welcome { slot, region, .. } => {
                        self.map(conn, slot, &region, session).ok_or_else(|| self.dead())
                    }
                };
            }
            if inbox.closed_conns.contains(&conn) {
                return Err(self.dead());
            }
            let Some(input) = self.ctx.recv(Some(self.deadline)).await else {
                let waited_ms = self.cluster.request_timeout.as_ns() / 1_000_000;
                let peer = format!("daemon of rack {}", self.rack.id);
                return Err(Error::Timeout { peer, waited_ms });
            };
            sort((&self.ctx, self.endpoint), master, inbox, input);
        }
    }

    /// Maps what the welcome came with.
    fn map(
        &self,
        conn: ConnId,
        slot: u32,
        region: &RegionInfo,
        session_id: SessionId,
    ) -> Option<LocalLink> {
        let rack = self.rack.clone();
        if rack.region.borrow().id != region.region_id {
            return None;
        }
        let section = rack.region.borrow().slot(slot)?;
        let slot_mem = SimMem::new(section, self.ctx.cpu.clone());
        let view = RackView {
            pages: rack.view(&self.ctx, |region| region.pages.clone()),
            table: rack.view(&self.ctx, |region| region.table.clone()).read_only(),
            slot: slot_mem.clone(),
            layout: layout_of(region),
        };
        Some(LocalLink {
            producer: Producer::attach(slot_mem.slice(SLOT_REQUEST_RING, RING_BYTES)),
            consumer: Consumer::attach(slot_mem.slice(SLOT_REPLY_RING, RING_BYTES)),
            session: Session::new(format!("daemon of rack {}", rack.id)),
            conn: Some(conn),
            region_id: region.region_id,
            session_id,
            slot,
            view,
            rack,
        })
    }
}

/// The caller's buffer of an operation.
pub(super) enum Local<'a> {
    None,
    Into(&'a mut [u8]),
    From(&'a [u8]),
}

/// The vectors of one operation's [`Buffers`], for the next one.
type Spare = (Vec<(u64, u64)>, Vec<PeerId>);

/// The caller's buffer, and what of it is registered with the network.
struct Buffers<'a> {
    local: Local<'a>,
    lent: Cell<Option<BufId>>,
    /// The connections that work was posted to.
    posted: Vec<PeerId>,
    /// Parts that the network reads into.
    ranges: RefCell<Vec<(u64, u64)>>,
}

impl Buffers<'_> {
    /// Takes the registered buffer back, with what was read into it.
    fn end(mut self, cluster: &Cluster, endpoint: EndpointId) -> Spare {
        let ranges = self.ranges.into_inner();
        self.posted.clear();
        let Some(buf) = self.lent.get() else { return (ranges, self.posted) };
        let bytes = cluster.kernel.take_buffer(endpoint, buf);
        if let Local::Into(to) = self.local {
            for (offset, len) in &ranges {
                let range = *offset as usize..(offset + len) as usize;
                to[range.clone()].copy_from_slice(&bytes[range]);
            }
        }
        cluster.kernel.recycle(bytes);
        (ranges, self.posted)
    }
}

struct SimIo<'a, 'b> {
    ctx: &'a Ctx,
    cluster: &'a Rc<Cluster>,
    endpoint: EndpointId,
    links: &'a [Link],
    buffers: &'a mut Buffers<'b>,
}

impl Io for SimIo<'_, '_> {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        assert_eq!(piece, 0, "operations here have one piece");
        match &mut self.buffers.local {
            Local::Into(to) => &mut to[offset as usize..(offset + bytes) as usize],
            _ => unreachable!("only reads have a target"),
        }
    }

    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        assert_eq!(piece, 0, "operations here have one piece");
        match &self.buffers.local {
            Local::From(from) => &from[offset as usize..(offset + bytes) as usize],
            _ => unreachable!("only writes have a source"),
        }
    }

    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        assert_eq!(piece, 0, "operations here have one piece");
        let buf = self.buffers.lent.get().unwrap_or_else(|| {
            let mut bytes = self.cluster.kernel.spare();
            match &self.buffers.local {
                Local::None => {}
                Local::Into(to) => bytes.resize(to.len(), 0),
                Local::From(from) => bytes.extend_from_slice(from),
            }
            self.cluster.kernel.register(self.endpoint, bytes)
        });
        self.buffers.lent.set(Some(buf));
        if matches!(self.buffers.local, Local::Into(_)) {
            self.buffers.ranges.borrow_mut().push((offset, bytes));
        }
        Sge { buf, offset, bytes }
    }

    fn post(&mut self, link: LinkId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let peer = match &self.links[link.0 as usize] {
            Link::Remote(link) => link.peer,
            Link::Local(_) => None,
        };
        match peer {
            Some(peer) => {
                if !self.buffers.posted.contains(&peer) {
                    self.buffers.posted.push(peer);
                }
                self.ctx.post_work(self.endpoint, peer, batch)
            }
            None => Err((0, PostError::Down)),
        }
    }
}
