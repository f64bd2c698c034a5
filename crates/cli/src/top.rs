//! `rackpool top`: racks, memory, requests and fabric of a pool, looked at again and again. In: the
//! master's address and an interval. Out: one table a look, in place on a terminal, one below the
//! other in a pipe; rates are differences between two looks. Stops at a signal.

use crate::args::TopArgs;
use crate::connect::Watch;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::utc;
use rackpool::monitor::Sample;
use rackpool::{RackState, TierStats};
use rackpool_mem::process::Shutdown;
use rackpool_stats::table::TextTable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What stands where nothing is known.
const UNKNOWN: &str = "-";

/// How long a look may go on after a signal: at a master that is silent.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

const HEADS: [&str; 13] = [
    "RACK",
    "STATE",
    "FABRIC",
    "FRAMES",
    "FREE",
    "USED",
    "QUAR",
    "ALLOCS",
    "SESSIONS",
    "LOCKS",
    "REQ/S",
    "FAB-OPS/S",
    "FAB-BYTES/S",
];

pub fn run(args: &TopArgs) -> Result<()> {
    let shutdown = interrupt::shutdown()?;
    let Watch { mut monitor, masters } = Watch::open(&args.at)?;
    let mut last = monitor.sample()?;
    if args.once {
        if !wait(&shutdown, args.interval)? {
            return Err(Failure::interrupted());
        }
        let now = monitor.sample()?;
        return crate::output::print(&table(&masters, &now, Some(&last)));
    }
    // The terminal is given back first.
    interrupt::allow(ENDS_WITHIN);
    let mut screen = Screen::open();
    let mut text = table(&masters, &last, None);
    loop {
        match screen.show(&text) {
            // The reader closed the pipe: it has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            shown => shown.map_err(|error| Failure::io("standard output", &error))?,
        }
        if !wait(&shutdown, args.interval)? {
            return Ok(());
        }
        text = match monitor.sample() {
            Ok(sample) => {
                let text = table(&masters, &sample, Some(&last));
                last = sample;
                text
            }
            // The master may come back; what was seen last stays away meanwhile.
            Err(error) => format!("{}\n", Failure::from(error)),
        };
    }
}

/// Sleeps; `false` if a signal asked for the end.
fn wait(shutdown: &Shutdown, interval: Duration) -> Result<bool> {
    let end = Instant::now() + interval;
    while !shutdown.is_requested() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(shutdown.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::io("waiting", &error.into())),
        }
    }
    Ok(false)
}

/// Standard output: a screen of its own on a terminal, which is given back at the end.
struct Screen {
    out: io::Stdout,
    is_terminal: bool,
    is_first: bool,
}

impl Screen {
    fn open() -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        Self { out, is_terminal, is_first: true }
    }

    fn show(&mut self, text: &str) -> io::Result<()> {
        let mut bytes = String::new();
        let is_first = std::mem::take(&mut self.is_first);
        if self.is_terminal {
            // The other screen, without a cursor; then from the top, clearing what is left over.
            bytes.push_str(if is_first { "\x1b[?1049h\x1b[?25l\x1b[H" } else { "\x1b[H" });
            for line in text.lines() {
                bytes.push_str(line);
                bytes.push_str("\x1b[K\n");
            }
            bytes.push_str("\x1b[J");
        } else {
            bytes.push_str(if is_first { "" } else { "\n" });
            bytes.push_str(text);
        }
        self.out.write_all(bytes.as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal && !self.is_first {
            // A terminal that is gone needs nothing back.
            let _ = self.out.write_all(b"\x1b[?25h\x1b[?1049l");
            let _ = self.out.flush();
        }
    }
}

/// What one look shows; rates if there was one before.
fn table(masters: &str, now: &Sample, before: Option<&Sample>) -> String {
    let master = &now.master;
    let since = |at: &Sample| now.at_ns.saturating_sub(at.at_ns);
    let requests = before.and_then(|b| rate(b.master.requests, master.requests, since(b)));
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = format!(
        "master {masters}  {} UTC\n{} of {} racks alive, {} pages ({} lost), {} names, \
         {} clients, {} requests/s at the master\n\n",
        utc(today, ' '),
        master.daemons,
        now.racks.len(),
        master.pages,
        master.pages_lost,
        master.roots,
        master.clients,
        known(requests),
    );
    let mut racks = TextTable::new(&HEADS);
    (0..now.racks.len()).for_each(|index| racks.row(row(now, index, before)));
    text.push_str(&racks.show());
    for rack in now.racks.iter().filter(|rack| rack.alive) {
        if let Some(error) = &rack.error {
            text.push_str(&format!("rack {}: {}\n", rack.rack, error.replace('\n', " ")));
        }
        if let Some(stats) = rack.daemon.as_ref().filter(|of| of.frames_backable < of.frames_free) {
            let (free, there) = (stats.frames_free, stats.frames_backable);
            let what = format!("its host has memory for {there} of {free} free frames");
            text.push_str(&format!("rack {}: {what}\n", rack.rack));
        }
        for (number, tier) in rack.tiers.tiers.iter().enumerate() {
            let TierStats { node, frames, frames_free, .. } = tier;
            let (place, what) = match tier.is_file() {
                true => ("in the spill file".to_owned(), "slots"),
                false => (format!("on memory node {node}"), "frames"),
            };
            text.push_str(&format!(
                "rack {}: tier {number} {place}: {frames_free} of {frames} {what} free\n",
                rack.rack
            ));
        }
    }
    text
}

