//! A cache in a file: reopened after a clean end, and after the process was killed in the midst of
//! its work. Whatever is served then is a value that was stored for that key, whole, and no older
//! than the last one that was acknowledged.

use rackpool_cache::{Cache, Error, Item, Options, Policy};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 3000;
const CHILD: &str = "RACKPOOL_CACHE_CHILD";

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/rackpool-cache-test-{}-{name}", std::process::id()))
}

fn options() -> Options {
    let shared_reads = true;
    Options { memory: 160 << 20, partitions: 2, seed: 11, shared_reads, ..Options::default() }
}

/// Version and key, a checksum over them, and bytes that follow from it.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mixed = xxh3_64(&[key.to_le_bytes(), version.to_le_bytes()].concat());
    let len = match mixed % 50 {
        0 => mixed % 200_000,
        1..10 => mixed % 9000,
        _ => mixed % 300,
    };
    let mut value = [version.to_le_bytes(), key.to_le_bytes(), mixed.to_le_bytes()].concat();
    value.extend((0..len).map(|index| (mixed >> (index % 56)) as u8 ^ index as u8));
    value
}

fn check(item: &Item<'_>) -> (u64, u64) {
    let mut bytes = Vec::new();
    item.append_to(&mut bytes).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (version, key) = (word(0), word(8));
    assert_eq!(item.key(), key.to_le_bytes(), "a value of another key");
    assert!(bytes == value(key, version), "a value that was never stored");
    (key, version)
}

/// What the child does until it is killed: the version that was stored last is entered in the
/// second file when the storing has returned. Two threads read meanwhile, without a lock.
#[test]
fn child_under_load() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let (cache, _) = Cache::open(options(), &PathBuf::from(&name)).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(name + ".acked").unwrap();
    let acked = Window::of_file(file.as_fd(), KEYS * 8).unwrap();
    for thread in 0..2_u64 {
        let cache = cache.clone();
        std::thread::spawn(move || {
            for round in thread << 32.. {
                let key = xxh3_64(&u64::to_le_bytes(round)) % KEYS;
                // One that finds something else ends the process before it is killed.
                let look = || cache.get(&key.to_le_bytes(), 1, check);
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err() {
                    std::process::exit(1);
                }
            }
        });
    }
    for version in 1.. {
        let key = xxh3_64(&u64::to_le_bytes(version)) % KEYS;
        let bytes = value(key, version);
        if version % 7 == 0 {
            let mut writer =
                cache.reserve(&key.to_le_bytes(), bytes.len() as u64, 0, 0, 1).unwrap();
            bytes.chunks(5000).for_each(|piece| writer.write(piece));
            writer.commit(&cache, 1).unwrap();
        } else {
            cache.set(&key.to_le_bytes(), &bytes, version as u32, 0, 1).unwrap();
        }
        acked.store(key * 8, version);
    }
}

#[test]
fn a_killed_process_leaves_no_wrong_value_and_nothing_is_lost_that_was_stored() {
    let path = path("kill");
    let acked_path = PathBuf::from(format!("{}.acked", path.display()));
    std::fs::write(&acked_path, vec![0; KEYS as usize * 8]).unwrap();
    let (mut rounds, mut newest) = (0, 0);
    for pause_ms in [150, 40, 310, 77, 205] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache_restart::child_under_load", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        assert!(child.try_wait().unwrap().is_none(), "it read what was never stored");
        child.kill().unwrap();
        child.wait().unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&acked_path).unwrap();
        let acked = Window::of_file(file.as_fd(), KEYS * 8).unwrap();
        let (cache, recovered) = Cache::open(options(), &path).unwrap();
        let mut lost = 0_u64;
        for key in 0..KEYS {
            let stored = acked.load(key * 8);
            match cache.get(&key.to_le_bytes(), 1, check) {
                Some((_, version)) => {
                    assert!(version >= stored, "key {key}: version {version} after {stored}");
                    newest = newest.max(version);
                }
                None => lost += u64::from(stored > 0),
            }
            // Versions start anew with the next child.
            acked.store(key * 8, 0);
        }
        println!("{recovered:?}, {lost} of {KEYS} keys lost");
        assert_eq!(lost, 0, "{recovered:?}");
        assert!(recovered.lost <= 2, "{recovered:?}: what was being written, in each partition");
        assert_eq!(recovered.damaged, 0, "{recovered:?}: a kill damages nothing");
        cache.clear(1);
        rounds += 1;
    }
    assert!(rounds == 5 && newest > 1000, "{newest} versions");
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&acked_path).unwrap();
}

