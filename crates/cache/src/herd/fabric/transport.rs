//! A client's way to a server over a fabric: requests by WRITE out of a registered buffer that has
//! the slots of the client's frame, replies by SEND into reply slots of its own, as if they had
//! been written there.
//!
//! The buffer of a slot is not changed before its request was answered, so that it can be written
//! again. What is posted is not signalled: a reply says that its request arrived.

use super::super::error::{Error, Result};
use super::super::geometry::Geometry;
use super::super::handshake::{Hello, Welcome};
use super::super::message::{Head, reply_number, request_number};
use super::super::slot;
use super::super::transport::{Lane, Transport, WELCOME_WITHIN};
use super::Wire;
use super::messages::{self, BELL_BYTES, FabricReply, Grant};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_mem::window::Window;
use std::ops::RangeInclusive;
use std::time::Duration;
use zerocopy::IntoBytes;

/// What a server thread has said, and whether it still has to be rung.
#[derive(Clone, Copy, Default)]
struct BellState {
    is_watching: bool,
    owes_bell: bool,
}

/// The server's frame of an admitted client.
#[derive(Clone, Copy)]
#[cfg(any(test, feature = "verbs"))]
pub(in crate::herd) struct Frame {
    pub client: u32,
    pub geometry: Geometry,
    pub at: RemoteAddr,
}

/// A connection of a fabric.
pub struct FabricTransport<W> {
    wire: W,
    peer: PeerId,
    #[cfg_attr(not(any(test, feature = "verbs")), expect(dead_code, reason = "a datagram has it"))]
    client: u32,
    geometry: Geometry,
    grant: Grant,
    /// The slots of all threads, as in the frame.
    requests: BufId,
    /// Of each slot, where the sealed message in it begins.
    starts: Vec<u64>,
    /// A doorbell for each thread.
    bells: BufId,
    replies: Vec<Window>,
    watches: Vec<BellState>,
    events: Vec<FabricEvent>,
    /// When it was pumped last.
    now_ns: u64,
    is_gone: bool,
}

impl<W: Wire> FabricTransport<W> {
    /// Waits for the welcome; the sizes and the seed of the hash that says which thread a key
    /// belongs to.
    pub(super) fn connect(
        mut wire: W,
        peer: PeerId,
        windows: u32,
    ) -> Result<(FabricTransport<W>, Geometry, u64)> {
        let message = ask(&mut wire, peer, Hello::new(windows).as_bytes())?;
        let (welcome, grant) = messages::split_welcome(&message);
        let (welcome, geometry) = Welcome::read(welcome, windows)?;
        let grant = grant.ok_or(Error::Corrupt { what: "the place of the request slots" })?;
        let slots = geometry.servers as usize * geometry.windows as usize;
        let bells = (0..geometry.servers).flat_map(u32::to_le_bytes).collect();
        let lane_bytes = u64::from(geometry.windows) * geometry.slot_bytes();
        let far = FabricTransport {
            requests: wire.register(vec![0; geometry.bytes() as usize])?,
            bells: wire.register(bells)?,
            now_ns: wire.now_ns(),
            wire,
            peer,
            client: welcome.client,
            geometry,
            grant,
            starts: vec![0; slots],
            replies: (0..geometry.servers).map(|_| Window::heap(lane_bytes)).collect(),
            watches: vec![BellState::default(); geometry.servers as usize],
            events: Vec::new(),
            is_gone: false,
        };
        Ok((far, geometry, welcome.seed))
    }

