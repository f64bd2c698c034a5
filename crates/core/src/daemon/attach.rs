//! Making a region and starting on one that is there.
//!
//! In: sections, fresh or as the last daemon left them at any instruction. Out: an engine with
//! indexes that agree with them, or an error that says why the bytes cannot be used; never a
//! reformat. Called by the runtime when it starts. Order: superblock checked, copies compared, redo
//! record finished, epoch raised, sessions read, frames settled, slabs counted. Settling: `Home`
//! stays, `Pending` goes the way of `Freeing`, a later page of a run follows its first page if that
//! is here, and what is owned by a session that is over is freed; then the table is made to say so.
//! Source: DESIGN §2 (attach; another version or geometry is an error).

use crate::addr::{FrameIndex, Generation, PageGeometry, PageId, RackId};
use crate::coherence::Coherence;
use crate::constants::{REPLICA_HOMES, SESSIONS_MAX, SLAB_SHIFT_MIN, SLOTS_MAX};
use crate::copies::{self, Checked};
use crate::crash;
use crate::daemon::alloc::Allocations;
use crate::daemon::audit::Audits;
use crate::daemon::balance::Balancing;
use crate::daemon::calls::MasterCalls;
use crate::daemon::deferred_free::DeferredFrees;
use crate::daemon::drain::DrainState;
use crate::daemon::frames::{FrameEntry, Frames, back_metadata, state_offset};
use crate::daemon::free::Freeing;
use crate::daemon::heat::Heat;
use crate::daemon::loans::Loans;
use crate::daemon::locks::Locks;
use crate::daemon::moves::Moves;
use crate::daemon::persist::drop_volatile;
use crate::daemon::quota::Quota;
use crate::daemon::redo::Redo;
use crate::daemon::replica_quota::ReplicaQuotas;
use crate::daemon::replicas::Replicas;
use crate::daemon::scrub::Scrub;
use crate::daemon::session::Sessions;
use crate::daemon::slab::Slabs;
use crate::daemon::tiering::Tiering;
use crate::daemon::{Daemon, World, set_table};
use crate::error::{Error, Result};
use crate::layout::{
    FEATURE_SOFTWARE_COHERENT, FEATURES, FRAME_BYTES, FRAMES_OFFSET, FrameState, LAYOUT_VERSION,
    MAGIC, RegionLayout, STATE_OFFSET, SUPERBLOCK_OFFSET, StateWord, Superblock, table_word,
};
use crate::persist::Persist;
use crate::seam::{Mem, Mutation, Probe, Race};
use crate::wire::{AnswerCounts, RequestCounts};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

fn bad<T>(reason: String) -> Result<T> {
    Err(Error::BadRegion { reason })
}

/// Makes a region in sections of fresh zeroes. The superblock's magic is stored last: a crash
/// before it leaves no region, and making it again is allowed. A region that is there is refused.
pub fn format<W: World>(
    world: &mut W,
    rack: RackId,
    region_id: [u64; 2],
    layout: RegionLayout,
) -> Result<()> {
    check_lengths(world, &layout)?;
    back_metadata(world, 0, FRAMES_OFFSET)?;
    let mem = world.private();
    let epoch = mem.load(StateWord::Epoch.offset());
    if mem.load(SUPERBLOCK_OFFSET) != 0 || epoch != 0 {
        return bad("it is in use already; remove it to make a new one".into());
    }
    let mut block = Superblock {
        magic: MAGIC,
        version: LAYOUT_VERSION,
        page_shift: layout.pages.page_shift(),
        reserved_0: 0,
        rack: rack.0,
        region_id,
        frame_count: u64::from(layout.frame_count),
        features: match Coherence::of(world.pages()) {
            Coherence::Hardware => 0,
            Coherence::Software => FEATURE_SOFTWARE_COHERENT,
        },
        sessions: SESSIONS_MAX,
        slots: SLOTS_MAX,
        tiers: world.tiers().words(),
        reserved: [0; 4],
        checksum: 0,
    };
    block.checksum = block.checksum_of();
    copies::store(mem, StateWord::GenerationNext.offset(), 1);
    for (index, word) in block.as_bytes().chunks_exact(8).enumerate().rev() {
        let word = u64::from_ne_bytes(word.try_into().expect("chunks are 8 bytes long"));
        let offset = SUPERBLOCK_OFFSET + 8 * index as u64;
        // All that the magic word vouches for is durable before it, then it is itself.
        if index == 0 {
            persist_superblock(mem)?;
        }
        mem.store(offset, word);
    }
    persist_superblock(mem)
}

