//! Where in a plan's file something is: from a field's path to its line, and back.

use super::PlanError;
use toml::de::{DeTable, DeValue};

/// A file's text with what it says.
pub(super) struct Document<'a> {
    text: &'a str,
    root: toml::Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Document<'a>, PlanError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Document { text, root }),
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(text, span.start));
                let reason = error.message().to_owned();
                Err(PlanError::Field { line, field: word_of(text, line), reason })
            }
        }
    }

    /// An error of the deserialiser, with line and field.
    pub(super) fn refused(&self, error: &toml::de::Error) -> PlanError {
        let offset = self.past_heading(error.span().map_or(0, |span| span.start));
        let message = error.message().trim();
        let mut field = self.path_at(offset);
        // What is missing or unknown is named by the message; the place is its table's.
        for beginning in ["missing field `", "unknown field `"] {
            let named = message.strip_prefix(beginning).and_then(|rest| rest.split('`').next());
            if let Some(name) = named
                && field.rsplit('.').next() != Some(name)
            {
                field = if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
            }
        }
        let line = line_of(self.text, offset);
        PlanError::Field { line, field, reason: message.replace('\n', " ") }
    }

    /// A field that cannot be meant, by its path, such as `tiers.0.prices.pool.date`. The line is
    /// that of the innermost part of the path that is there.
    pub(super) fn wrong(&self, path: &str, reason: impl Into<String>) -> PlanError {
        let mut offset = 0;
        let mut table = Some(self.root.get_ref());
        let mut array: Option<&[toml::Spanned<DeValue<'_>>]> = None;
        for part in path.split('.') {
            let value = match (table, array) {
                (Some(table), _) => table.iter().find(|(key, _)| &**key.get_ref() == part),
                (None, Some(items)) => {
                    let item = part.parse::<usize>().ok().and_then(|index| items.get(index));
                    let Some(item) = item else { break };
                    offset = item.span().start;
                    (table, array) = inner(item.get_ref());
                    continue;
                }
                (None, None) => None,
            };
            let Some((key, value)) = value else { break };
            offset = key.span().start;
            (table, array) = inner(value.get_ref());
        }
        PlanError::Field {
            line: line_of(self.text, offset),
            field: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// What is missing from a table is placed at its heading, behind the names, before the `]`.
    fn past_heading(&self, offset: usize) -> usize {
        let (before, after) = self.text.split_at(offset.min(self.text.len()));
        let begins = before.rsplit('\n').next().is_none_or(|line| line.trim().is_empty());
        match after.find(']') {
            Some(length) if begins && after.starts_with('[') => offset + length,
            _ => offset,
        }
    }

    /// The path of the innermost field that begins before or at an offset and ends after it.
    fn path_at(&self, offset: usize) -> String {
        let mut path = Vec::new();
        descend_table(self.root.get_ref(), offset, &mut path);
        path.join(".")
    }
}

type Inner<'v, 'a> = (Option<&'v DeTable<'a>>, Option<&'v [toml::Spanned<DeValue<'a>>]>);

fn inner<'v, 'a>(value: &'v DeValue<'a>) -> Inner<'v, 'a> {
    match value {
        DeValue::Table(table) => (Some(table), None),
        DeValue::Array(array) => (None, Some(array)),
        _ => (None, None),
    }
}

/// The latest key that begins before the offset is the one: fields follow each other. A table's
/// own span is its heading's, so the ends of spans say nothing.
fn descend_table(table: &DeTable<'_>, offset: usize, path: &mut Vec<String>) {
    let latest = table
        .iter()
        .filter_map(|(key, value)| {
            let first = first_offset(key.span().start, value.get_ref(), offset)?;
            Some((first, key, value))
        })
        .max_by_key(|(first, ..)| *first);
    if let Some((_, key, value)) = latest {
        path.push(key.get_ref().to_string());
        descend(value.get_ref(), offset, path);
    }
}

fn descend(value: &DeValue<'_>, offset: usize, path: &mut Vec<String>) {
    match value {
        DeValue::Table(table) => descend_table(table, offset, path),
        DeValue::Array(items) => {
            let latest = items.iter().enumerate().filter_map(|(index, item)| {
                let first = first_offset(item.span().start, item.get_ref(), offset)?;
                Some((first, index, item))
            });
            if let Some((_, index, item)) = latest.max_by_key(|(first, ..)| *first) {
                path.push(index.to_string());
                descend(item.get_ref(), offset, path);
            }
        }
        _ => {}
    }
}

/// The greatest offset of a key or item in here that is not after `offset`.
fn first_offset(own: usize, value: &DeValue<'_>, offset: usize) -> Option<usize> {
    let below = match value {
        DeValue::Table(table) => table
            .iter()
            .filter_map(|(key, value)| first_offset(key.span().start, value.get_ref(), offset))
            .max(),
        DeValue::Array(items) => items
            .iter()
            .filter_map(|item| first_offset(item.span().start, item.get_ref(), offset))
            .max(),
        _ => None,
    };
    below.max((own <= offset).then_some(own))
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// What a line of a text that is no TOML begins with.
fn word_of(text: &str, line: usize) -> String {
    let line = text.lines().nth(line - 1).unwrap_or_default();
    line.split(['=', '#']).next().unwrap_or_default().trim().to_owned()
}
