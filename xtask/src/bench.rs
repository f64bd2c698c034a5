//! The benchmarks, and what reproduces a paper, in their smallest size, so that they do not rot.
//!
//! Of what is measured only that it runs and reports is checked, never a number: a CI machine's
//! numbers mean nothing. What is simulated is the same on every machine: there the figures that a
//! paper's verdict hangs on have to be as stated. Most run in what the README's first command
//! builds, those of the laboratory in the tests' build. Rows follow `rackpool`; add one with each
//! new benchmark.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::built;
use crate::run::{Context, Task};

/// Words after `rackpool`, the program of the README's first command; `--quick` is added to each,
/// and where the report goes.
const BENCHMARKS: &[&[&str]] = &[
    &["bench", "local"],
    &["bench", "ring"],
    &["bench", "remote", "--fabric", "tcp"],
    &["bench", "remote", "--fabric", "shm"],
    &["bench", "locks"],
    &["bench", "ycsb"],
];

/// The same, of the program with the feature `lab`.
const LAB_BENCHMARKS: &[&[&str]] = &[
    &["bench", "cache"],
    &["bench", "cache", "--workload", "cdn"],
    &["bench", "kv"],
    &["bench", "kv", "--rows", "items_1024,hit_leader_fbobj"],
    &["bench", "tiers"],
];

/// Those of the laboratory that simulate: they run in the background.
const SIMULATIONS: &[&[&str]] = &[
    &["bench", "sim"],
    &["bench", "dram"],
    &["repro", "herd"],
    &["repro", "hmsdk"],
    &["repro", "optane"],
];

/// What the README's program answers with the way to one that has it, and how it names it.
const NEEDS_LAB: &[(&[&str], &str)] = &[
    (&["sim", "run", "--seeds", "3"], "sim"),
    (&["sim", "run", "--help"], "sim"),
    (&["plan"], "plan"),
    (&["trace", "run", "--", "ls", "-l"], "trace"),
    (&["calibrate", "--out", "-"], "calibrate"),
    (&["repro", "rcmp"], "repro"),
    (&["bench", "cache", "--quick"], "bench cache"),
    (&["bench", "kv", "--baselines"], "bench kv"),
    (&["bench", "migrate"], "bench migrate"),
    (&["bench", "verbs", "--fabric", "tcp"], "bench verbs"),
    (&["bench", "sim"], "bench sim"),
    (&["bench", "dram"], "bench dram"),
    (&["bench", "pmem", "--rules"], "bench pmem"),
    (&["bench", "tiers"], "bench tiers"),
];

/// What the model of HERD's cards predicts rightly, and must go on to: nothing was set by these.
const HERD_STATED: &[&str] = &[
    "farm_var_get",
    "out_write_knee",
    "out_write_step",
    "out_send_knee_over_write",
    "put_over_get_least",
    "herd_peak_value",
    "farm_over_herd_alone",
    "farm_over_pilaf_alone",
    "var_over_herd_alone",
    "clients_500_over_peak",
    "clients_500_window_16_over_4",
];

/// Where numbers may come from; a report must say which.
const KINDS: &[&str] = &["measured", "emulated", "simulated"];

/// Runs each row and reads its report.
pub fn smallest(context: &Context) -> Result<(), String> {
    let directory = context.target.join("xtask-bench");
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    Task::cargo(&["build", "--release"]).minutes(15).run(context)?;
    let program = context.target.join("release/rackpool");
    without_lab(&program)?;
    let lab = built::rackpool(context)?;
    let run = |rows, program: &str, task: fn(Task) -> Task| {
        run_all(context, &directory, rows, &|line| task(Task::new(program, line)))
    };
    thread::scope(|scope| {
        let simulated = scope.spawn(|| run(SIMULATIONS, &lab, Task::background));
        let measured = run(BENCHMARKS, &program.to_string_lossy(), |task| task);
        let measured = measured.and_then(|()| run(LAB_BENCHMARKS, &lab, |task| task));
        measured.and(simulated.join().expect("it never panics"))
    })
}

