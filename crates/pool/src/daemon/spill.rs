//! The file of a rack's pages that are not in memory, as a thread beside the poll loop reads and
//! writes it: what the engine asks of it is in `core::spill`.
//!
//! In: jobs, one at a time, and slots that are not needed any more, in the order in which they were
//! said. Out: the ends of jobs, which the loop fetches. A seal is two syncs: the page's bytes are
//! on the device before the header says so, the header before the engine hears of it. The file
//! begins with a block that says to which region it belongs, and whether pages of a lost region of
//! the rack are still to be adopted; a slot is a header and a page. One daemon has the file: its
//! lock ends with the process.
//!
//! Bounds: one job, and an order for each slot that is given back, which is taken before the slot
//! can be used again.

use super::io_error;
use rackpool_core::layout::BLOCK_BYTES;
use rackpool_core::spill::{SLOT_HEADER_BYTES, SlotHeader, SpillDone, SpillJob};
use rackpool_core::{Error, RackId, Result};
use rackpool_mem::{files, log};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use tracing::warn;

/// The first word of the file.
const FILE_MAGIC: u64 = u64::from_le_bytes(*b"RPSPILL\x01");
const IDENTITY_WORDS: usize = 7;
/// Of the first block, which words say the region, and whether there is something to be adopted.
const REGION_WORDS: std::ops::Range<usize> = 1..3;
const ADOPTING_WORD: usize = 6;

/// What a slot's bytes are read from and written to.
pub(super) trait SlotStore: Send + 'static {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// What was written is on the device.
    fn sync(&self) -> io::Result<()>;
    /// Gives a range back; it reads as zero.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()>;
}

impl SlotStore for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self, flags, offset, bytes)?)
    }
}

/// Which file, of which region, and how long.
pub(super) struct SpillOpening {
    pub path: PathBuf,
    pub rack: RackId,
    pub region_id: [u64; 2],
    pub slots: u32,
    pub page_bytes: u64,
    /// The region was just made: it has no page in the file.
    pub is_new: bool,
}

impl SpillOpening {
    fn slot_bytes(&self) -> u64 {
        SLOT_HEADER_BYTES + self.page_bytes
    }

    fn file_bytes(&self) -> u64 {
        BLOCK_BYTES + u64::from(self.slots) * self.slot_bytes()
    }

    /// The first words of the file.
    fn identity(&self, is_adopting: bool) -> [u64; IDENTITY_WORDS] {
        let [high, low] = self.region_id;
        let (rack, slots) = (u64::from(self.rack.0), u64::from(self.slots));
        [FILE_MAGIC, high, low, self.page_bytes, slots, rack, u64::from(is_adopting)]
    }

    fn wrong(&self, what: &str) -> Error {
        Error::BadRegion { reason: format!("the spill file {}: {what}", self.path.display()) }
    }

    /// Opens the file, or makes it for a region that was just made, and locks it; whether pages of
    /// a region before may be in it.
    fn open(&self) -> Result<(File, bool)> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            io_error(&format!("{what} the spill file {}", self.path.display()), error)
        };
        let mut options = File::options();
        options.read(true).write(true).create(self.is_new).truncate(false).mode(0o600);
        let file = options.open(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if !self.is_new => self.wrong(
                "it is gone, and pages of this rack may be in it: put it back, or remove the \
                 rack's region as well",
            ),
            _ => failed("open", &error),
        })?;
        files::lock(&file).map_err(|_| self.wrong("another daemon has it"))?;
        let is_file = file.metadata().map_err(|error| failed("look at", &error))?.is_file();
        if !is_file {
            return Err(self.wrong("it is no file"));
        }
        let found_bytes = file.metadata().map_err(|error| failed("look at", &error))?.len();
        let found = match found_bytes {
            0 => [0; IDENTITY_WORDS],
            _ => read_identity(&file).map_err(|error| failed("read", &error))?,
        };
        let is_adopting = found[ADOPTING_WORD] != 0;
        let (mut old, mut own) = (found, self.identity(is_adopting));
        if self.is_new {
            // Another region of this rack may have been here.
            old[REGION_WORDS].fill(0);
            own[REGION_WORDS].fill(0);
        }
        if old == own && found_bytes == self.file_bytes() {
            if self.is_new {
                write_identity(&file, &self.identity(true))
                    .map_err(|error| failed("write", &error))?;
            }
            return Ok((file, self.is_new || is_adopting));
        }
        // Empty, or cut off before it was made; no file of anything else.
        let is_blank = found == [0; IDENTITY_WORDS];
        if !self.is_new || !is_blank || ![0, self.file_bytes()].contains(&found_bytes) {
            return Err(self.wrong(
                "it is of another rack or region, or of another size: name the one that was made \
                 with this region, or remove it and lose its pages",
            ));
        }
        self.format(&file).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => self.wrong(
                "its file system cannot punch holes, so that freed pages would stay readable: \
                 put it on one that can, such as ext4, xfs, btrfs",
            ),
            _ => failed("make", &error),
        })?;
        Ok((file, false))
    }

    /// Makes a file that is empty; what it belongs to comes last.
    fn format(&self, file: &File) -> io::Result<()> {
        file.set_len(self.file_bytes())?;
        // What was freed would stay readable where that cannot be done.
        file.punch(0, self.file_bytes())?;
        file.sync_all()?;
        write_identity(file, &self.identity(false))?;
        file.sync_all()?;
        // The name as well.
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        File::open(parent)?.sync_all()
    }
}

