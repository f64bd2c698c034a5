//! The evaluation of Rcmp in virtual time: the figures are there, they repeat themselves, and they
//! go where physics sends them.

use rackpool_sim::device::Profile;
use rackpool_sim::repro::baselines::{self, DATAGRAM_BYTES_MAX, FetchSystem};
use rackpool_sim::repro::calls::Calls;
use rackpool_sim::repro::evaluation::evaluate;
use rackpool_sim::repro::load::{self, LoadStats, RcmpLoad, buffered, same_work};
use rackpool_sim::repro::rcmp::Rcmp;
use rackpool_sim::repro::rrpc::{self, FetchMethod};
use rackpool_sim::repro::{Figure, Origin, Repro};
use rackpool_sim::world::{FetchMode, Path};

const SYSTEMS: [FetchSystem; 3] =
    [FetchSystem::Datagrams, FetchSystem::DatagramsAndRead, FetchSystem::Rings];

fn profile() -> Profile {
    Profile::load("rcmp-testbed").unwrap()
}

/// Few clients that write under locks.
fn locked(writes_a_lock: u64) -> RcmpLoad {
    let operations = 256;
    RcmpLoad {
        clients: 1,
        pages: 4,
        operations,
        write_ppm: 1_000_000,
        writes_a_lock,
        ..RcmpLoad::paper()
    }
}

fn run(load: RcmpLoad) -> LoadStats {
    load::run(&profile(), &load).unwrap()
}

fn alone(bytes: u64) -> Calls {
    Calls { clients: 1, bytes, operations: 40 }
}

fn theirs(system: FetchSystem, calls: Calls) -> LoadStats {
    baselines::fetch(&profile(), system, calls).unwrap()
}

fn ours(way: FetchMethod, calls: Calls) -> LoadStats {
    rrpc::fetch(&profile(), way, calls).unwrap()
}

fn same(one: &LoadStats, two: &LoadStats) {
    assert_eq!(one.rate.to_bits(), two.rate.to_bits());
    assert_eq!(one.all, two.all);
}

#[test]
fn a_load_repeats_itself_with_stacks_and_without() {
    let load = RcmpLoad { coupled: buffered(256), write_ppm: 500_000, clients: 4, ..locked(8) };
    let called = RcmpLoad { is_by_calls: true, ..load };
    let plain = RcmpLoad { writes_a_lock: 0, ..load };
    for load in [load, called, plain] {
        let seen = run(load);
        same(&seen, &run(load));
        // The last section of a client may go beyond what was asked for.
        let measured = seen.all.count();
        assert!((4 * 2 * 128..4 * 2 * (128 + 8)).contains(&measured), "{measured}");
        assert_eq!(seen.reads.count() + seen.writes.count(), measured);
    }
    let calls = Calls { clients: 3, ..alone(2000) };
    for system in SYSTEMS {
        same(&theirs(system, calls), &theirs(system, calls));
    }
    same(&ours(FetchMethod::Rrpc, calls), &ours(FetchMethod::Rrpc, calls));
}

#[test]
fn the_write_buffer_gains_the_more_the_more_is_written_under_a_lock() {
    for path in [Path::Proxied, Path::OneSided] {
        let gain = |writes| {
            let load = RcmpLoad { path, ..locked(writes) };
            run(RcmpLoad { coupled: buffered(256), ..load }).rate / run(load).rate
        };
        let gains = [1, 8, 64].map(gain);
        println!("{path:?}: {gains:?}");
        assert!(gains[0] < gains[1] && gains[1] < gains[2], "{gains:?}");
        assert!(gains[2] > 1.0, "{gains:?}");
    }
}

#[test]
fn writes_that_are_too_long_for_the_buffer_are_as_without_it() {
    let load = RcmpLoad { item_bytes: 512, ..locked(8) };
    same(&run(RcmpLoad { coupled: buffered(256), ..load }), &run(load));
}

#[test]
fn a_rack_whose_memory_is_asked_for_serves_less_than_one_that_is_read() {
    let load = RcmpLoad { writes_a_lock: 0, clients: 8, ..locked(0) };
    for write_ppm in [0, 1_000_000] {
        let load = RcmpLoad { write_ppm, ..load };
        let called = run(RcmpLoad { is_by_calls: true, ..load });
        assert!(called.rate < run(load).rate, "{write_ppm}");
    }
}

#[test]
fn longer_data_takes_longer_whoever_fetches_it() {
    let sizes = [64, 512, 968, 1024, 4096, 16384];
    let rises = |what: &str, fetch: &dyn Fn(Calls) -> LoadStats| {
        let times = sizes.map(|bytes| fetch(alone(bytes)).mean_ns());
        println!("{what}: {times:?}");
        assert!(times[0] > 1000.0, "{what}: there and back in {} ns", times[0]);
        assert!(times.is_sorted() && times[0] < times[5], "{what}: {times:?}");
    };
    for system in SYSTEMS {
        rises(&format!("{system:?}"), &|calls| theirs(system, calls));
    }
    let read = FetchMethod::Call(FetchMode::OneSidedRead);
    for way in [FetchMethod::PlaceKnown, read, FetchMethod::Call(FetchMode::WriteBack)] {
        rises(&format!("{way:?}"), &|calls| ours(way, calls));
    }
}