#[test]
fn a_cache_comes_back_with_everything_and_only_with_the_same_options() {
    let path = path("clean");
    let (cache, recovered) = Cache::open(options(), &path).unwrap();
    assert_eq!(recovered.items, 0);
    for key in 0..KEYS {
        cache.set(&key.to_le_bytes(), &value(key, 1), 7, 0, 1).unwrap();
    }
    (0..KEYS).step_by(3).for_each(|key| assert!(cache.remove(&key.to_le_bytes(), 1)));
    let cas = cache.get(&1_u64.to_le_bytes(), 1, |item| item.cas());
    let busy = Cache::open(options(), &path).unwrap_err();
    assert!(matches!(busy, Error::Io { .. }), "{busy}");
    drop(cache);
    let other = Options { keeps_access: true, ..options() };
    assert!(Cache::open(other, &path).unwrap_err().to_string().contains("keeps_access"));
    let other = Options { memory: 80 << 20, ..options() };
    assert!(matches!(Cache::open(other, &path).unwrap_err(), Error::Corrupt { .. }));
    // A process that restarts a cache need not know the seed that it was made with.
    let (cache, recovered) = Cache::open(Options { seed: 12, ..options() }, &path).unwrap();
    assert_eq!((recovered.items, recovered.lost), (KEYS - KEYS / 3, 0));
    for key in 0..KEYS {
        let found = cache.get(&key.to_le_bytes(), 1, |item| (check(item), item.flags()));
        assert_eq!(found, (key % 3 != 0).then_some(((key, 1), 7)));
    }
    assert_eq!(cache.get(&1_u64.to_le_bytes(), 1, |item| item.cas()), cas);
    // It is as usable as before.
    for version in 2..40 {
        for key in 0..KEYS {
            cache.set(&key.to_le_bytes(), &value(key, version), 7, 0, 1).unwrap();
        }
    }
    let there = (0..KEYS).filter(|key| {
        let found = cache.get(&key.to_le_bytes(), 1, check);
        assert!(found.is_none_or(|found| found == (*key, 39)), "{key}: {found:?}");
        found.is_some()
    });
    let there = there.count() as u64;
    assert!(there == cache.len() && there > KEYS * 9 / 10, "{there} of {KEYS}");
    drop(cache);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_was_flushed_does_not_come_back_also_if_the_process_ended_at_once() {
    let path = path("flushed");
    let (cache, _) = Cache::open(options(), &path).unwrap();
    let set = |cache: &Cache, key: u64, version: u64| {
        cache.set(&key.to_le_bytes(), &value(key, version), 7, 0, 1).unwrap();
    };
    (0..KEYS).for_each(|key| set(&cache, key, 1));
    cache.flush_all();
    (0..KEYS).step_by(5).for_each(|key| set(&cache, key, 2));
    // Nothing of what was flushed was looked at.
    drop(cache);
    for _ in 0..2 {
        let (cache, recovered) = Cache::open(options(), &path).unwrap();
        assert_eq!((recovered.items, recovered.lost), (KEYS / 5, 0), "{recovered:?}");
        assert_eq!(recovered.damaged, 0);
        for key in 0..KEYS {
            let found = cache.get(&key.to_le_bytes(), 1, check);
            assert_eq!(found, (key % 5 == 0).then_some((key, 2)));
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn units_of_a_new_file_come_into_use_only_with_their_memory() {
    let path = path("taken");
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let options = Options { takes_file_later: true, ..options() };
    let (cache, _) = Cache::open(options.clone(), &path).unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    assert!(taken() < whole / 8, "{} of {whole} bytes at once", taken());
    let free = cache.stats().free_units;
    // As no other thread takes memory, changes do.
    for key in 0..KEYS {
        cache.set(&key.to_le_bytes(), &[7; 30_000], 0, 0, 1).unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.items, stats.evictions), (KEYS, 0));
    assert!(free - stats.free_units > KEYS * 30_000 / 70_000);
    assert!(taken() > stats.live_bytes && taken() < whole, "{} of {whole} bytes", taken());
    drop(cache);
    // One that is not whole is made so at once, and found.
    let (cache, recovered) = Cache::open(options.clone(), &path).unwrap();
    assert_eq!((recovered.items, taken() >= whole), (KEYS, true));
    drop(cache);
    std::fs::remove_file(&path).unwrap();
    let (cache, _) = Cache::open(options, &path).unwrap();
    let mut asked = 0;
    cache
        .populate(|| {
            asked += 1;
            asked < 5
        })
        .unwrap();
    assert!(taken() < whole);
    cache.populate(|| true).unwrap();
    assert!(taken() >= whole);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn no_cas_is_given_twice_and_the_ones_that_were_told_stay_over_a_restart() {
    let path = path("cas");
    let options = Options { memory: 4 << 20, seed: 11, ..Options::default() };
    let (cache, _) = Cache::open(options.clone(), &path).unwrap();
    let told = cache.set(b"key", b"old", 0, 0, 1).unwrap();
    cache.clear(1);
    drop(cache);
    let (cache, _) = Cache::open(options.clone(), &path).unwrap();
    assert_ne!(cache.set(b"key", b"new", 0, 0, 1).unwrap(), told);
    let told = cache.get(b"key", 1, |item| item.cas()).unwrap();
    drop(cache);
    let (cache, _) = Cache::open(options, &path).unwrap();
    for index in 0..40_000_u64 {
        // It is used all the time, so it is moved and not evicted.
        cache.set(&index.to_le_bytes(), &[1; 100], 0, 0, 1).unwrap();
        assert!((0..3).all(|_| cache.get(b"key", 1, |_| ()).is_some()), "put {index}");
    }
    assert!(cache.stats().moved > 0);
    assert_eq!(cache.get(b"key", 1, |item| item.cas()), Some(told));
    drop(cache);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_cache_comes_back_also_with_a_larger_index() {
    for policy in [Policy::Fifo, Policy::S3Fifo, Policy::TinyLfu] {
        let path = path(&format!("full-{policy:?}"));
        let options = Options { memory: 8 << 20, seed: 11, policy, ..Options::default() };
        let (cache, _) = Cache::open(options.clone(), &path).unwrap();
        for key in 0..30_000 {
            cache.set(&u64::to_le_bytes(key), &[7; 400], 0, 0, 1).unwrap();
        }
        let items = cache.len();
        assert!(cache.stats().evictions > 0 && items > 10_000);
        drop(cache);
        // The index takes all that is free, and more.
        let larger = Options { items_expected: 1_000_000, ..options };
        let (cache, recovered) = Cache::open(larger, &path).unwrap();
        assert_eq!((recovered.items + recovered.lost, cache.len()), (items, recovered.items));
        assert!(recovered.items > items * 9 / 10, "{recovered:?} of {items}");
        for key in 30_000..60_000 {
            cache.set(&u64::to_le_bytes(key), &[7; 400], 0, 0, 1).unwrap();
        }
        drop(cache);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn flipped_bits_are_found_and_counted() {
    let path = path("flip");
    let (cache, _) = Cache::open(options(), &path).unwrap();
    for key in 0..KEYS {
        cache.set(&key.to_le_bytes(), &value(key, 1), 0, 0, 1).unwrap();
    }
    drop(cache);
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() / 2;
    for at in 0..400 {
        let place = 65536 + xxh3_64(&u64::to_le_bytes(at)) as usize % (from / 8);
        bytes[place] ^= 1 << (at % 8);
    }
    std::fs::write(&path, &bytes).unwrap();
    let (cache, recovered) = Cache::open(options(), &path).unwrap();
    println!("{recovered:?}");
    let mut served = 0;
    for key in 0..KEYS {
        let found = cache.get(&key.to_le_bytes(), 1, |item| {
            let mut bytes = Vec::new();
            item.append_to(&mut bytes).unwrap();
            bytes
        });
        if let Some(found) = found {
            assert!(found == value(key, 1), "a wrong value");
            served += 1;
        }
    }
    assert!(served == recovered.items && served > KEYS / 2, "{served} of {KEYS}");
    assert!(recovered.damaged > 0 && recovered.lost >= recovered.damaged.min(KEYS - served));
    std::fs::remove_file(&path).unwrap();
}

/// What a client can see of an item: value, flags, expiry, cas.
type Seen = (Vec<u8>, u32, u64, u64);

fn seen(cache: &Cache, key: &[u8]) -> Option<Seen> {
    cache.get(key, 1, |item| {
        let mut bytes = Vec::new();
        item.append_to(&mut bytes).unwrap();
        (bytes, item.flags(), item.expires(), item.cas())
    })
}

fn small() -> Options {
    Options { memory: 1 << 20, seed: 11, policy: Policy::Fifo, ..Options::default() }
}

type Items = BTreeMap<Vec<u8>, Seen>;

/// The bytes of a small cache's file with items of all kinds, what they are, and keys that were
/// deleted.
fn damaged_soon(path: &Path) -> (Vec<u8>, Items, Vec<Vec<u8>>) {
    let (cache, _) = Cache::open(small(), path).unwrap();
    let (mut items, mut deleted) = (BTreeMap::new(), Vec::new());
    for index in 0..60_u32 {
        let key = format!("key {index}").into_bytes();
        let bytes = if index % 30 == 7 { 100_000 } else { index as usize * 7 };
        let flags = [0, 5, 0x12345678][index as usize % 3];
        let expires = if index % 4 == 1 { 5_000_000_000 + u64::from(index) } else { 0 };
        let value: Vec<u8> = (0..bytes).map(|at| (at * 31 + index as usize) as u8).collect();
        let mut entry = cache.entry(&key, 1).unwrap();
        let cas = if index % 5 == 2 { 1 << 40 | u64::from(index) } else { 0 };
        entry.put_with_cas(&[&value], flags, expires, cas).unwrap();
        drop(entry);
        if index % 6 == 5 {
            assert!(cache.remove(&key, 1));
            deleted.push(key);
        } else {
            items.insert(key.clone(), seen(&cache, &key).unwrap());
        }
    }
    drop(cache);
    let bytes = std::fs::read(path).unwrap();
    (bytes, items, deleted)
}

/// Opens a damaged file: no item that is there may be another one, none may come back. How many are
/// missing.
fn missing(path: &Path, bytes: &[u8], known: &BTreeMap<Vec<u8>, Seen>, what: &str) -> u64 {
    std::fs::write(path, bytes).unwrap();
    let (cache, recovered) = Cache::open(small(), path).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut missing = 0;
    cache.scan(0, usize::MAX, 1, |item| assert!(known.contains_key(&item.key()), "{what}"));
    for (key, item) in known {
        match seen(&cache, key) {
            Some(found) => assert!(found == *item, "{what}: {} is another item", found.1),
            None => missing += 1,
        }
    }
    assert!(missing == 0 || recovered.damaged > 0, "{what}: not said: {recovered:?}");
    assert_eq!(recovered.items + missing, known.len() as u64, "{what}: {recovered:?}");
    assert!(recovered.lost >= missing, "{what}: {recovered:?}");
    // Eviction walks over what was damaged.
    if xxh3_64(what.as_bytes()).is_multiple_of(8) {
        for key in 0..400_u64 {
            cache.set(&key.to_le_bytes(), &[7; 3000], 0, 0, 1).unwrap();
        }
    }
    drop(cache);
    // What was damaged is mended: nothing is said twice.
    let (_, again) = Cache::open(small(), path).unwrap();
    assert_eq!(again.damaged, 0, "{what}: {again:?}");
    missing
}

#[test]
fn a_damaged_word_costs_the_item_that_it_is_part_of_and_changes_none() {
    let path = path("word");
    let (bytes, items, _) = damaged_soon(&path);
    assert_eq!(missing(&path, &bytes, &items, "nothing"), 0);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let used: Vec<usize> = (0..bytes.len()).step_by(8).filter(|at| word(*at) != 0).collect();
    let (mut lost, mut rounds) = (0, 0);
    for (nth, at) in used.iter().enumerate() {
        // Of what is not the file's own some words.
        if *at > 0x20000 && nth % 67 != 0 {
            continue;
        }
        let random = xxh3_64(&at.to_le_bytes());
        let changes = [word(*at) ^ 1 << (random % 64), 0, random, word(used[nth / 2])];
        for changed in &changes {
            if *changed == word(*at) {
                continue;
            }
            let mut bytes = bytes.clone();
            bytes[*at..at + 8].copy_from_slice(&changed.to_le_bytes());
            let what = format!("{changed:#x} for {:#x} at {at:#x}", word(*at));
            let missing = missing(&path, &bytes, &items, &what);
            assert!(missing <= 1, "{what}: {missing} items are missing");
            (lost, rounds) = (lost + missing, rounds + 1);
        }
    }
    println!("{rounds} words, {lost} items");
    assert!(rounds > 500 && lost > rounds / 20, "{rounds} words, {lost} items");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn no_bit_of_a_header_or_of_what_stands_beside_it_changes_an_item_or_brings_one_back() {
    let path = path("bits");
    let (bytes, items, deleted) = damaged_soon(&path);
    let place = |key: &[u8]| {
        let end = [b"key ", key.split_at(4).1].concat();
        bytes.windows(end.len()).position(|window| window == end).unwrap()
    };
    let mut rounds = 0;
    for key in items.keys().step_by(17).chain([&deleted[0], &deleted[1]]) {
        // The words before a key, up to six.
        let at = place(key);
        assert_eq!(at % 8, 0, "a key begins with a word");
        for bit in 0..6 * 64 {
            let mut bytes = bytes.clone();
            bytes[at - 48 + bit / 8] ^= 1 << (bit % 8);
            let what = format!("bit {bit} before {}", String::from_utf8_lossy(key));
            assert!(missing(&path, &bytes, &items, &what) <= 1, "{what}");
            rounds += 1;
        }
    }
    assert!(rounds > 1500, "{rounds}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_that_is_damaged_in_many_places_opens_and_what_is_left_is_right() {
    let path = path("many");
    let (bytes, items, _) = damaged_soon(&path);
    for round in 0..200_u64 {
        let mut bytes = bytes.clone();
        for index in 0..1 << (round % 9) {
            let random = xxh3_64(&[round, index].map(u64::to_le_bytes).concat());
            // The superblock's two copies stay: a file without both is refused.
            let at = 8192 + random as usize % (bytes.len() - 8200);
            let from = xxh3_64(&random.to_le_bytes()) as usize % (bytes.len() - 8);
            match random >> 61 {
                0..4 => bytes[at] ^= 1 << (random >> 58 & 7),
                4..6 => bytes.copy_within(from / 8 * 8..from / 8 * 8 + 8, at / 8 * 8),
                6 => bytes[at / 8 * 8..][..8].fill(0xff),
                _ => bytes[at..][..8].fill(0),
            }
        }
        missing(&path, &bytes, &items, &format!("round {round}"));
    }
    std::fs::remove_file(&path).unwrap();
}
