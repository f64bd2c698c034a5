//! Items in memory that persists: as a store and as a cache against a loss of power at any moment,
//! while segments are emptied; each safeguard that is left out is found.

use rackpool_core::persist::PersistenceDomain;
use rackpool_core::persist::images::{ImageOptions, Violation, explore, safeguards};
use rackpool_core::persist::recorder::{Event, StoreRecorder, Trace};
use rackpool_core::seam::Mem;
use rackpool_flash::{Error, FlashRecord, PersistentItems};
use rackpool_stats::random::Rng;
use std::collections::{BTreeMap, BTreeSet};

const BYTES: u64 = 16 * (24 << 10) + 4096;
const KEYS: u64 = 24;
/// Has a new version with each step, by which the step is known.
const CLOCK: u64 = 0;

/// The version of each key.
type Versions = BTreeMap<u64, u64>;

fn value(version: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|word| (version ^ word << 40).to_le_bytes());
    let mut value: Vec<u8> = version.to_le_bytes().into_iter().chain(words).collect();
    value.truncate(bytes.max(8));
    value
}

fn put<M: rackpool_core::persist::Persist>(
    items: &mut PersistentItems<M>,
    key: u64,
    version: u64,
    bytes: usize,
) -> Result<u64, Error> {
    let (name, value) = (key.to_le_bytes(), value(version, bytes));
    let (key, value) = (&name[..], &value[..]);
    let hash = u64::from_le_bytes(name);
    items.put(&FlashRecord { hash, key, value, flags: 7, kind: 1, expires: 9, cas: version })
}

/// What is found, whole, after a start.
fn found(memory: StoreRecorder, is_store: bool) -> Result<Versions, String> {
    let items = PersistentItems::open(memory, is_store);
    let mut items = items.map_err(|error| error.to_string())?;
    let mut found = Versions::new();
    for key in 0..KEYS {
        let Some(item) = items.read(key, &key.to_le_bytes()) else { continue };
        if item.value != value(item.cas, item.value.len()) || (item.flags, item.expires) != (7, 9) {
            return Err(format!("{key} is torn"));
        }
        found.insert(key, item.cas);
    }
    if items.len() != found.len() { Err("another item is there".into()) } else { Ok(found) }
}

/// A run with its trace, and what there was after each step; of a cache some may be missing.
struct RecordedRun {
    trace: Trace,
    after: Vec<Versions>,
    is_store: bool,
    /// Items that were appended once more.
    rewritten: u64,
}

/// So many changes, each acknowledged when it is durable.
fn run(domain: PersistenceDomain, is_store: bool, steps: u64, seed: u64) -> RecordedRun {
    let memory = StoreRecorder::new(vec![0; BYTES as usize], domain);
    PersistentItems::format(&memory, is_store, seed).unwrap();
    let mut items = PersistentItems::open(memory.clone(), is_store).unwrap();
    let mut random = Rng::new(seed);
    let (mut now, mut after, mut version) = (Versions::new(), vec![Versions::new()], 0);
    let mut note = |now: &Versions| {
        after.push(now.clone());
        after.len() as u64 - 1
    };
    for _ in 0..steps {
        version += 1;
        // Half of them change rarely: those are written once more.
        let half = if random.below(16) == 0 { KEYS / 2 } else { 1 };
        let key = half + random.below(KEYS / 2 - 1);
        let bytes = 8 + random.below(2500) as usize;
        // Each step changes something, so that no two leave the same.
        let is_removal = random.below(4) == 0 && now.contains_key(&key);
        // Before it can be found.
        match is_removal {
            true => drop(now.remove(&key)),
            false => drop(now.insert(key, version)),
        }
        memory.issue(note(&now));
        match is_removal {
            true => drop(items.remove(key).unwrap()),
            false => drop(put(&mut items, key, version, bytes).unwrap()),
        }
        now.insert(CLOCK, version);
        let step = note(&now);
        memory.issue(step);
        let change = put(&mut items, CLOCK, version, 8).unwrap();
        items.commit().unwrap();
        assert!(items.durable() >= change);
        (step - 1..=step).for_each(|step| memory.acknowledge(step));
    }
    let (_, rewritten) = items.written();
    println!("{domain} store {is_store}: {} items, {rewritten} rewritten", items.len());
    RecordedRun { trace: memory.trace(), after, is_store, rewritten }
}

impl RecordedRun {
    /// The steps that were done by what is found, or why that is not what any step left.
    fn steps(&self, image: Vec<u8>) -> Result<BTreeSet<u64>, String> {
        let found = found(StoreRecorder::new(image, self.trace.domain), self.is_store)?;
        let is_after = |after: &Versions| match self.is_store {
            true => *after == found,
            // What it kept of an item is its last version.
            false => {
                found.get(&CLOCK) == after.get(&CLOCK)
                    && found.iter().all(|(key, version)| after.get(key) == Some(version))
            }
        };
        // Of a cache that misses an item the next step may have left it so, too.
        let last = self.after.iter().position(is_after);
        let last = last.ok_or_else(|| format!("no step left {found:?}"))?;
        Ok((1..=last as u64).collect())
    }

