//! A state of Lua that runs one script after the other, on a stack of its own, so that one that
//! recurses finds a limit that is ours. In: a [`Task`]. Out: its answer as RESP; on the way the
//! commands that it calls, which the thread that drives it executes ([`Interpreter::resume`]).
//!
//! Ownership: all of Lua lives in the coroutine. Both sides meet in an [`Exchange`], of which one
//! side alone runs at any time.

use super::convert::{self, push_word};
use super::library::{self, Answer, Fault, Given, number, one};
use super::pace::{self, Pace};
use super::sha1::Sha1;
use super::store::{Library, library_body};
use super::{bits, json, msgpack, patterns, structs};
use crate::constants::{SCRIPT_BYTES_MAX, SCRIPT_STACK_BYTES};
use crate::front::commands::scripted;
use crate::front::resp::{REDIS_VERSION, Version};
use mlua::chunk::ChunkMode;
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value, VmState,
};
use rackpool_mem::coroutine::{Coroutine, Outcome, suspend};
use rackpool_mem::process::monotonic_ns;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// What an interpreter is to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Runs a script.
    Script { sha: Sha1, text: Arc<[u8]>, given: Words, version: Version },
    /// Whether a text is a script: answers with nothing, or an error.
    Check { text: Arc<[u8]> },
    /// Loads a library: which functions it registers.
    Load { text: Arc<[u8]> },
    /// Calls a function of a library.
    Function { library: Arc<Library>, name: Vec<u8>, given: Words, version: Version },
}

/// Keys, and words behind them.
#[derive(Clone, Debug, Default)]
pub struct Words {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    keys: usize,
}

impl Words {
    pub fn new<'a>(words: impl Iterator<Item = &'a [u8]>, keys: usize) -> Self {
        let mut all = Self { keys, ..Self::default() };
        for word in words {
            all.bytes.extend_from_slice(word);
            all.ends.push(all.bytes.len());
        }
        all
    }

    fn all(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.all().take(self.keys)
    }

    pub fn held_bytes(&self) -> u64 {
        (self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()) as u64
    }

    fn rest(&self) -> impl Iterator<Item = &[u8]> {
        self.all().skip(self.keys)
    }
}

/// A function that a library registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    pub name: Vec<u8>,
    pub flags: Vec<String>,
    pub about: Option<Vec<u8>>,
}

/// What a script's coroutine and the thread that drives it give each other.
#[derive(Default)]
pub struct Exchange {
    task: RefCell<Option<Task>>,
    /// The words of the command that is called, as RESP has them in an array.
    pub words: RefCell<Vec<u8>>,
    pub count: Cell<usize>,
    /// What the command answered.
    pub reply: RefCell<Vec<u8>>,
    /// The version of the protocol in which commands answer.
    pub version: Cell<Version>,
    /// The script's answer.
    pub answer: RefCell<Vec<u8>>,
    pub registered: RefCell<Vec<Registered>>,
    pub pace: Rc<Pace>,
    /// Memory that Lua has taken, when the last task was done.
    pub used_bytes: Cell<usize>,
    random: Cell<u64>,
    /// Whether the script has one line: that of any error.
    has_one_line: Cell<bool>,
}

/// What scripts are called in places of errors.
const SCRIPT_SOURCE: &str = "@user_script";

/// Words of suspensions: why the coroutine does not run.
const IDLE: u64 = 0;
const CALLS: u64 = 1;

/// Why an interpreter came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// A command, whose words are in the exchange, is to be executed.
    Command,
    /// The task is done.
    Nothing,
}

pub struct Interpreter {
    coroutine: Coroutine,
    pub exchange: Rc<Exchange>,
}

impl Interpreter {
    /// A new state.
    ///
    /// # Errors
    /// If there is no memory for its stack.
    pub fn new() -> std::io::Result<Self> {
        let exchange = Rc::new(Exchange::default());
        exchange.random.set(monotonic_ns());
        let inside = Rc::clone(&exchange);
        let mut coroutine = Coroutine::new(SCRIPT_STACK_BYTES, move |_| {
            let mut machine = Machine::new(&inside).expect("a new state has memory");
            loop {
                suspend(IDLE);
                let task = inside.task.borrow_mut().take();
                machine.run(task.expect("a task was given"));
            }
        })?;
        resume(&mut coroutine);
        Ok(Self { coroutine, exchange })
    }

