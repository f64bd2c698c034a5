//! Which memory a block comes from: a placement names nodes with weights, a policy chooses among
//! placements by size or by hint. Pure, and without allocation.
//!
//! The node that is next is the one with the least (bytes + half an extent) / weight (Webster's
//! method), so that the shares of what was placed are off by one extent at most.

use crate::Error;
use std::str::FromStr;

/// Nodes of a placement.
pub const SHARES_MAX: usize = 16;
/// Placements of a policy.
pub const PLACEMENTS_MAX: usize = 4;
/// Nodes that Linux can have.
pub(crate) const NODES_MAX: usize = 1024;
const WEIGHT_MAX: u16 = 255;
const UNBOUNDED: [usize; PLACEMENTS_MAX - 1] = [usize::MAX; PLACEMENTS_MAX - 1];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub node: u16,
    /// 1 to 255.
    pub weight: u16,
}

/// Nodes, and in which proportion they give memory.
///
/// As a text: `bind:1` (from no other node: a full one gives nothing), `preferred:1` (a full node
/// gives way to others), `weighted:0=3,1=1`. `bind` and `preferred` take weights as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    is_strict: bool,
    count: usize,
    shares: [Share; SHARES_MAX],
}

impl Placement {
    /// From this node alone: where it is full, there is no memory.
    ///
    /// # Errors
    /// [`Error::Policy`] for a number that no node has.
    pub fn bind(node: u16) -> Result<Placement, Error> {
        Ok(Placement { is_strict: true, ..Placement::weighted(&[Share { node, weight: 1 }])? })
    }

    /// From this node; where it is full, from others.
    ///
    /// # Errors
    /// As [`Placement::bind`].
    pub fn preferred(node: u16) -> Result<Placement, Error> {
        Placement::weighted(&[Share { node, weight: 1 }])
    }

    /// From several nodes in this proportion; where one is full, from others.
    ///
    /// # Errors
    /// [`Error::Policy`] for no share or more than [`SHARES_MAX`], a node twice, a weight out of
    /// bounds.
    pub fn weighted(wanted: &[Share]) -> Result<Placement, Error> {
        let mut shares = [Share { node: 0, weight: 0 }; SHARES_MAX];
        for (index, share) in wanted.iter().enumerate() {
            let is_twice = wanted[..index].iter().any(|other| other.node == share.node);
            let is_right = usize::from(share.node) < NODES_MAX
                && (1..=WEIGHT_MAX).contains(&share.weight)
                && !is_twice;
            match shares.get_mut(index) {
                Some(place) if is_right => *place = *share,
                _ => return Err(Error::Policy),
            }
        }
        match wanted.len() {
            0 => Err(Error::Policy),
            count => Ok(Placement { is_strict: false, count, shares }),
        }
    }

    pub fn shares(&self) -> &[Share] {
        &self.shares[..self.count]
    }

    /// From no other nodes.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// The index of the share that gets the next so many bytes, among those that may be chosen.
    pub(crate) fn next(
        &self,
        bytes: u64,
        placed: impl Fn(usize) -> u64,
        may_be: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let load = |index: usize| 2 * u128::from(placed(index)) + u128::from(bytes);
        let weight = |index: usize| u128::from(self.shares[index].weight);
        let less = |one: usize, other: usize| load(one) * weight(other) < load(other) * weight(one);
        let candidates = (0..self.count).filter(|index| may_be(*index));
        candidates.reduce(|best, index| if less(index, best) { index } else { best })
    }
}

impl FromStr for Placement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Placement, Error> {
        let (kind, list) = text.split_once(':').ok_or(Error::Policy)?;
        let mut shares = [Share { node: 0, weight: 0 }; SHARES_MAX];
        let mut count = 0;
        for part in list.split(',') {
            let (node, weight) = part.split_once('=').unwrap_or((part, "1"));
            let share = shares.get_mut(count).ok_or(Error::Policy)?;
            *share = Share { node: number(node)?, weight: number(weight)? };
            count += 1;
        }
        let placement = Placement::weighted(&shares[..count])?;
        match kind {
            "bind" => Ok(Placement { is_strict: true, ..placement }),
            "preferred" | "weighted" => Ok(placement),
            _ => Err(Error::Policy),
        }
    }
}

