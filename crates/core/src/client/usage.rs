//! How often this handle used each page that it knows, for the daemon that decides where pages
//! live. Counters lie beside the translations, so that counting an access is an increment in a
//! line that it has read anyway; which entries have counts is a list. Every so many accesses the
//! runtime looks at the clock ([`UseReports`]), and every few milliseconds it sends a report to the
//! own rack's daemon, without waiting for an answer. Off unless the daemon says that its rack moves
//! pages: then an access costs one comparison more.
//!
//! A report is a hint. Counts of a page with a translation that is dropped or displaced are lost,
//! and so are those of a report that does not arrive.

use super::translate::{LISTED, Translations};
use super::{Access, Client, LinkId, OWN};
use crate::constants::{USE_ACCESSES_MAX, USE_ACCESSES_MIN, USE_NS, USE_PAGES_MAX, USE_SILENCE_NS};
use crate::heat::{Counts, PageUse};
use crate::seam::{Mem, Mutation, Nanos};
use std::cell::{Cell, RefCell};

const READ: u64 = 1;
const WRITE: u64 = 1 << 32;

fn counts(counter: u64) -> Counts {
    Counts { reads: counter as u32, writes: ((counter & !LISTED) >> 32) as u32 }
}

/// What is counted, and when it is to be told.
#[derive(Debug)]
pub(super) struct Usage {
    is_on: bool,
    /// Accesses until the next look; stays at its largest value while nothing is counted.
    left: Cell<u32>,
    /// Entries with the mark, each once. As long as the cache at most, allocated when counting
    /// begins.
    listed: RefCell<Vec<u32>>,
}

impl Default for Usage {
    fn default() -> Self {
        Self { is_on: false, left: Cell::new(u32::MAX), listed: RefCell::default() }
    }
}

impl Usage {
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    #[inline(always)]
    pub(super) fn note(&self, translations: &Translations, index: usize, kind: Access) {
        let counter = translations.counter(index);
        let before = match counter.get() {
            0 => self.list(index),
            before => before,
        };
        counter.set(before.wrapping_add(if kind == Access::Read { READ } else { WRITE }));
        self.left.set(self.left.get().saturating_sub(1));
    }

    #[cold]
    #[inline(never)]
    fn list(&self, index: usize) -> u64 {
        self.listed.borrow_mut().push(index as u32);
        LISTED
    }
}

impl<M: Mem> Client<M> {
    /// Counts, or does not: as the own rack's daemon says in its welcome.
    pub fn count_use(&mut self, is_on: bool) {
        if is_on == self.usage.is_on {
            return;
        }
        let mut listed = std::mem::take(&mut self.usage).listed.into_inner();
        for index in listed.drain(..) {
            self.translations.counter(index as usize).set(0);
        }
        if is_on {
            listed.reserve_exact(self.translations.len());
            let left = Cell::new(USE_ACCESSES_MIN);
            self.usage = Usage { is_on, left, listed: RefCell::new(listed) };
        }
    }

    /// Whether it is time for [`UseReports::look`].
    #[inline(always)]
    pub fn use_is_due(&self) -> bool {
        self.usage.left.get() == 0
    }

    /// The next look is so many accesses away.
    fn look_after(&mut self, accesses: u32) {
        if self.usage.is_on {
            let each = self.mutated(Mutation::ClockEachAccess);
            self.usage.left.set(if each { 1 } else { accesses });
        }
    }

    /// The pages that were used most since they were last in a report, at most
    /// [`USE_PAGES_MAX`], and forgets their counts. Looks at every page that was used.
    pub fn take_use(&mut self) -> Vec<PageUse> {
        self.take_use_by_home().0
    }

    /// As [`Client::take_use`], and beside them those at home in other shards of the own rack:
    /// they are for the daemons there, since a page's home must know how its rack uses it.
    pub fn take_use_by_home(&mut self) -> (Vec<PageUse>, Vec<(LinkId, Vec<PageUse>)>) {
        let mut listed = self.usage.listed.borrow_mut();
        let count_of = |index: &u32| {
            let counts = counts(self.translations.counter(*index as usize).get());
            (std::cmp::Reverse(counts.total()), *index)
        };
        let first = USE_PAGES_MAX.min(listed.len());
        if first < listed.len() {
            listed.select_nth_unstable_by_key(first, count_of);
        }
        listed[..first].sort_unstable_by_key(count_of);
        let mut own = Vec::with_capacity(first);
        let mut siblings: Vec<(LinkId, Vec<PageUse>)> = Vec::new();
        for index in listed.drain(..first) {
            let entry = self.translations.at(index as usize);
            let counts = counts(self.translations.counter(index as usize).replace(0));
            if counts.total() == 0 {
                continue;
            }
            let used = PageUse { page: entry.page, counts };
            let rack = self.links[usize::from(entry.link.0)].rack;
            if entry.link == OWN || !rack.same_rack(self.own_rack) {
                own.push(used);
                continue;
            }
            match siblings.iter_mut().find(|(link, _)| *link == entry.link) {
                Some((_, pages)) => pages.push(used),
                None => siblings.push((entry.link, vec![used])),
            }
        }
        (own, siblings)
    }
}

/// When a handle tells its daemon what it used. Looks are as many accesses apart as there will be
/// until the next report at the present rate, within bounds: so a fast handle hardly ever looks,
/// and of a slow one little is unknown.
#[derive(Debug, Default)]
pub struct UseReports {
    next: Nanos,
    said: Nanos,
    looked: Nanos,
    /// Accesses from the last look to this one.
    accesses: u32,
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub struct UseReport {
    /// The pages, for the own daemon.
    pub pages: Vec<PageUse>,
    /// Pages of other shards of the own rack, for the daemons there.
    pub siblings: Vec<(LinkId, Vec<PageUse>)>,
    /// The daemon has said nothing for long: it is to be asked and waited for, a moment, so that a
    /// handle that needs no daemon for its accesses finds the next one.
    pub waits: bool,
}

impl UseReports {
    /// Looks whether a report is to go out now. `is_heard` says whether the daemon has answered
    /// the last one.
    pub fn look<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        now: Nanos,
        is_heard: bool,
    ) -> Option<UseReport> {
        let is_silent = !is_heard && now >= self.said.saturating_add(USE_SILENCE_NS);
        let says = now >= self.next && (is_heard || is_silent);
        if says {
            (self.next, self.said) = (now + USE_NS, now);
        }
        let elapsed = now.saturating_sub(self.looked).max(1);
        let left = self.next.saturating_sub(now);
        let accesses = u128::from(self.accesses) * u128::from(left) / u128::from(elapsed);
        let accesses = u32::try_from(accesses).unwrap_or(u32::MAX);
        self.accesses = accesses.clamp(USE_ACCESSES_MIN, USE_ACCESSES_MAX);
        self.looked = now;
        client.look_after(self.accesses);
        says.then(|| {
            let (pages, siblings) = client.take_use_by_home();
            UseReport { pages, siblings, waits: is_silent }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::translate::reset;

    #[test]
    fn reads_and_writes_share_a_word_and_the_mark_is_neither() {
        let counter = LISTED + 3 * READ + 5 * WRITE;
        assert_eq!(counts(counter), Counts { reads: 3, writes: 5 });
        let cell = Cell::new(counter);
        reset(&cell);
        assert_eq!((counts(cell.get()), cell.get()), (Counts::default(), LISTED));
    }
}
