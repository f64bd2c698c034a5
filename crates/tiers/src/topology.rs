//! The memory nodes of a machine, as the kernel and the firmware describe them: processors, memory,
//! distances, speeds, tiers, the devices behind them, and what this process may use of them.
//!
//! In: a tree of files like `/sys`, for which tests have another one, and `/proc`. Out: a
//! [`Topology`]. What a machine does not say is none; a file that says nonsense is none as well,
//! and is kept among the faults. Nothing is measured here, and nothing changed.
//!
//! Source: HMSDK (nodes and their bandwidth); Linux `Documentation/ABI/stable/sysfs-devices-node`.

mod devices;
mod error;
mod files;

pub use error::TopologyError;

use devices::CxlRegion;
use files::Files;
use rackpool_mem::memory::kib_of;
use rackpool_mem::numa::{NODES_MAX, available_bytes, node_bytes, numbers};
use rackpool_mem::policy::{self, Refused};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

const NODES: &str = "devices/system/node";
const BLOCKS: &str = "devices/system/memory";
const TIERS: &str = "devices/virtual/memory_tiering";

/// Where a machine is described.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'p> {
    /// What stands for `/sys`.
    pub sys: &'p Path,
    /// What stands for `/proc`; none if the machine is another one.
    pub proc: Option<&'p Path>,
    /// Whether system calls are tried that choose memory, without changing anything.
    pub tries_calls: bool,
}

impl Sources<'static> {
    /// This machine and this process.
    pub fn here() -> Self {
        Sources { sys: Path::new("/sys"), proc: Some(Path::new("/proc")), tries_calls: true }
    }
}

impl<'p> Sources<'p> {
    /// A copy of `/sys`, perhaps of another machine: of no process.
    pub fn of_sysfs(sys: &'p Path) -> Self {
        Sources { sys, proc: None, tries_calls: false }
    }
}

/// What memory is, as far as the machine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On the memory channels of processors.
    Dram,
    Cxl,
    /// Persistent memory, used as memory.
    Pmem,
    /// A node without processors, and no device is known behind it.
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dram => "dram",
            Kind::Cxl => "cxl",
            Kind::Pmem => "pmem",
            Kind::Other => "other",
        }
    }
}

/// What a dax device is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    Cxl,
    /// Persistent memory (`ndctl`).
    Nd,
}

/// A dax device, or a CXL region that the firmware made memory of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub bus: Option<Bus>,
    pub region: Option<String>,
    pub bytes: Option<u64>,
    pub align_bytes: Option<u64>,
    pub driver: Option<String>,
    /// The node that its memory is in, or would be.
    pub target_node: Option<u16>,
    /// Whether the kernel took it as memory; none if it has no driver.
    pub is_memory: Option<bool>,
}

/// How fast processors reach a node's memory, as the firmware rates it (HMAT, CDAT).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The nodes that it holds for: those that reach this memory the quickest.
    pub initiators: Vec<u16>,
    pub read_latency_ns: Option<u64>,
    pub write_latency_ns: Option<u64>,
    /// In 10⁶ bytes a second.
    pub read_bandwidth_mbps: Option<u64>,
    /// In 10⁶ bytes a second.
    pub write_bandwidth_mbps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: u16,
    /// Its processors; an empty list for memory alone.
    pub cpus: Option<Vec<u32>>,
    /// All memory that is online.
    pub memory_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Free memory, and pages of files, which give way.
    pub available_bytes: Option<u64>,
    /// Memory that is there and that the kernel does not use.
    pub offline_bytes: Option<u64>,
    /// Pages taken out of use because the hardware lost them.
    pub poisoned_pages: Option<u64>,
    pub kind: Kind,
    /// The kernel's memory tier: a lower number is faster.
    pub tier: Option<u32>,
    /// To each node, in the order of [`Topology::nodes`]; 10 is near.
    pub distance: Option<Vec<u32>>,
    /// From processors if the firmware rates them apart, else from what reaches it the quickest.
    pub access: Access,
    pub devices: Vec<Device>,
    /// Whether the cpuset of this process lets it take memory from here.
    pub is_allowed: Option<bool>,
}

/// A memory tier of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    pub number: u32,
    pub nodes: Vec<u16>,
}

#[derive(Debug)]
pub struct Topology {
    /// By number, at least one.
    pub nodes: Vec<Node>,
    /// Whether the kernel has memory nodes; if not, all memory is one node 0 here.
    pub has_nodes: bool,
    /// The fastest first.
    pub tiers: Vec<Tier>,
    /// Dax devices, those that are no memory as well.
    pub dax: Vec<Device>,
    /// Memory of the machine that the hardware lost.
    pub poisoned_bytes: Option<u64>,
    /// Whether a seccomp filter is on for this process.
    pub has_filter: Option<bool>,
    /// Calls that this process may not use; none if they were not tried.
    pub refused: Option<Vec<Refused>>,
    /// Files that could not be read or understood.
    pub faults: Vec<TopologyError>,
}

