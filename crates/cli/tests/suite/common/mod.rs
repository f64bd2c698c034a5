//! The real binary for tests: one command, or a cluster of real processes that leaves nothing.

#![allow(dead_code)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long anything here may take: ten times what it needs on a busy machine.
pub const WITHIN: Duration = Duration::from_secs(60);

pub fn rackpool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackpool"));
    for variable in ["MASTER", "RACK", "FABRIC", "CONFIG", "REQUEST_TIMEOUT_MS", "DAEMON_USER"] {
        command.env_remove(format!("RACKPOOL_{variable}"));
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn run(words: &[&str]) -> Output {
    rackpool().args(words).output().expect("the binary runs")
}

/// Exit code, standard output and standard error as text.
pub fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("not killed"), text(&output.stdout), text(&output.stderr))
}

/// Whether it may act as another user; in CI it has to.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this test needs root");
        println!("NOT TESTED: needs root");
    }
    is_root
}

/// Whether a process runs; one that ended may wait to be reaped by its new parent.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Children of a process, and theirs.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while next < found.len() {
        found.extend(children(found[next]));
        next += 1;
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    tasks.flat_map(of_task).collect()
}

/// Directories in /dev/shm that a process has as its own.
pub fn own_directories(pid: u32) -> Vec<PathBuf> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let paths = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let paths = paths.filter(|path| path.starts_with("/dev/shm") && path.ends_with("lock"));
    paths.filter_map(|path| path.parent().map(Path::to_owned)).collect()
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A name that no other test has.
pub fn unique(what: &str) -> String {
    // Relaxed: only the number counts, and an add gives each one once.
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("rackpool-clitest-{}-{number}-{what}", std::process::id())
}

/// A directory that goes with the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(unique("dir"));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("temporary paths are text").to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that ends with the test.
pub struct Held(pub Child);

impl Held {
    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }

    /// Its exit code; none if a signal ended it.
    pub fn code_soon(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < WITHIN {
            if let Some(status) = self.0.try_wait().expect("our own child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Server {
    pub child: Child,
    pub addr: String,
}

impl Server {
    pub fn start(words: &[&str]) -> Self {
        Server::by(rackpool().args(words).stderr(Stdio::null()))
    }

    /// The server that this command starts.
    pub fn by(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let output = child.stdout.take().expect("it was asked for");
        let (sender, ready) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = ready.recv_timeout(WITHIN).unwrap_or_default();
        let addr = line.strip_prefix("ready ").map(|addr| addr.trim().to_owned());
        if addr.is_none() {
            let _ = child.kill();
        }
        Self { child, addr: addr.unwrap_or_else(|| panic!("{command:?} said {line:?}")) }
    }

    /// Asks it to stop and returns its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our own child");
        let start = Instant::now();
        while start.elapsed() < WITHIN {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not stop");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A master and two racks.
pub struct Cluster {
    pub daemons: Vec<Server>,
    pub master: Server,
    pub regions: Vec<PathBuf>,
    pub dir: Dir,
}

impl Cluster {
    pub fn start(fabric: &str) -> Self {
        let dir = Dir::new();
        let state = dir.file("state");
        let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--state", &state]);
        let name = unique("rack");
        let region = |rack: u16| PathBuf::from(format!("/dev/shm/{name}{rack}"));
        let mut cluster =
            Self { daemons: Vec::new(), regions: (0..2).map(region).collect(), master, dir };
        for rack in 0..2 {
            let daemon = cluster.daemon(rack, fabric);
            cluster.daemons.push(daemon);
        }
        cluster
    }

    pub fn daemon(&self, rack: u16, fabric: &str) -> Server {
        let memory = format!("shm:{}?size=64M", self.regions[usize::from(rack)].display());
        let (rack, master) = (rack.to_string(), &self.master.addr);
        Server::start(&[
            "daemon",
            "--rack",
            &rack,
            "--master",
            master,
            "--memory",
            &memory,
            "--fabric",
            fabric,
            // Longer than any restart here, short enough to be waited for.
            "--session-grace-ms",
            "5000",
        ])
    }

    pub fn shell(&self, rack: u16, commands: &str) -> (i32, String, String) {
        let rack = rack.to_string();
        told(&run(&["shell", "--rack", &rack, "--master", &self.master.addr, "-c", commands]))
    }

    /// Commands that succeed; what they said, without the last line end.
    pub fn ok(&self, rack: u16, commands: &str) -> String {
        let (code, out, err) = self.shell(rack, commands);
        assert_eq!((code, err.as_str()), (0, ""), "{commands}: {out}");
        out.trim_end_matches('\n').to_owned()
    }

    pub fn script(&self, rack: u16, text: &str) -> (i32, String, String) {
        let mut child = rackpool()
            .args(["shell", "--rack", &rack.to_string(), "--master", &self.master.addr])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut input = child.stdin.take().expect("it was asked for");
        // The shell may stop before it has read everything.
        let _ = input.write_all(text.as_bytes());
        drop(input);
        told(&child.wait_with_output().expect("our own child"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.daemons.clear();
        for region in &self.regions {
            let name = region.file_name().expect("it has a name").to_string_lossy().into_owned();
            for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&name) {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
    }
}
