//! `rackpool tiers run`: exit codes, signals, where the memory lay, and both ways to place it. On
//! one node the preloaded library is forced: its code runs for real, all extents are on node 0.

use crate::common::{Dir, WITHIN, rackpool, told};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn command(dir: &Dir, words: &[&str]) -> Command {
    // What runs the tests may ignore SIGINT, as background jobs do; a shell cannot trap it then.
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(rackpool().get_program()).args(["tiers", "run"]);
    command.args(words).env("XDG_CACHE_HOME", &dir.0).stdin(Stdio::null());
    command
}

/// The exit code of a child that has to end soon.
fn code_soon(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < WITHIN {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    panic!("it did not end within {WITHIN:?}");
}

fn run(dir: &Dir, words: &[&str]) -> Output {
    command(dir, words).output().expect("the binary runs")
}

fn report(dir: &Dir) -> Value {
    serde_json::from_slice(&fs::read(dir.file("report")).unwrap()).unwrap()
}

/// Whether this machine has one memory and lets programs choose: what tests here need.
fn is_one_memory() -> bool {
    let nodes = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let refused = rackpool_mem::policy::refused();
    let is_one = nodes.trim() == "0" && refused.is_empty();
    if !is_one {
        println!("NOT TESTED: nodes {nodes:?}, refused {refused:?}");
    }
    is_one
}

#[test]
fn the_exit_code_is_the_programs_and_128_with_its_signal() {
    let dir = Dir::new();
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let (code, out, err) = told(&run(&dir, &["--", "sh", "-c", script]));
        assert_eq!((code, out.as_str()), (expected, ""), "{err}");
    }
    let (code, out, _) = told(&run(&dir, &["echo", "--report", "x"]));
    assert_eq!((code, out.as_str()), (0, "--report x\n"), "words after PROGRAM are its own");
    for (program, expected, start) in [
        ("no-such-program-here", 127, "error no-program "),
        ("/etc/passwd", 126, "error not-run "),
        ("/", 126, "error not-run "),
    ] {
        let (code, out, err) = told(&run(&dir, &["--", program]));
        assert_eq!((code, out.as_str()), (expected, ""));
        assert!(err.lines().last().unwrap().starts_with(start), "{err}");
    }
    let script = dir.file("script");
    fs::write(&script, "#!/nowhere/at/all\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, _, err) = told(&run(&dir, &["--", &script]));
    assert_eq!(code, 127, "{err}");
    // Where SIGCHLD is ignored the kernel keeps no exit codes, unless it is told to.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' CHLD; exec \"$0\" tiers run -- sh -c 'exit 7'"]);
    ignoring.arg(rackpool().get_program()).env("XDG_CACHE_HOME", &dir.0);
    assert_eq!(told(&ignoring.output().unwrap()).0, 7);
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_runs() {
    let dir = Dir::new();
    for (words, expected, start) in [
        (&["--weighted", "x", "--", "true"] as &[&str], 2, "error usage "),
        (&["--weighted", "1:1:1:1:1:1:1:1:1", "--", "true"], 2, "error usage "),
        (&["--membind", "", "--", "true"], 2, "error usage "),
        (&["--membind", "0", "--preferred", "0", "--", "true"], 2, "error usage "),
        (&["--membind", "1023", "--", "true"], 1, "error no-node "),
        (&["--weighted", "0=1,1023=1", "--", "true"], 1, "error no-node "),
        (&["--preferred", "1023", "--", "true"], 1, "error no-node "),
        (&["--profile", "/nowhere", "--", "true"], 1, "error io "),
        (&["--report", "/nowhere/a", "--", "true"], 1, "error io "),
        (&["--preferred", "0", "--mechanism", "preload", "true"], 1, "error unsupported "),
        (&[], 2, "error usage "),
    ] {
        let (code, out, err) = told(&run(&dir, words));
        assert_eq!((code, out.as_str()), (expected, ""), "{words:?}: {err}");
        assert!(err.starts_with(start), "{words:?}: {err}");
    }
}

/// Takes 64 MiB, forks, execs, says that it is ready, and waits for its input's end.
const HOLD: &str = "\
import os, subprocess, sys
held = bytearray(64 << 20)
child = subprocess.Popen([sys.executable, '-c', '''
import sys
held = bytearray(32 << 20)
print(open(\"/proc/self/maps\").read().count(\"place-\"), flush=True)
sys.stdin.read()
'''])
child.wait()
sys.exit(5)";

struct Held(Child);

impl Held {
    /// Starts the program and gives its first line.
    fn start(dir: &Dir, words: &[&str]) -> (Held, String) {
        let mut command = command(dir, words);
        command.args(["--", "python3", "-c", HOLD]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (Held(child), line)
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }

    /// The lines of standard error up to one that has this in it.
    fn lines_until(&mut self, part: &str) -> String {
        let mut lines = String::new();
        let mut err = BufReader::with_capacity(1, self.0.stderr.as_mut().unwrap());
        while !lines.contains(part) {
            assert!(err.read_line(&mut lines).unwrap() > 0, "{lines}");
        }
        lines
    }

    fn end(mut self) -> (Option<i32>, String) {
        drop(self.0.stdin.take());
        let (start, mut err) = (Instant::now(), String::new());
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        let status = self.0.wait().unwrap();
        assert!(start.elapsed() < WITHIN);
        (status.code(), err)
    }
}

#[test]
fn one_memory_is_said_and_the_report_has_it_all() {
    if !is_one_memory() {
        return;
    }
    let dir = Dir::new();
    let (mut held, line) = Held::start(&dir, &["--report", &dir.file("report")]);
    assert_eq!(line, "0\n", "no library is needed");
    std::thread::sleep(std::time::Duration::from_millis(700));
    held.send(Signal::USR1);
    let now = held.lines_until("\n  node 0: ");
    assert!(now.contains("One memory only, node 0") && now.contains("now:"), "{now}");
    let (code, err) = held.end();
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("before its end:\n  node 0: ") && err.contains("100.0 %"), "{err}");
    let report = report(&dir);
    assert_eq!(report["mechanism"], "kernel");
    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!((nodes.len(), &nodes[0]["id"]), (1, &json!(0)));
    assert_eq!(nodes[0]["share"], 1.0);
    assert!(nodes[0]["bytes"].as_u64().unwrap() >= 96 * MIB, "{report}");
    assert_eq!((&report["exit_code"], &report["library"]), (&json!(5), &Value::Null));
    // A program that ends before it is looked at: still one node with all there is.
    let (code, out, _) = told(&run(&dir, &["--report", "-", "--", "true"]));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["nodes"][0]["share"]), (0, &json!(1.0)));
    for words in [["--membind", "0"], ["--interleave", "0"], ["--weighted", "5"]] {
        let words = [&words[..], &["--", "true"]].concat();
        assert_eq!(told(&run(&dir, &words)).0, 0, "{words:?}");
    }
}

