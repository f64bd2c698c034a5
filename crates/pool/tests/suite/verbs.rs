//! Fabric `verbs` where it cannot be had: without the feature, without the library, without the
//! device. What works over it is tested in virtual machines (`cargo xtask vm`).

use rackpool::cluster::Cluster;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::{Connections, Error, FabricChoice, Options, Placement, Pool};
use rackpool_core::wire::FabricKind;

const NOWHERE: &str = "no-such-device";

/// It names what is missing and another way.
fn is_absence(error: &Error) -> bool {
    let text = error.to_string();
    let missing = ["--features verbs", "libibverbs1", "ib_uverbs", "rdma link add"];
    error.code() == "config" && missing.iter().any(|what| text.contains(what))
}

#[test]
fn a_daemon_that_cannot_use_verbs_says_what_is_missing_and_serves_nothing() {
    let cluster = Cluster::start(1).unwrap();
    let mut options = DaemonOptions::new(1, &cluster.master_addr(), "heap:8M");
    options.fabric = FabricKind::Verbs;
    options.verbs_device = Some(NOWHERE.into());
    let error = DaemonServer::start(options).map(drop).unwrap_err();
    assert!(is_absence(&error), "{error}");
    let pool = cluster.pool(0).unwrap();
    let elsewhere = pool.alloc(8, Placement::Rack(rackpool::RackId(1))).unwrap_err();
    assert_eq!(elsewhere.code(), "no-such-rack", "{elsewhere}");
}

#[test]
fn a_client_that_cannot_use_verbs_says_so_and_does_not_take_another_fabric() {
    let cluster = Cluster::start(2).unwrap();
    let mut options = Options::new(&cluster.master_addr(), 0).fabric(FabricChoice::Verbs);
    options.verbs_device = Some(NOWHERE.into());
    let error = Pool::open(options.clone()).map(drop).unwrap_err();
    assert!(is_absence(&error), "{error}");
    let error = Pool::open(options.connections(Connections::Shared)).map(drop).unwrap_err();
    assert_eq!(error.code(), "config");
    assert!(error.to_string().contains("proxied"), "{error}");
}

#[test]
fn latency_is_not_injected_into_devices() {
    let mut options = DaemonOptions::new(0, "127.0.0.1:1", "heap:8M");
    options.fabric = FabricKind::Verbs;
    options.emulate.rdma_ns = 2_000;
    let error = DaemonServer::start(options).map(drop).unwrap_err();
    assert_eq!(error.code(), "config");
    assert!(error.to_string().contains("rdma="), "{error}");
}
