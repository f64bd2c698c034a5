//! Where new memory goes. [`Order`] says when the asker's own rack is asked: that is the client's
//! part, which the master's welcome tells it. [`Choice`] says which of the other racks is taken:
//! that is the master's part. Owns no rack: the master hands in what it knows of each and keeps the
//! [`Chooser`] between choices. Pure: whole numbers, no clock; randomness is a seeded generator
//! that the caller owns, so that choices follow from the seed and the calls alone.
//!
//! Ties go to the lowest rack number everywhere. A rack that is dead, full, tried before or the
//! asker's own (if it is named) is never chosen, whatever the policy.
//!
//! Sources: Rcmp §5.1 (a free page of the own rack, else one of another rack at random); Rack-scale
//! disaggregation (alternate local-remote; round-robin; smart-idle).

mod hot;
mod idle;
mod name;
mod recorder;
#[cfg(test)]
mod tests;

use crate::addr::RackId;
use crate::constants::NS_PER_MS;
use crate::seam::Nanos;
use idle::Histories;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

pub use hot::{HotDecision, HotPages, OwnRoom};
pub use idle::HISTORY_WINDOWS;
pub use name::PolicyNameError;
pub use recorder::{LogPiece, Pick, RecordedEvent, Recorder, Replay, ReplayError, entries_of};

/// A pool's policy. As text: `local-first`, `alternate`, `random`, `round-robin`, `least-loaded`,
/// `smart-idle`, `even`, or an order and a choice such as `alternate+smart-idle`. A choice alone is
/// made among all racks, an order alone chooses at random.
///
/// ```
/// use rackpool_core::placement::{Choice, Order, Policy};
/// assert_eq!(Policy::default().to_string(), "local-first");
/// let policy: Policy = "alternate+smart-idle:250ms".parse()?;
/// assert_eq!(policy.order, Order::Alternate);
/// assert_eq!("random".parse::<Policy>()?.order, Order::Anywhere);
/// assert!("nearest".parse::<Policy>().is_err());
/// # Ok::<(), rackpool_core::placement::PolicyNameError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Policy {
    /// When the asker's own rack is asked.
    pub order: Order,
    /// Which rack is taken otherwise.
    pub choice: Choice,
}

/// When an allocation that names no rack asks the own one. An own rack without room is never the
/// end: another one is chosen; and if no other has room, the own one is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// First. Source: Rcmp §5.1.
    #[default]
    LocalFirst,
    /// First by turns: an own one, then another, and so on for each handle; once the own rack is
    /// full, all others. Source: Rack-scale disaggregation.
    Alternate,
    /// It is one among all.
    Anywhere,
}

/// How a rack is chosen among those with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// Any, each as likely as the others. Source: Rcmp §5.1.
    #[default]
    Random,
    /// The one with most free bytes.
    LeastLoaded,
    /// The next one after the last choice.
    RoundRobin,
    /// Of the m = ceil(log2 n) racks that were accessed least lately (at least one), the one with
    /// the fewest bytes in use that is not the last choice. The first n choices take turns.
    /// Source: Rack-scale disaggregation.
    SmartIdle(Window),
    /// Of those with the fewest bytes in use, one request of this size more included, the one that
    /// was chosen least for the asker so far, then the least accessed one. Bytes stay even over
    /// all, and so do each asker's, so that a client that goes through its memory uses all racks.
    Even(Window),
}

/// What a window is in which accesses are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Window {
    /// The time between two choices. Source: Rack-scale disaggregation.
    #[default]
    PerChoice,
    /// A fixed time, ms, not 0.
    Ms(u32),
    /// A fixed time, µs, not 0: for simulated racks, where the masters see every access.
    Us(u32),
}

impl Window {
    /// Its length, ns; 1 ns where it has none of its own.
    fn nanos(self) -> Nanos {
        match self {
            Window::PerChoice => 1,
            Window::Ms(ms) => u64::from(ms.max(1)) * NS_PER_MS,
            Window::Us(us) => u64::from(us.max(1)) * 1_000,
        }
    }
}

