//! HERD's engine without threads: batches, order, requests that come again, slots of both forms,
//! clients that leave.

use crate::peers::Rng;
use rackpool_cache::herd::geometry::HEAD_BYTES;
use rackpool_cache::herd::message::{Head, Message, MessageKind, reply_number, request_number};
use rackpool_cache::herd::{
    ClientSlots, Engine, Geometry, HerdCounter, HerdCounters, Pipeline, Replied, SlotFormat,
    ThreadCounters,
};
use rackpool_cache::{Cache, Mode, Options};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::collections::HashMap;

const GEOMETRY: Geometry = Geometry { servers: 1, clients: 1, windows: 8, value_bytes: 1000 };
const NOW: u64 = 1_000;

fn cache() -> Cache {
    Cache::new(Options { memory: 16 << 20, ..Options::default() }).unwrap()
}

/// An engine for so many clients, and what it counts.
fn engine(form: SlotFormat, clients: u32) -> (Engine, ThreadCounters) {
    engine_before(cache(), form, clients)
}

fn engine_before(cache: Cache, form: SlotFormat, clients: u32) -> (Engine, ThreadCounters) {
    (Engine::new(cache, form, GEOMETRY, clients), ThreadCounters::default())
}

/// A client's slots, and what it has asked.
struct Asker {
    form: SlotFormat,
    requests: Window,
    replies: Window,
    asked: u64,
    taken: u64,
}

