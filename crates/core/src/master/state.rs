//! The master's replicated state machine: directory, racks, roots, page-id counter. Owns all that
//! outlives the process. [`Command`]s flow in, in log order; [`StateWrite`]s and results flow out.
//! Called by the engine in [`super`] and, at start, by the code that loads the stored form.
//!
//! Ordering rule: `apply` sees neither clock nor connection, so that every replica of the log
//! reaches the same state. A command that is refused changes nothing.
//!
//! A page is lost when its home names another region of its rack than the present one: a rack's
//! new region loses any number of pages with one write.

use super::deferred_free::table::DeferredFreeTable;
use super::directory::{Directory, Role, StoredHome};
use super::record::{self, Membership, PoolRecord, RackRecord, StateError, StateWrite, Table};
use crate::addr::{GAddr, PageGeometry, PageId, RackId};
use crate::constants::{RACK_SHARDS_MAX, ROOTS_MAX};
use crate::error::{Error, Result};
use crate::member::RackState;
use crate::wire::{DeferredFree, PageHome, RackInfo, Resolved};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A daemon joins with its region.
    JoinDaemon(RackInfo),
    /// A range of page ids is given out.
    LeasePageIds { count: u64 },
    CommitPages {
        /// The rack of the daemon that asks.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        homes: Vec<PageHome>,
    },
    RemovePages {
        /// The rack of the daemon that asks.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        pages: Vec<PageId>,
    },
    /// A page changes its home, if that is `from`.
    MovePage {
        /// The rack of the daemon that asks: the one of `to`.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        /// What must be the home.
        from: PageHome,
        /// What shall be the home.
        to: PageHome,
    },
    /// A page of a rack's lost region is at home in its new one, if it was at `from`.
    AdoptPage {
        /// The rack of the daemon that asks: the one of both homes.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        from: PageHome,
        /// The same frame of the new region.
        to: PageHome,
    },
    /// A name gets an address.
    SetRoot {
        name: String,
        expected: GAddr,
        /// What shall be there; null removes the name.
        addr: GAddr,
    },
    /// A rack comes to stand otherwise to the pool; see [`RackState`].
    SetStanding {
        rack: RackId,
        to: RackState,
        /// To leave: how many pages it may still have. 0 from every caller.
        pages_max: u64,
    },
    /// Later pages of a run that is freed; their homes are to free them.
    OrphanPages {
        /// The rack of the daemon that asks: the one of `first`.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        /// The run's first page.
        first: PageId,
        pages: Vec<PageId>,
    },
    /// Allocations are to be freed by their homes.
    FreeElsewhere {
        /// The rack of the daemon that asks.
        rack: RackId,
        /// Its region; another one by now refuses the command.
        region_id: [u64; 2],
        debts: Vec<DeferredFree>,
    },
    /// Homes have noted what they free.
    OrphansTaken { orphans: Vec<DeferredFree> },
}

