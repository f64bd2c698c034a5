//! The one place where the command line meets the library crates: a pool as a client sees it, its
//! hash tables, the two servers and the benchmarks, with errors as [`Failure`]s.

use crate::agent_args::{AgentArgs, FenceArgs};
use crate::args::{BenchName, DaemonArgs, MasterArgs, MasterAt, PoolArgs, Switch};
use crate::failure::{Failure, Result};
use rackpool::agent::{AgentOptions, AgentServer};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::monitor::Monitor;
use rackpool::{BalanceParams, CasOutcome, Handle, Options, Pool, PoolStats, Secret};
use rackpool_bench::report::Report;
use rackpool_bench::run::{BenchError, PoolSource, Progress, Size};
use rackpool_bench::ycsb::{Distribution, WORKLOADS, Workload, YcsbError};
use rackpool_bench::{local, locks, remote, ring, rrpc, ycsb_run};
use rackpool_core::wire::FabricKind;
use rackpool_kv::audit::Findings;
use std::io::BufRead;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub use rackpool::monitor::Sample;
#[cfg(feature = "lab")]
pub use rackpool::{DecisionRecord, LogPiece};
pub use rackpool::{
    DrainReport, Emulate, FabricChoice, GAddr, Member, Placement, RackId, RackState,
};

/// The table that holds the shell's objects and the files of `demo`.
const OBJECTS: &str = "objects";
/// How long a master or a rack may be away when a command begins, unless a time is given: it may be
/// starting.
const PEER_WITHIN: Duration = Duration::from_secs(1);

