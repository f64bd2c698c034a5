//! The variables that commands read, as their help shows them. In: a command's examples and the
//! variables that it reads. Out: the text after its options. What they mean is decided by
//! [`rackpool::Options::from_env`].

use std::process::Command;

/// A variable and what it says.
type Variable = (&'static str, &'static str);

const MASTER: Variable = ("RACKPOOL_MASTER", "as --master");
const RACK: Variable = ("RACKPOOL_RACK", "as --rack");
const FABRIC: Variable = ("RACKPOOL_FABRIC", "as --fabric");
const DEVICE: Variable = ("RACKPOOL_VERBS_DEVICE", "as --verbs-device");
const TIMEOUT: Variable = ("RACKPOOL_REQUEST_TIMEOUT_MS", "how long a call waits for a peer");
const USER: Variable = (
    "RACKPOOL_DAEMON_USER",
    "number of a user whose daemons are trusted beside our own and root's",
);
const CONFIG: Variable =
    ("RACKPOOL_CONFIG", "TOML file with all of this (master, rack, secret_file, ..), read first");

/// Read by what looks at a pool from outside.
pub const WATCH: &[Variable] = &[MASTER, TIMEOUT, CONFIG];
/// Read by daemons and agents.
pub const SERVER: &[Variable] = &[MASTER, DEVICE, CONFIG];
/// Read by what joins a pool.
pub const CLIENT: &[Variable] = &[MASTER, RACK, FABRIC, DEVICE, TIMEOUT, USER, CONFIG];
/// Read by the cache, for its pool: options of its own name the master and the time to wait.
pub const CACHE: &[Variable] = &[RACK, FABRIC, DEVICE, USER, CONFIG];

/// The examples, and behind them the variables.
pub fn with(examples: &str, variables: &[Variable]) -> String {
    let mut text = format!("{examples}\n\nEnvironment (options go before it):");
    for (name, meaning) in variables {
        text.push_str(&format!("\n  {name:<27}  {meaning}"));
    }
    text
}

/// Takes all of them from a process that works with our own pool.
pub fn clear(command: &mut Command) -> &mut Command {
    CLIENT.iter().fold(command, |command, (name, _)| command.env_remove(name))
}

#[cfg(all(test, feature = "lab"))]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// Names of variables in a text, sorted.
    fn named(text: &str) -> Vec<&str> {
        let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c| !is_of_name(c));
        let mut names: Vec<&str> = words.filter(|word| word.starts_with("RACKPOOL_")).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn every_variable_that_is_read_stands_in_the_help_of_the_commands_that_read_it() {
        let reader = include_str!("../../pool/src/options.rs");
        let mut clients: Vec<&str> = CLIENT.iter().map(|(name, _)| *name).collect();
        clients.sort_unstable();
        assert_eq!(named(reader), clients);
        assert_eq!(named(include_str!("../../../docs/deploy.md")), clients);
        let others = ["RACKPOOL_MASTER", "RACKPOOL_REQUEST_TIMEOUT_MS"];
        let cache: Vec<&str> =
            clients.iter().copied().filter(|name| !others.contains(name)).collect();
        let servers = ["RACKPOOL_CONFIG", "RACKPOOL_MASTER", "RACKPOOL_VERBS_DEVICE"];
        let watchers = ["RACKPOOL_CONFIG", "RACKPOOL_MASTER", "RACKPOOL_REQUEST_TIMEOUT_MS"];
        for mut command in Cli::command().get_subcommands().cloned() {
            let expected: &[&str] = match command.get_name() {
                "shell" | "fsck" => &clients,
                "kv" => &cache,
                "daemon" | "agent" | "fence" => &servers,
                "racks" | "drain" | "undrain" | "forget" | "top" | "plan" => &watchers,
                _ => &[],
            };
            let help = command.render_long_help().to_string();
            assert_eq!(named(&help), expected, "{}", command.get_name());
        }
    }
}
