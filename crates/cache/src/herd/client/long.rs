//! Values that are longer than a slot: put and read in parts, each a request of its own, with all
//! windows to the key's server thread in use. See `part.rs` for the bytes.
//!
//! *Once*: a part is a request as any other, so it is repeated and applied as one. A part that
//! comes out of order, behind one that was lost, is not taken, and is sent again.

use super::super::error::{Error, Result};
use super::super::message::{Message, MessageKind, PART_HEAD_BYTES};
use super::super::part::{PartHead, part_bytes};
use super::super::transport::Transport;
use super::{Answer, Client, answer_of};
use std::collections::VecDeque;

/// Attempts at a long value if the server gives it up.
const ATTEMPTS_MAX: u32 = 4;
/// How often in a row parts may begin again at the same place before the server counts as faulty.
const STALLS_MAX: u32 = 16;

/// The parts of a value that are under way, and what was answered.
struct Parts {
    server: usize,
    id: u64,
    /// Where the parts begin that are under way, bytes, in their order.
    under_way: VecDeque<u64>,
    /// Where the next part begins, bytes.
    next: u64,
    /// Where to go on when nothing is under way, if it is not there.
    rewind: Option<u64>,
    /// How it ended, if it has: no further part is sent.
    over: Option<Result<MessageKind>>,
}

impl Parts {
    fn end(&mut self, how: Result<MessageKind>) {
        // The first answer counts; others follow from it.
        self.over.get_or_insert(how);
    }

    fn may_send(&self, total: u64) -> bool {
        self.next < total && self.rewind.is_none() && self.over.is_none()
    }
}

impl<L: Transport> Client<L> {
    /// Longest part of a value, bytes; 0 if slots are too short for any.
    pub(super) fn part_bytes(&self) -> usize {
        part_bytes(&self.geometry)
    }

