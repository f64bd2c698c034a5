//! On which memory nodes the pages of a window lie and come to lie, and how long they are. See
//! `window.rs`.

use super::Window;
use rackpool_core::seam::Mem;
use rustix::mm::{Advice, madvise};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_void};
use std::io;

/// Words of a mask of nodes: 1024 of them, the most that Linux has.
const MASK_WORDS: usize = 1024 / u64::BITS as usize;
/// Unit in which the system is asked, bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Pages asked for at once.
const PAGES_MAX: usize = 1024;
const HUGE_BYTES: usize = 2 << 20;
/// Of `linux/mempolicy.h`: pages that no other process has move.
const MPOL_MF_MOVE: c_int = 1 << 1;

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
        self.set_policy(libc::MPOL_BIND, &mask)
    }

    /// Pages that are backed from now on come from where the system likes.
    pub(crate) fn bind_to_none(&self) -> io::Result<()> {
        self.set_policy(libc::MPOL_DEFAULT, &[0; MASK_WORDS])
    }

    fn set_policy(&self, policy: c_int, mask: &[u64; MASK_WORDS]) -> io::Result<()> {
        let start = self.readable(0, self.bytes());
        // The kernel counts one bit more than it reads.
        let bits = 64 * MASK_WORDS + 1;
        let (length, mask, none) = (self.bytes(), mask.as_ptr(), 0);
        // SAFETY: only decides where pages of a mapping of ours come from; the mask has the bits.
        let code =
            unsafe { libc::syscall(libc::SYS_mbind, start, length, policy, mask, bits, none) };
        checked(code)
    }

    /// Asks for small pages alone, of which neighbours may lie on different nodes; or for huge ones
    /// where there may be some.
    pub(crate) fn allow_huge_pages(&self, is_allowed: bool) {
        let advice = if is_allowed { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        let start = self.readable(0, self.bytes()).cast();
        // SAFETY: only changes how a mapping of ours is backed. Its failure means that this system
        // has no transparent huge pages.
        let _ = unsafe { madvise(start, self.bytes() as usize, advice) };
    }

    /// Breaks up the huge pages that begin in, or reach into, a part, where the system can: each
    /// would move as a whole.
    pub(crate) fn split_huge_pages(&self, offset: u64, bytes: u64) {
        let mut at = offset;
        while at < offset + bytes {
            let place = self.readable(at, PAGE_BYTES);
            // Advice on a part of a huge page splits it. Whether one of its pages is thought to be
            // used less makes no difference before memory is short.
            // SAFETY: a page of a mapping of ours, whose bytes stay. Its failure means that the
            // page stays whole.
            let _ = unsafe { madvise(place.cast(), PAGE_BYTES as usize, Advice::LinuxCold) };
            at += ((place.addr() + 1).next_multiple_of(HUGE_BYTES) - place.addr()) as u64;
        }
    }

    /// The node of each page, by its offset; negative for one that this process has not touched.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn nodes_of(&self, pages: &[u64]) -> io::Result<Vec<c_int>> {
        self.move_pages(pages, None)
    }

    /// Moves pages to a node, by their offsets, as many as can be; [`Window::nodes_of`] says which
    /// have. Threads that touch one meanwhile wait for it.
    ///
    /// # Errors
    /// What the system says; some may have moved.
    pub(crate) fn move_to_node(&self, pages: &[u64], node: u16) -> io::Result<()> {
        self.move_pages(pages, Some(node)).map(drop)
    }

    /// What the kernel says of each page.
    fn move_pages(&self, pages: &[u64], node: Option<u16>) -> io::Result<Vec<c_int>> {
        let places: Vec<*mut c_void> =
            pages.iter().map(|offset| self.readable(*offset, 1).cast()).collect();
        let nodes = node.map(|node| vec![c_int::from(node); places.len()]);
        let mut found = vec![0 as c_int; places.len()];
        let (own, count, from) = (0, places.len(), places.as_ptr());
        let to = nodes.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
        let (answers, flags) = (found.as_mut_ptr(), if to.is_null() { 0 } else { MPOL_MF_MOVE });
        // SAFETY: without nodes to go to the kernel only says where pages are; with them pages of
        // mappings of ours move, whose addresses and bytes stay. All lists have the length that is
        // named.
        let code =
            unsafe { libc::syscall(libc::SYS_move_pages, own, count, from, to, answers, flags) };
        checked(code)?;
        Ok(found)
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
            let pages: Vec<u64> = (0..left).map(|index| offset + index * PAGE_BYTES).collect();
            let found = self.nodes_of(&pages)?;
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
