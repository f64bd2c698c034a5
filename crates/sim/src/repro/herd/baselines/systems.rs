//! What a request of each system sends: the ways of its request and answer, or the READs that it
//! takes.
//!
//! Source: HERD, section on the simplified versions of Pilaf and FaRM-KV, and figures 5 and 9.

use super::{
    ACK_BYTES, FARM_POINTER_BYTES, FARM_SLOTS, KEY_BYTES, LENGTH_BYTES, PILAF_BUCKET_BYTES,
    PILAF_SECOND_PPM, PILAF_THIRD_PPM, SLOT_BYTES,
};

/// The transport of a card. Fabrics of the real world have one: theirs is reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Reliable-connected: every verb; in order, exactly once, or the connection ends.
    Reliable,
    /// Unreliable-connected: WRITE, WRITE_IMM and SEND. What is lost stays lost, as a whole
    /// message; order is kept. Completes when it is sent.
    Unreliable,
    /// Datagram: SEND up to the MTU, without order. The receiver needs posted receives and finds
    /// a global route header before the message. Completes when it is sent.
    Datagram,
    /// A socket: every verb with the costs of `tcp` and none of the card's.
    Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// WRITE into the other end's memory, which it polls; else SEND, for which it posts receives.
    pub is_write: bool,
    pub kind: Connection,
    /// Each one is completed, and its completion taken; else none.
    pub is_signalled: bool,
    /// Longest payload inside of the work request, bytes.
    pub inline_max: u64,
}

impl Way {
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
    pub request: Way,
    pub answer: Way,
    /// Each server process has the keys of its partition, so a client speaks to all; else each
    /// client has one process.
    pub is_partitioned: bool,
}

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
        inline_below: u64,
    },
    Pilaf,
    /// FaRM-KV with values in the table.
    Farm,
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
    /// By READs, one after the other; bytes of each.
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

    /// How a request is done. Sizes of READs that are not needed are 0. `chance` says yes in so
    /// many of a million cases.
    pub fn plan(
        &self,
        is_put: bool,
        value_bytes: u64,
        mut chance: impl FnMut(u32) -> bool,
    ) -> Plan {
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
                let second = chance(PILAF_SECOND_PPM);
                let third = second && chance(PILAF_THIRD_PPM);
                let bucket = |is_read: bool| u64::from(is_read) * PILAF_BUCKET_BYTES;
                [PILAF_BUCKET_BYTES, bucket(second), bucket(third), value]
            }
            System::FarmVar => [FARM_SLOTS * (KEY_BYTES + FARM_POINTER_BYTES), value, 0, 0],
            _ => [FARM_SLOTS * (KEY_BYTES + value), 0, 0, 0],
        })
    }
}
