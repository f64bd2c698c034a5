//! A server process: polls its part of the request region in rounds, or takes messages, and lets
//! requests go through a pipeline that asks for a line of memory one step before it is used, so
//! that posting the answer of one hides the accesses of the others.
//!
//! A new request's first line is asked for; then every older one uses its line and asks for the
//! next; then the answer of the oldest is posted. After 100 polls that found nothing an empty
//! request goes in, so that the others come out: without it clients and servers would wait for
//! each other.
//!
//! What is charged: `cpu.daemon_request` and `cpu.post_request` for each request, a hit for each
//! access and for each slot that is found empty, what an access waits for its line, and
//! `cpu.completion` for each message or completion that is taken and for each receive posted.
//!
//! Source: HERD, hiding memory latency behind prefetching.

use super::rig::{RigEndpoint, address, message_of};
use super::store::Store;
use super::{HerdLoad, rig::AREA_BYTES};
use crate::net::Connection;
use crate::repro::herd::baselines::{Ack, Exchange, KvRequest, Plan, Way};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::world::Input;
use rackpool_core::seam::{FabricEvent, PeerId, Verb};
use std::collections::VecDeque;

/// Polls that find nothing before an empty request is taken. Source: HERD, the same section.
pub const FAILED_POLLS_MAX: u64 = 100;
/// Lines that a core has on their way at once: the line-fill buffers of Sandy Bridge. General
/// knowledge, not in the paper.
const LINES_IN_FLIGHT: usize = 10;
/// Areas of a server's buffer: answers are built in turn, more than can be under way.
pub const AREAS: u64 = 1024;

/// Lines that were asked for.
#[derive(Default)]
struct Prefetcher {
    ready: [Ps; LINES_IN_FLIGHT],
}

impl Prefetcher {
    /// Asks for a line: when it is there.
    fn ask(&mut self, now: Ps, takes: Ps) -> Ps {
        let first = self.ready.iter_mut().min().expect("there are some");
        *first = now.max(*first) + takes;
        *first
    }
}

/// A request in the pipeline: when its line is there.
struct Staged {
    request: Option<KvRequest>,
    line: Ps,
}

pub struct HerdServer {
    end: RigEndpoint,
    number: u32,
    load: HerdLoad,
    exchange: Exchange,
    /// To clients by datagram; others answer by the connection that the request came by.
    datagrams: Vec<PeerId>,
    messages: VecDeque<KvRequest>,
    /// Which client's slot is looked at next.
    at: u64,
    idle_since: Ps,
    pipeline: VecDeque<Staged>,
    lines: Prefetcher,
    answered: u64,
    rng: Rng,
}

impl HerdServer {
    /// Serves for ever, from when it is told to begin.
    pub async fn run(end: RigEndpoint, number: u32, load: HerdLoad) {
        let datagrams = end.begin().await;
        let exchange = load.system.exchange();
        let mut server = HerdServer {
            rng: Rng::new(load.seed, Purpose::Workload, 1 << 32 | u64::from(number)),
            end,
            number,
            load,
            exchange,
            datagrams,
            messages: VecDeque::new(),
            at: 0,
            idle_since: Ps::ZERO,
            pipeline: VecDeque::new(),
            lines: Prefetcher::default(),
            answered: 0,
        };
        loop {
            server.take_inputs().await;
            match server.next_request() {
                Some(request) => server.begin(request).await,
                None => server.idle().await,
            }
            server.end.ctx.sync(Ps::ZERO).await;
        }
    }

    async fn take_inputs(&mut self) {
        while self.end.ctx.has_input() {
            let input = self.end.ctx.recv(None).await;
            self.take(input);
        }
    }

    fn take(&mut self, input: Option<Input>) {
        let costs = self.end.shared.profile.cpu;
        match input {
            Some(Input::Fabric(event @ FabricEvent::Received { peer, .. })) => {
                let kind = self.exchange.request.kind;
                let request = KvRequest::decode(message_of(&event, kind), peer.0);
                if let FabricEvent::Received { message, .. } = event {
                    self.end.ctx.kernel.with_net(|net, _| net.recycle(message));
                }
                // The completion is taken, and another receive posted.
                self.end.charge(costs.completion.times(2));
                let shared = &self.end.shared;
                match request {
                    Some(request) => self.messages.push_back(request),
                    None => shared.torn.set(shared.torn.get() + 1),
                }
            }
            Some(Input::Fabric(FabricEvent::Completed { .. })) => {
                self.end.charge(costs.completion);
            }
            // A slot was written: it is found when it is polled.
            _ => {}
        }
    }

