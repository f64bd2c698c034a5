//! `rackpool inspect`: what a region's files say, without its daemon. Reads the private section
//! once and changes nothing; every number in it is checked before it is used as an offset.

use crate::args::InspectArgs;
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_core::addr::PageGeometry;
use rackpool_core::constants::{SESSIONS_MAX, SLAB_SHIFT_MIN};
use rackpool_core::copies::{COPIES, agree, places, vote};
use rackpool_core::layout::{
    AllocationKind, FRAME_BYTES, FRAMES_OFFSET, FrameState, FrameWord, LAYOUT_VERSION, MAGIC,
    RegionLayout, STATE_OFFSET, SUPERBLOCK_OFFSET, SessionWord, StateWord, Superblock, frame_word,
    session_word,
};
use rackpool_core::tier::TierRange;
use rackpool_core::{FrameIndex, RackId};
use rackpool_mem::region::other_version;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of frame entries that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A region as its files describe it.
#[derive(Debug, Serialize)]
struct Region {
    region: String,
    version: u32,
    rack: RackId,
    region_id: String,
    page_bytes: u64,
    frames: u64,
    /// Of a region with several memories, nearest first.
    tiers: Vec<TierRange>,
    /// Frames behind those of the memories: they are in a spill file.
    slots: u32,
    features: u64,
    epoch: u64,
    frames_high: u64,
    generation_next: u64,
    page_id_next: u64,
    page_id_end: u64,
    frames_home: u64,
    frames_slab: u64,
    frames_pending: u64,
    frames_freeing: u64,
    frames_moving: u64,
    frames_unknown: u64,
    /// What lives in frames of the state `home`, as `fsck` counts it.
    kinds: BTreeMap<&'static str, OfKind>,
    /// Words of which one copy is wrong: the next daemon repairs them.
    words_differing: u64,
    /// Words of which no two copies agree: what they are about is lost.
    words_damaged: u64,
    sessions: u64,
    pages_bytes: u64,
    pages_backed_bytes: u64,
    private_backed_bytes: u64,
}

/// The allocations of a kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
struct OfKind {
    frames: u64,
    allocations: u64,
    /// As they take them: size classes and whole pages.
    bytes: u64,
}

/// Prints what is in a region.
pub fn run(args: &InspectArgs) -> Result<()> {
    let region = inspect(&path_of(&args.region)?)?;
    let text = if args.json {
        output::json(&region)?
    } else {
        let value = serde_json::to_value(&region).expect("plain numbers and texts");
        crate::shell::flat(&value)
    };
    output::print(&format!("{text}\n"))
}

/// The path in a memory specification, or a plain path.
fn path_of(text: &str) -> Result<PathBuf> {
    if text.starts_with("dax:") || text.starts_with("heap") {
        let message = format!("`{text}` has no files; a region in shm: does");
        return Err(Failure::usage(message));
    }
    let path = text.strip_prefix("shm:").unwrap_or(text);
    let path = path.split('?').next().unwrap_or(path);
    Ok(PathBuf::from(path.strip_suffix(".meta").unwrap_or(path)))
}

