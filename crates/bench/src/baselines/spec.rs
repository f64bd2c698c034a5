//! What runs: the system, whether there is a table, how many keys and windows. Both ends have the
//! same, and say so to each other when a client connects.

use super::error::{Error, Result};
use rackpool_sim::repro::herd::baselines::{
    CLIENTS_MAX, Connection, Exchange, KeyTable, KvRequest, LANES_MAX, System, Way,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64;

/// Systems that HERD is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemKind {
    /// Pilaf: cuckoo table, SEND for PUT.
    Pilaf,
    /// FaRM-KV with values in its hopscotch table, WRITE for PUT.
    Farm,
    FarmVar,
    /// ECHO: WRITE there, WRITE back.
    EchoWriteWrite,
    /// ECHO: WRITE there, SEND back, as HERD has it.
    EchoWriteSend,
    /// ECHO: SEND there, SEND back.
    EchoSendSend,
}

impl SystemKind {
    #[must_use]
    pub fn system(self) -> System {
        // Fabrics are reliable.
        let over = |way: Way| Way { kind: Connection::Reliable, ..way };
        let echo = |request: Way, answer: Way| {
            let (request, answer) = (over(request), over(answer));
            System::Echo(Exchange { request, answer, is_partitioned: false })
        };
        match self {
            SystemKind::Pilaf => System::Pilaf,
            SystemKind::Farm => System::Farm,
            SystemKind::FarmVar => System::FarmVar,
            SystemKind::EchoWriteWrite => echo(Way::WRITE, Way::WRITE),
            SystemKind::EchoWriteSend => echo(Way::WRITE, Way::SEND),
            SystemKind::EchoSendSend => echo(Way::SEND, Way::SEND),
        }
    }
}

/// The fabrics that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Memory that both processes map.
    Shm,
    #[default]
    Tcp,
    Verbs,
}

impl Carrier {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Carrier::Tcp => "tcp",
            Carrier::Shm => "shm",
            Carrier::Verbs => "verbs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerAddress {
    /// The name of its control socket.
    Near(String),
    /// The address of its target, and what it is a target of.
    Far(SocketAddr, Carrier),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub kind: SystemKind,
    /// Whether there is a table; else READs have its sizes, and nothing is looked up.
    pub is_full: bool,
    /// Keys, from 1 on.
    pub keys: u64,
    pub value_bytes: u64,
    pub clients: u32,
    /// Requests of each under way.
    pub window: u32,
}

/// Most keys: FaRM-KV's table of short values, and Pilaf's pointers, are far below their bounds.
const KEYS_MAX: u64 = 1 << 22;

impl Spec {
    /// The usual load: 32 B values, 4 clients with 16 windows.
    #[must_use]
    pub fn new(kind: SystemKind, is_full: bool, keys: u64) -> Spec {
        Spec { kind, is_full, keys, value_bytes: 32, clients: 4, window: 16 }
    }

    /// This, if all is in range.
    ///
    /// # Errors
    /// [`Error::Spec`].
    pub fn checked(self) -> Result<Spec> {
        for (what, value, max) in [
            ("keys", self.keys, KEYS_MAX),
            ("bytes of a value", self.value_bytes, KvRequest::VALUE_BYTES_MAX),
            ("clients", self.clients.into(), u64::from(CLIENTS_MAX).min(1024)),
            ("windows", self.window.into(), LANES_MAX.into()),
        ] {
            if !(1..=max).contains(&value) {
                let what = format!("{value} {what}: 1 to {max} are possible");
                return Err(Error::Spec { what });
            }
        }
        if self.is_full && self.table().is_none() {
            return Err(Error::Spec { what: "an ECHO has no table".into() });
        }
        Ok(self)
    }

    #[must_use]
    pub fn system(&self) -> System {
        self.kind.system()
    }

    /// The sizes of its table; of an emulated one those that its table would have.
    #[must_use]
    pub fn table(&self) -> Option<KeyTable> {
        KeyTable::new(self.system(), self.keys, self.value_bytes)
    }

    /// Whether answers come by WRITE.
    pub(super) fn answers_by_write(&self) -> bool {
        self.system().exchange().answer.is_write
    }

    /// The same on both sides if they run the same.
    pub(super) fn fingerprint(&self) -> u64 {
        xxh3_64(format!("{self:?} 1").as_bytes())
    }
}