fn persist_superblock<M: Persist>(mem: &M) -> Result<()> {
    if !mem.is_persistent() {
        return Ok(());
    }
    let made = mem.persist(SUPERBLOCK_OFFSET, size_of::<Superblock>() as u64);
    made.map_err(|error| Error::Io {
        what: "making a new region durable".into(),
        reason: error.to_string(),
    })
}

/// Reads the superblock of a private section: `BadRegion` if there is none or it is torn,
/// `Version` if another release made it, `BadRegion` if it uses what this release does not know.
pub fn read_superblock<M: Mem>(private: &M) -> Result<Superblock> {
    let mut bytes = [0; size_of::<Superblock>()];
    if private.bytes() < FRAMES_OFFSET {
        return bad(format!("{} bytes hold no superblock and state", private.bytes()));
    }
    private.copy_out(SUPERBLOCK_OFFSET, &mut bytes);
    let block = Superblock::read_from_bytes(&bytes).expect("the array has the block's length");
    if block.magic != MAGIC {
        return bad(format!("the first word is {:#x}, not a region's", block.magic));
    }
    if block.version != LAYOUT_VERSION {
        return Err(Error::Version {
            peer: "the region".into(),
            found: block.version,
            supported: LAYOUT_VERSION,
        });
    }
    if block.checksum != block.checksum_of() {
        return bad("the superblock is torn: its checksum does not fit".into());
    }
    if block.features & !FEATURES != 0 {
        return bad(format!("unknown features {:#x}: use a newer release", block.features));
    }
    if (block.sessions, block.slots) != (SESSIONS_MAX, SLOTS_MAX) {
        return bad(format!("it has {} sessions and {} slots", block.sessions, block.slots));
    }
    Ok(block)
}

fn check_lengths<W: World>(world: &W, layout: &RegionLayout) -> Result<()> {
    let sections = [
        ("private", world.private().bytes(), layout.private_bytes()),
        ("table", world.table().bytes(), layout.table_bytes()),
        ("pages", world.pages().bytes(), layout.pages_bytes()),
    ];
    for (name, is_bytes, needed_bytes) in sections {
        if is_bytes < needed_bytes {
            return bad(format!("the {name} section has {is_bytes} of {needed_bytes} bytes"));
        }
    }
    let private_bytes = world.private().bytes();
    if private_bytes != layout.private_bytes() {
        return bad(format!("the private section has {private_bytes} bytes, which are too many"));
    }
    if layout.frame_count == 0 || layout.frame_count == u32::MAX {
        return bad(format!("{} frames make no region", layout.frame_count));
    }
    Ok(())
}

/// What attach decides for a run or a slab page, by its first page.
struct Head {
    page: u64,
    pages: u32,
    stays: bool,
}

