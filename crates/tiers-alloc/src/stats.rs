//! How much memory there is by arena, node and class of size, and as a text for Prometheus.
//!
//! Nothing is counted while blocks are taken and given back: mimalloc's pages are looked at when
//! figures are asked for. Of heaps that other threads use they may be a moment apart.

use crate::arena::{Arena, arenas};
use crate::place::Place;
use crate::policy::{PLACEMENTS_MAX, SHARES_MAX};
use crate::sys::{self, RawHeap};
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::Ordering;

/// Class `n` has blocks of up to 2ⁿ bytes, and longer than those of the class before.
pub const CLASSES: usize = 48;

pub(crate) fn class_of(bytes: usize) -> usize {
    let log = usize::BITS - bytes.saturating_sub(1).leading_zeros();
    (log as usize).min(CLASSES - 1)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// In use, or freed by another thread and not yet taken back.
    pub blocks: u64,
    /// Of these blocks, as mimalloc rounds their sizes.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeBytes {
    pub node: u16,
    pub weight: u16,
    /// Of addresses that were given to the node, used or not.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct PlaceStatistics {
    count: usize,
    nodes: [NodeBytes; SHARES_MAX],
    /// Addresses that the kernel would give to none of the nodes, bytes.
    pub unplaced_bytes: u64,
    /// How often a `bind` placement's nodes were full.
    pub refused: u64,
    pub regions: usize,
    pub classes: [Class; CLASSES],
}

impl PlaceStatistics {
    pub fn nodes(&self) -> &[NodeBytes] {
        &self.nodes[..self.count]
    }
}

/// Of one arena.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    places: [Option<PlaceStatistics>; PLACEMENTS_MAX],
}

impl Statistics {
    /// In the order of the policy.
    pub fn placements(&self) -> impl Iterator<Item = &PlaceStatistics> {
        self.places.iter().flatten()
    }

    /// Of all placements together.
    pub fn node_bytes(&self, node: u16) -> u64 {
        let nodes = self.placements().flat_map(PlaceStatistics::nodes);
        nodes.filter(|one| one.node == node).map(|one| one.bytes).sum()
    }

    /// Of all placements together.
    pub fn class(&self, class: usize) -> Class {
        let mut sum = Class::default();
        for one in self.placements().filter_map(|place| place.classes.get(class)) {
            sum.blocks += one.blocks;
            sum.bytes += one.bytes;
        }
        sum
    }
}

pub(crate) fn statistics(arena: Arena) -> Statistics {
    let mut places = [None; PLACEMENTS_MAX];
    for (own, place) in places.iter_mut().zip(arena.places()) {
        *own = Some(of_place(place));
    }
    Statistics { places }
}

fn of_place(place: &Place) -> PlaceStatistics {
    let shares = place.placement.shares();
    let mut nodes = [NodeBytes::default(); SHARES_MAX];
    for (index, (node, share)) in nodes.iter_mut().zip(shares).enumerate() {
        *node = NodeBytes { node: share.node, weight: share.weight, bytes: place.placed(index) };
    }
    let mut classes = [Class::default(); CLASSES];
    for (index, class) in classes.iter_mut().enumerate() {
        // Relaxed: counts alone.
        class.blocks = place.mapped_blocks[index].load(Ordering::Relaxed);
        class.bytes = place.mapped_bytes[index].load(Ordering::Relaxed);
    }
    for heap in place.heaps() {
        // SAFETY: a heap of a region, and the visitor gets what it expects.
        unsafe { sys::visit(heap, on_area, (&raw mut classes).cast()) };
    }
    PlaceStatistics {
        count: shares.len(),
        nodes,
        unplaced_bytes: place.unplaced(),
        refused: place.refused(),
        regions: place.heaps().count(),
        classes,
    }
}

/// Of one page of a heap: blocks of one size.
unsafe extern "C" fn on_area(
    _heap: *const RawHeap,
    area: *const sys::HeapArea,
    _block: *mut c_void,
    _block_bytes: usize,
    classes: *mut c_void,
) -> bool {
    // SAFETY: what `of_place` gave to mimalloc, which calls back before it returns.
    let classes = unsafe { &mut *classes.cast::<[Class; CLASSES]>() };
    // SAFETY: mimalloc describes a page.
    let area = unsafe { ptr::read(area) };
    let class = &mut classes[class_of(area.block_size)];
    let (used, block_bytes) = (area.used as u64, area.block_size as u64);
    // Of a page that is being given back the figures may be anything.
    class.blocks = class.blocks.saturating_add(used);
    class.bytes = class.bytes.saturating_add(used.saturating_mul(block_bytes));
    true
}

/// One number of many.
type Figure<T> = fn(&T) -> u64;

/// Writes the figures of all arenas as Prometheus reads them.
///
/// # Errors
/// Of `out`.
pub fn prometheus(out: &mut impl fmt::Write) -> fmt::Result {
    out.write_str(
        "# HELP rackpool_tiers_placed_bytes Addresses that a memory node was given to.\n\
         # TYPE rackpool_tiers_placed_bytes gauge\n",
    )?;
    for_each_place(|arena, number, place| {
        for NodeBytes { node, bytes, .. } in place.nodes() {
            let labels = format_args!("arena=\"{arena}\",placement=\"{number}\",node=\"{node}\"");
            writeln!(out, "rackpool_tiers_placed_bytes{{{labels}}} {bytes}")?;
        }
        Ok(())
    })?;
    let figures: [(&str, &str, Figure<PlaceStatistics>); 3] = [
        ("unplaced_bytes", "gauge", |place| place.unplaced_bytes),
        ("refused_total", "counter", |place| place.refused),
        ("regions", "gauge", |place| place.regions as u64),
    ];
    for (figure, kind, value) in figures {
        writeln!(out, "# TYPE rackpool_tiers_{figure} {kind}")?;
        for_each_place(|arena, number, place| {
            let labels = format_args!("arena=\"{arena}\",placement=\"{number}\"");
            writeln!(out, "rackpool_tiers_{figure}{{{labels}}} {}", value(place))
        })?;
    }
    let figures: [(&str, Figure<Class>); 2] =
        [("blocks", |class| class.blocks), ("block_bytes", |class| class.bytes)];
    for (figure, value) in figures {
        writeln!(out, "# TYPE rackpool_tiers_{figure} gauge")?;
        for_each_place(|arena, number, place| {
            let used = place.classes.iter().enumerate().filter(|(_, class)| class.blocks > 0);
            for (index, class) in used {
                let up_to = 1u64 << index;
                let labels =
                    format_args!("arena=\"{arena}\",placement=\"{number}\",up_to=\"{up_to}\"");
                writeln!(out, "rackpool_tiers_{figure}{{{labels}}} {}", value(class))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn for_each_place(
    mut show: impl FnMut(&str, usize, &PlaceStatistics) -> fmt::Result,
) -> fmt::Result {
    for arena in arenas() {
        let statistics = arena.statistics();
        for (number, place) in statistics.placements().enumerate() {
            show(arena.name(), number, place)?;
        }
    }
    Ok(())
}
