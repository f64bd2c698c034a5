//! The planner: what it advises, that its claims hold, that threads change nothing, and what it
//! says about a file that cannot be meant.

use crate::plan_common::{SMALL, changed, origin, small, with, work_out};
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
fn much_stranding_is_answered_with_a_plan_and_other_seeds_confirm_its_claim() {
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
    let text = small("much").replacen("p99_max = \"600 ns\"", "p99_max = \"20 ns\"", 1);
    let (_, answer) = work_out(&text, 2);
    assert!(!answer.verdict.pool);
    assert!(answer.verdict.text.contains("none of the 6 designs"), "{}", answer.verdict.text);
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
        ("\"600 ns\"", "\"2 GiB\"", "goals.p99_max", "none of a time"),
        ("memory = \"512 GiB\"", "memory = \"-512 GiB\"", "machines.memory", "negative"),
        ("memory = \"512 GiB\"", "memory = 512", "machines.memory", "string"),
        ("count = 64", "count = -64", "machines.count", "-64"),
        ("count = 64", "count = 63", "sweep.pod_machines.0", "multiple"),
        ("seeds = 10 ", "seeds = 3 ", "run.seeds", "from 10"),
        ("amount = 5.00", "amount = -5.00", "prices.machine_dram.amount", "not negative"),
        ("amount = 5.00", "amount = 0.0", "prices.machine_dram.amount", "costs nothing"),
        ("amount = 5.00", "amount = 1e308", "prices.machine_dram.amount", "at most"),
        ("amount = 5.00", "amount = nan", "prices.machine_dram.amount", "at most"),
        ("amount = 5.00", "amount = 1e-300", "prices.machine_dram.amount", "costs nothing"),
        ("low = 3.50", "low = 0.0 ", "prices.machine_dram.low", "costs nothing"),
        ("high = 8.00", "high = inf ", "prices.machine_dram.high", "from the amount"),
        ("amount = 900.00", "amount = inf", "tiers.0.prices.pool.amount", "at most"),
        ("date = 2026-11-01\n", "date = 0001-11-01\n", "prices.machine_dram.date", "not before"),
        ("\"15 min\"", "\"5 d\"", "capacity.sample", "longer than the trace"),
        ("days = 4.0", "days = nan", "capacity.trace.made.days", "from 0.1"),
        ("name = \"cxl\"", "name = \"c\\u001b[2J\"", "tiers.0.name", "terminal"),
        ("stagger = \"2 us\"", "stagger = \"9999 d\"", "performance.workloads.0.stagger", "1 h"),
        ("gap_ns = 25", "gap_ns = 99999999999999", "performance.workloads.0.pattern", "an hour"),
        ("pool_channels = 4", "pool_channels = 65", "tiers.0.pool_channels", "from 1 to 64"),
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
        ("source = \"made up\" }", "source = \" \" }", "tiers.0.prices.pool.source", "name where"),
        ("\"alternate+even", "\"alternate+nearest", "sweep.placement", "nearest"),
        ("local_percent = [40, 60]", "local_percent = [40, 100]", "sweep.local_percent.1", "99"),
        ("preset = \"cxl\" ", "preset = \"cxn\" ", "tiers.0.preset", "cxn"),
        ("\"ddr5-4800\"  #", "\"ddr7\"  #", "machines.local_memory", "ddr7"),
        ("gap_ns = 40", "gap_ns = 0", "performance.workloads.1.pattern", "gap_ns"),
        ("local_percent = [40, 60]", "local_percent = [40, 50]", "sweep.local_percent.1", "MiB"),
        ("percentile = 99.0", "percentile = 9.0", "capacity.percentile", "from 50"),
        ("hit_percent = 60.0", "hit_percent = 90.0", "cache.curve", "do not fall"),
        ("step = \"16 GiB\"", "step = \"16 TiB\"", "cache.memories.0.step", "above most"),
        ("hit = \"2 us\"", "hit = \"2 ns\"", "cache.memories.1.hit", "sort"),
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
fn a_price_of_later_than_today_is_refused_with_its_line() {
    let text =
        changed(&[("2026-11-01, source = \"made up: old", "2999-01-01, source = \"made up: old")]);
    let question = Plan::from_toml(&text).unwrap();
    let error = question.check_dates(&text, "2026-11-26").unwrap_err().to_string();
    assert!(error.contains("`tiers.2.prices.pool_dram.date`: 2999-01-01; today is"), "{error}");
    let example = Plan::from_toml(plan::EXAMPLE).unwrap();
    example.check_dates(plan::EXAMPLE, "2026-11-01").unwrap();
    assert!(example.check_dates(plan::EXAMPLE, "2026-10-31").is_err());
}

#[test]
fn a_table_of_virtual_machines_shorter_than_a_sample_or_of_too_many_samples_is_refused() {
    let name = format!("rackpool-plan-samples-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let (vms, types) = (dir.join("vm.csv"), dir.join("vmType.csv"));
    std::fs::write(&types, "vmTypeId,machineId,core,memory,hdd,ssd,nic\n0,0,0.5,0.5,0,0,0\n")
        .unwrap();
    for (last, reason) in [("0.001", "longer than the trace"), ("900000", "take a longer one")] {
        let rows = format!("0,0,0,0,0,\n1,0,0,0,{last},\n");
        let head = "vmId,tenantId,vmTypeId,priority,starttime,endtime\n";
        std::fs::write(&vms, head.to_owned() + &rows).unwrap();
        let files =
            format!("trace.files = {{ vms = {vms:?}, types = {types:?}, machine_kind = 0 }}");
        let made = "trace.made = { stranding = \"much\", days = 4.0 }";
        let question = Plan::from_toml(&changed(&[(made, &files)])).unwrap();
        let error = with(2, |progress| plan::work_out(&question, progress)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What may be missing from an answer: it is not asked for, or there is none.
const EMPTY: [&str; 8] = [
    "at",
    "blast_machines_max",
    "claim",
    "link_gbytes_per_s",
    "live",
    "mean_max",
    "point",
    "preset",
];

/// A number that is none is written as null.
fn look_for_nulls(value: &serde_json::Value) {
    match value {
        serde_json::Value::Array(all) => all.iter().for_each(look_for_nulls),
        serde_json::Value::Object(all) => {
            for (name, one) in all {
                let unsaid = EMPTY.contains(&name.as_str())
                    || all.contains_key("amount") && ["low", "high"].contains(&name.as_str());
                assert!(!one.is_null() || unsaid, "`{name}` is null in {value}");
                look_for_nulls(one);
            }
        }
        _ => {}
    }
}

#[test]
fn every_number_of_an_answer_is_one_also_at_the_ends_of_what_is_accepted() {
    for changes in [
        &[("amount = 900.00", "amount = 0.0"), ("amount = 40.00", "amount = 0.0")][..],
        &[
            ("amount = 5.00", "amount = 1e-5"),
            ("low = 3.50", "low = 2e-6"),
            ("high = 8.00", "high = 1e9"),
        ],
        &[("amount = 900.00", "amount = 1e9")],
        &[
            ("percentile = 99.0", "percentile = 100.0"),
            ("confidence_percent = 95.0", "confidence_percent = 99.9"),
        ],
        &[("\"15 min\"", "\"4 d\""), ("saving_min_percent = 5.0", "saving_min_percent = 0.0")],
    ] {
        let text = changed(&[SMALL, changes].concat());
        let (question, answer) = work_out(&text, 2);
        let summary = plan::json(&question, &answer, &origin(&text));
        look_for_nulls(&summary);
        let page = plan::page(&question, &answer, &origin(&text));
        for wrong in ["NaN", "inf ", "inf%", "-inf", "inf<"] {
            assert!(!page.contains(wrong), "{changes:?}: {wrong}");
        }
    }
}

#[test]
fn microseconds_and_nanoseconds_lead_to_different_plans() {
    // What costs less is 110 ns away, or 1.81 us, and nothing else of the plan differs.
    let of = |preset: &str, goal: &str| {
        let preset = format!("preset = {preset:?}\npool_memory = \"ddr4");
        let goal = format!("p99_max = {goal:?}");
        let changes = [
            ("preset = \"rdma\"\npool_memory = \"ddr4", preset.as_str()),
            ("p99_max = \"600 ns\"", goal.as_str()),
        ];
        let text = changed(&[SMALL, &changes].concat());
        let (question, answer) = work_out(&text, 2);
        let best = &answer.points[answer.verdict.best.unwrap()];
        let facts = question.tier_facts();
        let network = facts.iter().find(|one| one.tier == "network").unwrap();
        (question.tiers[best.design.tier].name.clone(), answer.verdict.pool, network.round_trip_ns)
    };
    let (tier, pool, round_trip_ns) = of("corrected", "600 ns");
    assert!(pool && tier == "network" && (109.0..111.0).contains(&round_trip_ns), "{tier}");
    let (tier, pool, round_trip_ns) = of("rdma", "600 ns");
    assert!(pool && tier != "network" && (1809.0..1811.0).contains(&round_trip_ns), "{tier}");
    // A bound of microseconds allows the network.
    assert_eq!(of("rdma", "20 us").0, "network");
}

#[test]
fn every_tier_says_what_it_takes_and_carries_and_by_which_source() {
    let text = small("much");
    let (question, answer) = work_out(&text, 2);
    let page = plan::page(&question, &answer, &origin(&text));
    let summary = plan::json(&question, &answer, &origin(&text));
    let facts = question.tier_facts();
    let names: Vec<&str> = facts.iter().map(|one| one.tier.as_str()).collect();
    assert_eq!(names, ["own", "cxl", "direct", "network"]);
    for (index, one) in facts.iter().enumerate() {
        assert!(one.memory_ns > 20.0 && one.memory_gbytes_per_s > 10.0, "{one:?}");
        assert!(page.contains(&one.source.replace('\'', "&#39;")), "{}", one.source);
        assert_eq!(summary["tiers"][index]["source"], one.source);
    }
    let [own, switched, direct, network] = &facts[..] else { panic!() };
    assert!(own.read_ns() < direct.read_ns() && direct.read_ns() < switched.read_ns());
    assert!(network.source.contains("rcmp-testbed"), "{}", network.source);
    assert_eq!(network.link_gbytes_per_s, Some(12.5));
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
    let cache = question.cache.as_ref().unwrap();
    assert!(cache.memories.iter().all(|memory| memory.price.source.contains("made up")));
    let answer = cache.answer();
    let best = answer.best.as_ref().unwrap();
    assert!(answer.alone.iter().flatten().all(|alone| alone.cost > best.cost));
    let text = cache.verdict(&answer, &question.currency);
    assert!(text.starts_with("Cache: 16 GiB of DRAM, 512 GiB of flash for 131 EUR"), "{text}");
}
