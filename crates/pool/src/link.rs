//! The other end of a connection to the master: daemons drive it from their poll loop, client
//! handles call it and wait. Owns one socket, reconnects by itself, follows `NotLeader`, and says
//! hello and joins on every new connection before anything else is sent; with a secret, both ends
//! prove first that they have it.
//!
//! Ordering rule: every call that [`MasterLink::send`] took is answered by
//! [`MasterLink::poll`] exactly once: by the master, by `PeerDead` when the connection ended, or
//! by `Timeout`. All calls may be repeated, so a caller that still wants the answer sends again.
//! Nothing here waits without a limit; only [`MasterLink::call`] waits at all.
//!
//! Used by one thread at a time. Source: DESIGN §2 (master), §4 (death and silence).

use crate::master::frame::{FrameReader, FrameWriter, ReadEnd, UNASKED};
use rackpool_core::constants::{
    MASTER_BACKOFF_MS_MAX, MASTER_BACKOFF_MS_MIN, MASTER_CALL_BYTES_MAX, MASTER_CALLS_MAX,
    MASTER_CONNECT_MS_MAX, MASTER_CONNECTIONS_MAX, MASTER_MESSAGE_BYTES_MAX,
    REQUEST_TIMEOUT_MS_DEFAULT,
};
use rackpool_core::error::{DeathCause, Error, Result};
use rackpool_core::wire::{
    self, MasterAnswer, MasterCall, MasterReply, MasterRequest, WIRE_VERSION,
};
use rackpool_hw::handshake::{Failure, Handshake, Progress, Purpose};
use rackpool_hw::names::resolve;
use rackpool_hw::process::random_u64;
use rackpool_hw::secret::Secret;
use rackpool_hw::secure_stream::SecureStream;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Looks at the socket before a waiting call sleeps: an answer from memory comes in some 10 µs.
const SPINS_MAX: u32 = 16;
/// Ids of the link's own calls start here; those of [`MasterLink::send`] count from 1.
const OWN_IDS: u64 = 1 << 63;

/// How long a connection may take until its hello is answered.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(MASTER_CONNECT_MS_MAX);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Connecting,
    /// The secret is being proved.
    Proving,
    /// Hello was sent.
    Greeting,
    /// The join was sent.
    Joining,
    /// Calls may be sent.
    Up,
}

struct Socket {
    stream: SecureStream,
    reader: FrameReader,
    writer: FrameWriter,
    stage: Stage,
    proof: Option<Handshake>,
    since: Instant,
    interest: EventFlags,
}

impl Socket {
    /// Whether it waits for room in the socket, or for the connection.
    fn wants_out(&self) -> bool {
        self.stage == Stage::Connecting
            || self.writer.waiting_bytes() > 0
            || self.stream.has_unsent()
    }
}

/// A connection to the master that comes back by itself.
pub struct MasterLink {
    addrs: Vec<String>,
    /// Which address is in use or tried next.
    current: usize,
    /// An address that a `NotLeader` named, to be tried before the list.
    leader: Option<String>,
    /// What the name in use stands for and was not tried yet.
    untried: VecDeque<SocketAddr>,
    /// Why the last attempt to connect failed.
    trouble: Option<String>,
    join: Option<MasterCall>,
    secret: Option<Secret>,
    socket: Option<Socket>,
    /// A descriptor that stays the same across connections.
    epoll: Option<OwnedFd>,
    outstanding: BTreeMap<u64, Instant>,
    replies: Vec<MasterReply>,
    own: Option<u64>,
    id_next: u64,
    backoff_ms: u64,
    random: u64,
    retry_at: Option<Instant>,
    refused: Option<Error>,
    welcome: Option<MasterAnswer>,
    connections: u64,
    calls_sent: u64,
    timeout: Duration,
}

impl MasterLink {
    /// A link to the master at one of `addrs`, such as `127.0.0.1:7400`; nothing is done yet.
    ///
    /// # Panics
    /// Without an address.
    pub fn new(addrs: Vec<String>) -> Self {
        assert!(!addrs.is_empty(), "a link needs an address");
        Self {
            addrs,
            current: 0,
            leader: None,
            untried: VecDeque::new(),
            trouble: None,
            join: None,
            secret: None,
            socket: None,
            epoll: None,
            outstanding: BTreeMap::new(),
            replies: Vec::new(),
            own: None,
            id_next: 1,
            backoff_ms: MASTER_BACKOFF_MS_MIN,
            random: random_u64().unwrap_or(1) | 1,
            retry_at: None,
            refused: None,
            welcome: None,
            connections: 0,
            calls_sent: 0,
            timeout: Duration::from_millis(REQUEST_TIMEOUT_MS_DEFAULT),
        }
    }

