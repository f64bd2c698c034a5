//! How a long answer leaves that is copied to a client on the same host: as it is copied, or in one
//! burst when all of it is.
//!
//! A packet of loopback leaves as soon as it is full, and wakes a client that has done with the one
//! before, each time; a burst is read by a few calls, and both sides are spared some of their work.
//! But its client waits while it is copied: who is alone with a thread, and waits for nothing else,
//! is served sooner by single packets. So answers leave in bursts while several clients of a thread
//! ask for long values.
//!
//! In: who gets a long answer, and when. Out: whether in a burst. Neither clock nor system.

use crate::cache::Millis;

/// Bytes that are sent ahead of a burst: less than a packet of loopback, so that they wait for the
/// rest, and what follows waits behind them.
pub const HEAD_BYTES: u64 = 32 << 10;
/// Shorter answers leave as they are copied, bytes.
pub const LONG_BYTES: u64 = 192 << 10;
/// Whoever got a long answer so long ago asks for them still, ms.
const RECENT_MS: Millis = 5;

/// What a thread knows of those who ask it for long values.
#[derive(Debug, Default)]
pub struct Bursts {
    /// Who got the last long answer, and when.
    last: Option<(u64, Millis)>,
}

impl Bursts {
    /// A client is sent a long answer; whether in a burst.
    pub fn suit(&mut self, client: u64, now: Millis) -> bool {
        let last = self.last.replace((client, now));
        last.is_some_and(|(other, at)| other != client && now.abs_diff(at) <= RECENT_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_bursts_while_several_clients_ask() {
        let mut bursts = Bursts::default();
        assert!(!bursts.suit(1, 100), "it is alone");
        assert!(!bursts.suit(1, 100) && !bursts.suit(1, 101));
        assert!(bursts.suit(2, 102) && bursts.suit(1, 102) && bursts.suit(2, 107));
        assert!(!bursts.suit(2, 107), "the other one has nothing under way");
        assert!(!bursts.suit(1, 113), "the other one's is long over");
    }
}
