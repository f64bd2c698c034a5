//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`: commands wait as words, and run as one step
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)). In: a [`RespCall`].
//! Out: its answer, or an error's text. `commands::run` brings what is to wait.
//!
//! Source: redis 7.0: what is refused when, and its words.

use super::atomic::Keys;
use super::bytes::strict_i64;
use super::clients::ClientInfo;
use super::commands::{self, CommandId};
use super::core::Core;
use super::counters::{Count, TimeBucket};
use super::redis::{CommandResult, RespCall};
use super::resp::{Args, OUT_OF_MEMORY, Version, failed, push_array, push_null};
use crate::cache::{Mode, Watch};
use crate::constants::{
    EXEC_AT_ONCE_BYTES_MAX, EXEC_AT_ONCE_MAX, HELD_COMMANDS, QUEUED_BYTES_MAX, QUEUED_MAX,
    WATCHED_MAX,
};
use rackpool_mem::process::monotonic_ns;

/// What a watch takes beside its key: here, in its partition, and among all watches.
const WATCH_BYTES: usize = 320;

/// Commands of a long transaction, some 200 µs of them, after which threads that serve may run.
const COMMANDS_AT_ONCE: usize = 512;

/// Memory of a thread for the commands of the next transaction.
const SPARE_BYTES_MAX: usize = 64 << 10;

const ABORTED: &str = "EXECABORT Transaction discarded because of";

/// What a client has watched, and the commands that wait.
#[derive(Debug, Default)]
pub struct Transaction {
    watched: Vec<Watch>,
    is_open: bool,
    /// Whether a command was refused since.
    is_refused: bool,
    queue: Queue,
}

/// Commands, each as its words.
#[derive(Debug, Default)]
pub struct Queue {
    bytes: Vec<u8>,
    /// First byte and length of each word.
    words: Vec<(u32, u32)>,
    /// With how many words there are before the next one.
    commands: Vec<(CommandId, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Full {
    #[error("ERR more than {max} commands in a transaction")]
    Commands { max: usize },
    #[error("ERR the commands of a transaction have more than {max_bytes} bytes")]
    Bytes { max_bytes: usize },
}

impl Queue {
    fn push(
        &mut self,
        id: CommandId,
        args: &Args,
        input: &[u8],
        max_bytes: usize,
    ) -> Result<(), Full> {
        if self.commands.len() >= QUEUED_MAX {
            return Err(Full::Commands { max: QUEUED_MAX });
        }
        let of_words: usize = args.words(input).map(<[u8]>::len).sum();
        let more = of_words + args.len() * size_of::<(u32, u32)>() + size_of::<(CommandId, u32)>();
        if self.held_bytes() + more > max_bytes {
            return Err(Full::Bytes { max_bytes });
        }
        for word in args.words(input) {
            self.words.push((self.bytes.len() as u32, word.len() as u32));
            self.bytes.extend_from_slice(word);
        }
        self.commands.push((id, self.words.len() as u32));
        Ok(())
    }

    /// Itself without commands, for the next transaction; nothing if that would keep much memory.
    fn emptied(mut self) -> Self {
        if self.bytes.capacity() + self.words.capacity() * size_of::<(u32, u32)>() > SPARE_BYTES_MAX
        {
            return Self::default();
        }
        self.bytes.clear();
        self.words.clear();
        self.commands.clear();
        self
    }

    /// Bytes that are in use.
    fn held_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&self.words[..]) + size_of_val(&self.commands[..])
    }

    fn commands(&self) -> impl Iterator<Item = (CommandId, &[(u32, u32)])> {
        let mut begin = 0;
        self.commands.iter().map(move |(id, end)| {
            let words = &self.words[std::mem::replace(&mut begin, *end as usize)..*end as usize];
            (*id, words)
        })
    }

    fn word(&self, (start, len): (u32, u32)) -> &[u8] {
        &self.bytes[start as usize..start as usize + len as usize]
    }

    /// The commands with the database that each is on, of so many, from `database` on.
    fn on_databases(
        &self,
        mut database: u8,
        databases: u8,
    ) -> impl Iterator<Item = (CommandId, &[(u32, u32)], u8)> {
        self.commands().map(move |(id, words)| {
            let command = (id, words, database);
            if id == commands::SELECT {
                let number = strict_i64(self.word(words[1])).and_then(|it| u8::try_from(it).ok());
                database = number.filter(|it| *it < databases).unwrap_or(database);
            }
            command
        })
    }
}

impl ClientInfo {
    /// The keys of database 0 that commands name which wait for `EXEC`.
    pub fn queued_keys(&self, databases: u8) -> Vec<Vec<u8>> {
        let queued = self.transaction.as_ref();
        queued.map_or(Vec::new(), |it| it.keys_behind(self.database, databases))
    }
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn queued(&self) -> u64 {
        self.queue.commands.len() as u64
    }

