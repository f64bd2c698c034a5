//! Lua's patterns, for `string.find`, `match`, `gmatch` and `gsub`: those of the C library recurse
//! as deep as a pattern says, and may take for ever; these do neither.
//!
//! Source: the reference manual of Lua 5.1, §5.4.1.

use super::library::{Answer, Fault, Given, number, one};
use super::pace;
use mlua::{Lua, MultiValue, Value};

const CAPTURES_MAX: usize = 32;
/// Parts of a pattern within one another.
const DEPTH_MAX: u32 = 200;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    Open,
    /// Only its place was asked for.
    Place,
    Bytes(usize),
}

#[derive(Clone, Copy, Debug)]
struct Capture {
    from: usize,
    extent: Extent,
}

struct Matcher<'m> {
    lua: &'m Lua,
    text: &'m [u8],
    pattern: &'m [u8],
    captures: Vec<Capture>,
    depth: u32,
}

/// A place behind what matched, if it did.
type Matched = Result<Option<usize>, Fault>;

impl<'m> Matcher<'m> {
    fn new(lua: &'m Lua, text: &'m [u8], pattern: &'m [u8]) -> Self {
        Self { lua, text, pattern, captures: Vec::new(), depth: 0 }
    }

    /// Where the first match from `at` on begins and ends.
    fn search(&mut self, at: usize, anchored: bool) -> Result<Option<(usize, usize)>, Fault> {
        for from in at..=self.text.len() {
            self.captures.clear();
            if let Some(end) = self.run(from, 0)? {
                return Ok(Some((from, end)));
            }
            if anchored {
                break;
            }
        }
        Ok(None)
    }

