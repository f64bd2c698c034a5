//! The work requests of an initiator on one connection, or one channel of it: kept in the order of
//! posting, ended in that order, flushed when the connection is over.
//!
//! Owns what every fabric knows of a work request; `S` is what one fabric knows besides. In: work
//! requests. Out: completions for their users. Used by the connections of `tcp` and `verbs` and by
//! the channels of `shared` and `proxied`. No I/O; no allocation once it has been full.
//!
//! Work requests are numbered from 0 in the order of posting, so that a number is never used twice.

use crate::constants::FABRIC_SGES_MAX;
use crate::seam::{BufId, FabricEvent, PeerId, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus};
use std::collections::VecDeque;

const NO_PIECE: Sge = Sge { buf: BufId(0), offset: 0, bytes: 0 };

/// A work request that has not ended.
pub struct Work<S> {
    pub id: u64,
    pub verb: Verb,
    pub signalled: bool,
    /// Bytes of all local pieces.
    pub bytes: u64,
    /// Its local memory is gone: data of a READ is dropped.
    pub discard: bool,
    pieces: [Sge; FABRIC_SGES_MAX],
    piece_count: u8,
    pub state: S,
}

impl<S> Work<S> {
    /// Panics if there are more local pieces than may be.
    pub fn new(request: &WorkRequest<'_>, state: S) -> Self {
        let WorkRequest { id, verb, local, signalled } = *request;
        let mut pieces = [NO_PIECE; FABRIC_SGES_MAX];
        pieces[..local.len()].copy_from_slice(local);
        let bytes = local.iter().map(|piece| piece.bytes).sum();
        let piece_count = local.len() as u8;
        Self { id, verb, signalled, bytes, discard: false, pieces, piece_count, state }
    }

    pub fn pieces(&self) -> &[Sge] {
        &self.pieces[..usize::from(self.piece_count)]
    }

    /// Has it name another buffer with the same bytes, or none.
    pub fn replace_pieces(&mut self, with: Option<BufId>) {
        self.pieces[0] = with.map_or(NO_PIECE, |buf| Sge { buf, offset: 0, bytes: self.bytes });
        self.piece_count = u8::from(with.is_some());
    }

    /// The parts of the local pieces that bytes `from..from + bytes` of the data lie in, in order.
    pub fn parts(&self, from: u64, bytes: u64) -> impl Iterator<Item = Sge> + use<'_, S> {
        let (end, mut start) = (from.saturating_add(bytes), 0);
        self.pieces().iter().filter_map(move |piece| {
            let (at, until) = (from.max(start), end.min(start + piece.bytes));
            let offset = piece.offset + at.saturating_sub(start);
            start += piece.bytes;
            (at < until).then(|| Sge { buf: piece.buf, offset, bytes: until - at })
        })
    }

    /// The place at the target; `None` for a SEND.
    pub fn at(&self) -> Option<RemoteAddr> {
        match self.verb {
            Verb::Read(at) | Verb::Write(at) | Verb::WriteImm(at, _) => Some(at),
            Verb::Cas { at, .. } | Verb::FetchAdd { at, .. } => Some(at),
            Verb::Send => None,
        }
    }

    /// The rest of the piece that byte `done` of the data belongs to, at most `limit` bytes.
    /// Panics if the local pieces are shorter.
    pub fn piece_at(&self, done: u64, limit: u64) -> Sge {
        self.parts(done, limit).next().expect("more data than the local pieces hold")
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.verb, Verb::Cas { .. } | Verb::FetchAdd { .. })
    }

    pub fn is_read(&self) -> bool {
        matches!(self.verb, Verb::Read(_))
    }

    /// Whether it names a buffer for which `named` holds.
    pub fn names(&self, named: impl Fn(BufId) -> bool) -> bool {
        self.pieces().iter().any(|piece| named(piece.buf))
    }

    /// Whether it names bytes of `piece`.
    pub fn overlaps(&self, piece: &Sge) -> bool {
        let end = |piece: &Sge| piece.offset + piece.bytes;
        self.pieces()
            .iter()
            .any(|own| own.buf == piece.buf && own.offset < end(piece) && piece.offset < end(own))
    }

    /// Tells its user how it ended, if that is to be told; whether it was.
    pub fn tell(
        &self,
        peer: PeerId,
        status: WorkStatus,
        events: &mut impl Extend<FabricEvent>,
    ) -> bool {
        let is_told = self.signalled || !matches!(status, WorkStatus::Done(_));
        let event = FabricEvent::Completed { peer, id: self.id, status };
        events.extend(is_told.then_some(event));
        is_told
    }
}

/// The queue; see the module.
pub struct WorkQueue<S> {
    queue: VecDeque<Work<S>>,
    /// Number of the oldest work request.
    first: u64,
}

