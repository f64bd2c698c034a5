//! The shell examples of README.md and of the documents that one host can run, as they stand there.
//!
//! The `sh` blocks under one heading are one script, in namespaces of its own (processes, network,
//! mounts), where the addresses and ports that it names are free and where nothing is left when it
//! ends. A block after `<!-- not run: REASON -->` is left out. A `text`
//! block after `<!-- printed -->` is what the block before it prints: its words have to be there in
//! that order, numbers and their units aside.
#![cfg(feature = "lab")]

use crate::common::Dir;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Addresses that examples of several hosts use: all are this host's in the namespace.
const ADDRESSES: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3"];
/// Ten times what the slowest section takes.
const LIMIT_SECONDS: u32 = 600;
/// What comes after a number and goes with it.
const UNITS: &[&str] =
    &["ns", "µs", "ms", "s", "ops/s", "MB/s", "GB/s", "MiB", "GiB", "K", "M", "k", "B"];

#[derive(Debug)]
struct Block {
    /// How many headings are above it.
    section: usize,
    language: String,
    /// The comment in the line before it.
    comment: String,
    /// Where its text begins, counted from 1.
    line: usize,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The blocks of a document. A fence that is never closed is an error: what follows it would be
/// shown as code.
fn blocks(markdown: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_open, mut before, mut section) = (false, "", 0);
    for (index, line) in markdown.lines().enumerate() {
        match (is_open, line.strip_prefix("```")) {
            (false, Some(language)) => {
                let comment = before.strip_prefix("<!-- ").and_then(|c| c.strip_suffix(" -->"));
                blocks.push(Block {
                    section,
                    language: language.to_owned(),
                    comment: comment.unwrap_or("").to_owned(),
                    line: index + 2,
                    text: String::new(),
                });
                is_open = true;
            }
            (true, Some("")) => is_open = false,
            (true, Some(_)) => return Err(format!("line {}: a block in a block", index + 1)),
            (true, None) => {
                let block = blocks.last_mut().expect("one is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            (false, None) => section += usize::from(line.starts_with('#')),
        }
        before = line;
    }
    match is_open {
        true => Err(format!("the block of line {} is never closed", blocks[blocks.len() - 1].line)),
        false => Ok(blocks),
    }
}

/// The words of a text that do not change from run to run.
fn words(text: &str) -> Vec<&str> {
    let apart = |letter: char| letter.is_whitespace() || "─|".contains(letter);
    // A file that is named in the document may be printed with its folder.
    let words = text.split(apart).map(|word| word.rsplit('/').next().unwrap_or(word));
    let words = words.filter(|word| !word.is_empty() && !UNITS.contains(word));
    words.filter(|word| !word.contains(|letter: char| letter.is_ascii_digit())).collect()
}

/// The first word of `wanted` that does not follow in `printed`.
fn missing<'a>(wanted: &'a str, printed: &str) -> Option<&'a str> {
    let printed = words(printed);
    let mut rest = printed.iter();
    words(wanted).into_iter().find(|word| !rest.any(|one| one == word))
}

/// Whether the tests run it.
fn is_run(block: &Block) -> bool {
    block.language == "sh" && !block.comment.starts_with("not run: ")
}

/// The script of a section: its blocks print into files by their lines. What cargo alone does is
/// left out, and what it would run is the program under test.
fn script(blocks: &[&Block]) -> String {
    let mut script = "set -euo pipefail\nip link set lo up\n".to_owned();
    for address in ADDRESSES {
        script += &format!("ip address add {address}/32 dev lo\n");
    }
    script += "mount -t tmpfs -o size=4g tmpfs /dev/shm\n";
    for block in blocks {
        script += &format!("exec >out.{}\n", block.line);
        let lines = block.text.lines().filter(|line| !line.starts_with("cargo xtask"));
        let lines = lines.filter(|line| !line.starts_with("cargo install"));
        let lines = lines.filter(|line| !line.starts_with("cargo build"));
        lines.for_each(|line| script += &format!("{line}\n"));
    }
    script.replace("cargo run --release --", "rackpool")
}