impl Daemon {
    /// Starts on a region. `expected` is the page geometry that the user asked for, if any. The
    /// frames that were on their way go on once the master is up; by then the runtime has mapped
    /// the slots of all sessions with a live process, so that their cells are seen.
    pub fn attach<W: World>(
        world: &mut W,
        rack: RackId,
        expected: Option<PageGeometry>,
    ) -> Result<Daemon> {
        let block = read_superblock(world.private())?;
        let layout = check_superblock(&block, rack, expected)?;
        let (found, mapped) = (block.coherence(), Coherence::of(world.pages()));
        if found != mapped {
            return bad(format!("its caches are kept coherent by {found}, not by {mapped}"));
        }
        check_lengths(world, &layout)?;
        let (checked, redo) = recover_metadata(world, &layout)?;
        let mem = world.private();
        let Some(tiers) = block.tiers() else { return bad("its memories make no sense".into()) };
        let frames = Frames::load(mem, layout, tiers)?;
        let sessions = Sessions::load(mem)?;
        let locks = Locks::load(mem, &sessions, layout.pages)?;
        let orphans = DeferredFrees::load(mem)?;
        let audits = Audits::load(world)?;
        let epoch = copies::load(mem, StateWord::Epoch.offset())?.wrapping_add(1);
        copies::store(mem, StateWord::Epoch.offset(), epoch);
        let mut daemon = Daemon {
            rack,
            region_id: block.region_id,
            epoch,
            layout,
            redo,
            frames,
            slabs: Slabs::new(layout),
            sessions,
            locks,
            heat: Heat::off(),
            leaving: DrainState::default(),
            balancing: Balancing::default(),
            allocations: Allocations::new(),
            freeing: Freeing::default(),
            calls: MasterCalls::new(),
            moves: Moves::default(),
            tiering: Tiering::default(),
            orphans,
            replicas: Replicas::default(),
            rooms: ReplicaQuotas::default(),
            quota: Quota::default(),
            loans: Loans::default(),
            audits,
            allocated_bytes: 0,
            allocations_live: 0,
            requests: RequestCounts::default(),
            answers: AnswerCounts::default(),
            sessions_made: 0,
            sessions_reaped: 0,
            scrub: Scrub::after_attach(checked),
        };
        daemon.freeing.table_changed();
        let moving = daemon.scan_frames(world.private())?;
        daemon.settle_tier_move(&moving, world);
        let leaving = daemon.settle_frames(world)?;
        if !leaving.is_empty() {
            world.private().met(Race::FramesRolledBack);
        }
        daemon.start_freeing(&leaving, None, world);
        daemon.hold_first_pages(&leaving, world.private());
        let used = daemon.frames.high;
        crash::flush_daemon(world.table(), world.pages(), &layout, used);
        daemon.trim_slabs(world);
        Ok(daemon)
    }

    /// Reads every entry that was ever used and builds page → frame. A page on its way between the
    /// rack's memories is in two frames: the one that it would come to, or has left, is not in the
    /// index, and is the result.
    fn scan_frames<M: Mem>(&mut self, mem: &M) -> Result<Vec<u32>> {
        let mut moving = Vec::new();
        let generation_next = copies::load(mem, StateWord::GenerationNext.offset())?;
        let page_max = self.layout.pages.page_id_max();
        for frame in 0..self.frames.high {
            if !FrameEntry::is_readable(mem, frame) {
                self.frames.damaged.insert(frame);
                continue;
            }
            let entry = FrameEntry::load(mem, frame)?;
            match entry.state {
                FrameState::Free => {
                    self.frames.free.insert(frame);
                    continue;
                }
                FrameState::Gone => {
                    self.freeing.drain(frame);
                    continue;
                }
                _ => {}
            }
            let shifts = SLAB_SHIFT_MIN..self.layout.pages.page_shift();
            let known_class = entry.shift == 0 || shifts.contains(&entry.shift);
            let slab_shape = entry.shift == 0 || (entry.first && entry.span == 1);
            let known_page = entry.page.0 != 0 && entry.page <= page_max;
            let known_generation = (1..generation_next).contains(&entry.generation.0);
            let known_span =
                entry.span > 0 && (entry.first || u64::from(entry.span) < entry.page.0);
            if !(known_class && slab_shape && known_page && known_generation && known_span) {
                return bad(format!("the entry of frame {frame} makes no sense: {entry:?}"));
            }
            let Some(other) = self.frames.by_page.insert(entry.page.0, frame) else { continue };
            let has_tiers = self.frames.of_tiers().next().is_some();
            // Which of the two is not in the index: where the page is not, as far as is known.
            let rank = |state| match state {
                FrameState::Arriving => 2,
                FrameState::Departing => 1,
                _ => 0,
            };
            let (others, its) = (rank(FrameEntry::load(mem, other)?.state), rank(entry.state));
            if !has_tiers || others + its == 0 {
                return bad(format!("page {} is in frames {other} and {frame}", entry.page));
            }
            if its >= others {
                self.frames.by_page.insert(entry.page.0, other);
            }
            moving.push(if its >= others { frame } else { other });
        }
        Ok(moving)
    }

