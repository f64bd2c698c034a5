//! Connections of their own against shared ones: reads of 64 bytes from another rack over tcp, by
//! 1, 2 and 4 threads with a handle each. Both kinds take turns in one process; each figure is the
//! median of 15 pairs. `cargo run --release -p rackpool-bench --example connections`

use rackpool::cluster::Cluster;
use rackpool::{Connections, GAddr, Handle, Options, Placement, Pool, RackId};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PAIRS: usize = 15;
const TURN: Duration = Duration::from_millis(200);
const BYTES: u64 = 1 << 20;

fn main() -> rackpool::Result<()> {
    let cluster = Cluster::start(2)?;
    let pools = [Connections::Own, Connections::Shared].map(|connections| {
        Pool::open(Options::new(&cluster.master_addr(), 0).connections(connections))
    });
    let [own, shared] = pools;
    let pools = [own?, shared?];
    let addr = pools[0].alloc(BYTES, Placement::Rack(RackId(1)))?;
    println!("threads  own reads/s  shared reads/s  shared/own (worst .. best)");
    for threads in [1, 2, 4] {
        let mut handles = Vec::new();
        for pool in &pools {
            let of_pool: rackpool::Result<Vec<_>> = (0..threads).map(|_| pool.handle()).collect();
            handles.push(of_pool?);
        }
        for of_pool in &mut handles {
            turn(of_pool, addr);
        }
        let mut pairs: Vec<[f64; 2]> = (0..PAIRS)
            .map(|pair| {
                // Each goes first as often as the other.
                let first = turn(&mut handles[pair % 2], addr);
                let second = turn(&mut handles[1 - pair % 2], addr);
                if pair % 2 == 0 { [first, second] } else { [second, first] }
            })
            .collect();
        let mut median = |of: fn(&[f64; 2]) -> f64| {
            pairs.sort_by(|a, b| of(a).total_cmp(&of(b)));
            (of(&pairs[0]), of(&pairs[PAIRS / 2]), of(&pairs[PAIRS - 1]))
        };
        let (own, shared) = (median(|pair| pair[0]).1, median(|pair| pair[1]).1);
        let (worst, ratio, best) = median(|pair| pair[1] / pair[0]);
        println!("{threads:7}  {own:11.0}  {shared:14.0}  {ratio:.2} ({worst:.2} .. {best:.2})");
    }
    Ok(())
}

/// Reads a second of all threads together.
fn turn(handles: &mut [Handle], addr: GAddr) -> f64 {
    let start = Barrier::new(handles.len());
    let reads: u64 = std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = handles
            .iter_mut()
            .enumerate()
            .map(|(index, handle)| scope.spawn(move || read(handle, addr, index as u64, start)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("reads do not fail")).sum()
    });
    reads as f64 / TURN.as_secs_f64()
}

fn read(handle: &mut Handle, addr: GAddr, index: u64, start: &Barrier) -> u64 {
    let (mut reads, mut to) = (0, [0; 64]);
    start.wait();
    let began = Instant::now();
    while began.elapsed() < TURN {
        let at = (reads * 7919 + index * 64) * 64 % BYTES;
        handle.read(GAddr(addr.0 + at), &mut to).expect("reads do not fail");
        reads += 1;
    }
    reads
}
