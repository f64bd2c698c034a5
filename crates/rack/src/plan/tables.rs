//! The report's tables.

use super::answer::Answer;
use super::cache::CacheAnswer;
use super::cost::{PARTS, gib};
use super::decide::{LINK_PERCENT, P99, REMOTE_PERCENT};
use super::input::{CacheQuestion, Plan, Price};
use super::point::Point;
use super::stats::Estimate;
use crate::live::Report;
use crate::model::config::Preset;
use rackpool_sim::report::{Cell, Table};

/// Most designs that the page shows; all are in the files beside it.
pub(super) const SHOWN_MAX: usize = 200;

/// The designs to show: by cost, those that are decided for first.
pub(super) fn shown(answer: &Answer, most: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..answer.points.len()).collect();
    order.sort_by(|a, b| {
        let key = |index: usize| {
            let point = &answer.points[index];
            (answer.verdict.best != Some(index), !point.is_on_front, point.cost.sum())
        };
        let (a, b) = (key(*a), key(*b));
        a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2))
    });
    order.truncate(most);
    order
}

/// A design's short name in charts.
pub(super) fn number(index: usize) -> String {
    format!("#{}", index + 1)
}

/// A mean with its interval, as text.
pub(super) fn interval(one: &Estimate, digits: usize) -> String {
    let Estimate { mean, low, high, .. } = one;
    format!("{mean:.digits$} ({low:.digits$} to {high:.digits$})")
}

pub(super) fn stranding(plan: &Plan, answer: &Answer) -> Table {
    let columns = [("without pools", ""), ("value", "")];
    let mut table = Table::new("stranding", "The machines as they are", &columns);
    let one = &answer.baseline;
    let currency = &plan.currency;
    for (name, value) in [
        ("memory stranded, %", interval(&one.stranded_percent, 1)),
        ("memory in use, %", interval(&one.used_percent, 1)),
        ("virtual machines that found no room, %", interval(&one.refused_percent, 1)),
        ("memory of a machine as bought today", plan.machines.memory.to_string()),
        ("memory that suffices a machine", format!("{:.0} GiB", gib(one.right_mib))),
        ("cost a machine as bought today", format!("{:.0} {currency}", one.cost_as_bought)),
        ("cost a machine with what suffices", format!("{:.0} {currency}", one.cost)),
    ] {
        table.row([Cell::from(name), Cell::from(value)]);
    }
    table
}

pub(super) fn sizes(plan: &Plan, answer: &Answer, shown: &[usize]) -> Table {
    let columns = [
        ("", ""),
        ("design", ""),
        ("machine", "GiB"),
        ("pools", "count"),
        ("each pool", "GiB"),
        ("over", "% of time"),
        ("hit by a failure", "machines"),
        ("cost", ""),
        ("saving", "%"),
        ("p99", "ns"),
        ("goals", ""),
    ];
    let title = format!("Designs, cost in {} a machine", plan.currency);
    let mut table = Table::new("designs", &title, &columns);
    for index in shown {
        let point = &answer.points[*index];
        let mark = if point.is_on_front { " *" } else { "" };
        let goals = if point.fails.is_empty() { "met".into() } else { point.fails.join("; ") };
        table.row([
            Cell::from(number(*index) + mark),
            point.label.as_str().into(),
            gib(point.local_mib).into(),
            u64::from(point.pools_bought).into(),
            gib(point.pool_mib).into(),
            interval(&point.over_percent, 2).into(),
            u64::from(point.blast.machines_max).into(),
            point.cost.sum().round().into(),
            interval(&point.saving_percent, 1).into(),
            interval(&point.latency[P99], 0).into(),
            goals.into(),
        ]);
    }
    table.note("* nothing else is both cheaper and faster");
    if shown.len() < answer.points.len() {
        let (some, all) = (shown.len(), answer.points.len());
        table.note(format!("{some} of {all} designs; summary.json has all"));
    }
    table
}

