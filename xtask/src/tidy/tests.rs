//! For each rule of tidy, what must fail and what must pass. Fixtures are strings, so that neither
//! tidy nor rustfmt reads them as part of this file.

use serde_json::json;

use super::*;

/// A file that keeps every rule, to which fixtures are added.
const DOC: &str = "//! A module.\n";

fn tree(path: &str, text: &str) -> Tree {
    Tree::of(vec![(path.to_owned(), text.to_owned())], Vec::new())
}

fn found(tree: &Tree) -> Vec<(&'static str, usize)> {
    let report = check(tree, &Ratchet::default());
    report.violations.iter().map(|violation| (violation.rule, violation.line)).collect()
}

/// The text after `DOC` breaks this rule on this line (the text's own first line is 2), and no
/// other rule.
#[track_caller]
fn fails(rule: &'static str, line: usize, path: &str, text: &str) {
    assert_eq!(found(&tree(path, &format!("{DOC}{text}"))), [(rule, line)], "{text}");
}

#[track_caller]
fn passes(path: &str, text: &str) {
    assert_eq!(found(&tree(path, &format!("{DOC}{text}"))), [], "{text}");
}

const CORE: &str = "crates/core/src/addr.rs";
const HW: &str = "crates/hw/src/ring.rs";

#[test]
fn unsafe_code_stays_behind_its_fence() {
    fails("unsafe-fence", 2, CORE, "fn a() { unsafe { b() } }\n");
    fails("unsafe-fence", 2, "crates/pool/tests/a.rs", "unsafe fn a() {}\n");
    fails("unsafe-fence", 3, "crates/kv/src/a.rs", "\n#[unsafe(no_mangle)] fn a() {}\n");
    passes(HW, "fn a() { unsafe { b() } }\n");
    passes("bindings/c/src/lib.rs", "unsafe fn a() {}\n");
    passes(CORE, "// unsafe\nconst A: &str = \"unsafe { }\";\n/* unsafe */\n");
    passes(CORE, "#![forbid(unsafe_code)]\n");
}

fn package(name: &str, dependencies: &[&str]) -> Package {
    Package {
        name: name.to_owned(),
        manifest: format!("crates/{name}/Cargo.toml"),
        dependencies: dependencies.iter().map(ToString::to_string).collect(),
        roots: vec![format!("crates/{name}/src/lib.rs")],
    }
}

fn package_rules(package: Package, root: &str) -> Vec<&'static str> {
    let files = vec![(package.roots[0].clone(), format!("{DOC}{root}"))];
    found(&Tree::of(files, vec![package])).into_iter().map(|(rule, _)| rule).collect()
}

#[test]
fn a_crate_depends_only_on_those_below_it() {
    let forbid = "#![forbid(unsafe_code)]\n";
    let rules = |name, dependencies| package_rules(package(name, dependencies), forbid);
    assert_eq!(rules("rackpool-core", &["rackpool-hw"]), ["crate-arrows"]);
    assert_eq!(rules("rackpool-sim", &["rackpool-core", "rackpool"]), ["crate-arrows"]);
    assert_eq!(rules("rackpool-fs", &["rackpool-hw"]), ["crate-arrows"]);
    assert_eq!(rules("rackpool-new", &[]), ["crate-arrows"]);
    assert!(rules("rackpool", &["rackpool-core", "rackpool-hw"]).is_empty());
    assert!(rules("rackpool-cli", &["rackpool-fs", "rackpool-sim"]).is_empty());
}

#[test]
fn a_crate_root_forbids_unsafe_code() {
    let rules = |name, root| package_rules(package(name, &[]), root);
    assert_eq!(rules("rackpool-kv", ""), ["unsafe-fence"]);
    assert_eq!(rules("rackpool-kv", "// #![forbid(unsafe_code)]\n"), ["unsafe-fence"]);
    assert_eq!(rules("rackpool-core", "#![deny(unsafe_code)]\n"), ["unsafe-fence"]);
    assert!(rules("rackpool-kv", "#![deny(unsafe_code)]\n").is_empty());
    assert!(rules("rackpool-core", "#![forbid(unsafe_code)]\n").is_empty());
    assert!(rules("rackpool-hw", "").is_empty());
}

