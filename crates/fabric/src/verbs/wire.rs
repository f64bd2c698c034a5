//! The bytes of the verbs fabric: control frames of 64 bytes on the TCP connection that goes with
//! each queue pair, and messages on the queue pair itself: a head of 40 bytes and, for some, a
//! payload. Owns the formats and every check of them.
//!
//! Order: a target answers the messages and WRITE_IMMs of a connection in their order, so answers
//! bear no number. The four bytes beside a message say how many messages its sender has used up.
//! A message of no bytes says only that.
//!
//! Source: DESIGN §1 (`Fabric`), §4 (no byte is trusted).

use super::queue::Address;
use rackpool_core::addr::Generation;
use rackpool_core::seam::{RemoteAddr, WorkStatus};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every control frame.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rackverb");
/// Version of the formats here; another one is refused.
pub const VERSION: u32 = 1;
/// Bytes of a control frame.
pub const CONTROL_BYTES: usize = size_of::<RawControl>();
/// Bytes of a message's head.
pub const HEAD_BYTES: usize = size_of::<RawHead>();

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawControl {
    magic: U64,
    version: U32,
    kind: u8,
    page_shift: u8,
    reserved_0: [u8; 2],
    gid: [u8; 16],
    lid: U32,
    number: U32,
    first_packet: U32,
    mtu_bytes: U32,
    frame_count: U32,
    received: U32,
    reserved_1: [u8; 8],
}
const _: () = assert!(CONTROL_BYTES == 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The initiator's first: where its queue pair is.
    Hello(Address),
    /// The target's answer: where its queue pair is, and the geometry of its pages.
    Welcome {
        /// Its queue pair, which may be sent to.
        address: Address,
        /// log2 of the page size.
        page_shift: u8,
        frame_count: u32,
    },
    /// All connections of the target are taken.
    Busy,
    /// The initiator's queue pair may be sent to: for the first time, or again.
    Ready,
    Ping,
    Pong,
    /// The queue pair has failed and has been renewed at the initiator.
    Recover {
        address: Address,
        /// Messages that the initiator has received in this connection.
        received: u32,
    },
    Recovered(Address),
    /// The target asks for a proof of the pool's secret first.
    Secret,
}

impl Control {
    fn number(&self) -> u8 {
        match self {
            Control::Hello(_) => 1,
            Control::Welcome { .. } => 2,
            Control::Busy => 3,
            Control::Ready => 4,
            Control::Ping => 5,
            Control::Pong => 6,
            Control::Recover { .. } => 7,
            Control::Recovered(_) => 8,
            Control::Secret => 9,
        }
    }

    /// The frame that says this.
    pub fn to_bytes(self) -> [u8; CONTROL_BYTES] {
        let nowhere = Address { gid: [0; 16], lid: 0, number: 0, first_packet: 0, mtu_bytes: 0 };
        let (address, page_shift, frame_count, received) = match self {
            Control::Hello(address) | Control::Recovered(address) => (address, 0, 0, 0),
            Control::Welcome { address, page_shift, frame_count } => {
                (address, page_shift, frame_count, 0)
            }
            Control::Recover { address, received } => (address, 0, 0, received),
            Control::Busy | Control::Ready | Control::Ping | Control::Pong | Control::Secret => {
                (nowhere, 0, 0, 0)
            }
        };
        let raw = RawControl {
            magic: MAGIC.into(),
            version: VERSION.into(),
            kind: self.number(),
            page_shift,
            reserved_0: [0; 2],
            gid: address.gid,
            lid: u32::from(address.lid).into(),
            number: address.number.into(),
            first_packet: address.first_packet.into(),
            mtu_bytes: address.mtu_bytes.into(),
            frame_count: frame_count.into(),
            received: received.into(),
            reserved_1: [0; 8],
        };
        zerocopy::transmute!(raw)
    }

    pub fn parse(bytes: &[u8; CONTROL_BYTES]) -> Result<Control, WireError> {
        let raw: RawControl = zerocopy::transmute!(*bytes);
        if raw.magic.get() != MAGIC {
            return Err(WireError::Magic { found: raw.magic.get() });
        }
        if raw.version.get() != VERSION {
            return Err(WireError::Version { found: raw.version.get() });
        }
        let address = Address {
            gid: raw.gid,
            lid: u16::try_from(raw.lid.get()).map_err(|_| WireError::Field { what: "lid" })?,
            number: raw.number.get(),
            first_packet: raw.first_packet.get() & 0xff_ffff,
            mtu_bytes: raw.mtu_bytes.get(),
        };
        let control = match raw.kind {
            1 => Control::Hello(address),
            2 => Control::Welcome {
                address,
                page_shift: raw.page_shift,
                frame_count: raw.frame_count.get(),
            },
            3 => Control::Busy,
            4 => Control::Ready,
            5 => Control::Ping,
            6 => Control::Pong,
            7 => Control::Recover { address, received: raw.received.get() },
            8 => Control::Recovered(address),
            9 => Control::Secret,
            kind => return Err(WireError::Kind { kind }),
        };
        // What a kind does not use is zero, so that it can be used later.
        if control.to_bytes() == *bytes {
            Ok(control)
        } else {
            Err(WireError::Field { what: "unused part of a control frame" })
        }
    }
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawHead {
    kind: u8,
    status: u8,
    reserved: [u8; 6],
    offset: U64,
    key: U64,
    operands: [U64; 2],
}
const _: () = assert!(HEAD_BYTES == 40);

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The payload to the target's application.
    Send,
    /// Compare and swap by the target's processor.
    Cas { at: RemoteAddr, expected: u64, new: u64 },
    /// Add by the target's processor.
    FetchAdd { at: RemoteAddr, n: u64 },
    /// Asks for the device's key of the frame at an offset, under its generation.
    Open(RemoteAddr),
    /// The target's answer to the oldest message or WRITE_IMM that has none; for `Open` the
    /// device's key.
    Answer(WorkStatus),
    /// The payload to the initiator's user; answers nothing.
    Message,
    /// The device's key of this frame is no more; answers nothing.
    Closed(RemoteAddr),
}

