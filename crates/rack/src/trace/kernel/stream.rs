//! A kernel as a stream, without a file between: it runs beside its reader, a few blocks ahead.

use super::Config;
use crate::trace::{Header, Reader, Record, TraceError};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const BLOCK_RECORDS: usize = 1 << 14;
/// Blocks that wait for the reader.
const BLOCKS_AHEAD: usize = 4;

/// Reads what a kernel makes.
#[derive(Debug)]
pub struct KernelReader {
    header: Header,
    blocks: Receiver<Vec<Record>>,
    block: std::vec::IntoIter<Record>,
}

impl Reader for KernelReader {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if let Some(record) = self.block.next() {
                return Ok(Some(record));
            }
            // The kernel has ended if nothing comes any more.
            match self.blocks.recv() {
                Ok(block) => self.block = block.into_iter(),
                Err(_) => return Ok(None),
            }
        }
    }
}

/// Runs a kernel on a thread of its own while `read` reads its records; when `read` returns, the
/// kernel is stopped. What is read does not depend on the speed of either.
///
/// # Errors
/// What is wrong with the configuration.
pub fn with_reader<T>(
    config: &Config,
    read: impl FnOnce(&mut KernelReader) -> T,
) -> Result<T, String> {
    config.check()?;
    std::thread::scope(|scope| {
        let (sender, blocks) = sync_channel(BLOCKS_AHEAD);
        scope.spawn(|| feed(config, sender));
        let block = Vec::new().into_iter();
        let mut reader = KernelReader { header: config.header(), blocks, block };
        // The reader ends with this scope, and with it the kernel at its next block.
        Ok(read(&mut reader))
    })
}

fn feed(config: &Config, sender: SyncSender<Vec<Record>>) {
    let mut block = Vec::with_capacity(BLOCK_RECORDS);
    let mut emit = |record| {
        block.push(record);
        if block.len() < BLOCK_RECORDS {
            return ControlFlow::Continue(());
        }
        match sender.send(std::mem::replace(&mut block, Vec::with_capacity(BLOCK_RECORDS))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let ran = super::run(config, &mut emit);
    ran.expect("the configuration was checked");
    // The reader may be gone.
    let _ = sender.send(block);
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Name, run, with_reader};
    use super::*;

    #[test]
    fn a_reader_gets_what_the_kernel_gives() {
        let config = Config::new(Name::Fdtd, 1 << 20);
        let mut direct = Vec::new();
        run(&config, &mut |record| {
            direct.push(record);
            ControlFlow::Continue(())
        })
        .unwrap();
        let read = with_reader(&config, |reader| {
            let mut records = Vec::new();
            while let Some(record) = reader.next().unwrap() {
                records.push(record);
            }
            records
        });
        assert!(read.unwrap() == direct && !direct.is_empty());
    }

    #[test]
    fn a_reader_that_stops_stops_the_kernel() {
        let config = Config { steps: u32::MAX, caches: None, ..Config::new(Name::Lbm, 1 << 20) };
        let first = with_reader(&config, |reader| reader.next().unwrap()).unwrap();
        assert!(first.is_some());
    }
}
