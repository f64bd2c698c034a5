//! One run of a scenario: its folder, its guests, their ends. Whatever happens, no process and no
//! file is left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::machine::Machine;
use super::qemu::{self, Run};

/// After a guest has failed, the others have this long.
const GRACE: Duration = Duration::from_secs(10);
/// The power goes within this time after a guest has said that it writes, ms.
const CUT_AFTER_MS_MAX: u64 = 800;
/// Lines of a console that are shown.
const CONSOLE_LINES: usize = 60;

/// Programs that every guest finds in its path.
const PROGRAMS: &[(&str, &str)] = &[
    ("guest-init", include_str!("guest/init.sh")),
    ("bin/rig-barrier", include_str!("guest/barrier.sh")),
    ("bin/rig-cache", include_str!("guest/cache.py")),
    ("bin/rig-crash", include_str!("guest/crash.sh")),
    ("bin/rig-cxl", include_str!("guest/cxl.sh")),
    ("bin/rig-dax", include_str!("guest/dax.sh")),
    ("bin/rig-flash", include_str!("guest/flash.py")),
    ("bin/rig-loss", include_str!("guest/loss.sh")),
    ("bin/rig-pages", include_str!("guest/pages.py")),
    ("bin/rig-pool", include_str!("guest/pool.sh")),
    ("bin/rig-rxe", include_str!("guest/rxe.sh")),
    ("bin/rig-start", include_str!("guest/start.sh")),
    ("bin/rig-take", include_str!("guest/take.py")),
    ("bin/rig-without", include_str!("guest/without.py")),
];

/// The folder that the guests see as `/rig`; removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one for a scenario, in memory where that is possible.
    pub fn new(scenario: &str) -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        remove_orphans(&parent);
        let path = parent.join(format!("rackpool-vm-{}-{scenario}", std::process::id()));
        let failed = |e: io::Error| format!("{}: {e}", path.display());
        fs::create_dir_all(path.join("bin")).map_err(failed)?;
        for (name, text) in PROGRAMS {
            let file = path.join(name);
            fs::write(&file, text).map_err(failed)?;
            let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&file, rights).map_err(failed)?;
        }
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What a guest or the rig has written; empty if nothing.
    pub fn text(&self, name: &str) -> String {
        fs::read(self.0.join(name))
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.0.join(name), text).map_err(|e| format!("{name}: {e}"))
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// Puts in what the guests are to do, and the memory that they share.
    pub fn prepare(
        &self,
        machine: &Machine,
        modules: &[&str],
        commands: &[String],
    ) -> Result<(), String> {
        self.write("modules", &modules.join(" "))?;
        for (guest, command) in commands.iter().enumerate() {
            self.write(&format!("command.{guest}"), command)?;
        }
        for (name, mib) in machine.shared_files(commands.len() as u32) {
            let file = fs::File::create(self.0.join(&name));
            let made = file.and_then(|file| file.set_len(u64::from(mib) << 20));
            made.map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("vm: cannot remove {}: {e}", self.0.display());
        }
    }
}

/// Removes the folders of runs that were killed.
fn remove_orphans(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let run = name.strip_prefix("rackpool-vm-").and_then(|rest| rest.split('-').next());
        let pid = run.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its command did, with this code.
    Code(i32),
    /// It crashed, which its command wanted.
    Crashed,
    /// It never told.
    Lost,
    /// It was ended, because the time was up or another guest had failed.
    Ended,
}

impl End {
    pub fn is_good(self) -> bool {
        matches!(self, End::Code(0) | End::Crashed)
    }
}

/// Guests that run; ended when dropped.
struct Guests(Vec<Option<Child>>);