impl Order {
    /// Whether the asker's own memory is asked first, of a turn that is its own or not. Turns
    /// change with each request; the first one is the own.
    pub fn own_first(self, is_own_turn: bool) -> bool {
        match self {
            Order::LocalFirst => true,
            Order::Alternate => is_own_turn,
            Order::Anywhere => false,
        }
    }
}

/// What a choice must know of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub rack: RackId,
    /// Whether its daemon is alive.
    pub alive: bool,
    /// Bytes in its free frames at the last heartbeat.
    pub free_bytes: u64,
    /// Bytes in its other frames at the last heartbeat.
    pub used_bytes: u64,
    /// Bytes that it was chosen for since. They order racks and refuse none: the memory may be
    /// back already.
    pub promised_bytes: u64,
}

/// What is remembered from choice to choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chooser {
    random: u64,
    last: Option<RackId>,
    choices: u64,
    histories: Histories,
    /// Bytes that racks were chosen for by [`Choice::Even`], by asker and rack.
    #[serde(with = "pairs")]
    given: BTreeMap<(RackId, RackId), u64>,
}

/// Keys of two numbers are no text, which maps in JSON want: a list of pairs.
mod pairs {
    use super::{BTreeMap, RackId};
    use serde::{Deserialize, Deserializer, Serializer};

    type Given = BTreeMap<(RackId, RackId), u64>;

    pub(super) fn serialize<S: Serializer>(given: &Given, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(given)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Given, D::Error> {
        Vec::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

impl Chooser {
    /// A chooser with choices that follow from `seed` and the calls alone.
    pub fn new(seed: u64) -> Self {
        // One round of splitmix64: near seeds give far states, and xorshift must not start at 0.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = (z ^ (z >> 31)) | 1;
        Self {
            random,
            last: None,
            choices: 0,
            histories: Histories::default(),
            given: BTreeMap::new(),
        }
    }

    /// A rack says how often its memory was accessed since its daemon started. The first word of
    /// a rack, and a number below the last one, begin a count anew.
    pub fn note_accesses(&mut self, rack: RackId, total: u64) {
        self.histories.note(rack, total);
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0 && limit <= u64::from(u32::MAX));
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32) * limit) >> 32
    }

    fn round_robin(&self, fitting: &[Candidate]) -> RackId {
        let after = |c: &&Candidate| self.last.is_none_or(|last| c.rack > last);
        fitting.iter().find(after).unwrap_or(&fitting[0]).rack
    }

    /// Source: Rack-scale disaggregation; that the last choice is left out and that the first
    /// choices take turns is in its published code only. With one idle rack there is no other to
    /// take, so it may be the last choice again.
    fn smart_idle(&mut self, fitting: &[Candidate]) -> RackId {
        let count = fitting.len();
        if self.choices < count as u64 {
            return self.round_robin(fitting);
        }
        let mut idle: Vec<&Candidate> = fitting.iter().collect();
        idle.sort_by_key(|c| (self.histories.frequency_thirds(c.rack), c.rack));
        idle.truncate(ceil_log2(count).max(1));
        if idle.len() > 1 {
            idle.retain(|c| Some(c.rack) != self.last);
        }
        let used = |c: &Candidate| c.used_bytes.saturating_add(c.promised_bytes);
        let least = idle.iter().min_by_key(|c| (used(c), c.rack));
        least.expect("one is left at least").rack
    }

    fn even(&mut self, fitting: &[Candidate], own: RackId, bytes: u64) -> RackId {
        let used = |c: &Candidate| c.used_bytes.saturating_add(c.promised_bytes);
        let least = fitting.iter().map(used).min().expect("it is not empty");
        let level = fitting.iter().filter(|c| used(c) <= least.saturating_add(bytes));
        let given = |c: &Candidate| self.given.get(&(own, c.rack)).copied().unwrap_or(0);
        let traffic = |c: &Candidate| self.histories.frequency_thirds(c.rack);
        let best = level.min_by_key(|c| (given(c), traffic(c), used(c), c.rack));
        let chosen = best.expect("the least used is level").rack;
        let given = self.given.entry((own, chosen)).or_default();
        *given = given.saturating_add(bytes);
        chosen
    }
}

