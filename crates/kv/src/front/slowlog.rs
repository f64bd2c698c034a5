//! Commands that took long, the last ones: who sent what, when, and how long it took. For RESP's
//! `SLOWLOG` and the log.

use std::collections::VecDeque;

/// Commands that are remembered.
const ENTRIES_MAX: usize = 128;
/// Words of a command that are remembered.
const WORDS_MAX: usize = 32;
/// Bytes of a word that are remembered.
const WORD_BYTES_MAX: usize = 128;

/// One command.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Counts from 0.
    pub id: u64,
    /// Seconds since the epoch.
    pub at_s: u64,
    /// How long it took.
    pub took_us: u64,
    /// Its first words, cut.
    pub words: Vec<Vec<u8>>,
    /// The client's address.
    pub client: String,
    /// The client's name.
    pub name: String,
}

/// The last slow commands.
#[derive(Debug, Default)]
pub struct SlowLog {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl SlowLog {
    /// Remembers a command; the oldest one may have to go.
    pub fn push<'a>(
        &mut self,
        (at_s, took_us): (u64, u64),
        (client, name): (&str, &str),
        words: impl Iterator<Item = &'a [u8]>,
    ) {
        let cut = |word: &[u8]| word[..word.len().min(WORD_BYTES_MAX)].to_vec();
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_back();
        }
        self.entries.push_front(Entry {
            id: self.next_id,
            at_s,
            took_us,
            words: words.take(WORDS_MAX).map(cut).collect(),
            client: client.to_owned(),
            name: name.to_owned(),
        });
        self.next_id += 1;
    }

    /// The newest ones first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_commands_are_remembered_and_cut() {
        let mut log = SlowLog::default();
        let long = vec![b'x'; 1000];
        for took in 0..200 {
            log.push((1, took), ("a", ""), [&long[..]].into_iter());
        }
        assert_eq!(log.entries().len(), ENTRIES_MAX);
        let newest = log.entries().next().unwrap();
        assert_eq!((newest.id, newest.took_us, newest.words[0].len()), (199, 199, 128));
        log.clear();
        assert_eq!(log.entries().len(), 0);
    }
}
