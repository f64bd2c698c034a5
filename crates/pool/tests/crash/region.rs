//! Regions that are gone, full, damaged, foreign or very large: a typed error each, in time, and
//! all other processes go on. Real processes; see `tools`.

use crate::tools::stage::{MEMORY, Stage, files};
use crate::tools::{PATIENCE, Random, busy, seed};
use rackpool::FabricChoice::Tcp;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::{GAddr, Handle, Placement, RackId};
use rackpool_core::layout::Superblock;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;

#[test]
fn after_a_reboot_the_pages_of_the_old_region_are_lost_and_all_others_are_there() {
    let _turn = busy();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let mut near = stage.pool(0, Tcp).handle().unwrap();
    let mut far = stage.pool(1, Tcp).handle().unwrap();
    let old = near.alloc(3 * PAGE, Placement::Rack(RackId(0))).unwrap();
    let small = near.alloc(64, Placement::Rack(RackId(0))).unwrap();
    let kept = near.alloc(3 * PAGE, Placement::Rack(RackId(1))).unwrap();
    for addr in [old, small, kept] {
        near.write(addr, b"written").unwrap();
        far.read(addr, &mut [0; 7]).unwrap();
    }
    stage.kill_daemon(0);
    stage.remove_region(0);
    stage.start_daemon(0);
    stage.daemon(0).wait_stderr("pages of the old one are lost");
    stage.master.as_ref().unwrap().wait_stderr("DATA LOST: rack 0");

    let mut fresh = stage.pool(0, Tcp).handle().unwrap();
    // The old region's client makes a call, by which it notices.
    let new = near.alloc(PAGE, Placement::Rack(RackId(0)));
    let new = new.or_else(|error| {
        assert_eq!(error.code(), "outcome-unknown", "{error}");
        near.alloc(PAGE, Placement::Rack(RackId(0)))
    });
    let new = new.unwrap();
    near.write(new, b"again").unwrap();
    for handle in [&mut fresh, &mut far, &mut near] {
        let mut found = [0; 7];
        for addr in [old, GAddr(old.0 + 2 * PAGE), small] {
            let error = handle.read(addr, &mut found).unwrap_err();
            assert_eq!(error.code(), "lost", "{error}");
            assert_eq!(handle.write(addr, &found).unwrap_err().code(), "lost");
            assert_eq!(handle.fetch_add(addr, 1).unwrap_err().code(), "lost");
        }
        assert!(["lost", "bad-free"].contains(&handle.free(old, 3 * PAGE).unwrap_err().code()));
        handle.read(kept, &mut found).unwrap();
        assert_eq!(&found, b"written");
        handle.read(new, &mut found[..5]).unwrap();
        assert_eq!(&found[..5], b"again");
    }
    assert_eq!(fresh.admin().pool_stats().unwrap().master.pages_lost, 4);
    drop((near, far, fresh));
    stage.finish();
}

/// A file system of its own, which is full before the machine is.
struct Mount(PathBuf);

