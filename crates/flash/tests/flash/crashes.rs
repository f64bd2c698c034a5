//! The process dies, or the power goes, at each write: what is found then was true at that moment.

use crate::device::{Crash, Random, TestDevice};
use crate::{REGION_BYTES, hash, image, options, put, read, record, value};
use rackpool_flash::constants::HEAD_BYTES;
use rackpool_flash::{Error, Flash, FlashPut, Options};
use rackpool_mem::temporary::TemporaryDir;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

const KEYS: u64 = 40;
const STEPS: u64 = 500;
/// Of a store: more than fit without emptying regions.
const STORE_STEPS: u64 = 240;
const REGIONS: u64 = 7;

/// Steps that a client takes, by a seed.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An item leaves memory.
    Leave(u64),
    /// It changes in memory, or is removed there: what flash has is wrong.
    Change(u64),
    /// All are flushed.
    Flush,
    /// What was done is written.
    Sync,
}

fn steps(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let step = |_| match random.below(100) {
        0..60 => Step::Leave(random.below(KEYS)),
        60..90 => Step::Change(random.below(KEYS)),
        90 => Step::Flush,
        _ => Step::Sync,
    };
    (0..STEPS).map(step).collect()
}

/// The version of each item after so many steps; a flush is a change of all.
fn versions(steps: &[Step]) -> BTreeMap<u64, u64> {
    let mut versions: BTreeMap<_, _> = (0..KEYS).map(|key| (key, 0)).collect();
    for step in steps {
        match step {
            Step::Change(key) => *versions.get_mut(key).unwrap() += 1,
            Step::Flush => versions.values_mut().for_each(|version| *version += 1),
            Step::Leave(_) | Step::Sync => {}
        }
    }
    versions
}

fn run(flash: &Flash, device: &TestDevice, steps: &[Step]) {
    let mut versions = versions(&[]);
    for step in steps {
        match step {
            Step::Leave(key) => {
                // Where nothing is written any more it is dropped.
                while put(flash, *key, versions[key], 30_000) == FlashPut::Dropped {
                    if device.crash().is_some() {
                        return;
                    }
                    std::thread::yield_now();
                }
            }
            Step::Change(key) => {
                flash.forget(hash(*key));
                *versions.get_mut(key).unwrap() += 1;
            }
            Step::Flush => {
                flash.forget_all();
                versions.values_mut().for_each(|version| *version += 1);
            }
            Step::Sync => drop(flash.sync()),
        }
        device.steps.fetch_add(1, Ordering::SeqCst);
        if device.crash().is_some() {
            return;
        }
    }
}

/// What is found after a crash; how many items.
fn check(crash: &Crash, steps: &[Step], options: Options, what: &str) -> u64 {
    let device = TestDevice::new(crash.image.clone());
    let (flash, recovered) = Flash::open_on(Box::new(device.clone()), options).unwrap();
    let done = crash.steps as usize;
    // The step under way may have been done or not.
    let (before, after) = (versions(&steps[..done]), versions(&steps[..steps.len().min(done + 1)]));
    let mut found = 0;
    for key in 0..KEYS {
        if let Some(version) = read(&flash, key) {
            found += 1;
            let may_be = [before[&key], after[&key]];
            assert!(may_be.contains(&version), "{what}, {crash:?}", crash = (key, version, may_be));
        }
    }
    assert_eq!(flash.stats().damaged, 0, "{what}: {recovered:?}");
    found
}

fn dies_at(folder: &Path, write: u64, steps: &[Step]) -> Option<u64> {
    let (journal, kept) = (folder.join("journal"), folder.join("kept"));
    for path in [&journal, &kept] {
        let _ = std::fs::remove_file(path);
    }
    let with_journal = |path: &Path| Options { journal: Some(path.into()), ..options(REGIONS) };
    let device = TestDevice::new(image(REGIONS));
    device.die_at(write, false, Some((journal.clone(), kept.clone())));
    // The first writes are those of the superblock.
    if let Ok((flash, _)) = Flash::open_on(Box::new(device.clone()), with_journal(&journal)) {
        run(&flash, &device, steps);
    }
    let crash = device.crash()?;
    Some(check(&crash, steps, with_journal(&kept), &format!("killed at write {write}")))
}

#[test]
fn a_process_killed_at_any_write_leaves_nothing_that_was_changed_before() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    for seed in [1, 2] {
        let steps = steps(seed);
        let mut found = Vec::new();
        for write in 3.. {
            let Some(items) = dies_at(folder.path(), write, &steps) else { break };
            found.push(items);
        }
        println!("seed {seed}: {} crashes, items {found:?}", found.len());
        assert!(found.len() > 50 && found.iter().filter(|items| **items > 3).count() > 20);
    }
}

