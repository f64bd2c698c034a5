//! DAMON by its files in `/sys`: writes a plan, reads what its schemes moved, and takes back what
//! it wrote. A number of directories that is written is made by the kernel, and what was in them
//! before is gone: so kdamonds of other programs are looked for first, and left alone.
//!
//! Source: Linux `Documentation/admin-guide/mm/damon/usage.rst`; HMSDK (`gen_migpol.py`).

use super::BalanceError;
use super::kernel::{Kernel, is_absent, number, put, put_if_there, text};
use super::plan::{Direction, Kdamond, Plan, Scheme, Watched};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Modules of the kernel that let no other user of DAMON in.
const MODULES: [&str; 2] = ["damon_reclaim", "damon_lru_sort"];
/// The module that some kernels have on from the start. Source: Linux `mm/damon/stat.c`.
const STATISTICS: &str = "damon_stat";
const OFF: &str = "off";
const BASIS_POINTS: f64 = 10_000.0;
/// So much more than is aimed at free is promoted into, that hot pages have cold ones make room.
/// Source: Linux `samples/damon/mtier.c`.
const OVERLAP_SHARE: f64 = 0.002;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedKdamonds {
    /// How many there were, none of them in use.
    pub(super) before: u64,
    /// How many are ours.
    pub(super) made: u64,
    /// Of those that were turned on; none where the kernel does not say it.
    pub(super) threads: Vec<Option<u32>>,
}

fn count_file() -> String {
    format!("{KDAMONDS}/nr_kdamonds")
}

/// How many kdamonds there are, none of them in use.
pub(super) fn before(kernel: &dyn Kernel) -> Result<u64, BalanceError> {
    let count = match number(kernel, &count_file()) {
        Err(BalanceError::Io { source, .. }) if is_absent(&source) => {
            return Err(BalanceError::NoDamon);
        }
        count => count?,
    };
    let mut in_use = Vec::new();
    for index in 0..count {
        let at = format!("{KDAMONDS}/{index}");
        let is_off = text(kernel, &format!("{at}/state"))? == OFF;
        if !is_off || number(kernel, &format!("{at}/contexts/nr_contexts"))? > 0 {
            in_use.push(told(kernel, index));
        }
    }
    if !in_use.is_empty() {
        return Err(BalanceError::InUse { kdamonds: in_use.join("; ") });
    }
    match MODULES.into_iter().find(|module| is_module_on(kernel, module)) {
        Some(module) => Err(BalanceError::Module { module }),
        None => Ok(count),
    }
}

fn switch(module: &str) -> String {
    format!("/sys/module/{module}/parameters/enabled")
}

fn is_module_on(kernel: &dyn Kernel, module: &str) -> bool {
    kernel.read(&switch(module)).is_ok_and(|enabled| enabled == "Y")
}

/// Whether the kernel's statistics by DAMON are on: they too let no other user in, but nothing is
/// lost while they are off.
pub(super) fn has_statistics(kernel: &dyn Kernel) -> bool {
    is_module_on(kernel, STATISTICS)
}

pub(super) fn set_statistics(kernel: &dyn Kernel, is_on: bool) -> Result<(), BalanceError> {
    put(kernel, &switch(STATISTICS), if is_on { "Y" } else { "N" })
}

/// A kdamond in words, such as `kdamond 0 (on, paddr, pageout)`.
fn told(kernel: &dyn Kernel, index: u64) -> String {
    let at = format!("{KDAMONDS}/{index}");
    let files = ["state", "contexts/0/operations", "contexts/0/schemes/0/action"]
        .map(|f| format!("{at}/{f}"));
    let words: Vec<String> = files.iter().filter_map(|file| kernel.read(file).ok()).collect();
    format!("kdamond {index} ({})", words.join(", "))
}

/// Writes a plan and turns it on; `started` gets the thread of each kdamond.
pub(super) fn set(
    kernel: &dyn Kernel,
    plan: &Plan,
    started: &mut dyn FnMut(Option<u32>) -> Result<(), BalanceError>,
) -> Result<(), BalanceError> {
    if has_statistics(kernel) {
        set_statistics(kernel, false)?;
    }
    put(kernel, &count_file(), plan.kdamonds.len())?;
    for (index, kdamond) in plan.kdamonds.iter().enumerate() {
        let at = format!("{KDAMONDS}/{index}");
        put(kernel, &format!("{at}/contexts/nr_contexts"), 1)?;
        Context { kernel, plan, at: format!("{at}/contexts/0") }.write(kdamond)?;
    }
    for index in 0..plan.kdamonds.len() {
        let at = format!("{KDAMONDS}/{index}");
        put(kernel, &format!("{at}/state"), "on")?;
        started(thread(kernel, &at))?;
    }
    Ok(())
}

