//! Pages on a chosen memory node: CXL memory that the kernel took as its own is one without
//! processors. The kernel keeps the choice with a file of shared memory, so it holds for whoever
//! backs or touches the pages later; what was backed before stays where it is. Only pages are
//! placed: the other sections are the daemon's and its clients' and stay near them.
//!
//! Called when a region is made or opened.

use super::error::{RegionError, Result, failed};
use super::huge::{FileSystem, file_system};
use crate::window::{Access, MapOptions, Window};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Nodes that have memory, as a list such as `0-1,3`.
const NODES: &str = "/sys/devices/system/node/has_memory";

/// Has pages of a file come from memory of `node` alone.
pub(super) fn bind(fd: BorrowedFd<'_>, path: &Path, bytes: u64, node: u16) -> Result<()> {
    let there = fs::read_to_string(NODES).unwrap_or_default();
    if !is_listed(&there, node) {
        let there = there.trim().to_owned();
        return Err(RegionError::NoNode { path: path.to_owned(), node, there });
    }
    if file_system(fd, path)? != FileSystem::Tmpfs {
        let operation = "place its pages on a memory node";
        return Err(RegionError::Unsupported { path: path.to_owned(), operation });
    }
    let window = Window::map(fd, bytes, Access::ReadWrite, MapOptions::default());
    let bound = window.and_then(|window| window.bind_to_node(node));
    bound.map_err(failed("choose the memory node of", path))
}

/// Whether a list of numbers and ranges has `node`.
fn is_listed(list: &str, node: u16) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
        range.is_some_and(|(first, last)| (first..=last).contains(&node))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{MemorySpec, RegionFiles};

    #[test]
    fn lists_of_nodes_are_read() {
        let has = |list, nodes: &[u16]| nodes.iter().all(|node| is_listed(list, *node));
        assert!(has("0-1,3\n", &[0, 1, 3]) && has("7", &[7]));
        assert!(!is_listed("0-1,3\n", 2) && !is_listed("", 0) && !is_listed("x-2", 1));
    }

    #[test]
    fn a_node_without_memory_is_refused_with_those_that_have_some() {
        let spec: MemorySpec = "heap:4M?numa=1023".parse().unwrap();
        let error = RegionFiles::create(&spec).unwrap_err();
        assert!(matches!(error, RegionError::NoNode { node: 1023, .. }), "{error}");
    }
}
