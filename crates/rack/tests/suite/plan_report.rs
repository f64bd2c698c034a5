//! The planner's report in a browser: every section, chart and table is there, nothing is wider
//! than a phone, and no script fails. Needs Debian's package chromium; where it is not there the
//! test says so, and in continuous integration it fails.

use crate::plan_common::{origin, recording, small, work_out};
use rackpool_core::placement::Choice;
use rackpool_rack::plan;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SECTIONS: [&str; 12] = [
    "cache",
    "recommendation",
    "stranding",
    "blast",
    "designs",
    "pareto",
    "latency",
    "sensitivity",
    "confirmation",
    "live",
    "prices",
    "origin",
];
const CHARTS: [&str; 5] =
    ["chart-pareto", "chart-cost", "chart-saving", "chart-latency", "chart-tornado"];
const TABLES: [&str; 12] = [
    "table-cache",
    "table-stranding",
    "table-blast",
    "table-designs",
    "table-latencies",
    "table-tiers",
    "table-sensitivity",
    "table-break-even",
    "table-checks",
    "table-live",
    "table-live-policies",
    "table-prices",
];

/// What does harm if it is taken for more than text.
const INJECTED: &str = "\"'><script>window.evil=1</script></text></svg><!--]]>&lt;";

#[test]
fn no_string_of_a_plan_is_more_than_text_on_its_page() {
    let text = small("much");
    let (mut question, answer) = work_out(&text, 2);
    let word = || INJECTED.to_owned();
    (question.name, question.currency) = (word(), word());
    question.machines.local_memory = "constant:90:20".to_owned();
    for tier in &mut question.tiers {
        tier.name = word();
        let prices = &mut tier.prices;
        for price in [&mut prices.pool_dram, &mut prices.pool, &mut prices.link] {
            (price.source, price.per) = (word(), word());
        }
    }
    question.performance.workloads.iter_mut().for_each(|job| job.name = word());
    question.capacity.trace =
        plan::VmTrace::Files { vms: word().into(), types: word().into(), machine_kind: 0 };
    // An answer holds words of the plan that it was made of.
    let mut answer = answer;
    answer.verdict.text = word();
    for point in &mut answer.points {
        point.label = word();
        point.fails = vec![word()];
    }
    for swing in &mut answer.swings {
        (swing.what, swing.range) = (word(), [word(), word()]);
    }
    let live = rackpool_rack::live::Report {
        recording_hash: word(),
        placement: word(),
        choices_replayed: 1,
        pages_decided_again: 1,
        choices: 1,
        refused: [0, 0],
        racks: Vec::new(),
        policies: Vec::new(),
    };
    answer.live = Some(live);
    let page = plan::page(&question, &answer, &plan::Origin::new(word(), &text));
    assert!(page.matches("window.evil=1").count() > 60, "it is shown");
    assert_eq!(page.matches("<script>").count(), 1, "the page's own");
    assert!(!page.contains("\"'>") && !page.contains("<!--") && !page.contains("]]>&lt;"));
    // A string of the file comes to the page by the same way.
    let text = text.replacen("currency = \"EUR\"", "currency = \"<b>'\"", 1);
    let (question, answer) = work_out(&text, 2);
    let page = plan::page(&question, &answer, &origin(&text));
    assert!(page.contains("&lt;b&gt;&#39;") && !page.contains("<b>'"));
}

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join("chromium"));
    let found = places.find(|place| place.is_file());
    if found.is_none() {
        let why = "chromium is not installed (cargo xtask deps): the report is NOT tested";
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
        eprintln!("\n********  {why}\n");
    }
    found
}

/// The document after its scripts have run, and what the browser said.
fn dom(browser: &Path, dir: &Path, page: &str, width: u32) -> (String, String) {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--allow-file-access-from-files", "--enable-logging=stderr"]);
    command.args(["--virtual-time-budget=10000", "--dump-dom"]);
    command.arg(format!("--window-size={width},844"));
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    command.arg(format!("file://{}", dir.join(page).display()));
    let output = command.stdin(Stdio::null()).output().expect("the browser runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// A window is 500 wide at least, so a phone is a frame: what is in it is written into the outer
/// document, as text.
const PHONE: &str = "<!doctype html><html><body><iframe id=\"phone\" src=\"report.html\" \
    width=\"390\" height=\"844\" style=\"border:0\"></iframe><script>\
    document.getElementById('phone').onload=function(){\
    var e=this.contentDocument.documentElement,d=document.documentElement.dataset;\
    d.selfCheck=e.dataset.selfCheck;d.width=e.dataset.width;\
    d.scriptError=e.dataset.scriptError||'none'}</script></body></html>";

#[test]
fn the_report_shows_everything_without_an_error_also_at_phone_width() {
    let Some(browser) = chromium() else { return };
    let name = format!("rackpool-plan-report-{}", std::process::id());
    let dir = Dir(std::env::temp_dir().join(name));
    for stranding in ["much", "little"] {
        std::fs::create_dir_all(&dir.0).unwrap();
        let seen = dir.0.join("seen.jsonl");
        std::fs::write(&seen, recording(Choice::RoundRobin, 12)).unwrap();
        let live = format!("\n[live]\nrecording = {:?}\n", seen.display());
        let text = small(stranding) + &live;
        let (question, answer) = work_out(&text, 2);
        let page = plan::page(&question, &answer, &origin(&text));
        std::fs::write(dir.0.join("report.html"), page).unwrap();
        std::fs::write(dir.0.join("phone.html"), PHONE).unwrap();
        let (wide, said) = dom(&browser, &dir.0, "report.html", 1280);
        assert!(!said.contains("CONSOLE"), "{said}");
        assert!(wide.contains("data-self-check=\"ok\""), "{stranding}: {}", head(&wide));
        assert!(!wide.contains("data-script-error"), "{}", head(&wide));
        for section in SECTIONS {
            assert!(wide.contains(&format!("<section id=\"{section}\"><h2>")), "{section}");
        }
        for figure in CHARTS.iter().chain(&TABLES) {
            assert_eq!(wide.matches(&format!(" id=\"{figure}\"")).count(), 1, "{figure}");
        }
        assert_eq!(wide.matches("<figure class=\"chart\"").count(), CHARTS.len());
        assert_eq!(wide.matches("<figure class=\"table\"").count(), TABLES.len());
        assert!(wide.contains("ncalibrated") && !wide.contains("NaN"));
        let (phone, said) = dom(&browser, &dir.0, "phone.html", 1280);
        assert!(!said.contains("CONSOLE"), "{said}");
        for wanted in ["data-self-check=\"ok\"", "data-script-error=\"none\""] {
            assert!(phone.contains(wanted), "{stranding}: no {wanted} in {}", head(&phone));
        }
        // A scroll bar takes some of it.
        let width = head(&phone).split("data-width=\"").nth(1).and_then(|it| it.split('"').next());
        let width: u32 = width.and_then(|width| width.parse().ok()).expect("it was written");
        assert!((360..=390).contains(&width), "{width}");
    }
}

fn head(document: &str) -> &str {
    let from = document.find("<html").unwrap_or(0);
    document[from..].split_inclusive('>').next().unwrap_or_default()
}
