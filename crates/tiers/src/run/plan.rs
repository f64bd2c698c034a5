//! What places a program's memory: the kernel by a policy, or the preloaded library. Pure but for
//! [`Machine::here`].

use super::wanted::shares_text;
use super::{RunError, Share, Wanted, Weighting};
use crate::kernel_weights::KernelWeights;
use crate::topology::{Node, Topology};
use crate::weights::{WEIGHT_MAX_DEFAULT, solve};
use rackpool_mem::numa::list;
use rackpool_mem::policy::PolicyCall;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const KERNEL_WAY_OUT: &str = "set them for the whole machine: rackpool tiers apply --weighted";
/// As many as the library has room for.
const SHARES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Kernel,
    Preload,
}

impl Mechanism {
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Kernel => "kernel",
            Mechanism::Preload => "preload",
        }
    }
}

/// A policy of the kernel for a whole process and what it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelPolicy {
    Unchanged,
    Preferred(u16),
    Bind(Vec<u16>),
    Interleave(Vec<u16>),
    /// By the weights that the kernel has for the whole machine.
    WeightedInterleave(Vec<u16>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    Kernel(KernelPolicy),
    Preload(Vec<Share>),
}

impl Plan {
    pub fn mechanism(&self) -> Mechanism {
        match self {
            Plan::Kernel(_) => Mechanism::Kernel,
            Plan::Preload(_) => Mechanism::Preload,
        }
    }

    /// What is done, for people.
    pub fn told(&self) -> String {
        match self {
            Plan::Kernel(KernelPolicy::Unchanged) => {
                "the kernel, there is one memory only".to_owned()
            }
            Plan::Kernel(KernelPolicy::Preferred(node)) => {
                format!("the kernel: preferred, node {node}, others if it is full")
            }
            Plan::Kernel(KernelPolicy::Bind(nodes)) => {
                format!("the kernel: bound to {}, nothing from others", list(nodes))
            }
            Plan::Kernel(KernelPolicy::Interleave(nodes)) => {
                format!("the kernel: interleaved, {}", list(nodes))
            }
            Plan::Kernel(KernelPolicy::WeightedInterleave(nodes)) => {
                format!("the kernel: weighted interleave by its own weights, {}", list(nodes))
            }
            Plan::Preload(shares) => format!("a preloaded library, {}", shares_text(shares)),
        }
    }
}

/// What of a machine decides.
#[derive(Debug)]
pub struct Machine {
    /// Nodes with memory for this process, ascending; at least one.
    pub nodes: Vec<u16>,
    /// MB/s, as a profile or the firmware says.
    pub bandwidth_mbps: BTreeMap<u16, f64>,
    /// The kernel's weights; none if it has no weighted interleave.
    pub kernel_weights: Option<BTreeMap<u16, u16>>,
    pub refused: Vec<(PolicyCall, i32)>,
}

impl Machine {
    /// This one. Bandwidths are those of reads, as the firmware rates them.
    pub fn here(topology: &Topology) -> Machine {
        let has_memory = |node: &&Node| {
            node.memory_bytes.is_none_or(|bytes| bytes > 0) && node.is_allowed != Some(false)
        };
        let nodes: Vec<&Node> = topology.nodes.iter().filter(has_memory).collect();
        let bandwidth_mbps = nodes
            .iter()
            .filter_map(|node| node.access.read_bandwidth_mbps.map(|mbps| (node.id, mbps as f64)));
        let bandwidth_mbps = bandwidth_mbps.collect();
        let kernel = KernelWeights::read(Path::new("/sys")).ok();
        let weight = |node: &&Node| Some((node.id, *kernel.as_ref()?.weights.get(&node.id)?));
        let weights: Option<BTreeMap<u16, u16>> = nodes.iter().map(weight).collect();
        let refused = topology.refused.iter().flatten();
        let refused = refused.map(|one| (one.call, one.error.raw_os_error().unwrap_or(0)));
        Machine {
            nodes: nodes.iter().map(|node| node.id).collect(),
            bandwidth_mbps,
            kernel_weights: weights.filter(|weights| !weights.is_empty()),
            refused: refused.collect(),
        }
    }

    fn require(&self, call: PolicyCall) -> Result<(), RunError> {
        match self.refused.iter().find(|(refused, _)| *refused == call) {
            Some((call, error)) => {
                let error = io::Error::from_raw_os_error(*error);
                Err(RunError::Refused { call: *call, error })
            }
            None => Ok(()),
        }
    }

