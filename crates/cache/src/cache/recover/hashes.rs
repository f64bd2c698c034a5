//! Large hashes of an earlier process: each has all of its items or is lost, and what belongs to
//! none goes. A process that was killed in a change may have put parts and not the root, so fields
//! are counted anew.

use crate::cache::draft::ItemDraft;
use crate::cache::error::Result;
use crate::cache::key::{Key, PARTS};
use crate::cache::layout::{Fields, Header, Pos, Slot};
use crate::cache::partition::{HashId, Partition, ROOT};
use crate::hashes::{HashItem, Packed, ROOT_BYTES, Root, Text};

/// Marks the entry of an item that belongs to a hash, until all are marked: clients' marks are on
/// no such item.
const MARK: u64 = Slot::WON;

/// A root that is to be put anew.
pub(super) struct CountedRoot {
    key: Vec<u8>,
    header: Header,
    fields: Fields,
    root: Root,
}

impl Partition {
    /// Takes out hashes that lack an item, which are counted, and items that belong to none. The
    /// roots that say other than their parts.
    pub(super) fn recover_hashes(&mut self) -> (u64, Vec<CountedRoot>) {
        let (mut lost, mut counted) = (0, Vec::new());
        for (pos, header, root) in self.roots() {
            let owner = self.hash_at(pos, header);
            let id = HashId { owner, generation: root.generation };
            let Some((found, now)) = self.count_parts(id, &root) else {
                let entry = self.index.find(owner, |slot| slot.pos() == pos);
                self.remove(owner, entry.expect("it was found by its entry"));
                lost += 1;
                continue;
            };
            for at in found {
                self.index.mark(at, self.index.slot_at(at).set(MARK, true));
            }
            self.hashes.note_root(id, &root);
            if now != root {
                let mut key = Vec::new();
                self.key_of(pos, header, &mut key);
                let fields = self.fields(pos, header);
                let fields = Fields { cas: self.cas_of(pos, header), ..fields };
                counted.push(CountedRoot { key, header, fields, root: now });
            }
        }
        if self.items_in(PARTS) > 0 {
            self.drop_unmarked();
        }
        (lost, counted)
    }

    fn visit_all(&self, mut f: impl FnMut(u64, Slot, Header)) {
        let mut cursor = 0;
        loop {
            cursor = self.index.scan(cursor, |at, slot| f(at, slot, self.header(slot.pos())));
            if cursor == 0 {
                return;
            }
        }
    }

    fn roots(&self) -> Vec<(Pos, Header, Root)> {
        let mut roots = Vec::new();
        self.visit_all(|_, slot, header| {
            let root = self.root_at(slot.pos(), header);
            roots.extend(root.map(|root| (slot.pos(), header, root)));
        });
        roots
    }

    /// Where the entries of a hash's items lie, and the root as they say that it is; `None` if one
    /// is not there.
    fn count_parts(&self, id: HashId, root: &Root) -> Option<(Vec<u64>, Root)> {
        let mut found = Vec::new();
        let mut now = Root { fields: 0, bytes: 0, long_bytes: 0, ..*root };
        let mut next = Some(0);
        while let Some(at) = next {
            let part = root.shape.part_of(at);
            next = part.next_hash();
            let (_, (at, slot)) = self.find_hash_item(id, HashItem::Part(part))?;
            found.push(at);
            let mut kept = Vec::new();
            self.append_value(slot.pos(), &mut kept);
            now.bytes += kept.len() as u64;
            for field in Packed::new(&kept).ok()?.fields() {
                let field = field.ok()?;
                now.fields += 1;
                now.note_expiry(field.expires);
                if let Text::Long(long) = field.value {
                    let (_, (at, _)) = self.find_hash_item(id, HashItem::Long(long.serial))?;
                    found.push(at);
                    now.long_bytes += u64::from(long.bytes);
                    now.next_serial = now.next_serial.max(long.serial + 1);
                }
            }
        }
        Some((found, now))
    }

    fn drop_unmarked(&mut self) {
        let (mut marked, mut others) = (Vec::new(), Vec::new());
        self.visit_all(|at, slot, header| {
            if self.space_at(slot.pos(), header) == PARTS {
                match slot.has(MARK) {
                    true => marked.push(at),
                    false => others.push((slot.pos(), header)),
                }
            }
        });
        for at in marked {
            // No client was told its cas.
            let slot = self.index.slot_at(at).set(MARK, false).set(Slot::SEEN, false);
            self.index.mark(at, slot);
        }
        for (pos, header) in others {
            let hash = self.hash_at(pos, header);
            let entry = self.index.find(hash, |slot| slot.pos() == pos);
            self.remove(hash, entry.expect("it was found by its entry"));
        }
    }

    /// Puts roots anew that said other than their parts; a hash without room for its root is
    /// lost.
    pub(super) fn put_counted(&mut self, counted: Vec<CountedRoot>) {
        for CountedRoot { key, header, fields, root } in counted {
            let key = Key::of_stored(&key, header);
            let hash = key.hash(self.seed);
            let id = HashId { owner: hash, generation: root.generation };
            let draft = ItemDraft { key, hash, value_bytes: 1 + ROOT_BYTES as u64, fields };
            let room = self.make_hash_room(draft.whole_bytes() + 64, 0, fields.expires, 0);
            self.drop_lost_hashes();
            // It may have gone for the room.
            let Some((found, _)) = self.find_root(id) else { continue };
            let put: Result<()> =
                room.and_then(|()| self.put_quietly(&draft, &[&[ROOT], &root.kept()], 0));
            match put {
                Ok(()) => self.hashes.note_root(id, &root),
                Err(_) => self.remove(hash, found),
            }
        }
    }
}