/// Digits alone: `parse` takes a sign.
fn number<N: FromStr>(text: &str) -> Result<N, Error> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| Error::Policy),
        false => Err(Error::Policy),
    }
}

/// What the program knows of a block's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Often used: the first placement of a policy by hint.
    #[default]
    Near,
    /// Seldom used, or read in long runs: the second one.
    Far,
}

/// Which placement a block comes from.
///
/// As a text: a placement; `size:4096;preferred:0;preferred:1`, blocks of up to 4096 bytes from the
/// first, longer ones from the second (with more bounds, as in `size:64,4096`, more placements);
/// `hint;preferred:0;preferred:1`.
///
/// ```
/// use rackpool_tiers_alloc::{Policy, Error};
///
/// let policy: Policy = "size:4096;preferred:0;weighted:0=1,1=3".parse()?;
/// assert_eq!(policy.placements().len(), 2);
/// assert_eq!("weighted:0=0".parse::<Policy>(), Err(Error::Policy));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The longest block of each placement but the last, bytes, ascending; `usize::MAX` for others.
    bounds: [usize; PLACEMENTS_MAX - 1],
    is_by_hint: bool,
    count: usize,
    placements: [Placement; PLACEMENTS_MAX],
}

impl From<Placement> for Policy {
    fn from(placement: Placement) -> Policy {
        let (bounds, placements) = (UNBOUNDED, [placement; PLACEMENTS_MAX]);
        Policy { bounds, is_by_hint: false, count: 1, placements }
    }
}

impl Policy {
    /// Blocks of up to so many bytes from a placement each, longer ones from the last.
    ///
    /// # Errors
    /// [`Error::Policy`] if the bounds do not ascend, or there are too many, or none.
    pub fn by_size(bounded: &[(usize, Placement)], rest: Placement) -> Result<Policy, Error> {
        let mut placements = [rest; PLACEMENTS_MAX];
        let mut bounds = UNBOUNDED;
        let ascends = bounded.is_sorted_by(|(one, _), (next, _)| one < next);
        if !ascends || !(1..PLACEMENTS_MAX).contains(&bounded.len()) {
            return Err(Error::Policy);
        }
        for (index, (bound, placement)) in bounded.iter().enumerate() {
            bounds[index] = *bound;
            placements[index] = *placement;
        }
        Ok(Policy { bounds, is_by_hint: false, count: bounded.len() + 1, placements })
    }

    pub fn by_hint(near: Placement, far: Placement) -> Policy {
        let placements = [near, far, far, far];
        Policy { bounds: UNBOUNDED, is_by_hint: true, count: 2, placements }
    }

    pub fn placements(&self) -> &[Placement] {
        &self.placements[..self.count]
    }

    /// Without a branch on the size, which is hard to foretell.
    #[inline]
    pub(crate) fn index(&self, bytes: usize, hint: Hint) -> usize {
        if self.count == 1 {
            return 0;
        }
        let longer = self.bounds.map(|bound| usize::from(bytes > bound));
        let is_second = self.is_by_hint & (hint == Hint::Far);
        longer.into_iter().sum::<usize>() + usize::from(is_second)
    }

