//! Changes of items as memcached's three protocols share them: a value under a condition, a number
//! that is counted up or down, a new expiry, a removal. In: what a parser found. Out: how it went;
//! the caller puts it into its protocol's words. Each runs under the lock of the key's partition.

use super::bytes::unsigned;
use super::core::Core;
use super::counters::Count;
use super::outcome::{StoreOutcome, Verb};
use crate::cache::{Entry, Error, Millis, StoredWith, Writer};
use crate::clock::{PAST, expiry, has_passed, seconds_left};

/// A value as it came.
#[expect(clippy::large_enum_variant, reason = "it is handed on, and never stored")]
pub enum StoreValue<'a> {
    Bytes(&'a [u8]),
    /// In the cache already, not visible yet.
    Written(Writer),
}

impl StoreValue<'_> {
    fn bytes(&self) -> u64 {
        match self {
            StoreValue::Bytes(bytes) => bytes.len() as u64,
            StoreValue::Written(writer) => writer.bytes(),
        }
    }
}

pub struct Change<'a> {
    pub verb: Verb,
    pub key: &'a [u8],
    pub flags: u32,
    pub expires: Millis,
    /// An older version than the one that is there may be stored, marked as stale.
    pub stale: bool,
    /// The version that must be there if there is anything; for `append` and `prepend`.
    pub if_cas: Option<u64>,
    /// The client is told the new version, which stays the item's then wherever it is moved.
    pub tells_cas: bool,
    /// The new version; 0: any.
    pub new_cas: u64,
    /// `append` and `prepend` make the item where there is none.
    pub vivifies: bool,
    /// The key was sent in base64.
    pub has_binary_key: bool,
}

impl Core {
    pub fn store(&mut self, change: &Change<'_>, value: StoreValue<'_>) -> StoreOutcome {
        self.store_beside(change, value).0
    }

    /// As [`Core::store`]; and how many bytes the value was put to, if it was.
    pub fn store_beside(
        &mut self,
        change: &Change<'_>,
        value: StoreValue<'_>,
    ) -> (StoreOutcome, u64) {
        self.count(Count::CmdSet);
        let plain = change.verb == Verb::Set && change.expires != PAST && !change.tells_cas;
        let bytes = value.bytes();
        let stored = match value {
            StoreValue::Bytes(bytes) if plain => {
                let set =
                    self.cache().set(change.key, bytes, change.flags, change.expires, self.now);
                set.map(|cas| (StoreOutcome::Stored(cas), 0))
            }
            value => self.store_at(change, value),
        };
        let (outcome, before) = stored.unwrap_or_else(|error| (StoreOutcome::of(&error), 0));
        if self.log.watches_commands() {
            let ttl_s = seconds_left(change.expires, self.times());
            self.log.stored(change.key, change.verb, outcome, ttl_s, before + bytes);
        }
        self.count_stored(change.verb, outcome);
        (outcome, before)
    }

    fn count_stored(&self, verb: Verb, outcome: StoreOutcome) {
        match (verb, outcome) {
            (_, StoreOutcome::TooLarge) => self.count(Count::TooLarge),
            (_, StoreOutcome::NoMemory) => self.count(Count::NoMemory),
            (Verb::Cas(_), StoreOutcome::Stored(_)) => self.count(Count::CasHits),
            (Verb::Cas(_), StoreOutcome::Exists) => self.count(Count::CasBadval),
            (Verb::Cas(_), StoreOutcome::NotFound) => self.count(Count::CasMisses),
            _ => {}
        }
    }

