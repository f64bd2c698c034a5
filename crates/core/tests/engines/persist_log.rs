//! The log in persistent memory against a loss of power at any moment: with every safeguard
//! nothing that was acknowledged is lost, and each one that is left out or comes at the wrong time
//! is found.

use rackpool_core::constants::SEGMENT_STRIDE_BYTES;
use rackpool_core::persist::images::{Explored, ImageOptions, Violation, explore, safeguards};
use rackpool_core::persist::log::{HEADER_BYTES, Location, Log, LogError, LogGeometry};
use rackpool_core::persist::recorder::{Event, StoreRecorder, Trace};
use rackpool_core::persist::{MediaProfile, PersistError, PersistenceDomain};
use rackpool_core::seam::Mem;
use std::collections::BTreeSet;

pub(crate) const ID: u64 = 7;
const OPTIONS: ImageOptions = ImageOptions { seed: 0x37_0001, samples: 40, ..ImageOptions::ALL };

/// Tokens from here on say that the log was opened so often.
const OPENED: u64 = 1000;
/// Says that nothing is left of what was in segment 0 before it was freed.
const FREED: u64 = 2000;
/// Entries that were in it.
const IN_FREED: u64 = 9;

pub(crate) fn geometry() -> LogGeometry {
    LogGeometry::new(1, 3).unwrap()
}

/// The bytes of an entry: any two differ, and so do any two words of one.
pub(crate) fn content(token: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64)
        .flat_map(|word| (token << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut all: Vec<u8> = token.to_le_bytes().into_iter().chain(words).collect();
    all.truncate(bytes.max(8));
    all
}

/// Entries by their token, where they were found.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) entries: Vec<(u64, Location)>,
    pub(crate) torn: Option<u64>,
}

impl Contents {
    pub(crate) fn open(memory: StoreRecorder) -> (Result<Log<StoreRecorder>, LogError>, Contents) {
        let mut found = Contents::default();
        let log = Log::open(memory, &mut |entry| {
            let token = u64::from_le_bytes(entry.bytes[..8].try_into().unwrap());
            if entry.bytes != content(token, entry.bytes.len()) || u64::from(entry.kind) != token {
                found.torn = Some(token);
            }
            found.entries.push((token, entry.at));
        });
        (log, found)
    }

    pub(crate) fn tokens(&self) -> BTreeSet<u64> {
        self.entries.iter().map(|(token, _)| *token).collect()
    }
}

pub(crate) fn append(log: &mut Log<StoreRecorder>, token: u64, bytes: usize) {
    let content = content(token, bytes);
    let (head, tail) = content.split_at(content.len() / 3);
    let appended = log.append(token as u32, &[head, tail]).unwrap();
    let mut read = vec![0; content.len()];
    log.read(appended.at, &mut read);
    assert_eq!(read, content, "{token} as it was appended");
}

/// What a loss of power may leave is opened, holds all entries up to some token and no other, and
/// takes and keeps one more.
fn recover(image: Vec<u8>, domain: PersistenceDomain) -> Result<BTreeSet<u64>, String> {
    let memory = StoreRecorder::new(image, domain);
    let (log, found) = Contents::open(memory.clone());
    let log = match log {
        // The making of the log was not over.
        Err(LogError::NotALog) => return Ok(BTreeSet::new()),
        log => log.map_err(|error| error.to_string())?,
    };
    if log.id() != ID {
        return Ok(BTreeSet::new());
    }
    if let Some(token) = found.torn {
        return Err(format!("entry {token} is torn"));
    }
    let mut tokens = found.tokens();
    if tokens.iter().copied().ne(1..=tokens.len() as u64) {
        return Err(format!("entries {tokens:?} with a gap"));
    }
    let is_left =
        |(token, at): &(u64, Location)| geometry().segment_of(at.offset) == 0 && *token <= IN_FREED;
    if !found.entries.iter().any(is_left) {
        tokens.insert(FREED);
    }
    tokens.extend((0..log.epoch()).map(|epoch| OPENED + epoch));
    goes_on(&memory, log, &found)?;
    Ok(tokens)
}

