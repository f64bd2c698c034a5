//! What a medium may hold after a loss of power, and whether recovery copes with it. In: a
//! [`Trace`] and a recovery function. Out: how many images were tried, or the first [`Violation`].
//!
//! For each line the versions are kept that it had since the last fence that made one of them
//! certain. An image takes one version of each line: of up to 4096 combinations all; else, of up to
//! 12 lines, all subsets that have their newest version, the others their oldest; of more lines
//! none, all, each line alone, all but each line; and a sample by a seed. Besides, each line (a
//! sample of 12 if there are more) is torn into words of 8 bytes of several versions, once with all
//! other lines old and once with all new.
//!
//! That is more than a processor of today does: on x86-64 stores to one line reach the medium in
//! their order. Arm promises less, and so do stores around the caches.
//!
//! Images are made after each store and each acknowledgement, and at the end: between them the set
//! of possible images does not grow.
//!
//! Source: Lantz et al., Yat (ATC 2014): all combinations of lines that may have been written.

use super::recorder::{Event, Trace};
use super::{LINE_BYTES, PersistenceDomain};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;

/// Combinations that are all tried, by default.
const COMBINATIONS_MAX: u64 = 1 << 12;
/// Lines of which all subsets are tried, and which are torn.
const LINES_MAX: usize = 12;
/// Unit in which the system writes its page cache.
const PAGE_BYTES: u64 = 4096;
/// Lines that the report of a violation names.
const LINES_NAMED_MAX: usize = 16;

type LineBytes = [u8; LINE_BYTES as usize];

/// How images are chosen where there are too many.
#[derive(Clone, Copy, Debug)]
pub struct ImageOptions {
    pub seed: u64,
    /// Random combinations at each moment at which not all are tried.
    pub samples: u32,
    /// Combinations, or subsets of lines, that are all tried.
    pub combinations_max: u64,
    /// Of so many moments one is looked at, by the seed.
    pub one_of: u64,
    /// Moments before this event are left out.
    pub from: usize,
}

impl ImageOptions {
    /// Every moment, with as many images as make sense for small memories.
    pub const ALL: ImageOptions = ImageOptions {
        seed: 0,
        samples: 0,
        combinations_max: COMBINATIONS_MAX,
        one_of: 1,
        from: 0,
    };
}

/// What was tried, without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    pub moments: u64,
    pub images: u64,
}

/// An image with which recovery does not keep a promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("power fails after event {event}, {image}: {reason} (seed {seed})")]
pub struct Violation {
    /// Index of the last event before the power failed.
    pub event: usize,
    /// Which lines have not their newest version.
    pub image: String,
    pub reason: String,
    pub seed: u64,
}

/// What the medium may hold.
#[derive(Clone, Copy, Debug)]
pub struct CrashImage<'a> {
    pub bytes: &'a [u8],
    /// Numbers of all lines that are not as in the image before; before the first one was
    /// [`Trace::initial`]. So a recovery that undoes its own stores need not copy all of it.
    pub changed: &'a [u64],
    /// Tokens that have to be found.
    pub due: &'a BTreeSet<u64>,
}

/// As [`explore_images`], with a copy of each image.
///
/// # Errors
/// As [`explore_images`].
pub fn explore(
    trace: &Trace,
    options: ImageOptions,
    recover: &mut dyn FnMut(Vec<u8>) -> Result<BTreeSet<u64>, String>,
) -> Result<Explored, Violation> {
    explore_images(trace, options, &mut |image| recover(image.bytes.to_vec()))
}

