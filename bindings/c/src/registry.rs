//! What a program holds, in slots that it names by number and generation. A slot is claimed for
//! each call, so two threads never have the same object; what was closed has another generation,
//! and what was opened before a fork another era.
//!
//! A claim is one compare-and-swap, its end one store: what a call costs beside its own work.

use rackpool_bindings::{Failure, Outcome, Status, fork};
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Clusters, pools, handles and pins of a process.
const SLOTS_MAX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;

// A slot's state: its generation above, and these.
const BUSY: u64 = 1;
const FULL: u64 = 2;
/// A call that had it panicked: no other one gets it.
const POISONED: u64 = 4;
const FLAGS: u64 = BUSY | FULL | POISONED;
const GENERATION_SHIFT: u32 = 3;

struct Slot {
    state: AtomicU64,
    /// Of the process that filled it.
    era: AtomicU32,
    object: UnsafeCell<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `object` is used only by the thread that has set `BUSY`, until it clears it; what is in
// it is `Send`.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; SLOTS_MAX] = [const {
    Slot { state: AtomicU64::new(0), era: AtomicU32::new(0), object: UnsafeCell::new(None) }
}; SLOTS_MAX];

/// Names an object in C, as a pointer that is never followed. Null is none.
#[repr(transparent)]
pub struct Name<T>(usize, PhantomData<fn() -> T>);

impl<T> Clone for Name<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Name<T> {}

// Generations have the bits that an index leaves.
const _: () = assert!(usize::BITS == 64);

/// An object that this thread has.
pub struct Claimed<T> {
    slot: &'static Slot,
    /// The slot's state once it is over.
    idle: u64,
    what: PhantomData<T>,
}

enum Refused {
    /// By another call, for now.
    Busy,
    Not(Failure),
}

/// Puts an object into a free slot.
pub fn insert<T: Any + Send>(object: T) -> Outcome<Name<T>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only where the search begins.
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    for step in 0..SLOTS_MAX {
        let index = (first + step) % SLOTS_MAX;
        let slot = &SLOTS[index];
        // Relaxed: the swap decides.
        let free = slot.state.load(Ordering::Relaxed);
        let generation = (free >> GENERATION_SHIFT) + 1;
        let idle = generation << GENERATION_SHIFT | FULL;
        // Acquire: pairs with the Release in `Claimed::take`. Relaxed: a failure reads nothing.
        if free & FLAGS != 0
            || slot
                .state
                .compare_exchange(free, idle | BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            continue;
        }
        // Relaxed: the end of the claim publishes it.
        slot.era.store(fork::era(), Ordering::Relaxed);
        let mut claimed = Claimed::<T> { slot, idle, what: PhantomData };
        *claimed.cell() = Some(Box::new(object));
        let name = (generation as usize) << INDEX_BITS | index;
        return Ok(Name(name, PhantomData));
    }
    Err(Failure::Own(Status::Busy, "16384 clusters, pools, handles and pins are open"))
}

impl<T: Any + Send> Name<T> {
    /// Works with the object, which no other thread has meanwhile.
    #[inline]
    pub fn with<R>(self, work: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
        work(self.claim()?.get()?)
    }

    /// As `with`, of an object that threads share: waits until the others have done.
    pub fn with_shared<R>(self, work: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
        work(self.claim_shared()?.get()?)
    }

    /// Closes it, and answers what it was.
    pub fn take(self) -> Outcome<T> {
        self.claim()?.take()
    }

    /// As `take`, of an object that threads share.
    pub fn take_shared(self) -> Outcome<T> {
        self.claim_shared()?.take()
    }

    #[inline]
    fn claim(self) -> Outcome<Claimed<T>> {
        self.try_claim().map_err(|refused| match refused {
            Refused::Busy => Failure::misuse("another thread is in a call with it"),
            Refused::Not(failure) => failure,
        })
    }

    fn claim_shared(self) -> Outcome<Claimed<T>> {
        loop {
            match self.try_claim() {
                Ok(claimed) => return Ok(claimed),
                Err(Refused::Busy) => std::thread::yield_now(),
                Err(Refused::Not(failure)) => return Err(failure),
            }
        }
    }

