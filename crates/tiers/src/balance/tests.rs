//! Balancing on trees of files, with a kernel that makes directories and refuses as Linux does.
//! Nothing of this machine is read or written but its temporary directory.

use super::*;
use crate::topology::Sources;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A kernel of a test, with its files in a directory that goes with it.
struct TestKernel {
    folder: PathBuf,
    disk: Disk,
    operations: &'static str,
    /// Linux 6.11.
    has_migrate: bool,
    /// Linux 6.14.
    has_allow: bool,
    /// Linux 6.16.
    has_node_goals: bool,
    /// Linux 6.17.
    has_dests: bool,
    /// What cannot be written.
    refused: RefCell<Option<(String, Errno)>>,
    /// How many pauses long another program is at DAMON's files.
    busy: Cell<u32>,
}

impl TestKernel {
    /// Node 0 with processors, nodes 1 and 2 without; blocks of 128 MiB.
    fn new() -> TestKernel {
        // Relaxed: only the number counts, and an add gives each one once.
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rackpool-balance-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let kernel = TestKernel {
            disk: Disk::new(&folder.join("sys"), &folder.join("proc")),
            folder,
            operations: "vaddr\nfvaddr\npaddr\n",
            has_migrate: true,
            has_allow: true,
            has_node_goals: true,
            has_dests: true,
            refused: RefCell::new(None),
            busy: Cell::new(0),
        };
        kernel.node(0, "0-1", "10 30 20", &[0, 1, 2, 3]);
        kernel.node(1, "", "30 10 40", &[8, 9]);
        kernel.node(2, "", "20 40 10", &[16]);
        kernel.make("/sys/devices/system/memory/block_size_bytes", "8000000\n");
        kernel.make(&format!("{KDAMONDS}/nr_kdamonds"), "0\n");
        kernel.make("/proc/sys/kernel/random/boot_id", "this-boot\n");
        kernel
    }

    /// One that lacks something.
    fn with(change: impl FnOnce(&mut TestKernel)) -> TestKernel {
        let mut kernel = TestKernel::new();
        change(&mut kernel);
        kernel
    }

    fn node(&self, id: u16, cpus: &str, distances: &str, blocks: &[u32]) {
        let at = format!("/sys/devices/system/node/node{id}");
        let meminfo = format!("Node {id} MemTotal: 1048576 kB\nNode {id} MemFree: 1024 kB\n");
        for (name, text) in
            [("cpulist", cpus), ("distance", distances), ("meminfo", meminfo.as_str())]
        {
            self.make(&format!("{at}/{name}"), text);
        }
        for block in blocks {
            self.make(&format!("{at}/memory{block}/state"), "online\n");
            self.make(&format!("/sys/devices/system/memory/memory{block}/state"), "online\n");
        }
    }

    fn tiers(&self, tiers: &[(u32, &str)]) {
        for (tier, nodes) in tiers {
            let at = "/sys/devices/virtual/memory_tiering";
            self.make(&format!("{at}/memory_tier{tier}/nodelist"), nodes);
        }
    }

