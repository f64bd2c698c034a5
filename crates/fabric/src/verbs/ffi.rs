//! The part of libibverbs' binary interface that is used here, written by hand: plain structures
//! with asserted sizes and offsets, and the table of a device's own functions.
//!
//! Source: `infiniband/verbs.h` of rdma-core, `IBVERBS_1.1`: unchanged since 2008 but for fields
//! behind those named here; decision 0034.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// A global address of a port.
pub type Gid = [u8; 16];

/// Opaque to us: only pointers to it are handed about.
#[repr(C)]
pub struct DeviceHandle {
    _opaque: [u8; 0],
}

/// Opaque to us.
#[repr(C)]
pub struct Pd {
    _opaque: [u8; 0],
}

/// Opaque to us.
#[repr(C)]
pub struct Ah {
    _opaque: [u8; 0],
}

/// Functions of a device that are called without a detour; in the order of the table.
#[repr(C)]
pub struct ContextOps {
    before_poll_cq: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    before_post_send: [*mut c_void; 12],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    after_post_recv: [*mut c_void; 5],
}

#[repr(C)]
pub struct Context {
    device: *mut DeviceHandle,
    pub ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
}

#[repr(C)]
pub struct CompChannel {
    context: *mut Context,
    pub fd: c_int,
}

/// A completion queue; only its beginning.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// A queue pair; only its beginning.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    queues: [*mut c_void; 5],
    handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    fw_ver: [c_char; 64],
    guids: [u64; 2],
    pub max_mr_size: u64,
    page_size_cap: u64,
    ids: [u32; 3],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    unused: [c_int; 2],
    pub max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    more: [c_int; 14],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    end: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttr {
    pub state: c_int,
    max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub lid: u16,
    sm_lid: u16,
    rest: [u8; 8],
    pub link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// A piece of local memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// Where a one-sided operation goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrUd {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// One of these, by the opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrTarget {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
    pub ud: WrUd,
}

/// A work request for a send queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub wr: WrTarget,
    pub unused: [u64; 7],
}

/// A work request for a receive queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    end: u64,
}

/// Sizes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// What a queue pair is made with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// A path to a port. Aligned as the words of its address are there.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct AhAttr {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// What a queue pair is changed to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

const _: () = {
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(ContextOps, post_recv) == 208);
    assert!(offset_of!(Context, ops) == 8 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(CompChannel, fd) == 8);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<Mr>() == 48 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_mr_size) == 80);
    assert!(offset_of!(DeviceAttr, max_sge) == 120 && offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(DeviceAttr, atomic_cap) == 164);
    assert!(offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, gid_tbl_len) == 12);
    assert!(offset_of!(PortAttr, lid) == 34 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, wr) == 40);
    assert!(offset_of!(SendWr, imm_data) == 36);
    assert!(size_of::<RecvWr>() == 32);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, dlid) == 24);
    assert!(offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, timeout) == 130);
};

pub mod number {
    use std::ffi::{c_int, c_uint};

    pub const PORT_ACTIVE: c_int = 4;
    pub const ATOMIC_NONE: c_int = 0;
    pub const ATOMIC_GLOB: c_int = 2;

    pub const QPT_RC: c_int = 2;
    pub const QPT_UC: c_int = 3;
    pub const QPT_UD: c_int = 4;

    pub const QPS_RESET: c_int = 0;
    pub const QPS_INIT: c_int = 1;
    pub const QPS_RTR: c_int = 2;
    pub const QPS_RTS: c_int = 3;
    pub const QPS_ERR: c_int = 6;

    pub const QP_STATE: c_int = 1;
    pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
    pub const QP_PKEY_INDEX: c_int = 1 << 4;
    pub const QP_PORT: c_int = 1 << 5;
    pub const QP_QKEY: c_int = 1 << 6;
    pub const QP_AV: c_int = 1 << 7;
    pub const QP_PATH_MTU: c_int = 1 << 8;
    pub const QP_TIMEOUT: c_int = 1 << 9;
    pub const QP_RETRY_CNT: c_int = 1 << 10;
    pub const QP_RNR_RETRY: c_int = 1 << 11;
    pub const QP_RQ_PSN: c_int = 1 << 12;
    pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
    pub const QP_SQ_PSN: c_int = 1 << 16;
    pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const QP_DEST_QPN: c_int = 1 << 20;

    pub const ACCESS_LOCAL_WRITE: c_int = 1;
    pub const ACCESS_REMOTE_WRITE: c_int = 2;
    pub const ACCESS_REMOTE_READ: c_int = 4;
    pub const ACCESS_REMOTE_ATOMIC: c_int = 8;

    pub const WR_RDMA_WRITE: c_int = 0;
    pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
    pub const WR_SEND_WITH_IMM: c_int = 3;
    pub const WR_RDMA_READ: c_int = 4;
    pub const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
    pub const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;

    pub const SEND_FENCE: c_uint = 1;
    pub const SEND_SIGNALED: c_uint = 2;
    pub const SEND_INLINE: c_uint = 8;

    pub const WC_SUCCESS: c_int = 0;
    pub const WC_REM_ACCESS_ERR: c_int = 10;
    pub const WC_RECV: c_int = 128;
    pub const WC_RECV_RDMA_WITH_IMM: c_int = 129;
    pub const WC_GRH: c_uint = 1;
}
