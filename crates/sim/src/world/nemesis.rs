//! What goes wrong, by seed: a process outside of all hosts that kills, pauses, cuts and starves
//! until it is told that it is enough, and then repairs everything.

use super::helpers::Task;
use super::impostor;
use super::kernel::{Ctx, HostId, ProcessId};
use super::operator;
use super::rack::Rack;
use super::scene::Scene;
use super::workload::model::Wish;
use crate::rng::{Purpose, Rng};
use crate::run::{Fault, events_waiting_max};
use crate::time::Ps;
use rackpool_core::FrameIndex;
use rackpool_core::copies::COPIES;
use rackpool_core::layout::{FrameWord, STATE_OFFSET, SessionWord, frame_word, session_word};
use std::rc::Rc;

/// Faults that are events; the others are rates of the network, the clocks and the engines.
const EVENTS: [Fault; 12] = [
    Fault::CrashClient,
    Fault::CrashDaemon,
    Fault::CrashMaster,
    Fault::PowerLoss,
    Fault::Partition,
    Fault::OneWayLoss,
    Fault::SlowNode,
    Fault::Pause,
    Fault::ClockSkew,
    Fault::FullMemory,
    Fault::Drain,
    Fault::Flip,
];

/// Of the daemons that are caught, those in the middle of a run, parts per million.
const RUN_PPM: u32 = 100_000;

pub async fn main(ctx: Ctx, scene: Rc<Scene>) {
    let mut rng = Rng::new(scene.seed, Purpose::Faults, 0);
    let faults: Vec<Fault> =
        EVENTS.into_iter().filter(|fault| scene.config.faults.has(*fault)).collect();
    // Some seeds are calm, some are hardly ever repaired.
    let mean = Ps::us(rng.between(30, 3_000));
    // Memory that is mapped across racks is one host's: there is no losing one rack of it.
    let power_losses_max = if scene.has_mapped() { 0 } else { rng.below(2) };
    let mut power_losses = 0;
    while !scene.is_over() {
        ctx.sleep(rng.exponential(mean) + Ps::us(1)).await;
        if faults.is_empty() || !scene.is_set_up() || scene.is_over() {
            continue;
        }
        scene.start_helpers();
        let fault = faults[rng.below(faults.len() as u64) as usize];
        match fault {
            Fault::PowerLoss if power_losses == power_losses_max => continue,
            Fault::PowerLoss => power_losses += 1,
            // Restarts take milliseconds of waiting: fewer of them leave room for work.
            Fault::CrashMaster | Fault::CrashDaemon if rng.chance_ppm(500_000) => continue,
            _ => {}
        }
        if inject(&ctx, &scene, fault, &mut rng).await {
            scene.count_fault(fault);
            ctx.kernel.say(|| format!("fault: {}", fault.name()));
        }
    }
    while scene.is_drained_anywhere() {
        scene.start_helpers();
        ctx.sleep(Ps::ms(1)).await;
    }
    scene.repair();
}

