//! Reads and writes that go by calls now and then: the model does not know the difference.

use super::Worker;
use crate::time::Ps;
use crate::world::handle::Mode;
use rackpool_core::rrpc::INLINE_BYTES_MAX;
use rackpool_core::{GAddr, Result};

/// One seed in so many has clients that call.
const SEEDS: u64 = 4;

impl Worker {
    /// Whether the next access is to be a call.
    fn calls(&mut self, at: GAddr, bytes: u64) -> bool {
        let page_bytes = self.handle.page_bytes();
        let in_page = at.0 % page_bytes + bytes <= page_bytes;
        self.scene.seed % SEEDS == SEEDS - 1 && in_page && self.rng.chance_ppm(500_000)
    }

    pub(super) async fn read_some_way(&mut self, at: GAddr, to: &mut [u8]) -> Result<()> {
        if !self.calls(at, to.len() as u64) {
            return self.handle.read(at, to).await;
        }
        if self.rng.chance_ppm(300_000) {
            // As if it were touched for the first time.
            self.handle.forget(at);
        }
        let mode = match self.rng.below(4) {
            0 => Mode::Inline,
            1 => Mode::OneSidedRead,
            _ => Mode::WriteBack,
        };
        let code =
            |result: &Result<()>| result.as_ref().map_or_else(|error| error.code(), |()| "ok");
        let patience = self.handle.timeout;
        if mode == Mode::WriteBack && self.rng.chance_ppm(200_000) {
            // A client that goes away with its buffer while the data may be on its way.
            self.handle.timeout = Ps::us(self.rng.between(1, 60));
        }
        let result = self.handle.fetch(at, to, mode).await;
        self.handle.timeout = patience;
        let name = match mode {
            Mode::Inline => "fetch-inline",
            Mode::OneSidedRead => "fetch-one-sided",
            Mode::WriteBack => "fetch-write-back",
        };
        self.scene.count_operation(name, code(&result));
        result
    }

    pub(super) async fn write_some_way(&mut self, at: GAddr, from: &[u8]) -> Result<()> {
        let bytes = from.len() as u64;
        if bytes > u64::from(INLINE_BYTES_MAX) || !self.calls(at, bytes) {
            return self.handle.write(at, from).await;
        }
        let result = self.handle.store(at, from).await;
        let code = result.as_ref().map_or_else(|error| error.code(), |()| "ok");
        self.scene.count_operation("store", code);
        result
    }
}
