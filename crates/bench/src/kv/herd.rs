//! HERD's fast path: another process through shared memory. How many look-ups one serving thread
//! does when four clients keep their windows full, all of them moved by one core; one look-up's
//! round trip beside a bare cache line that goes between the same two cores; and look-ups over the
//! tcp fabric on the loopback.

use super::KvCores;
use super::selection::RowSelection;
use super::servers::ServerProcess;
use crate::interleave::compare;
use crate::micro::line;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Size, Steps, slice_ns};
use rackpool_cache::herd::{Answer, Client, Transport};
use rackpool_mem::process::monotonic_ns;
use rackpool_stats::histogram::Histogram;
use rackpool_stats::random::Rng;
use rackpool_stats::sample::quantile;
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;
/// Windows of each: requests under way.
const WINDOWS: u32 = 32;
/// Windows over the fabric: as many as a server gives.
const FABRIC_WINDOWS: u32 = 16;
/// Bytes of a key: HERD's.
const KEY_BYTES: usize = 16;
/// Bytes of a value: HERD's in its figures, and that of the round trip.
const VALUE_BYTES: usize = 32;
const ROUND_TRIP_BYTES: usize = 64;
/// Requests between two looks at the clock.
const BLOCK: u64 = 4096;
/// Names the random choices; any other would do.
const SEED: u64 = 0x6865_7264;

fn key_of(index: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&index.to_le_bytes());
    key[8..].copy_from_slice(&(!index).to_be_bytes());
    key
}

/// The value of an index: by it a wrong one is seen.
fn value_of(index: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0x5a; VALUE_BYTES];
    value[..8].copy_from_slice(&index.to_le_bytes());
    value
}

/// The names of the rows.
pub const NAMES: [&str; 4] = ["herd_get", "herd_get_put5", "herd_round_trip", "herd_fabric_get"];

/// The rows, on two cores that the caller has chosen: this thread is on the client's.
pub fn rows(
    size: Size,
    server: &ServerProcess,
    cores: KvCores,
    keys: u32,
    selection: &RowSelection,
    steps: &mut Steps<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let is_chosen = NAMES.iter().any(|name| selection.has(name));
    let Some(name) = server.herd.as_ref().filter(|_| is_chosen) else { return Ok(()) };
    let keys = u64::from(keys);
    store_all(name, keys)?;
    let near = || Ok(Client::connect_with(name, WINDOWS)?);
    for (row, put_percent) in [("herd_get", 0), ("herd_get_put5", 5)] {
        if selection.has(row) {
            steps.begin(row);
            let row = rate_row(row, size, server, &near, keys, put_percent)?;
            report.results.push(row.with("least", 5e6));
        }
    }
    if selection.has("herd_round_trip") {
        steps.begin("herd_round_trip");
        report.results.push(round_trip(size, server, name, cores)?);
    }
    if let Some(addr) = server.herd_fabric.filter(|_| selection.has("herd_fabric_get")) {
        steps.begin("herd_fabric_get");
        let far = || Ok(Client::connect_to(addr, FABRIC_WINDOWS)?);
        report.results.push(rate_row("herd_fabric_get", size, server, &far, keys, 0)?);
    }
    debug_assert_eq!(report.kind, Kind::Measured);
    Ok(())
}

pub(super) fn store_all(name: &str, keys: u64) -> Result<(), BenchError> {
    let mut client = Client::connect_with(name, WINDOWS)?;
    let mut stored = 0;
    for index in 0..keys {
        while client.under_way() == u64::from(WINDOWS) {
            take_stored(&mut client, &mut stored)?;
        }
        client.submit_put(&key_of(index), &value_of(index), 0, 0)?;
        if client.under_way() == u64::from(WINDOWS) {
            client.ring();
        }
    }
    while client.under_way() > 0 {
        take_stored(&mut client, &mut stored)?;
    }
    if stored < keys {
        return Err(BenchError::Missing { key: stored, operation: "storing it" });
    }
    Ok(())
}

fn take_stored(client: &mut Client, stored: &mut u64) -> Result<(), BenchError> {
    client.wait()?;
    client.poll(|_, answer| *stored += u64::from(matches!(answer, Answer::Stored)))?;
    Ok(())
}

/// What a client that is compared with others notes.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// When each request was asked, nanoseconds.
    begun_ns: [u64; WINDOWS as usize],
    /// How long each took, nanoseconds.
    pub latency: Histogram,
    /// Requests submitted, since the client was made.
    pub submitted: u64,
    pub answered: u64,
}

/// A client with the keys that it has asked for, in the order of its requests.
pub(super) struct Asker<L> {
    client: Client<L>,
    asked: [Option<u64>; WINDOWS as usize],
    next: usize,
    oldest: usize,
    /// Only if that is wanted.
    times: Option<Box<Times>>,
}

impl<L: Transport> Asker<L> {
    fn new(client: Client<L>) -> Self {
        Asker { client, asked: [None; WINDOWS as usize], next: 0, oldest: 0, times: None }
    }

    /// One that notes how long each request takes.
    pub(super) fn timed(client: Client<L>) -> Self {
        let (begun_ns, latency) = ([0; WINDOWS as usize], Histogram::new());
        let times = Times { begun_ns, latency, submitted: 0, answered: 0 };
        Asker { times: Some(Box::new(times)), ..Asker::new(client) }
    }

    /// What was noted.
    ///
    /// # Panics
    /// If it is not a timed one.
    pub(super) fn times(&mut self) -> &mut Times {
        self.times.as_mut().expect("a timed one")
    }

