//! A running pool, recorded with `plan --from-pool`: its choices are made again by the simulator.
#![cfg(feature = "lab")]

use crate::common::{Dir, Server, WITHIN, run, told};
use rackpool_core::addr::{PageId, RackId};
use rackpool_core::placement::{RecordedEvent, ReplayError};
use rackpool_core::policy::{Decision, Reason};
use rackpool_rack::live::{RecordLine, Recording, RecordingError, Report};
use std::path::Path;
use std::time::Instant;

/// A master with a placement, and three racks of pages of 64 KiB.
struct Live {
    _daemons: Vec<Server>,
    master: Server,
    _state: Dir,
}

impl Live {
    fn start(placement: &str) -> Self {
        let dir = Dir::new();
        let state = dir.file("state");
        let words = ["master", "--listen", "127.0.0.1:0", "--state", &state, "--placement"];
        let master = Server::start(&[&words[..], &[placement]].concat());
        let daemon = |rack: &str| {
            let (memory, addr) = ("heap?size=16M&pages=64K", master.addr.as_str());
            let words = ["daemon", "--rack", rack, "--master", addr, "--memory", memory];
            Server::start(&[&words[..], &["--ephemeral", "--migrate", "cost"]].concat())
        };
        Self { _daemons: ["0", "1", "2"].map(daemon).into(), master, _state: dir }
    }

    fn shell(&self, rack: &str, commands: &str) -> String {
        let words = ["shell", "--rack", rack, "--master", &self.master.addr, "-c", commands];
        let (code, out, err) = told(&run(&words));
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    }

    fn record(&self, out: &str) -> (i32, String, String) {
        let words = ["plan", "--from-pool", &self.master.addr, "--for", "1s", "--out", out];
        told(&run(&words))
    }
}

/// The text with the first choice of a rack changed to another one.
fn with_another_choice(text: &str) -> String {
    let mut is_changed = false;
    let lines = text.lines().map(|line| match serde_json::from_str(line).unwrap() {
        RecordLine::Entry(RecordedEvent::Pick(mut pick))
            if !is_changed && pick.chosen.is_some() =>
        {
            is_changed = true;
            pick.chosen = pick.chosen.map(|rack| RackId((rack.0 + 1) % 3));
            RecordLine::Entry(RecordedEvent::Pick(pick)).to_text()
        }
        line => line.to_text(),
    });
    let changed = lines.collect();
    assert!(is_changed);
    changed
}

#[test]
fn recorded_choices_of_a_running_pool_are_the_same_when_they_are_made_again() {
    for placement in ["alternate+smart-idle", "even:250ms", "least-loaded", "random"] {
        let (pool, out) = (Live::start(placement), Dir::new());
        for rack in ["0", "1", "2"] {
            let allocate = "alloc 64K; alloc 200K; alloc 1M; ".repeat(4);
            pool.shell(rack, &allocate);
        }
        let (code, said, err) = pool.record(&out.file("seen"));
        assert_eq!((code, err.as_str()), (0, ""), "{placement}: {said}");
        let path = Path::new(&out.file("seen")).join("recording.jsonl");
        let recording = Recording::open(&path).unwrap();
        assert!(recording.picks >= 12, "{placement}: {} choices", recording.picks);
        assert!(said.contains(&format!("{} choices of racks by {placement}", recording.picks)));
        // Nothing was freed, and the heartbeats were heard: the racks are used as was chosen.
        let report = Report::of(&recording);
        assert_eq!(report.choices, recording.picks);
        let sum = |which: usize| report.racks.iter().map(|row| row.choices[which]).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (recording.picks, recording.picks), "{report:?}");
        assert!(report.racks.iter().all(|row| row.used_bytes.1 > Some(0)), "{report:?}");
        // A planted difference is found.
        let text = std::fs::read_to_string(&path).unwrap();
        let error = Recording::read(&path, &with_another_choice(&text)).unwrap_err();
        let RecordingError::Placement { error: ReplayError::Chosen { pick, .. }, .. } = error
        else {
            panic!("{error}")
        };
        assert_eq!(pick, 1);
    }
}

