//! A pool with a secret: master, daemons and clients that have it work as without one; a process
//! with another one or none is `denied` at once.

use crate::master_tools::*;
use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::link::MasterLink;
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::monitor::Monitor;
use rackpool::{Connections, FabricChoice, Options, Placement, Pool, Secret};
use rackpool_core::Error;
use rackpool_core::constants::UNPROVEN_CONNECTIONS_MAX;
use rackpool_core::wire::{MasterAnswer, MasterCall, WIRE_VERSION};
use rackpool_fabric::handshake::MESSAGE_BYTES;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

fn secret(byte: u8) -> Option<Secret> {
    Some(Secret::new(&[byte; 32]).unwrap())
}

fn master(dir: &Dir, secret: Option<Secret>) -> MasterServer {
    let options = MasterOptions { secret, ..options(dir) };
    MasterServer::start(options).expect("a master starts")
}

fn stats_with(
    master: &MasterServer,
    secret: Option<Secret>,
) -> rackpool_core::Result<MasterAnswer> {
    let mut link = link(master);
    link.set_secret(secret);
    call(&mut link, MasterCall::Stats)
}

/// How often the master has refused with `denied`, asked by a client that may.
fn denials(master: &MasterServer, secret: Option<Secret>) -> u64 {
    match stats_with(master, secret).expect("it may ask") {
        MasterAnswer::Stats(stats) => stats.refused.0.get("denied").copied().unwrap_or(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_master_and_a_link_without_one_secret_tell_one_another_at_once() {
    let (dir, open_dir) = (Dir::new("secret"), Dir::new("secret-open"));
    let (closed, open) = (master(&dir, secret(7)), master(&open_dir, None));
    let denied = |master, secret| match stats_with(master, secret) {
        Err(Error::Denied { reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(denied(&closed, secret(8)).contains("another secret"));
    assert!(denied(&closed, None).contains("--secret-file"));
    assert!(denied(&open, secret(7)).contains("started without a secret"));
    assert_eq!(denials(&closed, secret(7)), 2);
    assert_eq!(denials(&open, None), 1);
}

#[test]
fn a_link_proves_its_secret_again_after_each_restart_of_the_master() {
    let dir = Dir::new("secret-restart");
    let mut serving = master(&dir, secret(7));
    let listen = serving.local_addr().to_string();
    let mut link = link(&serving);
    link.set_secret(secret(7));
    for connections in 1..4 {
        assert!(call(&mut link, MasterCall::Stats).is_ok());
        assert_eq!(link.connections(), connections);
        serving.stop().unwrap();
        let options = MasterOptions { listen: listen.clone(), secret: secret(7), ..options(&dir) };
        serving = MasterServer::start(options).unwrap();
    }
    // With another secret it is another pool.
    serving.stop().unwrap();
    let options = MasterOptions { listen, secret: secret(8), ..options(&dir) };
    let _serving = MasterServer::start(options).unwrap();
    assert_eq!(call(&mut link, MasterCall::Stats).unwrap_err().code(), "denied");
}

/// What a man in the middle between a link and its master sees of a name that is stored, in both
/// directions.
fn overheard(secret: Option<Secret>, name: &str) -> (usize, usize) {
    let dir = Dir::new("secret-overheard");
    let master = master(&dir, secret.clone());
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut link = MasterLink::new(vec![door.local_addr().unwrap().to_string()]);
    link.set_secret(secret);
    let there = master.local_addr();
    let between = std::thread::spawn(move || {
        let (from, _) = door.accept().unwrap();
        let to = TcpStream::connect(there).unwrap();
        let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        let back = std::thread::spawn(move || carry(back_from, back_to));
        [carry(from, to), back.join().unwrap()].concat()
    });
    for at in 0..50 {
        call(&mut link, set_root(&format!("{name}-{at}"), 0, 0)).unwrap();
    }
    drop(link);
    let seen = between.join().unwrap();
    let found = seen.windows(name.len()).filter(|part| *part == name.as_bytes()).count();
    (found, seen.len())
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        said.extend_from_slice(&buffer[..bytes]);
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    said
}

#[test]
fn what_is_said_to_a_master_is_seen_by_others_unless_it_is_encrypted() {
    let (found, bytes) = overheard(secret(7), "a-name-that-is-nobodys-business");
    assert!(found >= 50 && bytes > 2000, "{found} in {bytes} bytes");
    let encrypting = secret(7).map(|secret| secret.encrypting(true));
    let (found, bytes) = overheard(encrypting, "a-name-that-is-nobodys-business");
    assert!(found == 0 && bytes > 2000, "{found} in {bytes} bytes");
}

#[test]
fn strangers_cannot_ask_a_master_anything_or_keep_others_out() {
    let dir = Dir::new("secret-strangers");
    let master = master(&dir, secret(7));
    let hello = frame(&rackpool_core::wire::MasterRequest {
        id: 1,
        call: MasterCall::Hello { version: WIRE_VERSION },
    });
    // One refusal, then the end, however much is asked.
    let mut raw = Raw::connect(&master);
    raw.0.write_all(&hello).unwrap();
    assert_eq!(raw.receive().answer.unwrap_err().code(), "denied");
    raw.expect_end();
    let greeting = [&b"rackaut2"[..], &[9; 48]].concat();
    let proof = [&b"rackprf2"[..], &[9; 48]].concat();
    let whole = [&greeting[..], &proof, &[0xff; 64 << 10]].concat();
    for length in (0..=2 * MESSAGE_BYTES).chain([whole.len()]) {
        let mut stream = TcpStream::connect(master.local_addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(&whole[..length]);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.len() <= 2 * MESSAGE_BYTES, "{length} bytes: {} heard", heard.len());
    }
    // Those that stay give way.
    let connect = |_| TcpStream::connect(master.local_addr()).unwrap();
    let mut stay: Vec<_> = (0..2 * UNPROVEN_CONNECTIONS_MAX).map(connect).collect();
    assert!(stats_with(&master, secret(7)).is_ok());
    let oldest = &mut stay[0];
    oldest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let end = oldest.read(&mut [0; 1]);
    let is_open = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    assert!(!end.as_ref().is_err_and(is_open), "the oldest is closed: {end:?}");
    assert_eq!(end.unwrap_or(0), 0);
}

#[test]
fn a_secret_lets_a_master_and_a_daemon_listen_for_other_hosts() {
    let dir = Dir::new("secret-listen");
    let options = MasterOptions { secret: secret(7), ..MasterOptions::new("0.0.0.0:0", &dir.0) };
    let master = MasterServer::start(options).unwrap();
    let addr = format!("127.0.0.1:{}", master.local_addr().port());
    let daemon = |listen: &str, secret| {
        let mut options = DaemonOptions::new(0, &addr, "heap?size=16M&pages=64K");
        options.listen = listen.parse().unwrap();
        options.secret = secret;
        options.join_timeout_ms = 20_000;
        DaemonServer::start(options).map(drop)
    };
    assert_eq!(daemon("127.0.0.1:0", secret(7)), Ok(()));
    assert_eq!(daemon("127.0.0.1:0", secret(8)).unwrap_err().code(), "denied");
    assert_eq!(daemon("127.0.0.1:0", None).unwrap_err().code(), "denied");
    assert_eq!(daemon("192.0.2.1:0", None).unwrap_err().code(), "denied");
    // No client could find it there.
    assert_eq!(daemon("0.0.0.0:0", secret(7)).unwrap_err().code(), "config");
}

#[test]
fn a_pool_with_a_secret_works_over_every_way_to_other_racks() {
    works_every_way(secret(7));
}

#[test]
fn a_pool_that_encrypts_works_over_every_way_to_other_racks() {
    works_every_way(secret(7).map(|secret| secret.encrypting(true)));
}

fn works_every_way(secret: Option<Secret>) {
    let options = ClusterOptions { secret: secret.clone(), ..ClusterOptions::default() };
    let cluster = Cluster::with(options).unwrap();
    let there = cluster.pool(1).unwrap();
    let addr = there.alloc(1 << 17, Placement::Local).unwrap();
    let options = |fabric, connections| {
        let options = Options::new(&cluster.master_addr(), 0).fabric(fabric);
        options.connections(connections).secret(secret.clone().unwrap())
    };
    for (number, (fabric, connections)) in [
        (FabricChoice::Tcp, Connections::Own),
        (FabricChoice::Tcp, Connections::Shared),
        (FabricChoice::Proxied, Connections::Own),
        (FabricChoice::Shm, Connections::Own),
    ]
    .into_iter()
    .enumerate()
    {
        let pool = Pool::open(options(fabric, connections)).unwrap();
        let value = [number as u8; 32];
        pool.write(addr, &value).unwrap();
        let mut back = [0xff; 32];
        there.read(addr, &mut back).unwrap();
        assert_eq!(back, value, "{fabric:?} {connections:?}");
    }
    let masters = vec![cluster.master_addr()];
    let mut monitor = Monitor::with_secret(masters.clone(), 20_000, secret).unwrap();
    assert!(monitor.sample().unwrap().racks.iter().all(|rack| rack.daemon.is_some()));
    let denied = Monitor::new(masters, 20_000).unwrap().sample().unwrap_err();
    assert_eq!(denied.code(), "denied");
    let denied = Pool::open(Options::new(&cluster.master_addr(), 0)).and_then(|pool| pool.handle());
    assert_eq!(denied.map(drop).unwrap_err().code(), "denied");
}
