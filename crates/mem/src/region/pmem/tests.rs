//! Regions in ordinary files: what is kept, what is refused, and what the header says afterwards.

use super::*;
use crate::region::Section;
use crate::region::files::tests::format;
use std::os::unix::fs::FileExt;

/// A file of one test, which goes with it.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let name = format!("rackpool-pmem-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn spec(&self, keys: &str) -> MemorySpec {
        format!("pmem:{}{keys}", self.0.display()).parse().unwrap()
    }

    fn file(&self) -> std::fs::File {
        std::fs::File::options().read(true).write(true).open(&self.0).unwrap()
    }

    fn header(&self) -> PmemHeader {
        find(&self.0).unwrap().unwrap().header.unwrap()
    }

    /// Writes the header as a daemon of other circumstances would have.
    fn set_header(&self, change: impl Fn(&mut PmemHeader)) {
        let mut header = self.header();
        change(&mut header);
        let (header, at) = header.next();
        self.file().write_all_at(&header.to_bytes(), at).unwrap();
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const SIZE: &str = "?size=4M&pages=64K";

fn make(file: &TestFile, keys: &str) -> RegionFiles {
    let mut region = RegionFiles::create(&file.spec(keys)).unwrap();
    format(&region, 1);
    region.publish().unwrap();
    region
}

fn refusal(file: &TestFile, keys: &str) -> String {
    RegionFiles::open(&file.spec(keys)).unwrap_err().to_string()
}

#[test]
fn a_region_in_a_file_is_made_kept_and_removed() {
    let file = TestFile::new("kept");
    let spec = file.spec(SIZE);
    assert!(!RegionFiles::exists(&spec).unwrap());
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::Absent { .. })));
    let region = RegionFiles::create(&spec).unwrap();
    assert!(!RegionFiles::exists(&spec).unwrap(), "not formatted");
    drop(region);
    // Its making was cut off: it is gone on with.
    let region = make(&file, SIZE);
    let pages = region.map_persistent(Section::Pages).unwrap();
    assert_eq!(pages.domain(), PersistenceDomain::Msync);
    pages.store(64, 77);
    assert_eq!(pages.persist(64, 8), Ok(()));
    assert!(matches!(RegionFiles::open(&spec), Err(RegionError::Locked { .. })));
    drop((pages, region));

    assert!(matches!(RegionFiles::create(&spec), Err(RegionError::Exists { .. })));
    let region = RegionFiles::open(&file.spec("")).unwrap();
    let pages = region.map(Section::Pages).unwrap();
    assert_eq!((pages.load(64), region.lost_power()), (77, false));
    // What is freed is wiped.
    region.punch_pages(0, 64 << 10).unwrap();
    assert_eq!(pages.load(64), 0);
    drop((pages, region));
    assert!(RegionFiles::remove_path(&spec).unwrap());
    assert!(!file.0.exists() && !RegionFiles::remove_path(&spec).unwrap());
}

#[test]
fn what_is_not_the_regions_own_file_is_refused() {
    let file = TestFile::new("refused");
    std::fs::write(&file.0, vec![1; 1 << 20]).unwrap();
    let spec = file.spec(SIZE);
    for error in [RegionFiles::open(&spec).unwrap_err(), RegionFiles::create(&spec).unwrap_err()] {
        assert!(error.to_string().contains("no region of pmem:"), "{error}");
    }
    std::fs::remove_file(&file.0).unwrap();
    drop(make(&file, SIZE));
    assert!(refusal(&file, "?size=8M").contains("has size 4M, asked for is 8M"));
    for domain in ["adr", "eadr"] {
        let error = refusal(&file, &format!("?domain={domain}"));
        assert!(error.contains("only msync makes it durable"), "{error}");
    }
    let bytes = file.file().metadata().unwrap().len();
    for other in [bytes + 4096, bytes - 4096] {
        file.file().set_len(other).unwrap();
        let error = RegionFiles::open(&file.spec("")).unwrap_err();
        assert!(matches!(error, RegionError::WrongLength { .. }), "{error}");
        file.file().set_len(bytes).unwrap();
    }
    file.set_header(|header| header.align_bytes *= 2);
    assert!(refusal(&file, "").contains("multiples of 8192"));
    file.set_header(|header| (header.align_bytes, header.version) = (4096, 2));
    assert!(refusal(&file, "").contains("has version 2"));
}