impl Command {
    /// Pages that it names: its weight in a batch.
    pub fn pages(&self) -> usize {
        match self {
            Command::CommitPages { homes, .. } => homes.len(),
            Command::RemovePages { pages, .. } | Command::OrphanPages { pages, .. } => pages.len(),
            Command::FreeElsewhere { debts: orphans, .. } | Command::OrphansTaken { orphans } => {
                orphans.len()
            }
            Command::MovePage { .. } | Command::AdoptPage { .. } => 1,
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// To `CommitPages`, `RemovePages`, and those about orphans.
    Done,
    Joined {
        /// Pages of the rack on regions that are gone, in all.
        pages_lost: u64,
        /// Of these, lost by this very command.
        pages_newly_lost: u64,
    },
    /// To `LeasePageIds`: the first.
    PageIds(PageId),
    /// To `SetRoot`: the address under the name now.
    Root(GAddr),
    /// To `MovePage`: where the page is now.
    Home(Resolved),
    RackState {
        rack: RackId,
        standing: RackState,
        /// Whether it was otherwise before.
        is_new: bool,
        pages_newly_lost: u64,
    },
}

/// A rack in the state.
#[derive(Clone)]
pub(super) struct Rack {
    pub(super) record: RackRecord,
    pub(super) membership: Membership,
    pub(super) pages: u64,
    pub(super) pages_lost: u64,
}

/// All that outlives the process.
#[derive(Clone)]
pub struct State {
    pub(super) pool: PoolRecord,
    pub(super) racks: BTreeMap<RackId, Rack>,
    roots: BTreeMap<String, GAddr>,
    pub(super) directory: Directory,
    pub(super) orphans: DeferredFreeTable,
}

impl State {
    /// The state of a new pool, and the writes that store it.
    pub fn create(pool_id: [u64; 2]) -> (State, Vec<StateWrite>) {
        let pool = PoolRecord {
            pool_id,
            term: 0,
            index: 0,
            page_shift: 0,
            page_next: PageId(1),
            racks: 0,
            roots: 0,
            pages: 0,
            orphans: 0,
            orphan_last: 0,
        };
        let state = State {
            pool,
            racks: BTreeMap::new(),
            roots: BTreeMap::new(),
            directory: Directory::default(),
            orphans: DeferredFreeTable::default(),
        };
        let writes = vec![state.pool_write()];
        (state, writes)
    }

    /// A new leader's term begins; the write that stores it.
    pub fn begin_term(&mut self) -> StateWrite {
        self.pool.term += 1;
        self.pool_write()
    }

    pub fn pool_id(&self) -> [u64; 2] {
        self.pool.pool_id
    }

    /// The term of the present leader.
    pub fn term(&self) -> u64 {
        self.pool.term
    }

    /// Commands applied since the pool was made.
    pub fn index(&self) -> u64 {
        self.pool.index
    }

    /// The pool's page size, once the first daemon joined.
    pub fn geometry(&self) -> Option<PageGeometry> {
        PageGeometry::new(self.pool.page_shift)
    }

    pub fn pages(&self) -> u64 {
        self.directory.pages()
    }

    /// Of these, on regions that are gone.
    pub fn pages_lost(&self) -> u64 {
        self.racks.values().map(|rack| rack.pages_lost).sum()
    }

    /// Pages and allocations that were freed in one rack and are to be freed in another.
    pub fn orphans(&self) -> u64 {
        self.orphans.waiting()
    }

    /// Names behind one, with their addresses.
    pub fn roots_after(&self, name: &str) -> impl Iterator<Item = (String, GAddr)> + '_ {
        let behind = (Bound::Excluded(name), Bound::Unbounded);
        self.roots.range::<str, _>(behind).map(|(name, addr)| (name.clone(), *addr))
    }

    pub fn roots(&self) -> u64 {
        self.roots.len() as u64
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A rack's region, or `None` if it never joined.
    pub fn region_id(&self, rack: RackId) -> Option<[u64; 2]> {
        self.racks.get(&rack).map(|rack| rack.record.region_id)
    }

    /// The racks that ever joined, in order; not alive and without free frames, which only the
    /// leader knows.
    pub fn racks(&self) -> impl Iterator<Item = RackInfo> + '_ {
        self.racks.iter().map(|(&rack, known)| self.info(rack, known))
    }

    pub fn rack(&self, rack: RackId) -> Option<RackInfo> {
        Some(self.info(rack, self.racks.get(&rack)?))
    }

    /// Of [`State::racks`], those that a call means by `rack`: a shard itself, or by a rack's
    /// number all shards of it.
    pub fn named(&self, rack: RackId) -> impl Iterator<Item = RackInfo> + '_ {
        let by_number = rack.is_valid() && !rack.is_divided();
        let meant = move |info: &RackInfo| by_number || info.rack == rack;
        self.shards_of(rack).filter(meant)
    }

