//! Memory in use comes to lie on other nodes, page by page, while other threads read and write it:
//! addresses and bytes stay.
//!
//! In: windows, and where their pages are to lie. Out: pages that have moved, in pieces, which
//! bounds the work of a call. A page that cannot move (its node is full, or something holds it)
//! stays, and is counted. Called by the key-value cache in idle turns.
//!
//! By `move_pages`: `mbind` would hold up all page faults of the process meanwhile, and each grain
//! would be a mapping of its own.

use super::{
    CHOOSING, GRAIN_BYTES_MAX, NODES, NODES_MAX, NumaError, Placement, extent_bytes, failed,
    numbers, require_room,
};
use crate::policy::PolicyCall;
use crate::window::{PAGE_BYTES, Window};
use rackpool_core::seam::Mem;
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Nodes that have processors, as a list.
const CPU_NODES: &str = "/sys/devices/system/node/has_cpu";
/// How the line begins with the nodes that this process may use.
const ALLOWED: &str = "Mems_allowed_list:";
/// What is moved at a time, bytes: some 100 us. Huge pages move whole.
const PIECE_BYTES: u64 = 256 << 10;
/// Calls for the pages of a piece that go to one node: one that cannot move ends a call early.
const TRIES: usize = 3;
/// Where it is asked how much lies where: so many places, spread over all memory, of so many bytes.
const LOOKS: u64 = 256;
const LOOK_BYTES: u64 = 256 << 10;
/// 2^64 by the golden ratio: multiples of it fall evenly over all numbers.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where the pages of memory in use are to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTarget {
    nodes: Placement,
    /// For each unit of weight in turn.
    grain_bytes: u64,
    /// Whether a page has to lie where its turn is; else it may lie on any of the nodes.
    is_dealt: bool,
}

/// What came of the pages of a piece that lay elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovedPages {
    pub moved_bytes: u64,
    /// Of those that could not move.
    pub stayed_bytes: u64,
}

/// Pages by their offsets: of a window, or what a test puts in its place.
trait Pages {
    /// The node of each; negative for one that is not there.
    fn nodes_of(&self, pages: &[u64]) -> io::Result<Vec<i32>>;
    fn move_to_node(&self, pages: &[u64], node: u16) -> io::Result<()>;
}

impl Pages for Window {
    fn nodes_of(&self, pages: &[u64]) -> io::Result<Vec<i32>> {
        Window::nodes_of(self, pages)
    }

    fn move_to_node(&self, pages: &[u64], node: u16) -> io::Result<()> {
        Window::move_to_node(self, pages, node)
    }
}

impl PageTarget {
    /// Dealt out to nodes by weights, as [`Placement::deal`] does it with so many bytes as a whole.
    #[must_use]
    pub fn dealt(nodes: &Placement, grain_bytes: u64, whole_bytes: u64) -> PageTarget {
        let grain_bytes = nodes.grain(grain_bytes).unwrap_or_else(|| extent_bytes(whole_bytes));
        PageTarget { nodes: nodes.clone(), grain_bytes, is_dealt: true }
    }

