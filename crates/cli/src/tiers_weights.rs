//! `rackpool tiers weights`: the weights by which memories of given bandwidth give the most
//! together, with HMSDK's beside them. Pure but for its file.

use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use rackpool_tiers::weights::{Report, WEIGHT_MAX_DEFAULT, Weights, parse_bandwidths};
use std::path::PathBuf;

pub const WEIGHTS_EXAMPLES: &str = "\
Bandwidths are in MB/s (10^6 bytes a second), in the order of the nodes. Utilisation is what the
weights reach, over all bandwidths together.

Examples:
  rackpool tiers weights --bandwidth 300000,100000
  rackpool tiers weights --bandwidth 200000,80000,40000 --max 255 --json -";

/// Options of `tiers weights`.
#[derive(Debug, Args)]
pub struct TiersWeightsArgs {
    /// Bandwidth of each memory, MB/s
    #[arg(long, value_name = "MBPS,MBPS,...")]
    pub bandwidth: String,
    /// The largest weight, 1 to 255
    #[arg(long, value_name = "WEIGHT", default_value_t = WEIGHT_MAX_DEFAULT)]
    pub max: u32,
    /// Write the weights as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

pub fn run(args: &TiersWeightsArgs) -> Result<()> {
    // The only errors are wrong numbers.
    let wrong = |error: rackpool_tiers::weights::WeightsError| Failure::usage(error.to_string());
    let bandwidths = parse_bandwidths(&args.bandwidth).map_err(wrong)?;
    let report = Report::of(&bandwidths, args.max).map_err(wrong)?;
    if let Some(json) = output::open_if(args.json.as_ref())? {
        json.write(format!("{}\n", output::json(&report)?))?;
    }
    let rounded = match &report.rounded {
        Some(rounded) => line(rounded),
        None => "none: it refuses a weight of 0".to_owned(),
    };
    output::print(&format!("best   {}\nHMSDK  {rounded}\n", line(&report.best)))
}

/// Such as `3:1, 100.0 % of the bandwidth`.
fn line(Weights { weights, utilisation }: &Weights) -> String {
    let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
    format!("{}, {:.1} % of the bandwidth", weights.join(":"), utilisation * 100.0)
}
