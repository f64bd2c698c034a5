//! Random lives of a log in persistent memory: entries, commits, killed processes, compaction, and
//! losses of power, after which the next life begins with any of the images that the one before may
//! have left. `RACKPOOL_SEEDS_TIMES` makes them more.

use crate::daemon_images::times;
use crate::persist_log::{Contents, ID, content, geometry, goes_on, used_memory};
use rackpool_core::persist::PersistenceDomain;
use rackpool_core::persist::images::{ImageOptions, Random, explore};
use rackpool_core::persist::log::{Location, Log, LogError};
use rackpool_core::persist::recorder::{StoreRecorder, Trace};
use std::collections::{BTreeMap, BTreeSet};

/// Lives of one run, which have more than 100,000 images.
const LIVES: u64 = 30;
/// Losses of power in one life.
const LOSSES: u64 = 3;
const STEPS: u64 = 14;
/// All live entries fit into one segment, so that compaction always makes room.
const LIVE_BYTES_MAX: usize = 16_000;

/// What recovery finds in an image: the entries up to some token, each whole, in a log that goes
/// on.
fn recover(image: Vec<u8>, domain: PersistenceDomain) -> Result<BTreeSet<u64>, String> {
    let memory = StoreRecorder::new(image, domain);
    let (log, found) = Contents::open(memory.clone());
    let log = match log {
        Err(LogError::NotALog) => return Ok(BTreeSet::new()),
        Ok(log) if log.id() != ID => return Ok(BTreeSet::new()),
        log => log.map_err(|error| error.to_string())?,
    };
    if let Some(token) = found.torn {
        return Err(format!("entry {token} is torn"));
    }
    let tokens = found.tokens();
    if tokens.iter().copied().ne(1..=tokens.len() as u64) {
        return Err(format!("entries {tokens:?} with a gap"));
    }
    goes_on(&memory, log, &found)?;
    Ok(tokens)
}

/// A log between two losses of power.
struct Boot {
    memory: StoreRecorder,
    log: Log<StoreRecorder>,
    /// Where each token is by now.
    entries: BTreeMap<u64, Location>,
    is_gathering: bool,
    /// Events that processes which were killed did not come to.
    never: Vec<usize>,
}

impl Boot {
    fn new(image: Vec<u8>, domain: PersistenceDomain, durable: &BTreeSet<u64>) -> Self {
        let memory = StoreRecorder::new(image, domain);
        (0..=100).for_each(|token| memory.issue(token));
        durable.iter().for_each(|token| memory.acknowledge(*token));
        let is_made = |log: &Result<Log<StoreRecorder>, LogError>| {
            log.as_ref().is_ok_and(|log| log.id() == ID)
        };
        // The image is looked at in a copy: what recovery does there is not of this trace.
        let copy = StoreRecorder::new(memory.visible(), domain);
        if !is_made(&Contents::open(copy).0) {
            Log::format(&memory, geometry(), ID).unwrap();
        }
        let (log, entries) = open(&memory);
        Self { memory, log, entries, is_gathering: false, never: Vec::new() }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(8) {
            0..4 => self.append_one(random),
            4..6 => self.commit(),
            6 => self.kill(),
            _ => self.compact(),
        }
    }

    fn append_one(&mut self, random: &mut Random) {
        let bytes = match random.below(4) {
            0 => 8 + random.below(60),
            1 => 64 + random.below(500),
            2 => 500 + random.below(2500),
            _ => 3000 + random.below(9000),
        };
        let live: usize = self.entries.values().map(|at| at.bytes as usize).sum();
        let token = self.entries.len() as u64 + 1;
        if live + bytes as usize <= LIVE_BYTES_MAX {
            self.append(token, bytes as usize);
        }
    }

    fn append(&mut self, token: u64, bytes: usize) -> bool {
        match self.log.append(token as u32, &[&content(token, bytes)]) {
            Ok(appended) => {
                self.entries.insert(token, appended.at);
                self.is_gathering = true;
                true
            }
            Err(error) => {
                assert_eq!(error, LogError::Full { segments: geometry().segment_count() });
                false
            }
        }
    }

    fn commit(&mut self) {
        self.log.commit().unwrap();
        self.is_gathering = false;
        self.entries.keys().for_each(|token| self.memory.acknowledge(*token));
    }

    /// The process dies between its last store and what would have sent that on its way.
    fn kill(&mut self) {
        if self.is_gathering {
            self.log.write_out();
            self.never.push(self.memory.trace().events.len() - 1);
        }
        let (log, found) = open(&self.memory);
        assert!(found.keys().eq(self.entries.keys()), "{found:?}, not {:?}", self.entries);
        (self.log, self.entries, self.is_gathering) = (log, found, false);
    }

    fn compact(&mut self) {
        let segment_of = |at: &Location| geometry().segment_of(at.offset);
        let last = self.entries.values().next_back().map(segment_of);
        let Some(victim) = self.entries.values().map(segment_of).find(|it| Some(*it) != last)
        else {
            return;
        };
        let live: Vec<_> = self.entries.clone().into_iter().collect();
        for (token, at) in live.into_iter().filter(|(_, at)| segment_of(at) == victim) {
            if !self.append(token, at.bytes as usize) {
                return;
            }
        }
        // The copies may have begun where they were to come from.
        if self.entries.values().all(|at| segment_of(at) != victim) {
            self.log.free(victim).unwrap();
            self.is_gathering = false;
            self.entries.keys().for_each(|token| self.memory.acknowledge(*token));
        }
    }

    fn trace(&self) -> Trace {
        let mut trace = self.memory.trace();
        for index in self.never.iter().rev() {
            trace = trace.without(*index);
        }
        trace
    }
}

fn open(memory: &StoreRecorder) -> (Log<StoreRecorder>, BTreeMap<u64, Location>) {
    let (log, found) = Contents::open(memory.clone());
    found.tokens().into_iter().for_each(|token| memory.acknowledge(token));
    (log.unwrap(), found.entries.into_iter().collect())
}

/// One log from its making on, through some losses of power; how many images were recovered.
fn live(seed: u64, domain: PersistenceDomain) -> u64 {
    let mut random = Random(seed);
    let (mut image, mut durable, mut images) = (used_memory(), BTreeSet::new(), 0);
    for loss in 0..LOSSES {
        let mut boot = Boot::new(image.clone(), domain, &durable);
        (0..STEPS).for_each(|_| boot.step(&mut random));
        let options =
            ImageOptions { seed: random.below(u64::MAX), samples: 16, ..ImageOptions::ALL };
        let mut seen = 0;
        let explored = explore(&boot.trace(), options, &mut |left| {
            seen += 1;
            // Each with the same chance.
            let kept = (random.below(seen) == 0).then(|| left.clone());
            let found = recover(left, domain)?;
            if let Some(kept) = kept {
                (image, durable) = (kept, found.clone());
            }
            Ok(found)
        });
        let explored = explored.unwrap_or_else(|why| panic!("seed {seed}, loss {loss}: {why}"));
        images += explored.images;
    }
    images
}

#[test]
fn random_lives_lose_nothing_that_was_acknowledged() {
    let domains = [PersistenceDomain::Adr, PersistenceDomain::Eadr, PersistenceDomain::Msync];
    let images: u64 =
        (0..LIVES * times()).map(|seed| live(seed, domains[seed as usize % domains.len()])).sum();
    println!("{images} images of lives with the seeds below {}", LIVES * times());
    assert!(images >= 100_000, "{images} images");
}
