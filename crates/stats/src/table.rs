//! Tables for a terminal.

/// Columns for a terminal: the first to the left, numbers to the right, empty columns left out.
#[derive(Debug, Clone)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these headings.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|&text| text.to_owned()).collect()] }
    }

    /// Adds a row; missing cells are empty, cells beyond the headings are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let columns = self.rows[0].len();
        let mut cells: Vec<String> = cells.into_iter().take(columns).collect();
        cells.resize(columns, String::new());
        self.rows.push(cells);
    }

    /// The table as lines, each with a line feed.
    #[must_use]
    pub fn show(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let used: Vec<(usize, usize)> = (0..self.rows[0].len())
            .filter(|&column| self.rows[1..].iter().any(|row| !row[column].is_empty()))
            .map(|column| (column, width(column)))
            .collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for &(column, width) in &used {
                let gap = if line.is_empty() { "" } else { "  " };
                let cell = &row[column];
                let padded = match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                };
                line.push_str(gap);
                line.push_str(&padded);
            }
            text.push_str(line.trim_end());
            text.push('\n');
            if index == 0 {
                let total = used.iter().map(|(_, width)| width + 2).sum::<usize>();
                text.push_str(&"─".repeat(total.saturating_sub(2)));
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_empty_columns_are_left_out() {
        let mut plain = TextTable::new(&["name", "empty", "value"]);
        plain.row(["µs".to_owned(), String::new(), "1".to_owned()]);
        plain.row(["longer".to_owned(), String::new(), "200".to_owned()]);
        assert_eq!(plain.show(), "name    value\n─────────────\nµs          1\nlonger    200\n");
    }
}
