//! `bench cache --tiering` on nodes that are named, with processes under `numactl` where that is
//! installed.

use crate::this_program;
use rackpool_bench::cache::tiering::{FarKind, Options, run};
use rackpool_bench::report::Kind;
use rackpool_bench::run::Size;
use std::path::Path;

pub const WORKER: &str = "tiering-worker";
const POLICIES: [&str; 3] =
    ["numactl_membind", "numactl_interleave", "numactl_weighted_interleave"];

pub fn test() {
    what_lies_on_named_nodes_is_measured_beside_what_the_system_places();
}

/// Node 0 is as far as it is near: a machine has no other for sure. In a guest it may be another.
fn what_lies_on_named_nodes_is_measured_beside_what_the_system_places() {
    if !Path::new("/sys/devices/system/node/has_memory").exists() {
        println!("NOT TESTED: this kernel has no memory nodes");
        return;
    }
    let nodes = std::env::var("RACKPOOL_NODES").unwrap_or_else(|_| "0".into());
    let far: u16 = nodes.rsplit(',').next().and_then(|node| node.parse().ok()).expect("a node");
    let mut started = 0;
    let mut worker = |_| {
        started += 1;
        this_program(WORKER)
    };
    let options = Options {
        names: &["follower_assocs".to_owned()],
        far: FarKind::Nodes(vec![far]),
        engines: 1,
        size: Size::Smoke,
        worker: &mut worker,
    };
    let report = run(options, &mut |_| ()).expect("the run succeeds");
    assert_eq!(report.kind, Kind::Measured);
    assert_eq!(report.extra["far_nodes"], far.to_string());
    let absent = |policy: &str| report.extra.contains_key(&format!("{policy}_absent"));
    let there: Vec<&str> = POLICIES.into_iter().filter(|policy| !absent(policy)).collect();
    println!("numactl has {there:?}");
    let mut expected = vec!["measured_chase".to_owned(), "measured_stream".to_owned()];
    for test in ["zipf99", "follower_assocs"] {
        expected.push(format!("{test}_dram"));
        let beside = ["far", "transparent", "data"].iter().chain(&there);
        expected.extend(beside.map(|word| format!("{test}_{word}_measured")));
    }
    expected.push("follower_assocs_advised_measured".to_owned());
    expected.push("advised_within_3_percent_measured".to_owned());
    let rows: Vec<&str> = report.results.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(rows, expected);
    assert_eq!(started, 2 * there.len());
    let (summary, rows) = report.results.split_last().expect("there are rows");
    assert!([0.0, 1.0].contains(&summary.ours), "{summary:?}");
    for row in rows {
        let is_finite = row.ours.is_finite() && row.ratio.is_none_or(f64::is_finite);
        assert!(row.ours > 0.0 && is_finite, "{row:?}");
    }
}
