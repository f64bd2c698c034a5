//! What a user writes to say where a rack's memory lies: `shm:/dev/shm/rack0?size=8G&huge=2M`,
//! `heap:64M`, `dax:/dev/dax0.0`, `pmem:/mnt/pmem/rack0?size=8G`. Text in, a checked [`MemorySpec`]
//! or an error that shows the right form out; nothing is opened here. Called by the code that reads
//! options.
//!
//! Source: DESIGN §2 (region).

use rackpool_core::PageGeometry;
use rackpool_core::coherence::Coherence;
use rackpool_core::constants::{PAGE_SHIFT_DEFAULT, PAGE_SHIFT_MAX, PAGE_SHIFT_MIN, TIERS_MAX};
use rackpool_core::layout::RegionLayout;
use rackpool_core::persist::PersistenceDomain;
use rackpool_core::tier::Tiers;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const EXAMPLE: &str = "shm:/dev/shm/rack0?size=8G&pages=2M, heap:64M or dax:/dev/dax0.0";

/// Memory nodes that Linux can have.
const NODES_MAX: u16 = 1024;
/// As the kernel's own weights.
const WEIGHT_MAX: u16 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Files, normally on tmpfs; they outlive the daemon.
    Shm {
        /// The pages section; the others are `PATH.meta` and so on.
        path: PathBuf,
        /// Where the other sections lie, if not beside the pages: needed on hugetlbfs, where the
        /// smallest file is a huge page.
        meta: Option<PathBuf>,
    },
    /// Anonymous memory that ends with the daemon.
    Heap,
    /// A character device of CXL or persistent memory: all sections lie in it.
    Dax { path: PathBuf },
    /// Memory that outlives a loss of power: a device as of `dax`, a file on a file system that
    /// maps the device itself, or an ordinary file. All sections lie in it, behind a header.
    Pmem {
        path: PathBuf,
        /// `None`: as the device has it.
        domain: Option<PersistenceDomain>,
    },
}

/// A size of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugeSize {
    M2,
    /// 1 GiB; only on hugetlbfs.
    G1,
}

impl HugeSize {
    pub fn bytes(self) -> u64 {
        match self {
            HugeSize::M2 => 2 << 20,
            HugeSize::G1 => 1 << 30,
        }
    }
}

/// A rack's memory as the user asked for it.
///
/// ```
/// use rackpool_mem::region::MemorySpec;
/// let spec: MemorySpec = "shm:/dev/shm/rack0?size=8G&huge=2M".parse()?;
/// assert_eq!(spec.size_bytes, Some(8 << 30));
/// assert_eq!(spec.geometry().page_bytes(), 2 << 20);
/// assert_eq!(spec.to_string(), "shm:/dev/shm/rack0?size=8G&huge=2M");
/// # Ok::<(), rackpool_mem::region::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    pub kind: MemoryKind,
    /// Bytes of pages. `None` takes what an existing region, or the device, has.
    pub size_bytes: Option<u64>,
    /// Page size. `None` takes what an existing region has, else 2 MiB.
    pub pages: Option<PageGeometry>,
    /// Huge pages to insist on.
    pub huge: Option<HugeSize>,
    /// Whether all memory is backed and touched at start instead of at first use.
    pub touch: bool,
    /// Memory nodes that pages are to come from, with their weights. One node: all pages. Several:
    /// the region's tiers, nearest first. None: what an existing region has, else where pages are
    /// touched first.
    pub numa: Vec<(u16, u16)>,
    /// What keeps the caches of the hosts that share the memory coherent. `None` takes what an
    /// existing region has, else it is the hardware.
    pub coherence: Option<Coherence>,
    /// Which of how many parts of the memory is meant, made by [`MemorySpec::shard`]: no user
    /// writes that. `None` is all of it.
    pub part: Option<(u16, u16)>,
    /// Frames behind those of the memory that are slots of a spill file: said by
    /// [`SpillSpec`](super::SpillSpec), in no specification of memory.
    pub slots: u32,
}

