//! Regions on real file systems and by real processes: made, cut off, locked, filled, damaged and
//! removed. Files lie in directories or mounts of the tests' own, which go when their guards are
//! dropped; children of the tests play roles.

use crate::child::{Own, role_and_place};
use rackpool_core::PageGeometry;
use rackpool_core::constants::{SESSIONS_MAX, SLOTS_MAX};
use rackpool_core::layout::{
    BELL_BYTES, LAYOUT_VERSION, MAGIC, RegionLayout, SLOT_BYTES, SUPERBLOCK_OFFSET, Superblock,
};
use rackpool_core::seam::Mem;
use rackpool_mem::process::{ProcessId, monotonic_ns, random_u64};
use rackpool_mem::region::{MemorySpec, RegionError, RegionFiles, Section};
use rackpool_mem::window::{Access, MapOptions, Window};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A directory of this test, on tmpfs.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let name = format!("/dev/shm/rackpool-test-{:x}", random_u64().unwrap());
        std::fs::create_dir(&name).unwrap();
        Dir(name.into())
    }

    fn spec(&self, keys: &str) -> MemorySpec {
        format!("shm:{}/r{keys}", self.0.display()).parse().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A file system of this test, mounted over a directory of its own.
struct Mount(Dir);

impl Mount {
    /// `None`, said aloud, where mounting is impossible; a failure where it must be possible.
    fn new(kind: &str, options: &str) -> Option<Mount> {
        let dir = Dir::new();
        let output = Command::new("mount")
            .args(["-t", kind, "-o", options, "rackpool-test"])
            .arg(&dir.0)
            .output()
            .expect("the program `mount` is there");
        if output.status.success() {
            return Some(Mount(dir));
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "cannot mount {kind}: {why}");
        println!("NOT TESTED: cannot mount {kind} with {options}: {why}");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: mappings of a test that failed may still be there.
        let status = Command::new("umount").arg("-l").arg(&self.0.0).status().unwrap();
        if !std::thread::panicking() {
            assert!(status.success());
        }
    }
}

/// Starts a role and waits until it says that it is where it should be.
fn start(role: &str, spec: &MemorySpec) -> Own {
    let test = "region_files::a_child_plays_its_role";
    let mut own = Own::start(test, role, &spec.to_string(), Stdio::piped());
    let mut out = own.0.stdout.take().unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"READY") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    own
}

fn ready_and_wait() -> ! {
    use std::io::Write;
    std::io::stdout().write_all(b"READY").unwrap();
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_secs(60));
    std::process::exit(1);
}

