//! `rackpool master` and `rackpool daemon`: a server until SIGINT, SIGTERM or SIGHUP, or until the
//! process that started it is gone. In: options. Out: one line `ready ADDR`, with `metrics=ADDR`
//! behind it if counters are served, on standard output; logs on standard error. The servers
//! themselves live in the pool's library.

use crate::args::{DaemonArgs, MasterArgs, Switch};
use crate::connect::{find_master, found_options, name_secret, token};
use crate::failure::{Failure, Result};
use crate::interrupt;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::{BalanceParams, Emulate, FabricChoice, Handle, RackId};
use rackpool_core::constants::{MASTER_CONNECTIONS_MAX, REMOTE_SESSIONS_MAX, SLOTS_MAX};
use rackpool_core::wire::FabricKind;
use rackpool_mem::process::{Shutdown, raise_descriptor_limit};
use rackpool_mem::temporary::{RemovedAtEnd, TemporaryDir};
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use tracing::{info, warn};

const DESCRIPTORS_MIN: u64 = 48;
/// Descriptors beside those of connections: listeners, files, events.
const DESCRIPTORS_SPARE: u64 = 64;
/// Descriptors of a daemon's clients: of those of its host each has a connection, its process, a
/// slot and an event, of others each a connection.
const CLIENT_DESCRIPTORS: u64 = 4 * SLOTS_MAX as u64 + REMOTE_SESSIONS_MAX as u64;

pub fn master(args: &MasterArgs) -> Result<()> {
    may_listen(args.listen, args.metrics, Guards::of(&args.secret_file, &args.metrics_token_file))?;
    if let Some(few) = few_descriptors(MASTER_CONNECTIONS_MAX as u64, "connections")? {
        warn!(target: "master", "{few}");
    }
    let shutdown = interrupt::shutdown()?;
    let state = State::of(args)?;
    let server = start_master(args, &state.path)?;
    info!(target: "master", "state in {}", state.path.display());
    let say = |what: fmt::Arguments<'_>| info!(target: "master", "{what}");
    let serving = Serving {
        addr: server.local_addr(),
        metrics: server.metrics_addr(),
        end_event: server.as_fd(),
        with_parent: args.exit_with_parent,
    };
    serve(&serving, shutdown, &say)?;
    server.stop()?;
    say(format_args!("stopped"));
    Ok(())
}

/// Where a master keeps its state, and what of it goes with the master.
struct State {
    path: PathBuf,
    _removed: Option<RemovedAtEnd>,
    _temporary: Option<TemporaryDir>,
}

impl State {
    fn of(args: &MasterArgs) -> Result<State> {
        let Some(path) = args.state.clone() else {
            let base = std::env::temp_dir();
            let made = TemporaryDir::new(&base, "master");
            let directory = made.map_err(|error| Failure::file(&base, &error))?;
            let path = directory.path().join("state");
            return Ok(State { path, _removed: None, _temporary: Some(directory) });
        };
        // A directory that was there before is not ours to remove.
        let made = args.ephemeral.then(|| RemovedAtEnd::make(&path)).transpose();
        let removed = made.map_err(|error| Failure::file(&path, &error))?.flatten();
        Ok(State { path, _removed: removed, _temporary: None })
    }
}

