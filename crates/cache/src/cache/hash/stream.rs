//! All fields of a large hash as they were at one moment, in steps, each under the partition's lock
//! ([`crate::hashes::FieldStream`]): what goes meanwhile is pinned for it, once; before a flush,
//! all.

use super::HashValue;
use crate::cache::error::{Error, Result};
use crate::cache::item::Pinned;
use crate::cache::layout::Pos;
use crate::cache::partition::{HashId, Partition};
use crate::cache::{Cache, Millis};
use crate::clock::Times;
use crate::hashes::{FieldStream, HashItem, Next, Packed, Text};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts that are pinned at once before a flush: some 100 us.
const KEPT_AT_ONCE: usize = 128;

/// See the module. When it is dropped, nothing is kept for it any more.
#[derive(Debug)]
pub struct HashStream(Arc<StreamState>);

/// What a partition knows of a stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    id: HashId,
    now: Millis,
    kept: Mutex<KeptParts>,
}

#[derive(Debug)]
struct KeptParts {
    stream: FieldStream<Pinned>,
    /// Values of the parts that are pinned, and of others that were lost before their parts.
    longs: BTreeMap<u64, Pinned>,
    /// Before this hash no part is wanted any more.
    kept_until: u64,
}

impl StreamState {
    pub fn is_of(&self, owner: u64, generation: u32) -> bool {
        self.id == HashId { owner, generation }
    }

    fn lock(&self) -> MutexGuard<'_, KeptParts> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An item of the hash is to go, which lies there.
    pub fn keep(&self, partition: &Partition, id: HashId, item: HashItem, pos: Pos) {
        let mut kept = self.lock();
        match item {
            HashItem::Part(part) if kept.stream.wants(part) => {
                for (serial, pos) in partition.long_items(id, pos) {
                    kept.longs.insert(serial, partition.pinned(pos));
                }
                kept.stream.keep(part, partition.pinned(pos));
            }
            HashItem::Part(_) | HashItem::Long(_) => {}
        }
    }

    /// Pins some of the parts that it wants; whether it may want more.
    pub fn keep_some(&self, partition: &Partition) -> bool {
        let Some(shape) = partition.shape_of(self.id) else { return false };
        for _ in 0..KEPT_AT_ONCE {
            let (part, next) = {
                let mut kept = self.lock();
                let wanted = kept.stream.next_wanted(kept.kept_until, shape);
                let Some(part) = wanted else { return false };
                let next = part.next_hash();
                kept.kept_until = next.unwrap_or(u64::MAX);
                (part, next)
            };
            let item = HashItem::Part(part);
            if let Some((_, (_, slot))) = partition.find_hash_item(self.id, item) {
                self.keep(partition, self.id, item, slot.pos());
            }
            if next.is_none() {
                return false;
            }
        }
        true
    }
}

impl HashStream {
    pub(super) fn new(partition: &mut Partition, id: HashId, times: Times) -> HashStream {
        let (stream, longs) = (FieldStream::new(times), BTreeMap::new());
        let kept = KeptParts { stream, longs, kept_until: 0 };
        let state = Arc::new(StreamState { id, now: times.now, kept: Mutex::new(kept) });
        partition.add_stream(&state);
        HashStream(state)
    }
}

impl Cache {
    /// Has streams pin all that they have not given yet, in steps, before it goes at once: the flush
    /// itself has little left to pin while all wait.
    pub(in crate::cache) fn keep_for_streams(&self) {
        for index in 0..self.partitions.len() {
            let streams = self.lock(index).streams();
            for stream in streams {
                while stream.keep_some(&self.lock(index)) {}
            }
        }
    }

    /// Goes on with a stream by a part: `f` sees its fields, and must not call the cache. Whether
    /// there may be more.
    ///
    /// # Errors
    /// [`Error::HashLost`]: the cache has lost a part.
    pub fn next_of_hash(
        &self,
        stream: &HashStream,
        mut f: impl FnMut(Text<'_>, HashValue<'_>) -> Result<()>,
    ) -> Result<bool> {
        let HashStream(state) = stream;
        let (id, now) = (state.id, state.now);
        let partition = self.lock(self.index_of(id.owner));
        let mut kept = state.lock();
        let mut bytes = Vec::new();
        let next = match partition.shape_of(id) {
            Some(shape) => kept.stream.next(shape),
            None => kept.stream.next_old().ok_or(Error::HashLost)?,
        };
        match next {
            Next::End => return Ok(false),
            Next::Old(old) => old.append_to(&mut bytes),
            Next::Part(part) => bytes = partition.read_part(id, part, now)?,
        }
        let times = kept.stream.times();
        for field in Packed::new(&bytes)?.fields() {
            let field = field?;
            if field.is_over(times) {
                continue;
            }
            match field.value {
                Text::Long(long) => match kept.longs.remove(&long.serial) {
                    Some(pinned) => f(field.name, HashValue::Pinned(pinned))?,
                    None => {
                        let item = partition.long_item(id, long, now)?;
                        f(field.name, HashValue::Item(&item))?;
                    }
                },
                text => f(field.name, HashValue::Text(text))?,
            }
        }
        Ok(true)
    }
}