#[test]
fn a_block_that_is_damaged_after_the_end_brings_nothing_back() {
    let steps = steps(4);
    let device = TestDevice::new(image(REGIONS));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(REGIONS)).unwrap();
    run(&flash, &device, &steps);
    drop(flash);
    let (image, mut counts) = (device.image(), Vec::new());
    let crash_of = |image| Crash { image, steps: STEPS };
    let whole = check(&crash_of(image.clone()), &steps, options(REGIONS), "whole");
    let first = HEAD_BYTES as usize / 4096;
    for block in (first..image.len() / 4096).step_by(23) {
        let mut damaged = image.clone();
        damaged[block * 4096 + 24] ^= 0x55;
        let what = format!("block {block}");
        counts.push(check(&crash_of(damaged), &steps, options(REGIONS), &what));
    }
    println!("{whole} items, with a damaged block {counts:?}");
    assert!(whole > 5 && counts.contains(&whole) && counts.contains(&0));
}

#[test]
fn reads_and_writes_that_fail_now_and_then_bring_nothing_back() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let (journal, kept) = (folder.path().join("journal"), folder.path().join("kept"));
    let with_journal = |path: &Path| Options { journal: Some(path.into()), ..options(24) };
    for seed in 1..=6 {
        let _ = std::fs::remove_file(&journal);
        let device = TestDevice::new(image(24));
        let (flash, _) = Flash::open_on(Box::new(device.clone()), with_journal(&journal)).unwrap();
        device.fail_now_and_then(seed);
        let (mut versions, mut random, mut hits) = (versions(&[]), Random(seed + 100), 0);
        for step in steps(seed) {
            match step {
                Step::Leave(key) => drop(put(&flash, key, versions[&key], 30_000)),
                Step::Change(key) => {
                    flash.forget(hash(key));
                    *versions.get_mut(&key).unwrap() += 1;
                }
                Step::Flush => {
                    flash.forget_all();
                    versions.values_mut().for_each(|version| *version += 1);
                }
                Step::Sync => drop(flash.sync()),
            }
            let key = random.below(KEYS);
            if let Ok(Some(item)) = flash.read(hash(key), &key.to_le_bytes()) {
                assert_eq!(item.cas, versions[&key], "seed {seed}");
                hits += 1;
            }
        }
        println!("seed {seed}: {hits} hits, {:?}", flash.stats());
        assert!(hits > 50 && flash.stats().write_errors > 0 && flash.stats().read_errors > 0);
        // Killed, or closed in order.
        std::fs::copy(&journal, &kept).unwrap();
        let killed = TestDevice::new(device.image());
        device.heal();
        drop(flash);
        for (what, device, journal) in [("killed", killed, &kept), ("closed", device, &journal)] {
            let (flash, recovered) =
                Flash::open_on(Box::new(device), with_journal(journal)).unwrap();
            println!("{what}: {recovered:?}");
            for key in 0..KEYS {
                let found = read(&flash, key);
                let is_right = found.is_none_or(|version| version == versions[&key]);
                assert!(is_right, "seed {seed}, {what}, {key}: {found:?}, {}", versions[&key]);
            }
        }
    }
}

#[test]
fn what_cannot_be_read_at_the_start_is_not_believed_by_a_later_process_either() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let [journal, first, second, third] =
        ["journal", "first", "second", "third"].map(|name| folder.path().join(name));
    let with_journal = |path: &Path| Options { journal: Some(path.into()), ..options(REGIONS) };
    let steps = steps(4);
    let device = TestDevice::new(image(REGIONS));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), with_journal(&journal)).unwrap();
    run(&flash, &device, &steps);
    flash.sync().unwrap();
    // Killed.
    std::fs::copy(&journal, &first).unwrap();
    let (image, versions) = (device.image(), versions(&steps));
    drop(flash);
    let mut all_found = Vec::new();
    for region in 0..REGIONS {
        for part in [0, REGION_BYTES / 8] {
            let at = HEAD_BYTES + region * REGION_BYTES + part;
            std::fs::copy(&first, &second).unwrap();
            let device = TestDevice::new(image.clone());
            device.fail_reads(at..at + 1);
            let (flash, _) =
                Flash::open_on(Box::new(device.clone()), with_journal(&second)).unwrap();
            let mut found = 0;
            for (key, version) in &versions {
                if let Ok(Some(item)) = flash.read(hash(*key), &key.to_le_bytes()) {
                    assert_eq!(item.cas, *version, "region {region}, {part}");
                    found += 1;
                }
            }
            all_found.push(found);
            // All change, and it is killed before anything is written.
            for key in versions.keys() {
                flash.forget(hash(*key));
            }
            std::fs::copy(&second, &third).unwrap();
            let left = TestDevice::new(device.image());
            drop(flash);
            let (flash, _) = Flash::open_on(Box::new(left), with_journal(&third)).unwrap();
            for key in versions.keys() {
                assert_eq!(read(&flash, *key), None, "region {region}, {part}");
            }
        }
    }
    println!("{all_found:?}");
    assert!(all_found.contains(&0) && all_found.iter().any(|found| *found > 5));
    // Nor does damage bring anything back.
    let first_block = HEAD_BYTES as usize / 4096;
    for block in (first_block..image.len() / 4096).step_by(29) {
        let mut damaged = image.clone();
        damaged[block * 4096 + 24] ^= 0x55;
        std::fs::copy(&first, &second).unwrap();
        let crash = Crash { image: damaged, steps: STEPS };
        check(&crash, &steps, with_journal(&second), &format!("block {block}"));
    }
}

