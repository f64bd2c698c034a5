//! Redis's protocol, RESP2 and RESP3, as data. In: bytes from a connection. Out: one command as
//! ranges of them, a typed violation, or how many bytes there must be before it is worth asking
//! again. A command that arrives byte by byte is not read from its start each time: a [`Scan`]
//! knows how far it was looked at.
//!
//! Commands come as arrays of bulk strings or as a line (what people type into `nc`); only a line
//! has its words copied, since quotes may change them. Answers are put together at the end of the
//! file. Nothing here executes.
//!
//! Source: the protocol's description; violations word by word as redis 7.0 sends them.

use super::bytes::{push_i64, push_u64, strict_i64};
use super::http;
use crate::cache::Error;
use crate::constants::{
    RESP_ARGS_MAX, RESP_BULK_BYTES_MAX, RESP_LINE_BYTES_MAX, RESP_UNKNOWN_ARGS_MAX,
    RESP_UNKNOWN_BULK_BYTES_MAX, STREAM_BYTES_MIN,
};

/// What we answer when asked for Redis's version: tools compare numbers.
pub const REDIS_VERSION: &str = "7.0.15";

#[derive(Debug, PartialEq, Eq)]
pub enum ParsedResp {
    /// So many bytes must be there at least.
    Need(usize),
    /// A command of `used` bytes; its words are in the [`Args`]. No words: nothing to do.
    Command { used: usize },
    /// `SET key` and a value that is streamed: it begins after `used` bytes.
    Large { used: usize, len: u64, rest: usize },
    /// The connection gets this answer and ends.
    Violation(Violation),
}

/// A violation after which the stream cannot be parsed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A line of HTTP: its sender may not know that it sent it.
    #[error("Protocol error: this is no HTTP server")]
    Http,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: too big mbulk count string")]
    CountTooBig,
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// More words than a client may send before it authenticates.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnknownCount,
    #[error("Protocol error: too big bulk count string")]
    LengthTooBig,
    #[error("Protocol error: expected '$', got '{}'", *.0 as char)]
    Dollar(u8),
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// A longer word than a client may send before it authenticates.
    #[error("Protocol error: unauthenticated bulk length")]
    UnknownLength,
}

/// Limits of a command before and after authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    args: i64,
    bulk: i64,
    known: bool,
    /// Long values of a `SET` come by themselves.
    streams: bool,
}

impl Limits {
    /// For a client that may do what it wants (`known`), or that has to authenticate first.
    pub fn new(known: bool) -> Self {
        Self { args: RESP_ARGS_MAX, bulk: RESP_BULK_BYTES_MAX, known, streams: known }
    }

    pub fn with_streams(self, streams: bool) -> Self {
        Self { streams, ..self }
    }
}

/// The words of a command; kept between commands for its memory.
#[derive(Debug, Default)]
pub struct Args {
    spans: Vec<(u32, u32)>,
    /// Words of a line, with quotes resolved.
    text: Vec<u8>,
    inline: bool,
}

impl Args {
    /// The words of a line, with quotes resolved; `None` if they do not match.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        let mut args = Self { inline: true, ..Self::default() };
        split_quoted(line, &mut args).map(|()| args)
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Word `index` of the command that was parsed from `input`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn get<'a>(&'a self, input: &'a [u8], index: usize) -> &'a [u8] {
        let (start, len) = self.spans[index];
        let source = if self.inline { &self.text[..] } else { input };
        &source[start as usize..start as usize + len as usize]
    }

    /// Where word `index` lies in the input; `None` if it was copied.
    pub fn span(&self, index: usize) -> Option<(u32, u32)> {
        (!self.inline).then(|| self.spans[index])
    }

    pub fn words<'a>(
        &'a self,
        input: &'a [u8],
    ) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + 'a {
        (0..self.len()).map(move |index| self.get(input, index))
    }

    /// From now on the words of a command that lie there, each as its first byte and its length.
    pub fn refill(&mut self, spans: &[(u32, u32)]) {
        self.clear(false);
        self.spans.extend_from_slice(spans);
    }

    pub fn held_bytes(&self) -> u64 {
        (self.spans.capacity() * size_of::<(u32, u32)>() + self.text.capacity()) as u64
    }

    fn clear(&mut self, inline: bool) {
        self.spans.clear();
        self.text.clear();
        self.inline = inline;
    }
}

