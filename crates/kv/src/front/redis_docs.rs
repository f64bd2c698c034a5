//! What `COMMAND DOCS` answers for each command.

/// Name, Redis's group of it, the version in which Redis got it, and what it does here.
pub static DOCS: &[(&str, &str, &str, &str)] = &[
    ("append", "string", "2.0.0", "Appends to a value; there need not be one."),
    ("auth", "connection", "1.0.0", "Authenticates the connection."),
    ("client", "connection", "2.4.0", "Names the connection, or tells of all."),
    ("command", "server", "2.8.13", "Tells which commands there are."),
    ("config", "server", "2.0.0", "Tells how the server was started, or resets what it counts."),
    ("dbsize", "server", "1.0.0", "Counts the keys."),
    ("decr", "string", "1.0.0", "Takes one from an integer, which is 0 at first."),
    ("decrby", "string", "1.0.0", "Takes a number from an integer, which is 0 at first."),
    ("del", "generic", "1.0.0", "Deletes keys."),
    ("echo", "connection", "1.0.0", "Answers the given text."),
    ("exists", "generic", "1.0.0", "Counts those of the keys that exist."),
    ("expire", "generic", "1.0.0", "Sets when a key expires, seconds from now."),
    ("expireat", "generic", "1.2.0", "Sets when a key expires, seconds since 1970."),
    ("expiretime", "generic", "7.0.0", "Tells when a key expires, seconds since 1970."),
    ("flushall", "server", "1.0.0", "Deletes all keys."),
    ("flushdb", "server", "1.0.0", "Deletes all keys."),
    ("get", "string", "1.0.0", "Tells a value."),
    ("getdel", "string", "6.2.0", "Tells a value and deletes its key."),
    ("getex", "string", "6.2.0", "Tells a value and sets when its key expires."),
    ("getset", "string", "1.0.0", "Sets a value and tells what it was."),
    ("hello", "connection", "6.0.0", "Chooses the version of the protocol, and authenticates."),
    ("incr", "string", "1.0.0", "Adds one to an integer, which is 0 at first."),
    ("incrby", "string", "1.0.0", "Adds a number to an integer, which is 0 at first."),
    ("info", "server", "1.0.0", "Tells what the server is and counts."),
    ("memory", "server", "4.0.0", "Tells how much memory a key takes."),
    ("mget", "string", "1.0.0", "Tells the values of several keys."),
    ("mset", "string", "1.0.1", "Sets the values of several keys."),
    ("persist", "generic", "2.2.0", "Has a key never expire."),
    ("pexpire", "generic", "2.6.0", "Sets when a key expires, milliseconds from now."),
    ("pexpireat", "generic", "2.6.0", "Sets when a key expires, milliseconds since 1970."),
    ("pexpiretime", "generic", "7.0.0", "Tells when a key expires, milliseconds since 1970."),
    ("ping", "connection", "1.0.0", "Answers PONG, or the given text."),
    ("psetex", "string", "2.6.0", "Sets a value that expires, milliseconds from now."),
    ("pttl", "generic", "2.6.0", "Tells how long a key has, milliseconds."),
    ("quit", "connection", "1.0.0", "Ends the connection."),
    ("scan", "generic", "2.8.0", "Walks over the keys."),
    ("select", "connection", "1.0.0", "Chooses a database, of which there is one, 0."),
    ("set", "string", "1.0.0", "Sets a value, if asked so only if there is one, or none."),
    ("setex", "string", "2.0.0", "Sets a value that expires, seconds from now."),
    ("setnx", "string", "1.0.0", "Sets a value if there is none."),
    ("slowlog", "server", "2.2.12", "Tells of commands that took long."),
    ("strlen", "string", "2.2.0", "Tells how long a value is."),
    ("time", "server", "2.6.0", "Tells the time."),
    ("touch", "generic", "3.2.1", "Counts those of the keys that exist; they are used."),
    ("ttl", "generic", "1.0.0", "Tells how long a key has, seconds."),
    ("type", "generic", "1.0.0", "Tells what kind of value a key has."),
    ("unlink", "generic", "4.0.0", "Deletes keys."),
];

#[cfg(test)]
mod tests {
    use super::super::redis::COMMANDS;
    use super::DOCS;

    #[test]
    fn each_command_is_told_of() {
        let named: Vec<&str> = DOCS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(named, COMMANDS.iter().map(|spec| spec.name).collect::<Vec<_>>());
    }
}