    fn make(&self, file: &str, text: &str) {
        let path = self.disk.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, file: &str) -> String {
        self.read(file).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn has(&self, file: &str) -> bool {
        self.disk.path(file).exists()
    }

    fn topology(&self) -> Topology {
        Topology::read(&Sources::of_sysfs(&self.folder.join("sys"))).unwrap()
    }

    fn sides(&self) -> Sides {
        Sides::of(&self.topology(), None, None).unwrap()
    }

    fn states(&self) -> StateFile {
        StateFile::new(&self.folder.join("run"), &self.folder.join("sys"))
    }

    fn plan(&self, target: &Target) -> Result<Mechanism, BalanceError> {
        self.plan_of(target, Parameters::default())
    }

    fn plan_of(&self, target: &Target, wanted: Parameters) -> Result<Mechanism, BalanceError> {
        Plan::of(self, &self.topology(), &self.sides(), target, wanted).map(Mechanism::Damon)
    }

    /// Starts for a target; the error if it does not.
    fn error(&self, target: &Target) -> BalanceError {
        let mechanism = match self.plan(target) {
            Ok(mechanism) => mechanism,
            Err(error) => return error,
        };
        let (topology, states) = (self.topology(), self.states());
        let started = Balance::start(self, &topology, target, &mechanism, &states);
        started.err().expect("it cannot start")
    }

    /// As if another program had set up so many kdamonds.
    fn set_up_others(&self, count: u32) {
        self.write(&format!("{KDAMONDS}/nr_kdamonds"), &count.to_string()).unwrap();
        for index in 0..count {
            let at = format!("{KDAMONDS}/{index}/contexts");
            self.write(&format!("{at}/nr_contexts"), "1").unwrap();
            self.write(&format!("{at}/0/operations"), "paddr").unwrap();
            self.write(&format!("{at}/0/schemes/nr_schemes"), "1").unwrap();
            self.write(&format!("{at}/0/schemes/0/action"), "pageout").unwrap();
        }
    }

    fn turn_on_another(&self) {
        self.set_up_others(1);
        self.write(&format!("{KDAMONDS}/0/state"), "on").unwrap();
    }

    /// While another program is at DAMON's files.
    fn require_free(&self, file: &str) -> io::Result<()> {
        match self.busy.get() {
            1.. if file.starts_with(KDAMONDS) => Err(Errno::BUSY.into()),
            _ => Ok(()),
        }
    }

    /// What a scheme is said to have done.
    fn did(&self, kdamond: u32, scheme: u32, counts: [u64; 5]) {
        let names = ["nr_tried", "sz_tried", "nr_applied", "sz_applied", "qt_exceeds"];
        for (name, count) in names.iter().zip(counts) {
            let at = format!("{KDAMONDS}/{kdamond}/contexts/0/schemes/{scheme}/stats");
            self.make(&format!("{at}/{name}"), &format!("{count}\n"));
        }
    }

    /// Makes the directories of a number that was written; each has these files.
    fn folders(&self, count_file: &str, count: &str, files: &[&str]) {
        let at = count_file.rsplit_once('/').unwrap().0;
        for name in self.names(at).unwrap() {
            let path = self.disk.path(&format!("{at}/{name}"));
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            }
        }
        for index in 0..count.parse::<u32>().unwrap() {
            for file in files {
                let (file, text) = file.split_once('=').unwrap_or((file, "0"));
                self.make(&format!("{at}/{index}/{file}"), &format!("{text}\n"));
            }
        }
    }

    fn scheme_files(&self) -> Vec<&'static str> {
        let mut files = vec![
            "action=stat",
            "access_pattern/sz/min",
            "access_pattern/sz/max",
            "access_pattern/nr_accesses/min",
            "access_pattern/nr_accesses/max",
            "access_pattern/age/min",
            "access_pattern/age/max",
            "quotas/ms",
            "quotas/bytes",
            "quotas/reset_interval_ms",
            "quotas/weights/sz_permil",
            "quotas/weights/nr_accesses_permil",
            "quotas/weights/age_permil",
            "quotas/goals/nr_goals",
            "filters/nr_filters",
            "stats/nr_tried",
            "stats/sz_tried",
            "stats/nr_applied",
            "stats/sz_applied",
            "stats/qt_exceeds",
        ];
        files.extend(self.has_migrate.then_some("target_nid=-1"));
        files.extend(self.has_dests.then_some("dests/nr_dests"));
        files
    }

    fn state(&self, file: &str, text: &str) -> io::Result<()> {
        let is_on = self.read(file)? == "on";
        let pid = file.replace("/state", "/pid");
        match (text, is_on) {
            ("on", false) => self.disk.write(&pid, &thread_of(file))?,
            ("off", true) => self.disk.write(&pid, "-1")?,
            ("update_schemes_stats", true) => return Ok(()),
            _ => return Err(Errno::INVAL.into()),
        }
        self.disk.write(file, text)
    }
}

/// Such as 4710 for kdamond 0.
fn thread_of(state_file: &str) -> String {
    let index = state_file.split('/').rev().nth(1).unwrap();
    format!("471{index}")
}

impl Drop for TestKernel {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Kernel for TestKernel {
    fn read(&self, file: &str) -> io::Result<String> {
        self.require_free(file)?;
        self.disk.read(file)
    }

    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.names(folder)
    }

