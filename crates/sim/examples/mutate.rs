//! Leaves out one safeguard after the other, or one by name, and prints the first seed that
//! notices, for work on the simulator itself; `rackpool sim mutations` is the check.
//!
//! ```text
//! cargo run --release -p rackpool-sim --features mutations --example mutate -- SEEDS [MUTATION]
//! ```

use rackpool_core::probe::Mutation;
use rackpool_sim::run::{Config, guarded};
use rackpool_sim::world::run_seed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(seeds) = words.first() else { return Err("usage: mutate SEEDS [MUTATION]".into()) };
    let seeds: u64 = seeds.parse()?;
    let wanted = |one: &Mutation| words.get(1).is_none_or(|name| name == one.name());
    for mutation in Mutation::ALL.into_iter().filter(wanted) {
        let config = Config { mutation: Some(mutation), ..Config::default() };
        config.check()?;
        let run = |seed| Some((seed, guarded(&run_seed, &config, seed).failure?));
        match (1..=seeds).find_map(run) {
            Some((seed, found)) => {
                let text: String = found.text.chars().take(150).collect();
                println!("{}: seed {seed}: {}: {text}", mutation.name(), found.checker);
            }
            None => println!("{}: SURVIVED {seeds} seeds", mutation.name()),
        }
    }
    Ok(())
}
