//! Redis's commands on strings and keys, executed. In: the words of a command. Out: its answer in
//! [`Core::out`]. The session calls [`RespCall::run`] for each command but plain look-ups, which
//! wait in the batch.
//!
//! Source: the answers of redis 7.0, word by word.

use super::clients::ClientInfo;
use super::core::Core;
use super::counters::Count;
use super::resp::{
    Args, OUT_OF_MEMORY, push_array, push_error, push_integer, push_null, push_status,
};
use super::{redis_keys, redis_server, redis_strings};
use crate::constants::{BATCH_KEYS_MAX, OUTPUT_SOFT_BYTES};
use std::fmt::Write;

pub struct RespCall<'c> {
    pub core: &'c mut Core,
    pub client: &'c mut ClientInfo,
    pub input: &'c [u8],
    pub args: &'c Args,
    unfinished: Option<Unfinished>,
}

/// Where a command that ran goes on in a later turn of its connection, and how.
pub type Unfinished = (ResumePoint, Resume);

/// A command that is known.
pub struct Spec {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Words with the name; negative: at least so many.
    pub arity: i32,
    pub writes: bool,
    /// First word that is a key, last one (negative: from the end), and the step; 0 for none.
    pub keys: (i32, i32, i32),
    run: fn(&mut RespCall<'_>) -> CommandResult,
}

/// An error's text, or nothing if the answer was given.
pub type CommandResult = Result<(), String>;

/// Goes on with a command at this part.
pub type Resume = fn(&mut RespCall<'_>, ResumePoint) -> CommandResult;

/// Where a command resumes that yields to other connections, or waits for its client to take
/// answers.
#[derive(Debug, Default)]
pub struct ResumePoint {
    /// The next word, or whatever else is counted.
    pub index: u64,
    /// What was counted so far, or a bit for each thing that was asked for.
    pub sum: i64,
    /// An answer that is not whole.
    pub text: String,
    /// Time that was spent on it, nanoseconds.
    pub took_ns: u64,
}

impl ResumePoint {
    pub fn at(index: u64) -> Self {
        Self { index, ..Self::default() }
    }
}

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);

macro_rules! spec {
    ($name:literal, $arity:literal, $writes:literal, $keys:expr, $run:path) => {
        Spec { name: $name, arity: $arity, writes: $writes, keys: $keys, run: $run }
    };
}

pub static COMMANDS: &[Spec] = &[
    spec!("append", 3, true, ONE, redis_strings::append),
    spec!("auth", -2, false, NO_KEYS, redis_server::auth),
    spec!("client", -2, false, NO_KEYS, redis_server::client),
    spec!("command", -1, false, NO_KEYS, redis_server::command),
    spec!("config", -2, false, NO_KEYS, redis_server::config),
    spec!("dbsize", 1, false, NO_KEYS, redis_keys::dbsize),
    spec!("decr", 2, true, ONE, redis_strings::decr),
    spec!("decrby", 3, true, ONE, redis_strings::decrby),
    spec!("del", -2, true, ALL, redis_keys::del),
    spec!("echo", 2, false, NO_KEYS, redis_server::echo),
    spec!("exists", -2, false, ALL, redis_keys::exists),
    spec!("expire", -3, true, ONE, redis_keys::expire),
    spec!("expireat", -3, true, ONE, redis_keys::expireat),
    spec!("expiretime", 2, false, ONE, redis_keys::expiretime),
    spec!("flushall", -1, true, NO_KEYS, redis_keys::flush),
    spec!("flushdb", -1, true, NO_KEYS, redis_keys::flush),
    spec!("get", 2, false, ONE, redis_strings::get),
    spec!("getdel", 2, true, ONE, redis_strings::getdel),
    spec!("getex", -2, true, ONE, redis_strings::getex),
    spec!("getset", 3, true, ONE, redis_strings::getset),
    spec!("hello", -1, false, NO_KEYS, redis_server::hello),
    spec!("incr", 2, true, ONE, redis_strings::incr),
    spec!("incrby", 3, true, ONE, redis_strings::incrby),
    spec!("info", -1, false, NO_KEYS, redis_server::info),
    spec!("memory", -2, false, NO_KEYS, redis_keys::memory),
    spec!("mget", -2, false, ALL, redis_strings::mget),
    spec!("mset", -3, true, (1, -1, 2), redis_strings::mset),
    spec!("persist", 2, true, ONE, redis_keys::persist),
    spec!("pexpire", -3, true, ONE, redis_keys::pexpire),
    spec!("pexpireat", -3, true, ONE, redis_keys::pexpireat),
    spec!("pexpiretime", 2, false, ONE, redis_keys::pexpiretime),
    spec!("ping", -1, false, NO_KEYS, redis_server::ping),
    spec!("psetex", 4, true, ONE, redis_strings::psetex),
    spec!("pttl", 2, false, ONE, redis_keys::pttl),
    spec!("quit", -1, false, NO_KEYS, redis_server::quit),
    spec!("scan", -2, false, NO_KEYS, redis_keys::scan),
    spec!("select", 2, false, NO_KEYS, redis_server::select),
    spec!("set", -3, true, ONE, redis_strings::set),
    spec!("setex", 4, true, ONE, redis_strings::setex),
    spec!("setnx", 3, true, ONE, redis_strings::setnx),
    spec!("slowlog", -2, false, NO_KEYS, redis_server::slowlog),
    spec!("strlen", 2, false, ONE, redis_strings::strlen),
    spec!("time", 1, false, NO_KEYS, redis_server::time),
    spec!("touch", -2, false, ALL, redis_keys::exists),
    spec!("ttl", 2, false, ONE, redis_keys::ttl),
    spec!("type", 2, false, ONE, redis_keys::type_of),
    spec!("unlink", -2, true, ALL, redis_keys::del),
];

/// The command of that name, in upper or lower case.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let index = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[index])
}

