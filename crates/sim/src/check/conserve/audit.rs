//! The rules, in the order in which a wrong pool is easiest to understand.

use super::{AllocationAudit, FrameAudit, HomeAudit, PoolAudit, RackAudit};
use crate::check::Violation;
use crate::time::Ps;
use rackpool_core::layout::FrameState;
use std::collections::{BTreeMap, BTreeSet};

type Answer = Result<(), String>;

/// Checks a pool that was quiet at `at`; the first rule that is broken.
pub fn check(pool: &PoolAudit, at: Ps) -> Result<(), Violation> {
    all(pool).map_err(|text| Violation::new("conserve", at, text))
}

fn all(pool: &PoolAudit) -> Answer {
    for rack in &pool.racks {
        frames(rack).map_err(|text| format!("rack {}: {text}", rack.rack))?;
        sessions(rack).map_err(|text| format!("rack {}: {text}", rack.rack))?;
    }
    let homes = unique_homes(pool)?;
    directory(pool, &homes)?;
    let handed_out = handed_out(pool, &homes)?;
    for rack in &pool.racks {
        stats(pool, rack).map_err(|text| format!("rack {}: {text}", rack.rack))?;
    }
    allocations(pool, handed_out)
}

/// Every frame is free and clean, or home of a page.
fn frames(rack: &RackAudit) -> Answer {
    let mut generations = BTreeSet::new();
    for frame in &rack.frames {
        let FrameAudit { frame: index, state, page, generation, .. } = *frame;
        match state {
            FrameState::Free if frame.table_generation != 0 => {
                let table = frame.table_generation;
                return Err(format!("free frame {index} has generation {table} in the table"));
            }
            FrameState::Free if frame.backed == Some(true) => {
                return Err(format!("free frame {index} still has memory"));
            }
            FrameState::Free => continue,
            FrameState::Home => {}
            FrameState::Pending
            | FrameState::Freeing
            | FrameState::Arriving
            | FrameState::Departing
            | FrameState::Gone => {
                return Err(format!("frame {index} is still {state:?} (page {page})"));
            }
        }
        if page == 0 || generation == 0 {
            return Err(format!("frame {index} is home of page {page}, generation {generation}"));
        }
        if frame.table_generation != generation {
            return Err(format!(
                "frame {index} (page {page}) has generation {generation}, in the table {}",
                frame.table_generation
            ));
        }
        if frame.backed == Some(false) {
            return Err(format!("frame {index} is home of page {page} and has no memory"));
        }
        if !generations.insert(generation) {
            return Err(format!("generation {generation} is in two frames, one is {index}"));
        }
        if frame.owner != 0 && !rack.sessions.contains(&frame.owner) {
            return Err(format!(
                "frame {index} (page {page}) belongs to session {}, which is gone",
                frame.owner
            ));
        }
    }
    Ok(())
}

/// A client that is gone has given its slot back.
fn sessions(rack: &RackAudit) -> Answer {
    let expected: BTreeSet<u64> = rack.sessions_expected.iter().copied().collect();
    let mut found = BTreeSet::new();
    for session in &rack.sessions {
        if !expected.contains(session) {
            return Err(format!("session {session} has a record, and its client is gone"));
        }
        if !found.insert(*session) {
            return Err(format!("session {session} has two records"));
        }
    }
    match expected.difference(&found).next() {
        Some(session) => Err(format!("session {session} lives and has no record")),
        None => Ok(()),
    }
}

type Homes<'a> = BTreeMap<u64, (&'a RackAudit, &'a FrameAudit)>;

/// No page is in two frames.
fn unique_homes(pool: &PoolAudit) -> Result<Homes<'_>, String> {
    let mut homes = Homes::new();
    for rack in &pool.racks {
        for frame in rack.frames.iter().filter(|frame| frame.state == FrameState::Home) {
            if let Some((other, old)) = homes.insert(frame.page, (rack, frame)) {
                return Err(format!(
                    "page {} has two homes: frame {} of rack {} and frame {} of rack {}",
                    frame.page, old.frame, other.rack, frame.frame, rack.rack
                ));
            }
        }
    }
    Ok(homes)
}

