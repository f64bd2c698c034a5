//! The systems that HERD's evaluation compares, as what a request of each sends: the ways of its
//! request and answer, or the READs that it takes.
//!
//! Source: HERD, section on the simplified versions of Pilaf and FaRM-KV, and figures 5 and 9.

use super::rig::{KEY_BYTES, SLOT_BYTES};
use crate::net::Connection;
use crate::rng::Rng;

/// Bytes of the length that a PUT carries. Source: HERD, requests.
pub const LENGTH_BYTES: u64 = 2;
/// A bucket of Pilaf: a pointer, two checksums, padding. Source: HERD, emulating Pilaf.
pub const PILAF_BUCKET_BYTES: u64 = 32;
/// Of Pilaf's GETs these need a second bucket, and these of them a third, so that 1.6 are read on
/// average: at 75 % full the first of three holds the key in 0.58 of the cases, in parts per
/// million. Source: HERD, emulating Pilaf, for the mean; the split is ours.
pub const PILAF_SECOND_PPM: u32 = 420_000;
/// See there.
pub const PILAF_THIRD_PPM: u32 = 428_571;
/// Slots of FaRM's neighbourhood. Source: HERD, emulating FaRM-KV.
pub const FARM_SLOTS: u64 = 6;
/// A pointer of FaRM-KV with values outside. The paper does not say how long; an address
/// has 8.
pub const FARM_POINTER_BYTES: u64 = 8;
/// What says that a PUT was done.
pub const ACK_BYTES: u64 = 1;

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// WRITE into the other end's memory, which it polls; else SEND, for which it posts receives.
    pub is_write: bool,
    /// The transport.
    pub kind: Connection,
    /// Each one is completed, and its completion taken; else none.
    pub is_signalled: bool,
    /// Longest payload inside of the work request.
    pub inline_max: u64,
}

impl Way {
    /// WRITE, unsignalled, inline, unreliable-connected.
    pub const WRITE: Way = Way {
        is_write: true,
        kind: Connection::Unreliable,
        is_signalled: false,
        inline_max: u64::MAX,
    };
    /// SEND over a connection, unsignalled, inline, unreliable.
    pub const SEND: Way = Way { is_write: false, ..Way::WRITE };
    /// SEND of a datagram, unsignalled, inline.
    pub const DATAGRAM: Way = Way { kind: Connection::Datagram, ..Way::SEND };

    /// Without what makes it fast: reliable, completed, payload fetched.
    pub fn plain(self) -> Way {
        Way { kind: Connection::Reliable, is_signalled: true, inline_max: 0, ..self }
    }
}

/// A request and its answer through a server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Client to server.
    pub request: Way,
    /// Server to client.
    pub answer: Way,
    /// Each server process has the keys of its partition, so a client speaks to all; else each
    /// client has one process.
    pub is_partitioned: bool,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Answers of a fixed size without a table.
    Echo(Exchange),
    /// HERD. Answers longer than this are not inline.
    Herd {
        /// 144 on Apt, 192 on Susitna. Source: HERD, throughput comparison.
        inline_below: u64,
    },
    /// HERD's requests as datagrams as well, for thousands of clients. Source: HERD, scalability.
    HerdDatagrams {
        /// As above.
        inline_below: u64,
    },
    /// Pilaf with all optimizations.
    Pilaf,
    /// FaRM-KV with values in the table.
    Farm,
    /// FaRM-KV with values outside.
    FarmVar,
}

/// A GET or a PUT, as a client does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Through a server process; bytes of request and answer.
    Ask {
        /// Bytes of the answer; those of the request follow from key and value.
        answer_bytes: u64,
    },
    /// By READs, one after the other.
    Read([u64; 4]),
}

impl System {
    /// How it asks, if it asks.
    pub fn exchange(&self) -> Exchange {
        let partitioned = |request, inline_below: u64| Exchange {
            request,
            answer: Way { inline_max: inline_below - 1, ..Way::DATAGRAM },
            is_partitioned: true,
        };
        match *self {
            System::Echo(exchange) => exchange,
            System::Herd { inline_below } => partitioned(Way::WRITE, inline_below),
            System::HerdDatagrams { inline_below } => partitioned(Way::DATAGRAM, inline_below),
            System::Pilaf => {
                Exchange { request: Way::SEND, answer: Way::SEND, is_partitioned: false }
            }
            System::Farm | System::FarmVar => {
                Exchange { request: Way::WRITE, answer: Way::WRITE, is_partitioned: false }
            }
        }
    }

    /// Whether GETs bypass the server's processors.
    pub fn reads(&self) -> bool {
        matches!(self, System::Pilaf | System::Farm | System::FarmVar)
    }

    /// Memory accesses of a request at the server, one after the other: bucket and log entry.
    /// Source: HERD, hiding memory latency. The emulated systems have no table.
    pub fn accesses(&self) -> u32 {
        match self {
            System::Herd { .. } | System::HerdDatagrams { .. } => 2,
            _ => 0,
        }
    }

    /// How a request is done. Sizes of READs that are not needed are 0.
    pub fn plan(&self, is_put: bool, value_bytes: u64, rng: &mut Rng) -> Plan {
        if is_put || !self.reads() {
            let is_echo = matches!(self, System::Echo(_));
            let answer_bytes = match (is_echo, is_put) {
                // The same back: value, length and key.
                (true, true) => value_bytes + LENGTH_BYTES + KEY_BYTES,
                (true, false) => KEY_BYTES,
                (false, true) => ACK_BYTES,
                (false, false) => value_bytes.clamp(ACK_BYTES, SLOT_BYTES),
            };
            return Plan::Ask { answer_bytes };
        }
        let value = value_bytes.max(1);
        Plan::Read(match self {
            System::Pilaf => {
                let second = rng.chance_ppm(PILAF_SECOND_PPM);
                let third = second && rng.chance_ppm(PILAF_THIRD_PPM);
                let bucket = |is_read: bool| u64::from(is_read) * PILAF_BUCKET_BYTES;
                [PILAF_BUCKET_BYTES, bucket(second), bucket(third), value]
            }
            System::FarmVar => [FARM_SLOTS * (KEY_BYTES + FARM_POINTER_BYTES), value, 0, 0],
            _ => [FARM_SLOTS * (KEY_BYTES + value), 0, 0, 0],
        })
    }
}
