//! Parquet files, as the library's reader of rows has them.

use arrow_array::RecordBatchReader as _;
use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use proptest::prelude::*;
use strata_columnar::arrow::{self, DataType};
use strata_columnar::{Cell, CellKind, Leaf, ParquetFile, list_column};

/// A value of its own, or none.
#[derive(Clone, Debug)]
enum Value {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    fn cell(&self) -> Cell<'_> {
        match self {
            Self::Null => Cell::Null,
            Self::Bool(value) => Cell::Bool(*value),
            Self::Int(value) => Cell::Int(*value),
            Self::Long(value) => Cell::Long(*value),
            Self::Float(value) => Cell::Float(*value),
            Self::Double(value) => Cell::Double(*value),
            Self::Text(value) => Cell::Text(value),
            Self::Bytes(value) => Cell::Bytes(value),
        }
    }

    /// As a reader has it in a column of this kind.
    fn field(&self, kind: CellKind) -> Field {
        let byte = |value: i32| u8::try_from(value).unwrap();
        let short = |value: i32| u16::try_from(value).unwrap();
        match (self, kind) {
            (Self::Null, _) => Field::Null,
            (Self::Bool(value), _) => Field::Bool(*value),
            (Self::Int(value), CellKind::U8) => Field::UByte(byte(*value)),
            (Self::Int(value), CellKind::U16) => Field::UShort(short(*value)),
            (Self::Int(value), CellKind::U32) => Field::UInt(value.cast_unsigned()),
            (Self::Int(value), CellKind::Short) => Field::Short(i16::try_from(*value).unwrap()),
            (Self::Int(value), _) => Field::Int(*value),
            (Self::Long(value), CellKind::U64) => Field::ULong(value.cast_unsigned()),
            (Self::Long(value), CellKind::Time) => Field::TimestampMicros(*value),
            (Self::Long(value), _) => Field::Long(*value),
            (Self::Float(value), _) => Field::Float(*value),
            (Self::Double(value), _) => Field::Double(*value),
            (Self::Text(value), _) => Field::Str(value.clone()),
            (Self::Bytes(value), _) => Field::Bytes(value.clone().into()),
        }
    }
}

const KINDS: [CellKind; 13] = [
    CellKind::Bool,
    CellKind::U8,
    CellKind::U16,
    CellKind::U32,
    CellKind::U64,
    CellKind::Short,
    CellKind::Int,
    CellKind::Long,
    CellKind::Time,
    CellKind::Float,
    CellKind::Double,
    CellKind::Text,
    CellKind::Bytes,
];

fn value(kind: CellKind) -> BoxedStrategy<Value> {
    match kind {
        CellKind::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        CellKind::U8 => (0..=255).prop_map(Value::Int).boxed(),
        CellKind::U16 => (0..=65_535).prop_map(Value::Int).boxed(),
        CellKind::Short => any::<i16>().prop_map(|n| Value::Int(n.into())).boxed(),
        CellKind::U32 | CellKind::Int => any::<i32>().prop_map(Value::Int).boxed(),
        CellKind::U64 | CellKind::Long | CellKind::Time => {
            any::<i64>().prop_map(Value::Long).boxed()
        }
        CellKind::Float => any::<f32>().prop_map(Value::Float).boxed(),
        CellKind::Double => any::<f64>().prop_map(Value::Double).boxed(),
        CellKind::Text => {
            // Few that repeat, short ones, and some that do not fit into a page with others.
            let repeated = (0..3).prop_map(|n| format!("text {n}"));
            let long = (0_usize..300_000).prop_map(|len| "ä".repeat(len));
            prop_oneof![20 => repeated, 10 => ".{0,9}", 1 => long]
                .prop_map(Value::Text)
                .boxed()
        }
        CellKind::Bytes => prop::collection::vec(any::<u8>(), 0..20)
            .prop_map(Value::Bytes)
            .boxed(),
    }
}

/// A column: its kind, whether it may be null, and its values.
fn column(rows: usize) -> impl Strategy<Value = (CellKind, bool, Vec<Value>)> {
    let kinds = (prop::sample::select(&KINDS[..]), any::<bool>());
    kinds.prop_flat_map(move |(kind, optional)| {
        let value = match optional {
            true => prop_oneof![1 => Just(Value::Null), 2 => value(kind)].boxed(),
            false => value(kind),
        };
        let values = prop::collection::vec(value, rows);
        values.prop_map(move |values| (kind, optional, values))
    })
}

/// Columns of as many rows.
fn table() -> impl Strategy<Value = Vec<(CellKind, bool, Vec<Value>)>> {
    (0_usize..60).prop_flat_map(|rows| prop::collection::vec(column(rows), 1..6))
}

fn rows(file: Vec<u8>) -> (SerializedFileReader<Bytes>, Vec<Row>) {
    let file = SerializedFileReader::new(Bytes::from(file)).unwrap();
    let rows = file.get_row_iter(None).unwrap().map(Result::unwrap);
    let rows = rows.collect();
    (file, rows)
}

