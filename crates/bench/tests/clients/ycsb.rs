//! YCSB with real client processes.

use crate::this_program;
use rackpool_bench::run::{BenchError, Size};
use rackpool_bench::ycsb::Workload;
use rackpool_bench::ycsb_run::{self, Options};
use std::io::{BufRead, Write};

pub const CLIENT: &str = "ycsb-client";
pub const DYING_CLIENT: &str = "dying-ycsb-client";

pub fn test() {
    every_workload_runs_with_four_processes_in_two_racks_and_verifies_every_value();
    a_client_that_dies_fails_the_run_and_leaves_no_process();
}

/// A client that ends at its first order.
pub fn die(input: &mut dyn BufRead, _: &mut dyn Write) -> Result<(), BenchError> {
    let mut line = String::new();
    for _ in 0..2 {
        input.read_line(&mut line).expect("standard input is a pipe");
    }
    std::process::abort()
}

fn every_workload_runs_with_four_processes_in_two_racks_and_verifies_every_value() {
    let options = Options { size: Size::Smoke, ..Options::default() };
    let mut started = 0;
    let mut command = |_| {
        started += 1;
        this_program(CLIENT)
    };
    let report = ycsb_run::run(&options, &mut command, &mut |_| ()).expect("the run succeeds");
    assert_eq!(started, 4);
    assert_eq!(report.results.len(), 11, "{}", report.table());
    for row in &report.results {
        assert!(row.ours > 0.0 && row.n > 0, "{row:?}");
        assert!(row.p50 <= row.p99 && row.p99 <= row.p999, "{row:?}");
        let operations = |kind: &str| row.extra[kind]["n"].as_u64().expect("a number");
        assert_eq!(row.n, operations("reads") + operations("writes"), "{row:?}");
        let verified = row.extra["values_verified"].as_u64();
        assert!(operations("reads") > 0 && verified >= Some(operations("reads")), "{row:?}");
    }
    let name = |workload, distribution| format!("ycsb_{workload}_{distribution}");
    assert_eq!(report.results[0].name, name(Workload::A, "uniform"));
    assert!(report.results.iter().any(|row| row.name == name(Workload::D, "latest")));
    assert_eq!(report.extra["clients"], 4);
}

fn a_client_that_dies_fails_the_run_and_leaves_no_process() {
    let options = Options { size: Size::Smoke, clients: 3, ..Options::default() };
    let children = || {
        std::fs::read_to_string("/proc/thread-self/children").expect("this kernel tells of them")
    };
    let mut command = |client| {
        assert_eq!(children().split_whitespace().count(), client as usize, "what is left is seen");
        this_program(if client == 1 { DYING_CLIENT } else { CLIENT })
    };
    let error = ycsb_run::run(&options, &mut command, &mut |_| ()).expect_err("one client dies");
    assert_eq!(error.code(), "worker");
    assert!(error.to_string().contains("client process 1"), "{error}");
    assert_eq!(children().trim(), "", "children are left");
}
