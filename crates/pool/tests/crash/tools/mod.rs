//! Real processes for the tests that kill and stop them: a master, the daemons of two racks on
//! files in `/dev/shm`, and workers under load. Each child is this test binary, started again
//! with a role in its environment ([`child_process`]). Whatever is started here is ended by its own
//! process id when its owner is dropped, and the files go with the [`Stage`].

pub mod ledger;
pub mod load;
pub mod locker;
pub mod mover;
pub mod objects;
pub mod rows;
pub mod stage;
pub mod worker;
pub mod writer;

use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::MasterOptions;
use rackpool_mem::log::{self, LogFormat};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a child is to be.
pub const ROLE: &str = "RACKPOOL_CRASH_ROLE";
/// Arguments of the role, `;` between them.
pub const ARGS: &str = "RACKPOOL_CRASH_ARGS";

/// How long anything that is not itself measured may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tests share two cores with their children: two with busy children run at a time …
pub fn busy() -> Turn {
    Turn::take(TURNS / 2)
}

/// … or in place of one of them two that mostly wait, for a lease or a child that is stopped.
pub fn waiting() -> Turn {
    Turn::take(1)
}

const TURNS: usize = 4;

static TAKEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Given back when it is dropped.
pub struct Turn(usize);

impl Turn {
    fn take(turns: usize) -> Self {
        let taken = TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = TAKEN.1.wait_while(taken, |taken| *taken + turns > TURNS);
        *wait.unwrap_or_else(PoisonError::into_inner) += turns;
        Self(turns)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        TAKEN.1.notify_all();
    }
}

/// The entry of every child; returns at once in the test process itself.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let args = std::env::var(ARGS).unwrap_or_default();
    let args: Vec<&str> = args.split(';').collect();
    log::start(log::parse_filter("info").expect("a level"), LogFormat::Text);
    // The parent may be killed itself, and a stopped child reads nothing.
    let signal = Some(Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal).expect("the kernel knows SIGKILL");
    let result = match role.as_str() {
        "master" => master(&args),
        "daemon" => daemon(&args),
        "worker" => worker::run(&args),
        "toucher" => worker::touch(&args),
        "counter" => locker::count(&args),
        "holder" => locker::hold(&args),
        "mover" => mover::run(&args),
        "rows" => rows::run(&args),
        "objects" => objects::run(&args),
        "writer" => writer::run(&args),
        other => {
            crate::software::child(other, &args);
            Ok(())
        }
    };
    match result {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            say(&format!("e start {error}"));
            std::process::exit(1);
        }
    }
}

/// One line to the parent, in one system call: it arrives whole or not at all.
pub fn say(line: &str) {
    let line = format!("@{line}\n");
    std::io::stdout().write_all(line.as_bytes()).and_then(|()| std::io::stdout().flush()).ok();
}

/// Ends this process when the parent closes our input.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
}

fn master(args: &[&str]) -> Result<(), String> {
    end_with_parent();
    let [listen, state] = args else { panic!("{args:?}") };
    let options = MasterOptions::new(*listen, *state);
    rackpool::master::run(&options, &|| false, |addr| say(&format!("ready {addr}")))
        .map_err(|error| format!("master {error}"))
}

fn daemon(args: &[&str]) -> Result<(), String> {
    end_with_parent();
    let [rack, master, memory, shard, shards, policy] = args else { panic!("{args:?}") };
    let number = |text: &str| text.parse::<u16>().expect("a number");
    let options = DaemonOptions::new(number(rack), master, memory);
    let mut options = options.shard(number(shard), number(shards));
    options.session_grace_ms = SESSION_GRACE_MS;
    options.left_grace_ms = LEFT_GRACE_MS;
    options.migration = policy.parse().expect("a policy");
    // Some of these tests want less memory than the region has.
    options.overcommit = true;
    DaemonServer::run(options, |addr| say(&format!("ready {addr}")))
        .map(drop)
        .map_err(|error| format!("{} {error}", error.code()))
}

/// How long the daemons of these tests keep the session of a remote client that is gone, ms:
/// longer than any restart here, short enough to be waited for.
pub const SESSION_GRACE_MS: u64 = 5_000;

/// How long they go on for clients of their host when their rack has left, ms.
const LEFT_GRACE_MS: u64 = 300;

