//! What one client may have of the rack's memory, if the operator has set a limit.
//!
//! In: allocations when they are committed, frees, pages that leave. Out: `quota` for what would be
//! too much. An allocation counts for the process that asked for it, with what it takes (its size
//! class, or whole pages), until it is freed by any process, or its page goes to another rack. A
//! process is what the kernel says of a local client; of a remote one, which names its process
//! itself, each handle counts alone. Keepers of replicas are not limited: they are told how much
//! they may have. Nothing of this is stored: after a restart of the daemon owned memory is counted
//! again, other memory is not. Without a limit nothing is kept here.

use crate::addr::FrameIndex;
use crate::constants::SLOTS_MAX;
use crate::daemon::frames::FrameEntry;
use crate::daemon::session::{SessionInfo, Ticket};
use crate::daemon::{Daemon, World, slab};
use crate::error::{Error, Result};
use crate::seam::{Mutation, Probe};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// A process of the rack, and its start time.
    Process(u64, u64),
    /// A session of another rack's client.
    Handle(u64),
}

/// The owner of the memory of a frame, by number of account; 0 for none.
#[derive(Debug)]
enum Shares {
    Page(u32),
    Objects { shift: u8, by: Box<[u32]> },
}

/// The accounts of the processes that have memory. A number is used again once its holder has none.
#[derive(Debug, Default)]
pub(super) struct Quota {
    limit_bytes: Option<u64>,
    numbers: BTreeMap<Holder, u32>,
    accounts: Vec<(Holder, u64)>,
    unused: Vec<u32>,
    frames: BTreeMap<u32, Shares>,
}

impl Quota {
    fn held_bytes(&self, holder: Holder) -> u64 {
        self.numbers.get(&holder).map_or(0, |number| self.accounts[*number as usize - 1].1)
    }

    /// The limit, 0 for none, and the most that any process has.
    pub(super) fn counts(&self) -> (u64, u64) {
        let most = self.accounts.iter().map(|(_, bytes)| *bytes).max();
        (self.limit_bytes.unwrap_or(0), most.unwrap_or(0))
    }

    fn charge(&mut self, holder: Holder, bytes: u64) -> u32 {
        let Self { numbers, accounts, unused, .. } = self;
        let number = *numbers.entry(holder).or_insert_with(|| {
            let number = unused.pop().unwrap_or(accounts.len() as u32 + 1);
            accounts.resize(accounts.len().max(number as usize), (holder, 0));
            accounts[number as usize - 1] = (holder, 0);
            number
        });
        accounts[number as usize - 1].1 += bytes;
        number
    }

    fn credit(&mut self, number: u32, bytes: u64) {
        if number == 0 {
            return;
        }
        let (holder, held_bytes) = &mut self.accounts[number as usize - 1];
        *held_bytes -= bytes;
        if *held_bytes == 0 {
            self.numbers.remove(holder);
            self.unused.push(number);
        }
    }

    /// An object was given back.
    pub(super) fn credit_object(&mut self, frame: u32, index: u32) {
        if let Some(Shares::Objects { shift, by }) = self.frames.get_mut(&frame) {
            let number = std::mem::take(&mut by[index as usize]);
            let bytes = 1 << *shift;
            self.credit(number, bytes);
        }
    }

    /// A frame's page is in another frame now.
    pub(super) fn move_frame(&mut self, from: u32, to: u32) {
        if let Some(shares) = self.frames.remove(&from) {
            self.frames.insert(to, shares);
        }
    }

    /// A frame's page is freed, or leaves, with all that is in it.
    pub(super) fn credit_frame(&mut self, frame: u32, page_bytes: u64) {
        match self.frames.remove(&frame) {
            Some(Shares::Page(number)) => self.credit(number, page_bytes),
            Some(Shares::Objects { shift, by }) => {
                by.iter().for_each(|number| self.credit(*number, 1 << shift));
            }
            None => {}
        }
    }
}

