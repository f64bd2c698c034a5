//! Rcmp's evaluation (ACM TACO 2024, §6): latencies, clients, racks, the two-layer ring, swapping
//! by `Hp`, YCSB, and what each mechanism adds, with the engines on the paper's path (through the
//! daemon) and, beside it as ours, with clients that reach other racks themselves.

use super::load::{self, Load, Seen};
use super::{Figure, Paper, Repro};
use crate::device::Profile;
use crate::report::{Cell, Table};
use crate::world::Path;
use crate::world::ladder::climb;
use crate::world::performance::Settings;
use rackpool_core::daemon::Rings;
use rackpool_core::policy::{CostParams, PaperParams, Policy};

/// Sizes of §6.2, bytes.
const SIZES: [u64; 6] = [64, 128, 256, 512, 1024, 4096];
/// Clients of each rack.
const CLIENTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Racks.
const RACKS: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Hotness thresholds of §6.5.
const HOT: [u64; 4] = [1, 2, 3, 4];
/// Operations of a client where pages move: a page of 2 MiB pays back after many.
const SWAP_OPERATIONS: u64 = 40_000;
/// The mixes of YCSB that the paper runs: name, writes and changes in parts per million. Inserts of
/// D are writes here.
const YCSB: [(&str, u32, u32); 5] =
    [("A", 500_000, 0), ("B", 50_000, 0), ("C", 0, 0), ("D", 50_000, 0), ("F", 0, 500_000)];

/// Runs everything. `told` hears of each part.
pub fn rcmp(
    profile: &Profile,
    is_quick: bool,
    told: &mut dyn FnMut(&str),
) -> Result<Repro, String> {
    let mut one = Rcmp { profile, is_quick, repro: Repro::default() };
    told("latencies of one access");
    one.ladder()?;
    told("latency by size");
    one.sizes()?;
    told("clients");
    one.clients()?;
    told("racks");
    one.racks()?;
    told("rings of one layer and of two");
    one.rings()?;
    told("swapping");
    one.swaps()?;
    told("YCSB");
    one.ycsb()?;
    told("what each mechanism adds");
    one.ablation()?;
    Ok(one.repro)
}

struct Rcmp<'p> {
    profile: &'p Profile,
    is_quick: bool,
    repro: Repro,
}

fn percent(ours: f64, base: f64) -> f64 {
    (ours / base - 1.0) * 100.0
}

fn paper_policy(hot: u64) -> Policy {
    let mut params = PaperParams::default();
    params.heat.hot_milli = hot * 1000;
    Policy::Paper(params)
}

fn moving(migration: Policy) -> Settings {
    Settings { migration, ..Settings::default() }
}