    fn store_at(
        &mut self,
        change: &Change<'_>,
        value: StoreValue<'_>,
    ) -> Result<(StoreOutcome, u64), Error> {
        let mut old = std::mem::take(&mut self.scratch);
        old.clear();
        let mut entry = self.db.entry(change.key, self.now)?;
        let (mut flags, mut expires, mut mark) = (change.flags, change.expires, None);
        let outcome = match (change.verb, entry.item()) {
            (Verb::Set, _) | (Verb::Add, None) | (Verb::Replace, Some(_)) => None,
            (Verb::Add, Some(_)) | (Verb::Replace, None) => Some(StoreOutcome::NotStored),
            (Verb::Append | Verb::Prepend, None) if change.vivifies => None,
            (Verb::Append | Verb::Prepend, None) => Some(StoreOutcome::NotStored),
            (Verb::Cas(_), None) => Some(StoreOutcome::NotFound),
            (Verb::Cas(wanted), Some(item)) if wanted == item.cas() => None,
            // Versions are told by this server only, so another one is an older one; they need not
            // be in order, since items of different expiry lie in different segments.
            (Verb::Cas(wanted), Some(item)) if change.stale && wanted != 0 => {
                expires = item.expires();
                mark = Some(item.meta().won);
                None
            }
            (Verb::Cas(_), Some(_)) => Some(StoreOutcome::Exists),
            (Verb::Append | Verb::Prepend, Some(item)) => {
                (flags, expires) = (item.flags(), item.expires());
                item.append_to(&mut old)?;
                let wrong = change.if_cas.is_some_and(|wanted| wanted != item.cas());
                wrong.then_some(StoreOutcome::Exists)
            }
        };
        let stored = match outcome {
            Some(refused) => Ok(refused),
            None => {
                let (cas, has_binary_key) = (change.new_cas, change.has_binary_key);
                let with = StoredWith { flags, expires, cas, has_binary_key };
                put(&mut entry, change.verb, value, &old, with)
            }
        };
        let mut before = 0;
        if let Ok(StoreOutcome::Stored(_)) = &stored {
            before = old.len() as u64;
            if let Some(won) = mark {
                entry.mark(true, won);
            }
            if change.tells_cas {
                entry.keep_cas();
            }
        }
        drop(entry);
        self.scratch = old;
        stored.map(|outcome| (outcome, before))
    }

    /// Counts a number up or down; `first` is stored, with an expiry, where there is none. A
    /// shorter number keeps its old length, with blanks, as in memcached.
    pub fn count_by(&mut self, step: &CounterStep<'_>) -> Result<Counted, StoreOutcome> {
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        let done = self.count_at(step, &mut text);
        self.scratch = text;
        let (hits, misses) = if step.down {
            (Count::DecrHits, Count::DecrMisses)
        } else {
            (Count::IncrHits, Count::IncrMisses)
        };
        match &done {
            Ok(_) => self.count(hits),
            Err(StoreOutcome::NotFound) => self.count(misses),
            Err(_) => {}
        }
        done
    }

    fn count_at(
        &self,
        step: &CounterStep<'_>,
        text: &mut Vec<u8>,
    ) -> Result<Counted, StoreOutcome> {
        let failed = |error: Error| StoreOutcome::of(&error);
        let mut entry = self.db.entry(step.key, self.now).map_err(failed)?;
        let Some(item) = entry.item() else {
            let (first, expires) = step.first.ok_or(StoreOutcome::NotFound)?;
            let mut digits = itoa::Buffer::new();
            let parts = [digits.format(first).as_bytes()];
            let (cas, has_binary_key) = (step.new_cas, step.has_binary_key);
            let with = StoredWith { flags: 0, expires, cas, has_binary_key };
            let cas = entry.put_with(&parts, with).map_err(failed)?;
            return Ok(Counted { value: first, cas, expires: None });
        };
        let meta = item.meta();
        if meta.len == 0 || meta.len > NUMBER_BYTES_MAX || item.is_typed() {
            return Err(StoreOutcome::NotNumber);
        }
        if step.cas != 0 && step.cas != meta.cas {
            return Err(StoreOutcome::Exists);
        }
        let has_binary_key = item.has_binary_key();
        item.append_to(text).map_err(failed)?;
        let value = unsigned(text).ok_or(StoreOutcome::NotNumber)?;
        let value = if step.down {
            value.saturating_sub(step.delta)
        } else {
            value.wrapping_add(step.delta)
        };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let blanks = text.len().saturating_sub(digits.len());
        text.fill(b' ');
        let expires = step.expires.unwrap_or(meta.expires);
        let parts = [digits, &text[..blanks]];
        let (flags, cas) = (meta.flags, step.new_cas);
        let with = StoredWith { flags, expires, cas, has_binary_key };
        let cas = entry.put_with(&parts, with).map_err(failed)?;
        Ok(Counted { value, cas, expires: Some(meta.expires) })
    }

    pub fn touch(&mut self, key: &[u8], exptime: i64) -> StoreOutcome {
        self.count(Count::CmdTouch);
        let expires = expiry(exptime, self.times());
        let touched = self.db.entry(key, self.now).map(|mut entry| {
            match entry.read().map(|item| item.cas()) {
                None => StoreOutcome::NotFound,
                Some(cas) => match set_expiry(&mut entry, expires) {
                    Ok(()) => StoreOutcome::Stored(cas),
                    Err(error) => StoreOutcome::of(&error),
                },
            }
        });
        let outcome = touched.unwrap_or(StoreOutcome::NotFound);
        self.count(match outcome {
            StoreOutcome::NotFound => Count::TouchMisses,
            _ => Count::TouchHits,
        });
        self.count_no_memory(outcome);
        outcome
    }

