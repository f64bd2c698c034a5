//! Servers when what they stand on fails them: standard error that is not read, a thread that
//! panics, a disk that is full, and users that keep others out.

use crate::common::{Dir, Server, WITHIN, is_root, rackpool, run, told, unique};
use rackpool::link::MasterLink;
use rackpool_core::constants::{SLOTS_MAX, SLOTS_OF_USER_MAX};
use rackpool_core::wire::{
    self, ControlHello, ControlReply, MasterAnswer, MasterCall, MasterRequest, WIRE_VERSION,
};
use rackpool_core::{Error, RackId, SessionId};
use rackpool_fabric::control::{ControlConn, ControlListener, Received};
use rackpool_mem::process::random_u64;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const USER_NOBODY: u32 = 65534;

fn master(dir: &Dir, stderr: impl Into<Stdio>) -> Server {
    let state = dir.file("state");
    let words = ["master", "--listen", "127.0.0.1:0", "--state", &state];
    Server::by(rackpool().args(words).stderr(stderr))
}

fn daemon(master: &str, stderr: impl Into<Stdio>) -> Server {
    let words = ["daemon", "--rack", "0", "--master", master, "--memory", "heap:64M"];
    Server::by(rackpool().args(words).stderr(stderr))
}

/// One command through rack 0.
fn shell(master: &str, command: &str) -> (i32, String, String) {
    told(&run(&["shell", "--rack", "0", "--master", master, "--timeout-ms", "8000", "-c", command]))
}

/// Runs in a thread of another user of this host.
fn as_nobody<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = rustix::fs::Uid::from_raw(USER_NOBODY);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            run()
        });
        thread.join().unwrap()
    })
}

/// Standard error that takes nothing: a pipe that is full, one that is not read any more, a disk
/// without room. What is to be kept open comes second.
fn deaf() -> Vec<(Stdio, Option<std::io::PipeReader>)> {
    let (full, mut filler) = std::io::pipe().unwrap();
    for _ in 0..16 {
        filler.write_all(&[b'x'; 4096]).unwrap();
    }
    let (_, gone) = std::io::pipe().unwrap();
    let disk = File::options().write(true).open("/dev/full").unwrap();
    vec![(filler.into(), Some(full)), (gone.into(), None), (disk.into(), None)]
}

