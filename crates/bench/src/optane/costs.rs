//! What threads and the link take, in numbers, each with where it comes from.

use super::memory::CACHE_BYTES;
use rackpool_rack::pmem::config::{ConstantOrigin, MediaConstant};
use rackpool_sim::time::Ps;

/// Lines that a core reads at once: its line fill buffers.
pub const READS_MAX: usize = 10;
/// Lines of a thread in the controllers' queues.
pub const WRITES_MAX: usize = 4;
/// Between two lines that a thread reads.
pub const READ_GAP: Ps = Ps(1_000);
/// Between two ntstores of a line.
pub const NT_GAP: Ps = Ps(12_300);
/// From an ntstore's issue until a fence knows that it is durable.
pub const NT_DURABLE: Ps = Ps(90_400 - NT_GAP.0);
/// The first ntstore after a fence is so much later.
pub const NT_AFTER_FENCE: Ps = Ps(97_800);
/// Between two lines that are fetched, stored and written back.
pub const CLWB_GAP: Ps = Ps(44_500);
/// The same if they are in the cache.
pub const CACHED_GAP: Ps = Ps(12_300);
/// Lines that are foreseen are fetched as long before.
pub const FETCHED_AHEAD: Ps = Ps(CLWB_GAP.0 * READS_MAX as u64);
pub const CLWB_DURABLE: Ps = Ps(62_300 - CACHED_GAP.0);
/// Between two lines on the link.
pub const LINK_GAP: Ps = Ps(1_866);
/// What a remote access takes more, both ways together.
pub const REMOTE_READ: Ps = Ps(61_000);
pub const REMOTE_NT: Ps = Ps(138_300);
pub const REMOTE_CLWB: Ps = Ps(42_400);
/// Between two accesses that are measured by themselves.
pub const PAUSE: Ps = Ps(400_000);

/// The numbers above with their sources.
pub fn constants() -> Vec<MediaConstant> {
    use ConstantOrigin::{Chosen, Fitted, Setting};
    let of =
        |name, value, unit, origin, source| MediaConstant { name, value, unit, origin, source };
    let ns = |ps: Ps| ps.as_ns_f64();
    let line = "table of figure 17: one thread writes 5.2 GB/s";
    let fence = "table of figure 13: one thread's ntstores of 64 B with a fence reach 0.34 GB/s";
    let link = "table of figure 6: 16 threads read 34.3 GB/s of remote DRAM";
    let clwb = "table of figure 4: one thread's store and clwb to DRAM reach 1.44 GB/s";
    vec![
        of("thread_reads", READS_MAX as f64, "lines", Setting, "line fill buffers of the core"),
        of("thread_writes", WRITES_MAX as f64, "lines", Setting, "the guide: 256 B of a thread"),
        of("read_issue", ns(READ_GAP), "ns", Chosen, "hidden behind what a read takes"),
        of("nt_line", ns(NT_GAP), "ns", Fitted, line),
        of("nt_durable", ns(NT_DURABLE), "ns", Fitted, "figure 2: 90.4 ns with the line"),
        of("nt_after_fence", ns(NT_AFTER_FENCE), "ns", Fitted, fence),
        of("clwb_line", ns(CLWB_GAP), "ns", Fitted, clwb),
        of("clwb_cached_line", ns(CACHED_GAP), "ns", Chosen, "as an ntstore's line"),
        of("clwb_durable", ns(CLWB_DURABLE), "ns", Fitted, "figure 2: 62.3 ns with the line"),
        of("cache", CACHE_BYTES as f64, "B", Setting, "Intel's data of the Xeon 8260"),
        of("link_line", ns(LINK_GAP), "ns", Fitted, link),
        of("remote_read", ns(REMOTE_READ), "ns", Fitted, "the guide: 1.20 times, at random"),
        of("remote_nt", ns(REMOTE_NT), "ns", Fitted, "the guide: 2.53 times"),
        of("remote_clwb", ns(REMOTE_CLWB), "ns", Fitted, "the guide: 1.68 times"),
    ]
}
