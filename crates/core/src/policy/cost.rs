//! Time saved against time spent. All of it is predicted over a horizon, from accesses counted in
//! the last windows: a page moves if the accesses that become local save more than its bytes, its
//! round trips and the accesses that become remote cost; else it is copied if that pays although
//! writes to it cost more; else it stays.
//!
//! Against going back and forth: the difference between two racks must be larger than chance makes
//! it, the asker must dominate, and each move that is not forgotten doubles what the next one must
//! save. Against flooding the fabric: the [`Allowance`].

use super::{AccessCosts, Allowance, Decision, Limit, Observation, Reason, way_in};
use crate::constants::{
    COPY_WRITE_ACCESSES, LEASE_MS_DEFAULT, MOVE_DOUBLINGS_MAX, MOVE_ROUND_TRIPS, NS_PER_MS,
};
use crate::heat::Recent;
use serde::{Deserialize, Serialize};

/// Constants of the policy by cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostParams {
    /// For how long the use of the last windows is taken to go on, milliseconds.
    pub horizon_ms: u32,
    /// How many times its cost a change must save, thousandths.
    pub margin_milli: u32,
    /// Accesses by the asking rack below which nothing is decided.
    pub count_min: u32,
    /// How many standard deviations the difference must be above what pays the move, squared.
    pub deviations_squared: u32,
    /// How many times the home rack's accesses those of the asker must be, thousandths.
    pub dominance_milli: u32,
    /// A page that stays for this long forgets one of its moves, milliseconds.
    pub settle_ms: u32,
    /// Round trips of a moving page, one after another.
    pub move_round_trips: u32,
    /// What moving may take of the fabric's bandwidth, thousandths.
    pub fabric_share_milli: u32,
    /// What moving may take at most whatever the bandwidth, bytes per second.
    pub bytes_per_second_max: u64,
    /// What may be moved at once after a quiet time, bytes.
    pub burst_bytes: u64,
    /// One-sided accesses that a write to a page with a copy elsewhere costs more than without.
    pub copy_write_accesses: u32,
    /// How many times as much as by its home a page must be used to be moved although a copy would
    /// pay, thousandths.
    pub copy_dominance_milli: u32,
    /// How many times as much as the home's the use by the asker counts at most because all of its
    /// use is less, thousandths.
    pub slower_counts_milli: u32,
    /// The same of the home's use beside the asker's.
    pub slower_home_counts_milli: u32,
    /// The shortest lease of a copy, milliseconds.
    pub lease_ms_min: u32,
    /// The longest lease of a copy, milliseconds.
    pub lease_ms_max: u32,
}

impl Default for CostParams {
    fn default() -> Self {
        Self {
            // Ten windows: what was seen for a second or two is believed for ten.
            horizon_ms: 10_000,
            margin_milli: 2000,
            // Fewer are never certain, and a rack that asks for each page that was touched gains
            // nothing.
            count_min: 16,
            // Three deviations: by chance once in 700 looks at a page that both use alike, of those
            // that dominance does not refuse; a page is looked at when its use has doubled. With
            // four a tenth of what moving is worth was missed in runs of seconds. Large pages,
            // which are dear to move by mistake, need more.
            deviations_squared: 9,
            // Racks are weighed by their whole work, so one that is served faster is no reason;
            // with twice as much a twentieth of what moving is worth was never taken.
            dominance_milli: 1500,
            settle_ms: 10_000,
            move_round_trips: MOVE_ROUND_TRIPS,
            fabric_share_milli: 30,
            bytes_per_second_max: u64::MAX,
            // Four swaps of 2 MiB.
            burst_bytes: 16 << 20,
            copy_write_accesses: COPY_WRITE_ACCESSES,
            // A rack that is served slower uses less: a page that it uses an eighth as much may
            // be one that it would use alike.
            copy_dominance_milli: 8000,
            // A rack that waits for other racks uses less than they would: by counts alone the
            // faster rack would get all pages, and be faster still. But a rack may also be idle.
            slower_counts_milli: 32_000,
            // What is taken from a rack is harder to get back: one that shares its processors may
            // do a fortieth of the other's work for a second, and gives nothing away for that.
            slower_home_counts_milli: 64_000,
            lease_ms_min: 10,
            lease_ms_max: LEASE_MS_DEFAULT as u32,
        }
    }
}

