//! Queues of the interconnect against closed forms, and nothing lost.

use super::config::{Rate, cpu_cycles};
use super::*;
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::wheel::Wheel;

#[derive(Clone, Copy)]
enum Event {
    Net(NetEvent),
    /// A packet of this sender begins.
    Send(u16),
    /// The receiver takes the packet out of its card.
    Take(Packet),
}

struct Queue(Wheel<Event>);

impl Schedule for Queue {
    fn at(&mut self, at: Ps, event: NetEvent) {
        self.0.push(at, 0, Event::Net(event));
    }
}

/// Senders with Poisson streams to a receiver each.
struct Load {
    /// Mean time between packets of each sender.
    gap: Vec<Ps>,
    kind: PacketKind,
    /// How long a receiver needs for a packet.
    take: Ps,
    packets: u64,
    seed: u64,
}

struct Seen {
    counts: NetCounts,
    /// By sender: packets and their times, ps.
    by_sender: Vec<(u64, u64)>,
    end: Ps,
}

impl Seen {
    fn mean_ns(&self, sender: usize) -> f64 {
        let (count, sum) = self.by_sender[sender];
        sum as f64 / count as f64 / 1e3
    }

    fn mean_all_ns(&self) -> f64 {
        let (count, sum) =
            self.by_sender.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        sum as f64 / count as f64 / 1e3
    }
}

/// Runs until `stop` packets were delivered, or all of them. Each receiver takes one packet after
/// the other.
fn run(mut net: Network, load: &Load, to: impl Fn(u16, u64) -> u16, stop: u64) -> Seen {
    let mut queue = Queue(Wheel::new());
    let senders = load.gap.len();
    let mut rngs: Vec<Rng> =
        (0..senders).map(|s| Rng::new(load.seed, Purpose::Workload, s as u64)).collect();
    for (sender, (rng, gap)) in rngs.iter_mut().zip(&load.gap).enumerate() {
        let at = rng.exponential(*gap);
        queue.0.push(at, 0, Event::Send(sender as u16));
    }
    let mut begun: Vec<Ps> = Vec::new();
    let mut by_sender = vec![(0u64, 0u64); senders];
    let mut busy = vec![Ps::ZERO; net.cards.len()];
    let mut delivered = 0;
    let mut end = Ps::ZERO;
    while let Some((now, _, event)) = queue.0.pop() {
        end = now;
        match event {
            Event::Send(sender) => {
                let tag = begun.len() as u32;
                begun.push(now);
                let goal = Endpoint(to(sender, u64::from(tag)));
                let packet = net.packet(Endpoint(sender), goal, load.kind, tag);
                net.send(now, packet, &mut queue);
                if (begun.len() as u64) + (senders as u64) <= load.packets {
                    let index = usize::from(sender);
                    let gap = rngs[index].exponential(load.gap[index]);
                    queue.0.push(now + gap, 0, Event::Send(sender));
                }
            }
            Event::Net(NetEvent::Deliver(packet)) => {
                let (count, sum) = &mut by_sender[usize::from(packet.from.0)];
                *count += 1;
                *sum += (now - begun[packet.tag as usize]).0;
                delivered += 1;
                if delivered == stop {
                    break;
                }
                let until = &mut busy[usize::from(packet.to.0)];
                *until = (*until).max(now) + load.take;
                queue.0.push(*until, 0, Event::Take(packet));
            }
            Event::Net(event) => net.on(now, event, &mut queue),
            Event::Take(packet) => net.taken(now, &packet, &mut queue),
        }
    }
    Seen { counts: net.counts(), by_sender, end }
}

/// Everything takes no time and has endless room: tests slow down what they look at.
fn fast() -> Fabric {
    let endless = 1 << 40;
    let rate = Rate { gbps: 1 << 40, ns_as_cycles: false };
    Fabric {
        packetise: Ps::ZERO,
        nic: Ps::ZERO,
        wire: Ps::ZERO,
        switch: Ps::ZERO,
        crossing: Ps::ZERO,
        slot: Ps(1),
        nic_rate: rate,
        switch_rate: rate,
        nic_bytes: endless,
        input_bytes: endless,
        output_bytes: endless,
        ..Fabric::corrected(70)
    }
}

fn within(got: f64, expected: f64, part: f64) {
    assert!((got / expected - 1.0).abs() <= part, "{got:.3} instead of {expected:.3}");
}

const PACKETS: u64 = 1_500_000;

fn to_one(count: usize, gap: Ps) -> Load {
    Load {
        gap: vec![gap; count],
        kind: PacketKind::LineData,
        take: Ps::ZERO,
        packets: PACKETS,
        seed: 5,
    }
}

