//! How much a page is used. Owns one [`PageHeat`] of 32 bytes a page, kept in a [`HeatTable`] of
//! bounded size; accesses are noted, one by one or many at once, and [`crate::policy`] asks.
//! Integers only: the same notes give the same heat on every machine. Time is handed in as
//! nanoseconds of one monotonic clock. Client handles count ([`PageUse`]) and tell their rack's
//! daemon, which keeps the table.
//!
//! Source: Rcmp §5.3. The paper's rule, which [`PageHeat::note`] follows exactly: at an access `Δt`
//! is the time since the last one; if `Δt > Tl` the counters are zeroed; the heat is
//! `e^(-λΔt) (Cur_r + Cur_w) + 1`; *then* `Cur_r` or `Cur_w` grows by one. So the `+ 1` is the
//! access itself, the n-th access of a burst finds heat n, and with `Hp = 4` the fifth is the first
//! that is hot.
//! What decays is the heat, not the counters: they only grow until a pause longer than `Tl`.
//! Therefore heat says whether a page was used at all lately, not how often per second; for rates
//! there are the counters of the last two windows, which are ours.

mod decay;
mod table;

pub use decay::{ONE_Q32, decay_q32, exp2_neg_q32};
pub use table::{HeatTable, Noted, TableTooSmall};

use crate::addr::PageId;
use crate::constants::{HEAT_WINDOW_MS, NS_PER_MS};
use serde::{Deserialize, Serialize};

/// The heat of a page that is not used: what its first access finds.
pub const HEAT_MILLI_MIN: u64 = 1000;

/// Constants of the formula. Fractions are integers in thousandths or millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatParams {
    /// `Tl`: after a longer pause the counters start again, milliseconds.
    pub expiry_ms: u32,
    /// `λ` in millionths per second.
    pub decay_per_second_micro: u32,
    /// `Hp` in thousandths: a page is hot above it.
    pub hot_milli: u64,
    /// `Rrw` in thousandths: a hot page is read-hot if `Cur_r / Cur_w` is above it.
    pub read_hot_milli: u32,
    /// Length of a window of the recent counters, milliseconds; 0 counts as 1.
    pub window_ms: u32,
}

impl Default for HeatParams {
    /// The paper's values: 100 s, 0.04 per second, 4, 0.9.
    fn default() -> Self {
        Self {
            expiry_ms: 100_000,
            decay_per_second_micro: 40_000,
            hot_milli: 4000,
            read_hot_milli: 900,
            window_ms: HEAT_WINDOW_MS,
        }
    }
}

impl HeatParams {
    fn window_ns(&self) -> u64 {
        u64::from(self.window_ms.max(1)) * NS_PER_MS
    }

    fn expiry_ns(&self) -> u64 {
        u64::from(self.expiry_ms) * NS_PER_MS
    }
}

/// Accesses by kind; both counts stop at their largest value instead of wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub reads: u32,
    pub writes: u32,
}

impl Counts {
    pub fn total(self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }

    /// The sum, each kind for itself.
    pub fn plus(self, more: Counts) -> Counts {
        Counts {
            reads: self.reads.saturating_add(more.reads),
            writes: self.writes.saturating_add(more.writes),
        }
    }
}

/// Use of one page by one client handle since it said so last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageUse {
    pub page: PageId,
    pub counts: Counts,
}

/// Accesses of a page in the last one to two windows, and how long those lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    pub counts: Counts,
    /// The time in which it was counted, nanoseconds.
    pub span_ns: u64,
}

impl Recent {
    /// Accesses per second, in thousandths; 0 over no time.
    pub fn per_second_milli(self) -> u64 {
        let scaled = u128::from(self.counts.total()) * 1_000_000_000_000;
        let rate = scaled.checked_div(u128::from(self.span_ns)).unwrap_or(0);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// What is remembered of one page by one observer (a client, or a daemon for its rack).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageHeat {
    /// `lastTime`.
    last_ns: u64,
    /// `Cur_r` and `Cur_w`.
    counts: Counts,
    /// Counts of the window in which `last_ns` lies.
    window: Counts,
    /// Counts of the window before.
    window_before: Counts,
}

// Source: Rcmp §5.3 ("about 32 bytes a page").
const _: () = assert!(size_of::<PageHeat>() <= 32);

impl PageHeat {
    /// Counts accesses that happened at `now_ns`, in O(1), and returns the heat in thousandths that
    /// the last of them found. The same as noting them one by one. No accesses change nothing. A
    /// time before the last one counts as the last one.
    pub fn note(&mut self, params: &HeatParams, more: Counts, now_ns: u64) -> u64 {
        // Of several, those before the last happened at the same time: nothing has decayed.
        let found = if more.total() > 1 { 0 } else { self.heat_milli(params, now_ns) };
        if more.total() == 0 {
            return found;
        }
        self.roll(params, now_ns);
        if self.expired(params, now_ns) {
            self.counts = Counts::default();
        }
        let before = self.counts.total();
        self.counts = self.counts.plus(more);
        self.window = self.window.plus(more);
        self.last_ns = self.last_ns.max(now_ns);
        match more.total() {
            1 => found,
            count => (before + count) * 1000,
        }
    }

