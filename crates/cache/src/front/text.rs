//! memcached's text commands as data. In: bytes from a connection. Out: one command with slices
//! of them, a typed refusal, or how many bytes there must be before it is worth asking again.
//!
//! Nothing here executes, allocates or keeps state. The value of a storage command is not part of
//! it: it follows the line, [`Store::len`] bytes and a line end, and the session takes it.
//!
//! Source: memcached's `protocol.txt` of 1.6.45; refusals word by word as that sends them.

use super::bytes::{digits, digits32, signed_digits32, signed32, unsigned32, value_bytes};
use super::commands::memcached::{self, QUIET, TextCommand};
use super::http;
use super::listing::Listing;
use super::meta::{self, MetaCommand, ParsedMeta};
use super::outcome::{Refusal, Verb};
use super::watch::Watched;
use crate::constants::{LINE_BYTES_MAX, LINE_GET_BYTES_MAX, MEMCACHED_KEY_BYTES_MAX};

/// What we answer to `version`: clients compare numbers.
pub const VERSION: &str = concat!("1.6.45-rackpool-", env!("CARGO_PKG_VERSION"));
/// Words that a line is split into, as in memcached; only `get` takes more.
pub const WORDS_MAX: usize = 23;
/// Shorter lines are no commands, bytes with their ends.
const LINE_BYTES_MIN: usize = 4;

/// What stands at the beginning of the bytes. It lives for one command: a box would cost an
/// allocation each time.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedText<'a> {
    Need,
    /// A command with a line of `used` bytes, the line end included.
    Command {
        used: usize,
        command: Command<'a>,
        /// The client wants no answer: `noreply` stood at the end of the line.
        quiet: bool,
    },
    /// A line that is too long for a command: the connection ends without an answer.
    TooLong,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, and lines of `ms`: a value follows.
    Store(Store<'a>),
    Delete(&'a [u8]),
    Count(CounterChange<'a>),
    /// `touch`: key and expiry.
    Touch(&'a [u8], i32),
    /// `flush_all`, with a delay in seconds.
    FlushAll(i32),
    /// `verbosity`: kept, without effect.
    Verbosity(u32),
    /// `cache_memlimit`, in MiB.
    MemoryLimit(u32),
    /// `shutdown`, and whether its mode is known.
    Shutdown(bool),
    /// `watch`: the connection is told of these from now on.
    Watch(Watched),
    /// `lru_crawler metadump` and `mgdump`: all items.
    List(Listing),
    /// `lru_crawler crawl`: what has expired is looked for.
    Crawl,
    /// What is so in any case.
    Accepted,
    Version,
    /// `quit`: the connection ends without an answer.
    Quit,
    /// A line of HTTP: as `quit`.
    Http,
    /// `stats`, with the words behind it.
    Stats(WordIter<'a>),
    Meta(MetaCommand<'a>),
    Refused(Refusal),
    /// As [`Command::Refused`], and so many bytes that follow are not commands.
    RefusedWithData(Refusal, u64),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Get<'a> {
    pub keys: WordIter<'a>,
    /// Whether answers carry the 64-bit version.
    pub cas: bool,
    /// A new expiry for each key.
    pub touch: Option<i32>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Store<'a> {
    pub verb: Verb,
    pub key: &'a [u8],
    pub flags: u32,
    /// As the client says it: 0 never, relative up to 30 days, absolute above.
    pub exptime: i32,
    /// Bytes of the value, which follows the line.
    pub len: u32,
    pub quiet: bool,
    /// The flags of `ms`, which has another answer.
    pub meta: Option<MetaCommand<'a>>,
}

impl Store<'_> {
    pub fn key(&self) -> &[u8] {
        self.meta.as_ref().map_or(self.key, |meta| meta.key.bytes())
    }

    /// The version that comes then; 0: any.
    pub fn new_cas(&self) -> u64 {
        self.meta.as_ref().and_then(|meta| meta.new_cas).unwrap_or(0)
    }

    /// Whether the key was sent in base64.
    pub fn has_binary_key(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.binary_key)
    }

    /// Whether nothing is said of what went wrong before the value counted: `q` keeps only an
    /// answer of the ordinary kind quiet.
    pub fn is_silent(&self) -> bool {
        self.quiet && self.meta.is_none()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct CounterChange<'a> {
    pub key: &'a [u8],
    pub delta: u64,
    /// Down to 0 at most, instead of up.
    pub down: bool,
}

/// Words with blanks between them, cut off one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordIter<'a>(pub &'a [u8]);

impl<'a> Iterator for WordIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[start..];
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        self.0 = tail;
        Some(word)
    }
}

/// The words of the line at the beginning of `input`, without its end.
pub fn line_words(input: &[u8]) -> WordIter<'_> {
    let line = &input[..memchr::memchr(b'\n', input).unwrap_or(input.len())];
    WordIter(line.strip_suffix(b"\r").unwrap_or(line))
}

pub struct Line<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
    /// What is behind the first word.
    pub tail: WordIter<'a>,
}

