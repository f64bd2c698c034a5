//! `rackpool tiers advise`: which tiering mode a cache should use, what it gains, and why. In: the
//! counters of a running `kv --advise`, or one of the workloads of `bench cache`; a profile of the
//! memories. Out: a table of the modes, reasons, JSON. `kv --advise` asks the same of its own
//! counters, and says it when it changes.

use crate::failure::{Failure, Result};
use crate::memory_speeds::MemorySpeeds;
use crate::output;
use crate::periodic::Periodic;
use crate::values::{parse_listen, parse_seconds, parse_size};
use clap::{ArgGroup, Args};
#[cfg(feature = "lab")]
use rackpool_bench::cache::workload_load::observed_load;
use rackpool_cache::front::Shared;
use rackpool_mem::numa::Placement;
use rackpool_stats::format::Unit;
use rackpool_stats::table::TextTable;
use rackpool_tiers::advice::{
    CacheLoad, CacheMemory, ObservedLoad, TieringAdvice, TieringMode, advise,
};
use rackpool_tiers::weights::WeightsError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

pub const ADVISE_EXAMPLES: &str = "\
Reads the counters of a `rackpool kv --advise` twice: rates are of the time between, hits by
capacity and sizes of all reads since its start, from a sample of keys. --workload takes a stream of
`bench cache` instead, scaled down. Hits by capacity are those of a cache that drops what was used
longest ago, corrected by the misses of the kv. What the processors' caches answer is not known; all
reads count as reads of memory.
dram: all near. data: what is read most near, the rest far (kv --tiering data --profile).
transparent: all dealt out by weights. Nothing is changed.

Examples:
  rackpool kv --memory 4g --memcached 11211 --metrics 9402 --advise --profile profile.json
  rackpool tiers advise --kv 9402 --profile profile.json --far-memory 64g
  rackpool tiers advise --kv 9402 --profile profile.json --gets 2000000 --miss-us 500
  rackpool tiers advise --workload cdn --profile profile.json --near-memory 8g --json -";

/// What a miss costs, unless it is said: a look-up in a database of this machine's network.
const MISS_US: f64 = 100.0;
/// How long a server may take for its counters.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Between two looks of a cache at itself.
const LOOK_EACH: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("load").required(true).args(["kv", "workload"])))]
pub struct TiersAdviseArgs {
    /// The --metrics address of a running `rackpool kv --advise`; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen)]
    pub kv: Option<SocketAddr>,
    /// File with the token that it asks for
    #[arg(long, value_name = "FILE", requires = "kv")]
    pub metrics_token_file: Option<PathBuf>,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// A workload of `bench cache`: cdn, kvcache_reg, ..
    #[arg(long, value_name = "NAME", requires = "near_memory")]
    pub workload: Option<String>,
    /// The memories, as `tiers measure` has stored them
    #[arg(long, value_name = "FILE")]
    pub profile: PathBuf,
    /// The cache runs on the processors of this node [default: the first of the profile]
    #[arg(long, value_name = "NODE")]
    pub cpu_node: Option<u16>,
    /// Far nodes, as for kv: numa:1, or numa:1=1,numa:2=1 [default: all others of the profile]
    #[arg(long, value_name = "NODES")]
    pub far: Option<Placement>,
    /// DRAM of the cache [default: what the kv has]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub near_memory: Option<u64>,
    /// Far memory that it could have [default: what the kv has, or as much as DRAM]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub far_memory: Option<u64>,
    /// Look-ups a second to plan for [default: those that are measured; of a workload: as many as
    /// can be]
    #[arg(long, value_name = "RATE")]
    pub gets: Option<f64>,
    /// Threads that serve [default: those of the kv; of a workload: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// What a miss costs its client, microseconds: it decides between modes that carry the look-ups
    /// that are asked for, so --workload needs --gets beside it [default: 100]
    #[arg(long, value_name = "US")]
    pub miss_us: Option<f64>,
    /// Write the advice as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

pub fn run(args: &TiersAdviseArgs) -> Result<()> {
    if args.miss_us.is_some() && args.workload.is_some() && args.gets.is_none() {
        let what = "without a rate the mode with the most hits a second is best, whatever a miss \
                    costs: give --gets beside --miss-us";
        return Err(Failure::usage(what));
    }
    let json = output::open_if(args.json.as_ref())?;
    let mut query = Query {
        far: args.far.clone(),
        near_memory: args.near_memory,
        far_memory: args.far_memory,
        gets_per_s: args.gets,
        threads: args.threads,
        miss_ns: args.miss_us.unwrap_or(MISS_US) * 1000.0,
        ..Query::of(&args.profile)?
    };
    query.speeds.near = args.cpu_node.unwrap_or(query.speeds.near);
    let observed = match (args.kv, &args.workload) {
        (Some(addr), _) => {
            let token = args.metrics_token_file.as_deref().map(read_token).transpose()?;
            let before = Counters::fetch(addr, token.as_deref())?;
            std::thread::sleep(args.seconds);
            Observed::between(&before, &Counters::fetch(addr, token.as_deref())?)?
        }
        (None, Some(name)) => of_workload(name, &query)?,
        (None, None) => return Err(Failure::usage("--kv or --workload is needed")),
    };
    let answer = query.answer(&observed)?;
    if let Some(json) = json {
        json.write(format!("{}\n", output::json(&answer)?))?;
    }
    output::print(&answer.told())
}

/// What is asked, beside the load.
pub struct Query {
    pub speeds: MemorySpeeds,
    pub far: Option<Placement>,
    pub near_memory: Option<u64>,
    pub far_memory: Option<u64>,
    pub gets_per_s: Option<f64>,
    pub threads: Option<u32>,
    pub miss_ns: f64,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    advice: TieringAdvice,
    near: CacheMemory,
    /// Null if the profile has one memory.
    far: Option<CacheMemory>,
    load: CacheLoad,
}

impl Query {
    /// Of the memories of this profile, with all else as the cache has it.
    pub fn of(path: &Path) -> Result<Query> {
        Ok(Query {
            speeds: MemorySpeeds::load(path)?,
            far: None,
            near_memory: None,
            far_memory: None,
            gets_per_s: None,
            threads: None,
            miss_ns: MISS_US * 1000.0,
        })
    }

