//! What the simulated world may take of the protocol. It is scenario, faults, workload and checks;
//! what is said between processes is written once, in the core, and only carried here. So of the
//! modules that have messages it imports no more than data that both sides store.

use super::{File, Tree, Violation};

const WORLD: &str = "crates/sim/src/world/";
const CORE: &str = "rackpool_core";

/// The links of handles carry messages, whole.
const LINKS: &str = "crates/sim/src/world/handle/";
const CARRIED: &[&str] = &["ControlHello", "MasterAnswer", "MasterCall", "Reply", "Request"];
const ENCODED: &[&str] = &["self", "encode_vec"];

/// Modules of the core with messages, and what of them is not one.
const ALLOWED: &[(&str, &[&str])] = &[
    ("wire", &["CallCounts", "FabricKind", "RackInfo"]),
    ("member", &["Member", "RackState"]),
    ("rrpc", &["Bytes", "Carried", "INLINE_BYTES_MAX"]),
    ("replica", &["ReplicaCounts"]),
];

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    let files = tree.sources().filter(|file| file.path.starts_with(WORLD));
    for file in files {
        let is_link = file.path.starts_with(LINKS);
        let tokens = tokens(file);
        let mut add = |line, message| {
            let path = file.path.clone();
            violations.push(Violation { rule: "world-messages", path, line, message });
        };
        for (line, path) in paths(&tokens) {
            let is_carried = |name: &&str| CARRIED.contains(name) || ENCODED.contains(name);
            if is_link && path.first() == Some(&"wire") && path.get(1).is_none_or(is_carried) {
                continue;
            }
            if let Some(message) = broken(&path) {
                add(line, message);
            }
        }
        for (at, (line, token)) in tokens.iter().enumerate() {
            let is_variant = is(&tokens, at + 1, "::")
                && tokens.get(at + 2).is_some_and(|(_, name)| name.starts_with(char::is_uppercase));
            if CARRIED.contains(token) && (is_variant || is(&tokens, at + 1, "{")) {
                add(*line, format!("a link carries a `{token}`, it neither makes nor reads one"));
            }
        }
    }
}

/// Why the world may not name this path of the core.
fn broken(path: &[&str]) -> Option<String> {
    let module = path.first()?;
    let (_, allowed) = ALLOWED.iter().find(|(name, _)| name == module)?;
    let name = path.get(1).copied().unwrap_or("self");
    (!allowed.contains(&name)).then(|| {
        let names = allowed.join(", ");
        format!("of `{module}` the simulated world imports {names}, not `{name}`")
    })
}

fn tokens(file: &File) -> Vec<(usize, &str)> {
    file.code()
        .flat_map(|(line, code)| split(code).into_iter().map(move |token| (line, token)))
        .collect()
}

/// Every path of the core in a file, without the name of the core, with its line.
fn paths<'t>(tokens: &[(usize, &'t str)]) -> Vec<(usize, Vec<&'t str>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at += 1;
        if tokens[at - 1].1 == CORE && is(tokens, at, "::") {
            at = tree(tokens, at + 1, &[], &mut found);
        }
    }
    found
}

/// The paths that begin at a token, each after `before`; the token that follows them.
fn tree<'t>(
    tokens: &[(usize, &'t str)],
    mut at: usize,
    before: &[&'t str],
    found: &mut Vec<(usize, Vec<&'t str>)>,
) -> usize {
    let mut path = before.to_vec();
    while let Some((line, token)) = tokens.get(at) {
        if *token == "{" {
            at += 1;
            while at < tokens.len() && !is(tokens, at, "}") {
                // A comma, or a name after `as`, begins nothing.
                let next = tree(tokens, at, &path, found);
                at = if is(tokens, next, "as") { next + 2 } else { next };
                at += usize::from(is(tokens, at, ","));
            }
            return at + 1;
        }
        path.push(token);
        at += 1;
        if !is(tokens, at, "::") {
            found.push((*line, path));
            return at;
        }
        at += 1;
    }
    at
}

fn is(tokens: &[(usize, &str)], at: usize, token: &str) -> bool {
    tokens.get(at).is_some_and(|(_, found)| *found == token)
}

/// Words, `::`, and other characters one by one.
fn split(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let bytes = match first {
            first if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if rest.starts_with("::") => 2,
            first => first.len_utf8(),
        };
        let (token, after) = rest.split_at(bytes);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}