impl<'a> Line<'a> {
    fn new(line: &'a [u8]) -> Self {
        let mut words = [&[][..]; WORDS_MAX];
        let mut count = 0;
        let mut rest = WordIter(line);
        let mut tail = rest;
        while count < WORDS_MAX
            && let Some(word) = rest.next()
        {
            words[count] = word;
            count += 1;
            if count == 1 {
                tail = rest;
            }
        }
        Self { words, count, tail }
    }

    pub fn words(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }

    fn quiet(&self) -> bool {
        self.words().last() == Some(&&b"noreply"[..])
    }
}

/// The command at the beginning of `input`. `seen` bytes of it are known to hold no line end.
pub fn parse(input: &[u8], seen: usize) -> ParsedText<'_> {
    let Some(end) = memchr::memchr(b'\n', &input[seen.min(input.len())..]) else {
        return if fits(input) { ParsedText::Need } else { ParsedText::TooLong };
    };
    let end = end + seen;
    let line = &input[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (command, quiet) = match end + 1 < LINE_BYTES_MIN {
        true => (if http::is_line(line) { Ok(Command::Http) } else { Err(Refusal::Format) }, false),
        false => command(line),
    };
    let command = command.unwrap_or_else(Command::Refused);
    ParsedText::Command { used: end + 1, command, quiet }
}

/// Whether a line without an end may still become a command: look-ups may name many keys.
fn fits(input: &[u8]) -> bool {
    if input.len() <= LINE_BYTES_MAX {
        return true;
    }
    let blanks = input.iter().take_while(|byte| **byte == b' ').count();
    let rest = &input[blanks..];
    let get = rest.starts_with(b"get ") || rest.starts_with(b"gets ");
    blanks <= 100 && get && input.len() <= LINE_GET_BYTES_MAX
}

/// The command of a line, and whether the client wants no answer.
fn command(bytes: &[u8]) -> (Result<Command<'_>, Refusal>, bool) {
    if http::is_request(bytes) {
        return (Ok(Command::Http), false);
    }
    // The most frequent one without looking at all of its words.
    if let Some(keys) = bytes.strip_prefix(b"get ")
        && keys.first().is_some_and(|byte| *byte != b' ')
    {
        return (get(WordIter(keys), false), false);
    }
    let line = Line::new(bytes);
    let (Some(name), count) = (line.words().first().copied(), line.count) else {
        return (Err(Refusal::Unknown), false);
    };
    // The next most frequent ones without a look at the table.
    match name {
        b"set" if count >= 5 && bytes[0] == b's' => {
            return answered(store(&line, Verb::Set), line.quiet());
        }
        [b'm', kind] if bytes[0] == b'm' && meta::is_command(*kind) => {
            let parsed = meta::command(*kind, line.words());
            return (parsed.map(|parsed| of_meta(parsed, &line)), false);
        }
        _ => {}
    }
    // Those of clients are only known at the very beginning of a line.
    let is_known = |known: &&TextCommand| bytes[0] != b' ' || known.quiet_from == QUIET;
    match memcached::text(name).filter(is_known) {
        Some(known) if count < known.words_min => (Err(Refusal::Format), false),
        Some(known) => answered((known.parse)(&line), count >= known.quiet_from && line.quiet()),
        None => (unknown(&line, bytes), line.quiet()),
    }
}