    fn answer(&self, observed: &Observed) -> Result<Answer> {
        let seen = &observed.load;
        let threads = self.threads.unwrap_or(seen.threads);
        let gets_per_s = self.gets_per_s.or(seen.gets_per_s);
        let (near_bytes, far_bytes) = self.memory_bytes(observed)?;
        let (near, far) = self.memories(near_bytes, far_bytes, seen.read_share())?;
        let wrong = |error: WeightsError| Failure::usage(error.to_string());
        let load = seen.load(&near, gets_per_s, threads, self.miss_ns).map_err(wrong)?;
        let advice = advise(&near, far.as_ref(), &load).map_err(wrong)?;
        Ok(Answer { advice, near, far, load })
    }

    fn memory_bytes(&self, observed: &Observed) -> Result<(u64, u64)> {
        let near = self.near_memory.or(observed.near_memory);
        let near = near.ok_or_else(|| Failure::usage("--near-memory is needed"))?;
        let far = self.far_memory.or(observed.far_memory).unwrap_or(near);
        Ok((near, far))
    }

    /// The memories of the profile for this share of reads.
    fn memories(
        &self,
        near_bytes: u64,
        far_bytes: u64,
        read_share: f64,
    ) -> Result<(CacheMemory, Option<CacheMemory>)> {
        let memory = |nodes: &[(u16, u16)], bytes| -> Result<CacheMemory> {
            Ok(CacheMemory { bytes, ..self.speeds.memory(nodes, read_share)? })
        };
        let node = self.speeds.near;
        let others = self.speeds.nodes().filter(|other| *other != node).map(|other| (other, 1));
        let far: Vec<(u16, u16)> =
            self.far.as_ref().map_or_else(|| others.collect(), |far| far.nodes().to_vec());
        let near = memory(&[(node, 1)], near_bytes)?;
        Ok((near, (!far.is_empty()).then(|| memory(&far, far_bytes)).transpose()?))
    }
}

impl Answer {
    fn told(&self) -> String {
        let head = ["MODE", "MEMORY", "DRAM", "HITS", "LOOK-UP", "AT MOST", "LOAD", "FAR BYTES"];
        let mut table = TextTable::new(&head);
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        for one in &self.advice.modes {
            table.row([
                one.mode.name().to_owned(),
                Unit::Bytes.show(one.capacity_bytes as f64),
                Unit::Bytes.show(one.dram_bytes as f64),
                percent(one.hit_ratio),
                Unit::Nanoseconds.show(one.get_ns),
                Unit::OpsPerSecond.show(one.gets_per_s_max()),
                one.load.map_or("full".to_owned(), percent),
                percent(one.far_share),
            ]);
        }
        format!("{}\n{}", table.show(), self.lines())
    }

