//! `rackpool shell`: a pool by hand or from a script. In: commands from `-c`, from the command
//! line or from standard input. Out: one answer a command on standard output, in the forms of
//! DESIGN §5; the first failure ends it, except where a person types.
//!
//! [`words`] splits, [`parse`] understands, this module runs. The pool is joined when the first
//! command needs it, so that a mistyped one is answered without a pool.

pub mod parse;
pub mod tree;
pub mod words;

use crate::args::ShellArgs;
use crate::connect::{OBJECTS, open_pool};
use crate::failure::{Failure, Result};
use crate::output::{self, Output};
use parse::{Data, FORMS, ShellCommand, Show, StatsForm, Subject, hex, parse, printable};
use rackpool::{CasOutcome, Handle};
use rackpool_table::Table;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::Path;
use words::{Word, Words};

/// Longest read of one command, bytes: more goes in pieces, or as an object.
const READ_BYTES_MAX: u64 = 1 << 30;

/// As much of a file is read before the pool is asked whether there could be room for more.
const READ_AT_ONCE_BYTES: u64 = 64 << 20;

pub fn run(args: &ShellArgs) -> Result<()> {
    let out = std::io::stdout();
    let mut shell =
        Shell { args, handle: None, objects: None, file: None, out, line_is_open: false };
    if !args.words.is_empty() {
        // The system's shell has taken the quotes away already.
        let word = |word: &String| Word { bytes: word.clone().into_bytes(), gap: " ".into() };
        let words: Words = args.words.iter().map(word).collect();
        return shell.one(Ok(words)).map(drop);
    }
    if !args.commands.is_empty() {
        for text in &args.commands {
            if shell.text(text)?.is_break() {
                break;
            }
        }
        return Ok(());
    }
    shell.standard_input()
}

type Flow = std::ops::ControlFlow<()>;

struct Shell<'a> {
    args: &'a ShellArgs,
    handle: Option<Handle>,
    /// The table of named objects, once it was needed.
    objects: Option<Table>,
    /// Where the answer of the command goes, if that is a file.
    file: Option<Output>,
    out: std::io::Stdout,
    /// The last answer was an object without a line end: the next answer begins with one.
    line_is_open: bool,
}

