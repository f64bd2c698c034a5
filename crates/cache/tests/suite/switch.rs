//! Memories that are left and used again while a cache is in use: all values are right, what is
//! used often stays, the work is bounded, and far memory goes back to the system.

use crate::far::{MIB, idle, is_whole, options, value};
use crate::peers::{ask, ask_text, memcached_of, ours, resp_of, wait_until, words};
use rackpool_cache::front::{ListenConfig, Server, Settings};
use rackpool_cache::{Cache, Error, Options, PartitionShare, Tiering};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Idle turns until far memory is the system's; how many seconds that took.
fn leave(cache: &Cache, now: &mut u64) -> u64 {
    cache.use_far(false).unwrap();
    assert!(!cache.uses_far());
    let mut seconds = 0;
    while cache.stats().far_held_units > 0 {
        let before = cache.stats();
        idle(cache, now, 1);
        seconds += 1;
        let after = cache.stats();
        // A step goes beyond its pace by an item, or a batch of them.
        let moved = after.moved_bytes - before.moved_bytes;
        let dropped = after.evictions - before.evictions;
        assert!(moved <= 2 * MIB, "{moved} bytes moved in a second");
        assert!(dropped <= 8192, "{dropped} items dropped in a second");
        assert!(seconds < 1000, "{after:?}");
    }
    assert_eq!(cache.stats().far_bytes, 0);
    seconds
}

#[test]
fn what_lies_far_comes_near_while_there_is_room_and_nothing_is_lost() {
    let cache = Cache::new(options(24, 64)).unwrap();
    let (bytes, mut now) = (70_001, 1);
    for key in 0..40_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 3, 0, now).unwrap();
    }
    assert!((0..40_u64).all(|key| cache.lies_far(&key.to_le_bytes()) == Some(true)));
    assert_eq!(cache.stats().far_held_units, cache.stats().far_units);
    let seconds = leave(&cache, &mut now);
    assert!(seconds <= 60, "{seconds} s");
    assert!((0..40_u64).all(|key| cache.lies_far(&key.to_le_bytes()) == Some(false)));
    assert!((0..40_u64).all(|key| is_whole(&cache, key, bytes, now)));
    let stats = cache.stats();
    assert_eq!((stats.items, stats.evictions, stats.promotions), (40, 0, 40), "{stats:?}");
    assert!(stats.free_units > stats.far_units, "{stats:?}");
}

#[test]
fn what_is_read_often_stays_when_far_memory_is_left_by_a_full_cache() {
    let cache = Cache::new(options(4, 32)).unwrap();
    let (bytes, hot, mut now) = (400, 30_000..32_000_u64, 1);
    for key in 0..60_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    for _ in 0..60 {
        for _ in 0..3 {
            assert!(hot.clone().all(|key| is_whole(&cache, key, bytes, now)));
        }
        idle(&cache, &mut now, 2);
    }
    let before = cache.stats();
    assert!(before.evictions == 0 && before.far_bytes > 15 * MIB, "{before:?}");
    leave(&cache, &mut now);
    let kept = hot.filter(|key| is_whole(&cache, *key, bytes, now)).count();
    let stats = cache.stats();
    assert!(kept > 1900, "{kept} of 2000 that are read often are there: {stats:?}");
    assert_eq!(stats.items + stats.evictions, 60_000, "{stats:?}");
    assert!(stats.live_bytes > MIB, "near memory is used: {stats:?}");
    // All that is said to be there is.
    let there = (0..60_000_u64).filter(|key| is_whole(&cache, *key, bytes, now)).count();
    assert_eq!(there as u64, stats.items);
}

