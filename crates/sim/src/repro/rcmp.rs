//! Rcmp's evaluation (ACM TACO 2024, §6): latencies, clients, racks, the two-layer ring, swapping
//! by `Hp`, the write buffer and RRPC by size, YCSB, and what each mechanism adds, with the engines
//! on the paper's path (through the daemon) and, beside it as ours, with clients that reach other
//! racks themselves. RRPC runs beside models of other systems' ways.

use super::baselines::{self, DATAGRAM_BYTES_MAX, FetchSystem};
use super::calls::Calls;
use super::evaluation::{Evaluation, PaperParts, Part};
use super::load::{self, LoadStats, RcmpLoad, buffered};
use super::rrpc::{self, FetchMethod};
use super::{Origin, Paper, Set};
use crate::report::Table;
use crate::world::ladder::climb;
use crate::world::performance::Settings;
use crate::world::{FetchMode, Path};
use rackpool_core::constants::BUFFERED_WRITE_BYTES_MAX_DEFAULT;
use rackpool_core::daemon::Rings;
use rackpool_core::policy::{CostParams, MigrationPolicy, PaperParams};
use rackpool_core::rrpc::{INLINE_BYTES_MAX, LinkProbe, THRESHOLD_PAPER_BYTES, threshold};

/// How near a figure has to be to be as stated: a fifth.
const WITHIN: f64 = 0.2;
/// Sizes of §6.2, bytes.
const SIZES: [u64; 6] = [64, 128, 256, 512, 1024, 4096];
const CLIENTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const RACKS: [u32; 8] = [2, 3, 4, 5, 8, 16, 32, 64];
/// Hotness thresholds of §6.5.
const HOT: [u64; 4] = [1, 2, 3, 4];
/// Operations of a client where pages move: a page of 2 MiB pays back after many.
const SWAP_OPERATIONS: u64 = 40_000;
/// Sizes of writes under locks, bytes. Source: figure 21.
const LOCKED_SIZES: [u64; 5] = [64, 128, 256, 512, 1024];
/// Writes under one lock, where that is not what is varied. The paper says nothing of it.
const WRITES_A_LOCK: u64 = 32;
/// Operations of the clients of a rack together, where writes are under locks.
const LOCKED_OPERATIONS: u64 = 16_000;
/// What is tried where it is varied.
const WRITES_A_LOCK_VARIED: [u64; 4] = [1, 4, 16, 64];
/// Sizes of transfers, bytes. Source: figure 22.
const CALL_SIZES: [u64; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// Clients that call at once, as in 6.4.
const CALLERS: u32 = 8;
/// The mixes of YCSB that the paper runs: name, writes and changes in parts per million. Inserts of
/// D are writes here.
const YCSB: [(&str, u32, u32); 5] =
    [("A", 500_000, 0), ("B", 50_000, 0), ("C", 0, 0), ("D", 50_000, 0), ("F", 0, 500_000)];

/// What comes out because it went in.
const SET: [Set; 4] = [
    ("dram_load", Origin::Input, "Table 1's latency is the profile's"),
    ("cxl_load", Origin::Input, "6.2's latency is the profile's"),
    ("rdma_over_dram", Origin::Derived, "a READ of the profile over its DRAM load"),
    ("rdma_over_cxl", Origin::Derived, "a READ of the profile over its CXL load"),
];

/// The parts by what they are called, in the order in which they run.
const PARTS: [(&str, Part<Rcmp>); 11] = [
    ("latencies of one access", Evaluation::ladder),
    ("latency by size", Evaluation::sizes),
    ("clients", Evaluation::clients),
    ("racks", Evaluation::racks),
    ("rings of one layer and of two", Evaluation::rings),
    ("swapping", Evaluation::swaps),
    ("write buffer by size", Evaluation::write_buffer),
    ("writes a lock", Evaluation::writes_a_lock),
    ("RRPC by size", Evaluation::rrpc),
    ("YCSB", Evaluation::ycsb),
    ("what each mechanism adds", Evaluation::ablation),
];

pub enum Rcmp {}

impl PaperParts for Rcmp {
    const PARTS: &'static [(&'static str, Part<Rcmp>)] = &PARTS;
    const SET: &'static [Set] = &SET;
    const WITHIN: f64 = WITHIN;
}