    fn pause(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        self.require_free(file)?;
        if let Some((path, error)) = &*self.refused.borrow()
            && file.ends_with(path)
        {
            return Err((*error).into());
        }
        let name = file.rsplit_once('/').unwrap().1;
        match name {
            "state" => return self.state(file, text),
            "action" if !self.has_migrate && text.starts_with("migrate") => {
                return Err(Errno::INVAL.into());
            }
            "nr_kdamonds" => {
                let at = |index: u64| format!("{KDAMONDS}/{index}/state");
                let count = self.text(file).parse::<u64>().unwrap();
                if (0..count).any(|index| self.text(&at(index)) == "on") {
                    return Err(Errno::BUSY.into());
                }
            }
            _ => {}
        }
        self.disk.write(file, text)?;
        let operations = format!("avail_operations={}", self.operations);
        let scheme_files = self.scheme_files();
        let files: &[&str] = match name {
            "nr_kdamonds" => &["state=off", "pid=-1", "contexts/nr_contexts"],
            "nr_contexts" => &[
                &operations,
                "operations=vaddr",
                "monitoring_attrs/intervals/sample_us",
                "monitoring_attrs/intervals/aggr_us",
                "monitoring_attrs/intervals/update_us",
                "monitoring_attrs/nr_regions/min",
                "monitoring_attrs/nr_regions/max",
                "targets/nr_targets",
                "schemes/nr_schemes",
            ],
            "nr_targets" => &["pid_target", "regions/nr_regions"],
            "nr_regions" => &["start", "end"],
            "nr_schemes" => &scheme_files,
            "nr_goals" if self.has_node_goals => &["target_metric", "target_value", "nid"],
            "nr_goals" => &["target_metric", "target_value"],
            "nr_filters" if self.has_allow => &["type", "matching", "memcg_path", "allow"],
            "nr_filters" => &["type", "matching", "memcg_path"],
            "nr_dests" => &["id", "weight"],
            _ => return Ok(()),
        };
        self.folders(file, text, files);
        Ok(())
    }
}

fn saved_file(kernel: &TestKernel) -> PathBuf {
    kernel.folder.join("run/tiers-balance.json")
}

/// The state file as a balance leaves it that was killed: its process is no more.
fn kill(kernel: &TestKernel) {
    let text = fs::read_to_string(saved_file(kernel)).unwrap();
    let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
    saved["start_time"] = 1.into();
    fs::write(saved_file(kernel), saved.to_string()).unwrap();
}

#[test]
fn a_machine_is_balanced_by_hmsdks_parameters_and_everything_is_set_back() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "3");
    // Node 0 to the nearest slow one; both slow ones to node 0.
    for (kdamond, files) in [
        (0, ["migrate_cold", "2", "0", "0", "15", "1000", "node_mem_free_bp", "0", "50"]),
        (1, ["migrate_hot", "0", "1", "20", "0", "2000", "node_mem_used_bp", "0", "9970"]),
        (2, ["migrate_hot", "0", "1", "20", "0", "2000", "node_mem_used_bp", "0", "9970"]),
    ] {
        let names = [
            "action",
            "target_nid",
            "access_pattern/nr_accesses/min",
            "access_pattern/nr_accesses/max",
            "access_pattern/age/min",
            "quotas/ms",
            "quotas/goals/0/target_metric",
            "quotas/goals/0/nid",
            "quotas/goals/0/target_value",
        ];
        let context = format!("{KDAMONDS}/{kdamond}/contexts/0");
        let found = names.map(|name| kernel.text(&format!("{context}/schemes/0/{name}")));
        assert_eq!(found, files, "kdamond {kdamond}");
        for (file, text) in [
            ("operations", "paddr"),
            ("monitoring_attrs/intervals/sample_us", "100000"),
            ("monitoring_attrs/intervals/aggr_us", "2000000"),
            ("monitoring_attrs/intervals/update_us", "20000000"),
            ("monitoring_attrs/nr_regions/min", "100"),
            ("monitoring_attrs/nr_regions/max", "10000"),
            ("schemes/0/quotas/bytes", "53687091200"),
            ("schemes/0/quotas/reset_interval_ms", "20000"),
            ("schemes/0/access_pattern/sz/min", "4096"),
        ] {
            assert_eq!(kernel.text(&format!("{context}/{file}")), text, "{file}");
        }
        assert_eq!(kernel.text(&format!("{KDAMONDS}/{kdamond}/state")), "on");
    }
    let first = format!("{KDAMONDS}/0/contexts/0");
    // 512 MiB from 0, in pieces of 4 MiB.
    assert_eq!(kernel.text(&format!("{first}/targets/0/regions/nr_regions")), "128");
    assert_eq!(kernel.text(&format!("{first}/targets/0/regions/127/end")), "536870912");
    assert_eq!(kernel.text(&format!("{first}/schemes/0/filters/0/type")), "young");
    assert!(!kernel.has(&format!("{KDAMONDS}/1/contexts/0/schemes/0/filters/0")));

    assert!(balance.is_on().unwrap() && balance.has_target());
    assert!(saved_file(&kernel).exists());
    balance.stop().unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "0");
    assert!(!kernel.has(&format!("{KDAMONDS}/0")) && !saved_file(&kernel).exists());
}

