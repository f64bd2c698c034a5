//! What is bounded fits, and what is broken is a typed error.

use super::*;
use crate::constants::{
    MASTER_MESSAGE_BYTES_MAX, RACK_NAME_BYTES_MAX, RACKS_MAX, RESOLVE_PAGES_MAX,
};
use crate::rrpc::INLINE_BYTES_MAX;

#[test]
fn the_largest_resolve_answer_fits_into_a_message() {
    let home = PageHome {
        page: PageId(u64::MAX),
        rack: RackId(u16::MAX),
        frame: FrameIndex(u32::MAX),
        generation: Generation(u64::MAX),
    };
    let reply = ReplyFrame {
        seq: u64::MAX,
        reply: Ok(Reply::Homes(vec![home; RESOLVE_PAGES_MAX as usize])),
    };
    let mut buffer = message_buffer();
    let bytes = encode(&reply, &mut buffer).unwrap();
    assert_eq!(decode::<ReplyFrame>(bytes, "test").unwrap(), reply);
}

#[test]
fn the_names_of_all_racks_fit_into_one_answer_of_the_master() {
    let name = "n".repeat(RACK_NAME_BYTES_MAX);
    let info = |rack| RackInfo {
        rack: RackId(rack),
        region_id: [u64::MAX; 2],
        epoch: u64::MAX,
        page_shift: 30,
        frame_count: u32::MAX,
        frames_free: u32::MAX,
        host: name.clone(),
        control: name.clone(),
        fabric: FabricKind::Tcp,
        fabric_addr: name.clone(),
        alive: true,
    };
    let racks = (0..RACKS_MAX).map(info).collect();
    let answer = Ok(MasterAnswer::Racks(racks));
    let reply = MasterReply { id: u64::MAX, term: u64::MAX, index: u64::MAX, answer };
    assert!(encode_vec(&reply).len() <= MASTER_MESSAGE_BYTES_MAX as usize);
}

#[test]
fn short_long_and_foreign_messages_are_typed_errors() {
    let bytes = encode_vec(&RequestFrame { seq: 7, request: Request::Ping });
    assert!(decode::<RequestFrame>(&bytes[..bytes.len() - 1], "x").is_err());
    let mut long = bytes.clone();
    long.push(0);
    assert_eq!(decode::<RequestFrame>(&long, "x").unwrap_err().code(), "protocol");
    assert!(decode::<RequestFrame>(&[1, 200], "x").is_err());
}

#[test]
fn more_bytes_than_a_call_carries_are_refused() {
    let most = encode_vec(&Bytes(vec![7; INLINE_BYTES_MAX as usize]));
    assert_eq!(decode::<Bytes>(&most, "x").unwrap().0.len(), INLINE_BYTES_MAX as usize);
    let more = encode_vec(&Bytes(vec![7; INLINE_BYTES_MAX as usize + 1]));
    assert_eq!(decode::<Bytes>(&more, "x").unwrap_err().code(), "protocol");
}
