//! `rackpool kv`: a cache in this process with memcached's and Redis's protocols in front, until
//! SIGINT, SIGTERM or SIGHUP, or until the process that started it is gone. In: options. Out: the
//! line `ready memcached=ADDR resp=ADDR` on standard output; logs on standard error.

use crate::args::PoolArgs;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::kv_args::{KvArgs, Tiering, ValueTierRule};
use crate::kv_behind::BehindMemory;
use crate::kv_files::{check_file_system, kept_bytes, values_path};
use crate::memory_speeds::MemorySpeeds;
use crate::servers::{few_descriptors, say_ready, wait_for_end};
use crate::tiers_advise::Query;
use crate::{kv_config, kv_switch, kv_tiering, tiers, tiers_advise};
use rackpool_cache::front::{
    ListenConfig, Server, Settings, StartError, Tls, check_socket, read_password, read_users,
};
use rackpool_cache::herd::{self, Pipeline};
use rackpool_cache::numa_tier::NumaTier;
use rackpool_cache::pool_tier::{PoolTier, read_cost};
use rackpool_cache::{
    Bandwidths, Cache, Division, Error, FarMemory, Mode, Options, Policy, ReadCost, Recovered,
    Speeds, TierConfig, TierRule,
};
use rackpool_fabric::FabricError;
use rackpool_fabric::secret::Secret;
use rackpool_mem::memory::HostMemory;
use rackpool_mem::numa::{GRAIN_BYTES_MAX, NumaError, Placement};
use rackpool_stats::format::Unit;
use rackpool_tiers::measure::Effort;
use rackpool_tiers::topology::{Sources, Topology};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{info, warn};

/// Clients of HERD's fast path at once, of each listener, if nothing else is said.
const HERD_CLIENTS: u32 = 1024;
/// Memory of a node that its speed is measured with at the start, twice, if it has four times that.
const MEASURED_BYTES: u64 = 64 << 20;

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Open { .. } => "denied",
            StartError::Herd(herd::HerdStartError::BadOption { .. }) => "config",
            StartError::Metrics(error) => error.code(),
            StartError::Herd(herd::HerdStartError::Fabric(FabricError::NotLoopback { .. })) => {
                "denied"
            }
            StartError::Herd(herd::HerdStartError::Fabric(error)) if error.is_absence() => "config",
            _ => "io",
        };
        Failure::new(code, error.to_string())
    }
}

/// Connections that clients may have, each with a descriptor.
fn connections(args: &KvArgs) -> u64 {
    let herd = u64::from(args.herd.is_some()) + u64::from(args.herd_listen.is_some());
    u64::from(args.max_connections) + herd * u64::from(herd_clients(args))
}

/// Refuses memory that this host cannot ever give, since the system would end the process when it
/// fills, and warns of what it cannot give now. Whether it has more than that to give now.
fn check_memory(args: &KvArgs) -> Result<bool> {
    let tier = args.value_tier_nodes().map_or(0, |_| value_tier_bytes(args));
    let has_copies = args.value_tier_rule == ValueTierRule::Bandwidth;
    let copies = if has_copies { copy_bytes(args) } else { 0 };
    let tier = tier.saturating_add(far_bytes(args));
    let wanted = args.memory.saturating_add(tier).saturating_add(copies);
    let Some(host) = HostMemory::now() else { return Ok(true) };
    let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let (asked, there) = (show(wanted), show(host.total_bytes));
    if wanted > host.total_bytes {
        let what =
            format!("{asked} are asked for, and this host, or its limit for us, has {there}");
        let hint = "give less to --memory and to what lies beside it, or raise the limit";
        return Err(Failure::new("full", what).with_hint(hint));
    }
    let kept = kept_bytes(args);
    if let Some(path) = &args.warm {
        check_file_system(path, args.memory.saturating_add(tier), kept)?;
    }
    if wanted > host.available_bytes.saturating_add(kept) {
        let free = show(host.available_bytes);
        let what = format!("{asked} are asked for and {free} of {there} are free: ");
        let way_out = "the system ends processes if all is used; free some, or give less";
        warn!(target: "kv", "{what}{way_out}");
    }
    // What is free is an estimate, and others want some as well.
    Ok(wanted <= host.available_bytes / 8 * 7)
}

