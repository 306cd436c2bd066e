//! The paths of the API, as `openapi.yaml` describes them.

pub(crate) mod assets;

mod change;
#[cfg(test)]
mod described;
mod export;
mod look;
mod parameters;
mod verify;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router, middleware};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strata_control::api::Connection;
use strata_log_views::answers::parts::RecorderEvent;
use strata_log_views::answers::refused::Refused;
use strata_log_views::search::series::Series;
use strata_log_views::work::body::pushed;
use strata_log_views::work::child;
use strata_wire::{clamped, unix_ns};
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::access::audit::AuditEvent;
use crate::access::trust::{self, Gate, Login, Role, Who, admit};
use crate::app::App;
use crate::ask;
use crate::ask::{AnswerTable, Askable};
use crate::recorders::{self, Recorder, RecorderSummary};
use crate::saved::KeptQuestion;

/// Maximum bytes of a request's body, and maximum time for it.
const BODY_BYTES: usize = 64 << 10;
const BODY: Duration = Duration::from_secs(10);
/// Maximum bytes of a request's target.
const TARGET_BYTES_MAX: usize = 16 << 10;

type Shared = State<Arc<App>>;
type Answer<T> = Result<Json<T>, Refused>;

/// Everything that is served.
pub(crate) fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/session", get(session).post(log_in).delete(log_out))
        .route("/audit", get(audit))
        .route("/live", get(live))
        .route("/recorders", get(all_recorders))
        .route("/recorders/{recorder}/history", get(history))
        .route("/recorders/{recorder}/events", get(events))
        .route(
            "/recorders/{recorder}/events/{event}/acknowledge",
            post(change::acknowledge),
        )
        .route("/recorders/{recorder}/mode", put(change::mode))
        .route("/recorders/{recorder}/detail", put(change::detail))
        .route("/recorders/{recorder}/rotate", post(change::rotate))
        .route(
            "/recorders/{recorder}/policies",
            get(change::policies).post(change::add_policy),
        )
        .route(
            "/recorders/{recorder}/policies/{policy}",
            delete(change::remove_policy),
        )
        .route("/policies/check", post(look::check_policy))
        .route("/filter/check", get(look::check_filter))
        .route("/filter/complete", get(look::complete_filter))
        .route("/logs", get(look::logs))
        .route("/logs/{log}/series", get(look::series))
        .route("/logs/{log}/search", get(look::search))
        .route("/searches/{search}/flows", get(look::flows))
        .route("/logs/{log}/flows/{flow}/packets", get(look::flow_packets))
        .route("/logs/{log}/packets/{packet}", get(look::packet))
        .route("/logs/{log}/export", get(export::export))
        .route("/logs/{log}/reasons", get(look::reasons))
        .route("/logs/{log}/storage", get(look::storage))
        .route("/logs/{log}/models", get(look::models))
        .route("/logs/{log}/verify", get(verify::verify))
        .route("/logs/{log}/labels", post(change::label))
        .route("/fleet", get(fleet))
        .route("/ask", get(askable).post(question))
        .route("/questions", get(questions).post(change::keep_question))
        .route("/questions/{name}", delete(change::forget_question))
        .method_not_allowed_fallback(not_allowed)
        .route_layer(middleware::from_fn(parameters::known));
    Router::new()
        .nest("/api/v1", api)
        .fallback(assets::asset)
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(Arc::clone(&app.gate), admit))
        .with_state(app)
}

async fn not_allowed() -> Refused {
    let error = "this path does not support the method: see crates/run/serve/openapi.yaml";
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", error)
}

/// Refuses what is too long before anything looks at it.
async fn bounded(request: Request, next: middleware::Next) -> Response {
    let target = request.uri().path_and_query();
    if target.is_some_and(|target| target.as_str().len() > TARGET_BYTES_MAX) {
        let error = format!("the URL is longer than {TARGET_BYTES_MAX} bytes");
        return Refused::new(StatusCode::URI_TOO_LONG, "too_large", error).into_response();
    }
    next.run(request).await
}