/// A child process. Killed and waited for when it is dropped.
pub struct Proc {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: std::sync::Arc<Mutex<String>>,
    pub name: String,
    stopped: bool,
}

impl Proc {
    /// Starts this binary again in a role.
    pub fn start(name: &str, role: &str, args: &[String]) -> Proc {
        let binary = std::env::current_exe().expect("a test knows its binary");
        let mut child = Command::new(binary)
            .args(["--exact", "tools::child_process", "--nocapture", "--test-threads=1", "-q"])
            .env(ROLE, role)
            .env(ARGS, args.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a test can start itself");
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // What the test harness itself prints has no mark.
                if let Some(line) = line.strip_prefix('@')
                    && send.send(line.to_string()).is_err()
                {
                    return;
                }
            }
        });
        let errors = std::sync::Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (kept, label) = (std::sync::Arc::clone(&errors), name.to_string());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if std::env::var_os("RACKPOOL_CRASH_VERBOSE").is_some() || line.contains("panicked")
                {
                    eprintln!("[{label}] {line}");
                }
                let mut kept = kept.lock().expect("no thread panics under it");
                // Enough for every check; a flood is not kept.
                if kept.len() < 1 << 20 {
                    kept.push_str(&line);
                    kept.push('\n');
                }
            }
        });
        let stdin = child.stdin.take();
        Proc { child, stdin, lines, errors, name: name.into(), stopped: false }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line, or `None` at the end of its output.
    pub fn line(&self, patience: Duration) -> Option<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} says nothing for {patience:?}; stderr: {}", self.name, self.stderr())
            }
        }
    }

    /// The next line if there is one.
    pub fn try_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Waits for its `ready`; what it is ready at.
    pub fn ready(&self) -> Result<String, String> {
        match self.line(PATIENCE) {
            Some(line) => match line.strip_prefix("ready ") {
                Some(addr) => Ok(addr.into()),
                None => Err(line),
            },
            None => Err(format!("ended without a word; stderr: {}", self.stderr())),
        }
    }

    /// One line to it.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("it reads its input");
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        self.errors.lock().expect("no thread panics under it").clone()
    }

    /// Waits until it has said something on its standard error.
    pub fn wait_stderr(&self, text: &str) {
        wait_until(text, PATIENCE, || (!self.stderr().contains(text)).then(|| self.stderr()));
    }

    /// `kill -9`; it is gone when this returns.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    pub fn pause(&mut self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).expect("it is our child");
        self.stopped = true;
        // The signal may take a moment, in which its threads go on.
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_until("all threads are stopped", PATIENCE, || {
            let running =
                std::fs::read_dir(&tasks).expect("it is our child").flatten().find(|task| {
                    let stat =
                        std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                    // The state is behind the name, which is in parentheses.
                    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('T'))
                });
            running.map(|task| format!("{} runs", task.path().display()))
        });
    }

    pub fn resume(&mut self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).expect("it is our child");
        self.stopped = false;
    }

    /// Asks it to stop as an operator would.
    pub fn terminate(&self) {
        rustix::process::kill_process(self.pid(), Signal::TERM).expect("it is our child");
    }

    /// Waits for its end; its exit code.
    pub fn exit_code(&mut self, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code();
            }
            let late = Instant::now() >= deadline;
            assert!(!late, "{} does not end; stderr: {}", self.name, self.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // What it said last is still being read.
            std::thread::sleep(Duration::from_millis(100));
        }
        if std::thread::panicking() && !self.stderr().is_empty() {
            let text = self.stderr();
            let tail: Vec<&str> = text.lines().rev().take(20).collect();
            eprintln!("--- {} ---", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A small generator with a printed seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(1000 * from + self.below(1000 * (to - from)))
    }
}

/// The seed of a run: `RACKPOOL_CRASH_SEED`, or a new one; printed in any case.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("RACKPOOL_CRASH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| rackpool_mem::process::random_u64().expect("random") >> 32);
    eprintln!("{test}: RACKPOOL_CRASH_SEED={seed}");
    seed
}

/// Waits until `done` holds; `what` says what was waited for in vain.
pub fn wait_until(what: &str, patience: Duration, mut done: impl FnMut() -> Option<String>) {
    let deadline = Instant::now() + patience;
    while let Some(missing) = done() {
        assert!(Instant::now() < deadline, "{what}, in vain for {patience:?}: {missing}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