impl Topology {
    /// Reads a machine's description.
    ///
    /// # Errors
    /// [`TopologyError::NoSysfs`] and [`TopologyError::Io`] where there is none; what is wrong with
    /// single files is among the faults.
    pub fn read(sources: &Sources<'_>) -> Result<Topology, TopologyError> {
        require_sysfs(sources.sys)?;
        let faults = RefCell::new(Vec::new());
        let reader = Reader {
            sys: Files::new(sources.sys, &faults),
            proc: sources.proc.map(|root| Files::new(root, &faults)),
        };
        let mut found = reader.topology();
        found.refused = sources.tries_calls.then(policy::refused);
        found.faults = faults.into_inner();
        Ok(found)
    }

    #[must_use]
    pub fn node(&self, id: u16) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Whether all memory is in one node; others may have processors alone.
    #[must_use]
    pub fn has_one_memory(&self) -> bool {
        self.nodes.iter().filter(|node| node.memory_bytes != Some(0)).count() == 1
    }
}

/// An empty folder is a machine that says nothing, as in some containers.
fn require_sysfs(sys: &Path) -> Result<(), TopologyError> {
    let failed = |source: io::Error| TopologyError::Io { path: sys.to_owned(), source };
    let is_empty = std::fs::read_dir(sys).map_err(failed)?.next().is_none();
    if is_empty || sys.join("devices").is_dir() {
        return Ok(());
    }
    Err(TopologyError::NoSysfs { path: sys.to_owned() })
}

fn node_list(text: &str) -> Option<Vec<u16>> {
    numbers(text, NODES_MAX)
}

struct Reader<'p> {
    sys: Files<'p>,
    proc: Option<Files<'p>>,
}

/// What is read once for all nodes.
struct Shared {
    tiers: Vec<Tier>,
    dax: Vec<Device>,
    regions: Vec<CxlRegion>,
    /// Bytes of a memory block.
    block_bytes: Option<u64>,
    offline_blocks: BTreeSet<u64>,
    allowed: Option<Vec<u16>>,
}

