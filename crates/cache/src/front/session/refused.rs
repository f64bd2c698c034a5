//! What is too long is answered as soon as its length is known, and passed over, so that the
//! connection goes on.

use super::{ParseStep, Pending, Session};
use crate::front::commands;
use crate::front::core::Core;
use crate::front::counters::Count;
use crate::front::resp::{self, Limits};
use crate::front::too_long::{Limit, TooLong};

impl Session {
    /// Passes over what was refused.
    pub(super) fn skip(&mut self, core: &mut Core, rest: &[u8]) -> ParseStep {
        let Pending::Skip { bytes, words } = &mut self.pending else { return ParseStep::Used(0) };
        let mut used = 0;
        if *bytes == 0 && *words > 0 {
            match resp::head(rest, 0, Limits::new(self.client.known)) {
                Ok((start, len)) => {
                    (*bytes, *words) = (len as u64 + 2, *words - 1);
                    used = start;
                }
                Err(resp::ParsedResp::Violation(violation)) => {
                    core.fail(&format!("ERR {violation}"));
                    return self.fail(core);
                }
                Err(resp::ParsedResp::Need(need)) => return ParseStep::Need(need),
                Err(_) => unreachable!("a head is no command"),
            }
        }
        let skipped = (*bytes).min((rest.len() - used) as u64);
        *bytes -= skipped;
        if *bytes == 0 && *words == 0 {
            self.pending = Pending::None;
        }
        ParseStep::Used(used + skipped as usize)
    }

    /// Answers to a `SET` before its value came; `pending` passes over that.
    #[cold]
    pub(super) fn refuse_set(
        &mut self,
        core: &mut Core,
        key: &[u8],
        why: TooLong,
        pending: Pending,
    ) {
        core.count(Count::TooLarge);
        core.fail(&format!("ERR a value of {} bytes: {why}", why.bytes));
        core.counters().failed(commands::SET);
        self.pending = pending;
        core.timer.commands += 1;
        let words = [&b"set"[..], key, b"(a value that is too long)"].into_iter();
        self.end_part(core, 0, &mut None, Some(commands::SET), words);
    }

    /// Answers to a command of which more would have to be held than may be, before it is whole.
    #[cold]
    pub(super) fn refuse_command(
        &mut self,
        core: &mut Core,
        input: &[u8],
        at: usize,
        need: usize,
    ) -> ParseStep {
        core.flush_batch(input);
        self.end_batch(core, input, at);
        let max_bytes = core.shared.settings.input_bytes_max() as u64;
        let why = TooLong { limit: Limit::Held, bytes: need as u64, max_bytes };
        core.count(Count::TooLarge);
        core.fail(&format!("ERR a command of {need} bytes: {why}"));
        self.client.refuse_transaction();
        let (used, words) = self.scan.give_up();
        self.pending = Pending::Skip { bytes: 0, words };
        self.end_alone(core, 0, std::iter::once(&b"(a command that is too long)"[..]));
        ParseStep::Used(used)
    }
}
