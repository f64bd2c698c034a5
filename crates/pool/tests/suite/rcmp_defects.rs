//! Defects and limits of the published code of Rcmp that only processes, sockets or threads can
//! show.

use crate::master_tools::Dir;
use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::{Options, Placement, Pool, RackId};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Far longer than any call here is told to wait.
const LONG: Duration = Duration::from_secs(60);
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Whether joining ends with an error that says that there is no answer, within `patience`.
fn join_gives_up(options: Options, patience: Duration) -> bool {
    let (sender, ended) = channel();
    std::thread::spawn(move || {
        let code = Pool::open(options).and_then(|pool| pool.handle()).map(drop).unwrap_err().code();
        let _ = sender.send(code);
    });
    ended.recv_timeout(patience).is_ok_and(|code| ["timeout", "peer-dead"].contains(&code))
}

#[test]
fn a_lost_datagram_hung_a_joining_client() {
    // What is sent to it arrives nowhere: it takes connections and reads nothing.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = deaf.local_addr().expect("it is bound").to_string();
    let join = |timeout_ms| Options::new(&addr, 0).request_timeout_ms(timeout_ms);
    assert!(join_gives_up(join(300), LONG));
    // Without the limit it would wait as the published code did.
    assert!(!join_gives_up(join(DAY_MS), Duration::from_secs(2)));
}

#[test]
fn one_client_could_take_all_memory() {
    let daemon: fn(&mut DaemonOptions) = |options| options.client_quota_bytes = Some(1 << 20);
    let cluster = Cluster::with(ClusterOptions { daemon, ..ClusterOptions::default() });
    let cluster = cluster.expect("it starts");
    let mut near = cluster.pool(0).and_then(|pool| pool.handle()).expect("it joins");
    let mut again = cluster.pool(0).and_then(|pool| pool.handle()).expect("it joins");
    let mut far = cluster.pool(1).and_then(|pool| pool.handle()).expect("it joins");
    let rack = Placement::Rack(RackId(0));
    let most = near.alloc(960 << 10, rack).expect("within the quota");
    // The same process, whichever handle; no other rack is taken instead.
    for handle in [&mut near, &mut again] {
        let error = handle.alloc(128 << 10, Placement::Auto).expect_err("over the quota");
        assert_eq!(error.code(), "quota", "{error}");
        assert!(!error.may_retry() && error.to_string().contains("--client-quota"), "{error}");
    }
    near.alloc(64 << 10, rack).expect("the last page of the quota");
    assert_eq!(again.alloc(8, rack).expect_err("over the quota").code(), "quota");
    // A client of another rack has a quota of its own, and frees what is not its own.
    far.alloc(1 << 20, rack).expect("its own quota");
    assert_eq!(far.alloc(8, rack).expect_err("over the quota").code(), "quota");
    far.free(most, 960 << 10).expect("it is allocated");
    near.alloc(960 << 10, Placement::Auto).expect("it has come back");
    let stats = near.admin().pool_stats().expect("all answer");
    let stats = &stats.racks[0].daemon.as_ref().expect("it answers");
    assert_eq!((stats.client_quota_bytes, stats.client_held_bytes_max), (1 << 20, 1 << 20));
    assert_eq!(stats.answers.refused["quota"], 4);
}

#[test]
fn a_process_had_one_pool() {
    let clusters = [Cluster::start(1), Cluster::start(1)].map(|one| one.expect("it starts"));
    let mut handles = Vec::new();
    for cluster in &clusters {
        handles.push(cluster.pool(0).and_then(|pool| pool.handle()).expect("it joins"));
    }
    // One thread goes to and fro between two pools with the same addresses.
    let addrs: Vec<_> = handles.iter_mut().map(|one| one.alloc(64, Placement::Auto)).collect();
    assert_eq!(addrs[0], addrs[1]);
    let addr = *addrs[0].as_ref().expect("there is room");
    for round in 0..100_u64 {
        for (pool, handle) in (0..).zip(&mut handles) {
            handle.write(addr, &(2 * round + pool).to_le_bytes()).expect("it is allocated");
        }
        for (pool, handle) in (0..).zip(&mut handles) {
            assert_eq!(handle.read_u64(addr), Ok(2 * round + pool));
        }
    }
}

#[test]
fn addresses_were_of_ipv4() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("NOT TESTED: this machine has no IPv6");
        return;
    }
    let dir = Dir::new("ipv6");
    let master = MasterServer::start(MasterOptions::new("[::1]:0", &dir.0)).expect("it starts");
    let addr = master.local_addr().to_string();
    assert!(addr.starts_with("[::1]:"), "{addr}");
    let daemons: Vec<DaemonServer> = (0..2)
        .map(|rack| {
            let mut options = DaemonOptions::new(rack, &addr, "heap?size=4M&pages=64K");
            options.listen = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0));
            DaemonServer::start(options).expect("it starts")
        })
        .collect();
    let join = |rack| Pool::open(Options::new(&addr, rack)).and_then(|pool| pool.handle());
    let mut handle = join(0).expect("it joins");
    let far = handle.alloc(200_000, Placement::Rack(RackId(1))).expect("there is room");
    handle.write(far, &[7; 200_000]).expect("it is allocated");
    let mut bytes = vec![0; 200_000];
    join(1).expect("it joins").read(far, &mut bytes).expect("it is allocated");
    assert!(bytes.iter().all(|byte| *byte == 7));
    drop(handle);
    drop(daemons);
}
