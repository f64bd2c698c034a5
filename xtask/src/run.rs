//! Running the commands of a step: what is printed, how tests are counted, how a hang ends.
//!
//! Every command inherits a marker in its environment, so that `residue` can tell our descendants
//! from other people's processes. In CI (`CI=true`) a command that exceeds its limit is killed with
//! its whole process group; at a terminal there is no limit, so that Ctrl-C works as usual.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the environment variable that marks our descendants.
pub const MARKER: &str = "RACKPOOL_XTASK_RUN";

/// So many failed tests are run again at most: more are no accident.
const UNSTEADY_MAX: usize = 2;

/// How long the output of a finished command is still read: a process that it leaked may hold the
/// pipe open for ever.
const DRAIN: Duration = Duration::from_secs(5);

pub struct Context {
    pub root: PathBuf,
    pub target: PathBuf,
    /// Whether this is a CI machine: nothing may be missing, nothing may hang.
    pub ci: bool,
    /// The marker's value in this run.
    pub marker: String,
    /// What every cargo of this run finds in its environment beside what is there.
    pub cargo_env: Vec<(&'static str, &'static str)>,
    counts: Arc<Mutex<Counts>>,
}

impl Context {
    pub fn new() -> Result<Self, String> {
        let root = root();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => root.join(directory),
            None => root.join("target"),
        };
        let ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
        let marker = format!("{}", std::process::id());
        let cargo_env = Vec::new();
        Ok(Self { root, target, ci, marker, cargo_env, counts: Arc::default() })
    }

    /// The tests counted so far, as the tail of a sentence; empty if none ran.
    pub fn tests(&self) -> String {
        let counts = self.counts.lock().expect("no panic while counting");
        if counts.binaries == 0 {
            return String::new();
        }
        let Counts { passed, failed, ignored, binaries, .. } = *counts;
        let mut text = format!(
            "; {passed} tests passed, {failed} failed, {ignored} ignored in {binaries} test \
             binaries"
        );
        if !counts.unsteady.is_empty() {
            text +=
                &format!("; UNSTEADY, passed only when run again: {}", counts.unsteady.join(", "));
        }
        text
    }

    /// How many tests have passed.
    pub fn passed(&self) -> u64 {
        self.counts.lock().expect("no panic while counting").passed
    }

    /// The tests that have failed and cargo's words for the binaries that they are in, if they are
    /// few and known by name. A binary that ended in the midst of its tests is not a failed test.
    pub fn take_failed(&self) -> Option<(Vec<String>, Vec<String>)> {
        let mut counts = self.counts.lock().expect("no panic while counting");
        let few = !counts.names.is_empty() && counts.names.len() <= UNSTEADY_MAX;
        let known = counts.names.len() as u64 == counts.failed;
        let take = few && known && !counts.has_died && !counts.targets.is_empty();
        take.then(|| (std::mem::take(&mut counts.names), std::mem::take(&mut counts.targets)))
    }

    /// They passed when they were run again.
    pub fn unsteady(&self, names: Vec<String>) {
        let mut counts = self.counts.lock().expect("no panic while counting");
        counts.failed -= names.len() as u64;
        counts.unsteady.extend(names);
    }
}

/// The workspace's directory: what cargo says now, not what it said at compile time, since two
/// checkouts may share one target directory and so one xtask binary.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
    let manifest = manifest.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

pub fn processors() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

/// One command line with its environment and limits.
pub struct Task {
    program: String,
    /// What is printed instead of the command line.
    called: Option<&'static str>,
    words: Vec<String>,
    env: Vec<(String, String)>,
    limit: Duration,
    count_tests: bool,
    is_background: bool,
}

impl Task {
    pub fn new(program: &str, words: &[&str]) -> Self {
        let words = words.iter().map(ToString::to_string).collect();
        let limit = Duration::from_secs(5 * 60);
        Self {
            program: program.to_owned(),
            called: None,
            words,
            env: Vec::new(),
            limit,
            count_tests: false,
            is_background: false,
        }
    }

