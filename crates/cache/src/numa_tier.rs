//! Memory nodes of this host as a [`Tier`] of the cache: long values on a node without processors
//! (CXL memory), or on several nodes by weights, while index, headers and keys stay where the cache
//! is.
//!
//! One piece of memory, private or a file of shared memory; what is free of it is kept in extents,
//! of which a value takes the smallest that is long enough. In a file, values outlive the process.
//! Reads and writes are copies; nothing waits but for the memory.
//!
//! Source: HMSDK (data tiering).

use crate::cache::{Error, Result, Tier, TierError};
use rackpool_core::seam::Mem;
use rackpool_mem::files;
use rackpool_mem::numa::{GRAIN_BYTES_MAX, Placement};
use rackpool_mem::window::Window;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unit of memory that values take, bytes.
const GRAIN_BYTES: u64 = 64;
/// How a file of values begins.
const MAGIC: &[u8; 8] = b"rpvalues";
/// What a file has before its values.
const HEADER_BYTES: u64 = 4096;

#[derive(Debug)]
pub struct NumaTier {
    window: Window,
    free: Mutex<Extents>,
    /// Holds the lock that keeps other processes away.
    file: Option<File>,
}

impl NumaTier {
    /// Memory of these nodes for this process, taken as it is used.
    ///
    /// # Errors
    /// [`Error::Numa`]; [`Error::Io`] if the system has not so much address space.
    pub fn new(placement: &Placement, bytes: u64) -> Result<NumaTier> {
        let window = Window::private(bytes)
            .map_err(|source| Error::Io { what: format!("mapping {bytes} bytes"), source })?;
        placement.apply(&window)?;
        Ok(NumaTier { window, free: Mutex::new(Extents::new(bytes)), file: None })
    }

    /// Memory of these nodes in a file of shared memory, which is made if it is not there, all of
    /// it taken at once. Values that are in it are free memory until they are adopted.
    ///
    /// # Errors
    /// [`Error::Numa`]; [`Error::Io`], also if another process has it open; [`Error::Corrupt`] if
    /// it is another file, which stays as it is.
    pub fn open(placement: &Placement, bytes: u64, path: &Path) -> Result<NumaTier> {
        let failed = |what: &str| {
            let what = format!("{what} {}", path.display());
            move |source| Error::Io { what, source }
        };
        // Before a file is made.
        placement.check(bytes)?;
        let file = files::open_private_linked(path, OFlags::RDWR | OFlags::CREATE);
        let file = File::from(file.map_err(failed("opening"))?);
        files::lock(&file).map_err(failed("locking"))?;
        if file.metadata().map_err(failed("looking at"))?.len() == 0 {
            file.write_all_at(MAGIC, 0).map_err(failed("writing"))?;
        }
        let mut found = [0; MAGIC.len()];
        if file.read_exact_at(&mut found, 0).is_err() || found != *MAGIC {
            let (path, reason) = (path.display().to_string(), "it holds no values of a cache");
            return Err(Error::Corrupt { path, reason: reason.into() });
        }
        files::take_rights(&file).map_err(failed("taking the rights of"))?;
        let whole = placement.file(file.as_fd(), HEADER_BYTES + bytes, GRAIN_BYTES_MAX)?;
        let window = whole.slice(HEADER_BYTES, bytes);
        let (free, file) = (Mutex::new(Extents::new(bytes)), Some(file));
        Ok(NumaTier { window, free, file })
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    fn free(&self) -> MutexGuard<'_, Extents> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where bytes of a value lie, if that is inside.
    fn at(&self, place: u64, offset: u64, bytes: usize) -> Result<u64, TierError> {
        let at = place.checked_add(offset);
        let end = at.and_then(|at| at.checked_add(bytes as u64));
        let is_inside = end.is_some_and(|end| end <= self.window.bytes());
        let at = at.filter(|_| is_inside);
        at.ok_or_else(|| TierError::Failed(format!("no value is at {place}")))
    }
}

impl Tier for NumaTier {
    fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
        self.free().take(bytes.next_multiple_of(GRAIN_BYTES)).ok_or(TierError::Full)
    }

