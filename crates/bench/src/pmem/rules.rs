//! The four rules of the guide to persistent memory in the model of
//! [`crate::optane`], each without and with it. Nothing is measured on memory of this machine.

use crate::optane::rules::{self, GuideRule};
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{Progress, Size, Steps};

/// What a row's number comes from.
const ORIGIN: &str = "model";

/// Runs the rules. Their constants are those of `repro optane`; none was set by a rule.
pub fn run_rules(size: Size, progress: &mut dyn FnMut(Progress)) -> Report {
    let mut steps = Steps::new(2, progress);
    let rules = rules::run(size, &mut |what| steps.begin(what));
    steps.end();
    let mut report = Report::here(Kind::Simulated);
    report.extra.insert("size".into(), size.name().into());
    report.results = rules.iter().map(|rule| rule_row(rule, ORIGIN)).collect();
    report
}

/// A rule as a result, from where `origin` says.
pub fn rule_row(rule: &GuideRule, origin: &str) -> Row {
    let row = Row::new(rule.name, rule.unit, Better::Higher, rule.with)
        .with("origin", origin)
        .with("what", rule.what.clone())
        .with("without", rule.without)
        .with("holds_if", rule.holds_if)
        .with("as_stated", rule.holds);
    match rule.paper {
        Some(value) => row.against(Reference::Paper(value)),
        None => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_row_that_says_what_it_gives() {
        let mut told = Vec::new();
        let report = run_rules(Size::Smoke, &mut |progress| told.push(progress.name));
        let names: Vec<&str> = report.results.iter().map(|row| &*row.name).collect();
        let rules = ["rule_i", "rule_ii", "rule_ii_bandwidth", "rule_ii_latency"];
        assert_eq!(names[..4], rules);
        assert_eq!(names[4..], ["rule_iii_ni", "rule_iii_i", "rule_iv"]);
        assert!(report.results.iter().all(|row| row.extra["origin"] == ORIGIN));
        let [small, large] = [0, 1].map(|index| &report.results[index]);
        assert!(small.ours > small.extra["without"].as_f64().unwrap(), "{small:?}");
        assert_eq!(large.paper, Some(13.45));
        assert_eq!(told, ["figure 12", "the four rules", ""]);
    }
}
