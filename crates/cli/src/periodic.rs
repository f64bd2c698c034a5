//! Something that is done from time to time beside the work of a command.

use crate::failure::{Failure, Result};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that calls a function from time to time, until this is dropped.
#[derive(Debug)]
pub struct Periodic {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    pub fn start(
        name: &str,
        each: Duration,
        mut call: impl FnMut() + Send + 'static,
    ) -> Result<Periodic> {
        let (end, ended) = channel();
        let thread = rackpool_mem::log::spawn(name, move || {
            while ended.recv_timeout(each) == Err(RecvTimeoutError::Timeout) {
                call();
            }
        });
        let thread = thread.map_err(|error| Failure::io("starting a thread", &error))?;
        Ok(Periodic { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
