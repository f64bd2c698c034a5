//! The agent's loop: clients of the host on one side, the daemon on the other.

use super::clients::{HostClients, TOKEN_PENDING, TOKEN_PROCESS, TOKEN_SLOT};
use super::line::Line;
use super::{AgentOptions, AgentStop, control_on, rack_info};
use crate::acceptor::Acceptor;
use crate::clock;
use crate::daemon::io_error;
use crate::link::MasterLink;
use crate::metrics::{self, AgentSnapshot, Endpoint, SnapshotRequests};
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{AgentEvent, AgentRequest, RackInfo, WIRE_VERSION};
use rackpool_core::{Error, Result};
use rackpool_fabric::control;
use rackpool_mem::event::{Interest, Poller, Readiness};
use rackpool_mem::process::Shutdown;
use rackpool_mem::region::{ClientSections, MemorySpec, SpecError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

const TOKEN_LISTENER: u64 = 1;
const TOKEN_STOP: u64 = 3;
const TOKEN_LINE: u64 = 4;

const SLEEP: Duration = Duration::from_millis(100);
/// Pause between two tries to reach the daemon.
const RETRY: Duration = Duration::from_millis(50);
/// How often the daemon is told that this host is alive.
const BEAT_NS: Nanos = LEASE_MS_DEFAULT * 1_000_000 / 4;
/// How long one try may take, ms.
const TRY_MS: u64 = 1_000;

pub(super) struct Agent {
    options: AgentOptions,
    stop: Arc<AgentStop>,
    /// This boot of this host.
    boot: String,
    sections: ClientSections,
    master: MasterLink,
    line: Option<Line>,
    acceptor: Acceptor,
    poller: Poller,
    clients: HostClients,
    /// Why the daemon was lost last.
    said: String,
    /// When the daemon is next told that this host is alive.
    beat_at: Nanos,
    metrics: Option<(SnapshotRequests<AgentSnapshot>, Endpoint)>,
}

impl Agent {
    pub(super) fn open(options: AgentOptions, stop: Arc<AgentStop>) -> Result<Self> {
        let deadline_ns = clock::deadline_ns(options.join_timeout_ms);
        let boot = match &options.host {
            Some(host) => host.clone(),
            None => rackpool_mem::process::boot_id().map_err(|e| io_error("boot id", &e))?,
        };
        let mut master = options.master_link();
        let info = rack_info(&mut master, options.rack, deadline_ns)?;
        if info.host == boot {
            let reason =
                format!("the daemon of rack {} runs on this host: no agent is needed", info.rack);
            return Err(Error::Config { reason });
        }
        let wrong = |error: SpecError| Error::Config { reason: error.to_string() };
        let spec: MemorySpec = options.memory.parse().map_err(wrong)?;
        let sections = ClientSections::open(spec).map_err(Error::from)?;
        let control = control_on(&info, &boot);
        let access = control::access(options.allowed_users.iter().copied());
        let acceptor = Acceptor::bind(&control, TOKEN_LISTENER, access.clone());
        let acceptor = acceptor.map_err(|error| Error::Denied {
            reason: format!("{error}: is an agent of rack {} running here?", info.rack),
        })?;
        let poller = Poller::new().map_err(|e| io_error("epoll", &e))?;
        let watched = poller
            .add(&stop.wake, TOKEN_STOP, Interest::Read)
            .and_then(|()| acceptor.watch(&poller));
        watched.map_err(|e| io_error("epoll", &e))?;
        let mut agent = Self {
            options,
            stop,
            boot,
            clients: HostClients::new(access, sections.clone()),
            sections,
            master,
            line: None,
            acceptor,
            poller,
            said: String::new(),
            beat_at: 0,
            metrics: None,
        };
        agent.connect(&info, deadline_ns)?;
        if let Some(listen) = agent.options.metrics {
            let place = metrics::Place { listen, token: agent.options.metrics_token.clone() };
            let (text, ready) = (metrics::agent_text, metrics::agent_ready);
            let (endpoint, requests) = metrics::start(&place, &agent.stop.wake, text, ready)?;
            agent.metrics = Some((requests, endpoint));
        }
        Ok(agent)
    }

    pub(super) fn control(&self) -> &str {
        self.acceptor.name()
    }

    pub(super) fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, endpoint)| endpoint.local_addr())
    }

    /// Connects to the daemon and says which agent this is.
    fn connect(&mut self, info: &RackInfo, deadline_ns: u64) -> Result<()> {
        let region_id = self.sections.superblock().map_err(Error::from)?.region_id;
        let mut line = Line::new(&self.options, info)?;
        line.say(&AgentRequest::Hello {
            version: WIRE_VERSION,
            host: self.options.name.clone(),
            boot: self.boot.clone(),
            region_id,
        })?;
        let slots = line.wait(deadline_ns, |heard| match heard {
            AgentEvent::Welcome { slots } => Some(Ok(slots)),
            AgentEvent::Refused(error) => Some(Err(error)),
            _ => None,
        })??;
        for ended in self.clients.of_daemon(slots, &self.poller) {
            line.say(&ended)?;
        }
        let fd = line.prepare_sleep()?;
        let added = self.poller.add(fd, TOKEN_LINE, Interest::Read);
        added.map_err(|e| io_error("epoll", &e))?;
        self.line = Some(line);
        Ok(())
    }

    /// Serves until it is to stop.
    pub(super) fn run(mut self, shutdown: Option<Shutdown>) {
        if let Some(shutdown) = &shutdown {
            // Looked at in each turn as well.
            let _ = self.poller.add(shutdown, TOKEN_STOP, Interest::Read);
        }
        let mut ready = Vec::new();
        let is_over = |stop: &AgentStop| {
            stop.is_requested() || shutdown.as_ref().is_some_and(Shutdown::is_requested)
        };
        while !is_over(&self.stop) {
            let turned = if self.line.is_some() { self.turn() } else { self.find() };
            if let Err(error) = turned {
                self.lose(&error);
            }
            let timeout = if self.line.is_some() { SLEEP } else { RETRY };
            if let Err(error) = self.poller.wait(Some(timeout), &mut ready) {
                warn!(target: "agent", "epoll: {error}");
            }
            self.stop.wake.drain();
            if let Some((requests, _)) = &self.metrics {
                let rack = self.options.rack;
                requests.answer(|| AgentSnapshot {
                    rack,
                    clients: self.clients.count(),
                    has_daemon: self.line.is_some(),
                });
            }
            for one in &ready {
                if let Some(says) = self.on_ready(one) {
                    self.say(&says);
                }
            }
            let now = clock::now_ns();
            self.clients.expire(now, &self.poller);
            self.acceptor.tick(now, &self.poller);
        }
    }

    /// Does what the daemon says, and tells it which clients have come.
    fn turn(&mut self) -> Result<()> {
        let Some(line) = &mut self.line else { return Ok(()) };
        let now = clock::now_ns();
        if now >= self.beat_at {
            line.say(&AgentRequest::Ring)?;
            self.beat_at = now + BEAT_NS;
        }
        for says in self.clients.take_joins() {
            line.say(&says)?;
        }
        // Once before the sleep is prepared and once after it, so that nothing is slept over.
        for is_last in [false, true] {
            if is_last {
                line.prepare_sleep()?;
            }
            for heard in line.poll()? {
                match heard {
                    AgentEvent::Joined { number, reply } => {
                        if let Some(says) = self.clients.joined(number, reply, &self.poller) {
                            line.say(&says)?;
                        }
                    }
                    AgentEvent::Wake { slot } => self.clients.wake(slot),
                    AgentEvent::Refused(error) => return Err(error),
                    AgentEvent::Welcome { .. } | AgentEvent::Fenced { .. } => {
                        let reason = "an answer to no request".into();
                        return Err(Error::Protocol { peer: "daemon".into(), reason });
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks for the daemon, which may be elsewhere now.
    fn find(&mut self) -> Result<()> {
        let deadline_ns = clock::deadline_ns(TRY_MS);
        let info = rack_info(&mut self.master, self.options.rack, deadline_ns)?;
        if !info.alive {
            return Ok(());
        }
        let control = control_on(&info, &self.boot);
        if control != self.acceptor.asked() {
            // The region was made anew: clients ask for another name.
            let access = self.acceptor.access().clone();
            let acceptor = Acceptor::bind(&control, TOKEN_LISTENER, access);
            // The earlier one leaves the poller with its descriptor.
            self.acceptor =
                acceptor.map_err(|error| Error::Denied { reason: error.to_string() })?;
            self.acceptor.watch(&self.poller).map_err(|e| io_error("epoll", &e))?;
        }
        self.connect(&info, deadline_ns)
    }

    fn say(&mut self, says: &AgentRequest) {
        let said = self.line.as_mut().map_or(Ok(()), |line| line.say(says));
        if let Err(error) = said {
            self.lose(&error);
        }
    }

    /// The daemon is gone, or not found; what is said again and again is shown once.
    fn lose(&mut self, why: &Error) {
        let why = why.to_string();
        if why != self.said {
            warn!(target: "agent", "agent of rack {}: {why}", self.options.rack);
            self.said = why;
        }
        if let Some(mut line) = self.line.take()
            && let Ok(fd) = line.prepare_sleep()
        {
            let _ = self.poller.remove(fd);
        }
        self.clients.detach(&self.poller);
    }

    fn on_ready(&mut self, ready: &Readiness) -> Option<AgentRequest> {
        match ready.token {
            TOKEN_LISTENER => {
                let now = clock::now_ns();
                for (conn, user) in self.acceptor.accept(now, &self.poller) {
                    self.clients.accept(conn, user, now, &self.poller);
                }
                None
            }
            TOKEN_STOP | TOKEN_LINE => None,
            token @ TOKEN_PENDING..TOKEN_SLOT => {
                self.clients.on_pending(token, &self.poller);
                None
            }
            token @ TOKEN_SLOT..TOKEN_PROCESS => {
                self.clients.on_slot((token - TOKEN_SLOT) as u32, &self.poller)
            }
            token => self.clients.on_process((token - TOKEN_PROCESS) as u32, &self.poller),
        }
    }
}