impl CostParams {
    /// The limit on moving over a fabric with these costs: the smaller of the share and the
    /// maximum.
    pub fn limit(&self, costs: &AccessCosts) -> Limit {
        let share = u128::from(costs.bytes_per_second) * u128::from(self.fabric_share_milli) / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        Limit {
            bytes_per_second: share.min(self.bytes_per_second_max),
            burst_bytes: self.burst_bytes,
        }
    }

    /// [`CostParams::settle_ms`] in nanoseconds, for [`super::MoveHistory`].
    pub fn settle_ns(&self) -> u64 {
        u64::from(self.settle_ms) * NS_PER_MS
    }
}

/// What the policy by cost compared. Times are nanoseconds over the horizon and all racks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostReasoning {
    /// Accesses that a move makes local less those that it makes remote, in the asker's span.
    pub difference: i64,
    /// All accesses that the difference was made of.
    pub counted: u64,
    /// What a move saves; less than 0 if it makes more accesses remote than local.
    pub move_saves_ns: i64,
    pub move_costs_ns: i64,
    /// What a move must save: its cost with margin and recent moves.
    pub move_must_save_ns: i64,
    pub copy_saves_ns: i64,
    /// What a copy costs: fetched once, closed for each write.
    pub copy_costs_ns: i64,
    /// What a copy must save.
    pub copy_must_save_ns: i64,
    /// Moves of the page that are not forgotten.
    pub moves_lately: u32,
    /// Bytes that might be moved.
    pub available_bytes: u64,
}

pub(super) fn decide(
    params: &CostParams,
    o: &Observation,
    allowance: &Allowance,
) -> (Decision, CostReasoning) {
    let limit = params.limit(&o.costs);
    let mut reasoning = CostReasoning {
        moves_lately: o.history.lately(o.now_ns, params.settle_ns()),
        available_bytes: allowance.available_bytes(&limit, o.now_ns),
        ..CostReasoning::default()
    };
    let early = early_reason(params, o);
    let Some(weighed) = early.is_none().then(|| Weighed::new(params, o)).flatten() else {
        return (Decision::Leave(early.unwrap_or(Reason::Unmeasured)), reasoning);
    };
    weighed.explain(params, &mut reasoning);
    let decision = choose(params, o, &weighed, &reasoning);
    let allowed = allowance.allows(&limit, o.now_ns, super::fabric_bytes(decision, o));
    if !allowed && !matches!(decision, Decision::Leave(_)) {
        return (Decision::Leave(Reason::OverAllowance), reasoning);
    }
    (decision, reasoning)
}

/// What can be told without weighing.
fn early_reason(params: &CostParams, o: &Observation) -> Option<Reason> {
    if o.asker.same_rack(o.home) {
        Some(Reason::OwnRack)
    } else if o.under_way {
        Some(Reason::UnderWay)
    } else if o.asker_use.recent.counts.total() < u64::from(params.count_min) {
        Some(Reason::NotHot)
    } else {
        None
    }
}

fn choose(params: &CostParams, o: &Observation, w: &Weighed, r: &CostReasoning) -> Decision {
    let way_in = way_in(o);
    let gains = r.move_saves_ns > w.margin(params, r.move_costs_ns);
    let (dominant, certain) = (w.dominates(params.dominance_milli), w.is_certain(params));
    let settled = r.move_saves_ns > r.move_must_save_ns;
    let move_pays = settled && dominant && certain && way_in.is_some();
    let copy_pays = r.copy_saves_ns > r.copy_must_save_ns && o.replica_room;
    let copy_net = r.copy_saves_ns.saturating_sub(r.copy_costs_ns);
    let move_net = r.move_saves_ns.saturating_sub(r.move_costs_ns);
    let is_alone = w.dominates(params.copy_dominance_milli);
    if move_pays && (!copy_pays || is_alone && move_net >= copy_net) {
        return way_in.unwrap_or(Decision::Leave(Reason::NoRoom));
    }
    // A copy now would hide for a lease that the page belongs here altogether.
    let soon = gains && is_alone && !certain && way_in.is_some();
    if copy_pays && !soon {
        return Decision::Replicate { lease_ms: lease_ms(params, w) };
    }
    Decision::Leave(if way_in.is_none() {
        Reason::NoRoom
    } else if !gains {
        Reason::NoGain
    } else if !dominant || !certain {
        Reason::Even
    } else {
        Reason::MovedLately
    })
}

