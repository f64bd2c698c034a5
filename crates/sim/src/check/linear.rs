//! A checker of concurrent histories: is there an order of the operations, each taking effect at
//! one moment between its call and its return, that a sequential model allows? Histories in,
//! verdict out; used by the simulator and by tests.
//!
//! An operation with an unknown outcome may have taken effect or not, and one that was repeated may
//! have taken effect several times ([`Times`]). An operation that never returned may take effect at
//! any later time, or never.
//!
//! The search is that of Wing and Gong with Lowe's memory of configurations already seen. It is
//! exponential at worst, so it has a limit; and since objects that are independent (words, keys)
//! are linearizable together if each is, [`Histories`] checks them one by one.
//!
//! Source: Wing & Gong, "Testing and verifying concurrent objects" (1993); Herlihy & Wing,
//! "Linearizability" (1990), locality; Lowe, "Testing for linearizability" (2017).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// What an object does when it is used by one client alone.
pub trait Model {
    type State: Clone + Ord + Debug;
    /// An operation together with what it answered.
    type Op: Debug;
    /// The state after `op`, or `None` if in this state `op` cannot answer what it did.
    fn step(state: &Self::State, op: &Self::Op) -> Option<Self::State>;

    /// Whether no operation of the history can tell that `op` took effect, so that one which may
    /// not have done so need not be looked at. Each that is spares half of the search.
    fn is_unseen(_op: &Self::Op, _history: &[Event<Self::Op>]) -> bool {
        false
    }
}

/// How often an operation took effect between its call and its return. One that did not return
/// may also not have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Once,
    /// Once or not at all: its outcome is unknown.
    AtMostOnce,
    /// Once or several times: it was repeated.
    OnceOrMore,
    /// Not at all, once or several times.
    Any,
}

impl Times {
    fn may_be_never(self) -> bool {
        matches!(self, Times::AtMostOnce | Times::Any)
    }

    fn may_be_repeated(self) -> bool {
        matches!(self, Times::OnceOrMore | Times::Any)
    }
}

/// One operation of a history. Times come from one clock that all clients share.
#[derive(Clone, Debug)]
pub struct Event<Op> {
    /// The client that did it. What one client did is in the order of its calls, even where times
    /// overlap (a store that waits in a store buffer has not returned for the others, but its own
    /// client goes on). `None`: the order of its calls does not count.
    pub client: Option<u32>,
    pub called: u64,
    /// When it returned, or when its effect was over for sure; `None` if it never did.
    pub returned: Option<u64>,
    /// How often it took effect.
    pub times: Times,
    /// What it was, and what it answered.
    pub op: Op,
}