#[test]
fn what_each_scheme_moved_is_told() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let mut balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    kernel.did(0, 0, [7, 700, 6, 600, 5]);
    let moved = balance.look().unwrap();
    let scheme = Scheme { direction: Direction::Demote, from: vec![0], to: vec![2] };
    let counts = Counts {
        tried_regions: 7,
        tried_bytes: 700,
        applied_regions: 6,
        applied_bytes: 600,
        quota_exceeded: 5,
    };
    let (direction, scheme, counts) = (Direction::Demote, Some(scheme), Some(counts));
    assert_eq!(moved[0], Moved { direction, scheme, bytes: 600, counts });
    assert_eq!(moved.len(), 3);
    balance.stop().unwrap();
}

#[test]
fn a_rehearsal_writes_nothing_and_says_what_a_start_writes() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let writes = rehearse(&kernel, &topology, &target, &mechanism, &states).unwrap();
    assert!(!kernel.has(&format!("{KDAMONDS}/0")) && !saved_file(&kernel).exists());
    let _balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    for Write { path, value } in writes {
        // The newest kernels have it.
        if !path.ends_with("goal_tuner") {
            assert_eq!(kernel.text(&path), value, "{path}");
        }
    }
}

#[test]
fn a_process_is_balanced_by_its_addresses_until_it_ends() {
    let kernel = TestKernel::new();
    let fields = vec!["0"; 18].join(" ");
    kernel.make("/proc/77/stat", &format!("77 (a) b) S {fields} 555 0"));
    let target = Target::Process(77);
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "1");
    let context = format!("{KDAMONDS}/0/contexts/0");
    for (file, text) in [
        ("operations", "vaddr"),
        ("targets/0/pid_target", "77"),
        ("targets/0/regions/nr_regions", "0"),
        ("schemes/nr_schemes", "2"),
        // Cold pages go to both slow nodes, hot ones to one.
        ("schemes/0/dests/nr_dests", "2"),
        ("schemes/0/dests/1/id", "2"),
        ("schemes/0/dests/1/weight", "1"),
        ("schemes/1/dests/nr_dests", "0"),
        ("schemes/1/target_nid", "0"),
        ("schemes/0/filters/nr_filters", "0"),
    ] {
        assert_eq!(kernel.text(&format!("{context}/{file}")), text, "{file}");
    }
    assert!(balance.has_target());
    kernel.make("/proc/77/stat", &format!("77 (a) b) S {fields} 556 0"));
    assert!(!balance.has_target(), "another process has its number");
    kernel.make("/proc/77/stat", &format!("77 (a) b) Z {fields} 555 0"));
    assert!(!balance.has_target());
    fs::remove_file(kernel.disk.path("/proc/77/stat")).unwrap();
    assert!(!balance.has_target());
    // DAMON ends with its target.
    kernel.write(&format!("{KDAMONDS}/0/state"), "off").unwrap();
    assert!(!balance.is_on().unwrap());
    balance.stop().unwrap();
    assert!(matches!(kernel.error(&target), BalanceError::NoProcess { pid: 77 }));
}

#[test]
fn a_control_group_is_balanced_with_the_groups_in_it() {
    let kernel = TestKernel::new();
    let root = "/sys/fs/cgroup";
    kernel.make(&format!("{root}/cgroup.controllers"), "memory");
    for group in ["app", "app/a", "app/a/b", "app/c", "single", "bare"] {
        kernel.make(&format!("{root}/{group}/cgroup.procs"), "");
        if group != "bare" && group != "app/c" {
            kernel.make(&format!("{root}/{group}/memory.current"), "0");
        }
    }
    let filters = |index: u32, scheme: &str| {
        let at = format!("{KDAMONDS}/{scheme}/filters/{index}");
        ["type", "matching", "memcg_path", "allow"].map(|name| kernel.text(&format!("{at}/{name}")))
    };
    for (path, count) in [("/app", "4"), ("/sys/fs/cgroup/single/", "2")] {
        let target = Target::Cgroup(path.to_owned());
        let mechanism = kernel.plan(&target).unwrap();
        let (topology, states) = (kernel.topology(), kernel.states());
        let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
        let demote = "0/contexts/0/schemes/0";
        assert_eq!(kernel.text(&format!("{KDAMONDS}/{demote}/filters/nr_filters")), count);
        match path {
            "/app" => {
                assert_eq!(filters(1, demote), ["memcg", "Y", "/app", "Y"]);
                // What is in none of them is left out by the last one.
                assert_eq!(filters(3, demote), ["memcg", "N", "/app/a/b", "0"]);
                assert_eq!(filters(0, "1/contexts/0/schemes/0"), ["memcg", "Y", "/app", "Y"]);
                assert!(balance.has_target());
            }
            _ => {
                assert_eq!(filters(1, demote), ["memcg", "N", "/single", "0"]);
                assert!(balance.has_target());
                fs::remove_dir_all(kernel.disk.path(&format!("{root}/single"))).unwrap();
                assert!(!balance.has_target());
            }
        }
        balance.stop().unwrap();
    }
    let error = |path: &str| kernel.error(&Target::Cgroup(path.to_owned()));
    assert!(matches!(error("/none"), BalanceError::NoCgroup { .. }));
    assert!(matches!(error("/"), BalanceError::NoCgroup { .. }));
    assert!(matches!(error("/app/../app"), BalanceError::NoCgroup { .. }));
    assert!(matches!(error("/bare"), BalanceError::NoMemoryController { .. }));
    let old = TestKernel::with(|kernel| kernel.has_allow = false);
    for group in ["app", "app/a"] {
        old.make(&format!("{root}/memory/{group}/cgroup.procs"), "");
        old.make(&format!("{root}/memory/{group}/memory.usage_in_bytes"), "0");
    }
    let error = old.error(&Target::Cgroup("/app".to_owned()));
    assert!(matches!(error, BalanceError::CgroupsWithin { .. }), "{error}");
    assert_eq!(old.text(&format!("{KDAMONDS}/nr_kdamonds")), "0", "set back");
}

