//! Where memory of this host comes from: one memory node, or several by weights. CXL memory that
//! the kernel took as its own is a node without processors.
//!
//! In: a [`Placement`], from a text such as `numa:1` or `numa:0=3,numa:1=1`. Out: windows with
//! pages from there. By weights, pages are dealt out in turn in extents of 2 MiB (more for memory
//! above 16 GiB), each bound by itself: the kernel's own weights are the whole host's, and are left
//! alone. In smaller grains a binding each would be more mappings than a process may have: memory
//! is taken at once, while all of a part is bound to one node after the other. What was backed
//! before stays where it is, until it is moved (`numa/moving.rs`). Called by the key-value cache.
//!
//! Source: HMSDK (placement on one node, or interleaved by bandwidth).

mod moving;

pub use moving::{MovedPages, PageTarget};

pub use crate::policy::NODES_MAX;
use crate::policy::PolicyCall;
use crate::sync::{AtomicU64, Ordering};
use crate::window::{Access, MapOptions, Window, take_file};
use rackpool_core::seam::Mem;
use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::str::FromStr;
use std::thread;

/// Nodes that have memory, as a list such as `0-1,3`.
const NODES: &str = "/sys/devices/system/node/has_memory";
/// Least and most that [`Placement::deal`] gives to a node at a time, bytes: from a small page to a
/// huge one, which is also the least that is bound by itself.
pub const GRAIN_BYTES_MIN: u64 = 4 << 10;
pub const GRAIN_BYTES_MAX: u64 = 2 << 20;
/// Extents of a window: each is a mapping of its own to the kernel, which has 65,530 for a process.
const EXTENTS_MAX: u64 = 8192;
/// Memory that a thread deals out before it looks for more, bytes.
const PART_BYTES: u64 = 64 << 20;
const THREADS_MAX: usize = 8;
/// What a node keeps when memory is dealt out: bound memory that is not there would have the kernel
/// end a process.
const MARGIN_BYTES: u64 = 32 << 20;
const WEIGHT_MAX: u16 = 255;
/// Unit in which a file's memory is counted.
const BLOCK_BYTES: u64 = 512;
const CHOOSING: &str = "choosing a memory node";

/// Why memory cannot come from where it is wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NumaError {
    /// The text is no placement. Do not retry.
    #[error(
        "`{text}` says no memory nodes: numa:1 is one, numa:0=3,numa:1=1 are two by weights \
             of 1 to 255"
    )]
    Syntax { text: String },
    /// There is no such node, or it has no memory. Do not retry.
    #[error("memory node {node} has no memory; nodes with memory: {there}")]
    NoNode {
        node: u16,
        /// Those that have some, as the kernel lists them.
        there: String,
    },
    /// A node is too small. Do not retry.
    #[error(
        "memory node {node} has {total_bytes} bytes in all, {asked_bytes} were to come from \
             it: ask for less, or for other nodes or weights"
    )]
    TooSmall {
        node: u16,
        /// What it was to give.
        asked_bytes: u64,
        total_bytes: u64,
    },
    /// A node has too little left. Retry when it has more.
    #[error(
        "memory node {node} has {available_bytes} bytes to give, {asked_bytes} were to come from \
         it: free some, or ask for less, or for other nodes or weights"
    )]
    Full {
        node: u16,
        /// What it was to give.
        asked_bytes: u64,
        /// Free memory, and pages of files, which give way.
        available_bytes: u64,
    },
    /// The kernel has not the system call, or a filter before it refuses it. Do not retry.
    #[error(
        "{call} is refused to this process ({source}): start its container with --cap-add \
         SYS_NICE, or a seccomp profile that allows it"
    )]
    Refused { call: PolicyCall, source: io::Error },
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl NumaError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            NumaError::Syntax { .. } => "usage",
            NumaError::NoNode { .. } => "no-node",
            NumaError::TooSmall { .. } | NumaError::Full { .. } => "full",
            NumaError::Refused { .. } => "denied",
            NumaError::Io { .. } => "io",
        }
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> NumaError {
    move |source| NumaError::Io { what, source }
}

/// Whether a node has memory; if not, those that have some, as the kernel lists them.
pub(crate) fn require(node: u16) -> Result<(), String> {
    let there = fs::read_to_string(NODES).unwrap_or_default();
    let nodes: Vec<u16> = numbers(&there, NODES_MAX).unwrap_or_default();
    if nodes.contains(&node) { Ok(()) } else { Err(there.trim().to_owned()) }
}

