//! Liveness: once nothing is faulty any more, every operation ends within a bound of virtual
//! time, with whatever answer. While faults go on nothing is promised here.

use super::Violation;
use crate::time::Ps;
use std::collections::BTreeMap;

const CHECKER: &str = "live";

/// An operation that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(u64);

#[derive(Clone, Debug)]
struct Open {
    client: u32,
    what: String,
    waits_for: String,
    called: Ps,
}

#[derive(Clone, Debug)]
pub struct Liveness {
    bound: Ps,
    /// Since when nothing is faulty; `None` while something is.
    calm_since: Option<Ps>,
    open: BTreeMap<OperationId, Open>,
    called: u64,
    longest: Ps,
}

impl Liveness {
    /// Nothing is faulty and nothing was called. An operation may last `bound`.
    pub fn new(bound: Ps) -> Liveness {
        let calm_since = Some(Ps::ZERO);
        Liveness { bound, calm_since, open: BTreeMap::new(), called: 0, longest: Ps::ZERO }
    }

    /// A client called an operation.
    pub fn called(&mut self, client: u32, what: impl Into<String>, at: Ps) -> OperationId {
        let id = OperationId(self.called);
        self.called += 1;
        let waits_for = "its first step".to_owned();
        self.open.insert(id, Open { client, what: what.into(), waits_for, called: at });
        id
    }

    /// What the operation waits for from now on, for the report.
    pub fn waits_for(&mut self, id: OperationId, what: impl Into<String>) {
        if let Some(open) = self.open.get_mut(&id) {
            open.waits_for = what.into();
        }
    }

    /// It ended, with whatever answer: too late is a violation even then.
    pub fn ended(&mut self, id: OperationId, at: Ps) -> Result<(), Violation> {
        let Some(open) = self.open.remove(&id) else { return Ok(()) };
        let Some(counted) = self.counted(&open, at) else { return Ok(()) };
        self.longest = self.longest.max(counted);
        self.judge(&open, counted, at)
    }

    /// The client is gone, and with it what it had called.
    pub fn client_gone(&mut self, client: u32) {
        self.open.retain(|_, open| open.client != client);
    }

    /// Something is faulty from now on.
    pub fn fault_began(&mut self) {
        self.calm_since = None;
    }

    /// Nothing is faulty any more.
    pub fn faults_ended(&mut self, at: Ps) {
        self.calm_since.get_or_insert(at);
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The longest time that an operation took while nothing was faulty.
    pub fn longest(&self) -> Ps {
        self.longest
    }

    /// When [`Liveness::check`] would next find something, if nothing ends before.
    pub fn deadline(&self) -> Option<Ps> {
        let calm = self.calm_since?;
        let first = self.open.values().map(|open| open.called.max(calm)).min()?;
        Some(first + self.bound)
    }

    /// Looks for an operation that should have ended.
    pub fn check(&self, now: Ps) -> Result<(), Violation> {
        for open in self.open.values() {
            if let Some(counted) = self.counted(open, now) {
                self.judge(open, counted, now)?;
            }
        }
        Ok(())
    }

    /// How long the operation has lasted without faults.
    fn counted(&self, open: &Open, now: Ps) -> Option<Ps> {
        Some(now.saturating_sub(open.called.max(self.calm_since?)))
    }

    fn judge(&self, open: &Open, counted: Ps, now: Ps) -> Result<(), Violation> {
        if counted <= self.bound {
            return Ok(());
        }
        let Open { client, what, waits_for, called } = open;
        let age = now.saturating_sub(*called);
        let text = format!(
            "{what} of client {client} is {age} old, {counted} of it without a fault, of {} \
             allowed; it waits for {waits_for}",
            self.bound
        );
        Err(Violation::new(CHECKER, now, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_hangs_is_named_with_what_it_waits_for() {
        let mut live = Liveness::new(Ps::ms(10));
        let quick = live.called(1, "read of 64 bytes", Ps::ms(1));
        let slow = live.called(2, "alloc of 4096 bytes", Ps::ms(2));
        live.waits_for(slow, "the answer of daemon 1");
        assert_eq!(live.deadline(), Some(Ps::ms(11)));
        live.ended(quick, Ps::ms(3)).unwrap();
        live.check(Ps::ms(12)).unwrap();
        let text = live.check(Ps::ms(13)).unwrap_err().text;
        assert!(text.contains("alloc of 4096 bytes of client 2"), "{text}");
        assert!(text.contains("waits for the answer of daemon 1"), "{text}");
        assert_eq!((live.open(), live.longest()), (1, Ps::ms(2)));
    }

    #[test]
    fn time_counts_from_the_end_of_the_last_fault() {
        let mut live = Liveness::new(Ps::ms(10));
        let id = live.called(1, "read", Ps::ms(1));
        live.fault_began();
        live.check(Ps::ms(500)).unwrap();
        assert_eq!(live.deadline(), None);
        live.faults_ended(Ps::ms(500));
        live.faults_ended(Ps::ms(505));
        live.check(Ps::ms(510)).unwrap();
        assert!(live.check(Ps::ms(511)).is_err());
        // An end that comes too late is no excuse.
        assert!(live.ended(id, Ps::ms(511)).is_err());
        live.check(Ps::ms(600)).unwrap();
    }

    #[test]
    fn what_a_dead_client_called_need_not_end() {
        let mut live = Liveness::new(Ps::ms(10));
        let id = live.called(1, "read", Ps::ms(1));
        live.client_gone(1);
        live.check(Ps::ms(500)).unwrap();
        live.ended(id, Ps::ms(500)).unwrap();
    }
}
