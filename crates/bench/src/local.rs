//! `bench local`: what an access to the own rack's memory costs beyond the bare copy.
//!
//! One client on one core; ours and raw go to the same lines of the same mapping in the same
//! order (see `arena.rs`). Then the copy routine itself beside the standard library's. Called by
//! the command line; everything that it measures is in the [`Report`].

use crate::arena::{Arena, BATCH, Direction, LINE, MeasuredLatency};
use crate::interleave::{Comparison, compare};
use crate::micro::pin;
use crate::objects;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path, slice_ns};
use rackpool::{FabricChoice, Placement};
use rackpool_core::copies as checked;
use rackpool_core::seam::Mem;
use rackpool_mem::persist::PersistentWindow;
use rackpool_mem::window::Window;
use std::cell::RefCell;
use std::hint::black_box;

/// What `bench local` measures on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    pub source: PoolSource,
    /// The rack of a running pool; in a pool of its own the run takes rack 0.
    pub rack: u16,
}

/// Bytes beside the arena that a rack needs: slab pages of processes that join.
const SPARE_BYTES: u64 = 8 << 20;
/// Sizes of the bare copies, with their names.
const COPIES: [(&str, usize); 3] =
    [("copy_64B", 64), ("copy_4KiB", 4 << 10), ("copy_1MiB", 1 << 20)];
/// Bytes that bare copies are taken from in turn: in a second-level cache, as far as they fit.
const COPY_SOURCE_BYTES: usize = 256 << 10;
/// Words of metadata that are stored and loaded in turn.
const METADATA_WORDS: u64 = 512;

/// Measures. Needs as much free memory in the rack as [`Size::region_bytes`] says.
///
/// # Errors
/// [`BenchError`]; nothing stays allocated then, unless the pool itself is gone.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut steps = Steps::new(9 + COPIES.len(), progress);
    steps.begin("making the region");
    let cores = pin::allowed_cores()?;
    let testbed = Testbed::open(&options.source, 1, options.size.region_bytes() + SPARE_BYTES)?;
    let rack = if options.source.master.is_some() { options.rack } else { 0 };
    let pool = testbed.pool(rack, FabricChoice::Auto)?;
    let (handle, mut other) = (pool.handle()?, pool.handle()?);
    // Before this thread is pinned: the report says how many cores there are.
    let mut report = testbed.report(options.size, Kind::Measured);
    // The servers' threads are running by now and stay free to go where they like.
    pin::pin_to(cores[0])?;
    let measured = (|| {
        let mut arena = Arena::new(handle, Placement::Local, options.size, testbed.probe())?;
        let addr = arena.addr();
        report.kind = kind_of_path(arena.handle(), addr)?;
        let region_bytes = options.size.region_bytes();
        report.extra.insert("region_bytes".into(), region_bytes.into());
        report.extra.insert("page_bytes".into(), arena.handle().page_bytes().into());
        report.results = accesses(&mut arena, &mut steps)?;
        let (size, probe) = (options.size, testbed.probe());
        let rows = objects::rows(arena.handle(), &mut other, size, probe, &mut steps)?;
        report.results.extend(rows);
        arena.end()?;
        report.results.extend(copies(options.size, testbed.probe(), &mut steps)?);
        report.results.extend(metadata(options.size, testbed.probe(), &mut steps)?);
        Ok(report)
    })();
    pin::pin_to_any(&cores)?;
    steps.end();
    measured
}

fn accesses(arena: &mut Arena, steps: &mut Steps<'_>) -> Result<Vec<Row>, BenchError> {
    let before = arena.handle().handle_stats();
    let mut rows = Vec::new();
    let name = "read_64B_own_rack_warm";
    steps.begin(name);
    rows.push(latency(name, &arena.read_latency::<LINE>()?));
    let name = "write_64B_own_rack_warm";
    steps.begin(name);
    rows.push(latency(name, &arena.write_latency()?));
    let name = "read_4KiB_own_rack_warm";
    steps.begin(name);
    rows.push(latency(name, &arena.read_latency::<4096>()?));
    let name = "read_64B_own_rack_batch";
    steps.begin(name);
    let row = Row::compared(name, "ops/s", Better::Higher, &arena.read_rate()?, Reference::Raw);
    rows.push(row.with("batch", BATCH));
    let after = arena.handle().handle_stats();
    let sent = after.ring_requests - before.ring_requests + after.master_requests
        - before.master_requests
        + after.fabric_operations
        - before.fabric_operations;
    Ok(rows.into_iter().map(|row| row.with("messages", sent)).collect())
}

