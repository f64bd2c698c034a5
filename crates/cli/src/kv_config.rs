//! `rackpool kv --config FILE`: one directive a line, by our names of options or by Redis's where
//! it has one. In: the words of the command line. Out: the same words and, behind them, those of
//! the file that the command line does not say otherwise. What is not known, or would mean
//! something else than in Redis, is refused with its line.

use crate::args::{Cli, KvArgs};
use crate::failure::{Failure, Result};
use crate::kv_directives::{Addresses, Directive, Meaning, meaning_of, nearest};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, Command, CommandFactory};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest file, bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Options that are no directives.
const NO_DIRECTIVES: [&str; 3] = ["config", "exit-with-parent", "help"];

#[derive(Debug, Default)]
struct Configuration {
    directives: Vec<Directive>,
    password: Option<String>,
}

/// The command line with what its file says behind it.
pub fn expanded(mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    let is_named = |word: &OsString| word.to_string_lossy().starts_with("--config");
    if !words.iter().any(is_named) {
        return Ok(words);
    }
    // What is wrong with it is told when all of it is there.
    let Ok(matches) = Cli::command().ignore_errors(true).try_get_matches_from(&words) else {
        return Ok(words);
    };
    let Some(("kv", given)) = matches.subcommand() else { return Ok(words) };
    let Ok(Some(path)) = given.try_get_one::<PathBuf>("config") else { return Ok(words) };
    let is_given = |option: &str| {
        let source = given.value_source(&option.replace('-', "_"));
        source == Some(ValueSource::CommandLine)
    };
    let configuration = read(path)?;
    if configuration.password.is_some() && configuration.has("password-file") {
        let what = "requirepass and password-file: one of both says the password";
        return Err(Failure::usage(format!("{}: {what}", path.display())));
    }
    let added = configuration.directives.into_iter().filter(|one| !is_given(&one.option));
    words.extend(added.map(|one| one.word().into()));
    Ok(words)
}

/// The password that the file says, if the command line says none.
pub fn password(args: &KvArgs) -> Result<Option<String>> {
    match (&args.config, &args.password_file) {
        (Some(path), None) => Ok(read(path)?.password),
        _ => Ok(None),
    }
}

impl Configuration {
    fn has(&self, option: &str) -> bool {
        self.directives.iter().any(|one| one.option == option)
    }

    /// Takes a directive; one that says the same before it does not count.
    fn add(&mut self, directive: Directive) {
        self.directives.retain(|one| one.option != directive.option);
        self.directives.push(directive);
    }
}

fn read(path: &Path) -> Result<Configuration> {
    let mut text = Vec::new();
    // It is read twice.
    let file = rackpool_mem::files::open_regular(path);
    let bytes = file.and_then(|file| file.take(FILE_BYTES_MAX as u64).read_to_end(&mut text));
    bytes.map_err(|error| Failure::file(path, &error))?;
    let at = |line: usize, what: &str| Failure::usage(format!("{}:{line}: {what}", path.display()));
    let text = String::from_utf8(text).map_err(|_| at(1, "the file is no text in UTF-8"))?;
    let found = configuration_of(&text, at)?;
    if found.password.is_some() {
        // By others it is not to be read.
        let kind = "configuration with requirepass";
        rackpool_fabric::secret::read_file(path, kind, FILE_BYTES_MAX)?;
    }
    Ok(found)
}

