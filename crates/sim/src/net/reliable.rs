//! What happens at the ends: order, duplicates, effects, answers, completions and repetition.

use super::connection::is_success;
use super::node::Engine;
use super::{Connection, Executed, GRH_BYTES, Net, NetEvent, Packet, Sink};
use crate::time::Ps;
use rackpool_core::addr::Generation;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{FabricEvent, Verb, WorkStatus};

impl Net {
    /// Until a request of this kind is sent again, and how often.
    pub(super) fn retransmission(&self, kind: Connection) -> (Ps, u32) {
        match kind {
            Connection::Stream => (self.profile.tcp.retransmit, self.profile.tcp.retries.0 as u32),
            _ => (self.profile.rnic.retransmit, self.profile.rnic.retries.0 as u32),
        }
    }

    fn is_acknowledged(kind: Connection) -> bool {
        matches!(kind, Connection::Reliable | Connection::Stream)
    }

    /// The last packet of a request is on the cable.
    pub(super) fn was_sent(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &mut self.operations[token];
        let (pair, side) = (operation.pair, operation.side);
        let kind = self.pairs[pair as usize].kind;
        if Self::is_acknowledged(kind) {
            let interval = self.retransmission(kind).0;
            let end = &mut self.pairs[pair as usize].sides[side as usize];
            if !std::mem::replace(&mut end.timer, true) {
                sink.schedule(now + interval, NetEvent::Timer { connection: pair, side });
            }
        } else if operation.queued {
            operation.done = true;
            self.complete_front(now, now + self.profile.pcie.dma_write, pair, side, sink);
        }
    }

    pub(super) fn on_arrive(&mut self, now: Ps, packet: Packet, sink: &mut impl Sink) {
        let (_, to) = self.way(packet);
        if self.is_paused(now, to, NetEvent::Arrive(packet), sink) {
            return;
        }
        let operation = &self.operations[packet.token];
        let (pair, side) = (operation.pair, operation.side);
        let receiver = side ^ u8::from(!packet.answer);
        if receiver == 0 && !packet.answer {
            // The other end was up first: that it sends is its consent.
            self.on_connected(now, pair, sink);
        }
        let usable = self.pairs[pair as usize].sides[receiver as usize].is_usable();
        if !usable || !self.is_alive(pair, receiver) {
            return self.release(packet.token);
        }
        self.counters.delivered += 1;
        let at = self.receive(now, packet);
        match packet.answer {
            true => self.on_answer(now, at, packet, sink),
            false => self.on_request(at, packet, sink),
        }
    }

    /// The receive engine and DMA: when the packet can take effect.
    fn receive(&mut self, now: Ps, packet: Packet) -> Ps {
        let operation = &self.operations[packet.token];
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        if self.pairs[pair].kind == Connection::Stream {
            return now;
        }
        let bytes = self.payload_bytes(packet);
        let (_, to) = self.way(packet);
        let rnic = &self.profile.rnic;
        let mut service = rnic.packets.service;
        // A message counts once, an acknowledgement never comes this way.
        let mut share = if packet.index == 0 { rnic.message } else { Ps::ZERO };
        if !packet.answer && packet.index == 0 {
            service = match operation.verb {
                Verb::Read(_) => {
                    // What follows the first packet is fetched while that is under way.
                    let first = operation.bytes.min(self.profile.link.mtu.0);
                    let lines = first.div_ceil(64).saturating_sub(1);
                    rnic.in_read.service + rnic.in_read_line.times(lines)
                }
                Verb::Write(_) | Verb::WriteImm(..) => rnic.in_write.service,
                Verb::Send => rnic.in_send.service,
                Verb::Cas { .. } | Verb::FetchAdd { .. } => rnic.in_atomic.service,
            };
            if self.pairs[pair].kind != Connection::Datagram {
                let name = 2 * pair as u32 + (1 - side) as u32;
                let slot = &mut self.pairs[pair].sides[1 - side].cache_slot;
                if !self.nodes[to].cache.touch(name, slot) {
                    service += rnic.qp_miss_in;
                    share += rnic.qp_miss_message;
                }
            }
        }
        let node = &mut self.nodes[to];
        let taken = node.pass(Engine::Receive, now, service, share);
        let ready = taken + rnic.receive_delay;
        if bytes == 0 {
            return ready;
        }
        let service = node.stretch(self.profile.pcie.bandwidth.time(bytes));
        let (_, stored) = node.store.serve(taken, service);
        stored + rnic.receive_delay + self.profile.pcie.dma_write
    }

