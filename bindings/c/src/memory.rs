//! Memory of the pool: allocation, accesses, words, names and pins.

use crate::arguments::{Input, Output, Text, placement};
use crate::call::call;
use crate::client::Client;
use crate::registry::{Name, insert};
use rackpool::{CasOutcome, GAddr, Handle, Pin};
use rackpool_bindings::{Failure, Outcome};
use std::ffi::c_int;

/// As the header has it: `rp_piece`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    addr: u64,
    data: Output<u8>,
    bytes: usize,
}

/// As the header has it: `rp_const_piece`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConstPiece {
    addr: u64,
    data: Input<u8>,
    bytes: usize,
}

// As the header's.
const _: () = assert!(size_of::<Piece>() == 24 && size_of::<ConstPiece>() == 24);

/// A call with one result; the place for it is looked at first.
#[inline]
fn get<T: Copy>(
    handle: Name<Client>,
    mut to: Output<T>,
    ask: impl FnOnce(&mut Handle) -> Outcome<T>,
) -> i32 {
    call(|| {
        let place = to.place()?;
        handle.with(|client| {
            place.write(ask(&mut client.session.handle)?);
            Ok(())
        })
    })
}

/// A call without a result.
#[inline]
fn run(handle: Name<Client>, work: impl FnOnce(&mut Handle) -> Outcome) -> i32 {
    call(|| handle.with(|client| work(&mut client.session.handle)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_alloc(handle: Name<Client>, bytes: u64, place: u32, addr: Output<u64>) -> i32 {
    get(handle, addr, |handle| Ok(handle.alloc(bytes, placement(place)?)?.0))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_alloc_owned(
    handle: Name<Client>,
    bytes: u64,
    place: u32,
    addr: Output<u64>,
) -> i32 {
    get(handle, addr, |handle| Ok(handle.alloc_owned(bytes, placement(place)?)?.0))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_free(handle: Name<Client>, addr: u64, bytes: u64) -> i32 {
    run(handle, |handle| Ok(handle.free(GAddr(addr), bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_alloc_into(
    handle: Name<Client>,
    word: u64,
    bytes: u64,
    addr: Output<u64>,
) -> i32 {
    get(handle, addr, |handle| Ok(handle.alloc_into(GAddr(word), bytes)?.0))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_free_from(handle: Name<Client>, word: u64, bytes: u64) -> i32 {
    run(handle, |handle| Ok(handle.free_from(GAddr(word), bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_read(
    handle: Name<Client>,
    addr: u64,
    mut to: Output<u8>,
    bytes: usize,
) -> i32 {
    run(handle, |handle| Ok(handle.read(GAddr(addr), to.slice(bytes)?)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_write(handle: Name<Client>, addr: u64, from: Input<u8>, bytes: usize) -> i32 {
    run(handle, |handle| Ok(handle.write(GAddr(addr), from.slice(bytes)?)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_readv(handle: Name<Client>, pieces: Input<Piece>, count: usize) -> i32 {
    run(handle, |handle| {
        let mut pieces = pieces.slice(count)?.to_vec();
        let ops = pieces.iter_mut().map(|one| Ok((GAddr(one.addr), one.data.slice(one.bytes)?)));
        Ok(handle.read_batch(&mut ops.collect::<Outcome<Vec<_>>>()?)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_writev(handle: Name<Client>, pieces: Input<ConstPiece>, count: usize) -> i32 {
    run(handle, |handle| {
        let ops = pieces.slice(count)?.iter();
        let ops = ops.map(|one| Ok((GAddr(one.addr), one.data.slice(one.bytes)?)));
        Ok(handle.write_batch(&mut ops.collect::<Outcome<Vec<_>>>()?)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_read_u64(handle: Name<Client>, addr: u64, value: Output<u64>) -> i32 {
    get(handle, value, |handle| Ok(handle.read_u64(GAddr(addr))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_write_u64(handle: Name<Client>, addr: u64, value: u64) -> i32 {
    run(handle, |handle| Ok(handle.write_u64(GAddr(addr), value)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cas(
    handle: Name<Client>,
    addr: u64,
    expected: u64,
    desired: u64,
    found: Output<u64>,
) -> i32 {
    get(handle, found, |handle| {
        Ok(match handle.cas(GAddr(addr), expected, desired)? {
            CasOutcome::Swapped => expected,
            CasOutcome::Found(found) => found,
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_fetch_add(
    handle: Name<Client>,
    addr: u64,
    n: u64,
    before: Output<u64>,
) -> i32 {
    get(handle, before, |handle| Ok(handle.fetch_add(GAddr(addr), n)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_persist(handle: Name<Client>, addr: u64, bytes: u64) -> i32 {
    run(handle, |handle| Ok(handle.persist(GAddr(addr), bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_root(handle: Name<Client>, name: Text, addr: Output<u64>) -> i32 {
    get(handle, addr, |handle| {
        let root = handle.root(name.get()?)?;
        root.map(|addr| addr.0).ok_or_else(Failure::absent)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_root_set(
    handle: Name<Client>,
    name: Text,
    expected: u64,
    addr: u64,
    now: Output<u64>,
) -> i32 {
    get(handle, now, |handle| Ok(handle.set_root(name.get()?, GAddr(expected), GAddr(addr))?.0))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_pin_open(
    handle: Name<Client>,
    addr: u64,
    bytes: u64,
    mut pin: Output<Name<Pin>>,
    mut data: Output<*mut u8>,
) -> i32 {
    call(|| {
        let (pin, data) = (pin.place()?, data.place()?);
        let pinned = handle.with(|client| Ok(client.session.handle.pin(GAddr(addr), bytes)?))?;
        data.write(pinned.start().as_ptr());
        pin.write(insert(pinned)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_pin_revoked(pin: Name<Pin>, mut revoked: Output<c_int>) -> i32 {
    call(|| {
        let place = revoked.place()?;
        place.write(pin.with_shared(|pin| Ok(pin.is_revoked()))?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_unpin(pin: Name<Pin>) -> i32 {
    call(|| pin.take_shared().map(drop))
}
