//! The files of a cache: what they have already, and whether there is room for them.

use crate::failure::{Failure, Result};
use crate::kv_args::KvArgs;
use rackpool_stats::format::Unit;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the files of a cache have since its last time: it is ours already.
pub fn kept_bytes(args: &KvArgs) -> u64 {
    let kept = |path: &Path| path.metadata().map_or(0, |found| found.blocks() * 512);
    args.warm.as_ref().map_or(0, |path| kept(path) + kept(&values_path(path)))
}

/// Refuses a file that its file system has no room for, such as a container's /dev/shm; `kept`
/// bytes of it are there.
pub fn check_file_system(path: &Path, wanted: u64, kept: u64) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(parent);
    let found = found.map_err(|error| Failure::file(path, &error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // One without blocks has no limit of its own.
    if found.f_blocks > 0 && wanted > free.saturating_add(kept) {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        let (asked, there, parent) = (show(wanted), show(free), parent.display());
        let what = format!("{asked} are asked for, and {parent} has {there} free");
        return Err(Failure::new("full", what)
            .with_hint("give less to --memory, or make the file elsewhere"));
    }
    Ok(())
}

/// The file for long values beside that of the cache.
pub fn values_path(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".values");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_file_that_its_file_system_has_no_room_for_is_refused_and_what_it_has_counts() {
        let path = Path::new("warm");
        let refused = check_file_system(path, 1 << 60, 0).unwrap_err();
        assert_eq!(refused.code(), "full");
        assert!(check_file_system(path, 1 << 60, 1 << 60).is_ok());
        assert!(check_file_system(path, 1, 0).is_ok());
    }
}
