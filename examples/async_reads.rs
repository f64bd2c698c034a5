//! Reads and writes as futures, on any executor: here on one of twenty lines.
//!
//! `cargo run --example async_reads`

use rackpool::cluster::Cluster;
use rackpool::{AsyncHandle, GAddr, Placement, RackId, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

const PIECES: u64 = 8;
const PIECE_BYTES: u64 = 4096;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

async fn copy(handle: &AsyncHandle, from: GAddr, to: GAddr) -> Result<()> {
    let bytes = handle.read(from, vec![0; PIECE_BYTES as usize]).await?;
    handle.write(to, bytes).await.map(drop)
}

fn main() -> Result<()> {
    let cluster = Cluster::start(2)?;
    let handle = cluster.pool(0)?.async_handle()?;
    let bytes = PIECES * PIECE_BYTES;
    // What is no read or write blocks.
    let alloc = |rack| handle.with(|handle| handle.alloc(bytes, Placement::Rack(RackId(rack))));
    let (near, far) = (alloc(0)?, alloc(1)?);
    handle.with(|handle| handle.write(far, &vec![7; bytes as usize]))?;

    block_on(async {
        for piece in 0..PIECES {
            let offset = piece * PIECE_BYTES;
            copy(&handle, GAddr(far.0 + offset), GAddr(near.0 + offset)).await?;
        }
        Ok::<_, rackpool::Error>(())
    })?;

    let mut copied = vec![0; bytes as usize];
    handle.with(|handle| handle.read(near, &mut copied))?;
    assert!(copied.iter().all(|byte| *byte == 7));
    println!("{bytes} bytes came from rack 1");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
