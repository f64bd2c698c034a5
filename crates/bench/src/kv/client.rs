//! A client that costs as little as it can: requests are made before the measurement, answers have
//! a known length and are compared with what they must be for one batch of each connection. One
//! thread, many connections, each with one batch under way.

use crate::run::BenchError;
use rackpool_mem::event::{Interest, Poller};
use rackpool_stats::histogram::Histogram;
use rackpool_stats::random::Rng;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Look-ups, so many at once.
    Get {
        depth: usize,
    },
    /// Values, so many at once.
    Set {
        depth: usize,
    },
    /// One look-up of many keys, counted by keys.
    MultiGet {
        keys: usize,
    },
    /// Look-ups of fields in hashes, so many at once.
    HashGet {
        depth: usize,
    },
    /// Fields that get a value, so many at once.
    HashSet {
        depth: usize,
    },
    /// A look-up and a value in turn, so many between MULTI and EXEC, counted by commands: what
    /// redis-py's `pipeline()` sends.
    Transaction {
        commands: usize,
    },
    /// [`SCRIPT`] by its digest.
    Script,
    Large,
}

/// Bytes of the long value: a megabyte, which memcached takes without being told.
const LARGE_BYTES: usize = 1_000_000;
const VALUE_BYTES: usize = 32;
/// Fields of a hash.
const FIELDS: u32 = 10;
/// Compares a value, as scripts that release a lock do.
const SCRIPT: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end return 0";
/// SHA-1 of [`SCRIPT`].
const SCRIPT_SHA1: &str = "39a7b6c608fd62176855af7f76a8f7b8e890d67c";
/// Requests that store are sent in batches of about so many bytes.
const STORED_BYTES_AT_ONCE: usize = 50_000;
/// Batches that are made before the measurement and sent in turn.
const BATCHES: usize = 512;
/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(20);

fn key(number: u32) -> String {
    format!("key:{number:012}")
}

/// The hash and the field of a number.
fn field(number: u32) -> (String, String) {
    (format!("hash:{:011}", number / FIELDS), format!("field:{}", number % FIELDS))
}

/// The value of a key: different for each, so that a mistaken one is seen.
fn value(number: u32) -> Vec<u8> {
    let mut value = format!("value-{number}-").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    value
}

fn large_value() -> Vec<u8> {
    (0..LARGE_BYTES).map(|index| b'a' + (index % 23) as u8).collect()
}

pub(super) fn push_resp(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    words.iter().for_each(|word| push_bulk(out, word));
}

