//! Long values under way at a serving thread: one for each client, that is written or read in parts
//! (`part.rs`).
//!
//! *Written*: the parts go into memory of the cache that is not visible yet, in their order; the
//! last one makes them the key's value, all at once. A part that comes out of order, because one
//! before it was lost, is not taken, and the answer says where to go on. *Read*: the first part
//! pins the value, so all parts are of one value whatever happens to the key meanwhile; the last
//! one lets it go.
//!
//! A new long value of the client ends the one before, and so does its silence for
//! [`IDLE_MS`], or its end: what was written is given back, and nothing was stored.

use super::message::MessageKind;
use super::part::PartHead;
use crate::cache::{Cache, Error, Item, Millis, Pinned, Writer};
use crate::constants::STALL_MS_MAX;
use rackpool_core::seam::Mem;
use rackpool_mem::window::Piece;

/// A long value is given up after so much time between two parts, milliseconds: its memory is
/// reserved meanwhile. As for the other protocols.
const IDLE_MS: u64 = STALL_MS_MAX;
/// Bytes that are gathered before they are written: another tier is asked once for many parts.
const GATHER_BYTES: usize = 64 << 10;

pub(super) struct Long {
    id: u64,
    touched: Millis,
    state: State,
}

enum State {
    Writing {
        writer: Writer,
        /// Bytes that the writer has not been given yet.
        gathered: Vec<u8>,
    },
    Reading {
        pinned: Pinned,
        flags: u32,
        expires: Millis,
        /// Bytes that were not asked for yet.
        left: u64,
    },
    /// How it ended: the answer to whatever still comes of it.
    Over(MessageKind, u64),
}

/// A part that is read.
pub(super) struct FoundPart<'a> {
    pub head: PartHead,
    pub flags: u32,
    pub expires: Millis,
    /// The part, at the beginning of the buffer that was handed in.
    pub part: &'a [u8],
}

/// The answer that an error of the cache is, and what is said beside it.
pub(super) fn refusal(error: &Error) -> (MessageKind, u64) {
    match error {
        Error::TooLarge { max_bytes, .. } => (MessageKind::TooLong, *max_bytes),
        Error::Tier { .. } => (MessageKind::Unreachable, 0),
        // No string: for a client of HERD it is not there.
        Error::WrongType => (MessageKind::Missing, 0),
        _ => (MessageKind::NoMemory, 0),
    }
}

/// A part of a value that is stored.
pub(super) struct StoredPart<'a> {
    pub key: &'a [u8],
    pub head: &'a PartHead,
    pub part: &'a [u8],
    pub flags: u32,
    pub expires: Millis,
}

impl Long {
    /// Whether no part of it came for too long.
    pub(super) fn is_idle(&self, now: Millis) -> bool {
        now.saturating_sub(self.touched) > IDLE_MS
    }

