//! Words into shell commands with checked operands. In: the words of one command. Out:
//! [`ShellCommand`], or a sentence that says what was expected. Pure; called by the shell alone.
//! Source: DESIGN §5.

use super::words::{Word, Words};
use crate::args::parse_size;
use rackpool::{GAddr, Placement, RackId, Tier};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Longest name of an object in the pool's hash table, bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Bytes that a command brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Bytes(Vec<u8>),
    /// The contents of a file.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// Two digits a byte.
    Hex,
    /// As text; what is not printable is escaped.
    Text,
    /// As they are, into a file.
    File(PathBuf),
}

/// What `explain` is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Addr(GAddr),
    Name(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsForm {
    /// `key=value` lines.
    Lines,
    Json,
    /// The exposition format of Prometheus.
    Prometheus,
    /// What the racks decided about their pages: a line of JSON for each decision.
    Decisions,
}

/// One command of the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum ShellCommand {
    /// `alloc BYTES [local|rack:N|spread|tier:T]`
    Alloc(u64, Placement),
    /// `write ADDR DATA`
    Write(GAddr, Data),
    /// `read ADDR BYTES [hex|text|file:PATH]`
    Read(GAddr, u64, Show),
    /// `cas ADDR OLD NEW`
    Cas(GAddr, u64, u64),
    /// `add ADDR N`
    Add(GAddr, u64),
    /// `persist ADDR BYTES`: both are numbers.
    Persist(GAddr, u64),
    /// `free ADDR BYTES`
    Free(GAddr, u64),
    /// `migrate ADDR rack:N`
    Migrate(GAddr, RackId),
    /// `put NAME DATA`
    Put(Vec<u8>, Data),
    /// `put -r DIR`: all regular files below
    PutTree(PathBuf),
    /// `get NAME [file:PATH]`
    Get(Vec<u8>, Option<PathBuf>),
    /// `get -r PREFIX DIR`: objects into files below
    GetTree(Vec<u8>, PathBuf),
    /// `del NAME`
    Del(Vec<u8>),
    /// `ls [PREFIX]`
    Ls(Vec<u8>),
    /// `explain ADDR|NAME`
    Explain(Subject),
    /// `stats [--json|--prometheus|--decisions]`
    Stats(StatsForm),
    Help,
    Quit,
}

/// What each command looks like, for messages and for `help`.
pub const FORMS: [&str; 16] = [
    "alloc BYTES [local|rack:N|spread|tier:T]",
    "write ADDR text:...|hex:...|file:PATH",
    "read ADDR BYTES [hex|text|file:PATH]",
    "cas ADDR OLD NEW",
    "add ADDR N",
    "persist ADDR BYTES",
    "free ADDR BYTES",
    "migrate ADDR rack:N",
    "put NAME file:PATH|text:...|hex:... (or: put -r DIR)",
    "get NAME [file:PATH] (or: get -r PREFIX DIR)",
    "del NAME",
    "ls [PREFIX]",
    "explain ADDR|NAME",
    "stats [--json|--prometheus|--decisions]",
    "help",
    "quit",
];

type Parsed<T> = Result<T, String>;

/// Understands one command.
///
/// # Errors
/// A sentence: what is wrong, and what the command looks like.
pub fn parse(words: &Words) -> Parsed<ShellCommand> {
    let name = words.first().map(text).unwrap_or_default();
    let Some(form) = FORMS.iter().find(|form| form.split(' ').next() == Some(&name)) else {
        let known: Vec<_> = FORMS.iter().filter_map(|form| form.split(' ').next()).collect();
        return Err(format!("there is no command `{name}`; there are {}", known.join(", ")));
    };
    let operands = joined_text(&name, &words[1..]);
    let all: Vec<&[u8]> = operands.iter().map(|word| &word[..]).collect();
    operation(&name, &all).map_err(|wrong| format!("{wrong}; write: {form}"))
}

/// `write` and `put` take text with spaces without quotes, too: the words from `text:…` on are one.
fn joined_text(name: &str, words: &[Word]) -> Vec<Vec<u8>> {
    let mut operands: Vec<Vec<u8>> = Vec::new();
    for word in words {
        match operands.last_mut() {
            Some(last) if operands_full(name, words, last) => {
                last.extend_from_slice(word.gap.as_bytes());
                last.extend_from_slice(&word.bytes);
            }
            _ => operands.push(word.bytes.clone()),
        }
    }
    operands
}

