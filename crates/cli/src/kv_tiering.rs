//! `kv --tiering auto`, the default: whole items on memory nodes without processors, where there
//! are some, else all in DRAM. In: options, what the machine says of its nodes. Out: the options
//! with the mode that is meant, and why it is that.

use crate::args::KvArgs;
use crate::kv_args::Tiering;
use rackpool_cache::Policy;
use rackpool_mem::memory::HostMemory;
use rackpool_mem::numa::{NumaError, Placement};
use rackpool_mem::policy::{PolicyCall, Refused};
use rackpool_tiers::topology::{Node, Sources, Topology};

/// All memory nodes without processors that this process may use, alike; `None`: there are none.
pub fn nodes_without_processors(topology: &Topology) -> Result<Option<Placement>, NumaError> {
    let has_none = |cpus: &Option<Vec<u32>>| cpus.as_ref().is_some_and(Vec::is_empty);
    let is_usable = |node: &&Node| {
        node.memory_bytes.is_some_and(|bytes| bytes > 0) && node.is_allowed != Some(false)
    };
    let far = topology.nodes.iter().filter(|node| has_none(&node.cpus)).filter(is_usable);
    let ids: Vec<String> = far.map(|node| node.id.to_string()).collect();
    let text = match &ids[..] {
        [] => return Ok(None),
        [one] => format!("numa:{one}"),
        several => several.iter().map(|id| format!("numa:{id}=1")).collect::<Vec<_>>().join(","),
    };
    text.parse().map(Some)
}

/// The options with the mode that is meant, and why, if it was left to us.
pub fn resolved(args: &KvArgs) -> (KvArgs, Option<String>) {
    let with = |tiering| KvArgs { tiering: Some(tiering), ..args.clone() };
    match &args.tiering {
        None | Some(Tiering::Auto) => {}
        Some(tiering) => return (with(tiering.clone()), None),
    }
    if args.interleave.is_some() || args.value_tier.is_some() || args.pool.is_some() {
        return (with(Tiering::Dram(None)), None);
    }
    let far = match Topology::read(&Sources::here()) {
        Ok(topology) => far_nodes(&topology, args),
        Err(error) => Err(error.to_string()),
    };
    let checked = far.and_then(|far| is_there(&far, args).map(|()| far));
    match checked {
        Ok(far) => {
            let why = format!("tiering data: {far} has memory and no processors");
            (with(Tiering::Data(Some(far))), Some(why))
        }
        Err(why) => (with(Tiering::Dram(None)), Some(format!("tiering dram: {why}"))),
    }
}

/// The nodes for items that are worth less; else why there are none.
fn far_nodes(topology: &Topology, args: &KvArgs) -> Result<Placement, String> {
    let far = nodes_without_processors(topology).map_err(|error| error.to_string())?;
    let far = far.ok_or("this machine has no memory node without processors")?;
    if args.policy.policy != Policy::TinyLfu {
        return Err(format!("{far} has none, but --tiering data needs --policy tinylfu"));
    }
    let is_needed = |refused: &&Refused| matches!(refused.call, PolicyCall::Mbind);
    match topology.refused.iter().flatten().find(is_needed) {
        Some(Refused { error, .. }) => {
            Err(format!("{far} has none, but mbind is refused to this process: {error}"))
        }
        None => Ok(far),
    }
}

/// Whether the nodes, and this host, or its limit for us, have the memory.
fn is_there(far: &Placement, args: &KvArgs) -> Result<(), String> {
    let far_bytes = args.far_memory.unwrap_or(args.memory);
    far.check(far_bytes).map_err(|error| format!("{error} (--far-memory)"))?;
    let wanted = args.memory.saturating_add(far_bytes);
    match HostMemory::now() {
        Some(host) if wanted > host.total_bytes => {
            let there = host.total_bytes;
            Err(format!("{wanted} bytes near and on {far} are more than the {there} there are"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use rackpool_mem::temporary::TemporaryDir;
    use std::fs;

    fn args(words: &str) -> KvArgs {
        let line = format!("rackpool kv --resp 0 {words}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Kv(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    /// A machine whose nodes have these processors, and memory.
    fn machine(cpus: &[&str]) -> Topology {
        let dir = TemporaryDir::new(&std::env::temp_dir(), "tiering").unwrap();
        for (node, cpus) in cpus.iter().enumerate() {
            let at = dir.path().join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(at.join("meminfo"), format!("Node {node} MemTotal: 1024 kB\n")).unwrap();
        }
        Topology::read(&Sources::of_sysfs(dir.path())).unwrap()
    }

    #[test]
    fn items_lie_on_nodes_without_processors_where_there_are_some() {
        let far = |cpus: &[&str]| far_nodes(&machine(cpus), &args("")).map(|far| far.to_string());
        assert_eq!(far(&["0-1", ""]).unwrap(), "numa:1");
        assert_eq!(far(&["0-1", "", "2-3", ""]).unwrap(), "numa:1=1,numa:3=1");
        for cpus in [&["0-3"] as &[&str], &["0-1", "2-3"]] {
            assert!(far(cpus).unwrap_err().contains("no memory node without processors"));
        }
    }

    #[test]
    fn what_speaks_against_far_memory_leaves_all_in_dram_and_is_said() {
        let far = machine(&["0-1", ""]);
        let why = far_nodes(&far, &args("--policy fifo")).unwrap_err();
        assert!(why.contains("--policy tinylfu"), "{why}");
        let placement: Placement = "numa:1000".parse().unwrap();
        let why = is_there(&placement, &args("")).unwrap_err();
        assert!(why.contains("memory node 1000 has no memory"), "{why}");
    }

    #[test]
    fn a_mode_that_is_named_is_kept_and_other_placements_are_modes_of_their_own() {
        let mode = |words: &str| resolved(&args(words));
        let (named, why) = mode("--tiering data:numa:7");
        assert_eq!((named.tiering, why), (Some(Tiering::Data("numa:7".parse().ok())), None));
        for words in ["--tiering dram", "--interleave numa:0", "--value-tier numa:0"] {
            let (named, why) = mode(words);
            assert_eq!((named.tiering, why), (Some(Tiering::Dram(None)), None), "{words}");
        }
    }
}
