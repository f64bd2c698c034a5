//! A handle's links: to the own rack's daemon, to other racks (mapped or over the fabric) and to
//! the master. Connects them when an operation needs one, repeats what a lost connection
//! interrupted where that is safe, and turns every loss into a typed error at the deadline.

use crate::agent::control_on;
use crate::clock;
use crate::drive::{LinkHost, block};
use crate::link::MasterLink;
use crate::local::{MappedSlot, SlotLease};
use crate::locks::LockTable;
use crate::network::{Inbox, Network};
use crate::node::Node;
use crate::options::{Connections, FabricChoice, Options};
use crate::paths::PathStats;
use crate::stats::HandleStats;
use rackpool_core::client::{Client, CoupledStats, LinkId, Losses, OWN, Reach, UseReports};
use rackpool_core::durability::Durability;
use rackpool_core::placement::Order;
use rackpool_core::runtime::client::{
    self, LocalLink, Runtime, Slot, note_closed, wait_completions,
};
use rackpool_core::seam::{BufId, Fabric, WorkStatus};
use rackpool_core::wire::{FabricKind, MasterAnswer, MasterCall, RackInfo};
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::shared::{self, SharedEndpoint};
use rackpool_fabric::{Endpoint, FabricError, FabricOptions, Over, proxied};
use rackpool_mem::window::Window;
use std::sync::Arc;

/// What all handles of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: Options,
    /// Boot identity of this host.
    pub host: String,
    /// The fabric connections, if the handles share them.
    pub shared_endpoint: Option<Arc<SharedEndpoint>>,
    /// Whether a write is refused, or more than a write.
    pub writes_apart: bool,
}

impl Shared {
    pub(crate) fn new(mut options: Options) -> Result<Self> {
        options.load_secret()?;
        let host = options.host.clone().map_or_else(rackpool_mem::process::boot_id, Ok);
        let host =
            host.map_err(|error| Error::Io { what: "boot id".into(), reason: error.to_string() })?;
        let shared_endpoint = match (options.connections, options.fabric) {
            (Connections::Own, _) | (_, FabricChoice::Proxied) => None,
            (Connections::Shared, FabricChoice::Verbs) => return Err(shared_verbs()),
            (Connections::Shared, _) => {
                let options = fabric_options(&options, Over::Tcp);
                Some(SharedEndpoint::new(options.into()).map_err(fabric_error)?)
            }
        };
        let writes_apart = options.read_only || options.durability == Durability::Write;
        Ok(Self { options, host, shared_endpoint, writes_apart })
    }
}

fn fabric_options(options: &Options, over: Over) -> FabricOptions {
    let (device, secret) = (options.verbs_device.clone(), options.secret.clone());
    FabricOptions { over, device, secret }
}

fn shared_verbs() -> Error {
    Error::Config {
        reason: "shared connections are of fabric `tcp` only: with `verbs` each handle has its \
                 own, or let the own rack's daemon have them (fabric `proxied`)"
            .into(),
    }
}

/// One-sided operations of devices leave what they write, or find, in caches that no code writes
/// back, or drops.
pub(crate) fn no_devices(rack: RackId) -> Error {
    Error::Config {
        reason: format!(
            "rack {rack}'s memory is kept coherent by software, which one-sided operations of RDMA \
             devices go around: use fabric `tcp` (or `proxied`), also for the daemon"
        ),
    }
}

/// An endpoint of one fabric does not reach a rack that offers another one.
pub(crate) fn require_same(endpoint: &Endpoint, info: &RackInfo) -> Result<()> {
    let rack = info.rack;
    let reason = match (endpoint, &info.fabric) {
        (Endpoint::Proxied(_), _) => return Ok(()),
        (endpoint, FabricKind::Verbs) if endpoint.over() == Over::Tcp => format!(
            "rack {rack} is reached over fabric `verbs` only: use `verbs`, and start this rack's \
             daemon with it too, or `proxied`"
        ),
        (endpoint, FabricKind::Tcp | FabricKind::Shm) if endpoint.over() == Over::Verbs => format!(
            "rack {rack} does not offer fabric `verbs`: start its daemon with --fabric verbs, if \
             the hardware keeps its memory coherent, or use `tcp`"
        ),
        _ => return Ok(()),
    };
    Err(Error::Config { reason })
}

