//! `cjson.decode`.

use super::{Config, Invalid};
use crate::front::scripts::library::{Answer, Fault, Given, number, one};
use crate::front::scripts::pace;
use mlua::{Lua, Value};

pub fn decode(given: &Given<'_>, config: Config) -> Answer {
    if given.len() != 1 {
        return Err(given.bad(0, "expected 1 argument"));
    }
    let text = given.string(0)?;
    let text = text.as_bytes();
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err("JSON parser does not support UTF-16 or UTF-32".into());
    }
    let mut decoder = Decoder { lua: given.lua, config, text: &text, at: 0 };
    let first = decoder.next()?;
    let value = decoder.value(first, 0)?;
    match decoder.next()? {
        (Token::End, _) => one(value),
        other => Err(unexpected("the end", &other)),
    }
}

/// A part of the text.
enum Token {
    Mark(u8),
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    End,
    Wrong(&'static str),
}

/// With the place where it begins.
type Placed = (Token, usize);

fn unexpected(expected: &str, (token, at): &Placed) -> Fault {
    let found = match token {
        Token::Mark(b'{') => "T_OBJ_BEGIN",
        Token::Mark(b'}') => "T_OBJ_END",
        Token::Mark(b'[') => "T_ARR_BEGIN",
        Token::Mark(b']') => "T_ARR_END",
        Token::Mark(b':') => "T_COLON",
        Token::Mark(_) => "T_COMMA",
        Token::Text(_) => "T_STRING",
        Token::Number(_) => "T_NUMBER",
        Token::Boolean(_) => "T_BOOLEAN",
        Token::Null => "T_NULL",
        Token::End => "T_END",
        Token::Wrong(why) => why,
    };
    Fault::Text(format!("Expected {expected} but found {found} at character {}", at + 1))
}

struct Decoder<'d> {
    lua: &'d Lua,
    config: Config,
    text: &'d [u8],
    at: usize,
}

