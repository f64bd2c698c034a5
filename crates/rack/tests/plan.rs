//! The planner: what it advises, that its claims hold, that threads change nothing, and what it
//! says about a file that cannot be meant.

mod plan_common;

use plan_common::{changed, origin, small, with, work_out};
use rackpool_rack::plan::{self, Plan, PlanError};

#[test]
fn little_stranding_is_answered_with_do_not_pool_and_figures() {
    let (_, answer) = work_out(&small("little"), 2);
    let verdict = &answer.verdict;
    assert!(!verdict.pool && verdict.text.starts_with("Do not pool: "), "{}", verdict.text);
    assert!(verdict.text.contains("% of the memory is stranded"), "{}", verdict.text);
    assert!(answer.baseline.stranded_percent.high < 5.0, "{:?}", answer.baseline);
    assert!(answer.claim.is_none() && answer.checks.is_empty());
}

#[test]
fn much_stranding_is_answered_with_a_plan_whose_claim_other_seeds_confirm() {
    let (question, answer) = work_out(&small("much"), 2);
    let verdict = &answer.verdict;
    assert!(verdict.pool && verdict.text.starts_with("Pool: "), "{}", verdict.text);
    let best = &answer.points[verdict.best.unwrap()];
    assert!(best.saving_percent.low >= question.goals.saving_min_percent);
    assert!(best.latency[2].high <= question.goals.p99_max.0 as f64);
    assert!(answer.baseline.stranded_percent.low > 10.0, "{:?}", answer.baseline);
    // As the report says, and with seeds that neither plan nor report have seen.
    assert_eq!(answer.checks.len(), 4);
    let again = with(2, |progress| plan::confirm(&question, &answer, 1_000, progress)).unwrap();
    for check in answer.checks.iter().chain(&again) {
        assert!(check.holds, "{check:?}");
    }
}

#[test]
fn a_goal_that_no_design_meets_is_answered_with_do_not_pool() {
    let text = small("much").replacen("p99_max = \"2 us\"", "p99_max = \"20 ns\"", 1);
    let (_, answer) = work_out(&text, 2);
    assert!(!answer.verdict.pool);
    assert!(answer.verdict.text.contains("none of the 4 designs"), "{}", answer.verdict.text);
}

#[test]
fn one_thread_and_two_give_the_same_files() {
    let text = small("much");
    let files = |threads: usize| {
        let (question, answer) = work_out(&text, threads);
        let origin = origin(&text);
        let mut samples = Vec::new();
        plan::write_samples(&answer, &origin.pairs(&answer), &mut samples).unwrap();
        let summary = plan::json(&question, &answer, &origin).to_string();
        (summary, plan::page(&question, &answer, &origin), samples)
    };
    let (one, two) = (files(1), files(2));
    assert!(one.0 == two.0 && one.1 == two.1 && one.2 == two.2);
    let summary: serde_json::Value = serde_json::from_str(&one.0).unwrap();
    for field in ["schema", "git_revision", "trace_hash", "plan_hash", "seed", "preset"] {
        assert!(!summary[field].is_null(), "{field}");
    }
    assert_eq!(summary["calibration"], "uncalibrated");
    assert_eq!(&one.2[..4], b"PAR1");
}

#[test]
fn costs_add_up_and_nothing_is_saved_at_a_break_even_price() {
    let text = small("much");
    let (question, answer) = work_out(&text, 2);
    let best = &answer.points[answer.verdict.best.unwrap()];
    let sum: f64 = best.cost.parts().iter().sum();
    assert!((sum - best.cost.sum()).abs() < 1e-9);
    let pool = answer.break_even.iter().find(|one| one.what == "pool memory").unwrap();
    let (at, machines) = (pool.at.unwrap(), f64::from(best.design.pod_machines));
    let gib = f64::from(best.pools_bought) * best.pool_mib as f64 / 1024.0 / machines;
    let there = best.cost.sum() + gib * (at - pool.amount);
    assert!((there / answer.baseline.cost - 1.0).abs() < 1e-9, "{there}");
    assert!(!pool.saves_above && question.currency == "EUR");
    let widths = answer.swings.iter().map(|one| one.saving_percent[1] - one.saving_percent[0]);
    let widths: Vec<f64> = widths.map(f64::abs).collect();
    assert!(widths.is_sorted_by(|a, b| a >= b) && widths.len() == 7, "{widths:?}");
}

