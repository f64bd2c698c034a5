//! A client handle: the client engine with its links, driven in virtual time. Its calls are
//! `async`; a process that runs on its own stack can make them blocking.
//!
//! What a lost link means, when a request is repeated and when its outcome is unknown is decided
//! by the engine ([`Session`]); here is which peer is asked next, and until when.

mod coupled;
mod driver;
mod fabric;
mod fetch;
mod io;
mod join;
mod local;
mod locks;
mod remote;
mod replica;

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, Message};
use super::master::{MasterLink, unexpected};
use crate::mem::SimMem;
use crate::net::EndpointId;
use crate::time::Ps;
use coupled::PackedFlush;
use fabric::Fabric;
pub use fetch::FetchMode;
use io::{Local, Posted};
use join::Join;
use local::LocalLink;
use locks::Locks;
pub use locks::SimGuard;
use rackpool_core::client::{
    Access, Alloc, AtHome, AtRack, AtWord, Atomic, AtomicOp, Client, Coupled, CoupledOptions, Free,
    LinkId, Migrate, OWN, Operation, Piece, Placement, Reach, Transfer, TransferTables,
};
use rackpool_core::coherence;
use rackpool_core::layout::{AllocationKind, SlotWord};
use rackpool_core::policy::MigrationPolicy;
use rackpool_core::seam::{FabricEvent, Mutation, PeerId, WorkStatus};
use rackpool_core::wire::{ControlReply, MasterAnswer, MasterCall, RemoteRequest, Reply, Request};
use rackpool_core::{Error, GAddr, RackId, Result};
use remote::RemoteLink;
use std::collections::VecDeque;
use std::rc::Rc;

/// Longest pause between two tries to reach a daemon that is gone.
const RETRY_PAUSE_MAX: Ps = Ps::ms(50);
/// How long is waited for a daemon to hear that a handle leaves: it notices by itself, later.
const LEAVE_MAX: Ps = Ps::ms(5);

/// Marks the ids of atomics, apart from those of transfers and messages.
const ATOMIC_ID: u64 = 1 << 63;

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
    /// Racks with an answer that may be in the ring.
    rung: Vec<u32>,
    closed_peers: Vec<PeerId>,
    completions: Vec<(u64, WorkStatus)>,
    /// A message with a completion that is waited for.
    awaited: Option<u64>,
    told: Vec<u64>,
}

/// How a handle reaches other racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Their memory is mapped (fabric `shm`).
    Mapped,
    OneSided,
    /// One-sided operations of the own rack's daemon.
    Proxied,
}