#[test]
fn packages_are_read_from_cargo_metadata() {
    let metadata = json!({
        "workspace_root": "/w",
        "packages": [{
            "name": "rackpool-kv",
            "manifest_path": "/w/crates/kv/Cargo.toml",
            "dependencies": [
                {"name": "rackpool", "path": "/w/crates/pool"},
                {"name": "serde"},
                {"name": "far", "path": "/elsewhere/far"},
            ],
            "targets": [
                {"kind": ["lib"], "src_path": "/w/crates/kv/src/lib.rs"},
                {"kind": ["test"], "src_path": "/w/crates/kv/tests/a.rs"},
            ],
        }],
    });
    let packages = packages_of(&metadata);
    assert_eq!(packages.len(), 1);
    assert_eq!(packages[0].manifest, "crates/kv/Cargo.toml");
    assert_eq!(packages[0].dependencies, ["rackpool"]);
    assert_eq!(packages[0].roots, ["crates/kv/src/lib.rs"]);
}

#[test]
fn the_engines_of_the_core_never_name_one_another() {
    let walls = "engine-walls";
    fails(walls, 2, "crates/core/src/client.rs", "use crate::daemon::Daemon;\n");
    fails(walls, 2, "crates/core/src/daemon/mod.rs", "use crate::{addr, master::Master};\n");
    fails(walls, 2, "crates/core/src/daemon/proxy.rs", "use super::super::client;\n");
    fails(walls, 2, "crates/core/src/master.rs", "fn a() { crate::client::b() }\n");
    fails(walls, 2, "crates/core/src/master.rs", "fn a() { super::client::b() }\n");
    fails(walls, 3, "crates/core/src/client/a.rs", "#[cfg(test)]\nmod t { use crate::daemon; }\n");
    passes("crates/core/src/client.rs", "use crate::{client::A, wire::daemon};\n");
    passes("crates/core/src/client.rs", "//! See [`crate::daemon`].\n");
    passes("crates/core/src/daemon/proxy.rs", "use super::client;\nuse super::super::wire;\n");
    passes("crates/core/src/client.rs", "#[cfg(test)]\nmod tests { use super::daemon::A; }\n");
    passes("crates/core/src/lib.rs", "pub use crate::{client::A, daemon::B};\n");
    passes("crates/pool/src/client.rs", "use crate::daemon;\n");
}

#[test]
fn the_hash_table_uses_the_public_api_only() {
    let table = "crates/kv/src/table.rs";
    fails("crate-arrows", 2, table, "use rackpool_core::GAddr;\n");
    fails("crate-arrows", 2, "crates/kv/src/table/a.rs", "fn a(b: rackpool_hw::B) {}\n");
    passes(table, "use rackpool::Pool;\n");
    passes("crates/kv/src/cache.rs", "use rackpool_hw::ring;\n");
}

#[test]
fn an_atomic_without_its_partner_fails() {
    let rule = "atomic-partner";
    fails(rule, 2, HW, "fn a() { b.load(Ordering::Acquire); }\n");
    fails(rule, 2, HW, "fn a() { b.load(Ordering::Relaxed); }\n");
    fails(rule, 2, HW, "fn a() { fence(atomic::Ordering::SeqCst); }\n");
    fails(rule, 3, HW, "use x::Ordering::{Acquire, Release};\nfn a() { b.load(Acquire); }\n");
    fails(rule, 3, HW, "use x::Ordering::*;\nfn a() { b.load(Acquire); }\n");
    fails(rule, 2, HW, "fn a() { b.load(Ordering::Relaxed); } // Relaxed: so.\n");
    fails(rule, 2, HW, "fn a() { b.load(Ordering::Acquire); } // Relaxed: only a statistic.\n");
    fails(rule, 2, HW, "fn a() { b.load(Ordering::Relaxed); } // pairs with b.\n");
    fails(rule, 2, CORE, "fn a() { m.load(b, Order::Acquire) }\n");
    let other = "fn a() {\n  // pairs with b\n}\nfn c() {\n  b.load(Ordering::Acquire);\n}\n";
    fails(rule, 6, HW, other);
    let filler = "x();\n".repeat(30);
    let far = format!("fn a() {{\n// pairs with b\n{filler}b.load(Ordering::Acquire);\n}}\n");
    fails(rule, 34, HW, &far);
}

#[test]
fn an_atomic_with_its_partner_passes() {
    passes(HW, "fn a() { b.load(Ordering::Acquire); } // pairs with the Release in `push`\n");
    passes(HW, "// Pairs with b.\nfn a() { b.load(Ordering::Acquire); }\n");
    passes(HW, "// It pairs\n// with b.\n#[inline]\nfn a() { b.load(Ordering::Acquire); }\n");
    let lines = "fn a() {\n// Acquire: pairs with c. Relaxed: only we write it.\nlet x = 1;\n\
        b.load(Ordering::Acquire);\n\nb.load(Ordering::Relaxed);\n\n\n\n\n\
        b.fence(Ordering::SeqCst);\n}\n";
    passes(HW, lines);
    let filler = "x();\n".repeat(30);
    let long = "// pairs with b\n// and a\n// longer\n// story\ny();\ny();\ny();\ny();\ny();\n";
    passes(HW, &format!("fn a() {{\n{filler}{long}b.load(Ordering::Acquire);\n}}\n"));
    passes(HW, "const A: Ordering = Ordering::Relaxed; // Relaxed: a mere counter.\n");
}

