//! One thread's loop and its connections: sleeps until sockets are ready, reads, has the session
//! understand and answer, sends once for each. New connections come through an [`Inbox`] and stay
//! with their thread for their whole life. Idle ones hold no buffer; the worker lends its own.
//!
//! Ordering rule: while answers wait for the client nothing more is read from it, so that what it
//! can make us hold is bounded by what one read brings and one command answers.
//!
//! A session that we end is ended on our side alone: what its client has still sent is passed
//! over until it has read the last answer and ends its side too. A socket that is closed while
//! something comes in throws away what its client does not have yet.

mod durable;
mod limits;
mod turns;
mod watched;
mod watchers;

use super::clients::{ClientInfo, ClientOrigin, HeldMemory};
use super::core::{Core, Output};
use super::counters::Count;
use super::session::Session;
use super::shared::Protocol;
use super::timer::CommandTimer;
use super::tls::Channel;
use crate::cache::Millis;
use crate::constants::{
    BUSY_POLLS, INPUT_BYTES_MAX, READ_BYTES, READS_MAX, RECEIVED_PER_MS_MIN, WATCH_MS,
};
use durable::StoreCommit;
use rackpool_fabric::addresses::ConnectionPermit;
use rackpool_mem::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_mem::window::{Next, Piece, SEND_PIECES_MAX, send_gather};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, getsockname, send, shutdown};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use watchers::LocalWatchers;

pub struct AcceptedConnection {
    /// Its socket, which does not block.
    pub fd: OwnedFd,
    pub protocol: Protocol,
    pub addr: String,
    pub channel: Channel,
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
const SWEEP_MS: u64 = 1000;
/// How far the wall clock has to be set, or to drift, before that is written to the cache's file,
/// ms.
const KEPT_STEP_MS_MIN: u64 = 100;
/// How long the end waits for clients that read what they were answered.
const FINISH_MAX: Duration = Duration::from_secs(1);

pub struct Worker<'i> {
    core: Core,
    inbox: &'i Inbox,
    poller: Arc<Poller>,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Connections that were silent when they were looked for, the next to go last: when each was
    /// last active, its place, its client's number.
    silent: Vec<(Millis, usize, u64)>,
    next_search: Millis,
    /// Places of connections that wait for what another thread does, or for their next turn.
    waiting: Vec<usize>,
    /// Whether one of them waits for its turn alone.
    has_turns: bool,
    watchers: LocalWatchers,
    buffer: Vec<u8>,
    /// Connections of clients that are told the commands of others.
    monitors: Vec<usize>,
    /// Whether a connection waits until a pause is over.
    has_held: bool,
}

