//! The link to the master: reconnects, redirects, deadlines, and exactly one answer a call.

use crate::master_tools::*;
use rackpool::link::MasterLink;
use rackpool::master::{MasterOptions, MasterServer};
use rackpool_core::Error;
use rackpool_core::constants::MASTER_CALLS_MAX;
use rackpool_core::member::{MemberAnswer, RackState};
use rackpool_core::placement::Order;
use rackpool_core::wire::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn within(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn poll_until(link: &mut MasterLink, mut done: impl FnMut(&mut MasterLink) -> bool) {
    let deadline = within(10_000);
    while !done(link) {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_link_may_move_between_threads() {
    fn send<T: Send>() {}
    send::<MasterLink>();
}

#[test]
fn a_dead_address_is_a_timeout_with_the_time_that_was_waited() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap().to_string();
    drop(free);
    let mut link = MasterLink::new(vec![addr.clone()]);
    let started = Instant::now();
    match link.call(MasterCall::Stats, within(300)) {
        Err(Error::Timeout { peer, waited_ms }) => {
            assert!(peer.contains(&addr), "{peer}");
            assert!((300..3000).contains(&waited_ms), "{waited_ms}");
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(link.send(MasterCall::Stats).unwrap_err().code(), "peer-dead");
    assert_eq!(link.calls_sent(), 0);
    let mut nonsense = MasterLink::new(vec!["no address".into()]);
    assert_eq!(nonsense.call(MasterCall::Stats, within(50)).unwrap_err().code(), "timeout");
}

#[test]
fn a_master_that_says_nothing_is_a_timeout_and_the_next_address_is_asked() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute_addr = mute.local_addr().unwrap().to_string();
    let mut link = MasterLink::new(vec![mute_addr.clone()]);
    let error = link.call(MasterCall::Stats, within(200)).unwrap_err();
    assert_eq!(error.code(), "timeout");
    let dir = Dir::new("link-mute");
    let master = start(&dir);
    let mut link = MasterLink::new(vec![mute_addr, master.local_addr().to_string()]);
    assert!(link.call(MasterCall::Stats, within(20_000)).is_ok());
}

#[test]
fn not_leader_is_followed() {
    let dir = Dir::new("link-leader");
    let master = start(&dir);
    let leader = master.local_addr().to_string();
    let follower = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = follower.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = follower.accept().unwrap();
        while let Ok(MasterRequest { id, call }) = read_frame(&mut stream) {
            let answer = match call {
                MasterCall::Hello { .. } => Ok(MasterAnswer::Welcome {
                    pool_id: [0; 2],
                    lease_ms: 1,
                    order: Order::LocalFirst,
                }),
                _ => Err(Error::NotLeader { leader: leader.clone() }),
            };
            stream.write_all(&frame(&MasterReply { id, term: 1, index: 0, answer })).unwrap();
        }
    });
    let mut link = MasterLink::new(vec![addr]);
    assert!(call(&mut link, MasterCall::Stats).is_ok());
    serving.join().unwrap();
    link.set_join(MasterCall::JoinDaemon(info(0, 1)));
    assert!(call(&mut link, MasterCall::Stats).is_ok());
}

#[test]
fn another_version_at_the_master_is_told_at_once() {
    let old = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = old.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = old.accept().unwrap();
        let MasterRequest { id, .. } = read_frame(&mut stream).unwrap();
        let found = WIRE_VERSION;
        let answer = Err(Error::Version { peer: "the caller".into(), found, supported: 77 });
        stream.write_all(&frame(&MasterReply { id, term: 1, index: 0, answer })).unwrap();
    });
    let mut link = MasterLink::new(vec![addr]);
    let started = Instant::now();
    match call(&mut link, MasterCall::Stats) {
        Err(Error::Version { peer, found: 77, supported: WIRE_VERSION }) => {
            assert!(peer.starts_with("master"), "{peer}");
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(2));
    serving.join().unwrap();
}

#[test]
fn a_poll_loop_drives_it_by_one_descriptor_through_a_restart() {
    let dir = Dir::new("link-loop");
    let master = start(&dir);
    let addr = master.local_addr().to_string();
    let mut link = MasterLink::new(vec![addr.clone()]);
    link.set_join(MasterCall::JoinDaemon(info(0, 1)));
    link.connect();
    let wait = |link: &mut MasterLink| {
        let fd = link.fd().unwrap();
        let timeout = Timespec::try_from(Duration::from_millis(50)).unwrap();
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap()
    };
    let deadline = within(10_000);
    while !link.is_up() {
        assert!(Instant::now() < deadline);
        wait(&mut link);
        assert!(link.poll().is_empty(), "hello and join are the link's own business");
    }
    assert_eq!((link.connections(), link.calls_sent()), (1, 2));
    assert!(matches!(link.welcome(), Some(MasterAnswer::Joined { pages_lost: 0, .. })));
    assert_eq!(wait(&mut link), 0, "an idle link does not wake");
    let id = link.send(MasterCall::Heartbeat { frames_free: 9, accesses: 0 }).unwrap();
    assert_eq!(wait(&mut link), 1, "an answer wakes");
    let replies = link.poll();
    assert_eq!((replies.len(), replies[0].id), (1, id));
    let serving = MasterAnswer::Member(MemberAnswer::RackState(RackState::Serving));
    assert_eq!(replies[0].answer, Ok(serving));

    master.stop().unwrap();
    let mut lost = Vec::new();
    while let Ok(id) = link.send(MasterCall::Racks) {
        lost.push(id);
    }
    let mut answered = Vec::new();
    poll_until(&mut link, |link| {
        let replies = link.poll();
        assert!(replies.iter().all(|r| r.answer.as_ref().is_err_and(|e| e.code() == "peer-dead")));
        answered.extend(replies.iter().map(|r| r.id));
        answered.len() == lost.len()
    });
    assert_eq!(answered, lost, "each call is answered once");
    assert!(!link.is_up());
    let options = MasterOptions { listen: addr, ..options(&dir) };
    let _master = MasterServer::start(options).unwrap();
    poll_until(&mut link, |link| link.poll().is_empty() && link.is_up());
    assert_eq!(link.connections(), 2);
    let Ok(MasterAnswer::Racks(racks)) = call(&mut link, MasterCall::Racks) else { panic!() };
    assert!(racks[0].alive, "the link joined again by itself");
}

#[test]
fn calls_under_way_are_bounded_and_answers_keep_their_numbers() {
    let dir = Dir::new("link-bound");
    let master = start(&dir);
    let mut link = link(&master);
    assert!(call(&mut link, MasterCall::Stats).is_ok());
    let before = link.calls_sent();
    let ids: Vec<u64> =
        (0..MASTER_CALLS_MAX as u64).map(|n| link.send(set_root("a", n, n + 1)).unwrap()).collect();
    // Some have been answered meanwhile; they count until they are polled.
    for _ in 0..2 {
        assert_eq!(link.send(MasterCall::Racks).unwrap_err().code(), "busy");
    }
    assert_eq!(link.calls_sent() - before, MASTER_CALLS_MAX as u64);
    // A waiting call leaves the answers of the others where they are.
    poll_until(&mut link, |link| link.call(MasterCall::Stats, within(10_000)).is_ok());
    let mut replies = Vec::new();
    poll_until(&mut link, |link| {
        replies.extend(link.poll());
        replies.len() == MASTER_CALLS_MAX
    });
    for id in ids {
        assert_eq!(replies.iter().filter(|reply| reply.id == id).count(), 1);
    }
}