    /// Counts what failed for want of memory.
    pub fn count_no_memory(&self, outcome: StoreOutcome) {
        self.add(Count::NoMemory, u64::from(outcome == StoreOutcome::NoMemory));
    }

    /// Removes an item, if it has version `cas` or `cas` is 0, by this command.
    pub fn delete(&mut self, key: &[u8], cas: u64, command: &str) -> StoreOutcome {
        let mut bytes = None;
        let removed = self.db.entry(key, self.now).map(|mut entry| {
            match entry.item().map(|item| (item.cas(), item.len())) {
                None => StoreOutcome::NotFound,
                Some((there, _)) if cas != 0 && cas != there => StoreOutcome::Exists,
                Some((there, len)) => {
                    bytes = Some(len);
                    entry.remove();
                    StoreOutcome::Stored(there)
                }
            }
        });
        let outcome = removed.unwrap_or(StoreOutcome::NotFound);
        let hit = matches!(outcome, StoreOutcome::Stored(_));
        self.count(if hit { Count::DeleteHits } else { Count::DeleteMisses });
        if self.log.watches_commands() {
            self.log.deleted(key, command, bytes);
        }
        outcome
    }

    pub fn flush_all(&mut self, delay: i64) {
        self.count(Count::CmdFlush);
        let at = if delay > 0 { expiry(delay, self.times()) } else { 0 };
        // Relaxed: see `flush_if_due`.
        self.shared.flush_at.store(at, std::sync::atomic::Ordering::Relaxed);
        if at == 0 || has_passed(at, self.times()) {
            self.shared.flush_at.store(0, std::sync::atomic::Ordering::Relaxed);
            self.flush_database();
        }
    }
}

/// Longer values are no numbers, bytes: what memcached keeps in one piece.
const NUMBER_BYTES_MAX: u64 = 512 << 10;

pub struct CounterStep<'a> {
    pub key: &'a [u8],
    pub delta: u64,
    /// Decrement, which stops at 0, instead of increment, which wraps.
    pub down: bool,
    /// The version that must be there; 0 for any.
    pub cas: u64,
    /// The version that comes then; 0 for any.
    pub new_cas: u64,
    /// The first value and its expiry, where there is no item.
    pub first: Option<(u64, Millis)>,
    pub expires: Option<Millis>,
    /// The key was sent in base64.
    pub has_binary_key: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub value: u64,
    pub cas: u64,
    /// When it expired before the step; `None` if it was made by it.
    pub expires: Option<Millis>,
}

/// Changes when an item expires; at once is a removal.
///
/// # Errors
/// [`Error::OutOfMemory`]: its copy found no room. It expires as before, or is evicted.
pub fn set_expiry(entry: &mut Entry<'_>, expires: Millis) -> Result<(), Error> {
    if expires == PAST {
        entry.remove();
        return Ok(());
    }
    entry.set_expiry(expires)
}

/// Makes a value that was streamed that of its key. It was placed by its expiry, as far as that was
/// known then; one that cannot get another expiry is not stored.
///
/// # Errors
/// As [`Entry::commit`] and [`set_expiry`].
pub fn commit(entry: &mut Entry<'_>, writer: Writer, expires: Millis) -> Result<u64, Error> {
    let cas = entry.commit(writer)?;
    if entry.item().is_some_and(|item| item.expires() != expires)
        && let Err(error) = entry.set_expiry(expires)
    {
        entry.remove();
        return Err(error);
    }
    Ok(cas)
}

fn put(
    entry: &mut Entry<'_>,
    verb: Verb,
    value: StoreValue<'_>,
    old: &[u8],
    with: StoredWith,
) -> Result<StoreOutcome, Error> {
    if with.expires == PAST {
        entry.put_expired();
        return Ok(StoreOutcome::Stored(0));
    }
    let cas = match value {
        StoreValue::Bytes(bytes) => match verb {
            Verb::Append => entry.put_with(&[old, bytes], with)?,
            Verb::Prepend => entry.put_with(&[bytes, old], with)?,
            _ => entry.put_with(&[bytes], with)?,
        },
        // It got the rest of this with its place.
        StoreValue::Written(writer) => commit(entry, writer, with.expires)?,
    };
    Ok(StoreOutcome::Stored(cas))
}
