//! A serving thread: looks at the slots of clients that asked lately, does what they ask in
//! batches, sleeps when no request comes. The same behind shared memory and behind a fabric; what
//! differs is in a client's [`ClientTransport`]: how the client learns that it is watched, how its
//! replies reach it.
//!
//! A client that is watched is looked at by itself, round for round; the others set their bits in
//! the bell. After a while without requests the thread stops to watch, sleeps on the bell, and
//! costs nothing. It never scans clients that ask for nothing.
//!
//! In: commands of the acceptor, bits, slots. Out: replies. It is the only user of its engine.
//!
//! Source: HERD §4.2 (server processes that poll).

use super::counters::{HerdCounter, HerdCounters, ThreadCounters};
use super::engine::{ClientSlots, Engine, Pipeline, Replied};
use super::geometry::Geometry;
use super::pair;
use super::slot::SlotFormat;
use crate::cache::{Cache, Millis};
use crate::clock::Clock;
use rackpool_core::seam::Mutation;
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::wait::{Pause, Waiter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Clients that a thread watches at once: each costs a look at its slots every round. Others set
/// their bits.
const WATCHED_MAX: usize = 64;
/// Looks in a row that find nothing before a client is watched no more, while others ask on. HERD's
/// server gives up after 100 (§4.1).
const LOOKS_MAX: u32 = 4096;
/// Rounds between two looks at the bits while any client is watched.
const ROUNDS_PER_BITS: u32 = 8;
/// Requests that are done before the next client is looked at: their memory accesses overlap well,
/// and their clients go on meanwhile. (Twice as many were measured to be slower: clients and server
/// then wait for one another.)
const BATCH_ENOUGH: usize = 32;
/// Looks without a pause of the processor after a round with requests.
const LOOKS_EAGER: u32 = 128;
/// Looks of a round at the slot of the only client that is watched. A look by itself takes less
/// than the round around it: what comes is seen sooner, and its client can tell better when the
/// answer will be there.
const LOOKS_ALONE: u32 = 16;
/// Rounds and requests together between two looks at the clock: some 10 µs, of an expiry in
/// milliseconds.
const STEPS_PER_CLOCK: usize = 256;
/// Rounds with requests after which it is looked whether clients sleep that got replies, even if
/// the next requests are there already.
const ROUNDS_PER_WAKE: u32 = 8;
/// Rounds in a row without requests, after which a pipeline that holds requests is given a no-op:
/// HERD's server does so after as many empty polls (§4.1).
const ROUNDS_PER_NO_OP: u32 = 100;
/// Longest sleep of a serving thread: a wake-up that a client did not send because it died is late
/// by so much.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A request that did not come into its slot by itself.
pub(super) struct IncomingRequest<'a> {
    pub client: u32,
    pub window: u32,
    /// The key that the client was given when it was admitted.
    pub key: u64,
    /// The message as its slot is to have it.
    pub image: &'a [u8],
}

