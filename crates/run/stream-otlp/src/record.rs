//! A log record as a record of a stream: a JSON object, with the names of the protocol in snake case.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::decode::{Numbers, Origin};

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
}

/// What records of a scope have in common.
#[derive(Serialize)]
struct OfScope<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    schema_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<ShownScope<'a>>,
}

/// What records of a resource have in common.
#[derive(Serialize)]
struct OfResource<'a> {
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

/// Members of JSON objects that records of a resource and of its scope end with. They are written once for all of these
/// records, which may be many: some attributes take much longer to write than their JSON is long.
#[derive(Debug)]
pub(crate) struct Ending {
    of: Numbers,
    resource: Vec<u8>,
    scope: Vec<u8>,
}

impl Ending {
    /// That of an origin, which these are the numbers of.
    pub(crate) fn new(of: Numbers, origin: &Origin) -> Self {
        Self {
            of,
            resource: of_resource(origin),
            scope: of_scope(origin),
        }
    }

    /// Goes on with another origin, which may be the same.
    pub(crate) fn enter(&mut self, of: Numbers, origin: &Origin) {
        if self.of.resource != of.resource {
            self.resource = of_resource(origin);
        }
        if self.of != of {
            self.scope = of_scope(origin);
        }
        self.of = of;
    }

    /// The bytes of each record for it, at least.
    pub(crate) fn len(&self) -> usize {
        self.resource.len().saturating_add(self.scope.len())
    }

    /// Writes a record of its origin to the end of `out`.
    pub(crate) fn put_record(&self, out: &mut Vec<u8>, record: &LogRecord) {
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
        };
        out.push(b'{');
        put_members(out, &shown);
        for members in [&self.scope, &self.resource] {
            if !members.is_empty() && out.last() != Some(&b'{') {
                out.push(b',');
            }
            out.extend_from_slice(members);
        }
        out.push(b'}');
    }
}

/// Writes a record as a JSON object to the end of `out`.
///
/// # Panics
///
/// Never: its keys are texts, and a `Vec` takes all.
pub fn put_record(out: &mut Vec<u8>, origin: &Origin, record: &LogRecord) {
    let only = Numbers {
        resource: 0,
        scope: 0,
    };
    Ending::new(only, origin).put_record(out, record);
}

fn of_scope(origin: &Origin) -> Vec<u8> {
    let mut out = Vec::new();
    let shown = OfScope {
        schema_url: &origin.schema_url,
        scope: origin.scope.as_ref().map(ShownScope::of),
    };
    put_members(&mut out, &shown);
    out
}

fn of_resource(origin: &Origin) -> Vec<u8> {
    let mut out = Vec::new();
    let resource = origin.resource.as_ref();
    let shown = OfResource {
        resource: resource.map_or_else(Map::new, |resource| attributes(&resource.attributes)),
        resource_dropped_attributes_count: resource
            .map_or(0, |resource| resource.dropped_attributes_count),
        resource_schema_url: &origin.resource_schema_url,
    };
    put_members(&mut out, &shown);
    out
}
/// Writes the members of an object without its braces.
fn put_members(out: &mut Vec<u8>, shown: &impl Serialize) {
    let object = serde_json::to_vec(shown).expect("its keys are texts");
    let members = object
        .strip_prefix(b"{")
        .and_then(|rest| rest.strip_suffix(b"}"));
    out.extend_from_slice(members.expect("it is an object"));
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
