//! One connection: its socket, its session, and what is not understood or not sent yet. Idle
//! ones hold no buffer; a worker lends its own.
//!
//! Ordering rule: while answers wait for the client nothing more is read from it, so that what it
//! can make us hold is bounded by what one read brings and one command answers.
//!
//! A session that we end is ended on our side alone: what its client has still sent is passed
//! over until it has read the last answer and ends its side too. A socket that is closed while
//! something comes in throws away what its client does not have yet.

use super::clients::ClientInfo;
use super::core::Core;
use super::counters::Count;
use super::output::Output;
use super::session::Session;
use super::tls::Channel;
use crate::cache::Millis;
use crate::constants::{INPUT_BYTES_MAX, READ_BYTES, READS_MAX, RECEIVED_PER_MS_MIN};
use rackpool_hw::addresses::ConnectionPermit;
use rackpool_hw::event::{Interest, Readiness};
use rackpool_hw::window::{Next, Piece, SEND_PIECES_MAX, send_gather};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// What to do with a connection after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextInterest {
    /// Keep it; wait for this.
    Wait(Interest),
    End,
}

pub struct Connection {
    fd: OwnedFd,
    session: Session,
    /// Bytes that were read and not understood yet.
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
    /// What the poller waits for.
    pub interest: Interest,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    /// A new connection; its socket does not block.
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
        // Relaxed: a time for display.
        self.session.client.active.store(core.now, Ordering::Relaxed);
        if self.is_stuck() && !self.resume(core) {
            return self.next_interest();
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
                Ok(_) if core.timer.is_turn_over() => break,
                // The buffer was full, or nearly: there may be more.
                Ok(count) if count >= READ_BYTES => {}
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
            // The input will not be reported again: the socket, which takes answers, wakes us.
            (false, false) if self.channel.has_input() || self.has_more() => {
                NextInterest::Wait(Interest::Write)
            }
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

/// Sends the first pieces, by one system call.
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