impl From<rackpool_kv::Error> for Failure {
    fn from(error: rackpool_kv::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<rackpool::master::MasterError> for Failure {
    fn from(error: rackpool::master::MasterError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

pub struct ObjectPlace {
    pub bytes: u64,
    pub explained: String,
}

/// Joins the pool of a master that is there now: calls wait for `args.timeout_ms` from then on.
pub fn open_pool_now(args: &PoolArgs) -> Result<Pool> {
    let options = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    find_master(&options.master)?;
    open_pool(args)
}

/// Joins the pool that the arguments and the environment name.
pub fn open_pool(args: &PoolArgs) -> Result<Pool> {
    let mut options = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    options.rack = args.rack.unwrap_or(options.rack);
    options.fabric = args.fabric.unwrap_or(options.fabric);
    options.verbs_device = args.verbs_device.clone().or(options.verbs_device);
    match args.timeout_ms {
        Some(timeout_ms) => options.request_timeout_ms = timeout_ms,
        None => {
            find_master(&options.master)?;
            options.dead_rack_ms = Some(PEER_WITHIN.as_millis() as u64);
        }
    }
    Ok(Pool::open(options)?)
}

/// Audits that begin while another one runs wait for it this often, and this long.
const AUDITS_MAX: u32 = 20;
const AUDIT_PAUSE: Duration = Duration::from_millis(500);

/// Audits a pool, as a client of the rack that is named or of any rack of this host.
pub fn fsck(args: &PoolArgs, repair: bool) -> Result<Findings> {
    let mut handle = open_any_rack(args)?.handle()?;
    for audit in 1..=AUDITS_MAX {
        match rackpool_kv::audit::audit(&mut handle, repair) {
            Err(rackpool_kv::Error::Pool(rackpool::Error::Busy { .. })) if audit < AUDITS_MAX => {
                std::thread::sleep(AUDIT_PAUSE);
            }
            found => return Ok(found?),
        }
    }
    unreachable!("the last audit returns")
}

fn open_any_rack(args: &PoolArgs) -> Result<Pool> {
    let at = MasterAt { master: args.master.clone(), secret_file: args.secret_file.clone() };
    let named = args.rack.or(std::env::var_os("RACKPOOL_RACK").map(|_| 0));
    if named.is_some() {
        return open_pool(args);
    }
    let members = Watch::open(&at)?.members()?;
    let mut failed = Failure::new("no-such-rack", "no rack of the pool is there");
    for member in members.iter().filter(|member| member.info.alive) {
        let rack = Some(member.info.rack.number());
        match open_pool(&PoolArgs { rack, ..args.clone() }) {
            Ok(pool) => return Ok(pool),
            Err(failure) => failed = failure,
        }
    }
    Err(failed)
}

/// A program's way into a pool.
pub struct Client {
    handle: Handle,
    objects: Option<rackpool_kv::Table>,
}

impl Client {
    /// Joins the pool that the arguments and the environment name.
    pub fn open(args: &PoolArgs) -> Result<Self> {
        Ok(Self { handle: open_pool(args)?.handle()?, objects: None })
    }

    pub fn alloc(&mut self, bytes: u64, placement: Placement) -> Result<GAddr> {
        Ok(self.handle.alloc(bytes, placement)?)
    }

    pub fn free(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        Ok(self.handle.free(addr, bytes)?)
    }

    pub fn read(&mut self, addr: GAddr, bytes: u64) -> Result<Vec<u8>> {
        let limit = usize::try_from(bytes);
        let length = limit.map_err(|_| Failure::new("bad-size", format!("{bytes} bytes")))?;
        let mut to = vec![0; length];
        self.handle.read(addr, &mut to)?;
        Ok(to)
    }

    pub fn write(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        Ok(self.handle.write(addr, from)?)
    }

    /// Replaces `old` by `new`, or tells what was there instead.
    pub fn cas(&mut self, addr: GAddr, old: u64, new: u64) -> Result<CasOutcome> {
        Ok(self.handle.cas(addr, old, new)?)
    }

    /// Adds, wrapping; the value before.
    pub fn add(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        Ok(self.handle.fetch_add(addr, n)?)
    }

    /// A table of its own, made if it is not there.
    pub fn table(&mut self, name: &str) -> Result<Table> {
        let options = rackpool_kv::Options::default();
        Ok(Table(rackpool_kv::Table::open_or_create(&mut self.handle, name, options)?))
    }

    /// The table of named objects.
    pub fn objects(&mut self) -> Result<Table> {
        self.table(OBJECTS)
    }

    /// Moves the page of an address to a rack; where it is now.
    pub fn migrate(&mut self, addr: GAddr, to: RackId) -> Result<RackId> {
        Ok(self.handle.admin().migrate(addr, to)?)
    }

    pub fn put(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        self.with_objects(|table, handle| table.put(handle, name, value).map(drop))
    }

    /// An object's bytes, or `None`.
    pub fn get(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.with_objects(|table, handle| table.get(handle, name))
    }

    /// Removes an object; `false` if there is none.
    pub fn delete(&mut self, name: &[u8]) -> Result<bool> {
        self.with_objects(|table, handle| table.delete(handle, name))
    }

    /// Names and lengths of objects, sorted.
    pub fn list(&mut self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, u64)>> {
        self.with_objects(|table, handle| table.list(handle, prefix))
    }

    /// Where an address lives, and why it is reached as it is: `key=value` lines.
    pub fn explain(&mut self, addr: GAddr) -> Result<String> {
        Ok(self.handle.explain(addr)?.to_string())
    }

    /// Where an object lives, or `None`.
    pub fn explain_object(&mut self, name: &[u8]) -> Result<Option<ObjectPlace>> {
        let Some((addr, bytes)) = self.with_objects(|table, handle| table.locate(handle, name))?
        else {
            return Ok(None);
        };
        Ok(Some(ObjectPlace { bytes, explained: self.explain(addr)? }))
    }

    /// Counters of the whole pool.
    pub fn stats(&mut self) -> Result<PoolStats> {
        Ok(self.handle.admin().pool_stats()?)
    }

    /// What the racks that are alive decided about moving their pages: a line of JSON for each
    /// decision that they remember, by rack and number.
    pub fn decisions(&mut self) -> Result<String> {
        let mut text = String::new();
        for rack in self.handle.admin().pool_stats()?.racks.iter().filter(|rack| rack.alive) {
            for (number, record) in self.handle.admin().decisions(rack.rack, 0)? {
                let line = serde_json::json!({
                    "rack": rack.rack, "number": number, "record": record,
                });
                text.push_str(&format!("{line}\n"));
            }
            for (number, record) in self.handle.admin().balances(rack.rack, 0)? {
                let line = serde_json::json!({
                    "rack": rack.rack, "number": number, "balance": record,
                });
                text.push_str(&format!("{line}\n"));
            }
        }
        Ok(text)
    }

    fn with_objects<R>(
        &mut self,
        call: impl FnOnce(&mut rackpool_kv::Table, &mut Handle) -> rackpool_kv::Result<R>,
    ) -> Result<R> {
        let mut table = match self.objects.take() {
            Some(table) => table,
            None => self.objects()?.0,
        };
        let result = call(&mut table, &mut self.handle);
        self.objects = Some(table);
        Ok(result?)
    }
}

/// What the environment says, and of it what was given otherwise: the addresses of the master,
/// several with commas between, and the file of the secret.
fn found_options(master: Option<&str>, secret_file: Option<&Path>) -> Result<Options> {
    let mut options = Options::from_env()?;
    if let Some(master) = master {
        options.master = Options::new(master, 0).master;
    }
    name_secret(&mut options.secret, secret_file)?;
    Ok(options)
}

/// Reads the secret from the file that was given.
fn name_secret(secret: &mut Option<Secret>, file: Option<&Path>) -> Result<()> {
    if let Some(file) = file {
        *secret = Some(Secret::from_file(file)?);
    }
    Ok(())
}

/// A look at a pool from outside.
pub struct Watch {
    monitor: Monitor,
    masters: String,
}

impl Watch {
    /// Finds the master that the argument or the environment names.
    pub fn open(at: &MasterAt) -> Result<Self> {
        let options = found_options(at.master.as_deref(), at.secret_file.as_deref())?;
        find_master(&options.master)?;
        let masters = options.master.join(", ");
        let timeout_ms = options.request_timeout_ms;
        let monitor = Monitor::with_secret(options.master, timeout_ms, options.secret)?;
        Ok(Self { monitor, masters })
    }

    pub fn masters(&self) -> &str {
        &self.masters
    }

    pub fn sample(&mut self) -> Result<Sample> {
        Ok(self.monitor.sample()?)
    }

    /// What led to the master's choices of racks, from byte `from` of its log on.
    #[cfg(feature = "lab")]
    pub fn placements(&mut self, from: u64) -> Result<LogPiece> {
        Ok(self.monitor.placements(from)?)
    }

    /// What the daemons of a sample decided about pages, with the heat that led to it.
    #[cfg(feature = "lab")]
    pub fn page_decisions(
        &mut self,
        sample: &Sample,
    ) -> Result<Vec<(RackId, u64, DecisionRecord)>> {
        Ok(self.monitor.page_decisions(sample)?)
    }

    /// All racks that ever joined.
    pub fn members(&mut self) -> Result<Vec<Member>> {
        Ok(self.monitor.members()?)
    }

    /// Orders that a rack is drained; what it is now.
    pub fn drain(&mut self, rack: RackId) -> Result<RackState> {
        Ok(self.monitor.drain(rack)?)
    }

    /// Orders that a draining rack serves again.
    pub fn undrain(&mut self, rack: RackId) -> Result<RackState> {
        Ok(self.monitor.undrain(rack)?)
    }

    /// Gives up a dead rack.
    pub fn forget(&mut self, rack: RackId) -> Result<RackState> {
        Ok(self.monitor.forget(rack)?)
    }

    /// Which pages of a draining rack stay, and why.
    pub fn drain_report(&mut self, member: &Member) -> Result<DrainReport> {
        Ok(self.monitor.drain_report(member)?)
    }
}

/// A command that begins does not wait for a restart as long as one that works already does: an
/// address without a listener is a mistake as a rule.
fn find_master(addrs: &[String]) -> Result<()> {
    let start = Instant::now();
    let no_master = |code, why: &str| {
        let message = format!("no master answers at {}: {why}", addrs.join(", "));
        let hint = "start one with `rackpool master`, or name the address of one that runs";
        Err(Failure::new(code, message).with_hint(hint))
    };
    let (mut found, mut why) = (Vec::new(), "no address is given".to_owned());
    for addr in addrs {
        match rackpool_hw::names::resolve(addr) {
            Ok(some) => found.extend(some),
            Err(error) => why = error.to_string(),
        }
    }
    if found.is_empty() {
        return no_master("config", &why);
    }
    loop {
        for addr in &found {
            match TcpStream::connect_timeout(addr, PEER_WITHIN) {
                Ok(_) => return Ok(()),
                Err(error) => why = error.to_string(),
            }
        }
        if start.elapsed() > PEER_WITHIN {
            return no_master("peer-dead", &why);
        }
        std::thread::sleep(PEER_WITHIN / 20);
    }
}

/// A hash table in the pool.
pub struct Table(rackpool_kv::Table);

impl Table {
    pub fn put(&mut self, client: &mut Client, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(&mut client.handle, key, value)?;
        Ok(())
    }

    /// Puts the value of `key` into `value`; `false` if there is none.
    pub fn get(&mut self, client: &mut Client, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.0.get_into(&mut client.handle, key, value)?)
    }
}

/// A server that runs until it is stopped.
pub enum Server {
    Master(MasterServer),
    Daemon(DaemonServer),
}

impl Server {
    pub fn addr(&self) -> SocketAddr {
        match self {
            Server::Master(server) => server.local_addr(),
            Server::Daemon(server) => server.local_addr(),
        }
    }

    /// Where it tells its counters, if it does.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        match self {
            Server::Master(server) => server.metrics_addr(),
            Server::Daemon(server) => server.metrics_addr(),
        }
    }

    /// What becomes ready for reading when it ends by itself, if it ever does.
    pub fn end_event(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Server::Master(server) => Some(server.as_fd()),
            Server::Daemon(server) => Some(server.as_fd()),
        }
    }

