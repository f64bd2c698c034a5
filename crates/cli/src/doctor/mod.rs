//! `rackpool doctor`: what this machine offers a pool, what each thing means for it, and what to
//! do about what is missing. Reads `/proc` and `/sys`, asks the kernel, changes nothing.
//!
//! Each check is a pure function of text where it can be, so that machines we do not have can be
//! tested.

mod hardware;

use crate::args::DoctorArgs;
use crate::failure::Result;
use crate::output;
use rackpool_bench::report::Machine;
use rackpool_mem::memory::{HostMemory, kib_of};
use rackpool_mem::temporary;
use rackpool_stats::format::Unit;
use rackpool_tiers::balance::{BalanceError, Disk, STATE_FOLDER, StateFile};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It is there, and as it should be.
    Good,
    /// It is there and works, but slower or smaller than it could.
    But,
    /// It is not there; the pool works without it.
    Missing,
    /// Without it the pool does not work.
    Bad,
}

/// One line of the answer.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    meaning: &'static str,
    /// What to do; empty if nothing is missing.
    way_out: &'static str,
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    schema: &'static str,
    machine: Machine,
    /// Whether a pool can run here.
    usable: bool,
    checks: Vec<Check>,
}

/// Prints what was found; fails only if the answer cannot be printed.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let checks = checks();
    let usable = checks.iter().all(|check| check.state != State::Bad);
    let machine = Machine::here();
    let answer = DoctorReport { schema: "rackpool-doctor/2", machine, usable, checks };
    let text = if args.json { output::json(&answer)? } else { table(&answer) };
    output::print(&format!("{}\n", text.trim_end()))
}

fn table(answer: &DoctorReport) -> String {
    let Machine { cpu, cores, memory_bytes, kernel } = &answer.machine;
    let memory = Unit::Bytes.show(*memory_bytes as f64);
    let mut text = format!("{cpu}, {cores} cores, {memory}, {kernel}\n\n");
    let width = answer.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for Check { name, state, found, meaning, way_out } in &answer.checks {
        let state = match state {
            State::Good => "good      ",
            State::But => "works, but",
            State::Missing => "missing   ",
            State::Bad => "BAD       ",
        };
        text.push_str(&format!("{state}  {name:<width$}  {found}\n"));
        text.push_str(&format!("            {:width$}  {meaning}\n", ""));
        if !way_out.is_empty() {
            text.push_str(&format!("            {:width$}  -> {way_out}\n", ""));
        }
    }
    text.push_str(if answer.usable {
        "\nA pool runs here: try `rackpool demo --quick`."
    } else {
        "\nA pool does not run here before the lines marked BAD are dealt with."
    });
    text
}

fn checks() -> Vec<Check> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let mut checks = vec![
        cpu(&cpuinfo),
        cores(std::thread::available_parallelism().map_or(1, usize::from)),
        memory(HostMemory::now().map_or(0, |memory| memory.available_bytes)),
        shared_memory(),
        residue(),
        balance(Path::new(STATE_FOLDER), &Disk::new(Path::new("/sys"), Path::new("/proc"))),
        huge_pages(&meminfo),
        shmem_huge(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        membarrier(rackpool_mem::barrier::is_supported()),
        kernel(&read("/proc/sys/kernel/osrelease")),
        files_limit(),
        process_descriptors(),
        memory_policy(),
        loopback(),
        verbs(),
    ];
    checks.extend(hardware::checks(Path::new("/sys")));
    checks
}

fn check(
    name: &'static str,
    state: State,
    found: impl Into<String>,
    meaning: &'static str,
    way_out: &'static str,
) -> Check {
    let way_out = if state == State::Good { "" } else { way_out };
    Check { name, state, found: found.into(), meaning, way_out }
}

fn ok_if(good: bool) -> State {
    if good { State::Good } else { State::Missing }
}

fn good_or_but(good: bool) -> State {
    if good { State::Good } else { State::But }
}

fn cpu(cpuinfo: &str) -> Check {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let wanted = ["avx2", "avx512f", "erms", "clflushopt", "clwb", "constant_tsc", "movdir64b"];
    let has = |flag: &str| flags.split_whitespace().any(|found| found == flag);
    let found: Vec<&str> = wanted.into_iter().filter(|flag| has(flag)).collect();
    let arch = std::env::consts::ARCH;
    let is_enough = arch != "x86_64" || has("avx2");
    check(
        "cpu",
        good_or_but(is_enough),
        format!("{arch}: {}", if found.is_empty() { "-".into() } else { found.join(" ") }),
        "copies use wide loads; clwb and clflushopt are for memory without hardware coherence",
        "nothing to do: plain copies are used, large accesses are slower",
    )
}

fn cores(count: usize) -> Check {
    check(
        "cores",
        good_or_but(count >= 2),
        count.to_string(),
        "a daemon and a client that poll want a core each",
        "give this machine or container a second core; with one they take turns",
    )
}

