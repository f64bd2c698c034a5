//! The smallest world: processes of one or more hosts that run until all have ended.

use std::rc::Rc;

use rackpool_core::seam::Mem;
use rackpool_sim::coro::{Coroutine, CoroutineState, Order, STACK_BYTES, Wait};
use rackpool_sim::mem::{Cpu, HostCache, Memory, SimMem, SwitchRates, Violations};
use rackpool_sim::time::Ps;
use rackpool_sim::wheel::Wheel;

/// Processes, each with its processor.
pub struct World {
    pub seed: u64,
    pub rates: SwitchRates,
    pub violations: Rc<Violations>,
    hosts: Vec<Rc<HostCache>>,
    processes: Vec<(Rc<Cpu>, Coroutine)>,
    wheel: Wheel<usize>,
    /// A number for all that happened.
    pub trace: u64,
}

#[allow(dead_code, reason = "each test file uses its part")]
impl World {
    pub fn new(seed: u64, hosts: u64) -> World {
        let violations = Violations::new();
        let hosts = (0..hosts).map(|host| HostCache::new(seed, host, violations.clone())).collect();
        let rates = SwitchRates { switch_gap: 3, ..SwitchRates::default() };
        let (processes, wheel, trace) = (Vec::new(), Wheel::new(), 0);
        World { seed, rates, violations, hosts, processes, wheel, trace }
    }

    pub fn host(&self, host: usize) -> &Rc<HostCache> {
        &self.hosts[host]
    }

    /// A process on `host` that runs `body` with its views of the memories.
    pub fn spawn<const N: usize>(
        &mut self,
        host: usize,
        memories: [&Rc<Memory>; N],
        body: impl FnOnce([SimMem; N]) + 'static,
    ) -> Rc<Cpu> {
        let index = self.processes.len();
        let cpu = Cpu::checking(self.hosts[host].clone(), self.seed, index as u64, self.rates);
        let views = memories.map(|memory| SimMem::new(memory.clone(), cpu.clone()));
        let process = Coroutine::new(STACK_BYTES, move || body(views));
        self.processes.push((cpu.clone(), process));
        self.wheel.push(self.wheel.now(), index as u32, index);
        cpu
    }

    /// Lets the next process run to where it waits; false if all have ended.
    pub fn step(&mut self) -> bool {
        let Some((now, _, index)) = self.wheel.pop() else { return false };
        self.violations.set_now(now);
        let (cpu, process) = &mut self.processes[index];
        if process.has_ended() {
            cpu.drain();
            return true;
        }
        let progress = process.resume(Order::Go);
        let cost = cpu.take_cost();
        self.trace = self.trace.wrapping_mul(0x100_0000_01b3) ^ now.0 ^ cost.0 ^ index as u64;
        match progress {
            CoroutineState::Waiting(Wait::For(pause)) => {
                self.wheel.push(now + cost + pause, index as u32, index);
            }
            CoroutineState::Waiting(Wait::Event) => unreachable!("nobody sends events here"),
            // Its last stores are seen some time later.
            CoroutineState::Ended => self.wheel.push(now + cost + Ps::us(1), index as u32, index),
            CoroutineState::Panicked(message) => panic!("seed {}: {message}", self.seed),
        }
        true
    }

    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Ends a process where it is.
    pub fn kill(&mut self, index: usize) {
        let (cpu, process) = &mut self.processes[index];
        cpu.kill();
        if !process.has_ended() {
            assert_eq!(process.resume(Order::Die), CoroutineState::Ended);
        }
    }

    pub fn now(&self) -> Ps {
        self.wheel.now()
    }
}

/// Waits for an aligned word to become `value`.
#[allow(dead_code, reason = "each test file uses its part")]
pub fn wait_for(mem: &SimMem, offset: u64, value: u64) {
    while mem.load(offset) != value {
        rackpool_sim::coro::wait(Wait::For(Ps::ns(20)));
    }
}
