//! ECHO: a request of some bytes that the target's application answers with as many (HERD §3.2.2).
//! Its thread looks without pause, at messages or at slots in memory as HERD's server does.

use super::rig::{Mesh, Node, at};
use crate::histogram::Histogram;
use crate::run::BenchError;
use rackpool_core::seam::{Fabric, FabricEvent, Mem, PeerId, Sge, Verb, WorkRequest};
use rackpool_hw::fabric::{Endpoint, Target, monotonic_ns};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How an ECHO's request goes; the answer is always a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SEND: the application is handed a message.
    Send,
    /// WRITE_IMM: the application is told that something was written.
    WriteImm,
    /// WRITE: the application looks into memory, as HERD's server.
    Write,
}

/// Bytes of a slot; its last word says that it was written.
const SLOT_BYTES: u64 = 64;
/// Looks in vain after which the processor is given away once.
const LOOKS_PER_YIELD: u32 = 256;
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The thread's loop at the target.
fn serve(node: &Node, target: &Target, bytes: usize, windows: u64, is_over: &AtomicBool) {
    let (mut events, mut answer) = (Vec::new(), vec![0; bytes]);
    let (pages, client, mut next) = (&node.pages, node.clients.first(), 0);
    // Relaxed: nothing but the end is told.
    while !is_over.load(Ordering::Relaxed) {
        let mut moved = target.poll(&mut events) > 0;
        for event in events.drain(..) {
            match event {
                // Whoever misses an answer waits, and says so.
                FabricEvent::Received { peer, message } => drop(target.send(peer, &message)),
                FabricEvent::ReceivedImm { peer, imm } => {
                    pages.copy_out(u64::from(imm) * SLOT_BYTES, &mut answer);
                    let _ = target.send(peer, &answer);
                }
                _ => {}
            }
        }
        // In their order, as requests are made: one that comes early waits for those before it.
        while windows > 0 && pages.load((next + 1) * SLOT_BYTES - 8) != 0 {
            pages.store((next + 1) * SLOT_BYTES - 8, 0);
            pages.copy_out((next + 1) * SLOT_BYTES - bytes as u64, &mut answer);
            if let Some(peer) = client {
                let _ = target.send(*peer, &answer);
            }
            (next, moved) = ((next + 1) % windows, true);
        }
        if !moved {
            std::thread::yield_now();
        }
    }
}

/// Echoes with so many under way for some time, at least `least` of them; each one's time is
/// recorded if only one is under way. Echoes a second.
pub fn rate(
    mesh: &mut Mesh<Endpoint>,
    request: Request,
    (bytes, windows): (u64, u64),
    (time, least): (Duration, u64),
    latency: &mut Histogram,
) -> Result<f64, BenchError> {
    let node = &mesh.nodes[0];
    let target = node.target.as_ref().expect("mapped racks echo nothing");
    let lane = &mut mesh.lanes[0];
    let (peer, is_over) = (lane.peers[0], AtomicBool::new(false));
    let watched = if request == Request::Write { windows } else { 0 };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(node, target, bytes as usize, watched, &is_over));
        let echo = Echo { request, bytes, windows, peer };
        let rate = echo.run(&mut lane.end, lane.buf, (time, least), latency);
        // Relaxed: as above.
        is_over.store(true, Ordering::Relaxed);
        rate
    })
}

struct Echo {
    request: Request,
    bytes: u64,
    windows: u64,
    peer: PeerId,
}

impl Echo {
    fn run(
        &self,
        end: &mut Endpoint,
        buf: rackpool_core::seam::BufId,
        (time, least): (Duration, u64),
        latency: &mut Histogram,
    ) -> Result<f64, BenchError> {
        let (start, mut sent, mut done) = (Instant::now(), 0u64, 0u64);
        let (mut events, mut last) = (Vec::new(), Instant::now());
        let (mut one, mut looks) = (Instant::now(), 0u32);
        while done < least || start.elapsed() < time {
            while sent - done < self.windows {
                let slot = sent % self.windows;
                // The slot's last word is not 0: the buffer is full of something else.
                let offset = (slot + 1) * SLOT_BYTES - self.bytes;
                let local = [Sge { buf, offset, bytes: self.bytes }];
                let verb = match self.request {
                    Request::Send => Verb::Send,
                    Request::WriteImm => Verb::WriteImm(at(slot * SLOT_BYTES), slot as u32),
                    Request::Write => Verb::Write(at(offset)),
                };
                let work = WorkRequest { id: 0, verb, local: &local, signalled: false };
                one = Instant::now();
                if end.post(self.peer, &[work]).is_err() {
                    break;
                }
                sent += 1;
            }
            Fabric::poll(end, monotonic_ns(), &mut events);
            looks += 1;
            for event in events.drain(..) {
                if let FabricEvent::Received { .. } = event {
                    done += 1;
                    (last, looks) = (Instant::now(), 0);
                    if self.windows == 1 {
                        latency.record(one.elapsed().as_nanos() as u64);
                    }
                }
            }
            if last.elapsed() > SILENCE_MAX {
                let (who, waited_s) = ("an echo's target".into(), SILENCE_MAX.as_secs());
                return Err(BenchError::Silent { who, waited_s });
            }
            // Who shares the processor with the other end gives way to it.
            if looks.is_multiple_of(LOOKS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        // Nothing is under way when the next one begins.
        while done < sent && last.elapsed() < SILENCE_MAX {
            Fabric::poll(end, monotonic_ns(), &mut events);
            done += events
                .drain(..)
                .filter(|event| matches!(event, FabricEvent::Received { .. }))
                .count() as u64;
            std::thread::yield_now();
        }
        Ok(rate)
    }
}
