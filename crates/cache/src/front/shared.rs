//! What all threads of a server share: its settings, the cache, the counters, the clients.

use super::clients::Clients;
use super::commands::CommandId;
use super::counters::{CommandStats, Count, Counters};
use super::errors::ErrorCounts;
use super::jobs::Jobs;
use super::latency::LatencyLog;
use super::listen::SocketPaths;
use super::listing::MemcachedClients;
use super::monitor::Monitors;
use super::pause::PauseOrder;
use super::scripts::ScriptStore;
use super::slowlog::SlowLog;
use super::tunables::Tunables;
use super::watch::Watchers;
use crate::cache::{Cache, DATABASES_MAX, Millis, Stats};
use crate::clock::{Clock, Times, has_passed};
use crate::constants::{
    ADDRESS_SHARE, EVICTED_IDLE_MS_MIN, HANDSHAKE_MS_MAX, HELD_BYTES_MAX, HELD_BYTES_MIN,
    HELD_COMMANDS, HELD_SHARE, INPUT_BYTES_MAX, KEPT_STALL_MS_MAX, LONG_THREADS, SCRIPT_MS_MAX,
    STALL_MS_MAX,
};
use crate::herd::HerdCounters;
use rackpool_fabric::addresses::Addresses;
use rackpool_mem::event::WakeEvent;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a unit of the cache's memory.
pub const UNIT_BYTES: u64 = 64 << 10;

/// Smaller steps are the noise between two readings of two clocks, milliseconds.
const WALL_STEP_MS_MIN: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached: text, meta and binary, told apart by the first byte.
    Memcached,
    /// Redis: RESP2, and RESP3 after `HELLO 3`.
    Resp,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub threads: usize,
    /// Connections at once, of both protocols together.
    pub connections_max: usize,
    /// A client that is silent for so long is disconnected; 0 for never.
    pub idle_ms: u64,
    /// A client that takes nothing of its answers, or sends nothing of a value that it began, for
    /// so long is disconnected, milliseconds.
    pub stall_ms: u64,
    /// Such a time for clients with answers that keep too much of the cache's memory, milliseconds.
    pub kept_stall_ms: u64,
    /// Such a time for the handshake of TLS and the password together, milliseconds.
    pub handshake_ms: u64,
    /// If all connections are in use, one that was idle for so long is closed for a new one,
    /// milliseconds.
    pub evicted_idle_ms: u64,
    /// Connections of one address; `None`: as many as there may be of one of this host, a share of
    /// them of others.
    pub address_max: Option<usize>,
    /// Memory of all connections together at most, bytes, beside the cache's.
    pub held_bytes_max: u64,
    /// The password of RESP's `AUTH`, for the user `default`.
    pub password: Option<String>,
    /// Users and passwords of memcached's text protocol.
    pub users: Vec<(String, String)>,
    /// Memory of the cache, bytes: what `maxmemory` and `limit_maxbytes` say.
    pub memory_bytes: u64,
    pub value_bytes_max: u64,
    /// Databases of RESP, at most [`crate::cache::DATABASES_MAX`].
    pub databases: u8,
    pub policy: String,
    /// A command that takes as long, or longer, is remembered, microseconds.
    pub slow_us: u64,
    /// memcached's `shutdown` has the program that runs the server end it.
    pub allows_shutdown: bool,
    /// A script that runs for longer is stopped, milliseconds.
    pub script_ms: u64,
    /// The cache's memory is taken from the system at the start, by a thread of its own beside
    /// those that serve.
    pub populates: bool,
    /// What the time is; that of a cache's file goes on.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 1,
            connections_max: 10_000,
            idle_ms: 0,
            stall_ms: STALL_MS_MAX,
            kept_stall_ms: KEPT_STALL_MS_MAX,
            handshake_ms: HANDSHAKE_MS_MAX,
            evicted_idle_ms: EVICTED_IDLE_MS_MIN,
            address_max: None,
            held_bytes_max: HELD_BYTES_MAX,
            password: None,
            users: Vec::new(),
            memory_bytes: 64 << 20,
            value_bytes_max: 1 << 20,
            databases: DATABASES_MAX as u8,
            policy: "default".into(),
            slow_us: 10_000,
            allows_shutdown: false,
            script_ms: SCRIPT_MS_MAX,
            populates: false,
            clock: Clock::system(),
        }
    }
}

impl Settings {
    /// The memory limit of all connections for a cache of this size.
    pub fn held_bytes_for(memory_bytes: u64) -> u64 {
        (memory_bytes / HELD_SHARE).clamp(HELD_BYTES_MIN, HELD_BYTES_MAX)
    }

    /// Longest command, bytes, long streamed values excepted.
    pub fn input_bytes_max(&self) -> usize {
        usize::try_from(self.held_bytes_max / HELD_COMMANDS)
            .map_or(INPUT_BYTES_MAX, |share| share.min(INPUT_BYTES_MAX))
    }

