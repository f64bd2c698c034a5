//! From a node's access to its end: page faults, own memory, remote lines.

use super::*;
use crate::model::pages::{PAGE_LINES, PageLocation, key_of};
use crate::source::Access;

impl World {
    /// Takes the node's next access from its source and lets it begin when it is due.
    pub(super) fn fetch(&mut self, index: usize, now: Ps) {
        let node = &mut self.state.nodes[index];
        node.next = None;
        if node.taken < self.config.accesses
            && let Some(access) = self.sources[index].next()
        {
            let at = (access.at + node.shift).max(now);
            if at <= self.times.end {
                node.taken += 1;
                node.next = Some(access);
                self.queue.push(at, Event::Issue(index as u16));
            }
        }
    }

    /// The node's next access is due.
    pub(super) fn issue(&mut self, now: Ps, index: usize) -> Result<(), RunError> {
        let node = &mut self.state.nodes[index];
        if let Injection::Window(most) = self.config.injection()
            && node.flying >= most
        {
            node.stalled = Some(now);
            return Ok(());
        }
        let Access { pid, addr, write, .. } = node.next.expect("an access was due");
        node.flying += 1;
        let key = key_of(pid, addr);
        let found = node.pages.find(key);
        let (page, wait) = match found {
            Some(page) => (page, Ps::ZERO),
            None => self.fault(now, index, key)?,
        };
        let flight = self.state.flights.add(Flight {
            purpose: Purpose::Access,
            node: index as u16,
            pool: 0,
            page,
            line: (addr / 64 % u64::from(PAGE_LINES)) as u8,
            write,
            addr: 0,
            began: now,
            at_pool: now,
        });
        match wait {
            Ps::ZERO => self.begin(now, flight),
            wait => self.queue.push(now + wait, Event::Begin(flight)),
        }
        self.fetch(index, now);
        Ok(())
    }

    /// Maps a page by the page policy; its number, and how long the fault takes.
    /// Source: Rack-scale disaggregation, §IV.
    fn fault(&mut self, now: Ps, index: usize, key: u64) -> Result<(u32, Ps), RunError> {
        let order = self.config.placement.order;
        let node = &mut self.state.nodes[index];
        let is_own_turn = !node.is_others_turn;
        node.is_others_turn = is_own_turn;
        let mut wait = Ps::ns(self.times.costs.fault_ns);
        let own_first = order.own_first(is_own_turn);
        let mut place = if own_first { node.frames.take().map(PageLocation::Local) } else { None };
        if place.is_none() {
            let remote = self.remote_page(now, index, &mut wait);
            let node = &mut self.state.nodes[index];
            place = remote.or_else(|| node.frames.take()).map(|slot| match remote {
                Some(_) => PageLocation::Remote(slot),
                None => PageLocation::Local(slot),
            });
        }
        let Some(place) = place else {
            let local_mib = self.config.local_mib;
            return Err(RunError::NoMemory { node: index as u16, at: now, local_mib });
        };
        let node = &mut self.state.nodes[index];
        let page = node.pages.add(key, place);
        if let PageLocation::Local(frame) = place {
            node.frames.own(frame, page);
        }
        let stats = &mut self.state.workloads[usize::from(node.workload)];
        stats.faults += 1;
        if !node.is_exhausted && !node.frames.is_free() {
            node.is_exhausted = true;
            stats.exhausted_nodes += 1;
            let first = stats.exhausted.map_or(now.0, |(first, _)| first);
            stats.exhausted = Some((first, now.0));
        }
        if wait > Ps::ZERO {
            stats.fault_time.add(wait);
        }
        Ok((page, wait))
    }

    /// A free page of the node's chunks, after asking the manager for one if there is none.
    fn remote_page(&mut self, now: Ps, index: usize, wait: &mut Ps) -> Option<u32> {
        let node = &mut self.state.nodes[index];
        if let Some(slot) = node.controller.take_page() {
            return Some(slot);
        }
        let costs = self.times.costs;
        let turn = self.state.manager_busy.max(now) + Ps::ns(costs.manager_ns);
        let chunk = self.state.manager.ask(now, index as u16, node.rack)?;
        self.state.manager_busy = turn;
        *wait += (turn - now) + Ps::ns(costs.chunk_ns);
        node.controller.hold(chunk);
        node.controller.take_page()
    }

    /// An access, or a prefetch, asks its memory.
    pub(super) fn begin(&mut self, now: Ps, number: u32) {
        let Flight { node: index, page, line, write, .. } = self.state.flights.all[number as usize];
        let index = usize::from(index);
        let is_hot = self.heat(now, index, page);
        let node = &mut self.state.nodes[index];
        let flight = &mut self.state.flights.all[number as usize];
        flight.began = now;
        let slot = match node.pages.page(page).place {
            PageLocation::Local(frame) => {
                flight.pool = u16::MAX;
                let addr = World::frame_addr(frame, line);
                self.submit(now, index, u64::from(number), addr, write);
                return;
            }
            PageLocation::Remote(slot) => slot,
        };
        if is_hot {
            self.consider_move(now, index, page);
        }
        if self.config.prefetch.is_some() && self.take_buffered(now, number, slot) {
            return;
        }
        self.send_line(now, number, slot);
    }