#[test]
fn what_cannot_be_meant_is_answered_with_line_field_and_reason() {
    for (from, to, field, reason) in [
        ("[run]\n", "[run]\nseads = 3\n", "run.seads", "unknown field"),
        ("memory = \"512 GiB\"", "memory = \"512 ns\"", "machines.memory", "none of a size"),
        ("\"2 us\"", "\"2 GiB\"", "goals.p99_max", "none of a time"),
        ("memory = \"512 GiB\"", "memory = \"-512 GiB\"", "machines.memory", "negative"),
        ("memory = \"512 GiB\"", "memory = 512", "machines.memory", "string"),
        ("count = 64", "count = -64", "machines.count", "-64"),
        ("count = 64", "count = 63", "sweep.pod_machines.0", "multiple"),
        ("seeds = 10 ", "seeds = 3 ", "run.seeds", "from 10"),
        ("amount = 5.00", "amount = -5.00", "prices.machine_dram.amount", "not negative"),
        ("per = \"GiB\"\n", "per = \"TiB\"\n", "prices.machine_dram.per", "per \"GiB\""),
        ("date = 2026-11-01\n", "", "prices.machine_dram.date", "missing field"),
        ("date = 2026-11-01\n", "date = 10:00:00\n", "prices.machine_dram.date", "year"),
        (
            "900.00, per = \"piece\", date = 2026-11-01,",
            "900.00, per = \"piece\",",
            "tiers.0.prices.pool.date",
            "missing field",
        ),
        ("source = \"made up for this example\"\n", "", "prices.machine_dram.source", "missing"),
        ("source = \"made up\" }", "source = \" \" }", "tiers.0.prices.pool.source", "who"),
        ("\"alternate+even", "\"alternate+nearest", "sweep.placement", "nearest"),
        ("local_percent = [40, 60]", "local_percent = [40, 100]", "sweep.local_percent.1", "99"),
        ("preset = \"cxl\" ", "preset = \"cxn\" ", "tiers.0.preset", "cxn"),
        ("\"ddr5-4800\"  #", "\"ddr7\"  #", "machines.local_memory", "ddr7"),
        ("gap_ns = 40", "gap_ns = 0", "performance.workloads.1.pattern", "gap_ns"),
        ("local_percent = [40, 60]", "local_percent = [40, 50]", "sweep.local_percent.1", "MiB"),
        ("percentile = 99.0", "percentile = 9.0", "capacity.percentile", "from 50"),
        ("[sweep] ", "[sweep", "[sweep", ""),
    ] {
        let text = changed(&[(from, to)]);
        let error = Plan::from_toml(&text).expect_err(to);
        let PlanError::Field { line, field: named, reason: said } = &error else {
            panic!("{to}: {error}")
        };
        assert_eq!(named, field, "{to:?}: {error}");
        assert!(said.contains(reason), "{to:?}: {error}");
        // The line is the changed one; of what is missing it is where its table begins.
        let same = |(ours, example): (&str, &str)| ours == example;
        let first = text.lines().zip(plan::EXAMPLE.lines()).take_while(|it| same(*it)).count() + 1;
        let far = first.abs_diff(*line);
        assert!(
            far <= if reason.starts_with("missing") { 5 } else { 1 }
                || field == "sweep.pod_machines.0",
            "{to:?}: line {line}, changed {first}: {error}"
        );
    }
}

#[test]
fn the_example_runs_as_it_is_and_says_that_its_prices_are_made_up() {
    let question = Plan::from_toml(plan::EXAMPLE).unwrap();
    assert_eq!(question.run.seeds, 10);
    assert!(question.prices.machine_dram.source.contains("made up"));
    for tier in &question.tiers {
        let prices = &tier.prices;
        for price in [&prices.pool_dram, &prices.pool, &prices.link, &prices.switch_port] {
            assert!(price.source.contains("made up"), "{}", price.source);
        }
    }
}
