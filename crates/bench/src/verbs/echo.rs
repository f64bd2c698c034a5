//! ECHO: a request of some bytes that the target's application answers with as many (HERD §3.2.2).
//! Its thread looks without pause, at messages or at slots in memory as HERD's server does. The
//! answer is a SEND, or a WRITE into slots of the client's memory, which looks there as well.

use super::rig::{ConnectedEndpoint, Mesh, Node, at};
use crate::run::BenchError;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, Mem, PeerId, Sge, Verb, WorkRequest};
use rackpool_fabric::{Endpoint, LocalBuffers, Target};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::Window;
use rackpool_stats::histogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How an ECHO's request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// SEND: the application is handed a message.
    Send,
    /// WRITE_IMM: the application is told that something was written.
    WriteImm,
    /// WRITE: the application looks into memory, as HERD's server.
    Write,
}

/// How many echoes are measured.
#[derive(Clone, Copy, Debug)]
pub struct EchoLoad {
    /// Bytes of a request and of its answer.
    pub bytes: u64,
    /// Echoes under way.
    pub windows: u64,
    /// How long they are asked for, and how many at least.
    pub time: Duration,
    pub least: u64,
}

/// Bytes of a slot; its last word says that it was written.
const SLOT_BYTES: u64 = 64;
/// Looks in vain after which the processor is given away once.
const LOOKS_PER_YIELD: u32 = 256;
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Where in a slot something of `bytes` is written: at its end.
const fn place(slot: u64, bytes: u64) -> u64 {
    (slot + 1) * SLOT_BYTES - bytes
}

/// Slots of a page, taken in their order, as they are written: one that comes early waits for those
/// before it.
struct Slots<'a> {
    pages: &'a Window,
    bytes: u64,
    windows: u64,
    next: u64,
}

impl Slots<'_> {
    /// Takes the next one, if it was written; which one it was.
    fn take(&mut self, to: &mut [u8]) -> Option<u64> {
        let (slot, last_word) = (self.next, place(self.next, 8));
        if self.windows == 0 || self.pages.load(last_word) == 0 {
            return None;
        }
        self.pages.copy_out(place(slot, self.bytes), to);
        self.pages.store(last_word, 0);
        self.next = (slot + 1) % self.windows;
        Some(slot)
    }
}

/// The thread's loop at the target, which answers by SEND.
fn serve(node: &Node, target: &Target, bytes: usize, windows: u64, is_over: &AtomicBool) {
    let (mut events, mut answer) = (Vec::new(), vec![0; bytes]);
    let (pages, client) = (&node.pages, node.clients.first());
    let mut slots = Slots { pages, bytes: bytes as u64, windows, next: 0 };
    // Relaxed: nothing but the end is told.
    while !is_over.load(Ordering::Relaxed) {
        let mut moved = target.poll(&mut events) > 0;
        for event in events.drain(..) {
            match event {
                // A client that misses an answer waits, and says so.
                FabricEvent::Received { peer, message } => drop(target.send(peer, &message)),
                FabricEvent::ReceivedImm { peer, imm } => {
                    pages.copy_out(u64::from(imm) * SLOT_BYTES, &mut answer);
                    let _ = target.send(peer, &answer);
                }
                _ => {}
            }
        }
        while slots.take(&mut answer).is_some() {
            if let Some(peer) = client {
                let _ = target.send(*peer, &answer);
            }
            moved = true;
        }
        if !moved {
            std::thread::yield_now();
        }
    }
}

/// The same of one that answers by WRITE, with an endpoint of its own.
fn serve_by_write<E: LocalBuffers>(
    mut slots: Slots<'_>,
    endpoint: &mut ConnectedEndpoint<E>,
    is_over: &AtomicBool,
) {
    let (mut events, mut answer) = (Vec::new(), vec![0; slots.bytes as usize]);
    // Relaxed: nothing but the end is told.
    while !is_over.load(Ordering::Relaxed) {
        endpoint.end.poll(monotonic_ns(), &mut events);
        events.clear();
        let Some(slot) = slots.take(&mut answer) else {
            std::thread::yield_now();
            continue;
        };
        // Its place in the buffer is free: what was there before has arrived, since the client has
        // asked again.
        let offset = place(slot, slots.bytes);
        endpoint.end.buffer_mut(endpoint.buf)[offset as usize..][..answer.len()]
            .copy_from_slice(&answer);
        let local = [Sge { buf: endpoint.buf, offset, bytes: slots.bytes }];
        let work =
            WorkRequest { id: 0, verb: Verb::Write(at(offset)), local: &local, signalled: false };
        // Relaxed: as above.
        while endpoint.end.post(endpoint.peers[0], &[work]).is_err()
            && !is_over.load(Ordering::Relaxed)
        {
            endpoint.end.poll(monotonic_ns(), &mut events);
            events.clear();
        }
    }
}

/// Echoes answered by SEND; each one's time is recorded if only one is under way. Echoes a second.
pub fn rate(
    mesh: &mut Mesh<Endpoint>,
    request: Request,
    load: EchoLoad,
    latency: &mut Histogram,
) -> Result<f64, BenchError> {
    let node = &mesh.nodes[0];
    let target = node.target.as_ref().expect("mapped racks echo nothing");
    let endpoint = &mut mesh.endpoints[0];
    let (peer, is_over) = (endpoint.peers[0], AtomicBool::new(false));
    let watched = if request == Request::Write { load.windows } else { 0 };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(node, target, load.bytes as usize, watched, &is_over));
        let echo = Echo { request, load, peer };
        let received = |events: &mut Vec<FabricEvent>| {
            let is_answer = |event: &FabricEvent| matches!(event, FabricEvent::Received { .. });
            events.drain(..).filter(is_answer).count() as u64
        };
        let rate = echo.run(&mut endpoint.end, endpoint.buf, received, latency);
        // Relaxed: as above.
        is_over.store(true, Ordering::Relaxed);
        rate
    })
}