/// Refuses options that would have no effect: a user that gives one expects its effect, above all
/// passwords and certificates. `why_tiering`: of a mode that was not named.
fn refuse_idle_options(args: &KvArgs, why_tiering: Option<&str>) -> Result<()> {
    let is_tcp = args.memcached.is_some() || args.resp.is_some();
    let is_unix = args.memcached_socket.is_some() || args.resp_socket.is_some();
    let memcached = args.memcached.is_some() || args.memcached_socket.is_some();
    let resp = args.resp.is_some() || args.resp_socket.is_some();
    let herd = args.herd.is_some() || args.herd_listen.is_some();
    let has_copies = args.value_tier_rule == ValueTierRule::Bandwidth;
    let secret = args.pool.is_some() || args.herd_listen.is_some();
    let tls = args.tls_cert.is_some() || args.tls_key.is_some();
    for (is_given, has_effect, what) in [
        (args.secret_file.is_some(), secret, "--secret-file is for --pool and --herd-listen"),
        (args.password_file.is_some(), resp, "--password-file is for --resp"),
        (args.password.is_some(), resp, "requirepass is for RESP: port, unixsocket"),
        (
            args.socket_mode.is_some(),
            is_unix,
            "--socket-mode is for --memcached-socket and --resp-socket",
        ),
        (args.auth_file.is_some(), memcached, "--auth-file is for --memcached"),
        (args.enable_shutdown, memcached, "--enable-shutdown is for --memcached"),
        (tls, is_tcp, "--tls-cert and --tls-key are for --memcached and --resp"),
        (args.herd_clients.is_some(), herd, "--herd-clients is for --herd and --herd-listen"),
        (args.herd_pipeline.is_some(), herd, "--herd-pipeline is for --herd and --herd-listen"),
        (
            args.far_memory.is_some(),
            has_far(args),
            "--far-memory is for --tiering data and dram:NODES",
        ),
        (
            args.grain.is_some(),
            args.interleave.is_some() || matches!(args.tiering, Some(Tiering::Transparent(_))),
            "--grain is for --interleave and --tiering transparent",
        ),
        (
            args.profile.is_some(),
            args.advise || has_copies || has_far(args),
            "--profile is for --advise, --value-tier-rule bandwidth, --tiering data and dram:NODES",
        ),
        (
            args.value_tier_near.is_some(),
            has_copies,
            "--value-tier-near is for --value-tier-rule bandwidth",
        ),
    ] {
        if is_given && !has_effect {
            let failure = Failure::usage(what);
            return Err(match why_tiering {
                Some(why) if what.contains("--tiering") => failure.with_hint(why),
                _ => failure,
            });
        }
    }
    Ok(())
}

fn herd_clients(args: &KvArgs) -> u32 {
    args.herd_clients.unwrap_or(HERD_CLIENTS)
}

/// Refuses addresses that are taken before a file is read, which may take long.
fn check_addresses(args: &KvArgs) -> Result<()> {
    for addr in [args.memcached, args.resp, args.metrics].into_iter().flatten() {
        let what = format!("listening at {addr}");
        drop(TcpListener::bind(addr).map_err(|error| Failure::io(&what, &error))?);
    }
    for path in [&args.memcached_socket, &args.resp_socket].into_iter().flatten() {
        let what = format!("listening at {}", path.display());
        check_socket(path).map_err(|error| Failure::io(what, &error))?;
    }
    Ok(())
}

pub fn run(args: &KvArgs) -> Result<()> {
    let (mut args, why_tiering) = kv_tiering::resolved(args);
    args.password = kv_config::password(&args)?;
    refuse_idle_options(&args, why_tiering.as_deref())?;
    serve(&args, why_tiering.as_deref())
}