impl Drop for Guests {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            // It may be gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Boots the guest, takes its power away some time after it has said that it writes, `cuts` times,
/// and boots it once more. The file `boot` tells it how often that happened.
pub fn power_cuts(
    run: &mut Run<'_>,
    folder: &Folder,
    limit: Duration,
    cuts: u32,
) -> Result<Vec<End>, String> {
    let start = Instant::now();
    let seed = start_seed();
    println!("  power is cut at times of seed {seed:#x}");
    let mut state = seed;
    for cut in 0..cuts {
        (run.boot, state) = (cut, next_random(state));
        folder.write("boot", &cut.to_string())?;
        let mut guest = Guests(vec![Some(spawn(run, folder, 0)?)]);
        while !folder.has(&format!("writing.{cut}")) {
            thread::sleep(Duration::from_millis(5));
            let child = guest.0[0].as_mut().expect("it was started");
            if child.try_wait().map_err(|e| format!("guest: {e}"))?.is_some() {
                return Ok(vec![end_of(folder, 0)]);
            }
            if start.elapsed() > limit {
                return Ok(vec![End::Ended]);
            }
        }
        thread::sleep(Duration::from_millis((state >> 32) % CUT_AFTER_MS_MAX));
    }
    run.boot = cuts;
    folder.write("boot", &cuts.to_string())?;
    guests(run, folder, limit.saturating_sub(start.elapsed()))
}

/// Boots the guests and waits for all of them, at most `limit`.
pub fn guests(run: &Run<'_>, folder: &Folder, limit: Duration) -> Result<Vec<End>, String> {
    let mut guests = Guests(Vec::new());
    for guest in 0..run.guests {
        guests.0.push(Some(spawn(run, folder, guest)?));
    }
    let start = Instant::now();
    let mut deadline = start + limit;
    let mut ends: Vec<Option<End>> = vec![None; run.guests as usize];
    while ends.iter().any(Option::is_none) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
        for (guest, (running, ended)) in guests.0.iter_mut().zip(&mut ends).enumerate() {
            let Some(child) = running else { continue };
            let waited = child.try_wait().map_err(|e| format!("guest {guest}: {e}"))?;
            if waited.is_none() {
                continue;
            }
            *running = None;
            let end = end_of(folder, guest);
            *ended = Some(end);
            if !end.is_good() {
                deadline = deadline.min(Instant::now() + GRACE);
            }
        }
    }
    Ok(ends.into_iter().map(|end| end.unwrap_or(End::Ended)).collect())
}

fn start_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// The high bits of the results are random enough (Knuth's linear congruential generator).
fn next_random(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

fn end_of(folder: &Folder, guest: usize) -> End {
    match folder.text(&format!("code.{guest}")).trim().parse() {
        Ok(code) => End::Code(code),
        Err(_) if folder.has(&format!("crashed.{guest}")) => End::Crashed,
        Err(_) => End::Lost,
    }
}

/// Starts a guest such that it ends when this process does, however that ends.
fn spawn(run: &Run<'_>, folder: &Folder, guest: u32) -> Result<Child, String> {
    let log = fs::File::create(folder.path().join(format!("qemu.{guest}")));
    let log = log.map_err(|e| format!("the log of guest {guest}: {e}"))?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .args(run.emulator)
        .args(qemu::arguments(run, guest))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|e| format!("cannot start a guest: {e}"))
}

/// What a guest said and saw, to be shown after a failure.
pub fn report(folder: &Folder, guest: usize) -> String {
    let tail = |name: &str| {
        let text = folder.text(&format!("{name}.{guest}"));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    };
    let output = folder.text(&format!("output.{guest}"));
    let mut report = format!("--- guest {guest}, output\n{output}\n");
    for (what, text) in [("emulator", tail("qemu")), ("console", tail("console"))] {
        report += &format!("--- guest {guest}, {what}\n{text}\n");
    }
    for server in ["master", "daemon", "daemon0", "daemon1", "daemon2", "agent", "kv"] {
        let name = format!("log.{guest}.{server}");
        if folder.has(&name) {
            report += &format!("--- guest {guest}, {server}\n{}\n", folder.text(&name));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::super::machine::MACHINE;
    use super::*;

    #[test]
    fn a_folder_holds_what_guests_need_and_is_gone_afterwards() {
        let folder = Folder::new("test").expect("a folder");
        let machine = Machine { shared_mib: 16, ..MACHINE };
        let commands = ["true".to_owned(), "rig-crash".to_owned()];
        folder.prepare(&machine, &["rdma_rxe"], &commands).expect("it can be written to");
        assert_eq!(folder.text("command.1"), "rig-crash");
        assert_eq!(folder.text("modules"), "rdma_rxe");
        assert!(folder.has("bin/rig-barrier") && folder.has("shared.0"));
        fs::write(folder.path().join("code.0"), "7\n").expect("writable");
        assert_eq!(end_of(&folder, 0), End::Code(7));
        assert_eq!(end_of(&folder, 1), End::Lost);
        fs::write(folder.path().join("crashed.1"), "").expect("writable");
        assert_eq!(end_of(&folder, 1), End::Crashed);
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
