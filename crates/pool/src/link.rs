//! The link to the master over sockets: daemons drive it from their poll loop, client handles call
//! it and wait. Owns one socket, with the proof of the secret, records and frames on it; what is
//! said on it and when, is [`rackpool_core::runtime::master_link`].
//!
//! Ordering rule: every call that [`MasterLink::send`] took is answered by
//! [`MasterLink::poll`] exactly once: by the master, by `PeerDead` when the connection ended, or
//! by `Timeout`. Nothing here waits without a limit; only [`MasterLink::call`] waits at all.
//!
//! Used by one thread at a time. Source: DESIGN §2 (master), §4 (death and silence).

use crate::clock;
use crate::master::frame::{FrameStream, ReadEnd};
use rackpool_core::client::MasterQuery;
use rackpool_core::constants::{
    MASTER_CALL_BYTES_MAX, MASTER_CONNECTIONS_MAX, MASTER_MESSAGE_BYTES_MAX,
};
use rackpool_core::error::{DeathCause, Error, Result};
use rackpool_core::runtime::jittered_ns;
use rackpool_core::runtime::master_link::{self, Advance, Call};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{MasterAnswer, MasterReply, MasterRequest};
use rackpool_fabric::handshake::{Failure, Handshake, Progress, Purpose};
use rackpool_fabric::secret::Secret;
use rackpool_mem::names::resolve;
use rackpool_mem::process::random_u64;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Looks at the socket before a waiting call sleeps: an answer from memory comes in some 10 µs.
const SPINS_MAX: u32 = 16;
/// The longest wait for a connection that is not up, after which the link looks at its time.
const CONNECTING_NS: Nanos = 50_000_000;

struct Socket {
    frames: FrameStream,
    is_connected: bool,
    interest: EventFlags,
}

impl Socket {
    /// Whether it waits for room in the socket, or for the connection.
    fn wants_out(&self) -> bool {
        !self.is_connected || self.frames.unsent_bytes() > 0
    }
}

/// A connection to the master that comes back by itself.
pub struct MasterLink {
    link: master_link::MasterLink,
    /// What the address in use stands for and was not tried yet.
    untried: VecDeque<SocketAddr>,
    /// Why the last attempt to connect failed.
    trouble: Option<String>,
    secret: Option<Secret>,
    socket: Option<Socket>,
    /// A descriptor that stays the same across connections.
    epoll: Option<OwnedFd>,
    random: u64,
    retry_at: Nanos,
}

impl MasterLink {
    /// A link to the master at one of `addrs`, such as `127.0.0.1:7400`; nothing is done yet.
    ///
    /// # Panics
    /// Without an address.
    pub fn new(addrs: Vec<String>) -> Self {
        Self {
            link: master_link::MasterLink::new(addrs),
            untried: VecDeque::new(),
            trouble: None,
            secret: None,
            socket: None,
            epoll: None,
            random: random_u64().unwrap_or(1) | 1,
            retry_at: 0,
        }
    }

    /// A call that is made on every new connection before the link is up. Takes effect with the
    /// next connection.
    pub fn set_join(&mut self, join: impl Into<Call>) {
        self.link.join = Some(join.into());
    }

