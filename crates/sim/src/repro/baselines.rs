//! How other systems fetch data from another rack, as small models on the network and the device
//! costs that our engines run on: calls by datagrams (eRPC), calls by one-sided writes into rings
//! (FaRM), and a call by datagrams for the place followed by a one-sided read. Only the mechanism
//! differs from ours: packets, round trips, copies. Two threads serve the clients, as a daemon of
//! ours has two: its loop and its fabric thread.
//!
//! What is charged: `cpu.*` for submitting, posting and each message taken, `poll.*` for noticing,
//! a line of local memory for the page table, the data's lines in the rack's memory at the home,
//! and a copy out of what a message carried at the caller. What these systems' flow and congestion
//! control, retransmission and posting of receives cost is left out, in their favour.
//! Against eRPC: each packet of an answer has a doorbell of its own here, while its code gathers
//! what one round of its loop has to send.
//!
//! Sources: eRPC (Kalia et al., NSDI 2019) and its published code; FaRM (Dragojevic et al.,
//! NSDI 2014) section 3; Rcmp 6.5, figure 22.

use super::calls::{CallState, Calls, PAGES, PLACES_PER_PAGE};
use super::load::LoadStats;
use crate::device::Profile;
use crate::mem::{Coherence, Cpu, MemCosts, Memory, SimMem, Tier};
use crate::net::{Connection, EndpointId, Executed, GRH_BYTES};
use crate::time::Ps;
use crate::world::performance::{add_host, kernel, mem_costs, notice};
use crate::world::{Ctx, HostId, Input, Kernel, Loop, ProcessId};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{BufId, FabricEvent, Mem, PeerId, RemoteAddr, Sge, Verb, WorkRequest};
use std::cell::RefCell;
use std::rc::Rc;

/// Data of one datagram, bytes: an MTU of 1 KiB less headers. Source: Rcmp 6.5, "below 968 B".
pub const DATAGRAM_BYTES_MAX: u64 = 968;
/// Threads of the home, each with an endpoint; clients are divided among them.
const SERVERS: u32 = 2;
/// What a message begins with, bytes. Source: eRPC's packet header; FaRM's length and trailer are
/// taken to be as long.
const HEADER_BYTES: u64 = 16;
/// A request and the answer that says where data is: header, address, length.
const SHORT_BYTES: u64 = HEADER_BYTES + 16;
/// Packets of one call under way. Source: eRPC's published code, `kSessionCredits`.
const CREDITS: u64 = 32;
/// Short messages that one doorbell carries at most, each in a slot of the buffer.
const SLOT_BYTES: u64 = 64;
/// Where in an endpoint's buffer data is.
const DATA_AT: u64 = CREDITS * SLOT_BYTES;
const PAGE_BYTES: u64 = 2 << 20;
/// More receives than there are datagrams.
const RECEIVES: u32 = u32::MAX / 2;
/// In ring words: the peer of the connection, above the place.
const PEER_SHIFT: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchSystem {
    /// eRPC: request and answer in datagrams. The answer's first packet comes by itself; each
    /// further one is asked for by a packet of its own.
    Datagrams,
    /// eRPC for the place, then a one-sided read.
    DatagramsAndRead,
    /// FaRM: request and answer are written one-sided into rings that the other end polls.
    Rings,
}

