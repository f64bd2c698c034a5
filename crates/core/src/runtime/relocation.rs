//! The loop of the worker that moves pages for a rack: one step of a [`Relocator`] after another as
//! long as the rack wants something, with pauses that keep small what asking in vain takes of the
//! processors.
//!
//! - A page that was asked for in vain is followed by a pause of as long as asking took, the next
//!   one by one of twice as long, and so on.
//! - A pass over the pages of a draining rack that moved nothing, or a step that could not ask at
//!   all, is followed by a pause that doubles each time.
//! - Whether cold pages go elsewhere is asked again after a longer time, or soon after one went:
//!   the allowance says how many go in a second.

use super::{Backoff, WorkerHost};
use crate::client::{RelocationOutcome, Relocator};
use crate::constants::{MOVER_PAUSE_NS_MAX, MOVER_PAUSE_TIMES_MAX, NS_PER_MS, NS_PER_SECOND};
use crate::error::Result;
use crate::policy::{AccessCosts, Decision, MoveReport};
use crate::seam::{Mem, Nanos};
use crate::{GAddr, RackId};

/// How long what was measured is believed, ns.
const COSTS_NS: Nanos = 10 * NS_PER_SECOND;
/// How soon after a cold page the next one may go, ns.
const NEXT_PUSH_NS: Nanos = NS_PER_MS;

#[allow(async_fn_in_trait, reason = "as WorkerHost")]
pub trait RelocationHost<M: Mem> {
    fn worker(&mut self) -> &mut impl WorkerHost<M>;
    /// Returns when the daemon may want something, at `until_ns`, or when the worker is to end.
    async fn wait_for_work(&mut self, until_ns: Nanos);
    /// Finds out what accesses and copies between this rack and another one cost; the page at `at`
    /// is there. From now on the other one's pages are wanted here.
    async fn measure(&mut self, rack: RackId, at: GAddr) -> Result<AccessCosts>;
    /// Told how each step ended, for people and counters.
    fn note(&mut self, outcome: &Result<RelocationOutcome>);
}

#[derive(Clone, Copy, Debug)]
pub struct RelocationOptions {
    /// Whether the worker goes on when the daemon wants nothing; else it only empties the rack.
    pub stays: bool,
    /// After a step that could not ask, or a pass that moved nothing: memory that is freed,
    /// unlocked or unpinned goes this much later.
    pub backoff: Backoff,
    /// Cold pages may go to racks with more room; after how long this is asked again if none went,
    /// ns.
    pub balance_ns: Option<Nanos>,
}

/// Moves pages until the rack has left the pool, or the host is stopped.
pub async fn relocate<M: Mem>(host: &mut impl RelocationHost<M>, options: RelocationOptions) {
    let RelocationOptions { stays, mut backoff, balance_ns } = options;
    let (mut relocator, mut in_vain) = (Relocator::default(), PullPauses::default());
    let mut measured_at = host.worker().now_ns();
    // A rack that has just started is told how full the others are only after a heartbeat.
    let mut balance_at = balance_ns.map_or(Nanos::MAX, |ns| measured_at.saturating_add(ns));
    host.wait_for_work(balance_at).await;
    while !host.worker().is_stopped() {
        let started_ns = host.worker().now_ns();
        if started_ns.saturating_sub(measured_at) >= COSTS_NS {
            relocator.forget_costs();
            measured_at = started_ns;
        }
        // A page whose costs are known now comes first, and nothing is asked.
        let balances = started_ns >= balance_at && !relocator.has_pending();
        let outcome = host.worker().perform(|id| relocator.step(id, balances)).await;
        let now_ns = host.worker().now_ns();
        let took_ns = now_ns.saturating_sub(started_ns);
        host.note(&outcome);
        if balances {
            let went = matches!(outcome, Ok(RelocationOutcome::Pushed(..)));
            let again_ns = if went { Some(NEXT_PUSH_NS) } else { balance_ns };
            balance_at = now_ns.saturating_add(again_ns.unwrap_or(Nanos::MAX));
        }
        let pause_ns = match outcome {
            Ok(RelocationOutcome::Left) => return,
            Ok(RelocationOutcome::Idle) if !stays => return,
            Ok(RelocationOutcome::Idle) => {
                backoff.reset();
                host.wait_for_work(balance_at).await;
                continue;
            }
            Ok(RelocationOutcome::Unmeasured(rack, at)) => {
                match host.measure(rack, at).await {
                    Ok(costs) => relocator.measured(rack, costs),
                    Err(error) => {
                        host.note(&Err(error));
                        relocator.unmeasurable();
                    }
                }
                continue;
            }
            Ok(RelocationOutcome::Pulled(report, _)) => {
                let until_balance_ns = balance_at.saturating_sub(now_ns);
                in_vain.pause_ns(&report, took_ns).min(until_balance_ns)
            }
            Ok(RelocationOutcome::Pushed(_, sent)) => {
                if matches!(sent, Ok(Some(_))) {
                    relocator.moved_in(took_ns);
                }
                continue;
            }
            Ok(RelocationOutcome::Evacuated(..)) => continue,
            Ok(RelocationOutcome::PassOver(report)) if report.moved > 0 => {
                backoff.reset();
                continue;
            }
            Ok(RelocationOutcome::PassOver(_)) | Err(_) => backoff.pause_ns(),
        };
        host.worker().sleep(pause_ns).await;
    }
}

/// Pauses after pages that were asked for, so that asking in vain takes little of the processors.
#[derive(Debug, Default)]
struct PullPauses {
    /// Questions one after another that moved nothing.
    in_vain: u32,
}

impl PullPauses {
    /// For how long to pause after a question that took `took_ns`.
    fn pause_ns(&mut self, report: &MoveReport, took_ns: Nanos) -> Nanos {
        let decision = report.decided.map(|decided| decided.decision);
        if report.moved_bytes > 0 || matches!(decision, Some(Decision::Replicate { .. })) {
            self.in_vain = 0;
            return 0;
        }
        let times = 1_u64.checked_shl(self.in_vain).unwrap_or(u64::MAX);
        self.in_vain = self.in_vain.saturating_add(1);
        took_ns.saturating_mul(times.min(MOVER_PAUSE_TIMES_MAX.into())).min(MOVER_PAUSE_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageId;
    use crate::policy::{Decided, HeatEffect, Reason};

    #[test]
    fn asking_in_vain_is_followed_by_longer_and_longer_pauses() {
        let mut pauses_of = PullPauses::default();
        let report = |decision, moved_bytes| {
            let decided = Some(Decided { decision, effect: HeatEffect::Keep });
            MoveReport { page: PageId(7), decided, moved_bytes, failed: None }
        };
        let vain = report(Decision::Leave(Reason::Even), 0);
        let mut pauses = |count: usize, report: &MoveReport, took_ns| -> Vec<u64> {
            (0..count).map(|_| pauses_of.pause_ns(report, took_ns)).collect()
        };
        assert_eq!(pauses(10, &vain, 10), [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 2560]);
        assert_eq!(pauses(100, &vain, u64::MAX).last(), Some(&NS_PER_SECOND));
        let moved = report(Decision::Move { to: RackId(0) }, 4096);
        let copied = report(Decision::Replicate { lease_ms: 9 }, 0);
        for good in [moved, copied] {
            assert_eq!(pauses(1, &good, 10), [0]);
            assert_eq!(pauses(2, &vain, 10), [10, 20]);
        }
    }
}