fn serve(args: &KvArgs, why_tiering: Option<&str>) -> Result<()> {
    let few_descriptors = few_descriptors(connections(args), "connections")?;
    let shutdown = interrupt::shutdown()?;
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let password = args.password_file.as_deref().map(read_password).transpose()?;
    let password = password.or_else(|| args.password.clone());
    let users = args.auth_file.as_deref().map(read_users).transpose()?.unwrap_or_default();
    let listen = listen_config(args, threads)?;
    let is_free = check_memory(args)?;
    check_addresses(args)?;
    let advice_query = advice_query(args)?;
    // Last, since it may make a file.
    let (cache, behind) = cache(args, threads)?;
    let settings = Settings {
        threads,
        connections_max: args.max_connections as usize,
        idle_ms: args.idle_seconds.saturating_mul(1000),
        address_max: args.max_connections_per_address.map(|most| most as usize),
        held_bytes_max: Settings::held_bytes_for(args.memory),
        password,
        users,
        memory_bytes: args.memory,
        value_bytes_max: cache.options().max_value,
        policy: args.policy.name.clone(),
        databases: args.databases,
        slow_us: args.slow_us,
        allows_shutdown: args.enable_shutdown,
        script_ms: args.script_ms,
        // The memory of a file is taken in any case: later there may be none.
        populates: args.warm.is_some() || is_free && !args.memory_on_demand,
        ..Settings::default()
    };
    let mut server = Server::start(cache, settings, &listen)?;
    why_tiering.iter().for_each(|why| info!(target: "kv", "{why}"));
    few_descriptors.iter().for_each(|few| warn!(target: "kv", "{few}"));
    let shown = |addr: Option<SocketAddr>| addr.map_or("none".into(), |addr| addr.to_string());
    let (memcached, resp) = server.addrs();
    let (memcached, resp) = (shown(memcached), shown(resp));
    let metrics = server.metrics_addr().map_or(String::new(), |addr| format!(" metrics={addr}"));
    let herd = args.herd.as_ref().map_or(String::new(), |name| format!(" herd={name}"));
    let fabric = server.herd_addr().map_or(String::new(), |addr| format!(" herd-fabric={addr}"));
    let herd = herd + &fabric + &sockets(args);
    say_ready(&format!("memcached={memcached} resp={resp}{metrics}{herd}"))?;
    let longest = server.shared().settings.value_bytes_max;
    let what = format!("serving {} bytes with {threads} threads", args.memory);
    let what = format!("{what}, values of up to {longest}");
    info!(target: "kv", "{what}: memcached {memcached}, resp {resp}{metrics}{herd}");
    let start = |query| tiers_advise::live(query, Arc::clone(server.shared()));
    let _advice = advice_query.map(start).transpose()?;
    let _switches = kv_switch::start(server.shared())?;
    let why = wait_for_end(Some(server.end_event()), shutdown, args.exit_with_parent)?;
    info!(target: "kv", "{why}: stopping");
    server.stop();
    if let Some(behind) = behind {
        behind.close();
    }
    if let Some((code, reason)) = server.failure() {
        return Err(Failure::new(code, reason));
    }
    info!(target: "kv", "stopped");
    Ok(())
}

/// The Unix sockets, as the line says them that tells that it serves.
fn sockets(args: &KvArgs) -> String {
    let named = [("memcached", &args.memcached_socket), ("resp", &args.resp_socket)];
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let shown = named.into_iter().filter_map(|(name, at)| Some((name, path(at)?)));
    shown.map(|(name, path)| format!(" {name}-socket={path}")).collect()
}

