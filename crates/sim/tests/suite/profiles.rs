//! Profile files: the program's own are complete and say where each number comes from; a wrong
//! file is refused with the line that is wrong.

use rackpool_sim::device::{Profile, ProfileError};
use rackpool_sim::time::Ps;

#[test]
fn every_profile_of_the_program_is_complete_and_labelled() {
    let mut calibrated = 0;
    for name in Profile::names() {
        let profile = Profile::load(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(profile.parameters().iter().all(|parameter| parameter.source.len() > 5));
        let word = if profile.calibrated { ": calibrated against " } else { ": uncalibrated (" };
        assert!(profile.label().starts_with(&format!("profile {name}{word}")));
        calibrated += u32::from(profile.calibrated);
    }
    assert_eq!(calibrated, 2);
    let rcmp = Profile::load("rcmp-testbed").unwrap();
    assert_eq!(rcmp.memory.dram_load, Ps(93_000));
    assert_eq!(rcmp.memory.cxl_load_line, Ps(138_500));
    assert_eq!(rcmp.link.bandwidth.fs_per_byte, 80_000);
}

fn edited(from: &str, to: &str) -> (Result<Profile, ProfileError>, usize) {
    let text = include_str!("../../profiles/modern.toml");
    let line = text.lines().position(|line| line.contains(from)).unwrap() + 1;
    (Profile::parse("edited.toml", &text.replacen(from, to, 1)), line)
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let cases = [
        ("dram_load = {", "dram_laod = {", "`memory.dram_laod` is not known"),
        ("[link]", "[lnik]", "`lnik` is not known"),
        ("doorbell = {", "doorbell = { vaule = 1, ", "`pcie.doorbell.vaule` is not known"),
        ("bandwidth = { value = 400", "bandwidth = { value = 0", "0 Gb/s is no possible bandwidth"),
        ("out_read = { value = 150", "out_read = { value = 0", "0 M/s is no possible rate"),
        ("fence = { value = 10", "fence = { value = -10", "not a number of 0 or more"),
        ("fence = { value = 10", "fence = { value = \"10\"", "not a number of 0 or more"),
        (
            "fence = { value = 10, unit = \"ns\"",
            "fence = { value = 10, unit = \"nm\"",
            "use ps, ns",
        ),
        ("retries = { value = 6", "retries = { value = 7", "`rnic.retries`: at most 6"),
        ("calibrated = false", "calibrated = 3", "not true or false"),
        ("name = \"modern\"", "name = \"modern", "edited.toml:4: "),
    ];
    for (from, to, message) in cases {
        let (result, line) = edited(from, to);
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("edited.toml:{line}: ")), "{error} at {line}");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let text = include_str!("../../profiles/modern.toml");
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("fence = ")).collect();
    let error = Profile::parse("short.toml", &without.join("\n")).unwrap_err();
    assert!(
        matches!(&error, ProfileError::Missing { key, .. } if key == "memory.fence"),
        "{error}"
    );
    let silent = |line: &str| match line.split_once("source = ") {
        Some((before, _)) if line.starts_with("fence = ") => format!("{before}source = \" \" }}"),
        _ => line.to_owned(),
    };
    let no_source: Vec<String> = text.lines().map(silent).collect();
    let error = Profile::parse("edited.toml", &no_source.join("\n")).unwrap_err().to_string();
    assert!(error.contains("`memory.fence`: the source is empty"), "{error}");
    let error = Profile::load("no-such-profile").unwrap_err().to_string();
    assert!(error.contains("rcmp-testbed") && error.contains("modern"), "{error}");
}