/// The thread of a kdamond that runs.
fn thread(kernel: &dyn Kernel, at: &str) -> Option<u32> {
    text(kernel, &format!("{at}/pid")).ok()?.parse().ok()
}

/// What a kdamond watches and does.
struct Context<'c> {
    kernel: &'c dyn Kernel,
    plan: &'c Plan,
    /// Its folder.
    at: String,
}

impl Context<'_> {
    fn put(&self, file: &str, value: impl std::fmt::Display) -> Result<(), BalanceError> {
        put(self.kernel, &format!("{}/{file}", self.at), value)
    }

    fn put_if_there(
        &self,
        file: &str,
        value: impl std::fmt::Display,
    ) -> Result<bool, BalanceError> {
        put_if_there(self.kernel, &format!("{}/{file}", self.at), value)
    }

    fn write(&self, kdamond: &Kdamond) -> Result<(), BalanceError> {
        self.operations(&kdamond.watched)?;
        let parameters = &self.plan.parameters;
        self.put("monitoring_attrs/intervals/sample_us", parameters.sample.as_micros())?;
        self.put("monitoring_attrs/intervals/aggr_us", parameters.aggregation.as_micros())?;
        self.put("monitoring_attrs/intervals/update_us", parameters.update.as_micros())?;
        self.put("monitoring_attrs/nr_regions/min", parameters.regions_min)?;
        self.put("monitoring_attrs/nr_regions/max", parameters.regions_max)?;
        self.put("targets/nr_targets", 1)?;
        match &kdamond.watched {
            Watched::Process(pid) => self.put("targets/0/pid_target", pid)?,
            Watched::Physical(ranges) => {
                self.put("targets/0/regions/nr_regions", ranges.len())?;
                for (index, range) in ranges.iter().enumerate() {
                    self.put(&format!("targets/0/regions/{index}/start"), range.start)?;
                    self.put(&format!("targets/0/regions/{index}/end"), range.end)?;
                }
            }
        }
        self.put("schemes/nr_schemes", kdamond.schemes.len())?;
        for (index, scheme) in kdamond.schemes.iter().enumerate() {
            self.scheme(&format!("schemes/{index}"), scheme, &kdamond.watched)?;
        }
        Ok(())
    }

    fn operations(&self, watched: &Watched) -> Result<(), BalanceError> {
        let (operations, option) = match watched {
            Watched::Physical(_) => ("paddr", "CONFIG_DAMON_PADDR"),
            Watched::Process(_) => ("vaddr", "CONFIG_DAMON_VADDR"),
        };
        // A rehearsal has no such file.
        let there = self.kernel.read(&format!("{}/avail_operations", self.at));
        if let Ok(there) = there
            && !there.split_whitespace().any(|name| name == operations)
        {
            let there = there.split_whitespace().collect::<Vec<_>>().join(", ");
            return Err(BalanceError::NoOperations { operations, option, there });
        }
        self.put("operations", operations)
    }

    fn scheme(&self, at: &str, scheme: &Scheme, watched: &Watched) -> Result<(), BalanceError> {
        let parameters = &self.plan.parameters;
        let direction = scheme.direction;
        self.destination(at, scheme, watched)?;
        let action = match direction {
            Direction::Demote => "migrate_cold",
            Direction::Promote => "migrate_hot",
        };
        match self.put(&format!("{at}/action"), action) {
            Err(BalanceError::Refused { source, .. }) if is_invalid(&source) => {
                return Err(BalanceError::NoMigrate);
            }
            written => written?,
        }
        let (accesses_min, accesses_max) = parameters.accesses(direction);
        for (name, least, most) in [
            ("sz", 4096, u64::MAX),
            ("nr_accesses", accesses_min, accesses_max),
            ("age", parameters.age(direction), u64::from(u32::MAX)),
        ] {
            self.put(&format!("{at}/access_pattern/{name}/min"), least)?;
            self.put(&format!("{at}/access_pattern/{name}/max"), most)?;
        }
        let quotas = format!("{at}/quotas");
        self.put(&format!("{quotas}/ms"), parameters.time(direction).as_millis())?;
        self.put(&format!("{quotas}/bytes"), parameters.quota_bytes)?;
        let interval = parameters.quota_interval.as_millis();
        self.put(&format!("{quotas}/reset_interval_ms"), interval)?;
        // Within the quota: the hottest or coldest first, whatever its size.
        self.put(&format!("{quotas}/weights/sz_permil"), 0)?;
        self.put(&format!("{quotas}/weights/nr_accesses_permil"), 500)?;
        self.put(&format!("{quotas}/weights/age_permil"), 500)?;
        self.goal(&quotas, scheme)?;
        self.filters(at, scheme, watched)
    }

    fn destination(
        &self,
        at: &str,
        scheme: &Scheme,
        watched: &Watched,
    ) -> Result<(), BalanceError> {
        let several = if let [_] = scheme.to[..] { 0 } else { scheme.to.len() };
        if let Watched::Process(pid) = watched {
            // Several destinations come with the same kernel as moves for one process.
            if !self.put_if_there(&format!("{at}/dests/nr_dests"), several)? {
                return Err(BalanceError::NoProcessMigrate { pid: *pid });
            }
            for (index, node) in scheme.to.iter().enumerate().take(several) {
                self.put(&format!("{at}/dests/{index}/id"), node)?;
                self.put(&format!("{at}/dests/{index}/weight"), 1)?;
            }
        }
        match self.put_if_there(&format!("{at}/target_nid"), scheme.to[0])? {
            true => Ok(()),
            false => Err(BalanceError::NoMigrate),
        }
    }

    /// Where the kernel has goals of a node (Linux 6.16).
    fn goal(&self, quotas: &str, scheme: &Scheme) -> Result<(), BalanceError> {
        let Some(free) = self.plan.parameters.free_share else { return Ok(()) };
        let goals = format!("{quotas}/goals");
        if !self.put_if_there(&format!("{goals}/nr_goals"), 1)? {
            return Ok(());
        }
        if !self.put_if_there(&format!("{goals}/0/nid"), scheme.fast())? {
            return self.put(&format!("{goals}/nr_goals"), 0);
        }
        let (metric, share) = match scheme.direction {
            Direction::Demote => ("node_mem_free_bp", free),
            Direction::Promote => ("node_mem_used_bp", (1.0 - free + OVERLAP_SHARE).min(1.0)),
        };
        self.put(&format!("{goals}/0/target_metric"), metric)?;
        let value = (share * BASIS_POINTS).round() as u64;
        self.put(&format!("{goals}/0/target_value"), value)?;
        // The kernel's first tuner starts at one byte, and takes a minute to move anything.
        self.put_if_there(&format!("{quotas}/goal_tuner"), "temporal").map(drop)
    }

    fn filters(&self, at: &str, scheme: &Scheme, watched: &Watched) -> Result<(), BalanceError> {
        let cgroups = &self.plan.cgroups;
        // What was accessed since it was looked at is not cold: page by page, as HMSDK has it.
        let is_young_kept =
            scheme.direction == Direction::Demote && matches!(watched, Watched::Physical(_));
        let count = usize::from(is_young_kept) + cgroups.len();
        if count == 0 {
            return Ok(());
        }
        self.put(&format!("{at}/filters/nr_filters"), count)?;
        if is_young_kept {
            self.put(&format!("{at}/filters/0/type"), "young")?;
            self.put(&format!("{at}/filters/0/matching"), "Y")?;
        }
        for (index, cgroup) in cgroups.iter().enumerate() {
            let at = format!("{at}/filters/{}", usize::from(is_young_kept) + index);
            self.put(&format!("{at}/type"), "memcg")?;
            self.put(&format!("{at}/memcg_path"), cgroup)?;
            // The first filter that a page matches decides. Each group but the last is let in, then
            // all that is not of the last one is left out: Linux 6.14 lets in what matches none.
            let is_last = index + 1 == cgroups.len();
            self.put(&format!("{at}/matching"), if is_last { "N" } else { "Y" })?;
            if !is_last && !self.put_if_there(&format!("{at}/allow"), "Y")? {
                return Err(BalanceError::CgroupsWithin { path: cgroups[0].clone() });
            }
        }
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    has_number(error, Errno::INVAL)
}