    fn on_request(&mut self, at: Ps, packet: Packet, sink: &mut impl Sink) {
        let Packet { token, index, .. } = packet;
        let count = self.packets(token, false);
        let operation = &mut self.operations[token];
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        let kind = self.pairs[pair].kind;
        let target = &mut self.pairs[pair].sides[1 - side];
        if operation.torn {
            return self.release(token);
        }
        match kind {
            Connection::Datagram => operation.arrived = 1,
            Connection::Unreliable if index == 0 => operation.arrived = 1,
            Connection::Unreliable if index == operation.arrived => operation.arrived += 1,
            Connection::Unreliable => {
                self.counters.gaps += 1;
                return self.release(token);
            }
            Connection::Reliable | Connection::Stream => {
                if operation.sequence < target.expected || index < operation.arrived {
                    return self.on_duplicate(at, packet, sink);
                }
                if operation.sequence > target.expected || index > operation.arrived {
                    self.counters.gaps += 1;
                    return self.release(token);
                }
                operation.arrived += 1;
                target.expected += u32::from(operation.arrived == count);
            }
        }
        if operation.arrived < count {
            return self.release(token);
        }
        let effect = match kind {
            Connection::Datagram => at,
            _ => {
                target.last_effect = target.last_effect.max(at);
                target.last_effect
            }
        };
        sink.schedule(effect, NetEvent::Execute { token });
    }

    /// A request that is here already: if it was executed, its answer is given again.
    fn on_duplicate(&mut self, at: Ps, packet: Packet, sink: &mut impl Sink) {
        self.counters.duplicates_refused += 1;
        let count = self.packets(packet.token, false);
        let operation = &self.operations[packet.token];
        if operation.executed && packet.index + 1 == count {
            self.answer(at, packet.token, sink);
        }
        self.release(packet.token);
    }

    pub(super) fn on_execute(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &self.operations[token];
        let (pair, side) = (operation.pair, operation.side);
        let target = &self.pairs[pair as usize].sides[1 - side as usize];
        let node = target.node;
        if self.is_paused(now, node.0 as usize, NetEvent::Execute { token }, sink) {
            return;
        }
        let target = &mut self.pairs[pair as usize].sides[1 - side as usize];
        if !target.is_usable() || !self.nodes[node.0 as usize].up {
            return self.release(token);
        }
        if target.executing {
            target.held.push_back(token);
            return;
        }
        self.run(now, token, sink);
    }

    /// Runs an operation; the reference goes with it.
    fn run(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &mut self.operations[token];
        self.counters.executed += 1;
        self.counters.executed_again += u64::from(operation.executed);
        if operation.verb == Verb::Send {
            return self.receive_message(now, token, sink);
        }
        operation.executing = true;
        let key = operation.at().map_or(Generation(0), |at| at.key);
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        let target = &mut self.pairs[pair].sides[1 - side];
        target.executing = true;
        self.nodes[target.node.0 as usize].executing.push((token, key));
        sink.execute(now, target.node, token);
    }

    fn receive_message(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let mut message = self.operations.spare();
        let operation = &mut self.operations[token];
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        let datagram = self.pairs[pair].kind == Connection::Datagram;
        let sender = self.pairs[pair].sides[side].node;
        let target = &self.pairs[pair].sides[1 - side];
        let peer = target.peer;
        let Some(endpoint) = target.endpoint else {
            // Memory has no process that posts receives: the sender's retries end the connection.
            self.counters.no_receive += 1;
            return self.release(token);
        };
        if datagram {
            let receives = &mut self.endpoints[endpoint.0 as usize].receives;
            if *receives == 0 {
                self.counters.no_receive += 1;
                return self.release(token);
            }
            *receives -= 1;
            message.resize(GRH_BYTES, 0);
            message[GRH_BYTES - 4..].copy_from_slice(&sender.0.to_le_bytes());
        }
        if let Some(to) = operation.exposed {
            sink.write_exposed((endpoint, peer), &to, &operation.payload);
            operation.executed = true;
            self.operations.recycle(message);
            self.answer(now, token, sink);
            return self.release(token);
        }
        message.extend_from_slice(&operation.payload);
        operation.executed = true;
        sink.deliver(now, endpoint, FabricEvent::Received { peer, message });
        self.answer(now, token, sink);
        self.release(token);
    }

