//! Files and block devices that are read and written past the page cache, several pieces at once.
//!
//! In: transfers, each with a place and memory of the caller. Out: the result of each, once all are
//! done. By io_uring where the system allows it, else one after another by pread and pwrite:
//! threads that call at once are then what runs at once. Called by `rackpool-flash`.
//!
//! Ownership rule: the kernel has the memory of a transfer until `Ring::run` returns, and that
//! returns only when every transfer that the kernel took is completed.

use crate::files;
use crate::log::abort;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{FallocateFlags, FileType, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Places, lengths and memory of transfers are multiples of it: what every device can do.
pub const BLOCK_BYTES: usize = 4096;
/// Transfers that a ring holds at once.
const RING_ENTRIES: u32 = 64;
/// Rings that are kept for the next calls.
const RINGS_MAX: usize = 16;

/// Memory that begins at a multiple of [`BLOCK_BYTES`].
pub struct AlignedBytes {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// So many zeroes. Their memory is taken at its first use.
    pub fn zeroed(len: usize) -> AlignedBytes {
        let memory = vec![0; len + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        assert!(start <= BLOCK_BYTES, "an address can be aligned");
        AlignedBytes { memory, start, len }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

/// Memory of a transfer, and which way it goes.
#[derive(Debug)]
pub enum Buffer<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Buffer<'_> {
    fn len(&self) -> usize {
        match self {
            Buffer::Read(to) => to.len(),
            Buffer::Write(from) => from.len(),
        }
    }
}

/// A piece that is read or written.
#[derive(Debug)]
pub struct DirectTransfer<'a> {
    /// Where it begins on the device, bytes.
    pub offset: u64,
    pub buffer: Buffer<'a>,
    /// What came of it; `Ok` before.
    pub result: io::Result<()>,
}

impl<'a> DirectTransfer<'a> {
    pub fn read(offset: u64, to: &'a mut [u8]) -> DirectTransfer<'a> {
        DirectTransfer { offset, buffer: Buffer::Read(to), result: Ok(()) }
    }

    pub fn write(offset: u64, from: &'a [u8]) -> DirectTransfer<'a> {
        DirectTransfer { offset, buffer: Buffer::Write(from), result: Ok(()) }
    }

    /// Does what is left of it behind `done` bytes, by calls that wait.
    fn finish(&mut self, file: &File, done: usize) {
        let at = self.offset + done as u64;
        self.result = match &mut self.buffer {
            Buffer::Read(to) => file.read_exact_at(&mut to[done..], at),
            Buffer::Write(from) => file.write_all_at(&from[done..], at),
        };
    }
}

struct Ring(IoUring);

impl Ring {
    fn new() -> io::Result<Ring> {
        Ok(Ring(IoUring::new(RING_ENTRIES)?))
    }

    /// Does up to [`RING_ENTRIES`] transfers; what the kernel did in part is finished by calls.
    fn run(&mut self, file: &File, transfers: &mut [DirectTransfer<'_>]) {
        let fd = types::Fd(file.as_raw_fd());
        for (index, transfer) in transfers.iter_mut().enumerate() {
            let at = transfer.offset;
            let entry = match &mut transfer.buffer {
                Buffer::Read(to) => {
                    let read = opcode::Read::new(fd, to.as_mut_ptr(), to.len() as u32);
                    read.offset(at).build()
                }
                Buffer::Write(from) => {
                    let write = opcode::Write::new(fd, from.as_ptr(), from.len() as u32);
                    write.offset(at).build()
                }
            };
            self.push(&entry.user_data(index as u64));
        }
        let mut left = transfers.len();
        let mut done = [0_i32; RING_ENTRIES as usize];
        while left > 0 {
            self.wait();
            for completion in self.0.completion() {
                done[completion.user_data() as usize] = completion.result();
                left -= 1;
            }
        }
        for (transfer, done) in transfers.iter_mut().zip(done) {
            match usize::try_from(done) {
                Ok(bytes) if bytes == transfer.buffer.len() => transfer.result = Ok(()),
                // A part, or the end of the file, which the call says again.
                Ok(bytes) => transfer.finish(file, bytes),
                Err(_) if is_for_now(-done) => transfer.finish(file, 0),
                Err(_) => transfer.result = Err(io::Error::from_raw_os_error(-done)),
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        let mut queue = self.0.submission();
        // SAFETY: the entry names memory that `run` borrows until the entry is completed; the queue
        // has room for as many as `run` takes.
        let pushed = unsafe { queue.push(entry) };
        pushed.expect("the ring has an entry for each transfer");
    }

    /// Gives what was pushed to the kernel and waits for a completion.
    fn wait(&mut self) {
        match self.0.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.raw_os_error().is_some_and(is_for_now) => std::thread::yield_now(),
            // The kernel may hold memory of the caller: there is no way back.
            Err(error) => abort(format_args!("io_uring does not go on: {error}")),
        }
    }
}

fn is_for_now(errno: i32) -> bool {
    [Errno::INTR, Errno::AGAIN, Errno::BUSY].iter().any(|for_now| for_now.raw_os_error() == errno)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectCalls {
    /// By io_uring, or as [`DirectCalls::Waiting`] where the system refuses it.
    Uring,
    Waiting,
}

/// A file or a block device; several threads may use it at once.
pub struct DirectFile {
    file: File,
    bytes: u64,
    calls: DirectCalls,
    is_direct: bool,
    is_block_device: bool,
    rings: Mutex<Vec<Ring>>,
}

impl fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectFile")
            .field("bytes", &self.bytes)
            .field("calls", &self.calls)
            .field("is_direct", &self.is_direct)
            .finish_non_exhaustive()
    }
}

impl DirectFile {
    /// Opens a block device of at least `bytes` bytes, or a file that is made so long and takes its
    /// room at once, and locks it against other processes. Where the file system cannot pass the
    /// page cache ([`DirectFile::is_direct`]), it goes through that.
    ///
    /// # Errors
    /// What the system says; `StorageFull` if there is no room, `WouldBlock` if another process has
    /// it, `InvalidInput` if a device is too small.
    pub fn open(path: &Path, bytes: u64, calls: DirectCalls) -> io::Result<DirectFile> {
        let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_block_device = kind.is_ok_and(|kind| kind.is_block_device());
        let fd = if is_block_device {
            // EXCL: not while it is mounted.
            let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, rustix::fs::Mode::empty())?
        } else {
            files::open_private_linked(path, OFlags::RDWR | OFlags::CREATE)?
        };
        files::lock(&fd)?;
        let mut file = File::from(fd);
        if is_block_device {
            let size = file.seek(SeekFrom::End(0))?;
            if size < bytes {
                let what = format!("the device has {size} bytes, not {bytes}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        } else {
            take_room(&file, bytes)?;
        }
        // Without NONBLOCK, which io_uring would obey; so it is set here.
        let is_direct = match rustix::fs::fcntl_setfl(&file, OFlags::DIRECT) {
            Ok(()) => true,
            Err(Errno::INVAL) => {
                rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
                false
            }
            Err(errno) => return Err(errno.into()),
        };
        let mut rings = Vec::new();
        if calls == DirectCalls::Uring {
            rings.extend(Ring::new().ok());
        }
        let calls = if rings.is_empty() { DirectCalls::Waiting } else { calls };
        let rings = Mutex::new(rings);
        Ok(DirectFile { file, bytes, calls, is_direct, is_block_device, rings })
    }

    /// Bytes that may be used.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How transfers are done here.
    pub fn calls(&self) -> DirectCalls {
        self.calls
    }

    /// Whether transfers pass the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether it is no file of a file system.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether the system says that it is on disks that turn.
    pub fn is_rotational(&self) -> bool {
        let Ok(stat) = rustix::fs::fstat(&self.file) else { return false };
        let device = if self.is_block_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // Of a partition it is said where its disk is.
        ["queue", "../queue"].iter().any(|folder| {
            let path = format!("/sys/dev/block/{major}:{minor}/{folder}/rotational");
            std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
        })
    }

    /// Does all transfers, each with a result of its own. Blocks.
    ///
    /// # Panics
    /// If one has a place, a length or memory that is no multiple of [`BLOCK_BYTES`], or is behind
    /// the end.
    pub fn run(&self, transfers: &mut [DirectTransfer<'_>]) {
        for transfer in &*transfers {
            let start = match &transfer.buffer {
                Buffer::Read(to) => to.as_ptr(),
                Buffer::Write(from) => from.as_ptr(),
            };
            let (offset, len) = (transfer.offset, transfer.buffer.len() as u64);
            let all = offset | len | start.addr() as u64;
            assert!(all.is_multiple_of(BLOCK_BYTES as u64), "{offset}, {len}: not of whole blocks");
            assert!(offset + len <= self.bytes, "{offset}, {len}: behind the end");
        }
        let Some(mut ring) = self.take_ring() else {
            return transfers.iter_mut().for_each(|transfer| transfer.finish(&self.file, 0));
        };
        for some in transfers.chunks_mut(RING_ENTRIES as usize) {
            ring.run(&self.file, some);
        }
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if rings.len() < RINGS_MAX {
            rings.push(ring);
        }
    }

    fn take_ring(&self) -> Option<Ring> {
        if self.calls == DirectCalls::Waiting {
            return None;
        }
        let kept = self.rings.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // One more may be refused, for want of locked memory: this call waits then.
        kept.or_else(|| Ring::new().ok())
    }

    /// Has the device keep what was written, also if the power goes.
    ///
    /// # Errors
    /// What the system says: what was written since the last one may be lost.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self.file.as_fd())?)
    }
}

/// Makes a file so long, with room for all of it where the file system can take it.
fn take_room(file: &File, bytes: u64) -> io::Result<()> {
    let before = file.metadata()?.len();
    let take = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes);
    let taken = match rustix::io::retry_on_intr(take) {
        Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(file, bytes.max(before)),
        taken => taken,
    };
    if taken.is_err() && before < bytes {
        // What was taken goes back; that it does not is said by the error anyway.
        let _ = rustix::fs::ftruncate(file, before);
    }
    Ok(taken?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::TemporaryDir;

    fn filled(len: usize, byte: u8) -> AlignedBytes {
        let mut bytes = AlignedBytes::zeroed(len);
        bytes.fill(byte);
        bytes
    }

    #[test]
    fn many_pieces_are_written_and_read_back_by_either_kind_of_calls() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "direct").unwrap();
        for (name, calls) in [("a", DirectCalls::Uring), ("b", DirectCalls::Waiting)] {
            let bytes = 200 * BLOCK_BYTES as u64;
            let file = DirectFile::open(&folder.path().join(name), bytes, calls).unwrap();
            println!("{file:?}");
            let pieces: Vec<_> = (0..200).map(|index| filled(BLOCK_BYTES, index)).collect();
            let at = |index: usize| (index * BLOCK_BYTES) as u64;
            let pieces = pieces.iter().enumerate();
            let mut writes: Vec<_> =
                pieces.map(|(index, piece)| DirectTransfer::write(at(index), piece)).collect();
            file.run(&mut writes);
            assert!(writes.iter().all(|transfer| transfer.result.is_ok()), "{writes:?}");
            file.sync().unwrap();
            let mut whole = AlignedBytes::zeroed(200 * BLOCK_BYTES);
            let parts = whole.chunks_mut(2 * BLOCK_BYTES).enumerate();
            let mut reads: Vec<_> =
                parts.map(|(index, part)| DirectTransfer::read(at(2 * index), part)).collect();
            file.run(&mut reads);
            assert!(reads.iter().all(|transfer| transfer.result.is_ok()), "{reads:?}");
            for (index, block) in whole.chunks(BLOCK_BYTES).enumerate() {
                assert!(block.iter().all(|byte| usize::from(*byte) == index));
            }
        }
    }

    #[test]
    fn a_file_is_opened_once_and_a_lack_of_room_is_said_at_the_start() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "direct").unwrap();
        let path = folder.path().join("file");
        let open = |bytes| DirectFile::open(&path, bytes, DirectCalls::Uring);
        let first = open(1 << 20).unwrap();
        assert_eq!(open(1 << 20).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        // More than any file system of a test has.
        let error = open(1 << 60).unwrap_err();
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        assert_eq!(path.metadata().unwrap().len(), 1 << 20);
    }
}
