//! The loop: takes one event at a time out of the wheel and lets its process go on.

use super::{Body, ConnId, Input, Kernel, KernelEvent, ProcessId, Status};
use crate::coro::{Coroutine, CoroutineState, Order, STACK_BYTES, Wait};
use crate::net::Down;
use crate::time::Ps;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

enum Runner {
    Stack(Box<Coroutine>),
    Direct(Body),
}

/// The loop's own part of the world.
pub struct Loop {
    kernel: Rc<Kernel>,
    runners: Vec<Option<Runner>>,
    /// Stack of a process in checking mode; `None`: futures are polled directly, save of those
    /// processes that were given a stack.
    stack_bytes: Option<usize>,
}

impl Loop {
    /// The loop of a world.
    pub fn new(kernel: Rc<Kernel>, stack_bytes: Option<usize>) -> Loop {
        Loop { kernel, runners: Vec::new(), stack_bytes }
    }

    /// Handles events until `done` says so, nothing is left, a check fails, or `until`.
    pub fn run(&mut self, until: Ps, mut done: impl FnMut() -> bool) {
        self.settle();
        self.do_at_once();
        while !done() && self.kernel.violation.borrow().is_none() {
            let next = self.kernel.wheel.borrow_mut().pop();
            let Some((at, source, event)) = next else { return };
            self.kernel.now.set(at);
            self.kernel.violations.set_now(at);
            if at > until {
                return;
            }
            if !self.count_event() {
                return;
            }
            self.kernel.note(at.0 ^ u64::from(source) << 48);
            match event {
                KernelEvent::Run(id) => self.on_run(id, at),
                KernelEvent::Arrive(id, index) => self.on_arrive(id, index),
                KernelEvent::Heal(from, to) => self.kernel.on_heal(from, to),
                KernelEvent::Net(event) => {
                    self.kernel.with_net(|net, wires| net.on_event(at, event, wires));
                }
            }
            self.settle();
            self.do_at_once();
            if self.kernel.violations.count() > 0 {
                for (_, text) in self.kernel.violations.take() {
                    self.kernel.fail("memory", text);
                }
            }
        }
    }

    /// Counts an event; one too many is a failure.
    fn count_event(&self) -> bool {
        let (events, max) = (self.kernel.events.get() + 1, self.kernel.events_max.get());
        if events > max {
            self.kernel.fail("live", format!("{max} events are over, and there is no end"));
            return false;
        }
        self.kernel.events.set(events);
        true
    }

    /// Hands over what came at this very moment.
    fn do_at_once(&mut self) {
        while let Some((id, index)) = self.kernel.take_at_once() {
            self.on_arrive(id, index);
            self.settle();
        }
    }

    /// Starts the processes that were spawned and ends those that were killed meanwhile: seldom
    /// any.
    #[inline]
    fn settle(&mut self) {
        if self.kernel.unsettled.get() {
            self.start_and_end();
        }
    }

    #[cold]
    fn start_and_end(&mut self) {
        while self.kernel.unsettled.take() {
            let spawned = std::mem::take(&mut *self.kernel.spawned.borrow_mut());
            let killed = std::mem::take(&mut *self.kernel.killed.borrow_mut());
            for (id, body) in spawned {
                let has_stack = self.kernel.processes.borrow()[id.0 as usize].has_stack;
                let given = has_stack.then_some(STACK_BYTES);
                let runner = match self.stack_bytes.or(given) {
                    Some(bytes) => {
                        Runner::Stack(Box::new(Coroutine::new(bytes, move || block_on(body))))
                    }
                    None => Runner::Direct(body),
                };
                self.runners.resize_with(id.0 as usize + 1, || None);
                self.runners[id.0 as usize] = Some(runner);
            }
            for id in killed {
                if let Some(Runner::Stack(mut stack)) = self.runners[id.0 as usize].take() {
                    stack.resume(Order::Die);
                }
                self.bury(id);
            }
        }
    }

    /// A process is over: what its processor had retired reaches memory, its connections close.
    fn bury(&mut self, id: ProcessId) {
        let kernel = &self.kernel;
        let cpu = {
            let mut processes = kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            process.status = Status::Dead;
            let mut inputs = kernel.inputs.borrow_mut();
            process.inbox.drain(..).for_each(|index| drop(inputs.take(index)));
            process.cpu.clone()
        };
        cpu.kill();
        let open: Vec<ConnId> = (0..)
            .map(ConnId)
            .zip(kernel.conns.borrow().iter())
            .filter(|(_, conn)| conn.open && conn.ends.contains(&id))
            .map(|(conn, _)| conn)
            .collect();
        open.into_iter().for_each(|conn| kernel.close(conn, id, kernel.now.get()));
        let endpoints = kernel.endpoints_of(id);
        endpoints.into_iter().for_each(|one| kernel.close_endpoint(one, Down::Crash));
    }

