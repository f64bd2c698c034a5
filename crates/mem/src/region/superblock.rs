//! Reading a superblock that another program, another release or a torn write may have left.
//! Bytes in, a checked [`Superblock`] and its [`RegionLayout`] or a typed error out. Nothing is
//! written here: the daemon's engine formats, [`super::RegionFiles`] publishes.
//!
//! Source: DESIGN §2 (superblock).

use super::error::{RegionError, Result};
use super::memory_bytes;
use super::spec::{MemorySpec, size_text};
use rackpool_core::PageGeometry;
use rackpool_core::constants::{SESSIONS_MAX, SLOTS_MAX};
use rackpool_core::layout::{FEATURES, LAYOUT_VERSION, MAGIC, RegionLayout, Superblock};
use rackpool_core::tier::{TierRange, Tiers};
use std::path::Path;
use zerocopy::FromBytes;

pub(super) const SUPERBLOCK_BYTES: usize = size_of::<Superblock>();

/// Checks everything that can be checked without the rest of the region.
pub(super) fn check(
    bytes: &[u8; SUPERBLOCK_BYTES],
    path: &Path,
) -> Result<(Superblock, RegionLayout)> {
    let bad = |reason: String| RegionError::BadSuperblock { path: path.to_owned(), reason };
    let block = Superblock::read_from_bytes(bytes).expect("the array has the block's size");
    if block.magic != MAGIC {
        return Err(bad("it does not begin with \"rackpool\", so it is no region".to_owned()));
    }
    // Before the version: a torn version word must not send the user to another release.
    let checksum = block.checksum_of();
    if block.checksum != checksum {
        return Err(bad(format!(
            "the superblock is torn: its checksum is {:#018x}, its bytes have {checksum:#018x}",
            block.checksum
        )));
    }
    if block.version != LAYOUT_VERSION {
        return Err(RegionError::OtherVersion {
            path: path.to_owned(),
            found: block.version,
            supported: LAYOUT_VERSION,
        });
    }
    let unknown = block.features & !FEATURES;
    if unknown != 0 {
        return Err(bad(format!("it needs features {unknown:#x}, which are unknown")));
    }
    if (block.sessions, block.slots) != (SESSIONS_MAX, SLOTS_MAX) {
        return Err(bad(format!(
            "it has {} sessions and {} slots, this program {SESSIONS_MAX} and {SLOTS_MAX}",
            block.sessions, block.slots
        )));
    }
    let pages = PageGeometry::new(block.page_shift)
        .ok_or_else(|| bad(format!("its page size is 2 to the {}", block.page_shift)))?;
    let frame_count = u32::try_from(block.frame_count)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| bad(format!("it has {} frames", block.frame_count)))?;
    Ok((block, RegionLayout { pages, frame_count }))
}

/// The memories that a superblock says.
pub(super) fn tiers_of(block: &Superblock, path: &Path) -> Result<Tiers> {
    block.tiers().ok_or_else(|| RegionError::BadSuperblock {
        path: path.to_owned(),
        reason: format!("its memories make no sense: {:x?}", block.tiers),
    })
}

