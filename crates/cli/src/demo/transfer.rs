//! Real files in and out: every client of rack 0 stores a part of the list, then every client of
//! rack 1 reads a part back and compares it with the disk.

use super::list::Plan;
use crate::children::Workers;
use crate::failure::{Failure, Result};
use crate::output;
use crate::worker::{Moved, Order, Report, Share};
use indicatif::ProgressBar;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long clients may be silent: one large file takes its time.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Files, bytes and differences of all clients.
    pub moved: Moved,
    /// From the first order to the last answer.
    pub took: Duration,
    pub clients: usize,
}

impl Direction {
    /// Bytes a second, disk and comparison included.
    pub fn rate(&self) -> f64 {
        self.moved.bytes as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Bytes a second of all clients in calls of the pool alone.
    pub fn pool_rate(&self) -> f64 {
        let ns = self.moved.pool_ns as f64 / self.clients.max(1) as f64;
        self.moved.bytes as f64 / (ns / 1e9).max(1e-9)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Into rack 0.
    pub stored: Direction,
    /// Out of rack 1.
    pub back: Direction,
    /// What was read back: differences count here.
    pub read: Moved,
}

pub fn run(
    workers: &mut Workers,
    racks: &[u16],
    root: &Path,
    list: &Path,
    plan: &Plan,
) -> Result<Outcome> {
    let share = |part, parts| Share { list: list.to_owned(), root: root.to_owned(), part, parts };
    let of_rack = |wanted: u16| -> Vec<usize> {
        (0..racks.len()).filter(|index| racks[*index] == wanted).collect()
    };
    let (rack_0, rack_1) = (of_rack(0), of_rack(1));
    let bar = output::bar("files into rack 0", plan.bytes(), "bytes");
    let stored = direct(workers, &rack_0, &bar, |part, parts| Order::Store(share(part, parts)))?;
    if stored.moved.items == 0 {
        return Err(Failure::new("io", "none of the files could be read from disk"));
    }
    let bar = output::bar("files out of rack 1", stored.moved.bytes, "bytes");
    let back = direct(workers, &rack_1, &bar, |part, parts| Order::Verify(share(part, parts)))?;
    let read = back.moved.clone();
    Ok(Outcome { stored, back, read })
}

fn direct(
    workers: &mut Workers,
    clients: &[usize],
    bar: &ProgressBar,
    order: impl Fn(usize, usize) -> Order,
) -> Result<Direction> {
    let start = Instant::now();
    for (part, client) in clients.iter().enumerate() {
        workers.order(*client, &order(part, clients.len()))?;
    }
    let moved = gather(workers, clients.len(), |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    Ok(Direction { moved, took: start.elapsed(), clients: clients.len() })
}

/// Waits for `count` outcomes and adds them up; `progress` gets bytes.
fn gather(workers: &mut Workers, count: usize, progress: impl Fn(u64)) -> Result<Moved> {
    let (mut total, mut waiting) = (Moved::default(), count);
    while waiting > 0 {
        match workers.report(SILENCE)? {
            (_, Report::Progress { bytes, .. }) => progress(bytes),
            (_, Report::Moved(moved)) => {
                add(&mut total, moved);
                waiting -= 1;
            }
        }
    }
    Ok(total)
}

fn add(total: &mut Moved, more: Moved) {
    total.items += more.items;
    total.bytes += more.bytes;
    total.pool_ns += more.pool_ns;
    total.changed += more.changed;
    total.unreadable += more.unreadable;
    total.different_count += more.different_count;
    total.different.extend(more.different);
}