    /// Whether a block stays where its hint put it when its size changes.
    pub(crate) fn is_by_hint(&self) -> bool {
        self.is_by_hint
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy, Error> {
        let Some((rule, list)) = text.split_once(';') else {
            return Ok(text.parse::<Placement>()?.into());
        };
        if rule == "hint" {
            let (near, far) = list.split_once(';').ok_or(Error::Policy)?;
            return Ok(Policy::by_hint(near.parse()?, far.parse()?));
        }
        let bounds = rule.strip_prefix("size:").ok_or(Error::Policy)?;
        let (list, rest) = list.rsplit_once(';').ok_or(Error::Policy)?;
        let rest: Placement = rest.parse()?;
        let mut bounded = [(0, rest); PLACEMENTS_MAX - 1];
        let (mut bounds, mut placements) = (bounds.split(','), list.split(';'));
        let mut count = 0;
        loop {
            match (bounds.next(), placements.next(), bounded.get_mut(count)) {
                (Some(bound), Some(placement), Some(place)) => {
                    *place = (number(bound)?, placement.parse()?);
                }
                (None, None, _) => return Policy::by_size(&bounded[..count], rest),
                _ => return Err(Error::Policy),
            }
            count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_read_as_the_constructors_make_them_and_others_are_refused() {
        let weighted = [Share { node: 0, weight: 3 }, Share { node: 1, weight: 1 }];
        assert_eq!(policy("bind:7"), Placement::bind(7).unwrap().into());
        assert_eq!(policy("preferred:1023"), Placement::preferred(1023).unwrap().into());
        let weighted = Placement::weighted(&weighted).unwrap();
        assert_eq!(policy("weighted:0=3,1=1"), weighted.into());
        assert!(policy("bind:0=3,1=1").placements()[0].is_strict());
        let (near, far) = (Placement::preferred(0).unwrap(), Placement::bind(1).unwrap());
        assert_eq!(policy("hint;preferred:0;bind:1"), Policy::by_hint(near, far));
        let by_size = Policy::by_size(&[(64, near), (4096, far)], weighted).unwrap();
        assert_eq!(policy("size:64,4096;preferred:0;bind:1;weighted:0=3,1=1"), by_size);
        for wrong in [
            "",
            "bind",
            "bind:",
            "bind:x",
            "bind:+1",
            "bind:1024",
            "bind:1=0",
            "bind:1=256",
            "bind:0,0",
            "other:0",
            "hint;bind:0",
            "hint;bind:0;bind:1;bind:2",
            "size:;bind:0;bind:1",
            "size:5;bind:0",
            "size:5,4;bind:0;bind:1;bind:2",
            "size:5;bind:0;bind:1;bind:2",
            "size:1,2,3,4;bind:0;bind:1;bind:2;bind:3;bind:4",
            "weighted:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
        ] {
            assert_eq!(wrong.parse::<Policy>(), Err(Error::Policy), "{wrong}");
        }
    }

    #[test]
    fn blocks_are_routed_by_size_or_by_hint() {
        let by_size = policy("size:64,4096;bind:0;bind:1;bind:2");
        let found = [0, 64, 65, 4096, 4097, usize::MAX].map(|size| by_size.index(size, Hint::Far));
        assert_eq!(found, [0, 0, 1, 1, 2, 2]);
        let by_hint = policy("hint;bind:0;bind:1");
        assert_eq!([Hint::Near, Hint::Far].map(|hint| by_hint.index(9, hint)), [0, 1]);
    }

    #[test]
    fn shares_are_off_by_one_extent_at_most_at_any_time() {
        for text in ["weighted:0=1,1=1", "weighted:0=3,1=1", "weighted:0=6,1=1", "bind:0=5,1=2,2=1"]
        {
            let placement: Placement = text.parse().unwrap();
            let sum: u64 = placement.shares().iter().map(|share| u64::from(share.weight)).sum();
            let mut placed = [0u64; SHARES_MAX];
            for count in 1..=1000u64 {
                placed[placement.next(1, |index| placed[index], |_| true).unwrap()] += 1;
                for (share, placed) in placement.shares().iter().zip(placed) {
                    let due = count * u64::from(share.weight);
                    assert!((placed * sum).abs_diff(due) <= sum, "{text} at {count}");
                }
            }
        }
        let placement: Placement = "weighted:0=1,1=1".parse().unwrap();
        assert_eq!(placement.next(1, |_| 0, |index| index == 1), Some(1));
        assert_eq!(placement.next(1, |_| 0, |_| false), None);
    }
}
