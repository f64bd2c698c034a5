//! Whether a rack that is fuller than the others sends a cold page to an emptier one. A pure
//! function from a [`BalanceView`] to a [`Balance`], with a [`BalanceRecord`] that can be decided
//! again. Beside the heat policy, which fetches pages to where they are used: this one sends only
//! what is not used, nothing that moved lately, and from a rack that is well above the mean only,
//! so the two never pass a page to and fro.
//!
//! A rack begins when it is `high_milli` above the mean and another one `low_milli` below it, and
//! ends when it is `stop_milli` above it: the distance keeps two racks from sending pages to one
//! another. How full the others are is known by their heartbeats, and those that came before and
//! after the same pages give a mean that never was: a rack ends when it finds itself near the mean
//! twice in a row, with a pause between ([`Sending`]).

use super::{Allowance, Limit};
use crate::addr::{PageId, RackId};
use crate::member::PoolLoad;
use serde::{Deserialize, Serialize};

/// The constants. Shares are of a rack's frames that are in use, thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceParams {
    /// How far above the mean a rack begins to send.
    pub high_milli: u32,
    /// How far above the mean it ends.
    pub stop_milli: u32,
    /// How far below the mean the rack is that gets a page.
    pub low_milli: u32,
    /// Accesses of the last windows up to which a page counts as cold.
    pub cold_max: u64,
    /// What moving for balance may take of the fabric, thousandths.
    pub fabric_share_milli: u32,
    /// Pages that may go at once after a pause.
    pub burst_pages: u32,
}

impl Default for BalanceParams {
    /// 15 points of a hundred are more than a pool's random placement leaves among racks of a
    /// thousand frames; a twentieth of the fabric is a tenth of what the heat policy takes.
    fn default() -> Self {
        Self {
            high_milli: 150,
            stop_milli: 50,
            low_milli: 50,
            cold_max: 0,
            fabric_share_milli: 50,
            burst_pages: 4,
        }
    }
}

/// A page that could be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdPage {
    pub page: PageId,
    /// Accesses of the last windows, as far as its home knows.
    pub recent: u64,
    /// Moves that are not forgotten yet.
    pub moves_lately: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceView {
    /// Now, nanoseconds of the observer's monotonic clock.
    pub now_ns: u64,
    pub own: RackId,
    /// Its share of used frames, thousandths.
    pub used_milli: u32,
    /// The pool, as the master knows it.
    pub load: PoolLoad,
    /// Whether the rack has begun to send and not ended.
    pub is_sending: bool,
    pub page_bytes: u64,
    /// What a copy carries, bytes a second, as measured last.
    pub bytes_per_second: u64,
    /// The coldest page of a sample.
    pub coldest: Option<ColdPage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Balance {
    Rest(Rest),
    Send { page: PageId, to: RackId },
}

/// Why no page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rest {
    /// The rack is not far enough above the mean.
    Balanced,
    /// No rack is far enough below it.
    NobodyEmpty,
    /// The coldest page is in use, or moved lately.
    NothingCold,
    /// Moving has used up its share of the fabric for now.
    OverAllowance,
}

/// A decision with all that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceRecord {
    pub params: BalanceParams,
    pub view: BalanceView,
    /// What moving was allowed before.
    pub allowance: Allowance,
    pub decision: Balance,
}

/// Whether a rack has begun to send and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    has_begun: bool,
    /// The last decision was that there is nothing to do.
    rested: bool,
}

impl Sending {
    /// Whether it has, for the next [`BalanceView`].
    pub fn has_begun(self) -> bool {
        self.has_begun
    }

    /// After a decision. A rack that waits for a page to cool or for its share of the fabric goes
    /// on later.
    pub fn decided(&mut self, decision: &Balance) {
        match decision {
            Balance::Send { .. } | Balance::Rest(Rest::OverAllowance) => {
                *self = Self { has_begun: true, rested: false };
            }
            Balance::Rest(Rest::NothingCold) => {}
            Balance::Rest(Rest::Balanced | Rest::NobodyEmpty) => {
                *self = Self { has_begun: self.has_begun && !self.rested, rested: true };
            }
        }
    }
}

impl BalanceParams {
    /// How fast the allowance fills, and how full it gets.
    pub fn limit(&self, page_bytes: u64, bytes_per_second: u64) -> Limit {
        let share = u128::from(bytes_per_second) * u128::from(self.fabric_share_milli) / 1000;
        Limit {
            bytes_per_second: u64::try_from(share).unwrap_or(u64::MAX),
            burst_bytes: page_bytes.saturating_mul(self.burst_pages.into()),
        }
    }

    /// Decides. Changes nothing: the caller does what is decided, and takes the bytes from its
    /// allowance.
    pub fn decide(&self, view: &BalanceView, allowance: &Allowance) -> BalanceRecord {
        let (params, decision) = (*self, self.decision(view, allowance));
        BalanceRecord { params, view: *view, allowance: *allowance, decision }
    }

