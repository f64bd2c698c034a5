//! What the clients of YCSB work on: the pool's table, or Redis and memcached with one server for
//! each rack and the keys spread over them by hash. One way in for all ([`KeyValue`]), so that all
//! are measured by the same client with the same operations.

use crate::run::{BenchError, io_error};
use rackpool::Handle;
use rackpool_table::Table;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 64 << 10;

/// What a client needs of a store: the table of the pool, another system, or a model in tests.
pub trait KeyValue {
    /// Adds a key or replaces its value.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;
    /// Adds a key; `false` if it was there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError>;
    /// Replaces the value of a key; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError>;
    /// Reads the value of a key into `value`; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError>;
    /// Removes a key; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError>;
    /// Reads several keys at once.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn get_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BenchError> {
        let one = |key: &Vec<u8>| {
            let mut value = Vec::new();
            Ok(self.get(key, &mut value)?.then_some(value))
        };
        keys.iter().map(one).collect()
    }
    /// Stores several keys at once.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn put_many(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), BenchError> {
        pairs.iter().try_for_each(|(key, value)| self.put(key, value))
    }
}

/// A hash table of the pool and the handle through which it is used.
#[derive(Debug)]
pub struct PoolTable {
    handle: Handle,
    table: Table,
}

impl PoolTable {
    /// Opens the table under `name`.
    ///
    /// # Errors
    /// [`BenchError::Table`] if there is none.
    pub fn open(mut handle: Handle, name: &str) -> Result<Self, BenchError> {
        let table = Table::open(&mut handle, name)?;
        Ok(Self { handle, table })
    }
}

impl KeyValue for PoolTable {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        Ok(self.table.put(&mut self.handle, key, value).map(|_| ())?)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.insert(&mut self.handle, key, value)?)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.update(&mut self.handle, key, value)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError> {
        Ok(self.table.get_into(&mut self.handle, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.delete(&mut self.handle, key)?)
    }

    fn get_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BenchError> {
        let found = self.table.get_many(&mut self.handle, keys);
        found.into_iter().map(|found| Ok(found?)).collect()
    }

    fn put_many(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), BenchError> {
        let stored = self.table.put_many(&mut self.handle, pairs);
        stored.into_iter().try_for_each(|stored| Ok(stored.map(drop)?))
    }
}

/// What a peer's servers speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PeerProtocol {
    Redis,
    Memcached,
}

/// Servers of another system; a key is the server's that its hash names.
#[derive(Debug)]
pub(crate) struct PeerStore {
    protocol: PeerProtocol,
    servers: Vec<PeerConnection>,
}

#[derive(Debug)]
struct PeerConnection {
    stream: BufReader<TcpStream>,
    ask: Vec<u8>,
    line: String,
}

fn wrong(line: &str) -> BenchError {
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("a server said `{line}`"));
    BenchError::Io { what: "an answer".into(), source }
}

impl PeerConnection {
    fn open(addr: &SocketAddr) -> Result<Self, BenchError> {
        let failed = || io_error("connecting to a server");
        let stream = TcpStream::connect(addr).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed())?;
        let stream = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { stream, ask: Vec::new(), line: String::new() })
    }

    fn send(&mut self) -> Result<(), BenchError> {
        if self.ask.is_empty() {
            return Ok(());
        }
        let sent = self.stream.get_mut().write_all(&self.ask);
        self.ask.clear();
        sent.map_err(io_error("asking a server"))
    }

    fn read_line(&mut self) -> Result<&str, BenchError> {
        self.line.clear();
        let read = self.stream.read_line(&mut self.line);
        match read.map_err(io_error("a server's answer"))? {
            0 => Err(wrong("nothing any more")),
            _ => Ok(self.line.trim_end()),
        }
    }

    /// Reads a value of `bytes` bytes and what ends it.
    fn read_value(
        &mut self,
        bytes: usize,
        end: &str,
        value: &mut Vec<u8>,
    ) -> Result<(), BenchError> {
        value.resize(bytes + end.len(), 0);
        let read = self.stream.read_exact(value);
        read.map_err(io_error("a server's answer"))?;
        if !value.ends_with(end.as_bytes()) {
            return Err(wrong("a value without an end"));
        }
        value.truncate(bytes);
        Ok(())
    }
}

/// How a value is stored.
#[derive(Clone, Copy)]
enum StoreMode {
    Always,
    IfAbsent,
    IfPresent,
}

impl PeerStore {
    pub(crate) fn open(protocol: PeerProtocol, addrs: &[SocketAddr]) -> Result<Self, BenchError> {
        let servers = addrs.iter().map(PeerConnection::open).collect::<Result<_, _>>()?;
        Ok(Self { protocol, servers })
    }

    fn server_of(&self, key: &[u8]) -> usize {
        (xxh3_64(key) % self.servers.len() as u64) as usize
    }