    /// Memory that it takes, bytes.
    pub fn held_bytes(&self) -> u64 {
        let watched: usize = self.watched.iter().map(|it| it.key().1.len()).sum();
        let watches = self.watched.capacity() * WATCH_BYTES;
        let Queue { bytes, words, commands } = &self.queue;
        let queue = bytes.capacity()
            + words.capacity() * size_of::<(u32, u32)>()
            + commands.capacity() * size_of::<(CommandId, u32)>();
        (watched + watches + queue) as u64
    }

    /// Refuses to be executed; what waits is forgotten, and what comes does not wait.
    fn refuse(&mut self) {
        self.is_refused = true;
        self.queue = Queue::default();
    }

    /// The keys of its commands and those that are watched; `None`: not all are named.
    fn keys(&self, database: u8, databases: u8) -> Option<Vec<(u8, &[u8])>> {
        let mut keys: Vec<_> = self.watched.iter().map(Watch::key).collect();
        for (id, words, database) in self.queue.on_databases(database, databases) {
            if !id.names_its_keys() {
                return None;
            }
            let named = id.keys(words.len());
            keys.extend(named.map(|word| (database, self.queue.word(words[word]))));
        }
        Some(keys)
    }

    /// The keys of database 0 that its commands name.
    fn keys_behind(&self, database: u8, databases: u8) -> Vec<Vec<u8>> {
        let commands = self.queue.on_databases(database, databases);
        let commands = commands.filter(|(.., database)| *database == 0);
        let keys = commands.flat_map(|(id, words, _)| {
            id.keys(words.len()).map(|word| self.queue.word(words[word]).to_vec())
        });
        keys.collect()
    }

    /// Whether it is done at once where it came.
    fn is_short(&self) -> bool {
        self.queue.commands.len() <= EXEC_AT_ONCE_MAX
            && self.queue.bytes.len() <= EXEC_AT_ONCE_BYTES_MAX
    }

    /// Whether there is room for all words of commands that may need some.
    fn has_room(&self, core: &Core, database: u8) -> bool {
        let databases = core.shared.settings.databases;
        let commands = self.queue.on_databases(database, databases);
        let stores = commands.filter(|(id, ..)| id.may_need_memory());
        let stores = stores.filter_map(|(id, words, database)| {
            let key = id.keys(words.len()).next()?;
            let bytes: u64 = words.iter().map(|(_, len)| u64::from(*len)).sum();
            Some((database, self.queue.word(words[key]), bytes))
        });
        core.db.has_room(stores, core.now)
    }

    /// Runs its commands, as a part of a section.
    fn run(&self, core: &mut Core, client: &mut ClientInfo) -> CommandResult {
        if !self.watched.iter().all(|it| it.is_unchanged(core.now)) {
            push_null_array(&mut core.out.bytes, client.version);
            return Ok(());
        }
        if core.db.options().mode == Mode::Store && !self.has_room(core, client.database) {
            return Err(format!("{ABORTED}: {OUT_OF_MEMORY}"));
        }
        let start = core.out.bytes.len();
        let bytes_max = (core.shared.settings.held_bytes_max / HELD_COMMANDS) as usize;
        push_array(&mut core.out.bytes, self.queue.commands.len());
        let (mut args, mut is_too_much) = (Args::default(), false);
        let began_ns = monotonic_ns();
        for (nth, (id, words)) in self.queue.commands().enumerate() {
            if nth % COMMANDS_AT_ONCE == COMMANDS_AT_ONCE - 1 {
                // Threads that serve may wait for this processor, and the system lets them for ms.
                std::thread::yield_now();
            }
            args.refill(words);
            run_one(core, client, &self.queue.bytes, &args, id);
            if core.out.bytes.len() - start > bytes_max {
                is_too_much = true;
                core.out.truncate(start);
            }
        }
        let each_ns = (monotonic_ns() - began_ns) / self.queue.commands.len().max(1) as u64;
        let bucket = TimeBucket::of(each_ns);
        self.queue.commands().for_each(|(id, _)| core.counters().ran(id, 1, each_ns, bucket));
        if is_too_much {
            // Others have seen what it did: it cannot be refused any more.
            core.out.truncate(start);
            core.count(Count::HeldTooMuch);
            client.quits = true;
        }
        Ok(())
    }
}

fn run_one(core: &mut Core, client: &mut ClientInfo, input: &[u8], args: &Args, id: CommandId) {
    let mut left = {
        let mut call = RespCall::new(core, client, input, args);
        let answer = commands::execute(&mut call, id);
        call.finish(Some(id), answer)
    };
    while let Some((mut part, go_on)) = left {
        part.command = Some(id);
        left = RespCall::new(core, client, input, args).go_on(part, go_on);
    }
}

