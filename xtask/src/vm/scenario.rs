//! The scenarios: what each boots, and what its guests do.

use super::machine::{MACHINE, Machine, Tier};

pub struct Scenario {
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    pub guests: u32,
    pub machine: Machine,
    /// Kernel modules that every guest loads first.
    pub modules: &'static [&'static str],
    /// Crates, by their folders, of which it runs the tests' program `suite`, built with verbs.
    pub suites: &'static [&'static str],
    /// Whether it runs the program `rackpool`, with verbs; `RACKPOOL` is its path.
    pub uses_program: bool,
    /// What every guest runs; `RIG_ID` tells them apart, `TEST_CRATE` the path of a suite.
    pub script: &'static str,
    /// After this long it has failed, seconds: several times what it takes on a quiet machine.
    pub limit_s: u64,
    /// The oldest kernel that it runs on.
    pub kernel_min: (u64, u64),
    /// Whether it runs on this machine's own kernel too, because users have such kernels.
    pub runs_on_own: bool,
    /// How often the power of its one guest is cut, and it boots anew.
    pub power_cuts: u32,
    /// Whether it runs only if it is named: too long for each run of CI.
    pub is_soak: bool,
}

const SCENARIO: Scenario = Scenario {
    name: "",
    about: "",
    guests: 1,
    machine: MACHINE,
    modules: &[],
    suites: &[],
    uses_program: false,
    script: "",
    limit_s: 180,
    kernel_min: (6, 1),
    runs_on_own: false,
    power_cuts: 0,
    is_soak: false,
};

