//! The scripts and libraries that a server knows, and the scripts that run: shared by all threads.
//! In: their texts. Out: what is to be run, and how. Bounded: see the limits below.

use super::interpreter::{Registered, Words};
use super::sha1::Sha1;
use crate::front::resp::OUT_OF_MEMORY;
use crate::front::shared::Shared;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Texts of all scripts and libraries together, bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Scripts that came by EVAL and were not loaded: the oldest is forgotten for a new one.
const EVALUATED_MAX: usize = 500;
pub const LIBRARIES_MAX: usize = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// It begins with a line that says what it is.
    pub is_declared: bool,
    pub no_writes: bool,
    pub allow_oom: bool,
}

impl Flags {
    /// Of a script or function that declares these.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut flags = Self { is_declared: true, ..Self::default() };
        names.for_each(|name| flags.add(name));
        flags
    }

    fn add(&mut self, name: &str) {
        self.no_writes |= name == "no-writes";
        self.allow_oom |= name == "allow-oom";
    }

    /// Whether it may run now.
    ///
    /// # Errors
    /// In Redis's words, where commands that may need memory are refused.
    pub fn check_memory(self, shared: &Shared) -> Result<(), String> {
        let is_refused = self.is_declared && !self.allow_oom && !self.no_writes;
        if is_refused && shared.is_over_maxmemory() {
            return Err(OUT_OF_MEMORY.into());
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Script {
    pub sha: Sha1,
    /// What Lua reads of it.
    pub body: Arc<[u8]>,
    pub flags: Flags,
    /// It has no loops, no functions and no patterns: it ends soon.
    pub is_short: bool,
}

impl Script {
    /// A script of this text.
    ///
    /// # Errors
    /// If its first line says nothing that a script may.
    pub fn new(sha: Sha1, text: &[u8]) -> Result<Self, String> {
        let (flags, body) = shebang(text)?;
        Ok(Self { sha, body: body.into(), flags, is_short: is_short(body) })
    }
}

/// Words of Lua in which a script may stay for long, and commands on all of something.
const LONG: [&[u8]; 20] = [
    b"while",
    b"for",
    b"repeat",
    b"function",
    b"load",
    b"loadstring",
    b"coroutine",
    b"find",
    b"match",
    b"gmatch",
    b"gsub",
    b"rep",
    b"sort",
    b"keys",
    b"hgetall",
    b"hkeys",
    b"hvals",
    b"bitop",
    b"bitcount",
    b"lcs",
];

fn is_short(body: &[u8]) -> bool {
    let mut words = body.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    // As it stands here it is a script's own keys.
    let is_long = |word: &[u8]| word != b"KEYS" && LONG.contains(&&word.to_ascii_lowercase()[..]);
    !words.any(is_long)
}

/// What a first line `#!lua flags=...` says, and the text behind it.
fn shebang(text: &[u8]) -> Result<(Flags, &[u8]), String> {
    let mut flags = Flags::default();
    if !text.starts_with(b"#!") {
        return Ok((flags, text));
    }
    let end = memchr::memchr(b'\n', text).ok_or("ERR Invalid script shebang")?;
    let line = String::from_utf8_lossy(&text[2..end]).into_owned();
    let mut words = line.split_ascii_whitespace();
    let starts_at_once = line.starts_with(|letter: char| !letter.is_ascii_whitespace());
    let engine = words.next().filter(|_| starts_at_once).unwrap_or_default();
    if engine != "lua" {
        return Err(format!("ERR Unexpected engine in script shebang: #!{engine}"));
    }
    flags.is_declared = true;
    for word in words {
        let Some(names) = word.strip_prefix("flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {word}"));
        };
        for name in names.split(',').filter(|_| !names.is_empty()) {
            if !SCRIPT_FLAGS.contains(&name) {
                return Err(format!("ERR Unexpected flag in script shebang: {name}"));
            }
            flags.add(name);
        }
    }
    // The end of the line stays: lines are counted from the first.
    Ok((flags, &text[end..]))
}

const SCRIPT_FLAGS: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

#[derive(Debug)]
pub struct Library {
    /// No other library, nor another text of the same name, has it.
    pub id: u64,
    pub name: Vec<u8>,
    pub text: Arc<[u8]>,
    pub functions: Vec<Registered>,
}

impl Library {
    /// What Lua reads of it.
    pub fn body(&self) -> &[u8] {
        library_body(&self.text)
    }
}

/// A library's text behind its first line; the line's end stays.
pub fn library_body(text: &[u8]) -> &[u8] {
    &text[memchr::memchr(b'\n', text).unwrap_or(text.len())..]
}

/// A function that runs, as it is told of.
#[derive(Clone, Debug)]
pub struct RunningFunction {
    pub name: Vec<u8>,
    pub given: Arc<Words>,
    pub began_ns: u64,
}

/// A script that runs on a thread of its own.
#[derive(Debug)]
pub struct Running {
    is_function: bool,
    function: Option<RunningFunction>,
    is_killed: AtomicBool,
    has_written: AtomicBool,
}

