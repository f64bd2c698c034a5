//! Look-ups, or plain changes, gathered from one read of a connection, to be done together: the
//! cache fetches the memory of all before it looks at the first, which hides most of the waiting.
//! A batch holds places in the input, no copies; its owner flushes it before any other command
//! runs, so that answers stay in order.

use super::bytes::push_u64;
use super::core::Core;
use super::counters::Count;
use super::output::Output;
use super::resp::{self, Version, push_bulk_head, push_error, push_null};
use super::store::{StoreOutcome, stored_text};
use crate::cache::{Error, Item, Millis, Put};
use crate::constants::{BATCH_KEYS_MAX as KEYS_AT_ONCE, PIN_BYTES_MIN};

/// The format of the answer to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat {
    /// `VALUE key flags len`, nothing if it is not there.
    Text {
        cas: bool,
        /// `END` behind it.
        last: bool,
    },
    /// A bulk string or null.
    Resp(Version),
}

/// Look-ups that were not done yet.
#[derive(Debug, Default)]
pub struct LookupBatch {
    /// First byte and length of each key in the input, and what is wanted.
    keys: Vec<(u32, u32, ReplyFormat)>,
}

impl LookupBatch {
    pub fn push(&mut self, start: usize, len: usize, form: ReplyFormat) {
        self.keys.push((start as u32, len as u32, form));
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// An unconditional store that waits to be done in a batch.
#[derive(Clone, Copy, Debug)]
pub struct PendingSet {
    /// First byte and length of the key in the input.
    pub key: (u32, u32),
    /// First byte and length of the value in the input.
    pub value: (u32, u32),
    pub flags: u32,
    pub expires: Millis,
    /// What is answered: as RESP, as text, or nothing.
    pub answer: SetReply,
}

/// How a stored value is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetReply {
    /// `+OK`
    Resp,
    /// `STORED`
    Text,
    Quiet,
}

impl Core {
    /// Does the stores that wait; their values lie in `input`.
    fn flush_sets(&mut self, input: &[u8]) {
        let waiting = std::mem::take(&mut self.sets);
        let slice =
            |(start, len): (u32, u32)| &input[start as usize..start as usize + len as usize];
        let put = |index: usize| {
            let PendingSet { key, value, flags, expires, .. } = waiting[index];
            Put { key: slice(key), value: slice(value), flags, expires }
        };
        let (out, counters) = (&mut self.out.bytes, &self.shared.counters[self.thread]);
        self.shared.cache.set_many(waiting.len(), put, self.now, |index, stored| {
            if let Some(count) = answer_set(out, waiting[index].answer, stored.err()) {
                counters.add(count, 1);
            }
        });
        let texts = waiting.iter().filter(|set| set.answer != SetReply::Resp).count();
        self.add(Count::CmdSet, texts as u64);
        self.add(Count::RespCommands, (waiting.len() - texts) as u64);
        self.sets = waiting;
        self.sets.clear();
    }

    /// Does the look-ups and changes that wait; their keys lie in `input`.
    pub fn flush_batch(&mut self, input: &[u8]) {
        if !self.sets.is_empty() {
            self.flush_sets(input);
        }
        if self.batch.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.batch.keys);
        let mut hits = 0;
        let mut texts = 0;
        let mut text_hits = 0;
        for some in waiting.chunks(KEYS_AT_ONCE) {
            let mut keys = [&[][..]; KEYS_AT_ONCE];
            for (key, (start, len, _)) in keys.iter_mut().zip(some) {
                *key = &input[*start as usize..*start as usize + *len as usize];
            }
            let keys = &keys[..some.len()];
            let out = &mut self.out;
            self.shared.cache.get_many(keys, self.now, |index, item| {
                let (.., form) = some[index];
                match form {
                    ReplyFormat::Text { cas, last } => {
                        let shown =
                            item.is_some_and(|it| push_text_item(out, keys[index], it, cas));
                        texts += 1;
                        text_hits += usize::from(shown);
                        hits += usize::from(shown);
                        if last {
                            out.bytes.extend_from_slice(b"END\r\n");
                        }
                    }
                    ReplyFormat::Resp(version) => {
                        hits += usize::from(push_resp_item(out, item, version));
                    }
                }
            });
        }
        let resp = waiting.len() - texts;
        self.add(Count::CmdGet, texts as u64);
        self.add(Count::GetHits, text_hits as u64);
        self.add(Count::GetMisses, (texts - text_hits) as u64);
        self.add(Count::KeyHits, (hits - text_hits) as u64);
        self.add(Count::KeyMisses, (resp + text_hits - hits) as u64);
        self.batch.keys = waiting;
        self.batch.keys.clear();
    }
}

/// Answers that a value was stored, or why not; what that counts as.
#[inline(always)]
fn answer_set(out: &mut Vec<u8>, answer: SetReply, error: Option<Error>) -> Option<Count> {
    match (answer, error) {
        (SetReply::Resp, None) => out.extend_from_slice(b"+OK\r\n"),
        (SetReply::Text, None) => out.extend_from_slice(b"STORED\r\n"),
        (SetReply::Quiet, None) => {}
        (_, Some(error)) => {
            let outcome = StoreOutcome::of(&error);
            match answer {
                SetReply::Resp => push_error(out, resp::failed(&error).as_bytes()),
                SetReply::Text => {
                    out.extend_from_slice(stored_text(outcome).as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
                SetReply::Quiet => {}
            }
            let too_large = outcome == StoreOutcome::TooLarge;
            return Some(if too_large { Count::TooLarge } else { Count::NoMemory });
        }
    }
    None
}

/// Appends `VALUE key flags len [cas]`, the value and a line end. `false`, and nothing, if the
/// value cannot be read: its tier failed.
pub fn push_text_item(out: &mut Output, key: &[u8], item: &Item<'_>, cas: bool) -> bool {
    let (len, start) = (item.len(), out.bytes.len());
    let bytes = &mut out.bytes;
    bytes.extend_from_slice(b"VALUE ");
    bytes.extend_from_slice(key);
    bytes.push(b' ');
    push_u64(bytes, u64::from(item.flags()));
    bytes.push(b' ');
    push_u64(bytes, len);
    if cas {
        bytes.push(b' ');
        push_u64(bytes, item.cas());
    }
    bytes.extend_from_slice(b"\r\n");
    if push_value(out, item, len).is_err() {
        out.fail(start);
        return false;
    }
    out.bytes.extend_from_slice(b"\r\n");
    true
}

/// Appends the value as a bulk string, or null, or why its tier failed. Whether it is the value.
pub fn push_resp_item(out: &mut Output, item: Option<&Item<'_>>, version: Version) -> bool {
    let Some(item) = item else {
        push_null(&mut out.bytes, version);
        return false;
    };
    let (len, start) = (item.len(), out.bytes.len());
    push_bulk_head(&mut out.bytes, len);
    if let Err(error) = push_value(out, item, len) {
        out.fail(start);
        push_error(&mut out.bytes, resp::failed(&error).as_bytes());
        return false;
    }
    out.bytes.extend_from_slice(b"\r\n");
    true
}

/// Appends a value: a copy, or a reference to it if it is long.
///
/// # Errors
/// [`Error::Tier`]: nothing was appended.
#[inline]
pub fn push_value(out: &mut Output, item: &Item<'_>, len: u64) -> Result<(), Error> {
    if len >= PIN_BYTES_MIN {
        out.push_pinned(item.pin()?, item.is_far());
        return Ok(());
    }
    item.append_to(&mut out.bytes)
}