pub(super) fn latencies(answer: &Answer, shown: &[usize]) -> Table {
    let columns = [
        ("", ""),
        ("mean", "ns"),
        ("p50", "ns"),
        ("p99", "ns"),
        ("p99.9", "ns"),
        ("slowest", "ns"),
        ("to pools", "%"),
        ("their mean", "ns"),
        ("link use", "%"),
    ];
    let mut table = Table::new("latencies", "Times of all accesses", &columns);
    let mut add = |name: String, all: &[Estimate; 8]| {
        let cells = [0, 1, P99, 3, 4].map(|which| Cell::from(interval(&all[which], 0)));
        let rest = [
            Cell::from(interval(&all[REMOTE_PERCENT], 1)),
            interval(&all[5], 0).into(),
            interval(&all[LINK_PERCENT], 1).into(),
        ];
        table.row([Cell::from(name)].into_iter().chain(cells).chain(rest));
    };
    for (pod, latency) in &answer.baseline.latency {
        add(format!("everything local, {pod} machines"), latency);
    }
    for index in shown {
        add(number(*index), &answer.points[*index].latency);
    }
    table
}

pub(super) fn blasts(answer: &Answer, shown: &[usize]) -> Table {
    let columns = [
        ("", ""),
        ("machines, mean", "count"),
        ("machines, most", "count"),
        ("virtual machines, mean", "count"),
        ("virtual machines, most", "count"),
    ];
    let mut table = Table::new("blast", "What the failure of one pool takes along", &columns);
    for index in shown {
        let Point { blast, .. } = &answer.points[*index];
        table.row([
            Cell::from(number(*index)),
            blast.machines_mean.into(),
            u64::from(blast.machines_max).into(),
            blast.vms_mean.into(),
            u64::from(blast.vms_max).into(),
        ]);
    }
    table
}

pub(super) fn tiers(plan: &Plan) -> Table {
    let columns = [
        ("memory", ""),
        ("preset", ""),
        ("there and back", "ns"),
        ("memory itself", "ns"),
        ("a line, idle", "ns"),
        ("a link", "GB/s each way"),
        ("memory's rate", "GB/s"),
        ("source", ""),
    ];
    let mut table = Table::new("tiers", "What one access takes when nothing else runs", &columns);
    for one in plan.tier_facts() {
        table.row([
            Cell::from(one.tier.as_str()),
            one.preset.map_or("", Preset::name).into(),
            one.round_trip_ns.into(),
            one.memory_ns.into(),
            one.read_ns().into(),
            one.link_gbytes_per_s.into(),
            one.memory_gbytes_per_s.into(),
            one.source.as_str().into(),
        ]);
    }
    table
}

pub(super) fn swings(answer: &Answer) -> Table {
    let columns =
        [("what", ""), ("low", ""), ("saving there", "%"), ("high", ""), ("saving there ", "%")];
    let mut table = Table::new("sensitivity", "What moves the saving", &columns);
    for one in &answer.swings {
        table.row([
            Cell::from(one.what.as_str()),
            one.range[0].as_str().into(),
            one.saving_percent[0].into(),
            one.range[1].as_str().into(),
            one.saving_percent[1].into(),
        ]);
    }
    table
}

pub(super) fn break_even(plan: &Plan, answer: &Answer) -> Table {
    let columns = [("price", ""), ("in the plan", ""), ("nothing is saved at", ""), ("saves", "")];
    let mut table = Table::new("break-even", "Prices at which nothing is saved", &columns);
    for one in &answer.break_even {
        let unit = format!("{} per {}", plan.currency, one.per);
        let at = match one.at {
            Some(at) => format!("{at:.2} {unit}"),
            None => "no price".to_owned(),
        };
        let side = match (one.at, one.saves_above) {
            (None, _) => "–",
            (_, true) => "above",
            (_, false) => "below",
        };
        table.row([
            Cell::from(one.what),
            format!("{:.2} {unit}", one.amount).into(),
            at.into(),
            side.into(),
        ]);
    }
    table
}