/// Runs a section in a folder of its own and gives that.
fn run_section(name: &str, blocks: &[&Block]) -> Option<Dir> {
    let dir = Dir::new();
    std::fs::create_dir(dir.0.join("bin")).unwrap();
    let bin = env!("CARGO_BIN_EXE_rackpool");
    std::os::unix::fs::symlink(bin, dir.0.join("bin/rackpool")).unwrap();
    let path = format!("{}:{}", dir.file("bin"), std::env::var("PATH").unwrap());
    let script = script(blocks);
    let output = Command::new("timeout")
        .args(["--signal=KILL", &LIMIT_SECONDS.to_string()])
        .args(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-c", &script])
        .current_dir(&dir.0)
        .env("PATH", path)
        .env_remove("RACKPOOL_MASTER")
        .stdin(Stdio::null())
        .output()
        .expect("timeout runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") {
        assert!(std::env::var_os("CI").is_none(), "{name}: {said}");
        eprintln!("NOT TESTED: the examples of {name} need namespaces of their own: {said}");
        return None;
    }
    let line = blocks[0].line;
    assert!(output.status.success(), "{name}, line {line}: {}\n{script}\n{said}", output.status);
    Some(dir)
}

fn run_document(name: &str) {
    let markdown = std::fs::read_to_string(root().join(name)).expect(name);
    let blocks = blocks(&markdown).unwrap_or_else(|reason| panic!("{name}: {reason}"));
    for section in blocks.chunk_by(|one, two| one.section == two.section) {
        let scripts: Vec<&Block> = section.iter().filter(|block| is_run(block)).collect();
        if scripts.is_empty() {
            continue;
        }
        let Some(dir) = run_section(name, &scripts) else { return };
        for pair in section.windows(2).filter(|pair| pair[1].comment == "printed") {
            let printed = std::fs::read_to_string(dir.0.join(format!("out.{}", pair[0].line)));
            let printed = printed.unwrap_or_else(|e| panic!("{name}: line {}: {e}", pair[1].line));
            if let Some(word) = missing(&pair[1].text, &printed) {
                panic!("{name}: line {}: no \"{word}\" in what came:\n{printed}", pair[1].line);
            }
        }
    }
}

#[test]
fn every_example_of_the_readme_runs_and_prints_what_stands_there() {
    run_document("README.md");
}

#[test]
fn every_example_of_the_quick_start_runs_and_prints_what_stands_there() {
    run_document("docs/quickstart.md");
}

#[test]
fn every_example_of_the_planners_page_runs() {
    run_document("docs/plan.md");
}

#[test]
fn no_document_has_a_block_that_is_never_closed() {
    let tree = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output();
    let tree = tree.expect("git runs");
    let names = String::from_utf8(tree.stdout).unwrap();
    assert!(names.lines().count() > 20, "{names}");
    for name in names.lines() {
        let text = std::fs::read_to_string(root().join(name)).expect(name);
        if let Err(reason) = blocks(&text) {
            panic!("{name}: {reason}");
        }
    }
    assert!(blocks("```sh\nls\n```\n\n```sh\nls\n").is_err());
    assert!(blocks("```sh\nls\n```text\n").is_err());
    assert_eq!(missing("took 3 s here", "it took 14.5 s, or so, here"), None);
    assert_eq!(missing("took 3 s here", "here it took 14 s"), Some("here"));
}

#[test]
fn the_readme_quotes_the_totals_of_the_pages_that_compare() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for page in ["docs/repro-rcmp.md", "docs/repro-herd.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect(page).replace("\n> ", " ");
        let from = text.split_once("predicted as the text has it: ").expect(page).1;
        let (numbers, rest) = from.split_once(" and ").expect(page);
        let statements = rest.split_once(" without a number").expect(page).0;
        let quoted = format!("{numbers} and {statements} are the paper's ([compared]({page}))");
        assert!(readme.contains(&quoted), "README.md has no \"{quoted}\"");
    }
}