/// The parameters of a request.
fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refused> {
    let query = Query::try_from_uri(uri);
    let query = query.map_err(|error| Refused::invalid("query", error.to_string()))?;
    Ok(query.0)
}

/// A request's body, whole and in time.
async fn bytes(body: Body) -> Result<Vec<u8>, Refused> {
    let read = timeout(BODY, to_bytes(body, BODY_BYTES)).await;
    let late = |_| {
        let error = "the request was not complete in time";
        Refused::new(StatusCode::REQUEST_TIMEOUT, "timeout", error)
    };
    let read = read.map_err(late)?;
    let read = read.map_err(|_| {
        let error = format!("the request's body is cut off, or longer than {BODY_BYTES} bytes");
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error)
    })?;
    Ok(read.into())
}

async fn body<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let read = bytes(body).await?;
    serde_json::from_slice(&read).map_err(|error| Refused::invalid("body", error.to_string()))
}

fn recorder(app: &App, id: &str) -> Result<Arc<Recorder>, Refused> {
    let found = app.recorders.iter().find(|recorder| recorder.id == id);
    let missing = || Refused::not_found(format!("unknown recorder '{id}'"));
    found.cloned().ok_or_else(missing)
}

/// The user, their roles, and the logs and recorders of this server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "user": "local",
    "roles": ["look", "payload", "change"],
    "read_only": false,
    "keeps": true,
    "login": "none",
    "expires": null,
    "version": "0.9.0",
    "logs": [{"id": "0", "path": "/var/log/strata/edge"}],
    "recorders": [{"id": "0", "socket": "/run/strata/record-4711/control.sock", "log": "0"}],
    "fleet": "/var/lib/strata/controller/control.sock",
    "tshark": true,
    "sql": false,
}))]
struct Session {
    /// `local`, `token`, or as the proxy says.
    user: String,
    roles: Vec<Role>,
    /// Started with --read-only.
    read_only: bool,
    /// Started with --state: questions and labels are kept by the server.
    keeps: bool,
    login: LoginKind,
    /// When the session expires.
    #[schema(required)]
    expires: Option<String>,
    version: &'static str,
    logs: Vec<SessionLog>,
    recorders: Vec<SessionRecorder>,
    /// Socket of the controller whose fleet is shown; null without --fleet.
    #[schema(required)]
    fleet: Option<String>,
    tshark: bool,
    sql: bool,
}

/// How users log in.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum LoginKind {
    None,
    Token,
    Certificate,
    Proxy,
}

/// A log of this server.
#[derive(Debug, Serialize, ToSchema)]
struct SessionLog {
    id: String,
    path: String,
}

/// A recorder of this server.
#[derive(Debug, Serialize, ToSchema)]
struct SessionRecorder {
    id: String,
    socket: String,
    /// `id` of its log, if it is one of these.
    #[schema(required)]
    log: Option<String>,
}

fn session_of(app: &App, who: &Who) -> Session {
    let mut roles = Role::ALL.to_vec();
    roles.retain(|role| who.may(*role, app.spec.read_only).is_ok());
    let expires = who.expires.map(|end| {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let left = clamped::<u64>(left.as_nanos());
        strata_log_views::answers::times::text(unix_ns().saturating_add(left))
    });
    let logs = app.logs.iter();
    let logs = logs.map(|(id, dir)| SessionLog {
        id,
        path: dir.display().to_string(),
    });
    let recorders = app.recorders.iter();
    let recorders = recorders.map(|recorder| SessionRecorder {
        id: recorder.id.clone(),
        socket: recorder.socket.display().to_string(),
        log: recorder.log().and_then(|log| app.logs.id_of(&log)),
    });
    let controller = app.fleet.as_ref();
    Session {
        user: who.name.clone(),
        roles,
        read_only: app.spec.read_only,
        keeps: app.saved.keeps(),
        login: match app.gate.login {
            Login::None => LoginKind::None,
            Login::Tokens(_) => LoginKind::Token,
            Login::Certificate(_) => LoginKind::Certificate,
            Login::Proxy { .. } => LoginKind::Proxy,
        },
        expires,
        version: env!("CARGO_PKG_VERSION"),
        logs: logs.collect(),
        recorders: recorders.collect(),
        fleet: controller.map(|controller| controller.socket().display().to_string()),
        tshark: child::find("tshark", None).is_some(),
        sql: ask::has_sql(app),
    }
}