fn superblock(layout: RegionLayout) -> Superblock {
    let mut block = Superblock {
        magic: MAGIC,
        version: LAYOUT_VERSION,
        page_shift: layout.pages.page_shift(),
        reserved_0: 0,
        rack: 0,
        region_id: [random_u64().unwrap(), 1],
        frame_count: u64::from(layout.frame_count),
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

/// As a daemon makes a region.
fn make(spec: &MemorySpec) -> RegionFiles {
    let mut files = RegionFiles::create(spec).unwrap();
    let mut block = superblock(files.layout());
    block.tiers = files.tiers().words();
    block.checksum = block.checksum_of();
    files.map(Section::Private).unwrap().copy_in(SUPERBLOCK_OFFSET, block.as_bytes());
    files.publish().unwrap();
    files
}

fn map(fd: &OwnedFd, bytes: u64, access: Access) -> std::io::Result<Window> {
    let options = MapOptions::default();
    Window::map(fd.as_fd(), bytes, access, options)
}

/// What a child does; in the parent's own run this test has no role and ends at once.
#[test]
fn a_child_plays_its_role() {
    let Some((role, place)) = role_and_place() else { return };
    let spec: MemorySpec = place.parse().unwrap();
    match role.as_str() {
        "create" => {
            let _files = RegionFiles::create(&spec).unwrap();
            ready_and_wait();
        }
        "serve" => {
            let _files = RegionFiles::open(&spec).unwrap();
            ready_and_wait();
        }
        "slot" => {
            let files = RegionFiles::open(&spec).unwrap();
            let (_, window) = files.create_slot(7).unwrap();
            window.store(SLOT_BYTES - 8, 99);
            ready_and_wait();
        }
        "churn" => {
            std::thread::spawn(move || {
                loop {
                    let files = make(&spec);
                    files.map(Section::Private).unwrap().store(4096, 1);
                    files.create_slot(0).unwrap();
                    files.remove().unwrap();
                }
            });
            ready_and_wait();
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_region_is_made_published_kept_and_removed_without_a_trace() {
    let dir = Dir::new();
    let spec = dir.spec("?size=8M&pages=64K");
    assert!(!RegionFiles::exists(&spec).unwrap());
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::Absent { .. })));
    assert!(!RegionFiles::remove_path(&spec).unwrap());

    let files = make(&spec);
    let layout = files.layout();
    assert_eq!((layout.frame_count, layout.pages_bytes()), (128, 8 << 20));
    assert_eq!(dir.names(), ["r", "r.bell", "r.meta", "r.table"]);
    for (name, bytes) in [
        ("r", layout.pages_bytes()),
        ("r.bell", BELL_BYTES),
        ("r.meta", layout.private_bytes()),
        ("r.table", layout.table_bytes()),
    ] {
        let stat = std::fs::metadata(dir.file(name)).unwrap();
        assert_eq!((stat.len(), stat.permissions().mode() & 0o777), (bytes, 0o600), "{name}");
    }
    files.back_pages(65536, 65536).unwrap();
    files.map(Section::Pages).unwrap().store(65536, 5);
    assert!(matches!(RegionFiles::create(&spec), Err(RegionError::Exists { .. })));
    assert!(RegionFiles::exists(&spec).unwrap());
    drop(files);

    // Without size and pages it is taken as it is.
    let files = RegionFiles::open(&dir.spec("")).unwrap();
    assert_eq!(files.layout(), layout);
    assert_eq!(files.map(Section::Pages).unwrap().load(65536), 5);
    assert_eq!(RegionFiles::inspect(&spec).unwrap().1, layout);
    files.create_slot(3).unwrap();
    files.remove().unwrap();
    assert_eq!(dir.names(), [""; 0]);
    assert!(!RegionFiles::exists(&spec).unwrap());

    make(&spec).create_slot(200).unwrap();
    assert!(RegionFiles::remove_path(&spec).unwrap());
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn a_file_that_another_user_could_write_is_never_made_a_regions() {
    let dir = Dir::new();
    let spec = dir.spec("?size=4M&pages=64K");
    let placed = dir.file("r.meta.unfinished");
    let is_refused = || {
        let refused = RegionFiles::create(&spec).unwrap_err();
        let denied = std::io::ErrorKind::PermissionDenied;
        matches!(refused, RegionError::Io { source, .. } if source.kind() == denied)
    };
    std::fs::write(&placed, "").unwrap();
    std::fs::set_permissions(&placed, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(is_refused());
    std::fs::set_permissions(&placed, std::fs::Permissions::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&placed, Some(65_534), None).unwrap();
        assert!(is_refused());
        std::os::unix::fs::chown(&placed, Some(0), None).unwrap();
    }
    // What we left ourselves is made anew.
    RegionFiles::create(&spec).unwrap().remove().unwrap();
}

#[test]
fn a_region_that_was_never_published_vanishes_or_is_made_anew() {
    let dir = Dir::new();
    let spec = dir.spec("?size=8M&pages=64K");
    let mut files = RegionFiles::create(&spec).unwrap();
    assert!(matches!(files.publish(), Err(RegionError::BadSuperblock { .. })));
    let other = RegionLayout { frame_count: 1, ..files.layout() };
    let private = files.map(Section::Private).unwrap();
    private.copy_in(SUPERBLOCK_OFFSET, superblock(other).as_bytes());
    assert!(matches!(files.publish(), Err(RegionError::OtherGeometry { .. })));
    drop((files, private));
    assert_eq!(dir.names(), [""; 0]);

    let child = start("create", &spec);
    assert!(!RegionFiles::exists(&spec).unwrap());
    assert!(matches!(RegionFiles::create(&spec), Err(RegionError::Locked { .. })));
    assert!(matches!(RegionFiles::remove_path(&spec), Err(RegionError::Locked { .. })));
    child.kill();
    assert_eq!(dir.names(), ["r", "r.bell", "r.meta.unfinished", "r.table"]);
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::Unfinished { .. })));
    std::fs::write(dir.file("r"), b"left over").unwrap();
    let files = make(&spec);
    files.back_pages(0, 65536).unwrap();
    assert_eq!(files.map(Section::Pages).unwrap().load(0), 0);
    drop(files);
    RegionFiles::open(&spec).unwrap();
    assert!(RegionFiles::remove_path(&spec).unwrap());

    start("create", &spec).kill();
    assert!(RegionFiles::remove_path(&spec).unwrap());
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn two_daemons_never_serve_one_region_and_a_dead_or_stopped_one_is_told_apart() {
    let dir = Dir::new();
    let spec = dir.spec("?size=8M&pages=64K");
    drop(make(&spec));
    let child = start("serve", &spec);
    let locked = |result: Result<RegionFiles, RegionError>| match result {
        Err(RegionError::Locked { holder, .. }) => holder,
        other => panic!("{other:?}"),
    };
    assert_eq!(locked(RegionFiles::open(&spec)), Some(child.0.id()));
    child.signal(Signal::STOP);
    assert_eq!(locked(RegionFiles::open(&spec)), Some(child.0.id()));
    assert!(matches!(RegionFiles::remove_path(&spec), Err(RegionError::Locked { .. })));
    assert!(RegionFiles::inspect(&spec).is_ok());
    child.kill();
    let files = RegionFiles::open(&spec).unwrap();
    // A window on the private section keeps the lock as well: its owner may still write.
    let private = files.map(Section::Private).unwrap();
    drop(files);
    assert_eq!(locked(RegionFiles::open(&spec)), Some(ProcessId::own().unwrap().pid));
    drop(private);
    RegionFiles::open(&spec).unwrap();
}

#[test]
fn a_daemon_killed_at_any_moment_leaves_a_whole_region_or_none() {
    let dir = Dir::new();
    let spec = dir.spec("?size=1M&pages=64K");
    let (mut whole, mut unfinished) = (0, 0);
    for round in 0..300 {
        if round >= 30 && whole > 0 && unfinished > 0 {
            break;
        }
        let child = start("churn", &spec);
        let pause_us = random_u64().unwrap() % 20_000;
        std::thread::sleep(Duration::from_micros(pause_us));
        child.kill();
        match RegionFiles::open(&spec) {
            Ok(files) => {
                whole += 1;
                files.remove().unwrap();
            }
            Err(RegionError::Unfinished { .. }) => {
                unfinished += 1;
                drop(make(&spec));
                assert!(RegionFiles::remove_path(&spec).unwrap());
            }
            Err(RegionError::Absent { .. }) => {}
            Err(error) => panic!("round {round} after {pause_us} us: {error}; {:?}", dir.names()),
        }
        assert_eq!(dir.names(), [""; 0], "round {round}");
    }
    println!("{whole} kills left a whole region, {unfinished} an unfinished one");
    assert!(whole > 0 && unfinished > 0, "no kill came in the midst of it");
}

#[test]
fn files_of_somebody_else_are_left_alone() {
    for name in ["r", "r.table", "r.bell"] {
        let dir = Dir::new();
        let spec = dir.spec("?size=8M&pages=64K");
        std::fs::write(dir.file(name), b"precious").unwrap();
        for result in [RegionFiles::create(&spec), RegionFiles::open(&spec)] {
            assert!(matches!(result, Err(RegionError::Foreign { .. })), "{result:?}");
        }
        assert!(!RegionFiles::remove_path(&spec).unwrap());
        assert_eq!(dir.names(), [name]);
        assert_eq!(std::fs::read(dir.file(name)).unwrap(), b"precious");
    }
    let dir = Dir::new();
    std::os::unix::fs::symlink("/dev/null", dir.file("r.meta.unfinished")).unwrap();
    assert!(RegionFiles::create(&dir.spec("?size=8M")).is_err());
    let error = RegionFiles::create(&"shm:/no/such/dir/r?size=8M".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("/no/such/dir: open directory"), "{error}");
    let error = RegionFiles::create(&dir.spec("")).unwrap_err();
    assert!(matches!(error, RegionError::Spec(_)), "{error}");
}

#[test]
fn a_damaged_or_foreign_region_is_refused_and_never_changed() {
    let dir = Dir::new();
    let spec = dir.spec("?size=8M&pages=64K");
    let layout = make(&spec).layout();
    let meta = std::fs::File::options().read(true).write(true).open(dir.file("r.meta")).unwrap();
    let good = superblock(layout);
    let mut other_version = Superblock { version: 9, ..good };
    other_version.checksum = other_version.checksum_of();
    let torn = Superblock { rack: 5, ..good };
    let blank = Superblock { magic: 0, ..good };
    type Test = fn(&RegionError) -> bool;
    let cases: [(Superblock, Test); 3] = [
        (other_version, |error| matches!(error, RegionError::OtherVersion { found: 9, .. })),
        (torn, |error| error.to_string().contains("torn")),
        (blank, |error| error.to_string().contains("does not begin with")),
    ];
    for (block, expected) in cases {
        meta.write_all_at(block.as_bytes(), SUPERBLOCK_OFFSET).unwrap();
        let error = RegionFiles::open(&spec).unwrap_err();
        assert!(expected(&error), "{error}");
        assert!(matches!(RegionFiles::create(&spec), Err(RegionError::Exists { .. })));
        let mut bytes = [0; 128];
        meta.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).unwrap();
        assert_eq!(bytes, block.as_bytes());
    }
    meta.write_all_at(good.as_bytes(), SUPERBLOCK_OFFSET).unwrap();
    for keys in ["?size=16M&pages=64K", "?size=8M&pages=32K", "?size=8M&pages=2M"] {
        let error = RegionFiles::open(&dir.spec(keys)).unwrap_err();
        assert!(matches!(error, RegionError::OtherGeometry { .. }), "{error}");
    }
    for name in ["r", "r.bell", "r.table", "r.meta"] {
        let file = std::fs::File::options().write(true).open(dir.file(name)).unwrap();
        let bytes = file.metadata().unwrap().len();
        for wrong in [bytes - 4096, bytes + 4096] {
            file.set_len(wrong).unwrap();
            let error = RegionFiles::open(&spec).unwrap_err();
            assert!(matches!(error, RegionError::WrongLength { .. }), "{name}: {error}");
        }
        file.set_len(bytes).unwrap();
    }
    RegionFiles::open(&spec).unwrap();
    std::fs::remove_file(dir.file("r.bell")).unwrap();
    let error = RegionFiles::open(&spec).unwrap_err();
    assert!(error.to_string().contains("r.bell"), "{error}");
    meta.set_len(0).unwrap();
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::WrongLength { .. })));
}

