//! One-sided operations allocate nothing once a connection is up, on either side. All allocations
//! of a process are counted, so the test runs alone in one of its own.

use crate::child::{Own, role_and_place};
use crate::fabric_rig::{EncryptedRig, PATIENCE, Rig, ShmRig, TcpRig, at, sge};
use rackpool_core::seam::{Fabric, FabricEvent, Sge, Verb, WorkRequest, WorkStatus};
use rackpool_fabric::{LocalBuffer, LocalBuffers};
use rackpool_mem::process::monotonic_ns;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: a counter; the threads have met through a socket before it is read.
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn some_operations<R: Rig<End: LocalBuffers>>(
    rig: &mut R,
    bytes: &mut [u8],
    events: &mut Vec<FabricEvent>,
) {
    let (peer, length) = (rig.peer(), bytes.len() as u64);
    let lent = &mut [LocalBuffer::Into(bytes)];
    let ran = rig.end().with_buffers(lent, |end, ids| {
        let small = [sge(ids.id(0), 0, 64)];
        let large = [sge(ids.id(0), 0, 100), sge(ids.id(0), 100, length - 100)];
        let verbs: [(Verb, &[Sge]); 6] = [
            (Verb::Write(at(64)), &small),
            (Verb::Read(at(64)), &small),
            (Verb::FetchAdd { at: at(0), n: 1 }, &[]),
            (Verb::Write(at(64)), &large),
            (Verb::Read(at(64)), &large),
            (Verb::Cas { at: at(8), expected: 0, new: 1 }, &[]),
        ];
        let batch = verbs.map(|(verb, local)| WorkRequest { id: 1, verb, local, signalled: true });
        end.post(peer, &batch).unwrap();
        events.clear();
        let start = Instant::now();
        while events.len() < batch.len() {
            end.poll(monotonic_ns(), events);
            assert!(start.elapsed() < PATIENCE);
        }
    });
    ran.unwrap();
    let done = |event: &FabricEvent| {
        matches!(event, FabricEvent::Completed { status: WorkStatus::Done(_), .. })
    };
    assert!(events.iter().all(done));
}

fn count<R: Rig<End: LocalBuffers>>() {
    let mut rig = R::new();
    let (mut bytes, mut events) = (vec![7; 1 << 20], Vec::with_capacity(64));
    // A queue grows once to what the threads' timing needs; operations would allocate every time.
    let is_free = (0..10).any(|_| {
        // Relaxed: as in `alloc`.
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..50 {
            some_operations(&mut rig, &mut bytes, &mut events);
        }
        // Relaxed: as in `alloc`.
        ALLOCATIONS.load(Ordering::Relaxed) == before
    });
    assert!(is_free, "{} allocates", rig.end().capabilities().name);
}

#[test]
fn one_sided_operations_allocate_nothing() {
    if role_and_place().is_none() {
        let test = "fabric_allocations::one_sided_operations_allocate_nothing";
        let mut own = Own::start(test, "count", "", Stdio::piped());
        let mut said = String::new();
        own.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(own.0.wait().unwrap().success() && said.contains("1 passed"), "see above");
        return;
    }
    count::<TcpRig>();
    count::<EncryptedRig>();
    count::<ShmRig>();
}
