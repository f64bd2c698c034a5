//! The last slow commands: the client, the words, the time, and how long each took. For RESP's
//! `SLOWLOG` and the log.

use std::collections::VecDeque;

/// How many are remembered unless `slowlog-max-len` says otherwise.
const ENTRIES: usize = 128;
const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, Default)]
pub struct SlowCommand {
    pub id: u64,
    /// Seconds since the epoch.
    pub at_s: u64,
    pub took_us: u64,
    pub words: Vec<Vec<u8>>,
    pub client: String,
    pub name: String,
}

/// The words of a command without passwords: those behind `AUTH`, and behind it in a `HELLO`.
pub fn redacted<'a>(words: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
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

/// The first words, long ones without their ends; what is left out is said in Redis's words.
fn cut_short<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let cut = |word: &[u8]| match word.len().checked_sub(WORD_BYTES_MAX) {
        None | Some(0) => word.to_vec(),
        Some(more) => {
            let end = format!("... ({more} more bytes)");
            [&word[..WORD_BYTES_MAX], end.as_bytes()].concat()
        }
    };
    let mut all: Vec<_> = words.by_ref().take(WORDS_MAX).map(cut).collect();
    let more = words.count();
    if more > 0 {
        // The last one that is there makes room.
        all.pop();
        all.push(format!("... ({} more arguments)", more + 1).into_bytes());
    }
    all
}

#[derive(Debug)]
pub struct SlowLog {
    entries: VecDeque<SlowCommand>,
    next_id: u64,
    entries_max: usize,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next_id: 0, entries_max: ENTRIES }
    }
}

impl SlowLog {
    /// Remembers a command, under a number of its own and with these words; the oldest one may
    /// have to go.
    pub fn push<'a>(&mut self, command: SlowCommand, words: impl Iterator<Item = &'a [u8]>) {
        let words = cut_short(redacted(words));
        self.entries.push_front(SlowCommand { id: self.next_id, words, ..command });
        self.entries.truncate(self.entries_max);
        self.next_id += 1;
    }

    pub fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// Remembers so many from now on; the oldest ones may have to go.
    pub fn set_entries_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
        self.entries.truncate(entries_max);
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
        assert_eq!(log.entries().len(), ENTRIES);
        let newest = log.entries().next().unwrap();
        assert_eq!((newest.id, newest.took_us), (199, 199));
        assert!(newest.words[0].ends_with(b"xx... (872 more bytes)"));
        log.set_entries_max(5);
        assert_eq!(
            log.entries().map(|entry| entry.id).collect::<Vec<_>>(),
            [199, 198, 197, 196, 195]
        );
        log.push(SlowCommand::default(), [&b"word"[..]; 33].into_iter());
        let newest = log.entries().next().unwrap();
        assert_eq!((log.entries().len(), newest.words.len()), (5, 32));
        assert_eq!(newest.words[31], b"... (2 more arguments)");
        log.set_entries_max(0);
        log.push(SlowCommand::default(), [&b"word"[..]].into_iter());
        assert_eq!(log.entries().len(), 0);
        log.set_entries_max(3);
        log.push(SlowCommand::default(), [&b"word"[..]].into_iter());
        log.clear();
        assert_eq!(log.entries().len(), 0);
    }
}
