//! Calls for data in the daemon's engine: what is carried, what is written back, what is refused,
//! and that no number of a message is believed.

use crate::daemon_world::{PAGE, RACK, Rig};
use proptest::prelude::*;
use rackpool_core::addr::Generation;
use rackpool_core::rrpc::{Bytes, Carried, Fetch, FetchExtent, Fetched, INLINE_BYTES_MAX};
use rackpool_core::seam::{Exposure, Mutation, RemoteAddr};
use rackpool_core::wire::{PageHome, Reply, Request};
use rackpool_core::{Error, GAddr, Result};

const LOCAL: u32 = 0;
const REMOTE: u32 = 1;

fn rig() -> Rig {
    let mut rig = Rig::new(16);
    rig.join(LOCAL);
    rig.join_remote(REMOTE);
    rig
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code()
}

fn ask(rig: &mut Rig, name: u32, fetch: Fetch) -> Result<Fetched> {
    match rig.ask(name, Request::Fetch(fetch))? {
        Reply::Fetched(fetched) => Ok(fetched),
        other => panic!("{other:?}"),
    }
}

fn bytes_of(addr: GAddr, bytes: u64, inline_bytes_max: u32) -> Fetch {
    Fetch { addr, extent: FetchExtent::Bytes(bytes), inline_bytes_max, into: None }
}

fn object(addr: GAddr, inline_bytes_max: u32) -> Fetch {
    Fetch { addr, extent: FetchExtent::Object, inline_bytes_max, into: None }
}

fn home_of(rig: &Rig, addr: GAddr) -> PageHome {
    rig.world.master.pages[&rig.world.layout.pages.page(addr).0]
}