/// Runs calls by another system.
pub fn fetch(profile: &Profile, system: FetchSystem, calls: Calls) -> Result<LoadStats, String> {
    let kernel = kernel(profile, 7);
    let hosts = [add_host(&kernel), add_host(&kernel)];
    let memory = PAGES * PAGE_BYTES;
    let pages = Memory::new(kernel.new_memory(), memory, Tier::Cxl, Coherence::Hardware);
    let (servers, owners) = (RefCell::default(), RefCell::default());
    let (profile, clients) = (profile.clone(), CallState::new(calls));
    let shared = Rc::new(FetchState { profile, system, servers, owners, clients });
    for host in hosts {
        let shared = shared.clone();
        let card = Cpu::performance(MemCosts::default());
        let id = kernel.spawn("card".into(), host, card, |ctx| execute(ctx, shared));
        kernel.route_node(kernel.node_of(host), id);
    }
    let poll = shared.profile.poll;
    for _ in 0..SERVERS {
        let (one, pages) = (shared.clone(), pages.clone());
        spawn(&kernel, hosts[1], &shared, poll.daemon, |ctx| serve(ctx, one, pages));
    }
    let mut looped = Loop::new(kernel.clone(), None);
    looped.run(Ps(u64::MAX), || shared.servers.borrow().len() == SERVERS as usize);
    let clients = (0..calls.clients).map(|number| {
        let one = shared.clone();
        spawn(&kernel, hosts[0], &shared, poll.client, move |ctx| client(ctx, one, number))
    });
    let clients: Vec<ProcessId> = clients.collect();
    looped.run(Ps(u64::MAX), || shared.clients.are_ready());
    CallState::begin(&kernel, &clients);
    looped.run(Ps(u64::MAX), || shared.clients.have_ended());
    match kernel.violation() {
        Some(violation) => Err(violation.text),
        None if !shared.clients.have_ended() => Err(format!("{system:?}: a call is lost")),
        None => Ok(shared.clients.seen()),
    }
}

fn spawn<F: Future<Output = ()> + 'static>(
    kernel: &Rc<Kernel>,
    host: HostId,
    shared: &FetchState,
    round: Ps,
    main: impl FnOnce(Ctx) -> F,
) -> ProcessId {
    let cpu = Cpu::performance(mem_costs(&shared.profile));
    let id = kernel.spawn("process".into(), host, cpu, main);
    kernel.set_notice(id, notice(round));
    id
}

struct FetchState {
    profile: Profile,
    system: FetchSystem,
    servers: RefCell<Vec<EndpointId>>,
    owners: RefCell<Vec<(EndpointId, ProcessId)>>,
    clients: CallState,
}

/// The cards: they execute what is one-sided, without a processor. The process that polls a ring
/// sees what is written into it.
async fn execute(ctx: Ctx, shared: Rc<FetchState>) {
    let data = vec![0; shared.clients.calls.bytes as usize];
    while let Some(input) = ctx.recv(None).await {
        let Input::Execute(token) = input else { continue };
        let (written, by) = ctx.kernel.with_net(|net, _| {
            let operation = net.operation(token);
            let written =
                matches!(operation.verb(), Verb::Write(_)).then(|| word_of(operation.payload()));
            (written, net.arrived_by(token))
        });
        let Some(word) = written else {
            ctx.executed(token, Executed::Data(&data));
            continue;
        };
        ctx.executed(token, Executed::Done);
        let (endpoint, peer) = by.expect("both ends of a ring are processes");
        let owners = shared.owners.borrow();
        let (_, owner) = owners.iter().find(|(of, _)| *of == endpoint).expect("it was opened");
        ctx.kernel.post(*owner, ctx.now(), Input::Tell(u64::from(peer.0) << PEER_SHIFT | word));
    }
}

/// The first word of a message: where its data is, or which packet of it is meant.
fn word_of(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[..8].try_into().expect("messages are longer"))
}

/// One end of the connections of a process.
struct FetchEndpoint {
    ctx: Ctx,
    shared: Rc<FetchState>,
    endpoint: EndpointId,
    /// Messages are sent from here; what they say beyond their first word is not read.
    buf: BufId,
}

impl FetchEndpoint {
    fn open(ctx: Ctx, shared: Rc<FetchState>) -> FetchEndpoint {
        let node = ctx.kernel.node_of(ctx.host);
        let endpoint = ctx.kernel.with_net(|net, _| {
            let endpoint = net.add_endpoint(node);
            net.post_receives(endpoint, RECEIVES);
            endpoint
        });
        ctx.kernel.route_endpoint(endpoint, ctx.id);
        shared.owners.borrow_mut().push((endpoint, ctx.id));
        let bytes = DATA_AT + HEADER_BYTES + shared.clients.calls.bytes.max(SHORT_BYTES);
        let buf = ctx.kernel.register(endpoint, vec![0; bytes as usize]);
        FetchEndpoint { ctx, shared, endpoint, buf }
    }

    fn charge(&self, cost: Ps) {
        self.ctx.cpu.charge(cost);
    }

