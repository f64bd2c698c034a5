//! The sparse form of a HyperLogLog: runs of registers that hold the same. `00zzzzzz`: so many and
//! one more are 0; `01zzzzzz zzzzzzzz`: the same, longer; `1vvvvvnn`: so many and one more hold the
//! rank of so much and one more.

use super::ValueError;

pub(super) const INDEX_BITS: u32 = 14;
pub(super) const REGISTERS: usize = 1 << INDEX_BITS;
pub(super) const HEADER_BYTES: usize = 16;
/// Greatest number of registers in a run of zeros of one byte, and in one of another rank.
const SHORT_ZEROS_MAX: usize = 64;
const RANK_RUN_MAX: usize = 4;
const RANK_MAX: u8 = 32;
/// Bytes that a raised register's run takes at most: long zeros, it, long zeros.
const PIECES_BYTES_MAX: usize = 5;
/// Runs that are looked at for neighbours of the same rank after a change, from the one before it.
const MERGED_RUNS_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    Yes,
    /// It was as great before.
    No,
    /// The rank or the value's length would be too great.
    Impossible,
}

struct Run {
    rank: u8,
    registers: usize,
    bytes: usize,
}

/// The first run of these bytes.
fn run(bytes: &[u8]) -> Option<Run> {
    Some(match *bytes {
        [first @ 0x80..=0xff, ..] => {
            let (rank, registers) = ((first >> 2 & 0x1f) + 1, usize::from(first & 3) + 1);
            Run { rank, registers, bytes: 1 }
        }
        [first @ 0..=0x3f, ..] => Run { rank: 0, registers: usize::from(first) + 1, bytes: 1 },
        [first, second, ..] => {
            let registers = (usize::from(first & 0x3f) << 8 | usize::from(second)) + 1;
            Run { rank: 0, registers, bytes: 2 }
        }
        _ => return None,
    })
}

/// Appends a run of zeros, which is no longer than all registers.
pub fn push_zeros(out: &mut Vec<u8>, registers: usize) {
    if registers == 0 {
        return;
    }
    let registers_less = registers - 1;
    if registers > SHORT_ZEROS_MAX {
        out.push(0x40 | (registers_less >> 8) as u8);
    }
    out.push(registers_less as u8);
}

/// Appends a run of one rank, zero or not, which is as long as one run may be.
fn push_run(out: &mut Vec<u8>, rank: u8, registers: usize) {
    if rank == 0 {
        push_zeros(out, registers);
    } else if registers > 0 {
        out.push(ranked(rank, registers));
    }
}

fn ranked(rank: u8, registers: usize) -> u8 {
    0x80 | (rank - 1) << 2 | (registers - 1) as u8
}

/// Hands out each run's first register, number of registers and rank.
pub fn each_run(value: &[u8], mut found: impl FnMut(usize, usize, u8)) -> Result<(), ValueError> {
    let (mut rest, mut first) = (&value[HEADER_BYTES..], 0);
    while let Some(Run { rank, registers, bytes }) = run(rest) {
        if first + registers > REGISTERS {
            return Err(ValueError::CorruptHyperLogLog);
        }
        found(first, registers, rank);
        (rest, first) = (&rest[bytes..], first + registers);
    }
    let is_whole = rest.is_empty() && first == REGISTERS;
    if is_whole { Ok(()) } else { Err(ValueError::CorruptHyperLogLog) }
}

/// Makes a register at least `rank`. As in Redis only the run in which it lies and its neighbours
/// are looked at, so that the bytes are the same.
pub fn raise(
    value: &mut Vec<u8>,
    index: usize,
    rank: u8,
    bytes_max: usize,
) -> Result<Raised, ValueError> {
    if rank > RANK_MAX {
        return Ok(Raised::Impossible);
    }
    let (mut at, mut before, mut first) = (HEADER_BYTES, HEADER_BYTES, 0);
    let old = loop {
        let run = run(&value[at..]).ok_or(ValueError::CorruptHyperLogLog)?;
        if index < first + run.registers {
            break run;
        }
        (before, at, first) = (at, at + run.bytes, first + run.registers);
    };
    if old.rank >= rank {
        return Ok(Raised::No);
    }
    let mut pieces = Vec::with_capacity(PIECES_BYTES_MAX);
    push_run(&mut pieces, old.rank, index - first);
    push_run(&mut pieces, rank, 1);
    push_run(&mut pieces, old.rank, first + old.registers - 1 - index);
    if pieces.len() > old.bytes && value.len() + pieces.len() - old.bytes > bytes_max {
        return Ok(Raised::Impossible);
    }
    value.splice(at..at + old.bytes, pieces);
    merge(value, before);
    Ok(Raised::Yes)
}

/// Joins runs of the same rank from here on, where they fit one.
fn merge(value: &mut Vec<u8>, mut at: usize) {
    for _ in 0..MERGED_RUNS_MAX {
        let Some(here) = run(&value[at..]) else { return };
        let next = run(&value[at + here.bytes..]);
        let joined = next.filter(|next| here.rank > 0 && next.rank == here.rank);
        let registers = joined.map(|next| here.registers + next.registers);
        match registers.filter(|registers| *registers <= RANK_RUN_MAX) {
            Some(registers) => {
                value[at] = ranked(here.rank, registers);
                value.remove(at + 1);
            }
            None => at += here.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Vec<u8> {
        let mut value = vec![0; HEADER_BYTES];
        push_zeros(&mut value, REGISTERS);
        value
    }

    fn runs(value: &[u8]) -> Vec<(usize, u8)> {
        let mut runs = Vec::new();
        each_run(value, |_, registers, rank| runs.push((registers, rank))).unwrap();
        runs
    }

    #[test]
    fn a_raised_register_splits_its_run_and_joins_its_neighbours() {
        let mut value = empty();
        let mut raise = |index, rank| {
            let raised = raise(&mut value, index, rank, 100).unwrap();
            (raised, runs(&value))
        };
        assert_eq!(raise(0, 1), (Raised::Yes, vec![(1, 1), (16_383, 0)]));
        assert_eq!(raise(0, 1), (Raised::No, vec![(1, 1), (16_383, 0)]));
        assert_eq!(raise(2, 1).1, [(1, 1), (1, 0), (1, 1), (16_381, 0)]);
        assert_eq!(raise(1, 1).1, [(3, 1), (16_381, 0)]);
        assert_eq!(raise(1, 3).1, [(1, 1), (1, 3), (1, 1), (16_381, 0)]);
        assert_eq!(raise(16_383, 32).1[3..], [(16_380, 0), (1, 32)]);
        assert_eq!(raise(70, 2).1[3..], [(67, 0), (1, 2), (16_312, 0), (1, 32)]);
        assert_eq!(raise(5, 33).0, Raised::Impossible);
    }

    #[test]
    fn no_run_of_a_rank_has_more_than_four_registers() {
        let mut value = empty();
        (0..6).for_each(|index| _ = raise(&mut value, index, 1, 100));
        assert_eq!(runs(&value), [(4, 1), (2, 1), (16_378, 0)]);
    }

    #[test]
    fn a_value_that_would_be_too_long_stays() {
        let mut value = empty();
        let bytes = value.len();
        assert_eq!(raise(&mut value, 100, 1, bytes + 2), Ok(Raised::Impossible));
        assert_eq!(value, empty());
        assert_eq!(raise(&mut value, 100, 1, bytes + 3), Ok(Raised::Yes));
        // A run of one register is replaced by one as long.
        assert_eq!(raise(&mut value, 100, 2, 0), Ok(Raised::Yes));
    }
}
