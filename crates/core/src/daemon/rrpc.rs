//! Calls for data: the home looks up where it is, and sends it, writes it to where the caller
//! said, or says where it is to be read.
//!
//! In: `Fetch` and `Store` of clients. Out: `Fetched` and `Stored`, and [`WriteBack`]s for the
//! fabric. Called by the daemon's `on_request`.
//!
//! Ordering rule: this engine alone frees and moves the rack's pages, and does nothing else while
//! it copies. So a page that is at home when a copy begins is at home when it ends, and nothing is
//! announced. A write-back is executed later, by the fabric, under the access rules of
//! [`target`](crate::target): if the page has gone by then, the caller gets the other answer.
//! Source: Rcmp §5.5; decision 0028.

use crate::addr::{FrameIndex, GAddr};
use crate::coherence;
use crate::constants::SLOTS_MAX;
use crate::daemon::frames::FrameEntry;
use crate::daemon::{ClientId, Daemon, Outbox, World, word_of};
use crate::error::{Error, Result};
use crate::rrpc::{
    Bytes, Carried, Fetch, FetchExtent, Fetched, INLINE_BYTES_MAX, OBJECT_PREFIX_BYTES,
};
use crate::seam::{ByteRange, Exposure, Mem, Mutation, Probe, RemoteAddr};
use crate::wire::{PageHome, Reply, ReplyFrame};

/// What the fabric has to do before a client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBack {
    /// Where to, at the client's end of its connection.
    pub to: Exposure,
    /// What: memory of this rack, as an initiator would name it.
    pub from: RemoteAddr,
    /// How much of it; no more than is exposed.
    pub bytes: u64,
    /// What the client is told after the last byte.
    pub done: ReplyFrame,
    /// What the client is told instead if the key was not valid to the end.
    pub refused: ReplyFrame,
}

/// Where data of a call lies in this rack.
struct LocatedData {
    home: PageHome,
    /// Offset in the pages section.
    offset: u64,
    bytes: u64,
    /// Whether it is all in one page.
    is_whole: bool,
}