impl<Op> Event<Op> {
    /// An operation that took effect once, if it returned.
    pub fn once(called: u64, returned: Option<u64>, op: Op) -> Event<Op> {
        Event { client: None, called, returned, times: Times::Once, op }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. At best, all operations that returned before this time fit.
    Violation {
        /// The return by which every order fails.
        returned: u64,
    },
    /// The search was given up after this many configurations.
    GaveUp {
        configurations: usize,
        /// All operations that returned before this time fit.
        returned: u64,
    },
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<S> {
    /// All events before this one are done.
    first: usize,
    /// Events after it that are done, ascending.
    done: Vec<usize>,
    state: S,
}

impl<S> Configuration<S> {
    fn is_done(&self, event: usize) -> bool {
        event < self.first || self.done.binary_search(&event).is_ok()
    }

    fn with(&self, event: usize, state: S) -> Configuration<S> {
        let (mut first, mut done) = (self.first, self.done.clone());
        if let Err(at) = done.binary_search(&event) {
            done.insert(at, event);
        }
        let run = done.iter().enumerate().take_while(|(at, done)| **done == first + at).count();
        done.drain(..run);
        first += run;
        Configuration { first, done, state }
    }

    fn changed(&self, state: S) -> Configuration<S> {
        Configuration { first: self.first, done: self.done.clone(), state }
    }
}

/// Checks a history that starts in state `initial`, looking at `configurations_max` configurations
/// at most.
pub fn check<M: Model>(
    initial: M::State,
    history: &[Event<M::Op>],
    configurations_max: usize,
) -> Verdict {
    let may_be_never = |e: &Event<M::Op>| e.returned.is_none() || e.times.may_be_never();
    let counts = |e: &&Event<M::Op>| !may_be_never(e) || !M::is_unseen(&e.op, history);
    let mut events: Vec<&Event<M::Op>> = history.iter().filter(counts).collect();
    events.sort_by_key(|event| event.called);
    let before = order_of_clients(&events);
    let mut stack = vec![Configuration { first: 0, done: Vec::new(), state: initial }];
    let mut seen = BTreeSet::new();
    let mut best = 0;
    while let Some(now) = stack.pop() {
        let open = |event: &usize| !now.is_done(*event);
        let Some(deadline) = next_deadline(&events, now.first, open) else {
            return Verdict::Linearizable;
        };
        best = best.max(deadline);
        // The next event must have been called before any event that is not done returned.
        let mut candidates: Vec<usize> = (now.first..events.len())
            .take_while(|event| events[*event].called <= deadline)
            .filter(open)
            .filter(|event| before[*event].is_none_or(|before| now.is_done(before)))
            .collect();
        // What is pushed last is tried first: what returned first is the likeliest to be next.
        candidates
            .sort_by_key(|event| std::cmp::Reverse(events[*event].returned.unwrap_or(u64::MAX)));
        for event in candidates {
            for next in successors::<M>(&now, event, events[event]).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        if seen.len() > configurations_max {
            return Verdict::GaveUp { configurations: seen.len(), returned: best };
        }
    }
    Verdict::Violation { returned: best }
}

/// The first return among the events from `first` on that are `open`; what was called after it
/// need not be looked at.
fn next_deadline<Op>(
    events: &[&Event<Op>],
    first: usize,
    open: impl Fn(&usize) -> bool,
) -> Option<u64> {
    let mut deadline: Option<u64> = None;
    for (index, event) in events.iter().enumerate().skip(first) {
        if deadline.is_some_and(|deadline| event.called > deadline) {
            break;
        }
        if let Some(returned) = event.returned.filter(|_| open(&index)) {
            deadline = Some(deadline.map_or(returned, |deadline| deadline.min(returned)));
        }
    }
    deadline
}

/// What may come next if `event` does: it never takes effect, it takes effect and more of it
/// follows, or it takes effect for the last time. The likeliest is last, to be tried first.
fn successors<M: Model>(
    now: &Configuration<M::State>,
    event: usize,
    what: &Event<M::Op>,
) -> [Option<Configuration<M::State>>; 3] {
    let state = M::step(&now.state, &what.op);
    let never = (what.times.may_be_never() && what.returned.is_some())
        .then(|| now.with(event, now.state.clone()));
    let changes = state.as_ref().filter(|state| **state != now.state);
    let again = changes.filter(|_| what.times.may_be_repeated()).map(|s| now.changed(s.clone()));
    [never, again, state.map(|state| now.with(event, state))]
}

/// For each event the one before it of the same client that has to be done first. One without
/// return holds none up: it may never be done.
fn order_of_clients<Op>(events: &[&Event<Op>]) -> Vec<Option<usize>> {
    let mut last: BTreeMap<u32, usize> = BTreeMap::new();
    let mut before = vec![None; events.len()];
    for (index, event) in events.iter().enumerate() {
        let Some(client) = event.client else { continue };
        before[index] = last.get(&client).copied();
        if event.returned.is_some() {
            last.insert(client, index);
        }
    }
    before
}

/// Histories of objects that are independent of each other, by their name (an address, a key).
#[derive(Clone, Debug)]
pub struct Histories<K, Op> {
    objects: BTreeMap<K, Vec<Event<Op>>>,
}

/// The object with a history that has no order, or was too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<K> {
    pub object: K,
    /// [`Verdict::Violation`] or [`Verdict::GaveUp`].
    pub verdict: Verdict,
    /// Its events around the time where every order fails, a line each.
    pub events: Vec<String>,
}

/// Events that [`Found`] shows at most.
const SHOWN_MAX: usize = 24;

impl<K, Op> Default for Histories<K, Op> {
    fn default() -> Self {
        Histories { objects: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, Op: Debug> Histories<K, Op> {
    /// Adds an operation on `object`.
    pub fn add(&mut self, object: K, event: Event<Op>) {
        self.objects.entry(object).or_default().push(event);
    }

    /// How many objects there are, and how many operations on them.
    pub fn size(&self) -> (usize, usize) {
        (self.objects.len(), self.objects.values().map(Vec::len).sum())
    }

    /// Checks every object by itself, from the state that `initial` gives it; the first violation,
    /// else the first search that was given up after `configurations_max` configurations.
    pub fn check<M: Model<Op = Op>>(
        &self,
        initial: impl Fn(&K) -> M::State,
        configurations_max: usize,
    ) -> Result<(), Found<K>> {
        let mut gave_up = None;
        for (object, history) in &self.objects {
            let verdict = check::<M>(initial(object), history, configurations_max);
            let found = |verdict: Verdict, at: u64| Found {
                object: object.clone(),
                verdict,
                events: around(history, at),
            };
            match verdict {
                Verdict::Linearizable => {}
                Verdict::Violation { returned } => return Err(found(verdict, returned)),
                Verdict::GaveUp { returned, .. } => {
                    gave_up.get_or_insert_with(|| found(verdict, returned));
                }
            }
        }
        gave_up.map_or(Ok(()), Err)
    }
}

/// The last events that were called before `at`.
fn around<Op: Debug>(history: &[Event<Op>], at: u64) -> Vec<String> {
    let mut events: Vec<&Event<Op>> = history.iter().filter(|e| e.called <= at).collect();
    events.sort_by_key(|event| event.called);
    let skip = events.len().saturating_sub(SHOWN_MAX);
    let line = |event: &&Event<Op>| {
        let client = event.client.map_or("-".to_owned(), |client| client.to_string());
        let returned = event.returned.map_or("never".to_owned(), |returned| returned.to_string());
        let times = if event.times == Times::Once { "" } else { " (perhaps not once)" };
        format!("client {client}: {} to {returned}: {:?}{times}", event.called, event.op)
    };
    events[skip..].iter().map(line).collect()
}

#[cfg(test)]
mod tests;