impl<'i> Worker<'i> {
    /// A worker without connections.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new(mut core: Core, inbox: &'i Inbox) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?);
        core.timer = CommandTimer::of(Arc::clone(&poller));
        poller.add(&inbox.wake, TOKEN_WAKE, Interest::Read)?;
        let (connections, free) = (Vec::new(), Vec::new());
        let buffer = vec![0; READ_BYTES];
        let (silent, next_search, waiting) = (Vec::new(), 0, Vec::new());
        let (watchers, monitors) = (LocalWatchers::default(), Vec::new());
        let (has_turns, has_held) = (false, false);
        Ok(Self {
            core,
            inbox,
            poller,
            connections,
            free,
            silent,
            next_search,
            waiting,
            has_turns,
            watchers,
            buffer,
            monitors,
            has_held,
        })
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
            self.core.look_at_watchers();
            if self.core.shared.flush_if_due(self.core.now) {
                self.core.tidy_all();
            }
            self.core.look_at_watch();
            for (nth, event) in events.iter().enumerate() {
                self.core.timer.others_wait = nth + 1 < events.len();
                match event.token {
                    TOKEN_WAKE => self.register(),
                    token => self.serve(token as usize, event),
                }
            }
            self.serve_waiting();
            if self.core.is_watched || self.has_held {
                self.serve_watched();
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
            self.serve_watchers();
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
            for (index, connection) in self.connections.iter_mut().enumerate() {
                let is_told = |event: &Readiness| event.token == index as u64;
                if let Some(connection) = connection
                    && (connection.commit.is_some() || events.iter().any(is_told))
                {
                    let before = connection.held_bytes();
                    connection.finish(&mut self.core);
                    note_held(&self.core, before, connection.held_bytes());
                }
            }
        }
    }

    /// Waits for an event, or until a flush is due; not at all if there is something to clean up.
    fn wait(&mut self, events: &mut Vec<Readiness>) -> io::Result<()> {
        if self.has_turns {
            if self.poller.wait(Some(Duration::ZERO), events)? == 0 {
                // Nobody waits here; but threads may wait for this processor, and long.
                std::thread::yield_now();
                self.poller.wait(Some(Duration::ZERO), events)?;
            }
            return Ok(());
        }
        for _ in 0..BUSY_POLLS {
            if self.poller.wait(Some(Duration::ZERO), events)? > 0 {
                return Ok(());
            }
        }
        let mut most = match () {
            () if self.core.has_to_tidy => 0,
            () if !self.watchers.is_empty() => WATCH_MS,
            () => SWEEP_MS,
        };
        if self.has_held {
            most = most.min(self.core.pause.left(self.core.now));
        }
        self.poller.wait(Some(Duration::from_millis(most)), events)?;
        Ok(())
    }

    fn register(&mut self) {
        self.inbox.wake.drain();
        if self.core.shared.clients.are_ending() {
            self.end_killed();
        }
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
        match accepted.protocol {
            Protocol::Resp => {
                let (thread, descriptor) = (self.core.thread, accepted.fd.as_raw_fd());
                let local = local_addr(&accepted.fd).unwrap_or_else(|| client.addr.clone());
                shared.clients.came(&client, ClientOrigin { thread, descriptor, local }, now);
            }
            Protocol::Memcached => {
                shared.memcached_clients.came(id, &client.addr, &client.gauges, now);
            }
        }
        let session = Session::new(accepted.protocol, client);
        let AcceptedConnection { fd, channel, place, .. } = accepted;
        let connection = Connection::new(fd, session, channel, place, now);
        let connection = Box::new(connection);
        let index = self.free.pop().map_or(self.connections.len(), |index| index as usize);
        if self.poller.add(&*connection, index as u64, connection.interest).is_err() {
            self.forget(connection.client());
            self.free.push(index as u32);
            return;
        }
        if self.core.log.watches_connections() {
            self.note_connection("conn_new", connection.client());
        }
        note_held(&self.core, 0, connection.held_bytes());
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(connection);
    }

    fn serve(&mut self, index: usize, event: &Readiness) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if self.core.is_watched && connection.waits_for(&self.core) {
            return;
        }
        let before = connection.held_bytes();
        let mut next_interest = connection.serve(&mut self.core, &mut self.buffer, event);
        connection.note_served();
        note_connection(&self.core, before, connection);
        if connection.job().is_some() && !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
        if self.core.is_watched {
            next_interest = self.watch(index, next_interest);
        }
        self.settle(index, next_interest);
        self.hold_less();
    }

    fn end(&mut self, index: usize) {
        if let Some(mut connection) = self.connections[index].take() {
            // What was added for it: at its end it may hold a closing message as well.
            note_held(&self.core, connection.held_bytes(), 0);
            connection.end();
            // It may be gone from there already; it is closed in any case.
            let _ = self.poller.remove(&*connection);
            if self.core.log.watches_connections() {
                self.note_connection("conn_close", connection.client());
            }
            self.forget(connection.client());
            self.free.push(index as u32);
        }
    }

    fn forget(&self, client: &ClientInfo) {
        self.core.count(Count::Closed);
        self.core.shared.clients.gone(client);
        self.core.shared.memcached_clients.gone(client.id);
        if let Some(queue) = &client.monitor {
            self.core.shared.monitors.remove(queue);
        }
    }
}

/// The address at our end of a connection of TCP.
fn local_addr(fd: &OwnedFd) -> Option<String> {
    let addr = getsockname(fd).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
    addr.map(|addr| addr.to_string())
}

/// As [`note_held`], and tells others what the connection has in memory.
fn note_connection(core: &Core, before: u64, connection: &Connection) {
    let now = connection.held_bytes();
    note_held(core, before, now);
    if before > 0 || now > 0 {
        connection.client().gauges.store_held(connection.held_memory());
    }
}

