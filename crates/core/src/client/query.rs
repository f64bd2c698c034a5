//! Questions to one daemon, and questions and orders to the master, each with the answer that fits
//! it. In: from a program, an operator, or the upkeep of a data structure. Out: the message, then
//! its answer as a type of its own; any other answer breaks the protocol. What carries a
//! question needs to know neither.

use crate::addr::{GAddr, PageId, RackId};
use crate::error::{Error, Result};
use crate::heat::PageUse;
use crate::member::{DrainReport, Member, MemberAnswer, MemberCall, RackState};
use crate::placement::LogPiece;
use crate::policy::{BalanceRecord, DecisionRecord};
use crate::tier::TierReport;
use crate::wire::{
    AuditReply, AuditRequest, DaemonStats, MasterAnswer, MasterCall, MasterStats, PageHome,
    RackInfo, Reply, Request, Resolved, SessionState,
};

/// A question to a daemon that is answered with an `A`.
#[derive(Clone, Debug)]
pub struct DaemonQuery<A> {
    request: Request,
    take: fn(Reply) -> std::result::Result<A, Reply>,
}

impl<A> DaemonQuery<A> {
    pub fn request(&self) -> Request {
        self.request.clone()
    }

    /// What the daemon of a rack has answered.
    ///
    /// # Errors
    /// `protocol` if that answers something else.
    pub fn answer(&self, rack: RackId, reply: Reply) -> Result<A> {
        (self.take)(reply).map_err(|other| Error::Protocol {
            peer: format!("daemon of rack {rack}"),
            reason: format!("unexpected answer {other:?}"),
        })
    }
}

/// One variant of a [`Reply`], or another one back.
macro_rules! take {
    ($pattern:pat => $answer:expr) => {
        |reply| match reply {
            $pattern => Ok($answer),
            other => Err(other),
        }
    };
}

impl DaemonQuery<()> {
    /// Whether it is there.
    pub fn ping() -> Self {
        Self { request: Request::Ping, take: take!(Reply::Pong => ()) }
    }

    /// No question: how a handle used pages since it said so last.
    pub fn note_use(pages: Vec<PageUse>) -> Self {
        Self { request: Request::NoteUse { pages }, take: take!(Reply::Noted => ()) }
    }
}

impl DaemonQuery<(DaemonStats, TierReport)> {
    /// Its counters, and what it says of its memories if it has several.
    pub fn stats() -> Self {
        let take = |reply: Reply| match reply {
            Reply::Stats(stats) => Ok((*stats, TierReport::default())),
            Reply::TieredStats(stats, tiers) => Ok((*stats, tiers)),
            other => Err(other),
        };
        Self { request: Request::Stats, take }
    }
}

impl DaemonQuery<Vec<SessionState>> {
    /// Some of its sessions, from a record on; none after the last.
    pub fn sessions(from: u32) -> Self {
        Self { request: Request::Sessions { from }, take: take!(Reply::Sessions(part) => part) }
    }
}

impl DaemonQuery<Vec<(u64, DecisionRecord)>> {
    /// Some of what it decided about its pages, from a number on; nothing after the last.
    pub fn decisions(from: u64) -> Self {
        Self { request: Request::Decisions { from }, take: take!(Reply::Decisions(part) => part) }
    }
}

impl DaemonQuery<Vec<(u64, BalanceRecord)>> {
    /// Some of what it decided about the balance of the pool, from a number on; nothing after the
    /// last.
    pub fn balances(from: u64) -> Self {
        Self { request: Request::Balances { from }, take: take!(Reply::Balances(part) => part) }
    }
}

impl DaemonQuery<DrainReport> {
    /// What came of the last pass over the pages of a draining rack.
    pub fn drain_report() -> Self {
        Self { request: Request::DrainReport, take: take!(Reply::DrainReport(report) => report) }
    }
}

impl DaemonQuery<AuditReply> {
    pub fn audit(request: AuditRequest) -> Self {
        Self { request: Request::Audit(request), take: take!(Reply::Audit(reply) => reply) }
    }
}

/// A question or an order to the master that is answered with an `A`. It may be repeated.
#[derive(Clone, Debug)]
pub struct MasterQuery<A> {
    call: MasterCall,
    take: fn(MasterAnswer) -> Result<A>,
}

impl<A> MasterQuery<A> {
    pub fn call(&self) -> MasterCall {
        self.call.clone()
    }

    /// # Errors
    /// `protocol` if the answer is to something else.
    pub fn answer(&self, answer: MasterAnswer) -> Result<A> {
        (self.take)(answer)
    }
}