    /// Second frames of pages on their way between the rack's memories: the directory says where
    /// those are.
    fn settle_tier_move<W: World>(&mut self, moving: &[u32], world: &mut W) {
        for frame in moving {
            settle_table(world, *frame, 0);
            let entry = FrameEntry::load_checked(world.private(), *frame);
            self.settle_move(*frame, &entry, world);
        }
    }

    /// Decides what stays, in page order so that first pages come first; the frames that go.
    fn settle_frames<W: World>(&mut self, world: &mut W) -> Result<Vec<u32>> {
        for frame in self.frames.free.iter().copied().chain(self.freeing.draining()) {
            settle_table(world, frame, 0);
        }
        let pages: Vec<(u64, u32)> = self.frames.by_page.iter().map(|(p, f)| (*p, *f)).collect();
        let mut leaving = Vec::new();
        let mut head = Head { page: 0, pages: 0, stays: false };
        for (page, frame) in pages {
            let entry = FrameEntry::load(world.private(), frame)?;
            if matches!(entry.state, FrameState::Arriving | FrameState::Departing) {
                settle_table(world, frame, 0);
                self.settle_move(frame, &entry, world);
                continue;
            }
            let in_run = (head.page + 1..head.page + u64::from(head.pages)).contains(&page);
            if in_run && (entry.first || entry.run_first().0 != head.page) {
                return bad(format!("page {page} lies inside the run from page {}", head.page));
            }
            if entry.first {
                let owner = entry.owner.0;
                let owned = owner == 0 || self.sessions.record_of(owner).is_some();
                let stays = entry.state == FrameState::Home && owned;
                head = Head { page, pages: entry.span, stays };
            }
            // A page of a run that begins in another rack is as its own entry says.
            let has_head = entry.run_first().0 == head.page;
            if has_head && !entry.first && !in_run {
                return bad(format!("page {page} lies behind the end of its run"));
            }
            let mut stays = if has_head { head.stays } else { entry.state == FrameState::Home };
            if !has_head && world.private().mutated(Mutation::DropStrayPage) {
                stays = false;
            }
            if !stays {
                leaving.push(frame);
                continue;
            }
            if entry.state == FrameState::Freeing {
                return bad(format!("page {page} is being freed, the first of its run is not"));
            }
            self.keep_page(frame, &entry, world)?;
            if entry.state == FrameState::Pending {
                let word = entry.state_word(FrameState::Home);
                world.private().met(Race::RunFinished);
                copies::store(world.private(), state_offset(frame), word);
            }
            if entry.shared && !world.private().mutated(Mutation::ForgetReplicasAtAttach) {
                world.private().met(Race::ReplicasFound);
                let key = match world.lost_power() {
                    // Whatever the table says may be older than the key that others know.
                    true => Generation(self.frames.take_generations(world.private(), 1)),
                    false => Generation(world.table().load(table_word(FrameIndex(frame)))),
                };
                self.replicas.found(entry.page, frame, key.shared());
                settle_table(world, frame, key.shared().0);
                continue;
            }
            settle_table(world, frame, entry.generation.0);
        }
        for index in 0..REPLICA_HOMES {
            set_table(world, self.layout.replicas_word(index), 0);
        }
        Ok(leaving)
    }

    /// Runs that were being freed: their pages in other racks are to be freed there. Those that
    /// this rack has forgotten already are unknown to the master as well.
    fn hold_first_pages<M: Mem>(&mut self, leaving: &[u32], mem: &M) {
        let entries: Vec<(u32, FrameEntry)> =
            leaving.iter().map(|frame| (*frame, FrameEntry::load_checked(mem, *frame))).collect();
        let here: BTreeSet<PageId> = entries.iter().map(|(_, entry)| entry.page).collect();
        for (frame, entry) in entries.iter().filter(|(_, entry)| entry.first && entry.shift == 0) {
            let run = entry.page.0 + 1..entry.page.0 + u64::from(entry.span);
            let apart: Vec<PageId> = run.map(PageId).filter(|page| !here.contains(page)).collect();
            if !apart.is_empty() {
                self.hold_first(*frame, entry.page, apart);
            }
        }
    }

