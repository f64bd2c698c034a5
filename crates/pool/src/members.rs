//! Racks that come and go, for an operator: what they are to the pool, and the orders to drain one,
//! to let it serve again, and to give it up. A [`Monitor`] carries them.

use crate::clock;
use crate::links::unexpected_answer;
use crate::monitor::Monitor;
use rackpool_core::member::{DrainReport, Member, MemberAnswer, MemberCall, RackState};
use rackpool_core::wire::{MasterAnswer, MasterCall, Reply, Request};
use rackpool_core::{RackId, Result};

impl Monitor {
    /// All racks that ever joined, by number, those that have left among them. Blocks for up to the
    /// monitor's timeout.
    ///
    /// # Errors
    /// What the master's silence means: `timeout`, `peer-dead`, `version`.
    pub fn members(&mut self) -> Result<Vec<Member>> {
        match self.member_call(MemberCall::List)? {
            MemberAnswer::List(members) => Ok(members),
            other => Err(unexpected_answer(&MasterAnswer::Member(other))),
        }
    }

    /// From now on a rack takes no new memory, and its daemon moves its pages to other racks; when
    /// none is left the rack leaves the pool and its daemon ends. Returns at once; the answer is
    /// durable. What the rack is now: `draining`, or `left` if it has left before. A rack with
    /// several daemons is drained as a whole: each of its shards gets the order, and leaves by
    /// itself.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, RackId, RackState, cluster::Cluster, monitor::Monitor};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let addr = handle.alloc(4096, Placement::Rack(RackId(1)))?;
    /// handle.write(addr, b"moves away")?;
    /// let mut monitor = Monitor::new(vec![cluster.master_addr()], 5_000)?;
    /// monitor.drain(RackId(1))?;
    /// while monitor.members()?[1].standing != RackState::Left {
    ///     std::thread::sleep(std::time::Duration::from_millis(20));
    /// }
    /// assert_eq!(handle.explain(addr)?.rack, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Monitor::members`]; `no-such-rack`; `denied` if it was declared lost.
    pub fn drain(&mut self, rack: RackId) -> Result<RackState> {
        self.set_standing(rack, MemberCall::Drain)
    }

    /// A draining rack serves again, with the pages that it still has.
    ///
    /// # Errors
    /// As [`Monitor::members`]; `no-such-rack`; `denied` if it has left or was declared lost.
    pub fn undrain(&mut self, rack: RackId) -> Result<RackState> {
        self.set_standing(rack, MemberCall::Undrain)
    }

    /// Gives up a rack with a dead daemon: its pages are `lost` at once, for good, and its region
    /// may not come back.
    ///
    /// # Errors
    /// As [`Monitor::members`]; `no-such-rack`; `denied` while the daemon is alive, or has not been
    /// dead for a lease, or if the rack has left.
    pub fn forget(&mut self, rack: RackId) -> Result<RackState> {
        self.set_standing(rack, MemberCall::Forget)
    }

    /// What came of the last pass over the pages of a draining rack: which stay, and why. Blocks
    /// for a second at most.
    ///
    /// # Errors
    /// `peer-dead`, `timeout` if its daemon does not answer.
    pub fn drain_report(&mut self, member: &Member) -> Result<DrainReport> {
        match self.ask(&member.info, &Request::DrainReport)? {
            Reply::DrainReport(report) => Ok(report),
            other => Err(crate::handle::unexpected_reply(member.info.rack, &other)),
        }
    }

    /// Gives an order to all shards of a rack, the living ones first, until one is refused; what
    /// the rack is then ([`RackState::of_shards`]).
    fn set_standing(&mut self, rack: RackId, order: fn(RackId) -> MemberCall) -> Result<RackState> {
        let mut members = self.members()?;
        members.retain(|member| member.info.rack.same_rack(rack));
        members.sort_by_key(|member| !member.info.alive);
        let mut shards: Vec<RackId> = members.iter().map(|member| member.info.rack).collect();
        if shards.is_empty() {
            shards.push(rack);
        }
        let mut said = Vec::new();
        for shard in shards {
            said.push(match self.member_call(order(shard))? {
                MemberAnswer::RackState(standing) => standing,
                other => return Err(unexpected_answer(&MasterAnswer::Member(other))),
            });
        }
        Ok(RackState::of_shards(said))
    }

    fn member_call(&mut self, call: MemberCall) -> Result<MemberAnswer> {
        let deadline = clock::instant(clock::deadline_ns(self.timeout_ms));
        self.master.call(MasterCall::Member(call), deadline)?.member()
    }
}
