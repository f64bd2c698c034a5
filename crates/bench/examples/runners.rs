//! Runs one of the benchmarks in this process and prints its table:
//! `cargo run --release -p rackpool-bench --example runners -- local quick`.

use rackpool::FabricChoice;
use rackpool_bench::run::{Progress, Size};
use rackpool_bench::{local, remote, ring, ycsb_run};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let size = match () {
        () if has("smoke") => Size::Smoke,
        () => Size::quick(!has("full")),
    };
    let mut say = |progress: Progress| {
        eprintln!("{}/{} {}", progress.done, progress.steps, progress.name);
    };
    let report = match words.first().map(String::as_str) {
        Some("local") => local::run(&local::Options { size, ..Default::default() }, &mut say)?,
        Some("ring") => ring::run(&ring::Options { size, ..Default::default() }, &mut say)?,
        Some("remote") => {
            let fabric = if has("shm") { FabricChoice::Shm } else { FabricChoice::Tcp };
            remote::run(&remote::Options { size, fabric, ..Default::default() }, &mut say)?
        }
        Some("ycsb") => {
            let own = std::env::current_exe()?;
            let mut command = |_| {
                let mut command = std::process::Command::new(&own);
                command.arg("worker");
                command
            };
            let options = ycsb_run::Options { size, ..Default::default() };
            ycsb_run::run(&options, &mut command, &mut say)?
        }
        Some("worker") => {
            let (input, output) = (std::io::stdin(), std::io::stdout());
            return Ok(ycsb_run::worker(&mut input.lock(), &mut output.lock())?);
        }
        _ => {
            return Err("which: local, ring, remote or ycsb; how long: smoke, quick or full".into());
        }
    };
    print!("{}", report.table());
    Ok(())
}
