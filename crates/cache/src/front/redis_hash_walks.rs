//! Redis's commands that go over all of a hash, or draw from it. In: a [`RespCall`]. Out: its
//! answer, or an error's text.
//!
//! A small hash is answered at once. A large one is gone over by parts, in turns, as it was when
//! the command began: what goes meanwhile is kept for the answer.

use super::core::Output;
use super::glob::Glob;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax};
use super::redis_hashes::push_hash_value;
use super::resp::{Version, failed, push_array, push_bulk, push_bulk_head, push_map, push_null};
use crate::cache::{Error, HashEntry, HashStream, HashValue, Pinned};
use crate::hashes::{FIELD_BYTES_MAX, Text};
use rackpool_mem::process::monotonic_ns;

/// What of each field is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Fields,
    Values,
    Map,
    /// Both, as a list of pairs.
    Pairs,
}

impl Shown {
    fn push_head(self, out: &mut Output, count: usize, version: Version) {
        let out = &mut out.bytes;
        match (self, version) {
            (Shown::Map, _) => push_map(out, count, version),
            (Shown::Pairs, Version::Two) => push_array(out, 2 * count),
            (Shown::Fields | Shown::Values | Shown::Pairs, _) => push_array(out, count),
        }
    }

    fn push(
        self,
        out: &mut Output,
        name: Text<'_>,
        value: HashValue<'_>,
        version: Version,
    ) -> Result<(), Error> {
        if self == Shown::Pairs && version == Version::Three {
            push_array(&mut out.bytes, 2);
        }
        if self != Shown::Values {
            push_hash_value(out, HashValue::Text(name))?;
        }
        if self != Shown::Fields {
            push_hash_value(out, value)?;
        }
        Ok(())
    }
}

/// A large hash that is gone over for an answer.
#[derive(Debug)]
pub struct HashWalk {
    /// Counts the fields first, where some may have expired.
    counting: Option<HashStream>,
    stream: HashStream,
    shown: Shown,
    /// Fields that there are, and that were gone over.
    count: u64,
    seen: u64,
    has_begun: bool,
    /// Fields that are still to be drawn, if not all are answered.
    wanted: Option<u64>,
    random: Random,
}

pub fn hgetall(call: &mut RespCall<'_>) -> CommandResult {
    all(call, Shown::Map)
}

pub fn hkeys(call: &mut RespCall<'_>) -> CommandResult {
    all(call, Shown::Fields)
}

pub fn hvals(call: &mut RespCall<'_>) -> CommandResult {
    all(call, Shown::Values)
}

fn all(call: &mut RespCall<'_>, shown: Shown) -> CommandResult {
    let (input, args, version) = (call.input, call.args, call.client.version);
    let core = &mut *call.core;
    let (times, out) = (core.times(), &mut core.out);
    let hash = core.db.hash_reader(args.get(input, 1), times);
    let mut hash = hash.map_err(|error| failed(&error))?;
    let is_there = hash.is_there();
    if let Some(walk) = begin(&mut hash, shown, None) {
        drop(hash);
        call.counted(true);
        return walk_on(call, ResumePoint { walk: Some(walk), ..ResumePoint::default() });
    }
    let start = out.bytes.len();
    let pushed = hash.count().and_then(|count| {
        shown.push_head(out, count as usize, version);
        hash.visit(0, |name, value| shown.push(out, name, value, version))
    });
    drop(hash);
    if let Err(error) = pushed {
        call.core.out.truncate(start);
        return Err(failed(&error));
    }
    call.counted(is_there);
    Ok(())
}

/// The walk over a hash, if it is a large one.
fn begin(hash: &mut HashEntry<'_>, shown: Shown, wanted: Option<u64>) -> Option<Box<HashWalk>> {
    // Both see what there is now.
    let stream = hash.stream()?;
    let counting = if hash.may_have_expired() { hash.stream() } else { None };
    let count = if counting.is_some() { 0 } else { hash.count().ok()? };
    let (seen, has_begun, random) = (0, false, Random::new());
    Some(Box::new(HashWalk { counting, stream, shown, count, seen, has_begun, wanted, random }))
}