    /// The endpoint: for its counters.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn frame(&self) -> Frame {
        let at = RemoteAddr { offset: self.grant.offset, key: Generation(self.grant.key) };
        Frame { client: self.client, geometry: self.geometry, at }
    }

    /// The slot of a request of a thread, counted over all threads.
    fn slot(&self, server: u32, number: u64) -> usize {
        self.geometry.slot(server, 0, number - 1) as usize
    }

    /// Writes these requests under one doorbell; the last rings if it is to.
    fn write(&mut self, server: u32, numbers: RangeInclusive<u64>, rings: bool) -> Result<()> {
        let last = *numbers.end();
        let piece = |number: u64| {
            let slot = self.slot(server, number);
            let end = (slot as u64 + 1) * self.geometry.slot_bytes();
            let start = self.starts[slot];
            [Sge { buf: self.requests, offset: start, bytes: end - start }]
        };
        let grant = self.grant;
        let posted = if numbers.start() == numbers.end() {
            let local = piece(last);
            self.wire.post(self.peer, &[write_of(grant, last, &local, rings.then_some(server))])
        } else {
            let pieces: Vec<_> = numbers.clone().map(piece).collect();
            let works = numbers.zip(&pieces).map(|(number, local)| {
                let bell = (rings && number == last).then_some(server);
                write_of(grant, number, local, bell)
            });
            let works: Vec<_> = works.collect();
            self.wire.post(self.peer, &works)
        };
        self.check(posted)
    }

    fn check(&mut self, posted: std::result::Result<(), (usize, PostError)>) -> Result<()> {
        match posted {
            Ok(()) => Ok(()),
            // What was not posted is written by the next reminder.
            Err((_, PostError::Busy)) => Err(Error::Busy { windows: self.geometry.windows }),
            Err((_, PostError::Down)) => Err(Error::Gone),
        }
    }

    /// Rings at threads that stopped to watch while requests were on their way.
    fn ring_owed(&mut self) {
        for server in 0..self.watches.len() {
            if !self.watches[server].owes_bell {
                continue;
            }
            let offset = (server * BELL_BYTES) as u64;
            let bell = Sge { buf: self.bells, offset, bytes: BELL_BYTES as u64 };
            // A full queue: at the next look.
            self.watches[server].owes_bell = send(&mut self.wire, self.peer, bell).is_err();
        }
    }

    /// Takes what the server sent.
    fn take(&mut self, message: &[u8], lanes: &[Lane]) -> Result<()> {
        let corrupt = Error::Corrupt { what: "a message" };
        let Some((reply, value)) = FabricReply::read(message, &self.geometry) else {
            return Err(corrupt);
        };
        let lane = &lanes[reply.server as usize];
        let watch = &mut self.watches[reply.server as usize];
        watch.is_watching = reply.is_watched;
        let Some(mut head) = reply.head else {
            watch.owes_bell = lane.is_waiting() && !reply.is_watched;
            return Ok(());
        };
        // Its low half gives the distance from the last one that was taken.
        let beyond = ((head.number >> 1) as u32).wrapping_sub(lane.answered as u32) as i32;
        // It comes a second time after a reminder.
        if beyond <= 0 {
            return Ok(());
        }
        let place = lane.answered + beyond as u64;
        let windows = u64::from(self.geometry.windows);
        if place > lane.submitted || (place - 1) % windows != u64::from(reply.window) {
            return Err(corrupt);
        }
        head.number = reply_number(request_number(place));
        let at = u64::from(reply.window) * self.geometry.slot_bytes();
        slot::publish_parts(&self.replies[reply.server as usize], at, &head, &[], value);
        Ok(())
    }
}

#[cfg(feature = "verbs")]
impl FabricTransport<super::Rdma> {
    /// Takes the way by devices; nothing was asked yet. Blocks for 5 s at most.
    pub(super) fn take_way(&mut self, options: &super::RdmaOptions) -> Result<()> {
        let frame = self.frame();
        self.wire.take_way(self.peer, frame, options)
    }
}

impl<W: Wire> Transport for FabricTransport<W> {
    const POLLS_MAX: u32 = 1;
    // Each reads a clock.
    const POLLS_PER_CLOCK: u32 = 1;
    const LOOKS_EAGER: u32 = 0;

    fn publish(&mut self, server: u32, at: u64, head: &Head, key: &[u8], value: &[u8]) {
        let slot_bytes = self.geometry.slot_bytes();
        let begin = self.geometry.offset(server, 0, 0) + at;
        let slots = self.wire.buffer_mut(self.requests);
        let slot = &mut slots[begin as usize..(begin + slot_bytes) as usize];
        let start = begin + slot::seal_into(slot, head, key, value) as u64;
        self.starts[(begin / slot_bytes) as usize] = start;
    }