/// Checks that a region is what the user asked for, in as far as they asked.
pub(super) fn check_geometry(
    block: &Superblock,
    found: RegionLayout,
    asked: &MemorySpec,
    path: &Path,
) -> Result<()> {
    let other = |what, found: String, asked: String| {
        Err(RegionError::OtherGeometry { path: path.to_owned(), what, found, asked })
    };
    let found_page_bytes = found.pages.page_bytes();
    let tiers = tiers_of(block, path)?;
    if !asked.numa.is_empty() && asked.tiers(found.frame_count)? != tiers {
        let frames = |tiers: &Tiers| match tiers.ranges() {
            [] => "one memory".to_owned(),
            ranges => {
                let one = |range: &TierRange| format!("{}:{}", range.node, range.frame_count);
                format!("{} frames", ranges.iter().map(one).collect::<Vec<_>>().join(","))
            }
        };
        return other("numa", frames(&tiers), frames(&asked.tiers(found.frame_count)?));
    }
    let slots = tiers.spill().map_or(0, |slots| slots.frame_count);
    if slots != asked.slots {
        let text = |slots: u32| size_text(u64::from(slots) * found_page_bytes);
        return other("a spill file of", text(slots), text(asked.slots));
    }
    let memory_bytes = memory_bytes(&found, slots);
    match (asked.pages, asked.size_bytes, asked.coherence) {
        (Some(pages), ..) if pages != found.pages => {
            other("pages", size_text(found_page_bytes), size_text(pages.page_bytes()))
        }
        (_, Some(size), _) if size != memory_bytes => {
            other("size", size_text(memory_bytes), size_text(size))
        }
        (.., Some(asked)) if asked != block.coherence() => {
            other("coherence", block.coherence().to_string(), asked.to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::coherence::Coherence;
    use zerocopy::IntoBytes;

    fn block() -> Superblock {
        Superblock {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            page_shift: 21,
            reserved_0: 0,
            rack: 1,
            region_id: [1, 2],
            frame_count: 512,
            features: 0,
            sessions: SESSIONS_MAX,
            slots: SLOTS_MAX,
            tiers: [0; 4],
            reserved: [0; 4],
            checksum: 0,
        }
    }

    fn checked(change: impl Fn(&mut Superblock)) -> Result<(Superblock, RegionLayout)> {
        let mut block = block();
        change(&mut block);
        block.checksum = block.checksum_of();
        check(block.as_bytes().try_into().unwrap(), Path::new("x.meta"))
    }

    #[test]
    fn a_good_superblock_tells_the_layout() {
        let (_, layout) = checked(|_| ()).unwrap();
        assert_eq!((layout.frame_count, layout.pages.page_bytes()), (512, 2 << 20));
    }

    #[test]
    fn every_flipped_bit_is_found_and_never_taken_for_another_release() {
        let mut block = block();
        block.checksum = block.checksum_of();
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut bytes: [u8; SUPERBLOCK_BYTES] = block.as_bytes().try_into().unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let result = check(&bytes, Path::new("x.meta"));
            assert!(matches!(result, Err(RegionError::BadSuperblock { .. })), "bit {bit}");
        }
    }

    #[test]
    fn what_this_release_cannot_serve_is_refused_by_name() {
        let error = checked(|block| block.version = 9).unwrap_err();
        assert!(matches!(error, RegionError::OtherVersion { found: 9, .. }), "{error}");
        for (change, expected) in [
            ((|block| block.magic = 0) as fn(&mut Superblock), "does not begin with"),
            (|block| block.features = 4, "features 0x4"),
            (|block| block.sessions += 1, "sessions"),
            (|block| block.slots = 0, "slots"),
            (|block| block.page_shift = 63, "page size is 2 to the 63"),
            (|block| block.frame_count = 0, "0 frames"),
            (|block| block.frame_count = 1 << 32, "4294967296 frames"),
        ] {
            let error = checked(change).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn another_geometry_than_asked_for_is_refused_and_an_open_one_taken() {
        let (block, layout) = checked(|_| ()).unwrap();
        let path = Path::new("x.meta");
        for text in [
            "shm:/x",
            "shm:/x?size=1G",
            "shm:/x?pages=2M",
            "shm:/x?size=1G&pages=2M",
            "shm:/x?coherence=hardware",
        ] {
            check_geometry(&block, layout, &text.parse().unwrap(), path).unwrap();
        }
        for (text, expected) in [
            ("shm:/x?size=2G", "has size 1G, asked for is 2G"),
            ("shm:/x?size=1G&pages=4K", "has pages 2M, asked for is 4K"),
            ("shm:/x?coherence=software", "has coherence hardware, asked for is software"),
        ] {
            let error = check_geometry(&block, layout, &text.parse().unwrap(), path).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_region_says_its_memories_and_others_are_refused() {
        let one = checked(|_| ()).unwrap();
        let two = checked(|block| block.tiers = [384, 1 << 32 | 128, 0, 0]).unwrap();
        let check = |(block, layout): (Superblock, RegionLayout), text: &str| {
            check_geometry(&block, layout, &text.parse().unwrap(), Path::new("x.meta"))
        };
        for text in ["shm:/x", "shm:/x?numa=1"] {
            check(one, text).unwrap();
        }
        for text in ["shm:/x", "shm:/x?numa=0:3,1:1", "shm:/x?size=1G&numa=0:6,1:2"] {
            check(two, text).unwrap();
        }
        for (found, text, expected) in [
            (one, "shm:/x?numa=0:3,1:1", "has numa one memory, asked for is 0:384,1:128 frames"),
            (two, "shm:/x?numa=0", "has numa 0:384,1:128 frames, asked for is one memory"),
            (two, "shm:/x?numa=0:1,1:1", "asked for is 0:256,1:256 frames"),
        ] {
            let error = check(found, text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let (block, layout) = checked(|block| block.tiers = [384, 0, 0, 0]).unwrap();
        let error = check((block, layout), "shm:/x").unwrap_err().to_string();
        assert!(error.contains("memories make no sense"), "{error}");
    }

    #[test]
    fn a_region_says_who_keeps_its_hosts_caches_in_agreement() {
        assert_eq!(checked(|_| ()).unwrap().0.coherence(), Coherence::Hardware);
        let (block, layout) = checked(|block| block.features = 1).unwrap();
        assert_eq!(block.coherence(), Coherence::Software);
        let check = |text: &str| {
            check_geometry(&block, layout, &text.parse().unwrap(), Path::new("x.meta"))
        };
        check("dax:/x").unwrap();
        check("dax:/x?coherence=software").unwrap();
        let error = check("dax:/x?coherence=hardware").unwrap_err().to_string();
        assert!(error.contains("has coherence software, asked for is hardware"), "{error}");
    }
}
