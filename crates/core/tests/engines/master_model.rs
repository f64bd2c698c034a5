//! The master's engine against a small model: random commands, random crashes that rebuild it
//! from what it stored.

use crate::master_world::*;
use rackpool_core::master::ConnId;
use rackpool_core::wire::*;
use rackpool_core::{GAddr, PageId, RackId};
use rackpool_stats::random::Rng;
use std::collections::BTreeMap;

/// What the master must know, in plain maps.
struct Model {
    pages: BTreeMap<PageId, (PageHome, u64)>,
    regions: BTreeMap<u16, u64>,
    roots: BTreeMap<String, GAddr>,
    page_next: u64,
}

impl Model {
    fn resolve(&self, page: PageId) -> Resolved {
        match self.pages.get(&page) {
            None => Resolved::Unmapped,
            Some((home, region)) if self.regions[&home.rack.0] == *region => Resolved::Home(*home),
            Some((home, _)) => Resolved::Lost(home.rack),
        }
    }
}

fn commit_pages(world: &mut World, model: &mut Model, conn: ConnId, homes: Vec<PageHome>) {
    let rack = homes[0].rack.0;
    let region = model.regions[&rack];
    let fits = homes.iter().all(|home| {
        let same = |known: &(PageHome, u64)| *known == (*home, region);
        home.page.0 < model.page_next && model.pages.get(&home.page).is_none_or(same)
    });
    let answer = world.call(conn, MasterCall::CommitPages { homes: homes.clone() });
    assert_eq!(answer.is_ok(), fits, "{answer:?}");
    if fits {
        model.pages.extend(homes.iter().map(|home| (home.page, (*home, region))));
    }
}

/// A page moves into a rack from where it is, or from where it is not.
fn move_page(world: &mut World, model: &mut Model, conn: ConnId, to: PageHome, known: bool) {
    let page = to.page;
    let from = match model.resolve(page) {
        Resolved::Home(home) if known => home,
        _ => home(page, to.rack.0 ^ 1, page.0 + 500),
    };
    if model.resolve(page) == Resolved::Home(from) {
        model.pages.insert(page, (to, model.regions[&to.rack.0]));
    }
    let answer = world.call(conn, MasterCall::MovePage { from, to });
    assert_eq!(answer, Ok(MasterAnswer::Homes(vec![model.resolve(page)])));
}

/// A random command against engine and model.
fn random_command(world: &mut World, model: &mut Model, daemons: &[ConnId], random: &mut Rng) {
    let rack = u16::try_from(random.below(daemons.len() as u64)).unwrap();
    let conn = daemons[usize::from(rack)];
    let page = PageId(1 + random.below(model.page_next + 2));
    match random.below(10) {
        0 => {
            let count = 1 + random.below(5);
            assert_eq!(world.page_ids(conn, count).0, model.page_next);
            model.page_next += count;
        }
        1..=3 => {
            let count = 1 + random.below(4);
            let homes = (0..count).map(|n| home(PageId(page.0 + n), rack, page.0 + n));
            commit_pages(world, model, conn, homes.collect());
        }
        4 => {
            let pages: Vec<PageId> = (0..3).map(|n| PageId(page.0 + n)).collect();
            for page in &pages {
                if model.pages.get(page).is_some_and(|(home, _)| home.rack.0 == rack) {
                    model.pages.remove(page);
                }
            }
            let remove = MasterCall::RemovePages { rack: RackId(rack), pages };
            assert_eq!(world.call(conn, remove), Ok(MasterAnswer::Done));
        }
        5 | 6 => {
            let name = format!("name {}", random.below(6));
            let (expected, addr) = (random.below(3), random.below(3));
            let now = model.roots.get(&name).copied().unwrap_or_default();
            let then = if now == GAddr(expected) { GAddr(addr) } else { now };
            let answer = world.call(conn, set_root(&name, expected, addr));
            assert_eq!(answer, Ok(MasterAnswer::Root(then)));
            model.roots.insert(name, then);
        }
        7 | 8 => {
            let known = random.below(3) > 0;
            let to = home(page, rack, page.0 + random.below(3) * 100);
            move_page(world, model, conn, to, known);
        }
        _ => {
            // Proposed and never committed: as if a crash came between.
            world.submit(conn, set_root("never", 0, 1));
            world.master.take_batch();
        }
    }
}

fn check(world: &mut World, model: &Model, seed: u64) {
    for page in 0..model.page_next + 3 {
        let page = PageId(page);
        assert_eq!(world.resolve(page), model.resolve(page), "seed {seed}, page {page}");
    }
    let state = world.master.state();
    for (name, addr) in &model.roots {
        assert_eq!(state.root(name), *addr, "seed {seed}, {name}");
    }
    assert_eq!(state.root("never"), GAddr::NULL);
    assert_eq!(state.pages(), model.pages.len() as u64, "seed {seed}");
    let lost = model.pages.keys().filter(|p| matches!(model.resolve(**p), Resolved::Lost(_)));
    assert_eq!(state.pages_lost(), lost.count() as u64, "seed {seed}");
}

#[test]
fn the_engine_agrees_with_the_model_through_random_commands_and_crashes() {
    for seed in 1..=40u64 {
        println!("seed {seed}");
        let mut random = Rng::new(seed);
        let mut world = World::new();
        let (pages, regions, roots) = Default::default();
        let mut model = Model { pages, regions, roots, page_next: 1 };
        for _ in 0..12 {
            // Each life of the master: the racks join, some with a new region.
            world.wait_for_a_lease();
            world.now += 1;
            world.master.tick(world.now, &mut Vec::new());
            let mut daemons = Vec::new();
            for rack in 0..3 {
                let region = model.regions.entry(rack).or_insert(1);
                *region += u64::from(random.below(6) == 0);
                daemons.push(world.daemon(info(rack, *region)));
            }
            for _ in 0..random.below(30) {
                random_command(&mut world, &mut model, &daemons, &mut random);
            }
            check(&mut world, &model, seed);
            world.crash();
            check(&mut world, &model, seed);
        }
    }
}

#[test]
fn half_a_million_pages_are_stored_in_26_bytes_each_and_found_again() {
    let mut world = World::new();
    let frame_count = 1 << 19;
    let conn = world.daemon(RackInfo { frame_count, ..info(0, 1) });
    let first = world.page_ids(conn, u64::from(frame_count));
    for chunk in 0..128 {
        let page = |n: u64| PageId(first.0 + chunk * 4096 + n);
        let homes = (0..4096).map(|n| home(page(n), 0, n)).collect();
        assert_eq!(world.call(conn, MasterCall::CommitPages { homes }), Ok(MasterAnswer::Done));
    }
    let directory = world.master.state().directory();
    assert_eq!(directory.pages(), 1 << 19);
    let bytes = directory.memory_bytes();
    println!("{bytes} bytes in memory for {} pages", directory.pages());
    assert!(bytes < 24 << 19);
    let values = world.disk.iter().filter(|((_, key), _)| key.len() == 8);
    assert!(values.map(|(_, value)| value.len()).all(|bytes| bytes == 26));
    world.crash();
    assert_eq!(world.master.state().pages(), 1 << 19);
    assert!(matches!(world.resolve(first), Resolved::Home(_)));
}
