//! A log record as a record of a stream: a JSON object, with the names of the protocol in snake case.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::decode::Origin;

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A field that the sender has not set is left out.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    time_unix_nano: u64,
    #[serde(skip_serializing_if = "is_zero")]
    observed_time_unix_nano: u64,
    #[serde(skip_serializing_if = "is_zero")]
    severity_number: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    severity_text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    event_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    attributes: Map<String, Value>,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_attributes_count: u32,
    #[serde(skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    trace_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    span_id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    schema_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<ShownScope<'a>>,
    /// The attributes of the resource.
    #[serde(skip_serializing_if = "Map::is_empty")]
    resource: Map<String, Value>,
    #[serde(skip_serializing_if = "is_zero")]
    resource_dropped_attributes_count: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_schema_url: &'a str,
}

#[derive(Serialize)]
struct ShownScope<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    attributes: Map<String, Value>,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_attributes_count: u32,
}

impl<'a> ShownScope<'a> {
    fn of(scope: &'a InstrumentationScope) -> Self {
        Self {
            name: &scope.name,
            version: &scope.version,
            attributes: attributes(&scope.attributes),
            dropped_attributes_count: scope.dropped_attributes_count,
        }
    }
}

/// Writes a record as a JSON object to the end of `out`.
///
/// # Panics
///
/// Never: its keys are texts, and a `Vec` takes all.
pub fn put_record(out: &mut Vec<u8>, origin: &Origin, record: &LogRecord) {
    let resource = origin.resource.as_ref();
    let shown = Shown {
        time_unix_nano: record.time_unix_nano,
        observed_time_unix_nano: record.observed_time_unix_nano,
        severity_number: record.severity_number,
        severity_text: &record.severity_text,
        event_name: &record.event_name,
        body: record.body.as_ref().map(value),
        attributes: attributes(&record.attributes),
        dropped_attributes_count: record.dropped_attributes_count,
        flags: record.flags,
        trace_id: id(&record.trace_id, 16),
        span_id: id(&record.span_id, 8),
        schema_url: &origin.schema_url,
        scope: origin.scope.as_ref().map(ShownScope::of),
        resource: resource.map_or_else(Map::new, |resource| attributes(&resource.attributes)),
        resource_dropped_attributes_count: resource
            .map_or(0, |resource| resource.dropped_attributes_count),
        resource_schema_url: &origin.resource_schema_url,
    };
    serde_json::to_writer(out, &shown).expect("its keys are texts, and a Vec takes all");
}

/// An id as hexadecimal digits. One of another length, or of zeros, stands for none (logs.proto, LogRecord).
fn id(bytes: &[u8], len: usize) -> String {
    let is_valid = bytes.len() == len && bytes.iter().any(|&byte| byte != 0);
    let bytes = if is_valid { bytes } else { &[] };
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: &[KeyValue]) -> Map<String, Value> {
    let pairs = all.iter();
    pairs
        .map(|pair| {
            (
                pair.key.clone(),
                pair.value.as_ref().map_or(Value::Null, value),
            )
        })
        .collect()
}

/// A value as JSON; bytes as base64, and numbers that JSON does not have as texts, as in OTLP's JSON.
fn value(any: &AnyValue) -> Value {
    match &any.value {
        // An index into a table that requests of logs do not have.
        None | Some(Any::StringValueStrindex(_)) => Value::Null,
        Some(Any::StringValue(text)) => text.as_str().into(),
        Some(Any::BoolValue(is_true)) => (*is_true).into(),
        Some(Any::IntValue(number)) => (*number).into(),
        Some(Any::DoubleValue(number)) => match Number::from_f64(*number) {
            Some(number) => Value::Number(number),
            None if number.is_nan() => "NaN".into(),
            None if *number > 0.0 => "Infinity".into(),
            None => "-Infinity".into(),
        },
        Some(Any::ArrayValue(array)) => array.values.iter().map(value).collect(),
        Some(Any::KvlistValue(list)) => Value::Object(attributes(&list.values)),
        Some(Any::BytesValue(bytes)) => STANDARD.encode(bytes).into(),
    }
}
