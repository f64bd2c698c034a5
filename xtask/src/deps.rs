//! Debian packages that the checks need, by name, each with its reason.
//!
//! The list holds what is really used and nothing for later; cargo fetches all Rust dependencies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{Context, Task};

/// Package, and what needs it.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox-static", "the first program of the virtual machines of `cargo xtask vm`"),
    ("chromium", "the test that opens the planner's report at two widths"),
    ("daxctl", "devdax in the virtual machines"),
    ("g++", "the library's test programs in C++"),
    ("gcc", "the linker that rustc calls for every test binary, and the compiler of zstd"),
    ("git", "tidy checks the files that `git ls-files` names"),
    ("golang-github-bradfitz-gomemcache-dev", "one of `cargo xtask soak clients`"),
    ("golang-gopkg-redis.v5-dev", "one of `cargo xtask soak clients`"),
    ("ibverbs-providers", "the drivers behind verbs, in the virtual machines"),
    ("ibverbs-utils", "looking at verbs devices, in the virtual machines"),
    ("iproute2", "network and Soft-RoCE devices in the virtual machines"),
    ("kmod", "modprobe, for the virtual machines and in them"),
    ("libjemalloc2", "`bench tiers` measures the allocator beside it"),
    ("libmemcached-tools", "memccapable, which tries every command of memcached on our server"),
    ("libmemkind0", "`bench tiers` measures the allocator beside it"),
    ("linux-image-amd64", "the own kernel of the virtual machines, beside those they fetch"),
    ("memcached", "the differential test compares our server's answers with it"),
    ("ndctl", "namespaces of shared memory in the virtual machines"),
    ("netcat-openbsd", "an example of the README asks the cache by it"),
    ("node-redis", "a client of Redis that must need no change"),
    ("nodejs", "runs the client of node-redis"),
    ("numactl", "looking at memory nodes, in the virtual machines"),
    ("perftest", "measures verbs beside our own figures, in the virtual machines"),
    ("pkg-config", "by which programs in C find the library"),
    ("prometheus-redis-exporter", "shows the figures of our server as of the original"),
    ("python3", "the attacks on the program, in `crates/cli/tests/attack`"),
    ("python3-cachelib", "caches in both servers, which must need no change"),
    ("python3-celery", "keeps its results in memcached, which must need no change"),
    ("python3-django", "its caches in memcached must need no change"),
    ("python3-django-redis", "Django's cache in Redis, which must need no change"),
    ("python3-flask-caching", "a cache in both servers, which must need no change"),
    ("python3-flask-limiter", "counters in both servers, which must need no change"),
    ("python3-limits", "counters in both servers, which must need no change"),
    ("python3-pylibmc", "a client of memcached that must need no change"),
    ("python3-pymemcache", "a client of memcached that must need no change"),
    ("python3-redis", "a client of Redis that must need no change"),
    ("qemu-system-x86", "the virtual machines of `cargo xtask vm`"),
    ("rdmacm-utils", "looking at verbs connections, in the virtual machines"),
    ("redis-server", "the differential test compares our server's answers with it"),
    ("redis-tools", "redis-cli and redis-benchmark, which must need no change"),
    ("ruby-dalli", "a client of memcached that must need no change"),
    ("ruby-redis", "a client of Redis that must need no change"),
    ("strace", "the pool's test that warm accesses make no system call"),
    ("valgrind", "`rackpool trace run` records programs with its lackey, and a test does so"),
    ("xz-utils", "unpacks the kernel of the virtual machines"),
    ("zstd", "unpacks newer kernels of the virtual machines"),
];

/// Installs what is missing. Without the means to, says so; in CI that is a failure.
pub fn install(context: &Context) -> Result<(), String> {
    let missing = missing(PACKAGES, installed);
    if missing.is_empty() {
        println!("all {} packages are there", PACKAGES.len());
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    for (name, reason) in &missing {
        println!("missing: {name} ({reason})");
    }
    if root() && there("apt-get") {
        return apt_get(context, &names);
    }
    let advice = format!("install these packages: apt-get install {}", names.join(" "));
    if context.ci {
        return Err(advice);
    }
    println!("\n********  {advice}\n********  going on without; a later step may fail\n");
    Ok(())
}

fn missing(
    packages: &'static [(&'static str, &'static str)],
    installed: impl Fn(&str) -> bool,
) -> Vec<(&'static str, &'static str)> {
    packages.iter().copied().filter(|(name, _)| !installed(name)).collect()
}

fn apt_get(context: &Context, names: &[&str]) -> Result<(), String> {
    // An old package list only matters if the installation then fails, which is reported.
    if let Err(why) = Task::new("apt-get", &["update", "-q"]).run(context) {
        println!("note: {why}");
    }
    let mut words = vec!["install", "-q", "-y", "--no-install-recommends"];
    words.extend(names);
    let task = Task::new("apt-get", &words).env("DEBIAN_FRONTEND", "noninteractive");
    let outcome = task.minutes(10).run(context);
    if outcome.is_err() && !context.ci {
        println!("\n********  could not install {}; going on without\n", names.join(" "));
        return Ok(());
    }
    outcome
}

/// Whether dpkg has it; on a system without dpkg, whether a program of that name is there.
fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output();
    match query {
        Ok(output) => output.stdout == b"installed",
        Err(_) => there(package),
    }
}

/// Packages of the programs that are not in the path, of pairs of both.
pub fn missing_programs(needed: &[(&str, &'static str)]) -> Vec<&'static str> {
    let root_only = |program: &str| {
        ["/usr/sbin", "/sbin"].iter().any(|place| Path::new(place).join(program).is_file())
    };
    let is_missing = |program: &str| !there(program) && !root_only(program);
    needed.iter().filter(|(program, _)| is_missing(program)).map(|(_, package)| *package).collect()
}

fn there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed() {
        assert_eq!(missing(PACKAGES, |_| true), []);
        let names: Vec<_> = missing(PACKAGES, |name| name == "gcc");
        assert!(names.iter().all(|(name, _)| *name != "gcc"));
        assert_eq!(names.len(), PACKAGES.len() - 1);
    }

    #[test]
    fn a_package_that_no_archive_has_is_not_installed() {
        assert!(!installed("rackpool-there-is-no-such-package"));
    }
}
