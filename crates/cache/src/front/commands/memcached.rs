//! memcached's commands: the text protocol's by the first word of their line, the binary protocol's
//! by their number, the meta commands for the book. `set` and the meta commands are found before
//! they are looked for here.

use super::hash;
use crate::front::binary_run::Opcode;
use crate::front::outcome::{Refusal, Verb};
use crate::front::text::{self, Command, Line};

/// A command of the text protocol.
pub struct TextCommand {
    pub name: &'static str,
    /// Words with the name, at least; what is more than it takes is passed over.
    pub words_min: usize,
    /// From how many words on the last one may be `noreply`; loud ones are always answered.
    pub quiet_from: usize,
    /// What a line of as many words means.
    pub parse: for<'a> fn(&Line<'a>) -> Result<Command<'a>, Refusal>,
    #[cfg(test)]
    pub about: About,
}

/// A command of the binary protocol.
pub struct BinaryCommand {
    pub code: u8,
    /// The number of the same command that is not answered when it succeeds.
    pub quiet_code: Option<u8>,
    pub command: Opcode,
    #[cfg(test)]
    pub about: About,
}

/// What the book says of a command.
#[cfg(test)]
pub struct About {
    /// The words behind the name; of the binary protocol the name.
    pub syntax: &'static str,
    /// How it differs from memcached's; empty: in nothing.
    pub differs: &'static str,
    /// Why it is refused; empty: it is not.
    pub refused: &'static str,
}

const LOUD: usize = usize::MAX;
/// Of commands that are no client's: also where blanks stand before them.
pub const QUIET: usize = 1;

macro_rules! text_commands {
    ($($name:literal $words_min:expr, $quiet_from:expr, $parse:expr,
        $syntax:literal $(differs $differs:literal)? $(refused $refused:literal)?;)*) => {
        &[$(TextCommand {
            name: $name,
            words_min: $words_min,
            quiet_from: $quiet_from,
            parse: $parse,
            #[cfg(test)]
            about: About {
                syntax: $syntax,
                differs: concat!($($differs)?),
                refused: concat!($($refused)?),
            },
        }),*]
    };
}

pub const TEXT: &[TextCommand] = text_commands! {
    "add" 5, 5, |line| text::store(line, Verb::Add),
        "key flags exptime bytes [noreply]";
    "append" 5, 5, |line| text::store(line, Verb::Append),
        "key flags exptime bytes [noreply]";
    "bget" 2, LOUD, |line| text::get(line.tail, false),
        "key ...";
    "cache_memlimit" 1, QUIET, text::memory_limit,
        "megabytes [noreply]" differs "Up to the memory that was given at the start.";
    "cas" 5, 5, |line| text::store(line, Verb::Cas(0)),
        "key flags exptime bytes unique [noreply]";
    "decr" 3, 3, |line| text::count_by(line, true),
        "key number [noreply]";
    "delete" 2, 2, text::delete,
        "key [noreply]";
    "extstore" 1, QUIET, |_| Err(Refusal::NotOffered("see --value-tier")),
        "subcommand ..." refused "see --value-tier";
    "flush_all" 1, QUIET, text::flush_all,
        "[delay] [noreply]";
    "gat" 3, LOUD, |line| text::get_touch(line, false),
        "exptime key ...";
    "gats" 3, LOUD, |line| text::get_touch(line, true),
        "exptime key ...";
    "get" 2, LOUD, |line| text::get(line.tail, false),
        "key ...";
    "gets" 2, LOUD, |line| text::get(line.tail, true),
        "key ...";
    "incr" 3, 3, |line| text::count_by(line, false),
        "key number [noreply]";
    "lru" 1, QUIET, |_| Err(Refusal::NotOffered("the policy is given at the start")),
        "subcommand ..." refused "the policy is given at the start";
    "lru_crawler" 1, QUIET, text::lru_crawler,
        "metadump|mgdump|crawl all|hash|1 | enable"
        differs "All items are of class 1; `crawl` frees memory in which all has expired; no \
                 `disable`, `sleep`, `tocrawl`: expired items go without a crawler. Keys are in \
                 base64 where they cannot stand in a line.";
    "prepend" 5, 5, |line| text::store(line, Verb::Prepend),
        "key flags exptime bytes [noreply]";
    "quit" 1, LOUD, |_| Ok(Command::Quit),
        "";
    "refresh_certs" 1, QUIET, |_| Err(Refusal::NotOffered("certificates are read at the start")),
        "" refused "certificates are read at the start";
    "replace" 5, 5, |line| text::store(line, Verb::Replace),
        "key flags exptime bytes [noreply]";
    "set" 5, 5, |line| text::store(line, Verb::Set),
        "key flags exptime bytes [noreply]";
    "shutdown" 1, QUIET, text::shutdown,
        "[graceful]" differs "With `--enable-shutdown`; both ways clients get their answers.";
    "slabs" 1, QUIET, |_| Err(Refusal::NotOffered("memory is not divided by size")),
        "subcommand ..." refused "memory is not divided by size";
    "stats" 1, LOUD, |line| Ok(Command::Stats(line.tail)),
        "[settings | items | slabs | sizes | conns | reset | detail on|off|dump]"
        differs "`slabs` tells of segments; `sizes`, always on, looks at all items; `conns` names \
                 clients of memcached's protocols by numbers of ours; what means nothing here is \
                 absent; no `cachedump`, see `lru_crawler`.";
    "touch" 3, 3, text::touch,
        "key exptime [noreply]";
    "verbosity" 1, QUIET, text::verbosity,
        "level [noreply]" differs "Is kept for `stats settings`, and has no other effect.";
    "version" 1, LOUD, |_| Ok(Command::Version),
        "";
    "watch" 1, LOUD, text::watch,
        "[fetchers] [mutations] [deletions] [evictions] [connevents]"
        differs "What clients of memcached's protocols do; lines come within some 20 ms, `cfd` is \
                 a number of ours; no events of a proxy.";
};

