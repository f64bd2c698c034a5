//! A device in memory that fails where it is told to, and remembers what a crash would leave.

use rackpool_flash::FlashDevice;
use rackpool_mem::direct::{Buffer, DirectTransfer};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const BLOCK: usize = 4096;
const EIO: i32 = 5;

/// A small generator; the same numbers each time.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What is left when the process dies, or the power goes.
#[derive(Clone, Debug)]
pub struct Crash {
    pub image: Vec<u8>,
    /// Steps of the client that were acknowledged.
    pub steps: u64,
}

#[derive(Debug, Default)]
struct State {
    image: Vec<u8>,
    /// What a power cut leaves for sure.
    durable: Vec<u8>,
    /// Blocks that were written since.
    unsynced: Vec<usize>,
    writes: u64,
    /// At this write it dies.
    dies_at: Option<u64>,
    is_power_cut: bool,
    crash: Option<Crash>,
    /// Places where writes fail, how, and whether they are done all the same.
    bad_writes: Vec<(Range<u64>, i32, bool)>,
    bad_reads: Vec<Range<u64>>,
    /// Fails now and then by these numbers.
    failures: Option<Random>,
    /// Files that are copied at the death, from and to.
    copied: Option<(PathBuf, PathBuf)>,
}

/// Clones are the same device.
#[derive(Clone, Debug, Default)]
pub struct TestDevice {
    state: Arc<Mutex<State>>,
    is_held: Arc<(Mutex<bool>, Condvar)>,
    pub steps: Arc<AtomicU64>,
}

impl TestDevice {
    pub fn new(image: Vec<u8>) -> TestDevice {
        let device = TestDevice::default();
        let mut state = device.state.lock().unwrap();
        state.durable.clone_from(&image);
        state.image = image;
        drop(state);
        device
    }

    /// It dies at the `write`th write, of which a part is done.
    pub fn die_at(&self, write: u64, is_power_cut: bool, copied: Option<(PathBuf, PathBuf)>) {
        let mut state = self.state.lock().unwrap();
        (state.dies_at, state.is_power_cut, state.copied) = (Some(write), is_power_cut, copied);
    }

    pub fn crash(&self) -> Option<Crash> {
        self.state.lock().unwrap().crash.clone()
    }

    pub fn image(&self) -> Vec<u8> {
        self.state.lock().unwrap().image.clone()
    }

    pub fn fail_writes(&self, at: Range<u64>, errno: i32) {
        self.state.lock().unwrap().bad_writes.push((at, errno, false));
    }

    /// Some writes, of which half are done, and some reads fail from now on.
    pub fn fail_now_and_then(&self, seed: u64) {
        self.state.lock().unwrap().failures = Some(Random(seed));
    }

    /// They are said to fail, and are done.
    pub fn fail_writes_that_are_done(&self, at: Range<u64>) {
        self.state.lock().unwrap().bad_writes.push((at, EIO, true));
    }

    pub fn fail_reads(&self, at: Range<u64>) {
        self.state.lock().unwrap().bad_reads.push(at);
    }

    pub fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        (state.bad_writes, state.bad_reads, state.failures) = Default::default();
    }

    /// Transfers wait from now on, or no more.
    pub fn hold(&self, is_held: bool) {
        *self.is_held.0.lock().unwrap() = is_held;
        self.is_held.1.notify_all();
    }

    fn wait(&self) {
        let mut is_held = self.is_held.0.lock().unwrap();
        while *is_held {
            is_held = self.is_held.1.wait(is_held).unwrap();
        }
    }
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl State {
    /// Whether the next one of so many fails; then whether it is done all the same.
    fn failure(&mut self, of: u64) -> Option<bool> {
        let random = self.failures.as_mut()?;
        (random.below(of) == 0).then(|| random.below(2) == 0)
    }

    fn write(&mut self, offset: u64, from: &[u8], steps: &AtomicU64) -> io::Result<()> {
        let place = offset..offset + from.len() as u64;
        if self.crash.is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let bad = self.bad_writes.iter().find(|(bad, ..)| overlaps(bad, &place));
        let bad = bad.map(|(_, errno, is_done)| (*errno, *is_done));
        let bad = bad.or_else(|| self.failure(20).map(|is_done| (EIO, is_done)));
        if let Some((errno, is_done)) = bad {
            if is_done {
                let start = offset as usize;
                self.image[start..start + from.len()].copy_from_slice(from);
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.writes += 1;
        let blocks = from.len() / BLOCK;
        let is_last = self.dies_at == Some(self.writes);
        // Nothing of the last one, a part or all.
        let done = if is_last { blocks * (self.writes % 3) as usize / 2 } else { blocks };
        let start = offset as usize;
        self.image[start..start + done * BLOCK].copy_from_slice(&from[..done * BLOCK]);
        self.unsynced.extend((0..done).map(|block| start / BLOCK + block));
        if is_last {
            self.die(steps);
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    }

    fn die(&mut self, steps: &AtomicU64) {
        if let Some((from, to)) = &self.copied {
            std::fs::copy(from, to).unwrap();
        }
        let mut image = self.image.clone();
        if self.is_power_cut {
            // Of what was not synced some blocks are there.
            for block in &self.unsynced {
                if (*block as u64 ^ self.writes).is_multiple_of(2) {
                    let at = block * BLOCK..(block + 1) * BLOCK;
                    image[at.clone()].copy_from_slice(&self.durable[at]);
                }
            }
        }
        self.crash = Some(Crash { image, steps: steps.load(Ordering::SeqCst) });
    }
}

impl FlashDevice for TestDevice {
    fn bytes(&self) -> u64 {
        self.state.lock().unwrap().image.len() as u64
    }

    fn run(&self, transfers: &mut [DirectTransfer<'_>]) {
        self.wait();
        let mut state = self.state.lock().unwrap();
        for transfer in transfers {
            let offset = transfer.offset;
            transfer.result = match &mut transfer.buffer {
                Buffer::Write(from) => state.write(offset, from, &self.steps),
                Buffer::Read(to) => {
                    let place = offset..offset + to.len() as u64;
                    let fails = state.failure(30).is_some();
                    if fails || state.bad_reads.iter().any(|bad| overlaps(bad, &place)) {
                        Err(io::Error::from_raw_os_error(EIO))
                    } else {
                        let start = offset as usize;
                        to.copy_from_slice(&state.image[start..start + to.len()]);
                        Ok(())
                    }
                }
            };
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.crash.is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let state = &mut *state;
        for block in state.unsynced.drain(..) {
            let at = block * BLOCK..(block + 1) * BLOCK;
            state.durable[at.clone()].copy_from_slice(&state.image[at]);
        }
        Ok(())
    }
}