fn walk_on(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let version = call.client.version;
    let Some(mut walk) = part.walk.take() else { return Ok(()) };
    loop {
        if call.is_to_pause() {
            part.walk = Some(walk);
            return call.go_on_later(part, walk_on);
        }
        let core = &mut *call.core;
        if let Some(counting) = &walk.counting {
            let count = &mut walk.count;
            let more = core.db.next_of_hash(counting, |_, _| {
                *count += 1;
                Ok(())
            });
            if !more.map_err(|error| failed(&error))? {
                walk.counting = None;
            }
            continue;
        }
        if !walk.has_begun {
            walk.has_begun = true;
            walk.wanted = walk.wanted.map(|wanted| wanted.min(walk.count));
            let count = walk.wanted.unwrap_or(walk.count);
            walk.shown.push_head(&mut core.out, count as usize, version);
        }
        let HashWalk { stream, shown, count, seen, wanted, random, .. } = &mut *walk;
        let out = &mut core.out;
        let more = core.db.next_of_hash(stream, |name, value| {
            let left = *count - (*seen).min(*count);
            *seen += 1;
            // Each field is drawn by the chance that makes all choices alike likely.
            match wanted {
                Some(wanted) if random.below(left.max(1)) >= *wanted => return Ok(()),
                Some(wanted) => *wanted -= 1,
                None => {}
            }
            shown.push(out, name, value, version)
        });
        match more {
            Ok(true) if walk.wanted == Some(0) => return Ok(()),
            Ok(true) => {}
            Ok(false) if walk.seen == walk.count => return Ok(()),
            // What was announced cannot be given: all was flushed meanwhile.
            Ok(false) | Err(_) => {
                call.client.quits = true;
                return Ok(());
            }
        }
    }
}

/// Fields that one `HSCAN` looks at, at most.
const SCAN_COUNT_MAX: usize = 10_000;
/// Steps of comparing fields after which it answers with what it has: some ms.
const SCAN_STEPS_MAX: u64 = 4 << 20;

/// What stands behind the cursor of `HSCAN`.
struct ScanOptions {
    count: usize,
    pattern: Option<usize>,
    has_values: bool,
}

impl ScanOptions {
    fn read(call: &RespCall<'_>) -> Result<ScanOptions, String> {
        let mut options = ScanOptions { count: 10, pattern: None, has_values: true };
        let mut index = 3;
        while index < call.count() {
            let has_word = index + 1 < call.count();
            if call.is(index, "novalues") {
                options.has_values = false;
                index += 1;
                continue;
            }
            if call.is(index, "count") && has_word {
                let count = call.number(index + 1)?;
                if count < 1 {
                    return Err(syntax());
                }
                options.count = usize::try_from(count).unwrap_or(usize::MAX);
            } else if call.is(index, "match") && has_word {
                options.pattern = Some(index + 1);
            } else {
                return Err(syntax());
            }
            index += 2;
        }
        options.count = options.count.min(SCAN_COUNT_MAX);
        Ok(options)
    }
}

/// A field that was copied while its hash was locked.
struct OwnedField {
    name: Vec<u8>,
    value: OwnedValue,
}

enum OwnedValue {
    Nothing,
    Text(Vec<u8>),
    Pinned(Pinned),
}

impl OwnedField {
    fn of(name: Text<'_>, value: HashValue<'_>, has_value: bool) -> Result<OwnedField, Error> {
        let bytes = |text: Text<'_>| text.with_bytes(<[u8]>::to_vec).ok_or(Error::HashLost);
        let value = match value {
            _ if !has_value => OwnedValue::Nothing,
            HashValue::Text(text) => OwnedValue::Text(bytes(text)?),
            HashValue::Item(item) => OwnedValue::Pinned(item.pin()?),
            HashValue::Pinned(pinned) => OwnedValue::Pinned(pinned),
        };
        Ok(OwnedField { name: bytes(name)?, value })
    }

