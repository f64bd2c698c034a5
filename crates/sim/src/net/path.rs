//! The way of a packet: from the work request to the other card's receive engine. Costs and
//! faults are here; order and repetition are in `reliable`.

use super::connection::Stream;
use super::node::Engine;
use super::{Connection, EndpointId, Net, NetEvent, Packet, Sink};
use crate::time::Ps;
use rackpool_core::constants::{FABRIC_OP_BYTES_MAX, FABRIC_SGES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{Exposure, PeerId, PostError, Verb, WorkRequest, WorkStatus};

/// What a work request begins with, bytes: control, and the place or peer it goes to.
const HEADER_SEND: u64 = 16;
const HEADER_ONE_SIDED: u64 = 32;
const HEADER_ATOMIC: u64 = 48;
const HEADER_DATAGRAM: u64 = 64;
const PIECE: u64 = 16;
/// Programmed I/O writes whole lines; each line with inline payload begins with its length.
const LINE: u64 = 64;
const INLINE_LENGTH: u64 = 4;

/// Lines of 64 bytes that the processor writes for a work request: with so many bytes inline, or
/// naming so many pieces.
pub fn lines(verb: Verb, datagram: bool, inline_bytes: Option<u64>, pieces: u64) -> u64 {
    let header = match verb {
        Verb::Send if datagram => HEADER_DATAGRAM,
        Verb::Send => HEADER_SEND,
        Verb::Read(_) | Verb::Write(_) | Verb::WriteImm(..) => HEADER_ONE_SIDED,
        Verb::Cas { .. } | Verb::FetchAdd { .. } => HEADER_ATOMIC,
    };
    let Some(bytes) = inline_bytes else {
        return (header + PIECE * pieces.max(1)).div_ceil(LINE);
    };
    let first = (LINE - header).saturating_sub(INLINE_LENGTH);
    1 + bytes.saturating_sub(first).div_ceil(LINE - INLINE_LENGTH)
}

impl Net {
    pub(super) fn post_batch(
        &mut self,
        now: Ps,
        endpoint: EndpointId,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
        exposed: Option<Exposure>,
        sink: &mut impl Sink,
    ) -> Result<(), (usize, PostError)> {
        let (pair, side) = self.endpoints[endpoint.0 as usize].peers[peer.0 as usize];
        let kind = self.pairs[pair as usize].kind;
        let limit = self.profile.rnic.send_queue.0 as usize;
        for (index, work) in batch.iter().enumerate() {
            let end = &mut self.pairs[pair as usize].sides[side as usize];
            if !end.is_usable() {
                return Err((index, PostError::Down));
            }
            if end.queue.len() >= limit {
                return Err((index, PostError::Busy));
            }
            let token = self.operations.insert(work.verb, work.id);
            end.queue.push_back(token);
            self.operations[token].exposed = exposed;
            self.fill(token, pair, side, work);
            let operation = &mut self.operations[token];
            operation.refs += 1;
            let at = match kind {
                Connection::Stream => now,
                _ => {
                    let inline = operation.inline.then_some(operation.bytes);
                    let pieces = u64::from(operation.local_count);
                    let count = lines(work.verb, kind == Connection::Datagram, inline, pieces);
                    self.write_lines(now, endpoint, count)
                }
            };
            let operation = &mut self.operations[token];
            if operation.inline && operation.bytes > 0 {
                let pieces = operation.local;
                let count = operation.local_count as usize;
                sink.read_local(endpoint, &pieces[..count], &mut operation.payload);
            }
            sink.schedule(at, NetEvent::Transmit { token });
        }
        Ok(())
    }

    fn write_lines(&mut self, now: Ps, endpoint: EndpointId, count: u64) -> Ps {
        let index = self.endpoints[endpoint.0 as usize].node.0 as usize;
        let node = &mut self.nodes[index];
        let service = node.stretch(self.profile.pcie.pio_lines.service.times(count));
        let (_, end) = node.lines.serve(now, service);
        end + self.profile.pcie.doorbell
    }

    fn fill(&mut self, token: u32, pair: u32, side: u8, work: &WorkRequest<'_>) {
        assert!(work.local.len() <= FABRIC_SGES_MAX, "{} pieces", work.local.len());
        let kind = self.pairs[pair as usize].kind;
        let operation = &mut self.operations[token];
        let atomic = matches!(work.verb, Verb::Cas { .. } | Verb::FetchAdd { .. });
        let bytes = match atomic {
            true => 8,
            false => work.local.iter().map(|piece| piece.bytes).sum(),
        };
        operation.bytes = bytes;
        operation.is_reliable = kind == Connection::Reliable;
        operation.local[..work.local.len()].copy_from_slice(work.local);
        operation.local_count = work.local.len() as u8;
        operation.signalled = work.signalled;
        (operation.pair, operation.side) = (pair, side);
        let carries = matches!(work.verb, Verb::Write(_) | Verb::WriteImm(..) | Verb::Send);
        let end = &self.pairs[pair as usize].sides[side as usize];
        let endpoint = end.endpoint.expect("only processes post");
        let inline_max = self.endpoints[endpoint.0 as usize].inline_max.0;
        operation.inline = carries && (bytes <= inline_max || kind == Connection::Stream);
        let limit = match (work.verb, kind) {
            (Verb::Send, Connection::Datagram) => self.profile.link.mtu.0,
            (Verb::Send, _) if operation.exposed.is_some() => FABRIC_OP_BYTES_MAX,
            (Verb::Send, _) => u64::from(MESSAGE_BYTES_MAX),
            _ => FABRIC_OP_BYTES_MAX,
        };
        let supported = match kind {
            Connection::Reliable | Connection::Stream => true,
            Connection::Unreliable => carries,
            Connection::Datagram => work.verb == Verb::Send,
        };
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        operation.sequence = end.next_sequence;
        if bytes > limit || !supported {
            (operation.done, operation.inline) = (true, false);
            operation.outcome = WorkStatus::BadRange;
        } else {
            end.next_sequence += 1;
        }
    }

    /// Reschedules `event` if its node stands still, and says whether.
    pub(super) fn is_paused(
        &mut self,
        now: Ps,
        node: usize,
        event: NetEvent,
        sink: &mut impl Sink,
    ) -> bool {
        let until = self.nodes[node].paused_until;
        if until > now {
            sink.schedule(until, event);
        }
        until > now
    }

    pub(super) fn on_transmit(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &self.operations[token];
        let (pair, side) = (operation.pair, operation.side);
        let node = self.pairs[pair as usize].sides[side as usize].node.0 as usize;
        if self.is_paused(now, node, NetEvent::Transmit { token }, sink) {
            return;
        }
        if !self.operations[token].queued || !self.nodes[node].up {
            return self.release(token);
        }
        if self.operations[token].done {
            self.complete_front(now, now, pair, side, sink);
            return self.release(token);
        }
        let limited = self.pairs[pair as usize].kind == Connection::Reliable;
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        let operation = &mut self.operations[token];
        let limit = self.profile.rnic.reads_per_connection.0 as u32;
        let full = limited && operation.is_read_or_atomic() && end.reads >= limit;
        if end.stalled || full {
            end.stalled = true;
            operation.waiting = true;
            return self.release(token);
        }
        self.transmit(now, token, sink);
    }

    /// Puts a request on its way. Keeps the caller's reference for the next event.
    pub(super) fn transmit(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &mut self.operations[token];
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        let kind = self.pairs[pair].kind;
        let end = &mut self.pairs[pair].sides[side];
        if operation.is_read_or_atomic() && !operation.reading {
            operation.reading = true;
            end.reads += 1;
        }
        (operation.sent, operation.waiting) = (true, false);
        if end.queue.front() == Some(&token) {
            end.progress = end.progress.max(now);
        }
        if kind == Connection::Stream {
            return self.send_stream(now, Packet { token, index: 0, answer: false }, sink);
        }
        let index = end.node.0 as usize;
        let node = &mut self.nodes[index];
        let mut service = match operation.verb {
            Verb::Read(_) => self.profile.rnic.out_read,
            Verb::Write(_) | Verb::WriteImm(..) => self.profile.rnic.out_write,
            Verb::Send if kind == Connection::Datagram => self.profile.rnic.out_datagram,
            Verb::Send => self.profile.rnic.out_send,
            Verb::Cas { .. } | Verb::FetchAdd { .. } => self.profile.rnic.out_atomic,
        }
        .service;
        // All datagrams of a process share one queue pair, which is always in use.
        if kind != Connection::Datagram {
            let name = 2 * pair as u32 + side as u32;
            if !node.cache.touch(name, &mut end.cache_slot) {
                service += self.profile.rnic.qp_miss_out;
            }
        }
        let is_fetched = operation.carries_payload() && !operation.inline;
        if is_fetched {
            service = service.max(self.profile.rnic.out_fetched.service);
        }
        let sent = node.pass(Engine::Send, now, service, self.profile.rnic.message);
        if is_fetched || end.fetching > 0 {
            // Whatever follows a payload that is being fetched leaves after it.
            end.fetching += 1;
            return sink.schedule(sent, NetEvent::Fetch { token });
        }
        self.depart(sent + self.profile.rnic.send_delay, token, sink);
    }

    fn depart(&mut self, ready: Ps, token: u32, sink: &mut impl Sink) {
        // A repeated request goes on where the target is, or recalls the answer by its end.
        let count = self.packets(token, false);
        let operation = &self.operations[token];
        let index = operation.arrived.min(count - 1);
        let end = &mut self.pairs[operation.pair as usize].sides[operation.side as usize];
        let at = ready.max(end.last_departure);
        end.last_departure = at;
        sink.schedule(at, NetEvent::Link(Packet { token, index, answer: false }));
    }

    pub(super) fn on_fetch(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &mut self.operations[token];
        let end = &mut self.pairs[operation.pair as usize].sides[operation.side as usize];
        let index = end.node.0 as usize;
        if self.nodes[index].paused_until > now {
            return sink.schedule(self.nodes[index].paused_until, NetEvent::Fetch { token });
        }
        end.fetching -= 1;
        if !operation.queued || !self.nodes[index].up {
            return self.release(token);
        }
        let mut ready = now + self.profile.rnic.send_delay;
        if operation.carries_payload() && !operation.inline {
            let endpoint = end.endpoint.expect("only processes post");
            operation.payload.clear();
            let (pieces, count) = (operation.local, operation.local_count as usize);
            sink.read_local(endpoint, &pieces[..count], &mut operation.payload);
            let first = operation.bytes.min(self.profile.link.mtu.0);
            let node = &mut self.nodes[index];
            let service = node.stretch(self.profile.pcie.bandwidth.time(first));
            let (_, fetched) = node.fetch.serve(now, service);
            ready = fetched + self.profile.pcie.dma_read + self.profile.rnic.send_delay;
        }
        self.depart(ready, token, sink);
    }

    /// Packets of the request, or of the answer.
    pub(super) fn packets(&self, token: u32, answer: bool) -> u32 {
        let operation = &self.operations[token];
        let data = operation.is_read() == answer;
        if !data || self.pairs[operation.pair as usize].kind == Connection::Stream {
            return 1;
        }
        let mtu = self.profile.link.mtu.0;
        // Most fit into one: no division for them.
        if operation.bytes <= mtu { 1 } else { operation.bytes.div_ceil(mtu) as u32 }
    }

    pub(super) fn payload_bytes(&self, packet: Packet) -> u64 {
        let operation = &self.operations[packet.token];
        let data = match packet.answer {
            true => operation.is_read(),
            false => operation.carries_payload(),
        };
        let mtu = self.profile.link.mtu.0;
        match data {
            true => (operation.bytes - u64::from(packet.index) * mtu).min(mtu),
            false => 0,
        }
    }

    /// Bytes of a packet on the cable.
    pub(super) fn wire_bytes(&self, packet: Packet) -> u64 {
        let operation = &self.operations[packet.token];
        let header = match self.pairs[operation.pair as usize].kind {
            Connection::Datagram => self.profile.link.datagram_header.0,
            _ => self.profile.link.header.0,
        };
        header + self.payload_bytes(packet)
    }

    /// From which node to which a packet goes.
    pub(super) fn way(&self, packet: Packet) -> (usize, usize) {
        let operation = &self.operations[packet.token];
        let sides = &self.pairs[operation.pair as usize].sides;
        let from = operation.side as usize ^ usize::from(packet.answer);
        (sides[from].node.0 as usize, sides[1 - from].node.0 as usize)
    }

    pub(super) fn on_link(&mut self, now: Ps, packet: Packet, sink: &mut impl Sink) {
        let (from, to) = self.way(packet);
        if self.is_paused(now, from, NetEvent::Link(packet), sink) {
            return;
        }
        let operation = &self.operations[packet.token];
        let withdrawn = !packet.answer && !operation.queued && operation.is_reliable;
        if !self.nodes[from].up || withdrawn {
            self.end_message(now, packet, sink);
            return self.release(packet.token);
        }
        let stream = self.stream(packet);
        match stream.next {
            Some(next) if next != packet => return stream.waiting.push_back(packet),
            _ => stream.next = Some(packet),
        }
        if !self.nodes[from].stalled.is_empty() {
            self.nodes[from].stalled.push_back(packet);
            return;
        }
        match self.room_at(now, packet, from, to) {
            None => self.launch(now, packet, sink),
            Some(at) => {
                self.counters.stalled += 1;
                self.nodes[from].stalled.push_back(packet);
                sink.schedule(at, NetEvent::Unstall { node: from as u32 });
            }
        }
    }

    fn stream(&mut self, packet: Packet) -> &mut Stream {
        let operation = &self.operations[packet.token];
        let side = operation.side as usize ^ usize::from(packet.answer);
        let sides = &mut self.pairs[operation.pair as usize].sides;
        &mut sides[side].streams[usize::from(packet.answer)]
    }

    /// The message of `packet` has left the cable or is given up: the next one's turn, at `at`.
    pub(super) fn end_message(&mut self, at: Ps, packet: Packet, sink: &mut impl Sink) {
        let stream = self.stream(packet);
        if stream.next == Some(packet) {
            stream.next = stream.waiting.pop_front();
            if let Some(next) = stream.next {
                sink.schedule(at, NetEvent::Link(next));
            }
        }
    }

    /// `None` if the switch has room for the packet, else when to ask again.
    fn room_at(&self, now: Ps, packet: Packet, from: usize, to: usize) -> Option<Ps> {
        if from == to {
            return None;
        }
        let target = &self.nodes[to];
        let bandwidth = self.profile.link.bandwidth;
        let backlog = target.port.backlog(now);
        let (needed, limit) = (self.wire_bytes(packet), self.profile.switch.buffer.0);
        let coming = target.port_reserved + needed;
        // Divided only where something waits.
        if backlog == Ps::ZERO && coming <= limit
            || bandwidth.bytes_in(backlog) + 1 + coming <= limit
        {
            return None;
        }
        // Room comes as the port sends; what is still on its way to it frees none yet.
        let room = limit.saturating_sub(target.port_reserved + needed);
        let drained = backlog.saturating_sub(bandwidth.time(room.saturating_sub(2)));
        Some(now + drained.max(bandwidth.time(needed)))
    }

    pub(super) fn on_unstall(&mut self, now: Ps, node: u32, sink: &mut impl Sink) {
        let from = node as usize;
        if self.is_paused(now, from, NetEvent::Unstall { node }, sink) {
            return;
        }
        let Some(packet) = self.nodes[from].stalled.front().copied() else { return };
        let (_, to) = self.way(packet);
        let again = match self.room_at(now, packet, from, to) {
            Some(at) => at,
            None => {
                self.nodes[from].stalled.pop_front();
                self.launch(now, packet, sink);
                self.nodes[from].cable.busy_until()
            }
        };
        if !self.nodes[from].stalled.is_empty() {
            sink.schedule(again, NetEvent::Unstall { node });
        }
    }

    /// Puts a packet on the cable; the reference goes with it.
    fn launch(&mut self, now: Ps, packet: Packet, sink: &mut impl Sink) {
        let (from, to) = self.way(packet);
        let wire = self.wire_bytes(packet);
        let service = self.profile.link.bandwidth.time(wire);
        let (start, end) = self.nodes[from].cable.serve(now, service);
        if from == to {
            sink.schedule(end, NetEvent::Arrive(packet));
        } else {
            self.nodes[to].port_reserved += wire;
            let link = &self.profile.link;
            let head = start + link.propagation + self.profile.switch.latency;
            sink.schedule(head, NetEvent::Switch(packet));
        }
        let Packet { token, index, answer } = packet;
        let count = self.packets(token, answer);
        let operation = &mut self.operations[token];
        let sender = &mut self.pairs[operation.pair as usize].sides[operation.side as usize];
        if !answer && sender.queue.front() == Some(&token) {
            sender.progress = sender.progress.max(end);
        }
        if index + 1 < count {
            operation.refs += 1;
            let next = Packet { token, index: index + 1, answer };
            let bytes = self.payload_bytes(next);
            let node = &mut self.nodes[from];
            let service = node.stretch(self.profile.pcie.bandwidth.time(bytes));
            let (_, fetched) = node.fetch.serve(now, service);
            self.stream(packet).next = Some(next);
            return sink.schedule(end.max(fetched), NetEvent::Link(next));
        }
        self.end_message(end, packet, sink);
        if !answer {
            self.was_sent(end, token, sink);
        }
    }

    pub(super) fn on_switch(&mut self, now: Ps, packet: Packet, sink: &mut impl Sink) {
        let (from, to) = self.way(packet);
        let wire = self.wire_bytes(packet);
        let target = &mut self.nodes[to];
        target.port_reserved -= wire;
        if self.is_lost(from, to) {
            return self.release(packet.token);
        }
        let service = self.profile.link.bandwidth.time(wire);
        let (_, end) = self.nodes[to].port.serve(now, service);
        let at = self.in_order(end + self.profile.link.propagation, packet);
        self.arrive_at(at, packet, sink);
    }

    /// Draws whether a packet is stopped on its way.
    pub(super) fn is_lost(&mut self, from: usize, to: usize) -> bool {
        let open = from == to || self.is_open(super::NodeId(from as u32), super::NodeId(to as u32));
        if open && self.faulty && self.rng.chance_ppm(self.faults.loss_ppm) {
            self.counters.lost += 1;
            return true;
        }
        !open
    }

    /// When a packet arrives that could at `at`: later by fault, and never before one of its own
    /// connection that was sent earlier.
    fn in_order(&mut self, mut at: Ps, packet: Packet) -> Ps {
        let operation = &self.operations[packet.token];
        let side = operation.side as usize ^ usize::from(packet.answer);
        let pair = operation.pair as usize;
        if self.faulty {
            if self.rng.chance_ppm(self.faults.delay_ppm) {
                self.counters.delayed += 1;
                at += self.rng.duration(Ps::ZERO, self.faults.delay_max);
            }
            if self.rng.chance_ppm(self.faults.reorder_ppm) {
                self.counters.reordered += 1;
                at += self.rng.duration(Ps::ZERO, self.faults.reorder_max);
            }
        }
        if self.pairs[pair].kind == Connection::Datagram {
            return at;
        }
        let last = &mut self.pairs[pair].sides[side].last_arrival;
        *last = (*last).max(at);
        *last
    }

    /// Schedules the arrival, twice if a fault wants it.
    fn arrive_at(&mut self, at: Ps, packet: Packet, sink: &mut impl Sink) {
        sink.schedule(at, NetEvent::Arrive(packet));
        if self.faulty && self.rng.chance_ppm(self.faults.duplicate_ppm) {
            self.counters.duplicated += 1;
            self.operations[packet.token].refs += 1;
            sink.schedule(at, NetEvent::Arrive(packet));
        }
    }

    /// A message over a socket: no card, no packets.
    pub(super) fn send_stream(&mut self, now: Ps, packet: Packet, sink: &mut impl Sink) {
        let (from, to) = self.way(packet);
        if !packet.answer {
            self.was_sent(now, packet.token, sink);
        }
        if self.is_lost(from, to) {
            return self.release(packet.token);
        }
        let operation = &self.operations[packet.token];
        let bytes = match packet.answer {
            true => operation.bytes,
            false if operation.carries_payload() => operation.bytes,
            false => 0,
        };
        let tcp = &self.profile.tcp;
        let at = now + tcp.message + tcp.bandwidth.time(bytes);
        let at = self.in_order(at, packet);
        self.arrive_at(at, packet, sink);
    }
}
