//! Runs a script as one step, and executes the commands that it calls. In: a [`ScriptCall`]. Out:
//! its answer. Called on the thread that serves its connection, or on one for what takes long.

use super::interpreter::{Interpreter, Registered, Task, Wants, Words};
use super::pace::{Pace, Stop};
use super::store::{Running, RunningFunction};
use crate::cache::Error;
use crate::constants::{SCRIPT_BYTES_MAX, SCRIPT_KEPT_BYTES_MAX, TURN_NS};
use crate::front::atomic::Keys;
use crate::front::clients::ClientInfo;
use crate::front::commands::{self, CommandId, scripted};
use crate::front::core::{Core, Output};
use crate::front::counters::TimeBucket;
use crate::front::monitor::ToldCommand;
use crate::front::redis::{CommandResult, RespCall};
use crate::front::resp::{self, Args, Limits, OUT_OF_MEMORY, ParsedResp, Scan, failed, push_error};
use rackpool_core::seam::Mem;
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::window::Piece;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A script, or function, that is to be run.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    pub task: Task,
    pub database: u8,
    pub reads_only: bool,
    /// Its flags allow it what may need memory where there is none.
    pub allows_oom: bool,
    pub is_function: bool,
    /// It ends soon, by its text.
    pub is_short: bool,
}

/// Where a script runs, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where its connection is served, for a turn at most unless it has changed something.
    Serving,
    /// Where it may take its time.
    Apart,
    /// There, and nothing else is changed meanwhile.
    Alone,
}

/// What a thread keeps from one script to the next.
pub struct ScriptState {
    interpreter: Interpreter,
    /// The client that scripts are to the commands that they call.
    client: ClientInfo,
    args: Args,
    out: Output,
}

impl ScriptCall {
    fn given(&self) -> Option<&Words> {
        match &self.task {
            Task::Script { given, .. } | Task::Function { given, .. } => Some(&**given),
            Task::Check { .. } | Task::Load { .. } => None,
        }
    }

    fn told_function(&self, began_ns: u64) -> Option<RunningFunction> {
        let Task::Function { name, given, .. } = &self.task else { return None };
        Some(RunningFunction { name: name.clone(), given: given.clone(), began_ns })
    }

    fn given_bytes(&self) -> u64 {
        self.given().map_or(0, Words::held_bytes)
    }

    /// Answers with what it answers.
    pub fn run(self, call: &mut RespCall<'_>) -> CommandResult {
        if call.core.section.is_some() {
            let done = self.drive(call.core, Place::Alone);
            return answer(call.core, call.client, done);
        }
        if self.is_short {
            match self.drive(call.core, Place::Serving) {
                Err(Stop::Elsewhere | Stop::All) => {}
                done => return answer(call.core, call.client, done),
            }
        }
        call.run_apart(
            self.given_bytes(),
            Box::new(move |core: &mut Core, client: &mut ClientInfo| {
                let done = match self.drive(core, Place::Apart) {
                    Err(Stop::All) => self.drive(core, Place::Alone),
                    done => done,
                };
                answer(core, client, done)
            }),
        )
    }

    fn drive(&self, core: &mut Core, place: Place) -> Result<Vec<u8>, Stop> {
        let keys = self.given().into_iter().flat_map(Words::keys);
        let keys: Vec<_> = keys.map(|key| (self.database, key)).collect();
        let keys = if place == Place::Alone { Keys::All } else { Keys::Named(&keys) };
        core.atomically(keys, |core| {
            with_state(core, |state, core| state.run(core, self, place)).unwrap_or_else(|text| {
                let mut answer = Vec::new();
                push_error(&mut answer, text.as_bytes());
                Ok(answer)
            })
        })
    }
}

/// Calls `f` with what this thread has for scripts.
fn with_state<R>(
    core: &mut Core,
    f: impl FnOnce(&mut ScriptState, &mut Core) -> R,
) -> Result<R, String> {
    let mut state = match core.scripts.take() {
        Some(state) => state,
        None => {
            let state = ScriptState::new();
            Box::new(state.map_err(|error| format!("ERR no script can run: {error}"))?)
        }
    };
    let result = f(&mut state, core);
    // Where one has taken much memory, that is given back with all of Lua.
    if state.interpreter.exchange.used_bytes.get() <= SCRIPT_KEPT_BYTES_MAX {
        core.scripts = Some(state);
    }
    Ok(result)
}

