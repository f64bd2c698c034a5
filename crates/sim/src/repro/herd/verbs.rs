//! Verbs without anything around them: many machines to the server, the server to many machines,
//! and all to all.
//!
//! Source: HERD, figures 2 to 4 and 6.

use super::rig::{AREA_BYTES, Rig, RigEndpoint, RigState, Role, Work, address};
use crate::device::Profile;
use crate::net::Connection;
use crate::repro::herd::baselines::{RequestRegion, SLOT_BYTES};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::world::Input;
use rackpool_core::seam::{FabricEvent, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Read,
    Write,
    /// SEND, for which receives are posted.
    Send,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// So many processes of so many machines, each to one process of the server.
    In { machines: u32, processes: u32 },
    /// So many processes of the server, each to a machine of its own.
    Out(u32),
    /// So many processes, each on a machine of its own, each to any of as many of the server.
    AllIn(u32),
    /// So many processes of the server, each to any of as many machines.
    AllOut(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct Verbs {
    pub what: What,
    pub kind: Connection,
    pub bytes: u64,
    /// Payload up to this is inline.
    pub inline_max: u64,
    pub flow: Flow,
    /// Under way for each process.
    pub window: u32,
    /// In all, of which the first third is not measured.
    pub operations: u64,
}

impl Verbs {
    /// Inline, as many under way as it takes.
    pub fn of(what: What, kind: Connection, bytes: u64, flow: Flow) -> Verbs {
        let inline_max = u64::MAX;
        Verbs { what, kind, bytes, inline_max, flow, window: 16, operations: 60_000 }
    }
}

/// Millions a second, counted where they take effect.
pub fn rate(profile: &Profile, verbs: &Verbs) -> Result<f64, String> {
    let measured = drive(profile, verbs, verbs.operations / 3, verbs.operations)?;
    let seconds = measured.seconds().expect("it has ended");
    Ok(measured.operations() as f64 / seconds / 1e6)
}

/// How long one takes alone from its post to its completion, ns.
pub fn latency(profile: &Profile, verbs: &Verbs) -> Result<f64, String> {
    let flow = Flow::In { machines: 1, processes: 1 };
    let alone = Verbs { flow, window: 1, ..*verbs };
    let measured = drive(profile, &alone, 8, 40)?;
    Ok(measured.latency.mean().unwrap_or(0.0) / 1e3)
}

fn drive(
    profile: &Profile,
    verbs: &Verbs,
    warm: u64,
    wanted: u64,
) -> Result<super::rig::Measured, String> {
    let verbs = *verbs;
    let (machines, senders, receivers, is_out) = match verbs.flow {
        Flow::In { machines, processes } => (machines, processes, 1, false),
        Flow::Out(count) => (count, count, count, true),
        Flow::AllIn(count) => (count, count, count, false),
        Flow::AllOut(count) => (count, count, count, true),
    };
    let region = RequestRegion { clients: 1, window: 1 };
    let mut rig = Rig::new(RigState::new(profile, region, 0, None), machines, 1);
    let client = |number: u32| 1 + (number % machines) as usize;
    let receivers: Vec<_> = (0..receivers)
        .map(|number| {
            let host = rig.hosts[if is_out { client(number) } else { 0 }];
            rig.spawn(host, Role::Server, 1, receive).1
        })
        .collect();
    let mut begin = Vec::new();
    for number in 0..senders {
        let host = rig.hosts[if is_out { 0 } else { client(number) }];
        let areas = u64::from(verbs.window);
        let (id, endpoint) = rig
            .spawn(host, Role::Client, areas, |end| async move { send(end, verbs, number).await });
        begin.push(id);
        rig.set_inline_max(endpoint, verbs.inline_max);
        let one = number as usize % receivers.len();
        let to = match verbs.flow {
            Flow::In { .. } | Flow::Out(_) => &receivers[one..=one],
            Flow::AllIn(_) | Flow::AllOut(_) => &receivers[..],
        };
        to.iter().for_each(|to| rig.connect(endpoint, *to, verbs.kind));
    }
    rig.settle();
    rig.run(&begin, warm, wanted)
}

/// Takes messages, and sees what is written at a client.
async fn receive(end: RigEndpoint) {
    while let Some(input) = end.ctx.recv(None).await {
        match input {
            Input::Fabric(FabricEvent::Received { message, .. }) => {
                end.ctx.kernel.with_net(|net, _| net.recycle(message));
            }
            Input::Tell(_) => {}
            _ => continue,
        }
        end.shared.measured.borrow_mut().count(end.ctx.now(), None);
    }
}

/// Keeps its window full; each is completed, so that it knows when to go on.
async fn send(end: RigEndpoint, verbs: Verbs, number: u32) {
    let peers = end.begin().await;
    let mut rng = Rng::new(1, Purpose::Workload, u64::from(number));
    let mut begun = vec![Ps::ZERO; verbs.window as usize];
    let mut free: Vec<u64> = (0..u64::from(verbs.window)).collect();
    let completion = end.shared.profile.cpu.completion;
    let verb = match verbs.what {
        What::Read => Verb::Read(address(0)),
        What::Write => Verb::Write(address(SLOT_BYTES - verbs.bytes.min(SLOT_BYTES))),
        What::Send => Verb::Send,
    };
    loop {
        while let Some(lane) = free.pop() {
            let peer = peers[rng.below(peers.len() as u64) as usize];
            begun[lane as usize] = end.ctx.now();
            let (id, area, bytes) = (lane, lane, verbs.bytes.min(AREA_BYTES));
            let work = Work { id, area, bytes, is_signalled: true, payload: &[] };
            end.post(peer, verb, work).await;
        }
        let Some(Input::Fabric(FabricEvent::Completed { id, .. })) = end.ctx.recv(None).await
        else {
            continue;
        };
        end.charge(completion);
        let now = end.ctx.now();
        let took = now.saturating_sub(begun[id as usize]);
        let mut measured = end.shared.measured.borrow_mut();
        if verbs.what == What::Read {
            measured.count(now, Some(took));
        } else if measured.is_on() {
            measured.latency.record(took.0);
        }
        drop(measured);
        free.push(id);
    }
}