impl Running {
    pub fn new(is_function: bool, function: Option<RunningFunction>) -> Arc<Self> {
        let (is_killed, has_written) = Default::default();
        Arc::new(Self { is_function, function, is_killed, has_written })
    }

    pub fn is_killed(&self) -> bool {
        // Relaxed: the flag carries no data.
        self.is_killed.load(Ordering::Relaxed)
    }

    pub fn note_write(&self) {
        // Relaxed: as above. A kill at the same moment comes before or behind the first write.
        self.has_written.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub struct ScriptStore {
    known: Mutex<Known>,
    running: Mutex<Vec<Arc<Running>>>,
    next_library: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    scripts: HashMap<Sha1, Arc<Script>>,
    /// Those that may be forgotten, the oldest first.
    evaluated: VecDeque<Sha1>,
    bytes: usize,
    libraries: BTreeMap<Vec<u8>, Arc<Library>>,
    /// By their names in lower case.
    functions: HashMap<Vec<u8>, Arc<Library>>,
}

impl Known {
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.evaluated.pop_front().and_then(|sha| self.scripts.remove(&sha));
        self.bytes -= oldest.as_ref().map_or(0, |script| script.body.len());
        oldest.is_some()
    }

    /// Whether there is room for so many bytes, if need be after old scripts are forgotten.
    fn has_room(&mut self, bytes: usize) -> bool {
        while self.bytes + bytes > TEXT_BYTES_MAX && self.forget_oldest() {}
        self.bytes + bytes <= TEXT_BYTES_MAX
    }

    fn remove_library(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else { return false };
        self.bytes -= library.text.len();
        self.functions.retain(|_, of| of.id != library.id);
        true
    }

    fn library_bytes(&self) -> usize {
        self.libraries.values().map(|library| library.text.len()).sum()
    }

    fn remove_libraries(&mut self) {
        self.bytes -= self.library_bytes();
        self.libraries.clear();
        self.functions.clear();
    }

    fn add(&mut self, library: Arc<Library>, replaces: bool) -> Result<(), String> {
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let old_bytes = self.libraries.get(&library.name).map(|old| old.text.len());
        if old_bytes.is_some() && !replaces {
            return Err(format!("ERR Library '{}' already exists", shown(&library.name)));
        }
        for function in &library.functions {
            let other = self.functions.get(&function.name.to_ascii_lowercase());
            if other.is_some_and(|other| other.name != library.name) {
                return Err(format!("ERR Function {} already exists", shown(&function.name)));
            }
        }
        let more_bytes = library.text.len().saturating_sub(old_bytes.unwrap_or(0));
        if old_bytes.is_none() && self.libraries.len() >= LIBRARIES_MAX
            || !self.has_room(more_bytes)
        {
            return Err(FULL.into());
        }
        self.remove_library(&library.name);
        self.bytes += library.text.len();
        for function in &library.functions {
            self.functions.insert(function.name.to_ascii_lowercase(), Arc::clone(&library));
        }
        self.libraries.insert(library.name.clone(), library);
        Ok(())
    }
}

/// How many a server knows.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCounts {
    pub scripts: usize,
    pub libraries: usize,
    pub functions: usize,
}

const FULL: &str = "ERR scripts and libraries would take more than 64 MiB: see SCRIPT FLUSH";

impl ScriptStore {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn script(&self, sha: Sha1) -> Option<Arc<Script>> {
        self.known().scripts.get(&sha).cloned()
    }

    /// Remembers a script, until it is flushed if it was loaded.
    ///
    /// # Errors
    /// If there is no room for it and it was loaded.
    pub fn remember(&self, script: Arc<Script>, is_loaded: bool) -> Result<(), String> {
        let mut known = self.known();
        let sha = script.sha;
        if known.scripts.contains_key(&sha) {
            if is_loaded {
                known.evaluated.retain(|one| *one != sha);
            }
            return Ok(());
        }
        if !known.has_room(script.body.len()) {
            return if is_loaded { Err(FULL.into()) } else { Ok(()) };
        }
        if !is_loaded {
            if known.evaluated.len() >= EVALUATED_MAX {
                known.forget_oldest();
            }
            known.evaluated.push_back(sha);
        }
        known.bytes += script.body.len();
        known.scripts.insert(sha, script);
        Ok(())
    }

    pub fn forget_scripts(&self) {
        let mut known = self.known();
        let bytes: usize = known.scripts.values().map(|script| script.body.len()).sum();
        known.bytes -= bytes;
        known.scripts.clear();
        known.evaluated.clear();
    }

    pub fn counts(&self) -> ScriptCounts {
        let known = self.known();
        let Known { scripts, libraries, functions, .. } = &*known;
        let (libraries, functions) = (libraries.len(), functions.len());
        ScriptCounts { scripts: scripts.len(), libraries, functions }
    }

    pub fn library_of(&self, function: &[u8]) -> Option<Arc<Library>> {
        self.known().functions.get(&function.to_ascii_lowercase()).cloned()
    }

