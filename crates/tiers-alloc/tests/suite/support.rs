//! A placer without nodes: it writes down what it is asked for.

use rackpool_tiers_alloc::Placer;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub const NODES: usize = 4;

#[derive(Default)]
pub struct Recorder {
    /// Start, bytes, node, whether strictly.
    pub ranges: Mutex<Vec<(usize, usize, u16, bool)>>,
    /// Left on each node; `u64::MAX` where nothing is known.
    pub left: [AtomicU64; NODES],
    pub populated: AtomicU64,
}

impl Recorder {
    pub fn new(left: u64) -> &'static Recorder {
        let left = [(); NODES].map(|()| AtomicU64::new(left));
        Box::leak(Box::new(Recorder { left, ..Recorder::default() }))
    }

    /// The node of an address, by the last call for it.
    pub fn node_of(&self, block: *const u8) -> Option<u16> {
        let ranges = self.ranges.lock().unwrap();
        let holds = |range: &&(usize, usize, u16, bool)| {
            (range.0..range.0 + range.1).contains(&block.addr())
        };
        ranges.iter().rev().find(holds).map(|range| range.2)
    }
}

impl Placer for Recorder {
    fn place(&self, start: *mut u8, bytes: usize, node: u16, is_strict: bool) -> io::Result<()> {
        if usize::from(node) >= NODES {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.ranges.lock().unwrap().push((start.addr(), bytes, node, is_strict));
        Ok(())
    }

    fn available_bytes(&self, node: u16) -> Option<u64> {
        Some(self.left[usize::from(node)].load(Ordering::SeqCst)).filter(|left| *left < u64::MAX)
    }

    fn populate(&self, _start: *mut u8, bytes: usize) -> io::Result<()> {
        self.populated.fetch_add(bytes as u64, Ordering::SeqCst);
        Ok(())
    }
}