/// Why a memory specification cannot be used. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Neither `shm:`, `heap`, `dax:` nor `pmem:`.
    #[error("memory \"{spec}\": starts with none of shm:, heap, dax:, pmem:; such as {EXAMPLE}")]
    UnknownKind { spec: String },
    /// A key that this kind of memory does not have.
    #[error("memory: {kind} has no key \"{key}\"; it has {allowed}; such as {EXAMPLE}")]
    UnknownKey { key: String, kind: &'static str, allowed: &'static str },
    #[error("memory: {key} is given twice")]
    Twice { key: String },
    /// A value that the key cannot have.
    #[error("memory: {key}={value}: {allowed}; such as {EXAMPLE}")]
    BadValue { key: &'static str, value: String, allowed: &'static str },
    /// A path that cannot be used.
    #[error("memory: path \"{path}\": {reason}; such as {EXAMPLE}")]
    BadPath { path: String, reason: &'static str },
    /// A size that pages do not fill.
    #[error("memory: size={} is no multiple of the page size {}: use size={} or pages={}",
            size_text(*size_bytes), size_text(*page_bytes),
            size_text(size_bytes.next_multiple_of(*page_bytes)), size_text(*fitting_bytes))]
    NotWholePages {
        size_bytes: u64,
        page_bytes: u64,
        /// The largest page size that would do.
        fitting_bytes: u64,
    },
    /// A size that does not fall into as many equal parts of whole pages.
    #[error("memory: size={} does not fall into {shards} shards of whole pages of {}: use size={}",
            size_text(*size_bytes), size_text(*page_bytes),
            size_text(size_bytes.next_multiple_of(*page_bytes * u64::from(*shards))))]
    NotWholeShards {
        /// The size of the rack's memory.
        size_bytes: u64,
        /// Into how many shards it is divided.
        shards: u16,
        page_bytes: u64,
    },
    /// Memory that is not divided.
    #[error("memory: pmem is not divided into shards: start one daemon, without --shard")]
    NotDivided,
    /// More frames than a frame number counts.
    #[error("memory: {frames} frames of {}: at most {} are possible; use larger pages, such as \
             pages={}", size_text(*page_bytes), u32::MAX, size_text(*fitting_bytes))]
    TooManyFrames {
        frames: u64,
        page_bytes: u64,
        /// A page size that would do, if the largest does.
        fitting_bytes: u64,
    },
    /// A region too small for its memory nodes.
    #[error(
        "memory: {frames} frames are too few for numa={numa}: each node gets at least one; use \
             a larger size, or smaller pages"
    )]
    TooFewFrames { frames: u32, numa: String },
    /// A new region without a size.
    #[error("memory: a new region needs a size, such as {spec}{}size=8G",
            if spec.contains('?') { "&" } else { "?" })]
    NoSize { spec: String },
    /// Huge pages that are larger than the pages of the pool.
    #[error("memory: huge={} needs pages of at least that size, not {}: use pages={}",
            size_text(*huge_bytes), size_text(*page_bytes), size_text(*huge_bytes))]
    HugeAbovePages { huge_bytes: u64, page_bytes: u64 },
}

impl MemorySpec {
    /// Page geometry: what was given, else pages of 2 MiB.
    pub fn geometry(&self) -> PageGeometry {
        self.pages.unwrap_or_else(|| {
            PageGeometry::new(PAGE_SHIFT_DEFAULT).expect("the default is within the limits")
        })
    }

    /// The layout of a new region of this specification.
    ///
    /// # Errors
    /// [`SpecError::NoSize`] without a size.
    pub fn layout(&self) -> Result<RegionLayout, SpecError> {
        let size_bytes =
            self.size_bytes.ok_or_else(|| SpecError::NoSize { spec: self.to_string() })?;
        let frames = frames_of(size_bytes, self.geometry())?;
        let frame_count = frames.checked_add(self.slots).filter(|count| *count < u32::MAX);
        let page_bytes = self.geometry().page_bytes();
        let frame_count = frame_count.ok_or(SpecError::TooManyFrames {
            frames: u64::from(frames) + u64::from(self.slots),
            page_bytes,
            fitting_bytes: 2 * page_bytes,
        })?;
        Ok(RegionLayout { pages: self.geometry(), frame_count })
    }

    /// The memories of a new region of so many frames, the slots of a spill file among them.
    ///
    /// # Errors
    /// [`SpecError::TooFewFrames`].
    pub fn tiers(&self, frames: u32) -> Result<Tiers, SpecError> {
        let few = || SpecError::TooFewFrames { frames, numa: numa_text(&self.numa) };
        let memory_frames = frames.saturating_sub(self.slots);
        let tiers = match self.numa.len() {
            0 | 1 => Tiers::default(),
            _ => Tiers::by_weights(memory_frames, &self.numa).ok_or_else(few)?,
        };
        match self.slots {
            0 => Ok(tiers),
            slots => tiers.with_spill(memory_frames, slots).ok_or_else(few),
        }
    }