    /// A call that is made on every new connection before the link is up: `JoinDaemon` or
    /// `JoinClient`. Takes effect with the next connection.
    pub fn set_join(&mut self, join: MasterCall) {
        self.join = Some(join);
    }

    /// The pool's secret, which the master has to have as well. Takes effect with the next
    /// connection.
    pub fn set_secret(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Starts connecting, if the link is down and its pause is over. Never blocks, except to look
    /// up a name that is not an address.
    pub fn connect(&mut self) {
        let resting = self.retry_at.is_some_and(|at| Instant::now() < at);
        if self.socket.is_none() && !resting {
            self.begin();
        }
    }

    /// Whether calls can be sent: connected, greeted, joined.
    pub fn is_up(&self) -> bool {
        self.socket.as_ref().is_some_and(|s| s.stage == Stage::Up)
    }

    /// How often the link came up: a change tells a daemon that it joined anew.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// The answer to the join (or hello) of the present or last connection.
    pub fn welcome(&self) -> Option<&MasterAnswer> {
        self.welcome.as_ref()
    }

    /// Why the master does not want this link, as of the last attempt; retried all the same.
    pub fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }

    /// Messages sent so far, hello and join included. Warm accesses must not change it.
    pub fn calls_sent(&self) -> u64 {
        self.calls_sent
    }

