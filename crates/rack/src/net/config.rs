//! What an interconnect is made of: times, rates, buffers and packet sizes, and the presets.
//!
//! The published simulator's constants are those of its trace-driven variant; the paper's own
//! table of parameters is an image that could not be read. Source: Rack-scale disaggregation, its
//! published code.

use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// Picoseconds of so many cycles of the published simulator's processor, 3.6 GHz.
pub const fn cpu_cycles(count: u64) -> Ps {
    Ps((count * 2_500 + 4) / 9)
}

/// Ports of a switch: those of 100 Gb/s of the switch that the published code names.
pub const PORTS_MAX: usize = 128;

/// Packets of the second channel carry so much of a page. Source: the published code.
pub const PAGE_PACKET_BYTES: u32 = 1024;

/// What a packet is for; decides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PacketKind {
    ReadLine,
    /// Brings a line to its pool.
    WriteLine,
    /// A line on its way to the node.
    LineData,
    LineWritten,
    ReadPage,
    /// A part of a page, either way.
    PageData,
    PageWritten,
}

/// How long a packet is on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Gigabits per second, not 0.
    pub gbps: u64,
    /// The published code computes whole nanoseconds and then counts them as processor cycles, so
    /// that links are 3.6 times too fast (defect d). True does the same.
    pub ns_as_cycles: bool,
}

impl Rate {
    /// The time on the link.
    pub const fn time(&self, bytes: u32) -> Ps {
        let bits = bytes as u64 * 8;
        match self.ns_as_cycles {
            true => cpu_cycles(bits / self.gbps),
            false => Ps(bits * 1_000 / self.gbps),
        }
    }
}

/// An interconnect. Times are picoseconds, sizes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Making a packet, or taking one apart; any number at once.
    pub packetise: Ps,
    /// A network card on one packet; one at a time in each direction.
    pub nic: Ps,
    pub wire: Ps,
    /// From a packet's end at an input port until it may be switched.
    pub switch: Ps,
    /// From the grant until the packet is in its output queue.
    pub crossing: Ps,
    /// A switching slot: in each at most one packet leaves an input and one enters an output.
    pub slot: Ps,
    /// From a network card to the switch.
    pub nic_rate: Rate,
    /// From the switch to a network card.
    pub switch_rate: Rate,
    /// Room of a network card for packets that have come.
    pub nic_bytes: u64,
    /// Room of an input port; all its virtual output queues share it.
    pub input_bytes: u64,
    /// Room of an output port.
    pub output_bytes: u64,
    /// A header alone: requests and acknowledgements.
    pub header_bytes: u32,
    /// A line with its header.
    pub line_bytes: u32,
    /// The published code gives every packet towards a pool the size of a request and every
    /// packet back that of a line, because its test of the transaction's number never holds
    /// (defect e). True does the same.
    pub size_by_direction: bool,
    /// Between the switches of two racks, one way, with the cards that do remote direct memory
    /// access on it.
    pub uplink_wire: Ps,
    /// Between the switches of two racks.
    pub uplink_rate: Rate,
}

/// Buffer of the switch that the published code names, MB of 2^20 bytes, shared by its ports.
const SWITCH_BUFFER_MIB: u64 = 132;

/// One READ of 64 B between two machines that do nothing else, on `rcmp-testbed`; a test asks the
/// simulator for it.
pub const RDMA_READ: Ps = Ps::ns(1_810);

impl Fabric {
    /// The published constants with the published units.
    pub const fn dracksim_faithful(ports: u64) -> Fabric {
        let port_bytes = SWITCH_BUFFER_MIB.div_ceil(ports) * (1 << 20) / 2;
        Fabric {
            packetise: cpu_cycles(44),
            nic: cpu_cycles(12),
            wire: cpu_cycles(18),
            switch: cpu_cycles(12),
            crossing: cpu_cycles(3),
            slot: cpu_cycles(1),
            nic_rate: Rate { gbps: 100, ns_as_cycles: true },
            switch_rate: Rate { gbps: 400, ns_as_cycles: true },
            nic_bytes: 1 << 20,
            input_bytes: port_bytes,
            output_bytes: port_bytes,
            header_bytes: 64,
            line_bytes: 128,
            size_by_direction: true,
            uplink_wire: Ps::us(1),
            uplink_rate: Rate { gbps: 400, ns_as_cycles: true },
        }
    }

