//! Pages that move by themselves, from the command line: `daemon --migrate` and the decisions that
//! `stats --decisions` tells.

use crate::common::{Dir, Server, WITHIN, run, told};
use std::time::Instant;

fn daemon(rack: &str, master: &str, migrate: &str) -> Vec<String> {
    let memory = "heap?size=4M&pages=4K";
    let words = ["daemon", "--rack", rack, "--master", master, "--memory", memory];
    let words = words.into_iter().chain(["--ephemeral", "--migrate", migrate]);
    words.map(str::to_owned).collect()
}

fn start(words: &[String]) -> Server {
    Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_page_comes_to_the_rack_that_reads_it_and_the_decision_is_told() {
    let state = Dir::new();
    let words = ["master", "--listen", "127.0.0.1:0", "--state", &state.file("state")];
    let mut master = Server::start(&words);
    let addr = master.addr.clone();
    let mut daemons =
        [start(&daemon("0", &addr, "cost")), start(&daemon("1", &addr, "cost,horizon_ms=20000"))];
    let shell = |rack: &str, commands: &str| {
        let words = ["shell", "--rack", rack, "--master", &addr, "-c", commands];
        let (code, out, err) = told(&run(&words));
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    };
    let page = shell("0", "alloc 4096");
    let page = page.trim();
    let reads = format!("read {page} 8; ").repeat(2000);
    let started = Instant::now();
    loop {
        let out = shell("1", &format!("{reads} explain {page}"));
        if out.lines().any(|line| line == "rack=1") {
            break;
        }
        assert!(started.elapsed() < WITHIN, "it does not come: {}", shell("1", "stats"));
    }
    let out = shell("1", "stats --decisions");
    let lines = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let moved = lines.into_iter().find(|line| line["record"]["decision"]["Move"]["to"] == 1);
    let moved = moved.unwrap_or_else(|| panic!("{out}"));
    assert_eq!((&moved["rack"], moved["number"].as_u64() >= Some(1)), (&0.into(), true));
    assert!(moved["record"]["observation"]["costs"]["remote_ns"].as_u64() > Some(0), "{moved}");
    for daemon in &mut daemons {
        assert_eq!(daemon.terminate(), Some(0));
    }
    assert_eq!(master.terminate(), Some(0));
}

#[test]
fn a_policy_that_is_none_is_wrong_usage_and_says_what_could_stand_there() {
    for (wrong, said) in [("often", "paper"), ("cost,often=1", "horizon_ms=N")] {
        let words = daemon("0", "127.0.0.1:1", wrong);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let (code, out, err) = told(&run(&words));
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(said), "{err}");
    }
}
