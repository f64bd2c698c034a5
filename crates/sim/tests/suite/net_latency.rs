//! Uncontended latencies are the sum of their stages to the picosecond, and saturated stages give
//! their rates: the network against closed forms that are written out here from the profile.

use crate::net_rig::{Rig, at, sge};
use rackpool_core::seam::{FabricEvent, Sge, Verb, WorkRequest};
use rackpool_sim::device::Profile;
use rackpool_sim::net::{Connection, NetFaults};
use rackpool_sim::time::Ps;

/// The cable, the switch and the cable, with the packet's bytes once.
fn wire(p: &Profile, bytes: u64) -> Ps {
    let ends = p.link.propagation + p.switch.latency + p.link.propagation;
    p.link.bandwidth.time(p.link.header.0 + bytes) + ends
}

fn posted(p: &Profile, lines: u64) -> Ps {
    p.pcie.pio_lines.service.times(lines) + p.pcie.doorbell
}

fn acknowledged(p: &Profile) -> Ps {
    p.rnic.acknowledge.times(2) + wire(p, 0) + p.rnic.receive_delay + p.pcie.dma_write
}

fn read(p: &Profile, bytes: u64) -> Ps {
    let pcie = p.pcie.bandwidth.time(bytes);
    posted(p, 1)
        + p.rnic.out_read.service
        + p.rnic.send_delay
        + wire(p, 0)
        + p.rnic.in_read.service
        + p.rnic.in_read_line.times(bytes.div_ceil(64) - 1)
        + p.rnic.receive_delay
        + (pcie + p.pcie.dma_read)
        + wire(p, bytes)
        + p.rnic.packets.service
        + pcie
        + p.rnic.receive_delay
        + p.pcie.dma_write
}

fn write(p: &Profile, bytes: u64, lines: u64, inline: bool) -> Ps {
    let pcie = p.pcie.bandwidth.time(bytes);
    let fetched = if inline { Ps::ZERO } else { pcie + p.pcie.dma_read };
    let out = p.rnic.out_write.service;
    posted(p, lines)
        + if inline { out } else { out.max(p.rnic.out_fetched.service) }
        + fetched
        + p.rnic.send_delay
        + wire(p, bytes)
        + p.rnic.in_write.service
        + pcie
        + p.rnic.receive_delay
        + p.pcie.dma_write
        + acknowledged(p)
}

fn send(p: &Profile, bytes: u64, lines: u64) -> Ps {
    posted(p, lines)
        + p.rnic.out_send.service
        + p.rnic.send_delay
        + wire(p, bytes)
        + p.rnic.in_send.service
        + p.pcie.bandwidth.time(bytes)
        + p.rnic.receive_delay
        + p.pcie.dma_write
        + acknowledged(p)
}

fn atomic(p: &Profile) -> Ps {
    posted(p, 1)
        + p.rnic.out_atomic.service
        + p.rnic.send_delay
        + wire(p, 0)
        + p.rnic.in_atomic.service
        + p.rnic.receive_delay
        + p.pcie.dma_read
        + acknowledged(p)
}

#[test]
fn uncontended_latencies_are_the_sum_of_their_stages() {
    for name in Profile::names() {
        let p = Profile::load(name).unwrap();
        println!("{}", p.label());
        let mut rig = Rig::new(&p, NetFaults::none(), 1);
        let (near, far) = (rig.node(), rig.node());
        let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
        let peer = rig.connect(client, server, Connection::Reliable);
        // The cards do not hold the connection's state before its first use.
        rig.time(client, peer, Verb::Read(at(0)), 8);
        let mut check = |what: &str, verb, bytes, expected: Ps| {
            let got = rig.time(client, peer, verb, bytes);
            println!("  {what} of {bytes} B: {got}");
            assert_eq!(got, expected, "{name}: {what} of {bytes} B");
        };
        for bytes in [1, 64, 65, 288, 4096.min(p.link.mtu.0)] {
            check("READ", Verb::Read(at(0)), bytes, read(&p, bytes));
        }
        for (bytes, lines) in [(8, 1), (28, 1), (29, 2), (88, 2), (89, 3), (148, 3)] {
            check("inline WRITE", Verb::Write(at(0)), bytes, write(&p, bytes, lines, true));
        }
        check("WRITE", Verb::Write(at(0)), 1024, write(&p, 1024, 1, false));
        check("WRITE_IMM", Verb::WriteImm(at(0), 5), 28, write(&p, 28, 1, true));
        check("SEND", Verb::Send, 44, send(&p, 44, 1));
        check("SEND", Verb::Send, 45, send(&p, 45, 2));
        check("CAS", Verb::Cas { at: at(0), expected: 0, new: 1 }, 8, atomic(&p));
        check("FAA", Verb::FetchAdd { at: at(0), n: 1 }, 8, atomic(&p));
    }
}

