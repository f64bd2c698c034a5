//! What a log behind a cache's memory says of an item beside key and value: its flags, its cas,
//! when it expires by the wall clock, and two bits; and the log's errors in the cache's words.

use crate::cache::{Error, KeptItem, KeptWith, LeavingItem};
use rackpool_flash::{FlashItem, FlashRecord};

/// Of the kind of a record: as [`KeptWith::is_wall`] and [`KeptWith::has_binary_key`].
const IS_WALL: u8 = 1;
const HAS_BINARY_KEY: u8 = 2;

pub(crate) fn record_of<'a>(item: &LeavingItem<'a>) -> FlashRecord<'a> {
    let &LeavingItem { hash, key, value, with } = item;
    let KeptWith { flags, cas, expires_at: expires, is_wall, has_binary_key } = with;
    let is_wall = if is_wall { IS_WALL } else { 0 };
    let kind = is_wall | if has_binary_key { HAS_BINARY_KEY } else { 0 };
    FlashRecord { hash, key, value, flags, kind, expires, cas }
}

pub(crate) fn kept(item: FlashItem) -> KeptItem {
    let FlashItem { value, flags, kind, expires, cas, version } = item;
    let (is_wall, has_binary_key) = (kind & IS_WALL != 0, kind & HAS_BINARY_KEY != 0);
    let with = KeptWith { flags, cas, expires_at: expires, is_wall, has_binary_key };
    KeptItem { value, with, version }
}

pub(crate) fn refused(error: rackpool_flash::Error) -> Error {
    use rackpool_flash::Error as Refused;
    match error {
        Refused::Full { bytes } => Error::StoreFull { stored_bytes: bytes },
        Refused::TooLarge { bytes, max_bytes } => {
            Error::TooLarge { bytes: bytes as u64, max_bytes: max_bytes as u64 }
        }
        other => Error::Store { reason: other.to_string() },
    }
}
