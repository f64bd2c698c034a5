//! What a node's or a pool's accesses may end in, behind one interface: a channel, a channel behind
//! a link (CXL memory), or a fixed time (an idle memory, for references).
//!
//! All speak in cycles of their own clock ([`DramMedium::t_ck_ps`]). Refused requests, completions
//! and waiting are as of [`Channel`].

use super::Cycle;
use super::channel::{Channel, ChannelCounts, Completion, Full, NEVER, Request};
use super::config::{Config, DramConfigError};
use super::timing::LINE_BYTES;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Requests that a link's device, or a fixed time, keeps at most.
const UNDER_WAY_MAX: usize = 256;

/// A link between requester and memory, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CxlLink {
    /// From one end to the other, ports and controllers included, one way, in picoseconds.
    pub latency_ps: u64,
    /// What a direction carries, in bytes a microsecond (MB/s).
    pub bytes_per_us: u64,
    /// Bytes of a message beside the data of a line.
    pub header_bytes: u64,
}

/// What a medium is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumConfig {
    Dram(Config),
    /// A channel behind a link.
    Cxl {
        link: CxlLink,
        dram: Config,
    },
    /// Every access takes as long.
    Fixed {
        t_ck_ps: u32,
        latency: Cycle,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DramMedium {
    Dram(Box<Channel>),
    /// A channel behind a link.
    Cxl(Box<Linked>),
    /// Every access takes as long.
    Fixed(Fixed),
}

impl DramMedium {
    /// An idle medium at cycle 0.
    ///
    /// # Errors
    /// [`DramConfigError`].
    pub fn new(config: &MediumConfig) -> Result<Self, DramConfigError> {
        Ok(match config {
            MediumConfig::Dram(config) => Self::Dram(Box::new(Channel::new(config)?)),
            MediumConfig::Cxl { link, dram } => Self::Cxl(Box::new(Linked::new(link, dram)?)),
            MediumConfig::Fixed { t_ck_ps, latency } => Self::Fixed(Fixed::new(*t_ck_ps, *latency)),
        })
    }

    #[must_use]
    pub fn t_ck_ps(&self) -> u32 {
        match self {
            Self::Dram(channel) => channel.config().timing.t_ck_ps,
            Self::Cxl(linked) => linked.channel.config().timing.t_ck_ps,
            Self::Fixed(fixed) => fixed.t_ck_ps,
        }
    }

    /// Between two lines at most, in picoseconds: the channel's data bus, or the link if that is
    /// slower.
    #[must_use]
    pub fn line_ps(&self) -> u64 {
        let burst = |channel: &Channel| u64::from(channel.config().timing.burst);
        let cycle = u64::from(self.t_ck_ps());
        match self {
            Self::Dram(channel) => burst(channel) * cycle,
            Self::Cxl(linked) => {
                let link = (linked.back.header_and_line * cycle) >> FRACTION;
                link.max(burst(&linked.channel) * cycle)
            }
            Self::Fixed(_) => cycle,
        }
    }

    /// As [`Channel::submit`].
    ///
    /// # Errors
    /// [`Full`]: nothing has happened to the request.
    ///
    /// # Panics
    /// When `now` is earlier than in a call before.
    pub fn submit(&mut self, now: Cycle, request: Request) -> Result<(), Full> {
        match self {
            Self::Dram(channel) => channel.submit(now, request),
            Self::Cxl(linked) => linked.submit(now, request),
            Self::Fixed(fixed) => fixed.submit(now, request),
        }
    }

    /// As [`Channel::next_event`].
    #[must_use]
    pub fn next_event(&self) -> Option<Cycle> {
        match self {
            Self::Dram(channel) => channel.next_event(),
            Self::Cxl(linked) => linked.next_event(),
            Self::Fixed(fixed) => fixed.flying.front().map(|completion| completion.at),
        }
    }

    /// When a request that was refused may be submitted again, at the earliest.
    #[must_use]
    pub fn next_room(&self) -> Option<Cycle> {
        match self {
            Self::Dram(channel) => channel.next_command(),
            _ => self.next_event(),
        }
    }

    /// As [`Channel::advance`].
    ///
    /// # Panics
    /// When `until` is earlier than the cycle of a call before.
    pub fn advance(&mut self, until: Cycle, done: &mut Vec<Completion>) {
        match self {
            Self::Dram(channel) => channel.advance(until, done),
            Self::Cxl(linked) => linked.advance(until, done),
            Self::Fixed(fixed) => fixed.advance(until, done),
        }
    }

    /// What its channel has done; of a fixed time only reads and writes.
    #[must_use]
    pub fn counts(&self) -> &ChannelCounts {
        match self {
            Self::Dram(channel) => channel.counts(),
            Self::Cxl(linked) => linked.channel.counts(),
            Self::Fixed(fixed) => &fixed.counts,
        }
    }
}

/// One direction of a link: messages go one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Direction {
    latency: Cycle,
    /// When the last message has left, in units of 2^-16 cycles.
    free: u64,
    header: u64,
    header_and_line: u64,
}

