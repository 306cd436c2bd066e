//! The HTTP API of a controller. Agents ask over TLS: with the token to enrol, with their certificate
//! for all else; administrators over the Unix socket, and nowhere else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use strata_agent::{
    AgentStatus, Applied, Assignment, CollectorReport, DestinationSum, DocumentFile, EVENTS_MAX,
    Enrol, Enrolled, Event, Renew, Report, Rollout, check_why,
};
use strata_auth::authority::Fingerprint;
use tokio::time::timeout;

use super::connections::Connection;
use super::{
    Admit, Endpoints, ListenError, Server, Shown, TcpEndpoint, Who, as_accepted, bounded, refused,
    serve_routers,
};
use crate::agents::{AgentsRefused, AgentsService, By};

/// Bytes of a request of somebody who has shown nothing yet.
const ENROL_BYTES: usize = 4 << 10;
/// Bytes of a report: of as many interfaces and sessions as an agent or a collector may have.
const REPORT_BYTES: usize = 2 << 20;
/// Bytes of a directory: of as many policies as there may be.
const APPLY_BYTES: usize = 32 << 20;
/// Requests of an agent at the same time: one, and one that comes before the end of an interrupted one is noticed, or
/// from a second agent with the same certificate, which is to be told.
const AT_ONCE: u8 = 2;
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

/// Serves a controller's metrics, and nothing else, over plain HTTP at this address, on a thread of its own.
///
/// # Errors
///
/// If it cannot listen there.
pub fn serve_fleet_metrics(
    service: Arc<dyn AgentsService>,
    address: &str,
    warn: impl FnOnce(String) + Send + 'static,
) -> Result<Server, ListenError> {
    let app = Router::new().route("/metrics", get(metrics_page));
    let app = bounded(app.with_state(service), ENROL_BYTES);
    let endpoints = Endpoints {
        socket: None,
        tcp: Some(TcpEndpoint {
            address: address.to_owned(),
            admit: Admit::Anyone,
            tls: None,
        }),
    };
    serve_routers(Router::new(), app, endpoints, warn, async {})
}

async fn metrics_page(State(service): Service, headers: HeaderMap) -> Response {
    as_accepted(&headers, |format| service.metrics(format))
}

fn agents(service: Arc<dyn AgentsService>) -> Router {
    let asking = Asking {
        service: Arc::clone(&service),
        now: Arc::default(),
    };
    Router::new()
        .route("/agents/v1/renew", post(renew))
        .route("/agents/v1/report", post(report))
        .route("/agents/v1/collected", post(collected))
        .layer(middleware::from_fn_with_state(asking, only_agents))
        .route(
            "/agents/v1/enrol",
            post(enrol).layer(DefaultBodyLimit::max(ENROL_BYTES)),
        )
        .with_state(service)
}

/// Agents that ask at the moment, with the number of their requests: few, so that one cannot take up memory.
#[derive(Clone)]
struct Asking {
    service: Arc<dyn AgentsService>,
    now: Arc<Mutex<HashMap<Fingerprint, u8>>>,
}

/// Its place among those that ask.
struct Place(Arc<Mutex<HashMap<Fingerprint, u8>>>, Fingerprint);

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = now.get_mut(&self.1) {
            *requests -= 1;
            if *requests == 0 {
                now.remove(&self.1);
            }
        }
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
    {
        let mut now = asking.now.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = now.entry(shown).or_insert(0);
        if *requests >= AT_ONCE {
            let what = "other requests of this agent are still open";
            return Err(AgentsRefused::Busy(what.to_owned()));
        }
        *requests += 1;
    }
    let _place = Place(asking.now, shown);
    Ok(next.run(request).await)
}

fn administration(service: Arc<dyn AgentsService>) -> Router {
    Router::new()
        .route("/api/v1/agents", get(list))
        .route("/api/v1/agents/rollout", get(rollout))
        .route("/api/v1/agents/log", get(log))
        .route("/api/v1/agents/sums", get(sums))
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
    /// Why; empty if it was not said.
    #[serde(default)]
    pub(crate) why: String,
}

/// To return to the version before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UndoRequest {
    #[serde(default)]
    pub(crate) why: String,
}