impl Head {
    /// The bytes that say this.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let nowhere = RemoteAddr { offset: 0, key: Generation(0) };
        let (kind, status, at, operands) = match self {
            Head::Send => (1, 0, nowhere, [0, 0]),
            Head::Cas { at, expected, new } => (2, 0, at, [expected, new]),
            Head::FetchAdd { at, n } => (3, 0, at, [n, 0]),
            Head::Open(at) => (4, 0, at, [0, 0]),
            Head::Answer(status) => match status {
                WorkStatus::Done(value) => (5, 0, nowhere, [value, 0]),
                WorkStatus::BadKey => (5, 1, nowhere, [0, 0]),
                WorkStatus::BadRange | WorkStatus::Flushed { .. } => (5, 2, nowhere, [0, 0]),
            },
            Head::Message => (6, 0, nowhere, [0, 0]),
            Head::Closed(at) => (7, 0, at, [0, 0]),
        };
        let raw = RawHead {
            kind,
            status,
            reserved: [0; 6],
            offset: at.offset.into(),
            key: at.key.0.into(),
            operands: operands.map(U64::from),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads the head of a message; the rest is its payload.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Head, WireError> {
        let raw: RawHead = zerocopy::transmute!(*bytes);
        let at = RemoteAddr { offset: raw.offset.get(), key: Generation(raw.key.get()) };
        let [first, second] = raw.operands.map(U64::get);
        let head = match (raw.kind, raw.status) {
            (1, _) => Head::Send,
            (2, _) => Head::Cas { at, expected: first, new: second },
            (3, _) => Head::FetchAdd { at, n: first },
            (4, _) => Head::Open(at),
            (5, 0) => Head::Answer(WorkStatus::Done(first)),
            (5, 1) => Head::Answer(WorkStatus::BadKey),
            (5, _) => Head::Answer(WorkStatus::BadRange),
            (6, _) => Head::Message,
            (7, _) => Head::Closed(at),
            (kind, _) => return Err(WireError::Kind { kind }),
        };
        if head.to_bytes() == *bytes {
            Ok(head)
        } else {
            Err(WireError::Field { what: "unused part of a message's head" })
        }
    }

    pub fn has_payload(&self) -> bool {
        matches!(self, Head::Send | Head::Message)
    }
}

/// Bytes that are none of ours. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not ours.
    #[error("not a rackpool verbs fabric: the frame begins with {found:#018x}")]
    Magic { found: u64 },
    #[error("the peer speaks verbs fabric version {found}, this program {VERSION}")]
    Version { found: u32 },
    /// No such kind, or not in this direction or state.
    #[error("kind {kind} is not one, or not now")]
    Kind { kind: u8 },
    /// A field with a value that it must not have.
    #[error("wrong value: {what}")]
    Field { what: &'static str },
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: RemoteAddr = RemoteAddr { offset: 1 << 40, key: Generation(77) };

    #[test]
    fn what_is_written_is_read() {
        let address =
            Address { gid: [7; 16], lid: 9, number: 1 << 20, first_packet: 5, mtu_bytes: 4096 };
        for control in [
            Control::Hello(address),
            Control::Welcome { address, page_shift: 21, frame_count: 12 },
            Control::Busy,
            Control::Ready,
            Control::Ping,
            Control::Pong,
            Control::Recover { address, received: u32::MAX },
            Control::Recovered(address),
            Control::Secret,
        ] {
            assert_eq!(Control::parse(&control.to_bytes()), Ok(control));
        }
        for head in [
            Head::Send,
            Head::Cas { at: AT, expected: 1, new: u64::MAX },
            Head::FetchAdd { at: AT, n: 3 },
            Head::Open(AT),
            Head::Answer(WorkStatus::Done(8)),
            Head::Answer(WorkStatus::BadKey),
            Head::Answer(WorkStatus::BadRange),
            Head::Message,
            Head::Closed(AT),
        ] {
            assert_eq!(Head::parse(&head.to_bytes()), Ok(head));
        }
    }

    #[test]
    fn every_other_byte_is_refused() {
        for index in 0..CONTROL_BYTES {
            let mut bytes = Control::Ping.to_bytes();
            bytes[index] ^= 0x80;
            let parsed = Control::parse(&bytes);
            assert!(parsed.is_err(), "byte {index}: {parsed:?}");
        }
        for index in 0..HEAD_BYTES {
            let mut bytes = Head::Message.to_bytes();
            bytes[index] ^= 0x80;
            assert!(Head::parse(&bytes).is_err(), "byte {index}");
        }
        let mut strange = Head::Answer(WorkStatus::Done(0)).to_bytes();
        strange[1] = 3;
        assert!(Head::parse(&strange).is_err());
    }
}
