//! On which memory nodes the pages of a window lie, and how long they are. See `window.rs`.

use super::Window;
use rackpool_core::seam::Mem;
use rustix::mm::{Advice, madvise};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_void};
use std::io;

/// Words of a mask of nodes: 1024 of them, the most that Linux has.
const MASK_WORDS: usize = 1024 / u64::BITS as usize;
/// Unit in which the system is asked, bytes.
const PAGE_BYTES: u64 = 4096;
/// Pages asked for at once.
const PAGES_MAX: usize = 1024;

impl Window {
    /// Pages that are backed from now on come from memory of `node` alone. Of shared memory the
    /// kernel keeps this with the file, for all processes that map it.
    ///
    /// # Errors
    /// What the system says; invalid input for a node that has no memory.
    pub fn bind_to_node(&self, node: u16) -> io::Result<()> {
        self.bind_to_nodes(&[node])
    }

    /// As [`Window::bind_to_node`], from any of several nodes. The kernel then balances pages
    /// between nodes by itself no more.
    ///
    /// # Errors
    /// As there.
    pub fn bind_to_nodes(&self, nodes: &[u16]) -> io::Result<()> {
        let mut mask = [0u64; MASK_WORDS];
        for node in nodes {
            let word = mask.get_mut(usize::from(*node) / 64).ok_or(io::ErrorKind::InvalidInput)?;
            *word |= 1 << (node % 64);
        }
        let start = self.readable(0, self.bytes());
        // The kernel counts one bit more than it reads.
        let bits = 64 * MASK_WORDS + 1;
        let (length, policy, none) = (self.bytes(), libc::MPOL_BIND, 0);
        // SAFETY: only decides where pages of a mapping of ours come from; the mask has the bits.
        let code =
            unsafe { libc::syscall(libc::SYS_mbind, start, length, policy, &mask, bits, none) };
        checked(code)
    }

    /// Asks for small pages alone, of which neighbours may lie on different nodes.
    pub(crate) fn refuse_huge_pages(&self) {
        let start = self.readable(0, self.bytes()).cast();
        // SAFETY: only changes how a mapping of ours is backed. Its failure means that this system
        // has no transparent huge pages.
        let _ = unsafe { madvise(start, self.bytes() as usize, Advice::LinuxNoHugepage) };
    }

    /// How many pages of 4096 bytes lie on which node, of those that this process has touched.
    ///
    /// # Errors
    /// What the system says.
    pub fn node_pages(&self) -> io::Result<BTreeMap<i32, u64>> {
        let mut nodes = BTreeMap::new();
        let mut offset = 0;
        while offset < self.bytes() {
            let left = (self.bytes() - offset).div_ceil(PAGE_BYTES).min(PAGES_MAX as u64);
            let places: Vec<*mut c_void> = (0..left)
                .map(|index| self.readable(offset + index * PAGE_BYTES, 1).cast())
                .collect();
            let mut found = vec![0 as c_int; places.len()];
            let (own, count, to, from) = (0, places.len(), std::ptr::null::<c_int>(), &places);
            // SAFETY: without nodes to go to the kernel only says where pages are; both lists
            // have the length that is named.
            let code = unsafe {
                let found = found.as_mut_ptr();
                libc::syscall(libc::SYS_move_pages, own, count, from.as_ptr(), to, found, 0)
            };
            checked(code)?;
            for node in found.into_iter().filter(|node| *node >= 0) {
                *nodes.entry(node).or_insert(0) += 1;
            }
            offset += left * PAGE_BYTES;
        }
        Ok(nodes)
    }
}

fn checked(code: c_long) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
