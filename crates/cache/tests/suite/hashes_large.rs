//! Large hashes against the model of small ones: random operations of which some find no room,
//! beside a cursor, a stream of one moment and sweeps that go on in between.

use crate::hashes::{Model, Op, SEED, moment, name, op};
use proptest::prelude::*;
use rackpool_cache::Millis;
use rackpool_cache::clock::Times;
use rackpool_cache::hashes::{
    Damaged, Field, FieldExpiry, FieldName, FieldStream, Form, HashItem, HashItems, LargeHash,
    Next, Packed, PackedHash, PackedLimits, PartId, Root, Shape, Stored, Sweep, Text,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Full,
    Damaged,
}

impl From<Damaged> for Refused {
    fn from(_: Damaged) -> Refused {
        Refused::Damaged
    }
}

type Longs = BTreeMap<u64, Vec<u8>>;
type KnownField = (Vec<u8>, Vec<u8>, Millis);

/// The items of a hash, in a map. Every `full_every`th put finds no room; 0 = none.
#[derive(Clone, Debug, Default)]
struct Items {
    parts: BTreeMap<PartId, Vec<u8>>,
    longs: Longs,
    full_every: u32,
    puts: u32,
}

impl Items {
    fn put(&mut self) -> Result<(), Refused> {
        self.puts += 1;
        match self.full_every != 0 && self.puts.is_multiple_of(self.full_every) {
            true => Err(Refused::Full),
            false => Ok(()),
        }
    }

    fn remove(&mut self, retired: Vec<HashItem>) {
        for item in retired {
            match item {
                HashItem::Part(part) => drop(self.parts.remove(&part)),
                HashItem::Long(serial) => drop(self.longs.remove(&serial)),
            }
        }
    }

    fn fields(&self, kept: &[u8], times: Times) -> Vec<KnownField> {
        let fields = Packed::new(kept).unwrap().fields().map(Result::unwrap);
        fields
            .filter(|field| !field.is_over(times))
            .map(|field| known(field, &self.longs))
            .collect()
    }
}

fn known(field: Field<'_>, longs: &Longs) -> KnownField {
    let value = match field.value {
        Text::Long(long) => {
            let value = &longs[&long.serial];
            assert_eq!(value.len(), long.bytes as usize);
            value.clone()
        }
        value => value.with_bytes(<[u8]>::to_vec).unwrap(),
    };
    (field.name.with_bytes(<[u8]>::to_vec).unwrap(), value, field.expires)
}

/// A stream, what it is to give and what it gave, and the items of the hash if that is gone.
struct Running {
    stream: FieldStream<Items>,
    announced: u64,
    expected: Vec<KnownField>,
    given: Vec<KnownField>,
    gone: Option<(Items, Shape)>,
}

/// The items, with the stream that wants to keep some.
struct Shared<'a> {
    items: &'a mut Items,
    running: &'a mut Option<Running>,
}

impl HashItems for Shared<'_> {
    type Error = Refused;

    fn part(&mut self, part: PartId) -> Result<Vec<u8>, Refused> {
        self.items.parts.get(&part).cloned().ok_or(Refused::Damaged)
    }

    fn about_to_go(&mut self, part: PartId) {
        let Some(running) = self.running.as_mut().filter(|it| it.gone.is_none()) else { return };
        if running.stream.wants(part) {
            let parts = BTreeMap::from([(part, self.items.parts[&part].clone())]);
            let longs = self.items.longs.clone();
            running.stream.keep(part, Items { parts, longs, ..Items::default() });
        }
    }

    fn put_part(&mut self, part: PartId, kept: &[u8]) -> Result<(), Refused> {
        self.items.put()?;
        self.items.parts.insert(part, kept.to_vec());
        Ok(())
    }

    fn put_long(&mut self, serial: u64, value: &[u8]) -> Result<(), Refused> {
        self.items.put()?;
        assert_eq!(self.items.longs.insert(serial, value.to_vec()), None);
        Ok(())
    }
}

/// A walk by cursor: what it has seen, and what was there all the time.
#[derive(Default)]
struct Scan {
    cursor: u32,
    seen: Vec<Vec<u8>>,
    throughout: BTreeSet<Vec<u8>>,
}

