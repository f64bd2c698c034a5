//! What threads do: accesses of some size and order, each a sequence of [`ThreadOp`]s.

use rackpool_sim::rng::{Purpose, Rng};

pub const LINE_BYTES: u64 = 64;
/// Neighbouring pieces of this size are on different DIMMs.
pub const INTERLEAVE_BYTES: u64 = 4096;
const UNIT_BYTES: u64 = 256;
/// What each thread has of its own, and begins at the beginning of: as the authors' program.
const REGION_BYTES: u64 = 2 << 30;

/// Which instructions an access is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuideAccess {
    Read,
    Nt,
    /// Each line is stored, and written back at once.
    Clwb,
    /// Lines are stored, and written when the cache needs their place.
    Store,
    /// Lines are stored, all of them written back at the end of the access.
    StoreThenClwb,
}

impl GuideAccess {
    pub const fn name(self) -> &'static str {
        match self {
            GuideAccess::Read => "read",
            GuideAccess::Nt => "ntstore",
            GuideAccess::Clwb => "store+clwb",
            GuideAccess::Store => "store",
            GuideAccess::StoreThenClwb => "stores, then clwb",
        }
    }
}

/// Which addresses an access has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// One after the other, from a place of the thread's own on.
    Sequential,
    /// One after the other from the start of a small region: a hot spot.
    Circular,
    Random,
    /// At random on so many of the DIMMs, the same number of threads on each.
    OnDimms {
        each: u64,
        of: u64,
    },
    /// First all first halves of so many units, then all second ones; between them as many others
    /// as `read` are read.
    Halves {
        units: u64,
        read: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct ThreadLoad {
    pub kind: GuideAccess,
    pub order: AccessOrder,
    pub access_bytes: u64,
    pub region_bytes: u64,
    /// Reads among the accesses, the others being of `kind`.
    pub read_percent: u64,
    /// A fence after each access.
    pub fenced: bool,
    /// The lines that are stored to are in the cache before.
    pub cached: bool,
    /// One access by itself after the other, with a pause in between: idle latency.
    pub alone: bool,
}

impl ThreadLoad {
    /// Unfenced accesses of [`GuideAccess`], without reads in between.
    pub const fn new(kind: GuideAccess, order: AccessOrder, access_bytes: u64) -> ThreadLoad {
        ThreadLoad {
            kind,
            order,
            access_bytes,
            region_bytes: REGION_BYTES,
            read_percent: 0,
            fenced: false,
            cached: false,
            alone: false,
        }
    }

    pub const fn fenced(self) -> ThreadLoad {
        ThreadLoad { fenced: true, ..self }
    }

    pub const fn cached(self) -> ThreadLoad {
        ThreadLoad { cached: true, ..self }
    }

    pub const fn alone(self) -> ThreadLoad {
        ThreadLoad { alone: true, ..self }
    }

    pub const fn within(self, region_bytes: u64) -> ThreadLoad {
        ThreadLoad { region_bytes, ..self }
    }

    pub const fn mixed(self, read_percent: u64) -> ThreadLoad {
        ThreadLoad { read_percent, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadOp {
    Begin,
    Read(u64),
    Nt(u64),
    Clwb(u64),
    Store(u64),
    /// Writes a line back if the cache still has it.
    Flush(u64),
    Fence,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramPhase {
    Begin,
    Lines,
    Flushes,
    Fence,
    End,
}

/// The operations of one thread, without end.
#[derive(Clone, Debug)]
pub struct Program {
    load: ThreadLoad,
    thread: u64,
    rng: Rng,
    count: u64,
    at: u64,
    kind: GuideAccess,
    addr: u64,
    lines: u64,
    line: u64,
    phase: ProgramPhase,
}

impl Program {
    pub fn new(load: ThreadLoad, thread: u64, seed: u64) -> Program {
        let rng = Rng::new(seed, Purpose::Workload, thread);
        let (kind, phase) = (load.kind, ProgramPhase::Begin);
        Program { load, thread, rng, count: 0, at: 0, kind, addr: 0, lines: 0, line: 0, phase }
    }

    pub fn load(&self) -> &ThreadLoad {
        &self.load
    }

    /// Whether its stores are foreseen, so that their lines are fetched ahead.
    pub fn is_foreseen(&self) -> bool {
        !matches!(self.load.order, AccessOrder::Random | AccessOrder::OnDimms { .. })
    }

    pub fn next_op(&mut self) -> ThreadOp {
        loop {
            match self.phase {
                ProgramPhase::Begin => {
                    self.choose();
                    (self.line, self.phase) = (0, ProgramPhase::Lines);
                    return ThreadOp::Begin;
                }
                ProgramPhase::Lines if self.line < self.lines => {
                    let addr = self.addr + self.line * LINE_BYTES;
                    self.line += 1;
                    return match self.kind {
                        GuideAccess::Read => ThreadOp::Read(addr),
                        GuideAccess::Nt => ThreadOp::Nt(addr),
                        GuideAccess::Clwb => ThreadOp::Clwb(addr),
                        GuideAccess::Store | GuideAccess::StoreThenClwb => ThreadOp::Store(addr),
                    };
                }
                ProgramPhase::Lines if self.kind == GuideAccess::StoreThenClwb => {
                    (self.line, self.phase) = (0, ProgramPhase::Flushes);
                }
                ProgramPhase::Lines => self.phase = ProgramPhase::Fence,
                ProgramPhase::Flushes if self.line < self.lines => {
                    let addr = self.addr + self.line * LINE_BYTES;
                    self.line += 1;
                    return ThreadOp::Flush(addr);
                }
                ProgramPhase::Flushes => self.phase = ProgramPhase::Fence,
                ProgramPhase::Fence => {
                    self.phase = ProgramPhase::End;
                    if self.load.fenced && self.kind != GuideAccess::Read {
                        return ThreadOp::Fence;
                    }
                }
                ProgramPhase::End => {
                    self.phase = ProgramPhase::Begin;
                    return ThreadOp::End;
                }
            }
        }
    }

    fn choose(&mut self) {
        let ThreadLoad { kind, order, access_bytes, region_bytes, read_percent, .. } = self.load;
        let base = self.thread * region_bytes;
        let is_read = read_percent > 0 && self.rng.below(100) < read_percent;
        self.kind = if is_read { GuideAccess::Read } else { kind };
        self.lines = access_bytes / LINE_BYTES;
        self.addr = match order {
            AccessOrder::Sequential | AccessOrder::Circular => {
                let at = self.at;
                self.at = if at + 2 * access_bytes > region_bytes { 0 } else { at + access_bytes };
                base + at
            }
            AccessOrder::Random => {
                base + self.rng.below(region_bytes / access_bytes) * access_bytes
            }
            AccessOrder::OnDimms { each, of } => {
                let dimm = (self.thread + self.rng.below(each)) % of;
                let piece = self.rng.below(region_bytes / INTERLEAVE_BYTES / of);
                base / INTERLEAVE_BYTES / of * of * INTERLEAVE_BYTES
                    + (piece * of + dimm) * INTERLEAVE_BYTES
            }
            AccessOrder::Halves { units, read } => self.half(units, read),
        };
        self.count += 1;
    }

    /// An access of the probe of the buffer.
    fn half(&mut self, units: u64, read: u64) -> u64 {
        let half_round = units + read;
        let (half, step) = (self.count / half_round % 2, self.count % half_round);
        if step < units {
            self.lines = UNIT_BYTES / 2 / LINE_BYTES;
            return step * UNIT_BYTES + half * UNIT_BYTES / 2;
        }
        (self.kind, self.lines) = (GuideAccess::Read, 1);
        // Others, far from those that are written.
        REGION_BYTES + (step - units) * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses(load: ThreadLoad, count: usize) -> Vec<Vec<ThreadOp>> {
        let mut program = Program::new(load, 0, 1);
        let mut one = || {
            let mut ops = Vec::new();
            loop {
                let op = program.next_op();
                ops.push(op);
                if op == ThreadOp::End {
                    return ops;
                }
            }
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn an_access_is_its_lines_and_a_fence() {
        let load =
            ThreadLoad::new(GuideAccess::Nt, AccessOrder::Circular, 128).fenced().within(256);
        let ops = accesses(load, 3);
        assert_eq!(
            ops[0],
            [ThreadOp::Begin, ThreadOp::Nt(0), ThreadOp::Nt(64), ThreadOp::Fence, ThreadOp::End]
        );
        assert_eq!(
            ops[1],
            [ThreadOp::Begin, ThreadOp::Nt(128), ThreadOp::Nt(192), ThreadOp::Fence, ThreadOp::End]
        );
        assert_eq!(ops[2], ops[0]);
        let late =
            ThreadLoad::new(GuideAccess::StoreThenClwb, AccessOrder::Circular, 64).within(64);
        assert_eq!(
            accesses(late, 1)[0],
            [ThreadOp::Begin, ThreadOp::Store(0), ThreadOp::Flush(0), ThreadOp::End]
        );
        let reads =
            ThreadLoad::new(GuideAccess::Read, AccessOrder::Circular, 64).fenced().within(64);
        assert_eq!(accesses(reads, 1)[0], [ThreadOp::Begin, ThreadOp::Read(0), ThreadOp::End]);
    }

    #[test]
    fn the_probe_writes_first_halves_reads_others_and_writes_second_halves() {
        let load = ThreadLoad::new(GuideAccess::Nt, AccessOrder::Halves { units: 2, read: 1 }, 128);
        let ops = accesses(load, 6);
        let first = |index: usize| ops[index][1];
        assert_eq!([first(0), first(1)], [ThreadOp::Nt(0), ThreadOp::Nt(256)]);
        assert_eq!(first(2), ThreadOp::Read(REGION_BYTES));
        assert_eq!([first(3), first(4)], [ThreadOp::Nt(128), ThreadOp::Nt(384)]);
        assert_eq!((ops[0].len(), ops[2].len()), (4, 3));
    }

    #[test]
    fn threads_keep_to_their_dimms() {
        let load =
            ThreadLoad::new(GuideAccess::Read, AccessOrder::OnDimms { each: 1, of: 6 }, 4096);
        for thread in 0..6 {
            let mut program = Program::new(load, thread, 7);
            for _ in 0..1000 {
                if let ThreadOp::Read(addr) = program.next_op() {
                    assert_eq!(addr / INTERLEAVE_BYTES % 6, thread);
                }
            }
        }
    }
}
