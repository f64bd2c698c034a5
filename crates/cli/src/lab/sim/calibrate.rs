//! `rackpool calibrate`: this machine as a device profile.

use crate::args::CalibrateArgs;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_sim::device::Profile;
use rackpool_sim::device::calibrate::{Effort, calibrate};

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let base = super::profile(&args.base)?;
    let to = output::open_if(args.out.as_ref())?;
    let effort = if args.quick { Effort::quick() } else { Effort::thorough() };
    let bar = output::spinner("measuring");
    let measured = calibrate(&args.name, &base, effort);
    bar.finish_and_clear();
    let text = measured.map_err(|error| Failure::new("calibrate", error.to_string()))?;
    let Some(to) = to else { return output::print(&text) };
    let path = to.path().display().to_string();
    let profile = Profile::parse(&path, &text);
    let profile = profile.map_err(|error| Failure::new("calibrate", error.to_string()))?;
    to.write(&text)?;
    output::print(&format!("{path}\n{}\n", profile.label()))
}
