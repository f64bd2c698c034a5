//! Locks that a client of the host gives back without a message: it fills a word of its slot with
//! the lock's token and rings the doorbell; the daemon ends the grant and empties the word, at the
//! latest with its next heartbeat. So the end of a guard neither waits nor fails.

use crate::constants::LOCK_RELEASES;
use crate::layout::release_offset;
use crate::seam::Mem;

/// The client's side: fills a word of its slot; `false` if none is free. The caller rings the
/// doorbell.
pub fn put<M: Mem>(slot: &M, token: u64) -> bool {
    // A word that both hosts write takes atomics between them: then it is said by a request.
    let mut words = (0..LOCK_RELEASES).map(release_offset);
    slot.is_coherent() && words.any(|at| slot.compare_exchange(at, 0, token).is_ok())
}

/// The daemon's side: a token and the offset of its word, which the daemon empties when the lock
/// is given back. Only the client fills a word, and only an empty one.
pub fn first<M: Mem>(slot: &M) -> Option<(u64, u64)> {
    let words = (0..LOCK_RELEASES).map(release_offset).filter(|_| slot.is_coherent());
    words.map(|at| (slot.load(at), at)).find(|(token, _)| *token != 0)
}
