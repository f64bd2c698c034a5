//! What tests of HERD's fast path share: servers, keys with values that show whether they are
//! whole, random operations, an endpoint that counts and loses, and children, which are the test's
//! program again.
#![allow(dead_code)]

use crate::peers::{Rng, WITHIN};
use rackpool_cache::herd::fabric::Wire;
use rackpool_cache::herd::{
    Answer, Client, Error, FabricServerOptions, FabricTransport, HerdCounter, HerdServer,
    ServerOptions, ShmTransport, Ticket, Transport,
};
use rackpool_cache::{Cache, Options};
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, RemoteAddr, Verb,
    WorkRequest,
};
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_fabric::{EndpointOptions, FabricError};
use rackpool_mem::process::monotonic_ns;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Keys of random operations.
pub const KEYS: usize = 500;

pub type ShmClient = Client<ShmTransport>;
pub type TcpClient = Client<FabricTransport<TcpEndpoint>>;

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: a number that no other thread gets.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("rackpool/test/{}/{what}{number}", std::process::id())
}

pub fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn cache() -> Cache {
    cache_of(Options { memory: 64 << 20, partitions: 4, seed: 5, ..Options::default() })
}

pub fn cache_of(options: Options) -> Cache {
    Cache::new(options).unwrap()
}

/// A server by shared memory.
pub fn shm_server(cache: Cache, name: &str, clients: u32, threads: u32) -> HerdServer {
    let options = ServerOptions { clients, ..ServerOptions::new(name) };
    HerdServer::start(cache, &options, threads).unwrap()
}

/// A server over tcp.
pub fn tcp_server(cache: Cache, clients: u32, threads: u32) -> HerdServer {
    let options = FabricServerOptions { clients, ..FabricServerOptions::new(any_port(), threads) };
    HerdServer::start_fabric(cache, &options, threads).unwrap()
}

/// What `connect` gives, as soon as there is room for a client.
pub fn when_free<C>(connect: impl Fn() -> Result<C, Error>) -> C {
    let start = Instant::now();
    loop {
        match connect() {
            Err(Error::Full { .. }) => std::thread::sleep(Duration::from_micros(100)),
            other => return other.unwrap(),
        }
        assert!(start.elapsed() < WITHIN, "no place became free");
    }
}

/// Waits until it is so.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WITHIN, "{what}");
        std::thread::yield_now();
    }
}

pub fn key_of(key: usize) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Version and key, a checksum over them, and fewer than `most` bytes that follow from it.
pub fn value_up_to(most: u64, key: usize, version: u64) -> Vec<u8> {
    let mixed = xxh3_64(&[key as u64, version].map(u64::to_le_bytes).concat());
    let mut value = [version, mixed].map(u64::to_le_bytes).concat();
    value.extend((0..mixed % most).map(|index| (mixed >> (index % 56)) as u8 ^ index as u8));
    value
}

/// A value that fits a slot.
pub fn value_of(key: usize, version: u64) -> Vec<u8> {
    value_up_to(980, key, version)
}

pub fn check_up_to(most: u64, key: usize, value: &[u8]) {
    let version = u64::from_le_bytes(value[..8].try_into().unwrap());
    let is_whole = value == value_up_to(most, key, version);
    assert!(is_whole, "key {key}: a value that was never stored");
}

pub fn check(key: usize, value: &[u8]) {
    check_up_to(980, key, value);
}

/// How many of the first `keys` are there; each of their values is whole.
pub fn check_all<L: Transport>(client: &mut Client<L>, most: u64, keys: usize) -> usize {
    let found = (0..keys).filter(|key| {
        let mut value = Vec::new();
        let is_there = client.get(&key_of(*key), &mut value).unwrap().is_some();
        if is_there {
            check_up_to(most, *key, &value);
        }
        is_there
    });
    found.count()
}

/// Random operations, every value checked, until an error: how many. Of so many submissions one is
/// the last of its batch; the others fill all windows.
pub fn work_in_batches<L: Transport>(
    client: &mut Client<L>,
    seed: u64,
    last_one_in: usize,
    mut go_on: impl FnMut() -> bool,
) -> Result<u64, Error> {
    let mut rng = Rng(seed);
    let mut asked: BTreeMap<Ticket, usize> = BTreeMap::new();
    let (mut done, mut is_over) = (0, false);
    loop {
        is_over |= !go_on();
        for _ in 0..if is_over { 0 } else { usize::MAX } {
            let key = rng.below(KEYS);
            let name = key_of(key);
            let submitted = match rng.below(8) {
                0..3 => client.submit_put(&name, &value_of(key, rng.next()), 0, 0),
                3 => client.submit_delete(&name),
                _ => client.submit_get(&name),
            };
            match submitted {
                Ok(ticket) => assert!(asked.insert(ticket, key).is_none()),
                Err(Error::Busy { .. }) => break,
                Err(error) => return Err(error),
            }
            if last_one_in > 0 && rng.below(last_one_in) == 0 {
                break;
            }
        }
        client.wait()?;
        client.poll(|ticket, answer| {
            let key = asked.remove(&ticket).expect("each is answered once");
            match answer {
                Answer::Found { value, .. } => check(key, value),
                Answer::Refused(error) => panic!("{error}"),
                _ => {}
            }
            done += 1;
        })?;
        if is_over && client.under_way() == 0 {
            assert!(asked.is_empty());
            return Ok(done);
        }
    }
}

