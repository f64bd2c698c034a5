//! Calls for data: the modes of RRPC, as a program chooses them.

use super::SimHandle;
use crate::world::handle::io::Local;
pub use rackpool_core::client::FetchMode;
use rackpool_core::client::{Access, Piece, Rpc, What};
use rackpool_core::rrpc::{Bytes, Carried};
use rackpool_core::{GAddr, Result};

impl SimHandle {
    /// From now on pages of other racks are read and written by calls that carry the data, as
    /// systems do that know no one-sided operations: no piece longer than a call carries.
    pub fn reach_by_calls(&mut self) {
        self.by_calls = true;
    }

    /// Reads by a call, within one page; what a call does not carry is read one-sided.
    pub async fn fetch(&mut self, addr: GAddr, to: &mut [u8], mode: FetchMode) -> Result<()> {
        let bytes = to.len() as u64;
        self.client.check(addr, bytes)?;
        let mut call = Rpc::new(&self.client, addr, mode.of(bytes));
        match self.drive(&mut call, Local::Into(to)).await?.fetched()?.carried {
            Carried::Inline(data) => to.copy_from_slice(&data.0),
            Carried::Written => {}
            Carried::Not => {
                let pieces = [Piece { addr, bytes }];
                self.transfer(Access::Read, &pieces, Local::Into(to)).await?;
            }
        }
        Ok(())
    }

    /// Writes by a call, within one page and no more than one carries.
    pub async fn store(&mut self, addr: GAddr, from: &[u8]) -> Result<()> {
        self.client.check(addr, from.len() as u64)?;
        let mut call = Rpc::new(&self.client, addr, What::Store(Bytes(from.to_vec())));
        self.drive(&mut call, Local::None).await.map(drop)
    }
}
