//! Whether a page that is used from another rack should move there. Pure functions from an
//! [`Observation`] to a [`Decision`], with a [`DecisionRecord`] that holds all that was known and
//! can be decided again by [`replay`]. Owns nothing: heat, histories and the [`Allowance`] belong
//! to the caller, time is a number in the observation. Called by the daemon of a page's home, in
//! the real and in the simulated world.
//!
//! No input makes these functions panic: parts of an observation come from other processes.
//!
//! Source: Rcmp §5.3 for [`MigrationPolicy::Paper`]; [`MigrationPolicy::Cost`] is ours, with its
//! reasons in decision 0018.

mod allowance;
mod ask;
mod balance;
mod cost;
mod name;
pub mod oracle;
mod paper;

pub use allowance::{Allowance, Limit};
pub use ask::{Decided, MoveAsk, MoveReport};
pub use balance::{
    Balance, BalanceParams, BalanceRecord, BalanceView, ColdPage, Rest, Sending, replay_balance,
    used_milli,
};
pub use cost::{CostParams, CostReasoning};
pub use name::MigrationPolicyNameError;
pub use paper::{PaperParams, PaperReasoning};

use crate::addr::{PageId, RackId};
use crate::constants::NS_PER_SECOND;
use crate::heat::{Counts, HeatParams, Noted, Recent};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationPolicy {
    /// Pages stay where they are.
    #[default]
    Off,
    /// By heat and thresholds. Source: Rcmp §5.3.
    Paper(PaperParams),
    /// By time saved against time spent.
    Cost(CostParams),
}

/// What is done about one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    Leave(Reason),
    /// The page moves into a free frame of rack `to`.
    Move {
        to: RackId,
    },
    /// The page and a page of the rack that asked change places.
    Swap {
        /// The page that leaves the rack that asked.
        victim: PageId,
    },
    /// The rack that asked gets a copy that is dropped before the page is written. After that it is
    /// decided anew whether the copy is fetched again.
    Replicate {
        lease_ms: u32,
    },
}

/// Why a page stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    Off,
    /// The page is at home in the rack that asks.
    OwnRack,
    /// A request for the page is under way. Source: Rcmp §5.3 step 1.
    UnderWay,
    /// Not used enough, or not for long enough, to tell.
    NotHot,
    /// No free frame and no page that could make room.
    NoRoom,
    /// The coldest page is hot itself. Source: Rcmp §5.3 step 2.
    VictimHot,
    /// The home rack uses the page more. Source: Rcmp §5.3 step 3.
    HomeHotter,
    /// Racks use it so evenly that the difference may be chance.
    Even,
    /// It would save less than it costs.
    NoGain,
    /// It would pay, but not yet for a page that has moved lately.
    MovedLately,
    /// Moving has used up its share of the fabric for now.
    OverAllowance,
    /// The latencies, the bandwidth or a span are not known or make no sense.
    Unmeasured,
}

/// What a policy looks at. A span or a count that is not known is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Now, nanoseconds of the observer's monotonic clock.
    pub now_ns: u64,
    /// The page that is asked for.
    pub page: PageId,
    /// The rack that asks for it.
    pub asker: RackId,
    /// The rack where it is at home.
    pub home: RackId,
    /// Bytes that one copy carries: the page, or the extent of it that is meant.
    pub copy_bytes: u64,
    /// Use by all clients of the rack that asks.
    pub asker_use: Use,
    /// Use by all clients of the home rack.
    pub home_use: Use,
    /// Accesses by all other racks together.
    pub others_use: Recent,
    /// Whether the rack that asks has a free frame.
    pub free_frame: bool,
    /// The coldest page of the rack that asks, looked for when no frame is free.
    pub victim: Option<Victim>,
    /// Whether the rack that asks has, or makes, room for a copy.
    pub replica_room: bool,
    /// Whether a request for the page is under way already.
    pub under_way: bool,
    /// The moves of the page so far.
    pub history: MoveHistory,
    /// What accesses and copies cost.
    pub costs: AccessCosts,
}

