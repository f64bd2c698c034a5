//! Clients lock lines that all of them use, and what must hold of locks: no client has one beside
//! another that surely has it.

use super::Worker;
use crate::time::Ps;
use crate::world::handle::SimGuard;
use crate::world::kernel::ProcessId;
use rackpool_core::client::LockRange;
use rackpool_core::{Error, GAddr};
use std::collections::BTreeMap;

const LINE_BYTES: u64 = 64;
/// Guards that are dropped instead of unlocked.
const DROPPED_PPM: u32 = 333_000;
/// Dropped guards whose lock is not asked for again at once.
const AGAIN_PPM: u32 = 500_000;

/// A lock that a client has.
#[derive(Clone, Copy, Debug)]
struct Hold {
    write: bool,
    token: u64,
    /// Its daemon gives it to no other client while the client lives: the client is of its host.
    is_sure: bool,
}

/// Which client has which line.
#[derive(Default)]
pub(super) struct LockModel {
    holds: BTreeMap<(u64, ProcessId), Hold>,
    /// The last token of a line.
    tokens: BTreeMap<u64, u64>,
}

impl LockModel {
    /// A client was told that it has a line; what is wrong with that.
    fn granted(&mut self, line: u64, process: ProcessId, hold: Hold) -> Option<String> {
        let of_line = (line, ProcessId(0))..=(line, ProcessId(u32::MAX));
        let mut others = self.holds.range(of_line).filter(|((_, other), _)| *other != process);
        let rival = others.find(|(_, other)| other.is_sure && (other.write || hold.write));
        if let Some(((_, other), rival)) = rival {
            return Some(format!("{hold:?} is given while process {} has {rival:?}", other.0));
        }
        let last = self.tokens.entry(line).or_default();
        // Of grants that do not exclude each other a later one may be heard of first.
        if hold.is_sure && hold.write && hold.token <= *last {
            return Some(format!("token {} comes after {last}", hold.token));
        }
        *last = hold.token.max(*last);
        self.holds.insert((line, process), hold);
        None
    }

    /// A client gives a line back.
    fn given_back(&mut self, line: u64, process: ProcessId) {
        self.holds.remove(&(line, process));
    }

    pub(super) fn ended(&mut self, process: ProcessId) {
        self.holds.retain(|(_, other), _| *other != process);
    }

    /// A rack lost its power, and its locks and the count of its tokens with it.
    pub(super) fn doubt(&mut self) {
        self.holds.values_mut().for_each(|hold| hold.is_sure = false);
        self.tokens.clear();
    }
}

impl Worker {
    /// Takes the lock of a line of words, does something and gives it back.
    pub(super) async fn lock(&mut self) {
        let line = GAddr(self.pick_word().0 / LINE_BYTES * LINE_BYTES);
        let (write, wait_ms) = (self.rng.chance_ppm(700_000), self.rng.below(4));
        self.begin("lock");
        let result = self.handle.lock(LockRange::line(line), write, wait_ms).await;
        let now_sure = self.scene.model.nothing_lost();
        if let Ok(guard) = &result {
            let is_sure = now_sure && self.handle.is_local(guard.link);
            let hold = Hold { write, token: guard.token, is_sure };
            let wrong = self.scene.model.locks.borrow_mut().granted(line.0, self.ctx.id, hold);
            if let Some(wrong) = wrong.filter(|_| self.scene.model.nothing_lost()) {
                self.violated("locks", format!("{line}: {wrong}"));
            }
        }
        self.end("lock", &result).await;
        self.check_error("lock", &result);
        let Ok(guard) = result else { return };
        match self.rng.below(3) {
            0 => self.ctx.sleep(Ps::ns(self.rng.below(1_000_000))).await,
            1 => self.move_locked(line).await,
            _ => self.word().await,
        }
        let was_sure = self.handle.is_local(guard.link) && self.scene.model.nothing_lost();
        self.scene.model.locks.borrow_mut().given_back(line.0, self.ctx.id);
        if self.rng.chance_ppm(DROPPED_PPM) {
            return self.drop_locked(guard).await;
        }
        self.begin("unlock");
        let held = self.handle.unlock(guard);
        self.end("unlock", &held).await;
        let lost = matches!(held, Err(Error::LockLost { .. }));
        if lost && was_sure && self.scene.model.nothing_lost() {
            self.violated("locks", format!("{line}: a lock of the own host was lost"));
        }
    }

    /// The guard is dropped; then the lock is this client's to take again.
    async fn drop_locked(&mut self, guard: SimGuard) {
        self.handle.drop_guard(guard);
        if self.rng.chance_ppm(AGAIN_PPM) {
            return;
        }
        self.begin("lock-again");
        let result = self.handle.lock(LockRange::line(guard.first), true, 0).await;
        self.end("lock-again", &result).await;
        match result {
            Ok(again) => drop(self.handle.unlock(again)),
            Err(Error::AlreadyLocked { token, .. }) if token == guard.token => {
                let text = format!("{}: a lock that was given back is held", guard.first);
                self.violated("locks", text);
            }
            Err(_) => self.check_error("lock-again", &result),
        }
    }

    /// A page with a lock stays where it is.
    async fn move_locked(&mut self, line: GAddr) {
        let to = self.any_rack();
        self.begin("migrate-locked");
        let result = self.handle.migrate(line, to).await;
        self.end("migrate-locked", &result).await;
        if !matches!(result, Err(Error::NotMapped { .. } | Error::Lost { .. })) {
            self.check_error("migrate-locked", &result);
        }
    }
}
