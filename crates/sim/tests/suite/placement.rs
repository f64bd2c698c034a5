//! Where new memory goes under each policy: the engines of client, daemon and master in virtual
//! time, with the policy that the master was given and that its welcome told the clients.

use rackpool_core::RackId;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::placement::Policy;
use rackpool_sim::device::Profile;
use rackpool_sim::run::{Config, guarded};
use rackpool_sim::time::Ps;
use rackpool_sim::world::performance::{self, Shape, World};
use rackpool_sim::world::run_seed;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The homes of pages that one client of rack 0 of three allocates one after the other, and the
/// calls to the master that picked a rack.
fn homes(policy: &str, pages: usize, frames: u32) -> (Vec<u16>, u64) {
    let shape = Shape { racks: 3, page_shift: 21, frames, seed: 5 };
    let policy: Policy = policy.parse().unwrap();
    let mut world = World::with_policy(&Profile::load("modern").unwrap(), shape, policy);
    let (homes, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let (told, ended) = (homes.clone(), done.clone());
    world.spawn(0, move |ctx, cluster| async move {
        // Daemons say how often they are accessed with their heartbeats, four a lease.
        let mut handle = performance::open(&ctx, &cluster, 0, 64).await;
        let bytes = handle.page_bytes();
        for _ in 0..pages {
            let addr = handle
                .alloc(bytes, Placement::Auto, AllocationKind::User)
                .await
                .expect("there is room");
            handle.write(addr, &[1; 8]).await.expect("it was just allocated");
            let page = handle.client().geometry().page(addr);
            let link = handle.client().translation(page).expect("it was just written to").link;
            let RackId(rack) = handle.client().rack_of(link);
            told.borrow_mut().push(rack);
            ctx.sleep(Ps::ms(300)).await;
        }
        ended.set(true);
    });
    world.run(|| done.get()).unwrap();
    let picks = world.cluster.master_calls.get().pick_rack;
    let homes = homes.borrow().clone();
    (homes, picks)
}

fn count(homes: &[u16], rack: u16) -> usize {
    homes.iter().filter(|home| **home == rack).count()
}

#[test]
fn the_default_fills_the_own_rack_first_and_asks_the_master_only_then() {
    let (found, picks) = homes("local-first", 12, 8);
    assert_eq!(found[..8], [0; 8]);
    assert_eq!(count(&found, 0), 8, "{found:?}");
    assert_eq!(picks, 4, "one for each allocation that the own rack has no room for");
}

#[test]
fn alternate_takes_turns_while_the_own_rack_has_room_and_then_goes_elsewhere() {
    let (found, picks) = homes("alternate+round-robin", 12, 4);
    assert_eq!(found, [0, 1, 0, 2, 0, 1, 0, 2, 1, 2, 1, 2]);
    assert_eq!(picks, 8);
}

#[test]
fn choices_among_all_racks_include_the_own_one() {
    let (found, picks) = homes("round-robin", 6, 8);
    assert_eq!((found, picks), (vec![0, 1, 2, 0, 1, 2], 6));
    let (found, picks) = homes("random", 18, 16);
    assert_eq!(picks, 18);
    for rack in 0..3 {
        assert!(count(&found, rack) >= 2, "{found:?}");
    }
    assert_eq!(homes("random", 18, 16).0, found, "it repeats itself");
}

#[test]
fn smart_idle_leaves_the_rack_alone_that_is_accessed_most() {
    // At each first touch the client asks its own rack's daemon where the page is.
    for policy in ["smart-idle", "smart-idle:300ms"] {
        let (found, _) = homes(policy, 18, 16);
        assert_eq!(found[..3], [0, 1, 2], "{policy}: the first ones take turns");
        assert!(
            count(&found, 0) <= 3 && count(&found, 1) >= 4 && count(&found, 2) >= 4,
            "{found:?}"
        );
        assert_eq!(homes(policy, 18, 16).0, found, "{policy}: it repeats itself");
    }
}

#[test]
fn least_loaded_keeps_racks_alike() {
    let (found, _) = homes("least-loaded", 12, 8);
    assert_eq!([0, 1, 2].map(|rack| count(&found, rack)), [4, 4, 4], "{found:?}");
}

#[test]
fn checkers_find_nothing_under_any_policy() {
    for placement in ["alternate+smart-idle", "random", "smart-idle:20ms", "least-loaded"] {
        let placement = placement.parse().unwrap();
        let config = Config { operations: 300, placement, ..Config::default() };
        for seed in 1..=5 {
            let failure = guarded(&run_seed, &config, seed).failure;
            assert_eq!(failure, None, "{}", config.replay_command(seed));
        }
    }
}