/// What was asked: number, kind, key and value.
type Sent = (u64, MessageKind, Vec<u8>, Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reply {
    number: u64,
    kind: MessageKind,
    value: Vec<u8>,
    flags: u32,
    extra: u64,
}

impl Asker {
    fn new(form: SlotFormat, engine: &mut Engine, client: u32) -> Asker {
        let requests = Window::heap(GEOMETRY.bytes());
        // Where both sides load and store the memory, a slot holds the request, then the reply.
        let replies = match form {
            SlotFormat::Ordered => requests.clone(),
            SlotFormat::Sealed => Window::heap(GEOMETRY.bytes()),
        };
        engine.enter(client, ClientSlots::new(requests.clone(), replies.clone()));
        Asker { form, requests, replies, asked: 0, taken: 0 }
    }

    fn ask(&mut self, kind: MessageKind, key: &[u8], value: &[u8]) {
        self.asked += 1;
        self.publish(self.asked, kind, key, value);
    }

    fn publish(&self, number: u64, kind: MessageKind, key: &[u8], value: &[u8]) {
        let head = Head::new(request_number(number), kind).with_flags(7);
        let head = head.with_lengths(key.len() as u8, value.len() as u16);
        let message = [&head.bytes()[..], key, value].concat();
        let at = GEOMETRY.offset(0, 0, number - 1);
        self.form.publish(&self.requests, at, &GEOMETRY, &message);
    }

    /// The next reply, if it is there.
    fn take(&mut self) -> Option<Reply> {
        let mut bytes = vec![0; GEOMETRY.message_bytes()];
        let at = GEOMETRY.offset(0, 0, self.taken);
        let asked = request_number(self.taken + 1);
        let read = SlotFormat::Ordered.read(&self.replies, at, &GEOMETRY, asked, &mut bytes)?;
        let rackpool_cache::herd::slot::Read::Message(head) = read else { panic!("{read:?}") };
        let reply = Message::of(head, &bytes[HEAD_BYTES..], &GEOMETRY).expect("a reply");
        self.taken += 1;
        assert_eq!(head.number, reply_number(asked));
        let (number, kind, flags, extra) = (self.taken, reply.kind, head.flags(), head.extra);
        Some(Reply { number, kind, value: reply.value.to_vec(), flags, extra })
    }

    fn kinds(&mut self) -> Vec<MessageKind> {
        std::iter::from_fn(|| self.take()).map(|reply| reply.kind).collect()
    }
}

fn run(engine: &mut Engine, clients: u32, tally: &ThreadCounters) -> Vec<Replied> {
    let mut replied = Vec::new();
    for client in 0..clients {
        while engine.gather(client, tally) > 0 || engine.is_full() {
            engine.run(NOW, tally, &mut |reply| replied.push(reply));
        }
    }
    while engine.begun() > 0 {
        engine.no_op(NOW, tally, &mut |reply| replied.push(reply));
    }
    replied
}

#[test]
fn requests_of_a_client_are_done_in_their_order() {
    for form in [SlotFormat::Ordered, SlotFormat::Sealed] {
        let (mut engine, tally) = engine(form, 1);
        let mut asker = Asker::new(form, &mut engine, 0);
        for _ in 0..5 {
            asker.ask(MessageKind::Get, b"k", b"");
            asker.ask(MessageKind::Put, b"k", b"one");
            asker.ask(MessageKind::Get, b"k", b"");
            asker.ask(MessageKind::Put, b"k", b"two");
            asker.ask(MessageKind::Get, b"k", b"");
            asker.ask(MessageKind::Delete, b"k", b"");
            asker.ask(MessageKind::Delete, b"k", b"");
            assert!(engine.is_ready(0));
            assert_eq!(run(&mut engine, 1, &tally).len(), 7);
            assert!(!engine.is_ready(0));
            let replies: Vec<Reply> = std::iter::from_fn(|| asker.take()).collect();
            let kinds: Vec<MessageKind> = replies.iter().map(|reply| reply.kind).collect();
            use MessageKind::{Deleted, Found, Missing, Stored};
            assert_eq!(kinds, [Missing, Stored, Found, Stored, Found, Deleted, Missing]);
            assert_eq!((&replies[2].value[..], replies[2].flags), (&b"one"[..], 7));
            assert_eq!(replies[4].value, b"two");
        }
        use HerdCounter::{Deletes, Gets, Hits, Malformed, Puts, Repeated};
        let counts = [Gets, Hits, Puts, Deletes, Malformed, Repeated].map(|what| tally.get(what));
        assert_eq!(counts, [15, 10, 10, 10, 0, 0]);
    }
}

/// Where a client has a slot for them; else in the window's, as the replies to others.
#[test]
fn a_reply_comes_apart_where_the_request_says_so() {
    for (form, has_slot) in
        [(SlotFormat::Ordered, true), (SlotFormat::Sealed, true), (SlotFormat::Ordered, false)]
    {
        let (mut engine, tally) = engine(form, 1);
        let requests = Window::heap(GEOMETRY.bytes());
        let replies = Window::heap(GEOMETRY.bytes());
        let apart = Window::heap(GEOMETRY.apart_bytes());
        let slots = ClientSlots::new(requests.clone(), replies.clone());
        engine.enter(0, ClientSlots { apart: has_slot.then(|| apart.clone()), ..slots });
        let mut number = 0;
        let mut ask = |kind, key: &[u8], value: &[u8], is_apart| {
            number += 1;
            let head = Head::new(request_number(number), kind).apart(is_apart);
            let head = head.with_lengths(key.len() as u8, value.len() as u16);
            let (at, message) =
                (GEOMETRY.offset(0, 0, number - 1), [&head.bytes()[..], key, value]);
            form.publish(&requests, at, &GEOMETRY, &message.concat());
            assert_eq!(run(&mut engine, 1, &tally).len(), 1);
            let (from, head_at, value_at, other) = match is_apart && has_slot {
                true => (&apart, 0, 64, replies.load(at)),
                false => (&replies, at, at + 24, apart.load(0)),
            };
            let words = [0, 8, 16].map(|word| from.load(head_at + word));
            let head = Head::of_words(words);
            assert!(other < head.number && !head.is_apart());
            assert_eq!(head.number, reply_number(request_number(number)));
            let mut value = vec![0; head.value_bytes()];
            from.copy_out(value_at, &mut value);
            (head.kind().unwrap(), value)
        };
        for bytes in (0..200).chain([1000]) {
            let value = vec![bytes as u8 | 1; bytes];
            assert_eq!(ask(MessageKind::Put, b"k", &value, bytes % 3 > 0).0, MessageKind::Stored);
            for is_apart in [true, false, true] {
                assert_eq!(
                    ask(MessageKind::Get, b"k", b"", is_apart),
                    (MessageKind::Found, value.clone())
                );
            }
        }
        assert_eq!(ask(MessageKind::Get, b"other", b"", true).0, MessageKind::Missing);
        assert_eq!(ask(MessageKind::Get, b"k", b"no value here", true).0, MessageKind::Malformed);
        assert_eq!(ask(MessageKind::Delete, b"k", b"", true).0, MessageKind::Deleted);
    }
}

#[test]
fn one_batch_serves_many_clients() {
    let (mut engine, tally) = engine(SlotFormat::Ordered, 8);
    let mut askers: Vec<_> =
        (0..8).map(|client| Asker::new(SlotFormat::Ordered, &mut engine, client)).collect();
    for (number, asker) in askers.iter_mut().enumerate() {
        for window in 0..8 {
            asker.ask(MessageKind::Put, &[number as u8 + 1, window], &[window; 50]);
        }
    }
    assert_eq!((0..8).map(|client| engine.gather(client, &tally)).sum::<usize>(), 64);
    assert!(engine.is_full());
    engine.run(NOW, &tally, &mut |_| ());
    assert_eq!(tally.get(HerdCounter::Batches), 1, "64 requests, one batch");
    for asker in &mut askers {
        assert_eq!(asker.kinds(), [MessageKind::Stored; 8]);
        for window in 0..8 {
            asker.ask(MessageKind::Get, &[1, window], b"");
        }
    }
    run(&mut engine, 8, &tally);
    for asker in &mut askers {
        for window in 0..8 {
            assert_eq!(asker.take().unwrap().value, [window; 50]);
        }
    }
}

/// In sealed slots a request is written again if its answer did not come in time.
#[test]
fn a_request_that_comes_again_is_applied_once_and_answered_again() {
    let cache = cache();
    let (mut engine, tally) = engine_before(cache.clone(), SlotFormat::Sealed, 1);
    let mut asker = Asker::new(SlotFormat::Sealed, &mut engine, 0);
    asker.ask(MessageKind::Delete, b"k", b"");
    cache.set(b"k", b"first", 0, 0, NOW).unwrap();
    let first = run(&mut engine, 1, &tally);
    assert_eq!(asker.take().unwrap().kind, MessageKind::Deleted);
    // Another client stores the key anew; the request that comes again must not remove it.
    cache.set(b"k", b"second", 0, 0, NOW).unwrap();
    for again in 1..=3 {
        asker.publish(1, MessageKind::Delete, b"k", b"");
        let replied = run(&mut engine, 1, &tally);
        assert_eq!(replied, first, "the same reply is sent again");
        assert_eq!(tally.get(HerdCounter::Repeated), again);
        assert!(cache.get(b"k", NOW, |_| ()).is_some(), "applied once");
    }
    // One that is older than the last of its window is ignored.
    for _ in 0..8 {
        asker.ask(MessageKind::Get, b"k", b"");
    }
    assert_eq!(run(&mut engine, 1, &tally).len(), 8);
    asker.publish(1, MessageKind::Delete, b"k", b"");
    assert_eq!(run(&mut engine, 1, &tally), []);
    assert!(cache.get(b"k", NOW, |_| ()).is_some());
    assert_eq!(tally.get(HerdCounter::Deletes), 1);
}

/// What the random operations go through.
const FORMS: [(u64, SlotFormat, Pipeline); 4] = [
    (11, SlotFormat::Ordered, Pipeline::Batched),
    (12, SlotFormat::Sealed, Pipeline::Batched),
    (13, SlotFormat::Sealed, Pipeline::TwoStage),
    (14, SlotFormat::Ordered, Pipeline::TwoStage),
];

/// The same operations, some of them sent again at any time, on the engine and on a map.
#[test]
fn random_operations_with_repetitions_agree_with_a_map() {
    for (seed, form, pipeline) in FORMS {
        println!("seed {seed}, {form:?}, {pipeline:?}");
        let mut rng = Rng(seed);
        let (engine, tally) = engine(form, 2);
        let mut engine = engine.with_pipeline(pipeline);
        let mut askers = [0, 1].map(|client| Asker::new(form, &mut engine, client));
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut sent: [Vec<Sent>; 2] = Default::default();
        let mut repeated = 0;
        for _ in 0..4000 {
            let mut expected: [Vec<(MessageKind, Vec<u8>)>; 2] = Default::default();
            // Keys of the two differ: their order among each other is not promised.
            for (one, asker) in askers.iter_mut().enumerate() {
                for _ in 0..rng.below(9) {
                    let key = vec![b'a' + one as u8, b'0' + rng.below(10) as u8];
                    let value = vec![rng.below(256) as u8; rng.below(1001)];
                    let (kind, value) = match rng.below(4) {
                        0 => (MessageKind::Put, value),
                        1 => (MessageKind::Delete, Vec::new()),
                        _ => (MessageKind::Get, Vec::new()),
                    };
                    asker.ask(kind, &key, &value);
                    sent[one].push((asker.asked, kind, key.clone(), value.clone()));
                    expected[one].push(match kind {
                        MessageKind::Put => {
                            model.insert(key, value);
                            (MessageKind::Stored, Vec::new())
                        }
                        MessageKind::Delete => match model.remove(&key) {
                            Some(_) => (MessageKind::Deleted, Vec::new()),
                            None => (MessageKind::Missing, Vec::new()),
                        },
                        _ => match model.get(&key) {
                            Some(value) => (MessageKind::Found, value.clone()),
                            None => (MessageKind::Missing, Vec::new()),
                        },
                    });
                }
            }
            run(&mut engine, 2, &tally);
            for (asker, expected) in askers.iter_mut().zip(&expected) {
                for (kind, value) in expected {
                    let reply = asker.take().expect("each request is answered");
                    assert_eq!((&reply.kind, &reply.value), (kind, value));
                }
                assert_eq!(asker.take(), None);
            }
            // Requests of the last round, or older ones, again: sealed slots take them, and do
            // nothing.
            let one = rng.below(2);
            if form == SlotFormat::Sealed && !sent[one].is_empty() && rng.chance(3) {
                let back = rng.below(sent[one].len().min(20));
                let (number, kind, key, value) = &sent[one][sent[one].len() - 1 - back];
                askers[one].publish(*number, *kind, key, value);
                repeated += 1;
                run(&mut engine, 2, &tally);
                // A reply that is there again is taken away, as a client that waits for a later
                // one leaves it.
                let at = GEOMETRY.offset(0, 0, *number - 1);
                askers[one].replies.zero(at, GEOMETRY.slot_bytes());
            }
        }
        assert_eq!(tally.get(HerdCounter::Repeated), repeated);
        assert_eq!(tally.get(HerdCounter::Malformed), 0);
    }
}

#[test]
fn a_two_stage_pipeline_holds_two_back_until_others_or_a_no_op_come() {
    let (engine, tally) = engine(SlotFormat::Ordered, 1);
    let mut engine = engine.with_pipeline(Pipeline::TwoStage);
    let mut asker = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    let mut replied = Vec::new();
    asker.ask(MessageKind::Put, b"a", b"one");
    asker.ask(MessageKind::Get, b"a", b"");
    assert_eq!(engine.gather(0, &tally), 2);
    engine.run(NOW, &tally, &mut |reply| replied.push(reply.window));
    assert_eq!((engine.begun(), engine.gathered(), replied.len()), (2, 0, 0));
    asker.ask(MessageKind::Get, b"b", b"");
    assert_eq!(engine.gather(0, &tally), 1);
    engine.run(NOW, &tally, &mut |reply| replied.push(reply.window));
    assert_eq!((engine.begun(), &replied[..]), (2, &[0][..]));
    assert_eq!(asker.take().unwrap().kind, MessageKind::Stored);
    for expected in [MessageKind::Found, MessageKind::Missing] {
        engine.no_op(NOW, &tally, &mut |reply| replied.push(reply.window));
        assert_eq!(asker.take().unwrap().kind, expected);
    }
    engine.no_op(NOW, &tally, &mut |reply| replied.push(reply.window));
    assert_eq!((engine.begun(), &replied[..]), (0, &[0, 1, 2][..]));
    // The requests of a client that leaves are dropped.
    asker.ask(MessageKind::Put, b"c", b"never");
    engine.gather(0, &tally);
    engine.run(NOW, &tally, &mut |_| {});
    engine.leave(0);
    engine.no_op(NOW, &tally, &mut |reply| panic!("{reply:?} is of no client"));
    assert_eq!((engine.begun(), tally.get(HerdCounter::Puts)), (0, 1));
}

#[test]
fn what_does_not_fit_is_refused_by_its_length() {
    let cache = cache();
    cache.set(b"long", &vec![1; 5000], 0, 0, NOW).unwrap();
    let (mut engine, tally) = engine_before(cache, SlotFormat::Ordered, 1);
    let mut asker = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    asker.ask(MessageKind::Get, b"long", b"");
    run(&mut engine, 1, &tally);
    let reply = asker.take().unwrap();
    assert_eq!((reply.kind, reply.extra), (MessageKind::TooLarge, 5000));

    let options =
        Options { memory: 16 << 20, max_value: 100, mode: Mode::Store, ..Options::default() };
    let mut engine = Engine::new(Cache::new(options).unwrap(), SlotFormat::Ordered, GEOMETRY, 1);
    let mut asker = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    asker.ask(MessageKind::Put, b"k", &[1; 101]);
    run(&mut engine, 1, &tally);
    let reply = asker.take().unwrap();
    assert_eq!((reply.kind, reply.extra, reply.flags), (MessageKind::TooLong, 100, 101));
    // A store that loses nothing says when it is full.
    let mut number = 0u32;
    let full = loop {
        number += 1;
        asker.ask(MessageKind::Put, &number.to_le_bytes(), &[1; 100]);
        run(&mut engine, 1, &tally);
        match asker.take().unwrap().kind {
            MessageKind::Stored => {}
            kind => break kind,
        }
    };
    assert_eq!(full, MessageKind::NoMemory);
    assert_eq!(tally.get(HerdCounter::Refused), 2);
}

#[test]
fn a_request_that_is_none_is_refused_and_the_next_one_served() {
    let (mut engine, tally) = engine(SlotFormat::Ordered, 1);
    let mut asker = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    asker.ask(MessageKind::Stored, b"", b"");
    asker.ask(MessageKind::Get, b"", b"");
    asker.ask(MessageKind::Get, b"k", b"");
    run(&mut engine, 1, &tally);
    assert_eq!(
        asker.kinds(),
        [MessageKind::Malformed, MessageKind::Malformed, MessageKind::Missing]
    );
    assert_eq!(tally.get(HerdCounter::Malformed), 2);
}

#[test]
fn a_client_that_leaves_takes_its_requests_with_it() {
    let cache = cache();
    let (mut engine, tally) = engine_before(cache.clone(), SlotFormat::Ordered, 2);
    let mut first = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    let mut other = Asker::new(SlotFormat::Ordered, &mut engine, 1);
    first.ask(MessageKind::Put, b"k", b"v");
    other.ask(MessageKind::Put, b"o", b"v");
    assert_eq!((engine.gather(0, &tally), engine.gather(1, &tally)), (1, 1));
    engine.leave(0);
    // Another one takes its number before the batch is done.
    let mut next = Asker::new(SlotFormat::Ordered, &mut engine, 0);
    let mut replied = Vec::new();
    engine.run(NOW, &tally, &mut |reply| replied.push(reply.client));
    assert_eq!(replied, [1]);
    assert_eq!((first.take(), next.take()), (None, None));
    assert!(cache.get(b"k", NOW, |_| ()).is_none() && cache.get(b"o", NOW, |_| ()).is_some());
    next.ask(MessageKind::Get, b"o", b"");
    run(&mut engine, 2, &tally);
    assert_eq!(next.take().unwrap().kind, MessageKind::Found);
}

#[test]
fn a_tally_has_a_name_for_each_of_its_counters() {
    for (place, (what, name)) in HerdCounter::ALL.iter().enumerate() {
        assert_eq!(*what as usize, place, "{name}");
    }
    // The type is what a server hands out.
    let _: fn(&HerdCounters, HerdCounter) -> u64 = HerdCounters::get;
}

/// A WRITE of which some words have not come, or of which one bit is another: nothing is done, at
/// whatever place of the message, whatever lay in the slot before. What comes whole then is done.
#[test]
fn a_torn_or_changed_sealed_request_is_never_executed() {
    let cache = cache();
    let (mut engine, tally) = engine_before(cache.clone(), SlotFormat::Sealed, 1);
    let mut rng = Rng(0x7063);
    let image = Window::heap(GEOMETRY.bytes());
    let mut asker = Asker::new(SlotFormat::Sealed, &mut engine, 0);
    let mut torn = 0;
    for number in 1..=3000u64 {
        let value = vec![number as u8; rng.below(1001)];
        let head = Head::new(request_number(number), MessageKind::Put);
        let head = head.with_lengths(6, value.len() as u16);
        let message = [&head.bytes()[..], b"colour", &value].concat();
        let at = GEOMETRY.offset(0, 0, number - 1);
        let (start, bytes) = SlotFormat::Sealed.publish(&image, at, &GEOMETRY, &message);
        let words = bytes / 8;
        for _ in 0..4 {
            let come = rng.next();
            let mut is_whole = true;
            for word in 0..words {
                let place = start + 8 * word;
                if come >> (word % 61) & 1 == 1 {
                    asker.requests.store(place, image.load(place));
                }
                is_whole &= asker.requests.load(place) == image.load(place);
            }
            if is_whole {
                continue;
            }
            torn += 1;
            assert!(run(&mut engine, 1, &tally).is_empty(), "request {number}");
        }
        // All of it, but for a bit of the message or of its seal.
        let bit = rng.below((message.len() + 8) * 8);
        let byte = match bit / 8 {
            byte if byte < message.len() => start + byte as u64,
            byte => start + bytes - 8 + (byte - message.len()) as u64,
        };
        let mut whole = vec![0; bytes as usize];
        image.copy_out(start, &mut whole);
        whole[(byte - start) as usize] ^= 1 << (bit % 8);
        asker.requests.copy_in(start, &whole);
        assert!(run(&mut engine, 1, &tally).is_empty(), "request {number}, bit {bit}");
        assert_eq!(tally.get(HerdCounter::Puts), number - 1);
        whole[(byte - start) as usize] ^= 1 << (bit % 8);
        asker.requests.copy_in(start, &whole);
        assert_eq!(run(&mut engine, 1, &tally).len(), 1);
        assert_eq!(asker.take().map(|reply| reply.kind), Some(MessageKind::Stored));
        let found = cache.get(b"colour", NOW, |item| {
            let mut found = vec![0; item.len() as usize];
            item.copy_to(0, &mut found).unwrap();
            found
        });
        assert_eq!(found, Some(value));
    }
    assert!(torn > 5000, "{torn} were torn");
}