#[test]
fn far_memory_that_waits_is_used_as_soon_as_it_is_switched_to_and_can_be_left_again() {
    let waits = Options { far_waits: true, ..options(2, 64) };
    let cache = Cache::new(waits).unwrap();
    let (bytes, mut now) = (1000, 1);
    let fill = |keys: std::ops::Range<u64>, now| {
        for key in keys {
            cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
        }
    };
    for turn in 0..3_u64 {
        let from = turn * 100_000;
        let before = cache.stats();
        assert_eq!((before.far_bytes, before.far_held_units, cache.uses_far()), (0, 0, false));
        fill(from..from + 10_000, now);
        let stats = cache.stats();
        assert!(stats.evictions > before.evictions && stats.far_bytes == 0, "{stats:?}");
        let error = cache.set(b"long", &vec![7; 3 << 20], 0, 0, now).unwrap_err();
        assert!(matches!(error, Error::TooLarge { max_bytes, .. } if max_bytes < MIB), "{error}");

        cache.use_far(true).unwrap();
        let before = cache.stats();
        cache.set(&from.to_le_bytes(), &value(from, 3 << 20), 0, 0, now).unwrap();
        let new = from + 20_000..from + 40_000;
        fill(new.clone(), now);
        assert!(is_whole(&cache, from, 3 << 20, now));
        assert!(new.clone().all(|key| is_whole(&cache, key, bytes, now)));
        let stats = cache.stats();
        assert_eq!(stats.evictions, before.evictions, "{stats:?}");
        assert!(stats.far_bytes > 16 * MIB, "{stats:?}");

        leave(&cache, &mut now);
        assert_eq!(cache.lies_far(&from.to_le_bytes()), None, "longer than near memory takes");
        let there = new.filter(|key| is_whole(&cache, *key, bytes, now)).count();
        assert!(there > 100, "{there} are left");
    }
    let error = Cache::new(Options { far: None, ..options(2, 8) }).unwrap().use_far(true);
    assert!(matches!(error, Err(Error::BadOption { .. })), "{error:?}");
}

/// A mode that this machine has, whatever it has.
fn transparent() -> Tiering {
    Tiering::Transparent("numa:0=1".parse().unwrap())
}

#[test]
fn a_cache_in_use_is_dealt_out_and_comes_back_at_a_pace_with_all_its_values() {
    let cache = Cache::new(options(24, 64)).unwrap();
    let (bytes, mut now) = (70_001, 1);
    for key in 0..40_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 3, 0, now).unwrap();
    }
    assert_eq!((cache.tiering(), cache.last_dealt_to()), (Tiering::Data, None));
    for tiering in [transparent(), Tiering::Data, transparent(), Tiering::Dram] {
        cache.switch(&tiering).unwrap();
        assert_eq!(cache.tiering(), tiering);
        let mut left = cache.stats().pages_left_bytes;
        assert!(left > 20 * MIB, "{left}");
        while left > 0 {
            now += 100;
            cache.tidy(PartitionShare::ALL, now, || true);
            let gone = left - cache.stats().pages_left_bytes;
            assert!((1..=9 * MIB).contains(&gone), "{gone} bytes in 100 ms");
            left -= gone;
        }
        assert_eq!(cache.stats().pages_stayed_bytes, 0);
        assert!((0..40_u64).all(|key| is_whole(&cache, key, bytes, now)));
    }
    idle(&cache, &mut now, 60);
    let stats = cache.stats();
    assert_eq!((stats.items, stats.far_bytes, stats.far_held_units), (40, 0, 0), "{stats:?}");
    assert_eq!(cache.last_dealt_to(), Some("numa:0=1".parse().unwrap()));
}

