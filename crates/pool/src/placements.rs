//! What led to the master's choices of racks, for a recording.

use crate::clock;
use crate::error::Result;
use crate::monitor::{Monitor, Sample};
use rackpool_core::RackId;
use rackpool_core::client::{DaemonQuery, MasterQuery};
use rackpool_core::placement::LogPiece;
use rackpool_core::policy::DecisionRecord;
use rackpool_core::wire::RackInfo;

impl Monitor {
    /// What the master was told, and chose, when it was asked for racks: its log from byte `from`
    /// on, or from its begin if that is forgotten. Empty at the end. Blocks for up to the monitor's
    /// timeout.
    ///
    /// # Errors
    /// What the master's silence means: `timeout`, `peer-dead`, `version`, `denied`.
    #[doc(hidden)]
    pub fn placements(&mut self, from: u64) -> Result<LogPiece> {
        let deadline = clock::instant(clock::deadline_ns(self.timeout_ms));
        Ok(self.master.ask(&MasterQuery::placements(from), deadline)?)
    }

    /// What the daemons that are alive in a sample decided about their pages, with all counts that
    /// it was made of: as many decisions as each remembers, by rack and number. Blocks for up to a
    /// second for every 16 decisions.
    ///
    /// # Errors
    /// As [`Monitor::placements`]; a daemon that is gone is left out.
    #[doc(hidden)]
    pub fn page_decisions(
        &mut self,
        sample: &Sample,
    ) -> Result<Vec<(RackId, u64, DecisionRecord)>> {
        let deadline = clock::instant(clock::deadline_ns(self.timeout_ms));
        let infos = self.master.ask(&MasterQuery::racks(), deadline)?;
        let mut all = Vec::new();
        let asked = |info: &&RackInfo| {
            sample.racks.iter().any(|rack| rack.rack == info.rack && rack.daemon.is_some())
        };
        for info in infos.iter().filter(asked) {
            let mut from = 0;
            while let Ok(part) = self.query(info, &DaemonQuery::decisions(from))
                && let Some((last, _)) = part.last()
            {
                from = last.saturating_add(1).max(from + 1);
                all.extend(part.into_iter().map(|(number, record)| (info.rack, number, record)));
            }
        }
        Ok(all)
    }
}
