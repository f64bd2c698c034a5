//! What watchers are told (`watch`), and what is counted by prefixes of keys (`stats detail`): of
//! memcached's protocols alone. In: what commands did, noted by each thread in an [`EventLog`] of
//! its own and published when the bytes of a read are done. Out: lines for each watcher in a
//! bounded buffer, from which the thread that serves its connection sends when the client takes
//! them. What does not fit is left out and counted: no thread ever waits for a watcher.
//!
//! A thread looks at each wake-up whether anything is watched; if not, nothing is noted.

use super::bytes::push_uri;
use super::clients::ClientInfo;
use super::outcome::{StoreOutcome, Verb};
use crate::cache::{Cache, EvictedItem};
use crate::clock::{Times, seconds_left};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Watchers at once, as in memcached.
const WATCHERS_MAX: usize = 20;
/// Lines that wait for a watcher, bytes.
pub const LINES_BYTES_MAX: usize = 256 << 10;
/// Events that a thread notes of one read.
const EVENTS_MAX: usize = 4096;
/// Prefixes that are counted; keys of others are not.
const PREFIXES_MAX: usize = 2048;
/// What ends a prefix.
pub const PREFIX_END: u8 = b':';

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched(u32);

impl Watched {
    pub const FETCHERS: Watched = Watched(1 << 0);
    pub const MUTATIONS: Watched = Watched(1 << 1);
    pub const DELETIONS: Watched = Watched(1 << 2);
    pub const CONNECTIONS: Watched = Watched(1 << 3);
    pub const EVICTIONS: Watched = Watched(1 << 5);
    /// Prefixes of keys are counted.
    const PREFIXES: Watched = Watched(1 << 4);
    const COMMANDS: Watched =
        Watched(Self::FETCHERS.0 | Self::MUTATIONS.0 | Self::DELETIONS.0 | Self::PREFIXES.0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether some of these are among them.
    #[inline]
    fn has(self, others: Watched) -> bool {
        self.0 & others.0 != 0
    }

    pub fn with(self, others: Watched) -> Watched {
        Watched(self.0 | others.0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Debug)]
struct Event {
    kind: Watched,
    /// What is counted, and for which prefix.
    counted: Option<(Vec<u8>, PrefixCounts)>,
    /// What watchers are told, from the type on; empty: nothing.
    text: Vec<u8>,
}

/// What one thread has noted and not published.
#[derive(Debug, Default)]
pub struct EventLog {
    watched: Watched,
    /// The wall clock at the last wake-up, milliseconds since the epoch.
    wall: u64,
    events: Vec<Event>,
    dropped: u64,
}

impl EventLog {
    /// What is watched from now on, and the wall clock.
    pub fn begin(&mut self, watched: Watched, wall: u64) {
        (self.watched, self.wall) = (watched, wall);
    }

    /// Whether commands note what they do.
    #[inline]
    pub fn watches_commands(&self) -> bool {
        self.watched.has(Watched::COMMANDS)
    }

    pub fn watches_evictions(&self) -> bool {
        self.watched.has(Watched::EVICTIONS)
    }

    pub fn watches_connections(&self) -> bool {
        self.watched.has(Watched::CONNECTIONS)
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// A look-up, and the value's length if there was one.
    #[cold]
    pub fn fetched(&mut self, key: &[u8], bytes: Option<u64>) {
        let (hits, gets) = (u64::from(bytes.is_some()), 1);
        let counts = PrefixCounts { gets, hits, ..PrefixCounts::default() };
        let status = if bytes.is_some() { "found" } else { "not_found" };
        let class = u8::from(bytes.is_some());
        let bytes = bytes.unwrap_or(0);
        self.note(Watched::FETCHERS, key, counts, |text| {
            text.extend_from_slice(b"type=item_get key=");
            push_uri(text, key);
            write!(text, " status={status} clsid={class} size={bytes}")
        });
    }

    /// A store of so many bytes that end in so many seconds (0 = never), and how it went.
    #[cold]
    pub fn stored(
        &mut self,
        key: &[u8],
        verb: Verb,
        outcome: StoreOutcome,
        ttl_s: i64,
        bytes: u64,
    ) {
        let counts = PrefixCounts { sets: 1, ..PrefixCounts::default() };
        let command = match verb {
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas(_) => "cas",
        };
        let status = match outcome {
            StoreOutcome::Stored(_) => "stored",
            StoreOutcome::NotStored | StoreOutcome::NotNumber => "not_stored",
            StoreOutcome::Exists => "exists",
            StoreOutcome::NotFound => "not_found",
            StoreOutcome::TooLarge => "too_large",
            StoreOutcome::NoMemory => "no_memory",
        };
        let class = u8::from(status == "stored");
        self.note(Watched::MUTATIONS, key, counts, |text| {
            text.extend_from_slice(b"type=item_store key=");
            push_uri(text, key);
            let ttl_s = ttl_s.max(0);
            write!(text, " status={status} cmd={command} ttl={ttl_s} clsid={class} size={bytes}")
        });
    }

    /// A removal by this command, and the value's length if there was one.
    #[cold]
    pub fn deleted(&mut self, key: &[u8], command: &str, bytes: Option<u64>) {
        let counts = PrefixCounts { deletes: 1, ..PrefixCounts::default() };
        self.note(Watched::DELETIONS, key, counts, |text| {
            let Some(bytes) = bytes else { return Ok(()) };
            text.extend_from_slice(b"type=deleted key=");
            push_uri(text, key);
            write!(text, " cmd={command} clsid=1 size={bytes}")
        });
    }

    /// A connection came (`conn_new`) or went (`conn_close`).
    #[cold]
    pub fn connection(&mut self, what: &str, client: &ClientInfo) {
        // Addresses of the sixth version stand in brackets.
        let (ip, port) = client.addr.rsplit_once(':').unwrap_or(("unix", "0"));
        let ip = ip.trim_matches(['[', ']']);
        let transport = if client.addr.is_empty() { "local" } else { "tcp" };
        self.note(Watched::CONNECTIONS, b"", PrefixCounts::default(), |text| {
            write!(text, "type={what} rip={ip} rport={port} transport={transport}")
        });
    }

    /// An item went for want of room.
    #[cold]
    pub fn evicted(&mut self, item: &EvictedItem, times: Times) {
        let EvictedItem { key, bytes, expires, idle_s, fetched } = item;
        let (fetched, ttl_s) = (if *fetched { "yes" } else { "no" }, seconds_left(*expires, times));
        self.note(Watched::EVICTIONS, b"", PrefixCounts::default(), |text| {
            text.extend_from_slice(b"type=eviction key=");
            push_uri(text, key);
            write!(text, " fetch={fetched} ttl={ttl_s} la={idle_s} clsid=1 size={bytes}")
        });
    }

    /// So many events were not noted.
    pub fn drop_events(&mut self, count: u64) {
        self.dropped += count;
    }

    fn note(
        &mut self,
        kind: Watched,
        key: &[u8],
        counts: PrefixCounts,
        tell: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
    ) {
        if self.events.len() >= EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        let prefix = self.watched.has(Watched::PREFIXES).then(|| memchr::memchr(PREFIX_END, key));
        let counted = prefix.flatten().map(|end| (key[..end].to_vec(), counts));
        let mut text = Vec::new();
        if self.watched.has(kind) {
            // Writing to a vector cannot fail.
            let _ = tell(&mut text);
        }
        if counted.is_some() || !text.is_empty() {
            self.events.push(Event { kind, counted, text });
        }
    }

    /// Hands on what was noted, all of it by this client; 0: by none.
    #[cold]
    pub fn publish(&mut self, watch: &Watchers, client: u64) {
        let mut state = watch.state();
        state.dropped += std::mem::take(&mut self.dropped);
        for event in self.events.drain(..) {
            state.tell(&event, self.wall, client);
        }
    }
}

/// All watchers of a server, and what was counted by prefix.
#[derive(Debug, Default)]
pub struct Watchers {
    watched: AtomicU32,
    /// Changes with the list of watchers.
    version: AtomicU64,
    state: Mutex<WatchState>,
}

#[derive(Debug, Default)]
struct WatchState {
    watchers: Vec<WatcherState>,
    next_id: u64,
    counts_prefixes: bool,
    prefixes: BTreeMap<Vec<u8>, PrefixCounts>,
    /// Lines that were made, by which they are numbered.
    written: u64,
    /// Events that were not noted.
    dropped: u64,
    /// Lines that found no room.
    skipped: u64,
}

#[derive(Debug)]
struct WatcherState {
    id: u64,
    wants: Watched,
    lines: Vec<u8>,
}

impl WatchState {
    fn tell(&mut self, event: &Event, wall: u64, client: u64) {
        if let Some((prefix, counts)) = &event.counted {
            self.count(prefix, *counts);
        }
        if event.text.is_empty() {
            return;
        }
        self.written += 1;
        let (gid, seconds, micros) = (self.written, wall / 1000, wall % 1000 * 1000);
        let mut line = format!("ts={seconds}.{micros:06} gid={gid} ").into_bytes();
        line.extend_from_slice(&event.text);
        if client != 0 {
            line.extend_from_slice(format!(" cfd={client}").as_bytes());
        }
        line.push(b'\n');
        for watcher in self.watchers.iter_mut().filter(|one| one.wants.has(event.kind)) {
            if watcher.lines.len() + line.len() <= LINES_BYTES_MAX {
                watcher.lines.extend_from_slice(&line);
            } else {
                self.skipped += 1;
            }
        }
    }

    fn count(&mut self, prefix: &[u8], counts: PrefixCounts) {
        if !self.counts_prefixes {
            return;
        }
        if !self.prefixes.contains_key(prefix) {
            if self.prefixes.len() >= PREFIXES_MAX {
                return;
            }
            self.prefixes.insert(prefix.to_vec(), PrefixCounts::default());
        }
        let Some(sum) = self.prefixes.get_mut(prefix) else { return };
        sum.gets += counts.gets;
        sum.hits += counts.hits;
        sum.sets += counts.sets;
        sum.deletes += counts.deletes;
    }

    fn watched(&self) -> Watched {
        let prefixes = if self.counts_prefixes { Watched::PREFIXES } else { Watched::default() };
        self.watchers.iter().fold(prefixes, |all, watcher| all.with(watcher.wants))
    }
}

impl Watchers {
    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the cache note evictions if they are watched, and only then.
    pub fn tell_cache(&self, cache: &Cache) {
        let state = self.state();
        // Under the lock, so that of two threads that do so the later one knows better.
        cache.watch_evictions(state.watched().has(Watched::EVICTIONS));
    }

    /// What any watcher wants, and `stats detail`.
    pub fn watched(&self) -> Watched {
        // Relaxed: a thread that sees it late notes what comes after its next wake-up.
        Watched(self.watched.load(Ordering::Relaxed))
    }

    /// Changes with the list of watchers.
    pub fn version(&self) -> u64 {
        // Relaxed: of a thread's own watchers it sees its own changes.
        self.version.load(Ordering::Relaxed)
    }

    fn changed(&self, state: &WatchState) {
        // Relaxed: see `watched` and `version`.
        self.watched.store(state.watched().0, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// A new watcher; `None` if there are as many as may be.
    pub fn add(watch: &Arc<Self>, wants: Watched) -> Option<Watcher> {
        let mut state = watch.state();
        if state.watchers.len() >= WATCHERS_MAX {
            return None;
        }
        state.next_id += 1;
        let id = state.next_id;
        state.watchers.push(WatcherState { id, wants, lines: Vec::new() });
        watch.changed(&state);
        drop(state);
        Some(Watcher { watch: Arc::clone(watch), id })
    }

    /// Begins to count by prefixes, or ends.
    pub fn count_prefixes(&self, counts: bool) {
        let mut state = self.state();
        state.counts_prefixes = counts;
        self.changed(&state);
    }

    pub fn counts_prefixes(&self) -> bool {
        self.state().counts_prefixes
    }

    pub fn forget_prefixes(&self) {
        self.state().prefixes.clear();
    }

    /// Appends what was counted of each prefix.
    pub fn push_prefixes(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in &self.state().prefixes {
            let PrefixCounts { gets, hits, sets, deletes } = counts;
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            // Writing to a vector cannot fail.
            let _ = write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
        }
    }

    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let state = self.state();
        [
            ("log_worker_dropped", state.dropped),
            ("log_worker_written", state.written),
            ("log_watcher_skipped", state.skipped),
            ("log_watchers", state.watchers.len() as u64),
        ]
    }
}

/// A connection's part of [`Watchers`]; it ends with this.
#[derive(Debug)]
pub struct Watcher {
    watch: Arc<Watchers>,
    id: u64,
}

impl Watcher {
    /// Appends the lines that wait.
    pub fn take_lines(&self, out: &mut Vec<u8>) {
        let mut state = self.watch.state();
        if let Some(own) = state.watchers.iter_mut().find(|one| one.id == self.id) {
            out.append(&mut own.lines);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.watch.state();
        state.watchers.retain(|one| one.id != self.id);
        self.watch.changed(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(watcher: &Watcher) -> String {
        let mut lines = Vec::new();
        watcher.take_lines(&mut lines);
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn watchers_are_told_what_they_asked_for_and_no_more_than_fits() {
        let watch = Arc::<Watchers>::default();
        let fetchers = Watchers::add(&watch, Watched::FETCHERS).unwrap();
        let all = Watchers::add(&watch, Watched::FETCHERS.with(Watched::DELETIONS)).unwrap();
        let mut log = EventLog::default();
        log.begin(watch.watched(), 1_700_000_000_123);
        assert!(log.watches_commands() && !log.watches_connections());
        log.fetched(b"a b", Some(5));
        log.deleted(b"a", "md", None);
        log.deleted(b"a", "md", Some(5));
        log.stored(b"a", Verb::Set, StoreOutcome::Stored(1), 0, 1);
        log.publish(&watch, 7);
        let fetched = "ts=1700000000.123000 gid=1 type=item_get key=a%20b status=found clsid=1 \
                       size=5 cfd=7\n";
        assert_eq!(lines(&fetchers), fetched);
        let deleted = "ts=1700000000.123000 gid=2 type=deleted key=a cmd=md clsid=1 size=5 cfd=7\n";
        assert_eq!(lines(&all), format!("{fetched}{deleted}"));
        drop(all);
        for _ in 0..1000 {
            (0..10).for_each(|_| log.fetched(b"absent", None));
            log.publish(&watch, 7);
        }
        assert!(lines(&fetchers).len() <= LINES_BYTES_MAX);
        let skipped = watch.counts().into_iter().find(|(name, _)| *name == "log_watcher_skipped");
        assert!(skipped.unwrap().1 > 0);
        (0..EVENTS_MAX + 5).for_each(|_| log.fetched(b"absent", None));
        log.publish(&watch, 7);
        assert_eq!(watch.counts()[0], ("log_worker_dropped", 5));
        drop(fetchers);
        assert!(watch.watched().is_none());
        let most: Vec<_> =
            (0..WATCHERS_MAX).map(|_| Watchers::add(&watch, Watched::FETCHERS)).collect();
        assert!(
            most.iter().all(Option::is_some) && Watchers::add(&watch, Watched::FETCHERS).is_none()
        );
    }

    #[test]
    fn prefixes_are_counted_up_to_their_limit() {
        let watch = Watchers::default();
        let mut log = EventLog::default();
        watch.count_prefixes(true);
        log.begin(watch.watched(), 0);
        log.fetched(b"user:1", Some(3));
        log.fetched(b"user:2", None);
        log.stored(b"user:2", Verb::Add, StoreOutcome::NotStored, 0, 1);
        log.deleted(b"page:x:y", "delete", None);
        log.fetched(b"none", None);
        log.publish(&watch, 1);
        let dump = || {
            let mut out = Vec::new();
            watch.push_prefixes(&mut out);
            String::from_utf8(out).unwrap()
        };
        let counted =
            "PREFIX page get 0 hit 0 set 0 del 1\r\nPREFIX user get 2 hit 1 set 1 del 0\r\n";
        assert_eq!(dump(), counted);
        for index in 0..PREFIXES_MAX + 10 {
            log.fetched(format!("{index}:").as_bytes(), None);
            log.publish(&watch, 1);
        }
        assert_eq!(dump().lines().count(), PREFIXES_MAX);
        watch.forget_prefixes();
        assert_eq!(dump(), "");
    }
}
