//! What of the hardware under a pool is there: RDMA devices with their ports and addresses, devdax
//! and its namespaces, CXL devices, memory nodes. Read from `/sys`, for which tests have another
//! directory.

use super::{Check, State, check, names};
use rackpool_mem::caches;
use rackpool_mem::numa::list;
use rackpool_stats::format::Unit;
use rackpool_tiers::topology::{Device, Node, Sources, Tier, Topology};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::Path;

/// Address of a port that is not set.
const NO_ADDRESS: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
/// Smallest MTU of a network card with RoCE packets that carry 4096 bytes.
const MTU_BYTES: u64 = 4200;
/// Memory that a device has to be allowed to lock for each rack, at least.
const LOCKED_BYTES: u64 = 1 << 30;
/// A region on a devdax in units of 2 MiB takes more than half a GiB before its first page.
const DEVDAX_BYTES: u64 = 640 << 20;

/// All checks of this file.
pub(super) fn checks(sys: &Path) -> Vec<Check> {
    let has_device = !names(&sys.join("class/infiniband")).is_empty();
    let locked = getrlimit(Resource::Memlock).current;
    let mut checks = ports(sys);
    checks.push(locked_memory(locked, has_device));
    checks.extend([lines(caches::instruction()), namespaces(sys), cxl(sys)]);
    match Topology::read(&Sources::of_sysfs(sys)) {
        Ok(topology) => {
            checks.extend([dax(&topology.dax), nodes(&topology), tiers(sys, &topology.tiers)])
        }
        Err(error) => checks.push(check(
            "memory nodes",
            State::Missing,
            error.to_string(),
            "memory nodes and devices are found there",
            "mount -t sysfs sysfs /sys",
        )),
    }
    checks
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &Path) -> Option<u64> {
    text(path).parse().ok()
}

/// A line for each port of each RDMA device, or one that says that there is none.
fn ports(sys: &Path) -> Vec<Check> {
    let class = sys.join("class/infiniband");
    let ports = names(&class).into_iter().flat_map(|device| {
        let numbers = names(&class.join(&device).join("ports"));
        numbers.into_iter().map(move |port| (device.clone(), port))
    });
    let checks: Vec<Check> = ports.map(|(device, port)| of_port(sys, &device, &port)).collect();
    if !checks.is_empty() {
        return checks;
    }
    vec![check(
        "rdma",
        State::Missing,
        "no device",
        "one-sided access between racks by hardware: --fabric verbs",
        "install a card, or for trials: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev \
         eth0; racks reach one another with --fabric tcp as well",
    )]
}

fn of_port(sys: &Path, device: &str, port: &str) -> Check {
    let base = sys.join("class/infiniband").join(device).join("ports").join(port);
    let state = text(&base.join("state"));
    let addresses: Vec<(String, String, String)> = names(&base.join("gids"))
        .into_iter()
        .map(|index| {
            let kind = text(&base.join("gid_attrs/types").join(&index));
            (text(&base.join("gids").join(&index)), kind, index)
        })
        .filter(|(address, ..)| !address.is_empty() && address != NO_ADDRESS)
        .collect();
    let is_ethernet = text(&base.join("link_layer")) != "InfiniBand";
    let routable = |(_, kind, _): &&(String, String, String)| kind.contains("v2");
    let ipv4 = |one: &&(String, String, String)| routable(one) && one.0.contains(":ffff:");
    let found = addresses.iter().find(ipv4).or_else(|| addresses.iter().find(routable));
    let address = found.or(addresses.first());
    let card = address.map(|(_, _, index)| text(&base.join("gid_attrs/ndevs").join(index)));
    let card = card.unwrap_or_default();
    let mtu = number(&sys.join("class/net").join(&card).join("mtu")).filter(|_| is_ethernet);
    let mut found = format!("{device}:{port} {}", state.rsplit(' ').next().unwrap_or("?"));
    if let Some((address, kind, index)) = address {
        found += &format!(", address {index} {address} ({kind})");
    }
    if let Some(mtu) = mtu {
        found += &format!(", {card} with MTU {mtu}");
    }
    let is_active = state.contains("ACTIVE");
    let (state, way_out) = match address {
        _ if !is_active => (State::Missing, "plug in the cable, or: ip link set CARD up"),
        None => {
            (State::Missing, "give its network card an address: ip addr add 10.0.0.1/24 dev CARD")
        }
        Some((_, kind, _)) if is_ethernet && !kind.contains("v2") => {
            (State::But, "RoCE v1 is not routed: set the card to RoCE v2 (cma_roce_mode)")
        }
        Some(_) if mtu.is_some_and(|mtu| mtu < MTU_BYTES) => {
            (State::But, "packets are short: ip link set CARD mtu 9000, on the switch as well")
        }
        Some(_) => (State::Good, ""),
    };
    check(
        "rdma",
        state,
        found,
        "one-sided access between racks by hardware: --fabric verbs",
        way_out,
    )
}

