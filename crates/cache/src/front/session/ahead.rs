//! Memory of the keys of commands that follow one another in what was read: it is asked for before
//! the first of them runs, so that a wait for it is paid once. Plain look-ups and stores of RESP do
//! so in batches of their own.

use crate::constants::BATCH_KEYS_MAX;
use crate::front::commands::{self, CommandId};
use crate::front::core::Core;
use crate::front::resp::{self, Args, Limits, ParsedResp, Scan};

/// Asks for the keys of commands from `at` on; [`Core::asked_to`] says how far.
pub(super) fn ask(core: &mut Core, input: &[u8], mut at: usize) {
    let mut args = std::mem::take(&mut core.args_ahead);
    let (mut keys, mut count) = ([&[][..]; BATCH_KEYS_MAX], 0);
    while count < BATCH_KEYS_MAX {
        let limits = Limits::new(true).with_streams(false);
        let rest = &input[at..];
        let parsed = resp::parse(rest, limits, &mut args, &mut Scan::default());
        let ParsedResp::Command { used } = parsed else { break };
        if let Some((start, len)) = first_key(rest, &args) {
            keys[count] = &rest[start as usize..][..len as usize];
            count += 1;
        }
        at += used;
    }
    core.asked_to = at;
    core.args_ahead = args;
    core.db.prefetch(&keys[..count]);
}

/// Where the first key of a command lies that was parsed.
fn first_key(rest: &[u8], args: &Args) -> Option<(u32, u32)> {
    let command: CommandId = commands::find(args.words(rest).next()?)?;
    let word = command.keys(args.len()).next().filter(|word| *word < args.len())?;
    args.span(word)
}