fn listen_config(args: &KvArgs, threads: usize) -> Result<ListenConfig> {
    let tls = tls(args)?;
    let secret = args.herd_listen.and(args.secret_file.as_deref()).map(Secret::from_file);
    let secret = secret.transpose()?;
    Ok(ListenConfig {
        memcached: args.memcached,
        resp: args.resp,
        memcached_socket: args.memcached_socket.clone(),
        resp_socket: args.resp_socket.clone(),
        socket_mode: args.socket_mode,
        metrics: args.metrics,
        metrics_token: crate::connect::token(args.metrics_token_file.as_deref())?,
        herd: args.herd.as_deref().map(|name| herd::ServerOptions {
            clients: herd_clients(args),
            pipeline: args.herd_pipeline.unwrap_or(Pipeline::Batched),
            ..herd::ServerOptions::new(name)
        }),
        herd_fabric: args.herd_listen.map(|listen| {
            let options = herd::FabricServerOptions::new(listen, threads as u32);
            let (clients, device) = (herd_clients(args), args.herd_device.clone());
            let pipeline = args.herd_pipeline.unwrap_or(Pipeline::Batched);
            herd::FabricServerOptions { clients, pipeline, secret, device, ..options }
        }),
        open_to_all: args.insecure_open,
        tls,
    })
}

/// What is asked about the mode of this cache while it serves.
fn advice_query(args: &KvArgs) -> Result<Option<Query>> {
    let Some(path) = args.profile.as_ref().filter(|_| args.advise) else { return Ok(None) };
    let query = Query::of(path)?;
    match &args.tiering {
        Some(Tiering::Data(nodes)) => {
            let far = nodes.clone().map_or_else(nodes_without_processors, Ok)?;
            return Ok(Some(Query { far: Some(far), ..query }));
        }
        Some(Tiering::Dram(Some(nodes))) => {
            return Ok(Some(Query { far: Some(nodes.clone()), ..query }));
        }
        _ => {}
    }
    let Some(nodes) = dealt_to(args) else { return Ok(Some(query)) };
    let cpu_node = query.speeds.near;
    // Near is what lies on the processors' node alone.
    let extents = nodes.extents(args.memory);
    let near = extents.iter().filter(|(_, _, node)| *node == cpu_node);
    let near: u64 = near.map(|(_, bytes, _)| bytes).sum();
    Ok(Some(match nodes.without(cpu_node) {
        Some(far) if near > 0 => Query {
            far: Some(far),
            near_memory: Some(near),
            far_memory: Some(args.memory - near),
            ..query
        },
        _ => query,
    }))
}

/// The nodes to which all of the cache is dealt out, if it is.
fn dealt_to(args: &KvArgs) -> Option<&Placement> {
    match &args.tiering {
        Some(Tiering::Transparent(nodes)) => Some(nodes),
        _ => args.interleave.as_ref(),
    }
}