/// Use of a page by one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Heat over all its clients, thousandths ([`crate::heat::heat_of_all_milli`]).
    pub heat_milli: u64,
    /// `Cur_r` and `Cur_w` over all its clients.
    pub counts: Counts,
    /// Accesses of the last windows.
    pub recent: Recent,
    /// All accesses of the rack's clients, to whatever page; none if that is not known.
    pub rack: Recent,
}

/// A page that could make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    pub page: PageId,
    /// Bytes that its copy carries.
    pub copy_bytes: u64,
    /// Its heat over all clients of the rack that asks, thousandths.
    pub heat_milli: u64,
    /// Accesses by the rack that asks, where it is at home.
    pub asker_use: Recent,
    /// Accesses by the rack where it would go.
    pub home_use: Recent,
}

/// What an access and a copy take, measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessCosts {
    /// An access to the own rack, nanoseconds.
    pub local_ns: u64,
    /// An access to another rack, nanoseconds.
    pub remote_ns: u64,
    /// A message to another rack or the master and its answer, nanoseconds.
    pub round_trip_ns: u64,
    /// What the fabric carries in one direction, bytes per second.
    pub bytes_per_second: u64,
}

impl AccessCosts {
    /// Time that `bytes` are on the wire, nanoseconds, rounded up; `None` without a bandwidth.
    pub fn transfer_ns(&self, bytes: u64) -> Option<u64> {
        let scaled = u128::from(bytes) * u128::from(NS_PER_SECOND);
        let ns = (self.bytes_per_second > 0).then(|| scaled.div_ceil(self.bytes_per_second.into()));
        ns.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// How often a page moved. The oldest move is forgotten once the page has stayed for a settling
/// time, one such time for each move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveHistory {
    moves: u32,
    last_ns: u64,
}

impl MoveHistory {
    /// Notes a move at `now_ns`; `settle_ns` as in [`MoveHistory::lately`].
    pub fn note(&mut self, now_ns: u64, settle_ns: u64) {
        self.moves = self.lately(now_ns, settle_ns).saturating_add(1);
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// The history as it goes to another rack with another clock: the age of the last move stands
    /// in the place of its time.
    pub fn leaving(self, now_ns: u64) -> Self {
        Self { last_ns: now_ns.saturating_sub(self.last_ns), ..self }
    }

    /// The history of a page that came, by the new clock.
    pub fn arrived(self, now_ns: u64) -> Self {
        Self { last_ns: now_ns.saturating_sub(self.last_ns), ..self }
    }

    /// Moves that are not forgotten at `now_ns`.
    pub fn lately(&self, now_ns: u64, settle_ns: u64) -> u32 {
        let stayed = now_ns.saturating_sub(self.last_ns) / settle_ns.max(1);
        self.moves.saturating_sub(u32::try_from(stayed).unwrap_or(u32::MAX))
    }
}

/// A decision with all that it was made of: to be logged, and decided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRecord {
    pub policy: MigrationPolicy,
    pub observation: Observation,
    /// What moving was allowed before the decision.
    pub allowance: Allowance,
    /// The numbers that were compared.
    pub reasoning: Reasoning,
    pub decision: Decision,
    /// Bytes that it puts on the fabric now, to be taken from the [`Allowance`].
    pub fabric_bytes: u64,
}

/// The numbers that were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reasoning {
    Off,
    Paper(PaperReasoning),
    Cost(CostReasoning),
}

/// What a decision does to the heat that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeatEffect {
    Keep,
    /// The rack that asked forgets the page's heat: the loser has to earn it again before it asks
    /// again.
    ClearAtAsker,
    /// The old home forgets the page's heat, and the rack that asked the victim's. Source: Rcmp
    /// §5.3 step 4.
    ClearAtOldHomes,
}

