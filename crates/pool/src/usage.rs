//! What a handle tells its daemon of the pages that it uses, and what daemons decided about pages.

use crate::clock;
use crate::handle::{Handle, unexpected_reply};
use rackpool_core::policy::DecisionRecord;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{RackId, Result};

impl Handle {
    /// After an access: tells the daemon which pages were used, if it is time.
    #[inline(always)]
    pub(crate) fn report_if_due(&mut self) {
        if self.client.use_is_due() {
            self.report_use();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_use(&mut self) {
        self.links.report_use(&mut self.client, &mut self.endpoint);
    }

    /// What this handle does says nothing of where pages are used.
    pub(crate) fn never_count_use(&mut self) {
        self.links.never_count_use();
        self.client.count_use(false);
    }

    /// What the daemon of a rack decided about pages at home there, from decision number `from`
    /// on, with their numbers: the last 1024 at most, counted from 1 since the daemon started. Each
    /// record holds all that was known, and [`rackpool_core::policy::replay`] decides it again.
    /// Blocks for one request to the rack for every 16 decisions.
    ///
    /// # Errors
    /// `no-such-rack`, `peer-dead`, `timeout`.
    pub fn decisions(&mut self, rack: RackId, from: u64) -> Result<Vec<(u64, DecisionRecord)>> {
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        let (mut all, mut from): (Vec<(u64, DecisionRecord)>, u64) = (Vec::new(), from);
        loop {
            match self.ask_daemon(rack, Request::Decisions { from }, deadline_ns)? {
                Reply::Decisions(part) => {
                    let Some((last, _)) = part.last() else { return Ok(all) };
                    from = last.saturating_add(1).max(from.saturating_add(1));
                    all.extend(part);
                }
                other => return Err(unexpected_reply(rack, &other)),
            }
        }
    }
}