    /// A descriptor that is readable when [`MasterLink::poll`] has something to do; it stays the
    /// same for the life of the link. After [`MasterLink::call`] answers to other calls may wait
    /// without it being ready: `poll` once. While the link is down, `poll` has to be called every
    /// few milliseconds to a tenth of a second as well, which drives its attempts to reconnect.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.epoll.is_none() {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            if let Some(socket) = &self.socket {
                epoll::add(&epoll, &socket.stream, EventData::new_u64(0), socket.interest)?;
            }
            self.epoll = Some(epoll);
        }
        Ok(self.epoll.as_ref().expect("just made").as_fd())
    }

    /// Sends a call; its id comes back with the answer. Never blocks.
    ///
    /// # Errors
    /// `PeerDead` while the link is down, `Busy` with too many calls under way: nothing was sent.
    pub fn send(&mut self, call: MasterCall) -> Result<u64> {
        let dead = Error::PeerDead { peer: self.peer(), cause: DeathCause::Closed };
        let Some(socket) = self.socket.as_mut().filter(|s| s.stage == Stage::Up) else {
            return Err(self.refused.clone().unwrap_or(dead));
        };
        let busy =
            |what: &str, limit: usize| Err(Error::Busy { what: what.into(), limit: limit as u64 });
        if self.outstanding.len() >= MASTER_CALLS_MAX {
            return busy("link to the master (calls)", MASTER_CALLS_MAX);
        }
        if socket.writer.waiting_bytes() >= MASTER_CALL_BYTES_MAX {
            return busy("link to the master (bytes)", MASTER_CALL_BYTES_MAX);
        }
        let id = self.id_next;
        self.id_next += 1;
        self.outstanding.insert(id, Instant::now());
        self.transmit(MasterRequest { id, call });
        Ok(id)
    }

    /// Moves bytes and time forward without blocking; the answers that came.
    pub fn poll(&mut self) -> Vec<MasterReply> {
        self.connect();
        self.progress();
        self.check_time();
        std::mem::take(&mut self.replies)
    }

    /// Makes a call and waits for its answer, through reconnects and changes of the leader,
    /// until `deadline`. Answers to calls of [`MasterLink::send`] are kept for `poll`.
    ///
    /// # Errors
    /// What the master answered; `Timeout` if it did not answer; `Version`, `Denied`, … at once
    /// if it does not want this link, `Busy` at the deadline if it has no room for it.
    pub fn call(&mut self, call: MasterCall, deadline: Instant) -> Result<MasterAnswer> {
        let started = Instant::now();
        loop {
            self.wait_up(deadline)?;
            if !self.is_up() {
                break;
            }
            let id = self.send(call.clone())?;
            match self.wait_reply(id, deadline) {
                None => break,
                Some(Err(Error::PeerDead { .. } | Error::NotLeader { .. })) => {}
                Some(answer) => return answer,
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        let waited_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Err(self.silence(waited_ms))
    }

    /// The master did not answer for so long, and why the last attempt failed, if it is known.
    pub(crate) fn silence(&self, waited_ms: u64) -> Error {
        let why = self.trouble.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        Error::Timeout { peer: self.peer() + &why, waited_ms }
    }

    fn peer(&self) -> String {
        format!("master at {}", self.leader.as_ref().unwrap_or(&self.addrs[self.current]))
    }

    /// Starts a connection to the next address.
    fn begin(&mut self) {
        match self.next_addr().and_then(open_socket) {
            Ok(stream) => {
                let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP;
                if let Some(epoll) = &self.epoll {
                    let added = epoll::add(epoll, &stream, EventData::new_u64(0), interest);
                    if added.is_err() {
                        return self.down();
                    }
                }
                self.socket = Some(Socket {
                    stream: SecureStream::new(stream),
                    reader: FrameReader::default(),
                    writer: FrameWriter::default(),
                    stage: Stage::Connecting,
                    proof: None,
                    since: Instant::now(),
                    interest,
                });
            }
            Err(error) => self.failed(&error),
        }
    }

    /// The next address of the name in use.
    fn next_addr(&mut self) -> io::Result<SocketAddr> {
        if self.untried.is_empty() {
            let name = self.leader.as_ref().unwrap_or(&self.addrs[self.current]);
            self.untried = resolve(name)?.into();
        }
        Ok(self.untried.pop_front().expect("a name that is one has an address"))
    }

    /// An attempt to connect failed.
    fn failed(&mut self, error: &io::Error) {
        self.trouble = Some(error.to_string());
        self.down();
    }

    /// Ends the connection, answers what was under way, and sets the next attempt.
    fn down(&mut self) {
        let peer = self.peer();
        if let Some(socket) = self.socket.take() {
            if let Some(epoll) = &self.epoll {
                // It cannot fail: the socket was added when it was made.
                let _ = epoll::delete(epoll, &socket.stream);
            }
            // After a connection that served for a while the backoff begins anew; else it grows, so
            // that a master that comes and goes is tried less often.
            if socket.stage == Stage::Up && socket.since.elapsed() > CONNECT_TIMEOUT {
                self.backoff_ms = MASTER_BACKOFF_MS_MIN;
            }
        }
        for (id, _) in std::mem::take(&mut self.outstanding) {
            let answer = Err(Error::PeerDead { peer: peer.clone(), cause: DeathCause::Closed });
            self.replies.push(MasterReply { id, term: 0, index: 0, answer });
        }
        if self.untried.is_empty() && self.leader.take().is_none() {
            self.current = (self.current + 1) % self.addrs.len();
        }
        // Between half and all of the pause, so that a thousand handles do not come as one.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let pause_us = self.backoff_ms * 500 + self.random % (self.backoff_ms * 500);
        self.retry_at = Some(Instant::now() + Duration::from_micros(pause_us));
        self.backoff_ms = (2 * self.backoff_ms).min(MASTER_BACKOFF_MS_MAX);
    }

    fn transmit(&mut self, request: MasterRequest) {
        self.calls_sent += 1;
        let bytes = wire::encode_vec(&request);
        let socket = self.socket.as_mut().expect("the caller looked");
        socket.writer.push(&bytes);
        // Nothing is read here: an answer taken now would no longer make the descriptor ready.
        // A failed socket is ready as well, so that `poll` finds it.
        let _ = socket.writer.flush(&mut socket.stream);
        self.set_interest();
    }

    fn transmit_own(&mut self, call: MasterCall, stage: Stage) {
        let id = OWN_IDS + self.id_next;
        self.id_next += 1;
        self.own = Some(id);
        self.socket.as_mut().expect("the caller looked").stage = stage;
        self.transmit(MasterRequest { id, call });
    }

    /// Moves bytes as far as the socket goes.
    fn progress(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        if socket.stage == Stage::Connecting {
            match finish_connect(socket.stream.as_fd()) {
                Ok(false) => return,
                Ok(true) => return self.begin_proof(),
                Err(error) => return self.failed(&error),
            }
        }
        if socket.stage == Stage::Proving {
            return self.prove();
        }
        let written = socket.writer.flush(&mut socket.stream);
        let read = socket.reader.fill_of(&mut socket.stream);
        let mut taken = Vec::new();
        let broken = loop {
            match socket.reader.next(MASTER_MESSAGE_BYTES_MAX) {
                Ok(None) => break false,
                Ok(Some(frame)) => match wire::decode::<MasterReply>(frame, "master") {
                    Ok(reply) => taken.push(reply),
                    Err(_) => break true,
                },
                Err(_) => break true,
            }
        };
        for reply in taken {
            self.take(reply);
        }
        let ended = written.is_err() || !matches!(read, Ok(ReadEnd::Empty | ReadEnd::More));
        if (ended || broken) && self.socket.is_some() {
            self.down();
        }
        self.set_interest();
    }

    /// Proves that we have the secret, or says hello if there is none.
    fn begin_proof(&mut self) {
        let Some(secret) = &self.secret else { return self.greet() };
        let begun = Handshake::begin(secret, Purpose::Master);
        let Ok((proof, first)) = begun else { return self.down() };
        let socket = self.socket.as_mut().expect("the caller looked");
        (socket.stage, socket.proof) = (Stage::Proving, Some(proof));
        socket.writer.push_bare(&first);
        self.prove();
    }

    /// Goes on with the proof; after it hello is said.
    fn prove(&mut self) {
        let socket = self.socket.as_mut().expect("the caller looked");
        let read = socket.reader.fill_of(&mut socket.stream);
        let proof = socket.proof.as_mut().expect("there is one in this stage");
        let progress = loop {
            let step = proof.advance(socket.reader.waiting());
            socket.reader.consume(step.consumed);
            if let Some(reply) = &step.reply {
                socket.writer.push_bare(reply);
            }
            if step.progress != Progress::Pending || step.consumed == 0 {
                break step.progress;
            }
        };
        let written = socket.writer.flush(&mut socket.stream);
        let is_open = written.is_ok() && matches!(read, Ok(ReadEnd::Empty | ReadEnd::More));
        match progress {
            Progress::Done if is_open => {
                if let Some(records) = socket.proof.take().and_then(Handshake::into_records) {
                    socket.stream.encrypt(records);
                }
                return self.greet();
            }
            Progress::Failed(why) => {
                self.refused = Some(self.distrusted(why));
                self.down();
            }
            _ if !is_open => self.down(),
            _ => {}
        }
        self.set_interest();
    }

    fn distrusted(&self, why: Failure) -> Error {
        match why {
            Failure::Distrust(why) => Error::of_death(self.peer(), DeathCause::Distrusted(why)),
            Failure::Busy => {
                let what = format!("the table of connections of the {}", self.peer());
                Error::Busy { what, limit: MASTER_CONNECTIONS_MAX as u64 }
            }
            why => Error::Protocol { peer: self.peer(), reason: why.to_string() },
        }
    }

    fn greet(&mut self) {
        self.transmit_own(MasterCall::Hello { version: WIRE_VERSION }, Stage::Greeting);
    }

    fn take(&mut self, reply: MasterReply) {
        if self.own == Some(reply.id) || self.own.is_some() && reply.id == UNASKED {
            self.own = None;
            return self.take_own(reply.answer);
        }
        if self.outstanding.remove(&reply.id).is_none() {
            return; // It timed out before.
        }
        if let Err(Error::NotLeader { leader }) = &reply.answer {
            let leader = leader.clone();
            self.replies.push(reply);
            return self.follow(leader);
        }
        self.backoff_ms = MASTER_BACKOFF_MS_MIN;
        self.replies.push(reply);
    }

    /// The answer to hello or join.
    fn take_own(&mut self, answer: Result<MasterAnswer>) {
        let Some(stage) = self.socket.as_ref().map(|s| s.stage) else { return };
        match answer {
            Ok(answer) => {
                self.welcome = Some(answer);
                match self.join.clone().filter(|_| stage == Stage::Greeting) {
                    Some(join) => self.transmit_own(join, Stage::Joining),
                    None => {
                        self.socket.as_mut().expect("looked at above").stage = Stage::Up;
                        (self.refused, self.trouble) = (None, None);
                        self.connections += 1;
                    }
                }
            }
            Err(Error::NotLeader { leader }) => self.follow(leader),
            Err(error) => {
                // The master's error names its caller; the error for our caller names the master.
                self.refused = Some(match error {
                    Error::Version { found, supported, .. } => {
                        Error::Version { peer: self.peer(), found: supported, supported: found }
                    }
                    error => error,
                });
                self.down();
            }
        }
    }

    /// Goes to the leader that a master named, or to the next address.
    fn follow(&mut self, leader: String) {
        self.leader = None;
        self.untried.clear();
        self.down();
        if !leader.is_empty() {
            self.leader = Some(leader);
        }
    }

    fn set_interest(&mut self) {
        let (Some(socket), Some(epoll)) = (&mut self.socket, &self.epoll) else { return };
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        if socket.wants_out() {
            interest |= EventFlags::OUT;
        }
        if interest != socket.interest {
            socket.interest = interest;
            // It cannot fail: the socket was added when it was made.
            let _ = epoll::modify(epoll, &socket.stream, EventData::new_u64(0), interest);
        }
    }

    /// Gives up connections that do not come up, and answers calls that took too long.
    fn check_time(&mut self) {
        let now = Instant::now();
        let timeout = self.timeout;
        let allowed = match self.socket.as_ref().map(|s| s.stage) {
            Some(Stage::Connecting | Stage::Proving | Stage::Greeting) => CONNECT_TIMEOUT,
            // A fresh master makes a daemon with a new region wait for a lease.
            Some(Stage::Joining) => timeout,
            Some(Stage::Up) | None => Duration::MAX,
        };
        if self.socket.as_ref().is_some_and(|s| now.duration_since(s.since) > allowed) {
            self.down();
        }
        let late = |(_, sent): &(&u64, &Instant)| now.duration_since(**sent) > timeout;
        let late: Vec<u64> = self.outstanding.iter().filter(late).map(|(&id, _)| id).collect();
        for id in late {
            self.outstanding.remove(&id);
            let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            let answer = Err(Error::Timeout { peer: self.peer(), waited_ms });
            self.replies.push(MasterReply { id, term: 0, index: 0, answer });
        }
    }

    fn step(&mut self) {
        self.connect();
        self.progress();
        self.check_time();
    }

    /// Waits until the link is up or the deadline is over; an error if the master refuses it.
    fn wait_up(&mut self, deadline: Instant) -> Result<()> {
        self.refused = None;
        loop {
            self.step();
            if self.is_up() {
                return Ok(());
            }
            let late = Instant::now() >= deadline;
            if let Some(error) = self.refused.as_ref().filter(|e| late || !e.may_retry()) {
                return Err(error.clone());
            }
            if late {
                return Ok(());
            }
            self.wait_socket(deadline);
        }
    }

    /// The answer to call `id`; `None` at the deadline, when the answer is no longer wanted.
    fn wait_reply(&mut self, id: u64, deadline: Instant) -> Option<Result<MasterAnswer>> {
        let mut spins = 0;
        loop {
            self.step();
            if let Some(at) = self.replies.iter().position(|reply| reply.id == id) {
                return Some(self.replies.remove(at).answer);
            }
            if spins < SPINS_MAX {
                spins += 1;
                std::thread::yield_now();
                continue;
            }
            if Instant::now() >= deadline {
                self.outstanding.remove(&id);
                return None;
            }
            self.wait_socket(deadline);
        }
    }

    /// Sleeps until the socket has something, the next attempt is due, or the deadline is over.
    fn wait_socket(&mut self, deadline: Instant) {
        let Some(socket) = &self.socket else {
            let due = self.retry_at.unwrap_or(deadline).min(deadline);
            return std::thread::sleep(due.saturating_duration_since(Instant::now()));
        };
        let mut flags = PollFlags::IN | PollFlags::RDHUP;
        if socket.wants_out() {
            flags |= PollFlags::OUT;
        }
        let mut until = deadline;
        if socket.stage < Stage::Joining {
            until = until.min(socket.since + CONNECT_TIMEOUT + Duration::from_millis(1));
        }
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        // An interrupted or failed wait is as good as a short one: the caller looks again.
        let _ = rustix::event::poll(&mut [PollFd::new(&socket.stream, flags)], left.as_ref());
    }
}

/// A socket that is connecting.
fn open_socket(addr: SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &addr) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether a connecting socket is connected.
fn finish_connect(socket: BorrowedFd<'_>) -> io::Result<bool> {
    if let Err(error) = sockopt::socket_error(socket)? {
        return Err(error.into());
    }
    let there = match rustix::net::getpeername(socket) {
        Ok(there) => there,
        Err(Errno::NOTCONN) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // A loopback connection to a free port can meet itself; it would also keep the port taken.
    if Some(rustix::net::getsockname(socket)?) == there {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}
