//! Both ends of a fabric in this process: targets, served by the fabric's own threads, and
//! endpoints that are connected to each of them.

use crate::run::BenchError;
use rackpool_core::addr::{FrameIndex, Generation, PageGeometry};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, Mem, PeerId, RemoteAddr};
use rackpool_core::{RackId, constants::CELLS};
use rackpool_fabric::shm::{HandOff, HandOffError, ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_fabric::{Endpoint, FabricOptions, LocalBuffers, Target, TargetOptions};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::Window;
use std::time::{Duration, Instant};

/// Memory of a target, and of an endpoint's buffer: a page.
pub const PAGE_BYTES: u64 = 64 << 10;
/// The key of that page.
const KEY: Generation = Generation(77);
/// How long a connection may take.
const WITHIN: Duration = Duration::from_secs(20);

/// A place in a target's page.
pub fn at(offset: u64) -> RemoteAddr {
    RemoteAddr { offset, key: KEY }
}

/// Memory that is written and read, and the thread that serves it, unless it is mapped.
pub struct Node {
    pub pages: Window,
    pub target: Option<Target>,
    /// The peers that are connected to the target, in no order.
    pub clients: Vec<PeerId>,
    memory: (Window, Window, RegionLayout),
}

impl Node {
    fn new(options: Option<&FabricOptions>) -> Result<Node, BenchError> {
        let pages = PageGeometry::from_page_bytes(PAGE_BYTES).expect("a power of two");
        let layout = RegionLayout { pages, frame_count: 1 };
        let io = |source| BenchError::Io { what: "memory".into(), source };
        let pages = Window::private(layout.pages_bytes()).map_err(io)?;
        let table = Window::heap(layout.table_bytes());
        table.store(table_word(FrameIndex(0)), KEY.0);
        let count = options.map_or(CELLS, |options| Target::cells(options.over, layout));
        let cells = Window::heap(u64::from(count) * 8);
        let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let start = |fabric: &FabricOptions| {
            let (pages, table, cells) = (pages.clone(), table.clone(), cells.clone());
            Target::start(fabric, TargetOptions::new(listen, layout, pages, table, cells))
        };
        let target = options.map(start).transpose()?;
        Ok(Node { pages, target, clients: Vec::new(), memory: (table, cells, layout) })
    }
}

/// An endpoint, a buffer of it, and its connections, one to each node.
pub struct ConnectedEndpoint<E> {
    pub end: E,
    pub buf: BufId,
    pub peers: Vec<PeerId>,
}

/// So many endpoints and nodes, each connected to each. Endpoints end before what they use.
pub struct Mesh<E> {
    pub endpoints: Vec<ConnectedEndpoint<E>>,
    pub nodes: Vec<Node>,
}

/// No messages: those of a mapped rack go by rings, which `bench ring` measures.
pub struct Silent;

impl HandOff for Silent {
    fn room(&mut self) -> Result<(), HandOffError> {
        Err(HandOffError::Down)
    }

    fn message(&mut self, _: &[u8]) -> Result<(), HandOffError> {
        Err(HandOffError::Down)
    }

    fn imm(&mut self, _: u32) -> Result<(), HandOffError> {
        Err(HandOffError::Down)
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        None
    }
}

pub fn mapped(ends: usize, nodes: usize) -> Result<Mesh<ShmEndpoint<Silent>>, BenchError> {
    mesh(ends, nodes, None, |nodes| {
        let mut end = ShmEndpoint::new(ShmOptions::default());
        let mut peers = Vec::new();
        for node in nodes {
            let (table, cells, layout) = &node.memory;
            let (pages, table) = (node.pages.clone(), table.clone());
            let memory = ShmPeer::new(pages, table, cells.slice(0, 8), *layout);
            let memory = memory.map_err(rackpool_fabric::FabricError::from)?;
            peers.push(end.connect(memory, Silent)?);
        }
        Ok((end, peers))
    })
}

/// Endpoints with connections to targets.
pub fn connected(
    ends: usize,
    nodes: usize,
    options: &FabricOptions,
) -> Result<Mesh<Endpoint>, BenchError> {
    mesh(ends, nodes, Some(options), |nodes| {
        let mut end = Endpoint::new(options.clone())?;
        let mut peers = Vec::new();
        for (rack, node) in (0..).zip(nodes) {
            let addr = node.target.as_ref().expect("it was started").local_addr();
            peers.push(end.connect(RackId(rack), addr, monotonic_ns())?);
        }
        Ok((end, peers))
    })
}

fn mesh<E: LocalBuffers>(
    ends: usize,
    nodes: usize,
    options: Option<&FabricOptions>,
    mut make: impl FnMut(&[Node]) -> Result<(E, Vec<PeerId>), BenchError>,
) -> Result<Mesh<E>, BenchError> {
    let nodes = (0..nodes).map(|_| Node::new(options));
    let mut nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let mut endpoints = Vec::with_capacity(ends);
    for _ in 0..ends {
        let (mut end, peers) = make(&nodes)?;
        let (mut up, mut events, start) = (0, Vec::new(), Instant::now());
        while up < peers.len() {
            Fabric::poll(&mut end, monotonic_ns(), &mut events);
            up += events.drain(..).filter(|e| matches!(e, FabricEvent::Connected { .. })).count();
            if start.elapsed() > WITHIN {
                let (end, waited_s) = ("a fabric's target".into(), WITHIN.as_secs());
                return Err(BenchError::Silent { end, waited_s });
            }
            std::thread::yield_now();
        }
        let buf = end.register(vec![0x5a; PAGE_BYTES as usize])?;
        endpoints.push(ConnectedEndpoint { end, buf, peers });
    }
    let (mut events, start) = (Vec::new(), Instant::now());
    for node in &mut nodes {
        let Some(target) = &node.target else { continue };
        while node.clients.len() < ends && start.elapsed() < WITHIN {
            target.poll(&mut events);
            node.clients.extend(events.drain(..).filter_map(|event| match event {
                FabricEvent::Connected { peer } => Some(peer),
                _ => None,
            }));
            std::thread::yield_now();
        }
    }
    Ok(Mesh { endpoints, nodes })
}
