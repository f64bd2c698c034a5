//! A rack's memory as its processes see it: the sections of the region, which outlive the daemon,
//! and the [`World`] of the daemon's engine over them.

use super::kernel::{Ctx, HostId, Kernel, ProcessId};
use super::spill::{SpillJobUnderWay, SpillSlots};
use crate::check::conserve::{FrameAudit, frames_of};
use crate::mem::{Coherence, Cpu, Memory, SimMem, Tier};
use crate::net::{EndpointId, NodeId};
use crate::time::Ps;
use rackpool_core::coherence;
use rackpool_core::constants::{CELLS, SESSIONS_MAX, SLOTS_MAX};
use rackpool_core::copies;
use rackpool_core::daemon::{Handover, World};
use rackpool_core::layout::{
    BLOCK_BYTES, FrameState, FrameWord, REDO_OFFSET, RegionLayout, ResultKind, SLOT_BYTES,
    SessionWord, SlotWord, cell_offset, frame_word, session_word,
};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_core::spill::{SpillDone, SpillFile, SpillJob};
use rackpool_core::tier::Tiers;
use rackpool_core::{Error, FrameIndex, RackId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How long a daemon that is caught stays where it is, unless it is killed there.
const CAUGHT: Ps = Ps::us(5);

/// The sections of a region.
pub struct Region {
    /// Its identity; another one after the host lost its power.
    pub id: [u64; 2],
    /// Whether a daemon has formatted it.
    pub is_formatted: bool,
    pub private: Rc<Memory>,
    pub table: Rc<Memory>,
    pub pages: Rc<Memory>,
    /// Pages that are not in memory.
    pub spill: SpillSlots,
    pub slots: Vec<Option<Rc<Memory>>>,
}

impl Region {
    fn new(
        id: [u64; 2],
        layout: &RegionLayout,
        kernel: &Kernel,
        (is_checked, shared): (bool, Coherence),
    ) -> Region {
        let section = |bytes, tier| {
            // What is behind a link is what hosts share.
            let coherence = if tier == Tier::Cxl { shared } else { Coherence::Hardware };
            let memory = Memory::new(kernel.new_memory(), bytes, tier, coherence);
            memory.set_backed_tracking(is_checked);
            memory
        };
        let table = section(layout.table_bytes(), Tier::Cxl);
        table.back(0, layout.table_bytes());
        Region {
            id,
            is_formatted: false,
            private: section(layout.private_bytes(), Tier::Dram),
            table,
            pages: section(layout.pages_bytes(), Tier::Cxl),
            spill: SpillSlots::default(),
            slots: Vec::new(),
        }
    }

    /// A word of the private section, whatever is wrong in one of its copies.
    pub fn word(&self, offset: u64) -> u64 {
        let word = copies::read(self.private.bytes(), offset, |at| self.private.peek(at));
        word.unwrap_or_else(|| self.private.peek(offset))
    }

    /// Flips a bit of one copy of a word of the private section, if the copies agree: damage comes
    /// once at a time. Whether it did.
    pub fn flip(&self, offset: u64, copy: usize, bit: u32) -> bool {
        let places = copies::places(self.private.bytes(), offset);
        if places.iter().any(|at| !self.private.is_backed(*at, 8)) {
            return false;
        }
        let agree = copies::agree(places.map(|at| self.private.peek(at)));
        if agree {
            let at = places[copy];
            self.private.poke(at, self.private.peek(at) ^ 1 << bit);
        }
        agree
    }

    /// The section of a slot, made anew.
    /// `coherence` is that between the client's host and the daemon's.
    pub fn create_slot(&mut self, slot: u32, kernel: &Kernel, coherence: Coherence) -> Rc<Memory> {
        let id = kernel.new_memory();
        let memory = Memory::new(id, SLOT_BYTES, Tier::Cxl, coherence);
        if self.slots.len() <= slot as usize {
            self.slots.resize(slot as usize + 1, None);
        }
        self.slots[slot as usize] = Some(memory.clone());
        memory
    }

    /// The section of a slot.
    pub fn slot(&self, slot: u32) -> Option<Rc<Memory>> {
        self.slots.get(slot as usize).cloned().flatten()
    }
}

/// A rack and its host.
pub struct Rack {
    pub id: RackId,
    pub host: HostId,
    pub layout: RegionLayout,
    /// Where one-sided operations on it arrive.
    pub node: NodeId,
    /// The end of its daemon's connections.
    pub endpoint: Cell<EndpointId>,
    pub region: RefCell<Region>,
    /// The daemon's process from its start on: it has the region's lock.
    pub owner: Cell<Option<ProcessId>>,
    /// The same, and its fabric thread, once it serves.
    pub daemon: Cell<Option<(ProcessId, ProcessId)>>,
    /// Which rack's daemon process serves it, if not its own: its sibling of a divided rack, after
    /// its own one died.
    pub hosted_by: Cell<Option<usize>>,
    /// Barriers that its daemons paid for, and cells that they looked at.
    pub invalidations: Cell<(u64, u64)>,
    /// Whether clients of other racks map the region, as they do on one machine.
    pub mapped_elsewhere: Cell<bool>,
    /// Blocks that the host still has for the region.
    pub blocks_free: Cell<u64>,
    /// The daemon that knows that the rack is being drained, and since when.
    pub drains: Cell<Option<(ProcessId, Ps)>>,
    /// Its memories, if it has several.
    pub tiers: Tiers,
    /// Pages that its daemons moved between these.
    pub tier_moves: Cell<u64>,
    kernel: Rc<Kernel>,
    is_checked: bool,
    /// What keeps the hosts' caches of its memory in agreement.
    pub coherence: Coherence,
}

impl Rack {
    /// A rack with a host that has memory for all of the region and nothing in it yet.
    pub fn new(
        id: RackId,
        host: HostId,
        layout: RegionLayout,
        kernel: &Rc<Kernel>,
        is_checked: bool,
        coherence: Coherence,
    ) -> Rack {
        let kind = (is_checked, coherence);
        let region = Region::new([u64::from(id.0) + 1, 1], &layout, kernel, kind);
        Rack {
            id,
            host,
            layout,
            node: kernel.node_of(host),
            kernel: kernel.clone(),
            endpoint: Cell::new(EndpointId(u32::MAX)),
            region: RefCell::new(region),
            owner: Cell::new(None),
            daemon: Cell::new(None),
            hosted_by: Cell::new(None),
            invalidations: Cell::default(),
            mapped_elsewhere: Cell::default(),
            blocks_free: Cell::new(u64::MAX / 2),
            drains: Cell::new(None),
            tiers: Tiers::default(),
            tier_moves: Cell::default(),
            is_checked,
            coherence,
        }
    }

    /// What keeps the caches of this rack's host and of another one in agreement.
    pub fn coherence_with(&self, host: HostId) -> Coherence {
        if host == self.host { Coherence::Hardware } else { self.coherence }
    }

    /// Addresses of allocations that no client has noted as taken, by the region's own records.
    pub fn untaken_allocations(&self) -> Vec<u64> {
        let region = self.region.borrow();
        let mut found = Vec::new();
        for record in 0..SESSIONS_MAX {
            let word = |word| region.word(session_word(record, word));
            let kind = word(SessionWord::ResultKind);
            let live = kind == ResultKind::Allocated as u64 && word(SessionWord::ResultBytes) > 0;
            if word(SessionWord::Session) == 0 || !live {
                continue;
            }
            let taken = match region.slot(record).filter(|_| record < SLOTS_MAX) {
                Some(slot) => slot.peek(SlotWord::ConsumedSeq as u64),
                None => word(SessionWord::CONSUMED_SEQ),
            };
            if taken < word(SessionWord::LastSeq) {
                found.push(word(SessionWord::ResultValue));
            }
        }
        found
    }

    /// Catches the daemon so many memory operations after it next writes a redo record, or after
    /// it has done what that says.
    pub fn set_snare(&self, cpu: &Cpu, ended: bool, operations: u64) {
        // Its second word counts its stores.
        cpu.set_snare((&self.region.borrow().private, REDO_OFFSET + 8), ended, operations, CAUGHT);
    }

    /// Catches the daemon so many memory operations after the first page of a run that it makes is
    /// home, and the others are not; whether it makes one.
    pub fn set_snare_in_run(&self, cpu: &Cpu, operations: u64) -> bool {
        let region = self.region.borrow();
        let (word, table) = (|at| region.word(at), |at| region.table.peek(at));
        let mut frames = frames_of(&self.layout, word, table, |_| None).into_iter().flatten();
        let of_run = |one: &FrameAudit| {
            one.state == FrameState::Pending && one.shift == 0 && one.first && one.span > 1
        };
        let Some(first) = frames.find(of_run) else { return false };
        let at = frame_word(FrameIndex(first.frame), FrameWord::State);
        let [.., last_copy] = copies::places(region.private.bytes(), at);
        cpu.set_snare((&region.private, last_copy), false, operations, CAUGHT);
        true
    }

    /// Catches a client of this rack so many memory operations after it next announces a frame, for
    /// this time; whether it is one.
    pub fn set_snare_of_client(
        &self,
        client: ProcessId,
        cpu: &Cpu,
        operations: u64,
        time: Ps,
    ) -> bool {
        let section = self.section_of(client);
        if let Some(section) = &section {
            cpu.set_snare((section, cell_offset(0)), false, operations, time);
        }
        section.is_some()
    }

    /// The frame that a client of this rack is seen to announce.
    pub fn announced(&self, client: ProcessId) -> Option<u32> {
        let cell = self.section_of(client)?.peek(cell_offset(0));
        cell.checked_sub(1).and_then(|frame| u32::try_from(frame).ok())
    }

    fn section_of(&self, client: ProcessId) -> Option<Rc<Memory>> {
        let region = self.region.borrow();
        let pid = |slot| region.word(session_word(slot, SessionWord::Pid));
        let used = |slot| region.word(session_word(slot, SessionWord::Session)) != 0;
        let slot = (0..SLOTS_MAX).find(|slot| used(*slot) && pid(*slot) == u64::from(client.0));
        slot.and_then(|slot| region.slot(slot))
    }

    /// Sessions in the region's records.
    pub fn sessions_in_region(&self) -> Vec<u64> {
        let region = self.region.borrow();
        let word = |record| region.word(session_word(record, SessionWord::Session));
        (0..SESSIONS_MAX).map(word).filter(|session| *session != 0).collect()
    }

    /// A region made anew: the host lost its power, or the last daemon died while it made one.
    pub fn make_region(&self) {
        let mut region = self.region.borrow_mut();
        let id = [region.id[0], region.id[1] + 1];
        let kind = (self.is_checked, self.coherence);
        *region = Region::new(id, &self.layout, &self.kernel, kind);
    }

    /// A processor's view of the pages.
    pub fn view(&self, ctx: &Ctx, memory: impl Fn(&Region) -> Rc<Memory>) -> SimMem {
        SimMem::new(memory(&self.region.borrow()), ctx.cpu.clone())
    }
}

/// The world of one daemon's engine.
pub struct RackWorld {
    rack: Rc<Rack>,
    ctx: Ctx,
    spill_job: Option<SpillJobUnderWay>,
    private: SimMem,
    table: SimMem,
    pages: SimMem,
    /// Cells of the fabric thread, in the daemon's own memory.
    pub target_cells: Rc<Memory>,
    cells: SimMem,
    slots: Vec<Option<SimMem>>,
    slots_used: Vec<u32>,
    handover: Handover,
}

impl RackWorld {
    /// The world over the rack's region as it is now.
    pub fn new(rack: &Rc<Rack>, ctx: &Ctx) -> RackWorld {
        let id = ctx.kernel.new_memory();
        let cells = Memory::new(id, u64::from(CELLS) * 8, Tier::Dram, Coherence::Hardware);
        RackWorld {
            private: rack.view(ctx, |region| region.private.clone()),
            table: rack.view(ctx, |region| region.table.clone()),
            pages: rack.view(ctx, |region| region.pages.clone()),
            cells: SimMem::new(cells.clone(), ctx.cpu.clone()),
            target_cells: cells,
            rack: rack.clone(),
            ctx: ctx.clone(),
            spill_job: None,
            slots: vec![None; SLOTS_MAX as usize],
            slots_used: Vec::new(),
            handover: Handover::default(),
        }
    }

    /// A slot's section is there: its cells count from now on.
    pub fn add_slot(&mut self, slot: u32, memory: Rc<Memory>) {
        self.slots[slot as usize] = Some(SimMem::new(memory, self.ctx.cpu.clone()));
        if !self.slots_used.contains(&slot) {
            self.slots_used.push(slot);
        }
    }

    /// The slot's process cannot touch anything any more.
    pub fn remove_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.slots_used.retain(|used| *used != slot);
        let mut region = self.rack.region.borrow_mut();
        if let Some(section) = region.slots.get_mut(slot as usize) {
            *section = None;
        }
    }

    fn take_blocks(&self, blocks: u64, bytes: u64) -> Result<()> {
        let free = self.rack.blocks_free.get();
        let left = free.checked_sub(blocks).ok_or_else(|| Error::Full {
            bytes,
            free_bytes: free * BLOCK_BYTES,
            place: format!("memory of the host of rack {}", self.rack.id),
        })?;
        self.rack.blocks_free.set(left);
        Ok(())
    }
}