pub struct SimHandle {
    pub ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: RackId,
    path: Path,
    client: Client<SimMem>,
    links: Vec<Link>,
    master: MasterLink,
    fabric: Fabric,
    inbox: Inbox,
    /// `None` while a transfer uses them.
    tables: Option<Box<TransferTables>>,
    round: u64,
    /// `None` while an operation uses it.
    spare: Option<Box<Posted>>,
    completions: Vec<(u64, WorkStatus)>,
    locks: Locks,
    coupled: Coupled,
    /// Whether other racks are asked for data, and told it, instead of read and written.
    by_calls: bool,
    /// Buffered writes, once there are any.
    flush: Option<Box<PackedFlush>>,
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
        let home = cluster.rack_of(rack).clone();
        let join =
            Join { ctx: ctx.clone(), endpoint, cluster: cluster.clone(), rack: home, deadline };
        let link = join.until(&mut inbox, &mut master, cluster.new_session(), None).await?;
        let fabric = Fabric::new(endpoint, path == Path::Proxied);
        fabric.attach(&link.view.slot);
        let mut client = Client::new(rack, Reach::Mapped(link.view.clone()), translations);
        client.count_use(cluster.migration != MigrationPolicy::Off);
        Ok(SimHandle {
            client,
            links: vec![Link::Local(Box::new(link))],
            master,
            fabric,
            inbox,
            tables: Some(Box::default()),
            round: 0,
            spare: None,
            completions: Vec::new(),
            locks: Locks::default(),
            coupled: Coupled::new(CoupledOptions::default()),
            by_calls: false,
            flush: None,
            timeout,
            sent: (0, 0),
            ctx,
            cluster,
            rack,
            path,
        })
    }

    pub fn rack(&self) -> RackId {
        self.rack
    }

    pub fn page_bytes(&self) -> u64 {
        self.client.geometry().page_bytes()
    }

    pub fn session_ids(&self) -> Vec<u64> {
        let id = |link: &Link| match link {
            Link::Local(link) => link.session_id.0,
            Link::Remote(link) => link.session.id().0,
        };
        self.links.iter().map(id).collect()
    }

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
        if !self.coupled.is_active() {
            return self.read_home(addr, to).await;
        }
        if self.read_coupled(addr, to)? {
            self.ctx.cpu.charge(self.cluster.costs.client_buffered);
            self.charge_copied(to.len());
            return Ok(());
        }
        self.read_home(addr, to).await?;
        self.overlay_locked(addr, to);
        Ok(())
    }

    async fn read_home(&mut self, addr: GAddr, to: &mut [u8]) -> Result<()> {
        if self.read_replica(addr, to).await? {
            return Ok(());
        }
        if self.by_calls {
            self.settle_first().await?;
            return self.fetch(addr, to, FetchMode::Inline).await;
        }
        let pieces = [Piece { addr, bytes: to.len() as u64 }];
        self.transfer(Access::Read, &pieces, Local::Into(to)).await
    }

    pub async fn write(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        if self.client.write_warm(addr, from).is_ok() {
            return Ok(());
        }
        self.client.check(addr, from.len() as u64)?;
        if self.coupled.is_active() && self.write_coupled(addr, from)? {
            return Ok(());
        }
        if self.by_calls {
            self.settle_first().await?;
            return self.store(addr, from).await;
        }
        let pieces = [Piece { addr, bytes: from.len() as u64 }];
        self.transfer(Access::Write, &pieces, Local::From(from)).await
    }

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

    pub async fn write_u64(&mut self, addr: GAddr, value: u64) -> Result<()> {
        self.client.check_atomic(addr)?;
        match self.client.store_warm(addr, value) {
            Ok(()) => {
                self.ctx.cpu.charge(self.cluster.costs.client_submit);
                Ok(())
            }
            Err(_) if self.client.is_apart() => {
                self.before_others().await?;
                self.store(addr, &value.to_le_bytes()).await
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
        self.before_others().await?;
        self.round += 1;
        let mut op = Atomic::new(addr, op, ATOMIC_ID | self.round);
        self.drive(&mut op, Local::None).await
    }

    pub async fn alloc(
        &mut self,
        bytes: u64,
        placement: Placement,
        kind: AllocationKind,
    ) -> Result<GAddr> {
        if let Some(MasterAnswer::Welcome { order, .. }) = self.master.welcome {
            self.client.set_order(order);
        }
        self.before_others().await?;
        let mut op = Alloc::new(&mut self.client, bytes, placement, kind);
        self.drive(&mut op, Local::None).await
    }

    /// From here on audits wait for this client.
    pub fn begin_change(&mut self) {
        self.client.begin_change();
    }

    pub fn end_change(&mut self) {
        self.client.end_change();
    }

    /// Asks the daemon of a rack.
    pub async fn ask_rack(&mut self, rack: RackId, request: Request) -> Result<Reply> {
        self.drive(&mut AtRack::new(rack, request), Local::None).await
    }

    /// Asks the daemon of an address's home.
    pub async fn ask_home(&mut self, addr: GAddr, request: Request) -> Result<Reply> {
        self.client.check(addr, 1)?;
        self.drive(&mut AtHome::new(addr, request), Local::None).await.map(|(_, reply)| reply)
    }

    pub async fn ask_master(&mut self, call: MasterCall) -> Result<MasterAnswer> {
        let deadline = self.ctx.now() + self.timeout;
        self.master_call(call, deadline).await
    }

    pub async fn free(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        self.client.check(addr, bytes)?;
        self.before_others().await?;
        self.drive(&mut Free::new(addr, bytes), Local::None).await
    }

    /// Allocates in the rack of a word, which gets the address.
    pub async fn alloc_into(&mut self, word: GAddr, bytes: u64) -> Result<GAddr> {
        self.client.check(word, 8)?;
        self.drive(&mut AtWord::alloc(word, bytes), Local::None).await
    }

    /// Frees what a word names, which becomes 0.
    pub async fn free_from(&mut self, word: GAddr, bytes: u64) -> Result<()> {
        self.client.check(word, 8)?;
        self.drive(&mut AtWord::free(word, bytes), Local::None).await.map(drop)
    }

    /// Moves the page of an address to a rack; where it is then.
    pub async fn migrate(&mut self, addr: GAddr, to: RackId) -> Result<RackId> {
        self.client.check(addr, 1)?;
        self.give_locks_back().await;
        self.locks.losses.tell()?;
        self.round += 1;
        let mut op = Migrate::new(&self.client, addr, to, ATOMIC_ID | self.round);
        let mut buffer = vec![0; Migrate::buffer_bytes(&self.client) as usize];
        self.drive(&mut op, Local::Bounce(&mut buffer)).await.map(|home| home.rack)
    }

    /// Tells the own rack's daemon which pages this handle used since it last did.
    pub async fn tell_use(&mut self) -> Result<()> {
        let (pages, siblings) = self.client.take_use_by_home();
        for (link, pages) in siblings {
            let deadline = self.ctx.now() + self.timeout;
            self.daemon_call(link, Request::NoteUse { pages }, deadline).await?;
        }
        match self.ask(Request::NoteUse { pages }).await? {
            Reply::Noted => Ok(()),
            other => Err(Error::Protocol {
                peer: "daemon".into(),
                reason: format!("{other:?} answers a report"),
            }),
        }
    }

    /// Runs an operation of a worker: see `rackpool_core::runtime::WorkerHost`.
    pub async fn perform<O: Operation<SimMem>>(
        &mut self,
        make: impl FnOnce(u64) -> O,
    ) -> Result<O::Output> {
        self.round += 2;
        let mut buffer = vec![0; Migrate::buffer_bytes(&self.client) as usize];
        let mut op = make(ATOMIC_ID | (self.round - 1));
        self.drive(&mut op, Local::Bounce(&mut buffer)).await
    }

    /// Whether a link is to a daemon of the own host.
    pub fn is_local(&self, link: LinkId) -> bool {
        matches!(self.links[link.0 as usize], Link::Local(_))
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

    /// Allocations over the fabric that the client has given up taking since the last call.
    pub fn take_in_doubt(&mut self) -> u64 {
        let of = |link: &mut Link| match link {
            Link::Local(_) => 0,
            Link::Remote(remote) => remote.session.take_in_doubt(),
        };
        self.links.iter_mut().map(of).sum()
    }

    /// Leaves: daemons over the fabric are told, connections close.
    pub async fn leave(mut self) {
        self.end_locks().await;
        // The own one last: its daemon may have to say it for us.
        for index in (0..self.links.len()).rev() {
            match &mut self.links[index] {
                Link::Local(link) => {
                    if let Some(conn) = link.conn.take() {
                        let (slot, word) = (&link.view.slot, SlotWord::Left as u64);
                        coherence::store(slot, Mutation::HideConsumed, word, 1);
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

    /// What goes before an access that is not warm: dropped guards and lost locks.
    async fn settle_first(&mut self) -> Result<()> {
        self.give_locks_back().await;
        self.locks.losses.tell()
    }

    async fn transfer(&mut self, access: Access, pieces: &[Piece], local: Local<'_>) -> Result<()> {
        if self.cluster.registration_fails() {
            return Err(Error::Busy { what: "fabric buffers".into(), limit: 0 });
        }
        self.settle_first().await?;
        self.round += 1;
        // A transfer took its tables with it if its process died here.
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
        self.wait_for(local, async |cx| op.run(cx).await).await
    }

    /// Takes the next input and sorts it; `false` when the time is up.
    async fn turn(&mut self, until: Ps) -> bool {
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
        let mut caller = MasterCaller {
            ctx: &self.ctx,
            endpoint: self.fabric.endpoint,
            cluster: &self.cluster,
            master: &mut self.master,
            inbox: &mut self.inbox,
        };
        caller.call(call, deadline).await
    }

    async fn daemon_call(&mut self, link: LinkId, request: Request, deadline: Ps) -> Result<Reply> {
        match &self.links[link.0 as usize] {
            Link::Local(_) => self.local_call(link, request, deadline).await,
            Link::Remote(_) => Box::pin(self.remote_call(link, request, deadline)).await,
        }
    }
}

/// Sorts an input into what waits for it.
fn sort(ctx: &Ctx, endpoint: EndpointId, master: &mut MasterLink, inbox: &mut Inbox, input: Input) {
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
        Input::Ring(rack) if !inbox.rung.contains(&rack) => inbox.rung.push(rack),
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

/// What a call to the master needs of a handle.
struct MasterCaller<'a> {
    ctx: &'a Ctx,
    endpoint: EndpointId,
    cluster: &'a Rc<Cluster>,
    master: &'a mut MasterLink,
    inbox: &'a mut Inbox,
}

impl MasterCaller<'_> {
    /// See [`SimHandle::master_call`].
    async fn call(&mut self, call: MasterCall, deadline: Ps) -> Result<MasterAnswer> {
        let MasterCaller { ctx, endpoint, cluster, master, inbox } = self;
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
                        Err(Error::Busy { .. }) if ctx.now() < deadline => {
                            sent = None;
                            ctx.sleep(Ps::ms(1)).await;
                            continue;
                        }
                        answer => return answer,
                    }
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
                sort(ctx, *endpoint, master, inbox, input);
            }
        }
    }
}
