//! The caller's buffer, and the engine's way to it and to the fabric.

use super::Link;
use super::fabric::Fabric;
use super::node::Node;
use crate::net::EndpointId;
use crate::world::Cluster;
use rackpool_core::Result;
use rackpool_core::client::{Io, LinkId};
use rackpool_core::seam::{BufId, ByteRange, Exposure, PeerId, PostError, Sge, WorkRequest};
use std::cell::{Cell, RefCell};

/// The caller's buffer of an operation.
pub(super) enum Local<'a> {
    None,
    Into(&'a mut [u8]),
    From(&'a [u8]),
    /// A buffer that the operation reads into and writes from, one after the other.
    Bounce(&'a mut [u8]),
}

/// The vectors of one operation's [`TransferBuffers`], for the next one.
#[derive(Default)]
pub(super) struct Posted {
    /// The connections that work was posted to.
    pub(super) peers: Vec<PeerId>,
    /// Parts of the caller's buffer that the network reads into.
    pub(super) ranges: RefCell<Vec<(u64, u64)>>,
    /// Parts of a bounce buffer that the operation has stored to since the network had it.
    stored: RefCell<Vec<ByteRange>>,
}

/// The caller's buffer, and what of it is registered with the network.
pub(super) struct TransferBuffers<'a> {
    pub(super) local: Local<'a>,
    pub(super) lent: Cell<Option<BufId>>,
    pub(super) posted: Box<Posted>,
}

impl TransferBuffers<'_> {
    /// What the operation has stored to a bounce buffer is there for the network.
    fn lend(&self, cluster: &Cluster, endpoint: EndpointId) {
        for ByteRange { offset, bytes } in self.posted.stored.borrow_mut().drain(..) {
            // Once it is registered: then all of it was copied.
            if let (Local::Bounce(from), Some(buf)) = (&self.local, self.lent.get()) {
                let piece = Sge { buf, offset, bytes };
                let from = &from[offset as usize..(offset + bytes) as usize];
                cluster.kernel.write_buffer(endpoint, &piece, 0, from);
            }
        }
    }

    /// What the network has read into a bounce buffer is there for the operation.
    pub(super) fn fetch(&mut self, cluster: &Cluster, endpoint: EndpointId) {
        self.lend(cluster, endpoint);
        if let (Local::Bounce(to), Some(buf)) = (&mut self.local, self.lent.get()) {
            cluster.kernel.copy_buffer(endpoint, buf, to);
        }
    }

    /// Takes the registered buffer back, with what was read into it.
    pub(super) fn end(mut self, cluster: &Cluster, fabric: &Fabric) -> Box<Posted> {
        self.posted.peers.clear();
        let ranges = self.posted.ranges.get_mut();
        if let Some(buf) = self.lent.get() {
            fabric.let_go(buf);
            let bytes = cluster.kernel.take_buffer(fabric.endpoint, buf);
            if let Local::Into(to) = self.local {
                for (offset, len) in ranges.iter() {
                    let range = *offset as usize..(offset + len) as usize;
                    to[range.clone()].copy_from_slice(&bytes[range]);
                }
            }
            cluster.kernel.recycle(bytes);
        }
        ranges.clear();
        self.posted.stored.get_mut().clear();
        self.posted
    }
}

pub(super) struct SimIo<'a, 'b> {
    pub(super) node: &'a Node,
    pub(super) links: &'a [Link],
    pub(super) buffers: &'a mut TransferBuffers<'b>,
}

impl Io for SimIo<'_, '_> {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        assert_eq!(piece, 0, "operations here have one piece");
        // A piece that was asked of another rack, and its page has come here since.
        self.buffers.posted.ranges.get_mut().retain(|posted| *posted != (offset, bytes));
        if matches!(self.buffers.local, Local::Bounce(_)) {
            self.buffers.posted.stored.get_mut().push(ByteRange { offset, bytes });
        }
        match &mut self.buffers.local {
            Local::Into(to) | Local::Bounce(to) => {
                &mut to[offset as usize..(offset + bytes) as usize]
            }
            _ => unreachable!("only reads have a target"),
        }
    }

    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        assert_eq!(piece, 0, "operations here have one piece");
        match &self.buffers.local {
            Local::From(from) => &from[offset as usize..(offset + bytes) as usize],
            Local::Bounce(from) => &from[offset as usize..(offset + bytes) as usize],
            _ => unreachable!("only writes have a source"),
        }
    }

    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        assert_eq!(piece, 0, "operations here have one piece");
        self.buffers.lend(&self.node.cluster, self.node.fabric.endpoint);
        let buf = self.buffers.lent.get().unwrap_or_else(|| {
            let mut bytes = self.node.cluster.kernel.spare();
            match &self.buffers.local {
                Local::None => {}
                Local::Into(to) => bytes.resize(to.len(), 0),
                Local::From(from) => bytes.extend_from_slice(from),
                Local::Bounce(from) => bytes.extend_from_slice(from),
            }
            self.node.cluster.kernel.register(self.node.fabric.endpoint, bytes)
        });
        self.buffers.lent.set(Some(buf));
        if matches!(self.buffers.local, Local::Into(_)) {
            self.buffers.posted.ranges.borrow_mut().push((offset, bytes));
        }
        Sge { buf, offset, bytes }
    }

    fn post(&mut self, link: LinkId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let links = LinksIo { node: self.node, links: self.links };
        links.post(link, batch, &mut self.buffers.posted.peers)
    }

    fn expose(&mut self, link: LinkId, piece: u32, offset: u64, bytes: u64) -> Option<Exposure> {
        let peer = self.peer(link).filter(|_| !self.node.fabric.is_proxied())?;
        let sge = self.sge(piece, offset, bytes);
        Some(self.node.cluster.kernel.expose(self.node.fabric.endpoint, peer, sge))
    }

    fn conceal(&mut self, link: LinkId, exposure: Exposure) -> u64 {
        let peer = self.peer(link);
        peer.map_or(0, |peer| {
            self.node.cluster.kernel.conceal(self.node.fabric.endpoint, peer, &exposure)
        })
    }
}

/// The way from links to the fabric.
pub(super) struct LinksIo<'a> {
    pub(super) node: &'a Node,
    pub(super) links: &'a [Link],
}

impl LinksIo<'_> {
    /// Posts a batch, and notes its connection.
    pub(super) fn post(
        &self,
        link: LinkId,
        batch: &[WorkRequest<'_>],
        peers: &mut Vec<PeerId>,
    ) -> Result<(), (usize, PostError)> {
        let Some(peer) = self.links[link.0 as usize].peer() else {
            return Err((0, PostError::Down));
        };
        if !peers.contains(&peer) {
            peers.push(peer);
        }
        self.node.fabric.post(&self.node.ctx, peer, batch)
    }
}

impl SimIo<'_, '_> {
    fn peer(&self, link: LinkId) -> Option<PeerId> {
        self.links[link.0 as usize].peer()
    }
}
