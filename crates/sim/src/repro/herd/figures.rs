//! HERD's evaluation: its parts in order, each number that the text states beside ours. Here the
//! verbs and ECHO (figures 2 to 7); `requests.rs` has the systems (figures 9 to 14).

use super::verbs::{self, Flow, Verbs, What};
use super::{HerdLoad, HerdStats};
use crate::device::Profile;
use crate::net::Connection;
use crate::report::Table;
use crate::repro::evaluation::{Evaluation, PaperParts, Part};
use crate::repro::herd::baselines::{Exchange, System, Way};
use crate::repro::{Origin, Paper, Set};

/// Payloads of single verbs, bytes.
const SIZES: [u64; 9] = [4, 16, 32, 64, 96, 128, 192, 256, 512];
/// Payloads of ECHOs and of latencies: a request has at least a key.
const ECHO_SIZES: [u64; 6] = [16, 32, 64, 128, 192, 256];
/// The profile with the numbers of the paper.
pub(super) const APT: &str = "herd-apt";
/// How figures are named that are of the other profile.
const SUSITNA: &str = "_susitna";
/// How near a figure has to be to be as stated: the model is calibrated, so a tenth.
const WITHIN: f64 = 0.1;
/// Processes in figures 3 and 4.
const PROCESSES: u32 = 16;

/// What is not predicted, and the constants that decide it. docs/repro-herd.md has these constants.
const SET: [Set; 28] = [
    ("one_way", Origin::Fitted, "the card's delays were set for it"),
    ("in_write_128B", Origin::Input, "WRITEs in"),
    ("in_write_rc_over_uc", Origin::Derived, "acknowledgements take nothing of either rate"),
    ("in_read_most", Origin::Input, "READs in"),
    ("in_write_over_read", Origin::Derived, "WRITEs in over READs in"),
    ("out_read_most", Origin::Input, "READs out"),
    ("out_write_most", Origin::Input, "WRITEs out"),
    ("out_others_most", Origin::Derived, "the fastest of SENDs, fetched WRITEs and READs out"),
    ("echo_write_write", Origin::Fitted, "lines by programmed I/O, of which an answer takes two"),
    ("echo_write_send", Origin::Derived, "the same two lines"),
    ("echo_send_send", Origin::Fitted, "what a SEND takes with its receive"),
    ("echo_write_write_16B", Origin::Fitted, "messages in both directions together"),
    ("all_to_all_write_out", Origin::Fitted, "connections held, and a miss going out"),
    ("all_to_all_write_in", Origin::Input, "a miss coming in costs nothing by itself"),
    ("write_in_1600_clients", Origin::Fitted, "a miss where both directions pass"),
    ("prefetch_8_accesses_5_cores", Origin::Derived, "five cores' time over the two lines"),
    ("herd_5_percent_put", Origin::Derived, "lines by programmed I/O over two"),
    ("herd_50_percent_put", Origin::Derived, "lines by programmed I/O over two"),
    ("farm_get", Origin::Fitted, "each further line of a READ"),
    ("pilaf_get", Origin::Derived, "READs in over 2.6"),
    ("pilaf_put", Origin::Derived, "what a SEND takes, as in ECHO by SENDs"),
    ("herd_1_core", Origin::Fitted, "processor time of a request"),
    ("herd_6_cores_each", Origin::Derived, "lines by programmed I/O over two and six"),
    ("herd_5_cores_over_peak", Origin::Derived, "five cores' time over the two lines"),
    (
        "clients_at_peak",
        Origin::Fitted,
        "200 connections held: 100 give 100, 150 give 150, 230 300",
    ),
    ("herd_latency_at_peak", Origin::Derived, "36 clients' windows over 26 M/s"),
    ("pilaf_over_herd_at_peak", Origin::Derived, "26 over Pilaf's rate"),
    ("farm_over_herd_at_peak", Origin::Derived, "26 over FaRM-em's rate"),
];
/// The parts by what they are called, in the order in which they run.
const PARTS: [(&str, Part<Herd>); 14] = [
    ("verb latencies", Evaluation::latencies),
    ("verbs in", Evaluation::verbs_in),
    ("verbs out", Evaluation::verbs_out),
    ("knees of verbs out", Evaluation::knees),
    ("ECHO", Evaluation::echo),
    ("all to all", Evaluation::all_to_all),
    ("prefetch by accesses", Evaluation::prefetch),
    ("throughput by PUT share", Evaluation::put_share),
    ("throughput by value size", Evaluation::value_size),
    ("latency against throughput", Evaluation::latency),
    ("cores", Evaluation::cores),
    ("clients", Evaluation::clients),
    ("skew", Evaluation::skew),
    ("full tables", Evaluation::full),
];

