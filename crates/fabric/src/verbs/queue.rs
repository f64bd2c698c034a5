//! Completion queues and queue pairs of the three kinds: made, connected, reset, posted to under
//! one doorbell a batch, and polled.
//!
//! The caller that posts names pieces of [`Region`]s; a queue pair stops using them when it is
//! dropped.

use super::VerbsError;
use super::device::{Device, Domain, RawDomain};
use super::ffi::{self, Gid, number};
use super::memory::Region;
use rustix::io::Errno;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// By so much fewer inline bytes a device is asked for when it refuses.
const LINE_BYTES: u32 = 64;
const POLLED: usize = 32;
/// The connection manager's default: how long a packet waits for its acknowledgement before it is
/// sent again, 4.096 µs · 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// How often it is sent again. Never 7: Soft-RoCE takes that for "without end".
pub const RETRIES: u8 = 6;
/// How often a message waits for a posted receive; they are counted by credits, so rarely any.
const RECEIVER_RETRIES: u8 = 6;
/// Code for 0.64 ms between these.
const RECEIVER_TIMER: u8 = 12;
/// Hops that a packet may make.
const HOPS: u8 = 64;
/// What datagrams of ours show one another: no secret, but a guard against strays.
pub const DATAGRAM_KEY: u32 = 0x7261_636b;
/// Bytes that precede every datagram in the receiver's memory, whatever the network.
pub const GRH_BYTES: u64 = 40;

/// What a queue pair promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// RC: every operation; in order, exactly once, or the queue pair fails.
    Reliable,
    /// UC: WRITE, WRITE_IMM and SEND; what is lost is lost.
    Unreliable,
    /// UD: SEND of at most a packet to any peer; without order.
    Datagram,
}

impl QueuePairKind {
    fn number(self) -> c_int {
        match self {
            QueuePairKind::Reliable => number::QPT_RC,
            QueuePairKind::Unreliable => number::QPT_UC,
            QueuePairKind::Datagram => number::QPT_UD,
        }
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    pub send: u32,
    pub receive: u32,
    /// Pieces of a work request.
    pub pieces: u32,
    /// Bytes that shall be able to travel inside a work request; a device that cannot do that is
    /// asked for less, and [`QueuePair::inline_bytes_max`] says what it granted.
    pub inline_bytes: u32,
}

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub gid: Gid,
    /// Its port within an InfiniBand subnet.
    pub lid: u16,
    pub number: u32,
    /// Number of its first packet.
    pub first_packet: u32,
    pub mtu_bytes: u32,
}

/// What a work request does.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// A message with four bytes beside it.
    Send {
        imm: u32,
    },
    /// The same to the owner of a datagram queue pair.
    SendTo {
        to: &'a Peer,
        imm: u32,
    },
    Write {
        address: u64,
        key: u32,
    },
    /// The same, and a message of four bytes and no more.
    WriteImm {
        address: u64,
        key: u32,
        imm: u32,
    },
    Read {
        address: u64,
        key: u32,
    },
    /// Compares and swaps a word there; the old one comes into the piece of 8 bytes.
    Cas {
        address: u64,
        key: u32,
        expected: u64,
        new: u64,
    },
    /// Adds to a word there, wrapping; the old one comes into the piece of 8 bytes.
    FetchAdd {
        address: u64,
        key: u32,
        n: u64,
    },
}

/// How a work request is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Success is completed as well.
    pub signalled: bool,
    /// The data is copied now, so that its memory is free again at once.
    pub inline: bool,
    /// Begins only when the READs and atomics before it have ended.
    pub fence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: u64,
    /// Whether it is of a receive. Of a failed one only the number says so.
    pub is_receive: bool,
    /// Whether its message was a WRITE_IMM.
    pub is_write: bool,
    pub status: CompletionStatus,
    /// Bytes received, with the [`GRH_BYTES`] of a datagram.
    pub bytes: u32,
    /// The four bytes beside it.
    pub imm: u32,
    pub source: u32,
    /// Whether [`GRH_BYTES`] at the beginning are a header and not just left free.
    pub has_header: bool,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    Done,
    /// The other side's region does not allow it, or is no more; nothing after it was executed.
    Access,
    /// Any other failure, or a work request behind a failed one; the device's number.
    Failed(i32),
}