    pub fn libraries(&self) -> Vec<Arc<Library>> {
        self.known().libraries.values().cloned().collect()
    }

    /// Refuses a library's name that there is.
    pub fn check_is_new(&self, name: &[u8]) -> Result<(), String> {
        match self.known().libraries.contains_key(name) {
            true => Err(format!("ERR Library '{}' already exists", String::from_utf8_lossy(name))),
            false => Ok(()),
        }
    }

    pub fn new_library(
        &self,
        name: Vec<u8>,
        text: Arc<[u8]>,
        functions: Vec<Registered>,
    ) -> Arc<Library> {
        // Relaxed: a number that no other library gets.
        let id = self.next_library.fetch_add(1, Ordering::Relaxed);
        Arc::new(Library { id, name, text, functions })
    }

    /// Adds these libraries, all or none; before that all others go, if it `flushes`.
    ///
    /// # Errors
    /// If there is one of a library's name that it is not to replace, or another one has a function
    /// of the same name, or there is no room.
    pub fn add_libraries(
        &self,
        libraries: Vec<Arc<Library>>,
        replaces: bool,
        flushes: bool,
    ) -> Result<(), String> {
        let mut known = self.known();
        let before = (known.libraries.clone(), known.functions.clone());
        if flushes {
            known.remove_libraries();
        }
        let added = libraries.into_iter().try_for_each(|library| known.add(library, replaces));
        if added.is_err() {
            known.remove_libraries();
            (known.libraries, known.functions) = before;
            known.bytes += known.library_bytes();
        }
        added
    }

    pub fn remove_library(&self, name: &[u8]) -> bool {
        self.known().remove_library(name)
    }

    pub fn remove_libraries(&self) {
        self.known().remove_libraries();
    }

    fn running(&self) -> MutexGuard<'_, Vec<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begins(&self, run: &Arc<Running>) {
        self.running().push(Arc::clone(run));
    }

    pub fn ends(&self, run: &Arc<Running>) {
        self.running().retain(|other| !Arc::ptr_eq(other, run));
    }

    /// The function that has run for longest.
    pub fn running_function(&self) -> Option<RunningFunction> {
        self.running().iter().find_map(|run| run.function.clone())
    }

    /// Ends all scripts, or functions, that run and have changed nothing.
    ///
    /// # Errors
    /// If none runs, or all have.
    pub fn kill(&self, functions: bool) -> Result<(), String> {
        let running = self.running();
        let of_kind: Vec<_> = running.iter().filter(|run| run.is_function == functions).collect();
        if of_kind.is_empty() {
            return Err("NOTBUSY No scripts in execution right now.".into());
        }
        let mut is_one = false;
        // Relaxed: see `Running`.
        for run in of_kind.iter().filter(|run| !run.has_written.load(Ordering::Relaxed)) {
            run.is_killed.store(true, Ordering::Relaxed);
            is_one = true;
        }
        if is_one { Ok(()) } else { Err(UNKILLABLE.into()) }
    }
}

const UNKILLABLE: &str = "UNKILLABLE Sorry the script already executed write commands against the \
                          dataset. You can either wait the script termination or kill the server \
                          in a hard way using the SHUTDOWN NOSAVE command.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_with_loops_patterns_or_functions_are_not_short() {
        let release = b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', \
                        KEYS[1]) else return 0 end";
        assert!(is_short(release) && is_short(b"return before + information"));
        for text in ["while true do end", "for i=1,2 do end", "return ('a'):rep(3)"] {
            assert!(!is_short(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_first_line_says_what_a_script_may() {
        let (flags, body) = shebang(b"#!lua flags=no-writes,allow-stale\nreturn 1").unwrap();
        assert!(flags.is_declared && flags.no_writes);
        assert_eq!(body, b"\nreturn 1");
        assert_eq!(shebang(b"return 1").unwrap(), (Flags::default(), &b"return 1"[..]));
        for (text, why) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!js\n", "ERR Unexpected engine in script shebang: #!js"),
            ("#!lua name=a\n", "ERR Unknown lua shebang option: name=a"),
            ("#!lua flags=a\n", "ERR Unexpected flag in script shebang: a"),
        ] {
            assert_eq!(shebang(text.as_bytes()).unwrap_err(), why);
        }
    }

    #[test]
    fn scripts_that_were_not_loaded_are_forgotten_in_their_order() {
        let store = ScriptStore::default();
        let script = |number: usize| {
            let text = format!("return {number}");
            Arc::new(Script::new(Sha1::of(text.as_bytes()), text.as_bytes()).unwrap())
        };
        for number in 0..=EVALUATED_MAX {
            store.remember(script(number), false).unwrap();
            if number == 1 {
                store.remember(script(number), true).unwrap();
            }
        }
        let has = |number: usize| store.script(script(number).sha).is_some();
        assert!(has(0) && has(1) && has(2), "one of them is no more among the forgettable");
        store.remember(script(1000), false).unwrap();
        assert!(!has(0) && has(1) && has(2) && has(1000));
        store.forget_scripts();
        assert!(!has(1) && store.known().bytes == 0);
    }
}
