//! The master's poll loop: sockets on one side, the engine and the journal on the other. Owns
//! listener, connections and their buffers. One thread; blocks only in the poller and in the
//! journal's sync.
//!
//! Ordering rule of a turn: read every ready socket, hand in what arrived (of closed connections
//! first, so that a restarted daemon never meets its own old connection), look at the leases, store
//! the batch, and only then send. Leases are looked at after reading, so that a pause of this
//! process expires no lease.
//!
//! Nothing a peer sends is trusted: frames are bounded, a broken one closes its connection only,
//! and a peer that does not read its answers is not read either.

use super::error::MasterError;
use super::frame::{FrameStream, ReadEnd, framed};
use super::journal::Journal;
use crate::drive::block;
use crate::metrics::{Endpoint, MasterSnapshot, SnapshotRequests};
use rackpool_core::constants::{
    MASTER_BUFFERS_BYTES_MAX, MASTER_CONNECTIONS_MAX, MASTER_IDLE_MS_MIN, MASTER_MESSAGE_BYTES_MAX,
    MASTER_OUTPUT_BYTES_HIGH, MASTER_ROOM_MS, MASTER_STALL_MS_MAX, MASTER_TURN_REQUESTS_MAX,
    UNPROVEN_CONNECTIONS_MAX,
};
use rackpool_core::error::{DeathCause, Distrust, Error};
use rackpool_core::master::{ConnId, Master, Notice};
use rackpool_core::runtime::master_link::UNASKED;
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{self, MasterCall, MasterReply, MasterRequest};
use rackpool_fabric::addresses::{
    self, Addresses, ConnectionPermit, oldest_of_most, turn_away, usual_share,
};
use rackpool_fabric::handshake::{self, Failure, Handshake, Progress, Purpose};
use rackpool_fabric::secret::Secret;
use rackpool_mem::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_mem::names::peer_of;
use rackpool_mem::process::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

const TOKEN_LISTENER: u64 = 0;
const TOKEN_WAKE: u64 = 1;
const TOKEN_FIRST: u64 = 2;

/// Longest frame before the first Hello.
const HELLO_BYTES_MAX: u32 = 64;
/// Connections accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// How often stalled connections are looked for, and the longest sleep.
const SWEEP_NS: Nanos = 100_000_000;
/// Descriptors left to everything but connections.
const DESCRIPTORS_SPARE: u64 = 64;

struct Connection {
    frames: FrameStream,
    interest: Interest,
    /// It sends frames without having proved the secret: its first one is answered by a refusal.
    is_distrusted: bool,
    /// Whether it may send long frames.
    greeted: bool,
    place: ConnectionPermit,
    /// Whether the peer closed, or the connection shall.
    ended: bool,
    /// Whether it broke the protocol: nothing of it is taken any more.
    broken: bool,
    /// Since when it owes us something: a hello, the rest of a frame, or reading its answers.
    owing_since: Option<Nanos>,
    /// When something came of it last.
    heard: Nanos,
    /// Whether it is a daemon's, which the pool cannot do without.
    is_daemon: bool,
    /// What it has in buffers, as it was counted last.
    buffered_bytes: usize,
}

impl Connection {
    /// Goes on with the proof of the secret; `Done` if frames may be taken.
    fn prove(&mut self) -> Progress {
        match self.frames.prove() {
            // It is refused in its own protocol, by the answer to its first frame.
            Progress::Failed(Failure::Distrust(Distrust::InitiatorHasNone)) => {
                (self.frames.proof, self.is_distrusted) = (None, true);
                Progress::Done
            }
            progress => progress,
        }
    }
}

/// Requests for the counters, and the thread; the requests end before the thread is waited for.
pub(super) type Metrics = (SnapshotRequests<MasterSnapshot>, Endpoint);

/// What the loop serves, made where its errors can be told; the loop itself stays on its thread.
pub(super) struct Serve {
    pub master: Master,
    pub journal: Journal,
    pub listener: TcpListener,
    /// Connections that are served; further ones are told that they are too many.
    pub connections_max: usize,
    /// What connections have to prove, if anything.
    pub secret: Option<Secret>,
    /// The counters' endpoint, if there is one.
    pub metrics: Option<Metrics>,
}

