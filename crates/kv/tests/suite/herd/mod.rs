//! What tests of HERD's fast path over a fabric share: an endpoint that counts and loses, and
//! children, which are the test's program again.
#![allow(dead_code)]

use crate::peers::Rng;
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, RemoteAddr, Verb,
    WorkRequest,
};
use rackpool_hw::fabric::tcp::{TcpEndpoint, TcpEndpointOptions};
use rackpool_hw::fabric::{FabricError, monotonic_ns};
use rackpool_kv::herd::fabric::Wire;
use rackpool_kv::herd::{Client, FabricTransport};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Tells a child what it is.
pub const CHILD: &str = "RACKPOOL_HERD_FABRIC_CHILD";

/// A client's end of the tcp fabric.
pub fn endpoint() -> TcpEndpoint {
    let options = TcpEndpointOptions { ..TcpEndpointOptions::default() };
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

/// A child of this program, ended with this.
pub struct Process {
    child: Child,
    pub said: String,
}

impl Process {
    pub fn start(test: &str, role: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, role)
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
