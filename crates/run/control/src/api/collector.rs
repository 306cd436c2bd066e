//! The HTTP API of a collector that writes a stream: what it has received, on its Unix socket.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use strata_sandbox::SocketFile;

use super::{
    BODY_BYTES, Endpoints, ListenError, Server, as_accepted, bounded, refused, serve_routers,
};
use crate::controller::{CollectorBoard, Event};
use crate::metrics;
use crate::status::CollectorStatus;

/// Why it does nothing else.
const NO_LOG: &str = "this collector writes a stream, so it has no files to rotate, modes, policies, models or queries: \
                      `strata status` shows it; with -o, it records a log";

type Board = State<Arc<CollectorBoard>>;

/// The status, in the place that it has in that of a recording.
#[derive(Debug, Serialize)]
struct Shown {
    collector: CollectorStatus,
}

/// Serves what a collector publishes on a thread of its own.
///
/// # Errors
///
/// If it cannot listen.
pub fn serve_collector(
    board: Arc<CollectorBoard>,
    socket: SocketFile,
) -> Result<Server, ListenError> {
    let app = Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/events", get(events))
        .route("/metrics", get(metrics_page))
        .fallback(unknown)
        .with_state(Arc::clone(&board));
    let endpoints = Endpoints {
        socket: Some(socket),
        tcp: None,
    };
    let app = bounded(app, BODY_BYTES);
    let warn = move |text: String| board.notice(&strata_role::Notice::warning(text));
    serve_routers(app, Router::new(), endpoints, warn, async {})
}

async fn status(State(board): Board) -> Json<Shown> {
    let collector = board.status();
    Json(Shown { collector })
}

async fn events(State(board): Board) -> Json<Vec<Event>> {
    Json(board.events())
}

async fn metrics_page(State(board): Board, headers: HeaderMap) -> Response {
    as_accepted(&headers, |format| {
        metrics::collector_text(board.status(), format)
    })
}

async fn unknown() -> Response {
    refused(StatusCode::NOT_FOUND, NO_LOG)
}
