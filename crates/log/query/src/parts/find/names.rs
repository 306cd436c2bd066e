//! The name of a flow, of those in its columns.

use strata_archive::FlowColumn;
use strata_archive::parts::{Batch, TextCells};

/// Columns with names, the most telling first.
pub(crate) const NAMES: &[FlowColumn] = &[
    FlowColumn::TlsServerName,
    FlowColumn::HttpHost,
    FlowColumn::DnsName,
    FlowColumn::TlsCertificateNames,
];

/// Names of flows. Older files lack columns.
pub(crate) struct NameCells<'a>(Vec<(FlowColumn, TextCells<'a>)>);

impl<'a> NameCells<'a> {
    /// Those of columns that were read, of which [`NAMES`] begin here.
    pub(crate) fn of(read: &'a Batch, first: usize) -> Self {
        let columns = NAMES.iter().enumerate();
        let columns = columns.filter_map(|(at, &column)| Some((column, read.texts(first + at)?)));
        Self(columns.collect())
    }

    /// The most telling name of a row.
    pub(crate) fn get(&self, row: usize) -> Option<&'a str> {
        self.0.iter().find_map(|(column, texts)| {
            let text = texts.get(row)?;
            match column {
                FlowColumn::TlsCertificateNames => first_of_list(text),
                _ => Some(text),
            }
        })
    }
}

/// The first text of a JSON list, if it has no escapes.
fn first_of_list(list: &str) -> Option<&str> {
    let (first, _) = list.strip_prefix("[\"")?.split_once('"')?;
    (!first.contains('\\')).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::first_of_list;

    #[test]
    fn the_first_name_of_a_certificate_is_a_name() {
        for (list, first) in [
            (r#"["example.org"]"#, Some("example.org")),
            (r#"["Bücher","x"]"#, Some("Bücher")),
            (r#"["a\"b","x"]"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(first_of_list(list), first, "{list}");
        }
    }
}