/// As long as the page is likely to stay unwritten, within the bounds. A copy is dropped before a
/// write in any case; but if its rack falls silent, the writer waits for the lease.
fn lease_ms(params: &CostParams, w: &Weighed) -> u32 {
    let gap_ms = i128::from(params.horizon_ms).checked_div(w.writes_milli / 1000);
    let gap_ms = gap_ms.map_or(u32::MAX, |ms| u32::try_from(ms).unwrap_or(u32::MAX));
    gap_ms.max(params.lease_ms_min).min(params.lease_ms_max)
}

/// Everything in one unit: thousandths of an access over the horizon, and nanoseconds.
struct Weighed {
    /// Accesses by the asker, of the page and of the victim.
    asker: [i128; 2],
    /// Accesses by the home rack, of the page and of the victim, as the asker's count.
    home: [i128; 2],
    /// What each of them counts, thousandths.
    home_counts_milli: i128,
    asker_reads_milli: i128,
    /// By all racks, and by all but the asker.
    writes_milli: i128,
    other_writes_milli: i128,
    /// Thousandths of predicted accesses for each one that was counted.
    each_milli: i128,
    /// What an access saves by being local.
    saved_ns: i128,
    move_costs_ns: i128,
    fetch_ns: i128,
    /// What a write to a page with a copy costs more, from where the copy is not.
    write_ns: i128,
}

impl Weighed {
    /// `None` if something is not measured.
    fn new(params: &CostParams, o: &Observation) -> Option<Self> {
        let victim = o.victim.filter(|_| !o.free_frame);
        let saved_ns = i128::from(o.costs.remote_ns) - i128::from(o.costs.local_ns);
        let span_ns = o.asker_use.recent.span_ns;
        if saved_ns <= 0 || span_ns == 0 {
            return None;
        }
        let horizon_ns = i128::from(params.horizon_ms) * i128::from(NS_PER_MS);
        let over_horizon = |count: u64, span_ns: u64| {
            let scaled = i128::from(count) * horizon_ns * 1000;
            scaled.checked_div(i128::from(span_ns)).unwrap_or(0)
        };
        let all = |recent: Recent| over_horizon(recent.counts.total(), recent.span_ns);
        let home_counts_milli = home_counts_milli(params, o);
        let at_home = |recent: Recent| all(recent).saturating_mul(home_counts_milli) / 1000;
        let writes = |recent: Recent| over_horizon(recent.counts.writes.into(), recent.span_ns);
        // Both directions of the fabric work at once.
        let bytes = o.copy_bytes.max(victim.map_or(0, |victim| victim.copy_bytes));
        let round_trip_ns = i128::from(o.costs.round_trip_ns);
        let (asker, home) = (o.asker_use.recent, o.home_use.recent);
        let each_milli = over_horizon(1, span_ns).max(1);
        // Two more than were counted: few accesses without a write do not say that none comes.
        let others_milli = writes(home) + writes(o.others_use) + 2 * each_milli;
        Some(Self {
            asker: [all(asker), victim.map_or(0, |victim| all(victim.asker_use))],
            home: [at_home(home), victim.map_or(0, |victim| at_home(victim.home_use))],
            home_counts_milli,
            asker_reads_milli: over_horizon(asker.counts.reads.into(), asker.span_ns),
            writes_milli: writes(asker) + others_milli,
            other_writes_milli: others_milli,
            each_milli,
            saved_ns,
            move_costs_ns: i128::from(o.costs.transfer_ns(bytes)?)
                + i128::from(params.move_round_trips) * round_trip_ns,
            fetch_ns: i128::from(o.costs.transfer_ns(o.copy_bytes)?) + round_trip_ns,
            write_ns: i128::from(params.copy_write_accesses) * i128::from(o.costs.remote_ns),
        })
    }

