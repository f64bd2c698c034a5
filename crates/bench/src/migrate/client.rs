//! One client process of `bench migrate`: reads and writes 64 bytes at a time in the pages that it
//! is given, as often as it can or at a pace. What is in a line follows from its page, so every
//! read is verified: a byte of another page, or one that a move lost, ends the run.

use super::{Likes, MigrateCommand, MigrateJob, MigrateMeasurement, MigrateReply};
use crate::crew::{end_with, next_order, say};
use crate::run::BenchError;
use crate::value::Corrupt;
use rackpool::{Handle, Options, Pool};
use rackpool_core::GAddr;
use rackpool_stats::random::{Rng, mix64};
use rackpool_stats::zipf::{THETA, Zipfian};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Bytes of an access: a cache line. Source: Rcmp §6.3.
pub(super) const LINE: usize = 64;
/// Accesses that are drawn beforehand, so that drawing costs nothing in the run.
const DRAWN: usize = 1 << 16;
/// Accesses between two looks at the clock.
const PER_LOOK: usize = 16;
/// By how much clients come behind servers. With fewer processors than threads a client with
/// only near accesses would else keep its rack's server from serving the other one's: what was
/// measured then was the scheduler, whatever the policy.
const NICE: i32 = 10;

/// What a line holds: the same in every word but its number, so that a torn read looks no
/// different.
pub(super) fn line_of(page: u64, line: u64) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    for (word, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        let value = mix64(page << 24 ^ line << 4 ^ word as u64);
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Pages by popularity for a client: its own order, or one for all.
pub(super) fn order(likes: Likes, pages: usize, seed: u64, client: u64) -> Vec<u32> {
    let party = if likes == Likes::OwnHotSet { client } else { 0 };
    let mut rng = Rng::for_party(seed, party);
    let mut order: Vec<u32> = (0..pages as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

#[derive(Clone, Copy)]
struct Access {
    page: u32,
    line: u32,
    is_write: bool,
}

fn draw(job: &MigrateJob) -> Vec<Access> {
    let order = order(job.likes, job.pages.len(), job.seed, job.client);
    let zipf = Zipfian::new(order.len() as u64, THETA);
    let mut rng = Rng::for_party(!job.seed, job.client);
    let lines = job.page_bytes / LINE as u64;
    let one = |_| {
        let rank = match job.likes {
            Likes::OwnHotSet | Likes::SameHotSet => zipf.next_rank(&mut rng),
            Likes::Uniform | Likes::Even => rng.below(order.len() as u64),
        };
        let page = order[rank as usize];
        let line = rng.below(lines) as u32;
        Access { page, line, is_write: rng.below(1000) >= job.reads_milli }
    };
    (0..DRAWN).map(one).collect()
}

/// A client process of [`super::run`]: serves orders from `input` until it ends, and answers on
/// `output`. An error goes to the parent as well as to the caller.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong.
pub fn worker(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let outcome = serve(input, output);
    end_with(outcome, output, |code, reason| MigrateReply::Failed { code, reason })
}

fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let Some(job) = next_order::<MigrateJob>(input)? else { return Ok(()) };
    rustix::process::nice(NICE)
        .map_err(|error| BenchError::Option { option: "nice", reason: error.to_string() })?;
    let mut options = Options::new(&job.master, job.rack);
    options.fabric = job.fabric.parse()?;
    let mut handle = Pool::open(options)?.handle()?;
    let accesses = draw(&job);
    // Every page is found once, so that the run finds none.
    for page in 0..job.pages.len() {
        access(&mut handle, &job, Access { page: page as u32, line: 0, is_write: false })?;
    }
    say(output, &MigrateReply::Ready)?;
    while let Some(MigrateCommand::Go { run_ms }) = next_order::<MigrateCommand>(input)? {
        let ran = run(&mut handle, &job, &accesses, Duration::from_millis(run_ms))?;
        say(output, &MigrateReply::Ran(ran))?;
    }
    Ok(())
}

fn run(
    handle: &mut Handle,
    job: &MigrateJob,
    accesses: &[Access],
    run: Duration,
) -> Result<MigrateMeasurement, BenchError> {
    let mut ran = MigrateMeasurement::default();
    let start = Instant::now();
    let mut pace = job.pace_us.map(|us| (Duration::from_micros(us), start));
    for group in accesses.chunks(PER_LOOK).cycle() {
        let elapsed = start.elapsed();
        if elapsed >= run {
            ran.elapsed_ns = elapsed.as_nanos() as u64;
            break;
        }
        for one in group {
            if let Some((each, next)) = &mut pace {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                *next += *each;
            }
            access(handle, job, *one)?;
        }
        ran.operations += group.len() as u64;
        ran.late_operations += if 2 * elapsed >= run { group.len() as u64 } else { 0 };
    }
    Ok(ran)
}

fn access(handle: &mut Handle, job: &MigrateJob, one: Access) -> Result<(), BenchError> {
    let (page, line) = (u64::from(one.page), u64::from(one.line));
    let addr = GAddr(job.pages[one.page as usize] + line * LINE as u64);
    let expected = line_of(page, line);
    if one.is_write {
        return Ok(handle.write(addr, &expected)?);
    }
    let mut found = [0; LINE];
    handle.read(addr, &mut found)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let words = found.chunks_exact(8).map(word).zip(expected.chunks_exact(8).map(word));
    match words.into_iter().find(|(found, expected)| found != expected) {
        None => Ok(()),
        Some((found, computed)) => {
            Err(Corrupt::Checksum { key: page, bytes: LINE, found, computed }.into())
        }
    }
}
