//! A rack's region in persistent memory against crash images: the power goes after any store of
//! making it, serving it and stopping, each line of the medium has any version that it may have,
//! and a new daemon attaches. What was acknowledged is there, what was freed is not, and each
//! safeguard that is left out is found.
//!
//! Built with `RACKPOOL_IMAGES=all` it looks at all moments, and leaves out each safeguard in turn.

use crate::daemon_world::{PAGE, Rig};
use rackpool_core::durability::{
    PMEM_COPIES, PMEM_COPY_BYTES, PMEM_MAGIC, PMEM_VERSION, PmemHeader,
};
use rackpool_core::layout::{
    FRAME_BYTES, FRAMES_OFFSET, FrameState, FrameWord, MAGIC, REDO_OFFSET, RegionLayout,
    SESSIONS_OFFSET, SUPERBLOCK_OFFSET, frame_word,
};
use rackpool_core::persist::PersistenceDomain;
use rackpool_core::persist::images::{
    Explored, ImageOptions, Random, Violation, explore, safeguards,
};
use rackpool_core::persist::recorder::{Event, StoreRecorder, Trace};
use rackpool_core::seam::{Mem, Mutation, Section};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{FrameIndex, GAddr, PageGeometry, copies};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use zerocopy::FromBytes;

const FRAMES: u32 = 12;
const HEADER_BYTES: u64 = PMEM_COPIES * PMEM_COPY_BYTES;
const SEED: u64 = 0x37_0002;
/// What a client makes durable.
const KEPT: u64 = 0x6b65_7074_6b65_7074;

/// What recovery finds, by its place in the list of what the script did: the token.
#[derive(Clone, Copy, Debug)]
enum Step {
    Header,
    /// The region is made: a daemon attaches.
    Region,
    Allocated(GAddr, u64),
    Freed(GAddr, u64),
    Kept(GAddr, u64),
    /// The word names an allocation of that size.
    Named(GAddr, u64),
}

struct Script {
    recorder: StoreRecorder,
    rig: Option<Rig>,
    steps: Vec<Step>,
}

fn layout() -> RegionLayout {
    RegionLayout { pages: PageGeometry::from_page_bytes(PAGE).unwrap(), frame_count: FRAMES }
}

impl Script {
    fn begin() -> Self {
        let bytes = HEADER_BYTES + layout().private_bytes() + layout().pages_bytes();
        let zeroed = vec![0; bytes.next_multiple_of(64) as usize];
        let recorder = StoreRecorder::new(zeroed, PersistenceDomain::Adr);
        // What was never issued cannot be told from what was: only what is lost is judged.
        (0..64).for_each(|token| recorder.issue(token));
        Self { recorder, rig: None, steps: Vec::new() }
    }

    fn done(&mut self, step: Step) {
        self.recorder.acknowledge(self.steps.len() as u64);
        self.steps.push(step);
    }

    fn rig(&mut self) -> &mut Rig {
        self.rig.as_mut().expect("it is started")
    }

    fn start(&mut self, mutation: Option<Mutation>) {
        let head = self.recorder.slice(0, HEADER_BYTES);
        let mut header = PmemHeader::read_from_bytes(&[0; size_of::<PmemHeader>()]).unwrap();
        (header.magic, header.version) = (PMEM_MAGIC, PMEM_VERSION);
        header = header.store(&head).unwrap();
        self.done(Step::Header);
        let bytes = layout().private_bytes() + layout().pages_bytes();
        let rig = Rig::recorded(FRAMES, &self.recorder.slice(HEADER_BYTES, bytes));
        rig.world.fuse.answers.mutation.set(mutation);
        self.rig = Some(rig);
        PmemHeader { in_use: 1, ..header }.store(&head).unwrap();
        self.done(Step::Region);
        self.rig().join(0);
    }

    fn alloc(&mut self, bytes: u64) -> GAddr {
        let addr = self.rig().alloc(0, bytes, false);
        self.done(Step::Allocated(addr, bytes));
        addr
    }

    fn free(&mut self, addr: GAddr, bytes: u64) {
        // From here on it may be gone.
        self.steps.retain_mut(|step| {
            if matches!(step, Step::Allocated(at, _) | Step::Kept(at, _) if *at == addr) {
                *step = Step::Header;
            }
            true
        });
        self.rig().free(0, addr, bytes);
        self.done(Step::Freed(addr, bytes));
    }

    fn keep(&mut self, addr: GAddr, value: u64) {
        let rig = self.rig();
        let offset = rig.world.offset_of(addr);
        rig.world.pages_mem().store(offset, value);
        rig.words.insert(addr.0, value);
        assert_eq!(rig.ask(0, Request::Persist { addr, bytes: 8 }), Ok(Reply::Persisted));
        self.done(Step::Kept(addr, value));
    }

