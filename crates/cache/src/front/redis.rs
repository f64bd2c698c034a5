//! What Redis's commands have in common: their words, their answers in [`Core::out`], errors word
//! by word as redis 7.0 sends them, and how a long one lets others have their turn. The commands
//! are in `redis_*.rs`.

use super::clients::ClientInfo;
use super::commands::CommandId;
use super::core::Core;
use super::counters::Count;
use super::jobs::Job;
use super::redis_hash_walks::HashWalk;
use super::resp::{
    Args, OUT_OF_MEMORY, push_array, push_error, push_integer, push_null, push_status,
};
use super::values::lcs::Lcs;
use crate::constants::{BATCH_KEYS_MAX, OUTPUT_SOFT_BYTES};
use std::sync::Arc;

pub struct RespCall<'c> {
    pub core: &'c mut Core,
    pub client: &'c mut ClientInfo,
    pub input: &'c [u8],
    pub args: &'c Args,
    unfinished: Option<Unfinished>,
}

/// Where a command that ran goes on in a later turn of its connection, and how.
pub type Unfinished = (ResumePoint, Resume);

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
    /// What was found so far, or is worked on.
    pub bytes: Vec<u8>,
    pub lcs: Option<Box<Lcs>>,
    /// A hash, all of which is gone over.
    pub walk: Option<Box<HashWalk>>,
    /// Time that was spent on it, nanoseconds.
    pub took_ns: u64,
    pub command: Option<CommandId>,
    pub job: Option<Arc<Job>>,
}

impl ResumePoint {
    pub fn at(index: u64) -> Self {
        Self { index, ..Self::default() }
    }

    pub fn held_bytes(&self) -> u64 {
        let lcs = self.lcs.as_ref().map_or(0, |lcs| lcs.held_bytes());
        let job = self.job.as_ref().map_or(0, |job| job.held_bytes());
        (self.text.capacity() + self.bytes.capacity()) as u64 + lcs + job
    }
}

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
    /// Answers with the error, if there is one; what is left of the command.
    pub fn finish(self, command: Option<CommandId>, answer: CommandResult) -> Option<Unfinished> {
        if let Err(text) = answer {
            if let Some(command) = command {
                self.core.counters().failed(command);
            }
            if !std::mem::take(&mut self.client.error_is_counted) {
                self.core.count_error(&text);
            }
            push_error(&mut self.core.out.bytes, text.as_bytes());
        }
        self.unfinished
    }

    /// Word `index`; the name is word 0.
    pub fn arg(&self, index: usize) -> &[u8] {
        self.args.get(self.input, index)
    }

    /// The name of the command in lower case.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.arg(0)).to_ascii_lowercase()
    }

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
    /// clock. In a section it goes on: that is one step.
    pub fn is_to_pause(&self) -> bool {
        let is_enough = || self.core.out.len() >= OUTPUT_SOFT_BYTES;
        self.core.section.is_none() && (is_enough() || self.core.timer.is_turn_over())
    }

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
        let command = part.command;
        let answer = go_on(&mut self, part);
        self.finish(command, answer)
    }

    pub fn counted(&self, found: bool) {
        self.core.count(if found { Count::KeyHits } else { Count::KeyMisses });
    }
}

/// Answers with all that was found, which lies in the part's bytes from its index on, as fast as it
/// is taken.
pub fn send_found(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    loop {
        let rest = &part.bytes[part.index as usize..];
        let some = &rest[..rest.len().min(FOUND_AT_ONCE)];
        call.core.out.bytes.extend_from_slice(some);
        part.index += some.len() as u64;
        if part.index == part.bytes.len() as u64 {
            return Ok(());
        }
        if call.is_to_pause() {
            return call.go_on_later(part, send_found);
        }
    }
}

/// Bytes of what was found that are sent between two looks at the clock.
const FOUND_AT_ONCE: usize = 64 << 10;

pub fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// A subcommand has more words than it may.
pub fn wrong_words(call: &RespCall<'_>) -> String {
    let [name, subcommand] = [0, 1].map(|index| String::from_utf8_lossy(call.arg(index)));
    let name = name.to_ascii_uppercase();
    format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try {name} HELP."
    )
}

pub fn not_an_integer() -> String {
    "ERR value is not an integer or out of range".into()
}

pub fn syntax() -> String {
    "ERR syntax error".into()
}

impl Core {
    pub fn count_error(&self, text: &str) {
        self.shared.errors.count(text.as_bytes());
        if text == OUT_OF_MEMORY {
            self.count(Count::NoMemory);
        }
    }

    pub fn fail(&mut self, text: &str) {
        self.count_error(text);
        push_error(&mut self.out.bytes, text.as_bytes());
    }
}