impl SpillFile for RackWorld {
    fn begin_spill(&mut self, job: SpillJob) {
        assert!(self.spill_job.is_none(), "the engine has one job at a time");
        let now = self.ctx.now();
        self.spill_job = Some(self.rack.region.borrow_mut().spill.begin(job, now));
    }

    fn spill_ended(&mut self) -> Option<Result<SpillDone>> {
        let now = self.ctx.now();
        let SpillJobUnderWay { job, .. } = self.spill_job.take_if(|job| job.ends_at <= now)?;
        let page_blocks = self.rack.layout.pages.page_bytes() / BLOCK_BYTES;
        let is_full = self.rack.blocks_free.get() < page_blocks;
        Some(self.rack.region.borrow_mut().spill.end(job, is_full))
    }

    fn punch_slots(&mut self, first: u32, count: u32) {
        self.rack.region.borrow_mut().spill.punch(first, count);
    }
}

impl World for RackWorld {
    type Mem = SimMem;
    type Persistent = SimMem;
    type Outbox = Handover;

    fn private(&self) -> &SimMem {
        &self.private
    }

    fn table(&self) -> &SimMem {
        &self.table
    }

    fn pages(&self) -> &SimMem {
        &self.pages
    }

    fn tiers(&self) -> Tiers {
        self.rack.tiers.clone()
    }

