use rackpool_sim::world::scale::*;
fn main() {
    let a: Vec<u32> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let p = rackpool_sim::device::Profile::load("modern").unwrap();
    let o = Options { racks: a[2..].to_vec(), clients: a[0], operations: a[1], seed: 1 };
    for r in &o.racks {
        let pt = point(&p, &o, *r).unwrap();
        println!("{pt:#?}");
    }
}