impl Shell<'_> {
    fn standard_input(&mut self) -> Result<()> {
        let input = std::io::stdin().lock();
        if input.is_terminal() {
            return self.interactive(input);
        }
        // Quotes may hold line ends, so the whole of a script is split at once; a program that
        // talks to the shell and waits for answers sends lines, so each complete line is run.
        let mut pending = String::new();
        for line in input.lines() {
            let line = line.map_err(|error| Failure::io("standard input", &error))?;
            pending.push_str(&line);
            pending.push('\n');
            if ends_inside_quotes(&pending) {
                continue;
            }
            if self.text(&std::mem::take(&mut pending))?.is_break() {
                return Ok(());
            }
        }
        self.text(&pending).map(drop)
    }

    fn interactive(&mut self, input: impl BufRead) -> Result<()> {
        self.line("commands as `help` lists them; `quit` or the end of input leaves")?;
        self.prompt()?;
        for line in input.lines() {
            let line = line.map_err(|error| Failure::io("standard input", &error))?;
            match self.text(&line) {
                Ok(flow) if flow.is_break() => return Ok(()),
                Ok(_) => {}
                Err(failure) if failure.is_broken_pipe() => return Err(failure),
                Err(failure) => output::say(&failure.to_string()),
            }
            self.prompt()?;
        }
        self.line("")
    }

    fn prompt(&mut self) -> Result<()> {
        self.print(b"rackpool> ")
    }

    fn text(&mut self, text: &str) -> Result<Flow> {
        for command in words::split(text) {
            if self.one(command)?.is_break() {
                return Ok(Flow::Break(()));
            }
        }
        Ok(Flow::Continue(()))
    }

    fn one(&mut self, words: Result<Words, String>) -> Result<Flow> {
        let command = words.and_then(|words| parse(&words)).map_err(Failure::usage)?;
        match command {
            ShellCommand::Quit => return Ok(Flow::Break(())),
            ShellCommand::Help => self.line(&FORMS.join("\n"))?,
            command => self.execute(command)?,
        }
        Ok(Flow::Continue(()))
    }

    fn execute(&mut self, command: ShellCommand) -> Result<()> {
        use ShellCommand as C;
        // Files are read before the pool is asked: a missing one is then a failure without effect.
        if let C::Put(name, Data::File(path)) = &command
            && self.put_long_file(name, path)?
        {
            return self.line("ok");
        }
        let data = match &command {
            C::Write(_, data) | C::Put(_, data) => self.load(data)?,
            _ => Vec::new(),
        };
        self.file = match &command {
            C::Read(.., Show::File(path)) | C::Get(_, Some(path)) => Some(output::open(path)?),
            _ => None,
        };
        let handle = self.handle()?;
        match command {
            C::Alloc(bytes, placement) => {
                let addr = handle.alloc(bytes, placement)?;
                self.line(&addr.to_string())
            }
            C::Write(addr, _) => {
                handle.write(addr, &data)?;
                self.line("ok")
            }
            C::Read(addr, bytes, show) => {
                if bytes > READ_BYTES_MAX {
                    let limit = format!("one read shows up to {READ_BYTES_MAX} bytes, not {bytes}");
                    return Err(Failure::new("bad-size", limit));
                }
                let mut to = vec![0; bytes as usize];
                handle.read(addr, &mut to)?;
                self.show(&to, &show)
            }
            C::Cas(addr, old, new) => match handle.cas(addr, old, new)? {
                CasOutcome::Swapped => self.line("ok"),
                CasOutcome::Found(found) => self.line(&format!("failed {found}")),
            },
            C::Add(addr, n) => {
                let old = handle.fetch_add(addr, n)?;
                self.line(&old.to_string())
            }
            C::Persist(addr, bytes) => {
                handle.persist(addr, bytes)?;
                self.line("ok")
            }
            C::Free(addr, bytes) => {
                handle.free(addr, bytes)?;
                self.line("ok")
            }
            C::Migrate(addr, to) => {
                let rack = handle.admin().migrate(addr, to)?;
                self.line(&format!("ok rack {rack}"))
            }
            C::Put(name, _) => {
                self.with_objects(|objects, handle| objects.put(handle, &name, &data))?;
                self.line("ok")
            }
            C::PutTree(directory) => self.put_tree(&directory),
            C::GetTree(prefix, directory) => self.get_tree(&prefix, &directory),
            C::Get(name, file) => self.get(&name, file.as_deref()),
            C::Del(name) => {
                match self.with_objects(|objects, handle| objects.delete(handle, &name))? {
                    true => self.line("ok"),
                    false => Err(no_object(&name)),
                }
            }
            C::Ls(prefix) => self.list(&prefix),
            C::Explain(subject) => self.explain(&subject),
            C::Stats(form) => {
                let text = stats(handle, form)?;
                self.print(text.as_bytes())
            }
            C::Help | C::Quit => Ok(()),
        }
    }

    fn handle(&mut self) -> Result<&mut Handle> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None => open_pool(&self.args.pool)?.handle()?,
        };
        Ok(self.handle.insert(handle))
    }

    fn with_objects<R>(
        &mut self,
        call: impl FnOnce(&mut Table, &mut Handle) -> rackpool_table::Result<R>,
    ) -> Result<R> {
        self.with_table(|objects, handle| Ok(call(objects, handle)?))
    }

    fn with_table<R>(
        &mut self,
        call: impl FnOnce(&mut Table, &mut Handle) -> Result<R>,
    ) -> Result<R> {
        let objects = self.objects.take();
        let handle = self.handle()?;
        let mut objects = match objects {
            Some(objects) => objects,
            None => Table::open_or_create(handle, OBJECTS, rackpool_table::Options::default())?,
        };
        let result = call(&mut objects, handle);
        self.objects = Some(objects);
        result
    }

    /// Stores a regular file piece by piece if it is long: room for it is there, or it is refused,
    /// before it is read. Whether it was stored.
    fn put_long_file(&mut self, name: &[u8], path: &Path) -> Result<bool> {
        let failed = |error| Failure::file(path, &error);
        // A pipe is not opened here: what its writer says would be lost.
        let about = std::fs::metadata(path).map_err(failed)?;
        if !about.is_file() || about.len() < tree::STREAM_BYTES_MIN {
            return Ok(false);
        }
        let file = File::open(path).map_err(failed)?;
        self.with_table(|objects, handle| tree::put_file(objects, handle, name, path, &file))?;
        Ok(true)
    }

    fn put_tree(&mut self, directory: &Path) -> Result<()> {
        let moved = self.with_table(|objects, handle| tree::put(objects, handle, directory))?;
        self.line(&moved.to_string())
    }

    fn get_tree(&mut self, prefix: &[u8], directory: &Path) -> Result<()> {
        let moved =
            self.with_table(|objects, handle| tree::get(objects, handle, prefix, directory))?;
        self.line(&moved.to_string())
    }

    fn get(&mut self, name: &[u8], file: Option<&Path>) -> Result<()> {
        if let (Some(path), Some(file)) = (file, self.file.take_if(|file| !file.is_stdout())) {
            let bytes = self.with_objects(|objects, handle| objects.value_bytes(handle, name))?;
            if bytes.is_some_and(|bytes| bytes >= tree::STREAM_BYTES_MIN) {
                return self.get_long(name, path, file);
            }
            self.file = Some(file);
        }
        let value = self.with_objects(|objects, handle| objects.get(handle, name))?;
        let value = value.ok_or_else(|| no_object(name))?;
        if let Some(path) = file {
            return self.show(&value, &Show::File(path.to_owned()));
        }
        self.raw(&value)
    }

    /// Writes a long object into a file piece by piece.
    fn get_long(&mut self, name: &[u8], path: &Path, mut file: Output) -> Result<()> {
        let mut writer = file.writer()?;
        let (mut written, mut failed) = (0, Ok(()));
        let found = self.with_objects(|objects, handle| {
            objects.get_stream(handle, name, |at, piece| {
                if failed.is_err() {
                    return;
                }
                failed = match at == written {
                    true => {
                        writer.write_all(piece).map_err(|e| Failure::output(path.display(), &e))
                    }
                    false => Err(Failure::new("busy", "it was changed while it was read; retry")),
                };
                written += piece.len() as u64;
            })
        })?;
        failed?;
        found.ok_or_else(|| no_object(name))?;
        writer.flush().map_err(|error| Failure::output(path.display(), &error))?;
        drop(writer);
        file.commit()?;
        self.line("ok")
    }

    /// Exactly these bytes, so that they can go into a pipe.
    fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.print(bytes)?;
        self.line_is_open = !bytes.is_empty() && !bytes.ends_with(b"\n");
        if self.out.is_terminal() { self.print(b"") } else { Ok(()) }
    }

    fn list(&mut self, prefix: &[u8]) -> Result<()> {
        let objects = self.with_objects(|objects, handle| objects.list(handle, prefix))?;
        let mut text = String::new();
        for (name, bytes) in objects {
            text.push_str(&format!("{}\t{bytes}\n", printable(&name)));
        }
        self.print(text.as_bytes())
    }

    fn explain(&mut self, subject: &Subject) -> Result<()> {
        let text = match subject {
            Subject::Addr(addr) => self.handle()?.explain(*addr)?.to_string(),
            Subject::Name(name) => {
                let found = self.with_objects(|objects, handle| objects.locate(handle, name))?;
                let (addr, bytes) = found.ok_or_else(|| no_object(name))?;
                let explained = self.handle()?.explain(addr)?;
                format!("name={}\nbytes={bytes}\n{explained}", printable(name))
            }
        };
        self.line(text.trim_end())
    }

    /// The bytes of a command. A file may be endless: no more of it is read than the pool could
    /// ever hold.
    fn load(&mut self, data: &Data) -> Result<Vec<u8>> {
        let path = match data {
            Data::Bytes(bytes) => return Ok(bytes.clone()),
            Data::File(path) => path,
        };
        let failed = |error| Failure::file(path, &error);
        let mut file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        (&file).take(READ_AT_ONCE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 == READ_AT_ONCE_BYTES {
            let stats = self.handle()?.admin().pool_stats()?;
            if let Some(rack) = stats.racks.iter().find(|rack| rack.alive && rack.error.is_some()) {
                let reason = rack.error.as_deref().unwrap_or_default();
                return Err(Failure::new("timeout", format!("rack {}: {reason}", rack.rack)));
            }
            let most = stats.bytes();
            let more = (most + 1).saturating_sub(READ_AT_ONCE_BYTES);
            Read::by_ref(&mut file).take(more).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 > most {
                let path = path.display();
                let what = format!("{path} has more bytes than the {most} of the whole pool");
                return Err(Failure::new("full", what));
            }
        }
        Ok(bytes)
    }

    fn show(&mut self, bytes: &[u8], show: &Show) -> Result<()> {
        match show {
            Show::Hex => self.line(&hex(bytes)),
            Show::Text => self.line(&printable(bytes)),
            Show::File(_) => {
                let file = self.file.take().expect("opened before the pool was asked");
                if file.is_stdout() {
                    return self.raw(bytes);
                }
                file.write(bytes)?;
                self.line("ok")
            }
        }
    }

    fn line(&mut self, text: &str) -> Result<()> {
        self.print(format!("{text}\n").as_bytes())
    }

    fn print(&mut self, bytes: &[u8]) -> Result<()> {
        let mut written = Ok(());
        if std::mem::take(&mut self.line_is_open) {
            written = self.out.write_all(b"\n");
        }
        let written = written.and_then(|()| self.out.write_all(bytes));
        let written = written.and_then(|()| self.out.flush());
        written.map_err(|error| Failure::output("standard output", &error))
    }
}