    /// Connections of one address where there may be so many of all.
    pub fn address_max(&self, ip: IpAddr, connections_max: u64) -> usize {
        let share = (connections_max as usize / ADDRESS_SHARE).max(1);
        let usual = if ip.to_canonical().is_loopback() { usize::MAX } else { share };
        self.address_max.unwrap_or(usual)
    }
}

pub struct Shared {
    pub cache: Cache,
    pub settings: Settings,
    /// What holds now of those settings that can be changed.
    pub tunables: Tunables,
    /// One for each thread, one for the thread that accepts, one for each of `Jobs`.
    pub counters: Vec<Counters>,
    pub jobs: Jobs,
    pub errors: ErrorCounts,
    pub scripts: ScriptStore,
    slow: Mutex<SlowLog>,
    latency: Mutex<LatencyLog>,
    /// Addresses, for `INFO` and `stats`.
    pub addrs: Mutex<(Option<SocketAddr>, Option<SocketAddr>)>,
    pub sockets: SocketPaths,
    /// When the server started, monotonic milliseconds and since the epoch.
    pub started: (u64, Millis),
    /// A `flush_all` that is due later, as an expiry; 0 for none.
    pub flush_at: AtomicU64,
    pub next_client: AtomicU64,
    pub clients: Clients,
    pub memcached_clients: MemcachedClients,
    pub watch: Arc<Watchers>,
    pub verbosity: AtomicU32,
    /// Notified when a client has asked for the server's end; see [`super::Server::end_event`].
    pub end: OnceLock<Arc<WakeEvent>>,
    pub monitors: Monitors,
    pub pause: PauseOrder,
    pub waker: OnceLock<Waker>,
    /// 40 hexadecimal digits that no other run has; none where the system gives no random ones.
    pub run_id: String,
    /// Most memory of the cache that was in use, bytes.
    pub used_bytes_max: AtomicU64,
    pub addresses: Arc<Addresses>,
    /// Memory of all connections, bytes, beside the cache's.
    pub held_bytes: AtomicU64,
    pub stopping: AtomicBool,
    /// Why, if it was not stopped on purpose.
    pub failure: Mutex<Option<(&'static str, String)>>,
    /// What HERD's listener counts, if it is open.
    pub herd: OnceLock<Vec<Arc<HerdCounters>>>,
    pub baseline: Mutex<[u64; Count::COUNT]>,
    /// By command; empty before the first reset.
    command_baseline: Mutex<Vec<CommandStats>>,
    pub cache_baseline: Mutex<Stats>,
    pub rate: Mutex<Rate>,
}

pub type Waker = Box<dyn Fn(usize) + Send + Sync>;

/// What came and went each second between the last two looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    pub commands: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// When that was, and all of it by then.
    seen: (Millis, [u64; 3]),
}

fn run_id() -> String {
    let uuid = || std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits = [uuid(), uuid()].concat();
    digits.chars().filter(char::is_ascii_hexdigit).take(40).collect()
}

impl Shared {
    /// What a server shares that serves this cache; `started`: monotonic milliseconds, and now.
    pub fn new(cache: Cache, settings: Settings, started: (u64, Millis)) -> Self {
        Self {
            counters: (0..settings.threads.max(1) + 1 + LONG_THREADS)
                .map(|_| Counters::default())
                .collect(),
            jobs: Jobs::default(),
            scripts: ScriptStore::default(),
            cache,
            tunables: Tunables::of(&settings),
            settings,
            errors: ErrorCounts::default(),
            slow: Mutex::default(),
            latency: Mutex::default(),
            addrs: Mutex::default(),
            sockets: SocketPaths::default(),
            started,
            flush_at: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            clients: Clients::default(),
            memcached_clients: MemcachedClients::default(),
            watch: Arc::default(),
            verbosity: AtomicU32::new(0),
            end: OnceLock::new(),
            monitors: Monitors::default(),
            pause: PauseOrder::default(),
            waker: OnceLock::new(),
            run_id: run_id(),
            used_bytes_max: AtomicU64::new(0),
            addresses: Arc::default(),
            held_bytes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            failure: Mutex::default(),
            herd: OnceLock::new(),
            baseline: Mutex::new([0; Count::COUNT]),
            command_baseline: Mutex::default(),
            cache_baseline: Mutex::default(),
            rate: Mutex::default(),
        }
    }

    pub fn count(&self, count: Count) -> u64 {
        let all: u64 = self.counters.iter().map(|counters| counters.get(count)).sum();
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        all.wrapping_sub(baseline[count as usize])
    }

    fn counted(&self, command: CommandId) -> CommandStats {
        let counted = self.counters.iter().map(|counters| counters.command(command));
        counted.fold(CommandStats::default(), CommandStats::plus)
    }

    /// What was counted of each command of Redis since the last reset.
    pub fn command_stats(&self) -> impl Iterator<Item = (&'static str, CommandStats)> {
        let baseline = self.command_baseline.lock().unwrap_or_else(PoisonError::into_inner);
        let baseline = baseline.clone();
        CommandId::all().map(move |command| {
            let base = baseline.get(command.index()).copied().unwrap_or_default();
            (command.command().name, self.counted(command).since(base))
        })
    }

