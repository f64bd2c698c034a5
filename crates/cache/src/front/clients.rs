//! The clients connected by RESP, for `CLIENT LIST` and `CLIENT KILL`. A client is entered when it
//! connects and when it says something about itself, and removed when it leaves; what changes as it
//! is served stands in gauges of its own, so that no other command pays for the list.

use super::commands::CommandId;
use super::monitor::MonitorQueue;
use super::resp::Version;
use super::transactions::Transaction;
use crate::cache::Millis;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether a client wants answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// Not to the command after this one.
    SkipNext,
    /// Not to this one.
    Skip,
}

#[derive(Debug, Default)]
pub struct ClientInfo {
    pub id: u64,
    pub addr: String,
    pub name: Vec<u8>,
    /// The library that it says it uses, and its version.
    pub library: (Vec<u8>, Vec<u8>),
    pub version: Version,
    pub gauges: Arc<ClientGauges>,
    pub last: Option<CommandId>,
    /// Whether it has authenticated, or need not.
    pub known: bool,
    pub database: u8,
    pub quits: bool,
    /// The error that its script answers is a command's, which counted it.
    pub error_is_counted: bool,
    pub reply: ReplyMode,
    /// Whether it is among the last to go where connections have to (`CLIENT NO-EVICT`).
    pub goes_last: bool,
    /// The commands of others that it is told.
    pub monitor: Option<Arc<MonitorQueue>>,
    /// What it has watched, and its commands since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
}

impl ClientInfo {
    /// What stays with its connection while another thread has the rest.
    pub fn left_behind(&self) -> ClientInfo {
        let &ClientInfo { id, version, last, known, database, reply, goes_last, .. } = self;
        ClientInfo {
            id,
            addr: self.addr.clone(),
            name: self.name.clone(),
            version,
            gauges: Arc::clone(&self.gauges),
            last,
            known,
            database,
            reply,
            goes_last,
            monitor: self.monitor.clone(),
            ..ClientInfo::default()
        }
    }

    /// A command of it runs.
    pub fn runs(&mut self, command: CommandId, now: Millis) {
        self.last = Some(command);
        self.was_served(now);
    }

    pub fn was_served(&self, now: Millis) {
        self.gauges.store_served(now, self.last);
        let open = self.transaction.as_ref().filter(|transaction| transaction.is_open());
        let queued = open.map(|transaction| (transaction.queued(), transaction.held_bytes()));
        self.gauges.store_queued(queued);
    }
}

/// What other threads may see of a client as it is served: numbers for display, each by itself.
#[derive(Debug, Default)]
pub struct ClientGauges {
    /// When it was served last, milliseconds, and one more than its last command's index.
    served: AtomicU64,
    /// One more than the commands that wait for `EXEC`; 0: none has to.
    queued: AtomicU64,
    queued_bytes: AtomicU64,
    input_bytes: AtomicU64,
    input_free_bytes: AtomicU64,
    output_bytes: AtomicU64,
    held_bytes: AtomicU64,
}

/// Bits of a command in [`ClientGauges::served`].
const COMMAND_BITS: u32 = 16;

/// What a connection has in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldMemory {
    pub input_bytes: u64,
    pub input_free_bytes: u64,
    pub output_bytes: u64,
    pub all_bytes: u64,
}

impl ClientGauges {
    #[inline]
    fn store_served(&self, now: Millis, last: Option<CommandId>) {
        let command = last.map_or(0, |last| last.index() as u64 + 1);
        // Relaxed: for display, as all of these.
        self.served.store(now << COMMAND_BITS | command, Ordering::Relaxed);
    }

