//! The evaluation of Rcmp in virtual time: the figures are there, they repeat themselves, and they
//! go where physics sends them.

use rackpool_sim::device::Profile;
use rackpool_sim::repro::load::{self, Load, Seen, buffered};

fn profile() -> Profile {
    Profile::load("rcmp-testbed").unwrap()
}

/// Few clients that write under locks.
fn locked(writes_a_lock: u64) -> Load {
    let operations = 256;
    Load { clients: 2, pages: 4, operations, write_ppm: 1_000_000, writes_a_lock, ..Load::paper() }
}

fn run(load: Load) -> Seen {
    load::run(&profile(), &load).unwrap()
}

#[test]
fn dbg() {
    for clients in [2, 8] {
        for writes in [1, 32] {
            for bytes in [64, 1024] {
                let load = Load { clients, item_bytes: bytes, pages: 16, ..locked(writes) };
                println!("{clients} {writes} {bytes}");
                println!("{}", run(load).rate);
                println!("{}", run(Load { coupled: buffered(1024), ..load }).rate);
            }
        }
    }
    let load = Load {
        clients: 8,
        operations: 2000,
        is_zipfian: true,
        write_ppm: 500_000,
        pages: 64,
        ..locked(32)
    };
    println!("{}", run(Load { is_by_calls: true, ..load }).rate);
    println!("{}", run(load).rate);
}
