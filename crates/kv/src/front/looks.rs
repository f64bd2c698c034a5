//! How often a thread looks for work before it sleeps: being woken costs more than many looks, and
//! the client that wakes it pays, too. Looking that found work is worth more next time, in vain,
//! less. Where many commands come at once a wake-up is shared among them, and more of them gather
//! while the thread sleeps: it sleeps at once.

/// Looks at most: some 20 µs, about what a sleep and its wake-up cost on a virtual machine.
const LOOKS_MAX: u32 = 64;
/// Commands of a connection that came at once, on average, up to which it is worth looking.
const COMMANDS_MAX: u64 = 4;

/// The looks of one thread.
#[derive(Debug)]
pub struct Looks {
    limit: u32,
    /// All commands of the thread so far.
    commands: u64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { limit: LOOKS_MAX, commands: 0 }
    }
}

impl Looks {
    /// How often to look now. `commands` is the sum over the thread's life, `events` how many
    /// connections were served since the last call.
    pub fn after(&mut self, commands: u64, events: u64) -> u32 {
        let came = commands.wrapping_sub(std::mem::replace(&mut self.commands, commands));
        if came > COMMANDS_MAX.saturating_mul(events) {
            return 0;
        }
        let looks = self.limit;
        self.limit = (self.limit / 2).max(1);
        looks
    }

    pub fn found(&mut self) {
        self.limit = (self.limit * 4).min(LOOKS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_one_and_looks_that_help_become_more() {
        let mut looks = Looks::default();
        let vain: Vec<u32> = (1..9).map(|done| looks.after(done, 1)).collect();
        assert_eq!(vain, [64, 32, 16, 8, 4, 2, 1, 1]);
        let helped: Vec<u32> = (9..16)
            .map(|done| {
                let count = looks.after(done, 1);
                looks.found();
                count
            })
            .collect();
        assert_eq!(helped, [1, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn who_pipelines_is_not_waited_for() {
        let mut looks = Looks::default();
        assert_eq!(looks.after(32, 1), 0);
        assert_eq!(looks.after(64, 8), 64);
        // A connection that takes a long value in parts brings no commands.
        assert_eq!(looks.after(64, 1), 32);
    }
}