/// A log that was opened takes one more entry, if there is room, and the next finds that too.
pub(crate) fn goes_on(
    memory: &StoreRecorder,
    mut log: Log<StoreRecorder>,
    found: &Contents,
) -> Result<(), String> {
    if log.free_segments() == 0 {
        return Ok(());
    }
    append(&mut log, 99, 300);
    log.commit().map_err(|error| error.to_string())?;
    let (log, again) = Contents::open(memory.clone());
    log.map_err(|error| error.to_string())?;
    let (last, before) = again.entries.split_last().ok_or("the log is empty")?;
    if last.0 != 99 || before != found.entries {
        return Err(format!("{again:?} after one more entry"));
    }
    Ok(())
}

/// A log of another id that was opened three times: its headers have higher epochs than those of
/// the log that is made there now.
pub(crate) fn used_memory() -> Vec<u8> {
    let memory = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    Log::format(&memory, geometry(), ID + 1).unwrap();
    for _ in 0..3 {
        Log::open(memory.clone(), &mut |_| ()).unwrap();
    }
    memory.visible()
}

fn open(memory: &StoreRecorder) -> (Log<StoreRecorder>, Contents) {
    let (log, found) = Contents::open(memory.clone());
    let log = log.unwrap();
    memory.acknowledge(OPENED + log.epoch());
    // What recovery has found is promised from now on.
    found.tokens().into_iter().for_each(|token| memory.acknowledge(token));
    (log, found)
}

fn commit(memory: &StoreRecorder, log: &mut Log<StoreRecorder>, tokens: &[u64]) {
    log.commit().unwrap();
    tokens.iter().for_each(|token| memory.acknowledge(*token));
}

/// A life of a log: groups, records around and through the caches, a full segment, a killed
/// process, compaction, and the freed segment used again.
fn life(domain: PersistenceDomain) -> Trace {
    let memory = StoreRecorder::new(used_memory(), domain);
    // Recovery opens the log once more.
    (0..=20).chain(OPENED..OPENED + 9).chain([FREED]).for_each(|token| memory.issue(token));
    Log::format(&memory, geometry(), ID).unwrap();
    memory.acknowledge(OPENED);
    let (mut log, found) = open(&memory);
    assert!(found.entries.is_empty());
    append(&mut log, 1, 24);
    append(&mut log, 2, 100);
    commit(&memory, &mut log, &[1, 2]);
    for token in 3..=7 {
        append(&mut log, token, 24);
        commit(&memory, &mut log, &[token]);
    }
    append(&mut log, 8, 12_000);
    commit(&memory, &mut log, &[8]);
    // The second does not fit into the segment any more.
    append(&mut log, 9, 24);
    append(&mut log, 10, 10_700);
    assert_eq!((log.free_segments(), log.durable()), (1, 9));
    commit(&memory, &mut log, &[10, 9]);
    // Killed between store and write-back: the caches live on.
    append(&mut log, 11, 40);
    log.write_out();
    let killed = memory.trace().events.len() - 1;
    drop(log);
    let (mut log, found) = open(&memory);
    assert_eq!(found.tokens(), BTreeSet::from_iter(1..=11));
    for (token, at) in found.entries.iter().filter(|(token, _)| *token <= IN_FREED) {
        append(&mut log, *token, at.bytes as usize);
    }
    log.free(0).unwrap();
    memory.acknowledge(FREED);
    append(&mut log, 12, 3000);
    assert_eq!(log.free_segments(), 1);
    commit(&memory, &mut log, &[12]);
    let mut trace = memory.trace();
    assert!(matches!(trace.events.remove(killed), Event::WriteBack { .. }));
    trace
}