/// The program of the README's first command says of what it lacks how to build one that has it.
fn without_lab(program: &Path) -> Result<(), String> {
    let told = |words: &[&str]| {
        let output = Command::new(program).args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok::<_, String>((output.status.code(), text(&output.stdout), text(&output.stderr)))
    };
    for (words, name) in NEEDS_LAB {
        let (code, out, err) = told(words)?;
        let refused = code == Some(2) && out.is_empty() && err.starts_with("error usage ");
        let told_how = err.contains("cargo build --release --features lab");
        let named = err.contains(&format!("`rackpool {name}`")) && err.lines().count() == 1;
        let (code, help, _) = told(&[words[0], "--help"])?;
        let helped = code == Some(0) && (words[0] == "bench" || help.contains("--features lab"));
        if !(refused && told_how && named && helped) {
            return Err(format!("without the lab, {words:?} answers: {out}{err}{help}"));
        }
    }
    Ok(())
}

fn run_all(
    context: &Context,
    directory: &Path,
    rows: &[&[&str]],
    task: &dyn Fn(&[&str]) -> Task,
) -> Result<(), String> {
    for words in rows {
        let name = words[1..].join("-").replace("---", "-").replace("--", "-");
        let report = directory.join(format!("{name}.json"));
        // A report of an earlier run must not pass for this one's.
        if report.exists() {
            fs::remove_file(&report).map_err(|e| format!("{}: {e}", report.display()))?;
        }
        let file = report.to_string_lossy();
        let folder = directory.to_string_lossy();
        let mut line = words.to_vec();
        // An evaluation writes `PAPER.json` into a folder.
        let whereto = if words[0] == "repro" { ["--out", &folder] } else { ["--json", &file] };
        line.extend(whereto);
        line.push("--quick");
        task(&line).minutes(10).run(context)?;
        let text = fs::read_to_string(&report)
            .map_err(|e| format!("{} wrote no report: {file}: {e}", words.join(" ")))?;
        let count = results(&text).map_err(|why| format!("{file}: {why}"))?;
        println!("{count} results in {file}");
        if *words == ["repro", "herd"] {
            stated(&text, HERD_STATED).map_err(|why| format!("{file}: {why}"))?;
        }
    }
    Ok(())
}

/// The number of results in a report, which must have some and say what kind they are.
fn results(text: &str) -> Result<usize, String> {
    let report: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let kind = report.get("kind").and_then(Value::as_str).unwrap_or("missing");
    if !KINDS.contains(&kind) {
        return Err(format!("`kind` is {kind}, not one of {}", KINDS.join(", ")));
    }
    match report.get("results").and_then(Value::as_array) {
        Some(results) if !results.is_empty() => Ok(results.len()),
        Some(_) => Err("`results` is empty".to_owned()),
        None => Err("there is no array `results`".to_owned()),
    }
}

/// Whether these figures are predicted, and are as the paper states them.
fn stated(text: &str, names: &[&str]) -> Result<(), String> {
    let report: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let rows = report.get("results").and_then(Value::as_array).ok_or("no `results`")?;
    let text_of = |row: &Value, field| row.get(field).and_then(Value::as_str).map(str::to_owned);
    for name in names {
        let row = rows.iter().find(|row| text_of(row, "name").as_deref() == Some(name));
        let row = row.ok_or_else(|| format!("there is no figure {name}"))?;
        if text_of(row, "origin").as_deref() != Some("predicted") {
            return Err(format!("{name} is not predicted: {row}"));
        }
        if row.get("as_stated").and_then(Value::as_bool) != Some(true) {
            return Err(format!("{name} is not as stated: {row}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_to_be_there_predicted_and_as_stated() {
        let text = r#"{"results": [{"name": "a", "origin": "predicted", "as_stated": true},
            {"name": "b", "origin": "predicted", "as_stated": false},
            {"name": "c", "origin": "input", "as_stated": true}, {"name": "d"}]}"#;
        assert_eq!(stated(text, &["a"]), Ok(()));
        for name in ["b", "c", "d", "e"] {
            assert!(stated(text, &[name]).is_err(), "{name}");
        }
    }

    #[test]
    fn a_report_with_results_passes() {
        assert_eq!(results(r#"{"kind": "measured", "results": [{"name": "a"}]}"#), Ok(1));
    }

    #[test]
    fn a_report_without_results_or_kind_is_refused() {
        assert!(results("").is_err());
        assert!(results("[]").is_err());
        assert!(results(r#"{"kind": "measured"}"#).is_err());
        assert!(results(r#"{"kind": "measured", "results": []}"#).is_err());
        assert!(results(r#"{"kind": "guessed", "results": [{}]}"#).is_err());
        assert!(results(r#"{"results": [{}]}"#).is_err());
    }
}