pub enum Herd {}

impl PaperParts for Herd {
    const PARTS: &'static [(&'static str, Part<Herd>)] = &PARTS;
    const SET: &'static [Set] = &SET;
    const WITHIN: f64 = WITHIN;

    /// What the paper says is of its cluster Apt, but for what is named after the other one, which
    /// is always run on that: on another profile there is nothing to compare.
    fn speaks_of(profile: &Profile, figure: &str) -> bool {
        profile.name == APT || figure.ends_with(SUSITNA)
    }
}

/// An ECHO of so many bytes, at least 16, both ways.
pub(super) fn echo(request: Way, answer: Way, bytes: u64) -> HerdLoad {
    let exchange = Exchange { request, answer, is_partitioned: false };
    let load = HerdLoad { put_ppm: 0, ..HerdLoad::paper(System::Echo(exchange)) };
    // A key alone, or a value and its length before it.
    match bytes.checked_sub(18) {
        Some(value_bytes) => HerdLoad { put_ppm: 1_000_000, value_bytes, ..load },
        None => load,
    }
}

/// Of the sizes with their rates, the last before the rate falls below `share` of the first.
fn knee(rates: &[(u64, f64)], share: f64) -> f64 {
    let first = rates[0].1;
    let held = rates.iter().take_while(|(_, rate)| *rate >= share * first);
    held.last().map_or(0.0, |(bytes, _)| *bytes as f64)
}

impl Evaluation<Herd> {
    pub(super) fn run(&self, load: HerdLoad) -> Result<HerdStats, String> {
        self.run_on(&self.profile, load)
    }

    pub(super) fn run_on(&self, profile: &Profile, load: HerdLoad) -> Result<HerdStats, String> {
        let operations = self.operations(load.operations);
        super::run(profile, &HerdLoad { operations, ..load })
    }

    fn rate(&self, verbs: Verbs) -> Result<f64, String> {
        let operations = self.operations(verbs.operations);
        verbs::rate(&self.profile, &Verbs { operations, ..verbs })
    }

    fn latencies(&mut self) -> Result<(), String> {
        let columns = [
            ("bytes", ""),
            ("READ", "ns"),
            ("WRITE", "ns"),
            ("WRITE, inline", "ns"),
            ("ECHO", "ns"),
            ("half an ECHO", "ns"),
        ];
        let title = "Latency of verbs and of ECHO by WRITEs, one at a time (figure 2)";
        let mut table = Table::new("verb_latency", title, &columns);
        let flow = Flow::In { machines: 1, processes: 1 };
        let mut at_16 = (0.0, 0.0);
        for bytes in ECHO_SIZES {
            let of = |what, inline_max| {
                let one = Verbs::of(what, Connection::Reliable, bytes, flow);
                verbs::latency(&self.profile, &Verbs { inline_max, ..one })
            };
            let (read, write) = (of(What::Read, 0)?, of(What::Write, 0)?);
            let inline = of(What::Write, u64::MAX)?;
            let load = echo(Way::WRITE, Way::WRITE, bytes);
            let load = HerdLoad { clients: 1, window: 1, servers: 1, operations: 600, ..load };
            let echo = super::run(&self.profile, &load)?.mean_ns();
            if bytes == 16 {
                at_16 = (read, echo);
            }
            if bytes == 64 {
                let note = "3.2, figure 2: ECHO close to READ up to 64 B; ours has the server's \
                            processor in it";
                self.figure("echo_over_read_64B", "x", echo / read, Paper::Is(1.0), note);
            }
            table.line(bytes, [read, write, inline, echo, echo / 2.0]);
        }
        self.table(table);
        let (read, echo) = at_16;
        let note = "3.2: an unsignalled WRITE, half an ECHO, takes about half of a READ; 16 B";
        self.figure("write_over_read_latency", "x", echo / 2.0 / read, Paper::Is(0.5), note);
        let note = "2.2.1: 1 us one way; half an ECHO of 16 B";
        self.figure("one_way", "ns", echo / 2.0, Paper::Is(1000.0), note);
        Ok(())
    }

