//! The flash log on real files, and on a device that fails: at each write, in each region.

mod crashes;
mod device;
mod persistent;

use device::TestDevice;
use rackpool_flash::constants::{FETCHES_MAX, HEAD_BYTES, REGIONS_MIN};
use rackpool_flash::{Error, Flash, FlashAdmission, FlashPut, FlashRecord, Options};
use rackpool_mem::direct::DirectCalls;
use rackpool_mem::temporary::TemporaryDir;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

pub const REGION_BYTES: u64 = 1152 << 10;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub fn options(regions: u64) -> Options {
    let admission = FlashAdmission { rejects_first: false, ..FlashAdmission::default() };
    Options {
        admission,
        region_bytes: REGION_BYTES,
        batch_bytes: 16 << 10,
        index_bytes: 64 << 10,
        flush_after: Duration::from_secs(3600),
        ..Options::new("", HEAD_BYTES + regions * REGION_BYTES)
    }
}

pub fn image(regions: u64) -> Vec<u8> {
    vec![0; options(regions).bytes as usize]
}

/// The hash of a key of a test, which spreads.
pub fn hash(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub fn value(number: u64, version: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|at| number << 32 | version << 16 | at);
    let mut value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    value.truncate(len);
    value
}

pub fn record<'a>(number: u64, version: u64, key: &'a [u8], value: &'a [u8]) -> FlashRecord<'a> {
    FlashRecord { hash: hash(number), key, value, flags: 1, kind: 2, expires: 3, cas: version }
}

pub fn put(flash: &Flash, number: u64, version: u64, len: usize) -> FlashPut {
    let value = value(number, version, len);
    flash.put(&record(number, version, &number.to_le_bytes(), &value), true)
}

/// The version of an item, of which all else is checked.
pub fn read(flash: &Flash, number: u64) -> Option<u64> {
    let item = flash.read(hash(number), &number.to_le_bytes()).unwrap()?;
    assert_eq!((item.flags, item.kind, item.expires), (1, 2, 3));
    assert_eq!(item.value, value(number, item.cas, item.value.len()));
    Some(item.cas)
}

#[test]
fn items_of_a_file_are_there_after_a_restart_and_those_that_are_gone_are_not() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    for (name, calls) in [("a", DirectCalls::Uring), ("b", DirectCalls::Waiting)] {
        let path = folder.path().join(name);
        let options = || Options { path: path.clone(), calls, seed: 7, ..options(6) };
        let (flash, recovered) = Flash::open(options()).unwrap();
        assert!(recovered.is_new && flash.seed() == 7);
        assert!((0..200).all(|n| put(&flash, n, 1, 100 + n as usize) == FlashPut::Taken));
        assert_eq!(put(&flash, 5, 2, 100), FlashPut::Kept);
        assert!((0..200).all(|n| read(&flash, n) == Some(1)), "some wait, some are written");
        flash.sync().unwrap();
        assert!((0..200).all(|n| read(&flash, n) == Some(1)));
        assert_eq!(flash.read(hash(3), b"another key").unwrap(), None);
        assert!((0..50).all(|n| flash.forget(hash(n))) && !flash.forget(hash(0)));
        assert_eq!(put(&flash, 0, 3, 100), FlashPut::Taken);
        let stats = flash.stats();
        assert!(stats.items == 151 && stats.written_bytes > 200 * 100 && stats.read_errors == 0);
        assert!(matches!(Flash::open(options()), Err(Error::Io { source, .. })
            if source.kind() == io::ErrorKind::WouldBlock));
        drop(flash);
        let (flash, recovered) = Flash::open(Options { seed: 8, ..options() }).unwrap();
        assert!(!recovered.is_new && !recovered.is_dropped && recovered.items == 151);
        assert_eq!((flash.seed(), read(&flash, 0), read(&flash, 1)), (7, Some(3), None));
        assert!((50..200).all(|n| read(&flash, n) == Some(1)));
        flash.forget_all();
        assert_eq!((read(&flash, 60), put(&flash, 60, 4, 10)), (None, FlashPut::Taken));
        drop(flash);
        let (flash, recovered) = Flash::open(options()).unwrap();
        assert_eq!((recovered.items, read(&flash, 60)), (1, Some(4)));
    }
}

