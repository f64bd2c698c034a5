//! A region in one character device of CXL or persistent memory: where each section lies in it,
//! and what the device says of itself. The documented exception to sections with rights of their
//! own: every descriptor that is handed out reaches the whole device.
//!
//! A device cannot be backed or punched. Its memory is set to zero when the region is made and
//! when a frame is freed.
//!
//! Source: DESIGN §2 (region).

use super::error::{RegionError, Result, failed};
use super::memory_bytes;
use super::spec::size_text;
use crate::persist::number_in;
use rackpool_core::PageGeometry;
use rackpool_core::constants::SLOTS_MAX;
use rackpool_core::layout::{BELL_BYTES, FRAME_BYTES, RegionLayout, SLOT_BYTES};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Where the sections of a region lie in a device, bytes. Everything starts at a multiple of the
/// device's alignment, because mappings must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaxLayout {
    pub align_bytes: u64,
    pub table_offset: u64,
    pub bell_offset: u64,
    pub slots_offset: u64,
    /// From one slot to the next.
    pub slot_stride_bytes: u64,
    pub pages_offset: u64,
    /// Everything; the private section starts at 0.
    pub bytes: u64,
    /// Where all this begins in the device: 0, or that of a shard's part of it.
    pub base_bytes: u64,
}

impl DaxLayout {
    /// The places of the sections of this region. Its last `slots` frames have no memory.
    pub fn new(layout: &RegionLayout, slots: u32, align_bytes: u64) -> Self {
        let up = |bytes: u64| bytes.next_multiple_of(align_bytes);
        let table_offset = up(layout.private_bytes());
        let bell_offset = table_offset + up(layout.table_bytes());
        let slots_offset = bell_offset + up(BELL_BYTES);
        let slot_stride_bytes = up(SLOT_BYTES);
        let pages_offset = slots_offset + u64::from(SLOTS_MAX) * slot_stride_bytes;
        let bytes = pages_offset + up(memory_bytes(layout, slots));
        Self {
            align_bytes,
            table_offset,
            bell_offset,
            slots_offset,
            slot_stride_bytes,
            pages_offset,
            bytes,
            base_bytes: 0,
        }
    }

    /// Where slot, bell, table and pages start in the device, for a client of a slot, bytes.
    pub(super) fn client_offsets(&self, slot: u32) -> [u64; 4] {
        let slot = self.slots_offset + self.slot_stride_bytes * u64::from(slot);
        [slot, self.bell_offset, self.table_offset, self.pages_offset]
            .map(|offset| self.base_bytes + offset)
    }

    /// The largest region that a device of `device_bytes` holds, with so many slots behind its
    /// memory; `None` if not even one frame fits.
    pub fn largest(
        device_bytes: u64,
        align_bytes: u64,
        pages: PageGeometry,
        slots: u32,
    ) -> Option<RegionLayout> {
        let fits = |frames: u32| {
            let Some(frame_count) = frames.checked_add(slots) else { return false };
            let layout = RegionLayout { pages, frame_count };
            frames > 0 && Self::new(&layout, slots, align_bytes).bytes <= device_bytes
        };
        let per_frame = pages.page_bytes() + FRAME_BYTES;
        let most = u32::try_from(device_bytes / per_frame).unwrap_or(u32::MAX);
        // The largest count that fits, by bisection: `low` fits or is 0, `high` does not.
        let (mut low, mut high) = (0, u64::from(most) + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            let count = u32::try_from(middle).expect("no more than `most`");
            if fits(count) { low = middle } else { high = middle }
        }
        let frames = u32::try_from(low).expect("no more than `most`");
        (frames > 0).then_some(RegionLayout { pages, frame_count: frames + slots })
    }
}

#[derive(Debug)]
pub(super) struct DaxDevice {
    pub(super) fd: OwnedFd,
    /// Where the part begins that is meant, bytes; 0 for the whole device.
    pub(super) base_bytes: u64,
    /// Whether it is a part that is meant.
    pub(super) is_part: bool,
    /// The length of that part.
    pub(super) device_bytes: u64,
    pub(super) align_bytes: u64,
    /// Whether all of it reads as zero.
    pub(super) is_zero: bool,
}

