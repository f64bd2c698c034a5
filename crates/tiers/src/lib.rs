//! Unlike memories of one machine: DRAM, CXL, persistent and high-bandwidth memory, each a memory
//! node to the kernel. Knows windows and memory policies (`rackpool-mem`), no pool and no cache.
//! Called by `rackpool tiers` and `doctor`.

pub mod topology;
