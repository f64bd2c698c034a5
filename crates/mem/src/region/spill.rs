//! What a user writes to say where a rack's pages go that are not in memory: `PATH?size=4G`. Text
//! in, a checked [`SpillSpec`] out; nothing is opened here.

use super::shards::with_shard;
use super::spec::{MemorySpec, SpecError, parse_path, parse_size};
use std::path::PathBuf;
use std::str::FromStr;

/// A spill file as the user asked for it.
///
/// ```
/// use rackpool_mem::region::SpillSpec;
/// let spec: SpillSpec = "/var/lib/rackpool/rack0.spill?size=4G".parse()?;
/// assert_eq!(spec.size_bytes, 4 << 30);
/// assert!("/var/lib/rackpool/rack0.spill".parse::<SpillSpec>().is_err());
/// # Ok::<(), rackpool_mem::region::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillSpec {
    pub path: PathBuf,
    /// Bytes of pages that it holds; the file is longer by a header for each.
    pub size_bytes: u64,
}

impl SpillSpec {
    /// The file of one of `shards` equal parts of a rack's memory.
    pub fn shard(&self, shard: u16, shards: u16) -> SpillSpec {
        if shards <= 1 {
            return self.clone();
        }
        let path = with_shard(&self.path, shard);
        SpillSpec { path, size_bytes: self.size_bytes / u64::from(shards) }
    }

    /// Memory with the slots of this file behind it.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] for memory that cannot have any, or a file that holds no page.
    pub fn behind(&self, memory: MemorySpec) -> Result<MemorySpec, SpecError> {
        let bad = |value: String, allowed| SpecError::BadValue { key: "spill", value, allowed };
        if memory.huge.is_some() || memory.touch {
            let allowed = "a spill file is for memory without huge= and touch=1";
            return Err(bad(memory.to_string(), allowed));
        }
        let slots = self.size_bytes / memory.geometry().page_bytes();
        let slots = u32::try_from(slots).ok().filter(|slots| *slots > 0);
        let allowed = "a size of one page and more, of frames that can be counted";
        let slots = slots.ok_or_else(|| bad(self.size_bytes.to_string(), allowed))?;
        Ok(MemorySpec { slots, ..memory })
    }
}

impl FromStr for SpillSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let bad = || SpecError::BadValue {
            key: "spill",
            value: text.to_owned(),
            allowed: "PATH?size=SIZE, such as /var/lib/rackpool/rack0.spill?size=4G",
        };
        let (path, size) = text.split_once("?size=").ok_or_else(bad)?;
        Ok(SpillSpec { path: parse_path(path)?, size_bytes: parse_size("size", size)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<SpillSpec, SpecError> {
        text.parse()
    }

    #[test]
    fn a_file_has_a_path_and_a_size() {
        for wrong in ["", "/a", "a?size=1G", "/a?size=", "/a?size=0", "/a?pages=4K", "/a/?size=1G"]
        {
            assert!(spec(wrong).is_err(), "{wrong}");
        }
        let whole = spec("/a/b?size=4G").unwrap();
        let part = whole.shard(1, 2);
        assert_eq!(part.path.to_str(), Some("/a/b.shard-1"));
        assert_eq!((part.size_bytes, whole.shard(0, 1)), (2 << 30, whole));
    }

    #[test]
    fn slots_are_frames_behind_the_memory() {
        let file = spec("/a?size=2G").unwrap();
        let memory: MemorySpec = "heap:256M".parse().unwrap();
        let both = file.behind(memory.clone()).unwrap();
        assert_eq!(both.layout().unwrap().frame_count, 128 + 1024);
        let tiers = both.tiers(128 + 1024).unwrap();
        assert_eq!(tiers.spill().map(|slots| slots.frames()), Some(128..1152));
        for wrong in ["shm:/dev/shm/a?size=1G&huge=2M", "heap:1G?touch=1"] {
            assert!(file.behind(wrong.parse().unwrap()).is_err(), "{wrong}");
        }
        assert!(spec("/a?size=1M").unwrap().behind(memory).is_err(), "less than a page");
    }
}
