//! The interconnect of a rack: endpoints with network cards, and a top-of-rack switch; of several
//! racks, with uplinks between their switches.
//!
//! ```text
//!  endpoint                                 switch                              endpoint
//!  packetise → card → queue ==link==> virtual output queues → output queue ==link==> card → …
//!                              100 Gb/s   (input, output), RR     finite      400 Gb/s
//! ```
//!
//! Owns all packets between [`Network::send`] and the event [`NetEvent::Deliver`]. Every stage is
//! a FIFO server with a time until which it is busy, so that a packet that meets no queue costs
//! two events. A link sends only what the far end has room for: nothing is ever dropped, and what
//! has no room stops all behind it in its queue, back to the source's unbounded queue.
//! Room is known at once at the near end.
//!
//! Source: Rack-scale disaggregation, §V; constants in [`config`].

pub mod config;
mod link;
mod switch;
#[cfg(test)]
mod tests;

use config::{Fabric, PacketKind};
use link::{Link, Next};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use switch::{Grant, Switch};

/// A node or a pool, counted through all racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    pub from: Endpoint,
    pub to: Endpoint,
    /// Its size with all headers.
    pub bytes: u32,
    pub kind: PacketKind,
    /// Whatever the sender wants to find in it.
    pub tag: u32,
}

/// What happens in the interconnect. The world keeps it in its queue of events and hands it back
/// to [`Network::on`], but for `Deliver`, which is the world's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetEvent {
    /// An endpoint's link can send the next packet.
    ServeCard(Endpoint),
    ServeOutput(u16, u16),
    /// A packet can be switched: switch, input.
    Come(u16, u16, Packet),
    /// A slot of a switch's arbiter.
    Arbitrate(u16),
    /// The packet is at its end. The receiver says [`Network::taken`] when the card has room again.
    Deliver(Packet),
}

pub trait Schedule {
    /// Lets `event` happen at `at`, which is not before now.
    fn at(&mut self, at: Ps, event: NetEvent);
}

/// What the interconnect has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounts {
    pub sent: u64,
    pub delivered: u64,
    pub bytes: u64,
    /// How often a link had to wait for room at its far end.
    pub blocked: u64,
    /// Slots in which an arbiter had to choose.
    pub arbitrations: u64,
    /// The longest queue of a network card towards its switch, bytes.
    pub card_queue_bytes_max: u64,
    /// The longest queue of a switch's output, bytes.
    pub output_queue_bytes_max: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    switch: u16,
    port: u16,
    /// Until when the card works on what it sends.
    busy: Ps,
    link: Link,
    /// Until when it works on what has come.
    busy_in: Ps,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The rack of each endpoint.
    pub rack_of: Vec<u16>,
    /// How many racks; each pair of them is joined by a link of its own.
    pub racks: u16,
}

impl Topology {
    /// One rack with so many endpoints.
    pub fn one_rack(endpoints: u16) -> Topology {
        Topology { rack_of: vec![0; usize::from(endpoints)], racks: 1 }
    }

    /// Ports that a switch needs.
    pub fn ports_max(&self) -> usize {
        let of_rack = |rack| self.rack_of.iter().filter(|r| **r == rack).count();
        let most = (0..self.racks).map(of_rack).max().unwrap_or(0);
        most + usize::from(self.racks.saturating_sub(1))
    }
}

/// The interconnect. See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Network {
    fabric: Fabric,
    cards: Vec<Card>,
    switches: Vec<Switch>,
    /// What is behind each output of each switch.
    far: Vec<Vec<Far>>,
    /// Of each switch: the output towards each other one.
    uplinks: Vec<Vec<u16>>,
    sent: u64,
    delivered: u64,
    bytes: u64,
    /// Grants of one slot; empty between calls.
    #[serde(skip)]
    granted: Vec<Grant>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Far {
    Endpoint(u16),
    /// Another switch and its input.
    Switch(u16, u16),
}

