//! Readers without the lock, with the partition changed under them at each step of a look-up, and
//! by real threads. And that each check is needed: without it the same changes deceive a reader.

use super::super::{Cache, Copied, CopyTarget, Mode, Options, Policy, SectionKeys};
use super::LookupStage;
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A check that a reader can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Version,
    Place,
    Held,
}

type Hook = (LookupStage, Box<dyn FnOnce()>);

thread_local! {
    static LEFT_OUT: Cell<Option<Check>> = const { Cell::new(None) };
    /// In the order in which they are called.
    static HOOKS: RefCell<VecDeque<Hook>> = const { RefCell::new(VecDeque::new()) };
}

pub(super) fn leaves_out(check: Check) -> bool {
    LEFT_OUT.get() == Some(check)
}

pub(super) fn reached(step: LookupStage) {
    let hook = HOOKS.with_borrow_mut(|hooks| {
        let is_next = hooks.front().is_some_and(|(at, _)| *at == step);
        is_next.then(|| hooks.pop_front()).flatten()
    });
    if let Some((_, hook)) = hook {
        hook();
    }
}

const STEPS: [LookupStage; 7] = [
    LookupStage::Placed,
    LookupStage::Begun,
    LookupStage::Free,
    LookupStage::Matched,
    LookupStage::Entry,
    LookupStage::Compared,
    LookupStage::Copied,
];
/// Bytes of a value: key, version, and what follows from both.
const VALUE_BYTES: usize = 64;
/// The key that is looked up.
const KEY: u64 = 77;

fn value(key: u64, version: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    let mixed = xxh3_64(&value[..16]);
    for (index, word) in value[16..].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mixed.rotate_left(index as u32).to_le_bytes());
    }
    value
}