/// Whether it could be done.
async fn inject(ctx: &Ctx, scene: &Rc<Scene>, fault: Fault, rng: &mut Rng) -> bool {
    let cluster = &scene.cluster;
    let kernel = &cluster.kernel;
    let racks = cluster.racks.len() as u64;
    let rack = rng.below(racks) as usize;
    let soon = Ps(rng.exponential(Ps::ms(2)).0.min(Ps::ms(40).0));
    match fault {
        Fault::CrashClient if scene.crash_sweeper(rng) => {}
        Fault::CrashClient => return crash_client(ctx, scene, rng).await,
        Fault::CrashDaemon => return crash_daemon(ctx, scene, rack, soon, rng).await,
        Fault::CrashMaster => {
            kernel.kill(cluster.master.get());
            ctx.sleep(soon).await;
            cluster.start_master();
            if rng.chance_ppm(400_000) {
                impostor::start(scene, rack);
            }
        }
        Fault::PowerLoss => lose_power(ctx, scene, rack, soon, rng).await,
        Fault::Partition if rng.chance_ppm(300_000) => {
            let Some(client) = scene.pick_client(rng) else { return false };
            kernel.reset_endpoints(scene.process_of(client));
        }
        Fault::Partition => return cut(ctx, racks + 1, true, rng).await,
        Fault::OneWayLoss => return cut(ctx, racks + 1, false, rng).await,
        Fault::SlowNode => {
            let factor = rng.between(2, 200) as u32;
            kernel.slow(HostId(rack as u32), factor);
            ctx.sleep(soon).await;
            kernel.slow(HostId(rack as u32), 1);
        }
        Fault::Pause => {
            let Some(process) = pick_process(scene, rng) else { return false };
            // Mostly short; sometimes longer than every lease and every deadline, and then alone.
            let long = rng.chance_ppm(50_000);
            let short = if rng.chance_ppm(300_000) { Ps::ms(3) } else { Ps::us(100) };
            let time = rng.exponential(if long { Ps::ms(4_000) } else { short });
            if !long && rng.chance_ppm(500_000) && catch(scene, process, time, Wish::Free, rng) {
                return true;
            }
            midway(ctx, rng, process).await;
            kernel.say(|| format!("process {} is stopped for {time}", process.0));
            kernel.pause(process, time);
            cluster.on_stopped(process);
            if long {
                // Clients may wait for it all that time, and workers poll on.
                kernel.add_events_max(events_waiting_max(racks, time));
                ctx.sleep(time).await;
            }
        }
        Fault::ClockSkew => {
            let jump_ns = rng.between(0, 2_000_000_000);
            kernel.jump_clock(HostId(rack as u32), jump_ns);
            scene.model.on_jump(cluster.racks[rack].id, ctx.now());
        }
        Fault::FullMemory => {
            let blocks = rng.below(8);
            cluster.racks[rack].blocks_free.set(blocks);
            ctx.sleep(soon).await;
            cluster.racks[rack].blocks_free.set(u64::MAX / 2);
        }
        Fault::Drain => return operator::start(scene, rack),
        Fault::Flip => return flip(scene, rack, rng),
        _ => unreachable!("only events are injected"),
    }
    true
}

/// Flips a bit of a word that is likely to mean something.
fn flip(scene: &Scene, rack: usize, rng: &mut Rng) -> bool {
    let rack = &scene.cluster.racks[rack];
    let region = rack.region.borrow();
    let frame = FrameIndex(rng.below(u64::from(rack.layout.frame_count)) as u32);
    let offset = match rng.below(4) {
        0 => STATE_OFFSET + 8 * rng.below(8),
        1 => session_word(rng.below(4) as u32, SessionWord::Session) + 8 * rng.below(8),
        2 => frame_word(frame, FrameWord::Page) + 8 * rng.below(4),
        _ => rack.layout.bitmap_offset(frame) + 8 * rng.below(rack.layout.bitmap_bytes() / 8),
    };
    region.flip(offset, rng.below(COPIES) as usize, rng.below(64) as u32)
}

async fn lose_power(ctx: &Ctx, scene: &Rc<Scene>, rack: usize, soon: Ps, rng: &mut Rng) {
    scene.lose_power(rack);
    if scene.config.faults.has(Fault::Drain) && rng.chance_ppm(300_000) {
        operator::forget_dead(ctx, scene, rack).await;
    }
    ctx.sleep(soon).await;
    scene.cluster.start_daemon(rack);
    scene.restart_clients_of(rack);
}

async fn crash_client(ctx: &Ctx, scene: &Rc<Scene>, rng: &mut Rng) -> bool {
    let Some(mut client) = scene.pick_client(rng) else { return false };
    for _ in 0..rng.below(20) {
        if ctx.kernel.is_midway(scene.process_of(client)) {
            break;
        }
        ctx.sleep(Ps::ns(rng.between(20, 400))).await;
        let Some(next) = scene.pick_client(rng) else { return false };
        client = next;
    }
    scene.kill_client(client);
    true
}

