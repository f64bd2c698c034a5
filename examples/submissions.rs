//! Many reads under way at once from one thread: each is submitted with its buffer, and its
//! completion gives the buffer back. `Handle::completion_fd` is for an event loop of your own.
//!
//! `cargo run --example submissions`

use rackpool::cluster::Cluster;
use rackpool::{GAddr, Placement, RackId, Result};
use std::collections::BTreeMap;

const PIECES: u64 = 32;
const PIECE_BYTES: u64 = 4096;
const TIMEOUT_MS: u64 = 1_000;

fn main() -> Result<()> {
    let cluster = Cluster::start(2)?;
    let mut handle = cluster.pool(0)?.handle()?;
    let far = handle.alloc(PIECES * PIECE_BYTES, Placement::Rack(RackId(1)))?;
    let at = |piece: u64| GAddr(far.0 + piece * PIECE_BYTES);

    for piece in 0..PIECES {
        handle.submit_write(at(piece), vec![piece as u8; PIECE_BYTES as usize])?;
    }
    for _ in 0..PIECES {
        let done = handle.wait_completion(TIMEOUT_MS)?.expect("a write ends within its timeout");
        done.result?;
    }

    let mut pieces = BTreeMap::new();
    for piece in 0..PIECES {
        let ticket = handle.submit_read(at(piece), vec![0; PIECE_BYTES as usize])?;
        pieces.insert(ticket, piece);
    }
    while !pieces.is_empty() {
        // Work of your own could be done here: `poll_completion` does not wait.
        let done = handle.wait_completion(TIMEOUT_MS)?.expect("a read ends within its timeout");
        done.result?;
        let piece = pieces.remove(&done.ticket).expect("a ticket completes once");
        assert!(done.buffer.iter().all(|byte| *byte == piece as u8));
    }
    println!("{PIECES} pieces of {PIECE_BYTES} bytes were written and read");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