/// Lets the power fail at every moment of a trace and runs `recover` on each image. That answers
/// with the tokens that it found, or with what is wrong in itself (a torn record, a gap).
///
/// # Errors
/// The first image with which recovery fails, does not find what was acknowledged, or finds what
/// was never issued.
pub fn explore_images(
    trace: &Trace,
    options: ImageOptions,
    recover: &mut dyn FnMut(CrashImage<'_>) -> Result<BTreeSet<u64>, String>,
) -> Result<Explored, Violation> {
    let mut medium = Medium::new(trace);
    let mut shown = ShownImage::new(trace);
    let mut random = Random(options.seed);
    let (mut issued, mut acknowledged) = (BTreeSet::new(), BTreeSet::new());
    let mut explored = Explored::default();
    let last = trace.events.len().saturating_sub(1);
    for (index, event) in trace.events.iter().enumerate() {
        medium.apply(event);
        let is_moment = match event {
            Event::Store { .. } | Event::Stream { .. } => true,
            Event::Acknowledged(token) => acknowledged.insert(*token),
            Event::Issued(token) => {
                issued.insert(*token);
                index == last
            }
            Event::Withdrawn(token) => {
                acknowledged.remove(token);
                index == last
            }
            Event::WriteBack { .. } | Event::Fence => index == last,
        };
        let is_left_out =
            index < options.from || (options.one_of > 1 && random.below(options.one_of) != 0);
        if !is_moment || is_left_out {
            continue;
        }
        explored.moments += 1;
        shown.settled.append(&mut medium.settled);
        medium.images(options, &mut random, &mut |image| {
            explored.images += 1;
            let found = recover(shown.show(&medium, image, &acknowledged));
            judge(found, &acknowledged, &issued).map_err(|reason| Violation {
                event: index,
                image: medium.describe(image),
                reason,
                seed: options.seed,
            })
        })?;
    }
    Ok(explored)
}

/// Indices of the events of a trace without which data may be lost: stores around the caches,
/// fences, and write-backs of lines that are not on their way already.
pub fn safeguards(trace: &Trace) -> Vec<usize> {
    let mut medium = Medium::new(trace);
    let mut safeguards = Vec::new();
    for (index, event) in trace.events.iter().enumerate() {
        let is_safeguard = match event {
            Event::Stream { .. } | Event::Fence => true,
            Event::WriteBack { offset, bytes } => medium.has_unsent(*offset, *bytes),
            Event::Store { .. }
            | Event::Issued(_)
            | Event::Acknowledged(_)
            | Event::Withdrawn(_) => false,
        };
        medium.apply(event);
        if is_safeguard {
            safeguards.push(index);
        }
    }
    safeguards
}

fn judge(
    found: Result<BTreeSet<u64>, String>,
    acknowledged: &BTreeSet<u64>,
    issued: &BTreeSet<u64>,
) -> Result<(), String> {
    let found = found?;
    if let Some(token) = acknowledged.difference(&found).next() {
        return Err(format!("{token} was acknowledged and is lost"));
    }
    match found.difference(issued).next() {
        Some(token) => Err(format!("{token} was found and never issued")),
        None => Ok(()),
    }
}

/// Which version of its line an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Version(usize),
    /// Words of the newest version where a bit is set, else of this one.
    Torn(usize, u8),
}

/// One choice for each uncertain line, in the order of the lines.
type Image = [LineState];

struct Line {
    /// The first is what the medium has at least, the last what loads see. Two or more.
    versions: Vec<LineBytes>,
    /// The version that the next fence makes certain; 0 if none.
    sent: usize,
}

/// The memory between processor and medium.
struct Medium {
    domain: PersistenceDomain,
    certain: Vec<u8>,
    /// Lines that are not certain, by their number.
    lines: BTreeMap<u64, Line>,
    /// Lines of which something became certain since the last image.
    settled: Vec<u64>,
}

