//! The bounds of the master's connections. Alone in its process, and one after another, since they
//! change the limit of open descriptors.

#[path = "suite/master_tools/mod.rs"]
mod master_tools;

use master_tools::*;
use rackpool::Secret;
use rackpool::link::MasterLink;
use rackpool::master::{MasterOptions, MasterServer};
use rackpool_core::constants::{MASTER_IDLE_MS_MIN, UNPROVEN_CONNECTIONS_MAX};
use rackpool_core::wire::*;
use rackpool_fabric::handshake::{Handshake, MESSAGE_BYTES, Progress, Purpose};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Places of these masters, and those that one address may have of them.
const PLACES: usize = 192 - 64;
const SHARE: usize = PLACES * 3 / 4;

static ALONE: Mutex<()> = Mutex::new(());

/// A master with few places.
fn small(dir: &Dir, secret: Option<Secret>) -> (MasterServer, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(192), ..before }).unwrap();
    let master = MasterServer::start(MasterOptions { secret, ..options(dir) });
    setrlimit(Resource::Nofile, before).unwrap();
    (master.unwrap(), alone)
}

const HELLO: MasterCall = MasterCall::Hello { version: WIRE_VERSION };

/// A connection of another address of this host that is served.
fn served(master: &MasterServer, last: u8) -> Raw {
    let mut raw = Raw::from([127, 0, 0, last], master);
    raw.call(1, HELLO).answer.unwrap();
    raw
}

fn is_open(raw: &mut Raw) -> bool {
    raw.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let read = raw.0.read(&mut [0]);
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn one_connection_of_an_address_too_many_is_told_busy_and_served_once_there_is_room() {
    for secret in [None, Some(Secret::new(&[7; 32]).unwrap())] {
        let dir = Dir::new("limit");
        let (master, _alone) = small(&dir, secret.clone());
        let link = || {
            let mut link = link(&master);
            link.set_secret(secret.clone());
            link
        };
        let mut links: Vec<MasterLink> = (0..SHARE).map(|_| link()).collect();
        for link in &mut links {
            assert!(call(link, MasterCall::Stats).is_ok());
        }
        let mut late = link();
        let started = Instant::now();
        let busy = late.call(MasterCall::Stats, Instant::now() + Duration::from_millis(200));
        assert_eq!(busy.unwrap_err().code(), "busy");
        assert!(started.elapsed() < Duration::from_secs(2));
        for link in &mut links {
            assert!(call(link, MasterCall::Stats).is_ok());
            assert_eq!(link.connections(), 1);
        }
        if secret.is_none() {
            // Told at once, before a word.
            let busy = Raw::connect(&master).receive();
            assert_eq!((busy.id, busy.answer.unwrap_err().code()), (0, "busy"));
            let mut others: Vec<Raw> = (SHARE..PLACES).map(|_| served(&master, 2)).collect();
            assert!(others.iter_mut().all(is_open));
            let full = Raw::from([127, 0, 0, 3], &master).receive();
            assert_eq!(full.answer.unwrap_err().code(), "busy");
        }
        links.truncate(SHARE - 1);
        assert!(call(&mut late, MasterCall::Stats).is_ok());
    }
}

#[test]
fn of_silent_connections_those_of_the_address_that_has_most_give_way() {
    let dir = Dir::new("silent");
    let (master, _alone) = small(&dir, None);
    let mut few: Vec<Raw> = (SHARE..PLACES).map(|_| served(&master, 3)).collect();
    let mut many: Vec<Raw> = (0..SHARE).map(|_| served(&master, 2)).collect();
    std::thread::sleep(Duration::from_millis(MASTER_IDLE_MS_MIN + 200));
    // Where its own share is used up, an address has what its own silent ones leave.
    let _again: Vec<Raw> = (0..8).map(|_| served(&master, 2)).collect();
    let _others = [served(&master, 4), served(&master, 5)];
    assert!(few.iter_mut().all(is_open));
    assert_eq!(many.iter_mut().filter_map(|one| is_open(one).then_some(())).count(), SHARE - 10);
}

#[test]
fn strangers_of_one_address_keep_nobody_else_from_proving_the_secret() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let secret = Secret::new(&[7; 32]).unwrap();
    let dir = Dir::new("strangers");
    let options = MasterOptions { secret: Some(secret.clone()), ..options(&dir) };
    let master = MasterServer::start(options).unwrap();
    let mut slow = Raw::connect(&master);
    let (mut proof, first) = Handshake::begin(&secret, Purpose::Master).unwrap();
    slow.0.write_all(&first).unwrap();
    let mut heard = [0; MESSAGE_BYTES];
    slow.0.read_exact(&mut heard).unwrap();
    let stranger = |_| Raw::from([127, 0, 0, 2], &master);
    let mut strangers: Vec<Raw> = (0..2 * UNPROVEN_CONNECTIONS_MAX).map(stranger).collect();
    let given_way = &mut strangers[UNPROVEN_CONNECTIONS_MAX / 2];
    assert_eq!(given_way.0.read(&mut [0]).unwrap(), 0);
    slow.0.write_all(&proof.advance(&heard).reply.unwrap()).unwrap();
    slow.0.read_exact(&mut heard).unwrap();
    assert_eq!(proof.advance(&heard).progress, Progress::Done);
    assert!(slow.call(1, HELLO).answer.is_ok());
}
