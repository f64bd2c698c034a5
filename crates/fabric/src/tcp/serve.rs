//! One connection of a target: receives requests, executes them on the pages, answers in order.
//!
//! In: bytes of an initiator, messages of the application. Out: answers, events for the
//! application. Called by the target's thread in `target.rs`; nothing here blocks.
//!
//! Ordering rule: memory is touched only through `core::target`, a bounded piece at a time, and
//! never stays announced while the socket is waited for: a thread that revokes a key waits for one
//! system call at most. If the key is revoked in the midst of an operation, the rest is not
//! executed: of a READ zeros are sent and then `BadKey`, of a WRITE the rest is dropped and
//! `BadKey` answered (its first part was written before the revocation, never after).
//!
//! A write-back puts data of the pages into a buffer of the initiator, and then one of two
//! messages: which one says whether the key was valid to the end, so the initiator never takes
//! zeros for data.
//!
//! Back-pressure: a SEND or WRITE_IMM that the application's queue has no room for waits here,
//! and nothing more is read from the connection; while answers wait for the socket, nothing more
//! is read either.
//!
//! Source: DESIGN §3 (moving a page), §4 (bounded queues, no byte is trusted).

mod greet;

use super::super::FabricStats;
use super::super::close::CloseReason;
use super::super::limits::ServedConnection;
use super::super::queues::{TargetCommand, TargetQueues};
use super::super::shm::ShmPeer;
use super::frame::{AnswerStatus, HEADER_BYTES, Header, Op, Put, Request, Response};
use super::{CHUNK_BYTES, DIRECT_BYTES_MIN, Input, Moved, errno, received, recv, send, sent};
use crate::addresses::ConnectionPermit;
use crate::handshake::Handshake;
use crate::secure_stream::SecureStream;
use rackpool_core::constants::{BUFFERED_PIECE_BYTES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{
    EncodedWriteBack, FabricEvent, Mem, Nanos, PeerId, RemoteAddr, WorkStatus,
};
use rackpool_core::target::Pieces;
use rackpool_mem::event::Interest;
use rackpool_mem::window::{Next, Piece, send_gather};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes received at once: enough for a whole batch of requests, and little of a long WRITE; its
/// rest goes straight to its place.
const INPUT_BYTES: usize = 8 << 10;
const _: () = assert!(BUFFERED_PIECE_BYTES_MAX <= INPUT_BYTES as u64, "it waits there as a whole");
/// READs up to this length are copied into the answer; longer ones are sent from the pages.
const COPIED_BYTES_MAX: u64 = 8 << 10;
/// Answers that wait for the socket, bytes.
const OUTPUT_BYTES: usize = 64 << 10;
/// How long a connection has to have been there without asking for anything before it gives way.
const IDLE_NS_MIN: Nanos = 1_000_000_000;
/// No more calls that move long data than this for one connection before the others' turn.
const LONG_CALLS_MAX: u32 = 8;
/// What follows a revocation in a READ.
static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

/// What a connection needs of its target.
pub(super) struct TcpServeContext {
    pub(super) memory: ShmPeer,
    pub(super) queues: Arc<TargetQueues>,
    pub(super) stats: FabricStats,
    /// Where dropped data goes, and encrypted data on its way.
    pub(super) scrap: Vec<u8>,
}

/// A long operation under way.
#[derive(Clone, Copy)]
struct LongTransfer {
    seq: u32,
    pieces: Pieces,
}

/// Long data of the pages that is being sent.
struct Outgoing {
    transfer: LongTransfer,
    /// The messages after a write-back: if all went well, and if not.
    then: Option<(Vec<u8>, Vec<u8>)>,
}

enum TargetReceiveState {
    /// The proof of the secret, or the hello where there is none.
    Proof(Handshake),
    Hello,
    Header,
    /// Data of a WRITE, with the immediate value to hand over then.
    Write(LongTransfer, Option<u32>),
    Message {
        seq: u32,
        bytes: Vec<u8>,
        left: usize,
    },
}

/// What the next step needs.
#[derive(PartialEq, Eq)]
enum ServeStep {
    Again,
    /// More bytes from the socket.
    Input,
    Output,
    /// Room in the application's queue.
    Room,
}

/// Answers and messages that wait for the socket.
struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= OUTPUT_BYTES
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Notes that `bytes` of what was pending are sent; how many more than that were.
    fn advance(&mut self, bytes: usize) -> usize {
        let own = bytes.min(self.bytes.len() - self.sent);
        self.sent += own;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
        bytes - own
    }
}

