//! Tables, scans of their keys, and named objects, which are a table of their own.

use crate::arguments::{Input, Output, Text};
use crate::call::{call, note};
use crate::client::Client;
use crate::registry::Name;
use rackpool_bindings::{Failure, Outcome, PutMode, Status};
use std::ffi::c_int;

/// As the header has it: `rp_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    key: Input<u8>,
    key_bytes: usize,
    value: Output<u8>,
    value_bytes: usize,
    status: i32,
    reserved: u32,
}

// As the header's.
const _: () = assert!(size_of::<Entry>() == 40);

impl Client {
    /// Reads a value into the program's memory; its length, which `bytes` gets if it does not fit
    /// as well.
    fn get(
        &mut self,
        table: usize,
        key: &[u8],
        to: &mut [u8],
        bytes: &mut impl FnMut(usize),
    ) -> Outcome {
        if !self.session.get(table, key, &mut self.value)? {
            return Err(Failure::absent());
        }
        bytes(self.value.len());
        let Some(to) = to.get_mut(..self.value.len()) else {
            return Err(Failure::Own(
                Status::TooSmall,
                "the value is longer than the memory given",
            ));
        };
        to.copy_from_slice(&self.value);
        Ok(())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8], mode: PutMode) -> Outcome {
        match (self.session.put(table, key, value, mode)?, mode) {
            (true, _) => Ok(()),
            (false, PutMode::Update) => Err(Failure::absent()),
            (false, _) => Err(Failure::Own(Status::Occupied, "the key is there already")),
        }
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Outcome {
        self.session.delete(table, key)?.then_some(()).ok_or_else(Failure::absent)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_open(
    handle: Name<Client>,
    name: Text,
    mode: c_int,
    mut table: Output<u32>,
) -> i32 {
    call(|| {
        let (name, place) = (name.get()?, table.place()?);
        if !(0..=1).contains(&mode) {
            return Err(Failure::invalid("no such mode of a table"));
        }
        let number = handle.with(|client| client.session.open_table(name, mode == 1))?;
        place.write(number as u32);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_get(
    handle: Name<Client>,
    table: u32,
    key: Input<u8>,
    key_bytes: usize,
    mut value: Output<u8>,
    size: usize,
    mut bytes: Output<usize>,
) -> i32 {
    call(|| {
        let (key, to, bytes) = (key.slice(key_bytes)?, value.slice(size)?, bytes.place()?);
        let mut tell = |length| {
            bytes.write(length);
        };
        handle.with(|client| client.get(table as usize, key, to, &mut tell))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_put(
    handle: Name<Client>,
    table: u32,
    key: Input<u8>,
    key_bytes: usize,
    value: Input<u8>,
    value_bytes: usize,
    mode: c_int,
) -> i32 {
    call(|| {
        let (key, value) = (key.slice(key_bytes)?, value.slice(value_bytes)?);
        let mode = match mode {
            0 => PutMode::Always,
            1 => PutMode::Insert,
            2 => PutMode::Update,
            _ => return Err(Failure::invalid("no such mode of a put")),
        };
        handle.with(|client| client.put(table as usize, key, value, mode))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_delete(
    handle: Name<Client>,
    table: u32,
    key: Input<u8>,
    key_bytes: usize,
) -> i32 {
    call(|| {
        let key = key.slice(key_bytes)?;
        handle.with(|client| client.delete(table as usize, key))
    })
}

/// Each entry gets its own status.
fn each(
    handle: Name<Client>,
    mut entries: Output<Entry>,
    count: usize,
    mut work: impl FnMut(&mut Client, &[u8], &mut Entry) -> Outcome,
) -> i32 {
    call(|| {
        let entries = entries.slice(count)?;
        handle.with(|client| {
            for entry in entries {
                let key = entry.key;
                let done = key.slice(entry.key_bytes).and_then(|key| work(client, key, entry));
                entry.status = done.err().map_or(Status::Ok as i32, |failure| note(&failure));
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_get_many(
    handle: Name<Client>,
    table: u32,
    entries: Output<Entry>,
    count: usize,
) -> i32 {
    each(handle, entries, count, |client, key, entry| {
        let Entry { value, value_bytes, .. } = entry;
        let mut length = *value_bytes;
        let got = client.get(table as usize, key, value.slice(*value_bytes)?, &mut |bytes| {
            length = bytes;
        });
        *value_bytes = length;
        got
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_put_many(
    handle: Name<Client>,
    table: u32,
    entries: Output<Entry>,
    count: usize,
) -> i32 {
    each(handle, entries, count, |client, key, entry| {
        let value = entry.value.slice(entry.value_bytes)?;
        client.put(table as usize, key, value, PutMode::Always)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_table_delete_many(
    handle: Name<Client>,
    table: u32,
    entries: Output<Entry>,
    count: usize,
) -> i32 {
    each(handle, entries, count, |client, key, _| client.delete(table as usize, key))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_scan_open(
    handle: Name<Client>,
    table: u32,
    prefix: Input<u8>,
    prefix_bytes: usize,
    mut scan: Output<u32>,
) -> i32 {
    call(|| {
        let (prefix, place) = (prefix.slice(prefix_bytes)?, scan.place()?);
        handle.with(|client| {
            let keys = client.session.list(table as usize, prefix)?;
            place.write(client.scans.open(keys)?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_scan_next(
    handle: Name<Client>,
    scan: u32,
    mut key: Output<u8>,
    size: usize,
    mut key_bytes: Output<usize>,
    mut value_bytes: Output<u64>,
) -> i32 {
    call(|| {
        let (to, length, value) = (key.slice(size)?, key_bytes.place()?, value_bytes.place()?);
        handle.with(|client| {
            let keys = client.scans.get(scan)?.as_mut().ok_or_else(Failure::absent)?;
            let (next, bytes) = keys.last().ok_or_else(Failure::absent)?;
            length.write(next.len());
            value.write(*bytes);
            let Some(to) = to.get_mut(..next.len()) else {
                let text = "the key is longer than the memory given";
                return Err(Failure::Own(Status::TooSmall, text));
            };
            to.copy_from_slice(next);
            keys.pop();
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_scan_close(handle: Name<Client>, scan: u32) -> i32 {
    call(|| handle.with(|client| client.scans.get(scan).map(|scan| *scan = None)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_object_put(
    handle: Name<Client>,
    name: Text,
    data: Input<u8>,
    bytes: usize,
) -> i32 {
    call(|| {
        let (name, data) = (name.get()?.as_bytes(), data.slice(bytes)?);
        handle.with(|client| {
            let objects = client.session.objects()?;
            client.put(objects, name, data, PutMode::Always)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_object_get(
    handle: Name<Client>,
    name: Text,
    mut to: Output<u8>,
    size: usize,
    mut bytes: Output<usize>,
) -> i32 {
    call(|| {
        let (name, to, bytes) = (name.get()?.as_bytes(), to.slice(size)?, bytes.place()?);
        let mut tell = |length| {
            bytes.write(length);
        };
        handle.with(|client| {
            let objects = client.session.objects()?;
            client.get(objects, name, to, &mut tell)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_object_stat(handle: Name<Client>, name: Text, mut bytes: Output<u64>) -> i32 {
    call(|| {
        let (name, place) = (name.get()?.as_bytes(), bytes.place()?);
        handle.with(|client| {
            let objects = client.session.objects()?;
            let length = client.session.value_bytes(objects, name)?;
            place.write(length.ok_or_else(Failure::absent)?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_object_delete(handle: Name<Client>, name: Text) -> i32 {
    call(|| {
        let name = name.get()?.as_bytes();
        handle.with(|client| {
            let objects = client.session.objects()?;
            client.delete(objects, name)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_object_list(handle: Name<Client>, prefix: Text, mut scan: Output<u32>) -> i32 {
    call(|| {
        let (prefix, place) = (prefix.get()?.as_bytes(), scan.place()?);
        handle.with(|client| {
            let objects = client.session.objects()?;
            let keys = client.session.list(objects, prefix)?;
            place.write(client.scans.open(keys)?);
            Ok(())
        })
    })
}