    /// Accesses that become local less those that become remote.
    fn difference_milli(&self) -> i128 {
        self.asker[0] - self.asker[1] - self.home[0] + self.home[1]
    }

    /// Whether a move would gain even if the difference is as much smaller as chance makes it:
    /// counts of independent accesses vary by their square root. A victim can only take away from
    /// it: it was chosen for being little used here, so it looks better than it is.
    fn is_certain(&self, params: &CostParams) -> bool {
        let victim_home = self.home[1].min(self.asker[1]);
        let here = self.asker[0] + victim_home;
        let there = self.home[0] + self.asker[1];
        // The cost with its margin, in accesses.
        let must_milli =
            self.move_costs_ns.saturating_mul(params.margin_milli.into()) / self.saved_ns;
        let difference = (here - there - must_milli) / self.each_milli;
        // What counts as several is as uncertain as one.
        let at_home = (self.home[0] + victim_home).saturating_mul(self.home_counts_milli) / 1000;
        let counted = (self.asker[0] + self.asker[1] + at_home) / self.each_milli;
        let noise = counted.saturating_mul(params.deviations_squared.into());
        difference > 0 && difference.saturating_mul(difference) > noise
    }

    /// Whether the asker uses the page so much more than its home that a small change of use would
    /// not turn it round.
    fn dominates(&self, by_milli: u32) -> bool {
        let needed = self.home[0].saturating_mul(by_milli.into());
        self.asker[0].saturating_mul(1000) >= needed
    }

    fn margin(&self, params: &CostParams, costs_ns: i64) -> i64 {
        narrow(i128::from(costs_ns) * i128::from(params.margin_milli) / 1000)
    }

    fn explain(&self, params: &CostParams, r: &mut CostReasoning) {
        let sum: i128 = self.asker.iter().chain(&self.home).sum();
        r.difference = narrow(self.difference_milli() / self.each_milli);
        r.counted = u64::try_from(sum / self.each_milli).unwrap_or(u64::MAX);
        r.move_saves_ns = narrow(self.difference_milli().saturating_mul(self.saved_ns) / 1000);
        r.move_costs_ns = narrow(self.move_costs_ns);
        let doubled = r.moves_lately.min(MOVE_DOUBLINGS_MAX);
        r.move_must_save_ns = self.margin(params, r.move_costs_ns).saturating_mul(1 << doubled);
        // A write closes a copy for a moment: a read during that time goes to the home once.
        let closes = self.writes_milli.min(self.asker_reads_milli);
        let reads_saved = self.asker_reads_milli - closes - 1000;
        r.copy_saves_ns = narrow(reads_saved.saturating_mul(self.saved_ns) / 1000);
        let closing = self.other_writes_milli.saturating_mul(self.write_ns);
        r.copy_costs_ns = narrow(self.fetch_ns.saturating_add(closing / 1000));
        r.copy_must_save_ns = self.margin(params, r.copy_costs_ns);
    }
}

/// What an access by the home rack counts beside one by the asker: each rack's work is worth the
/// same, however fast it is done now.
fn home_counts_milli(params: &CostParams, o: &Observation) -> i128 {
    let [asker, home] = [o.asker_use, o.home_use].map(|used| used.rack.per_second_milli());
    if asker == 0 || home == 0 {
        return 1000;
    }
    let [asker_most, home_most] = [params.slower_counts_milli, params.slower_home_counts_milli]
        .map(|most| i128::from(most.max(1000)));
    (i128::from(asker) * 1000 / i128::from(home)).clamp(1_000_000 / asker_most, home_most)
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