/// A length that is none is found before `noreply` is looked for.
fn answered<'a>(
    parsed: Result<Command<'a>, Refusal>,
    quiet: bool,
) -> (Result<Command<'a>, Refusal>, bool) {
    let is_quiet = quiet && !matches!(parsed, Err(Refusal::Length));
    (parsed, is_quiet)
}

fn unknown<'a>(line: &Line<'a>, bytes: &[u8]) -> Result<Command<'a>, Refusal> {
    // As memcached has it, and where no version is said.
    let is_http = line.count > 1 && line.words()[line.count - 1].starts_with(b"HTTP/");
    if is_http || http::is_line(bytes) { Ok(Command::Http) } else { Err(Refusal::Unknown) }
}

pub fn get(keys: WordIter<'_>, cas: bool) -> Result<Command<'_>, Refusal> {
    // A line that is short enough holds no key that is too long.
    if keys.0.len() > MEMCACHED_KEY_BYTES_MAX {
        let mut keys = keys;
        if keys.any(|key| key.len() > MEMCACHED_KEY_BYTES_MAX) {
            return Err(Refusal::Format);
        }
    }
    if keys.0.iter().all(|byte| *byte == b' ') {
        return Err(Refusal::Format);
    }
    Ok(Command::Get(Get { keys, cas, touch: None }))
}

pub fn get_touch<'a>(line: &Line<'a>, cas: bool) -> Result<Command<'a>, Refusal> {
    let mut keys = line.tail;
    let exptime = keys.next().and_then(signed_digits32).ok_or(Refusal::Exptime)?;
    let mut checked = keys;
    if checked.any(|key| key.len() > MEMCACHED_KEY_BYTES_MAX) {
        return Err(Refusal::Format);
    }
    Ok(Command::Get(Get { keys, cas, touch: Some(exptime) }))
}

fn key<'a>(line: &Line<'a>) -> Result<&'a [u8], Refusal> {
    let key = line.words()[1];
    if key.len() > MEMCACHED_KEY_BYTES_MAX { Err(Refusal::Format) } else { Ok(key) }
}

/// From the point on where the length is known, an error costs the value as well: it is data,
/// whatever it looks like.
pub fn store<'a>(line: &Line<'a>, verb: Verb) -> Result<Command<'a>, Refusal> {
    let (words, quiet) = (line.words(), line.quiet());
    let len = value_bytes(words[4]).ok_or(Refusal::Length)?;
    let verb = match verb {
        Verb::Cas(_) => words.get(5).and_then(|word| digits(word)).map(Verb::Cas),
        verb => Some(verb),
    };
    let numbers = (unsigned32(words[2]), signed32(words[3]));
    let (Ok(key), Some(verb), (Some(flags), Some(exptime))) = (key(line), verb, numbers) else {
        return Ok(Command::RefusedWithData(Refusal::Format, u64::from(len) + 2));
    };
    Ok(Command::Store(Store { verb, key, flags, exptime, len, quiet, meta: None }))
}

pub fn count_by<'a>(line: &Line<'a>, down: bool) -> Result<Command<'a>, Refusal> {
    let key = key(line)?;
    let delta = digits(line.words()[2]).ok_or(Refusal::Delta)?;
    Ok(Command::Count(CounterChange { key, delta, down }))
}

