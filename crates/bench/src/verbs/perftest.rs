//! The tools of perftest beside ours, where they are installed: `ib_read_lat` and `ib_write_lat`
//! between two processes on the same device.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const EXCHANGES: u32 = 1000;
/// How long one run may take.
const WITHIN: Duration = Duration::from_secs(30);

/// A process that ends with this.
struct PerftestProcess(Child);

impl Drop for PerftestProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The typical time of one operation by a tool, nanoseconds; `None` if it is not installed or
/// cannot use the device.
pub fn typical_ns(tool: &str, device: &str, bytes: u64) -> Option<f64> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let (bytes, exchanges) = (bytes.to_string(), EXCHANGES.to_string());
    let words = ["-d", device, "-p", &port, "-s", &bytes, "-n", &exchanges, "-F"];
    let start = |more: &[&str]| {
        let mut command = Command::new(tool);
        command.args(words).args(more).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok().map(PerftestProcess)
    };
    let _server = start(&[])?;
    let begin = Instant::now();
    while begin.elapsed() < WITHIN {
        // The server needs a while before it listens; a client that comes too early just ends.
        std::thread::sleep(Duration::from_millis(200));
        let mut client = start(&["127.0.0.1"])?;
        while client.0.try_wait().ok()?.is_none() {
            if begin.elapsed() > WITHIN {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut said = String::new();
        std::io::Read::read_to_string(client.0.stdout.as_mut()?, &mut said).ok()?;
        if let Some(us) = typical_us(&said) {
            return Some(us * 1000.0);
        }
    }
    None
}

/// The column `t_typical[usec]` of the last line of numbers.
fn typical_us(said: &str) -> Option<f64> {
    let names = said.lines().find(|line| line.contains("t_typical[usec]"))?;
    let column = names.split_whitespace().position(|name| name == "t_typical[usec]")?;
    let numbers = said.lines().rev().find(|line| {
        line.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok())
    })?;
    numbers.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_time_is_found_by_its_columns_name() {
        let said = " ---\n #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n \
                    32 1000 10.1 90.2 11.5\n ---\n";
        assert_eq!(typical_us(said), Some(11.5));
        assert_eq!(typical_us("Couldn't connect to 127.0.0.1:18515"), None);
    }
}
