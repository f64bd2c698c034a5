//! A counter that threads of two racks add to at once. Words of 8 bytes are atomic, from every
//! rack.
//!
//! `cargo run --example shared_counter`

use rackpool::cluster::Cluster;
use rackpool::{CasOutcome, Placement, RackId, Result};

const THREADS: u16 = 4;
const ROUNDS: u64 = 1_000;

fn main() -> Result<()> {
    let cluster = Cluster::start(2)?;
    let pool = cluster.pool(0)?;
    let counter = pool.alloc(8, Placement::Rack(RackId(1)))?;

    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            let cluster = &cluster;
            scope.spawn(move || -> Result<()> {
                // One handle a thread: it is the fast path, and not shared.
                let mut handle = cluster.pool(thread % 2)?.handle()?;
                for _ in 0..ROUNDS {
                    handle.fetch_add(counter, 1)?;
                }
                Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;

    let total = u64::from(THREADS) * ROUNDS;
    println!("counted {}", pool.read_u64(counter)?);
    assert_eq!(pool.cas(counter, total, 0)?, CasOutcome::Swapped);
    assert_eq!(pool.cas(counter, total, 0)?, CasOutcome::Found(0));
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
