//! `racks`, `drain`, `undrain` and `forget` with real processes.

use crate::common::{Cluster, Dir, Held, Server, WITHIN, run, told};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Ends with 0 and says nothing on standard error; its output.
fn ok(cluster: &Cluster, words: &[&str]) -> String {
    let (code, out, err) = command(cluster, words);
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
    out
}

fn command(cluster: &Cluster, words: &[&str]) -> (i32, String, String) {
    told(&run(&[words, &["--master", &cluster.master.addr]].concat()))
}

fn racks(cluster: &Cluster) -> Vec<serde_json::Value> {
    serde_json::from_str(&ok(cluster, &["racks", "--json"])).expect("JSON")
}

fn exit_code(server: &mut Server) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < WITHIN {
        if let Some(status) = server.child.try_wait().expect("our own child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the daemon does not end");
}

/// Objects of whole pages in rack 1, and where they are.
fn fill(cluster: &Cluster) -> Vec<String> {
    let one = |text: &str| {
        let addr = cluster.ok(0, "alloc 2M rack:1");
        assert_eq!(cluster.ok(0, &format!("write {addr} text:{text}")), "ok");
        addr
    };
    ["alpha", "beta", "gamma"].map(one).to_vec()
}

#[test]
fn a_rack_is_drained_listed_as_left_and_its_daemon_ends_with_0() {
    let mut cluster = Cluster::start("tcp");
    let addrs = fill(&cluster);
    let before = racks(&cluster);
    assert_eq!(before[1]["state"], "serving");
    assert!(before[1]["alive"] == true && before[1]["pages"].as_u64() >= Some(3), "{before:?}");
    let table = ok(&cluster, &["racks"]);
    assert!(table.contains("STATE") && table.contains("serving"), "{table}");
    let drained = ok(&cluster, &["drain", "--rack", "1", "--timeout", "60"]);
    assert_eq!(drained, "rack 1 has left the pool\n");
    assert_eq!(exit_code(&mut cluster.daemons[1]), Some(0));
    assert!(cluster.regions[1].exists(), "the region is the operator's");
    for (addr, text) in addrs.iter().zip(["alpha", "beta", "gamma"]) {
        let bytes = text.len();
        assert_eq!(cluster.ok(0, &format!("read {addr} {bytes} text")), text);
        assert!(cluster.ok(0, &format!("explain {addr}")).contains("rack=0"));
    }
    let after = racks(&cluster);
    assert_eq!((&after[1]["state"], &after[1]["pages"]), (&"left".into(), &0.into()));
    assert_eq!(ok(&cluster, &["drain", "--rack", "1"]), "rack 1 has left the pool\n", "again");
    let (code, _, err) = command(&cluster, &["undrain", "--rack", "1"]);
    assert!(code == 1 && err.starts_with("error denied "), "{err}");
    let (code, _, err) = cluster.shell(0, "alloc 64 rack:1");
    assert!(code == 1 && err.starts_with("error no-such-rack "), "{err}");
    // The same region says again that it has left, and a new one joins.
    let mut again = cluster.daemon(1, "tcp");
    assert_eq!(exit_code(&mut again), Some(0));
    let documented = include_str!("../../../../docs/deploy.md");
    assert!(documented.contains("\nRestart=on-failure\n"), "which lets it stay down");
    for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        let name = cluster.regions[1].file_name().unwrap().to_string_lossy().into_owned();
        if entry.file_name().to_string_lossy().starts_with(&name) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    cluster.daemons[1] = cluster.daemon(1, "tcp");
    assert_eq!(racks(&cluster)[1]["state"], "serving");
    let addr = cluster.ok(0, "alloc 64 rack:1");
    assert!(cluster.ok(0, &format!("explain {addr}")).contains("rack=1"));
}