/// What the kernel needs to find CXL memory devices, and to show their memory as devices.
const CXL: &[&str] =
    &["cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "nd_pmem", "dax_pmem", "device_dax"];

/// Modules with which devices for verbs are there.
const VERBS: &[&str] = &["rdma_rxe", "ib_uverbs"];

/// The processors' node and two far ones.
const TIERS: &[Tier] = &[
    Tier { mib: 768, latency_ns: 80, bandwidth_gb: 200 },
    Tier { mib: 640, latency_ns: 150, bandwidth_gb: 80 },
    Tier { mib: 640, latency_ns: 250, bandwidth_gb: 40 },
];

/// As many, larger.
const LARGE_TIERS: &[Tier] = &[
    Tier { mib: 4096, latency_ns: 80, bandwidth_gb: 200 },
    Tier { mib: 3072, latency_ns: 150, bandwidth_gb: 80 },
    Tier { mib: 3072, latency_ns: 250, bandwidth_gb: 40 },
];

const ON_TIERS: Scenario = Scenario {
    machine: Machine { memory_mib: 2048, tiers: TIERS, ..MACHINE },
    // Weights by the bandwidths.
    kernel_min: (6, 16),
    ..SCENARIO
};

const ON_LARGE_TIERS: Scenario = Scenario {
    machine: Machine { memory_mib: 10_240, tiers: LARGE_TIERS, ..MACHINE },
    uses_program: true,
    limit_s: 1800,
    is_soak: true,
    ..ON_TIERS
};

/// Emulation keeps translations of addresses, behind which the kernel sees no accesses, until a
/// kernel with page tables of its own is entered.
const FLUSHING: &str = "mitigations=auto pti=on";

/// A disk, an nvdimm that is a devdax, and one with a file system.
const ON_LASTING: Scenario = Scenario {
    machine: Machine {
        memory_mib: 512,
        shared_mib: 128,
        disk_mib: 192,
        more: &[
            "-machine",
            "nvdimm-persistence=%DOMAIN%",
            "-object",
            "memory-backend-file,id=fs0,share=on,mem-path=%DIR%/fs0,size=192M",
            "-device",
            "nvdimm,memdev=fs0,id=nvd1",
        ],
        ..MACHINE
    },
    modules: &["virtio_blk", "ext4", "nfit", "nd_pmem", "dax_pmem", "device_dax"],
    uses_program: true,
    script: include_str!("scenarios/power.sh"),
    ..SCENARIO
};

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "boot",
        about: "three guests come up, meet, exchange packets, lose some, and one crashes",
        guests: 3,
        machine: Machine { memory_mib: 512, ..MACHINE },
        script: include_str!("scenarios/boot.sh"),
        limit_s: 120,
        runs_on_own: true,
        ..SCENARIO
    },
    Scenario {
        name: "verbs-one",
        about: "conformance over verbs, two Soft-RoCE devices in one guest",
        modules: VERBS,
        suites: &["fabric"],
        script: include_str!("scenarios/verbs-one.sh"),
        ..SCENARIO
    },
    Scenario {
        name: "numa",
        about: "regions on memory nodes without processors, one of them hot-plugged",
        machine: Machine { shared_mib: 384, rack_guests: 1, far_mib: 384, ..MACHINE },
        suites: &["mem"],
        uses_program: true,
        script: include_str!("scenarios/numa.sh"),
        runs_on_own: true,
        ..SCENARIO
    },
    Scenario {
        name: "cxl",
        about: "CXL memory devices: an interleaved region, a devdax, a daemon on it, twice",
        machine: Machine { cxl_ports: 2, ..MACHINE },
        modules: CXL,
        uses_program: true,
        script: include_str!("scenarios/cxl.sh"),
        ..SCENARIO
    },
    Scenario {
        name: "verbs-two",
        about: "conformance over verbs between two guests, the target's pages on a shared devdax",
        guests: 2,
        machine: Machine { shared_mib: 128, ..MACHINE },
        modules: VERBS,
        suites: &["fabric"],
        script: include_str!("scenarios/verbs-two.sh"),
        ..SCENARIO
    },
    Scenario {
        name: "spill",
        about: "pages in spill files after a crash of their host, with memory that persists or not",
        guests: 2,
        // The disk of both: the second guest is the first one's machine after the crash.
        machine: Machine { shared_mib: 128, ..MACHINE },
        modules: &["ext4", "nfit", "nd_pmem"],
        uses_program: true,
        script: include_str!("scenarios/spill.sh"),
        limit_s: 300,
        is_soak: true,
        ..SCENARIO
    },
    Scenario {
        name: "herd",
        about: "HERD over unreliable connections and datagrams, two devices in a guest, with loss",
        // A thousand clients take half of it.
        machine: Machine { memory_mib: 2048, ..MACHINE },
        modules: VERBS,
        suites: &["cache", "bench"],
        script: include_str!("scenarios/herd.sh"),
        ..SCENARIO
    },
    Scenario {
        name: "verbs-pool",
        about: "a pool of two racks over verbs: data, atomics, packet loss, and a rack that dies",
        guests: 2,
        machine: Machine { shared_mib: 768, rack_guests: 1, ..MACHINE },
        modules: VERBS,
        uses_program: true,
        script: include_str!("scenarios/verbs-pool.sh"),
        limit_s: 240,
        ..SCENARIO
    },
    Scenario {
        name: "tiers",
        about: "three memory nodes, two of them far, with the bandwidths that the firmware tells",
        uses_program: true,
        script: include_str!("scenarios/tiers.sh"),
        ..ON_TIERS
    },
    Scenario {
        name: "tiers-run",
        about: "unmodified programs on three memory nodes by weights, and on a node that is full",
        uses_program: true,
        script: include_str!("scenarios/tiers-run.sh"),
        limit_s: 360,
        ..ON_TIERS
    },
    Scenario {
        name: "tiers-balance",
        about: "DAMON moves cold memory down and hot memory up, and all is as before",
        machine: Machine { kernel_words: FLUSHING, ..ON_TIERS.machine },
        uses_program: true,
        script: include_str!("scenarios/tiers-balance.sh"),
        ..ON_TIERS
    },
    Scenario {
        name: "tiers-kv",
        about: "the cache in each mode on three memory nodes, killed and there again",
        uses_program: true,
        limit_s: 420,
        script: include_str!("scenarios/tiers-kv.sh"),
        ..ON_TIERS
    },
    Scenario {
        name: "tiers-alloc",
        about: "the allocator's arenas on three memory nodes, page by page",
        suites: &["tiers-alloc"],
        script: include_str!("scenarios/tiers-alloc.sh"),
        ..ON_TIERS
    },
    Scenario {
        name: "rack-two",
        about: "one rack of two hosts on shared devdax: data, atomics, locks, and a host that dies",
        guests: 2,
        machine: Machine { shared_mib: 768, ..MACHINE },
        suites: &["pool"],
        uses_program: true,
        script: include_str!("scenarios/rack-two.sh"),
        limit_s: 240,
        ..SCENARIO
    },
    Scenario {
        name: "rack-software",
        about: "the same with caches that only the software keeps coherent",
        guests: 2,
        machine: Machine { shared_mib: 768, ..MACHINE },
        suites: &["pool"],
        uses_program: true,
        script: concat!("export POOL_COHERENCE=software\n", include_str!("scenarios/rack-two.sh")),
        limit_s: 240,
        ..SCENARIO
    },
    Scenario {
        name: "rack-cxl",
        about: "the same on a CXL memory device that both hosts have",
        guests: 2,
        machine: Machine { shared_mib: 768, is_shared_cxl: true, cxl_ports: 2, ..MACHINE },
        modules: CXL,
        suites: &["pool"],
        uses_program: true,
        script: concat!("export POOL_DAX=rig-cxl\n", include_str!("scenarios/rack-two.sh")),
        limit_s: 240,
        // With its emulator: with older ones atomics on such memory are lost, or it is slow.
        kernel_min: (7, 3),
        ..SCENARIO
    },
    Scenario {
        name: "racks",
        about: "two racks of two hosts, devdax inside, verbs between; loss, a host and a rack die",
        guests: 4,
        machine: Machine { shared_mib: 768, ..MACHINE },
        modules: VERBS,
        suites: &["pool"],
        uses_program: true,
        script: include_str!("scenarios/racks.sh"),
        limit_s: 480,
        ..SCENARIO
    },
    Scenario {
        name: "disk-faults",
        about: "the cache's flash on a disk that drops writes, or refuses all",
        machine: Machine { memory_mib: 512, disk_mib: 128, ..MACHINE },
        modules: &["virtio_blk", "dm_mod", "dm_flakey"],
        uses_program: true,
        is_soak: true,
        script: include_str!("scenarios/disk-faults.sh"),
        ..SCENARIO
    },
    Scenario {
        name: "power",
        about: "power cuts while racks are written, on a disk, a devdax and a DAX file system",
        power_cuts: 7,
        limit_s: 480,
        is_soak: true,
        ..ON_LASTING
    },
    Scenario {
        name: "power-soak",
        about: "power with 200 cuts",
        power_cuts: 201,
        limit_s: 3600,
        is_soak: true,
        ..ON_LASTING
    },
    Scenario {
        name: "tiers-run-soak",
        about: "tiers-run with each program both ways, by three pairs of weights, 2 GiB each",
        script: concat!(
            "export TAKE_MIB=2048 WEIGHTS='0=1,1=1 0=3,1=1 0=6,1=1'\n",
            "export PRELOADED='python redis memcached' BY_KERNEL='python redis memcached static'\n",
            include_str!("scenarios/tiers-run.sh")
        ),
        ..ON_LARGE_TIERS
    },
    Scenario {
        name: "tiers-kv-soak",
        about: "tiers-kv with two million operations",
        script: concat!(
            "export FAR_MIB=1024 OPERATIONS=1000000\n",
            include_str!("scenarios/tiers-kv.sh")
        ),
        ..ON_LARGE_TIERS
    },
];

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_scenario_may_be_run_and_has_a_name_of_its_own() {
        for (index, scenario) in SCENARIOS.iter().enumerate() {
            let refusal = scenario.machine.refusal(scenario.guests, Path::new("/dev/shm/x"));
            assert_eq!(refusal, None, "{}", scenario.name);
            assert!(scenario.is_soak || scenario.limit_s <= 480, "{}", scenario.name);
            assert!(SCENARIOS[..index].iter().all(|other| other.name != scenario.name));
            assert!(find(scenario.name).is_some_and(|found| found.about == scenario.about));
        }
    }
}
