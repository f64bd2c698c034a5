//! `rackpool tiers balance`: hot pages up and cold ones down, for as long as the command runs. In:
//! options, the machine. Out: what was moved, for people every few seconds and as JSON at the end;
//! all settings are set back.

use crate::failure::{Failure, Result};
use crate::output::{self, Output};
use crate::tiers_args::{Nodes, parse_above_zero, parse_nodes, parse_share};
use crate::values::{parse_seconds, parse_size};
use crate::{interrupt, tiers};
use clap::Args;
use rackpool_mem::numa::list;
use rackpool_mem::process::Shutdown;
use rackpool_stats::format::Unit;
use rackpool_tiers::balance::{
    Balance, BalanceError, Direction, Disk, Mechanism, Moved, Parameters, Plan, STATE_FOLDER,
    Scheme, Sides, StateFile, Target, Write, rehearse,
};
use rackpool_tiers::topology::{Sources, Topology};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often it is looked whether the target is still there.
const LOOK: Duration = Duration::from_millis(200);

pub const BALANCE_EXAMPLES: &str = "\
Runs in the foreground until Ctrl-C, SIGTERM, the end of the process or --seconds; then every
setting is as it was found. Needs root.
DAMON (Linux 6.11; 6.17 for --pid) samples accesses: memory without one for --cold-age goes to the
nearest slow node, memory accessed in --hot percent of the samples to the nearest fast one. Where
the kernel has goals (6.16), cold memory goes only until --free percent of the fast node are free.
--kernel-tiering: NUMA balancing promotes, reclaim demotes, on the whole machine.
Killed by -9 or a third Ctrl-C it leaves its settings: what was set before is kept in --state, the
next start says so, and --restore sets it back. DAMON that another program uses is not touched.

Examples:
  rackpool tiers balance --dry-run
  rackpool tiers balance --seconds 600 --json moved.json
  rackpool tiers balance --cgroup /system.slice/redis.service --free 10
  rackpool tiers balance --pid 4711 --fast 0 --slow 2 --no-goals
  rackpool tiers balance --kernel-tiering
  rackpool tiers balance --restore";

#[derive(Debug, Args)]
pub struct TiersBalanceArgs {
    /// Memory of this process, by its own addresses [default: of the machine]
    #[arg(long, value_name = "PID", conflicts_with = "cgroup")]
    pub pid: Option<u32>,
    /// Memory of this control group and those in it, as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    /// Nodes for hot memory [default: of the kernel's first tier, else those with processors]
    #[arg(long, value_name = "NODES", value_parser = parse_nodes)]
    pub fast: Option<Nodes>,
    /// Nodes for cold memory [default: all others]
    #[arg(long, value_name = "NODES", value_parser = parse_nodes)]
    pub slow: Option<Nodes>,
    /// By numa_balancing = 2 and demotion_enabled instead of DAMON
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "fast", "slow"])]
    pub kernel_tiering: bool,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
    /// Say so often what was moved
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub every: Duration,
    /// Accesses are looked for so often
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = parse_interval)]
    pub sample: Duration,
    /// Accesses are counted over this time
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    pub aggregation: Duration,
    /// Address ranges are read anew so often
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_interval)]
    pub update: Duration,
    /// Regions that DAMON tells apart, at least and at most
    #[arg(long, value_name = "MIN-MAX", default_value = "100-10000", value_parser = parse_regions)]
    pub regions: Regions,
    /// Without an access for so long memory is cold
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_interval)]
    pub cold_age: Duration,
    /// Accessed in so many of its samples memory is hot
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = parse_above_zero)]
    pub hot: f64,
    /// What each scheme may try to move in --quota-interval
    #[arg(long, value_name = "BYTES", default_value = "50G", value_parser = parse_size)]
    pub quota: u64,
    /// In each, demotion also takes 1 s of a processor at most, promotion 2 s
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_interval)]
    pub quota_interval: Duration,
    /// Of each fast node, so much is to be free, where the kernel has such goals
    #[arg(long, value_name = "PERCENT", default_value = "0.5", value_parser = parse_share)]
    pub free: f64,
    /// All that is cold goes down, however much is free
    #[arg(long, conflicts_with = "free")]
    pub no_goals: bool,
    /// Print what would be written, and write nothing
    #[arg(long, conflicts_with_all = ["json", "restore"])]
    pub dry_run: bool,
    /// Where it is kept what was set before: one folder for the machine, gone at its next boot
    #[arg(long, value_name = "DIR", default_value = STATE_FOLDER)]
    pub state: PathBuf,
    /// Set back what a killed `tiers balance` left
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "kernel_tiering", "seconds", "json"])]
    pub restore: bool,
    /// Write what was moved as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What stands for /sys
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// What stands for /proc
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    pub procfs: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub struct Regions {
    pub min: u32,
    pub max: u32,
}

