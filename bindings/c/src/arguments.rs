//! What C hands over, as types with the layout of pointers: nothing of it is believed but that the
//! memory is there, which is what the header asks of the program. Here alone it is looked at.
//!
//! No value of these types is made outside of here, so each comes with the header's promise: the
//! memory is there for as long as the call runs, and no other thread writes to it (of an
//! [`Output`]: uses it) meanwhile. What is read are integers and pointers, which have no invalid
//! values.

use rackpool::{Placement, RackId, Tier};
use rackpool_bindings::{Failure, Outcome};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Memory of the program that is read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Input<T>(*const T);

/// Memory of the program that is written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Output<T>(*mut T);

/// A string with a zero behind it, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

fn check<T>(at: *const T, count: usize) -> Outcome {
    if at.is_null() {
        return Err(Failure::invalid("a pointer is NULL"));
    }
    if !at.is_aligned() {
        return Err(Failure::invalid("a pointer is not aligned to what it names"));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::invalid("a length is negative, or more than an address space")),
    }
}

impl<T: Copy> Input<T> {
    /// `count` of them; no memory is needed for none.
    #[inline]
    pub fn slice(&self, count: usize) -> Outcome<&[T]> {
        if count == 0 {
            return Ok(&[]);
        }
        check(self.0, count)?;
        // SAFETY: aligned, not null and no longer than an allocation may be, as was checked; there,
        // and not written meanwhile, as the module says.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

impl<T: Copy> Output<T> {
    /// `count` of them; no memory is needed for none.
    #[inline]
    pub fn slice(&mut self, count: usize) -> Outcome<&mut [T]> {
        if count == 0 {
            return Ok(&mut []);
        }
        check(self.0, count)?;
        // SAFETY: aligned, not null and no longer than an allocation may be, as was checked; there,
        // and ours meanwhile, as the module says.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }

    /// Where one result goes. Asked for before anything is done.
    #[inline]
    pub fn place(&mut self) -> Outcome<&mut MaybeUninit<T>> {
        check(self.0, 1)?;
        // SAFETY: aligned and not null, as was checked; there, and ours meanwhile, as the module
        // says; it may hold anything.
        Ok(unsafe { &mut *self.0.cast::<MaybeUninit<T>>() })
    }
}

impl Text {
    pub fn get(&self) -> Outcome<&str> {
        self.optional()?.ok_or_else(|| Failure::invalid("a text is NULL"))
    }

    pub fn optional(&self) -> Outcome<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: it ends with a zero and is not written meanwhile, as the module says.
        let text = unsafe { CStr::from_ptr(self.0) }.to_str();
        text.map(Some).map_err(|_| Failure::invalid("a text is not UTF-8"))
    }
}

/// A structure that begins with its size as the program was compiled with it. What it does not have
/// is zero, and what this library does not know has to be.
pub fn sized<T: Copy>(at: &Input<T>) -> Outcome<T> {
    let size = *Input(at.0.cast::<usize>()).slice(1)?.first().unwrap_or(&0);
    let known = size.min(size_of::<T>());
    if known < size_of::<usize>() || size > STRUCTURE_BYTES_MAX {
        return Err(Failure::invalid("the size of a structure is not set: begin with its *_INIT"));
    }
    let bytes = Input(at.0.cast::<u8>());
    let bytes = bytes.slice(size)?;
    if bytes[known..].iter().any(|byte| *byte != 0) {
        let text = "a structure asks for what this library is too old for";
        return Err(Failure::invalid(text));
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are in both, which are apart.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), read.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: integers and pointers, as the module says, for which all bytes are values.
    Ok(unsafe { read.assume_init() })
}

/// Fills a structure that begins with its size, as far as the program knows it.
pub fn fill<T: Copy>(at: Output<T>, value: &T) -> Outcome {
    let size = *Input(at.0.cast::<usize>().cast_const()).slice(1)?.first().unwrap_or(&0);
    let (head, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    if known < head || size > STRUCTURE_BYTES_MAX {
        return Err(Failure::invalid("the size of a structure is not set"));
    }
    let from = Input((&raw const *value).cast::<u8>());
    let mut to = Output(at.0.cast::<u8>());
    to.slice(known)?[head..].copy_from_slice(&from.slice(known)?[head..]);
    Ok(())
}

/// No structure of the header will be longer.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// Racks, and tiers, are named by a number above this one.
const RACK_0: u32 = 0x10000;
const TIER_0: u32 = 0x20000;

pub fn placement(number: u32) -> Outcome<Placement> {
    Ok(match number {
        0 => Placement::Auto,
        1 => Placement::Local,
        2 => Placement::Spread,
        3 => Placement::Tier(Tier::Near),
        4 => Placement::Tier(Tier::Far),
        RACK_0..TIER_0 => Placement::Rack(RackId((number - RACK_0) as u16)),
        _ => match u8::try_from(number.wrapping_sub(TIER_0)) {
            Ok(tier) => Placement::Tier(Tier::Number(tier)),
            Err(_) => return Err(Failure::invalid("no such placement")),
        },
    })
}