/// The directory is what the racks hold, no more and no less.
fn directory(pool: &PoolAudit, homes: &Homes<'_>) -> Answer {
    let mut known = BTreeMap::new();
    for home in &pool.directory.homes {
        if known.insert(home.page, home).is_some() {
            return Err(format!("the directory has page {} twice", home.page));
        }
    }
    let audited = |rack: u16| pool.racks.iter().any(|one| one.rack == rack);
    for home in known.values().filter(|home| audited(home.rack)) {
        let HomeAudit { page, rack, frame, generation, lost } = **home;
        let found = homes.get(&page);
        let agrees = found.is_some_and(|(at, held)| {
            (at.rack, held.frame, held.generation) == (rack, frame, generation)
        });
        match (lost, found) {
            (true, None) => {}
            (true, Some((at, held))) => {
                return Err(format!(
                    "the directory calls page {page} lost, and frame {} of rack {} holds it",
                    held.frame, at.rack
                ));
            }
            (false, None) => {
                return Err(format!(
                    "the directory has page {page} in frame {frame} of rack {rack}, which does \
                     not hold it"
                ));
            }
            (false, Some((at, held))) if !agrees => {
                return Err(format!(
                    "page {page} is in frame {} of rack {}, generation {}; the directory says \
                     frame {frame} of rack {rack}, generation {generation}",
                    held.frame, at.rack, held.generation
                ));
            }
            (false, Some(_)) => {}
        }
    }
    match homes.iter().find(|(page, _)| !known.contains_key(page)) {
        Some((page, (rack, frame))) => Err(format!(
            "frame {} of rack {} holds page {page}, which the directory does not know",
            frame.frame, rack.rack
        )),
        None => Ok(()),
    }
}

/// A piece that a rack has handed out.
struct AllocatedRange {
    rack: u16,
    bytes: u64,
    owner: u64,
}

/// What racks have handed out, by address. Runs are whole, with their pages in order.
fn handed_out(
    pool: &PoolAudit,
    homes: &Homes<'_>,
) -> Result<BTreeMap<u64, AllocatedRange>, String> {
    let mut pieces = BTreeMap::new();
    let mut in_runs = BTreeSet::new();
    for (page, (rack, frame)) in homes {
        let (addr, rack, owner) = (page << pool.page_shift, rack.rack, frame.owner);
        if frame.shift != 0 {
            for object in &frame.objects {
                let addr = addr + (u64::from(*object) << frame.shift);
                pieces.insert(addr, AllocatedRange { rack, bytes: 1 << frame.shift, owner });
            }
            in_runs.insert(*page);
            continue;
        }
        if !frame.first {
            continue;
        }
        let is_there = |index: u64| homes.contains_key(&(page + index));
        if pool.loses_parts && !(0..u64::from(frame.span)).all(is_there) {
            // The others went with the memory of their rack.
            in_runs.insert(*page);
            continue;
        }
        for index in 0..u64::from(frame.span) {
            let part = homes.get(&(page + index)).map(|(_, part)| *part);
            let fits = part.is_some_and(|part| {
                part.shift == 0 && (index == 0 || !part.first && u64::from(part.span) == index)
            });
            if !fits || !in_runs.insert(page + index) {
                return Err(format!(
                    "page {page} begins a run of {} pages; its page {index} is not there",
                    frame.span
                ));
            }
        }
        let bytes = u64::from(frame.span) << pool.page_shift;
        pieces.insert(addr, AllocatedRange { rack, bytes, owner });
    }
    match homes.keys().find(|page| !in_runs.contains(page)) {
        Some(page) if !pool.loses_parts => {
            Err(format!("page {page} belongs to no run: it has leaked"))
        }
        _ => Ok(pieces),
    }
}

