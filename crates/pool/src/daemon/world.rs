//! What the daemon engine sees of its process: the sections, the announce cells of all processes
//! that can touch pages, and queues for what it says to the master and to clients.

use super::spill::SpillThread;
use rackpool_core::coherence;
use rackpool_core::constants::{CELLS, SLOTS_MAX};
use rackpool_core::counts::{FabricCounts, ProxyCounts};
use rackpool_core::daemon::{Handover, World};
use rackpool_core::layout::cell_offset;
use rackpool_core::persist::Persist;
use rackpool_core::seam::{Mem, Mutation};
use rackpool_core::spill::{SpillDone, SpillFile, SpillJob};
use rackpool_core::tier::Tiers;
use rackpool_core::wire::MetadataChecks;
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::TargetCounters;
use rackpool_mem::persist::PersistentWindow;
use rackpool_mem::region::{RegionFiles, Section};
use rackpool_mem::window::Window;
use tracing::warn;

/// The real world of one daemon.
pub(super) struct RegionWorld {
    pub files: RegionFiles,
    private: PersistentWindow,
    table: Window,
    pages: PersistentWindow,
    pub bell: Window,
    /// Cells of the fabric target's thread.
    pub target_cells: Window,
    /// Counters of the fabric target, once it serves.
    pub fabric: Option<TargetCounters>,
    slots: Vec<Option<Window>>,
    slots_used: Vec<u32>,
    asymmetric_fence: bool,
    handover: Handover,
    /// What was said last of damaged metadata.
    reported: MetadataChecks,
    /// The file of pages that are not in memory, if the rack has one.
    pub spill: Option<SpillThread>,
}

impl RegionWorld {
    /// `target_cells`: how many the fabric target's thread has.
    pub(super) fn new(
        files: RegionFiles,
        asymmetric_fence: bool,
        target_cells: u32,
    ) -> Result<Self> {
        let map = |section| files.map(section).map_err(Error::from);
        let map_persistent = |section| files.map_persistent(section).map_err(Error::from);
        Ok(Self {
            private: map_persistent(Section::Private)?,
            table: map(Section::Table)?,
            pages: map_persistent(Section::Pages)?,
            bell: map(Section::Bell)?,
            target_cells: Window::heap(u64::from(target_cells) * 8)
                .with_asymmetric_fence(asymmetric_fence),
            files,
            fabric: None,
            slots: vec![None; SLOTS_MAX as usize],
            slots_used: Vec::with_capacity(SLOTS_MAX as usize),
            asymmetric_fence,
            handover: Handover::default(),
            reported: MetadataChecks::default(),
            spill: None,
        })
    }

    /// Says what was found wrong in the metadata, when there is more of it than was said before.
    pub(super) fn report_checks(&mut self, rack: RackId, found: MetadataChecks) {
        let MetadataChecks { repaired, damaged, .. } = found;
        if (repaired, damaged) != (self.reported.repaired, self.reported.damaged) {
            warn!(
                target: "daemon",
                "rack {rack}: {repaired} words of its metadata were wrong in one place \
                 and are right again, {damaged} are lost and their memory is not handed out: \
                 test this machine's memory"
            );
            self.reported = found;
        }
    }

    /// The sections' files, after everything else is unmapped.
    pub(super) fn into_files(self) -> RegionFiles {
        self.files
    }

    /// A slot's section is there: its cells count from now on. `is_near`: its client is on this
    /// host. What was stored in it before by processes of this host is where the client sees it.
    pub(super) fn add_slot(&mut self, slot: u32, window: Window, is_near: bool) {
        let window = window.with_coherence(is_near || self.pages.is_coherent());
        window.flush(0, window.bytes());
        self.slots[slot as usize] = Some(window);
        if !self.slots_used.contains(&slot) {
            self.slots_used.push(slot);
        }
    }

    /// The slot's process cannot touch anything any more.
    pub(super) fn remove_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.slots_used.retain(|used| *used != slot);
    }

    fn target_cell_count(&self) -> u32 {
        (self.target_cells.bytes() / 8) as u32
    }

    pub(super) fn is_asymmetric(&self) -> bool {
        self.asymmetric_fence
    }
}

