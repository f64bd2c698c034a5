//! `rackpool sim run --faults all` and `rackpool sim mutations` without the rest of the program, so
//! that it is built in half the time: what `cargo xtask sim` and `cargo xtask mutations` run.
//!
//! ```text
//! cargo run --release -p rackpool-bench --features lab --example sim -- \
//!     run --first-seed 1 --seeds 100 [--seconds 40] [--store DIR] --json FILE
//! cargo run --release -p rackpool-bench --features mutations \
//!     --example sim -- mutations --first-seed 1 --seeds 1000 [--only NAME] --json FILE
//! ```

use rackpool_bench::sim_runs::{
    Findings, Seeds, mutations_json, mutations_table, show, store, survivors, threads,
};
use rackpool_bench::sim_table::run_seed;
use rackpool_core::probe::Mutation;
use rackpool_sim::device::Profile;
use rackpool_sim::run::{Config, FaultSet};
use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (command, options) = words.split_first().ok_or("run or mutations?")?;
    if options.len() % 2 != 0 {
        return Err("options are pairs of a name and a value".into());
    }
    let options: HashMap<&str, &str> =
        options.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let number = |name: &str| match options.get(name) {
        Some(text) => text.parse::<u64>().map_err(|error| format!("{name} {text}: {error}")),
        None => Err(format!("{name} is missing")),
    };
    let config = Config { faults: FaultSet::ALL, ..Config::default() };
    let (first, count) = (number("--first-seed")?, number("--seeds")?);
    let seeds = Seeds { config: &config, first, count, threads: threads(None), run: &run_seed };
    let json = Path::new(options.get("--json").ok_or("--json is missing")?);
    match command.as_str() {
        "run" => {
            let seconds = options.get("--seconds").map(|_| number("--seconds")).transpose()?;
            let directory = options.get("--store").map(Path::new);
            run(seeds, seconds.map(Duration::from_secs), directory, json)
        }
        "mutations" => mutations(seeds, options.get("--only").copied(), json),
        other => Err(format!("{other} is neither run nor mutations").into()),
    }
}

fn run(
    seeds: Seeds<'_>,
    limit: Option<Duration>,
    directory: Option<&Path>,
    json: &Path,
) -> Result<(), Box<dyn Error>> {
    let (config, profile) = (seeds.config.clone(), Profile::load(&seeds.config.profile)?);
    let (sweep, took) = seeds.sweep(limit, &mut |_| ());
    let shrunk = seeds.shrink(&sweep, &mut |seed| println!("shrinking seed {seed}"));
    let stored = directory.map(|directory| store(directory, &shrunk)).transpose()?;
    let findings = Findings { config, profile, sweep, shrunk, threads: seeds.threads, took };
    findings.json().write(json)?;
    print!("{}", show::findings(&findings, &stored.unwrap_or_default()));
    findings.complaint().map_or(Ok(()), |message| Err(message.into()))
}

fn mutations(seeds: Seeds<'_>, only: Option<&str>, json: &Path) -> Result<(), Box<dyn Error>> {
    let some = Config { mutation: Some(Mutation::ALL[0]), ..seeds.config.clone() };
    some.check()?;
    let chosen = Mutation::ALL.into_iter().filter(|one| one.is_simulated());
    let chosen = chosen.filter(|one| only.is_none_or(|only| one.name() == only));
    let fates: Vec<_> = chosen.map(|mutation| seeds.fate(mutation, &mut |_| ())).collect();
    mutations_json(&fates).write(json)?;
    print!("{}", mutations_table(&fates));
    match &survivors(&fates)[..] {
        [] => Ok(()),
        alive => Err(format!("within {} seeds survived: {}", seeds.count, alive.join(", ")).into()),
    }
}