#[test]
fn a_later_switch_takes_the_place_of_one_that_goes_on_and_a_refused_one_changes_nothing() {
    let cache = Cache::new(options(24, 32)).unwrap();
    cache.switch(&transparent()).unwrap();
    let all = cache.stats().pages_left_bytes;
    // Nothing is owed for the time before the switch: one piece.
    cache.tidy(PartitionShare::ALL, 1_000_000, || true);
    let left = cache.stats().pages_left_bytes;
    assert!((all - 2 * MIB..all).contains(&left), "{left} of {all}");
    for (nodes, code) in [("numa:0=1,numa:777=1", "no-node"), ("numa:777", "no-node")] {
        let error = cache.switch(&Tiering::Transparent(nodes.parse().unwrap())).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!((cache.tiering(), cache.stats().pages_left_bytes), (transparent(), left));
    cache.switch(&Tiering::Dram).unwrap();
    assert_eq!((cache.tiering(), cache.stats().pages_left_bytes), (Tiering::Dram, all));
    let plain = Cache::new(Options { far: None, ..options(2, 8) }).unwrap();
    let error = plain.switch(&Tiering::Data).unwrap_err();
    assert!(matches!(error, Error::BadOption { .. }), "{error}");
    // It was never elsewhere.
    plain.switch(&Tiering::Dram).unwrap();
    assert_eq!(plain.stats().pages_left_bytes, 0);
}

#[test]
fn a_switch_to_and_fro_leaves_what_it_finds() {
    let cache = Cache::new(options(4, 32)).unwrap();
    let (bytes, mut now) = (700, 1);
    for key in 0..20_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    for _ in 0..5 {
        cache.use_far(false).unwrap();
        idle(&cache, &mut now, 1);
        cache.use_far(true).unwrap();
        idle(&cache, &mut now, 1);
    }
    let stats = cache.stats();
    assert!(stats.items > 8000 && stats.far_bytes > 0, "{stats:?}");
    // The room that was left is used again.
    for key in 100_000..110_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    assert_eq!(cache.stats().evictions, stats.evictions, "{:?}", cache.stats());
    assert!((100_000..110_000).all(|key| is_whole(&cache, key, bytes, now)));
}

#[test]
fn a_file_comes_back_in_either_mode_and_takes_only_the_memory_that_is_used() {
    use std::os::unix::fs::MetadataExt;
    let name = format!("/dev/shm/rackpool-switch-test-{}", std::process::id());
    let path = PathBuf::from(name);
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let waits = || Options { far_waits: true, ..options(4, 32) };
    let (bytes, keys, mut now) = (600, 0..20_000_u64, 1);
    let (cache, _) = Cache::open(waits(), &path).unwrap();
    assert!(taken() <= 5 * MIB, "{} bytes", taken());
    cache.use_far(true).unwrap();
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    assert!(taken() > 10 * MIB && cache.stats().far_bytes > 8 * MIB, "{:?}", cache.stats());
    drop(cache);

    let (cache, recovered) = Cache::open(options(4, 32), &path).unwrap();
    assert_eq!((recovered.items, recovered.lost, cache.uses_far()), (20_000, 0, true));
    assert!(taken() >= 32 * MIB, "{} bytes", taken());
    drop(cache);

    let (cache, recovered) = Cache::open(waits(), &path).unwrap();
    assert_eq!((recovered.items, recovered.lost, cache.uses_far()), (20_000, 0, false));
    assert!(cache.stats().pages_left_bytes > 2 * MIB, "an earlier mode is not known");
    assert!(keys.clone().all(|key| is_whole(&cache, key, bytes, now)));
    leave(&cache, &mut now);
    assert!(taken() <= 5 * MIB, "{} bytes", taken());
    assert_eq!(cache.stats().pages_left_bytes, 0);
    let there = keys.clone().filter(|key| is_whole(&cache, *key, bytes, now)).count() as u64;
    assert!(there > 2000 && there == cache.stats().items, "{:?}", cache.stats());
    drop(cache);

    let (cache, recovered) = Cache::open(waits(), &path).unwrap();
    assert_eq!((recovered.items, recovered.lost), (there, 0));
    cache.use_far(true).unwrap();
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, bytes + 1), 0, 0, now).unwrap();
    }
    assert!(keys.clone().all(|key| is_whole(&cache, key, bytes + 1, now)));
    assert!(cache.stats().far_bytes > 8 * MIB && cache.stats().evictions == 0);
    std::fs::remove_file(&path).unwrap();
}

/// Version, key, and bytes that follow from both; one in 200 is long.
fn versioned(key: u64, version: u64) -> Vec<u8> {
    let bytes = if (key + version).is_multiple_of(200) { 70_000 } else { 100 + key * 7 % 1500 };
    let mut bytes = value(key ^ version, bytes);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&key.to_le_bytes());
    bytes
}

/// The version of a key that is there; its value is whole.
fn version_of(cache: &Cache, key: u64, now: u64) -> Option<u64> {
    let read = cache.get(&key.to_le_bytes(), now, |item| {
        let mut read = Vec::new();
        item.append_to(&mut read).unwrap();
        read
    })?;
    let version = u64::from_le_bytes(read[..8].try_into().unwrap());
    assert!(read == versioned(key, version), "key {key}: a value that was never stored");
    Some(version)
}