fn has_number(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

/// What a scheme did since it was turned on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub tried_regions: u64,
    pub tried_bytes: u64,
    pub applied_regions: u64,
    pub applied_bytes: u64,
    /// How often a quota was used up.
    pub quota_exceeded: u64,
}

/// What all schemes did, in the order of [`Plan::schemes`]. Blocks for an aggregation of each
/// kdamond.
pub(super) fn counts(
    kernel: &dyn Kernel,
    plan: &Plan,
    last: &mut [Counts],
) -> Result<(), BalanceError> {
    let mut last = last.iter_mut();
    for (index, kdamond) in plan.kdamonds.iter().enumerate() {
        let at = format!("{KDAMONDS}/{index}");
        let of_kdamond = last.by_ref().take(kdamond.schemes.len());
        match put(kernel, &format!("{at}/state"), "update_schemes_stats") {
            // What was seen last stays.
            Err(error) if has_no_counts(&error) => {
                of_kdamond.for_each(drop);
                continue;
            }
            written => written?,
        }
        for (scheme, counts) in of_kdamond.enumerate() {
            let stat = |name: &str| {
                number(kernel, &format!("{at}/contexts/0/schemes/{scheme}/stats/{name}"))
            };
            *counts = Counts {
                tried_regions: stat("nr_tried")?,
                tried_bytes: stat("sz_tried")?,
                applied_regions: stat("nr_applied")?,
                applied_bytes: stat("sz_applied")?,
                quota_exceeded: stat("qt_exceeds")?,
            };
        }
    }
    Ok(())
}

