//! memcached's text commands, executed. In: a command of `text`, the value behind it. Out: its
//! answer in [`Core::out`]. Called by the session for each command.

use super::core::{Core, push_text_item};
use super::counters::Count;
use super::listing::Listing;
use super::meta::MetaCommand;
use super::outcome::{Refusal, StoreOutcome, Verb, stored_text};
use super::stats;
use super::store::{Change, CounterStep, StoreValue, set_expiry};
use super::text::{Command, CounterChange, Get, Store, VERSION, WordIter};
use super::too_long::{Limit, TooLong};
use super::watch::Watched;
use crate::cache::Millis;
use crate::clock::expiry;
use crate::constants::{OUTPUT_SOFT_BYTES, VERBOSITY_MAX};
use std::sync::atomic::Ordering;

/// The least that `cache_memlimit` takes, MiB …
const MEGABYTES_MIN: u32 = 8;
/// … and what is meant as bytes.
const MEGABYTES_MANY: u32 = 1_000_000_001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCommand {
    Command,
    Skip(u64),
    /// End the connection when all was sent.
    Close,
    /// The answer comes in parts.
    List(Listing),
    /// The connection is told of these from now on.
    Watch(Watched),
}

impl Core {
    /// Executes a command without a value that is no look-up; none waits in the batch.
    pub fn text(&mut self, command: &Command<'_>, quiet: bool) -> AfterCommand {
        match command {
            Command::Get(_) => unreachable!("the session executes it, in parts if it is long"),
            Command::Store(_) => unreachable!("the session executes it with its value"),
            Command::Delete(key) => {
                let found = matches!(self.delete(key, 0, "delete"), StoreOutcome::Stored(_));
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
            Command::Verbosity(level) => {
                // Relaxed: a number for display.
                self.shared.verbosity.store((*level).min(VERBOSITY_MAX), Ordering::Relaxed);
                self.say("OK", quiet);
            }
            Command::MemoryLimit(megabytes) => {
                let said = self.limit_memory(*megabytes);
                self.say(said, quiet);
            }
            Command::Shutdown(is_known) => return self.shut_down(*is_known),
            Command::Watch(wanted) => return AfterCommand::Watch(*wanted),
            Command::List(listing) => return AfterCommand::List(*listing),
            Command::Crawl => {
                self.tidy_all();
                self.say("OK", quiet);
            }
            Command::Accepted => self.say("OK", quiet),
            Command::Version => {
                self.out.bytes.extend_from_slice(b"VERSION ");
                self.say(VERSION, false);
            }
            Command::Quit => return AfterCommand::Close,
            Command::Http => {
                self.count(Count::HttpRefused);
                return AfterCommand::Close;
            }
            Command::Stats(words) => return stats::text(self, *words),
            Command::Meta(meta) => self.meta(meta),
            Command::Refused(refusal) => self.say(&refusal.to_string(), quiet),
            Command::RefusedWithData(refusal, bytes) => {
                self.say(&refusal.to_string(), quiet);
                return AfterCommand::Skip(*bytes);
            }
        }
        AfterCommand::Command
    }

    fn shut_down(&mut self, mode_is_known: bool) -> AfterCommand {
        let refusal = match (self.shared.settings.allows_shutdown, mode_is_known) {
            (false, _) => Refusal::Shutdown,
            (true, false) => Refusal::ShutdownMode,
            (true, true) => {
                self.shared.ask_for_end();
                return AfterCommand::Close;
            }
        };
        self.say(&refusal.to_string(), false);
        AfterCommand::Command
    }

    /// Takes another limit of the cache's memory; the answer.
    fn limit_memory(&mut self, megabytes: u32) -> &'static str {
        match megabytes {
            0..MEGABYTES_MIN => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
            MEGABYTES_MANY.. => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
            _ => match self.shared.cache.limit_memory(u64::from(megabytes) << 20) {
                Ok(()) => {
                    self.shared.tunables.set_memory_asked(None);
                    self.tidy_all();
                    "OK"
                }
                Err(_) => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
            },
        }
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
                let bytes = item.len();
                Some((shown.then_some(bytes), set_expiry(&mut entry, expires)))
            });
            self.count(Count::CmdTouch);
            let found = touched.as_ref().and_then(|(bytes, _)| *bytes);
            self.count(if found.is_some() { Count::TouchHits } else { Count::TouchMisses });
            if self.log.watches_commands() {
                self.log.fetched(key, found);
            }
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
        let (cas, new_cas, first, expires, has_binary_key) = (0, 0, None, None, false);
        let step = CounterStep { key, delta, down, cas, new_cas, first, expires, has_binary_key };
        match self.count_by(&step) {
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
        let meta = store.meta.as_ref();
        let (outcome, before) = self.store_beside(
            &Change {
                verb: store.verb,
                key: store.key(),
                flags: store.flags,
                expires,
                stale: meta.is_some_and(|meta| meta.stale),
                if_cas: meta.and_then(|meta| meta.cas).filter(|cas| *cas != 0),
                tells_cas: meta.is_some(),
                new_cas: store.new_cas(),
                vivifies: meta.is_some_and(MetaCommand::vivifies),
                has_binary_key: store.has_binary_key(),
            },
            value,
        );
        match meta {
            Some(meta) => self.meta_stored(meta, outcome, before + u64::from(store.len)),
            None => self.say(stored_text(outcome), store.quiet),
        }
    }

    /// Answers to a value that is too long, before it came; what it would replace is not true any
    /// more and goes. memcached's own words mean its limit of a value, here `--max-value`.
    pub fn text_too_large(&mut self, store: &Store<'_>, why: TooLong) {
        self.count(Count::TooLarge);
        if store.verb == Verb::Set || store.meta.is_some() {
            self.cache().remove(store.key(), self.now);
        }
        self.note_unstored(store, StoreOutcome::TooLarge);
        let text = stored_text(StoreOutcome::TooLarge);
        match why.limit {
            Limit::MaxValue => self.say(text, store.is_silent()),
            Limit::Partition | Limit::Held => {
                self.say(&format!("{text}: {why}"), store.is_silent())
            }
        }
    }

    fn note_unstored(&mut self, store: &Store<'_>, outcome: StoreOutcome) {
        if self.log.watches_commands() {
            self.log.stored(store.key(), store.verb, outcome, 0, store.len.into());
        }
    }

    /// Answers to a value for which there was no memory, after it was passed over.
    pub fn text_no_memory(&mut self, store: &Store<'_>) {
        self.count(Count::NoMemory);
        self.note_unstored(store, StoreOutcome::NoMemory);
        self.say(stored_text(StoreOutcome::NoMemory), store.is_silent());
    }
}
