//! A rack's region in persistent memory against crash images: the power goes after any store of
//! making it, serving it and stopping, each line of the medium has any version that it may have,
//! and a new daemon attaches. What was acknowledged is there, what was freed is not, and each
//! safeguard that is left out or out of order is found.
//!
//! `RACKPOOL_SEEDS_TIMES` makes the lives more, and has each safeguard left out in turn.

use crate::daemon_world::{PAGE, Rig};
use rackpool_core::durability::{
    PMEM_COPIES, PMEM_COPY_BYTES, PMEM_MAGIC, PMEM_VERSION, PmemHeader,
};
use rackpool_core::layout::{
    FrameState, FrameWord, MAGIC, RegionLayout, SUPERBLOCK_OFFSET, frame_word,
};
use rackpool_core::persist::images::{
    CrashImage, Explored, ImageOptions, Random, Violation, explore_images, safeguards,
};
use rackpool_core::persist::recorder::{Event, StoreRecorder, Trace};
use rackpool_core::persist::{LINE_BYTES, PersistenceDomain};
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
const LIVES: u64 = 11;
const STEPS: u64 = 24;
/// Changes of each kind that are to be found.
const ENOUGH: usize = 4;

/// What recovery finds, by its place in the list of what the script did: the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Step {
    fn addr(self) -> Option<GAddr> {
        match self {
            Step::Header | Step::Region => None,
            Step::Allocated(addr, _)
            | Step::Freed(addr, _)
            | Step::Kept(addr, _)
            | Step::Named(addr, _) => Some(addr),
        }
    }
}

struct Script {
    recorder: StoreRecorder,
    rig: Rig,
    steps: Vec<Step>,
    /// Tokens that recovery has to find.
    due: BTreeSet<u64>,
}

fn layout() -> RegionLayout {
    RegionLayout { pages: PageGeometry::from_page_bytes(PAGE).unwrap(), frame_count: FRAMES }
}

impl Script {
    fn start(domain: PersistenceDomain, mutation: Option<Mutation>) -> Self {
        let region_bytes = layout().private_bytes() + layout().pages_bytes();
        let zeroed = vec![0; (HEADER_BYTES + region_bytes) as usize];
        assert!(zeroed.len() <= 1 << 20, "{} bytes", zeroed.len());
        let recorder = StoreRecorder::new(zeroed, domain);
        let head = recorder.slice(0, HEADER_BYTES);
        let mut header = PmemHeader::read_from_bytes(&[0; size_of::<PmemHeader>()]).unwrap();
        (header.magic, header.version) = (PMEM_MAGIC, PMEM_VERSION);
        header = header.store(&head).unwrap();
        recorder.issue(0);
        recorder.acknowledge(0);
        let rig = Rig::recorded(FRAMES, &recorder.slice(HEADER_BYTES, region_bytes));
        rig.world.fuse.answers.mutation.set(mutation);
        PmemHeader { in_use: 1, ..header }.store(&head).unwrap();
        let (steps, due) = (vec![Step::Header], BTreeSet::from([0]));
        let mut script = Self { recorder, rig, steps, due };
        script.done(Step::Region);
        script.rig.join(0);
        script
    }

    fn done(&mut self, step: Step) {
        let token = self.steps.len() as u64;
        self.recorder.issue(token);
        self.recorder.acknowledge(token);
        self.due.insert(token);
        self.steps.push(step);
    }

    fn due(&self) -> impl Iterator<Item = Step> {
        self.due.iter().map(|token| self.steps[*token as usize])
    }

    /// Recovery may find something else from here on.
    fn withdraw(&mut self, is_over: impl Fn(Step) -> bool) {
        let Self { recorder, steps, due, .. } = self;
        due.retain(|token| {
            let is_over = is_over(steps[*token as usize]);
            if is_over {
                recorder.withdraw(*token);
            }
            !is_over
        });
    }

    fn alloc(&mut self, bytes: u64) -> GAddr {
        self.withdraw(|step| matches!(step, Step::Freed(_, freed) if freed == bytes));
        let addr = self.rig.alloc(0, bytes, false);
        self.done(Step::Allocated(addr, bytes));
        addr
    }

