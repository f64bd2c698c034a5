//! What was set before a balance began, in a file: a balance that is killed leaves it, and the next
//! one finds it. The file holds values alone; where they are written is known here.

use super::damon::SavedKdamonds;
use super::error::failed;
use super::kernel::{Kernel, put};
use super::tiering::{DEMOTION, NUMA_BALANCING};
use super::{BalanceError, damon};
use rackpool_mem::process::ProcessId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const SCHEMA: &str = "rackpool.tiers.balance/1";
const FILE: &str = "tiers-balance.json";
/// The folder for the machine: gone at its next boot, as settings are.
pub const STATE_FOLDER: &str = "/run/rackpool";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    schema: String,
    /// Settings do not outlive their boot.
    boot_id: String,
    pid: u32,
    start_time: u64,
    /// What stands for `/sys`.
    sys: PathBuf,
    /// None if they are not changed.
    pub(super) kdamonds: Option<SavedKdamonds>,
    /// True if they were on.
    #[serde(default)]
    pub(super) damon_statistics: bool,
    pub(super) numa_balancing: Option<u32>,
    pub(super) demotion_enabled: Option<bool>,
}

impl Saved {
    /// Of this process, with nothing changed so far.
    pub(super) fn new(kernel: &dyn Kernel, states: &StateFile) -> Result<Saved, BalanceError> {
        let own = ProcessId::own().map_err(|source| failed("/proc/self/stat", source))?;
        Ok(Saved {
            schema: SCHEMA.to_owned(),
            boot_id: boot_id(kernel),
            pid: own.pid,
            start_time: own.start_time,
            sys: states.sys.clone(),
            kdamonds: None,
            damon_statistics: false,
            numa_balancing: None,
            demotion_enabled: None,
        })
    }

    fn is_running(&self) -> bool {
        ProcessId { pid: self.pid, start_time: self.start_time }.is_alive()
    }

    /// Sets everything as it was before; what fails does not keep the rest from it.
    pub(super) fn restore(&self, kernel: &dyn Kernel) -> Result<(), BalanceError> {
        let kdamonds = self.kdamonds.as_ref().map(|saved| damon::restore(kernel, saved));
        let statistics = self.damon_statistics.then(|| damon::set_statistics(kernel, true));
        let balancing = self.numa_balancing.map(|mode| put(kernel, NUMA_BALANCING, mode));
        let demotion = self.demotion_enabled.map(|is_on| put(kernel, DEMOTION, is_on));
        [kdamonds, statistics, balancing, demotion].into_iter().flatten().collect()
    }
}

/// Changes with each boot.
fn boot_id(kernel: &dyn Kernel) -> String {
    kernel.read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Where it is kept what was set before.
#[derive(Clone, Debug)]
pub struct StateFile {
    pub(super) path: PathBuf,
    sys: PathBuf,
}

impl StateFile {
    /// In a folder that is made if it is missing, for settings below `sys`.
    pub fn new(folder: &Path, sys: &Path) -> StateFile {
        StateFile { path: folder.join(FILE), sys: sys.to_owned() }
    }

    fn wrong(&self, why: impl ToString) -> BalanceError {
        BalanceError::State { path: self.path.clone(), why: why.to_string() }
    }

    fn failed(&self) -> impl Fn(io::Error) -> BalanceError {
        let path = self.path.display().to_string();
        move |source| failed(&path, source)
    }

    fn load(&self) -> Result<Option<Saved>, BalanceError> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(self.failed())?,
        };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| self.wrong(error))?;
        // Another version's fields are no errors of this one's.
        if value["schema"] != SCHEMA {
            return Err(self.wrong(format!("its schema is {}, not {SCHEMA:?}", value["schema"])));
        }
        let saved: Saved = serde_json::from_value(value).map_err(|error| self.wrong(error))?;
        if saved.sys != self.sys {
            let sys = saved.sys.display();
            return Err(self.wrong(format!("it is of --sysfs {sys}: --restore with that first")));
        }
        Ok(Some(saved))
    }

    /// Nothing is left of a balance before, and none runs.
    ///
    /// # Errors
    /// [`BalanceError::LeftOver`], [`BalanceError::Running`], those of files.
    pub fn require_none(&self, kernel: &dyn Kernel) -> Result<(), BalanceError> {
        match self.load()? {
            None => Ok(()),
            Some(saved) if saved.is_running() => Err(BalanceError::Running { pid: saved.pid }),
            Some(saved) if saved.boot_id != boot_id(kernel) => Ok(()),
            Some(saved) => Err(BalanceError::LeftOver { pid: saved.pid }),
        }
    }

    /// Sets back what a killed balance left, and says which process it was; none if none was.
    ///
    /// # Errors
    /// [`BalanceError::Running`], [`BalanceError::NotRestored`], those of files.
    pub fn restore(&self, kernel: &dyn Kernel) -> Result<Option<u32>, BalanceError> {
        let Some(saved) = self.load()? else { return Ok(None) };
        if saved.is_running() {
            return Err(BalanceError::Running { pid: saved.pid });
        }
        if saved.boot_id == boot_id(kernel) {
            self.restore_saved(kernel, &saved)?;
        } else {
            self.remove()?;
        }
        Ok(Some(saved.pid))
    }

    /// Sets back what is saved; then there is no need for the file.
    pub(super) fn restore_saved(
        &self,
        kernel: &dyn Kernel,
        saved: &Saved,
    ) -> Result<(), BalanceError> {
        saved.restore(kernel).map_err(|error| BalanceError::NotRestored {
            path: self.path.clone(),
            source: Box::new(error),
        })?;
        self.remove()
    }

    /// Keeps it before the first change; of two that begin at once, one is refused.
    pub(super) fn create(&self, saved: &Saved) -> Result<(), BalanceError> {
        if self.load()?.is_some_and(|left| left.boot_id != saved.boot_id) {
            self.remove()?;
        }
        let part = self.write(saved)?;
        let linked = fs::hard_link(&part, &self.path);
        let _ = fs::remove_file(&part);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let pid = self.load()?.map_or(0, |saved| saved.pid);
                Err(BalanceError::Running { pid })
            }
            linked => linked.map_err(self.failed()),
        }
    }

    pub(super) fn replace(&self, saved: &Saved) -> Result<(), BalanceError> {
        let part = self.write(saved)?;
        fs::rename(part, &self.path).map_err(self.failed())
    }

    /// A whole file beside it.
    fn write(&self, saved: &Saved) -> Result<PathBuf, BalanceError> {
        let text = serde_json::to_string_pretty(saved).map_err(|error| self.wrong(error))?;
        let part = self.path.with_extension(format!("{}.part", saved.pid));
        let folder = part.parent().unwrap_or(Path::new("/"));
        let written = fs::create_dir_all(folder).and_then(|()| fs::File::create(&part));
        let written = written.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(self.failed())?;
        Ok(part)
    }

    fn remove(&self) -> Result<(), BalanceError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(self.failed()),
        }
    }
}