fn inspect(path: &Path) -> Result<Region> {
    let mut meta_path = path.as_os_str().to_owned();
    meta_path.push(".meta");
    let meta_path = PathBuf::from(meta_path);
    let meta = File::open(&meta_path).map_err(|error| {
        Failure::file(&meta_path, &error).with_hint("give the path that the daemon's --memory has")
    })?;
    let block = superblock(&meta, &meta_path)?;
    let bad = |reason: String| Failure::new("bad-region", reason);
    let pages = PageGeometry::new(block.page_shift)
        .ok_or_else(|| bad(format!("pages of 2^{} bytes are not possible", block.page_shift)))?;
    let frame_count = u32::try_from(block.frame_count)
        .map_err(|_| bad(format!("{} frames are not possible", block.frame_count)))?;
    let tiers = block.tiers().ok_or_else(|| bad("its memories make no sense".into()))?;
    let layout = RegionLayout { pages, frame_count };
    let word = |state: StateWord| word_at(&meta, &meta_path, state.offset());
    let high = word(StateWord::FramesHigh)?;
    let frames = count_frames(&meta, &meta_path, &layout, high.min(block.frame_count))?;
    let (words_differing, words_damaged) =
        compare(&meta, &meta_path, &layout, high.min(block.frame_count))?;
    let backed = |file: Result<std::fs::Metadata, _>| file.map_or(0, |file| file.blocks() * 512);
    Ok(Region {
        region: path.display().to_string(),
        version: block.version,
        rack: RackId(block.rack),
        region_id: format!("{:016x}{:016x}", block.region_id[0], block.region_id[1]),
        page_bytes: pages.page_bytes(),
        frames: block.frame_count,
        tiers: tiers.memories().to_vec(),
        slots: tiers.spill().map_or(0, |slots| slots.frame_count),
        features: block.features,
        epoch: word(StateWord::Epoch)?,
        frames_high: high,
        generation_next: word(StateWord::GenerationNext)?,
        page_id_next: word(StateWord::PageIdNext)?,
        page_id_end: word(StateWord::PageIdEnd)?,
        frames_home: frames.home,
        frames_slab: frames.slab,
        frames_pending: frames.pending,
        frames_freeing: frames.freeing,
        frames_moving: frames.moving,
        frames_unknown: frames.unknown,
        kinds: AllocationKind::ALL.iter().map(|kind| kind.name()).zip(frames.kinds).collect(),
        words_differing,
        words_damaged,
        sessions: count_sessions(&meta, &meta_path, block.sessions)?,
        pages_bytes: u64::from(tiers.memory_frames(frame_count)) * pages.page_bytes(),
        pages_backed_bytes: backed(std::fs::metadata(path)),
        private_backed_bytes: backed(meta.metadata()),
    })
}

fn superblock(meta: &File, path: &Path) -> Result<Superblock> {
    let mut bytes = [0; size_of::<Superblock>()];
    read_at(meta, path, SUPERBLOCK_OFFSET, &mut bytes)?;
    let block = Superblock::read_from_bytes(&bytes).expect("the buffer has the block's size");
    let bad =
        |reason: &str| Err(Failure::new("bad-region", format!("{}: {reason}", path.display())));
    if block.magic != MAGIC {
        return bad("this is no region: it does not begin with `rackpool`");
    }
    if block.version != LAYOUT_VERSION {
        let (found, ours) = (block.version, LAYOUT_VERSION);
        let reason = format!("layout version {found}, this program reads {ours}");
        let failure = Failure::new("version", format!("{}: {reason}", path.display()));
        return Err(failure.with_hint(other_version(path)));
    }
    if block.checksum != block.checksum_of() {
        return bad("the superblock is damaged: its checksum does not match");
    }
    Ok(block)
}

#[derive(Default)]
struct Frames {
    home: u64,
    slab: u64,
    pending: u64,
    freeing: u64,
    moving: u64,
    unknown: u64,
    /// By number of the kind.
    kinds: [OfKind; AllocationKind::ALL.len()],
}

fn count_frames(meta: &File, path: &Path, layout: &RegionLayout, count: u64) -> Result<Frames> {
    let entry_words = (FRAME_BYTES / 8) as usize;
    let in_chunk = CHUNK_BYTES as u64 / FRAME_BYTES;
    let mut frames = Frames::default();
    let mut first = 0;
    while first < count {
        let here = (count - first).min(in_chunk);
        let index = FrameIndex(u32::try_from(first).expect("frame counts have 32 bits"));
        let offset = frame_word(index, FrameWord::Page);
        let words = voted(meta, path, layout, offset, here * FRAME_BYTES)?;
        for (frame, entry) in (index.0..).zip(words.chunks_exact(entry_words)) {
            let Some(state) = entry[FrameWord::State as usize] else {
                frames.unknown += 1;
                continue;
            };
            if let Some((shift, kind)) = frames.add(state, layout) {
                let offset = layout.bitmap_offset(FrameIndex(frame));
                let bytes = (layout.pages.page_bytes() >> shift).div_ceil(64) * 8;
                let bitmap = voted(meta, path, layout, offset, bytes)?;
                let live: u32 = bitmap.iter().flatten().map(|word| word.count_ones()).sum();
                frames.kinds[kind].allocations += u64::from(live);
                frames.kinds[kind].bytes += u64::from(live) << shift;
            }
        }
        first += here;
    }
    Ok(frames)
}

