//! Transfers between accounts under locks: for one account a lock of its line, for a table of them
//! a lock of the range, with which the writes travel together.
//!
//! `cargo run --example locks`

use rackpool::cluster::Cluster;
use rackpool::{GAddr, Handle, LockMode, LockOptions, Placement, RackId, Result};

const ACCOUNTS: u64 = 64;
const LINE: u64 = 64;

fn account(table: GAddr, number: u64) -> GAddr {
    GAddr(table.0 + LINE * number)
}

/// Moves an amount; both accounts are locked, the lower address first, so that two transfers never
/// wait for each other.
fn transfer(handle: &mut Handle, table: GAddr, from: u64, to: u64, amount: u64) -> Result<()> {
    let (low, high) = (from.min(to), from.max(to));
    let first = handle.lock(account(table, low), LockMode::Write, LockOptions::line())?;
    let second = handle.lock(account(table, high), LockMode::Write, LockOptions::line())?;
    let left = handle.read_u64(account(table, from))? - amount;
    handle.write_u64(account(table, from), left)?;
    let sum = handle.read_u64(account(table, to))? + amount;
    handle.write_u64(account(table, to), sum)?;
    handle.unlock(second)?;
    handle.unlock(first)
}

fn main() -> Result<()> {
    let cluster = Cluster::start(2)?;
    let mut near = cluster.pool(0)?.handle()?;
    let mut far = cluster.pool(1)?.handle()?;
    let table = near.alloc(ACCOUNTS * LINE, Placement::Rack(RackId(1)))?;

    let all = LockOptions::range(ACCOUNTS * LINE);
    let guard = near.lock(table, LockMode::Write, all)?;
    for number in 0..ACCOUNTS {
        near.write_u64(account(table, number), 100)?;
    }
    // Another client would wait; one that only tries is told the holder.
    let tried = far.lock(table, LockMode::Read, all.within_ms(0));
    println!("while it is held: {}", tried.expect_err("it is held"));
    near.unlock(guard)?; // says whether every write has arrived

    transfer(&mut near, table, 3, 7, 30)?;
    transfer(&mut far, table, 7, 3, 10)?;

    let guard = far.lock(table, LockMode::Read, all)?;
    let mut sum = 0;
    for number in 0..ACCOUNTS {
        sum += far.read_u64(account(table, number))?;
    }
    far.unlock(guard)?;
    println!("sum {sum}");
    assert_eq!(sum, 100 * ACCOUNTS);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
