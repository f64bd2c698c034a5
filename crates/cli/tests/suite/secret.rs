//! A master and two daemons as real processes that listen at an address which is not a loopback one
//! and have a secret: a client that has it works with them, also after a kill; others are `denied`.

use crate::common::{Dir, Server, WITHIN, rackpool, run, told, unique};
use rackpool_cache::herd::Client;
use rackpool_fabric::secret::Secret;
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

/// Runs the named test again in a network namespace with [`ADDRESS`] on its loopback device;
/// `false` if this machine does not let us make one.
fn runs_in_its_own_network(test: &str) -> bool {
    let set_up =
        format!("ip link set lo up && ip addr add {ADDRESS}/32 dev lo && exec \"$0\" \"$@\"");
    let own = std::env::current_exe().expect("it runs");
    let copy = Command::new("unshare")
        .args(["--net", "--map-root-user", "sh", "-c", &set_up])
        .arg(own)
        .args(["--exact", &format!("secret::{test}"), "--nocapture"])
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

/// A master and the daemons of two racks at one address, all with a secret.
struct Pool {
    daemons: Vec<Server>,
    master: Server,
    listen: String,
    /// Files with the pool's secret, another one, one that all users may read, and the pool's where
    /// what travels is encrypted, or not if it is.
    files: [String; 4],
    regions: Regions,
    _dir: Dir,
}

impl Pool {
    fn start(address: &str, encrypts: bool) -> Self {
        let (dir, listen) = (Dir::new(), format!("{address}:0"));
        let said =
            |encrypts, key| if encrypts { format!("encrypt:{key}\n") } else { format!("{key}\n") };
        let (key, other) = ("0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeX");
        let files = [
            ("ours", said(encrypts, key), 0o600),
            ("other", said(encrypts, other), 0o600),
            ("open", said(encrypts, key), 0o644),
            ("otherwise", said(!encrypts, key), 0o600),
        ];
        let files = files.map(|(name, text, mode)| secret_file(&dir, name, text.as_bytes(), mode));
        let state = dir.file("state");
        let words = ["--listen", &listen, "--state", &state, "--secret-file", &files[0]];
        let master = Server::start(&[&["master"], &words[..]].concat());
        let regions = Regions(unique("secret"));
        let mut pool = Self { daemons: Vec::new(), master, listen, files, regions, _dir: dir };
        pool.daemons = (0..2).map(|rack| pool.daemon(rack)).collect();
        assert!(pool.daemons.iter().all(|daemon| daemon.addr.starts_with(address)));
        pool
    }

    fn daemon_words(&self, rack: usize, secret: &[&str]) -> Vec<String> {
        let (rack, memory) = (rack.to_string(), self.regions.memory(rack));
        let words = ["daemon", "--rack", &rack, "--master", &self.master.addr];
        let more = ["--memory", &memory, "--listen", &self.listen];
        [&words[..], &more, secret].concat().iter().map(|word| word.to_string()).collect()
    }

    fn daemon(&self, rack: usize) -> Server {
        let words = self.daemon_words(rack, &self.secret(0));
        Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn secret(&self, file: usize) -> [&str; 2] {
        ["--secret-file", &self.files[file]]
    }

    /// A command through a rack, which would wait ten minutes for a peer.
    fn shell(&self, rack: &str, secret: &[&str], command: &str) -> (i32, String, String) {
        let words = ["shell", "--rack", rack, "--master", &self.master.addr];
        let more = ["--timeout-ms", "600000", "-c", command];
        told(&run(&[&words[..], secret, &more].concat()))
    }
}

/// A client without the secret is told, long before it would give up waiting for a peer.
fn others_are_denied(pool: &Pool) {
    let (start, master) = (Instant::now(), pool.master.addr.as_str());
    for secret in [&pool.secret(1)[..], &[], &pool.secret(3)] {
        let (code, out, err) = pool.shell("0", secret, "get kept");
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error denied ") && err.contains("secret"), "{err}");
        let (code, _, err) = told(&run(&[&["racks", "--master", master][..], secret].concat()));
        assert_eq!((code, err.starts_with("error denied ")), (1, true), "{err}");
        // A third rack does not join.
        let words = pool.daemon_words(2, secret);
        let (code, _, err) = told(&run(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!((code, err.contains("error denied ")), (1, true), "{err}");
    }
    println!("nine refusals took {:?}", start.elapsed());
    assert!(start.elapsed() < WITHIN);
    let (code, _, err) = pool.shell("0", &pool.secret(2), "get kept");
    assert_eq!((code, err.starts_with("error config ")), (1, true), "{err}");
    assert!(err.contains("chmod 600"), "{err}");
}

#[test]
fn processes_with_the_secret_work_across_hosts_and_others_are_denied() {
    works("processes_with_the_secret_work_across_hosts_and_others_are_denied", false);
}

#[test]
fn processes_whose_secret_encrypts_work_across_hosts_and_others_are_denied() {
    works("processes_whose_secret_encrypts_work_across_hosts_and_others_are_denied", true);
}

/// A pool of real processes in a network of its own.
fn works(test: &str, encrypts: bool) {
    let foreign = std::env::var(FOREIGN).ok();
    if foreign.is_none() && runs_in_its_own_network(test) {
        return;
    }
    let address = foreign.unwrap_or_else(|| {
        println!("NOT TESTED: a foreign address, because no network namespace is to be had");
        "127.0.0.1".into()
    });
    let mut pool = Pool::start(&address, encrypts);
    let put = pool.shell("1", &pool.secret(0), "put kept text:here");
    assert_eq!(put, (0, "ok\n".into(), String::new()));
    assert_eq!(pool.shell("0", &pool.secret(0), "get kept").1, "here");
    let racks = [&["racks", "--master", &pool.master.addr][..], &pool.secret(0)].concat();
    assert_eq!(told(&run(&racks)).0, 0);
    others_are_denied(&pool);

    // A client that lives through the kill of the other rack's daemon proves its secret again.
    let words = ["--rack", "0", "--master", &pool.master.addr, "--timeout-ms", "60000"];
    let mut living = Shell::start(&[&words[..], &pool.secret(0)].concat());
    let addr = living.says("alloc 64 rack:1");
    assert_eq!(living.says(&format!("write {addr} text:before")), "ok");
    pool.daemons[1].child.kill().unwrap();
    pool.daemons[1].child.wait().unwrap();
    pool.daemons[1] = pool.daemon(1);
    assert_eq!(living.says(&format!("read {addr} 6 text")), "before");
    assert_eq!(living.says(&format!("write {addr} text:after")), "ok");
    let read = pool.shell("1", &pool.secret(0), &format!("read {addr} 5 text"));
    assert_eq!(read.1.trim_end(), "after");

    let (_, stats, _) = pool.shell("0", &pool.secret(0), "stats --json");
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    // Three shells, and three commands that list racks.
    assert!(stats["master"]["refused"]["denied"].as_u64() >= Some(6), "{stats}");
}

#[test]
fn herds_door_with_a_secret_is_open_to_who_has_it_at_any_address() {
    let test = "herds_door_with_a_secret_is_open_to_who_has_it_at_any_address";
    let Ok(address) = std::env::var(FOREIGN) else {
        if runs_in_its_own_network(test) {
            return;
        }
        println!("no network of its own: on the loopback");
        return serve_herd("127.0.0.1");
    };
    let listen = format!("{address}:0");
    let (code, _, err) = told(&run(&["kv", "--memory", "32m", "--herd-listen", &listen]));
    assert!(code != 0 && err.starts_with("error denied "), "{code} {err}");
    serve_herd(&address);
}

fn serve_herd(address: &str) {
    let dir = Dir::new();
    let bytes = b"0123456789abcdef0123456789abcdef";
    let (file, listen) = (secret_file(&dir, "ours", bytes, 0o600), format!("{address}:0"));
    let words = ["kv", "--memory", "32m", "--herd-listen", &listen, "--secret-file", &file];
    let server = Server::start(&words);
    let door = server.addr.split_whitespace().find_map(|word| word.strip_prefix("herd-fabric="));
    let door = door.unwrap().parse().unwrap();
    let secret = Secret::new(bytes).unwrap();
    let mut client = Client::connect_at(door, 0, Some(secret)).unwrap();
    client.put(b"long", &[7; 70_000], 1, 0).unwrap();
    let mut value = Vec::new();
    assert_eq!(client.get(b"long", &mut value).unwrap(), Some(1));
    assert!(value == [7; 70_000]);
    let other = Secret::new(&[9; 32]).unwrap();
    assert_eq!(Client::connect_at(door, 0, Some(other)).err().unwrap().code(), "gone");
}
