//! The table on a real pool of two racks in this process: clients in both racks, over TCP and over
//! shared memory, at once.

use rackpool::cluster::Cluster;
use rackpool::{FabricChoice, Handle};
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

fn allocations(handle: &mut Handle) -> u64 {
    let stats = handle.admin().pool_stats().unwrap();
    stats.racks.iter().map(|rack| rack.daemon.as_ref().unwrap().allocations).sum()
}