/// Random operations in full windows.
pub fn work<L: Transport>(
    client: &mut Client<L>,
    seed: u64,
    go_on: impl FnMut() -> bool,
) -> Result<u64, Error> {
    work_in_batches(client, seed, 0, go_on)
}

pub fn for_rounds(rounds: u64) -> impl FnMut() -> bool {
    let mut left = rounds;
    move || {
        left = left.saturating_sub(1);
        left > 0
    }
}

/// What the server has done, once it has counted so much: it counts behind its replies.
pub fn check_done(server: &HerdServer, operations: u64) {
    let kinds = [HerdCounter::Gets, HerdCounter::Puts, HerdCounter::Deletes];
    let done = || kinds.map(|what| server.counters().get(what)).iter().sum::<u64>();
    await_that("not all is done", || done() >= operations);
    assert_eq!(done(), operations, "each is done once");
}

pub fn check_none_malformed(server: &HerdServer) {
    assert_eq!(server.counters().get(HerdCounter::Malformed), 0);
}

/// A client's end of the tcp fabric.
pub fn endpoint() -> TcpEndpoint {
    let options = EndpointOptions { ..EndpointOptions::default() };
    TcpEndpoint::new(options).unwrap()
}

/// An endpoint that counts, and loses WRITEs on their way.
pub struct Lossy {
    inner: TcpEndpoint,
    /// Of so many WRITEs one is lost; 0: none.
    pub lose_one_in: usize,
    /// WRITEs to these places are lost.
    pub loses: fn(RemoteAddr) -> bool,
    /// Whether WRITEs that come again are lost; they are not counted then.
    pub loses_repeats: bool,
    /// Place and number of each request.
    seen: BTreeSet<(u64, u64)>,
    rng: Rng,
    pub posts: u64,
    pub writes: u64,
    pub rings: u64,
    pub sends: u64,
    pub lost: u64,
    pub received: u64,
    pub notices: u64,
}

impl Lossy {
    pub fn connect(addr: SocketAddr, lose_one_in: usize) -> (Lossy, PeerId) {
        let mut inner = endpoint();
        let peer = inner.connect(addr, monotonic_ns()).unwrap();
        let (posts, writes, rings, sends, lost) = (0, 0, 0, 0, 0);
        let (received, notices, rng) = (0, 0, Rng(77));
        let lossy = Lossy {
            inner,
            lose_one_in,
            loses: |_| false,
            loses_repeats: false,
            seen: BTreeSet::new(),
            rng,
            posts,
            writes,
            rings,
            sends,
            lost,
            received,
            notices,
        };
        (lossy, peer)
    }

    pub fn client(addr: SocketAddr, lose_one_in: usize) -> Client<FabricTransport<Lossy>> {
        let (lossy, peer) = Lossy::connect(addr, lose_one_in);
        Client::connect_over(lossy, peer, 0).unwrap()
    }

    /// Whether a WRITE is lost on its way.
    fn is_lost(&mut self, at: RemoteAddr) -> bool {
        (self.loses)(at) || self.lose_one_in > 0 && self.rng.below(self.lose_one_in) == 0
    }

    fn note(&mut self, events: &[FabricEvent]) {
        for event in events {
            if let FabricEvent::Received { message, .. } = event {
                self.received += 1;
                // Without a kind it only says that the client is not watched.
                self.notices += u64::from(message.len() == 8 && message[0] == 0);
            }
        }
    }
}

impl Fabric for Lossy {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        self.posts += 1;
        let mut kept = Vec::new();
        for work in batch {
            let place = match work.verb {
                Verb::Write(at) | Verb::WriteImm(at, _) => Some(at),
                _ => None,
            };
            let is_new = place.is_none_or(|at| self.seen.insert((at.offset, work.id)));
            if self.loses_repeats && !is_new {
                continue;
            }
            match work.verb {
                Verb::Write(_) => self.writes += 1,
                Verb::WriteImm(..) => self.rings += 1,
                _ => self.sends += 1,
            }
            if place.is_some_and(|at| self.is_lost(at)) {
                self.lost += 1;
            } else {
                kept.push(*work);
            }
        }
        self.inner.post(peer, &kept)
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let count = self.inner.poll(now, events);
        self.note(&events[before..]);
        count
    }
}

impl Wire for Lossy {
    fn register(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError> {
        Wire::register(&mut self.inner, bytes)
    }

    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8] {
        Wire::buffer_mut(&mut self.inner, buf)
    }

    fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let count = Wire::wait(&mut self.inner, deadline, events);
        self.note(&events[before..]);
        count
    }
}

/// Tells a child what it is: `client PLACE`, `long PLACE` or `server PLACE`. A place is an address,
/// or the name of a server by shared memory; `tcp` is any address.
const CHILD: &str = "RACKPOOL_HERD_CHILD";

/// A child of this program, ended with this.
pub struct Process {
    child: Child,
    /// Where it serves, if it is a server.
    pub said: String,
}

impl Process {
    pub fn start(role: &str, place: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "herd::child", "--nocapture"])
            .env(CHILD, format!("{role} {place}"))
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let stdout = child.stdout.take().unwrap();
        let mut process = Process { child, said: String::new() };
        let lines = BufReader::new(stdout).lines().map(|line| line.unwrap());
        let said = lines.into_iter().find(|line| line.starts_with("up "));
        process.said = said.expect("the child ended")[3..].to_owned();
        process
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    /// Stops it; when this returns, none of its threads runs.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let stopped = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    pub fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (role, place) = told.split_once(' ').unwrap();
    let addr = place.parse::<SocketAddr>();
    let server = match (role, &addr) {
        ("client", Ok(addr)) => {
            return work_as_child(&mut when_free(|| Client::connect_to(*addr, 0)), 0, 20);
        }
        ("client", Err(_)) => {
            return work_as_child(&mut when_free(|| Client::connect(place)), 8, 100);
        }
        ("long", Ok(addr)) => {
            return work_long(&mut Client::connect_to(*addr, 0).unwrap()).unwrap();
        }
        ("long", Err(_)) => return work_long(&mut Client::connect(place).unwrap()).unwrap(),
        _ if place == "tcp" => tcp_server(cache(), 16, 2),
        _ => shm_server(cache(), place, 16, 2),
    };
    println!("\nup {}", server.addr().map_or(String::new(), |addr| addr.to_string()));
    loop {
        std::thread::park();
    }
}

/// Random operations without end; says so after some rounds.
fn work_as_child<L: Transport>(client: &mut Client<L>, last_one_in: usize, up_after: u64) {
    let mut rounds = 0;
    let go_on = || {
        rounds += 1;
        if rounds == up_after {
            println!("\nup client");
        }
        true
    };
    work_in_batches(client, 1, last_one_in, go_on).unwrap();
}

/// Bytes of a long value at most, beside version and checksum.
pub const LONG: u64 = 64 << 10;

/// Puts and gets of long values without end.
pub fn work_long<L: Transport>(client: &mut Client<L>) -> Result<(), Error> {
    let mut rng = Rng(u64::from(std::process::id()) | 1);
    for round in 0u64.. {
        let (key, mut value) = (rng.below(20), Vec::new());
        client.put(&key_of(key), &value_up_to(LONG, key, rng.next()), 0, 0)?;
        let other = rng.below(20);
        if client.get(&key_of(other), &mut value)?.is_some() {
            check_up_to(LONG, other, &value);
        }
        if round == 20 {
            println!("\nup client");
        }
    }
    Ok(())
}

/// Clients are killed one after the other, each the only one that the server may have: its place is
/// free, and what it stored is whole.
pub fn kill_clients<L: Transport>(
    server: &HerdServer,
    place: &str,
    connect: impl Fn() -> Result<Client<L>, Error>,
) {
    for round in 1..=5 {
        let mut child = Process::start("client", place);
        assert!(matches!(connect(), Err(Error::Full { clients: 1 })));
        std::thread::sleep(Duration::from_millis(20 * round));
        child.kill();
        let found = check_all(&mut when_free(&connect), 980, KEYS);
        println!("round {round}: {found} of {KEYS} keys are there, every value whole");
        assert!(found > 0);
    }
    check_none_malformed(server);
}

/// Each client asks for what its neighbour has stored.
pub fn ask_neighbours<L: Transport>(clients: &mut [Client<L>]) {
    for (key, client) in clients.iter_mut().enumerate() {
        client.submit_put(&key_of(key), &value_of(key, 1), 0, 0).unwrap();
        client.ring();
    }
    for client in clients.iter_mut() {
        client.wait().unwrap();
        let polled = client.poll(|_, answer| assert!(matches!(answer, Answer::Stored)));
        assert_eq!(polled.unwrap(), 1);
    }
    let count = clients.len();
    for (key, client) in (1..).zip(clients.iter_mut()) {
        client.submit_get(&key_of(key % count)).unwrap();
        client.ring();
    }
    for (key, client) in (1..).zip(clients) {
        client.wait().unwrap();
        let mut found = 0;
        let answers = client.poll(|_, answer| {
            if let Answer::Found { value, .. } = answer {
                check(key % count, value);
                found += 1;
            }
        });
        assert_eq!((answers.unwrap(), found), (1, 1), "client {key}");
    }
}
