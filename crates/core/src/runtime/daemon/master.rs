//! What a daemon says to the master, and what it does with the answers.

use super::{DaemonHost, DaemonLoop};
use crate::coherence::Coherence;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::member::MemberAnswer;
use crate::runtime::master_link::Call;
use crate::wire::{FabricKind, MasterAnswer, MasterCall, MasterReply, RackInfo, RegionInfo};

/// Under which addresses a rack is reached.
#[derive(Clone, Debug)]
pub struct RackAddress {
    /// Boot identity of its host.
    pub host: String,
    /// Name of its control socket there.
    pub control: String,
    pub fabric: FabricKind,
    pub fabric_addr: String,
}

/// The call by which a daemon joins.
pub fn join_call(engine: &Daemon, address: RackAddress) -> Call {
    let layout = engine.layout();
    let RackAddress { host, control, fabric, fabric_addr } = address;
    Call::join_daemon(RackInfo {
        rack: engine.rack(),
        region_id: engine.region_id(),
        epoch: engine.epoch(),
        page_shift: layout.pages.page_shift(),
        frame_count: layout.frame_count,
        frames_free: engine.frames_available(),
        host,
        control,
        fabric,
        fabric_addr,
        alive: true,
    })
}

/// What clients are told of the region, without latency to inject.
pub fn region_info(engine: &Daemon, coherence: Coherence) -> RegionInfo {
    let layout = engine.layout();
    RegionInfo {
        rack: engine.rack(),
        region_id: engine.region_id(),
        epoch: engine.epoch(),
        page_shift: layout.pages.page_shift(),
        frame_count: layout.frame_count,
        emulate_cxl_ns: 0,
        emulate_rdma_ns: 0,
        counts_use: engine.counts_use(),
        coherence,
    }
}

impl<H: DaemonHost> DaemonLoop<H> {
    /// Whether the master knows this daemon and can be called.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// The link came up, and the master answered the join; pages of an earlier region that are
    /// lost with it.
    pub fn master_up(&mut self, welcome: Option<&MasterAnswer>) -> u64 {
        let mut lost = 0;
        if let Some(MasterAnswer::Joined { lease_ms, pages_lost, .. }) = welcome {
            self.heartbeat_ns = lease_ms * 1_000_000 / 4;
            lost = *pages_lost;
        }
        self.joined = true;
        self.engine.master_up(&mut self.world);
        lost
    }

    /// The link went down: answers under way are lost, and what still matters is asked for again
    /// when it is back.
    pub fn master_down(&mut self) {
        self.joined = false;
        self.calls.clear();
        self.rack_calls.clear();
        let (proxy, mut links) = self.uplinks();
        proxy.on_master_down(&mut links);
        self.engine.master_down();
    }

    /// An answer that is not the welcome.
    pub fn on_answer(&mut self, reply: MasterReply) {
        if let Some(rack) = self.rack_calls.remove(&reply.id) {
            self.on_rack(rack, reply.answer.and_then(rack_of));
            self.flush_uplinks();
        } else if let Some(id) = self.calls.remove(&reply.id) {
            let now = self.host.now();
            self.engine.on_master(now, MasterReply { id, ..reply }, &mut self.world);
        } else if let Ok(MasterAnswer::Member(MemberAnswer::RackState(is))) = reply.answer {
            let was = self.engine.standing();
            self.engine.set_standing(is, &mut self.world);
            self.host.on_rack_state(was, is);
        }
    }

    /// What is looked at with each heartbeat; the heartbeat itself, if the link is up.
    pub fn heartbeat(&mut self) {
        let (proxy, mut links) = self.uplinks();
        proxy.reconcile(&mut links);
        self.give_back_left();
        if self.joined {
            let frames_free = self.engine.frames_available();
            let accesses = self.engine.accesses(&self.world);
            // A full link has something under way, which is as good as a heartbeat.
            let _ = self.host.call(MasterCall::Heartbeat { frames_free, accesses }.into());
        }
    }
}

fn rack_of(answer: MasterAnswer) -> Result<RackInfo> {
    match answer {
        MasterAnswer::Rack(info) => Ok(info),
        other => {
            let reason = format!("unexpected answer {other:?}");
            Err(Error::Protocol { peer: "master".into(), reason })
        }
    }
}
