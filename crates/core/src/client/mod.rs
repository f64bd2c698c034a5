//! The client engine: translates addresses, runs warm accesses itself, and all others as
//! operations over a [`Context`] of the runtime, which is all that they wait for. It owns the
//! translation cache, the views of mapped racks and one session a link.
//!
//! A warm access to a mapped rack is: look up the page, announce the frame in our cell, compare the
//! frame's word in the page table with the cached generation, copy, withdraw the cell. The order
//! makes it safe against a frame that is freed or moved meanwhile: the process that takes the frame
//! changes the table word first, executes a process-wide barrier, and then waits for the cells (see
//! `Mem::announce`). No message, no allocation, no system call. Source: Rcmp §5.1; deviation:
//! decision 0001.

mod alloc;
mod audit;
mod change;
mod context;
mod coupled;
mod flush;
mod held;
mod keeper;
mod locate;
mod migrate;
mod page_cache;
mod query;
mod relocate;
mod replica;
mod rrpc;
mod session;
mod share;
mod spread;
mod swaps;
mod transfer;
mod translate;
mod usage;
mod write_buffer;

pub use alloc::{Alloc, AtHome, AtRack, AtWord, Free, Placement};
pub use audit::{IsAllocated, Reclaim};
pub use context::{Context, Io, Operation};
pub use coupled::{Coupled, CoupledIo, CoupledOptions, CoupledStats};
pub use flush::{Flush, Look};
pub use held::{Dropped, HeldLock, HeldLocks, LockRange, Losses, OwedLock};
pub use keeper::{Keeper, Tended, Tending};
pub use locate::Locate;
pub use migrate::Migrate;
pub use page_cache::PageCache;
pub use query::{DaemonQuery, MasterQuery};
pub use relocate::{Relocate, RelocationOutcome, Relocator};
pub use replica::ReplicaRead;
pub use rrpc::{Brought, Calls, FetchMode, Rpc, What};
pub use session::{LinkLoss, Session, Taken};
pub use share::Share;
pub use swaps::{Swaps, WordSwap};
pub use transfer::{Access, Atomic, AtomicOp, Piece, Progress, Transfer, TransferTables};
pub use translate::Translation;
pub use usage::{UseReport, UseReports};
pub use write_buffer::{Cover, WriteBuffer};

use crate::addr::{FrameIndex, GAddr, Generation, PageGeometry, PageId, RackId};
use crate::coherence;
use crate::constants::CELLS;
use crate::error::{Error, Result};
use crate::layout::{RegionLayout, cell_offset, table_word};
use crate::placement::Order;
use crate::seam::{ByteRange, Mem, Mutation, Race, Rare, RemoteAddr};
use crate::wire::PageHome;
use translate::Translations;
use usage::Usage;

/// A connection of this handle to one rack, by index. Link 0 is the handle's own rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u16);

pub const OWN: LinkId = LinkId(0);

/// A rack's memory mapped here, with the slot of the cells that announce our accesses.
#[derive(Clone, Debug)]
pub struct RackView<M> {
    pub pages: M,
    /// Page table section, read-only.
    pub table: M,
    pub slot: M,
    pub layout: RegionLayout,
}

impl<M: Mem> RackView<M> {
    /// Whether this is another host than the daemon's, and no hardware keeps the two coherent: then
    /// atomics are the daemon's.
    #[inline(always)]
    pub fn is_apart(&self) -> bool {
        !self.slot.is_coherent()
    }

    /// Announces a frame in a cell, also to a daemon on another host.
    #[inline(always)]
    fn announce(&self, cell: u32, frame: FrameIndex) {
        self.slot.announce(cell_offset(cell), u64::from(frame.0) + 1);
        coherence::show(&self.slot, Mutation::HideAnnouncement, cell_offset(cell), 8);
    }

    /// Withdraws what a cell announces.
    #[inline(always)]
    pub fn withdraw(&self, cell: u32) {
        coherence::store(&self.slot, Mutation::HideWithdrawal, cell_offset(cell), 0);
    }