#[test]
fn a_header_before_another_region_than_its_own_is_refused() {
    let file = TestFile::new("parts");
    let mut region = make(&file, SIZE);
    region.note_attached().unwrap();
    drop(region);
    assert_eq!(file.header().region_id, [1, 2]);
    drop(RegionFiles::open(&file.spec("")).unwrap());
    file.set_header(|header| header.region_id = [3, 4]);
    assert!(refusal(&file, "").contains("parts of different memories"));
    file.set_header(|header| header.region_id = [0, 0]);
    drop(RegionFiles::open(&file.spec("")).unwrap());
}

#[test]
fn one_torn_copy_of_the_header_is_made_up_for_by_the_other() {
    let file = TestFile::new("torn");
    drop(make(&file, SIZE));
    let newer = file.header().sequence;
    let tear = |copy| file.file().write_all_at(&[0xff], copy * PMEM_COPY_BYTES + 40).unwrap();
    tear(newer % PMEM_COPIES);
    assert_eq!(file.header().sequence, newer - 1);
    drop(RegionFiles::open(&file.spec("")).unwrap());
    tear((newer + 1) % PMEM_COPIES);
    assert!(refusal(&file, "").contains("missing or torn"));
}

#[test]
fn another_boot_is_a_loss_of_power_until_a_daemon_has_attached() {
    let file = TestFile::new("boot");
    drop(make(&file, SIZE));
    file.set_header(|header| header.boot[0] ^= 1);
    let mut region = RegionFiles::open(&file.spec("")).unwrap();
    assert!(region.lost_power());
    drop(region);
    region = RegionFiles::open(&file.spec("")).unwrap();
    assert!(region.lost_power(), "the last daemon had not attached");
    region.note_attached().unwrap();
    assert!(!region.lost_power());
    assert_eq!((file.header().power_losses, file.header().in_use), (1, 1));
    region.note_stopped().unwrap();
    drop(region);
    // It was stopped in order: another boot loses nothing then.
    file.set_header(|header| header.boot[0] ^= 1);
    let mut region = RegionFiles::open(&file.spec("")).unwrap();
    assert!(region.lost_power());
    region.note_attached().unwrap();
    assert_eq!(file.header().power_losses, 1);
}

#[test]
fn a_refused_domain_leaves_no_file_that_was_not_there() {
    let file = TestFile::new("refused");
    let wrong = file.spec(&format!("{SIZE}&domain=adr"));
    let refused = || RegionFiles::create(&wrong).unwrap_err().to_string();
    assert!(refused().contains("MAP_SYNC"));
    assert!(!file.0.exists());
    drop(RegionFiles::create(&file.spec(SIZE)).unwrap());
    assert!(refused().contains("MAP_SYNC"));
    assert!(file.0.exists());
}

#[test]
fn without_a_domain_nothing_is_promised_after_a_loss_of_power() {
    let file = TestFile::new("none");
    let none = "?domain=none";
    let mut region = make(&file, &format!("{SIZE}&domain=none"));
    let pages = region.map_persistent(Section::Pages).unwrap();
    assert_eq!(pages.persist(0, 8), Err(PersistError::Volatile));
    drop(pages);
    region.note_stopped().unwrap();
    drop(region);
    file.set_header(|header| header.boot[0] ^= 1);
    let mut region = RegionFiles::open(&file.spec(none)).unwrap();
    region.note_attached().unwrap();
    drop(region);
    file.set_header(|header| header.boot[0] ^= 1);
    for keys in [none, ""] {
        assert!(refusal(&file, keys).contains("served with domain=none"), "{keys}");
    }
}

#[test]
fn a_device_that_lost_what_had_reached_it_is_refused() {
    let file = TestFile::new("dirty");
    drop(make(&file, SIZE));
    let found = find(&file.0).unwrap().unwrap();
    let mut pmem = Pmem::new(&found, found.header.unwrap(), None, &file.0).unwrap();
    pmem.medium = Medium::Device(None);
    for (before, now, in_use, is_refused) in
        [(3, 4, 1, true), (3, 3, 1, false), (3, 4, 0, false), (0, 4, 1, false), (3, 0, 1, false)]
    {
        (pmem.header.dirty_shutdowns, pmem.dirty_shutdowns) = (before, now);
        pmem.header.in_use = in_use;
        let checked = pmem.check_loss(&file.0);
        assert_eq!(checked.is_err(), is_refused, "{before} {now} {in_use}");
    }
}