    /// The mode, what it gains, and why.
    fn lines(&self) -> String {
        let TieringAdvice { chosen, gain, reasons, modes } = &self.advice;
        let weights = modes.iter().find(|one| one.mode == *chosen).and_then(|one| one.weights);
        let weights =
            weights.map_or(String::new(), |[near, far]| format!(", weights {near}:{far}"));
        let mut text = format!("use {}{weights}", chosen.name());
        if *chosen != TieringMode::Dram {
            text.push_str(&format!(
                ": {:+.1} % hits, {:+.1} % time of a look-up, {:+.1} % look-ups at most, {} of \
                 DRAM saved",
                gain.hit_ratio * 100.0,
                (gain.get_ns_ratio - 1.0) * 100.0,
                (gain.gets_per_s_ratio - 1.0) * 100.0,
                Unit::Bytes.show(gain.dram_saved_bytes as f64),
            ));
        }
        text.push('\n');
        reasons.iter().for_each(|reason| text.push_str(&format!("  {reason}\n")));
        text
    }
}

/// A load as it was seen, and the memory of its cache.
struct Observed {
    load: ObservedLoad,
    near_memory: Option<u64>,
    far_memory: Option<u64>,
}

impl Observed {
    /// What a server did between two looks at its counters, and since its start.
    fn between(before: &Counters, now: &Counters) -> Result<Observed> {
        let since = |name| Ok::<f64, Failure>(now.get(name)? - before.get(name)?);
        let gets = now.get("cache_hits_total")? + now.get("cache_misses_total")?;
        let items = now.get("items")?;
        if gets == 0.0 || items == 0.0 {
            let what = "the cache has answered no look-ups yet, or holds no items";
            return Err(Failure::new("no-load", what).with_hint("ask again when it has clients"));
        }
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let recent = since("cache_hits_total")? + since("cache_misses_total")?;
        // A cache that was filled first stores less from then on.
        let per_get = |name| match recent > 0.0 {
            true => Ok::<f64, Failure>(since(name)? / recent),
            false => Ok(now.get(name)? / gets),
        };
        let within = now.by_bytes("reads_within_total");
        let sampled = within.last().map_or(0.0, |(_, reads)| *reads);
        let sampled = sampled + now.get("first_reads_total")?;
        // Keys that are read much are in the sample or not by chance: what it has too little, or
        // too much, are reads of them, which any cache answers.
        let missed = gets - sampled;
        let commands = since("command_seconds_count")?;
        let command_ns = since("command_seconds_sum")? * 1e9 / commands;
        let far_memory = now.get("far_memory_bytes")?;
        let load = ObservedLoad {
            gets,
            gets_per_s: Some(recent / seconds),
            sets_per_get: per_get("cache_sets_total")?,
            misses_per_get: per_get("cache_misses_total")?,
            item_bytes: now.get("live_bytes")? / items,
            copied_bytes: per_get("copied_bytes_total")?,
            memory_bytes: Some(now.get("memory_bytes")? as u64),
            within: within.iter().map(|(bytes, reads)| (*bytes, reads + missed)).collect(),
            by_item: now.by_bytes("reads_by_item_total"),
            found_bytes: now.get("found_bytes_total")?,
            threads: now.get("threads")? as u32,
            command_ns: (commands > 0.0).then_some(command_ns),
        };
        Ok(Observed {
            load,
            near_memory: Some((now.get("memory_bytes")? - far_memory) as u64),
            far_memory: (far_memory > 0.0).then_some(far_memory as u64),
        })
    }
}

/// The counters of a `kv`, and when they were read.
struct Counters {
    at: Instant,
    values: BTreeMap<String, f64>,
}

impl Counters {
    /// Of a page in the format of Prometheus.
    fn parse(text: &str) -> Counters {
        let values = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.strip_prefix("rackpool_kv_")?.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Counters { at: Instant::now(), values: values.collect() }
    }

    fn fetch(addr: SocketAddr, token: Option<&str>) -> Result<Counters> {
        let failed = |error: io::Error| {
            let what = format!("the counters at {addr}");
            Failure::io(what, &error).with_hint("name the address of `rackpool kv --metrics`")
        };
        let mut stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {addr}\r\n");
        let asked = format!("{head}Connection: close\r\n{token}\r\n");
        stream.write_all(asked.as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).map_err(failed)?;
        let status = answer.lines().next().unwrap_or_default();
        match answer.split_once("\r\n\r\n") {
            Some((_, page)) if status.contains(" 200 ") => Ok(Counters::parse(page)),
            _ if status.contains(" 401 ") => {
                let what = format!("{addr} asks for a token: {status}");
                Err(Failure::new("denied", what).with_hint("give --metrics-token-file"))
            }
            _ => {
                let what = format!("{addr} does not answer with counters: {status}");
                Err(Failure::new("config", what).with_hint("is it a `rackpool kv --metrics`?"))
            }
        }
    }