proptest! {
    /// Any values, missing ones, in batches of any length, none too, over several row groups.
    #[test]
    fn columns_come_back(
        table in table(),
        batches in prop::collection::vec(0_usize..20, 0..8),
        rows_max in 1_usize..50,
    ) {
        let columns = table.iter().enumerate();
        let columns = columns.map(|(at, (kind, optional, _))| {
            kind.column(&format!("{at} of (it)"), *optional).unwrap()
        });
        let (mut file, mut leaves) =
            ParquetFile::new(Vec::new(), columns.collect(), Vec::new(), rows_max).unwrap();
        let count = table[0].2.len();
        let (mut at, mut of_group, mut groups) = (0, 0, 0);
        for len in batches.into_iter().chain([count]) {
            let end = count.min(at + len);
            for (leaf, (_, _, values)) in leaves.iter_mut().zip(&table) {
                values[at..end].iter().for_each(|value| leaf.push(value.cell()));
            }
            file.write(&mut leaves, end - at).unwrap();
            of_group += end - at;
            at = end;
            if of_group >= rows_max {
                of_group = 0;
                groups += 1;
            }
            prop_assert_eq!(file.group_rows(), of_group);
        }
        groups += usize::from(of_group > 0);
        let (file, rows) = rows(file.finish().unwrap());
        prop_assert_eq!(file.num_row_groups(), groups);
        prop_assert_eq!(rows.len(), count);
        for (at, row) in rows.into_iter().enumerate() {
            let expected = table.iter().map(|(kind, _, values)| values[at].field(*kind));
            let found = row.into_columns().into_iter().map(|(_, field)| field);
            prop_assert!(found.eq(expected));
        }
    }

    /// Lists of any length, and items without value.
    #[test]
    fn lists_come_back(
        lists in prop::collection::vec(
            prop::collection::vec((any::<i64>(), any::<Option<u32>>()), 0..6),
            0..40,
        ),
        batch in 1_usize..9,
        rows_max in 1_usize..30,
    ) {
        let items = vec![
            CellKind::Long.column("time", false).unwrap(),
            CellKind::U32.column("size", true).unwrap(),
        ];
        let columns = vec![
            CellKind::U32.column("row", false).unwrap(),
            list_column("items", items).unwrap(),
        ];
        let (mut file, mut leaves) =
            ParquetFile::new(Vec::new(), columns, Vec::new(), rows_max).unwrap();
        for lists in lists.chunks(batch) {
            for list in lists {
                leaves[0].push(Cell::Int(i32::try_from(list.len()).unwrap()));
                leaves[1].longs(list.iter().map(|(time, _)| *time));
                for (_, size) in list {
                    match size {
                        Some(size) => leaves[2].ints(std::iter::once(size.cast_signed())),
                        None => leaves[2].missing(1),
                    }
                }
                leaves[1..].iter_mut().for_each(Leaf::end_list);
            }
            file.write(&mut leaves, lists.len()).unwrap();
        }
        let (_, rows) = rows(file.finish().unwrap());
        let expected = lists.iter().map(|list| {
            let items = list.iter().map(|(time, size)| {
                let size = size.map_or_else(|| "null".to_owned(), |size| size.to_string());
                format!("{{time: {time}, size: {size}}}")
            });
            let items = items.collect::<Vec<_>>().join(", ");
            format!("{{row: {}, items: [{items}]}}", list.len())
        });
        prop_assert!(rows.iter().map(Row::to_string).eq(expected));
    }
}

#[test]
fn metadata_is_what_was_given_and_what_is_added() {
    let columns = vec![CellKind::Bool.column("a", false).unwrap()];
    let about = vec![("a".to_owned(), "b".to_owned())];
    let (mut file, _) = ParquetFile::new(Vec::new(), columns, about, 5).unwrap();
    file.about("c", "d".to_owned());
    let (file, rows) = rows(file.finish().unwrap());
    assert!(rows.is_empty());
    let about = file.metadata().file_metadata().key_value_metadata();
    let about = about.unwrap().iter();
    let about = about.map(|about| (about.key.as_str(), about.value.as_deref().unwrap()));
    assert_eq!(about.collect::<Vec<_>>(), [("a", "b"), ("c", "d")]);
}

#[test]
fn columns_of_different_lengths_are_refused() {
    let columns = ["a", "b"].map(|name| CellKind::Long.column(name, false).unwrap());
    let (mut file, mut leaves) =
        ParquetFile::new(Vec::new(), columns.to_vec(), Vec::new(), 5).unwrap();
    leaves[0].push(Cell::Long(1));
    let written = file.write(&mut leaves, 1);
    assert!(written.and_then(|()| file.finish()).is_err());
}

#[test]
#[should_panic(expected = "may be missing")]
fn an_item_that_must_have_a_value_has_one() {
    let items = vec![CellKind::Long.column("time", false).unwrap()];
    let columns = vec![list_column("items", items).unwrap()];
    let (_, mut leaves) = ParquetFile::new(Vec::new(), columns, Vec::new(), 5).unwrap();
    leaves[0].push(Cell::Null);
}

/// What Arrow's readers find in a Parquet file's metadata is a message with a schema.
#[test]
fn the_schema_for_arrow_is_a_message() {
    let field = |name, data_type| arrow::Field {
        name,
        data_type,
        nullable: false,
        metadata: &[("unit", "B")],
    };
    let fields = [
        field("a", DataType::U32),
        field("b", DataType::U64),
        field("c", DataType::Dictionary),
        field("d", DataType::Dictionary),
    ];
    let (key, value) = arrow::in_parquet(&fields, &[("k", "v")]);
    assert_eq!(key, "ARROW:schema");
    let schema = crate::stream::decoded(&value).schema();
    assert_eq!(schema.metadata()["k"], "v");
    let found = schema.fields().iter().map(|field| {
        assert_eq!(field.metadata()["unit"], "B");
        (field.name().as_str(), field.data_type().to_string())
    });
    let expected = [
        ("a", "UInt32"),
        ("b", "UInt64"),
        ("c", "Dictionary(Int32, Utf8)"),
        ("d", "Dictionary(Int32, Utf8)"),
    ];
    assert!(found.eq(expected.map(|(name, of)| (name, of.to_owned()))));
}
