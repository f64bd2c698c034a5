//! Clients move pages: of words, of what they have, of what others have, and of what is gone.

use super::Worker;
use rackpool_core::client::Turned;
use rackpool_core::policy::{AccessCosts, Policy};
use rackpool_core::{Error, GAddr, RackId};

/// What is said of accesses between racks: it only has to be known.
const COSTS: AccessCosts = AccessCosts {
    local_ns: 200,
    remote_ns: 3_000,
    round_trip_ns: 10_000,
    bytes_per_second: 10_000_000_000,
};

impl Worker {
    /// Tells the daemon what was used, or moves what the rack wants, as its mover does.
    pub(super) async fn help_the_mover(&mut self) {
        if self.scene.cluster.migration == Policy::Off || self.rng.chance_ppm(500_000) {
            self.begin("tell-use");
            let told = self.handle.tell_use().await;
            self.end("tell-use", &told).await;
            return self.check_error("tell-use", &told);
        }
        self.begin("move-wanted");
        let turned = self.handle.take_turn(&mut self.mover).await;
        let code = match &turned {
            Ok(Turned::Idle) => "idle",
            Ok(Turned::Unmeasured(..)) => "unmeasured",
            Ok(Turned::Asked(report, None)) if report.moved_bytes > 0 => "ok",
            Ok(Turned::Asked(_, None)) => "left",
            Ok(Turned::Asked(_, Some(error))) | Err(error) => error.code(),
        };
        self.end_as("move-wanted", code).await;
        if let Ok(Turned::Unmeasured(rack, _)) = &turned {
            self.mover.measured(*rack, COSTS);
        }
        self.check_error("move-wanted", &turned);
    }

    /// Moves a page that somebody uses, to any rack. Where it ends is no secret of the model: its
    /// bytes and words must be what they were.
    pub(super) async fn migrate(&mut self) {
        let untaken = self.scene.untaken(&mut self.rng);
        let addr = match self.rng.below(10) {
            _ if untaken.is_some() => untaken,
            0..4 => Some(self.pick_word()),
            4..6 => self.pick_mine().map(|(addr, bytes)| self.pick_page(addr, bytes)),
            6..9 => self.pick_other().map(|(addr, bytes, _)| self.pick_page(addr, bytes)),
            _ => self.gone.last().copied(),
        };
        let Some(addr) = addr else { return self.word().await };
        let racks = self.scene.cluster.racks.len() as u64;
        let to = RackId(self.rng.below(racks) as u16);
        self.move_page(addr, to).await;
    }

    /// A page of an allocation: those of a run move one by one.
    fn pick_page(&mut self, addr: GAddr, bytes: u64) -> GAddr {
        let page_bytes = self.handle.page_bytes();
        GAddr(addr.0 + self.rng.below(bytes.div_ceil(page_bytes)) * page_bytes)
    }

    pub(super) async fn move_page(&mut self, addr: GAddr, to: RackId) {
        self.begin("migrate");
        self.ctx.kernel.say(|| format!("client {}: moves {addr} to rack {to}", self.ctx.id.0));
        let result = self.handle.migrate(addr, to).await;
        self.end("migrate", &result).await;
        match result {
            Ok(rack) if rack != to => {
                self.violated("moves", format!("{addr} was to move to rack {to}, not {rack}"));
            }
            // Whatever it is of, it may have been freed meanwhile.
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => {}
            result => self.check_error("migrate", &result),
        }
    }
}