#[test]
fn what_an_older_kernel_lacks_is_left_out_or_said() {
    let kernel = TestKernel::with(|kernel| kernel.has_node_goals = false);
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    let goals = format!("{KDAMONDS}/0/contexts/0/schemes/0/quotas/goals/nr_goals");
    assert_eq!(kernel.text(&goals), "0");
    balance.stop().unwrap();

    let kernel = TestKernel::with(|kernel| {
        kernel.has_migrate = false;
        kernel.has_dests = false
    });
    assert!(matches!(kernel.error(&Target::Machine), BalanceError::NoMigrate));
    assert!(!saved_file(&kernel).exists() && !kernel.has(&format!("{KDAMONDS}/0")));
    let kernel = TestKernel::with(|kernel| kernel.has_dests = false);
    kernel.make("/proc/7/stat", &format!("7 (a) S {}", vec!["3"; 30].join(" ")));
    let error = kernel.error(&Target::Process(7));
    assert!(matches!(error, BalanceError::NoProcessMigrate { pid: 7 }), "{error}");
    let kernel = TestKernel::with(|kernel| kernel.operations = "vaddr fvaddr");
    let error = kernel.error(&Target::Machine);
    assert_eq!(error.code(), "unsupported");
    assert!(error.to_string().contains("but: vaddr, fvaddr; CONFIG_DAMON_PADDR has"), "{error}");
    let kernel = TestKernel::new();
    fs::remove_dir_all(kernel.disk.path("/sys/kernel/mm/damon")).unwrap();
    let text = kernel.error(&Target::Machine).to_string();
    for part in ["CONFIG_DAMON_SYSFS", "CONFIG_DAMON_VADDR", "CONFIG_DAMON_PADDR", "Linux 6.11"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn kdamonds_of_other_programs_are_left_alone() {
    let kernel = TestKernel::new();
    kernel.turn_on_another();
    let error = kernel.error(&Target::Machine);
    assert_eq!(error.code(), "busy");
    assert!(error.to_string().contains("kdamond 0 (on, paddr, pageout)"), "{error}");
    kernel.write(&format!("{KDAMONDS}/0/state"), "off").unwrap();
    // Its settings would be gone.
    assert!(matches!(kernel.error(&Target::Machine), BalanceError::InUse { .. }));
    // One without settings is no loss, and there is one again at the end.
    kernel.write(&format!("{KDAMONDS}/nr_kdamonds"), "1").unwrap();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    balance.stop().unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "1");
    kernel.make("/sys/module/damon_reclaim/parameters/enabled", "Y\n");
    let error = kernel.error(&target);
    assert!(matches!(error, BalanceError::Module { module: "damon_reclaim" }), "{error}");
}

#[test]
fn the_kernels_statistics_are_off_meanwhile() {
    let (kernel, target) = (TestKernel::new(), Target::Machine);
    let enabled = "/sys/module/damon_stat/parameters/enabled";
    for [before, meanwhile] in [["N", "N"], ["Y", "N"]] {
        kernel.make(enabled, &format!("{before}\n"));
        let mechanism = kernel.plan(&target).unwrap();
        let (topology, states) = (kernel.topology(), kernel.states());
        let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
        assert_eq!(kernel.text(enabled), meanwhile);
        balance.stop().unwrap();
        assert_eq!(kernel.text(enabled), before);
    }
}

#[test]
fn kdamonds_that_came_after_ours_had_ended_are_left_alone() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let mut balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    kernel.did(1, 0, [1, 2, 3, 4, 5]);
    let before = balance.look().unwrap();
    for index in 0..3 {
        kernel.write(&format!("{KDAMONDS}/{index}/state"), "off").unwrap();
    }
    assert!(!balance.is_on().unwrap());
    assert_eq!(balance.look().unwrap(), before, "what was seen last stays");
    kernel.turn_on_another();
    let error = balance.stop().unwrap_err();
    assert!(matches!(error, BalanceError::NotRestored { .. }), "{error}");
    assert!(error.to_string().contains("left alone: kdamond 0 (on, paddr, pageout)"), "{error}");
    assert_eq!(kernel.text(&format!("{KDAMONDS}/0/state")), "on");
    kernel.write(&format!("{KDAMONDS}/0/state"), "off").unwrap();
    kill(&kernel);
    states.restore(&kernel).unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "1", "not ours");
}

