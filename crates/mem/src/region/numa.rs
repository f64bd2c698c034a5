//! Pages on chosen memory nodes: CXL memory that the kernel took as its own is one without
//! processors. The kernel keeps the choice with a file of shared memory, so it holds for every
//! process that backs or touches the pages later; what was backed before stays where it is. Only
//! pages are placed: the other sections are the daemon's and its clients' and stay near them.
//!
//! Called when a region is made or opened.

use super::error::{RegionError, Result, failed};
use super::huge::{FileSystem, file_system};
use crate::numa;
use crate::window::{Access, MapOptions, Window};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Has ranges of a file's pages come from memory of one node each: offset, bytes, node.
pub(super) fn bind(fd: BorrowedFd<'_>, path: &Path, ranges: &[(u64, u64, u16)]) -> Result<()> {
    for (_, bytes, node) in ranges {
        let (node, wanted_bytes, path) = (*node, *bytes, path.to_owned());
        if let Err(there) = numa::require(node) {
            return Err(RegionError::NoNode { path, node, there });
        }
        // Pages are bound: a process that touches one without memory for it is ended.
        if let Some(total_bytes) = numa::total_bytes(node).filter(|total| wanted_bytes > *total) {
            return Err(RegionError::NodeTooSmall { path, node, wanted_bytes, total_bytes });
        }
    }
    if file_system(fd, path)? != FileSystem::Tmpfs {
        let operation = "place its pages on a memory node";
        return Err(RegionError::Unsupported { path: path.to_owned(), operation });
    }
    let end = ranges.last().map_or(0, |(offset, bytes, _)| offset + bytes);
    let window = Window::map(fd, end, Access::ReadWrite, MapOptions::default());
    let bound = window.and_then(|window| {
        let mut ranges = ranges.iter();
        ranges.try_for_each(|(at, bytes, node)| window.slice(*at, *bytes).bind_to_node(*node))
    });
    bound.map_err(failed("choose the memory node of", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{MemorySpec, RegionFiles};

    #[test]
    fn a_node_without_memory_is_refused_with_those_that_have_some() {
        let spec: MemorySpec = "heap:4M?numa=1023".parse().unwrap();
        let error = RegionFiles::create(&spec).unwrap_err();
        assert!(matches!(error, RegionError::NoNode { node: 1023, .. }), "{error}");
        let spec: MemorySpec = "heap:8M?numa=0:3,1023:1".parse().unwrap();
        let error = RegionFiles::create(&spec).unwrap_err();
        assert!(matches!(error, RegionError::NoNode { node: 1023, .. }), "{error}");
        let spec: MemorySpec = "heap:64T?numa=0".parse().unwrap();
        let error = RegionFiles::create(&spec).unwrap_err();
        assert!(matches!(error, RegionError::NodeTooSmall { node: 0, .. }), "{error}");
    }
}
