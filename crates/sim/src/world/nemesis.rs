//! What goes wrong, by seed: a process outside of all hosts that kills, pauses, cuts and starves
//! until it is told that it is enough, and then repairs everything.

use super::kernel::{Ctx, HostId, ProcessId};
use super::scenario::Scene;
use crate::rng::{Purpose, Rng};
use crate::run::Fault;
use crate::time::Ps;
use std::rc::Rc;

/// Faults that are events; the others are rates of the network, the clocks and the engines.
const EVENTS: [Fault; 10] = [
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
];

/// The nemesis' main function.
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
        let fault = faults[rng.below(faults.len() as u64) as usize];
        match fault {
            Fault::PowerLoss if power_losses == power_losses_max => continue,
            Fault::PowerLoss => power_losses += 1,
            // Restarts take milliseconds of waiting: fewer of them leave room for work.
            Fault::CrashMaster | Fault::CrashDaemon if rng.chance_ppm(500_000) => continue,
            _ => {}
        }
        inject(&ctx, &scene, fault, &mut rng).await;
    }
    scene.repair();
}

async fn inject(ctx: &Ctx, scene: &Rc<Scene>, fault: Fault, rng: &mut Rng) {
    let cluster = &scene.cluster;
    let kernel = &cluster.kernel;
    let racks = cluster.racks.len() as u64;
    let rack = rng.below(racks) as usize;
    let soon = Ps(rng.exponential(Ps::ms(2)).0.min(Ps::ms(40).0));
    match fault {
        Fault::CrashClient => {
            let Some(mut client) = scene.pick_client(rng) else { return };
            for _ in 0..rng.below(20) {
                if kernel.is_midway(scene.process_of(client)) {
                    break;
                }
                ctx.sleep(Ps::ns(rng.between(20, 400))).await;
                let Some(next) = scene.pick_client(rng) else { return };
                client = next;
            }
            scene.kill_client(client);
        }
        Fault::CrashDaemon => {
            if cluster.racks[rack].owner.get().is_none() {
                return;
            }
            // In the midst of something, if it is soon: an idle loop has little to lose.
            for _ in 0..rng.below(200) {
                let owner = cluster.racks[rack].owner.get();
                if owner.is_none_or(|owner| kernel.is_midway(owner)) {
                    break;
                }
                ctx.sleep(Ps::ns(rng.between(20, 400))).await;
            }
            cluster.kill_daemon(rack);
            let together = rng.chance_ppm(200_000);
            if together && let Some(client) = scene.pick_client(rng) {
                scene.kill_client(client);
            }
            ctx.sleep(soon).await;
            cluster.start_daemon(rack);
            if rng.chance_ppm(150_000) {
                // It dies again while it attaches.
                ctx.sleep(Ps(rng.exponential(Ps::us(5)).0)).await;
                cluster.kill_daemon(rack);
                ctx.sleep(soon).await;
                cluster.start_daemon(rack);
            }
        }
        Fault::CrashMaster => {
            kernel.kill(cluster.master.get());
            ctx.sleep(soon).await;
            cluster.start_master();
        }
        Fault::PowerLoss => {
            scene.lose_power(rack);
            ctx.sleep(soon).await;
            cluster.start_daemon(rack);
            scene.restart_clients_of(rack);
        }
        Fault::Partition | Fault::OneWayLoss => {
            let hosts = racks + 1;
            let from = HostId(rng.below(hosts) as u32);
            let to = HostId(rng.below(hosts) as u32);
            if from == to {
                return;
            }
            let time = Ps(rng.exponential(Ps::ms(30)).0.min(Ps::ms(3_000).0));
            kernel.cut_for(from, to, time);
            if fault == Fault::Partition {
                kernel.cut_for(to, from, time);
            }
            ctx.sleep(Ps(time.0 / 2)).await;
        }
        Fault::SlowNode => {
            let factor = rng.between(2, 200) as u32;
            kernel.slow(HostId(rack as u32), factor);
            ctx.sleep(soon).await;
            kernel.slow(HostId(rack as u32), 1);
        }
        Fault::Pause => {
            let Some(process) = pick_process(scene, rng) else { return };
            // Mostly short; sometimes longer than every lease and every deadline, and then alone.
            let long = rng.chance_ppm(50_000);
            let time = rng.exponential(if long { Ps::ms(4_000) } else { Ps::us(100) });
            kernel.say(|| format!("process {} is stopped for {time}", process.0));
            kernel.pause(process, time);
            if long {
                ctx.sleep(time).await;
            }
        }
        Fault::ClockSkew => {
            let jump_ns = rng.between(0, 2_000_000_000);
            kernel.jump_clock(HostId(rack as u32), jump_ns);
        }
        Fault::FullMemory => {
            let blocks = rng.below(8);
            cluster.racks[rack].blocks_free.set(blocks);
            ctx.sleep(soon).await;
            cluster.racks[rack].blocks_free.set(u64::MAX / 2);
        }
        _ => unreachable!("only events are injected"),
    }
    scene.count_fault(fault);
    kernel.say(|| format!("fault: {}", fault.name()));
}

fn pick_process(scene: &Scene, rng: &mut Rng) -> Option<ProcessId> {
    let rack = rng.below(scene.cluster.racks.len() as u64) as usize;
    match rng.below(8) {
        0 => Some(scene.cluster.master.get()),
        1 | 2 => scene.cluster.racks[rack].daemon.get().map(|(daemon, _)| daemon),
        3 => scene.cluster.racks[rack].daemon.get().map(|(_, fabric)| fabric),
        _ => scene.pick_client(rng).map(|client| scene.process_of(client)),
    }
}
