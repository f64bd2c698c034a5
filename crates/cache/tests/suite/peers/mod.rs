//! Real servers and ours, for tests: started on free ports of the loopback, ended by their own
//! process ids. A program that is not installed is said loudly, and is a failure if `CI=true`.
#![allow(dead_code)]

use rackpool_cache::front::{ListenConfig, Server, Settings};
use rackpool_cache::{Cache, Options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The numbers behind these words on the command line of a test without a harness; `None` if it is
/// only to be listed. What else cargo passes is passed over.
pub fn numbers<const N: usize>(names: [&str; N]) -> Option<[Option<u64>; N]> {
    let mut found = [None; N];
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--list" {
            return None;
        }
        if let Some(index) = names.iter().position(|name| *name == word) {
            let number = words.next().and_then(|word| word.parse().ok());
            found[index] = Some(number.unwrap_or_else(|| panic!("a number behind {word}")));
        }
    }
    Some(found)
}

/// How long anything may take before it counts as failed.
pub const WITHIN: Duration = Duration::from_secs(20);

/// A server's process; it ends with this.
pub struct Peer {
    child: Child,
    pub addr: SocketAddr,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// Whether a program is there; if not, says so, and fails in CI.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !there {
        eprintln!("\n********  {program} is not installed: this test proves nothing here.");
        eprintln!("********  cargo xtask deps installs it.\n");
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "{program} must be installed in CI");
    }
    there
}

fn start(program: &str, words: impl Fn(u16) -> Vec<String>) -> Option<Peer> {
    if !is_there(program) {
        return None;
    }
    for _ in 0..5 {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(words(port)).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let begin = Instant::now();
        while begin.elapsed() < WITHIN {
            if TcpStream::connect(addr).is_ok() {
                return Some(Peer { child, addr });
            }
            if matches!(child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    panic!("{program} does not serve");
}

/// Debian's memcached, without the threads of its own that hold items now and then: how it counts
/// depends on that.
pub fn memcached(threads: usize) -> Option<Peer> {
    start("memcached", |port| {
        let alone = "no_lru_maintainer,no_lru_crawler";
        let memory = "-u nobody -l 127.0.0.1 -U 0 -m 512 -c 4096";
        let words = format!("{memory} -o {alone} -t {threads} -p {port}");
        words.split(' ').map(str::to_owned).collect()
    })
}

pub fn redis() -> Option<Peer> {
    start("redis-server", |port| {
        let port = port.to_string();
        let words = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        words.map(str::to_owned).to_vec()
    })
}

/// Debian's exporter of what this server, which speaks RESP, says of itself.
pub fn exporter(of: SocketAddr) -> Option<Peer> {
    start("prometheus-redis-exporter", |port| {
        let (of, own) = (format!("redis://{of}"), format!("127.0.0.1:{port}"));
        ["-redis.addr", &of, "-web.listen-address", &own].map(str::to_owned).to_vec()
    })
}

pub fn ours(settings: Settings) -> Server {
    ours_of(128 << 20, settings)
}

/// Ours, with so much memory.
pub fn ours_of(memory: u64, mut settings: Settings) -> Server {
    let options = Options { memory, max_value: settings.value_bytes_max, ..Options::default() };
    let cache = Cache::new(options).expect("a cache");
    settings.memory_bytes = memory;
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let doors = ListenConfig { memcached: any, resp: any, metrics: any, ..ListenConfig::default() };
    Server::start(cache, settings, &doors).expect("it serves")
}

/// A connection that never waits for ever.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it accepts");
    stream.set_nodelay(true).expect("an option");
    stream.set_read_timeout(Some(WITHIN)).expect("an option");
    stream.set_write_timeout(Some(WITHIN)).expect("an option");
    stream
}

/// A connection to ours for memcached's protocols.
pub fn memcached_of(server: &Server) -> TcpStream {
    connect(server.addrs().0.expect("it listens"))
}

/// A connection to ours for RESP.
pub fn resp_of(server: &Server) -> TcpStream {
    connect(server.addrs().1.expect("it listens"))
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WITHIN, "{what}: not within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// memcached's command that stores `value`.
pub fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A command of RESP.
pub fn words(words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    command
}

/// Sends and reads until `end` or the end; what came, as text.
pub fn ask_text(stream: &mut TcpStream, bytes: &[u8], end: &[u8]) -> String {
    String::from_utf8(ask(stream, bytes, end)).expect("text")
}

/// Sends and reads until `end` or the end; what came.
pub fn ask(stream: &mut TcpStream, bytes: &[u8], end: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).expect("it reads");
    read_until(stream, |all| all.ends_with(end))
}

/// Reads until `done` says so or the connection ends.
pub fn read_until(stream: &mut TcpStream, done: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    match try_read_until(stream, done) {
        (all, None) => all,
        (all, Some(error)) => panic!("{error} after {:?}", String::from_utf8_lossy(&all)),
    }
}

/// As [`read_until`]; what came, and what kept more from coming.
pub fn try_read_until(
    stream: &mut TcpStream,
    done: impl Fn(&[u8]) -> bool,
) -> (Vec<u8>, Option<std::io::Error>) {
    let mut all = Vec::new();
    let mut buffer = [0; 64 << 10];
    while !done(&all) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => return (all, Some(error)),
        }
    }
    (all, None)
}

/// Pseudo-random numbers: a test prints its seed and can be repeated.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}
