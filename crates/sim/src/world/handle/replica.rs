//! Replicas: reading them, and asking for them.

use super::{Local, SimHandle};
use rackpool_core::client::{Locate, ReplicaRead, Share};
use rackpool_core::{GAddr, RackId, Result};

/// Pages of a directory and of a replica that one read may have to find first.
const TOUCHES_MAX: u32 = 4;

impl SimHandle {
    /// Reads a replica of the own rack, if there is one that may be read.
    pub(super) async fn read_replica(&mut self, addr: GAddr, to: &mut [u8]) -> Result<bool> {
        let link = self.client.may_have_replica(addr);
        if link.is_none_or(|link| self.locks.held.holds_at(link)) {
            return Ok(false);
        }
        for _ in 0..TOUCHES_MAX {
            self.ctx.cpu.charge(self.cluster.costs.client_submit);
            match self.client.read_replica(addr, to, || self.ctx.clock_ns()) {
                ReplicaRead::Done => return Ok(true),
                ReplicaRead::None => return Ok(false),
                ReplicaRead::Untouched(at) => {
                    let page = self.client.geometry().page(at);
                    let stale = self.client.forget_stale(page);
                    let mut locate = Locate::new(&self.client, at, 1).after(stale);
                    if self.drive(&mut locate, Local::None).await.is_err() {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Has a replica made of the page of an address.
    pub async fn replicate(&mut self, addr: GAddr, to: RackId) -> Result<()> {
        self.client.check(addr, 1)?;
        self.drive(&mut Share::new(addr, to), Local::None).await
    }

    /// Ends the replicas of the page of an address.
    pub async fn recall(&mut self, addr: GAddr) -> Result<()> {
        self.client.check(addr, 1)?;
        self.drive(&mut Share::recall(addr), Local::None).await
    }
}
