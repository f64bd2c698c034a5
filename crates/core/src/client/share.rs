//! Asking a page's home for a replica in some rack, or for its replicas to end.

use super::alloc::Home;
use super::locate::unexpected;
use super::{Context, Operation};
use crate::addr::{GAddr, RackId};
use crate::error::Result;
use crate::seam::Mem;
use crate::wire::{Reply, Request};

/// The question. Its end does not say that a replica is there yet, but that there is none, if that
/// was asked for.
#[derive(Debug)]
pub struct Share {
    addr: GAddr,
    /// Where a replica shall be; `None`: nowhere.
    to: Option<RackId>,
}

impl Share {
    /// Asks for a replica of the page at `addr` in a rack.
    pub fn new(addr: GAddr, to: RackId) -> Self {
        Self { addr, to: Some(to) }
    }

    /// Asks for the end of all replicas of the page at `addr`.
    pub fn recall(addr: GAddr) -> Self {
        Self { addr, to: None }
    }
}

impl<M: Mem> Operation<M> for Share {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let page = cx.client().geometry().page(self.addr);
        let request = match self.to {
            Some(to) => Request::Replicate { page, to },
            None => Request::Recall { page },
        };
        let Reply::Replicas = Home::of(self.addr).ask(cx, &request).await? else {
            return Err(unexpected("daemon", "a replica"));
        };
        // Its key has changed, or does so now.
        cx.client().forget(page);
        Ok(())
    }
}