#[test]
fn a_long_write_streams_its_packets_back_to_back() {
    let p = Profile::load("rcmp-testbed").unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, _) = rig.pair(Connection::Reliable);
    rig.time(client, peer, Verb::Write(at(0)), 8);
    let (mtu, count) = (p.link.mtu.0, 100);
    let got = rig.time(client, peer, Verb::Write(at(0)), mtu * count);
    // All but the last packet add their time on the cable, nothing else: it is the slowest stage.
    // The first packet's engine time is the verb's, the last one's is a packet's.
    let one = write(&p, mtu, 1, false) - p.rnic.in_write.service + p.rnic.packets.service;
    assert_eq!(got, one + p.link.bandwidth.time(p.link.header.0 + mtu).times(count - 1));
}

#[test]
fn a_datagram_takes_one_way_and_brings_its_header() {
    let p = Profile::load("herd-apt").unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (near, far) = (rig.node(), rig.node());
    let (client, server) = (rig.net.add_endpoint(near), rig.net.add_endpoint(far));
    let peer = rig.connect(client, server, Connection::Datagram);
    rig.net.post_receives(server, 1);
    let start = rig.world.now;
    rig.world.buffer[..60].fill(9);
    rig.time(client, peer, Verb::Send, 60);
    let (when, _, event) = rig.world.told.iter().find(|told| told.1 == server).unwrap();
    let FabricEvent::Received { message, .. } = event else { panic!("{event:?}") };
    assert!(message.len() == 100 && message[40..] == [9; 60]);
    let bytes = p.link.datagram_header.0 + 60;
    let way = p.link.propagation + p.switch.latency + p.link.propagation;
    let expected = posted(&p, 2)
        + p.rnic.out_datagram.service
        + p.rnic.send_delay
        + p.link.bandwidth.time(bytes)
        + way
        + p.rnic.in_send.service
        + p.pcie.bandwidth.time(60)
        + p.rnic.receive_delay
        + p.pcie.dma_write;
    assert_eq!(*when - start, expected);
}

/// Requests a second that `clients` nodes with `connections` each get from one server.
fn inbound(p: &Profile, clients: u32, connections: u32, verb: Verb, bytes: u64) -> f64 {
    let mut rig = Rig::new(p, NetFaults::none(), 1);
    let server = rig.node();
    let mut ends = Vec::new();
    for _ in 0..clients {
        let node = rig.node();
        let client = rig.net.add_endpoint(node);
        for _ in 0..connections {
            ends.push((client, rig.connect(client, server, Connection::Reliable)));
        }
    }
    saturate(&mut rig, &ends, verb, bytes)
}

/// Keeps every connection full; the rate between the first and the last quarter.
fn saturate(
    rig: &mut Rig,
    ends: &[(rackpool_sim::net::EndpointId, rackpool_core::seam::PeerId)],
    verb: Verb,
    bytes: u64,
) -> f64 {
    let local = [sge(0, bytes)];
    let local: &[Sge] = if crate::net_rig::is_atomic(verb) { &[] } else { &local };
    let work = WorkRequest { id: 1, verb, local, signalled: true };
    rig.world.told.clear();
    for (client, peer) in ends {
        rig.post(*client, *peer, &[work; 16]).unwrap();
    }
    let (mut taken, mut times) = (0, Vec::new());
    while times.len() < 20_000 {
        assert!(rig.step());
        while let Some((at, client, event)) = rig.world.told.get(taken).cloned() {
            taken += 1;
            if let FabricEvent::Completed { peer, .. } = event {
                times.push(at);
                rig.post(client, peer, &[work]).unwrap();
            }
        }
    }
    times.sort_unstable();
    let (from, to) = (times[5_000], times[15_000]);
    10_000.0 / ((to - from).0 as f64 / 1e12)
}

