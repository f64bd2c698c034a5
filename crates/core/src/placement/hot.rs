//! Which pages of other racks' memory are worth a frame of one's own. Pure: counts in, decision
//! out; the caller counts and moves.

use serde::{Deserialize, Serialize};

/// What makes a page hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotPages {
    /// Accesses in a window that make a remote page hot, not 0.
    pub accesses_min: u32,
    /// How many times as often as the page that leaves for it.
    pub times_victim: u32,
}

/// What the memory of one's own has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRoom {
    Free,
    /// A page that would leave, with its accesses in the window.
    Victim(u32),
    None,
}

/// What is done about a remote page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotDecision {
    /// It stays where it is.
    Stay,
    /// It comes into a free frame.
    Move,
    /// It and the victim change places.
    Swap,
}

impl HotPages {
    /// About a remote page with so many accesses in the window.
    pub fn decide(self, accesses: u32, room: OwnRoom) -> HotDecision {
        if accesses < self.accesses_min {
            return HotDecision::Stay;
        }
        match room {
            OwnRoom::Free => HotDecision::Move,
            OwnRoom::Victim(its) if accesses >= its.saturating_mul(self.times_victim) => {
                HotDecision::Swap
            }
            OwnRoom::Victim(_) | OwnRoom::None => HotDecision::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_page_comes_if_there_is_room_or_a_colder_page() {
        let hot = HotPages { accesses_min: 8, times_victim: 2 };
        for (accesses, room, decision) in [
            (7, OwnRoom::Free, HotDecision::Stay),
            (8, OwnRoom::Free, HotDecision::Move),
            (8, OwnRoom::Victim(4), HotDecision::Swap),
            (8, OwnRoom::Victim(5), HotDecision::Stay),
            (u32::MAX, OwnRoom::Victim(u32::MAX), HotDecision::Swap),
            (100, OwnRoom::None, HotDecision::Stay),
        ] {
            assert_eq!(hot.decide(accesses, room), decision, "{accesses} {room:?}");
        }
    }
}