    /// On any of the nodes with processors that this process may use, from where it was dealt out
    /// by such grains; `None` if the kernel names none.
    #[must_use]
    pub fn near(grain_bytes: u64) -> Option<PageTarget> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let nodes = near_nodes(&read(NODES), &read(CPU_NODES), &read("/proc/self/status"));
        let nodes = Placement(nodes.into_iter().map(|node| (node, 1)).collect());
        let target = PageTarget { nodes, grain_bytes, is_dealt: false };
        (!target.nodes.0.is_empty()).then_some(target)
    }

    /// Bytes of a piece for [`PageTarget::move_pages`], and of what its start is a multiple of in
    /// the whole.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        if self.grain_bytes < GRAIN_BYTES_MAX { PIECE_BYTES } else { GRAIN_BYTES_MAX }
    }

    /// Whether the pages of these windows may move there, and the nodes have room for those that
    /// lie elsewhere, by samples. Blocks for some ms.
    ///
    /// # Errors
    /// [`NumaError::Refused`], [`NumaError::NoNode`], [`NumaError::TooSmall`],
    /// [`NumaError::Full`]; [`NumaError::Io`].
    pub fn check(&self, windows: &[Window]) -> Result<(), NumaError> {
        for call in [PolicyCall::Mbind, PolicyCall::MovePages] {
            call.try_it().map_err(|source| NumaError::Refused { call, source })?;
        }
        let bytes: u64 = windows.iter().map(Window::bytes).sum();
        if self.is_dealt {
            self.nodes.check(bytes)?;
            self.try_nodes().map_err(failed(CHOOSING))?;
        }
        let there = bytes_by_node(windows).map_err(failed("asking where memory lies"))?;
        for (node, asked_bytes) in self.asked(bytes, &there) {
            require_room(node, asked_bytes)?;
        }
        Ok(())
    }

    /// Whether this process may bind memory to each of the nodes, by a page that is given back.
    fn try_nodes(&self) -> io::Result<()> {
        let trial = Window::private(PAGE_BYTES)?;
        self.nodes.nodes().iter().try_for_each(|(node, _)| trial.bind_to_node(*node))
    }

    /// What each node is to give if of so many bytes these lie on nodes already.
    fn asked(&self, bytes: u64, there: &BTreeMap<i32, u64>) -> Vec<(u16, u64)> {
        let on = |node: u16| there.get(&i32::from(node)).copied().unwrap_or(0);
        let nodes = self.nodes.nodes();
        let right_bytes: u64 = nodes.iter().map(|(node, _)| on(*node)).sum();
        let elsewhere_bytes = there.values().sum::<u64>() - right_bytes;
        let weights: u128 = nodes.iter().map(|(_, weight)| u128::from(*weight)).sum();
        let asked = |(node, weight): &(u16, u16)| {
            let share = |bytes: u64| (u128::from(bytes) * u128::from(*weight) / weights) as u64;
            match self.is_dealt {
                true => (*node, share(bytes).saturating_sub(on(*node))),
                false => (*node, share(elsewhere_bytes)),
            }
        };
        nodes.iter().map(asked).collect()
    }

    /// Pages of a window that are backed from now on come from there; of nodes by weights, from any
    /// of them until they are moved.
    ///
    /// # Errors
    /// [`NumaError::Io`].
    pub fn apply(&self, window: &Window) -> Result<(), NumaError> {
        let nodes: Vec<u16> = self.nodes.nodes().iter().map(|(node, _)| *node).collect();
        window.bind_to_nodes(&nodes).map_err(failed(CHOOSING))?;
        if !self.is_dealt {
            // Not at once: what a file keeps of an earlier process would stay.
            window.bind_to_none().map_err(failed(CHOOSING))?;
        }
        window.allow_huge_pages(!self.needs_small_pages());
        Ok(())
    }

    fn needs_small_pages(&self) -> bool {
        self.is_dealt && self.grain_bytes < GRAIN_BYTES_MAX
    }

    /// Moves the pages of a piece of a window that begins `start` bytes behind the start of the
    /// whole. Of a file, and if they are dealt out, pages that are not there are taken; those that
    /// no node has room for are counted as if they could not move. Blocks for up to some ms a MiB;
    /// threads that touch a page that moves wait for that page.
    ///
    /// # Panics
    /// Outside the window.
    pub fn move_pages(&self, window: &Window, start: u64, at: u64, bytes: u64) -> MovedPages {
        let pages: Vec<u64> = (at..at + bytes).step_by(PAGE_BYTES as usize).collect();
        if self.needs_small_pages() {
            // First: of a page that is broken up, parts without a bit set may go.
            window.split_huge_pages(at, bytes);
        }
        let mut left_out_bytes = 0;
        if self.is_dealt && window.is_private() {
            let has_room = |node, bytes| require_room(node, bytes).is_ok();
            left_out_bytes = self.left_out_bytes(window, &pages, has_room);
        }
        if (self.is_dealt || !window.is_private()) && left_out_bytes == 0 {
            // Where a file system has no memory for it a page stays away: it may come later.
            let _ = window.populate(at, bytes);
        }
        let nothing_known = MovedPages { moved_bytes: 0, stayed_bytes: bytes };
        let mut moved = self.move_wrong(window, start, &pages).unwrap_or(nothing_known);
        moved.stayed_bytes = (moved.stayed_bytes + left_out_bytes).min(bytes);
        moved
    }

    /// Those of the pages that are not there, if no node has room for them by now: bound memory
    /// that no node has would have the kernel end this process.
    fn left_out_bytes(
        &self,
        of: &impl Pages,
        pages: &[u64],
        has_room: impl Fn(u16, u64) -> bool,
    ) -> u64 {
        let count = |found: Vec<i32>| found.into_iter().filter(|node| *node < 0).count();
        let missing = of.nodes_of(pages).map_or(pages.len(), count);
        let bytes = missing as u64 * PAGE_BYTES;
        let nodes = self.nodes.nodes();
        match bytes == 0 || nodes.iter().any(|(node, _)| has_room(*node, bytes)) {
            true => 0,
            false => bytes,
        }
    }

    /// Moves those of the pages that lie elsewhere, a node's together.
    fn move_wrong(&self, of: &impl Pages, start: u64, pages: &[u64]) -> io::Result<MovedPages> {
        let mut wrong: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for (page, found) in pages.iter().zip(of.nodes_of(pages)?) {
            if let Some(node) = self.wanted(start + page, found) {
                wrong.entry(node).or_default().push(*page);
            }
        }
        let mut result = MovedPages::default();
        for (node, mut left) in wrong {
            let count = left.len();
            for _ in 0..TRIES {
                let moved = of.move_to_node(&left, node);
                let found = of.nodes_of(&left)?;
                let is_there = |found: &i32| *found == i32::from(node) || *found < 0;
                let still = left.iter().zip(found).filter(|(_, found)| !is_there(found));
                left = still.map(|(page, _)| *page).collect();
                if left.is_empty() || moved.is_err() {
                    break;
                }
            }
            result.moved_bytes += (count - left.len()) as u64 * PAGE_BYTES;
            result.stayed_bytes += left.len() as u64 * PAGE_BYTES;
        }
        Ok(result)
    }

    /// Where a page so far behind the start of the whole has to go if it was found on this node.
    fn wanted(&self, offset: u64, found: i32) -> Option<u16> {
        let node = self.node_at(offset);
        let is_right = match self.is_dealt {
            true => found == i32::from(node),
            false => self.nodes.nodes().iter().any(|(node, _)| found == i32::from(*node)),
        };
        (found >= 0 && !is_right).then_some(node)
    }

    fn node_at(&self, offset: u64) -> u16 {
        let nodes = self.nodes.nodes();
        let weights: u64 = nodes.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut turn = offset / self.grain_bytes % weights;
        for (node, weight) in nodes {
            if turn < u64::from(*weight) {
                return *node;
            }
            turn -= u64::from(*weight);
        }
        unreachable!("a turn has a grain for each unit of weight")
    }
}