impl Daemon {
    /// Sets how many bytes of this rack's memory one client may have; `None` for no limit. What is
    /// owned by sessions counts from the start, other memory only if it is allocated after this.
    pub fn set_client_quota<W: World>(&mut self, bytes: Option<u64>, world: &W) {
        self.quota = Quota { limit_bytes: bytes, ..Quota::default() };
        let owned: Vec<(u64, u32)> = self.frames.owned.iter().copied().collect();
        for (session, frame) in owned {
            let Some(record) = self.sessions.record_of(session) else { continue };
            let entry = FrameEntry::load_checked(world.private(), frame);
            if entry.shift == 0 {
                let pages = entry.page.0..entry.page.0 + u64::from(entry.span);
                let frames = self.frames.by_page.range(pages).map(|(_, frame)| *frame);
                self.charge_pages(record, &frames.collect::<Vec<_>>());
                continue;
            }
            for index in 0..slab::capacity(&self.layout, entry.shift) {
                if self.slabs.release(world.private(), frame, index).is_some() {
                    self.charge_object(record, FrameIndex(frame), entry.shift, index);
                }
            }
        }
    }

    /// Whether the asker may have that much more.
    pub(super) fn check_quota<W: World>(&self, ticket: &Ticket, world: &W) -> Result<()> {
        let Some(quota_bytes) = self.quota.limit_bytes else { return Ok(()) };
        let Some(holder) = self.holder(ticket.record) else { return Ok(()) };
        let page_bytes = self.layout.pages.page_bytes();
        let class = slab::class_shift(&self.layout, ticket.bytes);
        let takes =
            class.map_or_else(|| ticket.bytes.next_multiple_of(page_bytes), |shift| 1_u64 << shift);
        let held_bytes = self.quota.held_bytes(holder);
        let fits = held_bytes + takes <= quota_bytes;
        if fits || world.private().mutated(Mutation::IgnoreQuota) {
            return Ok(());
        }
        Err(Error::Quota { bytes: ticket.bytes, held_bytes, quota_bytes, rack: self.rack })
    }

    /// How much more the asker may have, bytes.
    pub(super) fn quota_room(&self, record: u32) -> u64 {
        let holder = self.limited(record);
        let limit_bytes = self.quota.limit_bytes.unwrap_or(u64::MAX);
        holder.map_or(u64::MAX, |one| limit_bytes.saturating_sub(self.quota.held_bytes(one)))
    }

    /// The slots of the process that asks.
    pub(super) fn slots_of_holder(&self, record: u32) -> Vec<u32> {
        let holder = self.holder(record);
        let slots = self.sessions.iter().map(|info| info.record);
        slots.filter(|slot| *slot < SLOTS_MAX && self.holder(*slot) == holder).collect()
    }

    /// An object of size class `shift` was taken.
    pub(super) fn charge_object(&mut self, record: u32, frame: FrameIndex, shift: u8, index: u32) {
        let Some(holder) = self.limited(record) else { return };
        let number = self.quota.charge(holder, 1 << shift);
        let capacity = slab::capacity(&self.layout, shift) as usize;
        let fresh = || Shares::Objects { shift, by: vec![0; capacity].into() };
        if let Shares::Objects { by, .. } = self.quota.frames.entry(frame.0).or_insert_with(fresh) {
            by[index as usize] = number;
        }
    }

    /// The pages of a run were taken.
    pub(super) fn charge_pages(&mut self, record: u32, frames: &[u32]) {
        let Some(holder) = self.limited(record) else { return };
        for frame in frames {
            let number = self.quota.charge(holder, self.layout.pages.page_bytes());
            self.quota.frames.insert(*frame, Shares::Page(number));
        }
    }

    /// The asker, if there is a limit.
    fn limited(&self, record: u32) -> Option<Holder> {
        self.quota.limit_bytes.and_then(|_| self.holder(record))
    }

    fn holder(&self, record: u32) -> Option<Holder> {
        if self.keeps_replicas(record) {
            return None;
        }
        let SessionInfo { session, pid, start_time, .. } = self.sessions.info(record);
        Some(match record < SLOTS_MAX {
            true => Holder::Process(pid, start_time),
            false => Holder::Handle(session.0),
        })
    }
}