#[test]
fn a_full_file_system_is_a_typed_error_and_every_backed_byte_can_be_written() {
    let Some(mount) = Mount::new("tmpfs", "size=8M,mode=700") else { return };
    let dir = &mount.0;
    // Too large already for its own metadata: nothing is left of it.
    let error = RegionFiles::create(&dir.spec("?size=4G&pages=4K")).unwrap_err();
    match error {
        RegionError::NoSpace { asked_bytes, free_bytes, .. } => {
            assert!(asked_bytes > free_bytes && free_bytes <= 8 << 20);
        }
        other => panic!("{other}"),
    }
    assert_eq!(dir.names(), [""; 0]);
    let error = RegionFiles::create(&dir.spec("?size=16M&pages=64K&touch=1")).unwrap_err();
    assert!(matches!(error, RegionError::NoSpace { asked_bytes: 16_777_216, .. }), "{error}");
    assert_eq!(dir.names(), [""; 0]);

    let files = make(&dir.spec("?size=16M&pages=64K"));
    let pages = files.map(Section::Pages).unwrap();
    let mut backed = 0;
    let error = loop {
        match files.back_pages(backed, 65536) {
            Ok(()) => pages.zero(backed, 65536),
            Err(error) => break error,
        }
        pages.store(backed, backed + 1);
        backed += 65536;
    };
    match &error {
        RegionError::NoSpace { asked_bytes: 65536, free_bytes, path } => {
            assert!(*free_bytes < 65536);
            assert_eq!(path, &dir.file("r"));
        }
        other => panic!("{other}"),
    }
    let protocol: rackpool_core::Error = error.into();
    assert_eq!(protocol.code(), "full");
    assert!(backed > 4 << 20, "{backed}");
    assert_eq!(files.backed_bytes().unwrap().pages, backed);
    assert!(files.free_bytes().unwrap() < 65536);

    // Everything else that may be needed meanwhile: refused or there.
    let slots_before = files.slots_present().unwrap();
    assert!(matches!(files.create_slot(1), Err(RegionError::NoSpace { .. })));
    assert_eq!(files.slots_present().unwrap(), slots_before);
    let layout = files.layout();
    let bitmaps = (layout.bitmaps_offset(), layout.copy_bytes() - layout.bitmaps_offset());
    if let Err(error) = files.back_private(bitmaps.0, bitmaps.1) {
        assert!(matches!(error, RegionError::NoSpace { .. }), "{error}");
    }
    let private = files.map(Section::Private).unwrap();
    let head = SUPERBLOCK_OFFSET + 4096;
    private.zero(head, layout.bitmaps_offset() - head);
    files.map(Section::Table).unwrap().zero(0, layout.table_bytes());
    files.map(Section::Bell).unwrap().zero(0, BELL_BYTES);

    // What is there stays; what is freed can be had again, and is zero.
    for offset in (0..backed).step_by(65536) {
        assert_eq!(pages.load(offset), offset + 1);
    }
    // A slot takes 292 KiB.
    files.punch_pages(0, 8 * 65536).unwrap();
    files.create_slot(1).unwrap();
    files.back_pages(65536, 65536).unwrap();
    assert_eq!(pages.load(65536), 0);
    assert_eq!(pages.load(8 * 65536), 8 * 65536 + 1);
    drop((private, pages));
    files.remove().unwrap();
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn slots_come_and_go_one_by_one_and_outlive_their_daemon() {
    let dir = Dir::new();
    let spec = dir.spec("?size=1M&pages=64K");
    drop(make(&spec));
    for odd in ["r.slot-", "r.slot-x", "r.slot-+1", "r.slot-007", "r.slot-256", "s.slot-1"] {
        std::fs::write(dir.file(odd), b"").unwrap();
    }
    start("slot", &spec).kill();
    let files = RegionFiles::open(&spec).unwrap();
    assert_eq!(files.slots_present().unwrap(), [7]);
    let (fd, window) = files.open_slot(7).unwrap();
    assert_eq!(window.load(SLOT_BYTES - 8), 99);
    map(&fd, SLOT_BYTES, Access::ReadWrite).unwrap().store(0, 98);
    assert_eq!(window.load(0), 98);
    assert!(matches!(files.create_slot(7), Err(RegionError::Exists { .. })));
    assert!(matches!(files.open_slot(8), Err(RegionError::Absent { .. })));
    let (_, high) = files.create_slot(SLOTS_MAX - 1).unwrap();
    assert_eq!((high.bytes(), high.load(0)), (SLOT_BYTES, 0));
    assert_eq!(files.slots_present().unwrap(), [7, SLOTS_MAX - 1]);
    let slots_bytes = 2 * SLOT_BYTES;
    assert!(files.backed_bytes().unwrap().metadata > slots_bytes);

    // A slot that was cut off while it was made.
    std::fs::write(dir.file("r.slot-9"), b"").unwrap();
    assert!(matches!(files.open_slot(9), Err(RegionError::WrongLength { .. })));
    for slot in [7, 9, 10] {
        files.remove_slot(slot).unwrap();
    }
    assert_eq!(files.slots_present().unwrap(), [SLOTS_MAX - 1]);
    // The client that has the old one mapped does not meet the next user of the number.
    let (_, next) = files.create_slot(7).unwrap();
    window.store(0, 55);
    assert_eq!(next.load(0), 0);
}

#[test]
fn clients_get_descriptors_with_fewer_rights() {
    let dir = Dir::new();
    let specs = [dir.spec("?size=1M&pages=64K"), "heap:1M?pages=64K".parse().unwrap()];
    for spec in specs {
        let files = make(&spec);
        let bytes = files.layout().table_bytes();
        files.map(Section::Table).unwrap().store(8, 6);
        let table = files.client_fd(Section::Table, Access::ReadOnly).unwrap();
        assert_eq!(map(&table, bytes, Access::ReadOnly).unwrap().load(8), 6);
        let refused = map(&table, bytes, Access::ReadWrite).err().unwrap();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(rustix::fs::ftruncate(&table, 0).is_err());
        files.back_pages(0, 65536).unwrap();
        let pages = files.client_fd(Section::Pages, Access::ReadWrite).unwrap();
        map(&pages, 65536, Access::ReadWrite).unwrap().store(0, 7);
        assert_eq!(files.map(Section::Pages).unwrap().load(0), 7);
        assert!(rustix::io::fcntl_getfd(&pages).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let private = std::panic::AssertUnwindSafe(|| {
            files.client_fd(Section::Private, Access::ReadOnly).is_ok()
        });
        assert!(std::panic::catch_unwind(private).is_err());
    }
}

#[test]
fn pages_whose_lines_software_writes_back_stay_backed_when_they_are_freed() {
    let dir = Dir::new();
    for (keys, left) in [("", 0), ("&coherence=software", 2 * 65536)] {
        let files = RegionFiles::create(&dir.spec(&format!("?size=4M&pages=64K{keys}"))).unwrap();
        files.back_pages(0, 2 * 65536).unwrap();
        let pages = files.map(Section::Pages).unwrap();
        pages.store(65536, 1);
        files.punch_pages(0, 2 * 65536).unwrap();
        assert_eq!(files.backed_bytes().unwrap().pages, left);
        assert_eq!(pages.load(65536), 0);
    }
}

#[test]
fn heap_regions_are_sealed_backed_punched_and_end_with_their_daemon() {
    let spec: MemorySpec = "heap:4M?pages=64K&touch=1".parse().unwrap();
    assert!(!RegionFiles::exists(&spec).unwrap());
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::Absent { .. })));
    assert!(!RegionFiles::remove_path(&spec).unwrap());
    let files = make(&spec);
    assert_eq!(files.backed_bytes().unwrap().pages, 4 << 20);
    let pages = files.client_fd(Section::Pages, Access::ReadWrite).unwrap();
    for bytes in [0, 8 << 20] {
        assert_eq!(rustix::fs::ftruncate(&pages, bytes), Err(rustix::io::Errno::PERM));
    }
    let window = files.map(Section::Pages).unwrap();
    window.store(65536, 1);
    files.punch_pages(65536, 65536).unwrap();
    assert_eq!(files.backed_bytes().unwrap().pages, (4 << 20) - 65536);
    files.back_pages(0, 4 << 20).unwrap();
    assert_eq!(window.load(65536), 0);
    assert!(files.free_bytes().unwrap() > 0);

    let (fd, slot) = files.create_slot(2).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
    assert!(matches!(files.create_slot(2), Err(RegionError::Exists { .. })));
    files.open_slot(2).unwrap().1.store(0, 3);
    assert_eq!((slot.load(0), files.slots_present().unwrap()), (3, vec![2]));
    files.remove_slot(2).unwrap();
    assert!(matches!(files.open_slot(2), Err(RegionError::Absent { .. })));
    files.remove().unwrap();
}

