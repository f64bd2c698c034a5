//! Gives ranges of addresses a memory node: the kernel, or what a test puts in its place.

use crate::policy::NODES_MAX;
use std::ffi::{c_long, c_ulong};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::ptr;

/// Called with locks held, and maybe inside the program's allocator: it must not allocate.
pub trait Placer: Sync {
    /// Has pages of a range that are not backed yet come from a node; if it is full, from others,
    /// but for `is_strict`.
    ///
    /// # Errors
    /// The kernel's.
    fn place(&self, start: *mut u8, bytes: usize, node: u16, is_strict: bool) -> io::Result<()>;

    /// What a node can give, bytes, with what it holds of files; None if that is not known.
    fn available_bytes(&self, node: u16) -> Option<u64>;

    /// Takes the memory of a range now.
    ///
    /// # Errors
    /// The kernel's, if there is none.
    fn populate(&self, start: *mut u8, bytes: usize) -> io::Result<()>;
}

/// By `mbind` and `madvise`, from huge pages if there are some, as mimalloc takes its own memory.
pub struct Kernel;

/// Of `linux/mempolicy.h`: the nodes are meant as they are numbered, also if the cpuset changes.
const STATIC_NODES: c_long = 1 << 15;
/// Linux 5.14.
const MADV_POPULATE_WRITE: i32 = 23;
const WORD_BITS: usize = c_ulong::BITS as usize;
const PATH_BYTES_MAX: usize = 64;
/// The file has some 1500 bytes.
const MEMINFO_BYTES_MAX: usize = 8192;

impl Placer for Kernel {
    fn place(&self, start: *mut u8, bytes: usize, node: u16, is_strict: bool) -> io::Result<()> {
        let mut mask = [0 as c_ulong; NODES_MAX / WORD_BITS];
        let node = usize::from(node);
        let word = mask.get_mut(node / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % WORD_BITS);
        let mode = if is_strict { libc::MPOL_BIND } else { libc::MPOL_PREFERRED };
        let mode = c_long::from(mode) | STATIC_NODES;
        // The kernel leaves out the last bit.
        let (bits, none) = (NODES_MAX as c_long + 1, 0 as c_long);
        let (start, mask) = (start.expose_provenance(), mask.as_ptr());
        // SAFETY: only decides where pages come from; the mask has the bits that are read.
        let code = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask, bits, none) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        let start = ptr::with_exposed_provenance_mut(start);
        // SAFETY: only decides which pages back the range. It may be refused: they are small then.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        Ok(())
    }

    fn available_bytes(&self, node: u16) -> Option<u64> {
        let mut path = [0; PATH_BYTES_MAX];
        let mut rest = &mut path[..];
        write!(rest, "/sys/devices/system/node/node{node}/meminfo").ok()?;
        let length = PATH_BYTES_MAX - rest.len();
        let path = std::str::from_utf8(&path[..length]).ok()?;
        let mut file = File::open(Path::new(path)).ok()?;
        let mut text = [0; MEMINFO_BYTES_MAX];
        let mut length = 0;
        while length < text.len() {
            match file.read(&mut text[length..]).ok()? {
                0 => break,
                more => length += more,
            }
        }
        available(std::str::from_utf8(&text[..length]).ok()?)
    }

    fn populate(&self, start: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: changes no content; of addresses that are not mapped the kernel says so.
        let code = unsafe { libc::madvise(start.cast(), bytes, MADV_POPULATE_WRITE) };
        let error = io::Error::last_os_error();
        // Before 5.14 pages are taken when they are touched.
        let is_old = error.raw_os_error() == Some(libc::EINVAL);
        if code == 0 || is_old { Ok(()) } else { Err(error) }
    }
}

/// Free memory, and pages of files, which give way.
fn available(meminfo: &str) -> Option<u64> {
    let bytes = |key: &str| {
        let value = meminfo.lines().find_map(|line| {
            let (before, value) = line.split_once(':')?;
            (before.split_whitespace().nth(2) == Some(key)).then_some(value)
        })?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let files = ["Active(file)", "Inactive(file)"].map(|key| bytes(key).unwrap_or(0));
    Some(bytes("MemFree")?.saturating_add(files[0]).saturating_add(files[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_and_pages_of_files_are_available() {
        let text = "Node 0 MemTotal: 90 kB\nNode 0 MemFree:    7 kB\nNode 0 Active(anon): 5 kB\n\
                    Node 0 Active(file):  2 kB\nNode 0 Inactive(file): 1 kB\n";
        assert_eq!(available(text), Some(10 << 10));
        assert_eq!(available("Node 0 MemTotal: 90 kB"), None);
        assert_eq!(Kernel.available_bytes(1023), None);
    }
}