    pub fn stop(self) -> Result<()> {
        match self {
            Server::Master(server) => server.stop()?,
            Server::Daemon(server) => drop(server.end()?),
        }
        Ok(())
    }
}

/// What readers of the counters have to send.
pub fn token(path: Option<&Path>) -> Result<Option<Secret>> {
    Ok(path.map(Secret::from_file).transpose()?)
}

pub fn start_master(args: &MasterArgs, state: &Path) -> Result<Server> {
    let mut options = MasterOptions::new(args.listen.to_string(), state);
    options.lease_ms = args.lease_ms;
    options.metrics = args.metrics;
    options.metrics_token = token(args.metrics_token_file.as_deref())?;
    options.policy = args.placement;
    name_secret(&mut options.secret, args.secret_file.as_deref())?;
    Ok(Server::Master(MasterServer::start(options)?))
}

pub fn start_daemon(args: &DaemonArgs, memory: &str, emulate: Emulate) -> Result<Server> {
    let (shard, shards) = args.shard;
    let found = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    find_master(&found.master)?;
    let options = DaemonOptions::new(args.rack, &found.master.join(","), memory);
    let mut options = options.shard(shard, shards);
    options.overcommit = args.overcommit;
    options.listen = args.listen;
    options.secret = found.secret;
    options.fabric = match args.fabric {
        FabricChoice::Shm => FabricKind::Shm,
        FabricChoice::Tcp | FabricChoice::Auto => FabricKind::Tcp,
        FabricChoice::Verbs => FabricKind::Verbs,
        FabricChoice::Proxied => {
            return Err(Failure::new(
                "config",
                "fabric `proxied` is how a client reaches other racks, not how a rack is reached: \
                 start the daemon with --fabric tcp",
            ));
        }
    };
    options.verbs_device = args.verbs_device.clone().or(found.verbs_device);
    options.emulate = emulate;
    options.migration = args.migrate;
    options.rings = args.rings;
    options.balance = (args.rebalance == Switch::On).then(BalanceParams::default);
    options.client_quota_bytes = args.client_quota;
    options.session_grace_ms = args.session_grace_ms;
    options.allowed_users.clone_from(&args.allow_user);
    options.ephemeral = args.ephemeral;
    options.metrics = args.metrics;
    options.metrics_token = token(args.metrics_token_file.as_deref())?;
    options.sweeper = Some(sweep);
    Ok(Server::Daemon(DaemonServer::start(options)?))
}

