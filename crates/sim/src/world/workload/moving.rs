//! Clients move pages: of words, of what they have, of what others have, and of what is gone.

use super::Worker;
use rackpool_core::{Error, GAddr, RackId};

impl Worker {
    /// Moves a page that somebody uses, to any rack. Where it ends is no secret of the model: its
    /// bytes and words must be what they were.
    pub(super) async fn migrate(&mut self) {
        let untaken = self.scene.untaken(&mut self.rng);
        let addr = match self.rng.below(10) {
            _ if untaken.is_some() => untaken,
            0..4 => Some(self.pick_word()),
            4..6 => self.pick_mine().map(|(addr, _)| addr),
            6..9 => self.pick_other().map(|(addr, ..)| addr),
            _ => self.gone.last().copied(),
        };
        let Some(addr) = addr else { return self.word().await };
        let racks = self.scene.cluster.racks.len() as u64;
        let to = RackId(self.rng.below(racks) as u16);
        self.move_page(addr, to).await;
    }

    async fn move_page(&mut self, addr: GAddr, to: RackId) {
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