    /// Runs `access` on a range of the pages in an announced frame.
    #[inline(always)]
    fn touch<R>(&self, kind: Access, range: ByteRange, access: impl FnOnce(&M) -> R) -> R {
        if self.pages.is_coherent() {
            return access(&self.pages);
        }
        match kind {
            Access::Read => coherence::reading(&self.pages, range, access),
            Access::Write => coherence::writing(&self.pages, range, access),
        }
    }
}

/// How a link reaches its rack.
#[derive(Clone, Debug)]
pub enum Reach<M> {
    Mapped(RackView<M>),
    /// One-sided operations of the fabric.
    OneSided(RegionLayout),
}

#[derive(Debug)]
struct LinkState<M> {
    rack: RackId,
    reach: Reach<M>,
    /// How often its region was replaced.
    regions: u32,
}

/// The state of one client handle.
#[derive(Debug)]
pub struct Client<M> {
    geometry: PageGeometry,
    own_rack: RackId,
    translations: Translations,
    usage: Usage,
    links: Vec<LinkState<M>>,
    /// The racks of ranges of page ids, for guesses.
    ranges: rrpc::Ranges,
    order: Order,
    /// Whether the next allocation that alternates is the own rack's.
    own_turn: bool,
    /// Homes of pages were recorded since `take_learnt` was called last.
    has_learnt: bool,
    /// Where replicas are of pages that were written to.
    known: spread::Known,
    changes: change::Changes,
}

/// Accesses of a batch that ask for their lines together: enough to cover the latency of far
/// memory, few enough for the line fill buffers of a core not to be overrun for long.
const BATCH_GROUP: usize = 32;

/// Whether an announced frame is the page's home still. The last `if`s are constants in the real
/// world.
#[inline(always)]
fn is_home<M: Mem>(view: &RackView<M>, entry: &Translation, kind: Access) -> bool {
    let word = coherence::load(&view.table, Mutation::KeepTableLine, table_word(entry.frame));
    let same = word == entry.generation.0;
    if !same {
        view.slot.met(Race::GenerationChanged);
    }
    let unchecked = match kind {
        Access::Read => Mutation::SkipEpochCheckRead,
        Access::Write => Mutation::SkipValidationWrite,
    };
    if view.slot.mutated(unchecked) {
        return true;
    }
    same && !view.slot.rare(Rare::TranslationStale)
}

#[inline(always)]
fn withdraw<M: Mem>(last: Option<(LinkId, &RackView<M>)>) {
    if let Some((_, view)) = last {
        view.withdraw(0);
    }
}

/// A pinned piece of a mapped page.
#[derive(Debug)]
pub struct Pinned<'a, M> {
    pub view: &'a RackView<M>,
    /// The link to the rack.
    pub link: LinkId,
    /// Offset of the piece in the pages section, bytes.
    pub offset: u64,
    /// What was pinned: its table word changes when the page is wanted elsewhere.
    pub entry: Translation,
}

/// Why a warm access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The page has no (valid) translation: locate it and try again.
    Unknown,
    /// The page is reached through the fabric: use a [`Transfer`].
    OneSided(LinkId, RemoteAddr),
    /// The access does not fit into its page: split it.
    CrossesPage,
    /// The page is shared with replicas: a [`Transfer`] writes to all of them, or the daemon behind
    /// the link does; [`Recall`] makes it a page as others.
    ///
    /// [`Recall`]: crate::wire::Request::Recall
    Shared(LinkId),
    /// An atomic, or a store of a word, on memory at home on another host that sees our stores only
    /// line by line: the daemon behind the link does it.
    Apart(LinkId),
}

impl<M: Mem> Client<M> {
    /// A handle of `own_rack` with `own` as link 0 and with room for `translations` pages (rounded
    /// up to a power of two).
    pub fn new(own_rack: RackId, own: Reach<M>, translations: u32) -> Self {
        let geometry = match &own {
            Reach::Mapped(view) => view.layout.pages,
            Reach::OneSided(layout) => layout.pages,
        };
        Self {
            geometry,
            own_rack,
            translations: Translations::new(translations),
            usage: Usage::default(),
            links: vec![LinkState { rack: own_rack, reach: own, regions: 0 }],
            ranges: rrpc::Ranges::default(),
            order: Order::default(),
            own_turn: true,
            has_learnt: false,
            known: spread::Known::default(),
            changes: change::Changes::default(),
        }
    }