    fn verbs_in(&mut self) -> Result<(), String> {
        let columns =
            [("bytes", ""), ("WRITE, UC", "M/s"), ("WRITE, RC", "M/s"), ("READ, RC", "M/s")];
        let title = "Inbound verbs, 16 clients (figure 3)";
        let mut table = Table::new("verbs_in", title, &columns);
        let flow = Flow::In { machines: PROCESSES, processes: PROCESSES };
        let (mut at_128, mut read_most) = ((0.0, 0.0), 0.0_f64);
        for bytes in SIZES {
            let of = |what, kind| self.rate(Verbs::of(what, kind, bytes, flow));
            let unreliable = of(What::Write, Connection::Unreliable)?;
            let reliable = of(What::Write, Connection::Reliable)?;
            let read = of(What::Read, Connection::Reliable)?;
            if bytes == 128 {
                at_128 = (unreliable, reliable);
            }
            read_most = read_most.max(read);
            table.line(bytes, [unreliable, reliable, read]);
        }
        self.table(table);
        let note = "3.2, figure 3: up to 128 B";
        self.figure("in_write_128B", "M/s", at_128.0, Paper::Is(35.0), note);
        let note = "3.2: UC and RC nearly the same";
        self.figure("in_write_rc_over_uc", "x", at_128.1 / at_128.0, Paper::Is(1.0), note);
        let note = "3.2, figure 3";
        self.figure("in_read_most", "M/s", read_most, Paper::Is(26.0), note);
        let note = "3.2: WRITE about 34 % above the READ's most";
        self.figure("in_write_over_read", "x", at_128.0 / read_most, Paper::Is(1.34), note);
        Ok(())
    }

    fn verbs_out(&mut self) -> Result<(), String> {
        let columns = [
            ("bytes", ""),
            ("WRITE, UC, inline", "M/s"),
            ("SEND, UD, inline", "M/s"),
            ("WRITE, UC, fetched", "M/s"),
            ("READ, RC", "M/s"),
        ];
        let title = "Outbound verbs, 16 processes (figure 4)";
        let mut table = Table::new("verbs_out", title, &columns);
        let (mut most, mut others, mut least) = ([0.0_f64; 2], 0.0_f64, f64::MAX);
        let inline = self.profile.rnic.inline_max.0;
        for bytes in SIZES {
            let of = |what, kind, inline_max| {
                let one = Verbs::of(what, kind, bytes, Flow::Out(PROCESSES));
                self.rate(Verbs { inline_max, ..one })
            };
            let write = of(What::Write, Connection::Unreliable, u64::MAX)?;
            let send = of(What::Send, Connection::Datagram, u64::MAX)?;
            let fetched = of(What::Write, Connection::Unreliable, 0)?;
            let read = of(What::Read, Connection::Reliable, 0)?;
            most = [most[0].max(write), most[1].max(read)];
            others = others.max(send).max(fetched).max(read);
            // A payload longer than what can be inline is fetched.
            let slowest = if bytes <= inline { write.min(send) } else { fetched };
            least = least.min(slowest.min(fetched) / read);
            table.line(bytes, [write, send, fetched, read]);
        }
        self.table(table);
        let note = "3.2, figure 4";
        self.figure("out_read_most", "M/s", most[1], Paper::Is(22.0), note);
        let note = "3.2, figure 4: slightly above 35 for very small ones";
        self.figure("out_write_most", "M/s", most[0], Paper::Is(35.0), note);
        let note = "3.2: all others below 30; the fastest of SEND, fetched WRITE and READ";
        self.figure("out_others_most", "M/s", others, Paper::Below(30.0), note);
        let note = "3.2: WRITE and SEND never below half of READ; the least of all sizes";
        self.figure("out_large_over_read_least", "x", least, Paper::Above(0.5), note);
        Ok(())
    }

