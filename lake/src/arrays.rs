//! The columns of a log's tables as DataFusion has them.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Float32Array, Int32Array, Int64Array, StringViewArray,
    TimestampNanosecondArray, UInt32Array,
};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use strata_archive::{Column, Kind, Spec, Table};

/// The columns of a table, as in its Parquet files.
pub(crate) fn schema(table: Table) -> SchemaRef {
    let fields = table.specs().iter().map(|spec| {
        let kind = match spec.kind {
            Kind::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
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

/// A column as an array.
pub(crate) fn array(spec: &Spec, column: Column) -> Result<ArrayRef, ArrowError> {
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
        Kind::Time => {
            let times: TimestampNanosecondArray = column.ints().collect();
            Arc::new(times.with_timezone("UTC"))
        }
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