#[test]
fn a_cards_link_is_an_m_d_1_queue() {
    // 128 B at 100 Gb/s are 10.24 ns.
    let fabric = Fabric { nic_rate: Fabric::corrected(70).nic_rate, ..fast() };
    for load in [0.3, 0.6, 0.8] {
        let net = Network::new(fabric, &Topology::one_rack(2));
        let seen = run(net, &to_one(1, Ps((10_240.0 / load) as u64)), |_, _| 1, u64::MAX);
        let wait = load * 10.24 / (2.0 * (1.0 - load));
        within(seen.mean_all_ns() - 10.24, wait, 0.02);
    }
}

#[test]
fn a_switchs_output_is_an_m_d_1_queue_of_all_inputs_together() {
    // Eight senders; 128 B at 400 Gb/s are 2.56 ns.
    let fabric = Fabric { switch_rate: Fabric::corrected(70).switch_rate, ..fast() };
    for load in [0.4, 0.75] {
        let net = Network::new(fabric, &Topology::one_rack(9));
        let gap = Ps((8.0 * 2_560.0 / load) as u64);
        let seen = run(net, &to_one(8, gap), |_, _| 8, u64::MAX);
        within(seen.mean_all_ns() - 2.56, load * 2.56 / (2.0 * (1.0 - load)), 0.02);
    }
}

#[test]
fn a_card_in_front_of_a_slower_link_adds_its_time_and_no_wait() {
    // Servers of constant times one after the other: all of the wait is the slowest one's.
    let nic = cpu_cycles(12);
    let fabric = Fabric { nic, nic_rate: Fabric::corrected(70).nic_rate, ..fast() };
    let net = Network::new(fabric, &Topology::one_rack(2));
    let seen = run(net, &to_one(1, Ps(20_480)), |_, _| 1, u64::MAX);
    let unloaded = 10.24 + 2.0 * nic.as_ns_f64();
    within(seen.mean_all_ns() - unloaded, 10.24 / 2.0, 0.02);
}

/// Packets that come in a slot of 100 ns as a Poisson stream of mean `a`; the first of an empty
/// queue takes the slot in which it comes. With Q the queue at a slot's begin: E\[Q\] = a²/2(1-a),
/// P\[Q = 0\] = (1-a)eᵃ, and by Little's law the mean wait is the mean number that wait over a.
fn slotted_wait(a: f64) -> f64 {
    let queue = a * a / (2.0 * (1.0 - a));
    let empty = (1.0 - a) * a.exp();
    let at_empty = 1.0 - (1.0 - (-a).exp()) / a;
    (queue - (1.0 - empty) + a / 2.0 - empty * at_empty) / a
}

#[test]
fn an_output_gives_out_its_slots_as_a_slotted_queue_would_and_every_input_waits_alike() {
    let fabric = Fabric { slot: Ps::ns(100), ..fast() };
    for load in [0.3, 0.6, 0.85] {
        let net = Network::new(fabric, &Topology::one_rack(6));
        let seen = run(net, &to_one(5, Ps((5.0 * 100_000.0 / load) as u64)), |_, _| 5, u64::MAX);
        let wait = 100.0 * slotted_wait(load);
        within(seen.mean_all_ns(), wait, 0.02);
        for sender in 0..5 {
            within(seen.mean_ns(sender), wait, 0.04);
        }
    }
}

#[test]
fn an_overloaded_output_is_shared_by_turns() {
    // Max-min shares of a slot: an input that wants less than a turn gets it, the others the rest.
    let fabric = Fabric { slot: Ps::ns(10), ..fast() };
    let net = Network::new(fabric, &Topology::one_rack(5));
    let mut load = to_one(4, Ps::ns(10));
    load.gap = vec![Ps::ns(100), Ps::ns(20), Ps::ns(15), Ps::ns(10)];
    let seen = run(net, &load, |_, _| 4, PACKETS / 4);
    let slots = seen.end.as_ns_f64() / 10.0;
    let share = |sender: usize| seen.by_sender[sender].0 as f64 / slots;
    within(share(0), 0.1, 0.02);
    for sender in 1..4 {
        within(share(sender), 0.3, 0.02);
    }
}

#[test]
fn an_input_gives_its_outputs_turns_and_blocks_none_behind_another() {
    // One input sends to three outputs in rotation, faster than it has slots.
    let fabric = Fabric { slot: Ps::ns(10), ..fast() };
    let net = Network::new(fabric, &Topology::one_rack(4));
    let mut load = to_one(1, Ps::ns(4));
    load.packets = 90_000;
    let seen = run(net, &load, |_, tag| 1 + (tag % 3) as u16, 30_000);
    within(seen.end.as_ns_f64(), 300_000.0, 0.02);
}

