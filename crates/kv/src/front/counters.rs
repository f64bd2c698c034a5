//! What a server counts. Each thread has counters of its own, which only it changes; everybody may
//! read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Commands, of all protocols.
    Commands,
    /// Commands of RESP.
    RespCommands,
    /// Keys looked up by memcached's commands.
    CmdGet,
    /// Found.
    GetHits,
    /// Not found.
    GetMisses,
    /// Values that memcached's commands brought.
    CmdSet,
    /// New expiries.
    CmdTouch,
    /// For items that were there.
    TouchHits,
    /// For items that were not.
    TouchMisses,
    /// Items removed by name.
    DeleteHits,
    /// Names without an item.
    DeleteMisses,
    /// Numbers raised.
    IncrHits,
    /// Without a number.
    IncrMisses,
    /// Numbers lowered.
    DecrHits,
    /// Without a number.
    DecrMisses,
    /// Conditions that held.
    CasHits,
    /// Conditions without an item.
    CasMisses,
    /// Conditions that did not hold.
    CasBadval,
    /// `flush_all`, `FLUSHALL`, `FLUSHDB`.
    CmdFlush,
    /// Meta commands.
    CmdMeta,
    /// Passwords given.
    AuthCmds,
    /// Wrong ones.
    AuthErrors,
    /// Values that are longer than an item may be.
    TooLarge,
    /// Values for which there was no memory.
    NoMemory,
    /// Keys found by RESP's commands.
    KeyHits,
    /// Keys not found by RESP's commands.
    KeyMisses,
    /// Bytes received.
    BytesRead,
    /// Bytes sent.
    BytesWritten,
    /// Bytes of those whose memory was lent, not copied.
    BytesLent,
    /// Connections taken.
    Accepted,
    /// Connections ended.
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
    /// How many there are.
    pub const COUNT: usize = Count::Slow as usize + 1;
}

/// The counters of one thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters([AtomicU64; Count::COUNT]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// Raises one. For the thread that owns them only: two writers would lose counts.
    pub fn add(&self, count: Count, by: u64) {
        let counter = &self.0[count as usize];
        // Relaxed: one writer; readers want a number that was true at some moment.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Reads one.
    pub fn get(&self, count: Count) -> u64 {
        self.at(count as usize)
    }

    /// Reads one by its place.
    pub fn at(&self, index: usize) -> u64 {
        // Relaxed: as above.
        self.0[index].load(Ordering::Relaxed)
    }
}