#[test]
fn kdamonds_that_took_the_place_of_ours_keep_their_settings() {
    for count in [0, 3] {
        let kernel = TestKernel::new();
        let target = Target::Machine;
        let mechanism = kernel.plan(&target).unwrap();
        let (topology, states) = (kernel.topology(), kernel.states());
        let mut balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
        for index in 0..3 {
            kernel.write(&format!("{KDAMONDS}/{index}/state"), "off").unwrap();
        }
        kernel.set_up_others(count);
        assert!(!balance.is_on().unwrap());
        assert_eq!(balance.look().unwrap().len(), 3);
        balance.stop().unwrap();
        assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), count.to_string());
        for index in 0..count {
            let action = format!("{KDAMONDS}/{index}/contexts/0/schemes/0/action");
            assert_eq!(kernel.text(&action), "pageout");
        }
    }
}

#[test]
fn another_program_at_damons_files_is_waited_for() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    kernel.busy.set(3);
    let mut balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    kernel.did(0, 0, [1, 2, 3, 4, 5]);
    kernel.busy.set(3);
    let moved = balance.look().unwrap();
    assert_eq!(moved[0].bytes, 4);
    // Not for ever: it goes on with what was seen last.
    kernel.busy.set(1_000_000);
    assert!(balance.is_on().unwrap());
    assert_eq!(balance.look().unwrap(), moved);
    kernel.busy.set(0);
    // Nor is it a failure if it ends while it is asked.
    *kernel.refused.borrow_mut() = Some(("0/state".to_owned(), Errno::CANCELED));
    assert_eq!(balance.look().unwrap(), moved);
    *kernel.refused.borrow_mut() = None;
    kernel.busy.set(3);
    balance.stop().unwrap();
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "0");
    kernel.busy.set(1_000_000);
    let error = kernel.error(&target);
    assert!(error.code() == "busy" && !saved_file(&kernel).exists(), "{error}");
}

#[test]
fn a_start_that_fails_sets_everything_back() {
    for (file, error) in [
        ("2/state", Errno::BUSY),
        ("1/contexts/0/schemes/0/quotas/ms", Errno::NOENT),
        ("0/contexts/0/operations", Errno::ACCESS),
        ("nr_regions", Errno::NOMEM),
    ] {
        let kernel = TestKernel::new();
        *kernel.refused.borrow_mut() = Some((file.to_owned(), error));
        let failed = kernel.error(&Target::Machine);
        let code = match error {
            Errno::ACCESS => "denied",
            Errno::BUSY => "busy",
            _ => "unsupported",
        };
        assert_eq!(failed.code(), code, "{failed}");
        assert!(failed.to_string().contains(file), "{failed}");
        assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "0");
        assert!(!saved_file(&kernel).exists());
    }
}

#[test]
fn a_killed_balance_is_found_and_set_back_and_a_running_one_is_not() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    assert!(matches!(kernel.error(&target), BalanceError::Running { .. }));
    assert!(matches!(states.restore(&kernel), Err(BalanceError::Running { .. })));
    drop(balance);
    kill(&kernel);
    let error = kernel.error(&target);
    assert_eq!(error.code(), "not-restored");
    assert!(error.to_string().ends_with("rackpool tiers balance --restore"), "{error}");
    assert_eq!(states.restore(&kernel).unwrap(), Some(std::process::id()));
    assert_eq!(kernel.text(&format!("{KDAMONDS}/nr_kdamonds")), "0");
    assert_eq!(states.restore(&kernel).unwrap(), None);

    // Nothing of it outlives a boot.
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    drop(balance);
    kill(&kernel);
    kernel.make("/proc/sys/kernel/random/boot_id", "next-boot\n");
    fs::remove_dir_all(kernel.disk.path(KDAMONDS)).unwrap();
    kernel.make(&format!("{KDAMONDS}/nr_kdamonds"), "0\n");
    Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap().stop().unwrap();
}