#[test]
fn what_is_not_its_own_or_of_another_size_is_refused_and_stays() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let path = folder.path().join("foreign");
    std::fs::write(&path, "another program's letters").unwrap();
    let open = |regions| Flash::open(Options { path: path.clone(), ..options(regions) });
    assert!(matches!(open(6), Err(Error::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"another program's letters");
    // As some file systems begin.
    let mut late = vec![0; 65_536];
    late.extend_from_slice(b"_BHRfS_M");
    std::fs::write(&path, &late).unwrap();
    assert!(matches!(open(6), Err(Error::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), late);
    std::fs::remove_file(&path).unwrap();
    drop(open(6).unwrap());
    let len = || path.metadata().unwrap().len();
    let before = len();
    assert!(matches!(open(7), Err(Error::Geometry { what: "size", .. })));
    assert_eq!(len(), before);
    let store = Options { path: path.clone(), is_store: true, ..options(6) };
    assert!(matches!(Flash::open(store), Err(Error::Geometry { found: 0, wanted: 1, .. })));
    assert!(matches!(open(REGIONS_MIN - 1), Err(Error::BadOption { .. })));
    let small = Options { path, region_bytes: 64 << 10, ..options(6) };
    assert!(matches!(Flash::open(small), Err(Error::BadOption { .. })));
}

#[test]
fn the_oldest_items_make_room_and_those_that_were_read_stay() {
    let device = TestDevice::new(image(8));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(8)).unwrap();
    let len = 60_000;
    for n in 0..400 {
        while put(&flash, n, 1, len) == FlashPut::Dropped {
            std::thread::yield_now();
        }
        if n % 3 == 0 {
            flash.sync().unwrap();
        }
        // Read again and again, from the device.
        if n == 1 {
            flash.sync().unwrap();
        }
        assert!(n == 0 || read(&flash, 1) == Some(1), "at {n}");
    }
    flash.sync().unwrap();
    let stats = flash.stats();
    assert!(stats.reinserted > 0 && stats.read_errors + stats.damaged == 0, "{stats:?}");
    let found = (0..400).filter(|n| read(&flash, *n).is_some()).count() as u64;
    assert_eq!(found, stats.items);
    // Three regions are kept free.
    assert!((60..150).contains(&found), "{found}");
    assert!((390..400).all(|n| read(&flash, n) == Some(1)));
}

#[test]
fn a_region_that_fails_is_used_no_more_and_costs_nothing_else() {
    for errno in [EIO, ENOSPC] {
        let device = TestDevice::new(image(9));
        // From its middle on: what it has already stays.
        device.fail_writes(region(1) + REGION_BYTES / 2..region(2), errno);
        device.fail_writes(region(2)..region(3), errno);
        let (flash, _) = Flash::open_on(Box::new(device.clone()), options(9)).unwrap();
        for n in 0..45 {
            assert_eq!(put(&flash, n, 1, 60_000), FlashPut::Taken);
            flash.sync().unwrap();
        }
        assert!((0..45).all(|n| read(&flash, n) == Some(1)));
        let stats = flash.stats();
        assert_eq!((stats.write_errors, stats.retired_regions), (2, 1), "{stats:?}");
        drop(flash);
        // The log goes on behind the failures, also for the next process.
        let (flash, recovered) = Flash::open_on(Box::new(device.clone()), options(9)).unwrap();
        assert_eq!((recovered.items, recovered.dropped_regions), (45, 0));
        for n in 45..400 {
            put(&flash, n, 1, 60_000);
            flash.sync().unwrap();
        }
        assert_eq!(flash.stats().retired_regions, 2);
        assert!((390..400).all(|n| read(&flash, n) == Some(1)));
    }
}

#[test]
fn a_device_that_takes_no_writes_is_said_to_have_failed_and_is_asked_no_more() {
    let device = TestDevice::new(image(6));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(6)).unwrap();
    put(&flash, 0, 1, 100);
    flash.sync().unwrap();
    device.fail_writes(0..u64::MAX, EIO);
    let mut last = FlashPut::Taken;
    for n in 1..100 {
        last = put(&flash, n, 1, 60_000);
        if flash.sync().is_err() {
            break;
        }
    }
    let stats = flash.stats();
    assert!(stats.is_failed && stats.dropped > 0, "{last:?}, {stats:?}");
    assert_eq!(put(&flash, 1000, 1, 100), FlashPut::Dropped);
    assert!(matches!(flash.sync(), Err(Error::Failed { .. })));
    // Its region was to make room for what was tried later.
    assert!(flash.read(hash(0), &0_u64.to_le_bytes()).is_ok());
}

