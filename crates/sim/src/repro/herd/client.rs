//! A client process: as many requests under way as its window allows, each begun when another one
//! is answered.
//!
//! What is charged: `cpu.client_submit` for each request, `cpu.post_request` for each post,
//! `cpu.completion` for each answer and completion that is taken and for each receive posted.

use super::HerdLoad;
use super::rig::{AREA_BYTES, RigEndpoint, TABLE_AT, Work, address, message_of};
use super::zipf::Keys;
use crate::repro::herd::baselines::{Ack, Exchange, Get, KvRequest, Plan, SLOT_BYTES, Then};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::world::Input;
use rackpool_core::seam::{FabricEvent, PeerId, Sge, Verb};
use std::rc::Rc;

/// Completions of requests, which say nothing but that they were sent.
const SENT: u64 = u64::MAX;

#[derive(Clone, Debug, Default)]
struct Lane {
    begun: Ps,
    key: u64,
    is_put: bool,
    get: Option<Get>,
}

pub struct HerdClient {
    end: RigEndpoint,
    number: u32,
    load: HerdLoad,
    exchange: Exchange,
    /// For requests: of each server process, or of one that all have written to their slots.
    peers: Vec<PeerId>,
    /// For READs, of systems that read.
    reads: Option<PeerId>,
    keys: Rc<Keys>,
    rng: Rng,
    lanes: Vec<Lane>,
    /// Requests sent to each server process.
    sent: Vec<u64>,
}

impl HerdClient {
    /// Asks for ever, from when it is told to begin.
    pub async fn run(end: RigEndpoint, number: u32, load: HerdLoad, keys: Rc<Keys>) {
        let mut peers = end.begin().await;
        // It was connected last.
        let reads = peers.pop_if(|_| load.system.reads());
        let mut client = HerdClient {
            end,
            number,
            exchange: load.system.exchange(),
            peers,
            reads,
            keys,
            rng: Rng::new(load.seed, Purpose::Workload, u64::from(number)),
            lanes: vec![Lane::default(); load.window as usize],
            sent: vec![0; load.servers as usize],
            load,
        };
        for lane in 0..client.load.window as u8 {
            client.start(lane).await;
        }
        loop {
            let input = client.end.ctx.recv(None).await;
            client.take(input).await;
        }
    }

    async fn take(&mut self, input: Option<Input>) {
        let completion = self.end.shared.profile.cpu.completion;
        match input {
            Some(Input::Tell(lane)) => {
                self.end.charge(completion);
                self.finish(lane as u8).await;
            }
            Some(Input::Fabric(event @ FabricEvent::Received { .. })) => {
                let answer = message_of(&event, self.exchange.answer.kind);
                let Some(Ack { lane, .. }) = Ack::decode(answer[0]) else { return };
                self.check(lane, answer);
                if let FabricEvent::Received { message, .. } = event {
                    self.end.ctx.kernel.with_net(|net, _| net.recycle(message));
                }
                // With the next receive.
                self.end.charge(completion.times(2));
                self.finish(lane).await;
            }
            Some(Input::Fabric(FabricEvent::Completed { id: SENT, .. })) => {
                self.end.charge(completion);
            }
            Some(Input::Fabric(FabricEvent::Completed { id, .. })) => {
                self.end.charge(completion);
                self.go_on(id as u8).await;
            }
            _ => {}
        }
    }

    /// The answer to a GET is its key's value.
    fn check(&self, lane: u8, answer: &[u8]) {
        let lane = &self.lanes[usize::from(lane)];
        let Some(store) = &self.end.shared.store else { return };
        if !lane.is_put && !store.borrow().is_value_of(lane.key, &answer[1..]) {
            self.end.shared.measured.borrow_mut().wrong += 1;
        }
    }