struct Bed {
    items: Items,
    root: Root,
    model: Model,
    running: Option<Running>,
    sweep: Option<Sweep>,
    scan: Option<Scan>,
    parts_max: u32,
}

impl Bed {
    fn new(full_every: u32) -> Bed {
        let model = Model::new();
        let mut items = Items::default();
        let mut shared = Shared { items: &mut items, running: &mut None };
        let grown = LargeHash::grow(&mut shared, &PackedHash::new(), 1, SEED, model.times);
        let root = *grown.unwrap().root();
        items.full_every = full_every;
        let (running, sweep, scan) = (None, None, None);
        Bed { items, root, model, running, sweep, scan, parts_max: 1 }
    }

    fn with<R>(
        &mut self,
        f: impl FnOnce(&mut LargeHash<'_, Shared<'_>>) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let mut shared = Shared { items: &mut self.items, running: &mut self.running };
        let mut hash = LargeHash::open(&mut shared, self.root, SEED, self.model.times)
            .during(self.sweep.as_mut());
        let result = f(&mut hash);
        let (form, retired) = hash.finish().unwrap();
        self.items.remove(retired);
        match form {
            Form::Large(root) => self.root = root,
            Form::Small(small) => self.begin_anew(&small),
            Form::Gone => self.begin_anew(&PackedHash::new()),
        }
        self.parts_max = self.parts_max.max(self.root.shape.parts());
        result
    }

    /// The hash is small or gone; it becomes a large one again.
    fn begin_anew(&mut self, small: &PackedHash) {
        let full_every = self.items.full_every;
        let items = std::mem::take(&mut self.items);
        let shape = self.root.shape;
        if let Some(running) = self.running.as_mut().filter(|running| running.gone.is_none()) {
            running.gone = Some((items, shape));
        }
        let mut shared = Shared { items: &mut self.items, running: &mut None };
        let generation = self.root.generation + 1;
        let grown = LargeHash::grow(&mut shared, small, generation, SEED, self.model.times);
        let grown = grown.unwrap();
        self.root = *grown.root();
        let (_, retired) = grown.finish().unwrap();
        assert!(retired.is_empty(), "what has become small does not split at once");
        self.items.full_every = full_every;
        self.sweep = None;
    }

    fn run(&mut self, op: &Op) {
        if let Op::SetWall(wall) = op
            && *wall < self.model.times.wall
            && self.root.may_have_expired(self.model.times)
        {
            // What has expired and is still there would come back, which the model does not know.
            return;
        }
        self.model.pass(op);
        match op {
            Op::Set { field, value, expiry } => {
                let times = if field % 7 == 0 { 4 } else { 1 };
                self.set(&name(*field), &value.repeat(times), *expiry);
            }
            Op::Add { field, step } => {
                self.set(&name(*field), step.to_string().as_bytes(), FieldExpiry::Keep);
            }
            Op::Remove(field) => {
                let name = name(*field);
                let index = self.model.index(&name);
                let removed = self.with(|hash| hash.remove(&FieldName::new(&name, SEED)));
                if let Ok(was_there) = removed {
                    assert_eq!(was_there, index.is_some());
                    if let Some(index) = index {
                        self.model.fields.remove(index);
                    }
                }
            }
            Op::Expire { field, after, is_wall, condition } => {
                let (name, mut model) = (name(*field), self.model.clone());
                let expires = moment(model.times, *after, *is_wall);
                let expected = model.expire(&name, expires, *condition);
                let field = FieldName::new(&name, SEED);
                if let Ok(done) = self.with(|hash| hash.expire(&field, expires, *condition)) {
                    assert_eq!(done, expected);
                    self.model = model;
                }
            }
            Op::Persist(field) => {
                let (name, mut model) = (name(*field), self.model.clone());
                let expected = model.persist(&name);
                let field = FieldName::new(&name, SEED);
                if let Ok(done) = self.with(|hash| hash.persist(&field)) {
                    assert_eq!(done, expected);
                    self.model = model;
                }
            }
            Op::Pass(_) | Op::SetWall(_) => {}
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8], expiry: FieldExpiry) {
        let field = FieldName::new(name, SEED);
        if let Ok(stored) = self.with(|hash| hash.set(&field, value, expiry)) {
            assert!(stored != Stored::TooLarge);
            assert_eq!(stored, self.model.set(name, value, expiry));
        }
    }