#[test]
fn a_sparse_tebibyte_opens_within_a_second_and_costs_less_than_a_thousandth() {
    let dir = Dir::new();
    let spec = dir.spec("?size=1T");
    let before = monotonic_ns();
    let files = make(&spec);
    let _pages = files.map(Section::Pages).unwrap();
    let made_ms = (monotonic_ns() - before) / 1_000_000;
    let backed = files.backed_bytes().unwrap();
    drop(files);
    let before = monotonic_ns();
    drop(RegionFiles::open(&spec).unwrap());
    let opened_ms = (monotonic_ns() - before) / 1_000_000;
    println!("made in {made_ms} ms, opened in {opened_ms} ms, {backed:?}");
    assert!(made_ms < 10_000 && opened_ms < 10_000, "ten times the goal");
    assert!(backed.pages == 0 && backed.metadata * 1000 < 1 << 40);
    let pages = PageGeometry::new(21).unwrap();
    assert_eq!(
        RegionFiles::inspect(&spec).unwrap().1,
        RegionLayout { pages, frame_count: 1 << 19 }
    );
}

#[test]
fn a_page_that_was_backed_twice_keeps_its_content() {
    let dir = Dir::new();
    let files = make(&dir.spec("?size=1M&pages=64K"));
    let pages = files.map(Section::Pages).unwrap();
    files.back_pages(0, 65536).unwrap();
    pages.store(4096, 9);
    files.back_pages(0, 1 << 20).unwrap();
    assert_eq!(pages.load(4096), 9);
    files.back_pages(1 << 20, 0).unwrap();
    files.punch_private(0, 0).unwrap();
    for (offset, bytes) in [(1 << 20, 1), (u64::MAX, 2)] {
        let outside = std::panic::AssertUnwindSafe(|| files.back_pages(offset, bytes).is_ok());
        assert!(std::panic::catch_unwind(outside).is_err());
    }
}

