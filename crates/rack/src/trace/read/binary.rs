//! DRackSim's and ChampSim's records. Both are structures of C on a little-endian machine, with no
//! mark of it: an order of bytes is believed if it gives numbers that mean something.

use super::super::Record;
use super::super::error::Cause;
use super::super::pace::Pace;
use super::{Found, Parse};

/// Processes and threads have numbers below this.
const ID_MAX: u64 = 1 << 22;
/// Times in cycles are below this: two years at 1 GHz.
const CYCLE_MAX: u64 = 1 << 56;
/// Bytes of an access where the format does not say it: DRackSim's are lines of a cache.
const LINE_BYTES: u16 = 64;
/// Bytes of an access of ChampSim, which does not say it either: a word.
const WORD_BYTES: u16 = 8;

fn u32_at(piece: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(piece[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(piece: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(piece[offset..offset + 8].try_into().expect("eight bytes"))
}

/// Whether a processor of today can have such an address: 57 bits, or the kernel's half.
fn canonical(addr: u64) -> bool {
    matches!(addr >> 56, 0 | 0xff)
}

/// DRackSim: process u32, thread u32, address u64, kind u8, 7 bytes of padding, cycle u64.
pub(super) struct DRackSim {
    pub node: u16,
}

impl Parse for DRackSim {
    const BYTES: Option<usize> = Some(32);

    fn parse(&mut self, piece: &[u8], out: &mut Found) -> Result<(), Cause> {
        let (pid, tid) = (u32_at(piece, 0), u32_at(piece, 4));
        let (addr, at) = (u64_at(piece, 8), u64_at(piece, 24));
        let sensible = |pid: u32, tid: u32, addr, at: u64| {
            u64::from(pid.max(tid)) < ID_MAX && canonical(addr) && at < CYCLE_MAX
        };
        if !sensible(pid, tid, addr, at) {
            let (pid, tid) = (pid.swap_bytes(), tid.swap_bytes());
            if sensible(pid, tid, addr.swap_bytes(), at.swap_bytes()) {
                return Err(Cause::WrongEndian);
            }
        }
        // A kind that is none tells more than its numbers do.
        let write = match piece[16] {
            b'R' | b'F' => false,
            b'W' => true,
            other => {
                let what = format!("the kind is byte {other}, not R, W or F");
                return Err(Cause::Malformed(what));
            }
        };
        small("the process", u64::from(pid), ID_MAX - 1)?;
        small("the thread", u64::from(tid), ID_MAX - 1)?;
        small("the cycle", at, CYCLE_MAX - 1)?;
        address(addr)?;
        out.push(Record { at, node: self.node, pid, tid, addr, size: LINE_BYTES, write });
        Ok(())
    }
}

fn small(what: &'static str, value: u64, max: u64) -> Result<(), Cause> {
    if value > max { Err(Cause::Oversized { what, value, max }) } else { Ok(()) }
}

fn address(addr: u64) -> Result<(), Cause> {
    if canonical(addr) { Ok(()) } else { small("the address", addr, (1 << 56) - 1) }
}

/// ChampSim: instruction pointer u64, two bytes of a branch, two and four of registers, two
/// addresses of stores, four of loads, each u64; an address of 0 is none.
pub(super) struct ChampSim {
    pub base: Record,
    pub pace: Pace,
}

impl Parse for ChampSim {
    const BYTES: Option<usize> = Some(64);

    fn parse(&mut self, piece: &[u8], out: &mut Found) -> Result<(), Cause> {
        let words = [0, 16, 24, 32, 40, 48, 56].map(|offset| u64_at(piece, offset));
        let (mut little, mut big) = (true, true);
        for word in words {
            little &= canonical(word);
            big &= canonical(word.swap_bytes());
        }
        if !little && big {
            return Err(Cause::WrongEndian);
        }
        if let Some(branch) = piece[8..10].iter().find(|branch| **branch > 1) {
            let what = format!("the mark of a branch is byte {branch}, not 0 or 1");
            return Err(Cause::Malformed(what));
        }
        let [instruction, stores @ .., _, _, _, _] = &words;
        address(*instruction)?;
        let loads = words[3..].iter().map(|addr| (*addr, false));
        for (addr, write) in loads.chain(stores.iter().map(|addr| (*addr, true))) {
            if addr == 0 {
                continue;
            }
            address(addr)?;
            let at = self.pace.record()?;
            out.push(Record { at, addr, size: WORD_BYTES, write, ..self.base });
        }
        self.pace.instructions(1)
    }
}