    /// Puts a page that stays into the indexes.
    fn keep_page<W: World>(&mut self, frame: u32, entry: &FrameEntry, world: &W) -> Result<()> {
        let owner = entry.owner.0;
        if owner != 0 && entry.first {
            self.frames.owned.insert((owner, frame));
        }
        if entry.shift == 0 {
            self.allocations_live += u64::from(entry.first);
            self.allocated_bytes += self.layout.pages.page_bytes();
        } else {
            let live = self.slabs.insert_found(world.private(), frame, entry.class())?;
            self.allocations_live += u64::from(live);
            self.allocated_bytes += u64::from(live) << entry.shift;
        }
        Ok(())
    }

    /// Gives back empty slab pages beyond the one that each class keeps.
    fn trim_slabs<W: World>(&mut self, world: &mut W) {
        while let Some(frame) = self.slabs.any_surplus() {
            self.start_freeing(&[frame], None, world);
        }
    }
}

fn check_superblock(
    block: &Superblock,
    rack: RackId,
    expected: Option<PageGeometry>,
) -> Result<RegionLayout> {
    if block.rack != rack.0 {
        return bad(format!("it is rack {}'s, this daemon serves rack {rack}", block.rack));
    }
    let Some(pages) = PageGeometry::new(block.page_shift) else {
        return bad(format!("pages of 2^{} bytes are not supported", block.page_shift));
    };
    if let Some(expected) = expected
        && expected != pages
    {
        return bad(format!(
            "its pages have {} bytes, {} were asked for",
            pages.page_bytes(),
            expected.page_bytes()
        ));
    }
    let Ok(frame_count) = u32::try_from(block.frame_count) else {
        return bad(format!("{} frames are too many", block.frame_count));
    };
    Ok(RegionLayout { pages, frame_count })
}

/// Makes the metadata agree with itself, whatever the last daemon, or the last loss of power, left.
fn recover_metadata<W: World>(world: &W, layout: &RegionLayout) -> Result<(Checked, Redo)> {
    let lost_power = world.lost_power();
    if lost_power {
        drop_volatile(world);
    }
    adopt_stores(world.private())?;
    let checked = check_copies(world.private(), layout)?;
    let redo = Redo::replay(world, layout)?;
    if lost_power {
        // The record may have told of a session.
        drop_volatile(world);
    }
    Ok((checked, redo))
}

/// What a killed daemon stored and had not made durable yet counts from now on: it is made durable
/// before anything hangs on it.
fn adopt_stores<M: Persist>(mem: &M) -> Result<()> {
    if !mem.is_persistent() {
        return Ok(());
    }
    mem.persist(0, mem.bytes()).map_err(|error| Error::Io {
        what: "making what the last daemon stored durable".into(),
        reason: error.to_string(),
    })
}

/// Mends what is wrong in one copy, of everything before the slab bitmaps that is in use. Damage
/// beyond that is an error, but for frame entries: their frames are left out.
fn check_copies<M: Persist>(mem: &M, layout: &RegionLayout) -> Result<Checked> {
    let mut checked = Checked::default();
    copies::check(mem, STATE_OFFSET, FRAMES_OFFSET - STATE_OFFSET, &mut checked);
    if let Some(offset) = checked.damaged.first() {
        return Err(copies::damaged(*offset));
    }
    // What the word says is checked after this.
    let high = copies::load(mem, StateWord::FramesHigh.offset())?;
    let high = high.min(u64::from(layout.frame_count));
    copies::check(mem, FRAMES_OFFSET, FRAME_BYTES * high, &mut checked);
    Ok(checked)
}

/// Makes a table word right without touching one that is.
fn settle_table<W: World>(world: &mut W, frame: u32, generation: u64) {
    let word = table_word(FrameIndex(frame));
    if world.table().load(word) != generation {
        set_table(world, word, generation);
    }
}