#[test]
fn huge_pages_on_tmpfs_follow_its_mount_option() {
    let Some(plain) = Mount::new("tmpfs", "size=16M,huge=never") else { return };
    let policy = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let policy = policy.unwrap_or_default();
    if policy.contains("[force]") || policy.contains("[deny]") {
        println!("NOT TESTED: the system overrides mount options: {policy}");
        return;
    }
    let refused = RegionFiles::create(&plain.0.spec("?size=4M&huge=2M")).unwrap_err();
    let expected = format!("remount,huge=within_size {}", plain.0.0.display());
    assert!(refused.to_string().contains(&expected), "{refused}");
    assert_eq!(plain.0.names(), [""; 0]);
    let Some(huge) = Mount::new("tmpfs", "size=16M,huge=within_size") else { return };
    let files = make(&huge.0.spec("?size=4M&huge=2M&touch=1"));
    let pages = files.map(Section::Pages).unwrap();
    pages.store(0, 1);
    assert_eq!(files.backed_bytes().unwrap().pages, 4 << 20);
    // How much of the section huge entries map: all of it, unless memory is too fragmented.
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let path = huge.0.file("r").display().to_string();
    let mut lines = smaps.lines().skip_while(|line| !line.ends_with(&path)).skip(1);
    let mapped = lines.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    println!("{mapped}");
}

