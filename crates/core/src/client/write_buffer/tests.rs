//! Tests of the write buffer: its pieces, its bounds, and random lives beside plain memory.

use super::*;
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn buffer(half_bytes: u32) -> WriteBuffer {
    WriteBuffer::new(PageGeometry::from_page_bytes(PAGE).unwrap(), half_bytes)
}

fn pieces(buffer: &WriteBuffer) -> Vec<(u64, u64)> {
    buffer.pieces().iter().map(|piece| (piece.addr.0, piece.bytes)).collect()
}

#[test]
fn adjacent_writes_leave_as_one_piece_in_order_of_address() {
    let mut buffer = buffer(1 << 16);
    let mut packed = vec![0; buffer.half_bytes()];
    for line in [3u64, 1, 0, 2, 9, 8] {
        assert!(buffer.put(GAddr(PAGE + 64 * line), &[line as u8; 64]));
    }
    assert_eq!(buffer.leave(&mut packed), 6 * 64);
    assert_eq!(pieces(&buffer), [(PAGE, 256), (PAGE + 512, 128)]);
    assert_eq!(buffer.offsets(), [0, 256]);
    let lines: Vec<u8> = packed.chunks(64).take(6).map(|line| line[63]).collect();
    assert_eq!(lines, [0, 1, 2, 3, 8, 9]);
}

#[test]
fn no_piece_is_longer_than_targets_apply_at_once_or_crosses_a_page() {
    let mut buffer = buffer(1 << 16);
    let mut packed = vec![0; buffer.half_bytes()];
    let first = 5 * PAGE - 192;
    (0..160).for_each(|line| assert!(buffer.put(GAddr(first + 64 * line), &[1; 64])));
    buffer.leave(&mut packed);
    for (addr, bytes) in pieces(&buffer) {
        assert!(bytes <= BUFFERED_PIECE_BYTES_MAX);
        assert_eq!(addr / PAGE, (addr + bytes - 1) / PAGE, "{bytes} bytes at {addr}");
    }
    assert_eq!(pieces(&buffer).len(), 4);
}

#[test]
fn a_full_half_takes_nothing_of_a_write_and_overwrites_what_it_has() {
    let mut buffer = buffer(256);
    assert!(buffer.put(GAddr(PAGE), &[1; 200]));
    assert!(!buffer.put(GAddr(PAGE + 150), &[2; 100]));
    assert!(buffer.put(GAddr(PAGE + 10), &[3; 100]), "it has these bytes already");
    let mut to = [9; 300];
    assert_eq!(buffer.cover(GAddr(PAGE), 300), Cover::Part);
    buffer.overlay(GAddr(PAGE), &mut to, &[]);
    assert_eq!((to[9], to[10], to[109], to[110], to[199], to[200]), (1, 3, 3, 1, 1, 9));
}

#[test]
fn many_small_writes_fill_a_half_by_their_count() {
    let mut buffer = buffer(1024);
    let taken = (0..).take_while(|at| buffer.put(GAddr(PAGE + 16 * at), &[1; 8])).count();
    assert_eq!(taken, 1024 / 64 - 1);
}

#[test]
fn giving_a_range_up_leaves_what_lies_beside_it() {
    let mut buffer = buffer(1 << 16);
    let mut packed = vec![0; buffer.half_bytes()];
    assert!(buffer.put(GAddr(PAGE), &[1; 256]));
    assert!(buffer.put(GAddr(PAGE + 512), &[1; 64]));
    buffer.leave(&mut packed);
    assert!(buffer.put(GAddr(PAGE + 128), &[2; 256]));
    buffer.give_up(GAddr(PAGE + 192), GAddr(PAGE + 256));
    assert_eq!(pieces(&buffer), [(PAGE, 192), (PAGE + 512, 64)]);
    buffer.give_up(GAddr(PAGE + 64), GAddr(PAGE + 96));
    assert_eq!(pieces(&buffer), [(PAGE, 64), (PAGE + 96, 96), (PAGE + 512, 64)]);
    assert_eq!(buffer.offsets(), [0, 96, 256]);
    buffer.give_up(GAddr(PAGE), GAddr(PAGE + 64));
    let mut to = [0; 512];
    buffer.overlay(GAddr(PAGE), &mut to, &packed);
    let shown: Vec<u8> = to.chunks(64).map(|line| line[0]).collect();
    assert_eq!(shown, [0, 0, 2, 0, 2, 2, 0, 0]);
}

