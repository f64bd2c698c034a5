//! How many bytes of some processes lie on which node, as `/proc/PID/numa_maps` says: memory that
//! is backed; private memory apart from files and shared memory, which several processes may count.

use rackpool_mem::memory::kib_of;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Processes that are looked at.
const PROCESSES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeBytes {
    /// Private memory: heaps, stacks, anonymous mappings. Shared after a fork, it counts for each.
    pub private: u64,
    /// Files and shared memory, for each process that has them mapped and used.
    pub mapped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub at: Instant,
    pub nodes: BTreeMap<u16, NodeBytes>,
    pub processes: u32,
    /// Of them, those without the library, if there is one.
    pub unreached: u32,
    /// Of them, those of which the kernel tells this user nothing: setuid, or of another user.
    pub unseen: u32,
    /// How long the look took.
    pub took: Duration,
}

impl Reading {
    /// Looks at all descendants of this process.
    pub(super) fn of_descendants(library: Option<&Path>) -> Reading {
        let at = Instant::now();
        let mut reading = Reading {
            at,
            nodes: BTreeMap::new(),
            processes: 0,
            unreached: 0,
            unseen: 0,
            took: Duration::ZERO,
        };
        let mut found = children_of("self");
        let mut next = 0;
        while next < found.len().min(PROCESSES_MAX) {
            let process = found[next].to_string();
            reading.add(&process, library);
            found.extend(children_of(&process));
            next += 1;
        }
        reading.took = at.elapsed();
        reading
    }

    fn add(&mut self, process: &str, library: Option<&Path>) {
        let text = match std::fs::read(format!("/proc/{process}/numa_maps")) {
            // Names of files may be any bytes.
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.processes += 1;
                self.unseen += 1;
                return;
            }
            Err(_) => return self.add_without_nodes(process),
        };
        // One that ends has no memory any more.
        if text.is_empty() {
            return;
        }
        self.processes += 1;
        let has_library = self.add_maps(&text, library);
        if library.is_some() && !has_library {
            self.unreached += 1;
        }
    }

    /// Adds the lines of a process; whether it has the library mapped.
    pub(super) fn add_maps(&mut self, text: &str, library: Option<&Path>) -> bool {
        let mut has_library = false;
        // By its name, which is its content's: the kernel says its path without symbolic links.
        let library = library.and_then(Path::file_name);
        for line in text.lines() {
            let words = || line.split(' ').skip(2);
            let file = words().find_map(|word| word.strip_prefix("file="));
            if let (Some(file), Some(library)) = (file, library) {
                has_library = has_library || Path::new(file).file_name() == Some(library);
            }
            let page = words().find_map(|word| word.strip_prefix("kernelpagesize_kB="));
            let page: u64 = page.and_then(|kib| kib.parse().ok()).unwrap_or(4);
            for (node, pages) in words().filter_map(node_pages) {
                let bytes = pages.saturating_mul(page << 10);
                let of_node = self.nodes.entry(node).or_default();
                let sum = if file.is_some() { &mut of_node.mapped } else { &mut of_node.private };
                *sum = sum.saturating_add(bytes);
            }
        }
        has_library
    }

    /// A kernel without nodes has one memory.
    fn add_without_nodes(&mut self, process: &str) {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let bytes = |key| kib_of(&text, key).unwrap_or(0) << 10;
        let (private, mapped) = (bytes("RssAnon"), bytes("RssFile") + bytes("RssShmem"));
        if private + mapped == 0 {
            return;
        }
        self.processes += 1;
        let node = self.nodes.entry(0).or_default();
        node.private += private;
        node.mapped += mapped;
    }

    pub fn private_bytes(&self) -> u64 {
        self.nodes.values().map(|bytes| bytes.private).sum()
    }
}

/// Such as `N0=123`.
fn node_pages(word: &str) -> Option<(u16, u64)> {
    let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
    Some((node.parse().ok()?, pages.parse().ok()?))
}

/// Children of any thread of a process.
fn children_of(process: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    tasks.flat_map(of_task).collect()
}