/// Runs a task that calls no commands and answers with nothing.
///
/// # Errors
/// What it answers, if it does.
pub fn checked(core: &mut Core, task: Task) -> Result<(), String> {
    let answer = with_state(core, |state, core| state.run_alone(core, task))?;
    match answer.strip_prefix(b"-") {
        Some(error) => Err(String::from_utf8_lossy(error).trim_end().to_owned()),
        None => Ok(()),
    }
}

/// Loads a library: the functions that it registers.
///
/// # Errors
/// What it answers, if it does.
pub fn load(core: &mut Core, text: Arc<[u8]>) -> Result<Vec<Registered>, String> {
    checked(core, Task::Load { text })?;
    let registered =
        |state: &mut ScriptState, _: &mut Core| state.interpreter.exchange.registered.take();
    with_state(core, registered)
}

fn answer(core: &mut Core, client: &mut ClientInfo, done: Result<Vec<u8>, Stop>) -> CommandResult {
    let answer = done.unwrap_or_else(|_| unreachable!("it has no other place to be run"));
    match answer.strip_prefix(b"-") {
        Some(error) => {
            let state = core.scripts.as_ref();
            client.error_is_counted =
                state.is_some_and(|it| it.interpreter.exchange.is_counted.get());
            Err(String::from_utf8_lossy(error).trim_end_matches(['\r', '\n']).to_owned())
        }
        None => {
            core.out.bytes.extend_from_slice(&answer);
            if let Some(state) = core.scripts.as_ref().filter(|_| answer.len() <= KEPT_ANSWER_BYTES)
            {
                // Its memory is for the next answer.
                *state.interpreter.exchange.answer.borrow_mut() = answer;
            }
            Ok(())
        }
    }
}

impl ScriptState {
    fn new() -> std::io::Result<Self> {
        let client = ClientInfo { known: true, ..ClientInfo::default() };
        let (args, out) = (Args::default(), Output::default());
        Ok(Self { interpreter: Interpreter::new()?, client, args, out })
    }

    fn run_alone(&mut self, core: &mut Core, task: Task) -> Vec<u8> {
        let (is_function, is_short, database) = (false, false, 0);
        let (reads_only, allows_oom) = (true, false);
        let job = ScriptCall { task, database, reads_only, allows_oom, is_function, is_short };
        self.run(core, &job, Place::Alone).unwrap_or_default()
    }

    fn run(&mut self, core: &mut Core, job: &ScriptCall, place: Place) -> Result<Vec<u8>, Stop> {
        let (shared, now_ns) = (Arc::clone(&core.shared), monotonic_ns());
        let running = (place != Place::Serving)
            .then(|| Running::new(job.is_function, job.told_function(now_ns)));
        if let Some(running) = &running {
            shared.scripts.begins(running);
        }
        let exchange = Rc::clone(&self.interpreter.exchange);
        let mut ms = shared.settings.script_ms;
        if matches!(job.task, Task::Load { .. }) {
            ms = ms.min(LOAD_MS_MAX);
        }
        let restarts_ns = if running.is_some() { 0 } else { now_ns + TURN_NS };
        exchange.pace.begin(now_ns, ms, restarts_ns, running.clone());
        self.client.database = job.database;
        let mut wants = self.interpreter.begin(job.task.clone());
        while wants == Wants::Command {
            self.execute(core, job, place);
            wants = self.interpreter.resume();
        }
        if self.client.database != job.database {
            core.use_database(job.database);
        }
        if let Some(running) = &running {
            shared.scripts.ends(running);
        }
        match exchange.pace.end() {
            Some(stop @ (Stop::Elsewhere | Stop::All)) => Err(stop),
            _ => Ok(exchange.answer.take()),
        }
    }

    /// Executes the command in the exchange, where its reply is then.
    fn execute(&mut self, core: &mut Core, job: &ScriptCall, place: Place) {
        let exchange = Rc::clone(&self.interpreter.exchange);
        let (words, mut reply) = (exchange.words.borrow(), exchange.reply.borrow_mut());
        reply.clear();
        let (count, mut scan) = (exchange.count.get(), Scan::default());
        let parsed = resp::parse_rest(&words, count, Limits::new(true), &mut self.args, &mut scan);
        assert!(matches!(parsed, ParsedResp::Command { .. }), "words were put together");
        self.client.version = exchange.version.get();
        core.use_database(self.client.database);
        std::mem::swap(&mut core.out, &mut self.out);
        let answer = self.call(core, job, place, &exchange.pace, &words, &mut reply);
        core.out.clear();
        std::mem::swap(&mut core.out, &mut self.out);
        if let Err(text) = answer {
            core.count_error(&text);
            reply.clear();
            push_error(&mut reply, text.as_bytes());
        }
    }