/// A connection makes the server hold another number of bytes than before.
fn note_held(core: &Core, before: u64, now: u64) {
    if now != before {
        // Relaxed: a sum without order. What is subtracted was added by the same connection.
        core.shared.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// What to do with a connection after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextInterest {
    Wait(Interest),
    /// Nothing: it has its next turn as soon as others had theirs.
    GoOn,
    End,
}

pub struct Connection {
    fd: OwnedFd,
    session: Session,
    rest: Vec<u8>,
    /// Answers that the socket did not take yet.
    output: Output,
    channel: Channel,
    /// Whether the socket may hold input that will not be reported again.
    has_left: bool,
    /// After the last answer: bytes that its client may still send; they are discarded.
    lingering: Option<usize>,
    /// When something was last read or sent.
    pub active: Millis,
    came: Millis,
    /// When a command was last understood, or it came.
    progress: Millis,
    /// Whether a command of its client was ever understood.
    pub has_spoken: bool,
    pub place: Option<ConnectionPermit>,
    pub interest: Interest,
    /// Since when more waits to be sent than the soft limit allows.
    over_since: Option<Millis>,
    /// What has to be durable before it is answered.
    commit: Option<StoreCommit>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    pub fn new(
        fd: OwnedFd,
        session: Session,
        channel: Channel,
        place: Option<ConnectionPermit>,
        now: Millis,
    ) -> Self {
        Self {
            fd,
            session,
            rest: Vec::new(),
            output: Output::default(),
            channel,
            has_left: false,
            lingering: None,
            active: now,
            came: now,
            progress: now,
            has_spoken: false,
            place,
            interest: Interest::Edges,
            over_since: None,
            commit: None,
        }
    }

    pub fn client(&self) -> &ClientInfo {
        &self.session.client
    }

    /// Memory that it takes, bytes, beside the cache's.
    pub fn held_bytes(&self) -> u64 {
        let (session, output) = (self.session.held_bytes(), self.output.held_bytes());
        self.rest.capacity() as u64 + session + output + self.channel.held_bytes()
    }

    /// As [`Connection::held_bytes`], by what it is for.
    fn held_memory(&self) -> HeldMemory {
        let input_bytes = self.rest.len() as u64;
        let input_free_bytes = self.rest.capacity() as u64 - input_bytes;
        let (output_bytes, all_bytes) = (self.output.len(), self.held_bytes());
        HeldMemory { input_bytes, input_free_bytes, output_bytes, all_bytes }
    }

    /// Answers that wait for its client, bytes.
    pub fn output_bytes(&self) -> u64 {
        self.output.len()
    }

    /// Tells others when it was served last, and what its client asked for.
    fn note_served(&self) {
        self.session.client.was_served(self.active);
    }

    /// Since when it has taken that memory: the last time that a command was understood.
    pub fn progress(&self) -> Millis {
        self.progress
    }

    /// Whether its client should have ended its handshake and authenticated by now.
    pub fn is_unknown_for(&self, ms: u64, now: Millis) -> bool {
        let is_unknown = self.channel.is_handshaking() || !self.session.client.known;
        is_unknown && now.saturating_sub(self.came) > ms
    }

    /// Whether its client does not go on with a command, or not as fast as it should.
    pub fn is_late(&self, stall_ms: u64, now: Millis) -> bool {
        let (since, bytes) = match self.session.receiving() {
            Some(received) => received,
            None if self.rest.is_empty() || self.has_more() => return false,
            None => (self.progress, self.rest.len() as u64),
        };
        let silent = now.saturating_sub(self.active);
        silent > stall_ms || now.saturating_sub(since) > stall_ms + bytes / RECEIVED_PER_MS_MIN
    }

    /// Bytes of the cache that cannot be used for anything else until its client has them.
    pub fn kept_bytes(&self) -> u64 {
        self.output.kept_bytes()
    }

    /// Whether answers wait for the client.
    pub fn is_stuck(&self) -> bool {
        !self.output.is_empty() || self.channel.has_output()
    }

    /// Whether its client must take answers before it is served any further: they wait here, or
    /// its socket is full of them and commands wait.
    pub fn is_held_up(&self) -> bool {
        self.is_stuck() || self.has_more()
    }

    /// Whether only the client's own end is awaited.
    pub fn is_lingering(&self) -> bool {
        self.lingering.is_some()
    }

    /// Reads, understands and answers what there is; `buffer` is the worker's.
    pub fn serve(&mut self, core: &mut Core, buffer: &mut [u8], event: &Readiness) -> NextInterest {
        if let Some(left) = self.lingering {
            return self.discard_input(left, buffer);
        }
        if self.is_stuck() && !event.writable && !event.closed {
            // It goes on to send and takes no answers.
            return self.next_interest();
        }
        core.timer.begin_turn();
        self.active = core.now;
        self.has_left = true;
        if self.is_stuck() && !self.resume(core) {
            return self.next_interest();
        }
        if self.is_waiting() {
            self.feed_rest(core);
            if self.is_waiting() {
                return NextInterest::Wait(Interest::Edges);
            }
        }
        self.go_on(core);
        if self.is_stuck() || self.has_more() {
            return self.next_interest();
        }
        for _ in 0..READS_MAX {
            let read = if self.rest.is_empty() {
                self.read_fresh(core, buffer)
            } else {
                self.read_behind(core)
            };
            match read {
                Ok(0) => return NextInterest::End,
                Ok(_) if self.session.is_closing() || self.is_stuck() || self.has_more() => break,
                Ok(_) if self.is_waiting() => return NextInterest::Wait(Interest::Edges),
                // The buffer was full, or nearly: there may be more.
                Ok(count) if count >= READ_BYTES => {
                    if core.timer.is_turn_over() {
                        break;
                    }
                }
                // All was read, but for the end, of which we are told once, too.
                Ok(_) | Err(Errno::AGAIN) => {
                    self.has_left = event.ended;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(_) => return NextInterest::End,
            }
        }
        self.next_interest()
    }

    /// Sends what was answered, and answers nothing more.
    pub fn finish(&mut self, core: &mut Core) {
        self.session.close();
        self.resume(core);
    }

    fn next_interest(&mut self) -> NextInterest {
        match (self.is_stuck(), self.session.is_closing()) {
            // The socket took no more, so it tells when it does.
            (true, _) => NextInterest::Wait(Interest::Edges),
            (false, true) => self.half_close(),
            // The input will not be reported again.
            (false, false) if self.goes_on() => NextInterest::GoOn,
            (false, false) if self.has_left => NextInterest::Wait(Interest::Read),
            (false, false) => NextInterest::Wait(Interest::Edges),
        }
    }

    /// Says goodbye where the client expects it.
    pub fn end(&mut self) {
        if !self.is_lingering() {
            self.channel.end(&self.fd);
        }
    }

    /// Ends our side and discards what has come, before the connection is closed.
    pub fn leave(&mut self, buffer: &mut [u8]) {
        if self.half_close() != NextInterest::End {
            self.discard_input(INPUT_BYTES_MAX, buffer);
        }
    }

    /// Ends our side, behind the last answer.
    fn half_close(&mut self) -> NextInterest {
        self.end();
        self.rest = Vec::new();
        self.lingering = Some(INPUT_BYTES_MAX);
        match shutdown(&self.fd, Shutdown::Write) {
            // Told at once of what is there already, and of each end.
            Ok(()) => NextInterest::Wait(Interest::Read),
            Err(_) => NextInterest::End,
        }
    }

    /// Reads and discards what comes, `left` bytes at most.
    fn discard_input(&mut self, mut left: usize, buffer: &mut [u8]) -> NextInterest {
        for _ in 0..READS_MAX {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(count) if 0 < count && count < left => left -= count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => return NextInterest::End,
            }
        }
        self.lingering = Some(left);
        NextInterest::Wait(Interest::Read)
    }

    /// Reads into the worker's buffer; only what is not understood yet is kept.
    fn read_fresh(&mut self, core: &mut Core, buffer: &mut [u8]) -> Result<usize, Errno> {
        let count = self.channel.read(&self.fd, buffer)?;
        core.add(Count::BytesRead, count as u64);
        let used = self.session.feed(core, &buffer[..count]);
        self.note_progress(core, used);
        self.rest.extend_from_slice(&buffer[used..count]);
        self.send(core);
        self.check_need(core);
        self.go_on(core);
        Ok(count)
    }

    /// Reads behind what is kept.
    fn read_behind(&mut self, core: &mut Core) -> Result<usize, Errno> {
        let kept = self.rest.len();
        // As much as is missing, but no more than was there already: what a client announces costs
        // memory only when it comes.
        let missing = self.session.need().saturating_sub(kept);
        let room = missing.clamp(READ_BYTES / 8, kept.max(READ_BYTES));
        self.rest.resize(kept + room, 0);
        let read = self.channel.read(&self.fd, &mut self.rest[kept..]);
        self.rest.truncate(kept + *read.as_ref().unwrap_or(&0));
        let count = read?;
        core.add(Count::BytesRead, count as u64);
        if self.rest.len() >= self.session.need() {
            self.feed_rest(core);
            self.go_on(core);
        }
        // A full read is one that may have left something behind.
        Ok(if count == room { count.max(READ_BYTES) } else { count })
    }

    fn feed_rest(&mut self, core: &mut Core) {
        let used = self.session.feed(core, &self.rest);
        self.note_progress(core, used);
        if used == self.rest.len() {
            self.rest = Vec::new();
        } else {
            self.rest.drain(..used);
        }
        self.send(core);
        self.check_need(core);
    }

    fn note_progress(&mut self, core: &Core, used: usize) {
        if used > 0 {
            (self.progress, self.has_spoken) = (core.now, true);
        }
    }

    /// What waited only for answers to be sent goes on, for a while: others have their turn.
    fn go_on(&mut self, core: &mut Core) {
        for _ in 0..READS_MAX {
            if self.is_stuck() || !self.has_more() || core.timer.is_turn_over() {
                return;
            }
            self.feed_rest(core);
        }
    }

    /// Whether its command, which stays in what is kept, waits for another thread.
    fn is_waiting(&self) -> bool {
        !self.rest.is_empty() && self.session.job().is_some()
    }

    /// Whether something can be done without anything coming.
    fn goes_on(&self) -> bool {
        self.channel.has_input() || self.has_more()
    }

    /// Whether something can be done without anything being read.
    fn has_more(&self) -> bool {
        !self.rest.is_empty()
            && !self.session.is_closing()
            && self.session.need() <= self.rest.len()
    }

    fn check_need(&mut self, core: &Core) {
        if self.session.need() > core.shared.settings.input_bytes_max() {
            core.count(Count::ProtocolErrors);
            self.session.close();
        }
    }

    /// Sends what waits; whether all of it went.
    fn resume(&mut self, core: &mut Core) -> bool {
        std::mem::swap(&mut core.out, &mut self.output);
        self.send(core);
        if self.output.is_empty() {
            // The buffer is freed: idle connections hold none.
            self.output = Output::default();
        }
        !self.is_stuck()
    }

    /// Sends [`Core::out`]; what the socket does not take is kept.
    fn send(&mut self, core: &mut Core) {
        if core.cache().has_backing() && !self.is_durable(core) {
            if !core.out.is_empty() {
                std::mem::swap(&mut core.out, &mut self.output);
            }
            return;
        }
        let before = core.out.len();
        let sent = match self.channel.is_plain() {
            true => send_plain(&self.fd, &mut core.out),
            false => self.channel.send(&self.fd, &mut core.out),
        };
        core.add(Count::BytesWritten, before - core.out.len());
        let failed = core.out.take_failed();
        core.add(Count::TierFailed, failed);
        if sent.is_err() {
            // The client is gone: its answers will not be read.
            core.out.clear();
            self.session.close();
        }
        if !core.out.is_empty() {
            std::mem::swap(&mut core.out, &mut self.output);
        }
    }
}

/// Sends until all is sent or the socket takes no more.
fn send_plain(fd: &OwnedFd, out: &mut Output) -> io::Result<()> {
    while !out.is_empty() {
        let sent = match out.own_bytes() {
            Some(bytes) => send(fd, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from),
            None => send_pieces(fd, out),
        };
        match sent {
            Ok(sent) => out.advance(sent as u64),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn send_pieces(fd: &OwnedFd, out: &mut Output) -> io::Result<usize> {
    out.load().map_err(io::Error::other)?;
    let mut pieces = [Piece::Private(&[]); SEND_PIECES_MAX];
    let (mut count, mut bytes) = (0, 0);
    out.pieces(|piece| {
        bytes += piece.bytes();
        pieces[count] = piece;
        count += 1;
        count < SEND_PIECES_MAX
    });
    let next = if bytes < out.len() { Next::More } else { Next::Nothing };
    send_gather(fd.as_fd(), &pieces[..count], next)
}
