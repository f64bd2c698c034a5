//! The balancer sends cold pages of a full rack to emptier ones: it asks the master how full the
//! racks are and the own daemon whether a page goes, and moves it. A daemon's process has one for
//! it.
//!
//! ```text
//! master       Load    -> how full racks are on average, and the emptiest
//! own daemon   Next    -> a page and where it goes
//!              Migrate
//! ```

use super::locate::unexpected;
use super::{Context, Migrate, OWN, Operation};
use crate::addr::{PageId, RackId};
use crate::error::{Error, Result};
use crate::member::{BalanceReply, BalanceRequest, MemberAnswer, MemberCall};
use crate::seam::Mem;
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// What is known from one turn to the next.
#[derive(Debug, Default)]
pub struct Balancer {
    /// A page that did not move.
    failed: Option<PageId>,
    /// What a copy carries, bytes a second.
    bytes_per_second: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balanced {
    /// No page goes now.
    Rests,
    /// A page is in another rack.
    Sent(PageId, RackId),
    /// A page was to go and did not.
    Stays(PageId, Error),
}

impl Balancer {
    /// How fast a page was moved last, or is expected to be.
    pub fn measured(&mut self, bytes_per_second: u64) {
        self.bytes_per_second = bytes_per_second;
    }

    /// The next turn. `id` differs from all other work requests of the handle. Piece 0 of its `Io`
    /// is a buffer of [`Migrate::buffer_bytes`].
    pub fn turn(&mut self, id: u64) -> BalanceTurn<'_> {
        BalanceTurn { balancer: self, id }
    }
}

/// A turn; see the module.
#[derive(Debug)]
pub struct BalanceTurn<'b> {
    balancer: &'b mut Balancer,
    id: u64,
}

impl<M: Mem> Operation<M> for BalanceTurn<'_> {
    type Output = Balanced;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Balanced> {
        let answer = cx.master(MasterCall::Member(MemberCall::Load)).await?;
        let MasterAnswer::Member(MemberAnswer::Load(load)) = answer else {
            return Err(unexpected("master", "how full racks are"));
        };
        let Balancer { failed, bytes_per_second } = *self.balancer;
        let next = BalanceRequest::Next { load, bytes_per_second, failed };
        let reply = cx.daemon(OWN, Request::Balance(next)).await?;
        let Reply::Balance(BalanceReply::Next(next)) = reply else {
            return Err(unexpected("own daemon", "a question for a cold page"));
        };
        self.balancer.failed = None;
        let own = cx.client().own_rack();
        let Some((page, to)) = next.filter(|(_, to)| *to != own) else {
            return Ok(Balanced::Rests);
        };
        let addr = cx.client().geometry().join(page, 0);
        match Migrate::new(cx.client(), addr, to, self.id).run(cx).await {
            Ok(home) => Ok(Balanced::Sent(page, home.rack)),
            Err(error) => {
                self.balancer.failed = Some(page);
                Ok(Balanced::Stays(page, error))
            }
        }
    }
}
