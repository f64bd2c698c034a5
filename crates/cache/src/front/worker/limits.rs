//! Which connections a worker ends though they go on: those that are silent or slow, that hold
//! memory or places which others need. Called by `worker.rs`, at most once a second or where
//! something has run out.

use super::{AcceptedConnection, Connection, Count, Output, Worker};
use crate::cache::Millis;
use crate::constants::{
    EVICTED_AT_ONCE, EVICTION_PAUSE_MS, KEPT_SHARE_MAX, LINGER_MS_MAX, READ_BYTES,
};
use crate::front::resp::Args;
use rackpool_fabric::addresses::ConnectionPermit;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Worker<'_> {
    /// Ends a connection that is silent, so that a new one can be let in. Not one of an address
    /// with fewer connections than the new one's.
    pub(super) fn make_room(&mut self, accepted: &AcceptedConnection) -> bool {
        let count =
            |place: &Option<ConnectionPermit>| place.as_ref().map_or(0, ConnectionPermit::count);
        let (now, newcomers) = (self.core.now, count(&accepted.place));
        if self.silent.is_empty() && now >= self.next_search {
            self.find_silent();
            self.next_search = if self.silent.is_empty() { now + EVICTION_PAUSE_MS } else { now };
        }
        while let Some((active, index, id)) = self.silent.pop() {
            let Some(Some(connection)) = self.connections.get(index) else { continue };
            let is_still = connection.active == active && connection.client().id == id;
            if is_still && count(&connection.place) >= newcomers {
                self.core.count(Count::IdleEvictions);
                self.end(index);
                return true;
            }
        }
        false
    }

    /// Finds the connections that are silent: those first that never sent a command, then those of
    /// the addresses with the most, then those that were silent for the longest; last those of
    /// clients that asked for it.
    fn find_silent(&mut self) {
        let before = self.core.now.saturating_sub(self.core.shared.settings.evicted_idle_ms);
        let connections = self.connections.iter().enumerate();
        let silent = connections.filter_map(|(index, connection)| {
            let one = connection.as_deref().filter(|one| one.active < before)?;
            let many = one.place.as_ref().map_or(0, ConnectionPermit::count);
            let order = (one.client().goes_last, one.has_spoken, Reverse(many));
            Some((order, (one.active, index, one.client().id)))
        });
        let mut silent: Vec<_> = silent.collect();
        silent.sort_unstable();
        silent.truncate(EVICTED_AT_ONCE);
        self.silent = silent.into_iter().rev().map(|(_, found)| found).collect();
    }

    /// Ends connections that make the server hold something, until all threads together hold what
    /// they may: those first that never sent a command, then those without one for the longest.
    pub(super) fn hold_less(&mut self) {
        let shared = Arc::clone(&self.core.shared);
        // Relaxed: a sum without order.
        let is_much = || shared.held_bytes.load(Ordering::Relaxed) > shared.settings.held_bytes_max;
        if !is_much() {
            return;
        }
        let connections = self.connections.iter().enumerate();
        let holders = connections.filter_map(|(index, connection)| {
            let one = connection.as_deref().filter(|one| one.held_bytes() > 0)?;
            let order = (one.client().goes_last, one.has_spoken, one.progress());
            Some((order, Reverse(one.held_bytes()), index))
        });
        let mut holders: Vec<_> = holders.collect();
        holders.sort_unstable();
        // If none is left it is another thread's turn to end some.
        for (.., index) in holders {
            if !is_much() {
                return;
            }
            self.core.count(Count::HeldTooMuch);
            self.end(index);
        }
    }

    /// Ends connections that were silent, or that did not go on with what keeps memory, for too
    /// long.
    pub(super) fn sweep(&mut self) {
        let shared = Arc::clone(&self.core.shared);
        if self.core.thread == 0 {
            shared.measure(self.core.now);
        }
        let (now, settings) = (self.core.now, &shared.settings);
        let (idle_ms, output_limit) = (shared.tunables.idle_ms(), shared.tunables.output_limit());
        let mut kept_bytes = 0;
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let silent = now.saturating_sub(connection.active);
            let has_stalled = silent > settings.stall_ms;
            if connection.is_lingering() && silent > LINGER_MS_MAX {
                self.end(index);
                continue;
            }
            let why = if connection.waits_for(&self.core) {
                continue;
            } else if has_stalled && connection.is_held_up()
                || connection.is_over(output_limit, now)
            {
                Count::SlowReaders
            } else if connection.is_late(settings.stall_ms, now) {
                Count::SlowWriters
            } else if connection.is_unknown_for(settings.handshake_ms, now) {
                Count::HandshakeTimeouts
            } else if idle_ms > 0 && silent > idle_ms && connection.client().monitor.is_none() {
                Count::IdleKicks
            } else {
                kept_bytes += connection.kept_bytes();
                continue;
            };
            self.core.count(why);
            self.end(index);
        }
        let most = settings.memory_bytes / KEPT_SHARE_MAX / settings.threads.max(1) as u64;
        if kept_bytes > most {
            self.give_back(kept_bytes - most, now.saturating_sub(settings.kept_stall_ms));
        }
        self.shrink();
    }

    /// Ends connections that keep `bytes` of the cache from being used for anything else: those
    /// with clients that took nothing of them since `before`, the longest silent ones first.
    fn give_back(&mut self, mut bytes: u64, before: Millis) {
        let keeps = |connection: &Connection| {
            (connection.active < before).then(|| connection.kept_bytes()).filter(|kept| *kept > 0)
        };
        let mut silent: Vec<(Millis, usize, u64)> = (0..self.connections.len())
            .filter_map(|index| {
                let connection = self.connections[index].as_deref()?;
                Some((connection.active, index, keeps(connection)?))
            })
            .collect();
        silent.sort_unstable();
        for (_, index, kept) in silent {
            if bytes == 0 {
                return;
            }
            bytes = bytes.saturating_sub(kept);
            self.core.count(Count::SlowReaders);
            self.end(index);
        }
    }

    /// Gives memory of connections back that are gone.
    fn shrink(&mut self) {
        while let Some(None) = self.connections.last() {
            self.connections.pop();
        }
        let count = self.connections.len() as u32;
        self.free.retain(|index| *index < count);
        if self.connections.capacity() > 64 + 2 * self.connections.len() {
            self.connections.shrink_to(2 * self.connections.len());
            self.free.shrink_to_fit();
        }
        if self.core.out.bytes.capacity() > 4 * READ_BYTES {
            self.core.out = Output::default();
        }
        if self.core.args.held_bytes() > READ_BYTES as u64 {
            self.core.args = Args::default();
        }
        self.core.scratch.clear();
        self.core.scratch.shrink_to(READ_BYTES);
    }
}
