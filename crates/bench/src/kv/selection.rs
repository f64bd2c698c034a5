//! Which rows of `bench kv` are measured: those that are named, or all. A quick run without names
//! leaves out the rows of `capacity.rs`, which take longer than all others together.

use super::{capacity, figures, herd};
use crate::run::{BenchError, Size};

/// The rows to measure.
pub struct RowSelection {
    names: Vec<&'static str>,
}

impl RowSelection {
    /// Rows by patterns, in which one `*` stands for any text; none for all.
    ///
    /// # Errors
    /// [`BenchError::Option`] for a pattern that fits no row.
    pub fn new(patterns: &[String], size: Size) -> Result<Self, BenchError> {
        let figures = figures().into_iter().map(|figure| figure.name);
        let mut names: Vec<&str> = figures.chain(herd::NAMES).collect();
        if size == Size::Full || !patterns.is_empty() {
            names.extend(capacity::names());
        }
        if let Some(unknown) = patterns.iter().find(|it| !names.iter().any(|name| fits(it, name))) {
            let reason = format!("\"{unknown}\" is none of {}", names.join(", "));
            return Err(BenchError::Option { option: "rows", reason });
        }
        names.retain(|name| patterns.is_empty() || patterns.iter().any(|it| fits(it, name)));
        Ok(Self { names })
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether one of them is asked of the servers that stay for all rates and times.
    pub fn has_rates(&self) -> bool {
        self.names.iter().any(|name| !capacity::names().any(|it| it == *name))
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.ends_with(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_name_and_long_ones_only_in_full_runs_or_by_name() {
        let chosen = |patterns: &[&str], size| {
            let patterns: Vec<String> = patterns.iter().map(|&it| it.into()).collect();
            RowSelection::new(&patterns, size)
        };
        let all = chosen(&[], Size::Full).unwrap();
        assert!(all.has("items_8000") && all.has("resp_get_p32") && all.has("herd_get"));
        let quick = chosen(&[], Size::Quick).unwrap();
        assert!(!quick.has("items_8000") && !quick.has("hit_cdn") && quick.has("resp_evalsha_p1"));
        let named = chosen(&["hit_*", "*_p1"], Size::Quick).unwrap();
        assert!(named.has("hit_cdn") && named.has("mc_get_p1") && !named.has("items_10"));
        assert!(named.has_rates() && !chosen(&["items_*"], Size::Full).unwrap().has_rates());
        let refused = chosen(&["hit_*", "resp_gte_p1"], Size::Full).err().unwrap();
        assert!(refused.to_string().contains("\"resp_gte_p1\" is none of resp_get_p32, "));
    }
}
