//! Each runner in its smallest size, over racks in this process: that they run to their end, that
//! their reports hold what `SPECIFICATION.md` names, and that warm accesses send no messages.
//! Numbers are not judged here: tests share their cores.

use rackpool::{Emulate, FabricChoice};
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_bench::run::{PoolSource, Progress, Size};
use rackpool_bench::{local, remote, ring, rrpc};
#[cfg(feature = "lab")]
use rackpool_bench::{run::BenchError, tiers, verbs};
use std::sync::Mutex;

/// The runners pin their thread and want the machine for themselves: one at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn row<'r>(report: &'r Report, name: &str) -> &'r Row {
    let row = report.results.iter().find(|row| row.name == name);
    let row = row.unwrap_or_else(|| panic!("there is no {name} in {}", report.table()));
    assert!(row.ours > 0.0 && row.ratio.is_some_and(|ratio| ratio > 0.0), "{row:?}");
    assert!(Report::from_json(&report.to_json().unwrap()).is_ok());
    row
}

fn count(row: &Row, field: &str) -> u64 {
    row.extra.get(field).and_then(serde_json::Value::as_u64).expect(field)
}

#[test]
fn bench_local_reports_each_access_beside_the_bare_copy_and_sends_nothing() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut said = Vec::new();
    let options = local::Options { size: Size::Smoke, ..Default::default() };
    let report = local::run(&options, &mut |progress: Progress| said.push(progress)).unwrap();
    assert_eq!(report.kind, Kind::Measured);
    assert_eq!(report.extra["servers"], "threads of this process");
    for name in ["read_64B_own_rack_warm", "write_64B_own_rack_warm", "read_4KiB_own_rack_warm"] {
        let row = row(&report, name);
        assert_eq!((row.unit.as_str(), row.better), ("ns", Better::Lower));
        assert!(row.raw.is_some() && row.p50.is_some());
        assert_eq!(count(row, "messages"), 0, "{name}");
    }
    let batch = row(&report, "read_64B_own_rack_batch");
    assert_eq!((count(batch, "batch"), batch.better), (32, Better::Higher));
    for name in ["copy_64B", "copy_4KiB", "copy_1MiB"] {
        assert!(row(&report, name).peer.is_some());
    }
    for name in ["alloc_free_64B", "alloc_free_64B_cross"] {
        let row = row(&report, name);
        let sent = row.extra["messages_per_1000"].as_f64().unwrap();
        assert!(row.raw.is_some() && sent <= 32.0, "{name}: {sent}");
    }
    for name in ["metadata_store", "metadata_load"] {
        assert!(row(&report, name).raw.is_some());
    }
    let last = said.last().unwrap();
    assert_eq!(last.done, last.steps, "progress ends at its end");
}

#[test]
fn injected_latency_makes_a_report_emulated() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let emulate = Emulate { cxl_ns: 300, rdma_ns: 0 };
    let source = PoolSource { emulate, ..Default::default() };
    let options = local::Options { size: Size::Smoke, source, rack: 0 };
    let report = local::run(&options, &mut |_| ()).unwrap();
    assert_eq!(report.kind, Kind::Emulated);
    assert!(row(&report, "read_64B_own_rack_warm").ours >= 300.0);
}

#[test]
fn bench_ring_reports_two_cores_one_core_and_a_real_request() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let options = ring::Options { size: Size::Smoke, ..Default::default() };
    let report = ring::run(&options, &mut |_| ()).unwrap();
    assert_eq!(row(&report, "ring_roundtrip").unit, "ns");
    assert_eq!(row(&report, "ring_one_core").better, Better::Higher);
    assert_eq!(count(row(&report, "first_touch_own_rack"), "ring_messages"), 1);
}

#[test]
fn bench_remote_over_tcp_asks_the_master_at_most_once_at_the_first_touch_and_never_after() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let options = remote::Options { size: Size::Smoke, ..Default::default() };
    let report = remote::run(&options, &mut |_| ()).unwrap();
    assert_eq!(report.extra["fabric"], "tcp");
    for name in [
        "read_64B_remote_warm",
        "write_64B_remote_warm",
        "fetch_add_remote",
        "read_1MiB_remote",
        "write_1MiB_remote",
    ] {
        assert_eq!(count(row(&report, name), "master_messages"), 0, "{name}");
    }
    // The rack of a page is guessed by its range, and asked for page and data at once, unless that
    // was measured to be slower: then the own daemon is asked, and the master, once each.
    let touch = row(&report, "first_touch_remote");
    let asked = ["ring_messages", "master_messages"].map(|field| count(touch, field));
    assert!(asked == [0, 0] || asked == [1, 1], "{asked:?}");
}

