//! What differs between clients: how a message gets into a request slot, how the server learns of
//! it, where replies lie. Everything else is in `client.rs`.

use super::error::Result;
use super::message::Head;
use rackpool_mem::window::Window;
use std::time::Duration;

/// How long the server's welcome may take, or another answer before there is one.
pub(super) const WELCOME_WITHIN: Duration = Duration::from_secs(5);

/// The requests to one server thread.
#[derive(Clone, Copy, Default)]
pub struct Lane {
    pub(super) submitted: u64,
    pub(super) answered: u64,
    /// Requests that the server was notified of.
    pub(super) rung: u64,
    /// Requests up to this one were abandoned: their answers are not waited for.
    pub(super) given_up: u64,
    /// The last request with a reply that comes apart; 0 for none.
    pub(super) apart: u64,
    /// Where the slots of the next request and of the next answer begin: remainders are slow.
    pub(super) request_at: u64,
    pub(super) answer_at: u64,
}

impl Lane {
    /// Whether an answer is outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        self.answered < self.submitted
    }

    /// Outstanding requests that were not abandoned.
    pub(super) fn wanted(&self) -> u64 {
        self.submitted - self.answered.max(self.given_up)
    }

    /// The oldest outstanding request that was not abandoned; if there is none, the oldest that
    /// holds a window.
    pub(super) fn awaited(&self) -> u64 {
        if self.wanted() > 0 { self.answered.max(self.given_up) + 1 } else { self.answered + 1 }
    }
}

/// A client's transport to a server.
pub trait Transport {
    /// Polls in a row without an answer before [`Transport::is_gone`] is asked.
    const POLLS_MAX: u32;
    /// Polls between two looks at [`Transport::now_ns`].
    const POLLS_PER_CLOCK: u32;
    /// Looks for an answer without a pause between them, before those with.
    const LOOKS_EAGER: u32;

    /// Puts a message of this head, key and value into the slot that begins at `at` among those of
    /// a server thread.
    fn publish(&mut self, server: u32, at: u64, head: &Head, key: &[u8], value: &[u8]);

    /// Notifies a server thread of the requests behind `lane.rung` up to `lane.submitted`.
    fn ring(&mut self, server: u32, lane: &Lane) -> Result<()>;

    /// Notifies it again of all that it has not answered.
    fn remind(&mut self, server: u32, lane: &Lane) -> Result<()>;

    /// Takes what has come, such that it lies in the reply slots, in ordered form. Does not block.
    fn pump(&mut self, lanes: &[Lane]) -> Result<()>;

    /// The time of a clock that never goes back, nanoseconds: now, or of the last
    /// [`Transport::pump`].
    fn now_ns(&self) -> u64;

    /// The reply slots of a server thread.
    fn replies(&self, server: u32) -> &Window;

    /// Where the reply of a server thread comes to a request that is the only one under way there,
    /// if apart from the others.
    #[inline(always)]
    fn apart(&self, _server: u32) -> Option<&Window> {
        None
    }

    /// Whether the server has ended. May enter the kernel.
    fn is_gone(&mut self) -> bool;

    /// Sleeps until something comes, the server ends, or the time is up; not at all if `is_ready`
    /// says so.
    fn sleep(&mut self, timeout: Duration, is_ready: impl Fn(&Self) -> bool) -> Result<()>;
}
