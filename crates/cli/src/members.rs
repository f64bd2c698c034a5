//! `rackpool racks`, `drain`, `undrain` and `forget`: what racks are to the pool, and the orders
//! that change it. In: the master's address and a rack. Out: a table or one line; progress on a
//! terminal, on standard error.

use crate::args::{DrainArgs, ForgetArgs, RacksArgs, UndrainArgs};
use crate::connect::Watch;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool::monitor::Monitor;
use rackpool::{Member, RackId, RackState};
use rackpool_stats::table::TextTable;
use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};
use tracing::warn;

/// How often a draining rack is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is asked why pages stay; each reason is said once.
const REASONS_EVERY: Duration = Duration::from_secs(3);
/// How long a rack that may still come back is waited for before it is given up.
const COME_BACK: Duration = Duration::from_secs(5);

pub fn racks(args: &RacksArgs) -> Result<()> {
    let members = Watch::open(&args.at)?.monitor.members()?;
    if args.json {
        let racks: Vec<serde_json::Value> = members.iter().map(as_json).collect();
        return output::print(&format!("{}\n", output::json(&racks)?));
    }
    let heads = ["RACK", "STATE", "ALIVE", "FRAMES", "USED", "PAGES", "LOST", "HOST"];
    let mut table = TextTable::new(&heads);
    for member in &members {
        let Member { info, standing, pages, pages_lost } = member;
        table.row([
            info.rack.to_string(),
            standing.name().to_owned(),
            if info.alive { "yes" } else { "no" }.to_owned(),
            info.frame_count.to_string(),
            used(member).map_or("-".into(), |used| used.to_string()),
            pages.to_string(),
            pages_lost.to_string(),
            info.host.clone(),
        ]);
    }
    output::print(&table.show())
}

/// Frames in use, as a living daemon said last.
fn used(member: &Member) -> Option<u32> {
    let info = &member.info;
    info.alive.then(|| info.frame_count.saturating_sub(info.frames_free))
}

fn as_json(member: &Member) -> serde_json::Value {
    let info = &member.info;
    serde_json::json!({
        "rack": info.rack,
        "state": member.standing.name(),
        "alive": info.alive,
        "frames": info.frame_count,
        "frames_used": used(member),
        "pages": member.pages,
        "pages_lost": member.pages_lost,
        "host": info.host,
        "fabric_addr": info.fabric_addr,
    })
}

pub fn drain(args: &DrainArgs) -> Result<()> {
    let mut monitor = Watch::open(&args.at)?.monitor;
    let rack = RackId(args.rack);
    let standing = monitor.drain(rack)?;
    if standing == RackState::Draining && !args.no_wait {
        wait(&mut monitor, rack, args.timeout)?;
        return output::print(&format!("rack {rack} has left the pool\n"));
    }
    output::print(&match standing {
        RackState::Left => format!("rack {rack} has left the pool\n"),
        _ => format!("rack {rack} is {}\n", standing.name()),
    })
}