    fn free(&mut self, addr: GAddr, bytes: u64) {
        self.withdraw(|step| step.addr() == Some(addr));
        self.rig.free(0, addr, bytes);
        self.done(Step::Freed(addr, bytes));
    }

    fn keep(&mut self, addr: GAddr, value: u64) {
        self.withdraw(|step| matches!(step, Step::Kept(at, _) if at == addr));
        // A client's own store, during which no daemon is killed.
        self.rig.world.fuse.disarm();
        self.rig.world.pages_mem().store(self.rig.world.offset_of(addr), value);
        self.rig.words.insert(addr.0, value);
        self.persist(addr, value);
    }

    fn persist(&mut self, addr: GAddr, value: u64) {
        assert_eq!(self.rig.ask(0, Request::Persist { addr, bytes: 8 }), Ok(Reply::Persisted));
        self.done(Step::Kept(addr, value));
    }

    fn add(&mut self, addr: GAddr) {
        self.withdraw(|step| matches!(step, Step::Kept(at, _) if at == addr));
        // If the daemon is killed meanwhile it may have done it or not.
        let _ = self.rig.ask(0, Request::FetchAdd { addr, n: 3 });
        self.persist(addr, self.rig.word(addr));
    }

    fn name(&mut self, word: GAddr, bytes: u64) {
        self.withdraw(|step| match step {
            Step::Freed(_, freed) => freed == bytes,
            step => matches!(step, Step::Kept(at, 0) if at == word),
        });
        self.rig.alloc_into(0, word, bytes);
        self.done(Step::Named(word, bytes));
    }

    fn free_from(&mut self, word: GAddr, bytes: u64) {
        self.withdraw(|step| step == Step::Named(word, bytes));
        self.rig.free_from(0, word, bytes);
        self.done(Step::Kept(word, 0));
    }

    /// Anything that a client may do, or the death of the daemon soon.
    fn random_step(&mut self, random: &mut Random) {
        let named: Vec<_> = self.due().filter(|step| matches!(step, Step::Named(..))).collect();
        let is_named = |addr| named.iter().any(|step| step.addr() == Some(addr));
        let free: Vec<(GAddr, u64)> = self
            .due()
            .filter_map(|step| match step {
                Step::Allocated(addr, bytes) if !is_named(addr) => Some((addr, bytes)),
                _ => None,
            })
            .collect();
        let any = |random: &mut Random| free[random.below(free.len() as u64) as usize];
        let choice = if free.is_empty() { 0 } else { random.below(16) };
        let pages_used = FRAMES - self.rig.daemon.as_ref().unwrap().frames_free();
        let has_room = pages_used + 4 <= FRAMES;
        match choice {
            0..5 if has_room => {
                let sizes = [64, 64, 64, 128, 256, PAGE / 2, PAGE, 2 * PAGE];
                self.alloc(sizes[random.below(8) as usize]);
            }
            5..8 => self.keep(any(random).0, random.below(1 << 32) + 1),
            8 => self.add(any(random).0),
            9 if has_room => {
                let (word, _) = any(random);
                if self.rig.word(word) == 0 {
                    self.name(word, [64, 512, PAGE][random.below(3) as usize]);
                }
            }
            10..12 if !named.is_empty() => {
                let Step::Named(word, bytes) = named[random.below(named.len() as u64) as usize]
                else {
                    unreachable!("only those were taken")
                };
                self.free_from(word, bytes);
            }
            12 => self.rig.world.fuse.arm(random.below(60)),
            13 => self.rig.quiesce(),
            _ => {
                let (addr, bytes) = any(random);
                self.free(addr, bytes);
            }
        }
    }
}

fn script(mutation: Option<Mutation>) -> (Trace, Vec<Step>) {
    let mut script = Script::start(PersistenceDomain::Adr, mutation);
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
    script.free_from(word, 128);
    script.rig.quiesce();
    (script.recorder.trace(), script.steps)
}

/// What a rack does by a seed, with daemons that are killed.
fn life(seed: u64, domain: PersistenceDomain) -> (Trace, Vec<Step>) {
    let mut random = Random(seed);
    let mut script = Script::start(domain, None);
    (0..STEPS).for_each(|_| script.random_step(&mut random));
    script.rig.world.fuse.disarm();
    script.rig.quiesce();
    (script.recorder.trace(), script.steps)
}

