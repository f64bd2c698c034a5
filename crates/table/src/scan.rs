//! Scanning by a cursor, page by page, in the order of the hashes' reversed bits.
//!
//! A bucket of depth d covers the hashes that agree in their d lowest bits: read backwards, those
//! of one interval. So a place in that order is told by one number, however deep the buckets are,
//! and stays right while they split: a cursor is the first reversed hash that was not yet covered.
//! Each page looks at buckets one by one, and each bucket at one moment.
//!
//! **Guarantee**, by a cursor from the start to the end, also while the table grows and however
//! long that takes: a key that is in the table all the while is found exactly once; one that comes
//! or goes meanwhile is found once or not at all; each with the length that its value had when it
//! was looked at. No process keeps anything for a cursor: it may be stored, and used with any
//! handle of the table.

use crate::error::Result;
use crate::read::Intent;
use crate::words::Words;
use crate::{Table, low_bits};

/// How far a scan is: any value is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanCursor(pub u64);

/// A part of the keys, in the order of the scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    /// Keys, with the lengths of their values in bytes.
    pub keys: Vec<(Vec<u8>, u64)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<ScanCursor>,
}

impl Table {
    /// The keys from `from` on, of whole buckets, until there are `keys_min` of them or the end is
    /// reached. The scan begins at `ScanCursor::default()`. What it finds is said in
    /// [`ScanPage`]'s module: each lasting key once, while the table grows too.
    ///
    /// ```
    /// use rackpool::cluster::Cluster;
    /// use rackpool_table::{Options, ScanCursor, Table};
    /// let cluster = Cluster::start(1)?;
    /// let mut mem = cluster.pool(0)?.handle()?;
    /// let mut table = Table::create(&mut mem, "t", Options::default())?;
    /// table.put(&mut mem, b"key", b"value")?;
    /// let (mut found, mut from) = (Vec::new(), Some(ScanCursor::default()));
    /// while let Some(cursor) = from {
    ///     let page = table.scan_from(&mut mem, cursor, 100)?;
    ///     found.extend(page.keys);
    ///     from = page.next;
    /// }
    /// assert_eq!(found, [(b"key".to_vec(), 5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan_from<W: Words>(
        &mut self,
        mem: &mut W,
        from: ScanCursor,
        keys_min: usize,
    ) -> Result<ScanPage> {
        let mut page = ScanPage { keys: Vec::new(), next: Some(from) };
        while let Some(at) = page.next
            && page.keys.len() < keys_min.max(1)
        {
            page.next = self.scan_bucket(mem, at, &mut page.keys)?;
        }
        Ok(page)
    }

    /// Appends the keys from `at` on of the bucket that covers it; where the next bucket begins.
    fn scan_bucket<W: Words>(
        &mut self,
        mem: &mut W,
        at: ScanCursor,
        keys: &mut Vec<(Vec<u8>, u64)>,
    ) -> Result<Option<ScanCursor>> {
        let hash = at.0.reverse_bits();
        let view = self.find(mem, hash, Intent::Read)?;
        let blob = self.blob(&view)?;
        // Of a frozen bucket the half that covers the hash: the other may be in its own by now.
        let depth = blob.depth() + u8::from(view.is_frozen());
        let first = low_bits(hash, depth).reverse_bits();
        let mut found: Vec<_> = blob
            .entries()
            .map(|entry| (self.hash(entry.key).reverse_bits(), entry))
            .filter(|(reversed, _)| {
                *reversed >= at.0
                    && low_bits(reversed.reverse_bits(), depth).reverse_bits() == first
            })
            .collect();
        found.sort_by_key(|(reversed, entry)| (*reversed, entry.key));
        keys.extend(found.iter().map(|(_, entry)| (entry.key.to_vec(), entry.value.bytes())));
        // A table of one bucket covers all hashes.
        let step = 1u64.checked_shl(u64::BITS - u32::from(depth));
        Ok(step.and_then(|step| first.checked_add(step)).map(ScanCursor))
    }
}
