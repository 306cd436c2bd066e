//! The HTTP API of a telemetry collector: the queries of `strata telemetry`, and immediate reports
//! as they come.
#![allow(
    unused_qualifications,
    reason = "those of what utoipa makes of parameters"
)]

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde::Deserialize;
use strata_control::Refusal;
use strata_control::api::{
    BODY_BYTES, Connection, Endpoints, LAST_VECTORS, ListenError, Server, as_accepted, bounded,
    refused, serve_routers,
};
use strata_dta::key::NodeId;
use tokio::time::timeout;
use utoipa::{IntoParams, OpenApi};

use super::answer::{
    TelemetryEvents, TelemetryFlows, TelemetryKey, TelemetryList, TelemetryPath, TelemetryQueries,
    TelemetryRefused, TelemetryTop,
};
use super::metrics;
use super::pushes::Pushes;
use super::status::{TelemetryEntry, TelemetryStatus};

/// Entries of a list in an answer at most, and by default.
const ENTRIES_MAX: usize = 10_000;
const ENTRIES: usize = 1000;
/// Keys that a collector remembers, and those of an answer by default.
const TOP_MAX: usize = 1024;
const TOP: usize = 20;

/// Serves the API of a telemetry collector on a thread of its own. `warn` gets what does not work
/// as it should.
///
/// # Errors
///
/// If it cannot listen somewhere.
pub(crate) fn serve(
    queries: Arc<dyn TelemetryQueries>,
    pushes: Arc<Pushes>,
    endpoints: Endpoints,
    warn: impl FnOnce(String) + Send + 'static,
) -> Result<Server, ListenError> {
    let closed = Arc::clone(&pushes);
    let ending = async move {
        closed.close();
        let _ = timeout(LAST_VECTORS, closed.all_gone()).await;
    };
    let app = bounded(router(queries, pushes), BODY_BYTES);
    serve_routers(app.clone(), app, endpoints, warn, ending)
}

#[derive(Clone)]
struct Telemetry {
    queries: Arc<dyn TelemetryQueries>,
    pushes: Arc<Pushes>,
}

fn router(queries: Arc<dyn TelemetryQueries>, pushes: Arc<Pushes>) -> Router {
    Router::new()
        .route("/api/v1/telemetry/status", get(status))
        .route("/api/v1/telemetry/get", get(key))
        .route("/api/v1/telemetry/path", get(path))
        .route("/api/v1/telemetry/flows", get(flows))
        .route("/api/v1/telemetry/top", get(top))
        .route("/api/v1/telemetry/lists", get(lists))
        .route("/api/v1/telemetry/list", get(list))
        .route("/api/v1/telemetry/events", get(events))
        .route("/metrics", get(metrics_page))
        .route(
            "/api/v1/openapi.json",
            get(|| async { Json(Description::openapi()) }),
        )
        .fallback(|| async {
            let message = "unknown path: GET /api/v1/openapi.json lists the paths";
            refused(StatusCode::NOT_FOUND, message)
        })
        .with_state(Telemetry { queries, pushes })
}

impl IntoResponse for TelemetryRefused {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        refused(status, &self.to_string())
    }
}

/// The parameters of a request, or why they are refused.
fn given<P>(query: Result<Query<P>, QueryRejection>) -> Result<P, TelemetryRefused> {
    let query = query.map_err(|error| {
        // Without the words of the library that reads them.
        let text = error.body_text();
        let said = text.rsplit_once("query string: ");
        let said = said.map_or(&*text, |(_, said)| said);
        TelemetryRefused::Query(format!("the parameters of the request: {said}"))
    })?;
    Ok(query.0)
}

/// A number within its bounds.
fn within(
    name: &str,
    given: Option<usize>,
    default: usize,
    max: usize,
) -> Result<usize, TelemetryRefused> {
    let number = given.unwrap_or(default);
    if !(1..=max).contains(&number) {
        let message = format!("{name}={number}: write a number from 1 to {max}");
        return Err(TelemetryRefused::Query(message));
    }
    Ok(number)
}

/// Returns what the collector has counted until a second ago.
#[utoipa::path(get, path = "/api/v1/telemetry/status", responses(
    (status = 200, body = serde_json::Value), (status = 503, body = Refusal)))]
async fn status(
    State(telemetry): State<Telemetry>,
) -> Result<Json<TelemetryStatus>, TelemetryRefused> {
    telemetry.queries.status().map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeyParams {
    /// The key, as people write it: `10.0.0.1`, `10.0.0.1:1024 > 10.0.0.2:80 tcp`, `node 7`, `node 7
    /// port 3 queue 1`, `node 7 10.0.0.1:1024 > 10.0.0.2:80 tcp`, `0x0a000001`.
    key: String,
    /// Look at this number of copies of the value, 1 to 4; 4.
    redundancy: Option<usize>,
    /// Answer only if this number of copies agrees, 1 to 4; 1.
    agree: Option<usize>,
}

/// Returns what is known of a key: its value and its counter.
#[utoipa::path(get, path = "/api/v1/telemetry/get", params(KeyParams), responses(
    (status = 200, body = TelemetryKey), (status = 400, body = Refusal),
    (status = 404, body = Refusal)))]
