//! A process that moves pages to and fro between two racks, at random and without a pause, until
//! it is told to stop or dies. `m MICROS` for each move, `x CODE` for each that did not happen,
//! `g PAGE` for a page that is gone, which it moves no more.

use super::{Random, say};
use rackpool::{Error, GAddr, Options, Pool, RackId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

pub fn run(args: &[&str]) -> Result<(), String> {
    std::thread::spawn(|| {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            // Relaxed: the flag carries no data.
            Ok(1..) => STOP.store(true, Ordering::Relaxed),
            _ => std::process::exit(3),
        }
    });
    let [master, rack, fabric, seed, pages] = args else { panic!("{args:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let mut pages: Vec<GAddr> = pages.split(',').map(|page| GAddr(number(page))).collect();
    let mut random = Random::new(number(seed));
    let options = Options::new(master, rack.parse().expect("a rack"));
    let options = options.fabric(fabric.parse().expect("a fabric"));
    let handle = Pool::open(options).and_then(|pool| pool.handle());
    let mut handle = handle.map_err(|error| error.to_string())?;
    say("ready mover");
    // Relaxed: the flag carries no data.
    while !STOP.load(Ordering::Relaxed) {
        let index = random.below(pages.len() as u64) as usize;
        let page = pages[index];
        let to = RackId(random.below(2) as u16);
        let started = Instant::now();
        match handle.admin().migrate(page, to) {
            Ok(rack) if rack == to => say(&format!("m {}", started.elapsed().as_micros())),
            Err(error) if may_happen(&error) => {
                say(&format!("x {}", error.code()));
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) if error.code() == "not-mapped" => {
                pages.swap_remove(index);
                say(&format!("g {}", page.0));
            }
            other => {
                say(&format!("e migrate {page} to rack {to}: {other:?}"));
                std::process::exit(4);
            }
        }
    }
    say("done");
    Ok(())
}

/// What a mover may be told while others move, lock and die: the page is whole in any case.
fn may_happen(error: &Error) -> bool {
    let codes = ["stays", "busy", "moving", "peer-dead", "timeout", "outcome-unknown"];
    codes.contains(&error.code())
}