    /// Commands of RESP since the last reset, those among them that are not known.
    pub fn resp_commands(&self) -> u64 {
        let known = self.command_stats().map(|(_, stats)| stats.calls + stats.rejected);
        known.sum::<u64>() + self.count(Count::RespUnknown)
    }

    pub fn reset_counts(&self) {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, base) in baseline.iter_mut().enumerate() {
            *base = self.counters.iter().map(|counters| counters.at(index)).sum();
        }
        let commands = CommandId::all().map(|command| self.counted(command)).collect();
        *self.command_baseline.lock().unwrap_or_else(PoisonError::into_inner) = commands;
        self.watch.forget_prefixes();
        self.errors.reset();
        let counted = self.cache.stats();
        *self.cache_baseline.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    }

    /// What the cache has and has counted since the last reset.
    pub fn cache_stats(&self) -> Stats {
        let all = self.cache.stats();
        let base = *self.cache_baseline.lock().unwrap_or_else(PoisonError::into_inner);
        Stats {
            hits: all.hits.saturating_sub(base.hits),
            misses: all.misses.saturating_sub(base.misses),
            sets: all.sets.saturating_sub(base.sets),
            removes: all.removes.saturating_sub(base.removes),
            evictions: all.evictions.saturating_sub(base.evictions),
            index_evictions: all.index_evictions.saturating_sub(base.index_evictions),
            expired: all.expired.saturating_sub(base.expired),
            ..all
        }
    }

    /// Looks what came and went since the last time, and how much memory is in use.
    pub fn measure(&self, now: Millis) {
        let sum = |count| self.counters.iter().map(|counters| counters.get(count)).sum::<u64>();
        let seen = [Count::Commands, Count::BytesRead, Count::BytesWritten].map(sum);
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = std::mem::replace(&mut rate.seen, (now, seen));
        let ms = now.saturating_sub(then).max(1);
        let each_second = |index: usize| (seen[index] - before[index]) * 1000 / ms;
        rate.commands = each_second(0);
        (rate.bytes_read, rate.bytes_written) = (each_second(1), each_second(2));
        drop(rate);
        self.used_bytes(&self.cache.stats());
    }

    /// Memory of the cache that is in use, bytes, and the most that ever was at a look.
    pub fn used_bytes(&self, cache: &Stats) -> (u64, u64) {
        let used = (cache.units - cache.free_units) * UNIT_BYTES;
        // Relaxed: a number by itself.
        let before = self.used_bytes_max.fetch_max(used, Ordering::Relaxed);
        (used, before.max(used))
    }

    /// Has a serving thread look for what is to be done; it may not have begun yet.
    pub fn wake(&self, thread: usize) {
        if let Some(wake) = self.waker.get() {
            wake(thread);
        }
    }

    pub fn wake_all(&self) {
        (0..self.settings.threads.max(1)).for_each(|thread| self.wake(thread));
    }

    pub fn latency(&self) -> MutexGuard<'_, LatencyLog> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the program that runs the server end it.
    pub fn ask_for_end(&self) {
        if let Some(end) = self.end.get() {
            end.notify();
        }
    }

    pub fn slow(&self) -> MutexGuard<'_, SlowLog> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn connections(&self) -> u64 {
        let sum = |count| self.counters.iter().map(|counters| counters.get(count)).sum::<u64>();
        sum(Count::Accepted).saturating_sub(sum(Count::Closed))
    }

    /// The limit of the cache's memory as it was set, bytes: it may be less than what holds.
    pub fn maxmemory(&self) -> u64 {
        self.tunables.memory_asked().unwrap_or_else(|| self.cache.memory_limit())
    }

    /// Whether the cache was limited to less than it needs empty: what may need memory is refused,
    /// as by Redis.
    pub fn is_over_maxmemory(&self) -> bool {
        self.tunables.memory_asked().is_some()
    }

    /// The wall clock at a time of the items' clock.
    pub fn wall(&self, now: Millis) -> Millis {
        now.saturating_add_signed(self.cache.wall_ahead())
    }

    /// Looks at the clocks: the items' time. The wall clock may have been set since.
    pub fn look_at_clock(&self) -> Millis {
        let clock = &self.settings.clock;
        let (now, wall) = (clock.now(), clock.wall());
        let ahead = wall.wrapping_sub(now) as i64;
        if ahead.abs_diff(self.cache.wall_ahead()) >= WALL_STEP_MS_MIN {
            self.cache.set_wall(ahead);
        }
        now
    }

    /// Empties the cache if a delayed flush is due; whether one was.
    pub fn flush_if_due(&self, now: Millis) -> bool {
        // Relaxed: a thread that sees the order late flushes late, by one wake-up.
        let due = self.flush_at.load(Ordering::Relaxed);
        if due != 0 && has_passed(due, Times { now, wall: self.wall(now) }) {
            // Relaxed: only one thread takes the order; the cache has locks of its own.
            let taken =
                self.flush_at.compare_exchange(due, 0, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                self.cache.flush_database(0, now);
                return true;
            }
        }
        false
    }
}