    /// A metric of the cache; its name goes without `rackpool_kv_`.
    fn get(&self, name: &str) -> Result<f64> {
        self.values.get(name).copied().ok_or_else(|| {
            let what = format!("the counters have no rackpool_kv_{name}");
            Failure::new("config", what).with_hint("start `rackpool kv` with --advise")
        })
    }

    /// The values of a metric by its label, a number of bytes, ascending.
    fn by_bytes(&self, name: &str) -> Vec<(u64, f64)> {
        let of_metric = |(label, value): (&String, &f64)| {
            let bytes = label.strip_prefix(name)?.strip_prefix("{bytes=\"")?.strip_suffix("\"}")?;
            Some((bytes.parse().ok()?, *value))
        };
        let mut values: Vec<(u64, f64)> = self.values.iter().filter_map(of_metric).collect();
        values.sort_unstable_by_key(|(bytes, _)| *bytes);
        values
    }
}

fn read_token(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    Ok(text.trim().to_owned())
}

#[cfg(not(feature = "lab"))]
fn of_workload(_: &str, _: &Query) -> Result<Observed> {
    Err(Failure::usage("this program was built without the workloads of `bench cache`"))
}

/// As counters of a kv would have it.
#[cfg(feature = "lab")]
fn of_workload(name: &str, query: &Query) -> Result<Observed> {
    let all = rackpool_bench::cache::workload::all();
    let Some(workload) = all.iter().find(|workload| workload.name == name) else {
        let names: Vec<&str> = all.iter().map(|workload| workload.name).collect();
        return Err(Failure::usage(format!("`{name}` is none of {}", names.join(", "))));
    };
    let near = query.near_memory.ok_or_else(|| Failure::usage("--near-memory is needed"))?;
    let load = observed_load(workload, near, query.far_memory.unwrap_or(near));
    Ok(Observed { load, near_memory: None, far_memory: None })
}

/// Asks a server's own counters from time to time, and says which mode would be best when that
/// changes, until it is dropped.
pub fn live(query: Query, shared: Arc<Shared>) -> Result<Periodic> {
    let (mut before, mut told) = (Counters::parse(&shared.metrics()), None);
    Periodic::start("kv-advice", LOOK_EACH, move || {
        let now = Counters::parse(&shared.metrics());
        let answer = Observed::between(&before, &now).and_then(|seen| query.answer(&seen));
        before = now;
        match answer {
            Ok(answer) if told != Some(answer.advice.chosen) => {
                told = Some(answer.advice.chosen);
                let lines = answer.lines();
                let lines: Vec<&str> = lines.lines().map(str::trim).collect();
                info!(target: "kv", "advice: {}", lines.join("; "));
            }
            Ok(_) => {}
            // Before the first clients come.
            Err(failure) if failure.code() == "no-load" => {}
            Err(failure) => warn!(target: "kv", "no advice: {}", failure.message()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters after so many seconds.
    fn counters(start: Instant, seconds: u64, [hits, misses, sets]: [u64; 3]) -> Counters {
        let text = format!(
            "rackpool_kv_cache_hits_total {hits}\nrackpool_kv_cache_misses_total {misses}\n\
             rackpool_kv_cache_sets_total {sets}\nrackpool_kv_items 100\n\
             rackpool_kv_live_bytes 5000\nrackpool_kv_first_reads_total 0\n\
             rackpool_kv_command_seconds_count 0\nrackpool_kv_command_seconds_sum 0\n\
             rackpool_kv_far_memory_bytes 0\nrackpool_kv_memory_bytes 1000000\n\
             rackpool_kv_found_bytes_total 0\nrackpool_kv_threads 1\n\
             rackpool_kv_copied_bytes_total 0\n"
        );
        Counters { at: start + Duration::from_secs(seconds), ..Counters::parse(&text) }
    }

    #[test]
    fn stores_and_look_ups_are_of_the_same_time() {
        let start = Instant::now();
        // Filled by 1000 stores; then one store for ten look-ups.
        let before = counters(start, 0, [0, 0, 1000]);
        let seen = Observed::between(&before, &counters(start, 10, [190, 10, 1020])).unwrap();
        let seen = seen.load;
        assert_eq!((seen.gets_per_s, seen.sets_per_get), (Some(20.0), 0.1));
        assert_eq!(seen.misses_per_get, 0.05);
        // Nothing since: as it was since the start.
        let (before, now) = ([90, 10, 50], counters(start, 10, [90, 10, 50]));
        let seen = Observed::between(&counters(start, 0, before), &now).unwrap().load;
        assert_eq!((seen.gets_per_s, seen.sets_per_get), (Some(0.0), 0.5));
        assert_eq!(seen.misses_per_get, 0.1);
    }
}