fn read_identity(store: &impl SlotStore) -> io::Result<[u64; IDENTITY_WORDS]> {
    let mut bytes = [0; 8 * IDENTITY_WORDS];
    store.read_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
}

fn write_identity(store: &impl SlotStore, words: &[u64; IDENTITY_WORDS]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    store.write_at(&bytes, 0)?;
    store.sync()
}

enum Order {
    Job(SpillJob),
    Punch {
        first: u32,
        count: u32,
    },
    /// What was to be adopted has been.
    Adopted,
}

/// The thread, as the poll loop sees it. It ends with this.
pub(super) struct SpillThread {
    orders: Option<Sender<Order>>,
    ends: Receiver<Result<SpillDone>>,
    thread: Option<JoinHandle<()>>,
}

impl SpillThread {
    /// Opens the file and begins to serve it. If pages of a region before may be in it: the headers
    /// of all slots that have one, else none.
    ///
    /// # Errors
    /// `bad-region` for a file that is not this region's, or that is gone; `io`.
    pub(super) fn open(opening: SpillOpening) -> Result<(SpillThread, Vec<(u32, SlotHeader)>)> {
        let (store, is_adopting) = opening.open()?;
        let file = SpillSlots { store, opening };
        let found = if is_adopting { file.headers()? } else { Vec::new() };
        Ok((SpillThread::start(file)?, found))
    }

    fn start(file: SpillSlots<impl SlotStore>) -> Result<SpillThread> {
        let (orders, queue) = channel();
        let (end, ends) = channel();
        let thread = log::spawn("rackpool-spill", move || file.serve(&queue, &end))
            .map_err(|error| io_error("spill thread", &error))?;
        Ok(SpillThread { orders: Some(orders), ends, thread: Some(thread) })
    }

    pub(super) fn begin(&mut self, job: SpillJob) {
        self.order(Order::Job(job));
    }

    pub(super) fn punch(&mut self, first: u32, count: u32) {
        self.order(Order::Punch { first, count });
    }

    pub(super) fn adopted(&mut self) {
        self.order(Order::Adopted);
    }

    fn order(&self, order: Order) {
        let orders = self.orders.as_ref().expect("they go when this is dropped");
        // If the thread has died, the job's end says so.
        let _ = orders.send(order);
    }

    pub(super) fn ended(&mut self) -> Option<Result<SpillDone>> {
        match self.ends.try_recv() {
            Ok(end) => Some(end),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(io_error("spill thread", &"it has ended before its time")))
            }
        }
    }
}

impl Drop for SpillThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!(target: "daemon", "the spill thread has panicked");
        }
    }
}

struct SpillSlots<S> {
    store: S,
    opening: SpillOpening,
}

impl<S: SlotStore> SpillSlots<S> {
    fn serve(&self, queue: &Receiver<Order>, end: &Sender<Result<SpillDone>>) {
        for order in queue {
            match order {
                Order::Job(job) => {
                    if end.send(self.run(&job)).is_err() {
                        return;
                    }
                }
                Order::Punch { first, count } => self.punch(first, count),
                Order::Adopted => self.adopted(),
            }
        }
    }

    /// What the slots have that have a page.
    fn headers(&self) -> Result<Vec<(u32, SlotHeader)>> {
        let mut found = Vec::new();
        for slot in 0..self.opening.slots {
            let SpillDone::Read(bytes) = self.run(&SpillJob::ReadHeader { slot })? else {
                continue;
            };
            found.extend(SlotHeader::decode(&bytes).map(|header| (slot, header)));
        }
        Ok(found)
    }

    /// If this fails, it is found out once more what was adopted.
    fn adopted(&self) {
        if let Err(error) = write_identity(&self.store, &self.opening.identity(false)) {
            warn!(target: "daemon", "writing {}: {error}", self.opening.path.display());
        }
    }

