//! The capacity engine: from virtual machines to memory of machines and pools. It knows nothing of
//! latency, and the performance engine nothing of it.
//!
//! Virtual machines run where they run today. What a machine's own memory does not hold, or the
//! order of the policy gives away, comes from a pool of its pod, which the policy's choice picks as
//! a running master does. Pools have no end here: what they were asked for is the demand, and what
//! is bought is a percentile of it.

use super::design::Split;
use super::input::Plan;
use super::packing::{Packed, shuffled};
use rackpool_core::addr::RackId;
use rackpool_core::placement::{Candidate, Choice, Chooser, PickRequest, pick_rack};
use serde::Serialize;

/// What one seed says of a split.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Demand {
    /// Memory in the pools of each pod at each sample, MiB.
    pub pod_mib: Vec<u64>,
    pub blast: Blast,
}

/// What the failure of one pool takes along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Blast {
    /// Machines with memory in it, mean over pools and time.
    pub machines_mean: f64,
    /// The most at any time.
    pub machines_max: u32,
    /// Virtual machines with memory in it, mean.
    pub vms_mean: f64,
    pub vms_max: u32,
}

/// More than any pool has. A quarter of all numbers: sums of it stay numbers.
const ENDLESS: u64 = u64::MAX / 4;

struct PodPool {
    used_mib: u64,
    /// Virtual machines of each machine of the pod.
    vms: Vec<u32>,
    machines: u32,
    all_vms: u32,
}

struct Pod {
    pools: Vec<PodPool>,
    chooser: Chooser,
}

/// Where a virtual machine's memory is.
#[derive(Clone, Default)]
struct VmMemory {
    local_mib: u64,
    /// Pool and MiB.
    pooled: Option<(u16, u64)>,
}

struct Engine<'a> {
    split: &'a Split,
    choice: Choice,
    slice_mib: u64,
    /// Of each machine: its pod and its place in it.
    place: Vec<(usize, usize)>,
    local_free: Vec<u64>,
    own_turn: Vec<bool>,
    pods: Vec<Pod>,
    held: Vec<VmMemory>,
}

/// Smart-idle looks at accesses first, and a trace of virtual machines has none: it becomes the
/// choice that looks at what is in use. `even` looks at that anyway, and at accesses last.
pub(super) fn choice_without_accesses(choice: Choice) -> Choice {
    match choice {
        Choice::SmartIdle(_) => Choice::LeastLoaded,
        other => other,
    }
}

/// Memory of a machine under a split, MiB: the local part, in steps as it is bought.
pub(super) fn local_mib(plan: &Plan, local_percent: u32) -> u64 {
    let step = plan.machines.memory_step.mib();
    let part = plan.machines.memory.mib() * u64::from(local_percent) / 100;
    part.div_ceil(step) * step
}

/// What a seed's virtual machines ask of pools.
pub(super) fn demand(packed: &Packed, plan: &Plan, split: &Split, seed: u64) -> Demand {
    let mut engine = Engine::new(packed, plan, split, seed);
    let mut demand = Demand::default();
    let step = plan.capacity.sample.0 as f64 / 86_400e9;
    let mut events = packed.events.iter().peekable();
    let (mut machines, mut vms, mut samples) = (0u64, 0u64, 0u64);
    for at in (1u32..).map(|number| f64::from(number) * step).take_while(|at| *at <= packed.days) {
        while let Some(event) = events.next_if(|event| event.days <= at) {
            match event.comes {
                true => engine.come(event.vm, event.machine, event.mib, event.days),
                false => engine.leave(event.vm, event.machine),
            }
        }
        for pod in &engine.pods {
            demand.pod_mib.push(pod.pools.iter().map(|pool| pool.used_mib).sum());
            for pool in &pod.pools {
                machines += u64::from(pool.machines);
                vms += u64::from(pool.all_vms);
                samples += 1;
                let blast = &mut demand.blast;
                blast.machines_max = blast.machines_max.max(pool.machines);
                blast.vms_max = blast.vms_max.max(pool.all_vms);
            }
        }
    }
    let samples = samples.max(1) as f64;
    demand.blast.machines_mean = machines as f64 / samples;
    demand.blast.vms_mean = vms as f64 / samples;
    demand
}

