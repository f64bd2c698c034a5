//! Buffers that the library owns, and transfers of them that run while their handle does something
//! else. A buffer's memory stays where it is from its opening to its closing: a submission takes
//! the vector and its completion brings it back.

use crate::arguments::Output;
use crate::call::call;
use crate::pools::Client;
use crate::registry::Name;
use rackpool::{Completed, GAddr, Handle, Ticket};
use rackpool_bindings::{Failure, Outcome, Status};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd;

/// Buffers of one handle.
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

/// `rp_completion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    ticket: u64,
    buffer: u32,
    status: i32,
}

impl Buffers {
    /// Its number and where it is.
    fn open(&mut self, bytes: usize) -> Outcome<(u32, *mut u8)> {
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

    fn close(&mut self, number: u32) -> Outcome {
        self.idle(number)?;
        self.buffers[number as usize] = None;
        Ok(())
    }

    /// Begins a transfer of the first bytes of a buffer.
    fn submit(
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

    /// Takes a buffer back.
    fn complete(&mut self, completed: Completed) -> Outcome<Completion> {
        let Completed { ticket: Ticket(ticket), result, buffer: bytes } = completed;
        let number = self.under_way.remove(&ticket);
        let number = number.expect("every submission of a handle is one of its buffers");
        let buffer = self.buffers[number as usize].as_mut().expect("it was under way");
        buffer.bytes = bytes;
        buffer.is_under_way = false;
        buffer.lengthen();
        let status = match result {
            Ok(()) => Status::Ok as i32,
            Err(error) => crate::call::note(&error.into()),
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

#[unsafe(no_mangle)]
pub extern "C" fn rp_buffer_open(
    handle: Name<Client>,
    bytes: usize,
    mut buffer: Output<u32>,
    mut data: Output<*mut u8>,
) -> i32 {
    call(|| {
        let (buffer, data) = (buffer.place()?, data.place()?);
        let (number, start) = handle.with(|client| client.buffers.open(bytes))?;
        buffer.write(number);
        data.write(start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_buffer_close(handle: Name<Client>, buffer: u32) -> i32 {
    call(|| handle.with(|client| client.buffers.close(buffer)))
}

fn submit(
    handle: Name<Client>,
    buffer: u32,
    bytes: usize,
    mut ticket: Output<u64>,
    begin: impl FnOnce(&mut Handle, &mut Vec<u8>) -> rackpool::Result<Ticket>,
) -> i32 {
    call(|| {
        let place = ticket.place()?;
        handle.with(|client| {
            let Client { buffers, session, .. } = client;
            let begun = buffers.submit(buffer, bytes, |bytes| begin(&mut session.handle, bytes));
            place.write(begun?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_submit_read(
    handle: Name<Client>,
    addr: u64,
    buffer: u32,
    bytes: usize,
    ticket: Output<u64>,
) -> i32 {
    let begin = |handle: &mut Handle, bytes: &mut _| handle.submit_read_from(GAddr(addr), bytes);
    submit(handle, buffer, bytes, ticket, begin)
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_submit_write(
    handle: Name<Client>,
    addr: u64,
    buffer: u32,
    bytes: usize,
    ticket: Output<u64>,
) -> i32 {
    let begin = |handle: &mut Handle, bytes: &mut _| handle.submit_write_from(GAddr(addr), bytes);
    submit(handle, buffer, bytes, ticket, begin)
}

/// What has ended; the first of it as `first` finds it.
fn collect(
    handle: Name<Client>,
    mut completions: Output<Completion>,
    max: usize,
    mut count: Output<usize>,
    first: impl FnOnce(&mut Handle) -> rackpool::Result<Option<Completed>>,
) -> i32 {
    call(|| {
        let (to, count) = (completions.slice(max)?, count.place()?);
        let mut found = 0;
        count.write(found);
        if to.is_empty() {
            return Ok(());
        }
        handle.with(|client| {
            let Client { buffers, session, .. } = client;
            let mut next = first(&mut session.handle)?;
            while let Some(completed) = next.take() {
                to[found] = buffers.complete(completed)?;
                found += 1;
                count.write(found);
                if found < to.len() {
                    // A failure that is not a submission's comes again with the next call.
                    next = session.handle.poll_completion().unwrap_or(None);
                }
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_poll(
    handle: Name<Client>,
    completions: Output<Completion>,
    max: usize,
    count: Output<usize>,
) -> i32 {
    collect(handle, completions, max, count, Handle::poll_completion)
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_wait(
    handle: Name<Client>,
    timeout_ms: u64,
    completions: Output<Completion>,
    max: usize,
    count: Output<usize>,
) -> i32 {
    collect(handle, completions, max, count, |handle| handle.wait_completion(timeout_ms))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_completion_fd(handle: Name<Client>, mut fd: Output<c_int>) -> i32 {
    call(|| {
        let place = fd.place()?;
        handle.with(|client| {
            place.write(client.session.handle.completion_fd()?.as_raw_fd());
            Ok(())
        })
    })
}