/// Words as most of their copies say them, `None` where no two agree.
fn voted(
    meta: &File,
    path: &Path,
    layout: &RegionLayout,
    offset: u64,
    bytes: u64,
) -> Result<Vec<Option<u64>>> {
    let mut copies = vec![vec![0; bytes as usize]; COPIES as usize];
    for (place, copy) in places(layout.private_bytes(), offset).into_iter().zip(&mut copies) {
        read_at(meta, path, place, copy)?;
    }
    let raw = |copy: usize, at: usize| {
        u64::from_le_bytes(copies[copy][at..at + 8].try_into().expect("eight bytes"))
    };
    let words = (0..bytes as usize).step_by(8);
    Ok(words.map(|at| vote([raw(0, at), raw(1, at), raw(2, at)])).collect())
}

impl Frames {
    /// Of a page of objects: the shift of their size, and the number of their kind.
    fn add(&mut self, word: u64, layout: &RegionLayout) -> Option<(u8, usize)> {
        let [state, shift, ..] = word.to_le_bytes();
        let kind = (word >> 17 & 7) as usize;
        match FrameState::from_byte(state) {
            Some(FrameState::Free) => {}
            Some(FrameState::Pending) => self.pending += 1,
            Some(FrameState::Freeing) => self.freeing += 1,
            Some(FrameState::Arriving | FrameState::Departing | FrameState::Gone) => {
                self.moving += 1;
            }
            Some(FrameState::Home) if kind < self.kinds.len() => {
                self.home += 1;
                self.slab += u64::from(shift != 0);
                let of_kind = &mut self.kinds[kind];
                of_kind.frames += 1;
                if (SLAB_SHIFT_MIN..layout.pages.page_shift()).contains(&shift) {
                    return Some((shift, kind));
                }
                of_kind.allocations += word >> 16 & 1;
                of_kind.bytes += layout.pages.page_bytes();
            }
            Some(FrameState::Home) | None => self.unknown += 1,
        }
        None
    }
}

/// Words up to the last frame entry in use of which one copy is wrong, and of which two are.
fn compare(meta: &File, path: &Path, layout: &RegionLayout, frames: u64) -> Result<(u64, u64)> {
    let (mut differing, mut damaged) = (0, 0);
    let mut copies = vec![vec![0; CHUNK_BYTES]; COPIES as usize];
    let (mut at, end) = (STATE_OFFSET, FRAMES_OFFSET + FRAME_BYTES * frames);
    while at < end {
        let here = CHUNK_BYTES.min((end - at) as usize);
        for (place, copy) in places(layout.private_bytes(), at).into_iter().zip(&mut copies) {
            read_at(meta, path, place, &mut copy[..here])?;
        }
        for word in (0..here).step_by(8) {
            let raw = |copy: usize| {
                let bytes = copies[copy][word..word + 8].try_into();
                u64::from_le_bytes(bytes.expect("eight bytes"))
            };
            let raw = [raw(0), raw(1), raw(2)];
            let (differs, is_lost) = (!agree(raw), vote(raw).is_none());
            differing += u64::from(differs && !is_lost);
            damaged += u64::from(is_lost);
        }
        at += here as u64;
    }
    Ok((differing, damaged))
}

fn count_sessions(meta: &File, path: &Path, sessions: u32) -> Result<u64> {
    let mut used = 0;
    for record in 0..sessions.min(SESSIONS_MAX) {
        let session = word_at(meta, path, session_word(record, SessionWord::Session))?;
        used += u64::from(session != 0);
    }
    Ok(used)
}

fn word_at(meta: &File, path: &Path, offset: u64) -> Result<u64> {
    let mut word = 0u64;
    read_at(meta, path, offset, word.as_mut_bytes())?;
    Ok(u64::from_le(word))
}

