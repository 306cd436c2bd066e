//! Checks of whole logs, told as they go on.

use std::ops::ControlFlow;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use strata_archive::{Verified, verify_telling};
use strata_control::api::Connection;
use strata_log_views::answers::refused::Refused;
use strata_log_views::logs as of_logs;
use strata_log_views::work::body::{Sink, body as streamed_body};
use strata_log_views::work::until;
use strata_store::{Log, Part, damage_texts};
use utoipa::ToSchema;

use super::Shared;
use super::look::{DOWNLOAD, lines};

/// Maximum number of damaged places that are reported.
const DAMAGE_MAX: usize = 1000;

/// A line of a check of a log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VerifyEvent {
    event: VerifyStage,
    /// Share of the log that was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    bytes: Option<u64>,
    /// The first damaged places.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    damaged: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    problem: Option<Refused>,
}

/// Kind of a line of a check.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum VerifyStage {
    Progress,
    Done,
    Error,
}

impl VerifyEvent {
    fn new(event: VerifyStage) -> Self {
        Self {
            event,
            share: None,
            files: None,
            bytes: None,
            damaged: None,
            problem: None,
        }
    }
}

pub(super) async fn verify(
    State(app): Shared,
    Path(log): Path<String>,
    connection: Option<Extension<Connection>>,
) -> Result<Response, Refused> {
    app.logs.dir(&log)?;
    let turn = app.work.turn().await?;
    let (_, waiting) = until(DOWNLOAD);
    let (mut sink, body) = streamed_body(connection.map(|Extension(one)| one), waiting);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        // As it is stored: what is encrypted needs no key.
        let verified =
            of_logs::open_stored(&app.logs, &log).and_then(|log| verified(&log, &mut sink));
        let last = match verified {
            Ok(None) => return,
            Ok(Some(verified)) => {
                let places = damage_texts(&verified.damage).into_iter();
                VerifyEvent {
                    share: Some(1.0),
                    files: Some(verified.files),
                    bytes: Some(verified.bytes),
                    damaged: Some(places.take(DAMAGE_MAX).collect()),
                    ..VerifyEvent::new(VerifyStage::Done)
                }
            }
            Err(problem) => VerifyEvent {
                problem: Some(problem),
                ..VerifyEvent::new(VerifyStage::Error)
            },
        };
        let _ = sink.line(&last);
    });
    Ok(lines(body))
}

/// Verifies a log, and says how far; `None` if the client is gone.
#[allow(clippy::cast_precision_loss, reason = "a share")]
fn verified(log: &Log, sink: &mut Sink) -> Result<Option<Verified>, Refused> {
    let parts = log.archive().parts.iter();
    let mut all: u64 = parts.map(Part::bytes).sum();
    for recording in log.recordings() {
        for file in &recording.files {
            all = all.saturating_add(log.file_bytes(file)?);
        }
    }
    let mut is_left = false;
    let mut tell = |bytes: u64| {
        // Indexes and models are read besides.
        let share = if all == 0 {
            0.0
        } else {
            (bytes as f64 / all as f64).min(0.99)
        };
        let news = VerifyEvent {
            share: Some(share),
            bytes: Some(bytes),
            ..VerifyEvent::new(VerifyStage::Progress)
        };
        is_left = sink.line(&news).is_err();
        match is_left {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    if tell(0).is_break() {
        return Ok(None);
    }
    let verified = verify_telling(log, None, &mut |so_far| tell(so_far.bytes))?;
    Ok((!is_left).then_some(verified))
}