/// Certificate and key, if the listeners are to speak TLS.
fn tls(args: &KvArgs) -> Result<Option<Tls>> {
    let files = args.tls_cert.as_ref().zip(args.tls_key.as_ref());
    let tls = files.map(|(chain, key)| Tls::read(chain, key)).transpose();
    tls.map_err(|reason| Failure::new("config", reason))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The cache, and what lies behind its memory.
fn cache(args: &KvArgs, threads: usize) -> Result<(Cache, Option<BehindMemory>)> {
    // A client that chooses keys must not be able to choose their buckets as well.
    let seed = rackpool_mem::process::random_u64();
    let seed = seed.map_err(|error| Failure::io("the system's random numbers", &error))?;
    let behind = BehindMemory::open(args, seed)?;
    let Some(behind) = behind else { return Ok((cache_in_memory(args, threads, seed)?, None)) };
    let cache = cache_in_memory(args, threads, behind.seed())?;
    Ok((behind.of(cache)?, Some(behind)))
}

fn cache_in_memory(args: &KvArgs, threads: usize, seed: u64) -> Result<Cache> {
    if args.lossy_index && args.policy.mode == Mode::Store {
        let why = "--lossy-index loses items: give another --policy than noeviction";
        return Err(Failure::usage(why));
    }
    if let Some(nodes) = dealt_to(args) {
        nodes.check(args.memory).map_err(no_memory)?;
        kv_tiering::check_room(nodes, args.memory, "--memory", args)?;
    }
    let options = Options {
        memory: args.memory,
        policy: args.policy.policy,
        mode: args.policy.mode,
        seed,
        // One thread shares with no other.
        shared_reads: threads > 1,
        placement: dealt_to(args).cloned(),
        grain_bytes: match args.grain {
            Some(bytes) => bytes,
            // Smaller ones would all be taken at the start.
            None if args.memory_on_demand => GRAIN_BYTES_MAX,
            None => Options::default().grain_bytes,
        },
        far: far_memory(args)?,
        far_waits: matches!(args.tiering, Some(Tiering::Dram(Some(_)))),
        samples_reuse: args.advise,
        items_expected: args.items.unwrap_or(0),
        is_lossy: args.lossy_index,
        takes_file_later: true,
        ..Options::default()
    };
    let Division { partitions, max_value } = divided(args, threads as u32, &options)?;
    let args = &KvArgs { max_value: Some(max_value), ..args.clone() };
    // With a tier it is a limit of what lies there.
    let max_value = if has_tier(args) { 0 } else { max_value };
    let options = Options { partitions, max_value, ..options };
    let tier_config = args.value_tier_nodes().map(|nodes| value_tier(nodes, args)).transpose()?;
    let Some(path) = &args.warm else {
        let cache = Cache::new(options).map_err(failure)?;
        return match (&args.pool, &tier_config) {
            (Some(master), _) => with_pool(cache, master, args),
            (None, Some(tier_config)) => cache.with_tier(tier_config).map_err(failure),
            (None, None) => Ok(cache),
        };
    };
    let opened = Cache::open_with_tier(options, path, tier_config.as_ref());
    let (cache, found) = opened.map_err(|error| match error {
        error @ Error::Corrupt { .. } => {
            let way_out = "start with the --memory, --policy, --tiering, --threads and --max-value \
                           that it was made with, name another file, or remove it to start empty";
            Failure::new(error.code(), format!("{error}: {way_out}"))
        }
        error => failure(error),
    })?;
    let Recovered { items, bytes, lost, damaged } = found;
    let what = format!("{}: {items} items of {bytes} bytes found, {lost} lost", path.display());
    match damaged {
        0 => info!(target: "kv", "{what}"),
        _ => warn!(target: "kv", "{what}, {damaged} places in it were damaged"),
    }
    Ok(cache)
}

/// Into how many partitions all of it is divided, so that the longest value has room.
fn divided(args: &KvArgs, threads: u32, options: &Options) -> Result<Division> {
    let tier_bytes = match (&args.pool, args.value_tier_nodes()) {
        (None, None) => None,
        (Some(_), _) => Some(args.pool_memory.unwrap_or(args.memory)),
        (None, Some(_)) => Some(value_tier_bytes(args)),
    };
    // Far memory that waits to be switched to takes no values yet.
    let near = Options { far: None, ..options.clone() };
    let options = if options.far_waits { &near } else { options };
    let memory = options.far.as_ref().map_or(args.memory, |far| far.memory);
    let asked = args.max_value.filter(|_| tier_bytes.is_none());
    let in_cache = |count| options.longest_value(count);
    let division = Division::new(threads, memory, asked, in_cache);
    let division = match (division, tier_bytes) {
        (Ok(short), Some(bytes)) => Division::new(threads, bytes, args.max_value, |count| {
            if count <= short.partitions { bytes / u64::from(count) / 4 } else { 0 }
        }),
        (division, _) => division,
    };
    let division = division.map_err(|longest| {
        let asked = args.max_value.unwrap_or_default();
        Failure::usage(format!(
            "--max-value is {asked}, and values of up to {longest} bytes fit: a value takes at \
             most a quarter of the memory that long values lie in; give more of it, or a lower \
             --max-value"
        ))
    })?;
    let Division { partitions, max_value } = division;
    if partitions < threads {
        let what = format!("{threads} threads share {partitions} partitions");
        info!(target: "kv", "{what}, so that values of up to {max_value} bytes fit");
    }
    Ok(division)
}

/// Whether there is far memory, if only to be switched to.
fn has_far(args: &KvArgs) -> bool {
    matches!(args.tiering, Some(Tiering::Data(_) | Tiering::Dram(Some(_))))
}

fn far_bytes(args: &KvArgs) -> u64 {
    if has_far(args) { args.far_memory.unwrap_or(args.memory) } else { 0 }
}

/// The memory for items that are worth less, if there is to be any.
fn far_memory(args: &KvArgs) -> Result<Option<FarMemory>> {
    let (nodes, when) = match &args.tiering {
        Some(Tiering::Data(nodes)) => (nodes, ""),
        Some(Tiering::Dram(nodes)) if nodes.is_some() => (nodes, " after CONFIG SET tiering data"),
        _ => return Ok(None),
    };
    if args.policy.policy != Policy::TinyLfu {
        return Err(Failure::usage("--tiering data needs --policy tinylfu, which weighs items"));
    }
    let placement = match nodes {
        Some(nodes) => nodes.clone(),
        None => nodes_without_processors()?,
    };
    let memory = far_bytes(args);
    placement.check(memory).map_err(no_memory)?;
    // Memory that waits is asked for when it is switched to.
    if matches!(args.tiering, Some(Tiering::Data(_))) {
        kv_tiering::check_room(&placement, memory, "--far-memory", args)?;
    }
    let (bandwidths, rule) = match &args.profile {
        Some(path) => {
            let (bandwidths, rule) = bandwidths_in(path, &placement)?;
            (Some(bandwidths), rule)
        }
        None => {
            let rule = "what is read most for its bytes lies near: without --profile, which \
                        `rackpool tiers measure` stores, no bandwidths are known";
            (None, rule.to_owned())
        }
    };
    let what = format!("other items lie on {placement}{when}, up to {memory} bytes; {rule}");
    info!(target: "kv", "{what}");
    Ok(Some(FarMemory { memory, placement: Some(placement), bandwidths }))
}

/// What this host's memory and these nodes deliver to reads, by a profile, and the rule that
/// follows from it, in words.
fn bandwidths_in(path: &Path, far: &Placement) -> Result<(Bandwidths, String)> {
    let speeds = MemorySpeeds::load(path)?;
    let MemorySpeeds { near, origin, .. } = &speeds;
    let near_mbps = speeds.memory(&[(*near, 1)], 1.0)?.bandwidth_mbps;
    let far_mbps = speeds.memory(far.nodes(), 1.0)?.bandwidth_mbps;
    let bytes = |mbps: f64| (mbps * 1e6) as u64;
    let rule = format!(
        "reads are split by bandwidth while near memory is saturated: {near_mbps:.0} MB/s near \
         (node {near}) and {far_mbps:.0} MB/s far, by {origin}; traffic is what the cache itself \
         reads, no counter of the memory"
    );
    Ok((Bandwidths { near: bytes(near_mbps), far: bytes(far_mbps) }, rule))
}

/// As [`kv_tiering::nodes_without_processors`]; there has to be one.
fn nodes_without_processors() -> Result<Placement> {
    let topology = Topology::read(&Sources::here()).map_err(tiers::failure)?;
    let far = kv_tiering::nodes_without_processors(&topology).map_err(no_memory)?;
    far.ok_or_else(|| {
        let what = "this machine has no memory node without processors";
        let hint = "name the nodes, as in --tiering data:numa:1; `rackpool tiers show` has them";
        Failure::new("no-node", what).with_hint(hint)
    })
}

fn no_memory(error: NumaError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

fn has_tier(args: &KvArgs) -> bool {
    args.pool.is_some() || args.value_tier_nodes().is_some()
}

fn value_tier_bytes(args: &KvArgs) -> u64 {
    args.value_tier_memory.unwrap_or(args.memory)
}

/// What copies of values that lie elsewhere may take.
fn copy_bytes(args: &KvArgs) -> u64 {
    args.value_tier_near.unwrap_or(args.memory / 8)
}

/// Memory of these nodes for long values, in a file beside that of the cache if there is one.
fn value_tier(nodes: &Placement, args: &KvArgs) -> Result<TierConfig> {
    let memory = value_tier_bytes(args);
    nodes.check(memory).map_err(no_memory)?;
    kv_tiering::check_room(nodes, memory, "--value-tier-memory", args)?;
    let rule = copy_rule(args, nodes.nodes(), |speeds| speeds.read_cost(nodes.nodes()))?;
    let tier = match &args.warm {
        None => NumaTier::new(nodes, memory),
        Some(path) => NumaTier::open(nodes, memory, &values_path(path)),
    };
    let (tier, min_bytes) = (Arc::new(tier.map_err(failure)?), args.value_tier_from);
    let what = format!("values from {min_bytes} bytes on lie on {nodes}, up to {memory} bytes");
    info!(target: "kv", "{what}");
    Ok(TierConfig { tier, min_bytes, memory, max_value: args.max_value.unwrap_or(0), rule })
}

/// Which values have copies here: none, or those whose reads pay for one, by what reads cost here
/// and, as `far` says by the speeds of these nodes, there. May measure them: blocks for a moment.
fn copy_rule(
    args: &KvArgs,
    nodes: &[(u16, u16)],
    far: impl FnOnce(&MemorySpeeds) -> Result<ReadCost>,
) -> Result<TierRule> {
    if args.value_tier_rule == ValueTierRule::Length {
        return Ok(TierRule::Length);
    }
    let speeds = match &args.profile {
        Some(path) => MemorySpeeds::load(path)?,
        None => {
            let nodes: Vec<u16> = nodes.iter().map(|(node, _)| *node).collect();
            MemorySpeeds::measure(&nodes, |pairs| {
                let available = pairs.iter().filter_map(|pair| pair.available_bytes).min();
                let bytes = available.map_or(MEASURED_BYTES, |bytes| MEASURED_BYTES.min(bytes / 4));
                Effort { bytes, ..Effort::rough(pairs) }
            })?
        }
    };
    let (far, near) = (far(&speeds)?, speeds.read_cost(&[(speeds.near, 1)])?);
    let memory = copy_bytes(args);
    let cost = |cost: ReadCost| format!("{} ns and {} ps a byte", cost.latency_ns, cost.byte_ps);
    let what = format!("up to {memory} bytes of values that are read often are copied here: ");
    let (there, here) = (cost(far), cost(near));
    info!(target: "kv", "{what}a read takes {there} there, {here} here, by {}", speeds.origin);
    Ok(TierRule::Bandwidth { memory, speeds: Speeds { far, near } })
}

/// Long values lie in the pool from now on.
fn with_pool(cache: Cache, master: &str, args: &KvArgs) -> Result<Cache> {
    let pool = PoolArgs {
        rack: args.rack,
        master: Some(master.to_owned()),
        fabric: args.fabric,
        secret_file: args.secret_file.clone(),
        timeout_ms: Some(args.pool_timeout_ms),
        verbs_device: None,
    };
    let tier = PoolTier::new(crate::connect::open_pool_now(&pool)?)?;
    let memory = args.pool_memory.unwrap_or(args.memory);
    let (tier, max_value) = (Arc::new(tier), args.max_value.unwrap_or(0));
    let rule = copy_rule(args, &[], |_| {
        read_cost(&*tier, memory).map_err(|error| {
            Failure::new("tier", format!("measuring the memory for long values: {error}"))
        })
    })?;
    let tier_config = TierConfig { tier, min_bytes: args.pool_values, memory, max_value, rule };
    let cache = cache.with_tier(&tier_config).map_err(failure)?;
    let (from, longest) = (args.pool_values, cache.options().max_value);
    let what = format!("values of {from} to {longest} bytes lie in the pool at {master}, ");
    info!(target: "kv", "{what}up to {memory} bytes");
    Ok(cache)
}

fn failure(error: Error) -> Failure {
    match error {
        error @ Error::BadOption { .. } => Failure::usage(error.to_string()),
        error => Failure::new(error.code(), error.to_string()),
    }
}
