//! What belongs to one core: TLB and two levels. Also used without the third level, so that the
//! cores of a kernel can run beside one another.

use super::{CacheSize, Config, Counts, LINE_BYTES, Level, PAGE_BYTES};

/// What a core asks the third level for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreEventKind {
    /// A line that it does not have.
    Fill,
    /// A line that was stored to leaves it.
    WriteBack,
    /// An access to memory as it is: there are no caches.
    Load,
    /// A store as it is.
    Store,
}

/// Something that leaves a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreEvent {
    /// Address of the line, or of the access.
    pub addr: u64,
    /// Cycles from the core's last event to this one.
    pub gap: u64,
    /// Cycles of the TLB's look-up, beside which the third level is asked.
    pub tlb: u32,
    pub size: u16,
    pub kind: CoreEventKind,
}

/// A core's TLB, first and second level.
#[derive(Clone, Debug)]
pub struct Core {
    tlb: Level,
    l1: Level,
    l2: Level,
    tlb_cycles: [u64; 2],
    level_cycles: [u64; 3],
    pub(crate) counts: Counts,
    /// Cycles since the last event.
    pub(crate) gap: u64,
}

impl Core {
    /// A core with empty caches.
    pub fn new(config: &Config) -> Core {
        let entries = u64::from(config.tlb_entries);
        Core {
            tlb: Level::new(CacheSize { bytes: entries * LINE_BYTES, ways: config.tlb_ways }),
            l1: Level::new(config.l1),
            l2: Level::new(config.l2),
            tlb_cycles: config.tlb_cycles,
            level_cycles: config.level_cycles,
            counts: Counts::default(),
            gap: 0,
        }
    }

    /// Loads or stores `size` bytes, line by line; what leaves the core is given to `out`.
    #[inline]
    pub(crate) fn access(
        &mut self,
        addr: u64,
        size: u16,
        store: bool,
        mut out: impl FnMut(CoreEvent),
    ) {
        let last = addr.saturating_add(u64::from(size.max(1)) - 1) / LINE_BYTES;
        for line in addr / LINE_BYTES..=last {
            self.line(line, store, &mut out);
        }
    }

    #[inline]
    fn line(&mut self, line: u64, store: bool, out: &mut impl FnMut(CoreEvent)) {
        self.counts.accesses += 1;
        let known = self.tlb.access(line / (PAGE_BYTES / LINE_BYTES), false).is_ok();
        self.counts.tlb_misses += u64::from(!known);
        let tlb = self.tlb_cycles[usize::from(!known)];
        match self.l1.access(line, store) {
            Ok(()) => self.gap += tlb.max(self.level_cycles[0]),
            Err(left) => self.beyond_l1(line, left, tlb, out),
        }
    }

    /// The first level did not have the line; `left` is what left it.
    fn beyond_l1(
        &mut self,
        line: u64,
        left: Option<u64>,
        tlb: u64,
        out: &mut impl FnMut(CoreEvent),
    ) {
        self.counts.l1_misses += 1;
        if let Some(left) = left
            && let Err(Some(left)) = self.l2.access(left, true)
        {
            self.event(left, CoreEventKind::WriteBack, 0, out);
        }
        match self.l2.access(line, false) {
            Ok(()) => self.gap += tlb.max(self.level_cycles[1]),
            Err(left) => {
                self.counts.l2_misses += 1;
                self.event(line, CoreEventKind::Fill, tlb, out);
                if let Some(left) = left {
                    self.event(left, CoreEventKind::WriteBack, 0, out);
                }
            }
        }
    }

    fn event(&mut self, line: u64, kind: CoreEventKind, tlb: u64, out: &mut impl FnMut(CoreEvent)) {
        let (addr, gap) = (line * LINE_BYTES, std::mem::take(&mut self.gap));
        out(CoreEvent { addr, gap, tlb: tlb as u32, size: LINE_BYTES as u16, kind });
    }
}

/// The level that all cores share, and what it costs.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    l3: Level,
    cycles: u64,
    memory_cycles: u64,
}

/// What becomes of an event at the shared level.
pub(crate) struct Passed {
    /// Cycles that the core waits.
    pub cycles: u64,
    /// After how many of them the memory is asked for the line.
    pub read: Option<u64>,
    /// Address of a line that goes to memory.
    pub written: Option<u64>,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Shared {
        let (cycles, memory_cycles) = (config.level_cycles[2], config.memory_cycles);
        Shared { l3: Level::new(config.l3), cycles, memory_cycles }
    }

    #[inline]
    pub(crate) fn pass(&mut self, event: &CoreEvent) -> Passed {
        let fill = event.kind == CoreEventKind::Fill;
        let asked = if fill { self.cycles.max(u64::from(event.tlb)) } else { 0 };
        match self.l3.access(event.addr / LINE_BYTES, !fill) {
            Ok(()) => Passed { cycles: asked, read: None, written: None },
            Err(left) => Passed {
                cycles: if fill { asked + self.memory_cycles } else { 0 },
                read: fill.then_some(asked),
                written: left.map(|line| line * LINE_BYTES),
            },
        }
    }
}
