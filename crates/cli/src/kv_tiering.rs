//! `kv --tiering auto`, the default: whole items on memory nodes without processors, where there
//! are some with room, else all in DRAM. In: options, what the machine says of its nodes. Out: the
//! options with the mode that is meant, and why it is that; for modes that are named, whether their
//! nodes have room.

use crate::args::KvArgs;
use crate::failure::Failure;
use crate::kv_args::Tiering;
use crate::kv_files::{check_file_system, kept_bytes};
use rackpool_cache::{Policy, far_bytes_in};
use rackpool_mem::memory::HostMemory;
use rackpool_mem::numa::{NumaError, Placement};
use rackpool_mem::policy::{PolicyCall, Refused};
use rackpool_stats::format::Unit;
use rackpool_tiers::topology::{Node, Sources, Topology};
use std::os::unix::fs::MetadataExt;

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
        None => has_room(topology, &far, far_bytes(args), args).map(|()| far),
    }
}

fn far_bytes(args: &KvArgs) -> u64 {
    args.far_memory.unwrap_or(args.memory)
}

/// Refuses memory that its nodes do not have to give now: it comes from nowhere else, and the
/// kernel ends a process for which they have none. `option` says how much it is.
pub fn check_room(
    nodes: &Placement,
    bytes: u64,
    option: &str,
    args: &KvArgs,
) -> Result<(), Failure> {
    // What cannot be read says nothing.
    let Ok(topology) = Topology::read(&Sources::here()) else { return Ok(()) };
    has_room(&topology, nodes, bytes, args).map_err(|what| {
        let hint = "free some, or name nodes with more: `rackpool tiers show` has them";
        Failure::new("full", what).with_hint(format!("give less to {option}, {hint}"))
    })
}

/// Whether each node has its part to give now, beside what a file has already.
fn has_room(
    topology: &Topology,
    nodes: &Placement,
    bytes: u64,
    args: &KvArgs,
) -> Result<(), String> {
    // What went back to the system in mode dram is not in the file any more.
    let missing = match args.warm.as_ref().and_then(|path| path.metadata().ok()) {
        Some(found) => found.len().saturating_sub(found.blocks() * 512),
        None => u64::MAX,
    };
    let extents = nodes.extents(bytes);
    for (id, _) in nodes.nodes() {
        let own = extents.iter().filter(|(_, _, node)| node == id);
        let wanted = own.map(|(_, bytes, _)| bytes).sum::<u64>().min(missing);
        let there = topology.node(*id).and_then(|node| node.available_bytes);
        if let Some(there) = there.filter(|there| *there < wanted) {
            let [wanted, there] = [wanted, there].map(|bytes| Unit::Bytes.show(bytes as f64));
            return Err(format!(
                "{wanted} were to come from memory node {id}, which has {there} to give now"
            ));
        }
    }
    Ok(())
}

/// Whether the nodes, this host, or its limit for us, and the file have the memory.
fn is_there(far: &Placement, args: &KvArgs) -> Result<(), String> {
    if let Some(path) = args.warm.as_ref().filter(|path| far_bytes_in(path) == Some(0)) {
        return Err(format!("{} was made without far memory", path.display()));
    }
    let far_bytes = far_bytes(args);
    far.check(far_bytes).map_err(|error| format!("{error} (--far-memory)"))?;
    let wanted = args.memory.saturating_add(far_bytes);
    if let Some(host) = HostMemory::now().filter(|host| wanted > host.total_bytes) {
        let there = host.total_bytes;
        return Err(format!(
            "{wanted} bytes near and on {far} are more than the {there} there are"
        ));
    }
    match &args.warm {
        Some(path) => check_file_system(path, wanted, kept_bytes(args))
            .map_err(|failure| failure.message().to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use rackpool_cache::{Cache, Options};
    use rackpool_mem::temporary::TemporaryDir;
    use std::fs;
    use std::path::Path;

    fn args(words: &str) -> KvArgs {
        let line = format!("rackpool kv --resp 0 {words}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Kv(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    /// A machine whose nodes have these processors, and memory.
    fn machine(cpus: &[&str]) -> Topology {
        machine_with(cpus, &[])
    }

    /// And so much of it to give, in MiB: a third is pages of files.
    fn machine_with(cpus: &[&str], free_mib: &[u64]) -> Topology {
        let dir = TemporaryDir::new(&std::env::temp_dir(), "tiering").unwrap();
        for (node, cpus) in cpus.iter().enumerate() {
            let at = dir.path().join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("cpulist"), format!("{cpus}\n")).unwrap();
            let mut meminfo = format!("Node {node} MemTotal: 1048576 kB\n");
            if let Some(mib) = free_mib.get(node) {
                let third = mib * 1024 / 3;
                meminfo += &format!("Node {node} MemFree: {} kB\n", third * 2);
                meminfo += &format!("Node {node} Inactive(file): {third} kB\n");
            }
            fs::write(at.join("meminfo"), meminfo).unwrap();
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
    fn a_node_that_has_no_room_now_is_not_filled() {
        let far = |cpus: &[&str], free_mib: &[u64], words: &str| {
            far_nodes(&machine_with(cpus, free_mib), &args(words))
        };
        let one = |words: &str| far(&["0-1", ""], &[1, 96], words);
        assert_eq!(one("--memory 90m").unwrap().to_string(), "numa:1");
        for words in ["--memory 100m", "--memory 8m --far-memory 100m"] {
            let why = one(words).unwrap_err();
            assert!(why.contains("memory node 1, which has 96.0 MiB to give"), "{why}");
        }
        // A file that is there has its memory.
        assert!(one("--memory 100m --warm /dev/null").is_ok());
        // Two nodes give half each.
        assert!(far(&["0-1", "", ""], &[1, 96, 96], "--memory 160m").is_ok());
        assert!(far(&["0-1", "", ""], &[1, 96, 60], "--memory 160m").is_err());
    }

    #[test]
    fn a_file_without_far_memory_is_opened_as_it_was_made() {
        let dir = TemporaryDir::new(Path::new("/dev/shm"), "tiering").unwrap();
        let path = dir.path().join("warm");
        let words = format!("--memory 8m --warm {}", path.display());
        let far: Placement = "numa:0".parse().unwrap();
        assert_eq!(is_there(&far, &args(&words)), Ok(()));
        let options = Options { memory: 8 << 20, ..Options::default() };
        drop(Cache::open(options, &path).unwrap());
        let why = is_there(&far, &args(&words)).unwrap_err();
        assert!(why.contains("was made without far memory"), "{why}");
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
