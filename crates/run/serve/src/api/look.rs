//! What logs hold.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use strata_control::api::Connection;
use strata_filter::Filter;
use strata_log_views::answers::parts::Covered;
use strata_log_views::answers::refused::Refused;
use strata_log_views::filters::{Completions, FilterCheck};
use strata_log_views::logs::{LogSummary, RecordingState, RecordingSummary};
use strata_log_views::packet::{Dissection, Dissector, PacketDetail, detail, look_up};
use strata_log_views::packets::{self, PacketPage};
use strata_log_views::search::found::Totals;
use strata_log_views::search::results::{FlowPage, Page};
use strata_log_views::search::series::Series;
use strata_log_views::search::{self, Asked, Sought};
use strata_log_views::storage::{Reasons, Storage};
use strata_log_views::why::would::{Would, would};
use strata_log_views::work::body::body as streamed_body;
use strata_log_views::work::{LONG, until};
use strata_log_views::{filters, logs as of_logs, packet::tshark, storage as stored, work::child};
use strata_rules::Action;
use utoipa::ToSchema;

use super::{Answer, Shared, body, query};
use crate::access::trust::{Role, Who};
use crate::app::App;

/// How long a download may take: the client that takes it bounds it.
pub(super) const DOWNLOAD: std::time::Duration = std::time::Duration::from_secs(6 * 3600);
/// Default number of points of a series.
const POINTS: usize = 300;

#[derive(Deserialize)]
struct Typed {
    #[serde(default)]
    filter: String,
    #[serde(default)]
    at: usize,
}

pub(super) async fn check_filter(State(app): Shared, uri: Uri) -> Answer<FilterCheck> {
    let typed: Typed = query(&uri)?;
    let shared = Arc::clone(&app);
    let checked = app
        .work
        .short(move |_| Ok(filters::check(&typed.filter, &shared.spec.names)));
    Ok(Json(checked.await?))
}

pub(super) async fn complete_filter(State(app): Shared, uri: Uri) -> Answer<Completions> {
    let typed: Typed = query(&uri)?;
    let names = &app.spec.names;
    Ok(Json(filters::complete(&typed.filter, typed.at, names)))
}

/// Whether a policy is valid.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct PolicyCheck {
    #[schema(required)]
    error: Option<Refused>,
    /// Packets that it would have matched, if a log was named.
    #[schema(required)]
    matched: Option<Matched>,
}

/// Packets that a policy would have matched.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Matched {
    #[serde(flatten)]
    totals: Totals,
    /// Their size if the policy had applied; null where the action leaves that open.
    #[schema(required)]
    would: Option<Would>,
    covered: Covered,
}

pub(super) async fn check_policy(State(app): Shared, given: Body) -> Answer<PolicyCheck> {
    let asked: filters::PolicyAsked = body(given).await?;
    if let Some(error) = asked.error() {
        return Ok(Json(PolicyCheck {
            error: Some(error),
            matched: None,
        }));
    }
    let Some(log) = asked.log.clone().filter(|log| !log.is_empty()) else {
        return Ok(Json(PolicyCheck::default()));
    };
    let sought = Sought {
        filter: search::filter("match", &asked.matches)?,
        text: asked.matches,
        ..Sought::default()
    };
    let is_of_interface = asked.interface.is_some();
    let shared = Arc::clone(&app);
    let action = asked.action.parse::<Action>();
    let action = action.map_err(|error| Refused::invalid("action", error.to_string()))?;
    let matched = app.work.long(move |stop| {
        let log = of_logs::open(&shared.logs, &log)?;
        let (totals, mut covered) = search::matched(&log, &sought, stop)?;
        if is_of_interface {
            let all = "packets of all interfaces are counted, not only those of the policy's";
            covered.remark = Some(match covered.remark {
                Some(remark) => format!("{remark}; {all}"),
                None => String::from(all),
            });
        }
        Ok(Matched {
            totals,
            would: would(&log, (&sought, action), totals.packets, stop)?,
            covered,
        })
    });
    Ok(Json(PolicyCheck {
        error: None,
        matched: Some(matched.await?),
    }))
}