/// A daemon's counters are what its region holds.
fn stats(pool: &PoolAudit, rack: &RackAudit) -> Answer {
    let count = |wanted: &dyn Fn(&&FrameAudit) -> bool| rack.frames.iter().filter(wanted).count();
    let home = |frame: &&FrameAudit| frame.state == FrameState::Home;
    let run = |frame: &&FrameAudit| home(frame) && frame.shift == 0 && frame.first;
    let objects: usize = rack.frames.iter().filter(home).map(|frame| frame.objects.len()).sum();
    let slab_bytes = |frame: &FrameAudit| (frame.objects.len() as u64) << frame.shift;
    let whole = |frame: &&FrameAudit| home(frame) && frame.shift == 0;
    let bytes = rack.frames.iter().filter(home).map(slab_bytes).sum::<u64>()
        + ((count(&whole) as u64) << pool.page_shift);
    let slab = |frame: &&FrameAudit| home(frame) && frame.shift != 0;
    let free = |frame: &&FrameAudit| frame.state == FrameState::Free;
    let said = &rack.stats;
    let sessions = said.slots_used + said.remote_sessions;
    for (what, said, found) in [
        ("frames", said.frames, rack.frames.len() as u64),
        ("free frames", said.frames_free, count(&free) as u64),
        ("frames in quarantine", said.frames_quarantined, 0),
        ("slab frames", said.frames_slab, count(&slab) as u64),
        ("allocations", said.allocations, (objects + count(&run)) as u64),
        ("allocated bytes", said.allocated_bytes, bytes),
        ("sessions", sessions, rack.sessions.len() as u64),
        ("locks", said.locks_held, 0),
        ("requests for locks", said.lock_waiters, 0),
    ] {
        if said != found {
            return Err(format!("the daemon says {said} {what}, there are {found}"));
        }
    }
    Ok(())
}

/// Everything that was handed out belongs to somebody, and everybody has what he was given.
fn allocations(pool: &PoolAudit, mut pieces: BTreeMap<u64, AllocatedRange>) -> Answer {
    overlaps(pool)?;
    for allocation in &pool.allocations {
        let AllocationAudit { addr, bytes, owner, certain } = *allocation;
        match pieces.remove(&addr) {
            None if certain => {
                return Err(format!(
                    "no rack has {bytes} bytes at {addr:#x}, which no client freed"
                ));
            }
            None => {}
            Some(piece) if piece.bytes < bytes => {
                let (rack, held) = (piece.rack, piece.bytes);
                return Err(format!(
                    "rack {rack} has {held} bytes at {addr:#x}; {bytes} were handed out"
                ));
            }
            Some(piece) if piece.owner != owner => {
                return Err(format!(
                    "the memory at {addr:#x} belongs to session {}, not {owner}",
                    piece.owner
                ));
            }
            Some(_) => {}
        }
    }
    if pieces.len() as u64 <= pool.unclaimed_max {
        return Ok(());
    }
    let (addr, piece) = pieces.first_key_value().expect("there are more pieces than 0");
    Err(format!(
        "{} pieces of memory have leaked, {} may; the first: {} bytes at {addr:#x} of rack {}",
        pieces.len(),
        pool.unclaimed_max,
        piece.bytes,
        piece.rack
    ))
}

/// No two allocations share a byte, but for one with a free of unknown outcome.
fn overlaps(pool: &PoolAudit) -> Answer {
    let mut sorted: Vec<&AllocationAudit> =
        pool.allocations.iter().filter(|allocation| allocation.certain).collect();
    sorted.sort_by_key(|allocation| allocation.addr);
    match sorted.windows(2).find(|pair| pair[0].addr + pair[0].bytes > pair[1].addr) {
        Some([old, new]) => Err(format!(
            "{} bytes at {:#x} overlap {} bytes at {:#x}",
            new.bytes, new.addr, old.bytes, old.addr
        )),
        _ => Ok(()),
    }
}
