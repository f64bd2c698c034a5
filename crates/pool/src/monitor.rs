//! A look at a whole pool from outside: the master's counters and those of every rack's daemon,
//! asked again and again. Takes no slot and no rack of its own; it holds one connection to the
//! master and one session at each daemon, over the fabric endpoint that every daemon has.
//!
//! Used by `rackpool top`. A rack that does not answer costs a bounded time and is listed with the
//! reason; the others are shown all the same.

use crate::clock;
use crate::drive::block;
use crate::link::MasterLink;
use crate::links::fabric_error;
use crate::network::{Inbox, Network};
use crate::stats::RackStats;
use rackpool_core::client::{DaemonQuery, MasterQuery};
use rackpool_core::error::DeathCause;
use rackpool_core::runtime::client::RemoteLink;
use rackpool_core::seam::{BufId, Nanos};
use rackpool_core::wire::{FabricKind, MasterStats, RackInfo, Reply, Request};
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::{Endpoint, FabricOptions, Over};
use std::collections::BTreeMap;

/// How long one rack may take to answer, ms: the others wait meanwhile.
const RACK_MS_MAX: u64 = 1_000;

/// What was seen at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When, ns of this host's monotonic clock.
    pub at_ns: Nanos,
    /// The master's counters.
    pub master: MasterStats,
    /// The racks', by number.
    pub racks: Vec<RackStats>,
}

/// The connections; see the module.
///
/// ```
/// # fn main() -> rackpool::Result<()> {
/// use rackpool::{cluster::Cluster, monitor::Monitor};
/// let cluster = Cluster::start(2)?;
/// let mut monitor = Monitor::new(vec![cluster.master_addr()], 5_000)?;
/// let sample = monitor.sample()?;
/// assert_eq!(sample.master.daemons, 2);
/// assert!(sample.racks.iter().all(|rack| rack.alive && rack.daemon.is_some()));
/// # Ok(()) }
/// ```
pub struct Monitor {
    pub(crate) master: MasterLink,
    pub(crate) timeout_ms: u64,
    /// Of the fabric that the daemons offer.
    endpoint: Endpoint,
    options: FabricOptions,
    inbox: Inbox,
    racks: BTreeMap<RackId, RemoteLink<BufId>>,
}

impl Monitor {
    /// A monitor of the pool with its master at one of `masters`; nothing is asked yet.
    /// `timeout_ms` is how long a sample rides through a restart of the master.
    ///
    /// # Errors
    /// `config` without an address; `io` if the system gives no descriptor.
    pub fn new(masters: Vec<String>, timeout_ms: u64) -> crate::Result<Self> {
        Self::with_secret(masters, timeout_ms, None)
    }

    /// As [`Monitor::new`], of a pool with a secret.
    ///
    /// # Errors
    /// As of [`Monitor::new`].
    pub fn with_secret(
        masters: Vec<String>,
        timeout_ms: u64,
        secret: Option<Secret>,
    ) -> crate::Result<Self> {
        if masters.is_empty() {
            return Err(Error::Config { reason: "no master is named".into() }.into());
        }
        // Why a connection ended is in the next sample; a line would only spoil a screen.
        let mut master = MasterLink::new(masters);
        master.set_secret(secret.clone());
        let options = FabricOptions { secret, ..FabricOptions::default() };
        Ok(Self {
            master,
            timeout_ms,
            endpoint: Endpoint::new(options.clone()).map_err(fabric_error)?,
            options,
            inbox: Inbox::default(),
            racks: BTreeMap::new(),
        })
    }

    /// Asks the master and every rack. Blocks for up to `timeout_ms` for the master and a second
    /// for each rack.
    ///
    /// # Errors
    /// What the master's silence means: `timeout`, `peer-dead`, `version`, `denied`. Racks have
    /// theirs in the sample.
    pub fn sample(&mut self) -> crate::Result<Sample> {
        let deadline = clock::instant(clock::deadline_ns(self.timeout_ms));
        let master = self.master.ask(&MasterQuery::stats(), deadline)?;
        let infos = self.master.ask(&MasterQuery::racks(), deadline)?;
        let racks = infos.iter().map(|info| {
            let asked = self.query(info, &DaemonQuery::stats());
            let error = asked.as_ref().err().map(Error::to_string);
            let (daemon, tiers) = asked.ok().unzip();
            RackStats {
                rack: info.rack,
                alive: info.alive,
                fabric: format!("{:?}", info.fabric).to_lowercase(),
                fabric_addr: info.fabric_addr.clone(),
                error,
                daemon,
                tiers: tiers.unwrap_or_default(),
            }
        });
        let racks = racks.collect();
        Ok(Sample { at_ns: clock::now_ns(), master, racks })
    }

    /// Asks a daemon what changes nothing.
    pub(crate) fn query<A>(&mut self, info: &RackInfo, query: &DaemonQuery<A>) -> Result<A> {
        query.answer(info.rack, self.ask(info, &query.request())?)
    }

    fn ask(&mut self, info: &RackInfo, request: &Request) -> Result<Reply> {
        let peer = || format!("daemon of rack {}", info.rack);
        if !info.alive {
            return Err(Error::PeerDead { peer: peer(), cause: DeathCause::Closed });
        }
        let deadline_ns = clock::deadline_ns(RACK_MS_MAX);
        if info.fabric == FabricKind::Verbs && self.racks.is_empty() {
            let options = FabricOptions { over: Over::Verbs, ..self.options.clone() };
            self.endpoint = Endpoint::new(options).map_err(fabric_error)?;
        }
        let Self { endpoint, inbox, racks, .. } = self;
        inbox.completions.clear();
        for (closed, _) in inbox.closed.drain(..) {
            racks.values_mut().for_each(|link| link.on_closed(closed));
        }
        let mut network = Network { endpoint, inbox };
        let link = match racks.entry(info.rack) {
            std::collections::btree_map::Entry::Occupied(known) => {
                let link = known.into_mut();
                if link.peer().is_none() {
                    block(link.over(&mut network, deadline_ns).reconnect(info, Vec::new()))?;
                }
                link
            }
            std::collections::btree_map::Entry::Vacant(unknown) => {
                unknown.insert(block(RemoteLink::connect(&mut network, info, deadline_ns))?)
            }
        };
        let started_ns = clock::now_ns();
        link.session.begin(request.clone());
        if let Some(reply) = block(link.over(&mut network, deadline_ns).call(started_ns)) {
            return reply;
        }
        // The connection had ended since the last sample.
        block(link.over(&mut network, deadline_ns).reconnect(info, Vec::new()))
            .map_err(|error| link.session.give_up(error))?;
        if let Some(ended) = link.session.rejoined() {
            return ended;
        }
        block(link.over(&mut network, deadline_ns).call(started_ns)).unwrap_or_else(|| {
            let dead = Error::PeerDead { peer: peer(), cause: DeathCause::Closed };
            Err(link.session.give_up(dead))
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut network = Network { endpoint: &mut self.endpoint, inbox: &mut self.inbox };
        for link in self.racks.values_mut() {
            block(link.over(&mut network, 0).leave());
        }
    }
}
