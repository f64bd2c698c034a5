//! `cargo xtask vm`: scenarios in small virtual machines, for what this host's kernel does not
//! offer: verbs, shared devdax, memory nodes without processors, several hosts, hosts that die.
//!
//! A guest boots a kernel of Debian, sees the host's root read-only with a tmpfs over it,
//! and so runs what was built here. The run's folder is `/rig` in every guest: commands go in,
//! output and exit codes come out, and barriers are files there. Guests prove that code works;
//! times under emulation say nothing about speed.
//!
//! | module | owns |
//! |---|---|
//! | `pair` | kernels and emulators: this machine's own, and those of `versions.toml` |
//! | `kernel` | unpacking a kernel |
//! | `cpio`, `initramfs` | the first user space |
//! | `machine` | what a guest is made of, and what is refused |
//! | `qemu` | its command line |
//! | `run` | the folder, the processes, their ends |
//! | `scenario` | the scenarios; `guest/` and `scenarios/` hold what runs in the guests |

mod cpio;
mod initramfs;
mod kernel;
mod machine;
mod pair;
mod qemu;
mod run;
mod scenario;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::Context;
use machine::{MACHINE, Machine};
use pair::{OWN, Pair};
use qemu::{Accelerator, Run};
use scenario::{SCENARIOS, Scenario};

/// What is to be run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    list: bool,
    verbose: bool,
    accelerator: Accelerator,
    /// The pair that is chosen for all scenarios.
    kernel: Option<String>,
    names: Vec<String>,
}

impl Options {
    /// `None` for what is not understood.
    pub fn parse(words: &[&str]) -> Option<Options> {
        let accelerator = Accelerator::Tcg;
        let (list, verbose, kernel, names) = (false, false, None, Vec::new());
        let mut options = Options { list, verbose, accelerator, kernel, names };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--kernel" => {
                    let name = words.next().copied();
                    options.kernel =
                        Some(pair::names().into_iter().find(|one| Some(&**one) == name)?);
                }
                "--list" => options.list = true,
                "--verbose" => options.verbose = true,
                "--kvm" => options.accelerator = Accelerator::Kvm,
                name if scenario::find(name).is_some() => options.names.push(name.to_owned()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs the scenarios that are named, or all but the soaks; what cannot run is a failure in CI, or
/// if it is named.
pub fn run(context: &Context, options: &Options) -> Result<(), String> {
    if options.list {
        for Scenario { name, about, guests, .. } in SCENARIOS {
            println!("{name:<14} {guests} guests  {about}");
        }
        return Ok(());
    }
    require_programs(context)?;
    let cache = context.target.join("vm");
    fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let is_chosen = |scenario: &&Scenario| match &options.names[..] {
        [] => !scenario.is_soak,
        names => names.iter().any(|name| name == scenario.name),
    };
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(is_chosen).collect();
    let wanted = match &options.kernel {
        Some(name) => vec![name.clone()],
        None => vec![pair::names().swap_remove(0), OWN.to_owned()],
    };
    let mut pairs = Vec::new();
    for name in &wanted {
        if pairs.is_empty() || chosen.iter().any(|scenario| scenario.runs_on_own) {
            pairs.push(Pair::new(context, &cache, name)?);
        }
    }
    let mut rig = Rig { root: &context.root, built: Built(String::new()), options };
    if options.accelerator == Accelerator::Kvm {
        rig.try_kvm(&pairs[0])?;
    }
    rig.built = build(context, &chosen)?;
    let mut jobs = jobs(&chosen, &pairs);
    if options.names.is_empty() && !context.ci {
        jobs.retain(|job| {
            let why = job.refusal();
            why.iter().for_each(|why| println!("vm: {} is left out: {why}", job.name()));
            why.is_none()
        });
    }
    rig.run(&jobs)
}

/// A scenario on a kernel.
#[derive(Clone, Copy)]
struct Job<'a> {
    scenario: &'static Scenario,
    pair: &'a Pair,
}

impl Job<'_> {
    fn name(&self) -> String {
        format!("{}-{}", self.scenario.name, self.pair.name)
    }

    fn refusal(&self) -> Option<String> {
        let (major, minor) = self.scenario.kernel_min;
        let version = &self.pair.version;
        let is_refused = !self.pair.is_at_least((major, minor));
        is_refused.then(|| format!("it needs Linux {major}.{minor}, this is {version}"))
    }
}

