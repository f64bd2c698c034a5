//! Children of tests: this binary runs itself again in a role, on a place that its test names.
#![allow(dead_code, reason = "each test binary uses a part")]

use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};

const ROLE: &str = "RACKPOOL_TEST_ROLE";
const PLACE: &str = "RACKPOOL_TEST_PLACE";

/// A child of this test; it does not outlive it.
pub struct Own(pub Child);

impl Own {
    /// Runs `test` of this binary in a role.
    pub fn start(test: &str, role: &str, place: &str, stdout: Stdio) -> Own {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .env(PLACE, place)
            .stdout(stdout)
            .spawn();
        Own(child.unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.0.wait().unwrap();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The role and the place of this process, if it is a child.
pub fn role_and_place() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(PLACE).unwrap()))
}
