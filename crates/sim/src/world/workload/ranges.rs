//! Clients lock ranges of lines in areas that all of them use, and read and write under them,
//! through write buffer and page cache where the area is in another rack.

use super::Worker;
use super::range_model::{Grant, Key, LINE_BYTES, WORDS};
use crate::run::Fault;
use crate::time::Ps;
use crate::world::handle::SimGuard;
use rackpool_core::client::{CoupledOptions, LockRange};
use rackpool_core::{Error, GAddr, Result};

/// Most accesses under one lock.
const ACCESSES_MAX: u64 = 10;
/// Most lines that are read or written at once.
const LINES_AT_ONCE_MAX: u64 = 6;

/// A range that this client has locked.
#[derive(Clone, Copy)]
struct Range {
    guard: SimGuard,
    write: bool,
    /// A client that has it may be cut off.
    was_wanted: bool,
}

impl Range {
    fn lines(&self) -> u64 {
        (self.guard.end.0 - self.guard.first.0) / LINE_BYTES
    }

    fn key(&self, worker: &Worker) -> Key {
        (worker.ctx.id, self.guard.first.0, self.guard.token)
    }
}

impl Worker {
    /// How much this client buffers and caches: often so little that it is full at once.
    pub(super) fn couple(&mut self) {
        let write_buffer_bytes = [1 << 20, 0, 512, 2_048][self.rng.below(4) as usize];
        let page_cache_blocks = [50, 50, 1, 0][self.rng.below(4) as usize];
        let options =
            CoupledOptions { write_buffer_bytes, page_cache_blocks, ..CoupledOptions::default() };
        self.handle.set_coupled(options);
    }

    /// Locks a range, sometimes two, works under it and gives it back.
    pub(super) async fn ranges(&mut self) {
        let Some(first) = self.lock_range(None).await else { return };
        if self.rng.chance_ppm(250_000)
            && let Some(second) = self.lock_range(Some(first)).await
        {
            let goes_on = self.under(first).await;
            self.under(second).await;
            self.end_range(second).await;
            if goes_on {
                self.under(first).await;
            }
        } else {
            self.under(first).await;
        }
        self.end_range(first).await;
        if first.was_wanted && self.rng.chance_ppm(900_000) {
            // A client that comes back to it finds that its page is elsewhere.
            let to = self.any_rack();
            self.move_page(first.guard.first, to).await;
        }
    }

    /// Locks some lines, of another area than `but`.
    async fn lock_range(&mut self, but: Option<Range>) -> Option<Range> {
        let wanted = self.scene.model.ranges.borrow_mut().take_wanted(self.ctx.id);
        let wanted = wanted.filter(|_| but.is_none());
        let was_wanted = wanted.is_some();
        let (range, write, wait_ms) = match wanted {
            Some(range) => (range, true, 2_500),
            None => {
                let (first, lines) = self.pick_area(but.map(|but| but.guard.first.0))?;
                let from = self.rng.below(lines);
                let count = self.rng.between(1, lines - from);
                let start = first + LINE_BYTES * from;
                let geometry = self.handle.client().geometry();
                let bytes = LINE_BYTES * count;
                let range = LockRange::of(geometry, GAddr(start), bytes).expect("it is in a page");
                (range, self.rng.chance_ppm(550_000), self.rng.below(4))
            }
        };
        let asked = self.begin("lock-range");
        let result = self.handle.lock(range, write, wait_ms).await;
        if let Ok(guard) = &result {
            self.granted(*guard, write, asked);
        }
        self.end("lock-range", &result).await;
        self.check_error("lock-range", &result);
        result.ok().map(|guard| Range { guard, write, was_wanted })
    }

    /// An area that is there: its first byte and its lines.
    pub(super) fn pick_area(&mut self, but: Option<u64>) -> Option<(u64, u64)> {
        let model = self.scene.model.ranges.borrow();
        let is_other = |(first, lines): &(u64, u64)| {
            but.is_none_or(|but| !(*first..first + LINE_BYTES * lines).contains(&but))
        };
        let areas: Vec<(u64, u64)> = model.areas().filter(is_other).collect();
        (!areas.is_empty()).then(|| areas[self.rng.below(areas.len() as u64) as usize])
    }

    /// The model learns of a grant.
    fn granted(&mut self, guard: SimGuard, write: bool, asked: Ps) {
        let is_local = self.handle.is_local(guard.link);
        let grant = Grant {
            process: self.ctx.id,
            lines: (guard.first.0, guard.end.0),
            token: guard.token,
            write,
            is_local,
            rack: self.handle.client().rack_of(guard.link),
        };
        let are_sure = self.scene.model.nothing_lost();
        self.ctx.kernel.say(|| format!("client {}: has {grant:?}", self.ctx.id.0));
        let times = (asked, self.ctx.now());
        let wrong = self.scene.model.ranges.borrow_mut().granted(grant, are_sure, times);
        if let Some(wrong) = wrong.filter(|_| are_sure) {
            self.violated("ranges", wrong);
        }
    }