/// From which nodes memory comes, and by which weights.
///
/// ```
/// use rackpool_mem::numa::Placement;
///
/// let placement: Placement = "numa:0=3,numa:1=1".parse()?;
/// assert_eq!(placement.nodes(), [(0, 3), (1, 1)]);
/// assert_eq!("numa:2".parse::<Placement>()?.to_string(), "numa:2");
/// # Ok::<(), rackpool_mem::numa::NumaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement(Vec<(u16, u16)>);

impl FromStr for Placement {
    type Err = NumaError;

    fn from_str(text: &str) -> Result<Placement, NumaError> {
        let syntax = || NumaError::Syntax { text: text.to_owned() };
        let parts: Vec<&str> = text.split(',').collect();
        let mut nodes: Vec<(u16, u16)> = Vec::new();
        for part in &parts {
            let part = part.strip_prefix("numa:").ok_or_else(syntax)?;
            let (node, weight) = match part.split_once('=') {
                Some((node, weight)) => (node, weight.parse().map_err(|_| syntax())?),
                None if parts.len() == 1 => (part, 1),
                None => return Err(syntax()),
            };
            let node: u16 = node.parse().map_err(|_| syntax())?;
            let is_twice = nodes.iter().any(|(other, _)| *other == node);
            if is_twice || !(1..=WEIGHT_MAX).contains(&weight) {
                return Err(syntax());
            }
            nodes.push((node, weight));
        }
        Ok(Placement(nodes))
    }
}

impl Display for Placement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [(node, _)] => write!(f, "numa:{node}"),
            nodes => nodes.iter().enumerate().try_for_each(|(index, (node, weight))| {
                let comma = if index == 0 { "" } else { "," };
                write!(f, "{comma}numa:{node}={weight}")
            }),
        }
    }
}

impl Placement {
    /// The nodes with their weights.
    pub fn nodes(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// The same without a node; `None` if no other is left.
    #[must_use]
    pub fn without(&self, node: u16) -> Option<Placement> {
        let others = self.0.iter().copied().filter(|(other, _)| *other != node);
        let others: Vec<(u16, u16)> = others.collect();
        (!others.is_empty()).then_some(Placement(others))
    }

    /// The extents of so many bytes, in order: offset, bytes, node.
    pub fn extents(&self, bytes: u64) -> Vec<(u64, u64, u16)> {
        if let [(node, _)] = self.0[..] {
            return vec![(0, bytes, node)];
        }
        self.runs(bytes, extent_bytes(bytes)).collect()
    }

    /// So many bytes in turn, `grain_bytes` for each unit of weight: offset, bytes, node.
    fn runs(&self, bytes: u64, grain_bytes: u64) -> impl Iterator<Item = (u64, u64, u16)> {
        let mut at = 0;
        self.0.iter().cycle().map_while(move |(node, weight)| {
            let length = (u64::from(*weight) * grain_bytes).min(bytes - at);
            let run = (at, length, *node);
            at += length;
            (length > 0).then_some(run)
        })
    }

    /// What of so many bytes a node has.
    fn share_bytes(&self, node: u16, bytes: u64, grain_bytes: u64) -> u64 {
        let own = self.runs(bytes, grain_bytes).filter(|(.., other)| *other == node);
        own.map(|(_, bytes, _)| bytes).sum()
    }

    /// Whether the nodes have so much memory, beside whatever is in use.
    ///
    /// # Errors
    /// [`NumaError::NoNode`], [`NumaError::TooSmall`].
    pub fn check(&self, bytes: u64) -> Result<(), NumaError> {
        let extents = self.extents(bytes);
        for (node, _) in &self.0 {
            require(*node).map_err(|there| NumaError::NoNode { node: *node, there })?;
            let own = extents.iter().filter(|(_, _, other)| other == node);
            let asked_bytes = own.map(|(_, bytes, _)| bytes).sum();
            let (node, total_bytes) = (*node, total_bytes(*node));
            if total_bytes.is_some_and(|total| asked_bytes > total) {
                let total_bytes = total_bytes.unwrap_or(0);
                return Err(NumaError::TooSmall { node, asked_bytes, total_bytes });
            }
        }
        Ok(())
    }

    /// Whether the nodes have so much to give now, as far as the kernel tells.
    ///
    /// # Errors
    /// Of [`Placement::check`]; [`NumaError::Full`].
    pub fn check_free(&self, bytes: u64) -> Result<(), NumaError> {
        self.check(bytes)?;
        for (node, _) in &self.0 {
            require_room(*node, self.share_bytes(*node, bytes, GRAIN_BYTES_MAX))?;
        }
        Ok(())
    }

    /// Has pages of a window that are backed from now on come from here.
    ///
    /// # Errors
    /// Of [`Placement::check`]; [`NumaError::Io`].
    pub fn apply(&self, window: &Window) -> Result<(), NumaError> {
        self.check(window.bytes())?;
        for (at, bytes, node) in self.extents(window.bytes()) {
            let extent = window.slice(at, bytes);
            extent.bind_to_node(node).map_err(failed(CHOOSING))?;
        }
        Ok(())
    }

    /// Has a window that is not in use yet take all of its memory from here: on several nodes
    /// `grain_bytes` for each unit of weight in turn, at once and in small pages. From
    /// [`GRAIN_BYTES_MAX`] on, and on one node, as [`Placement::apply`]. Blocks for some 100 us a
    /// MiB, divided by the processors.
    ///
    /// # Errors
    /// As [`Placement::apply`]; [`NumaError::Full`].
    pub fn deal(&self, window: &Window, grain_bytes: u64) -> Result<(), NumaError> {
        let bytes = window.bytes();
        match self.grain(grain_bytes) {
            None => self.apply(window),
            Some(grain_bytes) => {
                self.check(bytes)?;
                self.deal_missing(window, grain_bytes, bytes, None)
            }
        }
    }

    /// The grain in whole pages, if it takes more than bindings to deal memory out by it.
    fn grain(&self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size() as u64);
        (self.0.len() > 1 && bytes < GRAIN_BYTES_MAX).then_some(bytes)
    }