    fn free(&self, place: u64, bytes: u64) {
        self.free().give_back(place, bytes.next_multiple_of(GRAIN_BYTES));
    }

    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError> {
        self.window.copy_in(self.at(place, offset, from.len())?, from);
        Ok(())
    }

    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError> {
        self.window.copy_out(self.at(place, offset, to.len())?, to);
        Ok(())
    }

    fn keeps_values(&self) -> bool {
        self.file.is_some()
    }

    fn adopt(&self, place: u64, bytes: u64) -> bool {
        let whole = bytes.checked_next_multiple_of(GRAIN_BYTES);
        whole.is_some_and(|whole| self.free().take_at(place, whole))
    }
}

/// What is free, in pieces that do not touch each other.
#[derive(Debug, Default)]
struct Extents {
    starts: BTreeMap<u64, u64>,
    lengths: BTreeSet<(u64, u64)>,
}

impl Extents {
    fn new(bytes: u64) -> Extents {
        let mut extents = Extents::default();
        extents.add(0, bytes / GRAIN_BYTES * GRAIN_BYTES);
        extents
    }

    fn add(&mut self, start: u64, bytes: u64) {
        if bytes > 0 {
            self.starts.insert(start, bytes);
            self.lengths.insert((bytes, start));
        }
    }

    fn remove(&mut self, start: u64, bytes: u64) {
        self.starts.remove(&start);
        self.lengths.remove(&(bytes, start));
    }

    /// The front of the shortest extent that is long enough; of these the first.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (length, start) = *self.lengths.range((bytes, 0)..).next()?;
        self.remove(start, length);
        self.add(start + bytes, length - bytes);
        Some(start)
    }

    /// These bytes, if all of them are free.
    fn take_at(&mut self, place: u64, bytes: u64) -> bool {
        let before = self.starts.range(..=place).next_back();
        let Some((start, length)) = before.map(|(start, length)| (*start, *length)) else {
            return false;
        };
        let Some(end) = place.checked_add(bytes) else { return false };
        if !place.is_multiple_of(GRAIN_BYTES) || end > start + length {
            return false;
        }
        self.remove(start, length);
        self.add(start, place - start);
        self.add(end, start + length - end);
        true
    }

    fn give_back(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((before, length)) = self.starts.range(..start).next_back()
            && before + length == start
        {
            let (before, length) = (*before, *length);
            self.remove(before, length);
            (start, bytes) = (before, length + bytes);
        }
        if let Some(length) = self.starts.get(&(start + bytes)).copied() {
            self.remove(start + bytes, length);
            bytes += length;
        }
        self.add(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_memory_is_given_out_twice_or_lost(
            steps in prop::collection::vec((any::<u16>(), 1_u64..40, 0_u64..4), 1..300),
        ) {
            let total = 200 * GRAIN_BYTES;
            let (mut free, mut taken) = (Extents::new(total + 7), Vec::new());
            for (choice, length, kind) in steps {
                let bytes = length * GRAIN_BYTES;
                let place = u64::from(choice) % 200 * GRAIN_BYTES;
                match kind {
                    0 | 1 => taken.extend(free.take(bytes).map(|start| (start, bytes))),
                    2 if free.take_at(place, bytes) => taken.push((place, bytes)),
                    2 => {
                        let overlaps = |(start, length): &(u64, u64)| {
                            place < start + length && *start < place + bytes
                        };
                        prop_assert!(place + bytes > total || taken.iter().any(overlaps));
                    }
                    _ if taken.is_empty() => {}
                    _ => {
                        let (start, bytes) = taken.swap_remove(usize::from(choice) % taken.len());
                        free.give_back(start, bytes);
                    }
                }
                let mut all: Vec<_> = taken.clone();
                all.extend(free.starts.iter().map(|(start, length)| (*start, *length)));
                all.sort_unstable();
                let end = all.iter().fold(0, |end, (start, length)| {
                    assert_eq!(end, *start, "a gap or an overlap");
                    start + length
                });
                prop_assert_eq!(end, total);
                prop_assert_eq!(free.starts.len(), free.lengths.len());
            }
            taken.into_iter().for_each(|(start, bytes)| free.give_back(start, bytes));
            prop_assert_eq!(free.starts.into_iter().collect::<Vec<_>>(), [(0, total)]);
        }
    }
}