impl Network {
    /// An idle interconnect.
    ///
    /// # Panics
    /// If the fabric has a [`problem`](Fabric::problem) or a switch more ports than
    /// [`PORTS_MAX`](config::PORTS_MAX).
    pub fn new(fabric: Fabric, topology: &Topology) -> Network {
        assert!(fabric.problem().is_none(), "{:?}", fabric.problem());
        let mut far: Vec<Vec<Far>> = vec![Vec::new(); usize::from(topology.racks)];
        let mut cards = Vec::new();
        for (endpoint, rack) in topology.rack_of.iter().enumerate() {
            let behind = &mut far[usize::from(*rack)];
            cards.push(Card {
                switch: *rack,
                port: behind.len() as u16,
                busy: Ps::ZERO,
                link: Link::new(fabric.nic_rate, fabric.input_bytes),
                busy_in: Ps::ZERO,
            });
            behind.push(Far::Endpoint(endpoint as u16));
        }
        let endpoints: Vec<u16> = far.iter().map(|ports| ports.len() as u16).collect();
        let port_to =
            |here: u16, there: u16| endpoints[usize::from(here)] + there - u16::from(there > here);
        let mut uplinks = vec![vec![0; far.len()]; far.len()];
        for here in 0..topology.racks {
            for there in (0..topology.racks).filter(|there| *there != here) {
                uplinks[usize::from(here)][usize::from(there)] = port_to(here, there);
                far[usize::from(here)].push(Far::Switch(there, port_to(there, here)));
            }
        }
        let link = |far: &Far| match far {
            Far::Endpoint(_) => Link::new(fabric.switch_rate, fabric.nic_bytes),
            Far::Switch(..) => Link::new(fabric.uplink_rate, fabric.input_bytes),
        };
        let switch = |ports: &Vec<Far>| Switch::new(&fabric, ports.iter().map(link).collect());
        let switches = far.iter().map(switch).collect();
        let granted = Vec::new();
        Network { fabric, cards, switches, far, uplinks, sent: 0, delivered: 0, bytes: 0, granted }
    }

    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// A packet of `kind`; its size follows.
    pub fn packet(&self, from: Endpoint, to: Endpoint, kind: PacketKind, tag: u32) -> Packet {
        Packet { from, to, bytes: self.fabric.bytes(kind), kind, tag }
    }

    /// Takes over a packet at `now`; times of one sender never go back.
    #[inline]
    pub fn send(&mut self, now: Ps, packet: Packet, to: &mut impl Schedule) {
        self.sent += 1;
        self.bytes += u64::from(packet.bytes);
        let card = &mut self.cards[usize::from(packet.from.0)];
        card.busy = card.busy.max(now + self.fabric.packetise) + self.fabric.nic;
        let next = card.link.offer(card.busy, packet);
        self.after_card(packet.from, next, to);
    }

    /// Handles an event of its own.
    ///
    /// # Panics
    /// At [`NetEvent::Deliver`], which is the world's.
    #[inline]
    pub fn on(&mut self, now: Ps, event: NetEvent, to: &mut impl Schedule) {
        match event {
            NetEvent::Come(switch, input, packet) => self.come(now, switch, input, packet, to),
            NetEvent::ServeCard(endpoint) => {
                let (first, then) = self.cards[usize::from(endpoint.0)].link.serve(now);
                self.after_card(endpoint, first, to);
                self.after_card(endpoint, then, to);
            }
            NetEvent::ServeOutput(switch, output) => {
                let at = (usize::from(switch), usize::from(output));
                let (first, then) = self.switches[at.0].link(at.1).serve(now);
                self.after_output(switch, output, first, to);
                self.after_output(switch, output, then, to);
                if let Some(at) = self.switches[at.0].output_moved(now, at.1) {
                    to.at(at, NetEvent::Arbitrate(switch));
                }
            }
            NetEvent::Arbitrate(switch) => {
                let mut granted = std::mem::take(&mut self.granted);
                let at = &mut self.switches[usize::from(switch)];
                if let Some(again) = at.arbitrate(now, &mut granted) {
                    to.at(again, NetEvent::Arbitrate(switch));
                }
                for grant in granted.drain(..) {
                    self.cross(now, switch, grant, to);
                }
                self.granted = granted;
            }
            NetEvent::Deliver(packet) => panic!("{packet:?} is for its receiver"),
        }
    }

    /// A delivered packet has left the receiver's card.
    #[inline]
    pub fn taken(&mut self, now: Ps, packet: &Packet, to: &mut impl Schedule) {
        self.delivered += 1;
        let Card { switch, port, .. } = self.cards[usize::from(packet.to.0)];
        let link = self.switches[usize::from(switch)].link(usize::from(port));
        let next = link.give_room(now, packet.bytes);
        self.after_output(switch, port, next, to);
    }

