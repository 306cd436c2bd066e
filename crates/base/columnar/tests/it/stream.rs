//! Arrow streams, as Arrow's own reader has them.

use std::io::{Cursor, ErrorKind};

use arrow_array::RecordBatchReader;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_ipc::reader::StreamReader;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use strata_columnar::arrow::{Array, DataType, Field, StreamWriter};

/// A stream that is in base64.
pub(crate) fn decoded(stream: &str) -> impl RecordBatchReader {
    let stream = BASE64_STANDARD.decode(stream).unwrap();
    StreamReader::try_new(Cursor::new(stream), None).unwrap()
}

type Row = (i64, f64, bool, String);

const TYPES: [(&str, DataType); 4] = [
    ("int", DataType::I64),
    ("real", DataType::F64),
    ("", DataType::Bool),
    ("wörd", DataType::Text),
];

fn fields() -> [Field<'static>; 4] {
    TYPES.map(|(name, data_type)| Field {
        name,
        data_type,
        nullable: name.is_empty(),
        metadata: &[("unit", "ns"), ("description", "")],
    })
}

fn columns(rows: &[Row]) -> [Array; 4] {
    let (mut texts, mut ends) = (String::new(), Vec::new());
    for (.., text) in rows {
        texts += text;
        ends.push(i32::try_from(texts.len()).unwrap());
    }
    [
        Array::I64(rows.iter().map(|row| row.0).collect()),
        Array::F64(rows.iter().map(|row| row.1).collect()),
        Array::Bool(rows.iter().map(|row| row.2).collect()),
        Array::Text(texts, ends),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let long = (0_usize..100_000).prop_map(|len| "ü".repeat(len));
    let text = prop_oneof![30 => ".{0,20}".boxed(), 1 => long.boxed()];
    (any::<i64>(), any::<f64>(), any::<bool>(), text)
}

proptest! {
    /// Batches of any length, none too, and long texts.
    #[test]
    fn a_stream_is_read_as_it_was_written(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..20), 0..5),
        about in ".{0,20}",
    ) {
        let mut stream = Vec::new();
        let fields = fields();
        let mut writer = StreamWriter::new(&mut stream, &fields, &[("why", &about)]).unwrap();
        for rows in &batches {
            writer.write(rows.len(), &columns(rows)).unwrap();
        }
        writer.finish().unwrap();
        let reader = StreamReader::try_new(&stream[..], None).unwrap();
        let schema = reader.schema();
        prop_assert_eq!(&schema.metadata()["why"], &about);
        for (field, written) in schema.fields().iter().zip(&fields) {
            prop_assert_eq!(field.name(), written.name);
            prop_assert_eq!(field.is_nullable(), written.nullable);
            prop_assert_eq!(&field.metadata()["unit"], "ns");
            prop_assert_eq!(&field.metadata()["description"], "");
        }
        let found: Vec<_> = reader.map(Result::unwrap).collect();
        prop_assert_eq!(found.len(), batches.len());
        for (batch, rows) in found.iter().zip(&batches) {
            prop_assert_eq!(batch.num_rows(), rows.len());
            let ints = batch.column(0).as_primitive::<Int64Type>();
            let reals = batch.column(1).as_primitive::<Float64Type>();
            let bools = batch.column(2).as_boolean();
            let texts = batch.column(3).as_string::<i32>();
            for (at, (int, real, bool, text)) in rows.iter().enumerate() {
                prop_assert_eq!(ints.value(at), *int);
                prop_assert_eq!(reals.value(at).to_bits(), real.to_bits());
                prop_assert_eq!(bools.value(at), *bool);
                prop_assert_eq!(texts.value(at), text);
            }
        }
    }
}

#[test]
fn columns_that_do_not_fit_are_refused_and_not_written() {
    let row: Row = (1, 2.0, true, "ä".to_owned());
    let good = || columns(std::slice::from_ref(&row));
    let change = |at: usize, to: Array| {
        let mut columns = good();
        columns[at] = to;
        columns
    };
    let text = |ends: &[i32]| Array::Text("ä".to_owned(), ends.to_vec());
    let mut stream = Vec::new();
    let mut writer = StreamWriter::new(&mut stream, &fields(), &[]).unwrap();
    for columns in [
        &good()[1..],
        &change(0, Array::I64(vec![])),
        &change(1, Array::I64(vec![1])),
        &change(2, Array::Bool(vec![true, false])),
        &change(3, text(&[])),
        &change(3, text(&[0])),
        &change(3, text(&[1])),
        &change(3, text(&[3])),
        &change(3, text(&[-1])),
        &change(3, text(&[2, 2])),
    ] {
        let error = writer.write(1, columns).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    writer.write(1, &good()).unwrap();
    // Ends that go back.
    let mut rows = columns(&[row.clone(), row.clone()]);
    rows[3] = Array::Text("ää".to_owned(), vec![4, 2]);
    assert!(writer.write(2, &rows).is_err());
    writer.finish().unwrap();
    let reader = StreamReader::try_new(&stream[..], None).unwrap();
    assert_eq!(reader.map(Result::unwrap).count(), 1);
}
