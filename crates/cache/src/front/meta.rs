//! memcached's meta commands (`mg`, `ms`, `md`, `ma`, `mn`, `me`) as data: a key, flags of one
//! character with arguments, and their combined meaning. Called by `text` for lines that begin with
//! `m` and another character; executes nothing.
//!
//! Source: memcached's `protocol.txt` of 1.6.45; refusals as that sends them.

use super::bytes::{base64_into, digits, digits32, signed_digits32, value_bytes};
use super::outcome::{Refusal, Verb};
use crate::constants::MEMCACHED_KEY_BYTES_MAX;

/// Words of a meta command at most, as in memcached: name, key and flags.
const WORDS_MAX: usize = 20;
/// Longest opaque with its flag, bytes.
const OPAQUE_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKind {
    Get,
    Set,
    Delete,
    Arithmetic,
    Noop,
    Debug,
}

/// A key as it was sent, or decoded from base64. It lives for one command: a box for the larger one
/// would cost an allocation each time.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey<'a> {
    Plain(&'a [u8]),
    /// Decoded: so many bytes count.
    Decoded([u8; MEMCACHED_KEY_BYTES_MAX], usize),
}

impl MetaKey<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            MetaKey::Plain(bytes) => bytes,
            MetaKey::Decoded(bytes, length) => &bytes[..*length],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaCommand<'a> {
    pub kind: MetaKind,
    pub key: MetaKey<'a>,
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
    /// `q`: no answer of the ordinary kind.
    pub quiet: bool,
    /// `v`: the value, too.
    pub value: bool,
    /// `u`: do not count it as used.
    pub no_update: bool,
    /// `I`: mark as stale.
    pub stale: bool,
    /// `x`: the item stays, without its value.
    pub removes_value: bool,
    /// `b`: the key is sent in base64.
    pub binary_key: bool,
    /// `C`: the version that must be there; of `mg`, whose value need not be sent.
    pub cas: Option<u64>,
    /// `E`: the version that comes then.
    pub new_cas: Option<u64>,
    /// `T`: a new expiry.
    pub exptime: Option<i32>,
    /// `N`: make the item if it is not there, with this expiry.
    pub vivify: Option<i32>,
    /// `R`: a client that sees less time left than this may fetch anew.
    pub recache: Option<i32>,
    /// `F`: the client's flags.
    pub flags: u32,
    /// `D`: by how much.
    pub delta: u64,
    /// `J`: with what to begin.
    pub initial: u64,
    /// `M`: the mode of `ms` or `ma`.
    pub mode: Option<u8>,
}

impl<'a> MetaCommand<'a> {
    /// The flags, as they stand there.
    pub fn flags(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }

    /// When what `ms` stores expires, as the client says it: by `N` where that may make the item to
    /// which it is put.
    pub fn stored_exptime(&self) -> i32 {
        self.vivify.filter(|_| self.is_put_to()).or(self.exptime).unwrap_or(0)
    }

    /// Whether `ms` puts its value to what is there and `N` has it make an item where there is
    /// none.
    pub fn vivifies(&self) -> bool {
        self.vivify.is_some() && self.is_put_to()
    }

    /// The modes of `append` and `prepend`.
    fn is_put_to(&self) -> bool {
        matches!(self.mode, Some(b'A' | b'P'))
    }

    fn new(kind: MetaKind, key: &'a [u8]) -> Self {
        Self {
            kind,
            key: MetaKey::Plain(key),
            words: [&[]; WORDS_MAX],
            count: 0,
            quiet: false,
            value: false,
            no_update: false,
            stale: false,
            removes_value: false,
            binary_key: false,
            cas: None,
            new_cas: None,
            exptime: None,
            vivify: None,
            recache: None,
            flags: 0,
            delta: 1,
            initial: 0,
            mode: None,
        }
    }

