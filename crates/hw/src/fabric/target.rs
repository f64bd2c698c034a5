//! A daemon's end of the fabric, whichever it is: chosen when it starts, the same for its caller
//! from then on.

use super::tcp::{self, TargetCounters, TargetSendError, TcpTargetOptions, WriteBack};
#[cfg(feature = "verbs")]
use super::verbs;
use super::{FabricError, FabricOptions, FabricStats, Over};
use rackpool_core::constants::{CELLS, VERBS_FRAMES_OPEN_MAX};
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{FabricEvent, PeerId};
use std::net::SocketAddr;

/// A serving thread. Dropping it closes all connections and waits for the thread's end.
pub enum Target {
    Tcp(tcp::TcpTarget),
    /// A device executes what is one-sided.
    #[cfg(feature = "verbs")]
    Verbs(verbs::VerbsTarget),
}

/// Calls the same of each.
macro_rules! each {
    ($self:expr, $one:ident => $call:expr) => {
        match $self {
            Target::Tcp($one) => $call,
            #[cfg(feature = "verbs")]
            Target::Verbs($one) => $call,
        }
    };
}

impl Target {
    /// Announce cells that a target needs: a thread one for the access under way, of those that
    /// there are anyway; a device one for each frame that is open to it.
    pub fn cells(over: Over, layout: RegionLayout) -> u32 {
        match over {
            Over::Tcp => CELLS,
            Over::Verbs => 1 + layout.frame_count.clamp(1, VERBS_FRAMES_OPEN_MAX),
        }
    }

    /// Begins to serve, with the device and the secret of `fabric` and all else of `options`.
    /// Errors: `NotLoopback`, `Geometry`, `NoVerbs`, `Verbs`, `Io` (such as an address in use).
    pub fn start(fabric: &FabricOptions, options: TcpTargetOptions) -> Result<Self, FabricError> {
        match fabric.over {
            Over::Tcp => {
                let secret = fabric.secret.clone();
                let options = TcpTargetOptions { secret, ..options };
                tcp::TcpTarget::start(options).map(Target::Tcp)
            }
            #[cfg(feature = "verbs")]
            Over::Verbs => {
                let TcpTargetOptions { listen, layout, pages, table, cells, .. } = options.clone();
                let options = verbs::VerbsTargetOptions {
                    device: fabric.device_choice()?,
                    secret: fabric.secret.clone(),
                    waker: options.waker,
                    lease_ms: options.lease_ms,
                    address_max: options.address_max,
                    ..verbs::VerbsTargetOptions::new(listen, layout, pages, table, cells)
                };
                verbs::VerbsTarget::start(options).map(Target::Verbs)
            }
            #[cfg(not(feature = "verbs"))]
            Over::Verbs => Err(FabricError::NoVerbs),
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        each!(self, one => one.local_addr())
    }

    /// Appends what happened; how many events.
    pub fn poll(&self, events: &mut Vec<FabricEvent>) -> usize {
        each!(self, one => one.poll(events))
    }

    /// Sends a message to an initiator; messages to one connection arrive in order.
    pub fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError> {
        each!(self, one => one.send(peer, message))
    }

    /// Writes memory into a buffer of an initiator and then sends a message, in order with other
    /// messages. Initiators of a device expose none, and are told that it was refused.
    pub fn write_back(&self, peer: PeerId, job: WriteBack) -> Result<(), TargetSendError> {
        match self {
            Target::Tcp(one) => one.write_back(peer, job),
            #[cfg(feature = "verbs")]
            Target::Verbs(one) => one.send(peer, &job.refused),
        }
    }

    /// Ends a connection; `Closed` comes with a later poll.
    pub fn close(&self, peer: PeerId) {
        each!(self, one => one.close(peer))
    }

    /// Its counters, for others to look at. A device's one-sided operations are not among them, as
    /// nothing here sees them.
    pub fn counters(&self) -> TargetCounters {
        each!(self, one => one.counters())
    }

    /// Counters since the start.
    pub fn stats(&self) -> FabricStats {
        each!(self, one => one.stats())
    }
}
