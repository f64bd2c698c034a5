//! A state of Lua that runs one script after the other, on a stack of its own, so that one that
//! recurses finds a limit that is ours. In: a [`Task`]. Out: its answer as RESP; on the way the
//! commands that it calls, which the thread that drives it executes ([`Interpreter::resume`]).
//!
//! Ownership: all of Lua lives in the coroutine. Both sides meet in an [`Exchange`], of which one
//! side alone runs at any time.

use super::convert;
use super::library::{self, Answer, CALLS_MAX, Fault, Given, PRELUDE_SOURCE, number, one, text_of};
use super::pace::{self, Pace, Stop};
use super::sha1::Sha1;
use super::store::{Library, library_body};
use super::{api, bits, json, msgpack, patterns, structs};
use crate::constants::{SCRIPT_BYTES_MAX, SCRIPT_STACK_BYTES};
use crate::front::resp::{REDIS_VERSION, Version};
use mlua::chunk::ChunkMode;
use mlua::{
    Function, HookTriggers, IntoLua, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value,
    VmState,
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
    Script { sha: Sha1, text: Arc<[u8]>, given: Arc<Words>, version: Version },
    /// Whether a text is a script: answers with nothing, or an error.
    Check { text: Arc<[u8]> },
    /// Loads a library: which functions it registers.
    Load { text: Arc<[u8]> },
    /// Calls a function of a library.
    Function { library: Arc<Library>, name: Vec<u8>, given: Arc<Words>, version: Version },
}

/// Keys, and words behind them.
#[derive(Clone, Debug, Default)]
pub struct Words {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    keys: usize,
}

impl Words {
    pub fn new<'a>(words: impl Iterator<Item = &'a [u8]> + Clone, keys: usize) -> Self {
        let (count, bytes) =
            words.clone().fold((0, 0), |(count, bytes), word| (count + 1, bytes + word.len()));
        let (bytes, ends) = (Vec::with_capacity(bytes), Vec::with_capacity(count));
        let mut all = Self { bytes, ends, keys };
        for word in words {
            all.bytes.extend_from_slice(word);
            all.ends.push(all.bytes.len());
        }
        all
    }

    pub fn all(&self) -> impl Iterator<Item = &[u8]> {
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

struct GivenWord<'a>(&'a [u8]);

impl IntoLua for GivenWord<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
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
    pub reply: RefCell<Vec<u8>>,
    /// The version of the protocol in which commands answer.
    pub version: Cell<Version>,
    pub answer: RefCell<Vec<u8>>,
    /// The answer is an error that a command has answered and counted.
    pub is_counted: Cell<bool>,
    pub registered: RefCell<Vec<Registered>>,
    pub pace: Rc<Pace>,
    /// Memory that Lua has taken, when the last task was done.
    pub used_bytes: Cell<usize>,
    random: Cell<u64>,
}

/// Words of suspensions: why the coroutine does not run.
const IDLE: u64 = 0;
pub const CALLS: u64 = 1;

/// Why an interpreter came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The command in the exchange is to be executed.
    Command,
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

    pub fn begin(&mut self, task: Task) -> Wants {
        let exchange = &self.exchange;
        exchange.answer.borrow_mut().clear();
        exchange.is_counted.set(false);
        exchange.registered.borrow_mut().clear();
        exchange.version.set(Version::Two);
        *exchange.task.borrow_mut() = Some(task);
        self.resume()
    }

    /// Goes on with a task after its command was executed.
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
    functions: Table,
    run: Function,
    call: Function,
    load: Function,
    /// The functions of scripts, which lie in a table by these numbers: Rust can name few values.
    compiled: HashMap<Sha1, usize>,
    scripts: Table,
    /// The one that ran last.
    latest: Option<(Sha1, Function)>,
    /// What the libraries that were used here have registered, by library.
    loaded: Table,
    loaded_count: usize,
}

