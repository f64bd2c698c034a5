//! Every limit of the cache's servers, each with its reason.

/// Longest key of the memcached protocols, bytes: clients rely on it.
pub const MEMCACHED_KEY_BYTES_MAX: usize = 250;
/// Highest level of memcached's `verbosity`.
pub const VERBOSITY_MAX: u32 = 2;
/// How long a thread with watchers sleeps at most before it sends them what waits, milliseconds.
pub const WATCH_MS: u64 = 20;
/// Longest line of a memcached command without its end, bytes; look-ups excepted.
pub const LINE_BYTES_MAX: usize = 2048;
/// Longest line of a memcached look-up, bytes: 4000 of the longest keys.
pub const LINE_GET_BYTES_MAX: usize = 1 << 20;
/// Words of one RESP command.
pub const RESP_ARGS_MAX: i64 = 1 << 20;
/// Longest word of a RESP command, bytes; what an item may hold is less.
pub const RESP_BULK_BYTES_MAX: i64 = 512 << 20;
/// Longest line of RESP, bytes: typed commands, numbers.
pub const RESP_LINE_BYTES_MAX: usize = 64 << 10;
/// Words of a RESP command of a client that has not said its password.
pub const RESP_UNKNOWN_ARGS_MAX: i64 = 10;
/// Longest word of such a client, bytes.
pub const RESP_UNKNOWN_BULK_BYTES_MAX: i64 = 16 << 10;
/// From this length on a value is written into the cache as it arrives, bytes; shorter ones are
/// complete in the buffer of one read more often than not.
pub const STREAM_BYTES_MIN: u64 = 64 << 10;
/// From this length on a value is sent from the cache's memory, bytes; below, a copy is cheaper
/// than a pin and a piece of its own in the system call.
pub const PIN_BYTES_MIN: u64 = 32 << 10;
/// Answers that wait for a client, bytes, above which its further commands wait as well: what a
/// system call takes in some 50 µs.
pub const OUTPUT_SOFT_BYTES: u64 = 128 << 10;
/// Look-ups that are gathered and done at once. Between two such batches it is seen whether the
/// client takes its answers: beside [`OUTPUT_SOFT_BYTES`] those of one batch may wait for it.
pub const BATCH_KEYS_MAX: usize = 64;
/// Bytes that one read brings at most.
pub const READ_BYTES: usize = 128 << 10;
/// Reads of one connection before others have their turn.
pub const READS_MAX: usize = 8;
/// Busy-polls of a serving thread before it sleeps: some 20 µs, about what a sleep and its wake-up
/// cost on a virtual machine, so that polling in vain at most doubles that cost.
pub const BUSY_POLLS: u32 = 64;
/// How long a connection is served before others have their turn, nanoseconds: some hundred
/// look-ups. A command that takes longer goes on in its next turn.
pub const TURN_NS: u64 = 250_000;
/// How long if others wait already: as long as few look-ups of theirs take by way of the network.
pub const SHORT_TURN_NS: u64 = 40_000;
/// Steps after which it is looked whether a turn is over, where nothing else looks at the clock.
pub const TURN_STEPS: u32 = 64;
/// Bytes of one command, long streamed values excepted.
pub const INPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes that all connections together may make a server hold, in commands that are not whole and
/// answers that are not read, at most; then the one ends that has made it hold some the longest.
/// Values that are sent from the cache's memory are not among them.
pub const HELD_BYTES_MAX: u64 = 512 << 20;
/// One part in so many of the cache's memory is what connections may make a server hold, if that is
/// less than [`HELD_BYTES_MAX`] …
pub const HELD_SHARE: u64 = 4;
/// … and no less than this: some hundred reads.
pub const HELD_BYTES_MIN: u64 = 16 << 20;
/// One command may be one part in so many of what all may make the server hold.
pub const HELD_COMMANDS: u64 = 2;
/// A client that reads nothing of its answers, or sends nothing of a value that it began, for so
/// long is disconnected, milliseconds; so is one that does not go on with a command …
pub const STALL_MS_MAX: u64 = 30_000;
/// … or goes on with it by fewer bytes each millisecond.
pub const RECEIVED_PER_MS_MIN: u64 = 8;
/// A client that has not ended its handshake of TLS, or not said its password, after so long is
/// disconnected, milliseconds.
pub const HANDSHAKE_MS_MAX: u64 = 10_000;
/// Where all connections are in use a client that was silent for so long gives its place to a new
/// one, milliseconds.
pub const EVICTED_IDLE_MS_MIN: u64 = 5_000;
/// Clients that are found at once to give up their places. Where none is, the next search is after
/// [`EVICTION_PAUSE_MS`].
pub const EVICTED_AT_ONCE: usize = 64;
/// See there: a look at all connections of a thread takes a millisecond or so.
pub const EVICTION_PAUSE_MS: u64 = 100;
/// One part in so many of all connections may be those of one address of another host.
pub const ADDRESS_SHARE: usize = 2;
/// How long a client that was told that its conversation ends is waited for, until it ends its side
/// as well, milliseconds.
pub const LINGER_MS_MAX: u64 = 5_000;
/// One part in so many of the cache's memory, divided among the threads, may wait to be sent to
/// clients, and cannot be used for anything else meanwhile. If it is more …
pub const KEPT_SHARE_MAX: u64 = 2;
/// … those that took nothing for so long are disconnected, milliseconds.
pub const KEPT_STALL_MS_MAX: u64 = 5_000;
/// A connection on which nothing comes is probed after this long, seconds: a cache has many that
/// are idle, and what a client that is gone without a word keeps is a descriptor …
pub const KEEPALIVE_IDLE_S: u64 = 60;
/// … this often, seconds …
pub const KEEPALIVE_INTERVAL_S: u64 = 10;
/// … and ends after so many probes without an answer: a minute and a half in all.
pub const KEEPALIVE_PROBES: u32 = 3;
/// Connections that are accepted in a row.
pub const ACCEPTS_MAX: usize = 64;
/// Commands that wait for `EXEC`, of one client: more than programs send that store a whole data
/// set in one transaction …
pub const QUEUED_MAX: usize = 128 << 10;
/// … and their bytes, less for a small cache: half of what one command may have.
pub const QUEUED_BYTES_MAX: usize = 32 << 20;
/// Keys that one client watches: `EXEC` holds and looks at each.
pub const WATCHED_MAX: usize = 1024;
/// A transaction of more commands is executed by the thread for what takes long: others on the
/// thread of its connection would wait for it. So is one …
pub const EXEC_AT_ONCE_MAX: usize = 128;
pub const EXEC_AT_ONCE_BYTES_MAX: usize = 64 << 10;
/// Clients that may `MONITOR` at once: each command is told to all of them.
pub const MONITORS_MAX: usize = 16;
/// Bytes that wait for one of them, at most; one that takes them more slowly than they come is
/// disconnected.
pub const MONITOR_QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a word that it is told.
pub const MONITOR_WORD_BYTES_MAX: usize = 4096;
/// Kinds of errors that are counted, each by itself …
pub const ERROR_KINDS_MAX: usize = 128;
/// … and bytes of a kind.
pub const ERROR_KIND_BYTES_MAX: usize = 64;
/// Slow commands that are remembered, at most, whatever `slowlog-max-len` is set to: some 4 KiB
/// each.
pub const SLOW_ENTRIES_MAX: usize = 10_000;
/// Samples of an event of latency that are remembered: as many as in Redis.
pub const LATENCY_SAMPLES: usize = 160;
/// Items that `INFO keyspace` looks at: where there are more, what it says of expiries is estimated
/// from them. Some 1 ms.
pub const CENSUS_ITEMS: u64 = 8192;
/// A script that runs for longer is stopped, milliseconds, if nothing else is asked for: after so
/// long Redis begins to tell others that it is busy.
pub const SCRIPT_MS_MAX: u64 = 5000;
/// Memory that one script may take of Lua's, and that its answer, or one command of it, may take
/// beside it, bytes.
pub const SCRIPT_BYTES_MAX: usize = 64 << 20;
/// Where a script has taken more than so many bytes, they are given back when it ends.
pub const SCRIPT_KEPT_BYTES_MAX: usize = 8 << 20;
/// Stack of scripts, bytes, taken as it is used: 200 calls from C to Lua and back, which is Lua's
/// limit, and 1000 tables within one another have room in it.
pub const SCRIPT_STACK_BYTES: usize = 8 << 20;
/// Threads for what takes long, which sleep as a rule: scripts of 5 s on all but one of them leave
/// one for the transactions and scripts of others.
pub const LONG_THREADS: usize = 4;
/// Items of one command that come back from behind memory; what more there is is a miss.
pub const FETCH_KEYS_MAX: usize = 128;
/// How often those of one command are asked for, of a store.
pub const FETCH_TRIES_MAX: u32 = 16;
