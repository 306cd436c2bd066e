//! The HTTP API: on a Unix socket, and with a token or mutual TLS on TCP.

pub mod client;
pub(crate) mod secrets;

mod agents;
mod collector;
mod connections;
mod listen;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use http_body_util::BodyExt as _;
use strata_auth::authority::Fingerprint;
use strata_sandbox::{Role, SocketFile, restrict_thread};
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::OpenApi;

use crate::controller::{ControlError, Controller, Event};
use crate::metrics::{self, Format};
use crate::queries::{QueryAnswer, QueryRefused, QueryStatus};
use crate::request::{
    DetailRequest, ExportTimesRequest, ModeRequest, ModelRequest, PolicyAdded, PolicyRequest,
    QueryRequest, Refusal,
};
use crate::status::{PolicyStatus, Status};
use connections::Limits;

pub use crate::endpoint::{Admit, TcpEndpoint};
pub(crate) use agents::{AgentRequest, ApplyRequest, UndoRequest};
pub use agents::{serve_agents, serve_fleet_metrics};
pub use collector::serve_collector;
pub use connections::Connection;
pub use listen::{TellRefused, tcp as serve_tcp};

/// Maximum bytes of a request's body.
pub const BODY_BYTES: usize = 64 << 10;
/// Maximum bytes of what a library says of a refusal.
const SAID_BYTES: usize = 4 << 10;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// How long a request may take, including its body.
const REQUEST: Duration = Duration::from_secs(10);

/// How long those who are attached may take for what waits for them when the recording ends.
pub const LAST_VECTORS: Duration = Duration::from_secs(2);

/// Where the API listens.
#[derive(Debug, Default)]
pub struct Endpoints {
    /// The Unix socket.
    pub socket: Option<SocketFile>,
    /// TCP.
    pub tcp: Option<TcpEndpoint>,
}

/// Why the API cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("{place}: cannot listen: {source}")]
pub struct ListenError {
    place: String,
    source: io::Error,
}

/// A running API. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Removed once no client is being served.
    _socket: Option<SocketFile>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves the API on a thread of its own.
///
/// # Errors
///
/// If it cannot listen somewhere.
pub fn serve(controller: Arc<Controller>, endpoints: Endpoints) -> Result<Server, ListenError> {
    let subscribers = Arc::clone(controller.subscribers());
    let reported = Arc::clone(&controller);
    let warn = move |text| reported.report(text);
    let ending = async move {
        subscribers.close();
        let _ = timeout(LAST_VECTORS, subscribers.all_gone()).await;
    };
    let app = bounded(router(controller), BODY_BYTES);
    serve_routers(app.clone(), app, endpoints, warn, ending)
}

/// Serves an application on a thread of its own, to those who may ask by the Unix socket, and one by
/// TCP. `warn` gets what does not work as it should; `ending` is what is still done before requests in progress are
/// dropped.
///
/// # Errors
///
/// If it cannot listen somewhere.
pub fn serve_routers(
    local: Router,
    remote: Router,
    endpoints: Endpoints,
    warn: impl FnOnce(String) + Send + 'static,
    ending: impl Future<Output = ()> + Send + 'static,
) -> Result<Server, ListenError> {
    let at = |place: &str| {
        let place = place.to_owned();
        move |source| ListenError { place, source }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(at("API"))?;
    let guard = runtime.enter();
    let unix = match &endpoints.socket {
        None => None,
        Some(socket) => Some(accepting(socket).map_err(at(&socket.path().display().to_string()))?),
    };
    let tcp = match endpoints.tcp {
        None => None,
        Some(tcp) => {
            let bound = std::net::TcpListener::bind(&tcp.address).and_then(|listener| {
                // A burst of clients waits, instead of trying again after a second.
                rustix::net::listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            });
            Some((bound.map_err(at(&tcp.address))?, tcp))
        }
    };
    drop(guard);
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        if let Err(error) = restrict_thread(Role::Server) {
            warn(format!(
                "the API runs without its own system-call filter: {error}"
            ));
        }
        runtime.block_on(async move {
            if let Some(listener) = unix {
                let app = local.layer(middleware::from_fn(say_who_by_socket));
                tokio::spawn(listen::unix(listener, app));
            }
            if let Some((listener, endpoint)) = tcp {
                let limits = match endpoint.admit {
                    Admit::Agents => Limits::agents(),
                    Admit::Token(_) | Admit::Certificate | Admit::Anyone => Limits::tcp(),
                };
                let app = guarded(remote, endpoint.admit);
                tokio::spawn(listen::tcp_within(
                    listener,
                    app,
                    (endpoint.tls, Arc::new(|_, _| ())),
                    limits,
                ));
            }
            // Requests in progress at the end are dropped with the runtime.
            let _ = stopped.await;
            ending.await;
        });
    };
    let thread = thread::Builder::new().name("strata-api".into()).spawn(work);
    Ok(Server {
        stop: Some(stop),
        thread: Some(thread.map_err(at("cannot start the thread of the API"))?),
        _socket: endpoints.socket,
    })
}

