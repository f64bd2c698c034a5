//! Synthetic requests for a channel, as DRAM simulators are compared with: addresses at random or
//! in sequence, one request a fixed number of cycles or as many as the queues take.

use super::channel::{Channel, Completion, Request};
use super::{Cycle, timing::LINE_BYTES};
use rackpool_sim::rng::{Purpose, Rng};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOrder {
    /// Lines drawn from the whole channel.
    Random,
    Sequential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalRate {
    /// As soon as there is room for the next one.
    Saturated,
    /// One after so many cycles; it waits for room.
    Every(Cycle),
}

#[derive(Clone, Copy, Debug)]
pub struct RequestStream {
    pub pattern: AddressOrder,
    pub pace: ArrivalRate,
    /// Writes in a thousand requests, drawn.
    pub writes_permille: u64,
    pub requests: u64,
    pub seed: u64,
}

/// What became of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamResult {
    /// Cycle of the last completion.
    pub cycles: Cycle,
    pub reads: u64,
    /// Sum of their cycles from submission to completion.
    pub read_cycles: u64,
    /// Reads by latency; the last entry holds all longer ones.
    pub histogram: Vec<u64>,
}

/// Latencies that are told apart, in cycles.
const LATENCIES: usize = 1 << 14;

impl StreamResult {
    /// Average latency of reads, in cycles.
    #[must_use]
    pub fn average(&self) -> f64 {
        self.read_cycles as f64 / self.reads.max(1) as f64
    }

    /// The latency that this share of the reads did not exceed, in cycles.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Cycle {
        let wanted = (self.reads as f64 * share).ceil() as u64;
        let mut seen = 0;
        let at = self.histogram.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        at.unwrap_or(LATENCIES - 1) as Cycle
    }
}

impl RequestStream {
    /// Runs the stream to the last completion, on a channel that has not passed `start`.
    /// `each` is called after each step with the channel, for example to take its commands.
    pub fn run(
        &self,
        start: Cycle,
        channel: &mut Channel,
        mut each: impl FnMut(&mut Channel),
    ) -> StreamResult {
        let mut rng = Rng::new(self.seed, Purpose::Workload, 0);
        let lines = channel.config().geometry.bytes() / LINE_BYTES;
        let mut outcome = StreamResult { histogram: vec![0; LATENCIES], ..StreamResult::default() };
        let mut done = Vec::with_capacity(1024);
        let mut now = start;
        for number in 0..self.requests {
            let draw = rng.next_u64();
            let write = ((draw >> 32) * 1000) >> 32 < self.writes_permille;
            let line = match self.pattern {
                AddressOrder::Random => rng.next_u64() % lines,
                AddressOrder::Sequential => number % lines,
            };
            if let ArrivalRate::Every(gap) = self.pace {
                now = now.max(start + number * gap);
                channel.advance(now, &mut done);
            }
            // The id says whether it writes: more is not asked of completions.
            let request = Request { id: u64::from(write), addr: line * LINE_BYTES, write };
            while channel.submit(now, request).is_err() {
                // A full queue has commands to issue.
                now = now.max(channel.next_command().unwrap_or(now));
                channel.advance(now, &mut done);
            }
            if !done.is_empty() {
                outcome.take(&mut done);
            }
            each(channel);
        }
        while let Some(at) = channel.next_event() {
            channel.advance(at, &mut done);
            outcome.take(&mut done);
        }
        each(channel);
        outcome
    }
}

impl StreamResult {
    fn take(&mut self, done: &mut Vec<Completion>) {
        for completion in done.drain(..) {
            self.cycles = self.cycles.max(completion.at);
            if completion.id == 0 {
                let latency = completion.at - completion.arrived;
                self.reads += 1;
                self.read_cycles += latency;
                self.histogram[(latency as usize).min(LATENCIES - 1)] += 1;
            }
        }
    }
}
