//! One connection of an endpoint: its queue of work requests, of which a first part is sent and
//! waits for answers and the rest waits for the socket; the receiving of answers, straight into
//! local buffers where they are long; and whether the peer is alive.
//!
//! In: work requests, time. Out: events. Called by `endpoint.rs`, which owns the buffers.
//!
//! Order: requests are sent and answered in the order of posting. A request that was refused
//! here (too long) keeps its place in the queue without being sent.
//!
//! Liveness: a PING asks whether the peer lives; what is received, and blocked sending that goes
//! on, are signs of life. What the socket holds is read before the time is looked at, so that an
//! application that was away or stopped never takes its own absence for the peer's.
//!
//! Source: DESIGN §3 (liveness), §4 (a peer's death is typed).

mod greet;

use super::super::FabricStats;
use super::super::buffers::Buffers;
use super::super::close::CloseReason;
use super::super::waiting::{Lease, Liveness};
use super::exposed::{Exposures, Landing};
use super::frame::{
    AnswerStatus, FrameError, HEADER_BYTES, Header, Op, Put, Request, Response, payload_bytes_max,
};
use super::{CHUNK_BYTES, DIRECT_BYTES_MIN, Input, Moved, recv, sent};
use crate::handshake::{Handshake, Message};
use crate::secure_stream::SecureStream;
use rackpool_core::addr::Generation;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::fabric::work_queue::{Work, WorkQueue};
use rackpool_core::seam::{
    BufId, FabricEvent, Nanos, PeerId, RemoteAddr, Verb, WorkRequest, WorkStatus,
};
use rustix::fd::OwnedFd;
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

/// What a connection needs of its endpoint.
pub(super) struct Context {
    pub(super) buffers: Buffers,
    /// Where what is sent is put together.
    pub(super) staged: Vec<u8>,
    pub(super) stats: FabricStats,
    /// Whether a one-sided operation has completed.
    pub(super) one_sided_done: bool,
    pub(super) lease: Lease,
    /// What has happened and was not taken.
    pub(super) events: Vec<FabricEvent>,
}

/// What the queue keeps of a work request besides.
struct TcpFrame {
    op: Op,
    seq: u32,
    /// Never sent; this is its status when its turn comes.
    refused: Option<WorkStatus>,
    /// Its buffers are released when it has ended.
    owns_buffers: bool,
    header: [u8; HEADER_BYTES],
}

type TcpWork = Work<TcpFrame>;

impl TcpFrame {
    fn is_ping(&self) -> bool {
        self.op == Op::Ping
    }

    fn frame_bytes(work: &TcpWork) -> u64 {
        match work.state.refused {
            Some(_) => 0,
            None if work.state.op.sends_payload() => HEADER_BYTES as u64 + work.bytes,
            None => HEADER_BYTES as u64,
        }
    }

    fn is_long_read(work: &TcpWork) -> bool {
        work.state.op == Op::Read && work.bytes >= DIRECT_BYTES_MIN && !work.discard
    }