    /// Looks at slots until it finds a request, at most one round.
    fn next_request(&mut self) -> Option<KvRequest> {
        if let Some(request) = self.messages.pop_front() {
            return Some(request);
        }
        let shared = self.end.shared.clone();
        let mut written = shared.written.borrow_mut();
        let mine = &mut written[self.number as usize];
        let count = mine.len() as u64;
        let passed =
            (0..count).find(|more| !mine[((self.at + more) % count) as usize].is_empty())?;
        let found = (self.at + passed) % count;
        self.at = (found + 1) % count;
        // Polling costs time, but is not work.
        self.end.ctx.cpu.charge(self.poll().times(passed));
        mine[found as usize].pop_front()
    }

    fn poll(&self) -> Ps {
        self.end.shared.profile.memory.hit
    }

    /// Goes on polling until something comes, or for so long that the pipeline is moved.
    async fn idle(&mut self) {
        self.end.ctx.sync(Ps::ZERO).await;
        if self.end.ctx.has_input() {
            return;
        }
        self.idle_since = self.end.ctx.now();
        let poll = self.poll();
        let is_waited_for = self.pipeline.iter().any(|staged| staged.request.is_some());
        let deadline = is_waited_for.then(|| self.idle_since + poll.times(FAILED_POLLS_MAX));
        let input = self.end.ctx.recv(deadline).await;
        let is_late = input.is_none();
        self.take(input);
        let passed = (self.end.ctx.now() - self.idle_since).0 / poll.0.max(1);
        self.at = (self.at + passed) % u64::from(self.load.clients.max(1));
        if is_late {
            self.advance(None).await;
        }
    }

    async fn begin(&mut self, request: KvRequest) {
        let costs = self.end.shared.profile.cpu;
        self.end.charge(costs.daemon_request);
        let accesses = self.load.accesses.unwrap_or(self.load.system.accesses());
        if self.load.is_prefetching && accesses > 0 {
            return self.advance(Some(request)).await;
        }
        let memory = self.end.shared.profile.memory;
        self.end.charge(memory.dram_load.times(u64::from(accesses)));
        self.answer(request).await;
    }

    /// A request, or none, goes in; the one that has made its last access comes out.
    async fn advance(&mut self, request: Option<KvRequest>) {
        let stages = self.load.accesses.unwrap_or(self.load.system.accesses()) as usize;
        let memory = self.end.shared.profile.memory;
        let line = self.ask(request.is_some(), memory.dram_load);
        self.pipeline.push_front(Staged { request, line });
        let mut leaving = None;
        for index in (1..self.pipeline.len()).rev() {
            let staged = &self.pipeline[index];
            if staged.request.is_none() {
                continue;
            }
            let wait = staged.line.saturating_sub(self.end.ctx.now());
            self.end.charge(wait + memory.hit);
            if index < stages {
                let line = self.ask(true, memory.dram_load);
                self.pipeline[index].line = line;
            }
        }
        if self.pipeline.len() > stages {
            leaving = self.pipeline.pop_back().and_then(|staged| staged.request);
        }
        if let Some(request) = leaving {
            self.answer(request).await;
        }
    }

    /// Asks for a line, which costs as much as a hit.
    fn ask(&mut self, is_asked: bool, takes: Ps) -> Ps {
        if !is_asked {
            return Ps::ZERO;
        }
        self.end.charge(self.end.shared.profile.memory.store);
        self.lines.ask(self.end.ctx.now(), takes)
    }

    async fn answer(&mut self, request: KvRequest) {
        let value = request.value.as_ref();
        let bytes = value.map_or(self.load.value_bytes, |value| value.len() as u64);
        let chance = |ppm| self.rng.chance_ppm(ppm);
        let plan = self.load.system.plan(request.value.is_some(), bytes, chance);
        let Plan::Ask { answer_bytes } = plan else {
            unreachable!("READs do not come to a server process")
        };
        let mut payload = vec![0; answer_bytes as usize];
        let is_stored = self.end.shared.store.as_ref().is_none_or(|store| {
            Store::serve(&mut store.borrow_mut(), self.number, &request, &mut payload)
        });
        payload[0] = Ack { lane: request.lane, is_stored }.encode();
        let Way { is_write, kind, is_signalled, .. } = self.exchange.answer;
        let peer = match kind {
            Connection::Datagram => self.datagrams[request.client as usize],
            _ => PeerId(request.peer),
        };
        let verb = match is_write {
            true => Verb::Write(address(u64::from(request.lane) * AREA_BYTES)),
            false => Verb::Send,
        };
        self.answered += 1;
        let work = super::rig::Work {
            id: self.answered,
            area: self.answered % AREAS,
            bytes: answer_bytes,
            payload: &payload,
            is_signalled,
        };
        self.end.post(peer, verb, work).await;
        let mut measured = self.end.shared.measured.borrow_mut();
        if measured.is_on() {
            measured.served[self.number as usize] += 1;
        }
    }
}
