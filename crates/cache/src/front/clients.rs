//! The clients connected by RESP, for `CLIENT LIST`. A client is entered when it connects and when
//! it says something about itself, and removed when it leaves, so that no other command pays for
//! it.

use super::resp::Version;
use super::transactions::Transaction;
use crate::cache::Millis;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct ClientInfo {
    pub id: u64,
    pub addr: String,
    pub name: Vec<u8>,
    /// The library that it says it uses, and its version.
    pub library: (Vec<u8>, Vec<u8>),
    pub version: Version,
    /// When it was served last, milliseconds since the epoch: read by other threads.
    pub active: Arc<AtomicU64>,
    /// Whether it has authenticated, or need not.
    pub known: bool,
    pub database: u8,
    pub quits: bool,
    /// What it has watched, and its commands since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
}

impl ClientInfo {
    /// What stays with its connection while another thread has the rest.
    pub fn left_behind(&self) -> ClientInfo {
        let active = Arc::clone(&self.active);
        let &ClientInfo { id, version, known, .. } = self;
        ClientInfo { id, version, known, active, ..ClientInfo::default() }
    }
}

#[derive(Debug, Default)]
pub struct Clients(Mutex<BTreeMap<u64, ClientEntry>>);

#[derive(Debug)]
struct ClientEntry {
    came: Millis,
    active: Arc<AtomicU64>,
    addr: String,
    /// The part of its line that it can change.
    about: String,
}

impl Clients {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, ClientEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn came(&self, client: &ClientInfo, now: Millis) {
        let (active, addr) = (Arc::clone(&client.active), client.addr.clone());
        let entry = ClientEntry { came: now, active, addr, about: about(client) };
        self.entries().insert(client.id, entry);
    }

    pub fn changed(&self, client: &ClientInfo) {
        if let Some(entry) = self.entries().get_mut(&client.id) {
            entry.about = about(client);
        }
    }

    /// The client is gone. One that was never entered, as memcached's, may be named.
    pub fn gone(&self, client: &ClientInfo) {
        self.entries().remove(&client.id);
    }

    /// Appends a line for each of `count` clients, from number `from` on; the next number, if there
    /// are more. The fields are those of Redis that libraries insist on; those of memory are 0,
    /// since buffers are the threads'.
    pub fn list(&self, now: Millis, from: u64, count: usize, lines: &mut String) -> Option<u64> {
        let entries = self.entries();
        let mut clients = entries.range(from..);
        for (id, entry) in clients.by_ref().take(count) {
            entry.append_to(lines, *id, now);
        }
        clients.next().map(|(id, _)| *id)
    }

    pub fn line(&self, now: Millis, id: u64) -> Option<String> {
        let mut line = String::new();
        self.entries().get(&id)?.append_to(&mut line, id, now);
        Some(line)
    }
}

impl ClientEntry {
    fn append_to(&self, lines: &mut String, id: u64, now: Millis) {
        let ClientEntry { came, active, addr, about } = self;
        // Relaxed: a time for display. A client that has just connected was not served yet.
        let active = active.load(Ordering::Relaxed).max(*came);
        let [age_s, idle_s] = [*came, active].map(|then| now.saturating_sub(then) / 1000);
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "id={id} addr={addr} {about} age={age_s} idle={idle_s} flags=N sub=0 psub=0 \
             ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 obl=0 oll=0 omem=0 \
             tot-mem=0 events=r cmd=NULL user=default redir=-1"
        );
    }
}

fn about(client: &ClientInfo) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let resp = if client.version == Version::Two { 2 } else { 3 };
    let (name, (library, version)) = (text(&client.name), &client.library);
    let (library, version, database) = (text(library), text(version), client.database);
    format!("name={name} db={database} resp={resp} lib-name={library} lib-ver={version}")
}
