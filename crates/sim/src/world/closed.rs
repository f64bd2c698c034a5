//! Latencies of accesses that meet no others, as sums of a profile's numbers: what the simulation
//! of one access at a time must give to the picosecond ([`super::ladder`] compares).
//!
//! Conditions: lines of tables and of the slot are in the processor's cache, the data's are not;
//! cards hold the connection's state; nothing queues.

use super::performance::{mem_costs, notice};
use crate::device::Profile;
use crate::net::request_lines;
use crate::time::Ps;
use rackpool_core::Generation;
use rackpool_core::seam::{RemoteAddr, Verb};

/// A copy with all its lines away.
fn copy(first: Ps, stream: Ps, bytes: u64) -> Ps {
    first + first.min(stream).times(bytes.div_ceil(64) - 1)
}

/// A load of a line that no cache has.
pub fn dram_load(profile: &Profile) -> Ps {
    profile.memory.dram_load
}

/// The same for shared memory.
pub fn cxl_load(profile: &Profile) -> Ps {
    profile.memory.cxl_load_line
}

/// What surrounds the copy of an own-rack access to a known place: the engine, announcing the
/// frame, looking at its word, withdrawing.
fn guarded(profile: &Profile) -> Ps {
    profile.cpu.client_submit + profile.memory.hit.times(3)
}

/// Reading whole lines of the own rack, the place known.
pub fn own_read(profile: &Profile, bytes: u64) -> Ps {
    let costs = mem_costs(profile);
    guarded(profile) + copy(costs.cxl_load_line, costs.cxl_stream_line, bytes)
}

/// Writing whole lines of the own rack, the place known.
pub fn own_write(profile: &Profile, bytes: u64) -> Ps {
    let costs = mem_costs(profile);
    guarded(profile) + copy(costs.cxl_store_line, costs.cxl_stream_line, bytes)
}

/// The cable, the switch and the cable, with the packet's bytes once.
fn wire(profile: &Profile, bytes: u64) -> Ps {
    let link = &profile.link;
    let ends = link.propagation + profile.switch.latency + link.propagation;
    link.bandwidth.time(link.header.0 + bytes) + ends
}

fn posted(profile: &Profile, lines: u64) -> Ps {
    profile.pcie.pio_lines.service.times(lines) + profile.pcie.doorbell
}

fn acknowledged(profile: &Profile) -> Ps {
    profile.rnic.acknowledge.times(2)
        + wire(profile, 0)
        + profile.rnic.receive_delay
        + profile.pcie.dma_write
}

/// A READ of one packet at most, from the post to its completion.
pub fn fabric_read(profile: &Profile, bytes: u64) -> Ps {
    let (rnic, pcie) = (&profile.rnic, &profile.pcie);
    let bus = pcie.bandwidth.time(bytes);
    let served = rnic.in_read.service + rnic.in_read_line.times(bytes.div_ceil(64) - 1);
    let request = posted(profile, 1) + rnic.out_read.service + rnic.send_delay + wire(profile, 0);
    let fetched = served + rnic.receive_delay + bus + pcie.dma_read;
    let stored = rnic.packets.service + bus + rnic.receive_delay + pcie.dma_write;
    request + fetched + wire(profile, bytes) + stored
}

/// A WRITE of one packet at most, from the post to its completion.
pub fn fabric_write(profile: &Profile, bytes: u64) -> Ps {
    let (rnic, pcie) = (&profile.rnic, &profile.pcie);
    let bus = pcie.bandwidth.time(bytes);
    let is_inline = bytes <= rnic.inline_max.0;
    let lines = request_lines(
        Verb::Write(RemoteAddr { offset: 0, key: Generation(0) }),
        false,
        is_inline.then_some(bytes),
        1,
    );
    let fetched = if is_inline { Ps::ZERO } else { bus + pcie.dma_read };
    let out = rnic.out_write.service;
    let out = if is_inline { out } else { out.max(rnic.out_fetched.service) };
    let sent = posted(profile, lines) + out + fetched + rnic.send_delay;
    let taken = rnic.in_write.service + bus + rnic.receive_delay + pcie.dma_write;
    sent + wire(profile, bytes) + taken + acknowledged(profile)
}

/// An atomic, from the post to its completion.
pub fn fabric_atomic(profile: &Profile) -> Ps {
    let (rnic, pcie) = (&profile.rnic, &profile.pcie);
    let sent = posted(profile, 1) + rnic.out_atomic.service + rnic.send_delay + wire(profile, 0);
    let done = rnic.in_atomic.service + rnic.receive_delay + pcie.dma_read;
    sent + done + acknowledged(profile)
}

/// What a client's processor adds to an operation of the fabric.
fn client(profile: &Profile) -> Ps {
    let cpu = &profile.cpu;
    cpu.client_submit + cpu.post_request + notice(profile.poll.client) + cpu.completion
}

/// Reading another rack's memory with one packet, the place known.
pub fn remote_read(profile: &Profile, bytes: u64) -> Ps {
    client(profile) + fabric_read(profile, bytes)
}

/// Writing another rack's memory with one packet, the place known.
pub fn remote_write(profile: &Profile, bytes: u64) -> Ps {
    client(profile) + fabric_write(profile, bytes)
}

/// An atomic on another rack's memory, the place known.
pub fn remote_atomic(profile: &Profile) -> Ps {
    client(profile) + fabric_atomic(profile)
}

/// Writing another rack's memory with several packets: what the first one would take alone. The
/// last one, on which the acknowledgement waits, is taken as a mere packet.
pub fn remote_write_long(profile: &Profile) -> Ps {
    let one = remote_write(profile, profile.link.mtu.0);
    one - profile.rnic.in_write.service + profile.rnic.packets.service
}

/// What the packets after the first one add, if the cable is the slowest stage.
pub fn packets_after(profile: &Profile, bytes: u64) -> Option<Ps> {
    let mtu = profile.link.mtu.0;
    let each = profile.link.bandwidth.time(profile.link.header.0 + mtu);
    let others = [profile.pcie.bandwidth.time(mtu), profile.rnic.packets.service];
    let whole = bytes.is_multiple_of(mtu);
    (whole && others.into_iter().all(|other| other <= each)).then(|| each.times(bytes / mtu - 1))
}
