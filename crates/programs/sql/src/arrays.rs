//! The columns of a log's tables as DataFusion has them.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Float32Array, Int16Array, Int32Array, Int64Array,
    StringViewArray, TimestampMicrosecondArray, UInt32Array,
};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use strata_archive::{Column, Kind, NS_PER_MICRO, Spec, Table, below_micros};

/// A column in SQL, as in the Parquet files: a time is two of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqlColumn {
    /// Index of its spec.
    pub(crate) spec: usize,
    /// Whether it has the nanoseconds below a microsecond.
    is_below: bool,
}

/// The columns of a table.
pub(crate) fn columns(table: Table) -> Vec<SqlColumn> {
    let specs = table.specs().iter().enumerate();
    let of = |(spec, declared): (usize, &Spec)| {
        let halves = 0..declared.file_columns();
        halves.map(move |half| SqlColumn {
            spec,
            is_below: half > 0,
        })
    };
    specs.flat_map(of).collect()
}

/// Their names and types.
pub(crate) fn schema(table: Table) -> SchemaRef {
    let fields = columns(table).into_iter().map(|column| {
        let spec = &table.specs()[column.spec];
        if column.is_below {
            return Field::new(below_micros(spec.name), DataType::Int16, spec.optional);
        }
        let kind = match spec.kind {
            Kind::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Kind::Int32 => DataType::Int32,
            Kind::Int64 => DataType::Int64,
            Kind::Float => DataType::Float32,
            Kind::Bool => DataType::Boolean,
            Kind::Text => DataType::Utf8View,
            Kind::Bytes => DataType::BinaryView,
        };
        Field::new(spec.name, kind, spec.optional)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Columns of these specs as the arrays of wanted ones.
pub(crate) fn arrays(
    table: Table,
    wanted: &[SqlColumn],
    specs: &[usize],
    columns: Vec<Column>,
) -> Result<Vec<ArrayRef>, ArrowError> {
    let mut columns: Vec<Option<Column>> = columns.into_iter().map(Some).collect();
    let one = |wanted: &SqlColumn| {
        let place = specs.iter().position(|spec| *spec == wanted.spec);
        let column = &mut columns[place.expect("what is wanted was asked for")];
        let spec = &table.specs()[wanted.spec];
        match spec.kind {
            Kind::Time => Ok(times(column.as_ref().expect("times stay"), wanted.is_below)),
            _ => array(spec, column.take().expect("it is wanted once")),
        }
    };
    wanted.iter().map(one).collect()
}

fn times(column: &Column, is_below: bool) -> ArrayRef {
    let times = column.ints().map(|ns| ns.map(i64::cast_unsigned));
    if is_below {
        let below =
            times.map(|ns| ns.map(|ns| i16::try_from(ns % NS_PER_MICRO).expect("below 1,000")));
        return Arc::new(below.collect::<Int16Array>());
    }
    let micros = times.map(|ns| ns.map(|ns| (ns / NS_PER_MICRO).cast_signed()));
    Arc::new(
        micros
            .collect::<TimestampMicrosecondArray>()
            .with_timezone("UTC"),
    )
}

/// A column as an array.
fn array(spec: &Spec, column: Column) -> Result<ArrayRef, ArrowError> {
    let (values, numbers) = column.numbered(spec.kind);
    let values = values_array(spec.kind, &values)?;
    match numbers {
        Some(numbers) => take(&values, &UInt32Array::from_iter(numbers), None),
        None => Ok(values),
    }
}

fn values_array(kind: Kind, column: &Column) -> Result<ArrayRef, ArrowError> {
    let narrow = |value: Option<i64>| value.map(i32::try_from).transpose();
    Ok(match kind {
        Kind::Time => times(column, false),
        Kind::Int32 => {
            let ints: Result<Int32Array, _> = column.ints().map(narrow).collect();
            Arc::new(ints.map_err(|error| ArrowError::CastError(error.to_string()))?)
        }
        Kind::Int64 => Arc::new(column.ints().collect::<Int64Array>()),
        Kind::Float => Arc::new(column.floats().collect::<Float32Array>()),
        Kind::Bool => {
            let bools = column.ints().map(|value| value.map(|value| value != 0));
            Arc::new(bools.collect::<BooleanArray>())
        }
        Kind::Text => {
            let texts = column.bytes();
            let texts = texts.map(|text| text.map(|text| String::from_utf8_lossy(text.data())));
            Arc::new(texts.collect::<StringViewArray>())
        }
        Kind::Bytes => {
            let bytes = column.bytes().map(|bytes| bytes.map(|bytes| bytes.data()));
            Arc::new(bytes.collect::<BinaryViewArray>())
        }
    })
}