    pub(super) fn on_executed(
        &mut self,
        now: Ps,
        token: u32,
        result: Executed<'_>,
        sink: &mut impl Sink,
    ) {
        let operation = &mut self.operations[token];
        if !std::mem::replace(&mut operation.executing, false) {
            return;
        }
        let (pair, side) = (operation.pair, operation.side);
        operation.executed = true;
        operation.outcome = match result {
            Executed::Data(data) => {
                assert_eq!(data.len() as u64, operation.bytes, "a READ answers all that it asks");
                operation.payload.clear();
                operation.payload.extend_from_slice(data);
                WorkStatus::Done(0)
            }
            Executed::Done => WorkStatus::Done(0),
            Executed::Old(value) => WorkStatus::Done(value),
            Executed::BadKey => WorkStatus::BadKey,
            Executed::BadRange => WorkStatus::BadRange,
        };
        let (torn, done) = (operation.torn, is_success(operation.outcome));
        let verb = operation.verb;
        let target = &mut self.pairs[pair as usize].sides[1 - side as usize];
        target.executing = false;
        let (node, endpoint, peer) = (target.node, target.endpoint, target.peer);
        let node = &mut self.nodes[node.0 as usize];
        node.executing.retain(|(other, _)| *other != token);
        if !torn {
            if let (Verb::WriteImm(_, imm), Some(endpoint), true) = (verb, endpoint, done) {
                sink.deliver(now, endpoint, FabricEvent::ReceivedImm { peer, imm });
            }
            self.answer(now, token, sink);
        }
        self.release(token);
        let node = self.pairs[pair as usize].sides[1 - side as usize].node;
        self.finish_revocations(now, node.0, sink);
        self.run_held(now, (pair, 1 - side), sink);
    }

    /// Runs what came to an end behind an operation that is done, in order: messages take no time,
    /// so several may follow.
    fn run_held(&mut self, now: Ps, (pair, side): (u32, u8), sink: &mut impl Sink) {
        loop {
            let target = &mut self.pairs[pair as usize].sides[side as usize];
            if target.executing {
                return;
            }
            let Some(next) = target.held.pop_front() else { return };
            self.run(now, next, sink);
        }
    }

    /// The process of an executor is gone: nothing that it answers counts any more.
    pub(super) fn abort_execution(&mut self, pair: u32, side: u8) {
        let target = &mut self.pairs[pair as usize].sides[side as usize];
        if !std::mem::replace(&mut target.executing, false) {
            return;
        }
        let node = target.node.0 as usize;
        let executing = std::mem::take(&mut self.nodes[node].executing);
        for (token, key) in executing {
            let operation = &mut self.operations[token];
            if operation.pair == pair && operation.side != side {
                operation.executing = false;
                self.release(token);
            } else {
                self.nodes[node].executing.push((token, key));
            }
        }
    }

    pub(super) fn on_revoked(&mut self, now: Ps, node: u32, number: u32, sink: &mut impl Sink) {
        self.nodes[node as usize].confirm_revocation(number);
        self.finish_revocations(now, node, sink);
    }

    fn finish_revocations(&mut self, now: Ps, node: u32, sink: &mut impl Sink) {
        while let Some(cookie) = self.nodes[node as usize].next_revoked() {
            sink.revoked(now, super::NodeId(node), cookie);
        }
    }

