//! What the fast path counts: one [`ThreadCounters`] a serving thread, which only that thread
//! changes, and one of the acceptor. Any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HerdCounter {
    Gets,
    Hits,
    Puts,
    Deletes,
    /// Parts of values that are longer than a slot, brought or asked for.
    Parts,
    /// Requests refused: a value too long, no memory.
    Refused,
    /// Requests that came again and were not applied again.
    Repeated,
    /// Slots with content that was no request.
    Malformed,
    /// Batches that requests were served in.
    Batches,
    Sleeps,
    Joined,
    /// Clients that left or died.
    Left,
    /// Clients that were not let in.
    Rejected,
    /// Queue pairs connected to one of a client, for requests by WRITE: one a client, whatever the
    /// number of threads.
    QueuePairs,
    /// Datagram queue pairs that failed: the thread's replies go by tcp from then on, and no
    /// requests come by datagram until the server starts anew.
    QueuePairsFailed,
}

impl HerdCounter {
    /// All, with the names that they are shown by.
    pub const ALL: [(HerdCounter, &str); 15] = [
        (HerdCounter::Gets, "gets"),
        (HerdCounter::Hits, "hits"),
        (HerdCounter::Puts, "puts"),
        (HerdCounter::Deletes, "deletes"),
        (HerdCounter::Parts, "parts"),
        (HerdCounter::Refused, "refused"),
        (HerdCounter::Repeated, "repeated"),
        (HerdCounter::Malformed, "malformed"),
        (HerdCounter::Batches, "batches"),
        (HerdCounter::Sleeps, "sleeps"),
        (HerdCounter::Joined, "joined"),
        (HerdCounter::Left, "left"),
        (HerdCounter::Rejected, "rejected"),
        (HerdCounter::QueuePairs, "queue_pairs"),
        (HerdCounter::QueuePairsFailed, "queue_pairs_failed"),
    ];
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadCounters([AtomicU64; HerdCounter::ALL.len()]);

impl ThreadCounters {
    /// Raises one. For the thread that owns them only: two writers would lose counts.
    pub fn add(&self, what: HerdCounter, by: u64) {
        let counter = &self.0[what as usize];
        // Relaxed: one writer; readers want a number that was true at some moment.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    pub fn get(&self, what: HerdCounter) -> u64 {
        // Relaxed: as above.
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

/// The counters of a server: each thread's, the acceptor's last.
#[derive(Debug)]
pub struct HerdCounters(pub(super) Box<[ThreadCounters]>);

impl HerdCounters {
    /// Those of a server with so many threads.
    pub(super) fn new(threads: u32) -> HerdCounters {
        HerdCounters((0..=threads).map(|_| ThreadCounters::default()).collect())
    }

    /// A counter over all threads.
    pub fn get(&self, what: HerdCounter) -> u64 {
        self.0.iter().map(|counters| counters.get(what)).sum()
    }
}
