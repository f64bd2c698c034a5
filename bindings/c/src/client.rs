//! A handle with what a program has named at it by number: locks, buffers and scans.
//!
//! A buffer's memory stays where it is from its opening to its closing: a submission takes the
//! vector and its completion brings it back.

use crate::call::note;
use rackpool::{Completed, LockGuard, Ticket};
use rackpool_bindings::{Failure, Outcome, Session, Status};
use std::collections::BTreeMap;

/// A handle with what a program has named at it. Locks are given back before it ends.
#[derive(Debug)]
pub struct Client {
    pub locks: Locks,
    pub buffers: Buffers,
    pub scans: Scans,
    /// The last value that was read.
    pub value: Vec<u8>,
    pub session: Session,
}

impl Client {
    pub fn new(session: Session) -> Self {
        let (locks, buffers, scans) = (Locks::default(), Buffers::default(), Scans::default());
        Self { locks, buffers, scans, value: Vec::new(), session }
    }
}

/// Those of one handle. How many there may be is the pool's to say.
#[derive(Debug, Default)]
pub struct Locks {
    pub held: BTreeMap<u64, LockGuard>,
    pub last: u64,
}

/// So many buffers one handle has.
const BUFFERS_MAX: usize = 4096;

/// Those of one handle, by number.
#[derive(Debug, Default)]
pub struct Buffers {
    buffers: Vec<Option<Buffer>>,
    under_way: BTreeMap<u64, u32>,
}

#[derive(Debug)]
struct Buffer {
    /// Empty while it is under way.
    bytes: Vec<u8>,
    length: usize,
    is_under_way: bool,
}

/// As the header has it: `rp_completion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    ticket: u64,
    buffer: u32,
    status: i32,
}

// As the header's.
const _: () = assert!(size_of::<Completion>() == 16);

impl Buffers {
    /// Its number and where it is.
    pub fn open(&mut self, bytes: usize) -> Outcome<(u32, *mut u8)> {
        let vacant = self.buffers.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.buffers.len());
        if number == BUFFERS_MAX {
            return Err(Failure::Own(Status::Busy, "4096 buffers of this handle are open"));
        }
        let mut memory = Vec::new();
        if bytes == 0 || memory.try_reserve_exact(bytes).is_err() {
            return Err(Failure::invalid("a buffer of no bytes, or of more than there are"));
        }
        memory.resize(bytes, 0);
        let start = memory.as_mut_ptr();
        if number == self.buffers.len() {
            self.buffers.push(None);
        }
        self.buffers[number] = Some(Buffer { bytes: memory, length: bytes, is_under_way: false });
        Ok((number as u32, start))
    }

    /// One that the program may use.
    fn idle(&mut self, number: u32) -> Outcome<&mut Buffer> {
        let buffer = self.buffers.get_mut(number as usize).and_then(Option::as_mut);
        let buffer = buffer.ok_or_else(|| Failure::misuse("no buffer of this number is open"))?;
        if buffer.is_under_way {
            return Err(Failure::Own(Status::Busy, "a submission has this buffer"));
        }
        Ok(buffer)
    }

    pub fn close(&mut self, number: u32) -> Outcome {
        self.idle(number)?;
        self.buffers[number as usize] = None;
        Ok(())
    }

    /// Begins a transfer of the first bytes of a buffer.
    pub fn submit(
        &mut self,
        number: u32,
        bytes: usize,
        begin: impl FnOnce(&mut Vec<u8>) -> rackpool::Result<Ticket>,
    ) -> Outcome<u64> {
        let buffer = self.idle(number)?;
        if bytes == 0 || bytes > buffer.length {
            return Err(Failure::invalid("a submission of no bytes, or of more than the buffer"));
        }
        buffer.bytes.truncate(bytes);
        match begin(&mut buffer.bytes) {
            Ok(Ticket(ticket)) => {
                buffer.is_under_way = true;
                self.under_way.insert(ticket, number);
                Ok(ticket)
            }
            Err(error) => {
                buffer.lengthen();
                Err(error.into())
            }
        }
    }

    /// Takes the buffer of a submission that has ended.
    pub fn complete(&mut self, completed: Completed) -> Outcome<Completion> {
        let Completed { ticket: Ticket(ticket), result, buffer: bytes } = completed;
        let number = self.under_way.remove(&ticket);
        let number = number.expect("every submission of a handle is one of its buffers");
        let buffer = self.buffers[number as usize].as_mut().expect("it was under way");
        buffer.bytes = bytes;
        buffer.is_under_way = false;
        buffer.lengthen();
        let status = match result {
            Ok(()) => Status::Ok as i32,
            Err(error) => note(&error.into()),
        };
        Ok(Completion { ticket, buffer: number, status })
    }
}

impl Buffer {
    /// Has its whole length again, with what was in it.
    fn lengthen(&mut self) {
        assert!(self.length <= self.bytes.capacity(), "a vector keeps its memory");
        // SAFETY: that much was reserved and all of it written when the buffer was opened; a
        // shorter vector only counts less.
        unsafe { self.bytes.set_len(self.length) };
    }
}

/// So many scans one handle has.
const SCANS_MAX: usize = 1024;

/// Those of one handle, by number: the keys that are left of each, the next one last.
#[derive(Debug, Default)]
pub struct Scans(Vec<Option<Vec<(Vec<u8>, u64)>>>);

impl Scans {
    pub fn open(&mut self, mut keys: Vec<(Vec<u8>, u64)>) -> Outcome<u32> {
        let vacant = self.0.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.0.len());
        if number == SCANS_MAX {
            return Err(Failure::Own(Status::Busy, "1024 scans of this handle are open"));
        }
        if number == self.0.len() {
            self.0.push(None);
        }
        keys.reverse();
        self.0[number] = Some(keys);
        Ok(number as u32)
    }

    pub fn get(&mut self, number: u32) -> Outcome<&mut Option<Vec<(Vec<u8>, u64)>>> {
        let scan = self.0.get_mut(number as usize).filter(|scan| scan.is_some());
        scan.ok_or_else(|| Failure::misuse("no scan of this number is open"))
    }
}
