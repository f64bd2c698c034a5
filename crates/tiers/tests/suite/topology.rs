//! Machines that are not here, as trees of files like `/sys` and `/proc`, and the one that is.

use rackpool_tiers::topology::{Access, Bus, Kind, Node, Sources, Topology, TopologyError};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A machine's files, which go when it is dropped.
struct Machine(PathBuf);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Machine {
        // Relaxed: only the number counts, and an add gives each one once.
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rackpool-tiers-{}-{number}", std::process::id());
        let machine = Machine(std::env::temp_dir().join(name));
        fs::create_dir_all(machine.0.join("sys/devices")).unwrap();
        machine.write(files);
        machine
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (file, text) in files {
            let file = self.0.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    /// A node with as many MiB, a quarter of them free.
    fn node(&self, id: u16, cpus: &str, mib: u64) {
        let kib = mib * 1024;
        let meminfo = format!(
            "Node {id} MemTotal: {kib:>10} kB\nNode {id} MemFree: {free:>10} kB\n\
             Node {id} MemUsed: 1 kB\nNode {id} Active(anon): 9 kB\n\
             Node {id} Active(file): 2 kB\nNode {id} Inactive(file): 4 kB\n",
            free = kib / 4
        );
        self.of_node(id, &[("cpulist", &format!("{cpus}\n")), ("meminfo", &meminfo)]);
    }

    fn of_node(&self, id: u16, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.write(&[(&format!("sys/devices/system/node/node{id}/{name}"), text)]);
        }
    }

    /// Memory blocks of 128 MiB in a node.
    fn blocks(&self, id: u16, blocks: &[(u64, &str)]) {
        self.write(&[("sys/devices/system/memory/block_size_bytes", "8000000\n")]);
        for (block, state) in blocks {
            let block_folder = format!("sys/devices/system/memory/memory{block}");
            self.write(&[(&format!("{block_folder}/state"), &format!("{state}\n"))]);
            let link = format!("sys/devices/system/node/node{id}/memory{block}");
            symlink(self.0.join(block_folder), self.0.join(link)).unwrap();
        }
    }

    /// A dax device in a folder of the device tree, with what its files say.
    fn dax(&self, name: &str, folder: &str, files: &[(&str, &str)]) {
        let real = format!("sys/devices/{folder}/{name}");
        for (file, text) in files {
            let path = self.0.join(&real).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match *file {
                "driver" => symlink(format!("../../bus/dax/drivers/{text}"), path).unwrap(),
                _ => fs::write(path, text).unwrap(),
            }
        }
        let bus = self.0.join("sys/bus/dax/devices");
        fs::create_dir_all(&bus).unwrap();
        symlink(self.0.join(real), bus.join(name)).unwrap();
    }

    fn sys(&self) -> PathBuf {
        self.0.join("sys")
    }

    fn read(&self) -> Topology {
        Topology::read(&Sources::of_sysfs(&self.sys())).unwrap()
    }