/// Daemons that attach to one image after another.
struct Recovery {
    /// With the last image, as far as that is undone.
    rig: Option<Rig>,
}

impl Recovery {
    fn new(trace: &Trace) -> Self {
        Self { rig: Some(Rig::of_image(FRAMES, &trace.initial[HEADER_BYTES as usize..])) }
    }

    /// What a new daemon finds in an image of what is due, or what is wrong in it.
    fn recover(&mut self, image: CrashImage<'_>, steps: &[Step]) -> Result<BTreeSet<u64>, String> {
        let changed = image.changed.iter().filter_map(|number| {
            let at = number * LINE_BYTES;
            let bytes = &image.bytes[at as usize..][..LINE_BYTES as usize];
            at.checked_sub(HEADER_BYTES).map(|offset| (offset, bytes))
        });
        let rig = self.rig.take().expect("it is put back").of_next_image(changed);
        let rig = self.rig.insert(rig);
        let recovered = catch_unwind(AssertUnwindSafe(|| recover_or_panic(rig, image, steps)));
        recovered.unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().cloned();
            Err(text.unwrap_or_else(|| "the daemon panicked".into()))
        })
    }
}

fn recover_or_panic(
    rig: &mut Rig,
    image: CrashImage<'_>,
    steps: &[Step],
) -> Result<BTreeSet<u64>, String> {
    let header = PmemHeader::newest(|copy| {
        let at = (copy * PMEM_COPY_BYTES) as usize;
        image.bytes[at..][..size_of::<PmemHeader>()].try_into().unwrap()
    });
    let at = (HEADER_BYTES + SUPERBLOCK_OFFSET) as usize;
    let is_made = header.is_some() && image.bytes[at..at + 8] == MAGIC.to_ne_bytes();
    if is_made {
        rig.attach().map_err(|error| error.to_string())?;
        rig.join(7);
        check_free_frames(rig)?;
    }
    let mut is_there = |step: Step| match step {
        Step::Header => header.is_some(),
        _ if !is_made => false,
        Step::Region => true,
        Step::Allocated(addr, bytes) => is_known(rig, addr, bytes),
        Step::Freed(addr, bytes) => !is_known(rig, addr, bytes),
        Step::Kept(addr, value) => word_of(rig, addr) == Some(value),
        Step::Named(word, bytes) => {
            let named = word_of(rig, word).unwrap_or(0);
            named != 0 && is_known(rig, GAddr(named), bytes)
        }
    };
    let found = image.due.iter().copied().filter(|token| is_there(steps[*token as usize]));
    Ok(found.collect())
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

/// How much longer than usual a run is.
#[expect(clippy::disallowed_methods, reason = "how long a test runs, and nothing of the library")]
pub fn times() -> u64 {
    let times = std::env::var("RACKPOOL_SEEDS_TIMES").ok();
    times.map_or(1, |times| times.parse().expect("RACKPOOL_SEEDS_TIMES is a number"))
}

/// Whether everything is tried, not a part of it.
pub fn is_thorough() -> bool {
    times() > 1
}

/// Few images of each moment: the redo record has more versions of lines than could all be tried.
fn options(one_of: u64) -> ImageOptions {
    ImageOptions { seed: SEED, samples: 4, combinations_max: 16, one_of, from: 0 }
}

fn try_images(trace: &Trace, steps: &[Step], options: ImageOptions) -> Result<Explored, Violation> {
    let mut recovery = Recovery::new(trace);
    explore_images(trace, options, &mut |image| recovery.recover(image, steps))
}

#[test]
fn no_image_of_a_regions_life_loses_what_was_acknowledged() {
    let (trace, steps) = script(None);
    let one_of = if is_thorough() { 1 } else { 12 };
    let explored = try_images(&trace, &steps, options(one_of)).unwrap();
    println!("seed {SEED:#x}: {explored:?} of {} events", trace.events.len());
    assert!(explored.images > 1000, "{explored:?}");
}

/// Lives with these seeds; how many images were recovered.
fn live(seeds: impl Iterator<Item = u64>) -> u64 {
    let domains = [PersistenceDomain::Adr, PersistenceDomain::Eadr, PersistenceDomain::Msync];
    let images = seeds.map(|seed| {
        let domain = domains[(seed / 2 % 3) as usize];
        let (trace, steps) = life(seed, domain);
        let options = ImageOptions { seed, ..options(4) };
        let explored = try_images(&trace, &steps, options);
        let explored = explored.unwrap_or_else(|why| panic!("seed {seed}, {domain}: {why}"));
        println!("seed {seed}, {domain}: {explored:?} of {} events", trace.events.len());
        explored.images
    });
    images.sum()
}

#[test]
fn no_image_of_lives_with_even_seeds_loses_what_was_acknowledged() {
    let images = live((0..LIVES * times()).step_by(2));
    assert!(images >= 54_000, "{images} images");
}

#[test]
fn no_image_of_lives_with_odd_seeds_loses_what_was_acknowledged() {
    let images = live((1..LIVES * times()).step_by(2));
    assert!(images >= 46_000, "{images} images");
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

/// As if the program had left a call out.
fn left_out(trace: &Trace, call: &[usize]) -> Trace {
    call.iter().rev().fold(trace.clone(), |trace, index| trace.without(*index))
}

/// As if the program had waited for write-backs before it sent them; where the fence is then.
fn early(trace: &Trace, fence: usize) -> (Trace, usize) {
    let is_sent = |index: &usize| matches!(trace.events[*index], Event::WriteBack { .. });
    let sent = (0..fence).rev().take_while(is_sent).count();
    let from = fence - sent;
    let early = (from + 1..=fence).rev().fold(trace.clone(), |trace, index| trace.earlier(index));
    (early, from)
}

/// Whether images near a change of the trace show it.
fn is_found(mut trace: Trace, steps: &[Step], from: usize) -> bool {
    let (events, samples) = if is_thorough() { (48, 60) } else { (32, 20) };
    trace.events.truncate(from + events);
    let near = ImageOptions { from, samples, ..options(1) };
    try_images(&trace, steps, near).is_err()
}

/// How many of these changes to a trace are found, of those at the indices; not all are tried.
fn count_found(name: &str, mut indices: Vec<usize>, is_found: impl Fn(usize) -> bool) -> usize {
    let mut random = Random(SEED);
    let (mut found, mut harmless) = (Vec::new(), Vec::new());
    while !indices.is_empty() && (is_thorough() || found.len() < ENOUGH) {
        let index = indices.swap_remove(random.below(indices.len() as u64) as usize);
        if is_found(index) { &mut found } else { &mut harmless }.push(index);
    }
    println!("seed {SEED:#x}, {name}: found {found:?}, harmless {harmless:?}");
    found.len()
}

/// One may be left out without harm if the next one comes before anything hangs on it.
#[test]
fn safeguards_of_a_region_that_are_left_out_or_out_of_order_are_found() {
    let (trace, steps) = script(None);
    let calls = calls(&trace);
    let is_fence = |call: &&Vec<usize>| trace.events[call[0]] == Event::Fence;
    // Usually those behind which something is acknowledged.
    let is_last = |index: &usize| matches!(trace.events[index + 1], Event::Issued(_));
    let fences = calls.iter().filter(is_fence).map(|call| call[0]);
    let fences: Vec<usize> = fences.filter(|index| is_thorough() || is_last(index)).collect();
    let writes = (0..calls.len()).filter(|call| !is_fence(&&calls[*call])).collect();
    let counts = [
        count_found("calls without write-backs", writes, |call| {
            is_found(left_out(&trace, &calls[call]), &steps, calls[call][0])
        }),
        count_found("without fences", fences.clone(), |fence| {
            is_found(trace.without(fence), &steps, fence)
        }),
        count_found("fences before their write-backs", fences, |fence| {
            let (early, from) = early(&trace, fence);
            is_found(early, &steps, from)
        }),
    ];
    assert!(counts.iter().all(|count| *count >= ENOUGH), "{counts:?} found");
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