async fn crash_daemon(ctx: &Ctx, scene: &Rc<Scene>, rack: usize, soon: Ps, rng: &mut Rng) -> bool {
    let cluster = &scene.cluster;
    if cluster.racks[rack].owner.get().is_none() {
        return false;
    }
    // In the midst of something, if it is soon: an idle loop has little to lose.
    if rng.chance_ppm(800_000) {
        ensnare(ctx, &cluster.racks[rack], rng).await;
    } else if let Some(owner) = cluster.racks[rack].owner.get() {
        midway(ctx, rng, owner).await;
    }
    scene.kill_daemon(rack);
    let together = rng.chance_ppm(200_000);
    if together && let Some(client) = scene.pick_client(rng) {
        scene.kill_client(client);
    }
    ctx.sleep(soon).await;
    cluster.start_daemon(rack);
    if rng.chance_ppm(150_000) {
        // It dies again while it attaches.
        ctx.sleep(Ps(rng.exponential(Ps::us(5)).0)).await;
        scene.kill_daemon(rack);
        ctx.sleep(soon).await;
        cluster.start_daemon(rack);
    }
    true
}

/// Catches a rack's daemon while it changes several words as one or soon after, or in the middle of
/// a run that it makes, if that is soon.
async fn ensnare(ctx: &Ctx, rack: &Rack, rng: &mut Rng) {
    let Some(owner) = rack.owner.get() else { return };
    let cpu = ctx.kernel.cpu(owner);
    let (ended, operations) = match rng.below(6) {
        0 => (false, rng.below(100)),
        1 | 2 => (false, rng.below(16)),
        _ => (true, rng.below(2)),
    };
    let mut is_set = !rng.chance_ppm(RUN_PPM);
    if is_set {
        rack.set_snare(&cpu, ended, operations);
    }
    for _ in 0..rng.below(1_000) {
        if is_set && !cpu.has_snare() || !ctx.kernel.is_alive(owner) {
            break;
        }
        is_set = is_set || rack.set_snare_in_run(&cpu, operations);
        ctx.sleep(Ps::us(2)).await;
    }
}

/// Between two of so many hosts nothing passes for a while, in one direction or in both.
async fn cut(ctx: &Ctx, hosts: u64, both: bool, rng: &mut Rng) -> bool {
    let from = HostId(rng.below(hosts) as u32);
    let to = HostId(rng.below(hosts) as u32);
    if from == to {
        return false;
    }
    let time = Ps(rng.exponential(Ps::ms(30)).0.min(Ps::ms(3_000).0));
    ctx.kernel.cut_for(from, to, time);
    if both {
        ctx.kernel.cut_for(to, from, time);
    }
    ctx.sleep(Ps(time.0 / 2)).await;
    true
}

/// Waits until a process is in the midst of something, if that is soon.
async fn midway(ctx: &Ctx, rng: &mut Rng, process: ProcessId) {
    for _ in 0..rng.below(200) {
        if !ctx.kernel.is_alive(process) || ctx.kernel.is_midway(process) {
            return;
        }
        ctx.sleep(Ps::ns(rng.between(20, 400))).await;
    }
}

/// Stops a client for this time when it is next in the midst of an access to a rack that it has
/// mapped; the others are to take away meanwhile what it uses there. Whether it has one mapped.
pub(super) fn catch(
    scene: &Scene,
    process: ProcessId,
    time: Ps,
    wish: Wish,
    rng: &mut Rng,
) -> bool {
    let cpu = scene.cluster.kernel.cpu(process);
    let operations = rng.below(8);
    let mut racks = scene.cluster.racks.iter();
    let is_set = racks.any(|rack| rack.set_snare_of_client(process, &cpu, operations, time));
    if is_set {
        scene.model.wish.set(Some((process, wish)));
    }
    is_set
}

fn pick_process(scene: &Scene, rng: &mut Rng) -> Option<ProcessId> {
    let rack = rng.below(scene.cluster.racks.len() as u64) as usize;
    let client = |rng: &mut Rng| scene.pick_client(rng).map(|client| scene.process_of(client));
    match rng.below(8) {
        0 => Some(scene.cluster.master.get()),
        1 | 2 => scene.cluster.racks[rack].daemon.get().map(|(daemon, _)| daemon),
        3 => scene.cluster.racks[rack].daemon.get().map(|(_, fabric)| fabric),
        // As often as a daemon.
        4 => scene.pick_helper(rng, |task| task != Task::Sweep).or_else(|| client(rng)),
        5 => scene.pick_helper(rng, |task| task == Task::Sweep).or_else(|| client(rng)),
        _ => client(rng),
    }
}
