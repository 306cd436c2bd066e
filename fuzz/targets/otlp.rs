//! Any bytes as the body of a request of OpenTelemetry, protobuf or JSON: each record becomes a JSON object, and there are
//! as many records as in the body as the library decodes it whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;
use serde_json::Value;
use strata_fuzz::Bounded;
use strata_stream_otlp::{Body, count_records, each_record, put_record};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// The number of records, if the body is valid.
fn records(body: Body<'_>) -> Option<usize> {
    let mut found = 0;
    let walked = each_record(body, |record| {
        found += 1;
        if let Ok((origin, record)) = record {
            let mut json = Vec::new();
            put_record(&mut json, origin, &record);
            let json = serde_json::from_slice::<Value>(&json);
            assert!(json.is_ok_and(|json| json.is_object()));
        }
    });
    walked.ok()?;
    assert_eq!(count_records(body), Ok(found as u64));
    Some(found)
}

fn of_whole(request: &ExportLogsServiceRequest) -> usize {
    let scopes = request
        .resource_logs
        .iter()
        .flat_map(|logs| &logs.scope_logs);
    scopes.map(|logs| logs.log_records.len()).sum()
}

fuzz_target!(|bytes: &[u8]| {
    let of_protobuf = records(Body::Protobuf(bytes));
    let whole = ExportLogsServiceRequest::decode(bytes);
    if let (Some(found), Ok(whole)) = (of_protobuf, whole) {
        assert_eq!(found, of_whole(&whole));
    }
    let of_json = records(Body::Json(bytes));
    let whole = serde_json::from_slice::<ExportLogsServiceRequest>(bytes);
    if let (Some(found), Ok(whole)) = (of_json, whole) {
        assert_eq!(found, of_whole(&whole));
    }
});
