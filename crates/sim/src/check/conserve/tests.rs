//! A pool in order, and each way in which it can be out of order.

use super::*;
use crate::time::Ps;
use rackpool_core::addr::{FrameIndex, PageGeometry, RackId};
use rackpool_core::layout::{FrameWord, RegionLayout, frame_word, table_word};
use std::collections::BTreeMap;

const SHIFT: u8 = 12;

fn frame(index: u32, page: u64) -> FrameAudit {
    let free = page == 0;
    FrameAudit {
        frame: index,
        state: if free { FrameState::Free } else { FrameState::Home },
        page,
        generation: if free { 0 } else { 100 + u64::from(index) },
        shift: 0,
        first: true,
        span: 1,
        owner: 0,
        table_generation: if free { 0 } else { 100 + u64::from(index) },
        backed: Some(!free),
        objects: Vec::new(),
    }
}

/// Rack 0: page 5 alone, pages 8 and 9 as a run of session 77; rack 1: page 20 with two objects of
/// 256 bytes.
fn pool() -> PoolAudit {
    let mut run = [frame(1, 8), frame(2, 9)];
    (run[0].span, run[0].owner) = (2, 77);
    (run[1].first, run[1].span, run[1].owner) = (false, 1, 77);
    let [first, second] = run;
    let mut slab = frame(0, 20);
    (slab.shift, slab.objects) = (8, vec![0, 3]);
    let homes = [(5, 0, 0), (8, 0, 1), (9, 0, 2), (20, 1, 0)];
    let home = |(page, rack, frame): (u64, u16, u32)| HomeAudit {
        page,
        rack,
        frame,
        generation: 100 + u64::from(frame),
        lost: false,
    };
    let lost = HomeAudit { page: 4, rack: 1, frame: 0, generation: 3, lost: true };
    let allocation = |addr, bytes, owner| AllocationAudit { addr, bytes, owner, certain: true };
    PoolAudit {
        page_shift: SHIFT,
        racks: vec![
            rack(0, vec![frame(0, 5), first, second, frame(3, 0)], (2, 3 << SHIFT), &[77]),
            rack(1, vec![slab, frame(1, 0)], (2, 512), &[]),
        ],
        directory: DirectoryAudit { homes: homes.map(home).into_iter().chain([lost]).collect() },
        allocations: vec![
            allocation(5 << SHIFT, 4096, 0),
            allocation(8 << SHIFT, 5000, 77),
            allocation(20 << SHIFT, 200, 0),
            allocation((20 << SHIFT) + 3 * 256, 256, 0),
        ],
        unclaimed_max: 0,
        loses_parts: false,
    }
}

fn rack(rack: u16, frames: Vec<FrameAudit>, sums: (u64, u64), sessions: &[u64]) -> RackAudit {
    let free = frames.iter().filter(|frame| frame.state == FrameState::Free).count() as u64;
    let stats = DaemonStats {
        rack: RackId(rack),
        frames: frames.len() as u64,
        frames_free: free,
        frames_slab: frames.iter().filter(|frame| frame.shift != 0).count() as u64,
        allocations: sums.0,
        allocated_bytes: sums.1,
        slots_used: sessions.len() as u64,
        ..DaemonStats::default()
    };
    let sessions = sessions.to_vec();
    RackAudit { rack, frames, stats, sessions_expected: sessions.clone(), sessions }
}

#[test]
fn a_pool_in_order_passes() {
    assert_eq!(check(&pool(), Ps::ms(1)), Ok(()));
}