    /// Matches the pattern from byte `p` on with the text from byte `s` on.
    fn run(&mut self, s: usize, p: usize) -> Matched {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("pattern too complex".into());
        }
        let matched = self.items(s, p);
        self.depth -= 1;
        matched
    }

    fn items(&mut self, mut s: usize, mut p: usize) -> Matched {
        loop {
            pace::step(self.lua, 1)?;
            let next = self.pattern.get(p + 1).copied();
            match self.pattern.get(p) {
                None => return Ok(Some(s)),
                Some(b'(') => {
                    let is_place = next == Some(b')');
                    let extent = if is_place { Extent::Place } else { Extent::Open };
                    return self.open(s, p + 1 + usize::from(is_place), extent);
                }
                Some(b')') => return self.close(s, p + 1),
                Some(b'$') if p + 1 == self.pattern.len() => {
                    return Ok((s == self.text.len()).then_some(s));
                }
                Some(b'%') if next == Some(b'b') => match self.balance(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                Some(b'%') if next == Some(b'f') => match self.frontier(s, p + 2)? {
                    Some(end) => p = end,
                    None => return Ok(None),
                },
                Some(b'%') if next.is_some_and(|byte| byte.is_ascii_digit()) => {
                    match self.again(s, next.unwrap_or(0))? {
                        Some(end) => (s, p) = (end, p + 2),
                        None => return Ok(None),
                    }
                }
                Some(_) => {
                    let end = self.class_end(p)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if self.is_single(s, p, end)
                                && let Some(matched) = self.run(s + 1, end + 1)?
                            {
                                return Ok(Some(matched));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.longest(s, p, end),
                        Some(b'+') if self.is_single(s, p, end) => {
                            return self.longest(s + 1, p, end);
                        }
                        Some(b'+') => return Ok(None),
                        Some(b'-') => return self.shortest(s, p, end),
                        _ if self.is_single(s, p, end) => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn open(&mut self, s: usize, p: usize, extent: Extent) -> Matched {
        if self.captures.len() >= CAPTURES_MAX {
            return Err("too many captures".into());
        }
        self.captures.push(Capture { from: s, extent });
        let count = self.captures.len();
        let matched = self.run(s, p)?;
        if matched.is_none() {
            self.captures.truncate(count - 1);
        }
        Ok(matched)
    }

    fn close(&mut self, s: usize, p: usize) -> Matched {
        let open = self.captures.iter().rposition(|capture| capture.extent == Extent::Open);
        let index = open.ok_or("invalid pattern capture")?;
        self.captures[index].extent = Extent::Bytes(s - self.captures[index].from);
        let matched = self.run(s, p)?;
        if matched.is_none() {
            self.captures[index].extent = Extent::Open;
        }
        Ok(matched)
    }

    /// `%bxy` with the two letters from byte `p` on.
    fn balance(&self, s: usize, p: usize) -> Matched {
        let Some(&[open, close]) = self.pattern.get(p..p + 2) else {
            return Err("unbalanced pattern".into());
        };
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut level = 1;
        for (at, byte) in self.text.iter().enumerate().skip(s + 1) {
            pace::step(self.lua, 1)?;
            if *byte == close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(at + 1));
                }
            } else if *byte == open {
                level += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]` with the set from byte `p` on; where it ends in the pattern, if it holds.
    fn frontier(&self, s: usize, p: usize) -> Matched {
        if self.pattern.get(p) != Some(&b'[') {
            return Err("missing '[' after '%f' in pattern".into());
        }
        let end = self.class_end(p)?;
        let before = if s == 0 { 0 } else { self.text[s - 1] };
        let here = self.text.get(s).copied().unwrap_or(0);
        let holds = !self.is_in_set(before, p, end) && self.is_in_set(here, p, end);
        Ok(holds.then_some(end))
    }

    /// `%1` to `%9`: what was captured, once more.
    fn again(&self, s: usize, digit: u8) -> Matched {
        let index = usize::from(digit.wrapping_sub(b'1'));
        let Some(Capture { from, extent: Extent::Bytes(bytes) }) = self.captures.get(index) else {
            return Err("invalid capture index".into());
        };
        let is_there = self.text[s..].starts_with(&self.text[*from..from + bytes]);
        Ok(is_there.then_some(s + bytes))
    }

    fn longest(&mut self, s: usize, p: usize, end: usize) -> Matched {
        let mut count = 0;
        while self.is_single(s + count, p, end) {
            pace::step(self.lua, 1)?;
            count += 1;
        }
        loop {
            if let Some(matched) = self.run(s + count, end + 1)? {
                return Ok(Some(matched));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn shortest(&mut self, mut s: usize, p: usize, end: usize) -> Matched {
        loop {
            if let Some(matched) = self.run(s, end + 1)? {
                return Ok(Some(matched));
            }
            if !self.is_single(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    /// Where the class ends that begins at byte `p`.
    fn class_end(&self, p: usize) -> Result<usize, Fault> {
        match self.pattern[p] {
            b'%' if p + 1 == self.pattern.len() => Err("malformed pattern (ends with '%')".into()),
            b'%' => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A bracket at once is one of the set.
                loop {
                    let missing = "malformed pattern (missing ']')";
                    let byte = self.pattern.get(at).ok_or(missing)?;
                    at += 1;
                    if *byte == b'%' {
                        at += 1;
                    }
                    if self.pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                    if at >= self.pattern.len() {
                        return Err(missing.into());
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether byte `s` is there and is of the class between `p` and `end`.
    fn is_single(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(byte) = self.text.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => is_of_class(*byte, self.pattern[p + 1]),
            b'[' => self.is_in_set(*byte, p, end),
            plain => plain == *byte,
        }
    }

    /// Whether the set from `p` up to `end`, with its brackets, has the byte.
    fn is_in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let mut set = &self.pattern[p + 1..end - 1];
        let has = match set {
            [b'^', rest @ ..] => {
                set = rest;
                false
            }
            _ => true,
        };
        loop {
            set = match set {
                [] => return !has,
                [b'%', class, ..] if is_of_class(byte, *class) => return has,
                [b'%', _, rest @ ..] => rest,
                [from, b'-', to, ..] if (*from..=*to).contains(&byte) => return has,
                [_, b'-', _, rest @ ..] => rest,
                [plain, ..] if *plain == byte => return has,
                [_, rest @ ..] => rest,
            };
        }
    }

    /// Capture `index`, or all that matched if there is none and it is asked for as the first.
    fn capture(&self, index: usize, from: usize, end: usize) -> Result<Value, Fault> {
        let text = |from: usize, end: usize| -> Result<Value, Fault> {
            Ok(Value::String(self.lua.create_string(&self.text[from..end])?))
        };
        match self.captures.get(index) {
            None if index == 0 => text(from, end),
            None => Err("invalid capture index".into()),
            Some(Capture { extent: Extent::Open, .. }) => Err("unfinished capture".into()),
            Some(Capture { from, extent: Extent::Place }) => Ok(number((from + 1) as f64)),
            Some(Capture { from, extent: Extent::Bytes(bytes) }) => text(*from, from + bytes),
        }
    }

    /// All captures; all that matched, if there is none.
    fn all(&self, from: usize, end: usize) -> Result<MultiValue, Fault> {
        (0..self.captures.len().max(1)).map(|index| self.capture(index, from, end)).collect()
    }
}

fn is_of_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | 9..=13),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}

/// Where a search begins that was asked for at `init`, counted from 1, or from the end.
fn start(given: &Given<'_>, index: usize, bytes: usize) -> Result<usize, Fault> {
    let init = given.integer_or(index, 1)?;
    let init = if init < 0 { init + bytes as i64 } else { init - 1 };
    Ok(init.clamp(0, bytes as i64) as usize)
}

fn has_specials(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// `string.find(text, pattern [, init [, plain]])`
pub fn find(given: &Given<'_>) -> Answer {
    let (text, pattern) = (given.string(0)?, given.string(1)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let at = start(given, 2, text.len())?;
    let is_plain = !matches!(given.value(3), Value::Nil | Value::Boolean(false));
    if is_plain || !has_specials(&pattern) {
        let Some(found) = memchr::memmem::find(&text[at..], &pattern) else {
            return one(Value::Nil);
        };
        let (from, end) = (at + found, at + found + pattern.len());
        return Ok([number((from + 1) as f64), number(end as f64)].into_iter().collect());
    }
    let (anchored, rest) = anchor(&pattern);
    let mut matcher = Matcher::new(given.lua, &text, rest);
    let Some((from, end)) = matcher.search(at, anchored)? else { return one(Value::Nil) };
    let mut values = MultiValue::new();
    values.extend([number((from + 1) as f64), number(end as f64)]);
    if !matcher.captures.is_empty() {
        values.extend(matcher.all(from, end)?);
    }
    Ok(values)
}

fn anchor(pattern: &[u8]) -> (bool, &[u8]) {
    pattern.strip_prefix(b"^").map_or((false, pattern), |rest| (true, rest))
}

/// `string.match(text, pattern [, init])`
pub fn match_once(given: &Given<'_>) -> Answer {
    let (text, pattern) = (given.string(0)?, given.string(1)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let at = start(given, 2, text.len())?;
    let (anchored, rest) = anchor(&pattern);
    let mut matcher = Matcher::new(given.lua, &text, rest);
    match matcher.search(at, anchored)? {
        Some((from, end)) => matcher.all(from, end),
        None => one(Value::Nil),
    }
}

/// One step of `gmatch` and of `gsub` by a function or table: the first match from byte `at` on,
/// counted from 0; where it begins, where it ends, and its captures. `is_anchored`: there or
/// nowhere.
pub fn seek(given: &Given<'_>) -> Answer {
    let (text, pattern) = (given.string(0)?, given.string(1)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let at = usize::try_from(given.integer(2)?).unwrap_or(0);
    let anchored = given.value(3) == Value::Boolean(true);
    let pattern = if anchored { anchor(&pattern).1 } else { &pattern[..] };
    let mut matcher = Matcher::new(given.lua, &text, pattern);
    let Some((from, end)) = matcher.search(at, anchored)? else { return one(Value::Nil) };
    let mut values = matcher.all(from, end)?;
    values.push_front(number(end as f64));
    values.push_front(number(from as f64));
    Ok(values)
}

/// `string.gsub(text, pattern, replacement [, count])` with a replacement that is a text.
pub fn gsub(given: &Given<'_>) -> Answer {
    let (text, pattern) = (given.string(0)?, given.string(1)?);
    let replacement = given.string(2)?;
    let (text, pattern, replacement) =
        (text.as_bytes(), pattern.as_bytes(), replacement.as_bytes());
    let most = if given.has(3) { given.integer(3)?.max(0) as usize } else { usize::MAX };
    let (anchored, pattern) = anchor(&pattern);
    let mut matcher = Matcher::new(given.lua, &text, pattern);
    let (mut out, mut at, mut count) = (Vec::new(), 0, 0);
    while count < most && at <= text.len() {
        let Some((from, end)) = matcher.search(at, anchored)? else { break };
        count += 1;
        out.extend_from_slice(&text[at..from]);
        replace(&matcher, &mut out, &replacement, from, end)?;
        pace::room(out.len())?;
        at = end;
        if end == from {
            // Nothing matched: the byte behind it stays.
            out.extend(text.get(from));
            at = from + 1;
        }
        if anchored {
            break;
        }
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    let text = Value::String(given.lua.create_string(&out)?);
    Ok([text, number(count as f64)].into_iter().collect())
}

fn replace(
    matcher: &Matcher<'_>,
    out: &mut Vec<u8>,
    replacement: &[u8],
    from: usize,
    end: usize,
) -> Result<(), Fault> {
    let mut bytes = replacement.iter();
    while let Some(byte) = bytes.next() {
        match (byte, if *byte == b'%' { bytes.next() } else { None }) {
            (b'%', Some(b'0')) => out.extend_from_slice(&matcher.text[from..end]),
            (b'%', Some(digit @ b'1'..=b'9')) => {
                match matcher.capture(usize::from(digit - b'1'), from, end)? {
                    Value::String(text) => out.extend_from_slice(&text.as_bytes()),
                    Value::Number(place) => out.extend(format!("{place}").into_bytes()),
                    _ => {}
                }
            }
            (b'%', Some(other)) => out.push(*other),
            (b'%', None) => return Err("invalid use of '%' in replacement string".into()),
            (plain, _) => out.push(*plain),
        }
    }
    Ok(())
}
