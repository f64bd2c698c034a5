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
mod local;
mod locks;
mod node;
mod replica;

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input};
use super::master::MasterLink;
use crate::mem::SimMem;
use crate::net::EndpointId;
use crate::time::Ps;
use coupled::PackedFlush;
use fabric::Fabric;
pub use fetch::FetchMode;
use io::{Local, Posted};
use local::{Home, SimSlot};
use locks::Locks;
pub use locks::SimGuard;
use node::Node;
use rackpool_core::client::{
    Access, Alloc, AtRack, AtWord, Atomic, AtomicOp, Client, Coupled, CoupledIo, CoupledOptions,
    DaemonQuery, Free, LinkId, MasterQuery, Migrate, OWN, Operation, Piece, Placement, Reach,
    Swaps, Transfer, TransferTables, WordSwap,
};
use rackpool_core::coherence;
use rackpool_core::layout::{AllocationKind, SlotWord};
use rackpool_core::policy::MigrationPolicy;
use rackpool_core::runtime::client::{self, LocalLink, Platform, Welcome};
use rackpool_core::runtime::master_link::Call;
use rackpool_core::seam::{FabricEvent, Mutation, PeerId, WorkStatus};
use rackpool_core::wire::{MasterAnswer, MasterCall, Reply, Request};
use rackpool_core::{Error, GAddr, RackId, Result};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Marks the ids of atomics, apart from those of transfers and messages.
const ATOMIC_ID: u64 = 1 << 63;

type Link = client::Link<SimSlot, ()>;

