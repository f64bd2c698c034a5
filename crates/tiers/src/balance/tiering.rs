//! The kernel's own tiering: hint faults of NUMA balancing promote what is hot, and reclaim demotes
//! what is cold, where a node has little free. Between tiers that the kernel knows.
//!
//! Source: Linux `Documentation/admin-guide/sysctl/kernel.rst` (`numa_balancing`),
//! `Documentation/ABI/testing/sysfs-kernel-mm-numa`.

use super::BalanceError;
use super::kernel::{Kernel, is_absent, put, text};
use crate::topology::Topology;

pub(super) const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
pub(super) const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
const VMSTAT: &str = "/proc/vmstat";
/// NUMA_BALANCING_MEMORY_TIERING.
const MODE_TIERING: u32 = 2;

pub(super) struct TieringSettings {
    pub(super) numa_balancing: u32,
    pub(super) demotion_enabled: bool,
}

/// Pages that were moved since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageCounts {
    pub(super) demoted: u64,
    pub(super) promoted: u64,
}

impl PageCounts {
    pub(super) fn read(kernel: &dyn Kernel) -> Result<PageCounts, BalanceError> {
        let text = text(kernel, VMSTAT)?;
        let sum = |prefix: &str| {
            let lines = text.lines().filter(|line| line.starts_with(prefix));
            let counts = lines.filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok());
            counts.fold(0, u64::saturating_add)
        };
        Ok(PageCounts { demoted: sum("pgdemote_"), promoted: sum("pgpromote_success") })
    }
}

/// What is set, where the kernel has tiering and two tiers.
pub(super) fn before(
    kernel: &dyn Kernel,
    topology: &Topology,
) -> Result<TieringSettings, BalanceError> {
    if topology.tiers.len() < 2 {
        return Err(BalanceError::OneTier);
    }
    let file = |path: &'static str, option: &'static str| match text(kernel, path) {
        Err(BalanceError::Io { source, .. }) if is_absent(&source) => {
            Err(BalanceError::NoKernelTiering { path, option })
        }
        text => text,
    };
    let mode = file(NUMA_BALANCING, "CONFIG_NUMA_BALANCING")?;
    let is_on = file(DEMOTION, "CONFIG_MIGRATION and CONFIG_NUMA (Linux 5.18)")?;
    let garbage = |path: &str, text: &str, expected| BalanceError::Garbage {
        path: path.to_owned(),
        text: text.to_owned(),
        expected,
    };
    let numa_balancing = mode.parse().map_err(|_| garbage(NUMA_BALANCING, &mode, "a number"))?;
    let demotion_enabled = match is_on.as_str() {
        "true" => true,
        "false" => false,
        other => return Err(garbage(DEMOTION, other, "true or false")),
    };
    Ok(TieringSettings { numa_balancing, demotion_enabled })
}

pub(super) fn set(kernel: &dyn Kernel) -> Result<(), BalanceError> {
    put(kernel, DEMOTION, true)?;
    put(kernel, NUMA_BALANCING, MODE_TIERING)
}

/// Whether it is still set as [`set`] does.
pub(super) fn is_on(kernel: &dyn Kernel) -> Result<bool, BalanceError> {
    let is_tiering = text(kernel, NUMA_BALANCING)? == MODE_TIERING.to_string();
    Ok(is_tiering && text(kernel, DEMOTION)? == "true")
}
