//! Whether long values are lent to sockets or copied: what costs a thread less here, as measured
//! while it serves. A copy costs what caches and memory of this host make it cost, a loan what its
//! kernel does for a page; either was seen at three quarters of the other, on one processor and the
//! next.
//!
//! In: the processor time of a thread, and the bytes of long values that it sends. Out: how they
//! are sent. All of a thread's time counts, since half of what a loan costs comes later, when
//! pages are given back: so many answers in a row go the same way, and then their time is known.
//! Neither clock nor system.

/// Answers of a row whose time is not counted: those before are still under way.
const UNCOUNTED: u32 = 8;
const ROW: u32 = 40;
/// Rows of each way that are remembered.
const REMEMBERED: usize = 4;
/// One row of so many goes the way that costs more, to learn whether it still does.
const TRIED_EVERY: u64 = 128;

/// How long values that may be lent are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// In whichever way costs less.
    #[default]
    Measured,
    Always,
}

/// How a value is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The socket is lent its memory.
    Loan,
    /// The socket is given a copy.
    Copy,
}

/// What a thread knows of both ways.
#[derive(Debug)]
pub struct Lender {
    lending: Lending,
    loan: Costs,
    copy: Costs,
    rows: u64,
    way: Way,
    /// Answers of this row so far.
    answers: u32,
    /// When those that count began, and the bytes that were sent since.
    since: (u64, u64),
}

impl Lender {
    pub fn new(lending: Lending) -> Self {
        let (loan, copy) = (Costs::default(), Costs::default());
        Self { lending, loan, copy, rows: 0, way: Way::Loan, answers: 0, since: (0, 0) }
    }

    /// How to send the next answers, with so many bytes of long values. `cpu_ns` is the processor
    /// time of this thread so far, asked for twice a row.
    pub fn way(&mut self, bytes: u64, cpu_ns: impl FnOnce() -> u64) -> Way {
        if self.lending == Lending::Always {
            return Way::Loan;
        }
        self.answers += 1;
        self.since.1 += bytes;
        if self.answers == UNCOUNTED {
            self.since = (cpu_ns(), 0);
        } else if self.answers == ROW {
            let (start, bytes) = self.since;
            let costs = match self.way {
                Way::Loan => &mut self.loan,
                Way::Copy => &mut self.copy,
            };
            costs.add((cpu_ns().saturating_sub(start) << 10) / bytes.max(1));
            self.answers = 0;
            self.rows += 1;
            let (cheap, dear) = match self.loan.least() <= self.copy.least() {
                true => (Way::Loan, Way::Copy),
                false => (Way::Copy, Way::Loan),
            };
            self.way = if self.rows.is_multiple_of(TRIED_EVERY) { dear } else { cheap };
        }
        self.way
    }
}

/// What the last rows of a way took, ns a KiB. The least of them counts: whatever else a thread did
/// meanwhile only adds to it.
#[derive(Debug, Default)]
struct Costs {
    last: [u64; REMEMBERED],
    count: usize,
}

impl Costs {
    fn add(&mut self, cost: u64) {
        self.last[self.count % REMEMBERED] = cost;
        self.count += 1;
    }

    /// Nothing as long as too few are known: then there have to be more.
    fn least(&self) -> u64 {
        if self.count < REMEMBERED { 0 } else { self.last.iter().copied().min().unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: u32 = 1000 * ROW;

    /// How many of [`ANSWERS`] are loans, where each way takes so long.
    fn loans(lender: &mut Lender, loan_ns: u64, copy_ns: u64) -> u32 {
        let (mut cpu_ns, mut lent) = (0, 0);
        for turn in 0..ANSWERS {
            let way = lender.way(1 << 20, || cpu_ns);
            cpu_ns += if way == Way::Loan { loan_ns } else { copy_ns };
            // Now and then the thread has something else to do.
            cpu_ns += if turn % (3 * ROW) == 20 { 40 * loan_ns } else { 0 };
            lent += u32::from(way == Way::Loan);
        }
        lent
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_one_tried() {
        let mut lender = Lender::new(Lending::Measured);
        let copied = ANSWERS - loans(&mut lender, 50_000, 60_000);
        let (tried, learned) = (1000 / TRIED_EVERY as u32, REMEMBERED as u32);
        assert_eq!(copied, (tried + learned) * ROW);
    }

    #[test]
    fn what_changes_is_noticed() {
        let mut lender = Lender::new(Lending::Measured);
        loans(&mut lender, 50_000, 60_000);
        // What was cheap is tried all the time, and so known at once.
        loans(&mut lender, 70_000, 60_000);
        let lent = loans(&mut lender, 70_000, 60_000);
        assert!(lent <= 8 * ROW, "{lent}");
    }

    #[test]
    fn who_wants_loans_gets_them() {
        let mut lender = Lender::new(Lending::Always);
        assert_eq!(loans(&mut lender, 70_000, 10_000), ANSWERS);
    }
}