    /// Sends the answer of an executed operation; does not use up a reference.
    fn answer(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &self.operations[token];
        let pair = operation.pair as usize;
        let kind = self.pairs[pair].kind;
        if !Self::is_acknowledged(kind) {
            return;
        }
        let packet = Packet { token, index: operation.answered, answer: true };
        let (from, to) = self.way(packet);
        let data = operation.is_read() && is_success(operation.outcome) && operation.bytes > 0;
        if kind == Connection::Stream {
            self.operations[token].refs += 1;
            return self.send_stream(now, Packet { index: 0, ..packet }, sink);
        }
        if data && operation.answered < self.packets(token, true) {
            let bytes = self.payload_bytes(packet);
            let node = &mut self.nodes[from];
            let service = node.stretch(self.profile.pcie.bandwidth.time(bytes));
            let (_, fetched) = node.fetch.serve(now, service);
            let share = if packet.index == 0 { self.profile.rnic.message } else { Ps::ZERO };
            let service = self.profile.rnic.packets.service;
            let sent = node.pass(Engine::Send, now, service, share);
            let ready = (fetched + self.profile.pcie.dma_read).max(sent);
            self.operations[token].refs += 1;
            return sink.schedule(ready, NetEvent::Link(packet));
        }
        let acknowledge = self.profile.rnic.acknowledge;
        let mut at = now;
        if acknowledge > Ps::ZERO {
            at = self.nodes[from].pass(Engine::Send, now, acknowledge, Ps::ZERO);
        }
        at += self.acknowledgement(from == to);
        if operation.is_read_or_atomic() && !operation.is_read() {
            at += self.profile.pcie.dma_read;
        }
        if !self.is_lost(from, to) {
            self.operations[token].refs += 1;
            sink.schedule(at, NetEvent::Ack { token });
        }
    }

    /// The way back of an acknowledgement, in an empty network.
    fn acknowledgement(&self, loopback: bool) -> Ps {
        let link = &self.profile.link;
        let wire = link.bandwidth.time(link.header.0);
        match loopback {
            true => wire,
            false => wire + link.propagation + self.profile.switch.latency + link.propagation,
        }
    }

    pub(super) fn on_ack(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let operation = &self.operations[token];
        let (pair, side) = (operation.pair, operation.side);
        let end = &self.pairs[pair as usize].sides[side as usize];
        if self.is_paused(now, end.node.0 as usize, NetEvent::Ack { token }, sink) {
            return;
        }
        if !self.operations[token].queued || !self.is_alive(pair, side) {
            return self.release(token);
        }
        let sequence = self.operations[token].sequence;
        self.operations[token].done = true;
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        end.progress = end.progress.max(now);
        // It acknowledges what was sent before, except for what has an answer of its own.
        for earlier in &end.queue {
            let operation = &mut self.operations[*earlier];
            if operation.sequence >= sequence {
                break;
            }
            operation.done |= operation.executed && !operation.is_read_or_atomic();
        }
        let acknowledge = self.profile.rnic.acknowledge;
        let mut taken = now;
        if acknowledge > Ps::ZERO {
            let node = end.node.0 as usize;
            taken = self.nodes[node].pass(Engine::Receive, now, acknowledge, Ps::ZERO);
        }
        let at = taken + self.profile.rnic.receive_delay + self.profile.pcie.dma_write;
        self.complete_front(now, at, pair, side, sink);
        self.release(token);
    }

    /// A packet of a READ's data, or a socket's answer, is back.
    fn on_answer(&mut self, now: Ps, at: Ps, packet: Packet, sink: &mut impl Sink) {
        let Packet { token, index, .. } = packet;
        let count = self.packets(token, true);
        let operation = &mut self.operations[token];
        let (pair, side) = (operation.pair, operation.side);
        if !operation.queued || operation.done || index != operation.answered {
            self.counters.duplicates_refused += u64::from(index < operation.answered);
            self.counters.gaps += u64::from(operation.queued && index > operation.answered);
            return self.release(token);
        }
        operation.answered += 1;
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        end.progress = end.progress.max(at);
        if operation.answered == count {
            operation.done = true;
            if operation.is_read() && is_success(operation.outcome) {
                let endpoint = end.endpoint.expect("only processes post");
                sink.write_local(endpoint, operation.pieces(), &operation.payload);
            }
            self.complete_front(now, at, pair, side, sink);
        }
        self.release(token);
    }

