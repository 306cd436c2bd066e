//! What follows from the declaration of columns: `docs/formats/archive.md`, and rows of block
//! files, of which only the requested columns are made.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

mod common;

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use strata_archive::{
    Coding, ElementForm, FlowColumn, Rows, Spec, Table, TakeRows, rows_of_blocks,
};
use strata_store::{Damage, Disk, Log, Select};
use strata_testkit::{check_golden, data_dir, workspace_root};
use strata_testkit_disk::SimDisk;

use common::{model, record};

/// The columns of a table, as documented.
fn described(table: Table) -> String {
    let has_elements = table.specs().iter().any(|spec| spec.element.is_some());
    let (names, lines) = if has_elements {
        (
            "| column | type | unit | what | IPFIX |",
            "|---|---|---|---|---|",
        )
    } else {
        ("| column | type | unit | what |", "|---|---|---|---|")
    };
    let mut text = format!("{names}\n{lines}\n");
    for spec in table.specs() {
        let delta = if spec.coding == Coding::Delta {
            ", delta"
        } else {
            ""
        };
        let null = if spec.optional { " or NULL" } else { "" };
        let unit = spec.unit.map_or_else(String::new, |unit| unit.to_string());
        let _ = write!(
            text,
            "| `{}` | {}{null}{delta} | {unit} | {} |",
            spec.name, spec.kind, spec.what
        );
        if has_elements {
            let _ = write!(text, " {} |", element(spec));
        }
        text.push('\n');
    }
    text
}

fn element(spec: &Spec) -> String {
    let Some(element) = spec.element else {
        return String::new();
    };
    let mut names: Vec<String> = element
        .names
        .iter()
        .zip(element.ids)
        .map(|(name, id)| format!("{name} ({id})"))
        .collect();
    names.dedup();
    let names = names.join(", ");
    match element.form {
        ElementForm::FirstByte => format!("first byte of {names}"),
        ElementForm::SecondByte => format!("second byte of {names}"),
        ElementForm::Unsigned(_) | ElementForm::Milliseconds | ElementForm::Address => names,
    }
}

#[test]
fn the_documentation_has_the_columns_that_there_are() {
    let path = workspace_root().join("docs/formats/archive.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    for table in [Table::Packets, Table::Flows] {
        let begin = format!(
            "<!-- the columns of {}, from their declaration -->\n",
            table.name()
        );
        let start = text.find(&begin).unwrap() + begin.len();
        let end = start + text[start..].find("<!-- end -->").unwrap();
        text.replace_range(start..end, &described(table));
    }
    check_golden(&path, &text);
}

#[test]
fn a_column_of_the_other_direction_is_of_the_same_form() {
    for column in FlowColumn::ALL {
        let (there, back) = (column.spec(), column.reverse().spec());
        assert_eq!(column.reverse().reverse(), *column);
        assert_eq!(
            (there.kind, there.unit),
            (back.kind, back.unit),
            "{column:?}"
        );
        let form = |spec: &Spec| spec.element.map(|element| element.form);
        assert_eq!(form(there), form(back), "{column:?}");
    }
}

#[derive(Default)]
struct Taken(Vec<RecordBatch>);

impl TakeRows for Taken {
    fn rows(&mut self, batch: RecordBatch) -> bool {
        self.0.push(batch);
        true
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage}");
    }
}

/// A column is the same whichever others are requested with it.
#[test]
fn a_column_of_block_files_needs_no_other_column() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "default", 0));
    let log = Log::on(disk).unwrap();
    let recording = &log.recordings()[0];
    for table in [Table::Packets, Table::Flows] {
        let rows = |columns: Vec<usize>| {
            let rows = Rows {
                table,
                columns,
                select: Select::default(),
            };
            let mut taken = Taken::default();
            for file in &recording.files {
                rows_of_blocks(&log, recording, file, 7, &rows, &mut taken).unwrap();
            }
            taken.0
        };
        let all = rows((0..table.specs().len()).collect());
        for (index, spec) in table.specs().iter().enumerate() {
            let of = |batches: &[RecordBatch], column: usize| -> Vec<ArrayRef> {
                let arrays = batches.iter().map(|batch| batch.column(column));
                arrays.map(Arc::clone).collect()
            };
            let alone = rows(vec![index]);
            // Their contents are too long to print.
            let same = of(&alone, 0) == of(&all, index);
            assert!(same, "{} of {}", spec.name, table.name());
        }
        assert!(!all.is_empty());
    }
}