pub fn daemon(args: &DaemonArgs) -> Result<()> {
    may_listen(args.listen, args.metrics, Guards::of(&args.secret_file, &args.metrics_token_file))?;
    if let Some(few) = few_descriptors(CLIENT_DESCRIPTORS, "clients")? {
        warn!(target: "daemon", "{few}");
    }
    let shutdown = interrupt::shutdown()?;
    let default = || format!("shm:/dev/shm/rackpool-rack{}?size=1G", args.rack);
    let memory = args.memory.clone().unwrap_or_else(default);
    let emulate = args.emulate.unwrap_or_default();
    let (shard, shards) = args.shard;
    let home = RackId::sharded(args.rack, shard, shards).unwrap_or(RackId(args.rack));
    if emulate.is_on() {
        let (cxl, rdma) = (emulate.cxl_ns, emulate.rdma_ns);
        warn!(target: "daemon", "rack {home}: emulated latency: cxl {cxl} ns, rdma {rdma} ns");
    }
    let server = start_daemon(args, &memory, emulate)?;
    let kept = if args.ephemeral { "removed at the end" } else { "kept at the end" };
    info!(target: "daemon", "rack {home}: memory {memory}, {kept}");
    let say = |what: fmt::Arguments<'_>| info!(target: "daemon", "rack {home}: {what}");
    let serving = Serving {
        addr: server.local_addr(),
        metrics: server.metrics_addr(),
        end_event: server.as_fd(),
        with_parent: args.exit_with_parent,
    };
    serve(&serving, shutdown, &say)?;
    server.end()?;
    say(format_args!("stopped"));
    Ok(())
}

fn start_master(args: &MasterArgs, state: &Path) -> Result<MasterServer> {
    let mut options = MasterOptions::new(args.listen.to_string(), state);
    options.lease_ms = args.lease_ms;
    options.metrics = args.metrics;
    options.metrics_token = token(args.metrics_token_file.as_deref())?;
    options.policy = args.placement;
    name_secret(&mut options.secret, args.secret_file.as_deref())?;
    Ok(MasterServer::start(options)?)
}

fn start_daemon(args: &DaemonArgs, memory: &str, emulate: Emulate) -> Result<DaemonServer> {
    let (shard, shards) = args.shard;
    let found = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    find_master(&found.master)?;
    let options = DaemonOptions::new(args.rack, &found.master.join(","), memory);
    let mut options = options.shard(shard, shards);
    options.spill.clone_from(&args.spill);
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
    Ok(DaemonServer::start(options)?)
}

fn sweep(handle: &mut Handle, rack: RackId) -> std::result::Result<bool, String> {
    rackpool_table::audit::sweep(handle, rack).map_err(|error| error.to_string())
}

/// A server that runs until it is stopped.
struct Serving<'s> {
    addr: SocketAddr,
    /// Where it tells its counters, if it does.
    metrics: Option<SocketAddr>,
    /// Becomes ready for reading when it ends by itself.
    end_event: BorrowedFd<'s>,
    /// Whether it ends with the process that started it.
    with_parent: bool,
}

/// Says where it serves, and waits until it is to stop.
fn serve(
    serving: &Serving<'_>,
    shutdown: Shutdown,
    say: &dyn Fn(fmt::Arguments<'_>),
) -> Result<()> {
    let Serving { addr, metrics, end_event, with_parent } = *serving;
    let said = metrics.map_or(String::new(), |metrics| format!(" metrics={metrics}"));
    say_ready(&format!("{addr}{said}"))?;
    say(format_args!("serving at {addr}"));
    if let Some(metrics) = metrics {
        say(format_args!("counters at http://{metrics}/metrics"));
    }
    let why = wait_for_end(Some(end_event), shutdown, with_parent)?;
    say(format_args!("{why}: stopping"));
    Ok(())
}

/// Says on standard output where a server serves.
pub fn say_ready(addrs: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    interrupt::serve();
    let ready = writeln!(out, "ready {addrs}").and_then(|()| out.flush());
    ready.map_err(|error| Failure::io("standard output", &error))
}

/// Sleeps until a signal, until the server ends by itself or, with a parent that holds our
/// standard input, until that ends.
pub fn wait_for_end(
    end: Option<BorrowedFd<'_>>,
    shutdown: Shutdown,
    with_parent: bool,
) -> Result<&'static str> {
    let mut stdin = std::io::stdin();
    loop {
        let shutdown_fd = shutdown.as_fd();
        let mut fds = vec![PollFd::from_borrowed_fd(shutdown_fd, PollFlags::IN)];
        if with_parent {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        fds.extend(end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::io("waiting for a signal", &error.into())),
        }
        let input_is_ready = with_parent && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let has_ended = end.is_some() && fds.last().is_some_and(|fd| !fd.revents().is_empty());
        if shutdown.is_requested() {
            return Ok("signal");
        }
        if has_ended {
            return Ok("ended by itself");
        }
        if input_is_ready && !matches!(stdin.read(&mut [0; 256]), Ok(1..)) {
            return Ok("the parent process is gone");
        }
    }
}