#[test]
fn with_virtual_output_queues_a_full_switch_uses_every_slot() {
    // Eight inputs, each with packets for all eight outputs at random: a queue for each input
    // alone would reach 0.62 of the slots (Karol, Hluchyj and Morgan 1987).
    let fabric = Fabric { slot: Ps::ns(10), ..fast() };
    let net = Network::new(fabric, &Topology::one_rack(16));
    let mut load = to_one(8, Ps::ns(9));
    load.packets = 800_000;
    let rng = std::cell::RefCell::new(Rng::new(9, Purpose::Shape, 0));
    let goal = |_: u16, _: u64| 8 + rng.borrow_mut().below(8) as u16;
    let seen = run(net, &load, goal, 500_000);
    let used = 500_000.0 / (seen.end.as_ns_f64() / 10.0 * 8.0);
    assert!(used > 0.95, "{used:.3} of the slots were used");
}

#[test]
fn back_pressure_reaches_the_sources_and_loses_nothing() {
    // A receiver that takes one packet in 50 ns, and room for four lines each: everything fills.
    let room = 1024;
    let fabric =
        Fabric { nic_bytes: room, input_bytes: room, output_bytes: room, ..Fabric::corrected(70) };
    let net = Network::new(fabric, &Topology::one_rack(8));
    let mut load = to_one(6, Ps::ns(100));
    (load.packets, load.take) = (60_000, Ps::ns(50));
    // Some packets go to another receiver, which has time.
    let seen = run(net, &load, |_, tag| 6 + u16::from(tag % 8 == 0), u64::MAX);
    assert_eq!((seen.counts.sent, seen.counts.delivered), (60_000, 60_000));
    assert_eq!(seen.by_sender.iter().map(|sender| sender.0).sum::<u64>(), 60_000);
    assert!(seen.counts.blocked > 10_000, "{:?}", seen.counts);
    assert!(seen.counts.output_queue_bytes_max <= room, "{:?}", seen.counts);
    assert!(seen.counts.card_queue_bytes_max > room, "{:?}", seen.counts);
    within(seen.end.as_ns_f64(), 60_000.0 * 7.0 / 8.0 * 50.0, 0.02);
}

#[test]
fn an_unloaded_packet_takes_the_closed_form_and_two_events() {
    for fabric in [Fabric::dracksim_faithful(70), Fabric::corrected(70), Fabric::cxl(70)] {
        for kind in [PacketKind::ReadLine, PacketKind::LineData, PacketKind::PageData] {
            let mut net = Network::new(fabric, &Topology::one_rack(70));
            let mut queue = Queue(Wheel::new());
            let packet = net.packet(Endpoint(3), Endpoint(66), kind, 1);
            net.send(Ps::us(1), packet, &mut queue);
            let mut events = 0;
            let at = loop {
                let (now, _, event) = queue.0.pop().expect("it is delivered");
                events += 1;
                match event {
                    Event::Net(NetEvent::Deliver(got)) => {
                        assert_eq!(got, packet);
                        break now;
                    }
                    Event::Net(event) => net.on(now, event, &mut queue),
                    Event::Send(_) | Event::Take(_) => unreachable!(),
                }
            };
            assert_eq!(at - Ps::us(1), fabric.one_way(packet.bytes), "{kind:?}");
            assert_eq!(events, 2);
        }
    }
}

#[test]
fn between_racks_a_packet_crosses_two_switches_and_the_uplink() {
    let fabric = Fabric::corrected(8);
    let topology = Topology { rack_of: vec![0, 0, 1, 1, 2], racks: 3 };
    assert_eq!(topology.ports_max(), 4);
    let line = fabric.bytes(PacketKind::LineData);
    for (from, to) in [(0, 2), (3, 1), (4, 0)] {
        let mut net = Network::new(fabric, &topology);
        let mut queue = Queue(Wheel::new());
        let packet = net.packet(Endpoint(from), Endpoint(to), PacketKind::LineData, 0);
        net.send(Ps::ZERO, packet, &mut queue);
        let mut at = Ps::ZERO;
        while let Some((now, _, Event::Net(event))) = queue.0.pop() {
            at = now;
            match event {
                NetEvent::Deliver(packet) => net.taken(now, &packet, &mut queue),
                event => net.on(now, event, &mut queue),
            }
        }
        let uplink = fabric.uplink_wire + fabric.uplink_rate.time(line);
        let expected = fabric.one_way(line) + uplink + fabric.switch + fabric.crossing;
        assert_eq!(at, expected);
        assert_eq!(net.counts().delivered, 1);
        assert_eq!(net.waiting(), 0);
    }
}