pub fn touch<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    let key = key(line)?;
    Ok(Command::Touch(key, signed_digits32(line.words()[2]).ok_or(Refusal::Exptime)?))
}

pub fn delete<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    key(line).map(Command::Delete)
}

pub fn verbosity<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    number(line).map(Command::Verbosity).ok_or(Refusal::Format)
}

pub fn memory_limit<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    number(line).map(Command::MemoryLimit).ok_or(Refusal::Unknown)
}

fn number(line: &Line<'_>) -> Option<u32> {
    line.words().get(1).and_then(|word| digits32(word))
}

pub fn shutdown<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    Ok(Command::Shutdown(matches!(line.words(), [_] | [_, b"graceful"])))
}

pub fn watch<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    let mut watched = Watched::default();
    for word in &line.words()[1..] {
        watched = watched.with(match *word {
            b"fetchers" => Watched::FETCHERS,
            b"mutations" => Watched::MUTATIONS,
            b"deletions" => Watched::DELETIONS,
            b"connevents" => Watched::CONNECTIONS,
            b"evictions" => Watched::EVICTIONS,
            b"rawcmds" | b"sysevents" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => {
                return Err(Refusal::NotOffered("there are no such events"));
            }
            _ => return Err(Refusal::Unknown),
        });
    }
    Ok(Command::Watch(if watched.is_none() { Watched::FETCHERS } else { watched }))
}

pub fn lru_crawler<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    match line.words() {
        [_, b"enable"] => Ok(Command::Accepted),
        [_, b"disable"] | [_, b"sleep" | b"tocrawl", _] => {
            Err(Refusal::NotOffered("expired items go without a crawler"))
        }
        [_, b"crawl", classes] => has_items(classes, false).map(|()| Command::Crawl),
        [_, b"metadump", classes] => {
            has_items(classes, true).map(|()| Command::List(Listing::Metadump))
        }
        [_, b"mgdump", classes] => {
            has_items(classes, true).map(|()| Command::List(Listing::Mgdump))
        }
        _ => Err(Refusal::Unknown),
    }
}

/// Whether some of these classes has items: all items are of class 1. `is_listing`: the classes may
/// be passed over.
fn has_items(classes: &[u8], is_listing: bool) -> Result<(), Refusal> {
    const CLASSES: std::ops::Range<u32> = 1..64;
    if classes == b"all" || is_listing && classes == b"hash" {
        return Ok(());
    }
    let mut has_items = false;
    for class in classes.split(|byte| *byte == b',').filter(|class| !class.is_empty()) {
        let class = unsigned32(class).filter(|class| CLASSES.contains(class));
        has_items |= class.ok_or(Refusal::BadClass)? == 1;
    }
    if has_items { Ok(()) } else { Err(Refusal::NotStarted) }
}

pub fn flush_all<'a>(line: &Line<'a>) -> Result<Command<'a>, Refusal> {
    match (line.words(), line.quiet()) {
        ([_], _) | ([_, _], true) => Ok(Command::FlushAll(0)),
        (words, _) => signed_digits32(words[1]).map(Command::FlushAll).ok_or(Refusal::Exptime),
    }
}

