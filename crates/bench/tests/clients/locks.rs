//! `bench locks` with real client processes.

use crate::this_program;
use rackpool::FabricChoice;
use rackpool_bench::locks::{self, Options};
use rackpool_bench::run::{PoolSource, Size};

pub const CLIENT: &str = "locks-client";

pub fn test() {
    every_row_is_there_and_buffer_and_cache_were_used_where_they_should_be();
}

fn every_row_is_there_and_buffer_and_cache_were_used_where_they_should_be() {
    let (size, source) = (Size::Smoke, PoolSource::default());
    let options = Options { size, source, fabric: FabricChoice::Tcp };
    let mut command = |_| this_program(CLIENT);
    let report = locks::run(&options, &mut command, &mut |_| ()).expect("the run succeeds");
    let row = |name: &str| {
        let row = report.results.iter().find(|row| row.name == name);
        row.unwrap_or_else(|| panic!("there is no {name} in {}", report.table()))
    };
    for name in ["lock_unlock_local", "lock_unlock_remote"] {
        assert!(row(name).raw.is_some() && row(name).p99 >= row(name).p50, "{name}");
    }
    let count = |name: &str, field: &str| row(name).extra[field].as_u64().expect("a number");
    for (bytes, is_buffered) in [(64, true), (128, true), (256, true), (512, false), (1024, false)]
    {
        let name = format!("remote_write_{bytes}B_locked_buffered");
        assert!(row(&name).ratio.is_some_and(|ratio| ratio > 0.0), "{name}");
        assert_eq!(count(&name, "buffered_writes") > 0, is_buffered, "{name}");
        assert_eq!(count(&name, "flush_batches") > 0, is_buffered, "{name}");
    }
    let writes = count("remote_write_64B_locked_buffered", "buffered_writes");
    assert_eq!(writes, 64 * count("remote_write_64B_locked_buffered", "flush_batches"));
    assert!(count("remote_read_64B_locked_cached", "cache_hits") > 0);
    for (name, processes) in [("lock_contended_2_own_rack", 2), ("lock_contended_4_both_racks", 4)]
    {
        let turns = row(name).extra["by_process"].as_array().expect("a list");
        let turns: Vec<u64> = turns.iter().map(|one| one.as_u64().expect("a number")).collect();
        assert!(turns.len() == processes && turns.iter().all(|one| *one > 0), "{name}: {turns:?}");
        assert_eq!(row(name).n, turns.iter().sum::<u64>(), "{name}: {turns:?}");
        let spread = *turns.iter().max().unwrap() as f64 / *turns.iter().min().unwrap() as f64;
        assert_eq!(row(name).extra["max_over_min"].as_f64(), Some(spread), "{name}");
    }
}