async fn session(State(app): Shared, Extension(who): Extension<Who>) -> Json<Session> {
    Json(session_of(&app, &who))
}

#[derive(Deserialize)]
struct LogIn {
    token: String,
}

async fn log_in(
    State(app): Shared,
    peer: Option<Extension<SocketAddr>>,
    given: Body,
) -> Result<Response, Refused> {
    let given: LogIn = body(given).await?;
    let peer = peer.map(|Extension(peer)| peer.ip());
    let (cookie, who) = trust::log_in(&app.gate, peer, &given.token)?;
    app.audit.note(&who.name, "logged in", "");
    Ok(([(header::SET_COOKIE, cookie)], Json(session_of(&app, &who))).into_response())
}

async fn log_out(State(app): Shared, headers: HeaderMap) -> Response {
    let cookie = trust::log_out(&app.gate, &headers);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

async fn audit(State(app): Shared) -> Json<Vec<AuditEvent>> {
    Json(app.audit.latest())
}

async fn live(
    State(app): Shared,
    Extension(who): Extension<Who>,
    connection: Option<Extension<Connection>>,
    headers: HeaderMap,
) -> Response {
    let gate = Arc::clone(&app.gate);
    let session = Gate::session(&who, &headers).map(str::to_owned);
    let may_listen = move || session.as_deref().is_none_or(|session| gate.holds(session));
    let connection = connection.map(|Extension(connection)| connection);
    if let Some(connection) = &connection {
        connection.lasts();
    }
    let (pieces, body) = pushed();
    let ticks = app.ticks.subscribe();
    tokio::spawn(recorders::feed(ticks, pieces, (may_listen, connection)));
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    (kind, Body::new(body)).into_response()
}

async fn all_recorders(State(app): Shared) -> Json<Vec<RecorderSummary>> {
    let recorders = app.recorders.iter();
    Json(recorders.map(|one| one.summary(&app.logs)).collect())
}

async fn history(State(app): Shared, Path(id): Path<String>) -> Answer<Series> {
    Ok(Json(recorder(&app, &id)?.history()))
}

async fn events(State(app): Shared, Path(id): Path<String>) -> Answer<Vec<RecorderEvent>> {
    Ok(Json(recorder(&app, &id)?.events()))
}

async fn fleet(State(app): Shared) -> Result<Response, Refused> {
    let none = "this server shows no fleet: start strata serve with --fleet and the controller's directory";
    let controller = app.fleet.clone();
    let controller = controller.ok_or_else(|| Refused::not_found(none))?;
    let fleet = app.work.short(move |_| controller.fleet()).await?;
    Ok(Json(&*fleet).into_response())
}

async fn askable(State(app): Shared) -> Json<Askable> {
    Json(ask::askable(&app))
}

async fn questions(State(app): Shared) -> Answer<Vec<KeptQuestion>> {
    let shared = Arc::clone(&app);
    let questions = app.work.short(move |_| shared.saved.questions());
    Ok(Json(questions.await?))
}

/// SQL may read payload, and an answer may be of any bytes.
async fn question(
    State(app): Shared,
    Extension(who): Extension<Who>,
    given: Body,
) -> Answer<AnswerTable> {
    who.may(Role::Payload, app.spec.read_only)?;
    let asked: ask::Question = body(given).await?;
    Ok(Json(ask::ask(&app, &who, &asked).await?))
}
