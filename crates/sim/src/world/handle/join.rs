//! Joining a daemon with mapped memory: hello, welcome, the mappings.

use super::local::LocalLink;
use super::{Inbox, RETRY_PAUSE_MAX, SimHandle, sort};
use crate::mem::SimMem;
use crate::net::EndpointId;
use crate::time::Ps;
use crate::world::Cluster;
use crate::world::kernel::{ConnId, Ctx};
use crate::world::master::MasterLink;
use crate::world::rack::Rack;
use rackpool_core::client::{RackView, Session};
use rackpool_core::coherence;
use rackpool_core::error::DeathCause;
use rackpool_core::layout::{RING_BYTES, RegionLayout, SLOT_REPLY_RING, SLOT_REQUEST_RING};
use rackpool_core::ring::{Consumer, Producer};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_core::wire::{self, ControlHello, ControlReply, RegionInfo, WIRE_VERSION};
use rackpool_core::{Error, PageGeometry, Result, SessionId};
use std::rc::Rc;

impl SimHandle {
    pub(super) fn join(&self, rack: &Rc<Rack>, deadline: Ps) -> Join {
        Join {
            ctx: self.ctx.clone(),
            endpoint: self.fabric.endpoint,
            cluster: self.cluster.clone(),
            rack: rack.clone(),
            deadline,
        }
    }
}

pub(super) fn layout_of(region: &RegionInfo) -> RegionLayout {
    let pages = PageGeometry::new(region.page_shift).expect("a daemon's page size");
    RegionLayout { pages, frame_count: region.frame_count }
}

/// Joining a daemon of this host.
pub(super) struct Join {
    pub(super) ctx: Ctx,
    pub(super) endpoint: EndpointId,
    pub(super) cluster: Rc<Cluster>,
    pub(super) rack: Rc<Rack>,
    pub(super) deadline: Ps,
}

impl Join {
    pub(super) async fn until(
        &self,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
        resume_slot: Option<u32>,
    ) -> Result<LocalLink> {
        let mut pause = Ps::ms(1);
        loop {
            match self.once(inbox, master, session, resume_slot).await {
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if self.ctx.now() < self.deadline => {}
                result => return result,
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    pub(super) async fn once(
        &self,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
        resume_slot: Option<u32>,
    ) -> Result<LocalLink> {
        let (daemon, _) = self.rack.daemon.get().ok_or_else(|| self.dead())?;
        let conn = self.ctx.connect(daemon);
        let hello = ControlHello {
            version: WIRE_VERSION,
            session,
            resume_slot,
            read_only: false,
            number: u64::from(conn.0) + 1,
        };
        self.ctx.send(conn, wire::encode_vec(&hello));
        let joined = self.welcomed(conn, inbox, master, session).await;
        if joined.is_err() {
            self.ctx.close(conn);
        }
        joined
    }

    fn dead(&self) -> Error {
        let peer = format!("daemon of rack {}", self.rack.id);
        Error::PeerDead { peer, cause: DeathCause::Closed }
    }

    async fn welcomed(
        &self,
        conn: ConnId,
        inbox: &mut Inbox,
        master: &mut MasterLink,
        session: SessionId,
    ) -> Result<LocalLink> {
        loop {
            if let Some(at) = inbox.controls.iter().position(|(of, _)| *of == conn) {
                let reply = inbox.controls.swap_remove(at).1;
                return match wire::decode(&reply, "daemon")? {
                    ControlReply::Refused(error) => Err(error),
                    ControlReply::Welcome { slot, region, .. } => {
                        self.map(conn, slot, &region, session).ok_or_else(|| self.dead())
                    }
                };
            }
            if inbox.closed_conns.contains(&conn) {
                return Err(self.dead());
            }
            let Some(input) = self.ctx.recv(Some(self.deadline)).await else {
                let waited_ms = self.cluster.request_timeout.as_ns() / 1_000_000;
                let peer = format!("daemon of rack {}", self.rack.id);
                return Err(Error::Timeout { peer, waited_ms });
            };
            sort(&self.ctx, self.endpoint, master, inbox, input);
        }
    }

    /// Maps what the welcome came with.
    fn map(
        &self,
        conn: ConnId,
        slot: u32,
        region: &RegionInfo,
        session_id: SessionId,
    ) -> Option<LocalLink> {
        let rack = self.rack.clone();
        if rack.region.borrow().id != region.region_id {
            return None;
        }
        let section = rack.region.borrow().slot(slot)?;
        let slot_mem = SimMem::new(section, self.ctx.cpu.clone());
        coherence::renew(&slot_mem, Mutation::KeepRingReset, 0, slot_mem.bytes());
        let view = RackView {
            pages: rack.view(&self.ctx, |region| region.pages.clone()),
            table: rack.view(&self.ctx, |region| region.table.clone()).read_only(),
            slot: slot_mem.clone(),
            layout: layout_of(region),
        };
        Some(LocalLink {
            producer: Producer::attach(slot_mem.slice(SLOT_REQUEST_RING, RING_BYTES)),
            consumer: Consumer::attach(slot_mem.slice(SLOT_REPLY_RING, RING_BYTES)),
            session: Session::new(format!("daemon of rack {}", rack.id)),
            conn: Some(conn),
            region_id: region.region_id,
            session_id,
            slot,
            view,
            lapsed: false,
            rack,
        })
    }
}