    /// Takes over the flags in a line's words from the `first` one on. A flag that is wrong in
    /// itself does not hide those behind it; the last reason is given.
    fn read(&mut self, words: &[&'a [u8]], first: usize) -> Result<(), Refusal> {
        key_fits(words[1])?;
        if words.len() > WORDS_MAX {
            return Err(Refusal::FlagsTooLong);
        }
        let mut seen = 0u128;
        let mut wrong = None;
        for word in &words[first..] {
            let (letter, argument) = (word[0], &word[1..]);
            if seen & 1 << letter != 0 {
                return Err(Refusal::DuplicateFlag);
            }
            seen |= 1 << letter;
            if let Err(refusal) = self.flag(letter, argument) {
                if refusal == Refusal::InvalidFlag {
                    return Err(refusal);
                }
                // `F` alone has no words of its own.
                if refusal != Refusal::Format || wrong.is_none() {
                    wrong = Some(refusal);
                }
            }
            self.words[self.count] = word;
            self.count += 1;
        }
        wrong.map_or(Ok(()), Err)
    }

    fn flag(&mut self, letter: u8, argument: &[u8]) -> Result<(), Refusal> {
        let expiry = || signed_digits32(argument).ok_or(Refusal::FlagToken);
        match letter {
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            b'v' => self.value = true,
            b'u' => self.no_update = true,
            b'q' => self.quiet = true,
            b'I' => self.stale = true,
            b'x' => self.removes_value = true,
            b'b' => self.decode_key()?,
            b'N' => self.vivify = Some(expiry()?),
            b'T' => self.exptime = Some(expiry()?),
            b'R' => self.recache = Some(expiry()?),
            b'F' => self.flags = digits32(argument).ok_or(Refusal::Format)?,
            b'C' => self.cas = Some(digits(argument).ok_or(Refusal::FlagToken)?),
            b'E' => self.new_cas = Some(digits(argument).ok_or(Refusal::FlagToken)?),
            // Its first letter counts; without one it is none.
            b'M' => self.mode = Some(argument.first().copied().unwrap_or(b' ')),
            b'J' => self.initial = digits(argument).ok_or(Refusal::Initial)?,
            b'D' => self.delta = digits(argument).ok_or(Refusal::FlagDelta)?,
            _ => return Err(Refusal::InvalidFlag),
        }
        Ok(())
    }

    fn decode_key(&mut self) -> Result<(), Refusal> {
        let mut bytes = [0; MEMCACHED_KEY_BYTES_MAX];
        let decoded = base64_into(self.key.bytes(), &mut bytes).ok_or(Refusal::KeyDecoding)?;
        self.key = MetaKey::Decoded(bytes, decoded);
        self.binary_key = true;
        Ok(())
    }

    fn opaque_fits(&self) -> Result<(), Refusal> {
        let long = |flag: &&[u8]| flag[0] == b'O' && flag.len() > OPAQUE_BYTES_MAX;
        if self.flags().iter().any(long) { Err(Refusal::OpaqueTooLong) } else { Ok(()) }
    }
}

pub enum ParsedMeta<'a> {
    /// A command without a value.
    Command(MetaCommand<'a>),
    /// `ms`, with the length of the value that follows.
    Store(MetaCommand<'a>, Verb, u32),
    /// It is refused, and so many bytes that follow are not commands.
    RefusedWithData(Refusal, u64),
}

/// Whether a line with the first word `m` and `kind` is such a command.
pub fn is_command(kind: u8) -> bool {
    matches!(kind, b'g' | b's' | b'd' | b'a' | b'e' | b'n')
}

/// Whether a word is looked at as a flag; others make memcached take the line for one that has no
/// words.
fn is_flag(word: &[u8]) -> bool {
    matches!(word[0], b'A'..=b'z' | b'0'..=b'9')
}

/// The command of a line with the first word `m` and `kind`.
pub fn command<'a>(kind: u8, words: &[&'a [u8]]) -> Result<ParsedMeta<'a>, Refusal> {
    let kind = match kind {
        b'n' => return Ok(ParsedMeta::Command(MetaCommand::new(MetaKind::Noop, b""))),
        b'g' => MetaKind::Get,
        b's' => MetaKind::Set,
        b'd' => MetaKind::Delete,
        b'a' => MetaKind::Arithmetic,
        b'e' => MetaKind::Debug,
        _ => return Err(Refusal::Unknown),
    };
    // The length of `ms` is no flag.
    let first = if kind == MetaKind::Set { 3 } else { 2 };
    let (Some(&key), true) = (words.get(1), words.iter().skip(first).all(|word| is_flag(word)))
    else {
        return Err(Refusal::Format);
    };
    let mut meta = MetaCommand::new(kind, key);
    match kind {
        MetaKind::Set => return set(meta, words),
        MetaKind::Debug => {
            key_fits(key)?;
            if words.get(2) == Some(&&b"b"[..]) {
                meta.decode_key().map_err(|_| Refusal::Format)?;
            }
            return Ok(ParsedMeta::Command(meta));
        }
        MetaKind::Arithmetic => {
            meta.read(words, first).map_err(|_| Refusal::InvalidOrDuplicateFlag)?;
            if !matches!(meta.mode, None | Some(b'I' | b'+' | b'D' | b'-')) {
                return Err(Refusal::CountMode);
            }
        }
        _ => meta.read(words, first)?,
    }
    meta.opaque_fits()?;
    Ok(ParsedMeta::Command(meta))
}

fn key_fits(key: &[u8]) -> Result<(), Refusal> {
    if key.len() > MEMCACHED_KEY_BYTES_MAX { Err(Refusal::Format) } else { Ok(()) }
}

/// `ms`: from the point on where the length is known, an error costs the value as well.
fn set<'a>(mut meta: MetaCommand<'a>, words: &[&'a [u8]]) -> Result<ParsedMeta<'a>, Refusal> {
    let length = words.get(2).ok_or(Refusal::Format)?;
    let len = value_bytes(length).ok_or(Refusal::Format)?;
    let checked = meta.read(words, 3).and_then(|()| {
        let verb = match (meta.mode, meta.cas) {
            (None | Some(b'S' | b'R'), Some(cas)) => Verb::Cas(cas),
            (None | Some(b'S'), None) => Verb::Set,
            (Some(b'R'), None) => Verb::Replace,
            (Some(b'E'), _) => Verb::Add,
            (Some(b'A'), _) => Verb::Append,
            (Some(b'P'), _) => Verb::Prepend,
            _ => return Err(Refusal::StoreMode),
        };
        meta.opaque_fits()?;
        Ok(verb)
    });
    Ok(match checked {
        Ok(verb) => ParsedMeta::Store(meta, verb, len),
        Err(refusal) => ParsedMeta::RefusedWithData(refusal, u64::from(len) + 2),
    })
}
