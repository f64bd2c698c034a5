//! What the processes of a scenario share: the cluster, the model, the places of clients, and what
//! is done to them.

pub mod table;

use super::helpers::{Helper, Task};
use super::kernel::{HostId, ProcessId};
use super::rack::Rack;
use super::workload::model::{Fate, WorkloadModel};
use super::{Cluster, Path};
use crate::check::conserve::{FrameAudit, frames_of};
use crate::net::NetFaults;
use crate::rng::Rng;
use crate::run::{Config, Counts, Fault, Group};
use crate::time::Ps;
use rackpool_core::layout::FrameState;
use rackpool_core::master::directory::StoredHome;
use rackpool_core::{GAddr, PageId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use table::{TableReport, Tables};

/// A client place: one process at a time.
pub(super) struct Place {
    pub(super) rack: usize,
    pub(super) host: HostId,
    pub(super) path: Path,
    pub(super) process: Option<ProcessId>,
    /// It finished what it had.
    pub(super) done: bool,
}

/// What the processes of a scenario share.
pub struct Scene {
    pub seed: u64,
    /// What the run was told.
    pub config: Config,
    pub cluster: Rc<Cluster>,
    /// What the clients did and must find.
    pub model: WorkloadModel,
    /// The table that clients use beside, if the run has one.
    pub tables: Option<&'static dyn Tables>,
    pub(super) places: RefCell<Vec<Place>>,
    pub(super) counts: RefCell<Counts>,
    /// Processes that work for racks.
    pub(super) helpers: RefCell<BTreeMap<(usize, Task), Helper>>,
    /// Whether a rack was removed, and its clients with it: what they held in other racks is due in
    /// no rack.
    pub removed: Cell<bool>,
    /// The rack that an operator drains now.
    pub drained: Cell<Option<usize>>,
    /// Racks that left or were given up: another region may have them from then on.
    pub opened: RefCell<BTreeSet<usize>>,
    pub(super) set_up: Cell<bool>,
    pub(super) repaired: Cell<bool>,
    pub(super) repaired_at: Cell<Ps>,
    pub(super) audited: Cell<bool>,
}

impl Scene {
    /// Whether the clients have done enough.
    pub fn is_over(&self) -> bool {
        self.model.operations.get() >= u64::from(self.config.operations)
    }

    /// Whether the shared objects are there.
    pub fn is_set_up(&self) -> bool {
        self.set_up.get()
    }

    /// The shared objects are there.
    pub fn set_up(self: &Rc<Self>) {
        self.set_up.set(true);
        // Not before: a table whose making fails again and again leaves no room for itself.
        if self.config.faults.has(Fault::RareBranches) {
            self.cluster.hooks.draw_rares();
        }
        let places = self.places.borrow().len();
        (0..places).for_each(|place| self.start_client(place));
        self.hold_some();
        self.start_helpers();
    }

    /// Whether an operator drains a rack now.
    pub fn is_drained_anywhere(&self) -> bool {
        self.drained.get().is_some()
    }

    /// A rack has left: what still runs on it ends, and its region is removed.
    pub fn remove_rack(&self, rack: usize) {
        self.cluster.kernel.say(|| format!("rack {rack} has left: its region is removed"));
        self.end_rack(rack);
        self.removed.set(true);
        self.cluster.racks[rack].make_region();
    }

    /// The daemon and all clients of a rack end.
    fn end_rack(&self, rack: usize) {
        self.kill_daemon(rack);
        self.end_helpers(rack, |_| true);
        for place in self.places.borrow_mut().iter_mut().filter(|place| place.rack == rack) {
            if let Some(process) = place.process.take()
                && self.cluster.kernel.is_alive(process)
            {
                self.cluster.kernel.kill(process);
                self.model.on_killed(process, self.cluster.kernel.now());
            }
        }
    }

    /// Whether a page lives on a region that is gone, known to the master or not.
    pub fn is_lost(&self, addr: GAddr) -> bool {
        if self.model.nothing_lost() {
            return false;
        }
        let state = self.cluster.stored_state();
        let page = self.cluster.racks[0].layout.pages.page(addr);
        let Some(home) = state.directory().get(page) else { return true };
        let region = self.cluster.rack_of(home.rack).region.borrow().id;
        state.region_id(home.rack) != Some(region) || state.resolve(page).is_lost()
    }

    /// `kill -9` of a rack's daemon.
    pub fn kill_daemon(&self, rack: usize) {
        self.model.on_daemon_killed();
        self.cluster.kill_daemon(rack);
        // They are threads of its process; one that has a process of its own does no harm.
        let have_own = !rack.is_multiple_of(2);
        self.end_helpers(rack, |task| task == Task::Sweep || !have_own);
    }

    pub fn count_fault(&self, fault: Fault) {
        self.counts.borrow_mut().fault(fault);
    }

    /// Counts an operation by its result.
    pub fn count_operation(&self, name: &'static str, result: &'static str) {
        self.counts.borrow_mut().add_result(Group::Operation, name, result, 1);
    }

    /// Counts something that a checker looked at.
    pub fn count_checked(&self, name: &'static str) {
        self.counts.borrow_mut().add(Group::Checked, name, 1);
    }

    /// Counts what the table was made of at its end.
    pub fn count_table(&self, report: &TableReport) {
        let mut counts = self.counts.borrow_mut();
        for (name, count) in [
            ("tables", 1),
            ("table keys", report.keys),
            ("table splits", report.splits),
            ("table splits left by the dead", report.splits_left),
            ("table words retired", report.words_retired),
        ] {
            counts.add(Group::Checked, name, count);
        }
    }

    pub fn pick_client(&self, rng: &mut Rng) -> Option<usize> {
        let places = self.places.borrow();
        let place = rng.below(places.len() as u64) as usize;
        let process = places[place].process?;
        (!places[place].done && self.cluster.kernel.is_alive(process)).then_some(place)
    }

    /// Whether some client maps the memory of other racks, or of other shards.
    pub fn has_mapped(&self) -> bool {
        if self.cluster.racks.iter().any(|rack| rack.id.is_divided()) {
            return true;
        }
        self.places.borrow().iter().any(|place| place.path == Path::Mapped)
    }

    /// The page that a process is seen to announce.
    pub fn announced(&self, process: ProcessId) -> Option<u64> {
        let racks = self.cluster.racks.iter();
        let seen = |rack: &Rc<Rack>| Some((rack.id, rack.announced(process)?));
        let (rack, frame) = racks.clone().find_map(seen)?;
        let state = self.cluster.stored_state();
        let there = |home: &StoredHome| home.rack == rack && home.frame.0 == frame;
        state.directory().iter().find(|(_, home)| there(home)).map(|(page, _)| page.0)
    }

    /// The process in a place.
    pub fn process_of(&self, place: usize) -> ProcessId {
        self.places.borrow()[place].process.expect("it was picked alive")
    }

    /// A client has given back what it had.
    pub fn client_done(&self, place: usize) {
        self.places.borrow_mut()[place].done = true;
    }

    /// `kill -9` of a client; another one takes its place.
    pub fn kill_client(self: &Rc<Self>, place: usize) {
        let process = self.process_of(place);
        self.cluster.kernel.kill(process);
        self.model.on_killed(process, self.cluster.kernel.now());
        self.start_client(place);
    }

    /// A rack's host loses its power: everything on it ends, its memory is gone.
    pub fn lose_power(&self, rack: usize) {
        self.cluster.kernel.say(|| format!("rack {rack} loses its power"));
        self.end_rack(rack);
        let (kernel, state) = (&self.cluster.kernel, self.cluster.stored_state());
        let id = self.cluster.racks[rack].id;
        let geometry = self.cluster.racks[rack].layout.pages;
        let moving = self.moving_pages();
        let of_page = |page: u64| match state.directory().get(PageId(page)) {
            _ if moving.contains(&page) => Fate::Unknown,
            Some(home) if home.rack == id => Fate::Gone,
            _ => Fate::Safe,
        };
        // Of a run that is lost in part nobody knows what can still be done with it.
        let fate = |addr: u64, bytes: u64| {
            let (first, last) = (GAddr(addr), GAddr(addr + bytes - 1));
            let first = geometry.page(first).0;
            let mut pages = first..=geometry.page(last).0;
            let same = pages.all(|page| of_page(page) == of_page(first));
            if same { of_page(first) } else { Fate::Unknown }
        };
        self.model.on_power_lost(rack, fate, kernel.now());
        self.cluster.racks[rack].make_region();
    }

    /// An allocation whose answer nobody has taken: it may come back, so its page must stay.
    pub fn untaken(&self, rng: &mut Rng) -> Option<GAddr> {
        let all: Vec<u64> =
            self.cluster.racks.iter().flat_map(|rack| rack.untaken_allocations()).collect();
        (!all.is_empty()).then(|| GAddr(all[rng.below(all.len() as u64) as usize]))
    }

    /// Pages that are on their way from rack to rack.
    fn moving_pages(&self) -> BTreeSet<u64> {
        let mut moving = BTreeSet::new();
        for rack in &self.cluster.racks {
            let region = rack.region.borrow();
            let word = |offset| region.word(offset);
            let frames =
                frames_of(&rack.layout, word, |offset| region.table.peek(offset), |_| None);
            let is_moving = |frame: &FrameAudit| {
                matches!(frame.state, FrameState::Arriving | FrameState::Departing)
            };
            let frames = frames.into_iter().flatten().filter(is_moving);
            moving.extend(frames.map(|frame| frame.page));
        }
        moving
    }

    /// The clients of a rack come back.
    pub fn restart_clients_of(self: &Rc<Self>, rack: usize) {
        let places = self.places.borrow().len();
        for place in 0..places {
            let gone = {
                let places = self.places.borrow();
                places[place].rack == rack && places[place].process.is_none()
            };
            if gone {
                self.start_client(place);
            }
        }
    }

    /// No fault any more: what is down comes up, what was cut off is reached, what was stopped goes
    /// on.
    pub fn repair(self: &Rc<Self>) {
        let kernel = &self.cluster.kernel;
        kernel.heal();
        self.cluster.registration_fails_ppm.set(0);
        self.cluster.kernel.set_ends_lost_ppm(0);
        self.cluster.hooks.calm();
        kernel.with_net(|net, _| net.set_faults(NetFaults::none()));
        for (index, rack) in self.cluster.racks.iter().enumerate() {
            rack.blocks_free.set(u64::MAX / 2);
            self.cluster.start_daemon(index);
        }
        if !kernel.is_alive(self.cluster.master.get()) {
            self.cluster.start_master();
        }
        let places = self.places.borrow().len();
        for place in 0..places {
            if self.places.borrow()[place].process.is_none() {
                self.start_client(place);
            }
        }
        self.repaired_at.set(kernel.now());
        self.repaired.set(true);
        kernel.say(|| "everything is repaired".into());
    }

    /// Whether all clients have finished and nothing is broken any more.
    pub fn is_calm(&self) -> bool {
        let done = self.repaired.get() && self.places.borrow().iter().all(|place| place.done);
        done && !self.has_helpers()
    }

    pub fn audit_done(&self) {
        self.audited.set(true);
    }
}