#[test]
fn without_its_journal_a_cache_that_did_not_end_in_order_begins_empty() {
    let device = TestDevice::new(image(REGIONS));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(REGIONS)).unwrap();
    put(&flash, 1, 1, 100);
    flash.sync().unwrap();
    let left = TestDevice::new(device.image());
    let (left, recovered) = Flash::open_on(Box::new(left), options(REGIONS)).unwrap();
    assert!(recovered.is_dropped && !recovered.is_new && recovered.items == 0);
    assert_eq!(read(&left, 1), None);
}

/// A store's steps: a key, and a version that is stored, or none: it is removed.
fn store_steps(seed: u64) -> Vec<(u64, Option<u64>)> {
    let mut random = Random(seed);
    let step = |version| {
        let key = random.below(KEYS);
        (key, (random.below(4) > 0).then_some(version))
    };
    (1..=STORE_STEPS).map(step).collect()
}

fn is_store() -> Options {
    Options { is_store: true, ..options(REGIONS) }
}

fn store(flash: &Flash, key: u64, version: Option<u64>) -> Result<(), Error> {
    loop {
        let ticket = match version {
            Some(version) => {
                let value = value(key, version, 40_000);
                flash.store(&record(key, version, &key.to_le_bytes(), &value)).map(Some)
            }
            None => flash.remove(hash(key)),
        };
        match ticket {
            Ok(Some(ticket)) => return flash.wait(ticket),
            Ok(None) => return Ok(()),
            Err(Error::Busy { .. }) => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn a_store_has_what_it_acknowledged_after_a_power_cut_at_any_write() {
    let steps = store_steps(3);
    for write in 3.. {
        let device = TestDevice::new(image(REGIONS));
        device.die_at(write, true, None);
        let (flash, _) = Flash::open_on(Box::new(device.clone()), is_store()).unwrap();
        for (key, version) in &steps {
            if store(&flash, *key, *version).is_err() {
                break;
            }
            device.steps.fetch_add(1, Ordering::SeqCst);
        }
        drop(flash);
        let Some(crash) = device.crash() else {
            println!("{write} writes");
            assert!(write > STORE_STEPS / 2, "{write}");
            break;
        };
        let left = TestDevice::new(crash.image);
        let (flash, recovered) = Flash::open_on(Box::new(left), is_store()).unwrap();
        let done = crash.steps as usize;
        let state =
            |steps: &[(u64, Option<u64>)]| steps.iter().copied().collect::<BTreeMap<_, _>>();
        let (before, after) = (state(&steps[..done]), state(&steps[..steps.len().min(done + 1)]));
        for key in 0..KEYS {
            let may_be = [&before, &after].map(|state| state.get(&key).copied().flatten());
            let found = read(&flash, key);
            assert!(
                may_be.contains(&found),
                "{write}: {key}, {found:?}, {may_be:?}, {recovered:?}"
            );
        }
    }
}

#[test]
fn a_store_is_full_in_time_and_never_loses() {
    let device = TestDevice::new(image(12));
    let options = || Options { is_store: true, ..options(12) };
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options()).unwrap();
    let mut stored = 0;
    let error = loop {
        match store(&flash, stored, Some(1)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(stored > 150, "{stored}");
    // Each is written anew, some many times, and others are removed for new ones.
    let mut random = Random(5);
    let mut versions: BTreeMap<u64, u64> = (0..stored).map(|key| (key, 1)).collect();
    for version in 2..600 {
        let key = random.below(stored);
        if version % 5 == 0 {
            store(&flash, key, None).unwrap();
            versions.remove(&key);
        } else if versions.contains_key(&key) {
            // Both are there until the new one is: room is made first.
            store(&flash, key, None).unwrap();
            store(&flash, key, Some(version)).unwrap();
            versions.insert(key, version);
        }
    }
    let all =
        |flash: &Flash| (0..stored).all(|key| read(flash, key) == versions.get(&key).copied());
    assert!(all(&flash));
    assert!(flash.stats().reinserted > 0);
    drop(flash);
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options()).unwrap();
    assert!(all(&flash));
    drop(flash);
    // A hole in its midst is no store any more.
    let mut broken = device.image();
    let regions = (0..12).map(|index| (HEAD_BYTES + index * REGION_BYTES) as usize);
    let sequence = |at: usize| u64::from_le_bytes(broken[at + 16..at + 24].try_into().unwrap());
    let mut by_age: Vec<_> = regions.map(|at| (sequence(at), at)).collect();
    by_age.sort_unstable();
    let at = by_age[9].1;
    broken[at..at + 4096].fill(0);
    let error = Flash::open_on(Box::new(TestDevice::new(broken)), options()).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}