impl Medium {
    fn new(trace: &Trace) -> Self {
        let (certain, lines) = (trace.initial.clone(), BTreeMap::new());
        Self { domain: trace.domain, certain, lines, settled: Vec::new() }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Store { offset, bytes } => self.store(*offset, bytes, false),
            Event::Stream { offset, bytes } => self.store(*offset, bytes, true),
            Event::WriteBack { offset, bytes } => {
                let lines = self.written_back(*offset, *bytes);
                for (_, line) in self.lines.range_mut(lines) {
                    line.sent = line.versions.len() - 1;
                }
            }
            Event::Fence => self.fence(),
            Event::Issued(_) | Event::Acknowledged(_) | Event::Withdrawn(_) => {}
        }
    }

    /// The lines that a write-back sends on their way.
    fn written_back(&self, offset: u64, bytes: u64) -> Range<u64> {
        let unit = if self.domain == PersistenceDomain::Msync { PAGE_BYTES } else { LINE_BYTES };
        lines_of(offset / unit * unit, (offset + bytes).next_multiple_of(unit))
    }

    fn has_unsent(&self, offset: u64, bytes: u64) -> bool {
        let lines = self.written_back(offset, bytes);
        self.lines.range(lines).any(|(_, line)| line.sent + 1 < line.versions.len())
    }

    fn store(&mut self, offset: u64, bytes: &[u8], is_streamed: bool) {
        let end = offset + bytes.len() as u64;
        for number in lines_of(offset, end) {
            let start = number * LINE_BYTES;
            let certain = &self.certain[start as usize..][..LINE_BYTES as usize];
            let line = self.lines.entry(number).or_insert_with(|| Line {
                versions: vec![certain.try_into().expect("a line")],
                sent: 0,
            });
            let mut version = *line.versions.last().expect("two or more");
            let (from, to) = (start.max(offset), (start + LINE_BYTES).min(end));
            version[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            line.versions.push(version);
            if is_streamed {
                line.sent = line.versions.len() - 1;
            }
        }
    }

    fn fence(&mut self) {
        let is_all_sent = self.domain == PersistenceDomain::Eadr;
        let Self { certain, lines, settled, .. } = self;
        lines.retain(|number, line| {
            let sent = if is_all_sent { line.versions.len() - 1 } else { line.sent };
            line.versions.drain(..sent);
            line.sent = 0;
            if sent > 0 {
                settled.push(*number);
            }
            let start = (*number * LINE_BYTES) as usize;
            certain[start..start + LINE_BYTES as usize].copy_from_slice(&line.versions[0]);
            line.versions.len() > 1
        });
    }

    fn describe(&self, image: &Image) -> String {
        let mut text = String::from("of the lines (by offset)");
        let old = self.lines.iter().zip(image).filter_map(|((number, line), choice)| {
            let is_old = *choice != LineState::Version(line.versions.len() - 1);
            is_old.then_some((number * LINE_BYTES, line.versions.len() - 1, choice))
        });
        let old: Vec<_> = old.collect();
        for (offset, newest, choice) in old.iter().take(LINES_NAMED_MAX) {
            let _ = match choice {
                LineState::Version(version) => write!(text, " {offset}: {version} of {newest},"),
                LineState::Torn(version, mask) => {
                    write!(text, " {offset}: {version} of {newest} but for the words {mask:#010b},")
                }
            };
        }
        let _ = write!(text, " {} of {} are not the newest", old.len(), self.lines.len());
        text
    }

    /// Calls `each` with every image of this moment, until it says no.
    fn images<E>(
        &self,
        options: ImageOptions,
        random: &mut Random,
        each: &mut dyn FnMut(&Image) -> Result<(), E>,
    ) -> Result<(), E> {
        let newest: Vec<usize> = self.lines.values().map(|line| line.versions.len() - 1).collect();
        let combinations = newest.iter().try_fold(1u64, |product, newest| {
            product
                .checked_mul(*newest as u64 + 1)
                .filter(|product| *product <= options.combinations_max)
        });
        if combinations.is_some() {
            all_combinations(&newest, each)?;
        } else {
            if newest.len() <= LINES_MAX && 1 << newest.len() <= options.combinations_max {
                all_subsets(&newest, each)?;
            } else {
                each_line(&newest, each)?;
            }
            for _ in 0..options.samples {
                // From few old lines to few new ones.
                let bias = random.below(7) + 1;
                let pick = |newest: &usize| match random.below(8) < bias {
                    true => LineState::Version(*newest),
                    false => LineState::Version(random.below(*newest as u64 + 1) as usize),
                };
                let image: Vec<LineState> = newest.iter().map(pick).collect();
                each(&image)?;
            }
        }
        torn_lines(&newest, random, each)
    }
}

/// The last image, of which the next one changes some lines.
struct ShownImage {
    bytes: Vec<u8>,
    changed: Vec<u64>,
    /// Lines that may be certain and not as they were shown.
    settled: Vec<u64>,
}

