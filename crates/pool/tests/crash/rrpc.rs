//! Calls for data while their home is killed and stopped, in real processes: every call ends with
//! its bytes or with a typed error in time, and nothing lands in the caller's buffer afterwards.

use crate::tools::stage::{MEMORY, Stage};
use crate::tools::{PATIENCE, waiting};
use rackpool::{FabricChoice, FetchMode, GAddr, Handle, Placement, Pool};
use std::time::{Duration, Instant};

const PAGE: usize = 64 << 10;
const MODES: [FetchMode; 3] = [FetchMode::Inline, FetchMode::OneSidedRead, FetchMode::WriteBack];
/// The lease, ms.
const LEASE_MS: u64 = 1000;

fn open(stage: &Stage) -> Handle {
    let options = stage.options(0, FabricChoice::Tcp).request_timeout_ms(LEASE_MS);
    Pool::open(options).unwrap().handle().unwrap()
}

fn prepared(stage: &Stage) -> GAddr {
    let mut writer = stage.pool(1, FabricChoice::Tcp).handle().unwrap();
    let addr = writer.alloc(PAGE as u64, Placement::Local).unwrap();
    writer.write(addr, &vec![0x5a; PAGE]).unwrap();
    addr
}

fn bytes_of(mode: FetchMode) -> usize {
    if mode == FetchMode::Inline { 8 << 10 } else { PAGE }
}

/// Calls until the home does not answer any more: the error, and how long the last call took.
fn call_to_the_end(
    handle: &mut Handle,
    addr: GAddr,
    mode: FetchMode,
    buffer: &mut [u8],
    began: &mut impl FnMut(u64),
) -> (rackpool::Error, Duration) {
    let mut calls = 0;
    loop {
        began(calls);
        buffer.fill(0xee);
        let started = Instant::now();
        match handle.fetch(addr, buffer, mode) {
            Ok(()) => assert!(buffer.iter().all(|byte| *byte == 0x5a), "{mode:?}"),
            Err(error) => return (error, started.elapsed()),
        }
        calls += 1;
    }
}

/// Nothing of an ended call comes into a buffer that is its owner's again.
fn stays_untouched(handle: &mut Handle, buffer: &mut [u8], what: impl Fn(&mut Handle)) {
    buffer.fill(0x33);
    what(handle);
    assert!(buffer.iter().all(|byte| *byte == 0x33), "a byte landed after the call had ended");
}

#[test]
fn a_home_that_is_killed_in_the_midst_of_calls_is_a_typed_error_in_time() {
    let _turn = waiting();
    for mode in MODES {
        let mut stage = Stage::new(&[MEMORY, MEMORY]);
        let addr = prepared(&stage);
        let mut handle = open(&stage);
        handle.read_u64(addr).unwrap();
        let victim = stage.daemons[1].take().unwrap();
        let mut victim = Some(victim);
        let mut buffer = vec![0; bytes_of(mode)];
        let killer = std::cell::RefCell::new(None);
        let mut began = |calls| {
            if calls == 50 {
                let mut victim = victim.take().unwrap();
                *killer.borrow_mut() = Some(std::thread::spawn(move || {
                    // In the midst of some later call.
                    std::thread::sleep(Duration::from_micros(700));
                    victim.kill();
                    victim
                }));
            }
        };
        let (error, took) = call_to_the_end(&mut handle, addr, mode, &mut buffer, &mut began);
        println!("{mode:?}: {} after {took:?}", error.code());
        assert!(matches!(error.code(), "peer-dead" | "timeout"), "{mode:?}: {error}");
        // Ten times what is promised: the machine is shared.
        assert!(took < Duration::from_millis(10 * 2 * LEASE_MS), "{took:?}");
        drop(killer.take().unwrap().join().unwrap());
        stage.start_daemon(1);
        stays_untouched(&mut handle, &mut buffer, |handle| {
            let start = Instant::now();
            let mut other = vec![0; bytes_of(mode)];
            while let Err(error) = handle.fetch(addr, &mut other, mode) {
                assert!(error.may_retry(), "{error}");
                assert!(start.elapsed() < PATIENCE, "{error}");
            }
            assert!(other.iter().all(|byte| *byte == 0x5a), "the region is kept");
        });
        drop(handle);
        stage.finish();
    }
}

#[test]
fn what_a_stopped_home_sends_when_it_goes_on_lands_nowhere() {
    let _turn = waiting();
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let addr = prepared(&stage);
    for mode in MODES {
        let mut handle = open(&stage);
        handle.read_u64(addr).unwrap();
        let mut buffer = vec![0; bytes_of(mode)];
        handle.fetch(addr, &mut buffer, mode).unwrap();
        stage.daemon(1).pause();
        let began = Instant::now();
        let error = handle.fetch(addr, &mut buffer, mode).unwrap_err();
        println!("{mode:?}: {} after {:?}", error.code(), began.elapsed());
        assert!(matches!(error.code(), "peer-dead" | "timeout"), "{mode:?}: {error}");
        stage.daemon(1).resume();
        stays_untouched(&mut handle, &mut buffer, |handle| {
            for _ in 0..200 {
                handle
                    .write(addr, &[0x5a; 64])
                    .or_else(|error| {
                        assert!(error.may_retry(), "{error}");
                        Ok::<(), rackpool::Error>(())
                    })
                    .unwrap();
            }
            let mut other = vec![0; bytes_of(mode)];
            let start = Instant::now();
            while handle.fetch(addr, &mut other, mode).is_err() {
                assert!(start.elapsed() < PATIENCE);
            }
            assert!(other.iter().all(|byte| *byte == 0x5a));
        });
    }
    stage.finish();
}
