//! Hashes in a cache's file: there again after a clean end, and after a kill in the midst of
//! changes, each whole.

use crate::hash_items::{Fields, all_of, fields_of, set, times};
use crate::peers::Rng;
use rackpool_cache::hashes::FieldExpiry;
use rackpool_cache::{Cache, Options};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD: &str = "RACKPOOL_HASH_CHILD";
const HASHES: usize = 12;

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/rackpool-hash-test-{}-{name}", std::process::id()))
}

/// A file that goes with it.
struct TestFile(PathBuf);

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(path: &Path) -> (Cache, u64) {
    let options = Options { memory: 64 << 20, partitions: 2, seed: 5, ..Options::default() };
    let (cache, recovered) = Cache::open(options, path).unwrap();
    assert_eq!(recovered.damaged, 0);
    (cache, recovered.items)
}

#[test]
fn hashes_are_there_again_in_their_databases() {
    let file = TestFile(path("clean"));
    let (cache, _) = open(&file.0);
    for number in 0..HASHES {
        let count = [3, 40, 5000][number % 3];
        let database = cache.in_database(number as u8 % 4);
        set(&database, format!("hash {number}").as_bytes(), &fields_of(number, count)).unwrap();
    }
    let mut hash = cache.hash_entry(b"mortal", times(1)).unwrap();
    for (name, value) in fields_of(99, 1000) {
        hash.set(&name, &value, FieldExpiry::Set(500)).unwrap();
    }
    hash.finish().unwrap();
    let mut counts: Vec<u64> = (0..4).map(|number| cache.items_of(number)).collect();
    drop(cache);
    let (cache, items) = open(&file.0);
    assert_eq!(items, HASHES as u64 + 1);
    assert_eq!((0..4).map(|number| cache.items_of(number)).collect::<Vec<_>>(), counts);
    for number in 0..HASHES {
        let database = cache.in_database(number as u8 % 4);
        let written: Fields = fields_of(number, [3, 40, 5000][number % 3]).into_iter().collect();
        let (count, fields) = all_of(&database, format!("hash {number}").as_bytes(), 1).unwrap();
        assert_eq!((count, &fields), (written.len() as u64, &written), "hash {number}");
    }
    assert_eq!(all_of(&cache, b"mortal", 499).unwrap().1.len(), 1000);
    assert_eq!(all_of(&cache, b"mortal", 500).unwrap().1.len(), 0);
    // They can be changed as before.
    set(&cache, b"hash 8", &[(b"more".to_vec(), b"value".to_vec())]).unwrap();
    assert_eq!(all_of(&cache, b"hash 8", 1).unwrap().0, 5001);
    cache.flush_database(1, 1);
    counts[1] = 0;
    cache.expire(1);
    assert_eq!((0..4).map(|number| cache.items_of(number)).collect::<Vec<_>>(), counts);
}

/// What the child does until it is killed.
#[test]
fn hash_child_under_load() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let (cache, _) = open(Path::new(&name));
    let mut rng = Rng(u64::from(std::process::id()));
    loop {
        let number = rng.below(HASHES);
        let key = format!("hash {number}");
        let fields = fields_of(number, 2000);
        if rng.chance(400) {
            cache.remove(key.as_bytes(), 1);
        }
        let mut hash = cache.hash_entry(key.as_bytes(), times(1)).unwrap();
        for _ in 0..1 + rng.below(20) {
            let (name, value) = &fields[rng.below(fields.len())];
            match rng.chance(3) {
                true => drop(hash.remove(name).unwrap()),
                false => drop(hash.set(name, value, FieldExpiry::Set(0)).unwrap()),
            }
        }
        hash.finish().unwrap();
    }
}

#[test]
fn hashes_are_whole_after_a_kill() {
    let file = TestFile(path("kill"));
    let mut rng = Rng(3);
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["hash_restart::hash_child_under_load", "--exact", "--nocapture"])
            .env(CHILD, &file.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + rng.next() % 400));
        child.kill().unwrap();
        child.wait().unwrap();
        let (cache, items) = open(&file.0);
        let mut found = 0;
        for number in 0..HASHES {
            let written: Fields = fields_of(number, 2000).into_iter().collect();
            let (count, fields) = all_of(&cache, format!("hash {number}").as_bytes(), 1).unwrap();
            assert_eq!(count, fields.len() as u64, "hash {number}");
            assert!(fields.iter().all(|(name, value)| written.get(name) == Some(value)));
            found += u64::from(count > 0);
        }
        assert_eq!((items, cache.len()), (found, found), "round {round}");
    }
}