/// The same of requests by WRITE that are answered by WRITE. `back` is the way of the answers: the
/// server's endpoint, connected to memory of the client.
pub fn rate_by_writes<E: LocalBuffers + Send>(
    there: &mut Mesh<E>,
    back: &mut Mesh<E>,
    load: EchoLoad,
    latency: &mut Histogram,
) -> Result<f64, BenchError> {
    let [asked, mut answered] = [&there.nodes[0], &back.nodes[0]].map(|node| {
        let pages = &node.pages;
        Slots { pages, bytes: load.bytes, windows: load.windows, next: 0 }
    });
    let (endpoint, answering) = (&mut there.endpoints[0], &mut back.endpoints[0]);
    let (is_over, mut answer) = (AtomicBool::new(false), vec![0; load.bytes as usize]);
    std::thread::scope(|scope| {
        scope.spawn(|| serve_by_write(asked, answering, &is_over));
        let echo = Echo { request: Request::Write, load, peer: endpoint.peers[0] };
        let written = |events: &mut Vec<FabricEvent>| {
            events.clear();
            std::iter::from_fn(|| answered.take(&mut answer)).count() as u64
        };
        let rate = echo.run(&mut endpoint.end, endpoint.buf, written, latency);
        // Relaxed: as above.
        is_over.store(true, Ordering::Relaxed);
        rate
    })
}

struct Echo {
    request: Request,
    load: EchoLoad,
    peer: PeerId,
}

impl Echo {
    /// `answers` takes the events of a poll, and says how many answers have come since.
    fn run<E: Fabric>(
        &self,
        end: &mut E,
        buf: BufId,
        mut answers: impl FnMut(&mut Vec<FabricEvent>) -> u64,
        latency: &mut Histogram,
    ) -> Result<f64, BenchError> {
        let EchoLoad { bytes, windows, time, least } = self.load;
        let (start, mut sent, mut done) = (Instant::now(), 0u64, 0u64);
        let (mut events, mut last) = (Vec::new(), Instant::now());
        let (mut one, mut looks) = (Instant::now(), 0u32);
        while done < least || start.elapsed() < time {
            while sent - done < windows {
                let slot = sent % windows;
                // The slot's last word is not 0: the buffer is full of something else.
                let offset = place(slot, bytes);
                let local = [Sge { buf, offset, bytes }];
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
            end.poll(monotonic_ns(), &mut events);
            looks += 1;
            let count = answers(&mut events);
            if count > 0 {
                (done, last, looks) = (done + count, Instant::now(), 0);
                if windows == 1 {
                    latency.record(one.elapsed().as_nanos() as u64);
                }
            }
            if last.elapsed() > SILENCE_MAX {
                let (end, waited_s) = ("an echo's target".into(), SILENCE_MAX.as_secs());
                return Err(BenchError::Silent { end, waited_s });
            }
            // An end that shares the processor with the other gives way to it.
            if looks.is_multiple_of(LOOKS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        // Nothing is under way when the next one begins.
        while done < sent && last.elapsed() < SILENCE_MAX {
            end.poll(monotonic_ns(), &mut events);
            done += answers(&mut events);
            std::thread::yield_now();
        }
        Ok(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig;
    use super::*;
    use rackpool_fabric::{FabricOptions, FabricStats, Over};

    /// 16 echoes under way at a time, then 100 alone: how many operations each of the two ends
    /// made for those 100.
    fn operations<E: LocalBuffers + Send>(
        make: impl Fn() -> Mesh<E>,
        stats: impl Fn(&E) -> FabricStats,
    ) -> [u64; 2] {
        let mut meshes = [make(), make()];
        let mut latency = Histogram::new();
        let mut counts = [[0; 2]; 2];
        for (round, (windows, least)) in counts.iter_mut().zip([(16, 500), (1, 100)]) {
            let [there, back] = &mut meshes;
            let load = EchoLoad { bytes: 32, windows, time: Duration::ZERO, least };
            let rate = rate_by_writes(there, back, load, &mut latency).unwrap();
            assert!(rate > 0.0);
            // All has arrived; an end may be told of it a little later.
            let (mut events, start) = (Vec::new(), Instant::now());
            while start.elapsed() < Duration::from_millis(100) {
                meshes
                    .iter_mut()
                    .for_each(|mesh| _ = mesh.endpoints[0].end.poll(monotonic_ns(), &mut events));
            }
            *round = [0, 1].map(|end: usize| stats(&meshes[end].endpoints[0].end).ops);
            for mesh in &meshes {
                let pages = &mesh.nodes[0].pages;
                assert!((0..windows).all(|slot| pages.load(place(slot, 8)) == 0), "all taken");
                let mut bytes = [0; 24];
                pages.copy_out(place(windows - 1, 32), &mut bytes);
                assert_eq!(bytes, [0x5a; 24], "what was asked is what was answered");
            }
        }
        assert_eq!(latency.summary().n, 100);
        [0, 1].map(|end: usize| counts[1][end] - counts[0][end])
    }

    #[test]
    fn an_echo_by_writes_is_one_write_there_and_one_back() {
        assert_eq!(operations(|| rig::mapped(1, 1).unwrap(), |end| end.stats()), [100, 100]);
        let tcp = FabricOptions { over: Over::Tcp, ..FabricOptions::default() };
        let make = || rig::connected(1, 1, &tcp).unwrap();
        assert_eq!(operations(make, |end| end.stats()), [100, 100]);
    }
}