/// Meta commands: name, and what stands behind it; how it differs.
#[cfg(test)]
pub const META: &[(&str, &str, &str)] = &[
    ("ma", "key [b C D E I J M N O T c k q t v]", ""),
    ("md", "key [b C E F I O T k q x]", ""),
    ("me", "key [b]", "Tells what items have here."),
    ("mg", "key [b C E N O R T c f h k l q s t u v]", ""),
    ("mn", "", ""),
    (
        "ms",
        "key bytes [b C E F I M N O T c k q s]",
        "`I` with an older version marks larger ones too. `E0` has the server choose.",
    ),
];

macro_rules! binary_commands {
    ($($code:literal $quiet:expr, $name:literal $command:expr
        $(, refused $refused:literal)?;)*) => {
        &[$(BinaryCommand {
            code: $code,
            quiet_code: $quiet,
            command: $command,
            #[cfg(test)]
            about: About { syntax: $name, differs: "", refused: concat!($($refused)?) },
        }),*]
    };
}

const fn look_up(key: bool, touch: bool) -> Opcode {
    Opcode::Get { key, touch }
}

pub const BINARY: &[BinaryCommand] = binary_commands! {
    0x00 Some(0x09), "get" look_up(false, false);
    0x01 Some(0x11), "set" Opcode::Store(Verb::Set);
    0x02 Some(0x12), "add" Opcode::Store(Verb::Add);
    0x03 Some(0x13), "replace" Opcode::Store(Verb::Replace);
    0x04 Some(0x14), "delete" Opcode::Delete;
    0x05 Some(0x15), "increment" Opcode::Count { down: false };
    0x06 Some(0x16), "decrement" Opcode::Count { down: true };
    0x07 Some(0x17), "quit" Opcode::Quit;
    0x08 Some(0x18), "flush" Opcode::Flush;
    0x0a None, "noop" Opcode::Noop;
    0x0b None, "version" Opcode::Version;
    0x0c Some(0x0d), "getk" look_up(true, false);
    0x0e Some(0x19), "append" Opcode::Store(Verb::Append);
    0x0f Some(0x1a), "prepend" Opcode::Store(Verb::Prepend);
    0x10 None, "stat" Opcode::Stat;
    0x1c None, "touch" Opcode::Touch;
    0x1d Some(0x1e), "gat" look_up(false, true);
    0x20 None, "sasl list mechanisms" Opcode::Sasl,
        refused "passwords are given by the text protocol";
    0x21 None, "sasl auth" Opcode::Sasl, refused "passwords are given by the text protocol";
    0x22 None, "sasl step" Opcode::Sasl, refused "passwords are given by the text protocol";
    0x23 Some(0x24), "gatk" look_up(true, true);
};

/// Numbers of binary commands are below this one.
const CODES: usize = 0x25;

