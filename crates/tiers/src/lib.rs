//! Memories of unlike speed in one machine, each a memory node to the kernel: what there is
//! ([`topology`]), how fast each one is ([`measure`]), by which weights pages are dealt out to them
//! ([`weights`]), which of them a program should use ([`choice`]), programs that use them without a
//! change ([`run`]), the kernel's own weights ([`kernel_weights`]), pages that move between the
//! memories ([`balance`]), and how a cache should use them ([`advice`]). Knows windows and memory
//! policies (`rackpool-mem`), no pool and no cache. Called by `rackpool tiers`, `kv` and `doctor`.

pub mod advice;
pub mod balance;
pub mod choice;
pub mod kernel_weights;
pub mod measure;
pub mod run;
pub mod topology;
pub mod weights;
