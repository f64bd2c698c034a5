//! A master and two daemons as real processes that listen at an address which is not a loopback one
//! and have a secret: who has it works with them, also after a kill; who has not is `denied`.

mod common;

use common::{Dir, Server, WITHIN, rackpool, run, told, unique};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Says to a copy of this test that it runs in a network of its own, and at which address of it.
const FOREIGN: &str = "RACKPOOL_TEST_FOREIGN";
/// An address of the range for tests of networks, RFC 2544: no host has it.
const ADDRESS: &str = "198.18.0.1";
/// Exit code of a test that failed.
const TEST_FAILED: i32 = 101;

/// Runs the named test again in a network namespace whose loopback device has [`ADDRESS`] too;
/// `false` if this machine does not let us make one.
fn runs_in_its_own_network(test: &str) -> bool {
    let set_up = format!("ip link set lo up && ip addr add {ADDRESS}/32 dev lo && exec \"$0\" \"$@\"");
    let own = std::env::current_exe().expect("it runs");
    let copy = Command::new("unshare")
        .args(["--net", "--map-root-user", "sh", "-c", &set_up])
        .arg(own)
        .args(["--exact", test, "--nocapture"])
        .env(FOREIGN, ADDRESS)
        .output();
    let Ok(copy) = copy else { return false };
    let (said, errors) = (&copy.stdout, &copy.stderr);
    let text = [&said[..], errors].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_ne!(copy.status.code(), Some(TEST_FAILED), "{}{}", text[0], text[1]);
    println!("{}{}", text[0], text[1]);
    copy.status.success()
}

/// Files in /dev/shm that go with the test.
struct Regions(String);

impl Regions {
    fn memory(&self, rack: usize) -> String {
        format!("shm:/dev/shm/{}{rack}?size=32M", self.0)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.0) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A file with a secret.
fn secret_file(dir: &Dir, name: &str, bytes: &[u8], mode: u32) -> String {
    let path = PathBuf::from(dir.file(name));
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A shell that lives as long as this: one command in, its answer out.
struct Shell {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(words: &[&str]) -> Self {
        let mut command = rackpool();
        command.arg("shell").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn says(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn processes_with_the_secret_work_across_hosts_and_others_are_denied() {
    let test = "processes_with_the_secret_work_across_hosts_and_others_are_denied";
    let foreign = std::env::var(FOREIGN).ok();
    if foreign.is_none() && runs_in_its_own_network(test) {
        return;
    }
    let address = foreign.unwrap_or_else(|| {
        println!("no network namespace to be had: a loopback address stands for the foreign one");
        "127.0.0.1".into()
    });
    let listen = format!("{address}:0");
    let (dir, regions) = (Dir::new(), Regions(unique("secret")));
    let ours = secret_file(&dir, "ours", b"0123456789abcdef0123456789abcdef\n", 0o600);
    let other = secret_file(&dir, "other", b"0123456789abcdef0123456789abcdeX\n", 0o600);
    let state = dir.file("state");
    let master =
        Server::start(&["master", "--listen", &listen, "--state", &state, "--secret-file", &ours]);
    let at = master.addr.as_str();
    let daemon_words = |rack: usize, secret: Option<&str>| {
        let (rack, memory) = (rack.to_string(), regions.memory(rack));
        let words = ["daemon", "--rack", &rack, "--master", at, "--memory", &memory];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend(["--listen".into(), listen.clone()]);
        words.extend(secret.into_iter().flat_map(|file| ["--secret-file".into(), file.into()]));
        words
    };
    let daemon = |rack: usize| {
        let words = daemon_words(rack, Some(&ours));
        Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut daemons = [daemon(0), daemon(1)];
    assert!(daemons.iter().all(|daemon| daemon.addr.starts_with(&address)));

    // Both racks, over tcp, with the secret.
    let shell = |rack: &str, secret: &[&str], command: &str| {
        let words = ["shell", "--rack", rack, "--master", at, "--timeout-ms", "600000"];
        told(&run(&[&words[..], secret, &["-c", command]].concat()))
    };
    let good = ["--secret-file", ours.as_str()];
    assert_eq!(shell("1", &good, "put kept text:here"), (0, "ok\n".into(), String::new()));
    assert_eq!(shell("0", &good, "get kept").1, "here");
    let (code, out, err) = told(&run(&["racks", "--master", at, good[0], good[1]]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");

    // Who has not the secret hears so, long before the ten minutes that it would wait for a peer.
    let start = Instant::now();
    let (wrong, none): (&[&str], &[&str]) = (&["--secret-file", &other], &[]);
    for secret in [wrong, none] {
        let (code, out, err) = shell("0", secret, "get kept");
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error denied ") && err.contains("secret"), "{err}");
        let (code, _, err) = told(&run(&[&["racks", "--master", at][..], secret].concat()));
        assert_eq!((code, err.split(' ').nth(1)), (1, Some("denied")), "{err}");
    }
    // A third rack does not join with another secret, or without: not even its address may be.
    for secret in [Some(other.as_str()), None] {
        let words = daemon_words(2, secret);
        let (code, _, err) = told(&run(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!((code, err.contains("error denied ")), (1, true), "{err}");
    }
    println!("six refusals took {:?}", start.elapsed());
    assert!(start.elapsed() < WITHIN);
    let open = secret_file(&dir, "open", &[b'k'; 32], 0o644);
    let (code, _, err) = shell("0", &["--secret-file", &open], "get kept");
    assert_eq!((code, err.contains("error config ") && err.contains("chmod 600")), (1, true));

    // A client that lives through the kill of the other rack's daemon proves its secret again.
    let words = ["--rack", "0", "--master", at, "--timeout-ms", "60000", good[0], good[1]];
    let mut living = Shell::start(&words);
    let addr = living.says("alloc 64 rack:1");
    assert_eq!(living.says(&format!("write {addr} text:before")), "ok");
    daemons[1].child.kill().unwrap();
    daemons[1].child.wait().unwrap();
    daemons[1] = daemon(1);
    assert_eq!(living.says(&format!("read {addr} 6 text")), "before");
    assert_eq!(living.says(&format!("write {addr} text:after")), "ok");
    assert_eq!(shell("1", &good, &format!("read {addr} 5 text")).1, "after\n");

    let (_, stats, _) = shell("0", &good, "stats --json");
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!(stats["master"]["refused"]["denied"].as_u64() >= Some(4), "{stats}");
}
