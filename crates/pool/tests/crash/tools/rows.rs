//! Processes that write a table of rows, all of them each time, under a lock of its range, and
//! look before whether every row is whole and nothing is older than what they had unlocked.
//!
//! | line | meaning |
//! |---|---|
//! | `c N` | version N of all rows was unlocked |
//! | `w` | writing begins |
//! | `m` | rows of two versions were found: a process ended before it unlocked |
//! | `r CODE` | a typed error that may be retried; it was |
//! | `e MESSAGE` | what must not happen; the process ends |

use super::{Random, say};
use rackpool::{Error, GAddr, Handle, LockMode, LockOptions, Options, Pool};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const ROWS: u64 = 48;
/// Bytes of a row: more than a line, so that a part of it would show.
pub const ROW_BYTES: u64 = 120;
/// Bytes from one row to the next: some lie side by side with others' lines.
const STEP_BYTES: u64 = 152;
/// Bytes of the table.
pub const TABLE_BYTES: u64 = 8192;

static STOP: AtomicBool = AtomicBool::new(false);

/// Version `version` of a row.
fn row(index: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(index << 40 ^ version);
    let mut bytes = version.to_le_bytes().to_vec();
    while bytes.len() < ROW_BYTES as usize {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes
}

/// The least and the greatest version of all rows, each of which must be whole.
pub fn versions(handle: &mut Handle, table: GAddr) -> Result<(u64, u64), Error> {
    let (mut least, mut greatest) = (u64::MAX, 0);
    for index in 0..ROWS {
        let mut bytes = vec![0; ROW_BYTES as usize];
        handle.read(GAddr(table.0 + STEP_BYTES * index), &mut bytes)?;
        let version = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let expected = if version == 0 { vec![0; ROW_BYTES as usize] } else { row(index, version) };
        if bytes != expected {
            say(&format!("e row {index} of version {version} is torn"));
            panic!("row {index} of version {version} is torn: {bytes:?}");
        }
        (least, greatest) = (least.min(version), greatest.max(version));
    }
    Ok((least, greatest))
}

pub fn run(args: &[&str]) -> Result<(), String> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        // Relaxed: the flag carries no data.
        STOP.store(true, Ordering::Relaxed);
    });
    let [master, rack, table, buffer_bytes, seed] = args else { panic!("{args:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let options = Options::new(master, number(rack) as u16)
        .fabric(rackpool::FabricChoice::Tcp)
        .write_buffer_bytes(number(buffer_bytes) as u32)
        .request_timeout_ms(5_000);
    let handle = Pool::open(options).and_then(|pool| pool.handle());
    let mut handle = handle.map_err(|error| error.to_string())?;
    let (table, mut random) = (GAddr(number(table)), Random::new(number(seed)));
    say("ready rows");
    let mut own_last = 0;
    // Relaxed: the flag carries no data.
    while !STOP.load(Ordering::Relaxed) {
        match write_all(&mut handle, table, own_last, &mut random) {
            Ok(version) => {
                own_last = version;
                say(&format!("c {version}"));
            }
            Err(error) => {
                let lost = ["lock-lost", "writes-lost"].contains(&error.code());
                if !error.may_retry() && !lost {
                    say(&format!("e {error}"));
                    std::process::exit(4);
                }
                say(&format!("r {}", error.code()));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    say("done");
    Ok(())
}

fn write_all(
    handle: &mut Handle,
    table: GAddr,
    own_last: u64,
    random: &mut Random,
) -> Result<u64, Error> {
    let guard = handle.lock(table, LockMode::Write, LockOptions::range(TABLE_BYTES))?;
    let (least, greatest) = versions(handle, table)?;
    if least < own_last {
        say(&format!("e version {least} was found after {own_last} was unlocked"));
        std::process::exit(4);
    }
    if least != greatest {
        say("m");
    }
    let version = greatest + 1;
    say("w");
    for turn in 0..2 {
        for index in 0..ROWS {
            // Some twice, in another order.
            let index = if turn == 0 { index } else { random.below(ROWS) };
            handle.write(GAddr(table.0 + STEP_BYTES * index), &row(index, version))?;
        }
    }
    let seen = versions(handle, table)?;
    if seen != (version, version) {
        // Only a lock that is lost lets another process in between.
        handle.check_lock(&guard)?;
        say(&format!("e {seen:?} instead of what was written, version {version}"));
        std::process::exit(4);
    }
    handle.unlock(guard)?;
    Ok(version)
}
