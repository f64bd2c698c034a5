use rackpool_sim::run::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let first: u64 = args[1].parse().unwrap();
    let n: u64 = args[2].parse().unwrap();
    let faults: FaultSet = args[3].parse().unwrap();
    let ops: u32 = args[4].parse().unwrap();
    let verbose = args.len() > 5;
    let config = Config {
        faults,
        operations: ops,
        trace_lines: if verbose { 100000 } else { 0 },
        ..Config::default()
    };
    let mut total = Counts::default();
    for seed in first..first + n {
        let t = std::time::Instant::now();
        let out = guarded(&|c: &Config, s| rackpool_sim::world::run_seed(c, s), &config, seed);
        println!(
            "seed {seed}: ops {} events {} vt {} hash {:x} in {:?} {:?}",
            out.operations,
            out.events,
            out.virtual_time,
            out.trace_hash,
            t.elapsed(),
            out.failure
        );
        if verbose {
            for l in &out.trace {
                println!("{l}");
            }
        }
        total.merge(&out.counts);
    }
    println!("{}", serde_json::to_string_pretty(&total).unwrap());
    println!("never: {:?}", total.never(faults));
}