    /// When allocations that name no rack ask the own one, as the master's welcome said.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Sets [`Client::order`]: before an allocation, as the master said last.
    pub fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// Whether it is the own rack's turn; then it is the others', and so on.
    fn take_turn(&mut self) -> bool {
        let own_turn = self.own_turn;
        self.own_turn = !own_turn;
        own_turn
    }

    #[inline]
    pub fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    pub fn own_rack(&self) -> RackId {
        self.own_rack
    }

    /// The link to a rack, if there is one.
    pub fn link_of(&self, rack: RackId) -> Option<LinkId> {
        let index = self.links.iter().position(|link| link.rack == rack)?;
        Some(LinkId(u16::try_from(index).expect("links are bounded by RACKS_MAX")))
    }

    /// The shard to ask for new memory or a page in `rack`: itself if it is linked or a shard
    /// is named, else the first shard of it that is linked. `None` if there is no link yet.
    pub fn home_in(&self, rack: RackId) -> Option<RackId> {
        if self.link_of(rack).is_some() {
            return Some(rack);
        }
        let mut linked = self.links.iter().map(|link| link.rack);
        linked.find(|linked| !rack.is_divided() && linked.same_rack(rack))
    }

    /// The rack behind a link.
    pub fn rack_of(&self, link: LinkId) -> RackId {
        self.links[link.0 as usize].rack
    }

    /// How a link reaches its rack.
    pub fn reach(&self, link: LinkId) -> &Reach<M> {
        &self.links[link.0 as usize].reach
    }

    /// Adds the link to another rack, or replaces how a known one is reached (after a restart of
    /// its daemon). Refuses a rack with other pages.
    pub fn add_link(&mut self, rack: RackId, reach: Reach<M>) -> Result<LinkId> {
        let layout = match &reach {
            Reach::Mapped(view) => view.layout,
            Reach::OneSided(layout) => *layout,
        };
        if layout.pages != self.geometry {
            return Err(Error::BadRegion {
                reason: format!(
                    "rack {rack} has pages of {} bytes, ours have {} bytes",
                    layout.pages.page_bytes(),
                    self.geometry.page_bytes()
                ),
            });
        }
        if let Some(link) = self.link_of(rack) {
            self.links[link.0 as usize].reach = reach;
            self.show_changes();
            return Ok(link);
        }
        self.links.push(LinkState { rack, reach, regions: 0 });
        Ok(LinkId(u16::try_from(self.links.len() - 1).expect("links are bounded by RACKS_MAX")))
    }

    /// Forgets every translation through a link, after its region was replaced.
    pub fn forget_link(&mut self, link: LinkId) {
        self.translations.forget_link(link);
        let regions = &mut self.links[link.0 as usize].regions;
        *regions = regions.wrapping_add(1);
    }

    /// How often the region behind a link was replaced: keys of the one before may open frames of
    /// the next.
    pub fn regions_of(&self, link: LinkId) -> u32 {
        self.links[link.0 as usize].regions
    }

    /// The master does not know a rack any more: what is known of its pages is forgotten, so that
    /// an operation that needs them asks where they are.
    pub fn forget_rack(&mut self, rack: RackId) {
        if let Some(link) = self.link_of(rack) {
            self.forget_link(link);
        }
    }

    /// What the cache knows of a page.
    #[inline]
    pub fn translation(&self, page: PageId) -> Option<&Translation> {
        self.translations.get(page)
    }

    /// Records where pages live. Homes outside the link's region are refused.
    pub fn install(&mut self, link: LinkId, homes: &[PageHome]) -> Result<()> {
        self.has_learnt |= !homes.is_empty();
        if let (Reach::OneSided(_), Some(home)) = (self.reach(link), homes.first()) {
            self.ranges.note(home.page, link);
        }
        let layout = match &self.links[link.0 as usize].reach {
            Reach::Mapped(view) => view.layout,
            Reach::OneSided(layout) => *layout,
        };
        // The first page is the one that was asked for; others were looked up ahead.
        let kept = if self.rare(Rare::TranslationConflict) { 1 } else { homes.len() };
        for home in homes.iter().take(kept).rev() {
            let known = home.frame.0 < layout.frame_count && home.generation != Generation(0);
            if !known && !self.mutated(Mutation::TrustPeers) {
                return Err(Error::Protocol {
                    peer: format!("rack {}", self.rack_of(link)),
                    reason: format!(
                        "page {} in frame {}, which is not there",
                        home.page, home.frame
                    ),
                });
            }
            self.translations.put(Translation {
                page: home.page,
                generation: home.generation,
                base: layout.frame_offset(home.frame),
                frame: home.frame,
                link,
            });
        }
        Ok(())
    }

