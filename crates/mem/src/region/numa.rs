//! Pages on a chosen memory node: CXL memory that the kernel took as its own is one without
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

/// Has pages of a file come from memory of `node` alone.
pub(super) fn bind(fd: BorrowedFd<'_>, path: &Path, bytes: u64, node: u16) -> Result<()> {
    numa::require(node).map_err(|there| RegionError::NoNode {
        path: path.to_owned(),
        node,
        there,
    })?;
    if file_system(fd, path)? != FileSystem::Tmpfs {
        let operation = "place its pages on a memory node";
        return Err(RegionError::Unsupported { path: path.to_owned(), operation });
    }
    let window = Window::map(fd, bytes, Access::ReadWrite, MapOptions::default());
    let bound = window.and_then(|window| window.bind_to_node(node));
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
    }
}
