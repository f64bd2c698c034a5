//! `rackpool calibrate`: this machine as a device profile.

use crate::args::CalibrateArgs;
use crate::failure::{Failure, Result};
use crate::memory_speeds::MemorySpeeds;
use crate::output;
use rackpool_sim::device::Profile;
use rackpool_sim::device::calibrate::{Effort, Memories, ReadSpeed, calibrate};
use rackpool_tiers::measure;

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let base = super::profile(&args.base)?;
    let to = output::open_if(args.out.as_ref())?;
    let effort = if args.quick { Effort::quick() } else { Effort::thorough() };
    let failed = |error: String| Failure::new("calibrate", error);
    let bar = output::spinner("measuring");
    let measured = memories(args).and_then(|memories| {
        let text = calibrate(&args.name, &base, effort, &memories);
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

/// As a stored profile has them, else measured now.
fn memories(args: &CalibrateArgs) -> Result<Memories> {
    let shared = args.cxl_node.as_slice();
    let speeds = match &args.tiers {
        Some(path) => MemorySpeeds::load(path)?,
        None if args.quick => MemorySpeeds::measure(shared, |_| measure::Effort::quick())?,
        None => MemorySpeeds::measure(shared, measure::Effort::thorough)?,
    };
    let speed = |node: u16| -> Result<ReadSpeed> {
        let gb_per_s = speeds.thread_read_mbps(node)? / 1e3;
        Ok(ReadSpeed { latency_ns: speeds.latency_ns(node)?, gb_per_s })
    };
    let (local, shared) = (speed(speeds.near())?, args.cxl_node.map(speed).transpose()?);
    Ok(Memories { local, shared, source: speeds.source() })
}
