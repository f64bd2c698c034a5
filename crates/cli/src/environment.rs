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
    "number of a user that daemons may run as, beside our own user and root",
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

/// Takes all of them from a process of our own pool.
pub fn clear(command: &mut Command) -> &mut Command {
    CLIENT.iter().fold(command, |command, (name, _)| command.env_remove(name))
}
