//! Commands that are one step to all others, whatever protocol these speak
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)): `EXEC`, and what
//! reads or changes several keys at once. In: the keys, and what is to be done. While that runs,
//! threads that need one of these keys wait; it uses [`Core::db`] as ever.

use super::clients::ClientInfo;
use super::core::Core;
use super::redis::{CommandResult, RespCall};
use crate::cache::{Section, SectionKeys};

/// What a section holds.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// Keys with the numbers of their databases, in any order, some perhaps twice.
    Named(&'a [(u8, &'a [u8])]),
    /// All keys of all databases: for what names none.
    All,
}

impl Core {
    /// Runs `f` as one step: others see all that it does, or nothing. May wait for other sections
    /// before it begins. Within a section it runs `f` as a part of that, which has to hold `keys`.
    ///
    /// `f` must not use a handle of the cache other than [`Core::db`] and those made of it: that
    /// would wait for this section. A key that is not held is read and changed as it stands, and
    /// is no step with the others.
    pub fn atomically<R>(&mut self, keys: Keys<'_>, f: impl FnOnce(&mut Core) -> R) -> R {
        if self.section.is_some() {
            return f(self);
        }
        let section = match keys {
            Keys::Named(keys) => self.hold(keys),
            Keys::All => self.shared.cache.hold_all(),
        };
        self.section = Some(section);
        // Another space may have become the database since the bytes of this command came.
        self.use_database(self.database());
        self.db.enter_section(self.section.as_ref());
        let result = f(self);
        self.db.enter_section(None);
        self.section = None;
        result
    }

    fn hold(&self, keys: &[(u8, &[u8])]) -> Section {
        loop {
            let version = self.shared.cache.databases_version();
            let section = self.shared.cache.hold(self.section_keys(keys, version));
            // Swaps and flushes of databases wait for this section from here on.
            if version == self.shared.cache.databases_version() {
                return section;
            }
        }
    }

    fn section_keys(&self, keys: &[(u8, &[u8])], version: u64) -> SectionKeys {
        let mut all = SectionKeys::with_capacity(keys.len());
        for keys in keys.chunk_by(|(a, _), (b, _)| a == b) {
            let number = keys[0].0;
            let other = (!self.is_on(number, version)).then(|| self.db.in_database(number));
            let database = other.as_ref().unwrap_or(&self.db);
            keys.iter().for_each(|(_, key)| all.add(database, key));
        }
        all
    }

    /// Whether the section that runs holds a key of the database that is in use.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.section.as_ref().is_some_and(|section| section.holds(&self.db, key))
    }

    /// Has the section that runs hold more keys, for commands that find out late which they need.
    /// `false`, and nothing has changed, if another section holds one of them: that one ends, unless
    /// it tries to hold more itself.
    pub fn hold_more(&mut self, keys: &[(u8, &[u8])]) -> bool {
        let keys = self.section_keys(keys, self.shared.cache.databases_version());
        self.section.as_mut().is_some_and(|section| section.hold_more(keys))
    }
}

impl RespCall<'_> {
    /// Runs `f` with this call as one step ([`Core::atomically`]); it must not go on later.
    pub fn atomically(
        &mut self,
        keys: Keys<'_>,
        f: impl FnOnce(&mut RespCall<'_>) -> CommandResult,
    ) -> CommandResult {
        let (input, args) = (self.input, self.args);
        let client: &mut ClientInfo = self.client;
        self.core.atomically(keys, |core| f(&mut RespCall::new(core, client, input, args)))
    }
}