#[test]
fn hugetlbfs_holds_pages_but_not_the_small_sections() {
    let Some(mount) = Mount::new("hugetlbfs", "pagesize=2M") else { return };
    let small = RegionFiles::create(&mount.0.spec("?size=4M&pages=4K")).unwrap_err();
    assert!(small.to_string().contains("use pages=2M"), "{small}");
    let beside = RegionFiles::create(&mount.0.spec("?size=4M&huge=2M")).unwrap_err();
    assert!(matches!(beside, RegionError::MetaOnHugetlbfs { .. }), "{beside}");
    let other = RegionFiles::create(&mount.0.spec("?size=1G&huge=1G&pages=1G")).unwrap_err();
    assert!(other.to_string().contains("pagesize=1G"), "{other}");
    let dir = Dir::new();
    let keys = format!("?size=4M&huge=2M&meta={}/r", dir.0.display());
    let spec = mount.0.spec(&keys);
    let files = make(&spec);
    assert_eq!(mount.0.names(), ["r"]);
    assert_eq!(dir.names(), ["r.bell", "r.meta", "r.table"]);
    match files.back_pages(0, 4 << 20) {
        Ok(()) => println!("this machine has huge pages reserved"),
        Err(RegionError::NoSpace { asked_bytes, .. }) => assert_eq!(asked_bytes, 4 << 20),
        Err(error) => panic!("{error}"),
    }
    files.remove().unwrap();
    assert_eq!((mount.0.names().len(), dir.names().len()), (0, 0));
}