    fn name(&mut self, word: GAddr, bytes: u64) {
        self.rig().alloc_into(0, word, bytes);
        self.done(Step::Named(word, bytes));
    }
}

fn script(mutation: Option<Mutation>) -> (Trace, Vec<Step>) {
    let mut script = Script::begin();
    script.start(mutation);
    let small = script.alloc(64);
    script.keep(small, KEPT);
    let run = script.alloc(2 * PAGE);
    script.keep(run, KEPT + 1);
    let word = script.alloc(64);
    script.name(word, 128);
    script.free(run, 2 * PAGE);
    let again = script.alloc(64);
    script.keep(again, KEPT + 2);
    script.free(again, 64);
    script.alloc(PAGE);
    script.rig().quiesce();
    (script.recorder.trace(), script.steps)
}

/// What a new daemon finds in an image, or what is wrong in it.
fn recover(image: &[u8], steps: &[Step]) -> Result<BTreeSet<u64>, String> {
    let recovered = catch_unwind(AssertUnwindSafe(|| recover_or_panic(image, steps)));
    recovered.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "the daemon panicked".into()))
    })
}

fn recover_or_panic(image: &[u8], steps: &[Step]) -> Result<BTreeSet<u64>, String> {
    let (head, region) = image.split_at(HEADER_BYTES as usize);
    let head = StoreRecorder::new(head.to_vec(), PersistenceDomain::Adr);
    let mut found = BTreeSet::new();
    if PmemHeader::load(&head).is_none() {
        return Ok(found);
    }
    let mut rig = None;
    let at = SUPERBLOCK_OFFSET as usize;
    if region[at..at + 8] == MAGIC.to_ne_bytes() {
        let rig = rig.insert(Rig::of_image(FRAMES, region));
        rig.attach().map_err(|error| error.to_string())?;
        rig.join(7);
        check_free_frames(rig)?;
    }
    for (token, step) in steps.iter().enumerate() {
        let is_there = match (step, &mut rig) {
            (Step::Header, _) => true,
            (_, None) => false,
            (Step::Region, Some(_)) => true,
            (Step::Allocated(addr, bytes), Some(rig)) => is_known(rig, *addr, *bytes),
            (Step::Freed(addr, bytes), Some(rig)) => !is_known(rig, *addr, *bytes),
            (Step::Kept(addr, value), Some(rig)) => word_of(rig, *addr) == Some(*value),
            (Step::Named(word, bytes), Some(rig)) => {
                let named = word_of(rig, *word).unwrap_or(0);
                named != 0 && is_known(rig, GAddr(named), *bytes)
            }
        };
        if is_there {
            found.insert(token as u64);
        }
    }
    Ok(found)
}

fn is_known(rig: &mut Rig, addr: GAddr, bytes: u64) -> bool {
    rig.ask(7, Request::CheckFree { addr, bytes }) == Ok(Reply::Known)
}

/// The word at an address, where the daemon says that its page is.
fn word_of(rig: &mut Rig, addr: GAddr) -> Option<u64> {
    let page = layout().pages.page(addr);
    let Ok(Reply::Homes(homes)) = rig.ask(7, Request::Resolve { page, count: 1 }) else {
        return None;
    };
    let frame = layout().frame_offset(homes.first()?.frame);
    Some(rig.world.pages_mem().peek(frame + layout().pages.offset(addr)))
}

/// What is free is zero: it is handed out as it is.
fn check_free_frames(rig: &Rig) -> Result<(), String> {
    for frame in (0..FRAMES).map(FrameIndex) {
        let private = rig.world.private_mem();
        let state = copies::load(private, frame_word(frame, FrameWord::State));
        let state = state.map_err(|error| error.to_string())?;
        if FrameState::from_byte(state as u8) != Some(FrameState::Free) {
            continue;
        }
        let start = layout().frame_offset(frame);
        let mut words = (start..start + PAGE).step_by(8);
        if let Some(at) = words.find(|at| rig.world.pages_mem().peek(*at) != 0) {
            return Err(format!("frame {frame} is free and holds something at {at:#x}"));
        }
    }
    Ok(())
}

/// Whether everything is tried, not a part of it.
pub fn is_thorough() -> bool {
    option_env!("RACKPOOL_IMAGES") == Some("all")
}

/// Few images of each moment: the redo record has more versions of lines than could all be tried.
fn options(one_of: u64) -> ImageOptions {
    ImageOptions { seed: SEED, samples: 4, combinations_max: 16, one_of, from: 0 }
}

