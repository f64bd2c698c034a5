//! Random streams of commands of all protocols: whole ones to ours and to the real servers, and
//! changed ones to the parsers alone. Without words both.
//!
//! `cargo test -p rackpool-cache --test protocols -- --streams N` compares with the real servers
//! alone; `cargo test --release -p rackpool-cache --test protocols -- --inputs 10000000` is a long
//! run of changed inputs alone; `--latency SECONDS` tells what look-ups wait for meanwhile of what
//! takes long. `--seed N` for others or to repeat them, `--door N` for one
//! protocol (text, meta, binary, RESP; of inputs also the slots of HERD's fast path, then words of
//! commands, dumps, packed hashes, what scripts decode). Newer servers than Debian's are those that
//! `PATH` finds first: they are asked what else they know.

mod differential;
mod fuzz;
mod latency;
mod parser_fuzz;
#[path = "../suite/peers/mod.rs"]
mod peers;
mod resp_streams;
mod streams;

fn main() {
    let names = ["--streams", "--inputs", "--latency", "--seed", "--door"];
    let Some([streams, inputs, latency, seed, only]) = peers::numbers(names) else { return };
    if let Some(seconds) = latency {
        return latency::run(seconds);
    }
    let seed = seed.unwrap_or(1);
    if streams.is_some() || inputs.is_none() {
        differential::run(streams, seed, only);
    }
    if inputs.is_some() || streams.is_none() {
        fuzz::run(inputs, seed, only);
    }
}