    fn push_words(ask: &mut Vec<u8>, words: &[&[u8]]) {
        ask.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            ask.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            ask.extend_from_slice(word);
            ask.extend_from_slice(b"\r\n");
        }
    }

    fn push_get(&mut self, key: &[u8]) -> usize {
        let server = self.server_of(key);
        let ask = &mut self.servers[server].ask;
        match self.protocol {
            PeerProtocol::Redis => Self::push_words(ask, &[b"GET", key]),
            PeerProtocol::Memcached => {
                ask.extend_from_slice(b"get ");
                ask.extend_from_slice(key);
                ask.extend_from_slice(b"\r\n");
            }
        }
        server
    }

    fn push_store(&mut self, mode: StoreMode, key: &[u8], value: &[u8]) -> usize {
        let server = self.server_of(key);
        let ask = &mut self.servers[server].ask;
        match self.protocol {
            PeerProtocol::Redis => {
                let words: [&[u8]; 4] = [
                    b"SET",
                    key,
                    value,
                    match mode {
                        StoreMode::IfAbsent => b"NX",
                        _ => b"XX",
                    },
                ];
                let count = if matches!(mode, StoreMode::Always) { 3 } else { 4 };
                Self::push_words(ask, &words[..count]);
            }
            PeerProtocol::Memcached => {
                let verb: &[u8] = match mode {
                    StoreMode::Always => b"set ",
                    StoreMode::IfAbsent => b"add ",
                    StoreMode::IfPresent => b"replace ",
                };
                ask.extend_from_slice(verb);
                ask.extend_from_slice(key);
                ask.extend_from_slice(format!(" 0 0 {}\r\n", value.len()).as_bytes());
                ask.extend_from_slice(value);
                ask.extend_from_slice(b"\r\n");
            }
        }
        server
    }

    fn found(&mut self, server: usize, value: &mut Vec<u8>) -> Result<bool, BenchError> {
        let protocol = self.protocol;
        let server = &mut self.servers[server];
        let line = server.read_line()?;
        if line == "$-1" || line == "END" {
            value.clear();
            return Ok(false);
        }
        let (word, end) = match protocol {
            PeerProtocol::Redis => (line.strip_prefix('$'), "\r\n"),
            PeerProtocol::Memcached => (line.rsplit(' ').next(), "\r\nEND\r\n"),
        };
        let bytes: Option<usize> = word.and_then(|word| word.parse().ok());
        let bytes = bytes.ok_or_else(|| wrong(line))?;
        server.read_value(bytes, end, value)?;
        Ok(true)
    }

    fn stored(&mut self, server: usize) -> Result<bool, BenchError> {
        match self.servers[server].read_line()? {
            "+OK" | "STORED" => Ok(true),
            "$-1" | "NOT_STORED" => Ok(false),
            other => Err(wrong(other)),
        }
    }

    fn store(&mut self, mode: StoreMode, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        let server = self.push_store(mode, key, value);
        self.servers[server].send()?;
        self.stored(server)
    }

    fn send_all(&mut self) -> Result<(), BenchError> {
        self.servers.iter_mut().try_for_each(PeerConnection::send)
    }
}

impl KeyValue for PeerStore {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        match self.store(StoreMode::Always, key, value)? {
            true => Ok(()),
            false => Err(wrong("that a value is not stored")),
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        self.store(StoreMode::IfAbsent, key, value)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        self.store(StoreMode::IfPresent, key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError> {
        let server = self.push_get(key);
        self.servers[server].send()?;
        self.found(server, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError> {
        let server = self.server_of(key);
        let connection = &mut self.servers[server];
        match self.protocol {
            PeerProtocol::Redis => Self::push_words(&mut connection.ask, &[b"DEL", key]),
            PeerProtocol::Memcached => {
                connection.ask.extend_from_slice(b"delete ");
                connection.ask.extend_from_slice(key);
                connection.ask.extend_from_slice(b"\r\n");
            }
        }
        connection.send()?;
        match connection.read_line()? {
            ":1" | "DELETED" => Ok(true),
            ":0" | "NOT_FOUND" => Ok(false),
            other => Err(wrong(other)),
        }
    }

    fn get_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BenchError> {
        let asked: Vec<usize> = keys.iter().map(|key| self.push_get(key)).collect();
        self.send_all()?;
        let one = |server| {
            let mut value = Vec::new();
            Ok(self.found(server, &mut value)?.then_some(value))
        };
        asked.into_iter().map(one).collect()
    }

    fn put_many(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), BenchError> {
        let asked: Vec<usize> = pairs
            .iter()
            .map(|(key, value)| self.push_store(StoreMode::Always, key, value))
            .collect();
        self.send_all()?;
        for server in asked {
            if !self.stored(server)? {
                return Err(wrong("that a value is not stored"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that gives these answers, in one piece, once it has got as many requests.
    fn store_with(
        protocol: PeerProtocol,
        requests: &'static str,
        answers: &'static str,
    ) -> PeerStore {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = vec![0; requests.len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), requests);
            stream.write_all(answers.as_bytes()).unwrap();
            let _ = stream.read(&mut [0]);
        });
        PeerStore::open(protocol, &[addr]).unwrap()
    }

    #[test]
    fn both_protocols_are_spoken_one_by_one_and_many_at_once() {
        let mut redis = store_with(
            PeerProtocol::Redis,
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n",
            "$5\r\nva\r\nl\r\n$-1\r\n",
        );
        let found = redis.get_many(&[b"a".to_vec(), b"b".to_vec()]).unwrap();
        assert_eq!(found, [Some(b"va\r\nl".to_vec()), None]);
        let mut memcached =
            store_with(PeerProtocol::Memcached, "replace a 0 0 2\r\nxy\r\n", "NOT_STORED\r\n");
        assert!(!memcached.update(b"a", b"xy").unwrap());
        let mut memcached =
            store_with(PeerProtocol::Memcached, "get a\r\n", "VALUE a 0 2\r\nxy\r\nEND\r\n");
        let mut value = Vec::new();
        assert!(memcached.get(b"a", &mut value).unwrap());
        assert_eq!(value, b"xy");
        let mut redis = store_with(
            PeerProtocol::Redis,
            "*4\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nv\r\n$2\r\nNX\r\n",
            "-ERR no\r\n",
        );
        assert!(redis.insert(b"a", b"v").is_err());
    }
}
