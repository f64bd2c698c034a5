//! Persistent memory for tests and the simulator, which remembers every call. In: the calls of
//! protocol code, and by [`StoreRecorder::issue`] and [`StoreRecorder::acknowledge`] what it
//! promised its users and when. Out: a [`Trace`], from which `images.rs` makes what a loss of power
//! may leave.
//!
//! Loads see every store at once, as those of a processor do. One thread; a trace grows with each
//! call and has no other bound, so this is for runs that end.

use super::{LINE_BYTES, Persist, PersistError, PersistenceDomain};
use crate::seam::{Mem, Probe, Section};
use std::cell::RefCell;
use std::rc::Rc;

/// A call, or what the program under test says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Store {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// A store of whole lines around the caches: the next fence makes it durable.
    Stream {
        offset: u64,
        bytes: Vec<u8>,
    },
    WriteBack {
        offset: u64,
        bytes: u64,
    },
    Fence,
    /// From now on recovery may find this.
    Issued(u64),
    /// From now on recovery has to find this.
    Acknowledged(u64),
    /// From now on recovery need not find this any more.
    Withdrawn(u64),
}

/// Everything that happened to a memory.
#[derive(Clone, Debug)]
pub struct Trace {
    pub domain: PersistenceDomain,
    /// What the medium held at first.
    pub initial: Vec<u8>,
    pub events: Vec<Event>,
}

impl Trace {
    pub fn fences(&self) -> Vec<usize> {
        (0..self.events.len()).filter(|index| self.events[*index] == Event::Fence).collect()
    }

    /// As if the program had left this safeguard out. Of a store around the caches a plain store
    /// stays.
    pub fn without(&self, index: usize) -> Trace {
        let mut trace = self.clone();
        match trace.events[index].clone() {
            Event::Stream { offset, bytes } => trace.events[index] = Event::Store { offset, bytes },
            Event::WriteBack { .. } | Event::Fence => {
                trace.events.remove(index);
            }
            other => panic!("{other:?} is no safeguard"),
        }
        trace
    }

    /// As if the program had done this and the event before in the other order.
    pub fn earlier(&self, index: usize) -> Trace {
        let mut trace = self.clone();
        trace.events.swap(index - 1, index);
        trace
    }
}

struct Recorded {
    visible: Vec<u8>,
    trace: Trace,
}

/// The memory. Clones and slices share it.
#[derive(Clone)]
pub struct StoreRecorder {
    shared: Rc<RefCell<Recorded>>,
    start: u64,
    bytes: u64,
}

impl StoreRecorder {
    /// A memory of whole lines whose medium holds `initial`.
    ///
    /// # Panics
    /// If these are no whole lines.
    pub fn new(initial: Vec<u8>, domain: PersistenceDomain) -> Self {
        let bytes = initial.len() as u64;
        assert!(bytes.is_multiple_of(LINE_BYTES), "{bytes} bytes are no whole lines");
        let trace = Trace { domain, initial: initial.clone(), events: Vec::new() };
        let shared = Rc::new(RefCell::new(Recorded { visible: initial, trace }));
        Self { shared, start: 0, bytes }
    }

    /// Says that recovery may find something from now on.
    pub fn issue(&self, token: u64) {
        self.note(Event::Issued(token));
    }

    /// Says that recovery has to find something from now on.
    pub fn acknowledge(&self, token: u64) {
        self.note(Event::Acknowledged(token));
    }

    /// Says that recovery need not find something any more.
    pub fn withdraw(&self, token: u64) {
        self.note(Event::Withdrawn(token));
    }

    /// What happened so far to all of the memory.
    pub fn trace(&self) -> Trace {
        self.shared.borrow().trace.clone()
    }

    /// What loads see of all of the memory.
    pub fn visible(&self) -> Vec<u8> {
        self.shared.borrow().visible.clone()
    }

    fn note(&self, event: Event) {
        self.shared.borrow_mut().trace.events.push(event);
    }

    /// Where a piece of this part lies in the whole memory.
    fn place(&self, offset: u64, bytes: u64) -> u64 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at {offset} are outside of {} bytes", self.bytes);
        self.start + offset
    }

    fn word_place(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8), "what is at offset {offset} is not aligned");
        self.place(offset, 8)
    }

    fn change(&self, place: u64, bytes: &[u8], event: fn(u64, Vec<u8>) -> Event) {
        if bytes.is_empty() {
            return;
        }
        let mut shared = self.shared.borrow_mut();
        let at = place as usize;
        shared.visible[at..at + bytes.len()].copy_from_slice(bytes);
        shared.trace.events.push(event(place, bytes.to_vec()));
    }

    fn update(&self, offset: u64, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let place = self.word_place(offset);
        let old = self.load(offset);
        if let Some(new) = new(old) {
            self.change(place, &new.to_le_bytes(), store);
        }
        old
    }
}

fn store(offset: u64, bytes: Vec<u8>) -> Event {
    Event::Store { offset, bytes }
}

