//! One thread's loop: sleeps until connections are ready, serves them, sends once for each. Owns
//! its connections for their whole life; new ones come through an [`Inbox`].

use super::clients::ClientInfo;
use super::connection::{Connection, NextInterest};
use super::core::{Core, Protocol};
use super::counters::Count;
use super::resp::Args;
use super::session::Session;
use super::tls::Channel;
use crate::cache::Millis;
use crate::constants::{
    BUSY_POLLS, EVICTED_AT_ONCE, EVICTION_PAUSE_MS, KEPT_SHARE_MAX, LINGER_MS_MAX, READ_BYTES,
};
use rackpool_hw::addresses::ConnectionPermit;
use rackpool_hw::event::{Interest, Poller, Readiness, WakeEvent};
use std::cmp::Reverse;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A client that was admitted.
pub struct AcceptedConnection {
    /// Its socket, which does not block.
    pub fd: OwnedFd,
    pub protocol: Protocol,
    pub addr: String,
    pub channel: Channel,
    /// The place of its address.
    pub place: Option<ConnectionPermit>,
    /// All connections are in use: it is let in if a silent one goes.
    pub is_too_many: bool,
}

impl AcceptedConnection {
    pub fn refuse(self) {
        let text: &[u8] = match self.protocol {
            Protocol::Memcached => b"ERROR Too many open connections\r\n",
            Protocol::Resp => b"-ERR max number of clients reached\r\n",
        };
        if self.channel.is_plain() {
            // A client that does not take it at once need not know why.
            let _ = rustix::io::write(&self.fd, text);
        }
    }
}

/// Where a worker finds its new clients.
pub struct Inbox {
    accepted: Mutex<Vec<AcceptedConnection>>,
    wake: WakeEvent,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { accepted: Mutex::default(), wake: WakeEvent::new()? })
    }

    pub fn push(&self, accepted: AcceptedConnection) {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(accepted);
        self.wake.notify();
    }

    pub fn wake(&self) {
        self.wake.notify();
    }
}

/// Token of the inbox; connections have those from 0 on.
const TOKEN_WAKE: u64 = u64::MAX;
/// How often connections are looked over.
const SWEEP_MS: u64 = 1000;
/// How far the wall clock has to be set, or to drift, before that is written to the cache's file,
/// ms.
const KEPT_STEP_MS_MIN: u64 = 100;
/// How long the end waits for clients that read what they were answered.
const FINISH_MAX: Duration = Duration::from_secs(1);

pub struct Worker<'i> {
    core: Core,
    inbox: &'i Inbox,
    poller: Poller,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Connections that were silent when they were looked for, the next to go last: when each was
    /// last active, its place, its client's number.
    silent: Vec<(Millis, usize, u64)>,
    /// When they may be looked for again.
    next_search: Millis,
    buffer: Vec<u8>,
}

