//! The processes of a run, which `crew.rs` starts: a server each, and one with the clients of all
//! systems, which measures one after the other as it is told.

use super::client::{Client, Counts, Done, Outcome};
use super::server::Server;
use super::spec::{Carrier, ServerAddress, Spec};
use crate::crew::{WorkerReply, end_with, next_order, say};
use crate::run::BenchError;
use rackpool_sim::repro::herd::baselines::{is_value, value_of};
use rackpool_stats::histogram::Histogram;
use rackpool_stats::random::Rng;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Requests that are done before a slice begins, so that the server is awake.
const FIRST: u64 = 1024;
/// Requests between two looks at the clock.
const BLOCK: u64 = 256;
/// Names the random choices; any other would do.
const SEED: u64 = 0x6261_7365;

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum BaselineCommand {
    /// Be the server of a system, number so much of the run.
    Serve {
        number: usize,
        spec: Spec,
        carrier: Carrier,
    },
    Rest {
        rests: bool,
    },
    /// Be a client of these servers as well, with as many connections as each takes.
    Join {
        spec: Spec,
        address: ServerAddress,
    },
    Go {
        /// Which of the systems that were joined.
        number: usize,
        run_ms: u64,
        /// Of a hundred requests these are PUTs.
        put_percent: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum BaselineReply {
    Serving { number: usize, address: ServerAddress },
    Ready,
    Ran(Box<BaselineMeasurement>),
    Failed { code: String, reason: String },
}

impl WorkerReply for BaselineReply {
    fn failure(&self) -> Option<(&str, &str)> {
        match self {
            BaselineReply::Failed { code, reason } => Some((code, reason)),
            _ => None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, BaselineReply::Ready)
    }
}

/// What was done in one slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BaselineMeasurement {
    /// Requests that were over in it.
    pub operations: u64,
    pub elapsed_ns: u64,
    /// How long each took, nanoseconds.
    pub latency: Histogram,
    /// Of all of the slice, with what was under way at its end.
    pub counts: Counts,
}

/// A process of a run: serves orders from `input` until it ends, and answers on `output`.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong; the parent is told as well.
pub fn worker(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let outcome = serve(input, output);
    end_with(outcome, output, |code, reason| BaselineReply::Failed { code, reason })
}

fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let (mut server, mut groups) = (None, Vec::new());
    while let Some(order) = next_order::<BaselineCommand>(input)? {
        match order {
            BaselineCommand::Serve { number, spec, carrier } => {
                let started = Server::start(spec, carrier)?;
                started.rest(true);
                let address = started.address().clone();
                server = Some(started);
                say(output, &BaselineReply::Serving { number, address })?;
            }
            BaselineCommand::Rest { rests } => server.iter().for_each(|server| server.rest(rests)),
            BaselineCommand::Join { spec, address } => {
                groups.push(Group::join(spec, &address)?);
                say(output, &BaselineReply::Ready)?;
            }
            BaselineCommand::Go { number, run_ms, put_percent } => {
                let group = groups.get_mut(number).ok_or_else(|| BenchError::Option {
                    option: "order",
                    reason: format!("there is no system {number}"),
                })?;
                let ran = group.run(Duration::from_millis(run_ms), put_percent)?;
                say(output, &BaselineReply::Ran(Box::new(ran)))?;
            }
        }
    }
    Ok(())
}

/// The clients of one system, which one thread moves in turn.
struct Group {
    spec: Spec,
    clients: Vec<Client>,
    rng: Rng,
    version: u64,
    latency: Histogram,
    /// Whether it gives its core away when nothing has come.
    gives_way: bool,
}

impl Group {
    fn join(spec: Spec, address: &ServerAddress) -> Result<Group, BenchError> {
        let clients: Result<Vec<_>, _> =
            (0..spec.clients).map(|_| Client::connect(spec, address)).collect();
        let (rng, latency) = (Rng::new(SEED), Histogram::new());
        let gives_way = matches!(address, ServerAddress::Far(..));
        Ok(Group { spec, clients: clients?, rng, version: 0, latency, gives_way })
    }

    /// Fills all windows again and again; afterwards nothing is under way.
    fn run(&mut self, run: Duration, put_percent: u64) -> Result<BaselineMeasurement, BenchError> {
        let before = self.counts();
        self.do_some(FIRST, put_percent)?;
        self.latency.clear();
        let (start, mut operations) = (Instant::now(), 0);
        while start.elapsed() < run {
            operations += self.do_some(BLOCK, put_percent)?;
        }
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        let latency = self.latency.clone();
        for index in 0..self.clients.len() {
            while self.clients[index].under_way() > 0 {
                self.take(index)?;
            }
        }
        let counts = self.counts().since(&before);
        Ok(BaselineMeasurement { operations, elapsed_ns, latency, counts })
    }

    /// At least so many requests.
    fn do_some(&mut self, count: u64, put_percent: u64) -> Result<u64, BenchError> {
        let mut done = 0;
        while done < count {
            let mut taken = 0;
            for index in 0..self.clients.len() {
                taken += self.take(index)?;
                self.fill(index, put_percent)?;
            }
            if taken == 0 && self.gives_way {
                // Threads of a fabric share this core.
                std::thread::yield_now();
            }
            done += taken;
        }
        Ok(done)
    }

    fn counts(&self) -> Counts {
        let none = Counts::default();
        self.clients.iter().fold(none, |sum, client| sum.and(&client.counts()))
    }

    fn fill(&mut self, index: usize, put_percent: u64) -> Result<(), BenchError> {
        let Group { spec, clients, rng, version, .. } = self;
        let client = &mut clients[index];
        while client.under_way() < spec.window {
            let key = 1 + rng.below(spec.keys);
            if put_percent > 0 && rng.below(100) < put_percent {
                *version += 1;
                client.submit_put(key, &value_of(key, *version, spec.value_bytes))?;
            } else {
                client.submit_get(key)?;
            }
        }
        Ok(())
    }

    /// Takes what has come, and looks whether it is right; how much.
    fn take(&mut self, index: usize) -> Result<u64, BenchError> {
        let Group { spec, clients, latency, .. } = self;
        let (mut wrong, is_full, bytes) = (None, spec.is_full, spec.value_bytes as usize);
        let count = clients[index].poll(|Done { key, outcome, took_ns }| {
            latency.record(took_ns);
            let is_right = match outcome {
                Outcome::Found(value) if is_full => value.len() == bytes && is_value(key, value),
                Outcome::Absent => false,
                _ => true,
            };
            if !is_right {
                wrong = Some(key);
            }
        })?;
        match wrong {
            Some(key) => Err(BenchError::Missing { key, operation: "a comparison system" }),
            None => Ok(count),
        }
    }
}

impl Counts {
    fn zip(&self, other: &Counts, with: impl Fn(u64, u64) -> u64) -> Counts {
        Counts {
            gets: with(self.gets, other.gets),
            asked: with(self.asked, other.asked),
            reads: with(self.reads, other.reads),
            requests: with(self.requests, other.requests),
            answers: with(self.answers, other.answers),
            repeats: with(self.repeats, other.repeats),
        }
    }

    /// What was done since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        self.zip(before, |now, before| now - before)
    }

    #[must_use]
    pub fn and(&self, other: &Counts) -> Counts {
        self.zip(other, |one, other| one + other)
    }
}