    /// Begins a task.
    pub fn begin(&mut self, task: Task) -> Wants {
        let exchange = &self.exchange;
        exchange.answer.borrow_mut().clear();
        exchange.registered.borrow_mut().clear();
        exchange.version.set(Version::Two);
        *exchange.task.borrow_mut() = Some(task);
        self.resume()
    }

    /// Goes on with a task, whose command was executed.
    pub fn resume(&mut self) -> Wants {
        resume(&mut self.coroutine)
    }
}

fn resume(coroutine: &mut Coroutine) -> Wants {
    match coroutine.resume(0) {
        Outcome::Suspended(CALLS) => Wants::Command,
        Outcome::Suspended(_) => Wants::Nothing,
        Outcome::Ended => unreachable!("an interpreter waits for its next task"),
        Outcome::Unwound(panic) => std::panic::resume_unwind(panic),
    }
}

/// Scripts that are kept compiled.
const COMPILED_MAX: usize = 1024;
/// Instructions between two looks at the clock: some 100 µs.
const HOOKED_INSTRUCTIONS: u32 = 10_000;
/// The lowest 16 bits of a seeded state, as of C's `srand48`.
const SEED_LOW: u64 = 0x330e;

struct Machine {
    lua: Lua,
    exchange: Rc<Exchange>,
    /// Globals of scripts that are set before each.
    base: Table,
    functions: Table,
    run: Function,
    call: Function,
    load: Function,
    compiled: HashMap<Sha1, Function>,
    /// Functions of the libraries that were used here, by library.
    loaded: HashMap<u64, HashMap<Vec<u8>, Function>>,
}

impl Machine {
    fn new(exchange: &Rc<Exchange>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        lua.set_app_data(Rc::clone(&exchange.pace));
        let native = native(&lua, exchange)?;
        let prelude = lua.load(PRELUDE).set_name("=redis").set_mode(ChunkMode::Text);
        let exports = prelude.call::<Table>(native)?;
        lua.set_globals(exports.raw_get("scripts")?)?;
        let pace = Rc::clone(&exchange.pace);
        let triggers = HookTriggers::new().every_nth_instruction(HOOKED_INSTRUCTIONS);
        lua.set_global_hook(triggers, move |_, _| {
            pace.look()?;
            Ok(VmState::Continue)
        })?;
        lua.set_memory_limit(SCRIPT_BYTES_MAX)?;
        Ok(Self {
            exchange: Rc::clone(exchange),
            base: exports.raw_get("base")?,
            functions: exports.raw_get("functions")?,
            run: exports.raw_get("run")?,
            call: exports.raw_get("call")?,
            load: exports.raw_get("load")?,
            compiled: HashMap::new(),
            loaded: HashMap::new(),
            lua,
        })
    }

    fn run(&mut self, task: Task) {
        let mut answer = Vec::new();
        let is_line = matches!(&task, Task::Script { text, .. } if !text.contains(&b'\n'));
        self.exchange.has_one_line.set(is_line);
        let done = match task {
            Task::Script { sha, text, given, version } => {
                self.script(&mut answer, sha, &text, &given, version)
            }
            Task::Check { text } => self.compile(&mut answer, &text).map(|_| ()),
            Task::Load { text } => self.load(&mut answer, &text),
            Task::Function { library, name, given, version } => {
                self.function(&mut answer, &library, &name, &given, version)
            }
        };
        if let Err(error) = done {
            answer.clear();
            convert::push_failure(&mut answer, &format!("ERR {}", text_of(&error)));
        }
        *self.exchange.answer.borrow_mut() = answer;
        self.exchange.used_bytes.set(self.lua.used_memory());
    }

