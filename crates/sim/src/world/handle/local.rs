//! The slot of a mapped daemon: its mappings and its rings.

use crate::mem::SimMem;
use crate::world::kernel::{ConnId, Ctx, Input};
use crate::world::rack::Rack;
use rackpool_core::Error;
use rackpool_core::client::RackView;
use rackpool_core::coherence;
use rackpool_core::error::DeathCause;
use rackpool_core::layout::{RING_BYTES, SLOT_REPLY_RING, SLOT_REQUEST_RING};
use rackpool_core::ring::{Consumer, Producer};
use rackpool_core::runtime::client::{Slot, Welcome};
use rackpool_core::seam::{Mem, Mutation};
use std::cell::Cell;
use std::rc::Rc;

/// The home of a slot.
pub(super) struct Home {
    pub(super) rack: Rc<Rack>,
    /// The region that was mapped last.
    pub(super) region_id: Cell<[u64; 2]>,
}

impl Home {
    pub(super) fn name(&self) -> String {
        format!("daemon of rack {}", self.rack.id)
    }

    pub(super) fn dead(&self) -> Error {
        Error::PeerDead { peer: self.name(), cause: DeathCause::Closed }
    }

    /// Maps what the welcome came with, if the region is still there.
    pub(super) fn map(&self, ctx: &Ctx, conn: ConnId, welcome: &Welcome) -> Option<SimSlot> {
        let rack = self.rack.clone();
        if rack.region.borrow().id != welcome.region.region_id {
            return None;
        }
        let section = rack.region.borrow().slot(welcome.slot_index)?;
        self.region_id.set(welcome.region.region_id);
        let slot = SimMem::new(section, ctx.cpu.clone());
        coherence::renew(&slot, Mutation::KeepRingReset, 0, slot.bytes());
        let view = RackView {
            pages: rack.view(ctx, |region| region.pages.clone()),
            table: rack.view(ctx, |region| region.table.clone()).read_only(),
            slot: slot.clone(),
            layout: welcome.layout,
        };
        Some(SimSlot {
            producer: Producer::attach(slot.slice(SLOT_REQUEST_RING, RING_BYTES)),
            consumer: Consumer::attach(slot.slice(SLOT_REPLY_RING, RING_BYTES)),
            index: welcome.slot_index,
            conn: Some(conn),
            view,
            rack,
        })
    }
}

pub(super) struct SimSlot {
    pub(super) rack: Rc<Rack>,
    pub(super) conn: Option<ConnId>,
    pub(super) index: u32,
    pub(super) view: RackView<SimMem>,
    producer: Producer<SimMem>,
    consumer: Consumer<SimMem>,
}

impl Slot for SimSlot {
    type Memory = SimMem;
    type Daemon = Home;

    fn view(&self) -> &RackView<SimMem> {
        &self.view
    }

    fn rings(&mut self) -> (&mut Producer<SimMem>, &mut Consumer<SimMem>) {
        (&mut self.producer, &mut self.consumer)
    }
}

impl SimSlot {
    /// Says that something is there for the daemon.
    pub(super) fn ring(&self, ctx: &Ctx) {
        if let Some((daemon, _)) = self.rack.daemon.get() {
            ctx.ring(daemon, Input::Bell(self.index));
        }
    }
}
