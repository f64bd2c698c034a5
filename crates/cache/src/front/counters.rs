//! What a server counts. Each thread has counters of its own, which only it changes; any thread may
//! read them.

use super::commands::{COMMANDS, CommandId};
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter by its name in `stats` and for Prometheus, and what it counts.
pub type Counted = (&'static str, Count, &'static str);

macro_rules! counts {
    ($($(#[$about:meta])* $table:ident { $($count:ident $name:literal $help:literal,)* })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count { $($(#[doc = $help] $count,)*)* }

        impl Count {
            pub const COUNT: usize = [$($(Count::$count),*),*].len();
        }

        $($(#[$about])* pub const $table: &[Counted] = &[$(($name, Count::$count, $help)),*];)*
    };
}

counts! {
    /// By memcached's names, where it has them.
    COUNTS {
        CmdGet "cmd_get" "Keys looked up by memcached's commands",
        CmdSet "cmd_set" "Values that memcached's commands brought",
        CmdFlush "cmd_flush" "Orders to empty the cache",
        CmdTouch "cmd_touch" "New expiries by memcached's commands",
        CmdMeta "cmd_meta" "Meta commands of memcached",
        GetHits "get_hits" "Keys that memcached's commands found",
        GetMisses "get_misses" "Keys that memcached's commands did not find",
        DeleteMisses "delete_misses" "Removals of what was not there",
        DeleteHits "delete_hits" "Items removed by memcached's commands",
        IncrMisses "incr_misses" "Numbers to be raised that were not there",
        IncrHits "incr_hits" "Numbers raised",
        DecrMisses "decr_misses" "Numbers to be lowered that were not there",
        DecrHits "decr_hits" "Numbers lowered",
        CasMisses "cas_misses" "Values stored on a condition whose item was not there",
        CasHits "cas_hits" "Values stored on a condition that held",
        CasBadval "cas_badval" "Values not stored since their condition did not hold",
        TouchHits "touch_hits" "New expiries of what was there",
        TouchMisses "touch_misses" "New expiries of what was not there",
        TooLarge "store_too_large" "Values refused since they were too long",
        NoMemory "store_no_memory" "Values refused since there was no memory",
        TierFailed "tier_failed" "Values that could not be read from another tier",
        AuthCmds "auth_cmds" "Passwords given",
        AuthErrors "auth_errors" "Wrong passwords",
        BytesRead "bytes_read" "Bytes received",
        BytesWritten "bytes_written" "Bytes sent",
    }
    /// Why connections were refused or ended, by names of our own.
    REFUSALS {
        SlowReaders "slow_readers" "Connections ended that took no answers",
        SlowWriters "slow_writers" "Connections ended that did not go on with a command",
        IdleKicks "idle_kicks" "Connections ended that were silent",
        IdleEvictions "idle_evictions" "Silent connections ended for new ones",
        HandshakeTimeouts "handshake_timeouts"
            "Connections ended before handshake and password were over",
        HeldTooMuch "held_too_much" "Connections ended since all held too much memory",
        AddressRejected "address_rejected" "Connections refused to addresses with many",
        HttpRefused "http_refused" "Connections ended since HTTP came",
        ProtocolErrors "protocol_errors" "Connections ended since no protocol came",
    }
    /// For Prometheus alone.
    MORE_COUNTS {
        Commands "commands" "Commands of all protocols",
        RespUnknown "resp_unknown" "Commands of RESP that are not known, or not offered",
        KeyHits "resp_hits" "Keys that commands of RESP found",
        KeyMisses "resp_misses" "Keys that commands of RESP did not find",
        Accepted "connections_accepted" "Connections taken",
        Rejected "connections_rejected" "Connections refused since there were too many",
        Slow "slow_commands" "Commands that took longer than --slow-us",
        Closed "connections_closed" "Connections ended",
    }
}

/// Buckets of durations: the first ends at 1 us, each further one at twice as much, the last but
/// one at 4 s.
pub const BUCKETS: usize = 24;
/// Where the first one ends, ns.
const FIRST_BUCKET_NS: u64 = 1_000;

#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    counts: [AtomicU64; Count::COUNT],
    /// Commands by how long they took, and the time of all, ns.
    took: [AtomicU64; BUCKETS],
    took_ns: AtomicU64,
    commands: [CommandCounters; COMMANDS.len()],
}

/// One of the buckets of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBucket(usize);

impl TimeBucket {
    pub fn of(ns: u64) -> Self {
        let starts = ns.div_ceil(FIRST_BUCKET_NS).max(1);
        let index = (u64::BITS - (starts - 1).leading_zeros()) as usize;
        Self(index.min(BUCKETS - 1))
    }
}

#[derive(Debug, Default)]
struct CommandCounters {
    took_ns: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    /// Calls by how long they took.
    took: [AtomicU64; BUCKETS],
}

/// What was counted of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStats {
    pub calls: u64,
    pub took_ns: u64,
    /// Those that did not run, for their number of words or want of a password.
    pub rejected: u64,
    /// Those that ran and answered with an error.
    pub failed: u64,
    /// Those that ran by how long they took.
    pub took: [u64; BUCKETS],
}

impl CommandStats {
    /// What was counted by both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            took_ns: self.took_ns + other.took_ns,
            rejected: self.rejected + other.rejected,
            failed: self.failed + other.failed,
            took: std::array::from_fn(|index| self.took[index] + other.took[index]),
        }
    }

    /// What was counted since `base`.
    pub fn since(self, base: Self) -> Self {
        Self {
            calls: self.calls.wrapping_sub(base.calls),
            took_ns: self.took_ns.wrapping_sub(base.took_ns),
            rejected: self.rejected.wrapping_sub(base.rejected),
            failed: self.failed.wrapping_sub(base.failed),
            took: std::array::from_fn(|index| self.took[index].wrapping_sub(base.took[index])),
        }
    }

    /// The end of each bucket that has calls, microseconds, and how many took no longer. What is in
    /// the last one took longer than any end: it is shown at twice the one before.
    pub fn histogram(&self) -> Vec<(u64, u64)> {
        let calls = self.took.iter().enumerate().filter(|(_, calls)| **calls > 0);
        let up_to = calls.scan(0, |sum, (index, calls)| {
            *sum += calls;
            Some((1 << index, *sum))
        });
        up_to.collect()
    }
}