    /// Of [`State::racks`], the shards of the rack that `rack` is one of.
    pub fn shards_of(&self, rack: RackId) -> impl Iterator<Item = RackInfo> + '_ {
        let all = (1..=RACK_SHARDS_MAX).flat_map(|shards| (0..shards).map(move |s| (s, shards)));
        all.filter_map(move |(shard, shards)| {
            self.rack(RackId::sharded(rack.number(), shard, shards)?)
        })
    }

    pub(super) fn info(&self, rack: RackId, Rack { record, .. }: &Rack) -> RackInfo {
        RackInfo {
            rack,
            region_id: record.region_id,
            epoch: record.epoch,
            page_shift: self.pool.page_shift,
            frame_count: record.frame_count,
            frames_free: 0,
            host: record.host.clone(),
            control: record.control.clone(),
            fabric: record.fabric.clone(),
            fabric_addr: record.fabric_addr.clone(),
            alive: false,
        }
    }

    pub fn resolve(&self, page: PageId) -> Resolved {
        let Some(home) = self.directory.get(page) else { return Resolved::Unmapped };
        if self.is_lost(&home) {
            return Resolved::Lost(home.rack);
        }
        let (rack, frame, generation) = (home.rack, home.frame, home.version);
        Resolved::Home(PageHome { page, rack, frame, generation })
    }

    /// The address under a name; null if there is none.
    pub fn root(&self, name: &str) -> GAddr {
        self.roots.get(name).copied().unwrap_or(GAddr::NULL)
    }

    /// Applies the next command of the log and appends what is to be stored. After a batch,
    /// [`State::pool_write`] has to be stored as well.
    pub fn apply(&mut self, command: Command, writes: &mut Vec<StateWrite>) -> Result<Applied> {
        self.pool.index += 1;
        match command {
            Command::JoinDaemon(info) => self.join_daemon(&info, writes),
            Command::LeasePageIds { count } => self.lease_page_ids(count),
            Command::CommitPages { rack, region_id, homes } => {
                self.commit_pages(rack, region_id, &homes, writes)
            }
            Command::RemovePages { rack, region_id, pages } => {
                self.remove_pages(rack, region_id, &pages, writes)
            }
            Command::MovePage { rack, region_id, from, to } => {
                self.move_page(rack, region_id, &from, &to, writes)
            }
            Command::AdoptPage { rack, region_id, from, to } => {
                self.adopt_page(rack, region_id, &from, &to, writes)
            }
            Command::SetRoot { name, expected, addr } => {
                self.set_root(name, expected, addr, writes)
            }
            Command::SetStanding { rack, to, pages_max } => {
                self.set_standing(rack, to, pages_max, writes)
            }
            Command::OrphanPages { rack, region_id, first, pages } => {
                self.orphan_pages(rack, region_id, first, &pages, writes)
            }
            Command::FreeElsewhere { rack, region_id, debts } => {
                self.free_elsewhere(rack, region_id, &debts, writes)
            }
            Command::OrphansTaken { orphans } => Ok(self.orphans_taken(&orphans, writes)),
        }
    }

    /// The write that stores index, term and counters.
    pub fn pool_write(&self) -> StateWrite {
        record::write(Table::Pool, record::POOL_KEY.to_vec(), &self.pool)
    }

    pub(super) fn is_lost(&self, home: &StoredHome) -> bool {
        self.racks.get(&home.rack).is_none_or(|rack| rack.record.region != home.region)
    }

    fn join_daemon(&mut self, info: &RackInfo, writes: &mut Vec<StateWrite>) -> Result<Applied> {
        let pool_shift = self.pool.page_shift;
        if pool_shift != 0 && pool_shift != info.page_shift {
            return Err(bad_region(format!(
                "it has pages of 2^{} bytes, this pool of 2^{pool_shift} bytes: make the region \
                 of rack {} anew with the pool's page size",
                info.page_shift, info.rack
            )));
        }
        let same = |(_, rack): &(&RackId, &Rack)| rack.record.region_id == info.region_id;
        if let Some((&owner, _)) = self.racks.iter().find(same).filter(|(r, _)| **r != info.rack) {
            return Err(bad_region(format!(
                "it belongs to rack {owner}; rack {} needs one of its own",
                info.rack
            )));
        }
        let membership = self.admit_region(info)?;
        let mut newly_lost = 0;
        let mut is_replaced = false;
        let mut region = 1;
        if let Some(known) = self.racks.get_mut(&info.rack) {
            region = known.record.region;
            if known.record.region_id == info.region_id {
                check_same_region(&known.record, info)?;
            } else {
                let full = || Error::Busy {
                    what: format!("regions that rack {} ever had", info.rack),
                    limit: u64::from(u32::MAX),
                };
                region = region.checked_add(1).ok_or_else(full)?;
                is_replaced = true;
                newly_lost = std::mem::take(&mut known.pages);
                known.pages_lost += newly_lost;
            }
        }
        self.pool.page_shift = info.page_shift;
        let record = RackRecord::new(info, region);
        let rack = self.racks.entry(info.rack);
        let rack = rack.or_insert_with(|| Rack {
            record: record.clone(),
            membership: Membership::default(),
            pages: 0,
            pages_lost: 0,
        });
        (rack.record, rack.membership) = (record, membership);
        writes.push(record::write_rack(info.rack, &rack.record, &rack.membership));
        let applied = Applied::Joined { pages_lost: rack.pages_lost, pages_newly_lost: newly_lost };
        self.pool.racks = self.racks.len() as u64;
        if is_replaced {
            self.forget_orphans_of(info.rack, writes);
        }
        Ok(applied)
    }

    fn lease_page_ids(&mut self, count: u64) -> Result<Applied> {
        let first = self.pool.page_next;
        let end = self.geometry().map_or(0, |g| g.page_id_max().0);
        let left = end.saturating_sub(first.0);
        if count > left {
            return Err(Error::Full {
                bytes: count,
                free_bytes: left,
                place: "page ids of the address space, counted instead of bytes".into(),
            });
        }
        self.pool.page_next = PageId(first.0 + count);
        Ok(Applied::PageIds(first))
    }

    fn commit_pages(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        homes: &[PageHome],
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let (region, frame_count) = self.present_region(rack, region_id)?;
        if !self.standing(rack).is_member() {
            return Err(Error::Denied { reason: format!("rack {rack} has left the pool") });
        }
        let mut fresh: BTreeMap<PageId, StoredHome> = BTreeMap::new();
        for asked in homes {
            let home = StoredHome {
                rack,
                role: Role::Primary,
                tier: 0,
                frame: asked.frame,
                region,
                version: asked.generation,
            };
            let page = asked.page;
            if page.0 == 0 || page >= self.pool.page_next {
                return Err(broken(rack, format!("page {page} was never given out")));
            }
            if asked.rack != rack || asked.frame.0 >= frame_count || asked.generation.0 == 0 {
                return Err(broken(rack, format!("the home of page {page} is not in its region")));
            }
            let old = self.directory.get(page).or_else(|| fresh.get(&page).copied());
            match old {
                None => {
                    fresh.insert(page, home);
                }
                Some(old) if old == home => {}
                Some(_) => return Err(broken(rack, format!("page {page} has another home"))),
            }
        }
        for (&page, home) in &fresh {
            self.directory.insert(page, *home);
            writes.push(record::write_page(page, home));
        }
        let known = self.racks.get_mut(&rack).expect("present_region found it");
        known.pages += fresh.len() as u64;
        self.pool.pages = self.directory.pages();
        Ok(Applied::Done)
    }

    fn remove_pages(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        pages: &[PageId],
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        self.present_region(rack, region_id)?;
        for &page in pages {
            if self.directory.get(page).is_some_and(|home| home.rack == rack) {
                self.forget_page(page, writes);
            }
            self.orphans.remove_page(page, rack, writes);
        }
        self.count_tables();
        Ok(Applied::Done)
    }

    /// A page of its rack is forgotten.
    pub(super) fn uncount_page(&mut self, home: &StoredHome) {
        let known = self.racks.get_mut(&home.rack).expect("a home has a rack");
        let present = home.region == known.record.region;
        *(if present { &mut known.pages } else { &mut known.pages_lost }) -= 1;
    }

    /// How much there is, to be stored with the next [`State::pool_write`].
    pub(super) fn count_tables(&mut self) {
        self.pool.pages = self.directory.pages();
        self.pool.orphans = self.orphans.count();
    }

    /// The one point that decides where a page lives. A home that is not `from`, or lost, stays.
    fn move_page(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        from: &PageHome,
        to: &PageHome,
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let (region, frame_count) = self.present_region(rack, region_id)?;
        let page = to.page;
        if from.page != page {
            return Err(broken(rack, format!("page {} moves to page {page}", from.page)));
        }
        if to.rack != rack || to.frame.0 >= frame_count || to.generation.0 == 0 {
            return Err(broken(rack, format!("the home of page {page} is not in its region")));
        }
        let is_member = self.standing(rack).is_member();
        if is_member && self.resolve(page) == Resolved::Home(*from) && from != to {
            let (frame, version) = (to.frame, to.generation);
            let home = StoredHome { rack, role: Role::Primary, tier: 0, frame, region, version };
            self.directory.insert(page, home);
            writes.push(record::write_page(page, &home));
            let old = self.racks.get_mut(&from.rack).expect("a home that is not lost has a rack");
            old.pages -= 1;
            let new = self.racks.get_mut(&rack).expect("present_region found it");
            new.pages += 1;
        }
        Ok(Applied::Home(self.resolve(page)))
    }

    /// A page that is lost with its rack's region is found in the rack's spill file: in the frame
    /// that the directory has, of a generation that the frame had then or before.
    fn adopt_page(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        from: &PageHome,
        to: &PageHome,
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let (region, frame_count) = self.present_region(rack, region_id)?;
        let page = to.page;
        let is_same = (from.page, from.rack, from.frame) == (page, rack, to.frame);
        if !is_same || to.rack != rack || to.frame.0 >= frame_count || to.generation.0 == 0 {
            return Err(broken(rack, format!("page {page} is not adopted in its own frame")));
        }
        let was_there = |home: &StoredHome| {
            let is_there = (home.rack, home.frame) == (rack, from.frame);
            is_there && self.is_lost(home) && home.version >= from.generation
        };
        if self.standing(rack).is_member()
            && self.directory.get(page).is_some_and(|h| was_there(&h))
        {
            let (frame, version) = (to.frame, to.generation);
            let home = StoredHome { rack, role: Role::Primary, tier: 0, frame, region, version };
            self.directory.insert(page, home);
            writes.push(record::write_page(page, &home));
            let known = self.racks.get_mut(&rack).expect("present_region found it");
            known.pages_lost -= 1;
            known.pages += 1;
        }
        Ok(Applied::Home(self.resolve(page)))
    }

    fn set_root(
        &mut self,
        name: String,
        expected: GAddr,
        addr: GAddr,
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let now = self.root(&name);
        if now == addr || now != expected {
            return Ok(Applied::Root(now));
        }
        if addr.is_null() {
            self.roots.remove(&name);
            writes.push(record::erase(Table::Roots, name.into_bytes()));
        } else {
            if now.is_null() && self.roots.len() >= ROOTS_MAX {
                return Err(Error::Busy { what: "table of roots".into(), limit: ROOTS_MAX as u64 });
            }
            writes.push(record::write_root(&name, addr));
            self.roots.insert(name, addr);
        }
        self.pool.roots = self.roots.len() as u64;
        Ok(Applied::Root(addr))
    }

    /// Number and size in frames of a rack's region if it is `region_id`.
    pub(super) fn present_region(&self, rack: RackId, region_id: [u64; 2]) -> Result<(u32, u32)> {
        let known = self.racks.get(&rack).ok_or(Error::NoSuchRack { rack })?;
        if known.membership.standing == RackState::Lost {
            return Err(Error::Forgotten { rack });
        }
        if known.record.region_id == region_id {
            return Ok((known.record.region, known.record.frame_count));
        }
        Err(Error::Denied { reason: format!("rack {rack} has another region by now") })
    }
}