/// Seconds, as short as DAMON may need them.
fn parse_interval(text: &str) -> std::result::Result<Duration, String> {
    let range = 0.001..=86_400.0;
    let seconds = text.parse::<f64>().ok().filter(|seconds| range.contains(seconds));
    let wrong = || format!("`{text}` is not a number of seconds from 0.001 to 86400");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

fn parse_regions(text: &str) -> std::result::Result<Regions, String> {
    let numbers = text.split_once('-');
    let numbers = numbers.and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    let wrong = || format!("`{text}` says no numbers of regions such as 100-10000");
    numbers.map(|(min, max)| Regions { min, max }).ok_or_else(wrong)
}

impl TiersBalanceArgs {
    fn target(&self) -> Target {
        match (self.pid, &self.cgroup) {
            (Some(pid), _) => Target::Process(pid),
            (None, Some(path)) => Target::Cgroup(path.clone()),
            (None, None) => Target::Machine,
        }
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            sample: self.sample,
            aggregation: self.aggregation,
            update: self.update,
            regions_min: self.regions.min,
            regions_max: self.regions.max,
            cold_age: self.cold_age,
            hot_share: self.hot,
            quota_bytes: self.quota,
            quota_interval: self.quota_interval,
            free_share: (!self.no_goals).then_some(self.free),
            ..Parameters::default()
        }
    }

    fn mechanism(&self, disk: &Disk, topology: &Topology, target: &Target) -> Result<Mechanism> {
        let [fast, slow] = [&self.fast, &self.slow].map(|nodes| nodes.as_ref().map(|n| &n.0[..]));
        let sides = match Sides::of(topology, fast, slow) {
            // The kernel has sides of its own.
            Ok(_) | Err(BalanceError::NoSides { .. }) if self.kernel_tiering => {
                return Ok(Mechanism::KernelTiering);
            }
            sides => sides.map_err(failure)?,
        };
        let plan = Plan::of(disk, topology, &sides, target, self.parameters());
        plan.map(Mechanism::Damon).map_err(failure)
    }
}

fn failure(error: BalanceError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

pub fn run(args: &TiersBalanceArgs) -> Result<()> {
    let shutdown = interrupt::shutdown()?;
    let disk = Disk::new(&args.sysfs, &args.procfs);
    let states = StateFile::new(&args.state, &args.sysfs);
    if args.restore {
        interrupt::end_by_itself(shutdown);
        return restore(&disk, &states);
    }
    let json = output::open_if(args.json.as_ref())?;
    let sources = Sources { sys: &args.sysfs, proc: Some(&args.procfs), tries_calls: false };
    let topology = Topology::read(&sources).map_err(tiers::failure)?;
    let target = args.target();
    let mechanism = args.mechanism(&disk, &topology, &target)?;
    if args.dry_run {
        let writes = rehearse(&disk, &topology, &target, &mechanism, &states);
        return output::print(&rehearsed(&writes.map_err(failure)?));
    }
    // From here on nothing may keep this function from setting back.
    interrupt::end_by_itself(shutdown);
    let balance = Balance::start(&disk, &topology, &target, &mechanism, &states);
    let mut balance = balance.map_err(failure)?;
    let start = Instant::now();
    let ended = begun(&mechanism).and_then(|()| watch(args, &mut balance, start, &shutdown));
    let moved = balance.look();
    let took = start.elapsed();
    balance.stop().map_err(failure)?;
    let (ended, moved) = (ended?, moved.map_err(failure)?);
    if let Some(json) = json {
        write(json, &as_json(&target, &mechanism, &moved, took, ended))?;
    }
    let words = ended.words();
    output::print(&format!("{}{words}: all settings are as before.\n", line(took, &moved)))
}

fn restore(disk: &Disk, states: &StateFile) -> Result<()> {
    let text = match states.restore(disk).map_err(failure)? {
        Some(pid) => format!("What process {pid} had left is set back as it was before it.\n"),
        None => "Nothing to set back: no tiers balance left anything.\n".to_owned(),
    };
    output::print(&text)
}

/// As a shell would write it.
fn rehearsed(writes: &[Write]) -> String {
    let mut text: String =
        writes.iter().map(|Write { path, value }| format!("echo {value} > {path}\n")).collect();
    text.push_str("# Goals, tuner and several destinations: where the kernel has them.\n");
    text
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Signal,
    TargetGone,
    Time,
    /// Another program turned it off.
    TurnedOff,
}

impl Ended {
    fn name(self) -> &'static str {
        match self {
            Ended::Signal => "signal",
            Ended::TargetGone => "target-gone",
            Ended::Time => "time",
            Ended::TurnedOff => "turned-off",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Ended::Signal => "Stopped by a signal",
            Ended::TargetGone => "The process or control group is gone",
            Ended::Time => "The time is over",
            Ended::TurnedOff => "Another program has turned it off",
        }
    }
}

