//! Where things lie. A server's page, which all its clients may read and write:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | request slots: `client * window + lane` |
//! | behind, at a multiple of 4 KiB | the table, or as many unused bytes |
//!
//! A client's page, into which the server writes answers, has [`SLOT_BYTES`] for each lane: an
//! acknowledgement is the first byte, an echo ends with the slot. Also here: the greetings, four
//! words each way, and what a page is made of.

use super::error::{Error, Result};
use super::spec::Spec;
use rackpool_core::addr::{FrameIndex, Generation, PageGeometry};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{
    BufId, Fabric, Mem, PeerId, PostError, RemoteAddr, Sge, Verb, WorkRequest,
};
use rackpool_fabric::LocalBuffers;
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::Window;
use rackpool_sim::repro::herd::baselines::{LANES_MAX, RequestRegion, SLOT_BYTES};

/// Bytes of a client's page.
pub(super) const ANSWER_PAGE_BYTES: u64 = LANES_MAX as u64 * SLOT_BYTES;
/// Bytes of a lane's part of a client's buffer: what READs bring, then the request.
pub(super) const READ_BYTES: u64 = 8192;
pub(super) const LANE_BYTES: u64 = READ_BYTES + SLOT_BYTES;
/// Times that a full send queue is polled until it has room.
const BUSY_POLLS_MAX: u32 = 1_000_000;

/// Where things lie in a server's page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    region: RequestRegion,
    pub table_at: u64,
    /// Bytes of the table, or of what is read instead.
    pub table_bytes: u64,
}

impl Places {
    pub(super) fn of(spec: &Spec) -> Places {
        let region = RequestRegion { clients: spec.clients, window: spec.window };
        let slots = u64::from(spec.clients) * u64::from(spec.window);
        let table_at = (slots * SLOT_BYTES).next_multiple_of(4096);
        let table_bytes = spec.table().map_or(0, |table| table.bytes());
        Places { region, table_at, table_bytes }
    }

    /// Where the slot of a client's lane begins.
    pub(super) fn slot_at(&self, client: u32, lane: u8) -> u64 {
        self.region.slot(0, client, lane.into()) * SLOT_BYTES
    }

    /// The page of the server.
    pub(super) fn layout(&self) -> RegionLayout {
        one_page((self.table_at + self.table_bytes).next_power_of_two().max(4096))
    }
}

/// One page of so many bytes, a power of two.
pub(super) fn one_page(bytes: u64) -> RegionLayout {
    let pages = PageGeometry::from_page_bytes(bytes).expect("bounded, and a power of two");
    RegionLayout { pages, frame_count: 1 }
}

/// Bytes of the memory with one page and its table of generations behind it.
pub(super) fn page_and_table_bytes(layout: &RegionLayout) -> u64 {
    layout.pages_bytes() + layout.table_bytes()
}

/// That memory as page and table.
pub(super) fn split_page(memory: &Window, layout: &RegionLayout) -> (Window, Window) {
    let bytes = layout.pages_bytes();
    (memory.slice(0, bytes), memory.slice(bytes, layout.table_bytes()))
}

/// Says under which key the page may be touched.
pub(super) fn open_page(table: &Window, key: Generation) {
    table.store(table_word(FrameIndex(0)), key.0);
}

/// What a client says first, and what it is answered: three words behind the magic one.
pub(super) fn greeting(words: [u64; 3]) -> Vec<u8> {
    [MAGIC, words[0], words[1], words[2]].iter().flat_map(|word| word.to_le_bytes()).collect()
}

const MAGIC: u64 = u64::from_le_bytes(*b"rpbase\0\x01");

/// The words of a greeting.
pub(super) fn read_greeting(message: &[u8]) -> Result<[u64; 3]> {
    let corrupt = Error::Corrupt { what: "its greeting" };
    let (chunks, []) = message.as_chunks::<8>() else { return Err(corrupt) };
    match chunks.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()[..] {
        [MAGIC, one, two, three] => Ok([one, two, three]),
        _ => Err(corrupt),
    }
}

/// A random key, which no other page has.
pub(super) fn random_key() -> Result<Generation> {
    let random = rackpool_mem::process::random_u64();
    let random = random.map_err(super::error::io_error("the system's random numbers"))?;
    Ok(Generation(random >> 16 | 1))
}

pub(super) fn now_ns() -> u64 {
    monotonic_ns()
}

/// Posts bytes that lie in a buffer, unsignalled; a full queue is polled until it has room, and
/// what comes meanwhile is appended to `events`.
pub(super) fn post<E: Fabric + LocalBuffers>(
    end: &mut E,
    peer: PeerId,
    work: &WorkRequest<'_>,
    events: &mut Vec<rackpool_core::seam::FabricEvent>,
) -> Result<()> {
    for _ in 0..BUSY_POLLS_MAX {
        match end.post(peer, std::slice::from_ref(work)) {
            Ok(()) => return Ok(()),
            Err((_, PostError::Down)) => return Err(Error::Gone),
            Err((_, PostError::Busy)) => {
                end.poll(monotonic_ns(), events);
                std::thread::yield_now();
            }
        }
    }
    Err(Error::Silent { waited_ms: 0 })
}

/// Bytes for a peer, and where in a buffer they are put to be sent.
pub(super) struct Outgoing<'a> {
    pub peer: PeerId,
    pub buf: BufId,
    pub offset: u64,
    /// Where a WRITE goes; without it the bytes are sent.
    pub at: Option<RemoteAddr>,
    /// The number of the work request.
    pub id: u64,
    pub bytes: &'a [u8],
}

/// Copies bytes into a buffer and posts them, by WRITE if there is a place, else by SEND.
pub(super) fn post_bytes<E: Fabric + LocalBuffers>(
    end: &mut E,
    outgoing: &Outgoing<'_>,
    events: &mut Vec<rackpool_core::seam::FabricEvent>,
) -> Result<()> {
    let Outgoing { peer, buf, offset, at, id, bytes } = *outgoing;
    end.buffer_mut(buf)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    let local = [Sge { buf, offset, bytes: bytes.len() as u64 }];
    let verb = at.map_or(Verb::Send, Verb::Write);
    let work = WorkRequest { id, verb, local: &local, signalled: false };
    post(end, peer, &work, events)
}