fn percent(ours: f64, base: f64) -> f64 {
    (ours / base - 1.0) * 100.0
}

fn paper_policy(hot: u64) -> MigrationPolicy {
    let mut params = PaperParams::default();
    params.heat.hot_milli = hot * 1000;
    MigrationPolicy::Paper(params)
}

fn moving(migration: MigrationPolicy) -> Settings {
    Settings { migration, ..Settings::default() }
}

/// Nothing but writes under locks. A rack has few pages: each client locks its own part of each.
fn locked(writes_a_lock: u64, clients: u32) -> RcmpLoad {
    let operations = LOCKED_OPERATIONS / u64::from(clients);
    let (write_ppm, pages) = (1_000_000, 16);
    RcmpLoad { clients, operations, write_ppm, writes_a_lock, pages, ..RcmpLoad::paper() }
}

/// Columns of what [`Rcmp::buffer_gains`] has to say.
const fn buffer_columns(varied: &'static str) -> [(&'static str, &'static str); 7] {
    [
        (varied, ""),
        ("without", "ops/s"),
        ("buffered", "ops/s"),
        ("gain", "x"),
        ("direct, without", "ops/s"),
        ("direct, buffered", "ops/s"),
        ("direct, gain", "x"),
    ]
}

/// Columns of the calls by size, in the order of [`Rcmp::fetch_all`].
const RRPC_RATES: [(&str, &str); 7] = rrpc_columns("ops/s");
const RRPC_TIMES: [(&str, &str); 7] = rrpc_columns("ns");

const fn rrpc_columns(unit: &'static str) -> [(&'static str, &'static str); 7] {
    [
        ("bytes", ""),
        ("RRPC", unit),
        ("RRPC, place known", unit),
        ("our call carries it", unit),
        ("eRPC", unit),
        ("eRPC + one-sided read", unit),
        ("FaRM's RPC", unit),
    ]
}

const BASELINES: &str = "eRPC and FaRM are small models on the same network and device costs, \
                         with two threads at the home as ours (sim/src/repro/baselines.rs).";

fn rrpc_title(what: &str, clients: u32) -> String {
    format!("{what} by size of what is fetched from another rack, {clients} at once")
}

impl Evaluation<Rcmp> {
    fn run(&self, load: RcmpLoad) -> Result<LoadStats, String> {
        let operations = self.operations(load.operations);
        load::run(&self.profile, &RcmpLoad { operations, ..load })
    }

