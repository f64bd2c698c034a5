//! The cache inside of a program, without a server: a fixed amount of memory, values that expire,
//! and the least useful ones leave when room is needed.
//!
//! `cargo run -p rackpool-cache --example cache_in_process`

use rackpool_cache::{Cache, Options, Result};
use std::time::Instant;

const MEMORY_BYTES: u64 = 16 << 20;
const VALUE_BYTES: usize = 1000;
const KEYS: u32 = 40_000;

fn main() -> Result<()> {
    let cache = Cache::new(Options { memory: MEMORY_BYTES, ..Options::default() })?;
    // Time is handed in, milliseconds from a start of yours; 0 as an expiry is never.
    let start = Instant::now();
    let now = || 1 + start.elapsed().as_millis() as u64;

    cache.set(b"session 1", b"alice", 0, now() + 60_000, now())?;
    let mut value = Vec::new();
    let found = cache.get(b"session 1", now(), |item| item.append_to(&mut value)).transpose()?;
    assert!(found.is_some());
    println!("session 1 is {}", String::from_utf8_lossy(&value));
    assert!(cache.get(b"session 1", now() + 120_000, |_| ()).is_none(), "it has expired by then");

    // Twice as much as there is room for.
    for number in 0..KEYS {
        cache.set(format!("page {number}").as_bytes(), &[7; VALUE_BYTES], 0, 0, now())?;
    }
    let kept = (0..KEYS)
        .filter(|number| cache.get(format!("page {number}").as_bytes(), now(), |_| ()).is_some());
    let kept = kept.count() as u32;
    println!("{kept} of {KEYS} pages are in {} MiB", MEMORY_BYTES >> 20);
    assert!(kept > KEYS / 10 && kept < KEYS);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
