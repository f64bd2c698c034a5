//! Reads and writes as futures: on an executor that knows nothing of the pool, many at once,
//! dropped in the middle, and with errors.

use rackpool::cluster::Cluster;
use rackpool::{AsyncHandle, FabricChoice, GAddr, Placement, RackId, Submitted};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Polls when it is woken, and at no other time.
fn block_on<F: Future>(future: F) -> F::Output {
    let (waker, began) = (waker(), Instant::now());
    let (mut cx, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park_timeout(PATIENCE);
        assert!(began.elapsed() < PATIENCE, "no wake-up came");
    }
}

/// All at once.
async fn join(futures: Vec<Submitted>) -> Vec<rackpool::Result<Vec<u8>>> {
    let mut futures: Vec<_> = futures.into_iter().map(|one| (one, None)).collect();
    std::future::poll_fn(move |cx| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(result) = Pin::new(future).poll(cx) {
                *output = Some(result);
            }
        }
        if futures.iter().any(|(_, output)| output.is_none()) {
            return Poll::Pending;
        }
        let outputs = std::mem::take(&mut futures).into_iter();
        Poll::Ready(outputs.map(|(_, output)| output.expect("looked at above")).collect())
    })
    .await
}

fn far_memory(handle: &AsyncHandle, bytes: u64) -> GAddr {
    handle.with(|handle| handle.alloc(bytes, Placement::Rack(RackId(1)))).unwrap()
}

#[test]
fn more_futures_than_submissions_fit_complete_each_with_its_own_bytes() {
    for fabric in [FabricChoice::Tcp, FabricChoice::Proxied] {
        let cluster = Cluster::start(2).unwrap();
        let handle = cluster.pool_over(0, fabric).unwrap().async_handle().unwrap();
        let far = far_memory(&handle, 200 * 64);
        let at = |index: u64| GAddr(far.0 + index * 64);
        let writes = (0..200).map(|index| handle.write(at(index), vec![index as u8; 64]));
        let written = block_on(join(writes.collect()));
        assert!(written.iter().all(Result::is_ok), "{fabric:?}: {written:?}");
        let reads = (0..200).map(|index| handle.read(at(index), vec![0; 64]));
        for (index, read) in block_on(join(reads.collect())).into_iter().enumerate() {
            assert_eq!(read.unwrap(), vec![index as u8; 64], "{fabric:?}");
        }
    }
}

#[test]
fn a_dropped_future_leaves_its_handle_whole() {
    let cluster = Cluster::start(2).unwrap();
    let pool = cluster.pool_over(0, FabricChoice::Tcp).unwrap();
    let handle = pool.async_handle().unwrap();
    const BYTES: usize = 256 << 10;
    let (far, calm) = (far_memory(&handle, BYTES as u64), far_memory(&handle, 64));
    let waker = waker();
    for round in 0..32u8 {
        // Begun, and dropped while the fabric may still read and write its buffer.
        let mut read = handle.read(far, vec![0; BYTES]);
        let _ = Pin::new(&mut read).poll(&mut Context::from_waker(&waker));
        drop(read);
        let mut write = handle.write(far, vec![round; BYTES]);
        let _ = Pin::new(&mut write).poll(&mut Context::from_waker(&waker));
        drop(write);
    }
    block_on(handle.write(calm, vec![200; 64])).unwrap();
    assert_eq!(block_on(handle.read(calm, vec![0; 64])).unwrap(), vec![200; 64]);
    // Never polled: never begun.
    drop(handle.write(calm, vec![1; 64]));
    assert_eq!(block_on(handle.read(calm, vec![0; 64])).unwrap(), vec![200; 64]);
}

#[test]
fn an_error_ends_its_future_and_no_other() {
    let cluster = Cluster::start(2).unwrap();
    let handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().async_handle().unwrap();
    let far = far_memory(&handle, 4096);
    let futures = vec![
        handle.read(GAddr(0), vec![0; 8]),
        handle.read(far, vec![0; 8]),
        handle.read(GAddr(u64::MAX - 7), vec![0; 8]),
    ];
    let results = block_on(join(futures));
    assert_eq!(results[0].as_ref().unwrap_err().code(), "not-mapped");
    assert_eq!(results[1].as_deref(), Ok(&[0; 8][..]));
    assert!(results[2].is_err());
}

/// Calls the handle that wakes it.
struct Reenter(AsyncHandle, Thread);

impl Wake for Reenter {
    fn wake(self: Arc<Self>) {
        self.0.with(|handle| handle.page_bytes());
        self.1.unpark();
    }
}

#[test]
fn a_waker_may_call_the_handle_that_wakes_it() {
    let cluster = Cluster::start(2).unwrap();
    let handle = cluster.pool_over(0, FabricChoice::Tcp).unwrap().async_handle().unwrap();
    let far = far_memory(&handle, 64);
    let waker = Waker::from(Arc::new(Reenter(handle.clone(), thread::current())));
    // More than submissions fit: those that wait for room are woken in the same way.
    let mut all = pin!(join((0..100).map(|_| handle.write(far, vec![7; 64])).collect()));
    let began = Instant::now();
    let written = loop {
        match all.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(written) => break written,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
        assert!(began.elapsed() < PATIENCE, "no wake-up came");
    };
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert_eq!(block_on(handle.read(far, vec![0; 64])).unwrap(), [7; 64]);
}

#[test]
fn handles_in_many_threads_share_the_thread_that_wakes() {
    let cluster = Cluster::start(2).unwrap();
    let pool = cluster.pool_over(0, FabricChoice::Tcp).unwrap();
    thread::scope(|scope| {
        for number in 0..4u8 {
            let handle = pool.async_handle().unwrap();
            scope.spawn(move || {
                let far = far_memory(&handle, 64);
                for _ in 0..50 {
                    block_on(handle.write(far, vec![number; 64])).unwrap();
                    assert_eq!(block_on(handle.read(far, vec![9; 64])).unwrap(), [number; 64]);
                }
            });
        }
    });
}