/// All scenarios on the first pair, those that want this machine's own kernel also on that.
fn jobs<'a>(chosen: &[&'static Scenario], pairs: &'a [Pair]) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        let scenarios = chosen.iter().filter(|scenario| index == 0 || scenario.runs_on_own);
        jobs.extend(scenarios.map(|scenario| Job { scenario, pair }));
    }
    jobs
}

/// So many scenarios that failed are run once more (decision 0032).
const RERUN_MAX: usize = 2;

/// A guest that does nothing ends in this time under KVM.
const KVM_LIMIT: Duration = Duration::from_secs(10);

/// All scenarios, as a step of `ci`.
pub fn step(context: &Context) -> Result<(), String> {
    run(context, &Options::parse(&[]).expect("nothing is no mistake"))
}

/// Fetches what boots most guests. If that fails, the step tries again and says so.
pub fn fetch(context: &Context) {
    let cache = context.target.join("vm");
    let name = pair::names().swap_remove(0);
    let made = fs::create_dir_all(&cache).map_err(|e| e.to_string());
    if let Err(why) = made.and_then(|()| Pair::new(context, &cache, &name)) {
        println!("vm: {why}");
    }
}

/// Guests that run at the same time: small ones beside one another, where two processors are kept
/// busy by two of them and others mostly wait.
const GUESTS_TOGETHER: u32 = 4;

/// Scenarios that are to be run, those first that take most, and the guests that run now.
struct Queue<'a> {
    left: Vec<Job<'a>>,
    running: u32,
}

impl<'a> Queue<'a> {
    fn new(jobs: &[Job<'a>]) -> Self {
        let mut left = jobs.to_vec();
        left.sort_by_key(|job| Reverse((job.scenario.guests, job.scenario.limit_s)));
        Self { left, running: 0 }
    }

    /// The first for whose guests there is room.
    fn start(&mut self) -> Option<Job<'a>> {
        let together = |job: &Job<'_>| self.running + job.scenario.guests;
        let fits = |job: &Job<'_>| self.running == 0 || together(job) <= GUESTS_TOGETHER;
        let job = self.left.remove(self.left.iter().position(fits)?);
        self.running += job.scenario.guests;
        Some(job)
    }
}

struct Rig<'a> {
    /// The workspace.
    root: &'a Path,
    built: Built,
    options: &'a Options,
}