/// How many events to list.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LogRequest {
    pub(crate) most: Option<usize>,
}

/// An agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) why: String,
}

impl AgentRequest {
    pub(crate) fn new(name: &str, why: &str) -> Self {
        Self {
            name: name.to_owned(),
            why: why.to_owned(),
        }
    }
}

impl IntoResponse for AgentsRefused {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Stranger(_) => StatusCode::FORBIDDEN,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Copy(_) => StatusCode::CONFLICT,
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

async fn enrol(
    State(service): Service,
    Extension(from): Extension<SocketAddr>,
    Json(request): Json<Enrol>,
) -> Answer<Enrolled> {
    service.enrol(&request, &address(from)).map(Json)
}

fn address(from: SocketAddr) -> String {
    from.ip().to_canonical().to_string()
}

/// Says, when it is dropped, that the connection of a run has ended, unless its request was answered.
struct Held {
    service: Arc<dyn AgentsService>,
    who: Fingerprint,
    run: u64,
    is_answered: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_answered {
            self.service.left(&self.who, self.run);
        }
    }
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
    Extension(from): Extension<SocketAddr>,
    Json(report): Json<Report>,
) -> Answer<Option<Assignment>> {
    let who = shown(who)?;
    // Before the look: the waiting request sees what changes after it.
    let mut changes = service.changes();
    let run = report.run;
    let found = service.report(&who, report, &address(from))?;
    connection.prove();
    if found.is_some() {
        return Ok(Json(found));
    }
    let mut held = Held {
        service: Arc::clone(&service),
        who,
        run,
        is_answered: false,
    };
    let changed = timeout(HOLD, changes.changed()).await;
    held.is_answered = true;
    match changed {
        Ok(Ok(())) => service.assignment(&who).map(Json),
        Ok(Err(_)) | Err(_) => Ok(Json(None)),
    }
}

async fn collected(
    State(service): Service,
    Extension(who): Extension<Shown>,
    Extension(connection): Extension<Connection>,
    Extension(from): Extension<SocketAddr>,
    Json(report): Json<CollectorReport>,
) -> Answer<()> {
    let who = shown(who)?;
    let run = report.run;
    service.collected(&who, report, &address(from))?;
    connection.prove();
    // A collector's report is answered at once, so between two of them only its connection shows whether this run is
    // still there. Without this, one that starts again would be taken for a copy.
    connection.keep(|| Held {
        service,
        who,
        run,
        is_answered: false,
    });
    Ok(Json(()))
}

async fn sums(State(service): Service) -> Json<Vec<DestinationSum>> {
    Json(service.sums())
}

async fn list(State(service): Service) -> Json<Vec<AgentStatus>> {
    Json(service.agents())
}

async fn rollout(State(service): Service) -> Json<Rollout> {
    Json(service.rollout())
}

async fn log(State(service): Service, Query(request): Query<LogRequest>) -> Json<Vec<Event>> {
    Json(service.events(request.most.map_or(EVENTS_MAX, |most| most.min(EVENTS_MAX))))
}

fn by(Who(who): Who, why: String) -> Result<By, AgentsRefused> {
    check_why(&why).map_err(|error| AgentsRefused::Wrong(error.to_string()))?;
    Ok(By { who, why })
}

async fn apply(
    State(service): Service,
    Extension(who): Extension<Who>,
    Json(request): Json<ApplyRequest>,
) -> Answer<Applied> {
    let by = by(who, request.why)?;
    service
        .apply(&request.files, request.dry_run, &by)
        .map(Json)
}

async fn undo(
    State(service): Service,
    Extension(who): Extension<Who>,
    Json(request): Json<UndoRequest>,
) -> Answer<Applied> {
    service.undo(&by(who, request.why)?).map(Json)
}

async fn revoke(
    State(service): Service,
    Extension(who): Extension<Who>,
    Json(request): Json<AgentRequest>,
) -> Answer<()> {
    let by = by(who, request.why)?;
    service.revoke(&request.name, &by).map(Json)
}

async fn forget(
    State(service): Service,
    Extension(who): Extension<Who>,
    Json(request): Json<AgentRequest>,
) -> Answer<()> {
    let by = by(who, request.why)?;
    service.forget(&request.name, &by).map(Json)
}
