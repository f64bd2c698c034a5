//! HERD's evaluation (SIGCOMM 2014) in virtual time: verbs, ECHO, HERD, and Pilaf and FaRM-KV
//! emulated as the paper has them, on the network cards of [`crate::net`].
//!
//! [`baselines`] says what each system sends, and has the tables of those that read;
//! `bench kv --baselines` runs the same over real fabrics. [`client`] and [`server`] are their
//! processes here; [`rig`] has machines, cards and counts; [`store`] what is behind the full ones.

pub mod baselines;
pub mod client;
pub mod figures;
mod requests;
pub mod rig;
pub mod server;
pub mod store;
pub mod verbs;
pub mod zipf;

use crate::device::Profile;
use crate::histogram::Histogram;
use crate::net::{Connection, EndpointId};
use baselines::{CLIENTS_MAX, LANES_MAX, RequestRegion, System};
use client::HerdClient;
use rig::{Rig, RigState, Role};
use server::HerdServer;
use std::rc::Rc;
use store::Store;
use zipf::Keys;

/// What runs. [`HerdLoad::paper`] has what the paper uses where it varies nothing.
#[derive(Clone, Copy, Debug)]
pub struct HerdLoad {
    pub system: System,
    pub machines: u32,
    pub clients: u32,
    /// Requests of each under way, W.
    pub window: u32,
    /// Server processes, NS.
    pub servers: u32,
    /// Bytes of a value, at most 1000.
    pub value_bytes: u64,
    pub put_ppm: u32,
    pub keys: u64,
    /// Whether they are drawn by a zipfian.
    pub is_zipfian: bool,
    /// Memory accesses of a request at the server; by default those of the system.
    pub accesses: Option<u32>,
    /// Whether lines are asked for before they are used.
    pub is_prefetching: bool,
    /// Whether there is a table behind it; else what is read is zeros.
    pub is_full: bool,
    /// Requests, of which the first third is not measured.
    pub operations: u64,
    pub seed: u64,
}

impl HerdLoad {
    /// 51 clients on 17 machines, 4 requests each, 6 server processes, 16 B keys and 32 B values,
    /// 5 % PUTs. Source: HERD, experimental setup.
    pub fn paper(system: System) -> HerdLoad {
        HerdLoad {
            system,
            machines: 17,
            clients: 51,
            window: 4,
            servers: 6,
            value_bytes: 32,
            put_ppm: 50_000,
            keys: 8 << 20,
            is_zipfian: false,
            accesses: None,
            is_prefetching: true,
            is_full: false,
            operations: 60_000,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct HerdStats {
    /// Requests a second, millions.
    pub mops: f64,
    /// How long each took, ps.
    pub latency: Histogram,
    /// Requests a second of each server process, millions.
    pub by_server: Vec<f64>,
    /// Processor time of clients and of servers for a request, ns, without idle polling.
    pub cpu_ns: [f64; 2],
    /// Answers that were not the key's value, of full runs.
    pub wrong: u64,
}

impl HerdStats {
    /// Their mean latency, ns.
    pub fn mean_ns(&self) -> f64 {
        self.latency.mean().unwrap_or(0.0) / 1e3
    }

    /// The latency that `ppm` millionths do not exceed, ns.
    pub fn percentile_ns(&self, ppm: u64) -> f64 {
        self.latency.percentile(ppm).unwrap_or(0) as f64 / 1e3
    }
}

/// Runs requests. An error says what the simulator objects to.
pub fn run(profile: &Profile, load: &HerdLoad) -> Result<HerdStats, String> {
    let load = *load;
    if load.window > LANES_MAX.into() || load.clients > CLIENTS_MAX {
        let most = format!("{LANES_MAX} windows and {CLIENTS_MAX} clients");
        return Err(format!("requests have room for {most}"));
    }
    let keys = Rc::new(Keys::new(load.keys, load.is_zipfian, load.seed));
    let region = RequestRegion { clients: load.clients, window: load.window };
    let store = match load.is_full {
        true => Some(Store::new(&load, &keys)?),
        false => None,
    };
    let shared = RigState::new(profile, region, load.servers, store);
    let mut rig = Rig::new(shared, load.machines, load.seed);
    let clients = connect(&mut rig, load, &keys);
    rig.settle();
    let warm = load.operations / 3;
    let measured = rig.run(&clients, warm, load.operations)?;
    let seconds = measured.seconds().expect("it has ended");
    let count = measured.operations() as f64;
    let millions = |count: u64| count as f64 / seconds / 1e6;
    match rig.shared.torn.get() {
        0 => Ok(HerdStats {
            mops: count / seconds / 1e6,
            by_server: measured.served.iter().map(|served| millions(*served)).collect(),
            cpu_ns: measured.busy.map(|busy| busy.as_ns_f64() / count),
            latency: measured.latency,
            wrong: measured.wrong,
        }),
        torn => Err(format!("{torn} requests were not whole")),
    }
}

/// Starts all processes and connects them; the clients.
fn connect(rig: &mut Rig, load: HerdLoad, keys: &Rc<Keys>) -> Vec<crate::world::ProcessId> {
    let exchange = load.system.exchange();
    let (request, answer) = (exchange.request, exchange.answer);
    let host = rig.hosts[0];
    // What accepts connections of all clients and then sleeps; READs are served without it.
    let (_, initializer) = rig.spawn(host, Role::Server, 1, |end| async move {
        while end.ctx.recv(None).await.is_some() {}
    });
    let servers: Vec<EndpointId> = (0..load.servers)
        .map(|number| {
            let main = |end| async move { HerdServer::run(end, number, load).await };
            let (id, endpoint) = rig.spawn(host, Role::Server, server::AREAS, main);
            rig.shared.servers.borrow_mut().push(id);
            rig.set_inline_max(endpoint, answer.inline_max);
            endpoint
        })
        .collect();
    let mut begin = rig.shared.servers.borrow().clone();
    for number in 0..load.clients {
        let host = rig.hosts[1 + (number % load.machines) as usize];
        let (keys, areas) = (keys.clone(), u64::from(load.window));
        let main = |end| async move { HerdClient::run(end, number, load, keys).await };
        let (id, endpoint) = rig.spawn(host, Role::Client, areas, main);
        begin.push(id);
        rig.set_inline_max(endpoint, request.inline_max);
        let mine = [servers[(number % load.servers) as usize]];
        let to: &[EndpointId] = match (exchange.is_partitioned, request.is_write) {
            (false, _) => &mine,
            // One connection, whichever process the slot belongs to.
            (true, true) => &[initializer],
            (true, false) => &servers,
        };
        to.iter().for_each(|to| rig.connect(endpoint, *to, request.kind));
        if load.system.reads() {
            rig.connect(endpoint, initializer, Connection::Reliable);
        }
        if answer.kind == Connection::Datagram {
            servers.iter().for_each(|server| rig.connect(*server, endpoint, answer.kind));
        }
    }
    begin
}
