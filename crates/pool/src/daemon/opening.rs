//! What a daemon opens before its loop begins: the region, the fabric's target, and what it says of
//! both to the master and to clients.

use super::spill::{SpillOpening, SpillThread};
use super::world::RegionWorld;
use super::{Belongs, DaemonOptions, io_error};
use crate::link::MasterLink;
use crate::links::fabric_error;
use rackpool_core::coherence::Coherence;
use rackpool_core::daemon::{Daemon, World, format, read_superblock};
use rackpool_core::layout::RegionLayout;
use rackpool_core::runtime::daemon::{self as runtime, RackAddress};
use rackpool_core::runtime::master_link::Call;
use rackpool_core::spill::SlotHeader;
use rackpool_core::wire::RegionInfo;
use rackpool_core::{Error, RackId, Result};
use rackpool_fabric::{FabricOptions, Target, TargetOptions};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::region::{Claim, RegionFiles, SpillSpec};
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::info;

/// Serves one-sided operations of other racks; the daemon is woken by what is its own.
pub(super) fn start_target(
    options: &DaemonOptions,
    fabric: &FabricOptions,
    layout: RegionLayout,
    world: &mut RegionWorld,
    wake: &WakeEvent,
) -> Result<Target> {
    let (pages, table) = (world.pages().window().clone(), world.table().clone());
    let cells = world.target_cells.clone();
    let mut target = TargetOptions::new(options.listen, layout, pages, table, cells);
    let fabric_wake = wake.try_clone().map_err(|e| io_error("wake event", &e))?;
    target.secret = options.secret.clone();
    target.waker = Arc::new(move || fabric_wake.notify());
    let target = Target::start(fabric, target).map_err(fabric_error)?;
    world.fabric = Some(target.counters());
    Ok(target)
}

/// What the master is told of the rack.
pub(super) fn join_call(
    engine: &Daemon,
    options: &DaemonOptions,
    control: String,
    fabric_addr: SocketAddr,
) -> Result<Call> {
    let host = rackpool_mem::process::boot_id().map_err(|e| io_error("boot id", &e))?;
    let (fabric, fabric_addr) = (options.fabric.clone(), fabric_addr.to_string());
    Ok(runtime::join_call(engine, RackAddress { host, control, fabric, fabric_addr }))
}

/// The link by which a daemon joins.
pub(super) fn master_link(options: &DaemonOptions, join: Call) -> MasterLink {
    let mut master = MasterLink::new(options.master.clone());
    master.set_secret(options.secret.clone());
    master.set_join(join);
    master
}

/// What clients are told of the region.
pub(super) fn region_info(
    engine: &Daemon,
    options: &DaemonOptions,
    coherence: Coherence,
) -> RegionInfo {
    RegionInfo {
        emulate_cxl_ns: options.emulate.cxl_ns,
        emulate_rdma_ns: options.emulate.rdma_ns,
        ..runtime::region_info(engine, coherence)
    }
}

/// A region whose files are open, and how its daemon is to attach to it.
pub(super) struct RegionOpening {
    pub files: RegionFiles,
    pub rack: RackId,
    pub asymmetric: bool,
    /// Announce cells of the fabric's target.
    pub cells: u32,
    /// The files were just made: the region has to be formatted.
    pub is_new: bool,
    pub belongs: Belongs,
    /// What was claimed already.
    pub claim: Option<Claim>,
    /// The file of pages that are not in memory.
    pub spill: Option<SpillSpec>,
}

/// Formats a new region, attaches to it, and claims it if that was not done.
pub(super) fn open_region(opening: RegionOpening) -> Result<(RegionWorld, Daemon, Option<Claim>)> {
    let RegionOpening { files, rack, asymmetric, cells, is_new, belongs, mut claim, spill } =
        opening;
    let layout = files.layout();
    let mut world = RegionWorld::new(files, asymmetric, cells)?;
    if is_new {
        let mut id = [0; 2];
        for word in &mut id {
            *word = rackpool_mem::process::random_u64().map_err(|e| io_error("getrandom", &e))?;
        }
        format(&mut world, rack, id, layout)?;
    }
    // Before others find a region without it.
    let found = spill.map(|spec| open_spill(spec, rack, is_new, &mut world)).transpose()?;
    if is_new {
        world.files.publish().map_err(Error::from)?;
    }
    if claim.is_none() && belongs == Belongs::Here && rack.is_divided() {
        // There was nothing to claim when this daemon began.
        claim = Claim::take(world.files.spec()).map_err(Error::from)?;
    }
    let lost_power = world.files.lost_power();
    let mut engine = Daemon::attach(&mut world, rack, Some(layout.pages))?;
    world.files.note_attached().map_err(Error::from)?;
    if lost_power {
        info!(
            target: "daemon",
            "rack {rack}: the host booted since the region was served last; its pages are there, \
             sessions and locks of before are over"
        );
    }
    if let Some(found) = found {
        engine.adopt_slots(found, &mut world)?;
    }
    Ok((world, engine, claim))
}

/// Opens the spill file of a region that is formatted; what it has of a region before, if anything.
fn open_spill(
    spec: SpillSpec,
    rack: RackId,
    is_new: bool,
    world: &mut RegionWorld,
) -> Result<Vec<(u32, SlotHeader)>> {
    let region_id = read_superblock(world.private())?.region_id;
    let slots = world.files.tiers().spill().map_or(0, |slots| slots.frame_count);
    let (path, page_bytes) = (spec.path, world.files.layout().pages.page_bytes());
    let opening = SpillOpening { path, rack, region_id, slots, page_bytes, is_new };
    let (thread, found) = SpillThread::open(opening)?;
    world.spill = Some(thread);
    Ok(found)
}
