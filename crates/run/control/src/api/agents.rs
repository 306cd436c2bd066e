//! The HTTP API of a controller. Agents ask over TLS: with the token to enrol, with their certificate
//! for all else; administrators over the Unix socket, and nowhere else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use strata_agent::{
    AgentStatus, Applied, Assignment, DocumentFile, Enrol, Enrolled, Renew, Report, Rollout,
};
use strata_auth::authority::Fingerprint;
use tokio::time::timeout;

use super::connections::Connection;
use super::{Endpoints, ListenError, Server, Shown, bounded, refused, serve_routers};
use crate::agents::{AgentsRefused, AgentsService};

/// Bytes of a request of somebody who has shown nothing yet.
const ENROL_BYTES: usize = 4 << 10;
/// Bytes of a report: of as many interfaces as an agent may have.
const REPORT_BYTES: usize = 1 << 20;
/// Bytes of a directory: of as many policies as there may be.
const APPLY_BYTES: usize = 32 << 20;
/// How long the answer to a report waits for something new. The agent asks again then.
const HOLD: Duration = Duration::from_secs(5);

type Service = State<Arc<dyn AgentsService>>;
type Answer<T> = Result<Json<T>, AgentsRefused>;

/// Serves a controller on a thread of its own. `warn` gets what does not work as it should.
///
/// # Errors
///
/// If it cannot listen somewhere.
pub fn serve_agents(
    service: Arc<dyn AgentsService>,
    endpoints: Endpoints,
    warn: impl FnOnce(String) + Send + 'static,
) -> Result<Server, ListenError> {
    let local = bounded(administration(Arc::clone(&service)), APPLY_BYTES);
    let remote = bounded(agents(service), REPORT_BYTES);
    serve_routers(local, remote, endpoints, warn, async {})
}

fn agents(service: Arc<dyn AgentsService>) -> Router {
    let asking = Asking {
        service: Arc::clone(&service),
        now: Arc::default(),
    };
    Router::new()
        .route("/agents/v1/renew", post(renew))
        .route("/agents/v1/report", post(report))
        .layer(middleware::from_fn_with_state(asking, only_agents))
        .route(
            "/agents/v1/enrol",
            post(enrol).layer(DefaultBodyLimit::max(ENROL_BYTES)),
        )
        .with_state(service)
}

/// Agents that ask at the moment: each one thing at a time, so that one cannot take up memory.
#[derive(Clone)]
struct Asking {
    service: Arc<dyn AgentsService>,
    now: Arc<Mutex<HashSet<Fingerprint>>>,
}

/// Its place among those that ask.
struct Place(Arc<Mutex<HashSet<Fingerprint>>>, Fingerprint);

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.remove(&self.1);
    }
}

/// Refuses others before their request is read.
async fn only_agents(
    State(asking): State<Asking>,
    Extension(Shown(shown)): Extension<Shown>,
    request: Request,
    next: Next,
) -> Result<Response, AgentsRefused> {
    let what = "only agents may request this, with their certificate: enrol first";
    let shown = shown.ok_or_else(|| AgentsRefused::Stranger(what.to_owned()))?;
    asking.service.knows(&shown)?;
    let is_first = asking
        .now
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(shown);
    if !is_first {
        let what =
            "a request of this agent is still open: is another agent running with its state?";
        return Err(AgentsRefused::Busy(what.to_owned()));
    }
    let _place = Place(asking.now, shown);
    Ok(next.run(request).await)
}

fn administration(service: Arc<dyn AgentsService>) -> Router {
    Router::new()
        .route("/api/v1/agents", get(list))
        .route("/api/v1/agents/rollout", get(rollout))
        .route("/api/v1/agents/apply", post(apply))
        .route("/api/v1/agents/undo", post(undo))
        .route("/api/v1/agents/revoke", post(revoke))
        .route("/api/v1/agents/forget", post(forget))
        .with_state(service)
}

/// Files to apply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ApplyRequest {
    pub(crate) files: Vec<DocumentFile>,
    pub(crate) dry_run: bool,
}

/// An agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    pub(crate) name: String,
}

impl IntoResponse for AgentsRefused {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Stranger(_) => StatusCode::FORBIDDEN,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        refused(status, &self.to_string())
    }
}

fn shown(shown: Shown) -> Result<Fingerprint, AgentsRefused> {
    let what = "only agents may request this, with their certificate: enrol first";
    shown
        .0
        .ok_or_else(|| AgentsRefused::Stranger(what.to_owned()))
}

async fn enrol(State(service): Service, Json(request): Json<Enrol>) -> Answer<Enrolled> {
    service.enrol(&request).map(Json)
}

async fn renew(
    State(service): Service,
    Extension(who): Extension<Shown>,
    Json(request): Json<Renew>,
) -> Answer<Enrolled> {
    service.renew(&shown(who)?, &request).map(Json)
}

async fn report(
    State(service): Service,
    Extension(who): Extension<Shown>,
    Extension(connection): Extension<Connection>,
    Json(report): Json<Report>,
) -> Answer<Option<Assignment>> {
    let who = shown(who)?;
    // Before the look: the waiting request sees what changes after it.
    let mut changes = service.changes();
    let found = service.report(&who, report)?;
    connection.prove();
    if found.is_some() {
        return Ok(Json(found));
    }
    match timeout(HOLD, changes.changed()).await {
        Ok(Ok(())) => service.assignment(&who).map(Json),
        Ok(Err(_)) | Err(_) => Ok(Json(None)),
    }
}

async fn list(State(service): Service) -> Json<Vec<AgentStatus>> {
    Json(service.agents())
}

async fn rollout(State(service): Service) -> Json<Rollout> {
    Json(service.rollout())
}

async fn apply(State(service): Service, Json(request): Json<ApplyRequest>) -> Answer<Applied> {
    service.apply(&request.files, request.dry_run).map(Json)
}

async fn undo(State(service): Service) -> Answer<Applied> {
    service.undo().map(Json)
}

async fn revoke(State(service): Service, Json(request): Json<AgentRequest>) -> Answer<()> {
    service.revoke(&request.name).map(Json)
}

async fn forget(State(service): Service, Json(request): Json<AgentRequest>) -> Answer<()> {
    service.forget(&request.name).map(Json)
}
