//! What happened how often in a run or in many: faults, rare branches, races, operations by
//! result. Ordered, so that sums and reports do not depend on which came first.

use super::{Fault, FaultSet};
use rackpool_core::probe::{Race, Rare};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Fault,
    Rare,
    Race,
    /// Operations of clients, by kind and result.
    Operation,
    /// Messages between engines, by kind.
    Message,
    Checked,
}

impl Group {
    pub const ALL: [Group; 6] =
        [Group::Fault, Group::Rare, Group::Race, Group::Operation, Group::Message, Group::Checked];

    pub const fn name(self) -> &'static str {
        match self {
            Group::Fault => "faults",
            Group::Rare => "rare_branches",
            Group::Race => "races",
            Group::Operation => "operations",
            Group::Message => "messages",
            Group::Checked => "checked",
        }
    }
}

/// Counters by group, name and (for operations) result; what never happened is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    counters: BTreeMap<(Group, &'static str, &'static str), u64>,
}

impl Counts {
    pub fn add(&mut self, group: Group, name: &'static str, count: u64) {
        self.add_result(group, name, "", count);
    }

    /// Counts `count` times `name` with this result (`ok`, or an error's code).
    pub fn add_result(
        &mut self,
        group: Group,
        name: &'static str,
        result: &'static str,
        count: u64,
    ) {
        if count > 0 {
            *self.counters.entry((group, name, result)).or_default() += count;
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.add(Group::Fault, fault.name(), 1);
    }

    /// A rare branch was forced.
    pub fn rare(&mut self, rare: Rare) {
        self.add(Group::Rare, rare.name(), 1);
    }

    pub fn race(&mut self, race: Race) {
        self.add(Group::Race, race.name(), 1);
    }

    /// How often `name` happened, with whatever result.
    pub fn get(&self, group: Group, name: &str) -> u64 {
        self.group(group).filter(|(found, ..)| *found == name).map(|(.., count)| count).sum()
    }

    /// Name, result and count of a group.
    pub fn group(
        &self,
        group: Group,
    ) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let range = self.counters.range((group, "", "")..);
        range.take_while(move |((of, ..), _)| *of == group).map(|((_, a, b), n)| (*a, *b, *n))
    }

    /// Adds the counters of another run.
    pub fn merge(&mut self, other: &Counts) {
        for (key, count) in &other.counters {
            *self.counters.entry(*key).or_default() += count;
        }
    }

    /// What could have happened under `faults` and never did: faults of the set, and with all
    /// faults on also rare branches and races.
    pub fn never(&self, faults: FaultSet) -> Vec<&'static str> {
        let mut never: Vec<&'static str> = faults
            .iter()
            .filter(|fault| *fault != Fault::RareBranches)
            .map(Fault::name)
            .filter(|name| self.get(Group::Fault, name) == 0)
            .collect();
        if faults.has(Fault::RareBranches) {
            let rare = Rare::ALL.map(Rare::name);
            never.extend(rare.into_iter().filter(|name| self.get(Group::Rare, name) == 0));
        }
        if faults == FaultSet::ALL {
            let races = Race::ALL.map(Race::name);
            never.extend(races.into_iter().filter(|name| self.get(Group::Race, name) == 0));
        }
        never
    }
}

/// `{"faults": {"delay": 3}, "operations": {"read": {"ok": 7}}}`.
impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Group::ALL.len()))?;
        for group in Group::ALL {
            map.serialize_entry(group.name(), &self.tree(group))?;
        }
        map.end()
    }
}

impl Counts {
    fn tree(&self, group: Group) -> BTreeMap<&'static str, serde_json::Value> {
        let mut tree = BTreeMap::new();
        for (name, result, count) in self.group(group) {
            if result.is_empty() {
                tree.insert(name, serde_json::Value::from(count));
                continue;
            }
            let inner = tree.entry(name).or_insert_with(|| serde_json::json!({}));
            match inner.as_object_mut() {
                Some(results) => drop(results.insert(result.to_owned(), count.into())),
                // Counted with and without a result: the first number keeps a name of its own.
                None => *inner = serde_json::json!({ "": inner.clone(), result: count }),
            }
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_the_order() {
        let (mut a, mut b) = (Counts::default(), Counts::default());
        a.fault(Fault::Delay);
        a.add_result(Group::Operation, "read", "ok", 5);
        b.add_result(Group::Operation, "read", "lost", 1);
        b.race(Race::ALL[0]);
        let (mut ab, mut ba) = (a.clone(), b.clone());
        ab.merge(&b);
        ba.merge(&a);
        assert_eq!(ab, ba);
        assert_eq!(ab.get(Group::Operation, "read"), 6);
        let json = serde_json::to_value(&ab).unwrap();
        assert_eq!(json["operations"]["read"], serde_json::json!({"ok": 5, "lost": 1}));
        assert_eq!(json["faults"]["delay"], 1);
    }

    #[test]
    fn what_never_happened_is_named() {
        let mut counts = Counts::default();
        let two = FaultSet::NONE.with(Fault::Delay).with(Fault::Pause);
        counts.fault(Fault::Pause);
        assert_eq!(counts.never(two), ["delay"]);
        assert_eq!(counts.never(FaultSet::NONE), Vec::<&str>::new());
        let all = counts.never(FaultSet::ALL);
        assert_eq!(all.len(), 16 + Rare::ALL.len() + Race::ALL.len());
    }
}