async fn key(
    State(telemetry): State<Telemetry>,
    query: Result<Query<KeyParams>, QueryRejection>,
) -> Result<Json<TelemetryKey>, TelemetryRefused> {
    let params = given(query)?;
    let redundancy = within("redundancy", params.redundancy, 4, 4)?;
    let agree = within("agree", params.agree, 1, redundancy)?;
    let [redundancy, agree] = [redundancy, agree].map(strata_wire::exact::<u8>);
    let answer = telemetry.queries.key(&params.key, redundancy, agree);
    answer.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PathParams {
    /// The flow, with a direction: `10.0.0.1:1024 > 10.0.0.2:80 tcp`. Or another key, of which
    /// postcards were reported.
    flow: String,
}

/// Returns the path of a flow, with the latency of each hop.
#[utoipa::path(get, path = "/api/v1/telemetry/path", params(PathParams), responses(
    (status = 200, body = TelemetryPath), (status = 400, body = Refusal),
    (status = 404, body = Refusal)))]
async fn path(
    State(telemetry): State<Telemetry>,
    query: Result<Query<PathParams>, QueryRejection>,
) -> Result<Json<TelemetryPath>, TelemetryRefused> {
    telemetry.queries.path(&given(query)?.flow).map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FlowsParams {
    /// Events of this list only, by its name or its number; of all lists of events.
    list: Option<String>,
    /// Events at this node only: its number, or its IPv4 address.
    node: Option<String>,
    /// Events at this port only.
    port: Option<u32>,
    /// Events at this queue only.
    queue: Option<u8>,
    /// Number of flows, up to 10,000; 1,000.
    number: Option<usize>,
}

/// Returns the flows in the events of lists, those with the most events first.
#[utoipa::path(get, path = "/api/v1/telemetry/flows", params(FlowsParams), responses(
    (status = 200, body = TelemetryFlows), (status = 400, body = Refusal),
    (status = 404, body = Refusal)))]
async fn flows(
    State(telemetry): State<Telemetry>,
    query: Result<Query<FlowsParams>, QueryRejection>,
) -> Result<Json<TelemetryFlows>, TelemetryRefused> {
    let params = given(query)?;
    let number = within("number", params.number, ENTRIES, ENTRIES_MAX)?;
    let node = params.node.as_deref().map(str::parse::<NodeId>).transpose();
    let node = node.map_err(|error| TelemetryRefused::Query(error.to_string()))?;
    let of = TelemetryEvents {
        list: params.list.as_deref(),
        node: node.map(|NodeId(id)| id),
        port: params.port,
        queue: params.queue,
    };
    let answer = telemetry.queries.flows(of, number);
    answer.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TopParams {
    /// Number of keys, up to 1024; 20.
    number: Option<usize>,
}

/// Returns the keys with the largest counts, and below which count keys may be missing.
#[utoipa::path(get, path = "/api/v1/telemetry/top", params(TopParams), responses(
    (status = 200, body = TelemetryTop), (status = 400, body = Refusal)))]
async fn top(
    State(telemetry): State<Telemetry>,
    query: Result<Query<TopParams>, QueryRejection>,
) -> Result<Json<TelemetryTop>, TelemetryRefused> {
    let number = within("number", given(query)?.number, TOP, TOP_MAX)?;
    telemetry.queries.top(number).map(Json)
}

/// Returns the lists that have names.
#[utoipa::path(get, path = "/api/v1/telemetry/lists", responses(
    (status = 200, body = Vec<TelemetryList>)))]
async fn lists(
    State(telemetry): State<Telemetry>,
) -> Result<Json<Vec<TelemetryList>>, TelemetryRefused> {
    telemetry.queries.lists().map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Its name or its number.
    name: String,
    /// Number of the last entries, up to 10,000; 1,000.
    last: Option<usize>,
}

/// Returns the last entries of a list, oldest first.
#[utoipa::path(get, path = "/api/v1/telemetry/list", params(ListParams), responses(
    (status = 200, body = Vec<serde_json::Value>), (status = 400, body = Refusal),
    (status = 404, body = Refusal)))]
async fn list(
    State(telemetry): State<Telemetry>,
    query: Result<Query<ListParams>, QueryRejection>,
) -> Result<Json<Vec<TelemetryEntry>>, TelemetryRefused> {
    let params = given(query)?;
    let last = within("last", params.last, ENTRIES, ENTRIES_MAX)?;
    telemetry.queries.list(&params.name, last).map(Json)
}

/// Sends immediate reports as they come, until the client goes: server-sent events. The data of an
/// event `report` are the report as JSON; an event `lost` says how many the client did not take in
/// time.
#[utoipa::path(get, path = "/api/v1/telemetry/events", responses(
    (status = 200, body = String, content_type = "text/event-stream"),
    (status = 503, body = Refusal)))]
async fn events(
    State(telemetry): State<Telemetry>,
    connection: Option<Extension<Connection>>,
) -> Response {
    match telemetry.pushes.subscribe() {
        Ok(subscription) => {
            if let Some(Extension(connection)) = connection {
                connection.lasts();
            }
            let head = [
                (header::CONTENT_TYPE, "text/event-stream"),
                (header::CACHE_CONTROL, "no-store"),
            ];
            (head, Body::new(subscription)).into_response()
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// Returns metrics for Prometheus: in its text format, or as OpenMetrics if `Accept` asks for that.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "text/plain"), (status = 503, body = Refusal)))]
async fn metrics_page(State(telemetry): State<Telemetry>, headers: HeaderMap) -> Response {
    match telemetry.queries.status() {
        Ok(status) => as_accepted(&headers, |format| metrics::page(&status, format)),
        Err(error) => error.into_response(),
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Strata telemetry",
        description = "Asks a running telemetry collector."
    ),
    paths(status, key, path, flows, top, lists, list, events, metrics_page)
)]
struct Description;
