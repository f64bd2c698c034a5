//! A process that allocates and frees small objects as fast as it can, and names each in a word of
//! the pool for as long as it has it: the word is 0 before the object is freed, and set after it
//! was allocated. So a process that is killed leaves at most one object without a name.
//!
//! | line | meaning |
//! |---|---|
//! | `n` | a thousand were allocated or freed |
//! | `e MESSAGE` | what must not happen; the process ends |

use super::{Random, say};
use rackpool::{FabricChoice, GAddr, Handle, Options, Placement, Pool};

/// Objects of one process.
pub const OBJECTS: u64 = 2000;

/// Bytes of the object that a word names.
pub fn bytes_of(word: u64) -> u64 {
    64 << (word % 5)
}

/// What is in it.
fn mark(word: GAddr) -> u64 {
    word.0 ^ 0x5bd1_e995
}

/// Frees what a word names, and looks first whether it is as it was left.
pub fn free(handle: &mut Handle, words: GAddr, word: u64) -> Result<(), String> {
    let at = GAddr(words.0 + 8 * word);
    let told = |error: rackpool::Error| format!("word {word}: {error}");
    let addr = GAddr(handle.read_u64(at).map_err(told)?);
    if addr.is_null() {
        return Ok(());
    }
    let found = handle.read_u64(addr).map_err(told)?;
    // It may have been killed before it had written there.
    if found != mark(at) && found != 0 {
        return Err(format!("{addr} is word {word}'s and holds {found:#x}"));
    }
    handle.write_u64(at, 0).map_err(told)?;
    handle.free(addr, bytes_of(word)).map_err(told)
}

fn fill(handle: &mut Handle, words: GAddr, word: u64) -> Result<(), String> {
    let at = GAddr(words.0 + 8 * word);
    let told = |error: rackpool::Error| format!("word {word}: {error}");
    let bytes = bytes_of(word);
    let addr = handle.alloc(bytes, Placement::Local).map_err(told)?;
    let mut found = vec![1; bytes as usize];
    handle.read(addr, &mut found).map_err(told)?;
    if found.iter().any(|byte| *byte != 0) {
        return Err(format!("{addr} is not zero"));
    }
    handle.write_u64(at, addr.0).map_err(told)?;
    handle.write_u64(addr, mark(at)).map_err(told)
}

pub fn run(args: &[&str]) -> Result<(), String> {
    let [master, words, seed] = args else { panic!("{args:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let options = Options::new(master, 0).fabric(FabricChoice::Tcp).request_timeout_ms(20_000);
    let handle = Pool::open(options).and_then(|pool| pool.handle());
    let mut handle = handle.map_err(|error| error.to_string())?;
    let (words, mut random) = (GAddr(number(words)), Random::new(number(seed)));
    say("ready objects");
    for count in 1_u64.. {
        let word = random.below(OBJECTS);
        let is_named = handle.read_u64(GAddr(words.0 + 8 * word)) != Ok(0);
        let done = match is_named {
            true => free(&mut handle, words, word),
            false => fill(&mut handle, words, word),
        };
        if let Err(error) = done {
            say(&format!("e {error}"));
            return Err(error);
        }
        if count % 1000 == 0 {
            say("n");
        }
    }
    Ok(())
}