fn memory(available: u64) -> Check {
    check(
        "memory",
        good_or_but(available >= 2 << 30),
        format!("{} available", Unit::Bytes.show(available as f64)),
        "regions live in it; `demo --quick` takes about 1 GiB, `bench local` 2 GiB",
        "end other programs, or give smaller sizes to --memory",
    )
}

fn shared_memory() -> Check {
    let meaning = "regions of `shm:/dev/shm/...` are files here";
    let way_out = "mount -o remount,size=8G /dev/shm (in containers: --shm-size=8g), \
                   or use --memory heap:SIZE";
    match rustix::fs::statvfs("/dev/shm") {
        Ok(found) => {
            let (size, free) = (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize);
            let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
            let text = format!("{} free of {}", show(free), show(size));
            let state = match free {
                0..0x1000_0000 => State::Bad,
                0x1000_0000..0x8000_0000 => State::But,
                _ => State::Good,
            };
            check("/dev/shm", state, text, meaning, way_out)
        }
        Err(error) => check("/dev/shm", State::Bad, error.to_string(), meaning, way_out),
    }
}

/// What killed runs left: directories with a lock that no process holds. Files of releases before
/// these directories have the process in their names.
fn residue() -> Check {
    let bases = [Path::new("/dev/shm").to_owned(), std::env::temp_dir()];
    let left = |base: &PathBuf| {
        let mut left = temporary::left(base);
        left.extend(entries(base).filter(|path| is_of_dead_demo(path)));
        left
    };
    let left: Vec<String> =
        bases.iter().flat_map(left).map(|path| path.display().to_string()).collect();
    let found = if left.is_empty() { "none".to_owned() } else { left.join(" ") };
    check(
        "residue",
        good_or_but(left.is_empty()),
        found,
        "files of runs of this user that were killed take memory",
        "the next demo, bench or `master --ephemeral` there removes them, or do so with rm -r",
    )
}

/// Whether a killed `tiers balance` has left its settings.
fn balance(folder: &Path, kernel: &Disk) -> Check {
    let (state, found) = match StateFile::new(folder, Path::new("/sys")).require_none(kernel) {
        Ok(()) => (State::Good, "nothing is left of one".to_owned()),
        Err(BalanceError::Running { pid }) => (State::Good, format!("process {pid} runs one")),
        Err(error) => (State::But, error.to_string()),
    };
    check(
        "tiers balance",
        state,
        found,
        "one that is killed leaves the kernel moving pages by its settings",
        "as root: rackpool tiers balance --restore",
    )
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Whether it is a file or directory `rackpool-demo-PID…` of a process that is no more.
fn is_of_dead_demo(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.strip_prefix("rackpool-demo-").map(|rest| rest.split('-').next());
    let pid = pid.flatten().filter(|pid| pid.len() < 16).and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists())
}

fn huge_pages(meminfo: &str) -> Check {
    let free = kib_of(meminfo, "HugePages_Free").unwrap_or(0);
    let size = kib_of(meminfo, "Hugepagesize").unwrap_or(0) << 10;
    check(
        "huge pages",
        ok_if(free > 0),
        format!("{free} free of {}", Unit::Bytes.show(size as f64)),
        "random access over 1 GiB is about 1.6 times faster with them",
        "sysctl vm.nr_hugepages=1024, then --memory 'shm:PATH?size=1G&huge=2M' on a hugetlbfs",
    )
}

fn shmem_huge(enabled: &str) -> Check {
    let chosen = enabled.split(['[', ']']).nth(1).unwrap_or("not supported");
    check(
        "huge shm",
        ok_if(matches!(chosen, "always" | "within_size" | "advise" | "force")),
        format!("transparent huge pages for shared memory: {chosen}"),
        "the kernel may back /dev/shm by huge pages when it is asked to",
        "mount -o remount,huge=within_size /dev/shm, then --memory 'shm:PATH?size=1G&huge=2M'",
    )
}

fn membarrier(supported: bool) -> Check {
    check(
        "membarrier",
        ok_if(supported),
        if supported { "global expedited" } else { "not supported" },
        "moving a page pays for the fence, reads and writes do not",
        "use Linux 4.16 or newer, and allow the call in seccomp filters; accesses fence until then",
    )
}

fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let state = if version >= (5, 4) { State::Good } else { State::Bad };
    check(
        "kernel",
        state,
        release,
        "process descriptors prove that a client is dead: Linux 5.4 or newer",
        "use a newer kernel",
    )
}

fn files_limit() -> Check {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    check(
        "open files",
        good_or_but(limit >= 1024),
        format!("{limit} a process"),
        "a daemon has some four descriptors for each client handle",
        "ulimit -n 8192, or LimitNOFILE= in the unit",
    )
}