    fn decision(&self, view: &BalanceView, allowance: &Allowance) -> Balance {
        let mean_milli = view.load.mean_milli;
        let above = if view.is_sending { self.stop_milli } else { self.high_milli };
        if view.used_milli < mean_milli.saturating_add(above.max(1)) {
            return Balance::Rest(Rest::Balanced);
        }
        let below = |&(rack, used): &(RackId, u32)| {
            rack != view.own && used.saturating_add(self.low_milli) <= mean_milli
        };
        let Some((to, _)) = view.load.emptiest.filter(below) else {
            return Balance::Rest(Rest::NobodyEmpty);
        };
        let is_cold = |one: &ColdPage| one.recent <= self.cold_max && one.moves_lately == 0;
        let Some(ColdPage { page, .. }) = view.coldest.filter(is_cold) else {
            return Balance::Rest(Rest::NothingCold);
        };
        let limit = self.limit(view.page_bytes, view.bytes_per_second);
        match allowance.allows(&limit, view.now_ns, view.page_bytes) {
            true => Balance::Send { page, to },
            false => Balance::Rest(Rest::OverAllowance),
        }
    }
}

/// Decides again from what a record says was known.
pub fn replay_balance(record: &BalanceRecord) -> Balance {
    record.params.decide(&record.view, &record.allowance).decision
}

