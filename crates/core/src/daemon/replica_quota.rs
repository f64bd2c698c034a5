//! Memory of this rack for replicas of other racks' pages: how much their keepers may have, and the
//! words behind the page table by which the rack's clients find their directories.
//!
//! A keeper is a client and owns what it keeps, so that all of it comes back with its session.
//! Replicas give way: while an eighth of the frames is not free, keepers are told to have fewer,
//! and an allocation that would not fit takes their pages away at once. So they count as a cache:
//! free for all other uses.

use crate::addr::{GAddr, PageId, RackId};
use crate::constants::SLOTS_MAX;
use crate::daemon::frames::FrameEntry;
use crate::daemon::free::FreeTarget;
use crate::daemon::{Daemon, World, set_table};
use crate::error::{Error, Result};
use crate::replica::home_index;
use crate::wire::Reply;
use std::collections::BTreeMap;
use std::ops::Range;

/// Of so many frames one is kept free of replicas.
const RESERVE: u32 = 8;

/// The rack's keepers by record.
#[derive(Debug, Default)]
pub(super) struct ReplicaQuotas(BTreeMap<u32, ReplicaQuota>);

#[derive(Clone, Copy, Debug)]
struct ReplicaQuota {
    /// Its word behind the page table.
    index: u64,
    /// The first page of its directory, and how many there are, if it has one.
    directory: Option<(PageId, u32)>,
}

impl Daemon {
    /// A keeper says where its directory is, and asks how many frames it may have.
    pub(super) fn replica_quota<W: World>(
        &mut self,
        record: u32,
        home: RackId,
        directory: GAddr,
        world: &W,
    ) -> Result<Reply> {
        let denied = |reason: &str| Err(Error::Denied { reason: reason.into() });
        if record >= SLOTS_MAX {
            return denied("only clients of the own rack keep replicas in it");
        }
        let session = self.sessions.session(record);
        let index = home_index(home);
        let others = self.rooms.0.iter().any(|(other, at)| *other != record && at.index == index);
        if others || self.rooms.0.get(&record).is_some_and(|at| at.index != index) {
            return denied("another one keeps replicas of that rack");
        }
        let mut room = ReplicaQuota { index, directory: None };
        if !directory.is_null() {
            let page = self.layout.pages.page(directory);
            match self.frames.home(world.private(), page) {
                Some((_, entry)) if entry.owner.0 == session => {
                    room.directory = Some((page, entry.span));
                }
                _ => return denied("its directory is not its own"),
            }
        }
        set_table(world, self.layout.replicas_word(index), directory.0);
        let owned = self.frames.owned.range((session, 0)..=(session, u32::MAX));
        let spans = owned.map(|(_, frame)| FrameEntry::load_checked(world.private(), *frame).span);
        let frames = spans.sum::<u32>();
        self.rooms.0.insert(record, room);
        let reserve = (self.layout.frame_count / RESERVE).max(1);
        let allowed = (frames + self.frames.free_memory(u32::MAX)).saturating_sub(reserve);
        Ok(Reply::ReplicaRoom { frames: if self.is_leaving() { 0 } else { allowed } })
    }

    /// Whether a client keeps replicas of other racks' pages.
    pub(super) fn keeps_replicas(&self, record: u32) -> bool {
        self.rooms.0.contains_key(&record)
    }

    /// A session is over: no client looks at its directory any more.
    pub(super) fn end_room<W: World>(&mut self, record: u32, world: &W) {
        if let Some(room) = self.rooms.0.remove(&record) {
            set_table(world, self.layout.replicas_word(room.index), 0);
        }
    }

    /// Allocations of a keeper: one a replica, and its directory.
    fn kept(&self, record: u32) -> impl Iterator<Item = u32> + '_ {
        let session = self.sessions.session(record);
        let owned = self.frames.owned.range((session, 0)..=(session, u32::MAX));
        owned.map(|(_, frame)| *frame)
    }

    /// Frames that replicas and their directories take.
    pub(super) fn replica_frames(&self) -> u32 {
        let of = |(record, room): (&u32, &ReplicaQuota)| {
            let more = room.directory.map_or(0, |(_, span)| span.saturating_sub(1));
            self.kept(*record).count() as u32 + more
        };
        self.rooms.0.iter().map(of).sum()
    }

    /// Frames of replicas, of a range, that a request for memory may have.
    pub(super) fn replicas_for(&self, record: u32, range: &Range<u32>) -> u32 {
        if self.keeps_replicas(record) {
            return 0;
        }
        let of = |(record, room): (&u32, &ReplicaQuota)| {
            let in_range = |page: PageId| {
                self.frames.by_page.get(&page.0).is_some_and(|frame| range.contains(frame))
            };
            let directory = usize::from(room.directory.is_some_and(|(page, _)| in_range(page)));
            let kept = self.kept(*record).filter(|frame| range.contains(frame)).count();
            kept.saturating_sub(directory) as u32
        };
        self.rooms.0.iter().map(of).sum()
    }

    /// Takes pages of replicas in a range of frames away from their keepers, for others; they
    /// notice.
    pub(super) fn take_replicas<W: World>(
        &mut self,
        count: u32,
        range: &Range<u32>,
        world: &mut W,
    ) {
        let mut found = Vec::new();
        for (record, room) in &self.rooms.0 {
            let directory = room.directory.map(|(page, _)| page);
            let kept = self.kept(*record).filter(|frame| range.contains(frame));
            found.extend(kept.filter_map(|frame| {
                let entry = FrameEntry::load_checked(world.private(), frame);
                let is_one = entry.shift == 0 && Some(entry.page) != directory;
                is_one.then_some((frame, entry.page, entry.span))
            }));
        }
        for (frame, page, pages) in found.into_iter().take(count as usize) {
            let addr = self.layout.pages.join(page, 0);
            self.release_now(FreeTarget::Run { frame, page, pages }, addr, world);
        }
    }
}
