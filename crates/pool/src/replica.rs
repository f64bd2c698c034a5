//! Replicas, as a handle sees them: reads that find one in the own rack, and replicas asked for by
//! hand. `daemon/replicas.rs` holds them; `core::client` says what to do.

use crate::clock;
use crate::handle::Handle;
use rackpool_core::client::{Locate, ReplicaRead};
use rackpool_core::{GAddr, Result};

/// Pages of a directory and of a replica that one read may have to find first.
const TOUCHES_MAX: u32 = 4;

impl Handle {
    /// Reads a replica in the own rack, if there is one that may be read now. How long it may is
    /// said in the time of the daemon's host: clients of other hosts read none.
    pub(crate) fn read_replica(&mut self, addr: GAddr, to: &mut [u8]) -> Result<bool> {
        let link = self.client.may_have_replica(addr);
        let link = link.filter(|_| self.links.is_beside_daemon());
        if link.is_none_or(|link| self.links.locks.holds_at(link)) {
            return Ok(false);
        }
        for _ in 0..TOUCHES_MAX {
            match self.client.read_replica(addr, to, clock::now_ns) {
                ReplicaRead::Done => {
                    self.replica_reads += 1;
                    self.report_if_due();
                    return Ok(true);
                }
                ReplicaRead::None => break,
                ReplicaRead::Untouched(at) => {
                    let stale = self.client.forget_stale(self.client.geometry().page(at));
                    let mut locate = Locate::new(&self.client, at, 1).after(stale);
                    if self.run(&mut locate).is_err() {
                        // The page's home has the bytes.
                        break;
                    }
                }
            }
        }
        Ok(false)
    }

    /// Reads what of a batch's misses has a replica in the own rack.
    pub(crate) fn read_replicas(&mut self, ops: &mut [(GAddr, &mut [u8])]) {
        let mut misses = std::mem::take(&mut self.misses);
        misses.retain(|index| {
            let (addr, to) = &mut ops[*index as usize];
            self.client.check(*addr, to.len() as u64).is_err()
                || !matches!(self.read_replica(*addr, to), Ok(true))
        });
        self.misses = misses;
    }
}