/// A share in thousandths; of nothing, all is in use.
pub fn used_milli(used: u64, frames: u64) -> u32 {
    let milli = u128::from(used) * 1000 / u128::from(frames.max(1));
    if frames == 0 { 1000 } else { u32::try_from(milli.min(1000)).unwrap_or(1000) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 2 << 20;

    fn view(used_milli: u32, mean_milli: u32, emptiest: u32) -> BalanceView {
        BalanceView {
            now_ns: 0,
            own: RackId(0),
            used_milli,
            load: PoolLoad { racks: 3, mean_milli, emptiest: Some((RackId(2), emptiest)) },
            is_sending: false,
            page_bytes: PAGE,
            bytes_per_second: 1_000_000_000,
            coldest: Some(ColdPage { page: PageId(7), recent: 0, moves_lately: 0 }),
        }
    }

    fn decide(view: &BalanceView) -> Balance {
        let record = BalanceParams::default().decide(view, &Allowance::default());
        assert_eq!(replay_balance(&record), record.decision);
        record.decision
    }

    #[test]
    fn a_rack_begins_well_above_the_mean_and_ends_near_it() {
        let send = Balance::Send { page: PageId(7), to: RackId(2) };
        assert_eq!(decide(&view(640, 500, 300)), Balance::Rest(Rest::Balanced));
        assert_eq!(decide(&view(650, 500, 300)), send);
        let sending = |used| BalanceView { is_sending: true, ..view(used, 500, 300) };
        assert_eq!(decide(&sending(550)), send);
        assert_eq!(decide(&sending(549)), Balance::Rest(Rest::Balanced));
        assert_eq!(decide(&view(900, 500, 460)), Balance::Rest(Rest::NobodyEmpty));
        let alone = PoolLoad { racks: 1, mean_milli: 500, emptiest: None };
        let alone = BalanceView { load: alone, ..view(900, 500, 0) };
        assert_eq!(decide(&alone), Balance::Rest(Rest::NobodyEmpty));
        let own = PoolLoad { emptiest: Some((RackId(0), 100)), ..view(900, 500, 0).load };
        let own = BalanceView { load: own, ..view(900, 500, 0) };
        assert_eq!(decide(&own), Balance::Rest(Rest::NobodyEmpty));
    }

    #[test]
    fn pages_that_are_used_or_have_just_come_stay() {
        for (recent, moves_lately) in [(1, 0), (0, 1)] {
            let coldest = Some(ColdPage { page: PageId(7), recent, moves_lately });
            let view = BalanceView { coldest, ..view(900, 500, 100) };
            assert_eq!(decide(&view), Balance::Rest(Rest::NothingCold));
        }
        let none = BalanceView { coldest: None, ..view(900, 500, 100) };
        assert_eq!(decide(&none), Balance::Rest(Rest::NothingCold));
    }

    #[test]
    fn one_look_at_racks_of_different_times_does_not_end_it() {
        let mut sending = Sending::default();
        let look = |sending: &mut Sending, used, mean, emptiest| {
            let view =
                BalanceView { is_sending: sending.has_begun(), ..view(used, mean, emptiest) };
            let decision = decide(&view);
            sending.decided(&decision);
            decision
        };
        let send = Balance::Send { page: PageId(7), to: RackId(2) };
        assert_eq!(look(&mut sending, 660, 500, 340), send);
        // The own heartbeat of before and the other's of after the same pages: more than there is.
        let balanced = Balance::Rest(Rest::Balanced);
        assert_eq!(look(&mut sending, 580, 531, 420), balanced);
        assert_eq!(look(&mut sending, 580, 500, 420), send);
        assert_eq!(look(&mut sending, 549, 500, 451), balanced);
        assert!(sending.has_begun());
        assert_eq!(look(&mut sending, 549, 500, 451), balanced);
        assert!(!sending.has_begun());
        assert_eq!(look(&mut sending, 580, 500, 420), balanced);
    }

    #[test]
    fn who_waits_for_a_page_to_cool_goes_on_afterwards() {
        let mut sending = Sending::default();
        sending.decided(&Balance::Rest(Rest::NothingCold));
        assert!(!sending.has_begun());
        sending.decided(&Balance::Rest(Rest::OverAllowance));
        sending.decided(&Balance::Rest(Rest::NothingCold));
        sending.decided(&Balance::Rest(Rest::NobodyEmpty));
        sending.decided(&Balance::Rest(Rest::NothingCold));
        assert!(sending.has_begun());
        sending.decided(&Balance::Rest(Rest::NobodyEmpty));
        assert!(!sending.has_begun());
    }

    /// Racks that look at the pool in turns, with what they saw up to some turns ago.
    fn settle(mut used: Vec<u32>, stale: usize) -> (Vec<u32>, u64) {
        const FRAMES: u32 = 1000;
        let params = BalanceParams::default();
        let mut sending = vec![Sending::default(); used.len()];
        let mut seen = vec![used.clone()];
        let (mut moves, mut last_move) = (0, 0);
        for turn in 0..20_000usize {
            let own = turn % used.len();
            let known = &seen[seen.len().saturating_sub(1 + stale)];
            let total: u32 = known.iter().sum();
            let mean_milli = total / known.len() as u32;
            let least = (0..).zip(known).min_by_key(|(_, used)| **used);
            let emptiest = least.map(|(rack, used)| (RackId(rack), *used));
            let view = BalanceView {
                own: RackId(own as u16),
                used_milli: used[own],
                load: PoolLoad { racks: known.len() as u32, mean_milli, emptiest },
                is_sending: sending[own].has_begun(),
                ..view(0, 0, 0)
            };
            let decision = params.decide(&view, &Allowance::default()).decision;
            sending[own].decided(&decision);
            if let Balance::Send { to, .. } = decision
                && used[usize::from(to.0)] < FRAMES
            {
                used[own] -= 1;
                used[usize::from(to.0)] += 1;
                (moves, last_move) = (moves + 1, turn);
            }
            seen.push(used.clone());
        }
        assert!(last_move < 15_000, "it never ends: {used:?}");
        (used, moves)
    }

    proptest! {
        #[test]
        fn racks_settle_without_sending_pages_to_and_fro(
            used in proptest::collection::vec(0u32..=1000, 2..6),
            stale in 0usize..24,
        ) {
            let total: u32 = used.iter().sum();
            let mean = total / used.len() as u32;
            let (after, moves) = settle(used.clone(), stale);
            // A page goes once: what left racks above the mean is what the others have got.
            let above = |of: &[u32]| of.iter().map(|one| one.saturating_sub(mean)).sum::<u32>();
            let slack = 2 * stale as u64 * used.len() as u64;
            let most = u64::from(above(&used)) + slack;
            prop_assert!(moves <= most, "{used:?} to {after:?}: {moves}");
            let left = after.iter().any(|one| *one > mean + 160);
            let taker = after.iter().any(|one| one + 60 < mean);
            prop_assert!(!(left && taker), "{used:?} to {after:?}");
        }

        #[test]
        fn whatever_is_seen_a_page_goes_only_from_well_above_the_mean_to_below_it(
            used in any::<u32>(), mean in any::<u32>(), emptiest in any::<u32>(),
            bytes in any::<u64>(), speed in any::<u64>(), now in any::<u64>(),
        ) {
            let view = BalanceView {
                now_ns: now,
                page_bytes: bytes,
                bytes_per_second: speed,
                ..view(used, mean, emptiest)
            };
            let [used, mean, emptiest] = [used, mean, emptiest].map(u64::from);
            // No share reaches a number that the sums could not hold.
            prop_assume!(used.max(mean).max(emptiest) + 150 <= u64::from(u32::MAX));
            let expected = match (used >= mean + 150, emptiest + 50 <= mean) {
                (false, _) => Balance::Rest(Rest::Balanced),
                (true, false) => Balance::Rest(Rest::NobodyEmpty),
                (true, true) => Balance::Send { page: PageId(7), to: RackId(2) },
            };
            prop_assert_eq!(decide(&view), expected);
        }
    }

    #[test]
    fn the_share_of_the_fabric_bounds_how_many_pages_go() {
        let params = BalanceParams::default();
        let mut allowance = Allowance::default();
        let mut sent = 0;
        for ms in 0..10_000 {
            let view = BalanceView { now_ns: ms * 1_000_000, ..view(900, 500, 100) };
            if let Balance::Send { .. } = params.decide(&view, &allowance).decision {
                let limit = params.limit(PAGE, view.bytes_per_second);
                allowance.take(&limit, view.now_ns, PAGE);
                sent += PAGE;
            }
        }
        // A twentieth of a gigabyte a second, for ten seconds, and a burst.
        assert!(sent <= 500_000_000 + 4 * PAGE && sent > 400_000_000, "{sent}");
    }
}
