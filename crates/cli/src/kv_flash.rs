//! `rackpool kv --flash`: items that leave memory go to a file or block device and come back. In:
//! what the option says. Out: the log, and a cache with it behind its memory.

use crate::failure::{Failure, Result};
use crate::values::{parse_mode, parse_size};
use rackpool_cache::Cache;
use rackpool_cache::flash_tier::FlashTier;
use rackpool_flash::{Error, Flash, FlashAdmission, FlashRecovered, Options};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tracing::{info, warn};

/// `PATH?size=BYTES`, and what may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashArgs {
    path: PathBuf,
    bytes: u64,
    /// Whether it has all items, and a change is answered when it is durable.
    pub is_store: bool,
    /// Also items that leave for the first time and were never asked for.
    admits_all: bool,
    /// Memory of its index; 0: what fits.
    index_bytes: u64,
}

pub fn parse_flash(text: &str) -> Result<FlashArgs, String> {
    let wrong = || {
        format!(
            "`{text}` is not PATH?size=BYTES[&mode=cache|store][&admit=all|again][&index=BYTES]"
        )
    };
    let (path, options) = text.rsplit_once('?').ok_or_else(wrong)?;
    let (mut bytes, mut admits_all, mut index_bytes, mut is_store) = (None, false, 0, false);
    for option in options.split('&') {
        match option.split_once('=').ok_or_else(wrong)? {
            ("size", value) => bytes = Some(parse_size(value)?),
            ("mode", value) => is_store = parse_mode(value).ok_or_else(wrong)?,
            ("admit", "all") => admits_all = true,
            ("admit", "again") => admits_all = false,
            ("index", value) => index_bytes = parse_size(value)?,
            _ => return Err(wrong()),
        }
    }
    let bytes = bytes.filter(|_| !path.is_empty()).ok_or_else(wrong)?;
    Ok(FlashArgs { path: path.into(), bytes, is_store, admits_all, index_bytes })
}

/// Opens the log, or makes it; reads all of it. A new one has this seed.
pub fn open(args: &FlashArgs, seed: u64) -> Result<Arc<Flash>> {
    let admission = FlashAdmission { rejects_first: !args.admits_all, ..FlashAdmission::default() };
    let options = Options::new(&args.path, args.bytes);
    let (is_store, index_bytes) = (args.is_store, args.index_bytes);
    let options = Options { is_store, admission, seed, index_bytes, ..options };
    let (flash, found) = Flash::open(options).map_err(failure)?;
    let FlashRecovered { is_new, is_dropped, items, dropped_regions, .. } = found;
    let path = args.path.display();
    if is_dropped {
        let why = "the last process did not end in order, and this is another boot";
        warn!(target: "kv", "{path}: begins empty: {why}, or its journal is gone");
    } else if !is_new {
        info!(target: "kv", "{path}: {items} items found");
    }
    if dropped_regions > 0 {
        let what = format!("{dropped_regions} regions were dropped");
        warn!(target: "kv", "{path}: {what}: one after them is damaged");
    }
    let memory = flash.stats().index_bytes;
    let what = format!("{path}: {} bytes", args.bytes);
    info!(target: "kv", "{what}, up to {memory} bytes of memory for its index");
    Ok(Arc::new(flash))
}

/// A cache with the log behind its memory.
pub fn behind(cache: Cache, flash: &Arc<Flash>) -> Cache {
    cache.with_backing(Arc::new(FlashTier::new(Arc::clone(flash))))
}

/// Ends the log in order, and says what it has done.
pub fn close(flash: &Flash) {
    flash.close();
    let stats = flash.stats();
    let (items, bytes, written) = (stats.admitted, stats.admitted_bytes, stats.written_bytes);
    let what = format!("flash: {items} items of {bytes} bytes taken, {written} bytes written");
    let (hits, dropped, refused) = (stats.hits, stats.dropped, stats.refused);
    info!(target: "kv", "{what}, {hits} came back, {refused} refused, {dropped} dropped");
    let (reads, writes) = (stats.read_errors + stats.damaged, stats.write_errors);
    if reads + writes > 0 {
        let what = format!("flash: {reads} reads and {writes} writes have failed");
        warn!(target: "kv", "{what}, {} regions are not used any more", stats.retired_regions);
    }
}

fn failure(error: Error) -> Failure {
    let code = match &error {
        Error::BadOption { .. } => return Failure::usage(error.to_string()),
        Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => "full",
        Error::Foreign { .. } | Error::Geometry { .. } | Error::Damaged { .. } => "corrupt",
        _ => "io",
    };
    Failure::new(code, format!("--flash: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_a_size_and_what_is_not_known_is_refused() {
        let plain = parse_flash("/flash/a?b?size=8G").unwrap();
        let wanted = FlashArgs {
            path: "/flash/a?b".into(),
            bytes: 8 << 30,
            is_store: false,
            admits_all: false,
            index_bytes: 0,
        };
        assert_eq!(plain, wanted);
        let more = parse_flash("/flash/a?b?size=8G&admit=all&index=1M").unwrap();
        assert_eq!(more, FlashArgs { admits_all: true, index_bytes: 1 << 20, ..wanted.clone() });
        let store = parse_flash("/flash/a?b?size=8G&mode=store").unwrap();
        assert_eq!(store, FlashArgs { is_store: true, ..wanted });
        for wrong in ["a", "a?", "a?size", "a?size=x", "?size=1G", "a?admit=all", "a?size=1G&b=c"] {
            assert!(parse_flash(wrong).is_err(), "{wrong}");
        }
    }
}
