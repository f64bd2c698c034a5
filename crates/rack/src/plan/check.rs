//! Whether a plan can be meant.

use super::PlanError;
use super::design::Design;
use super::input::{
    CacheQuestion, DESIGNS_MAX, HitPoint, Plan, Price, SEEDS_MAX, SEEDS_MIN, VmTrace,
};
use super::locate::Document;
use super::units::Span;
use crate::model::config::CHANNELS_MAX;
use crate::model::media::Media;

/// Prices of anything that is bought by the piece or by the GiB, in any currency.
const PRICE_MAX: f64 = 1e9;
/// A price that others are divided by.
const PRICE_MIN: f64 = 1e-6;
/// Prices of before then are slips of the pen.
const YEAR_MIN: u16 = 2000;
/// Machines begin at most so much one after the other.
const STAGGER_MAX: Span = Span(3_600_000_000_000);
/// Most samples of all machines: each is kept, for each seed.
const SAMPLES_MAX: u64 = 1 << 27;
/// Memories of a cache, and splits of it that are looked at.
const MEMORIES_MAX: usize = 4;
const SPLITS_MAX: u64 = 1 << 18;
const NO_WORDS: &str = "it has characters that control a terminal";

type Checked = Result<(), PlanError>;

impl Plan {
    pub(super) fn check(&self, at: &Document<'_>) -> Checked {
        self.check_run(at)?;
        self.check_machines(at)?;
        self.check_capacity(at)?;
        self.check_sweep(at)?;
        self.check_prices(at)?;
        self.cache.as_ref().map_or(Ok(()), |cache| cache.check(at))?;
        self.check_performance(at)
    }

    fn check_run(&self, at: &Document<'_>) -> Checked {
        let (run, goals) = (&self.run, &self.goals);
        self.check_words(at)?;
        if !(SEEDS_MIN..=SEEDS_MAX).contains(&run.seeds) {
            let reason = format!("{}; from {SEEDS_MIN} to {SEEDS_MAX} can be", run.seeds);
            return Err(at.wrong("run.seeds", reason));
        }
        if !(50.0..=99.9).contains(&run.confidence_percent) {
            return Err(at.wrong("run.confidence_percent", "from 50 to 99.9"));
        }
        if goals.p99_max.0 == 0 {
            return Err(at.wrong("goals.p99_max", "not 0"));
        }
        if !(0.0..=100.0).contains(&goals.saving_min_percent) {
            return Err(at.wrong("goals.saving_min_percent", "from 0 to 100"));
        }
        Ok(())
    }

    /// What is shown to people: on a terminal too.
    fn check_words(&self, at: &Document<'_>) -> Checked {
        let mut all =
            vec![("name".to_owned(), &self.name), ("currency".to_owned(), &self.currency)];
        for (index, tier) in self.tiers.iter().enumerate() {
            all.push((format!("tiers.{index}.name"), &tier.name));
        }
        for (index, job) in self.performance.workloads.iter().enumerate() {
            all.push((format!("performance.workloads.{index}.name"), &job.name));
        }
        match all.iter().find(|(_, text)| !is_shown(text)) {
            Some((field, _)) => Err(at.wrong(field, NO_WORDS)),
            None => Ok(()),
        }
    }

    fn check_machines(&self, at: &Document<'_>) -> Checked {
        let machines = &self.machines;
        if !(1..=100_000).contains(&machines.count) {
            return Err(at.wrong("machines.count", "from 1 to 100000"));
        }
        if machines.memory.mib() == 0 {
            return Err(at.wrong("machines.memory", "1 MiB at least"));
        }
        if machines.memory_step.mib() == 0 || machines.memory_step > machines.memory {
            return Err(at.wrong("machines.memory_step", "from 1 MiB to machines.memory"));
        }
        if let Err(error) = Media::new(&machines.local_memory, "local_memory") {
            return Err(at.wrong("machines.local_memory", error.to_string()));
        }
        if !(1..=CHANNELS_MAX).contains(&machines.local_channels) {
            return Err(at.wrong("machines.local_channels", format!("from 1 to {CHANNELS_MAX}")));
        }
        Ok(())
    }

    fn check_capacity(&self, at: &Document<'_>) -> Checked {
        let capacity = &self.capacity;
        if let VmTrace::Made { days, .. } = capacity.trace
            && !(0.1..=1000.0).contains(&days)
        {
            return Err(at.wrong("capacity.trace.made.days", "from 0.1 to 1000"));
        }
        if capacity.sample.0 < 60_000_000_000 {
            return Err(at.wrong("capacity.sample", "1 min at least"));
        }
        if let VmTrace::Made { days, .. } = capacity.trace
            && let Err(reason) = self.samples(days)
        {
            return Err(at.wrong("capacity.sample", reason));
        }
        if !(50.0..=100.0).contains(&capacity.percentile) {
            return Err(at.wrong("capacity.percentile", "from 50 to 100"));
        }
        if capacity.slice.mib() == 0 {
            return Err(at.wrong("capacity.slice", "1 MiB at least"));
        }
        if capacity.pool_step.mib() == 0 {
            return Err(at.wrong("capacity.pool_step", "1 MiB at least"));
        }
        Ok(())
    }