    pub fn cargo(words: &[&str]) -> Self {
        Self::new(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()), words)
    }

    /// Prints this instead of the command line.
    pub fn called(mut self, name: &'static str) -> Self {
        self.called = Some(name);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn minutes(mut self, minutes: u64) -> Self {
        self.limit = Duration::from_secs(minutes * 60);
        self
    }

    /// Passes the output on line by line, and adds up libtest's closing lines.
    pub fn count_tests(mut self) -> Self {
        self.count_tests = true;
        self
    }

    /// For what runs beside something else: takes the time that others leave, and prints the output
    /// when all of it is there.
    pub fn background(mut self) -> Self {
        self.is_background = true;
        self
    }

    /// Runs to the end; any exit code but 0 is an error that repeats the command line.
    pub fn run(self, context: &Context) -> Result<(), String> {
        let line = self.line();
        println!("$ {line}");
        let mut command = match self.is_background {
            true => Command::new("nice"),
            false => Command::new(&self.program),
        };
        if self.is_background {
            command.args(["-n", "19", &self.program]);
        }
        command.args(&self.words).current_dir(&context.root).stdin(Stdio::null());
        command.envs(context.cargo_env.iter().copied());
        command.env(MARKER, &context.marker).envs(self.env.iter().map(|(k, v)| (k, v)));
        if self.count_tests || self.is_background {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if context.ci {
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(|e| format!("cannot start `{line}`: {e}"))?;
        let counts = || match self.count_tests {
            true => Arc::clone(&context.counts),
            false => Arc::default(),
        };
        let held = Held::default();
        let out = |direct: Box<dyn Write + Send>| -> Box<dyn Write + Send> {
            if self.is_background { Box::new(held.clone()) } else { direct }
        };
        let said = child.stdout.take();
        let said = said.map(|pipe| pass_on(pipe, out(Box::new(std::io::stdout())), counts()));
        let errors = child.stderr.take();
        let errors = errors.map(|pipe| pass_on(pipe, out(Box::new(std::io::stderr())), counts()));
        let limit = context.ci.then_some(self.limit);
        let status = wait(&mut child, limit).map_err(|why| format!("`{line}` {why}"));
        let drained = |output: mpsc::Receiver<()>| {
            output.recv_timeout(DRAIN) != Err(mpsc::RecvTimeoutError::Timeout)
        };
        let are_drained = [said, errors].map(|output| output.is_none_or(drained));
        if self.is_background {
            held.print(&line);
        }
        if are_drained.contains(&false) {
            println!("note: a process that `{line}` started still holds its output open");
        }
        let status = status?;
        if status.success() { Ok(()) } else { Err(format!("`{line}` ended with {status}")) }
    }

    fn line(&self) -> String {
        if let Some(name) = self.called {
            return name.to_owned();
        }
        let program = Path::new(&self.program).file_name().unwrap_or_default().to_string_lossy();
        let env = self.env.iter().map(|(name, value)| format!("{name}={value:?} "));
        format!("{}{program} {}", env.collect::<String>(), self.words.join(" "))
    }
}

/// Output that is kept.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<u8>>>);

impl Held {
    fn print(&self, line: &str) {
        let text = self.0.lock().expect("no panic while writing");
        println!("--- what `{line}` said:\n{}", String::from_utf8_lossy(&text));
    }
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic while writing").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sums of libtest's `test result:` lines.
#[derive(Default)]
struct Counts {
    binaries: u64,
    /// Whether one did not end by itself, as cargo says. (How many began proves nothing: tests run
    /// test binaries.)
    has_died: bool,
    passed: u64,
    failed: u64,
    ignored: u64,
    names: Vec<String>,
    /// Binaries that failed, in cargo's words, such as `-p rackpool --test suite`.
    targets: Vec<String>,
    /// Of tests that failed, and passed when they were run again.
    unsteady: Vec<String>,
}

impl Counts {
    fn add(&mut self, line: &str) {
        let failed = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        self.names.extend(failed.map(str::to_owned));
        let target = line.trim().strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        self.targets.extend(target.filter(|words| words.starts_with("-p ")).map(str::to_owned));
        self.has_died |= line.trim().starts_with("process didn't exit successfully: ");
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        self.binaries += 1;
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Copies the pipe on a thread; the channel closes when the pipe does.
fn pass_on(
    pipe: impl Read + Send + 'static,
    mut out: impl Write + Send + 'static,
    counts: Arc<Mutex<Counts>>,
) -> mpsc::Receiver<()> {
    let (done, receiver) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _done = done;
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            counts.lock().expect("no panic while counting").add(&line);
            if writeln!(out, "{line}").is_err() {
                return;
            }
        }
    });
    receiver
}

fn wait(child: &mut Child, limit: Option<Duration>) -> Result<ExitStatus, String> {
    let Some(limit) = limit else {
        return child.wait().map_err(|e| format!("cannot be waited for: {e}"));
    };
    let start = Instant::now();
    while start.elapsed() < limit {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(e) => return Err(format!("cannot be waited for: {e}")),
        }
    }
    let group = format!("kill -s KILL -- -{}", child.id());
    let killed = Command::new("sh").args(["-c", &group]).status();
    if !killed.is_ok_and(|status| status.success()) {
        // The group may be gone already; the child itself is what we must not wait for in vain.
        child.kill().map_err(|e| format!("ran over its limit and cannot be killed: {e}"))?;
    }
    child.wait().map_err(|e| format!("cannot be waited for: {e}"))?;
    Err(format!("ran longer than {} s and was killed with its children", limit.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(ci: bool) -> Context {
        let mut context = Context::new().expect("the workspace is here");
        context.ci = ci;
        context
    }

    #[test]
    fn closing_lines_are_added_up() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        counts.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured");
        let all = (counts.binaries, counts.passed, counts.failed, counts.ignored);
        assert_eq!(all, (2, 14, 3, 1));
    }

    #[test]
    fn few_failed_tests_are_run_again_and_nothing_else_is_forgiven() {
        let after = |lines: &[&str]| {
            let context = context(false);
            lines.iter().for_each(|line| context.counts.lock().unwrap().add(line));
            context
        };
        let (begin, end) =
            ("running 2 tests", "test result: FAILED. 1 passed; 1 failed; 0 ignored");
        let (failed, target) = ("test a::b ... FAILED", "    `-p rackpool --test suite`");
        let one = after(&[begin, failed, end, target]);
        let (names, targets) = one.take_failed().expect("one test");
        assert_eq!((&names[..], &targets[..]), (&["a::b".into()][..], &[target[5..29].into()][..]));
        one.unsteady(names);
        // What a test that failed has run itself.
        assert!(after(&[begin, failed, begin, end, target]).take_failed().is_some());
        let said = one.tests();
        assert!(said.contains(" 0 failed") && said.contains("UNSTEADY") && said.contains("a::b"));

        // Binaries that ended in the midst, a failure without a name, and too many.
        let died = "  process didn't exit successfully: `deps/x` (signal: 6, SIGABRT)";
        assert_eq!(after(&[begin, failed, end, begin, died, target]).take_failed(), None);
        assert_eq!(after(&[begin, end, target]).take_failed(), None);
        let end = "test result: FAILED. 0 passed; 3 failed; 0 ignored";
        assert_eq!(after(&[begin, failed, failed, failed, end, target]).take_failed(), None);
        assert_eq!(after(&[]).take_failed(), None);
    }

    #[test]
    fn output_that_is_held_is_all_there_and_counted() {
        let (context, held) = (context(false), Held::default());
        let text = "test result: ok. 2 passed; 0 failed\nmore\n";
        let passed = pass_on(text.as_bytes(), held.clone(), Arc::clone(&context.counts));
        assert_eq!(passed.recv(), Err(mpsc::RecvError));
        assert_eq!((context.passed(), held.0.lock().unwrap().as_slice()), (2, text.as_bytes()));
        let task = Task::new("sh", &["-c", "echo said; exit 3"]).background();
        assert!(task.run(&context).is_err());
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = Task::new("sh", &["-c", "exit 3"]).run(&context(false)).expect_err("exit 3");
        assert!(error.contains("sh -c exit 3"), "{error}");
    }

    #[test]
    fn a_command_over_its_limit_is_killed_with_its_children() {
        let note = std::env::temp_dir().join(format!("xtask-limit-{}", std::process::id()));
        let script = format!("sleep 60 & echo $! >{}; wait", note.display());
        let mut task = Task::new("sh", &["-c", &script]).count_tests();
        task.limit = Duration::from_millis(500);
        let error = task.run(&context(true)).expect_err("the limit");
        assert!(error.contains("killed"), "{error}");
        let grandchild = std::fs::read_to_string(&note).expect("the script wrote it at once");
        std::fs::remove_file(&note).expect("our own file");
        let environment = format!("/proc/{}/environ", grandchild.trim());
        // A process that ended but was not reaped yet has no environment any more.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::read(&environment).is_ok_and(|bytes| !bytes.is_empty()) {
            assert!(Instant::now() < deadline, "process {grandchild} outlived its group");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_leaked_process_that_holds_the_pipe_does_not_hang_the_step() {
        let task = Task::new("sh", &["-c", "sleep 12 & exit 0"]).count_tests();
        let start = Instant::now();
        task.run(&context(false)).expect("the command itself passed");
        assert!(start.elapsed() < Duration::from_secs(11));
    }
}