    /// The file or device of the pages; `None` for heap memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            MemoryKind::Shm { path, .. }
            | MemoryKind::Dax { path }
            | MemoryKind::Pmem { path, .. } => Some(path),
            MemoryKind::Heap => None,
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        match (key, &mut self.kind) {
            ("size", _) => self.size_bytes = Some(parse_size("size", value)?),
            ("pages", _) => self.pages = Some(parse_pages(value)?),
            ("huge", MemoryKind::Shm { .. } | MemoryKind::Heap) => {
                self.huge = Some(parse_huge(value)?);
            }
            ("meta", MemoryKind::Shm { meta, .. }) => *meta = Some(parse_path(value)?),
            ("numa", MemoryKind::Shm { .. } | MemoryKind::Heap) => {
                self.numa = parse_nodes(value)?;
            }
            ("coherence", MemoryKind::Shm { .. } | MemoryKind::Dax { .. }) => {
                self.coherence = Some(parse_coherence(value)?);
            }
            ("domain", MemoryKind::Pmem { domain, .. }) => *domain = Some(parse_domain(value)?),
            ("touch", _) => self.touch = parse_touch(value)?,
            _ => return Err(self.unknown_key(key)),
        }
        Ok(())
    }

    fn unknown_key(&self, key: &str) -> SpecError {
        let (kind, allowed) = match self.kind {
            MemoryKind::Shm { .. } => ("shm", "size, pages, huge, touch, numa, meta, coherence"),
            MemoryKind::Heap => ("heap", "size, pages, huge, touch, numa"),
            MemoryKind::Dax { .. } => ("dax", "size, pages, touch, coherence"),
            MemoryKind::Pmem { .. } => ("pmem", "size, pages, touch, domain"),
        };
        SpecError::UnknownKey { key: key.to_owned(), kind, allowed }
    }

    fn checked(self) -> Result<Self, SpecError> {
        if let Some(size_bytes) = self.size_bytes {
            let frames = frames_of(size_bytes, self.geometry())?;
            self.tiers(frames)?;
        }
        if self.size_bytes.is_none() && matches!(self.kind, MemoryKind::Heap) {
            return Err(SpecError::NoSize { spec: self.to_string() });
        }
        let page_bytes = self.geometry().page_bytes();
        match self.huge.map(HugeSize::bytes) {
            Some(huge_bytes) if huge_bytes > page_bytes => {
                Err(SpecError::HugeAbovePages { huge_bytes, page_bytes })
            }
            _ => Ok(self),
        }
    }
}

impl FromStr for MemorySpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (head, keys) = match text.split_once('?') {
            Some((head, keys)) => (head, Some(keys)),
            None => (text, None),
        };
        let mut spec = MemorySpec {
            kind: MemoryKind::Heap,
            size_bytes: None,
            pages: None,
            huge: None,
            touch: false,
            numa: Vec::new(),
            coherence: None,
            part: None,
            slots: 0,
        };
        match head.split_once(':') {
            Some(("shm", path)) => {
                spec.kind = MemoryKind::Shm { path: parse_path(path)?, meta: None };
            }
            Some(("dax", path)) => spec.kind = MemoryKind::Dax { path: parse_path(path)? },
            Some(("pmem", path)) => {
                spec.kind = MemoryKind::Pmem { path: parse_path(path)?, domain: None };
            }
            Some(("heap", size)) => spec.size_bytes = Some(parse_size("size", size)?),
            None if head == "heap" => {}
            _ => return Err(SpecError::UnknownKind { spec: text.to_owned() }),
        }
        let mut seen: Vec<&str> = spec.size_bytes.map(|_| "size").into_iter().collect();
        for pair in keys.into_iter().flat_map(|keys| keys.split('&')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&key) {
                return Err(SpecError::Twice { key: key.to_owned() });
            }
            spec.set(key, value)?;
            seen.push(key);
        }
        spec.checked()
    }
}

