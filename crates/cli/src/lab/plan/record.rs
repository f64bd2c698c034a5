//! `plan --from-pool`: what a running pool's master and daemons decided, into a file.

use crate::args::{MasterAt, PlanArgs};
use crate::connect::Watch;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output;
use rackpool::Policy;
use rackpool::monitor::{Monitor, Sample};
use rackpool_core::placement::{RecordedEvent, entries_of};
use rackpool_rack::live::{
    Counters, Heat, RackCounters, RecordHeader, RecordLine, Recording, RecordingError, SCHEMA,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks at the master's log: much shorter than it takes to be forgotten.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the last looks at the pool may take after a signal.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Records for as long as was said; the file, after everything in it was decided again.
pub fn run(master: &str, args: &PlanArgs) -> Result<PathBuf> {
    let at = MasterAt { master: Some(master.to_owned()), secret_file: args.secret_file.clone() };
    let shutdown = interrupt::shutdown()?;
    let Watch { mut monitor, masters } = Watch::open(&at)?;
    output::directory(&args.out)?;
    let path = args.out.join("recording.jsonl");
    let to = output::open(&path)?;
    // A signal ends the recording, and what was recorded is kept.
    interrupt::allow(ENDS_WITHIN);
    let start = Instant::now();
    let sample = monitor.sample()?;
    let placement = sample.master.placement.parse::<Policy>();
    let placement = placement.map_err(|_| Failure::new("protocol", "an unknown placement"))?;
    let header = RecordHeader { schema: SCHEMA.into(), master: masters, placement };
    let mut text = RecordLine::Header(header).to_text();
    text += &RecordLine::Counters(counters(&sample, start)).to_text();
    let mut log = Log::default();
    loop {
        let is_over = start.elapsed() >= args.span || shutdown.is_requested();
        log.follow(&mut monitor, &mut text)?;
        if is_over {
            break;
        }
        std::thread::sleep(PAUSE.min(args.span.saturating_sub(start.elapsed())));
    }
    let sample = monitor.sample()?;
    for (rack, number, record) in monitor.page_decisions(&sample)? {
        text += &RecordLine::Heat(Heat { rack, number, record: Box::new(record) }).to_text();
    }
    text += &RecordLine::Counters(counters(&sample, start)).to_text();
    let recording = Recording::read(&path, &text);
    let recording = recording.map_err(|error| {
        let code = match error {
            RecordingError::Nothing(_) => "nothing-recorded",
            _ => "recording",
        };
        Failure::new(code, error.to_string())
    })?;
    to.write(&text)?;
    output::print(&format!(
        "recorded: {} choices of racks by {} and {} decisions about pages; all came out the same \
         when they were made again\nwritten: {}\n",
        recording.picks,
        recording.header.placement,
        recording.pages_decided,
        path.display()
    ))?;
    Ok(path)
}

/// The place in the master's log that was come to.
#[derive(Default)]
struct Log {
    seed: Option<u64>,
    at: u64,
    /// The begin of an entry.
    rest: Vec<u8>,
}

impl Log {
    fn follow(&mut self, monitor: &mut Monitor, text: &mut String) -> Result<()> {
        loop {
            let mut piece = monitor.placements(self.at)?;
            if self.seed.is_some_and(|seed| seed != piece.seed) {
                // Another master: its log begins anew.
                piece = monitor.placements(0)?;
            }
            if self.seed != Some(piece.seed) || piece.at != self.at {
                if self.seed.is_some() || piece.at > 0 {
                    *text += &RecordLine::Gap.to_text();
                }
                self.rest.clear();
            }
            if piece.bytes.is_empty() {
                (self.seed, self.at) = (Some(piece.seed), piece.at);
                return Ok(());
            }
            self.seed = Some(piece.seed);
            self.at = piece.at + piece.bytes.len() as u64;
            self.rest.extend(piece.bytes);
            let broken = || Failure::new("protocol", "the master's log of choices makes no sense");
            let (entries, used) = entries_of(&self.rest).ok_or_else(broken)?;
            self.rest.drain(..used);
            let line = |entry: RecordedEvent| RecordLine::Entry(entry).to_text();
            text.extend(entries.into_iter().map(line));
        }
    }
}

fn counters(sample: &Sample, start: Instant) -> Counters {
    let racks = sample.racks.iter().filter_map(|rack| {
        let daemon = rack.daemon.as_ref()?;
        Some(RackCounters {
            rack: rack.rack,
            page_bytes: daemon.page_bytes,
            frames: daemon.frames,
            frames_free: daemon.frames_free,
            requests: daemon.requests,
            operations: daemon.fabric.operations,
        })
    });
    Counters { at_ns: start.elapsed().as_nanos() as u64, racks: racks.collect() }
}