    pub(super) fn put_long(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires: u64,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            match self.put_parts(key, value, (flags, expires)) {
                Ok(MessageKind::Stored) => return Ok(()),
                Ok(_) => {}
                // The refusal of a part has only the limit.
                Err(Error::ValueSize { max_bytes, .. }) => {
                    return Err(Error::ValueSize { bytes: value.len() as u64, max_bytes });
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Lapsed { attempts: ATTEMPTS_MAX })
    }

    /// Puts all parts; `Lapsed` if the server has given the value up meanwhile.
    fn put_parts(
        &mut self,
        key: &[u8],
        value: &[u8],
        stored_with: (u32, u64),
    ) -> Result<MessageKind> {
        let (mut parts, total) = (self.begin(key)?, value.len() as u64);
        let (mut since, mut stalls) = (0, 0);
        let mut message = Vec::with_capacity(PART_HEAD_BYTES + self.part_bytes());
        loop {
            while parts.may_send(total) && self.has_window(&parts) {
                let (id, offset) = (parts.id, parts.next);
                let rest = &value[offset as usize..];
                let part = &rest[..rest.len().min(self.part_bytes())];
                message.clear();
                message.extend_from_slice(&PartHead { id, offset, total }.bytes());
                message.extend_from_slice(part);
                self.submit(MessageKind::PutPart, key, &message, stored_with.0, stored_with.1)?;
                parts.under_way.push_back(offset);
                parts.next += part.len() as u64;
            }
            let longest = self.part_bytes() as u64;
            self.take_parts(&mut parts, |parts, offset, reply| match reply.kind {
                MessageKind::Taken if reply.head.extra == total.min(offset + longest) => Ok(()),
                MessageKind::Taken if reply.head.extra < total => {
                    parts.rewind = Some(reply.head.extra);
                    Ok(())
                }
                MessageKind::Stored | MessageKind::Lapsed => {
                    parts.end(Ok(reply.kind));
                    Ok(())
                }
                _ => Err(Error::Corrupt { what: "the answer to a part" }),
            })?;
            if !parts.under_way.is_empty() {
                continue;
            }
            if let Some(over) = parts.over {
                return over;
            }
            parts.next = parts.rewind.take().unwrap_or(parts.next);
            stalls = if parts.next > since { 0 } else { stalls + 1 };
            since = parts.next;
            if stalls > STALLS_MAX || parts.next >= total {
                return Err(Error::Corrupt { what: "the answers to parts" });
            }
        }
    }

    /// A value of which it is known that it was so long; its flags.
    pub(super) fn get_long(
        &mut self,
        key: &[u8],
        bytes: u64,
        value: &mut Vec<u8>,
    ) -> Result<Option<u32>> {
        let (base, mut flags) = (value.len(), 0);
        for _ in 0..ATTEMPTS_MAX {
            let got = self.get_parts(key, bytes, value, base, &mut flags);
            match got {
                Ok(MessageKind::Part) => return Ok(Some(flags)),
                Ok(MessageKind::Missing) => {
                    value.truncate(base);
                    return Ok(None);
                }
                Ok(_) => {}
                Err(error) => {
                    value.truncate(base);
                    return Err(error);
                }
            }
        }
        value.truncate(base);
        Err(Error::Lapsed { attempts: ATTEMPTS_MAX })
    }

    /// Reads all parts; `Lapsed` if the server has given the value up meanwhile.
    fn get_parts(
        &mut self,
        key: &[u8],
        bytes: u64,
        value: &mut Vec<u8>,
        base: usize,
        flags: &mut u32,
    ) -> Result<MessageKind> {
        let mut parts = self.begin(key)?;
        let (mut total, mut is_known, longest) = (bytes, false, self.part_bytes() as u64);
        loop {
            while parts.may_send(total) && self.has_window(&parts) {
                let head = PartHead { id: parts.id, offset: parts.next, total: 0 };
                self.submit(MessageKind::GetPart, key, &head.bytes(), 0, 0)?;
                parts.under_way.push_back(parts.next);
                parts.next += longest;
            }
            self.take_parts(&mut parts, |parts, offset, reply| {
                match reply.kind {
                    MessageKind::Part => {}
                    // It has become shorter since its length was sent.
                    MessageKind::Lapsed if is_known && offset >= total => return Ok(()),
                    MessageKind::Missing | MessageKind::Lapsed => {
                        parts.end(Ok(reply.kind));
                        return Ok(());
                    }
                    _ => return Err(Error::Corrupt { what: "the answer to a part" }),
                }
                let corrupt = Error::Corrupt { what: "a part of a value" };
                let Some((head, part)) = PartHead::read(reply.value) else { return Err(corrupt) };
                if !is_known {
                    (total, is_known) = (head.total, true);
                    make_room(value, base, total)?;
                }
                let wanted = total.saturating_sub(offset).min(longest);
                let expected = PartHead { id: parts.id, offset, total };
                if head != expected || part.len() as u64 != wanted {
                    return Err(corrupt);
                }
                if wanted > 0 {
                    value[base + offset as usize..][..part.len()].copy_from_slice(part);
                }
                *flags = reply.head.flags();
                Ok(())
            })?;
            if !parts.under_way.is_empty() {
                continue;
            }
            if let Some(over) = parts.over {
                return over;
            }
            if parts.next >= total {
                return Ok(MessageKind::Part);
            }
        }
    }

    /// No parts yet of a value of this key.
    fn begin(&self, key: &[u8]) -> Result<Parts> {
        self.check_key(key)?;
        let server = self.server_of(key) as usize;
        let id = self.lanes[server].submitted + 1;
        let (under_way, rewind, over) = (VecDeque::new(), None, None);
        Ok(Parts { server, id, under_way, next: 0, rewind, over })
    }

    fn has_window(&self, parts: &Parts) -> bool {
        let lane = &self.lanes[parts.server];
        lane.submitted - lane.answered < u64::from(self.geometry.windows)
    }

    /// Waits for answers to parts and gives them to `take`, with where each part begins; what it
    /// does not know ends the value, and so does an error of it.
    fn take_parts(
        &mut self,
        parts: &mut Parts,
        mut take: impl FnMut(&mut Parts, u64, &Message<'_>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.geometry;
        let server = parts.server;
        let taken = self.wait().and_then(|()| {
            self.poll_replies(|_, reply| {
                let offset = parts.under_way.pop_front().expect("each part is answered once");
                let taken = match answer_of(reply, &geometry) {
                    Answer::Refused(error) if !is_of_parts(reply.kind) => Err(error),
                    _ => take(parts, offset, reply),
                };
                if let Err(error) = taken {
                    parts.end(Err(error));
                }
            })
        });
        if taken.is_err() {
            let lane = &mut self.lanes[server];
            lane.given_up = lane.submitted;
        }
        taken.map(drop)
    }
}

/// Answers to nothing but parts.
fn is_of_parts(kind: MessageKind) -> bool {
    matches!(kind, MessageKind::Taken | MessageKind::Part | MessageKind::Lapsed)
}

/// Makes `value` so long that `total` bytes fit behind the first `base`.
fn make_room(value: &mut Vec<u8>, base: usize, total: u64) -> Result<()> {
    let total = usize::try_from(total).map_err(|_| Error::OutOfMemory)?;
    value.truncate(base);
    value.try_reserve_exact(total).map_err(|_| Error::OutOfMemory)?;
    value.resize(base + total, 0);
    Ok(())
}