/// The version of a value, or that it is none of this key.
fn version_of(key: u64, bytes: &[u8]) -> Result<u64, String> {
    let word =
        |at: usize| bytes.get(at..at + 8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
    match (word(0), word(8)) {
        (Some(found), Some(version)) if found == key && *bytes == value(key, version) => {
            Ok(version)
        }
        _ => Err(format!("{bytes:?} is no value of {key}")),
    }
}

fn options(policy: Policy) -> Options {
    Options { memory: 1 << 20, shared_reads: true, policy, seed: 3, ..Options::default() }
}

fn set(cache: &Cache, key: u64, version: u64) {
    cache.set(&key.to_le_bytes(), &value(key, version), 0, 0, 1).unwrap();
}

fn get(cache: &Cache, key: u64) -> Option<Result<u64, String>> {
    cache.get(&key.to_le_bytes(), 1, |item| {
        let mut bytes = Vec::new();
        item.append_to(&mut bytes).unwrap();
        assert!(item.key() == key.to_le_bytes() || LEFT_OUT.get().is_some());
        version_of(key, &bytes)
    })
}

/// As [`get`], but the value is copied to a place of the reader's own, if that can be, as the
/// server's engine does.
fn get_value(cache: &Cache, key: u64) -> Option<Result<u64, String>> {
    let place = Window::heap(128);
    let copied = cache.copy_value(
        &key.to_le_bytes(),
        1,
        CopyTarget { units: place.bare(), at: 64, bytes_max: 64 },
        |copied| {
            let mut bytes = vec![0; copied.bytes as usize];
            place.copy_out(64, &mut bytes);
            version_of(key, &bytes)
        },
    );
    copied.or_else(|| get(cache, key))
}

/// How a key is looked up.
type Look = fn(&Cache, u64) -> Option<Result<u64, String>>;

const LOOKS: [Look; 2] = [get, get_value];

/// So many other items of the same size that the log is written anew.
fn lap(cache: &Cache) {
    (1000..21_000).for_each(|key| set(cache, key, 9));
}

/// What happens to the cache under a reader; what the reader may find: versions, and nothing.
struct Change {
    name: &'static str,
    make: fn(&Cache),
    versions: &'static [u64],
    may_miss: bool,
}

const CHANGES: [Change; 6] = [
    Change { name: "update", make: |cache| set(cache, KEY, 2), versions: &[1, 2], may_miss: false },
    Change {
        name: "update and a lap of the log",
        make: |cache| {
            lap(cache);
            set(cache, KEY, 2);
        },
        versions: &[1, 2],
        may_miss: true,
    },
    Change {
        name: "removal and a lap of the log",
        make: |cache| {
            cache.remove(&KEY.to_le_bytes(), 1);
            lap(cache);
        },
        versions: &[1],
        may_miss: true,
    },
    Change { name: "eviction", make: lap, versions: &[1], may_miss: true },
    Change {
        name: "clearing, and others come",
        make: |cache| {
            cache.clear(1);
            lap(cache);
        },
        versions: &[1],
        may_miss: true,
    },
    Change {
        name: "laps until the key is back at its place",
        make: |cache| {
            for version in 2..200 {
                cache.clear(1);
                (0..300).for_each(|key| set(cache, 5000 + key, version));
                set(cache, KEY, version);
            }
        },
        versions: &[1, 199],
        may_miss: true,
    },
];

/// What readers found that they should not have.
fn deceived(look: Look, check: Option<Check>) -> Vec<String> {
    let mut wrong = Vec::new();
    for policy in [Policy::Fifo, Policy::Sieve, Policy::S3Fifo, Policy::TinyLfu] {
        for change in &CHANGES {
            for step in STEPS {
                let cache = Cache::new(options(policy)).unwrap();
                (0..300).for_each(|key| set(&cache, 5000 + key, 1));
                set(&cache, KEY, 1);
                let (other, make) = (cache.clone(), change.make);
                HOOKS.set([(step, Box::new(move || make(&other)) as _)].into());
                LEFT_OUT.set(check);
                let found = look(&cache, KEY);
                LEFT_OUT.set(None);
                assert!(HOOKS.take().is_empty(), "{step:?} was reached");
                let is_right = match &found {
                    Some(Ok(version)) => change.versions.contains(version),
                    Some(Err(_)) => false,
                    None => change.may_miss,
                };
                if !is_right {
                    wrong.push(format!("{policy:?}, {} at {step:?}: {found:?}", change.name));
                }
            }
        }
    }
    wrong
}

#[test]
fn whatever_happens_under_a_reader_it_finds_a_value_of_its_key_or_nothing() {
    for look in LOOKS {
        let wrong = deceived(look, None);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn a_reader_that_does_not_ask_for_the_version_is_deceived() {
    for look in LOOKS {
        let wrong = deceived(look, Some(Check::Version));
        let changes = CHANGES.iter().filter(|change| {
            let at = format!("{} at {:?}", change.name, LookupStage::Compared);
            wrong.iter().any(|wrong| wrong.contains(&at))
        });
        assert!(changes.count() >= 4, "{wrong:#?}");
    }
}

/// Looks keys of a store up while `change` is made under each look-up; how many were missed.
fn missed(
    look: Look,
    steps: &[LookupStage],
    check: Option<Check>,
    change: fn(&Cache, u64),
) -> usize {
    let mut missed = 0;
    for step in steps {
        let options = Options { mode: Mode::Store, memory: 16 << 20, ..options(Policy::Fifo) };
        let cache = Cache::new(options).unwrap();
        (0..5000).for_each(|key| set(&cache, key, 1));
        for key in 100..120_u64 {
            // Its entry lies behind those of others, which `thin` removes.
            cache.remove(&key.to_le_bytes(), 1);
            (10_000..12_000).for_each(|other| set(&cache, other, 1));
            set(&cache, key, 1);
            let other = cache.clone();
            HOOKS.set([(*step, Box::new(move || change(&other, key)) as _)].into());
            LEFT_OUT.set(check);
            let found = look(&cache, key);
            LEFT_OUT.set(None);
            HOOKS.take();
            assert!(found.is_none() || found == Some(Ok(1)), "{found:?}");
            missed += usize::from(found.is_none());
        }
    }
    missed
}

fn grow(cache: &Cache, key: u64) {
    (0..2000).for_each(|other| set(cache, 20_000 + key * 2000 + other, 1));
}

/// Removes neighbours, so that entries move within their buckets.
fn thin(cache: &Cache, _: u64) {
    (10_000..12_000_u64).for_each(|other| _ = cache.remove(&other.to_le_bytes(), 1));
}

#[test]
fn a_key_that_stays_is_never_missed_while_the_index_grows_or_entries_move() {
    for look in LOOKS {
        assert_eq!(missed(look, &STEPS, None, grow), 0);
        assert_eq!(missed(look, &STEPS, None, thin), 0);
    }
}

#[test]
fn a_reader_that_leaves_a_check_out_misses_keys_that_stay() {
    assert!(missed(get, &[LookupStage::Placed], Some(Check::Place), grow) > 0);
    assert!(missed(get, &[LookupStage::Matched], Some(Check::Version), thin) > 0);
}

/// What a section does to the key under a reader, in two steps; versions that the reader may find,
/// and nothing.
struct Halves {
    is_there: bool,
    make: [fn(&Cache); 2],
    found: &'static [Option<u64>],
}

fn remove(cache: &Cache) {
    assert!(cache.remove(&KEY.to_le_bytes(), 1));
}

const HALVES: [Halves; 4] = [
    Halves { is_there: true, make: [remove, |it| set(it, KEY, 3)], found: &[Some(1), Some(3)] },
    Halves {
        is_there: true,
        make: [|it| set(it, KEY, 2), |it| set(it, KEY, 3)],
        found: &[Some(1), Some(3)],
    },
    Halves { is_there: false, make: [|it| set(it, KEY, 2), remove], found: &[None] },
    Halves {
        is_there: false,
        make: [|it| set(it, KEY, 2), |it| set(it, KEY, 3)],
        found: &[None, Some(3)],
    },
];

/// Has a section begin and do the first half at the one step of the next look-up, and the other
/// half at the other step behind that, or, if the reader waits before it, without it.
fn change_in_section(cache: &Cache, make: [fn(&Cache); 2], steps: [LookupStage; 2]) {
    let (begin, has_begun) = mpsc::channel();
    let (half, is_half) = mpsc::channel();
    let (finish, to_finish) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    let mut inside = cache.clone();
    std::thread::spawn(move || {
        if has_begun.recv().is_err() {
            return;
        }
        let mut keys = SectionKeys::default();
        keys.add(&inside, &KEY.to_le_bytes());
        let section = inside.hold(keys);
        inside.enter_section(Some(&section));
        make[0](&inside);
        half.send(()).unwrap();
        let _ = to_finish.recv_timeout(Duration::from_millis(2));
        make[1](&inside);
        drop(section);
        let _ = done.send(());
    });
    let first = move || {
        begin.send(()).unwrap();
        is_half.recv().unwrap();
    };
    let second = move || {
        let _ = finish.send(());
        is_done.recv().unwrap();
    };
    HOOKS.set([(steps[0], Box::new(first) as _), (steps[1], Box::new(second) as _)].into());
}

/// What readers found that was neither there before a section nor behind it.
fn halves_seen(look: Look, check: Option<Check>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, Halves { is_there, make, found }) in HALVES.iter().enumerate() {
        for steps in STEPS.iter().flat_map(|one| STEPS.map(|other| [*one, other])) {
            let cache = Cache::new(options(Policy::Fifo)).unwrap();
            (0..300).for_each(|key| set(&cache, 5000 + key, 1));
            if *is_there {
                set(&cache, KEY, 1);
            }
            change_in_section(&cache, *make, steps);
            LEFT_OUT.set(check);
            let seen = look(&cache, KEY).transpose().unwrap();
            LEFT_OUT.set(None);
            HOOKS.take();
            if !found.contains(&seen) {
                wrong.push(format!("{index} at {steps:?}: {seen:?}"));
            }
        }
    }
    wrong
}

#[test]
fn a_reader_under_which_a_section_begins_sees_no_half_of_it() {
    for look in LOOKS {
        let wrong = halves_seen(look, None);
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(!halves_seen(look, Some(Check::Held)).is_empty(), "it does not ask for holds");
    }
}

#[test]
fn a_cas_that_was_told_of_a_copy_is_that_of_the_item_until_it_changes() {
    let policy = Policy::FifoReinsertion { threshold: 1 };
    let cache = Cache::new(options(policy)).unwrap();
    let cas_now = || cache.entry(&KEY.to_le_bytes(), 1).unwrap().item().map(|item| item.cas());
    set(&cache, KEY, 1);
    // Moved by eviction between the copy and the question, and after it.
    let moved = cache.stats().moved;
    let told = cache.get(&KEY.to_le_bytes(), 1, |item| {
        (0..9000).for_each(|key| set(&cache, 1000 + key, 9));
        (item.cas(), item.cas(), item.meta().cas)
    });
    assert!(cache.stats().moved > moved && told.is_some());
    let (cas, again, meta) = told.unwrap();
    assert!(cas == again && cas == meta && cas_now() == Some(cas));
    assert!(get(&cache, KEY).is_some());
    (0..9000).for_each(|key| set(&cache, 1000 + key, 9));
    assert_eq!(cas_now(), Some(cas), "it keeps what was told");
    // Changed between the copy and the question.
    let told = cache.get(&KEY.to_le_bytes(), 1, |item| {
        set(&cache, KEY, 2);
        item.cas()
    });
    assert!(told.is_some() && told != cas_now(), "another value has another cas");
}

#[test]
fn uses_are_marked_and_counted_without_the_lock() {
    let cache = Cache::new(options(Policy::Sieve)).unwrap();
    (0..100).for_each(|key| set(&cache, key, 1));
    for _ in 0..3 {
        (0..50).for_each(|key| assert_eq!(get(&cache, key), Some(Ok(1))));
        let keys: Vec<_> = (0..50_u64).map(u64::to_le_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut seen = 0;
        cache.get_many(&keys, 1, |index, item| {
            assert_eq!(item.unwrap().key(), keys[index]);
            seen += 1;
        });
        assert!(seen == 50 && get(&cache, 500).is_none());
        (50..60).for_each(|key| assert_eq!(get_value(&cache, key), Some(Ok(1))));
        assert!(get_value(&cache, 500).is_none(), "a miss is counted once, by the look-up behind");
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (330, 6));
    let fetched = |key: u64| {
        cache.entry(&key.to_le_bytes(), 1).unwrap().item().map(|item| item.meta().fetched)
    };
    assert!([10, 55].map(fetched) == [Some(true); 2] && fetched(60) == Some(false));
    // What was used stays when the hand comes by; the rest goes.
    let stays = |range: std::ops::Range<u64>| range.filter(|key| fetched(*key).is_some()).count();
    let mut others = 1000..20_000;
    while stays(60..100) > 0 {
        others.by_ref().take(100).for_each(|key| set(&cache, key, 9));
        assert!(!others.is_empty(), "nothing was evicted");
    }
    assert_eq!(stays(0..60), 60);
}

#[test]
fn what_a_copy_cannot_be_of_is_read_under_the_lock() {
    let options = Options { memory: 4 << 20, keeps_access: true, ..options(Policy::TinyLfu) };
    let cache = Cache::new(options).unwrap();
    let long = vec![7; 300_000];
    cache.set(b"long", &long, 5, 0, 1000).unwrap();
    cache.set(b"mortal", b"soon gone", 70_000, 9000, 1000).unwrap();
    let whole = |key: &[u8], now| {
        cache.get(key, now, |item| {
            let mut value = Vec::new();
            item.append_to(&mut value).unwrap();
            (value, item.flags(), item.expires(), item.meta().idle_s)
        })
    };
    assert_eq!(whole(b"long", 1000), Some((long, 5, 0, 0)));
    assert_eq!(whole(b"mortal", 1000), Some((b"soon gone".to_vec(), 70_000, 9000, 0)));
    let peeked = cache.entry(b"mortal", 4000).unwrap().item().unwrap().meta().idle_s;
    assert_eq!(peeked, 3);
    assert_eq!(whole(b"mortal", 4000).unwrap().3, 0, "the access was noted");
    assert_eq!(whole(b"mortal", 9000), None);
    assert_eq!(cache.stats().expired, 1);
}

#[test]
fn a_value_is_copied_without_the_lock_with_what_goes_with_it_and_nothing_beyond_its_room() {
    let cache = Cache::new(Options { memory: 4 << 20, ..options(Policy::Fifo) }).unwrap();
    cache.set(b"plain", b"blue", 0, 0, 1000).unwrap();
    cache.set(b"mortal", b"soon gone", 70_000, 9000, 1000).unwrap();
    cache.set(b"long", &[7; 200], 0, 0, 1000).unwrap();
    cache.set(b"larger", &vec![7; 300_000], 0, 0, 1000).unwrap();
    let place = Window::heap(256);
    let copy = |key: &[u8], now, most| {
        let before = cache.stats().hits;
        place.zero(0, 256);
        let copied = cache.copy_value(
            key,
            now,
            CopyTarget { units: place.bare(), at: 100, bytes_max: most },
            |copied| copied,
        );
        assert_eq!(cache.stats().hits - before, u64::from(copied.is_some()));
        let mut bytes = [0; 256];
        place.copy_out(0, &mut bytes);
        let end = copied.map_or(100, |copied| 100 + copied.bytes as usize);
        assert!(bytes[..100].iter().chain(&bytes[end..]).all(|byte| *byte == 0));
        copied.map(|copied| (bytes[100..end].to_vec(), copied.flags, copied.expires))
    };
    assert_eq!(copy(b"plain", 1000, 64), Some((b"blue".to_vec(), 0, 0)));
    assert_eq!(copy(b"plain", 1000, 4), Some((b"blue".to_vec(), 0, 0)));
    assert_eq!(copy(b"mortal", 1000, 64), Some((b"soon gone".to_vec(), 70_000, 9000)));
    for (key, now, most) in [
        (&b"plain"[..], 1000, 3),
        (b"mortal", 9000, 64),
        (b"long", 1000, 64),
        (b"larger", 1000, 64),
        (b"absent", 1000, 64),
        (b"plainer", 1000, 64),
    ] {
        assert_eq!(copy(key, now, most), None, "{key:?}");
    }
    // With the time of the last use, that is to be noted under the lock.
    let cache = Cache::new(Options { keeps_access: true, ..options(Policy::Fifo) }).unwrap();
    cache.set(b"mortal", b"soon gone", 70_000, 9000, 1000).unwrap();
    let copies = |now| {
        let to = CopyTarget { units: place.bare(), at: 0, bytes_max: 64 };
        cache.copy_value(b"mortal", now, to, |Copied { bytes, .. }| bytes)
    };
    assert_eq!((copies(1000), copies(4000)), (Some(9), None));
}

#[test]
fn a_value_is_copied_without_the_lock_also_of_an_entry_far_down_its_chain() {
    let options = Options { mode: Mode::Store, memory: 16 << 20, ..options(Policy::Fifo) };
    let cache = Cache::new(options).unwrap();
    (0..20_000).for_each(|key| set(&cache, key, 1));
    let place = Window::heap(64);
    let copied = |key: &u64| {
        cache
            .copy_value(
                &key.to_le_bytes(),
                1,
                CopyTarget { units: place.bare(), at: 0, bytes_max: 64 },
                |_| (),
            )
            .is_some()
    };
    // But for keys behind another one with their tag in the same chain.
    let count = (0..20_000).filter(copied).count();
    assert!(count > 19_900, "{count}");
}

/// What has been stored of a key: {version | whether it was removed since}.
type Board = [AtomicU64; 64];

fn change_at_random(cache: &Cache, acked: &Board, begun: &Board, rounds: u64) {
    for round in 1..=rounds {
        let random = xxh3_64(&round.to_le_bytes());
        let key = random % acked.len() as u64;
        // Relaxed: published by the cache's own order and by the Release below.
        begun[key as usize].store(round, Ordering::Relaxed);
        let is_removed = random >> 32 & 7 == 0;
        match random >> 40 & 0x3ff {
            0 => cache.clear(1),
            1 => lap(cache),
            _ if is_removed => _ = cache.remove(&key.to_le_bytes(), 1),
            _ => set(cache, key, round),
        }
        if random >> 40 & 0x3ff > 1 {
            // Release: pairs with the Acquire in `read_at_random`.
            acked[key as usize].store(round << 1 | u64::from(is_removed), Ordering::Release);
        }
    }
}

fn read_at_random(cache: &Cache, acked: &Board, begun: &Board, mut random: u64) -> u64 {
    let mut found = 0;
    let is_of = |key: u64, before: u64, version: u64| {
        // Relaxed: as it was stored.
        let newest = begun[key as usize].load(Ordering::Relaxed);
        let oldest = (before >> 1) + (before & 1);
        assert!((oldest..=newest).contains(&version), "{key}: {version} of {oldest} to {newest}");
    };
    let mut check = |key: u64, before: u64, item: Option<&super::super::Item<'_>>| {
        let Some(item) = item else { return };
        let mut bytes = Vec::new();
        item.append_to(&mut bytes).unwrap();
        is_of(key, before, version_of(key, &bytes).unwrap());
        found += 1;
    };
    random = xxh3_64(&random.to_le_bytes());
    let keys: [u64; 16] = std::array::from_fn(|index| (random >> (index * 3)) % 64);
    // Acquire: pairs with the Release in `change_at_random`.
    let before = keys.map(|key| acked[key as usize].load(Ordering::Acquire));
    if random & 3 == 1 {
        for (key, before) in keys.into_iter().zip(before) {
            let Some(version) = get_value(cache, key) else { continue };
            is_of(key, before, version.unwrap());
            found += 1;
        }
    } else if random & 1 == 0 {
        let bytes = keys.map(u64::to_le_bytes);
        let slices = std::array::from_fn::<&[u8], 16, _>(|index| &bytes[index]);
        cache.get_many(&slices, 1, |index, item| check(keys[index], before[index], item));
    } else {
        for (key, before) in keys.into_iter().zip(before) {
            let seen = cache.get(&key.to_le_bytes(), 1, |item| check(key, before, Some(item)));
            seen.unwrap_or_default();
        }
    }
    found
}

#[test]
fn threads_that_read_while_one_writes_see_what_was_stored_last_or_nothing() {
    for policy in [Policy::Fifo, Policy::Sieve, Policy::S3Fifo, Policy::TinyLfu] {
        let cache = Cache::new(options(policy)).unwrap();
        let [acked, begun] = [(); 2].map(|()| std::array::from_fn(|_| AtomicU64::new(0)));
        let (is_over, found) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (cache, acked, begun) = (cache.clone(), &acked, &begun);
                let (is_over, found) = (&is_over, &found);
                scope.spawn(move || {
                    let mut round = thread << 32;
                    // Relaxed, both: an end, and a count.
                    while !is_over.load(Ordering::Relaxed) || round & 0xff < 50 {
                        round += 1;
                        let seen = read_at_random(&cache, acked, begun, round);
                        // Relaxed: as above.
                        found.fetch_add(seen, Ordering::Relaxed);
                    }
                });
            }
            change_at_random(&cache, &acked, &begun, 20_000);
            // Relaxed: as above.
            is_over.store(true, Ordering::Relaxed);
        });
        // Relaxed: all have ended.
        assert!(found.load(Ordering::Relaxed) > 0, "{policy:?}");
        assert!(cache.stats().hits >= found.load(Ordering::Relaxed));
    }
}
