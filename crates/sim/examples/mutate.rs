//! Development: which mutation is caught by which seed.

use rackpool_core::probe::Mutation;
use rackpool_sim::run::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[1].parse().unwrap();
    for m in Mutation::ALL {
        if args.len() > 2 && m.name() != args[2] {
            continue;
        }
        let config = Config { operations: 2000, mutation: Some(m), ..Config::default() };
        let mut found = None;
        for seed in 1..=n {
            let out = guarded(&|c: &Config, s| rackpool_sim::world::run_seed(c, s), &config, seed);
            if let Some(f) = out.failure {
                found = Some((seed, f));
                break;
            }
        }
        match found {
            Some((s, f)) => println!(
                "{} caught seed {s} by {} : {}",
                m.name(),
                f.checker,
                f.text.chars().take(150).collect::<String>()
            ),
            None => println!("{} SURVIVED {n}", m.name()),
        }
    }
}