impl ServedConnection for TcpSession {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    fn waits(&self) -> Option<Nanos> {
        (!self.is_greeted()).then_some(self.since)
    }

    fn idles(&self, now: Nanos) -> Option<Nanos> {
        let is_idle = !self.has_asked && now.saturating_sub(self.since) > IDLE_NS_MIN;
        is_idle.then_some(self.since)
    }
}

/// One connection of a target.
pub(super) struct TcpSession {
    stream: SecureStream,
    pub(super) peer: PeerId,
    pub(super) moved_at: Nanos,
    since: Nanos,
    /// Whether it has asked for more than a sign of life.
    has_asked: bool,
    permit: ConnectionPermit,
    /// Among those that are looked at without the system's help.
    pub(super) is_active: bool,
    /// What the system is asked to report of it.
    pub(super) asks: Interest,
    /// The application has sent messages.
    pub(super) has_mail: bool,
    receiving: TargetReceiveState,
    input: Input,
    output: Output,
    /// A long READ or write-back that is sending its data, behind all of `output`.
    long_read: Option<Outgoing>,
    /// An event without room, and the request that is answered once it is handed over.
    held: Option<(FabricEvent, Op, u32)>,
}

impl TcpSession {
    /// One that was accepted; `proof` is asked before anything else.
    pub(super) fn new(
        socket: OwnedFd,
        proof: Handshake,
        permit: ConnectionPermit,
        now: Nanos,
    ) -> Self {
        Self {
            stream: SecureStream::new(socket),
            peer: PeerId(0),
            moved_at: now,
            since: now,
            has_asked: false,
            permit,
            is_active: false,
            asks: Interest::Read,
            has_mail: false,
            receiving: TargetReceiveState::Proof(proof),
            input: Input::new(INPUT_BYTES),
            output: Output { bytes: Vec::with_capacity(OUTPUT_BYTES + 2 * HEADER_BYTES), sent: 0 },
            long_read: None,
            held: None,
        }
    }

    /// Whether both hellos were said, and the application knows of the connection.
    pub(super) fn is_greeted(&self) -> bool {
        !matches!(self.receiving, TargetReceiveState::Proof(_) | TargetReceiveState::Hello)
    }

    /// Whether it waits for the application.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether it waits for the socket to take something.
    pub(super) fn is_blocked(&self) -> bool {
        !self.output.is_empty() || self.long_read.is_some() || self.stream.has_unsent()
    }

    /// Does what can be done without waiting; `true` if anything moved.
    pub(super) fn progress(&mut self, service: &mut TcpServeContext) -> Result<bool, CloseReason> {
        let mut moved = false;
        let (mut calls_left, mut is_filled) = (LONG_CALLS_MAX, false);
        loop {
            if self.long_read.is_some() {
                moved |= self.send_long_read(service, &mut calls_left)?;
                if self.long_read.is_some() {
                    return Ok(moved);
                }
            }
            self.take_command(service);
            if self.long_read.is_some() {
                moved = true;
                continue;
            }
            match self.step(service)? {
                ServeStep::Again => moved = true,
                ServeStep::Room => return Ok(self.flush(service)? || moved),
                ServeStep::Output => {
                    moved |= self.flush(service)?;
                    if !self.output.is_empty() {
                        return Ok(moved);
                    }
                }
                ServeStep::Input => {
                    moved |= self.flush(service)?;
                    if is_filled || calls_left == 0 || !self.output.is_empty() {
                        return Ok(moved);
                    }
                    let long_calls = calls_left;
                    if !self.fill(service, &mut calls_left)? {
                        return Ok(moved);
                    }
                    is_filled = calls_left == long_calls;
                    moved = true;
                }
            }
        }
    }

    /// Says that this side lives although it does not read the connection now.
    pub(super) fn keep_alive(&mut self, service: &mut TcpServeContext) -> Result<(), CloseReason> {
        if self.held.is_some() && self.output.is_empty() {
            self.answer(Response::new(Op::Alive, 0, AnswerStatus::Done));
            self.flush(service)?;
        }
        Ok(())
    }

