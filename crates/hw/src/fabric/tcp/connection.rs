//! One connection of an endpoint: its queue of work requests, of which a first part is sent and
//! waits for answers and the rest waits for the socket; the receiving of answers, straight into
//! local buffers where they are long; and whether the peer is alive.
//!
//! In: work requests, time. Out: events. Called by `endpoint.rs`, which owns the buffers.
//!
//! Order: requests are sent and answered in the order of posting. A request that was refused
//! here (too long) keeps its place in the queue without being sent.
//!
//! Liveness: a PING goes out when nothing was received for a heartbeat; the peer is silent when
//! nothing was received and no blocked sending went on for a lease less that heartbeat after it.
//! What the socket holds is read before the time is looked at, so that an application that was
//! away or stopped never takes its own absence for the peer's.
//!
//! Source: DESIGN §3 (liveness), §4 (a peer's death is typed).

mod greet;

use super::super::FabricStats;
use super::super::buffers::Buffers;
use super::broken::Broken;
use super::exposed::{Exposures, Landing};
use super::frame::{
    FrameError, HEADER_BYTES, Header, Op, Put, Request, Response, Status, payload_bytes_max,
};
use super::{CHUNK_BYTES, DIRECT_BYTES_MIN, Input, Moved, recv, send, sent};
use crate::handshake::{Handshake, Message};
use crate::secure_stream::SecureStream;
use rackpool_core::addr::Generation;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, FABRIC_SGES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    BufId, FabricEvent, Nanos, PeerId, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;

/// Bytes received at once: many short answers in one system call.
const INPUT_BYTES: usize = 64 << 10;
/// What waits for the socket and is no longer than this is put together and sent by one plain
/// call; longer data is gathered by the kernel.
pub(super) const STAGED_BYTES_MAX: usize = 8 << 10;
/// Work requests that wait for one another at most.
const GATHERED_WORK: usize = 16;
/// Pieces that one gathering call takes: header and all local pieces of many work requests.
const GATHERED_PIECES: usize = 256;

/// What became of a work request that may not touch its memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) enum Disowned {
    /// It is not executed.
    Cancelled,
    /// It was executed, or may be.
    Executed,
    /// The same, out of this buffer, which is to be released when it has completed.
    Copied(BufId),
}

/// What a connection needs of its endpoint.
pub(super) struct Context<'a> {
    pub(super) buffers: &'a mut Buffers,
    pub(super) staged: &'a mut Vec<u8>,
    pub(super) stats: &'a mut FabricStats,
    pub(super) one_sided_done: &'a mut bool,
    pub(super) lease_ms: u64,
    pub(super) heartbeat_ns: Nanos,
}

/// A work request in the queue.
struct Work {
    id: u64,
    op: Op,
    seq: u32,
    signalled: bool,
    /// Its destination is gone: data of a READ is dropped.
    discard: bool,
    /// Never sent; this is its status when its turn comes.
    refused: Option<WorkStatus>,
    header: [u8; HEADER_BYTES],
    pieces: [Sge; FABRIC_SGES_MAX],
    piece_count: u8,
    bytes: u64,
}

impl Work {
    fn pieces(&self) -> &[Sge] {
        &self.pieces[..usize::from(self.piece_count)]
    }

    fn is_ping(&self) -> bool {
        self.op == Op::Ping
    }

    fn frame_bytes(&self) -> u64 {
        match self.refused {
            Some(_) => 0,
            None if self.op.sends_payload() => HEADER_BYTES as u64 + self.bytes,
            None => HEADER_BYTES as u64,
        }
    }

    fn is_long_read(&self) -> bool {
        self.op == Op::Read && self.bytes >= DIRECT_BYTES_MIN && !self.discard
    }

    /// The rest of the piece that byte `done` of the data belongs to, at most `limit` bytes.
    fn piece_at(&self, done: u64, limit: u64) -> Sge {
        let mut start = 0;
        for piece in self.pieces() {
            if done < start + piece.bytes {
                let skip = done - start;
                let bytes = (piece.bytes - skip).min(limit);
                return Sge { buf: piece.buf, offset: piece.offset + skip, bytes };
            }
            start += piece.bytes;
        }
        unreachable!("byte {done} of {} bytes of local pieces", self.bytes);
    }
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// The secret is being proved.
    Proving,
    /// The target's hello was not received.
    Greeting,
    Up,
}

