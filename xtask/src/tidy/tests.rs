//! For each rule of tidy, what must fail and what must pass. Fixtures are strings, so that neither
//! tidy nor rustfmt reads them as part of this file.

use super::*;

/// A file that keeps every rule, to which fixtures are added.
const DOC: &str = "//! A module.\n";

fn tree(path: &str, text: &str) -> Tree {
    Tree::of(vec![(path.to_owned(), text.to_owned())])
}

fn found(tree: &Tree) -> Vec<(&'static str, usize)> {
    check(tree).iter().map(|violation| (violation.rule, violation.line)).collect()
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
const MEM: &str = "crates/mem/src/ring.rs";

#[test]
fn unsafe_code_stays_behind_its_fence() {
    fails("unsafe-fence", 2, CORE, "fn a() { unsafe { b() } }\n");
    fails("unsafe-fence", 2, "crates/pool/tests/a.rs", "unsafe fn a() {}\n");
    passes(MEM, "fn a() { unsafe { b() } }\n");
    passes(CORE, "#![forbid(unsafe_code)]\n// unsafe\n");
}

#[test]
fn the_engines_of_the_core_never_name_one_another() {
    let walls = "engine-walls";
    fails(walls, 2, "crates/core/src/client/a.rs", "use crate::daemon::A;\n");
    fails(walls, 3, "crates/core/src/client/a.rs", "use crate::{\n    daemon::A,\n};\n");
    fails(walls, 2, "crates/core/src/master.rs", "fn a() { crate::client::b() }\n");
    fails(walls, 2, "crates/core/src/master.rs", "fn a() { super::client::b() }\n");
    passes("crates/core/src/client/a.rs", "use crate::client::A;\nfn daemon() {}\n");
    passes("crates/core/src/client/a.rs", "use crate::{wire::A, seam::B};\nfn daemon() {}\n");
    passes("crates/core/src/lib.rs", "pub use crate::{client::A, daemon::B};\n");
    passes("crates/pool/src/client.rs", "use crate::daemon;\n");
}

#[test]
fn the_simulated_world_names_no_message_of_the_protocol() {
    const WORLD: &str = "crates/sim/src/world/a.rs";
    let messages = "world-messages";
    fails(messages, 2, WORLD, "use rackpool_core::wire::Request;\n");
    fails(messages, 2, WORLD, "use rackpool_core::wire;\n");
    fails(messages, 2, WORLD, "use rackpool_core::wire::*;\n");
    fails(messages, 2, WORLD, "use rackpool_core::wire::{self as words, RackInfo};\n");
    fails(messages, 2, WORLD, "use rackpool_core::member::MemberCall;\n");
    fails(messages, 2, WORLD, "fn a() { rackpool_core::wire::encode_vec(&b) }\n");
    fails(messages, 4, WORLD, "use rackpool_core::wire::{\n    RackInfo,\n    Reply as R,\n};\n");
    let nested = "use rackpool_core::{\n    Error,\n    wire::{RackInfo, Request},\n};\n";
    fails(messages, 4, WORLD, nested);
    passes(WORLD, "use rackpool_core::wire::{FabricKind, RackInfo as Info};\n");
    passes(WORLD, "use rackpool_core::{Error, member::RackState, wire::RackInfo};\nfn wire() {}\n");
    passes(WORLD, "// rackpool_core::wire::Request\nuse rackpool_core::client::DaemonQuery;\n");
    const LINK: &str = "crates/sim/src/world/handle/a.rs";
    passes(LINK, "use rackpool_core::wire::{self, Request};\nfn a(a: Request) -> Reply;\n");
    passes(LINK, "fn a(b: &MasterAnswer) { wire::encode_vec(&c); MasterAnswer::order(b) }\n");
    fails(messages, 2, LINK, "use rackpool_core::wire::RemoteReply;\n");
    fails(messages, 2, LINK, "fn a() { ask(Request::Ping) }\n");
    fails(messages, 2, LINK, "let ControlHello { version, .. } = hello;\n");
    passes("crates/sim/src/device/a.rs", "use rackpool_core::wire::Request;\n");
}

#[test]
fn the_hash_table_uses_the_public_api_only() {
    fails("crate-arrows", 2, "crates/table/src/walk.rs", "use rackpool_core::GAddr;\n");
    fails("crate-arrows", 2, "crates/table/src/walk/a.rs", "fn a(b: rackpool_mem::B) {}\n");
    passes("crates/table/src/walk.rs", "use rackpool::Pool;\n");
    passes("crates/cache/src/cache.rs", "use rackpool_core::GAddr;\n");
}

#[test]
fn an_atomic_without_its_partner_fails() {
    let rule = "atomic-partner";
    fails(rule, 2, MEM, "fn a() { b.load(Ordering::Acquire); }\n");
    fails(rule, 2, MEM, "fn a() { b.load(Ordering::Relaxed); }\n");
    fails(rule, 2, MEM, "fn a() { fence(atomic::Ordering::SeqCst); }\n");
    fails(rule, 2, MEM, "fn a() { b.load(Ordering::Relaxed); } // Relaxed: so.\n");
    fails(rule, 2, MEM, "fn a() { b.load(Ordering::Acquire); } // Relaxed: only a statistic.\n");
    fails(rule, 2, MEM, "fn a() { b.load(Ordering::Relaxed); } // pairs with b.\n");
    fails(rule, 2, CORE, "fn a() { m.load(b, Order::Acquire) }\n");
    let other = "fn a() {\n  // pairs with b\n}\nfn c() {\n  b.load(Ordering::Acquire);\n}\n";
    fails(rule, 6, MEM, other);
    let filler = "    c();\n".repeat(30);
    let far =
        format!("fn a() {{\n    // pairs with b\n{filler}    b.load(Ordering::Acquire);\n}}\n");
    fails(rule, 34, MEM, &far);
}

#[test]
fn an_atomic_with_its_partner_passes() {
    passes(MEM, "fn a() { b.load(Ordering::Acquire); } // pairs with the Release in `push`\n");
    passes(MEM, "// Pairs with b.\nfn a() { b.load(Ordering::Acquire); }\n");
    passes(MEM, "// It pairs\n// with b.\n#[inline]\nfn a() { b.load(Ordering::Acquire); }\n");
    let lines = "fn a() {\n// Acquire: pairs with c. Relaxed: only we write it.\nlet x = 1;\n\
        b.swap(1, Ordering::Acquire, Ordering::Relaxed);\n}\n";
    passes(MEM, lines);
    let filler = "    c();\n".repeat(30);
    let near = "    // pairs with b\n    c();\n    b.load(Ordering::Acquire);\n";
    passes(MEM, &format!("fn a() {{\n{filler}{near}}}\n"));
}

#[test]
fn what_only_looks_like_an_atomic_passes() {
    passes(MEM, "enum Lock { Acquire, Release }\nfn a() { b(Lock::Acquire); }\n");
    passes(MEM, "fn a() { match c { Order::Acquire => Ordering::Acquire, _ => d } }\n");
    passes(MEM, "fn a() { b.cmp(&c) == Ordering::Less }\n");
    passes(MEM, "// Ordering::Acquire is dear.\nuse std::sync::Ordering::Acquire;\n");
    passes(MEM, "#[cfg(test)]\nmod tests {\n    fn a() { b.load(Ordering::Acquire); }\n}\n");
    passes("crates/mem/tests/a.rs", "fn a() { b.load(Ordering::Acquire); }\n");
}

#[test]
fn unfinished_work_is_not_committed() {
    fails("unfinished", 2, CORE, concat!("// TO", "DO: the rest\n"));
    fails("unfinished", 2, "crates/cache/tests/a.rs", concat!("/* FIX", "ME */\n"));
    let script = tree("a.toml", concat!("a = 1\n# TO", "DO\n"));
    assert_eq!(found(&script), [("unfinished", 2)]);
    passes(CORE, concat!("const MASTO", "DON: u8 = 0;\n"));
}

#[test]
fn an_unwrap_stays_in_tests() {
    fails("no-unwrap", 2, CORE, "fn a() { b.unwrap(); }\n");
    passes(CORE, "/// `a.unwrap()`\nfn a() { b.expect(\"c\"); }\n");
    passes(CORE, "#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap(); }\n}\n");
    passes("crates/cache/tests/a.rs", "fn a() { b.unwrap(); }\n");
}

#[test]
fn a_file_begins_with_what_it_is() {
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
        ("crates/cache/tests/suite/a.rs".to_owned(), test),
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
        found(&Tree::of(files))
    };
    assert_eq!(rules("test = \"cache: it_holds\"\n"), []);
    assert_eq!(rules("test = \"cache: a.rs\"\n"), []);
    assert_eq!(rules("promise = \"x\"\ntests = [\"cache: it_holds\", \"cache: a.rs\"]\n"), []);
    assert_eq!(rules("promise = \"x\"\ncommand = \"rackpool bench\"\n"), []);
    assert_eq!(rules("test = \"cache: it_breaks\"\n"), [("promise", 6)]);
    assert_eq!(rules("test = \"pool: it_holds\"\n"), [("promise", 6)]);
    // What cannot be meant is said of the file as a whole.
    let broken = [("promise", 0)];
    assert_eq!(rules("promise = \"x\"\n"), broken, "no test");
    assert_eq!(rules("command = \"x\"\n"), broken, "no words");
    assert_eq!(rules("test = \"cache: it_holds\"\nproof = 1\n"), broken, "no such field");
    let twice = "test = \"cache: it_holds\"\n[[promise]]\nid = \"a1\"\ncommand = \"x\"\n";
    assert_eq!(rules(twice), broken, "an id twice");
    // A document that is not what its sources say.
    let mut files = promised(&format!("{AREA}test = \"cache: it_holds\"\n"));
    files.push(("SPECIFICATION.md".to_owned(), "# Specification\n".to_owned()));
    assert_eq!(found(&Tree::of(files)), broken);
}

#[test]
fn links_lead_to_files_and_headings() {
    let rules = |text: &str| {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let other = file("docs/b.md", "# A `b`, and c\n\n## d\n\n## d\n");
        found(&Tree::of(vec![file("docs/a.md", &format!("{text}\n")), other]))
    };
    let there = ["[x](b.md)", "[x](../docs/b.md#a-b-and-c)", "[`x`](b.md#d-1)", "[x](../docs)"];
    there.iter().for_each(|text| assert_eq!(rules(text), [], "{text}"));
    let elsewhere = ["[x](https://a.b/c)", "`[x](c.md)`", "```\n[x](c.md)\n```", "## y\n[x](#y)"];
    elsewhere.iter().for_each(|text| assert_eq!(rules(text), [], "{text}"));
    let book = |text: &str| {
        let files = [("docs/SUMMARY.md", text), ("docs/a.md", "a\n"), ("a.md", "a\n")];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        found(&Tree::of(files.to_vec()))
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
    fails("file-length", 0, CORE, &"const A: u8 = 0;\n".repeat(800));
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const A: u8 = 0;\n".repeat(800));
    passes(CORE, &tests);
}