/// The API for authorized clients.
pub fn admitted(controller: Arc<Controller>, admit: Admit) -> Router {
    guarded(bounded(router(controller), BODY_BYTES), admit)
}

fn guarded(app: Router, admit: Admit) -> Router {
    match admit {
        Admit::Token(token) => {
            let token = Arc::<str>::from(token);
            app.layer(middleware::from_fn_with_state(token, ask_for_token))
        }
        Admit::Certificate => app.layer(middleware::from_fn(say_who_by_certificate)),
        // Each request says what it needs.
        Admit::Agents | Admit::Anyone => app,
    }
}

fn accepting(socket: &SocketFile) -> io::Result<UnixListener> {
    let listener = socket.listener().try_clone()?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn router(controller: Arc<Controller>) -> Router {
    Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/mode", put(set_mode))
        .route("/api/v1/detail", put(set_detail))
        .route("/api/v1/model", put(set_model))
        .route("/api/v1/policies", get(policies).post(add_policy))
        .route("/api/v1/policies/{id}", delete(remove_policy))
        .route("/api/v1/events", get(events))
        .route("/api/v1/rotate", post(rotate))
        .route("/api/v1/export/times", put(set_export_times))
        .route("/api/v1/vectors", get(vectors))
        .route("/api/v1/queries", get(queries).post(install_query))
        .route(
            "/api/v1/queries/{name}",
            get(query_answer).delete(remove_query),
        )
        .route(
            "/api/v1/openapi.json",
            get(|| async { Json(Description::openapi()) }),
        )
        .route("/metrics", get(metrics_page))
        .with_state(controller)
}

/// With limits on what a request may cost: bytes of its body, and time. Whatever it refuses it says
/// as [`Refusal`].
pub fn bounded(app: Router, body_bytes: usize) -> Router {
    app.layer(DefaultBodyLimit::max(body_bytes))
        .layer(middleware::from_fn_with_state(body_bytes, within_time))
        .layer(middleware::from_fn(refuses_alike))
}

/// Refusals by libraries (no such path, a body that is not JSON) in the form of ours.
async fn refuses_alike(request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    let status = answer.status();
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let is_ours = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (parts, body) = answer.into_parts();
    let said = axum::body::to_bytes(body, SAID_BYTES).await;
    let said = said.map(|said| String::from_utf8_lossy(&said).trim().to_owned());
    let said = said.ok().filter(|said| !said.is_empty());
    let message = said.as_deref().unwrap_or(match status {
        StatusCode::NOT_FOUND => "unknown path: GET /api/v1/openapi.json lists the paths",
        StatusCode::METHOD_NOT_ALLOWED => {
            "this path does not support the method: see GET /api/v1/openapi.json"
        }
        status => status.canonical_reason().unwrap_or("refused"),
    });
    let mut refusal = refused(status, message);
    for (name, value) in &parts.headers {
        if !matches!(*name, header::CONTENT_TYPE | header::CONTENT_LENGTH) {
            refusal.headers_mut().append(name, value.clone());
        }
    }
    refusal
}

/// Refuses a request that is too long, or not complete in time.
async fn within_time(State(most): State<usize>, request: Request, next: Next) -> Response {
    // A request that declares itself too long is refused at once.
    let least = request.body().size_hint().lower();
    if least > most as u64 {
        let message = format!("the request's body is longer than {most} bytes");
        return refused(StatusCode::PAYLOAD_TOO_LARGE, &message);
    }
    let answer = timeout(REQUEST, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let message = format!("the request was not complete after {} s", REQUEST.as_secs());
        refused(StatusCode::REQUEST_TIMEOUT, &message)
    })
}

/// Who sends a request.
#[derive(Clone, Debug)]
struct Who(String);

/// The user at the other end of the Unix socket, if known.
#[derive(Clone, Debug)]
struct Peer(Option<u32>);

/// The certificate that TLS has checked, if the other end has shown one.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub Option<Fingerprint>);

async fn say_who_by_socket(
    Extension(peer): Extension<Peer>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    connection.prove();
    let who = peer
        .0
        .map_or_else(|| String::from("socket"), |uid| format!("uid {uid}"));
    request.extensions_mut().insert(Who(who));
    next.run(request).await
}

