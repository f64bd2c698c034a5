//! The master as a process or a thread: options in, a served address out. Owns the thread, the
//! poll loop in `server` and the file in `journal`; the protocol itself is
//! [`rackpool_core::master`].
//!
//! Called by the command line ([`run`]) and by in-process clusters ([`MasterServer`]).

mod error;
pub(crate) mod frame;
mod journal;
mod server;

pub use error::MasterError;
pub use journal::STATE_FILE;

use crate::metrics;
use journal::Journal;
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::master::{Master, MasterConfig};
use rackpool_core::placement::Policy;
use rackpool_fabric::secret::{CLEAR_TEXT, Secret};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::log;
use rackpool_mem::names;
use rackpool_mem::process::{monotonic_ns, raise_descriptor_limit, random_u64};
use server::{MasterLoop, Serve, connections_max};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tracing::{info, warn};

/// How a master runs.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Address to listen on, such as `127.0.0.1:7400`; port 0 takes a free one. Without a secret
    /// only loopback addresses may be.
    pub listen: String,
    /// Directory of the state; made if it is not there.
    pub state_dir: PathBuf,
    /// Duration of leases, ms.
    pub lease_ms: u64,
    /// Where new memory goes.
    pub policy: Policy,
    /// What daemons and clients have to prove that they have, and is proved to them.
    pub secret: Option<Secret>,
    /// Where to serve the counters over HTTP, in the format of Prometheus; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// What readers of the counters have to send as `Authorization: Bearer`; without it only a
    /// loopback address may be.
    pub metrics_token: Option<Secret>,
}

impl MasterOptions {
    /// Options with the usual lease and placement.
    pub fn new(listen: impl Into<String>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: listen.into(),
            state_dir: state_dir.into(),
            lease_ms: LEASE_MS_DEFAULT,
            policy: Policy::default(),
            secret: None,
            metrics: None,
            metrics_token: None,
        }
    }
}

/// A master on a thread of this process. Dropping it stops it.
///
/// ```
/// use rackpool::master::{MasterOptions, MasterServer};
/// # let dir = std::env::temp_dir().join(format!("rackpool-doc-master-{}", std::process::id()));
/// let master = MasterServer::start(MasterOptions::new("127.0.0.1:0", &dir))?;
/// assert!(master.local_addr().ip().is_loopback());
/// master.stop()?;
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), rackpool::master::MasterError>(())
/// ```
#[derive(Debug)]
pub struct MasterServer {
    addr: SocketAddr,
    metrics_addr: Option<SocketAddr>,
    stop: Arc<AtomicBool>,
    wake: WakeEvent,
    ended: WakeEvent,
    thread: Option<JoinHandle<Result<(), MasterError>>>,
}

impl MasterServer {
    /// Opens the state and serves it. Blocks until both are done.
    ///
    /// # Errors
    /// Any [`MasterError`]; nothing is left running then.
    pub fn start(options: MasterOptions) -> Result<Self, MasterError> {
        let (serve, addr, wake) = prepare(&options)?;
        let metrics_addr = serve.metrics.as_ref().map(|(_, thread)| thread.local_addr());
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let other = wake.try_clone().map_err(MasterError::system("make an event"))?;
        let made = WakeEvent::new().and_then(|event| Ok((event.try_clone()?, event)));
        let (end, ended) = made.map_err(MasterError::system("make an event"))?;
        let body = move || {
            // Acquire: pairs with the Release in master/mod.rs::end.
            let should_stop = || stopping.load(Ordering::Acquire);
            let served = MasterLoop::new(serve, &other).and_then(|it| it.run(&other, &should_stop));
            end.notify();
            served
        };
        let thread = log::spawn("rackpool-master", body);
        let thread = thread.map_err(MasterError::system("start the master's thread"))?;
        Ok(Self { addr, metrics_addr, stop, wake, ended, thread: Some(thread) })
    }

    /// Where it serves.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where the counters are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Stops it, closes its connections and its state.
    ///
    /// # Errors
    /// What ended it before, if something did.
    pub fn stop(mut self) -> Result<(), MasterError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), MasterError> {
        // Release: pairs with the Acquire in master/mod.rs::start.
        self.stop.store(true, Ordering::Release);
        self.wake.notify();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Ready for reading when it has ended by itself, because its state could not be stored;
/// [`MasterServer::stop`] says why.
impl AsFd for MasterServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

impl Drop for MasterServer {
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Err(error) = self.end()
        {
            warn!(target: "master", "{error}");
        }
    }
}

/// Serves on this thread until `should_stop`, which is asked at least ten times a second and
/// after every signal. `ready` learns the address once it serves.
///
/// # Errors
/// Any [`MasterError`].
pub fn run(
    options: &MasterOptions,
    should_stop: &dyn Fn() -> bool,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), MasterError> {
    // If that is too few, fewer connections are served, and the others are told.
    raise_descriptor_limit();
    let (serve, addr, wake) = prepare(options)?;
    let server = MasterLoop::new(serve, &wake)?;
    ready(addr);
    server.run(&wake, should_stop)
}

fn prepare(options: &MasterOptions) -> Result<(Serve, SocketAddr, WakeEvent), MasterError> {
    let (listener, addr) = listen(&options.listen, options.secret.is_some())?;
    let (journal, state) = Journal::open(&options.state_dir)?;
    let seed = random_u64().map_err(MasterError::system("draw a seed"))?;
    let config = MasterConfig { lease_ms: options.lease_ms, policy: options.policy, seed };
    let (term, pages, racks) = (state.term(), state.pages(), state.racks().count());
    info!(target: "master", "term {term}: {pages} pages in {racks} racks; serving {addr}");
    if options.secret.as_ref().is_some_and(|secret| !secret.encrypts()) {
        info!(target: "master", "{CLEAR_TEXT}");
    }
    let master = Master::new(state, config, monotonic_ns());
    let wake = WakeEvent::new().map_err(MasterError::system("make an event"))?;
    let connections_max = connections_max();
    let secret = options.secret.clone();
    let metrics = match options.metrics {
        None => None,
        Some(listen) => {
            let place = metrics::Place { listen, token: options.metrics_token.clone() };
            let started =
                metrics::start(&place, &wake, metrics::master_text, metrics::master_ready);
            let (thread, requests) = started.map_err(|error| MasterError::Metrics(error.into()))?;
            Some((requests, thread))
        }
    };
    Ok((Serve { master, journal, listener, connections_max, secret, metrics }, addr, wake))
}

fn listen(listen: &str, has_secret: bool) -> Result<(TcpListener, SocketAddr), MasterError> {
    let failed = |source| MasterError::Listen { listen: listen.into(), source };
    let addr = names::resolve(listen).map_err(failed)?[0];
    if !addr.ip().is_loopback() && !has_secret {
        return Err(MasterError::NotLoopback { addr });
    }
    let listener = TcpListener::bind(addr).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    Ok((listener, addr))
}