fn close(what: &str, rate: f64, expected_millions: f64, within: f64) {
    println!("{what}: {:.2} M/s, expected {expected_millions} M/s", rate / 1e6);
    let error = rate / 1e6 / expected_millions - 1.0;
    assert!(error.abs() < within, "{what}: {} M/s instead of {expected_millions}", rate / 1e6);
}

/// Requests a second of one node with a connection to each of 16 servers.
fn outbound(p: &Profile, verb: Verb, bytes: u64) -> f64 {
    let mut rig = Rig::new(p, NetFaults::none(), 1);
    let node = rig.node();
    let client = rig.net.add_endpoint(node);
    let servers: Vec<_> = (0..16).map(|_| rig.node()).collect();
    let connect = |server| (client, rig.connect(client, server, Connection::Reliable));
    let ends: Vec<_> = servers.into_iter().map(connect).collect();
    saturate(&mut rig, &ends, verb, bytes)
}

/// The paper's rates are in the profile. So what is looked at is that the full stage alone gives
/// the rate: with its time doubled, the rate is that of the doubled time.
#[test]
fn a_saturated_card_is_as_fast_as_its_slowest_stage_and_follows_it() {
    type Stage = fn(&mut Profile) -> &mut Ps;
    type Time = fn(&Profile) -> Ps;
    let (write, read) = (Verb::Write(at(0)), Verb::Read(at(0)));
    let add = Verb::FetchAdd { at: at(0), n: 1 };
    let lines: Stage = |p| &mut p.pcie.pio_lines.service;
    let apt = Profile::load("herd-apt").unwrap();
    let cases: [(&str, bool, Verb, u64, Stage, Time); 8] = [
        (
            "WRITE in",
            true,
            write,
            32,
            |p| &mut p.rnic.in_write.service,
            |p| p.rnic.in_write.service,
        ),
        ("READ in", true, read, 32, |p| &mut p.rnic.in_read.service, |p| p.rnic.in_read.service),
        (
            "READ in of five lines",
            true,
            read,
            288,
            |p| &mut p.rnic.in_read_line,
            |p| p.rnic.in_read.service + p.rnic.in_read_line.times(4),
        ),
        ("FAA in", true, add, 8, |p| &mut p.rnic.in_atomic.service, |p| p.rnic.in_atomic.service),
        (
            "READ out",
            false,
            read,
            32,
            |p| &mut p.rnic.out_read.service,
            |p| p.rnic.out_read.service,
        ),
        (
            "WRITE out, one line",
            false,
            write,
            28,
            |p| &mut p.rnic.out_write.service,
            |p| p.rnic.out_write.service,
        ),
        ("WRITE out, two lines", false, write, 29, lines, |p| p.pcie.pio_lines.service.times(2)),
        ("WRITE out, four lines", false, write, 149, lines, |p| p.pcie.pio_lines.service.times(4)),
    ];
    for (what, is_in, verb, bytes, stage, time) in cases {
        for factor in [1, 2] {
            let mut p = apt.clone();
            let slow = stage(&mut p);
            *slow = slow.times(factor);
            let rate = match is_in {
                true => inbound(&p, 8, 4, verb, bytes),
                false => outbound(&p, verb, bytes),
            };
            close(&format!("{what}, {factor} times"), rate, 1e6 / time(&p).0 as f64, 0.01);
        }
    }
    // Between the two sizes of which the profile's numbers were made.
    close("READ in, 144 B", inbound(&apt, 8, 4, read, 144), 20.3, 0.03);
}