/// Everything that the loop owns.
pub(super) struct MasterLoop {
    master: Master,
    journal: Journal,
    listener: TcpListener,
    listening: bool,
    poller: Poller,
    connections: BTreeMap<u64, Connection>,
    token_next: u64,
    connections_max: usize,
    addresses: Arc<Addresses>,
    secret: Option<Secret>,
    /// Where a secret is asked for, those that have not proved it and said hello; the oldest first.
    unproven: BTreeSet<u64>,
    /// Connections with complete frames that were not taken yet, or that ended.
    pending: BTreeSet<u64>,
    out: Vec<(ConnId, MasterReply)>,
    swept: Nanos,
    /// If the state's disk is full: when to look for room again.
    room_at: Option<Nanos>,
    /// What all connections keep in buffers.
    buffered_bytes: usize,
    metrics: Option<Metrics>,
}

impl MasterLoop {
    pub(super) fn new(serve: Serve, wake: &WakeEvent) -> Result<Self, MasterError> {
        let Serve { master, journal, listener, connections_max, secret, metrics } = serve;
        let made = || {
            let poller = Poller::new()?;
            listener.set_nonblocking(true)?;
            poller.add(&listener, TOKEN_LISTENER, Interest::Read)?;
            poller.add(wake, TOKEN_WAKE, Interest::Read)?;
            Ok(poller)
        };
        let poller = made().map_err(MasterError::system("set up the poll loop"))?;
        Ok(Self {
            master,
            journal,
            listener,
            listening: true,
            poller,
            connections: BTreeMap::new(),
            token_next: TOKEN_FIRST,
            connections_max,
            addresses: Arc::default(),
            secret,
            unproven: BTreeSet::new(),
            pending: BTreeSet::new(),
            out: Vec::new(),
            swept: monotonic_ns(),
            room_at: None,
            buffered_bytes: 0,
            metrics,
        })
    }

