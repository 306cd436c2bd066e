//! Text in columns: full width where a program reads them, fitted to the terminal where a person
//! does.

use std::io::stdout;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
use strata_wire::Printable;

/// Who reads the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A program, or a file: one line per row.
    Program,
    /// A person at a terminal with this many columns: longer text is wrapped within its column.
    Terminal(u16),
}

impl Reader {
    /// The reader of standard output.
    pub fn of_stdout() -> Self {
        match rustix::termios::tcgetwinsize(stdout()) {
            // A terminal that does not know its size reports 0.
            Ok(size) if size.ws_col > 0 => Self::Terminal(size.ws_col),
            _ => Self::Program,
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnForm {
    width_min: u16,
    gap: u16,
    alignment: CellAlignment,
}

impl ColumnForm {
    /// Text, at least this many characters wide.
    pub const fn words(width_min: u16) -> Self {
        Self {
            width_min,
            gap: 1,
            alignment: CellAlignment::Left,
        }
    }

    /// Numbers, at least this many digits wide.
    pub const fn numbers(width_min: u16) -> Self {
        Self {
            width_min,
            gap: 1,
            alignment: CellAlignment::Right,
        }
    }

    /// With two spaces before it: after numbers.
    pub const fn apart(self) -> Self {
        Self { gap: 2, ..self }
    }
}

/// A label and its value.
pub type Row = [String; 2];

/// A row of what is shown of one thing.
#[must_use]
pub fn row(of: &str, text: String) -> Row {
    [of.to_owned(), text]
}

/// A text from the recording; anyone who sent it a request may have written it.
#[must_use]
pub fn word(text: &str) -> String {
    Printable(text).to_string()
}

/// Rows with one cell per column, each ended by a line feed.
pub fn listing<const N: usize>(
    reader: Reader,
    columns: [ColumnForm; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    table(reader, &columns, rows.into_iter().map(Vec::from))
}

/// As [`listing`], where the number of columns is not known before.
pub fn table(
    reader: Reader,
    columns: &[ColumnForm],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    match reader {
        Reader::Program => table.set_content_arrangement(ContentArrangement::Disabled),
        Reader::Terminal(width) => table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width),
    };
    table.add_rows(rows);
    if table.is_empty() {
        return String::new();
    }
    for (place, form) in columns.iter().enumerate() {
        let column = table.column_mut(place).expect("a cell for each column");
        let gap = if place == 0 { 0 } else { form.gap };
        let width = Width::Fixed(gap + form.width_min);
        column.set_padding((gap, 0));
        column.set_cell_alignment(form.alignment);
        column.set_constraint(ColumnConstraint::LowerBoundary(width));
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [ColumnForm; 3] = [
        ColumnForm::numbers(4),
        ColumnForm::words(6).apart(),
        ColumnForm::words(0),
    ];

    fn rows() -> Vec<[String; 3]> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        vec![
            row(["id", "from", "match"]),
            row(["7", "file", "udp port 53 and not net 10.0.0.0/8"]),
            row(["12345", "über", ""]),
        ]
    }

    #[test]
    fn a_program_gets_a_line_per_row() {
        let expected = "   id  from   match
    7  file   udp port 53 and not net 10.0.0.0/8
12345  über
";
        assert_eq!(listing(Reader::Program, COLUMNS, rows()), expected);
        assert_eq!(listing(Reader::Program, COLUMNS, []), "");
    }

    #[test]
    fn a_terminal_gets_what_fits() {
        let page = listing(Reader::Terminal(30), COLUMNS, rows());
        let expected = "   id  from   match
    7  file   udp port 53 and
              not net
              10.0.0.0/8
12345  über
";
        assert_eq!(page, expected);
        for width in 1..30 {
            listing(Reader::Terminal(width), COLUMNS, rows());
        }
    }
}