impl fmt::Display for MemorySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            MemoryKind::Shm { path, .. } => write!(f, "shm:{}", path.display())?,
            MemoryKind::Heap => f.write_str("heap")?,
            MemoryKind::Dax { path } => write!(f, "dax:{}", path.display())?,
            MemoryKind::Pmem { path, .. } => write!(f, "pmem:{}", path.display())?,
        }
        let (meta, domain) = match &self.kind {
            MemoryKind::Shm { meta, .. } => (meta.as_ref(), None),
            MemoryKind::Pmem { domain, .. } => (None, *domain),
            _ => (None, None),
        };
        let pairs = [
            self.size_bytes.map(|bytes| format!("size={}", size_text(bytes))),
            self.huge.map(|huge| format!("huge={}", size_text(huge.bytes()))),
            self.pages.map(|pages| format!("pages={}", size_text(pages.page_bytes()))),
            self.touch.then(|| "touch=1".to_owned()),
            (!self.numa.is_empty()).then(|| format!("numa={}", numa_text(&self.numa))),
            self.coherence.map(|coherence| format!("coherence={coherence}")),
            meta.map(|meta| format!("meta={}", meta.display())),
            domain.map(|domain| format!("domain={domain}")),
        ];
        for (index, pair) in pairs.into_iter().flatten().enumerate() {
            write!(f, "{}{pair}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// A size with the largest suffix that divides it, as [`MemorySpec`] reads it.
pub fn size_text(bytes: u64) -> String {
    let suffixes = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    suffixes
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(shift, suffix)| format!("{}{suffix}", bytes >> shift))
}

/// Frames of a region of this size.
fn frames_of(size_bytes: u64, pages: PageGeometry) -> Result<u32, SpecError> {
    let page_bytes = pages.page_bytes();
    if !size_bytes.is_multiple_of(page_bytes) {
        let fitting_bytes = 1 << size_bytes.trailing_zeros().max(u32::from(PAGE_SHIFT_MIN));
        return Err(SpecError::NotWholePages { size_bytes, page_bytes, fitting_bytes });
    }
    let frames = size_bytes / page_bytes;
    u32::try_from(frames).map_err(|_| {
        let fitting_bytes = (size_bytes / u64::from(u32::MAX) + 1).next_power_of_two();
        let fitting_bytes = fitting_bytes.clamp(page_bytes, 1 << PAGE_SHIFT_MAX);
        SpecError::TooManyFrames { frames, page_bytes, fitting_bytes }
    })
}

pub(super) fn parse_size(key: &'static str, text: &str) -> Result<u64, SpecError> {
    let bytes = rackpool_stats::units::parse_size(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| SpecError::BadValue {
        key,
        value: text.to_owned(),
        allowed: "a number of bytes above 0, with K, M, G or T behind it if it is so many KiB, \
                  MiB, GiB or TiB",
    })
}

fn parse_pages(text: &str) -> Result<PageGeometry, SpecError> {
    PageGeometry::from_page_bytes(parse_size("pages", text)?).ok_or_else(|| SpecError::BadValue {
        key: "pages",
        value: text.to_owned(),
        allowed: "a power of two from 4K to 1G, 2M if not given",
    })
}

fn parse_huge(text: &str) -> Result<HugeSize, SpecError> {
    match parse_size("huge", text)? {
        bytes if bytes == HugeSize::M2.bytes() => Ok(HugeSize::M2),
        bytes if bytes == HugeSize::G1.bytes() => Ok(HugeSize::G1),
        _ => Err(SpecError::BadValue { key: "huge", value: text.to_owned(), allowed: "2M or 1G" }),
    }
}

fn parse_touch(text: &str) -> Result<bool, SpecError> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => {
            let value = text.to_owned();
            Err(SpecError::BadValue { key: "touch", value, allowed: "0 or 1" })
        }
    }
}

fn parse_domain(text: &str) -> Result<PersistenceDomain, SpecError> {
    text.parse().map_err(|_| SpecError::BadValue {
        key: "domain",
        value: text.to_owned(),
        allowed: "none, adr, eadr or msync; left out it is what the device has",
    })
}

fn parse_coherence(text: &str) -> Result<Coherence, SpecError> {
    let all = [Coherence::Hardware, Coherence::Software];
    all.into_iter().find(|one| one.to_string() == text).ok_or_else(|| SpecError::BadValue {
        key: "coherence",
        value: text.to_owned(),
        allowed: "hardware, or software where hosts share memory of which each has its own caches",
    })
}

