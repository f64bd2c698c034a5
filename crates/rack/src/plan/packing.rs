//! Virtual machines on machines, as they are today: where each runs, and how much memory is
//! stranded. What follows, follows from this: a pool moves memory, no virtual machine.

use super::input::{Plan, VmTrace};
use super::{PlanError, Progress, side_by_side};
use crate::trace::packing::{Packing as Tables, Vm, VmType, fixture};
use rackpool_sim::rng::{Purpose, Rng};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use xxhash_rust::xxh3::Xxh3;

/// Most virtual machines of a trace: all are in memory.
const VMS_MAX: usize = 1 << 25;
/// Processors are counted in millionths of a machine.
const CORE_UNITS: f64 = 1e6;

/// A virtual machine that was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct VmRequest {
    start_days: f64,
    end_days: f64,
    core: u32,
    mib: u64,
}

/// A trace, read or made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Requests {
    all: Vec<VmRequest>,
    days: f64,
    smallest_core: u32,
    pub hash: u64,
}

/// A virtual machine comes to a machine, or leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct VmEvent {
    pub days: f64,
    /// Its number among those that were placed.
    pub vm: u32,
    pub machine: u32,
    pub mib: u64,
    pub comes: bool,
}

/// The trace of a seed, placed on machines.
#[derive(Clone, Debug)]
pub(super) struct SeedPacking {
    pub seed: u64,
    pub packed: Packed,
    pub trace_hash: u64,
}

/// What became of a trace.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    pub events: Vec<VmEvent>,
    pub days: f64,
    /// Virtual machines that were placed.
    pub vms: u32,
    /// Those for which no machine had room.
    pub refused: u32,
    /// Memory in use of each machine at each sample, MiB.
    pub used_mib: Vec<u64>,
    /// Mean part of all memory that is free where no processor is.
    pub stranded: f64,
    /// Mean part of all memory that is in use.
    pub used: f64,
}

impl Requests {
    /// The trace of a seed; one from files is read again for each seed that asks.
    pub fn of(plan: &Plan, seed: u64) -> Result<Requests, PlanError> {
        let memory_mib = plan.machines.memory.mib();
        match &plan.capacity.trace {
            VmTrace::Made { stranding, days } => {
                let made = fixture(*stranding, plan.machines.count, *days, seed);
                let row = |vm: &Vm| (*vm, made.types[vm.vm_type as usize]);
                Requests::new(made.vms.iter().map(row), Some(*days), memory_mib)
            }
            VmTrace::Files { vms, types, machine_kind } => {
                let mut tables = Tables::open(vms, types)?;
                let mut rows = Vec::new();
                while let Some(vm) = tables.next_vm()? {
                    let types = tables.of_type(vm.vm_type);
                    // Types that do not run on this kind of machine belong to other kinds.
                    if let Some(row) = types.iter().find(|row| row.machine == *machine_kind) {
                        rows.push((vm, *row));
                    }
                    if rows.len() > VMS_MAX {
                        return Err(PlanError::Trace(format!("more than {VMS_MAX} rows")));
                    }
                }
                let requests = Requests::new(rows.into_iter(), None, memory_mib)?;
                plan.samples(requests.days)
                    .map_err(|reason| PlanError::Trace(format!("capacity.sample: {reason}")))?;
                Ok(requests)
            }
        }
    }

    fn new(
        rows: impl Iterator<Item = (Vm, VmType)>,
        days: Option<f64>,
        memory_mib: u64,
    ) -> Result<Requests, PlanError> {
        let request = |(vm, row): (Vm, VmType)| VmRequest {
            start_days: vm.start_days.unwrap_or(0.0).max(0.0),
            end_days: vm.end_days.unwrap_or(f64::INFINITY),
            core: ((row.core * CORE_UNITS).ceil() as u32).max(1),
            mib: ((row.memory * memory_mib as f64).ceil() as u64).max(1),
        };
        let mut all: Vec<VmRequest> = rows.map(request).filter(|it| it.end_days > 0.0).collect();
        all.sort_by(|a, b| a.start_days.total_cmp(&b.start_days));
        let Some(last) = all.last() else {
            return Err(PlanError::Trace("no virtual machine is in it".into()));
        };
        let days = days.unwrap_or(last.start_days);
        let mut hasher = Xxh3::new();
        for one in &all {
            hasher.update(&one.start_days.to_bits().to_le_bytes());
            hasher.update(&one.end_days.to_bits().to_le_bytes());
            hasher.update(&u64::from(one.core).to_le_bytes());
            hasher.update(&one.mib.to_le_bytes());
        }
        let smallest_core = all.iter().map(|one| one.core).min().expect("there is one");
        Ok(Requests { all, days, smallest_core, hash: hasher.digest() })
    }
}

struct Alive {
    ends: f64,
    vm: u32,
    machine: u32,
    request: VmRequest,
}

