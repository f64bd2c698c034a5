//! Answers on their way to a client: bytes of our own, and large values that stay in the cache's
//! memory until they are sent. Owned by a worker while commands run, by a connection while its
//! client is slow. Nothing here makes a system call; `connection.rs` sends what [`Output::pieces`]
//! names and says how much went.

use crate::cache::{Error, Pinned};
use rackpool_hw::window::Piece;

/// Bytes of a value in another tier that lie here while it is sent, at most.
const FAR_BYTES_MAX: u64 = 128 << 10;

/// Answers that were not sent yet, in order.
#[derive(Debug, Default)]
pub struct Output {
    /// Copied bytes, between the pinned values.
    pub bytes: Vec<u8>,
    pins: Vec<PinnedValue>,
    /// Copied bytes that were sent.
    sent: usize,
    /// Values that were sent whole.
    pins_sent: usize,
    /// Bytes of the value after those that were sent.
    pin_sent: u64,
    /// Bytes of all pinned values.
    pinned_bytes: u64,
    /// Values that could not be read.
    failed: u64,
}

/// A pinned value among copied bytes.
#[derive(Debug)]
struct PinnedValue {
    /// It stands before the byte of this index.
    at: usize,
    len: u64,
    /// It lies in another tier of memory.
    is_far: bool,
    value: Pinned,
}

impl Output {
    /// Bytes that were not sent yet.
    pub fn len(&self) -> u64 {
        let own = (self.bytes.len() - self.sent) as u64;
        own + self.pinned_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that it takes beside the cache's, bytes.
    pub fn held_bytes(&self) -> u64 {
        let far = self.pins.iter().filter(|pin| pin.is_far);
        let far: u64 = far.map(|pin| pin.len.min(FAR_BYTES_MAX)).sum();
        (self.bytes.capacity() + self.pins.capacity() * size_of::<PinnedValue>()) as u64 + far
    }

    /// Memory of the cache that it keeps from being used for anything else, bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.pins.iter().filter(|pin| !pin.is_far).map(|pin| pin.len).sum()
    }

    /// Puts a value behind what there is, without a copy; `is_far`: it lies in another tier.
    pub fn push_pinned(&mut self, value: Pinned, is_far: bool) {
        let (at, len) = (self.bytes.len(), value.len());
        self.pinned_bytes += len;
        self.pins.push(PinnedValue { at, len, is_far, value });
    }

    /// All that is to be sent, if no value of the cache is among it.
    pub fn own_bytes(&self) -> Option<&[u8]> {
        self.pins.is_empty().then(|| &self.bytes[self.sent..])
    }

    /// Gets what [`Output::pieces`] names first where it lies in another tier of memory.
    ///
    /// # Errors
    /// The tier failed: what was begun cannot be sent whole.
    pub fn load(&mut self) -> Result<(), Error> {
        match self.pins.get_mut(self.pins_sent) {
            Some(PinnedValue { at, value, .. }) if *at == self.sent => {
                value.load(self.pin_sent).inspect_err(|_| self.failed += 1)
            }
            _ => Ok(()),
        }
    }

    /// Calls `piece` with what is to be sent, in order, until it says that it has enough.
    pub fn pieces<'a>(&'a self, mut piece: impl FnMut(Piece<'a>) -> bool) {
        let mut from = self.sent;
        let mut skip = self.pin_sent;
        for PinnedValue { at, value, .. } in &self.pins[self.pins_sent..] {
            if *at > from && !piece(Piece::Private(&self.bytes[from..*at])) {
                return;
            }
            from = *at;
            if !value.pieces(std::mem::take(&mut skip), &mut piece) {
                return;
            }
        }
        if from < self.bytes.len() {
            piece(Piece::Private(&self.bytes[from..]));
        }
    }

    /// Takes away `count` bytes that were sent. Values are unpinned as soon as they are sent.
    pub fn advance(&mut self, count: u64) {
        if self.pins.is_empty() {
            self.sent += count as usize;
        } else {
            self.advance_pins(count);
        }
        if self.is_empty() {
            self.clear();
        }
    }

    fn advance_pins(&mut self, mut count: u64) {
        while count > 0 {
            let next = self.pins.get(self.pins_sent);
            let end = next.map_or(self.bytes.len(), |pin| pin.at);
            let own = count.min((end - self.sent) as u64);
            self.sent += own as usize;
            count -= own;
            let Some(&PinnedValue { len, .. }) = next else {
                assert!(count == 0, "{count} bytes more were sent than there are");
                return;
            };
            let pinned = count.min(len - self.pin_sent);
            self.pin_sent += pinned;
            self.pinned_bytes -= pinned;
            count -= pinned;
            if self.sent == end && self.pin_sent == len {
                (self.pins_sent, self.pin_sent) = (self.pins_sent + 1, 0);
            }
        }
        if self.pins_sent == self.pins.len() {
            self.pins.clear();
            self.pins_sent = 0;
        } else if self.pins_sent >= 64 {
            self.pins.drain(..self.pins_sent);
            self.pins_sent = 0;
        }
    }

    /// Takes back what was put behind own byte `start`, since a value of it could not be read.
    #[cold]
    pub fn fail(&mut self, start: usize) {
        self.truncate(start);
        self.failed += 1;
    }

    /// Values that could not be read since this was last asked.
    #[inline]
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pins.clear();
        (self.sent, self.pins_sent, self.pin_sent, self.pinned_bytes) = (0, 0, 0, 0);
    }

    /// Takes back what was put behind own byte `start`.
    pub fn truncate(&mut self, start: usize) {
        self.bytes.truncate(start);
        while let Some(PinnedValue { at, len, .. }) = self.pins.last()
            && *at > start
        {
            self.pinned_bytes -= len;
            self.pins.pop();
        }
    }
}