    /// Whether homes of pages were recorded since the last call: then a runtime with locks on its
    /// handle asks [`HeldLocks::stray`] before it goes on with what it does.
    pub fn take_learnt(&mut self) -> bool {
        std::mem::take(&mut self.has_learnt)
    }

    /// Forgets where a page lives.
    pub fn forget(&mut self, page: PageId) {
        self.translations.forget(page);
    }

    /// The home that the cache knows of a page.
    pub fn home_of(&self, page: PageId) -> Option<PageHome> {
        let Translation { generation, frame, link, .. } = *self.translations.get(page)?;
        Some(PageHome { page, rack: self.rack_of(link), frame, generation })
    }

    /// Forgets a page that was not where it was thought to be; where that was, for
    /// [`Locate::after`].
    pub fn forget_stale(&mut self, page: PageId) -> Option<PageHome> {
        let stale = self.home_of(page);
        self.forget(page);
        stale
    }

    /// Runs `access` on a range of a mapped frame under the access protocol. `None` if the frame is
    /// not the page's home any more: nothing was touched.
    #[inline(always)]
    fn guarded<R>(
        view: &RackView<M>,
        entry: &Translation,
        kind: Access,
        range: ByteRange,
        access: impl FnOnce(&M) -> R,
    ) -> Option<R> {
        view.announce(0, entry.frame);
        let valid = is_home(view, entry, kind);
        let result = valid.then(|| view.touch(kind, range, access));
        view.withdraw(0);
        result
    }

    /// Looks `bytes` bytes at `addr` up and runs `access(pages, offset)` if they are mapped here.
    #[inline(always)]
    fn warm<R>(
        &self,
        addr: GAddr,
        bytes: u64,
        kind: Access,
        access: impl FnOnce(&M, u64) -> R,
    ) -> std::result::Result<R, Miss> {
        let offset = self.geometry.offset(addr);
        let index = self.translations.index(self.geometry.page(addr));
        let entry = self.translations.at(index);
        if entry.page != self.geometry.page(addr) {
            return Err(Miss::Unknown);
        }
        if offset + bytes > self.geometry.page_bytes()
            && !self.mutated(Mutation::CrossPageUnchecked)
        {
            return Err(Miss::CrossesPage);
        }
        if kind == Access::Write && entry.generation.is_shared() {
            return Err(Miss::Shared(entry.link));
        }
        match &self.links[entry.link.0 as usize].reach {
            Reach::Mapped(view) => {
                if self.usage.is_on() {
                    self.usage.note(&self.translations, index, kind);
                }
                let at = entry.base + offset;
                let range = ByteRange { offset: at, bytes };
                Self::guarded(view, entry, kind, range, |pages| access(pages, at))
                    .ok_or(Miss::Unknown)
            }
            Reach::OneSided(_) => Err(Miss::OneSided(
                entry.link,
                RemoteAddr { offset: entry.base + offset, key: entry.generation },
            )),
        }
    }

    /// Reads within one page of a mapped rack.
    #[inline]
    pub fn read_warm(&self, addr: GAddr, to: &mut [u8]) -> std::result::Result<(), Miss> {
        self.warm(addr, to.len() as u64, Access::Read, |pages, offset| pages.copy_out(offset, to))
    }

    /// Writes within one page of a mapped rack.
    #[inline]
    pub fn write_warm(&self, addr: GAddr, from: &[u8]) -> std::result::Result<(), Miss> {
        self.warm(addr, from.len() as u64, Access::Write, |pages, offset| {
            pages.copy_in(offset, from)
        })
    }

    /// Loads an aligned word of a mapped rack.
    #[inline]
    pub fn load_warm(&self, addr: GAddr) -> std::result::Result<u64, Miss> {
        self.warm(addr, 8, Access::Read, |pages, offset| pages.load(offset))
    }