    /// All that goes on beside the commands takes a step.
    fn step(&mut self) {
        // What was stored with an expiry that is over.
        self.model.pass(&Op::Pass(0));
        if let Some(scan) = &mut self.scan {
            scan.throughout.retain(|name| self.model.index(name).is_some());
        }
        if self.sweep.is_none() && self.root.may_have_expired(self.model.times) {
            self.sweep = Some(Sweep::default());
        }
        if self.sweep.is_some() && self.with(|hash| hash.sweep()) == Ok(true) {
            self.sweep = None;
        }
        self.step_scan();
        self.step_stream();
    }

    /// A walk goes on where the hash has become small, or a large one again.
    fn step_scan(&mut self) {
        let names = || self.model.fields.iter().map(|(name, ..)| name.clone()).collect();
        let mut scan =
            self.scan.take().unwrap_or_else(|| Scan { throughout: names(), ..Scan::default() });
        let (cursor, before, times) = (scan.cursor, scan.seen.len(), self.model.times);
        let bytes = |name: Text<'_>| name.with_bytes(<[u8]>::to_vec).unwrap();
        let small = self.items.parts.get(&PartId::WHOLE).map(|kept| {
            let fields = Packed::new(kept).unwrap().fields_from(cursor, SEED).map(Result::unwrap);
            let live = fields.filter(|field| !field.is_over(times));
            live.map(|field| bytes(field.name)).collect::<Vec<_>>()
        });
        let seen = &mut scan.seen;
        let see = |field: Field<'_>| seen.push(bytes(field.name));
        scan.cursor = self.with(|hash| hash.scan(cursor, 3, see)).unwrap();
        assert!(small.is_none_or(|small| small == scan.seen[before..]));
        if scan.cursor != 0 {
            self.scan = Some(scan);
            return;
        }
        for name in &scan.throughout {
            let count = scan.seen.iter().filter(|seen| *seen == name).count();
            assert_eq!(count, 1, "{name:?} was there throughout");
        }
    }

    fn step_stream(&mut self) {
        let Some(running) = &mut self.running else {
            if !self.root.may_have_expired(self.model.times) {
                let stream = FieldStream::new(self.model.times);
                let (announced, expected) = (self.root.fields, self.model.fields.clone());
                let given = Vec::new();
                self.running = Some(Running { stream, announced, expected, given, gone: None });
            }
            return;
        };
        let times = running.stream.times();
        let (items, shape) = running
            .gone
            .as_ref()
            .map_or((&self.items, self.root.shape), |(it, shape)| (it, *shape));
        match running.stream.next(shape) {
            Next::Old(old) => {
                old.parts.values().for_each(|kept| running.given.extend(old.fields(kept, times)));
            }
            Next::Part(part) => running.given.extend(items.fields(&items.parts[&part], times)),
            Next::End => {
                let Running { mut expected, mut given, announced, .. } =
                    self.running.take().expect("it runs");
                assert_eq!(given.len() as u64, announced);
                expected.sort();
                given.sort();
                assert_eq!(given, expected);
            }
        }
    }