/// How far a command that is not whole was looked at. Kept between reads by its connection; as new
/// as soon as the command is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Where the word begins that is not whole.
    at: usize,
    index: usize,
    /// How many words there will be; 0: nothing is known.
    count: usize,
}

impl Scan {
    /// Looks at what came since the last time. How many bytes there must be, at least, before
    /// anything can be answered; `None` if that may be now.
    ///
    /// No more than the next byte may be waited for behind a whole word: it may be one that is
    /// answered at once, with the connection's end, and nothing comes behind such a byte.
    fn lacks(&mut self, input: &[u8], limits: Limits) -> Option<usize> {
        while self.index < self.count {
            let (start, len) = match head(input, self.at, limits) {
                Ok(head) => head,
                Err(ParsedResp::Need(need)) => return Some(need),
                Err(_) => break,
            };
            if self.index == LARGE_INDEX && len as u64 >= STREAM_BYTES_MIN {
                break;
            }
            let end = start + len + 2;
            if end > input.len() {
                return Some(self.need(end));
            }
            (self.at, self.index) = (end, self.index + 1);
        }
        *self = Self::default();
        None
    }

    /// Gives the command up: where its first word begins that is not whole, and how many words
    /// there are from it on.
    pub fn give_up(&mut self) -> (usize, usize) {
        let Scan { at, index, count } = std::mem::take(self);
        (at, count - index)
    }

    /// With the end of the word, how many bytes there must be.
    fn need(&self, end: usize) -> usize {
        end + usize::from(self.index + 1 < self.count)
    }
}

/// The command at the beginning of `input`; `scan` is what the last call for it left there.
pub fn parse(input: &[u8], limits: Limits, args: &mut Args, scan: &mut Scan) -> ParsedResp {
    if let Some(need) = scan.lacks(input, limits) {
        return ParsedResp::Need(need);
    }
    match input.first() {
        None => ParsedResp::Need(1),
        Some(b'*') => array(input, limits, args, scan).unwrap_or_else(|other| other),
        Some(_) => line(input, args),
    }
}

/// The words behind a streamed value: `count` of them.
pub fn parse_rest(
    input: &[u8],
    count: usize,
    limits: Limits,
    args: &mut Args,
    scan: &mut Scan,
) -> ParsedResp {
    if let Some(need) = scan.lacks(input, limits) {
        return ParsedResp::Need(need);
    }
    args.clear(false);
    bulks(input, 0, count, limits, args, scan, false).unwrap_or_else(|other| other)
}

fn array(
    input: &[u8],
    limits: Limits,
    args: &mut Args,
    scan: &mut Scan,
) -> Result<ParsedResp, ParsedResp> {
    args.clear(false);
    let (count, at) = number(input, 1, Violation::CountTooBig)?;
    let count = count.filter(|count| *count <= limits.args);
    let count = count.ok_or(ParsedResp::Violation(Violation::Count))?;
    if count > RESP_UNKNOWN_ARGS_MAX && !limits.known {
        return Err(ParsedResp::Violation(Violation::UnknownCount));
    }
    bulks(input, at, count.max(0) as usize, limits, args, scan, true)
}

/// Which word of a `SET` is its value.
const LARGE_INDEX: usize = 2;

fn bulks(
    input: &[u8],
    mut at: usize,
    count: usize,
    limits: Limits,
    args: &mut Args,
    scan: &mut Scan,
    may_stream: bool,
) -> Result<ParsedResp, ParsedResp> {
    for index in 0..count {
        let here = Scan { at, index, count };
        let (start, len) = match head(input, at, limits) {
            Ok(head) => head,
            Err(other) => {
                if matches!(other, ParsedResp::Need(_)) {
                    *scan = here;
                }
                return Err(other);
            }
        };
        let is_long = may_stream && index == LARGE_INDEX && len as u64 >= STREAM_BYTES_MIN;
        if is_long && limits.streams && args.get(input, 0).eq_ignore_ascii_case(b"set") {
            return Ok(ParsedResp::Large { used: start, len: len as u64, rest: count - 3 });
        }
        let end = start + len + 2;
        if end > input.len() {
            *scan = here;
            return Err(ParsedResp::Need(here.need(end)));
        }
        args.spans.push((start as u32, len as u32));
        at = end;
    }
    Ok(ParsedResp::Command { used: at })
}