/// A command that was not known but exists elsewhere gets as many of its words back, bytes.
const UNKNOWN_BYTES_MAX: usize = 128;

impl<'c> RespCall<'c> {
    pub fn new(
        core: &'c mut Core,
        client: &'c mut ClientInfo,
        input: &'c [u8],
        args: &'c Args,
    ) -> RespCall<'c> {
        RespCall { core, client, input, args, unfinished: None }
    }
}

impl RespCall<'_> {
    /// Executes the command; what is left of it.
    pub fn run(mut self) -> Option<Unfinished> {
        self.core.count(Count::RespCommands);
        let answer = self.checked();
        if let Err(text) = answer {
            self.core.fail(&text);
        }
        self.unfinished
    }

    fn checked(&mut self) -> CommandResult {
        let Some(spec) = find(self.arg(0)) else { return Err(self.unknown()) };
        let words = i32::try_from(self.count()).unwrap_or(i32::MAX);
        if if spec.arity < 0 { words < -spec.arity } else { words != spec.arity } {
            return Err(wrong_arity(spec.name));
        }
        if !self.client.known && !matches!(spec.name, "auth" | "hello" | "quit") {
            return Err("NOAUTH Authentication required.".into());
        }
        (spec.run)(self)
    }

    fn unknown(&self) -> String {
        let text = |bytes: &[u8], most: usize| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            bytes[..end.min(most)].to_vec()
        };
        let mut line = b"ERR unknown command '".to_vec();
        line.extend(text(self.arg(0), UNKNOWN_BYTES_MAX));
        line.extend_from_slice(b"', with args beginning with: ");
        let mut shown = 0;
        for index in 1..self.count() {
            if shown >= UNKNOWN_BYTES_MAX {
                break;
            }
            let word = text(self.arg(index), UNKNOWN_BYTES_MAX - shown);
            shown += word.len() + 3;
            line.push(b'\'');
            line.extend(word);
            line.extend_from_slice(b"' ");
        }
        // An error's text is one of bytes; ours are strings, so what is no text is marked.
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Word `index`; the name is word 0.
    pub fn arg(&self, index: usize) -> &[u8] {
        self.args.get(self.input, index)
    }

    /// How many words, the name with them.
    pub fn count(&self) -> usize {
        self.args.len()
    }

    /// Whether word `index` is this one, in upper or lower case.
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.arg(index).eq_ignore_ascii_case(word.as_bytes())
    }

    pub fn number(&self, index: usize) -> Result<i64, String> {
        super::bytes::strict_i64(self.arg(index)).ok_or_else(not_an_integer)
    }

    pub fn status(&mut self, text: &str) -> CommandResult {
        push_status(&mut self.core.out.bytes, text);
        Ok(())
    }

    pub fn integer(&mut self, value: i64) -> CommandResult {
        push_integer(&mut self.core.out.bytes, value);
        Ok(())
    }

    pub fn null(&mut self) -> CommandResult {
        push_null(&mut self.core.out.bytes, self.client.version);
        Ok(())
    }

    pub fn array(&mut self, len: usize) {
        push_array(&mut self.core.out.bytes, len);
    }

    /// Whether the command is to go on later, by [`RespCall::go_on_later`]: so much waits to be
    /// sent that the client is to take it first, or others are to have their turn. Looks at the
    /// clock.
    pub fn is_to_pause(&self) -> bool {
        self.core.out.len() >= OUTPUT_SOFT_BYTES || self.core.timer.is_turn_over()
    }

    /// Suspends a command after this part.
    pub fn go_on_later(&mut self, part: ResumePoint, go_on: Resume) -> CommandResult {
        self.unfinished = Some((part, go_on));
        Ok(())
    }

    /// Calls `each` for the words from `part` on, every `step`th, with what was counted so far; it
    /// answers what is counted then. Whether all are done; else the command is to pause.
    pub fn each_word(
        &mut self,
        part: &mut ResumePoint,
        step: usize,
        each: impl Fn(&mut Self, usize, i64) -> Result<i64, String>,
    ) -> Result<bool, String> {
        let mut index = part.index as usize;
        while index < self.count() {
            if self.is_to_pause() {
                part.index = index as u64;
                return Ok(false);
            }
            let end = self.count().min(index + step * BATCH_KEYS_MAX);
            for index in (index..end).step_by(step) {
                part.sum = each(self, index, part.sum)?;
            }
            index = end;
        }
        Ok(true)
    }

    /// Goes on with the command; what is left of it.
    pub fn go_on(mut self, part: ResumePoint, go_on: Resume) -> Option<Unfinished> {
        if let Err(text) = go_on(&mut self, part) {
            self.core.fail(&text);
        }
        self.unfinished
    }

    pub fn counted(&self, found: bool) {
        self.core.count(if found { Count::KeyHits } else { Count::KeyMisses });
    }
}

/// The text for a wrong number of words.
pub fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// The text for a word that is no number.
pub fn not_an_integer() -> String {
    "ERR value is not an integer or out of range".into()
}

/// The text for words that cannot stand there.
pub fn syntax() -> String {
    "ERR syntax error".into()
}

/// The text for a subcommand that is not known.
pub fn unknown_subcommand(command: &str, subcommand: &[u8]) -> String {
    let mut text = String::new();
    let word = String::from_utf8_lossy(&subcommand[..subcommand.len().min(128)]).into_owned();
    // Writing to a string cannot fail.
    let _ = write!(text, "ERR unknown subcommand '{word}'. Try {command} HELP.");
    text
}

impl Core {
    /// Answers a command that failed.
    pub fn fail(&mut self, text: &str) {
        if text == OUT_OF_MEMORY {
            self.count(Count::NoMemory);
        }
        push_error(&mut self.out.bytes, text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order_and_found_in_any_letters() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        assert_eq!(find(b"GeT").unwrap().name, "get");
        assert!(find(b"lpush").is_none() && find(b"").is_none());
        assert!(find(b"a command of more than sixteen bytes").is_none());
    }
}