#[test]
fn what_cannot_be_read_is_an_error_once_and_does_not_come_back() {
    let device = TestDevice::new(image(6));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(6)).unwrap();
    for n in 0..10 {
        put(&flash, n, 1, 60_000);
        flash.sync().unwrap();
    }
    device.fail_reads(HEAD_BYTES..HEAD_BYTES + 1);
    let error = flash.read(hash(0), &0_u64.to_le_bytes()).unwrap_err();
    assert!(matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(EIO)));
    device.heal();
    assert_eq!((read(&flash, 0), read(&flash, 1)), (None, Some(1)));
    drop(flash);
    let (flash, _) = Flash::open_on(Box::new(device), options(6)).unwrap();
    assert_eq!((read(&flash, 0), read(&flash, 1)), (None, Some(1)));
}

#[test]
fn nothing_waits_for_a_device_that_does_not_answer() {
    let device = TestDevice::new(image(6));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(6)).unwrap();
    put(&flash, 0, 1, 100);
    flash.sync().unwrap();
    device.hold(true);
    let taken = (1..100).filter(|n| put(&flash, *n, 1, 60_000) == FlashPut::Taken).count();
    assert!((4..=6).contains(&taken), "{taken}");
    assert!(flash.contains(hash(1)) && flash.forget(hash(1)) && !flash.contains(hash(1)));
    let (done, results) = mpsc::channel();
    let mut fetched = 0;
    let busy = loop {
        let done = done.clone();
        let send = move |found| done.send(found).unwrap();
        match flash.fetch(hash(0), &0_u64.to_le_bytes(), send) {
            Ok(()) => fetched += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(busy, Error::Busy { waiting: FETCHES_MAX }));
    device.hold(false);
    for _ in 0..fetched {
        assert_eq!(results.recv().unwrap().unwrap().unwrap().cas, 1);
    }
    flash.sync().unwrap();
    assert_eq!((read(&flash, 1), read(&flash, 2)), (None, Some(1)));
}

#[test]
fn more_is_forgotten_than_can_be_noted_and_then_all_is() {
    let device = TestDevice::new(image(12));
    let index_bytes = 8 << 20;
    let options = || Options { index_bytes, ..options(12) };
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options()).unwrap();
    for n in 0..80_000 {
        while put(&flash, n, 1, 8) == FlashPut::Dropped {
            std::thread::yield_now();
        }
    }
    flash.sync().unwrap();
    let before = flash.stats().items;
    assert!(before > 70_000);
    device.hold(true);
    let gone = (0..80_000).filter(|n| flash.forget(hash(*n))).count();
    device.hold(false);
    drop(flash);
    // As many as can be noted, and the one that was too much.
    assert!((60_000..70_000).contains(&gone), "{gone}");
    let (_, recovered) = Flash::open_on(Box::new(device), options()).unwrap();
    assert_eq!(recovered.items, 0);
}