    /// Serves until `should_stop`, or until the state cannot be stored.
    pub(super) fn run(
        mut self,
        wake: &WakeEvent,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<(), MasterError> {
        let mut events = Vec::new();
        self.look_for_room(monotonic_ns());
        while !should_stop() {
            let sleep = if self.pending.is_empty() { SWEEP_NS } else { 0 };
            let waited = self.poller.wait(Some(Duration::from_nanos(sleep)), &mut events);
            waited.map_err(MasterError::system("wait for connections"))?;
            let now = monotonic_ns();
            for event in &events {
                match event.token {
                    TOKEN_LISTENER => self.accept(now),
                    TOKEN_WAKE => drop(wake.drain()),
                    token => self.move_bytes(now, token, event),
                }
            }
            self.turn(now)?;
        }
        Ok(())
    }

    /// What a turn does once the sockets are read.
    fn turn(&mut self, now: Nanos) -> Result<(), MasterError> {
        let pending = std::mem::take(&mut self.pending);
        let is_ended = |token: &u64| self.connections.get(token).is_none_or(|c| c.ended);
        let (ended, live): (Vec<u64>, Vec<u64>) = pending.into_iter().partition(is_ended);
        for token in ended {
            self.take_requests(now, token);
            self.close(token);
        }
        for token in live {
            self.take_requests(now, token);
        }
        self.master.tick(now, &mut self.out);
        let store = async |writes: Vec<_>| self.journal.commit(&writes);
        if block(self.master.commit(store, &mut self.out))? {
            self.look_for_room(now);
        }
        for notice in self.master.take_notices() {
            let text = describe(&notice);
            match notice {
                Notice::RackStands { .. } => info!(target: "master", "{text}"),
                Notice::RackJoined { .. } => info!(target: "master", "{text}"),
                Notice::PagesLost { .. } => warn!(target: "master", "{text}"),
                Notice::RackDead { .. } => warn!(target: "master", "{text}"),
            }
        }
        self.send(now);
        if let Some((requests, _)) = &self.metrics {
            requests.answer(|| (self.master.stats(), self.master.racks()));
        }
        if now.saturating_sub(self.swept) >= SWEEP_NS {
            self.swept = now;
            self.look_for_room(now);
            self.sweep(now);
        }
        Ok(())
    }

    /// Takes no change while there is no reserve for it on the disk.
    fn look_for_room(&mut self, now: Nanos) {
        let had_room = self.room_at.is_none();
        if had_room && self.journal.has_reserve() || self.room_at.is_some_and(|at| now < at) {
            return;
        }
        match self.journal.make_reserve() {
            Ok(()) if had_room => {}
            Ok(()) => {
                info!(target: "master", "the state's disk has room again: changes are taken");
                self.room_at = None;
            }
            Err(error) => {
                rackpool_mem::counted::note_io(&error);
                if had_room {
                    let what = "no change is taken until the state's disk has room";
                    warn!(target: "master", "{what}: {error}");
                }
                self.room_at = Some(now + MASTER_ROOM_MS * 1_000_000);
            }
        }
        self.master.set_storage_full(self.room_at.is_some());
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((stream, addr)) => self.admit(stream, addr.ip(), now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors: the listener would stay ready, so it rests until the
                    // next sweep.
                    warn!(target: "master", "cannot accept a connection: {error}");
                    self.listening = self.poller.remove(&self.listener).is_err();
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, ip: IpAddr, now: Nanos) {
        let share = usual_share(self.connections_max);
        let has_share = self.addresses.count(ip) >= share;
        if has_share || self.connections.len() >= self.connections_max {
            self.end_idlest(ip, has_share, now);
        }
        let is_full = self.connections.len() >= self.connections_max;
        let Some(place) = self.addresses.take(ip, share).filter(|_| !is_full) else {
            return self.say_busy(&stream, if is_full { None } else { Some((ip, share)) });
        };
        let Ok(proof) = Handshake::accept(self.secret.as_ref(), Purpose::Master) else { return };
        let token = self.token_next;
        let added = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| self.poller.add(&stream, token, Interest::Read));
        if added.is_err() {
            return;
        }
        self.token_next += 1;
        let connection = Connection {
            frames: FrameStream::new(stream, Some(proof)),
            interest: Interest::Read,
            is_distrusted: false,
            greeted: false,
            place,
            ended: false,
            broken: false,
            owing_since: Some(now),
            heard: now,
            is_daemon: false,
            buffered_bytes: 0,
        };
        self.connections.insert(token, connection);
        if self.secret.is_some() {
            self.unproven.insert(token);
        }
        // The oldest of too many gives way, one of the address that has most of them.
        if self.unproven.len() > UNPROVEN_CONNECTIONS_MAX {
            let of = |token: &u64| Some((*token, *token, self.connections.get(token)?.place.ip()));
            let others = self.unproven.iter().filter(|other| **other != token).filter_map(of);
            if let Some(oldest) = oldest_of_most(others, addresses::network(ip))
                && let Some(connection) = self.connections.get_mut(&oldest)
            {
                connection.ended = true;
                self.unproven.remove(&oldest);
                self.pending.insert(oldest);
            }
        }
    }

    /// Where there are too many, or too many of one address, one that has been silent for long
    /// gives way: of the address that has most of them, or of that one, the one that has been for
    /// longest. Its client comes again when it has something to say.
    fn end_idlest(&mut self, ip: IpAddr, has_share: bool, now: Nanos) {
        let ip = addresses::network(ip);
        let is_idle = |one: &Connection| {
            let idle_ns = now.saturating_sub(one.heard);
            !one.is_daemon && !one.ended && idle_ns >= MASTER_IDLE_MS_MIN * 1_000_000
        };
        let idle = self.connections.iter().filter(|(_, one)| is_idle(one));
        let idle = idle.map(|(token, one)| (one.heard, *token, one.place.ip()));
        let idle = idle.filter(|(_, _, address)| !has_share || *address == ip);
        if let Some(token) = oldest_of_most(idle, ip) {
            self.take_requests(now, token);
            self.close(token);
        }
    }

    /// Tells a connection that there are too many, or too many of its address.
    fn say_busy(&mut self, stream: &TcpStream, of: Option<(IpAddr, usize)>) {
        let (what, limit) = match of {
            None => ("master's table of connections".into(), self.connections_max),
            Some((ip, share)) => (format!("master's table of connections of {ip}"), share),
        };
        let busy = Error::Busy { what, limit: limit as u64 };
        self.master.note_refused(busy.clone());
        let answer = MasterReply { id: UNASKED, term: 0, index: 0, answer: Err(busy) };
        match self.secret {
            Some(_) => turn_away(stream, &handshake::busy()),
            None => turn_away(stream, &framed(&wire::encode_vec(&answer))),
        }
    }

    /// Counts what a connection has in buffers; the one that has most goes if all have too much.
    fn count_buffers(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let bytes = connection.frames.reader.waiting().len() + connection.frames.unsent_bytes();
        self.buffered_bytes += bytes;
        self.buffered_bytes -= std::mem::replace(&mut connection.buffered_bytes, bytes);
        if self.buffered_bytes <= MASTER_BUFFERS_BYTES_MAX {
            return;
        }
        let most = self.connections.iter().filter(|(_, one)| !one.is_daemon);
        if let Some((&most, _)) = most.max_by_key(|(_, one)| one.buffered_bytes) {
            warn!(target: "master", "closing the connection that has most in buffers: too much is");
            self.close(most);
        }
    }

    /// Moves bytes between a ready socket and its buffers.
    fn move_bytes(&mut self, now: Nanos, token: u64, event: &Readiness) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.heard = now;
        if event.writable {
            connection.ended |= connection.frames.flush().is_err();
            if connection.greeted {
                connection.owing_since = Some(now);
            }
        }
        let wants_input = connection.interest != Interest::Write || event.closed;
        if event.readable && wants_input {
            match connection.frames.fill() {
                Ok(ReadEnd::Empty | ReadEnd::More) => {}
                Ok(ReadEnd::Closed) | Err(_) => connection.ended = true,
            }
        }
        self.pending.insert(token);
        self.count_buffers(token);
    }

