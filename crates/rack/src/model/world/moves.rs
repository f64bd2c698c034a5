//! The controller's second channel: whole pages between a pool and the node's own memory, for
//! pages that are hot. A page of 4 KiB is 64 lines of its pool's memory and four packets.
//!
//! While a page is on its way, accesses go where it was. A page that comes for another one is in
//! its frame when its last packet is there; then the other one leaves.
//! Source: Rack-scale disaggregation, §III C (hot pages over a DMA-like channel).

use super::*;
use crate::model::node::NONE;
use crate::model::pages::{PAGE_LINES, PageLocation};
use crate::net::config::PAGE_PACKET_BYTES;
use rackpool_core::placement::{HotDecision, OwnRoom};

const PACKET_LINES: u32 = PAGE_PACKET_BYTES / 64;
const PAGE_PACKETS: u32 = PAGE_LINES / PACKET_LINES;

/// A page on its way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Move {
    node: u16,
    pool: u16,
    page: u32,
    /// Its page of the node's chunks.
    slot: u32,
    frame: u32,
    /// The page that leaves for it, or [`NONE`].
    victim: u32,
    /// Whether the victim is on its way.
    is_out: bool,
    lines: u32,
    packets: u32,
}

impl World {
    /// A remote page was used often: whether it comes.
    pub(super) fn consider_move(&mut self, now: Ps, index: usize, page: u32) {
        let Some(hot) = self.config.hot else { return };
        let node = &mut self.state.nodes[index];
        let view = *node.pages.page(page);
        let PageLocation::Remote(slot) = view.place else { return };
        if view.is_moving || node.moves >= hot.moves_max {
            return;
        }
        let victim = match node.frames.is_free() {
            true => None,
            false => node.frames.victim(&node.pages, view.window),
        };
        let room = match (node.frames.is_free(), victim) {
            (true, _) => OwnRoom::Free,
            (false, Some((.., heat))) => OwnRoom::Victim(heat),
            (false, None) => OwnRoom::None,
        };
        let (frame, victim) = match (hot.rule().decide(view.heat, room), victim) {
            (HotDecision::Move, _) => (node.frames.take().expect("one is free"), NONE),
            (HotDecision::Swap, Some((frame, victim, _))) => (frame, victim),
            (HotDecision::Swap | HotDecision::Stay, _) => return,
        };
        node.pages.page_mut(page).is_moving = true;
        if victim != NONE {
            node.pages.page_mut(victim).is_moving = true;
        }
        node.moves += 1;
        let (pool, _) = node.controller.locate(slot);
        let rack = node.rack;
        let number = self.state.moves.add(Move {
            node: index as u16,
            pool,
            page,
            slot,
            frame,
            victim,
            is_out: false,
            lines: 0,
            packets: 0,
        });
        let is_near = rack == pool % self.config.racks;
        let wait = if is_near { 0 } else { self.times.costs.rdma_ns };
        self.queue.push(now + Ps::ns(wait), Event::Page(number));
    }

    /// A page is asked for.
    pub(super) fn page_asked(&mut self, now: Ps, number: u32) {
        let Move { node, pool, .. } = self.state.moves.all[number as usize];
        let to = self.pool_endpoint(pool);
        let packet = self.state.net.packet(Endpoint(node), to, PacketKind::ReadPage, number);
        self.state.net.send(now, packet, &mut self.queue);
    }

    /// A packet of the second channel is at its end.
    pub(super) fn page_packet(&mut self, now: Ps, packet: Packet) {
        let number = packet.tag;
        let one = self.state.moves.all[number as usize];
        let (pool, index) = (usize::from(self.pool_endpoint(one.pool).0), usize::from(one.node));
        let (_, remote) = self.state.nodes[index].controller.locate(one.slot);
        let first = one.packets * PACKET_LINES;
        match packet.kind {
            PacketKind::ReadPage => {
                self.state.pools.pages[usize::from(one.pool)] += 1;
                let id = LINE_OF_MOVE | u64::from(number);
                for line in 0..PAGE_LINES {
                    self.submit(now, pool, id, remote + u64::from(line) * 64, false);
                }
            }
            PacketKind::PageData if one.is_out => {
                for line in first..first + PACKET_LINES {
                    self.submit(now, pool, POSTED_WRITE, remote + u64::from(line) * 64, true);
                }
                if self.packet_counts(number) {
                    self.state.pools.pages[usize::from(one.pool)] += 1;
                    let (from, to) = (packet.to, packet.from);
                    let written = self.state.net.packet(from, to, PacketKind::PageWritten, number);
                    self.state.net.send(now, written, &mut self.queue);
                }
            }
            PacketKind::PageData => {
                for line in first..first + PACKET_LINES {
                    let addr = World::frame_addr(one.frame, line as u8);
                    self.submit(now, index, POSTED_WRITE, addr, true);
                }
                if self.packet_counts(number) {
                    self.page_came(now, number);
                }
            }
            PacketKind::PageWritten => {
                self.state.nodes[index].pages.page_mut(one.victim).is_moving = false;
                self.end_move(number);
            }
            PacketKind::ReadLine
            | PacketKind::WriteLine
            | PacketKind::LineData
            | PacketKind::LineWritten => {
                unreachable!("{packet:?} is no page's")
            }
        }
    }

    /// One more packet of a page; whether it was the last one.
    fn packet_counts(&mut self, number: u32) -> bool {
        let one = &mut self.state.moves.all[number as usize];
        one.packets += 1;
        one.packets == PAGE_PACKETS
    }

    /// All of a page is at the node.
    fn page_came(&mut self, now: Ps, number: u32) {
        let one = self.state.moves.all[number as usize];
        let index = usize::from(one.node);
        let node = &mut self.state.nodes[index];
        let page = node.pages.page_mut(one.page);
        (page.place, page.is_moving) = (PageLocation::Local(one.frame), false);
        node.frames.own(one.frame, one.page);
        let is_swap = one.victim != NONE;
        self.state.workloads[usize::from(node.workload)].moved[usize::from(is_swap)] += 1;
        if !is_swap {
            if let Some(chunk) = node.controller.free_page(one.slot) {
                self.state.manager.give_back(chunk);
            }
            return self.end_move(number);
        }
        node.pages.page_mut(one.victim).place = PageLocation::Remote(one.slot);
        let one = &mut self.state.moves.all[number as usize];
        (one.is_out, one.lines, one.packets) = (true, 0, 0);
        let (frame, id) = (one.frame, LINE_OF_MOVE | u64::from(number));
        for line in 0..PAGE_LINES {
            self.submit(now, index, id, World::frame_addr(frame, line as u8), false);
        }
    }

    /// A memory has read a line of a page; packets go as they are full.
    pub(super) fn line_of_move(&mut self, now: Ps, number: u32) {
        let one = &mut self.state.moves.all[number as usize];
        one.lines += 1;
        if !one.lines.is_multiple_of(PACKET_LINES) {
            return;
        }
        let one = *one;
        let (node, pool) = (Endpoint(one.node), self.pool_endpoint(one.pool));
        let (from, to) = if one.is_out { (node, pool) } else { (pool, node) };
        let packet = self.state.net.packet(from, to, PacketKind::PageData, number);
        self.state.net.send(now, packet, &mut self.queue);
    }

    fn end_move(&mut self, number: u32) {
        let index = usize::from(self.state.moves.take(number).node);
        self.state.nodes[index].moves -= 1;
        self.release_if_over(index);
    }
}
