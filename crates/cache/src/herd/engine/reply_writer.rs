//! The reply writer: makes answers and puts them into the slots of the clients that asked. Called
//! by the engine with what it took, while the cache shows the item.

use super::slots::{DequeuedRequest, RequestView, Slots, Work};
use super::{Replied, Turn};
use crate::cache::{Cache, Copied, CopyTarget, Error, Item, Millis, at_wall};
use crate::herd::counters::HerdCounter;
use crate::herd::geometry::{Geometry, HEAD_BYTES};
use crate::herd::long::{FoundPart, Long, StoredPart, refusal};
use crate::herd::message::{Head, MessageKind, PART_HEAD_BYTES};
use crate::herd::part::{PartHead, part_bytes};
use crate::herd::slot;
use rackpool_core::seam::Mem;

/// The clients to answer, and what answers are made of. A client that has left meanwhile gets no
/// answer.
pub(super) struct ReplyWriter {
    cache: Cache,
    pub geometry: Geometry,
    pub clients: Vec<Option<Slots>>,
    /// Where the value of a reply is put together.
    reply: Box<[u8]>,
    /// Clients with a long value under way.
    pub long: Vec<u32>,
}

/// The head of the answer with a value.
#[inline(always)]
fn found(cache: &Cache, taken: &DequeuedRequest, bytes: u64, flags: u32, expires: Millis) -> Head {
    let head = Head::new(taken.head.number, MessageKind::Found).with_lengths(0, bytes as u16);
    head.with_flags(flags).with_extra(cache.expiry_at_wall(expires))
}

/// When an item expires that a client gave this expiry: a point in time of the wall clock.
fn expiry(extra: u64) -> Millis {
    if extra == 0 { 0 } else { at_wall(extra) }
}

/// That of one without a value.
#[inline(always)]
fn said(taken: &DequeuedRequest, kind: MessageKind, extra: u64) -> Head {
    Head::new(taken.head.number, kind).with_extra(extra)
}

impl ReplyWriter {
    /// One without clients, for numbers below `clients`.
    pub fn new(cache: Cache, geometry: Geometry, clients: u32) -> ReplyWriter {
        let reply = vec![0; geometry.value_bytes as usize].into();
        let clients = (0..clients).map(|_| None).collect();
        ReplyWriter { cache, geometry, clients, reply, long: Vec::new() }
    }

    /// Answers a look-up without a lock; whether that could be.
    #[inline(always)]
    pub fn answer_unlocked(
        &mut self,
        cache: &Cache,
        taken: &DequeuedRequest,
        key: &[u8],
        now: Millis,
        replied: &mut impl FnMut(Replied),
    ) -> bool {
        let Some(slots) = &mut self.clients[taken.client as usize] else { return false };
        let (replies, at, value_at) = slots.reply_place(taken);
        let bytes_max = self.geometry.value_bytes.into();
        let to = CopyTarget { units: replies.bare(), at: value_at, bytes_max };
        let place = cache.copy_value(key, now, to, |Copied { bytes, flags, expires }| {
            slot::publish_head(replies, at, &found(cache, taken, bytes, flags, expires));
            (at, HEAD_BYTES as u64 + bytes)
        });
        let Some(place) = place else { return false };
        replied(slots.note(taken, place));
        true
    }

    #[inline(always)]
    pub fn answer(
        &mut self,
        taken: &DequeuedRequest,
        item: &Item<'_>,
        replied: &mut impl FnMut(Replied),
    ) {
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        let (replies, at, value_at) = slots.reply_place(taken);
        let most = self.geometry.value_bytes.into();
        let Some(bytes) = item.copy_into(replies.bare(), value_at, most) else {
            return self.answer_apart(taken, item, replied);
        };
        let (flags, expires) = (item.flags(), item.expires());
        slot::publish_head(replies, at, &found(&self.cache, taken, bytes, flags, expires));
        replied(slots.note(taken, (at, HEAD_BYTES as u64 + bytes)));
    }

    /// Answers with an item; its value is put together outside the slot.
    #[inline(never)]
    fn answer_apart(
        &mut self,
        taken: &DequeuedRequest,
        item: &Item<'_>,
        replied: &mut dyn FnMut(Replied),
    ) {
        let bytes = item.len();
        let head = if bytes > u64::from(self.geometry.value_bytes) {
            said(taken, MessageKind::TooLarge, bytes)
        } else {
            match item.copy_to(0, &mut self.reply[..bytes as usize]) {
                Ok(_) => found(&self.cache, taken, bytes, item.flags(), item.expires()),
                Err(error) => {
                    let (kind, extra) = refusal(&error);
                    said(taken, kind, extra)
                }
            }
        };
        self.publish(taken, head, replied);
    }