/// How many bytes of windows lie on which node, by samples; of a file what this process had not
/// touched counts, too.
fn bytes_by_node(windows: &[Window]) -> io::Result<BTreeMap<i32, u64>> {
    let bytes: u64 = windows.iter().map(Window::bytes).sum();
    let (mut start, mut looked_bytes, mut pages) = (0, 0, BTreeMap::<i32, u64>::new());
    for window in windows {
        let end = start + window.bytes();
        for look in looks(bytes) {
            let (from, upto) = (look.max(start), (look + LOOK_BYTES).min(end));
            if from >= upto {
                continue;
            }
            let (at, length) = (from - start, upto - from);
            if !window.is_private() {
                // What it has no memory for is not there.
                let _ = window.populate(at, length);
            }
            for (node, count) in window.slice(at, length).node_pages()? {
                *pages.entry(node).or_default() += count;
            }
            looked_bytes += length;
        }
        start = end;
    }
    let scaled = |count: u64| {
        (u128::from(count * PAGE_BYTES) * u128::from(bytes) / u128::from(looked_bytes)) as u64
    };
    Ok(pages.into_iter().map(|(node, count)| (node, scaled(count))).collect())
}

/// Where samples of so many bytes begin: one in each of equal parts, and in each at another place,
/// since parts may be as long as windows, or as turns of memory that is dealt out.
fn looks(bytes: u64) -> impl Iterator<Item = u64> {
    let part = (bytes / LOOKS).max(LOOK_BYTES).next_multiple_of(PAGE_BYTES);
    (0..bytes.div_ceil(part)).map(move |index| {
        let at = index * part;
        let room = (bytes - at).min(part).saturating_sub(LOOK_BYTES);
        let shift = (u128::from(index.wrapping_mul(GOLDEN)) * u128::from(room)) >> 64;
        at + shift as u64 / PAGE_BYTES * PAGE_BYTES
    })
}