    /// Deals out a window that lacks so many bytes.
    fn deal_missing(
        &self,
        window: &Window,
        grain_bytes: u64,
        missing_bytes: u64,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), NumaError> {
        window.allow_huge_pages(false);
        if missing_bytes > 0 {
            for (node, _) in &self.0 {
                let share_bytes = self.share_bytes(*node, window.bytes(), grain_bytes);
                require_room(*node, share_bytes.min(missing_bytes))?;
            }
            self.deal_parts(window, grain_bytes, file)?;
        }
        // With a binding the kernel does not move pages to where they are used most; what comes
        // back from swap may come to any of the nodes.
        let nodes: Vec<u16> = self.0.iter().map(|(node, _)| *node).collect();
        window.bind_to_nodes(&nodes).map_err(failed(CHOOSING))
    }

    fn deal_parts(
        &self,
        window: &Window,
        grain_bytes: u64,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), NumaError> {
        let weights = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>();
        let turn_bytes = weights * grain_bytes;
        let part_bytes = (PART_BYTES / turn_bytes).max(1) * turn_bytes;
        let (next, bytes) = (AtomicU64::new(0), window.bytes());
        let deal = || -> Result<(), NumaError> {
            loop {
                // Relaxed: a count alone.
                let at = next.fetch_add(part_bytes, Ordering::Relaxed);
                if at >= bytes {
                    return Ok(());
                }
                let part = window.slice(at, part_bytes.min(bytes - at));
                let dealt = self.deal_part(&part, grain_bytes, file.map(|file| (file, at)));
                if dealt.is_err() {
                    // Relaxed: as above; other threads find nothing more to do.
                    next.store(bytes, Ordering::Relaxed);
                    return dealt;
                }
            }
        };
        let count = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(deal)).collect();
            let mut threads = threads.into_iter();
            threads.try_for_each(|thread| thread.join().expect("no part is outside the window"))
        })
    }

    /// Takes the memory of a part, that of one node after the other; where in a file it begins.
    fn deal_part(
        &self,
        part: &Window,
        grain_bytes: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), NumaError> {
        for (node, _) in &self.0 {
            require_room(*node, self.share_bytes(*node, part.bytes(), grain_bytes))?;
            // A policy of the mapping, not of the thread: page tables come from near memory.
            part.bind_to_node(*node).map_err(failed(CHOOSING))?;
            let runs = self.runs(part.bytes(), grain_bytes);
            for (at, bytes, _) in runs.filter(|(.., other)| other == node) {
                take(part, at, bytes, file).map_err(failed("taking memory"))?;
            }
        }
        Ok(())
    }

    /// A window on a file of shared memory that is made `bytes` bytes long, if it is shorter, and
    /// takes its memory from here at once, by grains as [`Placement::deal`] does. What the file has
    /// already stays where it is.
    ///
    /// # Errors
    /// As [`Placement::deal`].
    pub fn file(
        &self,
        file: BorrowedFd<'_>,
        bytes: u64,
        grain_bytes: u64,
    ) -> Result<Window, NumaError> {
        self.check(bytes)?;
        let grain_bytes = self.grain(grain_bytes);
        let stat = fstat(file).map_err(io::Error::from).map_err(failed("looking at a file"))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < bytes {
            let made = ftruncate(file, bytes).map_err(io::Error::from);
            made.map_err(failed("lengthening a file"))?;
        }
        let options = MapOptions { huge_advice: grain_bytes.is_none(), ..MapOptions::default() };
        let window = Window::map(file, bytes, Access::ReadWrite, options);
        let window = window.map_err(failed("mapping a file"))?;
        if let Some(grain_bytes) = grain_bytes {
            let there = u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES;
            let missing_bytes = bytes.saturating_sub(there);
            self.deal_missing(&window, grain_bytes, missing_bytes, Some(file))?;
            return Ok(window);
        }
        self.apply(&window)?;
        let backed = fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from);
        backed.map_err(failed("taking memory for a file"))?;
        Ok(window)
    }
}

