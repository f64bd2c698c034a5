//! `rackpool calibrate`: this machine as a device profile.

use crate::args::CalibrateArgs;
use crate::failure::{Failure, Result};
use crate::memory_speeds::MemorySpeeds;
use crate::output;
use rackpool_sim::device::Profile;
use rackpool_sim::device::calibrate::{MemoryFigures, ROUNDS, ROUNDS_QUICK, calibrate};
use rackpool_tiers::advice::CacheMemory;
use rackpool_tiers::measure::{Effort, Pair};
use std::iter::once;

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let base = super::profile(&args.base)?;
    let to = output::open_if(args.out.as_ref())?;
    let rounds = if args.quick { ROUNDS_QUICK } else { ROUNDS };
    let failed = |error: String| Failure::new("calibrate", error);
    let bar = output::spinner("measuring");
    let measured = memory(args).and_then(|memory| {
        let text = calibrate(&args.name, &base, rounds, &memory);
        text.map_err(|error| failed(error.to_string()))
    });
    bar.finish_and_clear();
    let text = measured?;
    let Some(to) = to else { return output::print(&text) };
    let path = to.path().display().to_string();
    let profile = Profile::parse(&path, &text).map_err(|error| failed(error.to_string()))?;
    to.write(&text)?;
    output::print(&format!("{path}\n{}\n", profile.label()))
}

/// As a stored profile has it, else measured now.
fn memory(args: &CalibrateArgs) -> Result<MemoryFigures> {
    let effort =
        |pairs: &[Pair]| if args.quick { Effort::quick() } else { Effort::thorough(pairs) };
    let speeds = match &args.tiers {
        Some(path) => MemorySpeeds::load(path)?,
        None => MemorySpeeds::measure(args.cxl_node.as_slice(), effort)?,
    };
    let local = (speeds.near, ["dram_load", "dram_store", "dram_bandwidth"]);
    let shared = ["cxl_load_line", "cxl_store_line", "cxl_bandwidth"];
    let shared = args.cxl_node.map(|node| (node, shared));
    let (mut figures, source) = (Vec::new(), speeds.source());
    for (node, [load, store, bandwidth]) in once(local).chain(shared) {
        let CacheMemory { latency_ns, thread_mbps, .. } = speeds.memory(&[(node, 1)], 1.0)?;
        figures.push((("memory", load, latency_ns, "ns"), source.clone()));
        // A store has to fetch its line, as a load does; writing it back goes on beside that.
        figures.push((("memory", store, latency_ns, "ns"), format!("as {load}: {source}")));
        figures.push((("memory", bandwidth, thread_mbps / 1e3, "GB/s"), source.clone()));
    }
    Ok(MemoryFigures { figures, source })
}
