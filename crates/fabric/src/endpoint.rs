//! A handle's end of the fabric: connections of its own to other racks, over tcp or by an RDMA
//! device, those that the handles of its pool share, or those of its rack's daemon, which works for
//! it. A daemon that works for handles has one, too.

use super::buffers::{BufferOwner, Buffers};
#[cfg(feature = "verbs")]
use super::verbs;
use super::{FabricError, FabricOptions, FabricStats, Over, monotonic_ns, proxied, shared, tcp};
use rackpool_core::RackId;
use rackpool_core::seam::{
    BufId, Capabilities, Exposure, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// The endpoint; see the module.
#[expect(clippy::large_enum_variant, reason = "one a handle, and it stays where it is")]
pub enum Endpoint {
    Tcp(tcp::TcpEndpoint),
    /// Those that it shares with others of this process.
    Shared(shared::MemberEndpoint),
    /// Those of the own rack's daemon.
    Proxied(proxied::ProxiedEndpoint),
    /// Connections of its own, by an RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(verbs::VerbsEndpoint),
}

/// Calls the same of each.
macro_rules! each {
    ($self:expr, $one:ident => $call:expr) => {
        match $self {
            Endpoint::Tcp($one) => $call,
            Endpoint::Shared($one) => $call,
            Endpoint::Proxied($one) => $call,
            #[cfg(feature = "verbs")]
            Endpoint::Verbs($one) => $call,
        }
    };
}

impl Endpoint {
    /// One with connections of its own; none is made yet. Errors: `NoVerbs`, `Verbs`, `Io`.
    pub fn new(options: FabricOptions) -> Result<Self, FabricError> {
        match options.over {
            Over::Tcp => tcp::TcpEndpoint::new(options.into()).map(Endpoint::Tcp),
            #[cfg(feature = "verbs")]
            Over::Verbs => {
                let device = options.device_options()?;
                verbs::VerbsEndpoint::new(options.into(), &device).map(Endpoint::Verbs)
            }
            #[cfg(not(feature = "verbs"))]
            Over::Verbs => Err(FabricError::NoVerbs),
        }
    }

    /// What its connections are over; what the own rack's daemon has is not known here.
    pub fn over(&self) -> Over {
        match self {
            Endpoint::Tcp(_) | Endpoint::Shared(_) | Endpoint::Proxied(_) => Over::Tcp,
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(_) => Over::Verbs,
        }
    }

    /// The device that it uses, if it uses one.
    pub fn device_name(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(one) => Some(&one.device().name),
            _ => None,
        }
    }

    /// Begins a connection to a rack with its target at `addr`, without waiting for it: `Connected`
    /// or `Closed` comes with a later poll. Errors: `NotLoopback`, `PeersFull`, `Verbs`, `Io`.
    pub fn connect(
        &mut self,
        rack: RackId,
        addr: SocketAddr,
        now: Nanos,
    ) -> Result<PeerId, FabricError> {
        match self {
            Endpoint::Tcp(one) => one.connect(addr, now),
            Endpoint::Shared(one) => one.connect(addr, now),
            Endpoint::Proxied(one) => one.connect(rack),
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(one) => one.connect(addr, now),
        }
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        each!(self, one => one.close(peer))
    }

    /// Changes the injected latency, nanoseconds, for all connections. Of no effect on a device.
    pub fn set_emulated_delay(&mut self, emulate_rdma_ns: u32) {
        match self {
            Endpoint::Tcp(one) => one.set_emulated_delay(emulate_rdma_ns),
            Endpoint::Shared(one) => one.set_emulated_delay(emulate_rdma_ns),
            Endpoint::Proxied(one) => one.set_emulated_delay(emulate_rdma_ns),
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(_) => {}
        }
    }

    /// Whether what is posted from now on may wait for the next poll, so that several doorbells
    /// share a call to the system. Of no effect where there is none.
    pub fn set_gathering(&mut self, gathers: bool) {
        match self {
            Endpoint::Tcp(one) => one.set_gathering(gathers),
            Endpoint::Shared(one) => one.set_gathering(gathers),
            Endpoint::Proxied(_) => {}
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(_) => {}
        }
    }

    /// Counters since the endpoint was made.
    pub fn stats(&self) -> FabricStats {
        each!(self, one => one.stats())
    }

    /// Polls until something happened or `deadline` has passed; how many events were appended.
    pub fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        match self {
            Endpoint::Tcp(one) => one.wait(monotonic_ns, deadline, None, events),
            Endpoint::Shared(one) => one.wait(deadline, events),
            Endpoint::Proxied(one) => one.wait(deadline, events),
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(one) => one.wait(deadline, events),
        }
    }
}

impl Endpoint {
    /// A descriptor that can be read when there is something to poll for: for a poll loop that
    /// sleeps on several things. To be asked for again before each sleep. Errors: `Io`.
    pub fn prepare_sleep(&mut self) -> Result<BorrowedFd<'_>, FabricError> {
        match self {
            Endpoint::Tcp(one) => Ok(one.prepare_sleep()),
            Endpoint::Shared(one) => one.prepare_sleep(),
            Endpoint::Proxied(one) => one.prepare_sleep(),
            #[cfg(feature = "verbs")]
            Endpoint::Verbs(one) => Ok(one.prepare_sleep()),
        }
    }
}

impl Fabric for Endpoint {
    fn capabilities(&self) -> Capabilities {
        each!(self, one => one.capabilities())
    }

    #[inline]
    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        each!(self, one => one.post(peer, batch))
    }

    #[inline]
    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        each!(self, one => one.poll(now, events))
    }

    fn expose(&mut self, peer: PeerId, piece: &Sge) -> Option<Exposure> {
        each!(self, one => one.expose(peer, piece))
    }

    fn conceal(&mut self, peer: PeerId, exposure: Exposure) -> u64 {
        each!(self, one => one.conceal(peer, exposure))
    }
}

impl BufferOwner for Endpoint {
    fn buffers(&self) -> &Buffers {
        each!(self, one => one.buffers())
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        each!(self, one => one.buffers_mut())
    }

    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        each!(self, one => one.let_go(named))
    }

    fn require_idle(&self, piece: &Sge, reads: bool) {
        each!(self, one => one.require_idle(piece, reads))
    }
}