#[test]
fn what_is_forgotten_is_written_when_it_is_much_and_nothing_else_goes() {
    let device = TestDevice::new(image(12));
    let (flash, _) =
        Flash::open_on(Box::new(device), Options { index_bytes: 8 << 20, ..options(12) }).unwrap();
    for n in 0..80_000 {
        while put(&flash, n, 1, 8) == FlashPut::Dropped {
            std::thread::yield_now();
        }
    }
    flash.sync().unwrap();
    let before = flash.stats();
    // More than can be noted, but not at once; no item comes meanwhile.
    let mut gone = 0;
    for part in 0..4 {
        gone += (part * 19_000..(part + 1) * 19_000).filter(|n| flash.forget(hash(*n))).count();
        let start = std::time::Instant::now();
        // All but those that still wait for more, 64 bytes each.
        while flash.stats().written_bytes - before.written_bytes < (gone as u64 - 9000) * 64 {
            assert!(start.elapsed() < Duration::from_secs(60), "it waits for more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let after = flash.stats();
    assert_eq!((after.items, after.dropped), (before.items - gone as u64, before.dropped));
}

fn region(index: u64) -> u64 {
    HEAD_BYTES + index * REGION_BYTES
}

#[test]
fn what_a_lost_batch_says_to_be_gone_does_not_come_back() {
    let device = TestDevice::new(image(12));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), options(12)).unwrap();
    put(&flash, 0, 1, 100);
    flash.sync().unwrap();
    device.hold(true);
    assert!(flash.forget(hash(0)));
    // One batch says so, which is given up, and one waits behind it.
    assert_eq!(put(&flash, 1, 1, 20_000), FlashPut::Taken);
    assert_eq!(put(&flash, 2, 1, 20_000), FlashPut::Taken);
    device.fail_writes(region(0)..region(3), EIO);
    device.hold(false);
    flash.sync().unwrap();
    device.heal();
    let stats = flash.stats();
    assert_eq!((stats.write_errors, stats.dropped), (3, 1), "{stats:?}");
    drop(flash);
    let (flash, recovered) = Flash::open_on(Box::new(device), options(12)).unwrap();
    assert!(!recovered.is_dropped, "it was closed in order");
    assert_eq!((read(&flash, 0), read(&flash, 1), read(&flash, 2)), (None, None, Some(1)));
}

#[test]
fn a_write_that_is_said_to_have_failed_and_was_done_does_not_come_back() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let (journal, kept) = (folder.path().join("journal"), folder.path().join("kept"));
    let with = |path: &std::path::Path| Options { journal: Some(path.into()), ..options(12) };
    let device = TestDevice::new(image(12));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), with(&journal)).unwrap();
    put(&flash, 0, 1, 100);
    device.fail_writes_that_are_done(region(0)..region(3));
    flash.sync().unwrap();
    // From now on its changes have no word.
    assert!(!flash.contains(hash(0)) && !flash.forget(hash(0)));
    std::fs::copy(&journal, &kept).unwrap();
    let left = TestDevice::new(device.image());
    drop(flash);
    let (flash, recovered) = Flash::open_on(Box::new(left), with(&kept)).unwrap();
    assert!(!recovered.is_dropped);
    assert_eq!(read(&flash, 0), None);
}

#[test]
fn what_has_made_room_does_not_come_back_though_its_region_is_there() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let (journal, kept) = (folder.path().join("journal"), folder.path().join("kept"));
    let with = |path: &std::path::Path| Options { journal: Some(path.into()), ..options(7) };
    let device = TestDevice::new(image(7));
    let (flash, _) = Flash::open_on(Box::new(device.clone()), with(&journal)).unwrap();
    for n in 0.. {
        put(&flash, n, 1, 60_000);
        flash.sync().unwrap();
        if !flash.contains(hash(0)) {
            break;
        }
    }
    // It changes now, without a word for it.
    assert!(!flash.forget(hash(0)));
    std::fs::copy(&journal, &kept).unwrap();
    let left = device.image();
    let old = value(0, 1, 1000);
    assert!(left.windows(1000).any(|bytes| bytes == old), "its bytes are there");
    drop(flash);
    let (flash, recovered) = Flash::open_on(Box::new(TestDevice::new(left)), with(&kept)).unwrap();
    assert!(recovered.items > 10 && !recovered.is_dropped, "{recovered:?}");
    assert_eq!(read(&flash, 0), None);
}

#[test]
fn a_file_in_the_place_of_the_journal_stays() {
    let folder = TemporaryDir::new(&std::env::temp_dir(), "flash").unwrap();
    let path = folder.path().join("flash");
    let gone = folder.path().join("flash.gone");
    std::fs::write(&gone, "letters").unwrap();
    let error = Flash::open(Options { path, ..options(6) }).unwrap_err();
    assert!(
        matches!(&error, Error::Io { source, .. }
        if source.kind() == io::ErrorKind::InvalidData),
        "{error}"
    );
    assert_eq!(std::fs::read(&gone).unwrap(), b"letters");
}
