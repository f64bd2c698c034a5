//! Racks with memory that is divided among several daemons: where clients and pages go, and what
//! accesses between the shards cost, counted exactly. In one process; `crash/shards.rs` kills.

use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::{FabricChoice, Handle, LockMode, LockOptions, Options, Placement, Pool, RackId};

fn cluster(racks: u16, shards: u16) -> Cluster {
    Cluster::with(ClusterOptions { racks, shards, ..ClusterOptions::default() }).unwrap()
}

fn handle_of(cluster: &Cluster, rack: u16, shard: u16) -> Handle {
    let options = Options::new(&cluster.master_addr(), rack).shard(shard);
    Pool::open(options).unwrap().handle().unwrap()
}

#[test]
fn clients_and_their_pages_spread_over_all_shards() {
    const HANDLES: usize = 60;
    let cluster = cluster(2, 4);
    let pool = cluster.pool(0).unwrap();
    let mut handles: Vec<Handle> = (0..HANDLES).map(|_| pool.handle().unwrap()).collect();
    let mut pages = [0; 4];
    for handle in &mut handles {
        let addr = handle.alloc(64 << 10, Placement::Local).unwrap();
        let at = handle.explain(addr).unwrap();
        assert_eq!((at.rack, at.own_rack, at.path.as_str(), at.shards), (0, true, "mapped", 4));
        pages[usize::from(at.shard)] += 1;
    }
    let racks = pool.stats().unwrap().racks;
    assert_eq!(racks.len(), 8);
    let names: Vec<String> = racks.iter().map(|rack| rack.rack.to_string()).collect();
    assert_eq!(names, ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3"]);
    for (shard, count) in pages.iter().enumerate() {
        assert!((3..=35).contains(count), "{pages:?}");
        let daemon = racks[shard].daemon.as_ref().unwrap();
        assert_eq!(daemon.frames - daemon.frames_free, *count, "{pages:?}");
        assert!(daemon.slots_used >= *count, "an allocation there joins there");
    }
}

#[test]
fn clients_of_two_shards_share_data_by_load_and_store_without_a_message() {
    let cluster = cluster(1, 2);
    let (mut one, mut two) = (handle_of(&cluster, 0, 0), handle_of(&cluster, 0, 1));
    let mine = one.alloc(64 << 10, Placement::Local).unwrap();
    let second = one.alloc(64 << 10, Placement::Local).unwrap();
    let theirs = two.alloc(64 << 10, Placement::Local).unwrap();
    assert_eq!(one.explain(mine).unwrap().shard, 0);
    assert_eq!(two.explain(theirs).unwrap().shard, 1);
    one.write_u64(mine, 5).unwrap();
    assert_eq!(two.read_u64(mine).unwrap(), 5);
    one.read_u64(theirs).unwrap();
    // A first touch of the other shard's page: the own daemon, then the master.
    let before = two.handle_stats();
    two.read_u64(second).unwrap();
    let touched = two.handle_stats();
    assert_eq!(touched.ring_requests - before.ring_requests, 1);
    assert_eq!(touched.master_requests - before.master_requests, 1);
    let before = [one.handle_stats(), two.handle_stats()];
    let mut bytes = [0; 64];
    let allocated = allocation_counter::measure(|| {
        for round in 0..1000 {
            for handle in [&mut one, &mut two] {
                for addr in [mine, theirs] {
                    handle.write(addr, &bytes).unwrap();
                    handle.read(addr, &mut bytes).unwrap();
                    handle.fetch_add(rackpool::GAddr(addr.0 + 128), 1).unwrap();
                    let _ = handle.cas(rackpool::GAddr(addr.0 + 136), round, round).unwrap();
                }
            }
        }
    });
    assert_eq!(allocated.count_total, 0, "allocations");
    assert_eq!([one.handle_stats(), two.handle_stats()], before, "messages");
    for addr in [mine, theirs] {
        assert_eq!(one.read_u64(rackpool::GAddr(addr.0 + 128)).unwrap(), 2000, "each once");
    }
}

#[test]
fn memory_of_the_own_rack_is_taken_shard_by_shard_before_another_rack() {
    // 16 pages a shard, of which some are for slabs.
    let cluster = Cluster::with(ClusterOptions {
        racks: 2,
        shards: 2,
        memory: "heap?size=2M&pages=64K".into(),
        ..ClusterOptions::default()
    })
    .unwrap();
    let mut handle = handle_of(&cluster, 0, 1);
    let mut homes = Vec::new();
    for _ in 0..40 {
        let addr = handle.alloc(64 << 10, Placement::Auto).unwrap();
        let at = handle.explain(addr).unwrap();
        homes.push((at.rack, at.shard));
    }
    let (own, rest) = homes.split_at(16);
    assert!(own.iter().all(|at| *at == (0, 1)), "{homes:?}");
    let (sibling, far) = rest.split_at(16);
    assert!(sibling.iter().all(|at| *at == (0, 0)), "{homes:?}");
    assert!(far.iter().all(|at| at.0 == 1), "{homes:?}");
    let error = handle.alloc(64 << 10, Placement::Local).unwrap_err();
    assert_eq!(error.code(), "full");
    let error = handle.alloc(64 << 10, Placement::Rack(RackId(0))).unwrap_err();
    assert_eq!(error.code(), "full");
    let mut far = 0;
    while let Ok(addr) = handle.alloc(64 << 10, Placement::Rack(RackId(1))) {
        assert_eq!(handle.explain(addr).unwrap().rack, 1);
        far += 1;
    }
    assert_eq!(far, 24, "both shards of rack 1 to the last page");
}

#[test]
fn a_page_moves_between_racks_and_never_between_the_shards_of_one() {
    let cluster = cluster(2, 2);
    let mut handle = handle_of(&cluster, 0, 0);
    let mut other = handle_of(&cluster, 0, 1);
    let addr = handle.alloc(64 << 10, Placement::Local).unwrap();
    handle.write(addr, b"goes along").unwrap();
    let stays = other.admin().migrate(addr, RackId(0)).unwrap();
    assert_eq!(stays.to_string(), "0.0", "a page of the rack is there already");
    let there = handle.admin().migrate(addr, RackId(1)).unwrap();
    assert!(there.same_rack(RackId(1)) && there.shards() == 2, "{there}");
    let mut bytes = [0; 10];
    for one in [&mut handle, &mut other] {
        one.read(addr, &mut bytes).unwrap();
        assert_eq!(&bytes, b"goes along");
        assert_eq!(one.explain(addr).unwrap().rack, 1);
    }
    let back = other.admin().migrate(addr, RackId(0)).unwrap();
    assert!(back.same_rack(RackId(0)), "{back}");
    handle.read(addr, &mut bytes).unwrap();
    assert_eq!(&bytes, b"goes along");
}

#[test]
fn an_undivided_rack_tells_nothing_of_shards() {
    let cluster = Cluster::start(1).unwrap();
    let pool = cluster.pool(0).unwrap();
    let addr = pool.alloc(64, Placement::Local).unwrap();
    let told = pool.explain(addr).unwrap();
    assert!(!told.to_string().contains("shard"), "{told}");
    assert!(!serde_json::to_string(&told).unwrap().contains("shard"));
    let stats = pool.stats().unwrap();
    assert_eq!(serde_json::to_value(&stats.racks[0]).unwrap()["rack"], 0);
}

#[test]
fn clients_of_another_rack_reach_both_shards_over_either_fabric() {
    let cluster = cluster(2, 2);
    let mut at = handle_of(&cluster, 0, 0);
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        let mut far = cluster.pool_over(1, fabric).unwrap().handle().unwrap();
        for shard in 0..2 {
            let home = RackId::sharded(0, shard, 2).unwrap();
            let addr = far.alloc(64 << 10, Placement::Rack(home)).unwrap();
            far.write_u64(addr, 3).unwrap();
            assert_eq!(at.fetch_add(addr, 1).unwrap(), 3);
            let told = far.explain(addr).unwrap();
            assert_eq!((told.rack, told.shard, told.own_rack), (0, shard, false));
            let lock = at.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
            assert_eq!(
                far.lock(addr, LockMode::Write, LockOptions::line().within_ms(1))
                    .unwrap_err()
                    .code(),
                "lock-timeout"
            );
            at.unlock(lock).unwrap();
            far.free(addr, 64 << 10).unwrap();
        }
    }
}