fn sweep(handle: &mut Handle, rack: RackId) -> std::result::Result<bool, String> {
    rackpool_kv::audit::sweep(handle, rack).map_err(|error| error.to_string())
}

/// Starts the agent of this host for a rack.
pub fn start_agent(args: &AgentArgs) -> Result<AgentServer> {
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let mut options = agent_options(args.rack, &args.at, &args.memory, &name)?;
    options.verbs_device = args.verbs_device.clone().or(options.verbs_device);
    options.allowed_users.clone_from(&args.allow_user);
    options.metrics = args.metrics;
    options.metrics_token = token(args.metrics_token_file.as_deref())?;
    Ok(AgentServer::start(options)?)
}

/// Says that a host of a rack is off for good; how many clients it had.
pub fn fence(args: &FenceArgs) -> Result<u32> {
    let options = agent_options(args.rack, &args.at, "", "")?;
    Ok(rackpool::agent::fence(&options, &args.host)?)
}

fn agent_options(rack: u16, at: &MasterAt, memory: &str, name: &str) -> Result<AgentOptions> {
    let found = found_options(at.master.as_deref(), at.secret_file.as_deref())?;
    find_master(&found.master)?;
    let mut options = AgentOptions::new(rack, &found.master.join(","), memory, name);
    (options.secret, options.verbs_device) = (found.secret, found.verbs_device);
    options.host = found.host;
    Ok(options)
}