fn locked_memory(limit: Option<u64>, has_device: bool) -> Check {
    let is_enough = limit.is_none_or(|bytes| bytes >= LOCKED_BYTES);
    let state = match (is_enough, has_device) {
        (true, _) => State::Good,
        (false, true) => State::Missing,
        (false, false) => State::But,
    };
    check(
        "locked memory",
        state,
        limit.map_or("unlimited".into(), |bytes| Unit::Bytes.show(bytes as f64)),
        "RDMA devices lock the memory that they reach; shm and tcp need none",
        "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit (only for RDMA)",
    )
}

/// Devices for `--memory dax:PATH`: how large, in which units, by which driver.
fn dax(devices: &[Device]) -> Check {
    let mut state = State::Good;
    let mut found = Vec::new();
    for Device { name, driver, bytes, align_bytes, .. } in devices {
        let (bytes, align) = (bytes.unwrap_or(0), align_bytes.unwrap_or(0));
        let mode = match driver.as_deref() {
            Some("device_dax") => "devdax",
            Some("kmem") => "system-ram",
            _ => "without a driver",
        };
        if mode != "devdax" || bytes < DEVDAX_BYTES && align >= 2 << 20 {
            state = State::But;
        }
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        found.push(format!("{name} {mode}, {} in units of {}", show(bytes), show(align)));
    }
    let (state, way_out) = match state {
        _ if found.is_empty() => (
            State::Missing,
            "with such hardware: ndctl create-namespace -m devdax --map=mem (docs/deploy.md); \
             without, --emulate cxl=140ns shows what CXL memory would cost",
        ),
        state => (
            state,
            "daxctl reconfigure-device --mode=devdax for dax:PATH; one in mode system-ram is a \
             memory node, see there; below 640 MiB make it with --align=4K",
        ),
    };
    let found = if found.is_empty() { "none".to_owned() } else { found.join("; ") };
    let meaning = "CXL or persistent memory, which hosts may share: --memory dax:/dev/daxX.Y";
    check("dax", state, found, meaning, way_out)
}

/// How programs write cache lines back, for memory that no hardware keeps coherent between hosts.
fn lines(instruction: Option<&str>) -> Check {
    let state = match instruction {
        None => State::Missing,
        Some("clwb" | "dc cvac") => State::Good,
        Some(_) => State::But,
    };
    check(
        "cache lines",
        state,
        instruction.map_or("programs cannot write them back".into(), |name| format!("by {name}")),
        "memory that hosts share without coherent caches (CXL 2.0): --memory \
         'dax:/dev/daxX.Y?coherence=software'",
        match instruction {
            None => "a processor of x86-64 or aarch64",
            Some(_) => "each line that is written back is fetched anew; a newer processor has clwb",
        },
    )
}

/// Namespaces of persistent memory and their modes.
fn namespaces(sys: &Path) -> Check {
    const DEVICES: &str = "bus/nd/devices";
    let all = names(&sys.join(DEVICES));
    let kind_of = |name: &str| text(&sys.join(DEVICES).join(name).join("mode"));
    let mut found = Vec::new();
    let mut others = false;
    for name in all.iter().filter(|name| name.starts_with("namespace")) {
        let bytes = number(&sys.join(DEVICES).join(name).join("size")).unwrap_or(0);
        let mode = kind_of(name);
        if bytes == 0 {
            continue;
        }
        // A namespace that a devdax claims says so by its holder.
        let holder = text(&sys.join(DEVICES).join(name).join("holder"));
        let is_devdax = holder.starts_with("dax") || mode == "dax";
        let mode = if is_devdax {
            "devdax"
        } else if mode == "memory" {
            "fsdax"
        } else {
            "raw"
        };
        others |= !is_devdax;
        found.push(format!("{name} {mode}, {}", Unit::Bytes.show(bytes as f64)));
    }
    let (state, way_out) = match (found.is_empty(), others) {
        (true, _) => (
            State::Missing,
            "nothing to do without persistent or CXL memory; with it: cxl create-region, ndctl \
             create-namespace (docs/deploy.md)",
        ),
        (false, true) => (
            State::But,
            "a device can register devdax only: ndctl create-namespace -f -e NAME -m devdax \
             --map=mem, which loses what is in it",
        ),
        (false, false) => (State::Good, ""),
    };
    let found = if found.is_empty() { "none".to_owned() } else { found.join("; ") };
    check("namespaces", state, found, "persistent and CXL memory, and what uses it", way_out)
}

