//! The stored form of the master's state: tables of key and value bytes. Owns the encoding; the
//! state machine produces [`StateWrite`]s, a journal stores them and hands them back at start.
//!
//! Every value is a version byte, a payload and a checksum over table, key and both: a later
//! release adds versions, never a reformat, and a damaged value is a typed error. A page's
//! payload has room for up to three homes; this release writes and reads one.

use super::directory::{Role, StoredHome};
use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId};
use crate::member::RackState;
use crate::wire::{FabricKind, RackInfo};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Version of the values written by this release.
pub const RECORD_VERSION: u8 = 2;
/// Homes that the stored form of a page has room for.
pub const PAGE_HOMES_MAX: u8 = 3;

const CHECK_BYTES: usize = 4;
const HOME_BYTES: usize = 20;

/// A table of the stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// One record: identity, term, index, counters.
    Pool = 0,
    /// Rack number, big-endian → its region and addresses.
    Racks = 1,
    Roots = 2,
    /// Page id, big-endian → homes.
    Pages = 3,
    /// What is freed and not yet gone: a byte that tells the kind and a number, big-endian.
    Orphans = 4,
}

impl Table {
    /// All tables in the order in which they are loaded.
    pub const ALL: [Table; 5] =
        [Table::Pool, Table::Racks, Table::Roots, Table::Pages, Table::Orphans];

    /// Its name in a journal.
    pub fn name(self) -> &'static str {
        match self {
            Table::Pool => "pool",
            Table::Racks => "racks",
            Table::Roots => "roots",
            Table::Pages => "pages",
            Table::Orphans => "orphans",
        }
    }
}

/// One change of the stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWrite {
    pub table: Table,
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Why stored state cannot be used. It is never repaired by guessing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Bytes that no master wrote.
    #[error("damaged state, table {table}: {reason}", table = table.name())]
    Damaged { table: Table, reason: String },
    #[error("state of version {found}, this program reads {supported}: use the same release")]
    Version { found: u8, supported: u8 },
}

/// The record of the pool itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PoolRecord {
    pub pool_id: [u64; 2],
    pub term: u64,
    pub index: u64,
    /// 0 until the first daemon joined.
    pub page_shift: u8,
    pub page_next: PageId,
    /// Counts of the other tables: a missing record is found at start.
    pub racks: u64,
    pub roots: u64,
    pub pages: u64,
    pub orphans: u64,
    /// The number of the last allocation that a home was to free for another rack.
    pub orphan_last: u64,
}

/// An allocation that its home is to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwedRecord {
    pub id: u64,
    pub bytes: u64,
}

/// How far the debts of a rack's region are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PaidRecord {
    pub region: u32,
    pub last: u64,
}

/// A key of [`Table::Orphans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrphanKey {
    /// A page of a freed run → the rack that has it.
    Page(PageId),
    /// An allocation → [`OwedRecord`].
    Owed(GAddr),
    /// A rack → [`PaidRecord`].
    Paid(RackId),
}

impl OrphanKey {
    pub(super) fn bytes(self) -> Vec<u8> {
        let (kind, number) = match self {
            OrphanKey::Page(page) => (0, page.0),
            OrphanKey::Owed(addr) => (1, addr.0),
            OrphanKey::Paid(rack) => (2, u64::from(rack.0)),
        };
        [&[kind], &number.to_be_bytes()[..]].concat()
    }
}

pub(super) fn parse_orphan_key(key: &[u8]) -> Result<OrphanKey, StateError> {
    let wrong = || damaged(Table::Orphans, "a key that names nothing");
    let (kind, number) = key.split_first().ok_or_else(wrong)?;
    let number = u64::from_be_bytes(number.try_into().map_err(|_| wrong())?);
    match (kind, u16::try_from(number)) {
        (0, _) => Ok(OrphanKey::Page(PageId(number))),
        (1, _) => Ok(OrphanKey::Owed(GAddr(number))),
        (2, Ok(rack)) => Ok(OrphanKey::Paid(RackId(rack))),
        _ => Err(wrong()),
    }
}

/// What outlives a daemon's connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RackRecord {
    pub region_id: [u64; 2],
    /// Counts the rack's regions, from 1.
    pub region: u32,
    pub epoch: u64,
    pub frame_count: u32,
    pub host: String,
    pub control: String,
    pub fabric: FabricKind,
    pub fabric_addr: String,
}