    /// Works under a lock until it is enough, which is `true`, or something went wrong.
    async fn under(&mut self, range: Range) -> bool {
        for _ in 0..self.rng.between(1, ACCESSES_MAX) {
            if self.handle.is_lost(&range.guard) {
                return false;
            }
            let goes_on = match self.rng.below(100) {
                0..45 if range.write => self.write_lines(range).await,
                0..80 => self.read_lines(range).await,
                80..84 => self.ask_for(range).await,
                84..88 if self.scene.config.faults.has(Fault::Partition) => {
                    self.linger(range).await;
                    true
                }
                88..92 => {
                    self.word().await;
                    true
                }
                92..94 => {
                    self.read_mine_if_any().await;
                    true
                }
                _ => {
                    self.ctx.sleep(Ps::ns(self.rng.below(50_000))).await;
                    true
                }
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// The client is cut off and away for so long that its lock may go to others, which want it.
    async fn linger(&mut self, range: Range) {
        if self.handle.is_local(range.guard.link) {
            return;
        }
        let time = match self.rng.below(3) {
            0 => Ps::us(self.rng.between(280_000, 450_000)),
            _ => Ps::us(self.rng.between(1_200_000, 3_000_000)),
        };
        let SimGuard { first, end, .. } = range.guard;
        let wanted = LockRange { first, end, is_coupled: true };
        self.scene.model.ranges.borrow_mut().want(wanted, self.ctx.id);
        self.begin("linger");
        self.ctx.kernel.reset_endpoints(self.ctx.id);
        self.ctx.sleep(time).await;
        if self.rng.chance_ppm(750_000) {
            // As when another page takes its place in the cache: the home is looked up again.
            self.handle.forget(first);
        }
        self.end_as("linger", "ok").await;
    }

    /// A part of a range: its first line and how many.
    fn pick_lines(&mut self, range: Range) -> (u64, u64) {
        let from = self.rng.below(range.lines());
        let count = self.rng.between(1, (range.lines() - from).min(LINES_AT_ONCE_MAX));
        (range.guard.first.0 + LINE_BYTES * from, count)
    }

    async fn write_lines(&mut self, range: Range) -> bool {
        let (first, count) = self.pick_lines(range);
        let mut data = Vec::new();
        self.begin("write-locked");
        for line in 0..count {
            self.next_value += 1;
            let value = self.next_value;
            (0..WORDS).for_each(|_| data.extend(value.to_le_bytes()));
            let at = first + LINE_BYTES * line;
            let mut model = self.scene.model.ranges.borrow_mut();
            model.write_called(range.key(self), at, value);
        }
        let result = self.handle.write(GAddr(first), &data).await;
        if result.is_err() {
            self.scene.model.ranges.borrow_mut().write_failed(range.key(self));
        }
        self.end("write-locked", &result).await;
        self.told(range, "write-locked", &result)
    }

    async fn read_lines(&mut self, range: Range) -> bool {
        let (first, count) = self.pick_lines(range);
        let mut found = vec![0xee; (LINE_BYTES * count) as usize];
        let called = self.begin("read-locked");
        let result = self.handle.read(GAddr(first), &mut found).await;
        self.end("read-locked", &result).await;
        if result.is_ok() {
            let words: Vec<u64> = found
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect();
            let mut model = self.scene.model.ranges.borrow_mut();
            let wrong = model.read(range.key(self), first, &words, called);
            drop(model);
            if let Some(wrong) = wrong {
                self.violated("ranges", wrong);
            }
        }
        self.told(range, "read-locked", &result)
    }

    async fn ask_for(&mut self, range: Range) -> bool {
        let called = self.begin("check-lock");
        let result = self.handle.check_lock(&range.guard);
        self.end("check-lock", &result).await;
        if result.is_ok() {
            self.was_held(range, called);
        }
        self.told(range, "check-lock", &result)
    }

    async fn end_range(&mut self, range: Range) {
        let called = self.begin("unlock-range");
        let key = range.key(self);
        self.scene.model.ranges.borrow_mut().unlock_called(key);
        let result = if self.rng.chance_ppm(250_000) {
            self.handle.drop_guard(range.guard);
            let settled = self.handle.bring_home().await;
            if !matches!(settled, Ok(()) | Err(Error::WritesLost { .. } | Error::LockLost { .. })) {
                self.check_error("bring-home", &settled);
            }
            settled
        } else {
            let result = self.handle.unlock(range.guard);
            if result.is_ok() {
                self.was_held(range, called);
            }
            result
        };
        self.end("unlock-range", &result).await;
        self.told(range, "unlock-range", &result);
        self.scene.model.ranges.borrow_mut().unlocked(key);
    }

    /// The pool says that the lock was held when it was asked.
    fn was_held(&mut self, range: Range, called: Ps) {
        let key = range.key(self);
        let wrong = self.scene.model.ranges.borrow().held(key, called);
        if let Some(wrong) = wrong.filter(|_| self.scene.model.nothing_lost()) {
            self.violated("ranges", wrong);
        }
    }

    /// Whether to go on under the lock. What was said of lost writes is noted by [`Worker::end`].
    fn told(&self, range: Range, what: &str, result: &Result<()>) -> bool {
        self.check_error(what, result);
        if self.handle.is_local(range.guard.link)
            && self.scene.model.nothing_lost()
            && let Err(Error::LockLost { addr, token } | Error::WritesLost { addr, token, .. }) =
                result
            && (*addr, *token) == (range.guard.first, range.guard.token)
        {
            self.violated("ranges", format!("{what}: a lock of the own host was lost"));
        }
        result.is_ok()
    }

    async fn read_mine_if_any(&mut self) {
        if !self.mine.is_empty() {
            self.read_mine().await;
        }
    }
}