/// Waits until a draining rack has left; says on a terminal how far it is.
fn wait(monitor: &mut Monitor, rack: RackId, timeout: Option<Duration>) -> Result<()> {
    let started = Instant::now();
    let first = shards(monitor, rack)?;
    let page_bytes = 1u64 << first[0].info.page_shift;
    let pages = |of: &[Member]| of.iter().map(|member| member.pages).sum::<u64>();
    let first = pages(&first);
    let bar = output::bar(&format!("draining rack {rack}"), first * page_bytes, "bytes");
    let (mut was_dead, mut asked) = (false, Instant::now());
    let mut said = BTreeSet::new();
    loop {
        let now = shards(monitor, rack)?;
        bar.set_position(first.saturating_sub(pages(&now)) * page_bytes);
        match RackState::of_shards(now.iter().map(|member| member.standing)) {
            RackState::Left => {
                bar.finish_and_clear();
                return Ok(());
            }
            RackState::Draining => {}
            other => {
                let reason = format!("rack {rack} is {} by another operator's order", other.name());
                return Err(Failure::new("interrupted", reason));
            }
        }
        let waits_for = |one: &Member| one.standing == RackState::Draining && !one.info.alive;
        let is_dead = now.iter().any(waits_for);
        if is_dead && !was_dead {
            let text = "its daemon is dead: the drain goes on when it is back";
            bar.suspend(|| warn!(target: "drain", "rack {rack}: {text}"));
        }
        was_dead = is_dead;
        if asked.elapsed() >= REASONS_EVERY {
            asked = Instant::now();
            for line in reasons(monitor, &now) {
                // Their counts change.
                let reason = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
                if said.insert(reason.to_owned()) {
                    bar.suspend(|| warn!(target: "drain", "rack {rack}: {line}"));
                }
            }
        }
        if timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
            bar.finish_and_clear();
            return Err(too_slow(monitor, rack, &now, started.elapsed()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Why a rack has not left in time.
fn too_slow(monitor: &mut Monitor, rack: RackId, members: &[Member], waited: Duration) -> Failure {
    let (pages, s) = (members.iter().map(|member| member.pages).sum::<u64>(), waited.as_secs());
    let mut message = format!("rack {rack} still has {pages} pages after {s} s and goes on");
    for line in reasons(monitor, members) {
        message.push_str(&format!("; {line}"));
    }
    Failure::new("timeout", message)
}

/// What keeps pages. A daemon that does not answer says no reasons.
fn reasons(monitor: &mut Monitor, members: &[Member]) -> Vec<String> {
    let with_pages = members.iter().filter(|member| member.pages > 0);
    let reports = with_pages.filter_map(|member| monitor.drain_report(member).ok());
    reports.flat_map(|report| report.lines()).collect()
}

/// A rack, or its shards.
fn shards(monitor: &mut Monitor, rack: RackId) -> Result<Vec<Member>> {
    let mut found = monitor.members()?;
    found.retain(|member| member.info.rack.same_rack(rack));
    if found.is_empty() {
        return Err(Failure::new("no-such-rack", format!("rack {rack} is not in the pool")));
    }
    Ok(found)
}

/// Lets a draining rack serve again.
pub fn undrain(args: &UndrainArgs) -> Result<()> {
    let rack = RackId(args.rack);
    let standing = Watch::open(&args.at)?.monitor.undrain(rack)?;
    output::print(&format!("rack {rack} is {}\n", standing.name()))
}

pub fn forget(args: &ForgetArgs) -> Result<()> {
    let mut monitor = Watch::open(&args.at)?.monitor;
    let rack = RackId(args.rack);
    let before = shards(&mut monitor, rack)?;
    let pages: u64 = before.iter().map(|member| member.pages).sum();
    let bytes = pages << before[0].info.page_shift;
    if before.iter().all(|member| member.standing == RackState::Lost) {
        return output::print(&format!("rack {rack} is lost already: {pages} pages\n"));
    }
    if before.iter().any(|member| member.info.alive) {
        let reason = format!("the daemon of rack {rack} is alive: nothing was done");
        let hint = format!("drain it with `rackpool drain --rack {rack}`, or stop it first");
        return Err(Failure::new("denied", reason).with_hint(hint));
    }
    let loss = format!("{pages} pages ({bytes} bytes) would be lost for good");
    if !args.yes && !std::io::stdin().is_terminal() {
        let reason = format!("{loss}, and there is no terminal to ask at: nothing was done");
        return Err(Failure::new("denied", reason).with_hint("say --yes if that is meant"));
    }
    warn!(target: "forget", "rack {rack}: DATA LOSS: {loss}");
    if !args.yes && !confirmed(rack)? {
        return Err(Failure::new("denied", "not confirmed: nothing was done"));
    }
    let started = Instant::now();
    let standing = loop {
        let refused = match monitor.forget(rack) {
            Ok(standing) => break standing,
            Err(refused) => Failure::from(refused),
        };
        // A daemon that died a moment ago may come back for as long as a lease.
        let lives = shards(&mut monitor, rack)?.iter().any(|member| member.info.alive);
        let may_come_back = refused.code() == "denied" && !lives;
        if !may_come_back || started.elapsed() > COME_BACK {
            return Err(refused);
        }
        std::thread::sleep(LOOK);
    };
    output::print(&format!("rack {rack} is {}: {pages} pages\n", standing.name()))
}

fn confirmed(rack: RackId) -> Result<bool> {
    // What cannot be asked is not answered either.
    let _ = write!(std::io::stderr(), "type {rack} to give up rack {rack}: ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::io("standard input", &error))?;
    Ok(line.trim() == rack.to_string())
}
