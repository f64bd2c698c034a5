//! The client processes of `demo` and `bench ycsb`. In: orders in lines of JSON on standard input.
//! Out: reports in lines of JSON on standard output. A client ends when its input ends, or with
//! `error CODE message` on standard error at its first failure.
//!
//! The clients here move files and compare every byte with the disk; those of YCSB are
//! `rackpool_bench`'s and live here only as processes.

use crate::args::PoolArgs;
use crate::connect::{OBJECTS, open_pool};
use crate::demo::list::{self, Entry};
use crate::failure::{EXIT_FAILED, Failure, Result};
use crate::shell::tree::FileBatch;
use rackpool::Handle;
use rackpool_bench::{locks, ycsb_run};
use rackpool_table::Table;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often a long order is reported on.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// How long a call may go on after the input has ended.
const END_WITHIN: Duration = Duration::from_millis(100);
/// Names of differing files that one report carries.
const DIFFERENT_MAX: usize = 8;

/// What a client shall do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Put this part of the listed files into the pool.
    Store(Share),
    /// Read this part of the listed files from the pool and compare with the disk.
    Verify(Share),
}

/// Every `parts`-th entry of a list, from `part` on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The list, as `demo` wrote it.
    pub list: PathBuf,
    /// What the names in the list are relative to.
    pub root: PathBuf,
    pub part: usize,
    pub parts: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// What was done since the last report.
    Progress { items: u64, bytes: u64 },
    /// Files or records were moved.
    Moved(Moved),
}

/// The outcome of `Store` or `Verify`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Moved {
    pub items: u64,
    pub bytes: u64,
    /// Time inside calls of the pool, ns.
    pub pool_ns: u64,
    /// Files that changed on disk between storing and comparing; not counted above.
    pub changed: u64,
    /// Files that could not be read from disk; not counted above.
    pub unreadable: u64,
    /// Files with different bytes.
    pub different_count: u64,
    /// Names of some of them.
    pub different: Vec<String>,
}

/// Serves orders until the input ends.
pub fn run(args: &PoolArgs) -> Result<()> {
    let input = orders()?;
    let mut handle = open_pool(args)?.handle()?;
    for line in input.lines() {
        let line = line.map_err(|error| Failure::io("standard input", &error))?;
        let order = serde_json::from_str(&line);
        let order = order.map_err(|error| Failure::new("protocol", format!("order: {error}")))?;
        let moved = match order {
            Order::Store(share) => store(&mut handle, &share)?,
            Order::Verify(share) => verify(&mut handle, &share)?,
        };
        say(&Report::Moved(moved))?;
    }
    Ok(())
}

/// Serves the orders of `rackpool_bench::ycsb_run` until the input ends.
pub fn run_ycsb() -> Result<()> {
    Ok(ycsb_run::worker(&mut orders()?, &mut std::io::stdout())?)
}

/// Serves the orders of `rackpool_bench::locks` until the input ends.
pub fn run_locks() -> Result<()> {
    Ok(locks::worker(&mut orders()?, &mut std::io::stdout())?)
}

/// Standard input, read by a thread of its own. When it ends, the process ends: by itself if it
/// is idle, by force if it is deep in a call, because the process that gave the orders may be dead.
pub fn orders() -> Result<BufReader<PipeReader>> {
    let failed = |error| Failure::io("a pipe for orders", &error);
    let (reader, mut writer) = std::io::pipe().map_err(failed)?;
    let forward = move || {
        // Both ends of a copy that fails mean the same: there are no more orders.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut writer);
        drop(writer);
        std::thread::sleep(END_WITHIN);
        std::process::exit(i32::from(EXIT_FAILED));
    };
    std::thread::Builder::new().name("orders".into()).spawn(forward).map_err(failed)?;
    Ok(BufReader::new(reader))
}

fn say(report: &Report) -> Result<()> {
    let mut line = serde_json::to_string(report).expect("reports are plain data");
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let said = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| Failure::io("standard output", &error))
}

/// Says what was done every now and then.
struct Pace {
    last: Instant,
    items: u64,
    bytes: u64,
}

impl Pace {
    fn new() -> Self {
        Self { last: Instant::now(), items: 0, bytes: 0 }
    }

    fn add(&mut self, bytes: u64) -> Result<()> {
        self.items += 1;
        self.bytes += bytes;
        if self.last.elapsed() >= REPORT_EVERY { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let (items, bytes) = (self.items, self.bytes);
        *self = Self::new();
        say(&Report::Progress { items, bytes })
    }
}

fn store(handle: &mut Handle, share: &Share) -> Result<Moved> {
    let mut objects = Table::open_or_create(handle, OBJECTS, rackpool_table::Options::default())?;
    let (mut moved, mut pace) = (Moved::default(), Pace::new());
    let mut batch = FileBatch::default();
    let mut put = |files: Vec<(Vec<u8>, Vec<u8>)>, moved: &mut Moved| -> Result<()> {
        let start = Instant::now();
        let stored = objects.put_many(handle, &files);
        moved.pool_ns += ns_since(start);
        for ((_, data), stored) in files.iter().zip(stored) {
            stored?;
            moved.items += 1;
            moved.bytes += data.len() as u64;
            pace.add(data.len() as u64)?;
        }
        Ok(())
    };
    for Entry { name, .. } in share_of(share)? {
        let Ok(data) = std::fs::read(share.root.join(&name)) else {
            moved.unreadable += 1;
            continue;
        };
        let bytes = data.len() as u64;
        if let Some(files) = batch.add((list::key(&name).to_vec(), data), bytes) {
            put(files, &mut moved)?;
        }
    }
    put(batch.take(), &mut moved)?;
    pace.flush()?;
    Ok(moved)
}

fn verify(handle: &mut Handle, share: &Share) -> Result<Moved> {
    let mut objects = Table::open_or_create(handle, OBJECTS, rackpool_table::Options::default())?;
    let (mut moved, mut pace) = (Moved::default(), Pace::new());
    let mut batch = FileBatch::default();
    let mut compare = |files: Vec<(Entry, Vec<u8>)>, moved: &mut Moved| -> Result<()> {
        let keys: Vec<_> = files.iter().map(|(entry, _)| list::key(&entry.name)).collect();
        let start = Instant::now();
        let found = objects.get_many(handle, &keys);
        moved.pool_ns += ns_since(start);
        for ((entry, expected), found) in files.iter().zip(found) {
            if found?.as_ref() != Some(expected) {
                if !entry.is_unchanged(&share.root.join(&entry.name)) {
                    moved.changed += 1;
                    continue;
                }
                moved.different_count += 1;
                if moved.different.len() < DIFFERENT_MAX {
                    moved.different.push(entry.name.display().to_string());
                }
            }
            moved.items += 1;
            moved.bytes += expected.len() as u64;
            pace.add(expected.len() as u64)?;
        }
        Ok(())
    };
    for entry in share_of(share)? {
        let Ok(expected) = std::fs::read(share.root.join(&entry.name)) else {
            moved.unreadable += 1;
            continue;
        };
        let bytes = expected.len() as u64;
        if let Some(files) = batch.add((entry, expected), bytes) {
            compare(files, &mut moved)?;
        }
    }
    compare(batch.take(), &mut moved)?;
    pace.flush()?;
    Ok(moved)
}

fn share_of(share: &Share) -> Result<impl Iterator<Item = Entry> + use<>> {
    let entries = list::read(&share.list)?;
    Ok(entries.into_iter().skip(share.part).step_by(share.parts.max(1)))
}

fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