impl Default for Counters {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        let (counts, took) = (std::array::from_fn(zero), std::array::from_fn(zero));
        let commands = std::array::from_fn(|_| CommandCounters::default());
        Self { counts, took, took_ns: AtomicU64::new(0), commands }
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

    /// Counts commands that took so long together, each as its share; which bucket that is. For the
    /// owner only, too.
    pub fn took(&self, commands: u64, ns: u64) -> TimeBucket {
        let bucket = TimeBucket::of(ns / commands.max(1));
        raise(&self.took[bucket.0], commands);
        raise(&self.took_ns, ns);
        bucket
    }

    /// Counts commands that ran, their time, and how long each took. For the owner only, too.
    pub fn ran(&self, command: CommandId, calls: u64, ns: u64, bucket: TimeBucket) {
        let counters = &self.commands[command.index()];
        raise(&counters.took_ns, ns);
        raise(&counters.took[bucket.0], calls);
    }

    /// Counts a command that was not run. For the owner only, too.
    pub fn rejected(&self, command: CommandId) {
        raise(&self.commands[command.index()].rejected, 1);
    }

    /// Counts a command that answered with an error. For the owner only, too.
    pub fn failed(&self, command: CommandId) {
        raise(&self.commands[command.index()].failed, 1);
    }

    pub fn command(&self, command: CommandId) -> CommandStats {
        let counters = &self.commands[command.index()];
        // Relaxed: as above.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let took: [u64; BUCKETS] = std::array::from_fn(|index| read(&counters.took[index]));
        CommandStats {
            calls: took.iter().sum(),
            took_ns: read(&counters.took_ns),
            rejected: read(&counters.rejected),
            failed: read(&counters.failed),
            took,
        }
    }

    pub fn get(&self, count: Count) -> u64 {
        self.at(count as usize)
    }

    pub fn at(&self, index: usize) -> u64 {
        // Relaxed: as above.
        self.counts[index].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands;
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

    #[test]
    fn each_command_has_a_histogram_of_its_own() {
        let counters = Counters::default();
        let [get, set] = [commands::GET, commands::SET];
        for (command, calls, ns) in [(get, 3, 3_000), (get, 1, 5_000), (set, 2, 1 << 40)] {
            let bucket = counters.took(calls, ns);
            counters.ran(command, calls, ns, bucket);
        }
        let stats = counters.command(get);
        assert_eq!((stats.calls, stats.took_ns), (4, 8_000));
        assert_eq!(stats.histogram(), [(1, 3), (8, 4)]);
        assert_eq!(counters.command(set).histogram(), [(1 << 23, 2)]);
        assert_eq!(stats.since(stats), CommandStats::default());
    }
}