fn stream(offset: u64, bytes: Vec<u8>) -> Event {
    Event::Stream { offset, bytes }
}

impl Probe for StoreRecorder {}

impl Section for StoreRecorder {
    fn slice(&self, offset: u64, bytes: u64) -> Self {
        assert!(offset.is_multiple_of(8), "a slice starts at {offset}, not a multiple of 8 bytes");
        let start = self.place(offset, bytes);
        Self { shared: Rc::clone(&self.shared), start, bytes }
    }
}

impl Mem for StoreRecorder {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn load(&self, offset: u64) -> u64 {
        let place = self.word_place(offset) as usize;
        let mut word = [0; 8];
        word.copy_from_slice(&self.shared.borrow().visible[place..place + 8]);
        u64::from_le_bytes(word)
    }

    fn store(&self, offset: u64, value: u64) {
        self.change(self.word_place(offset), &value.to_le_bytes(), store);
    }

    fn announce(&self, offset: u64, value: u64) {
        self.store(offset, value);
    }

    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        let old = self.update(offset, |old| (old == expected).then_some(new));
        if old == expected { Ok(old) } else { Err(old) }
    }

    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.update(offset, |old| Some(old.wrapping_add(n)))
    }

    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let place = self.place(offset, to.len() as u64) as usize;
        to.copy_from_slice(&self.shared.borrow().visible[place..place + to.len()]);
    }

    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.change(self.place(offset, from.len() as u64), from, store);
    }

    fn zero(&self, offset: u64, bytes: u64) {
        let zeros = vec![0; usize::try_from(bytes).expect("inside a memory")];
        self.change(self.place(offset, bytes), &zeros, store);
    }

    fn prefetch(&self, _offset: u64) {}

    fn fence(&self) {}

    fn flush(&self, _offset: u64, _bytes: u64) {}
}

impl Persist for StoreRecorder {
    fn domain(&self) -> PersistenceDomain {
        self.shared.borrow().trace.domain
    }

    fn copy_in_streaming(&self, offset: u64, from: &[u8]) {
        let bytes = from.len() as u64;
        let place = self.place(offset, bytes);
        // Lines of which only a part is copied go through the caches, as in the real world.
        let first = place.next_multiple_of(LINE_BYTES);
        let behind = (place + bytes) / LINE_BYTES * LINE_BYTES;
        if self.domain() == PersistenceDomain::Msync || first >= behind {
            self.copy_in(offset, from);
            return self.write_back(offset, bytes);
        }
        let (head, body) = from.split_at((first - place) as usize);
        let (body, tail) = body.split_at((behind - first) as usize);
        self.change(first, body, stream);
        for (place, part) in [(place, head), (behind, tail)] {
            self.change(place, part, store);
            self.write_back(place - self.start, part.len() as u64);
        }
    }

    fn write_back(&self, offset: u64, bytes: u64) {
        let offset = self.place(offset, bytes);
        if bytes > 0 {
            self.note(Event::WriteBack { offset, bytes });
        }
    }

    fn persist_fence(&self) -> Result<(), PersistError> {
        if self.domain() == PersistenceDomain::None {
            return Err(PersistError::Volatile);
        }
        self.note(Event::Fence);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_memory_whose_every_call_is_told() {
        let memory = StoreRecorder::new(vec![0; 4096], PersistenceDomain::Adr);
        let part = memory.slice(64, 1024);
        part.store(8, 7);
        assert_eq!(
            (part.compare_exchange(8, 7, 9), part.compare_exchange(8, 7, 1)),
            (Ok(7), Err(9))
        );
        assert_eq!((part.fetch_add(8, 1), memory.load(72)), (9, 10));
        part.copy_in_streaming(60, &[5; 72]);
        memory.zero(124, 2);
        let mut bytes = [1; 8];
        part.copy_out(58, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 5, 5, 5, 5]);
        assert_eq!(memory.persist_fence(), Ok(()));
        let events = memory.trace().events;
        let word = |value: u64| store(72, value.to_le_bytes().to_vec());
        assert_eq!(events[..3], [word(7), word(9), word(10)]);
        assert_eq!(events[3], stream(128, vec![5; 64]));
        assert_eq!(
            events[4..6],
            [store(124, vec![5; 4]), Event::WriteBack { offset: 124, bytes: 4 }]
        );
        assert_eq!(
            events[6..8],
            [store(192, vec![5; 4]), Event::WriteBack { offset: 192, bytes: 4 }]
        );
        assert_eq!(events[8..], [store(124, vec![0; 2]), Event::Fence]);
    }

    #[test]
    fn memory_that_forgets_refuses_to_make_anything_durable() {
        let memory = StoreRecorder::new(vec![0; 64], PersistenceDomain::None);
        memory.store(0, 1);
        assert_eq!(memory.persist(0, 8), Err(PersistError::Volatile));
        assert!(memory.trace().fences().is_empty());
    }
}
