//! Real processes out of our own executable: a master, rack daemons and clients for `demo`. In:
//! words of the command line. Out: running children that are gone when their owner is dropped,
//! and so are their files.
//!
//! A child ends when its standard input ends, so it ends with us even if we are killed. Dropping
//! a [`Cluster`] waits for its children; what does not end by itself is killed and reaped.
//!
//! Ownership rule: [`Residue`] is made before the first child and dropped after the last one.

use crate::environment;
use crate::failure::{Failure, Result};
use rackpool::{Emulate, FabricChoice};
use rackpool_mem::temporary::{self, TemporaryDir};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a server may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a child may take to end by itself.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How often children are looked for and killed, until there are none.
const END_ROUNDS_MAX: u32 = 8;
/// Processes that are searched for children.
const DESCENDANTS_MAX: usize = 4096;
/// Characters of a child's log that a failure shows.
const LOG_TAIL_CHARS: usize = 600;

/// One child, and a thread that reads its lines.
pub struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

/// A line of a child's standard output, or its end.
pub type Line = (usize, Option<String>);

impl Process {
    /// Starts `rackpool WORDS`; its lines arrive at `lines` under `index`.
    pub fn start(
        name: &str,
        words: &[String],
        directory: &Path,
        index: usize,
        lines: Sender<Line>,
    ) -> Result<Self> {
        let own = std::env::current_exe().map_err(|e| Failure::io("our own executable", &e))?;
        let log = directory.join(format!("{}.log", name.replace(' ', "-")));
        let file = File::create(&log).map_err(|error| Failure::file(&log, &error))?;
        let mut child = environment::clear(&mut Command::new(own))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(|error| Failure::io(format!("starting the {name}"), &error))?;
        let output = child.stdout.take().expect("standard output was asked for");
        let input = child.stdin.take();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if lines.send((index, Some(line))).is_err() {
                    return;
                }
            }
            // Without a receiver the line is not missed.
            let _ = lines.send((index, None));
        });
        Ok(Self { name: name.to_owned(), child, input, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn send(&mut self, line: &str) -> Result<()> {
        let name = &self.name;
        let gone = || Failure::new("peer-dead", format!("the {name} takes no more orders"));
        let input = self.input.as_mut().ok_or_else(gone)?;
        let sent = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        sent.map_err(|_| gone())
    }

    /// A failure that says how it ended, with the end of its log.
    pub fn died(&mut self) -> Failure {
        let end = match wait_for(&mut self.child, END_WITHIN) {
            Some(status) => status.to_string(),
            None => "it closed its output and hangs".to_owned(),
        };
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let skipped = text.chars().count().saturating_sub(LOG_TAIL_CHARS);
        let tail: String = text.chars().skip(skipped).collect();
        let last = tail.lines().next_back().unwrap_or_default();
        // A child that failed says so in the form in which we say it.
        if let Some((code, message)) = last.strip_prefix("error ").and_then(|l| l.split_once(' ')) {
            return Failure::new(code, format!("the {} ended: {message}", self.name));
        }
        Failure::new("peer-dead", format!("the {} ended ({end}): {}", self.name, tail.trim()))
    }

    /// Tells it to end and does not wait.
    pub fn release(&mut self) {
        drop(self.input.take());
    }

    /// Lets it end: by itself, or else by force. It is reaped when this returns.
    pub fn stop(&mut self) {
        self.release();
        if wait_for(&mut self.child, END_WITHIN).is_none() {
            // It may end between the two; then there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn wait_for(child: &mut Child, within: Duration) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < within => {
                std::thread::sleep(Duration::from_millis(2));
            }
            _ => return None,
        }
    }
}

/// Where regions, state and logs lie, all of which must not be left.
const BASE: &str = "/dev/shm";
/// What the names of regions begin with, before the rack.
const REGION: &str = "rack";

/// What must not be left: a temporary directory in shared memory with regions, state and logs.
pub struct Residue(TemporaryDir);

