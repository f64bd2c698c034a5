//! The memory that a client shares with the server, and the bell that all clients share.
//!
//! *A client's own memory*, which no other client gets to see:
//!
//! | bytes | content | written by |
//! |---|---|---|
//! | 0 | 1 while the client sleeps until a reply comes | client, cleared by the server |
//! | 128 + 128 s | watch word of server thread s | server |
//! | behind | slots, those of thread 0 first | client, then server |
//! | behind | for each server thread a slot for a reply that comes apart | server |
//!
//! A slot holds a request and then its reply: of many that are under way, each moves one line to
//! and fro. A client with one request under way polls its reply's line while the server is at work;
//! that reply comes in the slot apart, with lines that the server alone writes. This avoids false
//! sharing of the request's line with the server's next write.
//!
//! *The bell*, one ready bitmap for each server thread with a bit for each client and one for the
//! acceptor's command queue, and the word by which the thread says that it sleeps. Bits are hints:
//! one that is set for nothing costs a look, and one that another client has cleared delays its
//! owner until that rings again.

use super::geometry::Geometry;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::window::Window;

/// Offset of the word that says that the client sleeps.
pub(super) const SLEEPING: u64 = 0;
/// Words that are written by different sides are so far apart.
const APART: u64 = 128;

/// Offset of the word that says that a server thread watches the client.
pub(super) const fn watch_at(server: u32) -> u64 {
    APART + APART * server as u64
}

const fn slots_at(geometry: &Geometry) -> u64 {
    watch_at(geometry.servers)
}

const fn apart_at(geometry: &Geometry, server: u32) -> u64 {
    slots_at(geometry) + geometry.bytes() + server as u64 * geometry.apart_bytes()
}

/// Bytes of a client's memory.
pub(super) const fn pair_bytes(geometry: &Geometry) -> u64 {
    apart_at(geometry, geometry.servers)
}

/// The slot for replies that come apart.
pub(super) fn apart(memory: &Window, geometry: &Geometry, server: u32) -> Window {
    memory.slice(apart_at(geometry, server), geometry.apart_bytes())
}

/// The slots of a client at one server thread.
pub(super) fn slots(memory: &Window, geometry: &Geometry, server: u32) -> Window {
    let bytes = u64::from(geometry.windows) * geometry.slot_bytes();
    memory.slice(slots_at(geometry) + geometry.offset(server, 0, 0), bytes)
}

/// Bytes of the bell of so many threads and clients.
pub(super) const fn bell_bytes(servers: u32, clients: u32) -> u64 {
    servers as u64 * bitmap_bytes(clients)
}

const fn bitmap_words(clients: u32) -> u32 {
    clients / 64 + 1
}

const fn bitmap_bytes(clients: u32) -> u64 {
    Bitmap::bytes_of(bitmap_words(clients)).next_multiple_of(APART)
}

/// The bitmap of a server thread. The bit of its command queue is the one behind the last client's.
pub(super) fn bitmap(bell: &Window, server: u32, clients: u32) -> Bitmap {
    let bytes = bitmap_bytes(clients);
    let window = bell.slice(u64::from(server) * bytes, bytes);
    Bitmap::attach_small(window, bitmap_words(clients))
}

/// Sets a bit and wakes the thread if it sleeps.
#[inline]
pub(super) fn ring(bitmap: &Bitmap, bit: u32) {
    if bitmap.set(bit) {
        bitmap.wake();
    }
}