#[test]
fn threads_that_read_and_write_find_the_last_value_or_none_whatever_is_switched() {
    const THREADS: u64 = 3;
    const KEYS: u64 = 24_000;
    let cache = Options { partitions: 2, shared_reads: true, ..options(8, 48) };
    let cache = Cache::new(cache).unwrap();
    for key in 0..KEYS {
        cache.set(&key.to_le_bytes(), &versioned(key, 0), 0, 0, 1).unwrap();
    }
    let (ends, clock) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, ends, clock) = (&cache, &ends, &clock);
            scope.spawn(move || {
                let (mut last, mut random) = (vec![0; KEYS as usize], thread);
                // Relaxed: numbers by themselves.
                while !ends.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Relaxed: as above.
                    let now = clock.load(Ordering::Relaxed);
                    let key = (random >> 33) % KEYS;
                    let found = version_of(cache, key, now);
                    if key % THREADS != thread {
                        continue;
                    }
                    let last = &mut last[key as usize];
                    assert!(found.is_none_or(|found| found == *last), "{found:?}, not {last}");
                    *last += 1;
                    let value = versioned(key, *last);
                    cache.set(&key.to_le_bytes(), &value, 0, 0, now).unwrap();
                    assert!(version_of(cache, key, now).is_none_or(|found| found == *last));
                }
            });
        }
        for turn in 0..12 {
            let modes = [Tiering::Dram, Tiering::Data, transparent(), Tiering::Data];
            cache.switch(&modes[turn % 4]).unwrap();
            for _ in 0..25 {
                // Relaxed: as above.
                let now = clock.fetch_add(1000, Ordering::Relaxed) + 1000;
                cache.tidy(PartitionShare::ALL, now, || true);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        // Relaxed: as above.
        ends.store(true, Ordering::Relaxed);
    });
    let mut now = clock.into_inner();
    assert!(cache.stats().demotions > 1000, "{:?}", cache.stats());
    leave_all(&cache, &mut now);
    let there = (0..KEYS).filter(|key| version_of(&cache, *key, now).is_some()).count() as u64;
    assert!(there > 1000 && there == cache.stats().items, "{there}: {:?}", cache.stats());
}

fn leave_all(cache: &Cache, now: &mut u64) {
    cache.use_far(false).unwrap();
    for _ in 0..1000 {
        idle(cache, now, 1);
        if cache.stats().far_held_units == 0 {
            break;
        }
    }
    assert_eq!((cache.stats().far_bytes, cache.stats().far_held_units), (0, 0));
}

