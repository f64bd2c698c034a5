//! What must not change: the symbols, the library's name, the numbers of the statuses, and that
//! header and library have the same functions.

use super::{built, root, run};
use rackpool_bindings::Status;
use std::collections::BTreeSet;
use std::process::Command;

/// Those of the library that are its functions, by the linker's table.
fn exported() -> BTreeSet<String> {
    let mut command = Command::new("nm");
    let table = run(command.args(["-D", "--defined-only"]).arg(built("librackpool_c.so")));
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    names.map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let code = header.split("/*").map(|part| part.rsplit("*/").next().unwrap_or_default());
    let code = code.collect::<String>();
    let names = code.split('(').filter_map(|part| part.split([' ', '*', '\n']).next_back());
    names
        .filter(|name| name.starts_with("rp_") && !name.ends_with(')'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_header_declares_what_the_library_exports_and_nothing_is_lost_or_left_over() {
    let frozen: BTreeSet<String> = read("tests/abi/0/symbols").lines().map(str::to_owned).collect();
    let (exported, declared) = (exported(), declared(&read("include/rackpool.h")));
    assert_eq!(exported, declared, "library and header");
    let lost: Vec<_> = frozen.difference(&exported).collect();
    assert_eq!(lost, Vec::<&String>::new(), "functions that programs of the first header need");
    assert_eq!(declared.difference(&frozen).collect::<Vec<_>>(), Vec::<&String>::new(), "note it");
}

#[test]
fn the_library_is_found_under_the_name_of_its_interface() {
    let mut command = Command::new("readelf");
    let dynamic = run(command.arg("--dynamic").arg(built("librackpool_c.so")));
    assert!(dynamic.contains("soname: [librackpool.so.0]"), "{dynamic}");
    // Nothing but the C library is needed where it is installed.
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let foreign = needed.filter(|line| {
        !["libc.so", "libgcc_s.so", "libm.so", "ld-linux"].iter().any(|own| line.contains(own))
    });
    assert_eq!(foreign.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_header_has_the_numbers_of_the_statuses() {
    let header = read("include/rackpool.h");
    for (number, status) in Status::ALL.into_iter().enumerate() {
        let mut name = String::from("RP");
        let text = format!("{status:?}");
        for letter in text.chars() {
            if letter.is_uppercase() {
                name.push('_');
            }
            name.extend(letter.to_uppercase());
        }
        let line = format!("  {name} = {number}");
        let is_there = header.lines().any(|have| {
            have.strip_prefix(&line).is_some_and(|rest| {
                rest.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit())
            })
        });
        assert!(is_there, "{line}");
    }
}