    /// Completes what is done, in order, and lets waiting READs go on.
    pub(super) fn complete_front(
        &mut self,
        now: Ps,
        at: Ps,
        pair: u32,
        side: u8,
        sink: &mut impl Sink,
    ) {
        let (index, side_index) = (pair as usize, side as usize);
        loop {
            let end = &mut self.pairs[index].sides[side_index];
            let Some(token) = end.queue.front().copied() else { break };
            let operation = &mut self.operations[token];
            if !operation.done {
                break;
            }
            end.queue.pop_front();
            operation.queued = false;
            end.reads -= u32::from(std::mem::replace(&mut operation.reading, false));
            end.attempts = 0;
            end.last_completion = end.last_completion.max(at);
            let (status, id, peer) = (operation.outcome, operation.id, end.peer);
            if let Some(endpoint) =
                end.endpoint.filter(|_| operation.signalled || !is_success(status))
            {
                let event = FabricEvent::Completed { peer, id, status };
                sink.deliver(end.last_completion, endpoint, event);
            }
            self.release(token);
        }
        if self.pairs[index].sides[side_index].stalled {
            self.resume(now, pair, side, sink);
        }
    }

    /// Sends what the limit of READs held back, as far as it now allows.
    fn resume(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let limit = self.profile.rnic.reads_per_connection.0 as u32;
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        end.stalled = false;
        for index in 0..end.queue.len() {
            let end = &mut self.pairs[pair as usize].sides[side as usize];
            let Some(token) = end.queue.get(index).copied() else { break };
            let operation = &mut self.operations[token];
            if !operation.waiting {
                continue;
            }
            if operation.is_read_or_atomic() && end.reads >= limit {
                end.stalled = true;
                break;
            }
            operation.refs += 1;
            self.transmit(now, token, sink);
        }
    }

    pub(super) fn on_timer(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let kind = self.pairs[pair as usize].kind;
        let (interval, retries) = self.retransmission(kind);
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        end.timer = false;
        if !end.is_usable() || end.queue.is_empty() {
            return;
        }
        end.timer = true;
        let node = end.node.0 as usize;
        let due = end.progress + interval;
        if self.is_paused(now, node, NetEvent::Timer { connection: pair, side }, sink) {
            return;
        }
        let end = &mut self.pairs[pair as usize].sides[side as usize];
        if due > now {
            return sink.schedule(due, NetEvent::Timer { connection: pair, side });
        }
        let front = &mut self.operations[end.queue[0]];
        let seen = front.arrived + front.answered;
        end.attempts = if seen > front.seen { 1 } else { end.attempts + 1 };
        front.seen = seen;
        if end.attempts > retries {
            end.timer = false;
            self.miss_peer(now, pair, 1 - side, sink);
            return self.fail(now, pair, side, DeathCause::Silent, sink);
        }
        end.progress = now;
        sink.schedule(now + interval, NetEvent::Timer { connection: pair, side });
        self.repeat(now, pair, side, sink);
    }

    /// Sends all that has no answer again, in order.
    fn repeat(&mut self, now: Ps, pair: u32, side: u8, sink: &mut impl Sink) {
        let count = self.pairs[pair as usize].sides[side as usize].queue.len();
        for index in 0..count {
            let end = &self.pairs[pair as usize].sides[side as usize];
            let Some(token) = end.queue.get(index).copied() else { break };
            let operation = &mut self.operations[token];
            if operation.sent && !operation.done {
                self.counters.retried += 1;
                operation.refs += 1;
                self.transmit(now, token, sink);
            }
        }
    }

    /// The requester of a WRITE of several packets ends now: what has arrived stays written.
    pub(super) fn tear(&mut self, now: Ps, token: u32, sink: &mut impl Sink) {
        let count = self.packets(token, false);
        let operation = &mut self.operations[token];
        let one_sided = matches!(operation.verb, Verb::Write(_) | Verb::WriteImm(..));
        if !one_sided || operation.arrived == 0 || operation.arrived >= count {
            return;
        }
        let (pair, side) = (operation.pair as usize, operation.side as usize);
        let target = &self.pairs[pair].sides[1 - side];
        if self.pairs[pair].kind != Connection::Reliable || !target.is_usable() || operation.torn {
            return;
        }
        operation.torn = true;
        let bytes = u64::from(operation.arrived) * self.profile.link.mtu.0;
        operation.payload.truncate(bytes as usize);
        operation.refs += 1;
        self.counters.torn += 1;
        let node = target.node;
        if self.nodes[node.0 as usize].up {
            sink.schedule(now, NetEvent::Execute { token });
        } else {
            self.release(token);
        }
    }
}