impl RackRecord {
    pub(super) fn new(info: &RackInfo, region: u32) -> Self {
        Self {
            region_id: info.region_id,
            region,
            epoch: info.epoch,
            frame_count: info.frame_count,
            host: info.host.clone(),
            control: info.control.clone(),
            fabric: info.fabric.clone(),
            fabric_addr: info.fabric_addr.clone(),
        }
    }
}

/// What a rack is to the pool, behind its record. A rack that serves and has no past has none: so
/// records of earlier releases are read as what they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Membership {
    pub standing: RackState,
    /// Regions that left or were given up, and may not come back.
    pub retired: Vec<[u64; 2]>,
}

pub(super) fn write_rack(rack: RackId, record: &RackRecord, membership: &Membership) -> StateWrite {
    let mut payload = crate::wire::encode_vec(record);
    if *membership != Membership::default() {
        payload.extend(crate::wire::encode_vec(membership));
    }
    seal(Table::Racks, rack_key(rack), &payload)
}

pub(super) fn read_rack(key: &[u8], value: &[u8]) -> Result<(RackRecord, Membership), StateError> {
    let table = Table::Racks;
    let wrong = |error: postcard::Error| damaged(table, error.to_string());
    let payload = open(table, key, value)?;
    let (record, rest) = postcard::take_from_bytes::<RackRecord>(payload).map_err(wrong)?;
    if rest.is_empty() {
        return Ok((record, Membership::default()));
    }
    match postcard::take_from_bytes::<Membership>(rest).map_err(wrong)? {
        (membership, []) => Ok((record, membership)),
        _ => Err(damaged(table, "a record with bytes too many")),
    }
}

/// The key of the one record in [`Table::Pool`].
pub(super) const POOL_KEY: &[u8] = b"pool";

pub(super) fn rack_key(rack: RackId) -> Vec<u8> {
    rack.0.to_be_bytes().to_vec()
}

pub(super) fn page_key(page: PageId) -> Vec<u8> {
    page.0.to_be_bytes().to_vec()
}

pub(super) fn parse_rack_key(key: &[u8]) -> Result<RackId, StateError> {
    let bytes = key.try_into().map_err(|_| damaged(Table::Racks, "a key of another length"))?;
    Ok(RackId(u16::from_be_bytes(bytes)))
}

pub(super) fn parse_page_key(key: &[u8]) -> Result<PageId, StateError> {
    let bytes = key.try_into().map_err(|_| damaged(Table::Pages, "a key of another length"))?;
    Ok(PageId(u64::from_be_bytes(bytes)))
}

pub(super) fn damaged(table: Table, reason: impl Into<String>) -> StateError {
    StateError::Damaged { table, reason: reason.into() }
}

/// A value of a serialisable record.
pub(super) fn write<T: Serialize>(table: Table, key: Vec<u8>, record: &T) -> StateWrite {
    let payload = crate::wire::encode_vec(record);
    seal(table, key, &payload)
}

/// The removal of a key.
pub(super) fn erase(table: Table, key: Vec<u8>) -> StateWrite {
    StateWrite { table, key, value: None }
}

/// A page's value: how many homes, then 20 bytes each.
pub(super) fn write_page(page: PageId, home: &StoredHome) -> StateWrite {
    let mut payload = [0; 1 + HOME_BYTES];
    payload[0] = 1;
    payload[1..3].copy_from_slice(&home.rack.0.to_le_bytes());
    payload[3] = home.role as u8;
    payload[4] = home.tier;
    payload[5..9].copy_from_slice(&home.frame.0.to_le_bytes());
    payload[9..13].copy_from_slice(&home.region.to_le_bytes());
    payload[13..21].copy_from_slice(&home.version.0.to_le_bytes());
    seal(Table::Pages, page_key(page), &payload)
}

pub(super) fn read<T: DeserializeOwned>(
    table: Table,
    key: &[u8],
    value: &[u8],
) -> Result<T, StateError> {
    let payload = open(table, key, value)?;
    match postcard::take_from_bytes::<T>(payload) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(damaged(table, "a record with bytes too many")),
        Err(error) => Err(damaged(table, error.to_string())),
    }
}

