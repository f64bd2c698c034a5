//! memcached's meta commands, executed. In: a command of `meta`. Out: its answer, put together from
//! the flags in the order in which they were sent.

use super::bytes::{is_line_key, push_base64, push_i64, push_u64};
use super::core::{Core, Output, push_value};
use super::counters::Count;
use super::meta::{MetaCommand, MetaKind};
use super::outcome::{StoreOutcome, stored_text};
use super::store::{Counted, CounterStep, set_expiry};
use crate::cache::{Item, Millis, StoredWith};
use crate::clock::{PAST, Times, expiry, seconds_left};

impl Core {
    pub fn meta(&mut self, meta: &MetaCommand<'_>) {
        self.count(Count::CmdMeta);
        match meta.kind {
            MetaKind::Noop => self.out.bytes.extend_from_slice(b"MN\r\n"),
            MetaKind::Debug => self.meta_debug(meta),
            MetaKind::Get => self.meta_get(meta),
            MetaKind::Delete => self.meta_delete(meta),
            MetaKind::Arithmetic => self.meta_count(meta),
            MetaKind::Set => unreachable!("`ms` has a value"),
        }
    }

    fn meta_debug(&mut self, meta: &MetaCommand<'_>) {
        let key = meta.key.bytes();
        let (now, times) = (self.now, self.times());
        let out = &mut self.out.bytes;
        let entry = self.db.entry(key, now);
        let Some(item) = entry.as_ref().ok().and_then(|entry| entry.item()) else {
            return out.extend_from_slice(b"EN\r\n");
        };
        let info = item.meta();
        out.extend_from_slice(b"ME ");
        if is_told_in_base64(&item, meta) {
            push_base64(out, key);
        } else {
            out.extend_from_slice(key);
        }
        out.extend_from_slice(b" exp=");
        push_i64(out, seconds_left(info.expires, times));
        out.extend_from_slice(b" la=");
        push_u64(out, u64::from(info.idle_s));
        out.extend_from_slice(b" cas=");
        push_u64(out, item.cas());
        out.extend_from_slice(b" fetch=");
        out.extend_from_slice(if info.fetched { b"yes" } else { b"no" });
        out.extend_from_slice(b" cls=1 size=");
        push_u64(out, info.len + key.len() as u64);
        out.extend_from_slice(b"\r\n");
    }

