//! The bytes of the tcp fabric, once both ends trust one another: a hello each way, then frames: a
//! header of 48 bytes and, for some, a payload. Owns the format and every check of it; knows no
//! socket.
//!
//! In: bytes that another process wrote. Out: [`Request`] and [`Response`] with fields within the
//! limits, or a [`FrameError`], which ends the connection. Called by `connection.rs` (initiator)
//! and `serve.rs` (target).
//!
//! Order: the frames of one direction follow one another; answers come in the order of their
//! requests and repeat their number. Between them the target may put `Message`, `Alive` and
//! `Put`: data into a buffer that the initiator has exposed to it. A
//! long READ is announced by a header with its `more` flag set and closed, after the data, by a
//! second header, which says whether the key was valid to the end: data that followed the
//! revocation is zeros.
//!
//! Source: DESIGN §1 (`Fabric`), §4 (no byte is trusted).

use rackpool_core::addr::Generation;
use rackpool_core::constants::{FABRIC_OP_BYTES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::RemoteAddr;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of both hellos: "rackwire" read as a little-endian word.
pub const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"rackwire");
/// Version of the frames here; another one is refused.
pub const FRAME_VERSION: u32 = 2;
pub const HELLO_BYTES: usize = size_of::<Hello>();
pub const HEADER_BYTES: usize = size_of::<Header>();

/// What each side says first.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
pub struct Hello {
    /// [`HELLO_MAGIC`].
    pub magic: U64,
    /// [`FRAME_VERSION`].
    pub version: U32,
    /// A [`HelloStatus`]; the initiator says 0.
    pub status: u8,
    /// log2 of the target's page size; the initiator says 0.
    pub page_shift: u8,
    pub reserved_0: [u8; 2],
    /// Frames of the target; the initiator says 0.
    pub frame_count: U32,
    pub reserved_1: [u8; 12],
}
const _: () = assert!(size_of::<Hello>() == 32);

/// The target's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HelloStatus {
    Ok = 0,
    /// All connections of the target are taken.
    Busy = 1,
    /// The target has another version, which it names.
    Version = 2,
    /// The target asks for a proof of the pool's secret first ([`crate::handshake`]).
    Secret = 3,
}

#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
pub struct Header {
    /// An [`Op`].
    pub op: u8,
    /// [`FLAG_MORE`] or 0.
    pub flags: u8,
    /// An [`AnswerStatus`]; 0 in requests.
    pub status: u8,
    pub reserved: u8,
    /// The initiator's number of the request, repeated in its answer.
    pub seq: U32,
    /// Bytes read or written, or of the payload.
    pub bytes: U64,
    /// Offset in the target's pages, bytes; 0 in answers.
    pub offset: U64,
    /// Generation of the frame there; 0 in answers.
    pub key: U64,
    /// Expected and new value, or summand, or immediate value; in answers the old value.
    pub operands: [U64; 2],
}
const _: () = assert!(size_of::<Header>() == 48);

/// In an answer to READ: the data is followed by a second header.
pub const FLAG_MORE: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Memory of the target to the initiator.
    Read = 1,
    /// The payload into memory of the target.
    Write = 2,
    /// As `Write`; the application there receives the immediate value.
    WriteImm = 3,
    /// The payload to the application of the target.
    Send = 4,
    Cas = 5,
    FetchAdd = 6,
    Ping = 7,
    /// The payload to the user of the initiator; answers nothing.
    Message = 8,
    /// The target lives, although it does not read this connection now; answers nothing.
    Alive = 9,
    /// The payload into a buffer of the initiator, as [`Put`] says; answers nothing.
    Put = 10,
}

impl Op {
    fn from_byte(byte: u8) -> Option<Self> {
        use Op::*;
        [Read, Write, WriteImm, Send, Cas, FetchAdd, Ping, Message, Alive, Put]
            .into_iter()
            .find(|op| *op as u8 == byte)
    }

    /// Whether a request of this kind is followed by its payload.
    pub fn sends_payload(self) -> bool {
        matches!(self, Op::Write | Op::WriteImm | Op::Send)
    }
}

/// How a request ended, in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AnswerStatus {
    Done = 0,
    /// The key was not, or not to the end, the generation of the frame.
    BadKey = 1,
    /// Outside a frame, or misaligned.
    BadRange = 2,
}

/// A request with all fields within the limits of the protocol (the place is not checked).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    pub seq: u32,
    /// Bytes to read or write, or of the message.
    pub bytes: u64,
    /// Where, for all but `Send` and `Ping`.
    pub at: RemoteAddr,
    /// Expected and new value, or summand, or immediate value.
    pub operands: [u64; 2],
}

