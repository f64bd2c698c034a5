//! When to look first for the answer to a request that is the only one under way. Each look takes
//! the answer's lines from the server, which has asked for them as soon as it saw the request: one
//! that comes before the server writes costs both sides a transfer. So the client does not look
//! before the answer should be there, which it learns: a look in vain was too early, one that found
//! the answer may have been too late. How long that is depends on how far apart the processors are.

/// What a first look in vain adds, in eighths of a pause; one that found the answer takes one away.
/// So eight of nine find it, and a few that come late, for whatever reason, delay no others.
const EARLY: u32 = 8;
/// Eighths of a pause that are waited at most: less than sleeping and being woken by far.
const MOST: u32 = 8 * 128;

/// The pause that a client has learnt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstLook {
    eighths: u32,
}

impl FirstLook {
    /// Pauses ([`look_again`](rackpool_mem::wait::look_again)) before the first look.
    #[inline(always)]
    pub fn pauses(self) -> u32 {
        self.eighths / 8
    }

    /// The first look has found the answer, or has not.
    #[inline(always)]
    pub fn learn(&mut self, has_found: bool) {
        self.eighths = match has_found {
            true => self.eighths.saturating_sub(1),
            false => (self.eighths + EARLY).min(MOST),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses after so many answers, the n-th of which comes after `after(n)` pauses.
    fn pauses(look: &mut FirstLook, count: u32, after: impl Fn(u32) -> u32) -> u32 {
        for number in 0..count {
            look.learn(look.pauses() >= after(number));
        }
        look.pauses()
    }

    #[test]
    fn the_first_look_comes_when_the_answer_does_and_follows_it() {
        let mut look = FirstLook::default();
        assert_eq!(pauses(&mut look, 10, |_| 0), 0);
        for after in [20, 7, 100, 0] {
            let found = pauses(&mut look, 2000, |_| after);
            assert!(found.abs_diff(after) <= 1, "{found} {after}");
        }
        // Of twenty answers one comes late: that one is not waited for.
        let found = pauses(&mut look, 2000, |number| if number % 20 == 0 { 90 } else { 12 });
        assert!((11..=16).contains(&found), "{found}");
        // A server that sleeps is not waited for without end.
        assert_eq!(pauses(&mut look, 2000, |_| u32::MAX), MOST / 8);
    }
}
