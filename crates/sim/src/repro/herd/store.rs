//! What is behind the full systems: the tables of Pilaf and FaRM-KV as bytes of the server's memory
//! that READs bring (`crate::repro::herd::baselines`), and for HERD the index and log of MICA, one
//! partition for each server process. The emulated systems have none.
//!
//! A value is a function of its key, so that a client that gets one can tell whether it is right; a
//! PUT stores it again, in place.
//!
//! Source: HERD, background on MICA. Here MICA's index has a bucket for each key, so that nothing
//! is lost that a client could ask for.

use super::Load;
use super::zipf::Keys;
use crate::repro::herd::baselines::{KeyTable, KvRequest, Lookup, hash, value_of};

/// Slots of one bucket of MICA's index. Source: MICA's published code.
const MICA_SLOTS: usize = 8;

#[derive(Clone, Debug)]
pub struct Store {
    /// Its sizes, of systems that read.
    table: Option<KeyTable>,
    value_bytes: u64,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    mica: Vec<Partition>,
}

/// MICA's index and log of one server process.
#[derive(Clone, Debug, Default)]
struct Partition {
    /// Tag and offset in the log plus one; 0 is empty.
    index: Vec<[(u16, u64); MICA_SLOTS]>,
    log: Vec<u8>,
}

impl Store {
    /// The table of a load with all its keys. An error if one finds no place.
    pub fn new(load: &Load, keys: &Keys) -> Result<Store, String> {
        let table = KeyTable::new(load.system, keys.count(), load.value_bytes);
        let (value_bytes, bytes) = (load.value_bytes, Vec::new());
        let mut store = Store { table, value_bytes, bytes, scratch: vec![], mica: vec![] };
        match table {
            Some(table) => {
                let mut bytes = vec![0; table.bytes() as usize];
                let filled = table.fill(bytes.as_mut_slice(), |key| store.value_of(key));
                filled.map_err(|error| error.to_string())?;
                store.bytes = bytes;
            }
            None => store.load_mica(load, keys)?,
        }
        Ok(store)
    }

    fn load_mica(&mut self, load: &Load, keys: &Keys) -> Result<(), String> {
        let each = (keys.count() / u64::from(load.servers)).max(1) as usize;
        let empty = Partition { index: vec![Default::default(); each], log: Vec::new() };
        self.mica = vec![empty; load.servers as usize];
        for key in 1..=keys.count() {
            let value = self.value_of(key);
            let server = keys.partition(key, load.servers);
            if !self.mica[server as usize].append(key, &value) {
                return Err(format!("the index has no room for key {key}"));
            }
        }
        Ok(())
    }

    /// The sizes of the table, of systems that read.
    pub fn table(&self) -> Option<&KeyTable> {
        self.table.as_ref()
    }

    pub fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        &self.bytes[at..at + bytes]
    }

    /// The value of a key.
    pub fn value_of(&self, key: u64) -> Vec<u8> {
        value_of(key, 0, self.value_bytes)
    }

    /// Whether these are a value's bytes from the second on; the first carries the client that
    /// asked.
    pub fn is_value_of(&self, key: u64, rest: &[u8]) -> bool {
        self.value_of(key).get(1..).is_some_and(|value| value == rest)
    }

    /// Whether the last READ of a GET brought the key's value.
    pub fn is_found(&self, lookup: &Lookup, data: &[u8]) -> bool {
        let value = self.table.as_ref().map(|table| table.value(lookup, data));
        value.is_some_and(|value| value == self.value_of(lookup.key))
    }

    /// A server process serves a request: a GET's value is copied to the answer. Whether a PUT's
    /// is stored. It is the server's processor that stores, so in one step for all that read.
    pub fn serve(&mut self, server: u32, request: &KvRequest, answer: &mut [u8]) -> bool {
        let Store { table, bytes, scratch, mica, .. } = self;
        match (&request.value, table) {
            (None, None) => {
                if let Some(value) = mica[server as usize].find(request.key) {
                    let count = answer.len().min(value.len());
                    answer[..count].copy_from_slice(&value[..count]);
                }
                true
            }
            (Some(value), None) => {
                let place = mica[server as usize].find(request.key);
                place.map(|place| place.copy_from_slice(value)).is_some()
            }
            (Some(value), Some(table)) => {
                table.put(bytes.as_mut_slice(), request.key, value, scratch)
            }
            // Of the others GETs come by READ.
            (None, Some(_)) => true,
        }
    }
}

impl Partition {
    /// Index and log entry of a key that is not there yet. False if its bucket is full.
    fn append(&mut self, key: u64, value: &[u8]) -> bool {
        let at = self.log.len() as u64 + 1;
        let tag = tag(key);
        let bucket = hash(key, 2) % self.index.len() as u64;
        let slots = &mut self.index[bucket as usize];
        let Some(empty) = slots.iter_mut().find(|(_, at)| *at == 0) else { return false };
        *empty = (tag, at);
        self.log.extend_from_slice(&key.to_le_bytes());
        self.log.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.log.extend_from_slice(value);
        true
    }

    /// The value of a key in the log.
    fn find(&mut self, key: u64) -> Option<&mut [u8]> {
        let bucket = hash(key, 2) % self.index.len() as u64;
        let slots = self.index[bucket as usize];
        let log = &mut self.log;
        let word = |log: &[u8], at: usize| {
            u64::from_le_bytes(log[at..at + 8].try_into().expect("8 bytes"))
        };
        let tagged = slots.into_iter().filter(|(of, at)| *at > 0 && *of == tag(key));
        let at = tagged.map(|(_, at)| at as usize - 1).find(|at| word(log, *at) == key)?;
        let bytes = word(log, at + 8) as usize;
        Some(&mut log[at + 16..at + 16 + bytes])
    }
}

fn tag(key: u64) -> u16 {
    (hash(key, 2) >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repro::herd::baselines::System;

    #[test]
    fn a_partition_answers_what_was_put() {
        let system = System::Herd { inline_below: 144 };
        let load = Load { keys: 20_000, is_full: true, ..Load::paper(system) };
        let keys = Keys::new(load.keys, false, 1);
        let mut store = Store::new(&load, &keys).unwrap();
        for key in [1, 77, 19_999] {
            let server = keys.partition(key, 6);
            let mut answer = vec![0; 32];
            let get = KvRequest { key, ..KvRequest::default() };
            store.serve(server, &get, &mut answer);
            assert!(store.is_value_of(key, &answer[1..]));
            let put = KvRequest { key, value: Some(vec![9; 32]), ..KvRequest::default() };
            store.serve(server, &put, &mut [0]);
            store.serve(server, &get, &mut answer);
            assert_eq!(answer, [9; 32]);
        }
    }
}