    fn store_queued(&self, queued: Option<(u64, u64)>) {
        let (count, bytes) = queued.map_or((0, 0), |(count, bytes)| (count + 1, bytes));
        // Relaxed: for display.
        self.queued.store(count, Ordering::Relaxed);
        self.queued_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn served(&self) -> (Millis, Option<CommandId>) {
        // Relaxed: for display.
        let served = self.served.load(Ordering::Relaxed);
        let command = served & ((1 << COMMAND_BITS) - 1);
        (served >> COMMAND_BITS, CommandId::at(command.wrapping_sub(1)))
    }

    pub fn store_held(&self, held: HeldMemory) {
        let HeldMemory { input_bytes, input_free_bytes, output_bytes, all_bytes } = held;
        // Relaxed: for display.
        self.input_bytes.store(input_bytes, Ordering::Relaxed);
        self.input_free_bytes.store(input_free_bytes, Ordering::Relaxed);
        self.output_bytes.store(output_bytes, Ordering::Relaxed);
        self.held_bytes.store(all_bytes, Ordering::Relaxed);
    }

    fn held(&self) -> HeldMemory {
        // Relaxed: for display.
        let read = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        HeldMemory {
            input_bytes: read(&self.input_bytes),
            input_free_bytes: read(&self.input_free_bytes),
            output_bytes: read(&self.output_bytes),
            all_bytes: read(&self.held_bytes),
        }
    }
}

/// The client that asks, and what of its input is not done with: the command that asks, and what
/// came behind it.
#[derive(Clone, Copy, Debug)]
pub struct AskingClient {
    pub id: u64,
    pub input_bytes: u64,
}

/// Where a client is served, and how it comes there.
#[derive(Debug, Default)]
pub struct ClientOrigin {
    pub thread: usize,
    pub descriptor: i32,
    pub local: String,
}

#[derive(Debug, Default)]
pub struct Clients {
    entries: Mutex<BTreeMap<u64, ClientEntry>>,
    /// Clients to be ended, with their threads.
    ending: Mutex<Vec<(usize, u64)>>,
    are_ending: AtomicBool,
}

#[derive(Debug)]
struct ClientEntry {
    came: Millis,
    gauges: Arc<ClientGauges>,
    addr: String,
    origin: ClientOrigin,
    name: String,
    database: u8,
    monitors: bool,
    goes_last: bool,
    /// The end of its line.
    tail: String,
    /// It was killed and is about to go.
    is_ending: bool,
}

/// Which clients are to be killed: those for which all holds that is said.
#[derive(Debug, Default)]
pub struct ClientFilter<'a> {
    pub id: Option<u64>,
    pub addr: Option<&'a [u8]>,
    pub local: Option<&'a [u8]>,
    pub age_s_min: u64,
    /// A type is wanted that no client has.
    pub is_of_none: bool,
    pub skipped: Option<u64>,
}

impl ClientFilter<'_> {
    fn wants(&self, id: u64, entry: &ClientEntry, now: Millis) -> bool {
        let is = |wanted: Option<&[u8]>, text: &str| wanted.is_none_or(|it| it == text.as_bytes());
        !self.is_of_none
            && !entry.is_ending
            && self.id.is_none_or(|wanted| wanted == id)
            && self.skipped != Some(id)
            && is(self.addr, &entry.addr)
            && is(self.local, &entry.origin.local)
            && now.saturating_sub(entry.came) / 1000 >= self.age_s_min
    }
}