    fn check(&mut self) {
        self.model.pass(&Op::Pass(0));
        let mut at = Some(0);
        let (mut parts, mut longs) = (Vec::new(), BTreeSet::new());
        while let Some(first) = at {
            parts.push(self.root.shape.part_of(first));
            at = parts.last().and_then(|part| part.next_hash());
        }
        parts.sort();
        assert!(parts.iter().eq(self.items.parts.keys()));
        let (mut fields, mut bytes, mut long_bytes) = (0, 0, 0);
        let mut live = Vec::new();
        for (part, kept) in &self.items.parts {
            bytes += kept.len() as u64;
            for field in Packed::new(kept).unwrap().fields().map(Result::unwrap) {
                fields += 1;
                if let Text::Long(long) = field.value {
                    longs.insert(long.serial);
                    long_bytes += u64::from(long.bytes);
                }
                let known = known(field, &self.items.longs);
                let hash = FieldName::new(&known.0, SEED).hash();
                assert_eq!(self.root.shape.part_of(hash), *part);
                if !field.is_over(self.model.times) {
                    live.push(known);
                }
            }
        }
        assert_eq!([self.root.fields, self.root.bytes], [fields, bytes]);
        assert_eq!(self.root.long_bytes, long_bytes);
        assert!(longs.iter().eq(self.items.longs.keys()));
        let mut expected = self.model.fields.clone();
        if !self.root.may_have_expired(self.model.times) {
            assert_eq!(self.root.fields as usize, expected.len());
        }
        live.sort();
        expected.sort();
        assert_eq!(live, expected);
        for (name, value, _) in &expected {
            let found =
                self.with(|hash| hash.get(&FieldName::new(name, SEED), |field| field.value.len()));
            assert_eq!(found, Ok(Some(value.len())));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_large_hash_does_what_a_list_of_fields_does(
        ops in prop::collection::vec(op(250), 1..1500),
        full_every in prop_oneof![Just(0u32), 3..20u32],
    ) {
        let mut bed = Bed::new(full_every);
        for (index, op) in ops.iter().enumerate() {
            bed.run(op);
            bed.step();
            if index % 50 == 0 {
                bed.check();
            }
        }
        bed.check();
        // All goes, and the parts with it.
        bed.items.full_every = 0;
        (0..250).for_each(|field| bed.run(&Op::Remove(field)));
        prop_assert_eq!((bed.root.fields, bed.root.shape.parts()), (0, 1));
        bed.check();
    }
}

#[test]
fn a_hash_of_many_fields_has_many_parts_and_costs_few_bytes_a_field() {
    let mut bed = Bed::new(0);
    let names: Vec<String> = (0..20_000).map(|field| format!("field:{field:08}")).collect();
    for name in &names {
        let field = FieldName::new(name.as_bytes(), SEED);
        let stored = bed.with(|hash| hash.set(&field, b"12345678", FieldExpiry::Set(0)));
        assert_eq!(stored, Ok(Stored::Added));
    }
    // A mark and two heads, and the number in four bytes.
    let bytes = bed.root.bytes - 2 * u64::from(bed.root.shape.parts());
    assert_eq!(bytes, 20_000 * (3 + 14 + 4));
    let mean = bed.root.bytes / u64::from(bed.root.shape.parts());
    assert!((700..=768).contains(&mean), "{mean} bytes a part");
    for name in &names {
        let field = FieldName::new(name.as_bytes(), SEED);
        assert_eq!(bed.with(|hash| hash.remove(&field)), Ok(true));
    }
    assert_eq!(bed.root.shape.parts(), 1);
}

#[test]
fn a_small_hash_that_is_full_becomes_a_large_one_with_the_same_fields() {
    let (mut bed, mut small) = (Bed::new(0), PackedHash::new());
    let refused = loop {
        let name = format!("field {}", bed.model.fields.len()).into_bytes();
        let (field, value) = (FieldName::new(&name, SEED), Text::of(b"a value"));
        match small.set(&field, value, FieldExpiry::Keep, PackedLimits::SMALL) {
            Stored::TooLarge => break name,
            stored => assert_eq!(stored, bed.model.set(&name, b"a value", FieldExpiry::Keep)),
        }
    };
    assert!(small.kept().len() > 2000 && small.kept().len() <= 2048);
    bed.items = Items::default();
    let mut shared = Shared { items: &mut bed.items, running: &mut bed.running };
    let times = bed.model.times;
    let mut large = LargeHash::grow(&mut shared, &small, 2, SEED, times).unwrap();
    let stored = large.set(&FieldName::new(&refused, SEED), b"a value", FieldExpiry::Keep);
    assert_eq!(stored, Ok(Stored::Added));
    let (form, retired) = large.finish().unwrap();
    let Form::Large(root) = form else { panic!("{form:?}") };
    assert_eq!(root.shape.parts(), 3);
    bed.items.remove(retired);
    bed.root = root;
    bed.model.set(&refused, b"a value", FieldExpiry::Keep);
    bed.check();
}