    /// The pool's secret, which the master has to have as well. Takes effect with the next
    /// connection.
    pub fn set_secret(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Starts connecting, if the link is down and its pause is over. Never blocks, except to look
    /// up a name that is not an address.
    pub fn connect(&mut self) {
        if self.socket.is_none() && clock::now_ns() >= self.retry_at {
            self.begin();
        }
    }

    /// Whether calls can be sent: connected, greeted, joined.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// How often the link came up: a change tells a daemon that it joined anew.
    pub fn connections(&self) -> u64 {
        self.link.connections()
    }

    /// The answer to the join (or hello) of the present or last connection.
    pub fn welcome(&self) -> Option<&MasterAnswer> {
        self.link.welcome.as_ref()
    }

    /// Why the master does not want this link, as of the last attempt; retried all the same.
    pub fn refused(&self) -> Option<&Error> {
        self.link.refused.as_ref()
    }

    /// Messages sent so far, hello and join included. Warm accesses must not change it.
    pub fn calls_sent(&self) -> u64 {
        self.link.calls_sent()
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
                epoll::add(&epoll, &socket.frames.stream, EventData::new_u64(0), socket.interest)?;
            }
            self.epoll = Some(epoll);
        }
        Ok(self.epoll.as_ref().expect("just made").as_fd())
    }

    /// Sends a call; its id comes back with the answer. Never blocks.
    ///
    /// # Errors
    /// `PeerDead` while the link is down, `Busy` with too many calls under way: nothing was sent.
    pub fn send(&mut self, call: impl Into<Call>) -> Result<u64> {
        let waiting = self.socket.as_ref().map_or(0, |socket| socket.frames.writer.waiting_bytes());
        if self.is_up() && waiting >= MASTER_CALL_BYTES_MAX {
            let limit = MASTER_CALL_BYTES_MAX as u64;
            return Err(Error::Busy { what: "link to the master (bytes)".into(), limit });
        }
        let request = self.link.send(clock::now_ns(), call)?;
        let id = request.id;
        self.transmit([request]);
        Ok(id)
    }

    /// Moves bytes and time forward without blocking; the answers that came.
    pub fn poll(&mut self) -> Vec<MasterReply> {
        self.step();
        self.link.take_replies()
    }

    /// Makes a call and waits for its answer, through reconnects and changes of the leader,
    /// until `deadline`. Answers to calls of [`MasterLink::send`] are kept for `poll`.
    ///
    /// # Errors
    /// What the master answered; `Timeout` if it did not answer; `Version`, `Denied`, … at once
    /// if it does not want this link, `Busy` at the deadline if it has no room for it.
    pub fn call(&mut self, call: impl Into<Call>, deadline: Instant) -> Result<MasterAnswer> {
        let started_ns = clock::now_ns();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ns =
            started_ns.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let mut call = self.link.begin(call);
        let mut spins = 0;
        loop {
            self.step();
            let now = clock::now_ns();
            match self.link.advance(now, &mut call) {
                Advance::Answered(answer) => return answer,
                Advance::Send(request) => {
                    self.transmit([request]);
                    spins = SPINS_MAX;
                }
                Advance::Waits if now >= deadline_ns => {
                    let refused = self.link.give_up(&call);
                    let waited_ms = (now - started_ns) / 1_000_000;
                    return Err(refused.unwrap_or_else(|| self.silence(waited_ms)));
                }
                Advance::Waits if spins > 0 => {
                    spins -= 1;
                    std::thread::yield_now();
                }
                Advance::Waits => self.wait_socket(deadline_ns),
            }
        }
    }

    /// As [`MasterLink::call`], with the answer as its own type.
    ///
    /// # Errors
    /// As [`MasterLink::call`]; `protocol` if the answer is to something else.
    pub fn ask<A>(&mut self, query: &MasterQuery<A>, deadline: Instant) -> Result<A> {
        query.answer(self.call(query, deadline)?)
    }

    /// The master did not answer for so long, and why the last attempt failed, if it is known.
    pub(crate) fn silence(&self, waited_ms: u64) -> Error {
        let why = self.trouble.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        Error::Timeout { peer: self.link.peer() + &why, waited_ms }
    }

    /// Starts a connection to the next address.
    fn begin(&mut self) {
        self.link.on_open(clock::now_ns());
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
                    frames: FrameStream::new(stream, None),
                    is_connected: false,
                    interest,
                });
            }
            Err(error) => self.failed(&error),
        }
    }

    /// The next address of the name in use.
    fn next_addr(&mut self) -> io::Result<SocketAddr> {
        if self.untried.is_empty() {
            self.untried = resolve(self.link.address())?.into();
        }
        Ok(self.untried.pop_front().expect("a name that is one has an address"))
    }

    /// An attempt to connect failed.
    fn failed(&mut self, error: &io::Error) {
        self.trouble = Some(error.to_string());
        self.down();
    }

    /// Ends the connection, and sets the next attempt.
    fn down(&mut self) {
        if let (Some(socket), Some(epoll)) = (self.socket.take(), &self.epoll) {
            // It cannot fail: the socket was added when it was made.
            let _ = epoll::delete(epoll, &socket.frames.stream);
        }
        let address = self.link.address().to_owned();
        let now = clock::now_ns();
        let pause_ns = self.link.on_closed(now, self.untried.is_empty());
        if self.link.address() != address {
            self.untried.clear();
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.retry_at = now + jittered_ns(pause_ns, self.random);
    }

    fn transmit(&mut self, requests: impl IntoIterator<Item = MasterRequest>) {
        let socket = self.socket.as_mut().expect("it is connected");
        for request in requests {
            socket.frames.writer.push(&request.encode());
        }
        // Nothing is read here: an answer taken now would no longer make the descriptor ready.
        // A failed socket is ready as well, so that `poll` finds it.
        let _ = socket.frames.flush();
        self.set_interest();
    }

    /// Moves bytes as far as the socket goes.
    fn progress(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        if !socket.is_connected {
            match finish_connect(socket.frames.stream.as_fd()) {
                Ok(false) => return,
                Ok(true) => return self.begin_proof(),
                Err(error) => return self.failed(&error),
            }
        }
        if socket.frames.proof.is_some() {
            return self.prove();
        }
        let written = socket.frames.flush();
        let read = socket.frames.fill();
        let mut taken = Vec::new();
        let broken = loop {
            match socket.frames.next::<MasterReply>(MASTER_MESSAGE_BYTES_MAX, "master") {
                Ok(Some(reply)) => taken.push(reply),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        let ended = written.is_err() || !matches!(read, Ok(ReadEnd::Empty | ReadEnd::More));
        let goes_on = taken.into_iter().all(|reply| self.link.on_reply(reply));
        if self.is_up() {
            self.trouble = None;
        }
        if ended || broken || !goes_on {
            self.down();
        }
        self.set_interest();
    }

    /// Proves that we have the secret, or says hello if there is none.
    fn begin_proof(&mut self) {
        let socket = self.socket.as_mut().expect("the caller looked");
        socket.is_connected = true;
        let Some(secret) = &self.secret else { return self.greet() };
        let begun = Handshake::begin(secret, Purpose::Master);
        let Ok((proof, first)) = begun else { return self.down() };
        socket.frames.proof = Some(proof);
        socket.frames.writer.push_bare(&first);
        self.prove();
    }

    /// Goes on with the proof; after it hello is said.
    fn prove(&mut self) {
        let socket = self.socket.as_mut().expect("the caller looked");
        let read = socket.frames.fill();
        let progress = socket.frames.prove();
        let written = socket.frames.flush();
        let is_open = written.is_ok() && matches!(read, Ok(ReadEnd::Empty | ReadEnd::More));
        match progress {
            Progress::Done if is_open => return self.greet(),
            Progress::Failed(why) => {
                self.link.refused = Some(self.distrusted(why));
                self.down();
            }
            _ if !is_open => self.down(),
            _ => {}
        }
        self.set_interest();
    }

    fn distrusted(&self, why: Failure) -> Error {
        match why {
            Failure::Distrust(why) => {
                Error::of_death(self.link.peer(), DeathCause::Distrusted(why))
            }
            Failure::Busy => {
                let what = format!("the table of connections of the {}", self.link.peer());
                Error::Busy { what, limit: MASTER_CONNECTIONS_MAX as u64 }
            }
            why => Error::Protocol { peer: self.link.peer(), reason: why.to_string() },
        }
    }

    /// Says hello and joins, in one piece: a master that refuses the first and closes leaves
    /// nothing unread, so its answer is not lost to a reset.
    fn greet(&mut self) {
        let first = self.link.connected();
        self.transmit(first);
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
            let _ = epoll::modify(epoll, &socket.frames.stream, EventData::new_u64(0), interest);
        }
    }

    fn step(&mut self) {
        self.connect();
        self.progress();
        if !self.link.tick(clock::now_ns()) {
            self.down();
        }
    }

    /// Sleeps until the socket has something, the next attempt is due, or the deadline is over.
    fn wait_socket(&mut self, deadline_ns: Nanos) {
        let deadline_ns = clock::slice(deadline_ns);
        let now = clock::now_ns();
        let left = |until: Nanos| Duration::from_nanos(until.min(deadline_ns).saturating_sub(now));
        let Some(socket) = &self.socket else {
            return std::thread::sleep(left(self.retry_at));
        };
        let mut flags = PollFlags::IN | PollFlags::RDHUP;
        if socket.wants_out() {
            flags |= PollFlags::OUT;
        }
        let until = if self.is_up() { deadline_ns } else { now + CONNECTING_NS };
        let left = Timespec::try_from(left(until)).ok();
        // An interrupted or failed wait is as good as a short one: the caller looks again.
        let _ =
            rustix::event::poll(&mut [PollFd::new(&socket.frames.stream, flags)], left.as_ref());
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