/// TLS has checked the certificate before any request. Outside a server, as in the fuzz target of
/// the API, there is no connection to keep.
async fn say_who_by_certificate(
    connection: Option<Extension<Connection>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(Extension(connection)) = connection {
        connection.prove();
    }
    request.extensions_mut().insert(Who("certificate".into()));
    next.run(request).await
}

async fn ask_for_token(
    State(token): State<Arc<str>>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if !given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
        let message = "HTTP over TCP needs the header 'Authorization: Bearer TOKEN'";
        let answer = refused(StatusCode::UNAUTHORIZED, message);
        return ([(header::CONNECTION, "close")], answer).into_response();
    }
    connection.prove();
    request.extensions_mut().insert(Who("token".into()));
    next.run(request).await
}

/// A refusal with a message in plain English, as [`Refusal`].
pub fn refused(status: StatusCode, message: &str) -> Response {
    let error = message.to_owned();
    (status, Json(Refusal { error })).into_response()
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoSuchPolicy(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        refused(status, &self.to_string())
    }
}

impl IntoResponse for QueryRefused {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoSuch(_) => StatusCode::NOT_FOUND,
            Self::Taken(_) => StatusCode::CONFLICT,
            Self::TooMany | Self::Ends(_) | Self::Thread(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        refused(status, &self.to_string())
    }
}

/// Returns the status of the recording.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status)))]
async fn status(State(controller): State<Arc<Controller>>) -> Json<Status> {
    Json(controller.status())
}

/// Changes the mode.
#[utoipa::path(put, path = "/api/v1/mode", request_body = ModeRequest, responses(
    (status = 200, body = Status), (status = 400, body = Refusal)))]
async fn set_mode(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    Json(request): Json<ModeRequest>,
) -> Result<Json<Status>, ControlError> {
    let modes: Vec<String> = request.mode.split('+').map(str::to_owned).collect();
    let period = match request.seconds {
        None => None,
        Some(seconds) => {
            let period = Duration::try_from_secs_f64(seconds);
            Some(period.map_err(|_| ControlError::Period(seconds))?)
        }
    };
    controller.set_modes(&modes, period, &who, &request.why)?;
    Ok(Json(controller.status()))
}

/// Changes the budget of detail.
#[utoipa::path(put, path = "/api/v1/detail", request_body = DetailRequest, responses(
    (status = 200, body = Status), (status = 400, body = Refusal)))]
async fn set_detail(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    Json(request): Json<DetailRequest>,
) -> Result<Json<Status>, ControlError> {
    controller.set_detail(&request.detail, &who, &request.why)?;
    Ok(Json(controller.status()))
}

/// Promotes the shadow model, or goes back to the model that the recording was started with.
#[utoipa::path(put, path = "/api/v1/model", request_body = ModelRequest, responses(
    (status = 200, body = Status), (status = 400, body = Refusal)))]
async fn set_model(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    Json(request): Json<ModelRequest>,
) -> Result<Json<Status>, ControlError> {
    controller.put_in_force(request.in_force, &who, &request.why)?;
    Ok(Json(controller.status()))
}

/// Lists the policies with their hits.
#[utoipa::path(get, path = "/api/v1/policies", responses((status = 200, body = Vec<PolicyStatus>)))]
async fn policies(State(controller): State<Arc<Controller>>) -> Json<Vec<PolicyStatus>> {
    Json(controller.policies())
}

/// Adds a policy.
#[utoipa::path(post, path = "/api/v1/policies", request_body = PolicyRequest, responses(
    (status = 201, body = PolicyAdded), (status = 400, body = Refusal)))]
async fn add_policy(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    Json(request): Json<PolicyRequest>,
) -> Result<(StatusCode, Json<PolicyAdded>), ControlError> {
    let id = controller.add_policy(&request.policy, &who, &request.why)?;
    Ok((StatusCode::CREATED, Json(PolicyAdded { id })))
}

/// Removes a policy.
#[utoipa::path(delete, path = "/api/v1/policies/{id}", params(("id" = u32, Path, description = "Its number")),
    responses((status = 204), (status = 404, body = Refusal)))]
async fn remove_policy(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    UrlPath(id): UrlPath<u32>,
) -> Result<StatusCode, ControlError> {
    controller.remove_policy(id, &who, "")?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the events, oldest first.
#[utoipa::path(get, path = "/api/v1/events", responses((status = 200, body = Vec<Event>)))]
async fn events(State(controller): State<Arc<Controller>>) -> Json<Vec<Event>> {
    Json(controller.events())
}

/// Exports only packets of these times from now on: for a recording that takes over from another.
#[utoipa::path(put, path = "/api/v1/export/times", request_body = ExportTimesRequest, responses(
    (status = 204), (status = 400, body = Refusal)))]