/// Whether a kdamond has ended, ends while it is asked, is gone, or is asked by another program.
fn has_no_counts(error: &BalanceError) -> bool {
    match error {
        BalanceError::Refused { source, .. } => {
            is_invalid(source) || is_absent(source) || has_number(source, Errno::CANCELED)
        }
        BalanceError::Busy { .. } => true,
        _ => false,
    }
}

/// Whether all kdamonds run; another program may have ended them, or taken their folders away.
pub(super) fn is_on(kernel: &dyn Kernel, plan: &Plan) -> Result<bool, BalanceError> {
    for index in 0..plan.kdamonds.len() {
        let state = match text(kernel, &format!("{KDAMONDS}/{index}/state")) {
            Err(BalanceError::Io { source, .. }) if is_absent(&source) => return Ok(false),
            // Another program reads it: that says nothing.
            Err(BalanceError::Busy { .. }) => continue,
            state => state?,
        };
        if state == OFF {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ends our kdamonds; afterwards there are as many as before. Those of another program, which came
/// after ours had ended, are left alone.
pub(super) fn restore(kernel: &dyn Kernel, saved: &SavedKdamonds) -> Result<(), BalanceError> {
    let count = number(kernel, &count_file())?;
    let mut are_ours = count == saved.made;
    let (mut on, mut foreign) = (Vec::new(), Vec::new());
    for index in 0..count {
        let state = format!("{KDAMONDS}/{index}/state");
        let is_off = text(kernel, &state)? == OFF;
        are_ours &= is_ours(kernel, saved, index, is_off);
        match (is_off, are_ours) {
            (true, _) => {}
            (false, true) => on.push(state),
            (false, false) => foreign.push(told(kernel, index)),
        }
    }
    if !foreign.is_empty() {
        return Err(BalanceError::InUse { kdamonds: foreign.join("; ") });
    }
    for state in on {
        put(kernel, &state, OFF)?;
    }
    if are_ours { put(kernel, &count_file(), saved.before) } else { Ok(()) }
}

/// Whether one of as many kdamonds as we made is ours: by its thread, or, where that was not noted
/// before the balance was killed or has ended, by its scheme.
fn is_ours(kernel: &dyn Kernel, saved: &SavedKdamonds, index: u64, is_off: bool) -> bool {
    let at = format!("{KDAMONDS}/{index}");
    if let (Some(known), false) = (saved.threads.get(index as usize), is_off) {
        return thread(kernel, &at) == *known;
    }
    match kernel.read(&format!("{at}/contexts/0/schemes/0/action")) {
        Ok(action) if action.starts_with("migrate_") => true,
        // Killed before its scheme was written.
        Ok(action) => is_off && action == "stat",
        Err(_) => is_off,
    }
}
