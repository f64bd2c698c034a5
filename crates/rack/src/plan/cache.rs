//! A cache over several memories: how much of each to buy, by a curve of hit ratios.
//!
//! In: the hit ratio by size, memories from the fastest to the slowest with their prices, what a
//! miss takes. Out: the cheapest split that meets the goals, and what stands against it: one memory
//! alone, and each cost with the time that it buys.
//!
//! What is asked for most lies in the fastest memory, as with an order of use, so that two memories
//! together hit as often as the curve says of their sum. Nothing is simulated: a hit takes its
//! memory's time, and a miss that of a miss.

use super::input::{CacheQuestion, HitPoint};
use super::units::Size;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheSplit {
    /// Of each memory, in their order.
    pub sizes: Vec<Size>,
    pub hit_percent: f64,
    pub warm_percent: f64,
    pub mean_ns: f64,
    pub cost: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheAnswer {
    /// The cheapest that meets the goals.
    pub best: Option<CacheSplit>,
    /// The same of each memory alone.
    pub alone: Vec<Option<CacheSplit>>,
    /// Splits of which none is both cheaper and faster, the cheapest first.
    pub front: Vec<CacheSplit>,
}

impl CacheQuestion {
    /// The hit ratio of so many bytes, percent.
    fn hit_percent(&self, bytes: u64) -> f64 {
        let mut before = HitPoint { size: Size(0), hit_percent: 0.0 };
        for point in &self.curve {
            if bytes < point.size.0 {
                let part = (bytes - before.size.0) as f64 / (point.size.0 - before.size.0) as f64;
                return before.hit_percent + part * (point.hit_percent - before.hit_percent);
            }
            before = *point;
        }
        before.hit_percent
    }

    fn split(&self, steps: &[u64]) -> CacheSplit {
        let (mut bytes, mut hit, mut warm, mut mean, mut cost) = (0, 0.0, 0.0, 0.0, 0.0);
        let mut sizes = Vec::new();
        for (memory, steps) in self.memories.iter().zip(steps) {
            let size = Size(steps * memory.step.0);
            bytes += size.0;
            let all = self.hit_percent(bytes);
            let share = all - hit;
            hit = all;
            warm += if memory.persists { share } else { 0.0 };
            mean += share / 100.0 * memory.hit.0 as f64;
            cost += size.gib() * memory.price.amount;
            sizes.push(size);
        }
        mean += (1.0 - hit / 100.0) * self.miss.0 as f64;
        CacheSplit { sizes, hit_percent: hit, warm_percent: warm, mean_ns: mean, cost }
    }

    fn meets(&self, split: &CacheSplit) -> bool {
        split.mean_ns <= self.mean_max.0 as f64
            && split.hit_percent >= self.hit_min_percent
            && split.warm_percent >= self.warm_min_percent
    }

    pub fn answer(&self) -> CacheAnswer {
        let count = self.memories.len();
        let mut answer = CacheAnswer { best: None, alone: vec![None; count], front: Vec::new() };
        let mut all = Vec::new();
        let mut steps = vec![0; count];
        loop {
            let split = self.split(&steps);
            if self.meets(&split) {
                keep_cheapest(&mut answer.best, &split);
                let mut bought = (0..count).filter(|&index| steps[index] > 0);
                if let (Some(index), None) = (bought.next(), bought.next()) {
                    keep_cheapest(&mut answer.alone[index], &split);
                }
            }
            all.push(split);
            // Counts up in steps, the last memory first.
            let Some(index) =
                (0..count).rfind(|&index| steps[index] < self.memories[index].steps())
            else {
                break;
            };
            steps[index] += 1;
            steps[index + 1..].fill(0);
        }
        all.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.mean_ns.total_cmp(&b.mean_ns)));
        for split in all {
            if answer.front.last().is_none_or(|last| split.mean_ns < last.mean_ns) {
                answer.front.push(split);
            }
        }
        answer
    }

    /// What is bought of each memory.
    pub(super) fn parts(&self, split: &CacheSplit) -> String {
        let parts = self.memories.iter().zip(&split.sizes).filter(|(_, size)| size.0 > 0);
        let parts: Vec<String> =
            parts.map(|(memory, size)| format!("{size} of {}", memory.name)).collect();
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }

    /// The answer in a sentence.
    pub fn verdict(&self, answer: &CacheAnswer, currency: &str) -> String {
        let Some(best) = &answer.best else {
            return "Cache: no split of these memories meets its goals".to_owned();
        };
        let alone = answer.alone.iter().zip(&self.memories).map(|(alone, memory)| match alone {
            Some(split) => format!("{} alone: {:.0} {currency}", memory.name, split.cost),
            None => format!("{} alone does not do", memory.name),
        });
        let alone = alone.collect::<Vec<_>>().join("; ");
        format!(
            "Cache: {} for {:.0} {currency}: {:.1} % hits, {:.1} % after a loss of power, {:.1} us \
             a get. {alone}",
            self.parts(best),
            best.cost,
            best.hit_percent,
            best.warm_percent,
            best.mean_ns / 1e3
        )
    }
}

