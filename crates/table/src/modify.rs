//! Changes that depend on what is there: by a function of the value, or by its version. Both look
//! at the blob of the word that they then swap.

use crate::Table;
use crate::blob::BlobValue;
use crate::error::Result;
use crate::read::{Intent, ValueVersion, check_key};
use crate::words::Words;
use crate::write::{EntryWrite, UnpublishedBlob, WriteMode, WriteOutcome, check_value};

/// What a function of [`Table::modify`] wants done with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// The key stays as it is.
    Keep,
    /// The key gets this value, whether it was there or not.
    Put(Vec<u8>),
    /// The key goes, if it was there.
    Delete,
}

impl Table {
    /// Changes a key by a function of its value (`None`: it is not in the table), atomically: from
    /// the value that the last call of `change` saw, no other client has changed it. Whether
    /// something was changed. `change` is called again whenever its bucket changed meanwhile, so it
    /// does no more than look and decide.
    ///
    /// ```
    /// use rackpool::cluster::Cluster;
    /// use rackpool_table::{KeyChange, Options, Table};
    /// let cluster = Cluster::start(1)?;
    /// let mut mem = cluster.pool(0)?.handle()?;
    /// let mut table = Table::create(&mut mem, "counts", Options::default())?;
    /// for _ in 0..3 {
    ///     table.modify(&mut mem, b"visits", |count| {
    ///         let count = count.map_or(0, |bytes| bytes[0]);
    ///         KeyChange::Put(vec![count + 1])
    ///     })?;
    /// }
    /// assert_eq!(table.get(&mut mem, b"visits")?, Some(vec![3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn modify<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> KeyChange,
    ) -> Result<bool> {
        check_key(key)?;
        let hash = self.hash(key);
        self.attempt(mem, hash, |table, mem, draft| {
            table.modify_once(mem, key, hash, draft, &mut change)
        })
    }

    /// Gives `key` a value if its present one has the version `expected` (`None`: if it is not in
    /// the table); whether it did.
    pub fn put_if<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        expected: Option<ValueVersion>,
        value: &[u8],
    ) -> Result<bool> {
        Ok(self.store(mem, key, value, WriteMode::If(expected))? != WriteOutcome::Refused)
    }

    /// Removes `key` if its value has the version `expected`; whether it did.
    pub fn delete_if<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        expected: ValueVersion,
    ) -> Result<bool> {
        check_key(key)?;
        let hash = self.hash(key);
        self.attempt(mem, hash, |table, mem, draft| {
            let view = table.find(mem, hash, Intent::Write)?;
            let there = table.blob(&view)?.find(key).map(|value| table.version_in(value));
            match there == Some(expected) {
                true => table.remove_entry(mem, &view, hash, key, draft),
                false => Ok(Some(false)),
            }
        })
    }

    /// The version of the value of `key`, without reading a long one.
    pub fn version<W: Words>(&mut self, mem: &mut W, key: &[u8]) -> Result<Option<ValueVersion>> {
        check_key(key)?;
        let view = self.find(mem, self.hash(key), Intent::Read)?;
        let value = self.blob(&view)?.find(key);
        Ok(value.map(|value| self.version_in(value)))
    }

    /// One attempt; `None` if the bucket changed meanwhile.
    fn modify_once<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        hash: u64,
        draft: &mut UnpublishedBlob,
        change: &mut impl FnMut(Option<&[u8]>) -> KeyChange,
    ) -> Result<Option<bool>> {
        // Likely the value stays about as long as it was.
        let likely = EntryWrite { key, value: &[], mode: WriteMode::Any };
        self.reserve(mem, hash, &likely, draft)?;
        let view = self.find(mem, hash, Intent::Grow)?;
        let wanted = match self.blob(&view)?.find(key) {
            None => change(None),
            Some(BlobValue::Inline(bytes)) => change(Some(bytes)),
            Some(BlobValue::External(far)) => {
                let mut bytes = Vec::new();
                if !self.read_far(mem, &view, far, &mut bytes)? {
                    return Ok(None);
                }
                change(Some(&bytes))
            }
        };
        match wanted {
            KeyChange::Keep => Ok(Some(false)),
            KeyChange::Delete => self.remove_entry(mem, &view, hash, key, draft),
            KeyChange::Put(value) => {
                check_value(&value)?;
                // One of an attempt before may have other bytes.
                if let Some(far) = draft.far.take() {
                    self.release(mem, far.addr, far.bytes);
                }
                let write = EntryWrite { key, value: &value, mode: WriteMode::Any };
                let done = self.set_entry(mem, &view, hash, &write, draft)?;
                Ok(done.map(|_| true))
            }
        }
    }
}