/// Bits of a cycle's fraction.
const FRACTION: u32 = 16;

impl Direction {
    fn new(link: &CxlLink, t_ck_ps: u32) -> Self {
        let cycle = u128::from(t_ck_ps);
        // Bytes a microsecond: a byte takes 10^6 / rate picoseconds.
        let transfer = |bytes: u64| {
            let ps = (u128::from(bytes) * 1_000_000) << FRACTION;
            (ps / u128::from(link.bytes_per_us) / cycle) as u64
        };
        Self {
            latency: link.latency_ps.div_ceil(u64::from(t_ck_ps)),
            free: 0,
            header: transfer(link.header_bytes),
            header_and_line: transfer(link.header_bytes + LINE_BYTES),
        }
    }

    /// When a message that is ready `now` has arrived with its last byte.
    fn send(&mut self, now: Cycle, with_line: bool) -> Cycle {
        let bytes = if with_line { self.header_and_line } else { self.header };
        self.free = self.free.max(now << FRACTION) + bytes;
        self.free.div_ceil(1 << FRACTION) + self.latency
    }
}

/// A channel behind a link. Requests cross it in order and wait before a full queue; a write
/// completes when the channel has taken it and the answer has come back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Linked {
    channel: Channel,
    there: Direction,
    back: Direction,
    /// On their way there, or waiting before a full queue: when each arrives, its place.
    arriving: VecDeque<(Cycle, Request)>,
    returning: VecDeque<Completion>,
    /// Requests under way, by place: the caller's id, whether it writes, when it was submitted.
    under_way: Vec<(u64, bool, Cycle)>,
    places: Vec<u64>,
    done: Vec<Completion>,
    clock: Cycle,
    /// The first request of `arriving` is tried again then.
    retry: Cycle,
}

impl Linked {
    fn new(link: &CxlLink, dram: &Config) -> Result<Self, DramConfigError> {
        let rate = link.bytes_per_us;
        if rate == 0 {
            let (field, max) = ("link.bytes_per_us", u64::MAX);
            return Err(DramConfigError::Range { field, value: 0, min: 1, max });
        }
        let t_ck_ps = dram.timing.t_ck_ps;
        Ok(Self {
            channel: Channel::new(dram)?,
            there: Direction::new(link, t_ck_ps),
            back: Direction::new(link, t_ck_ps),
            arriving: VecDeque::with_capacity(UNDER_WAY_MAX),
            returning: VecDeque::with_capacity(UNDER_WAY_MAX),
            under_way: vec![(0, false, 0); UNDER_WAY_MAX],
            places: (0..UNDER_WAY_MAX as u64).collect(),
            done: Vec::with_capacity(UNDER_WAY_MAX),
            clock: 0,
            retry: 0,
        })
    }

