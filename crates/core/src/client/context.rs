//! What an operation of the client engine works with and waits for. An operation is an `async fn`
//! over one [`Context`]: straight code that asks for one thing after another.
//!
//! In: answers, completions and losses of locks. Out: requests and work requests. A blocking call
//! has a context that does each thing where it is asked for, so that its future never pends and is
//! polled once; the simulator's goes on in virtual time. Neither has a runtime, a box or an
//! allocation for an operation. What waits for the fabric only (a [`Transfer`](super::Transfer))
//! keeps its state in tables, so that its submitter can go on with it bit by bit.

use super::{Client, LinkId};
use crate::addr::RackId;
use crate::error::Result;
use crate::seam::{Exposure, Mem, PostError, Sge, WorkRequest, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// The buffers and the fabric of the runtime, during one operation.
pub trait Io {
    /// A part of the buffer of a piece that is read into.
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8];
    /// A part of the buffer of a piece that is written from.
    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8];
    /// A part of a piece's buffer, registered with the fabric.
    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge;
    /// Posts a batch to the rack behind a link.
    fn post(
        &mut self,
        link: LinkId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)>;
    /// Lets the rack behind a link write into a part of a piece's buffer: see
    /// [`Fabric::expose`](crate::seam::Fabric::expose).
    fn expose(
        &mut self,
        _link: LinkId,
        _piece: u32,
        _offset: u64,
        _bytes: u64,
    ) -> Option<Exposure> {
        None
    }
    /// Ends that; how many bytes have come.
    fn conceal(&mut self, _link: LinkId, _exposure: Exposure) -> u64 {
        0
    }
}

/// What an operation may ask of its runtime.
///
/// An error of [`Context::connect`] or of waiting for completions says that the context has failed
/// ([`Context::has_failed`]): the operation tells its waiters and ends. For that, each answer has a
/// time of its own. What it returns then besides an error is replaced by that error.
#[allow(async_fn_in_trait, reason = "a context is known where it is used, and of one thread")]
pub trait Context<M: Mem> {
    fn client(&mut self) -> &mut Client<M>;
    /// The engine with the buffers and the fabric.
    fn parts(&mut self) -> (&mut Client<M>, impl Io);
    /// After a wait, before anything is touched.
    ///
    /// # Errors
    /// A lost lock, if that ends the operation.
    fn check(&mut self) -> Result<()>;
    /// As [`Context::parts`], after a [`Context::check`].
    ///
    /// # Errors
    /// As [`Context::check`].
    fn access(&mut self) -> Result<(&mut Client<M>, impl Io)> {
        self.check()?;
        Ok(self.parts())
    }
    /// The operation touches memory that a lock may protect: when a loss of locks becomes known on
    /// the way, it ends with that, and touches nothing any more.
    fn end_with_locks(&mut self);
    /// Connects to a rack, through [`Client::add_link`]. A rack that the master does not know is
    /// forgotten first: then there may be no link yet, and the operation asks again.
    async fn connect(&mut self, rack: RackId) -> Result<()>;
    async fn master(&mut self, call: MasterCall) -> Result<MasterAnswer>;
    /// Asks the daemon behind a link.
    async fn daemon(&mut self, link: LinkId, request: Request) -> Result<Reply>;
    /// Asks the daemon behind a link what repeats without harm, over the connection that is up,
    /// all under one doorbell; the answers in the order of the requests. If there is none, or it
    /// ends meanwhile, what has no answer ends with `PeerDead` at once.
    async fn batch(&mut self, link: LinkId, requests: Vec<Request>) -> Result<Vec<Result<Reply>>>;
    /// Waits for completions and hands them to `take`, also late ones of earlier operations.
    ///
    /// # Errors
    /// `timeout`; the first error of `take`, which is given all of them.
    async fn completions(
        &mut self,
        take: impl FnMut(&mut Client<M>, u64, WorkStatus) -> Result<()>,
    ) -> Result<()>;
    /// Waits for the completion of one work request.
    async fn completion(&mut self, id: u64) -> Result<WorkStatus> {
        let mut ended = None;
        while ended.is_none() {
            self.completions(|_, of, status| {
                ended = ended.or((of == id).then_some(status));
                Ok(())
            })
            .await?;
        }
        Ok(ended.expect("it was waited for"))
    }
    /// Waits until there may be room for a work request.
    async fn room(&mut self) -> Result<()> {
        self.completions(|_, _, _| Ok(())).await
    }
    fn has_failed(&self) -> bool;
}

/// An operation that needs more than the warm path.
#[allow(async_fn_in_trait, reason = "as Context")]
pub trait Operation<M: Mem> {
    type Output;
    /// Runs it to its end, once.
    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Self::Output>;
}
