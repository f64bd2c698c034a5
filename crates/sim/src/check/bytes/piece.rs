//! One read against the model, word by word: is there a write, or the zero of the beginning, for
//! each byte; and if the read is one access, do the bytes fit together.

use super::allocation::{Allocation, UNSEEN, Version, words_of};
use super::{ClientId, Looked, Violation, Writes, broken};
use crate::time::Ps;
use std::fmt::Write as _;

/// Combinations of explanations that are tried for one piece.
const TRIES_MAX: u32 = 4096;

/// Where a byte may come from: a version of the word, or `None` for the zero of the beginning.
type Source = Option<usize>;

pub(super) struct Look<'a> {
    pub(super) writes: &'a Writes,
    pub(super) looked: &'a mut Looked,
    pub(super) reader: ClientId,
    pub(super) called: Ps,
    pub(super) returned: Ps,
    /// Whether it is one access.
    pub(super) single: bool,
}

impl Look<'_> {
    /// Checks all bytes that were read at `addr`, in the allocation at `first`.
    pub(super) fn at(
        &mut self,
        allocation: &mut Allocation,
        first: u64,
        addr: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let mut taken = 0;
        for (word, from, count) in words_of(addr - first, bytes.len()) {
            let found = &bytes[taken..taken + count];
            taken += count;
            match allocation.words.get_mut(&word) {
                Some(versions) => self.word(versions, first + 8 * word, from, found)?,
                None => self.word(&mut [], first + 8 * word, from, found)?,
            }
        }
        Ok(())
    }

    fn word(
        &mut self,
        versions: &mut [Version],
        addr: u64,
        from: usize,
        found: &[u8],
    ) -> Result<(), Violation> {
        let mut sources: Vec<Vec<Source>> = Vec::with_capacity(found.len());
        for (byte, value) in (from..).zip(found) {
            let allowed = self.allowed(versions, byte);
            let fits = |source: &Source| value_of(versions, *source, byte) == *value;
            let fitting: Vec<Source> = allowed.iter().copied().filter(fits).collect();
            if fitting.is_empty() {
                return self.nowhere(versions, addr, byte, *value, &allowed);
            }
            self.looked.bytes += 1;
            self.looked.bytes_certain += u64::from(allowed.len() == 1);
            sources.push(fitting);
        }
        if self.single && found.len() > 1 {
            self.fit_together(versions, addr, from, found, &sources)?;
        }
        self.note_seen(versions, from, &sources);
        Ok(())
    }

    /// What this byte may hold: writes called before the read returned that are not under another
    /// one that was there when the read was called.
    fn allowed(&self, versions: &[Version], byte: usize) -> Vec<Source> {
        let there = |version: &&Version| {
            version.is_there(self.writes, byte, Some(self.reader), self.called)
        };
        let there: Vec<&Version> = versions.iter().filter(there).collect();
        let under = |version: &Version| {
            let write = &self.writes[&version.write];
            there.iter().any(|later| write.is_before(&self.writes[&later.write]))
        };
        let mut allowed = Vec::new();
        if there.is_empty() {
            allowed.push(None);
        }
        for (index, version) in versions.iter().enumerate() {
            let begun = self.writes[&version.write].called <= self.returned;
            if version.covers(byte) && begun && !under(version) {
                allowed.push(Some(index));
            }
        }
        allowed
    }

    /// An access that is one piece saw one moment: each write that it shows a byte of was the last
    /// one there with all the bytes that it wrote as one piece.
    fn fit_together(
        &mut self,
        versions: &[Version],
        addr: u64,
        from: usize,
        found: &[u8],
        sources: &[Vec<Source>],
    ) -> Result<(), Violation> {
        self.looked.pieces += 1;
        let mut search = Search { look: self, versions, from, sources, tries: 0 };
        let fits = search.extend(&mut Vec::new());
        if search.tries >= TRIES_MAX {
            self.looked.pieces_skipped += 1;
            return Ok(());
        }
        if fits {
            return Ok(());
        }
        let mut text = format!(
            "{} read {} bytes at {:#x} as one piece and found {found:02x?}: half of one write and \
             half of another; there were",
            self.writer(),
            found.len(),
            addr + from as u64
        );
        for version in versions {
            let _ = write!(text, " {}", self.describe(version));
        }
        broken(self.returned, text)
    }

    /// A byte that can only come from one write of another client is there for all.
    fn note_seen(&self, versions: &mut [Version], from: usize, sources: &[Vec<Source>]) {
        for (byte, sources) in (from..).zip(sources) {
            let [Some(index)] = sources[..] else { continue };
            let version = &mut versions[index];
            let write = &self.writes[&version.write];
            if write.writer == self.reader {
                continue;
            }
            for (seen, slot) in version.seen.iter_mut().enumerate() {
                let whole = write.single && version.mask >> seen & 1 == 1;
                if whole || seen == byte {
                    *slot = if *slot == UNSEEN { self.returned } else { self.returned.min(*slot) };
                }
            }
        }
    }

    fn nowhere(
        &self,
        versions: &[Version],
        addr: u64,
        byte: usize,
        value: u8,
        allowed: &[Source],
    ) -> Result<(), Violation> {
        let at = addr + byte as u64;
        let mut text =
            format!("{} found {value:#04x} in the byte {at:#x}; allowed:", self.writer());
        for source in allowed {
            match source {
                None => text.push_str(" 0x00 (never written)"),
                Some(index) => {
                    let value = versions[*index].bytes[byte];
                    let _ = write!(text, " {value:#04x} ({})", self.describe(&versions[*index]));
                }
            }
        }
        let known = |version: &&Version| version.covers(byte) && version.bytes[byte] == value;
        match versions.iter().find(known) {
            Some(stale) => {
                let _ =
                    write!(text, "; not allowed any more, or not yet: {}", self.describe(stale));
            }
            None => text.push_str("; no write of that lately"),
        }
        broken(self.returned, text)
    }

    fn writer(&self) -> String {
        format!("client {} (called {}, returned {})", self.reader, self.called, self.returned)
    }

    fn describe(&self, version: &Version) -> String {
        let write = &self.writes[&version.write];
        let over = match (write.acknowledged, write.over) {
            (_, None) => "under way".to_owned(),
            (None, Some(over)) => format!("unknown, over at {over}"),
            (Some(_), Some(over)) => format!("done at {over}"),
        };
        let number = version.write.0;
        format!("write {number} of client {} called {}, {over}", write.writer, write.called)
    }
}