impl Machine {
    fn new(exchange: &Rc<Exchange>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        lua.set_app_data(Rc::clone(&exchange.pace));
        let native = native(&lua, exchange)?;
        let prelude = lua.load(PRELUDE).set_name(PRELUDE_SOURCE).set_mode(ChunkMode::Text);
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
            functions: exports.raw_get("functions")?,
            run: exports.raw_get("run")?,
            call: exports.raw_get("call")?,
            load: exports.raw_get("load")?,
            compiled: HashMap::new(),
            scripts: lua.create_table()?,
            latest: None,
            loaded: lua.create_table()?,
            loaded_count: 0,
            lua,
        })
    }

    fn run(&mut self, task: Task) {
        let mut answer = self.exchange.answer.take();
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
        let chunk = self.lua.load(text).set_name("@user_script").set_mode(ChunkMode::Text);
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

    /// The function of a script, which is compiled once; or nothing and an answer.
    fn compiled(
        &mut self,
        answer: &mut Vec<u8>,
        sha: Sha1,
        text: &[u8],
    ) -> mlua::Result<Option<Function>> {
        if let Some(number) = self.compiled.get(&sha) {
            return self.scripts.raw_get(*number).map(Some);
        }
        let Some(function) = self.compile(answer, text)? else { return Ok(None) };
        if self.compiled.len() >= COMPILED_MAX {
            self.compiled.clear();
            self.scripts = self.lua.create_table()?;
        }
        let number = self.compiled.len() + 1;
        self.scripts.raw_set(number, &function)?;
        self.compiled.insert(sha, number);
        Ok(Some(function))
    }

    fn script(
        &mut self,
        answer: &mut Vec<u8>,
        sha: Sha1,
        text: &[u8],
        given: &Words,
        version: Version,
    ) -> mlua::Result<()> {
        if self.latest.as_ref().is_none_or(|(latest, _)| *latest != sha) {
            let Some(function) = self.compiled(answer, sha, text)? else { return Ok(()) };
            self.latest = Some((sha, function));
        }
        let function = self.latest.as_ref().map(|(_, function)| function);
        let (keys, words) = self.lists(given)?;
        let (is_right, value) = self.run.call::<(bool, Value)>((function, keys, words))?;
        let name = || sha.hex();
        few_values(&self.lua, 0, || self.outcome(answer, is_right, &value, &name, version))
    }

    fn outcome(
        &self,
        answer: &mut Vec<u8>,
        is_right: bool,
        value: &Value,
        name: &dyn Fn() -> String,
        version: Version,
    ) -> mlua::Result<()> {
        let versions = [self.exchange.version.get(), version];
        convert::push_outcome(&self.lua, answer, is_right, value, name, versions)?;
        if answer.first() == Some(&b'-') {
            self.exchange.is_counted.set(convert::is_counted(value));
        }
        Ok(())
    }

    fn lists(&self, given: &Words) -> mlua::Result<(Table, Table)> {
        few_values(&self.lua, given.bytes.len(), || {
            Ok((self.list(given.keys())?, self.list(given.rest())?))
        })
    }

    fn list<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> mlua::Result<Table> {
        self.lua.create_sequence_from(words.map(GivenWord))
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
        let loaded = self.load.call::<(bool, Value)>(chunk)?;
        let is_late = self.exchange.pace.stopped() == Some(Stop::Late);
        let why = match loaded {
            (true, Value::Table(made)) => return Ok(Some(made)),
            _ if is_late => "ERR FUNCTION LOAD timeout".into(),
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
        let made = match self.loaded.raw_get::<Option<Table>>(library.id)? {
            Some(made) => made,
            None => {
                let Some(made) = self.registered(answer, library.body())? else { return Ok(()) };
                // Those that were replaced or deleted go with the others.
                if self.loaded_count >= super::store::LIBRARIES_MAX {
                    self.loaded = self.lua.create_table()?;
                    self.loaded_count = 0;
                }
                self.loaded.raw_set(library.id, &made)?;
                self.loaded_count += 1;
                made
            }
        };
        let Some(function) = made.raw_get::<Option<Table>>(self.lua.create_string(name)?)? else {
            convert::push_failure(answer, "ERR Function not found");
            return Ok(());
        };
        let function: Function = function.raw_get("callback")?;
        let (keys, words) = self.lists(given)?;
        let (is_right, value) = self.call.call::<(bool, Value)>((function, keys, words))?;
        let name = || String::from_utf8_lossy(name).into_owned();
        self.outcome(answer, is_right, &value, &name, version)
    }
}

/// Values of ours of fewer bytes are made without a look at the limit of memory.
const FEW_BYTES: usize = 16 << 10;

/// Calls `f`, which makes values of so many bytes for Lua: with a limit of memory to look at each
/// would be a call of Lua's, in which it may fail. What the script makes next is limited again.
pub fn few_values<R>(lua: &Lua, bytes: usize, f: impl FnOnce() -> R) -> R {
    if bytes > FEW_BYTES || lua.set_memory_limit(0).is_err() {
        return f();
    }
    let result = f();
    lua.set_memory_limit(SCRIPT_BYTES_MAX).expect("it has just been set");
    result
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
    native.raw_set("redis", api::table(lua, exchange)?)?;
    native.raw_set("place", lua.create_function(|lua, ()| Ok(place(lua)))?)?;
    let inside = Rc::clone(&exchange.pace);
    let stop_text = move |_: &Lua, ()| Ok(inside.stop_text());
    native.raw_set("stop_text", lua.create_function(stop_text)?)?;
    let caught = |lua: &Lua, fault: Value| match fault {
        Value::Error(error) => library::caught(lua, &error),
        other => Ok(other),
    };
    native.raw_set("caught", lua.create_function(caught)?)?;
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
    native.raw_set("random", library::function(lua, next)?)?;
    let inside = Rc::clone(exchange);
    let seed = move |given: &Given<'_>| -> Answer {
        let seed = given.integer(0)? as u32;
        inside.random.set(u64::from(seed) << 16 | SEED_LOW);
        Ok(MultiValue::new())
    };
    native.raw_set("randomseed", library::function(lua, seed)?)
}

/// The source and line where an error happened that a handler in the prelude is called with.
fn place(lua: &Lua) -> (Option<String>, Option<usize>) {
    // 0 is this function, 1 the handler.
    for level in 2..CALLS_MAX {
        let found = lua.inspect_stack(level, |at| {
            let source = at.source().source.map(std::borrow::Cow::into_owned);
            (source, at.current_line())
        });
        match found {
            None => break,
            Some((Some(source), Some(line))) if source != PRELUDE_SOURCE => {
                return (Some(source), Some(line));
            }
            Some(_) => {}
        }
    }
    (None, None)
}

impl From<Fault> for mlua::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Text(text) => mlua::Error::runtime(text),
            Fault::Reply(text) | Fault::Answer(text) => {
                mlua::Error::runtime(String::from_utf8_lossy(&text))
            }
            Fault::Lua(error) => error,
        }
    }
}
