//! How signals end commands and servers: at once, with the exit code that says so, and nothing is
//! left.
#![cfg(feature = "lab")]

use crate::common::{
    Dir, Server, WITHIN, descendants, lives, own_directories, rackpool, told, unique,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How soon a command that is told to end has ended; it takes a few milliseconds.
const SOON: Duration = Duration::from_secs(8);

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("our own child");
}

fn ended(child: &mut Child) -> (Option<i32>, Duration) {
    let start = Instant::now();
    while start.elapsed() < WITHIN {
        if let Some(status) = child.try_wait().expect("our own child") {
            return (status.code(), start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    panic!("it does not end");
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WITHIN, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_ends_at_once_with_the_signals_code_and_leaves_nothing() {
    let dir = Dir::new();
    let plan = dir.file("plan.toml");
    assert!(rackpool().args(["plan", "init", &plan]).output().unwrap().status.success());
    let (out, out2) = (dir.file("out.parquet"), dir.file("report"));
    fs::write(&out, "old").unwrap();
    let endless = "1000000000";
    for (index, words) in [
        &["bench", "sim"] as &[&str],
        &["sim", "rack", "wl-mix", "--accesses", endless],
        &["sim", "run", "--seeds", endless, "--json", &out],
        &["sim", "scale", "--operations", "1000000"],
        &["trace", "kernel", "lbm", "--footprint", "1G", "--steps", "1000", "--out", &out],
        &["trace", "run", "--out", &out, "--", "/bin/sh", "-c", "sleep 600; true"],
        &["repro", "rcmp", "--out", &out2],
        &["shell"],
        &["bench", "ring"],
    ]
    .into_iter()
    .enumerate()
    {
        let (signal, code) =
            [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)][index % 3];
        let mut command = rackpool();
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.current_dir(&dir.0).spawn().unwrap();
        let pid = child.id();
        // In the midst of it: its handler is there, and so are its children.
        std::thread::sleep(Duration::from_millis(1000));
        let programs = if words.contains(&"/bin/sh") { 2 } else { 0 };
        until("the program has no child", || descendants(pid).len() >= programs);
        let (processes, regions) = (descendants(pid), own_directories(pid));
        assert_eq!(regions.is_empty(), !words.contains(&"ring"), "{words:?}: {regions:?}");
        send(&child, signal);
        let (found, took) = ended(&mut child);
        let err = told(&child.wait_with_output().unwrap()).2;
        assert_eq!(found, Some(code), "{words:?}: {err}");
        assert!(took < SOON, "{words:?} took {took:?}");
        assert!(err.starts_with("error interrupted ") && err.lines().count() == 1, "{err}");
        assert!(regions.iter().all(|region| !region.exists()), "{words:?}: {regions:?}");
        until("a process is left", || !processes.iter().copied().any(lives));
        assert_eq!(fs::read(&out).unwrap(), b"old", "{words:?}");
        let hidden = |path: &str| {
            let names = fs::read_dir(path).into_iter().flatten().flatten();
            names.filter(|e| e.file_name().to_string_lossy().starts_with('.')).count()
        };
        assert_eq!(hidden(&dir.file("")) + hidden(&out2), 0, "{words:?}: a part is left");
    }
}

#[test]
fn a_sweep_with_checkpoints_writes_them_before_it_ends_and_goes_on_from_them() {
    let dir = Dir::new();
    let checkpoints = dir.file("checkpoints");
    let sweep = ["sim", "rack", "wl-mix-64th", "--accesses", "20000", "--checkpoint", &checkpoints];
    let mut command = rackpool();
    command.args(sweep).args(["--checkpoint-events", "1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let first = dir.0.join("checkpoints/point-0.checkpoint");
    until("no checkpoint", || first.exists());
    send(&child, Signal::INT);
    let code = ended(&mut child).0;
    assert!(code == Some(130) || code == Some(0), "{code:?}: a run that was over ends well");
    let names = || fs::read_dir(&checkpoints).unwrap().count();
    assert_eq!(names(), 1, "no part is left");
    let (code, out, err) = told(&rackpool().args(sweep).output().unwrap());
    assert!(code == 0 && out.contains("result hash"), "{err}");
}

#[test]
fn a_server_ends_with_0_at_each_signal_and_an_ephemeral_one_leaves_nothing() {
    let dir = Dir::new();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut master = rackpool();
        master.args(["master", "--listen", "127.0.0.1:0", "--ephemeral"]);
        master.env("TMPDIR", &dir.0).stderr(Stdio::null());
        let mut master = Server::by(&mut master);
        let state = fs::read_dir(&dir.0).unwrap().next().expect("its state").unwrap();
        assert_eq!(state.metadata().unwrap().mode() & 0o777, 0o700);
        let memory = format!("shm:/dev/shm/{}?size=16M", unique("signal"));
        let words = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", &memory];
        let mut daemon = Server::start(&[&words[..], &["--ephemeral"]].concat());
        let mut kv = Server::start(&["kv", "--memory", "64m", "--resp", "127.0.0.1:0"]);
        for server in [&mut kv, &mut daemon, &mut master] {
            send(&server.child, signal);
            assert_eq!(ended(&mut server.child).0, Some(0), "{signal:?}");
        }
        let region = memory.trim_start_matches("shm:").split('?').next().unwrap();
        assert!(!Path::new(&format!("{region}.meta")).exists() && !Path::new(region).exists());
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0, "{signal:?}");
    }
}

#[test]
fn a_daemon_that_waits_for_its_master_ends_at_once_and_takes_its_region_along() {
    // Accepts, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = silent.local_addr().unwrap().to_string();
    let region = format!("/dev/shm/{}", unique("waits"));
    let memory = format!("shm:{region}?size=16M");
    let words = ["daemon", "--rack", "0", "--master", &master, "--memory", &memory];
    let mut command = rackpool();
    command.args(words).arg("--ephemeral").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until("no region", || Path::new(&format!("{region}.meta")).exists());
    send(&child, Signal::INT);
    let (code, took) = ended(&mut child);
    assert_eq!(code, Some(0));
    assert!(took < SOON, "{took:?}");
    assert!(!Path::new(&format!("{region}.meta")).exists() && !Path::new(&region).exists());
}

#[test]
fn a_hangup_that_was_ignored_from_the_start_ends_nothing() {
    let dir = Dir::new();
    let script = "trap '' HUP; exec \"$0\" master --listen 127.0.0.1:0 --ephemeral";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_rackpool")]).env("TMPDIR", &dir.0);
    let mut server = Server::by(command.stderr(Stdio::null()));
    send(&server.child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.child.try_wait().unwrap().is_none());
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn an_ephemeral_master_takes_nothing_that_is_there_and_the_next_removes_what_a_killed_one_left() {
    let dir = Dir::new();
    let start = || {
        let mut command = rackpool();
        command.args(["master", "--listen", "127.0.0.1:0", "--ephemeral"]);
        Server::by(command.env("TMPDIR", &dir.0).stderr(Stdio::null()))
    };
    let names = || {
        let entries = fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    // Names that an earlier release would have taken.
    let own = std::process::id();
    for pid in own..own + 200 {
        fs::create_dir(dir.0.join(format!("rackpool-master-{pid}"))).unwrap();
    }
    let placed = names();
    let mut killed = start();
    let mut living = start();
    let state = names().into_iter().find(|name| !placed.contains(name)).unwrap();
    assert!(placed.iter().all(|name| fs::read_dir(dir.0.join(name)).unwrap().count() == 0));
    assert_eq!(names().len(), placed.len() + 2, "{state}");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let doctor = || {
        let mut command = rackpool();
        let output = command.args(["doctor", "--json"]).env("TMPDIR", &dir.0).output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = answer["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "residue").unwrap()["found"].to_string()
    };
    let found = doctor();
    assert_eq!(found.matches(dir.0.to_str().unwrap()).count(), 1, "{found}");
    assert_eq!(names().len(), placed.len() + 2, "the doctor changes nothing");
    let mut next = start();
    assert_eq!(names().len(), placed.len() + 2, "one is gone, one is new");
    assert!(!doctor().contains(dir.0.to_str().unwrap()));
    assert_eq!((living.terminate(), next.terminate()), (Some(0), Some(0)));
    assert_eq!(names(), placed);
    // A directory under a name of the user's is removed if the master made it, and only then.
    for (name, is_there) in [("mine", true), ("new", false)] {
        let state = dir.file(name);
        if is_there {
            fs::create_dir(&state).unwrap();
        }
        let words = ["master", "--listen", "127.0.0.1:0", "--ephemeral", "--state", &state];
        assert_eq!(Server::start(&words).terminate(), Some(0));
        assert_eq!(Path::new(&state).exists(), is_there);
    }
}
