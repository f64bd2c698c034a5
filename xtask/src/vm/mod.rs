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

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
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
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for scenario in SCENARIOS.iter().filter(|scenario| is_chosen(scenario.name)) {
        println!("vm: {}: {}", scenario.name, scenario.about);
        let folder = run::Folder::new()?;
        let run = Run {
            machine: &scenario.machine,
            guests: scenario.guests,
            directory: folder.path(),
            kernel: &kernel,
            initramfs: &initramfs,
            accelerator: options.accelerator,
            tsc_khz: tsc_khz(),
        };
        let start = Instant::now();
        let outcome = one(context, scenario, &run, &folder, options.verbose);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => passed.push(format!("{} {seconds:.1} s", scenario.name)),
            Err(why) => {
                println!("vm: {} FAILED after {seconds:.1} s: {why}", scenario.name);
                failed.push(scenario.name);
            }
        }
    }
    println!("vm: passed: {}", passed.join(", "));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs one scenario to its end.
fn one(
    context: &Context,
    scenario: &Scenario,
    run: &Run<'_>,
    folder: &run::Folder,
    verbose: bool,
) -> Result<(), String> {
    if let Some(why) = scenario.machine.refusal(scenario.guests, folder.path()) {
        return Err(format!("refused: {why}"));
    }
    let mut script = String::new();
    for test in scenario.tests {
        let path = test_binary(context, test)?;
        script += &format!("export TEST_{test}={:?}\n", path.display());
    }
    if scenario.uses_program {
        script += &format!("export RACKPOOL={:?}\n", program(context)?.display());
    }
    script += scenario.script;
    let commands = vec![script; scenario.guests as usize];
    folder.prepare(&scenario.machine, scenario.modules, &commands)?;
    let start = Instant::now();
    let ends = run::guests(run, folder, Duration::from_secs(scenario.limit_s))?;
    let is_good = ends.iter().all(|end| end.is_good());
    for guest in 0..ends.len() {
        if verbose || !is_good {
            println!("{}", run::report(folder, guest));
        }
        for line in folder.text(&format!("output.{guest}")).lines() {
            if line.starts_with("result: ") || line.starts_with("test result: ") {
                println!("  guest {guest}: {line}");
            }
        }
    }
    println!("  guests ran for {:.1} s and ended with {ends:?}", start.elapsed().as_secs_f64());
    if is_good { Ok(()) } else { Err(format!("the guests ended with {ends:?}")) }
}

/// Builds a test binary with verbs; its path.
fn test_binary(context: &Context, test: &str) -> Result<PathBuf, String> {
    let package = match test {
        "hosts" => "rackpool",
        "herd_rdma" => "rackpool-kv",
        "bench_verbs" => "rackpool-bench",
        _ => "rackpool-hw",
    };
    let words = ["test", "--no-run", "-p", package, "--features", "verbs", "--test", test];
    built(context, &words, test)
}

/// Builds the program with verbs; its path.
fn program(context: &Context) -> Result<PathBuf, String> {
    built(context, &["build", "-p", "rackpool-cli", "--features", "verbs"], "rackpool")
}

/// Builds something; the path of the executable of that name.
fn built(context: &Context, words: &[&str], name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(words)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(&context.root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name} cannot be built"));
    }
    executable(&String::from_utf8_lossy(&output.stdout), name)
        .ok_or_else(|| format!("cargo does not say where {name} is"))
}

/// The path of a binary in what cargo says.
fn executable(messages: &str, wanted: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message.pointer("/target/name")?.as_str()?;
        let path = message.pointer("/executable")?.as_str()?;
        (name == wanted).then(|| PathBuf::from(path))
    })
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
        ("ndctl", "ndctl"),
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
    fn the_binary_is_the_one_of_that_test() {
        let said = r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/o"}
{"reason":"compiler-artifact","target":{"name":"mine"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"mine"},"executable":"/t/mine-1"}"#;
        assert_eq!(executable(said, "mine"), Some(PathBuf::from("/t/mine-1")));
        assert_eq!(executable(said, "third"), None);
    }

    #[test]
    fn the_counters_rate_is_half_a_megahertz_for_each_bogomips() {
        assert_eq!(bogomips_khz("processor : 0\nbogomips\t: 5000.50\n"), Some(2_500_250));
        assert_eq!(bogomips_khz("processor : 0\n"), None);
    }
}