    fn come(&mut self, now: Ps, switch: u16, input: u16, packet: Packet, to: &mut impl Schedule) {
        let goal = &self.cards[usize::from(packet.to.0)];
        let output = match goal.switch == switch {
            true => goal.port,
            false => self.uplinks[usize::from(switch)][usize::from(goal.switch)],
        };
        let (input, output) = (usize::from(input), usize::from(output));
        match self.switches[usize::from(switch)].come(now, input, output, packet) {
            Ok(grant) => self.cross(now, switch, grant, to),
            Err(Some(at)) => to.at(at, NetEvent::Arbitrate(switch)),
            Err(None) => {}
        }
    }

    /// A granted packet leaves its input, which has room again, for its output.
    fn cross(&mut self, now: Ps, switch: u16, grant: Grant, to: &mut impl Schedule) {
        let Grant { input, output, packet, ready } = grant;
        match self.far[usize::from(switch)][input] {
            Far::Endpoint(endpoint) => {
                let link = &mut self.cards[usize::from(endpoint)].link;
                let next = link.give_room(now, packet.bytes);
                self.after_card(Endpoint(endpoint), next, to);
            }
            Far::Switch(other, its_output) => {
                let link = self.switches[usize::from(other)].link(usize::from(its_output));
                let next = link.give_room(now, packet.bytes);
                self.after_output(other, its_output, next, to);
            }
        }
        let next = self.switches[usize::from(switch)].link(output).offer(ready, packet);
        self.after_output(switch, output as u16, next, to);
    }

    #[inline]
    fn after_card(&mut self, endpoint: Endpoint, next: Next, to: &mut impl Schedule) {
        match next {
            Next::Nothing => {}
            Next::Serve(at) => to.at(at, NetEvent::ServeCard(endpoint)),
            Next::Departs(packet, at) => {
                let Card { switch, port, .. } = self.cards[usize::from(endpoint.0)];
                let at = at + self.fabric.wire + self.fabric.switch;
                to.at(at, NetEvent::Come(switch, port, packet));
            }
        }
    }

    #[inline]
    fn after_output(&mut self, switch: u16, output: u16, next: Next, to: &mut impl Schedule) {
        let (packet, at) = match next {
            Next::Nothing => return,
            Next::Serve(at) => return to.at(at, NetEvent::ServeOutput(switch, output)),
            Next::Departs(packet, at) => (packet, at),
        };
        match self.far[usize::from(switch)][usize::from(output)] {
            Far::Endpoint(endpoint) => {
                // One link feeds the card, so its times follow from the order of departures.
                let card = &mut self.cards[usize::from(endpoint)];
                card.busy_in = card.busy_in.max(at + self.fabric.wire) + self.fabric.nic;
                let at = card.busy_in + self.fabric.packetise;
                to.at(at, NetEvent::Deliver(packet));
            }
            Far::Switch(other, input) => {
                let at = at + self.fabric.uplink_wire + self.fabric.switch;
                to.at(at, NetEvent::Come(other, input, packet));
            }
        }
    }

    /// Packets that wait in some queue: not those on links, in cards or being switched.
    pub fn waiting(&self) -> usize {
        let cards: usize = self.cards.iter().map(|card| card.link.len()).sum();
        cards + self.switches.iter().map(Switch::len).sum::<usize>()
    }

    pub fn counts(&mut self) -> NetCounts {
        let mut counts = NetCounts {
            sent: self.sent,
            delivered: self.delivered,
            bytes: self.bytes,
            ..NetCounts::default()
        };
        for card in &self.cards {
            counts.blocked += card.link.blocked_count;
            let most = &mut counts.card_queue_bytes_max;
            *most = (*most).max(card.link.queue_bytes_max);
        }
        for (switch, far) in self.switches.iter_mut().zip(&self.far) {
            counts.arbitrations += switch.arbitrations;
            for output in 0..far.len() {
                let link = switch.link(output);
                counts.blocked += link.blocked_count;
                let most = &mut counts.output_queue_bytes_max;
                *most = (*most).max(link.queue_bytes_max);
            }
        }
        counts
    }
}
