//! memcached's text commands, executed. In: a command of `text`, the value behind it. Out: its
//! answer in [`Core::out`]. Called by the session for each command.

use super::core::{Core, push_text_item};
use super::counters::Count;
use super::outcome::{StoreOutcome, Verb, stored_text};
use super::stats;
use super::store::{Change, CounterStep, StoreValue, set_expiry};
use super::text::{Command, CounterChange, Get, Store, VERSION, WordIter};
use crate::cache::Millis;
use crate::clock::expiry;
use crate::constants::OUTPUT_SOFT_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCommand {
    Command,
    Skip(u64),
    /// End the connection when all was sent.
    Close,
}

impl Core {
    /// Executes a command without a value that is no look-up; none waits in the batch.
    pub fn text(&mut self, command: &Command<'_>, quiet: bool) -> AfterCommand {
        match command {
            Command::Get(_) => unreachable!("the session executes it, in parts if it is long"),
            Command::Store(_) => unreachable!("the session executes it with its value"),
            Command::Delete(key) => {
                let found = matches!(self.delete(key, 0), StoreOutcome::Stored(_));
                self.say(if found { "DELETED" } else { "NOT_FOUND" }, quiet);
            }
            Command::Count(count) => self.text_count(count, quiet),
            Command::Touch(key, exptime) => {
                let text = match self.touch(key, i64::from(*exptime)) {
                    StoreOutcome::Stored(_) => "TOUCHED",
                    outcome => stored_text(outcome),
                };
                self.say(text, quiet);
            }
            Command::FlushAll(delay) => {
                self.flush_all(i64::from(*delay));
                self.say("OK", quiet);
            }
            Command::Verbosity => self.say("OK", quiet),
            Command::Version => {
                self.out.bytes.extend_from_slice(b"VERSION ");
                self.say(VERSION, false);
            }
            Command::Quit => return AfterCommand::Close,
            Command::Http => {
                self.count(Count::HttpRefused);
                return AfterCommand::Close;
            }
            Command::Stats(words) => stats::text(self, *words),
            Command::Meta(meta) => self.meta(meta),
            Command::Refused(refusal) => self.say(&refusal.to_string(), quiet),
            Command::RefusedWithData(refusal, bytes) => {
                self.say(&refusal.to_string(), false);
                return AfterCommand::Skip(*bytes);
            }
        }
        AfterCommand::Command
    }

    /// Answers with a line, unless the client wants none.
    pub fn say(&mut self, text: &str, quiet: bool) {
        if !quiet {
            self.out.bytes.extend_from_slice(text.as_bytes());
            self.out.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Looks up keys and gives each a new expiry. The keys that are left if the client is to take
    /// answers first.
    pub fn text_get_touch<'a>(&mut self, get: &Get<'a>, exptime: i32) -> Option<WordIter<'a>> {
        let expires = expiry(i64::from(exptime), self.times());
        let mut keys = get.keys;
        while let Some(key) = keys.next() {
            let start = self.out.bytes.len();
            let touched = self.db.entry(key, self.now).ok().and_then(|mut entry| {
                let item = entry.read().filter(|item| !item.is_typed())?;
                let shown = push_text_item(&mut self.out, key, &item, get.cas);
                Some((shown, set_expiry(&mut entry, expires)))
            });
            self.count(Count::CmdTouch);
            let found = touched.as_ref().is_some_and(|(shown, _)| *shown);
            self.count(if found { Count::TouchHits } else { Count::TouchMisses });
            if let Some((_, Err(error))) = touched {
                // This ends the answer: the keys behind it are not looked up.
                let outcome = StoreOutcome::of(&error);
                self.count_no_memory(outcome);
                self.out.truncate(start);
                self.say(stored_text(outcome), false);
                return None;
            }
            if self.out.len() >= OUTPUT_SOFT_BYTES {
                return Some(keys);
            }
        }
        self.say("END", false);
        None
    }

    fn text_count(&mut self, count: &CounterChange<'_>, quiet: bool) {
        let &CounterChange { key, delta, down } = count;
        match self.count_by(&CounterStep { key, delta, down, cas: 0, first: None, expires: None }) {
            Ok(counted) => self.say(itoa::Buffer::new().format(counted.value), quiet),
            Err(outcome @ (StoreOutcome::NotFound | StoreOutcome::NotNumber)) => {
                self.say(stored_text(outcome), quiet);
            }
            Err(_) => self.say("SERVER_ERROR out of memory", quiet),
        }
    }

    /// Executes a command with its value, which expires then; `whole`: a line end stood behind it.
    pub fn text_store(
        &mut self,
        store: &Store<'_>,
        value: StoreValue<'_>,
        expires: Millis,
        whole: bool,
    ) {
        if !whole {
            return self.say("CLIENT_ERROR bad data chunk", store.is_silent());
        }
        let if_cas = store.meta.as_ref().and_then(|meta| meta.cas).filter(|cas| *cas != 0);
        let outcome = self.store(
            &Change {
                verb: store.verb,
                key: store.key(),
                flags: store.flags,
                expires,
                stale: store.meta.as_ref().is_some_and(|meta| meta.stale),
                if_cas,
                tells_cas: store.meta.is_some(),
            },
            value,
        );
        match &store.meta {
            Some(meta) => self.meta_stored(meta, outcome),
            None => self.say(stored_text(outcome), store.quiet),
        }
    }

    /// Answers to a value that is too long, before it came; what it would replace is not true any
    /// more and goes.
    pub fn text_too_large(&mut self, store: &Store<'_>) {
        self.count(Count::TooLarge);
        if store.verb == Verb::Set || store.meta.is_some() {
            self.cache().remove(store.key(), self.now);
        }
        self.say(stored_text(StoreOutcome::TooLarge), store.is_silent());
    }

    /// Answers to a value for which there was no memory, after it was passed over.
    pub fn text_no_memory(&mut self, store: &Store<'_>) {
        self.count(Count::NoMemory);
        self.say(stored_text(StoreOutcome::NoMemory), store.is_silent());
    }
}