/// What a node gives of so many bytes at a time if each such extent is bound by itself.
fn extent_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(EXTENTS_MAX).next_multiple_of(GRAIN_BYTES_MAX)
}

/// Takes the memory of a part of a window; where in a file the window begins.
fn take(
    window: &Window,
    at: u64,
    bytes: u64,
    file: Option<(BorrowedFd<'_>, u64)>,
) -> io::Result<()> {
    let taken = window.populate(at, bytes);
    let code = taken.as_ref().err().and_then(io::Error::raw_os_error);
    match (code, file) {
        // Before Linux 5.14, or its file system is full, and then says so itself.
        (Some(libc::EINVAL | libc::EFAULT), Some((file, start))) => {
            take_file(file, start + at, bytes)
        }
        // Nothing is in it yet.
        (Some(libc::EINVAL), None) => {
            window.zero(at, bytes);
            Ok(())
        }
        _ => taken,
    }
}

/// The numbers of a list as the kernel writes it, `0-3,8,10-11`; the empty text is an empty list.
/// None if the text is no list, or names a number of `limit` or more.
#[must_use]
pub fn numbers<N: TryFrom<u32>>(list: &str, limit: u32) -> Option<Vec<N>> {
    let list = list.trim();
    if list.is_empty() {
        return Some(Vec::new());
    }
    let mut all = Vec::new();
    let mut next = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // Ascending, as the kernel lists them: so there are at most `limit`.
        if first < next || first > last || last >= limit {
            return None;
        }
        next = last + 1;
        for number in first..=last {
            all.push(N::try_from(number).ok()?);
        }
    }
    Some(all)
}

/// Ascending numbers as the kernel writes them: `0-3,8,10-11`.
#[must_use]
pub fn list<N: Copy + Into<u32>>(numbers: &[N]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers.iter().map(|number| (*number).into()) {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let show = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(show).collect::<Vec<_>>().join(",")
}

/// The bytes behind `Node N KEY:` in the file `meminfo` of a node.
#[must_use]
pub fn node_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| {
        let (before, value) = line.split_once(':')?;
        (before.split_whitespace().nth(2) == Some(key)).then_some(value)
    })?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn meminfo(node: u16) -> Option<String> {
    fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()
}

/// All memory of a node, bytes, if the kernel tells.
pub(crate) fn total_bytes(node: u16) -> Option<u64> {
    node_bytes(&meminfo(node)?, "MemTotal")
}

