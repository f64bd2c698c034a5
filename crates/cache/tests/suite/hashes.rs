//! Hashes against a plain model: random operations, fields that expire by either clock, and the
//! bytes that fields take.

use proptest::prelude::*;
use rackpool_cache::clock::Times;
use rackpool_cache::hashes::{
    Condition, Damaged, Expired, FieldExpiry, FieldName, Packed, PackedHash, PackedLimits,
    Persisted, Stored, Text,
};
use rackpool_cache::{Millis, at_wall, wall_of};

pub const SEED: u64 = 7;
/// What the wall clock is ahead of the items' at the start.
pub const AHEAD: Millis = 1_000_000;

#[derive(Clone, Debug)]
pub enum Op {
    Set {
        field: u8,
        value: Vec<u8>,
        expiry: FieldExpiry,
    },
    Remove(u8),
    /// In so many milliseconds, by the wall clock or the items'.
    Expire {
        field: u8,
        after: Millis,
        is_wall: bool,
        condition: Condition,
    },
    Persist(u8),
    Add {
        field: u8,
        step: i64,
    },
    Pass(Millis),
    SetWall(Millis),
}

pub fn name(field: u8) -> Vec<u8> {
    match field % 4 {
        0 => (i64::from(field) * 97 - 1000).to_string().into_bytes(),
        1 => format!("field:{field}").into_bytes(),
        2 => vec![field; usize::from(field)],
        _ => format!("{:0>70}", field).into_bytes(),
    }
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<i64>().prop_map(|value| value.to_string().into_bytes()),
        (-300..5000i64).prop_map(|value| value.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..20),
        (0..300usize).prop_map(|bytes| vec![b'v'; bytes]),
    ]
}

fn expiry() -> impl Strategy<Value = FieldExpiry> {
    prop_oneof![
        Just(FieldExpiry::Keep),
        Just(FieldExpiry::Set(0)),
        (1..5000u64).prop_map(FieldExpiry::Set),
        (1..5000u64).prop_map(|at| FieldExpiry::Set(at_wall(AHEAD + at))),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        Just(Condition::Always),
        Just(Condition::IfNone),
        Just(Condition::IfSome),
        Just(Condition::IfLater),
        Just(Condition::IfEarlier),
    ]
}

pub fn op(fields: u8) -> impl Strategy<Value = Op> {
    let expire = (0..fields, 0..3000u64, any::<bool>(), condition());
    prop_oneof![
        6 => (0..fields, value(), expiry())
            .prop_map(|(field, value, expiry)| Op::Set { field, value, expiry }),
        2 => (0..fields).prop_map(Op::Remove),
        3 => expire.prop_map(|(field, after, is_wall, condition)| {
            Op::Expire { field, after, is_wall, condition }
        }),
        1 => (0..fields).prop_map(Op::Persist),
        2 => (0..fields, -50..50i64).prop_map(|(field, step)| Op::Add { field, step }),
        1 => (1..800u64).prop_map(Op::Pass),
        1 => (0..3000u64).prop_map(|wall| Op::SetWall(AHEAD + wall)),
    ]
}

/// A field as the model has it.
type Known = (Vec<u8>, Vec<u8>, Millis);

/// Fields in the order in which they came.
#[derive(Clone, Debug)]
pub struct Model {
    pub fields: Vec<Known>,
    pub times: Times,
}

impl Model {
    pub fn new() -> Model {
        Model { fields: Vec::new(), times: Times { now: 1000, wall: AHEAD + 1000 } }
    }

    pub fn index(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|(known, ..)| known == name)
    }

    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: FieldExpiry) -> Stored {
        let expires = |before| match expiry {
            FieldExpiry::Keep => before,
            FieldExpiry::Set(expires) => expires,
        };
        match self.index(name) {
            Some(index) => {
                let (_, known, before) = &mut self.fields[index];
                (*known, *before) = (value.to_vec(), expires(*before));
                Stored::Replaced
            }
            None => {
                self.fields.push((name.to_vec(), value.to_vec(), expires(0)));
                Stored::Added
            }
        }
    }

    fn by_wall(&self, expires: Millis) -> i128 {
        match wall_of(expires) {
            Some(at) => at.into(),
            None => i128::from(expires) + i128::from(self.times.wall) - i128::from(self.times.now),
        }
    }

    pub fn expire(&mut self, name: &[u8], expires: Millis, condition: Condition) -> Expired {
        let Some(index) = self.index(name) else { return Expired::NoField };
        let before = match self.fields[index].2 {
            0 => i128::MAX,
            before => self.by_wall(before),
        };
        let after = self.by_wall(expires);
        let holds = match condition {
            Condition::Always => true,
            Condition::IfNone => before == i128::MAX,
            Condition::IfSome => before != i128::MAX,
            Condition::IfLater => after > before,
            Condition::IfEarlier => after < before,
        };
        if !holds {
            return Expired::NotMet;
        }
        if after <= i128::from(self.times.wall) {
            self.fields.remove(index);
            return Expired::Deleted;
        }
        self.fields[index].2 = expires;
        Expired::Set
    }

    pub fn persist(&mut self, name: &[u8]) -> Persisted {
        match self.index(name) {
            None => Persisted::NoField,
            Some(index) if self.fields[index].2 == 0 => Persisted::NoExpiry,
            Some(index) => {
                self.fields[index].2 = 0;
                Persisted::Done
            }
        }
    }

    /// The time goes on, or the wall clock is set; what has expired then goes.
    pub fn pass(&mut self, op: &Op) -> usize {
        match op {
            Op::Pass(ms) => {
                self.times = Times { now: self.times.now + ms, wall: self.times.wall + ms };
            }
            Op::SetWall(wall) => self.times.wall = *wall,
            _ => {}
        }
        let (times, before) = (self.times, self.fields.len());
        self.fields.retain(|(_, _, expires)| match wall_of(*expires) {
            Some(at) => at > times.wall,
            None => *expires == 0 || *expires > times.now,
        });
        before - self.fields.len()
    }
}