fn try_images(trace: &Trace, steps: &[Step], options: ImageOptions) -> Result<Explored, Violation> {
    explore(trace, options, &mut |image| recover(&image, steps))
}

#[test]
fn no_image_of_a_regions_life_loses_what_was_acknowledged() {
    let (trace, steps) = script(None);
    let one_of = if is_thorough() { 1 } else { 12 };
    let explored = try_images(&trace, &steps, options(one_of)).unwrap();
    println!("seed {SEED:#x}: {explored:?} of {} events", trace.events.len());
    assert!(explored.images > 1000, "{explored:?}");
}

/// Safeguards that are one call of the engine's: the write-backs of all three copies of a word, of
/// which one alone may be missing, and fences.
fn calls(trace: &Trace) -> Vec<Vec<usize>> {
    let mut calls: Vec<Vec<usize>> = Vec::new();
    for index in safeguards(trace) {
        let is_next = calls.last().is_some_and(|call| is_copy_of(trace, call, index));
        match calls.last_mut().filter(|_| is_next) {
            Some(call) => call.push(index),
            None => calls.push(vec![index]),
        }
    }
    calls
}

/// Whether an event writes the next copy back of what the last event of a call does.
fn is_copy_of(trace: &Trace, call: &[usize], index: usize) -> bool {
    let part = layout().private_bytes() / copies::COPIES;
    let last = *call.last().expect("calls are not empty");
    let range = |index: usize| match trace.events[index] {
        Event::WriteBack { offset, bytes } => Some((offset, bytes)),
        _ => None,
    };
    let (Some((before, length)), Some((offset, bytes))) = (range(last), range(index)) else {
        return false;
    };
    index == last + 1 && call.len() < 3 && offset == before + part && bytes == length
}

/// As if the program had left a call out; only what comes near behind it.
fn left_out(trace: &Trace, call: &[usize], events: usize) -> Trace {
    let mut trace = call.iter().rev().fold(trace.clone(), |trace, index| trace.without(*index));
    trace.events.truncate(call[0] + events);
    trace
}

/// Where a call is, for a report.
fn shown(trace: &Trace, call: &[usize]) -> String {
    let Event::WriteBack { offset, bytes } = trace.events[call[0]] else {
        return format!("fence {}", call[0]);
    };
    let region = layout();
    let part = region.private_bytes() / copies::COPIES;
    let area = match offset.checked_sub(HEADER_BYTES) {
        None => "header",
        Some(at) if at >= region.private_bytes() => "pages",
        Some(at) => match at % part {
            0..4096 => "superblock",
            at if at < REDO_OFFSET => "state",
            at if at < SESSIONS_OFFSET => "redo",
            at if at < FRAMES_OFFSET => "sessions",
            at if at < FRAMES_OFFSET + FRAME_BYTES * u64::from(FRAMES) => "frames",
            _ => "bitmaps",
        },
    };
    format!("{area} {}: {bytes} bytes at {offset:#x}, {} copies", call[0], call.len())
}

#[test]
#[ignore = "takes minutes"]
fn safeguards_of_a_region_that_are_left_out_are_found() {
    let (trace, steps) = script(None);
    let mut all = calls(&trace);
    let mut random = Random(SEED);
    let (mut found, mut missed) = (Vec::new(), Vec::new());
    // One may be left out without harm if the next one comes before anything hangs on it.
    while !all.is_empty() && (is_thorough() || found.len() < 16) {
        let call = all.swap_remove(random.below(all.len() as u64) as usize);
        let near = ImageOptions { from: call[0], ..options(if is_thorough() { 2 } else { 6 }) };
        match try_images(&left_out(&trace, &call, 160), &steps, near) {
            Err(_) => found.push(shown(&trace, &call)),
            Ok(_) => missed.push(shown(&trace, &call)),
        }
    }
    println!("seed {SEED:#x}: found {found:#?}, harmless {missed:#?}");
    assert!(found.len() >= 16, "{} found", found.len());
}

#[test]
fn each_step_of_durability_that_is_left_out_shows_in_an_image() {
    for mutation in [
        Mutation::AcknowledgeUnpersisted,
        Mutation::StoreUndurably,
        Mutation::ApplyUndurableRedo,
        Mutation::FinishUndurableRedo,
    ] {
        let (trace, steps) = script(Some(mutation));
        let found = try_images(&trace, &steps, options(if is_thorough() { 1 } else { 8 }));
        assert!(found.is_err(), "{}: {found:?}", mutation.name());
        println!("{}: {}", mutation.name(), found.unwrap_err());
    }
}