impl ShownImage {
    fn new(trace: &Trace) -> Self {
        Self { bytes: trace.initial.clone(), changed: Vec::new(), settled: Vec::new() }
    }

    fn show<'a>(
        &'a mut self,
        medium: &Medium,
        image: &Image,
        due: &'a BTreeSet<u64>,
    ) -> CrashImage<'a> {
        self.changed.clear();
        for number in std::mem::take(&mut self.settled) {
            if !medium.lines.contains_key(&number) {
                let certain = &medium.certain[(number * LINE_BYTES) as usize..];
                self.put(number, &certain[..LINE_BYTES as usize]);
            }
        }
        for ((number, line), choice) in medium.lines.iter().zip(image) {
            self.put(*number, &line.chosen(*choice));
        }
        CrashImage { bytes: &self.bytes, changed: &self.changed, due }
    }

    fn put(&mut self, number: u64, line: &[u8]) {
        let to = &mut self.bytes[(number * LINE_BYTES) as usize..][..LINE_BYTES as usize];
        if to != line {
            to.copy_from_slice(line);
            self.changed.push(number);
        }
    }
}

impl Line {
    fn chosen(&self, choice: LineState) -> LineBytes {
        let newest = self.versions.last().expect("two or more");
        match choice {
            LineState::Version(version) => self.versions[version],
            LineState::Torn(version, mask) => {
                let mut line = self.versions[version];
                for word in (0..8).filter(|word| mask >> word & 1 == 1) {
                    line[8 * word..][..8].copy_from_slice(&newest[8 * word..][..8]);
                }
                line
            }
        }
    }
}

/// The lines that a range touches, by their number.
fn lines_of(start: u64, end: u64) -> Range<u64> {
    start / LINE_BYTES..end.div_ceil(LINE_BYTES)
}

fn all_combinations<E>(
    newest: &[usize],
    each: &mut dyn FnMut(&Image) -> Result<(), E>,
) -> Result<(), E> {
    let mut image = vec![LineState::Version(0); newest.len()];
    let mut digits = vec![0; newest.len()];
    loop {
        each(&image)?;
        let Some(step) = (0..digits.len()).find(|at| digits[*at] < newest[*at]) else {
            return Ok(());
        };
        digits[step] += 1;
        digits[..step].fill(0);
        for (choice, digit) in image.iter_mut().zip(&digits).take(step + 1) {
            *choice = LineState::Version(*digit);
        }
    }
}

fn all_subsets<E>(
    newest: &[usize],
    each: &mut dyn FnMut(&Image) -> Result<(), E>,
) -> Result<(), E> {
    (0..1u32 << newest.len()).try_for_each(|set| {
        let pick =
            |(at, newest): (usize, &usize)| LineState::Version((set >> at & 1) as usize * newest);
        let image: Vec<LineState> = newest.iter().enumerate().map(pick).collect();
        each(&image)
    })
}

/// All old, all new, each line alone old, each line alone new.
fn each_line<E>(newest: &[usize], each: &mut dyn FnMut(&Image) -> Result<(), E>) -> Result<(), E> {
    for mut image in all_old_and_all_new(newest) {
        each(&image)?;
        for (at, newest) in newest.iter().enumerate() {
            let usual = image[at];
            let is_old = usual == LineState::Version(0);
            image[at] = LineState::Version(if is_old { *newest } else { 0 });
            each(&image)?;
            image[at] = usual;
        }
    }
    Ok(())
}

fn torn_lines<E>(
    newest: &[usize],
    random: &mut Random,
    each: &mut dyn FnMut(&Image) -> Result<(), E>,
) -> Result<(), E> {
    let mut lines: Vec<usize> = (0..newest.len()).collect();
    while lines.len() > LINES_MAX {
        lines.swap_remove(random.below(lines.len() as u64) as usize);
    }
    for at in lines {
        for mut image in all_old_and_all_new(newest) {
            let version = random.below(newest[at] as u64) as usize;
            // Not all of the words and not none.
            image[at] = LineState::Torn(version, random.below(254) as u8 + 1);
            each(&image)?;
        }
    }
    Ok(())
}

