//! The answers in `openapi.yaml` that are made from their types.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use strata_log_views::answers::refused::Refused;
use strata_log_views::filters::{Completions, FilterCheck};
use strata_log_views::logs::LogSummary;
use strata_log_views::packet::PacketDetail;
use strata_log_views::packets::PacketPage;
use strata_log_views::search::SearchEvent;
use strata_log_views::search::results::FlowPage;
use strata_log_views::storage::{Reasons, Storage};
use strata_testkit::workspace_root;
use utoipa::OpenApi;

use super::Session;
use super::change::Changed;
use super::look::PolicyCheck;
use super::verify::VerifyEvent;
use crate::access::audit::AuditEvent;
use crate::ask::{AnswerTable, Askable};
use crate::fleet::Fleet;
use crate::recorders::{RecorderSummary, Tick};
use crate::saved::KeptQuestion;

/// The line of the file after which they are.
const MADE: &str =
    "    # Made from the types of answers: STRATA_BLESS=1 cargo test -p strata-serve described\n";

/// What they are parts of comes with them.
#[derive(OpenApi)]
#[openapi(components(schemas(
    AnswerTable,
    Askable,
    AuditEvent,
    Changed,
    Completions,
    FilterCheck,
    Fleet,
    FlowPage,
    KeptQuestion,
    LogSummary,
    PacketDetail,
    PacketPage,
    PolicyCheck,
    Reasons,
    RecorderSummary,
    Refused,
    SearchEvent,
    Session,
    Storage,
    Tick,
    VerifyEvent
)))]
struct Made;

/// As OpenAPI 3.0 says that a value may be null; and it has no schema for the names of a map.
fn in_3_0(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(in_3_0),
        Value::Object(fields) => {
            // An example is no schema.
            for (name, inner) in fields.iter_mut() {
                if name != "example" {
                    in_3_0(inner);
                }
            }
            fields.remove("propertyNames");
            if let Some(Value::Array(kinds)) = fields.get("type") {
                let kind = kinds.iter().find(|kind| *kind != "null").cloned();
                fields.insert("type".into(), kind.unwrap());
                fields.insert("nullable".into(), true.into());
            }
            if let Some(Value::Array(choices)) = fields.get("oneOf")
                && let [null, one] = &choices[..]
                && *null == json!({"type": "null"})
            {
                let one = json!([one]);
                fields.remove("oneOf");
                fields.insert("type".into(), "object".into());
                fields.insert("nullable".into(), true.into());
                fields.insert("allOf".into(), one);
            }
        }
        _ => {}
    }
}

fn made() -> String {
    let described = json!(Made::openapi());
    let schemas = described["components"]["schemas"].as_object().unwrap();
    let mut lines = BTreeMap::new();
    for (name, schema) in schemas {
        let mut schema = schema.clone();
        in_3_0(&mut schema);
        lines.insert(name, format!("    {name}: {schema}\n"));
    }
    lines.into_values().collect()
}

#[test]
fn answers_are_described_as_they_are() {
    let path = workspace_root().join("crates/run/serve/openapi.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (written, found) = text.split_once(MADE).unwrap();
    let (_, by_hand) = written.split_once("\n  schemas:\n").unwrap();
    let made = made();
    for line in made.lines() {
        let name = line.split_once(':').unwrap().0;
        let twice = by_hand
            .lines()
            .any(|line| line.trim_end() == format!("{name}:"));
        assert!(!twice, "{name} is written by hand too");
    }
    if std::env::var_os("STRATA_BLESS").is_some() {
        std::fs::write(&path, format!("{written}{MADE}{made}")).unwrap();
    } else {
        let why = "crates/run/serve/openapi.yaml: run this test with STRATA_BLESS=1";
        assert_eq!(found, made, "{why}");
    }
}
