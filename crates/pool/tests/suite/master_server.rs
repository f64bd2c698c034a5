//! The master over real sockets: answers, refusals, broken and slow peers, and what it leaves.

use crate::master_tools::*;
use rackpool::link::MasterLink;
use rackpool::master::{MasterError, MasterOptions, MasterServer, STATE_FILE};
use rackpool_core::constants::*;
use rackpool_core::wire::*;
use rackpool_core::{Error, GAddr, PageId, RackId, SessionId};
use std::fs;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

#[test]
fn what_was_answered_is_there_after_a_stop_and_a_start() {
    let dir = Dir::new("restart");
    let master = start(&dir);
    let mut daemon = joined(&master, info(0, 1));
    let first = lease(&mut daemon, 100);
    let homes: Vec<PageHome> = (0..100).map(|n| home(PageId(first.0 + n), 0, n)).collect();
    assert_eq!(
        call(&mut daemon, MasterCall::CommitPages { homes: homes.clone() }),
        Ok(MasterAnswer::Done)
    );
    assert_eq!(call(&mut daemon, set_root("a", 0, 77)), Ok(MasterAnswer::Root(GAddr(77))));
    let welcome = daemon.welcome().cloned();
    master.stop().unwrap();
    let mut left: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [STATE_FILE, "master.reserve"], "nothing but the state and its reserve");

    let master = start(&dir);
    let mut link = link(&master);
    let answer = call(&mut link, MasterCall::Resolve { page: first, count: 100 });
    let homes = homes.into_iter().map(Resolved::Home).collect();
    assert_eq!(answer, Ok(MasterAnswer::Homes(homes)));
    assert_eq!(
        call(&mut link, MasterCall::GetRoot { name: "a".into() }),
        Ok(MasterAnswer::Root(GAddr(77)))
    );
    let Ok(MasterAnswer::Racks(racks)) = call(&mut link, MasterCall::Racks) else { panic!() };
    assert!(!racks[0].alive, "it has not joined again");
    let pool = |welcome: Option<MasterAnswer>| match welcome {
        Some(MasterAnswer::Welcome { pool_id, .. } | MasterAnswer::Joined { pool_id, .. }) => {
            pool_id
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(pool(link.welcome().cloned()), pool(welcome), "the same pool");
    let mut daemon = joined(&master, info(0, 1));
    assert_eq!(lease(&mut daemon, 1), PageId(first.0 + 100));
}

#[test]
fn another_version_is_refused_by_name_and_broken_frames_close_only_their_connection() {
    let dir = Dir::new("frames");
    let master = start(&dir);
    let mut bystander = link(&master);
    assert!(call(&mut bystander, MasterCall::Stats).is_ok());
    let mut other = Raw::connect(&master);
    match other.call(1, MasterCall::Hello { version: 99 }).answer {
        Err(Error::Version { found: 99, supported: WIRE_VERSION, .. }) => {}
        answer => panic!("{answer:?}"),
    }
    let broken: [&[u8]; 5] = [
        &[255; 64],
        &[0, 0, 0, 0],
        &[3, 0, 0, 0, 255, 255, 255],
        &[1, 1, 0, 0],
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for bytes in broken {
        let mut raw = Raw::connect(&master);
        raw.0.write_all(bytes).unwrap();
        raw.expect_end();
        let mut raw = Raw::connect(&master);
        assert!(raw.call(1, MasterCall::Hello { version: WIRE_VERSION }).answer.is_ok());
        if bytes[1] != 1 {
            raw.0.write_all(bytes).unwrap();
            raw.expect_end();
        }
    }
    assert!(call(&mut bystander, MasterCall::Stats).is_ok());
    assert_eq!(bystander.connections(), 1, "it never noticed");
}

#[test]
fn a_daemon_is_dead_when_its_socket_closes_and_when_it_is_silent() {
    let dir = Dir::new("death");
    let mut options = options(&dir);
    options.lease_ms = 300;
    let master = MasterServer::start(options).unwrap();
    let mut watcher = link(&master);
    let mut alive = || match call(&mut watcher, MasterCall::Racks) {
        Ok(MasterAnswer::Racks(racks)) => racks[0].alive,
        other => panic!("{other:?}"),
    };
    let daemon = joined(&master, info(0, 1));
    assert!(alive());
    drop(daemon);
    let closed = Instant::now();
    while alive() {
        assert!(closed.elapsed() < Duration::from_millis(250), "a closed socket is known at once");
    }
    let mut daemon = joined(&master, info(0, 1));
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(60));
        assert!(call(&mut daemon, MasterCall::Heartbeat { frames_free: 5, accesses: 0 }).is_ok());
        assert!(alive(), "heartbeats keep it alive");
    }
    let silent = Instant::now();
    while alive() {
        assert!(silent.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(silent.elapsed() >= Duration::from_millis(250), "{:?}", silent.elapsed());
    let mut second = joined(&master, info(0, 2));
    assert!(alive(), "a new region takes the rack of a silent daemon");
    let late = call(&mut daemon, MasterCall::CommitPages { homes: vec![] });
    assert_eq!(late.unwrap_err().code(), "denied", "which then has no say any more");
    assert!(call(&mut second, MasterCall::Heartbeat { frames_free: 1, accesses: 0 }).is_ok());
}

#[test]
fn a_second_live_daemon_is_denied_at_once_and_the_link_says_why() {
    let dir = Dir::new("second");
    let master = start(&dir);
    let mut first = joined(&master, info(0, 1));
    let mut second = link(&master);
    second.set_join(MasterCall::JoinDaemon(info(0, 2)));
    let started = Instant::now();
    let denied = call(&mut second, MasterCall::Stats).unwrap_err();
    assert_eq!(denied.code(), "denied");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(second.refused(), Some(&denied));
    assert!(!second.is_up());
    assert!(call(&mut first, MasterCall::Heartbeat { frames_free: 1, accesses: 0 }).is_ok());
}

#[test]
fn a_reader_that_does_not_read_is_not_read_and_disturbs_nobody() {
    let dir = Dir::new("slow");
    let master = start(&dir);
    let mut daemon = joined(&master, info(0, 1));
    let mut slow = Raw::connect(&master);
    assert!(slow.call(0, MasterCall::Hello { version: WIRE_VERSION }).answer.is_ok());
    slow.0.set_nonblocking(true).unwrap();
    let first = lease(&mut daemon, u64::from(RESOLVE_PAGES_MAX));
    let page = |n: u32| PageId(first.0 + u64::from(n));
    let homes = (0..RESOLVE_PAGES_MAX).map(|n| home(page(n), 0, u64::from(n))).collect();
    assert!(call(&mut daemon, MasterCall::CommitPages { homes }).is_ok());
    let mut sent = 0u64;
    let mut frames = Vec::new();
    let mut stuck = None::<Instant>;
    while stuck.is_none_or(|since| since.elapsed() < Duration::from_millis(300)) {
        if frames.is_empty() {
            sent += 1;
            // Long answers until nothing goes out any more, then long requests.
            let call = if sent < 4000 {
                MasterCall::Resolve { page: first, count: RESOLVE_PAGES_MAX }
            } else {
                MasterCall::RemovePages { rack: RackId(0), pages: vec![PageId(u64::MAX); 4096] }
            };
            frames = frame(&MasterRequest { id: sent, call });
        }
        match slow.0.write(&frames) {
            Ok(bytes) => {
                frames.drain(..bytes);
                stuck = None;
            }
            Err(_) => {
                stuck.get_or_insert_with(Instant::now);
                assert!(call(&mut daemon, MasterCall::Stats).is_ok());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(sent < 10_000, "the master reads without end");
    }
    println!("{sent} requests before the master stopped reading");
    slow.0.set_nonblocking(false).unwrap();
    let mut out = slow.0.try_clone().unwrap();
    let writer = std::thread::spawn(move || out.write_all(&frames).unwrap());
    for id in 1..=sent {
        assert_eq!(slow.receive().id, id);
    }
    writer.join().unwrap();
}

#[test]
fn halves_of_frames_take_a_bounded_memory_and_then_their_connections_end() {
    let dir = Dir::new("halves");
    let master = start(&dir);
    let mut bystander = link(&master);
    assert!(call(&mut bystander, MasterCall::Stats).is_ok());
    let bytes = MASTER_MESSAGE_BYTES_MAX;
    let half = [&bytes.to_le_bytes()[..], &vec![7; bytes as usize - 8]].concat();
    let most = MASTER_BUFFERS_BYTES_MAX / half.len();
    let held: Vec<Raw> = (0..most + 8)
        .map(|_| {
            let mut raw = Raw::connect(&master);
            assert!(raw.call(1, MasterCall::Hello { version: WIRE_VERSION }).answer.is_ok());
            // One that has ended meanwhile takes no more.
            let _ = raw.0.write_all(&half);
            raw
        })
        .collect();
    assert!(call(&mut bystander, MasterCall::Stats).is_ok());
    let ended = |raw: &Raw| {
        raw.0.set_nonblocking(true).unwrap();
        !matches!((&raw.0).read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    };
    let begun = Instant::now();
    while held.iter().filter(|raw| ended(raw)).count() < 8 {
        assert!(begun.elapsed() < Duration::from_secs(60), "all are kept");
    }
    assert_eq!(bystander.connections(), 1, "it never noticed");
}

#[test]
fn many_connections_are_served_at_once() {
    let dir = Dir::new("many");
    let master = start(&dir);
    let mut links: Vec<MasterLink> = (0..300).map(|_| link(&master)).collect();
    for (n, link) in links.iter_mut().enumerate() {
        link.set_join(MasterCall::JoinClient { session: SessionId(n as u64 + 1), rack: RackId(0) });
    }
    for (n, link) in links.iter_mut().enumerate() {
        let name = format!("root {n}");
        assert!(call(link, set_root(&name, 0, n as u64 + 1)).is_ok());
    }
    let Ok(MasterAnswer::Stats(stats)) = call(&mut links[7], MasterCall::Stats) else { panic!() };
    assert_eq!((stats.clients, stats.roots), (300, 300));
    links.truncate(1);
    let left = Instant::now();
    loop {
        match call(&mut links[0], MasterCall::Stats) {
            Ok(MasterAnswer::Stats(stats)) if stats.clients == 1 => break,
            _ => assert!(left.elapsed() < Duration::from_secs(5)),
        }
    }
}

#[test]
fn a_locked_directory_a_public_address_and_a_taken_port_are_typed_errors() {
    let dir = Dir::new("refuse");
    let master = start(&dir);
    let error = |options| MasterServer::start(options).expect_err("refused");
    let started = Instant::now();
    let locked = error(options(&dir));
    assert!(matches!(locked, MasterError::Locked { .. }), "{locked}");
    assert_eq!(locked.code(), "locked");
    let elsewhere = Dir::new("refuse-elsewhere");
    let at = |listen: &str| MasterOptions { listen: listen.into(), ..options(&elsewhere) };
    let public = error(at("0.0.0.0:0"));
    assert!(matches!(public, MasterError::NotLoopback { .. }), "{public}");
    assert!(public.to_string().contains("127.0.0.1"), "the way out: {public}");
    assert_eq!(error(at("nonsense")).code(), "listen");
    assert_eq!(error(at(&master.local_addr().to_string())).code(), "listen");
    assert!(!elsewhere.0.exists(), "nothing was made");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(call(&mut link(&master), MasterCall::Stats).is_ok());
}

#[test]
fn foreign_empty_and_cut_files_are_refused_and_left_as_they_are() {
    let good = Dir::new("good");
    start(&good).stop().unwrap();
    let whole = fs::read(good.0.join(STATE_FILE)).unwrap();
    let mut other_magic = whole.clone();
    other_magic[0] ^= 1;
    let files: [(&str, Vec<u8>); 5] = [
        ("text", b"these are somebody's notes, not a pool".repeat(500)),
        ("empty", Vec::new()),
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("head", whole[..100].to_vec()),
        ("magic", other_magic),
    ];
    for (name, bytes) in files {
        let dir = Dir::new(name);
        fs::create_dir_all(&dir.0).unwrap();
        fs::write(dir.0.join(STATE_FILE), &bytes).unwrap();
        let error = MasterServer::start(options(&dir)).expect_err(name);
        assert!(matches!(error, MasterError::BadState { .. }), "{name}: {error}");
        assert_eq!(fs::read(dir.0.join(STATE_FILE)).unwrap(), bytes, "{name} was changed");
    }
}

#[test]
fn a_damaged_byte_is_a_typed_error_or_harmless_and_never_a_wrong_answer() {
    let good = Dir::new("damage");
    let master = start(&good);
    let mut daemon = joined(&master, info(0, 1));
    let first = lease(&mut daemon, 50);
    let homes: Vec<PageHome> = (0..50).map(|n| home(PageId(first.0 + n), 0, n)).collect();
    assert!(call(&mut daemon, MasterCall::CommitPages { homes: homes.clone() }).is_ok());
    assert!(call(&mut daemon, set_root("a", 0, 5)).is_ok());
    drop(daemon);
    master.stop().unwrap();
    let whole = fs::read(good.0.join(STATE_FILE)).unwrap();
    let seed = 0x5eed_u64;
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut refused, mut harmless) = (0, 0);
    let dir = Dir::new("damaged");
    // Most bytes are not in use: take those around the records, and others that are not zero.
    let key = PageId(first.0 + 25).0.to_be_bytes();
    let near = |at: &usize| whole[*at..(*at + 3000).min(whole.len())].windows(8).any(|w| w == key);
    let blocks = (0..whole.len()).step_by(1000).filter(near);
    let records: Vec<usize> = blocks.flat_map(|at| at..at + 3000).collect();
    let used: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] != 0).collect();
    for n in 0..60 {
        let among = if n % 2 == 0 { &records } else { &used };
        let at = among[random.below(among.len() as u64) as usize].min(whole.len() - 1);
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        fs::create_dir_all(&dir.0).unwrap();
        fs::write(dir.0.join(STATE_FILE), &bytes).unwrap();
        match MasterServer::start(options(&dir)) {
            Err(MasterError::BadState { .. } | MasterError::Version { .. }) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(master) => {
                harmless += 1;
                let mut link = link(&master);
                let answer = call(&mut link, MasterCall::Resolve { page: first, count: 50 });
                let homes = homes.iter().copied().map(Resolved::Home).collect();
                assert_eq!(answer, Ok(MasterAnswer::Homes(homes)), "byte {at}");
                let root = call(&mut link, MasterCall::GetRoot { name: "a".into() });
                assert_eq!(root, Ok(MasterAnswer::Root(GAddr(5))), "byte {at}");
                master.stop().unwrap();
            }
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 0);
}

#[test]
fn a_file_left_by_a_crash_while_it_was_made_is_made_anew() {
    let dir = Dir::new("half-made");
    fs::create_dir_all(&dir.0).unwrap();
    fs::write(dir.0.join(format!("{STATE_FILE}.new")), b"half").unwrap();
    let master = start(&dir);
    assert!(call(&mut link(&master), MasterCall::Stats).is_ok());
    master.stop().unwrap();
    assert!(!dir.0.join(format!("{STATE_FILE}.new")).exists());
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 2, "the state and its reserve");
}

#[test]
fn a_link_where_the_file_of_a_new_pool_is_made_leads_nowhere() {
    let dir = Dir::new("placed");
    fs::create_dir_all(&dir.0).unwrap();
    let (victim, fresh) = (dir.0.join("victim"), dir.0.join(format!("{STATE_FILE}.new")));
    fs::write(&victim, b"untouched").unwrap();
    std::os::unix::fs::symlink(&victim, &fresh).unwrap();
    start(&dir).stop().unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    assert!(dir.0.join(STATE_FILE).symlink_metadata().unwrap().is_file());
    // What cannot be replaced is said, and nothing is made.
    fs::remove_file(dir.0.join(STATE_FILE)).unwrap();
    fs::create_dir(&fresh).unwrap();
    let error = MasterServer::start(options(&dir)).unwrap_err().to_string();
    assert!(error.contains(&format!("{STATE_FILE}.new")), "{error}");
    assert!(!dir.0.join(STATE_FILE).exists());
}

#[test]
fn a_raw_connection_gets_its_answers_under_its_own_numbers() {
    let dir = Dir::new("raw");
    let master = start(&dir);
    let mut raw = Raw::connect(&master);
    let hello = raw.call(41, MasterCall::Hello { version: WIRE_VERSION });
    assert_eq!((hello.id, hello.term), (41, 1));
    assert_eq!(raw.call(7, MasterCall::Racks).answer, Ok(MasterAnswer::Racks(vec![])));
    drop(master);
    let mut rest = Vec::new();
    raw.0.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}
