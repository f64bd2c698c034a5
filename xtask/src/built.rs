//! What the tests' build has left: the program and the tests' programs, for the other steps.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::run::Context;

/// What tests are built with, and what virtual machines run: the program with all fabrics and the
/// laboratory. `bench` builds the one of the README, with none of the two.
pub const FEATURES: &str = "rackpool-cli/verbs,rackpool-cli/mutations";

/// What cargo says of the tests' programs of that name and of the program, which it builds with
/// them, just as the step `test` does: in CI all of it is there.
pub fn messages(context: &Context, test: &str) -> Result<String, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["test", "--no-run", "--workspace", "--features", FEATURES, "--test", test])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(&context.root)
        .envs(context.cargo_env.iter().copied())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err("what is to be run cannot be built".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The path of the program as the tests have it: all features, checks of arithmetic on.
pub fn rackpool(context: &Context) -> Result<String, String> {
    let program = program(&messages(context, "kills")?);
    let program = program.ok_or("cargo does not say where rackpool is")?;
    Ok(program.to_string_lossy().into_owned())
}

/// The path of the program in what cargo says.
pub fn program(messages: &str) -> Option<PathBuf> {
    executable(messages, "cli", "rackpool")
}

/// The path of a binary of a package, of which the directory's name is given, in what cargo says.
pub fn executable(messages: &str, package: &str, wanted: &str) -> Option<PathBuf> {
    let manifest = format!("/crates/{package}/Cargo.toml");
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message.pointer("/target/name")?.as_str()?;
        let path = message.pointer("/executable")?.as_str()?;
        let is_its = message.pointer("/manifest_path")?.as_str()?.ends_with(&manifest);
        (name == wanted && is_its).then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_the_one_of_that_test() {
        let said = |package: &str, name: &str, path: &str| {
            let manifest = format!("/w/crates/{package}/Cargo.toml");
            let target = serde_json::json!({ "name": name });
            let path = (!path.is_empty()).then_some(path);
            serde_json::json!({ "manifest_path": manifest, "target": target, "executable": path })
                .to_string()
        };
        let said = [
            said("hw", "other", "/o"),
            said("hw", "mine", ""),
            "not json".to_owned(),
            said("sim", "mine", "/t/mine-0"),
            said("hw", "mine", "/t/mine-1"),
        ];
        let said = said.join("\n");
        assert_eq!(executable(&said, "hw", "mine"), Some(PathBuf::from("/t/mine-1")));
        assert_eq!(executable(&said, "hw", "third"), None);
    }
}
