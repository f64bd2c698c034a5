//! Choices computed by hand, for the module above.

use super::*;

const NOBODY: RackId = RackId(u16::MAX);
const CHOICES: [Choice; 6] = [
    Choice::Random,
    Choice::LeastLoaded,
    Choice::RoundRobin,
    Choice::SmartIdle(Window::PerChoice),
    Choice::SmartIdle(Window::Ms(10)),
    Choice::Even(Window::Us(10)),
];

/// Racks with these free bytes of 100 each.
fn racks(free: &[u64]) -> Vec<Candidate> {
    let rack = |(i, &free_bytes): (usize, &u64)| Candidate {
        rack: RackId(u16::try_from(i).unwrap()),
        alive: true,
        free_bytes,
        used_bytes: 100 - free_bytes,
        promised_bytes: 0,
    };
    free.iter().enumerate().map(rack).collect()
}

fn pick(choice: Choice, racks: &[Candidate], own: RackId, chooser: &mut Chooser) -> Option<u16> {
    let request = PickRequest { own, bytes: 1, tried: &[] };
    pick_rack(choice, racks, request, 0, chooser).map(|rack| rack.0)
}

#[test]
fn dead_full_tried_and_own_racks_are_never_chosen() {
    let mut racks = racks(&[100, 100, 100, 10, 0, 100]);
    racks[1].alive = false;
    for choice in CHOICES {
        let mut chooser = Chooser::new(7);
        for turn in 0..100 {
            chooser.note_accesses(RackId(5), turn * 1_000);
            let request = PickRequest { own: RackId(0), bytes: 50, tried: &[RackId(2)] };
            let got = pick_rack(choice, &racks, request, turn * 1_000_000, &mut chooser);
            assert_eq!(got, Some(RackId(5)), "{choice:?}");
        }
        let request = |bytes| PickRequest { own: RackId(0), bytes, tried: &[] };
        let none = pick_rack(choice, &racks, request(101), 0, &mut chooser);
        assert_eq!(none, None, "{choice:?}");
        assert_eq!(pick_rack(choice, &[], request(0), 0, &mut chooser), None);
    }
}

#[test]
fn the_own_rack_is_one_among_all_when_it_is_not_named() {
    let racks = racks(&[50, 50, 50]);
    for choice in CHOICES {
        let mut chooser = Chooser::new(3);
        let mut seen: Vec<u16> =
            (0..100).filter_map(|_| pick(choice, &racks, NOBODY, &mut chooser)).collect();
        seen.sort_unstable();
        seen.dedup();
        let expected: &[u16] = match choice {
            // Nothing is ever promised here, so the emptiest stays the emptiest, and of idle
            // racks the first two are looked at, by turns.
            Choice::LeastLoaded => &[0],
            _ => &[0, 1, 2],
        };
        assert_eq!(seen, expected, "{choice:?}");
    }
}