#[test]
fn decisions_about_pages_are_recorded_with_the_heat_that_led_to_them() {
    let (pool, out) = (Live::start("round-robin"), Dir::new());
    let page = pool.shell("0", "alloc 64K");
    let reads = format!("read {} 8; ", page.trim()).repeat(2000);
    let (path, start) = (Path::new(&out.file("seen")).join("recording.jsonl"), Instant::now());
    loop {
        ["1", "2"].into_iter().for_each(|rack| drop(pool.shell(rack, &reads)));
        let (code, said, err) = pool.record(&out.file("seen"));
        assert_eq!((code, err.as_str()), (0, ""), "{said}");
        if Recording::open(&path).unwrap().pages_decided > 0 {
            break;
        }
        assert!(start.elapsed() < WITHIN, "no daemon decides about a page that is read");
    }
    // Another decision than what the heat led to is found.
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = text.lines().map(|line| match serde_json::from_str(line).unwrap() {
        RecordLine::Heat(mut heat) => {
            heat.record.decision = match heat.record.decision {
                Decision::Leave(_) => Decision::Swap { victim: PageId(1 << 40) },
                _ => Decision::Leave(Reason::Off),
            };
            RecordLine::Heat(heat).to_text()
        }
        line => line.to_text(),
    });
    let error = Recording::read(&path, &changed.collect::<String>()).unwrap_err();
    assert!(matches!(error, RecordingError::Heat { .. }), "{error}");
}

#[test]
fn a_plan_is_set_beside_the_pool_that_was_recorded_meanwhile() {
    let (pool, out) = (Live::start("round-robin"), Dir::new());
    pool.shell("0", &"alloc 300K; ".repeat(9));
    let plan = out.file("plan.toml");
    let small = [
        ("accesses = 4000", "accesses = 600"),
        ("pod_machines = [8, 16]", "pod_machines = [16]"),
        ("pools = [2, 4]", "pools = [4]"),
        ("local_percent = [40, 60]", "local_percent = [40]"),
    ];
    let text = small.iter().fold(rackpool_rack::plan::EXAMPLE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from));
        text.replacen(from, to, 1)
    });
    std::fs::write(&plan, text).unwrap();
    let (addr, report) = (pool.master.addr.as_str(), out.file("report"));
    let words = ["plan", &plan, "--from-pool", addr, "--for", "200ms", "--out", &report];
    let (code, said, _) = told(&run(&words));
    assert_eq!(code, 0, "{said}");
    let read = |name: &str| std::fs::read_to_string(Path::new(&report).join(name)).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    assert_eq!(summary["live"]["choices"], 9);
    // Of three racks in turn each takes a third, in the model and in the pool.
    for rack in summary["live"]["racks"].as_array().unwrap() {
        assert_eq!(rack["choices"], serde_json::json!([3, 3]), "{summary:#}");
    }
    let page = read("report.html");
    assert!(page.contains("<section id=\"live\">") && page.contains("id=\"table-live\""));
}

#[test]
fn where_nothing_is_there_or_was_decided_the_error_says_so() {
    let (pool, out) = (Live::start("local-first"), Dir::new());
    pool.shell("0", "alloc 64K");
    let (code, _, err) = pool.record(&out.file("seen"));
    assert!(code == 1 && err.contains("error nothing-recorded"), "{err}");
    assert!(err.contains("asks its master only"), "{err}");
    let words = ["plan", "--from-pool", "127.0.0.1:1", "--out", &out.file("none")];
    let (code, _, err) = told(&run(&words));
    assert!(code == 1 && err.contains("error peer-dead"), "{err}");
    let (code, _, err) = told(&run(&["plan", "--from-pool", "127.0.0.1:1", "--for", "soon"]));
    assert!(code == 2 && err.contains("a whole number and a unit"), "{err}");
}

#[test]
fn a_plan_with_a_price_without_sense_is_refused_before_the_work() {
    let dir = Dir::new();
    let (file, out) = (dir.file("plan.toml"), dir.file("out"));
    assert_eq!(told(&run(&["plan", "init", &file])).0, 0);
    let example = std::fs::read_to_string(&file).unwrap();
    for (from, to, said) in [
        ("amount = 5.00", "amount = 0.0", "machines' memory costs nothing"),
        ("date = 2026-11-01", "date = 2999-01-01", "2999-01-01; today is"),
        ("sample = \"15 min\"", "sample = \"5 d\"", "longer than the trace"),
    ] {
        std::fs::write(&file, example.replacen(from, to, 1)).unwrap();
        let (code, _, err) = told(&run(&["plan", &file, "--out", &out]));
        assert_eq!(code, 2, "{to}: {err}");
        assert!(err.contains(said) && err.contains("line "), "{to}: {err}");
    }
    assert!(!Path::new(&out).exists());
}
