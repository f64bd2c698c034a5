//! The verbs fabric between two hosts that share a devdax device: the target's pages, table and
//! cells are on it, so that the checks see them from both. `RACKPOOL_VERBS_SHARED` names it.
//!
//! On the target's host runs [`serve_a_target_for_another_host`], which does what it is told on
//! `RACKPOOL_VERBS_LISTEN`; here [`FarRig`] tells it, at `RACKPOOL_VERBS_TARGET`. A line each way:
//!
//! ```text
//! start -> PORT      kill -> ok      send HEX -> ok      events -> EVENT*      crash      quit
//! EVENT: connected PEER | message HEX | imm N | closed
//! ```

use super::{REVOCATIONS, connect, endpoint, serve};
use crate::fabric_rig::{
    Memory, PATIENCE, Rig, buffers_of_the_end, events_until, is_closed, wait_until, work,
};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, Verb};
use rackpool_fabric::verbs::VerbsEndpoint;
use rackpool_fabric::{LocalBuffers, Target};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::{Access, MapOptions, Window};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Bytes of the shared device that are used.
const SHARED_BYTES: u64 = 64 << 20;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn shared() -> Window {
    let path = variable("RACKPOOL_VERBS_SHARED");
    let file = File::options().read(true).write(true).open(&path).expect("the shared device");
    let options = MapOptions::default();
    Window::map(file.as_fd(), SHARED_BYTES, Access::ReadWrite, options).expect("a mapping of it")
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn line_of(event: &FabricEvent) -> String {
    match event {
        FabricEvent::Connected { peer } => format!("connected {}", peer.0),
        FabricEvent::Received { message, .. } => format!("message {}", to_hex(message)),
        FabricEvent::ReceivedImm { imm, .. } => format!("imm {imm}"),
        other => format!("{other:?}"),
    }
}

fn event_of(line: &str) -> FabricEvent {
    let peer = PeerId(0);
    match line.split_once(' ') {
        Some(("connected", id)) => FabricEvent::Connected { peer: PeerId(id.parse().unwrap()) },
        Some(("message", hex)) => FabricEvent::Received { peer, message: from_hex(hex) },
        Some(("imm", imm)) => FabricEvent::ReceivedImm { peer, imm: imm.parse().unwrap() },
        _ => panic!("no event: {line}"),
    }
}

/// What another host tells this one to do, until it says `quit`.
#[test]
#[ignore = "the other half of the tests between two hosts"]
fn serve_a_target_for_another_host() {
    let listener = TcpListener::bind(variable("RACKPOOL_VERBS_LISTEN")).unwrap();
    let window = shared();
    let mut target: Option<Target> = None;
    let mut peer = PeerId(0);
    for socket in listener.incoming() {
        let mut socket = socket.unwrap();
        for line in BufReader::new(socket.try_clone().unwrap()).lines() {
            let Ok(line) = line else { break };
            let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
            let answer = match command {
                "start" => {
                    drop(target.take());
                    let memory = match argument {
                        "again" => Memory::kept_on(&window),
                        _ => Memory::on(&window),
                    };
                    let served = serve(&memory, "0.0.0.0:0".parse().unwrap());
                    target.insert(served).local_addr().port().to_string()
                }
                "kill" => {
                    drop(target.take());
                    "ok".to_owned()
                }
                "send" => {
                    target.as_ref().unwrap().send(peer, &from_hex(argument)).unwrap();
                    "ok".to_owned()
                }
                "events" => {
                    let mut events = Vec::new();
                    target.as_ref().map(|target| target.poll(&mut events));
                    if let Some(FabricEvent::Connected { peer: new }) = events.first() {
                        peer = *new;
                    }
                    events.iter().map(line_of).collect::<Vec<_>>().join(";")
                }
                "crash" => {
                    let crashed = std::process::Command::new("rig-crash").status();
                    panic!("it is still here: {crashed:?}");
                }
                _ => return,
            };
            writeln!(socket, "{answer}").unwrap();
        }
    }
}

pub struct FarRig {
    memory: Memory,
    orders: BufReader<TcpStream>,
    host: SocketAddr,
    end: VerbsEndpoint,
    peer: PeerId,
}

impl FarRig {
    /// Sends an order; the answer, if there will be one.
    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders.get_mut(), "{order}").unwrap();
        let mut answer = String::new();
        self.orders.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn start(&mut self, order: &str) {
        let port: u16 = self.order(order).parse().expect("a port");
        self.peer = connect(&mut self.end, SocketAddr::new(self.host.ip(), port));
        wait_until(|| self.order("events").starts_with("connected"));
    }
}

impl Rig for FarRig {
    type End = VerbsEndpoint;
    const REVOCATIONS: u64 = REVOCATIONS;
    buffers_of_the_end!();

    fn new() -> Self {
        let host: SocketAddr = variable("RACKPOOL_VERBS_TARGET").parse().unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let orders = BufReader::new(stream);
        let memory = Memory::kept_on(&shared());
        let mut rig = FarRig { memory, orders, host, end: endpoint(), peer: PeerId(0) };
        rig.start("start anew");
        rig
    }
    fn end(&mut self) -> &mut VerbsEndpoint {
        &mut self.end
    }
    fn peer(&self) -> PeerId {
        self.peer
    }
    fn memory(&self) -> Memory {
        self.memory.clone()
    }
    fn application(&mut self) -> Vec<FabricEvent> {
        let answer = self.order("events");
        answer.split(';').filter(|line| !line.is_empty()).map(event_of).collect()
    }
    fn application_sends(&mut self, message: &[u8]) {
        self.order(&format!("send {}", to_hex(message)));
    }
    fn kill(&mut self) {
        self.order("kill");
    }
    fn restart(&mut self) {
        self.start("start again");
    }
    fn poll(&mut self, events: &mut Vec<FabricEvent>) -> usize {
        self.end.wait(monotonic_ns() + 1_000_000, events)
    }
}

/// Run last, since the other host is gone after it.
#[test]
#[ignore = "needs two hosts with RDMA devices: cargo xtask vm verbs-two"]
fn a_host_that_crashes_is_found_within_the_lease() {
    let mut rig = FarRig::new();
    let word = crate::fabric_rig::at(64);
    let add = |id| work(id, Verb::FetchAdd { at: word, n: 1 }, &[]);
    let peer = rig.peer;
    rig.end.post(peer, &[add(1)]).unwrap();
    rig.poll_until(|events| !events.is_empty());
    writeln!(rig.orders.get_mut(), "crash").unwrap();
    let start = Instant::now();
    let mut id = 2;
    let look = |events: &mut Vec<_>| {
        id += u64::from(rig.end.post(peer, &[add(id)]).is_ok());
        rig.poll(events);
    };
    let events = events_until(look, is_closed);
    let completed = events.len() as u64 - 1;
    assert_eq!(completed, id - 2, "every work request has ended before the connection");
    println!("result: found after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(15));
}