    fn read_with_proc(&self) -> Topology {
        let (sys, proc) = (self.sys(), self.0.join("proc"));
        Topology::read(&Sources { sys: &sys, proc: Some(&proc), tries_calls: false }).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ids(topology: &Topology) -> Vec<u16> {
    topology.nodes.iter().map(|node| node.id).collect()
}

fn without_faults(topology: Topology) -> Topology {
    assert!(topology.faults.is_empty(), "{:?}", topology.faults);
    topology
}

#[test]
fn one_node_is_one_node_and_what_is_not_said_is_not_known() {
    let machine = Machine::new(&[]);
    machine.node(0, "0-3", 4096);
    machine.of_node(0, &[("distance", "10\n")]);
    let topology = without_faults(machine.read());
    assert!(topology.has_nodes && topology.tiers.is_empty() && topology.dax.is_empty());
    assert!(topology.refused.is_none() && topology.poisoned_bytes.is_none());
    let node = Node {
        id: 0,
        cpus: Some(vec![0, 1, 2, 3]),
        memory_bytes: Some(4 * GIB),
        free_bytes: Some(GIB),
        available_bytes: Some(GIB + (6 << 10)),
        offline_bytes: None,
        poisoned_pages: None,
        kind: Kind::Dram,
        tier: None,
        distance: Some(vec![10]),
        access: Access::default(),
        devices: Vec::new(),
        is_allowed: None,
    };
    assert_eq!(topology.nodes, [node]);
}

#[test]
fn two_sockets_have_distances_and_what_the_process_may_use() {
    let status = "Name:\tx\nSeccomp:\t2\nMems_allowed:\t00000002\nMems_allowed_list:\t1\n";
    let meminfo = "MemTotal: 1 kB\nHardwareCorrupted:    12 kB\n";
    let machine = Machine::new(&[("proc/self/status", status), ("proc/meminfo", meminfo)]);
    machine.node(0, "0-7,16-23", 65536);
    machine.node(1, "8-15,24-31", 65536);
    machine.of_node(0, &[("distance", "10 21\n"), ("memory_failure/total", "3\n")]);
    machine.of_node(1, &[("distance", "21 10\n"), ("memory_failure/total", "0\n")]);
    let topology = without_faults(machine.read_with_proc());
    let [first, second] = &topology.nodes[..] else { panic!("two nodes") };
    assert_eq!((first.kind, second.kind), (Kind::Dram, Kind::Dram));
    assert_eq!(second.distance, Some(vec![21, 10]));
    assert_eq!(second.cpus, Some((8..16).chain(24..32).collect()));
    assert_eq!((first.is_allowed, second.is_allowed), (Some(false), Some(true)));
    assert_eq!((first.poisoned_pages, second.poisoned_pages), (Some(3), Some(0)));
    assert_eq!((topology.poisoned_bytes, topology.has_filter), (Some(12 << 10), Some(true)));
}

/// As `-M q35,hmat=on` with three nodes of 200, 80 and 40 GB/s, on Linux 7.3.
fn three_nodes() -> Machine {
    let machine = Machine::new(&[
        ("sys/devices/system/node/online", "0-2\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier21/nodelist", "1\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier70/nodelist", "2\n"),
        ("sys/devices/virtual/memory_tiering/uevent", ""),
    ]);
    for (id, cpus, mib, distance, latency, bandwidth) in [
        (0, "0-1", 768, "10 17 28", "80", "204800"),
        (1, "", 640, "17 10 30", "150", "81920"),
        (2, "", 640, "28 30 10", "250", "40960"),
    ] {
        machine.node(id, cpus, mib);
        machine.of_node(id, &[("distance", distance)]);
        for class in ["access0", "access1"] {
            let folder = format!("{class}/initiators");
            for name in ["read_latency", "write_latency", "read_bandwidth", "write_bandwidth"] {
                let value = if name.ends_with("latency") { latency } else { bandwidth };
                machine.of_node(id, &[(&format!("{folder}/{name}"), &format!("{value}\n"))]);
            }
            machine.of_node(id, &[(&format!("{folder}/node0/x"), "")]);
        }
    }
    machine
}

#[test]
fn nodes_without_processors_have_the_speeds_and_tiers_that_the_firmware_says() {
    let machine = three_nodes();
    let topology = without_faults(machine.read());
    let tiers: Vec<_> = topology.tiers.iter().map(|t| (t.number, t.nodes.clone())).collect();
    assert_eq!(tiers, [(4, vec![0]), (21, vec![1]), (70, vec![2])]);
    let speeds = |latency, bandwidth| Access {
        initiators: vec![0],
        read_latency_ns: Some(latency),
        write_latency_ns: Some(latency),
        read_bandwidth_mbps: Some(bandwidth),
        write_bandwidth_mbps: Some(bandwidth),
    };
    let expected = [
        (Kind::Dram, Some(4), speeds(80, 204_800)),
        (Kind::Other, Some(21), speeds(150, 81_920)),
        (Kind::Other, Some(70), speeds(250, 40_960)),
    ];
    let found: Vec<_> =
        topology.nodes.iter().map(|node| (node.kind, node.tier, node.access.clone())).collect();
    assert_eq!(found, expected);
    assert_eq!(topology.node(2).unwrap().cpus, Some(vec![]));
    assert_eq!(topology.node(2).unwrap().distance, Some(vec![28, 30, 10]));
    assert!(topology.node(3).is_none());
}

#[test]
fn speeds_seen_by_processors_go_before_those_of_devices_and_zero_is_not_known() {
    let machine = three_nodes();
    // A network card is nearer to node 1 than any processor; of node 2 the firmware says less.
    machine.of_node(1, &[("access0/initiators/read_latency", "40\n")]);
    machine.of_node(2, &[("access1/initiators/read_latency", "0\n")]);
    let topology = without_faults(machine.read());
    assert_eq!(topology.nodes[1].access.read_latency_ns, Some(150));
    assert_eq!(topology.nodes[2].access.read_latency_ns, None);
    assert_eq!(topology.nodes[2].access.write_latency_ns, Some(250));
    fs::remove_dir_all(machine.sys().join("devices/system/node/node1/access1")).unwrap();
    assert_eq!(machine.read().nodes[1].access.read_latency_ns, Some(40));
}

#[test]
fn devices_behind_nodes_say_what_their_memory_is() {
    const CXL: &str = "platform/ACPI0017:00/root0/decoder0.0/region3/dax_region3";
    let machine = three_nodes();
    let files = |driver, node| {
        [("driver", driver), ("target_node", node), ("size", "671088640\n"), ("align", "2097152")]
    };
    machine.dax("dax0.0", CXL, &files("kmem", "1\n"));
    machine.dax("dax1.0", "LNXSYSTM:00/ACPI0012:00/ndbus0/region0/dax1.0", &files("kmem", "2\n"));
    machine.dax("dax2.0", "platform/hmem.0", &files("device_dax", "-1\n"));
    let topology = without_faults(machine.read());
    let kinds: Vec<Kind> = topology.nodes.iter().map(|node| node.kind).collect();
    assert_eq!(kinds, [Kind::Dram, Kind::Cxl, Kind::Pmem]);
    let [device] = &topology.nodes[1].devices[..] else { panic!("one device") };
    assert_eq!((device.name.as_str(), device.region.as_deref()), ("dax0.0", Some("region3")));
    assert_eq!((device.bytes, device.align_bytes), (Some(640 * MIB), Some(2 * MIB)));
    assert_eq!(topology.nodes[2].devices[0].bus, Some(Bus::Nd));
    // What is no memory lies behind no node.
    assert_eq!(topology.dax.len(), 3);
    assert_eq!((topology.dax[2].target_node, topology.dax[2].is_memory), (None, Some(false)));
    assert!(topology.nodes[0].devices.is_empty());
}

#[test]
fn persistent_memory_in_a_node_with_processors_leaves_it_dram() {
    let machine = Machine::new(&[]);
    machine.node(0, "0", 1024);
    let files = [("driver", "kmem"), ("target_node", "0"), ("size", "402653184")];
    machine.dax("dax0.0", "ndbus0/region0", &files);
    let node = &machine.read().nodes[0];
    assert_eq!((node.kind, node.devices.len()), (Kind::Dram, 1));
    // A socket without memory of its own.
    machine.node(0, "0", 380);
    assert_eq!(machine.read().nodes[0].kind, Kind::Pmem);
}

#[test]
fn cxl_memory_that_the_firmware_made_a_node_is_found_by_its_addresses() {
    let machine = three_nodes();
    machine.blocks(1, &[(32, "online"), (33, "online")]);
    machine.blocks(2, &[(48, "online")]);
    machine.write(&[
        ("sys/bus/cxl/devices/region0/resource", "0x100000000\n"),
        ("sys/bus/cxl/devices/region0/size", "0x10000000\n"),
        ("sys/bus/cxl/devices/region1/resource", "-1\n"),
        ("sys/bus/cxl/devices/region1/size", "0\n"),
        ("sys/bus/cxl/devices/mem0/serial", "0x1\n"),
    ]);
    let topology = without_faults(machine.read());
    let [_, near, far] = &topology.nodes[..] else { panic!("three nodes") };
    assert_eq!((near.kind, near.devices[0].name.as_str()), (Kind::Cxl, "region0"));
    assert_eq!(near.devices[0].bytes, Some(256 * MIB));
    assert_eq!((far.kind, far.devices.len()), (Kind::Other, 0));
    // The same memory by a dax device is one device.
    let files = [("driver", "kmem"), ("target_node", "1"), ("resource", "0x100000000")];
    machine.dax("dax0.0", "platform/hmem.1", &files);
    let topology = without_faults(machine.read());
    let names: Vec<&str> = topology.nodes[1].devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!((names, topology.nodes[1].kind), (vec!["dax0.0"], Kind::Cxl));
}

#[test]
fn memory_that_is_offline_is_counted_by_node() {
    let machine = three_nodes();
    machine.blocks(0, &[(0, "online"), (1, "online")]);
    machine.blocks(1, &[(32, "offline"), (33, "going-offline"), (34, "online")]);
    let topology = without_faults(machine.read());
    let offline: Vec<_> = topology.nodes.iter().map(|node| node.offline_bytes).collect();
    assert_eq!(offline, [Some(0), Some(256 * MIB), None]);
}

#[test]
fn a_kernel_without_memory_nodes_has_one_memory() {
    let machine = Machine::new(&[
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("proc/meminfo", "MemTotal:  2097152 kB\nMemFree:  1048576 kB\n"),
        ("proc/self/status", "Name:\tx\nSeccomp:\t0\n"),
    ]);
    let topology = without_faults(machine.read_with_proc());
    let [node] = &topology.nodes[..] else { panic!("one node") };
    assert!(!topology.has_nodes);
    assert_eq!((node.id, node.kind, node.cpus.clone()), (0, Kind::Dram, Some(vec![0, 1])));
    assert_eq!((node.memory_bytes, node.free_bytes), (Some(2 * GIB), Some(GIB)));
    assert_eq!((node.tier, &node.distance, node.is_allowed), (None, &None, None));
    assert_eq!(topology.has_filter, Some(false));
    let of_files = without_faults(machine.read());
    assert_eq!((of_files.nodes[0].memory_bytes, of_files.has_filter), (None, None));
}

#[test]
fn nonsense_in_files_is_unknown_and_named_with_the_file() {
    let machine = three_nodes();
    machine.of_node(0, &[("cpulist", "0-x"), ("distance", "10 17")]);
    machine.of_node(1, &[("meminfo", "\u{0}\u{1}"), ("access1/initiators/read_latency", "fast")]);
    machine.of_node(2, &[("cpulist", "0-99999999999"), ("memory_failure/total", "-1")]);
    let tier = "sys/devices/virtual/memory_tiering/memory_tier21/nodelist";
    let block = "sys/devices/system/memory/block_size_bytes";
    let status = "Mems_allowed_list:\tall\n";
    machine.write(&[(tier, "0-9999"), (block, "0"), ("proc/self/status", status)]);
    machine.dax("dax0.0", "x", &[("target_node", "one"), ("size", "18446744073709551615")]);
    machine.dax("dax1.0", "x", &[("target_node", "2"), ("size", "18446744073709551615")]);
    machine.dax("dax2.0", "x", &[("target_node", "2"), ("size", "18446744073709551615")]);
    let topology = machine.read_with_proc();
    assert_eq!(ids(&topology), [0, 1, 2]);
    let [first, second, third] = &topology.nodes[..] else { panic!("three nodes") };
    assert_eq!((&first.cpus, &first.distance), (&None, &None));
    assert_eq!(first.memory_bytes, Some(768 * MIB));
    assert_eq!((second.memory_bytes, second.tier), (None, None));
    assert_eq!(second.access.read_latency_ns, None);
    assert_eq!(second.access.write_latency_ns, Some(150));
    assert_eq!((&third.cpus, third.poisoned_pages, third.is_allowed), (&None, None, None));
    let files: Vec<String> = topology.faults.iter().map(ToString::to_string).collect();
    for (file, text) in [
        ("node0/cpulist", "\"0-x\""),
        ("node0/distance", "\"10 17\""),
        ("node1/meminfo", "\\0"),
        ("node1/access1/initiators/read_latency", "\"fast\""),
        ("node2/cpulist", "99999999999"),
        ("memory_failure/total", "\"-1\""),
        ("memory_tier21/nodelist", "\"0-9999\""),
        ("block_size_bytes", "\"0\""),
        ("self/status", "Mems_allowed_list"),
        ("dax0.0/target_node", "\"one\""),
    ] {
        let is_said = |line: &&String| line.contains(file) && line.contains(text);
        assert_eq!(files.iter().filter(is_said).count(), 1, "{file}: {files:#?}");
    }
    assert_eq!(files.len(), 10, "{files:#?}");
    assert!(topology.faults.iter().all(|fault| fault.code() == "bad-file"));
}

#[test]
fn numbers_of_nodes_may_have_gaps_and_be_many() {
    let machine = Machine::new(&[("sys/devices/system/node/online", "0-3,8,10-11\n")]);
    let ids_wanted = [0, 1, 2, 3, 8, 10, 11];
    for id in ids_wanted {
        machine.node(id, "", 128);
        machine.of_node(id, &[("distance", "10 20 20 20 20 20 20")]);
    }
    let tier = "sys/devices/virtual/memory_tiering/memory_tier4/nodelist";
    machine.write(&[(tier, "0-3,8,10-11\n"), ("sys/devices/system/node/nodes/x", "")]);
    machine.write(&[("proc/self/status", "Mems_allowed_list:\t0-3,8,10-11\n")]);
    // Beyond what Linux has.
    machine.node(1024, "", 128);
    fs::create_dir(machine.sys().join("devices/system/node/node-1")).unwrap();
    let topology = without_faults(machine.read_with_proc());
    assert_eq!(ids(&topology), ids_wanted);
    assert!(topology.nodes.iter().all(|node| node.tier == Some(4)));
    assert!(topology.nodes.iter().all(|node| node.is_allowed == Some(true)));

    let machine = Machine::new(&[("proc/self/status", "Mems_allowed_list:\t0-1023\n")]);
    for id in 0..1024 {
        machine.of_node(id, &[("cpulist", &format!("{id},{}", 8192 + u32::from(id)))]);
    }
    let topology = without_faults(machine.read_with_proc());
    assert_eq!(topology.nodes.len(), 1024);
    assert_eq!(topology.node(1023).unwrap().cpus, Some(vec![1023, 9215]));
    assert_eq!(topology.node(1023).unwrap().is_allowed, Some(true));
}

#[test]
fn what_is_no_sysfs_is_refused_with_a_way_out() {
    let error = Topology::read(&Sources::of_sysfs(Path::new("/nowhere"))).unwrap_err();
    assert!(matches!(error, TopologyError::Io { .. }) && error.to_string().contains("/nowhere"));
    let machine = Machine::new(&[("proc/meminfo", "")]);
    let error = Topology::read(&Sources::of_sysfs(&machine.0.join("proc"))).unwrap_err();
    assert!(matches!(error, TopologyError::NoSysfs { .. }) && error.code() == "usage");
    assert!(error.to_string().contains("/sys itself"), "{error}");
    // An empty one is that of some containers.
    fs::create_dir(machine.0.join("empty")).unwrap();
    let topology = Topology::read(&Sources::of_sysfs(&machine.0.join("empty"))).unwrap();
    assert!(!topology.has_nodes && topology.nodes[0].memory_bytes.is_none());
}

#[test]
fn this_machine_is_read() {
    let topology = without_faults(Topology::read(&Sources::here()).unwrap());
    let has_nodes = Path::new("/sys/devices/system/node/node0").exists();
    assert_eq!(topology.has_nodes, has_nodes);
    let total: u64 = topology.nodes.iter().filter_map(|node| node.memory_bytes).sum();
    let cpus: usize =
        topology.nodes.iter().filter_map(|node| Some(node.cpus.as_ref()?.len())).sum();
    assert!(total > 0 && cpus > 0);
    for node in &topology.nodes {
        assert!(node.free_bytes <= node.memory_bytes, "{node:?}");
    }
    assert!(topology.refused.is_some() && topology.has_filter.is_some());
    assert!(topology.nodes.iter().any(|node| node.is_allowed != Some(false)));
}