    /// Answers that there is no such key.
    #[inline(never)]
    pub fn answer_missing(&mut self, taken: &DequeuedRequest, replied: &mut dyn FnMut(Replied)) {
        self.publish(taken, said(taken, MessageKind::Missing, 0), replied);
    }

    #[inline]
    fn publish(&mut self, taken: &DequeuedRequest, head: Head, replied: &mut dyn FnMut(Replied)) {
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        let bytes = head.value_bytes();
        let (replies, at, value_at) = slots.reply_place(taken);
        replies.copy_in(value_at, &self.reply[..bytes]);
        slot::publish_head(replies, at, &head);
        replied(slots.note(taken, (at, (HEAD_BYTES + bytes) as u64)));
    }

    /// Takes or reads a part of a long value; the head of the answer.
    fn part(&mut self, cache: &Cache, request: RequestView<'_>, now: Millis) -> Option<Head> {
        let RequestView { taken, key, value } = request;
        let ReplyWriter { geometry, clients, reply, long, .. } = self;
        let slots = clients[taken.client as usize].as_mut()?;
        let Some((head, part)) = PartHead::read(value) else {
            return Some(said(taken, MessageKind::Malformed, 0));
        };
        if !long.contains(&taken.client) {
            long.push(taken.client);
        }
        if taken.work == Work::PutPart {
            let (flags, expires) = (taken.head.flags(), expiry(taken.head.extra));
            let part = StoredPart { key, head: &head, part, flags, expires };
            let (kind, extra) = Long::put(&mut slots.long, cache, part, now);
            return Some(said(taken, kind, extra));
        }
        let (head_to, part_to) = reply.split_at_mut(PART_HEAD_BYTES);
        let part_to = &mut part_to[..part_bytes(geometry)];
        Some(match Long::get(&mut slots.long, cache, key, &head, part_to, now) {
            Ok(FoundPart { head, flags, expires, part }) => {
                head_to.copy_from_slice(&head.bytes());
                let value_bytes = (PART_HEAD_BYTES + part.len()) as u16;
                let head =
                    Head::new(taken.head.number, MessageKind::Part).with_lengths(0, value_bytes);
                head.with_flags(flags).with_extra(cache.expiry_at_wall(expires))
            }
            Err((kind, extra)) => said(taken, kind, extra),
        })
    }

    /// Does what is no look-up, and answers.
    pub fn change(
        &mut self,
        cache: &Cache,
        request: RequestView<'_>,
        turn: Turn<'_>,
        replied: &mut dyn FnMut(Replied),
    ) {
        let RequestView { taken, key, .. } = request;
        let Turn { now, counters } = turn;
        let head = match taken.work {
            Work::Put => Some(put(cache, request, turn)),
            Work::Delete => {
                counters.add(HerdCounter::Deletes, 1);
                let kind = if cache.remove(key, now) {
                    MessageKind::Deleted
                } else {
                    MessageKind::Missing
                };
                Some(said(taken, kind, 0))
            }
            Work::PutPart | Work::GetPart => {
                counters.add(HerdCounter::Parts, 1);
                self.part(cache, request, now)
            }
            Work::Refuse => Some(said(taken, MessageKind::Malformed, 0)),
            Work::Repeat | Work::Get => {
                // Its reply is there already.
                let slots = self.clients[taken.client as usize].as_ref();
                if let Some(reply) = slots.and_then(|slots| slots.last_reply(taken)) {
                    replied(reply);
                }
                None
            }
        };
        if let Some(head) = head {
            self.publish(taken, head, replied);
        }
    }
}

/// Stores a value; the head of the answer.
fn put(cache: &Cache, request: RequestView<'_>, Turn { now, counters }: Turn<'_>) -> Head {
    let RequestView { taken, key, value } = request;
    counters.add(HerdCounter::Puts, 1);
    let error = match cache.set(key, value, taken.head.flags(), expiry(taken.head.extra), now) {
        Ok(_) => return said(taken, MessageKind::Stored, 0),
        Err(error) => error,
    };
    if let Error::TooLarge { max_bytes, .. } = error {
        counters.add(HerdCounter::Refused, 1);
        return said(taken, MessageKind::TooLong, max_bytes).with_flags(value.len() as u32);
    }
    let (kind, extra) = refusal(&error);
    if matches!(kind, MessageKind::NoMemory | MessageKind::Unreachable) {
        counters.add(HerdCounter::Refused, 1);
    }
    said(taken, kind, extra)
}