/// An answer, or what the target says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// What was asked, or `Message` or `Alive`.
    pub op: Op,
    /// The request's number; 0 for `Message` and `Alive`.
    pub seq: u32,
    pub status: AnswerStatus,
    /// Whether a second header follows the data.
    pub more: bool,
    pub bytes: u64,
    /// The old value of an atomic, else 0.
    pub value: u64,
}

/// Data for a buffer that was exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    pub id: u32,
    pub key: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// Bytes that are no frame. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not ours.
    #[error("not a rackpool fabric: the hello begins with {found:#018x}")]
    Magic { found: u64 },
    #[error("the peer speaks fabric version {found}, this program {FRAME_VERSION}")]
    Version { found: u32 },
    /// No such operation, or not in this direction.
    #[error("operation {op} is not one")]
    Op { op: u8 },
    #[error("status {status} is not one")]
    Status { status: u8 },
    /// A field that must be 0 in this kind of frame is not.
    #[error("{field} of operation {op} must be 0")]
    NotZero { op: u8, field: &'static str },
    /// Data for an exposed buffer that does not fit into it.
    #[error("{bytes} bytes at {offset} for an exposed buffer of {limit_bytes} bytes")]
    PastExposure { offset: u64, bytes: u64, limit_bytes: u64 },
    /// Longer than the protocol allows.
    #[error("{bytes} bytes in operation {op}, at most {limit_bytes} are allowed")]
    TooLong { op: u8, bytes: u64, limit_bytes: u64 },
    /// An answer to something else than the oldest request.
    #[error("the answer {seq} to operation {op} does not fit the request {expected}")]
    Unasked { op: u8, seq: u32, expected: u32 },
}

impl Hello {
    pub fn of_initiator() -> Self {
        Self::of_target(HelloStatus::Ok, 0, 0)
    }

    pub fn of_target(status: HelloStatus, page_shift: u8, frame_count: u32) -> Self {
        Self {
            magic: HELLO_MAGIC.into(),
            version: FRAME_VERSION.into(),
            status: status as u8,
            page_shift,
            reserved_0: [0; 2],
            frame_count: frame_count.into(),
            reserved_1: [0; 12],
        }
    }

    /// Checks a hello of either side.
    pub fn check(&self) -> Result<HelloStatus, FrameError> {
        if self.magic.get() != HELLO_MAGIC {
            return Err(FrameError::Magic { found: self.magic.get() });
        }
        if self.version.get() != FRAME_VERSION {
            return Err(FrameError::Version { found: self.version.get() });
        }
        if self.reserved_0 != [0; 2] || self.reserved_1 != [0; 12] {
            return Err(FrameError::NotZero { op: 0, field: "reserved" });
        }
        [HelloStatus::Ok, HelloStatus::Busy, HelloStatus::Version, HelloStatus::Secret]
            .into_iter()
            .find(|status| *status as u8 == self.status)
            .ok_or(FrameError::Status { status: self.status })
    }
}

/// The longest payload of an operation, bytes.
pub fn payload_bytes_max(op: Op) -> u64 {
    match op {
        Op::Read | Op::Write | Op::WriteImm | Op::Put => FABRIC_OP_BYTES_MAX,
        Op::Send | Op::Message => u64::from(MESSAGE_BYTES_MAX),
        Op::Cas | Op::FetchAdd | Op::Ping | Op::Alive => 0,
    }
}

impl Request {
    /// The header that says this.
    pub fn header(&self) -> Header {
        Header {
            offset: self.at.offset.into(),
            key: self.at.key.0.into(),
            operands: self.operands.map(U64::from),
            ..Header::new(self.op, self.seq, self.bytes)
        }
    }

    /// Reads a header as a request.
    pub fn parse(header: &Header) -> Result<Self, FrameError> {
        let op = header.checked_op()?;
        if matches!(op, Op::Message | Op::Alive | Op::Put) {
            return Err(FrameError::Op { op: header.op });
        }
        header.zero_unless(false, header.flags.into(), "flags")?;
        header.zero_unless(false, header.status.into(), "status")?;
        let placed = !matches!(op, Op::Send | Op::Ping);
        header.zero_unless(placed, header.offset.get(), "offset")?;
        header.zero_unless(placed, header.key.get(), "key")?;
        let operands = header.operands.map(U64::get);
        let first = matches!(op, Op::Cas | Op::FetchAdd | Op::WriteImm);
        header.zero_unless(first, operands[0], "first operand")?;
        header.zero_unless(op == Op::Cas, operands[1], "second operand")?;
        if op == Op::WriteImm {
            header.zero_unless(false, operands[0] >> 32, "upper half of the immediate value")?;
        }
        Ok(Self {
            op,
            seq: header.seq.get(),
            bytes: header.checked_bytes(op)?,
            at: RemoteAddr { offset: header.offset.get(), key: Generation(header.key.get()) },
            operands,
        })
    }
}

