//! A client for what is counted and not timed: one connection, requests queued and sent together,
//! answers read one by one.

use super::client::{connect, io_error, push_resp, push_set, wrong};
use crate::run::BenchError;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct BlockingClient {
    stream: BufReader<TcpStream>,
    /// Whether it speaks Redis's protocol, else memcached's.
    resp: bool,
    ask: Vec<u8>,
    line: String,
    value: Vec<u8>,
}

impl BlockingClient {
    pub fn new(addr: SocketAddr, resp: bool) -> Result<Self, BenchError> {
        let stream = BufReader::with_capacity(64 << 10, connect(addr)?);
        Ok(Self { stream, resp, ask: Vec::new(), line: String::new(), value: Vec::new() })
    }

    pub fn queue_get(&mut self, key: &str) {
        match self.resp {
            true => push_resp(&mut self.ask, &[b"GET", key.as_bytes()]),
            false => self.ask.extend_from_slice(format!("get {key}\r\n").as_bytes()),
        }
    }

    pub fn queue_set(&mut self, key: &str, value: &[u8]) {
        push_set(&mut self.ask, self.resp, key, value);
    }

    /// Sends all that is queued.
    pub fn send(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.get_mut().write_all(&self.ask);
        self.ask.clear();
        sent.map_err(io_error("asking a server"))
    }

    fn read_line(&mut self) -> Result<&str, BenchError> {
        self.line.clear();
        let read = self.stream.read_line(&mut self.line);
        match read.map_err(io_error("a server's answer"))? {
            0 => Err(wrong("the server ended a connection")),
            _ => Ok(self.line.trim_end()),
        }
    }

    /// The answer to a SET: whether the value is stored. One that is too long for a server is not.
    pub fn stored(&mut self) -> Result<bool, BenchError> {
        let line = self.read_line()?;
        if ["-", "SERVER_ERROR"].iter().any(|refused| line.starts_with(refused)) {
            return Ok(false);
        }
        let is_stored = line == "+OK" || line == "STORED";
        is_stored.then_some(true).ok_or_else(|| wrong("not that a value is stored"))
    }

    /// The answer to a GET: the length of the value, if there is one.
    pub fn found(&mut self) -> Result<Option<usize>, BenchError> {
        let is_resp = self.resp;
        let line = self.read_line()?;
        if line == "$-1" || line == "END" {
            return Ok(None);
        }
        let bytes = if is_resp { line.strip_prefix('$') } else { line.rsplit(' ').next() };
        let bytes: Option<usize> = bytes.and_then(|word| word.parse().ok());
        let bytes = bytes.ok_or_else(|| wrong("not a value"))?;
        let end = if is_resp { "\r\n" } else { "\r\nEND\r\n" };
        self.value.resize(bytes + end.len(), 0);
        let read = self.stream.read_exact(&mut self.value);
        read.map_err(io_error("a server's answer"))?;
        let is_whole = self.value.ends_with(end.as_bytes());
        is_whole.then_some(Some(bytes)).ok_or_else(|| wrong("not the end of a value"))
    }

    /// A number of memcached's `stats`.
    pub fn stat(&mut self, name: &str) -> Result<Option<u64>, BenchError> {
        self.ask.extend_from_slice(b"stats\r\n");
        self.send()?;
        let mut found = None;
        loop {
            let line = self.read_line()?;
            if line == "END" {
                return Ok(found);
            }
            let number = || line.strip_prefix("STAT ")?.strip_prefix(name)?.trim().parse().ok();
            found = found.or_else(number);
        }
    }

    /// How many items the server keeps.
    pub fn items(&mut self) -> Result<u64, BenchError> {
        let (ask, start) = match self.resp {
            true => ("DBSIZE\r\n", ":"),
            false => ("stats\r\n", "STAT curr_items "),
        };
        self.ask.extend_from_slice(ask.as_bytes());
        self.send()?;
        let mut items = None;
        loop {
            let is_resp = self.resp;
            let line = self.read_line()?;
            items = items.or_else(|| line.strip_prefix(start)?.parse().ok());
            if is_resp || line == "END" {
                return items.ok_or_else(|| wrong("not a number of items"));
            }
        }
    }

    /// Asks whether the server is there, and waits for its answer.
    pub fn ping(&mut self) -> Result<(), BenchError> {
        let (ask, start) =
            if self.resp { ("PING\r\n", "+PONG") } else { ("version\r\n", "VERSION") };
        self.ask.extend_from_slice(ask.as_bytes());
        self.send()?;
        let is_answer = self.read_line()?.starts_with(start);
        is_answer.then_some(()).ok_or_else(|| wrong("not the answer to a ping"))
    }

    /// The connection alone, without what a client needs to ask.
    pub fn into_stream(self) -> TcpStream {
        self.stream.into_inner()
    }
}
