//! `rackpool fsck`: every allocation of a pool by kind, and whether each part of a hash table is
//! named by a table exactly once. In: a pool that runs, in use or not. Out: a table, or JSON; exit
//! code 0 if all is well, 1 if something is lost, named twice or cannot be known.

use crate::args::{FsckArgs, PoolArgs};
use crate::connect::open_any_rack;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool::{AllocationKind, ErrorKind};
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_stats::table::TextTable;
use rackpool_table::audit::{Amount, Findings, LISTED_MAX};
use serde_json::json;
use std::time::Duration;

/// Audits that begin while another one runs wait for it this often, and this long.
const AUDITS_MAX: u32 = 20;
const AUDIT_PAUSE: Duration = Duration::from_millis(500);

/// Looks, says what was found, and fails if that is not good.
pub fn run(args: &FsckArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    let found = audit(&args.pool, args.repair)?;
    if let Some(json) = json {
        json.report(&as_report(&found))?;
    }
    output::print(&as_text(&found))?;
    if found.is_clean() {
        return Ok(());
    }
    let lost = found.lost.allocations - found.reclaimed.allocations;
    let mut said: Vec<String> = Vec::new();
    let counts = [
        (lost, "allocations are lost: `rackpool fsck --repair` gives them back"),
        (found.named_twice.len() as u64, "are named by tables more than once"),
        (found.named_free.len() as u64, "are named by tables and not allocated"),
    ];
    said.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    said.extend(found.faults.first().map(|fault| format!("not all could be read: {fault}")));
    Err(Failure::new("not-clean", said.join("; ")))
}

fn audit(args: &PoolArgs, repair: bool) -> Result<Findings> {
    let mut handle = open_any_rack(args)?.handle()?;
    for turn in 1..=AUDITS_MAX {
        match rackpool_table::audit::audit(&mut handle, repair) {
            Err(rackpool_table::Error::Pool(error))
                if error.kind() == ErrorKind::Busy && turn < AUDITS_MAX =>
            {
                std::thread::sleep(AUDIT_PAUSE);
            }
            found => return Ok(found?),
        }
    }
    unreachable!("the last audit returns")
}

fn as_text(found: &Findings) -> String {
    let heads = ["RACK", "KIND", "ALLOCATIONS", "BYTES", "LOST", "LOST BYTES"];
    let mut table = TextTable::new(&heads);
    for of_rack in &found.racks {
        for kind in AllocationKind::ALL {
            let amount = of_rack.kinds.get(&kind).copied().unwrap_or_default();
            let lost = (kind == AllocationKind::Table).then_some(of_rack.lost);
            let say = |lost: Option<u64>| lost.map_or("-".into(), |lost| lost.to_string());
            table.row([
                of_rack.rack.to_string(),
                kind.name().to_owned(),
                amount.allocations.to_string(),
                amount.bytes.to_string(),
                say(lost.map(|lost| lost.allocations)),
                say(lost.map(|lost| lost.bytes)),
            ]);
        }
    }
    let mut text = table.show();
    let mut say = |line: String| text.push_str(&format!("{line}\n"));
    for one in &found.tables {
        say(format!("table {}: {}", one.name, of(one.named)));
    }
    if found.older.allocations > 0 {
        say(format!(
            "allocated as a user's by an older version, named by tables: {}",
            of(found.older)
        ));
    }
    if found.held.allocations > 0 {
        let pids: Vec<String> = found.holders.iter().map(u32::to_string).collect();
        let holders = format!("in the middle of a change, process {}", pids.join(", "));
        say(format!("not named: {}; may be held by clients {holders}", of(found.held)));
    }
    for (addrs, what) in [
        (&found.lost_at, "named by nothing"),
        (&found.named_twice, "named more than once"),
        (&found.named_free, "named, not allocated"),
    ] {
        for addr in addrs.iter() {
            say(format!("{what}: {addr}"));
        }
        if addrs.len() == LISTED_MAX {
            say(format!("{what}: perhaps more"));
        }
    }
    for fault in &found.faults {
        say(format!("not read: {fault}"));
    }
    if found.reclaimed.allocations > 0 {
        say(format!("given back: {}", of(found.reclaimed)));
    }
    text
}

fn of(amount: Amount) -> String {
    format!("{} allocations, {} bytes", amount.allocations, amount.bytes)
}

fn as_report(found: &Findings) -> Report {
    let mut report = Report::here(Kind::Measured);
    for of_rack in &found.racks {
        for kind in AllocationKind::ALL {
            let amount = of_rack.kinds.get(&kind).copied().unwrap_or_default();
            let name = format!("rack_{}_{}_bytes", of_rack.rack, kind.name());
            let row = Row::new(&name, "B", Better::Lower, amount.bytes as f64);
            report.results.push(row.samples(amount.allocations));
        }
    }
    let totals = [
        ("lost", found.lost),
        ("held", found.held),
        ("older", found.older),
        ("reclaimed", found.reclaimed),
    ];
    for (name, amount) in totals {
        let row = Row::new(&format!("{name}_bytes"), "B", Better::Lower, amount.bytes as f64);
        report.results.push(row.samples(amount.allocations));
    }
    let addrs = |addrs: &[rackpool::GAddr]| -> Vec<String> {
        addrs.iter().map(ToString::to_string).collect()
    };
    let tables: Vec<serde_json::Value> = found
        .tables
        .iter()
        .map(|one| {
            let Amount { allocations, bytes } = one.named;
            json!({ "name": one.name, "allocations": allocations, "bytes": bytes })
        })
        .collect();
    let further = [
        ("clean", json!(found.is_clean())),
        ("tables", json!(tables)),
        ("holders", json!(found.holders)),
        ("lost_at", json!(addrs(&found.lost_at))),
        ("named_twice", json!(addrs(&found.named_twice))),
        ("named_free", json!(addrs(&found.named_free))),
        ("faults", json!(found.faults)),
    ];
    report.extra.extend(further.map(|(name, value)| (name.to_owned(), value)));
    report
}