/// By number: the command, and whether it is quiet.
static BY_CODE: [(Opcode, bool); CODES] = by_code();

const fn by_code() -> [(Opcode, bool); CODES] {
    let (mut by_code, mut index) = ([(Opcode::Unknown, false); CODES], 0);
    while index < BINARY.len() {
        let BinaryCommand { code, quiet_code, command, .. } = BINARY[index];
        by_code[code as usize] = (command, false);
        if let Some(code) = quiet_code {
            by_code[code as usize] = (command, true);
        }
        index += 1;
    }
    by_code
}

/// The binary command of that number, and whether it is quiet.
pub fn binary(code: u8) -> (Opcode, bool) {
    BY_CODE.get(usize::from(code)).copied().unwrap_or((Opcode::Unknown, false))
}

const SLOT_BITS: u32 = 6;
const SLOTS_COUNT: usize = 1 << SLOT_BITS;
const EMPTY: u8 = u8::MAX;
const NAME_BYTES_MAX: usize = 16;

/// The place of each text command at the slot of its name's hash, or behind it.
static SLOTS: [u8; SLOTS_COUNT] = slots();

const fn slot(name: &[u8]) -> usize {
    (hash(name) >> (u32::BITS - SLOT_BITS)) as usize
}

const fn slots() -> [u8; SLOTS_COUNT] {
    assert!(TEXT.len() < SLOTS_COUNT / 2);
    let (mut slots, mut index) = ([EMPTY; SLOTS_COUNT], 0);
    while index < TEXT.len() {
        let name = TEXT[index].name.as_bytes();
        assert!(name.len() <= NAME_BYTES_MAX);
        let mut at = slot(name);
        while slots[at] != EMPTY {
            at = (at + 1) % SLOTS_COUNT;
        }
        slots[at] = index as u8;
        index += 1;
    }
    slots
}

/// The text command of that name.
pub fn text(name: &[u8]) -> Option<&'static TextCommand> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut at = slot(name);
    loop {
        // An empty slot names no place.
        let command = TEXT.get(usize::from(SLOTS[at]))?;
        if command.name.as_bytes() == name {
            return Some(command);
        }
        at = (at + 1) % SLOTS_COUNT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::text::ParsedText;

    fn parsed(line: &str) -> Command<'_> {
        match text::parse(line.as_bytes(), 0) {
            ParsedText::Command { command, .. } => command,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn text_commands_are_in_order_and_found() {
        assert!(TEXT.is_sorted_by(|a, b| a.name < b.name));
        for command in TEXT {
            assert_eq!(text(command.name.as_bytes()).unwrap().name, command.name);
            let is_refused = matches!(
                parsed(&format!("{} 1 1 1 1\r\n", command.name)),
                Command::Refused(Refusal::NotOffered(_))
            );
            assert_eq!(is_refused, !command.about.refused.is_empty(), "{}", command.name);
        }
        assert!(text(b"").is_none() && text(b"GET").is_none() && text(b"getss").is_none());
    }

    #[test]
    fn meta_commands_of_the_book_are_known_with_their_flags() {
        for (name, syntax, _) in META {
            let (words, flags) = syntax.split_once(" [").unwrap_or((syntax, ""));
            for flag in flags.trim_end_matches(']').split_terminator(' ') {
                let argument = match (*name, flag) {
                    (_, "C" | "D" | "E" | "F" | "J" | "N" | "R" | "T") => "1",
                    ("ms", "M") => "S",
                    (_, "M") => "I",
                    _ => "",
                };
                let line = format!("{name} {words} {flag}{argument}\r\n").replace("bytes", "1");
                let line = line.replace("key", "a2V5");
                let command = parsed(&line);
                let is_known = matches!(command, Command::Meta(_) | Command::Store(_));
                assert!(is_known, "{line:?}: {command:?}");
            }
        }
    }

    #[test]
    fn every_number_of_a_binary_command_is_its_own() {
        let codes = BINARY.iter().flat_map(|one| [Some(one.code), one.quiet_code]).flatten();
        let mut codes: Vec<_> = codes.collect();
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
        assert_eq!(binary(0x09), (Opcode::Get { key: false, touch: false }, true));
        assert_eq!(binary(0x1f), (Opcode::Unknown, false));
        assert_eq!(binary(0xff), (Opcode::Unknown, false));
    }
}