impl Reader<'_> {
    fn topology(&self) -> Topology {
        let shared = self.shared();
        let ids = self.sys.numbered(NODES, "node").into_iter();
        let ids: Vec<u16> =
            ids.filter(|id| *id < u64::from(NODES_MAX)).map(|id| id as u16).collect();
        let nodes = match ids[..] {
            [] => vec![self.whole(&shared)],
            _ => ids.iter().map(|id| self.node(*id, ids.len(), &shared)).collect(),
        };
        let status = self.proc.as_ref().and_then(|proc| proc.text("self/status"));
        let filter = status.as_deref().and_then(|text| value_of(text, "Seccomp"));
        let corrupted = self.meminfo("HardwareCorrupted");
        Topology {
            nodes,
            has_nodes: !ids.is_empty(),
            tiers: shared.tiers,
            dax: shared.dax,
            poisoned_bytes: corrupted,
            has_filter: filter.map(|mode| mode != "0"),
            refused: None,
            faults: Vec::new(),
        }
    }

    fn shared(&self) -> Shared {
        let block_bytes =
            self.sys.parsed(format!("{BLOCKS}/block_size_bytes"), "hexadecimal bytes", |text| {
                u64::from_str_radix(text, 16).ok().filter(|bytes| *bytes > 0)
            });
        let is_offline = |block: &u64| {
            let state = self.sys.text(format!("{BLOCKS}/memory{block}/state"));
            state.is_some_and(|state| state != "online")
        };
        let regions = devices::cxl_regions(&self.sys);
        Shared {
            tiers: self.tiers(),
            dax: devices::dax(&self.sys, &regions),
            regions,
            block_bytes,
            offline_blocks: self.blocks(BLOCKS).into_iter().filter(is_offline).collect(),
            allowed: self.proc.as_ref().and_then(|proc| {
                let expected = "nodes behind Mems_allowed_list";
                let parse = |text: &str| match value_of(text, "Mems_allowed_list") {
                    Some(list) => node_list(list).map(Some),
                    None => Some(None),
                };
                proc.parsed("self/status", expected, parse).flatten()
            }),
        }
    }

    /// Numbers of the memory blocks that a folder names.
    fn blocks(&self, folder: &str) -> Vec<u64> {
        self.sys.numbered(folder, "memory")
    }

    fn meminfo(&self, key: &str) -> Option<u64> {
        let text = self.proc.as_ref()?.text("meminfo")?;
        kib_of(&text, key)?.checked_mul(1024)
    }

    fn node(&self, id: u16, node_count: usize, shared: &Shared) -> Node {
        let at = format!("{NODES}/node{id}");
        let file = |name: &str| format!("{at}/{name}");
        let cpus = self.sys.cpus(file("cpulist"));
        let expected = "lines such as `Node 0 MemTotal: 1024 kB`";
        let amounts = self.sys.parsed(file("meminfo"), expected, |text| {
            let [total, free] = ["MemTotal", "MemFree"].map(|key| node_bytes(text, key));
            let amounts = [total, free, available_bytes(text)];
            (amounts != [None; 3]).then_some(amounts)
        });
        let [memory_bytes, free_bytes, available_bytes] = amounts.unwrap_or_default();
        let blocks: BTreeSet<u64> = self.blocks(&at).into_iter().collect();
        let offline_blocks = blocks.intersection(&shared.offline_blocks).count() as u64;
        let has_blocks = !blocks.is_empty();
        let is_far = cpus.as_ref().is_some_and(Vec::is_empty) && memory_bytes != Some(0);
        let is_behind =
            |device: &&Device| device.target_node == Some(id) && device.is_memory.unwrap_or(is_far);
        let mut devices: Vec<Device> = shared.dax.iter().filter(is_behind).cloned().collect();
        let regions = devices::regions_of(&shared.regions, &blocks, shared.block_bytes);
        devices.extend(
            regions
                .into_iter()
                .filter(|region| shared.dax.iter().all(|dax| dax.region != region.region)),
        );
        let expected = "a distance to each node";
        let distance = self.sys.parsed(file("distance"), expected, |text| {
            let all: Option<Vec<u32>> = text.split_whitespace().map(|d| d.parse().ok()).collect();
            all.filter(|all| all.len() == node_count)
        });
        let tier = shared.tiers.iter().find(|tier| tier.nodes.contains(&id));
        Node {
            id,
            kind: kind_of(&cpus, memory_bytes, &devices),
            cpus,
            memory_bytes,
            free_bytes,
            available_bytes,
            offline_bytes: shared
                .block_bytes
                .filter(|_| has_blocks)
                .and_then(|bytes| bytes.checked_mul(offline_blocks)),
            poisoned_pages: self.sys.number(file("memory_failure/total")),
            tier: tier.map(|tier| tier.number),
            distance,
            access: self.access(&at),
            devices,
            is_allowed: shared.allowed.as_ref().map(|nodes| nodes.contains(&id)),
        }
    }

    /// All memory of a machine with a kernel without memory nodes.
    fn whole(&self, shared: &Shared) -> Node {
        let offline_blocks = shared.offline_blocks.len() as u64;
        let is_memory = |device: &&Device| device.is_memory == Some(true);
        Node {
            id: 0,
            cpus: self.sys.cpus("devices/system/cpu/online"),
            memory_bytes: self.meminfo("MemTotal"),
            free_bytes: self.meminfo("MemFree"),
            available_bytes: self.meminfo("MemAvailable"),
            offline_bytes: shared.block_bytes.and_then(|bytes| bytes.checked_mul(offline_blocks)),
            poisoned_pages: None,
            kind: Kind::Dram,
            tier: None,
            distance: None,
            access: Access::default(),
            devices: shared.dax.iter().filter(is_memory).cloned().collect(),
            is_allowed: None,
        }
    }

    /// Class 1 is what processors see; class 0, of older kernels too, may be what a device sees.
    fn access(&self, node: &str) -> Access {
        let of_class = |class: u32| {
            let at = format!("{node}/access{class}/initiators");
            let number = |name: &str| self.sys.number_not_0(format!("{at}/{name}"));
            let initiators = self.sys.numbered(&at, "node").into_iter();
            Access {
                initiators: initiators.filter_map(|id| u16::try_from(id).ok()).collect(),
                read_latency_ns: number("read_latency"),
                write_latency_ns: number("write_latency"),
                read_bandwidth_mbps: number("read_bandwidth"),
                write_bandwidth_mbps: number("write_bandwidth"),
            }
        };
        let says_something = |access: &Access| {
            *access != Access { initiators: access.initiators.clone(), ..Access::default() }
        };
        let of_processors = of_class(1);
        if says_something(&of_processors) { of_processors } else { of_class(0) }
    }

    fn tiers(&self) -> Vec<Tier> {
        let tier = |number: u64| {
            let file = format!("{TIERS}/memory_tier{number}/nodelist");
            let nodes = self.sys.parsed(file, "a list of nodes such as 0-1", node_list)?;
            Some(Tier { number: u32::try_from(number).ok()?, nodes })
        };
        self.sys.numbered(TIERS, "memory_tier").into_iter().filter_map(tier).collect()
    }
}

/// Memory of a node with processors is theirs, unless all of it is a device's.
fn kind_of(cpus: &Option<Vec<u32>>, memory_bytes: Option<u64>, devices: &[Device]) -> Kind {
    let bytes = devices.iter().filter_map(|device| device.bytes);
    let of_devices = bytes.fold(0, u64::saturating_add);
    let is_all = memory_bytes.is_some_and(|bytes| bytes > 0 && bytes <= of_devices);
    if cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) && !is_all {
        return if memory_bytes == Some(0) { Kind::Other } else { Kind::Dram };
    }
    match devices.iter().find_map(|device| device.bus) {
        Some(Bus::Cxl) => Kind::Cxl,
        Some(Bus::Nd) => Kind::Pmem,
        None => Kind::Other,
    }
}

/// What stands behind `KEY:` in a file like `/proc/self/status`.
fn value_of<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim())
}
