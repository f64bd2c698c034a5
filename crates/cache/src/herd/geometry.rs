//! Where the slot of a request is: HERD's formula, and the sizes around it.
//!
//! HERD's request region has a slot for each server thread, client and window, NS·NC·W of them, and
//! every client may write all. Here each client has request memory of its own, NS·W slots: shared
//! with the server alone (`pair.rs`), or a frame of the fabric's target (`fabric/connections.rs`).
//! It may write no other. So both transports use the formula with one client
//! ([`Geometry::clients`] is 1) for each of these memories.
//!
//! Source: HERD §4.2 (request region, slot formula); a memory for each client is decision 0045.
//! Slots are longer than HERD's 1 KB by key, head and seal, so that 1000 bytes of value fit beside
//! the longest key.

use super::error::{Error, Result};
use rackpool_core::constants::{
    FABRIC_MESSAGES_MAX, FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, MESSAGE_BYTES_MAX,
};

/// The head of a message, bytes.
pub const HEAD_BYTES: usize = 24;
/// Longest key, bytes: memcached's, so that a key is one in every protocol.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest value of a slot by default, bytes (HERD §4.2: 1000).
pub const VALUE_BYTES_DEFAULT: u32 = 1000;
/// Longest value that a slot can be made for, bytes: a head counts them in 16 bits.
pub const VALUE_BYTES_MAX: u32 = 32 << 10;
/// Windows by default. HERD's is 4, with whole processes of clients behind it; a batch that is
/// worth a doorbell is longer.
pub const WINDOWS_DEFAULT: u32 = 16;
/// Most windows of a client at one server thread.
pub const WINDOWS_MAX: u32 = 256;
pub const SERVERS_MAX: u32 = 64;
/// Clients of a server by default.
pub const CLIENTS_DEFAULT: u32 = 1024;
/// Most clients of a server.
pub const CLIENTS_MAX: u32 = 16 << 10;
/// Clients of a fabric by default: each has a connection.
pub const FABRIC_CLIENTS_DEFAULT: u32 = 256;
/// Most clients of a fabric: its connections, without some that wait for their welcome.
pub const FABRIC_CLIENTS_MAX: u32 = FABRIC_PEERS_MAX - FABRIC_GUESTS_MAX;
/// Connections of a fabric beyond its clients.
pub(super) const FABRIC_GUESTS_MAX: u32 = 64;
/// Most requests of a client that are under way over a fabric, at all threads together: that many
/// replies wait for a connection, with room for what each thread sends beside them.
pub const FABRIC_REQUESTS_MAX: u32 = FABRIC_MESSAGES_MAX as u32 * 3 / 4;
/// Longest value over a fabric, bytes: its reply is one SEND.
pub const FABRIC_VALUE_BYTES_MAX: u32 = MESSAGE_BYTES_MAX - 512;
const _: () = assert!(FABRIC_REQUESTS_MAX < FABRIC_OUTSTANDING_MAX);
/// Slots begin at multiples of so many bytes: processors fetch lines in pairs.
const ALIGN_BYTES: u64 = 128;
pub(super) const LINE_BYTES: u64 = 64;
/// Where the value stands in the slot for replies that come apart: a client that polls the head's
/// line loses only that line while the rest is written.
pub(super) const APART_VALUE_AT: u64 = LINE_BYTES;
/// How many slots further a message is asked for: as many as are taken while a line comes from a
/// processor far away.
pub(super) const AHEAD: u64 = 4;
pub(super) const SEAL_BYTES: u64 = 8;

/// The sizes of a memory of request slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Server threads (HERD's NS).
    pub servers: u32,
    /// Clients with slots in it (HERD's NC); 1 in the memory of a client.
    pub clients: u32,
    /// Requests that a client may have under way at one server thread (HERD's W).
    pub windows: u32,
    /// Longest value, bytes.
    pub value_bytes: u32,
}

impl Geometry {
    /// These sizes, if all are in range.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub fn checked(self) -> Result<Geometry> {
        for (option, value, max) in [
            ("servers", self.servers, SERVERS_MAX),
            ("clients", self.clients, CLIENTS_MAX),
            ("windows", self.windows, WINDOWS_MAX),
            ("value bytes", self.value_bytes, VALUE_BYTES_MAX),
        ] {
            if !(1..=max).contains(&value) {
                let (value, max) = (value.into(), max.into());
                return Err(Error::BadOption { option, value, min: 1, max });
            }
        }
        Ok(self)
    }

    /// Bytes of the longest message.
    pub const fn message_bytes(&self) -> usize {
        HEAD_BYTES + KEY_BYTES_MAX + self.value_bytes as usize
    }

    pub const fn slot_bytes(&self) -> u64 {
        // To powers of two, where masks take fewer instructions than `next_multiple_of`.
        let message = (self.message_bytes() as u64 + 7) & !7;
        (message + SEAL_BYTES + ALIGN_BYTES - 1) & !(ALIGN_BYTES - 1)
    }

    /// Bytes of the slot for replies that come apart: a line for the head, and the value.
    pub const fn apart_bytes(&self) -> u64 {
        (APART_VALUE_AT + self.value_bytes as u64 + ALIGN_BYTES - 1) & !(ALIGN_BYTES - 1)
    }

    pub const fn bytes(&self) -> u64 {
        self.servers as u64 * self.clients as u64 * self.windows as u64 * self.slot_bytes()
    }

    /// The slot of a client's request number `request` (the first is 0) at a server thread:
    /// `server * (windows * clients) + client * windows + request mod windows`.
    pub const fn slot(&self, server: u32, client: u32, request: u64) -> u64 {
        let (windows, clients) = (self.windows as u64, self.clients as u64);
        server as u64 * (windows * clients) + client as u64 * windows + request % windows
    }

    /// Where that slot begins, bytes from the region's start.
    pub const fn offset(&self, server: u32, client: u32, request: u64) -> u64 {
        self.slot(server, client, request) * self.slot_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_where_herd_has_them_and_none_is_shared() {
        let geometry = Geometry { servers: 3, clients: 5, windows: 4, value_bytes: 1000 };
        let mut seen = std::collections::BTreeSet::new();
        for server in 0..3 {
            for client in 0..5 {
                for request in 0..4 {
                    let slot = geometry.slot(server, client, request);
                    assert_eq!(slot, geometry.slot(server, client, request + 4 * 7));
                    assert!(seen.insert(slot));
                }
            }
        }
        assert_eq!(seen, (0..3 * 5 * 4).collect());
        assert_eq!(geometry.slot(2, 3, 4 + 1), 2 * 20 + 3 * 4 + 1);
        assert_eq!(geometry.bytes(), 60 * geometry.slot_bytes());
    }

    #[test]
    fn a_slot_holds_the_longest_key_with_a_value_of_a_thousand_bytes() {
        let geometry = Geometry { servers: 1, clients: 1, windows: 4, value_bytes: 1000 };
        assert_eq!((geometry.message_bytes(), geometry.slot_bytes()), (1274, 1408));
        assert!(geometry.checked().is_ok());
        for wrong in [
            Geometry { servers: 0, ..geometry },
            Geometry { windows: WINDOWS_MAX + 1, ..geometry },
            Geometry { clients: CLIENTS_MAX + 1, ..geometry },
            Geometry { value_bytes: VALUE_BYTES_MAX + 1, ..geometry },
        ] {
            assert_eq!(wrong.checked().unwrap_err().code(), "bad-option");
        }
    }
}