    /// The function of a script's text, or nothing and an answer.
    fn compile(&self, answer: &mut Vec<u8>, text: &[u8]) -> mlua::Result<Option<Function>> {
        let chunk = self.lua.load(text).set_name(SCRIPT_SOURCE).set_mode(ChunkMode::Text);
        match chunk.into_function() {
            Ok(function) => Ok(Some(function)),
            Err(mlua::Error::SyntaxError { message, .. }) => {
                let text = format!("ERR Error compiling script (new function): {message}");
                convert::push_failure(answer, &text);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    fn script(
        &mut self,
        answer: &mut Vec<u8>,
        sha: Sha1,
        text: &[u8],
        given: &Words,
        version: Version,
    ) -> mlua::Result<()> {
        let function = match self.compiled.get(&sha) {
            Some(function) => function.clone(),
            None => {
                let Some(function) = self.compile(answer, text)? else { return Ok(()) };
                if self.compiled.len() >= COMPILED_MAX {
                    self.compiled.clear();
                }
                self.compiled.insert(sha, function.clone());
                function
            }
        };
        self.base.raw_set("KEYS", self.list(given.keys())?)?;
        self.base.raw_set("ARGV", self.list(given.rest())?)?;
        let (is_right, value) = self.run.call::<(bool, Value)>(function)?;
        let script_version = self.exchange.version.get();
        convert::push_outcome(
            &self.lua,
            answer,
            is_right,
            &value,
            &sha.hex(),
            [script_version, version],
        )
    }

    fn list<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        for (index, word) in words.enumerate() {
            table.raw_set(index + 1, self.lua.create_string(word)?)?;
        }
        Ok(table)
    }

    /// Runs a library's text: the functions that it registers, or nothing and an answer.
    fn registered(&self, answer: &mut Vec<u8>, text: &[u8]) -> mlua::Result<Option<Table>> {
        let chunk = self.lua.load(text).set_name("@user_function").set_mode(ChunkMode::Text);
        let chunk = match chunk.set_environment(self.functions.clone()).into_function() {
            Ok(chunk) => chunk,
            Err(mlua::Error::SyntaxError { message, .. }) => {
                convert::push_failure(answer, &format!("ERR Error compiling function: {message}"));
                return Ok(None);
            }
            Err(other) => return Err(other),
        };
        let why = match self.load.call::<(bool, Value)>(chunk)? {
            (true, Value::Table(made)) => return Ok(Some(made)),
            (_, Value::Table(fault)) => convert::error_text(&fault)?,
            (_, other) => other.to_string()?,
        };
        convert::push_failure(answer, &format!("ERR Error registering functions: {why}"));
        Ok(None)
    }

    fn load(&self, answer: &mut Vec<u8>, text: &[u8]) -> mlua::Result<()> {
        let text = if text.starts_with(b"#!") { library_body(text) } else { text };
        let Some(made) = self.registered(answer, text)? else { return Ok(()) };
        for name in made.sequence_values::<LuaString>() {
            let name = name?;
            let function: Table = made.raw_get(&name)?;
            let flags: LuaString = function.raw_get("flags")?;
            let about: Option<LuaString> = function.raw_get("about")?;
            self.exchange.registered.borrow_mut().push(Registered {
                name: name.as_bytes().to_vec(),
                flags: flags.to_string_lossy().split_whitespace().map(str::to_owned).collect(),
                about: about.map(|about| about.as_bytes().to_vec()),
            });
        }
        Ok(())
    }

    fn function(
        &mut self,
        answer: &mut Vec<u8>,
        library: &Library,
        name: &[u8],
        given: &Words,
        version: Version,
    ) -> mlua::Result<()> {
        if !self.loaded.contains_key(&library.id) {
            let Some(made) = self.registered(answer, library.body())? else { return Ok(()) };
            let mut functions = HashMap::new();
            for name in made.sequence_values::<LuaString>() {
                let name = name?;
                let function: Table = made.raw_get(&name)?;
                functions.insert(name.as_bytes().to_vec(), function.raw_get("callback")?);
            }
            // Those that were replaced or deleted go with the others.
            if self.loaded.len() >= super::store::LIBRARIES_MAX {
                self.loaded.clear();
            }
            self.loaded.insert(library.id, functions);
        }
        let Some(function) = self.loaded[&library.id].get(name) else {
            convert::push_failure(answer, "ERR Function not found");
            return Ok(());
        };
        let (keys, words) = (self.list(given.keys())?, self.list(given.rest())?);
        let (is_right, value) = self.call.call::<(bool, Value)>((function.clone(), keys, words))?;
        let name = String::from_utf8_lossy(name);
        let script_version = self.exchange.version.get();
        convert::push_outcome(&self.lua, answer, is_right, &value, &name, [script_version, version])
    }
}

const PRELUDE: &str = include_str!("prelude.lua");

/// What the prelude is given: see there.
fn native(lua: &Lua, exchange: &Rc<Exchange>) -> mlua::Result<Table> {
    let native = library::table(
        lua,
        &[
            ("find", patterns::find),
            ("match", patterns::match_once),
            ("gsub", patterns::gsub),
            ("seek", patterns::seek),
            ("rep", repeat),
            ("sha1hex", |given| {
                // What is no text counts as an empty one.
                let hash = match given.string(0) {
                    Ok(text) => Sha1::of(&text.as_bytes()),
                    Err(_) => Sha1::of(b""),
                };
                given.text(hash.hex().as_bytes())
            }),
        ],
    )?;
    let libraries = lua.create_table()?;
    libraries.raw_set("bit", bits::table(lua)?)?;
    libraries.raw_set("cjson", json::table(lua)?)?;
    libraries.raw_set("cmsgpack", msgpack::table(lua)?)?;
    libraries.raw_set("struct", structs::table(lua)?)?;
    native.raw_set("libraries", libraries)?;
    native.raw_set("version", REDIS_VERSION)?;
    native.raw_set("version_number", version_number())?;
    random(lua, &native, exchange)?;
    calls(lua, &native, exchange)?;
    let clock = |_: &Lua, ()| Ok(monotonic_ns() as f64 / 1e9);
    native.raw_set("clock", lua.create_function(clock)?)?;
    let inside = Rc::clone(exchange);
    let placed = move |lua: &Lua, ()| Ok(place(lua, inside.has_one_line.get()));
    native.raw_set("place", lua.create_function(placed)?)?;
    let text = |lua: &Lua, fault: Value| match fault {
        Value::Error(error) => lua.create_string(text_of(&error)),
        other => lua.create_string(other.to_string()?),
    };
    native.raw_set("text_of", lua.create_function(text)?)?;
    let error_text =
        |lua: &Lua, text: LuaString| lua.create_string(convert::with_code(&text.as_bytes()));
    native.raw_set("error_text", lua.create_function(error_text)?)?;
    let log = |_: &Lua, words: MultiValue| {
        log(&words);
        Ok(())
    };
    native.raw_set("log", lua.create_function(log)?)?;
    Ok(native)
}

fn repeat(given: &Given<'_>) -> Answer {
    let (text, count) = (given.string(0)?, given.integer(1)?.max(0) as usize);
    let bytes = text.as_bytes();
    pace::room(bytes.len().saturating_mul(count))?;
    if bytes.is_empty() { given.text(b"") } else { given.text(&bytes.repeat(count)) }
}

/// 7.0.15 as 0x0007000f.
fn version_number() -> i64 {
    REDIS_VERSION
        .split('.')
        .filter_map(|part| part.parse::<i64>().ok())
        .fold(0, |number, part| number << 8 | part)
}

/// Random numbers of the C library's 48-bit generator; each state has others until a script seeds
/// it.
fn random(lua: &Lua, native: &Table, exchange: &Rc<Exchange>) -> mlua::Result<()> {
    let inside = Rc::clone(exchange);
    let next = move |given: &Given<'_>| -> Answer {
        let state = inside.random.get().wrapping_mul(0x5_deec_e66d).wrapping_add(11);
        let state = state & 0xffff_ffff_ffff;
        inside.random.set(state);
        let most = f64::from(i32::MAX);
        let part = ((state >> 17) as f64 % most) / most;
        let (low, high) = match given.len() {
            0 => return one(number(part)),
            1 => (1.0, given.integer(0)? as f64),
            2 => (given.integer(0)? as f64, given.integer(1)? as f64),
            _ => return Err("wrong number of arguments".into()),
        };
        if low > high {
            return Err(given.bad(given.len() - 1, "interval is empty"));
        }
        one(number((part * (high - low + 1.0)).floor() + low))
    };
    native.raw_set("random", library::function(lua, "random", next)?)?;
    let inside = Rc::clone(exchange);
    let seed = move |given: &Given<'_>| -> Answer {
        let seed = given.integer(0)? as u32;
        inside.random.set(u64::from(seed) << 16 | SEED_LOW);
        Ok(MultiValue::new())
    };
    native.raw_set("randomseed", library::function(lua, "randomseed", seed)?)
}

