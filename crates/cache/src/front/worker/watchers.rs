//! The watchers among a worker's connections: they are sent what waits for them once a wake-up, as
//! long as their clients take it.

use super::{Connection, Worker, note_held};
use crate::front::clients::ClientInfo;
use crate::front::core::Core;

/// Where a worker's watchers are.
#[derive(Default)]
pub(super) struct LocalWatchers {
    places: Vec<usize>,
    /// The version of the list of all watchers by then.
    version: u64,
}

impl LocalWatchers {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl Worker<'_> {
    /// Sends this thread's watchers what waits for them.
    pub(super) fn serve_watchers(&mut self) {
        let version = self.core.shared.watch.version();
        if self.watchers.version != version {
            let is_watcher = |one: &Connection| one.session.watcher().is_some();
            let places = (0..self.connections.len())
                .filter(|place| self.connections[*place].as_deref().is_some_and(is_watcher));
            self.watchers = LocalWatchers { places: places.collect(), version };
            self.core.shared.watch.tell_cache(&self.core.shared.cache);
        }
        if !self.watchers.is_empty() && self.core.log.watches_evictions() {
            self.core.tell_of_evictions();
        }
        for place in &self.watchers.places {
            let Some(Some(connection)) = self.connections.get_mut(*place) else { continue };
            let before = connection.held_bytes();
            connection.send_lines(&mut self.core);
            note_held(&self.core, before, connection.held_bytes());
        }
    }

    /// Tells watchers of a connection that came or went.
    #[cold]
    pub(super) fn note_connection(&mut self, what: &str, client: &ClientInfo) {
        self.core.log.connection(what, client);
        self.core.log.publish(&self.core.shared.watch, client.id);
    }
}

impl Connection {
    /// Sends the lines that wait, unless some are on their way already: then its client is slow,
    /// and what does not fit meanwhile is left out.
    fn send_lines(&mut self, core: &mut Core) {
        let Some(watcher) = self.session.watcher() else { return };
        if self.is_stuck() {
            return;
        }
        watcher.take_lines(&mut core.out.bytes);
        // One that has nothing to be told is not silent.
        self.active = core.now;
        if !core.out.is_empty() {
            self.send(core);
        }
    }
}