/// Collects stored records into a [`State`].
pub struct Loader {
    pool: Option<PoolRecord>,
    state: State,
}

impl Default for Loader {
    fn default() -> Self {
        Self { pool: None, state: State::create([0; 2]).0 }
    }
}

impl Loader {
    /// Takes one stored record. Tables come in the order of [`Table::ALL`].
    pub fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let State { racks, roots, directory, orphans, .. } = &mut self.state;
        match table {
            Table::Pool if key == record::POOL_KEY => {
                self.pool = Some(record::read(table, key, value)?);
            }
            Table::Pool => return Err(record::damaged(table, "an unknown key")),
            Table::Racks => {
                let (record, membership) = record::read_rack(key, value)?;
                let rack = record::parse_rack_key(key)?;
                racks.insert(rack, Rack { record, membership, pages: 0, pages_lost: 0 });
            }
            Table::Roots => {
                let name = std::str::from_utf8(key)
                    .map_err(|_| record::damaged(table, "a name that is not UTF-8"))?;
                roots.insert(name.to_string(), record::read(table, key, value)?);
            }
            Table::Pages => {
                let (page, home) = record::read_page(key, value)?;
                let rack = racks.get_mut(&home.rack).ok_or_else(|| {
                    record::damaged(table, format!("page {page} in unknown rack {}", home.rack))
                })?;
                let lost = rack.record.region != home.region;
                *(if lost { &mut rack.pages_lost } else { &mut rack.pages }) += 1;
                directory.insert(page, home);
            }
            Table::Orphans => orphans.load(key, value)?,
        }
        Ok(())
    }

    /// The state, if all records are there.
    pub fn finish(self) -> Result<State, StateError> {
        let Self { pool, mut state } = self;
        let pool =
            pool.ok_or_else(|| record::damaged(Table::Pool, "the pool's record is missing"))?;
        let counts = [
            (Table::Racks, state.racks.len() as u64, pool.racks),
            (Table::Roots, state.roots.len() as u64, pool.roots),
            (Table::Pages, state.directory.pages(), pool.pages),
            (Table::Orphans, state.orphans.count(), pool.orphans),
        ];
        for (table, found, expected) in counts {
            if found != expected {
                let reason = format!("{found} records, {expected} were stored");
                return Err(record::damaged(table, reason));
            }
        }
        if !state.racks.is_empty() && PageGeometry::new(pool.page_shift).is_none() {
            let reason = format!("pages of 2^{} bytes", pool.page_shift);
            return Err(record::damaged(Table::Pool, reason));
        }
        state.pool = pool;
        Ok(state)
    }
}

fn check_same_region(known: &RackRecord, info: &RackInfo) -> Result<()> {
    if info.epoch < known.epoch {
        return Err(bad_region(format!(
            "its attach count {} is below {}, the one known of rack {}: this is an old copy",
            info.epoch, known.epoch, info.rack
        )));
    }
    if info.frame_count < known.frame_count {
        return Err(bad_region(format!(
            "it shrank from {} to {} frames",
            known.frame_count, info.frame_count
        )));
    }
    Ok(())
}

fn bad_region(reason: String) -> Error {
    Error::BadRegion { reason }
}

pub(super) fn broken(rack: RackId, reason: String) -> Error {
    Error::Protocol { peer: format!("daemon of rack {rack}"), reason }
}
