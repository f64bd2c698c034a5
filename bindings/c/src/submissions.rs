//! Transfers of the library's own buffers that run while their handle does something else.

use crate::arguments::Output;
use crate::call::call;
use crate::client::{Client, Completion};
use crate::registry::Name;
use rackpool::{Completed, GAddr, Handle, Ticket};
use std::ffi::c_int;
use std::os::fd::AsRawFd;

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
