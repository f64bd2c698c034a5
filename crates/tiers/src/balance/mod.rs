//! Hot pages up, cold ones down, while this process runs. In: a topology, a target. Out: a
//! [`Balance`], which tells what was moved, and sets everything back as it was.
//!
//! By schemes of DAMON ([`Plan`]), or by the kernel's own tiering. What was set before is kept in a
//! file before the first change ([`StateFile`]), and set back from there if the process was killed.
//! All files of the kernel are behind [`Kernel`]. Called by `rackpool tiers balance`.
//!
//! Source: HMSDK (`gen_migpol.py`); Linux `Documentation/admin-guide/mm/damon/usage.rst`.

mod damon;
mod error;
mod kernel;
mod plan;
mod process;
mod state;
mod tiering;

pub use damon::Counts;
pub use error::BalanceError;
pub use kernel::{Disk, Kernel, Write};
pub use plan::{Direction, Kdamond, Parameters, Plan, Scheme, Sides, Target, Watched};
pub use state::{STATE_FOLDER, StateFile};

use crate::topology::Topology;
use damon::SavedKdamonds;
use kernel::Rehearsal;
use process::WatchedProcess;
use state::Saved;
use tiering::PageCounts;

#[derive(Clone, Debug, PartialEq)]
pub enum Mechanism {
    Damon(Plan),
    KernelTiering,
}

/// What was moved since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub direction: Direction,
    /// None where the kernel does not tell nodes apart.
    pub scheme: Option<Scheme>,
    pub bytes: u64,
    pub counts: Option<Counts>,
}

/// Everything that would be written.
///
/// # Errors
/// As [`Balance::start`].
pub fn rehearse(
    kernel: &dyn Kernel,
    topology: &Topology,
    target: &Target,
    mechanism: &Mechanism,
    states: &StateFile,
) -> Result<Vec<Write>, BalanceError> {
    states.require_none(kernel)?;
    WatchedProcess::of(kernel, target)?;
    let mut saved = Saved::new(kernel, states)?;
    before(kernel, topology, mechanism, &mut saved)?;
    let rehearsal = Rehearsal::new(kernel);
    set(&rehearsal, mechanism, &mut |_| Ok(()))?;
    Ok(rehearsal.into_writes())
}

/// Reads what is set, and whether it may be changed.
fn before(
    kernel: &dyn Kernel,
    topology: &Topology,
    mechanism: &Mechanism,
    saved: &mut Saved,
) -> Result<(), BalanceError> {
    match mechanism {
        Mechanism::KernelTiering => {
            let before = tiering::before(kernel, topology)?;
            saved.numa_balancing = Some(before.numa_balancing);
            saved.demotion_enabled = Some(before.demotion_enabled);
            Ok(())
        }
        Mechanism::Damon(plan) => {
            let before = damon::before(kernel)?;
            saved.damon_statistics = damon::has_statistics(kernel);
            let made = plan.kdamonds.len() as u64;
            saved.kdamonds = Some(SavedKdamonds { before, made, threads: Vec::new() });
            Ok(())
        }
    }
}

fn set(
    kernel: &dyn Kernel,
    mechanism: &Mechanism,
    started: &mut dyn FnMut(Option<u32>) -> Result<(), BalanceError>,
) -> Result<(), BalanceError> {
    match mechanism {
        Mechanism::KernelTiering => tiering::set(kernel),
        Mechanism::Damon(plan) => damon::set(kernel, plan, started),
    }
}

/// Memory that is balanced, until it is stopped.
pub struct Balance<'b> {
    kernel: &'b dyn Kernel,
    states: &'b StateFile,
    mechanism: &'b Mechanism,
    process: Option<WatchedProcess>,
    saved: Saved,
    pages_before: PageCounts,
    counts: Vec<Counts>,
}

impl<'b> Balance<'b> {
    /// Takes what is set, and begins. Where it cannot, everything is as before.
    ///
    /// # Errors
    /// [`BalanceError`].
    pub fn start(
        kernel: &'b dyn Kernel,
        topology: &Topology,
        target: &Target,
        mechanism: &'b Mechanism,
        states: &'b StateFile,
    ) -> Result<Balance<'b>, BalanceError> {
        states.require_none(kernel)?;
        let process = WatchedProcess::of(kernel, target)?;
        let mut saved = Saved::new(kernel, states)?;
        before(kernel, topology, mechanism, &mut saved)?;
        let (pages_before, schemes) = match mechanism {
            Mechanism::KernelTiering => (PageCounts::read(kernel)?, 0),
            Mechanism::Damon(plan) => (PageCounts::default(), plan.schemes().count()),
        };
        states.create(&saved)?;
        let is_set = set(kernel, mechanism, &mut |thread| {
            if let Some(kdamonds) = &mut saved.kdamonds {
                kdamonds.threads.push(thread);
            }
            states.replace(&saved)
        });
        if let Err(error) = is_set {
            states.restore_saved(kernel, &saved)?;
            return Err(error);
        }
        let counts = vec![Counts::default(); schemes];
        Ok(Balance { kernel, states, mechanism, process, saved, pages_before, counts })
    }

    /// Whether there is still something to balance.
    pub fn has_target(&self) -> bool {
        match (&self.process, self.mechanism) {
            (Some(process), _) => process.is_alive(self.kernel),
            (None, Mechanism::Damon(Plan { cgroups, .. })) => {
                cgroups.first().is_none_or(|path| plan::has_cgroup(self.kernel, path))
            }
            (None, Mechanism::KernelTiering) => true,
        }
    }

    /// Whether it is still on: another program may have ended it.
    ///
    /// # Errors
    /// Those of files.
    pub fn is_on(&self) -> Result<bool, BalanceError> {
        match self.mechanism {
            Mechanism::KernelTiering => tiering::is_on(self.kernel),
            Mechanism::Damon(plan) => damon::is_on(self.kernel, plan),
        }
    }

    /// What was moved so far. With DAMON it blocks for an aggregation of each kdamond.
    ///
    /// # Errors
    /// Those of files.
    pub fn look(&mut self) -> Result<Vec<Moved>, BalanceError> {
        match self.mechanism {
            Mechanism::KernelTiering => {
                let (now, before) = (PageCounts::read(self.kernel)?, self.pages_before);
                let page_bytes = rustix::param::page_size() as u64;
                let moved = |direction, now: u64, before: u64| Moved {
                    direction,
                    scheme: None,
                    bytes: now.saturating_sub(before).saturating_mul(page_bytes),
                    counts: None,
                };
                Ok(vec![
                    moved(Direction::Demote, now.demoted, before.demoted),
                    moved(Direction::Promote, now.promoted, before.promoted),
                ])
            }
            Mechanism::Damon(plan) => {
                damon::counts(self.kernel, plan, &mut self.counts)?;
                let moved = |(scheme, counts): (&Scheme, &Counts)| Moved {
                    direction: scheme.direction,
                    scheme: Some(scheme.clone()),
                    bytes: counts.applied_bytes,
                    counts: Some(*counts),
                };
                Ok(plan.schemes().zip(&self.counts).map(moved).collect())
            }
        }
    }

    /// Ends it, and sets everything as it was.
    ///
    /// # Errors
    /// [`BalanceError::NotRestored`].
    pub fn stop(self) -> Result<(), BalanceError> {
        self.states.restore_saved(self.kernel, &self.saved)
    }
}

#[cfg(test)]
mod tests;