    fn on_arrive(&mut self, id: ProcessId, index: u32) {
        let kernel = &self.kernel;
        let waits = {
            let mut processes = kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.status == Status::Dead {
                drop(processes);
                let input = kernel.inputs.borrow_mut().take(index);
                if let Input::Opened(conn) = input {
                    // No process listens.
                    kernel.close(conn, id, kernel.now.get());
                }
                return;
            }
            process.inbox.push_back(index);
            let waits = process.status == Status::Waiting && !process.deaf;
            if waits && process.paused_until <= kernel.now.get() {
                process.cpu.charge(process.notice);
            }
            waits
        };
        if waits {
            self.resume(id);
        }
    }

    fn on_run(&mut self, id: ProcessId, at: Ps) {
        {
            let mut processes = self.kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.timer == Some(at) {
                process.timer = None;
            }
            if process.wake == Some(at) {
                process.wake = None;
            }
            match process.status {
                Status::Dead | Status::Running => return,
                Status::Sleeping(until) if until > at => {
                    drop(processes);
                    return self.kernel.run_at(id, until);
                }
                Status::Sleeping(_) | Status::Waiting => {}
            }
        }
        self.resume(id);
    }

    /// Lets a process go on until it waits.
    fn resume(&mut self, id: ProcessId) {
        let now = self.kernel.now.get();
        {
            let mut processes = self.kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            if process.paused_until > now {
                let until = process.paused_until;
                drop(processes);
                return self.kernel.wake_at(id, until);
            }
            process.status = Status::Running;
        }
        let Some(runner) = &mut self.runners[id.0 as usize] else { return };
        let status = match runner {
            Runner::Stack(stack) => match stack.resume(Order::Go) {
                CoroutineState::Waiting(Wait::For(time)) => Some(Status::Sleeping(now + time)),
                CoroutineState::Waiting(Wait::Event) => Some(Status::Waiting),
                CoroutineState::Ended => None,
                CoroutineState::Panicked(text) => {
                    let name = self.kernel.processes.borrow()[id.0 as usize].name.clone();
                    self.kernel.fail("assertion", format!("{name}: {text}"));
                    None
                }
            },
            Runner::Direct(body) => {
                let poll = body.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                poll.is_pending().then_some(Status::Waiting)
            }
        };
        if self.stack_bytes.is_none() {
            let mut processes = self.kernel.processes.borrow_mut();
            let process = &mut processes[id.0 as usize];
            // What comes while it is busy is looked at afterwards.
            process.paused_until = process.paused_until.max(now + process.cpu.take_cost());
        }
        self.after(id, status);
    }

    fn after(&mut self, id: ProcessId, status: Option<Status>) {
        let mut processes = self.kernel.processes.borrow_mut();
        let process = &mut processes[id.0 as usize];
        if process.status == Status::Dead {
            // Killed by itself or by the process that it called; `settle` ends it.
            return;
        }
        match status {
            None => {
                drop(processes);
                self.runners[id.0 as usize] = None;
                self.bury(id);
            }
            Some(Status::Sleeping(until)) => {
                process.status = Status::Sleeping(until);
                drop(processes);
                self.kernel.run_at(id, until);
            }
            Some(status) => {
                process.status = status;
                // A processor that idles has long emptied its store buffer.
                process.cpu.drain();
                let more = !process.inbox.is_empty() && !process.deaf;
                drop(processes);
                if more {
                    self.kernel.wake_at(id, self.kernel.now.get());
                }
            }
        }
    }
}

/// Runs a future on the stack of the process that calls: when the future has to wait, the stack
/// does. So code of a process that cannot `await` can block.
///
/// # Panics
/// If it has to wait outside of a process that runs on a stack of its own: all do in checking mode,
/// otherwise those of [`Kernel::give_stack`].
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => return output,
            Poll::Pending => crate::coro::wait(Wait::Event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Profile;
    use crate::mem::{Cpu, MemCosts};
    use crate::net::{Net, NetFaults};
    use crate::rng::{Purpose, Rng};
    use crate::world::{Clock, ControlCosts, Ctx};

    async fn round_in_circles(ctx: Ctx) {
        loop {
            ctx.sleep(Ps::ns(1)).await;
        }
    }

    #[test]
    fn a_run_that_goes_round_in_circles_fails_at_its_limit_of_events() {
        let profile = Profile::load("rcmp-testbed").unwrap();
        let net = Net::new(&profile, NetFaults::none(), Rng::new(1, Purpose::Network, 0));
        let costs = ControlCosts { local: Ps::us(1), remote: Ps::us(1), line: Ps::ns(1) };
        let kernel = Kernel::new(1, net, costs, false);
        let host = kernel.add_host(Clock { drift_ppm: 0, offset_ns: 0 });
        let cpu = Cpu::performance(MemCosts::default());
        kernel.spawn("wheel".into(), host, cpu, round_in_circles);
        kernel.set_events_max(600);
        kernel.add_events_max(400);
        Loop::new(kernel.clone(), None).run(Ps::ms(1000), || false);
        let found = kernel.violation().expect("the limit");
        assert_eq!((found.checker, kernel.events()), ("live", 1000), "{}", found.text);
        assert!(found.text.contains("1000 events"), "{}", found.text);
    }
}
