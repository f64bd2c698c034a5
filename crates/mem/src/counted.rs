//! What this process counts that ended nothing and belongs to no single server in it: told by the
//! metrics of all of them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static DISK_FULL: AtomicU64 = AtomicU64::new(0);

/// Notes why something could not be written, made or grown: whether a disk, or the share of it that
/// is ours, is full.
pub fn note_io(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let is_full = matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge);
    if is_full {
        // Relaxed: a number for people.
        DISK_FULL.fetch_add(1, Ordering::Relaxed);
    }
    is_full
}

/// How often a disk was full.
pub fn disk_full() -> u64 {
    // Relaxed: as above.
    DISK_FULL.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_counted_and_nothing_else() {
        let before = disk_full();
        for errno in [28, 122, 27] {
            assert!(note_io(&io::Error::from_raw_os_error(errno)));
        }
        assert!(!note_io(&io::Error::from_raw_os_error(5)));
        assert_eq!(disk_full(), before + 3);
    }
}