    fn explore(&self, trace: &Trace, options: ImageOptions) -> Result<u64, Violation> {
        let explored = explore(trace, options, &mut |image| self.steps(image))?;
        Ok(explored.images)
    }
}

const OPTIONS: ImageOptions = ImageOptions {
    seed: 0x37_0301,
    samples: 2,
    combinations_max: 16,
    one_of: 24,
    ..ImageOptions::ALL
};

#[test]
fn a_loss_of_power_at_any_moment_loses_nothing_that_was_acknowledged_and_brings_nothing_back() {
    for (domain, is_store, steps) in [
        (PersistenceDomain::Adr, true, 500),
        (PersistenceDomain::Eadr, true, 300),
        (PersistenceDomain::Msync, true, 300),
        (PersistenceDomain::Adr, false, 500),
    ] {
        let run = run(domain, is_store, steps, 0x37_0302);
        let images = run.explore(&run.trace, OPTIONS).unwrap();
        println!("{domain} store {is_store}: {images} images");
        assert!(images > 500 && (run.rewritten > 0 || !is_store), "{images}");
    }
}

#[test]
fn a_fence_or_a_flush_that_is_left_out_is_found() {
    let run = run(PersistenceDomain::Adr, true, 120, 0x37_0303);
    let all = safeguards(&run.trace);
    // Those of the steps; what formatting and opening do is the log's own test.
    let first = run.trace.events.iter().position(|event| matches!(event, Event::Acknowledged(_)));
    let all: Vec<usize> = all.into_iter().filter(|at| Some(*at) > first).step_by(9).collect();
    let is_found = |at: &usize| {
        let options = ImageOptions { from: at.saturating_sub(1), one_of: 1, ..OPTIONS };
        let mut trace = run.trace.without(*at);
        // What comes soon after shows it.
        trace.events.truncate(at + 12);
        run.explore(&trace, options).is_err()
    };
    let found = all.iter().filter(|at| is_found(at)).count();
    println!("{found} of {} are found", all.len());
    assert!(found >= 12 && found * 10 >= all.len() * 9, "{found} of {}", all.len());
}

#[test]
fn a_store_is_full_in_time_and_has_all_that_it_took_and_goes_on_after_removals() {
    let memory = StoreRecorder::new(vec![0; BYTES as usize], PersistenceDomain::Adr);
    PersistentItems::format(&memory, true, 2).unwrap();
    let mut items = PersistentItems::open(memory.clone(), true).unwrap();
    let longest = items.item_bytes_max() as usize - 8;
    assert!(matches!(put(&mut items, 1, 1, longest + 1), Err(Error::TooLarge { .. })));
    let mut count = 0;
    while put(&mut items, count, count + 1, 1500).is_ok() {
        count += 1;
    }
    assert!(matches!(put(&mut items, count, 1, 1500), Err(Error::Full { .. })));
    assert!(count > 100, "{count}");
    // More than once round, full as it is.
    for round in 0..6 {
        for key in 0..count {
            let version = 1000 * (round + 1) + key;
            items.remove(key).unwrap().unwrap();
            put(&mut items, key, version, 1500).unwrap();
        }
    }
    items.commit().unwrap();
    drop(items);
    let mut items = PersistentItems::open(memory, true).unwrap();
    assert_eq!(items.len() as u64, count);
    for key in 0..count {
        assert_eq!(items.read(key, &key.to_le_bytes()).unwrap().cas, 6000 + key);
    }
    assert!(items.read(0, b"other").is_none());
    items.remove_all().unwrap();
    assert!(items.is_empty() && put(&mut items, 1, 1, longest).is_ok());
}

#[test]
fn a_cache_keeps_what_was_read_and_never_an_old_version() {
    let memory = StoreRecorder::new(vec![0; BYTES as usize], PersistenceDomain::Adr);
    PersistentItems::format(&memory, false, 2).unwrap();
    assert!(matches!(
        PersistentItems::open(memory.clone(), true),
        Err(Error::Geometry { what: "mode (1: store)", .. })
    ));
    let mut items = PersistentItems::open(memory.clone(), false).unwrap();
    let mut gone = BTreeSet::new();
    for key in 0..2000 {
        put(&mut items, key, key, 1500).unwrap();
        // One is asked for again and again, others are removed.
        items.read(0, &0_u64.to_le_bytes()).unwrap();
        if key % 10 == 9 {
            items.remove(key - 1).unwrap();
            gone.insert(key - 1);
        }
    }
    items.commit().unwrap();
    drop(items);
    let mut items = PersistentItems::open(memory.clone(), false).unwrap();
    assert!(items.contains(0) && (100..300).contains(&items.len()), "{}", items.len());
    assert!(gone.iter().all(|key| !items.contains(*key)));
    assert_eq!(items.read(1999, &1999_u64.to_le_bytes()).unwrap().value, value(1999, 1500));
    assert!(memory.bytes() == BYTES);
}
