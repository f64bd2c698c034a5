//! The agent of a host that shares a rack's memory with the host of the rack's daemon. Clients of
//! its host join it as they would join the daemon: it hands them the memory through descriptors of
//! its own, and tells the daemon, over the fabric, which clients come and, because only a host's
//! own kernel knows, which are gone. Accesses, rings and locks need no agent: they are in the
//! memory.
//!
//! | module | owns |
//! |---|---|
//! | `line` | the connection to the daemon: one message under way, the others wait |
//! | `clients` | control connections and processes of the host's clients |
//! | `run` | the loop between both |
//!
//! When the agent ends, clients go on with what they have mapped, and take their slots up again
//! with the next agent; what they want of the daemon waits until then.
//!
//! Source: DESIGN §2 (processes), §3 (liveness of other hosts).

mod clients;
mod line;
mod run;

use crate::clock;
use crate::daemon::io_error;
use crate::link::MasterLink;
use line::Line;
use rackpool_core::constants::REQUEST_TIMEOUT_MS_DEFAULT;
use rackpool_core::wire::{AgentEvent, AgentRequest, MasterCall, RackInfo, WIRE_VERSION};
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::secret::Secret;
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::process::Shutdown;
use run::Agent;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tracing::warn;

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The rack.
    pub rack: u16,
    /// Addresses of the master.
    pub master: Vec<String>,
    /// The rack's memory as this host names it, such as `dax:/dev/dax0.0`.
    pub memory: String,
    /// This host's name, which no other host of the rack has, and which it keeps when it is booted
    /// anew.
    pub name: String,
    /// Boot identity to go by instead of the kernel's, with [`crate::Options::host`] the same: for
    /// hosts that share a kernel, as containers do.
    pub host: Option<String>,
    /// What is proved to master and daemon, and they prove.
    pub secret: Option<Secret>,
    /// The RDMA device, if the daemon is reached by one; see [`crate::Options::verbs_device`].
    pub verbs_device: Option<String>,
    /// How long to wait for the daemon at the start, ms.
    pub join_timeout_ms: u64,
    /// Users of this host, by number, with access to the memory in addition to our own user and
    /// root.
    pub allowed_users: Vec<u32>,
    /// Where the counters are served over HTTP, if they are.
    pub metrics: Option<SocketAddr>,
    /// What readers of the counters have to send, see
    /// [`crate::daemon::DaemonOptions::metrics_token`].
    pub metrics_token: Option<Secret>,
}

impl AgentOptions {
    /// Options for a rack, a master (one address, or several separated by commas), the rack's
    /// memory and this host's name.
    pub fn new(rack: u16, master: &str, memory: &str, name: &str) -> Self {
        Self {
            rack,
            master: master.split(',').map(str::to_string).collect(),
            memory: memory.into(),
            name: name.into(),
            host: None,
            secret: None,
            verbs_device: None,
            join_timeout_ms: REQUEST_TIMEOUT_MS_DEFAULT,
            allowed_users: Vec::new(),
            metrics: None,
            metrics_token: None,
        }
    }

    fn master_link(&self) -> MasterLink {
        let mut master = MasterLink::new(self.master.clone());
        master.set_secret(self.secret.clone());
        master
    }
}

/// An agent in a thread of this process. Stops when it is dropped.
#[derive(Debug)]
pub struct AgentServer {
    control: String,
    metrics_addr: Option<SocketAddr>,
    stop: Arc<AgentStop>,
    thread: Option<JoinHandle<()>>,
}

/// How the loop is asked to end.
#[derive(Debug)]
struct AgentStop {
    requested: AtomicBool,
    wake: WakeEvent,
}

impl AgentStop {
    fn new() -> Result<Arc<Self>> {
        let wake = WakeEvent::new().map_err(|error| io_error("wake event", &error))?;
        Ok(Arc::new(Self { requested: AtomicBool::new(false), wake }))
    }

    fn is_requested(&self) -> bool {
        // Acquire: pairs with the Release in `AgentServer::drop`.
        self.requested.load(Ordering::Acquire)
    }
}

impl AgentServer {
    /// Finds the rack's daemon and its memory here, and serves. Returns when clients can come.
    ///
    /// # Errors
    /// `bad-region`, `version` if the memory holds no region, or another one than the daemon
    /// serves; `config` if the daemon runs on this host, or the rack has several; `timeout` if
    /// master or daemon do not answer; `denied` if another agent serves this host, or if other
    /// machines could read the counters without a token.
    pub fn start(options: AgentOptions) -> crate::Result<Self> {
        let stop = AgentStop::new()?;
        let agent = Agent::open(options, Arc::clone(&stop))?;
        let (control, metrics_addr) = (agent.control().to_string(), agent.metrics_addr());
        let thread = log::spawn("rackpool-agent", move || agent.run(None))
            .map_err(|error| io_error("agent thread", &error))?;
        Ok(Self { control, metrics_addr, stop, thread: Some(thread) })
    }

    /// Serves on the calling thread until SIGINT, SIGTERM or SIGHUP. `ready` is called with the
    /// name of the control socket once clients can come.
    ///
    /// # Errors
    /// As [`AgentServer::start`].
    pub fn run(options: AgentOptions, ready: impl FnOnce(&str)) -> crate::Result<()> {
        let shutdown = Shutdown::install().map_err(|error| io_error("signal handler", &error))?;
        let agent = Agent::open(options, AgentStop::new()?)?;
        ready(agent.control());
        agent.run(Some(shutdown));
        Ok(())
    }

    /// Name of the control socket that clients of this host join at.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// Where the counters are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `AgentStop::is_requested`.
        self.stop.requested.store(true, Ordering::Release);
        self.stop.wake.notify();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            warn!(target: "agent", "the agent's thread panicked");
        }
    }
}

/// Tells the daemon of a rack that a host will never touch its memory again: it is switched off,
/// or cut off. What its clients held is given back; how many they were.
///
/// # Errors
/// `denied` while the host's agent is connected; `config` if no client of such a host holds
/// anything; `timeout`, `peer-dead` if the daemon does not answer within `join_timeout_ms`.
pub fn fence(options: &AgentOptions, host: &str) -> crate::Result<u32> {
    let deadline_ns = clock::deadline_ns(options.join_timeout_ms);
    let mut master = options.master_link();
    let info = rack_info(&mut master, options.rack, deadline_ns)?;
    let mut line = Line::new(options, &info)?;
    line.say(&AgentRequest::Fence { version: WIRE_VERSION, host: host.into() })?;
    let heard = line.wait(deadline_ns, |heard| match heard {
        AgentEvent::Fenced { clients } => Some(Ok(clients)),
        AgentEvent::Refused(error) => Some(Err(error)),
        _ => None,
    });
    Ok(heard??)
}

/// Where the daemon of a rack is. Waits for it until the deadline.
fn rack_info(master: &mut MasterLink, rack: u16, deadline_ns: u64) -> Result<RackInfo> {
    let rack = RackId(rack);
    let info = master.call(MasterCall::Rack { rack }, clock::instant(deadline_ns))?.rack()?;
    if info.rack.is_divided() {
        let reason = format!("rack {rack} has several daemons, which one host must run");
        return Err(Error::Config { reason });
    }
    Ok(info)
}

/// The name at which clients of a host join a rack that has its daemon on that host, or an agent
/// there.
pub(crate) fn control_on(info: &RackInfo, host: &str) -> String {
    match info.host == host {
        true => info.control.clone(),
        false => format!("{}.{host}", info.control),
    }
}
