//! The best that any policy could do that knows the future and never moves a page again. For tests
//! and reports: what a policy gains is told as a share of what this gains.

use std::cmp::Reverse;

/// Accesses of one page by each of two racks, over the whole run.
pub type Accesses = [u64; 2];

/// Where each page should live, and what is remote then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimalPlacement {
    /// For each page the index of its rack, 0 or 1.
    pub racks: Vec<u8>,
    /// Accesses of the other rack over all pages.
    pub remote_accesses: u64,
}

/// The pages do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pages} pages do not fit into racks of {first} and {second}")]
pub struct DoesNotFit {
    pub pages: usize,
    /// Pages that rack 0 takes.
    pub first: usize,
    /// Pages that rack 1 takes.
    pub second: usize,
}

/// The placement with the fewest remote accesses: each page in one of two racks, `capacity_pages`
/// of equal size in each, no copies.
///
/// Pages are sorted by how much more rack 0 uses them than rack 1. If an optimal placement had a
/// page in rack 1 that stands before one in rack 0, changing the two would lose nothing; so some
/// optimum gives rack 0 the first pages, and only their number is open: all that rack 0 uses more,
/// as far as both capacities allow. This holds for two racks; more are a transport problem.
pub fn best_static_placement(
    pages: &[Accesses],
    capacity_pages: [usize; 2],
) -> Result<OptimalPlacement, DoesNotFit> {
    let [first, second] = capacity_pages;
    if first.saturating_add(second) < pages.len() {
        return Err(DoesNotFit { pages: pages.len(), first, second });
    }
    let gain = |page: usize| i128::from(pages[page][0]) - i128::from(pages[page][1]);
    let mut order: Vec<usize> = (0..pages.len()).collect();
    order.sort_by_key(|&page| (Reverse(gain(page)), page));
    let wanted = order.iter().filter(|&&page| gain(page) > 0).count();
    let count = wanted.min(first).max(pages.len().saturating_sub(second));
    let mut racks = vec![1; pages.len()];
    for &page in &order[..count] {
        racks[page] = 0;
    }
    let remote_accesses = remote_accesses(pages, &racks);
    Ok(OptimalPlacement { racks, remote_accesses })
}

/// Accesses of the other rack over all pages, if page `i` lives in `racks[i]`.
pub fn remote_accesses(pages: &[Accesses], racks: &[u8]) -> u64 {
    let remote = |(page, &rack): (&Accesses, &u8)| page[usize::from(rack == 0)];
    pages.iter().zip(racks).map(remote).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_that_do_not_fit_are_refused() {
        let refused = best_static_placement(&[[1, 2]; 5], [2, 2]).unwrap_err();
        assert_eq!(refused, DoesNotFit { pages: 5, first: 2, second: 2 });
        assert_eq!(best_static_placement(&[], [0, 0]).unwrap().remote_accesses, 0);
    }

    proptest! {
        #[test]
        fn no_other_placement_has_fewer_remote_accesses(
            pages in proptest::collection::vec(any::<[u8; 2]>(), 0..9),
            first in 0_usize..9,
            second in 0_usize..9,
        ) {
            let pages: Vec<Accesses> = pages.iter().map(|page| page.map(u64::from)).collect();
            let mut best = None;
            for places in 0_u32..1 << pages.len() {
                let racks: Vec<u8> =
                    (0..pages.len()).map(|page| (places >> page & 1) as u8).collect();
                let in_second = racks.iter().filter(|&&rack| rack == 1).count();
                if in_second <= second && pages.len() - in_second <= first {
                    let remote = remote_accesses(&pages, &racks);
                    best = Some(best.map_or(remote, |best: u64| best.min(remote)));
                }
            }
            let placed = best_static_placement(&pages, [first, second]);
            prop_assert_eq!(placed.as_ref().ok().map(|placed| placed.remote_accesses), best);
            if let Ok(placed) = placed {
                let in_second = placed.racks.iter().filter(|&&rack| rack == 1).count();
                prop_assert!(in_second <= second && pages.len() - in_second <= first);
            }
        }
    }
}