    /// How many samples a trace of so many days has; a sentence if that makes no sense.
    pub(super) fn samples(&self, days: f64) -> Result<u64, String> {
        let sample = self.capacity.sample;
        let count = (days * 86_400e9 / sample.0 as f64).floor();
        if count < 1.0 {
            return Err(format!("{sample} is longer than the trace, {days} days"));
        }
        let (machines, most) = (f64::from(self.machines.count), SAMPLES_MAX as f64);
        if count * machines > most {
            return Err(format!(
                "{count} samples of {machines} machines in {days} days are more than {most}; \
                 take a longer one"
            ));
        }
        Ok(count as u64)
    }

    fn check_sweep(&self, at: &Document<'_>) -> Checked {
        let sweep = &self.sweep;
        let lists = [
            ("sweep.pod_machines", sweep.pod_machines.len()),
            ("sweep.pools", sweep.pools.len()),
            ("sweep.links", sweep.links.len()),
            ("sweep.local_percent", sweep.local_percent.len()),
            ("sweep.placement", sweep.placement.len()),
            ("tiers", self.tiers.len()),
        ];
        if let Some((field, _)) = lists.iter().find(|(_, length)| *length == 0) {
            return Err(at.wrong(field, "one at least"));
        }
        if lists.iter().map(|(_, length)| length).product::<usize>() > DESIGNS_MAX {
            return Err(at.wrong("sweep", format!("more than {DESIGNS_MAX} designs")));
        }
        let count = self.machines.count;
        for (index, pod) in sweep.pod_machines.iter().enumerate() {
            if *pod == 0 || u32::from(*pod) > count || !count.is_multiple_of(u32::from(*pod)) {
                let reason = format!("{pod}: machines.count, {count}, is not a multiple of it");
                return Err(at.wrong(&format!("sweep.pod_machines.{index}"), reason));
            }
        }
        for (field, list) in [("pools", &sweep.pools), ("links", &sweep.links)] {
            if let Some(index) = list.iter().position(|number| !(1..=64).contains(number)) {
                return Err(at.wrong(&format!("sweep.{field}.{index}"), "from 1 to 64"));
            }
        }
        if let Some(index) = sweep.local_percent.iter().position(|it| !(1..=99).contains(it)) {
            let reason = "from 1 to 99; all local is always among what is compared";
            return Err(at.wrong(&format!("sweep.local_percent.{index}"), reason));
        }
        let footprint_mib = self.performance.footprint.mib();
        let whole = |percent: &u32| (footprint_mib * u64::from(*percent)).is_multiple_of(100);
        if let Some(index) = sweep.local_percent.iter().position(|percent| !whole(percent)) {
            let (percent, footprint) = (sweep.local_percent[index], self.performance.footprint);
            let reason =
                format!("{percent} % of performance.footprint, {footprint}, is no whole MiB");
            return Err(at.wrong(&format!("sweep.local_percent.{index}"), reason));
        }
        Ok(())
    }

    fn check_prices(&self, at: &Document<'_>) -> Checked {
        check_machine_price(at, &self.prices.machine_dram)?;
        check_price(at, "prices.machine_dram", &self.prices.machine_dram, "GiB")?;
        for (index, tier) in self.tiers.iter().enumerate() {
            let prices = &tier.prices;
            for (name, price, per) in [
                ("pool_dram", &prices.pool_dram, "GiB"),
                ("pool", &prices.pool, "piece"),
                ("link", &prices.link, "piece"),
                ("switch_port", &prices.switch_port, "piece"),
            ] {
                check_price(at, &format!("tiers.{index}.prices.{name}"), price, per)?;
            }
            if let Err(error) = Media::new(&tier.pool_memory, "pool_memory") {
                return Err(at.wrong(&format!("tiers.{index}.pool_memory"), error.to_string()));
            }
            if !(1..=CHANNELS_MAX).contains(&tier.pool_channels) {
                let field = format!("tiers.{index}.pool_channels");
                return Err(at.wrong(&field, format!("from 1 to {CHANNELS_MAX}")));
            }
            if self.tiers[..index].iter().any(|other| other.name == tier.name) {
                return Err(at.wrong(&format!("tiers.{index}.name"), "two tiers of one name"));
            }
        }
        Ok(())
    }

