//! A handle's links: to the own rack's daemon, to other racks (mapped or over the fabric) and to
//! the master. Connects them when an operation needs one, repeats what a lost connection
//! interrupted where that is safe, and turns every loss into a typed error at the deadline.

use crate::agent::control_on;
use crate::clock;
use crate::link::MasterLink;
use crate::local::{Found, JoinOptions, LocalLink, SlotLease};
use crate::locks::LockTable;
use crate::options::{Connections, FabricChoice, Options};
use crate::paths::PathStats;
use crate::remote::RemoteLink;
use crate::stats::HandleStats;
use rackpool_core::client::{
    Client, CoupledStats, LinkId, Losses, OWN, Reach, UseReport, UseReports,
};
use rackpool_core::constants::USE_WAIT_MS;
use rackpool_core::error::DeathCause;
use rackpool_core::placement::Order;
use rackpool_core::seam::{Fabric, FabricEvent, PeerId, WorkStatus};
use rackpool_core::wire::{FabricKind, MasterAnswer, MasterCall, RackInfo, Reply, Request};
use rackpool_core::{Error, RackId, Result, SessionId};
use rackpool_hw::fabric::shared::{self, SharedEndpoint};
use rackpool_hw::fabric::{Endpoint, FabricError, FabricOptions, Over, proxied};
use rackpool_hw::window::Window;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What all handles of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: Options,
    /// Boot identity of this host.
    pub host: String,
    /// The fabric connections, if the handles share them.
    pub shared_endpoint: Option<Arc<SharedEndpoint>>,
}

