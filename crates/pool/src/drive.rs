//! Runs operations of the client engine: does what they need and hands over the answers. Blocking
//! calls go through [`drive`]; [`advance`] is one step of it, shared with submissions.

use crate::clock;
use crate::links::Links;
use crate::submit::Submissions;
use rackpool_core::client::{Client, Io, LinkId, Need, Operation, Step};
use rackpool_core::seam::{BufId, Exposure, Fabric, PostError, Sge, WorkRequest};
use rackpool_core::{Error, Result};
use rackpool_hw::fabric::{Endpoint, LocalBuffers, ScopedBuffers};
use rackpool_hw::window::Window;

/// The local buffers of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Buffers<'b> {
    /// It has none.
    None,
    /// Lent for the length of the call; piece i is buffer i.
    Scoped(ScopedBuffers),
    /// One that the endpoint owns meanwhile.
    Owned(BufId),
    /// One that the endpoint owns, with all pieces in it; piece i begins at offset i.
    Packed(BufId, &'b [u64]),
}

/// How far [`advance`] came.
pub(crate) enum Advanced<T> {
    /// Done.
    Done(T),
    /// Work requests are under way.
    Posted,
}

/// Goes on until the operation is done or waits for the fabric. Blocks for daemons, the master
/// and connections, until the deadline. An access ends when the loss of a lock becomes known, by
/// whatever was done for it.
pub(crate) fn advance<O: Operation<Window>>(
    client: &mut Client<Window>,
    links: &mut Links,
    endpoint: &mut Endpoint,
    buffers: Buffers<'_>,
    op: &mut O,
    deadline_ns: u64,
) -> Result<Advanced<O::Output>> {
    advance_within(client, links, endpoint, buffers, op, || deadline_ns)
}

/// As [`advance`], with a deadline for each thing that is waited for.
pub(crate) fn advance_within<O: Operation<Window>>(
    client: &mut Client<Window>,
    links: &mut Links,
    endpoint: &mut Endpoint,
    buffers: Buffers,
    op: &mut O,
    deadline: impl Fn() -> u64,
) -> Result<Advanced<O::Output>> {
    let mut gone = None;
    let losses = links.loss_count();
    loop {
        if client.take_learnt() {
            links.note_strays(client);
        }
        if op.is_access() && links.loss_count() != losses {
            return Err(links.loss());
        }
        match op.step(client, &mut FabricIo { endpoint, links, buffers })? {
            Step::Done(output) => return Ok(Advanced::Done(output)),
            Step::Need(Need::Completions) => return Ok(Advanced::Posted),
            Step::Need(Need::Link(rack)) => {
                match links.connect(client, endpoint, rack, deadline()) {
                    // What the operation knew of the rack is old: it finds out what became of it.
                    Err(Error::NoSuchRack { .. }) if gone.replace(rack) != Some(rack) => {
                        client.forget_rack(rack);
                    }
                    connected => connected?,
                }
            }
            Step::Need(Need::Master(call)) => {
                let answer = links.master_call(call, deadline());
                op.on_master(client, answer)?;
            }
            Step::Need(Need::Daemon(link, request)) => {
                let reply = links.daemon_call(client, endpoint, link, request, deadline());
                op.on_reply(client, reply)?;
            }
            Step::Need(Need::Batch(link, requests)) => {
                let replies = links.daemon_batch(client, endpoint, link, requests, deadline());
                op.on_replies(client, replies)?;
            }
        }
    }
}

/// Runs one operation to its end, or to the deadline with a typed error.
pub(crate) fn drive<O: Operation<Window>>(
    client: &mut Client<Window>,
    links: &mut Links,
    endpoint: &mut Endpoint,
    submissions: &mut Submissions,
    buffers: Buffers<'_>,
    op: &mut O,
) -> Result<O::Output> {
    let result = drive_on(client, links, endpoint, submissions, buffers, op);
    if result.is_err() {
        op.let_go(client, &mut FabricIo { endpoint, links, buffers });
    }
    result
}

fn drive_on<O: Operation<Window>>(
    client: &mut Client<Window>,
    links: &mut Links,
    endpoint: &mut Endpoint,
    submissions: &mut Submissions,
    buffers: Buffers<'_>,
    op: &mut O,
) -> Result<O::Output> {
    let deadline_ns = clock::deadline_ns(links.options().request_timeout_ms);
    loop {
        match advance(client, links, endpoint, buffers, op, deadline_ns)? {
            Advanced::Done(output) => return Ok(output),
            Advanced::Posted => {}
        }
        let in_time = links.wait_completions(endpoint, deadline_ns);
        let mut result = Ok(());
        for (id, status) in links.take_completions() {
            if !submissions.on_completion(client, id, status) {
                result = result.and(op.on_completion(client, id, status));
            }
        }
        result?;
        if !in_time {
            return Err(op.on_deadline(links.options().request_timeout_ms));
        }
    }
}

struct FabricIo<'a> {
    endpoint: &'a mut Endpoint,
    links: &'a Links,
    buffers: Buffers<'a>,
}

impl Io for FabricIo<'_> {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        let sge = self.sge(piece, offset, bytes);
        self.endpoint.piece_mut(&sge)
    }

    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        self.endpoint.piece(&self.sge(piece, offset, bytes))
    }

    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        let (buf, offset) = match self.buffers {
            Buffers::Scoped(ids) => (ids.id(piece as usize), offset),
            Buffers::Owned(buf) => (buf, offset),
            Buffers::Packed(buf, starts) => (buf, starts[piece as usize] + offset),
            Buffers::None => unreachable!("only transfers have pieces"),
        };
        Sge { buf, offset, bytes }
    }

    fn post(
        &mut self,
        link: LinkId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        match self.links.peer(link) {
            Some(peer) => self.endpoint.post(peer, batch),
            None => Err((0, PostError::Down)),
        }
    }

    fn expose(&mut self, link: LinkId, piece: u32, offset: u64, bytes: u64) -> Option<Exposure> {
        let sge = self.sge(piece, offset, bytes);
        self.endpoint.expose(self.links.peer(link)?, &sge)
    }

    fn conceal(&mut self, link: LinkId, exposure: Exposure) -> u64 {
        // On another connection than the one that it was made on it counts for nothing.
        let peer = self.links.peer(link);
        peer.map_or(0, |peer| self.endpoint.conceal(peer, exposure))
    }
}
