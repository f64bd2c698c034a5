//! Clients move pages: of words, of what they have, of what others have, and of what is gone.

use super::Worker;
use crate::time::Ps;
use crate::world::kernel::ProcessId;
use rackpool_core::{Error, GAddr, PageId, RackId};

impl Worker {
    /// Tells the daemon what was used.
    pub(super) async fn tell_use(&mut self) {
        self.begin("tell-use");
        let told = self.handle.tell_use().await;
        self.end("tell-use", &told).await;
        self.check_error("tell-use", &told);
    }

    /// Each rack's daemon that knows that the rack is being drained, and since when.
    pub(super) fn racks_that_drain(&self) -> Vec<Option<(ProcessId, Ps)>> {
        self.scene.cluster.racks.iter().map(|rack| rack.drains.get()).collect()
    }

    /// No new memory is in a rack with a daemon that refused it all the time.
    pub(super) fn check_place(&self, addr: GAddr, before: &[Option<(ProcessId, Ps)>]) {
        let page = addr.0 / self.handle.page_bytes();
        let state = self.scene.cluster.stored_state();
        let Some(home) = state.directory().get(PageId(page)) else { return };
        let racks = &self.scene.cluster.racks;
        let Some(rack) = racks.iter().position(|rack| rack.id == home.rack) else { return };
        let now = self.scene.cluster.racks[rack].drains.get();
        if now.is_some() && now == before[rack] {
            self.violated("members", format!("{addr} was given by rack {rack}, which drains"));
        }
    }

    /// Moves a page that a client uses, to any rack. Where it ends is no secret of the model: its
    /// bytes and words must be what they were.
    pub(super) async fn migrate(&mut self) {
        let untaken = self.scene.untaken(&mut self.rng);
        let addr = match self.rng.below(10) {
            _ if untaken.is_some() => untaken,
            0 => self.pick_area(None).map(|(first, _)| GAddr(first)),
            1..4 => Some(self.pick_word()),
            4..6 => self.pick_mine().map(|(addr, bytes)| self.pick_page(addr, bytes)),
            6..9 => self.pick_other().map(|(addr, bytes, _)| self.pick_page(addr, bytes)),
            _ => self.gone.last().copied(),
        };
        let Some(addr) = addr else { return self.word().await };
        let to = self.any_rack();
        self.move_page(addr, to).await;
    }

    /// Has a replica made of a page that a client uses, mostly in the own rack, or ends those that
    /// there are. What is read and written must be what it would be without.
    pub(super) async fn share(&mut self) {
        let addr = match self.rng.below(10) {
            0 => self.pick_area(None).map(|(first, _)| GAddr(first)),
            1..7 => Some(self.pick_word()),
            7 => self.pick_mine().map(|(addr, bytes)| self.pick_page(addr, bytes)),
            _ => self.pick_other().map(|(addr, bytes, _)| self.pick_page(addr, bytes)),
        };
        let Some(addr) = addr else { return self.word().await };
        let ends = self.rng.chance_ppm(100_000);
        let own = self.handle.rack();
        let home = self.home_rack(addr);
        let is_away = home.is_some_and(|home| !home.same_rack(own));
        let to = if is_away && self.rng.chance_ppm(800_000) { own } else { self.any_rack() };
        if let Some(home) = home.filter(|home| !home.same_rack(to)) {
            self.scene.hold(to, home);
        }
        self.begin("share");
        self.ctx.kernel.say(|| format!("client {}: shares {addr} with rack {to}", self.ctx.id.0));
        let result = match ends {
            true => self.handle.recall(addr).await,
            false => self.handle.replicate(addr, to).await,
        };
        self.end("share", &result).await;
        match result {
            // Whatever it is of, it may have been freed meanwhile.
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => {}
            result => self.check_error("share", &result),
        }
        if !ends && is_away {
            self.read_words(addr).await;
        }
    }

    /// Reads words of a page for a while, if there are any.
    async fn read_words(&mut self, addr: GAddr) {
        let page_bytes = self.handle.page_bytes();
        let of_page = |word: &GAddr| word.0 / page_bytes == addr.0 / page_bytes;
        let all = self.scene.model.words.borrow().clone();
        let words: Vec<GAddr> = all.into_iter().filter(of_page).collect();
        for _ in 0..if words.is_empty() { 0 } else { self.rng.between(1, 12) } {
            let word = words[self.rng.below(words.len() as u64) as usize];
            // Its end is in the history.
            let _ = self.read_word(word).await;
            let pause = Ps::ns(self.rng.between(100, 20_000));
            self.ctx.sleep(pause).await;
        }
    }

    /// Where the directory says that a page is.
    fn home_rack(&self, addr: GAddr) -> Option<RackId> {
        let page = addr.0 / self.handle.page_bytes();
        let state = self.scene.cluster.stored_state();
        state.directory().get(PageId(page)).map(|home| home.rack)
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
            Ok(rack) if !rack.same_rack(to) => {
                self.violated("moves", format!("{addr} was to move to rack {to}, not {rack}"));
            }
            // Whatever it is of, it may have been freed meanwhile.
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => {}
            result => self.check_error("migrate", &result),
        }
    }
}