enum Receiving {
    Header,
    /// Data of the oldest work request, a READ.
    Data {
        done: u64,
        more: bool,
    },
    /// The second header of a READ.
    Second,
    /// Data for an exposed buffer.
    Put(Landing),
    /// A message of the target's application.
    Message {
        bytes: Vec<u8>,
        left: usize,
    },
}

/// One connection of an endpoint.
pub(super) struct Connection {
    pub(super) stream: SecureStream,
    pub(super) addr: SocketAddr,
    pub(super) broken: Option<Broken>,
    /// What the endpoint's epoll waits for: also room to send.
    pub(super) polls_out: bool,
    stage: Stage,
    /// The proof of the secret, and its first words.
    proof: Option<(Handshake, Message)>,
    queue: VecDeque<Work>,
    pings: usize,
    /// The first work request that is not sent to its end, bytes of it sent, and bytes not sent
    /// in the whole queue.
    unsent: usize,
    unsent_done: u64,
    unsent_bytes: u64,
    send_blocked: bool,
    input: Input,
    receiving: Receiving,
    pub(super) exposures: Exposures,
    seq_next: u32,
    heard: Nanos,
    pinged: Option<Nanos>,
    used: Nanos,
}

impl Connection {
    /// One that is being made to `addr`; `proof` comes before anything else.
    pub(super) fn new(
        socket: OwnedFd,
        addr: SocketAddr,
        proof: Option<(Handshake, Message)>,
        now: Nanos,
    ) -> Self {
        Self {
            stream: SecureStream::new(socket),
            addr,
            broken: None,
            polls_out: false,
            stage: Stage::Connecting,
            proof,
            queue: VecDeque::with_capacity(FABRIC_OUTSTANDING_MAX as usize + 1),
            pings: 0,
            unsent: 0,
            unsent_done: 0,
            unsent_bytes: 0,
            send_blocked: false,
            input: Input::new(INPUT_BYTES),
            receiving: Receiving::Header,
            exposures: Exposures::default(),
            seq_next: 1,
            heard: now,
            pinged: None,
            used: now,
        }
    }

