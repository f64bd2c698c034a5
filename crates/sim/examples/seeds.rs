//! Runs seeds in checking mode one by one and prints what came of each, for work on the simulator
//! itself:
//!
//! ```text
//! cargo run --release -p rackpool-sim --example seeds -- FIRST COUNT FAULTS OPERATIONS [WORD]
//! cargo run --release -p rackpool-sim --example seeds -- 1 100 all 2000
//! ```

use rackpool_core::probe::Mutation;
use rackpool_sim::run::{Config, Counts, guarded};
use rackpool_sim::world::run_seed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !(4..=5).contains(&words.len()) {
        return Err("usage: seeds FIRST COUNT FAULTS OPERATIONS [trace|MUTATION]".into());
    }
    let last = words.get(4).map_or("", String::as_str);
    let mutation = Mutation::ALL.into_iter().find(|mutation| mutation.name() == last);
    if !matches!(last, "" | "trace") && mutation.is_none() {
        return Err(format!("{last} is no mutation").into());
    }
    let (first, count): (u64, u64) = (words[0].parse()?, words[1].parse()?);
    let config = Config {
        faults: words[2].parse()?,
        operations: words[3].parse()?,
        trace_lines: if last == "trace" { u32::MAX } else { 0 },
        mutation,
        ..Config::default()
    };
    config.check()?;
    let mut total = Counts::default();
    for seed in first..first.saturating_add(count) {
        let outcome = guarded(&run_seed, &config, seed);
        println!(
            "seed {seed}: {} operations, {} events, {}, trace {:016x}: {}",
            outcome.operations,
            outcome.events,
            outcome.virtual_time,
            outcome.trace_hash,
            outcome.failure.map_or("ok".into(), |one| format!("{}: {}", one.checker, one.text)),
        );
        outcome.trace.iter().for_each(|line| println!("{line}"));
        total.merge(&outcome.counts);
    }
    println!("{}", serde_json::to_string_pretty(&total)?);
    println!("never: {:?}", total.never(config.faults));
    Ok(())
}
