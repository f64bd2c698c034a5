//! What the nemesis wants of the clients: that they are caught in the midst of an access, and that
//! others take away meanwhile what the caught one uses.

use super::Worker;
use crate::run::Fault;
use crate::time::Ps;
use crate::world::nemesis;
use rackpool_core::GAddr;

/// What the nemesis wants of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The client that has the page frees it.
    Free,
    Move,
}

impl Worker {
    /// Does what the nemesis wishes, if it is this client's to do; whether it was.
    pub(super) async fn fulfil_wish(&mut self) -> bool {
        let Some((addr, wish)) = self.wished() else { return false };
        if wish == Wish::Move {
            let to = self.any_rack();
            self.move_page(addr, to).await;
            return true;
        }
        let bytes = self.scene.model.objects.borrow().get(&addr.0).map(|one| one.bytes);
        if let Some(bytes) = bytes {
            self.free(addr, bytes).await;
        }
        bytes.is_some()
    }

    /// What the nemesis wishes of this client.
    fn wished(&self) -> Option<(GAddr, Wish)> {
        let (process, wish) = self.scene.model.wish.get()?;
        let kernel = &self.ctx.kernel;
        if kernel.is_alive(process) && kernel.cpu(process).has_snare() {
            return None;
        }
        let addr = self.scene.announced(process).map(|page| GAddr(page * self.handle.page_bytes()));
        let found = match (addr, wish) {
            (Some(addr), Wish::Free) => {
                let page_bytes = self.handle.page_bytes();
                let own = |one: &GAddr| one.0 / page_bytes == addr.0 / page_bytes;
                // Its owner may still come.
                Some(self.mine.iter().copied().find(own)?)
            }
            (addr, _) => addr,
        };
        self.scene.model.wish.set(None);
        found.map(|addr| (addr, wish))
    }

    /// Now and then: to be stopped in the midst of the next access, while its page moves. A write
    /// is repeated where the page went; what takes effect once must not get lost.
    pub(super) fn be_caught(&mut self) {
        if self.scene.config.faults.has(Fault::Pause) && self.rng.chance_ppm(30_000) {
            let time = Ps::us(300) + self.rng.exponential(Ps::us(300));
            nemesis::catch(&self.scene, self.ctx.id, time, Wish::Move, &mut self.rng);
        }
    }
}
