//! Bodies of requests, against the messages as the library decodes them whole.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use strata_stream_otlp::{Body, BodyError, MESSAGE_LEN_MAX, Origin, count_records, each_record};

fn text(text: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text.to_owned())),
    }
}

fn pair(key: &str, value: AnyValue) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(value),
        ..KeyValue::default()
    }
}

fn record(number: u64) -> LogRecord {
    let array = ArrayValue {
        values: vec![text("a"), AnyValue { value: None }],
    };
    let list = KeyValueList {
        values: vec![pair("deep", text("b"))],
    };
    let values = [
        Value::BoolValue(true),
        Value::IntValue(-7),
        Value::DoubleValue(0.25),
        Value::BytesValue(vec![0, 255]),
        Value::ArrayValue(array),
        Value::KvlistValue(list),
    ];
    LogRecord {
        time_unix_nano: number,
        observed_time_unix_nano: u64::MAX,
        severity_number: 9,
        severity_text: "INFO".to_owned(),
        body: Some(text(&"x".repeat(200))),
        attributes: values
            .map(|value| pair("key", AnyValue { value: Some(value) }))
            .into(),
        flags: 1,
        trace_id: vec![7; 16],
        span_id: vec![8; 8],
        ..LogRecord::default()
    }
}

/// Of several resources and scopes, some of them empty.
fn request() -> ExportLogsServiceRequest {
    let scope_logs = |of: u64, records: u64| ScopeLogs {
        scope: (of > 0).then(|| InstrumentationScope {
            name: format!("scope {of}"),
            ..InstrumentationScope::default()
        }),
        log_records: (0..records)
            .map(|number| record(of * 100 + number))
            .collect(),
        schema_url: format!("https://example.com/{of}"),
    };
    let resource_logs = |of: u64| ResourceLogs {
        resource: (of > 0).then(|| Resource {
            attributes: vec![pair("service.name", text(&of.to_string()))],
            ..Resource::default()
        }),
        scope_logs: (0..of).map(|scope| scope_logs(scope, of)).collect(),
        schema_url: String::new(),
    };
    ExportLogsServiceRequest {
        resource_logs: (0..4).map(resource_logs).collect(),
    }
}

/// As the library has them.
fn expected(request: &ExportLogsServiceRequest) -> Vec<(Origin, LogRecord)> {
    let mut all = Vec::new();
    for of_resource in &request.resource_logs {
        for of_scope in &of_resource.scope_logs {
            let origin = Origin {
                resource: of_resource.resource.clone(),
                resource_schema_url: of_resource.schema_url.clone(),
                scope: of_scope.scope.clone(),
                schema_url: of_scope.schema_url.clone(),
            };
            let records = of_scope.log_records.iter().cloned();
            all.extend(records.map(|record| (origin.clone(), record)));
        }
    }
    all
}

type Walked = Vec<Result<(Origin, LogRecord), BodyError>>;

fn walked(body: Body<'_>) -> Result<Walked, BodyError> {
    let mut all = Vec::new();
    each_record(body, |found| {
        all.push(found.map(|(origin, record)| (origin.clone(), record)));
    })?;
    Ok(all)
}

#[test]
fn records_come_as_the_library_decodes_a_whole_body() {
    let request = request();
    let expected: Walked = expected(&request).into_iter().map(Ok).collect();
    assert_eq!(expected.len(), 14);
    let bytes = request.encode_to_vec();
    assert_eq!(walked(Body::Protobuf(&bytes)).unwrap(), expected);
    let json = serde_json::to_vec(&request).unwrap();
    assert_eq!(walked(Body::Json(&json)).unwrap(), expected);
    // Messages may come in parts, with their fields in any order: here, a resource after its records.
    let mut late = ResourceLogs {
        resource: None,
        ..request.resource_logs[3].clone()
    };
    let resource = request.resource_logs[3].resource.clone();
    let mut inner = late.encode_to_vec();
    late.resource = resource.clone();
    let only = ResourceLogs {
        resource,
        ..ResourceLogs::default()
    };
    only.encode(&mut inner).unwrap();
    let mut bytes = vec![0x0a];
    prost::encode_length_delimiter(inner.len(), &mut bytes).unwrap();
    bytes.extend(inner);
    let whole = ExportLogsServiceRequest::decode(&bytes[..]).unwrap();
    assert_eq!(whole.resource_logs, [late]);
    let expected: Walked = self::expected(&whole).into_iter().map(Ok).collect();
    assert_eq!(walked(Body::Protobuf(&bytes)).unwrap(), expected);
}

#[test]
fn a_body_that_is_cut_is_invalid_where_the_library_says_so() {
    let bytes = request().encode_to_vec();
    for len in 0..bytes.len() {
        let cut = &bytes[..len];
        let is_valid = ExportLogsServiceRequest::decode(cut).is_ok();
        assert_eq!(walked(Body::Protobuf(cut)).is_ok(), is_valid, "{len}");
    }
}

/// A request is refused as a whole by the count, before any of its records is stored.
#[test]
fn a_schema_url_that_is_no_text_is_found_before_the_records_are_read() {
    let bytes = request().encode_to_vec();
    assert_eq!(count_records(Body::Protobuf(&bytes)), Ok(14));
    let url = b"https://example.com/2";
    let starts = bytes.windows(url.len()).enumerate();
    let starts: Vec<_> = starts.filter(|(_, text)| text == url).collect();
    assert_eq!(starts.len(), 1);
    let mut of_scope = bytes.clone();
    of_scope[starts[0].0] = 0xff;
    // A resource's, with a record before and after it.
    let other = ResourceLogs {
        schema_url: "x".to_owned(),
        ..ResourceLogs::default()
    };
    let mut of_resource = bytes.clone();
    let other = ExportLogsServiceRequest {
        resource_logs: vec![other],
    };
    of_resource.extend(other.encode_to_vec());
    *of_resource.last_mut().unwrap() = 0xff;
    of_resource.extend(&bytes);
    for bytes in [of_scope, of_resource] {
        assert!(ExportLogsServiceRequest::decode(&bytes[..]).is_err());
        let counted = count_records(Body::Protobuf(&bytes));
        assert!(
            matches!(counted, Err(BodyError::Protobuf(_))),
            "{counted:?}"
        );
    }
}

#[test]
fn what_is_too_long_costs_the_records_that_have_it() {
    let long = "x".repeat(MESSAGE_LEN_MAX + 1);
    let mut request = request();
    let resource = request.resource_logs[2].resource.as_mut().unwrap();
    resource.attributes.push(pair("long", text(&long)));
    request.resource_logs[3].scope_logs[1].log_records[0].body = Some(text(&long));
    for json in [false, true] {
        let bytes = match json {
            true => serde_json::to_vec(&request).unwrap(),
            false => request.encode_to_vec(),
        };
        let body = match json {
            true => Body::Json(&bytes),
            false => Body::Protobuf(&bytes),
        };
        let all = walked(body).unwrap();
        let is_long = |found: &Result<_, BodyError>| matches!(found, Err(BodyError::Long { len, .. }) if *len > MESSAGE_LEN_MAX);
        // Those of a resource, and one.
        assert_eq!(all.iter().filter(|found| is_long(found)).count(), 4 + 1);
        assert_eq!(all.iter().filter(|found| found.is_ok()).count(), 14 - 5);
    }
}
