//! `rackpool calibrate`: this machine as a device profile.

use crate::args::CalibrateArgs;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_sim::device::Profile;
use rackpool_sim::device::calibrate::{Effort, calibrate};

/// Measures and writes.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    let base = super::profile(&args.base)?;
    if let Some(path) = &args.out {
        output::check_writable(path)?;
    }
    let effort = if args.quick { Effort::quick() } else { Effort::thorough() };
    let bar = output::spinner("measuring");
    let measured = calibrate(&args.name, &base, effort);
    bar.finish_and_clear();
    let text = measured.map_err(|error| Failure::new("calibrate", error.to_string()))?;
    let Some(path) = &args.out else { return output::print(&text) };
    output::write_file(path, &text)?;
    let profile = Profile::parse(&path.to_string_lossy(), &text);
    let profile = profile.map_err(|error| Failure::new("calibrate", error.to_string()))?;
    output::print(&format!("{}\n{}\n", path.display(), profile.label()))
}