    fn check_performance(&self, at: &Document<'_>) -> Checked {
        let performance = &self.performance;
        if performance.footprint.mib() == 0 || !performance.footprint.0.is_multiple_of(1 << 20) {
            return Err(at.wrong("performance.footprint", "whole MiB, 1 at least"));
        }
        if performance.workloads.is_empty() {
            return Err(at.wrong("performance.workloads", "one at least"));
        }
        for (index, job) in performance.workloads.iter().enumerate() {
            if job.stagger > STAGGER_MAX {
                let field = format!("performance.workloads.{index}.stagger");
                return Err(at.wrong(&field, format!("{STAGGER_MAX} at most")));
            }
            if let Some(problem) = job.pattern.problem() {
                let field = format!("performance.workloads.{index}.pattern");
                return Err(at.wrong(&field, problem));
            }
        }
        for design in Design::all(self) {
            if let Err(error) = design.config(self, self.run.first_seed).check() {
                return Err(at.wrong("performance", format!("{}: {error}", design.label(self))));
            }
        }
        Ok(())
    }
}

impl CacheQuestion {
    fn check(&self, at: &Document<'_>) -> Checked {
        let is_percent = |value: f64| (0.0..=100.0).contains(&value);
        let rises = |pair: &[HitPoint]| {
            pair[0].size < pair[1].size && pair[0].hit_percent <= pair[1].hit_percent
        };
        let percents = self.curve.iter().all(|point| is_percent(point.hit_percent));
        if self.curve.is_empty() || !percents || !self.curve.windows(2).all(rises) {
            let reason = "points of rising size, of hits from 0 to 100 that do not fall";
            return Err(at.wrong("cache.curve", reason));
        }
        let goals = [
            ("cache.hit_min_percent", self.hit_min_percent),
            ("cache.warm_min_percent", self.warm_min_percent),
        ];
        if let Some((field, _)) = goals.into_iter().find(|(_, value)| !is_percent(*value)) {
            return Err(at.wrong(field, "from 0 to 100"));
        }
        if !(1..=MEMORIES_MAX).contains(&self.memories.len()) {
            return Err(at.wrong("cache.memories", format!("from 1 to {MEMORIES_MAX}")));
        }
        for (index, memory) in self.memories.iter().enumerate() {
            let field = |name: &str| format!("cache.memories.{index}.{name}");
            if memory.step.0 == 0 || memory.step > memory.most {
                return Err(at.wrong(&field("step"), "not 0, and not above most"));
            }
            if !is_shown(&memory.name) {
                return Err(at.wrong(&field("name"), NO_WORDS));
            }
            if index > 0 && memory.hit < self.memories[index - 1].hit {
                return Err(at.wrong(&field("hit"), "faster than the memory before; sort them"));
            }
            check_price(at, &field("price"), &memory.price, "GiB")?;
        }
        let count = self.memories.iter().try_fold(1_u64, |count, memory| {
            count.checked_mul(memory.steps() + 1).filter(|count| *count <= SPLITS_MAX)
        });
        match count {
            Some(_) => Ok(()),
            None => {
                let reason = format!("more than {SPLITS_MAX} splits; take larger steps");
                Err(at.wrong("cache.memories", reason))
            }
        }
    }
}

/// What is saved is a part of what machines' memory costs.
fn check_machine_price(at: &Document<'_>, price: &Price) -> Checked {
    for (name, value) in [("amount", price.amount), ("low", price.range().0)] {
        if (0.0..PRICE_MIN).contains(&value) {
            let reason = format!(
                "{value:?}; at least {PRICE_MIN:?}: where machines' memory costs nothing, no pool \
                 can save anything. Write what it costs to buy"
            );
            return Err(at.wrong(&format!("prices.machine_dram.{name}"), reason));
        }
    }
    Ok(())
}

fn is_shown(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn check_price(at: &Document<'_>, field: &str, price: &Price, per: &str) -> Checked {
    let wrong = |name: &str, reason: String| Err(at.wrong(&format!("{field}.{name}"), reason));
    let (low, high) = price.range();
    if price.per != per {
        return wrong("per", format!("\"{}\"; this price is per \"{per}\"", price.per));
    }
    if !(0.0..=PRICE_MAX).contains(&price.amount) {
        let reason = format!("{:?}; a price is not negative, at most {PRICE_MAX:?}", price.amount);
        return wrong("amount", reason);
    }
    match price.date.date {
        None => return wrong("date", format!("{}; year, month and day are wanted", price.date)),
        Some(date) if date.year < YEAR_MIN => {
            return wrong("date", format!("{}; not before {YEAR_MIN}", price.date));
        }
        Some(_) => {}
    }
    if price.source.trim().is_empty() {
        return wrong("source", "name where the price comes from".to_owned());
    }
    if !is_shown(&price.source) {
        return wrong("source", NO_WORDS.to_owned());
    }
    if !(0.0..=price.amount).contains(&low) {
        return wrong("low", format!("{low}; from 0 to the amount"));
    }
    if !(price.amount..=PRICE_MAX.max(1.2 * price.amount)).contains(&high) {
        return wrong("high", format!("{high:?}; from the amount to {PRICE_MAX:?}"));
    }
    Ok(())
}
