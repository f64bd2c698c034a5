//! How long a script may run, and whether it is to end. Lua asks every so many instructions, and
//! functions of ours every so many steps; neither can be kept from it by the script.

use super::library::Fault;
use super::store::Running;
use crate::constants::SCRIPT_BYTES_MAX;
use mlua::Lua;
use rackpool_mem::process::monotonic_ns;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Why a script does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Late,
    /// A client asked for it.
    Killed,
    /// It takes longer than a serving thread has for it, and has changed nothing so far.
    Elsewhere,
    /// It needs a key that it did not name and that another step holds, and has changed nothing.
    All,
}

/// Steps of ours between two looks at the clock.
const STEPS: u32 = 4096;

#[derive(Debug, Default)]
pub struct Pace {
    steps: Cell<u32>,
    /// How long it may take, and when that is over.
    limit_ms: Cell<u64>,
    ends_ns: Cell<u64>,
    /// When it is stopped if it has changed nothing; 0: not before the end.
    restarts_ns: Cell<u64>,
    has_written: Cell<bool>,
    stop: Cell<Option<Stop>>,
    run: RefCell<Option<Arc<Running>>>,
}

impl Pace {
    /// A script begins now: it may run so long, and, as long as it changes nothing, until the other
    /// time if that is not 0.
    pub fn begin(&self, now_ns: u64, ms: u64, restarts_ns: u64, run: Option<Arc<Running>>) {
        self.limit_ms.set(ms);
        self.ends_ns.set(now_ns.saturating_add(ms.saturating_mul(1_000_000)));
        self.restarts_ns.set(restarts_ns);
        self.has_written.set(false);
        self.stop.set(None);
        *self.run.borrow_mut() = run;
    }

    pub fn end(&self) -> Option<Stop> {
        *self.run.borrow_mut() = None;
        self.stop.get()
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.stop.get()
    }

    pub fn stop(&self, why: Stop) {
        self.stop.set(Some(why));
    }

    /// The script has changed something: it is not begun anew.
    pub fn wrote(&self) {
        self.restarts_ns.set(0);
        self.has_written.set(true);
        if let Some(run) = &*self.run.borrow() {
            run.note_write();
        }
    }

    pub fn has_written(&self) -> bool {
        self.has_written.get()
    }

    /// Whether the script, which has changed nothing so far, would be begun anew elsewhere.
    pub fn may_restart(&self) -> bool {
        self.restarts_ns.get() != 0
    }

    /// Looks at the clock, and whether it was killed; an error if the script is not to go on.
    pub fn look(&self) -> mlua::Result<()> {
        if self.stop.get().is_none() {
            let now = monotonic_ns();
            let restarts_ns = self.restarts_ns.get();
            if self.run.borrow().as_ref().is_some_and(|run| run.is_killed()) {
                self.stop(Stop::Killed);
            } else if now >= self.ends_ns.get() {
                self.stop(Stop::Late);
            } else if restarts_ns != 0 && now >= restarts_ns {
                self.stop(Stop::Elsewhere);
            }
        }
        self.stop_text().map_or(Ok(()), |text| Err(mlua::Error::runtime(text)))
    }

    /// The error with which the script ends that is not to go on.
    pub fn stop_text(&self) -> Option<String> {
        Some(match self.stop.get()? {
            Stop::Late => {
                format!("Script ran for more than {} ms and was stopped.", self.limit_ms.get())
            }
            Stop::Killed => "Script killed by user with SCRIPT KILL...".into(),
            Stop::Elsewhere | Stop::All => "Script is begun anew.".into(),
        })
    }
}

/// So many steps of a function of ours were made.
pub fn step(lua: &Lua, count: u32) -> Result<(), Fault> {
    let pace = lua.app_data_ref::<Rc<Pace>>().expect("it is set when a state is made");
    let steps = pace.steps.get() + count;
    pace.steps.set(steps % STEPS);
    if steps >= STEPS { Ok(pace.look()?) } else { Ok(()) }
}

/// Whether a text of ours, beside Lua's memory, may have so many bytes.
pub fn room(bytes: usize) -> Result<(), Fault> {
    if bytes > SCRIPT_BYTES_MAX {
        return Err(mlua::Error::MemoryError("not enough memory".into()).into());
    }
    Ok(())
}