#[test]
fn the_library_places_the_program_and_what_it_starts_and_counts_it() {
    if !is_one_memory() {
        return;
    }
    let dir = Dir::new();
    let report_to = dir.file("report");
    let words = ["--mechanism", "preload", "--weighted", "0=3", "--report", &report_to];
    for round in 0..2 {
        let (held, line) = Held::start(&dir, &words);
        assert_ne!(line, "0\n", "the library is in the program that was started by exec");
        std::thread::sleep(std::time::Duration::from_millis(700));
        let (code, err) = held.end();
        assert_eq!(code, Some(5), "{err}");
        assert!(!err.contains("not seen") && !err.contains("could not"), "{err}");
        let report = report(&dir);
        assert_eq!(report["mechanism"], "preload");
        assert_eq!(report["nodes"][0]["share"], 1.0);
        let library = &report["library"];
        assert!(library["processes"].as_u64().unwrap() >= 2, "{report}");
        assert_eq!(library["processes"], library["processes_with_heaps"], "{report}");
        assert_eq!(
            (&library["refused_bytes"], &report["processes_unreached"]),
            (&0.into(), &0.into())
        );
        assert!(library["placed_bytes"].as_u64().unwrap() >= 96 * MIB, "{report}");
        let kept: Vec<_> = fs::read_dir(dir.0.join("rackpool")).unwrap().flatten().collect();
        assert_eq!(kept.len(), 1, "round {round}: the library is written once");
    }
    // What is not the library any more is not loaded.
    let kept = fs::read_dir(dir.0.join("rackpool")).unwrap().flatten().next().unwrap().path();
    fs::remove_file(&kept).unwrap();
    fs::write(&kept, "other").unwrap();
    let (code, _, err) = told(&run(&dir, &["--mechanism", "preload", "--", "true"]));
    assert!(code == 1 && err.contains("error io ") && err.contains("remove it"), "{err}");
}

#[test]
fn a_static_program_is_refused_under_the_library_and_runs_under_the_kernel() {
    if !is_one_memory() {
        return;
    }
    let dir = Dir::new();
    let (source, program) = (dir.file("a.c"), dir.file("a"));
    fs::write(&source, "int main(void) { return 3; }").unwrap();
    let built = Command::new("cc").args(["-static", &source, "-o", &program]).output().unwrap();
    if !built.status.success() || !Path::new(&program).exists() {
        println!("NOT TESTED: no static C library here");
        return;
    }
    let (code, out, err) = told(&run(&dir, &["--mechanism", "preload", "--", &program]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("error static-program ") && err.contains("--interleave"), "{err}");
    assert_eq!(told(&run(&dir, &["--", &program])).0, 3);
}

#[test]
fn signals_are_the_programs() {
    let dir = Dir::new();
    for (name, signal, trapped, plain) in [
        ("INT", Signal::INT, 40, 130),
        ("TERM", Signal::TERM, 41, 143),
        ("HUP", Signal::HUP, 42, 129),
    ] {
        for (script, expected) in [
            (format!("trap 'exit {trapped}' {name}; echo; while :; do sleep 0.02; done"), trapped),
            ("echo; exec sleep 600".to_owned(), plain),
        ] {
            let mut command = command(&dir, &["--", "sh", "-c", &script]);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            // `exec` may still be under way, and the shell takes no signal that ends it amiss.
            kill_process(Pid::from_child(&child), signal).unwrap();
            assert_eq!(code_soon(child), Some(expected), "{name}: {script}");
        }
    }
}
