//! All fields of a large hash as they were at one moment, in steps, each under the partition's lock
//! ([`crate::hashes::FieldStream`]): what goes meanwhile is pinned for it, once.

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
}

impl HashStream {
    pub(super) fn new(partition: &mut Partition, id: HashId, times: Times) -> HashStream {
        let kept = KeptParts { stream: FieldStream::new(times), longs: BTreeMap::new() };
        let state = Arc::new(StreamState { id, now: times.now, kept: Mutex::new(kept) });
        partition.add_stream(&state);
        HashStream(state)
    }
}

impl Cache {
    /// Goes on with a stream by a part: `f` sees its fields, and must not call the cache. Whether
    /// there may be more.
    ///
    /// # Errors
    /// [`Error::HashLost`]: the cache was flushed, or lost a part otherwise.
    pub fn next_of_hash(
        &self,
        stream: &HashStream,
        mut f: impl FnMut(Text<'_>, HashValue<'_>) -> Result<()>,
    ) -> Result<bool> {
        let HashStream(state) = stream;
        let (id, now) = (state.id, state.now);
        let partition = self.lock(self.index_of(id.owner));
        let mut kept = state.lock();
        let shape = partition.shape_of(id).ok_or(Error::HashLost)?;
        let mut bytes = Vec::new();
        match kept.stream.next(shape) {
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