/// The head of the word at `at`: where the word itself begins, and how long it is.
///
/// # Errors
/// More bytes must be there, or none can follow.
#[inline]
pub fn head(input: &[u8], at: usize, limits: Limits) -> Result<(usize, usize), ParsedResp> {
    match input.get(at) {
        None => return Err(ParsedResp::Need(at + 1)),
        Some(b'$') => {}
        Some(byte) => return Err(ParsedResp::Violation(Violation::Dollar(*byte))),
    }
    let (length, start) = number(input, at + 1, Violation::LengthTooBig)?;
    let length = length.filter(|length| (0..=limits.bulk).contains(length));
    let length = length.ok_or(ParsedResp::Violation(Violation::Length))?;
    if length > RESP_UNKNOWN_BULK_BYTES_MAX && !limits.known {
        return Err(ParsedResp::Violation(Violation::UnknownLength));
    }
    Ok((start, length as usize))
}

/// The number from `at` to the end of its line, `None` if it is none, and where the next line
/// begins.
fn number(
    input: &[u8],
    at: usize,
    unbounded: Violation,
) -> Result<(Option<i64>, usize), ParsedResp> {
    let rest = &input[at..];
    // Nearly all are of one digit or two.
    match rest {
        [digit @ b'0'..=b'9', b'\r', _, ..] => {
            return Ok((Some(i64::from(digit - b'0')), at + 3));
        }
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', _, ..] => {
            let value = i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
            return Ok((Some(value), at + 4));
        }
        _ => {}
    }
    match memchr::memchr(b'\r', rest) {
        None if rest.len() > RESP_LINE_BYTES_MAX => Err(ParsedResp::Violation(unbounded)),
        None => Err(ParsedResp::Need(input.len() + 1)),
        Some(end) if end + 2 > rest.len() => Err(ParsedResp::Need(input.len() + 1)),
        Some(end) => Ok((strict_i64(&rest[..end]), at + end + 2)),
    }
}