    fn meta_get(&mut self, meta: &MetaCommand<'_>) {
        // What changes the item, or must see it as it was before, needs its partition's lock.
        let changes = meta.vivify.is_some() || meta.exptime.is_some() || meta.recache.is_some();
        // There it is known what watchers are told.
        let changes = changes || self.log.watches_commands();
        let observes = meta.no_update || meta.flags().iter().any(|f| matches!(f[0], b'h' | b'l'));
        let (now, times) = (self.now, self.times());
        let (cache, out) = (&self.db, &mut self.out);
        let found = if changes || observes {
            None
        } else {
            let plain = |item: &Item<'_>| {
                if item.is_marked() || item.is_typed() {
                    return false;
                }
                let life = Lifetime { expires: item.expires(), created: None, times };
                push_meta_item(out, meta, item, life, Marks::default());
                true
            };
            Some(cache.get(meta.key.bytes(), now, plain))
        };
        let found = match found {
            Some(Some(true)) => true,
            Some(None) => false,
            _ => {
                let found = self.meta_get_locked(meta);
                if self.log.watches_commands() {
                    self.log.fetched(meta.key.bytes(), found);
                }
                found.is_some()
            }
        };
        self.count(Count::CmdGet);
        self.count(if found { Count::GetHits } else { Count::GetMisses });
        if !found && !meta.quiet {
            self.out.bytes.extend_from_slice(b"EN");
            push_names(&mut self.out.bytes, meta);
            self.out.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// The value's length, if there is an item.
    fn meta_get_locked(&mut self, meta: &MetaCommand<'_>) -> Option<u64> {
        let (now, times) = (self.now, self.times());
        let key = meta.key.bytes();
        let mut entry = self.db.entry(key, now).ok()?;
        let mut created = false;
        if entry.item().is_none() {
            let exptime = meta.vivify?;
            let expires = expiry(i64::from(exptime), times);
            let (cas, has_binary_key) = (meta.new_cas.unwrap_or(0), meta.binary_key);
            let with = StoredWith { flags: 0, expires, cas, has_binary_key };
            if entry.put_with(&[], with).is_err() {
                return None;
            }
            created = true;
        }
        let item = if meta.no_update { entry.item() } else { entry.read() };
        // No string: for this protocol it is not there.
        let item = item.filter(|item| !item.is_typed())?;
        let info = item.meta();
        // Flags are obeyed in order: `R` sees what a `T` before it did.
        let place = |letter: u8| meta.flags().iter().position(|flag| flag[0] == letter);
        let renewed = matches!((place(b'T'), place(b'R')), (Some(t), Some(r)) if t < r);
        let time = |seconds: Option<i32>| expiry(i64::from(seconds.unwrap_or(0)), times);
        let left = if renewed { time(meta.exptime) } else { info.expires };
        let wanted = time(meta.recache);
        let soon = !created && left != 0 && wanted != 0;
        let soon = soon && seconds_left(left, times) < seconds_left(wanted, times);
        let wins = created || !info.won && (soon || info.stale);
        let marks = Marks { won: wins, lost: info.won, stale: info.stale };
        // Flags are answered one by one: before `N` a new item does not expire.
        let expires = if created { 0 } else { info.expires };
        let life = Lifetime { expires, created: created.then(|| item.expires()), times };
        let start = self.out.bytes.len();
        push_meta_item(&mut self.out, meta, &item, life, marks);
        if wins || info.won {
            entry.mark(info.stale, true);
        }
        let outdone = created && place(b'T') < place(b'N');
        let exptime = meta.exptime.filter(|_| !outdone);
        let expires = exptime.map(|exptime| expiry(i64::from(exptime), times));
        let renewed = expires.map_or(Ok(()), |expires| set_expiry(&mut entry, expires));
        drop(entry);
        if let Err(error) = renewed {
            let outcome = StoreOutcome::of(&error);
            self.count_no_memory(outcome);
            self.out.truncate(start);
            self.say(stored_text(outcome), false);
        }
        Some(info.len)
    }

    fn meta_delete(&mut self, meta: &MetaCommand<'_>) {
        let now = self.now;
        let key = meta.key.bytes();
        let outcome = if meta.stale || meta.removes_value {
            self.meta_change(meta)
        } else {
            match meta.cas {
                // No item has version 0, so asking for it finds nothing to remove.
                Some(0) => match self.cache().get(key, now, |_| ()) {
                    Some(()) => StoreOutcome::Exists,
                    None => StoreOutcome::NotFound,
                },
                cas => self.delete(key, cas.unwrap_or(0), "md"),
            }
        };
        self.meta_status(meta, outcome, 0);
    }

    /// Marks an item as stale, or takes its value away, or both.
    fn meta_change(&mut self, meta: &MetaCommand<'_>) -> StoreOutcome {
        let outcome = self.meta_change_at(meta);
        match outcome {
            StoreOutcome::Stored(_) if meta.stale => {}
            StoreOutcome::Stored(_) => self.count(Count::DeleteHits),
            StoreOutcome::NoMemory => self.count(Count::NoMemory),
            _ => self.count(Count::DeleteMisses),
        }
        outcome
    }

    fn meta_change_at(&mut self, meta: &MetaCommand<'_>) -> StoreOutcome {
        let (now, times) = (self.now, self.times());
        let Ok(mut entry) = self.db.entry(meta.key.bytes(), now) else {
            return StoreOutcome::NotFound;
        };
        let Some(item) = entry.item() else { return StoreOutcome::NotFound };
        let info = item.meta();
        if meta.cas.is_some_and(|wanted| wanted != info.cas) {
            return StoreOutcome::Exists;
        }
        // As memcached has it: an item without its value has only what this command gives it, but
        // it is no new version by itself.
        let (flags, expires, cas) = match (meta.removes_value, meta.stale) {
            (true, true) => (meta.flags, 0, 0),
            (true, false) => (meta.flags, 0, info.cas),
            (false, _) => (info.flags, info.expires, 0),
        };
        let expires = meta.exptime.map_or(expires, |exptime| expiry(i64::from(exptime), times));
        if expires == PAST {
            entry.remove();
            return StoreOutcome::Stored(info.cas);
        }
        // A new version is a new copy.
        let value = &mut self.scratch;
        value.clear();
        // Of no string no new copy is made either.
        if (!meta.removes_value || item.is_typed())
            && let Err(error) = item.append_to(value)
        {
            return StoreOutcome::of(&error);
        }
        let (cas, has_binary_key) = (meta.new_cas.unwrap_or(cas), item.has_binary_key());
        let with = StoredWith { flags, expires, cas, has_binary_key };
        let stored = entry.put_with(&[value], with);
        entry.mark(meta.stale, false);
        stored.map_or(StoreOutcome::NoMemory, StoreOutcome::Stored)
    }

    /// Appends the answer without a value: a two-character status, then what was asked for. The
    /// value that was stored, or was to be, has so many bytes.
    fn meta_status(&mut self, meta: &MetaCommand<'_>, outcome: StoreOutcome, bytes: u64) {
        let status = match outcome {
            StoreOutcome::Stored(_) if meta.quiet => return,
            StoreOutcome::Stored(_) => b"HD",
            StoreOutcome::NotStored => b"NS",
            StoreOutcome::Exists => b"EX",
            StoreOutcome::NotFound => b"NF",
            other => return self.say(stored_text(other), false),
        };
        self.out.bytes.extend_from_slice(status);
        for flag in meta.flags() {
            match (flag[0], meta.kind) {
                (b'c', MetaKind::Set) => {
                    let cas = if let StoreOutcome::Stored(cas) = outcome { cas } else { 0 };
                    self.out.bytes.extend_from_slice(b" c");
                    push_u64(&mut self.out.bytes, cas);
                }
                (b's', MetaKind::Set) => {
                    self.out.bytes.extend_from_slice(b" s");
                    push_u64(&mut self.out.bytes, bytes);
                }
                _ => push_name(&mut self.out.bytes, meta, flag, || meta.binary_key),
            }
        }
        self.out.bytes.extend_from_slice(b"\r\n");
    }

    pub fn meta_stored(&mut self, meta: &MetaCommand<'_>, outcome: StoreOutcome, bytes: u64) {
        self.count(Count::CmdMeta);
        self.meta_status(meta, outcome, bytes);
    }

    fn meta_count(&mut self, meta: &MetaCommand<'_>) {
        let times = self.times();
        let vivify = meta.vivify.map(|exptime| expiry(i64::from(exptime), times));
        let exptime = meta.exptime.map(|exptime| expiry(i64::from(exptime), times));
        // Of a new item the later one of both counts.
        let place = |letter: u8| meta.flags().iter().position(|flag| flag[0] == letter);
        let first = if place(b'T') > place(b'N') { exptime } else { vivify };
        let step = CounterStep {
            key: meta.key.bytes(),
            delta: meta.delta,
            down: matches!(meta.mode, Some(b'D' | b'-')),
            cas: meta.cas.unwrap_or(0),
            new_cas: meta.new_cas.unwrap_or(0),
            first: first.filter(|_| vivify.is_some()).map(|expires| (meta.initial, expires)),
            expires: exptime,
            has_binary_key: meta.binary_key,
        };
        let counted = self.count_by(&step);
        match counted {
            // That there is no item is said in any case.
            Ok(_) if meta.quiet => {}
            Ok(counted) => push_counted(&mut self.out.bytes, meta, counted, times),
            Err(
                outcome @ (StoreOutcome::NotFound | StoreOutcome::Exists | StoreOutcome::NotNumber),
            ) => self.meta_status(meta, outcome, 0),
            Err(_) => self.say("SERVER_ERROR out of memory", false),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Marks {
    won: bool,
    lost: bool,
    stale: bool,
}

/// When an item expires, for flags that are answered one by one.
#[derive(Clone, Copy)]
struct Lifetime {
    /// Before the first flag.
    expires: Millis,
    /// By `N`, of an item that it made.
    created: Option<Millis>,
    times: Times,
}

fn push_meta_item(
    out: &mut Output,
    meta: &MetaCommand<'_>,
    item: &Item<'_>,
    life: Lifetime,
    marks: Marks,
) {
    let start = out.bytes.len();
    let bytes = &mut out.bytes;
    // A client that has this version already needs no value.
    let has_value = meta.value && meta.cas.is_none_or(|known| known != item.cas());
    let is_base64 = || is_told_in_base64(item, meta);
    push_flags(
        bytes,
        meta,
        has_value.then(|| item.len()),
        life,
        is_base64,
        |letter| match letter {
            b's' => Some(item.len()),
            b'c' => Some(item.cas()),
            b'f' => Some(u64::from(item.flags())),
            b'l' => Some(u64::from(item.meta().idle_s)),
            b'h' => Some(u64::from(item.meta().fetched)),
            _ => None,
        },
    );
    for (mark, letter) in [(marks.lost, b" Z"), (marks.stale, b" X"), (marks.won, b" W")] {
        if mark {
            bytes.extend_from_slice(letter);
        }
    }
    bytes.extend_from_slice(b"\r\n");
    if has_value {
        if let Err(error) = push_value(out, item, item.len()) {
            out.fail(start, &error);
            out.bytes.extend_from_slice(b"SERVER_ERROR the value's tier of memory failed");
        }
        out.bytes.extend_from_slice(b"\r\n");
    }
}

fn push_counted(out: &mut Vec<u8>, meta: &MetaCommand<'_>, counted: Counted, times: Times) {
    let Counted { value, cas, expires: before } = counted;
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value).as_bytes();
    let vivified = || expiry(i64::from(meta.vivify.unwrap_or(0)), times);
    let created = before.is_none().then(vivified);
    let life = Lifetime { expires: before.unwrap_or(0), created, times };
    let number = |letter| (letter == b'c').then_some(cas);
    let len = meta.value.then_some(digits.len() as u64);
    push_flags(out, meta, len, life, || meta.binary_key, number);
    out.extend_from_slice(b"\r\n");
    if meta.value {
        out.extend_from_slice(digits);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the status, the length of the value if it follows, and the answer to each flag: to
/// those of which `number` knows one, that.
fn push_flags(
    out: &mut Vec<u8>,
    meta: &MetaCommand<'_>,
    len: Option<u64>,
    mut life: Lifetime,
    is_base64: impl Fn() -> bool,
    number: impl Fn(u8) -> Option<u64>,
) {
    match len {
        Some(len) => {
            out.extend_from_slice(b"VA ");
            push_u64(out, len);
        }
        None => out.extend_from_slice(b"HD"),
    }
    for flag in meta.flags() {
        match flag[0] {
            b'T' => life.expires = expiry(i64::from(meta.exptime.unwrap_or(0)), life.times),
            b'N' => life.expires = life.created.unwrap_or(life.expires),
            b't' => {
                out.extend_from_slice(b" t");
                push_i64(out, seconds_left(life.expires, life.times));
            }
            letter => match number(letter) {
                Some(number) => {
                    out.extend_from_slice(&[b' ', letter]);
                    push_u64(out, number);
                }
                None => push_name(out, meta, flag, &is_base64),
            },
        }
    }
}

/// Gives back opaque and key, where they were asked for.
fn push_names(out: &mut Vec<u8>, meta: &MetaCommand<'_>) {
    meta.flags().iter().for_each(|flag| push_name(out, meta, flag, || meta.binary_key));
}

/// Whether the key of an item is told in base64: it was sent so when it was stored, as memcached
/// has it, or was sent so now and cannot stand in a line.
fn is_told_in_base64(item: &Item<'_>, meta: &MetaCommand<'_>) -> bool {
    item.has_binary_key() || meta.binary_key && !is_line_key(meta.key.bytes())
}

fn push_name(out: &mut Vec<u8>, meta: &MetaCommand<'_>, flag: &[u8], is_base64: impl Fn() -> bool) {
    match flag[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(flag);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            if is_base64() {
                push_base64(out, meta.key.bytes());
                out.extend_from_slice(b" b");
            } else {
                out.extend_from_slice(meta.key.bytes());
            }
        }
        _ => {}
    }
}