/// Whether a node has so much to give now, as far as the kernel tells.
fn require_room(node: u16, asked_bytes: u64) -> Result<(), NumaError> {
    let Some(available_bytes) = meminfo(node).and_then(|text| available_bytes(&text)) else {
        return Ok(());
    };
    if asked_bytes > available_bytes.saturating_sub(MARGIN_BYTES) {
        return Err(NumaError::Full { node, asked_bytes, available_bytes });
    }
    Ok(())
}

/// What a node has to give, by its file `meminfo`: free memory, and pages of files, which give way.
#[must_use]
pub fn available_bytes(meminfo: &str) -> Option<u64> {
    let files = ["Active(file)", "Inactive(file)"].map(|key| node_bytes(meminfo, key).unwrap_or(0));
    Some(node_bytes(meminfo, "MemFree")?.saturating_add(files[0]).saturating_add(files[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    const MIB: u64 = 1 << 20;

    fn placement(text: &str) -> Placement {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_read_and_others_are_refused_with_examples() {
        for text in ["numa:0", "numa:7", "numa:0=3,numa:1=1", "numa:2=255,numa:0=1,numa:5=9"] {
            assert_eq!(placement(text).to_string(), text);
        }
        let wrong = ["", "1", "numa:", "numa:x", "numa:0=0,numa:1=1", "numa:0=256,numa:1=1"];
        for text in wrong.into_iter().chain(["numa:0,numa:1", "numa:0=1,numa:0=2", "numa:0=1,"]) {
            let error = text.parse::<Placement>().unwrap_err();
            assert!(matches!(error, NumaError::Syntax { .. }), "{text}");
            assert!(error.to_string().contains("numa:0=3,numa:1=1"), "{error}");
        }
    }

    #[test]
    fn extents_cover_all_bytes_in_the_proportion_of_the_weights() {
        let extents = placement("numa:0=3,numa:1=1").extents(17 * MIB);
        let expected = [(0, 6, 0), (6, 2, 1), (8, 6, 0), (14, 2, 1), (16, 1, 0)];
        let expected = expected.map(|(at, bytes, node)| (at * MIB, bytes * MIB, node));
        assert_eq!(extents, expected);
        assert_eq!(placement("numa:4").extents(5), [(0, 5, 4)]);
        assert_eq!(placement("numa:0=3,numa:1=2").without(0), Some(placement("numa:1=2")));
        assert_eq!(placement("numa:4").without(4), None);
        let large = placement("numa:0=1,numa:1=1").extents(1 << 40);
        assert!(large.len() as u64 <= EXTENTS_MAX);
        assert_eq!(large.iter().map(|(_, bytes, _)| bytes).sum::<u64>(), 1 << 40);
    }

    #[test]
    fn grains_are_dealt_in_turn_and_each_node_has_its_exact_share() {
        let placement = placement("numa:0=3,numa:1=1");
        let grain = 64 << 10;
        let expected = [(0, 3, 0), (3, 1, 1), (4, 3, 0), (7, 1, 1), (8, 1, 0)];
        let expected = expected.map(|(at, grains, node)| (at * grain, grains * grain, node));
        assert_eq!(placement.runs(9 * grain, grain).collect::<Vec<_>>(), expected);
        for grain in [4096, 16 << 10, 64 << 10] {
            let share = |node| placement.share_bytes(node, 64 * MIB, grain);
            assert_eq!([share(0), share(1), share(2)], [48 * MIB, 16 * MIB, 0], "{grain}");
        }
        // The rest of a turn is the next one's, down to the last byte.
        assert_eq!(placement.share_bytes(1, 3 * 4096 + 5, 4096), 5);
    }

    #[test]
    fn dealt_memory_is_there_at_once_and_is_one_mapping() {
        // Node 0 twice: a machine has no other for sure.
        let twice = Placement(vec![(0, 3), (0, 1)]);
        // Several parts, the last of them with a piece of a turn.
        let bytes = 2 * PART_BYTES + 20 * 4096;
        let window = Window::private(bytes).unwrap();
        twice.deal(&window, 64 << 10).unwrap();
        let all = |bytes: u64| BTreeMap::from([(0, bytes / 4096)]);
        assert_eq!(window.node_pages().unwrap(), all(bytes));
        let (start, maps) =
            (window.start().addr().get() as u64, fs::read_to_string("/proc/self/maps"));
        let is_in = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let (from, upto) = range.map(|(from, upto)| (number(from), number(upto))).unwrap();
            from <= start && start + bytes <= upto
        };
        assert!(maps.unwrap().lines().any(is_in));

        let fd = rustix::fs::memfd_create("deal-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let window = twice.file(fd.as_fd(), 6 * MIB, GRAIN_BYTES_MIN).unwrap();
        assert_eq!(window.node_pages().unwrap(), all(6 * MIB));
        window.copy_in(0, &vec![1; 6 << 20]);
        // What is there stays, and what is not is taken.
        let again = twice.file(fd.as_fd(), 8 * MIB, GRAIN_BYTES_MIN).unwrap();
        assert_eq!(again.node_pages().unwrap(), all(8 * MIB));
        assert_eq!((again.load(6 * MIB - 8), again.load(6 * MIB)), (0x0101_0101_0101_0101, 0));
    }

    #[test]
    fn a_node_with_too_little_left_is_refused_before_anything_is_taken() {
        let error = require_room(0, 1 << 60).unwrap_err();
        assert!(matches!(error, NumaError::Full { node: 0, .. }), "{error}");
        assert_eq!(error.code(), "full");
        let text = "Node 0 MemTotal: 90 kB\nNode 0 MemFree:    7 kB\nNode 0 Active(anon): 5 kB\n\
                    Node 0 Active(file):  2 kB\nNode 0 Inactive(file): 1 kB\n";
        assert_eq!(available_bytes(text), Some(10 << 10));
    }

    #[test]
    fn a_node_without_memory_is_refused_with_those_that_have_some() {
        let window = Window::private(4 * MIB).unwrap();
        for text in ["numa:1023", "numa:0=1,numa:999=1"] {
            let error = placement(text).apply(&window).unwrap_err();
            assert!(matches!(error, NumaError::NoNode { .. }), "{error}");
            assert!(error.to_string().contains("nodes with memory: 0"), "{error}");
        }
        let error = placement("numa:0").check(1 << 60).unwrap_err();
        assert!(matches!(error, NumaError::TooSmall { node: 0, .. }), "{error}");
    }

    #[test]
    fn every_page_lies_where_it_was_placed() {
        let window = Window::private(6 * MIB).unwrap();
        placement("numa:0").apply(&window).unwrap();
        window.zero(0, 6 * MIB);
        let pages = 6 * MIB / 4096;
        assert_eq!(window.node_pages().unwrap().into_iter().collect::<Vec<_>>(), [(0, pages)]);
        let fd = rustix::fs::memfd_create("numa-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let window = placement("numa:0=2").file(fd.as_fd(), 6 * MIB, GRAIN_BYTES_MIN).unwrap();
        window.copy_in(0, &vec![1; 6 << 20]);
        assert_eq!(window.node_pages().unwrap().into_iter().collect::<Vec<_>>(), [(0, pages)]);
        // What is there stays, also when it is opened again.
        let again = placement("numa:0").file(fd.as_fd(), 6 * MIB, GRAIN_BYTES_MIN).unwrap();
        assert_eq!(again.load(8), 0x0101_0101_0101_0101);
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        let read = |text| numbers::<u16>(text, NODES_MAX);
        assert_eq!(read("0-1,3\n"), Some(vec![0, 1, 3]));
        assert_eq!((read("7"), read("\n")), (Some(vec![7]), Some(vec![])));
        for text in ["x-2", "0-", "-1", "2-1", "0,,1", "1024", "0-4294967295", "0 1", "0-1,1"] {
            assert_eq!(read(text), None, "{text}");
        }
        let repeated = ["0-1023"; 3].join(",");
        assert_eq!(read(&repeated), None);
        for text in ["", "0", "0-3,8,10-11", "1023"] {
            assert_eq!(list(&read(text).unwrap()), text);
        }
    }

    #[test]
    fn memory_of_a_node_is_read_in_bytes() {
        let text =
            "Node 1 MemTotal:  2048 kB\nNode 1 MemFree:  x kB\nNode 1 Big: 99999999999999999 kB";
        assert_eq!(node_bytes(text, "MemTotal"), Some(2 << 20));
        for key in ["MemFree", "Big", "Node", "1", "Absent"] {
            assert_eq!(node_bytes(text, key), None, "{key}");
        }
    }
}
