//! The slots of a client at a serving thread: what was published in them since the last look is
//! taken into the batch. Called by the engine; the reply writer puts replies into them.

use super::Replied;
use crate::herd::counters::{HerdCounter, ThreadCounters};
use crate::herd::geometry::{AHEAD, APART_VALUE_AT, Geometry, HEAD_BYTES, LINE_BYTES};
use crate::herd::long::Long;
use crate::herd::message::{Head, MessageKind, reply_number};
use crate::herd::slot::{self, Read, SlotFormat};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_mem::window::Window;

/// Requests of a batch: as many as the cache looks up together.
pub(super) const BATCH: usize = 64;

/// The slots of a client at a thread.
#[derive(Clone, Debug)]
pub struct ClientSlots {
    /// As many as it has windows.
    pub requests: Window,
    /// As many; in ordered form they may be the same.
    pub replies: Window,
    /// One for the reply to a request that says so ([`Head::apart`]), with the value from the
    /// second line on.
    pub apart: Option<Window>,
}

impl ClientSlots {
    /// These slots, and none for replies that come apart.
    pub fn new(requests: Window, replies: Window) -> ClientSlots {
        ClientSlots { requests, replies, apart: None }
    }
}

/// The slots of a client at this thread, and what is known of each.
pub(super) struct Slots {
    pub memory: ClientSlots,
    windows: Box<[Last]>,
    /// The window that comes next.
    next: u32,
    slot_bytes: u64,
    pub long: Option<Box<Long>>,
}

impl Slots {
    /// So many windows of these slots, all of them as if request 0 had been answered last.
    pub fn new(memory: ClientSlots, windows: u64, slot_bytes: u64) -> Slots {
        let windows = (0..windows).map(|_| Last::default()).collect();
        Slots { memory, windows, next: 0, slot_bytes, long: None }
    }

    /// Whether something was published that was not taken, or, in sealed slots, may have been.
    pub fn is_ready(&self, form: SlotFormat, geometry: &Geometry) -> bool {
        let is_published = |window: usize| {
            let (at, last) = (window as u64 * self.slot_bytes, self.windows[window].number);
            form.is_published(&self.memory.requests, at, geometry, last)
        };
        match form {
            SlotFormat::Ordered => is_published(self.next as usize),
            SlotFormat::Sealed => (0..self.windows.len()).any(is_published),
        }
    }

    /// Asks for what comes next, where it is another processor that writes the requests and reads
    /// the replies: the slot of the window's reply, to write there, and a request that was made
    /// after it.
    #[inline]
    fn ask_ahead(&self, at: u64) {
        self.memory.replies.prefetch_write(at);
        self.memory.replies.prefetch_write(at + LINE_BYTES);
        let ahead = at + AHEAD * self.slot_bytes;
        if ahead < self.memory.requests.bytes() {
            self.memory.requests.prefetch(ahead);
        }
    }

    /// Requests are made window by window: behind a gap there is nothing.
    #[inline(always)]
    pub fn gather_ordered(
        &mut self,
        client: u32,
        geometry: &Geometry,
        batch: &mut RequestBatch,
        counters: &ThreadCounters,
        looks: u32,
    ) {
        for _ in 0..self.windows.len() {
            let is_first = batch.taken.is_empty();
            let Some(to) = batch.room() else { return };
            let window = self.next;
            let at = u64::from(window) * self.slot_bytes;
            let last = self.windows[window as usize].number;
            let requests = &self.memory.requests;
            let looks = if is_first { looks } else { 1 };
            let Some(head) = slot::await_head(requests, at, last, looks) else { return };
            let is_whole = slot::copy_behind(requests, at, &head, to);
            // A client that makes one request at a time looks at its slot all the time.
            if !is_first {
                self.ask_ahead(at);
            }
            if is_whole && head.is_get() {
                batch.taken.push(self.take_get(ClientWindow { client, window }, head));
                // Nor has it made another one, as a rule.
                if head.is_apart() && looks > 1 {
                    return;
                }
                continue;
            }
            let from = ClientWindow { client, window };
            let read = if is_whole { Read::Message(head) } else { Read::Malformed(head.number) };
            if let Some(taken) = self.take_any(from, read, geometry, counters) {
                batch.taken.push(taken);
            }
        }
    }

