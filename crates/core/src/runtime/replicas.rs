//! The loop of the worker that holds replicas of one home's pages for a rack: it asks the home what
//! to do and does it, one turn of a [`Keeper`] after another. What it has it owns: with its handle
//! all of that goes back.

use super::WorkerHost;
use crate::RackId;
use crate::client::{Keeper, Tended};
use crate::error::{Error, Result};
use crate::seam::{Mem, Nanos};

/// Pause while a client writes to a replica that is to be closed, ns.
const WAIT_NS: Nanos = 20_000;

#[derive(Clone, Copy, Debug)]
pub struct ReplicaPauses {
    /// While there is no memory for replicas, ns.
    pub idle_ns: Nanos,
    /// After a turn that failed, ns.
    pub failed_ns: Nanos,
}

/// Holds replicas until the host is stopped.
///
/// # Errors
/// `lost` if the memory of the replicas is gone: the next try needs another handle.
pub async fn hold_replicas<M: Mem>(
    host: &mut impl WorkerHost<M>,
    home: RackId,
    pauses: ReplicaPauses,
) -> Result<()> {
    let mut keeper = Keeper::new(home);
    while !host.is_stopped() {
        let now_ns = host.now_ns();
        match host.perform(|id| keeper.turn(id, now_ns)).await {
            Ok(Tended::Polled) => {}
            Ok(Tended::Waiting) => host.sleep(WAIT_NS).await,
            Ok(Tended::Idle) => host.sleep(pauses.idle_ns).await,
            Err(error @ Error::Lost { .. }) => return Err(error),
            // The same question is asked again; its leases run out meanwhile, if it must be so.
            Err(_) => host.sleep(pauses.failed_ns).await,
        }
    }
    let now_ns = host.now_ns();
    host.perform(|id| keeper.last_turn(id, now_ns)).await.map(drop)
}