/// Where such requests come in, for all clients of a thread, and its clocks.
pub(super) trait RequestSource: 'static {
    fn poll(&mut self, take: &mut dyn FnMut(&IncomingRequest<'_>));

    /// From now on the thread's bell is rung for what comes; what has come is to be polled once
    /// more.
    fn arm(&mut self);

    /// Whether no request can come in any more; `true` once.
    fn take_failure(&mut self) -> bool {
        false
    }

    /// The time of the clock by which items expire, as `clock` shows it.
    fn items_ms(&self, clock: &Clock) -> Millis {
        clock.now()
    }

    /// The time of a clock that never goes back, nanoseconds.
    fn monotonic_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// As [`Probe::mutated`](rackpool_core::seam::Probe::mutated).
    #[inline(always)]
    fn mutated(&self, _: Mutation) -> bool {
        false
    }
}

impl RequestSource for () {
    #[inline(always)]
    fn poll(&mut self, _: &mut dyn FnMut(&IncomingRequest<'_>)) {}

    fn arm(&mut self) {}
}

impl<I: RequestSource> RequestSource for Option<I> {
    #[inline]
    fn poll(&mut self, take: &mut dyn FnMut(&IncomingRequest<'_>)) {
        if let Some(source) = self {
            source.poll(take);
        }
    }

    fn arm(&mut self) {
        if let Some(source) = self {
            source.arm();
        }
    }

    fn take_failure(&mut self) -> bool {
        self.as_mut().is_some_and(RequestSource::take_failure)
    }
}

/// A client at a serving thread: its slots, and the ways to it.
pub(super) trait ClientTransport: 'static {
    /// Where requests come in that do not come into their slots by themselves.
    type Source: RequestSource;
    /// How its requests are published.
    const FORM: SlotFormat;
    /// How long the thread watches on without requests, before it sleeps.
    const LINGER: Duration;
    /// Whether replies are seen without [`ClientTransport::settle`] and [`ClientTransport::wake`]
    /// by clients that do not sleep: then the thread looks for further requests first, and asks
    /// only when there are none.
    const WAKES_LATER: bool;

    /// Puts a request into its slot, if it is the client's; whether it is.
    fn accept(&self, _: &IncomingRequest<'_>) -> bool {
        false
    }

    /// Its slots at this thread.
    fn slots(&self) -> ClientSlots;

    /// It is watched from now on.
    fn begin_to_watch(&self);

    /// It is watched no more; `false` if it has to be, because it asks just now.
    fn end_to_watch(&self, is_ready: impl FnOnce() -> bool) -> bool;

    /// A reply is in its slot.
    fn reply(&mut self, replied: Replied, is_watched: bool);

    /// All replies so far are there, those of others included: once, before any client is woken.
    fn settle(&self);

    /// The client has replies that it was not notified of: wakes it if it sleeps.
    fn wake(&self);
}

/// A command of the acceptor to a serving thread.
pub(super) enum WorkerCommand<S> {
    Attach {
        client: u32,
        transport: S,
    },
    /// Dropped when the client's slots are not touched any more.
    Detach {
        client: u32,
        done: Arc<()>,
    },
}

/// How a serving thread is woken: a bit for each client, and one for its command queue.
pub(super) struct Doorbell {
    bitmap: Bitmap,
    /// The bit of the command queue.
    command_bit: u32,
}

impl Doorbell {
    pub(super) fn new(bitmap: Bitmap, clients: u32) -> Doorbell {
        Doorbell { bitmap, command_bit: clients }
    }

    pub(super) fn ring(&self, client: u32) {
        pair::ring(&self.bitmap, client);
    }

    /// Rings for the command queue, or for the end of the server.
    pub(super) fn notify(&self) {
        pair::ring(&self.bitmap, self.command_bit);
    }
}

/// Where a serving thread gets its commands.
pub(super) struct CommandQueue<S> {
    commands: Mutex<Vec<WorkerCommand<S>>>,
    pub(super) bell: Arc<Doorbell>,
}

impl<S> CommandQueue<S> {
    pub(super) fn new(bell: Arc<Doorbell>) -> CommandQueue<S> {
        CommandQueue { commands: Mutex::default(), bell }
    }

    fn commands(&self) -> MutexGuard<'_, Vec<WorkerCommand<S>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, command: WorkerCommand<S>) {
        self.commands().push(command);
        self.bell.notify();
    }
}

/// A client as a serving thread knows it.
struct ServedClient<S> {
    transport: S,
    is_watched: bool,
    /// Looks in a row that found nothing.
    looks: u32,
}

/// What the serving threads of a server have in common.
#[derive(Clone)]
pub(super) struct ServingOptions {
    pub cache: Cache,
    pub geometry: Geometry,
    /// Clients have the numbers 0 to `clients` - 1.
    pub clients: u32,
    pub counters: Arc<HerdCounters>,
    /// How the waits for memory overlap.
    pub pipeline: Pipeline,
    /// By which items expire.
    pub clock: Clock,
}

pub(super) struct Serving<S: ClientTransport> {
    server: u32,
    engine: Engine,
    source: S::Source,
    clock: Clock,
    queue: Arc<CommandQueue<S>>,
    counters: Arc<HerdCounters>,
    clients: Vec<Option<ServedClient<S>>>,
    watched: Vec<u32>,
    /// Clients that have set their bit and were not looked at.
    rung: Vec<u32>,
    /// Requests of clients that were unknown when they came: client, window, key, image.
    early: Vec<(u32, u32, u64, Box<[u8]>)>,
    /// Clients with replies that were not woken.
    replied: Vec<u32>,
    rounds: u32,
    /// Rounds in a row without requests while some are in the pipeline.
    vain: u32,
    /// Rounds and requests since the clock was looked at.
    steps: usize,
    /// Milliseconds since the epoch, some 10 µs ago as a rule.
    now: Millis,
}

impl<S: ClientTransport> Serving<S> {
    pub(super) fn new(
        server: u32,
        options: ServingOptions,
        queue: Arc<CommandQueue<S>>,
        source: S::Source,
    ) -> Serving<S> {
        let ServingOptions { cache, geometry, clients, counters, pipeline, clock } = options;
        let now = source.items_ms(&clock);
        Serving {
            server,
            source,
            clock,
            engine: Engine::new(cache, S::FORM, geometry, clients).with_pipeline(pipeline),
            queue,
            counters,
            clients: (0..clients).map(|_| None).collect(),
            watched: Vec::with_capacity(WATCHED_MAX),
            rung: Vec::new(),
            early: Vec::new(),
            replied: Vec::new(),
            steps: 0,
            rounds: 0,
            vain: 0,
            now,
        }
    }

    pub(super) fn run(&mut self, is_stopping: &AtomicBool) {
        let mut waiter = Waiter::new();
        let (mut eager, mut idle_since_ns) = (0, None);
        // Relaxed: as in `HerdServer::stop`.
        while !is_stopping.load(Ordering::Relaxed) {
            // A pause of the processor is longer than a round: a client that has just been answered
            // asks again before one is over.
            let looks = match S::FORM {
                SlotFormat::Ordered if self.watched.len() == 1 => eager.clamp(1, LOOKS_ALONE),
                _ => 1,
            };
            if self.round(looks) {
                waiter.progressed();
                (eager, idle_since_ns) = (LOOKS_EAGER, None);
                continue;
            }
            if eager > 0 {
                eager = eager.saturating_sub(looks);
                continue;
            }
            if waiter.pause() != Pause::Sleep {
                continue;
            }
            if !self.has_lingered(&mut idle_since_ns) {
                std::thread::yield_now();
            } else if self.is_to_sleep() {
                self.queue.bell.bitmap.sleep(SLEEP_MAX);
                self.woke();
                waiter.progressed();
            }
        }
    }

    /// Stops to watch, and to take requests without being rung for; `false` if a request comes just
    /// now.
    pub(super) fn is_to_sleep(&mut self) -> bool {
        if !self.watch_nobody() {
            return false;
        }
        self.source.arm();
        if self.take_requests() {
            return false;
        }
        self.counters().add(HerdCounter::Sleeps, 1);
        true
    }

    pub(super) fn woke(&mut self) {
        self.look_around();
        // Also if a client that must not has cleared the bit of the command queue.
        self.run_commands();
    }

    /// Whether no request has come for so long that the clients may be told that they are not
    /// watched.
    pub(super) fn has_lingered(&self, since_ns: &mut Option<u64>) -> bool {
        if S::LINGER.is_zero() || self.watched.is_empty() {
            return true;
        }
        let now_ns = self.source.monotonic_ns();
        let idle_ns = now_ns - *since_ns.get_or_insert(now_ns);
        u128::from(idle_ns) >= S::LINGER.as_nanos()
    }

    fn counters(&self) -> &ThreadCounters {
        &self.counters.0[self.server as usize]
    }

    /// Looks at all clients that may ask, `looks` times at each watched one, and serves them;
    /// whether any asked.
    #[inline(always)]
    pub(super) fn round(&mut self, looks: u32) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        self.steps += 1;
        let mut asked = self.take_requests();
        asked |= self.look_at_rung();
        asked |= self.look_at_watched(looks);
        let is_served = self.engine.gathered() > 0;
        if is_served {
            self.vain = 0;
            self.serve();
        } else if self.engine.begun() > 0 {
            // The thread does not sleep while a request is in the pipeline.
            asked = true;
            self.vain += 1;
            if self.vain.is_multiple_of(ROUNDS_PER_NO_OP) {
                self.drain();
            }
        }
        // Behind the replies: no client waits for it.
        if self.watched.is_empty() || self.rounds.is_multiple_of(ROUNDS_PER_BITS) {
            asked |= self.take_bits();
        }
        if !is_served || self.rounds.is_multiple_of(ROUNDS_PER_WAKE) {
            self.wake_replied();
        }
        if self.steps >= STEPS_PER_CLOCK {
            self.steps = 0;
            self.look_around();
        }
        asked
    }

    /// Looks at what changes by itself: the time, and whether devices have failed.
    #[inline(never)]
    fn look_around(&mut self) {
        self.now = self.source.items_ms(&self.clock);
        if self.engine.holds_long() {
            self.engine.lapse(self.now);
        }
        if self.source.take_failure() {
            self.counters().add(HerdCounter::QueuePairsFailed, 1);
        }
    }

    /// Takes requests that do not come into their slots by themselves; whether there were any of
    /// clients that are not watched.
    #[inline(always)]
    fn take_requests(&mut self) -> bool {
        let Serving { source, clients, rung, early, .. } = self;
        let before = rung.len();
        source.poll(&mut |request| {
            if !accept(clients, rung, request) {
                early.push((request.client, request.window, request.key, request.image.into()));
            }
        });
        if !self.early.is_empty() {
            self.take_early();
        }
        self.rung.len() > before
    }

    /// Takes requests of clients that were unknown: their attach command was not read yet.
    #[cold]
    fn take_early(&mut self) {
        self.run_commands();
        let Serving { clients, rung, early, .. } = self;
        for (client, window, key, image) in early.drain(..) {
            accept(clients, rung, &IncomingRequest { client, window, key, image: &image });
        }
    }

    /// Looks at the clients that have set their bits; whether there were any.
    #[inline]
    fn look_at_rung(&mut self) -> bool {
        !self.rung.is_empty() && self.look_at_all_rung()
    }

    #[inline(never)]
    fn look_at_all_rung(&mut self) -> bool {
        for index in (0..self.rung.len()).rev() {
            let client = self.rung[index];
            if self.clients[client as usize].is_none() {
                // As above: a client that rings was admitted, as a rule.
                self.run_commands();
            }
            self.begin_to_watch(client);
            // A client that is not watched is looked at until nothing more is there.
            if self.look(client, 1) == 0 || self.is_watched(client) {
                self.rung.swap_remove(index);
            }
        }
        true
    }

    /// Looks at all watched clients; whether anything was found.
    #[inline(always)]
    fn look_at_watched(&mut self, looks: u32) -> bool {
        let mut has_found = false;
        for index in (0..self.watched.len()).rev() {
            let client = self.watched[index];
            let found = self.look(client, looks) > 0;
            has_found |= found;
            let Some(served) = &mut self.clients[client as usize] else { continue };
            served.looks = if found { 0 } else { served.looks + 1 };
            if served.looks > LOOKS_MAX {
                self.end_to_watch(index);
            }
        }
        has_found
    }

    /// Takes all bits, and reads the command queue; whether there were any.
    fn take_bits(&mut self) -> bool {
        self.queue.bell.bitmap.is_any_set() && self.take_all_bits()
    }

    #[inline(never)]
    fn take_all_bits(&mut self) -> bool {
        let mut has_commands = false;
        for word in 0..self.queue.bell.bitmap.words() {
            let mut bits = self.queue.bell.bitmap.take(word);
            while bits != 0 {
                let bit = 64 * word + bits.trailing_zeros();
                bits &= bits - 1;
                match bit.cmp(&self.queue.bell.command_bit) {
                    std::cmp::Ordering::Less => self.rung.push(bit),
                    std::cmp::Ordering::Equal => has_commands = true,
                    // No client has this bit: it was set in error.
                    std::cmp::Ordering::Greater => {}
                }
            }
        }
        if has_commands {
            // Before the bits are looked at: a client's command came before its first bit.
            self.run_commands();
        }
        true
    }

    fn run_commands(&mut self) {
        let commands = std::mem::take(&mut *self.queue.commands());
        for command in commands {
            match command {
                WorkerCommand::Attach { client, transport } => {
                    self.engine.enter(client, transport.slots());
                    let served = ServedClient { transport, is_watched: false, looks: 0 };
                    self.clients[client as usize] = Some(served);
                }
                WorkerCommand::Detach { client, done } => {
                    self.engine.leave(client);
                    self.clients[client as usize] = None;
                    self.watched.retain(|watched| *watched != client);
                    drop(done);
                }
            }
        }
    }

    fn is_watched(&self, client: u32) -> bool {
        self.clients[client as usize].as_ref().is_some_and(|served| served.is_watched)
    }

    /// Gathers what a client asks; how much.
    #[inline(always)]
    fn look(&mut self, client: u32, looks: u32) -> usize {
        if self.engine.gathered() >= BATCH_ENOUGH {
            self.serve_first();
        }
        let Serving { engine, source, counters, .. } = self;
        let counters = &counters.0[self.server as usize];
        engine.gather_in(client, counters, looks, |mutation| source.mutated(mutation))
    }

    fn begin_to_watch(&mut self, client: u32) {
        let has_room = self.watched.len() < WATCHED_MAX;
        if let Some(served) = &mut self.clients[client as usize]
            && !served.is_watched
            && has_room
        {
            served.transport.begin_to_watch();
            (served.is_watched, served.looks) = (true, 0);
            self.watched.push(client);
        }
    }

    /// Stops to watch the client at `index` of those watched, unless it asks just now.
    fn end_to_watch(&mut self, index: usize) -> bool {
        let client = self.watched[index];
        let Some(served) = &mut self.clients[client as usize] else { return true };
        served.looks = 0;
        let has_ended = served.transport.end_to_watch(|| self.engine.is_ready(client));
        if has_ended {
            served.is_watched = false;
            self.watched.swap_remove(index);
        }
        has_ended
    }

    /// Stops to watch all clients; `false` if one asks just now.
    fn watch_nobody(&mut self) -> bool {
        (0..self.watched.len()).rev().all(|index| self.end_to_watch(index))
    }

    /// Does what was gathered, and wakes the clients that sleep unless that may wait.
    #[inline(always)]
    fn serve(&mut self) {
        let Serving { engine, replied, clients, counters, .. } = self;
        let counters = &counters.0[self.server as usize];
        self.steps += engine.gathered();
        engine.run(self.now, counters, &mut |reply| note(clients, replied, reply));
        if !S::WAKES_LATER {
            self.wake_replied();
        }
    }

    /// As [`Serving::serve`], before more is gathered.
    #[inline(never)]
    fn serve_first(&mut self) {
        self.serve();
    }

    /// Moves the pipeline on although no request comes.
    #[cold]
    fn drain(&mut self) {
        let Serving { engine, replied, clients, counters, .. } = self;
        let counters = &counters.0[self.server as usize];
        engine.no_op(self.now, counters, &mut |reply| note(clients, replied, reply));
        if !S::WAKES_LATER {
            self.wake_replied();
        }
    }

    /// Wakes the clients with replies that sleep.
    #[inline]
    fn wake_replied(&mut self) {
        let Serving { replied, clients, .. } = self;
        if let Some(served) = replied.iter().find_map(|client| clients[*client as usize].as_ref()) {
            served.transport.settle();
        }
        for client in replied.drain(..) {
            if let Some(served) = &clients[client as usize] {
                served.transport.wake();
            }
        }
    }
}

/// Puts a request into its slot, if it is the client's; whether it is.
#[inline]
fn accept<S: ClientTransport>(
    clients: &[Option<ServedClient<S>>],
    rung: &mut Vec<u32>,
    request: &IncomingRequest<'_>,
) -> bool {
    let Some(Some(served)) = clients.get(request.client as usize) else { return false };
    let is_own = served.transport.accept(request);
    if is_own && !served.is_watched {
        rung.push(request.client);
    }
    is_own
}

/// Takes note of a reply.
#[inline(always)]
fn note<S: ClientTransport>(
    clients: &mut [Option<ServedClient<S>>],
    replied: &mut Vec<u32>,
    reply: Replied,
) {
    if let Some(served) = &mut clients[reply.client as usize] {
        served.transport.reply(reply, served.is_watched);
    }
    if replied.last() != Some(&reply.client) {
        replied.push(reply.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;
    use rackpool_mem::window::Window;

    /// A device that fails once.
    struct Failing(bool);

    impl RequestSource for Failing {
        fn poll(&mut self, _: &mut dyn FnMut(&IncomingRequest<'_>)) {}

        fn arm(&mut self) {}

        fn take_failure(&mut self) -> bool {
            std::mem::take(&mut self.0)
        }
    }

    enum Empty {}

    impl ClientTransport for Empty {
        type Source = Option<Failing>;
        const FORM: SlotFormat = SlotFormat::Sealed;
        const LINGER: Duration = Duration::ZERO;
        const WAKES_LATER: bool = false;

        fn slots(&self) -> ClientSlots {
            match *self {}
        }

        fn begin_to_watch(&self) {}

        fn end_to_watch(&self, _: impl FnOnce() -> bool) -> bool {
            match *self {}
        }

        fn reply(&mut self, _: Replied, _: bool) {
            match *self {}
        }

        fn settle(&self) {}

        fn wake(&self) {}
    }

    const GEOMETRY: Geometry = Geometry { servers: 1, clients: 1, windows: 1, value_bytes: 1000 };

    /// A thread for so many clients, its command queue and its counters.
    fn serving<S: ClientTransport>(
        clients: u32,
        source: S::Source,
    ) -> (Serving<S>, Arc<CommandQueue<S>>, Arc<HerdCounters>) {
        let cache = Cache::new(Options { memory: 8 << 20, ..Options::default() }).unwrap();
        let bitmap = pair::bitmap(&Window::heap(pair::bell_bytes(1, clients)), 0, clients);
        let queue = Arc::new(CommandQueue::new(Arc::new(Doorbell::new(bitmap, clients))));
        let counters = Arc::new(HerdCounters::new(1));
        let options = ServingOptions {
            cache,
            geometry: GEOMETRY,
            clients,
            counters: Arc::clone(&counters),
            pipeline: Pipeline::default(),
            clock: Clock::system(),
        };
        (Serving::new(0, options, Arc::clone(&queue), source), queue, counters)
    }

    #[test]
    fn a_device_that_fails_is_counted_once_at_its_thread() {
        let (mut serving, _, counters) = serving::<Empty>(1, Some(Failing(true)));
        for _ in 0..3 * STEPS_PER_CLOCK {
            assert!(!serving.round(1));
        }
        assert_eq!(counters.get(HerdCounter::QueuePairsFailed), 1);
    }

    /// A request that is there before the thread has read of its client.
    struct Ahead(Option<u64>);

    impl RequestSource for Ahead {
        fn poll(&mut self, take: &mut dyn FnMut(&IncomingRequest<'_>)) {
            if let Some(key) = self.0.take() {
                take(&IncomingRequest { client: 1, window: 0, key, image: b"image" });
            }
        }

        fn arm(&mut self) {}
    }

    /// A client with this key, and what it accepted.
    struct KeyedClient(u64, Arc<Mutex<Vec<Vec<u8>>>>);

    impl ClientTransport for KeyedClient {
        type Source = Ahead;
        const FORM: SlotFormat = SlotFormat::Sealed;
        const LINGER: Duration = Duration::ZERO;
        const WAKES_LATER: bool = false;

        fn accept(&self, request: &IncomingRequest<'_>) -> bool {
            let is_own = request.key == self.0;
            if is_own {
                self.1.lock().unwrap().push(request.image.to_vec());
            }
            is_own
        }

        fn slots(&self) -> ClientSlots {
            let window = || Window::heap(GEOMETRY.bytes());
            ClientSlots::new(window(), window())
        }

        fn begin_to_watch(&self) {}

        fn end_to_watch(&self, _: impl FnOnce() -> bool) -> bool {
            true
        }

        fn reply(&mut self, _: Replied, _: bool) {}

        fn settle(&self) {}

        fn wake(&self) {}
    }

    #[test]
    fn a_request_that_comes_before_its_client_is_known_is_taken_and_a_strangers_is_not() {
        for (key, taken) in [(7, 1), (8, 0)] {
            let (mut serving, queue, _) = serving(2, Ahead(Some(key)));
            let accepted = Arc::default();
            let transport = KeyedClient(7, Arc::clone(&accepted));
            queue.send(WorkerCommand::Attach { client: 1, transport });
            serving.take_requests();
            assert_eq!(accepted.lock().unwrap().len(), taken, "key {key}");
            assert!(serving.early.is_empty());
        }
    }
}