#[test]
fn a_byte_too_much_for_a_datagram_costs_a_round_trip() {
    let time = |system, bytes| theirs(system, alone(bytes)).mean_ns();
    let step = |system| {
        let [fits, does_not] = [0, 1].map(|more| time(system, DATAGRAM_BYTES_MAX + more));
        does_not - fits
    };
    let short = time(FetchSystem::Datagrams, 1);
    let [datagrams, rings] = [FetchSystem::Datagrams, FetchSystem::Rings].map(step);
    assert!(datagrams > short / 2.0, "{datagrams} ns more, a short call takes {short} ns");
    assert!(rings < short / 10.0, "{rings} ns more for one byte");
    // Beyond that packets are asked for together: not a round trip each.
    let four = time(FetchSystem::Datagrams, 4 * DATAGRAM_BYTES_MAX);
    let two = time(FetchSystem::Datagrams, 2 * DATAGRAM_BYTES_MAX);
    assert!(four - two < 2.0 * datagrams, "{two} ns for two packets, {four} ns for four");
}

#[test]
fn a_call_and_a_read_take_two_round_trips_and_a_known_place_one() {
    let calls = alone(2048);
    let known = ours(FetchMethod::PlaceKnown, calls).mean_ns();
    let [written, read] = [FetchMode::WriteBack, FetchMode::OneSidedRead]
        .map(|mode| ours(FetchMethod::Call(mode), calls).mean_ns());
    let theirs = theirs(FetchSystem::DatagramsAndRead, calls).mean_ns();
    assert!(known < written && written < read, "{known}, {written}, {read} ns");
    assert!(theirs > known + 1000.0, "{known}, {theirs} ns");
}

fn parts(wanted: &[&str]) -> Repro {
    evaluate::<Rcmp>(&profile(), true, &|name| wanted.contains(&name), &mut |_| ()).unwrap()
}

/// What docs/repro-rcmp.md says of them, in a fifth of the operations.
#[test]
fn pages_that_move_gain_under_skew_and_lose_little_under_uniform_load() {
    let repro = parts(&["latencies of one access", "swapping"]);
    let [uniform, zipfian] =
        ["swap_gain_uniform", "swap_gain_zipfian"].map(|name| find(&repro, name));
    println!("uniform {}, zipfian {}", uniform.ours, zipfian.ours);
    assert!(zipfian.ours > 1.35, "{}", zipfian.ours);
    // The paper gains 5 % there: a loss is not that, however near.
    assert!((0.95..1.0).contains(&uniform.ours), "{}", uniform.ours);
    assert_eq!(uniform.is_met(), Some(false));
    // Its threshold decides nothing here, so that nothing collapses.
    assert_eq!(find(&repro, "swap_gain_uniform_at_1").is_met(), Some(false));
    // What went in is not counted as reproduced.
    let totals = repro.totals();
    assert_eq!((totals.set.met, totals.set.all), (3, 4), "the profile's own numbers");
    assert_eq!((totals.numbers.met, totals.numbers.all), (0, 2), "swapping by numbers");
    assert_eq!((totals.words.met, totals.words.all), (0, 1), "swapping by words");
    let origin = |name: &str| find(&repro, name).origin;
    assert_eq!(origin("dram_load"), Origin::Input);
    assert_eq!(origin("rdma_over_cxl"), Origin::Derived);
    assert_eq!(origin("swap_gain_zipfian"), Origin::Predicted);
}

#[test]
fn each_mechanism_adds_to_those_before_it() {
    let repro = parts(&["what each mechanism adds"]);
    for (name, is_met) in [
        ("two_layer_ring", Some(true)),
        ("swap", Some(true)),
        ("write_buffer", Some(true)),
        ("rrpc", None),
    ] {
        let figure = find(&repro, &format!("ablation_{name}"));
        println!("{name}: {}", figure.ours);
        assert!(figure.ours > 1.0, "{name}: {}", figure.ours);
        assert_eq!(figure.is_met(), is_met, "{name}");
    }
}

#[test]
fn a_rack_that_takes_everything_is_not_praised() {
    assert_eq!(same_work(&[100.0, 100.0]), 200.0);
    assert!(same_work(&[1_000_000.0, 10.0]) < 41.0);
}

fn find<'a>(repro: &'a Repro, name: &str) -> &'a Figure {
    let found = repro.figures.iter().find(|figure| figure.name == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_write_buffer_and_write_backs_gain_where_the_text_says_so_and_where_not_it_is_said() {
    let repro = parts(&["write buffer by size", "RRPC by size"]);
    let ours = |name: &str| find(&repro, name).ours;
    assert!(ours("write_buffer_gain_1_client") > 1.5, "{}", ours("write_buffer_gain_1_client"));
    // "Not obvious" above 256 B: ours gains there, and that is not as stated.
    for name in ["write_buffer_gain_1_client_512B", "write_buffer_gain_1_client_1024B"] {
        assert_eq!(find(&repro, name).is_met(), Some(false), "{name}: {}", ours(name));
    }
    // From 1 KiB on no call beats one with data that the home writes into the caller's buffer.
    assert!(ours("rrpc_over_erpc_least") > 1.5, "{}", ours("rrpc_over_erpc_least"));
    assert!(ours("rrpc_over_erpc_and_read_least") > 0.98);
    assert!(ours("rrpc_over_erpc_and_read_most") > 1.4);
    assert!(ours("erpc_969B_over_968B") < 0.9, "{}", ours("erpc_969B_over_968B"));
}
