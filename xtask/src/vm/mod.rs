//! `cargo xtask vm`: scenarios in small virtual machines, for what this host's kernel does not
//! offer: verbs, shared devdax, memory nodes without processors, several hosts, hosts that die.
//!
//! A guest boots the distribution's kernel, sees the host's root read-only with a tmpfs over it,
//! and so runs what was built here. The run's folder is `/rig` in every guest: commands go in,
//! output and exit codes come out, and barriers are files there. Guests prove that code works;
//! times under emulation say nothing about speed.
//!
//! | module | owns |
//! |---|---|
//! | `kernel` | unpacking the distribution's kernel |
//! | `cpio`, `initramfs` | the first user space |
//! | `machine` | what a guest is made of, and what is refused |
//! | `qemu` | its command line |
//! | `run` | the folder, the processes, their ends |
//! | `scenario` | the scenarios; `guest/` and `scenarios/` hold what runs in the guests |

mod cpio;
mod initramfs;
mod kernel;
mod machine;
mod qemu;
mod run;
mod scenario;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::run::Context;
use qemu::{Accelerator, Run};
use scenario::{SCENARIOS, Scenario};

/// What is to be run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    list: bool,
    verbose: bool,
    accelerator: Accelerator,
    names: Vec<String>,
}

impl Options {
    /// `None` for what is not understood.
    pub fn parse(words: &[&str]) -> Option<Options> {
        let accelerator = Accelerator::Tcg;
        let mut options = Options { list: false, verbose: false, accelerator, names: Vec::new() };
        for word in words {
            match *word {
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

/// Runs the scenarios that are named, or all; what cannot run is a failure, never passed over.
pub fn run(context: &Context, options: &Options) -> Result<(), String> {
    if options.list {
        for Scenario { name, about, guests, .. } in SCENARIOS {
            println!("{name:<12} {guests} guests  {about}");
        }
        return Ok(());
    }
    require_programs(context)?;
    let cache = context.target.join("vm");
    fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let (version, image) = kernel::newest()?;
    let kernel = kernel::unpacked(&cache, &version, &image)?;
    let initramfs = initramfs::make(&cache, &version)?;
    let is_chosen =
        |name: &str| options.names.is_empty() || options.names.iter().any(|chosen| chosen == name);
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|scenario| is_chosen(scenario.name)).collect();
    let rig = Rig { kernel, initramfs, built: build(context, &chosen)?, options };
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for batch in batches(&chosen) {
        let outcomes: Vec<_> = thread::scope(|scope| {
            let run = |scenario: &&'static Scenario| {
                let (rig, scenario) = (&rig, *scenario);
                scope.spawn(move || (scenario.name, rig.timed(scenario)))
            };
            let running: Vec<_> = batch.iter().map(run).collect();
            running
                .into_iter()
                .map(|one| one.join().expect("it reports, it never panics"))
                .collect()
        });
        for (name, (seconds, outcome)) in outcomes {
            match outcome {
                Ok(()) => passed.push(format!("{name} {seconds:.1} s")),
                Err(why) => {
                    println!("vm: {name} FAILED after {seconds:.1} s: {why}");
                    failed.push(name);
                }
            }
        }
    }
    // Guests without hardware support are slow, and peers that are slow count as dead.
    if failed.len() <= RERUN_MAX {
        failed.retain(|name| {
            println!("vm: {name} is run again, alone");
            let again = SCENARIOS.iter().find(|scenario| scenario.name == *name);
            let (seconds, outcome) = rig.timed(again.expect("it ran before"));
            let Err(why) = outcome else {
                passed.push(format!("{name} {seconds:.1} s (UNSTEADY, passed when run again)"));
                return false;
            };
            println!("vm: {name} FAILED after {seconds:.1} s: {why}");
            true
        });
    }
    println!("vm: passed: {}", passed.join(", "));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// So many scenarios that failed are run once more (decision 0032).
const RERUN_MAX: usize = 2;

/// All scenarios, as a step of `ci`.
pub fn step(context: &Context) -> Result<(), String> {
    run(context, &Options::parse(&[]).expect("nothing is no mistake"))
}

/// Guests that run at the same time: small ones beside one another, where two processors are kept
/// busy by two of them and others mostly wait.
const GUESTS_TOGETHER: u32 = 4;

/// The scenarios in their order, in groups that run at the same time.
fn batches(chosen: &[&'static Scenario]) -> Vec<Vec<&'static Scenario>> {
    let mut batches: Vec<Vec<&Scenario>> = Vec::new();
    for scenario in chosen {
        let guests = |batch: &[&Scenario]| batch.iter().map(|one| one.guests).sum::<u32>();
        match batches.last_mut() {
            Some(batch) if guests(batch) + scenario.guests <= GUESTS_TOGETHER => {
                batch.push(scenario);
            }
            _ => batches.push(vec![scenario]),
        }
    }
    batches
}

struct Rig<'a> {
    kernel: PathBuf,
    initramfs: PathBuf,
    built: Built,
    options: &'a Options,
}

impl Rig<'_> {
    /// Runs a scenario; how long it took, seconds, and why it failed.
    fn timed(&self, scenario: &Scenario) -> (f64, Result<(), String>) {
        println!("vm: {}: {}", scenario.name, scenario.about);
        let start = Instant::now();
        let outcome = self.one(scenario);
        (start.elapsed().as_secs_f64(), outcome)
    }

    fn one(&self, scenario: &Scenario) -> Result<(), String> {
        let folder = run::Folder::new(scenario.name)?;
        if let Some(why) = scenario.machine.refusal(scenario.guests, folder.path()) {
            return Err(format!("refused: {why}"));
        }
        let run = Run {
            machine: &scenario.machine,
            guests: scenario.guests,
            directory: folder.path(),
            kernel: &self.kernel,
            initramfs: &self.initramfs,
            accelerator: self.options.accelerator,
            tsc_khz: tsc_khz(),
        };
        let mut script = self.built.exports(scenario);
        script += scenario.script;
        let commands = vec![script; scenario.guests as usize];
        folder.prepare(&scenario.machine, scenario.modules, &commands)?;
        let start = Instant::now();
        let ends = run::guests(&run, &folder, Duration::from_secs(scenario.limit_s))?;
        let is_good = ends.iter().all(|end| end.is_good());
        let mut text = String::new();
        for guest in 0..ends.len() {
            if self.options.verbose || !is_good {
                text += &format!("{}\n", run::report(&folder, guest));
            }
            for line in folder.text(&format!("output.{guest}")).lines() {
                if line.starts_with("result: ") || line.starts_with("test result: ") {
                    text += &format!("  {}, guest {guest}: {line}\n", scenario.name);
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{text}  {}: {seconds:.1} s, ended with {ends:?}", scenario.name);
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
            text += &format!("export TEST_{package}={:?}\n", built(self.suite(package)).display());
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
        ("rdma", "iproute2"),
        ("ibv_devinfo", "ibverbs-utils"),
        ("cxl", "ndctl"),
        ("ndctl", "ndctl"),
        ("numactl", "numactl"),
        ("daxctl", "daxctl"),
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
    }

    #[test]
    fn small_scenarios_run_beside_one_another_and_none_is_left_out() {
        let all: Vec<&Scenario> = SCENARIOS.iter().collect();
        let batches = batches(&all);
        let guests = |batch: &Vec<&Scenario>| batch.iter().map(|one| one.guests).sum::<u32>();
        assert!(batches.iter().all(|batch| guests(batch) <= GUESTS_TOGETHER));
        assert!(batches.len() < all.len());
        let names = |scenarios: &[&Scenario]| -> Vec<_> {
            scenarios.iter().map(|scenario| scenario.name).collect()
        };
        assert_eq!(names(&batches.concat()), names(&all));
    }

    #[test]
    fn the_counters_rate_is_half_a_megahertz_for_each_bogomips() {
        assert_eq!(bogomips_khz("processor : 0\nbogomips\t: 5000.50\n"), Some(2_500_250));
        assert_eq!(bogomips_khz("processor : 0\n"), None);
    }
}