#[test]
fn random_choices_reach_every_rack_about_equally_and_follow_from_the_seed() {
    let racks = racks(&[1, 1, 1, 1, 1]);
    let run = |seed| {
        let mut chooser = Chooser::new(seed);
        let pick = |_| pick(Choice::Random, &racks, RackId(0), &mut chooser).unwrap();
        (0..4000).map(pick).collect::<Vec<u16>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    for rack in 1..5 {
        let count = run(1).iter().filter(|&&r| r == rack).count();
        assert!((800..1200).contains(&count), "rack {rack}: {count} of 4000");
    }
}

#[test]
fn least_loaded_takes_the_emptiest_and_counts_what_it_gave_away() {
    let mut racks = racks(&[9, 3, 8, 8]);
    let mut chooser = Chooser::new(0);
    // (promised to racks 0 to 3, the choice of rack 0's client)
    for (promised, chosen) in [
        ([0, 0, 0, 0], 2),
        ([0, 0, 1, 0], 3),
        ([0, 0, 6, 6], 1),
        ([0, 0, 99, 99], 1),
        ([0, 3, 8, 9], 1),
    ] {
        for (rack, promised_bytes) in racks.iter_mut().zip(promised) {
            rack.promised_bytes = promised_bytes;
        }
        let got = pick(Choice::LeastLoaded, &racks, RackId(0), &mut chooser);
        assert_eq!(got, Some(chosen), "{promised:?}");
    }
}

#[test]
fn round_robin_takes_turns_and_leaves_the_own_rack_out() {
    let racks = racks(&[9, 3, 8, 8]);
    let mut chooser = Chooser::new(0);
    let mut next = |own| pick(Choice::RoundRobin, &racks, own, &mut chooser).unwrap();
    let got: Vec<u16> = (0..5).map(|_| next(RackId(2))).collect();
    assert_eq!(got, [0, 1, 3, 0, 1]);
    assert_eq!(next(RackId(1)), 2, "the turn goes on with each request");
}

/// Six pools, as in the source: m = ceil(log2 6) = 3 of the idlest, then the least used that is
/// not the last choice. By hand.
#[test]
fn smart_idle_takes_the_least_used_of_the_idlest_racks() {
    let choice = Choice::SmartIdle(Window::PerChoice);
    let mut racks = racks(&[90, 80, 70, 60, 50, 40]);
    let mut chooser = Chooser::new(0);
    let mut totals = [0u64; 6];
    let mut turn = |racks: &[Candidate], accesses: [u64; 6]| {
        for (rack, (total, more)) in totals.iter_mut().zip(accesses).enumerate() {
            *total += more;
            chooser.note_accesses(RackId(u16::try_from(rack).unwrap()), *total);
        }
        pick(choice, racks, NOBODY, &mut chooser).unwrap()
    };
    // The first six take turns, whatever is accessed.
    let first: Vec<u16> = (0..6).map(|_| turn(&racks, [0; 6])).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 5]);
    // No rack was accessed: idlest are 0, 1, 2 by number; least used is 0.
    assert_eq!(turn(&racks, [0; 6]), 0);
    // The same, but 0 was the last choice: 1.
    assert_eq!(turn(&racks, [0; 6]), 1);
    // 30 accesses each of 0, 1 and 2: idlest are 3, 4, 5; least used is 3.
    assert_eq!(turn(&racks, [30, 30, 30, 0, 0, 0]), 3);
    // Frequencies now in thirds: 0 to 2 have 0 * 3 + 30 = 30, 3 has 3 * 9 = 27, 4 has 3 * 11 = 33,
    // 5 has 0. Idlest: 5 (0), 3 (27), 0 (30); 3 is the last choice; least used of 5 and 0: 0.
    assert_eq!(turn(&racks, [0, 0, 0, 9, 11, 0]), 0);
    // 0, 1, 2: 30 (two windows ago); 3: 9; 4: 11; 5: 0. Idlest: 5, 3, 4. Rack 3 is filled.
    racks[3].used_bytes = 99;
    assert_eq!(turn(&racks, [0; 6]), 4, "50 used, of 5 with 60 and 3 with 99");
    // Rack 5 alone is idle and 4 was the last choice: 3 and 5 are left; 5 is less used, until it
    // was promised more.
    racks[5].promised_bytes = 40;
    assert_eq!(turn(&racks, [0; 6]), 3);
}

#[test]
fn smart_idle_looks_at_ceil_log2_of_the_racks_and_at_one_at_least() {
    for (count, m) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (8, 3), (9, 4), (1024, 10)] {
        assert_eq!(ceil_log2(count), m, "{count} racks");
    }
    let choice = Choice::SmartIdle(Window::PerChoice);
    let (one, two) = (racks(&[10]), racks(&[10, 20]));
    let mut chooser = Chooser::new(0);
    let got: Vec<_> = (0..3).map(|_| pick(choice, &one, NOBODY, &mut chooser)).collect();
    assert_eq!(got, [Some(0); 3], "the last choice again, if there is no other");
    // Of two racks one is looked at: the idler one, even if it is fuller and was the last choice.
    let mut chooser = Chooser::new(0);
    for rack in [0, 1] {
        chooser.note_accesses(RackId(rack), 0);
    }
    let first: Vec<_> = (0..2).map(|_| pick(choice, &two, NOBODY, &mut chooser)).collect();
    assert_eq!(first, [Some(0), Some(1)]);
    for total in 1..4 {
        chooser.note_accesses(RackId(1), total * 10);
        assert_eq!(pick(choice, &two, NOBODY, &mut chooser), Some(0));
    }
}