fn value_of(versions: &[Version], source: Source, byte: usize) -> u8 {
    source.map_or(0, |index| versions[index].bytes[byte])
}

/// Looks for one source for each byte such that all fit together.
struct Search<'a, 'b> {
    look: &'a Look<'b>,
    versions: &'a [Version],
    from: usize,
    sources: &'a [Vec<Source>],
    tries: u32,
}

impl Search<'_, '_> {
    fn extend(&mut self, chosen: &mut Vec<Source>) -> bool {
        let byte = chosen.len();
        if byte == self.sources.len() {
            return true;
        }
        for &source in &self.sources[byte] {
            self.tries += 1;
            if self.tries >= TRIES_MAX {
                return true;
            }
            let fits = |(other, at): (&Source, usize)| {
                self.survives(source, self.from + byte, *other, at)
                    && self.survives(*other, at, source, self.from + byte)
            };
            if chosen.iter().zip(self.from..).all(fits) {
                chosen.push(source);
                if self.extend(chosen) {
                    return true;
                }
                chosen.pop();
            }
        }
        false
    }

    /// Whether `other` can stand in byte `at` while `source` stands in byte `byte`: if `source`
    /// wrote both as one piece, `other` came later.
    fn survives(&self, source: Source, byte: usize, other: Source, at: usize) -> bool {
        let Some(index) = source.filter(|_| source != other) else { return true };
        let version = &self.versions[index];
        let write = &self.look.writes[&version.write];
        debug_assert!(version.covers(byte), "a source covers its byte");
        if !write.single || !version.covers(at) {
            return true;
        }
        let Some(other) = other.map(|index| &self.versions[index]) else { return false };
        let later = &self.look.writes[&other.write];
        let over_source = later.single && other.covers(byte);
        !over_source && !later.is_before(write)
    }
}