    fn ring(&mut self, server: u32, lane: &Lane) -> Result<()> {
        let rings = !self.watches[server as usize].is_watching;
        self.write(server, lane.rung + 1..=lane.submitted, rings)
    }

    fn remind(&mut self, server: u32, lane: &Lane) -> Result<()> {
        match self.write(server, lane.answered + 1..=lane.submitted, true) {
            // It is on its way already.
            Err(Error::Busy { .. }) => Ok(()),
            written => written,
        }
    }

    fn pump(&mut self, lanes: &[Lane]) -> Result<()> {
        self.now_ns = self.wire.now_ns();
        self.wire.poll(self.now_ns, &mut self.events);
        let mut events = std::mem::take(&mut self.events);
        let mut taken = Ok(());
        for event in events.drain(..) {
            match event {
                FabricEvent::Received { message, .. } if taken.is_ok() => {
                    taken = self.take(&message, lanes);
                }
                // Its key is revoked: the server has closed the connection.
                FabricEvent::Completed { status: WorkStatus::BadKey, .. }
                | FabricEvent::Closed { .. } => self.is_gone = true,
                _ => {}
            }
        }
        self.events = events;
        taken?;
        if self.is_gone {
            return Err(Error::Gone);
        }
        self.ring_owed();
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn replies(&self, server: u32) -> &Window {
        &self.replies[server as usize]
    }

    fn is_gone(&mut self) -> bool {
        self.is_gone
    }

    fn sleep(&mut self, timeout: Duration, is_ready: impl Fn(&Self) -> bool) -> Result<()> {
        if !is_ready(self) && self.events.is_empty() {
            let deadline = self.wire.now_ns() + timeout.as_nanos() as u64;
            // What has come is taken by the look that follows.
            self.wire.wait(deadline, &mut self.events);
        }
        Ok(())
    }
}

/// The WRITE of a slot; with the number of a server thread it rings there.
fn write_of(grant: Grant, id: u64, local: &[Sge; 1], bell: Option<u32>) -> WorkRequest<'_> {
    let at = RemoteAddr { offset: grant.offset + local[0].offset, key: Generation(grant.key) };
    let verb = bell.map_or(Verb::Write(at), |server| Verb::WriteImm(at, server));
    WorkRequest { id, verb, local, signalled: false }
}

/// Sends a message out of a registered buffer.
pub(super) fn send(
    fabric: &mut impl Fabric,
    peer: PeerId,
    message: Sge,
) -> std::result::Result<(), PostError> {
    let work = WorkRequest { id: 0, verb: Verb::Send, local: &[message], signalled: false };
    fabric.post(peer, &[work]).map_err(|(_, error)| error)
}

/// Sends a message and waits for the answer, 5 s at most.
pub(super) fn ask(wire: &mut impl Wire, peer: PeerId, message: &[u8]) -> Result<Vec<u8>> {
    let buf = wire.register(message.to_vec())?;
    let message = Sge { buf, offset: 0, bytes: message.len() as u64 };
    send(wire, peer, message).map_err(|_| Error::Gone)?;
    let start_ns = wire.now_ns();
    let deadline_ns = start_ns + WELCOME_WITHIN.as_nanos() as u64;
    let mut events = Vec::new();
    loop {
        wire.wait(deadline_ns, &mut events);
        for event in events.drain(..) {
            match event {
                FabricEvent::Received { peer: from, message } if from == peer => {
                    return Ok(message);
                }
                FabricEvent::Closed { .. } => return Err(Error::Gone),
                _ => {}
            }
        }
        let now_ns = wire.now_ns();
        if now_ns >= deadline_ns {
            let waited_ms = (now_ns - start_ns) / 1_000_000;
            return Err(Error::Silent { waited_ms, reminders: 0 });
        }
    }
}
