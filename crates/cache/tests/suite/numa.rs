//! Values and whole caches on memory nodes of this host: every page where it was placed, values
//! whole, also after a kill, and nodes that are not there refused.

use rackpool_cache::numa_tier::NumaTier;
use rackpool_cache::{Cache, Error, Item, Options, TierConfig, TierRule};
use rackpool_core::seam::Mem;
use rackpool_mem::numa::Placement;
use rackpool_mem::window::Window;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 500;
const CHILD: &str = "RACKPOOL_NUMA_CHILD";
const TIER_BYTES: u64 = 48 << 20;
const FROM_BYTES: u64 = 2048;

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/rackpool-numa-test-{}-{name}", std::process::id()))
}

fn node_0() -> Placement {
    "numa:0".parse().unwrap()
}

fn options() -> Options {
    Options { memory: 16 << 20, partitions: 2, seed: 11, ..Options::default() }
}

fn tier_config(tier: NumaTier) -> TierConfig {
    TierConfig {
        tier: Arc::new(tier),
        min_bytes: FROM_BYTES,
        memory: TIER_BYTES,
        max_value: 0,
        rule: TierRule::Length,
    }
}

/// Version, key and what follows from both; half of the values are long.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mixed = xxh3_64(&[key.to_le_bytes(), version.to_le_bytes()].concat());
    let len = if mixed & 1 == 0 { mixed % 500 } else { FROM_BYTES + mixed % 60_000 };
    let mut value = [version.to_le_bytes(), key.to_le_bytes()].concat();
    value.extend((0..len).map(|index| (mixed >> (index % 56)) as u8 ^ index as u8));
    value
}

/// The version of an item of this key; its value is whole.
fn version_of(key: u64, item: &Item<'_>) -> u64 {
    let mut bytes = Vec::new();
    item.append_to(&mut bytes).unwrap();
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value(key, version), "{key}: a value that was never stored");
    assert_eq!(item.is_far(), item.len() >= FROM_BYTES);
    version
}

fn pages_elsewhere(window: &Window) -> u64 {
    window.node_pages().unwrap().into_iter().filter(|(node, _)| *node != 0).map(|it| it.1).sum()
}

#[test]
fn long_values_lie_on_their_node_page_by_page_and_come_back_whole() {
    let tier = Arc::new(NumaTier::new(&node_0(), TIER_BYTES).unwrap());
    let tier_config = TierConfig {
        tier: Arc::clone(&tier) as Arc<_>,
        min_bytes: FROM_BYTES,
        memory: TIER_BYTES,
        max_value: 0,
        rule: TierRule::Length,
    };
    let cache = Cache::new(options()).unwrap().with_tier(&tier_config).unwrap();
    for version in 1..6 {
        for key in 0..KEYS {
            cache.set(&key.to_le_bytes(), &value(key, version), 0, 0, 1).unwrap();
        }
    }
    for key in 0..KEYS {
        let found = cache.get(&key.to_le_bytes(), 1, |item| version_of(key, item));
        assert_eq!(found, Some(5), "{key}");
    }
    let long = (0..KEYS).filter(|key| value(*key, 5).len() as u64 >= FROM_BYTES).count();
    assert_eq!(cache.stats().tier_items, long as u64);
    let pages: u64 = tier.window().node_pages().unwrap().into_values().sum();
    assert!(pages * 4096 >= cache.stats().tier_bytes && pages_elsewhere(tier.window()) == 0);
    cache.clear(1);
    assert_eq!((cache.stats().tier_items, cache.stats().tier_bytes), (0, 0));
}

#[test]
fn all_of_a_cache_comes_from_the_nodes_that_were_named() {
    let placement = Some("numa:0=3".parse().unwrap());
    let cache = Cache::new(Options { placement: placement.clone(), ..options() }).unwrap();
    cache.set(b"key", b"value", 0, 0, 1).unwrap();
    assert_eq!(cache.len(), 1);
    let path = path("placed");
    for round in 0..2 {
        let options = Options { placement: placement.clone(), ..options() };
        let (cache, recovered) = Cache::open(options, &path).unwrap();
        assert_eq!(recovered.items, round);
        cache.set(b"key", b"value", 0, 0, 1).unwrap();
    }
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let window = Window::of_file(file.as_fd(), file.metadata().unwrap().len()).unwrap();
    (0..window.bytes()).step_by(4096).for_each(|at| _ = window.load(at));
    let pages: u64 = window.node_pages().unwrap().into_values().sum();
    assert_eq!((pages, pages_elsewhere(&window)), (window.bytes() / 4096, 0));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn nodes_that_are_not_there_are_refused_with_those_that_are() {
    let (placement, path): (Placement, _) = ("numa:777".parse().unwrap(), path("nowhere"));
    let whole = Options { placement: Some(placement.clone()), ..options() };
    let errors = [
        Cache::new(whole).map(drop).unwrap_err(),
        NumaTier::new(&placement, 1 << 20).map(drop).unwrap_err(),
        NumaTier::open(&placement, 1 << 20, &path).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Numa(_)) && error.code() == "no-node", "{error}");
        assert!(error.to_string().contains("nodes with memory: 0"), "{error}");
    }
    assert!(!path.exists());
}

