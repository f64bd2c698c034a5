//! What is measured of a machine. In: its topology, and the nodes that the user names. Out: a
//! [`Pair`] for each CPU node with each memory node.

use super::{MeasureError, Pair};
use crate::topology::{Node, Topology};
use rackpool_mem::memory::HostMemory;
use rackpool_mem::numa::{list, numbers};
use rackpool_mem::process::allowed_cores;

/// More than Linux can have.
const CPUS_MAX: u32 = 1 << 16;

/// The nodes that are measured; none is all that can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub cpu_nodes: Option<Vec<u16>>,
    pub memory_nodes: Option<Vec<u16>>,
}

/// The pairs of a machine, by CPU node, then by memory node. Of nodes that are not named, those
/// without a core or memory for this process are left out.
///
/// # Errors
/// [`MeasureError::NoNode`], [`MeasureError::NoCore`], [`MeasureError::NoMemoryHere`] for a node
/// that is named; [`MeasureError::NoPair`].
pub fn pairs(topology: &Topology, selection: &Selection) -> Result<Vec<Pair>, MeasureError> {
    let allowed = allowed_cores().unwrap_or_default();
    let nodes = &topology.nodes;
    let cores = |node: &Node| match &node.cpus {
        // The only node has all cores, whether the machine says so or not.
        None if nodes.len() == 1 => in_order(allowed.clone()),
        cpus => {
            let cpus = cpus.iter().flatten().map(|cpu| *cpu as usize);
            in_order(cpus.filter(|cpu| allowed.contains(cpu)).collect())
        }
    };
    let has_memory = |node: &Node| node.memory_bytes != Some(0) && node.is_allowed != Some(false);
    let mut cpu_nodes = Vec::new();
    for node in named(topology, selection.cpu_nodes.as_deref())? {
        match cores(node) {
            cores if !cores.is_empty() => cpu_nodes.push((node.id, cores)),
            _ if selection.cpu_nodes.is_none() => {}
            _ => return Err(MeasureError::NoCore { cpu_node: node.id }),
        }
    }
    let mut memory_nodes = named(topology, selection.memory_nodes.as_deref())?;
    match selection.memory_nodes {
        None => memory_nodes.retain(|node| has_memory(node)),
        Some(_) => {
            if let Some(node) = memory_nodes.iter().find(|node| !has_memory(node)) {
                return Err(MeasureError::NoMemoryHere { node: node.id });
            }
        }
    }
    // Within the limits of control groups.
    let host_bytes = HostMemory::now().map(|memory| memory.available_bytes);
    let pairs = cpu_nodes.iter().flat_map(|(cpu_node, cores)| {
        memory_nodes.iter().map(|memory| Pair {
            cpu_node: *cpu_node,
            cores: cores.clone(),
            memory_node: memory.id,
            is_bound: nodes.len() > 1,
            available_bytes: memory.available_bytes.into_iter().chain(host_bytes).min(),
        })
    });
    let pairs: Vec<Pair> = pairs.collect();
    if pairs.is_empty() { Err(MeasureError::NoPair) } else { Ok(pairs) }
}

fn named<'t>(
    topology: &'t Topology,
    selection: Option<&[u16]>,
) -> Result<Vec<&'t Node>, MeasureError> {
    let Some(selection) = selection else { return Ok(topology.nodes.iter().collect()) };
    let there = || list(&topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>());
    let node = |id: &u16| {
        topology.node(*id).ok_or_else(|| MeasureError::NoNode { node: *id, there: there() })
    };
    selection.iter().map(node).collect()
}

/// Each core's first hardware thread, then the second ones.
fn in_order(mut cpus: Vec<usize>) -> Vec<usize> {
    let siblings = |cpu: usize| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let text = std::fs::read_to_string(file).ok()?;
        numbers::<u32>(&text, CPUS_MAX)
    };
    by_thread(&mut cpus, siblings);
    cpus
}

