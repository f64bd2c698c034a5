//! A context with a script as its peers.

use super::TestMem;
use crate::addr::RackId;
use crate::client::{Client, Context, Io, LinkId, Operation};
use crate::error::Error;
use crate::seam::{PostError, Sge, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// What an operation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Link(RackId),
    Master(MasterCall),
    Daemon(LinkId, Request),
    Batch(LinkId, Vec<Request>),
    Completions,
}

/// What a scripted peer says.
pub(super) enum Said {
    Linked,
    Master(crate::Result<MasterAnswer>),
    Daemon(crate::Result<Reply>),
    Batch(Vec<crate::Result<Reply>>),
    Completed(Vec<(u64, WorkStatus)>),
    /// The context fails.
    Fails(Error),
}

type Say<'s, W> = &'s mut dyn FnMut(&mut W, &mut Client<TestMem>, &Need) -> Said;

/// A context that asks a script.
struct Scripted<'a, W> {
    client: &'a mut Client<TestMem>,
    world: &'a mut W,
    say: Say<'a, W>,
    asked: u32,
    failed: Option<Error>,
}

/// Runs an operation against a script.
pub(super) fn ask<W: Io, O: Operation<TestMem>>(
    world: &mut W,
    client: &mut Client<TestMem>,
    op: &mut O,
    say: Say<'_, W>,
) -> crate::Result<O::Output> {
    let mut cx = Scripted { client, world, say, asked: 0, failed: None };
    let result = poll(op.run(&mut cx));
    result.and_then(|output| cx.failed.map_or(Ok(output), Err))
}

fn poll<T>(operation: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(operation).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a script answers at once"),
    }
}

impl<W: Io> Scripted<'_, W> {
    fn ask(&mut self, need: Need) -> crate::Result<Said> {
        self.asked += 1;
        assert!(self.asked < 1000, "the operation does not end: {need:?}");
        match (self.say)(self.world, self.client, &need) {
            Said::Fails(error) => {
                self.failed.get_or_insert(error.clone());
                Err(error)
            }
            said => Ok(said),
        }
    }
}

impl<I: Io> Io for &mut I {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        (**self).target(piece, offset, bytes)
    }
    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        (**self).source(piece, offset, bytes)
    }
    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        (**self).sge(piece, offset, bytes)
    }
    fn post(
        &mut self,
        link: LinkId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        (**self).post(link, batch)
    }
    fn expose(
        &mut self,
        link: LinkId,
        piece: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<crate::seam::Exposure> {
        (**self).expose(link, piece, offset, bytes)
    }
    fn conceal(&mut self, link: LinkId, exposure: crate::seam::Exposure) -> u64 {
        (**self).conceal(link, exposure)
    }
}

impl<W: Io> Context<TestMem> for Scripted<'_, W> {
    fn client(&mut self) -> &mut Client<TestMem> {
        self.client
    }
    fn parts(&mut self) -> (&mut Client<TestMem>, impl Io) {
        (self.client, &mut *self.world)
    }
    fn check(&mut self) -> crate::Result<()> {
        Ok(())
    }
    fn end_with_locks(&mut self) {}
    async fn connect(&mut self, rack: RackId) -> crate::Result<()> {
        match self.ask(Need::Link(rack))? {
            Said::Linked => Ok(()),
            _ => panic!("a link"),
        }
    }
    async fn master(&mut self, call: MasterCall) -> crate::Result<MasterAnswer> {
        match self.ask(Need::Master(call))? {
            Said::Master(answer) => answer,
            _ => panic!("an answer of the master"),
        }
    }
    async fn daemon(&mut self, link: LinkId, request: Request) -> crate::Result<Reply> {
        match self.ask(Need::Daemon(link, request))? {
            Said::Daemon(reply) => reply,
            _ => panic!("a reply of a daemon"),
        }
    }
    async fn batch(
        &mut self,
        link: LinkId,
        requests: Vec<Request>,
    ) -> crate::Result<Vec<crate::Result<Reply>>> {
        match self.ask(Need::Batch(link, requests))? {
            Said::Batch(replies) => Ok(replies),
            _ => panic!("replies of a daemon"),
        }
    }
    async fn completions(
        &mut self,
        mut take: impl FnMut(&mut Client<TestMem>, u64, WorkStatus) -> crate::Result<()>,
    ) -> crate::Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Said::Completed(completed) = self.ask(Need::Completions)? else {
            panic!("completions")
        };
        completed.into_iter().try_for_each(|(id, status)| take(self.client, id, status))
    }
    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
