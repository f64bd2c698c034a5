//! Where memory of this host comes from: one memory node, or several by weights. CXL memory that
//! the kernel took as its own is a node without processors.
//!
//! In: a [`Placement`], from a text such as `numa:1` or `numa:0=3,numa:1=1`. Out: windows with
//! pages from there. By weights, pages are dealt out in turn in extents of 2 MiB (more for memory
//! above 16 GiB), each bound by itself: the kernel's own weights are the whole host's, and are left
//! alone. What was backed before stays where it is. Called by the key-value cache.
//!
//! Source: HMSDK (placement on one node, or interleaved by bandwidth).

use crate::window::{Access, MapOptions, Window};
use rackpool_core::seam::Mem;
use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::str::FromStr;

/// Nodes that have memory, as a list such as `0-1,3`.
const NODES: &str = "/sys/devices/system/node/has_memory";
/// Least memory that is dealt to a node at a time, bytes: a huge page.
const EXTENT_BYTES_MIN: u64 = 2 << 20;
/// Extents of a window: each is a mapping of its own to the kernel, which has 65,530 for a process.
const EXTENTS_MAX: u64 = 8192;
const WEIGHT_MAX: u16 = 255;
/// Nodes that Linux can have at most.
pub const NODES_MAX: u32 = 1024;

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
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl NumaError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            NumaError::Syntax { .. } => "usage",
            NumaError::NoNode { .. } => "no-node",
            NumaError::TooSmall { .. } => "full",
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
        let extent_bytes = bytes.div_ceil(EXTENTS_MAX).next_multiple_of(EXTENT_BYTES_MIN);
        let turns = self.0.iter().flat_map(|(node, weight)| (0..*weight).map(|_| *node)).cycle();
        let mut extents: Vec<(u64, u64, u16)> = Vec::new();
        for (at, node) in (0..bytes).step_by(extent_bytes as usize).zip(turns) {
            let length = extent_bytes.min(bytes - at);
            match extents.last_mut() {
                Some((_, before, last)) if *last == node => *before += length,
                _ => extents.push((at, length, node)),
            }
        }
        extents
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

    /// Has pages of a window that are backed from now on come from here.
    ///
    /// # Errors
    /// Of [`Placement::check`]; [`NumaError::Io`].
    pub fn apply(&self, window: &Window) -> Result<(), NumaError> {
        self.check(window.bytes())?;
        for (at, bytes, node) in self.extents(window.bytes()) {
            let extent = window.slice(at, bytes);
            extent.bind_to_node(node).map_err(failed("choosing a memory node"))?;
        }
        Ok(())
    }

    /// A window on a file of shared memory that is made `bytes` bytes long, if it is shorter, and
    /// takes its memory from here at once. What the file has already stays where it is.
    ///
    /// # Errors
    /// As [`Placement::apply`].
    pub fn file(&self, file: BorrowedFd<'_>, bytes: u64) -> Result<Window, NumaError> {
        self.check(bytes)?;
        let stat = fstat(file).map_err(io::Error::from).map_err(failed("looking at a file"))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < bytes {
            let made = ftruncate(file, bytes).map_err(io::Error::from);
            made.map_err(failed("lengthening a file"))?;
        }
        let options = MapOptions { huge_advice: true, ..MapOptions::default() };
        let window = Window::map(file, bytes, Access::ReadWrite, options);
        let window = window.map_err(failed("mapping a file"))?;
        self.apply(&window)?;
        let backed = fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from);
        backed.map_err(failed("taking memory for a file"))?;
        Ok(window)
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

/// All memory of a node, bytes, if the kernel tells.
pub(crate) fn total_bytes(node: u16) -> Option<u64> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    node_bytes(&fs::read_to_string(path).ok()?, "MemTotal")
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let window = placement("numa:0=2").file(fd.as_fd(), 6 * MIB).unwrap();
        window.copy_in(0, &vec![1; 6 << 20]);
        assert_eq!(window.node_pages().unwrap().into_iter().collect::<Vec<_>>(), [(0, pages)]);
        // What is there stays, also when it is opened again.
        let again = placement("numa:0").file(fd.as_fd(), 6 * MIB).unwrap();
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