    fn header_at(&self, slot: u32) -> u64 {
        BLOCK_BYTES + u64::from(slot) * self.opening.slot_bytes()
    }

    fn run(&self, job: &SpillJob) -> Result<SpillDone> {
        let (slot, result) = match job {
            SpillJob::Write { slot, offset, data } => (*slot, self.write(*slot, *offset, data)),
            SpillJob::Seal { slot, header } => (*slot, self.seal(*slot, header)),
            SpillJob::ReadHeader { slot } => {
                (*slot, self.read(self.header_at(*slot), SLOT_HEADER_BYTES))
            }
            SpillJob::Read { slot, offset, bytes } => {
                let at = self.header_at(*slot) + SLOT_HEADER_BYTES + offset;
                (*slot, self.read(at, *bytes))
            }
        };
        result.map_err(|error| {
            let path = self.opening.path.display();
            io_error(&format!("slot {slot} of the spill file {path}"), &error)
        })
    }

    fn write(&self, slot: u32, offset: u64, data: &[u8]) -> io::Result<SpillDone> {
        let at = self.header_at(slot) + SLOT_HEADER_BYTES + offset;
        self.store.write_at(data, at)?;
        Ok(SpillDone::Written)
    }

    fn seal(&self, slot: u32, header: &[u8]) -> io::Result<SpillDone> {
        self.store.sync()?;
        self.store.write_at(header, self.header_at(slot))?;
        self.store.sync()?;
        Ok(SpillDone::Sealed)
    }

    fn read(&self, at: u64, bytes: u64) -> io::Result<SpillDone> {
        let mut data = vec![0; bytes as usize];
        self.store.read_at(&mut data, at)?;
        Ok(SpillDone::Read(data))
    }