    fn push(self, out: &mut Output) {
        push_bulk(&mut out.bytes, &self.name);
        match self.value {
            OwnedValue::Nothing => {}
            OwnedValue::Text(text) => push_bulk(&mut out.bytes, &text),
            OwnedValue::Pinned(pinned) => {
                push_bulk_head(&mut out.bytes, pinned.len());
                out.push_pinned(pinned, false);
                out.bytes.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`
pub fn hscan(call: &mut RespCall<'_>) -> CommandResult {
    let cursor = std::str::from_utf8(call.arg(2)).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let options = ScanOptions::read(call);
    let (core, key) = (&*call.core, call.arg(1));
    let hash = core.db.hash_reader(key, core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let is_there = hash.is_there();
    // Cursors are of 32 bits.
    let mut next = cursor.checked_mul(1 << 32).filter(|_| is_there);
    let (mut found, mut steps, mut has_values) = (Vec::new(), 0, true);
    if is_there {
        let ScanOptions { count, pattern, has_values: wants_values } = options?;
        has_values = wants_values;
        let pattern = pattern.map(|index| Glob::new(call.arg(index), FIELD_BYTES_MAX));
        let mut seen = 0;
        while let Some(at) = next
            && seen < count
            && steps < SCAN_STEPS_MAX
        {
            let visited = hash.visit(at, |name, value| {
                seen += 1;
                steps += pattern.as_ref().map_or(0, |pattern| pattern.steps(name.len()));
                let matches = |bytes: &[u8]| pattern.as_ref().is_none_or(|it| it.matches(bytes));
                if name.with_bytes(matches) == Some(true) {
                    found.push(OwnedField::of(name, value, has_values)?);
                }
                Ok(())
            });
            next = visited.map_err(|error| failed(&error))?;
        }
    }
    drop(hash);
    call.counted(is_there);
    let out = &mut call.core.out;
    push_array(&mut out.bytes, 2);
    push_bulk(&mut out.bytes, (next.unwrap_or(0) >> 32).to_string().as_bytes());
    push_array(&mut out.bytes, found.len() * (1 + usize::from(has_values)));
    found.into_iter().for_each(|field| field.push(out));
    Ok(())
}

/// Numbers by chance, good enough to draw fields by.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(monotonic_ns())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below the limit, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// The fields of a part, drawn by chance, of a large hash; all of a small one.
fn some_fields(
    hash: &mut HashEntry<'_>,
    random: &mut Random,
    has_values: bool,
) -> Result<Vec<OwnedField>, Error> {
    let mut fields = Vec::new();
    let first = hash.part_at(random.next());
    let mut at = first;
    // Most parts have fields.
    for _ in 0..PASSED_PARTS_MAX {
        let next = hash.visit(at, |name, value| {
            fields.push(OwnedField::of(name, value, has_values)?);
            Ok(())
        })?;
        at = next.unwrap_or(0);
        if at == first || !fields.is_empty() {
            break;
        }
    }
    Ok(fields)
}

/// Parts without a field that has not expired that are passed over.
const PASSED_PARTS_MAX: usize = 64;

/// A field drawn by chance.
fn draw(
    hash: &mut HashEntry<'_>,
    random: &mut Random,
    has_values: bool,
) -> Result<Option<OwnedField>, Error> {
    let mut fields = some_fields(hash, random, has_values)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let index = random.below(fields.len() as u64) as usize;
    Ok(Some(fields.swap_remove(index)))
}

pub fn hrandfield(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 4 || call.count() == 4 && !call.is(3, "withvalues") {
        return Err(syntax());
    }
    if call.count() > 2 {
        return draw_many(call);
    }
    let (core, key, mut random) = (&*call.core, call.arg(1), Random::new());
    let hash = core.db.hash_reader(key, core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let is_there = hash.is_there();
    let drawn = draw(&mut hash, &mut random, false).map_err(|error| failed(&error))?;
    drop(hash);
    call.counted(is_there);
    match drawn {
        Some(field) => {
            field.push(&mut call.core.out);
            Ok(())
        }
        None => call.null(),
    }
}

/// The count that word 2 of `HRANDFIELD` says.
fn count_of(call: &RespCall<'_>) -> Result<i64, String> {
    let count = call.number(2)?;
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(format!("ERR value is out of range, value must between {least} and {most}"));
    }
    let limit = i64::MAX / 2;
    if call.count() == 4 && !(-limit..=limit).contains(&count) {
        return Err("ERR value is out of range".into());
    }
    Ok(count)
}

/// Draws with one look at the hash: of up to so many fields, each once …
const DRAWN_AT_ONCE: u64 = 64;
/// … out of so many times as many.
const DRAWN_SHARE: u64 = 8;

fn draw_many(call: &mut RespCall<'_>) -> CommandResult {
    let count = count_of(call)?;
    let has_values = call.count() == 4;
    let shown = if has_values { Shown::Pairs } else { Shown::Fields };
    let (core, key, mut random) = (&*call.core, call.arg(1), Random::new());
    let hash = core.db.hash_reader(key, core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let (is_there, fields) = (hash.is_there(), hash.count().map_err(|error| failed(&error))?);
    if count < 0 && is_there {
        drop(hash);
        call.counted(true);
        shown.push_head(&mut call.core.out, count.unsigned_abs() as usize, call.client.version);
        return draw_again(call, ResumePoint::at(count.unsigned_abs()));
    }
    let count = if is_there { count.unsigned_abs() } else { 0 };
    let mut drawn = Vec::new();
    if hash.is_large() && count > 0 {
        if count <= DRAWN_AT_ONCE && count * DRAWN_SHARE <= fields && !hash.may_have_expired() {
            drawn = draw_some(&mut hash, &mut random, has_values, count)
                .map_err(|error| failed(&error))?;
        }
        if drawn.is_empty() {
            let wanted = (count < fields || hash.may_have_expired()).then_some(count);
            let walk = begin(&mut hash, shown, wanted);
            drop(hash);
            call.counted(true);
            return walk_on(call, ResumePoint { walk, ..ResumePoint::default() });
        }
    } else if count > 0 {
        let all = some_fields(&mut hash, &mut random, has_values);
        drawn = all.map_err(|error| failed(&error))?;
        // As Redis, all in their order where all are wanted.
        while (drawn.len() as u64) > count {
            let index = random.below(drawn.len() as u64) as usize;
            drawn.swap_remove(index);
        }
    }
    drop(hash);
    call.counted(is_there);
    push_drawn(call, shown, drawn);
    Ok(())
}

fn push_drawn(call: &mut RespCall<'_>, shown: Shown, drawn: Vec<OwnedField>) {
    let (out, version) = (&mut call.core.out, call.client.version);
    shown.push_head(out, drawn.len(), version);
    for field in drawn {
        push_pair(out, shown, version, field);
    }
}

fn push_pair(out: &mut Output, shown: Shown, version: Version, field: OwnedField) {
    if shown == Shown::Pairs && version == Version::Three {
        push_array(&mut out.bytes, 2);
    }
    field.push(out);
}

/// So many fields of a large hash, each once; none if luck does not bring them soon.
fn draw_some(
    hash: &mut HashEntry<'_>,
    random: &mut Random,
    has_values: bool,
    count: u64,
) -> Result<Vec<OwnedField>, Error> {
    let mut drawn: Vec<OwnedField> = Vec::new();
    for _ in 0..4 * count {
        let Some(field) = draw(hash, random, has_values)? else { break };
        if drawn.iter().all(|other| other.name != field.name) {
            drawn.push(field);
        }
        if drawn.len() as u64 == count {
            return Ok(drawn);
        }
    }
    Ok(Vec::new())
}

/// Draws as many fields as the part says, each out of all.
fn draw_again(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let (input, args, version) = (call.input, call.args, call.client.version);
    let has_values = call.count() == 4;
    let shown = if has_values { Shown::Pairs } else { Shown::Fields };
    let mut random = Random::new();
    while part.index > 0 {
        if call.is_to_pause() {
            return call.go_on_later(part, draw_again);
        }
        let core = &mut *call.core;
        let (times, out) = (core.times(), &mut core.out);
        let mut hash = core.db.hash_reader(args.get(input, 1), times).ok();
        for _ in 0..part.index.min(DRAWN_AT_ONCE) {
            part.index -= 1;
            let drawn = hash.as_mut().map(|hash| draw(hash, &mut random, has_values));
            match drawn {
                Some(Ok(Some(field))) => push_pair(out, shown, version, field),
                // It went meanwhile.
                _ if shown == Shown::Pairs && version == Version::Two => {
                    push_null(&mut out.bytes, version);
                    push_null(&mut out.bytes, version);
                }
                _ => push_null(&mut out.bytes, version),
            }
        }
    }
    Ok(())
}