pub(crate) type Link = client::Link<MappedSlot, BufId>;

/// All links of one handle. Index = `LinkId`.
pub(crate) struct Links {
    node: Node,
    links: Vec<Link>,
    inbox: Inbox,
    /// Shared with the guards of this handle.
    pub(crate) locks: Arc<LockTable>,
    /// Locks that this handle lost without being asked.
    pub(crate) losses: Losses,
    /// Not before this are locks given back that could not be.
    retry_releases_at: Option<u64>,
    reports: UseReports,
    /// What this handle does says nothing of where pages are used.
    never_counts: bool,
    /// The endpoint is one of an RDMA device.
    uses_verbs: bool,
    /// The own rack's daemon runs on this host, and so by its clock.
    is_beside_daemon: bool,
    /// How long a call rides through restarts, ms: as the options say, or as was set since.
    timeout_ms: u64,
}

impl Links {
    /// The fabric endpoint of a handle with an own rack that offers `own`.
    fn endpoint(shared: &Shared, own: &FabricKind) -> Result<Endpoint> {
        let over = match shared.options.fabric {
            FabricChoice::Proxied => {
                return Ok(Endpoint::Proxied(proxied::ProxiedEndpoint::default()));
            }
            FabricChoice::Verbs => Over::Verbs,
            FabricChoice::Auto if *own == FabricKind::Verbs => Over::Verbs,
            FabricChoice::Auto | FabricChoice::Shm | FabricChoice::Tcp => Over::Tcp,
        };
        if let Some(shared_endpoint) = &shared.shared_endpoint {
            if over == Over::Verbs {
                return Err(shared_verbs());
            }
            return shared::MemberEndpoint::new(shared_endpoint)
                .map(Endpoint::Shared)
                .map_err(fabric_error);
        }
        Endpoint::new(fabric_options(&shared.options, over)).map_err(fabric_error)
    }

    /// Finds the own rack's daemon and joins it; with it the endpoint to other racks.
    pub(crate) fn open(
        shared: Arc<Shared>,
        deadline_ns: u64,
    ) -> Result<(Self, Endpoint, Reach<Window>)> {
        let timeout_ms = shared.options.request_timeout_ms;
        let mut master = MasterLink::new(shared.options.master.clone());
        master.set_secret(shared.options.secret.clone());
        let (session, rack) = (crate::local::new_session()?, shared.options.rack_id());
        master.set_join(MasterCall::JoinClient { session, rack });
        let mut node = Node::new(shared, master);
        let info = node.wait_for_own(session, deadline_ns)?;
        let own = info.rack;
        node.own = own;
        let is_here = info.host == node.shared.host;
        let join = node.join_options(control_on(&info, &node.shared.host), false);
        let link =
            block(LocalLink::join(&mut node, join, deadline_ns)).map_err(|error| match error {
                Error::PeerDead { .. } if !is_here => Error::Config {
                    reason: format!(
                        "the daemon of rack {own} runs on another host, and no agent of it here: \
                         start `rackpool agent --rack {own}` on this host if it shares the rack's \
                         memory, or choose the rack of this host"
                    ),
                },
                other => other,
            })?;
        if node.shared.options.fabric == FabricChoice::Verbs
            && !link.region().coherence.is_hardware()
        {
            return Err(no_devices(own));
        }
        let mut endpoint = Self::endpoint(&node.shared, &info.fabric)?;
        link.slot().serve(&mut endpoint);
        let reach = Reach::Mapped(link.slot().view().clone());
        let locks = Arc::<LockTable>::default();
        locks.set_door(OWN, link.slot().door());
        let links = Self {
            node,
            links: vec![Link::Local(Box::new(link))],
            inbox: Inbox::default(),
            locks,
            losses: Losses::default(),
            retry_releases_at: None,
            reports: UseReports::default(),
            never_counts: false,
            uses_verbs: endpoint.over() == Over::Verbs,
            is_beside_daemon: is_here,
            timeout_ms,
        };
        Ok((links, endpoint, reach))
    }