/// What a rack is chosen for.
#[derive(Clone, Copy, Debug)]
pub struct PickRequest<'a> {
    /// The rack that asks, which is not chosen.
    pub own: RackId,
    pub bytes: u64,
    /// Racks, or shards of them, that refused it.
    pub tried: &'a [RackId],
}

/// A rack other than `own` and those in `tried` that is alive and has room for `bytes`; `None`
/// if there is none. `racks` are in the order of their numbers; `now` matters for fixed windows
/// only and never goes back.
pub fn pick_rack(
    choice: Choice,
    racks: &[Candidate],
    request: PickRequest<'_>,
    now: Nanos,
    chooser: &mut Chooser,
) -> Option<RackId> {
    let PickRequest { own, bytes, tried } = request;
    if let Choice::SmartIdle(window) | Choice::Even(window) = choice {
        chooser.histories.close(window, now);
    }
    let fits = |c: &&Candidate| {
        c.alive
            && c.rack != own
            && c.free_bytes > 0
            && c.free_bytes >= bytes
            && !tried.contains(&c.rack)
    };
    let fitting: Vec<Candidate> = racks.iter().filter(fits).copied().collect();
    if fitting.is_empty() {
        return None;
    }
    let chosen = match choice {
        Choice::Random => {
            let index = chooser.below(fitting.len() as u64);
            fitting[usize::try_from(index).expect("below a count of racks")].rack
        }
        Choice::LeastLoaded => {
            let room = |c: &Candidate| c.free_bytes.saturating_sub(c.promised_bytes);
            let most = fitting.iter().max_by_key(|c| (room(c), Reverse(c.rack)));
            most.expect("it is not empty").rack
        }
        Choice::RoundRobin => chooser.round_robin(&fitting),
        Choice::SmartIdle(_) => chooser.smart_idle(&fitting),
        Choice::Even(_) => chooser.even(&fitting, own, bytes),
    };
    chooser.last = Some(chosen);
    chooser.choices += 1;
    Some(chosen)
}

/// The shard that new memory goes to: a rack is chosen as by [`pick_rack`], by the sums over its
/// shards, then the shard of it with most room. Of a rack that is not divided that is the rack.
/// A shard in `tried` or without room for `bytes` is not chosen; `own` leaves out all of its
/// rack. `homes` are in the order of their ids.
pub fn pick_home(
    choice: Choice,
    homes: &[Candidate],
    request: PickRequest<'_>,
    now: Nanos,
    chooser: &mut Chooser,
) -> Option<RackId> {
    let PickRequest { own, bytes, tried } = request;
    let fits = |c: &&Candidate| {
        c.alive && c.free_bytes > 0 && c.free_bytes >= bytes && !tried.contains(&c.rack)
    };
    let mut racks: BTreeMap<RackId, Candidate> = BTreeMap::new();
    for home in homes.iter().filter(fits) {
        let rack = home.rack.rack();
        let none = Candidate { rack, free_bytes: 0, used_bytes: 0, promised_bytes: 0, ..*home };
        let sum = racks.entry(rack).or_insert(none);
        sum.free_bytes = sum.free_bytes.saturating_add(home.free_bytes);
        sum.used_bytes = sum.used_bytes.saturating_add(home.used_bytes);
        sum.promised_bytes = sum.promised_bytes.saturating_add(home.promised_bytes);
    }
    let racks: Vec<Candidate> = racks.into_values().collect();
    let request = PickRequest { own: own.rack(), bytes, tried: &[] };
    let rack = pick_rack(choice, &racks, request, now, chooser)?;
    let room = |c: &&Candidate| (c.free_bytes.saturating_sub(c.promised_bytes), Reverse(c.rack));
    let shards = homes.iter().filter(fits).filter(|c| c.rack.same_rack(rack));
    shards.max_by_key(room).map(|c| c.rack)
}

/// The smallest k with 2^k >= `count`, which is not 0.
fn ceil_log2(count: usize) -> usize {
    (usize::BITS - (count - 1).leading_zeros()) as usize
}