/// The counters of the pool, or what its racks decided, with a line end.
fn stats(handle: &mut Handle, form: StatsForm) -> Result<String> {
    if form == StatsForm::Decisions {
        return decisions(handle);
    }
    let stats = handle.admin().pool_stats()?;
    let text = match form {
        StatsForm::Json => crate::output::json(&stats)?,
        StatsForm::Prometheus => stats.prometheus(),
        StatsForm::Lines | StatsForm::Decisions => flat(&crate::output::to_json(&stats)?),
    };
    Ok(format!("{}\n", text.trim_end()))
}

/// What the racks that are alive decided about moving their pages: a line of JSON for each
/// decision that they remember, by rack and number.
fn decisions(handle: &mut Handle) -> Result<String> {
    let mut text = String::new();
    for rack in handle.admin().pool_stats()?.racks.iter().filter(|rack| rack.alive) {
        for (number, record) in handle.admin().decisions(rack.rack, 0)? {
            let line = serde_json::json!({
                "rack": rack.rack, "number": number, "record": record,
            });
            text.push_str(&format!("{line}\n"));
        }
        for (number, record) in handle.admin().balances(rack.rack, 0)? {
            let line = serde_json::json!({
                "rack": rack.rack, "number": number, "balance": record,
            });
            text.push_str(&format!("{line}\n"));
        }
    }
    Ok(text)
}