    fn release_buffers(work: &TcpWork, buffers: &mut Buffers) {
        if work.state.owns_buffers {
            work.pieces().iter().for_each(|piece| buffers.release(piece.buf));
        }
    }
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpStage {
    Connecting,
    /// The secret is being proved.
    Proving,
    /// The target's hello was not received.
    Greeting,
    Up,
}

enum EndpointReceiveState {
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
pub(super) struct TcpConnection {
    /// Set when the connection has its place in the table.
    pub(super) peer: PeerId,
    pub(super) stream: SecureStream,
    pub(super) addr: SocketAddr,
    pub(super) broken: Option<CloseReason>,
    /// What the endpoint's epoll waits for: also room to send.
    pub(super) polls_out: bool,
    stage: TcpStage,
    /// The proof of the secret, and its first words.
    proof: Option<(Handshake, Message)>,
    queue: WorkQueue<TcpFrame>,
    pings: usize,
    /// The first work request that is not sent to its end, bytes of it sent, and bytes not sent
    /// in the whole queue.
    unsent: usize,
    unsent_done: u64,
    unsent_bytes: u64,
    send_blocked: bool,
    input: Input,
    receiving: EndpointReceiveState,
    pub(super) exposures: Exposures,
    seq_next: u32,
    liveness: Liveness,
    used: Nanos,
}

impl TcpConnection {
    /// One that is being made to `addr`; `proof` comes before anything else.
    pub(super) fn new(
        socket: OwnedFd,
        addr: SocketAddr,
        proof: Option<(Handshake, Message)>,
        now: Nanos,
    ) -> Self {
        Self {
            peer: PeerId(0),
            stream: SecureStream::new(socket),
            addr,
            broken: None,
            polls_out: false,
            stage: TcpStage::Connecting,
            proof,
            queue: WorkQueue::new(FABRIC_OUTSTANDING_MAX as usize + 1),
            pings: 0,
            unsent: 0,
            unsent_done: 0,
            unsent_bytes: 0,
            send_blocked: false,
            input: Input::new(INPUT_BYTES),
            receiving: EndpointReceiveState::Header,
            exposures: Exposures::default(),
            seq_next: 1,
            liveness: Liveness::new(now),
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
        self.stage == TcpStage::Connecting || self.unsent_bytes > 0 || self.stream.has_unsent()
    }

    /// Whether nothing can be expected soon.
    pub(super) fn is_quiet(&self, now: Nanos, quiet_ns: Nanos) -> bool {
        self.stage == TcpStage::Up
            && self.broken.is_none()
            && self.queue.is_empty()
            && now.saturating_sub(self.used) > quiet_ns
    }

    /// Appends a work request, without sending it; `false` if the queue holds `limit` of them.
    /// `owns_buffers` has its buffers released when it has ended.
    pub(super) fn enqueue(
        &mut self,
        work: &WorkRequest<'_>,
        limit: usize,
        owns_buffers: bool,
    ) -> bool {
        if self.outstanding() >= limit {
            return false;
        }
        let (op, operands) = match work.verb {
            Verb::Read(_) => (Op::Read, [0, 0]),
            Verb::Write(_) => (Op::Write, [0, 0]),
            Verb::WriteImm(_, imm) => (Op::WriteImm, [u64::from(imm), 0]),
            Verb::Send => (Op::Send, [0, 0]),
            Verb::Cas { expected, new, .. } => (Op::Cas, [expected, new]),
            Verb::FetchAdd { n, .. } => (Op::FetchAdd, [n, 0]),
        };
        self.push(work, op, operands, owns_buffers);
        true
    }

    fn ping(&mut self) {
        let nothing = WorkRequest { id: 0, verb: Verb::Send, local: &[], signalled: false };
        self.push(&nothing, Op::Ping, [0, 0], false);
        self.pings += 1;
    }

    fn push(&mut self, work: &WorkRequest<'_>, op: Op, operands: [u64; 2], owns_buffers: bool) {
        let seq = self.next_seq();
        let state = TcpFrame { op, seq, refused: None, owns_buffers, header: [0; HEADER_BYTES] };
        let mut work = Work::new(work, state);
        let at = work.at().unwrap_or(RemoteAddr { offset: 0, key: Generation(0) });
        let request = Request { op, seq, bytes: work.bytes, at, operands };
        work.state.header = zerocopy::transmute!(request.header());
        let is_long = work.bytes > payload_bytes_max(op);
        work.state.refused = is_long.then_some(WorkStatus::BadRange);
        self.unsent_bytes += TcpFrame::frame_bytes(&work);
        self.queue.push(work);
    }

    fn next_seq(&mut self) -> u32 {
        let seq = self.seq_next;
        self.seq_next = seq.wrapping_add(1).max(1);
        seq
    }

    /// Sends what the socket takes. An error is kept until the answers that arrived before it
    /// have been read; see [`TcpConnection::poll`].
    pub(super) fn flush(&mut self, cx: &mut Context) -> Result<bool, CloseReason> {
        let mut moved = false;
        if self.stream.has_unsent() && !self.stream.flush()? {
            self.send_blocked = true;
            return Ok(false);
        }
        while self.stage == TcpStage::Up && self.unsent_bytes > 0 {
            let asked = self.unsent_bytes;
            let outcome = if asked <= STAGED_BYTES_MAX as u64 {
                cx.staged.clear();
                let staged = &mut cx.staged;
                let unsent = self.queue.iter_from(self.unsent);
                visit_unsent(unsent, self.unsent_done, &cx.buffers, |bytes| {
                    staged.extend_from_slice(bytes);
                    true
                });
                sent(self.stream.send(&[IoSlice::new(staged)]), &mut cx.stats)?
            } else {
                self.send_gathered(&cx.buffers, &mut cx.stats)?
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
        let unsent = self.queue.iter_from(self.unsent);
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
        while let Some(work) = self.queue.at(self.unsent) {
            let frame_bytes = TcpFrame::frame_bytes(work);
            if self.unsent_done < frame_bytes {
                break;
            }
            self.unsent_done -= frame_bytes;
            self.unsent += 1;
        }
    }

    /// Makes progress: connecting, receiving, sending, heartbeat. `true` if anything moved.
    pub(super) fn poll(&mut self, now: Nanos, cx: &mut Context) -> bool {
        if self.broken.is_some() {
            return false;
        }
        match self.progress(now, cx) {
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

    fn progress(&mut self, now: Nanos, cx: &mut Context) -> Result<bool, CloseReason> {
        if self.stage != TcpStage::Up {
            return self.greet(now, cx);
        }
        let heard = self.receive(cx)?;
        if heard {
            self.liveness.heard(now);
        }
        self.settle_refused(cx);
        let was_blocked = self.send_blocked;
        let moved = match self.flush(cx) {
            Ok(moved) => moved,
            Err(broken) => {
                // The peer may have answered before it went.
                while self.receive(cx)? {}
                return Err(broken);
            }
        };
        if moved && was_blocked {
            self.liveness.heard(now);
        }
        if self.liveness.is_due(now, cx.lease)? {
            self.ping();
            cx.stats.pings += 1;
            self.flush(cx)?;
        }
        Ok(heard || moved)
    }

    /// Receives what the socket holds and completes what it answers. `true` if bytes came.
    fn receive(&mut self, cx: &mut Context) -> Result<bool, CloseReason> {
        let mut heard = false;
        loop {
            let (moved, asked) = self.receive_once(cx)?;
            match moved {
                Moved::Nothing => return Ok(heard),
                Moved::End => return Err(CloseReason::Closed),
                Moved::Bytes(bytes) => {
                    heard = true;
                    while self.take_input(cx)? {}
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
    fn receive_once(&mut self, cx: &mut Context) -> Result<(Moved, usize), CloseReason> {
        if let EndpointReceiveState::Put(landing) = &mut self.receiving
            && self.input.is_empty()
            && landing.left >= DIRECT_BYTES_MIN
            && let Some(piece) = self.exposures.next(landing, CHUNK_BYTES)
        {
            let to = cx.buffers.slice_mut(&piece);
            let asked = to.len();
            let moved = recv(&mut self.stream, to, &mut cx.stats)?;
            if let Moved::Bytes(bytes) = moved {
                self.exposures.advance(landing, bytes as u64);
            }
            return Ok((moved, asked));
        }
        if let EndpointReceiveState::Data { done, .. } = &mut self.receiving {
            let work = self.queue.at(0).expect("data belongs to a work request");
            if self.input.is_empty() && !work.discard && work.bytes - *done >= DIRECT_BYTES_MIN {
                let piece = work.piece_at(*done, CHUNK_BYTES);
                let to = cx.buffers.slice_mut(&piece);
                let asked = to.len();
                let moved = recv(&mut self.stream, to, &mut cx.stats)?;
                if let Moved::Bytes(bytes) = moved {
                    *done += bytes as u64;
                }
                return Ok((moved, asked));
            }
        }
        let asked = self.input_limit();
        Ok((self.input.fill(&mut self.stream, asked, &mut cx.stats)?, asked))
    }

    /// How much to receive into the input: not into the data of a long READ, which goes straight
    /// to its place.
    fn input_limit(&self) -> usize {
        let is_long = |index: usize| self.queue.at(index).is_some_and(TcpFrame::is_long_read);
        let limit = match &self.receiving {
            EndpointReceiveState::Header
                if is_long(0) || self.exposures.expects(DIRECT_BYTES_MIN) =>
            {
                HEADER_BYTES
            }
            EndpointReceiveState::Second if is_long(1) => 2 * HEADER_BYTES,
            EndpointReceiveState::Data { done, .. } if is_long(1) => {
                let left = self.queue.at(0).map_or(0, |work| work.bytes - done);
                left.min(INPUT_BYTES as u64) as usize
            }
            _ => INPUT_BYTES,
        };
        let filled = self.input.filled().len();
        if limit > filled { limit - filled } else { INPUT_BYTES - filled }
    }

    /// Takes one thing out of the input; `false` if there is nothing whole.
    fn take_input(&mut self, cx: &mut Context) -> Result<bool, CloseReason> {
        match &mut self.receiving {
            EndpointReceiveState::Header | EndpointReceiveState::Second => {
                let Some(header) = Header::prefix_of(self.input.filled()) else {
                    return Ok(false);
                };
                self.input.consume(HEADER_BYTES);
                match Put::parse(&header)? {
                    Some(put) if matches!(self.receiving, EndpointReceiveState::Header) => {
                        self.receiving = EndpointReceiveState::Put(self.exposures.begin(&put)?);
                    }
                    _ => self.answered(Response::parse(&header)?, cx)?,
                }
                Ok(true)
            }
            EndpointReceiveState::Put(landing) => {
                let landing = *landing;
                Ok(self.take_put(landing, cx))
            }
            EndpointReceiveState::Data { done, more } => {
                let work = self.queue.at(0).expect("data belongs to a work request");
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
                self.receiving =
                    if more { EndpointReceiveState::Second } else { EndpointReceiveState::Header };
                if !more {
                    self.complete(WorkStatus::Done(0), cx);
                }
                Ok(true)
            }
            EndpointReceiveState::Message { bytes, left } => {
                if !self.input.take_into(bytes, left) {
                    return Ok(false);
                }
                let message = std::mem::take(bytes);
                cx.events.push(FabricEvent::Received { peer: self.peer, message });
                self.receiving = EndpointReceiveState::Header;
                Ok(true)
            }
        }
    }

    /// Takes data for an exposed buffer out of the input; `false` if there is none.
    fn take_put(&mut self, mut landing: Landing, cx: &mut Context) -> bool {
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
        self.receiving =
            if is_over { EndpointReceiveState::Header } else { EndpointReceiveState::Put(landing) };
        true
    }

    /// Acts on a header of the target.
    fn answered(&mut self, response: Response, cx: &mut Context) -> Result<(), CloseReason> {
        let is_second = matches!(self.receiving, EndpointReceiveState::Second);
        if !is_second && response.op == Op::Alive {
            return Ok(());
        }
        if !is_second && response.op == Op::Message {
            let left = response.bytes as usize;
            debug_assert!(left <= MESSAGE_BYTES_MAX as usize, "checked by the frame");
            self.receiving =
                EndpointReceiveState::Message { bytes: Vec::with_capacity(left), left };
            return Ok(());
        }
        // The oldest request, if it is sent: an answer before that makes no sense.
        let is_sent = |work: &&TcpWork| self.unsent > 0 && work.state.refused.is_none();
        let work = self.queue.at(0).filter(is_sent);
        let (op, expected) = work.map_or((Op::Alive, 0), |work| (work.state.op, work.state.seq));
        let bytes_fit = response.op != Op::Read
            || response.status != AnswerStatus::Done
            || is_second
            || work.is_some_and(|work| work.bytes == response.bytes);
        let second_fits = !is_second || (response.bytes == 0 && !response.more);
        if response.op != op || response.seq != expected || !bytes_fit || !second_fits {
            let (op, seq) = (response.op as u8, response.seq);
            return Err(FrameError::Unasked { op, seq, expected }.into());
        }
        let status = match response.status {
            AnswerStatus::Done if response.op == Op::Read && !is_second => {
                self.receiving = EndpointReceiveState::Data { done: 0, more: response.more };
                return Ok(());
            }
            AnswerStatus::Done => WorkStatus::Done(response.value),
            AnswerStatus::BadKey => WorkStatus::BadKey,
            AnswerStatus::BadRange => WorkStatus::BadRange,
        };
        self.receiving = EndpointReceiveState::Header;
        self.complete(status, cx);
        Ok(())
    }

    /// Ends the oldest work request.
    fn complete(&mut self, status: WorkStatus, cx: &mut Context) {
        let work = self.queue.pop().expect("only a work request is completed");
        self.unsent -= 1;
        if work.state.is_ping() {
            self.pings -= 1;
            if self.pings == 0 {
                self.liveness.answered();
            }
        } else {
            cx.stats.ops += 1;
            cx.one_sided_done |= work.state.op != Op::Send;
            TcpFrame::release_buffers(&work, &mut cx.buffers);
            work.tell(self.peer, status, &mut cx.events);
        }
        self.settle_refused(cx);
    }

    /// Ends refused work requests when their turn has come.
    fn settle_refused(&mut self, cx: &mut Context) {
        while let Some(status) = self.queue.at(0).and_then(|work| work.state.refused) {
            let work = self.queue.pop().expect("there is one");
            self.unsent = self.unsent.saturating_sub(1);
            cx.stats.ops += 1;
            TcpFrame::release_buffers(&work, &mut cx.buffers);
            work.tell(self.peer, status, &mut cx.events);
        }
    }

    /// Ends everything; the connection is down.
    pub(super) fn drain(&mut self, reason: &CloseReason, cx: &mut Context) {
        let Context { buffers, events, .. } = cx;
        let peer = self.peer;
        let (unsent, unsent_done) = (self.unsent, self.unsent_done);
        let status = |place: usize, work: &TcpWork| {
            // Writes are executed as they arrive; everything else only when it is whole.
            let partly = place == unsent
                && matches!(work.state.op, Op::Write | Op::WriteImm)
                && unsent_done > HEADER_BYTES as u64;
            let executed = if place < unsent || partly { None } else { Some(false) };
            TcpFrame::release_buffers(work, buffers);
            let flushed = WorkStatus::Flushed { executed };
            (!work.state.is_ping()).then_some(work.state.refused.unwrap_or(flushed))
        };
        self.queue.flush(peer, status, events);
        events.push(FabricEvent::Closed { peer, cause: reason.cause() });
    }

    /// Makes sure that the work request `id`, which owns its buffers, touches them no more,
    /// without harm to others: what is not sent never is, data under way to here are dropped, and
    /// what was begun to be sent goes on from a copy. Whether it may be executed.
    pub(super) fn cancel(&mut self, id: u64, buffers: &mut Buffers) -> bool {
        let place = self.queue.iter().position(|work| work.id == id && !work.state.is_ping());
        let Some(work) = place.and_then(|place| self.queue.at_mut(place)) else { return true };
        let place = place.expect("it was found");
        let is_begun = place < self.unsent || place == self.unsent && self.unsent_done > 0;
        let has_to_go_on = is_begun && place >= self.unsent && work.state.op.sends_payload();
        if work.state.refused.is_none() && !is_begun {
            self.unsent_bytes -= TcpFrame::frame_bytes(work);
            work.state.refused = Some(WorkStatus::Flushed { executed: Some(false) });
        }
        work.discard = work.state.op == Op::Read;
        let parts = work.pieces().iter().map(|piece| buffers.slice(piece));
        let bytes = has_to_go_on.then(|| parts.collect::<Vec<&[u8]>>().concat());
        let copied = bytes.map(|bytes| buffers.register(bytes)).transpose();
        TcpFrame::release_buffers(work, buffers);
        work.replace_pieces(copied.as_ref().ok().copied().flatten());
        if copied.is_err() {
            self.broken.get_or_insert(CloseReason::BufferGone);
        }
        work.state.refused.is_none()
    }

    /// Makes sure that no work request touches a buffer for which `named` holds.
    pub(super) fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        self.exposures.let_go(&named);
        for (place, work) in self.queue.iter_mut().enumerate() {
            if !work.names(&named) {
                continue;
            }
            if work.state.op == Op::Read {
                work.discard = true;
            } else if place >= self.unsent && work.state.refused.is_none() {
                self.broken.get_or_insert(CloseReason::BufferGone);
            }
        }
    }
}

/// Shows the bytes of work requests but the first `skip`, in order, until `visit` answers false.
fn visit_unsent<'a>(
    unsent: impl Iterator<Item = &'a TcpWork>,
    mut skip: u64,
    buffers: &'a Buffers,
    mut visit: impl FnMut(&'a [u8]) -> bool,
) {
    for work in unsent.filter(|work| work.state.refused.is_none()) {
        let header = HEADER_BYTES as u64;
        if skip < header && !visit(&work.state.header[skip as usize..]) {
            return;
        }
        skip = skip.saturating_sub(header);
        let payload = if work.state.op.sends_payload() { work.bytes } else { 0 };
        for piece in work.parts(skip.min(payload), payload) {
            if !visit(buffers.slice(&piece)) {
                return;
            }
        }
        skip = skip.saturating_sub(payload);
    }
}