/// `redis.call` and what else the thread that drives the script knows.
fn calls(lua: &Lua, native: &Table, exchange: &Rc<Exchange>) -> mlua::Result<()> {
    let inside = Rc::clone(exchange);
    let some = move |lua: &Lua, words: MultiValue| call(lua, &inside, words.into_iter().map(Ok));
    native.raw_set("call", lua.create_function(some)?)?;
    let inside = Rc::clone(exchange);
    // Lua's stack for functions of ours is not long enough for what it can unpack.
    let listed = move |lua: &Lua, (words, count): (Table, i64)| {
        call(lua, &inside, (1..=count).map(|index| words.raw_get::<Value>(index)))
    };
    native.raw_set("call_list", lua.create_function(listed)?)?;
    let inside = Rc::clone(exchange);
    let stopped = move |_: &Lua, ()| Ok(inside.pace.stopped().is_some());
    native.raw_set("is_stopped", lua.create_function(stopped)?)?;
    let inside = Rc::clone(exchange);
    let setresp = move |_: &Lua, version: i64| {
        inside.version.set(if version == 3 { Version::Three } else { Version::Two });
        Ok(())
    };
    native.raw_set("setresp", lua.create_function(setresp)?)?;
    let is_known = |_: &Lua, words: MultiValue| {
        let name = words.front().and_then(Value::as_string);
        Ok(name.is_some_and(|name| scripted::is_known(&name.as_bytes())))
    };
    native.raw_set("is_known", lua.create_function(is_known)?)
}

