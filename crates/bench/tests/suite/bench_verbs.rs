//! `bench verbs` on an RDMA device, in its smallest size. `cargo xtask vm herd` runs it.
#![cfg(all(feature = "lab", feature = "verbs"))]

use rackpool_bench::run::Size;
use rackpool_bench::verbs::{self, Carrier};

#[test]
#[ignore = "needs an RDMA device: cargo xtask vm herd"]
fn a_device_is_measured_and_what_the_kernel_emulates_is_called_so() {
    let device = std::env::var("RACKPOOL_VERBS_DEVICE").ok();
    let options = verbs::Options { size: Size::Smoke, carrier: Carrier::Verbs, device };
    let report = verbs::run(&options, &mut |step| println!("{}", step.name)).unwrap();
    println!("{}", report.table());
    let row = |name: &str| report.results.iter().find(|row| row.name == name).expect(name);
    assert_eq!(row("write_32B").extra["inline"], true);
    assert_eq!(row("write_192B").extra["inline"], false);
    let echoes = ["echo_write_write_32B", "echo_rate_write_write_32B", "echo_write_send_32B"];
    for name in ["in_read_1024B", "out_write_4B", "all_to_all_write_32B"].iter().chain(&echoes) {
        assert!(row(name).ours > 0.0);
    }
    let peers = ["read_32B", "write_32B"].map(|name| row(name).peer);
    let soft = report.extra["is_emulated_device"].as_bool();
    assert_eq!(soft, Some(true), "this is run on Soft-RoCE");
    assert!(report.extra["note"].as_str().unwrap().contains("not its speed"));
    println!("\nresult: bench verbs: {} rows, perftest {peers:?} ns", report.results.len());
}
