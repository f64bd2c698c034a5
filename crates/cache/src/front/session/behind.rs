//! Commands whose items lie behind the cache's memory: such a command waits, with nothing of it
//! done, while other connections are served; when its items are back it is executed as any other.
//! What did not come back is a miss.

use super::{ParseStep, Pending, Session};
use crate::constants::FETCH_KEYS_MAX;
use crate::front::binary::Request;
use crate::front::binary_run::Opcode;
use crate::front::commands;
use crate::front::core::Core;
use crate::front::jobs::JobEnd;
use crate::front::outcome::Verb;
use crate::front::resp::Args;
use crate::front::text::{Command, Get, Store, WordIter, line_words};
use std::sync::Arc;

impl Session {
    /// Has items of these keys come back; whether there are any: the command waits for them.
    fn fetch<'k>(&mut self, core: &Core, keys: impl Iterator<Item = &'k [u8]>) -> bool {
        if std::mem::take(&mut self.has_fetched) {
            return false;
        }
        let cache = core.cache();
        let mut behind = keys.take(FETCH_KEYS_MAX).filter(|key| cache.lies_behind(key, core.now));
        let Some(first) = behind.next() else { return false };
        let (job, end) = JobEnd::begin(core);
        for key in std::iter::once(first).chain(behind) {
            let (shared, end) = (Arc::clone(&core.shared), Arc::clone(&end));
            cache.fetch(key, move || shared.look_at_clock(), move || drop(end));
        }
        drop(end);
        (self.pending, self.has_fetched) = (Pending::Fetch(job), true);
        true
    }

    /// Looks whether what the command at `rest` waits for is there.
    pub(super) fn fetching(&mut self, rest: &[u8]) -> ParseStep {
        match &self.pending {
            Pending::Fetch(job) if !job.is_done() => ParseStep::Need(rest.len() + 1),
            _ => {
                self.pending = Pending::None;
                ParseStep::Used(0)
            }
        }
    }

    /// Whether a command of RESP waits.
    pub(super) fn fetches_resp(&mut self, core: &Core, args: &Args, rest: &[u8]) -> bool {
        // What waits for `EXEC` is one step then, with what is in memory.
        if !core.cache().has_backing() || !self.client.known || self.client.has_begun() {
            return false;
        }
        let Some(command) = commands::find(args.get(rest, 0)) else { return false };
        // A plain store asks for nothing.
        if !command.takes(args.len()) || (command == commands::SET && args.len() == 3) {
            return false;
        }
        self.fetch(core, command.keys(args.len()).map(|word| args.get(rest, word)))
    }

    /// Whether a look-up of memcached's text protocol waits.
    pub(super) fn fetches_get(&mut self, core: &Core, get: &Get<'_>) -> bool {
        core.cache().has_backing() && self.fetch(core, WordIter(get.keys.0))
    }

    /// Whether a store waits: one that depends on what is there.
    pub(super) fn fetches_store(&mut self, core: &Core, store: &Store<'_>) -> bool {
        let depends = store.verb != Verb::Set || store.meta.is_some();
        depends && core.cache().has_backing() && self.fetch(core, std::iter::once(store.key()))
    }

    /// Whether a request of the binary protocol waits.
    pub(super) fn fetches_binary(
        &mut self,
        core: &Core,
        request: &Request<'_>,
        opcode: Opcode,
    ) -> bool {
        let depends = !matches!(opcode, Opcode::Store(Verb::Set)) || request.cas != 0;
        depends && core.cache().has_backing() && self.fetch(core, std::iter::once(request.key))
    }

    /// Whether another command of the text protocol waits, the line of which `rest` begins with.
    pub(super) fn fetches_text(&mut self, core: &Core, command: &Command<'_>, rest: &[u8]) -> bool {
        if !core.cache().has_backing() {
            return false;
        }
        match command {
            Command::Meta(meta) => self.fetch(core, std::iter::once(meta.key.bytes())),
            Command::Delete(_) | Command::Count(_) | Command::Touch(..) => {
                self.fetch(core, line_words(rest).skip(1).take(1))
            }
            _ => false,
        }
    }
}