    /// Work requests in the queue.
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len() - self.pings
    }

    /// Whether what is not sent may wait for more: answers are under way, so a poll will come, and
    /// it is not a batch yet.
    pub(super) fn may_gather(&self) -> bool {
        self.unsent > 0
            && self.queue.len() - self.unsent < GATHERED_WORK
            && self.unsent_bytes <= STAGED_BYTES_MAX as u64
    }

    /// Whether the socket should be asked for room.
    pub(super) fn wants_out(&self) -> bool {
        self.stage == Stage::Connecting || self.unsent_bytes > 0 || self.stream.has_unsent()
    }

    /// Whether nothing can be expected soon.
    pub(super) fn is_quiet(&self, now: Nanos, quiet_ns: Nanos) -> bool {
        self.stage == Stage::Up
            && self.broken.is_none()
            && self.queue.is_empty()
            && now.saturating_sub(self.used) > quiet_ns
    }

    /// Appends a work request, without sending it; `false` if the queue holds `limit` of them.
    pub(super) fn enqueue(&mut self, work: &WorkRequest<'_>, limit: usize) -> bool {
        if self.outstanding() >= limit {
            return false;
        }
        let nowhere = RemoteAddr { offset: 0, key: Generation(0) };
        let (op, at, operands) = match work.verb {
            Verb::Read(at) => (Op::Read, at, [0, 0]),
            Verb::Write(at) => (Op::Write, at, [0, 0]),
            Verb::WriteImm(at, imm) => (Op::WriteImm, at, [u64::from(imm), 0]),
            Verb::Send => (Op::Send, nowhere, [0, 0]),
            Verb::Cas { at, expected, new } => (Op::Cas, at, [expected, new]),
            Verb::FetchAdd { at, n } => (Op::FetchAdd, at, [n, 0]),
        };
        let bytes = work.local.iter().map(|piece| piece.bytes).sum();
        let refused = (bytes > payload_bytes_max(op)).then_some(WorkStatus::BadRange);
        let request = Request { op, seq: self.next_seq(), bytes, at, operands };
        let mut pieces = [Sge { buf: BufId(0), offset: 0, bytes: 0 }; FABRIC_SGES_MAX];
        pieces[..work.local.len()].copy_from_slice(work.local);
        self.push(Work {
            id: work.id,
            op,
            seq: request.seq,
            signalled: work.signalled,
            discard: false,
            refused,
            header: zerocopy::transmute!(request.header()),
            pieces,
            piece_count: work.local.len() as u8,
            bytes,
        });
        true
    }

    fn ping(&mut self, now: Nanos) {
        let at = RemoteAddr { offset: 0, key: Generation(0) };
        let request =
            Request { op: Op::Ping, seq: self.next_seq(), bytes: 0, at, operands: [0, 0] };
        self.push(Work {
            id: 0,
            op: Op::Ping,
            seq: request.seq,
            signalled: false,
            discard: false,
            refused: None,
            header: zerocopy::transmute!(request.header()),
            pieces: [Sge { buf: BufId(0), offset: 0, bytes: 0 }; FABRIC_SGES_MAX],
            piece_count: 0,
            bytes: 0,
        });
        self.pings += 1;
        self.pinged = Some(now);
    }

    fn next_seq(&mut self) -> u32 {
        let seq = self.seq_next;
        self.seq_next = seq.wrapping_add(1).max(1);
        seq
    }

    fn push(&mut self, work: Work) {
        self.unsent_bytes += work.frame_bytes();
        self.queue.push_back(work);
    }

    /// Sends what the socket takes. An error is kept until the answers that arrived before it
    /// have been read; see [`Connection::poll`].
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> Result<bool, Broken> {
        let mut moved = false;
        if self.stream.has_unsent() && !self.stream.flush()? {
            self.send_blocked = true;
            return Ok(false);
        }
        while self.stage == Stage::Up && self.unsent_bytes > 0 {
            let asked = self.unsent_bytes;
            let outcome = if asked <= STAGED_BYTES_MAX as u64 {
                cx.staged.clear();
                let staged = &mut *cx.staged;
                let unsent = self.queue.range(self.unsent..);
                visit_unsent(unsent, self.unsent_done, cx.buffers, |bytes| {
                    staged.extend_from_slice(bytes);
                    true
                });
                send(&mut self.stream, staged, cx.stats)?
            } else {
                self.send_gathered(cx.buffers, cx.stats)?
            };
            let Moved::Bytes(bytes) = outcome else {
                self.send_blocked = true;
                break;
            };
            moved = true;
            self.sent(bytes as u64);
        }
        if self.unsent_bytes == 0 {
            self.send_blocked = false;
        }
        Ok(moved)
    }

    fn send_gathered(&mut self, buffers: &Buffers, stats: &mut FabricStats) -> super::Io {
        let mut pieces = [IoSlice::new(&[]); GATHERED_PIECES];
        let mut count = 0;
        let unsent = self.queue.range(self.unsent..);
        visit_unsent(unsent, self.unsent_done, buffers, |bytes| {
            pieces[count] = IoSlice::new(bytes);
            count += 1;
            count < GATHERED_PIECES
        });
        sent(self.stream.send(&pieces[..count]), stats)
    }

    /// Notes that `bytes` more bytes of the queue are with the kernel.
    fn sent(&mut self, bytes: u64) {
        self.unsent_bytes -= bytes;
        self.unsent_done += bytes;
        while let Some(work) = self.queue.get(self.unsent) {
            let frame_bytes = work.frame_bytes();
            if self.unsent_done < frame_bytes {
                break;
            }
            self.unsent_done -= frame_bytes;
            self.unsent += 1;
        }
    }

    /// Makes progress: connecting, receiving, sending, heartbeat. `true` if anything moved.
    pub(super) fn poll(
        &mut self,
        peer: PeerId,
        now: Nanos,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> bool {
        if self.broken.is_some() {
            return false;
        }
        match self.progress(peer, now, cx, events) {
            Ok(moved) => {
                if moved {
                    self.used = now;
                }
                moved
            }
            Err(broken) => {
                self.broken = Some(broken);
                true
            }
        }
    }

    fn progress(
        &mut self,
        peer: PeerId,
        now: Nanos,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> Result<bool, Broken> {
        if self.stage != Stage::Up {
            return self.greet(peer, now, cx, events);
        }
        let heard = self.receive(peer, cx, events)?;
        if heard {
            (self.heard, self.pinged) = (now, self.pinged.map(|_| now));
        }
        self.settle_refused(peer, cx, events);
        let was_blocked = self.send_blocked;
        let moved = match self.flush(cx) {
            Ok(moved) => moved,
            Err(broken) => {
                // The peer may have answered before it went.
                while self.receive(peer, cx, events)? {}
                return Err(broken);
            }
        };
        if moved && was_blocked {
            (self.heard, self.pinged) = (now, self.pinged.map(|_| now));
        }
        self.check_liveness(now, cx)?;
        Ok(heard || moved)
    }

    fn check_liveness(&mut self, now: Nanos, cx: &mut Context<'_>) -> Result<(), Broken> {
        let patience_ns = cx.lease_ms * 1_000_000 - cx.heartbeat_ns;
        match self.pinged {
            Some(since) if self.pings > 0 => {
                if now.saturating_sub(since) >= patience_ns {
                    return Err(Broken::Silent { lease_ms: cx.lease_ms });
                }
            }
            _ => {
                if now.saturating_sub(self.heard) >= cx.heartbeat_ns {
                    self.ping(now);
                    cx.stats.pings += 1;
                    self.flush(cx)?;
                }
            }
        }
        Ok(())
    }

    /// Receives what the socket holds and completes what it answers. `true` if bytes came.
    fn receive(
        &mut self,
        peer: PeerId,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> Result<bool, Broken> {
        let mut heard = false;
        loop {
            let (moved, asked) = self.receive_once(cx)?;
            match moved {
                Moved::Nothing => return Ok(heard),
                Moved::End => return Err(Broken::Closed),
                Moved::Bytes(bytes) => {
                    heard = true;
                    while self.take_input(peer, cx, events)? {}
                    // A short receive has emptied the socket.
                    if bytes < asked {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// One call to the system: straight into a local buffer if much data is to come, else into
    /// the input. Answers what moved and how much was asked for.
    fn receive_once(&mut self, cx: &mut Context<'_>) -> Result<(Moved, usize), Broken> {
        if let Receiving::Put(landing) = &mut self.receiving
            && self.input.is_empty()
            && landing.left >= DIRECT_BYTES_MIN
            && let Some(piece) = self.exposures.next(landing, CHUNK_BYTES)
        {
            let to = cx.buffers.slice_mut(&piece);
            let asked = to.len();
            let moved = recv(&mut self.stream, to, cx.stats)?;
            if let Moved::Bytes(bytes) = moved {
                self.exposures.advance(landing, bytes as u64);
            }
            return Ok((moved, asked));
        }
        if let Receiving::Data { done, .. } = &mut self.receiving {
            let work = self.queue.front().expect("data belongs to a work request");
            if self.input.is_empty() && !work.discard && work.bytes - *done >= DIRECT_BYTES_MIN {
                let piece = work.piece_at(*done, CHUNK_BYTES);
                let to = cx.buffers.slice_mut(&piece);
                let asked = to.len();
                let moved = recv(&mut self.stream, to, cx.stats)?;
                if let Moved::Bytes(bytes) = moved {
                    *done += bytes as u64;
                }
                return Ok((moved, asked));
            }
        }
        let asked = self.input_limit();
        Ok((self.input.fill(&mut self.stream, asked, cx.stats)?, asked))
    }

    /// How much to receive into the input: not into the data of a long READ, which goes straight
    /// to its place.
    fn input_limit(&self) -> usize {
        let is_long = |index: usize| self.queue.get(index).is_some_and(Work::is_long_read);
        let limit = match &self.receiving {
            Receiving::Header if is_long(0) || self.exposures.expects(DIRECT_BYTES_MIN) => {
                HEADER_BYTES
            }
            Receiving::Second if is_long(1) => 2 * HEADER_BYTES,
            Receiving::Data { done, .. } if is_long(1) => {
                let left = self.queue.front().map_or(0, |work| work.bytes - done);
                left.min(INPUT_BYTES as u64) as usize
            }
            _ => INPUT_BYTES,
        };
        let filled = self.input.filled().len();
        if limit > filled { limit - filled } else { INPUT_BYTES - filled }
    }

    /// Takes one thing out of the input; `false` if there is nothing whole.
    fn take_input(
        &mut self,
        peer: PeerId,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> Result<bool, Broken> {
        match &mut self.receiving {
            Receiving::Header | Receiving::Second => {
                let Some(header) = Header::prefix_of(self.input.filled()) else {
                    return Ok(false);
                };
                self.input.consume(HEADER_BYTES);
                match Put::parse(&header)? {
                    Some(put) if matches!(self.receiving, Receiving::Header) => {
                        self.receiving = Receiving::Put(self.exposures.begin(&put)?);
                    }
                    _ => self.answered(peer, Response::parse(&header)?, cx, events)?,
                }
                Ok(true)
            }
            Receiving::Put(landing) => {
                let landing = *landing;
                Ok(self.take_put(landing, cx))
            }
            Receiving::Data { done, more } => {
                let work = self.queue.front().expect("data belongs to a work request");
                if *done < work.bytes {
                    if self.input.is_empty() {
                        return Ok(false);
                    }
                    let filled = self.input.filled();
                    let mut limit = (work.bytes - *done).min(filled.len() as u64);
                    if !work.discard {
                        let piece = work.piece_at(*done, limit);
                        limit = piece.bytes;
                        let from = &filled[..limit as usize];
                        cx.buffers.slice_mut(&piece).copy_from_slice(from);
                    }
                    *done += limit;
                    self.input.consume(limit as usize);
                    return Ok(true);
                }
                let more = *more;
                self.receiving = if more { Receiving::Second } else { Receiving::Header };
                if !more {
                    self.complete(peer, WorkStatus::Done(0), cx, events);
                }
                Ok(true)
            }
            Receiving::Message { bytes, left } => {
                let filled = self.input.filled();
                let taken = filled.len().min(*left);
                bytes.extend_from_slice(&filled[..taken]);
                *left -= taken;
                self.input.consume(taken);
                if *left > 0 {
                    return Ok(false);
                }
                let message = std::mem::take(bytes);
                events.push(FabricEvent::Received { peer, message });
                self.receiving = Receiving::Header;
                Ok(true)
            }
        }
    }

    /// Takes data for an exposed buffer out of the input; `false` if there is none.
    fn take_put(&mut self, mut landing: Landing, cx: &mut Context<'_>) -> bool {
        let limit = landing.left.min(self.input.filled().len() as u64);
        if limit == 0 && landing.left > 0 {
            return false;
        }
        if let Some(piece) = self.exposures.next(&landing, limit) {
            let from = &self.input.filled()[..limit as usize];
            cx.buffers.slice_mut(&piece).copy_from_slice(from);
        }
        self.exposures.advance(&mut landing, limit);
        self.input.consume(limit as usize);
        let is_over = landing.left == 0;
        self.receiving = if is_over { Receiving::Header } else { Receiving::Put(landing) };
        true
    }

    /// Acts on a header of the target.
    fn answered(
        &mut self,
        peer: PeerId,
        response: Response,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) -> Result<(), Broken> {
        let is_second = matches!(self.receiving, Receiving::Second);
        if !is_second && response.op == Op::Alive {
            return Ok(());
        }
        if !is_second && response.op == Op::Message {
            let left = response.bytes as usize;
            debug_assert!(left <= MESSAGE_BYTES_MAX as usize, "checked by the frame");
            self.receiving = Receiving::Message { bytes: Vec::with_capacity(left), left };
            return Ok(());
        }
        // The oldest request, if it is sent: an answer before that makes no sense.
        let work = self.queue.front().filter(|work| self.unsent > 0 && work.refused.is_none());
        let (op, expected) = work.map_or((Op::Alive, 0), |work| (work.op, work.seq));
        let bytes_fit = response.op != Op::Read
            || response.status != Status::Done
            || is_second
            || work.is_some_and(|work| work.bytes == response.bytes);
        let second_fits = !is_second || (response.bytes == 0 && !response.more);
        if response.op != op || response.seq != expected || !bytes_fit || !second_fits {
            let (op, seq) = (response.op as u8, response.seq);
            return Err(FrameError::Unasked { op, seq, expected }.into());
        }
        let status = match response.status {
            Status::Done if response.op == Op::Read && !is_second => {
                self.receiving = Receiving::Data { done: 0, more: response.more };
                return Ok(());
            }
            Status::Done => WorkStatus::Done(response.value),
            Status::BadKey => WorkStatus::BadKey,
            Status::BadRange => WorkStatus::BadRange,
        };
        self.receiving = Receiving::Header;
        self.complete(peer, status, cx, events);
        Ok(())
    }

    /// Ends the oldest work request.
    fn complete(
        &mut self,
        peer: PeerId,
        status: WorkStatus,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) {
        let work = self.queue.pop_front().expect("only a work request is completed");
        self.unsent -= 1;
        if work.is_ping() {
            self.pings -= 1;
            if self.pings == 0 {
                self.pinged = None;
            }
        } else {
            cx.stats.ops += 1;
            *cx.one_sided_done |= work.op != Op::Send;
            if work.signalled || !matches!(status, WorkStatus::Done(_)) {
                events.push(FabricEvent::Completed { peer, id: work.id, status });
            }
        }
        self.settle_refused(peer, cx, events);
    }

    /// Ends refused work requests when their turn has come.
    fn settle_refused(
        &mut self,
        peer: PeerId,
        cx: &mut Context<'_>,
        events: &mut Vec<FabricEvent>,
    ) {
        while let Some(status) = self.queue.front().and_then(|work| work.refused) {
            let work = self.queue.pop_front().expect("there is one");
            self.unsent = self.unsent.saturating_sub(1);
            cx.stats.ops += 1;
            events.push(FabricEvent::Completed { peer, id: work.id, status });
        }
    }

    /// Ends everything; the connection is down.
    pub(super) fn drain(&mut self, peer: PeerId, cause: DeathCause, events: &mut Vec<FabricEvent>) {
        for (index, work) in self.queue.drain(..).enumerate() {
            if work.is_ping() {
                continue;
            }
            // Writes are executed as they arrive; everything else only when it is whole.
            let partly = index == self.unsent
                && matches!(work.op, Op::Write | Op::WriteImm)
                && self.unsent_done > HEADER_BYTES as u64;
            let executed = if index < self.unsent || partly { None } else { Some(false) };
            let status = work.refused.unwrap_or(WorkStatus::Flushed { executed });
            events.push(FabricEvent::Completed { peer, id: work.id, status });
        }
        events.push(FabricEvent::Closed { peer, cause });
    }

    /// Makes sure that the work request `id` touches no local memory any more, without harm to
    /// others: what is not sent never is, data under way to here are dropped, and what was begun
    /// to be sent goes on from a copy.
    pub(super) fn disown(&mut self, id: u64, buffers: &mut Buffers) -> Disowned {
        let found = self.queue.iter().position(|work| work.id == id && !work.is_ping());
        let Some(index) = found else { return Disowned::Executed };
        let is_begun = index < self.unsent || index == self.unsent && self.unsent_done > 0;
        let work = &mut self.queue[index];
        if work.refused.is_some() {
            return Disowned::Cancelled;
        }
        if !is_begun {
            self.unsent_bytes -= work.frame_bytes();
            work.refused = Some(WorkStatus::Flushed { executed: Some(false) });
            return Disowned::Cancelled;
        }
        work.discard = work.op == Op::Read;
        if index < self.unsent || !work.op.sends_payload() {
            return Disowned::Executed;
        }
        let parts: Vec<&[u8]> = work.pieces().iter().map(|piece| buffers.slice(piece)).collect();
        match buffers.register(parts.concat()) {
            Ok(buf) => {
                (work.pieces[0], work.piece_count) = (Sge { buf, offset: 0, bytes: work.bytes }, 1);
                Disowned::Copied(buf)
            }
            Err(_) => {
                self.broken.get_or_insert(Broken::BufferGone);
                Disowned::Executed
            }
        }
    }

    /// Makes sure that no work request touches a buffer for which `named` holds.
    pub(super) fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        self.exposures.let_go(&named);
        for (index, work) in self.queue.iter_mut().enumerate() {
            let pieces = &work.pieces[..usize::from(work.piece_count)];
            if !pieces.iter().any(|piece| named(piece.buf)) {
                continue;
            }
            if work.op == Op::Read {
                work.discard = true;
            } else if index >= self.unsent && work.refused.is_none() {
                self.broken.get_or_insert(Broken::BufferGone);
            }
        }
    }
}

/// Shows the bytes of work requests but the first `skip`, in order, until `visit` answers false.
fn visit_unsent<'a>(
    unsent: impl Iterator<Item = &'a Work>,
    mut skip: u64,
    buffers: &'a Buffers,
    mut visit: impl FnMut(&'a [u8]) -> bool,
) {
    for work in unsent.filter(|work| work.refused.is_none()) {
        let header = HEADER_BYTES as u64;
        if skip < header && !visit(&work.header[skip as usize..]) {
            return;
        }
        skip = skip.saturating_sub(header);
        let payload = if work.op.sends_payload() { work.pieces() } else { &[] };
        for piece in payload {
            if skip < piece.bytes && !visit(&buffers.slice(piece)[skip as usize..]) {
                return;
            }
            skip = skip.saturating_sub(piece.bytes);
        }
    }
}