    fn ladder(&mut self) -> Result<(), String> {
        let rungs = climb(&self.profile)?;
        let of = |name: &str| -> f64 {
            let rung = rungs.iter().find(|rung| rung.name == name);
            rung.map_or(f64::NAN, |rung| rung.p50.as_ns_f64())
        };
        let (dram, cxl) = (of("DRAM load"), of("own rack, bare CXL load"));
        let rdma = of("other rack, read 64 B");
        let note = "Table 1 and 6.2";
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
            let load = RcmpLoad { clients: 1, item_bytes: bytes, ..RcmpLoad::paper() };
            let seen = self.run(load)?;
            let direct = self.run(RcmpLoad { path: Path::OneSided, ..load })?;
            let ns = |seen: &crate::histogram::Histogram| seen.mean().unwrap_or(0.0) / 1e3;
            reads = reads.max(ns(&seen.reads));
            writes = writes.max(ns(&seen.writes));
            if bytes == 64 {
                small = seen.mean_ns();
            }
            let all = [&seen.reads, &seen.writes, &direct.reads, &direct.writes];
            table.line(bytes, all.map(ns));
        }
        self.table(table);
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
            let load =
                RcmpLoad { clients, operations: 24_000 / u64::from(clients), ..RcmpLoad::paper() };
            let rate = self.run(load)?.rate;
            let direct = self.run(RcmpLoad { path: Path::OneSided, ..load })?.rate;
            rates.push(rate);
            table.line(clients, [rate, direct]);
        }
        self.table(table);
        let scaled = rates[3] / rates[0];
        let note = "6.3: nearly linear below 16 clients";
        self.figure("rate_8_clients_over_1", "x", scaled, Paper::Is(8.0), note);
        let note = "6.3; a factor of 4 would be linear";
        let paper = Paper::Words("the daemon limits beyond 16", [0.0, 2.0]);
        self.figure("rate_64_clients_over_16", "x", rates[6] / rates[4], paper, note);
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
        let rate_of = |rates: &[(u32, f64)], racks| {
            let found = rates.iter().find(|(of, _)| *of == racks);
            found.expect("it was run").1
        };
        for racks in RACKS {
            let pages = (256 / u64::from(racks)).max(8);
            let load = RcmpLoad { racks, pages, operations: 800, ..RcmpLoad::paper() };
            let each = |seen: LoadStats| seen.rate / f64::from(racks * load.clients);
            let rate = each(self.run(load)?);
            let direct = each(self.run(RcmpLoad { path: Path::OneSided, ..load })?);
            rates.push((racks, rate));
            table.line(racks, [rate, direct]);
        }
        let half = "With more racks a larger share of uniform accesses is remote: half with \
                    2 racks, 63 of 64 with 64.";
        table.note(half);
        self.table(table);
        let two = rate_of(&rates, 2);
        let note = "6.3 speaks of 5; here 4, and the remote share grows from 1/2 to 3/4";
        let factor = rate_of(&rates, 4) / two;
        self.figure("rate_4_racks_over_2", "x", factor, Paper::Silent, note);
        let note = "6.3; the remote share grows from 1/2 to 4/5";
        let slight = Paper::Words("slight loss from 2 to 5 racks", [0.8, 1.0]);
        let factor = rate_of(&rates, 5) / two;
        self.figure("rate_5_racks_over_2", "x", factor, slight, note);
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
            let load = RcmpLoad {
                clients: 4,
                first_touch_ppm: 1_000_000,
                write_ppm: 0,
                settings,
                ..RcmpLoad::paper()
            };
            let asked = self.run(load)?.asked;
            let at = |ppm| asked.percentile(ppm).unwrap_or(0) as f64 / 1e3;
            let row = [at(500_000), at(990_000), at(999_000)];
            table.line(name, row);
            seen.push(row);
        }
        table.note("Local requests: what they wait for is other clients' remote ones.");
        self.table(table);
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
        let load = RcmpLoad { operations: SWAP_OPERATIONS, ..RcmpLoad::paper() };
        let of = |is_zipfian, settings| RcmpLoad { is_zipfian, settings, ..load };
        let base = [
            self.run(of(false, Settings::default()))?.rate,
            self.run(of(true, Settings::default()))?.rate,
        ];
        let policies = HOT.map(|hot| (format!("paper, Hp = {hot}"), paper_policy(hot)));
        let cost = [("cost (ours)".to_owned(), MigrationPolicy::Cost(CostParams::default()))];
        for (name, policy) in policies.into_iter().chain(cost) {
            let uniform = self.run(of(false, moving(policy)))?;
            let zipfian = self.run(of(true, moving(policy)))?;
            let gains = [percent(uniform.rate, base[0]), percent(zipfian.rate, base[1])];
            let moves = [uniform.moves, zipfian.moves].map(|moves| moves as f64);
            table.line(&name, gains.into_iter().chain(moves));
            if name == "paper, Hp = 3" {
                let note = "6.5, at Hp = 3";
                let factors = gains.map(|gain| 1.0 + gain / 100.0);
                self.figure("swap_gain_uniform", "x", factors[0], Paper::Is(1.05), note);
                self.figure("swap_gain_zipfian", "x", factors[1], Paper::Is(1.35), note);
            }
            if name == "paper, Hp = 1" {
                let note = "6.5; use is told in batches here, so that Hp decides nothing";
                let factor = 1.0 + gains[0] / 100.0;
                let paper = Paper::Words("performance collapses", [0.0, 0.8]);
                self.figure("swap_gain_uniform_at_1", "x", factor, paper, note);
            }
        }
        self.table(table);
        Ok(())
    }

    /// Writes under locks of ranges, uniform over both racks, with and without the write buffer:
    /// by one client a rack, which waits for each write, and by as many as the daemon can serve.
    fn write_buffer(&mut self) -> Result<(), String> {
        for (name, figure, clients) in [
            ("write_buffer", "write_buffer_gain_1_client", 1),
            ("write_buffer_8_clients", "write_buffer_gain_8_clients", 8),
        ] {
            let title =
                format!("Writes under locks, 32 a lock, half local, clients a rack: {clients}");
            let mut table = Table::new(name, &title, &buffer_columns("bytes"));
            let mut gains = Vec::new();
            for bytes in LOCKED_SIZES {
                let load = RcmpLoad { item_bytes: bytes, ..locked(WRITES_A_LOCK, clients) };
                let row = self.buffer_gains(load)?;
                gains.push((bytes, row[2]));
                table.line(bytes, row);
            }
            table.note(
                "Above 256 B the buffer is made to take what neither the paper's nor ours does.",
            );
            self.table(table);
            let limit = u64::from(BUFFERED_WRITE_BYTES_MAX_DEFAULT);
            let taken = gains.iter().filter(|(bytes, _)| *bytes <= limit);
            let most = taken.map(|(_, gain)| *gain).fold(0.0, f64::max);
            let note = "6.5, at most; the most of 64 to 256 B, 32 writes a lock";
            self.figure(figure, "x", most, Paper::Is(1.6), note);
            for (bytes, gain) in gains.into_iter().filter(|(bytes, _)| *bytes > limit) {
                let paper = Paper::Words("not obvious above 256 B", [0.9, 1.1]);
                self.figure(&format!("{figure}_{bytes}B"), "x", gain, paper, "6.5");
            }
        }
        Ok(())
    }

    fn writes_a_lock(&mut self) -> Result<(), String> {
        let title = "Writes of 64 B under locks, half local, clients a rack: 1";
        let columns = buffer_columns("writes a lock");
        let mut table = Table::new("writes_a_lock", title, &columns);
        for writes in WRITES_A_LOCK_VARIED {
            table.line(writes, self.buffer_gains(locked(writes, 1))?);
        }
        self.table(table);
        Ok(())
    }

    /// Rates without and with the buffer and their quotient, through the daemon and direct.
    fn buffer_gains(&self, load: RcmpLoad) -> Result<[f64; 6], String> {
        let mut row = Vec::new();
        for path in [Path::Proxied, Path::OneSided] {
            let without = self.run(RcmpLoad { path, ..load })?.rate;
            let coupled = buffered(load.item_bytes as u32);
            let with = self.run(RcmpLoad { path, coupled, ..load })?.rate;
            row.extend([without, with, with / without]);
        }
        Ok(row.try_into().expect("two paths"))
    }

    /// Calls by size beside other systems' ways to fetch, places unknown.
    fn rrpc(&mut self) -> Result<(), String> {
        let mut rates = Table::new("rrpc", &rrpc_title("Calls a second", CALLERS), &RRPC_RATES);
        let mut times = Table::new("rrpc_latency", &rrpc_title("Mean latency", 1), &RRPC_TIMES);
        let mut large = Vec::new();
        let mut probes = Vec::new();
        for bytes in CALL_SIZES {
            let seen = self.fetch_all(bytes, CALLERS)?;
            let rate = |index: usize| seen[index].as_ref().map(|seen| seen.rate);
            rates.line(bytes, (0..seen.len()).map(rate));
            let one = self.fetch_all(bytes, 1)?;
            times.line(bytes, one.iter().map(|seen| seen.as_ref().map(LoadStats::mean_ns)));
            let [ours, .., datagrams, and_read, _] = [0, 1, 2, 3, 4, 5].map(rate);
            let [ours, datagrams, and_read] =
                [ours, datagrams, and_read].map(|rate| rate.expect("it does all sizes"));
            if bytes > u64::from(THRESHOLD_PAPER_BYTES) {
                large.push((ours / and_read, ours / datagrams));
            }
            // Picoseconds: a call of one of many clients takes few nanoseconds of the whole.
            let [inline_ns, two_steps_ns] = [datagrams, and_read].map(|rate| (1e12 / rate) as u64);
            probes.push(LinkProbe { bytes: bytes as u32, inline_ns, two_steps_ns });
        }
        rates.note(
            "RRPC's answer carries up to 512 B, and the home writes longer data into the caller's \
             buffer. Once a place is known, RRPC reads one-sided only.",
        );
        rates.note(BASELINES);
        times.note(BASELINES);
        self.table(rates);
        self.table(times);
        self.rrpc_figures(&large, &probes)
    }

    fn rrpc_figures(&mut self, large: &[(f64, f64)], probes: &[LinkProbe]) -> Result<(), String> {
        let least = |of: fn(&(f64, f64)) -> f64| large.iter().map(of).fold(f64::MAX, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| large.iter().map(of).fold(0.0, f64::max);
        let note = "6.5, at large sizes: 1 to 16 KiB here";
        for (name, ours, paper) in [
            ("rrpc_over_erpc_and_read_least", least(|pair| pair.0), 1.33),
            ("rrpc_over_erpc_and_read_most", most(|pair| pair.0), 1.89),
            ("rrpc_over_erpc_least", least(|pair| pair.1), 1.5),
            ("rrpc_over_erpc_most", most(|pair| pair.1), 2.0),
        ] {
            self.figure(name, "x", ours, Paper::Is(paper), note);
        }
        let note = "3.2, figure 3: above, a call and a one-sided read is faster than eRPC alone";
        let crossover = f64::from(threshold(probes));
        let paper = Paper::Is(f64::from(THRESHOLD_PAPER_BYTES));
        self.figure("rpc_crossover", "B", crossover, paper, note);
        let datagrams = |bytes| self.fetch_by(FetchSystem::Datagrams, bytes, CALLERS);
        let [fits, does_not] = [DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MAX + 1].map(datagrams);
        let factor = does_not?.rate / fits?.rate;
        let note = "6.5; 968 B are one datagram";
        let paper = Paper::less("eRPC does well below 968 B");
        self.figure("erpc_969B_over_968B", "x", factor, paper, note);
        Ok(())
    }

    fn calls(&self, bytes: u64, clients: u32) -> Calls {
        let operations = if self.is_quick { 100 } else { 500 };
        Calls { clients, bytes, operations }
    }

    fn fetch_by(&self, system: FetchSystem, bytes: u64, clients: u32) -> Result<LoadStats, String> {
        baselines::fetch(&self.profile, system, self.calls(bytes, clients))
    }

    /// One size, in the order of the columns. A way that cannot carry so much is left out.
    fn fetch_all(&self, bytes: u64, clients: u32) -> Result<[Option<LoadStats>; 6], String> {
        let ours = |way| rrpc::fetch(&self.profile, way, self.calls(bytes, clients)).map(Some);
        let theirs = |system| self.fetch_by(system, bytes, clients).map(Some);
        let is_carried = bytes <= u64::from(INLINE_BYTES_MAX);
        let inline = is_carried.then(|| ours(FetchMethod::Call(FetchMode::Inline)));
        Ok([
            ours(FetchMethod::Rrpc)?,
            ours(FetchMethod::PlaceKnown)?,
            inline.transpose()?.flatten(),
            theirs(FetchSystem::Datagrams)?,
            theirs(FetchSystem::DatagramsAndRead)?,
            theirs(FetchSystem::Rings)?,
        ])
    }

    fn ycsb(&mut self) -> Result<(), String> {
        let columns = [
            ("workload", ""),
            ("base", "ops/s"),
            ("paper's policy, Hp = 3", "ops/s"),
            ("direct, cost (ours)", "ops/s"),
            ("uniform: base", "ops/s"),
            ("uniform: paper's policy, Hp = 3", "ops/s"),
        ];
        let operations = SWAP_OPERATIONS / 2;
        let title =
            "YCSB's shares of reads and writes, zipfian where nothing is said, 8 clients a rack";
        let mut table = Table::new("ycsb", title, &columns);
        for (name, write_ppm, change_ppm) in YCSB {
            let load = RcmpLoad {
                is_zipfian: true,
                write_ppm,
                change_ppm,
                operations,
                ..RcmpLoad::paper()
            };
            let base = self.run(load)?.rate;
            let paper = self.run(RcmpLoad { settings: moving(paper_policy(3)), ..load })?.rate;
            let ours = RcmpLoad {
                path: Path::OneSided,
                settings: moving(MigrationPolicy::Cost(CostParams::default())),
                ..load
            };
            let ours = self.run(ours)?.rate;
            let load = RcmpLoad { is_zipfian: false, ..load };
            let even = self.run(load)?.rate;
            let moved = self.run(RcmpLoad { settings: moving(paper_policy(3)), ..load })?.rate;
            table.line(name, [base, paper, ours, even, moved]);
        }
        table.note(
            "Accesses of 64 B in YCSB's shares, no hash table: 8,192 items, 64 a page. D's inserts \
             are writes, so that D is B. The paper states these against Fastswap only, which is \
             not here.",
        );
        self.table(table);
        Ok(())
    }

    /// The paper's steps, one upon the other. Writes are under locks, so that there is something
    /// to buffer; before the last step other racks are reached by calls that carry the data.
    fn ablation(&mut self) -> Result<(), String> {
        let columns = [("with", ""), ("operations a second", "ops/s"), ("over base", "x")];
        let title = "What each mechanism adds, zipfian, half writes, those under locks";
        let mut table = Table::new("ablation", title, &columns);
        let operations = SWAP_OPERATIONS / 2;
        let load = RcmpLoad {
            is_zipfian: true,
            operations,
            writes_a_lock: WRITES_A_LOCK,
            ..RcmpLoad::paper()
        };
        let calls = RcmpLoad { is_by_calls: true, ..load };
        let single = Settings { rings: Rings::Single, ..Settings::default() };
        let swap = RcmpLoad { settings: moving(paper_policy(3)), ..calls };
        let coupled = buffered(BUFFERED_WRITE_BYTES_MAX_DEFAULT);
        let rrpc = RcmpLoad { is_by_calls: false, coupled, ..swap };
        let direct = RcmpLoad { path: Path::OneSided, coupled, ..load };
        let cost = moving(MigrationPolicy::Cost(CostParams::default()));
        let own = RcmpLoad { racks: 1, pages: 2 * load.pages, ..load };
        let steps = [
            ("base: one layer, calls", RcmpLoad { settings: single, ..calls }),
            ("+ two-layer ring", calls),
            ("+ swap, Hp = 3", swap),
            ("+ write buffer", RcmpLoad { coupled, ..swap }),
            ("+ one-sided access", rrpc),
            ("direct (ours)", direct),
            ("direct, cost (ours)", RcmpLoad { settings: cost, ..direct }),
            ("only CXL (bound)", own),
        ];
        let mut rates = Vec::new();
        for (name, load) in steps {
            let seen = self.run(load)?;
            // The bound has the clients of one rack.
            rates.push(seen.rate * if load.racks == 1 { 2.0 } else { 1.0 });
            let rate = *rates.last().expect("one was pushed");
            table.line(name, [rate, rate / rates[0]]);
        }
        self.table(table);
        let adds = Paper::more("it adds");
        let note = "6.5, figure 18: over the step before";
        for (index, name) in ["two_layer_ring", "swap", "write_buffer"].iter().enumerate() {
            let factor = rates[index + 1] / rates[index];
            self.figure(&format!("ablation_{name}"), "x", factor, adds, note);
        }
        let note = "one-sided accesses instead of calls over the step before; the paper's step is \
                    RRPC, of whose three modes this has none";
        self.figure("ablation_rrpc", "x", rates[4] / rates[3], Paper::Silent, note);
        let factor = rates[4] / rates[7];
        let paper = Paper::less("only CXL is the bound");
        self.figure("ablation_all_over_only_cxl", "x", factor, paper, "6.5, figure 18");
        Ok(())
    }
}
