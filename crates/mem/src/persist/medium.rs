//! What kind of memory is behind a file, and in which persistence domain it can be used. In: an
//! open file, and the system's files about devices, read once at attach. Out: a domain, or an
//! [`AttachError`] with the way out.
//!
//! The kernel tells the domain of the memory controllers behind NVDIMMs and persistent CXL memory
//! (`regionN/persistence_domain`). Where it says nothing the user has to: a wrong word for it would
//! lose data that was acknowledged. No word is taken that promises more than the kernel does.

use crate::window::{MapOptions, Window};
use rackpool_core::persist::PersistenceDomain;
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat, fstatfs, major, minor};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Block devices made of others, one above another.
pub(super) const STACKED_MAX: u32 = 8;

/// The memory behind a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Pages of the system that no device has: tmpfs, hugetlbfs, a memfd.
    Volatile,
    /// A devdax, and what the kernel says of its domain.
    Device(Option<PersistenceDomain>),
    /// A file of a DAX file system, mapped with `MAP_SYNC`, and what the kernel says of its device.
    DaxFile(Option<PersistenceDomain>),
    /// Any other file: pages of the system that it writes to a device.
    File,
}

/// Why a memory cannot be used in the domain that was declared, or without a declaration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No device is behind it.
    #[error(
        "this file is in the host's memory and forgets everything when the power fails: use a file \
         on a disk, a devdax or a DAX file system, or accept that with domain=none"
    )]
    Volatile,
    /// Not persistent memory: what leaves the caches is in the system's page cache.
    #[error(
        "domain={declared}: the file system does not map this file synchronously (MAP_SYNC), so \
         only msync makes it durable: leave domain out, or mount a file system on persistent \
         memory with -o dax"
    )]
    NotDax { declared: PersistenceDomain },
    #[error(
        "domain=msync: a device has no page cache that could be written: leave domain out, or use \
         adr or eadr"
    )]
    NoPageCache,
    #[error(
        "the kernel does not say how far stores to this memory have to travel (no \
         persistence_domain): say domain=adr if the memory controllers' queues are spared when the \
         power fails, domain=eadr if the processors' caches are too, domain=none if neither is"
    )]
    Unknown,
    #[error(
        "domain={declared}: the kernel says that this memory has {found}, which spares less: leave \
         domain out"
    )]
    Stronger { declared: PersistenceDomain, found: PersistenceDomain },
    #[error(
        "domain={domain}: this processor has no instruction that writes a line back to persistent \
         memory (on aarch64: dc cvap): use domain=none, or a file by msync"
    )]
    NoInstruction { domain: PersistenceDomain },
}

impl Medium {
    /// Of an open file of at least one page.
    ///
    /// # Errors
    /// What the system says, above all that the file is too short.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Medium> {
        Self::told_by(file, Path::new("/sys"))
    }

    fn told_by(file: BorrowedFd<'_>, sys: &Path) -> io::Result<Medium> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            return Ok(Medium::Device(domain_of(sys, "char", stat.st_rdev)));
        }
        // The field's type differs among machines; the magic numbers have 32 bits on all.
        let kind = fstatfs(file)?.f_type as u64 & u64::from(u32::MAX);
        if [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind) {
            return Ok(Medium::Volatile);
        }
        let page_bytes = rustix::param::page_size() as u64;
        match Window::map_synchronous(file, page_bytes, MapOptions::default()) {
            Ok(_) => Ok(Medium::DaxFile(domain_of(sys, "block", stat.st_dev))),
            Err(error) => match Errno::from_io_error(&error) {
                // The second from a kernel without such mappings.
                Some(Errno::OPNOTSUPP | Errno::INVAL) => Ok(Medium::File),
                _ => Err(error),
            },
        }
    }

    /// The domain to use it in. What the user declares counts where the kernel says nothing, and
    /// where it promises less than the kernel does.
    ///
    /// # Errors
    /// All of [`AttachError`] but `Io` and `NoInstruction`.
    pub fn domain(
        self,
        declared: Option<PersistenceDomain>,
    ) -> Result<PersistenceDomain, AttachError> {
        use PersistenceDomain::{Adr, Eadr, Msync, None as Nothing};
        match (self, declared) {
            (_, Some(Nothing)) => Ok(Nothing),
            (Medium::Volatile, _) => Err(AttachError::Volatile),
            (Medium::File, None) | (Medium::File | Medium::DaxFile(_), Some(Msync)) => Ok(Msync),
            (Medium::File, Some(declared)) => Err(AttachError::NotDax { declared }),
            (Medium::Device(_), Some(Msync)) => Err(AttachError::NoPageCache),
            (Medium::Device(Some(Adr)) | Medium::DaxFile(Some(Adr)), Some(Eadr)) => {
                Err(AttachError::Stronger { declared: Eadr, found: Adr })
            }
            (Medium::Device(_) | Medium::DaxFile(_), Some(declared)) => Ok(declared),
            (Medium::Device(told) | Medium::DaxFile(told), None) => {
                told.ok_or(AttachError::Unknown)
            }
        }
    }
}

/// What the kernel says of the domain of a device, `char` or `block`.
fn domain_of(sys: &Path, kind: &str, device: u64) -> Option<PersistenceDomain> {
    domain_above(&device_folder(sys, kind, device)?, STACKED_MAX)
}

/// Where the kernel tells of a device, `char` or `block`.
pub(super) fn device_folder(sys: &Path, kind: &str, device: u64) -> Option<PathBuf> {
    let path = format!("dev/{kind}/{}:{}", major(device), minor(device));
    fs::canonicalize(sys.join(path)).ok()
}

