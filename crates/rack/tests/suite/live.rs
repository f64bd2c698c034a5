//! Recordings of running pools: what they say is decided again, and what is wrong with them is
//! said.

use crate::plan_common::{origin, recording, small, work_out};
use rackpool_core::addr::RackId;
use rackpool_core::placement::{Choice, RecordedEvent, ReplayError, Window};
use rackpool_rack::live::{RecordLine, Recording, RecordingError, Report};
use rackpool_rack::plan;
use std::path::Path;

const CHOICES: [Choice; 5] = [
    Choice::Random,
    Choice::LeastLoaded,
    Choice::RoundRobin,
    Choice::SmartIdle(Window::PerChoice),
    Choice::Even(Window::Ms(10)),
];

fn read(text: &str) -> Result<Recording, RecordingError> {
    Recording::read(Path::new("seen.jsonl"), text)
}

#[test]
fn where_the_simulator_knows_the_memory_its_prediction_is_what_the_pool_did() {
    for choice in CHOICES {
        let recording = read(&recording(choice, 60)).unwrap();
        assert_eq!(recording.picks, 60);
        let report = Report::of(&recording);
        assert_eq!((report.choices, report.refused), (60, [0, 0]));
        for row in &report.racks {
            assert_eq!(row.choices[0], row.choices[1], "{choice:?}: {report:?}");
            assert_eq!(Some(row.used_bytes.0), row.used_bytes.1, "{choice:?}: {report:?}");
        }
        assert_eq!(report.policies.len(), 5);
        let spread = |row: &rackpool_rack::live::PolicyRow| row.most_bytes - row.least_bytes;
        let least = report.policies.iter().find(|row| row.choice == "least-loaded").unwrap();
        assert!(report.policies.iter().all(|row| spread(row) >= spread(least)), "{report:?}");
    }
}

#[test]
fn a_planted_difference_is_found_with_its_line() {
    let text = recording(Choice::SmartIdle(Window::PerChoice), 20);
    let lines: Vec<&str> = text.lines().collect();
    let number = lines.iter().rposition(|line| line.contains("\"pick\"")).unwrap();
    let RecordLine::Entry(RecordedEvent::Pick(mut pick)) =
        serde_json::from_str(lines[number]).unwrap()
    else {
        panic!("it is a pick")
    };
    pick.chosen = pick.chosen.map(|rack| RackId((rack.0 + 1) % 4));
    let other = RecordLine::Entry(RecordedEvent::Pick(pick)).to_text();
    let changed = text.replace(&format!("{}\n", lines[number]), &other);
    let error = read(&changed).unwrap_err();
    let RecordingError::Placement { line, error, .. } = error else { panic!("{error}") };
    assert_eq!(line, number + 1);
    assert!(matches!(error, ReplayError::Chosen { pick: 20, .. }), "{error}");
}

#[test]
fn what_is_no_recording_is_refused_with_line_and_reason() {
    let text = recording(Choice::RoundRobin, 3);
    let header = text.lines().next().unwrap().to_owned();
    for (text, line, reason) in [
        (String::new(), 1, "EOF"),
        ("{\"schema\": 3}\n".into(), 1, "unknown variant"),
        (text.replace("recording/1", "recording/9"), 1, "header of rackpool-recording/1"),
        (format!("{header}\n{header}\n"), 2, "second header"),
        (format!("{header}\nnonsense\n"), 2, "expected"),
    ] {
        let error = read(&text).unwrap_err();
        let RecordingError::Line { line: at, reason: said, .. } = &error else { panic!("{error}") };
        assert!(*at == line && said.contains(reason), "{error}");
    }
    let error = read(&header).unwrap_err();
    assert!(matches!(error, RecordingError::Nothing(_)), "{error}");
    let rest: String =
        text.lines().filter(|line| !line.contains("chooser")).collect::<Vec<_>>().join("\n");
    let error = read(&rest).unwrap_err().to_string();
    assert!(error.contains("does not begin with a chooser"), "{error}");
    let error = Recording::open(Path::new("/none/such.jsonl")).unwrap_err().to_string();
    assert!(error.contains("/none/such.jsonl"), "{error}");
}

#[test]
fn a_plan_that_names_a_recording_shows_prediction_beside_live() {
    let name = format!("rackpool-live-{}.jsonl", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, recording(Choice::Even(Window::PerChoice), 12)).unwrap();
    let text = format!("{}\n[live]\nrecording = {:?}\n", small("much"), path.display());
    let (question, answer) = work_out(&text, 2);
    std::fs::remove_file(&path).unwrap();
    let summary = plan::json(&question, &answer, &origin(&text));
    assert_eq!(summary["live"]["choices_replayed"], 12);
    assert_eq!(summary["live"]["racks"].as_array().unwrap().len(), 4);
    let page = plan::page(&question, &answer, &origin(&text));
    assert!(page.contains("id=\"table-live\"") && page.contains("id=\"table-live-policies\""));
    let gone = rackpool_rack::plan::Plan::from_toml(&text).unwrap();
    let error =
        crate::plan_common::with(1, |progress| plan::work_out(&gone, progress)).unwrap_err();
    assert!(error.to_string().contains("rackpool-live-"), "{error}");
}