fn read_at(meta: &File, path: &Path, offset: u64, bytes: &mut [u8]) -> Result<()> {
    meta.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            let reason = format!("{} ends before byte {offset}", path.display());
            Failure::new("bad-region", format!("{reason}: this is no region, or a part of one"))
        }
        _ => Failure::file(path, &error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::constants::SLOTS_MAX;

    fn block() -> Superblock {
        let mut block = Superblock {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            page_shift: 21,
            reserved_0: 0,
            rack: 3,
            region_id: [1, 2],
            frame_count: 8,
            features: 0,
            sessions: SESSIONS_MAX,
            slots: SLOTS_MAX,
            tiers: [0; 4],
            reserved: [0; 4],
            checksum: 0,
        };
        block.checksum = block.checksum_of();
        block
    }

    fn write(name: &str, block: &Superblock) -> PathBuf {
        let pid = std::process::id();
        let path = std::env::temp_dir().join(format!("rackpool-inspect-{name}-{pid}"));
        let layout = RegionLayout { pages: PageGeometry::new(21).unwrap(), frame_count: 8 };
        let mut bytes = vec![0; usize::try_from(layout.private_bytes()).unwrap()];
        bytes[..size_of::<Superblock>()].copy_from_slice(block.as_bytes());
        let mut put = |offset: u64, value: u64| {
            let at = usize::try_from(offset).unwrap();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        let mut word = |offset: u64, value: u64| {
            let [first, second, third] = places(layout.private_bytes(), offset);
            put(first, value);
            put(second, value);
            put(third, value);
        };
        word(StateWord::Epoch.offset(), 5);
        word(StateWord::FramesHigh.offset(), 4);
        // A run's first page of the kind user, objects of 64 bytes of the kind table.
        for (frame, state) in [(0, 2 | 1 << 16), (1, 2 | 6 << 8 | 1 << 17), (2, 1), (3, 77)] {
            word(frame_word(FrameIndex(frame), FrameWord::State), state);
        }
        word(layout.bitmap_offset(FrameIndex(1)) + 8, 0b111);
        word(session_word(9, SessionWord::Session), 1);
        put(places(layout.private_bytes(), StateWord::Epoch.offset())[2], 4);
        put(places(layout.private_bytes(), StateWord::LockToken.offset())[2], 4);
        put(places(layout.private_bytes(), StateWord::LockToken.offset())[1], 7);
        std::fs::write(path.with_extension("meta"), bytes).unwrap();
        path
    }

    #[test]
    fn a_region_is_described_from_its_private_section() {
        let path = write("good", &block());
        let region = inspect(&path).unwrap();
        std::fs::remove_file(path.with_extension("meta")).unwrap();
        assert_eq!((region.words_differing, region.words_damaged), (1, 1));
        assert_eq!((region.rack.0, region.epoch, region.sessions), (3, 5, 1));
        assert_eq!((region.frames_home, region.frames_slab), (2, 1));
        assert_eq!((region.frames_pending, region.frames_unknown), (1, 1));
        assert_eq!(region.page_bytes, 2 << 20);
        let of_kind = |frames, allocations, bytes| OfKind { frames, allocations, bytes };
        assert_eq!(region.kinds["user"], of_kind(1, 1, 2 << 20));
        assert_eq!(region.kinds["table"], of_kind(1, 3, 3 * 64));
        assert_eq!(region.kinds["cache"], OfKind::default());
        let text = crate::shell::flat(&serde_json::to_value(&region).unwrap());
        assert!(text.contains("\nkinds.table.allocations=3\n"), "{text}");
    }

    #[test]
    fn damaged_foreign_and_missing_regions_are_refused() {
        let (mut torn, mut other, mut foreign) = (block(), block(), block());
        torn.frame_count = 9;
        other.version = 99;
        foreign.magic = 1;
        for (name, block, code) in [
            ("torn", torn, "bad-region"),
            ("other", other, "version"),
            ("foreign", foreign, "bad-region"),
        ] {
            let path = write(name, &block);
            let failure = inspect(&path).unwrap_err();
            std::fs::remove_file(path.with_extension("meta")).unwrap();
            assert_eq!(failure.code(), code, "{name}");
        }
        assert_eq!(inspect(Path::new("/nowhere")).unwrap_err().code(), "io");
        assert_eq!(path_of("heap:1G").unwrap_err().code(), "usage");
        assert_eq!(path_of("shm:/dev/shm/r.meta?size=1G").unwrap(), Path::new("/dev/shm/r"));
    }
}