#[test]
fn every_disorder_is_found_and_named() {
    type Damage = fn(&mut PoolAudit);
    let damages: [(&str, Damage); 24] = [
        ("still Pending", |p| p.racks[0].frames[3].state = FrameState::Pending),
        ("still Freeing", |p| p.racks[0].frames[0].state = FrameState::Freeing),
        ("still has memory", |p| p.racks[0].frames[3].backed = Some(true)),
        ("has no memory", |p| p.racks[0].frames[0].backed = Some(false)),
        ("free frame 3 has generation", |p| p.racks[0].frames[3].table_generation = 9),
        ("in the table 0", |p| p.racks[0].frames[0].table_generation = 0),
        ("is in two frames", |p| {
            let frame = &mut p.racks[0].frames[0];
            (frame.generation, frame.table_generation) = (101, 101);
        }),
        ("which is gone", |p| p.racks[0].frames[0].owner = 78),
        ("its client is gone", |p| p.racks[0].sessions_expected.clear()),
        ("has no record", |p| p.racks[1].sessions_expected.push(5)),
        ("has two homes", |p| p.racks[1].frames[0].page = 5),
        ("does not hold it", |p| p.racks[0].frames[0] = frame(0, 0)),
        ("the directory does not know", |p| _ = p.directory.homes.remove(0)),
        ("has page 5 twice", |p| p.directory.homes.push(p.directory.homes[0])),
        ("the directory says", |p| p.directory.homes[0].generation = 1),
        ("calls page 5 lost", |p| p.directory.homes[0].lost = true),
        ("its page 1 is not there", |p| p.racks[0].frames[2].span = 7),
        ("belongs to no run", |p| p.racks[0].frames[1].span = 1),
        ("1 frames in quarantine, there are 0", |p| p.racks[0].stats.frames_quarantined = 1),
        ("3 allocations, there are 2", |p| p.racks[0].stats.allocations = 3),
        ("which no client freed", |p| {
            p.racks[1].frames[0].objects.pop();
            (p.racks[1].stats.allocations, p.racks[1].stats.allocated_bytes) = (1, 256);
        }),
        ("overlap", |p| p.allocations[2].bytes = 800),
        ("belongs to session 77, not 0", |p| p.allocations[1].owner = 0),
        ("1 pieces of memory have leaked, 0 may", |p| _ = p.allocations.remove(0)),
    ];
    for (says, damage) in damages {
        let mut pool = pool();
        damage(&mut pool);
        let text = check(&pool, Ps::ms(1)).expect_err(says).text;
        assert!(text.contains(says), "`{says}` is not in: {text}");
    }
}

#[test]
fn what_is_not_known_is_allowed_either_way_and_counted() {
    let mut unsure = pool();
    unsure.allocations[0].certain = false;
    assert_eq!(check(&unsure, Ps::ms(1)), Ok(()));
    unsure.allocations.push(AllocationAudit { addr: 1 << 30, bytes: 8, owner: 0, certain: false });
    assert_eq!(check(&unsure, Ps::ms(1)), Ok(()));
    let mut untaken = pool();
    untaken.allocations.remove(3);
    untaken.unclaimed_max = 1;
    assert_eq!(check(&untaken, Ps::ms(1)), Ok(()));
    untaken.allocations.remove(2);
    assert!(check(&untaken, Ps::ms(1)).is_err());
}

#[test]
fn frames_are_read_from_the_bytes_of_a_region() {
    let pages = PageGeometry::new(SHIFT).unwrap();
    let layout = RegionLayout { pages, frame_count: 3 };
    let mut words = BTreeMap::new();
    let mut put =
        |frame, word, value: u64| words.insert(frame_word(FrameIndex(frame), word), value);
    put(1, FrameWord::Page, 20);
    put(1, FrameWord::Generation, 7);
    put(1, FrameWord::State, 2 | 8 << 8 | 1 << 16 | 1 << 32);
    put(1, FrameWord::Owner, 55);
    words.insert(layout.bitmap_offset(FrameIndex(1)), 0b1001);
    let word = |offset| words.get(&offset).copied().unwrap_or(0);
    let table = |offset| u64::from(offset == table_word(FrameIndex(1))) * 7;
    let frames = frames_of(&layout, word, table, |frame| Some(frame == 1)).unwrap();
    assert_eq!(frames.len(), 3);
    let expected = FrameAudit {
        shift: 8,
        owner: 55,
        generation: 7,
        table_generation: 7,
        objects: vec![0, 3],
        ..frame(1, 20)
    };
    assert_eq!(frames[1], expected);
    assert_eq!((frames[0].state, frames[0].backed), (FrameState::Free, Some(false)));
    let broken = |_| 9u64;
    let error = frames_of(&layout, broken, table, |_| None).unwrap_err();
    assert_eq!(error, "frame 0 has the unknown state 9");
}
