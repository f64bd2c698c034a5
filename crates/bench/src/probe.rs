//! What else the machine is doing: the counters behind the rule on disturbed pairs.
//!
//! [`SystemProbe`] reads `/proc/stat` (all CPU time), `/proc/PID/stat` of the process that runs
//! the measurement and of all its descendants (own CPU time), and the calling thread's
//! `/proc/thread-self/status` (involuntary context switches: the counter that `getrusage` shows,
//! readable without unsafe code). Interrupt time is left out: the loopback's work is done there
//! on our behalf. Time stolen by a hypervisor counts as foreign. What cannot be read counts as
//! 0, so that on a machine without `/proc` nothing is ever called disturbed; see
//! [`SystemProbe::works`].

use crate::interleave::{Probe, Sample};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Instant;

/// Reads the counters of this machine; one sample costs a walk over `/proc` (about 1 ms), so it
/// belongs between slices, never inside.
#[derive(Debug)]
pub struct SystemProbe {
    origin: Instant,
    root_pids: Vec<u32>,
    tick_ns: u64,
}

impl SystemProbe {
    /// Own time is that of the process `root_pid` and its descendants, as far as they live in
    /// the same process namespace.
    #[must_use]
    pub fn new(root_pid: u32) -> Self {
        Self::of_processes(vec![root_pid])
    }

    /// Own time is that of several processes and their descendants; one that is named twice or is a
    /// descendant of another counts once.
    #[must_use]
    pub fn of_processes(root_pids: Vec<u32>) -> Self {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        Self { origin: Instant::now(), root_pids, tick_ns: 1_000_000_000 / ticks }
    }

    /// Own time is that of this process and its descendants.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::new(std::process::id())
    }

    /// Whether the machine shows its counters at all.
    #[must_use]
    pub fn works(&self) -> bool {
        busy_ticks(&read("/proc/stat")).is_some()
    }

    fn own_ticks(&self) -> u64 {
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may end between listing and reading: its parent then carries its time.
            if let Some(process) = process_ticks(&read(&format!("/proc/{pid}/stat"))) {
                processes.insert(pid, process);
            }
        }
        tree_ticks(&processes, &self.root_pids)
    }
}

impl Probe for SystemProbe {
    fn sample(&mut self) -> Sample {
        Sample {
            wall_ns: u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
            busy_ns: busy_ticks(&read("/proc/stat")).unwrap_or(0) * self.tick_ns,
            own_ns: self.own_ticks() * self.tick_ns,
            involuntary_switches: involuntary(&read("/proc/thread-self/status")).unwrap_or(0),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessTicks {
    parent: u32,
    /// User and system time, its own and that of children it has waited for.
    ticks: u64,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// user + nice + system + steal of all cores; guest time is part of user time already.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let steal = fields.get(7).copied().unwrap_or(0);
    Some(fields.get(..3)?.iter().sum::<u64>() + steal)
}

/// The name in parentheses may hold spaces and parentheses: fields count from the last one.
fn process_ticks(stat: &str) -> Option<ProcessTicks> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let mut ticks = 0;
    for index in 11..=14 {
        ticks += number(index)?;
    }
    Some(ProcessTicks { parent: u32::try_from(number(1)?).ok()?, ticks })
}

fn tree_ticks(processes: &HashMap<u32, ProcessTicks>, roots: &[u32]) -> u64 {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (&pid, process) in processes {
        children.entry(process.parent).or_default().push(pid);
    }
    let (mut total, mut open, mut seen) = (0, roots.to_vec(), HashSet::new());
    while let Some(pid) = open.pop() {
        // Numbers may be reused while `/proc` is read: never walk one twice.
        if seen.insert(pid) {
            total += processes.get(&pid).map_or(0, |process| process.ticks);
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    total
}

fn involuntary(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_and_interrupts_and_counts_steal() {
        let stat = "cpu  100 20 30 4000 50 6 7 8 9 10\ncpu0 1 2 3 4\n";
        assert_eq!(busy_ticks(stat), Some(100 + 20 + 30 + 8));
        assert_eq!(busy_ticks("cpu  1 2 3 4"), Some(6));
        assert_eq!(busy_ticks("cpu  1"), None);
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn a_process_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 11 22 33 44 20 0 1 0 100";
        assert_eq!(process_ticks(stat), Some(ProcessTicks { parent: 7, ticks: 110 }));
        assert_eq!(process_ticks("42 (gone"), None);
        assert_eq!(process_ticks("42 (short) S 7 1"), None);
    }

    #[test]
    fn own_time_is_that_of_the_tree_and_a_loop_of_reused_numbers_ends() {
        let process = |parent, ticks| ProcessTicks { parent, ticks };
        let processes = HashMap::from([
            (1, process(0, 1000)),
            (10, process(1, 1)),
            (11, process(10, 2)),
            (12, process(11, 4)),
            (20, process(1, 100)),
            (30, process(31, 7)),
            (31, process(30, 8)),
        ]);
        assert_eq!(tree_ticks(&processes, &[10]), 7);
        assert_eq!(tree_ticks(&processes, &[30]), 15);
        assert_eq!(tree_ticks(&processes, &[99]), 0);
    }

    #[test]
    fn the_real_counters_advance_with_our_own_work() {
        let mut probe = SystemProbe::of_this_process();
        if !probe.works() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "/proc has no such counters");
            println!("NOT TESTED: /proc has no such counters here");
            return;
        }
        let before = probe.sample();
        let start = Instant::now();
        // Twenty ticks of work, or ten seconds on a machine that gives us little.
        let mut after = before;
        while after.own_ns < before.own_ns + 200_000_000 && start.elapsed().as_secs() < 10 {
            let busy = Instant::now();
            while busy.elapsed().as_millis() < 50 {
                std::hint::black_box(rackpool_stats::random::mix64(1));
            }
            after = probe.sample();
        }
        assert!(after.own_ns >= before.own_ns + 100_000_000, "{before:?} {after:?}");
        assert!(after.busy_ns > before.busy_ns && after.wall_ns > before.wall_ns);
    }
}
