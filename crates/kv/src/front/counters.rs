//! What a server counts. Each thread has counters of its own, which only it changes; any thread may
//! read them.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Commands,
    RespCommands,
    /// Keys looked up by memcached's commands.
    CmdGet,
    GetHits,
    GetMisses,
    /// Values that memcached's commands brought.
    CmdSet,
    CmdTouch,
    TouchHits,
    TouchMisses,
    DeleteHits,
    DeleteMisses,
    IncrHits,
    IncrMisses,
    DecrHits,
    DecrMisses,
    CasHits,
    CasMisses,
    /// Conditions that did not hold.
    CasBadval,
    /// `flush_all`, `FLUSHALL`, `FLUSHDB`.
    CmdFlush,
    CmdMeta,
    AuthCmds,
    AuthErrors,
    /// Values that are longer than an item may be.
    TooLarge,
    /// Values for which there was no memory.
    NoMemory,
    /// Keys found by RESP's commands.
    KeyHits,
    /// Keys not found by RESP's commands.
    KeyMisses,
    BytesRead,
    BytesWritten,
    Accepted,
    Closed,
    /// Connections refused because there were too many.
    Rejected,
    /// Connections ended because their client did not read its answers.
    SlowReaders,
    /// Connections ended because their client did not go on with a value that it had begun.
    SlowWriters,
    /// Connections ended because their client was silent.
    IdleKicks,
    /// Connections ended for new ones, since all were in use.
    IdleEvictions,
    /// Connections ended because their client did not end its handshake, or say its password.
    HandshakeTimeouts,
    /// Connections ended because the server held too much for all of them.
    HeldTooMuch,
    /// Connections refused because their address had too many.
    AddressRejected,
    /// Connections ended because HTTP came.
    HttpRefused,
    /// Connections ended because what came was no protocol.
    ProtocolErrors,
    /// Values that could not be read from another tier of memory.
    TierFailed,
    /// Commands that took longer than `slow_us`.
    Slow,
}

impl Count {
    pub const COUNT: usize = Count::Slow as usize + 1;
}

/// Buckets of durations: the first ends at 1 us, each further one at twice as much, the last but
/// one at 4 s.
const BUCKETS: usize = 24;
/// Where the first one ends, ns.
const FIRST_BUCKET_NS: u64 = 1_000;

#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    counts: [AtomicU64; Count::COUNT],
    /// Commands by how long they took, and the time of all, ns.
    took: [AtomicU64; BUCKETS],
    took_ns: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        let (counts, took) = (std::array::from_fn(zero), std::array::from_fn(zero));
        Self { counts, took, took_ns: AtomicU64::new(0) }
    }
}

/// Raises a counter that only this thread changes: two writers would lose counts.
fn raise(counter: &AtomicU64, by: u64) {
    // Relaxed: one writer; readers want a number that was true at some moment.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Durations of several threads: the end of each bucket, ns, and how many are in it; the sum, ns.
pub fn durations(threads: &[Counters]) -> (Vec<(Option<u64>, u64)>, u64) {
    // Relaxed: as above.
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let count = |index: usize| threads.iter().map(|one| read(&one.took[index])).sum();
    let end = |index: usize| (index + 1 < BUCKETS).then(|| FIRST_BUCKET_NS << index);
    let buckets = (0..BUCKETS).map(|index| (end(index), count(index))).collect();
    (buckets, threads.iter().map(|one| read(&one.took_ns)).sum())
}

impl Counters {
    /// Raises one. For the thread that owns them only: two writers would lose counts.
    pub fn add(&self, count: Count, by: u64) {
        raise(&self.counts[count as usize], by);
    }

    /// Counts commands that took so long together, each as its share. For the owner only, too.
    pub fn took(&self, commands: u64, ns: u64) {
        let starts = (ns / commands.max(1)).div_ceil(FIRST_BUCKET_NS).max(1);
        let index = (u64::BITS - (starts - 1).leading_zeros()) as usize;
        raise(&self.took[index.min(BUCKETS - 1)], commands);
        raise(&self.took_ns, ns);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.at(count as usize)
    }

    /// Reads one by its place.
    pub fn at(&self, index: usize) -> u64 {
        // Relaxed: as above.
        self.counts[index].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_the_bucket_that_ends_at_or_above_their_share_of_the_time() {
        let threads = [Counters::default(), Counters::default()];
        for (commands, ns) in [(1, 0), (1, 1_000), (10, 15_000), (1, 4_000), (1, u64::MAX >> 1)] {
            threads[(commands % 2) as usize].took(commands, ns);
        }
        let (buckets, sum_ns) = durations(&threads);
        let filled: Vec<_> = buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(Some(1_000), 2), (Some(2_000), 10), (Some(4_000), 1), (None, 1)]);
        assert_eq!(sum_ns, (u64::MAX >> 1) + 20_000);
    }
}