    /// Waits for what is under way.
    pub(super) fn finish(&mut self) -> Result<(), BenchError> {
        while self.client.under_way() > 0 {
            self.client.wait()?;
            self.take()?;
        }
        Ok(())
    }

    /// Times that it said again what was not answered soon, since it was made.
    pub(super) fn reminders(&self) -> u64 {
        self.client.reminders()
    }

    /// Fills all windows that are free, and rings.
    pub(super) fn fill(
        &mut self,
        rng: &mut Rng,
        keys: u64,
        put_percent: u64,
    ) -> Result<(), BenchError> {
        while self.client.under_way() < u64::from(self.client.windows()) {
            let index = rng.below(keys);
            let is_put = put_percent > 0 && rng.below(100) < put_percent;
            let key = key_of(index);
            if is_put {
                self.client.submit_put(&key, &value_of(index), 0, 0)?;
            } else {
                self.client.submit_get(&key)?;
            }
            self.asked[self.next] = (!is_put).then_some(index);
            if let Some(times) = &mut self.times {
                times.begun_ns[self.next] = monotonic_ns();
                times.submitted += 1;
            }
            self.next = (self.next + 1) % WINDOWS as usize;
        }
        self.client.ring();
        Ok(())
    }

    /// Takes what has come, looks whether it is right; how much.
    pub(super) fn take(&mut self) -> Result<u64, BenchError> {
        let (asked, oldest, times) = (&self.asked, &mut self.oldest, &mut self.times);
        let now = if times.is_some() { monotonic_ns() } else { 0 };
        let mut wrong = None;
        let count = self.client.poll(|_, answer| {
            let is_right = match (asked[*oldest], &answer) {
                (Some(index), Answer::Found { value, .. }) => *value == value_of(index),
                (None, Answer::Stored) => true,
                _ => false,
            };
            if !is_right {
                wrong = Some(asked[*oldest].unwrap_or(0));
            }
            if let Some(times) = times {
                times.latency.record(now.saturating_sub(times.begun_ns[*oldest]));
                times.answered += 1;
            }
            *oldest = (*oldest + 1) % WINDOWS as usize;
        })?;
        match wrong {
            Some(key) => Err(BenchError::Missing { key, operation: "HERD's fast path" }),
            None => Ok(count as u64),
        }
    }
}

fn rate_row<L: Transport>(
    row: &str,
    size: Size,
    server: &ServerProcess,
    connect: &dyn Fn() -> Result<Client<L>, BenchError>,
    keys: u64,
    put_percent: u64,
) -> Result<Row, BenchError> {
    let mut rng = Rng::new(SEED);
    let mut askers = Vec::new();
    for _ in 0..CLIENTS {
        askers.push(Asker::new(connect()?));
    }
    let (mut rates, mut cpu_ns) = (Vec::new(), Vec::new());
    let windows = askers[0].client.windows();
    for number in 0..=size.rules().pairs {
        let (before, start) = (server.cpu_ns()?, Instant::now());
        let mut done = 0;
        while done < BLOCK || start.elapsed() < size.slice() {
            let until = done + BLOCK;
            while done < until {
                for asker in &mut askers {
                    done += asker.take()?;
                    asker.fill(&mut rng, keys, put_percent)?;
                }
            }
        }
        let elapsed = start.elapsed();
        // The first only warms up.
        if number > 0 {
            rates.push(done as f64 / elapsed.as_secs_f64());
            cpu_ns.push((server.cpu_ns()? - before) as f64 / done as f64);
        }
    }
    for asker in &mut askers {
        while asker.client.under_way() > 0 {
            asker.client.wait()?;
            asker.take()?;
        }
    }
    Ok(Row::new(row, "ops/s", Better::Higher, quantile(&rates, 0.5))
        .samples(rates.len() as u64)
        .with("clients", CLIENTS)
        .with("windows", windows)
        .with("keys", keys)
        .with("value_bytes", VALUE_BYTES)
        .with("put_percent", put_percent)
        .with("cpu_ns", quantile(&cpu_ns, 0.5)))
}

fn round_trip(
    size: Size,
    server: &ServerProcess,
    name: &str,
    cores: KvCores,
) -> Result<Row, BenchError> {
    let mut client = Client::connect(name)?;
    let (key, stored) = (key_of(u64::MAX), [0xa5; ROUND_TRIP_BYTES]);
    client.put(&key, &stored, 0, 0)?;
    let mut value = Vec::with_capacity(ROUND_TRIP_BYTES);
    let mut get = || {
        value.clear();
        let found = client.get(&key, &mut value)?;
        if found.is_none() || value != stored {
            return Err(BenchError::Missing { key: u64::MAX, operation: "a round trip" });
        }
        Ok(())
    };
    let trips = (size.slice().as_secs_f64() * 5e6) as u64;
    let mut probe = SystemProbe::of_processes(vec![std::process::id(), server.pid()]);
    let comparison = compare(
        &size.rules(),
        SEED,
        &mut probe,
        || {
            // The server is awake when the slice begins, as the other side's threads are.
            slice_ns(Duration::from_micros(200), 16, || (0..16).try_for_each(|_| get()))?;
            slice_ns(size.slice(), 64, || (0..64).try_for_each(|_| get()))
        },
        || Ok(line::ping_pong_ns(cores.client, cores.server, trips.max(100))?),
    )?;
    let mut histogram = Histogram::new();
    for _ in 0..size.samples() {
        let start = Instant::now();
        get()?;
        histogram.record(start.elapsed().as_nanos() as u64);
    }
    let name = "herd_round_trip";
    let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
    let row = row.percentiles(histogram.summary());
    Ok(row.with("value_bytes", ROUND_TRIP_BYTES).with("most", 2.5))
}