    /// The published constants with true units and sizes.
    pub const fn corrected(ports: u64) -> Fabric {
        let published = Fabric::dracksim_faithful(ports);
        Fabric {
            nic_rate: Rate { gbps: 100, ns_as_cycles: false },
            switch_rate: Rate { gbps: 400, ns_as_cycles: false },
            size_by_direction: false,
            uplink_rate: Rate { gbps: 400, ns_as_cycles: false },
            ..published
        }
    }

    /// A CXL switch with ports of eight lanes at 32 GT/s (256 Gb/s) and flits of 68 bytes: an
    /// assumption, not a measurement. A port's 25 ns there and back are in `packetise`, a
    /// switch's 70 ns there and back in `switch`; the controllers have no card besides.
    pub const fn cxl(ports: u64) -> Fabric {
        let published = Fabric::corrected(ports);
        let lanes = Rate { gbps: 256, ns_as_cycles: false };
        Fabric {
            packetise: Ps(6_250),
            nic: Ps(500),
            wire: Ps::ns(2),
            switch: Ps(32_000),
            crossing: Ps::ns(3),
            slot: Ps(500),
            nic_rate: lanes,
            switch_rate: lanes,
            header_bytes: 17,
            line_bytes: 68,
            uplink_rate: Rate { gbps: 100, ns_as_cycles: false },
            ..published
        }
    }

    /// The same controllers and cables with no switch between: each machine has a link to each
    /// pool, and what stands in the middle takes no time. An assumption, as [`Fabric::cxl`].
    pub const fn cxl_direct(ports: u64) -> Fabric {
        Fabric {
            wire: Ps::ns(1),
            switch: Ps::ZERO,
            crossing: Ps::ZERO,
            slot: Ps(1),
            switch_rate: Rate { gbps: 1 << 20, ns_as_cycles: false },
            ..Fabric::cxl(ports)
        }
    }

    /// RDMA cards of 100 Gb/s and a switch of 90 ns: a line there and back is one READ of 64 B as
    /// `rackpool sim` computes it on `rcmp-testbed`, [`RDMA_READ`], with the work of the processor
    /// and the far memory in it. Sizes, rates, switch and cables are that profile's; doorbell,
    /// PCIe, memory and processor are in `packetise`.
    pub const fn rdma(ports: u64) -> Fabric {
        let published = Fabric::corrected(ports);
        let rate = Rate { gbps: 100, ns_as_cycles: false };
        let fabric = Fabric {
            packetise: Ps::ZERO,
            nic: Ps(16_667),
            wire: Ps::ns(15),
            switch: Ps::ns(90),
            crossing: Ps::ZERO,
            nic_rate: rate,
            switch_rate: rate,
            header_bytes: 46,
            line_bytes: 94,
            uplink_rate: rate,
            ..published
        };
        // Twice at each of the two ends.
        Fabric { packetise: Ps((RDMA_READ.0 - fabric.round_trip().0) / 4), ..fabric }
    }

    /// A line's request and the line within a rack without any queue, its memory left out.
    pub const fn round_trip(&self) -> Ps {
        let there = self.one_way(self.bytes(PacketKind::ReadLine));
        Ps(there.0 + self.one_way(self.bytes(PacketKind::LineData)).0)
    }

    /// The size of a packet.
    pub const fn bytes(&self, kind: PacketKind) -> u32 {
        match (kind, self.size_by_direction) {
            (PacketKind::PageData, _) => PAGE_PACKET_BYTES,
            (PacketKind::WriteLine, true) => self.header_bytes,
            (PacketKind::LineWritten, true) => self.line_bytes,
            (PacketKind::WriteLine | PacketKind::LineData, _) => self.line_bytes,
            (
                PacketKind::ReadLine
                | PacketKind::LineWritten
                | PacketKind::ReadPage
                | PacketKind::PageWritten,
                _,
            ) => self.header_bytes,
        }
    }

    /// One way within a rack without any queue.
    pub const fn one_way(&self, bytes: u32) -> Ps {
        let ends = 2 * (self.packetise.0 + self.nic.0);
        let links = self.nic_rate.time(bytes).0 + self.switch_rate.time(bytes).0 + 2 * self.wire.0;
        Ps(ends + links + self.switch.0 + self.crossing.0)
    }