#[test]
fn what_only_looks_like_an_atomic_passes() {
    passes(HW, "use std::sync::atomic::Ordering::{Acquire, Relaxed};\n");
    passes(HW, "enum Lock { Acquire, Release }\nfn a() { b(Lock::Acquire); }\n");
    passes(HW, "fn a() { match c { Order::Acquire => Ordering::Acquire, _ => d } }\n");
    passes(HW, "fn a() { b.cmp(&c) == Ordering::Less }\n");
    passes(HW, "// Ordering::Acquire\nconst A: &str = \"Ordering::Acquire\";\n");
    passes(HW, "#[cfg(test)]\nmod tests { fn a() { b.load(Ordering::Acquire); } }\n");
    passes("crates/hw/tests/a.rs", "fn a() { b.load(Ordering::Acquire); }\n");
}

#[test]
fn unfinished_work_is_not_committed() {
    fails("unfinished", 2, CORE, "fn a() { todo!() }\n");
    fails("unfinished", 2, CORE, "fn a() { unimplemented!(\"b\") }\n");
    fails("unfinished", 2, "crates/kv/tests/a.rs", "fn a() { dbg!(b); }\n");
    fails("unfinished", 2, CORE, concat!("// TO", "DO: later\n"));
    fails("unfinished", 2, CORE, concat!("/* a FIX", "ME */\n"));
    let script = tree("a.sh", concat!("#!/bin/sh\n# TO", "DO\n"));
    assert_eq!(found(&script), [("unfinished", 2)]);
    passes(CORE, concat!("const MASTO", "DON: &str = \"todo!()\";\nfn a() { todo != b; }\n"));
    assert_eq!(found(&tree("docs/a.md", concat!("No TO", "DO in the code.\n"))), []);
}

#[test]
fn an_ignored_test_says_why() {
    fails("ignore-reason", 3, "crates/kv/tests/a.rs", "#[test]\n#[ignore]\nfn a() {}\n");
    passes("crates/kv/tests/a.rs", "#[test]\n#[ignore = \"needs a NIC\"]\nfn a() {}\n");
}

#[test]
fn unwrap_is_for_tests() {
    fails("no-unwrap", 2, CORE, "fn a() { b.unwrap(); }\n");
    fails("no-unwrap", 3, CORE, "fn a() { b\n.unwrap(); }\n");
    passes(CORE, "fn a() { b.expect(\"c\").unwrap_or(d).unwrap_or_default(); }\n");
    passes(CORE, "/// `a.unwrap()`\nfn a() {}\n");
    passes(CORE, "#[cfg(test)]\nmod tests {\nfn a() { b.unwrap(); }\n}\n");
    passes(CORE, "#[cfg(all(test, loom))]\nmod tests {\nfn a() { b.unwrap(); }\n}\n");
    fails("no-unwrap", 3, CORE, "#[cfg(not(test))]\nfn a() { b.unwrap(); }\n");
    passes("crates/core/src/a/tests.rs", "fn a() { b.unwrap(); }\n");
}

#[test]
fn a_module_declared_for_tests_only_is_test_code() {
    let files = [
        ("crates/core/src/lib.rs", "#[cfg(test)]\nmod model;\npub mod a;\n"),
        ("crates/core/src/a.rs", "#[cfg(test)]\npub(crate) mod b;\n"),
        ("crates/core/src/model.rs", "fn a() { b.unwrap(); }\n"),
        ("crates/core/src/model/c.rs", "fn a() { b.unwrap(); }\n"),
        ("crates/core/src/a/b.rs", "fn a() { b.unwrap(); }\n"),
        ("crates/core/src/b.rs", "fn a() { b.unwrap(); }\n"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), format!("{DOC}{text}")));
    let report = check(&Tree::of(files.into(), Vec::new()), &Ratchet::default());
    let paths: Vec<&str> = report.violations.iter().map(|v| v.path.as_str()).collect();
    assert_eq!(paths, ["crates/core/src/b.rs"]);
}