    /// Hands a connection's requests to the engine, as many as one turn allows; whether more wait
    /// is remembered.
    fn take_requests(&mut self, now: Nanos, token: u64) {
        for taken in 0.. {
            let Some(connection) = self.connections.get_mut(&token) else { return };
            let blocked = connection.frames.writer.waiting_bytes() >= MASTER_OUTPUT_BYTES_HIGH;
            if connection.broken || blocked && !connection.ended {
                return;
            }
            if taken == MASTER_TURN_REQUESTS_MAX || self.master.batch_is_full() {
                // An ended connection is closed after this turn: what it still asked and was not
                // taken was never acknowledged.
                self.pending.insert(token);
                return;
            }
            match connection.prove() {
                Progress::Done => {}
                Progress::Pending => {
                    // What is to be said is said in this turn.
                    self.pending.insert(token);
                    return;
                }
                Progress::Failed(why) => return self.refuse(token, why),
            }
            let limit = if connection.greeted { MASTER_MESSAGE_BYTES_MAX } else { HELLO_BYTES_MAX };
            match connection.frames.next(limit, "a connection") {
                Ok(None) => {
                    connection.frames.reader.shrink();
                    // The last message of a proof.
                    if connection.frames.writer.waiting_bytes() > 0 {
                        self.pending.insert(token);
                    }
                    return;
                }
                Ok(Some(request)) => self.serve(now, token, request),
                Err(error) => {
                    connection.ended = true;
                    connection.broken = true;
                    self.pending.insert(token);
                    let from = peer_of(&connection.frames.stream);
                    warn!(target: "master", "closing the connection of {from}: {error}");
                    return;
                }
            }
        }
    }

    /// Ends a connection that did not prove the secret, once it has been told why.
    fn refuse(&mut self, token: u64, why: Failure) {
        let connection = self.connections.get_mut(&token).expect("the caller found it");
        let from = peer_of(&connection.frames.stream);
        (connection.ended, connection.broken) = (true, true);
        self.pending.insert(token);
        self.master.note_refused(Error::Denied { reason: why.to_string() });
        warn!(target: "master", "closing the connection of {from}: {why}");
    }