    fn submit(&mut self, now: Cycle, request: Request) -> Result<(), Full> {
        assert!(now >= self.clock, "submit at cycle {now}, after cycle {}", self.clock);
        if now > self.clock {
            self.run(now - 1);
        }
        self.clock = now;
        let place = self.places.pop().ok_or(Full)?;
        self.under_way[place as usize] = (request.id, request.write, now);
        let at = self.there.send(now, request.write);
        self.arriving.push_back((at, Request { id: place, ..request }));
        Ok(())
    }

    fn next_event(&self) -> Option<Cycle> {
        let back = self.returning.front().map(|completion| completion.at);
        // Whatever is completed yet has the way back before it.
        let later = self.next_step().map(|at| at + self.back.latency);
        back.into_iter().chain(later).min()
    }

    /// When a request arrives at the channel or one completes there.
    fn next_step(&self) -> Option<Cycle> {
        let arrival = self.arriving.front().map(|(at, _)| (*at).max(self.retry));
        self.channel.next_event().into_iter().chain(arrival).min()
    }

    fn advance(&mut self, until: Cycle, done: &mut Vec<Completion>) {
        assert!(until >= self.clock, "advance to cycle {until}, after cycle {}", self.clock);
        self.run(until);
        while self.returning.front().is_some_and(|completion| completion.at <= until) {
            let completion = self.returning.pop_front().expect("it is there");
            let (id, _, arrived) = self.under_way[completion.id as usize];
            self.places.push(completion.id);
            done.push(Completion { id, at: completion.at, arrived });
        }
    }

    fn run(&mut self, until: Cycle) {
        while let Some(at) = self.next_step().filter(|at| *at <= until) {
            self.step(at);
        }
        self.clock = until;
    }

    /// What happens at cycle `at`: completions, then arrivals.
    fn step(&mut self, at: Cycle) {
        self.channel.advance(at, &mut self.done);
        for completion in self.done.drain(..) {
            let write = self.under_way[completion.id as usize].1;
            let at = self.back.send(completion.at, !write);
            self.returning.push_back(Completion { at, ..completion });
        }
        while let Some((_, request)) = self.arriving.front().filter(|(arrival, _)| *arrival <= at) {
            if self.channel.submit(at, *request).is_err() {
                // A full queue has commands to issue.
                self.retry = self.channel.next_command().unwrap_or(NEVER).max(at + 1);
                return;
            }
            self.arriving.pop_front();
        }
        self.retry = 0;
    }
}

/// Every access takes as long; as many as there is room for are under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fixed {
    t_ck_ps: u32,
    latency: Cycle,
    flying: VecDeque<Completion>,
    clock: Cycle,
    counts: ChannelCounts,
}

impl Fixed {
    fn new(t_ck_ps: u32, latency: Cycle) -> Self {
        let flying = VecDeque::with_capacity(UNDER_WAY_MAX);
        Self { t_ck_ps, latency, flying, clock: 0, counts: ChannelCounts::default() }
    }

    fn submit(&mut self, now: Cycle, request: Request) -> Result<(), Full> {
        assert!(now >= self.clock, "submit at cycle {now}, after cycle {}", self.clock);
        self.clock = now;
        if self.flying.len() == UNDER_WAY_MAX {
            return Err(Full);
        }
        let count = if request.write { &mut self.counts.writes } else { &mut self.counts.reads };
        *count += 1;
        let at = now + self.latency;
        self.flying.push_back(Completion { id: request.id, at, arrived: now });
        Ok(())
    }

    fn advance(&mut self, until: Cycle, done: &mut Vec<Completion>) {
        assert!(until >= self.clock, "advance to cycle {until}, after cycle {}", self.clock);
        self.clock = until;
        while self.flying.front().is_some_and(|completion| completion.at <= until) {
            done.extend(self.flying.pop_front());
        }
    }
}
