//! What the pool tells about itself.

use crate::arguments::{Output, fill};
use crate::call::{call, write_text};
use crate::client::Client;
use crate::registry::Name;
use rackpool::GAddr;
use rackpool_bindings::{Failure, Status};
use std::ffi::c_int;

/// As the header has it: `rp_explanation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Explanation {
    size: usize,
    page: u64,
    offset_bytes: u64,
    generation: u64,
    frame: u32,
    rack: u16,
    shard: u16,
    own_rack: u8,
    mapped: u8,
    replicated: u8,
    translation_cached: u8,
    path: [u8; 12],
    why: [u8; 240],
}

// Without padding, as `fill` wants it.
const _: () = assert!(size_of::<Explanation>() == 296);

#[unsafe(no_mangle)]
pub extern "C" fn rp_explain(
    handle: Name<Client>,
    addr: u64,
    explanation: Output<Explanation>,
) -> i32 {
    call(|| {
        let explained = handle.with(|client| Ok(client.session.handle.explain(GAddr(addr))?))?;
        let (mut path, mut why) = ([0; 12], [0; 240]);
        write_text(&mut path, &explained.path);
        write_text(&mut why, &explained.why);
        let told = Explanation {
            size: size_of::<Explanation>(),
            page: explained.page,
            offset_bytes: explained.offset_bytes,
            generation: explained.generation,
            frame: explained.frame,
            rack: explained.rack,
            shard: explained.shard,
            own_rack: explained.own_rack.into(),
            mapped: (explained.path == "mapped").into(),
            replicated: explained.replicated.into(),
            translation_cached: explained.translation_cached.into(),
            path,
            why,
        };
        fill(explanation, &told)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_stats(
    handle: Name<Client>,
    format: c_int,
    mut text: Output<u8>,
    size: usize,
    mut bytes: Output<usize>,
) -> i32 {
    call(|| {
        let (to, place) = (text.slice(size)?, bytes.place()?);
        let stats = handle.with(|client| Ok(client.session.handle.admin().pool_stats()?))?;
        let told = match format {
            0 => serde_json::to_string(&stats)
                .map_err(|_| Failure::Own(Status::Internal, "counters that are no JSON"))?,
            1 => stats.prometheus(),
            _ => return Err(Failure::invalid("no such format of counters")),
        };
        place.write(told.len());
        if to.len() <= told.len() {
            return Err(Failure::Own(Status::TooSmall, "the text is longer than the memory given"));
        }
        write_text(to, &told);
        Ok(())
    })
}