fn cxl(sys: &Path) -> Check {
    let devices = names(&sys.join("bus/cxl/devices"));
    let count = |prefix: &str| {
        let digit = |name: &&String| {
            name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
        };
        devices.iter().filter(digit).count()
    };
    let (memories, regions) = (count("mem"), count("region"));
    let (state, way_out) = match (memories, regions) {
        (0, _) => (State::Missing, "nothing to do without such hardware"),
        (_, 0) => (State::But, "cxl create-region -m -t pmem -d decoder0.0 mem0 (docs/deploy.md)"),
        _ => (State::Good, ""),
    };
    let found = match memories {
        0 => "none".to_owned(),
        _ => format!("{memories} memory devices, {regions} regions"),
    };
    check("cxl", state, found, "memory devices on a CXL bus", way_out)
}

/// Memory nodes, and which of them have no processors.
fn nodes(topology: &Topology) -> Check {
    let nodes = &topology.nodes;
    let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let is_far = |node: &Node| {
        node.cpus.as_ref().is_some_and(Vec::is_empty) && node.memory_bytes.is_some_and(|n| n > 0)
    };
    let found = nodes.iter().map(|node| {
        let cpus = match &node.cpus {
            None => "processors unknown".to_owned(),
            Some(cpus) if cpus.is_empty() => "no processors".to_owned(),
            Some(cpus) => format!("processors {}", list(cpus)),
        };
        let offline = node.offline_bytes.filter(|bytes| *bytes > 0);
        let offline = offline.map_or(String::new(), |bytes| format!(", {} offline", show(bytes)));
        let memory = node.memory_bytes.map_or("memory unknown".to_owned(), show);
        format!("{}: {memory}, {cpus}{offline}", node.id)
    });
    let found: Vec<String> = found.collect();
    check(
        "memory nodes",
        if nodes.iter().any(is_far) { State::Good } else { State::Missing },
        if topology.has_nodes { found.join("; ") } else { "the kernel shows none".into() },
        "CXL memory that the kernel took as its own is a node without processors: \
         --memory 'shm:PATH?size=8G&numa=1'; more by `rackpool tiers show`",
        "nothing to do without such hardware; with it: modprobe kmem, daxctl reconfigure-device \
         --mode=system-ram dax0.0",
    )
}

