//! The memory of this host: what there is, and what is still free, within the limits of the control
//! groups that this process is in (containers, units). In: the system's files, read anew each time.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes that all processes together can ever have, or this one's control groups, if that is
    /// less. Without swap.
    pub total_bytes: u64,
    /// Bytes that can be had now without swapping or running into a limit: an estimate.
    pub available_bytes: u64,
}

impl HostMemory {
    /// As it is now; none if the system does not say.
    #[must_use]
    pub fn now() -> Option<HostMemory> {
        Self::told_by(&|path| fs::read_to_string(path).ok())
    }

    fn told_by(read: &Read<'_>) -> Option<HostMemory> {
        let text = read(Path::new("/proc/meminfo"))?;
        let total_bytes = kib_of(&text, "MemTotal")? << 10;
        let available_bytes = kib_of(&text, "MemAvailable")? << 10;
        let mut memory = HostMemory { total_bytes, available_bytes };
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                memory.narrow(read, &UNIFIED, path);
            } else if controllers.split(',').any(|name| name == "memory") {
                memory.narrow(read, &ALONE, path);
            }
        }
        Some(memory)
    }

    /// Within the limits of a control group and of those that it is in. In a container the path may
    /// be that of the host, and of its groups only the container's own is visible.
    fn narrow(&mut self, read: &Read<'_>, version: &Version, path: &str) {
        let number = |path: PathBuf| read(&path)?.trim().parse::<u64>().ok();
        let mut group = PathBuf::from(path.trim_start_matches('/'));
        loop {
            let folder = Path::new(version.base).join(&group);
            if let Some(limit) = number(folder.join(version.limit)) {
                self.total_bytes = self.total_bytes.min(limit);
                let used = number(folder.join(version.used)).unwrap_or(0);
                let stat = read(&folder.join("memory.stat")).unwrap_or_default();
                // Pages of files that were not used for long: given up before anything is refused.
                let idle = stat.lines().find_map(|line| line.strip_prefix(version.idle));
                let idle = idle.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
                let free = limit.saturating_sub(used.saturating_sub(idle));
                self.available_bytes = self.available_bytes.min(free);
            }
            if !group.pop() {
                return;
            }
        }
    }
}

/// The text of a file.
type Read<'f> = dyn Fn(&Path) -> Option<String> + 'f;

/// Where a version of control groups says what.
struct Version {
    base: &'static str,
    limit: &'static str,
    used: &'static str,
    idle: &'static str,
}

/// Version 2, one hierarchy for all controllers.
const UNIFIED: Version = Version {
    base: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    idle: "inactive_file ",
};
/// Version 1, a hierarchy for memory.
const ALONE: Version = Version {
    base: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    idle: "total_inactive_file ",
};

/// The number behind `KEY:` in a file like `/proc/meminfo`.
#[must_use]
pub fn kib_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(':').next() == Some(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Total and available, in MiB, where there are these files beside those of 1 GiB.
    fn mib_by(files: &[(&str, &str)]) -> (u64, u64) {
        let meminfo = "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:  786432 kB\n";
        let memory = HostMemory::told_by(&|path| {
            let mut all = files.iter().copied().chain([("/proc/meminfo", meminfo)]);
            all.find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_owned())
        });
        memory.map(|memory| (memory.total_bytes >> 20, memory.available_bytes >> 20)).unwrap()
    }

    #[test]
    fn the_smallest_limit_counts_of_all_groups_that_we_are_in() {
        assert_eq!(mib_by(&[]), (1024, 768));
        let ours = ("/proc/self/cgroup", "1:name=systemd:/\n0::/outer/inner\n");
        let inner = [
            ("/sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("/sys/fs/cgroup/outer/inner/memory.current", "1\n"),
        ];
        assert_eq!(mib_by(&[ours, inner[0], inner[1]]), (1024, 768));
        // 512 MiB, of which 300 are used and 100 could be given up.
        let outer = [
            ("/sys/fs/cgroup/outer/memory.max", "536870912\n"),
            ("/sys/fs/cgroup/outer/memory.current", "314572800\n"),
            ("/sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 104857600\n"),
        ];
        assert_eq!(mib_by(&[ours, inner[0], outer[0], outer[1], outer[2]]), (512, 312));
        // Where nothing is known of a use, nothing is used.
        assert_eq!(mib_by(&[ours, outer[0]]), (512, 512));
        let elsewhere = ("/proc/self/cgroup", "0::/other\n");
        assert_eq!(mib_by(&[elsewhere, outer[0]]), (1024, 768));
    }

    #[test]
    fn the_older_groups_and_those_of_a_container_count_too() {
        let ours = ("/proc/self/cgroup", "4:cpu,memory:/docker/77\n0::/\n");
        let limit = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        let used = ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "67108864\n");
        assert_eq!(mib_by(&[ours, limit, used]), (256, 192));
        // No limit.
        let limit = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(mib_by(&[ours, limit, used]), (1024, 768));
    }

    #[test]
    fn this_host_has_memory_and_some_of_it_is_free() {
        let memory = HostMemory::now().unwrap();
        assert!(memory.available_bytes > 0 && memory.available_bytes <= memory.total_bytes);
        assert_eq!(HostMemory::told_by(&|_| None), None);
        assert_eq!((kib_of("A: 3 kB\nB: x", "A"), kib_of("A: 3 kB\nB: x", "B")), (Some(3), None));
    }
}
