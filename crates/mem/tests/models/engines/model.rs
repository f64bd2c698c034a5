//! Loom with room for the engines: its own stacks of 32 KiB overflow while one is set up, and a
//! test with an overflowed stack hangs.

use loom::thread::{Builder, JoinHandle};
use std::sync::Arc;

/// In words.
const STACK: usize = 1 << 16;

/// Checks `f` with at most so many preemptions, all of them if none are said.
pub fn model(preemptions: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let f = Arc::new(f);
    builder.check(move || {
        let f = f.clone();
        spawn(move || f()).join().expect("the model ran");
    });
}

pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().stack_size(STACK).spawn(f).expect("a modelled thread")
}