/// Says what is moved, until there is a reason to end.
fn watch(
    args: &TiersBalanceArgs,
    balance: &mut Balance<'_>,
    start: Instant,
    shutdown: &Shutdown,
) -> Result<Ended> {
    let end = args.seconds.map(|seconds| start + seconds);
    let mut next = start + args.every;
    loop {
        let now = Instant::now();
        if shutdown.is_requested() {
            return Ok(Ended::Signal);
        }
        if end.is_some_and(|end| now >= end) {
            return Ok(Ended::Time);
        }
        // A process that has ended has DAMON end as well, so the process comes second.
        let is_on = balance.is_on().map_err(failure)?;
        if !balance.has_target() {
            return Ok(Ended::TargetGone);
        }
        if !is_on {
            return Ok(Ended::TurnedOff);
        }
        if now >= next {
            let moved = balance.look().map_err(failure)?;
            output::print(&line(start.elapsed(), &moved))?;
            next = Instant::now() + args.every;
        }
        let until = [Some(now + LOOK), Some(next), end].into_iter().flatten().min();
        wait(shutdown, until.unwrap_or(next))?;
    }
}

/// Until then, or until a signal comes.
fn wait(shutdown: &Shutdown, until: Instant) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = [PollFd::new(shutdown, PollFlags::IN)];
    match poll(&mut fds, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::io("waiting", &error.into())),
    }
}

/// What is done from now on.
fn begun(mechanism: &Mechanism) -> Result<()> {
    let text = match mechanism {
        Mechanism::KernelTiering => {
            "The kernel promotes by NUMA balancing and demotes by reclaim.\n".to_owned()
        }
        Mechanism::Damon(plan) => {
            let schemes: Vec<String> = plan.schemes().map(named).collect();
            format!("DAMON, {} threads: {}.\n", plan.kdamonds.len(), schemes.join("; "))
        }
    };
    output::print(&text)
}

/// Such as `demote 0 -> 1`.
fn named(scheme: &Scheme) -> String {
    let Scheme { direction, from, to } = scheme;
    format!("{} {} -> {}", direction.name(), list(from), list(to))
}

/// What was moved, in a line.
fn line(time: Duration, moved: &[Moved]) -> String {
    let bytes = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let of_scheme = |moved: &Moved| {
        let name = moved.scheme.as_ref().map_or(moved.direction.name().to_owned(), named);
        let tried = moved.counts.map(|counts| format!(" of {} tried", bytes(counts.tried_bytes)));
        format!("{name}: {}{}", bytes(moved.bytes), tried.unwrap_or_default())
    };
    let all: Vec<String> = moved.iter().map(of_scheme).collect();
    format!("{:>6.1} s  {}\n", time.as_secs_f64(), all.join("; "))
}

fn write(json: Output, value: &Value) -> Result<()> {
    json.write(format!("{}\n", output::json(value)?))
}

fn as_json(
    target: &Target,
    mechanism: &Mechanism,
    moved: &[Moved],
    took: Duration,
    ended: Ended,
) -> Value {
    let target = match target {
        Target::Machine => json!("machine"),
        Target::Process(pid) => json!({ "pid": pid }),
        Target::Cgroup(path) => json!({ "cgroup": path }),
    };
    let scheme = |moved: &Moved| {
        json!({
            "action": moved.direction.name(),
            "from": moved.scheme.as_ref().map(|scheme| &scheme.from),
            "to": moved.scheme.as_ref().map(|scheme| &scheme.to),
            "applied_bytes": moved.bytes,
            "applied_regions": moved.counts.map(|counts| counts.applied_regions),
            "tried_bytes": moved.counts.map(|counts| counts.tried_bytes),
            "tried_regions": moved.counts.map(|counts| counts.tried_regions),
            "quota_exceeded": moved.counts.map(|counts| counts.quota_exceeded),
        })
    };
    let sum = |direction: Direction| {
        let of_it = moved.iter().filter(|moved| moved.direction == direction);
        of_it.map(|moved| moved.bytes).fold(0, u64::saturating_add)
    };
    json!({
        "schema": "rackpool-tiers-balance/1",
        "mechanism": if matches!(mechanism, Mechanism::Damon(_)) { "damon" } else { "kernel" },
        "target": target,
        "seconds": took.as_secs_f64(),
        "ended_by": ended.name(),
        "demoted_bytes": sum(Direction::Demote),
        "promoted_bytes": sum(Direction::Promote),
        "schemes": moved.iter().map(scheme).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_regions_are_parsed_or_refused() {
        assert_eq!(parse_interval("0.02"), Ok(Duration::from_millis(20)));
        let regions = parse_regions("3-7").unwrap();
        assert_eq!((regions.min, regions.max), (3, 7));
        for text in ["0", "x", "-1", "nan", "86401"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
        for text in ["", "3", "3-", "a-b", "3-7-9", "-1-5"] {
            assert!(parse_regions(text).is_err(), "{text}");
        }
    }
}