fn explore_life(trace: &Trace) -> Result<Explored, Violation> {
    explore(trace, OPTIONS, &mut |image| recover(image, trace.domain))
}

#[test]
fn a_loss_of_power_at_any_moment_loses_nothing_that_was_acknowledged() {
    let domains = [PersistenceDomain::Adr, PersistenceDomain::Eadr, PersistenceDomain::Msync];
    for domain in domains {
        let explored = explore_life(&life(domain)).unwrap();
        println!("{domain}: {explored:?}, seed {}", OPTIONS.seed);
        assert!(explored.images > 1000, "{explored:?}");
    }
}

#[test]
fn each_write_back_and_each_fence_that_is_left_out_is_found() {
    let trace = life(PersistenceDomain::Adr);
    let safeguards = safeguards(&trace);
    assert!(safeguards.len() >= 24, "{} safeguards", safeguards.len());
    for index in safeguards {
        let found = explore_life(&trace.without(index));
        assert!(found.is_err(), "without event {index}: {found:?}");
    }
}

#[test]
fn each_fence_that_comes_too_early_or_too_late_is_found() {
    let trace = life(PersistenceDomain::Adr);
    assert!(trace.fences().len() >= 12);
    for fence in trace.fences() {
        for moved in [fence, fence + 1] {
            let found = explore_life(&trace.earlier(moved));
            assert!(found.is_err(), "event {moved} before {}: {found:?}", moved - 1);
        }
    }
}

#[test]
fn where_caches_are_spared_each_fence_is_needed_still() {
    let trace = life(PersistenceDomain::Eadr);
    for fence in trace.fences() {
        let found = explore_life(&trace.without(fence));
        assert!(found.is_err(), "without fence {fence}: {found:?}");
    }
}

#[test]
fn a_loss_of_power_during_recovery_loses_nothing_either() {
    let outer = life(PersistenceDomain::Adr);
    let mut images = 0;
    let mut tried = 0;
    let few = ImageOptions { seed: 5, samples: 2, ..ImageOptions::ALL };
    let explored = explore(&outer, few, &mut |image| {
        let found = recover(image.clone(), outer.domain)?;
        tried += 1;
        if found.is_empty() || tried % 29 != 0 {
            return Ok(found);
        }
        let memory = StoreRecorder::new(image, outer.domain);
        // Recovery of this recovery counts more openings.
        found.iter().copied().chain(OPENED..OPENED + 9).for_each(|token| memory.issue(token));
        found.iter().for_each(|token| memory.acknowledge(*token));
        let (log, _) = Contents::open(memory.clone());
        drop(log.map_err(|error| error.to_string())?);
        let mut again = |image| recover(image, outer.domain);
        let inner = explore(&memory.trace(), few, &mut again).map_err(|error| error.to_string())?;
        images += inner.images;
        Ok(found)
    });
    explored.unwrap();
    assert!(images > 200, "{images} images of recoveries");
}

/// Two records of one group of which the first is torn: its middle line is missing. No later life
/// may find the second, though it writes the first's bytes again.
fn torn_group() -> StoreRecorder {
    let memory = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    Log::format(&memory, geometry(), ID).unwrap();
    let (mut log, _) = open(&memory);
    append(&mut log, 1, 24);
    log.commit().unwrap();
    append(&mut log, 2, 600);
    log.write_out();
    append(&mut log, 3, 24);
    log.write_out();
    let mut image = memory.visible();
    let torn = (HEADER_BYTES + 256 + 128) as usize;
    image[torn..torn + 64].fill(0);
    StoreRecorder::new(image, PersistenceDomain::Adr)
}

/// A second life after a torn group, which writes the torn record's bytes again.
fn second_life() -> Trace {
    let memory = torn_group();
    [1, 2]
        .into_iter()
        .chain(OPENED..OPENED + 9)
        .chain([FREED])
        .for_each(|token| memory.issue(token));
    let (mut log, found) = open(&memory);
    assert_eq!(found.tokens(), BTreeSet::from([1]));
    append(&mut log, 2, 600);
    commit(&memory, &mut log, &[2]);
    memory.trace()
}