fn push_bulk(out: &mut Vec<u8>, word: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn push_set(out: &mut Vec<u8>, resp: bool, key: &str, value: &[u8]) {
    if resp {
        return push_resp(out, &[b"SET", key.as_bytes(), value]);
    }
    out.extend_from_slice(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn push_found(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.extend_from_slice(format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Requests and the answers to them.
#[derive(Default)]
struct Batch {
    ask: Vec<u8>,
    answer: Vec<u8>,
}

impl Batch {
    fn new(resp: bool, work: Work, mut number: impl FnMut() -> u32) -> Self {
        let mut batch = Self::default();
        match work {
            Work::Get { depth } => (0..depth).for_each(|_| batch.push_get(resp, number())),
            Work::Set { depth } => (0..depth).for_each(|_| batch.push_set(resp, number())),
            Work::HashGet { depth } => (0..depth).for_each(|_| batch.push_hash_get(number())),
            Work::HashSet { depth } => (0..depth).for_each(|_| batch.push_hash_set(number())),
            Work::Transaction { commands } => batch.push_transaction(commands, number),
            Work::Script => batch.push_script(number()),
            Work::MultiGet { keys } => {
                batch.ask.extend_from_slice(b"get");
                for number in (0..keys).map(|_| number()) {
                    batch.ask.extend_from_slice(format!(" {}", key(number)).as_bytes());
                    push_found(&mut batch.answer, &key(number), &value(number));
                }
                batch.ask.extend_from_slice(b"\r\n");
                batch.answer.extend_from_slice(b"END\r\n");
            }
            Work::Large => {
                batch.ask.extend_from_slice(b"get large\r\n");
                push_found(&mut batch.answer, "large", &large_value());
                batch.answer.extend_from_slice(b"END\r\n");
            }
        }
        batch
    }

    fn push_get(&mut self, resp: bool, number: u32) {
        let (key, value) = (key(number), value(number));
        if resp {
            push_resp(&mut self.ask, &[b"GET", key.as_bytes()]);
            return push_bulk(&mut self.answer, &value);
        }
        self.ask.extend_from_slice(format!("get {key}\r\n").as_bytes());
        push_found(&mut self.answer, &key, &value);
        self.answer.extend_from_slice(b"END\r\n");
    }

    fn push_set(&mut self, resp: bool, number: u32) {
        push_set(&mut self.ask, resp, &key(number), &value(number));
        self.answer.extend_from_slice(if resp { b"+OK\r\n" } else { b"STORED\r\n" });
    }

    fn push_hash_get(&mut self, number: u32) {
        let (hash, field) = field(number);
        push_resp(&mut self.ask, &[b"HGET", hash.as_bytes(), field.as_bytes()]);
        push_bulk(&mut self.answer, &value(number));
    }

    /// The field is there already.
    fn push_hash_set(&mut self, number: u32) {
        let (hash, field) = field(number);
        let words = [b"HSET", hash.as_bytes(), field.as_bytes(), &value(number)];
        push_resp(&mut self.ask, &words);
        self.answer.extend_from_slice(b":0\r\n");
    }

    fn push_transaction(&mut self, commands: usize, mut number: impl FnMut() -> u32) {
        let mut inner = Self::default();
        push_resp(&mut self.ask, &[b"MULTI"]);
        self.answer.extend_from_slice(b"+OK\r\n");
        for index in 0..commands {
            match index % 2 {
                0 => inner.push_get(true, number()),
                _ => inner.push_set(true, number()),
            }
            self.answer.extend_from_slice(b"+QUEUED\r\n");
        }
        self.ask.extend_from_slice(&inner.ask);
        push_resp(&mut self.ask, &[b"EXEC"]);
        self.answer.extend_from_slice(format!("*{commands}\r\n").as_bytes());
        self.answer.extend_from_slice(&inner.answer);
    }

    fn push_script(&mut self, number: u32) {
        let (key, value) = (key(number), value(number));
        let words = [b"EVALSHA", SCRIPT_SHA1.as_bytes(), b"1", key.as_bytes(), &value];
        push_resp(&mut self.ask, &words);
        self.answer.extend_from_slice(b":1\r\n");
    }
}

pub(super) fn io_error(what: &str) -> impl Fn(io::Error) -> BenchError + '_ {
    move |source| BenchError::Io { what: what.to_owned(), source }
}

pub(super) fn connect(addr: SocketAddr) -> Result<TcpStream, BenchError> {
    let stream = TcpStream::connect(addr).map_err(io_error("connecting to a server"))?;
    stream.set_nodelay(true).map_err(io_error("connecting to a server"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io_error("connecting to a server"))?;
    Ok(stream)
}

pub(super) fn wrong(what: &'static str) -> BenchError {
    let source = io::Error::new(io::ErrorKind::InvalidData, what);
    BenchError::Io { what: "an answer".into(), source }
}

pub fn store_all(addr: SocketAddr, resp: bool, keys: u32) -> Result<(), BenchError> {
    let mut stream = connect(addr)?;
    let mut next = 0..keys;
    while next.start < next.end {
        let depth = next.len().min(500);
        let batch = Batch::new(resp, Work::Set { depth }, || next.next().unwrap_or(0));
        exchange(&mut stream, &batch)?;
    }
    Ok(())
}

pub fn store_large(addr: SocketAddr) -> Result<(), BenchError> {
    let mut ask = Vec::new();
    push_set(&mut ask, false, "large", &large_value());
    exchange(&mut connect(addr)?, &Batch { ask, answer: b"STORED\r\n".to_vec() })
}

/// Stores hashes with the fields of so many numbers, and the script.
pub fn store_hashes_and_script(addr: SocketAddr, keys: u32) -> Result<(), BenchError> {
    let mut stream = connect(addr)?;
    let mut batch = Batch::default();
    for first in (0..keys).step_by(FIELDS as usize) {
        let mut words = vec![b"HSET".to_vec(), field(first).0.into_bytes()];
        for number in first..first + FIELDS {
            words.extend([field(number).1.into_bytes(), value(number)]);
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        push_resp(&mut batch.ask, &words);
        batch.answer.extend_from_slice(format!(":{FIELDS}\r\n").as_bytes());
        if batch.ask.len() > STORED_BYTES_AT_ONCE {
            exchange(&mut stream, &std::mem::take(&mut batch))?;
        }
    }
    push_resp(&mut batch.ask, &[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]);
    push_bulk(&mut batch.answer, SCRIPT_SHA1.as_bytes());
    exchange(&mut stream, &batch)
}

fn exchange(stream: &mut TcpStream, batch: &Batch) -> Result<(), BenchError> {
    stream.write_all(&batch.ask).map_err(io_error("asking a server"))?;
    let mut answer = vec![0; batch.answer.len()];
    stream.read_exact(&mut answer).map_err(io_error("a server's answer"))?;
    if answer == batch.answer { Ok(()) } else { Err(wrong("not what was stored")) }
}

struct Connection {
    stream: TcpStream,
    /// The batch that is under way.
    batch: usize,
    missing: usize,
    sent_at: Instant,
}

/// What a load generator does.
pub struct LoadOptions {
    pub addr: SocketAddr,
    /// Whether it speaks redis' protocol, else memcached's.
    pub resp: bool,
    pub work: Work,
    pub connections: usize,
    /// Keys that are asked for, from 0 on.
    pub keys: u32,
    /// Names the random choices.
    pub seed: u64,
}

/// Connections to one server, and what they ask.
pub struct LoadGenerator {
    connections: Vec<Connection>,
    batches: Vec<Batch>,
    poller: Poller,
    buffer: Vec<u8>,
    weight: u64,
}

impl LoadGenerator {
    /// Connects and checks one batch for each connection.
    pub fn new(options: LoadOptions) -> Result<Self, BenchError> {
        let LoadOptions { addr, resp, work, connections: count, keys, seed } = options;
        let mut rng = Rng::new(seed);
        let made = if work == Work::Large { 1 } else { BATCHES };
        let mut number = || rng.below(u64::from(keys)) as u32;
        let batches: Vec<Batch> = (0..made).map(|_| Batch::new(resp, work, &mut number)).collect();
        let poller = Poller::new().map_err(io_error("waiting for answers"))?;
        let mut connections = Vec::new();
        for index in 0..count {
            let mut stream = connect(addr)?;
            let batch = index % batches.len();
            exchange(&mut stream, &batches[batch])?;
            stream.set_nonblocking(true).map_err(io_error("a socket"))?;
            let waits = poller.add(&stream, index as u64, Interest::Read);
            waits.map_err(io_error("waiting for answers"))?;
            let sent_at = Instant::now();
            connections.push(Connection { stream, batch, missing: 0, sent_at });
        }
        let weight = match work {
            Work::Get { depth } | Work::Set { depth } => depth,
            Work::HashGet { depth } | Work::HashSet { depth } => depth,
            Work::MultiGet { keys } => keys,
            Work::Transaction { commands } => commands,
            Work::Script | Work::Large => 1,
        };
        let buffer = vec![0; 256 << 10];
        Ok(Self { connections, batches, poller, buffer, weight: weight as u64 })
    }

    /// Asks for `time` and then until all is answered: how many requests, in which time.
    pub fn run(
        &mut self,
        time: Duration,
        latency: &mut Histogram,
    ) -> Result<(u64, Duration), BenchError> {
        let start = Instant::now();
        for index in 0..self.connections.len() {
            self.send(index)?;
        }
        let (mut under_way, mut done) = (self.connections.len(), 0);
        let mut events = Vec::new();
        while under_way > 0 {
            let ready = self.poller.wait(Some(PATIENCE), &mut events);
            if ready.map_err(io_error("waiting for answers"))? == 0 {
                let (end, waited_s) = ("a server".into(), PATIENCE.as_secs());
                return Err(BenchError::Silent { end, waited_s });
            }
            for event in &events {
                let index = event.token as usize;
                if !self.receive(index)? {
                    continue;
                }
                let now = Instant::now();
                let took = now - self.connections[index].sent_at;
                latency.record(took.as_nanos() as u64);
                done += self.weight;
                if now - start < time {
                    self.send(index)?;
                } else {
                    under_way -= 1;
                }
            }
        }
        Ok((done, start.elapsed()))
    }

    fn send(&mut self, index: usize) -> Result<(), BenchError> {
        let connection = &mut self.connections[index];
        connection.batch = (connection.batch + 1) % self.batches.len();
        let batch = &self.batches[connection.batch];
        connection.missing = batch.answer.len();
        connection.sent_at = Instant::now();
        // A batch fits into the socket's buffer, which is empty: all of it goes at once.
        let sent = connection.stream.write(&batch.ask).map_err(io_error("asking a server"))?;
        if sent == batch.ask.len() { Ok(()) } else { Err(wrong("a batch was not sent whole")) }
    }

    /// Takes what came; whether the batch is answered.
    fn receive(&mut self, index: usize) -> Result<bool, BenchError> {
        let connection = &mut self.connections[index];
        match connection.stream.read(&mut self.buffer) {
            Ok(0) => Err(wrong("the server ended a connection")),
            Ok(count) => {
                let missing = connection.missing.checked_sub(count);
                connection.missing = missing.ok_or_else(|| wrong("longer than it must be"))?;
                Ok(connection.missing == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(io_error("a server's answer")(error)),
        }
    }
}
