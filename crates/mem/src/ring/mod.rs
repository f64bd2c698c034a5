//! The message rings of `rackpool_core::ring` over windows, with ends that sleep and wake, and the
//! ready bitmap by which many clients wake one server.

pub mod bitmap;
pub mod watch;

use crate::wait::{self, Pause, Waiter, sleep_until_woken};
use crate::window::Window;
use rackpool_core::ring::{self, CONSUMER_SLEEPING};
pub use rackpool_core::ring::{Geometry, HeldMessage, INLINE_BYTES, RingError, reset, reset_with};
use std::time::Instant;

pub type Consumer<M = Window> = ring::Consumer<M>;
pub type Producer<M = Window> = ring::Producer<M>;

/// Waits until a message can be taken, or the deadline; whether one can. Spins, then yields, then
/// sleeps; the producer has to call [`WakeConsumer::wake_if_sleeping`] after its pushes. The
/// deadline is looked at once spinning has ended, some 50 µs late at most. A caller that must
/// notice that the other side died gives a near deadline and looks in between.
pub fn wait(consumer: &Consumer, waiter: &mut Waiter, deadline: Instant) -> bool {
    loop {
        if consumer.is_ready() {
            waiter.progressed();
            return true;
        }
        let pause = waiter.pause();
        if pause == Pause::Spun {
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return consumer.is_ready();
        }
        if pause == Pause::Sleep {
            let is_ready = || consumer.is_ready();
            sleep_until_woken(consumer.window(), CONSUMER_SLEEPING, is_ready, left);
        }
    }
}

/// The end of a ring that can wake the other one.
pub trait WakeConsumer {
    /// Wakes the consumer if it sleeps; whether it did. To be called after a push, or after a batch
    /// of them; costs a full fence.
    fn wake_if_sleeping(&self) -> bool;
}

impl WakeConsumer for Producer {
    #[inline]
    fn wake_if_sleeping(&self) -> bool {
        wait::wake_if_sleeping(self.window(), CONSUMER_SLEEPING)
    }
}

/// Wakes the consumer of a ring, for a producer on another host, which cannot.
pub fn wake(window: &Window) {
    wait::wake(window, CONSUMER_SLEEPING);
}