impl Clients {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, ClientEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ending(&self) -> MutexGuard<'_, Vec<(usize, u64)>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn came(&self, client: &ClientInfo, origin: ClientOrigin, now: Millis) {
        let (gauges, addr) = (Arc::clone(&client.gauges), client.addr.clone());
        let mut entry = ClientEntry {
            came: now,
            gauges,
            addr,
            origin,
            name: String::new(),
            database: 0,
            monitors: false,
            goes_last: false,
            tail: String::new(),
            is_ending: false,
        };
        entry.change(client);
        self.entries().insert(client.id, entry);
    }

    pub fn changed(&self, client: &ClientInfo) {
        if let Some(entry) = self.entries().get_mut(&client.id) {
            entry.change(client);
        }
    }

    /// The client is gone. One that was never entered, as memcached's, may be named.
    pub fn gone(&self, client: &ClientInfo) {
        self.entries().remove(&client.id);
    }

    /// Appends a line for each of `count` clients, from number `from` on; the next number, if there
    /// are more.
    pub fn list(
        &self,
        asking: AskingClient,
        now: Millis,
        (from, count): (u64, usize),
        lines: &mut String,
    ) -> Option<u64> {
        let entries = self.entries();
        let mut clients = entries.range(from..);
        for (id, entry) in clients.by_ref().take(count).filter(|(_, entry)| !entry.is_ending) {
            entry.append_to(lines, *id, asking, now);
        }
        clients.next().map(|(id, _)| *id)
    }

    pub fn line(&self, asking: AskingClient, now: Millis, id: u64) -> Option<String> {
        let mut line = String::new();
        let entries = self.entries();
        let entry = entries.get(&id).filter(|entry| !entry.is_ending)?;
        entry.append_to(&mut line, id, asking, now);
        Some(line)
    }

    /// Whether a client is there, and was not killed.
    pub fn is_there(&self, id: u64) -> bool {
        self.entries().get(&id).is_some_and(|entry| !entry.is_ending)
    }

    /// Has those of `count` clients, from number `from` on, ended that are wanted; the next number,
    /// if there are more. Their threads, which are to be woken, are appended to `threads`, once for
    /// each client; the one that kills, `own`, is found but has to end itself.
    pub fn kill(
        &self,
        filter: &ClientFilter<'_>,
        own: u64,
        (from, count): (u64, usize),
        now: Millis,
        threads: &mut Vec<usize>,
    ) -> Option<u64> {
        let mut entries = self.entries();
        let mut ending = self.ending();
        let mut clients = entries.range_mut(from..);
        for (id, entry) in clients.by_ref().take(count) {
            if filter.wants(*id, entry, now) {
                threads.push(entry.origin.thread);
                entry.is_ending = true;
                if *id != own {
                    ending.push((entry.origin.thread, *id));
                }
            }
        }
        // Relaxed: the numbers themselves are under the lock, and their threads are woken.
        self.are_ending.store(!ending.is_empty(), Ordering::Relaxed);
        clients.next().map(|(id, _)| *id)
    }

    /// Whether a client is to be ended.
    pub fn are_ending(&self) -> bool {
        // Relaxed: see `Clients::kill`.
        self.are_ending.load(Ordering::Relaxed)
    }

    /// The clients of a thread that it is to end, sorted.
    pub fn ending_of(&self, thread: usize) -> Vec<u64> {
        let ending = self.ending();
        let own = ending.iter().filter(|(of, _)| *of == thread).map(|(_, id)| *id);
        let mut own: Vec<_> = own.collect();
        own.sort_unstable();
        own
    }

    /// They have ended.
    pub fn ended(&self, sorted: &[u64]) {
        let mut ending = self.ending();
        ending.retain(|(_, id)| sorted.binary_search(id).is_err());
        // Relaxed: see `Clients::kill`.
        self.are_ending.store(!ending.is_empty(), Ordering::Relaxed);
    }
}