impl Response {
    /// An answer without data or value.
    pub fn new(op: Op, seq: u32, status: AnswerStatus) -> Self {
        Self { op, seq, status, more: false, bytes: 0, value: 0 }
    }

    /// The header that says this.
    pub fn header(&self) -> Header {
        Header {
            flags: if self.more { FLAG_MORE } else { 0 },
            status: self.status as u8,
            operands: [self.value.into(), 0.into()],
            ..Header::new(self.op, self.seq, self.bytes)
        }
    }

    /// Reads a header as an answer.
    pub fn parse(header: &Header) -> Result<Self, FrameError> {
        let op = header.checked_op()?;
        if op == Op::Put {
            return Err(FrameError::Op { op: header.op });
        }
        let status = [AnswerStatus::Done, AnswerStatus::BadKey, AnswerStatus::BadRange]
            .into_iter()
            .find(|status| *status as u8 == header.status)
            .ok_or(FrameError::Status { status: header.status })?;
        let done = status == AnswerStatus::Done;
        header.zero_unless(op == Op::Read && done, (header.flags & FLAG_MORE).into(), "flags")?;
        header.zero_unless(false, (header.flags & !FLAG_MORE).into(), "flags")?;
        header.zero_unless(false, header.offset.get(), "offset")?;
        header.zero_unless(false, header.key.get(), "key")?;
        let atomic = matches!(op, Op::Cas | Op::FetchAdd);
        header.zero_unless(atomic && done, header.operands[0].get(), "first operand")?;
        header.zero_unless(false, header.operands[1].get(), "second operand")?;
        let payload = (op == Op::Read && done) || op == Op::Message;
        header.zero_unless(payload, header.bytes.get(), "bytes")?;
        let of_itself = matches!(op, Op::Message | Op::Alive);
        header.zero_unless(!of_itself, header.seq.get().into(), "number")?;
        header.zero_unless(!of_itself, header.status.into(), "status")?;
        Ok(Self {
            op,
            seq: header.seq.get(),
            status,
            more: header.flags & FLAG_MORE != 0,
            bytes: header.checked_bytes(op)?,
            value: header.operands[0].get(),
        })
    }
}

impl Put {
    /// The header that says this.
    pub fn header(&self) -> Header {
        Header {
            offset: self.offset.into(),
            key: self.key.into(),
            ..Header::new(Op::Put, self.id, self.bytes)
        }
    }

    /// Reads a header as this; `None` if it is something else.
    pub fn parse(header: &Header) -> Result<Option<Self>, FrameError> {
        if header.op != Op::Put as u8 {
            return Ok(None);
        }
        header.zero_unless(false, header.reserved.into(), "reserved")?;
        header.zero_unless(false, header.flags.into(), "flags")?;
        header.zero_unless(false, header.status.into(), "status")?;
        header.zero_unless(false, header.operands[0].get(), "first operand")?;
        header.zero_unless(false, header.operands[1].get(), "second operand")?;
        Ok(Some(Self {
            id: header.seq.get(),
            key: header.key.get(),
            offset: header.offset.get(),
            bytes: header.checked_bytes(Op::Put)?,
        }))
    }
}

impl Header {
    /// One with zeros in all other fields.
    fn new(op: Op, seq: u32, bytes: u64) -> Self {
        let mut header: Self = FromZeros::new_zeroed();
        (header.op, header.seq, header.bytes) = (op as u8, seq.into(), bytes.into());
        header
    }