#[test]
fn what_a_torn_group_left_behind_never_comes_back() {
    let trace = second_life();
    explore_life(&trace).unwrap();
    let wipe = trace.events.iter().position(|event| matches!(event, Event::Store { .. })).unwrap();
    let Event::WriteBack { offset, bytes } = trace.events[wipe + 1] else { panic!("no wipe") };
    assert_eq!((offset, bytes), (HEADER_BYTES + 256, 64));
    let violation = explore_life(&trace.without(wipe + 1)).unwrap_err();
    assert!(violation.reason.contains("3 was found and never issued"), "{violation}");
    let mut unwiped = trace.clone();
    unwiped.events.drain(wipe..wipe + 2);
    let violation = explore_life(&unwiped).unwrap_err();
    assert!(violation.reason.contains("3 was found and never issued"), "{violation}");
}

#[test]
fn what_was_being_freed_when_the_process_was_killed_stays_free() {
    let memory = StoreRecorder::new(used_memory(), PersistenceDomain::Adr);
    (1..=2).chain(OPENED..OPENED + 9).chain([FREED]).for_each(|token| memory.issue(token));
    Log::format(&memory, geometry(), ID).unwrap();
    let (mut log, _) = open(&memory);
    append(&mut log, 1, 24);
    // A segment of its own; the copy goes to the third.
    append(&mut log, 2, 24_400);
    append(&mut log, 1, 24);
    commit(&memory, &mut log, &[1, 2]);
    log.free(0).unwrap();
    let killed = memory.trace().events.len() - 2;
    drop(log);
    let (_, found) = open(&memory);
    assert_eq!(found.entries.len(), 2);
    memory.acknowledge(FREED);
    let mut trace = memory.trace();
    // Killed between the store of zeros and its write-back.
    let last: Vec<Event> = trace.events.drain(killed..killed + 2).collect();
    let wipe = Event::WriteBack { offset: HEADER_BYTES, bytes: 64 };
    assert_eq!(last, [wipe.clone(), Event::Fence]);
    explore_life(&trace).unwrap();
    let again = trace.events.iter().rposition(|event| *event == wipe).unwrap();
    assert!(again >= killed);
    let violation = explore_life(&trace.without(again)).unwrap_err();
    assert!(violation.reason.contains("2000 was acknowledged and is lost"), "{violation}");
}

#[test]
fn a_later_life_that_writes_no_record_there_does_not_bring_it_back_either() {
    let memory = torn_group();
    let (mut log, _) = open(&memory);
    append(&mut log, 2, 600);
    log.commit().unwrap();
    drop(log);
    // The third life goes on in another segment.
    let (mut log, found) = open(&memory);
    assert_eq!(found.tokens(), BTreeSet::from([1, 2]));
    append(&mut log, 3, 24_000);
    log.commit().unwrap();
    let (_, found) = open(&memory);
    assert_eq!(found.entries.len(), 3);
    assert_eq!(found.entries[2].1.bytes, 24_000);
}