/// Whether `last` is the text operand of a command that takes all the rest as text. The first
/// operand of both is an address or a name, even if it looks like text.
fn operands_full(name: &str, words: &[Word], last: &[u8]) -> bool {
    let is_first = words.first().is_some_and(|first| first.bytes == last);
    matches!(name, "write" | "put") && last.starts_with(b"text:") && !is_first
}

fn operation(name: &str, operands: &[&[u8]]) -> Parsed<ShellCommand> {
    use ShellCommand as C;
    Ok(match (name, operands) {
        ("alloc", [bytes]) => C::Alloc(size(bytes)?, Placement::Auto),
        ("alloc", [bytes, place]) => C::Alloc(size(bytes)?, placement(place)?),
        ("write", [addr, data]) => C::Write(address(addr)?, data_of(data)?),
        ("read", [addr, bytes]) => C::Read(address(addr)?, size(bytes)?, Show::Hex),
        ("read", [addr, bytes, show]) => C::Read(address(addr)?, size(bytes)?, show_of(show)?),
        ("cas", [addr, old, new]) => C::Cas(address(addr)?, number(old)?, number(new)?),
        ("add", [addr, n]) => C::Add(address(addr)?, number(n)?),
        ("persist", [addr, bytes]) => C::Persist(address(addr)?, size(bytes)?),
        ("free", [addr, bytes]) => C::Free(address(addr)?, size(bytes)?),
        ("migrate", [addr, rack]) => C::Migrate(address(addr)?, rack_of(rack)?),
        // An object may be called `-r`: then data follows.
        ("put", [b"-r", directory]) if data_of(directory).is_err() => {
            C::PutTree(directory_of(directory)?)
        }
        ("put", [name, data]) => C::Put(object(name)?, data_of(data)?),
        ("get", [name]) => C::Get(object(name)?, None),
        ("get", [b"-r", prefix, directory]) => {
            C::GetTree(prefix.to_vec(), directory_of(directory)?)
        }
        ("get", [name, file]) => C::Get(object(name)?, Some(file_of(file)?)),
        ("del", [name]) => C::Del(object(name)?),
        ("ls", []) => C::Ls(Vec::new()),
        ("ls", [prefix]) => C::Ls(prefix.to_vec()),
        ("explain", [subject]) => C::Explain(subject_of(subject)?),
        ("stats", []) => C::Stats(StatsForm::Lines),
        ("stats", [b"--json"]) => C::Stats(StatsForm::Json),
        ("stats", [b"--prometheus"]) => C::Stats(StatsForm::Prometheus),
        ("stats", [b"--decisions"]) => C::Stats(StatsForm::Decisions),
        ("help", []) => C::Help,
        ("quit", []) => C::Quit,
        (_, operands) => {
            let (count, s) = (operands.len(), if operands.len() == 1 { "" } else { "s" });
            return Err(format!("`{name}` with {count} operand{s} makes no sense"));
        }
    })
}

fn text(word: &Word) -> String {
    lossy(&word.bytes)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An address: `0x…`, as `alloc` prints it, or decimal.
fn address(word: &[u8]) -> Parsed<GAddr> {
    let wrong = || format!("`{}` is not an address such as 0x0000000000200000", lossy(word));
    unsigned(word).map(GAddr).ok_or_else(wrong)
}

fn unsigned(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok()?;
    let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (word, 10),
    };
    // `from_str_radix` would take a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// A word of memory: decimal, `0x…`, or negative as two's complement.
fn number(word: &[u8]) -> Parsed<u64> {
    let negative = || {
        let digits = word.strip_prefix(b"-")?;
        let magnitude = unsigned(digits).filter(|magnitude| *magnitude <= 1 << 63)?;
        Some(magnitude.wrapping_neg())
    };
    let wrong = || format!("`{}` is not a number of 64 bits", lossy(word));
    unsigned(word).or_else(negative).ok_or_else(wrong)
}

fn size(word: &[u8]) -> Parsed<u64> {
    parse_size(&lossy(word))
}

fn placement(word: &[u8]) -> Parsed<Placement> {
    match word {
        b"local" => Ok(Placement::Local),
        b"spread" => Ok(Placement::Spread),
        _ if word.starts_with(b"tier:") => {
            let tier = lossy(&word[b"tier:".len()..]).parse::<Tier>();
            tier.map(Placement::Tier).map_err(|error| error.to_string())
        }
        _ => {
            let wrong = |_| format!("`{}` is no placement", lossy(word));
            rack_of(word).map(Placement::Rack).map_err(wrong)
        }
    }
}

fn rack_of(word: &[u8]) -> Parsed<RackId> {
    let rack = word.strip_prefix(b"rack:").and_then(unsigned);
    let rack = rack.and_then(|rack| u16::try_from(rack).ok());
    rack.map(RackId).ok_or_else(|| format!("`{}` is not a rack such as rack:1", lossy(word)))
}

fn data_of(word: &[u8]) -> Parsed<Data> {
    if let Some(text) = word.strip_prefix(b"text:") {
        return Ok(Data::Bytes(text.to_vec()));
    }
    if let Some(hex) = word.strip_prefix(b"hex:") {
        return unhex(hex).map(Data::Bytes);
    }
    match file_of(word) {
        Ok(path) => Ok(Data::File(path)),
        Err(_) => Err(format!("`{}` is neither text:..., hex:... nor file:PATH", lossy(word))),
    }
}

fn show_of(word: &[u8]) -> Parsed<Show> {
    match word {
        b"hex" => Ok(Show::Hex),
        b"text" => Ok(Show::Text),
        _ => file_of(word)
            .map(Show::File)
            .map_err(|_| format!("`{}` is neither hex, text nor file:PATH", lossy(word))),
    }
}

fn file_of(word: &[u8]) -> Parsed<PathBuf> {
    match word.strip_prefix(b"file:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path))),
        _ => Err(format!("`{}` is not file:PATH", lossy(word))),
    }
}

fn directory_of(word: &[u8]) -> Parsed<PathBuf> {
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(word));
    if word.is_empty() { Err("the name of a directory is empty".into()) } else { Ok(path) }
}

