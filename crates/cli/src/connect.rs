//! Ways into a pool: what the options and the environment name, as a client's [`Pool`] or as a
//! look from outside ([`Watch`]). A master that does not answer is found out within a second.

use crate::args::{MasterAt, PoolArgs};
use crate::failure::{Failure, Result};
use rackpool::monitor::Monitor;
use rackpool::{Options, Pool, Secret};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The table that holds the shell's objects and the files of `demo`.
pub const OBJECTS: &str = "objects";
/// How long a master or a rack may be away when a command begins, unless a time is given: it may be
/// starting.
const PEER_WITHIN: Duration = Duration::from_secs(1);

/// Joins the pool of a master that is there now: calls wait for `args.timeout_ms` from then on.
pub fn open_pool_now(args: &PoolArgs) -> Result<Pool> {
    let options = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    find_master(&options.master)?;
    open_pool(args)
}

/// Joins the pool that the arguments and the environment name.
pub fn open_pool(args: &PoolArgs) -> Result<Pool> {
    let mut options = found_options(args.master.as_deref(), args.secret_file.as_deref())?;
    options.rack = args.rack.unwrap_or(options.rack);
    options.fabric = args.fabric.unwrap_or(options.fabric);
    options.verbs_device = args.verbs_device.clone().or(options.verbs_device);
    match args.timeout_ms {
        Some(timeout_ms) => options.request_timeout_ms = timeout_ms,
        None => {
            find_master(&options.master)?;
            options.dead_rack_ms = Some(PEER_WITHIN.as_millis() as u64);
        }
    }
    Ok(Pool::open(options)?)
}

/// Joins as a client of the rack that is named, or of any rack of this host.
pub fn open_any_rack(args: &PoolArgs) -> Result<Pool> {
    let at = MasterAt { master: args.master.clone(), secret_file: args.secret_file.clone() };
    let named = args.rack.or(std::env::var_os("RACKPOOL_RACK").map(|_| 0));
    if named.is_some() {
        return open_pool(args);
    }
    let members = Watch::open(&at)?.monitor.members()?;
    let mut failed = Failure::new("no-such-rack", "no rack of the pool is there");
    for member in members.iter().filter(|member| member.info.alive) {
        let rack = Some(member.info.rack.number());
        match open_pool(&PoolArgs { rack, ..args.clone() }) {
            Ok(pool) => return Ok(pool),
            Err(failure) => failed = failure,
        }
    }
    Err(failed)
}

/// A look at a pool from outside.
pub struct Watch {
    pub monitor: Monitor,
    pub masters: String,
}

impl Watch {
    /// Finds the master that the argument or the environment names.
    pub fn open(at: &MasterAt) -> Result<Self> {
        let options = found_options(at.master.as_deref(), at.secret_file.as_deref())?;
        find_master(&options.master)?;
        let masters = options.master.join(", ");
        let timeout_ms = options.request_timeout_ms;
        let monitor = Monitor::with_secret(options.master, timeout_ms, options.secret)?;
        Ok(Self { monitor, masters })
    }
}

/// What the environment says, and of it what was given otherwise: the addresses of the master,
/// several with commas between, and the file of the secret.
pub fn found_options(master: Option<&str>, secret_file: Option<&Path>) -> Result<Options> {
    let mut options = Options::from_env()?;
    if let Some(master) = master {
        options.master = Options::new(master, 0).master;
    }
    name_secret(&mut options.secret, secret_file)?;
    Ok(options)
}

/// Reads the secret from the file that was given.
pub fn name_secret(secret: &mut Option<Secret>, file: Option<&Path>) -> Result<()> {
    if let Some(file) = file {
        *secret = Some(Secret::from_file(file)?);
    }
    Ok(())
}

/// What readers of the counters have to send.
pub fn token(path: Option<&Path>) -> Result<Option<Secret>> {
    Ok(path.map(Secret::from_file).transpose()?)
}

/// A command that begins does not wait for a restart as long as one that works already does: an
/// address without a listener is a mistake as a rule.
pub fn find_master(addrs: &[String]) -> Result<()> {
    let start = Instant::now();
    let no_master = |code, why: &str| {
        let message = format!("no master answers at {}: {why}", addrs.join(", "));
        let hint = "start one with `rackpool master`, or name the address of one that runs";
        Err(Failure::new(code, message).with_hint(hint))
    };
    let (mut found, mut why) = (Vec::new(), "no address is given".to_owned());
    for addr in addrs {
        match rackpool_mem::names::resolve(addr) {
            Ok(some) => found.extend(some),
            Err(error) => why = error.to_string(),
        }
    }
    if found.is_empty() {
        return no_master("config", &why);
    }
    loop {
        for addr in &found {
            match TcpStream::connect_timeout(addr, PEER_WITHIN) {
                Ok(_) => return Ok(()),
                Err(error) => why = error.to_string(),
            }
        }
        if start.elapsed() > PEER_WITHIN {
            return no_master("peer-dead", &why);
        }
        std::thread::sleep(PEER_WITHIN / 20);
    }
}