pub(crate) fn latency(name: &str, measured: &MeasuredLatency) -> Row {
    let row = Row::compared(name, "ns", Better::Lower, &measured.comparison, Reference::Raw);
    measured.samples.show_in(row)
}

pub(crate) fn bandwidth(
    name: &str,
    arena: &mut Arena,
    direction: Direction,
) -> Result<Row, BenchError> {
    let comparison = arena.bandwidth(1 << 20, direction)?;
    Ok(Row::compared(name, "B/s", Better::Higher, &comparison, Reference::Raw))
}

fn copies(
    size: Size,
    mut probe: SystemProbe,
    steps: &mut Steps<'_>,
) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for (name, bytes) in COPIES {
        steps.begin(name);
        let comparison = copy(size, &mut probe, bytes)?;
        rows.push(Row::compared(name, "ns", Better::Lower, &comparison, Reference::Peer));
    }
    Ok(rows)
}

/// A word of metadata in its three copies beside a single one.
fn metadata(
    size: Size,
    mut probe: SystemProbe,
    steps: &mut Steps<'_>,
) -> Result<Vec<Row>, BenchError> {
    let window = PersistentWindow::volatile(Window::heap(checked::COPIES * 8 * METADATA_WORDS));
    let (rules, slice) = (size.rules(), size.slice());
    let each = |one: &dyn Fn(u64)| {
        slice_ns(slice, METADATA_WORDS, || {
            (0..METADATA_WORDS).for_each(|word| one(8 * word));
            Ok(())
        })
    };
    let mut row = |name: &'static str, ours: &dyn Fn(u64), raw: &dyn Fn(u64)| {
        steps.begin(name);
        let comparison = compare(&rules, 1, &mut probe, || each(ours), || each(raw))?;
        let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
        Ok::<Row, BenchError>(row)
    };
    let store =
        row("metadata_store", &|at| checked::store(&window, at, at), &|at| window.store(at, at))?;
    let load = row(
        "metadata_load",
        &|at| {
            let _ = black_box(checked::load(&window, at));
        },
        &|at| {
            let _ = black_box(window.load(at));
        },
    )?;
    Ok(vec![store, load])
}

/// Our copy out of shared memory beside the standard library's between private buffers.
fn copy(size: Size, probe: &mut SystemProbe, bytes: usize) -> Result<Comparison, BenchError> {
    let source_bytes = COPY_SOURCE_BYTES.max(bytes);
    let window = Window::heap(source_bytes as u64);
    window.copy_in(0, &vec![0x5a; source_bytes]);
    let private = vec![0x5a_u8; source_bytes];
    let to = RefCell::new(vec![0_u8; bytes]);
    let block = (COPY_SOURCE_BYTES / bytes).max(1);
    let places = source_bytes / bytes;
    let (rules, slice) = (size.rules(), size.slice());
    let ours = || {
        let to = &mut to.borrow_mut()[..];
        slice_ns(slice, block as u64, || {
            for place in 0..block {
                window.copy_out((place % places * bytes) as u64, to);
            }
            Ok(())
        })
    };
    let theirs = || {
        let to = &mut to.borrow_mut()[..];
        slice_ns(slice, block as u64, || {
            for place in 0..block {
                // The length is hidden, so that both sides learn it at run time.
                let bytes = black_box(bytes);
                let from = &private[place % places * bytes..][..bytes];
                to.copy_from_slice(from);
                black_box(&mut *to);
            }
            Ok(())
        })
    };
    compare(&rules, 1, probe, ours, theirs)
}