impl Rig<'_> {
    fn run(&self, jobs: &[Job<'_>]) -> Result<(), String> {
        let (mut passed, mut failed) = (Vec::new(), Vec::new());
        let queue = (Mutex::new(Queue::new(jobs)), Condvar::new());
        let lock = || queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = || {
            let mut ended = Vec::new();
            loop {
                let mut next = None;
                let waited = queue.1.wait_while(lock(), |queue| {
                    next = queue.start();
                    next.is_none() && !queue.left.is_empty()
                });
                drop(waited);
                let Some(job) = next else { return ended };
                ended.push((job, self.timed(&job)));
                lock().running -= job.scenario.guests;
                queue.1.notify_all();
            }
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..GUESTS_TOGETHER).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().flat_map(|one| one.join().expect("it never panics")).collect()
        });
        for (job, (seconds, outcome)) in outcomes {
            let name = job.name();
            match outcome {
                Ok(()) => passed.push(format!("{name} {seconds:.1} s")),
                Err(why) => {
                    println!("vm: {name} FAILED after {seconds:.1} s: {why}");
                    failed.push(job);
                }
            }
        }
        // Guests without hardware support are slow, and peers that are slow count as dead.
        if failed.len() <= RERUN_MAX {
            failed.retain(|job| {
                let name = job.name();
                println!("vm: {name} is run again, alone");
                let (seconds, outcome) = self.timed(job);
                let Err(why) = outcome else {
                    passed.push(format!("{name} {seconds:.1} s (UNSTEADY, passed when run again)"));
                    return false;
                };
                println!("vm: {name} FAILED after {seconds:.1} s: {why}");
                true
            });
        }
        println!("vm: passed: {}", passed.join(", "));
        let failed: Vec<String> = failed.iter().map(Job::name).collect();
        if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
    }

    /// Boots a guest: on some machines KVM does not run stock kernels, and a guest then hangs.
    fn try_kvm(&self, pair: &Pair) -> Result<(), String> {
        let folder = run::Folder::new("kvm")?;
        folder.prepare(&MACHINE, &[], &["true".to_owned()])?;
        let run = self.guests(pair, &MACHINE, 1, &folder);
        let ends = run::guests(&run, &folder, KVM_LIMIT)?;
        if ends.iter().all(|end| end.is_good()) {
            return Ok(());
        }
        let log = folder.text("qemu.0");
        let said = log.lines().find(|line| !line.trim().is_empty()).unwrap_or("the guest hangs");
        Err(format!(
            "this machine's KVM does not run Linux {}: {said}: leave --kvm off; plain emulation \
             runs everywhere",
            pair.version
        ))
    }

    /// Runs a scenario; how long it took, seconds, and why it failed.
    fn timed(&self, job: &Job<'_>) -> (f64, Result<(), String>) {
        println!("vm: {}: {} (Linux {})", job.name(), job.scenario.about, job.pair.version);
        let start = Instant::now();
        let outcome = self.one(job);
        (start.elapsed().as_secs_f64(), outcome)
    }

    fn guests<'b>(
        &self,
        pair: &'b Pair,
        machine: &'b Machine,
        guests: u32,
        folder: &'b run::Folder,
    ) -> Run<'b> {
        Run {
            machine,
            guests,
            directory: folder.path(),
            emulator: &pair.emulator,
            kernel: &pair.kernel,
            initramfs: &pair.initramfs,
            modules: pair.modules.as_deref(),
            accelerator: self.options.accelerator,
            tsc_khz: tsc_khz(),
            boot: 0,
        }
    }

    fn one(&self, job: &Job<'_>) -> Result<(), String> {
        let Job { scenario, pair } = job;
        let name = job.name();
        let folder = run::Folder::new(&name)?;
        let refusal =
            job.refusal().or_else(|| scenario.machine.refusal(scenario.guests, folder.path()));
        if let Some(why) = refusal {
            return Err(format!("refused: {why}"));
        }
        let mut run = self.guests(pair, &scenario.machine, scenario.guests, &folder);
        let mut script = format!("export RACKPOOL_SOURCE={:?}\n", self.root.display());
        script += &self.built.exports(scenario);
        script += &format!("export RIG_CUTS={}\n", scenario.power_cuts);
        script += scenario.script;
        let commands = vec![script; scenario.guests as usize];
        folder.prepare(&scenario.machine, scenario.modules, &commands)?;
        let start = Instant::now();
        let limit = Duration::from_secs(scenario.limit_s);
        let ends = match scenario.power_cuts {
            0 => run::guests(&run, &folder, limit)?,
            cuts => run::power_cuts(&mut run, &folder, limit, cuts)?,
        };
        let is_good = ends.iter().all(|end| end.is_good());
        let mut text = String::new();
        for guest in 0..ends.len() {
            if self.options.verbose || !is_good {
                text += &format!("{}\n", run::report(&folder, guest));
            }
            for line in folder.text(&format!("output.{guest}")).lines() {
                if line.starts_with("result: ") || line.starts_with("test result: ") {
                    text += &format!("  {name}, guest {guest}: {line}\n");
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{text}  {name}: {seconds:.1} s, ended with {ends:?}");
        if is_good { Ok(()) } else { Err(format!("the guests ended with {ends:?}")) }
    }
}

/// What cargo says of what it has built.
struct Built(String);

impl Built {
    fn suite(&self, package: &str) -> Option<PathBuf> {
        crate::built::executable(&self.0, package, SUITE)
    }

    fn program(&self) -> Option<PathBuf> {
        crate::built::program(&self.0)
    }

    /// What a guest's script is told: the paths of binaries.
    fn exports(&self, scenario: &Scenario) -> String {
        let built = |path: Option<PathBuf>| path.expect("the build looked for it");
        let mut text = String::new();
        for package in scenario.suites {
            let name = package.replace('-', "_");
            text += &format!("export TEST_{name}={:?}\n", built(self.suite(package)).display());
        }
        if scenario.uses_program {
            text += &format!("export RACKPOOL={:?}\n", built(self.program()).display());
        }
        text
    }
}

/// The tests' program of each crate. With that of crate cli cargo builds the program as well.
const SUITE: &str = "suite";

/// Builds what the scenarios run, all at once, just as the step `test` does, which has built most
/// of it already in CI.
fn build(context: &Context, scenarios: &[&Scenario]) -> Result<Built, String> {
    let suites: BTreeSet<&str> = scenarios.iter().flat_map(|one| one.suites).copied().collect();
    let uses_program = scenarios.iter().any(|scenario| scenario.uses_program);
    if suites.is_empty() && !uses_program {
        return Ok(Built(String::new()));
    }
    let built = Built(crate::built::messages(context, SUITE)?);
    if let Some(package) = suites.into_iter().find(|package| built.suite(package).is_none()) {
        return Err(format!("cargo does not say where the suite of {package} is"));
    }
    if uses_program && built.program().is_none() {
        return Err("cargo does not say where rackpool is".into());
    }
    Ok(built)
}

/// Says what to install if something is missing.
fn require_programs(context: &Context) -> Result<(), String> {
    let needed = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("setpriv", "util-linux"),
        ("modprobe", "kmod"),
        ("xz", "xz-utils"),
        ("zstd", "zstd"),
        ("rdma", "iproute2"),
        ("ibv_devinfo", "ibverbs-utils"),
        ("cxl", "ndctl"),
        ("ndctl", "ndctl"),
        ("numactl", "numactl"),
        ("daxctl", "daxctl"),
        ("python3", "python3"),
        ("redis-server", "redis-server"),
        ("redis-cli", "redis-tools"),
        ("memcached", "memcached"),
        ("cc", "gcc"),
    ];
    let missing = crate::deps::missing_programs(&needed);
    if missing.is_empty() {
        return Ok(());
    }
    let ci = if context.ci { ", which CI must have" } else { "" };
    Err(format!(
        "virtual machines need programs that are not here{ci}: apt-get install {}, or cargo xtask \
         deps",
        missing.join(" ")
    ))
}

/// Rate of this host's time-stamp counter, kHz; 0 if it is not known.
fn tsc_khz() -> u64 {
    fs::read_to_string("/proc/cpuinfo").map_or(0, |text| bogomips_khz(&text).unwrap_or(0))
}

/// A processor's BogoMIPS are two for each MHz of its counter.
fn bogomips_khz(cpuinfo: &str) -> Option<u64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("bogomips"))?;
    let value: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    Some((value * 500.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_known_scenarios_and_switches() {
        let options = Options::parse(&["boot", "--kvm"]).expect("both are known");
        assert_eq!((&options.names[..], options.list), (&["boot".to_owned()][..], false));
        assert_eq!(options.accelerator, Accelerator::Kvm);
        assert!(Options::parse(&["--list"]).is_some_and(|options| options.list));
        assert_eq!(Options::parse(&["no-such-scenario"]), None);
        let own = Options::parse(&["--kernel", OWN, "numa"]).expect("both are known");
        assert_eq!((own.kernel.as_deref(), own.names.len()), (Some(OWN), 1));
        assert_eq!(Options::parse(&["--kernel", "2.4"]), None);
        assert_eq!(Options::parse(&["--kernel"]), None);
    }

    #[test]
    fn small_scenarios_run_beside_one_another_and_none_is_left_out() {
        let all: Vec<&Scenario> = SCENARIOS.iter().collect();
        let pairs = [("new", "7.3.4"), (OWN, "6.1.0")].map(|(name, version)| Pair {
            name: name.to_owned(),
            version: version.to_owned(),
            kernel: PathBuf::new(),
            initramfs: PathBuf::new(),
            modules: None,
            emulator: Vec::new(),
        });
        let jobs = jobs(&all, &pairs);
        let names = |jobs: &[Job<'_>]| jobs.iter().map(Job::name).collect::<Vec<_>>();
        assert_eq!(names(&jobs[all.len()..]), ["boot-own", "numa-own"]);
        assert!(jobs.iter().all(|job| job.refusal().is_none()));
        let tiers = scenario::find("tiers").expect("it is there");
        let refusal = Job { scenario: tiers, pair: &pairs[1] }.refusal();
        assert!(refusal.is_some_and(|why| why.contains("6.16, this is 6.1.0")));
        let mut queue = Queue::new(&jobs);
        let mut running: Vec<Job<'_>> = Vec::new();
        let mut ended = Vec::new();
        loop {
            while let Some(job) = queue.start() {
                running.push(job);
            }
            assert!(running.len() <= 1 || queue.running <= GUESTS_TOGETHER);
            let Some(job) = running.pop() else { break };
            queue.running -= job.scenario.guests;
            ended.push(job.name());
        }
        let mut names = names(&jobs);
        ended.sort();
        names.sort();
        assert_eq!(ended, names);
    }

    #[test]
    fn the_counters_rate_is_half_a_megahertz_for_each_bogomips() {
        assert_eq!(bogomips_khz("processor : 0\nbogomips\t: 5000.50\n"), Some(2_500_250));
        assert_eq!(bogomips_khz("processor : 0\n"), None);
    }
}