/// What agents and daemons learn by that a process is dead.
fn process_descriptors() -> Check {
    let opened = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    );
    let (state, found) = match opened {
        Ok(_) => (State::Good, "pidfd_open works".to_owned()),
        Err(error) => (State::Bad, error.to_string()),
    };
    check(
        "dead clients",
        state,
        found,
        "a client's death is proved by a descriptor of its process",
        "use Linux 5.4 or newer, and allow pidfd_open in seccomp filters",
    )
}

/// Whether regions can be bound to memory nodes.
fn memory_policy() -> Check {
    let refused = rackpool_mem::policy::refused();
    let each = refused.iter().map(|refused| format!("{}: {}", refused.call, refused.error));
    let found = match refused.is_empty() {
        true => "set_mempolicy, mbind and move_pages work".to_owned(),
        false => each.collect::<Vec<_>>().join("; "),
    };
    check(
        "memory policy",
        good_or_but(refused.is_empty()),
        found,
        "regions can be placed on a memory node and their pages be found there: numa=1",
        "use a kernel with CONFIG_NUMA, and allow these calls in seccomp filters (docker: \
         --cap-add SYS_NICE)",
    )
}

fn loopback() -> Check {
    let tried = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        let addr = listener.local_addr()?;
        TcpStream::connect(addr).map(|_| addr)
    });
    let (state, found) = match tried {
        Ok(_) => (State::Good, "127.0.0.1 accepts connections".to_owned()),
        Err(error) => (State::Bad, error.to_string()),
    };
    check(
        "loopback",
        state,
        found,
        "the master and the tcp fabric talk over it",
        "ip link set lo up",
    )
}

/// Whether the verbs fabric could be used, by opening the device that it would take.
#[cfg(feature = "verbs")]
fn verbs() -> Check {
    use rackpool_fabric::verbs::{Device, DeviceChoice};
    let opened = Device::open(&DeviceChoice::default());
    let state = ok_if(opened.is_ok());
    let found = match opened {
        Ok(device) => {
            let limits = device.limits;
            let atomics = if limits.atomics_global { "atomic with processors'" } else { "apart" };
            let Device { name, port, gid_index, .. } = device;
            let bytes = limits.mtu_bytes;
            format!("{name}:{port}/{gid_index}, packets of {bytes} bytes, atomics {atomics}")
        }
        Err(error) => error.to_string(),
    };
    verbs_check(state, found)
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Check {
    verbs_check(State::Missing, "this program was built without the feature `verbs`".into())
}

fn verbs_check(state: State, found: String) -> Check {
    check(
        "verbs",
        state,
        found,
        "the library, the driver and an address, with which RDMA devices are used",
        "build with --features verbs, apt-get install libibverbs1 ibverbs-providers, and see the \
         lines `rdma`; racks reach one another with --fabric tcp as well",
    )
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_a_way_out_and_what_is_there_without() {
        for check in checks() {
            assert_eq!(check.state == State::Good, check.way_out.is_empty(), "{check:?}");
            assert!(!check.meaning.is_empty() && !check.found.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn what_a_killed_balance_left_is_told_with_the_way_out() {
        let dir = temporary::TemporaryDir::new(&std::env::temp_dir(), "doctor").unwrap();
        // Without a boot id all boots are the same.
        let found = || balance(dir.path(), &Disk::new(dir.path(), dir.path()));
        assert_eq!(found().state, State::Good);
        let own = rackpool_mem::process::ProcessId::own().unwrap();
        for (start_time, state, word) in
            [(own.start_time, State::Good, "runs"), (own.start_time + 1, State::But, "was killed")]
        {
            let saved = serde_json::json!({
                "schema": "rackpool.tiers.balance/1", "boot_id": "", "sys": "/sys",
                "pid": own.pid, "start_time": start_time,
            });
            fs::write(dir.path().join("tiers-balance.json"), saved.to_string()).unwrap();
            let found = found();
            assert!(found.state == state && found.found.contains(word), "{found:?}");
        }
    }

    #[test]
    fn machines_that_we_do_not_have_are_judged_by_their_files() {
        assert_eq!(kernel("6.1.0-rc2\n").state, State::Good);
        assert_eq!(kernel("5.10\n").state, State::Good);
        assert_eq!(kernel("4.19.1").state, State::Bad);
        assert_eq!(shmem_huge("always within_size [advise] never").state, State::Good);
        assert_eq!(shmem_huge("always [never]").state, State::Missing);
        assert_eq!(shmem_huge("").state, State::Missing);
        assert_eq!(huge_pages("HugePages_Free:  3\nHugepagesize: 2048 kB\n").state, State::Good);
        assert_eq!(memory(1 << 20).state, State::But);
        assert_eq!(cores(1).state, State::But);
        assert!(cpu("flags : fpu avx2 clwb\n").found.contains("avx2 clwb"));
    }
}
