//! Calls for data: the modes of RRPC, as a program chooses them.

use super::{Link, SimHandle};
use crate::time::Ps;
use crate::world::handle::io::Local;
use rackpool_core::client::{Access, Brought, LinkId, Piece, Rpc, What};
use rackpool_core::error::DeathCause;
use rackpool_core::rrpc::{Bytes, Carried, FetchExtent, INLINE_BYTES_MAX};
use rackpool_core::wire::{RemoteReply, RemoteRequest, Reply, Request};
use rackpool_core::{Error, GAddr, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchMode {
    Inline,
    /// One-sided, where the answer says.
    OneSidedRead,
    /// Written by the home into the caller's buffer.
    WriteBack,
}

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
        let what = match mode {
            FetchMode::Inline => What::Fetch(FetchExtent::Bytes(bytes), INLINE_BYTES_MAX),
            FetchMode::OneSidedRead => What::Fetch(FetchExtent::Bytes(bytes), 0),
            FetchMode::WriteBack => What::FetchInto(bytes, 0),
        };
        let mut call = Rpc::new(&self.client, addr, what);
        let fetched = match self.drive(&mut call, Local::Into(to)).await? {
            Brought::Fetched(fetched) => fetched,
            Brought::Stored => unreachable!("the engine compares the answer with the question"),
        };
        match fetched.carried {
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

    /// Asks the daemon behind a link several things over the connection that is up.
    pub(super) async fn daemon_batch(
        &mut self,
        id: LinkId,
        requests: Vec<Request>,
        deadline: Ps,
    ) -> Vec<Result<Reply>> {
        let mut replies = Vec::with_capacity(requests.len());
        if let Link::Local(_) = &self.links[id.0 as usize] {
            for request in requests {
                replies.push(self.local_call(id, request, deadline).await);
            }
            return replies;
        }
        self.note_closed();
        let name = self.remote(id).session.peer().to_string();
        let mut failed = None;
        let peer = self.remote(id).peer;
        let mut asked = Vec::with_capacity(requests.len());
        for request in requests {
            let frame = self.remote(id).session.aside(request);
            asked.push((frame.seq, None));
            let sent = peer.map(|peer| self.send_remote(peer, &RemoteRequest::Request(frame)));
            if !matches!(sent, Some(Ok(_))) {
                failed = Some(Error::PeerDead { peer: name.clone(), cause: DeathCause::Closed });
            }
        }
        while let (Some(peer), None) = (peer, &failed) {
            while let Some(message) = self.take_message(peer) {
                match super::remote::decode(&message, &name) {
                    Ok(RemoteReply::Reply(frame)) => {
                        let of = asked.iter_mut().find(|(seq, _)| *seq == frame.seq);
                        if let Some((_, reply)) = of {
                            *reply = Some(frame.reply);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                }
            }
            if asked.iter().all(|(_, reply)| reply.is_some()) {
                break;
            }
            if let Err(error) = self.step_of(peer, &name, deadline).await {
                failed.get_or_insert(error);
            }
        }
        let error = || failed.clone().expect("without an error all were answered");
        asked.into_iter().map(|(_, reply)| reply.unwrap_or_else(|| Err(error()))).collect()
    }
}
