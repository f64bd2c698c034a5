//! Licences, sources and bans of all dependencies, by cargo-deny and `deny.toml`.
//!
//! The tool is built once, from source, into a folder of its own beside the builds; a version of
//! it on the path is taken if it is the same. Advisories are not looked at: their database is not
//! to be had everywhere that this runs.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{Context, Task};

/// The version that is built.
const VERSION: &str = "0.20.2";

pub fn step(context: &Context) -> Result<(), String> {
    let program = program(context)?;
    let words = ["--log-level", "error", "--all-features", "check", "bans", "licenses", "sources"];
    Task::new(&program.to_string_lossy(), &words).minutes(5).run(context)
}

/// The program, built if it is not there.
fn program(context: &Context) -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let kept = home.ok_or("neither CARGO_HOME nor HOME is set")?.join("rackpool-tools");
    let built = kept.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), built.clone()] {
        if is_right(&program) {
            return Ok(program);
        }
    }
    // Quick to build instead of quick: it runs for a second.
    let root = kept.to_string_lossy();
    let words = ["install", "--locked", "--debug", "--version", VERSION, "--root", &root];
    let words = [&words[..], &["cargo-deny"]].concat();
    let target = kept.join("build");
    let task = Task::cargo(&words).env("CARGO_TARGET_DIR", &target.to_string_lossy());
    let outcome = task.env("CARGO_PROFILE_DEV_DEBUG", "false").minutes(20).run(context);
    // What it was built from is of no use any more.
    let _ = std::fs::remove_dir_all(&target);
    outcome.map(|()| built)
}

fn is_right(program: &PathBuf) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION))
}