#[test]
fn a_server_is_switched_by_config_set_and_says_where_it_is() {
    let cache = Cache::new(options(8, 32)).unwrap();
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listen = ListenConfig { memcached: any, resp: any, ..ListenConfig::default() };
    let server = Server::start(cache.clone(), Settings::default(), &listen).unwrap();
    let (mut r, mut m) = (resp_of(&server), memcached_of(&server));
    let mut say = |words: &str| ask_text(&mut r, format!("{words}\r\n").as_bytes(), b"\r\n");
    for key in 0..5_u64 {
        cache.set(&key.to_le_bytes(), &value(key, 70_000), 0, 0, 1).unwrap();
    }
    assert_eq!(say("CONFIG SET tiering data"), "+OK\r\n");
    assert!(cache.uses_far() && cache.stats().far_bytes > 350_000);
    assert_eq!(say("config set Tiering DRAM"), "+OK\r\n");
    assert!(!cache.uses_far());
    for (words, error) in [
        ("CONFIG SET tiering transparent", "`rackpool tiers weights`"),
        ("CONFIG SET tiering transparent:0=3,1=1", "numa:0=3,numa:1=1"),
        ("CONFIG SET tiering transparent:numa:0=3,numa:777=1", "nodes with memory: 0"),
        ("CONFIG SET tiering data:numa:1", "dram, data and transparent:NODES"),
        ("CONFIG SET tiering", "wrong number of arguments"),
        ("CONFIG SET maxmemory 9mb", "to 8388608 are possible"),
    ] {
        let said = say(words);
        assert!(said.starts_with("-ERR ") && said.contains(error), "{words}: {said}");
    }
    wait_until("far memory is the system's", || cache.stats().far_held_units == 0);
    assert!((0..5_u64).all(|key| is_whole(&cache, key, 70_000, 1)));
    for mode in ["transparent:NUMA:0=3", "data", "transparent"] {
        assert_eq!(say(&format!("CONFIG SET tiering {mode}")), "+OK\r\n");
    }
    assert_eq!(cache.tiering(), Tiering::Transparent("numa:0=3".parse().unwrap()));
    wait_until("its pages are where they are to be", || {
        let stats = cache.stats();
        stats.pages_left_bytes == 0 && stats.far_held_units == 0
    });
    let info = ask_text(&mut resp_of(&server), b"INFO memory\r\n", b"stayed_bytes:0\r\n\r\n");
    assert!(info.contains("tiering:transparent\r\n") && info.contains("pages_left_bytes:0\r\n"));
    assert!((0..5_u64).all(|key| is_whole(&cache, key, 70_000, 1)));
    assert_eq!(say("CONFIG SET tiering dram"), "+OK\r\n");
    let shown = ask(&mut resp_of(&server), b"CONFIG GET tiering\r\n", b"dram\r\n");
    assert_eq!(shown, b"*2\r\n$7\r\ntiering\r\n$4\r\ndram\r\n");
    let stats = ask_text(&mut m, b"stats\r\n", b"END\r\n");
    assert!(stats.contains("STAT far_held_bytes 0\r\n"), "{stats}");
    let metrics = server.shared().metrics();
    for line in [
        "rackpool_kv_far_memory_used 0\n",
        "rackpool_kv_far_held_bytes 0\n",
        "rackpool_kv_pages_moved_bytes_total 0\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let plain = ours(Settings::default());
    let mut r = resp_of(&plain);
    assert_eq!(ask(&mut r, b"CONFIG SET tiering dram\r\n", b"\r\n"), b"+OK\r\n");
    let said = ask_text(&mut r, b"CONFIG SET tiering data\r\n", b"\r\n");
    assert!(said.contains("without far memory"), "{said}");
}

#[test]
fn a_value_that_is_too_long_without_far_memory_takes_the_old_one_with_it() {
    let cache = Cache::new(options(8, 32)).unwrap();
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listen = ListenConfig { memcached: any, resp: any, ..ListenConfig::default() };
    let value_bytes_max = cache.options().max_value;
    let settings = Settings { value_bytes_max, ..Settings::default() };
    let server = Server::start(cache.clone(), settings, &listen).unwrap();
    let (mut r, mut m) = (resp_of(&server), memcached_of(&server));
    let bytes = 4 << 20;
    assert!(bytes < value_bytes_max && bytes > cache.options().memory / 4);
    let long = vec![b'x'; bytes as usize];
    let set = [format!("set k 0 0 {bytes}\r\n").as_bytes(), &long, b"\r\n"].concat();
    assert_eq!(ask_text(&mut m, &set, b"\r\n"), "STORED\r\n");
    assert_eq!(ask_text(&mut r, b"CONFIG SET tiering dram\r\n", b"\r\n"), "+OK\r\n");
    assert_eq!(ask_text(&mut m, b"set k 0 0 5\r\nshort\r\n", b"\r\n"), "STORED\r\n");
    let said = ask_text(&mut m, &set, b"\r\n");
    let why = "the memory of a partition takes values of up to ";
    let expected = format!("SERVER_ERROR object too large for cache: {why}");
    assert!(said.starts_with(&expected), "{said}");
    assert_eq!(ask_text(&mut m, b"get k\r\n", b"END\r\n"), "END\r\n");
    let said = ask_text(&mut r, &words(&[b"SET", b"k", &long]), b"\r\n");
    assert!(said.starts_with(&format!("-ERR a value of {bytes} bytes: {why}")), "{said}");
    let head = format!("*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n${bytes}\r\n");
    let said = ask_text(&mut r, &[head.as_bytes(), &long, b"\r\n"].concat(), b"\r\n");
    assert!(said.starts_with("-ERR "), "{said}");
    assert_eq!(ask_text(&mut r, b"GET a\r\n", b"\r\n"), "$-1\r\n");
}