/// When `after` milliseconds from now is.
pub fn moment(times: Times, after: Millis, is_wall: bool) -> Millis {
    // A third of them before now.
    match is_wall {
        true => at_wall((times.wall + after).saturating_sub(1000)),
        false => (times.now + after).saturating_sub(1000).max(1),
    }
}

fn bytes_of(text: Text<'_>) -> Vec<u8> {
    text.with_bytes(<[u8]>::to_vec).expect("no value is long here")
}

fn known(packed: Packed<'_>) -> Vec<Known> {
    let fields = packed.fields().map(|field| field.expect("well-formed"));
    fields.map(|it| (bytes_of(it.name), bytes_of(it.value), it.expires)).collect()
}

/// A hash and its model.
struct Bed {
    hash: PackedHash,
    model: Model,
    limits: PackedLimits,
}

impl Bed {
    fn run(&mut self, op: &Op) {
        let expired = self.model.pass(op);
        let kept = self.hash.kept().to_vec();
        let live = Packed::new(&kept).unwrap().live_count(self.model.times);
        assert_eq!(live, Ok(self.model.fields.len()));
        self.hash = PackedHash::open(kept, self.model.times).unwrap();
        assert_eq!(self.hash.expired(), expired);
        match op {
            Op::Set { field, value, expiry } => self.set(&name(*field), value, *expiry),
            Op::Remove(field) => {
                let name = name(*field);
                let index = self.model.index(&name);
                if let Some(index) = index {
                    self.model.fields.remove(index);
                }
                assert_eq!(self.hash.remove(&FieldName::new(&name, SEED)), index.is_some());
            }
            Op::Expire { field, after, is_wall, condition } => {
                let (name, times) = (name(*field), self.model.times);
                let expires = moment(times, *after, *is_wall);
                let expected = self.model.expire(&name, expires, *condition);
                let field = FieldName::new(&name, SEED);
                assert_eq!(self.hash.expire(&field, expires, *condition, times), expected);
            }
            Op::Persist(field) => {
                let name = name(*field);
                let expected = self.model.persist(&name);
                assert_eq!(self.hash.persist(&FieldName::new(&name, SEED)), expected);
            }
            Op::Add { field, step } => {
                let name = name(*field);
                let field = FieldName::new(&name, SEED);
                let found = self.hash.packed().get(&field, self.model.times).unwrap();
                let before = match found.map(|field| field.value) {
                    None => 0,
                    Some(Text::Number(value)) => value,
                    Some(_) => return,
                };
                let sum = before.wrapping_add(*step).to_string().into_bytes();
                self.set(&name, &sum, FieldExpiry::Keep);
            }
            Op::Pass(_) | Op::SetWall(_) => {}
        }
        assert_eq!(known(self.hash.packed()), self.model.fields);
        // Expiries that were set later may lead beyond.
        let expiries = 6 * self.hash.packed().count_with_expiry();
        assert!(self.hash.kept().len() <= self.limits.bytes_max + expiries);
    }

