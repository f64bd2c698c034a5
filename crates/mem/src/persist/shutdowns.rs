//! How often the devices of a memory lost power without keeping what had reached them. In: an open
//! file and the system's files about devices, read once at attach. Out: a sum, which grows when
//! data was lost, or `None` where a device does not count.
//!
//! Source: Linux, Documentation/ABI/testing/sysfs-bus-nfit and sysfs-bus-papr-pmem
//! (`dirty_shutdown`).

use super::medium::{STACKED_MAX, device_folder};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat};
use std::fs;
use std::path::Path;

/// Devices that one region of the kernel's is made of, at most.
const MAPPINGS_MAX: u64 = 32;

/// Of all devices behind a devdax or a file of a DAX file system.
pub fn dirty_shutdowns(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(file).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let (kind, number) = if is_device { ("char", stat.st_rdev) } else { ("block", stat.st_dev) };
    shutdowns_above(&device_folder(Path::new("/sys"), kind, number)?, STACKED_MAX)
}

/// Of a device's region, or of all the devices that it is made of.
fn shutdowns_above(device: &Path, stacked_max: u32) -> Option<u64> {
    if let Some(region) = device.ancestors().find(|folder| folder.join("mappings").is_file()) {
        return shutdowns_of(region);
    }
    let parts = fs::read_dir(device.join("slaves")).ok().filter(|_| stacked_max > 0)?;
    sum(parts.map(|part| {
        let part = fs::canonicalize(part.ok()?.path()).ok()?;
        shutdowns_above(&part, stacked_max - 1)
    }))
}

/// `None` if one of them does not count, or there is none.
fn sum(counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.reduce(|sum, count| Some(sum? + count?)).flatten()
}

fn shutdowns_of(region: &Path) -> Option<u64> {
    let mappings = number_in(&region.join("mappings"))?.min(MAPPINGS_MAX);
    sum((0..mappings).map(|index| {
        let text = fs::read_to_string(region.join(format!("mapping{index}"))).ok()?;
        let device = region.parent()?.join(text.split(',').next()?.trim());
        let kinds = ["nfit", "papr", "cxl"].into_iter();
        kinds.map(|kind| device.join(kind).join("dirty_shutdown")).find_map(|file| number_in(&file))
    }))
}

/// The number in one of the system's files about a device.
pub(crate) fn number_in(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::temporary::TemporaryDir;

    #[test]
    fn shutdowns_of_all_devices_of_a_region_and_of_a_stack_are_counted() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "shutdowns").unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("region0/mappings", "2\n");
        write("region0/mapping0", "nmem0,0,1073741824,0\n");
        write("region0/mapping1", "nmem1,0,1073741824,1\n");
        write("region0/namespace0.0/block/pmem0/size", "1\n");
        write("nmem0/nfit/dirty_shutdown", "3\n");
        let device = folder.path().join("region0/namespace0.0/block/pmem0");
        let counted = |device: &Path| shutdowns_above(device, STACKED_MAX);
        assert_eq!(counted(&device), None, "one of them does not count");
        write("nmem1/cxl/dirty_shutdown", "0x4\n");
        assert_eq!(counted(&device), Some(7));
        let stack = folder.path().join("virtual/dm-0");
        fs::create_dir_all(stack.join("slaves")).unwrap();
        assert_eq!(counted(&stack), None);
        std::os::unix::fs::symlink(&device, stack.join("slaves/pmem0")).unwrap();
        assert_eq!(counted(&stack), Some(7));
    }
}
