//! `rackpool tiers balance` on trees of files that stand for `/sys` and `/proc`: everything that it
//! writes is set back, however it ends. This machine's settings are neither read nor written.

use crate::common::{Dir, Held, WITHIN, rackpool, told};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// A machine with node 0 with processors, and node 1 without.
struct Machine(Dir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(Dir::new());
        for (id, cpus, distances) in [(0, "0-1", "10 30"), (1, "", "30 10")] {
            let at = format!("sys/devices/system/node/node{id}");
            machine.make(&format!("{at}/cpulist"), cpus);
            machine.make(&format!("{at}/distance"), distances);
            let meminfo = format!("Node {id} MemTotal: 131072 kB\nNode {id} MemFree: 1024 kB\n");
            machine.make(&format!("{at}/meminfo"), &meminfo);
            machine.make(&format!("{at}/memory{id}/state"), "online\n");
        }
        machine.make("sys/devices/system/memory/block_size_bytes", "8000000\n");
        machine.make(&format!("{KDAMONDS}/nr_kdamonds"), "0\n");
        machine
    }

    fn make(&self, file: &str, text: &str) {
        let path = self.0.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, file: &str) -> String {
        let text = fs::read_to_string(self.0.0.join(file));
        text.unwrap_or_else(|error| panic!("{file}: {error}")).trim().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = rackpool();
        command.args(["tiers", "balance", "--sysfs", &self.0.file("sys")]);
        command.args(["--procfs", &self.0.file("proc"), "--state", &self.0.file("run")]);
        command.args(words);
        command
    }

    fn balance(&self, words: &[&str]) -> (i32, String, String) {
        told(&self.command(words).output().unwrap())
    }

    /// Makes the files that the kernel would make, as it does with directories.
    fn make_files_for(&self, words: &[&str]) {
        let (code, out, err) = self.balance(&[words, &["--dry-run"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        for line in out.lines().filter(|line| !line.starts_with('#')) {
            let path = line.split_once(" > /").unwrap().1;
            let schemes = path.strip_suffix("schemes/nr_schemes");
            if !path.ends_with("nr_kdamonds") {
                self.make(path, "unset\n");
            }
            for scheme in 0..schemes.map_or(0, |_| 2) {
                let stats = format!("{}schemes/{scheme}/stats", schemes.unwrap());
                for (name, count) in
                    [("nr_tried", 3), ("sz_tried", 8192), ("nr_applied", 2), ("sz_applied", 4096)]
                {
                    self.make(&format!("{stats}/{name}"), &format!("{count}\n"));
                }
                self.make(&format!("{stats}/qt_exceeds"), "1\n");
            }
        }
        for kdamond in 0..2 {
            self.make(&format!("{KDAMONDS}/{kdamond}/pid"), &format!("{}\n", 4710 + kdamond));
        }
    }

    /// Starts it, and waits until it has written everything.
    fn start(&self, words: &[&str], last_file: &str) -> Held {
        let child = self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = Held(child.unwrap());
        let start = Instant::now();
        while matches!(self.text(last_file).as_str(), "unset" | "0" | "") {
            assert!(start.elapsed() < WITHIN, "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn is_kept(&self) -> bool {
        self.0.0.join("run/tiers-balance.json").exists()
    }

    fn assert_set_back(&self) {
        assert_eq!(self.text(&format!("{KDAMONDS}/nr_kdamonds")), "0");
        for kdamond in 0..2 {
            assert_eq!(self.text(&format!("{KDAMONDS}/{kdamond}/state")), "off");
        }
        assert!(!self.is_kept());
    }
}

fn code_after(child: &mut Held, signal: Signal) -> Option<i32> {
    child.send(signal);
    child.code_soon()
}

/// Few regions, that there are few files.
const FEW: [&str; 2] = ["--regions", "3-10"];

#[test]
fn a_dry_run_says_what_a_run_writes_and_all_is_set_back_in_time() {
    let machine = Machine::new();
    let (code, out, err) = machine.balance(&["--dry-run"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for line in [
        "echo 2 > /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
        "echo paddr > /sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/operations",
        "echo 100000 > /sys/kernel/mm/damon/admin/kdamonds/1/contexts/0/monitoring_attrs/intervals\
         /sample_us",
        "echo migrate_cold > /sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/action",
        "echo on > /sys/kernel/mm/damon/admin/kdamonds/1/state",
    ] {
        assert!(out.lines().any(|found| found == line), "{line}: {out}");
    }
    assert!(!machine.0.0.join(KDAMONDS).join("0").exists() && !machine.is_kept());

    machine.make_files_for(&FEW);
    let json = machine.0.file("a.json");
    let words = ["--seconds", "0.5", "--every", "0.1", "--json", &json];
    let (code, out, err) = machine.balance(&[&FEW[..], &words].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("DAMON, 2 threads: demote 0 -> 1; promote 1 -> 0.\n"), "{out}");
    let moved = "demote 0 -> 1: 4.00 KiB of 8.00 KiB tried; promote 1 -> 0: 4.00 KiB of ";
    assert!(out.matches(moved).count() >= 2, "{out}");
    assert!(out.ends_with("The time is over: all settings are as before.\n"), "{out}");
    machine.assert_set_back();
    assert_eq!(machine.text(&format!("{KDAMONDS}/1/contexts/0/schemes/0/target_nid")), "0");
    let answer: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!((&answer["ended_by"], &answer["target"]), (&json!("time"), &json!("machine")));
    assert_eq!((&answer["mechanism"], &answer["promoted_bytes"]), (&json!("damon"), &json!(4096)));
    let first = json!({
        "action": "demote", "from": [0], "to": [1], "applied_bytes": 4096, "applied_regions": 2,
        "tried_bytes": 8192, "tried_regions": 3, "quota_exceeded": 1,
    });
    assert_eq!(answer["schemes"][0], first);
}

#[test]
fn a_signal_ends_it_well_and_what_a_killed_one_left_is_set_back_on_request() {
    let machine = Machine::new();
    machine.make_files_for(&FEW);
    let last_file = format!("{KDAMONDS}/1/state");
    for number in [Signal::TERM, Signal::INT] {
        machine.make(&last_file, "unset\n");
        let mut child = machine.start(&FEW, &last_file);
        assert_eq!(code_after(&mut child, number), Some(0));
        machine.assert_set_back();
    }
    machine.make(&last_file, "unset\n");
    let mut child = machine.start(&FEW, &last_file);
    let (code, _, err) = machine.balance(&FEW);
    assert!(code == 1 && err.starts_with("error busy another tiers balance runs"), "{err}");
    let (code, _, err) = machine.balance(&["--restore"]);
    assert!(code == 1 && err.starts_with("error busy "), "{err}");
    assert_eq!(code_after(&mut child, Signal::KILL), None);
    assert!(machine.is_kept() && machine.text(&last_file) != "off");
    for words in [&FEW[..], &["--dry-run"]] {
        let (code, _, err) = machine.balance(words);
        let is_told = err.starts_with("error not-restored ");
        assert!(code == 1 && is_told && err.contains("tiers balance --restore"), "{err}");
    }
    let (code, out, err) = machine.balance(&["--restore"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains(&format!("process {} had left is set back", child.0.id())), "{out}");
    machine.assert_set_back();
    let (code, out, _) = machine.balance(&["--restore"]);
    assert!(code == 0 && out.starts_with("Nothing to set back"), "{out}");
}

#[test]
fn it_ends_with_its_process() {
    let machine = Machine::new();
    let stat = format!("9 (a b) S {}\n", vec!["7"; 40].join(" "));
    machine.make("proc/9/stat", &stat);
    let words = [&FEW[..], &["--pid", "9"]].concat();
    machine.make_files_for(&words);
    let json = machine.0.file("a.json");
    let last_file = format!("{KDAMONDS}/0/state");
    let mut child = machine.start(&[&words[..], &["--json", &json]].concat(), &last_file);
    fs::remove_file(machine.0.0.join("proc/9/stat")).unwrap();
    assert_eq!(child.code_soon(), Some(0));
    assert_eq!(machine.text(&last_file), "off");
    let answer: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!((&answer["ended_by"], &answer["target"]["pid"]), (&json!("target-gone"), &json!(9)));
    let (code, _, err) = machine.balance(&words);
    assert!(code == 1 && err.starts_with("error no-process there is no process 9"), "{err}");
}

#[test]
fn kernel_tiering_is_set_back() {
    let machine = Machine::new();
    let (code, _, err) = machine.balance(&["--kernel-tiering"]);
    assert!(code == 1 && err.starts_with("error unsupported the kernel has one memory"), "{err}");
    let tiers = "sys/devices/virtual/memory_tiering";
    machine.make(&format!("{tiers}/memory_tier4/nodelist"), "0\n");
    machine.make(&format!("{tiers}/memory_tier22/nodelist"), "1\n");
    machine.make("sys/kernel/mm/numa/demotion_enabled", "false\n");
    machine.make("proc/vmstat", "pgpromote_success 1\npgdemote_kswapd 2\n");
    let balancing = "proc/sys/kernel/numa_balancing";
    machine.make(balancing, "0\n");
    let (code, out, _) = machine.balance(&["--kernel-tiering", "--dry-run"]);
    assert!(code == 0 && out.contains("echo 2 > /proc/sys/kernel/numa_balancing\n"), "{out}");
    assert_eq!(machine.text(balancing), "0");
    let mut child = machine.start(&["--kernel-tiering"], balancing);
    assert_eq!(machine.text("sys/kernel/mm/numa/demotion_enabled"), "true");
    assert_eq!(code_after(&mut child, Signal::TERM), Some(0));
    assert_eq!(machine.text(balancing), "0");
    assert_eq!(machine.text("sys/kernel/mm/numa/demotion_enabled"), "false");
    assert!(!machine.is_kept());
}

#[test]
fn what_cannot_be_balanced_is_refused_with_a_way_out() {
    let machine = Machine::new();
    for (words, code, start, way_out) in [
        (&["--fast", "0", "--slow", "0"] as &[&str], 2, "error usage node 0 is named ", "once"),
        (&["--fast", "0-1"], 2, "error usage nodes 0-1 are all ", "--slow NODES"),
        (&["--fast", "5"], 1, "error no-node node 5 has no memory", "some: 0-1"),
        (&["--sample", "3"], 2, "error usage a sample takes ", "--sample 0.1"),
        (&["--regions", "2-9"], 2, "error usage regions are ", "100-10000"),
        (&["--regions", "x"], 2, "error usage ", "such as 100-10000"),
        (&["--cgroup", "/none"], 1, "error no-cgroup ", "/proc/PID/cgroup"),
        (&["--pid", "9", "--kernel-tiering"], 2, "error usage ", "cannot be used with"),
        (&["--restore", "--pid", "9"], 2, "error usage ", "cannot be used with"),
    ] {
        let (exit, out, err) = machine.balance(words);
        assert_eq!((exit, out.as_str()), (code, ""), "{words:?}: {err}");
        assert!(err.starts_with(start) && err.contains(way_out), "{words:?}: {err}");
    }
    machine.make(&format!("{KDAMONDS}/nr_kdamonds"), "1\n");
    machine.make(&format!("{KDAMONDS}/0/state"), "on\n");
    machine.make(&format!("{KDAMONDS}/0/contexts/nr_contexts"), "1\n");
    machine.make(&format!("{KDAMONDS}/0/contexts/0/operations"), "paddr\n");
    let (code, _, err) = machine.balance(&[]);
    assert!(code == 1 && err.starts_with("error busy ") && err.contains("(on, paddr)"), "{err}");
    fs::remove_dir_all(machine.0.0.join(KDAMONDS)).unwrap();
    let (code, _, err) = machine.balance(&[]);
    assert!(code == 1 && err.contains("CONFIG_DAMON_SYSFS") && err.contains("6.11"), "{err}");
    fs::remove_dir_all(machine.0.0.join("sys/devices/system/node/node1")).unwrap();
    let (code, _, err) = machine.balance(&[]);
    assert!(code == 1 && err.starts_with("error no-node all memory is in node 0"), "{err}");
    assert!(!machine.is_kept());
    let (code, out, _) = machine.balance(&["--help"]);
    assert!(code == 0 && out.contains("Examples:\n  rackpool tiers balance"), "{out}");
}
