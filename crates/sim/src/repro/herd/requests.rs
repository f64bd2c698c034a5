//! The systems side by side: throughput, latency, processors, clients, skew (figures 9 to 14).

use super::figures::Herd;
use super::zipf::Keys;
use super::{HerdLoad, HerdStats};
use crate::device::Profile;
use crate::report::{Cell, Table};
use crate::repro::Paper;
use crate::repro::evaluation::Evaluation;
use crate::repro::herd::baselines::System;

/// Answers of HERD from here on are not inline. Source: HERD, throughput comparison.
const INLINE_BELOW_APT: u64 = 144;
const INLINE_BELOW_SUSITNA: u64 = 192;
/// Sizes of values, bytes.
const VALUES: [u64; 15] = [4, 8, 16, 24, 32, 48, 60, 64, 96, 128, 144, 192, 256, 512, 1000];
/// Clients that saturate the server with windows of 4. Source: HERD, experimental setup.
const CLIENTS_AT_PEAK: u32 = 36;
/// Of a peak this much counts as the peak. Source: HERD, processor use, "over 95 %".
const PEAK: f64 = 0.95;
/// Machines for clients of the largest experiment. Source: HERD, scalability.
const MACHINES_MOST: u32 = 186;
/// Ways to divide the keys among server processes that are tried.
const DIVISIONS: u64 = 9;
/// Keys where there is a table behind it.
const FULL_KEYS: u64 = 40_000;

fn herd(profile: &Profile) -> System {
    let inline_below = match profile.name.as_str() {
        "herd-susitna" => INLINE_BELOW_SUSITNA,
        _ => INLINE_BELOW_APT,
    };
    System::Herd { inline_below }
}