    /// Stores an aligned word of a mapped rack.
    #[inline]
    pub fn store_warm(&self, addr: GAddr, value: u64) -> std::result::Result<(), Miss> {
        self.check_near(addr)?;
        self.warm(addr, 8, Access::Write, |pages, offset| pages.store(offset, value))
    }

    /// Compares and swaps an aligned word of a mapped rack with our own processor: the rack's
    /// memory is one coherence domain. Inner `Err` carries the value that was there.
    #[inline]
    pub fn cas_warm(
        &self,
        addr: GAddr,
        expected: u64,
        new: u64,
    ) -> std::result::Result<std::result::Result<u64, u64>, Miss> {
        self.check_near(addr)?;
        self.warm(addr, 8, Access::Write, |pages, offset| {
            pages.compare_exchange(offset, expected, new)
        })
    }

    /// Adds to an aligned word of a mapped rack; the old value.
    #[inline]
    pub fn fetch_add_warm(&self, addr: GAddr, n: u64) -> std::result::Result<u64, Miss> {
        self.check_near(addr)?;
        self.warm(addr, 8, Access::Write, |pages, offset| pages.fetch_add(offset, n))
    }

    /// Whether this handle's host is another one than its rack's daemon's, and no hardware keeps
    /// the two coherent.
    #[inline(always)]
    pub fn is_apart(&self) -> bool {
        self.view(OWN).is_some_and(RackView::is_apart)
    }

    /// Refuses what only a processor of the page's home may do with a word: its line may be
    /// written by other hosts meanwhile, and goes back as a whole.
    #[inline(always)]
    fn check_near(&self, addr: GAddr) -> std::result::Result<(), Miss> {
        if !self.is_apart() || self.mutated(Mutation::AtomicsApart) {
            return Ok(());
        }
        let entry = self.translations.get(self.geometry.page(addr)).ok_or(Miss::Unknown)?;
        match self.view(entry.link) {
            Some(view) if view.is_apart() => Err(Miss::Apart(entry.link)),
            _ => Ok(()),
        }
    }

    /// Runs many accesses of mapped racks: the lines of a group are asked for together, then each
    /// access runs under the access protocol. The cell of one access is overwritten by the next,
    /// which withdraws it just as well. What is not mapped and warm is appended to `missed`.
    #[inline]
    pub fn batch_warm<T>(
        &self,
        kind: Access,
        ops: &mut [T],
        at: impl Fn(&T) -> (GAddr, u64),
        mut access: impl FnMut(&M, u64, &mut T),
        missed: &mut Vec<u32>,
    ) {
        // The rack of the access before: most batches stay in one.
        let mut last: Option<(LinkId, &RackView<M>)> = None;
        for (group, ops) in ops.chunks_mut(BATCH_GROUP).enumerate() {
            let mut plans = [None; BATCH_GROUP];
            for (plan, op) in plans.iter_mut().zip(ops.iter()) {
                let (addr, bytes) = at(op);
                *plan = self.plan(addr, bytes, kind);
            }
            for (index, (plan, op)) in plans.iter().zip(ops).enumerate() {
                let (_, bytes) = at(op);
                let done = plan.is_some_and(|(entry, offset)| {
                    let view = match last {
                        Some((link, view)) if link == entry.link => view,
                        _ => {
                            withdraw(last);
                            let Some(view) = self.view(entry.link) else { return false };
                            last = Some((entry.link, view));
                            view
                        }
                    };
                    view.announce(0, entry.frame);
                    let valid = is_home(view, entry, kind);
                    if valid {
                        let range = ByteRange { offset, bytes };
                        view.touch(kind, range, |pages| access(pages, offset, op));
                    }
                    valid
                });
                if !done {
                    missed.push((group * BATCH_GROUP + index) as u32);
                }
            }
        }
        withdraw(last);
    }