    fn serve(&mut self, now: Nanos, token: u64, request: MasterRequest) {
        let connection = self.connections.get_mut(&token).expect("the caller found it");
        connection.is_daemon |= matches!(request.call, MasterCall::JoinDaemon(_));
        if connection.greeted && connection.frames.unsent_bytes() == 0 {
            connection.owing_since = None;
        }
        if connection.is_distrusted {
            let why = DeathCause::Distrusted(Distrust::InitiatorHasNone);
            let error = Error::of_death("master", why);
            // One answer is enough for a peer without the secret.
            (connection.ended, connection.broken) = (true, true);
            let reply = self.master.reply(request.id, Err(error));
            self.out.push((ConnId(token), reply));
            return self.queue_answers();
        }
        if matches!(request.call, MasterCall::Hello { .. }) {
            self.unproven.remove(&token);
            connection.greeted = true;
            connection.owing_since = None;
        }
        self.master.on_call(now, ConnId(token), request, &mut self.out);
        self.queue_answers();
    }

    /// Moves answers into their connections' buffers.
    fn queue_answers(&mut self) {
        for (ConnId(token), reply) in self.out.drain(..) {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.frames.writer.push(&wire::encode_vec(&reply));
                self.pending.insert(token);
            }
        }
    }

    /// Sends what is there to be sent, and sets what each connection waits for.
    fn send(&mut self, now: Nanos) {
        self.queue_answers();
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&token| {
            let Some(connection) = self.connections.get_mut(&token) else { return false };
            if connection.frames.flush().is_err() {
                connection.ended = true;
            }
            let waiting = connection.frames.unsent_bytes();
            let interest = match waiting {
                0 => Interest::Read,
                MASTER_OUTPUT_BYTES_HIGH.. => Interest::Write,
                _ => Interest::ReadWrite,
            };
            let is_partial = !connection.frames.reader.waiting().is_empty()
                && !connection.frames.reader.has_frame();
            if waiting == 0 && !is_partial && connection.greeted {
                connection.owing_since = None;
            } else {
                connection.owing_since.get_or_insert(now);
            }
            if interest != connection.interest {
                connection.interest = interest;
                connection.ended |=
                    self.poller.modify(&connection.frames.stream, token, interest).is_err();
            }
            let has_frame =
                connection.frames.proof.is_none() && connection.frames.reader.has_frame();
            connection.ended || waiting < MASTER_OUTPUT_BYTES_HIGH && has_frame
        });
        self.pending = pending;
    }

    fn close(&mut self, token: u64) {
        self.unproven.remove(&token);
        if let Some(connection) = self.connections.remove(&token) {
            self.buffered_bytes -= connection.buffered_bytes;
            self.pending.remove(&token);
            // It cannot fail: the connection was added when it was admitted.
            let _ = self.poller.remove(&connection.frames.stream);
            self.master.on_closed(ConnId(token));
        }
    }

    /// Closes connections that owe something for too long, and lets the listener try again.
    fn sweep(&mut self, now: Nanos) {
        let stall_ns = MASTER_STALL_MS_MAX * 1_000_000;
        for (&token, connection) in &mut self.connections {
            if connection.owing_since.is_some_and(|since| now.saturating_sub(since) > stall_ns) {
                connection.ended = true;
                self.pending.insert(token);
            }
        }
        if !self.listening {
            let added = self.poller.add(&self.listener, TOKEN_LISTENER, Interest::Read);
            self.listening = added.is_ok();
        }
    }
}

/// As many connections as descriptors allow.
pub(super) fn connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let spare = limit.map_or(u64::MAX, |limit| limit - DESCRIPTORS_SPARE.min(limit / 2));
    usize::try_from(spare)
        .map_or(MASTER_CONNECTIONS_MAX, |spare| spare.clamp(1, MASTER_CONNECTIONS_MAX))
}

fn describe(notice: &Notice) -> String {
    match notice {
        Notice::RackStands { rack, standing } => format!("rack {rack} is {}", standing.name()),
        Notice::RackJoined { rack, epoch } => {
            format!("rack {rack} joined, attach count {epoch} of its region")
        }
        Notice::PagesLost { rack, pages } => {
            format!("DATA LOST: rack {rack}: {pages} pages are gone with their region")
        }
        Notice::RackDead { rack, cause } => {
            format!("the daemon of rack {rack} is dead ({cause:?}); its pages stay where they are")
        }
    }
}