/// `1`, or `0:3,2:1`: a node with its weight for each memory, nearest first.
fn parse_nodes(text: &str) -> Result<Vec<(u16, u16)>, SpecError> {
    let bad = || SpecError::BadValue {
        key: "numa",
        value: text.to_owned(),
        allowed: "the number of a memory node, such as 1, or two to four of them with weights of \
                  1 to 255, nearest first, such as 0:3,2:1",
    };
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let parts: Vec<&str> = text.split(',').collect();
    let mut nodes: Vec<(u16, u16)> = Vec::new();
    for part in &parts {
        let (node, weight) = match part.split_once(':') {
            Some((node, weight)) if parts.len() > 1 => (node, number(weight).ok_or_else(bad)?),
            None if parts.len() == 1 => (*part, 1),
            _ => return Err(bad()),
        };
        let node = number(node).filter(|node| *node < NODES_MAX).ok_or_else(bad)?;
        let is_twice = nodes.iter().any(|(other, _)| *other == node);
        if is_twice || !(1..=WEIGHT_MAX).contains(&weight) || nodes.len() == TIERS_MAX {
            return Err(bad());
        }
        nodes.push((node, weight));
    }
    Ok(nodes)
}

fn numa_text(nodes: &[(u16, u16)]) -> String {
    if let [(node, _)] = nodes {
        return node.to_string();
    }
    let nodes: Vec<String> =
        nodes.iter().map(|(node, weight)| format!("{node}:{weight}")).collect();
    nodes.join(",")
}