    /// A piece of the buffer that begins with a word.
    fn piece(&self, offset: u64, bytes: u64, word: u64) -> Sge {
        let piece = Sge { buf: self.buf, offset, bytes };
        self.ctx.kernel.write_buffer(self.endpoint, &piece, 0, &word.to_le_bytes());
        piece
    }

    /// Posts short messages under one doorbell.
    fn post_short(&self, peer: PeerId, verb: Verb, words: impl Iterator<Item = u64>) {
        let slots = (0..).map(|slot| slot * SLOT_BYTES);
        let pieces = slots.zip(words).map(|(at, word)| self.piece(at, SHORT_BYTES, word));
        let pieces: Vec<Sge> = pieces.collect();
        let work = |piece| WorkRequest {
            id: 0,
            verb,
            local: std::slice::from_ref(piece),
            signalled: false,
        };
        let works: Vec<WorkRequest<'_>> = pieces.iter().map(work).collect();
        self.ctx.post_work(self.endpoint, peer, &works).expect("the queue has room");
    }

    /// Posts a message that carries data, or a read of it.
    fn post_data(&self, peer: PeerId, verb: Verb, bytes: u64) {
        let signalled = matches!(verb, Verb::Read(_));
        let local = [Sge { buf: self.buf, offset: DATA_AT, bytes }];
        let work = WorkRequest { id: 1, verb, local: &local, signalled };
        self.ctx.post_work(self.endpoint, peer, &[work]).expect("the queue has room");
    }

    /// Connects to a thread of the home, and waits until that is done.
    async fn connect(&self, kind: Connection, server: u32) -> PeerId {
        let (now, to) = (self.ctx.now(), self.shared.servers.borrow()[server as usize]);
        let from = self.endpoint;
        let peer = self.ctx.kernel.with_net(|net, wires| net.connect(now, from, to, kind, wires));
        loop {
            match self.ctx.recv(None).await {
                Some(Input::Fabric(FabricEvent::Connected { peer: of })) if of == peer => {
                    break peer;
                }
                _ => {}
            }
        }
    }
}