    fn cell_count(&self) -> u32 {
        (self.slots_used.len() as u32 + 1) * CELLS
    }

    fn cell(&self, index: u32) -> u64 {
        let (owner, cell) = (index / CELLS, index % CELLS);
        let (barriers, cells) = self.rack.invalidations.get();
        self.rack.invalidations.set((barriers, cells + 1));
        match self.slots_used.get(owner as usize) {
            None => self.cells.load(8 * u64::from(cell)),
            Some(slot) => {
                let section = self.slots[*slot as usize].as_ref();
                let at = cell_offset(cell);
                section.map_or(0, |section| coherence::load(section, Mutation::KeepCellLine, at))
            }
        }
    }

    fn slot(&self, slot: u32) -> Option<&SimMem> {
        self.slots[slot as usize].as_ref()
    }

    fn back_pages(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.take_blocks(bytes / BLOCK_BYTES, bytes)?;
        self.pages.memory().back(offset, bytes);
        Ok(())
    }

    fn punch_pages(&mut self, offset: u64, bytes: u64) {
        // The kernel's own work, after all stores of this thread.
        self.ctx.cpu.forget(self.pages.memory(), offset, bytes);
        self.pages.memory().punch(offset, bytes);
        self.rack.blocks_free.set(self.rack.blocks_free.get() + bytes / BLOCK_BYTES);
    }

    fn back_private(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.private.memory().back(offset, bytes);
        Ok(())
    }

    fn punch_private(&mut self, offset: u64, bytes: u64) {
        self.ctx.cpu.drain();
        self.private.memory().punch(offset, bytes);
    }

    fn barrier(&mut self) {
        let (barriers, cells) = self.rack.invalidations.get();
        self.rack.invalidations.set((barriers + 1, cells));
        if self.rack.mapped_elsewhere.get() {
            self.ctx.kernel.drain_all();
        } else {
            self.ctx.kernel.drain_host(self.rack.host);
        }
    }

    fn metadata_bytes(&self) -> u64 {
        self.private.memory().backed_bytes() + self.table.memory().backed_bytes()
    }

    fn outbox(&mut self) -> &mut Handover {
        &mut self.handover
    }
}