impl Rcmp<'_> {
    fn run(&self, load: Load) -> Result<Seen, String> {
        let share = if self.is_quick { 5 } else { 1 };
        load::run(self.profile, &Load { operations: load.operations / share, ..load })
    }

    fn figure(
        &mut self,
        name: &str,
        unit: &'static str,
        ours: f64,
        paper: Paper,
        note: &'static str,
    ) {
        let is_lower_better = unit == "ns";
        let name = name.to_owned();
        self.repro.figures.push(Figure { name, unit, is_lower_better, ours, paper, note });
    }

    fn ladder(&mut self) -> Result<(), String> {
        let rungs = climb(self.profile)?;
        let of = |name: &str| -> f64 {
            let rung = rungs.iter().find(|rung| rung.name == name);
            rung.map_or(f64::NAN, |rung| rung.p50.as_ns_f64())
        };
        let (dram, cxl) = (of("DRAM load"), of("own rack, bare CXL load"));
        let rdma = of("other rack, read 64 B");
        let note = "Table 1 and 6.2: a constant of the profile, not a result";
        self.figure("dram_load", "ns", dram, Paper::Is(93.0), note);
        self.figure("cxl_load", "ns", cxl, Paper::Is(138.5), note);
        self.figure("rdma_over_dram", "x", rdma / dram, Paper::Above(20.0), "2.2");
        self.figure("rdma_over_cxl", "x", rdma / cxl, Paper::Above(10.0), "2.2");
        let note = "inferred: the paper gives the mean of local and remote accesses only";
        let through = of("the paper's path, read 64 B");
        self.figure("remote_read_64B_through_the_daemon", "ns", through, Paper::Silent, note);
        let note = "ours: the client's own connection";
        self.figure("remote_read_64B_direct", "ns", rdma, Paper::Silent, note);
        Ok(())
    }

    fn sizes(&mut self) -> Result<(), String> {
        let columns = [
            ("bytes", ""),
            ("read, mean", "ns"),
            ("write, mean", "ns"),
            ("direct read, mean", "ns"),
            ("direct write, mean", "ns"),
        ];
        let mut table = Table::new("latency_by_size", "Latency by size, half local", &columns);
        let (mut reads, mut writes, mut small) = (0.0_f64, 0.0_f64, 0.0);
        for bytes in SIZES {
            let load = Load { clients: 1, item_bytes: bytes, ..Load::paper() };
            let seen = self.run(load)?;
            let direct = self.run(Load { path: Path::OneSided, ..load })?;
            let ns = |seen: &crate::histogram::Histogram| seen.mean().unwrap_or(0.0) / 1e3;
            reads = reads.max(ns(&seen.reads));
            writes = writes.max(ns(&seen.writes));
            if bytes == 64 {
                small = seen.mean_ns();
            }
            table.row([
                bytes.to_string().into(),
                ns(&seen.reads).into(),
                ns(&seen.writes).into(),
                ns(&direct.reads).into(),
                ns(&direct.writes).into(),
            ]);
        }
        self.repro.tables.push(table);
        let note = "6.2, at all sizes; the longest mean of 64 B to 4 KiB";
        self.figure("read_latency", "ns", reads, Paper::Below(3000.0), note);
        self.figure("write_latency", "ns", writes, Paper::Below(3500.0), note);
        let note = "6.2: Fastswap is above 12 us, which is about 5.2 times Rcmp's";
        self.figure("mean_latency_64B", "ns", small, Paper::Is(2300.0), note);
        Ok(())
    }

    fn clients(&mut self) -> Result<(), String> {
        let columns =
            [("clients a rack", ""), ("through the daemon", "ops/s"), ("direct (ours)", "ops/s")];
        let mut table = Table::new("clients", "Operations a second by clients, 2 racks", &columns);
        let mut rates = Vec::new();
        for clients in CLIENTS {
            let load = Load { clients, operations: 24_000 / u64::from(clients), ..Load::paper() };
            let rate = self.run(load)?.rate;
            let direct = self.run(Load { path: Path::OneSided, ..load })?.rate;
            rates.push(rate);
            table.row([clients.to_string().into(), rate.into(), direct.into()]);
        }
        self.repro.tables.push(table);
        let scaled = rates[3] / rates[0];
        let note = "6.3: nearly linear below 16 clients";
        self.figure("rate_8_clients_over_1", "x", scaled, Paper::Is(8.0), note);
        let note = "6.3: the daemon limits beyond 16; a factor of 4 would be linear";
        self.figure("rate_64_clients_over_16", "x", rates[6] / rates[4], Paper::Below(4.0), note);
        Ok(())
    }

    fn racks(&mut self) -> Result<(), String> {
        let columns = [
            ("racks", ""),
            ("through the daemon, each client", "ops/s"),
            ("direct (ours), each client", "ops/s"),
        ];
        let title = "Operations a second of each client by racks, 8 clients each";
        let mut table = Table::new("racks", title, &columns);
        let mut rates = Vec::new();
        for racks in RACKS {
            let pages = (256 / u64::from(racks)).max(8);
            let load = Load { racks, pages, operations: 800, ..Load::paper() };
            let each = |seen: Seen| seen.rate / f64::from(racks * load.clients);
            let rate = each(self.run(load)?);
            let direct = each(self.run(Load { path: Path::OneSided, ..load })?);
            rates.push(rate);
            table.row([racks.to_string().into(), rate.into(), direct.into()]);
        }
        let half = "With more racks a larger share of uniform accesses is remote: half with \
                    2 racks, 63 of 64 with 64.";
        table.note(half);
        self.repro.tables.push(table);
        let note = "6.4: slight loss from 2 to 5 racks; here to 4, and the remote share grows from \
                    1/2 to 3/4";
        self.figure("rate_4_racks_over_2", "x", rates[1] / rates[0], Paper::Silent, note);
        Ok(())
    }

    /// Threads of a client share a ring in the paper; here the daemon takes what all clients ask
    /// as if it were in one ring of one layer.
    fn rings(&mut self) -> Result<(), String> {
        let columns = [("rings", ""), ("p50", "ns"), ("p99", "ns"), ("p999", "ns")];
        let title = "Latency of all requests to the daemon, local and remote, 4 clients a rack";
        let mut table = Table::new("rings", title, &columns);
        let mut seen = Vec::new();
        for (name, rings) in [("one layer", Rings::Single), ("two layers", Rings::TwoLayer)] {
            let settings = Settings { rings, ..Settings::default() };
            let load = Load {
                clients: 4,
                first_touch_ppm: 1_000_000,
                write_ppm: 0,
                settings,
                ..Load::paper()
            };
            let asked = self.run(load)?.asked;
            let at = |ppm| asked.percentile(ppm).unwrap_or(0) as f64 / 1e3;
            let row = [at(500_000), at(990_000), at(999_000)];
            table.row([name.into(), row[0].into(), row[1].into(), row[2].into()]);
            seen.push(row);
        }
        table.note("Local requests: what they wait for is other clients' remote ones.");
        self.repro.tables.push(table);
        let note = "6.5: at most; local requests, which wait behind remote ones in one layer";
        for (index, name, paper) in [
            (0, "two_layer_ring_p50", 0.783),
            (1, "two_layer_ring_p99", 0.691),
            (2, "two_layer_ring_p999", 0.485),
        ] {
            let factor = seen[1][index] / seen[0][index];
            self.figure(name, "x", factor, Paper::Is(paper), note);
        }
        Ok(())
    }

    fn swaps(&mut self) -> Result<(), String> {
        let columns = [
            ("policy", ""),
            ("uniform", "%"),
            ("zipfian", "%"),
            ("pages moved, uniform", "count"),
            ("pages moved, zipfian", "count"),
        ];
        let title = "Gain of moving pages over leaving them, pages of 2 MiB";
        let mut table = Table::new("swap", title, &columns);
        let load = Load { operations: SWAP_OPERATIONS, ..Load::paper() };
        let of = |is_zipfian, settings| Load { is_zipfian, settings, ..load };
        let base = [
            self.run(of(false, Settings::default()))?.rate,
            self.run(of(true, Settings::default()))?.rate,
        ];
        let policies = HOT.map(|hot| (format!("paper, Hp = {hot}"), paper_policy(hot)));
        let cost = [("cost (ours)".to_owned(), Policy::Cost(CostParams::default()))];
        for (name, policy) in policies.into_iter().chain(cost) {
            let uniform = self.run(of(false, moving(policy)))?;
            let zipfian = self.run(of(true, moving(policy)))?;
            let gains = [percent(uniform.rate, base[0]), percent(zipfian.rate, base[1])];
            let moves = [uniform.moves, zipfian.moves];
            let cells = [gains[0].into(), gains[1].into(), moves[0].into(), moves[1].into()];
            table.row(std::iter::once(Cell::from(name.clone())).chain(cells));
            if name == "paper, Hp = 3" {
                let note = "6.5, at Hp = 3";
                let factors = gains.map(|gain| 1.0 + gain / 100.0);
                self.figure("swap_gain_uniform", "x", factors[0], Paper::Is(1.05), note);
                self.figure("swap_gain_zipfian", "x", factors[1], Paper::Is(1.35), note);
            }
            if name == "paper, Hp = 1" {
                let note = "6.5: performance collapses; no number";
                let factor = 1.0 + gains[0] / 100.0;
                self.figure("swap_gain_uniform_at_1", "x", factor, Paper::Below(1.0), note);
            }
        }
        self.repro.tables.push(table);
        Ok(())
    }

    fn ycsb(&mut self) -> Result<(), String> {
        let columns = [
            ("workload", ""),
            ("base", "ops/s"),
            ("paper's policy, Hp = 3", "ops/s"),
            ("direct, cost (ours)", "ops/s"),
        ];
        let mut table = Table::new("ycsb", "YCSB, zipfian, 8 clients a rack", &columns);
        for (name, write_ppm, change_ppm) in YCSB {
            let load =
                Load { is_zipfian: true, write_ppm, change_ppm, operations: 3000, ..Load::paper() };
            let base = self.run(load)?.rate;
            let paper = self.run(Load { settings: moving(paper_policy(3)), ..load })?.rate;
            let ours = Load {
                path: Path::OneSided,
                settings: moving(Policy::Cost(CostParams::default())),
                ..load
            };
            let ours = self.run(ours)?.rate;
            table.row([name.into(), base.into(), paper.into(), ours.into()]);
        }
        table.note("The paper states these against Fastswap only, whose baseline follows.");
        self.repro.tables.push(table);
        Ok(())
    }

    fn ablation(&mut self) -> Result<(), String> {
        let columns = [("with", ""), ("operations a second", "ops/s"), ("over base", "x")];
        let title = "What each mechanism adds, zipfian, half writes";
        let mut table = Table::new("ablation", title, &columns);
        let load = Load { is_zipfian: true, operations: SWAP_OPERATIONS / 2, ..Load::paper() };
        let single = Settings { rings: Rings::Single, ..Settings::default() };
        let own = Load { racks: 1, pages: 2 * load.pages, ..load };
        let steps = [
            ("base: one layer, no swap", Load { settings: single, ..load }),
            ("+ two-layer ring", load),
            ("+ swap, Hp = 3", Load { settings: moving(paper_policy(3)), ..load }),
            ("direct (ours)", Load { path: Path::OneSided, ..load }),
            (
                "direct, cost (ours)",
                Load {
                    path: Path::OneSided,
                    settings: moving(Policy::Cost(CostParams::default())),
                    ..load
                },
            ),
            ("only CXL (bound)", own),
        ];
        let mut base = None;
        for (name, load) in steps {
            let seen = self.run(load)?;
            // The bound has the clients of one rack.
            let rate = seen.rate * if load.racks == 1 { 2.0 } else { 1.0 };
            let base = *base.get_or_insert(rate);
            table.row([name.into(), rate.into(), (rate / base).into()]);
        }
        table.note("The write buffer and RRPC are measured by `bench locks` and `bench rrpc`.");
        self.repro.tables.push(table);
        Ok(())
    }
}