/// Tiers into which the kernel sorts memory nodes, the nearest last.
fn tiers(sys: &Path, tiers: &[Tier]) -> Check {
    let tier = |tier: &Tier| format!("{} nodes {}", tier.number, list(&tier.nodes));
    let tiers: Vec<String> = tiers.iter().rev().map(tier).collect();
    let demotes = text(&sys.join("kernel/mm/numa/demotion_enabled")) == "true";
    let state = match tiers.len() {
        0 => State::Missing,
        2.. if demotes => State::But,
        _ => State::Good,
    };
    let way_out = match state {
        State::Missing => "use Linux 6.1 or newer to see them; nothing depends on it",
        _ => {
            "the kernel may move a pool's pages to a slower tier: echo 0 > \
             /sys/kernel/mm/numa/demotion_enabled, as regions without numa= are not bound"
        }
    };
    let found = if tiers.is_empty() { "not shown".to_owned() } else { tiers.join("; ") };
    let found = if demotes { format!("{found}; demotion is on") } else { found };
    check("memory tiers", state, found, "which memory the kernel takes for slower", way_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A `/sys` of a test, which goes when it is dropped.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str, files: &[(&str, &str)]) -> Sys {
            let path = std::env::temp_dir();
            let path = path.join(format!("rackpool-doctor-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Sys(path)
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What checks read by the topology of a test's `/sys`.
    fn topology(sys: &Sys) -> Topology {
        fs::create_dir_all(sys.0.join("devices")).unwrap();
        Topology::read(&Sources::of_sysfs(&sys.0)).unwrap()
    }

    fn dax_of(sys: &Sys) -> Check {
        dax(&topology(sys).dax)
    }

    #[test]
    fn a_port_is_good_with_an_address_of_roce_v2_and_long_packets() {
        const PORT: &str = "class/infiniband/mlx5_0/ports/1";
        let port = |state: &str, kind: &str, mtu: &str| {
            let files = [
                (format!("{PORT}/state"), state),
                (format!("{PORT}/link_layer"), "Ethernet"),
                (format!("{PORT}/gids/0"), NO_ADDRESS),
                (format!("{PORT}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
                (format!("{PORT}/gid_attrs/types/3"), kind),
                (format!("{PORT}/gid_attrs/ndevs/3"), "eth2"),
                ("class/net/eth2/mtu".to_owned(), mtu),
            ];
            let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            let sys = Sys::new("port", &files);
            let [ref found] = ports(&sys.0)[..] else { panic!("one port") };
            (found.state, found.found.clone())
        };
        let (state, found) = port("4: ACTIVE\n", "RoCE v2\n", "9000\n");
        assert_eq!(state, State::Good);
        assert!(found.contains("mlx5_0:1 ACTIVE, address 3 ") && found.contains("MTU 9000"));
        assert_eq!(port("4: ACTIVE", "RoCE v2", "1500").0, State::But);
        assert_eq!(port("4: ACTIVE", "IB/RoCE v1", "9000").0, State::But);
        assert_eq!(port("1: DOWN", "RoCE v2", "9000").0, State::Missing);
        let none = Sys::new("none", &[]);
        assert_eq!(ports(&none.0)[0].state, State::Missing);
    }

    #[test]
    fn locked_memory_is_missing_where_a_device_is() {
        assert_eq!(locked_memory(None, true).state, State::Good);
        assert_eq!(locked_memory(Some(64 << 10), true).state, State::Missing);
        assert_eq!(locked_memory(Some(64 << 10), false).state, State::But);
    }

    #[test]
    fn memory_that_is_not_devdax_works_in_another_way() {
        let size = (2u64 << 30).to_string();
        let files = [
            ("bus/dax/devices/dax0.0/size", size.as_str()),
            ("bus/dax/devices/dax0.0/align", "2097152"),
            ("bus/nd/devices/namespace0.0/size", size.as_str()),
            ("bus/nd/devices/namespace0.0/mode", "memory"),
            ("bus/nd/devices/namespace1.0/size", "0"),
            ("bus/cxl/devices/mem0/size", "1"),
            ("bus/cxl/devices/root0/x", ""),
        ];
        let sys = Sys::new("dax", &files);
        assert_eq!((dax_of(&sys).state, cxl(&sys.0).state), (State::But, State::But));
        assert!(dax_of(&sys).found.contains("dax0.0 without a driver"), "{:?}", dax_of(&sys));
        assert_eq!(namespaces(&sys.0).found, "namespace0.0 fsdax, 2.00 GiB");
        fs::create_dir_all(sys.0.join("device_dax")).unwrap();
        let link = sys.0.join("bus/dax/devices/dax0.0/driver");
        std::os::unix::fs::symlink(sys.0.join("device_dax"), link).unwrap();
        assert_eq!(dax_of(&sys).state, State::Good);
        fs::write(sys.0.join("bus/nd/devices/namespace0.0/holder"), "dax0.0").unwrap();
        assert_eq!(namespaces(&sys.0).state, State::Good);
    }

    #[test]
    fn cache_lines_are_good_where_they_can_stay_after_they_are_written_back() {
        let states = [Some("clwb"), Some("clflush"), None].map(|name| lines(name).state);
        assert_eq!(states, [State::Good, State::But, State::Missing]);
    }

    #[test]
    fn nodes_without_processors_and_their_tiers_are_told() {
        let files = [
            ("devices/system/node/node0/cpulist", "0-3\n"),
            ("devices/system/node/node0/meminfo", "Node 0 MemTotal:  1048576 kB\n"),
            ("devices/system/node/node1/cpulist", "\n"),
            ("devices/system/node/node1/meminfo", "Node 1 MemTotal:  2097152 kB\n"),
            ("devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
            ("devices/virtual/memory_tiering/memory_tier22/nodelist", "1\n"),
            ("kernel/mm/numa/demotion_enabled", "false\n"),
        ];
        let sys = Sys::new("nodes", &files);
        let found = nodes(&topology(&sys));
        assert_eq!(found.state, State::Good);
        assert_eq!(found.found, "0: 1.00 GiB, processors 0-3; 1: 2.00 GiB, no processors");
        assert_eq!(tiers(&sys.0, &topology(&sys).tiers).found, "22 nodes 1; 4 nodes 0");
        assert_eq!(tiers(&sys.0, &topology(&sys).tiers).state, State::Good);
        fs::write(sys.0.join("kernel/mm/numa/demotion_enabled"), "true\n").unwrap();
        assert_eq!(tiers(&sys.0, &topology(&sys).tiers).state, State::But);
    }
}
