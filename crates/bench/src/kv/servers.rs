//! The servers of `bench kv`: processes of their own with one serving thread each, on free ports of
//! the loopback, ended by their own ids.

use crate::run::{BenchError, io_error};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start.
const WITHIN: Duration = Duration::from_secs(20);

/// The servers that ours is measured beside: programs, found as a shell finds them.
#[derive(Clone, Debug)]
pub struct PeerPrograms {
    /// Redis, or one that is started and spoken to like it.
    pub redis: PathBuf,
    pub memcached: PathBuf,
}

/// What a server may take.
#[derive(Clone, Copy)]
pub struct ServerLimits {
    pub memory_mib: u64,
    pub connections: usize,
}

/// A server; it ends with this.
pub struct ServerProcess {
    child: Child,
    /// Where it serves memcached's protocols.
    pub memcached: Option<SocketAddr>,
    pub resp: Option<SocketAddr>,
    /// The name of HERD's control socket.
    pub herd: Option<String>,
    /// The address of HERD's fabric listener.
    pub herd_fabric: Option<SocketAddr>,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcess {
    /// A server with no address known yet.
    fn of(child: Child) -> ServerProcess {
        ServerProcess { child, memcached: None, resp: None, herd: None, herd_fabric: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        let failed =
            |source: io::Error| BenchError::Io { what: "stopping a server".into(), source };
        kill_process(Pid::from_child(&self.child), signal).map_err(|errno| failed(errno.into()))
    }

    /// Where it serves one of the protocols.
    ///
    /// # Panics
    /// If it does not.
    pub fn address(&self, resp: bool) -> SocketAddr {
        let address = if resp { self.resp } else { self.memcached };
        address.expect("a figure asks only servers that understand it")
    }

    /// Memory of the process that is there, bytes.
    pub fn resident_bytes(&self) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/statm", self.pid());
        let text = fs::read_to_string(&path).map_err(io_error(path))?;
        let pages = text.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok());
        Ok(pages.unwrap_or(0) * rustix::param::page_size() as u64)
    }

    /// Bytes that it has had written to devices.
    pub fn written_bytes(&self) -> Result<u64, BenchError> {
        written_bytes(&self.pid().to_string())
    }

    /// CPU time of all its threads so far, nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64, BenchError> {
        let directory = format!("/proc/{}/task", self.pid());
        let failed = |source| BenchError::Io { what: directory.clone(), source };
        let mut sum = 0;
        for task in fs::read_dir(&directory).map_err(failed)? {
            let path = task.map_err(failed)?.path().join("schedstat");
            // A thread may end between listing and reading.
            let text = fs::read_to_string(path).unwrap_or_default();
            let first = text.split_ascii_whitespace().next();
            sum += first.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }
}

/// Bytes that a process has had written to devices.
pub fn written_bytes(process: &str) -> Result<u64, BenchError> {
    let path = format!("/proc/{process}/io");
    let text = fs::read_to_string(&path).map_err(io_error(path))?;
    let written = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(written.and_then(|number| number.parse().ok()).unwrap_or(0))
}

/// Servers that stand still as long as this lives. All share a core, so what one does without
/// requests would else be taken for a slowness of the one that is measured: memcached's own
/// threads use up to 98 ms in the second after many values came.
pub struct Still<'s>(Vec<&'s ServerProcess>);