impl<S> WorkQueue<S> {
    /// One with room for so many without an allocation.
    pub fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::with_capacity(capacity), first: 0 }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a work request; its number.
    pub fn push(&mut self, work: Work<S>) -> u64 {
        self.queue.push_back(work);
        self.number(self.queue.len() - 1)
    }

    /// Number of the work request in a place, counted from the oldest.
    pub fn number(&self, place: usize) -> u64 {
        self.first + place as u64
    }

    /// The work request in a place.
    pub fn at(&self, place: usize) -> Option<&Work<S>> {
        self.queue.get(place)
    }

    pub fn at_mut(&mut self, place: usize) -> Option<&mut Work<S>> {
        self.queue.get_mut(place)
    }

    /// A work request that has not ended, by its number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Work<S>> {
        self.at_mut(number.checked_sub(self.first)? as usize)
    }

    pub fn iter_from(&self, place: usize) -> impl Iterator<Item = &Work<S>> {
        self.queue.range(place.min(self.queue.len())..)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Work<S>> {
        self.queue.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Work<S>> {
        self.queue.iter_mut()
    }

    /// Takes the oldest work request out, which has ended.
    pub fn pop(&mut self) -> Option<Work<S>> {
        let work = self.queue.pop_front()?;
        self.first += 1;
        Some(work)
    }

    /// The connection is over: takes all out and tells their users what `status` says of each;
    /// `None` for work without a user.
    pub fn flush(
        &mut self,
        peer: PeerId,
        mut status: impl FnMut(usize, &Work<S>) -> Option<WorkStatus>,
        events: &mut impl Extend<FabricEvent>,
    ) {
        self.first += self.queue.len() as u64;
        for (place, work) in self.queue.drain(..).enumerate() {
            if let Some(status) = status(place, &work) {
                work.tell(peer, status, events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Generation;

    fn piece(buf: u32, offset: u64, bytes: u64) -> Sge {
        Sge { buf: BufId(buf), offset, bytes }
    }

    fn request(id: u64, local: &[Sge], signalled: bool) -> WorkRequest<'_> {
        let verb = Verb::Write(RemoteAddr { offset: 8, key: Generation(1) });
        WorkRequest { id, verb, local, signalled }
    }

    fn told(events: &[FabricEvent]) -> Vec<(u64, WorkStatus)> {
        let one = |event: &FabricEvent| match event {
            FabricEvent::Completed { peer: PeerId(3), id, status } => (*id, *status),
            other => panic!("{other:?}"),
        };
        events.iter().map(one).collect()
    }

    #[test]
    fn numbers_stay_while_the_oldest_leave_and_are_not_used_again() {
        let mut queue = WorkQueue::new(4);
        let numbers: Vec<u64> =
            (0..3).map(|id| queue.push(Work::new(&request(id, &[], true), id))).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(queue.pop().map(|work| work.id), Some(0));
        assert!(queue.get_mut(0).is_none() && queue.get_mut(3).is_none());
        assert_eq!(queue.get_mut(2).map(|work| work.state), Some(2));
        assert_eq!((queue.number(0), queue.at(0).map(|work| work.id)), (1, Some(1)));
        assert_eq!(queue.iter_from(1).map(|work| work.id).collect::<Vec<_>>(), [2]);
        assert_eq!(queue.iter_from(9).count(), 0);
        queue.flush(PeerId(3), |_, _| None, &mut Vec::new());
        assert!(queue.is_empty() && queue.pop().is_none());
        assert_eq!(queue.push(Work::new(&request(9, &[], true), 9)), 3);
    }

    #[test]
    fn users_hear_of_what_they_asked_for_and_of_every_failure() {
        let mut events = Vec::new();
        for (signalled, status) in
            [(true, WorkStatus::Done(7)), (false, WorkStatus::Done(7)), (false, WorkStatus::BadKey)]
        {
            Work::new(&request(5, &[], signalled), ()).tell(PeerId(3), status, &mut events);
        }
        assert_eq!(told(&events), [(5, WorkStatus::Done(7)), (5, WorkStatus::BadKey)]);
        let mut queue = WorkQueue::new(0);
        for id in 0..3 {
            queue.push(Work::new(&request(id, &[], false), id == 1));
        }
        events.clear();
        let never = WorkStatus::Flushed { executed: Some(false) };
        let status = |_: usize, work: &Work<bool>| (!work.state).then_some(never);
        queue.flush(PeerId(3), status, &mut events);
        assert_eq!(told(&events), [(0, never), (2, never)]);
    }

    #[test]
    fn parts_are_those_of_the_pieces_and_skip_empty_ones() {
        let pieces = [piece(1, 100, 10), piece(2, 0, 0), piece(3, 5, 20)];
        let mut work = Work::new(&request(1, &pieces, true), ());
        let parts = |work: &Work<()>, from, bytes| work.parts(from, bytes).collect::<Vec<_>>();
        assert_eq!(work.bytes, 30);
        assert_eq!(parts(&work, 0, 30), [piece(1, 100, 10), piece(3, 5, 20)]);
        assert_eq!(parts(&work, 4, 3), [piece(1, 104, 3)]);
        assert_eq!(parts(&work, 9, 2), [piece(1, 109, 1), piece(3, 5, 1)]);
        assert_eq!(parts(&work, 12, u64::MAX), [piece(3, 7, 18)]);
        assert_eq!(parts(&work, 30, 5), []);
        assert!(work.names(|buf| buf == BufId(3)) && !work.names(|buf| buf == BufId(4)));
        assert!(work.overlaps(&piece(3, 24, 9)) && !work.overlaps(&piece(3, 25, 9)));
        work.replace_pieces(Some(BufId(9)));
        assert_eq!(parts(&work, 0, 30), [piece(9, 0, 30)]);
        work.replace_pieces(None);
        assert!(work.pieces().is_empty() && work.bytes == 30);
    }
}