fn keep_cheapest(best: &mut Option<CacheSplit>, split: &CacheSplit) {
    if best.as_ref().is_none_or(|best| split.cost < best.cost) {
        *best = Some(split.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::Span;
    use super::*;

    const QUESTION: &str = r#"
        miss = "2 ms"
        mean_max = "150 us"
        curve = [
            { size = "16 GiB", hit_percent = 60.0 },
            { size = "64 GiB", hit_percent = 80.0 },
            { size = "512 GiB", hit_percent = 95.0 },
        ]
        [[memories]]
        name = "DRAM"
        hit = "1 us"
        step = "16 GiB"
        most = "512 GiB"
        price = { amount = 5.0, per = "GiB", date = 2026-11-01, source = "made up" }
        [[memories]]
        name = "CXL"
        hit = "2 us"
        step = "64 GiB"
        most = "512 GiB"
        price = { amount = 3.0, per = "GiB", date = 2026-11-01, source = "made up" }
        [[memories]]
        name = "flash"
        hit = "100 us"
        step = "128 GiB"
        most = "1 TiB"
        persists = true
        price = { amount = 0.1, per = "GiB", date = 2026-11-01, source = "made up" }
    "#;

    #[test]
    fn the_cheapest_split_is_found_and_one_memory_alone_costs_more() {
        let question: CacheQuestion = toml::from_str(QUESTION).unwrap();
        assert_eq!(question.hit_percent(8 << 30), 30.0);
        assert_eq!(question.hit_percent(1 << 40), 95.0);
        let answer = question.answer();
        let best = answer.best.clone().unwrap();
        // 16 GiB of DRAM take 60 % of gets at 1 us, flash the others at 100 us.
        assert_eq!(best.sizes[1], Size(0), "{best:?}");
        assert!(best.sizes[0].0 > 0 && best.sizes[2].0 > 0 && best.mean_ns <= 150_000.0);
        let [dram, cxl, flash] = [0, 1, 2].map(|index| answer.alone[index].clone());
        assert!(dram.unwrap().cost > best.cost && cxl.unwrap().cost > best.cost);
        assert_eq!(flash, None, "a get would take 195 us, with 5 % misses");
        for pair in answer.front.windows(2) {
            assert!(pair[0].cost < pair[1].cost && pair[0].mean_ns > pair[1].mean_ns);
        }
        let text = question.verdict(&answer, "EUR");
        assert!(text.contains("flash alone does not do"), "{text}");
    }

    #[test]
    fn what_has_to_outlive_a_loss_of_power_is_bought_of_memory_that_does() {
        let mut question: CacheQuestion = toml::from_str(QUESTION).unwrap();
        question.mean_max = Span(2_000_000);
        assert_eq!(question.answer().best.unwrap().cost, 0.0);
        question.warm_min_percent = 30.0;
        let warm = question.answer().best.unwrap();
        assert!(warm.warm_percent >= 30.0 && warm.sizes[..2] == [Size(0); 2], "{warm:?}");
        question.hit_min_percent = 96.0;
        assert_eq!(question.answer().best, None);
    }
}