/// Lets this process have as many descriptors as its user may; what does not fit into them of the
/// `wanted` ones that connections may need.
pub fn few_descriptors(wanted: u64, what: &str) -> Result<Option<String>> {
    let limit = raise_descriptor_limit();
    let way_out = "raise ulimit -Hn, or LimitNOFILE= in the unit";
    if limit < DESCRIPTORS_MIN {
        let what =
            format!("{limit} descriptors are too few to serve, {DESCRIPTORS_MIN} are needed");
        return Err(Failure::new("config", what).with_hint(way_out));
    }
    let wanted = wanted + DESCRIPTORS_SPARE;
    let few = format!("{limit} descriptors, {wanted} would do for all {what} that are possible");
    let few = format!("{few}: when they are used up others are refused; {way_out}");
    Ok((limit < wanted).then_some(few))
}

/// What others are asked for.
#[derive(Clone, Copy)]
struct Guards {
    has_secret: bool,
    has_token: bool,
}

impl Guards {
    fn of(secret: &Option<PathBuf>, token: &Option<PathBuf>) -> Self {
        Self { has_secret: secret.is_some(), has_token: token.is_some() }
    }
}

/// Other machines may only be let in if they have to prove that they belong to the pool, and read
/// the counters if they have the token for them.
fn may_listen(listen: SocketAddr, metrics: Option<SocketAddr>, guards: Guards) -> Result<()> {
    let denied = |addr: SocketAddr, way_out: &str| {
        let addr = addr.ip();
        let message = format!("{addr} can be reached from other machines: {way_out}");
        Err(Failure::new("denied", message))
    };
    if !listen.ip().to_canonical().is_loopback() && !guards.has_secret {
        let way_out = "give all processes of the pool a secret with --secret-file FILE, or listen \
                       at a loopback address such as 127.0.0.1";
        return denied(listen, way_out);
    }
    match metrics.filter(|addr| !addr.ip().to_canonical().is_loopback() && !guards.has_token) {
        Some(metrics) => {
            let way_out = "serve the counters at a loopback address, or ask for a token with \
                           --metrics-token-file FILE";
            denied(metrics, way_out)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_let_in_with_a_secret_only_and_to_the_counters_with_a_token() {
        let addr = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (here, there) = (addr("127.0.0.2:0"), addr("192.0.2.1:7400"));
        let none = Guards { has_secret: false, has_token: false };
        let (secret, token) =
            (Guards { has_secret: true, ..none }, Guards { has_token: true, ..none });
        let refused = may_listen(there, None, token).unwrap_err();
        assert_eq!((refused.code(), refused.exit_code()), ("denied", 1));
        assert!(refused.message().contains("--secret-file"), "{refused}");
        assert!(may_listen(there, Some(here), secret).is_ok());
        assert!(may_listen(addr("[::]:0"), None, none).is_err());
        assert!(may_listen(addr("[::ffff:127.0.0.1]:0"), None, none).is_ok());
        assert!(may_listen(addr("[::ffff:192.0.2.1]:0"), None, none).is_err());
        assert!(may_listen(here, Some(here), none).is_ok());
        let refused = may_listen(here, Some(there), secret).unwrap_err();
        assert_eq!(refused.code(), "denied");
        assert!(refused.message().contains("--metrics-token-file"), "{refused}");
        assert!(may_listen(here, Some(there), token).is_ok());
    }
}