impl<'i> Worker<'i> {
    /// A worker without connections.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new(core: Core, inbox: &'i Inbox) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&inbox.wake, TOKEN_WAKE, Interest::Read)?;
        let (connections, free) = (Vec::new(), Vec::new());
        let buffer = vec![0; READ_BYTES];
        let (silent, next_search) = (Vec::new(), 0);
        Ok(Self { core, inbox, poller, connections, free, silent, next_search, buffer })
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events: Vec<Readiness> = Vec::new();
        let mut kept_ahead = self.core.shared.cache.wall_ahead();
        let mut swept = self.core.now;
        // Relaxed: the flag carries no data, and the thread that sets it wakes us.
        while !self.core.shared.stopping.load(Ordering::Relaxed) {
            self.wait(&mut events)?;
            self.core.now = self.core.shared.look_at_clock();
            if self.core.shared.flush_if_due(self.core.now) {
                self.core.tidy_all();
            }
            for event in &events {
                match event.token {
                    TOKEN_WAKE => self.register(),
                    token => self.serve(token as usize, event),
                }
            }
            if self.core.now.abs_diff(swept) >= SWEEP_MS {
                swept = self.core.now;
                self.sweep();
                // Where nothing is put, nothing else gives memory of what has expired back.
                self.core.has_to_tidy = true;
                if self.core.thread == 0 {
                    kept_ahead = self.keep_time(kept_ahead);
                }
            }
            if self.core.has_to_tidy {
                self.core.tidy();
            }
        }
        self.finish(&mut events)
    }

    /// Tells a later process of the cache's file where the wall clock is, if it was set since it
    /// was `kept_ahead`; how far it is ahead.
    fn keep_time(&self, kept_ahead: i64) -> i64 {
        let cache = &self.core.shared.cache;
        let ahead = cache.wall_ahead();
        if ahead.abs_diff(kept_ahead) < KEPT_STEP_MS_MIN {
            return kept_ahead;
        }
        cache.keep_timeline(&self.core.shared.settings.clock.timeline());
        ahead
    }

    /// The end: no input is read any more; clients that go on to read get their answers, within
    /// [`FINISH_MAX`].
    fn finish(&mut self, events: &mut Vec<Readiness>) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let left = FINISH_MAX.saturating_sub(start.elapsed());
            for index in 0..self.connections.len() {
                match &mut self.connections[index] {
                    Some(one) if one.is_stuck() && !left.is_zero() => continue,
                    Some(one) if !one.is_stuck() => one.leave(&mut self.buffer),
                    _ => {}
                }
                self.end(index);
            }
            if self.connections.iter().all(Option::is_none) {
                return Ok(());
            }
            self.poller.wait(Some(left), events)?;
            self.inbox.wake.drain();
            for event in events.iter().filter(|event| event.token != TOKEN_WAKE) {
                let connection = self.connections.get_mut(event.token as usize);
                if let Some(Some(connection)) = connection {
                    let before = connection.held_bytes();
                    connection.finish(&mut self.core);
                    note_held(&self.core, before, connection.held_bytes());
                }
            }
        }
    }

    /// Waits for an event, or until a flush is due; not at all if there is something to clean up.
    fn wait(&mut self, events: &mut Vec<Readiness>) -> io::Result<()> {
        for _ in 0..BUSY_POLLS {
            if self.poller.wait(Some(Duration::ZERO), events)? > 0 {
                return Ok(());
            }
        }
        let most = if self.core.has_to_tidy { 0 } else { SWEEP_MS };
        self.poller.wait(Some(Duration::from_millis(most)), events)?;
        Ok(())
    }

    fn register(&mut self) {
        self.inbox.wake.drain();
        let mut accepted = self.inbox.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = std::mem::take(&mut *accepted);
        for accepted in accepted {
            self.core.count(Count::Accepted);
            if accepted.is_too_many && !self.make_room(&accepted) {
                self.core.count(Count::Closed);
                self.core.count(Count::Rejected);
                accepted.refuse();
                continue;
            }
            self.register_one(accepted);
        }
        self.hold_less();
    }

    fn register_one(&mut self, accepted: AcceptedConnection) {
        let shared = &self.core.shared;
        let settings = &shared.settings;
        let known = match accepted.protocol {
            Protocol::Memcached => settings.users.is_empty(),
            Protocol::Resp => settings.password.is_none(),
        };
        // Relaxed: a number that no other thread gets.
        let id = shared.next_client.fetch_add(1, Ordering::Relaxed);
        let client = ClientInfo { id, addr: accepted.addr, known, ..ClientInfo::default() };
        let now = self.core.now;
        if accepted.protocol == Protocol::Resp {
            shared.clients.came(&client, now);
        }
        let session = Session::new(accepted.protocol, client);
        let AcceptedConnection { fd, channel, place, .. } = accepted;
        let connection = Connection::new(fd, session, channel, place, now);
        let connection = Box::new(connection);
        let index = self.free.pop().map_or(self.connections.len(), |index| index as usize);
        if self.poller.add(&*connection, index as u64, connection.interest).is_err() {
            self.core.count(Count::Closed);
            self.core.shared.clients.gone(connection.client());
            self.free.push(index as u32);
            return;
        }
        note_held(&self.core, 0, connection.held_bytes());
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(connection);
    }

    /// Ends a connection that is silent, so that a new one can be let in. Not one of an address
    /// with fewer connections than the new one's.
    fn make_room(&mut self, accepted: &AcceptedConnection) -> bool {
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
    /// the addresses with the most, then those that were silent for the longest.
    fn find_silent(&mut self) {
        let before = self.core.now.saturating_sub(self.core.shared.settings.evicted_idle_ms);
        let connections = self.connections.iter().enumerate();
        let silent = connections.filter_map(|(index, connection)| {
            let one = connection.as_deref().filter(|one| one.active < before)?;
            let many = one.place.as_ref().map_or(0, ConnectionPermit::count);
            Some((one.has_spoken, Reverse(many), (one.active, index, one.client().id)))
        });
        let mut silent: Vec<_> = silent.collect();
        silent.sort_unstable();
        silent.truncate(EVICTED_AT_ONCE);
        self.silent = silent.into_iter().rev().map(|(_, _, found)| found).collect();
    }

    fn serve(&mut self, index: usize, event: &Readiness) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let before = connection.held_bytes();
        let next_interest = connection.serve(&mut self.core, &mut self.buffer, event);
        note_held(&self.core, before, connection.held_bytes());
        match next_interest {
            NextInterest::End => return self.end(index),
            NextInterest::Wait(interest) if interest != connection.interest => {
                connection.interest = interest;
                if self.poller.modify(&**connection, index as u64, interest).is_err() {
                    return self.end(index);
                }
            }
            NextInterest::Wait(_) => {}
        }
        self.hold_less();
    }

    /// Ends connections that make the server hold something, until all threads together hold what
    /// they may: those first that never sent a command, then those without one for the longest.
    fn hold_less(&mut self) {
        let shared = Arc::clone(&self.core.shared);
        // Relaxed: a sum without order.
        let is_much = || shared.held_bytes.load(Ordering::Relaxed) > shared.settings.held_bytes_max;
        if !is_much() {
            return;
        }
        let connections = self.connections.iter().enumerate();
        let holders = connections.filter_map(|(index, connection)| {
            let one = connection.as_deref().filter(|one| one.held_bytes() > 0)?;
            Some((one.has_spoken, one.progress(), Reverse(one.held_bytes()), index))
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
    fn sweep(&mut self) {
        let shared = Arc::clone(&self.core.shared);
        if self.core.thread == 0 {
            shared.measure_rate(self.core.now);
        }
        let (now, settings) = (self.core.now, &shared.settings);
        let mut kept_bytes = 0;
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let silent = now.saturating_sub(connection.active);
            let has_stalled = silent > settings.stall_ms;
            if connection.is_lingering() && silent > LINGER_MS_MAX {
                self.end(index);
                continue;
            }
            let why = if has_stalled && connection.is_held_up() {
                Count::SlowReaders
            } else if connection.is_late(settings.stall_ms, now) {
                Count::SlowWriters
            } else if connection.is_unknown_for(settings.handshake_ms, now) {
                Count::HandshakeTimeouts
            } else if settings.idle_ms > 0 && silent > settings.idle_ms {
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
            self.core.out = super::output::Output::default();
        }
        if self.core.args.held_bytes() > READ_BYTES as u64 {
            self.core.args = Args::default();
        }
        self.core.scratch.clear();
        self.core.scratch.shrink_to(READ_BYTES);
    }

    fn end(&mut self, index: usize) {
        if let Some(mut connection) = self.connections[index].take() {
            // What was added for it: at its end it may hold a closing message as well.
            note_held(&self.core, connection.held_bytes(), 0);
            connection.end();
            // It may be gone from there already; it is closed in any case.
            let _ = self.poller.remove(&*connection);
            self.core.count(Count::Closed);
            self.core.shared.clients.gone(connection.client());
            self.free.push(index as u32);
        }
    }
}

/// A connection makes the server hold another number of bytes than before.
fn note_held(core: &Core, before: u64, now: u64) {
    if now != before {
        // Relaxed: a sum without order. What is subtracted was added by the same connection.
        core.shared.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