    /// Where outbound rates fall, and how far apart.
    fn knees(&mut self) -> Result<(), String> {
        let mut rates = [Vec::new(), Vec::new()];
        for bytes in (4..=160).step_by(4) {
            let flow = Flow::Out(PROCESSES);
            let of = |what, kind| {
                let one = Verbs::of(what, kind, bytes, flow);
                self.rate(Verbs { operations: one.operations / 2, ..one })
            };
            rates[0].push((bytes, of(What::Write, Connection::Unreliable)?));
            rates[1].push((bytes, of(What::Send, Connection::Datagram)?));
        }
        let falls = |rates: &[(u64, f64)]| -> Vec<f64> {
            let pairs = rates.windows(2).filter(|pair| pair[1].1 < 0.95 * pair[0].1);
            pairs.map(|pair| pair[0].0 as f64).collect()
        };
        let write = knee(&rates[0], 0.95);
        let note = "3.2: WRITEs above 28 B are bound by programmed I/O; in steps of 4 B";
        self.figure("out_write_knee", "B", write, Paper::Is(28.0), note);
        let steps = falls(&rates[0]);
        let step = steps.windows(2).map(|pair| pair[1] - pair[0]).sum::<f64>();
        let step = step / (steps.len().max(2) - 1) as f64;
        let note = "3.2: falls are 64 B apart; a line holds 60 B of payload and its length";
        self.figure("out_write_step", "B", step, Paper::Is(64.0), note);
        let send = falls(&rates[1]).first().copied().unwrap_or(f64::NAN);
        let beyond = falls(&rates[0]).get(1).copied().unwrap_or(f64::NAN);
        let note = "3.2: SENDs by UD have a longer header; end of the second line of a SEND over \
                    that of a WRITE";
        let paper = Paper::less("SENDs fall at smaller payloads");
        self.figure("out_send_knee_over_write", "x", send / beyond, paper, note);
        Ok(())
    }

    fn echo(&mut self) -> Result<(), String> {
        let pairs = [
            ("WR-WR", Way::WRITE, Way::WRITE),
            ("WR-SEND", Way::WRITE, Way::DATAGRAM),
            ("SEND-SEND", Way::SEND, Way::SEND),
        ];
        let columns = [
            ("", ""),
            ("reliable, signalled, fetched", "M/s"),
            ("+ unreliable", "M/s"),
            ("+ unsignalled", "M/s"),
            ("+ inline", "M/s"),
        ];
        let title = "ECHO of 32 B, 51 clients, 6 server processes (figure 5)";
        let mut table = Table::new("echo", title, &columns);
        let (mut best, mut unsignalled) = (Vec::new(), f64::MAX);
        for (name, request, answer) in pairs {
            let steps = |way: Way| {
                let unreliable = Way { kind: way.kind, ..way.plain() };
                [way.plain(), unreliable, Way { is_signalled: false, ..unreliable }, way]
            };
            let mut rates = Vec::new();
            for (request, answer) in steps(request).into_iter().zip(steps(answer)) {
                rates.push(self.run(echo(request, answer, 32))?.mops);
            }
            best.push(rates[3]);
            unsignalled = unsignalled.min(rates[2] / rates[1]);
            table.line(name, rates);
        }
        table.note("The text gives numbers for the last column only.");
        self.table(table);
        let note = "3.2, figure 5";
        self.figure("echo_write_write", "M/s", best[0], Paper::Is(26.0), note);
        self.figure("echo_write_send", "M/s", best[1], Paper::Is(26.0), note);
        self.figure("echo_send_send", "M/s", best[2], Paper::Is(21.0), note);
        let small = self.run(echo(Way::WRITE, Way::WRITE, 16))?.mops;
        let note = "3.2: 30 M/s of 16 B";
        self.figure("echo_write_write_16B", "M/s", small, Paper::Is(30.0), note);
        let paper =
            Paper::Words("selective signalling raises the rate a lot", [1.1, f64::INFINITY]);
        let note = "3.2, figure 5: over the same signalled, the least of three; a completion costs \
                    a processor's time alone here";
        self.figure("echo_unsignalled_over_signalled", "x", unsignalled, paper, note);
        Ok(())
    }