    async fn start(&mut self, lane: u8) {
        self.end.charge(self.end.shared.profile.cpu.client_submit);
        let key = self.keys.draw(&mut self.rng);
        let is_put = self.rng.chance_ppm(self.load.put_ppm);
        let begun = self.end.ctx.now();
        let chance = |ppm| self.rng.chance_ppm(ppm);
        let plan = self.load.system.plan(is_put, self.load.value_bytes, chance);
        let one = &mut self.lanes[usize::from(lane)];
        *one = Lane { begun, key, is_put, ..Lane::default() };
        match plan {
            Plan::Ask { .. } => self.ask(lane).await,
            Plan::Read(reads) => {
                let store = self.end.shared.store.as_ref().map(|store| store.borrow());
                let table = store.as_ref().and_then(|store| store.table());
                one.get = Some(table.map_or(Get::Sizes(reads), |table| Get::of(table, key)));
                drop(store);
                self.read(lane).await;
            }
        }
    }

    async fn ask(&mut self, lane: u8) {
        let Lane { key, is_put, .. } = self.lanes[usize::from(lane)];
        let server = match self.exchange.is_partitioned {
            true => self.keys.partition(key, self.load.servers),
            false => self.number % self.load.servers,
        };
        let value = is_put.then(|| self.value(key));
        let request = KvRequest { key, lane, value, client: self.number, peer: 0 };
        let payload = request.encode();
        let bytes = payload.len() as u64;
        let sent = &mut self.sent[server as usize];
        let slot = self.end.shared.region.slot(server, self.number, *sent);
        *sent += 1;
        let way = self.exchange.request;
        let verb = match way.is_write {
            // The key hash is what ends the slot.
            true => Verb::Write(address((slot + 1) * SLOT_BYTES - bytes)),
            false => Verb::Send,
        };
        let peer = self.peers[server as usize % self.peers.len()];
        let is_signalled = way.is_signalled;
        let work = Work { id: SENT, area: u64::from(lane), bytes, payload: &payload, is_signalled };
        self.end.post(peer, verb, work).await;
    }

    fn value(&self, key: u64) -> Vec<u8> {
        match &self.end.shared.store {
            Some(store) => store.borrow().value_of(key),
            None => vec![0; self.load.value_bytes as usize],
        }
    }

    /// Posts the lane's next READ.
    async fn read(&mut self, lane: u8) {
        let get = self.lanes[usize::from(lane)].get.expect("it reads");
        let (at, bytes) = get.due();
        let work = Work {
            id: u64::from(lane),
            area: u64::from(lane),
            bytes,
            is_signalled: true,
            ..Work::default()
        };
        let peer = self.reads.expect("systems that read are connected for it");
        self.end.post(peer, Verb::Read(address(TABLE_AT + at)), work).await;
    }

    async fn go_on(&mut self, lane: u8) {
        let mut get = self.lanes[usize::from(lane)].get.take().expect("it reads");
        let mut data = Vec::new();
        if get.has_table() {
            data.resize(get.due().1 as usize, 0);
            let (buf, offset) = (self.end.buf, u64::from(lane) * AREA_BYTES);
            let piece = Sge { buf, offset, bytes: data.len() as u64 };
            self.end.ctx.kernel.read_buffer(self.end.endpoint, &piece, 0, &mut data);
        }
        let shared = self.end.shared.clone();
        let store = shared.store.as_ref().map(|store| store.borrow());
        let then = get.take(store.as_ref().and_then(|store| store.table()), &data);
        let is_right = match (&get, &store) {
            (Get::Table(lookup), Some(store)) => store.is_found(lookup, &data),
            _ => true,
        };
        drop(store);
        self.lanes[usize::from(lane)].get = Some(get);
        if then == Then::Read {
            return self.read(lane).await;
        }
        if then != Then::Found || !is_right {
            shared.measured.borrow_mut().wrong += 1;
        }
        self.finish(lane).await;
    }

    /// A request is over, and the next one begins.
    async fn finish(&mut self, lane: u8) {
        let now = self.end.ctx.now();
        let took = now.saturating_sub(self.lanes[usize::from(lane)].begun);
        self.end.shared.measured.borrow_mut().count(now, Some(took));
        self.start(lane).await;
    }
}