#[test]
fn a_file_that_holds_something_else_is_refused_and_stays_as_it_is() {
    let (note, link) = (path("note"), path("link"));
    std::fs::write(&note, "the only copy of it").unwrap();
    std::fs::set_permissions(&note, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&note, &link).unwrap();
    for name in [&note, &link] {
        let error = NumaTier::open(&node_0(), 1 << 20, name).map(drop).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { .. }), "{error}");
        assert_eq!(std::fs::read(&note).unwrap(), b"the only copy of it");
        assert_eq!(std::fs::metadata(&note).unwrap().permissions().mode() & 0o777, 0o644);
    }
    std::fs::remove_file(&link).unwrap();
    std::fs::remove_file(&note).unwrap();
}

fn open(path: &Path) -> (Cache, u64, u64) {
    let values = PathBuf::from(format!("{}.values", path.display()));
    let tier_config = tier_config(NumaTier::open(&node_0(), TIER_BYTES, &values).unwrap());
    let (cache, found) = Cache::open_with_tier(options(), path, Some(&tier_config)).unwrap();
    (cache, found.items, found.lost)
}

/// What the child does until it is killed; what was stored is entered in a file of its own.
#[test]
fn child_under_load() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let (cache, ..) = open(Path::new(&name));
    let file = std::fs::File::options().read(true).write(true).open(name + ".acked").unwrap();
    let acked = Window::of_file(file.as_fd(), KEYS * 8).unwrap();
    for version in 1.. {
        let key = xxh3_64(&u64::to_le_bytes(version)) % KEYS;
        let bytes = value(key, version);
        if version % 5 == 0 {
            let mut writer =
                cache.reserve(&key.to_le_bytes(), bytes.len() as u64, 0, 0, 1).unwrap();
            bytes.chunks(5000).for_each(|piece| writer.write(piece));
            writer.commit(&cache, 1).unwrap();
        } else {
            cache.set(&key.to_le_bytes(), &bytes, 0, 0, 1).unwrap();
        }
        acked.store(key * 8, version);
    }
}

#[test]
fn a_killed_process_leaves_its_long_values_whole_on_their_node() {
    let path = path("kill");
    let files = ["", ".acked", ".values"].map(|end| format!("{}{end}", path.display()));
    std::fs::write(&files[1], vec![0; KEYS as usize * 8]).unwrap();
    let mut newest = 0;
    for pause_ms in [250, 90, 310] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "numa::child_under_load", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&files[1]).unwrap();
        let acked = Window::of_file(file.as_fd(), KEYS * 8).unwrap();
        let (cache, items, lost) = open(&path);
        for key in 0..KEYS {
            let stored = acked.load(key * 8);
            let found = cache.get(&key.to_le_bytes(), 1, |item| version_of(key, item));
            assert!(found >= Some(stored) || stored == 0, "{key}: {found:?} after {stored}");
            newest = newest.max(found.unwrap_or(0));
            acked.store(key * 8, 0);
        }
        println!("{items} items, {lost} lost, {} far", cache.stats().tier_items);
        assert!(lost <= 4, "{lost} lost: what was being written, and what it replaced");
        cache.clear(1);
    }
    assert!(newest > 500, "{newest} versions");
    // What was changed since is found by its hash, and only that is lost.
    let (cache, ..) = open(&path);
    (0..KEYS).for_each(|key| _ = cache.set(&key.to_le_bytes(), &value(key, 1), 0, 0, 1).unwrap());
    let far = cache.stats().tier_items;
    drop(cache);
    let mut bytes = std::fs::read(&files[2]).unwrap();
    // Behind the header.
    bytes[4096 + 100] ^= 1;
    std::fs::write(&files[2], bytes).unwrap();
    let (cache, items, lost) = open(&path);
    assert_eq!((items, lost, cache.stats().tier_items), (KEYS - 1, 1, far - 1));
    drop(cache);
    // Without the tier its values are lost, and the others are there.
    let (cache, recovered) = Cache::open(options(), &path).unwrap();
    assert_eq!((recovered.items, cache.stats().tier_items), (KEYS - far, 0));
    drop(cache);
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
}