/// What a text says; `at` makes a refusal of a line's number and what is wrong with it.
fn configuration_of(text: &str, at: impl Fn(usize, &str) -> Failure) -> Result<Configuration> {
    let command = KvArgs::augment_args(Command::new("kv"));
    let (mut found, mut addresses) = (Configuration::default(), Addresses::default());
    let mut address_line = 0;
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let words = words_of(text).map_err(|what| at(line, what))?;
        let Some((name, values)) = words.split_first() else { continue };
        let name = name.to_ascii_lowercase();
        let meaning = meaning_of(&name).or_else(|| own(&command, &name));
        let Some(meaning) = meaning else { return Err(at(line, &unknown(&command, &name))) };
        let said = meaning.read(&name, values, &mut addresses).map_err(|what| at(line, &what))?;
        if matches!(meaning, Meaning::Bind | Meaning::Port | Meaning::TlsPort) {
            address_line = line;
        }
        if meaning == Meaning::Password {
            found.password = values.first().filter(|password| !password.is_empty()).cloned();
        }
        let Some((option, value)) = said else { continue };
        let directive = Directive { option, value };
        check(&command, &directive).map_err(|what| at(line, &what))?;
        found.add(directive);
    }
    let said = addresses.resp(found.has("tls-cert")).map_err(|what| at(address_line, what))?;
    if let Some(value) = said {
        if found.has("resp") {
            return Err(at(address_line, "`resp` says the address and port as well"));
        }
        let directive = Directive { option: "resp".into(), value: Some(value) };
        check(&command, &directive).map_err(|what| at(address_line, &what))?;
        found.add(directive);
    }
    Ok(found)
}

/// An option of ours by its own name.
fn own(command: &Command, name: &str) -> Option<Meaning> {
    let option = command.get_arguments().find(|option| option.get_long() == Some(name))?;
    if NO_DIRECTIVES.contains(&name) {
        return None;
    }
    let takes_value = option.get_action().takes_values();
    Some(if takes_value { Meaning::Own } else { Meaning::Flag })
}

fn unknown(command: &Command, name: &str) -> String {
    let own = command.get_arguments().filter_map(clap::Arg::get_long);
    let own = own.filter(|name| !NO_DIRECTIVES.contains(name));
    match nearest(name, own) {
        Some(known) => format!("no directive is named `{name}`; is `{known}` meant?"),
        None => format!(
            "no directive is named `{name}`: they are the options of `rackpool kv --help`, and \
             Redis's names of these"
        ),
    }
}

/// Refuses a value that its option does not take.
fn check(command: &Command, directive: &Directive) -> Result<(), String> {
    let parsed = command.clone().try_get_matches_from(["kv", &directive.word()]);
    let Err(error) = parsed else { return Ok(()) };
    // What lacks, or does not go together, is seen when all of it is there.
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return Ok(());
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Err(first.strip_prefix("error: ").unwrap_or(first).to_owned())
}

/// The words of a line: as in Redis, `"..."` with escapes and `'...'`; a line that begins with `#`
/// has none.
fn words_of(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    if rest.starts_with('#') {
        return Ok(words);
    }
    while !rest.is_empty() {
        let (word, behind) = match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => quoted(&rest[1..], quote)?,
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        if !behind.is_empty() && !behind.starts_with(char::is_whitespace) {
            return Err("a blank has to stand behind quotes");
        }
        words.push(word);
        rest = behind.trim_start();
    }
    Ok(words)
}