/// Opens a device and asks the kernel for its size and alignment.
pub(super) fn open(path: &Path) -> Result<DaxDevice> {
    let refuse = |reason: &str, way_out| {
        Err(RegionError::Device { path: path.to_owned(), reason: reason.to_owned(), way_out })
    };
    let stat = match rustix::fs::stat(path) {
        Err(rustix::io::Errno::NOENT) => {
            return refuse(
                "there is no such device",
                "list devices with: daxctl list; without one use shm:/dev/shm/rack0?size=8G",
            );
        }
        other => other.map_err(failed("stat", path))?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        return refuse(
            "it is no character device",
            "name a devdax device such as dax:/dev/dax0.0; for files use shm:",
        );
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let sysfs = format!("/sys/dev/char/{major}:{minor}");
    let Some(device_bytes) = number_in(format!("{sysfs}/size").as_ref()) else {
        return refuse(
            &format!("the kernel gives no size for it ({sysfs}/size)"),
            "name a devdax device such as dax:/dev/dax0.0 in mode devdax",
        );
    };
    // The kernel's smallest unit if it does not say: mappings that are no multiple are refused.
    let align_bytes = number_in(format!("{sysfs}/align").as_ref()).unwrap_or(2 << 20);
    if !align_bytes.is_power_of_two() {
        return refuse(
            &format!("the kernel gives its alignment as {align_bytes} bytes"),
            "reconfigure it with: daxctl reconfigure-device --align 2M",
        );
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", path))?;
    Ok(DaxDevice { fd, base_bytes: 0, is_part: false, device_bytes, align_bytes, is_zero: false })
}

impl DaxDevice {
    /// One of `count` parts of equal length.
    pub(super) fn part(self, index: u16, count: u16) -> DaxDevice {
        let part = self.device_bytes / u64::from(count.max(1));
        let device_bytes = part - part % self.align_bytes;
        DaxDevice {
            base_bytes: u64::from(index) * device_bytes,
            is_part: true,
            device_bytes,
            ..self
        }
    }
}

/// Where the sections lie, if the device is large enough.
pub(super) fn place(
    device: &DaxDevice,
    layout: &RegionLayout,
    slots: u32,
    path: &Path,
) -> Result<DaxLayout> {
    let base_bytes = device.base_bytes;
    let dax = DaxLayout { base_bytes, ..DaxLayout::new(layout, slots, device.align_bytes) };
    if dax.bytes > device.device_bytes {
        return Err(too_small(device, dax.bytes, path));
    }
    Ok(dax)
}

/// The refusal of a device that has not `asked_bytes`.
pub(super) fn too_small(device: &DaxDevice, asked_bytes: u64, path: &Path) -> RegionError {
    RegionError::Device {
        path: path.to_owned(),
        reason: format!(
            "the device has {}, the region would need {asked_bytes} bytes",
            size_text(device.device_bytes)
        ),
        way_out: "leave out size= to take what fits, or use a larger device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(path: &str) -> String {
        open(Path::new(path)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_devdax_device_is_refused_with_a_way_out() {
        assert!(reason("/dev/dax99.99").contains("there is no such device; list devices"));
        assert!(reason("/proc/self/exe").contains("it is no character device"));
        assert!(reason("/dev").contains("it is no character device"));
        assert!(reason("/dev/null").contains("the kernel gives no size for it"));
    }

    #[test]
    fn sections_are_aligned_and_do_not_overlap() {
        let pages = PageGeometry::new(21).unwrap();
        for align in [4096, 2 << 20, 1 << 30] {
            let layout = RegionLayout { pages, frame_count: 1000 };
            let dax = DaxLayout::new(&layout, 0, align);
            let ends = [
                (0, layout.private_bytes()),
                (dax.table_offset, layout.table_bytes()),
                (dax.bell_offset, BELL_BYTES),
                (dax.slots_offset, u64::from(SLOTS_MAX) * dax.slot_stride_bytes),
                (dax.pages_offset, layout.pages_bytes()),
                (dax.bytes, 0),
            ];
            for pair in ends.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{align}: {ends:?}");
                assert!(pair[1].0.is_multiple_of(align));
            }
            assert!(dax.slot_stride_bytes >= SLOT_BYTES);
        }
    }

    #[test]
    fn the_largest_region_fills_the_device_and_one_frame_more_does_not_fit() {
        for (device_bytes, shift, align) in
            [(4u64 << 30, 21, 2u64 << 20), (1 << 40, 21, 2 << 20), (1 << 30, 12, 4096)]
        {
            let pages = PageGeometry::new(shift).unwrap();
            let layout = DaxLayout::largest(device_bytes, align, pages, 0).unwrap();
            assert!(DaxLayout::new(&layout, 0, align).bytes <= device_bytes);
            let more = RegionLayout { frame_count: layout.frame_count + 1, ..layout };
            assert!(DaxLayout::new(&more, 0, align).bytes > device_bytes);
        }
        let pages = PageGeometry::new(21).unwrap();
        assert!(DaxLayout::largest(1 << 20, 2 << 20, pages, 0).is_none());
    }
}