    /// Why this cannot be an interconnect, if so.
    pub fn problem(&self) -> Option<&'static str> {
        let rates = [self.nic_rate, self.switch_rate, self.uplink_rate];
        let smallest = u64::from(PAGE_PACKET_BYTES);
        match () {
            () if rates.iter().any(|rate| rate.gbps == 0) => Some("a link's gbps is 0"),
            () if self.slot == Ps::ZERO => Some("slot is 0"),
            () if self.header_bytes == 0 || self.line_bytes == 0 => Some("a packet has no size"),
            () if self.header_bytes.max(self.line_bytes) > PAGE_PACKET_BYTES => {
                Some("a header or a line is above 1024 B")
            }
            () if [self.nic_bytes, self.input_bytes, self.output_bytes]
                .iter()
                .any(|room| *room < smallest) =>
            {
                Some("a buffer is below 1024 B, the largest packet")
            }
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip_ns(fabric: &Fabric) -> f64 {
        fabric.round_trip().as_ns_f64()
    }

    #[test]
    fn rdma_takes_what_the_simulator_computes_and_a_switch_is_most_of_cxl() {
        let profile = rackpool_sim::device::Profile::load("rcmp-testbed").unwrap();
        let rungs = rackpool_sim::world::ladder::climb(&profile).unwrap();
        let read = rungs.iter().find(|rung| rung.name == "other rack, read 64 B").unwrap();
        let rdma = round_trip_ns(&Fabric::rdma(70));
        assert!((rdma / read.p50.as_ns_f64() - 1.0).abs() < 0.01, "{rdma}, {}", read.p50);
        assert!((rdma - 1810.0).abs() < 0.1, "{rdma}");
        let (switched, direct) = (Fabric::cxl(10), Fabric::cxl_direct(10));
        let (switched, direct) = (round_trip_ns(&switched), round_trip_ns(&direct));
        // A switch there and back, and its cables and links.
        assert!((108.0..112.0).contains(&switched), "{switched}");
        assert!((32.0..36.0).contains(&direct), "{direct}");
    }

    #[test]
    fn an_unloaded_round_trip_is_as_published_and_as_corrected() {
        let ports = 70;
        assert!((round_trip_ns(&Fabric::dracksim_faithful(ports)) - 95.56).abs() < 0.01);
        assert!((round_trip_ns(&Fabric::corrected(ports)) - 109.76).abs() < 0.01);
    }

    #[test]
    fn defect_e_gives_writes_the_size_of_requests_only_where_it_is_asked_for() {
        let sizes = |fabric: Fabric| {
            [
                PacketKind::ReadLine,
                PacketKind::LineData,
                PacketKind::WriteLine,
                PacketKind::LineWritten,
            ]
            .map(|kind| fabric.bytes(kind))
        };
        assert_eq!(sizes(Fabric::dracksim_faithful(70)), [64, 128, 64, 128]);
        assert_eq!(sizes(Fabric::corrected(70)), [64, 128, 128, 64]);
    }

    #[test]
    fn defect_d_makes_links_faster_by_the_clock() {
        let (coded, true_rate) = (Fabric::dracksim_faithful(70), Fabric::corrected(70));
        // 128 B at 100 Gb/s: 10.24 ns; as coded 10 cycles.
        assert_eq!(true_rate.nic_rate.time(128), Ps(10_240));
        assert_eq!(coded.nic_rate.time(128), cpu_cycles(10));
        assert_eq!(coded.input_bytes, 1 << 20, "2 MiB a port of 70, half for each direction");
    }

    #[test]
    fn an_impossible_interconnect_is_named() {
        let good = Fabric::corrected(70);
        assert_eq!(good.problem(), None);
        for fabric in [Fabric::cxl(10), Fabric::cxl_direct(10), Fabric::rdma(10)] {
            assert_eq!(fabric.problem(), None);
        }
        for wrong in [
            Fabric { slot: Ps::ZERO, ..good },
            Fabric { output_bytes: 100, ..good },
            Fabric { line_bytes: 0, ..good },
            Fabric { nic_rate: Rate { gbps: 0, ns_as_cycles: false }, ..good },
        ] {
            assert!(wrong.problem().is_some());
        }
    }
}
