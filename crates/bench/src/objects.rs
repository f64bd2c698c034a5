//! Small objects: what an allocation and a free cost beside the C library's. Part of `bench local`.
//!
//! Objects live all the time and are replaced in random order, each freed and another one allocated
//! and written to. `alloc_free_64B_cross` has them freed by another handle, with a slot of its own,
//! as another process would have it: all are allocated, then all are freed.

use crate::interleave::{Comparison, compare};
use crate::probe::SystemProbe;
use crate::report::{Better, Reference, Row};
use crate::run::{BenchError, Size, Steps, slice_ns};
use rackpool::{GAddr, Handle, Placement};
use rackpool_stats::random::Rng;
use std::cell::RefCell;
use std::hint::black_box;

/// Objects that live at once.
const LIVE: usize = 10_000;
const BYTES: u64 = 64;
/// Objects that are replaced between two looks at the clock.
const BLOCK: u64 = 1000;

/// A private object of the same size.
type PrivateObject = Box<[u64; BYTES as usize / 8]>;

pub(crate) fn rows(
    handle: &mut Handle,
    other: &mut Handle,
    size: Size,
    mut probe: SystemProbe,
    steps: &mut Steps<'_>,
) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let name = "alloc_free_64B";
    steps.begin(name);
    let sent = messages(handle);
    let (comparison, operations) = replace(handle, size, &mut probe)?;
    let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
    rows.push(row.with("messages_per_1000", per_thousand(messages(handle) - sent, operations)));
    let name = "alloc_free_64B_cross";
    steps.begin(name);
    let sent = messages(handle) + messages(other);
    let (comparison, operations) = hand_over(handle, other, size, &mut probe)?;
    let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
    let sent = messages(handle) + messages(other) - sent;
    rows.push(row.with("messages_per_1000", per_thousand(sent, operations)));
    Ok(rows)
}

/// Messages of a handle to its daemon.
fn messages(handle: &Handle) -> u64 {
    handle.handle_stats().ring_requests
}

fn per_thousand(messages: u64, operations: u64) -> f64 {
    messages as f64 * 1000.0 / operations as f64
}

fn replace(
    handle: &mut Handle,
    size: Size,
    probe: &mut SystemProbe,
) -> Result<(Comparison, u64), BenchError> {
    let mut live = Vec::with_capacity(LIVE);
    for _ in 0..LIVE {
        live.push(handle.alloc(BYTES, Placement::Local)?);
    }
    let private: Vec<Option<PrivateObject>> = (0..LIVE).map(|_| Some(Box::new([0; 8]))).collect();
    let private = RefCell::new((private, Rng::new(1)));
    let pooled = RefCell::new((live, Rng::new(1)));
    let mut operations = 2 * LIVE as u64;
    let (rules, slice) = (size.rules(), size.slice());
    let ours = || {
        let (live, rng) = &mut *pooled.borrow_mut();
        slice_ns(slice, BLOCK, || {
            for value in 0..BLOCK {
                let one = &mut live[rng.below(LIVE as u64) as usize];
                handle.free(*one, BYTES)?;
                *one = handle.alloc(BYTES, Placement::Local)?;
                handle.write_u64(*one, value)?;
            }
            operations += 2 * BLOCK;
            Ok(())
        })
    };
    let theirs = || {
        let (live, rng) = &mut *private.borrow_mut();
        slice_ns(slice, BLOCK, || {
            for value in 0..BLOCK {
                let one = &mut live[rng.below(LIVE as u64) as usize];
                // Freed first, as ours.
                drop(black_box(one.take()));
                *one = Some(black_box(Box::new([value; 8])));
            }
            Ok(())
        })
    };
    let comparison = compare(&rules, 1, probe, ours, theirs)?;
    for addr in pooled.into_inner().0 {
        handle.free(addr, BYTES)?;
        operations += 1;
    }
    Ok((comparison, operations))
}

fn hand_over(
    handle: &mut Handle,
    other: &mut Handle,
    size: Size,
    probe: &mut SystemProbe,
) -> Result<(Comparison, u64), BenchError> {
    let (rules, slice) = (size.rules(), size.slice());
    let (mut rng, mut private_rng) = (Rng::new(2), Rng::new(2));
    let (mut pooled, mut private) = (Vec::<GAddr>::new(), Vec::<PrivateObject>::new());
    let mut operations = 0;
    let ours = || {
        slice_ns(slice, LIVE as u64, || {
            for value in 0..LIVE as u64 {
                let addr = handle.alloc(BYTES, Placement::Local)?;
                handle.write_u64(addr, value)?;
                pooled.push(addr);
            }
            while !pooled.is_empty() {
                let index = rng.below(pooled.len() as u64) as usize;
                other.free(pooled.swap_remove(index), BYTES)?;
            }
            operations += 2 * LIVE as u64;
            Ok(())
        })
    };
    let theirs = || {
        slice_ns(slice, LIVE as u64, || {
            for value in 0..LIVE as u64 {
                private.push(black_box(Box::new([value; 8])));
            }
            while !private.is_empty() {
                let index = private_rng.below(private.len() as u64) as usize;
                drop(black_box(private.swap_remove(index)));
            }
            Ok(())
        })
    };
    let comparison = compare(&rules, 2, probe, ours, theirs)?;
    Ok((comparison, operations))
}