impl Daemon {
    /// Answers a call for data; `None` if the fabric does.
    pub(super) fn fetch<W: World>(
        &mut self,
        record: u32,
        seq: u64,
        fetch: &Fetch,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        let place = match self.place_of(fetch, world) {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        let LocatedData { home, offset, bytes, is_whole } = place;
        let reply = |carried| Ok(Reply::Fetched(Fetched { home, bytes, carried }));
        if is_whole && bytes <= u64::from(fetch.inline_bytes_max.min(INLINE_BYTES_MAX)) {
            let mut data = vec![0; bytes as usize];
            let read = |pages: &W::Persistent| pages.copy_out(offset, &mut data);
            coherence::reading(world.pages(), ByteRange { offset, bytes }, read);
            return Some(reply(Carried::Inline(Bytes(data))));
        }
        let fits = |to: &Exposure| is_whole && bytes <= to.bytes && record >= SLOTS_MAX;
        let Some(to) = fetch.into.filter(fits) else {
            return Some(reply(Carried::Not));
        };
        let from = RemoteAddr { offset, key: home.generation };
        let frame = |carried| ReplyFrame { seq, reply: reply(carried) };
        let (done, refused) = (frame(Carried::Written), frame(Carried::Not));
        self.answers.note(&done.reply);
        world
            .outbox()
            .write_back(ClientId::of_record(record), WriteBack { to, from, bytes, done, refused });
        None
    }

    /// Writes the bytes of a call.
    pub(super) fn store<W: World>(
        &mut self,
        addr: GAddr,
        data: &[u8],
        world: &mut W,
    ) -> Result<Reply> {
        let (home, offset, _) = self.home_of(addr, world)?;
        self.check_in_page(addr, data.len() as u64)?;
        let range = ByteRange { offset, bytes: data.len() as u64 };
        coherence::writing(world.pages(), range, |pages| pages.copy_in(offset, data));
        self.wrote(addr, data, world);
        Ok(Reply::Stored(home))
    }

    fn place_of<W: World>(&self, fetch: &Fetch, world: &W) -> Result<LocatedData> {
        let addr = fetch.addr;
        let (home, offset, entry) = self.home_of(addr, world)?;
        match fetch.extent {
            FetchExtent::Bytes(bytes) => {
                self.check_in_page(addr, bytes)?;
                Ok(LocatedData { home, offset, bytes, is_whole: true })
            }
            FetchExtent::Object => {
                let align_bytes = OBJECT_PREFIX_BYTES;
                if !addr.0.is_multiple_of(align_bytes) {
                    return Err(Error::Misaligned { addr, align_bytes });
                }
                let room = self.room_at(addr, home.frame, &entry, world)?;
                // What a client wrote; read once.
                let bytes = word_of(world.pages(), offset);
                let needed = bytes.saturating_add(OBJECT_PREFIX_BYTES);
                if needed > room {
                    return Err(Error::OutOfBounds { addr, bytes: needed, limit_bytes: room });
                }
                let is_whole = self.check_in_page(addr, needed).is_ok();
                Ok(LocatedData { home, offset: offset + OBJECT_PREFIX_BYTES, bytes, is_whole })
            }
        }
    }

    /// The page of an address, if it is at home here: where it is, the address's offset in the
    /// pages section, and the frame's entry.
    pub(super) fn home_of<W: World>(
        &self,
        addr: GAddr,
        world: &W,
    ) -> Result<(PageHome, u64, FrameEntry)> {
        let page = self.layout.pages.page(addr);
        let mut found = self.frames.home(world.private(), page);
        if found.is_none() && world.private().mutated(Mutation::FetchUnchecked) {
            let frame = self.frames.by_page.get(&page.0).copied();
            found = frame.map(|frame| (frame, FrameEntry::load_checked(world.private(), frame)));
        }
        let missing = || self.not_at_home(addr, Error::NotMapped { addr });
        let (frame, entry) = found.ok_or_else(missing)?;
        let (frame, generation) = (FrameIndex(frame), self.key_of(page, entry.generation));
        let offset = self.layout.frame_offset(frame) + self.layout.pages.offset(addr);
        Ok((PageHome { page, rack: self.rack, frame, generation }, offset, entry))
    }

    /// Where a word lies that gets or loses an address. Its page has no replica: it was recalled
    /// before, and if it has got one since, the client asks again.
    pub(super) fn locate_named<W: World>(&self, addr: GAddr, world: &W) -> Result<u64> {
        if self.replicas.is_shared(self.layout.pages.page(addr)) {
            return Err(Error::Moving { addr, retries: 0 });
        }
        self.locate_word(addr, world)
    }

    /// Where the word of an atomic lies in the pages section.
    pub(super) fn locate_word<W: World>(&self, addr: GAddr, world: &W) -> Result<u64> {
        if !addr.0.is_multiple_of(8) {
            return Err(Error::Misaligned { addr, align_bytes: 8 });
        }
        let pages = self.layout.pages;
        let offset = pages.offset(addr);
        let home = self.frames.home(world.private(), pages.page(addr));
        let missing = || self.not_at_home(addr, Error::NotMapped { addr });
        let (frame, entry) = home.ok_or_else(missing)?;
        if entry.shift != 0 {
            let index = (offset >> entry.shift) as u32;
            let object = self.slabs.release(world.private(), frame, index);
            object.ok_or(Error::NotMapped { addr })?;
        }
        Ok(self.layout.frame_offset(FrameIndex(frame)) + offset)
    }

    pub(super) fn check_in_page(&self, addr: GAddr, bytes: u64) -> Result<()> {
        let limit_bytes = self.layout.pages.page_bytes() - self.layout.pages.offset(addr);
        if bytes > limit_bytes {
            return Err(Error::OutOfBounds { addr, bytes, limit_bytes });
        }
        Ok(())
    }

    /// Bytes from an address to the end of its allocation.
    fn room_at<W: World>(
        &self,
        addr: GAddr,
        frame: FrameIndex,
        entry: &FrameEntry,
        world: &W,
    ) -> Result<u64> {
        let pages = self.layout.pages;
        let offset = pages.offset(addr);
        if entry.shift > 0 {
            let index = (offset >> entry.shift) as u32;
            let live = self.slabs.release(world.private(), frame.0, index);
            live.ok_or(Error::NotMapped { addr })?;
            return Ok(((u64::from(index) + 1) << entry.shift) - offset);
        }
        // In a run's first page its length, in later ones how far that one is.
        let before = if entry.first { 0 } else { u64::from(entry.span) };
        let span = match entry.first {
            true => u64::from(entry.span),
            false => {
                let first = crate::addr::PageId(entry.page.0.wrapping_sub(before));
                let found = self.frames.home(world.private(), first);
                let (_, first) = found.ok_or(Error::NotMapped { addr })?;
                u64::from(first.span)
            }
        };
        let left = span.checked_sub(before).ok_or(Error::NotMapped { addr })?;
        Ok(left * pages.page_bytes() - offset)
    }
}