    fn call(
        &mut self,
        core: &mut Core,
        job: &ScriptCall,
        place: Place,
        pace: &Pace,
        words: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), String> {
        let called = RespCall::new(core, &mut self.client, words, &self.args);
        let id = scripted::admit(&called, job.reads_only)?;
        // What it has begun is not torn.
        let may_be_full = job.allows_oom || !id.may_need_memory() || pace.has_written();
        if !may_be_full && core.shared.is_over_maxmemory() {
            core.counters().rejected(id);
            return Err(OUT_OF_MEMORY.into());
        }
        self.hold(core, id, place, pace, words);
        if pace.stopped().is_some() {
            return Ok(());
        }
        if scripted::writes(id) {
            pace.wrote();
        }
        if core.shared.monitors.are_any() {
            self.tell_monitors(core, words);
        }
        let began_ns = monotonic_ns();
        let mut called = RespCall::new(core, &mut self.client, words, &self.args);
        let answer = commands::execute(&mut called, id);
        let mut left = called.finish(Some(id), answer);
        loop {
            drain(&mut core.out, reply).map_err(|error| failed(&error))?;
            if reply.len() > SCRIPT_BYTES_MAX {
                return Err("ERR the answer is too long for a script".into());
            }
            let Some((mut part, go_on)) = left else { break };
            if pace.may_restart() {
                pace.stop(Stop::Elsewhere);
            }
            if pace.look().is_err() {
                break;
            }
            // All turns are the script's.
            core.timer.begin_turn();
            part.command = Some(id);
            let called = RespCall::new(core, &mut self.client, words, &self.args);
            left = called.go_on(part, go_on);
        }
        let took_ns = monotonic_ns() - began_ns;
        core.counters().ran(id, 1, took_ns, TimeBucket::of(took_ns));
        Ok(())
    }

    /// A script that has to begin anew tells of its commands again.
    fn tell_monitors(&self, core: &Core, words: &[u8]) {
        let (at, database) = (core.times().wall, self.client.database);
        let command = ToldCommand { at, database, addr: "lua" };
        let shared = &core.shared;
        shared.monitors.tell(&command, self.args.words(words), |thread| shared.wake(thread));
    }

    /// Has the script hold the keys of this command that it did not name.
    fn hold(&self, core: &mut Core, id: CommandId, place: Place, pace: &Pace, words: &[u8]) {
        if place == Place::Alone {
            return;
        }
        for word in id.keys(self.args.len()) {
            let key = self.args.get(words, word);
            let ends_ns = monotonic_ns() + HOLD_NS;
            while !core.holds(key) && !core.hold_more(&[(self.client.database, key)]) {
                if !pace.has_written() {
                    return pace.stop(Stop::All);
                }
                // What it changed stays: it goes on though it is no one step with this key.
                if monotonic_ns() > ends_ns {
                    break;
                }
                std::thread::sleep(HOLD_PAUSE);
            }
        }
    }
}

/// An answer's memory that is kept for the next one, bytes at most.
const KEPT_ANSWER_BYTES: usize = 4096;
/// How long a library may take to register its functions.
const LOAD_MS_MAX: u64 = 500;
/// How long a script that has changed something waits for a key that it did not name.
const HOLD_NS: u64 = 10_000_000;
const HOLD_PAUSE: Duration = Duration::from_micros(50);

/// Moves all that was answered, values in the cache's memory as well, to `reply`.
fn drain(out: &mut Output, reply: &mut Vec<u8>) -> Result<(), Error> {
    if let Some(bytes) = out.own_bytes() {
        reply.extend_from_slice(bytes);
        out.clear();
        return Ok(());
    }
    while !out.is_empty() {
        out.load()?;
        let start = reply.len();
        out.pieces(|piece| {
            match piece {
                Piece::Private(bytes) => reply.extend_from_slice(bytes),
                Piece::Shared(window, at, bytes) => {
                    let end = reply.len();
                    reply.resize(end + bytes as usize, 0);
                    window.copy_out(at, &mut reply[end..]);
                }
            }
            true
        });
        let moved = reply.len() - start;
        out.advance(moved as u64);
    }
    Ok(())
}
