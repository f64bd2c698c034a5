//! Clients read and write what others have.

use super::Worker;
use super::range_model::LINE_BYTES;
use rackpool_core::GAddr;

impl Worker {
    /// Another client's memory, which may be freed meanwhile: whole pages are read and written,
    /// because whatever comes late for them must hit no other client; objects are only read.
    pub(super) async fn other(&mut self) {
        let Some((addr, bytes, serial)) = self.pick_other() else {
            return self.read_mine().await;
        };
        let is_pages = bytes > self.handle.page_bytes() / 2;
        let offset = self.rng.below(bytes);
        let len = self.rng.between(1, (bytes - offset).min(300));
        if is_pages && self.rng.chance_ppm(400_000) {
            let (offset, len) = self.writable((offset, len), bytes);
            return self.write_other(GAddr(addr.0 + offset), len).await;
        }
        let at = GAddr(addr.0 + offset);
        let mut found = vec![0xee; len as usize];
        let called = self.begin("read-other");
        let result = self.read_some_way(at, &mut found).await;
        self.end("read-other", &result).await;
        let objects = self.scene.model.objects.borrow();
        let same = objects.get(&addr.0).is_some_and(|object| object.serial == serial);
        drop(objects);
        if !same && !is_pages {
            // An object's address is handed out again: anything may have been there.
            return;
        }
        if result.is_ok() {
            let (id, now) = (self.ctx.id.0, self.ctx.now());
            let model = &self.scene.model.bytes;
            let checked = model.borrow_mut().read(id, at.0, &found, called, now);
            self.must(checked);
        }
        self.refused(at, called, &result);
    }

    async fn write_other(&mut self, at: GAddr, len: u64) {
        let first = self.rng.next_u64() | 1;
        let data: Vec<u8> = (0..len).map(|at| (first.wrapping_mul(at + 1) >> 24) as u8).collect();
        let called = self.begin("write-other");
        let id = self.ctx.id.0;
        let write = self.scene.model.bytes.borrow_mut().write_called(id, at.0, &data, called);
        let result = self.write_some_way(at, &data).await;
        self.end("write-other", &result).await;
        let now = self.ctx.now();
        if let (Ok(write), Ok(())) = (&write, &result) {
            self.scene.model.bytes.borrow_mut().write_done(*write, now, now);
        }
        self.refused(at, called, &result);
    }

    /// What of an allocation is written where a part of it is to be. Whole pages are written by
    /// several clients at a time. Where only the software keeps caches coherent, no two hosts may
    /// write parts of one line then (docs/coherence.md), so there whole lines are written.
    pub(super) fn writable(&self, (offset, len): (u64, u64), bytes: u64) -> (u64, u64) {
        let is_pages = bytes > self.handle.page_bytes() / 2;
        let mut racks = self.scene.cluster.racks.iter();
        if !is_pages || racks.all(|rack| rack.coherence.is_hardware()) {
            return (offset, len);
        }
        let first = offset / LINE_BYTES * LINE_BYTES;
        let end = (offset + len).next_multiple_of(LINE_BYTES).min(bytes);
        (first, end - first)
    }

    pub(super) fn pick_other(&mut self) -> Option<(GAddr, u64, u64)> {
        let objects = self.scene.model.objects.borrow();
        let page = self.handle.page_bytes();
        // Whole pages first: their frames are used again by others.
        let pages = self.rng.chance_ppm(700_000);
        let others = objects.iter().filter(|(_, one)| {
            !one.words && !one.owned && !one.freeing && (!pages || one.bytes > page / 2)
        });
        let count = others.clone().count() as u64;
        if count == 0 {
            return None;
        }
        let mut others = others;
        let (addr, one) = others.nth(self.rng.below(count) as usize)?;
        Some((GAddr(*addr), one.bytes, one.serial))
    }
}
