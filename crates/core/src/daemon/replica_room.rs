//! Memory of this rack for replicas of other racks' pages: how much their keepers may have, and the
//! words behind the page table by which the rack's clients find their directories.
//!
//! A keeper is a client and owns what it keeps, so that all of it comes back with its session.
//! Replicas give way: while an eighth of the frames is not free, keepers are told to have fewer.

use crate::addr::{GAddr, RackId};
use crate::constants::SLOTS_MAX;
use crate::daemon::frames::Entry;
use crate::daemon::{Daemon, World, set_table};
use crate::error::{Error, Result};
use crate::replica::home_index;
use crate::wire::Reply;
use std::collections::BTreeMap;

/// Of so many frames one is kept free of replicas.
const RESERVE: u32 = 8;

/// The rack's keepers by record, with their words behind the page table.
#[derive(Debug, Default)]
pub(super) struct Rooms(BTreeMap<u32, u64>);

impl Daemon {
    /// A keeper says where its directory is, and asks how many frames it may have.
    pub(super) fn replica_room<W: World>(
        &mut self,
        record: u32,
        (home, directory): (RackId, GAddr),
        world: &W,
    ) -> Result<Reply> {
        let denied = |reason: &str| Err(Error::Denied { reason: reason.into() });
        if record >= SLOTS_MAX {
            return denied("only clients of the own rack keep replicas in it");
        }
        let session = self.sessions.session(record);
        let index = home_index(home);
        let others = self.rooms.0.iter().any(|(other, at)| *other != record && *at == index);
        if others || self.rooms.0.get(&record).is_some_and(|at| *at != index) {
            return denied("another one keeps replicas of that rack");
        }
        if !directory.is_null() {
            let page = self.layout.pages.page(directory);
            let home = self.frames.home(world.private(), page);
            if home.is_none_or(|(_, entry)| entry.owner.0 != session) {
                return denied("its directory is not its own");
            }
        }
        set_table(world, self.layout.replicas_word(index), directory.0);
        let owned = self.frames.owned.range((session, 0)..=(session, u32::MAX));
        let spans = owned.map(|(_, frame)| Entry::load_checked(world.private(), *frame).span);
        let frames = spans.sum::<u32>();
        self.rooms.0.insert(record, index);
        let reserve = (self.layout.frame_count / RESERVE).max(1);
        let allowed = (frames + self.frames.free_count()).saturating_sub(reserve);
        Ok(Reply::ReplicaRoom { frames: if self.is_leaving() { 0 } else { allowed } })
    }

    /// Whether a client keeps replicas of other racks' pages.
    pub(super) fn keeps_replicas(&self, record: u32) -> bool {
        self.rooms.0.contains_key(&record)
    }

    /// A session is over: nobody looks at its directory any more.
    pub(super) fn end_room<W: World>(&mut self, record: u32, world: &W) {
        if let Some(index) = self.rooms.0.remove(&record) {
            set_table(world, self.layout.replicas_word(index), 0);
        }
    }
}
