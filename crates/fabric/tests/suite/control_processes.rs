//! Control connections, deaths and signals between real processes. Nothing stays behind: names are
//! abstract, and every child is killed and reaped when its guard is dropped.

use crate::child::{Own, role_and_place};
use rackpool_core::constants::{CONTROL_FDS_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::Mem;
use rackpool_fabric::control::{
    CONTROL_NAME_BYTES_MAX, ControlConn, ControlError, ControlListener, Drained, Received, access,
};
use rackpool_mem::event::{Interest, Poller};
use rackpool_mem::process::{
    ProcessHandle, ProcessId, Shutdown, monotonic_ns, random_u64, start_time_of,
};
use rackpool_mem::window::{Access, MapOptions, Window};
use rustix::fs::MemfdFlags;
use rustix::process::Signal;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

/// Ten times what a quiet machine needs, and more.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(role: &str, name: &str) -> Own {
    Own::start("control_processes::a_child_plays_its_role", role, name, Stdio::null())
}

fn fresh_name() -> String {
    format!("rackpool-test/{:x}", random_u64().unwrap())
}

fn accept(listener: &ControlListener) -> ControlConn {
    let poller = Poller::new().unwrap();
    poller.add(listener, 0, Interest::Read).unwrap();
    let mut events = Vec::new();
    let until = monotonic_ns() + PATIENCE.as_nanos() as u64;
    while monotonic_ns() < until {
        if let Some(conn) = listener.accept().unwrap() {
            return conn;
        }
        poller.wait(Some(Duration::from_millis(100)), &mut events).unwrap();
    }
    panic!("no connection came within {PATIENCE:?}");
}

fn recv_message(conn: &ControlConn) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut buf = vec![0; MESSAGE_BYTES_MAX as usize];
    let until = monotonic_ns() + PATIENCE.as_nanos() as u64;
    while monotonic_ns() < until {
        match conn.recv_timeout(&mut buf, PATIENCE).unwrap() {
            Received::Message { bytes, fds } => {
                buf.truncate(bytes);
                return (buf, fds);
            }
            Received::Nothing => {}
            Received::Closed => panic!("closed instead of a message"),
        }
    }
    panic!("no message within {PATIENCE:?}");
}

fn is_closed_within(conn: &ControlConn, timeout: Duration) -> bool {
    matches!(conn.recv_timeout(&mut [0; 64], timeout), Ok(Received::Closed))
}

fn memory(bytes: u64) -> (OwnedFd, Window) {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    let window = map(&fd, bytes);
    (fd, window)
}

fn map(fd: &OwnedFd, bytes: u64) -> Window {
    let options = MapOptions::default();
    Window::map(fd.as_fd(), bytes, Access::ReadWrite, options).unwrap()
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this test needs root");
        println!("NOT TESTED: needs root");
    }
    is_root
}

