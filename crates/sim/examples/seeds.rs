//! Runs seeds in checking mode one by one and prints what came of each, for work on the simulator
//! itself:
//!
//! ```text
//! cargo run --release -p rackpool-sim --example seeds -- FIRST COUNT FAULTS OPERATIONS [WORDS]
//! cargo run --release -p rackpool-sim --example seeds -- 1 100 all 2000
//! cargo run --release -p rackpool-sim --example seeds --features mutations -- \
//!     1 100 all 2000 without unlock-before-flush
//! ```
//!
//! The last one stops at the first seed that fails. With the word `software` every rack has clients
//! on two hosts whose caches only the software keeps coherent; with `trace` every line is printed.

use rackpool_core::probe::Mutation;
use rackpool_sim::run::{Config, Counts, guarded};
use rackpool_sim::world::run_seed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.len() < 4 {
        let usage = "seeds FIRST COUNT FAULTS OPERATIONS [trace] [software] [without NAME]";
        return Err(format!("usage: {usage}").into());
    }
    let has = |word: &str| words[4..].iter().any(|one| one == word);
    let left_out = words.iter().skip_while(|word| *word != "without").nth(1);
    let named = |one: &Mutation| left_out.is_some_and(|name| name == one.name());
    let mutation = Mutation::ALL.into_iter().find(named);
    let (first, count): (u64, u64) = (words[0].parse()?, words[1].parse()?);
    let config = Config {
        faults: words[2].parse()?,
        operations: words[3].parse()?,
        trace_lines: if has("trace") { u32::MAX } else { 0 },
        mutation,
        software_coherent: has("software").then_some(true),
        ..Config::default()
    };
    config.check()?;
    let mut total = Counts::default();
    for seed in first..first.saturating_add(count) {
        let outcome = guarded(&run_seed, &config, seed);
        let failed = outcome.failure.is_some();
        println!(
            "seed {seed}: {} operations, {} events, {}, trace {:016x}: {}",
            outcome.operations,
            outcome.events,
            outcome.virtual_time,
            outcome.trace_hash,
            outcome.failure.map_or("ok".into(), |one| format!("{}: {}", one.checker, one.text)),
        );
        if mutation.is_some() && failed {
            break;
        }
        outcome.trace.iter().for_each(|line| println!("{line}"));
        total.merge(&outcome.counts);
    }
    println!("{}", serde_json::to_string_pretty(&total)?);
    println!("never: {:?}", total.never(config.faults));
    Ok(())
}