fn all_old_and_all_new(newest: &[usize]) -> [Vec<LineState>; 2] {
    let all_new = newest.iter().map(|newest| LineState::Version(*newest)).collect();
    [vec![LineState::Version(0); newest.len()], all_new]
}

/// Numbers by a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `end`, which is small and not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::super::Persist;
    use super::super::recorder::StoreRecorder;
    use super::*;
    use crate::seam::Mem;

    const OPTIONS: ImageOptions = ImageOptions { seed: 37, samples: 20, ..ImageOptions::ALL };

    fn word_at(image: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(image[offset..offset + 8].try_into().unwrap())
    }

    fn images_of(memory: &StoreRecorder) -> BTreeSet<Vec<u8>> {
        let mut seen = BTreeSet::new();
        let trace = memory.trace();
        let mut medium = Medium::new(&trace);
        trace.events.iter().for_each(|event| medium.apply(event));
        let mut shown = ShownImage::new(&trace);
        shown.settled.append(&mut medium.settled);
        let ended: Result<(), ()> = medium.images(OPTIONS, &mut Random(1), &mut |image| {
            seen.insert(shown.show(&medium, image, &BTreeSet::new()).bytes.to_vec());
            Ok(())
        });
        ended.unwrap();
        seen
    }

    #[test]
    fn what_changes_from_image_to_image_is_told() {
        let memory = StoreRecorder::new(vec![0; 1024], PersistenceDomain::Adr);
        let mut random = Random(37);
        for value in 1..200 {
            let at = 8 * random.below(128);
            match random.below(4) {
                0 => memory.write_back(at, 8),
                1 => memory.persist_fence().unwrap(),
                _ => memory.store(at, value),
            }
        }
        let trace = memory.trace();
        let mut own = trace.initial.clone();
        let some = ImageOptions { combinations_max: 16, one_of: 3, ..OPTIONS };
        let explored = explore_images(&trace, some, &mut |image| {
            for number in image.changed {
                let at = (number * LINE_BYTES) as usize..((number + 1) * LINE_BYTES) as usize;
                assert_ne!(own[at.clone()], image.bytes[at.clone()]);
                own[at.clone()].copy_from_slice(&image.bytes[at]);
            }
            assert_eq!(own, image.bytes);
            Ok(BTreeSet::new())
        });
        assert!(explored.unwrap().images > 1000);
    }

    /// What the word at `offset` may be.
    fn words(memory: &StoreRecorder, offset: usize) -> BTreeSet<u64> {
        images_of(memory).iter().map(|image| word_at(image, offset)).collect()
    }

    #[test]
    fn a_store_is_certain_only_after_its_write_back_and_a_fence_in_this_order() {
        let memory = StoreRecorder::new(vec![0; 256], PersistenceDomain::Adr);
        memory.store(0, 1);
        memory.persist_fence().unwrap();
        assert_eq!(words(&memory, 0), BTreeSet::from([0, 1]));
        memory.write_back(0, 8);
        assert_eq!(words(&memory, 0), BTreeSet::from([0, 1]));
        memory.store(0, 2);
        memory.persist_fence().unwrap();
        // The later store was not covered.
        assert_eq!(words(&memory, 0), BTreeSet::from([1, 2]));
        memory.persist(0, 8).unwrap();
        assert_eq!(words(&memory, 0), BTreeSet::from([2]));
    }

    #[test]
    fn every_version_since_the_last_fence_may_be_on_the_medium() {
        let memory = StoreRecorder::new(vec![0; 64], PersistenceDomain::Adr);
        (1..=5).for_each(|value| memory.store(8, value));
        assert_eq!(words(&memory, 8), BTreeSet::from([0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn all_subsets_of_twelve_lines_are_tried_and_more_are_sampled() {
        let memory = StoreRecorder::new(vec![0; 4096], PersistenceDomain::Adr);
        (0..12).for_each(|line| memory.store(line * 64, 1));
        assert_eq!(images_of(&memory).len(), 1 << 12);
        // Two versions of each: too many combinations, so subsets and a sample.
        (0..12).for_each(|line| memory.store(line * 64, 2));
        let subsets = images_of(&memory);
        assert!(subsets.len() > 1 << 12 && subsets.len() < 5000, "{}", subsets.len());
        (12..40).for_each(|line| memory.store(line * 64, 1));
        let sampled = images_of(&memory);
        let newest = memory.visible();
        for line in 0..40 {
            let mut alone = vec![0; 4096];
            alone[line * 64] = newest[line * 64];
            let mut missing = newest.clone();
            missing[line * 64] = 0;
            assert!(sampled.contains(&alone) && sampled.contains(&missing), "line {line}");
        }
    }

    #[test]
    fn a_line_may_be_torn_between_words_and_never_within() {
        let memory = StoreRecorder::new(vec![0; 64], PersistenceDomain::Adr);
        memory.copy_in(0, &[0xff; 64]);
        let images = images_of(&memory);
        assert!(images.len() > 2, "no torn line");
        let words = images.iter().flat_map(|image| (0..8).map(|word| word_at(image, 8 * word)));
        assert!(words.into_iter().all(|word| word == 0 || word == u64::MAX));
    }

    #[test]
    fn caches_that_are_spared_need_a_fence_alone_and_page_caches_write_pages() {
        let memory = StoreRecorder::new(vec![0; 8192], PersistenceDomain::Eadr);
        memory.store(0, 1);
        assert_eq!(words(&memory, 0), BTreeSet::from([0, 1]));
        memory.persist_fence().unwrap();
        assert_eq!(words(&memory, 0), BTreeSet::from([1]));
        let memory = StoreRecorder::new(vec![0; 8192], PersistenceDomain::Msync);
        memory.store(0, 1);
        memory.store(4096, 1);
        memory.persist(4000, 8).unwrap();
        assert_eq!(words(&memory, 0), BTreeSet::from([1]));
        assert_eq!(words(&memory, 4096), BTreeSet::from([0, 1]));
    }

    /// A word that says how many words before it are valid, the smallest protocol with an order.
    fn counted(image: &[u8]) -> Result<BTreeSet<u64>, String> {
        (1..=word_at(image, 512))
            .map(|token| match word_at(image, token as usize * 64) {
                value if value == token => Ok(token),
                value => Err(format!("word {token} is {value}")),
            })
            .collect()
    }

    fn write_counted(memory: &StoreRecorder) {
        for token in 1..=3 {
            memory.issue(token);
            memory.store(token * 64, token);
            memory.persist(token * 64, 8).unwrap();
            memory.store(512, token);
            memory.persist(512, 8).unwrap();
            memory.acknowledge(token);
        }
    }

    #[test]
    fn each_safeguard_that_is_left_out_or_out_of_order_is_found() {
        let memory = StoreRecorder::new(vec![0; 1024], PersistenceDomain::Adr);
        write_counted(&memory);
        let trace = memory.trace();
        let mut recover = |image: Vec<u8>| counted(&image);
        let explored = explore(&trace, OPTIONS, &mut recover).unwrap();
        assert!(explored.images > 20, "{explored:?}");
        assert_eq!(safeguards(&trace).len(), 12);
        for index in safeguards(&trace) {
            let found = explore(&trace.without(index), OPTIONS, &mut recover);
            assert!(found.is_err(), "without event {index}: {found:?}");
        }
        for index in trace.fences() {
            for moved in [index, index + 1] {
                let found = explore(&trace.earlier(moved), OPTIONS, &mut recover);
                assert!(found.is_err(), "event {moved} earlier: {found:?}");
            }
        }
    }

    #[test]
    fn what_was_never_issued_is_a_violation_too_and_says_where() {
        let memory = StoreRecorder::new(vec![0; 64], PersistenceDomain::Adr);
        memory.store(0, 1);
        let trace = memory.trace();
        let mut recover = |image: Vec<u8>| -> Result<BTreeSet<u64>, String> {
            Ok(BTreeSet::from([word_at(&image, 0)]))
        };
        let violation = explore(&trace, OPTIONS, &mut recover).unwrap_err();
        assert_eq!((violation.event, violation.seed), (0, 37));
        assert!(violation.reason.contains("0 was found and never issued"), "{violation}");
        assert!(violation.to_string().contains("0: 0 of 1"), "{violation}");
    }
}