pub(super) async fn logs(State(app): Shared) -> Answer<Vec<LogSummary>> {
    let shared = Arc::clone(&app);
    let all = app.work.short(move |stop| {
        let ids: Vec<String> = shared.logs.iter().map(|(id, _)| id).collect();
        let all: Result<Vec<LogSummary>, Refused> = ids
            .iter()
            .map(|id| of_logs::summary(&shared.logs, id, stop))
            .collect();
        all
    });
    Ok(Json(all.await?))
}

pub(super) async fn models(
    State(app): Shared,
    Path(log): Path<String>,
) -> Answer<Vec<RecordingSummary>> {
    let shared = Arc::clone(&app);
    let all = app.work.short(move |_| {
        let opened = of_logs::open(&shared.logs, &log)?;
        let recordings = opened.recordings().iter();
        let recordings = recordings.map(|one| of_logs::recording(&shared.logs, &log, &opened, one));
        let mut all: Vec<RecordingSummary> = recordings.collect();
        // The recorder makes the newest recording.
        let newest = all.last_mut();
        if let Some(newest) = newest.filter(|one| one.state == RecordingState::Recording) {
            let mut recorders = shared.recorders.iter();
            newest.shadow = recorders.find_map(|one| one.shadow(&log, &shared.logs));
        }
        Ok(all)
    });
    Ok(Json(all.await?))
}

fn tests_payload(sought: &Sought) -> bool {
    sought.filter.as_ref().is_some_and(Filter::may_test_payload)
}

/// Refuses a filter that may test payload to those who may not see it: many of its kind would tell it byte by byte.
fn may_search(app: &App, who: &Who, sought: &Sought) -> Result<(), Refused> {
    if !tests_payload(sought) {
        return Ok(());
    }
    who.may(Role::Payload, app.spec.read_only).map_err(|_| {
        let error = format!(
            "{} may {}, and this filter may test payload, which needs the role {}: test bytes at fixed places of \
             headers only, as in tcp[13]",
            who.name,
            who.role.name(),
            Role::Payload.name()
        );
        Refused::new(StatusCode::FORBIDDEN, "role", error)
    })
}

/// A search that begins, if its filter may test payload: an access to payload.
pub(super) fn note_search(app: &App, who: &Who, log: &str, sought: &Sought) {
    if tests_payload(sought) {
        let what = format!("searched payload: log {log}{}", sought.words());
        app.audit.note(&who.name, &what, "");
    }
}

/// What a request seeks, if the user may. Names of networks are looked up off the server's thread.
pub(super) async fn sought(app: &Arc<App>, who: &Who, asked: &Asked) -> Result<Sought, Refused> {
    let sought = match app.spec.names.is_empty() {
        true => asked.sought(&app.spec.names)?,
        false => {
            let (shared, asked) = (Arc::clone(app), asked.clone());
            let sought = app.work.short(move |_| asked.sought(&shared.spec.names));
            sought.await?
        }
    };
    may_search(app, who, &sought)?;
    Ok(sought)
}

pub(super) async fn series(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    uri: Uri,
) -> Answer<Series> {
    let asked: Asked = query(&uri)?;
    let sought = sought(&app, &who, &asked).await?;
    let points = asked.points.unwrap_or(POINTS);
    let shared = Arc::clone(&app);
    let series = app.work.long(move |stop| {
        shared.logs.dir(&log)?;
        note_search(&shared, &who, &log, &sought);
        search::series(&shared.logs, &log, &sought, points, stop)
    });
    Ok(Json(series.await?))
}

