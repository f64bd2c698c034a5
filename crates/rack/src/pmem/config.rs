//! What a module of persistent memory is made of, in numbers, each with where it comes from.

use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// What the controller and the DIMM exchange at a time.
pub const LINE_BYTES: u64 = 64;

/// From where on a store survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PresetDomain {
    /// The memory controller's queues: caches have to be written back (ADR).
    Adr,
    /// The processor's caches too (eADR), or a device that a flush by the platform reaches (GPF of
    /// CXL): a store that other processors can see is durable.
    Eadr,
}

/// Wear levelling: a block that is written most is moved, and its accesses wait for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wear {
    /// What is moved at a time.
    pub block_bytes: u64,
    /// Writes of the medium to one block, less those to others in between, after which it is moved.
    pub writes: u64,
    /// How long its accesses wait.
    pub stall: Ps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DimmConfig {
    /// The medium's unit: what it reads and writes at a time.
    pub unit_bytes: u64,
    /// Units that the buffer holds.
    pub units: usize,
    /// Neighbouring units of it that have their room together.
    pub block_units: usize,
    /// A read that finds its line in the buffer, in the module.
    pub hit: Ps,
    /// More for one that the medium has to read.
    pub media_read: Ps,
    /// Between two units that the medium reads.
    pub read_gap: Ps,
    /// Between two units that it writes. The read that a partly written unit needs is within that.
    pub write_gap: Ps,
    /// Units that wait for the medium at most.
    pub write_backs_max: usize,
    /// Between two lines on the bus of the module.
    pub bus_gap: Ps,
    /// Bytes that the medium writes for each 100 bytes of units: with the address table.
    pub written_percent: u64,
    pub wear: Option<Wear>,
    /// Reads, and as many writes, that a module has under way at most.
    pub queue_max: usize,
}

/// Whether a number is the machine's or was set so that the model gives a known result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConstantOrigin {
    Setting,
    Fitted,
    Chosen,
}

impl ConstantOrigin {
    pub const fn name(self) -> &'static str {
        match self {
            ConstantOrigin::Setting => "setting",
            ConstantOrigin::Fitted => "fitted",
            ConstantOrigin::Chosen => "chosen",
        }
    }
}

/// A number of the model as it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediaConstant {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub origin: ConstantOrigin,
    pub source: &'static str,
}

/// Between a core and a module, both ways together; the same as in `repro hmsdk`.
pub const UNCORE: Ps = Ps::ns(70);

/// An Optane DIMM of the first series with 256 GB; [`DimmConfig::constants`] has the sources.
pub const OPTANE100: DimmConfig = DimmConfig {
    unit_bytes: 256,
    units: 64,
    block_units: 8,
    hit: Ps(54_200),
    media_read: Ps(180_800),
    read_gap: Ps(38_788),
    write_gap: Ps(111_304),
    write_backs_max: 23,
    bus_gap: Ps(3_000),
    written_percent: 104,
    wear: Some(Wear { block_bytes: 64 << 10, writes: 4_167, stall: Ps::us(50) }),
    queue_max: 256,
};

impl DimmConfig {
    /// How many blocks the buffer holds.
    pub fn blocks(&self) -> usize {
        self.units / self.block_units
    }

    /// Between two lines of a stream that is read.
    pub fn line_read_ps(&self) -> u64 {
        self.read_gap.0 * LINE_BYTES / self.unit_bytes
    }

