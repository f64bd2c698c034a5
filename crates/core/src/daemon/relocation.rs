//! What the worker that moves pages for this rack is to do next: empty the rack if it is being
//! drained; else send a cold page away, or fetch a hot one.

use crate::constants::SLOTS_MAX;
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::member::RackState;
use crate::relocation::{RelocationQuery, RelocationReport, SendResult};
use crate::wire::Reply;

impl Daemon {
    /// Whether [`Request::NextMove`](crate::wire::Request::NextMove) has something to answer, even
    /// to a worker that does not say how full the pool is.
    pub fn wants_move(&self) -> bool {
        self.standing() == RackState::Draining || !self.is_leaving() && self.heat.wants_page()
    }

    pub(super) fn next_move<W: World>(
        &mut self,
        record: u32,
        query: RelocationQuery,
        world: &mut W,
    ) -> Result<Reply> {
        if record >= SLOTS_MAX {
            let reason = "only clients of the own rack move pages for it".into();
            return Err(Error::Denied { reason });
        }
        let RelocationQuery { costs, last, balance } = query;
        match last {
            Some(RelocationReport::Pulled(report)) => {
                let page_bytes = self.layout.pages.page_bytes();
                self.heat.take_report(&report, &costs, page_bytes);
            }
            Some(RelocationReport::Sent(page, result)) if self.is_leaving() => {
                self.leaving.note(page, result);
            }
            Some(RelocationReport::Sent(page, SendResult::Stays(_))) => self.heat.rest(page),
            Some(RelocationReport::Sent(..)) | None => {}
        }
        if self.is_leaving() {
            return Ok(Reply::NextMove(Some(self.next_evacuation(world))));
        }
        let push = balance.and_then(|query| self.next_push(query, world));
        Ok(Reply::NextMove(push.or_else(|| self.next_pull(costs, world))))
    }
}