    /// Counts `count` reads. As [`PageHeat::note`].
    pub fn note_reads(&mut self, params: &HeatParams, count: u32, now_ns: u64) -> u64 {
        self.note(params, Counts { reads: count, writes: 0 }, now_ns)
    }

    /// Counts `count` writes. As [`PageHeat::note`].
    pub fn note_writes(&mut self, params: &HeatParams, count: u32, now_ns: u64) -> u64 {
        self.note(params, Counts { reads: 0, writes: count }, now_ns)
    }

    /// The heat in thousandths that an access at `now_ns` would find, at least [`HEAT_MILLI_MIN`].
    pub fn heat_milli(&self, params: &HeatParams, now_ns: u64) -> u64 {
        self.weight_milli(params, now_ns) + HEAT_MILLI_MIN
    }

    /// The heat without its `+ 1`: 0 for a page that is not used or has expired.
    pub fn weight_milli(&self, params: &HeatParams, now_ns: u64) -> u64 {
        if self.expired(params, now_ns) {
            return 0;
        }
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        let alpha_q32 = decay_q32(u64::from(params.decay_per_second_micro), elapsed_ns);
        let weight = u128::from(self.counts.total() * 1000) * u128::from(alpha_q32);
        (weight >> 32) as u64
    }

    /// Whether an access at `now_ns` would find the page hot. Source: Rcmp §5.3 (heat above `Hp`).
    pub fn is_hot(&self, params: &HeatParams, now_ns: u64) -> bool {
        self.heat_milli(params, now_ns) > params.hot_milli
    }

    /// `Cur_r` and `Cur_w` as an access at `now_ns` would find them.
    pub fn counts(&self, params: &HeatParams, now_ns: u64) -> Counts {
        if self.expired(params, now_ns) { Counts::default() } else { self.counts }
    }

    /// Accesses in the window of `now_ns` and the one before it.
    pub fn recent(&self, params: &HeatParams, now_ns: u64) -> Recent {
        let mut rolled = *self;
        rolled.roll(params, now_ns);
        let window_ns = params.window_ns();
        let into_ns = now_ns.max(self.last_ns) % window_ns;
        Recent {
            counts: rolled.window.plus(rolled.window_before),
            span_ns: window_ns + into_ns.max(1),
        }
    }

    /// Forgets every access, reads and writes, counters and windows.
    pub fn clear(&mut self) {
        *self = Self { last_ns: self.last_ns, ..Self::default() };
    }

    fn expired(&self, params: &HeatParams, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) > params.expiry_ns()
    }

    /// Moves the window counters on to the window of `now_ns`.
    fn roll(&mut self, params: &HeatParams, now_ns: u64) {
        let window_ns = params.window_ns();
        let windows = (now_ns / window_ns).saturating_sub(self.last_ns / window_ns);
        if windows == 1 {
            self.window_before = self.window;
            self.window = Counts::default();
        } else if windows > 1 {
            self.window_before = Counts::default();
            self.window = Counts::default();
        }
    }
}

/// Whether counters are read-hot, if their page is hot: `Cur_r / Cur_w > Rrw`, multiplied out.
///
/// The ratio is taken as it is printed, reads per *write*, not as a share of all accesses: with
/// `Rrw = 0.9` a page with as many reads as writes is read-hot. Without a write, any read is
/// enough.
pub fn is_read_hot(params: &HeatParams, counts: Counts) -> bool {
    u64::from(counts.reads) * 1000 > u64::from(params.read_hot_milli) * u64::from(counts.writes)
}

/// The heat of a page over several observers of one rack: their weights, and the `+ 1` once. If
/// each brought its own, sixteen clients that never used a page would make it hot.
pub fn heat_of_all_milli(weights_milli: impl IntoIterator<Item = u64>) -> u64 {
    weights_milli.into_iter().fold(HEAT_MILLI_MIN, u64::saturating_add)
}

#[cfg(test)]
mod tests;