impl PartialEq for Alive {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Alive {}
impl PartialOrd for Alive {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Alive {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.ends.total_cmp(&other.ends).then(self.vm.cmp(&other.vm))
    }
}

/// Machines at work. Each virtual machine goes to the one with the fewest free processors that
/// has room for it; among equals the seed's order decides.
struct Yard {
    free_core: Vec<u32>,
    free_mib: Vec<u64>,
    /// Free processors, rank by the seed, number.
    by_core: BTreeSet<(u32, u32, u32)>,
    rank: Vec<u32>,
    alive: BinaryHeap<Reverse<Alive>>,
    packed: Packed,
}

pub(super) fn packings(
    plan: &Plan,
    seeds: &[u64],
    progress: &Progress<'_>,
) -> Result<Vec<SeedPacking>, PlanError> {
    side_by_side(seeds.len(), "placing virtual machines", progress, |index| {
        let requests = Requests::of(plan, seeds[index])?;
        let (seed, trace_hash) = (seeds[index], requests.hash);
        Ok(SeedPacking { seed, packed: pack(&requests, plan, seed), trace_hash })
    })
}

/// Places the virtual machines of a trace.
pub(super) fn pack(requests: &Requests, plan: &Plan, seed: u64) -> Packed {
    let (count, memory_mib) = (plan.machines.count, plan.machines.memory.mib());
    let rank = shuffled(count, seed, 0);
    let core = CORE_UNITS as u32;
    let mut yard = Yard {
        free_core: vec![core; count as usize],
        free_mib: vec![memory_mib; count as usize],
        by_core: (0..count).map(|machine| (core, rank[machine as usize], machine)).collect(),
        rank,
        alive: BinaryHeap::new(),
        packed: Packed {
            events: Vec::with_capacity(2 * requests.all.len()),
            days: requests.days,
            vms: 0,
            refused: 0,
            used_mib: Vec::new(),
            stranded: 0.0,
            used: 0.0,
        },
    };
    let step = plan.capacity.sample.0 as f64 / 86_400e9;
    let mut next = requests.all.iter().peekable();
    let mut samples = 0u32;
    // The first sample is a step after the begin, when those that were there have come.
    for at in (1u32..).map(|number| f64::from(number) * step).take_while(|at| *at <= requests.days)
    {
        while let Some(request) = next.next_if(|request| request.start_days <= at) {
            yard.leave_until(request.start_days);
            yard.come(*request);
        }
        yard.leave_until(at);
        yard.sample(requests.smallest_core, memory_mib);
        samples += 1;
    }
    let all = f64::from(samples.max(1)) * f64::from(count) * memory_mib as f64;
    (yard.packed.stranded, yard.packed.used) = (yard.packed.stranded / all, yard.packed.used / all);
    yard.packed
}

impl Yard {
    fn leave_until(&mut self, now: f64) {
        while self.alive.peek().is_some_and(|Reverse(first)| first.ends <= now) {
            let Reverse(Alive { ends, vm, machine, request }) =
                self.alive.pop().expect("it was there");
            self.change(machine, |core, mib| (core + request.core, mib + request.mib));
            self.packed.events.push(VmEvent {
                days: ends,
                vm,
                machine,
                mib: request.mib,
                comes: false,
            });
        }
    }

    fn come(&mut self, request: VmRequest) {
        let fits =
            |(_, _, machine): &&(u32, u32, u32)| self.free_mib[*machine as usize] >= request.mib;
        let Some(&(_, _, machine)) = self.by_core.range((request.core, 0, 0)..).find(fits) else {
            self.packed.refused += 1;
            return;
        };
        self.change(machine, |core, mib| (core - request.core, mib - request.mib));
        let vm = self.packed.vms;
        self.packed.vms += 1;
        let (days, mib) = (request.start_days, request.mib);
        self.packed.events.push(VmEvent { days, vm, machine, mib, comes: true });
        self.alive.push(Reverse(Alive { ends: request.end_days, vm, machine, request }));
    }

    fn change(&mut self, machine: u32, to: impl Fn(u32, u64) -> (u32, u64)) {
        let (index, rank) = (machine as usize, self.rank[machine as usize]);
        self.by_core.remove(&(self.free_core[index], rank, machine));
        (self.free_core[index], self.free_mib[index]) =
            to(self.free_core[index], self.free_mib[index]);
        self.by_core.insert((self.free_core[index], rank, machine));
    }

    fn sample(&mut self, smallest_core: u32, memory_mib: u64) {
        for (core, mib) in self.free_core.iter().zip(&self.free_mib) {
            let used = memory_mib - mib;
            self.packed.used_mib.push(used);
            self.packed.used += used as f64;
            if *core < smallest_core {
                self.packed.stranded += *mib as f64;
            }
        }
    }
}

/// Numbers up to `count` in the order of a seed (Fisher and Yates).
pub(super) fn shuffled(count: u32, seed: u64, index: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed, Purpose::Schedule, index);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}