pub(super) fn read_page(key: &[u8], value: &[u8]) -> Result<(PageId, StoredHome), StateError> {
    let page = parse_page_key(key)?;
    let payload = open(Table::Pages, key, value)?;
    let wrong = |what: &str| damaged(Table::Pages, format!("page {page}: {what}"));
    let (&count, homes) = payload.split_first().ok_or_else(|| wrong("no homes"))?;
    if count == 0 || count > PAGE_HOMES_MAX || homes.len() != usize::from(count) * HOME_BYTES {
        return Err(wrong("not 1 to 3 homes"));
    }
    let home: &[u8; HOME_BYTES] = homes.try_into().map_err(|_| wrong("more than one home"))?;
    if home[2] != Role::Primary as u8 {
        return Err(wrong("a home of an unknown role"));
    }
    let field4 =
        |at: usize| u32::from_le_bytes([home[at], home[at + 1], home[at + 2], home[at + 3]]);
    let home = StoredHome {
        rack: RackId(u16::from_le_bytes([home[0], home[1]])),
        role: Role::Primary,
        tier: home[3],
        frame: FrameIndex(field4(4)),
        region: field4(8),
        version: Generation(u64::from(field4(16)) << 32 | u64::from(field4(12))),
    };
    Ok((page, home))
}

pub(super) fn write_root(name: &str, addr: GAddr) -> StateWrite {
    write(Table::Roots, name.as_bytes().to_vec(), &addr)
}

fn seal(table: Table, key: Vec<u8>, payload: &[u8]) -> StateWrite {
    let mut value = Vec::with_capacity(1 + payload.len() + CHECK_BYTES);
    value.push(RECORD_VERSION);
    value.extend_from_slice(payload);
    let check = checksum(table, &key, &value);
    value.extend_from_slice(&check);
    StateWrite { table, key, value: Some(value) }
}

/// The payload of a value, if its checksum and version are right.
fn open<'v>(table: Table, key: &[u8], value: &'v [u8]) -> Result<&'v [u8], StateError> {
    let short = || damaged(table, format!("a value of {} bytes", value.len()));
    let cut = value.len().checked_sub(CHECK_BYTES).ok_or_else(short)?;
    let (body, check) = value.split_at(cut);
    if checksum(table, key, body) != check {
        return Err(damaged(table, format!("wrong checksum of key {key:02x?}")));
    }
    let (&version, payload) = body.split_first().ok_or_else(short)?;
    if version != RECORD_VERSION {
        return Err(StateError::Version { found: version, supported: RECORD_VERSION });
    }
    Ok(payload)
}

/// The lower half of a hash over table, key and body.
fn checksum(table: Table, key: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let seed = xxh3_64_with_seed(key, table as u64);
    let [a, b, c, d, ..] = xxh3_64_with_seed(body, seed).to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> StoredHome {
        StoredHome {
            rack: RackId(3),
            role: Role::Primary,
            tier: 1,
            frame: FrameIndex(u32::MAX - 7),
            region: 9,
            version: Generation(0x0123_4567_89ab_cdef),
        }
    }

    #[test]
    fn a_page_survives_its_stored_form_of_26_bytes() {
        let write = write_page(PageId(77), &home());
        let value = write.value.unwrap();
        assert_eq!(value.len(), 26);
        assert_eq!(read_page(&write.key, &value).unwrap(), (PageId(77), home()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let write = write_page(PageId(77), &home());
        let value = write.value.unwrap();
        for bit in 0..value.len() * 8 {
            let mut bad = value.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_page(&write.key, &bad).is_err(), "bit {bit}");
        }
        for len in 0..value.len() {
            assert!(read_page(&write.key, &value[..len]).is_err(), "{len} bytes");
        }
        assert!(read_page(&page_key(PageId(78)), &value).is_err(), "under another key");
    }

    #[test]
    fn a_later_version_is_refused_by_name() {
        let mut body = vec![RECORD_VERSION + 1, 1, 2, 3];
        let check = checksum(Table::Roots, b"name", &body);
        body.extend_from_slice(&check);
        let error = read::<GAddr>(Table::Roots, b"name", &body).unwrap_err();
        let supported = RECORD_VERSION;
        assert_eq!(error, StateError::Version { found: RECORD_VERSION + 1, supported });
    }
}
