//! A process that writes one line again and again, each time a version more, and says `c N` when
//! version N is written.

use super::say;
use rackpool::{FabricChoice, GAddr, Options, Pool};

/// Until it is killed, or a write fails for good.
pub fn run(args: &[&str]) -> Result<(), String> {
    let [master, rack, addr, version] = args else { panic!("{args:?}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let options = Options::new(master, number(rack) as u16).fabric(FabricChoice::Tcp);
    let handle = Pool::open(options).and_then(|pool| pool.handle());
    let mut handle = handle.map_err(|error| error.to_string())?;
    let (addr, mut version) = (GAddr(number(addr)), number(version));
    say("ready writer");
    loop {
        let line = [version + 1; 8].map(u64::to_le_bytes).concat();
        match handle.write(addr, &line) {
            Ok(()) => {
                version += 1;
                say(&format!("c {version}"));
            }
            Err(error) if error.may_retry() => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}
