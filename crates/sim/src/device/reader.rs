//! Reads the tables of a profile file and knows the line of everything in it. Each number is
//! `{ value = 93, unit = "ns", source = "where it comes from" }`. A key that was not asked for is
//! an error, so that a misspelt one cannot be overlooked.

use super::profile::ProfileError;
use super::units::Kind;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One number of a profile, as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub group: String,
    pub key: String,
    pub value: f64,
    pub unit: String,
    pub source: String,
}

pub struct Reader<'a> {
    path: &'a str,
    text: &'a str,
    root: Spanned<DeTable<'a>>,
    parameters: Vec<Parameter>,
}

impl<'a> Reader<'a> {
    /// Parses `text`; `path` is for messages.
    pub fn new(path: &'a str, text: &'a str) -> Result<Self, ProfileError> {
        let root = DeTable::parse(text).map_err(|error| ProfileError::Syntax {
            path: path.to_owned(),
            line: line_of(text, error.span().unwrap_or(0..0)),
            reason: error.message().to_owned(),
        })?;
        Ok(Self { path, text, root, parameters: Vec::new() })
    }

    /// Everything read so far, in the order of the fields.
    pub fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    fn invalid(&self, span: Range<usize>, reason: String) -> ProfileError {
        ProfileError::Invalid { path: self.path.to_owned(), line: line_of(self.text, span), reason }
    }

    fn table(&self, group: &str) -> Result<(&DeTable<'a>, Range<usize>), ProfileError> {
        let Some(value) = self.root.get_ref().get(group) else {
            let path = self.path.to_owned();
            return Err(ProfileError::Missing { path, line: 1, key: format!("[{group}]") });
        };
        let table = value.get_ref().as_table();
        let table =
            table.ok_or_else(|| self.invalid(value.span(), format!("`{group}` is not a table")))?;
        Ok((table, value.span()))
    }

    fn entry(&self, group: &str, key: &str) -> Result<&Spanned<DeValue<'a>>, ProfileError> {
        let (table, span) = self.table(group)?;
        table.get(key).ok_or_else(|| ProfileError::Missing {
            path: self.path.to_owned(),
            line: line_of(self.text, span),
            key: format!("{group}.{key}"),
        })
    }

    /// A text of the header.
    pub fn text(&self, group: &str, key: &str) -> Result<String, ProfileError> {
        let value = self.entry(group, key)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| self.invalid(value.span(), format!("`{group}.{key}` is not a text")))
    }

    /// A yes or no of the header.
    pub fn flag(&self, group: &str, key: &str) -> Result<bool, ProfileError> {
        let value = self.entry(group, key)?;
        let flag = value.get_ref().as_bool();
        flag.ok_or_else(|| {
            self.invalid(value.span(), format!("`{group}.{key}` is not true or false"))
        })
    }

    /// A number with its unit and source.
    pub fn quantity<K: Kind>(&mut self, group: &str, key: &str) -> Result<K, ProfileError> {
        let entry = self.entry(group, key)?;
        let span = entry.span();
        let name = format!("{group}.{key}");
        let form = "{ value = NUMBER, unit = \"…\", source = \"…\" }";
        let wrong = |reason: String| self.invalid(span.clone(), format!("`{name}`: {reason}"));
        let table = entry.get_ref().as_table().ok_or_else(|| wrong(format!("not {form}")))?;
        if let Some(other) =
            table.keys().find(|key| !["value", "unit", "source"].contains(&key.get_ref().as_ref()))
        {
            return Err(self.unknown(&name, other));
        }
        let part = |part: &str| {
            table.get(part).ok_or_else(|| wrong(format!("`{part}` is missing; it is {form}")))
        };
        let (value, unit, source) = (part("value")?, part("unit")?, part("source")?);
        let number = number(value.get_ref())
            .filter(|number| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| wrong("the value is not a number of 0 or more".to_owned()))?;
        let unit = unit.get_ref().as_str().unwrap_or_default();
        if !K::UNITS.contains(&unit) {
            let units = K::UNITS.join(", ");
            return Err(wrong(format!("`{unit}` is no unit of a {}: use {units}", K::NAME)));
        }
        let source = source.get_ref().as_str().unwrap_or_default();
        if source.trim().is_empty() {
            return Err(wrong("the source is empty: say where the number comes from".to_owned()));
        }
        let kind = K::from_value(number, unit)
            .ok_or_else(|| wrong(format!("{number} {unit} is no possible {}", K::NAME)))?;
        let parameter = Parameter {
            group: group.to_owned(),
            key: key.to_owned(),
            value: number,
            unit: unit.to_owned(),
            source: source.to_owned(),
        };
        self.parameters.push(parameter);
        Ok(kind)
    }

    /// Refuses tables and keys that are not among `known` (`group`, `keys`).
    pub fn check_unknown(&self, known: &[(&str, &[&str])]) -> Result<(), ProfileError> {
        let groups: BTreeSet<&str> = known.iter().map(|(group, _)| *group).collect();
        let root = self.root.get_ref();
        if let Some(other) = root.keys().find(|key| !groups.contains(key.get_ref().as_ref())) {
            return Err(self.unknown("", other));
        }
        for (group, keys) in known {
            let (table, _) = self.table(group)?;
            if let Some(other) = table.keys().find(|key| !keys.contains(&key.get_ref().as_ref())) {
                return Err(self.unknown(group, other));
            }
        }
        Ok(())
    }

    fn unknown(&self, group: &str, key: &Spanned<toml::de::DeString<'_>>) -> ProfileError {
        let dot = if group.is_empty() { "" } else { "." };
        ProfileError::Unknown {
            path: self.path.to_owned(),
            line: line_of(self.text, key.span()),
            key: format!("{group}{dot}{}", key.get_ref()),
        }
    }
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
        DeValue::Float(float) => float.as_str().parse().ok(),
        _ => None,
    }
}

/// Lines count from 1.
fn line_of(text: &str, span: Range<usize>) -> usize {
    let before = &text.as_bytes()[..span.start.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