/// What a device's region says, or all the devices that it is made of; the weakest counts.
fn domain_above(device: &Path, stacked_max: u32) -> Option<PersistenceDomain> {
    let mut region = device.ancestors().map(|folder| folder.join("persistence_domain"));
    if let Some(told) = region.find_map(|file| fs::read_to_string(file).ok()) {
        return match told.trim() {
            "memory_controller" => Some(PersistenceDomain::Adr),
            "cpu_cache" => Some(PersistenceDomain::Eadr),
            _ => None,
        };
    }
    let parts = fs::read_dir(device.join("slaves")).ok().filter(|_| stacked_max > 0)?;
    let domains = parts.map(|part| {
        let part = fs::canonicalize(part.ok()?.path()).ok()?;
        domain_above(&part, stacked_max - 1)
    });
    // In the order of their declaration ADR is the weaker one.
    domains.collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::temporary::TemporaryDir;
    use PersistenceDomain::{Adr, Eadr, Msync, None as Nothing};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_declared_never_promises_more_than_the_kernel() {
        let ok = |medium: Medium, declared| medium.domain(declared).ok();
        for medium in
            [Medium::Volatile, Medium::File, Medium::Device(None), Medium::DaxFile(Some(Eadr))]
        {
            assert_eq!(ok(medium, Some(Nothing)), Some(Nothing));
        }
        for declared in [None, Some(Adr), Some(Eadr), Some(Msync)] {
            assert!(matches!(Medium::Volatile.domain(declared), Err(AttachError::Volatile)));
        }
        assert_eq!(
            (ok(Medium::File, None), ok(Medium::File, Some(Msync))),
            (Some(Msync), Some(Msync))
        );
        let refused = Medium::File.domain(Some(Adr)).unwrap_err().to_string();
        assert!(refused.contains("domain=adr") && refused.contains("msync"), "{refused}");
        let device = Medium::Device(Some(Adr));
        assert!(matches!(device.domain(Some(Msync)), Err(AttachError::NoPageCache)));
        assert!(matches!(
            device.domain(Some(Eadr)),
            Err(AttachError::Stronger { declared: Eadr, found: Adr })
        ));
        assert_eq!(ok(Medium::DaxFile(None), Some(Msync)), Some(Msync));
        for medium in [Medium::Device(None), Medium::DaxFile(None)] {
            let unknown = medium.domain(None).unwrap_err().to_string();
            assert!(unknown.contains("domain=adr"), "{unknown}");
        }
    }

    #[test]
    fn the_kernels_word_or_a_weaker_one_is_taken_and_the_users_where_it_says_nothing() {
        for medium in [Medium::Device as fn(_) -> _, Medium::DaxFile] {
            let expected = [
                (Some(Adr), None, Adr),
                (Some(Eadr), None, Eadr),
                (Some(Eadr), Some(Adr), Adr),
                (None, Some(Eadr), Eadr),
                (None, Some(Adr), Adr),
            ];
            for (told, declared, domain) in expected {
                assert_eq!(medium(told).domain(declared).ok(), Some(domain));
            }
        }
    }

    #[test]
    fn a_memfd_is_volatile_and_a_file_is_what_its_file_system_makes_it() {
        let memfd = rustix::fs::memfd_create("medium-test", rustix::fs::MemfdFlags::CLOEXEC);
        let memfd = File::from(memfd.unwrap());
        assert_eq!(Medium::of(memfd.as_fd()).unwrap(), Medium::Volatile);
        let null = File::open("/dev/null").unwrap();
        assert_eq!(Medium::of(null.as_fd()).unwrap(), Medium::Device(None));
        let folder = TemporaryDir::new(&std::env::temp_dir(), "medium").unwrap();
        let path = folder.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(4096).unwrap();
        let medium = Medium::of(file.as_fd()).unwrap();
        assert!(!matches!(medium, Medium::Device(_)), "{medium:?}");
    }

    /// The folder of a device under a region that says something of its domain.
    fn device(sys: &Path, region: &str, domain: &str, device: &str) -> std::path::PathBuf {
        let region = sys.join("devices/ndbus0").join(region);
        let folder = region.join(device);
        fs::create_dir_all(&folder).unwrap();
        fs::write(region.join("persistence_domain"), domain).unwrap();
        folder
    }

    #[test]
    fn the_domain_of_a_device_is_that_of_its_region_and_of_a_stack_the_weakest() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "sysfs").unwrap();
        let sys = folder.path();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        let numbered = |number: &str, folder: &Path| {
            symlink(folder, sys.join("dev/block").join(number)).unwrap();
        };
        let adr = device(sys, "region0", "memory_controller\n", "namespace0.0/block/pmem0/pmem0p1");
        let eadr = device(sys, "region1", "cpu_cache\n", "dax1.0/dax/dax1.0");
        let silent = device(sys, "region2", "\n", "namespace2.0/block/pmem2");
        numbered("1:0", &adr);
        numbered("1:1", &eadr);
        numbered("1:2", &silent);
        let stacks = [("1:3", [&adr, &eadr]), ("1:4", [&eadr, &eadr]), ("1:5", [&eadr, &silent])];
        for (number, parts) in stacks {
            let stack = sys.join("devices/virtual/block").join(number);
            fs::create_dir_all(stack.join("slaves")).unwrap();
            for (index, part) in parts.into_iter().enumerate() {
                symlink(part, stack.join("slaves").join(index.to_string())).unwrap();
            }
            numbered(number, &stack);
        }
        let told: Vec<_> =
            (0..7).map(|number| domain_of(sys, "block", rustix::fs::makedev(1, number))).collect();
        let expected = [Some(Adr), Some(Eadr), None, Some(Adr), Some(Eadr), None, None];
        assert_eq!(told, expected);
    }
}