fn object(word: &[u8]) -> Parsed<Vec<u8>> {
    match word.len() {
        0 => Err("the name of an object is empty".into()),
        1..=NAME_BYTES_MAX => Ok(word.to_vec()),
        bytes => Err(format!("a name of {bytes} bytes is too long: {NAME_BYTES_MAX} are allowed")),
    }
}

/// A number in hex is an address, everything else a name. (A name that looks like an address can
/// be listed and read, not explained.)
fn subject_of(word: &[u8]) -> Parsed<Subject> {
    if word.starts_with(b"0x") {
        return address(word).map(Subject::Addr);
    }
    object(word).map(Subject::Name)
}

fn unhex(digits: &[u8]) -> Parsed<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return Err(format!("hex: with {} digits ends in half a byte", digits.len()));
    }
    let nibble = |digit: u8| {
        let value = char::from(digit).to_digit(16);
        value.ok_or_else(|| format!("`{}` is no hex digit", char::from(digit)))
    };
    let byte = |two: &[u8]| Ok((nibble(two[0])? << 4 | nibble(two[1])?) as u8);
    digits.chunks_exact(2).map(byte).collect()
}

/// Bytes in hex, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16"));
        }
    }
    text
}

/// Bytes as text: UTF-8 as it is, everything that is not printable as `\n`, `\t`, `\r` or `\xNN`,
/// a backslash doubled so that the text says exactly which bytes there were.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                c if c.is_control() || is_format(c) => {
                    let mut buffer = [0; 4];
                    c.encode_utf8(&mut buffer).bytes().for_each(|b| push_escape(&mut text, b));
                }
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_escape(&mut text, *byte));
    }
    text
}

fn push_escape(text: &mut String, byte: u8) {
    text.push_str("\\x");
    text.push_str(&hex(&[byte]));
}