impl Decoder<'_> {
    fn next(&mut self) -> Result<Placed, Fault> {
        pace::step(self.lua, 1)?;
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.text[self.at..].iter().take_while(blank).count();
        let (start, rest) = (self.at, &self.text[self.at..]);
        let Some(first) = rest.first() else { return Ok((Token::End, start)) };
        let token = match first {
            b'{' | b'}' | b'[' | b']' | b':' | b',' => {
                self.at += 1;
                Token::Mark(*first)
            }
            b'"' => {
                self.at += 1;
                let text = self.string();
                let is_wrong = matches!(text, Token::Wrong(_));
                return Ok((text, if is_wrong { self.at } else { start }));
            }
            0 => Token::End,
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        };
        Ok((token, start))
    }

    fn word(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let words = [
            (&b"true"[..], Token::Boolean(true)),
            (b"false", Token::Boolean(false)),
            (b"null", Token::Null),
        ];
        for (word, token) in words {
            if rest.starts_with(word) {
                self.at += word.len();
                return token;
            }
        }
        let is_number = matches!(rest[0], b'+' | b'i' | b'I' | b'n' | b'N');
        if is_number && self.config.decodes_invalid != Invalid::Refused {
            return match self.number() {
                Token::Wrong(_) => Token::Wrong("invalid token"),
                number => number,
            };
        }
        Token::Wrong("invalid token")
    }

    fn number(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let is_refused = self.config.decodes_invalid == Invalid::Refused;
        let digits = rest.strip_prefix(b"-").unwrap_or(rest);
        let leads_by_zero = matches!(digits, [b'0', b'0'..=b'9' | b'x' | b'X', ..]);
        let is_named = digits.first().is_some_and(u8::is_ascii_alphabetic);
        if is_refused && (leads_by_zero || is_named) {
            return Token::Wrong("invalid number");
        }
        match c_number(rest) {
            Some((number, used)) => {
                self.at += used;
                Token::Number(number)
            }
            None => Token::Wrong("invalid number"),
        }
    }

    /// What is left of a text, behind its first quotation mark.
    fn string(&mut self) -> Token {
        let mut text = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count();
            text.extend_from_slice(&rest[..plain]);
            self.at += plain;
            match rest.get(plain..plain + 2) {
                _ if rest.get(plain) == Some(&b'"') => {
                    self.at += 1;
                    return Token::Text(text);
                }
                Some([_, b'u']) => match self.unicode() {
                    Some(letter) => {
                        text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    None => return Token::Wrong("invalid unicode escape code"),
                },
                Some([_, escape]) => {
                    text.push(match escape {
                        b'"' | b'\\' | b'/' => *escape,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        _ => return Token::Wrong("invalid escape code"),
                    });
                    self.at += 2;
                }
                _ => return Token::Wrong("unexpected end of string"),
            }
        }
    }

    /// The letter of `\uXXXX`, or of two of them.
    fn unicode(&mut self) -> Option<char> {
        let code = |at: usize| {
            let digits = self.text.get(at..at + 6)?.strip_prefix(b"\\u")?;
            let digits = std::str::from_utf8(digits).ok()?;
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let high = code(self.at)?;
        if !(0xd800..0xe000).contains(&high) {
            self.at += 6;
            return char::from_u32(high);
        }
        let low = code(self.at + 6).filter(|low| (0xdc00..0xe000).contains(low))?;
        let letter = 0x10000 + ((high.wrapping_sub(0xd800) & 0x3ff) << 10) + (low - 0xdc00);
        let letter = char::from_u32(letter).filter(|_| high < 0xdc00)?;
        self.at += 12;
        Some(letter)
    }

    fn value(&mut self, token: Placed, depth: i64) -> Result<Value, Fault> {
        match token.0 {
            Token::Text(text) => Ok(Value::String(self.lua.create_string(text)?)),
            Token::Number(value) => Ok(number(value)),
            Token::Boolean(is) => Ok(Value::Boolean(is)),
            Token::Null => Ok(Value::NULL),
            Token::Mark(b'{') => self.object(depth + 1),
            Token::Mark(b'[') => self.array(depth + 1),
            _ => Err(unexpected("value", &token)),
        }
    }

    fn check_depth(&self, depth: i64) -> Result<(), Fault> {
        if depth > self.config.decode_depth_max {
            return Err(format!(
                "Found too many nested data structures ({depth}) at character {}",
                self.at
            )
            .into());
        }
        Ok(())
    }

    fn object(&mut self, depth: i64) -> Result<Value, Fault> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let mut token = self.next()?;
        if matches!(token.0, Token::Mark(b'}')) {
            return Ok(Value::Table(table));
        }
        loop {
            let Token::Text(key) = token.0 else {
                return Err(unexpected("object key string", &token));
            };
            let colon = self.next()?;
            if !matches!(colon.0, Token::Mark(b':')) {
                return Err(unexpected("colon", &colon));
            }
            let first = self.next()?;
            let value = self.value(first, depth)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            token = self.next()?;
            match token.0 {
                Token::Mark(b'}') => return Ok(Value::Table(table)),
                Token::Mark(b',') => token = self.next()?,
                _ => return Err(unexpected("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self, depth: i64) -> Result<Value, Fault> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let mut token = self.next()?;
        if matches!(token.0, Token::Mark(b']')) {
            return Ok(Value::Table(table));
        }
        for index in 1_i64.. {
            let value = self.value(token, depth)?;
            table.raw_set(index, value)?;
            token = self.next()?;
            match token.0 {
                Token::Mark(b']') => break,
                Token::Mark(b',') => token = self.next()?,
                _ => return Err(unexpected("comma or array end", &token)),
            }
        }
        Ok(Value::Table(table))
    }
}

/// The number at the beginning as C reads it, and how many bytes it has.
fn c_number(text: &[u8]) -> Option<(f64, usize)> {
    let signed = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let sign = if text.first() == Some(&b'-') { -1.0 } else { 1.0 };
    let rest = &text[signed..];
    let begins =
        |word: &[u8]| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    for (word, value) in
        [(&b"infinity"[..], f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)]
    {
        if begins(word) {
            return Some((value.copysign(sign), signed + word.len()));
        }
    }
    if begins(b"0x") {
        let digits = rest[2..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let value = rest[2..2 + digits].iter().fold(0.0, |value, digit| {
            value * 16.0 + f64::from((*digit as char).to_digit(16).unwrap_or(0))
        });
        return (digits > 0).then_some((sign * value, signed + 2 + digits));
    }
    let count = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = count(0);
    let mut end = whole;
    let mut decimals = 0;
    if rest.get(whole) == Some(&b'.') {
        decimals = count(whole + 1);
        end = whole + 1 + decimals;
    }
    if whole + decimals == 0 {
        return None;
    }
    if matches!(rest.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.get(end + 1), Some(b'-' | b'+')));
        let from = (end + 1 + sign).min(rest.len());
        let digits = count(from);
        end = if digits > 0 { from + digits } else { end };
    }
    let number = std::str::from_utf8(&rest[..end]).ok()?.parse::<f64>().ok()?;
    Some((sign * number, signed + end))
}