fn row(now: &Sample, index: usize, before: Option<&Sample>) -> [String; HEADS.len()] {
    let rack = &now.racks[index];
    let standing = now.master.standings.get(&rack.rack.0);
    let state = match (rack.alive, &rack.daemon) {
        (false, _) => "dead",
        (true, Some(_)) if standing == Some(&RackState::Draining) => "draining",
        (true, None) => "silent",
        (true, Some(_)) => "alive",
    };
    let mut row = HEADS.map(|_| UNKNOWN.to_owned());
    row[..3].clone_from_slice(&[rack.rack.to_string(), state.into(), rack.fabric.clone()]);
    let Some(stats) = &rack.daemon else { return row };
    let cached = stats.replicas.frames;
    let used = stats.frames.saturating_sub(stats.frames_free + cached);
    let percent = |frames: u64| (frames * 100).checked_div(stats.frames);
    let used_percent = percent(used).map(|used| match percent(cached) {
        Some(more) if cached > 0 => format!("{used}%+{more}%"),
        _ => format!("{used}%"),
    });
    let last = before.and_then(|before| {
        let known = before.racks.iter().find(|known| known.rack == rack.rack)?;
        Some((known.daemon.as_ref()?, now.at_ns.saturating_sub(before.at_ns)))
    });
    let fabric_bytes = |of: &rackpool::DaemonStats| of.fabric.sent_bytes + of.fabric.received_bytes;
    let rate_of = |count: &dyn Fn(&rackpool::DaemonStats) -> u64| {
        last.and_then(|(last, ns)| rate(count(last), count(stats), ns))
    };
    let bytes_rate = rate_of(&fabric_bytes).map(human);
    row[3..].clone_from_slice(&[
        stats.frames.to_string(),
        stats.frames_backable.to_string(),
        used_percent.unwrap_or(UNKNOWN.into()),
        stats.frames_quarantined.to_string(),
        stats.allocations.to_string(),
        (stats.slots_used + stats.remote_sessions).to_string(),
        match stats.lock_waiters {
            0 => stats.locks_held.to_string(),
            waiters => format!("{}+{waiters}", stats.locks_held),
        },
        known(rate_of(&|of| of.requests)),
        known(rate_of(&|of| of.fabric.operations)),
        bytes_rate.unwrap_or_else(|| UNKNOWN.into()),
    ]);
    row
}

fn known(rate: Option<u64>) -> String {
    rate.map_or(UNKNOWN.into(), |rate| rate.to_string())
}

/// Events a second; `None` if the counter began anew or no time has passed.
fn rate(before: u64, now: u64, elapsed_ns: u64) -> Option<u64> {
    let events = u128::from(now.checked_sub(before)?) * 1_000_000_000;
    let rate = events.checked_div(u128::from(elapsed_ns))?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Bytes with a binary unit and at most one decimal.
fn human(bytes: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P"];
    let (mut unit, mut tenths) = (0, u128::from(bytes) * 10);
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    match (unit, tenths / 10) {
        (0, whole) | (_, whole @ 100..) => format!("{whole}{}", units[unit]),
        (_, whole) => format!("{whole}.{}{}", tenths % 10, units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool::{DaemonStats, MasterStats, RackStats, TierReport};

    fn sample(at_ns: u64, requests: u64, sent_bytes: u64) -> Sample {
        let mut stats = DaemonStats { frames: 32, frames_free: 20, requests, ..Default::default() };
        (stats.frames_backable, stats.replicas.frames) = (18, 4);
        let near = TierStats { node: 0, first_frame: 0, frames: 24, frames_free: 20 };
        let far = TierStats { node: 2, first_frame: 24, frames: 8, frames_free: 0 };
        let two = TierReport { tiers: vec![near, far], moved: 3 };
        stats.fabric.sent_bytes = sent_bytes;
        let rack = |rack: u16, alive, daemon: Option<DaemonStats>, error: Option<&str>| RackStats {
            rack: rackpool::RackId(rack),
            alive,
            fabric: "tcp".into(),
            fabric_addr: "127.0.0.1:1".into(),
            tiers: if daemon.is_some() { two.clone() } else { TierReport::default() },
            daemon,
            error: error.map(str::to_owned),
        };
        let racks = vec![
            rack(0, true, Some(stats), None),
            rack(1, false, None, Some("it is dead")),
            rack(7, true, None, Some("it is\nsilent")),
        ];
        Sample { at_ns, master: MasterStats { daemons: 2, ..Default::default() }, racks }
    }

    fn cells(text: &str, rack: &str) -> Vec<String> {
        let found = text.lines().find(|line| line.trim_start().starts_with(rack));
        found.unwrap().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_differences_and_unknown_at_first_and_after_a_restart() {
        let (first, second) = (sample(0, 100, 0), sample(2_000_000_000, 700, 3 << 20));
        assert_eq!(cells(&table("m", &first, None), "0 ")[10..], ["-", "-", "-"]);
        let text = table("m", &second, Some(&first));
        assert_eq!(cells(&text, "0 ")[..6], ["0", "alive", "tcp", "32", "18", "25%+12%"]);
        assert!(text.contains("rack 0: its host has memory for 18 of 20 free frames\n"), "{text}");
        let tier = "rack 0: tier 1 on memory node 2: 0 of 8 frames free\n";
        assert!(text.contains(tier), "{text}");
        assert_eq!(cells(&text, "0 ")[10..], ["300", "0", "1.5M"]);
        assert_eq!(cells(&text, "1 ")[1], "dead");
        assert_eq!(cells(&text, "7 ")[1], "silent");
        assert!(text.contains("rack 7: it is silent\n") && !text.contains("rack 1:"), "{text}");
        assert!(text.contains("2 of 3 racks alive"), "{text}");
        let back = table("m", &first, Some(&second));
        assert_eq!(cells(&back, "0 ")[10..], ["-", "-", "-"]);
    }

    #[test]
    fn bytes_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (100 << 10, "100K"),
            (1 << 40, "1.0T"),
            (u64::MAX, "16383P"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