    /// The numbers of [`OPTANE100`] with their sources: "figure" is one of the guide's, "table" the
    /// published measurements behind it.
    pub fn constants(&self) -> Vec<MediaConstant> {
        use ConstantOrigin::{Chosen, Fitted, Setting};
        let of =
            |name, value, unit, origin, source| MediaConstant { name, value, unit, origin, source };
        let ns = |ps: Ps| ps.as_ns_f64();
        let mut all = vec![
            of("uncore", ns(UNCORE), "ns", Chosen, "as in repro hmsdk; only sums with it count"),
            of("unit", self.unit_bytes as f64, "B", Setting, "the guide, structure"),
            of("buffer", self.units as f64, "units", Setting, "the guide, figure 9: 16 KiB"),
            of(
                "buffer_block",
                self.block_units as f64,
                "units",
                Fitted,
                "raw data, in no figure: 8 threads' random ntstores of 128 B to one, 0.72 GB/s",
            ),
            of("hit", ns(self.hit), "ns", Fitted, "figure 2: (305.0 + 3 hit) / 4 = 169.4 in order"),
            of("media_read", ns(self.media_read), "ns", Fitted, "figure 2: 305.0 at random"),
            of("read_gap", ns(self.read_gap), "ns", Fitted, "the guide: 6.6 GB/s of one DIMM"),
            of("write_gap", ns(self.write_gap), "ns", Fitted, "the guide: 2.3 GB/s of one DIMM"),
            of(
                "write_backs",
                self.write_backs_max as f64,
                "units",
                Fitted,
                "raw data, in no figure: 2 threads' random ntstores of 4 KiB to six, 7.7 GB/s",
            ),
            of("bus_gap", ns(self.bus_gap), "ns", Setting, "DDR4-2666, 8 B wide: 21.3 GB/s"),
            of(
                "written",
                self.written_percent as f64,
                "percent",
                Fitted,
                "table of figure 9: amplification 1.04 where all is combined",
            ),
        ];
        if let Some(wear) = self.wear {
            let block = wear.block_bytes as f64;
            all.push(of("wear_block", block, "B", Fitted, "table of figure 3: none from 128 KiB"));
            let writes = wear.writes as f64;
            let source = "the guide: 0.006 % of writes of 64 B, four to a unit";
            all.push(of("wear_writes", writes, "units", Fitted, source));
            all.push(of("wear_stall", ns(wear.stall), "ns", Fitted, "the guide: some 50 us"));
        }
        all
    }
}

/// Memory that persists, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmemPreset {
    pub name: &'static str,
    pub media: &'static str,
    pub domain: PresetDomain,
    pub source: &'static str,
}

/// The presets: Optane, and memory behind CXL that its device saves.
pub const PRESETS: [PmemPreset; 3] = [
    PmemPreset {
        name: "optane100",
        media: "optane100",
        domain: PresetDomain::Adr,
        source: "the guide to Optane memory; constants with sources in repro optane",
    },
    PmemPreset {
        name: "cxl-nv-ddr5",
        media: "cxl:70:32:ddr5-4800",
        domain: PresetDomain::Eadr,
        source: "DRAM by JESD79-5 that the device saves (GPF of CXL 2.0); link as --emulate \
                 cxl=140ns, chosen",
    },
    PmemPreset {
        name: "cxl-nv-ddr4",
        media: "cxl:70:16:ddr4-2400",
        domain: PresetDomain::Eadr,
        source: "DRAM by JESD79-4 that the device saves (GPF of CXL 2.0); link as --emulate \
                 cxl=140ns, chosen",
    },
];

impl PmemPreset {
    pub fn named(name: &str) -> Option<&'static PmemPreset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_give_what_they_were_fitted_to() {
        let near = |ours: f64, is: f64| assert!((ours / is - 1.0).abs() < 0.01, "{ours} for {is}");
        let c = OPTANE100;
        let random = (UNCORE + c.hit + c.media_read).as_ns_f64();
        let hit = (UNCORE + c.hit).as_ns_f64();
        near(random, 305.0);
        near((random + 3.0 * hit) / 4.0, 169.4);
        near(c.unit_bytes as f64 / c.read_gap.as_ns_f64(), 6.6);
        near(c.unit_bytes as f64 / c.write_gap.as_ns_f64(), 2.3);
        let wear = c.wear.unwrap();
        near(100.0 / (4.0 * wear.writes as f64), 0.006);
        assert_eq!(c.units as u64 * c.unit_bytes, 16 << 10);
        assert!(c.constants().iter().all(|one| one.value > 0.0 && !one.source.is_empty()));
    }
}