#[test]
fn a_drain_that_cannot_end_says_why_and_can_be_called_off() {
    let cluster = Cluster::start("tcp");
    // Nowhere to go: the other rack is drained first, and has left or not.
    let addrs = fill(&cluster);
    let first = command(&cluster, &["drain", "--rack", "0", "--no-wait"]);
    assert_eq!(first.0, 0, "{first:?}");
    let (code, out, err) = command(&cluster, &["drain", "--rack", "1", "--timeout", "1.5"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error timeout rack 1 still has "), "{err}");
    assert!(err.contains("stays") || err.contains("full"), "{err}");
    assert_eq!(racks(&cluster)[1]["state"], "draining");
    let top = told(&run(&["top", "--once", "--interval", "0.2", "--master", &cluster.master.addr]));
    assert!(top.1.contains("draining"), "{top:?}");
    assert_eq!(ok(&cluster, &["undrain", "--rack", "1"]), "rack 1 is serving\n");
    let deadline = Instant::now() + WITHIN;
    while cluster.shell(1, "alloc 64 local").0 != 0 {
        assert!(Instant::now() < deadline, "it serves again");
    }
    assert_eq!(cluster.ok(1, &format!("read {} 5 text", addrs[0])), "alpha");
}

#[test]
fn a_dead_rack_is_given_up_and_a_living_one_is_not() {
    let mut cluster = Cluster::start("tcp");
    let addrs = fill(&cluster);
    for words in [&["forget", "--rack", "1"][..], &["forget", "--rack", "1", "--yes"]] {
        let (code, out, err) = command(&cluster, words);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error denied ") && err.contains("is alive"), "{err}");
        assert!(!err.contains("DATA LOSS"), "nothing is lost: {err}");
    }
    let daemon = cluster.daemons.remove(1);
    drop(daemon);
    let deadline = Instant::now() + WITHIN;
    while racks(&cluster)[1]["alive"] != false {
        assert!(Instant::now() < deadline, "its death is noticed");
    }
    let (code, out, err) = command(&cluster, &["forget", "--rack", "1"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error denied ") && err.contains("--yes"), "{err}");
    assert_eq!(racks(&cluster)[1]["state"], "serving", "no user confirmed it");
    let (code, out, err) = command(&cluster, &["forget", "--rack", "1", "--yes"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("rack 1 is lost: ") && err.contains("DATA LOSS"), "{out}{err}");
    let start = Instant::now();
    let (code, _, err) = cluster.shell(0, &format!("read {} 5", addrs[0]));
    assert!(code == 1 && err.starts_with("error lost "), "{err}");
    assert!(start.elapsed() < Duration::from_secs(10), "at once: {:?}", start.elapsed());
    assert_eq!(racks(&cluster)[1]["state"], "lost");
    assert!(ok(&cluster, &["forget", "--rack", "1"]).contains("is lost already"));
    // The old region may not come back.
    let memory = format!("shm:{}?size=64M", cluster.regions[1].display());
    let words = ["daemon", "--rack", "1", "--memory", &memory];
    let (code, _, err) = command(&cluster, &words);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("error forgotten "), "{err}");
    let (code, _, err) = command(&cluster, &["forget", "--rack", "9"]);
    assert!(code == 1 && err.starts_with("error no-such-rack "), "{err}");
}

#[test]
fn a_host_that_holds_nothing_cannot_be_fenced() {
    let cluster = Cluster::start("tcp");
    let (code, out, err) = command(&cluster, &["fence", "--rack", "0", "--host", "nosuch"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error config ") && err.contains("nosuch"), "{err}");
}

#[test]
fn the_commands_show_examples_and_refuse_what_makes_no_sense() {
    for word in ["racks", "drain", "undrain", "forget"] {
        let (code, out, _) = told(&run(&["help", word]));
        assert!(code == 0 && out.contains("Examples:"), "{out}");
    }
    for words in [
        &["drain"][..],
        &["drain", "--rack", "1", "--wait", "--no-wait"],
        &["drain", "--rack", "1", "--no-wait", "--timeout", "1"],
        &["forget", "--rack", "x"],
    ] {
        assert_eq!(told(&run(words)).0, 2, "{words:?}");
    }
}

#[test]
fn a_client_that_has_its_quota_gets_no_more_and_others_do() {
    let mut cluster = Cluster::start("tcp");
    assert_eq!(cluster.daemons[0].terminate(), Some(0));
    let memory = format!("shm:{}", cluster.regions[0].display());
    let words = ["daemon", "--rack", "0", "--memory", &memory, "--client-quota", "4M"];
    cluster.daemons[0] = Server::start(&[&words[..], &["--master", &cluster.master.addr]].concat());
    let (code, out, err) = cluster.shell(0, "alloc 2M; alloc 2M; alloc 64");
    assert_eq!((code, out.lines().count()), (1, 2), "{out}");
    assert!(err.starts_with("error quota ") && err.contains("--client-quota"), "{err}");
    // The next process has its own, and another rack has no limit.
    cluster.ok(0, "alloc 2M; alloc 2M");
    cluster.ok(1, "alloc 8M");
    let stats: serde_json::Value =
        serde_json::from_str(&cluster.ok(1, "stats --json")).expect("JSON");
    let daemon = &stats["racks"][0]["daemon"];
    assert_eq!(daemon["client_quota_bytes"], 4 << 20);
    assert_eq!(daemon["client_held_bytes_max"], 4 << 20);
    assert_eq!(daemon["answers"]["refused"]["quota"], 1);
    assert!(ok(&cluster, &["daemon", "--help"]).contains("--client-quota"));
}

/// The program as a process of user 65534 (`nobody`) runs it: copied to where that user finds it,
/// by a process of its own, since a file that is open for writing in what another test forks from
/// this one at that moment cannot be executed.
fn as_nobody(dir: &Dir) -> std::process::Command {
    let program = dir.file("rackpool");
    let copy = [env!("CARGO_BIN_EXE_rackpool"), &program];
    assert!(std::process::Command::new("cp").args(copy).status().unwrap().success());
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(std::path::Path::new(&program).parent().unwrap(), open).unwrap();
    let mut command = std::process::Command::new(&program);
    command.current_dir("/").env_clear().uid(65534).gid(65534);
    command
}

/// What such a process gets of a shell.
fn shell_as_nobody(cluster: &Cluster, command: &str) -> (i32, String, String) {
    let dir = Dir::new();
    let mut shell = as_nobody(&dir);
    shell.args(["shell", "--rack", "0", "--master", &cluster.master.addr, "-c", command]);
    told(&shell.output().expect("it runs as another user"))
}

fn may_be_others() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("NOT TESTED: another user, because only root starts processes of others");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs as root");
    }
    is_root
}

#[test]
fn who_is_not_on_the_list_is_denied_and_who_is_uses_the_memory() {
    if !may_be_others() {
        return;
    }
    let mut cluster = Cluster::start("tcp");
    let (code, out, err) = shell_as_nobody(&cluster, "alloc 64");
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error denied ") && err.contains("--allow-user 65534"), "{err}");
    let restart = |cluster: &mut Cluster, user: &str| {
        assert_eq!(cluster.daemons[0].terminate(), Some(0));
        let memory = format!("shm:{}", cluster.regions[0].display());
        let words = ["daemon", "--rack", "0", "--memory", &memory, "--allow-user", user];
        let words = [&words[..], &["--master", &cluster.master.addr]].concat();
        cluster.daemons[0] = Server::start(&words);
    };
    for user in ["65534", "nobody"] {
        restart(&mut cluster, user);
        let (code, out, err) = shell_as_nobody(&cluster, "put shared text:here; get shared");
        assert_eq!((code, out.as_str()), (0, "ok\nhere"), "{err}");
    }
    assert_eq!(cluster.ok(0, "get shared"), "here");
    // Another one is still denied, and an unknown name is no user.
    restart(&mut cluster, "65533");
    assert_eq!(shell_as_nobody(&cluster, "get shared").0, 1);
    let words = ["daemon", "--rack", "9", "--memory", "heap?size=16M", "--allow-user", "no-such"];
    let (code, _, err) = told(&run(&words));
    assert_eq!((code, err.contains("no-such")), (2, true), "{err}");
}

#[test]
fn a_daemon_of_another_user_is_trusted_only_if_its_user_is_named() {
    if !may_be_others() {
        return;
    }
    let (cluster, dir) = (Cluster::start("tcp"), Dir::new());
    let mut daemon = as_nobody(&dir);
    let words = ["daemon", "--rack", "7", "--memory", "heap?size=16M"];
    daemon.args(words).args(["--master", &cluster.master.addr]).stdout(Stdio::piped());
    let mut daemon = Held(daemon.stderr(Stdio::null()).spawn().expect("it runs"));
    let mut ready = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready"), "{ready}");
    let shell = |user: Option<&str>| {
        let mut shell = crate::common::rackpool();
        shell.args(["shell", "--rack", "7", "--master", &cluster.master.addr, "-c", "alloc 64"]);
        shell.envs(user.map(|user| ("RACKPOOL_DAEMON_USER", user)));
        told(&shell.output().unwrap())
    };
    for user in [None, Some("65533")] {
        let (code, _, err) = shell(user);
        assert!(code == 1 && err.starts_with("error denied "), "{err}");
        assert!(err.contains("RACKPOOL_DAEMON_USER"), "{err}");
    }
    let (code, out, err) = shell(Some("65534"));
    assert!(code == 0 && !out.is_empty(), "{err}");
}