    /// What cannot be given back costs room in the file system and nothing else.
    fn punch(&self, first: u32, count: u32) {
        let bytes = u64::from(count) * self.opening.slot_bytes();
        if let Err(error) = self.store.punch(self.header_at(first), bytes) {
            let path = self.opening.path.display();
            warn!(target: "daemon", "giving back {bytes} bytes of {path}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::{Generation, PageId};
    use rackpool_mem::temporary::TemporaryDir;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    const PAGE: u64 = 8192;

    fn opening(path: PathBuf, is_new: bool) -> SpillOpening {
        SpillOpening {
            path,
            rack: RackId(3),
            region_id: [1, 2],
            slots: 4,
            page_bytes: PAGE,
            is_new,
        }
    }

    fn ended(thread: &mut SpillThread) -> Result<SpillDone> {
        for _ in 0..2000 {
            if let Some(end) = thread.ended() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the job does not end")
    }

    fn done(thread: &mut SpillThread, job: SpillJob) -> Result<SpillDone> {
        thread.begin(job);
        ended(thread)
    }

    fn spilled(thread: &mut SpillThread, slot: u32) {
        let data = vec![slot as u8 + 1; PAGE as usize];
        let written = done(thread, SpillJob::Write { slot, offset: 0, data });
        assert_eq!(written, Ok(SpillDone::Written));
        let header = vec![7; SLOT_HEADER_BYTES as usize];
        assert_eq!(done(thread, SpillJob::Seal { slot, header }), Ok(SpillDone::Sealed));
    }

    #[test]
    fn what_is_written_to_a_slot_is_there_for_the_next_daemon_and_gone_once_punched() {
        let dir = TemporaryDir::new(&std::env::temp_dir(), "spill").unwrap();
        let path = dir.path().join("rack0.spill");
        let (mut thread, found) = SpillThread::open(opening(path.clone(), true)).unwrap();
        assert_eq!(found, []);
        (0..4).for_each(|slot| spilled(&mut thread, slot));
        drop(thread);
        let (mut thread, _) = SpillThread::open(opening(path.clone(), false)).unwrap();
        thread.punch(1, 2);
        for slot in 0..4 {
            let expected = if (1..3).contains(&slot) { 0 } else { slot as u8 + 1 };
            let bytes = PAGE / 2;
            let read = done(&mut thread, SpillJob::Read { slot, offset: bytes, bytes });
            assert_eq!(read, Ok(SpillDone::Read(vec![expected; bytes as usize])), "{slot}");
        }
        let header = done(&mut thread, SpillJob::ReadHeader { slot: 3 });
        assert_eq!(header, Ok(SpillDone::Read(vec![7; SLOT_HEADER_BYTES as usize])));
        let second = SpillThread::open(opening(path, false)).err().unwrap();
        assert!(second.to_string().contains("another daemon has it"), "{second}");
    }

    #[test]
    fn a_file_of_another_region_or_size_or_none_is_refused() {
        let dir = TemporaryDir::new(&std::env::temp_dir(), "spill").unwrap();
        let path = dir.path().join("rack0.spill");
        let missing = SpillThread::open(opening(path.clone(), false)).err().unwrap();
        assert_eq!(missing.code(), "bad-region");
        drop(SpillThread::open(opening(path.clone(), true)).unwrap());
        let mine = || opening(path.clone(), false);
        for other in [
            SpillOpening { region_id: [1, 3], ..mine() },
            SpillOpening { slots: 5, ..mine() },
            SpillOpening { page_bytes: 2 * PAGE, ..mine() },
            SpillOpening { rack: RackId(4), is_new: true, ..mine() },
        ] {
            assert_eq!(SpillThread::open(other).err().unwrap().code(), "bad-region");
        }
        drop(SpillThread::open(mine()).unwrap());
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        assert_eq!(SpillThread::open(mine()).err().unwrap().code(), "bad-region");
    }

    #[test]
    fn a_new_region_of_the_rack_hears_of_the_slots_until_it_has_adopted_them() {
        let dir = TemporaryDir::new(&std::env::temp_dir(), "spill").unwrap();
        let path = dir.path().join("rack0.spill");
        let (mut thread, _) = SpillThread::open(opening(path.clone(), true)).unwrap();
        let header = SlotHeader {
            page: PageId(9),
            generation: Generation(2),
            lock_token: 0,
            sum: 1,
            state: 2,
            objects: Vec::new(),
        };
        let seal = SpillJob::Seal { slot: 2, header: header.encode() };
        assert_eq!(done(&mut thread, seal), Ok(SpillDone::Sealed));
        drop(thread);
        let found = [(2, header)];
        let next = |is_new| SpillOpening { region_id: [8, 9], ..opening(path.clone(), is_new) };
        // The second daemon finds the region and the file as the first one left them.
        for is_new in [true, false] {
            let (_, told) = SpillThread::open(next(is_new)).unwrap();
            assert_eq!(told, found);
        }
        let (mut thread, _) = SpillThread::open(next(false)).unwrap();
        thread.adopted();
        drop(thread);
        assert_eq!(SpillThread::open(next(false)).unwrap().1, []);
        let old = SpillThread::open(opening(path.clone(), false)).err().unwrap();
        assert_eq!(old.code(), "bad-region", "the region before has no file any more");
    }

    /// Says what it was asked, and fails from some call on.
    #[derive(Clone, Default)]
    struct Script {
        calls: Arc<Mutex<Vec<&'static str>>>,
        fails: bool,
    }

    impl Script {
        fn call(&self, name: &'static str) -> io::Result<()> {
            self.calls.lock().unwrap().push(name);
            match self.fails {
                true => Err(rustix::io::Errno::NOSPC.into()),
                false => Ok(()),
            }
        }
    }

    impl SlotStore for Script {
        fn read_at(&self, _bytes: &mut [u8], _offset: u64) -> io::Result<()> {
            self.call("read")
        }
        fn write_at(&self, bytes: &[u8], _offset: u64) -> io::Result<()> {
            self.call(if bytes.len() as u64 == SLOT_HEADER_BYTES { "header" } else { "bytes" })
        }
        fn sync(&self) -> io::Result<()> {
            self.call("sync")
        }
        fn punch(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
            self.call("punch")
        }
    }

    #[test]
    fn bytes_are_on_the_device_before_the_header_and_that_before_the_end() {
        let script = Script::default();
        let file = SpillSlots { store: script.clone(), opening: opening("/".into(), true) };
        let mut thread = SpillThread::start(file).unwrap();
        spilled(&mut thread, 0);
        assert_eq!(*script.calls.lock().unwrap(), ["bytes", "sync", "header", "sync"]);
    }

    #[test]
    fn an_error_of_the_device_is_the_end_of_the_job_and_the_next_one_is_served() {
        let script = Script { fails: true, ..Script::default() };
        let file = SpillSlots { store: script, opening: opening("/f".into(), true) };
        let mut thread = SpillThread::start(file).unwrap();
        thread.punch(0, 4);
        for _ in 0..2 {
            let data = vec![1; PAGE as usize];
            let end = done(&mut thread, SpillJob::Write { slot: 2, offset: 0, data });
            let Err(Error::Io { what, reason }) = end else { panic!("{end:?}") };
            assert!(what.contains("slot 2 of the spill file /f"), "{what}");
            assert!(reason.contains("No space left"), "{reason}");
        }
    }
}