impl Residue {
    /// A new directory. What killed runs left goes.
    pub fn prepare() -> Result<Self> {
        let base = Path::new(BASE);
        let made = TemporaryDir::new(base, "demo").and_then(|directory| {
            // Children that outlive us for a moment still use what is in it.
            directory.share_with_children()?;
            Ok(Self(directory))
        });
        made.map_err(|error| Failure::file(base, &error))
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The region of a rack.
    pub fn region(&self, rack: u16) -> PathBuf {
        self.directory().join(format!("{REGION}{rack}"))
    }

    /// Files that are there of any region.
    pub fn regions(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let is_region =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(REGION);
        entries.filter(is_region).map(|entry| entry.path()).collect()
    }
}

/// What this process has left behind of its own: temporary directories with regions, children.
pub fn left_behind() -> Vec<String> {
    // Outputs that are being written are no residue.
    let directories = temporary::present().into_iter().filter(|path| path.is_dir());
    let files = directories.map(|path| path.display().to_string());
    let children = children_of("self").into_iter().map(|pid| format!("process {pid}"));
    files.chain(children).collect()
}

/// Kills all children with theirs and reaps them; another thread may start one meanwhile.
pub fn end_remaining() {
    for _ in 0..END_ROUNDS_MAX {
        let mut found = children_of("self");
        if found.is_empty() {
            return;
        }
        // A program that is recorded has children of its own.
        let mut next = 0;
        while next < found.len().min(DESCENDANTS_MAX) {
            found.extend(children_of(&found[next].to_string()));
            next += 1;
        }
        let found: Vec<Pid> = found.into_iter().filter_map(Pid::from_raw).collect();
        for pid in &found {
            // One that ended meanwhile is what is wanted.
            let _ = kill_process(*pid, Signal::KILL);
        }
        for pid in found {
            // Refused at once for children of children, which are not ours to reap.
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// Children of any thread of a process. Kernels may lack these files; then there is nothing to say.
fn children_of(process: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
    };
    tasks.flat_map(of_task).collect()
}

/// What a cluster consists of.
pub struct ClusterOptions {
    pub rack_bytes: u64,
    pub racks: u16,
    /// `tcp` or `shm`.
    pub fabric: &'static str,
    /// As after `--emulate`, if anything is emulated.
    pub emulate: Option<String>,
    /// As after `--migrate`.
    pub migrate: String,
    /// Page size, bytes; `None` for the default.
    pub page_bytes: Option<u64>,
}

impl ClusterOptions {
    /// `racks` racks of `rack_bytes` each.
    pub fn new(
        racks: u16,
        rack_bytes: u64,
        fabric: FabricChoice,
        emulate: Option<Emulate>,
    ) -> Self {
        let fabric = match fabric {
            FabricChoice::Shm => "shm",
            FabricChoice::Verbs => "verbs",
            _ => "tcp",
        };
        let emulate = emulate.filter(Emulate::is_on);
        let emulate = emulate.map(|e| format!("cxl={}ns,rdma={}ns", e.cxl_ns, e.rdma_ns));
        Self { rack_bytes, racks, fabric, emulate, migrate: "off".into(), page_bytes: None }
    }
}

/// A master and rack daemons. Dropped, all of them end.
pub struct Cluster {
    /// The daemons, by rack. First: they end before their master.
    pub daemons: Vec<Process>,
    pub master: Process,
    pub master_addr: String,
}

impl Cluster {
    /// Starts all and waits until each is ready.
    pub fn start(options: &ClusterOptions, residue: &Residue) -> Result<Self> {
        let directory = residue.directory();
        let state = directory.join("master");
        let words = [
            "master",
            "--listen",
            "127.0.0.1:0",
            "--exit-with-parent",
            "--state",
            &state.to_string_lossy(),
        ];
        let (mut master, lines) = start("master", &words.map(str::to_owned), directory)?;
        let master_addr = ready(&mut master, &lines)?;
        let mut starting = Vec::new();
        for rack in 0..options.racks {
            let words = daemon_words(options, rack, &master_addr, &residue.region(rack));
            starting.push(start(&format!("daemon of rack {rack}"), &words, directory)?);
        }
        let mut daemons = Vec::new();
        for (mut daemon, lines) in starting {
            ready(&mut daemon, &lines)?;
            daemons.push(daemon);
        }
        Ok(Self { daemons, master, master_addr })
    }
}

impl Cluster {
    pub fn server_ids(&self) -> Vec<u32> {
        let daemons = self.daemons.iter().map(Process::id);
        daemons.chain([self.master.id()]).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once rather than one after the other; the master outlives its daemons, which say
        // goodbye to it.
        self.daemons.iter_mut().for_each(Process::release);
        self.daemons.iter_mut().for_each(Process::stop);
        self.master.stop();
    }
}

fn daemon_words(options: &ClusterOptions, rack: u16, master: &str, region: &Path) -> Vec<String> {
    let mut memory = format!("shm:{}?size={}", region.display(), options.rack_bytes);
    if let Some(page_bytes) = options.page_bytes {
        memory.push_str(&format!("&pages={page_bytes}"));
    }
    let rack = rack.to_string();
    let mut words = vec![
        "daemon",
        "--rack",
        &rack,
        "--master",
        master,
        "--memory",
        &memory,
        "--fabric",
        options.fabric,
        "--migrate",
        &options.migrate,
        "--ephemeral",
        "--exit-with-parent",
    ];
    if let Some(emulate) = &options.emulate {
        words.extend(["--emulate", emulate]);
    }
    words.into_iter().map(str::to_owned).collect()
}

fn start(name: &str, words: &[String], directory: &Path) -> Result<(Process, Receiver<Line>)> {
    let (sender, lines) = channel();
    Ok((Process::start(name, words, directory, 0, sender)?, lines))
}

/// The address in a server's `ready ADDR`.
fn ready(process: &mut Process, lines: &Receiver<Line>) -> Result<String> {
    let start = Instant::now();
    loop {
        match lines.recv_timeout(READY_WITHIN.saturating_sub(start.elapsed())) {
            Ok((_, Some(line))) => {
                if let Some(addr) = line.strip_prefix("ready ") {
                    return Ok(addr.trim().to_owned());
                }
            }
            Ok((_, None)) | Err(RecvTimeoutError::Disconnected) => return Err(process.died()),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = READY_WITHIN.as_secs();
                let message = format!("the {} was not ready within {seconds} s", process.name());
                return Err(Failure::new("timeout", message));
            }
        }
    }
}

/// Client processes that take orders and report in lines of JSON.
pub struct Workers {
    processes: Vec<Process>,
    lines: Receiver<Line>,
}

impl Workers {
    /// Starts a client in each of `racks`.
    pub fn start(racks: &[u16], master: &str, fabric: &str, directory: &Path) -> Result<Self> {
        let (sender, lines) = channel();
        let mut processes = Vec::new();
        for (index, rack) in racks.iter().enumerate() {
            let rack = rack.to_string();
            let words = ["worker", "--rack", &rack, "--master", master, "--fabric", fabric];
            let name = format!("client {index} in rack {rack}");
            let words = words.map(str::to_owned);
            processes.push(Process::start(&name, &words, directory, index, sender.clone())?);
        }
        Ok(Self { processes, lines })
    }

    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// Gives an order to one of them.
    pub fn order(&mut self, index: usize, order: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(order).expect("orders are plain data");
        self.processes[index].send(&line).map_err(|failure| {
            // The reason is in its log rather than in the broken pipe.
            let died = self.processes[index].died();
            if died.code() == "peer-dead" { failure.with_hint(died.message()) } else { died }
        })
    }

    /// The next report of any of them; `within` bounds the silence.
    pub fn report<R: for<'de> Deserialize<'de>>(&mut self, within: Duration) -> Result<(usize, R)> {
        match self.lines.recv_timeout(within) {
            Ok((index, Some(line))) => {
                let report = serde_json::from_str(&line).map_err(|error| {
                    let name = self.processes[index].name();
                    Failure::new("protocol", format!("{name} said `{line}`: {error}"))
                })?;
                Ok((index, report))
            }
            Ok((index, None)) => Err(self.processes[index].died()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::new("peer-dead", "all client processes ended"))
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = within.as_secs();
                let message = format!("no client said anything for {seconds} s");
                Err(Failure::new("timeout", message))
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(Process::release);
        self.processes.iter_mut().for_each(Process::stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residue_is_gone_when_its_owner_is_and_two_have_nothing_in_common() {
        let (residue, other) = (Residue::prepare().unwrap(), Residue::prepare().unwrap());
        let path = residue.region(1).with_extension("meta");
        std::fs::write(&path, "x").unwrap();
        assert_eq!((residue.regions(), other.regions()), (vec![path.clone()], vec![]));
        assert!(left_behind().contains(&residue.directory().display().to_string()));
        drop(residue);
        assert!(!path.exists() && other.directory().exists());
    }
}
