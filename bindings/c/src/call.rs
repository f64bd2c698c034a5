//! Runs the body of a function of the header, and keeps for each thread why its last call failed.

use crate::arguments::Output;
use rackpool_bindings::{Failure, Outcome, Status};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Of the last call of a thread that failed.
#[derive(Default)]
struct LastFailure {
    code: CString,
    may_retry: bool,
    text: String,
}

thread_local! {
    static LAST: RefCell<LastFailure> = RefCell::default();
}

/// No panic leaves it. What is used in the body may be half changed after one: it is claimed from
/// the registry, which lets no other call have it then.
#[inline]
pub fn call(body: impl FnOnce() -> Outcome) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok as i32,
        Ok(Err(failure)) => note(&failure),
        Err(panic) => note(&Failure::of_panic(&*panic)),
    }
}

/// Keeps a failure for the thread; its status.
#[cold]
#[inline(never)]
pub fn note(failure: &Failure) -> i32 {
    let noted = LastFailure {
        code: CString::new(failure.code()).unwrap_or_default(),
        may_retry: failure.may_retry(),
        text: failure.text(),
    };
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(noted));
    failure.status() as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_last_code() -> *const c_char {
    // The text stays where it is until the next failure of this thread.
    LAST.try_with(|last| last.borrow().code.as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_last_retry() -> c_int {
    LAST.try_with(|last| last.borrow().may_retry.into()).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_last_text(mut text: Output<u8>, size: usize) -> usize {
    let told = LAST.try_with(|last| {
        let last = last.borrow();
        if size > 0
            && let Ok(to) = text.slice(size)
        {
            write_text(to, &last.text);
        }
        last.text.len()
    });
    told.unwrap_or(0)
}

/// As much of a text as fits, with a zero behind it; `to` is not empty.
pub fn write_text(to: &mut [u8], text: &str) {
    let room = text.len().min(to.len() - 1);
    let bytes = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    to[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    to[bytes] = 0;
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; Status::ALL.len()] = [
        c"RP_OK",
        c"RP_NOT_FOUND",
        c"RP_LOST",
        c"RP_FULL",
        c"RP_BUSY",
        c"RP_TIMEOUT",
        c"RP_UNREACHABLE",
        c"RP_OUTCOME_UNKNOWN",
        c"RP_OCCUPIED",
        c"RP_INVALID",
        c"RP_DENIED",
        c"RP_CORRUPT",
        c"RP_VERSION",
        c"RP_IO",
        c"RP_MISUSE",
        c"RP_FORKED",
        c"RP_INTERNAL",
        c"RP_TOO_SMALL",
    ];
    let name = usize::try_from(status).ok().and_then(|number| NAMES.get(number));
    name.unwrap_or(&c"RP_UNKNOWN").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_abi_version() -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        assert_eq!(call(|| panic!("out of order")), Status::Internal as i32);
        let last = LAST.with(|last| (last.borrow().text.clone(), last.borrow().code.clone()));
        assert_eq!(last, ("a bug of rackpool: out of order".into(), c"internal".into()));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut to = [1; 4];
        write_text(&mut to, "abé");
        assert_eq!(&to, b"ab\0\x01");
    }
}