#[test]
fn servers_whose_standard_error_takes_nothing_go_on_serving() {
    let strange = |addr: &str| {
        for _ in 0..50 {
            let mut stream = TcpStream::connect(addr).unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n and more than a head needs");
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.read(&mut [0; 64]);
        }
    };
    for ((to_master, _open), (to_daemon, _open_too)) in deaf().into_iter().zip(deaf()) {
        let dir = Dir::new();
        let mut master = master(&dir, to_master);
        let mut daemon = daemon(&master.addr, to_daemon);
        strange(&master.addr);
        strange(&daemon.addr);
        let (code, out, err) = shell(&master.addr, "put a text:1; get a");
        assert_eq!((code, out.as_str()), (0, "ok\n1"), "{err}");
        assert_eq!((daemon.terminate(), master.terminate()), (Some(0), Some(0)));
    }
    for (to_cache, _open) in deaf() {
        let words = ["kv", "--memory", "32m", "--memcached", "0", "--threads", "1"];
        let mut cache = Server::by(rackpool().args(words).stderr(to_cache));
        let addr = cache.addr.split(' ').find_map(|word| word.strip_prefix("memcached="));
        let addr = addr.expect("the door's address");
        strange(addr);
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        stream.write_all(b"set a 0 0 1\r\n1\r\nget a\r\n").unwrap();
        let mut said = [0; 29];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(said.escape_ascii().to_string(), r"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
        assert_eq!(cache.terminate(), Some(0));
    }
}

#[test]
fn a_panic_in_any_thread_of_a_server_is_said_and_ends_it_with_exit_code_1() {
    let dir = Dir::new();
    let serving = master(&dir, Stdio::null());
    let other = dir.file("other");
    let herd = unique("herd");
    let master =
        ["master", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state", &other];
    let addr = &serving.addr;
    let metrics = ["--metrics", "127.0.0.1:0"];
    let daemon = ["daemon", "--rack", "0", "--master", addr, "--memory", "heap:64M"];
    let daemon = [&daemon[..], &metrics].concat();
    let cache = ["kv", "--memory", "32m", "--memcached", "0", "--threads", "1", "--herd", &herd];
    for (words, thread) in [
        (&master[..], "rackpool-master"),
        (&master, "rackpool-metrics"),
        (&daemon, "rackpool-daemon"),
        (&daemon, "fabric-target"),
        (&daemon, "rackpool-metrics"),
        (&cache, "kv-0"),
        (&cache, "kv-accept"),
        (&cache, "herd-0"),
        (&cache, "herd-accept"),
    ] {
        let mut command = rackpool();
        command.args(words).env("RACKPOOL_TEST_PANIC", thread).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > WITHIN {
                let _ = child.kill();
                panic!("{thread}: it goes on without it");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1), "{thread}: {said}");
        let line = format!("error internal thread {thread} panicked at ");
        assert!(said.lines().any(|one| one.starts_with(&line)), "{thread}: {said}");
    }
}

#[test]
fn bad_connections_do_not_fill_the_log_and_how_many_were_left_out_is_said() {
    let dir = Dir::new();
    let log = dir.file("log");
    let mut master = master(&dir, File::create(&log).unwrap());
    let strange = |count| {
        for _ in 0..count {
            let mut stream = TcpStream::connect(&master.addr).unwrap();
            stream.write_all(&[255; 64]).unwrap();
            let _ = stream.read(&mut [0; 8]);
        }
    };
    strange(400);
    // Until one more goes.
    std::thread::sleep(Duration::from_millis(1500));
    strange(1);
    assert_eq!(master.terminate(), Some(0));
    let said = std::fs::read_to_string(&log).unwrap();
    let closing: Vec<&str> =
        said.lines().filter(|line| line.contains(": closing the con")).collect();
    assert!((2..100).contains(&closing.len()), "{} lines", closing.len());
    assert!(closing.last().unwrap().contains("were held back"), "{closing:?}");
    let is_whole = |line: &str| line.starts_with("20") && line.contains("Z ");
    assert!(said.lines().all(is_whole), "{said}");
}

/// What a master logs from start to end.
fn log_of_a_master(options: &[&str], filter: Option<&str>) -> String {
    let dir = Dir::new();
    let (state, log) = (dir.file("state"), dir.file("log"));
    let mut command = rackpool();
    command.args(["master", "--listen", "127.0.0.1:0", "--state", &state]).args(options);
    command.envs(filter.map(|filter| ("RACKPOOL_LOG", filter)));
    let mut master = Server::by(command.stderr(File::create(&log).unwrap()));
    assert_eq!(master.terminate(), Some(0));
    std::fs::read_to_string(&log).unwrap()
}

#[test]
fn what_is_logged_is_chosen_by_level_by_target_and_by_form() {
    let usual = log_of_a_master(&[], None);
    for event in [": serving at 127.0.0.1:", ": signal: stopping", ": stopped"] {
        let has = |line: &str| line.contains("Z INFO master") && line.contains(event);
        assert!(usual.lines().any(has), "{event}: {usual}");
    }
    // One that is short of descriptors warns.
    let grave = |said: &str| said.lines().all(|line| line.contains("Z WARN "));
    for (options, filter) in [
        (&["--log-level", "warn"] as &[&str], None),
        (&["--log-level", "warn"], Some("trace")),
        (&[], Some("warn")),
        (&[], Some("info,master=warn")),
    ] {
        let said = log_of_a_master(options, filter);
        assert!(grave(&said), "{options:?} {filter:?}: {said}");
    }
    assert_eq!(log_of_a_master(&["--log-level", "off"], None), "");
    let json = log_of_a_master(&["--log-format", "json"], Some("master=info"));
    assert!(json.lines().count() >= 3, "{json}");
    for line in json.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        assert_eq!(event["target"], "master");
        assert!(event["fields"]["message"].is_string() && event["level"].is_string(), "{line}");
        assert!(event["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    let mut wrong = rackpool();
    let output = wrong.args(["doctor"]).env("RACKPOOL_LOG", "fabric=loud").output().unwrap();
    let (code, _, err) = told(&output);
    assert!(code == 2 && err.starts_with("error usage RACKPOOL_LOG: "), "{code}: {err}");
}

/// Where clients of rack 0 join.
fn control(master: &str) -> String {
    let mut link = MasterLink::new(vec![master.to_owned()]);
    let call = MasterCall::Rack { rack: RackId(0) };
    match link.call(call, Instant::now() + WITHIN) {
        Ok(MasterAnswer::Rack(info)) => info.control,
        other => panic!("{other:?}"),
    }
}

/// Joins a daemon by hand: the connection, and what came with the welcome.
fn join(control: &str) -> (ControlConn, Vec<OwnedFd>) {
    try_join(control).unwrap()
}

fn try_join(control: &str) -> Result<(ControlConn, Vec<OwnedFd>), Error> {
    let conn = ControlConn::connect(control).unwrap();
    let hello = ControlHello {
        version: WIRE_VERSION,
        session: SessionId(random_u64().unwrap()),
        resume_slot: None,
        read_only: false,
        number: 1,
    };
    conn.send(&wire::encode_vec(&hello), &[]).unwrap();
    let mut buffer = vec![0; 16 << 10];
    match conn.recv_timeout(&mut buffer, WITHIN).unwrap() {
        Received::Message { bytes, fds } => {
            match wire::decode::<ControlReply>(&buffer[..bytes], "daemon").unwrap() {
                ControlReply::Welcome { .. } => Ok((conn, fds)),
                ControlReply::Refused(why) => Err(why),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// What descriptors of this process are.
fn kinds(fds: &[OwnedFd]) -> Vec<String> {
    let of = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    fds.iter().map(|fd| of(fd).unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_client_gets_memory_alone_and_one_that_closes_half_is_disconnected() {
    let dir = Dir::new();
    let master = master(&dir, Stdio::null());
    let daemon = daemon(&master.addr, Stdio::null());
    let control = control(&master.addr);
    let is_closed = |conn: &ControlConn| {
        let begun = Instant::now();
        while !conn.is_closed() {
            assert!(begun.elapsed() < WITHIN, "it is served as if nothing were");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for breaks in [
        &(|conn: &ControlConn| {
            rustix::net::shutdown(conn.as_fd(), rustix::net::Shutdown::Write).unwrap();
        }) as &dyn Fn(&ControlConn),
        &|conn| {
            let none = rustix::net::SendFlags::empty();
            assert_eq!(rustix::net::send(conn.as_fd(), &[], none), Ok(0));
        },
        &|conn| conn.send(&[7; 100], &[]).unwrap(),
    ] {
        let (conn, fds) = join(&control);
        // Whatever a server waits on or writes to, a client could make blocking, fill, or empty.
        assert!(kinds(&fds).iter().all(|kind| !kind.contains("eventfd")), "{:?}", kinds(&fds));
        conn.notify();
        breaks(&conn);
        is_closed(&conn);
    }
    assert_eq!(shell(&master.addr, "put a text:1; get a").1, "ok\n1");
    drop(daemon);
}

#[test]
fn a_full_queue_of_notices_or_a_blocking_end_never_blocks_who_notifies() {
    let (ours, theirs) = ControlConn::pair().unwrap();
    for end in [&ours, &theirs] {
        rustix::io::ioctl_fionbio(end, false).unwrap();
    }
    let begun = Instant::now();
    (0..100_000).for_each(|_| ours.notify());
    while theirs.recv(&mut [0; 8]).is_ok_and(|found| matches!(found, Received::Message { .. })) {}
    theirs.drain();
    assert!(begun.elapsed() < WITHIN);
}

#[test]
fn silent_connections_of_any_user_keep_no_client_out() {
    let dir = Dir::new();
    let master = master(&dir, Stdio::null());
    let _daemon = daemon(&master.addr, Stdio::null());
    let control = control(&master.addr);
    let own: Vec<_> = (0..200).map(|_| ControlConn::connect(&control)).collect();
    let (code, _, err) = shell(&master.addr, "put a text:1; get a");
    assert_eq!(code, 0, "behind silent connections of its own user: {err}");
    drop(own);
    if !is_root() {
        return;
    }
    as_nobody(|| {
        let conns: Vec<_> = (0..200).filter_map(|_| ControlConn::connect(&control).ok()).collect();
        assert!(conns.len() > 1);
        let mut buffer = vec![0; 16 << 10];
        let Ok(Received::Message { bytes, .. }) = conns[0].recv_timeout(&mut buffer, WITHIN) else {
            panic!("it is not told why");
        };
        let reply = wire::decode::<ControlReply>(&buffer[..bytes], "daemon").unwrap();
        assert!(
            matches!(&reply, ControlReply::Refused(why) if why.code() == "denied"),
            "{reply:?}"
        );
        // In another thread: this one's children would be of that user.
    });
    assert_eq!(shell(&master.addr, "get a").1, "1");
}

#[test]
fn a_user_that_is_let_in_beside_our_own_leaves_slots_for_others() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let master = master(&dir, Stdio::null());
    let words = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", "heap:64M"];
    let allowed = ["--allow-user", &USER_NOBODY.to_string()].map(str::to_owned);
    let _daemon = Server::by(rackpool().args(words).args(allowed).stderr(Stdio::null()));
    let control = control(&master.addr);
    let held = as_nobody(|| {
        let joined = (0..SLOTS_MAX).map_while(|_| try_join(&control).ok().map(|(conn, _)| conn));
        joined.collect::<Vec<_>>()
    });
    assert_eq!(held.len(), SLOTS_OF_USER_MAX as usize);
    assert_eq!(as_nobody(|| try_join(&control).unwrap_err().code()), "busy");
    assert_eq!(shell(&master.addr, "put a text:1; get a").1, "ok\n1");
}

#[test]
fn a_name_that_another_user_has_taken_keeps_no_daemon_and_no_client_away() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let name = unique("squat");
    let memory = format!("shm:/dev/shm/{name}?size=64M");
    let master = master(&dir, Stdio::null());
    let start = || {
        let words = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory];
        Server::start(&[&words[..], &["--ephemeral"]].concat())
    };
    let mut daemon = start();
    let taken = control(&master.addr);
    assert_eq!(shell(&master.addr, "put a text:1").1, "ok\n");
    // A client that is there all the time.
    let words = ["shell", "--rack", "0", "--master", &master.addr, "--timeout-ms", "20000"];
    let mut client =
        rackpool().args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    writeln!(input, "get a").unwrap();
    let mut seen = [0; 1];
    client.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let squatter = as_nobody(|| ControlListener::bind(&taken)).unwrap();
    let mut daemon = start();
    let now = control(&master.addr);
    assert_ne!(now, taken);
    assert_eq!(shell(&master.addr, "get a").1, "1", "a new client");
    writeln!(input, "get a").unwrap();
    drop(input);
    let rest = client.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&rest.stdout), "\n1", "the client of before");
    drop(squatter);
    assert_eq!(daemon.terminate(), Some(0));
}

fn frame(call: MasterCall) -> Vec<u8> {
    let bytes = wire::encode_vec(&MasterRequest { id: 1, call });
    [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
}

#[test]
fn idle_connections_give_way_at_a_master_that_has_too_many() {
    let dir = Dir::new();
    let program = rackpool().get_program().to_owned();
    let mut under = Command::new("sh");
    under.args(["-c", "ulimit -n 128 && exec \"$0\" \"$@\""]).arg(program);
    let state = dir.file("state");
    under.args(["master", "--listen", "127.0.0.1:0", "--state", &state]);
    let master = Server::by(under.stderr(Stdio::null()));
    let _daemon = daemon(&master.addr, Stdio::null());
    let hello = frame(MasterCall::Hello { version: WIRE_VERSION });
    let idle = |_| {
        let mut stream = TcpStream::connect(&master.addr).unwrap();
        stream.write_all(&hello).unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..90).map(idle).collect();
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..3 {
        let (code, out, err) = shell(&master.addr, "alloc 64 local");
        assert_eq!(code, 0, "{out}{err}");
    }
    drop(held);
}

/// A master in a mount namespace of its own, in which its state lies on a disk of 3 MiB. The disk
/// goes with the master.
fn master_on_a_small_disk(dir: &Dir, listen: &str, log: File) -> Server {
    let program = rackpool().get_program().to_owned();
    let disk = dir.file("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let mut unshared = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size=3m tmpfs {disk} && exec \"$0\" \"$@\"");
    unshared.args(["-m", "sh", "-c", &script]).arg(program);
    unshared.args(["master", "--listen", listen, "--state", &format!("{disk}/state")]);
    Server::by(unshared.stdin(Stdio::null()).stderr(log))
}

#[test]
fn a_master_whose_disk_is_full_answers_reads_refuses_changes_and_recovers() {
    if !is_root() {
        return;
    }
    let (dir, name) = (Dir::new(), unique("full"));
    let log = dir.file("log");
    let mut master = master_on_a_small_disk(&dir, "127.0.0.1:0", File::create(&log).unwrap());
    let memory = format!("shm:/dev/shm/{name}?size=1G");
    let words = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory];
    let mut daemon = Server::start(&[&words[..], &["--ephemeral"]].concat());
    assert_eq!(shell(&master.addr, "put a text:one").1, "ok\n");
    let filler = format!("/proc/{}/root{}/filler", master.child.id(), dir.file("disk"));
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[b'x'; 4096]).is_ok() {}
    drop(file);
    // Each takes a page, which the master has to note.
    let mut acknowledged = Vec::new();
    let refused = loop {
        let (code, out, err) = shell(&master.addr, "alloc 2M local");
        if code != 0 {
            break err;
        }
        acknowledged.push(out.trim().to_owned());
        assert!(acknowledged.len() < 500, "the disk never becomes full");
    };
    assert!(refused.starts_with("error storage-full "), "{refused}");
    assert_eq!(shell(&master.addr, "get a").1, "one");
    assert_eq!(told(&run(&["racks", "--master", &master.addr])).0, 0);
    std::fs::remove_file(&filler).unwrap();
    let begun = Instant::now();
    while shell(&master.addr, "alloc 2M local").0 != 0 {
        assert!(begun.elapsed() < WITHIN, "there is room again");
    }
    for addr in &acknowledged {
        assert_eq!(shell(&master.addr, &format!("read {addr} 1")).1, "00\n", "{addr}");
    }
    assert_eq!((daemon.terminate(), master.terminate()), (Some(0), Some(0)));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("has room again"), "{said}");
}