#[test]
fn commented_out_code_is_found() {
    for code in ["let a = b;", "use a::b;", "fn a(b: C) {", "if a == b {", "self.a = b;"] {
        fails("dead-code", 2, CORE, &format!("// {code}\n"));
    }
    for code in ["self.ring.push(a)?;", "a::b(c, d);", "println!(\"\");", "a.b();"] {
        fails("dead-code", 3, CORE, &format!("fn a() {{\n    // {code}\n}}\n"));
    }
}

#[test]
fn prose_is_not_taken_for_code() {
    for prose in [
        "let it finish first;",
        "use the ring (see above);",
        "if the page moved, ask again;",
        "for each of them (all four);",
        "the mover pays (with a barrier);",
        "return the slot, which the caller owns;",
        "`a.b();` is wrong here",
    ] {
        passes(CORE, &format!("// {prose}\n"));
    }
    passes(CORE, "/// ```\n/// let a = b;\n/// ```\nfn a() {}\n");
}

#[test]
fn a_file_begins_with_its_documentation() {
    assert_eq!(found(&tree(CORE, "fn a() {}\n")), [("module-doc", 1)]);
    assert_eq!(found(&tree(CORE, "")), [("module-doc", 1)]);
    assert_eq!(found(&tree("tests/a.rs", "// A file.\n//! Late.\n")), [("module-doc", 1)]);
    assert_eq!(found(&tree(CORE, "\n//! A module.\n")), []);
}

#[test]
fn documentation_stands_before_attributes() {
    fails("doc-first", 3, CORE, "#[cold]\n/// Of b.\nfn b() {}\n");
    passes(CORE, "/// Of a.\n#[cold]\nfn a() {}\n\n/// Of b.\nfn b() {}\n");
}

#[test]
fn paths_of_one_machine_stay_out() {
    fails("machine-path", 2, CORE, concat!("// see /wo", "rk/notes\n"));
    let document = tree("docs/a.md", concat!("a\n`/ro", "ot/.cargo`\n"));
    assert_eq!(found(&document), [("machine-path", 2)]);
    passes(CORE, concat!("// the directory target/wo", "rk/ and ~/wo", "rk/\n"));
}

/// A tree with one crate that has one test, these promises, and the document that they give.
fn promised(promises: &str) -> Vec<(String, String)> {
    let test = format!("{DOC}#[test]\nfn it_holds() {{}}\n");
    let measured = "machine = []\nmeasurement = []\n";
    vec![
        ("crates/kv/tests/suite/a.rs".to_owned(), test),
        ("docs/promises.toml".to_owned(), promises.to_owned()),
        ("docs/measurements.toml".to_owned(), measured.to_owned()),
        ("ARCHITECTURE.md".to_owned(), "## Glossary\n".to_owned()),
    ]
}

const AREA: &str = "[[area]]\nid = \"a\"\ntitle = \"A\"\n[[promise]]\nid = \"a1\"\n";

#[test]
fn promises_name_tests_that_exist_and_are_what_the_document_says() {
    let rules = |promise: &str| {
        let mut files = promised(&format!("{AREA}{promise}"));
        if let Ok(sources) = promises::sources(&files[1].1, &files[2].1) {
            files.push(("SPECIFICATION.md".to_owned(), sources.render()));
        }
        found(&Tree::of(files, Vec::new()))
    };
    assert_eq!(rules("test = \"kv: it_holds\"\n"), []);
    assert_eq!(rules("test = \"kv: a.rs\"\n"), []);
    assert_eq!(rules("promise = \"x\"\ntests = [\"kv: it_holds\", \"kv: a.rs\"]\n"), []);
    assert_eq!(rules("promise = \"x\"\ncommand = \"rackpool bench\"\n"), []);
    assert_eq!(rules("test = \"kv: it_breaks\"\n"), [("promise", 6)]);
    assert_eq!(rules("test = \"pool: it_holds\"\n"), [("promise", 6)]);
    // What cannot be meant is said of the file as a whole.
    let broken = [("promise", 0)];
    assert_eq!(rules("promise = \"x\"\n"), broken, "no test");
    assert_eq!(rules("command = \"x\"\n"), broken, "no words");
    assert_eq!(rules("test = \"kv: it_holds\"\nproof = 1\n"), broken, "no such field");
    let twice = "test = \"kv: it_holds\"\n[[promise]]\nid = \"a1\"\ncommand = \"x\"\n";
    assert_eq!(rules(twice), broken, "an id twice");
    // A document that is not what its sources say.
    let mut files = promised(&format!("{AREA}test = \"kv: it_holds\"\n"));
    files.push(("SPECIFICATION.md".to_owned(), "# Specification\n".to_owned()));
    assert_eq!(found(&Tree::of(files, Vec::new())), broken);
}