#[test]
fn a_state_file_of_another_tree_or_version_is_refused() {
    let kernel = TestKernel::new();
    let target = Target::Machine;
    let mechanism = kernel.plan(&target).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    let other = StateFile::new(&kernel.folder.join("run"), Path::new("/other"));
    let error = other.restore(&kernel).unwrap_err();
    assert!(error.to_string().contains("it is of --sysfs "), "{error}");
    let text = fs::read_to_string(saved_file(&kernel)).unwrap();
    for wrong in [text.replace("balance/1", "balance/9"), "{".to_owned()] {
        fs::write(saved_file(&kernel), wrong).unwrap();
        assert_eq!(states.restore(&kernel).unwrap_err().code(), "bad-file");
    }
    fs::write(saved_file(&kernel), text).unwrap();
    balance.stop().unwrap();
}

#[test]
fn kernel_tiering_is_set_counted_and_set_back() {
    let kernel = TestKernel::new();
    let (target, mechanism, states) = (Target::Machine, Mechanism::KernelTiering, kernel.states());
    let start = |topology: &Topology| {
        Balance::start(&kernel, topology, &target, &mechanism, &states).map(drop)
    };
    assert!(matches!(start(&kernel.topology()), Err(BalanceError::OneTier)));
    kernel.tiers(&[(4, "0\n"), (22, "1-2\n")]);
    let topology = kernel.topology();
    let error = start(&topology).unwrap_err();
    assert!(error.to_string().contains("CONFIG_NUMA_BALANCING"), "{error}");
    kernel.make("/proc/sys/kernel/numa_balancing", "1\n");
    kernel.make("/sys/kernel/mm/numa/demotion_enabled", "perhaps\n");
    assert_eq!(start(&topology).unwrap_err().code(), "bad-file");
    kernel.make("/sys/kernel/mm/numa/demotion_enabled", "false\n");
    let vmstat = |promoted: u64| {
        format!("pgpromote_success {promoted}\npgdemote_kswapd 5\npgdemote_direct {promoted}\n")
    };
    kernel.make("/proc/vmstat", &vmstat(10));
    let mut balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    assert_eq!(kernel.text("/proc/sys/kernel/numa_balancing"), "2");
    assert_eq!(kernel.text("/sys/kernel/mm/numa/demotion_enabled"), "true");
    kernel.make("/proc/vmstat", &vmstat(13));
    let page = rustix::param::page_size() as u64;
    let bytes: Vec<u64> = balance.look().unwrap().iter().map(|moved| moved.bytes).collect();
    assert_eq!(bytes, [3 * page, 3 * page]);
    assert!(balance.is_on().unwrap());
    kernel.write("/proc/sys/kernel/numa_balancing", "0").unwrap();
    assert!(!balance.is_on().unwrap());
    balance.stop().unwrap();
    assert_eq!(kernel.text("/proc/sys/kernel/numa_balancing"), "1");
    assert_eq!(kernel.text("/sys/kernel/mm/numa/demotion_enabled"), "false");
}

#[test]
fn sides_are_named_or_the_kernels_tiers_or_nodes_with_processors() {
    let kernel = TestKernel::new();
    let sides =
        |fast: Option<&[u16]>, slow: Option<&[u16]>| Sides::of(&kernel.topology(), fast, slow);
    let of = |fast: &[u16], slow: &[u16]| Sides { fast: fast.to_vec(), slow: slow.to_vec() };
    assert_eq!(sides(None, None).unwrap(), of(&[0], &[1, 2]));
    assert_eq!(sides(Some(&[0, 2]), None).unwrap(), of(&[0, 2], &[1]));
    assert_eq!(sides(None, Some(&[2])).unwrap(), of(&[0, 1], &[2]));
    assert_eq!(sides(Some(&[2]), Some(&[1])).unwrap(), of(&[2], &[1]));
    kernel.tiers(&[(3, "2\n"), (4, "0-1\n")]);
    assert_eq!(sides(None, None).unwrap(), of(&[2], &[0, 1]));
    assert!(matches!(sides(Some(&[5]), None), Err(BalanceError::NoNode { node: 5, .. })));
    assert_eq!(sides(Some(&[0]), Some(&[0, 1])).unwrap_err().code(), "usage");
    let several = Sides { fast: vec![0, 1], slow: vec![2] };
    let wanted = Parameters::default();
    let plan = Plan::of(&kernel, &kernel.topology(), &several, &Target::Process(1), wanted);
    assert!(matches!(plan, Err(BalanceError::SeveralFast { first: 0, .. })));

    let even = TestKernel::new();
    for node in [1, 2] {
        even.make(&format!("/sys/devices/system/node/node{node}/cpulist"), "2\n");
    }
    let error = Sides::of(&even.topology(), None, None).unwrap_err();
    assert!(matches!(error, BalanceError::NoSides { .. }), "{error}");
    for node in [1, 2] {
        let path = even.disk.path(&format!("/sys/devices/system/node/node{node}"));
        fs::remove_dir_all(path).unwrap();
    }
    even.make("/sys/devices/system/node/node0/distance", "10\n");
    let error = Sides::of(&even.topology(), None, None).unwrap_err();
    assert!(matches!(error, BalanceError::OneMemory { node: 0 }), "{error}");
}

