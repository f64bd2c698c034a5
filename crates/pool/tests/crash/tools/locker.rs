//! Processes that hold locks. `count`: adds to a pair of words, one after the other and not
//! atomically, each time under a lock; `c` for each that was acknowledged, `u` for one that lost
//! its lock meanwhile. `hold`: takes a lock and does what it is told, one line each.

use super::say;
use rackpool::{Error, GAddr, Handle, LockGuard, LockMode, LockOptions, Options, Pool};
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A process that gets no lock in this time tries again.
const WAIT_MS: u64 = 5_000;

static STOP: AtomicBool = AtomicBool::new(false);

fn open(args: &[&str]) -> Result<(Handle, GAddr), String> {
    let [master, rack, fabric, name, ..] = args else { panic!("{args:?}") };
    let options = Options::new(master, rack.parse().expect("a rack"));
    let options = options.fabric(fabric.parse().expect("a fabric"));
    let handle = Pool::open(options).and_then(|pool| pool.handle());
    Ok((handle.map_err(|e| e.to_string())?, GAddr(name.parse().expect("an address"))))
}

/// Says what failed and pauses; ends the process if it must not be tried again.
fn retry(what: &str, error: &Error) {
    let may_go_on = error.may_retry() || error.code() == "lock-lost";
    if !may_go_on {
        say(&format!("e {what} {error}"));
        std::process::exit(4);
    }
    say(&format!("r {what} {}", error.code()));
    std::thread::sleep(Duration::from_millis(5));
}

/// The counter is the word at the lock's own address, its copy the next one.
pub fn count(args: &[&str]) -> Result<(), String> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        // Relaxed: the flag carries no data.
        STOP.store(true, Ordering::Relaxed);
    });
    let (mut handle, name) = open(args)?;
    let reads_too = args[4] == "reads";
    say("ready counter");
    let mut round = 0u64;
    // Relaxed: the flag carries no data.
    while !STOP.load(Ordering::Relaxed) {
        round += 1;
        if reads_too && round.is_multiple_of(3) {
            look(&mut handle, name);
        } else {
            add(&mut handle, name);
        }
    }
    say("done");
    Ok(())
}

fn add(handle: &mut Handle, name: GAddr) {
    let guard = match handle.lock(name, LockMode::Write, LockOptions::line().within_ms(WAIT_MS)) {
        Ok(guard) => guard,
        Err(error) => return retry("write_lock", &error),
    };
    let copy = GAddr(name.0 + 8);
    let done = (|| {
        let (value, second) = (handle.read_u64(name)?, handle.read_u64(copy)?);
        // A process that died between the two stores left the first one.
        if second != value && second + 1 != value {
            say(&format!("e {value} and {second} were written by two at once"));
            std::process::exit(4);
        }
        handle.write_u64(copy, value)?;
        handle.write_u64(name, value + 1)?;
        handle.write_u64(copy, value + 1)
    })();
    match done.and_then(|()| handle.unlock(guard)) {
        Ok(()) => say("c"),
        Err(error) => {
            say("u");
            retry("an addition", &error);
        }
    }
}

fn look(handle: &mut Handle, name: GAddr) {
    let guard = match handle.lock(name, LockMode::Read, LockOptions::line().within_ms(WAIT_MS)) {
        Ok(guard) => guard,
        Err(error) => return retry("read_lock", &error),
    };
    let seen = (|| Ok((handle.read_u64(name)?, handle.read_u64(name)?)))();
    match seen {
        Ok((first, second)) if first != second => {
            say(&format!("e {first} became {second} under a lock for reading"));
            std::process::exit(4);
        }
        Ok(_) => drop(guard),
        Err(error) => retry("a look", &error),
    }
}

/// Takes a lock when it is told to, and whatever else it is told.
pub fn hold(args: &[&str]) -> Result<(), String> {
    let (mut handle, name) = open(args)?;
    let mut guard: Option<LockGuard> = None;
    say("ready holder");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let word = GAddr(name.0 + 8);
        let mut keep = |new: LockGuard| {
            let token = new.token();
            guard = Some(new);
            token
        };
        let told = match line.as_str() {
            "lock" => handle
                .lock(name, LockMode::Write, LockOptions::line().within_ms(WAIT_MS))
                .map(&mut keep),
            "range" => handle
                .lock(name, LockMode::Write, LockOptions::range(64).within_ms(WAIT_MS))
                .map(&mut keep),
            "share" => handle
                .lock(name, LockMode::Read, LockOptions::range(64).within_ms(WAIT_MS))
                .map(&mut keep),
            "read" => handle.read_u64(word),
            "check" => {
                let held = guard.as_ref().expect("it locked before");
                handle.check_lock(held).map(|()| held.token())
            }
            "write" => handle.write_u64(word, u64::from(std::process::id())).map(|()| 0),
            "unlock" => handle.unlock(guard.take().expect("it locked before")).map(|()| 0),
            "drop" => {
                drop(guard.take());
                Ok(0)
            }
            other => panic!("told {other}"),
        };
        match told {
            Ok(value) => say(&format!("ok {value}")),
            Err(error) => say(&format!("not {} {error}", error.code())),
        }
    }
    Ok(())
}