impl<'s> Still<'s> {
    pub fn hold(servers: &[&'s ServerProcess]) -> Result<Self, BenchError> {
        let still = Self(servers.to_vec());
        for server in servers {
            server.signal(Signal::STOP)?;
        }
        Ok(still)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        for server in &self.0 {
            // One that has ended needs none.
            let _ = server.signal(Signal::CONT);
        }
    }
}

fn start(program: &Path, command: &mut Command, stdout: Stdio) -> Result<Child, BenchError> {
    let command = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    command.spawn().map_err(|source| BenchError::Io { what: starting(program), source })
}

fn starting(program: &Path) -> String {
    let hint =
        if program.components().count() > 1 { "" } else { " (cargo xtask deps installs it)" };
    format!("starting {}{hint}", program.display())
}

/// What a peer says that it is, such as `memcached 1.6.18`.
pub fn version(program: &Path) -> Result<String, BenchError> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|source| BenchError::Io { what: starting(program), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default();
    // Redis goes on with how it was built.
    Ok(line.split(" sha=").next().unwrap_or_default().trim().to_owned())
}

pub fn ours(
    command: &mut dyn FnMut(&[&str]) -> Command,
    limits: ServerLimits,
    more: &[&str],
) -> Result<ServerProcess, BenchError> {
    let (memory, connections) = (format!("{}m", limits.memory_mib), limits.connections.to_string());
    let words = ["--memory", &memory, "--threads", "1", "--max-connections", &connections];
    let listeners = ["--memcached", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let random = rackpool_mem::process::random_u64().map_err(io_error("random numbers"))?;
    let herd = format!("rackpool/bench/{random:016x}");
    let fabric = ["--herd-listen", "127.0.0.1:0"];
    let words = [&words[..], &listeners, &["--herd", &herd], &fabric, more].concat();
    let child = start(Path::new("our server"), &mut command(&words), Stdio::piped())?;
    let mut running = ServerProcess::of(child);
    running.herd = Some(herd);
    let stdout = running.child.stdout.take().expect("it is piped");
    let mut line = String::new();
    let silent = |source| BenchError::Io { what: "our server's address".into(), source };
    BufReader::new(stdout).read_line(&mut line).map_err(silent)?;
    let addr = |name: &str| {
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok())
    };
    (running.memcached, running.resp) = (addr("memcached="), addr("resp="));
    running.herd_fabric = addr("herd-fabric=");
    if running.memcached.is_none() || running.resp.is_none() {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("it said `{line}`"));
        return Err(silent(source));
    }
    Ok(running)
}

pub fn memcached(program: &Path, limits: ServerLimits) -> Result<ServerProcess, BenchError> {
    memcached_with(program, limits, &["-u", "nobody"])
}

/// As [`memcached`], with these further words.
pub fn memcached_with(
    program: &Path,
    limits: ServerLimits,
    more: &[&str],
) -> Result<ServerProcess, BenchError> {
    let (addr, port) = free_port()?;
    let ServerLimits { memory_mib, connections } = limits;
    let words = format!("-l 127.0.0.1 -U 0 -m {memory_mib} -c {connections} -t 1");
    let mut command = Command::new(program);
    command.args(words.split(' ')).args(["-p", &port]).args(more);
    let mut running = ServerProcess::of(start(program, &mut command, Stdio::null())?);
    running.memcached = Some(addr);
    ready("memcached", running, addr)
}

/// Limited in its memory only if it has a policy for what goes then.
pub fn redis(
    program: &Path,
    limits: ServerLimits,
    policy: Option<&str>,
) -> Result<ServerProcess, BenchError> {
    let (addr, port) = free_port()?;
    let (memory, clients) = (format!("{}mb", limits.memory_mib), limits.connections.to_string());
    let mut command = Command::new(program);
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--maxclients", &clients]);
    if let Some(policy) = policy {
        command.args(["--maxmemory", &memory, "--maxmemory-policy", policy]);
    }
    let mut running = ServerProcess::of(start(program, &mut command, Stdio::null())?);
    running.resp = Some(addr);
    ready("redis-server", running, addr)
}

fn free_port() -> Result<(SocketAddr, String), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0");
    let addr = listener.and_then(|listener| listener.local_addr());
    let addr = addr.map_err(|source| BenchError::Io { what: "a free port".into(), source })?;
    Ok((addr, addr.port().to_string()))
}

fn ready(end: &str, running: ServerProcess, addr: SocketAddr) -> Result<ServerProcess, BenchError> {
    let start = Instant::now();
    while start.elapsed() < WITHIN {
        if TcpStream::connect(addr).is_ok() {
            return Ok(running);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(BenchError::Silent { end: end.into(), waited_s: WITHIN.as_secs() })
}
