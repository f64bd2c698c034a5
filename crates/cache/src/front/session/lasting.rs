//! Commands of memcached's text protocol that last: listings, which are answered part by part, and
//! connections that are told of events until they end.

use super::{AfterCommand, ParseStep, Pending, Session};
use crate::front::core::Core;
use crate::front::listing::ListingInProgress;
use crate::front::outcome::Refusal;
use crate::front::text;
use crate::front::watch::{Watcher, Watchers};

impl Session {
    /// The lines for its client, if that is told of events.
    pub fn watcher(&self) -> Option<&Watcher> {
        match &self.pending {
            Pending::Watch(watcher) => Some(watcher),
            _ => None,
        }
    }

    /// Goes on behind a text command with a line of `used` bytes.
    pub(super) fn after_text(
        &mut self,
        core: &mut Core,
        next: AfterCommand,
        used: usize,
    ) -> ParseStep {
        match next {
            AfterCommand::List(what) => {
                self.pending = Pending::List(Box::new(ListingInProgress::new(what, used)));
                return ParseStep::Used(0);
            }
            AfterCommand::Watch(wanted) => match Watchers::add(&core.shared.watch, wanted) {
                Some(watcher) => {
                    self.pending = Pending::Watch(watcher);
                    core.say("OK", false);
                    core.look_at_watch();
                }
                None => core.say(&Refusal::TooManyWatchers.to_string(), false),
            },
            next => self.next(next),
        }
        ParseStep::Used(used)
    }

    /// Answers with the next part of a listing; its line is at the beginning of `input`.
    pub(super) fn list(&mut self, core: &mut Core, input: &[u8]) -> ParseStep {
        let Pending::List(listing) = &mut self.pending else { return ParseStep::Used(0) };
        let (is_last, used) = (core.list(listing), listing.used);
        let took_ns = core.timer.alone();
        core.took(0, took_ns);
        core.note_slow(&self.client, took_ns, text::line_words(input));
        if !is_last {
            return ParseStep::Used(0);
        }
        self.pending = Pending::None;
        ParseStep::Used(used)
    }
}
