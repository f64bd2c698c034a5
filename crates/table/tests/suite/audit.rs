//! The audit over a pool in use: what it finds lost, what it leaves to clients in the middle of a
//! change, and that it takes nothing from tables that others change meanwhile.

use rackpool::cluster::Cluster;
use rackpool::protocol::{AuditReply, AuditRequest};
use rackpool::{AllocationKind, Handle, Placement};
use rackpool_table::audit::{Amount, audit, sweep};
use rackpool_table::{Options, Table};
use std::sync::atomic::{AtomicBool, Ordering};

const LONG: usize = 100_000;

fn options() -> Options {
    Options { level_first: 2, versions_per_word: 8, ..Options::default() }
}

fn fill(mem: &mut Handle, name: &str) -> Table {
    let mut table = Table::create(mem, name, options()).unwrap();
    for key in 0..300u32 {
        let long = if key % 30 == 0 { LONG } else { 40 };
        table.put(mem, &key.to_le_bytes(), &vec![key as u8; long]).unwrap();
    }
    table
}

#[test]
fn what_no_table_names_is_lost_and_comes_back_and_nothing_else() {
    let cluster = Cluster::start(2).unwrap();
    let mut here = cluster.pool(0).unwrap().handle().unwrap();
    let mut there = cluster.pool(1).unwrap().handle().unwrap();
    let mut table = fill(&mut here, "one");
    fill(&mut there, "two");
    let user = here.alloc(5000, Placement::Auto).unwrap();
    here.set_root("a user's own", rackpool::GAddr::NULL, user).unwrap();
    there.alloc_owned(64, Placement::Local).unwrap();
    let found = audit(&mut here, false).unwrap();
    assert!(found.is_clean() && found.held == Amount::default(), "{found:?}");
    assert_eq!(
        found.tables.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
        ["one", "two"]
    );

    let lost = [
        here.alloc_as(64, Placement::Local, AllocationKind::Table).unwrap(),
        here.alloc_as(3 << 20, Placement::Local, AllocationKind::Table).unwrap(),
        there.alloc_as(900, Placement::Local, AllocationKind::Table).unwrap(),
    ];
    let found = audit(&mut there, false).unwrap();
    assert!(!found.is_clean(), "{found:?}");
    let run = (3u64 << 20).next_multiple_of(here.page_bytes());
    assert_eq!(found.lost, Amount { allocations: 3, bytes: 64 + run + 1024 });
    assert!(lost.iter().all(|addr| found.lost_at.contains(addr)), "{found:?}");

    let found = audit(&mut there, true).unwrap();
    assert!(found.is_clean() && found.reclaimed.allocations == 3, "{found:?}");
    assert_eq!(audit(&mut here, false).unwrap().lost, Amount::default());
    assert_eq!(here.free(lost[0], 64).unwrap_err().code(), "bad-free");
    for key in 0..300u32 {
        let value = table.get(&mut here, &key.to_le_bytes()).unwrap().unwrap();
        assert!(value.iter().all(|byte| *byte == key as u8), "key {key}");
    }
    here.free(user, 5000).unwrap();
    table.destroy(&mut here).unwrap();
    Table::open(&mut there, "two").unwrap().destroy(&mut there).unwrap();
    let found = audit(&mut here, false).unwrap();
    let left: u64 = found.racks.iter().map(|rack| rack.kinds[&AllocationKind::Table].bytes).sum();
    assert!(found.is_clean() && left == 0, "{found:?}");
}

#[test]
fn what_a_client_in_the_middle_of_a_change_may_hold_stays_its_own() {
    let cluster = Cluster::start(1).unwrap();
    let mut here = cluster.pool(0).unwrap().handle().unwrap();
    let mut other = cluster.pool(0).unwrap().handle().unwrap();
    other.begin_change();
    let draft = other.alloc_as(64, Placement::Auto, AllocationKind::Table).unwrap();
    let found = audit(&mut here, true).unwrap();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.held.allocations, found.holders.as_slice()), (1, &[std::process::id()][..]));
    other.write(draft, b"still mine").unwrap();
    assert!(sweep(&mut here, rackpool::RackId(0)).unwrap(), "nothing is due");
    // It ends without having ended its change: as if it had died.
    drop(other);
    sweep_when_due(&mut here);
}

#[test]
fn what_a_failed_destroy_leaves_is_swept_when_its_handle_ends() {
    let cluster = Cluster::start(1).unwrap();
    let mut here = cluster.pool(0).unwrap().handle().unwrap();
    let mut other = cluster.pool(0).unwrap().handle().unwrap();
    let mut table = fill(&mut other, "broken");
    let mut parts = Vec::new();
    table.for_each_allocation(&mut other, |_, addr, bytes| parts.push((addr, bytes))).unwrap();
    // One is freed behind its back.
    other.free(parts[0].0, parts[0].1).unwrap();
    assert_eq!(table.destroy(&mut other).unwrap_err().code(), "bad-free");
    drop(other);
    sweep_when_due(&mut here);
}

/// Waits until a session has ended in the middle of a change, and sweeps: then all is well.
fn sweep_when_due(handle: &mut Handle) {
    let start = std::time::Instant::now();
    while !matches!(sweep_due(handle), Some(1..)) {
        assert!(start.elapsed().as_secs() < 60, "the daemon does not notice the end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(sweep(handle, rackpool::RackId(0)).unwrap());
    assert_eq!(sweep_due(handle), Some(0));
    let found = audit(handle, false).unwrap();
    assert!(found.is_clean() && found.held == Amount::default(), "{found:?}");
}

fn sweep_due(handle: &mut Handle) -> Option<u64> {
    match handle.admin().audit(rackpool::RackId(0), AuditRequest::Due) {
        Ok(AuditReply::Due { count }) => Some(count),
        _ => None,
    }
}

#[test]
fn repairs_take_nothing_from_clients_at_work() {
    let cluster = Cluster::start(2).unwrap();
    let stop = AtomicBool::new(false);
    let mut first = cluster.pool(0).unwrap().handle().unwrap();
    Table::create(&mut first, "busy", options()).unwrap();
    std::thread::scope(|scope| {
        for client in 0..3u32 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || {
                let mut mem = cluster.pool((client % 2) as u16).unwrap().handle().unwrap();
                let mut table = Table::open(&mut mem, "busy").unwrap();
                let (mut round, mut last) = (0u32, std::collections::BTreeMap::new());
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let key = format!("{client}-{}", round * 7 % 97);
                    let length = if round % 11 == 0 { LONG } else { round as usize % 300 };
                    let value = vec![round as u8; length];
                    if round % 5 == 0 {
                        table.delete(&mut mem, key.as_bytes()).unwrap();
                        last.remove(&key);
                    } else {
                        table.put(&mut mem, key.as_bytes(), &value).unwrap();
                        last.insert(key, value);
                    }
                }
                for (key, value) in last {
                    assert_eq!(table.get(&mut mem, key.as_bytes()).unwrap(), Some(value), "{key}");
                }
                assert_eq!(table.leaked_bytes(), 0, "nothing was freed behind its back");
            });
        }
        let looks: Vec<_> = (0..6).map(|_| audit(&mut first, true)).collect();
        // Before anything is asserted: the clients would go on for ever.
        stop.store(true, Ordering::Relaxed);
        for found in looks {
            let found = found.unwrap();
            assert!(found.is_clean() && found.lost == Amount::default(), "{found:?}");
        }
    });
    let found = audit(&mut first, false).unwrap();
    assert!(found.is_clean() && found.held == Amount::default(), "{found:?}");
    assert!(Table::open(&mut first, "busy").unwrap().check(&mut first).is_ok());
}