    fn all_to_all(&mut self) -> Result<(), String> {
        let columns = [
            ("processes at each end", ""),
            ("WRITE in, UC", "M/s"),
            ("WRITE out, UC", "M/s"),
            ("SEND out, UD", "M/s"),
        ];
        let title = "All to all, 32 B, inline, signalled where the paper's are not (figure 6)";
        let mut table = Table::new("all_to_all", title, &columns);
        let mut rates = Vec::new();
        for count in [2, 4, 6, 8, 10, 12, 14, 16] {
            let of = |what, kind, flow| self.rate(Verbs::of(what, kind, 32, flow));
            rates.push([
                of(What::Write, Connection::Unreliable, Flow::AllIn(count))?,
                of(What::Write, Connection::Unreliable, Flow::AllOut(count))?,
                of(What::Send, Connection::Datagram, Flow::AllOut(count))?,
            ]);
            table.line(count, rates[rates.len() - 1]);
        }
        self.table(table);
        let last = rates[rates.len() - 1];
        // Ten processes fill the server's card, and their 100 queue pairs its memory not.
        let over = |index: usize| last[index] / rates[4][index];
        let note = "3.3, figure 6: 256 queue pairs";
        self.figure("all_to_all_write_out", "x", over(1), Paper::Is(0.79), note);
        let note = "3.3: no loss with 256";
        self.figure("all_to_all_write_in", "x", over(0), Paper::Is(1.0), note);
        let note = "3.3: senders without completions flood the card; here each has completions, \
                    and the card has no limit of that kind";
        let paper = Paper::Words("a slight loss above 10 clients", [0.8, 0.99]);
        self.figure("all_to_all_send_out", "x", over(2), paper, note);
        let flow = Flow::In { machines: 16, processes: 1600 };
        let many = Verbs::of(What::Write, Connection::Unreliable, 32, flow);
        let many = Verbs { window: 1, operations: 120_000, ..many };
        let rate = verbs::rate(&self.profile, &many)?;
        self.figure("write_in_1600_clients", "M/s", rate, Paper::Is(30.0), "3.3");
        Ok(())
    }

    fn prefetch(&mut self) -> Result<(), String> {
        let columns = [
            ("server processes", ""),
            ("2 accesses", "M/s"),
            ("2, no prefetch", "M/s"),
            ("8 accesses", "M/s"),
            ("8, no prefetch", "M/s"),
        ];
        let title = "ECHO by WRITE and SEND, 32 B, with random accesses to memory (figure 7)";
        let mut table = Table::new("prefetch", title, &columns);
        let base = echo(Way::WRITE, Way::DATAGRAM, 32);
        let peak = self.run(base)?.mops;
        for servers in 1..=6 {
            let mut rates = Vec::new();
            for (accesses, is_prefetching) in [(2, true), (2, false), (8, true), (8, false)] {
                let accesses = Some(accesses);
                let load = HerdLoad { servers, accesses, is_prefetching, ..base };
                rates.push(self.run(load)?.mops);
            }
            if servers == 5 {
                let note = "4.1.1, figure 7: 5 cores deliver the peak with 8 accesses";
                let share = rates[2] / peak;
                self.figure("prefetch_8_accesses_5_cores", "x", share, Paper::Is(1.0), note);
            }
            table.line(servers, rates);
        }
        self.table(table);
        Ok(())
    }
}