/// Marks that a terminal would not show, or that would turn the rest of the line around.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::super::words::split;
    use super::*;

    fn one(line: &str) -> Parsed<ShellCommand> {
        let commands = split(line);
        assert_eq!(commands.len(), 1, "{line}");
        parse(commands[0].as_ref().unwrap())
    }

    #[test]
    fn every_form_of_the_contract_is_understood() {
        use ShellCommand as C;
        let addr = GAddr(0x200000);
        for (line, command) in [
            ("alloc 4K", C::Alloc(4096, Placement::Auto)),
            ("alloc 64 local", C::Alloc(64, Placement::Local)),
            ("alloc 64 rack:3", C::Alloc(64, Placement::Rack(RackId(3)))),
            ("alloc 64 spread", C::Alloc(64, Placement::Spread)),
            ("alloc 64 tier:far", C::Alloc(64, Placement::Tier(Tier::Far))),
            ("alloc 64 tier:2", C::Alloc(64, Placement::Tier(Tier::Number(2)))),
            ("write 0x200000 text:hi", C::Write(addr, Data::Bytes(b"hi".into()))),
            ("write 2097152 hex:00fF", C::Write(addr, Data::Bytes(vec![0, 255]))),
            ("write 0x200000 file:/a", C::Write(addr, Data::File("/a".into()))),
            ("read 0x0000000000200000 8", C::Read(addr, 8, Show::Hex)),
            ("read 0x200000 8 text", C::Read(addr, 8, Show::Text)),
            ("read 0x200000 8 file:a", C::Read(addr, 8, Show::File("a".into()))),
            ("cas 0x200000 1 0x2", C::Cas(addr, 1, 2)),
            ("add 0x200000 -1", C::Add(addr, u64::MAX)),
            ("free 0x200000 64", C::Free(addr, 64)),
            ("migrate 0x200000 rack:1", C::Migrate(addr, RackId(1))),
            ("put n text:", C::Put(b"n".into(), Data::Bytes(vec![]))),
            ("put n file:x", C::Put(b"n".into(), Data::File("x".into()))),
            ("put -r a/dir", C::PutTree("a/dir".into())),
            ("put -r text:a", C::Put(b"-r".into(), Data::Bytes(b"a".into()))),
            ("get -r '' out", C::GetTree(vec![], "out".into())),
            ("get n", C::Get(b"n".into(), None)),
            ("get n file:x", C::Get(b"n".into(), Some("x".into()))),
            ("del n", C::Del(b"n".into())),
            ("ls", C::Ls(vec![])),
            ("ls pre", C::Ls(b"pre".into())),
            ("explain 0x200000", C::Explain(Subject::Addr(addr))),
            ("explain n", C::Explain(Subject::Name(b"n".into()))),
            ("stats", C::Stats(StatsForm::Lines)),
            ("stats --json", C::Stats(StatsForm::Json)),
            ("stats --prometheus", C::Stats(StatsForm::Prometheus)),
            ("stats --decisions", C::Stats(StatsForm::Decisions)),
            ("help", C::Help),
            ("quit", C::Quit),
        ] {
            assert_eq!(one(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn text_may_hold_spaces_with_and_without_quotes() {
        let expected = ShellCommand::Put(b"n".into(), Data::Bytes(b"two  words".into()));
        for line in
            ["put n text:two  words", "put n 'text:two  words'", "put n text:\"two  words\""]
        {
            assert_eq!(one(line).as_ref(), Ok(&expected), "{line}");
        }
        let odd = one("put text:a text:b c");
        let expected = ShellCommand::Put(b"text:a".into(), Data::Bytes(b"b c".into()));
        assert_eq!(odd, Ok(expected));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_right_form() {
        for (line, part) in [
            ("fly", "there is no command `fly`"),
            ("alloc", "alloc BYTES"),
            ("alloc many", "not a number of bytes"),
            ("alloc 64 moon", "no placement"),
            ("alloc 64 rack:70000", "no placement"),
            ("alloc 64 rack:", "no placement"),
            ("alloc 64 tier:deep", "`deep` is no tier: near, far, or a number from 0"),
            ("write 0x200000 hello", "neither text:"),
            ("write 0x200000 hex:abc", "half a byte"),
            ("write 0x200000 hex:zz", "no hex digit"),
            ("write 0x200000 file:", "neither text:"),
            ("write somewhere text:a", "not an address"),
            ("write +5 text:a", "not an address"),
            ("read 0x200000", "read ADDR BYTES"),
            ("read 0x200000 8 loudly", "neither hex"),
            ("cas 0x200000 1", "cas ADDR OLD NEW"),
            ("add 0x200000 0x10000000000000000", "64 bits"),
            ("add 0x200000 --1", "64 bits"),
            ("migrate 0x200000", "migrate ADDR rack:N"),
            ("migrate 0x200000 local", "not a rack"),
            ("migrate 0x200000 rack:70000", "not a rack"),
            ("put '' text:a", "empty"),
            ("put n", "put NAME"),
            ("get n m", "not file:PATH"),
            ("ls a b", "ls [PREFIX]"),
            ("explain 0xyz", "not an address"),
            ("stats now", "stats [--json|--prometheus|--decisions]"),
        ] {
            let wrong = one(line).unwrap_err();
            assert!(wrong.contains(part), "{line}: {wrong}");
        }
        assert!(one(&format!("del {}", "n".repeat(5000))).unwrap_err().contains("too long"));
    }

    #[test]
    fn bytes_are_shown_so_that_nothing_is_ambiguous() {
        assert_eq!(hex(&[0, 0x1f, 255]), "001fff");
        assert_eq!(printable("aé\n\t\\\u{202e}".as_bytes()), "aé\\n\\t\\\\\\xe2\\x80\\xae");
        assert_eq!(printable(b"\0\xff\x1b["), "\\x00\\xff\\x1b[");
    }
}