impl SpillFile for RegionWorld {
    fn begin_spill(&mut self, job: SpillJob) {
        self.spill.as_mut().expect("a region with slots was opened with their file").begin(job);
    }

    fn spill_ended(&mut self) -> Option<Result<SpillDone>> {
        self.spill.as_mut()?.ended()
    }

    fn punch_slots(&mut self, first: u32, count: u32) {
        if let Some(spill) = &mut self.spill {
            spill.punch(first, count);
        }
    }

    fn slots_adopted(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.adopted();
        }
    }
}

impl World for RegionWorld {
    type Mem = Window;
    type Persistent = PersistentWindow;
    type Outbox = Handover;

    fn private(&self) -> &PersistentWindow {
        &self.private
    }

    fn table(&self) -> &Window {
        &self.table
    }

    fn pages(&self) -> &PersistentWindow {
        &self.pages
    }

    fn tiers(&self) -> Tiers {
        self.files.tiers().clone()
    }

    fn lost_power(&self) -> bool {
        self.files.lost_power()
    }

    fn cell_count(&self) -> u32 {
        self.target_cell_count() + self.slots_used.len() as u32 * CELLS
    }

    fn cell(&self, index: u32) -> u64 {
        let Some(index) = index.checked_sub(self.target_cell_count()) else {
            return self.target_cells.load(8 * u64::from(index));
        };
        let (owner, cell) = (index / CELLS, index % CELLS);
        let slot = self.slots_used.get(owner as usize);
        let window = slot.and_then(|slot| self.slots[*slot as usize].as_ref());
        let at = cell_offset(cell);
        window.map_or(0, |window| coherence::load(window, Mutation::KeepCellLine, at))
    }

    fn slot(&self, slot: u32) -> Option<&Window> {
        self.slots[slot as usize].as_ref()
    }

    fn host_free_bytes(&self) -> Option<u64> {
        self.files.host_free_bytes()
    }

    fn back_pages(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.files.back_pages(offset, bytes).map_err(Error::from)
    }

    fn punch_pages(&mut self, offset: u64, bytes: u64) {
        if let Err(error) = self.files.punch_pages(offset, bytes) {
            // The frame stays backed; it must still read as zero.
            warn!(target: "daemon", "punching {bytes} bytes of pages: {error}; zeroing instead");
            self.pages.zero(offset, bytes);
            self.pages.flush(offset, bytes);
            let is_safe = !self.pages.is_persistent() || self.pages.persist(offset, bytes).is_ok();
            assert!(is_safe, "freed pages cannot be made zero for good");
        }
    }

    fn back_private(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.files.back_private(offset, bytes).map_err(Error::from)
    }

    fn punch_private(&mut self, offset: u64, bytes: u64) {
        if let Err(error) = self.files.punch_private(offset, bytes) {
            warn!(target: "daemon", "punching {bytes} bytes of metadata: {error}; zeroing instead");
            self.private.zero(offset, bytes);
        }
    }

    fn barrier(&mut self) {
        if self.asymmetric_fence {
            rackpool_mem::barrier::barrier()
                .expect("the barrier was registered and the kernel keeps it");
        } else {
            self.table.fence();
        }
    }

    fn metadata_bytes(&self) -> u64 {
        self.files.backed_bytes().map_or(0, |backed| backed.metadata)
    }

    fn fabric_counts(&self) -> FabricCounts {
        let Some(stats) = self.fabric.as_ref().map(TargetCounters::stats) else {
            return FabricCounts::default();
        };
        FabricCounts {
            operations: stats.ops,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            send_calls: stats.send_calls,
            receive_calls: stats.recv_calls,
            connections: stats.connections,
        }
    }

    fn connections_refused(&self) -> u64 {
        self.fabric.as_ref().map_or(0, |target| target.stats().refused)
    }

    fn proxy_counts(&self) -> ProxyCounts {
        self.handover.proxy
    }

    fn outbox(&mut self) -> &mut Handover {
        &mut self.handover
    }
}