#[test]
fn records_of_another_log_or_place_or_with_a_wrong_bit_are_none() {
    let memory = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    Log::format(&memory, geometry(), ID).unwrap();
    let (mut log, _) = open(&memory);
    append(&mut log, 1, 600);
    log.commit().unwrap();
    let image = memory.visible();
    let found_in = |image: Vec<u8>| {
        let (log, found) = Contents::open(StoreRecorder::new(image, PersistenceDomain::Adr));
        log.map(|_| found.tokens())
    };
    let start = HEADER_BYTES as usize;
    for bit in (0..640 * 8).step_by(7) {
        let mut damaged = image.clone();
        damaged[start + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(found_in(damaged), Ok(BTreeSet::new()), "bit {bit}");
    }
    let mut moved = image.clone();
    let next = start + SEGMENT_STRIDE_BYTES as usize;
    moved.copy_within(start..start + 768, next);
    moved[start..start + 768].fill(0);
    assert_eq!(found_in(moved), Ok(BTreeSet::new()));
    Log::format(&memory, geometry(), ID + 1).unwrap();
    assert_eq!(found_in(memory.visible()), Ok(BTreeSet::new()));
}

#[test]
fn a_log_says_what_it_cannot_do() {
    assert!(LogGeometry::new(0, 4).is_none() && LogGeometry::new(257, 4).is_none());
    assert!(LogGeometry::new(1, 1).is_none());
    let empty = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    assert_eq!(Log::open(empty.clone(), &mut |_| ()).err(), Some(LogError::NotALog));
    let small = StoreRecorder::new(vec![0; HEADER_BYTES as usize], PersistenceDomain::Adr);
    let (log_bytes, memory_bytes) = (geometry().bytes(), HEADER_BYTES);
    let other = LogError::OtherSize { log_bytes, memory_bytes };
    assert_eq!(Log::format(&small, geometry(), ID), Err(other));
    Log::format(&empty, geometry(), ID).unwrap();
    small.copy_in(0, &empty.visible()[..HEADER_BYTES as usize]);
    assert_eq!(Log::open(small, &mut |_| ()).err(), Some(other));
    let forgets = StoreRecorder::new(empty.visible(), PersistenceDomain::None);
    let volatile = LogError::Persist(PersistError::Volatile);
    assert_eq!(Log::open(forgets, &mut |_| ()).err(), Some(volatile));

    let (mut log, _) = open(&empty);
    let max_bytes = geometry().entry_bytes_max();
    let long = vec![0; max_bytes as usize + 1];
    let refused = LogError::TooLong { bytes: max_bytes + 1, max_bytes };
    assert_eq!(log.append(0, &[&long[..]]), Err(refused));
    for segment in 0..3 {
        let at = log.append(0, &[&long[1..]]).unwrap().at;
        assert_eq!(geometry().segment_of(at.offset), segment);
    }
    assert_eq!(log.append(0, &[]), Err(LogError::Full { segments: 3 }));
    log.free(1).unwrap();
    assert_eq!(geometry().segment_of(log.append(0, &[]).unwrap().at.offset), 1);
}

#[test]
fn many_small_entries_share_a_record_and_a_fence() {
    let memory = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    Log::format(&memory, geometry(), ID).unwrap();
    let (mut log, _) = open(&memory);
    let before = memory.trace().events.len();
    for token in 0..200 {
        append(&mut log, token, 64);
    }
    log.commit().unwrap();
    let events = memory.trace().events;
    let [Event::Stream { bytes, .. }, Event::Fence] = &events[before..] else {
        panic!("{} events", events.len() - before);
    };
    // Header, length and kind of each, and the zeros to a multiple of 256.
    assert_eq!(bytes.len(), (32usize + 200 * (8 + 64)).next_multiple_of(256));
    assert_eq!(log.durable(), 2);
}

#[test]
fn entries_that_are_not_gathered_have_a_record_each_and_are_found() {
    let memory = StoreRecorder::new(vec![0; geometry().bytes() as usize], PersistenceDomain::Adr);
    Log::format(&memory, geometry(), ID).unwrap();
    let (mut log, _) = open(&memory);
    log.set_profile(MediaProfile::UNRULED);
    for token in 0..20 {
        append(&mut log, token, 64);
    }
    log.commit().unwrap();
    assert_eq!(log.durable(), 21);
    drop(log);
    let (_, found) = open(&memory);
    assert_eq!(found.tokens(), BTreeSet::from_iter(0..20));
    // Each in a unit of its own: 256 bytes for 64.
    let places: BTreeSet<u64> = found.entries.iter().map(|(_, at)| at.offset / 256).collect();
    assert_eq!(places.len(), 20);
}
