//! What an audit of a data structure asks of the home of an address: whether an allocation is
//! there, and the free of one that nothing names.

use super::alloc::Home;
use super::locate::unexpected;
use super::{Context, Operation};
use crate::addr::GAddr;
use crate::error::{Error, Result};
use crate::seam::Mem;
use crate::wire::{Reply, Request};

/// The question whether address and size name an allocation.
#[derive(Debug)]
pub struct IsAllocated {
    pub addr: GAddr,
    /// What was asked for when it was allocated.
    pub bytes: u64,
}

impl<M: Mem> Operation<M> for IsAllocated {
    type Output = bool;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<bool> {
        let Self { addr, bytes } = *self;
        match Home::of(addr).ask(cx, &Request::CheckFree { addr, bytes }).await {
            Ok(Reply::Known) => Ok(true),
            Ok(_) => Err(unexpected("daemon", "a question about an allocation")),
            Err(Error::BadFree { .. } | Error::NotMapped { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The free of an allocation of the kind `Table` that has lived since a watch began in its rack.
#[derive(Debug)]
pub struct Reclaim {
    pub addr: GAddr,
    /// The number of the watch.
    pub watch: u64,
}

impl<M: Mem> Operation<M> for Reclaim {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let Self { addr, watch } = *self;
        match Home::of(addr).ask(cx, &Request::Reclaim { addr, watch }).await? {
            Reply::Freed => Ok(()),
            _ => Err(unexpected("daemon", "a free")),
        }
    }
}