#[test]
fn a_full_rack_is_passed_over_for_the_next_idle_one() {
    let choice = Choice::SmartIdle(Window::PerChoice);
    let mut racks = racks(&[0, 0, 0, 10, 20]);
    let mut chooser = Chooser::new(0);
    let got: Vec<_> = (0..5).map(|_| pick(choice, &racks, NOBODY, &mut chooser).unwrap()).collect();
    // Two have room: two by turns, then one is looked at.
    assert_eq!(got, [3, 4, 3, 3, 3]);
    racks[3].alive = false;
    assert_eq!(pick(choice, &racks, NOBODY, &mut chooser), Some(4));
}

#[test]
fn even_keeps_bytes_level_then_each_askers_and_then_looks_at_traffic() {
    let choice = Choice::Even(Window::PerChoice);
    let mut racks = racks(&[50, 50, 50, 30]);
    let mut chooser = Chooser::new(0);
    let ask = |racks: &mut [Candidate], chooser: &mut Chooser, own: u16| {
        let request = PickRequest { own: RackId(own), bytes: 10, tried: &[] };
        let got = pick_rack(choice, racks, request, 0, chooser).unwrap();
        racks[usize::from(got.0)].used_bytes += 10;
        got.0
    };
    for rack in 0..4 {
        chooser.note_accesses(RackId(rack), 0);
    }
    chooser.note_accesses(RackId(0), 9);
    // Rack 3 is 20 fuller: not level. Rack 0 was accessed.
    let first: Vec<u16> = (0..3).map(|_| ask(&mut racks, &mut chooser, 90)).collect();
    assert_eq!(first, [1, 2, 0]);
    // All three have 60 now, rack 3 has 70, one request more: level. No client asked it for 90.
    assert_eq!(ask(&mut racks, &mut chooser, 90), 3);
    // Another asker has nothing anywhere, and the accesses of rack 0 are long ago: by number.
    assert_eq!(ask(&mut racks, &mut chooser, 91), 0);
    // 70, 60, 60, 80: rack 3 is not level, and rack 0 has something of 91.
    assert_eq!(ask(&mut racks, &mut chooser, 91), 1);
}

#[test]
fn the_order_says_whose_turn_it_is() {
    for (order, own, other) in [
        (Order::LocalFirst, true, true),
        (Order::Alternate, true, false),
        (Order::Anywhere, false, false),
    ] {
        assert_eq!((order.own_first(true), order.own_first(false)), (own, other));
    }
}

#[test]
fn names_are_read_as_they_are_written_and_nothing_else_is() {
    let policy = |order, choice| Policy { order, choice };
    for (name, meant) in [
        ("local-first", Policy::default()),
        ("alternate", policy(Order::Alternate, Choice::Random)),
        ("random", policy(Order::Anywhere, Choice::Random)),
        ("round-robin", policy(Order::Anywhere, Choice::RoundRobin)),
        ("least-loaded", policy(Order::Anywhere, Choice::LeastLoaded)),
        ("smart-idle", policy(Order::Anywhere, Choice::SmartIdle(Window::PerChoice))),
        ("local-first+round-robin", policy(Order::LocalFirst, Choice::RoundRobin)),
        ("alternate+smart-idle:5ms", policy(Order::Alternate, Choice::SmartIdle(Window::Ms(5)))),
        ("smart-idle:417us", policy(Order::Anywhere, Choice::SmartIdle(Window::Us(417)))),
        ("even", policy(Order::Anywhere, Choice::Even(Window::PerChoice))),
        ("alternate+even:250us", policy(Order::Alternate, Choice::Even(Window::Us(250)))),
    ] {
        assert_eq!(name.parse::<Policy>(), Ok(meant), "{name}");
        assert_eq!(meant.to_string(), name);
    }
    assert_eq!("anywhere+random".parse::<Policy>().unwrap().to_string(), "random");
    for wrong in [
        "",
        "+",
        "near",
        "random+alternate",
        "smart-idle:0ms",
        "smart-idle:+5ms",
        "smart-idle:5s",
        "even:0us",
        "random:5ms",
    ] {
        assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
    }
}
