//! Made traces of virtual machines in the schema of the real one, to try planning with: one that
//! leaves little memory stranded, one that leaves much.
//!
//! Memory is stranded where a machine has no processor left to use it. With little stranding, types
//! take as large a part of the processors as of the memory; with much, most take two to four times
//! as large a part of the processors.

use super::{START_DAYS_MIN, TYPE_COLUMNS, VM_COLUMNS, Vm, VmType};
use rackpool_sim::rng::{Purpose, Rng};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::str::FromStr;

/// Mean life of a virtual machine, in days.
const LIFE_DAYS: f64 = 1.5;
/// Part of all processors that is in use, on average.
const LOAD: f64 = 0.9;
/// What the table says where the start is unknown.
const UNKNOWN_START_DAYS: f64 = -7157.0;

/// How much memory is stranded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stranding {
    /// Processors and memory run out together.
    Little,
    Much,
}

impl FromStr for Stranding {
    type Err = String;

    fn from_str(text: &str) -> Result<Stranding, String> {
        match text {
            "little" => Ok(Stranding::Little),
            "much" => Ok(Stranding::Much),
            _ => Err(format!("`{text}` is neither little nor much")),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fixture {
    /// The types, for one kind of machine.
    pub types: Vec<VmType>,
    /// Virtual machines by their start. Some began before the trace, a few at an unknown
    /// time, and those that are alive in the end have no end.
    pub vms: Vec<Vm>,
}

/// Makes a trace that keeps `machines` machines nine tenths full for `days` days. The same
/// arguments give the same trace.
///
/// # Panics
/// If there is no machine, or no time, or more than 100 000 machines or 1000 days.
pub fn fixture(stranding: Stranding, machines: u32, days: f64, seed: u64) -> Fixture {
    assert!((1..=100_000).contains(&machines) && days > 0.0 && days <= 1000.0);
    let mut rng = Rng::new(seed, Purpose::Workload, 0);
    let types = types(stranding);
    let mean_core = types.iter().map(|row| row.core).sum::<f64>() / types.len() as f64;
    let alive = f64::from(machines) * LOAD / mean_core;
    // Those that are there when the trace begins, then one after the other.
    let mut starts: Vec<Option<f64>> = Vec::new();
    for number in 0..alive as u64 {
        let before = -exponential(&mut rng, LIFE_DAYS);
        starts.push(if number % 20 == 0 { None } else { Some(before.max(-365.0)) });
    }
    starts.sort_by(|a, b| a.unwrap_or(START_DAYS_MIN).total_cmp(&b.unwrap_or(START_DAYS_MIN)));
    let mut at = exponential(&mut rng, LIFE_DAYS / alive);
    while at < days {
        starts.push(Some(at));
        at += exponential(&mut rng, LIFE_DAYS / alive);
    }
    let vms = starts.into_iter().enumerate().map(|(number, start_days)| {
        let row = &types[rng.below(types.len() as u64) as usize];
        // What is left of a life does not depend on how long it has lasted.
        let end = start_days.unwrap_or(0.0).max(0.0) + exponential(&mut rng, LIFE_DAYS);
        Vm {
            id: number as u64,
            tenant: rng.below(u64::from(machines) * 2),
            vm_type: row.vm_type,
            priority: u32::from(rng.chance_ppm(300_000)),
            start_days,
            end_days: (end < days).then_some(end),
        }
    });
    let vms = vms.collect();
    Fixture { types, vms }
}

fn types(stranding: Stranding) -> Vec<VmType> {
    let part = |number: u32, core: f64, memory: f64| VmType {
        vm_type: number,
        machine: 0,
        core,
        memory,
        hdd: 0.0,
        ssd: memory / 2.0,
        nic: core / 2.0,
    };
    let sizes = [1.0, 2.0, 4.0, 8.0].map(|cores| cores / 32.0);
    let ratios: &[f64] = match stranding {
        Stranding::Little => &[1.0, 0.95, 1.0, 0.97],
        Stranding::Much => &[0.25, 0.5, 0.5, 1.0],
    };
    let pairs = sizes.iter().flat_map(|core| ratios.iter().map(move |ratio| (*core, core * ratio)));
    pairs.zip(0..).map(|((core, memory), number)| part(number, core, memory)).collect()
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    let uniform = ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -uniform.ln() * mean
}

impl Fixture {
    /// The table of virtual machines.
    pub fn vm_csv(&self) -> String {
        let mut text = VM_COLUMNS.join(",") + "\n";
        for vm in &self.vms {
            let Vm { id, tenant, vm_type, priority, start_days, end_days } = vm;
            let start = start_days.unwrap_or(UNKNOWN_START_DAYS);
            let end = end_days.map_or_else(String::new, |end| end.to_string());
            writeln!(text, "{id},{tenant},{vm_type},{priority},{start},{end}")
                .expect("writing into memory does not fail");
        }
        text
    }

    pub fn type_csv(&self) -> String {
        let mut text = TYPE_COLUMNS.join(",") + "\n";
        for row in &self.types {
            let VmType { vm_type, machine, core, memory, hdd, ssd, nic } = row;
            writeln!(text, "{vm_type},{machine},{core},{memory},{hdd},{ssd},{nic}")
                .expect("writing into memory does not fail");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Packing, Quirks};
    use super::*;

    #[test]
    fn a_made_trace_is_read_back_as_it_was_made() {
        let made = fixture(Stranding::Much, 20, 3.0, 7);
        assert_eq!(made, fixture(Stranding::Much, 20, 3.0, 7));
        assert_ne!(made, fixture(Stranding::Much, 20, 3.0, 8));
        let csv = (made.vm_csv().into_bytes(), made.type_csv().into_bytes());
        let mut packing = Packing::read_bytes(csv.0, csv.1).unwrap();
        assert_eq!(packing.types(), made.types);
        for vm in &made.vms {
            assert_eq!(packing.next_vm().unwrap().as_ref(), Some(vm));
        }
        assert_eq!(packing.next_vm().unwrap(), None);
        let unknown = made.vms.iter().filter(|vm| vm.start_days.is_none()).count() as u64;
        assert_eq!(packing.quirks(), Quirks { unknown_starts: unknown, reversed: 0 });
        assert!(unknown > 0 && made.vms.iter().any(|vm| vm.end_days.is_none()));
    }

    /// Puts each into the first machine with room, and gives the mean part of all memory that lies
    /// in machines without a processor for the smallest type.
    fn stranded(made: &Fixture, machines: usize, days: f64) -> f64 {
        let mut free = vec![[1.0f64; 2]; machines];
        let mut alive: Vec<(f64, usize, [f64; 2])> = Vec::new();
        let (mut sum, mut samples) = (0.0, 0);
        for vm in &made.vms {
            let now = vm.start_days.unwrap_or(0.0).max(0.0);
            alive.retain(|(end, machine, takes)| {
                if *end <= now {
                    (0..2).for_each(|which| free[*machine][which] += takes[which]);
                }
                *end > now
            });
            let row = &made.types[vm.vm_type as usize];
            let takes = [row.core, row.memory];
            let fits = |free: &[f64; 2]| (0..2).all(|which| free[which] + 1e-9 >= takes[which]);
            if let Some(machine) = free.iter().position(fits) {
                (0..2).for_each(|which| free[machine][which] -= takes[which]);
                alive.push((vm.end_days.unwrap_or(days + 1.0), machine, takes));
            }
            if now > 0.0 {
                let full = free.iter().filter(|free| free[0] < 1.0 / 32.0 - 1e-9);
                sum += full.map(|free| free[1]).sum::<f64>() / machines as f64;
                samples += 1;
            }
        }
        sum / f64::from(samples)
    }

    #[test]
    fn little_stranding_is_little_and_much_is_much() {
        for seed in 1..=5 {
            let part = |stranding| stranded(&fixture(stranding, 40, 4.0, seed), 40, 4.0);
            let (little, much) = (part(Stranding::Little), part(Stranding::Much));
            assert!(little < 0.03, "seed {seed}: {little}");
            assert!(much > 0.15, "seed {seed}: {much}");
        }
    }
}
