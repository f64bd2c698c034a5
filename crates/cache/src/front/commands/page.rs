//! The book's page of commands, as the tables have it.
//! `RACKPOOL_BLESS=1 cargo test -p rackpool-cache --lib commands::page` writes it anew.

use super::memcached::{About, BINARY, META, TEXT};
use super::refused::REFUSED;
use super::{Command, CommandId};
use std::fmt::Write;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");

const LINE_CHARS: usize = 100;

const HEAD: &str = "\
# Commands

<!-- Written by `RACKPOOL_BLESS=1 cargo test -p rackpool-cache --lib commands::page`. -->

What `rackpool kv` answers to clients of Redis and memcached: the same as redis 7.0 and memcached
1.6.45, the same but for what is said here, or an error with the reason. `COMMAND DOCS`, `COMMAND
INFO` and `HELP` tell more of each, `INFO commandstats` how often each ran. What all have in common:
[the cache](cache.md).
";

const REFUSED_HEAD: &str = "\
Refused with `ERR unknown command 'name', reason`, subcommands with `ERR unknown subcommand 'name':
reason`:
";

const OF_HASHES: &str = "\
A hash of Redis's has no value that could be read here, nor by HERD: look-ups miss it, `append` and
`prepend` answer `NOT_STORED`, `incr` and `decr` that it is no number. It is there for all others.

";

/// Appends names as a paragraph.
fn push_names<'a>(page: &mut String, head: &str, names: impl Iterator<Item = &'a str>) {
    let mut line = head.to_owned();
    let mut names = names.peekable();
    while let Some(name) = names.next() {
        let word = format!(" {name}{}", if names.peek().is_some() { "," } else { "." });
        if line.chars().count() + word.len() > LINE_CHARS {
            writeln!(page, "{line}").unwrap();
            line = word.trim_start().to_owned();
        } else {
            line += &word;
        }
    }
    writeln!(page, "{line}").unwrap();
}

fn shown(command: &Command) -> String {
    command.name.replace('|', " ")
}

fn push_redis(page: &mut String) {
    page.push_str("\n## Redis\n\n");
    let commands = || CommandId::all().map(CommandId::command);
    // A command is as its subcommands are.
    let alone = |command: &&Command| !command.has(super::CONTAINER) || command.name == "command";
    let same = commands().filter(alone).filter(|command| command.differs.is_empty());
    let same: Vec<_> = same.map(shown).collect();
    push_names(page, "The same:", same.iter().map(String::as_str));
    push_differing(page, commands().map(|command| (shown(command), command.differs)));
    writeln!(page, "\n{REFUSED_HEAD}").unwrap();
    for some in REFUSED {
        let names = some.names.iter().map(|name| name.replace('|', " ")).collect::<Vec<_>>();
        push_names(page, &format!("- {}:", some.why), names.iter().map(String::as_str));
    }
}

/// How commands differ, those together that differ alike.
fn push_differing(page: &mut String, commands: impl Iterator<Item = (String, &'static str)>) {
    let mut groups: Vec<(&str, String)> = Vec::new();
    for (name, differs) in commands.filter(|(_, differs)| !differs.is_empty()) {
        match groups.iter_mut().find(|(how, _)| *how == differs) {
            Some((_, names)) => write!(names, ", `{name}`").unwrap(),
            None => groups.push((differs, format!("`{name}`"))),
        }
    }
    page.push_str("\nDifferent:\n\n");
    for (how, names) in groups {
        writeln!(page, "- {names}: {how}").unwrap();
    }
}

fn push_memcached(page: &mut String) {
    page.push_str("\n## memcached\n\n");
    page.push_str(OF_HASHES);
    let is_same = |about: &About| about.differs.is_empty() && about.refused.is_empty();
    let same = TEXT.iter().filter(|command| is_same(&command.about)).map(|command| command.name);
    let meta = META.iter().filter(|(.., differs)| differs.is_empty()).map(|(name, ..)| *name);
    push_names(page, "The same:", same.chain(meta));
    let binary = BINARY.iter().filter(|command| is_same(&command.about));
    let binary = binary.map(|command| command.about.syntax);
    push_names(page, "By the binary protocol, with their quiet forms:", binary);
    let text = TEXT.iter().map(|one| (one.name, one.about.syntax, one.about.differs));
    let all = text.chain(META.iter().copied());
    push_differing(page, all.map(|(name, syntax, how)| (format!("{name} {syntax}"), how)));
    page.push_str("\nRefused:\n\n");
    let text = TEXT.iter().map(|one| (one.name.to_owned(), one.about.refused));
    let binary = BINARY
        .iter()
        .map(|one| (format!("{} ({:#04x})", one.about.syntax, one.code), one.about.refused));
    for (name, why) in text.chain(binary).filter(|(_, why)| !why.is_empty()) {
        writeln!(page, "- `{name}`: {why}.").unwrap();
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    push_redis(&mut page);
    push_memcached(&mut page);
    page
}

#[test]
fn the_page_of_commands_says_what_the_tables_do() {
    let page = page();
    if std::env::var_os("RACKPOOL_BLESS").is_some() {
        return std::fs::write(PATH, page).unwrap();
    }
    let is = std::fs::read_to_string(PATH).unwrap();
    for (line, (is, shall)) in is.lines().zip(page.lines()).enumerate() {
        assert_eq!(is, shall, "docs/commands.md, line {}: see the head of this test", line + 1);
    }
    assert_eq!(is.len(), page.len(), "docs/commands.md: see the head of this test");
}
