//! The same caches placed by the operating system alone, which knows nothing of them: a process of
//! its own under `numactl`, whose slices its parent orders. In: orders in lines of JSON on standard
//! input. Out: answers in lines of JSON on standard output. See `tiering.rs`.

use super::tiering_engines::Engines;
use super::tiering_load::{LoadSummary, TieringTest, VALUE_BYTES_MAX, ZIPFIAN};
use super::workload::named;
use crate::crew::{Crew, WorkerReply, end_with, next_order, say};
use crate::run::{BenchError, Size};
use rackpool_mem::numa::list;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::slice;
use std::time::Duration;

const PROGRAM: &str = "numactl";
/// The kernel's own weights, a file for each node; Linux 6.9.
const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";
/// How long it may take to warm a cache up.
const WARM_UP_WITHIN: Duration = Duration::from_secs(1800);

#[derive(Serialize, Deserialize)]
pub(super) struct OsJob {
    pub test: String,
    pub size: Size,
    /// Of each cache, bytes.
    pub memory: u64,
    /// One for each cache.
    pub cores: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum OsCommand {
    Slice { least_ns: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum OsReply {
    Ready,
    /// Operations a second in a slice, and what was seen in all of them.
    Ran {
        rate: f64,
        seen: LoadSummary,
    },
    Failed {
        code: String,
        reason: String,
    },
}

impl WorkerReply for OsReply {
    fn failure(&self) -> Option<(&str, &str)> {
        match self {
            OsReply::Failed { code, reason } => Some((code, reason)),
            OsReply::Ready | OsReply::Ran { .. } => None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, OsReply::Ready)
    }
}

/// How the operating system places all memory of a process.
pub(super) struct OsPolicy {
    pub name: &'static str,
    option: String,
    /// Of its pages, those in near memory.
    pub near_share: f64,
    /// In force for it, by node; the kernel's, which are left as they are.
    pub weights: Option<String>,
}

impl OsPolicy {
    /// All that are tried.
    pub fn all(near: u16, far: &[u16]) -> [OsPolicy; 3] {
        let mut both = [far, &[near]].concat();
        both.sort_unstable();
        both.dedup();
        let weight = |node: &u16| {
            let text = fs::read_to_string(format!("{WEIGHTS}/node{node}")).ok()?;
            text.trim().parse::<u32>().ok().filter(|weight| *weight > 0)
        };
        let weights = both.iter().map(weight).collect::<Option<Vec<_>>>();
        let equal = vec![1; both.len()];
        let policy = |name, option, weights: &[u32]| OsPolicy {
            name,
            option,
            near_share: share_of(near, &both, weights),
            weights: None,
        };
        let weighted = |weights: &[u32]| {
            let each = both.iter().zip(weights).map(|(node, weight)| format!("{node}={weight}"));
            each.collect::<Vec<_>>().join(",")
        };
        let (far, all) = (list(far), list(&both));
        let in_force = weights.as_ref().unwrap_or(&equal);
        [
            OsPolicy {
                near_share: 0.0,
                ..policy("numactl_membind", format!("--membind={far}"), &equal)
            },
            policy("numactl_interleave", format!("--interleave={all}"), &equal),
            OsPolicy {
                weights: weights.as_deref().map(weighted),
                ..policy(
                    "numactl_weighted_interleave",
                    format!("--weighted-interleave={all}"),
                    in_force,
                )
            },
        ]
    }

    /// Why this machine does not have it, if it does not.
    pub fn absent(&self) -> Option<String> {
        let tried =
            Command::new(PROGRAM).arg(&self.option).arg("true").stdin(Stdio::null()).output();
        match tried {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                Some(said.lines().next().unwrap_or("it failed").to_owned())
            }
            Err(error) => Some(format!("{PROGRAM}: {error}")),
        }
    }

    /// A command under this policy.
    fn apply(&self, to: &Command) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg(&self.option).arg("--").arg(to.get_program()).args(to.get_args());
        for (name, value) in to.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// As a user would write it.
    pub fn command(&self) -> String {
        format!("{PROGRAM} {}", self.option)
    }
}

/// The share of a node, which is one of `nodes`, in pages that are dealt out by these weights.
fn share_of(node: u16, nodes: &[u16], weights: &[u32]) -> f64 {
    let own = nodes.iter().zip(weights).find(|(other, _)| **other == node);
    own.map_or(0.0, |(_, weight)| f64::from(*weight) / f64::from(weights.iter().sum::<u32>()))
}

/// Caches in a process of its own, warmed up, which ends with this.
pub(super) struct OsCache {
    crew: Crew<OsReply>,
    seen: Option<LoadSummary>,
}

impl OsCache {
    pub fn start(
        policy: &OsPolicy,
        job: &OsJob,
        worker: &mut dyn FnMut(u32) -> Command,
    ) -> Result<OsCache, BenchError> {
        let mut crew: Crew<OsReply> = Crew::start(1, &mut |client| policy.apply(&worker(client)))?;
        crew.tell_all(job)?;
        crew.gather(WARM_UP_WITHIN, |answer| match answer {
            OsReply::Ready => Ok(()),
            other => Err(other),
        })?;
        Ok(OsCache { crew, seen: None })
    }

    /// Operations a second, over at least `least`.
    pub fn slice(&mut self, least: Duration) -> Result<f64, BenchError> {
        self.crew.tell_all(&OsCommand::Slice { least_ns: least.as_nanos() as u64 })?;
        let mut found = 0.0;
        let seen = &mut self.seen;
        self.crew.gather(least, |answer| match answer {
            OsReply::Ran { rate, seen: now } => {
                (found, *seen) = (rate, Some(now));
                Ok(())
            }
            other => Err(other),
        })?;
        Ok(found)
    }

    /// None before the first slice.
    pub fn seen(&self) -> Option<LoadSummary> {
        self.seen
    }
}

/// A process of [`super::tiering::run`]: serves orders from `input` until it ends, and answers on
/// `output`. An error goes to the parent as well as to the caller.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong.
pub fn worker(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let outcome = serve(input, output);
    end_with(outcome, output, |code, reason| OsReply::Failed { code, reason })
}

fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let Some(job) = next_order::<OsJob>(input)? else { return Ok(()) };
    let workloads;
    let test = if job.test == ZIPFIAN {
        TieringTest::zipfian(job.size)
    } else {
        workloads = named(slice::from_ref(&job.test))?;
        TieringTest::of(&workloads[0], job.size)
    };
    let stored = vec![0x5a; VALUE_BYTES_MAX];
    let mut engines = Engines::load(&job.cores, &test, &test.options(job.memory), &stored)?;
    say(output, &OsReply::Ready)?;
    while let Some(OsCommand::Slice { least_ns }) = next_order::<OsCommand>(input)? {
        let rate = engines.slice(Duration::from_nanos(least_ns))?;
        say(output, &OsReply::Ran { rate, seen: engines.seen() })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_answers_each_slice_with_what_it_saw() {
        for test in [ZIPFIAN, "follower_assocs"] {
            let (size, memory, cores) = (Size::Smoke, 16 << 20, vec![0]);
            let job = OsJob { test: test.to_owned(), size, memory, cores };
            let slice = OsCommand::Slice { least_ns: 1000 };
            let mut orders = Vec::new();
            say(&mut orders, &job).unwrap();
            (0..2).for_each(|_| say(&mut orders, &slice).unwrap());
            let mut answers = Vec::new();
            worker(&mut &orders[..], &mut answers).unwrap();
            let mut answers = &answers[..];
            assert!(next_order::<OsReply>(&mut answers).unwrap().unwrap().is_ready());
            for _ in 0..2 {
                let answer = next_order::<OsReply>(&mut answers).unwrap().unwrap();
                let OsReply::Ran { rate, seen } = answer else { panic!("no slice was run") };
                assert!(rate > 0.0 && seen.hit_ratio > 0.0 && seen.batches.n > 0);
            }
            assert!(next_order::<OsReply>(&mut answers).unwrap().is_none());
        }
    }

    #[test]
    fn policies_name_the_far_nodes_or_all_and_keep_the_words_of_the_command() {
        let policies = OsPolicy::all(0, &[1, 2]);
        let commands = policies.each_ref().map(OsPolicy::command);
        assert_eq!(commands[0], "numactl --membind=1-2");
        assert_eq!(commands[2], "numactl --weighted-interleave=0-2");
        assert_eq!([policies[0].near_share, policies[1].near_share], [0.0, 1.0 / 3.0]);
        assert_eq!(share_of(2, &[1, 2], &[1, 3]), 0.75);
        let mut own = Command::new("rackpool");
        own.arg("worker").env("A", "1").env_remove("B");
        let command = policies[1].apply(&own);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["--interleave=0-2", "--", "rackpool", "worker"]);
        assert_eq!(command.get_envs().count(), 2);
    }
}