fn no_object(name: &[u8]) -> Failure {
    let name = printable(name);
    Failure::new("not-found", format!("there is no object `{name}`; `ls` shows what there is"))
}

/// Whether a quote is still open: then the command goes on in the next line.
fn ends_inside_quotes(text: &str) -> bool {
    let last = words::split(text).pop();
    matches!(last, Some(Err(wrong)) if wrong.ends_with("not closed"))
}

/// Nested numbers as `key.key=value` lines.
pub fn flat(value: &serde_json::Value) -> String {
    fn walk(path: &str, value: &serde_json::Value, out: &mut String) {
        let below = |key: &str| match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        match value {
            serde_json::Value::Object(map) => {
                map.iter().for_each(|(key, value)| walk(&below(key), value, out));
            }
            serde_json::Value::Array(items) => {
                let numbered = items.iter().enumerate();
                numbered.for_each(|(index, value)| walk(&below(&index.to_string()), value, out));
            }
            serde_json::Value::String(text) => {
                out.push_str(&format!("{path}={}\n", printable(text.as_bytes())));
            }
            serde_json::Value::Null => {}
            other => out.push_str(&format!("{path}={other}\n")),
        }
    }
    let mut out = String::new();
    walk("", value, &mut out);
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_counters_become_lines() {
        let value = serde_json::json!({"a": {"b": 1}, "c": [{"d": "x\ny"}, {"d": null}]});
        assert_eq!(flat(&value), "a.b=1\nc.0.d=x\\ny");
    }

    #[test]
    fn an_open_quote_waits_for_the_next_line_and_a_wrong_escape_does_not() {
        assert!(ends_inside_quotes("put a 'b\n"));
        assert!(ends_inside_quotes("put a \"b\n"));
        assert!(!ends_inside_quotes("put a 'b'\n"));
        assert!(!ends_inside_quotes("put a \"\\q\"\n"));
    }
}