    /// Where a mapped access within one page goes; its first line is asked for.
    #[inline(always)]
    fn plan(&self, addr: GAddr, bytes: u64, kind: Access) -> Option<(&Translation, u64)> {
        let in_page = self.geometry.offset(addr);
        let index = self.translations.index(self.geometry.page(addr));
        let entry = self.translations.at(index);
        if entry.page != self.geometry.page(addr) || in_page + bytes > self.geometry.page_bytes() {
            return None;
        }
        if kind == Access::Write && entry.generation.is_shared() {
            return None;
        }
        let offset = entry.base + in_page;
        self.view(entry.link)?.pages.prefetch(offset);
        if self.usage.is_on() {
            self.usage.note(&self.translations, index, kind);
        }
        Some((entry, offset))
    }

    /// Counts an access over the fabric, if accesses are counted.
    pub(crate) fn note_remote(&self, addr: GAddr, kind: Access) {
        let page = self.geometry.page(addr);
        let index = self.translations.index(page);
        if self.usage.is_on() && self.translations.at(index).page == page {
            self.usage.note(&self.translations, index, kind);
        }
    }

    #[inline(always)]
    fn view(&self, link: LinkId) -> Option<&RackView<M>> {
        match &self.links[link.0 as usize].reach {
            Reach::Mapped(view) => Some(view),
            Reach::OneSided(_) => None,
        }
    }

    /// Announces the frame of a mapped page in a cell of its own, so that it stays where it is
    /// until the cell is withdrawn. The access must lie within the page.
    pub fn pin(
        &self,
        addr: GAddr,
        bytes: u64,
        cell: u32,
    ) -> std::result::Result<Pinned<'_, M>, Miss> {
        assert!((1..CELLS).contains(&cell), "cell 0 is for accesses, there are {CELLS}");
        let in_page = self.geometry.offset(addr);
        let Some(entry) = self.translations.get(self.geometry.page(addr)) else {
            return Err(Miss::Unknown);
        };
        if in_page + bytes > self.geometry.page_bytes() {
            return Err(Miss::CrossesPage);
        }
        if entry.generation.is_shared() {
            return Err(Miss::Shared(entry.link));
        }
        let offset = entry.base + in_page;
        let Reach::Mapped(view) = &self.links[entry.link.0 as usize].reach else {
            return Err(Miss::OneSided(entry.link, RemoteAddr { offset, key: entry.generation }));
        };
        // Its holder accesses it freely, and nothing would write that back.
        if !view.pages.is_coherent() {
            return Err(Miss::Apart(entry.link));
        }
        view.announce(cell, entry.frame);
        if !is_home(view, entry, Access::Read) {
            view.withdraw(cell);
            return Err(Miss::Unknown);
        }
        Ok(Pinned { view, link: entry.link, offset, entry: *entry })
    }

    /// Whether a test leaves a safeguard out. Asked of the own rack's slot: a handle without one
    /// is never asked for anything.
    pub(crate) fn mutated(&self, mutation: Mutation) -> bool {
        self.view(OWN).is_some_and(|view| view.slot.mutated(mutation))
    }

    /// Whether a rare branch is taken now.
    pub(crate) fn rare(&self, rare: Rare) -> bool {
        self.view(OWN).is_some_and(|view| view.slot.rare(rare))
    }

    pub(crate) fn met(&self, race: Race) {
        if let Some(view) = self.view(OWN) {
            view.slot.met(race);
        }
    }

    /// Bytes from `addr` to the end of its page.
    #[inline]
    pub fn bytes_in_page(&self, addr: GAddr) -> u64 {
        self.geometry.page_bytes() - self.geometry.offset(addr)
    }

    /// Checks that an access stays in the address space and does not start at null.
    #[inline]
    pub fn check(&self, addr: GAddr, bytes: u64) -> Result<()> {
        if self.geometry.page(addr) == PageId(0) {
            return Err(Error::NotMapped { addr });
        }
        if addr.checked_add(bytes).is_none() {
            return Err(Error::OutOfBounds { addr, bytes, limit_bytes: u64::MAX - addr.0 });
        }
        Ok(())
    }

    /// Checks that an atomic's word is aligned.
    #[inline]
    pub fn check_atomic(&self, addr: GAddr) -> Result<()> {
        if !addr.0.is_multiple_of(8) {
            return Err(Error::Misaligned { addr, align_bytes: 8 });
        }
        self.check(addr, 8)
    }
}

#[cfg(test)]
mod tests;
