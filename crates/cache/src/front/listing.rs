//! Answers of memcached's text protocol that name every item or connection, part by part:
//! `lru_crawler metadump` and `mgdump`, `stats sizes`, `stats conns`. In: how far one has come.
//! Out: its next part. The session asks for one after the other, as long as its turn lasts and the
//! client takes them.
//!
//! Every item of database 0 that is there throughout is named at least once, others perhaps.

use super::bytes::{is_line_key, push_base64, push_i64, push_u64, push_uri};
use super::clients::ClientGauges;
use super::core::Core;
use crate::cache::{Item, Millis};
use crate::clock::{Times, time_left};
use crate::constants::MEMCACHED_KEY_BYTES_MAX;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const ITEMS_AT_ONCE: usize = 64;
const CONNECTIONS_AT_ONCE: usize = 64;
/// Sizes of items that are counted as one, bytes.
const SIZE_STEP_BYTES: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// `lru_crawler metadump`: what is known of each item.
    Metadump,
    /// `lru_crawler mgdump`: a line with which each can be asked for.
    Mgdump,
    /// `stats sizes`: how many there are of each size.
    Sizes,
    Connections,
}

/// One that is being answered. Its line stays in the input until then.
#[derive(Debug)]
pub struct ListingInProgress {
    what: Listing,
    pub used: usize,
    cursor: u64,
    sizes: BTreeMap<u64, u64>,
}

impl ListingInProgress {
    pub fn new(what: Listing, used: usize) -> Self {
        Self { what, used, cursor: 0, sizes: BTreeMap::new() }
    }

    /// Memory that it takes, bytes, about.
    pub fn held_bytes(&self) -> u64 {
        self.sizes.len() as u64 * 2 * size_of::<(u64, u64)>() as u64
    }
}

impl Core {
    /// Appends the next part; whether it was the last one.
    pub fn list(&mut self, listing: &mut ListingInProgress) -> bool {
        let what = listing.what;
        if what == Listing::Connections {
            let (now, out) = (self.now, &mut self.out.bytes);
            let from = listing.cursor;
            let next = self.shared.memcached_clients.list(now, from, CONNECTIONS_AT_ONCE, out);
            listing.cursor = next.unwrap_or(0);
        } else {
            let (now, times, sizes) = (self.now, self.times(), &mut listing.sizes);
            let out = &mut self.out.bytes;
            listing.cursor = self.db.scan(listing.cursor, ITEMS_AT_ONCE, now, |item| match what {
                Listing::Metadump => push_meta(out, item, times),
                Listing::Mgdump => push_request(out, &item.key(), item.has_binary_key()),
                Listing::Sizes | Listing::Connections => {
                    let bytes = item.key_len() as u64 + item.len();
                    *sizes.entry(bytes.next_multiple_of(SIZE_STEP_BYTES)).or_default() += 1;
                }
            });
        }
        if listing.cursor != 0 {
            return false;
        }
        let out = &mut self.out.bytes;
        for (bytes, count) in &listing.sizes {
            // Writing to a vector cannot fail.
            let _ = write!(out, "STAT {bytes} {count}\r\n");
        }
        out.extend_from_slice(if what == Listing::Mgdump { b"EN\r\n" } else { b"END\r\n" });
        true
    }
}

fn push_meta(out: &mut Vec<u8>, item: &Item<'_>, times: Times) {
    let meta = item.meta_in_passing();
    out.extend_from_slice(b"key=");
    push_uri(out, &item.key());
    out.extend_from_slice(b" exp=");
    push_i64(
        out,
        match meta.expires {
            0 => -1,
            expires => ((times.wall + time_left(expires, times)) / 1000) as i64,
        },
    );
    out.extend_from_slice(b" la=");
    push_u64(out, (times.wall / 1000).saturating_sub(u64::from(meta.idle_s)));
    out.extend_from_slice(b" cas=");
    push_u64(out, meta.cas);
    out.extend_from_slice(if meta.fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=1 size=");
    push_u64(out, meta.len + item.key_len() as u64);
    out.extend_from_slice(b" flags=");
    push_u64(out, u64::from(meta.flags));
    out.push(b'\n');
}

/// Appends the line that asks for a key, if memcached's clients can: in base64 if it was sent so or
/// cannot stand in a line.
fn push_request(out: &mut Vec<u8>, key: &[u8], is_binary: bool) {
    if key.is_empty() || key.len() > MEMCACHED_KEY_BYTES_MAX {
        return;
    }
    out.extend_from_slice(b"mg ");
    if is_line_key(key) && !is_binary {
        out.extend_from_slice(key);
    } else {
        push_base64(out, key);
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

/// The clients of memcached's protocols, by their numbers. One is entered when it connects and
/// removed when it leaves, so that no command pays for it.
#[derive(Debug, Default)]
pub struct MemcachedClients(Mutex<BTreeMap<u64, MemcachedClient>>);

#[derive(Debug)]
struct MemcachedClient {
    addr: Box<str>,
    came: Millis,
    gauges: Arc<ClientGauges>,
}

impl MemcachedClients {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, MemcachedClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn came(&self, id: u64, addr: &str, gauges: &Arc<ClientGauges>, now: Millis) {
        let (addr, gauges) = (addr.into(), Arc::clone(gauges));
        self.all().insert(id, MemcachedClient { addr, came: now, gauges });
    }

    /// The client is gone. One that was never entered, as Redis's, may be named.
    pub fn gone(&self, id: u64) {
        self.all().remove(&id);
    }

    /// Appends what is known of `count` clients, from number `from` on; the next number, if there
    /// are more.
    fn list(&self, now: Millis, from: u64, count: usize, out: &mut Vec<u8>) -> Option<u64> {
        let all = self.all();
        let mut clients = all.range(from..);
        for (id, client) in clients.by_ref().take(count) {
            // A client that has just connected was not served yet.
            let active = client.gauges.served().0.max(client.came);
            let silent_s = now.saturating_sub(active) / 1000;
            let kind = if client.addr.starts_with('/') { "unix:" } else { "tcp:" };
            // Writing to a vector cannot fail.
            let _ = write!(out, "STAT {id}:addr {kind}{}\r\n", client.addr);
            let _ = write!(out, "STAT {id}:secs_since_last_cmd {silent_s}\r\n");
        }
        clients.next().map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::clients::ClientInfo;

    #[test]
    fn keys_that_cannot_stand_in_a_line_are_asked_for_in_base64() {
        let mut out = Vec::new();
        for key in [&b"plain"[..], b"with blank", b"\xff", b"", &[b'k'; 251]] {
            push_request(&mut out, key, false);
        }
        push_request(&mut out, b"plain", true);
        assert_eq!(out, b"mg plain\r\nmg d2l0aCBibGFuaw== b\r\nmg \xff\r\nmg cGxhaW4= b\r\n");
    }

    #[test]
    fn connections_are_listed_in_parts() {
        let clients = MemcachedClients::default();
        for id in 1..=5 {
            let client = ClientInfo::default();
            client.was_served(1000 * id);
            clients.came(id, "127.0.0.1:9", &client.gauges, 500);
        }
        clients.gone(2);
        let mut out = Vec::new();
        let next = clients.list(6000, 0, 2, &mut out);
        assert_eq!(next, Some(4));
        assert_eq!(clients.list(6000, 4, 2, &mut out), None);
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.lines().count(), 8);
        assert!(out.contains("STAT 3:secs_since_last_cmd 3\r\n"), "{out}");
    }
}