fn of_meta<'a>(parsed: ParsedMeta<'a>, line: &Line<'a>) -> Command<'a> {
    match parsed {
        ParsedMeta::Command(meta) => Command::Meta(meta),
        ParsedMeta::RefusedWithData(refusal, bytes) => Command::RefusedWithData(refusal, bytes),
        ParsedMeta::Store(meta, verb, len) => Command::Store(Store {
            verb,
            // A key that was decoded is in `meta`.
            key: line.words()[1],
            flags: meta.flags,
            exptime: meta.stored_exptime(),
            len,
            quiet: meta.quiet,
            meta: Some(meta),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(line: &str) -> (Command<'_>, bool) {
        match parse(line.as_bytes(), 0) {
            ParsedText::Command { used, command, quiet } => {
                assert_eq!(used, line.len());
                (command, quiet)
            }
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn one(line: &str) -> Command<'_> {
        parsed(line).0
    }

    fn refusal(line: &str) -> Refusal {
        match one(line) {
            Command::Refused(refusal) | Command::RefusedWithData(refusal, _) => refusal,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn lines_become_commands() {
        let Command::Get(get) = one("get a  bb ccc \r\n") else { panic!() };
        assert_eq!(get.keys.collect::<Vec<_>>(), [&b"a"[..], b"bb", b"ccc"]);
        let Command::Store(store) = one("cas k 7 -5 3 18 noreply\r\n") else { panic!() };
        assert_eq!((store.verb, store.flags, store.len), (Verb::Cas(18), 7, 3));
        assert!(store.quiet && store.exptime == -5);
        assert_eq!(one("quit\n"), Command::Quit);
        assert_eq!(one("GET / HTTP/1.1\r\n"), Command::Http);
        assert_eq!(parsed("flush_all 5\r\n"), (Command::FlushAll(5), false));
        assert_eq!(parsed("flush_all noreply\r\n"), (Command::FlushAll(0), true));
        assert_eq!(parsed("delete noreply\r\n"), (Command::Delete(b"noreply"), true));
    }

    #[test]
    fn refusals_are_those_of_memcached() {
        for line in ["\r\n", "g\r\n", "mn\n", "get\r\n", "get \r\n", "gat 0\r\n", "touch a\r\n"] {
            assert_eq!(refusal(line), Refusal::Format, "{line:?}");
        }
        for line in ["    \r\n", " get a\r\n", "getx\r\n", "cache_memlimit\r\n"] {
            assert_eq!(refusal(line), Refusal::Unknown, "{line:?}");
        }
        assert_eq!(one(" verbosity 1\r\n"), Command::Verbosity(1));
        assert_eq!(refusal("set a b c d\r\n"), Refusal::Length);
        assert_eq!(refusal("set a 0 0 -1\r\n"), Refusal::Length);
        assert_eq!(refusal("set a 0 0 +1\r\n"), Refusal::Length);
        assert_eq!(Refusal::Length.to_string(), Refusal::Format.to_string());
        assert_eq!(refusal("incr a b\r\n"), Refusal::Delta);
        assert_eq!(refusal("incr a +1\r\n"), Refusal::Delta);
        assert_eq!(refusal("touch a +1\r\n"), Refusal::Exptime);
        assert_eq!(one("delete a 1 x\r\n"), Command::Delete(b"a"));
        assert_eq!(refusal("gat x a\r\n"), Refusal::Exptime);
        assert_eq!(refusal(&format!("get {}\r\n", "k".repeat(251))), Refusal::Format);
        assert_eq!(Refusal::Shutdown.to_string(), "SERVER_ERROR: shutdown not enabled");
    }

    #[test]
    fn the_value_of_a_refused_line_is_no_command() {
        let key = "k".repeat(251);
        for line in [
            "set a x 0 3\r\n",
            "add a 0 1x 3 noreply\r\n",
            &format!("append {key} 0 0 3\r\n"),
            "cas a 0 0 3\r\n",
            "cas a 0 0 3 +1\r\n",
            "ms a 3 Fx\r\n",
            &format!("ms {key} 3\r\n"),
        ] {
            let expected = (Command::RefusedWithData(Refusal::Format, 5), line.contains("noreply"));
            assert_eq!(parsed(line), expected, "{line:?}");
        }
        // Without a length there is no end to look for.
        assert_eq!(parsed("set a 0 0 x noreply\r\n"), (Command::Refused(Refusal::Length), false));
        // The sign is one that C's library reads.
        assert!(matches!(one("set a +1 +2 3\r\n"), Command::Store(Store { flags: 1, .. })));
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        assert_eq!(parse(&[b'x'; LINE_BYTES_MAX], 0), ParsedText::Need);
        assert_eq!(parse(&[b'x'; LINE_BYTES_MAX + 1], 0), ParsedText::TooLong);
        let mut line = b"get ".to_vec();
        line.resize(LINE_GET_BYTES_MAX, b'k');
        assert_eq!(parse(&line, 0), ParsedText::Need);
        line.push(b'k');
        assert_eq!(parse(&line, line.len()), ParsedText::TooLong);
    }

    fn meta(line: &str) -> MetaCommand<'_> {
        match one(line) {
            Command::Meta(meta) => meta,
            Command::Store(store) => store.meta.unwrap(),
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn flags_of_meta_commands_are_understood() {
        let get = meta("mg foo v k Oabc T30 N0 R-4 q\r\n");
        assert!(get.value && get.quiet && !get.no_update);
        assert_eq!((get.exptime, get.vivify, get.recache), (Some(30), Some(0), Some(-4)));
        assert_eq!(get.flags().len(), 7);
        let set = meta("ms Zm9v 3 b C9 MR\r\n");
        assert_eq!((set.key.bytes(), set.binary_key), (&b"foo"[..], true));
        assert!(matches!(
            one("ms a 3 C9 MR\r\n"),
            Command::Store(Store { verb: Verb::Cas(9), len: 3, .. })
        ));
        let ma = meta("ma n D7 MD J5 N0\r\n");
        assert_eq!((ma.delta, ma.mode, ma.initial), (7, Some(b'D'), 5));
    }

    #[test]
    fn refusals_of_meta_commands_are_those_of_memcached() {
        assert_eq!(refusal("mg a v v\r\n"), Refusal::DuplicateFlag);
        assert_eq!(refusal("mg a !\r\n"), Refusal::Format);
        assert_eq!(refusal("mg a z\r\n"), Refusal::InvalidFlag);
        assert_eq!(refusal("mg a +\r\n"), Refusal::Format);
        assert_eq!(refusal("mg a T+1\r\n"), Refusal::FlagToken);
        assert_eq!(refusal("mg a Tx\r\n"), Refusal::FlagToken);
        assert_eq!(refusal("mg\r\n"), Refusal::Format);
        assert_eq!(refusal("md a v v\r\n"), Refusal::DuplicateFlag);
        assert_eq!(refusal("ma a v v\r\n"), Refusal::InvalidOrDuplicateFlag);
        let many = |name: &str| format!("{name} a{}\r\n", " Oa".repeat(19));
        assert_eq!(refusal(&many("mg")), Refusal::FlagsTooLong);
        assert_eq!(refusal(&many("ma")), Refusal::InvalidOrDuplicateFlag);
        assert_eq!(refusal("ma a Mx\r\n"), Refusal::CountMode);
        assert_eq!(refusal("ms a\r\n"), Refusal::Format);
        assert_eq!(refusal("mg =bad= b\r\n"), Refusal::KeyDecoding);
        for line in ["ms a 3 Mx\r\n", "ms a 3 M\r\n"] {
            assert_eq!(one(line), Command::RefusedWithData(Refusal::StoreMode, 5));
        }
        assert!(matches!(one("ms a 3 MSx\r\n"), Command::Store(_)));
        // Without words there is no length either.
        assert_eq!(one("ms a 3 !\r\n"), Command::Refused(Refusal::Format));
    }
    proptest! {
        #[test]
        fn a_line_is_the_same_command_however_it_arrives(
            line in "(get|gets|set|ms|mg|ma|md|incr|touch|delete|x)( [a-zA-Z0-9]{0,5}){0,8}\r?\n",
        ) {
            let bytes = line.as_bytes();
            for split in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..split], 0), ParsedText::Need);
                prop_assert_eq!(parse(bytes, split), parse(bytes, 0));
            }
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut at = 0;
            while let ParsedText::Command { used, .. } = parse(&bytes[at..], 0) {
                prop_assert!(used > 0 && at + used <= bytes.len());
                at += used;
            }
        }
    }
}
