//! What follows from the declaration of columns: `docs/formats/archive.md`, and rows of block
//! files, of which only the requested columns are made.

use std::fmt::Write as _;
use std::sync::Arc;

use strata_archive::{
    ArchiveError, Coding, Column, ElementForm, FlowColumn, PacketColumn, Rows, Spec, Table,
    TakeRows, compact, rows_of_blocks,
};
use strata_query::{Find, FlowRecord, flow_records};
use strata_store::{Damage, Disk, Log, Select};
use strata_testkit::{check_golden, data_dir, workspace_root};
use strata_testkit_disk::SimDisk;

use crate::common::{model, record};

/// The columns of a table, as documented.
fn described(table: Table) -> String {
    let has_elements = table.specs().iter().any(|spec| spec.element.is_some());
    let (names, lines) = if has_elements {
        (
            "| column | type | unit | meaning | IPFIX |",
            "|---|---|---|---|---|",
        )
    } else {
        ("| column | type | unit | meaning |", "|---|---|---|---|")
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
    names.extend(element.mac.map(|(id, name)| format!("{name} ({id})")));
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
struct Taken(Vec<Vec<Column>>);

impl TakeRows for Taken {
    fn rows(&mut self, columns: Vec<Column>, _: usize) -> bool {
        self.0.push(columns);
        true
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage}");
    }
}

/// A later fragment has the ports of its first one, in both tables, compacted or not.
#[test]
fn fragments_are_rows_of_the_flow_of_their_first_one() {
    let mut pcap = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        pcap.extend(word.to_le_bytes());
    }
    // Of UDP from 10.3.0.1:5300 to 10.3.0.2:53, and the last of another datagram, whose first is missing.
    for (id, fragment) in [(7, 0x2000_u16), (7, 1), (8, 1)] {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, id]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, 17, 0, 0, 10, 3, 0, 1, 10, 3, 0, 2]);
        frame.extend([0x14, 0xb4, 0, 53, 0, 16, 0, 0]);
        for word in [1_700_000_000_u32, 0, 42, 42] {
            pcap.extend(word.to_le_bytes());
        }
        pcap.extend(frame);
    }
    let file = tempfile::NamedTempFile::with_suffix(".pcap").unwrap();
    std::fs::write(file.path(), pcap).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    assert!(record(&disk, file.path(), &model(), "default", 0));
    let log = Log::on(Arc::clone(&disk)).unwrap();
    let recording = &log.recordings()[0];
    let column = PacketColumn::SrcPort.index();
    let spec = PacketColumn::SrcPort.spec();
    let rows = Rows {
        table: Table::Packets,
        columns: vec![column],
        select: Select::default(),
    };
    let mut taken = Taken::default();
    rows_of_blocks(&log, recording, &recording.files[0], 7, &rows, &mut taken).unwrap();
    let (values, codes) = taken.0.remove(0).remove(0).numbered(spec.kind);
    let values: Vec<Option<i64>> = values.ints().collect();
    let ports = codes.unwrap();
    let ports = ports.map(|code| code.and_then(|code| values[code as usize]));
    let ports: Vec<Option<i64>> = ports.collect();
    assert_eq!(ports, [Some(5300), Some(5300), None]);
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(Arc::clone(&disk)).unwrap();
    let mut flows = Vec::new();
    for part in &log.archive().parts {
        let take = |record: &FlowRecord| -> Result<(), ArchiveError> {
            let of = |column: FlowColumn| record.get(column).as_i64();
            flows.push((
                of(FlowColumn::SrcPort),
                of(FlowColumn::Packets),
                of(FlowColumn::IpBytes),
            ));
            Ok(())
        };
        flow_records(disk.as_ref(), part, &Find::default(), take).unwrap();
    }
    flows.sort_unstable();
    assert_eq!(
        flows,
        [(None, Some(1), Some(28)), (Some(5300), Some(2), Some(56))]
    );
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
            let alone = rows(vec![index]);
            // Their contents are too long to print.
            let alone = alone.iter().map(|columns| &columns[0]);
            let same = alone.eq(all.iter().map(|columns| &columns[index]));
            assert!(same, "{} of {}", spec.name, table.name());
        }
        assert!(!all.is_empty());
    }
}