#[test]
fn two_fast_nodes_demote_to_the_nearest_and_to_equals_in_turn() {
    let kernel = TestKernel::new();
    kernel.node(3, "2-3", "20 30 30 10", &[24]);
    for (node, distances) in [(0, "10 30 30 20"), (1, "30 10 40 30"), (2, "30 40 10 30")] {
        kernel.make(&format!("/sys/devices/system/node/node{node}/distance"), distances);
    }
    let Mechanism::Damon(plan) = kernel.plan(&Target::Machine).unwrap() else { unreachable!() };
    let pairs: Vec<(u16, u16)> = plan.schemes().map(|s| (s.from[0], s.to[0])).collect();
    assert_eq!(pairs, [(0, 1), (3, 2), (1, 0), (2, 3)]);
}

#[test]
fn addresses_are_those_of_memory_that_is_online_in_enough_pieces() {
    let kernel = TestKernel::new();
    kernel.make("/sys/devices/system/memory/memory1/state", "offline\n");
    let wanted = Parameters { regions_min: 3, ..Parameters::default() };
    let Mechanism::Damon(plan) = kernel.plan_of(&Target::Machine, wanted).unwrap() else {
        unreachable!()
    };
    let Watched::Physical(ranges) = &plan.kdamonds[0].watched else { unreachable!() };
    let mib = |mib: u64| mib << 20;
    let expected = [mib(0)..mib(128), mib(256)..mib(384), mib(384)..mib(512)];
    assert_eq!(ranges[..], expected);
    fs::remove_dir_all(kernel.disk.path("/sys/devices/system/node/node2/memory16")).unwrap();
    let error = kernel.plan(&Target::Machine).unwrap_err();
    assert!(matches!(error, BalanceError::NoBlocks { node: 2 }), "{error}");
}

#[test]
fn parameters_that_do_not_go_together_are_refused() {
    let kernel = TestKernel::new();
    let good = Parameters::default();
    let second = Duration::from_secs(1);
    for wrong in [
        Parameters { sample: Duration::ZERO, ..good.clone() },
        Parameters { aggregation: second, sample: 2 * second, ..good.clone() },
        Parameters { update: second, ..good.clone() },
        Parameters { aggregation: 61 * second, update: 61 * second, ..good.clone() },
        Parameters { quota_bytes: 0, ..good.clone() },
        Parameters { regions_min: 2, ..good.clone() },
        Parameters { regions_min: 11, regions_max: 10, ..good.clone() },
    ] {
        let refused = kernel.plan_of(&Target::Machine, wrong);
        assert_eq!(refused.unwrap_err().code(), "usage");
    }
    // Without a goal all that is cold goes down.
    let target = Target::Machine;
    let wanted = Parameters {
        free_share: None,
        hot_share: 0.5,
        cold_age: Duration::from_millis(2001),
        ..good
    };
    let mechanism = kernel.plan_of(&target, wanted).unwrap();
    let (topology, states) = (kernel.topology(), kernel.states());
    let balance = Balance::start(&kernel, &topology, &target, &mechanism, &states).unwrap();
    let scheme = |kdamond: u32| format!("{KDAMONDS}/{kdamond}/contexts/0/schemes/0");
    assert_eq!(kernel.text(&format!("{}/quotas/goals/nr_goals", scheme(0))), "0");
    assert_eq!(kernel.text(&format!("{}/access_pattern/age/min", scheme(0))), "2");
    assert_eq!(kernel.text(&format!("{}/access_pattern/nr_accesses/min", scheme(1))), "10");
    balance.stop().unwrap();
}
