use rackpool_sim::device::Profile;
use rackpool_sim::world::load::*;
use rackpool_sim::world::performance::Shape;
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}
fn main() {
    let args: Vec<u32> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let profile = Profile::load("modern").unwrap();
    let shape = Shape { racks: args[0], page_shift: 21, frames: 64, seed: 1 };
    let t = cpu_ns();
    let mut load = Load::mixed(args[1], args[2]);
    if let Some(p) = args.get(3) {
        load.remote_ppm = *p;
    }
    if let Some(p) = args.get(4) {
        load.first_touch_ppm = *p;
    }
    let mut run = Prepared::new(&profile, shape, load).unwrap();
    let t1 = cpu_ns();
    run.run().unwrap();
    let t2 = cpu_ns();
    let n = run.operations();
    println!(
        "setup {} ms; {} ops in {} ms: {} ns/op, {:.3} M/s",
        (t1 - t) / 1000000,
        n,
        (t2 - t1) / 1000000,
        (t2 - t1) / n,
        n as f64 * 1e3 / (t2 - t1) as f64
    );
    println!("{:?} {:?}", run.setup(), run.work());
    for k in [Kind::OwnWarm, Kind::OwnFirst, Kind::RemoteWarm, Kind::RemoteFirst] {
        let s = run.seen(k);
        println!(
            "{k:?} n {} p50 {:?} p99 {:?} master {} daemon {}",
            s.latency.count(),
            s.latency.percentile(500000),
            s.latency.percentile(990000),
            s.master_calls,
            s.daemon_requests
        );
    }
    println!("{:x}", run.fingerprint());
    println!(
        "{}",
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .find(|l| l.starts_with("VmHWM"))
            .unwrap()
    );
}