fn by_thread(cpus: &mut [usize], siblings: impl Fn(usize) -> Option<Vec<u32>>) {
    // Stable: in other respects as the machine lists them.
    cpus.sort_by_cached_key(|cpu| {
        let siblings = siblings(*cpu).unwrap_or_default();
        siblings.iter().position(|sibling| *sibling as usize == *cpu).unwrap_or(0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Access, Kind};

    fn node(id: u16, cpus: Vec<u32>, memory_bytes: u64) -> Node {
        Node {
            id,
            cpus: Some(cpus),
            memory_bytes: Some(memory_bytes),
            free_bytes: Some(memory_bytes / 2),
            available_bytes: Some(memory_bytes / 2),
            offline_bytes: None,
            poisoned_pages: None,
            kind: Kind::Dram,
            tier: None,
            distance: None,
            access: Access::default(),
            devices: Vec::new(),
            is_allowed: None,
        }
    }

    fn topology(nodes: Vec<Node>) -> Topology {
        Topology {
            nodes,
            has_nodes: true,
            tiers: Vec::new(),
            dax: Vec::new(),
            poisoned_bytes: None,
            has_filter: None,
            refused: None,
            faults: Vec::new(),
        }
    }

    /// Processors, memory without them, a node that has neither, one that is not ours.
    fn four() -> Topology {
        let core = allowed_cores().unwrap()[0] as u32;
        let kept = Node { is_allowed: Some(false), ..node(3, vec![], 1 << 30) };
        topology(vec![
            node(0, vec![core], 1 << 30),
            node(1, vec![], 1 << 30),
            node(2, vec![], 0),
            kept,
        ])
    }

    fn of(
        topology: &Topology,
        cpu_nodes: &[u16],
        memory_nodes: &[u16],
    ) -> Result<Vec<(u16, u16)>, MeasureError> {
        let list = |nodes: &[u16]| (!nodes.is_empty()).then(|| nodes.to_vec());
        let selection = Selection { cpu_nodes: list(cpu_nodes), memory_nodes: list(memory_nodes) };
        let pairs = pairs(topology, &selection)?;
        assert!(pairs.iter().all(|pair| pair.is_bound && pair.available_bytes <= Some(1 << 29)));
        Ok(pairs.iter().map(|pair| (pair.cpu_node, pair.memory_node)).collect())
    }

    #[test]
    fn what_can_be_measured_is_measured() {
        assert_eq!(of(&four(), &[], &[]).unwrap(), [(0, 0), (0, 1)]);
        assert_eq!(of(&four(), &[0], &[1]).unwrap(), [(0, 1)]);
        let all = pairs(
            &topology(vec![Node { cpus: None, ..node(0, vec![], 1 << 30) }]),
            &Selection::default(),
        );
        let [pair] = &all.unwrap()[..] else { panic!("one node is one pair") };
        assert!(!pair.is_bound && pair.available_bytes > Some(0));
        assert_eq!(pair.cores.len(), allowed_cores().unwrap().len());
    }

    #[test]
    fn what_is_named_and_cannot_be_measured_is_refused() {
        let refused = |cpu_nodes: &[u16], memory_nodes: &[u16]| {
            of(&four(), cpu_nodes, memory_nodes).unwrap_err()
        };
        let absent = refused(&[], &[1, 9]);
        assert!(absent.to_string().starts_with("there is no node 9, but 0-3"), "{absent}");
        assert!(matches!(refused(&[1], &[]), MeasureError::NoCore { cpu_node: 1 }));
        assert!(matches!(refused(&[], &[2]), MeasureError::NoMemoryHere { node: 2 }));
        assert!(matches!(refused(&[], &[3]), MeasureError::NoMemoryHere { node: 3 }));
        let none = topology(vec![node(0, vec![], 1), node(1, vec![], 1)]);
        assert!(matches!(of(&none, &[], &[]), Err(MeasureError::NoPair)));
    }

    #[test]
    fn hardware_threads_of_used_cores_come_last() {
        let mut cpus = vec![0, 1, 2, 3, 8];
        by_thread(&mut cpus, |cpu| match cpu {
            0 | 1 => Some(vec![0, 1]),
            2 | 3 => Some(vec![2, 3]),
            _ => None,
        });
        assert_eq!(cpus, [0, 2, 8, 1, 3]);
    }
}
