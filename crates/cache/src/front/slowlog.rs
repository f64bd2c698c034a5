//! The last slow commands: the client, the words, the time, and how long each took. For RESP's
//! `SLOWLOG` and the log.

use std::collections::VecDeque;

const ENTRIES_MAX: usize = 128;
const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, Default)]
pub struct SlowCommand {
    /// Counts from 0.
    pub id: u64,
    /// Seconds since the epoch.
    pub at_s: u64,
    pub took_us: u64,
    pub words: Vec<Vec<u8>>,
    pub client: String,
    pub name: String,
}

/// The words of a command without passwords: those behind `AUTH`, and behind it in a `HELLO`.
fn redacted<'a>(words: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    let (mut is_hello, mut is_secret) = (false, false);
    words.enumerate().map(move |(index, word)| {
        if is_secret {
            return &b"(redacted)"[..];
        }
        is_hello |= index == 0 && word.eq_ignore_ascii_case(b"hello");
        is_secret = word.eq_ignore_ascii_case(b"auth") && (index == 0 || is_hello);
        word
    })
}

#[derive(Debug, Default)]
pub struct SlowLog {
    entries: VecDeque<SlowCommand>,
    next_id: u64,
}

impl SlowLog {
    /// Remembers a command, under a number of its own and with these words; the oldest one may
    /// have to go.
    pub fn push<'a>(&mut self, command: SlowCommand, words: impl Iterator<Item = &'a [u8]>) {
        let cut = |word: &[u8]| word[..word.len().min(WORD_BYTES_MAX)].to_vec();
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_back();
        }
        self.entries.push_front(SlowCommand {
            id: self.next_id,
            words: redacted(words).take(WORDS_MAX).map(cut).collect(),
            ..command
        });
        self.next_id += 1;
    }

    pub fn entries(&self) -> impl ExactSizeIterator<Item = &SlowCommand> {
        self.entries.iter()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_remembered() {
        for line in ["auth default secret", "AUTH secret", "Hello 3 auth default secret"] {
            let mut log = SlowLog::default();
            let words = line.split(' ').map(str::as_bytes);
            log.push(SlowCommand::default(), words.clone());
            let entry = log.entries().next().unwrap();
            assert_eq!(entry.words.len(), words.count(), "{line}");
            assert!(entry.words.iter().all(|word| word != b"secret"), "{line}");
        }
        // A name that looks like it hides more, not less.
        let all: Vec<_> =
            redacted([&b"HELLO"[..], b"2", b"SETNAME", b"auth", b"x"].into_iter()).collect();
        assert_eq!(all, [&b"HELLO"[..], b"2", b"SETNAME", b"auth", b"(redacted)"]);
        let set = [&b"set"[..], b"auth", b"value"];
        assert!(redacted(set.into_iter()).eq(set));
    }

    #[test]
    fn the_last_commands_are_remembered_and_cut() {
        let mut log = SlowLog::default();
        let long = vec![b'x'; 1000];
        for took_us in 0..200 {
            let command = SlowCommand { took_us, ..SlowCommand::default() };
            log.push(command, [&long[..]].into_iter());
        }
        assert_eq!(log.entries().len(), ENTRIES_MAX);
        let newest = log.entries().next().unwrap();
        assert_eq!((newest.id, newest.took_us, newest.words[0].len()), (199, 199, 128));
        log.clear();
        assert_eq!(log.entries().len(), 0);
    }
}
