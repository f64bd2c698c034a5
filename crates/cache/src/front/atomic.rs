//! Commands that are one step to all others, whatever protocol these speak
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)): `EXEC`, and what
//! reads or writes several keys at once. In: the keys that it names, and what is to be done. While
//! that runs, all who need one of these keys wait; it uses [`Core::db`] as ever.

use super::core::Core;
use crate::cache::Section;

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
    /// `f` must not use the keys of a handle of the cache other than [`Core::db`] and those made
    /// of it: they would wait for this section. A key that is not held is read and changed as
    /// it stands, and no step with the others.
    pub fn atomically<R>(&mut self, keys: Keys<'_>, f: impl FnOnce(&mut Core) -> R) -> R {
        todo!()
    }

    /// Whether the section that runs holds a key of the database that is in use.
    pub fn holds(&self, key: &[u8]) -> bool {
        todo!()
    }

    /// Has the section that runs hold more keys, for commands that find out late which they need.
    /// `false`, and nothing has changed, if another section holds one of them: to wait for it might
    /// be a deadlock.
    pub fn hold_more(&mut self, keys: &[(u8, &[u8])]) -> bool {
        todo!()
    }
}