    /// Sends answers; `true` if bytes went.
    fn flush(&mut self, service: &mut TcpServeContext) -> Result<bool, CloseReason> {
        if self.output.is_empty() {
            return Ok(self.stream.has_unsent() && self.stream.flush()?);
        }
        match send(&mut self.stream, self.output.pending(), &mut service.stats)? {
            Moved::Bytes(bytes) => {
                self.output.advance(bytes);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Receives something; `false` if there was nothing. Data of a long WRITE goes to its place.
    fn fill(
        &mut self,
        service: &mut TcpServeContext,
        calls_left: &mut u32,
    ) -> Result<bool, CloseReason> {
        let moved = match &mut self.receiving {
            TargetReceiveState::Write(transfer, _)
                if transfer.pieces.left_bytes() >= DIRECT_BYTES_MIN && self.input.is_empty() =>
            {
                *calls_left -= 1;
                receive_long_write(&mut self.stream, transfer, service)?
            }
            _ => {
                let limit = INPUT_BYTES - self.input.filled().len();
                self.input.fill(&mut self.stream, limit, &mut service.stats)?
            }
        };
        match moved {
            Moved::Bytes(_) => Ok(true),
            Moved::Nothing => Ok(false),
            Moved::End => Err(CloseReason::Closed),
        }
    }

    /// Sends data of the long READ, behind what waits already; `true` if bytes went.
    fn send_long_read(
        &mut self,
        service: &mut TcpServeContext,
        calls_left: &mut u32,
    ) -> Result<bool, CloseReason> {
        let mut moved = false;
        while let Some(Outgoing { transfer, .. }) = &mut self.long_read {
            if *calls_left == 0 {
                break;
            }
            *calls_left -= 1;
            let outcome = send_piece(&mut self.stream, self.output.pending(), transfer, service)?;
            let Moved::Bytes(bytes) = outcome else { break };
            moved = true;
            let data = self.output.advance(bytes) as u64;
            transfer.pieces.advance(data);
            if transfer.pieces.left_bytes() > 0 {
                continue;
            }
            let ended = self.long_read.take();
            let Some(Outgoing { transfer: LongTransfer { seq, pieces }, then }) = ended else {
                break;
            };
            let status = frame_status(pieces.status());
            match then {
                None => self.answer(Response::new(Op::Read, seq, status)),
                Some((done, _)) if status == AnswerStatus::Done => self.push_message(&done),
                Some((_, refused)) => self.push_message(&refused),
            }
            service.stats.ops += 1;
        }
        Ok(moved)
    }

    /// Puts messages of the application behind the answers, as far as there is room.
    fn take_command(&mut self, service: &mut TcpServeContext) {
        let room = 2 * HEADER_BYTES + MESSAGE_BYTES_MAX as usize + COPIED_BYTES_MAX as usize;
        while self.has_mail && self.long_read.is_none() && self.output.has_room(room) {
            match service.queues.take_command(self.peer) {
                Some(TargetCommand::Message(message)) => self.push_message(&message),
                Some(TargetCommand::WriteBack(job)) => self.begin_write_back(*job, service),
                None => self.has_mail = false,
            }
        }
    }

    fn push_message(&mut self, message: &[u8]) {
        let bytes = message.len() as u64;
        self.answer(Response { bytes, ..Response::new(Op::Message, 0, AnswerStatus::Done) });
        self.output.push(message);
    }

    /// Puts memory into a buffer of the initiator; short data is copied at once.
    fn begin_write_back(&mut self, job: EncodedWriteBack, service: &mut TcpServeContext) {
        let EncodedWriteBack { to, from, bytes, done, refused } = job;
        let put = Put { id: to.id, key: to.key, offset: 0, bytes };
        if bytes > COPIED_BYTES_MAX {
            let pieces = Pieces::new(&service.memory, from, bytes);
            if !matches!(pieces.status(), WorkStatus::Done(_)) {
                return self.push_message(&refused);
            }
            self.output.push(put.header().as_bytes());
            let transfer = LongTransfer { seq: 0, pieces };
            self.long_read = Some(Outgoing { transfer, then: Some((done, refused)) });
            return;
        }
        let start = self.output.bytes.len();
        self.output.push(put.header().as_bytes());
        let data = self.output.bytes.len();
        self.output.bytes.resize(data + bytes as usize, 0);
        let status = service.memory.read(from.offset, from.key, &mut self.output.bytes[data..]);
        if let WorkStatus::Done(_) = status {
            self.push_message(&done);
        } else {
            self.output.bytes.truncate(start);
            self.push_message(&refused);
        }
        service.stats.ops += 1;
    }

    /// Takes one thing out of the input and executes it.
    fn step(&mut self, service: &mut TcpServeContext) -> Result<ServeStep, CloseReason> {
        if let Some((event, op, seq)) = self.held.take() {
            return Ok(self.hand_over(event, op, seq, service));
        }
        if !self.output.has_room(2 * HEADER_BYTES + COPIED_BYTES_MAX as usize) {
            return Ok(ServeStep::Output);
        }
        match &mut self.receiving {
            TargetReceiveState::Proof(_) => self.prove(service),
            TargetReceiveState::Hello => self.greet(service),
            TargetReceiveState::Header => {
                let Some(header) = Header::prefix_of(self.input.filled()) else {
                    return Ok(ServeStep::Input);
                };
                self.input.consume(HEADER_BYTES);
                self.begin(Request::parse(&header)?, service)
            }
            TargetReceiveState::Write(transfer, imm) => {
                let imm = *imm;
                let filled = self.input.filled();
                let left = transfer.pieces.left_bytes();
                let taken = (filled.len() as u64).min(left);
                if taken < left && left <= BUFFERED_PIECE_BYTES_MAX {
                    // Words and what a write buffer sends are written at once, or not at all if
                    // the connection ends before the rest is here.
                    return Ok(ServeStep::Input);
                }
                if taken > 0 {
                    transfer.pieces.write(&service.memory, &filled[..taken as usize]);
                    self.input.consume(taken as usize);
                }
                if transfer.pieces.left_bytes() > 0 {
                    return Ok(ServeStep::Input);
                }
                let (seq, status) = (transfer.seq, frame_status(transfer.pieces.status()));
                self.receiving = TargetReceiveState::Header;
                let op = if imm.is_some() { Op::WriteImm } else { Op::Write };
                match imm {
                    Some(imm) if status == AnswerStatus::Done => {
                        let event = FabricEvent::ReceivedImm { peer: self.peer, imm };
                        Ok(self.hand_over(event, op, seq, service))
                    }
                    _ => Ok(self.done(Response::new(op, seq, status), service)),
                }
            }
            TargetReceiveState::Message { seq, bytes, left } => {
                let seq = *seq;
                if !self.input.take_into(bytes, left) {
                    return Ok(ServeStep::Input);
                }
                let message = std::mem::take(bytes);
                self.receiving = TargetReceiveState::Header;
                let event = FabricEvent::Received { peer: self.peer, message };
                Ok(self.hand_over(event, Op::Send, seq, service))
            }
        }
    }

    /// Begins a request; short ones are done at once.
    fn begin(
        &mut self,
        request: Request,
        service: &mut TcpServeContext,
    ) -> Result<ServeStep, CloseReason> {
        self.has_asked |= request.op != Op::Ping;
        let Request { op, seq, bytes, at, operands } = request;
        let memory = &service.memory;
        match op {
            Op::Ping => {
                service.stats.pings += 1;
                self.answer(Response::new(op, seq, AnswerStatus::Done));
                Ok(ServeStep::Again)
            }
            Op::Cas => {
                let status = memory.cas(at.offset, at.key, operands[0], operands[1]);
                Ok(self.done_as(op, seq, status, service))
            }
            Op::FetchAdd => {
                let status = memory.fetch_add(at.offset, at.key, operands[0]);
                Ok(self.done_as(op, seq, status, service))
            }
            Op::Read => Ok(self.begin_read(seq, at, bytes, service)),
            Op::Write | Op::WriteImm => {
                let transfer = LongTransfer { seq, pieces: Pieces::new(memory, at, bytes) };
                let imm = (op == Op::WriteImm).then_some(operands[0] as u32);
                self.receiving = TargetReceiveState::Write(transfer, imm);
                Ok(ServeStep::Again)
            }
            Op::Send => {
                let left = bytes as usize;
                self.receiving =
                    TargetReceiveState::Message { seq, bytes: Vec::with_capacity(left), left };
                Ok(ServeStep::Again)
            }
            Op::Message | Op::Alive | Op::Put => unreachable!("refused by Request::parse"),
        }
    }

    fn begin_read(
        &mut self,
        seq: u32,
        at: RemoteAddr,
        bytes: u64,
        service: &mut TcpServeContext,
    ) -> ServeStep {
        let response = Response { bytes, ..Response::new(Op::Read, seq, AnswerStatus::Done) };
        if bytes > COPIED_BYTES_MAX {
            let pieces = Pieces::new(&service.memory, at, bytes);
            if !matches!(pieces.status(), WorkStatus::Done(_)) {
                return self.done_as(Op::Read, seq, pieces.status(), service);
            }
            self.answer(Response { more: true, ..response });
            self.long_read = Some(Outgoing { transfer: LongTransfer { seq, pieces }, then: None });
            return ServeStep::Again;
        }
        let start = self.output.bytes.len();
        self.answer(response);
        let data = self.output.bytes.len();
        self.output.bytes.resize(data + bytes as usize, 0);
        match service.memory.read(at.offset, at.key, &mut self.output.bytes[data..]) {
            WorkStatus::Done(_) => {
                service.stats.ops += 1;
                ServeStep::Again
            }
            status => {
                self.output.bytes.truncate(start);
                self.done_as(Op::Read, seq, status, service)
            }
        }
    }

    /// Hands an event to the application and answers its request, or keeps it.
    fn hand_over(
        &mut self,
        event: FabricEvent,
        op: Op,
        seq: u32,
        service: &mut TcpServeContext,
    ) -> ServeStep {
        match service.queues.deliver(event) {
            Ok(()) => self.done(Response::new(op, seq, AnswerStatus::Done), service),
            Err(event) => {
                self.held = Some((event, op, seq));
                ServeStep::Room
            }
        }
    }

    fn done_as(
        &mut self,
        op: Op,
        seq: u32,
        status: WorkStatus,
        service: &mut TcpServeContext,
    ) -> ServeStep {
        let value = if let WorkStatus::Done(value) = status { value } else { 0 };
        self.done(Response { value, ..Response::new(op, seq, frame_status(status)) }, service)
    }

    fn done(&mut self, response: Response, service: &mut TcpServeContext) -> ServeStep {
        service.stats.ops += 1;
        self.answer(response);
        ServeStep::Again
    }

    fn answer(&mut self, response: Response) {
        self.output.push(response.header().as_bytes());
    }
}

/// How a long operation ended, as its frame says it.
fn frame_status(status: WorkStatus) -> AnswerStatus {
    match status {
        WorkStatus::Done(_) => AnswerStatus::Done,
        WorkStatus::BadKey => AnswerStatus::BadKey,
        WorkStatus::BadRange | WorkStatus::Flushed { .. } => AnswerStatus::BadRange,
    }
}

/// Receives data of a long WRITE straight into the pages, or drops it.
fn receive_long_write(
    stream: &mut SecureStream,
    transfer: &mut LongTransfer,
    service: &mut TcpServeContext,
) -> Result<Moved, Errno> {
    let left = transfer.pieces.left_bytes();
    if stream.is_encrypted() {
        let limit = left.min(service.scrap.len() as u64) as usize;
        let moved = recv(stream, &mut service.scrap[..limit], &mut service.stats)?;
        if let Moved::Bytes(bytes) = moved {
            transfer.pieces.write(&service.memory, &service.scrap[..bytes]);
        }
        return Ok(moved);
    }
    let bytes = left.min(CHUNK_BYTES);
    let result = transfer
        .pieces
        .writing(&service.memory, bytes, |pages, offset| pages.recv(stream.as_fd(), offset, bytes));
    let moved = match result {
        Some(result) => received(result.map_err(errno), &mut service.stats)?,
        None => {
            let limit = left.min(service.scrap.len() as u64) as usize;
            recv(stream, &mut service.scrap[..limit], &mut service.stats)?
        }
    };
    if let Moved::Bytes(bytes) = moved {
        transfer.pieces.advance(bytes as u64);
    }
    Ok(moved)
}

/// Sends `before` and then data of a long READ, from the pages or, once its key is revoked, zeros.
fn send_piece(
    stream: &mut SecureStream,
    before: &[u8],
    transfer: &mut LongTransfer,
    service: &mut TcpServeContext,
) -> Result<Moved, Errno> {
    let left = transfer.pieces.left_bytes();
    let is_encrypted = stream.is_encrypted();
    let scrap_bytes = left.min(service.scrap.len() as u64) as usize;
    let scrap = &mut service.scrap[..scrap_bytes];
    let bytes = left.min(CHUNK_BYTES).max(scrap_bytes as u64);
    let result = transfer.pieces.reading(&service.memory, bytes, |pages, offset| {
        if is_encrypted {
            pages.copy_out(offset, scrap);
            return None;
        }
        let data = Piece::Shared(pages, offset, left.min(CHUNK_BYTES));
        // The rest follows at once, or how it ended: that goes with the last bytes.
        Some(send_gather(stream.as_fd(), &[Piece::Private(before), data], Next::More))
    });
    match result {
        Some(Some(result)) => sent(result.map_err(errno), &mut service.stats),
        Some(None) => {
            sent(stream.send(&[IoSlice::new(before), IoSlice::new(scrap)]), &mut service.stats)
        }
        None if !before.is_empty() => send(stream, before, &mut service.stats),
        None => send(stream, &ZEROS[..left.min(ZEROS.len() as u64) as usize], &mut service.stats),
    }
}