#[derive(Clone, Debug)]
enum Op {
    Put { at: u64, bytes: u64, value: u8 },
    Read { at: u64, bytes: u64 },
    Leave,
    Arrive,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2 * PAGE - 256, 1..=256u64, any::<u8>())
            .prop_map(|(at, bytes, value)| Op::Put { at, bytes, value }),
        4 => (0..2 * PAGE - 512, 0..512u64).prop_map(|(at, bytes)| Op::Read { at, bytes }),
        1 => Just(Op::Leave),
        1 => Just(Op::Arrive),
    ]
}

/// The buffer before a page of memory at home, beside plain memory.
struct Model {
    buffer: WriteBuffer,
    packed: Vec<u8>,
    home: Vec<u8>,
    plain: Vec<u8>,
}

impl Model {
    fn arrive(&mut self) {
        for (piece, offset) in self.buffer.pieces().iter().zip(self.buffer.offsets()) {
            let from = &self.packed[*offset as usize..][..piece.bytes as usize];
            let at = (piece.addr.0 - PAGE) as usize;
            self.home[at..at + from.len()].copy_from_slice(from);
        }
        self.buffer.arrived();
    }

    fn leave(&mut self) {
        self.arrive();
        self.packed.fill(0xee);
        self.buffer.leave(&mut self.packed);
        let ends = self.buffer.pieces().windows(2);
        ends.for_each(|two| assert!(two[0].addr.0 + two[0].bytes <= two[1].addr.0, "{two:?}"));
    }

    fn put(&mut self, at: u64, bytes: u64, value: u8) {
        // Pages are cut before the buffer.
        let bytes = bytes.min(PAGE - at % PAGE);
        let from: Vec<u8> = (0..bytes).map(|i| value.wrapping_add(i as u8)).collect();
        if !self.buffer.put(GAddr(PAGE + at), &from) {
            self.leave();
            assert!(self.buffer.put(GAddr(PAGE + at), &from), "an empty half has room");
        }
        self.plain[at as usize..(at + bytes) as usize].copy_from_slice(&from);
    }

    fn read(&self, at: u64, bytes: u64) {
        let (addr, range) = (GAddr(PAGE + at), at as usize..(at + bytes) as usize);
        let cover = self.buffer.cover(addr, bytes);
        let mut to = match cover {
            // Nothing of it comes from home.
            Cover::Whole => vec![0xdd; bytes as usize],
            _ => self.home[range.clone()].to_vec(),
        };
        if cover != Cover::None {
            self.buffer.overlay(addr, &mut to, &self.packed);
        }
        assert_eq!(to, self.plain[range], "{cover:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn reads_through_the_buffer_show_what_plain_memory_would(
        ops in prop::collection::vec(op(), 1..120),
        half_bytes in prop_oneof![Just(256u32), Just(1024), Just(8192)],
    ) {
        let buffer = buffer(half_bytes);
        let home = vec![0x11; 2 * PAGE as usize];
        let (packed, plain) = (vec![0; buffer.half_bytes()], home.clone());
        let mut model = Model { buffer, packed, home, plain };
        for op in ops {
            match op {
                Op::Put { at, bytes, value } => model.put(at, bytes, value),
                Op::Read { at, bytes } => model.read(at, bytes),
                Op::Leave => model.leave(),
                Op::Arrive => model.arrive(),
            }
        }
        model.leave();
        model.arrive();
        prop_assert!(model.buffer.is_empty());
        prop_assert_eq!(model.home, model.plain);
    }
}