fn line(input: &[u8], args: &mut Args) -> ParsedResp {
    args.clear(true);
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > RESP_LINE_BYTES_MAX {
            ParsedResp::Violation(Violation::InlineTooBig)
        } else {
            ParsedResp::Need(input.len() + 1)
        };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    // As for a string of C, a zero byte ends it.
    let line = &line[..memchr::memchr(0, line).unwrap_or(line.len())];
    if http::is_line(line) {
        return ParsedResp::Violation(Violation::Http);
    }
    match split_quoted(line, args) {
        Some(()) => ParsedResp::Command { used: end + 1 },
        None => ParsedResp::Violation(Violation::Quotes),
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Cuts a line into words: `"..."` with escapes, `'...'` with `\'`. `None` if quotes do not match.
fn split_quoted(line: &[u8], args: &mut Args) -> Option<()> {
    let mut rest = line;
    loop {
        while rest.first().is_some_and(|byte| is_space(*byte)) {
            rest = &rest[1..];
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = args.text.len();
        rest = word(rest, &mut args.text)?;
        args.spans.push((start as u32, (args.text.len() - start) as u32));
    }
}

/// Takes one word off `rest`; what is behind it.
fn word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((&byte, tail)) = rest.split_first() {
        match byte {
            b'"' => return closed(double_quoted(tail, text)?),
            b'\'' => return closed(single_quoted(tail, text)?),
            byte if is_space(byte) => return Some(rest),
            byte => text.push(byte),
        }
        rest = tail;
    }
    Some(rest)
}

/// Behind a closing quote there must be a blank or nothing.
fn closed(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|byte| is_space(*byte)).then_some(rest)
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [b'\\', b'\'', tail @ ..] => {
                text.push(b'\'');
                rest = tail;
            }
            [b'\'', tail @ ..] => return Some(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
            [] => return None,
        }
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    loop {
        match rest {
            [b'\\', b'x', high, low, tail @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                text.push(hex(*high)? << 4 | hex(*low)?);
                rest = tail;
            }
            [b'\\', byte, tail @ ..] => {
                text.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = tail;
            }
            [b'"', tail @ ..] => return Some(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
            [] => return None,
        }
    }
}

/// Which version of the protocol a client speaks; they differ in answers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    #[default]
    Two,
    /// After `HELLO 3`.
    Three,
}

pub fn push_status(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an error: a word for programs, then a sentence. Line ends in it become blanks.
pub fn push_error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

pub fn push_integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    push_i64(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the length of a bulk string; the string and a line end must follow.
pub fn push_bulk_head(out: &mut Vec<u8>, len: u64) {
    out.push(b'$');
    push_u64(out, len);
    out.extend_from_slice(b"\r\n");
}

pub fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_bulk_head(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub fn push_null(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(match version {
        Version::Two => b"$-1\r\n",
        Version::Three => b"_\r\n",
    });
}

/// Appends the head of an array of `len` elements, which must follow.
pub fn push_array(out: &mut Vec<u8>, len: usize) {
    out.push(b'*');
    push_u64(out, len as u64);
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a map of `len` pairs, which must follow; RESP2 has flat arrays for it.
pub fn push_map(out: &mut Vec<u8>, len: usize, version: Version) {
    match version {
        Version::Two => push_array(out, 2 * len),
        Version::Three => {
            out.push(b'%');
            push_u64(out, len as u64);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends the head of a set of `len` elements, which must follow; RESP2 has arrays for it.
pub fn push_set(out: &mut Vec<u8>, len: usize, version: Version) {
    match version {
        Version::Two => push_array(out, len),
        Version::Three => {
            out.push(b'~');
            push_u64(out, len as u64);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends a text for display: RESP3 marks it as such.
pub fn push_verbatim(out: &mut Vec<u8>, text: &[u8], version: Version) {
    match version {
        Version::Two => push_bulk(out, text),
        Version::Three => {
            out.push(b'=');
            push_u64(out, text.len() as u64 + 4);
            out.extend_from_slice(b"\r\ntxt:");
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// What Redis says where there is no memory for a value.
pub const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// What Redis says to a command for another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The text for what the cache could not do.
pub fn failed(error: &Error) -> String {
    match error {
        Error::OutOfMemory { .. } => OUT_OF_MEMORY.into(),
        Error::StoreFull { .. } => format!("OOM {error}"),
        Error::WrongType => WRONG_TYPE.into(),
        other => format!("ERR {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(input: &[u8]) -> (ParsedResp, Vec<Vec<u8>>) {
        let mut args = Args::default();
        let parsed = parse(input, Limits::new(true), &mut args, &mut Scan::default());
        let words = match parsed {
            ParsedResp::Command { .. } => args.words(input).map(<[u8]>::to_vec).collect(),
            _ => Vec::new(),
        };
        (parsed, words)
    }

    fn violation(input: &[u8]) -> Violation {
        match all(input).0 {
            ParsedResp::Violation(violation) => violation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arrays_and_lines_become_words() {
        let (parsed, words) = all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nrest");
        assert_eq!(
            (parsed, words),
            (ParsedResp::Command { used: 20 }, vec![b"GET".to_vec(), b"k".to_vec()])
        );
        let (_, words) = all(b"set 'a\\'b' \"\\x41\\n\\q\" c\r\n");
        assert_eq!(words, [&b"set"[..], b"a'b", b"A\nq", b"c"]);
        for empty in [&b"*0\r\n"[..], b"*-1\r\n", b"\r\n", b"\n", b"  \n"] {
            assert_eq!(all(empty), (ParsedResp::Command { used: empty.len() }, vec![]));
        }
    }

    #[test]
    fn violations_are_those_of_redis() {
        assert_eq!(violation(b"*x\r\n"), Violation::Count);
        assert_eq!(violation(b"*2000000\r\n"), Violation::Count);
        assert_eq!(violation(b"*1\r\n+\r\n"), Violation::Dollar(b'+'));
        assert_eq!(violation(b"*1\r\n$-1\r\n"), Violation::Length);
        assert_eq!(violation(b"*1\r\n$999999999999\r\n"), Violation::Length);
        assert_eq!(violation(b"a 'b\n"), Violation::Quotes);
        assert_eq!(violation(b"a 'b'c\n"), Violation::Quotes);
        assert_eq!(violation(&[b'a'; RESP_LINE_BYTES_MAX + 1]), Violation::InlineTooBig);
        assert_eq!(violation(&[b'*'; RESP_LINE_BYTES_MAX + 2]), Violation::CountTooBig);
        let mut args = Args::default();
        let unknown = |input: &[u8], args: &mut Args| {
            parse(input, Limits::new(false), args, &mut Scan::default())
        };
        let count = ParsedResp::Violation(Violation::UnknownCount);
        assert_eq!(unknown(b"*11\r\n", &mut args), count);
        let length = ParsedResp::Violation(Violation::UnknownLength);
        assert_eq!(unknown(b"*1\r\n$16385\r\n", &mut args), length);
        assert_eq!(Violation::Dollar(b'+').to_string(), "Protocol error: expected '$', got '+'");
    }

    #[test]
    fn a_large_value_of_a_set_is_streamed() {
        let head = b"*5\r\n$3\r\nsEt\r\n$1\r\nk\r\n$1000000\r\n";
        assert_eq!(all(head).0, ParsedResp::Large { used: head.len(), len: 1_000_000, rest: 2 });
        let get = b"*3\r\n$3\r\nfoo\r\n$1\r\nk\r\n$1000000\r\n";
        assert_eq!(all(get).0, ParsedResp::Need(get.len() + 1_000_002));
        let mut args = Args::default();
        let rest = b"$2\r\nEX\r\n$1\r\n9\r\n";
        let mut scan = Scan::default();
        let parsed = parse_rest(rest, 2, Limits::new(true), &mut args, &mut scan);
        assert_eq!(parsed, ParsedResp::Command { used: rest.len() });
        assert_eq!(args.get(rest, 1), b"9");
    }

    /// What is said of bytes that arrive one by one, as soon as it is more than "wait", and of how
    /// many of them. A parser that says "wait for so many" is not asked before.
    fn one_by_one(input: &[u8]) -> Option<(ParsedResp, usize)> {
        let (mut args, mut scan, mut need) = (Args::default(), Scan::default(), 1);
        for count in 1..=input.len() {
            if count >= need {
                match parse(&input[..count], Limits::new(true), &mut args, &mut scan) {
                    ParsedResp::Need(more) => need = more,
                    other => return Some((other, count)),
                }
            }
        }
        None
    }

    #[test]
    fn what_cannot_be_meant_is_answered_though_nothing_follows() {
        for words in ["*1\r\n", "*2\r\n$3\r\nget\r\n", "*9\r\n$0\r\n\r\n$2\r\nab\r\n"] {
            for (bad, violation) in [
                ("$-5\r\n", Violation::Length),
                ("$\r\n", Violation::Length),
                ("$x\r\n", Violation::Length),
                ("+", Violation::Dollar(b'+')),
            ] {
                let input = format!("{words}{bad}");
                let said = one_by_one(input.as_bytes());
                assert_eq!(
                    said,
                    Some((ParsedResp::Violation(violation), input.len())),
                    "{input:?}"
                );
            }
        }
        let head = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1000000\r\n";
        let large = ParsedResp::Large { used: head.len(), len: 1_000_000, rest: 0 };
        assert_eq!(one_by_one(head), Some((large, head.len())));
    }

    proptest! {
        #[test]
        fn a_command_is_the_same_however_it_arrives(
            words in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..120), 1..8),
        ) {
            let mut bytes = Vec::new();
            push_array(&mut bytes, words.len());
            words.iter().for_each(|word| push_bulk(&mut bytes, word));
            for split in 0..bytes.len() {
                let ParsedResp::Need(need) = all(&bytes[..split]).0 else { panic!("{split}") };
                prop_assert!(need > split && need <= bytes.len());
            }
            let used = bytes.len();
            prop_assert_eq!(one_by_one(&bytes), Some((ParsedResp::Command { used }, used)));
            prop_assert_eq!(all(&bytes), (ParsedResp::Command { used }, words));
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for before in [&b""[..], b"*3\r\n$"] {
                let input = [before, &bytes].concat();
                match all(&input).0 {
                    ParsedResp::Need(least) => prop_assert!(least > input.len()),
                    ParsedResp::Command { used } => prop_assert!(used > 0 && used <= input.len()),
                    ParsedResp::Large { used, .. } => prop_assert!(used <= input.len()),
                    ParsedResp::Violation(_) => {}
                }
            }
        }
    }
}
