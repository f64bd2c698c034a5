//! Measures this machine and prints a profile: `cargo run --release --example calibrate`.

use rackpool_sim::device::Profile;
use rackpool_sim::device::calibrate::{Effort, calibrate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "measured".to_owned());
    print!("{}", calibrate(&name, &Profile::load("modern")?, Effort::thorough())?);
    Ok(())
}
