//! The choices of the paper's six steps. Source: Rcmp §5.3.

use super::{Decision, Observation, Reason, way_in};
use crate::constants::LEASE_MS_DEFAULT;
use crate::heat::{HeatParams, is_read_hot};
use serde::{Deserialize, Serialize};

/// Constants of the paper's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaperParams {
    pub heat: HeatParams,
    /// How long a read-hot copy lasts at most, milliseconds. The paper ends it by a write or an
    /// unlock (§5.4) and has no time.
    pub lease_ms: u32,
}

impl Default for PaperParams {
    fn default() -> Self {
        Self { heat: HeatParams::default(), lease_ms: LEASE_MS_DEFAULT as u32 }
    }
}

/// What the paper's policy compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaperReasoning {
    /// Whether the page is hot in the rack that asks.
    pub hot: bool,
    /// Whether the page that would make room is hot.
    pub victim_hot: bool,
    /// Whether the home rack's heat is higher.
    pub home_hotter: bool,
    /// Whether the page is read-hot in the rack that asks.
    pub read_hot: bool,
}

pub(super) fn decide(params: &PaperParams, o: &Observation) -> (Decision, PaperReasoning) {
    let victim = o.victim.filter(|_| !o.free_frame);
    let hot = o.asker_use.heat_milli > params.heat.hot_milli;
    let reasoning = PaperReasoning {
        hot,
        victim_hot: victim.is_some_and(|victim| victim.heat_milli > params.heat.hot_milli),
        home_hotter: o.home_use.heat_milli > o.asker_use.heat_milli,
        read_hot: hot && is_read_hot(&params.heat, o.asker_use.counts),
    };
    (choose(params, o, &reasoning), reasoning)
}

fn choose(params: &PaperParams, o: &Observation, reasoning: &PaperReasoning) -> Decision {
    if o.asker.same_rack(o.home) {
        return Decision::Leave(Reason::OwnRack);
    }
    if !reasoning.hot {
        return Decision::Leave(Reason::NotHot);
    }
    // Step 1: one request for a page at a time.
    if o.under_way {
        return Decision::Leave(Reason::UnderWay);
    }
    // Step 2: a free page, else the coldest, unless that is hot.
    let Some(decision) = way_in(o) else {
        return Decision::Leave(Reason::NoRoom);
    };
    if reasoning.victim_hot {
        return Decision::Leave(Reason::VictimHot);
    }
    // A victim that is not hot is colder than a page that is.
    // Step 3: the home rack compares.
    if !reasoning.home_hotter {
        return decision;
    }
    if reasoning.read_hot && o.replica_room {
        return Decision::Replicate { lease_ms: params.lease_ms };
    }
    Decision::Leave(Reason::HomeHotter)
}