/// What a child does; in the parent's own run this test has no role and ends at once.
#[test]
fn a_child_plays_its_role() {
    let Some((role, name)) = role_and_place() else { return };
    match role.as_str() {
        "exchange" => {
            let conn = ControlConn::connect(&name).unwrap();
            let (fd, window) = memory(4096);
            window.store(0, 42);
            conn.send(b"memory", &[fd.as_fd()]).unwrap();
            let (message, fds) = recv_message(&conn);
            assert_eq!((message.as_slice(), fds.len()), (&b"memory too"[..], 1));
            window.store(8, 43);
            conn.notify();
            recv_message(&conn);
        }
        "hold" => {
            let conn = ControlConn::connect(&name).unwrap();
            conn.send(b"here", &[]).unwrap();
            std::thread::sleep(PATIENCE);
        }
        "foreign" => {
            // SAFETY: changes this child's user only; it is single-minded from here on.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
            let conn = ControlConn::connect(&name).unwrap();
            // Root serves the name: that is allowed.
            conn.check_peer().unwrap();
            conn.send(b"here", &[]).unwrap();
            std::thread::sleep(PATIENCE);
        }
        "shutdown" => {
            let shutdown = Shutdown::install().unwrap();
            assert!(!shutdown.is_requested());
            let poller = Poller::new().unwrap();
            poller.add(shutdown, 9, Interest::Read).unwrap();
            let conn = ControlConn::connect(&name).unwrap();
            conn.send(b"ready", &[]).unwrap();
            let mut events = Vec::new();
            while events.is_empty() {
                poller.wait(Some(PATIENCE), &mut events).unwrap();
            }
            assert_eq!(events[0].token, 9);
            assert!(Shutdown::install().unwrap().is_requested());
            conn.send(b"stopping", &[]).unwrap();
            recv_message(&conn);
        }
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

#[test]
fn descriptors_pass_between_processes_and_lead_to_the_same_memory() {
    let name = fresh_name();
    let listener = ControlListener::bind(&name).unwrap();
    let mut child = start("exchange", &name);
    let conn = accept(&listener);
    let peer = conn.check_peer().unwrap();
    assert_eq!(peer.pid, child.0.id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());

    let (message, fds) = recv_message(&conn);
    assert_eq!((message.as_slice(), fds.len()), (&b"memory"[..], 1));
    let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let window = map(&fds[0], 4096);
    assert_eq!(window.load(0), 42);

    conn.send(b"memory too", &[fds[0].as_fd()]).unwrap();
    let poller = Poller::new().unwrap();
    poller.add(&conn, 0, Interest::Read).unwrap();
    assert_eq!(poller.wait(Some(PATIENCE), &mut Vec::new()).unwrap(), 1);
    assert_eq!((conn.drain(), window.load(8)), (Drained::Open, 43));

    assert!(!conn.is_closed());
    conn.send(b"bye", &[]).unwrap();
    assert!(child.0.wait().unwrap().success());
    assert!(is_closed_within(&conn, PATIENCE));
    assert!(matches!(conn.send(b"late", &[]), Err(ControlError::Closed)));
}

#[test]
fn a_killed_process_is_seen_at_once_by_socket_and_by_pidfd() {
    let name = fresh_name();
    let listener = ControlListener::bind(&name).unwrap();
    let child = start("hold", &name);
    let conn = accept(&listener);
    recv_message(&conn);
    let id = ProcessId::of(child.0.id()).unwrap();
    let handle = ProcessHandle::open_exact(id).unwrap();
    let poller = Poller::new().unwrap();
    poller.add(&conn, 1, Interest::Read).unwrap();
    let mut events = Vec::new();
    assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), 0);

    let killed_at = monotonic_ns();
    child.signal(Signal::KILL);
    poller.wait(Some(PATIENCE), &mut events).unwrap();
    let seen_ns = monotonic_ns() - killed_at;
    println!("death seen by the closed socket after {} us", seen_ns / 1000);
    assert!(events[0].closed && conn.is_closed());
    assert!(matches!(conn.recv(&mut [0; 8]), Ok(Received::Closed)));
    assert!(seen_ns < 5_000_000_000, "{seen_ns} ns");

    poller.remove(&conn).unwrap();
    poller.add(&handle, 2, Interest::Read).unwrap();
    assert_eq!(poller.wait(Some(PATIENCE), &mut events).unwrap(), 1);
    // Not reaped yet: still in the process table, and dead all the same.
    assert!(start_time_of(id.pid).is_ok());
    assert!(!handle.is_alive() && !id.is_alive());
    drop(child);
    assert!(!handle.is_alive() && !id.is_alive());
    assert_eq!(start_time_of(id.pid).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(ProcessHandle::open(id.pid).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_stopped_process_is_alive_and_its_connection_open() {
    let name = fresh_name();
    let listener = ControlListener::bind(&name).unwrap();
    let child = start("hold", &name);
    let conn = accept(&listener);
    recv_message(&conn);
    let handle = ProcessHandle::open(child.0.id()).unwrap();
    child.signal(Signal::STOP);
    assert!(!is_closed_within(&conn, Duration::from_millis(100)));
    assert!(handle.is_alive() && handle.id().is_alive() && !conn.is_closed());
    child.signal(Signal::CONT);
    assert!(handle.is_alive() && !conn.is_closed());
    child.signal(Signal::STOP);
    child.signal(Signal::KILL);
    assert!(is_closed_within(&conn, PATIENCE));
}

#[test]
fn a_process_of_another_user_is_refused_by_a_server_and_root_is_no_stranger() {
    if !is_root() {
        return;
    }
    let name = fresh_name();
    let listener = ControlListener::bind(&name).unwrap();
    let child = start("foreign", &name);
    let conn = accept(&listener);
    match conn.check_peer() {
        Err(ControlError::ForeignUser { pid, uid: 65534, own_uid: 0 }) => {
            assert_eq!(pid, child.0.id());
        }
        other => panic!("{other:?}"),
    }
    // It has found root to be no stranger.
    assert_eq!(recv_message(&conn).0, b"here");
    assert_eq!(conn.check_peer_of(&access([65534])).unwrap().uid, 65534);
}

#[test]
fn a_signal_asks_for_the_stop_and_the_third_one_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    for signal in [Signal::TERM, Signal::INT] {
        let name = fresh_name();
        let listener = ControlListener::bind(&name).unwrap();
        let mut child = start("shutdown", &name);
        let conn = accept(&listener);
        assert_eq!(recv_message(&conn).0, b"ready");
        child.signal(signal);
        assert_eq!(recv_message(&conn).0, b"stopping");
        if signal == Signal::TERM {
            conn.send(b"bye", &[]).unwrap();
            assert_eq!(child.0.wait().unwrap().code(), Some(0));
            continue;
        }
        // The process hangs in its stop.
        child.signal(Signal::TERM);
        child.signal(Signal::INT);
        let status = child.0.wait().unwrap();
        assert!([Some(130), Some(143)].contains(&status.code()), "{status:?}");
        assert_eq!(status.signal(), None);
    }
}

#[test]
fn names_are_checked_served_once_and_free_again_after_the_listener() {
    for name in ["", "a\0b", &"x".repeat(CONTROL_NAME_BYTES_MAX + 1)] {
        let bad = |error| matches!(error, ControlError::BadName { bytes } if bytes == name.len());
        assert!(bad(ControlListener::bind(name).unwrap_err()));
        assert!(bad(ControlConn::connect(name).unwrap_err()));
    }
    let longest = format!("{:x<CONTROL_NAME_BYTES_MAX$}", fresh_name());
    for name in [fresh_name(), longest] {
        let refused = ControlConn::connect(&name).unwrap_err();
        assert!(matches!(refused, ControlError::NobodyListens { .. }), "{refused}");
        let listener = ControlListener::bind(&name).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let in_use = ControlListener::bind(&name).unwrap_err();
        assert!(matches!(in_use, ControlError::NameInUse { .. }), "{in_use}");
        drop(listener);
        ControlListener::bind(&name).unwrap();
    }
}

#[test]
fn a_full_backlog_and_a_peer_that_does_not_read_are_busy_and_nothing_blocks() {
    let name = fresh_name();
    let listener = ControlListener::bind(&name).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        match ControlConn::connect(&name) {
            Ok(conn) => waiting.push(conn),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, ControlError::Busy { .. }), "{refused}");
    assert!(waiting.len() >= 100, "{}", waiting.len());
    let server = listener.accept().unwrap().unwrap();

    let message = vec![7; MESSAGE_BYTES_MAX as usize];
    let mut sent = 0;
    let full = loop {
        match waiting[0].send(&message, &[]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ControlError::Busy { .. }), "{full}");
    assert!(sent > 0);
    for _ in 0..sent {
        assert_eq!(recv_message(&server).0, message);
    }
    assert!(matches!(server.recv(&mut [0; 8]), Ok(Received::Nothing)));
    waiting[0].send(b"again", &[]).unwrap();
    assert_eq!(recv_message(&server).0, b"again");
}

#[test]
fn messages_that_cannot_be_are_refused_on_both_sides_and_lose_no_descriptor() {
    let (ours, theirs) = ControlConn::pair().unwrap();
    let (fd, _) = memory(4096);
    let too_many = [fd.as_fd(); CONTROL_FDS_MAX + 1];
    for (bytes, fds) in [
        (vec![], &too_many[..0]),
        (vec![0; MESSAGE_BYTES_MAX as usize + 1], &too_many[..0]),
        (vec![0], &too_many[..]),
    ] {
        assert!(matches!(ours.send(&bytes, fds), Err(ControlError::TooLong { .. })));
    }
    ours.send(&[1], &too_many[1..]).unwrap();
    assert_eq!(recv_message(&theirs).1.len(), CONTROL_FDS_MAX);

    // A peer that does not use this library.
    let flags = rustix::net::SendFlags::empty();
    for extra in [1, 20] {
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        let copies = vec![write_end.as_fd(); CONTROL_FDS_MAX + extra];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&copies)));
        rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
        drop(write_end);
        let refused = theirs.recv(&mut [0; 64]).unwrap_err();
        assert!(matches!(refused, ControlError::Protocol { .. }), "{refused}");
        // All copies that arrived were closed: the pipe is at its end.
        assert_eq!(read_end.read(&mut [0; 1]).unwrap(), 0);
    }

    ours.send(&[0; 65], &[]).unwrap();
    let refused = theirs.recv(&mut [0; 64]).unwrap_err();
    assert!(refused.to_string().contains("longer than the buffer"), "{refused}");
    rustix::net::send(&ours, &[], flags).unwrap();
    let refused = theirs.recv(&mut [0; 64]).unwrap_err();
    assert!(refused.to_string().contains("an empty message"), "{refused}");
    ours.send(b"fine", &[]).unwrap();
    assert_eq!(recv_message(&theirs).0, b"fine");
}

#[test]
fn half_a_close_is_no_proof_of_death_and_the_last_messages_of_the_dead_are_read() {
    let (ours, theirs) = ControlConn::pair().unwrap();
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Write).unwrap();
    assert!(!theirs.is_closed());
    assert!(matches!(theirs.recv(&mut [0; 8]), Err(ControlError::Protocol { .. })));

    let (ours, theirs) = ControlConn::pair().unwrap();
    ours.send(b"last", &[]).unwrap();
    drop(ours);
    assert!(theirs.is_closed());
    assert_eq!(recv_message(&theirs).0, b"last");
    assert!(matches!(theirs.recv(&mut [0; 8]), Ok(Received::Closed)));

    // It died without having read what we sent.
    let (ours, theirs) = ControlConn::pair().unwrap();
    theirs.send(b"unread", &[]).unwrap();
    drop(ours);
    assert!(matches!(theirs.recv(&mut [0; 8]), Ok(Received::Closed)));
}