pub struct Completions {
    raw: NonNull<ffi::Cq>,
    channel: NonNull<ffi::CompChannel>,
    device: Device,
    /// Events of the channel that are to be acknowledged at the end.
    events: u32,
}

// SAFETY: the library's functions may be called from any thread, and the poller has `&mut`.
unsafe impl Send for Completions {}

impl Completions {
    /// One for so many completions; more at once would be a bug. Errors: `Os`.
    pub fn new(device: &Device, entries: u32) -> Result<Completions, VerbsError> {
        let context = &device.context;
        let library = context.library;
        // SAFETY: the device is open.
        let channel = unsafe { (library.create_comp_channel)(context.raw.as_ptr()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| VerbsError::os("making a completion channel"))?;
        // SAFETY: the channel is there; the queue has no further context.
        let raw = unsafe {
            let none = std::ptr::null_mut();
            (library.create_cq)(context.raw.as_ptr(), entries as c_int, none, channel.as_ptr(), 0)
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = VerbsError::os("making a completion queue");
            // SAFETY: made above, used by no other code.
            unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Completions { raw, channel, device: device.clone(), events: 0 };
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(completions.fd(), flags).map_err(|error| VerbsError::Os {
            what: "a completion channel",
            code: error.raw_os_error(),
        })?;
        Ok(completions)
    }

    /// Appends completions that are there; how many. Never waits, makes no system call.
    pub fn poll(&mut self, to: &mut Vec<Completion>) -> usize {
        // SAFETY: plain numbers.
        let mut found: [ffi::Wc; POLLED] = unsafe { std::mem::zeroed() };
        let context = self.device.context.raw.as_ptr();
        // SAFETY: the table of an open device, the queue and room for so many completions.
        let count = unsafe {
            ((*context).ops.poll_cq)(self.raw.as_ptr(), POLLED as c_int, found.as_mut_ptr())
        };
        let count = usize::try_from(count).unwrap_or(0);
        to.extend(found[..count].iter().map(completion));
        count
    }

    /// A descriptor that can be read when a completion has come since [`Completions::arm`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there, and with it its descriptor, as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Asks to be told of the next completion by [`Completions::fd`]. To be polled once more after
    /// this, since what came before is not told.
    pub fn arm(&mut self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let library = self.device.context.library;
        // SAFETY: the channel does not block; both pointers are room for an answer.
        while unsafe { (library.get_cq_event)(self.channel.as_ptr(), &mut queue, &mut context) }
            == 0
        {
            self.events += 1;
        }
        let context = self.device.context.raw.as_ptr();
        // SAFETY: the table of an open device and its queue. A refusal would mean that the device
        // is gone, which completions tell.
        unsafe { ((*context).ops.req_notify_cq)(self.raw.as_ptr(), 0) };
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let library = self.device.context.library;
        // SAFETY: ours, and the queue pairs that use it hold it, so there is none. Events are
        // acknowledged, else this would wait for them.
        unsafe {
            (library.ack_cq_events)(self.raw.as_ptr(), self.events);
            (library.destroy_cq)(self.raw.as_ptr());
            (library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

fn completion(found: &ffi::Wc) -> Completion {
    let status = match found.status {
        number::WC_SUCCESS => CompletionStatus::Done,
        number::WC_REM_ACCESS_ERR => CompletionStatus::Access,
        code => CompletionStatus::Failed(code),
    };
    Completion {
        id: found.wr_id,
        is_receive: found.opcode & number::WC_RECV != 0,
        is_write: found.opcode == number::WC_RECV_RDMA_WITH_IMM,
        status,
        bytes: found.byte_len,
        imm: u32::from_be(found.imm_data),
        source: found.src_qp,
        has_header: found.wc_flags & number::WC_GRH != 0,
    }
}

pub struct Peer {
    raw: NonNull<ffi::Ah>,
    domain: Arc<RawDomain>,
    number: u32,
}

// SAFETY: as for `Completions`.
unsafe impl Send for Peer {}

impl Peer {
    /// The datagram queue pair at `to`. Errors: `Os`, above all that no peer answers there.
    pub fn new(device: &Device, domain: &Domain, to: &Address) -> Result<Peer, VerbsError> {
        let mut path = path_to(device, to);
        let Domain(domain) = domain;
        // SAFETY: the domain is there, the path filled in.
        let raw = unsafe { (domain.context.library.create_ah)(domain.raw.as_ptr(), &mut path) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::os("finding a datagram's way"))?;
        Ok(Peer { raw, domain: Arc::clone(domain), number: to.number })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: ours; what was posted has taken what it needs of it.
        unsafe { (self.domain.context.library.destroy_ah)(self.raw.as_ptr()) };
    }
}

fn path_to(device: &Device, to: &Address) -> ffi::AhAttr {
    ffi::AhAttr {
        dgid: to.gid,
        flow_label: 0,
        sgid_index: device.gid_index,
        hop_limit: HOPS,
        traffic_class: 0,
        dlid: to.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: device.port,
    }
}

/// A queue pair. Dropping it ends everything that is under way on it before it returns.
pub struct QueuePair {
    raw: NonNull<ffi::Qp>,
    domain: Arc<RawDomain>,
    device: Device,
    kind: QueuePairKind,
    depths: Depths,
    /// Number of our first packet.
    first_packet: u32,
    requests: Vec<ffi::SendWr>,
    pieces: Vec<ffi::Sge>,
    receives: Vec<(ffi::RecvWr, ffi::Sge)>,
}

// SAFETY: as for `Completions`; the pointers in the vectors only mean something inside a call.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// One that has its completions of both kinds come to `completions`, which has to outlive it,
    /// since the device refuses to end a queue that is in use. Not yet connected. Errors: `Os`.
    pub fn new(
        device: &Device,
        domain: &Domain,
        completions: &Completions,
        kind: QueuePairKind,
        depths: Depths,
    ) -> Result<QueuePair, VerbsError> {
        let Domain(domain) = domain;
        let cq = completions.raw.as_ptr();
        let attributes = ffi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: std::ptr::null_mut(),
            cap: ffi::QpCap {
                max_send_wr: depths.send,
                max_recv_wr: depths.receive,
                max_send_sge: depths.pieces,
                max_recv_sge: 1,
                max_inline_data: depths.inline_bytes,
            },
            qp_type: kind.number(),
            sq_sig_all: 0,
        };
        let (raw, inline_bytes) = ask_for_inline(depths.inline_bytes, |inline_bytes| {
            // What a device granted in other fields is of no interest, nor what it refused.
            let mut attributes = attributes;
            attributes.cap.max_inline_data = inline_bytes;
            let create = domain.context.library.create_qp;
            // SAFETY: domain and queue are there.
            let raw = unsafe { create(domain.raw.as_ptr(), &mut attributes) };
            let raw = NonNull::new(raw).ok_or_else(|| VerbsError::os("making a queue pair"))?;
            Ok((raw, attributes.cap.max_inline_data))
        })?;
        let depths = Depths { inline_bytes, ..depths };
        let mut pair = QueuePair {
            raw,
            domain: Arc::clone(domain),
            device: device.clone(),
            kind,
            depths,
            first_packet: 0,
            requests: Vec::with_capacity(depths.send as usize),
            pieces: Vec::with_capacity((depths.send * depths.pieces) as usize),
            receives: Vec::with_capacity(depths.receive as usize),
        };
        pair.begin()?;
        Ok(pair)
    }

    pub fn address(&self) -> Address {
        Address {
            gid: self.device.gid,
            lid: self.device.lid,
            number: self.number(),
            first_packet: self.first_packet,
            mtu_bytes: self.device.limits.mtu_bytes,
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: ours, and not ended.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Bytes that may travel inside a work request, as the device granted it: at least what it was
    /// asked for last.
    pub fn inline_bytes_max(&self) -> u32 {
        self.depths.inline_bytes
    }

    fn modify(&mut self, attributes: &mut ffi::QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let modify = self.domain.context.library.modify_qp;
        // SAFETY: the queue pair is ours; the mask names fields that are filled in.
        let code = unsafe { modify(self.raw.as_ptr(), attributes, mask) };
        VerbsError::check(code, "changing the state of a queue pair")
    }

    /// To the state in which receives may be posted.
    fn begin(&mut self) -> Result<(), VerbsError> {
        self.first_packet = first_packet();
        let mut attributes = no_attributes();
        attributes.qp_state = number::QPS_INIT;
        attributes.port_num = self.device.port;
        let mut mask = number::QP_STATE | number::QP_PKEY_INDEX | number::QP_PORT;
        if self.kind == QueuePairKind::Datagram {
            attributes.qkey = DATAGRAM_KEY;
            mask |= number::QP_QKEY;
        } else {
            attributes.qp_access_flags = (number::ACCESS_REMOTE_READ
                | number::ACCESS_REMOTE_WRITE
                | number::ACCESS_REMOTE_ATOMIC) as u32;
            if self.kind == QueuePairKind::Unreliable {
                attributes.qp_access_flags = number::ACCESS_REMOTE_WRITE as u32;
            }
            mask |= number::QP_ACCESS_FLAGS;
        }
        self.modify(&mut attributes, mask)
    }

    /// Connects it to the one at `to`, or makes a datagram queue pair ready. Errors: `Os`.
    pub fn connect(&mut self, to: &Address) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = number::QPS_RTR;
        let mut mask = number::QP_STATE;
        if self.kind != QueuePairKind::Datagram {
            attributes.ah_attr = path_to(&self.device, to);
            attributes.path_mtu = mtu_code(to.mtu_bytes.min(self.device.limits.mtu_bytes));
            attributes.dest_qp_num = to.number;
            attributes.rq_psn = to.first_packet;
            mask |= number::QP_AV | number::QP_PATH_MTU | number::QP_DEST_QPN | number::QP_RQ_PSN;
        }
        if self.kind == QueuePairKind::Reliable {
            attributes.max_dest_rd_atomic = self.device.limits.reads_max;
            attributes.min_rnr_timer = RECEIVER_TIMER;
            mask |= number::QP_MAX_DEST_RD_ATOMIC | number::QP_MIN_RNR_TIMER;
        }
        self.modify(&mut attributes, mask)?;
        let mut attributes = no_attributes();
        attributes.qp_state = number::QPS_RTS;
        attributes.sq_psn = self.first_packet;
        let mut mask = number::QP_STATE | number::QP_SQ_PSN;
        if self.kind == QueuePairKind::Reliable {
            attributes.timeout = TIMEOUT;
            attributes.retry_cnt = RETRIES;
            attributes.rnr_retry = RECEIVER_RETRIES;
            attributes.max_rd_atomic = self.device.limits.reads_max;
            mask |= number::QP_TIMEOUT
                | number::QP_RETRY_CNT
                | number::QP_RNR_RETRY
                | number::QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(&mut attributes, mask)
    }

    /// Ends all that is posted: each of it completes, if it has not, as failed. Errors: `Os`.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = number::QPS_ERR;
        self.modify(&mut attributes, number::QP_STATE)
    }

    /// Makes a failed queue pair, of which everything has completed, a new one with other numbers
    /// of packets; receives are to be posted and it is to be connected again. Errors: `Os`.
    pub fn renew(&mut self) -> Result<(), VerbsError> {
        let mut attributes = no_attributes();
        attributes.qp_state = number::QPS_RESET;
        self.modify(&mut attributes, number::QP_STATE)?;
        self.begin()
    }

    /// Adds a work request to the batch that [`QueuePair::ring`] posts. Each piece is a part of a
    /// region: offset and length, bytes. A caller that adds more than the queue is deep, or a
    /// datagram that is longer than a packet (`mtu_bytes`), has a bug, and panics.
    pub fn push<'a>(
        &mut self,
        id: u64,
        operation: &Operation<'_>,
        pieces: impl IntoIterator<Item = (&'a Region, u64, u64)>,
        flags: Flags,
    ) {
        assert!(self.requests.len() < self.depths.send as usize, "more than the queue is deep");
        let first = self.pieces.len();
        let pieces = pieces.into_iter().filter(|(_, _, bytes)| *bytes > 0);
        self.pieces.extend(
            pieces.map(|(region, offset, bytes)| region.piece(offset, bytes, flags.inline)),
        );
        let count = self.pieces.len() - first;
        assert!(count <= self.depths.pieces as usize, "{count} pieces");
        if let Operation::SendTo { .. } = operation {
            // The device would say that it has sent it, and send nothing.
            let bytes: u32 = self.pieces[first..].iter().map(|piece| piece.length).sum();
            let limit = self.device.limits.mtu_bytes;
            assert!(bytes <= limit, "a datagram of {bytes} bytes, at most {limit} fit a packet");
        }
        let (opcode, imm, wr) = encode(operation);
        let mut send_flags = 0;
        for (is_set, flag) in [
            (flags.signalled, number::SEND_SIGNALED),
            (flags.inline, number::SEND_INLINE),
            (flags.fence, number::SEND_FENCE),
        ] {
            send_flags |= if is_set { flag } else { 0 };
        }
        self.requests.push(ffi::SendWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            // Filled in when the batch is whole, as the pieces may still move.
            sg_list: std::ptr::null_mut(),
            num_sge: count as c_int,
            opcode,
            send_flags,
            imm_data: imm.to_be(),
            wr,
            unused: [0; 7],
        });
    }

    /// Posts the batch under one doorbell. The last of it is always completed, so that none is left
    /// without a completion. Errors: `Os`; the queue pair is then of no more use.
    pub fn ring(&mut self) -> Result<(), VerbsError> {
        let Some(last) = self.requests.last_mut() else { return Ok(()) };
        last.send_flags |= number::SEND_SIGNALED;
        let mut pieces = self.pieces.as_mut_ptr();
        let mut next = std::ptr::null_mut();
        for request in &mut self.requests {
            request.sg_list = pieces;
            // SAFETY: the counts of all requests add up to the length of the vector.
            pieces = unsafe { pieces.add(request.num_sge as usize) };
        }
        for request in self.requests.iter_mut().rev() {
            request.next = next;
            next = request;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a list of requests of which each names its pieces, all in our vectors; the
        // device copies them before it returns. Each piece lies in a region that was registered.
        let code = unsafe {
            let context = self.raw.as_ref().context;
            ((*context).ops.post_send)(self.raw.as_ptr(), next, &mut bad)
        };
        self.requests.clear();
        self.pieces.clear();
        VerbsError::check(code, "posting to a send queue")
    }

    /// Posts receives, all at once, each into one piece of a region. Errors: `Os`.
    pub fn receive<'a>(
        &mut self,
        receives: impl IntoIterator<Item = (u64, (&'a Region, u64, u64))>,
    ) -> Result<(), VerbsError> {
        self.receives.clear();
        for (id, (region, offset, bytes)) in receives {
            let (sg_list, next) = (std::ptr::null_mut(), std::ptr::null_mut());
            let request = ffi::RecvWr { wr_id: id, next, sg_list, num_sge: 1 };
            self.receives.push((request, region.piece(offset, bytes, false)));
        }
        let mut next = std::ptr::null_mut();
        for (request, piece) in self.receives.iter_mut().rev() {
            (request.sg_list, request.next) = (piece, next);
            next = request;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `ring`.
        let code = unsafe {
            let context = self.raw.as_ref().context;
            ((*context).ops.post_recv)(self.raw.as_ptr(), next, &mut bad)
        };
        VerbsError::check(code, "posting receives")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: ours, ended once. When it returns, the device has forgotten what was posted.
        let code = unsafe { (self.domain.context.library.destroy_qp)(self.raw.as_ptr()) };
        if code != 0 {
            rackpool_mem::log::abort(format_args!(
                "a queue pair could not be ended ({code}); the process ends"
            ));
        }
    }
}

fn encode(operation: &Operation<'_>) -> (c_int, u32, ffi::WrTarget) {
    let rdma = |remote_addr, rkey| ffi::WrTarget { rdma: ffi::WrRdma { remote_addr, rkey } };
    let nowhere = ffi::WrTarget {
        atomic: ffi::WrAtomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
    };
    match *operation {
        Operation::Send { imm } => (number::WR_SEND_WITH_IMM, imm, nowhere),
        Operation::SendTo { to, imm } => {
            let ud =
                ffi::WrUd { ah: to.raw.as_ptr(), remote_qpn: to.number, remote_qkey: DATAGRAM_KEY };
            (number::WR_SEND_WITH_IMM, imm, ffi::WrTarget { ud })
        }
        Operation::Write { address, key } => (number::WR_RDMA_WRITE, 0, rdma(address, key)),
        Operation::WriteImm { address, key, imm } => {
            (number::WR_RDMA_WRITE_WITH_IMM, imm, rdma(address, key))
        }
        Operation::Read { address, key } => (number::WR_RDMA_READ, 0, rdma(address, key)),
        Operation::Cas { address, key, expected, new } => {
            let atomic =
                ffi::WrAtomic { remote_addr: address, compare_add: expected, swap: new, rkey: key };
            (number::WR_ATOMIC_CMP_AND_SWP, 0, ffi::WrTarget { atomic })
        }
        Operation::FetchAdd { address, key, n } => {
            let atomic = ffi::WrAtomic { remote_addr: address, compare_add: n, swap: 0, rkey: key };
            (number::WR_ATOMIC_FETCH_AND_ADD, 0, ffi::WrTarget { atomic })
        }
    }
}

/// What `make` makes with as many inline bytes as the device takes, up to so many: one that refuses
/// is asked for a line less, down to none. Errors: the first refusal, if all are refused or it has
/// another reason.
fn ask_for_inline<T>(
    inline_bytes: u32,
    mut make: impl FnMut(u32) -> Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    let refused = match make(inline_bytes) {
        Err(error) if is_too_much(&error) => error,
        made => return made,
    };
    for lines in (0..inline_bytes.div_ceil(LINE_BYTES)).rev() {
        match make(lines * LINE_BYTES) {
            Err(error) if is_too_much(&error) => {}
            made => return made,
        }
    }
    Err(refused)
}

/// Whether a device may have refused because of the sizes.
fn is_too_much(error: &VerbsError) -> bool {
    let codes = [Errno::INVAL, Errno::NOMEM].map(Errno::raw_os_error);
    matches!(error, VerbsError::Os { code, .. } if codes.contains(code))
}

fn no_attributes() -> ffi::QpAttr {
    // SAFETY: plain numbers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// The interface's number of an MTU: 1 is 256 bytes, 5 is 4096.
fn mtu_code(bytes: u32) -> c_int {
    (bytes.clamp(256, 4096).ilog2() - 7) as c_int
}

/// Numbers of first packets differ, so that packets of an earlier life are seen to be old.
fn first_packet() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    random as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_have_the_interfaces_numbers() {
        let codes = [256, 512, 1024, 2048, 4096].map(mtu_code);
        assert_eq!(codes, [1, 2, 3, 4, 5]);
        assert_eq!(mtu_code(1500), 3);
    }

    #[test]
    fn a_device_is_asked_for_fewer_inline_bytes_until_it_grants_them() {
        let refusal = |code| VerbsError::Os { what: "a queue pair", code };
        for (asked, possible, asks) in [
            (256, 1000, &[256][..]),
            (256, 220, &[256, 192]),
            (256, 64, &[256, 192, 128, 64]),
            (100, 70, &[100, 64]),
            (256, 0, &[256, 192, 128, 64, 0]),
            (0, 0, &[0]),
        ] {
            let mut seen = Vec::new();
            let granted = ask_for_inline(asked, |bytes| {
                seen.push(bytes);
                if bytes <= possible { Ok(bytes) } else { Err(refusal(22)) }
            });
            assert_eq!((granted.unwrap(), &seen[..]), (seen[seen.len() - 1], asks));
        }
        let mut asks = 0;
        let never = ask_for_inline(256, |bytes| -> Result<(), _> {
            asks += 1;
            Err(refusal(if bytes == 256 { 12 } else { 22 }))
        });
        assert!(matches!(never, Err(VerbsError::Os { code: 12, .. })) && asks == 5);
        let other = ask_for_inline(256, |_| -> Result<(), _> { Err(refusal(1)) });
        assert!(matches!(other, Err(VerbsError::Os { code: 1, .. })));
    }

    #[test]
    fn the_kind_of_a_completion_is_told_by_its_opcode() {
        // SAFETY: plain numbers.
        let mut found: ffi::Wc = unsafe { std::mem::zeroed() };
        found.opcode = number::WC_RECV_RDMA_WITH_IMM;
        found.imm_data = 7u32.to_be();
        let told = completion(&found);
        assert_eq!((told.is_receive, told.is_write, told.imm), (true, true, 7));
        found.status = number::WC_REM_ACCESS_ERR;
        assert_eq!(completion(&found).status, CompletionStatus::Access);
    }
}