    #[inline(never)]
    pub fn gather_sealed(
        &mut self,
        client: u32,
        geometry: &Geometry,
        batch: &mut RequestBatch,
        counters: &ThreadCounters,
        mutated: impl Fn(Mutation) -> bool,
    ) {
        let count = self.windows.len() as u32;
        let (mut window, mut left) = (self.next, count);
        // The first window that had nothing, and the last one that was looked at again.
        let (mut gap, mut again) = (None, None);
        while left > 0 {
            let Some(to) = batch.room() else { return };
            let at = u64::from(window) * self.slot_bytes;
            let last = self.windows[window as usize].number;
            if let Some((first, left_then)) = gap {
                // What was made before one that is here has come meanwhile, unless it was lost.
                if SlotFormat::Sealed.is_published(&self.memory.requests, at, geometry, last) {
                    (gap, again) = (None, Some(first));
                    (window, left) = (first, left_then);
                    continue;
                }
            } else if let Some(read) =
                SlotFormat::Sealed.read(&self.memory.requests, at, geometry, last, to)
            {
                let from = ClientWindow { client, window };
                if mutated(Mutation::ApplyRepeatedRequest) {
                    self.windows[window as usize].number = 0;
                }
                if let Some(taken) = self.take_any(from, read, geometry, counters) {
                    batch.taken.push(taken);
                }
                if mutated(Mutation::DropRepeatedRequest) {
                    batch.taken.pop_if(|taken| taken.work == Work::Repeat);
                }
            } else if again != Some(window) {
                gap = Some((window, left));
            }
            (window, left) = (self.after(window), left - 1);
        }
    }

    /// Where the reply to a request goes: where its head does, and where its value.
    #[inline(always)]
    pub fn reply_place(&self, taken: &DequeuedRequest) -> (&Window, u64, u64) {
        if let Some(apart) = &self.memory.apart
            && taken.head.is_apart()
        {
            return (apart, 0, APART_VALUE_AT);
        }
        let at = u64::from(taken.window) * self.slot_bytes;
        (&self.memory.replies, at, at + HEAD_BYTES as u64)
    }

    /// Takes note of where the reply to a request is.
    #[inline(always)]
    pub fn note(&mut self, taken: &DequeuedRequest, place: (u64, u64)) -> Replied {
        self.windows[taken.window as usize].reply = place;
        Replied { client: taken.client, window: taken.window, place }
    }

    /// The reply to the last request of its window, if there was one.
    pub fn last_reply(&self, taken: &DequeuedRequest) -> Option<Replied> {
        let place = self.windows[taken.window as usize].reply;
        let (client, window) = (taken.client, taken.window);
        (place != (0, 0)).then_some(Replied { client, window, place })
    }

    #[inline(always)]
    fn after(&self, window: u32) -> u32 {
        if window as usize + 1 == self.windows.len() { 0 } else { window + 1 }
    }

    /// A look-up that was not read before: what nearly all requests are.
    #[inline(always)]
    fn take_get(&mut self, from: ClientWindow, mut head: Head) -> DequeuedRequest {
        let ClientWindow { client, window } = from;
        head.number = reply_number(head.number);
        (self.next, self.windows[window as usize].number) = (self.after(window), head.number);
        if let Some(apart) = &self.memory.apart
            && head.is_apart()
        {
            // Its client does not look yet: `client/first_look.rs`.
            apart.prefetch_write(0);
            apart.prefetch_write(APART_VALUE_AT);
        }
        DequeuedRequest { client, window, work: Work::Get, head }
    }