/// What is to be measured, and on what.
pub struct BenchPlan {
    pub name: BenchName,
    pub size: Size,
    /// How the other rack is reached.
    pub fabric: FabricChoice,
    pub source: PoolSource,
    pub ycsb: YcsbPlan,
}

/// What YCSB is to run.
#[derive(Clone, Debug, Default)]
pub struct YcsbPlan {
    pub workloads: Vec<Workload>,
    /// The distributions; empty for all that make sense.
    pub distributions: Vec<Distribution>,
    pub clients: u32,
}

impl YcsbPlan {
    /// What a user names, or everything.
    pub fn new(workloads: &[String], distributions: &[String], clients: u32) -> Result<Self> {
        let wrong = |error: YcsbError| Failure::usage(error.to_string());
        let distributions = distributions.iter().map(|name| name.parse());
        let distributions = distributions.collect::<Result<_, _>>().map_err(wrong)?;
        let mut chosen = WORKLOADS.to_vec();
        if !workloads.is_empty() {
            let named = workloads.iter().map(|name| name.parse());
            chosen = named.collect::<Result<_, _>>().map_err(wrong)?;
        }
        for workload in &chosen {
            workload.mix().map_err(wrong)?;
        }
        Ok(Self { workloads: chosen, distributions, clients })
    }
}

/// Runs a benchmark; `progress` learns step, steps and what is being done.
pub fn run_bench(plan: BenchPlan, progress: &mut dyn FnMut(usize, usize, &str)) -> Result<Report> {
    let BenchPlan { name, size, fabric, source, ycsb } = plan;
    let mut say = |step: Progress| progress(step.done, step.steps, &step.name);
    let report = match name {
        BenchName::Local => local::run(&local::Options { size, source, rack: 0 }, &mut say)?,
        BenchName::Ring => ring::run(&ring::Options { size, source, rack: 0 }, &mut say)?,
        BenchName::Remote => {
            let options = remote::Options { size, source, fabric, rack: 0, remote_rack: 1 };
            remote::run(&options, &mut say)?
        }
        BenchName::Locks => {
            let mut command = own_command("locks-worker")?;
            locks::run(&locks::Options { size, source, fabric }, &mut command, &mut say)?
        }
        BenchName::Rrpc => rrpc::run(&rrpc::Options { size, source, fabric }, &mut say)?,
        BenchName::Ycsb => {
            let mut command = own_command("ycsb-worker")?;
            let YcsbPlan { workloads, distributions, clients } = ycsb;
            let options = ycsb_run::Options {
                size,
                source,
                fabric,
                workloads,
                distributions,
                clients,
                ..ycsb_run::Options::default()
            };
            ycsb_run::run(&options, &mut command, &mut say)?
        }
        _ => return Err(Failure::new("bug", "it has no racks, or servers of its own")),
    };
    Ok(report)
}

/// How client processes are started: this program with another command.
pub fn own_command(word: &'static str) -> Result<impl FnMut(u32) -> Command> {
    let own = std::env::current_exe().map_err(|e| Failure::io("our own executable", &e))?;
    Ok(move |_| {
        let mut command = Command::new(&own);
        crate::environment::clear(&mut command).arg(word);
        command
    })
}

/// A client process of `bench locks`.
pub fn serve_locks(input: &mut dyn BufRead) -> Result<()> {
    Ok(locks::worker(input, &mut std::io::stdout())?)
}

/// A client process of YCSB.
pub fn serve_ycsb(input: &mut dyn BufRead) -> Result<()> {
    Ok(ycsb_run::worker(input, &mut std::io::stdout())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_names_is_run_and_scans_are_refused_with_the_reason() {
        let words = |text: &str| vec![text.to_owned()];
        let plan = YcsbPlan::new(&words("a"), &words("latest"), 4).unwrap();
        assert_eq!(
            (plan.workloads, plan.distributions),
            (vec![Workload::A], vec![Distribution::Latest])
        );
        assert_eq!(YcsbPlan::new(&[], &[], 4).unwrap().workloads, WORKLOADS);
        let refused = YcsbPlan::new(&words("E"), &[], 4).unwrap_err();
        assert_eq!(refused.code(), "usage");
        assert!(refused.message().contains("no order"), "{refused}");
        assert!(YcsbPlan::new(&words("X"), &[], 4).is_err());
        assert!(YcsbPlan::new(&[], &words("bimodal"), 4).is_err());
    }
}
