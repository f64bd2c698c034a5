//! The benchmarks, and what reproduces a paper, in their smallest size, so that they do not rot.
//!
//! Of what is measured only that it runs and reports is checked, never a number: a CI machine's
//! numbers mean nothing. What is simulated is the same on every machine: there the figures that a
//! paper's verdict hangs on have to be as stated. All are built without LTO, beside what the
//! simulator's steps have built. The rows of `BENCHMARKS` follow `rackpool`; add a row with each
//! new benchmark.

use std::fs;

use serde_json::Value;

use crate::run::Context;
use crate::sim::without_lto;

/// Words after `rackpool`; `--quick` is added to each, and where the report goes.
const BENCHMARKS: &[&[&str]] = &[
    &["bench", "local"],
    &["bench", "ring"],
    &["bench", "remote", "--fabric", "tcp"],
    &["bench", "remote", "--fabric", "shm"],
    &["bench", "locks"],
    &["bench", "ycsb"],
    &["bench", "cache"],
    &["bench", "cache", "--workload", "cdn"],
    &["bench", "kv"],
    &["bench", "sim"],
    &["bench", "dram"],
    &["repro", "herd"],
];

/// HERD's verdict (figure 9): 26 : 17.2 : 11.4 : 9.9 million a second, each within a tenth.
const HERD_STATED: &[&str] = &["herd_5_percent_put", "farm_get", "farm_var_get", "pilaf_get"];
/// Figures of its text that are compared at least.
const HERD_COMPARED_MIN: usize = 20;

/// Where numbers may come from; a report must say which.
const KINDS: &[&str] = &["measured", "emulated", "simulated"];

/// Runs each row and reads its report.
pub fn smallest(context: &Context) -> Result<(), String> {
    let directory = context.target.join("xtask-bench");
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let build = ["build", "--release", "-p", "rackpool-cli"];
    without_lto(context, &build).minutes(15).run(context)?;
    for words in BENCHMARKS {
        let name = words[1..].join("-").replace("---", "-").replace("--", "-");
        let report = directory.join(format!("{name}.json"));
        // A report of an earlier run must not pass for this one's.
        if report.exists() {
            fs::remove_file(&report).map_err(|e| format!("{}: {e}", report.display()))?;
        }
        let file = report.to_string_lossy();
        let folder = directory.to_string_lossy();
        let mut line = vec!["run", "--release", "--quiet", "-p", "rackpool-cli", "--"];
        line.extend(*words);
        // An evaluation writes `PAPER.json` into a folder.
        let whereto = if words[0] == "repro" { ["--out", &folder] } else { ["--json", &file] };
        line.extend(whereto);
        line.push("--quick");
        without_lto(context, &line).minutes(3).run(context)?;
        let text = fs::read_to_string(&report)
            .map_err(|e| format!("{} wrote no report: {file}: {e}", words.join(" ")))?;
        let count = results(&text).map_err(|why| format!("{file}: {why}"))?;
        println!("{count} results in {file}");
        if *words == ["repro", "herd"] {
            stated(&text, HERD_STATED, HERD_COMPARED_MIN)
                .map_err(|why| format!("{file}: {why}"))?;
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

/// Whether these figures are as the paper states them, and at least so many are compared.
fn stated(text: &str, names: &[&str], least: usize) -> Result<(), String> {
    let report: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let rows = report.get("results").and_then(Value::as_array).ok_or("no `results`")?;
    let verdict = |row: &Value| row.get("as_stated").and_then(Value::as_bool);
    let compared = rows.iter().filter(|row| verdict(row).is_some()).count();
    if compared < least {
        return Err(format!("{compared} figures are compared, not {least}"));
    }
    for name in names {
        let row = rows.iter().find(|row| row.get("name").and_then(Value::as_str) == Some(name));
        let row = row.ok_or_else(|| format!("there is no figure {name}"))?;
        if verdict(row) != Some(true) {
            return Err(format!("{name} is not as stated: {row}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_to_be_there_and_as_stated() {
        let text = r#"{"results": [{"name": "a", "as_stated": true},
            {"name": "b", "as_stated": false}, {"name": "c"}]}"#;
        assert_eq!(stated(text, &["a"], 2), Ok(()));
        for (names, least) in [(&["a"][..], 3), (&["b"], 2), (&["c"], 2), (&["d"], 2)] {
            assert!(stated(text, names, least).is_err(), "{names:?}");
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