impl ClientEntry {
    fn change(&mut self, client: &ClientInfo) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let resp = if client.version == Version::Two { 2 } else { 3 };
        let (library, version) = (text(&client.library.0), text(&client.library.1));
        self.name = text(&client.name);
        self.database = client.database;
        self.tail = format!("resp={resp} lib-name={library} lib-ver={version}");
        (self.monitors, self.goes_last) = (client.monitor.is_some(), client.goes_last);
    }

    /// The fields are those of Redis, on which libraries insist. Those of subscriptions are
    /// as of a client without any; buffers of arguments and replies are the
    /// threads'.
    fn append_to(&self, lines: &mut String, id: u64, asking: AskingClient, now: Millis) {
        let ClientEntry { came, gauges, addr, name, database, tail, .. } = self;
        let ClientOrigin { descriptor, local, .. } = &self.origin;
        let (served, last) = gauges.served();
        // A client that has just connected was not served yet.
        let [age_s, idle_s] =
            [*came, served.max(*came)].map(|then| now.saturating_sub(then) / 1000);
        let HeldMemory { mut input_bytes, input_free_bytes, output_bytes, all_bytes } =
            gauges.held();
        if id == asking.id {
            input_bytes = asking.input_bytes;
        }
        let events = if output_bytes > 0 { "rw" } else { "r" };
        // Relaxed: for display.
        let queued = gauges.queued.load(Ordering::Relaxed) as i64 - 1;
        let queued_bytes = gauges.queued_bytes.load(Ordering::Relaxed);
        let all = [
            ('O', self.monitors),
            ('x', queued >= 0),
            // Those of a Unix socket have its path for an address.
            ('U', addr.starts_with('/')),
            ('e', self.goes_last),
        ];
        let mut flags: String = all.iter().filter(|(_, is)| *is).map(|(flag, _)| *flag).collect();
        if flags.is_empty() {
            flags.push('N');
        }
        let command = last.map_or("NULL", |last| last.command().name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "id={id} addr={addr} laddr={local} fd={descriptor} name={name} age={age_s} \
             idle={idle_s} flags={flags} db={database} sub=0 psub=0 ssub=0 multi={queued} \
             qbuf={input_bytes} qbuf-free={input_free_bytes} argv-mem=0 multi-mem={queued_bytes} \
             rbs=0 rbp=0 obl=0 oll=0 omem={output_bytes} tot-mem={all_bytes} events={events} \
             cmd={command} user=default redir=-1 {tail}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_killed_by_all_that_is_said_of_them_and_once() {
        let clients = Clients::default();
        for id in 1..=5_u64 {
            let addr = format!("127.0.0.1:{id}");
            let client = ClientInfo { id, addr, ..ClientInfo::default() };
            let local = format!("127.0.0.1:{}", 100 + id % 2);
            let origin = ClientOrigin { thread: id as usize % 2, descriptor: 3, local };
            clients.came(&client, origin, 1000 * id);
        }
        let kill = |filter: &ClientFilter<'_>| {
            let mut threads = Vec::new();
            assert_eq!(clients.kill(filter, 5, (0, 10), 9000, &mut threads), None);
            threads.len()
        };
        let local = Some(&b"127.0.0.1:101"[..]);
        let none = ClientFilter { id: Some(2), local, ..ClientFilter::default() };
        assert_eq!(kill(&none), 0);
        assert_eq!(kill(&ClientFilter { is_of_none: true, ..ClientFilter::default() }), 0);
        // Numbers 1 and 3, since 5 is left out.
        let some = ClientFilter { local, skipped: Some(5), ..ClientFilter::default() };
        assert_eq!((kill(&some), kill(&some)), (2, 0));
        let old = ClientFilter { age_s_min: 7, ..ClientFilter::default() };
        assert_eq!(kill(&old), 1);
        // The one that kills is told that it is meant, and ends itself.
        let own = ClientFilter { addr: Some(b"127.0.0.1:5"), ..ClientFilter::default() };
        assert_eq!(kill(&own), 1);
        assert!(clients.are_ending());
        let ending = [0, 1].map(|thread| clients.ending_of(thread));
        assert_eq!(ending, [vec![2], vec![1, 3]]);
        clients.ended(&ending[1]);
        assert!(clients.are_ending());
        clients.ended(&ending[0]);
        assert!(!clients.are_ending());
        let mut lines = String::new();
        let asking = AskingClient { id: 0, input_bytes: 0 };
        clients.list(asking, 9000, (0, 10), &mut lines);
        assert!(lines.starts_with("id=4 ") && lines.lines().count() == 1, "{lines}");
    }
}
