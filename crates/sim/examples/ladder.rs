fn main() {
    let name = std::env::args().nth(1).unwrap();
    let p = rackpool_sim::device::Profile::load(&name).unwrap();
    for r in rackpool_sim::world::ladder::climb(&p).unwrap() {
        println!(
            "{:50} {:>18} max {:>18} closed {:?} {}",
            r.name,
            r.p50.to_string(),
            r.max.to_string(),
            r.closed.map(|c| c.to_string()),
            if r.closed.is_some_and(|c| c != r.p50) { "DIFFERS" } else { "" }
        );
    }
}
