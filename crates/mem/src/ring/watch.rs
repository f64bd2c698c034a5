//! The watch word of a client: whether the server looks at the client's requests by itself. A
//! client that is watched publishes and is seen; only one that is not has to set its bit in the
//! [ready bitmap](super::bitmap), which costs a line that all clients share.
//!
//! In: a window and the offset of the word, 1 while the server looks, else 0. The server takes a
//! client's bit, watches it, and gives that up after a while without requests; while it watches any
//! client it does not sleep.
//!
//! Ordering: the client publishes its request, executes a full fence, looks at the word; the server
//! stores 0, executes a full fence, looks once more for a request. One of the two sees the other.
//! To begin needs no fence: a client that has not seen the 1 sets its bit, which is looked at.
//!
//! Source: HERD §4.2 (the server polls the request region), without its scan of all clients.

use crate::window::Window;
use rackpool_core::seam::Mem;

/// Client: whether the server looks by itself; after the request has been published. If not, the
/// bit in the bitmap has to be set.
#[inline]
#[must_use = "a client that is not watched is not seen without its bit"]
pub fn is_watched(window: &Window, offset: u64) -> bool {
    // Pairs with the fence in ring/watch.rs::end.
    window.fence();
    window.load(offset) != 0
}

/// Server: looks at the client's requests from now on, the ones that are there already included.
pub fn begin(window: &Window, offset: u64) {
    window.store(offset, 1);
}

/// Server: looks no more; `false`, and it has to go on looking, if `is_ready` finds a request now.
#[must_use = "a request that was found has to be served"]
pub fn end(window: &Window, offset: u64, is_ready: impl FnOnce() -> bool) -> bool {
    window.store(offset, 0);
    // Pairs with the fence in ring/watch.rs::is_watched.
    window.fence();
    if is_ready() {
        window.store(offset, 1);
        return false;
    }
    true
}