impl<'a> Engine<'a> {
    fn new(packed: &Packed, plan: &Plan, split: &'a Split, seed: u64) -> Engine<'a> {
        let (count, size) = (plan.machines.count as usize, usize::from(split.pod_machines));
        let mut place = vec![(0, 0); count];
        for (index, machine) in shuffled(plan.machines.count, seed, 1).into_iter().enumerate() {
            place[machine as usize] = (index / size, index % size);
        }
        let pool = || PodPool { used_mib: 0, vms: vec![0; size], machines: 0, all_vms: 0 };
        let pod = |index: usize| Pod {
            pools: (0..split.pools).map(|_| pool()).collect(),
            chooser: Chooser::new(seed ^ (index as u64) << 32),
        };
        Engine {
            split,
            choice: choice_without_accesses(split.placement.choice),
            slice_mib: plan.capacity.slice.mib(),
            place,
            local_free: vec![local_mib(plan, split.local_percent); count],
            own_turn: vec![true; count],
            pods: (0..count / size).map(pod).collect(),
            held: vec![VmMemory::default(); packed.vms as usize],
        }
    }

    /// Slice after slice, each asking own memory or a pool as the order of the policy says; what
    /// comes from pools comes from one, so that as few virtual machines as can be are hit when a
    /// pool fails.
    fn come(&mut self, vm: u32, machine: u32, mib: u64, days: f64) {
        let index = machine as usize;
        let (mut local, mut pooled, mut left) = (0, 0, mib);
        while left > 0 {
            let slice = left.min(self.slice_mib);
            left -= slice;
            let own_first = self.split.placement.order.own_first(self.own_turn[index]);
            self.own_turn[index] = !self.own_turn[index];
            if own_first && self.local_free[index] >= slice {
                self.local_free[index] -= slice;
                local += slice;
            } else {
                pooled += slice;
            }
        }
        let mut held = VmMemory { local_mib: local, pooled: None };
        if pooled > 0 {
            let (pod, place) = self.place[index];
            let number = self.pods[pod].choose(self.choice, place, pooled, days);
            let pool = &mut self.pods[pod].pools[usize::from(number)];
            pool.used_mib += pooled;
            pool.all_vms += 1;
            pool.vms[place] += 1;
            pool.machines += u32::from(pool.vms[place] == 1);
            held.pooled = Some((number, pooled));
        }
        self.held[vm as usize] = held;
    }

    fn leave(&mut self, vm: u32, machine: u32) {
        let held = std::mem::take(&mut self.held[vm as usize]);
        self.local_free[machine as usize] += held.local_mib;
        let (pod, place) = self.place[machine as usize];
        if let Some((number, mib)) = held.pooled {
            let pool = &mut self.pods[pod].pools[usize::from(number)];
            pool.used_mib -= mib;
            pool.all_vms -= 1;
            pool.vms[place] -= 1;
            pool.machines -= u32::from(pool.vms[place] == 0);
        }
    }
}

impl Pod {
    fn choose(&mut self, choice: Choice, asker: usize, mib: u64, days: f64) -> u16 {
        let view = |(index, pool): (usize, &PodPool)| Candidate {
            rack: RackId(index as u16),
            alive: true,
            free_bytes: ENDLESS - (pool.used_mib << 20),
            used_bytes: pool.used_mib << 20,
            promised_bytes: 0,
        };
        let candidates: Vec<Candidate> = self.pools.iter().enumerate().map(view).collect();
        let now = (days * 86_400e9) as u64;
        // Numbers from above: no pool's.
        let own = RackId(u16::MAX - asker as u16);
        let request = PickRequest { own, bytes: mib << 20, tried: &[] };
        let chosen = pick_rack(choice, &candidates, request, now, &mut self.chooser);
        chosen.expect("pools have no end").0
    }
}
