//! Locks of a handle: what goes before a lock is asked for, what its answer means, and giving back
//! what has no guard any more. What is held and owed is [`HeldLocks`](crate::client::HeldLocks).

use super::{Host, Runtime};
use crate::addr::GAddr;
use crate::client::{HeldLock, LinkId, LockRange, OwedLock, Reach};
use crate::error::{Error, Result};
use crate::runtime::Environment;
use crate::wire::Reply;

/// How much longer than the daemon a handle waits for the answer to a lock request, ms: the
/// daemon's own answer says more.
pub const ANSWER_MS: u64 = 1_000;
/// How long giving back what dropped guards held may delay a call, ms; then it is tried again with
/// later calls.
const RELEASE_MS: u64 = 100;
/// How long calls are not delayed after that, ms.
const RETRY_MS: u64 = 1_000;

/// A lock that was granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// The number of its guard.
    pub id: u64,
    pub held: HeldLock,
}

/// How long a lock request that is sent again may still wait, if its call ends at the deadline.
pub(super) fn wait_left_ms<E: Environment>(environment: &E, deadline: E::Instant) -> u64 {
    E::between_ms(environment.now(), deadline).saturating_sub(ANSWER_MS)
}

impl<H: Host> Runtime<'_, H> {
    /// Before a lock is asked for: what was given up before must be out of the way if it was this
    /// very lock.
    pub async fn before_lock(&mut self, range: &LockRange, deadline: H::Instant) -> Result<()> {
        self.release_until(Some((range.first, range.end)), deadline).await?;
        self.release_owed().await;
        Ok(())
    }

    /// Takes the answer to the request for a lock; `asked` is the link that it was sent to.
    ///
    /// # Errors
    /// Those of the answer; the lock is owed then if it may have been granted.
    pub fn on_lock_answer(
        &mut self,
        range: LockRange,
        asked: Option<LinkId>,
        answer: Result<(LinkId, Reply)>,
    ) -> Result<Granted> {
        match answer {
            Ok((link, Reply::Locked { token })) => {
                let one_sided = matches!(self.client.reach(link), Reach::OneSided(_));
                let range = LockRange { is_coupled: range.is_coupled && one_sided, ..range };
                let held = HeldLock::new(link, self.client.rack_of(link), range, token);
                Ok(Granted { id: self.host.with_held(|locks| locks.take(held)), held })
            }
            Ok((_, other)) => Err(Error::Protocol {
                peer: "daemon".into(),
                reason: format!("{other:?} answers a lock"),
            }),
            Err(error) => {
                // The daemon may have granted what no caller will take.
                if let Some(link) = asked.filter(|_| error.is_open()) {
                    let owed = OwedLock { link, addr: range.first, end: range.end, token: 0 };
                    self.host.with_held(|locks| locks.owe(owed));
                }
                Err(error)
            }
        }
    }

    /// Gives back what dropped guards held, if anything, without delaying the caller for long.
    /// What fails is tried again later.
    pub async fn release_owed(&mut self) {
        let now = self.host.transport().now();
        if self.retry_releases_at.is_some_and(|at| now < at)
            || !self.host.with_held(|held| held.owes())
        {
            return;
        }
        let deadline = self.host.transport().after_ms(RELEASE_MS);
        if self.release_until(None, deadline).await.is_err() {
            *self.retry_releases_at = Some(self.host.transport().after_ms(RETRY_MS));
        }
    }

    /// Gives back what is owed, all of it or what meets a range. What fails goes behind the
    /// others, so that a rack that is gone does not hold up those of other racks.
    async fn release_until(
        &mut self,
        only: Option<(GAddr, GAddr)>,
        deadline: H::Instant,
    ) -> Result<()> {
        while let Some(release) = self.host.with_held(|held| held.next_release(only)) {
            let answer = self.daemon_call(release.link, release.request(), deadline).await;
            self.host.with_held(|held| held.released(release, answer.is_ok()));
            answer?;
        }
        Ok(())
    }
}