impl MasterQuery<MasterStats> {
    pub fn stats() -> Self {
        Self { call: MasterCall::Stats, take: |answer| answer.stats().map(|stats| *stats) }
    }
}

impl MasterQuery<Vec<RackInfo>> {
    pub fn racks() -> Self {
        Self { call: MasterCall::Racks, take: MasterAnswer::racks }
    }
}

impl MasterQuery<Option<PageHome>> {
    /// What the directory has of a page; `None` if it is nowhere, or lost.
    pub fn home(page: PageId) -> Self {
        let take = |answer: MasterAnswer| match answer {
            MasterAnswer::Homes(homes) => Ok(match homes.first() {
                Some(Resolved::Home(home)) => Some(*home),
                _ => None,
            }),
            other => Err(unexpected(&other)),
        };
        Self { call: MasterCall::Resolve { page, count: 1 }, take }
    }
}

impl MasterQuery<Vec<(String, GAddr)>> {
    /// Some names with their addresses, behind a name; none after the last.
    pub fn roots_after(after: &str) -> Self {
        Self { call: MasterCall::Roots { after: after.into() }, take: MasterAnswer::roots }
    }
}

impl MasterQuery<GAddr> {
    /// The address under a name; null if there is none.
    pub fn root(name: &str) -> Self {
        Self { call: MasterCall::GetRoot { name: name.into() }, take: MasterAnswer::root }
    }

    /// Sets it if it is `expected` now; answered with what it is then.
    pub fn set_root(name: &str, expected: GAddr, addr: GAddr) -> Self {
        let call = MasterCall::SetRoot { name: name.into(), expected, addr };
        Self { call, take: MasterAnswer::root }
    }
}

impl MasterQuery<LogPiece> {
    /// What led to choices of racks, from this byte of its log on.
    pub fn placements(from: u64) -> Self {
        Self { call: MasterCall::Placements(from), take: MasterAnswer::placements }
    }
}

impl MasterQuery<Vec<Member>> {
    /// All racks that ever joined.
    pub fn members() -> Self {
        let take = |answer: MasterAnswer| match answer.member()? {
            MemberAnswer::List(members) => Ok(members),
            other => Err(unexpected(&MasterAnswer::Member(other))),
        };
        Self { call: MasterCall::Member(MemberCall::List), take }
    }
}

/// Orders about racks, answered with what the rack is then.
impl MasterQuery<RackState> {
    fn order(call: MemberCall) -> Self {
        let take = |answer: MasterAnswer| match answer.member()? {
            MemberAnswer::RackState(standing) => Ok(standing),
            other => Err(unexpected(&MasterAnswer::Member(other))),
        };
        Self { call: MasterCall::Member(call), take }
    }

    /// The rack's pages move away, and it leaves when none is left.
    pub fn drain(rack: RackId) -> Self {
        Self::order(MemberCall::Drain(rack))
    }

    /// A draining rack serves again.
    pub fn undrain(rack: RackId) -> Self {
        Self::order(MemberCall::Undrain(rack))
    }

    /// The rack is to leave now, which is refused while it has pages.
    pub fn leave(rack: RackId) -> Self {
        Self::order(MemberCall::Leave(rack))
    }

    /// A rack with a dead daemon is given up with its pages.
    pub fn forget(rack: RackId) -> Self {
        Self::order(MemberCall::Forget(rack))
    }
}

fn unexpected(answer: &MasterAnswer) -> Error {
    Error::Protocol { peer: "master".into(), reason: format!("unexpected answer {answer:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_that_fits_a_question_is_taken() {
        let ping = DaemonQuery::ping();
        assert_eq!(ping.answer(RackId(2), Reply::Pong), Ok(()));
        let error = ping.answer(RackId(2), Reply::Noted).unwrap_err();
        assert_eq!(error.code(), "protocol");
        assert!(error.to_string().contains("rack 2"), "{error}");
        let drain = MasterQuery::drain(RackId(1));
        let state = RackState::Draining;
        let stands = MasterAnswer::Member(MemberAnswer::RackState(state));
        assert_eq!(drain.answer(stands), Ok(state));
        let listed = MasterAnswer::Member(MemberAnswer::List(Vec::new()));
        assert_eq!(drain.answer(listed).unwrap_err().code(), "protocol");
        assert_eq!(MasterQuery::racks().answer(MasterAnswer::Done).unwrap_err().code(), "protocol");
    }
}