async fn set_export_times(
    State(controller): State<Arc<Controller>>,
    Json(request): Json<ExportTimesRequest>,
) -> Result<StatusCode, ControlError> {
    controller.set_export_times(request)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts new files of the log.
#[utoipa::path(post, path = "/api/v1/rotate", responses(
    (status = 202), (status = 400, body = Refusal)))]
async fn rotate(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
) -> Result<StatusCode, ControlError> {
    controller.rotate(&who)?;
    Ok(StatusCode::ACCEPTED)
}

/// Sends grouped packet vectors of what is recorded, until the client goes: datagrams as in
/// docs/formats/gpv.md, each after its length in 4 bytes, little-endian. What the client does not
/// take in time is lost, and counted by its sequence numbers. At the end of the recording, JSON says
/// how many were sent.
#[utoipa::path(get, path = "/api/v1/vectors",
    params(("columns" = u16, Query, description = "Columns, by the bits of docs/formats/gpv.md")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, body = Refusal), (status = 503, body = Refusal)))]
async fn vectors(
    State(controller): State<Arc<Controller>>,
    connection: Option<Extension<Connection>>,
    uri: Uri,
) -> Response {
    let query = uri.query().unwrap_or("");
    let columns = query.strip_prefix("columns=").map(str::parse::<u16>);
    let Some(Ok(columns)) = columns else {
        let message = "write ?columns= and the columns as one number: docs/formats/gpv.md";
        return refused(StatusCode::BAD_REQUEST, message);
    };
    match controller.subscribers().attach(columns) {
        Ok(attached) => {
            if let Some(Extension(connection)) = connection {
                connection.lasts();
            }
            let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
            (kind, Body::new(attached)).into_response()
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// Lists the queries that are installed.
#[utoipa::path(get, path = "/api/v1/queries", responses((status = 200, body = Vec<QueryStatus>)))]
async fn queries(State(controller): State<Arc<Controller>>) -> Json<Vec<QueryStatus>> {
    Json(controller.queries().list())
}

/// Installs a query, which sees all packets from now on until it is removed or the recording
/// ends.
#[utoipa::path(post, path = "/api/v1/queries", request_body = QueryRequest, responses(
    (status = 201, body = QueryStatus), (status = 400, body = Refusal),
    (status = 409, body = Refusal), (status = 503, body = Refusal)))]
async fn install_query(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    Json(request): Json<QueryRequest>,
) -> Result<(StatusCode, Json<QueryStatus>), QueryRefused> {
    let installed = controller.install_query(&request, &who)?;
    Ok((StatusCode::CREATED, Json(installed)))
}

/// Returns what an installed query has found so far.
#[utoipa::path(get, path = "/api/v1/queries/{name}", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = QueryAnswer), (status = 404, body = Refusal),
        (status = 503, body = Refusal)))]
async fn query_answer(
    State(controller): State<Arc<Controller>>,
    UrlPath(name): UrlPath<String>,
) -> Response {
    // Held until the answer is sent, or its client gone: answers may be large.
    let Some(sending) = controller.queries().sending() else {
        let message = "too many query answers are being sent: try again in a moment";
        return refused(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    let answer = match controller.queries().answer(&name) {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => return error.into_response(),
    };
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &sending;
            frame
        }))
    })
}

/// Removes an installed query, and what it found.
#[utoipa::path(delete, path = "/api/v1/queries/{name}", params(("name" = String, Path, description = "Its name")),
    responses((status = 204), (status = 404, body = Refusal)))]
async fn remove_query(
    State(controller): State<Arc<Controller>>,
    Extension(Who(who)): Extension<Who>,
    UrlPath(name): UrlPath<String>,
) -> Result<StatusCode, QueryRefused> {
    controller.remove_query(&name, &who)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns metrics for Prometheus: in its text format, or as OpenMetrics if `Accept` asks for that.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_page(State(controller): State<Arc<Controller>>, headers: HeaderMap) -> Response {
    as_accepted(&headers, |format| metrics::text(&controller, format))
}

/// A page of metrics, in the format that a request asks for.
pub fn as_accepted(headers: &HeaderMap, page: impl FnOnce(Format) -> String) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let kind = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, "accept"),
    ];
    (kind, page(format)).into_response()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Strata",
        description = "Steers a running recording. Every refused request, even for a path that \
                       does not exist, is answered with a Refusal in JSON."
    ),
    paths(
        status,
        set_mode,
        set_detail,
        set_model,
        policies,
        add_policy,
        remove_policy,
        events,
        rotate,
        set_export_times,
        vectors,
        queries,
        install_query,
        query_answer,
        remove_query,
        metrics_page
    )
)]
struct Description;