/// A thread of the home.
async fn serve(ctx: Ctx, shared: Rc<FetchState>, pages: Rc<Memory>) {
    let end = FetchEndpoint::open(ctx.clone(), shared.clone());
    shared.servers.borrow_mut().push(end.endpoint);
    let pages = SimMem::new(pages, ctx.cpu.clone());
    let mut data = vec![0; shared.clients.calls.bytes as usize];
    let profile = &shared.profile;
    let mut copy = |at: u64| {
        end.charge(profile.memory.dram_load);
        if shared.system != FetchSystem::DatagramsAndRead {
            pages.copy_out(at, &mut data);
        }
    };
    while let Some(input) = ctx.recv(None).await {
        // A process that sends acts in the order of time.
        ctx.sync(Ps::ZERO).await;
        match input {
            Input::Tell(word) => {
                end.charge(profile.cpu.completion);
                copy(word & ((1 << PEER_SHIFT) - 1));
                let peer = PeerId((word >> PEER_SHIFT) as u32);
                ctx.sync(Ps::ZERO).await;
                end.post_data(peer, Verb::Write(RING), HEADER_BYTES + shared.clients.calls.bytes);
            }
            Input::Fabric(FabricEvent::Received { peer, message }) => {
                end.charge(profile.cpu.completion);
                let word = word_of(&message[GRH_BYTES..]);
                ctx.kernel.with_net(|net, _| net.recycle(message));
                let packet = word >> PEER_SHIFT;
                if packet == 0 {
                    copy(word);
                }
                ctx.sync(Ps::ZERO).await;
                match shared.system {
                    FetchSystem::DatagramsAndRead => {
                        end.post_short(peer, Verb::Send, std::iter::once(word));
                    }
                    _ => {
                        let rest = shared.clients.calls.bytes - packet * DATAGRAM_BYTES_MAX;
                        let bytes = HEADER_BYTES + rest.min(DATAGRAM_BYTES_MAX);
                        end.post_data(peer, Verb::Send, bytes);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Rings and data are somewhere; the cards of the models do not look where.
const RING: RemoteAddr = RemoteAddr { offset: 0, key: Generation(1) };

struct FetchClient {
    end: FetchEndpoint,
    datagrams: Option<PeerId>,
    one_sided: Option<PeerId>,
}

async fn client(ctx: Ctx, shared: Rc<FetchState>, number: u32) {
    let end = FetchEndpoint::open(ctx.clone(), shared.clone());
    let (mut datagrams, mut one_sided) = (None, None);
    if shared.system != FetchSystem::Rings {
        datagrams = Some(end.connect(Connection::Datagram, number % SERVERS).await);
    }
    if shared.system != FetchSystem::Datagrams {
        one_sided = Some(end.connect(Connection::Reliable, number % SERVERS).await);
    }
    let client = FetchClient { end, datagrams, one_sided };
    shared.clients.note_ready();
    client.until(|input| matches!(input, Input::Tell(_))).await;
    let call = async |place| client.call(place * (PAGE_BYTES / PLACES_PER_PAGE)).await;
    let begun = shared.clients.run(&ctx, number, call).await;
    shared.clients.note_ended(&ctx, begun);
}

impl FetchClient {
    /// Waits for an input of a kind.
    async fn until(&self, is_it: impl Fn(&Input) -> bool) -> Input {
        loop {
            let input = self.end.ctx.recv(None).await.expect("there is no deadline");
            if is_it(&input) {
                return input;
            }
        }
    }

    /// Takes a message; what it carries is copied out.
    async fn take(&self, bytes: u64) {
        let input = self.until(|input| {
            matches!(input, Input::Tell(_) | Input::Fabric(FabricEvent::Received { .. }))
        });
        if let Input::Fabric(FabricEvent::Received { message, .. }) = input.await {
            self.end.ctx.kernel.with_net(|net, _| net.recycle(message));
        }
        let profile = &self.end.shared.profile;
        self.end.charge(profile.cpu.completion);
        let lines = bytes.div_ceil(64);
        self.end.charge(profile.memory.dram_bandwidth.time(64).times(lines));
    }

    async fn call(&self, place: u64) {
        let FetchState { profile, system, clients: CallState { calls, .. }, .. } =
            &*self.end.shared;
        self.end.charge(profile.cpu.client_submit);
        self.end.ctx.sync(Ps::ZERO).await;
        let request = std::iter::once(place);
        match (system, self.datagrams, self.one_sided) {
            (FetchSystem::Datagrams, Some(peer), _) => self.call_by_datagrams(peer, place).await,
            (FetchSystem::DatagramsAndRead, Some(peer), Some(one_sided)) => {
                self.end.post_short(peer, Verb::Send, request);
                self.take(SHORT_BYTES).await;
                self.end.ctx.sync(Ps::ZERO).await;
                self.end.post_data(one_sided, Verb::Read(RING), calls.bytes);
                let is_done = |input: &Input| {
                    matches!(input, Input::Fabric(FabricEvent::Completed { id: 1, .. }))
                };
                self.until(is_done).await;
                self.end.charge(profile.cpu.completion);
            }
            (FetchSystem::Rings, _, Some(peer)) => {
                self.end.post_short(peer, Verb::Write(RING), request);
                self.take(HEADER_BYTES + calls.bytes).await;
            }
            _ => unreachable!("each system has its connections"),
        }
    }

    /// The first packet of the answer is the request's; each of the others is asked for.
    async fn call_by_datagrams(&self, peer: PeerId, place: u64) {
        let bytes = self.end.shared.clients.calls.bytes;
        let packets = bytes.div_ceil(DATAGRAM_BYTES_MAX);
        self.end.post_short(peer, Verb::Send, std::iter::once(place));
        let (mut asked, mut come) = (1, 0);
        while come < packets {
            let rest = bytes - come * DATAGRAM_BYTES_MAX;
            self.take(HEADER_BYTES + rest.min(DATAGRAM_BYTES_MAX)).await;
            come += 1;
            let more = (packets - asked).min(CREDITS - (asked - come));
            if more > 0 {
                self.end.ctx.sync(Ps::ZERO).await;
                let words = (asked..asked + more).map(|packet| packet << PEER_SHIFT | place);
                self.end.post_short(peer, Verb::Send, words);
                asked += more;
            }
        }
    }
}