/// Calls a command with these words: what it answers, and whether that is an error.
fn call(
    lua: &Lua,
    exchange: &Exchange,
    words: impl Iterator<Item = mlua::Result<Value>>,
) -> mlua::Result<(Value, bool)> {
    exchange.words.borrow_mut().clear();
    let mut count = 0;
    for word in words {
        let pushed = push_word(&mut exchange.words.borrow_mut(), &word?);
        if let Err(why) = pushed {
            return failure(lua, why);
        }
        count += 1;
    }
    if count == 0 {
        return failure(lua, "Please specify at least one argument for this redis lib call");
    }
    exchange.count.set(count);
    suspend(CALLS);
    if exchange.pace.stopped().is_some() {
        exchange.pace.look()?;
    }
    convert::to_lua(lua, &exchange.reply.borrow())
}

fn failure(lua: &Lua, why: &str) -> mlua::Result<(Value, bool)> {
    let table = lua.create_table()?;
    table.raw_set("err", format!("ERR {why}"))?;
    Ok((Value::Table(table), true))
}

/// The source and line of the script where an error happened. A function of ours that is called
/// last has taken the place of its caller: then only a script of one line has a known one.
fn place(lua: &Lua, has_one_line: bool) -> (Option<String>, Option<usize>) {
    // 0 is this function, 1 the handler.
    for level in 2..PLACES_MAX {
        let found = lua.inspect_stack(level, |at| {
            let source = at.source().source.map(std::borrow::Cow::into_owned);
            (source, at.current_line())
        });
        match found {
            None => break,
            Some((Some(source), Some(line))) if source.starts_with('@') => {
                return (Some(source), Some(line));
            }
            Some(_) => {}
        }
    }
    if has_one_line {
        return (Some(SCRIPT_SOURCE.into()), Some(1));
    }
    (None, None)
}

/// Frames in which an error's place is looked for.
const PLACES_MAX: usize = 32;

/// An error of Lua's without what surrounds it.
pub fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            text_of(cause)
        }
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => "not enough memory".into(),
        other => other.to_string(),
    }
}

/// Levels of `redis.log` from which on a line is written.
const LOGGED_LEVEL: f64 = 2.0;

fn log(words: &MultiValue) {
    let mut words = words.iter();
    let level = match words.next() {
        Some(Value::Integer(level)) => *level as f64,
        Some(Value::Number(level)) => *level,
        _ => return,
    };
    if level < LOGGED_LEVEL {
        return;
    }
    let texts = words.filter_map(|word| match word {
        Value::String(text) => Some(text.to_string_lossy()),
        Value::Integer(_) | Value::Number(_) => word.to_string().ok(),
        _ => None,
    });
    rackpool_mem::log::line(format_args!("script: {}", texts.collect::<Vec<_>>().join(" ")));
}

impl From<Fault> for mlua::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Text(text) => mlua::Error::runtime(text),
            Fault::Lua(error) => error,
        }
    }
}