    /// The long value that a part belongs to, begun if it is a new one; `None` if it is of one that
    /// was given up.
    fn of<'a>(
        long: &'a mut Option<Box<Long>>,
        head: &PartHead,
        now: Millis,
        begin: impl FnOnce() -> State,
    ) -> Option<&'a mut State> {
        match long {
            Some(known) if known.id > head.id => return None,
            Some(known) if known.id == head.id => known.touched = now,
            _ => {
                // Its memory is free before the next one asks for some.
                *long = None;
                *long = Some(Box::new(Long { id: head.id, touched: now, state: begin() }));
            }
        }
        long.as_mut().map(|long| &mut long.state)
    }

    /// Takes a part; the answer, and what is said beside it.
    pub(super) fn put(
        long: &mut Option<Box<Long>>,
        cache: &Cache,
        part: StoredPart<'_>,
        now: Millis,
    ) -> (MessageKind, u64) {
        let StoredPart { key, head, part, flags, expires } = part;
        let state = Long::of(long, head, now, || {
            match cache.reserve(key, head.total, flags, expires, now) {
                Ok(writer) => State::Writing { writer, gathered: Vec::new() },
                Err(error) => {
                    let (kind, extra) = refusal(&error);
                    State::Over(kind, extra)
                }
            }
        });
        let Some(state) = state else { return (MessageKind::Lapsed, 0) };
        let (writer, gathered) = match state {
            State::Over(kind, extra) => return (*kind, *extra),
            State::Writing { writer, gathered } if writer.key() == key => (writer, gathered),
            _ => return (MessageKind::Malformed, 0),
        };
        let missing = writer.missing() - gathered.len() as u64;
        let written = head.total.saturating_sub(missing);
        if head.offset != written {
            return (MessageKind::Taken, written);
        }
        if part.is_empty() || part.len() as u64 > missing {
            return (MessageKind::Malformed, 0);
        }
        if gathered.is_empty() && part.len() as u64 == missing {
            writer.write(part);
        } else {
            gathered.extend_from_slice(part);
            if gathered.len() >= GATHER_BYTES || gathered.len() as u64 == writer.missing() {
                writer.write(gathered);
                gathered.clear();
            }
        }
        if (part.len() as u64) < missing {
            return (MessageKind::Taken, written + part.len() as u64);
        }
        let over = State::Over(MessageKind::Stored, 0);
        let State::Writing { writer, .. } = std::mem::replace(state, over) else {
            unreachable!("it was being written");
        };
        match writer.commit(cache, now) {
            Ok(_) => (MessageKind::Stored, 0),
            Err(error) => {
                let (kind, extra) = refusal(&error);
                *state = State::Over(kind, extra);
                (kind, extra)
            }
        }
    }

    /// Reads a part into `to`.
    pub(super) fn get<'a>(
        long: &mut Option<Box<Long>>,
        cache: &Cache,
        key: &[u8],
        head: &PartHead,
        to: &'a mut [u8],
        now: Millis,
    ) -> Result<FoundPart<'a>, (MessageKind, u64)> {
        let pin = |item: &Item<'_>| (item.pin(), item.flags(), item.expires());
        let state = Long::of(long, head, now, || match cache.get(key, now, pin) {
            None => State::Over(MessageKind::Missing, 0),
            Some((Err(error), ..)) => {
                let (kind, extra) = refusal(&error);
                State::Over(kind, extra)
            }
            Some((Ok(pinned), flags, expires)) => {
                let left = pinned.len();
                State::Reading { pinned, flags, expires, left }
            }
        });
        let state = state.ok_or((MessageKind::Lapsed, 0))?;
        let (pinned, left, flags, expires) = match state {
            State::Over(kind, extra) => return Err((*kind, *extra)),
            State::Reading { pinned, flags, expires, left } => (pinned, left, *flags, *expires),
            State::Writing { .. } => return Err((MessageKind::Malformed, 0)),
        };
        let total = pinned.len();
        let bytes = total.saturating_sub(head.offset).min(to.len() as u64) as usize;
        let part = &mut to[..bytes];
        let copied = copy_part(pinned, head.offset, part);
        *left = left.saturating_sub(bytes as u64);
        if copied.is_err() || *left == 0 {
            // The value's memory is free again. What still comes of it was not asked for.
            let kind = if copied.is_err() { MessageKind::Unreachable } else { MessageKind::Lapsed };
            *state = State::Over(kind, 0);
        }
        copied.map_err(|error| refusal(&error))?;
        let head = PartHead { total, ..*head };
        Ok(FoundPart { head, flags, expires, part })
    }
}

/// Fills `part` with the value's bytes from `offset` on; it has so many.
fn copy_part(pinned: &mut Pinned, offset: u64, part: &mut [u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < part.len() {
        let from = offset + done as u64;
        pinned.load(from)?;
        pinned.pieces(from, |piece| {
            let room = &mut part[done..];
            done += match piece {
                Piece::Private(bytes) => {
                    let count = bytes.len().min(room.len());
                    room[..count].copy_from_slice(&bytes[..count]);
                    count
                }
                Piece::Shared(window, at, bytes) => {
                    let count = (bytes as usize).min(room.len());
                    window.copy_out(at, &mut room[..count]);
                    count
                }
            };
            done < part.len()
        });
    }
    Ok(())
}