#[test]
fn bench_remote_over_shm_stands_beside_the_same_mapping() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let fabric = FabricChoice::Shm;
    let options = remote::Options { size: Size::Smoke, fabric, ..Default::default() };
    let report = remote::run(&options, &mut |_| ()).unwrap();
    for name in ["read_64B_remote_warm", "write_64B_remote_warm", "read_1MiB_remote"] {
        assert_eq!(count(row(&report, name), "master_messages"), 0, "{name}");
    }
    assert_eq!(count(row(&report, "first_touch_remote"), "master_messages"), 1);
}

#[test]
fn bench_rrpc_reports_each_mode_beside_a_raw_read_and_the_rate_by_reads_under_way() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let source = PoolSource::default();
    let options = rrpc::Options { size: Size::Smoke, source, fabric: FabricChoice::Tcp };
    let report = rrpc::run(&options, &mut |_| ()).unwrap();
    for bytes in [64, 512, 4096] {
        for (way, operations) in
            [("rpc_inline", 1), ("rpc_then_read", 2), ("rpc_write_back", 1), ("one_sided", 1)]
        {
            let row = row(&report, &format!("{way}_{bytes}B"));
            assert!(row.raw.is_some() && row.p99 >= row.p50, "{}", row.name);
            assert_eq!(count(row, "fabric_operations"), operations, "{}", row.name);
        }
    }
    assert!(row(&report, "rpc_write_back_65536B").raw.is_some());
    let crossover = report.results.iter().find(|row| row.name == "rrpc_crossover").unwrap();
    assert!(crossover.paper == Some(512.0) && (0.0..=8192.0).contains(&crossover.ours));
    let first = row(&report, "first_read_512B_by_call");
    assert_eq!((count(first, "master_messages"), count(first, "ring_messages")), (0, 0));
    let deep = row(&report, "remote_read_pipeline_32_over_1");
    assert!(deep.extra["send_calls_each"].as_f64() < Some(0.5), "{deep:?}");
}

#[cfg(feature = "lab")]
#[test]
fn bench_verbs_reports_each_verb_alone_in_out_and_all_to_all() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for carrier in [verbs::Carrier::Tcp, verbs::Carrier::Shm] {
        let options = verbs::Options { size: Size::Smoke, carrier, device: None };
        let report = verbs::run(&options, &mut |_| ()).unwrap();
        let names: Vec<&str> = report.results.iter().map(|row| row.name.as_str()).collect();
        let mut expected = vec!["read_32B", "write_32B", "in_read_4B", "in_write_1024B"];
        expected.extend(["echo_write_write_32B", "echo_rate_write_write_32B"]);
        expected.extend(["out_read_32B", "out_write_32B", "all_to_all_write_32B"]);
        if carrier == verbs::Carrier::Tcp {
            expected.extend(["echo_write_send_32B", "echo_write_imm_send_32B"]);
            expected.extend(["echo_send_send_32B", "echo_rate_write_send_32B"]);
        }
        for name in expected {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert!(report.results.iter().all(|row| row.ours > 0.0));
    }
}

#[cfg(feature = "lab")]
#[test]
fn bench_tiers_reports_chosen_weights_beside_others_and_the_allocator_beside_mimalloc() {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let report = match tiers::run(Size::Smoke, &mut |_| ()) {
        Err(BenchError::Arena(error)) => {
            println!("NOT TESTED: {error}");
            return;
        }
        report => report.unwrap(),
    };
    let text = |row: &Row, field: &str| row.extra[field].as_str().map(str::to_owned).unwrap();
    for (name, weights) in [("300_100", "3:1"), ("350_60", "6:1"), ("200_80_40", "5:2:1")] {
        assert!(row(&report, &format!("weights_{name}_alone_emulated")).raw.is_some());
        let row = row(&report, &format!("weights_{name}_emulated"));
        assert_eq!(text(row, "kind"), "emulated");
        assert_eq!((text(row, "weights").as_str(), row.peer.is_some()), (weights, true));
        assert_eq!(row.extra.contains_key("rounded_ratio"), name != "300_100");
    }
    for name in ["alloc_replace", "alloc_replace_by_size", "alloc_resize"] {
        let row = row(&report, &format!("{name}_vs_mimalloc"));
        assert!(row.p50.is_some() && count(row, "other_p99") > 0, "{row:?}");
    }
    for name in ["alloc_replace_2_threads", "alloc_free_by_another_thread"] {
        let row = row(&report, &format!("{name}_vs_mimalloc"));
        assert_eq!((count(row, "threads"), row.unit.as_str()), (2, "ns"));
    }
    for other in ["jemalloc", "memkind"] {
        let end = format!("_vs_{other}");
        let is_measured = report.results.iter().any(|row| row.name.ends_with(&end));
        assert_ne!(is_measured, report.extra.contains_key(&format!("{other}_absent")), "{other}");
    }
}