    /// What was read out of a client's window, if it is to be done or refused.
    #[inline(never)]
    fn take_any(
        &mut self,
        ClientWindow { client, window }: ClientWindow,
        read: Read,
        geometry: &Geometry,
        counters: &ThreadCounters,
    ) -> Option<DequeuedRequest> {
        let next = self.after(window);
        let last = &mut self.windows[window as usize].number;
        let (head, work) = judge(read, geometry, *last, counters);
        // One that came again says nothing about which window is next.
        if head.number > *last {
            self.next = next;
        }
        let work = work?;
        *last = head.number;
        Some(DequeuedRequest { client, window, work, head })
    }
}

/// The last request of a window.
#[derive(Clone, Copy, Default)]
struct Last {
    number: u64,
    reply: (u64, u64),
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Get,
    Put,
    Delete,
    PutPart,
    GetPart,
    Repeat,
    Refuse,
}

pub(super) struct DequeuedRequest {
    pub client: u32,
    pub window: u32,
    pub work: Work,
    /// With the number of its reply.
    pub head: Head,
}

/// A request of a batch, its key and its value.
#[derive(Clone, Copy)]
pub(super) struct RequestView<'a> {
    pub taken: &'a DequeuedRequest,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// A window of a client.
#[derive(Clone, Copy)]
struct ClientWindow {
    client: u32,
    window: u32,
}

/// Requests that were taken and not done.
pub(super) struct RequestBatch {
    pub taken: Vec<DequeuedRequest>,
    /// Their messages, one every `stride` bytes.
    bytes: Box<[u8]>,
    stride: usize,
}

impl RequestBatch {
    /// An empty one for messages of these sizes.
    pub fn new(geometry: &Geometry) -> RequestBatch {
        let stride = geometry.message_bytes().next_multiple_of(64);
        RequestBatch {
            taken: Vec::with_capacity(BATCH),
            bytes: vec![0; stride * BATCH].into(),
            stride,
        }
    }

    /// Where the next message goes: no longer than a slot.
    #[inline(always)]
    fn room(&mut self) -> Option<&mut [u8]> {
        let count = self.taken.len();
        (count < BATCH).then(|| &mut self.bytes[count * self.stride..][..self.stride])
    }

    #[inline(always)]
    pub fn request(&self, index: usize) -> RequestView<'_> {
        let taken = &self.taken[index];
        let message = &self.bytes[index * self.stride + HEAD_BYTES..];
        let (key, rest) = message.split_at(taken.head.key_bytes());
        RequestView { taken, key, value: &rest[..taken.head.value_bytes()] }
    }

    /// Drops the first `count` requests; what stays moves to the front.
    pub fn drop_first(&mut self, count: usize) {
        self.taken.drain(..count);
        let stride = self.stride;
        self.bytes.copy_within(count * stride..(count + self.taken.len()) * stride, 0);
    }
}

/// The head of what was read out of a slot, with the number of its reply, and what to do with it,
/// if anything. `last` is the number of the window's last reply.
fn judge(
    read: Read,
    geometry: &Geometry,
    last: u64,
    counters: &ThreadCounters,
) -> (Head, Option<Work>) {
    let (mut head, kind) = match read {
        Read::Message(head) => (head, head.checked(geometry).filter(|kind| kind.is_request())),
        Read::Malformed(number) => (Head::new(number, MessageKind::Malformed), None),
    };
    let number = reply_number(head.number);
    let Some(kind) = kind else {
        counters.add(HerdCounter::Malformed, 1);
        // A number tells which request is refused; without one no client waits.
        let work = (number > last).then_some(Work::Refuse);
        return (Head::new(number, MessageKind::Malformed).apart(head.is_apart()), work);
    };
    head.number = number;
    if number <= last {
        counters.add(HerdCounter::Repeated, 1);
        return (head, (number == last).then_some(Work::Repeat));
    }
    let work = match kind {
        MessageKind::Put => Work::Put,
        MessageKind::Delete => Work::Delete,
        MessageKind::PutPart => Work::PutPart,
        MessageKind::GetPart => Work::GetPart,
        _ => Work::Get,
    };
    (head, Some(work))
}