/// Name and system, HERD first.
fn systems(profile: &Profile) -> [(&'static str, System); 4] {
    [
        ("HERD", herd(profile)),
        ("Pilaf-em-OPT", System::Pilaf),
        ("FaRM-em", System::Farm),
        ("FaRM-em-VAR", System::FarmVar),
    ]
}

/// A column for what is varied and one for each system.
fn columns(varied: &'static str, unit: &'static str) -> [(&'static str, &'static str); 5] {
    [(varied, ""), ("HERD", unit), ("Pilaf-em-OPT", unit), ("FaRM-em", unit), ("FaRM-em-VAR", unit)]
}

impl Evaluation<Herd> {
    /// The same load of each system.
    fn each(&self, of: impl Fn(HerdLoad) -> HerdLoad) -> Result<[HerdStats; 4], String> {
        let mut seen = Vec::new();
        for (_, system) in systems(&self.profile) {
            seen.push(self.run(of(HerdLoad::paper(system)))?);
        }
        Ok(seen.try_into().expect("one for each system"))
    }

    pub(super) fn put_share(&mut self) -> Result<(), String> {
        let title = "Requests a second by PUTs, 48 B items, 51 clients (figure 9)";
        let mut table = Table::new("put_share", title, &columns("PUT, %", "M/s"));
        let mut rates = Vec::new();
        for percent in [0, 5, 50, 100] {
            let seen = self.each(|load| HerdLoad { put_ppm: percent * 10_000, ..load })?;
            rates.push(seen.map(|seen| seen.mops));
            table.line(percent, rates[rates.len() - 1]);
        }
        self.table(table);
        let [get, five, half, put] = rates[..] else { unreachable!("four shares") };
        let note = "5.3, figure 9";
        self.figure("herd_5_percent_put", "M/s", five[0], Paper::Is(26.0), note);
        self.figure("herd_50_percent_put", "M/s", half[0], Paper::Is(26.0), note);
        self.figure("farm_var_get", "M/s", get[3], Paper::Is(11.4), note);
        self.figure("pilaf_get", "M/s", get[1], Paper::Is(9.9), note);
        self.figure("farm_get", "M/s", get[2], Paper::Is(17.2), note);
        let note = "5.3: HERD over the better of Pilaf and FaRM-em-VAR, about twice";
        self.figure("herd_over_var", "x", five[0] / get[3], Paper::Is(2.0), note);
        let note = "5.3: the least factor of the emulated systems";
        let least = (1..4).map(|index| put[index] / get[index]).fold(f64::MAX, f64::min);
        let paper = Paper::more("PUTs are faster than GETs");
        self.figure("put_over_get_least", "x", least, paper, note);
        let note = "5.3: Pilaf's PUTs are SENDs, at most 21";
        self.figure("pilaf_put", "M/s", put[1], Paper::Is(21.0), note);
        Ok(())
    }

    pub(super) fn value_size(&mut self) -> Result<(), String> {
        let susitna = Profile::load("herd-susitna").map_err(|error| error.to_string())?;
        let mine = self.profile.clone();
        let mut pilaf = Vec::new();
        for (profile, name) in [(&mine, "value_size"), (&susitna, "value_size_susitna")] {
            let title = format!("Requests a second by size of values, 5 % PUT, {}", profile.name);
            let mut table = Table::new(name, &title, &columns("value, B", "M/s"));
            let mut rates = Vec::new();
            for value_bytes in VALUES {
                let mut row = [0.0; 4];
                for (rate, (_, system)) in row.iter_mut().zip(systems(profile)) {
                    let load = HerdLoad { value_bytes, ..HerdLoad::paper(system) };
                    *rate = self.run_on(profile, load)?.mops;
                }
                table.line(value_bytes, row);
                rates.push(row);
            }
            self.table(table);
            self.value_figures(&rates, name == "value_size");
            pilaf.push(rates[VALUES.iter().position(|bytes| *bytes == 32).expect("it is")][1]);
        }
        let paper = Paper::Words("PCIe 2.0 lowers all systems", [0.0, 0.95]);
        let note = "5: Pilaf with values of 32 B; READs in have Apt's rate in this profile";
        self.figure("pilaf_susitna_over_apt", "x", pilaf[1] / pilaf[0], paper, note);
        Ok(())
    }

    fn value_figures(&mut self, rates: &[[f64; 4]], is_apt: bool) {
        let most = |of: &dyn Fn(usize) -> f64| (0..VALUES.len()).map(of).fold(0.0_f64, f64::max);
        let herd_most = most(&|index| rates[index][0]);
        // The last size at which HERD is as fast as it gets.
        let herd = (0..VALUES.len()).rev().find(|index| rates[*index][0] >= PEAK * herd_most);
        let herd = VALUES[herd.unwrap_or(0)] as f64;
        // The first size at which FaRM's READs bring as many bytes a second as they ever do.
        let bytes = |index: usize| rates[index][2] * 6.0 * (16 + VALUES[index]) as f64;
        let bytes_most = most(&bytes);
        let farm = (0..VALUES.len()).find(|index| bytes(*index) >= PEAK * bytes_most);
        let farm = VALUES[farm.unwrap_or(0)] as f64;
        let last = &rates[VALUES.len() - 1];
        let herd_note = "5.3: HERD is at its peak up to values of this size";
        let farm_note = "5.3: FaRM-em saturates the link from values of this size on";
        if is_apt {
            self.figure("herd_peak_value", "B", herd, Paper::Is(60.0), herd_note);
            self.figure("farm_saturated_value", "B", farm, Paper::Is(32.0), farm_note);
            let note = "5.3: large values within 10 %; HERD over Pilaf at 1000 B";
            self.figure("large_herd_over_pilaf", "x", last[0] / last[1], Paper::Below(1.1), note);
            let note = "5.3: large values within 10 %; HERD over FaRM-em at 1000 B: six slots of \
                        1016 B are read for one";
            self.figure("large_herd_over_farm", "x", last[0] / last[2], Paper::Below(1.1), note);
            let note = "as above with FaRM's values outside: the text may mean this one";
            self.figure("large_herd_over_var", "x", last[0] / last[3], Paper::Silent, note);
        } else {
            self.figure("herd_peak_value_susitna", "B", herd, Paper::Is(32.0), herd_note);
            self.figure("farm_saturated_value_susitna", "B", farm, Paper::Is(4.0), farm_note);
        }
    }

    pub(super) fn latency(&mut self) -> Result<(), String> {
        let head = [
            ("clients", ""),
            ("system", ""),
            ("rate", "M/s"),
            ("mean", "ns"),
            ("5 %", "ns"),
            ("95 %", "ns"),
        ];
        let title = "Latency against throughput, 48 B items, 5 % PUT, windows of 4 (figure 11)";
        let mut table = Table::new("latency", title, &head);
        let (mut at_peak, mut rates) = (Vec::new(), Vec::new());
        for clients in [1, 3, 6, 9, 12, 18, 24, 30, CLIENTS_AT_PEAK, 51] {
            let seen = self.each(|load| HerdLoad { clients, ..load })?;
            for (seen, (name, _)) in seen.iter().zip(systems(&self.profile)) {
                let mut row = vec![clients.to_string().into(), Cell::Text(name.into())];
                let ends = [50_000, 950_000].map(|ppm| seen.percentile_ns(ppm));
                let numbers = [seen.mops, seen.mean_ns(), ends[0], ends[1]];
                row.extend(numbers.map(Cell::from));
                table.row(row);
            }
            rates.push((clients, seen[0].mops));
            if clients == CLIENTS_AT_PEAK {
                at_peak = seen.iter().map(HerdStats::mean_ns).collect();
            }
        }
        self.table(table);
        let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let enough = rates.iter().find(|(_, rate)| *rate >= PEAK * most);
        let enough = enough.map_or(f64::NAN, |(clients, _)| f64::from(*clients));
        let note = "5.1: at least 36 saturate the server; the first with 95 % of HERD's peak";
        self.figure("clients_that_saturate", "clients", enough, Paper::Above(36.0), note);
        let note = "5.4: about 5 us at 26 M/s; 36 clients of 4, which saturate it. With the 51 of \
                    the throughput runs it is 7.8 by Little's law";
        self.figure("herd_latency_at_peak", "ns", at_peak[0], Paper::Is(5000.0), note);
        let note = "5: HERD's latency is less than half of theirs at their peaks; same clients";
        self.figure(
            "pilaf_over_herd_at_peak",
            "x",
            at_peak[1] / at_peak[0],
            Paper::Above(2.0),
            note,
        );
        self.figure(
            "farm_over_herd_at_peak",
            "x",
            at_peak[2] / at_peak[0],
            Paper::Above(2.0),
            note,
        );
        let alone =
            self.each(|load| HerdLoad { clients: 1, window: 1, operations: 3000, ..load })?;
        let alone = alone.map(|seen| seen.mean_ns());
        let note = "5.4: one request at a time";
        let paper = Paper::less("FaRM-em has the lowest latency of all");
        self.figure("farm_over_herd_alone", "x", alone[2] / alone[0], paper, note);
        self.figure("farm_over_pilaf_alone", "x", alone[2] / alone[1], paper, note);
        let paper = Paper::more("FaRM's with values outside may be worse than HERD's");
        self.figure("var_over_herd_alone", "x", alone[3] / alone[0], paper, note);
        Ok(())
    }

    pub(super) fn cores(&mut self) -> Result<(), String> {
        let head = [
            ("server processes", ""),
            ("HERD, 5 % PUT", "M/s"),
            ("Pilaf-em-OPT, 100 % PUT", "M/s"),
            ("FaRM-em, 100 % PUT", "M/s"),
        ];
        let title = "Requests a second by server processes (figure 13)";
        let mut table = Table::new("cores", title, &head);
        let mut rates: Vec<[f64; 3]> = Vec::new();
        let put = |system| HerdLoad { put_ppm: 1_000_000, ..HerdLoad::paper(system) };
        let herd = HerdLoad::paper(herd(&self.profile));
        for servers in 1..=8 {
            let mut row = [0.0; 3];
            for (rate, load) in row.iter_mut().zip([herd, put(System::Pilaf), put(System::Farm)]) {
                *rate = self.run(HerdLoad { servers, ..load })?.mops;
            }
            table.line(servers, row);
            rates.push(row);
        }
        self.table(table);
        let note = "5.7: 6.3 with one core";
        self.figure("herd_1_core", "M/s", rates[0][0], Paper::Is(6.3), note);
        let note = "5.7: 4.32 a core with six, because of programmed I/O";
        self.figure("herd_6_cores_each", "M/s", rates[5][0] / 6.0, Paper::Is(4.32), note);
        let note = "5.6: over 95 % of the peak with five";
        let share = rates[4][0] / rates[7][0];
        self.figure("herd_5_cores_over_peak", "x", share, Paper::Above(0.95), note);
        let needed = |index: usize| {
            let enough = rates.iter().position(|row| row[index] >= PEAK * rates[7][index]);
            enough.map_or(f64::NAN, |at| (at + 1) as f64)
        };
        let note = "5.6: over 5 cores for 100 % PUT; cores that reach 95 % of the peak";
        self.figure("pilaf_put_cores", "cores", needed(1), Paper::Above(6.0), note);
        self.figure("farm_put_cores", "cores", needed(2), Paper::Above(6.0), note);
        self.processors()
    }

    fn processors(&mut self) -> Result<(), String> {
        let head = [
            ("system", ""),
            ("PUT, %", ""),
            ("client", "ns"),
            ("server", "ns"),
            ("together", "ns"),
        ];
        let title = "Processor time of a request at clients and server, without idle polling";
        let mut table = Table::new("processors", title, &head);
        for percent in [0, 50, 100] {
            let seen = self.each(|load| HerdLoad { put_ppm: percent * 10_000, ..load })?;
            for (seen, (name, _)) in seen.iter().zip(systems(&self.profile)) {
                let [client, server] = seen.cpu_ns;
                let mut row = vec![Cell::Text(name.into()), percent.to_string().into()];
                row.extend([client, server, client + server].map(Cell::from));
                table.row(row);
            }
        }
        self.table(table);
        Ok(())
    }

    pub(super) fn clients(&mut self) -> Result<(), String> {
        let head =
            [("clients", ""), ("window 4", "M/s"), ("window 16", "M/s"), ("SEND-SEND", "M/s")];
        let title = "HERD's requests a second by clients, on up to 186 machines (figure 12)";
        let mut table = Table::new("clients", title, &head);
        let System::Herd { inline_below } = herd(&self.profile) else { unreachable!("it is HERD") };
        let (mut rates, mut datagrams) = (Vec::new(), 0.0);
        for clients in [51, 100, 150, 200, 220, 240, 260, 280, 300, 350, 400, 450, 500] {
            let of = |system, window| {
                let machines = MACHINES_MOST.min(clients);
                let operations = 40 * u64::from(clients * window) + 40_000;
                let load = HerdLoad::paper(system);
                self.run(HerdLoad { machines, clients, window, operations, ..load })
            };
            let four = of(System::Herd { inline_below }, 4)?.mops;
            let sixteen = of(System::Herd { inline_below }, 16)?.mops;
            datagrams = of(System::HerdDatagrams { inline_below }, 4)?.mops;
            table.line(clients, [four, sixteen, datagrams]);
            rates.push((clients, four, sixteen));
        }
        self.table(table);
        let most = rates[0].1;
        let held = rates.iter().take_while(|(_, four, _)| *four >= PEAK * most);
        let held = held.last().map_or(0.0, |(clients, ..)| f64::from(*clients));
        let note = "5.5, figure 12: 260 (the abstract: 250); the last with 95 % of the peak";
        self.figure("clients_at_peak", "clients", held, Paper::Is(260.0), note);
        let (_, four, sixteen) = rates[rates.len() - 1];
        let paper = Paper::less("it falls from 260 on");
        self.figure("clients_500_over_peak", "x", four / most, paper, "5.5: 500 over the peak");
        let at = |wanted: u32| {
            let row = rates.iter().find(|(clients, ..)| *clients == wanted);
            row.expect("it was run").1
        };
        let note = "5.5, figure 12: of the fall from 260 to 500 clients so much has come at 350; a \
                    straight line has 0.375";
        let paper = Paper::Words("it falls nearly linearly", [0.25, 0.5]);
        let share = (at(260) - at(350)) / (at(260) - at(500));
        self.figure("clients_fall_by_350", "x", share, paper, note);
        let paper = Paper::more("windows of 16 lose less than windows of 4");
        self.figure("clients_500_window_16_over_4", "x", sixteen / four, paper, "5.5: at 500");
        let note = "5.5: SENDs both ways lose 4 to 5 and serve thousands of clients; at 500";
        self.figure("datagrams_lose", "M/s", most - datagrams, Paper::Is(4.5), note);
        Ok(())
    }

    pub(super) fn skew(&mut self) -> Result<(), String> {
        let head = [("server process", ""), ("uniform", "M/s"), ("zipfian 0.99", "M/s")];
        let title = "Requests a second of each server process, 48 B items, 5 % PUT (figure 14)";
        let mut table = Table::new("skew", title, &head);
        let load = HerdLoad::paper(herd(&self.profile));
        let uniform = self.run(load)?;
        let mut runs = Vec::new();
        for seed in 1..=DIVISIONS {
            let seen = self.run(HerdLoad { is_zipfian: true, seed, ..load })?;
            let most = seen.by_server.iter().copied().fold(0.0, f64::max);
            let least = seen.by_server.iter().copied().fold(f64::MAX, f64::min);
            runs.push((most / least, seen));
        }
        runs.sort_by(|one, two| one.0.total_cmp(&two.0));
        let (factor, zipfian) = &runs[runs.len() / 2];
        for (index, rates) in uniform.by_server.iter().zip(&zipfian.by_server).enumerate() {
            table.line(index as u32, [*rates.0, *rates.1]);
        }
        let ends = [runs[0].0, runs[runs.len() - 1].0];
        table.note(format!(
            "Which process has the hottest keys is chance: of {DIVISIONS} ways to divide the keys \
             this is the middle one; hottest over coldest is {:.2} to {:.2}.",
            ends[0], ends[1]
        ));
        let (factor, rate) = (*factor, zipfian.mops / uniform.mops);
        self.table(table);
        let note = "5.7, figure 14: the hottest core has 50 % more than the coldest";
        self.figure("skew_hottest_over_coldest", "x", factor, Paper::Is(1.5), note);
        let hottest = Keys::new(load.keys, true, 1).hottest();
        let note = "5.7: 10^5 times the mean (the exponent is lost in print); 8 Mi keys";
        self.figure("skew_hottest_key", "x", hottest, Paper::Is(1e5), note);
        let note = "5.7: cores share the card, so the hottest uses what others leave; no number";
        self.figure("skew_over_uniform", "x", rate, Paper::Silent, note);
        Ok(())
    }

    /// The emulated systems with the tables that the paper leaves out.
    pub(super) fn full(&mut self) -> Result<(), String> {
        let head = [
            ("system", ""),
            ("emulated GET", "M/s"),
            ("full GET", "M/s"),
            ("full, 50 % PUT", "M/s"),
            ("wrong answers", ""),
        ];
        let title = "Emulated as in the paper, and with tables behind it (40,000 keys)";
        let mut table = Table::new("full", title, &head);
        for (name, system) in systems(&self.profile) {
            let get = HerdLoad { put_ppm: 0, keys: FULL_KEYS, ..HerdLoad::paper(system) };
            let full = HerdLoad { is_full: true, ..get };
            let emulated = self.run(get)?.mops;
            let gets = self.run(full)?;
            let half = self.run(HerdLoad { put_ppm: 500_000, ..full })?;
            let wrong = gets.wrong + half.wrong;
            if wrong > 0 {
                return Err(format!("{name}: {wrong} wrong answers"));
            }
            table.line(name, [emulated, gets.mops, half.mops, wrong as f64]);
        }
        self.table(table);
        Ok(())
    }
}
