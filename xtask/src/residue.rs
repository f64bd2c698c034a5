//! What a CI run must not leave behind: region files in `/dev/shm` and processes.
//!
//! Descendants are known by the marker in their environment (`run::MARKER`). A file has no such
//! mark: in CI, where nothing else runs, every new one counts; elsewhere only names that contain
//! `rack`, which all our default names do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Context, MARKER};

const SHM: &str = "/dev/shm";

/// How long a process that was told to stop may take.
const GRACE: Duration = Duration::from_secs(3);

/// What was there before the run.
pub struct Snapshot {
    files: BTreeSet<String>,
    processes: BTreeSet<Process>,
}

impl Snapshot {
    pub fn take() -> Self {
        Self { files: files(), processes: processes() }
    }

    /// Fails with a list if anything of ours is there that was not there before.
    pub fn compare(&self, context: &Context) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let left = self.left(context);
            if left.is_empty() {
                println!("no new file in {SHM}, no process left");
                return Ok(());
            }
            if start.elapsed() > GRACE {
                return Err(format!("left behind:\n  {}", left.join("\n  ")));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn left(&self, context: &Context) -> Vec<String> {
        let marker = format!("{MARKER}={}", context.marker);
        let new = |name: &&String| context.ci || name.contains("rack");
        let now = files();
        let files = now.difference(&self.files).filter(new).map(|name| format!("{SHM}/{name}"));
        let now = processes();
        let processes = now.difference(&self.processes).filter_map(|process| {
            let environment = fs::read(format!("/proc/{}/environ", process.id)).unwrap_or_default();
            let marked = environment.split(|byte| *byte == 0).any(|v| v == marker.as_bytes());
            let built = process.program.starts_with(&*context.target.to_string_lossy());
            let named = process.name() == "rackpool";
            // A test may have cleared the environment: in CI the name alone is enough.
            let ours = marked && (named || built) || context.ci && named;
            ours.then(|| format!("process {} {}", process.id, process.program))
        });
        files.chain(processes).collect()
    }
}

/// A process, told apart from a later one of the same id by its start time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    id: u32,
    start: String,
    program: String,
}

impl Process {
    fn read(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The second field, the name in brackets, may itself hold spaces and brackets.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let (state, start) = (*fields.first()?, (*fields.get(19)?).to_owned());
        if state == "Z" {
            return None;
        }
        let program = fs::read_link(format!("/proc/{id}/exe")).ok()?;
        Some(Self { id, start, program: program.to_string_lossy().into_owned() })
    }

    fn name(&self) -> &str {
        let path = self.program.strip_suffix(" (deleted)").unwrap_or(&self.program);
        Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

fn processes() -> BTreeSet<Process> {
    let own = std::process::id();
    names("/proc")
        .filter_map(|name| name.parse().ok())
        .filter(|id| *id != own)
        .filter_map(Process::read)
        .collect()
}

fn files() -> BTreeSet<String> {
    names(SHM).collect()
}

fn names(directory: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn context() -> Context {
        let mut context = Context::new().expect("the workspace is here");
        (context.ci, context.marker) = (false, format!("test-{}", std::process::id()));
        context
    }

    #[test]
    fn a_new_region_file_is_found_until_it_is_removed() {
        let (context, before) = (context(), Snapshot::take());
        let name = format!("rackpool-xtask-residue-{}", std::process::id());
        let path = Path::new(SHM).join(&name);
        fs::write(&path, "x").expect("/dev/shm takes files");
        let left = before.left(&context);
        fs::remove_file(&path).expect("it was just written");
        assert!(left.iter().any(|line| line.ends_with(&name)), "{left:?}");
        assert!(!before.left(&context).iter().any(|line| line.ends_with(&name)));
    }

    #[test]
    fn a_marked_process_of_ours_is_found_until_it_ends() {
        let (context, before) = (context(), Snapshot::take());
        // A copy of `sleep` under our program's name stands in for a leaked daemon.
        let directory = std::env::temp_dir().join(format!("xtask-residue-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a temporary directory");
        let program = directory.join("rackpool");
        // By `cp`: a file that this process held open for writing while another test forks could
        // not be executed.
        let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let mut child = Command::new(&program)
            .arg("30")
            .env(MARKER, &context.marker)
            .spawn()
            .expect("the copy runs");
        let line = format!("process {} ", child.id());
        let is_listed = |left: &[String]| left.iter().any(|found| found.starts_with(&line));
        // A process that is just being executed has no environment for a moment.
        let (start, mut left) = (Instant::now(), before.left(&context));
        while !is_listed(&left) && start.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(10));
            left = before.left(&context);
        }
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        fs::remove_dir_all(&directory).expect("our own directory");
        assert!(is_listed(&left), "{left:?}");
        assert!(!is_listed(&before.left(&context)));
    }
}