#[test]
fn links_lead_to_files_and_headings() {
    let rules = |text: &str| {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let other = file("docs/b.md", "# A `b`, and c\n\n## d\n\n## d\n");
        found(&Tree::of(vec![file("docs/a.md", &format!("{text}\n")), other], Vec::new()))
    };
    let there = ["[x](b.md)", "[x](../docs/b.md#a-b-and-c)", "[`x`](b.md#d-1)", "[x](../docs)"];
    there.iter().for_each(|text| assert_eq!(rules(text), [], "{text}"));
    let elsewhere = ["[x](https://a.b/c)", "`[x](c.md)`", "```\n[x](c.md)\n```", "## y\n[x](#y)"];
    elsewhere.iter().for_each(|text| assert_eq!(rules(text), [], "{text}"));
    let book = |text: &str| {
        let files = [("docs/SUMMARY.md", text), ("docs/a.md", "a\n"), ("a.md", "a\n")];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        found(&Tree::of(files.to_vec(), Vec::new()))
    };
    assert_eq!(book("- [A](a.md)\n"), []);
    assert_eq!(book("a.md\n"), [("book", 0)]);
    for text in ["[x](c.md)", "[x](b.md#e)", "[x](../b.md)", "[x](#y)", "[x](doc/)"] {
        assert_eq!(rules(text), [("link", 1)], "{text}");
    }
}

#[test]
fn lengths_have_limits() {
    fails("line-length", 2, CORE, &format!("// {}\n", "a".repeat(98)));
    passes(CORE, &format!("// {}\n", "ä".repeat(97)));
    passes(CORE, &format!("// https://a.b/{}\n", "a".repeat(98)));
    fails("function-length", 3, CORE, &format!("\nfn a() {{\n{}}}\n", "b();\n".repeat(69)));
    passes(CORE, &format!("\nfn a() {{\n{}}}\n", "b();\n".repeat(68)));
    fails("file-length", 801, CORE, &"const A: u8 = 0;\n".repeat(800));
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const A: u8 = 0;\n".repeat(800));
    passes(CORE, &tests);
}

/// A file with this many lines that are too long.
fn long_lines(count: usize) -> Tree {
    tree(CORE, &format!("{DOC}{}", format!("// {}\n", "a".repeat(98)).repeat(count)))
}

#[test]
fn a_ratcheted_count_may_fall_but_not_rise() {
    let table = format!("# A comment.\n\nline-length {CORE} 2\n");
    let ratchet = Ratchet::parse(&table).expect("it is well formed");
    assert_eq!(check(&long_lines(3), &ratchet).violations.len(), 3);
    let same = check(&long_lines(2), &ratchet);
    assert!(same.violations.is_empty() && same.notices.is_empty());
    let fewer = check(&long_lines(1), &ratchet);
    assert!(fewer.violations.is_empty());
    assert!(fewer.notices[0].contains("from 2 to 1"), "{:?}", fewer.notices);
}

#[test]
fn a_blessing_lowers_and_only_a_raise_raises() {
    let blessed = |before: &str, lines: usize, raise: bool| {
        let mut ratchet = Ratchet::parse(before).expect("it is well formed");
        ratchet.bless(&ratchet::measure(&long_lines(lines)), raise);
        let text = ratchet.print();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let entry = |count: usize| format!("line-length {CORE} {count}");
    assert_eq!(blessed(&entry(3), 1, false), [entry(1)]);
    assert_eq!(blessed(&entry(3), 5, false), [entry(3)]);
    assert_eq!(blessed(&entry(3), 0, false), [""; 0]);
    assert_eq!(blessed("", 2, false), [""; 0]);
    assert_eq!(blessed("", 2, true), [entry(2)]);
    assert_eq!(blessed(&entry(3), 5, true), [entry(5)]);
}

#[test]
fn a_broken_table_is_refused() {
    for table in ["line-length a.rs", "line-width a.rs 1", "line-length a.rs x", "a b 1 2"] {
        assert!(Ratchet::parse(table).is_err(), "{table}");
    }
    assert!(Ratchet::parse("line-length a.rs 1\nline-length a.rs 2\n").is_err());
}

#[test]
fn the_options_of_tidy_are_known() {
    assert_eq!(Bless::parse(&[]), Some(Bless::No));
    assert_eq!(Bless::parse(&["--bless"]), Some(Bless::Down));
    assert_eq!(Bless::parse(&["--bless", "--raise"]), Some(Bless::Raise));
    assert_eq!(Bless::parse(&["--raise"]), None);
}