#[test]
fn connections_beyond_the_cards_memory_cost_outbound_writes_as_in_the_herd_paper() {
    let p = Profile::load("herd-apt").unwrap();
    let rate = |connections: u32| {
        let mut rig = Rig::new(&p, NetFaults::none(), 1);
        let node = rig.node();
        let client = rig.net.add_endpoint(node);
        let servers: Vec<_> = (0..16).map(|_| rig.node()).collect();
        let mut ends = Vec::new();
        for index in 0..connections {
            let server = servers[index as usize % servers.len()];
            ends.push((client, rig.connect(client, server, Connection::Reliable)));
        }
        // In random order, as the paper's processes post.
        let mut rng = rackpool_sim::rng::Rng::new(3, rackpool_sim::rng::Purpose::Workload, 0);
        let work =
            WorkRequest { id: 1, verb: Verb::Write(at(0)), local: &[sge(0, 32)], signalled: true };
        let start = rig.world.now;
        let mut done = 0;
        while done < 40_000 {
            let (client, peer) = ends[rng.below(u64::from(connections)) as usize];
            while rig.post(client, peer, &[work]).is_err() || rig.net.operations_alive() > 4_000 {
                assert!(rig.step());
            }
            done += 1;
        }
        rig.drain();
        let last = rig.world.told.iter().map(|told| told.0).max().unwrap();
        f64::from(done) / ((last - start).0 as f64 / 1e12)
    };
    let (few, many) = (rate(64), rate(256));
    println!("64 connections {:.1} M/s, 256 {:.1} M/s: {:.3}", few / 1e6, many / 1e6, many / few);
    assert!((0.77..0.81).contains(&(many / few)));
}

#[test]
fn back_pressure_delays_and_loses_nothing() {
    let text = std::fs::read_to_string("profiles/rcmp-testbed.toml").unwrap();
    let small = text
        .replace("buffer = { value = 1, unit = \"MiB\"", "buffer = { value = 9000, unit = \"B\"");
    assert_ne!(text, small);
    let p = Profile::parse("small-buffer", &small).unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let server = rig.node();
    let mut ends = Vec::new();
    for _ in 0..8 {
        let node = rig.node();
        let client = rig.net.add_endpoint(node);
        ends.push((client, rig.connect(client, server, Connection::Reliable)));
    }
    let (bytes, count) = (16_384, 50);
    for (index, (client, peer)) in ends.iter().enumerate() {
        let place = Verb::Write(at(index as u64 * bytes));
        let local = [sge(0, bytes)];
        let work = WorkRequest { id: 1, verb: place, local: &local, signalled: true };
        rig.post(*client, *peer, &vec![work; count]).unwrap();
    }
    let start = rig.world.now;
    rig.drain();
    let counters = rig.net.counters();
    assert!(counters.stalled > 0 && counters.retried == 0 && counters.gaps == 0, "{counters:?}");
    let last = rig.world.told.iter().map(|told| told.0).max().unwrap();
    let done = ends.iter().map(|(client, _)| rig.statuses(*client).len()).sum::<usize>();
    assert_eq!(done, 8 * count);
    // The server's cable is the bottleneck and never idle for long.
    let packets = 8 * count as u64 * bytes / p.link.mtu.0;
    let least = p.link.bandwidth.time(p.link.header.0 + p.link.mtu.0).times(packets);
    let taken = last - start;
    println!("{taken} for what the cable alone does in {least}");
    assert!(taken >= least && taken.0 < least.0 * 105 / 100);
}

#[test]
fn the_rcmp_testbeds_wire_is_as_fast_as_the_paper_says() {
    let p = Profile::load("rcmp-testbed").unwrap();
    let mut rig = Rig::new(&p, NetFaults::none(), 1);
    let (client, peer, _) = rig.pair(Connection::Reliable);
    rig.time(client, peer, Verb::Read(at(0)), 64);
    // What a program sees: it posts, polls, takes the completion.
    let program = p.cpu.post_doorbell + p.cpu.post_request + p.poll.client + p.cpu.completion;
    let read = program + rig.time(client, peer, Verb::Read(at(0)), 64);
    println!("{}: a READ of 64 B takes {read}", p.label());
    assert!((Ps::ns(1_500)..Ps::ns(3_000)).contains(&read));
    assert!(read > p.memory.cxl_load_line.times(10), "RDMA is more than 10 times CXL");
    assert!(read > p.memory.dram_load.times(20), "RDMA is more than 20 times DRAM");
}
