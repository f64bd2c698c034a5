//! Asking a page's home for a replica in some rack, or for its replicas to end.

use super::alloc::Home;
use super::locate::unexpected;
use super::{Client, Io, Need, Operation, Step};
use crate::addr::{GAddr, RackId};
use crate::error::Result;
use crate::seam::Mem;
use crate::wire::{MasterAnswer, Reply, Request};

/// The question under way. Its end does not say that a replica is there yet, but that there is
/// none, if that was asked for.
#[derive(Debug)]
pub struct Share {
    addr: GAddr,
    /// Where a replica shall be; `None`: nowhere.
    to: Option<RackId>,
    home: Home,
    done: bool,
}

impl Share {
    /// Asks for a replica of the page at `addr` in a rack.
    pub fn new(addr: GAddr, to: RackId) -> Self {
        Self { addr, to: Some(to), home: Home::of(addr), done: false }
    }

    /// Asks for the end of all replicas of the page at `addr`.
    pub fn recall(addr: GAddr) -> Self {
        Self { addr, to: None, home: Home::of(addr), done: false }
    }
}

impl<M: Mem> Operation<M> for Share {
    type Output = ();

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<()>> {
        if self.done {
            return Ok(Step::Done(()));
        }
        Ok(match self.home.find(client)? {
            Step::Need(need) => Step::Need(need),
            Step::Done(link) => {
                let page = client.geometry().page(self.addr);
                let request = match self.to {
                    Some(to) => Request::Replicate { page, to },
                    None => Request::Recall { page },
                };
                Step::Need(Need::Daemon(link, request))
            }
        })
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match self.home.on_reply(client, reply)? {
            None => Ok(()),
            Some(Reply::Replicas) => {
                // Its key has changed, or does so now.
                client.forget(client.geometry().page(self.addr));
                self.done = true;
                Ok(())
            }
            Some(_) => Err(unexpected("daemon", "a replica")),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        self.home.on_master(client, answer)
    }
}
