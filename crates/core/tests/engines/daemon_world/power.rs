//! Worlds and racks of the daemon's tests in memory that persists, and losses of power.

use super::{Durability, RACK, Rig, TestWorld};
use rackpool_core::Result;
use rackpool_core::daemon::Daemon;
use rackpool_core::persist::recorder::StoreRecorder;
use rackpool_core::seam::{Mem, Section};

impl TestWorld {
    /// Pages and metadata persist; the table is in the same memory, and no word of it is asked to.
    fn that_persists(self, durability: Durability) -> TestWorld {
        self.private.outlive_power(durability);
        self.pages.outlive_power(durability);
        self.table.outlive_power(Durability::None);
        self
    }

    /// All processes end, and of what was stored some is left.
    pub fn lose_power(&mut self) {
        let mut state = self.power_seed;
        let mut pick = |versions: usize| match self.power_seed {
            0 => 0,
            1 => versions - 1,
            _ => {
                // splitmix64
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (mixed ^ mixed >> 27) as usize % versions
            }
        };
        for memory in [&self.private, &self.pages, &self.table] {
            memory.lose_power(&mut pick);
        }
        self.calls.clear();
        self.replies.clear();
        self.write_backs.clear();
        self.cells.fill(0);
        self.consumed.clear();
        self.changing.clear();
        self.lost_power = true;
    }
}

impl Rig {
    /// A rack with memory that persists, in which a burnt fuse is a loss of power.
    pub fn that_persists(frame_count: u32, durability: Durability) -> Rig {
        let mut rig = Rig::on(TestWorld::new(frame_count).that_persists(durability));
        rig.loses_power = true;
        rig
    }

    /// As [`Rig::that_persists`], with a spill file, which a loss of power spares.
    pub fn spilling_that_persists(memory_frames: u32, slots: u32) -> Rig {
        let world = TestWorld::with_spill(memory_frames, slots);
        let mut rig = Rig::on(world.that_persists(Durability::Kept));
        rig.loses_power = true;
        rig
    }

    /// A rack that tells a recorder of all that happens to its private section and its pages,
    /// which lie in this order in the recorder's memory.
    pub fn recorded(frame_count: u32, recorder: &StoreRecorder) -> Rig {
        let world = TestWorld::new(frame_count);
        let (private, pages) = (world.private.bytes(), world.pages.bytes());
        world.private.record(recorder.slice(0, private));
        world.pages.record(recorder.slice(private, pages));
        Rig::on(world)
    }

    /// A rack whose daemon is not started on what a loss of power has left.
    pub fn of_image(frame_count: u32, image: &[u8]) -> Rig {
        let rig = Rig::unstarted(TestWorld::new(frame_count));
        rig.world.private.fill(0, &image[..rig.world.private.bytes() as usize]);
        rig.world.pages.fill(0, &image[rig.world.private.bytes() as usize..]);
        rig.after_power_loss()
    }

    /// As [`Rig::of_image`], of one that is as the last one but for these bytes of it, each within
    /// a section.
    pub fn of_next_image<'a>(self, changed: impl Iterator<Item = (u64, &'a [u8])>) -> Rig {
        let TestWorld { private, pages, fuse, layout, .. } = self.world;
        private.undo();
        pages.undo();
        let private_bytes = private.bytes();
        for (offset, bytes) in changed {
            match offset.checked_sub(private_bytes) {
                Some(offset) => pages.fill(offset, bytes),
                None => private.fill(offset, bytes),
            }
        }
        Rig::unstarted(TestWorld::on(layout, fuse, private, pages)).after_power_loss()
    }

    fn after_power_loss(mut self) -> Rig {
        self.world.private.undo();
        self.world.pages.undo();
        self.world.lost_power = true;
        self
    }

    /// Attaches without a master.
    pub fn attach(&mut self) -> Result<()> {
        let pages = self.world.layout.pages;
        self.daemon = Some(Daemon::attach(&mut self.world, RACK, Some(pages))?);
        Ok(())
    }

    /// The power goes, and a daemon is started on what is left. Requests that were under way were
    /// served or not; what belonged to a session is freed.
    pub fn lose_power(&mut self) {
        self.daemon = None;
        self.world.lose_power();
        self.clients.clear();
        self.dead.clear();
        self.live.retain(|_, live| live.owner.is_none());
        self.start();
        self.world.lost_power = false;
    }
}