pub(super) fn parse_path(text: &str) -> Result<PathBuf, SpecError> {
    let path = Path::new(text);
    let reason = if !path.is_absolute() {
        "it must be absolute"
    } else if path.file_name().is_none() || text.ends_with('/') {
        "it must name a file"
    } else {
        return Ok(path.to_owned());
    };
    Err(SpecError::BadPath { path: text.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<MemorySpec, SpecError> {
        text.parse()
    }

    #[test]
    fn every_form_of_the_brief_is_read() {
        let spec = parse("shm:/dev/shm/rack0?size=8G&huge=2M&pages=2M&touch=1").unwrap();
        assert_eq!(spec.path(), Some(Path::new("/dev/shm/rack0")));
        assert_eq!((spec.size_bytes, spec.huge), (Some(8 << 30), Some(HugeSize::M2)));
        assert!(spec.touch);
        assert_eq!(spec.layout().unwrap().frame_count, 4096);
        assert_eq!(parse("heap:64M").unwrap(), parse("heap?size=64M").unwrap());
        assert_eq!(parse("heap:64M").unwrap().to_string(), "heap?size=64M");
        let dax = parse("dax:/dev/dax0.0").unwrap();
        assert_eq!((dax.size_bytes, dax.pages), (None, None));
        assert_eq!(dax.geometry().page_bytes(), 2 << 20);
        let meta = parse("shm:/mnt/huge/r?size=4M&huge=2M&meta=/dev/shm/r").unwrap();
        assert_eq!(meta.to_string(), "shm:/mnt/huge/r?size=4M&huge=2M&meta=/dev/shm/r");
        let shared = parse("dax:/dev/dax0.0?coherence=software").unwrap();
        assert_eq!((shared.coherence, dax.coherence), (Some(Coherence::Software), None));
        assert_eq!(shared.to_string(), "dax:/dev/dax0.0?coherence=software");
        let pmem = parse("pmem:/mnt/pmem/r?size=1G&domain=msync").unwrap();
        assert_eq!(pmem.path(), Some(Path::new("/mnt/pmem/r")));
        assert_eq!(pmem.to_string(), "pmem:/mnt/pmem/r?size=1G&domain=msync");
        assert_eq!(pmem.shard(0, 2), Err(SpecError::NotDivided));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_can() {
        for (text, expected) in [
            ("", "starts with none of"),
            ("ssd:/dev/nvme0", "starts with none of"),
            ("shm", "starts with none of"),
            ("shm:dev/shm/x?size=8G", "must be absolute"),
            ("shm:/dev/shm/?size=8G", "must name a file"),
            ("shm:/dev/shm/x?sise=8G", "shm has no key \"sise\"; it has size, pages"),
            ("dax:/dev/dax0.0?huge=2M", "dax has no key \"huge\""),
            ("heap?size=8M&meta=/x", "heap has no key \"meta\""),
            ("heap?", "heap has no key \"\""),
            ("heap?size=8M&size=8M", "size is given twice"),
            ("heap:8M?size=8M", "size is given twice"),
            ("heap:8M?touch=0&touch=1", "touch is given twice"),
            ("heap", "a new region needs a size, such as heap?size=8G"),
            ("heap?touch=1", "such as heap?touch=1&size=8G"),
            ("heap?size=", "a number of bytes above 0"),
            ("heap?size=0", "a number of bytes above 0"),
            ("heap?size=+8M", "a number of bytes above 0"),
            ("heap?size=M", "a number of bytes above 0"),
            ("heap?size=8MB", "a number of bytes above 0"),
            ("heap?size=1.5G", "a number of bytes above 0"),
            ("heap?size=99999999999T", "a number of bytes above 0"),
            ("heap?size=ä", "a number of bytes above 0"),
            ("heap?size=16777216T", "a number of bytes above 0"),
            ("heap?size=8M&pages=3M", "a power of two from 4K to 1G"),
            ("heap?size=8M&pages=2K", "a power of two from 4K to 1G"),
            ("heap?size=8M&touch=yes", "0 or 1"),
            ("heap?size=8M&huge=4M", "2M or 1G"),
            ("heap?size=8M&numa=-1", "the number of a memory node"),
            ("heap?size=8M&numa=1024", "the number of a memory node"),
            ("heap?size=8M&numa=0:3", "two to four of them with weights"),
            ("heap?size=8M&numa=0,1", "such as 0:3,2:1"),
            ("heap?size=8M&numa=0:3,0:1", "such as 0:3,2:1"),
            ("heap?size=8M&numa=0:0,1:1", "such as 0:3,2:1"),
            ("heap?size=8M&numa=0:256,1:1", "such as 0:3,2:1"),
            ("heap?size=8M&numa=0:1,1:1,2:1,3:1,4:1", "two to four of them"),
            ("heap?size=2M&numa=0:3,1:1", "1 frames are too few for numa=0:3,1:1"),
            ("pmem:/mnt/r?size=8M&domain=adrs", "none, adr, eadr or msync"),
            ("pmem:/mnt/r?size=8M&huge=2M", "pmem has no key \"huge\""),
            ("shm:/dev/shm/r?domain=adr", "shm has no key \"domain\""),
            ("dax:/dev/dax0.0?numa=1", "dax has no key \"numa\""),
            ("dax:/dev/dax0.0?coherence=none", "hardware, or software where hosts share memory"),
            ("heap?size=8M&coherence=software", "heap has no key \"coherence\""),
            ("heap?size=8M&huge=2M&pages=4K", "use pages=2M"),
            ("heap?size=5M", "no multiple of the page size 2M: use size=6M or pages=1M"),
            (
                "heap?size=16T&pages=4K",
                "at most 4294967295 are possible; use larger pages, such \
              as pages=8K",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_region_without_a_size_can_be_named_but_not_laid_out() {
        let spec = parse("shm:/dev/shm/x").unwrap();
        assert!(matches!(spec.layout(), Err(SpecError::NoSize { .. })));
    }

    proptest! {
        #[test]
        fn what_is_displayed_reads_back_the_same(
            kind in 0..3, frames in 1u64..100_000, shift in 21u8..=30, pages in any::<bool>(),
            huge in any::<bool>(), touch in any::<bool>(), meta in any::<bool>(),
            numa in 0..NODES_MAX, nodes in 0..4_u16, is_software in any::<bool>(),
        ) {
            let path = PathBuf::from("/dev/shm/a b:c=d");
            let kind = match kind {
                0 => MemoryKind::Shm { path, meta: meta.then(|| "/dev/shm/m".into()) },
                1 => MemoryKind::Heap,
                _ => MemoryKind::Dax { path },
            };
            let huge = huge && !matches!(kind, MemoryKind::Dax { .. });
            let nodes = if matches!(kind, MemoryKind::Dax { .. }) { 0 } else { nodes };
            // Equal weights: a region of one frame for each node may be as small as this.
            let frames = frames + u64::from(nodes);
            let numa = (0..nodes).map(|more| ((numa + more) % NODES_MAX, 1)).collect();
            let can_be_software = !matches!(kind, MemoryKind::Heap);
            let spec = MemorySpec {
                kind,
                size_bytes: Some(frames << shift),
                pages: pages.then(|| PageGeometry::new(shift).unwrap()),
                huge: huge.then_some(HugeSize::M2),
                touch,
                numa,
                coherence: (is_software && can_be_software).then_some(Coherence::Software),
                part: None,
                slots: 0,
            };
            prop_assert_eq!(spec.to_string().parse::<MemorySpec>().unwrap(), spec);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "(shm:|heap|dax:)?.{0,40}") {
            let _ = text.parse::<MemorySpec>();
        }
    }
}
