//! The table on a real pool of two racks in this process: clients in both racks, over TCP and over
//! shared memory, at once.

use rackpool::cluster::Cluster;
use rackpool::{FabricChoice, Handle, Placement, RackId};
use rackpool_table::{Options, Table};

fn value_of(key: u32, round: u32) -> Vec<u8> {
    // Every tenth value is long; every hundredth spans several pages of 64 KiB.
    let words = match key {
        key if key.is_multiple_of(100) => 30_000,
        key if key.is_multiple_of(10) => 600,
        key => 1 + key as usize % 200,
    };
    [key.to_le_bytes(), round.to_le_bytes()].concat().repeat(words)
}

fn work(cluster: &Cluster, thread: u32) {
    let fabric = if thread < 2 { FabricChoice::Tcp } else { FabricChoice::Shm };
    let pool = cluster.pool_over((thread % 2) as u16, fabric).unwrap();
    let mut handle = pool.handle().unwrap();
    let mem = &mut handle;
    let mut table = Table::open_or_create(mem, "t", Options::default()).unwrap();
    for key in 0..500u32 {
        let own = format!("own/{thread}/{key}");
        assert!(table.insert(mem, own.as_bytes(), &value_of(key, 0)).unwrap());
        let shared = format!("shared/{}", key % 20);
        table.put(mem, shared.as_bytes(), &value_of(key % 20, thread)).unwrap();
        let seen = table.get(mem, shared.as_bytes()).unwrap().unwrap();
        let writer = u32::from_le_bytes(seen[4..8].try_into().unwrap());
        assert!(writer < 4 && seen == value_of(key % 20, writer), "a torn value");
    }
    for key in 0..500u32 {
        let own = format!("own/{thread}/{key}");
        assert!(table.update(mem, own.as_bytes(), &value_of(key, 1)).unwrap());
        assert!(!table.insert(mem, own.as_bytes(), b"again").unwrap());
        let seen = table.get(mem, own.as_bytes()).unwrap().unwrap();
        assert!(seen == value_of(key, 1));
        if key % 2 == 0 {
            assert!(table.delete(mem, own.as_bytes()).unwrap());
        }
    }
    assert_eq!(table.leaked_bytes(), 0);
}

#[test]
fn clients_in_both_racks_share_one_table_and_destroying_it_frees_all() {
    let cluster = Cluster::start(2).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cluster = &cluster;
            scope.spawn(move || work(cluster, thread));
        }
    });
    let mut handle = cluster.pool(1).unwrap().handle().unwrap();
    let mem = &mut handle;
    let mut table = Table::open(mem, "t").unwrap();
    let report = table.check(mem).unwrap();
    assert_eq!((report.keys, report.buckets_frozen), (4 * 250 + 20, 0));
    assert_eq!(table.list(mem, b"own/3/").unwrap().len(), 250);
    for key in (1..500u32).step_by(2) {
        for thread in 0..4 {
            let own = format!("own/{thread}/{key}");
            assert!(table.get(mem, own.as_bytes()).unwrap().unwrap() == value_of(key, 1));
        }
    }
    let mut owned = 0;
    table.for_each_allocation(mem, |_, _, _| owned += 1).unwrap();
    assert_eq!(allocations(mem), owned, "something leaked");
    table.destroy(mem).unwrap();
    assert_eq!(allocations(mem), 0);
}

/// Calls to the system that sent something to the other rack: one a doorbell.
fn sends<T>(handle: &mut Handle, work: impl FnOnce(&mut Handle) -> T) -> (u64, T) {
    let before = handle.handle_stats().fabric_send_calls;
    let result = work(handle);
    (handle.handle_stats().fabric_send_calls - before, result)
}

#[test]
fn what_a_client_has_seen_of_another_rack_costs_it_one_trip_to_read_and_two_to_change() {
    let cluster = Cluster::start(2).unwrap();
    let mut home = cluster.pool(1).unwrap().handle().unwrap();
    let there = Placement::Rack(RackId(1));
    let options = Options {
        index_placement: there,
        entry_placement: there,
        seed: Some(7),
        ..Options::default()
    };
    let mut at_home = Table::create(&mut home, "t", options).unwrap();
    let keys: Vec<[u8; 8]> = (0..16u64).map(u64::to_le_bytes).collect();
    for key in &keys {
        assert!(at_home.insert(&mut home, key, &[1; 64]).unwrap());
    }
    let mut handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().handle().unwrap();
    let mem = &mut handle;
    let mut table = Table::open(mem, "t").unwrap();
    for _ in 0..2 {
        table.get_many(mem, &keys);
    }
    let (trips, value) = sends(mem, |mem| table.get(mem, &keys[3]).unwrap());
    assert_eq!((trips, value), (1, Some(vec![1; 64])));
    let (trips, values) = sends(mem, |mem| table.get_many(mem, &keys));
    assert!(values.into_iter().all(|value| value == Ok(Some(vec![1; 64]))));
    assert_eq!(trips, 1);
    // The new blobs are in the own rack. The old ones are the other's, each freed by a message.
    let pairs: Vec<_> = keys.iter().map(|key| (*key, [2; 64])).collect();
    assert!(table.put_many(mem, &pairs).into_iter().all(|done| done == Ok(false)));
    let (trips, done) = sends(mem, |mem| table.update(mem, &keys[3], &[3; 64]).unwrap());
    assert_eq!((trips, done), (2, true));
    let pairs: Vec<_> = keys.iter().map(|key| (*key, [4; 64])).collect();
    let (trips, done) = sends(mem, |mem| table.put_many(mem, &pairs));
    assert!(done.into_iter().all(|done| done == Ok(false)));
    // Keys that share a bucket have turns of their own.
    assert!((2..=6).contains(&trips), "{trips} trips");
    // The other rack changes a key: its reader finds that out with the trip that it makes anyway.
    assert!(at_home.update(&mut home, &keys[3], &[5; 64]).unwrap());
    let (trips, value) = sends(mem, |mem| table.get(mem, &keys[3]).unwrap());
    assert_eq!((trips, value), (2, Some(vec![5; 64])));
    let (trips, value) = sends(mem, |mem| table.get(mem, &keys[3]).unwrap());
    assert_eq!((trips, value), (1, Some(vec![5; 64])));
}

fn allocations(handle: &mut Handle) -> u64 {
    let stats = handle.admin().pool_stats().unwrap();
    stats.racks.iter().map(|rack| rack.daemon.as_ref().unwrap().allocations).sum()
}
