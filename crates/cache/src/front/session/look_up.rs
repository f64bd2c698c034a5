//! Look-ups of memcached's text protocol: lines with any number of keys, which go on when their
//! client has taken answers.

use super::{ParseStep, Pending, Retrieval, Session};
use crate::front::core::Core;
use crate::front::text::{self, Get};

impl Session {
    /// Looks up the keys of a line, of which `used` bytes begin at `at`.
    pub(super) fn look_up(
        &mut self,
        core: &mut Core,
        input: &[u8],
        at: usize,
        get: &Get<'_>,
        used: usize,
    ) -> ParseStep {
        if !core.sets.is_empty() {
            core.flush_batch(input);
        }
        let left = match get.touch {
            None => core.text_get(get, input),
            Some(exptime) => {
                core.flush_batch(input);
                core.text_get_touch(get, exptime)
            }
        };
        let Some(keys) = left else {
            core.timer.commands += 1;
            return ParseStep::Used(used);
        };
        let (start, left) = (keys.0.as_ptr() as usize - input.as_ptr() as usize, keys.0.len());
        let (end, cas, touch) = (start + left - at, get.cas, get.touch);
        self.pending = Pending::Keys(Retrieval { used, end, left, cas, touch });
        // Of what may be long each part is timed; it is counted at its end.
        core.flush_batch(input);
        self.end_batch(core, input, at);
        let took_ns = core.timer.alone();
        core.took(0, took_ns);
        core.note_slow(&self.client, took_ns, text::line_words(&input[at..]));
        ParseStep::Used(0)
    }

    pub(super) fn look_up_from(
        &mut self,
        core: &mut Core,
        input: &[u8],
        at: usize,
        rest: Retrieval,
    ) -> ParseStep {
        let Retrieval { used, end, left, cas, touch } = rest;
        let keys = text::WordIter(&input[at + end - left..at + end]);
        self.look_up(core, input, at, &Get { keys, cas, touch }, used)
    }
}