    /// Counts an access of a page in its window; whether it is enough to look at the page.
    #[inline]
    fn heat(&mut self, now: Ps, index: usize, page: u32) -> bool {
        let Some(hot) = &self.config.hot else { return false };
        let window = (now.0 / self.times.hot_window.0) as u32;
        let page = self.state.nodes[index].pages.page_mut(page);
        if page.window != window {
            (page.window, page.heat) = (window, 0);
        }
        page.heat += 1;
        page.heat >= hot.accesses_min
    }

    /// Sends a line's request to its pool.
    pub(super) fn send_line(&mut self, now: Ps, number: u32, slot: u32) {
        let window = self.window(now);
        let flight = &mut self.state.flights.all[number as usize];
        let node = &self.state.nodes[usize::from(flight.node)];
        let (pool, base) = node.controller.locate(slot);
        flight.pool = pool;
        flight.addr = base + u64::from(flight.line) * 64;
        flight.began = now;
        let steps = node.controller.lookup_steps();
        let lookup = Ps(steps * self.times.costs.lookup_step_ps);
        let (from, write) = (Endpoint(flight.node), flight.write);
        let kind = if write { PacketKind::WriteLine } else { PacketKind::ReadLine };
        self.state.manager.count_access(pool);
        self.state.pools.count(window, usize::from(pool), usize::from(self.config.pools));
        let packet = self.state.net.packet(from, self.pool_endpoint(pool), kind, number);
        self.state.net.send(now + lookup, packet, &mut self.queue);
    }

    /// A line's request is at its pool.
    pub(super) fn line_at_pool(&mut self, now: Ps, packet: Packet) {
        let flight = &mut self.state.flights.all[packet.tag as usize];
        flight.at_pool = now;
        let (addr, write) = (flight.addr, flight.write);
        let endpoint = usize::from(packet.to.0);
        let is_taken = self.submit(now, endpoint, u64::from(packet.tag), addr, write);
        if is_taken || !self.config.pool_holds_back() {
            self.state.net.taken(now, &packet, &mut self.queue);
        }
    }

    /// A pool's memory has done some accesses, and taken others from its queue.
    pub(super) fn pool_moved(&mut self, now: Ps, done: &[Done], taken: &[u64]) {
        if self.config.pool_holds_back() {
            for id in taken.iter().filter(|id| **id < LINE_OF_MOVE) {
                let flight = self.state.flights.all[*id as usize];
                let kind = if flight.write { PacketKind::WriteLine } else { PacketKind::ReadLine };
                let (from, to) = (Endpoint(flight.node), self.pool_endpoint(flight.pool));
                let packet = self.state.net.packet(from, to, kind, *id as u32);
                self.state.net.taken(now, &packet, &mut self.queue);
            }
        }
        for Done { id, at } in done {
            match *id {
                POSTED_WRITE => {}
                id if id & LINE_OF_MOVE != 0 => self.line_of_move(now, id as u32),
                id => {
                    let flight = &mut self.state.flights.all[id as usize];
                    flight.at_pool = *at - flight.at_pool;
                    let (write, node, pool) = (flight.write, flight.node, flight.pool);
                    let kind = if write { PacketKind::LineWritten } else { PacketKind::LineData };
                    let from = self.pool_endpoint(pool);
                    let packet = self.state.net.packet(from, Endpoint(node), kind, id as u32);
                    self.state.net.send(now.max(*at), packet, &mut self.queue);
                }
            }
        }
    }

    pub(super) fn finish(&mut self, now: Ps, number: u32) {
        let flight = self.state.flights.take(number);
        if let Purpose::Prefetch(cell) = flight.purpose {
            return self.prefetched(now, usize::from(flight.node), cell);
        }
        let window = self.window(now);
        let index = usize::from(flight.node);
        let workload = usize::from(self.state.nodes[index].workload);
        let stats = &mut self.state.workloads[workload];
        let took = now - flight.began;
        self.state.tails.all.record(took.0);
        match flight.pool {
            u16::MAX => stats.local(window, took),
            FROM_BUFFER => stats.prefetched(window, took),
            _ => {
                stats.remote(window, took, flight.at_pool);
                self.state.tails.remote.record(took.0);
                self.state.tails.pool.record(flight.at_pool.0);
            }
        }
        self.state.over += 1;
        let node = &mut self.state.nodes[index];
        node.flying -= 1;
        if let Some(since) = node.stalled.take() {
            // Own memory says when the access was over, which may be a little off.
            let now = now.max(self.state.now);
            let stall = now - since;
            node.shift += stall;
            stats.stalls.add(stall);
            self.queue.push(now, Event::Issue(index as u16));
        }
        self.release_if_over(index);
    }

    /// A node that has nothing to do any more gives its chunks back.
    pub(super) fn release_if_over(&mut self, index: usize) {
        let node = &mut self.state.nodes[index];
        let is_over = node.next.is_none() && node.flying == 0 && node.moves == 0;
        if !is_over || node.is_released || self.buffer_is_busy(index) {
            return;
        }
        let node = &mut self.state.nodes[index];
        node.is_released = true;
        for chunk in node.controller.release() {
            self.state.manager.give_back(chunk);
        }
    }
}

/// Of a flight that found its line in the buffer, in place of a pool.
pub(super) const FROM_BUFFER: u16 = u16::MAX - 1;