/// The word up to the closing quote, and what is behind it.
fn quoted(text: &str, quote: char) -> Result<(String, &str), &'static str> {
    let mut word = String::new();
    let mut chars = text.char_indices();
    while let Some((at, found)) = chars.next() {
        match found {
            '\\' if quote == '"' => match chars.next() {
                Some((_, 'n')) => word.push('\n'),
                Some((_, 't')) => word.push('\t'),
                Some((_, escaped)) => word.push(escaped),
                None => break,
            },
            found if found == quote => return Ok((word, &text[at + 1..])),
            found => word.push(found),
        }
    }
    Err("quotes do not match")
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// What a file with these lines, and words behind `kv`, come to.
    fn parsed(lines: &str, words: &[&str]) -> Result<KvArgs> {
        let dir = std::env::temp_dir();
        let name = format!("kv-config-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = dir.join(name);
        rackpool_mem::files::open_private(
            &path,
            rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR,
        )
        .unwrap();
        std::fs::write(&path, lines).unwrap();
        let path_word = path.to_str().unwrap();
        let first = ["rackpool", "kv", "--config", path_word];
        let said = expanded(first.iter().chain(words).map(OsString::from).collect());
        let args = said.map(|words| {
            let cli = Cli::try_parse_from(words).map_err(|error| Failure::usage(error.to_string()));
            cli.map(|cli| match cli.command {
                crate::args::Command::Kv(args) => *args,
                other => panic!("{other:?}"),
            })
        });
        let args = args.and_then(|args| args).and_then(|args| {
            let password = password(&args)?;
            Ok(KvArgs { password, ..args })
        });
        std::fs::remove_file(&path).unwrap();
        args
    }

    fn refused(lines: &str) -> String {
        parsed(lines, &[]).unwrap_err().message().to_owned()
    }

    #[test]
    fn redis_and_own_names_are_understood_and_the_command_line_wins() {
        let lines = "# a cache\n\nport 6380\nbind 127.0.0.1 -::1\nmaxmemory 100mb\n\
                     maxmemory-policy allkeys-lru\nmaxclients 77\ntimeout 300\ndatabases 4\n\
                     requirepass \"a \\\"b\\\"\"\nslowlog-log-slower-than -1\nio-threads 3\n\
                     unixsocket '/tmp/a b.sock'\nunixsocketperm 770\nproto-max-bulk-len 1k\n\
                     appendonly no\nsave \"\"\nmemcached 11212\ninsecure-open yes\n\
                     items 10\nitems 20";
        let args = parsed(lines, &[]).unwrap();
        assert_eq!(args.resp.unwrap().to_string(), "127.0.0.1:6380");
        assert_eq!(args.memcached.unwrap().port(), 11212);
        assert_eq!((args.memory, args.max_value), (100 << 20, Some(1000)));
        assert_eq!(args.policy.name, "tinylfu");
        assert_eq!((args.max_connections, args.idle_seconds, args.databases), (77, 300, 4));
        assert_eq!((args.slow_us, args.threads), (u64::MAX, Some(3)));
        assert_eq!(args.password.as_deref(), Some("a \"b\""));
        assert_eq!(args.resp_socket.as_deref(), Some(Path::new("/tmp/a b.sock")));
        assert_eq!((args.socket_mode, args.insecure_open), (Some(0o770), true));
        assert_eq!(args.items, Some(20));
        let words = ["--memory", "64m", "--resp", "7000", "--password-file", "x"];
        let args = parsed(lines, &words).unwrap();
        assert_eq!((args.memory, args.resp.unwrap().port()), (64 << 20, 7000));
        assert_eq!((args.password, args.max_connections), (None, 77));
    }

    #[test]
    fn what_is_not_known_or_not_so_is_refused_with_its_line() {
        for (lines, line, what) in [
            ("port 1\nmaxmemry 1gb", 2, "is `maxmemory` meant?"),
            ("max-connectoins 7", 1, "is `max-connections` meant?"),
            ("zzzzzzzzzzzz 7", 1, "no directive is named"),
            ("config x", 1, "no directive is named"),
            ("port 1\n\nmaxmemory much", 3, "no size"),
            ("maxmemory 0", 1, "always has a limit"),
            ("maxmemory-policy volatile-lru", 1, "volatile-lru"),
            ("maxclients many", 1, "many"),
            ("appendonly yes", 1, "only \"no\""),
            ("save 3600 1", 1, "only"),
            ("bind 10.0.0.1 10.0.0.2", 1, "one address"),
            ("requirepass 'x", 1, "quotes"),
            ("tls-port 6380", 1, "tls-cert-file"),
            ("timeout", 1, "one value"),
            ("insecure-open perhaps", 1, "yes nor no"),
        ] {
            let said = refused(lines);
            assert!(said.contains(&format!(":{line}: ")) && said.contains(what), "{lines}: {said}");
        }
    }
}