    fn set(&mut self, name: &[u8], value: &[u8], expiry: FieldExpiry) {
        let before = self.hash.clone();
        let field = FieldName::new(name, SEED);
        match self.hash.set(&field, Text::of(value), expiry, self.limits) {
            Stored::TooLarge => {
                assert_eq!(self.hash, before);
                // It is: with its own length it would not fit.
                let more = name.len() + value.len() + 20;
                let is_long = value.len() > self.limits.value_bytes_max;
                assert!(is_long || before.kept().len() + more > self.limits.bytes_max);
            }
            stored => assert_eq!(stored, self.model.set(name, value, expiry)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_packed_hash_does_what_a_list_of_fields_does(
        ops in prop::collection::vec(op(60), 1..300),
        bytes_max in prop_oneof![Just(300usize), Just(2048), Just(100_000)],
    ) {
        let limits = PackedLimits { bytes_max, value_bytes_max: 250 };
        let mut bed = Bed { hash: PackedHash::new(), model: Model::new(), limits };
        ops.iter().for_each(|op| bed.run(op));
        for bit in [0, 1, 9] {
            let all = known(bed.hash.packed());
            let [mut low, high] = bed.hash.clone().split(SEED, bit);
            let halves = [low.clone(), high.clone()];
            for (half, expected) in halves.iter().zip([0, 1]) {
                let is_its = |(name, ..): &&Known| {
                    FieldName::new(name, SEED).hash() >> (63 - bit) & 1 == expected
                };
                let its: Vec<Known> = all.iter().filter(is_its).cloned().collect();
                prop_assert_eq!(known(half.packed()), its);
            }
            low.absorb(high);
            let [mut both, mut all] = [known(low.packed()), all];
            both.sort();
            all.sort();
            prop_assert_eq!(both, all);
        }
    }

    #[test]
    fn bytes_that_are_no_hash_are_an_error_and_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        count in 0..8u16,
    ) {
        let times = Model::new().times;
        let mut few = bytes.clone();
        few.splice(0..few.len().min(2), count.to_le_bytes());
        for kept in [bytes, few] {
            if let Ok(packed) = Packed::new(&kept) {
                let _ = packed.get(&FieldName::new(b"field", SEED), times);
                let whole: Result<Vec<_>, Damaged> = packed.fields().collect();
                let opened = PackedHash::open(kept.clone(), times);
                // What is behind the last field is damage as well.
                prop_assert!(whole.is_ok() || opened.is_err());
            }
        }
    }
}

/// Bytes that Redis's listpack takes for a text, by its format.
fn listpack_bytes(text: &[u8]) -> usize {
    let number: Option<i64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let entry = match number {
        Some(0..=127) => 1,
        Some(-4096..=4095) => 2,
        Some(-32_768..=32_767) => 3,
        Some(-8_388_608..=8_388_607) => 4,
        Some(number) if i32::try_from(number).is_ok() => 5,
        Some(_) => 9,
        None if text.len() < 64 => 1 + text.len(),
        None if text.len() < 4096 => 2 + text.len(),
        None => 5 + text.len(),
    };
    // The length once more behind it, 7 bits a byte.
    entry + 1 + usize::from(entry > 127) + usize::from(entry > 16_383)
}

#[test]
fn a_small_hash_takes_fewer_bytes_than_a_listpack() {
    let numbers = [0i64, 5, 99, 127, 128, 1000, 4223, 32_000, 100_000, 1 << 40, i64::MAX, -1, -100];
    let mut texts: Vec<Vec<u8>> =
        numbers.iter().map(|number| number.to_string().into_bytes()).collect();
    texts.extend([0, 1, 8, 30, 63, 64, 100, 127, 128, 500].map(|count| vec![b'x'; count]));
    let limits = PackedLimits { bytes_max: usize::MAX, value_bytes_max: usize::MAX };
    for field in &texts {
        for value in &texts {
            let mut hash = PackedHash::new();
            hash.set(&FieldName::new(field, SEED), Text::of(value), FieldExpiry::Keep, limits);
            let listpack = listpack_bytes(field) + listpack_bytes(value);
            // Two bytes are the hash's own; a listpack's are seven.
            let entry = hash.kept().len() - 2;
            assert!(entry < listpack, "{field:?} {value:?}: {entry} and {listpack} bytes");
        }
    }
}

#[test]
fn a_hash_says_which_bytes_have_changed_as_long_as_none_has_moved() {
    let times = Times { now: 1, wall: 1 };
    let set = |hash: &mut PackedHash, field: &[u8], value: &[u8], expires| {
        let (name, expiry) = (FieldName::new(field, SEED), FieldExpiry::Set(expires));
        hash.set(&name, Text::of(value), expiry, PackedLimits::SMALL);
    };
    let mut hash = PackedHash::new();
    for field in [b"a", b"b", b"c"] {
        set(&mut hash, field, b"first", 0);
    }
    let before = hash.kept().to_vec();
    let mut hash = PackedHash::open(before.clone(), times).unwrap();
    set(&mut hash, b"b", b"other", 0);
    set(&mut hash, b"c", b"third", 0);
    let changed = hash.changed().expect("all are where they were");
    let mut patched = before.clone();
    patched[changed.clone()].copy_from_slice(&hash.kept()[changed]);
    assert_eq!(patched, hash.kept());
    let other: [&dyn Fn(&mut PackedHash); 4] = [
        &|hash| set(hash, b"a", b"longer than that", 0),
        &|hash| set(hash, b"a", b"first", 1000),
        &|hash| set(hash, b"d", b"added", 0),
        &|hash| assert!(hash.remove(&FieldName::new(b"a", SEED))),
    ];
    for change in other {
        let mut hash = PackedHash::open(before.clone(), times).unwrap();
        change(&mut hash);
        set(&mut hash, b"c", b"third", 0);
        assert_eq!(hash.changed(), None);
    }
}