    /// With the engine and the endpoint, what talks to daemons.
    pub(crate) fn runtime<'a>(
        &'a mut self,
        client: &'a mut Client<Window>,
        endpoint: &'a mut Endpoint,
    ) -> Runtime<'a, LinkHost<'a>> {
        let Self { node, links, inbox, locks, losses, retry_releases_at, .. } = self;
        let (network, never_counts) = (Network { endpoint, inbox }, self.never_counts);
        let host = LinkHost { node, network, locks, never_counts };
        Runtime { client, links, host, losses, retry_releases_at }
    }

    /// The own rack, or the own one of its shards.
    pub(crate) fn own_rack(&self) -> RackId {
        self.node.own
    }

    pub(crate) fn options(&self) -> &Options {
        &self.node.shared.options
    }

    pub(crate) fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }

    /// `None` for what the options say.
    pub(crate) fn set_timeout_ms(&mut self, timeout_ms: Option<u64>) {
        self.timeout_ms = timeout_ms.unwrap_or(self.options().request_timeout_ms);
    }

    /// Whether times that the own rack's daemon tells are those of this host.
    pub(crate) fn is_beside_daemon(&self) -> bool {
        self.is_beside_daemon
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.node.shared.options.read_only
    }

    /// Whether writes are refused, or are to be durable when they return.
    #[inline]
    pub(crate) fn writes_apart(&self) -> bool {
        self.node.shared.writes_apart
    }

    pub(crate) fn read_only_error(&self) -> Error {
        Error::Denied { reason: "this pool was opened read-only".into() }
    }

    /// Asks the master, through its restarts, until the deadline.
    pub(crate) fn master_call(
        &mut self,
        call: MasterCall,
        deadline_ns: u64,
    ) -> Result<MasterAnswer> {
        self.node.master.call(call, clock::instant(deadline_ns))
    }

    /// The racks of the pool, as the master knows them now.
    pub(crate) fn racks(&mut self, deadline_ns: u64) -> Result<Vec<RackInfo>> {
        self.master_call(MasterCall::Racks, deadline_ns)?.racks()
    }

    /// When allocations that name no rack ask the own one, as the master said last.
    pub(crate) fn order(&self) -> Order {
        self.node.master.welcome().and_then(MasterAnswer::order).unwrap_or_default()
    }

    /// Whether the own rack's daemon wants to know which pages this handle uses.
    pub(crate) fn counts_use(&self) -> bool {
        let own = self.links.first();
        matches!(own, Some(Link::Local(own)) if own.region().counts_use && !self.never_counts)
    }

    /// The daemon is told nothing.
    pub(crate) fn never_count_use(&mut self) {
        self.never_counts = true;
    }

    /// Tells the own rack's daemon which pages this handle uses, if it is time, and waits for
    /// nothing, unless the daemon has said nothing for long.
    pub(crate) fn report_use(&mut self, client: &mut Client<Window>, endpoint: &mut Endpoint) {
        let Some(Link::Local(own)) = self.links.first_mut() else { return };
        let is_heard = own.is_heard();
        if let Some(report) = self.reports.look(client, clock::now_ns(), is_heard) {
            block(self.runtime(client, endpoint).report_use(report));
        }
    }

    /// How often locks were lost so far without being asked for.
    pub(crate) fn loss_count(&self) -> u64 {
        self.losses.count()
    }

    /// The last loss, for an access that was under way when it happened.
    pub(crate) fn loss(&mut self) -> Error {
        self.losses.told()
    }

    /// A loss that no caller was told of yet, for the first access after it.
    pub(crate) fn tell_loss(&mut self) -> Result<()> {
        self.losses.tell()
    }

    /// Waits until a work request ended; what ended is for `take_completions`. `false` if nothing
    /// happened until the deadline.
    pub(crate) fn wait_completions(&mut self, endpoint: &mut Endpoint, deadline_ns: u64) -> bool {
        let mut network = Network { endpoint, inbox: &mut self.inbox };
        block(wait_completions(&mut self.links, &mut network, deadline_ns))
    }

    /// As [`Links::wait_completions`], without waiting.
    pub(crate) fn poll_completions(&mut self, endpoint: &mut Endpoint) {
        let Self { links, inbox, .. } = self;
        endpoint.poll(clock::now_ns(), &mut inbox.events);
        inbox.sort(None);
        note_closed(links, &mut Network { endpoint, inbox });
    }

    /// Work requests that ended since the last call.
    pub(crate) fn take_completions(&mut self) -> std::vec::Drain<'_, (u64, WorkStatus)> {
        self.inbox.completions.drain(..)
    }

    /// The slot of a mapped link.
    pub(crate) fn lease(&self, link: LinkId) -> Option<Arc<SlotLease>> {
        self.links.get(link.0 as usize)?.local().map(|link| link.slot().lease())
    }

    /// The handle ends: racks that are reached over the fabric are told.
    pub(crate) fn leave(&mut self, endpoint: &mut Endpoint) {
        let mut network = Network { endpoint, inbox: &mut self.inbox };
        for link in self.links.iter_mut().filter_map(Link::remote_mut) {
            block(link.over(&mut network, 0).leave());
        }
    }

    /// What carries one-sided operations to racks that are not mapped.
    pub(crate) fn fabric_name(&self) -> &'static str {
        if self.uses_verbs { "verbs" } else { "tcp" }
    }

    /// Why a link to this rack takes the path that it takes, for people.
    pub(crate) fn why(&self, rack: RackId, mapped: bool) -> String {
        let is_own = self.node.is_own(rack);
        match (is_own, mapped, self.node.shared.options.fabric) {
            (true, _, _) => "the page is homed in this handle's own rack".into(),
            (_, true, FabricChoice::Auto) => "the rack's daemon offers fabric shm".into(),
            (_, true, _) => "this handle asked for fabric shm".into(),
            (_, false, FabricChoice::Proxied) => {
                "this handle has no fabric endpoint: its own rack's daemon works for it".into()
            }
            (_, false, choice) => {
                let name = self.fabric_name();
                match choice {
                    FabricChoice::Auto => format!("the rack's daemon offers fabric {name}"),
                    _ => format!("this handle asked for fabric {name}"),
                }
            }
        }
    }

    /// Latency injected on a link, ns; 0 is none.
    pub(crate) fn emulated_ns(&self, link: LinkId) -> u32 {
        match &self.links[link.0 as usize] {
            Link::Local(local) if self.node.is_own(local.region().rack) => {
                local.region().emulate_cxl_ns
            }
            Link::Local(local) => local.region().emulate_rdma_ns,
            Link::Remote(remote) => remote.region().emulate_rdma_ns,
        }
    }

    /// What was sent so far.
    pub(crate) fn stats(&self, endpoint: &Endpoint) -> HandleStats {
        let fabric = endpoint.stats();
        HandleStats {
            slot: self.links[0].local().map_or(0, |link| link.joined.welcome.slot_index),
            ring_requests: self.node.ring_requests,
            master_requests: self.node.master.calls_sent(),
            fabric_operations: fabric.ops,
            fabric_send_calls: fabric.send_calls,
            fabric_receive_calls: fabric.recv_calls,
            paths: PathStats::default(),
            coupled: CoupledStats::default(),
            replica_reads: 0,
        }
    }
}

/// A fabric that could not be set up, as the pool's error.
pub(crate) fn fabric_error(error: FabricError) -> Error {
    match error {
        FabricError::PeersFull { limit } => {
            Error::Busy { what: "fabric connections".into(), limit: u64::from(limit) }
        }
        error @ FabricError::NotLoopback { .. } => Error::Denied { reason: error.to_string() },
        FabricError::BuffersFull { limit } => {
            Error::Busy { what: "fabric buffers".into(), limit: limit as u64 }
        }
        other if other.is_absence() => Error::Config { reason: other.to_string() },
        other => Error::Io { what: "fabric".into(), reason: other.to_string() },
    }
}