pub(super) fn checks(answer: &Answer) -> Table {
    let columns = [("claim", ""), ("bound", ""), ("seen", ""), ("holds", "")];
    let mut table = Table::new("checks", "The claim under other seeds", &columns);
    for check in &answer.checks {
        let holds = if check.holds { "yes" } else { "NO" };
        table.row([Cell::from(check.what), check.claimed.into(), check.seen.into(), holds.into()]);
    }
    if answer.checks.is_empty() {
        let said = "nothing is claimed, because nothing is to be bought";
        table.row([Cell::from(said), Cell::Empty, Cell::Empty, Cell::Empty]);
    }
    table
}

/// The splits of a cache of which none is both cheaper and faster.
pub(super) fn cache(plan: &Plan, question: &CacheQuestion, answer: &CacheAnswer) -> Table {
    let columns = [
        ("split", ""),
        ("cost", &*plan.currency),
        ("hits", "%"),
        ("after a loss of power", "%"),
        ("a get", "us"),
    ];
    let title = "Splits, none both cheaper and faster than another";
    let mut table = Table::new("cache", title, &columns);
    for split in answer.front.iter().take(SHOWN_MAX) {
        table.row([
            question.parts(split).into(),
            split.cost.into(),
            split.hit_percent.into(),
            split.warm_percent.into(),
            (split.mean_ns / 1e3).into(),
        ]);
    }
    table
}

pub(super) fn live(live: &Report) -> Table {
    let columns = [("", ""), ("prediction", ""), ("live", ""), ("difference", "%")];
    let mut table = Table::new("live", "Prediction and live", &columns);
    let mut add = |what: String, ours: f64, theirs: Option<f64>| {
        let off = theirs.filter(|live| *live > 0.0).map(|live| 100.0 * (ours - live) / live);
        table.row([Cell::from(what), ours.into(), theirs.into(), off.into()]);
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for row in &live.racks {
        let [ours, theirs] = row.choices.map(|count| count as f64);
        add(format!("choices of rack {}", row.rack), ours, Some(theirs));
        let [ours, theirs] = row.placed_bytes.map(mib);
        add(format!("placed in rack {}, MiB", row.rack), ours, Some(theirs));
        let (ours, theirs) = row.used_bytes;
        add(format!("in use in rack {}, MiB", row.rack), mib(ours), theirs.map(mib));
    }
    let [ours, theirs] = live.refused.map(|count| count as f64);
    add("requests without room".into(), ours, Some(theirs));
    table
}

pub(super) fn live_policies(live: &Report) -> Table {
    let columns =
        [("choice", ""), ("fullest rack", "MiB"), ("emptiest rack", "MiB"), ("refused", "count")];
    let mut table = Table::new("live-policies", "The same requests by other policies", &columns);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for row in &live.policies {
        table.row([
            Cell::from(row.choice.as_str()),
            mib(row.most_bytes).into(),
            mib(row.least_bytes).into(),
            row.refused.into(),
        ]);
    }
    table
}

pub(super) fn prices(plan: &Plan) -> Table {
    let columns = [
        ("what", ""),
        ("price", ""),
        ("per", ""),
        ("from", ""),
        ("to", ""),
        ("date", ""),
        ("source", ""),
    ];
    let title = format!("Prices, {}", plan.currency);
    let mut table = Table::new("prices", &title, &columns);
    let mut add = |name: String, price: &Price| {
        let (low, high) = price.range();
        table.row([
            Cell::from(name),
            format!("{:.2}", price.amount).into(),
            price.per.as_str().into(),
            format!("{low:.2}").into(),
            format!("{high:.2}").into(),
            price.date.to_string().into(),
            price.source.as_str().into(),
        ]);
    };
    add(PARTS[0].to_owned(), &plan.prices.machine_dram);
    for tier in &plan.tiers {
        let prices = &tier.prices;
        let all = [&prices.pool_dram, &prices.pool, &prices.link, &prices.switch_port];
        for (name, price) in PARTS[1..].iter().zip(all) {
            add(format!("{}: {name}", tier.name), price);
        }
    }
    for memory in plan.cache.iter().flat_map(|cache| &cache.memories) {
        add(format!("cache: {}", memory.name), &memory.price);
    }
    table
}