impl MigrationPolicy {
    /// How heat is counted under it.
    pub fn heat(&self) -> HeatParams {
        match self {
            MigrationPolicy::Paper(params) => params.heat,
            MigrationPolicy::Off | MigrationPolicy::Cost(_) => HeatParams::default(),
        }
    }

    /// The constants of allowance and history under it: `Paper` has neither, and nothing looks.
    pub fn cost(&self) -> CostParams {
        match self {
            MigrationPolicy::Cost(params) => *params,
            MigrationPolicy::Off | MigrationPolicy::Paper(_) => CostParams::default(),
        }
    }

    /// Whether a remote access, just noted, is reason to ask. Keeps most accesses from costing a
    /// decision: `Paper` asks while the page is hot, `Cost` when the recent count passes a power of
    /// two.
    pub fn asks(&self, noted: &Noted) -> bool {
        match self {
            MigrationPolicy::Off => false,
            MigrationPolicy::Paper(params) => noted.heat_milli > params.heat.hot_milli,
            MigrationPolicy::Cost(params) => {
                noted.recent_after >= u64::from(params.count_min)
                    && noted.recent_after.checked_ilog2() > noted.recent_before.checked_ilog2()
            }
        }
    }

    /// Decides. Blocks nowhere, changes nothing: the caller does what is decided, takes
    /// `fabric_bytes` from its allowance, and applies [`DecisionRecord::heat_effect`].
    pub fn decide(&self, observation: &Observation, allowance: &Allowance) -> DecisionRecord {
        let (decision, reasoning) = match self {
            MigrationPolicy::Off => (Decision::Leave(Reason::Off), Reasoning::Off),
            MigrationPolicy::Paper(params) => {
                let (decision, reasoning) = paper::decide(params, observation);
                (decision, Reasoning::Paper(reasoning))
            }
            MigrationPolicy::Cost(params) => {
                let (decision, reasoning) = cost::decide(params, observation, allowance);
                (decision, Reasoning::Cost(reasoning))
            }
        };
        DecisionRecord {
            policy: *self,
            observation: *observation,
            allowance: *allowance,
            reasoning,
            decision,
            fabric_bytes: fabric_bytes(decision, observation),
        }
    }
}

impl DecisionRecord {
    /// What becomes of the heat. Only `Paper` clears any.
    pub fn heat_effect(&self) -> HeatEffect {
        let MigrationPolicy::Paper(_) = self.policy else { return HeatEffect::Keep };
        match self.decision {
            Decision::Move { .. } | Decision::Swap { .. } => HeatEffect::ClearAtOldHomes,
            Decision::Replicate { .. } => HeatEffect::Keep,
            Decision::Leave(Reason::Off | Reason::OwnRack | Reason::NotHot) => HeatEffect::Keep,
            Decision::Leave(_) => HeatEffect::ClearAtAsker,
        }
    }
}

/// Decides again from what a record says was known. Equals `record.decision` unless the record was
/// changed or made by another version.
pub fn replay(record: &DecisionRecord) -> Decision {
    record.policy.decide(&record.observation, &record.allowance).decision
}

fn fabric_bytes(decision: Decision, observation: &Observation) -> u64 {
    match decision {
        Decision::Leave(_) => 0,
        Decision::Move { .. } | Decision::Replicate { .. } => observation.copy_bytes,
        Decision::Swap { .. } => {
            let victim_bytes = observation.victim.map_or(0, |victim| victim.copy_bytes);
            observation.copy_bytes.saturating_add(victim_bytes)
        }
    }
}

/// The way in, if there is one: a free frame, or the coldest page's place.
fn way_in(observation: &Observation) -> Option<Decision> {
    match observation.victim {
        _ if observation.free_frame => Some(Decision::Move { to: observation.asker }),
        Some(victim) => Some(Decision::Swap { victim: victim.page }),
        None => None,
    }
}

#[cfg(test)]
mod tests;