impl Shared {
    pub(crate) fn new(mut options: Options) -> Result<Self> {
        options.load_secret()?;
        let host = options.host.clone().map_or_else(rackpool_hw::process::boot_id, Ok);
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
        Ok(Self { options, host, shared_endpoint })
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

/// Longest pause between two tries to reach a rack that is gone, ms.
const RETRY_PAUSE_MS_MAX: u64 = 50;
/// How long the master is asked at once where a daemon that is gone serves now, ms.
const CONTROL_ANSWER_MS_MAX: u64 = 200;

/// All links of one handle. Index = `LinkId`.
pub(crate) struct Links {
    shared: Arc<Shared>,
    /// The own rack, or the own one of its shards.
    own: RackId,
    master: MasterLink,
    links: Vec<Link>,
    /// Racks that were alive once.
    met: BTreeSet<RackId>,
    inbox: Inbox,
    /// Shared with the guards of this handle.
    pub(crate) locks: Arc<LockTable>,
    /// Locks that this handle lost without being asked.
    pub(crate) losses: Losses,
    reports: UseReports,
    /// What this handle does says nothing of where pages are used.
    never_counts: bool,
    /// The endpoint is one of an RDMA device.
    uses_verbs: bool,
    /// The own rack's daemon runs on this host, and so by its clock.
    is_beside_daemon: bool,
}

/// Events of the fabric that no link has taken yet.
#[derive(Default)]
pub(crate) struct Inbox {
    /// As they came; empty between calls.
    pub events: Vec<FabricEvent>,
    /// Work requests that ended and were not handed to their operation yet.
    pub completions: Vec<(u64, WorkStatus)>,
    /// Connections that closed; their links do not know it yet.
    pub closed: Vec<PeerId>,
}

impl Inbox {
    /// Sorts `events`; `pick` takes those it wants.
    pub(crate) fn sort(&mut self, mut pick: impl FnMut(&FabricEvent)) {
        for event in self.events.drain(..) {
            pick(&event);
            match event {
                FabricEvent::Completed { id, status, .. } => self.completions.push((id, status)),
                FabricEvent::Closed { peer, .. } => self.closed.push(peer),
                _ => {}
            }
        }
    }
}

enum Link {
    Local(Box<LocalLink>),
    Remote(Box<RemoteLink>),
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
        let mut master = MasterLink::new(shared.options.master.clone());
        master.set_secret(shared.options.secret.clone());
        let (session, rack) = (crate::local::new_session()?, shared.options.rack_id());
        master.set_join(MasterCall::JoinClient { session, rack });
        let mut links = Self {
            shared,
            own: rack,
            master,
            links: Vec::new(),
            met: BTreeSet::new(),
            inbox: Inbox::default(),
            locks: Arc::default(),
            losses: Losses::default(),
            reports: UseReports::default(),
            never_counts: false,
            uses_verbs: false,
            is_beside_daemon: false,
        };
        let info = links.wait_for_own(session, deadline_ns)?;
        let own = info.rack;
        links.own = own;
        let is_here = info.host == links.shared.host;
        links.is_beside_daemon = is_here;
        let join = JoinOptions {
            control: control_on(&info, &links.shared.host),
            read_only: links.shared.options.read_only,
            as_remote: false,
            daemon_user: links.shared.options.daemon_user,
        };
        let link = LocalLink::join(join, deadline_ns).map_err(|error| match error {
            Error::PeerDead { .. } if !is_here => Error::Config {
                reason: format!(
                    "the daemon of rack {own} runs on another host, and no agent of it here: start \
                     `rackpool agent --rack {own}` on this host if it shares the rack's memory, or \
                     choose the rack of this host"
                ),
            },
            other => other,
        })?;
        if links.shared.options.fabric == FabricChoice::Verbs
            && !link.region().coherence.is_hardware()
        {
            return Err(no_devices(own));
        }
        let mut endpoint = Self::endpoint(&links.shared, &info.fabric)?;
        links.uses_verbs = endpoint.over() == Over::Verbs;
        link.serve(&mut endpoint);
        let reach = Reach::Mapped(link.view().clone());
        links.locks.set_door(OWN, link.door());
        links.links.push(Link::Local(Box::new(link)));
        Ok((links, endpoint, reach))
    }

    /// The own rack, or the own one of its shards.
    pub(crate) fn own_rack(&self) -> RackId {
        self.own
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Whether times that the own rack's daemon tells are those of this host.
    pub(crate) fn is_beside_daemon(&self) -> bool {
        self.is_beside_daemon
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    pub(crate) fn read_only_error(&self) -> Error {
        Error::Denied { reason: "this pool was opened read-only".into() }
    }

    /// The fabric connection behind a link, if there is one and it is up.
    pub(crate) fn peer(&self, link: LinkId) -> Option<PeerId> {
        match self.links.get(link.0 as usize)? {
            Link::Local(_) => None,
            Link::Remote(remote) => remote.peer(),
        }
    }

    /// Asks the master, through its restarts, until the deadline.
    pub(crate) fn master_call(
        &mut self,
        call: MasterCall,
        deadline_ns: u64,
    ) -> Result<MasterAnswer> {
        self.master.call(call, clock::instant(deadline_ns))
    }

    /// The racks of the pool, as the master knows them now.
    pub(crate) fn racks(&mut self, deadline_ns: u64) -> Result<Vec<RackInfo>> {
        match self.master_call(MasterCall::Racks, deadline_ns)? {
            MasterAnswer::Racks(racks) => Ok(racks),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// When allocations that name no rack ask the own one, as the master said last.
    pub(crate) fn order(&self) -> Order {
        match self.master.welcome() {
            Some(MasterAnswer::Welcome { order, .. }) => *order,
            _ => Order::default(),
        }
    }

    /// The own rack's daemon; of a divided rack that of the shard on which the session falls, or
    /// which the options name.
    fn wait_for_own(&mut self, session: SessionId, deadline_ns: u64) -> Result<RackInfo> {
        let any = self.wait_for_rack(self.own, deadline_ns)?;
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
        match self.wait_for_rack(own, deadline_ns) {
            // Its daemon was never started yet: another one of the rack does as well.
            Err(Error::NoSuchRack { .. }) if self.shared.options.shard.is_none() => Ok(any),
            result => result,
        }
    }

    fn wait_for_rack(&mut self, rack: RackId, deadline_ns: u64) -> Result<RackInfo> {
        let mut pause_ms = 1;
        // As long as this is its first contact.
        let limit_ms = self.shared.options.dead_rack_ms.filter(|_| !self.met.contains(&rack));
        let dead_ns = limit_ms.map_or(deadline_ns, |ms| clock::deadline_ns(ms).min(deadline_ns));
        loop {
            match self.master_call(MasterCall::Rack { rack }, deadline_ns)? {
                MasterAnswer::Rack(info) if info.alive => {
                    self.met.extend([rack, info.rack]);
                    return Ok(info);
                }
                MasterAnswer::Rack(_) if clock::now_ns() >= dead_ns => {
                    let peer = format!("daemon of rack {rack}");
                    return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
                }
                MasterAnswer::Rack(_) => {}
                other => return Err(unexpected_answer(&other)),
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
            pause_ms = (pause_ms * 2).min(RETRY_PAUSE_MS_MAX);
        }
    }

    /// Connects, or connects again, the link to a rack.
    pub(crate) fn connect(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        rack: RackId,
        deadline_ns: u64,
    ) -> Result<()> {
        let mut pause_ms = 1;
        // Connections that ended without their target's knowledge may have our place still.
        let was_known = client.link_of(rack).is_some();
        loop {
            let info = self.wait_for_rack(rack, deadline_ns)?;
            self.wait_for_proxy(client, endpoint, deadline_ns)?;
            match self.connect_once(client, endpoint, &info, deadline_ns) {
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if clock::now_ns() < deadline_ns => {}
                Err(Error::Busy { .. }) if was_known && clock::now_ns() < deadline_ns => {}
                result => return result,
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
            pause_ms = (pause_ms * 2).min(RETRY_PAUSE_MS_MAX);
        }
    }

    /// A handle that the own rack's daemon works for finds it again first.
    fn wait_for_proxy(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        deadline_ns: u64,
    ) -> Result<()> {
        if let Endpoint::Proxied(proxied) = endpoint
            && !proxied.is_attached()
        {
            self.daemon_call(client, endpoint, OWN, Request::Ping, deadline_ns)?;
        }
        Ok(())
    }

    fn connect_once(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        info: &RackInfo,
        deadline_ns: u64,
    ) -> Result<()> {
        let known = client.link_of(info.rack);
        if let Some(id) = known {
            if let Link::Remote(remote) = &mut self.links[id.0 as usize] {
                let region = remote.region().region_id;
                let held = self.locks.held_in(info.rack);
                remote.reconnect(endpoint, &mut self.inbox, info, held, deadline_ns)?;
                let lost = self.locks.lose(info.rack, remote.lost_locks());
                self.losses.note(lost);
                if remote.region().region_id != region {
                    client.forget_link(id);
                }
                client.add_link(info.rack, Reach::OneSided(remote.layout()))?;
            }
            return Ok(());
        }
        let (link, reach) = if self.is_mapped(info)? {
            let join = JoinOptions {
                control: info.control.clone(),
                read_only: self.is_read_only(),
                as_remote: !info.rack.same_rack(self.own),
                daemon_user: self.shared.options.daemon_user,
            };
            let link = LocalLink::join(join, deadline_ns)?;
            let reach = Reach::Mapped(link.view().clone());
            (Link::Local(Box::new(link)), reach)
        } else {
            let link = RemoteLink::connect(endpoint, &mut self.inbox, info, deadline_ns)?;
            let reach = Reach::OneSided(link.layout());
            (Link::Remote(Box::new(link)), reach)
        };
        let id = client.add_link(info.rack, reach)?;
        assert_eq!(id.0 as usize, self.links.len(), "links are numbered alike");
        if let Link::Local(local) = &link {
            self.locks.set_door(id, local.door());
        }
        self.links.push(link);
        Ok(())
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

    /// Asks the daemon behind a link, through its restarts, until the deadline.
    pub(crate) fn daemon_call(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        link: LinkId,
        request: Request,
        deadline_ns: u64,
    ) -> Result<Reply> {
        let Self { master, links, shared, .. } = self;
        match &mut links[link.0 as usize] {
            Link::Local(local) => {
                let region = local.region().region_id;
                let rack = client.rack_of(link);
                let mut find = || control_of(master, rack, &shared.host, deadline_ns);
                let reply = local.call(request, deadline_ns, &mut find);
                if local.take_view_changed() {
                    if local.region().region_id != region {
                        client.forget_link(link);
                        self.losses.note(self.locks.lose(rack, None));
                    }
                    self.locks.set_door(link, local.door());
                    if link == OWN {
                        local.serve(endpoint);
                        client.count_use(local.region().counts_use && !self.never_counts);
                    }
                    client.add_link(rack, Reach::Mapped(local.view().clone()))?;
                }
                reply
            }
            Link::Remote(_) => self.remote_call(client, endpoint, link, request, deadline_ns),
        }
    }

    fn remote_call(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        link: LinkId,
        request: Request,
        deadline_ns: u64,
    ) -> Result<Reply> {
        let rack = client.rack_of(link);
        let (is_access, losses) = (request.is_access(), self.loss_count());
        if self.peer(link).is_none() {
            self.connect(client, endpoint, rack, deadline_ns)?;
        }
        if is_access && self.loss_count() != losses {
            return Err(self.loss());
        }
        self.remote(link).begin(request);
        loop {
            let Link::Remote(remote) = &mut self.links[link.0 as usize] else {
                unreachable!("links do not change their kind")
            };
            match remote.call(endpoint, &mut self.inbox, deadline_ns) {
                Some(reply) => return reply,
                None => {
                    // The connection was lost: a new one knows the session or not.
                    remote.shorten_wait(deadline_ns);
                    if let Err(error) = self.connect(client, endpoint, rack, deadline_ns) {
                        return Err(self.remote(link).give_up(error));
                    }
                    if is_access && self.loss_count() != losses {
                        let lost = self.losses.last();
                        let error = self.remote(link).give_up(lost);
                        return Err(self.losses.ended(error));
                    }
                    if let Some(ended) = self.remote(link).resumed() {
                        return ended;
                    }
                }
            }
        }
    }

    /// Asks the daemon behind a link several things at once, over the connection that is up, and
    /// does not wait for another one: all that has no answer when it ends is `PeerDead`.
    pub(crate) fn daemon_batch(
        &mut self,
        client: &mut Client<Window>,
        endpoint: &mut Endpoint,
        link: LinkId,
        requests: Vec<Request>,
        deadline_ns: u64,
    ) -> Vec<Result<Reply>> {
        if let Link::Remote(remote) = &mut self.links[link.0 as usize] {
            return remote.call_many(endpoint, &mut self.inbox, requests, deadline_ns);
        }
        let ask = |request| self.daemon_call(client, endpoint, link, request, deadline_ns);
        requests.into_iter().map(ask).collect()
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
        let Some(report) = self.reports.look(client, clock::now_ns(), is_heard) else { return };
        let UseReport { pages, siblings, waits } = report;
        for (link, pages) in siblings {
            if let Some(Link::Local(sibling)) = self.links.get_mut(usize::from(link.0))
                && sibling.is_heard()
            {
                let _ = sibling.say(Request::NoteUse { pages });
            }
        }
        let Some(Link::Local(own)) = self.links.first_mut() else { return };
        let request = Request::NoteUse { pages };
        // What does not arrive is lost: it is a hint.
        let _ = if waits {
            let deadline_ns = clock::deadline_ns(USE_WAIT_MS);
            self.daemon_call(client, endpoint, OWN, request, deadline_ns).map(drop)
        } else {
            own.say(request)
        };
    }

    /// How often locks were lost so far without being asked for.
    pub(crate) fn loss_count(&self) -> u64 {
        self.losses.count()
    }

    /// Notes that locks are lost because their pages have turned out to be elsewhere.
    pub(crate) fn note_strays(&mut self, client: &Client<Window>) {
        self.losses.note(self.locks.stray(client));
    }

    /// The last loss, for an access that was under way when it happened.
    pub(crate) fn loss(&mut self) -> Error {
        self.losses.told()
    }

    /// A loss that no caller was told of yet, for the first access after it.
    pub(crate) fn tell_loss(&mut self) -> Result<()> {
        self.losses.tell()
    }

    fn remote(&mut self, link: LinkId) -> &mut RemoteLink {
        match &mut self.links[link.0 as usize] {
            Link::Remote(remote) => remote,
            Link::Local(_) => unreachable!("only called for links over the fabric"),
        }
    }

    /// Waits until a work request ended or a connection closed; what ended is for
    /// `take_completions`. `false` if nothing happened until the deadline.
    pub(crate) fn wait_completions(&mut self, endpoint: &mut Endpoint, deadline_ns: u64) -> bool {
        loop {
            // Some may have come while something else was waited for.
            if self.sort_events() {
                return true;
            }
            if clock::now_ns() >= deadline_ns {
                return false;
            }
            endpoint.wait(deadline_ns, &mut self.inbox.events);
        }
    }

    /// As [`Links::wait_completions`], without waiting.
    pub(crate) fn poll_completions(&mut self, endpoint: &mut Endpoint) {
        endpoint.poll(clock::now_ns(), &mut self.inbox.events);
        self.sort_events();
    }

    /// Notes closed connections; whether there is one, or a completion.
    fn sort_events(&mut self) -> bool {
        self.inbox.sort(|_| ());
        let progress = !self.inbox.completions.is_empty() || !self.inbox.closed.is_empty();
        for peer in self.inbox.closed.drain(..) {
            closed(&mut self.links, peer);
        }
        progress
    }

    /// Work requests that ended since the last call.
    pub(crate) fn take_completions(&mut self) -> std::vec::Drain<'_, (u64, WorkStatus)> {
        self.inbox.completions.drain(..)
    }

    /// The slot of a mapped link.
    pub(crate) fn lease(&self, link: LinkId) -> Option<Arc<SlotLease>> {
        match self.links.get(link.0 as usize)? {
            Link::Local(local) => Some(local.lease()),
            Link::Remote(_) => None,
        }
    }

    /// The handle ends: racks that are reached over the fabric are told.
    pub(crate) fn leave(&mut self, endpoint: &mut Endpoint) {
        for link in &mut self.links {
            if let Link::Remote(remote) = link {
                remote.leave(endpoint);
            }
        }
    }

    /// What carries one-sided operations to racks that are not mapped.
    pub(crate) fn fabric_name(&self) -> &'static str {
        if self.uses_verbs { "verbs" } else { "tcp" }
    }

    /// Why a link to this rack takes the path that it takes, for people.
    pub(crate) fn why(&self, rack: RackId, mapped: bool) -> String {
        let is_own = rack.same_rack(self.own);
        match (is_own, mapped, self.shared.options.fabric) {
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
            Link::Local(local) if local.region().rack.same_rack(self.own) => {
                local.region().emulate_cxl_ns
            }
            Link::Local(local) => local.region().emulate_rdma_ns,
            Link::Remote(remote) => remote.region().emulate_rdma_ns,
        }
    }

    /// What was sent so far.
    pub(crate) fn stats(&self, endpoint: &Endpoint) -> HandleStats {
        let ring_requests = self.links.iter().map(|link| match link {
            Link::Local(local) => local.requests_sent,
            Link::Remote(_) => 0,
        });
        let fabric = endpoint.stats();
        HandleStats {
            slot: match &self.links[0] {
                Link::Local(local) => local.slot_index(),
                Link::Remote(_) => 0,
            },
            ring_requests: ring_requests.sum(),
            master_requests: self.master.calls_sent(),
            fabric_operations: fabric.ops,
            fabric_send_calls: fabric.send_calls,
            fabric_receive_calls: fabric.recv_calls,
            paths: PathStats::default(),
            coupled: CoupledStats::default(),
            replica_reads: 0,
        }
    }
}

/// The control socket of a rack with a daemon that serves now, if the master says so soon.
fn control_of(master: &mut MasterLink, rack: RackId, host: &str, deadline_ns: u64) -> Found {
    let soon_ns = deadline_ns.min(clock::deadline_ns(CONTROL_ANSWER_MS_MAX));
    let answer = master.call(MasterCall::Rack { rack }, clock::instant(soon_ns));
    match answer {
        Ok(MasterAnswer::Rack(info)) if info.alive => Found::At(control_on(&info, host)),
        Err(Error::NoSuchRack { .. }) => Found::Gone,
        _ => Found::Unknown,
    }
}

fn closed(links: &mut [Link], peer: PeerId) {
    for link in links {
        if let Link::Remote(remote) = link {
            remote.on_closed(peer);
        }
    }
}

/// The master said something that does not answer the call.
pub(crate) fn unexpected_answer(answer: &MasterAnswer) -> Error {
    Error::Protocol { peer: "master".into(), reason: format!("unexpected answer {answer:?}") }
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