#[test]
fn a_device_that_is_none_is_refused_by_every_call() {
    for (text, expected) in [
        ("dax:/dev/dax77.7", "there is no such device"),
        ("dax:/dev/zero?size=1G", "the kernel gives no size for it"),
        ("dax:/etc/passwd", "it is no character device"),
    ] {
        let spec: MemorySpec = text.parse().unwrap();
        for error in [
            RegionFiles::create(&spec).unwrap_err(),
            RegionFiles::open(&spec).unwrap_err(),
            RegionFiles::exists(&spec).unwrap_err(),
            RegionFiles::inspect(&spec).unwrap_err(),
            RegionFiles::remove_path(&spec).unwrap_err(),
        ] {
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
    assert!(Path::new("/etc/passwd").exists());
}

/// Node 0, and those that `RACKPOOL_NODES` says are there.
#[test]
fn every_page_lies_on_the_node_that_was_asked_for() {
    if !Path::new("/sys/devices/system/node/has_memory").exists() {
        println!("NOT TESTED: this kernel has no memory nodes");
        return;
    }
    let nodes = std::env::var("RACKPOOL_NODES").unwrap_or_else(|_| "0".into());
    let dir = Dir::new();
    for node in nodes.split(',') {
        for text in ["heap:16M?".to_owned(), format!("{}&", dir.spec("?size=16M"))] {
            let spec: MemorySpec = format!("{text}numa={node}&touch=1").parse().unwrap();
            let region = RegionFiles::create(&spec).unwrap();
            let pages = region.map(Section::Pages).unwrap().node_pages().unwrap();
            let expected = BTreeMap::from([(node.parse().unwrap(), 4096)]);
            assert_eq!(pages, expected, "pages of 4 KiB by node");
            region.remove().unwrap();
        }
    }
}

/// The first two of those that `RACKPOOL_NODES` says are there, if they are several.
#[test]
fn every_node_has_its_share_of_a_region_on_several() {
    let nodes = std::env::var("RACKPOOL_NODES").unwrap_or_default();
    let nodes: Vec<&str> = nodes.split(',').collect();
    let [first, second, ..] = nodes[..] else {
        println!("NOT TESTED: one memory node");
        return;
    };
    let dir = Dir::new();
    let asked = |shares: &str| dir.spec(&format!("?size=16M&pages=64K&touch=1{shares}"));
    let three_to_one = asked(&format!("&numa={first}:3,{second}:1"));
    let region = make(&three_to_one);
    let placed = |region: &RegionFiles| region.map(Section::Pages).unwrap().node_pages().unwrap();
    let [first, second] = [first, second].map(|node| node.parse::<u16>().unwrap());
    let shares = BTreeMap::from([(first.into(), 3072), (second.into(), 1024)]);
    assert_eq!(placed(&region), shares, "pages of 4 KiB by node");
    let tiers = region.tiers().clone();
    assert_eq!(tiers.ranges().iter().map(|one| one.node).collect::<Vec<_>>(), [first, second]);
    drop(region);
    // The region knows its memories, and others are refused.
    for spec in [&three_to_one, &asked("")] {
        let region = RegionFiles::open(spec).unwrap();
        assert_eq!((region.tiers(), placed(&region)), (&tiers, shares.clone()));
    }
    for other in [format!("&numa={first}"), format!("&numa={first}:1,{second}:1")] {
        let error = RegionFiles::open(&asked(&other)).unwrap_err().to_string();
        assert!(error.contains("192,"), "{error}");
    }
    RegionFiles::remove_path(&three_to_one).unwrap();
}