    /// The header in the first bytes of `bytes`; `None` if there are too few.
    pub fn prefix_of(bytes: &[u8]) -> Option<Self> {
        Header::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    fn checked_op(&self) -> Result<Op, FrameError> {
        let op = Op::from_byte(self.op).ok_or(FrameError::Op { op: self.op })?;
        self.zero_unless(false, self.reserved.into(), "reserved")?;
        Ok(op)
    }

    fn checked_bytes(&self, op: Op) -> Result<u64, FrameError> {
        let (bytes, limit_bytes) = (self.bytes.get(), payload_bytes_max(op));
        if bytes > limit_bytes {
            return Err(FrameError::TooLong { op: self.op, bytes, limit_bytes });
        }
        Ok(bytes)
    }

    fn zero_unless(&self, used: bool, value: u64, field: &'static str) -> Result<(), FrameError> {
        if used || value == 0 { Ok(()) } else { Err(FrameError::NotZero { op: self.op, field }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    fn request(op: Op) -> Request {
        let placed = !matches!(op, Op::Send | Op::Ping);
        Request {
            op,
            seq: 9,
            bytes: if payload_bytes_max(op) > 0 { 64 } else { 0 },
            at: RemoteAddr {
                offset: if placed { 4096 } else { 0 },
                key: Generation(if placed { 7 } else { 0 }),
            },
            operands: match op {
                Op::Cas => [1, 2],
                Op::FetchAdd | Op::WriteImm => [3, 0],
                _ => [0, 0],
            },
        }
    }

    const REQUESTS: [Op; 7] =
        [Op::Read, Op::Write, Op::WriteImm, Op::Send, Op::Cas, Op::FetchAdd, Op::Ping];

    #[test]
    fn every_request_survives_its_header() {
        for op in REQUESTS {
            assert_eq!(Request::parse(&request(op).header()), Ok(request(op)));
        }
    }

    #[test]
    fn a_field_that_an_operation_does_not_use_must_be_zero() {
        let mut header = request(Op::Ping).header();
        header.offset = 1.into();
        assert_eq!(
            Request::parse(&header),
            Err(FrameError::NotZero { op: Op::Ping as u8, field: "offset" })
        );
        let mut header = request(Op::Read).header();
        header.flags = FLAG_MORE;
        assert!(Request::parse(&header).is_err());
        let mut header = request(Op::WriteImm).header();
        header.operands[0] = (1 << 32).into();
        assert!(Request::parse(&header).is_err());
    }

    #[test]
    fn a_message_or_an_operation_above_its_limit_is_refused() {
        let mut header = request(Op::Send).header();
        header.bytes = u64::from(MESSAGE_BYTES_MAX).into();
        assert!(Request::parse(&header).is_ok());
        header.bytes = (u64::from(MESSAGE_BYTES_MAX) + 1).into();
        assert!(matches!(Request::parse(&header), Err(FrameError::TooLong { .. })));
        let mut header = request(Op::Write).header();
        header.bytes = (FABRIC_OP_BYTES_MAX + 1).into();
        assert!(matches!(Request::parse(&header), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn a_target_cannot_be_asked_for_what_only_a_target_says() {
        for op in [Op::Message, Op::Alive, Op::Put] {
            let mut header = request(Op::Ping).header();
            header.op = op as u8;
            assert_eq!(Request::parse(&header), Err(FrameError::Op { op: op as u8 }));
        }
    }

    #[test]
    fn a_hello_of_another_program_or_version_is_refused() {
        let mut hello = Hello::of_initiator();
        assert_eq!(hello.check(), Ok(HelloStatus::Ok));
        hello.version = 1.into();
        assert_eq!(hello.check(), Err(FrameError::Version { found: 1 }));
        hello.magic = 0.into();
        assert_eq!(hello.check(), Err(FrameError::Magic { found: 0 }));
    }

    #[test]
    fn whatever_parses_says_the_same_again() {
        // Most fields are zero, as in what parses.
        let seldom = |values: std::ops::RangeInclusive<u64>| prop_oneof![3 => Just(0), 1 => values];
        let byte = || seldom(0..=255);
        let word = || seldom(0..=u64::MAX);
        let bytes = (0u8..12, seldom(0..=3), seldom(0..=3), seldom(0..=1), byte());
        let words = (seldom(0..=1 << 20), word(), word(), word(), word());
        let parsed = [const { std::cell::Cell::new(0) }; 3];
        let mut runner = TestRunner::new(Config { cases: 4000, ..Config::default() });
        let result = runner.run(&(bytes, words), |((op, flags, status, reserved, seq), words)| {
            let (bytes, offset, key, first, second) = words;
            let header = Header {
                op,
                flags: flags as u8,
                status: status as u8,
                reserved: reserved as u8,
                seq: (seq as u32).into(),
                bytes: bytes.into(),
                offset: offset.into(),
                key: key.into(),
                operands: [first.into(), second.into()],
            };
            let again = [
                Request::parse(&header).ok().map(|request| request.header()),
                Response::parse(&header).ok().map(|response| response.header()),
                Put::parse(&header).ok().flatten().map(|put| put.header()),
            ];
            for (again, count) in again.into_iter().zip(&parsed) {
                prop_assert!(again.is_none_or(|again| again == header));
                count.set(count.get() + u32::from(again.is_some()));
            }
            Ok(())
        });
        result.unwrap();
        assert!(parsed.iter().all(|count| count.get() > 20), "{parsed:?}");
    }

    proptest! {
        #[test]
        fn sparse_headers_parse_or_are_refused_without_panic(
            op in 0u8..11, status in 0u8..4, flags in 0u8..3, bytes in any::<u64>(),
        ) {
            let mut header = Header::prefix_of(&[0; HEADER_BYTES]).unwrap();
            header.op = op;
            header.status = status;
            header.flags = flags;
            header.bytes = bytes.into();
            let _ = Request::parse(&header);
            if let Ok(response) = Response::parse(&header) {
                prop_assert!(response.bytes <= payload_bytes_max(response.op));
            }
        }
    }
}