impl Mount {
    /// `None` if this process may not mount.
    fn new(bytes: u64) -> Option<Mount> {
        let dir = std::env::temp_dir().join(format!("rackpool-crash-mount-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let options = format!("size={bytes}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&dir).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mount(dir)),
            other => {
                eprintln!("cannot mount: {other:?}");
                let _ = std::fs::remove_dir(&dir);
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Everything that a call gives until it fails, and why it failed.
fn until_error<T>(mut call: impl FnMut() -> rackpool::Result<T>) -> (Vec<T>, rackpool::Error) {
    let mut all = Vec::new();
    loop {
        match call() {
            Ok(one) => all.push(one),
            Err(error) => return (all, error),
        }
    }
}

#[test]
fn a_full_file_system_is_a_typed_error_with_numbers_and_never_a_dead_process() {
    let _turn = busy();
    let Some(mount) = Mount::new(8 << 20) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "tmpfs cannot be mounted here");
        eprintln!("SKIPPED: a full file system (needs the right to mount a tmpfs)");
        return;
    };
    let mut stage = Stage::empty("/dev/shm", &[MEMORY, MEMORY]);
    stage.memory[0] = format!("shm:{}/rack0?size=64M&pages=64K", mount.0.display());
    stage.start_master();
    stage.start_daemon(0);
    stage.start_daemon(1);
    let pool = stage.pool(0, Tcp);
    let mut handle = pool.handle().unwrap();
    let (mut held, error) = until_error(|| handle.alloc(2 * PAGE, Placement::Local));
    assert_eq!(error.code(), "full", "{error}");
    assert!(error.to_string().contains("131072 bytes"), "{error}");
    eprintln!("after {} allocations: {error}", held.len());
    assert!((20..64).contains(&held.len()), "{} of 8 MiB", held.len());
    for (index, addr) in held.iter().enumerate() {
        handle.write(*addr, &vec![index as u8; 2 * PAGE as usize]).unwrap();
    }
    // Small objects, new clients and the other rack are told as well, or served.
    let (_, error) = until_error(|| handle.alloc(32 << 10, Placement::Local));
    assert_eq!(error.code(), "full", "{error}");
    let (joined, refused) = until_error(|| pool.handle());
    assert_eq!(refused.code(), "full", "{refused}");
    let far = handle.alloc(2 * PAGE, Placement::Auto).unwrap();
    assert_eq!(handle.explain(far).unwrap().rack, 1, "an overflow finds the other rack");
    assert!(stage.daemon(0).is_alive());
    for (index, addr) in held.iter().enumerate() {
        let mut found = vec![0; 2 * PAGE as usize];
        handle.read(*addr, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == index as u8));
    }
    let freed = held.pop().unwrap();
    handle.free(freed, 2 * PAGE).unwrap();
    drop(joined);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = handle.alloc(2 * PAGE, Placement::Local) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A restart on a full file system finds everything.
    stage.kill_daemon(0);
    stage.start_daemon(0);
    let mut found = vec![1; 2 * PAGE as usize];
    handle.read(held[0], &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    drop((handle, pool));
    stage.kill_daemon(0);
    stage.start_daemon(0);
    stage.finish();
    drop(mount);
}

#[test]
fn a_daemon_killed_while_it_makes_its_region_leaves_nothing_in_the_way() {
    let _turn = busy();
    let seed = seed("killed_makers");
    let mut random = Random::new(seed);
    let mut stage = Stage::empty("/dev/shm", &["size=8G&pages=4K"]);
    stage.start_master();
    let (mut unfinished, mut finished) = (0, 0);
    for round in 0..200 {
        if round >= 25 && unfinished > 0 {
            break;
        }
        let mut daemon = stage.spawn_daemon(0, &stage.memory[0]);
        std::thread::sleep(random.millis(0, 120));
        daemon.kill();
        let region = stage.region_path(0);
        if PathBuf::from(format!("{}.meta", region.display())).exists() {
            finished += 1;
            stage.remove_region(0);
        } else {
            // The next one finds what this one left.
            unfinished += u32::from(!files(&region.display().to_string()).is_empty());
        }
    }
    eprintln!("killed_makers: {unfinished} unfinished regions, {finished} finished");
    assert!(unfinished > 0, "none was killed while it made its region");
    stage.start_daemon(0);
    let mut handle = stage.pool(0, Tcp).handle().unwrap();
    let addr = handle.alloc(1 << 20, Placement::Local).unwrap();
    handle.write(addr, b"there").unwrap();
    drop(handle);
    stage.finish();
}

/// Changes bytes of a file; what was there before.
fn patch(path: &Path, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut before = vec![0; bytes.len()];
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_exact(&mut before).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
    before
}

/// The superblock of a region as another release would have written it.
fn of_version(meta: &Path, version: u32) -> Vec<u8> {
    let mut bytes = std::fs::read(meta).unwrap();
    bytes.truncate(size_of::<Superblock>());
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let block = Superblock {
        magic: word(0),
        version,
        page_shift: bytes[12],
        reserved_0: 0,
        rack: u16::from_le_bytes([bytes[14], bytes[15]]),
        region_id: [word(16), word(24)],
        frame_count: word(32),
        features: word(40),
        sessions: word(48) as u32,
        slots: (word(48) >> 32) as u32,
        tiers: [0; 4],
        reserved: [0; 4],
        checksum: 0,
    };
    let checksum = block.checksum_of();
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[120..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Serves rack 0 again and looks whether its region is as it was.
fn finish_with_kept(mut stage: Stage, mut handle: Handle, addr: GAddr) {
    stage.start_daemon(0);
    let mut found = [0; 4];
    handle.read(addr, &mut found).unwrap();
    assert_eq!(&found, b"kept");
    drop(handle);
    stage.finish();
}

#[test]
fn damaged_foreign_and_doubly_served_regions_are_refused_in_time_and_left_alone() {
    let _turn = busy();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let mut handle = stage.pool(0, Tcp).handle().unwrap();
    let addr = handle.alloc(PAGE, Placement::Local).unwrap();
    handle.write(addr, b"kept").unwrap();
    let memory = stage.memory[0].clone();
    let region = stage.region_path(0);
    let refused = |stage: &Stage, rack: usize, memory: &str, codes: &[&str], what: &str| {
        let started = Instant::now();
        let mut daemon = stage.spawn_daemon(rack, memory);
        let said = daemon.ready().expect_err(what);
        assert_eq!(daemon.exit_code(PATIENCE), Some(1), "{what}: {said}");
        let elapsed = started.elapsed();
        eprintln!("{what}: {said} ({elapsed:?})");
        let code = said.strip_prefix("e start ").unwrap_or(&said);
        assert!(codes.iter().any(|one| code.starts_with(one)), "{what}: {said}");
        assert!(elapsed < Duration::from_secs(10), "{what}: {elapsed:?}");
    };

    refused(&stage, 0, &memory, &["denied", "busy"], "two daemons for one region");
    let other = memory.replace("-rack0", "-rack0-other");
    refused(&stage, 0, &other, &["denied"], "two daemons for one rack");
    let left = files(&format!("{}-other", region.display()));
    assert_eq!(left, Vec::<PathBuf>::new(), "the new region of a daemon that was refused");
    handle.read(addr, &mut [0; 4]).unwrap();

    stage.daemon(0).terminate();
    assert_eq!(stage.daemon(0).exit_code(PATIENCE), Some(0));
    refused(&stage, 1, &memory, &["bad-region", "denied"], "another rack's region");
    let pages = memory.replace("pages=64K", "pages=128K");
    refused(&stage, 0, &pages, &["bad-region"], "another page size");
    let size = memory.replace("size=64M", "size=32M");
    refused(&stage, 0, &size, &["bad-region"], "another size");
    refused(&stage, 0, "shm:/dev/shm/x?colour=red", &["config"], "a memory that makes no sense");

    let meta = PathBuf::from(format!("{}.meta", region.display()));
    for (offset, bytes, code, what) in [
        // Half of its random identity: one byte of it may be there already.
        (20, &[0x55u8; 8][..], "bad-region", "a torn superblock"),
        (0, &[0; 8], "bad-region", "a superblock without its magic"),
        (0, &of_version(&meta, 9), "version", "a region of another version"),
    ] {
        let before = patch(&meta, offset, bytes);
        refused(&stage, 0, &memory, &[code], what);
        assert_eq!(patch(&meta, offset, &before), bytes, "{what}: it was changed");
    }
    let file = std::fs::OpenOptions::new().write(true).open(&region).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes / 2).unwrap();
    refused(&stage, 0, &memory, &["bad-region"], "a file of half its length");
    file.set_len(bytes).unwrap();

    // Every refusal left the region as it was.
    finish_with_kept(stage, handle, addr);
}

#[test]
fn a_daemon_that_no_master_answers_leaves_no_new_region_and_keeps_an_old_one() {
    let _turn = busy();
    let mut stage = Stage::new(&[MEMORY]);
    let mut handle = stage.pool(0, Tcp).handle().unwrap();
    let addr = handle.alloc(PAGE, Placement::Local).unwrap();
    handle.write(addr, b"kept").unwrap();
    // No process listens there any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let new = stage.memory[0].replace("-rack0", "-rack0-other");
    let start = |rack: u16, memory: &str, is_ephemeral: bool| {
        let mut options = DaemonOptions::new(rack, &closed.to_string(), memory);
        (options.ephemeral, options.join_timeout_ms) = (is_ephemeral, 200);
        DaemonServer::start(options).expect_err("there is no master").code()
    };
    stage.daemon(0).terminate();
    assert_eq!(stage.daemon(0).exit_code(PATIENCE), Some(0));
    let prefix = stage.region_path(0).display().to_string();
    let before = files(&prefix);
    for is_ephemeral in [true, false] {
        assert_eq!(start(0, &new, is_ephemeral), "timeout");
        assert_eq!(start(0, &stage.memory[0], is_ephemeral), "timeout");
        assert_eq!(files(&prefix), before, "ephemeral: {is_ephemeral}");
    }
    finish_with_kept(stage, handle, addr);
}

#[test]
fn a_region_of_a_tebibyte_opens_at_once_and_has_little_metadata() {
    let _turn = busy();
    let mut stage = Stage::empty("/dev/shm", &["size=1T"]);
    stage.start_master();
    let mut times = Vec::new();
    for _ in 0..2 {
        let started = Instant::now();
        stage.start_daemon(0);
        let mut handle = stage.pool(0, Tcp).handle().unwrap();
        times.push(started.elapsed());
        let stats = handle.admin().pool_stats().unwrap().racks[0].daemon.clone().unwrap();
        assert_eq!(stats.frames * stats.page_bytes, 1 << 40);
        assert!(stats.metadata_bytes * 1000 < 1 << 40, "{} bytes", stats.metadata_bytes);
        let addr = handle.alloc(2 << 20, Placement::Local).unwrap();
        handle.write(addr, b"far out").unwrap();
        eprintln!("1 TiB: {} bytes of metadata", stats.metadata_bytes);
        drop(handle);
        stage.daemon(0).terminate();
        assert_eq!(stage.daemon(0).exit_code(PATIENCE), Some(0));
    }
    eprintln!("1 TiB: made and joined in {:?}, opened and joined in {:?}", times[0], times[1]);
    assert!(times.iter().all(|time| *time < Duration::from_secs(10)), "{times:?}");
    stage.start_daemon(0);
    stage.finish();
}