    fn shares(&self, weighting: &Weighting) -> Result<Vec<Share>, RunError> {
        if let Some(shares) = weighting.named(&self.nodes)? {
            return Ok(shares);
        }
        if let [node] = self.nodes[..] {
            return Ok(vec![Share { node, weight: 1 }]);
        }
        let of = |node: &u16| {
            let mbps = self.bandwidth_mbps.get(node).copied().filter(|mbps| *mbps > 0.0);
            mbps.ok_or(RunError::NoBandwidth { node: *node })
        };
        let bandwidths: Result<Vec<f64>, RunError> = self.nodes.iter().map(of).collect();
        let wrong = |_| RunError::NoBandwidth { node: self.nodes[0] };
        let found = solve(&bandwidths?, WEIGHT_MAX_DEFAULT).map_err(wrong)?;
        let pairs = self.nodes.iter().zip(found.weights);
        let share = |(node, weight): (&u16, u32)| Share { node: *node, weight: weight as u16 };
        Ok(pairs.map(share).collect())
    }

    /// Whether the kernel's own weights have the ratio of these.
    fn kernel_has(&self, shares: &[Share]) -> bool {
        let Some(weights) = &self.kernel_weights else { return false };
        let own = |share: &Share| weights.get(&share.node).map(|weight| u32::from(*weight));
        let is_like = |pair: &[Share]| match (own(&pair[0]), own(&pair[1])) {
            (Some(first), Some(second)) => {
                first * u32::from(pair[1].weight) == second * u32::from(pair[0].weight)
            }
            _ => false,
        };
        shares.windows(2).all(is_like)
    }
}

/// Decides who places, and how; `mechanism` if the user wants one.
///
/// # Errors
/// [`RunError::NoNode`], [`RunError::Count`], [`RunError::NoBandwidth`], [`RunError::NoKernel`],
/// [`RunError::NoPreload`], [`RunError::Refused`].
pub fn plan(
    wanted: &Wanted,
    mechanism: Option<Mechanism>,
    machine: &Machine,
) -> Result<Plan, RunError> {
    if let Some(node) = wanted.nodes().into_iter().find(|node| !machine.nodes.contains(node)) {
        return Err(RunError::NoNode { node, there: list(&machine.nodes) });
    }
    let shares = match wanted {
        Wanted::Weighted(weighting) => Some(machine.shares(weighting)?),
        Wanted::Interleave(nodes) => {
            Some(nodes.iter().map(|node| Share { node: *node, weight: 1 }).collect())
        }
        Wanted::Preferred(_) | Wanted::Membind(_) => None,
    };
    if mechanism == Some(Mechanism::Preload) {
        let shares = shares.ok_or_else(|| RunError::NoPreload { policy: wanted.to_string() })?;
        return preload(shares, machine);
    }
    if let [_] = machine.nodes[..] {
        return Ok(Plan::Kernel(KernelPolicy::Unchanged));
    }
    let policy = match (wanted, &shares) {
        (Wanted::Membind(nodes), _) => KernelPolicy::Bind(nodes.clone()),
        (Wanted::Preferred(node), _) => KernelPolicy::Preferred(*node),
        (_, Some(shares)) => match by_kernel(shares, machine) {
            Some(policy) => policy,
            None if mechanism.is_none() => return preload(shares.clone(), machine),
            None => return Err(no_kernel(machine)),
        },
        (_, None) => KernelPolicy::Unchanged,
    };
    machine.require(PolicyCall::SetMempolicy)?;
    Ok(Plan::Kernel(policy))
}

fn by_kernel(shares: &[Share], machine: &Machine) -> Option<KernelPolicy> {
    let nodes: Vec<u16> = shares.iter().map(|share| share.node).collect();
    if let [node] = nodes[..] {
        return Some(KernelPolicy::Preferred(node));
    }
    if shares.iter().all(|share| share.weight == shares[0].weight) {
        return Some(KernelPolicy::Interleave(nodes));
    }
    machine.kernel_has(shares).then_some(KernelPolicy::WeightedInterleave(nodes))
}

fn no_kernel(machine: &Machine) -> RunError {
    match &machine.kernel_weights {
        None => RunError::NoKernel {
            why: "it has no weighted interleave".to_owned(),
            way_out: "boot Linux 6.9 or newer",
        },
        Some(weights) => {
            let own: Vec<Share> = weights
                .iter()
                .map(|(node, weight)| Share { node: *node, weight: *weight })
                .collect();
            let why = format!("its weights, for the whole machine, are {}", shares_text(&own));
            RunError::NoKernel { why, way_out: KERNEL_WAY_OUT }
        }
    }
}

fn preload(shares: Vec<Share>, machine: &Machine) -> Result<Plan, RunError> {
    machine.require(PolicyCall::Mbind)?;
    if shares.len() > SHARES_MAX {
        let policy = format!("a placement on more than {SHARES_MAX} nodes");
        return Err(RunError::NoPreload { policy });
    }
    Ok(Plan::Preload(shares))
}