fn push_null_array(out: &mut Vec<u8>, version: Version) {
    match version {
        Version::Two => out.extend_from_slice(b"*-1\r\n"),
        Version::Three => push_null(out, version),
    }
}

impl ClientInfo {
    /// Whether its commands wait for `EXEC`.
    pub fn has_begun(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.is_open)
    }

    /// Whether a command that waits may need memory.
    pub fn may_need_memory(&self) -> bool {
        let transaction = self.transaction.as_ref();
        transaction.is_some_and(|it| it.queue.commands().any(|(id, _)| id.may_need_memory()))
    }

    /// A command that was to wait was refused.
    pub fn refuse_transaction(&mut self) {
        if let Some(transaction) = self.transaction.as_mut().filter(|it| it.is_open) {
            transaction.refuse();
        }
    }

    /// Memory that it takes, bytes.
    pub fn held_bytes(&self) -> u64 {
        self.transaction.as_ref().map_or(0, |transaction| transaction.held_bytes())
    }
}

pub fn multi(call: &mut RespCall<'_>) -> CommandResult {
    let transaction = call.client.transaction.get_or_insert_default();
    if std::mem::replace(&mut transaction.is_open, true) {
        return Err("ERR MULTI calls can not be nested".into());
    }
    transaction.queue = std::mem::take(&mut call.core.spare_queue);
    call.status("OK")
}

pub fn discard(call: &mut RespCall<'_>) -> CommandResult {
    if !call.client.has_begun() {
        return Err("ERR DISCARD without MULTI".into());
    }
    call.client.transaction = None;
    call.status("OK")
}

pub fn watch(call: &mut RespCall<'_>) -> CommandResult {
    if call.client.has_begun() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let too_many = || format!("ERR more than {WATCHED_MAX} keys are watched");
    if call.count() > WATCHED_MAX + 1 {
        return Err(too_many());
    }
    let (cache, now, database) = (call.core.cache(), call.core.now, call.client.database);
    let watched = &mut call.client.transaction.get_or_insert_default().watched;
    for key in call.args.words(call.input).skip(1) {
        if watched.iter().any(|it| it.key() == (database, key)) {
            continue;
        }
        if watched.len() >= WATCHED_MAX {
            return Err(too_many());
        }
        watched.push(cache.watch(database, key, now).map_err(|error| failed(&error))?);
    }
    call.status("OK")
}

pub fn unwatch(call: &mut RespCall<'_>) -> CommandResult {
    call.client.transaction = None;
    call.status("OK")
}

pub fn exec(call: &mut RespCall<'_>) -> CommandResult {
    let transaction = call.client.transaction.take_if(|transaction| transaction.is_open);
    let Some(transaction) = transaction else { return Err("ERR EXEC without MULTI".into()) };
    if transaction.is_refused {
        return Err(format!("{ABORTED} previous errors."));
    }
    let databases = call.core.shared.settings.databases;
    let keys = transaction.keys(call.client.database, databases);
    if let Some(keys) = keys.as_ref().filter(|_| transaction.is_short()) {
        let (core, client) = (&mut *call.core, &mut *call.client);
        let done = core.atomically(Keys::Named(keys), |core| transaction.run(core, client));
        core.spare_queue = transaction.queue.emptied();
        return done;
    }
    drop(keys);
    call.run_apart(
        transaction.held_bytes(),
        Box::new(move |core: &mut Core, client: &mut ClientInfo| {
            let keys = transaction.keys(client.database, databases);
            let keys = keys.as_deref().map_or(Keys::All, Keys::Named);
            core.atomically(keys, |core| transaction.run(core, client))
        }),
    )
}

/// Lets a command wait for `EXEC`.
pub fn queue(call: &mut RespCall<'_>, id: CommandId) -> CommandResult {
    let max_bytes = QUEUED_BYTES_MAX.min(call.core.shared.settings.input_bytes_max());
    let transaction = call.client.transaction.get_or_insert_default();
    if !transaction.is_refused {
        let queued = transaction.queue.push(id, call.args, call.input, max_bytes);
        queued.map_err(|full| {
            transaction.refuse();
            full.to_string()
        })?;
    }
    call.status("QUEUED")
}

/// A command was not executed, for this reason, and did not come to wait: the answer.
pub fn refuse(call: &mut RespCall<'_>, why: String) -> String {
    if call.is(0, "exec") {
        call.client.transaction = None;
        let why = why.strip_prefix("ERR ").unwrap_or(&why);
        return format!("{ABORTED}: {why}");
    }
    call.client.refuse_transaction();
    why
}