pub(super) async fn search(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    connection: Option<Extension<Connection>>,
    uri: Uri,
) -> Result<Response, Refused> {
    let asked: Asked = query(&uri)?;
    let sought = sought(&app, &who, &asked).await?;
    app.logs.dir(&log)?;
    let points = asked.points.unwrap_or(POINTS);
    let turn = app.work.turn().await?;
    note_search(&app, &who, &log, &sought);
    let (stop, waiting) = until(LONG);
    let (mut sink, body) = streamed_body(connection.map(|Extension(one)| one), waiting);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        search::stream(
            (&app.logs, (&app.searches, &who.name)),
            (&log, &sought, points),
            &stop,
            &mut sink,
        );
    });
    Ok(lines(body))
}

pub(super) fn lines(body: strata_log_views::work::body::Body) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::new(body)).into_response()
}

pub(super) async fn flows(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(id): Path<String>,
    uri: Uri,
) -> Answer<FlowPage> {
    let page: Page = query(&uri)?;
    let shared = Arc::clone(&app);
    let rows = app.work.short(move |_| {
        let names = &shared.spec.names;
        shared.searches.page((&id, &who.name), &page, names)
    });
    Ok(Json(rows.await?))
}

#[derive(Deserialize)]
struct Paged {
    cursor: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn flow_packets(
    State(app): Shared,
    Path((log, flow)): Path<(String, String)>,
    uri: Uri,
) -> Answer<PacketPage> {
    let (asked, paged): (Asked, Paged) = (query(&uri)?, query(&uri)?);
    let shared = Arc::clone(&app);
    let page = app.work.short(move |stop| {
        let place = (paged.cursor.as_deref(), paged.limit);
        let names = (&shared.logs, &shared.spec.names);
        packets::page(names, (&log, &flow), &asked, place, stop)
    });
    Ok(Json(page.await?))
}

#[derive(Deserialize)]
struct Looks {
    payload: Option<bool>,
}

pub(super) async fn packet(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path((log, id)): Path<(String, String)>,
    uri: Uri,
) -> Answer<PacketDetail> {
    let looks: Looks = query(&uri)?;
    let shows_payload =
        looks.payload.unwrap_or(true) && who.may(Role::Payload, app.spec.read_only).is_ok();
    let (shared, named) = (Arc::clone(&app), (log.clone(), id.clone()));
    let looked = app
        .work
        .short(move |stop| look_up(&shared.logs, &named.0, &named.1, stop));
    let looked = looked.await?;
    let packet = &looked.packet;
    if shows_payload && packet.data.len() > packet.header_bytes() {
        app.audit.note(
            &who.name,
            &format!("viewed payload: log {log}, packet {id}"),
            "",
        );
    }
    let mut answer = detail(&looked, shows_payload);
    if let Some(program) = child::find("tshark", None) {
        let shown = match shows_payload {
            true => packet.data.len(),
            false => packet.header_bytes(),
        };
        match tshark::layers(&program, packet, shown).await {
            Ok(layers) => {
                answer.dissection = Dissection {
                    by: Dissector::Tshark,
                    problem: None,
                    layers,
                };
            }
            Err(problem) => answer.dissection.problem = Some(problem),
        }
    }
    Ok(Json(answer))
}

#[derive(Deserialize)]
struct Limited {
    limit: Option<usize>,
}

pub(super) async fn reasons(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    uri: Uri,
) -> Answer<Reasons> {
    let (asked, limited): (Asked, Limited) = (query(&uri)?, query(&uri)?);
    let sought = sought(&app, &who, &asked).await?;
    let shared = Arc::clone(&app);
    let reasons = app.work.long(move |stop| {
        shared.logs.dir(&log)?;
        note_search(&shared, &who, &log, &sought);
        stored::reasons(&shared.logs, &log, &sought, limited.limit, stop)
    });
    Ok(Json(reasons.await?))
}

pub(super) async fn storage(
    State(app): Shared,
    Path(log): Path<String>,
    uri: Uri,
) -> Answer<Storage> {
    let keep: stored::Keep = query(&uri)?;
    let shared = Arc::clone(&app);
    let storage = app
        .work
        .long(move |stop| stored::storage(&shared.logs, &log, &keep, stop));
    Ok(Json(storage.await?))
}
