//! A queue of requests: up to 64 slots, in lists by bank, oldest first, with the oldest request
//! for each bank's open row marked. Nothing is allocated and nothing is searched but a bank's own
//! requests.

use super::Cycle;
use super::config::{BANKS_MAX, QUEUE_MAX};
use super::map::LineAddress;
use serde::{Deserialize, Serialize};

pub(super) const NONE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) id: u64,
    /// The number of its line.
    pub(super) line: u64,
    pub(super) arrived: Cycle,
    /// Counts all requests of the channel: the smaller, the older.
    pub(super) sequence: u64,
    pub(super) row: u32,
    pub(super) column: u32,
    pub(super) bank: u8,
    pub(super) next: u8,
    pub(super) previous: u8,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RequestQueue {
    #[serde(with = "super::array")]
    slots: [Slot; QUEUE_MAX as usize],
    used: u64,
    capacity: u32,
    #[serde(with = "super::array")]
    head: [u8; BANKS_MAX as usize],
    #[serde(with = "super::array")]
    tail: [u8; BANKS_MAX as usize],
    /// Oldest request for the open row.
    #[serde(with = "super::array")]
    hit: [u8; BANKS_MAX as usize],
    pub(super) pending: u64,
    /// Banks with requests for their open row.
    pub(super) hits: u64,
}

impl RequestQueue {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            slots: [Slot::default(); QUEUE_MAX as usize],
            used: 0,
            capacity,
            head: [NONE; BANKS_MAX as usize],
            tail: [NONE; BANKS_MAX as usize],
            hit: [NONE; BANKS_MAX as usize],
            pending: 0,
            hits: 0,
        }
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.used.count_ones()
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.used.count_ones() >= self.capacity
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The oldest request of a bank that has some.
    #[inline]
    pub(super) const fn oldest(&self, bank: usize) -> &Slot {
        &self.slots[self.head[bank] as usize]
    }

    /// The oldest request for the open row of a bank that has some.
    #[inline]
    pub(super) const fn oldest_hit(&self, bank: usize) -> &Slot {
        &self.slots[self.hit[bank] as usize]
    }

    /// Whether an older request of the bank waits for another row.
    #[inline]
    pub(super) const fn hit_overtakes(&self, bank: usize) -> bool {
        self.hit[bank] != self.head[bank]
    }

    /// The oldest request of all.
    pub(super) fn oldest_of_all(&self) -> Option<&Slot> {
        let heads = Bits(self.pending).map(|bank| self.oldest(bank));
        heads.min_by_key(|slot| slot.sequence)
    }

    /// Whether a request for that line of that bank waits.
    #[inline]
    pub(super) fn holds(&self, bank: usize, line: u64) -> bool {
        let mut at = self.head[bank];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.line == line {
                return true;
            }
            at = slot.next;
        }
        false
    }

    /// Adds a request to a queue that is not full; `hits` if the bank's open row is its row.
    #[inline]
    pub(super) fn push(&mut self, place: LineAddress, hits: bool, mut slot: Slot) {
        let at = self.used.trailing_ones() as u8;
        let bank = place.bank as usize;
        self.used |= 1 << at;
        slot.row = place.row;
        slot.column = place.column;
        slot.bank = place.bank as u8;
        slot.next = NONE;
        slot.previous = self.tail[bank];
        match self.tail[bank] {
            NONE => self.head[bank] = at,
            last => self.slots[last as usize].next = at,
        }
        self.tail[bank] = at;
        self.slots[at as usize] = slot;
        self.pending |= 1 << bank;
        if hits && self.hit[bank] == NONE {
            self.hit[bank] = at;
            self.hits |= 1 << bank;
        }
    }

    /// Takes the oldest request for a bank's open row out.
    #[inline]
    pub(super) fn take_hit(&mut self, bank: usize) -> Slot {
        let at = self.hit[bank];
        let slot = self.slots[at as usize];
        self.used &= !(1 << at);
        match slot.previous {
            NONE => self.head[bank] = slot.next,
            previous => self.slots[previous as usize].next = slot.next,
        }
        match slot.next {
            NONE => self.tail[bank] = slot.previous,
            next => self.slots[next as usize].previous = slot.previous,
        }
        if self.head[bank] == NONE {
            self.pending &= !(1 << bank);
        }
        self.find_hit(bank, slot.next, slot.row);
        slot
    }

    /// The bank's row `row` is open now.
    #[inline]
    pub(super) fn row_opened(&mut self, bank: usize, row: u32) {
        self.find_hit(bank, self.head[bank], row);
    }

    /// These banks have no open row any more.
    #[inline]
    pub(super) fn rows_closed(&mut self, banks: u64) {
        for bank in Bits(banks & self.hits) {
            self.hit[bank] = NONE;
        }
        self.hits &= !banks;
    }

    fn find_hit(&mut self, bank: usize, mut at: u8, row: u32) {
        while at != NONE && self.slots[at as usize].row != row {
            at = self.slots[at as usize].next;
        }
        self.hit[bank] = at;
        let bit = u64::from(at != NONE) << bank;
        self.hits = self.hits & !(1 << bank) | bit;
    }
}

/// The ones of a word, lowest first.
pub(super) struct Bits(pub(super) u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}
