//! Work of single commands that takes long: threads of their own do it, while those that serve
//! connections go on. In: what is to be done, with its client. Out: answers, which
//! its connection sends. A connection has one such job at most, and waits for it.
//!
//! Where no such thread runs, and within a section, work is done at once.

use super::clients::ClientInfo;
use super::core::{Core, Output};
use super::redis::{CommandResult, RespCall, ResumePoint};
use super::resp::Args;
use super::shared::Shared;
use crate::cache::{note_change_of, take_last_change};
use rackpool_mem::process::monotonic_ns;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// What is to be done; an error is the answer to the command.
pub type Work = Box<dyn FnOnce(&mut Core, &mut ClientInfo) -> CommandResult + Send>;

pub struct Job {
    /// The thread that serves its connection.
    thread: usize,
    /// Memory that it takes, bytes.
    held_bytes: u64,
    state: Mutex<JobState>,
    is_done: AtomicBool,
    took_ns: AtomicU64,
    /// The last change that it made in a store behind memory.
    change: AtomicU64,
}

enum JobState {
    Waiting(ClientInfo, Work),
    Running,
    Done(ClientInfo, Output, CommandResult),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl Job {
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the Release in jobs.rs::run.
        self.is_done.load(Ordering::Acquire)
    }

    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// How long it took, once it is done, nanoseconds.
    pub fn took_ns(&self) -> u64 {
        // Relaxed: stored before it is done.
        self.took_ns.load(Ordering::Relaxed)
    }

    fn swap(&self, state: JobState) -> JobState {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *now, state)
    }

    fn run(&self, core: &mut Core) {
        let JobState::Waiting(mut client, work) = self.swap(JobState::Running) else { return };
        core.now = core.shared.look_at_clock();
        core.use_database(client.database);
        let began_ns = monotonic_ns();
        take_last_change();
        let answer = work(core, &mut client);
        // Relaxed: as `took_ns`.
        self.change.store(take_last_change(), Ordering::Relaxed);
        // Relaxed: see `took_ns`.
        self.took_ns.store(monotonic_ns() - began_ns, Ordering::Relaxed);
        let out = std::mem::take(&mut core.out);
        self.swap(JobState::Done(client, out, answer));
        // Release: pairs with the Acquire in jobs.rs::is_done.
        self.is_done.store(true, Ordering::Release);
    }
}

/// A job of threads that know no connections: it is done when all clones of this are dropped.
pub struct JobEnd {
    job: Arc<Job>,
    shared: Arc<Shared>,
}

impl JobEnd {
    /// One of the connection that this thread serves, and its end.
    pub fn begin(core: &Core) -> (Arc<Job>, Arc<JobEnd>) {
        let job = Arc::new(Job {
            thread: core.thread,
            held_bytes: 0,
            state: Mutex::new(JobState::Running),
            is_done: AtomicBool::new(false),
            took_ns: AtomicU64::new(0),
            change: AtomicU64::new(0),
        });
        let shared = Arc::clone(&core.shared);
        (Arc::clone(&job), Arc::new(JobEnd { job, shared }))
    }
}

impl Drop for JobEnd {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in jobs.rs::is_done.
        self.job.is_done.store(true, Ordering::Release);
        if let Some(wake) = self.shared.jobs.wake.get() {
            wake(self.job.thread);
        }
    }
}

/// Jobs that wait: no more than there are connections.
#[derive(Default)]
pub struct Jobs {
    waiting: Mutex<WaitingJobs>,
    has_come: Condvar,
    /// Whether a thread does them.
    is_open: AtomicBool,
    /// Wakes the thread of a connection.
    wake: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
}

#[derive(Default)]
struct WaitingJobs {
    jobs: VecDeque<Arc<Job>>,
    is_closed: bool,
}

impl Jobs {
    fn waiting(&self) -> MutexGuard<'_, WaitingJobs> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread will do them from now on.
    pub fn open(&self) {
        // Relaxed: jobs that come before it runs wait for it.
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// How the thread of a connection is woken; the first that is said counts.
    pub fn wake_by(&self, wake: impl Fn(usize) + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    pub fn is_open(&self) -> bool {
        // Relaxed: as above.
        self.is_open.load(Ordering::Relaxed)
    }

    /// No more jobs are done.
    pub fn close(&self) {
        self.waiting().is_closed = true;
        self.has_come.notify_all();
    }

    fn push(&self, job: Arc<Job>) {
        self.waiting().jobs.push_back(job);
        self.has_come.notify_one();
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut waiting = self.waiting();
        while !waiting.is_closed {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            waiting = self.has_come.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// Does all jobs, on this thread, until there are no more to be done; `done` is told the thread of
/// the connection of each.
pub fn run(core: &mut Core, done: impl Fn(usize)) {
    let shared = Arc::clone(&core.shared);
    while let Some(job) = shared.jobs.next() {
        job.run(core);
        done(job.thread);
        if core.has_to_tidy {
            core.tidy();
        }
    }
}

impl RespCall<'_> {
    /// Has `work`, which takes so many bytes of memory, done by the thread for what takes long.
    pub fn run_apart(&mut self, held_bytes: u64, work: Work) -> CommandResult {
        if self.core.section.is_some() || !self.core.shared.jobs.is_open() {
            return work(self.core, self.client);
        }
        let left = self.client.left_behind();
        let client = std::mem::replace(self.client, left);
        let job = Arc::new(Job {
            thread: self.core.thread,
            held_bytes,
            state: Mutex::new(JobState::Waiting(client, work)),
            is_done: AtomicBool::new(false),
            took_ns: AtomicU64::new(0),
            change: AtomicU64::new(0),
        });
        self.core.shared.jobs.push(Arc::clone(&job));
        self.go_on_later(ResumePoint { job: Some(job), ..ResumePoint::default() }, take_answers)
    }
}

impl RespCall<'_> {
    /// Has the command, which does not go on later, executed by `f` there.
    pub fn run_words_apart(&mut self, f: fn(&mut RespCall<'_>) -> CommandResult) -> CommandResult {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for word in self.args.words(self.input) {
            spans.push((bytes.len() as u32, word.len() as u32));
            bytes.extend_from_slice(word);
        }
        let mut args = Args::default();
        args.refill(&spans);
        self.run_apart(
            bytes.len() as u64 + args.held_bytes(),
            Box::new(move |core: &mut Core, client: &mut ClientInfo| {
                f(&mut RespCall::new(core, client, &bytes, &args))
            }),
        )
    }
}

/// Answers with what a job that is done has answered. Its connection looks before.
fn take_answers(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    let state = part.job.as_ref().map(|job| {
        // Relaxed: stored before it is done.
        note_change_of(job.change.load(Ordering::Relaxed));
        job.swap(JobState::Running)
    });
    let Some(JobState::Done(client, out, answer)) = state else {
        unreachable!("a command goes on when its job is done")
    };
    *call.client = client;
    call.core.use_database(call.client.database);
    call.core.out.append(out);
    answer
}