    #[inline]
    fn try_claim(self) -> Result<Claimed<T>, Refused> {
        let slot = &SLOTS[self.0 % SLOTS_MAX];
        let idle = ((self.0 >> INDEX_BITS) as u64) << GENERATION_SHIFT | FULL;
        // Relaxed: it was stored before the name was there. Acquire: pairs with the Release in the
        // drop of the last claim. Relaxed: a failure reads nothing.
        if slot.era.load(Ordering::Relaxed) == fork::era()
            && slot
                .state
                .compare_exchange(idle, idle | BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return Ok(Claimed { slot, idle, what: PhantomData });
        }
        Err(why_not(slot, idle))
    }
}

#[cold]
fn why_not(slot: &Slot, idle: u64) -> Refused {
    // Relaxed: only what to say depends on it.
    let state = slot.state.load(Ordering::Relaxed);
    if state & !(BUSY | POISONED) != idle {
        return Refused::Not(Failure::misuse("it was closed, or never opened"));
    }
    // Relaxed: as above.
    if slot.era.load(Ordering::Relaxed) != fork::era() {
        return Refused::Not(Failure::forked());
    }
    if state & POISONED != 0 {
        let text = "a bug of rackpool: a call with it had failed in the middle";
        return Refused::Not(Failure::Own(Status::Internal, text));
    }
    Refused::Busy
}

impl<T> Claimed<T> {
    fn cell(&mut self) -> &mut Option<Box<dyn Any + Send>> {
        // SAFETY: `BUSY` is ours until the drop, and the reference ends before.
        unsafe { &mut *self.slot.object.get() }
    }
}

impl<T: Any + Send> Claimed<T> {
    #[inline]
    fn get(&mut self) -> Outcome<&mut T> {
        let object = self.cell().as_mut().and_then(|object| object.downcast_mut());
        object.ok_or_else(|| Failure::misuse("it is of another kind"))
    }

    /// What it was; leaves the slot free.
    fn take(mut self) -> Outcome<T> {
        self.get()?;
        let object = self.cell().take().and_then(|object| object.downcast::<T>().ok());
        self.idle &= !FLAGS;
        // It ends here, also of a kind that takes long to close.
        drop(self);
        object.map(|object| *object).ok_or_else(|| Failure::misuse("it was closed"))
    }
}

impl<T> Drop for Claimed<T> {
    #[inline]
    fn drop(&mut self) {
        let poisoned = if std::thread::panicking() { POISONED } else { 0 };
        // Release: pairs with the Acquire of the next claim.
        self.slot.state.store(self.idle | poisoned, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status<T>(outcome: &Outcome<T>) -> Status {
        outcome.as_ref().err().map_or(Status::Ok, Failure::status)
    }

    #[test]
    fn what_is_closed_foreign_or_busy_is_misuse() {
        let name = insert(7_u32).unwrap();
        assert_eq!(name.with(|number| Ok(*number)).unwrap(), 7);
        let foreign = Name::<String>(name.0, PhantomData);
        assert_eq!(status(&foreign.with(|_| Ok(()))), Status::Misuse);
        let inside = name.with(|_| Ok(status(&name.with(|_| Ok(())))));
        assert_eq!(inside.unwrap(), Status::Misuse);
        assert_eq!(name.take().unwrap(), 7);
        assert_eq!(status(&name.take()), Status::Misuse);
        assert_eq!(status(&Name::<u32>(0, PhantomData).take()), Status::Misuse);
        assert_eq!(status(&Name::<u32>(usize::MAX, PhantomData).take()), Status::Misuse);
    }

    #[test]
    fn what_was_in_a_panic_is_given_to_no_call_any_more() {
        let name = insert(7_u32).unwrap();
        let panicked = std::panic::catch_unwind(|| name.with(|_| -> Outcome { panic!("here") }));
        assert!(panicked.is_err());
        assert_eq!(status(&name.with(|_| Ok(()))), Status::Internal);
        assert_eq!(status(&name.take()), Status::Internal);
    }

    #[test]
    fn threads_share_what_is_shared_and_no_two_have_it_at_once() {
        let name = insert(0_u64).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        name.with_shared(|sum| {
                            let read = *sum;
                            std::hint::spin_loop();
                            *sum = read + 1;
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(name.take_shared().unwrap(), 4000);
    }
}