/// Words with bytes that differ at every place.
fn fill(rig: &Rig, addr: GAddr, bytes: u64) -> Vec<u8> {
    let first = rig.world.offset_of(addr);
    let words = (0..bytes / 8).map(|at| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for (at, word) in words.clone().enumerate() {
        rig.world.pages_mem().poke(first + 8 * at as u64, word);
    }
    words.flat_map(u64::to_le_bytes).collect()
}

#[test]
fn data_up_to_the_threshold_comes_with_the_answer_and_more_is_named_only() {
    let mut rig = rig();
    let addr = rig.alloc(LOCAL, PAGE, false);
    let data = fill(&rig, addr, PAGE);
    for name in [LOCAL, REMOTE] {
        for (offset, bytes) in [(0, 0), (0, 8), (24, 40), (0, 64), (PAGE - 8, 8), (PAGE - 1, 0)] {
            let at = GAddr(addr.0 + offset);
            let fetched = ask(&mut rig, name, bytes_of(at, bytes, 64)).unwrap();
            let start = offset as usize;
            let expected = data[start..start + bytes as usize].to_vec();
            let home = home_of(&rig, addr);
            let carried = Carried::Inline(Bytes(expected));
            assert_eq!(fetched, Fetched { home, bytes, carried });
        }
        let fetched = ask(&mut rig, name, bytes_of(addr, 65, 64)).unwrap();
        assert_eq!((fetched.bytes, fetched.carried), (65, Carried::Not));
    }
    assert_eq!(home_of(&rig, addr).rack, RACK);
}

#[test]
fn hostile_numbers_are_refused_with_the_limit_or_bounded() {
    let mut rig = Rig::with_pages(64 << 10, 8);
    rig.join(LOCAL);
    let page = 64 << 10;
    let addr = rig.alloc(LOCAL, page, false);
    for (offset, bytes) in [(0, page + 1), (1, page), (page - 1, 2), (8, u64::MAX), (0, 1 << 63)] {
        let at = GAddr(addr.0 + offset);
        let refused = ask(&mut rig, LOCAL, bytes_of(at, bytes, u32::MAX));
        let limit = page - offset;
        assert!(
            matches!(refused, Err(Error::OutOfBounds { limit_bytes, .. }) if limit_bytes == limit),
            "{bytes} bytes at {offset}: {refused:?}"
        );
    }
    // However much is wished for, no more than a message holds is carried.
    let most = u64::from(INLINE_BYTES_MAX);
    let fetched = ask(&mut rig, LOCAL, bytes_of(addr, most, u32::MAX)).unwrap();
    assert!(matches!(fetched.carried, Carried::Inline(data) if data.0.len() as u64 == most));
    let fetched = ask(&mut rig, LOCAL, bytes_of(addr, most + 1, u32::MAX)).unwrap();
    assert_eq!(fetched.carried, Carried::Not);
    let nowhere = [GAddr::NULL, GAddr(8), GAddr(u64::MAX), GAddr(addr.0 + page)];
    for at in nowhere {
        assert_eq!(code(ask(&mut rig, LOCAL, bytes_of(at, 1, 64))), "not-mapped", "{at}");
        assert_eq!(
            code(rig.ask(LOCAL, Request::Store { addr: at, data: Bytes(vec![1]) })),
            "not-mapped"
        );
    }
    let past = Request::Store { addr: GAddr(addr.0 + page - 1), data: Bytes(vec![1; 2]) };
    assert_eq!(code(rig.ask(LOCAL, past)), "out-of-bounds");
}

#[test]
fn a_store_is_in_memory_when_it_is_answered() {
    let mut rig = rig();
    let addr = rig.alloc(LOCAL, PAGE, false);
    let home = home_of(&rig, addr);
    let data = Bytes(vec![7; 16]);
    let stored = rig.ask(REMOTE, Request::Store { addr: GAddr(addr.0 + 8), data });
    assert_eq!(stored, Ok(Reply::Stored(home)));
    let first = rig.world.offset_of(addr);
    let words: Vec<u64> = (0..4).map(|at| rig.world.pages_mem().peek(first + 8 * at)).collect();
    let sevens = 0x0707_0707_0707_0707;
    assert_eq!((words[1], words[2]), (sevens, sevens));
    assert!(words[0] != sevens && words[3] != sevens);
}

#[test]
fn an_object_is_as_long_as_its_prefix_says_if_that_fits_into_its_allocation() {
    let mut rig = rig();
    let small = rig.alloc(LOCAL, 256, false);
    let other = rig.alloc(LOCAL, 256, false);
    let run = rig.alloc(LOCAL, 3 * PAGE, false);
    let prefix = |rig: &Rig, addr: GAddr, bytes: u64| {
        rig.world.pages_mem().poke(rig.world.offset_of(addr), bytes);
    };
    // In a slab page the object of the class is the limit, from wherever it is asked.
    for (at, room) in [(small, 256), (GAddr(small.0 + 64), 192), (other, 256)] {
        for (bytes, fits) in [(0, true), (room - 8, true), (room - 7, false), (u64::MAX, false)] {
            prefix(&rig, at, bytes);
            let found = ask(&mut rig, REMOTE, object(at, 64));
            if fits {
                assert_eq!(found.unwrap().bytes, bytes);
            } else {
                let Err(Error::OutOfBounds { limit_bytes, .. }) = found else {
                    panic!("{bytes} bytes at {at}: {found:?}")
                };
                assert_eq!(limit_bytes, room);
            }
        }
        prefix(&rig, at, 0);
    }
    // In a run all of its pages are; what crosses a page is never carried.
    for (offset, room) in [(0, 3 * PAGE), (PAGE + 16, 2 * PAGE - 16), (3 * PAGE - 8, 8)] {
        let at = GAddr(run.0 + offset);
        prefix(&rig, at, room - 8);
        let found = ask(&mut rig, REMOTE, object(at, u32::MAX)).unwrap();
        assert_eq!(found.bytes, room - 8);
        assert_eq!(found.carried == Carried::Not, room > PAGE, "{offset}");
        prefix(&rig, at, room - 7);
        assert_eq!(code(ask(&mut rig, REMOTE, object(at, 64))), "out-of-bounds");
    }
    assert_eq!(code(ask(&mut rig, REMOTE, object(GAddr(small.0 + 4), 64))), "misaligned");
}

#[test]
fn the_answer_is_that_of_the_moment_freed_memory_and_pages_on_their_way_are_refused() {
    let mut rig = rig();
    let object_addr = rig.alloc(LOCAL, 256, false);
    let page_addr = rig.alloc(LOCAL, PAGE, false);
    rig.free(LOCAL, object_addr, 256);
    assert_eq!(code(ask(&mut rig, REMOTE, object(object_addr, 64))), "not-mapped");
    let home = home_of(&rig, page_addr);
    let out = Request::MoveOut { page: home.page, generation: home.generation };
    assert!(matches!(rig.ask(LOCAL, out), Ok(Reply::Shut { .. })));
    assert_eq!(code(ask(&mut rig, REMOTE, bytes_of(page_addr, 8, 64))), "moving");
    let store = Request::Store { addr: page_addr, data: Bytes(vec![1]) };
    assert_eq!(code(rig.ask(REMOTE, store)), "moving");
    rig.ask(LOCAL, Request::MoveSettle { page: home.page }).unwrap();
    rig.quiesce();
    let again = ask(&mut rig, REMOTE, bytes_of(page_addr, 8, 64)).unwrap();
    assert_ne!(again.home.generation, home.generation, "opened with a new generation");
    rig.free(LOCAL, page_addr, PAGE);
    assert_eq!(code(ask(&mut rig, REMOTE, bytes_of(page_addr, 8, 64))), "not-mapped");
}

#[test]
fn without_the_look_at_the_page_a_page_that_has_left_is_answered_for() {
    let answers = |mutation| {
        let mut rig = rig();
        let addr = rig.alloc(LOCAL, PAGE, false);
        let home = home_of(&rig, addr);
        rig.world.fuse.answers.mutation.set(mutation);
        let out = Request::MoveOut { page: home.page, generation: home.generation };
        rig.ask(LOCAL, out).unwrap();
        ask(&mut rig, REMOTE, bytes_of(addr, 8, 64)).is_ok()
    };
    assert!(!answers(None));
    assert!(answers(Some(Mutation::FetchUnchecked)));
}

#[test]
fn a_write_back_names_memory_under_its_key_and_no_more_than_is_exposed() {
    let mut rig = rig();
    let addr = rig.alloc(LOCAL, PAGE, false);
    let home = home_of(&rig, addr);
    let to = |bytes| Some(Exposure { id: 3, key: 9, bytes });
    let at = GAddr(addr.0 + 8);
    let fetch = |bytes, into| Fetch { into, ..bytes_of(at, bytes, 64) };
    let fetched = ask(&mut rig, REMOTE, fetch(1000, to(1000))).unwrap();
    assert_eq!((fetched.bytes, fetched.carried), (1000, Carried::Written));
    let (_, job) = rig.world.write_backs.pop().unwrap();
    let from = RemoteAddr { offset: rig.world.offset_of(at), key: home.generation };
    assert_eq!((job.from, job.bytes, Some(job.to)), (from, 1000, to(1000)));
    let Ok(Reply::Fetched(refused)) = job.refused.reply else { panic!("{:?}", job.refused) };
    assert_eq!((refused.home, refused.bytes, refused.carried), (home, 1000, Carried::Not));
    assert_eq!(job.refused.seq, job.done.seq);
    // Too small, short enough to be carried, or a client that the fabric does not reach.
    for (name, bytes, into) in
        [(REMOTE, 1000, to(999)), (REMOTE, 64, to(64)), (LOCAL, 1000, to(1000)), (REMOTE, 65, None)]
    {
        let fetched = ask(&mut rig, name, fetch(bytes, into)).unwrap();
        assert_ne!(fetched.carried, Carried::Written);
        assert!(rig.world.write_backs.is_empty());
    }
    assert_ne!(home.generation, Generation(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn whatever_is_asked_is_answered_from_within_its_page_or_allocation(
        asked in prop::collection::vec(
            (0u64..4 * PAGE, any::<u64>(), any::<u32>(), 0u8..4, any::<u64>()), 1..20,
        ),
    ) {
        let mut rig = rig();
        let small = rig.alloc(LOCAL, 512, false);
        let run = rig.alloc(LOCAL, 2 * PAGE, false);
        for (offset, bytes, inline_bytes_max, kind, hostile) in asked {
            let base = if kind & 1 == 0 { small } else { run };
            let addr = GAddr((base.0 + offset) & !u64::from(kind & 2 == 0) .wrapping_mul(7));
            let bytes = bytes >> (hostile % 64);
            let known = rig.world.master.pages.contains_key(&rig.world.layout.pages.page(addr).0);
            if known && addr.0.is_multiple_of(8) {
                let at = rig.world.offset_of(addr);
                rig.world.pages_mem().poke(at, hostile >> (bytes % 64));
            }
            let is_object = kind & 2 == 0;
            let extent = if is_object { FetchExtent::Object } else { FetchExtent::Bytes(bytes) };
            let into = Some(Exposure { id: 0, key: 1, bytes: hostile % 5000 });
            match ask(&mut rig, REMOTE, Fetch { addr, extent, inline_bytes_max, into }) {
                Ok(fetched) => {
                    let length = fetched.bytes;
                    prop_assert!(length <= 2 * PAGE);
                    if let Carried::Inline(data) = &fetched.carried {
                        prop_assert_eq!(data.0.len() as u64, length);
                        prop_assert!(length <= inline_bytes_max.min(INLINE_BYTES_MAX).into());
                    }
                    if fetched.carried == Carried::Written {
                        prop_assert!(length <= hostile % 5000);
                    }
                }
                Err(error) => prop_assert!(
                    matches!(error.code(), "not-mapped" | "out-of-bounds" | "misaligned"),
                    "{:?}", error
                ),
            }
        }
    }
}
