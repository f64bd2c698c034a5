//! YCSB with real client processes: this program starts itself as a client. It has a `main` of
//! its own for that, instead of the usual test harness.

use rackpool_bench::run::Size;
use rackpool_bench::ycsb::Workload;
use rackpool_bench::ycsb_run::{self, Options};
use std::process::{Command, ExitCode};

/// The word that makes this program a client.
const CLIENT: &str = "ycsb-client";
/// The word that makes it a client that ends at its first order.
const DYING_CLIENT: &str = "dying-ycsb-client";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(CLIENT) => {
            let (input, output) = (std::io::stdin(), std::io::stdout());
            match ycsb_run::worker(&mut input.lock(), &mut output.lock()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
            }
        }
        Some(DYING_CLIENT) => {
            let mut line = String::new();
            for _ in 0..2 {
                std::io::stdin().read_line(&mut line).expect("standard input is a pipe");
            }
            std::process::abort()
        }
        // Cargo lists tests in this way; there is one.
        Some("--list") => ExitCode::SUCCESS,
        _ => {
            every_workload_runs_with_four_processes_in_two_racks_and_verifies_every_value();
            a_client_that_dies_fails_the_run_and_leaves_no_process();
            println!("ycsb: ok");
            ExitCode::SUCCESS
        }
    }
}

fn this_program(word: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.arg(word);
    command
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
