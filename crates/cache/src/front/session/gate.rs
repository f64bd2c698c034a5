//! Where each command of RESP is looked at before it runs: while clients are paused or monitored,
//! and where a client wants no answers. In: a command that is whole. Out: whether it may run now;
//! behind it, what is left of its answer. No other session comes here.

use super::{Dialect, Pending, ReplyMode, Session};
use crate::front::commands::{self, CommandId};
use crate::front::core::Core;
use crate::front::monitor::ToldCommand;
use crate::front::resp::{self, Args, Limits, ParsedResp};

impl Session {
    /// Whether the next command waits until a pause is over.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    pub fn release(&mut self) {
        (self.is_held, self.need) = (false, 0);
    }

    /// Whether what comes next may go on; if not, it waits for [`Session::release`].
    pub(super) fn enter_gate(&mut self, core: &mut Core, args: &mut Args, input: &[u8]) -> bool {
        // What began goes on, also what makes room for its value.
        let has_begun =
            !matches!(self.pending, Pending::None) || self.room_steps > 0 || self.fetches > 0;
        if has_begun || self.dialect != Dialect::Resp || !self.client.known {
            return true;
        }
        let limits = Limits::new(true).with_streams(self.is_plain);
        let long = match resp::parse(input, limits, args, &mut self.scan) {
            ParsedResp::Command { .. } => None,
            ParsedResp::Large { len, .. } => Some(len),
            ParsedResp::Need(_) | ParsedResp::Violation(_) => return true,
        };
        if args.is_empty() {
            return true;
        }
        let command = commands::named(args, input, 0);
        if core.pause.holds(command.is_some_and(CommandId::may_write), core.now) {
            (self.is_held, self.need) = (true, input.len() + 1);
            return false;
        }
        self.is_held = false;
        if self.client.reply == ReplyMode::SkipNext {
            self.client.reply = ReplyMode::Skip;
        }
        let words = args.len() + usize::from(long.is_some());
        if command.is_some_and(|command| !command.is_of_admins() && command.takes(words)) {
            self.tell_monitors(core, args, input, long);
        }
        true
    }

    /// `long`: a value behind these words that is still to come.
    fn tell_monitors(&self, core: &Core, args: &Args, input: &[u8], long: Option<u64>) {
        let shared = &core.shared;
        if !shared.monitors.are_any() {
            return;
        }
        let long = long.map(|len| format!("({len} bytes)"));
        let long = long.as_deref().map(str::as_bytes);
        let (at, database, addr) = (core.times().wall, self.client.database, &*self.client.addr);
        let command = ToldCommand { at, database, addr };
        let words = args.words(input).chain(long);
        shared.monitors.tell(&command, words, |thread| shared.wake(thread));
    }

    /// Takes back what a command has answered from byte `start` on, if its client, which wanted
    /// what `before` says when it began, wants no answer.
    pub(super) fn leave_gate(
        &mut self,
        core: &mut Core,
        input: &[u8],
        before: ReplyMode,
        start: usize,
    ) {
        if before == ReplyMode::On || self.client.reply == ReplyMode::On {
            return;
        }
        // What waits in the batch is this command alone.
        core.flush_batch(input);
        core.out.truncate(start);
        let is_over =
            matches!(self.pending, Pending::None) && self.room_steps == 0 && self.fetches == 0;
        if self.client.reply == ReplyMode::Skip && is_over {
            self.client.reply = ReplyMode::On;
        }
    }
}