#[test]
fn a_page_that_the_other_shards_clients_use_most_stays_and_its_home_is_told() {
    let cluster = Cluster::with(ClusterOptions {
        racks: 1,
        shards: 2,
        daemon: |options| options.migration = "cost".parse().unwrap(),
        ..ClusterOptions::default()
    })
    .unwrap();
    let (mut home, mut user) = (handle_of(&cluster, 0, 0), handle_of(&cluster, 0, 1));
    let addr = home.alloc(64 << 10, Placement::Local).unwrap();
    let daemon = |handle: &mut Handle, shard: usize| {
        handle.admin().pool_stats().unwrap().racks[shard].daemon.clone().unwrap()
    };
    let mut line = [0; 64];
    let started = std::time::Instant::now();
    while daemon(&mut home, 0).requests_by_kind.note_use == 0 {
        assert!(started.elapsed().as_secs() < 30, "the home never hears of the use");
        for at in 0..2_000 {
            user.read(rackpool::GAddr(addr.0 + 64 * (at % 1024)), &mut line).unwrap();
        }
    }
    assert_eq!(user.explain(addr).unwrap().shard, 0);
    for shard in 0..2 {
        let stats = daemon(&mut home, shard);
        assert_eq!((stats.moves.asked, stats.pages_came), (0, 0), "nobody wants it elsewhere");
    }
}
