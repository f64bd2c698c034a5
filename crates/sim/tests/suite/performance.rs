//! Performance mode: runs repeat themselves, latencies without contention are the sums of the
//! profile's numbers, messages are counted exactly, and the ladder of the paper's testbed lies
//! where the paper's mechanisms put it.

use rackpool_sim::device::Profile;
use rackpool_sim::time::Ps;
use rackpool_sim::world::ladder::{Rung, climb};
use rackpool_sim::world::load::{ClusterLoad, Prepared};
use rackpool_sim::world::performance::Shape;
use rackpool_sim::world::scale::{Options, point};

fn profile(name: &str) -> Profile {
    Profile::load(name).unwrap()
}

fn small(seed: u64) -> Prepared {
    let shape = Shape { racks: 3, page_shift: 21, frames: 32, seed };
    let mut run = Prepared::new(&profile("modern"), shape, ClusterLoad::mixed(4, 300)).unwrap();
    run.run().unwrap();
    run
}

#[test]
fn a_run_in_performance_mode_repeats_itself() {
    let (one, two, other) = (small(7), small(7), small(8));
    assert_eq!(one.fingerprint(), two.fingerprint());
    assert_eq!(one.work(), two.work());
    assert_ne!(one.fingerprint(), other.fingerprint());
    assert_eq!(one.operations(), 3 * 4 * 300);
}

#[test]
fn accesses_that_meet_nobody_take_the_sum_of_the_profiles_numbers() {
    for name in Profile::names() {
        let rungs = climb(&profile(name)).unwrap();
        let closed: Vec<&Rung> = rungs.iter().filter(|rung| rung.closed.is_some()).collect();
        assert!(closed.len() >= 11, "{name}: {} rungs have a closed form", closed.len());
        for Rung { name: rung, p50, closed, .. } in closed {
            assert_eq!(Some(*p50), *closed, "{name}: {rung}");
        }
    }
}

#[test]
fn the_ladder_of_the_papers_testbed_lies_within_its_ranges() {
    let rungs = climb(&profile("rcmp-testbed")).unwrap();
    let of = |name: &str| rungs.iter().find(|rung| rung.name == name).unwrap().p50;
    let within = |name: &str, low: Ps, high: Ps| {
        let time = of(name);
        println!("{name}: {time}, range {low} to {high}");
        assert!((low..=high).contains(&time), "{name}: {time} is not within {low} to {high}");
    };
    // A load and what the client does around it.
    within("own rack, read 64 B", Ps::ns(138), Ps::ns(300));
    within("own rack, write 64 B", Ps::ns(138), Ps::ns(300));
    // One RDMA operation, Rcmp 2.2: 1.5 to 3 us, here with what the client adds.
    within("other rack, read 64 B", Ps::ns(1_500), Ps::ns(3_000));
    within("other rack, write 64 B", Ps::ns(1_000), Ps::ns(3_000));
    // Through the daemon more than the wire alone, and the mean below the paper's bounds.
    let one_sided = of("other rack, read 64 B");
    within("the paper's path, read 64 B", one_sided + Ps::ns(1_000), Ps::ns(4_600));
    within("half own rack, half the paper's path, read 64 B", Ps::ns(1_200), Ps::ns(3_000));
    within("half own rack, half the paper's path, write 64 B", Ps::ns(1_200), Ps::ns(3_500));
}

#[test]
fn messages_of_an_access_do_not_grow_with_the_cluster() {
    let options = Options { clients: 4, operations: 200, ..Options::default() };
    for racks in [2, 8] {
        let point = point(&profile("modern"), &options, racks).unwrap();
        let [own, own_first, remote, remote_first] = point.kinds;
        assert!(point.kinds.iter().all(|kind| kind.count > 0), "{racks} racks");
        assert_eq!((own.master_calls, own.ring_messages), (0.0, 0.0));
        assert_eq!((remote.master_calls, remote.ring_messages), (0.0, 0.0));
        assert_eq!((own_first.master_calls, own_first.ring_messages), (0.0, 2.0));
        assert_eq!((remote_first.master_calls, remote_first.ring_messages), (1.0, 2.0));
        let remote_count = remote.count + remote_first.count;
        assert_eq!(point.work.fabric_operations, remote_count, "one each, and nothing besides");
        assert_eq!(point.freed.barriers, 1.0);
        // One shuts the page, one ends the key that only its mover had.
        assert_eq!((point.moved.barriers, point.moved.master_calls), (2.0, 3.0), "{racks} racks");
    }
}

#[test]
fn what_a_join_is_told_of_racks_does_not_grow_with_the_cluster() {
    let options = Options { clients: 2, operations: 10, ..Options::default() };
    let bytes = [4, 16, 64].map(|racks| {
        let point = point(&profile("modern"), &options, racks).unwrap();
        let calls = |name| point.setup.master_calls.get(name).copied().unwrap_or(0);
        let links = u64::from(racks * options.clients) * 2;
        assert_eq!((calls("rack"), calls("racks")), (links, 0), "{racks} racks");
        point.rack_bytes_per_link
    });
    // A digit more in the names of hosts, in numbers of racks and in the log's index.
    assert!(bytes.iter().all(|each| (30.0..=80.0).contains(each)), "{bytes:?}");
    assert!(bytes[2] - bytes[0] <= 8.0, "{bytes:?}");
}