/// Those with memory and processors that the process may use.
fn near_nodes(with_memory: &str, with_processors: &str, status: &str) -> Vec<u16> {
    let list = |text| numbers::<u16>(text, NODES_MAX).unwrap_or_default();
    let processors = list(with_processors);
    let allowed = status.lines().find_map(|line| line.strip_prefix(ALLOWED)).map(list);
    let mut near = list(with_memory);
    near.retain(|node| {
        processors.contains(node) && allowed.as_ref().is_none_or(|allowed| allowed.contains(node))
    });
    near
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::fd::AsFd;

    const MIB: u64 = 1 << 20;
    const PAGES: u64 = MIB / PAGE_BYTES;

    /// Pages of a machine with several nodes: which lie where, what is held, and how many more a
    /// node takes.
    struct Machine {
        nodes: RefCell<Vec<i32>>,
        held: Vec<u64>,
        room: RefCell<BTreeMap<u16, usize>>,
        calls: RefCell<u64>,
    }

    impl Machine {
        fn of(nodes: Vec<i32>) -> Machine {
            let (held, room, calls) = Default::default();
            Machine { nodes: RefCell::new(nodes), held, room, calls }
        }

        fn count(&self, node: i32) -> usize {
            self.nodes.borrow().iter().filter(|other| **other == node).count()
        }
    }

    impl Pages for Machine {
        fn nodes_of(&self, pages: &[u64]) -> io::Result<Vec<i32>> {
            let nodes = self.nodes.borrow();
            Ok(pages.iter().map(|page| nodes[(page / PAGE_BYTES) as usize]).collect())
        }

        fn move_to_node(&self, pages: &[u64], node: u16) -> io::Result<()> {
            *self.calls.borrow_mut() += 1;
            for page in pages.iter().map(|page| page / PAGE_BYTES) {
                if self.held.contains(&page) {
                    continue;
                }
                if let Some(room) = self.room.borrow_mut().get_mut(&node) {
                    *room = room.checked_sub(1).ok_or(io::ErrorKind::OutOfMemory)?;
                }
                self.nodes.borrow_mut()[page as usize] = i32::from(node);
            }
            Ok(())
        }
    }

    fn dealt(text: &str, grain_bytes: u64) -> PageTarget {
        PageTarget::dealt(&text.parse().unwrap(), grain_bytes, MIB)
    }

    fn near(nodes: &[u16]) -> PageTarget {
        let nodes = Placement(nodes.iter().map(|node| (*node, 1)).collect());
        PageTarget { nodes, grain_bytes: GRAIN_BYTES_MAX, is_dealt: false }
    }

    fn all_pages() -> Vec<u64> {
        (0..PAGES).map(|page| page * PAGE_BYTES).collect()
    }

    #[test]
    fn pages_in_use_come_to_lie_where_dealing_would_have_put_them() {
        for (text, grain_bytes) in [("numa:0=3,numa:1=1", 64 << 10), ("numa:2=1,numa:0=2", 4096)] {
            let (target, machine) = (dealt(text, grain_bytes), Machine::of(vec![0; 256]));
            // As the second MiB of a whole of two.
            let moved = target.move_wrong(&machine, MIB, &all_pages()).unwrap();
            let placement: Placement = text.parse().unwrap();
            for (at, bytes, node) in placement.runs(2 * MIB, grain_bytes) {
                for offset in (at..at + bytes).step_by(4096).filter(|offset| *offset >= MIB) {
                    let page = ((offset - MIB) / PAGE_BYTES) as usize;
                    assert_eq!(machine.nodes.borrow()[page], i32::from(node), "{text}: {offset}");
                }
            }
            let elsewhere = (256 - machine.count(0)) as u64;
            assert!(elsewhere > 60, "{elsewhere}");
            assert_eq!(moved, MovedPages { moved_bytes: elsewhere << 12, stayed_bytes: 0 });
            let again = target.move_wrong(&machine, MIB, &all_pages()).unwrap();
            assert_eq!(again, MovedPages::default());
        }
    }

    #[test]
    fn what_comes_near_leaves_pages_on_any_near_node_and_those_that_are_not_there() {
        let nodes = (0..256).map(|page| [0, 2, 1, -14][page % 4]).collect();
        let machine = Machine::of(nodes);
        let moved = near(&[0, 1]).move_wrong(&machine, 0, &all_pages()).unwrap();
        assert_eq!(moved, MovedPages { moved_bytes: 64 << 12, stayed_bytes: 0 });
        assert_eq!([0, 1, 2, -14].map(|node| machine.count(node)), [128, 64, 0, 64]);
    }

    #[test]
    fn pages_that_cannot_move_stay_and_are_counted() {
        let target = dealt("numa:0=3,numa:1=1", 64 << 10);
        let held = Machine { held: vec![1, 50, 51], ..Machine::of(vec![0; 256]) };
        let moved = target.move_wrong(&held, 0, &all_pages()).unwrap();
        assert_eq!(moved, MovedPages { moved_bytes: 62 << 12, stayed_bytes: 2 << 12 });
        let full = Machine::of(vec![0; 256]);
        full.room.borrow_mut().insert(1, 10);
        let moved = target.move_wrong(&full, 0, &all_pages()).unwrap();
        assert_eq!(moved, MovedPages { moved_bytes: 10 << 12, stayed_bytes: 54 << 12 });
        assert_eq!(*full.calls.borrow(), 1);
    }

    #[test]
    fn what_is_not_there_is_left_out_and_counted_if_no_node_has_room_for_it_by_now() {
        let target = dealt("numa:0=3,numa:1=1", 64 << 10);
        let machine = Machine::of((0..256).map(|page| [0, -2][page % 2]).collect());
        let left_out = |room: [u64; 2]| {
            target.left_out_bytes(&machine, &all_pages(), |node, bytes| {
                assert_eq!(bytes, 128 << 12);
                bytes <= room[usize::from(node)]
            })
        };
        assert_eq!(left_out([0, 128 << 12]), 0);
        assert_eq!(left_out([127 << 12, 0]), 128 << 12);
        let whole = Machine::of(vec![0; 256]);
        assert_eq!(target.left_out_bytes(&whole, &all_pages(), |_, _| false), 0);
    }

    #[test]
    fn samples_meet_every_turn_of_extents_and_every_part_of_windows_and_all_of_a_little() {
        // Of 256 windows, with turns of 8 MiB by weights of 3 and 1.
        let all: Vec<u64> = looks(256 * 16 * MIB).collect();
        assert!(all.iter().map(|at| at / (16 * MIB)).eq(0..256));
        for turn in 0..4 {
            let count = all.iter().filter(|at| *at / (2 * MIB) % 4 == turn).count();
            assert!((56..=72).contains(&count), "{count} of 256 at turn {turn}");
        }
        let early = all.iter().filter(|at| *at % (16 * MIB) < 4 * MIB).count();
        assert!((56..=72).contains(&early), "{early} of 256 in a quarter");
        assert!(looks(5 * MIB + 4096).eq((0..21).map(|index| index * LOOK_BYTES)));
    }

    #[test]
    fn a_node_is_asked_for_what_is_not_there_yet() {
        let target = dealt("numa:0=3,numa:1=1", 4096);
        let there =
            |pairs: &[(i32, u64)]| -> BTreeMap<i32, u64> { pairs.iter().copied().collect() };
        assert_eq!(target.asked(400, &there(&[(0, 400)])), [(0, 0), (1, 100)]);
        assert_eq!(target.asked(400, &there(&[(0, 300), (1, 60)])), [(0, 0), (1, 40)]);
        assert_eq!(target.asked(400, &there(&[])), [(0, 300), (1, 100)]);
        let home = near(&[0, 1]);
        assert_eq!(home.asked(400, &there(&[(0, 100), (3, 80)])), [(0, 40), (1, 40)]);
    }

    #[test]
    fn near_nodes_have_memory_and_processors_and_are_allowed() {
        let status = "Name:\tkv\nMems_allowed_list:\t0-2\n";
        assert_eq!(near_nodes("0-3\n", "0,2-3\n", status), [0, 2]);
        assert_eq!(near_nodes("0-3\n", "0,2-3\n", ""), [0, 2, 3]);
        assert!(near_nodes("0\n", "", status).is_empty());
    }

    #[test]
    fn memory_in_use_is_dealt_out_and_comes_back_with_its_bytes() {
        let fd = rustix::fs::memfd_create("moving", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let windows = [
            Window::private(6 * MIB).unwrap(),
            Window::of_file(fd.as_fd(), 6 * MIB).unwrap(),
            Window::private(MIB).unwrap(),
        ];
        let bytes: Vec<u8> = (0..MIB).map(|at| (at * 7 / 5) as u8).collect();
        windows.iter().for_each(|window| window.copy_in(0, &bytes));
        let home = PageTarget::near(4096).expect("a node with processors");
        let in_small_pages = PageTarget { grain_bytes: 4096, ..dealt("numa:0=3", 4096) };
        for target in [in_small_pages, home, dealt("numa:0=1", GRAIN_BYTES_MAX)] {
            target.check(&windows).unwrap();
            for window in &windows {
                target.apply(window).unwrap();
                for at in (0..window.bytes()).step_by(MIB as usize) {
                    let moved = target.move_pages(window, 64 << 10, at, MIB);
                    assert_eq!(moved, MovedPages::default(), "there is one node");
                }
                let mut read = vec![0; MIB as usize];
                window.copy_out(0, &mut read);
                assert!(read == bytes);
            }
        }
        let pages = windows[0].node_pages().unwrap();
        assert_eq!(pages.into_values().sum::<u64>(), 6 * PAGES, "all of it was taken");
    }

    #[test]
    fn pages_are_not_sent_to_nodes_without_memory() {
        let windows = [Window::private(MIB).unwrap()];
        let error = dealt("numa:0=1,numa:777=1", 4096).check(&windows).unwrap_err();
        assert!(matches!(error, NumaError::NoNode { node: 777, .. }), "{error}");
    }
}
