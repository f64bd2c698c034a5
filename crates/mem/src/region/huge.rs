//! Whether the kernel would give huge pages where they were asked for. Text of `/proc` and `/sys`
//! in, "yes" or a typed refusal with the command that changes it out: there is no silent fallback
//! to small pages, because the difference is a factor of 1.6 in random access. Called when a
//! region is made or opened.
//!
//! Memory is backed by `fallocate` before it is mapped, so an advice on the mapping comes too
//! late: the policy of the file system has to be `always` or `within_size`.
//!
//! Source: DESIGN §2 (huge pages).

use super::error::{RegionError, Result, failed};
use super::spec::{HugeSize, size_text};
use std::os::fd::BorrowedFd;
use std::path::Path;

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// `f_type` of hugetlbfs and tmpfs, from the kernel's `magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// What kind of file system a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// Huge pages only, of this size.
    Hugetlb {
        page_bytes: u64,
    },
    Tmpfs,
    Other,
}

/// The file system of an open file or directory.
pub(super) fn file_system(fd: BorrowedFd<'_>, path: &Path) -> Result<FileSystem> {
    let stat = rustix::fs::fstatfs(fd).map_err(failed("statfs", path))?;
    // The field's type differs among machines; the magic numbers have 32 bits on all.
    Ok(match stat.f_type as u64 & u64::from(u32::MAX) {
        HUGETLBFS_MAGIC => FileSystem::Hugetlb { page_bytes: stat.f_bsize as u64 },
        TMPFS_MAGIC => FileSystem::Tmpfs,
        _ => FileSystem::Other,
    })
}

/// Checks that files in the directory `dir` (at `path`'s parent) get huge pages of this size.
pub(super) fn check_directory(dir: BorrowedFd<'_>, path: &Path, huge: HugeSize) -> Result<()> {
    match file_system(dir, path)? {
        FileSystem::Hugetlb { page_bytes } if page_bytes == huge.bytes() => Ok(()),
        FileSystem::Hugetlb { page_bytes } => refuse(
            path,
            format!("this hugetlbfs has pages of {}", size_text(page_bytes)),
            format!("mount one with -o pagesize={}", size_text(huge.bytes())),
        ),
        FileSystem::Tmpfs if huge == HugeSize::M2 => {
            let stat = rustix::fs::fstat(dir).map_err(failed("stat", path))?;
            let device =
                format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
            let mounts = std::fs::read_to_string("/proc/self/mountinfo")
                .map_err(failed("read /proc/self/mountinfo", path))?;
            check_tmpfs(path, &shmem_policy(path)?, &mounts, &device)
        }
        FileSystem::Tmpfs | FileSystem::Other => refuse(
            path,
            format!("this file system has no pages of {}", size_text(huge.bytes())),
            "use a path on hugetlbfs, or for 2M on tmpfs".to_owned(),
        ),
    }
}

/// Checks that anonymous shared memory gets huge pages of this size.
pub(super) fn check_anonymous(huge: HugeSize) -> Result<()> {
    let path = Path::new("heap");
    if huge != HugeSize::M2 {
        return refuse(path, "heap memory has 2M only".to_owned(), "use huge=2M".to_owned());
    }
    check_policy(path, &shmem_policy(path)?)
}

fn shmem_policy(path: &Path) -> Result<String> {
    match std::fs::read_to_string(SHMEM_ENABLED) {
        Ok(text) => Ok(chosen(&text).to_owned()),
        Err(_) => refuse(
            path,
            "this kernel has no transparent huge pages".to_owned(),
            "use a path on hugetlbfs".to_owned(),
        ),
    }
}

fn check_policy(path: &Path, policy: &str) -> Result<()> {
    match policy {
        "always" | "within_size" | "force" => Ok(()),
        _ => refuse(
            path,
            format!("{SHMEM_ENABLED} is {policy}"),
            format!("as root: echo within_size > {SHMEM_ENABLED}"),
        ),
    }
}

fn check_tmpfs(path: &Path, policy: &str, mounts: &str, device: &str) -> Result<()> {
    match policy {
        "force" => return Ok(()),
        "deny" => {
            return refuse(
                path,
                format!("{SHMEM_ENABLED} is deny"),
                format!("as root: echo never > {SHMEM_ENABLED}"),
            );
        }
        _ => {}
    }
    let (mount_point, option) = mount_of(mounts, device).unwrap_or(("MOUNT-POINT", "never"));
    match option {
        "always" | "within_size" => Ok(()),
        _ => refuse(
            path,
            format!("the tmpfs at {mount_point} is mounted with huge={option}"),
            format!("as root: mount -o remount,huge=within_size {mount_point}"),
        ),
    }
}

fn refuse<T>(path: &Path, reason: String, way_out: String) -> Result<T> {
    Err(RegionError::NoHugePages { path: path.to_owned(), reason, way_out })
}

/// The word in brackets of a `/sys` choice; the whole text if there is none.
fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.trim(), |(word, _)| word)
}

/// Mount point and `huge=` option of the file system with this device number.
fn mount_of<'a>(mounts: &'a str, device: &str) -> Option<(&'a str, &'a str)> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        if fields.next()? != device {
            return None;
        }
        let mount_point = fields.nth(1)?;
        let options = file_system.split(' ').nth(2)?;
        let option = options.split(',').find_map(|option| option.strip_prefix("huge="));
        Some((mount_point, option.unwrap_or("never")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 28 0:20 / /sys rw,relatime - sysfs sysfs rw
30 24 0:27 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=8G
31 24 0:28 / /mnt/a rw - tmpfs tmpfs rw,huge=within_size,size=8G
32 24 0:29 / /mnt/b rw - tmpfs tmpfs rw,huge=advise
garbage
";

    fn refusal(policy: &str, device: &str) -> Option<String> {
        let path = Path::new("/dev/shm/x");
        check_tmpfs(path, policy, MOUNTS, device).err().map(|error| error.to_string())
    }

    #[test]
    fn a_tmpfs_gives_huge_pages_only_by_its_mount_option_or_by_force() {
        assert_eq!(refusal("never", "0:28"), None);
        assert_eq!(refusal("force", "0:27"), None);
        let way_out = "mount -o remount,huge=within_size /dev/shm";
        assert!(refusal("always", "0:27").unwrap().contains(way_out));
        assert!(refusal("advise", "0:29").unwrap().contains("huge=advise"));
        assert!(refusal("deny", "0:28").unwrap().contains("echo never"));
        assert!(refusal("never", "9:99").unwrap().contains("huge=never"));
    }

    #[test]
    fn anonymous_memory_follows_the_system_wide_policy() {
        let path = Path::new("heap");
        for policy in ["always", "within_size", "force"] {
            assert!(check_policy(path, policy).is_ok());
        }
        for policy in ["never", "deny", "advise", ""] {
            let error = check_policy(path, policy).unwrap_err().to_string();
            assert!(error.contains("echo within_size"), "{error}");
        }
        assert!(matches!(check_anonymous(HugeSize::G1), Err(RegionError::NoHugePages { .. })));
    }

    #[test]
    fn the_chosen_word_stands_in_brackets() {
        assert_eq!(chosen("always within_size advise [never] deny force\n"), "never");
        assert_eq!(chosen("odd\n"), "odd");
    }
}
