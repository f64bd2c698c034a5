//! Locks that a program names by number at the handle that holds them.

use crate::arguments::Output;
use crate::call::call;
use crate::client::Client;
use crate::registry::Name;
use rackpool::{GAddr, LockMode, LockOptions};
use rackpool_bindings::{Failure, Outcome};
use std::ffi::c_int;

/// As the header has it: `RP_WAIT_DEFAULT`.
const WAIT_DEFAULT: u64 = u64::MAX;

fn options(bytes: u64, wait_ms: u64) -> LockOptions {
    let options = match bytes {
        0 => LockOptions::line(),
        bytes => LockOptions::range(bytes),
    };
    if wait_ms == WAIT_DEFAULT { options } else { options.within_ms(wait_ms) }
}

fn unknown() -> Failure {
    Failure::misuse("this handle holds no lock of this number")
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_lock(
    handle: Name<Client>,
    addr: u64,
    bytes: u64,
    mode: c_int,
    wait_ms: u64,
    mut lock: Output<u64>,
    mut token: Output<u64>,
) -> i32 {
    call(|| {
        let (lock, token) = (lock.place()?, token.place()?);
        let mode = match mode {
            0 => LockMode::Read,
            1 => LockMode::Write,
            _ => return Err(Failure::invalid("no such mode of a lock")),
        };
        handle.with(|client| {
            let Client { locks, session, .. } = client;
            let guard = session.handle.lock(GAddr(addr), mode, options(bytes, wait_ms))?;
            locks.last += 1;
            lock.write(locks.last);
            token.write(guard.token());
            locks.held.insert(locks.last, guard);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_unlock(handle: Name<Client>, lock: u64) -> i32 {
    call(|| {
        handle.with(|client| -> Outcome {
            let guard = client.locks.held.remove(&lock).ok_or_else(unknown)?;
            Ok(client.session.handle.unlock(guard)?)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_lock_check(handle: Name<Client>, lock: u64) -> i32 {
    call(|| {
        handle.with(|client| -> Outcome {
            let guard = client.locks.held.get(&lock).ok_or_else(unknown)?;
            Ok(client.session.handle.check_lock(guard)?)
        })
    })
}
