//! Time of the processor for operations of the cache whose memory is all in its caches, measured:
//! what the constants of the model come from.

use crate::run::BenchError;
use rackpool_cache::{Cache, Options};
use std::hint::black_box;
use std::time::Instant;

const KEYS: u64 = 64;
const SHORT_BYTES: usize = 48;
const LONG_BYTES: usize = 2048;
const LINE_BYTES: usize = 64;
const ROUNDS: usize = 400;

/// Ns of a get of a short value with what it copies, of a set of one, and of each line more that
/// a get copies.
///
/// # Errors
/// [`BenchError::Cache`].
pub fn measure() -> Result<[f64; 3], BenchError> {
    let (short, long) = (filled(SHORT_BYTES)?, filled(LONG_BYTES)?);
    let get = window(|| gets(&short));
    let lines = (LONG_BYTES - SHORT_BYTES) as f64 / LINE_BYTES as f64;
    let line = (window(|| gets(&long)) - get).max(0.0) / lines;
    let value = [0x5a; SHORT_BYTES];
    let set = window(|| {
        for key in 0..KEYS {
            let _ = black_box(short.set(&key_of(key), &value, 0, 0, 1));
        }
    });
    Ok([get, set, line])
}

fn key_of(key: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes
}

fn filled(value_bytes: usize) -> Result<Cache, BenchError> {
    let cache = Cache::new(Options { memory: 2 << 20, ..Options::default() })?;
    for key in 0..KEYS {
        cache.set(&key_of(key), &vec![0x5a; value_bytes], 0, 0, 1)?;
    }
    Ok(cache)
}

fn gets(cache: &Cache) {
    let mut value = [0_u8; LONG_BYTES];
    for key in 0..KEYS {
        let copied = cache.get(&key_of(key), 1, |item| item.copy_to(0, &mut value));
        black_box((&copied, &value));
    }
}

/// Ns of one of the operations in the quickest quarter of some windows of [`KEYS`].
fn window(mut work: impl FnMut()) -> f64 {
    let mut took: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e9 / KEYS as f64
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took[ROUNDS / 4]
}