/// What came and was not asked for yet.
#[derive(Default)]
struct Inbox {
    controls: Vec<(ConnId, Result<Welcome>)>,
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
    node: Node,
    client: Client<SimMem>,
    links: Vec<Link>,
    /// `None` while a transfer uses them.
    tables: Option<Box<TransferTables>>,
    round: u64,
    /// `None` while an operation uses it.
    spare: Option<Box<Posted>>,
    locks: Locks,
    coupled: Coupled,
    /// Whether other racks are asked for data, and told it, instead of read and written.
    by_calls: bool,
    /// Buffered writes, once there are any.
    flush: Option<Box<PackedFlush>>,
    /// How long a call rides through the restart of a peer.
    pub timeout: Ps,
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
        let mut master = MasterLink::new(Call::join_client(session, rack));
        master.connect(&ctx, &cluster);
        let timeout = cluster.request_timeout;
        let deadline = ctx.now() + timeout;
        let home = Home { rack: cluster.rack_of(rack).clone(), region_id: Cell::default() };
        let mut node = Node {
            ctx: ctx.clone(),
            cluster: cluster.clone(),
            rack,
            path,
            master,
            fabric: Fabric::new(endpoint, path == Path::Proxied),
            inbox: Inbox::default(),
            sent: (0, 0),
            last_sent: None,
            hellos: 0,
        };
        let link = LocalLink::join(&mut node, home, deadline).await?;
        node.fabric.attach(link.slot());
        let own = Reach::Mapped(link.slot().view.clone());
        let mut client = Client::new(rack, own, translations);
        client.count_use(cluster.migration != MigrationPolicy::Off);
        Ok(SimHandle {
            client,
            links: vec![Link::Local(Box::new(link))],
            node,
            tables: Some(Box::default()),
            round: 0,
            spare: None,
            locks: Locks::default(),
            coupled: Coupled::new(CoupledOptions::default()),
            by_calls: false,
            flush: None,
            timeout,
            ctx,
            cluster,
        })
    }

    pub fn rack(&self) -> RackId {
        self.node.rack
    }

    /// Calls to daemons, and to the master.
    pub fn sent(&self) -> (u64, u64) {
        let (through_rings, to_master) = self.node.sent;
        let over_fabric = |link: &Link| match link {
            Link::Local(_) => 0,
            Link::Remote(link) => link.requests_sent(),
        };
        (through_rings + self.links.iter().map(over_fabric).sum::<u64>(), to_master)
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
        if self.with_coupled(|coupled, io| coupled.read(io, addr, to))? {
            self.ctx.cpu.charge(self.cluster.costs.client_buffered);
            self.node.charge_copied(to.len());
            return Ok(());
        }
        self.read_home(addr, to).await?;
        self.with_coupled(|coupled, io| coupled.overlay(io, addr, to));
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

    /// Compares and swaps many words; the value that was in each.
    pub async fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<Result<u64>> {
        self.ctx.cpu.charge(self.cluster.costs.client_submit);
        let first_id = ATOMIC_ID | (self.round + 1);
        self.round += swaps.len() as u64;
        let mut op = Swaps::new(swaps, first_id);
        let result = match self.before_others().await {
            Ok(()) => self.drive(&mut op, Local::None).await,
            Err(error) => Err(error),
        };
        op.into_olds(result)
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
        if let Some(order) = self.node.master.welcome.as_ref().and_then(MasterAnswer::order) {
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
    pub async fn ask_rack<A>(&mut self, rack: RackId, query: DaemonQuery<A>) -> Result<A> {
        self.run(&mut AtRack::new(rack, query)).await
    }

    pub async fn ask_master<A>(&mut self, query: &MasterQuery<A>) -> Result<A> {
        let deadline = self.ctx.now() + self.timeout;
        query.answer(self.node.master(query.call(), deadline).await?)
    }

    /// Runs an operation without buffers.
    pub async fn run<O: Operation<SimMem>>(&mut self, op: &mut O) -> Result<O::Output> {
        self.drive(op, Local::None).await
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
        let timeout_ms = self.timeout.as_ns() / 1_000_000;
        self.runtime().tell_use(timeout_ms).await
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
        let addr = self.ask_master(&MasterQuery::root(name)).await?;
        Ok((!addr.is_null()).then_some(addr))
    }

    /// Sets the address under a name if it is `expected` now.
    pub async fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> Result<GAddr> {
        self.ask_master(&MasterQuery::set_root(name, expected, addr)).await
    }

    /// Asks the own rack's daemon something.
    pub async fn ask<A>(&mut self, query: &DaemonQuery<A>) -> Result<A> {
        let deadline = self.ctx.now() + self.timeout;
        query.answer(self.node.rack, self.daemon_call(OWN, query.request(), deadline).await?)
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
        let Self { ctx, node, links, .. } = &mut self;
        // The own one last: its daemon may have to say it for us.
        for link in links.iter_mut().rev() {
            match link {
                Link::Local(link) => {
                    let joined = &mut link.joined.slot;
                    if let Some(conn) = joined.conn.take() {
                        let (slot, word) = (&joined.view.slot, SlotWord::Left as u64);
                        coherence::store(slot, Mutation::HideConsumed, word, 1);
                        ctx.close(conn);
                    }
                }
                Link::Remote(link) => link.over(node, Ps::ZERO).leave().await,
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

    /// Waits for something that the cluster tells this process.
    pub async fn told(&mut self, until: Ps) -> Option<u64> {
        loop {
            if !self.node.inbox.told.is_empty() {
                return Some(self.node.inbox.told.remove(0));
            }
            if !self.node.turn(until).await {
                return None;
            }
        }
    }

    async fn daemon_call(&mut self, link: LinkId, request: Request, deadline: Ps) -> Result<Reply> {
        // Boxed where it is rare and large.
        match &self.links[link.0 as usize] {
            Link::Local(_) => self.runtime().daemon_call(link, request, deadline).await,
            Link::Remote(_) => Box::pin(self.runtime().daemon_call(link, request, deadline)).await,
        }
    }
}

/// Sorts an input into what waits for it.
fn sort(ctx: &Ctx, endpoint: EndpointId, master: &mut MasterLink, inbox: &mut Inbox, input: Input) {
    match input {
        Input::Message(conn, message) if master.owns(conn) => {
            master.on_message(ctx, &message);
            if let Some(reply) = master.link.take_replies().pop() {
                inbox.answers.push((reply.id, reply.answer));
            }
        }
        Input::Message(conn, message) => {
            inbox.controls.push((conn, Welcome::decode(&message)));
        }
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
    /// Asks the master, through its restarts, until the deadline.
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
