//! What logs hold.

use std::io::Write;
use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use strata_archive::ArchiveError;
use strata_control::api::Connection;
use strata_filter::Filter;
use strata_query::{
    ByLink, ExportOptions, Exported, ExportedFlows, FileFormat, FlowOptions, RecordFormat,
    check_keys, export as export_packets, export_flow_table, export_flows, export_packet_table,
};
use strata_rules::Action;
use strata_store::{Damage, Log, damage_counts, damage_texts};
use strata_wire::count_of;
use utoipa::ToSchema;

use super::{Answer, Shared, body, query};
use crate::access::trust::{Role, Who};
use crate::answers::parts::Covered;
use crate::answers::refused::Refused;
use crate::app::App;
use crate::filters::{Completions, FilterCheck};
use crate::logs::{LogSummary, RecordingState, RecordingSummary};
use crate::packet::{Dissection, Dissector, PacketDetail, detail, look_up};
use crate::packets::{self, PacketPage};
use crate::search::found::Totals;
use crate::search::results::{FlowPage, Page};
use crate::search::series::Series;
use crate::search::{self, Asked, Sought};
use crate::storage::{Reasons, Storage};
use crate::why::would::{Would, would};
use crate::work::body::{Sink, body as streamed_body};
use crate::work::{LONG, until};
use crate::{
    filters, logs as of_logs, packet::tshark, search::flow_id, storage as stored, work::child,
};

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
    let shared = Arc::clone(&app);
    let action = asked.action.parse::<Action>();
    let action = action.map_err(|error| Refused::invalid("action", error.to_string()))?;
    let matched = app.work.long(move |stop| {
        let log = of_logs::open(&shared.logs, &log)?;
        let (totals, covered) = search::matched(&log, &sought, stop)?;
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

/// Refuses a filter that may test payload to those who may not see it: many of its kind would tell it byte by byte. Of
/// others, such a search is an access to payload.
fn may_search(app: &App, who: &Who, log: &str, sought: &Sought) -> Result<(), Refused> {
    let filter = sought.filter.as_ref();
    if !filter.is_some_and(Filter::may_test_payload) {
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
    })?;
    let what = format!("searched payload: log {log}, filter '{}'", sought.text);
    app.audit.note(&who.name, &what, "");
    Ok(())
}

/// What a request seeks in a log, if the user may. Names of networks are looked up off the server's thread.
async fn sought(app: &Arc<App>, who: &Who, log: &str, asked: &Asked) -> Result<Sought, Refused> {
    let sought = match app.spec.names.is_empty() {
        true => asked.sought(&app.spec.names)?,
        false => {
            let (shared, asked) = (Arc::clone(app), asked.clone());
            let sought = app.work.short(move |_| asked.sought(&shared.spec.names));
            sought.await?
        }
    };
    may_search(app, who, log, &sought)?;
    Ok(sought)
}

pub(super) async fn series(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    uri: Uri,
) -> Answer<Series> {
    let asked: Asked = query(&uri)?;
    let sought = sought(&app, &who, &log, &asked).await?;
    let points = asked.points.unwrap_or(POINTS);
    let shared = Arc::clone(&app);
    let series = app
        .work
        .long(move |stop| search::series(&shared.logs, &log, &sought, points, stop));
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
    let sought = sought(&app, &who, &log, &asked).await?;
    app.logs.dir(&log)?;
    let points = asked.points.unwrap_or(POINTS);
    let turn = app.work.turn().await?;
    let (stop, waiting) = until(LONG);
    let (mut sink, body) = streamed_body(connection.map(|Extension(one)| one), waiting);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        search::stream(
            (&app.logs, &app.searches),
            (&log, &sought, points),
            &stop,
            &mut sink,
        );
    });
    Ok(lines(body))
}

pub(super) fn lines(body: crate::work::body::Body) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::new(body)).into_response()
}

pub(super) async fn flows(
    State(app): Shared,
    Path(id): Path<String>,
    uri: Uri,
) -> Answer<FlowPage> {
    let page: Page = query(&uri)?;
    let shared = Arc::clone(&app);
    let rows = app
        .work
        .short(move |_| shared.searches.page(&id, &page, &shared.spec.names));
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

/// What a download holds.
enum Holds {
    Packets,
    PacketTable,
    Flows(RecordFormat),
    FlowTable,
}

/// A download.
struct Format {
    asked: &'static str,
    holds: Holds,
    /// The file's name, and what it is.
    name: &'static str,
    kind: &'static str,
}

static FORMATS: [Format; 5] = [
    Format {
        asked: "pcapng",
        holds: Holds::Packets,
        name: "out.pcapng",
        kind: "application/x-pcapng",
    },
    Format {
        asked: "csv",
        holds: Holds::Flows(RecordFormat::Csv),
        name: "flows.csv",
        kind: "text/csv",
    },
    Format {
        asked: "json",
        holds: Holds::Flows(RecordFormat::Json),
        name: "flows.json",
        kind: "application/x-ndjson",
    },
    Format {
        asked: "flows-parquet",
        holds: Holds::FlowTable,
        name: "flows.parquet",
        kind: "application/vnd.apache.parquet",
    },
    Format {
        asked: "packets-parquet",
        holds: Holds::PacketTable,
        name: "packets.parquet",
        kind: "application/vnd.apache.parquet",
    },
];

pub(super) async fn export(
    State(app): Shared,
    Extension(who): Extension<Who>,
    Path(log): Path<String>,
    connection: Option<Extension<Connection>>,
    uri: Uri,
) -> Result<Response, Refused> {
    let asked: Asked = query(&uri)?;
    let sought = sought(&app, &who, &log, &asked).await?;
    let unknown = || {
        let names: Vec<&str> = FORMATS.iter().map(|of| of.asked).collect();
        let names = names.join(", ");
        Refused::invalid("format", format!("write one of {names}"))
    };
    let format = FORMATS
        .iter()
        .find(|of| asked.format.as_deref() == Some(of.asked));
    let format = format.ok_or_else(unknown)?;
    if matches!(format.holds, Holds::Packets) {
        who.may(Role::Payload, app.spec.read_only)?;
        let of_flow = sought.flow.as_ref().map(flow_id::id);
        let of_flow = of_flow.map_or_else(String::new, |id| format!(", flow {id}"));
        let what = format!(
            "downloaded packets: log {log}{of_flow}, filter '{}'",
            sought.text
        );
        app.audit.note(&who.name, &what, "");
    } else if !matches!(format.holds, Holds::PacketTable)
        && (sought.kept.granularity.is_some() || sought.kept.reason.is_some())
    {
        let error = "the packets of a flow may differ in reason and granularity: download packets, or \
             leave these filters out";
        return Err(Refused::invalid("format", error));
    }
    app.logs.dir(&log)?;
    let turn = app.work.turn().await?;
    let shared = Arc::clone(&app);
    let name = log.clone();
    // Before the first byte: afterwards, the connection could only be cut.
    let (opened, sought) = app
        .work
        .short(move |_| {
            let opened = of_logs::open(&shared.logs, &name)?;
            check_keys(&opened, &sought.find()).map_err(no_key)?;
            Ok((opened, sought))
        })
        .await?;
    // A file has no place for a remark.
    let classes = of_logs::classes_of(&opened);
    let class = sought.kept.class.as_deref();
    if let Some(class) = class.filter(|class| !of_logs::is_class(&classes, class)) {
        let error = of_logs::no_class(&classes, class);
        return Err(Refused::invalid("class", error));
    }
    let (_, waiting) = until(DOWNLOAD);
    let (mut sink, body) = streamed_body(connection.map(|Extension(one)| one), waiting);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let written = written(&opened, &sought, &format.holds, &mut sink);
        let why = match &written {
            // The connection is cut, so that the browser does not take the file for a whole one.
            Err(error) => Some(error.to_string()),
            Ok(left) => {
                let lost = of_logs::lost_words(&opened);
                left.told(lost.unwrap_or_else(|refused| Some(refused.error)))
            }
        };
        if let Some(why) = why {
            let what = format!("a download of log {log} is incomplete");
            app.audit.note(&who.name, &what, &why);
        }
        if let Err(error) = written {
            sink.fail(&error.to_string());
        }
    });
    let head = [
        (header::CONTENT_TYPE, format.kind.to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{}\"", format.name),
        ),
    ];
    Ok((head, Body::new(body)).into_response())
}

/// A part that is wanted is encrypted, and its key is not here.
fn no_key(error: ArchiveError) -> Refused {
    match error.lacks_key() {
        true => Refused::new(StatusCode::BAD_REQUEST, "invalid", error.to_string()),
        false => error.into(),
    }
}

/// What of a log a download could not have.
struct Left {
    packets: u64,
    /// Packets that the filter could not test.
    untested: u64,
    damage: Vec<Damage>,
}

impl Left {
    /// Nothing where the download has all; `lost` is what the log lacks.
    fn told(&self, lost: Option<String>) -> Option<String> {
        let untested = (self.untested > 0).then(|| {
            let packets = count_of(self.untested, "packet");
            format!("{packets} left out untested: the filter tests bytes that were not kept")
        });
        let damaged = damage_counts(&self.damage).map(|counts| {
            let first = damage_texts(&self.damage);
            let first = first.first().map_or("", String::as_str);
            match self.packets {
                0 => format!("skipped {counts}, the first: {first}"),
                packets => format!(
                    "skipped {counts} and left out {}, the first: {first}",
                    count_of(packets, "packet")
                ),
            }
        });
        let told = damaged.into_iter().chain(untested);
        let told: Vec<String> = told.chain(lost).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}

impl From<Exported> for Left {
    fn from(exported: Exported) -> Self {
        Self {
            packets: exported.left_out,
            untested: exported.untested,
            damage: exported.damage,
        }
    }
}

impl From<ExportedFlows> for Left {
    fn from(exported: ExportedFlows) -> Self {
        Self {
            packets: exported.left_out,
            untested: exported.untested,
            damage: exported.damage,
        }
    }
}

fn written(
    log: &Log,
    sought: &Sought,
    holds: &Holds,
    sink: &mut Sink,
) -> Result<Left, ArchiveError> {
    let find = sought.find();
    let by_link = sought.filter.clone();
    let mut by_link = by_link.map(|filter| ByLink::new(filter, |_, _| {}));
    let of_flows = FlowOptions {
        class: sought.kept.class.as_deref(),
        flow: sought.flow,
        ..FlowOptions::default()
    };
    let mut left: Left = match holds {
        Holds::Flows(format) => export_flows(log, &mut *sink, *format, &find, &of_flows)?.into(),
        Holds::FlowTable => export_flow_table(log, &mut *sink, &find, &of_flows)?.into(),
        Holds::Packets | Holds::PacketTable => {
            let options = ExportOptions {
                select: find.select(),
                matches: by_link.as_mut().map(ByLink::as_matches),
                flow: sought.flow,
                comments: true,
                kept: sought.kept.clone(),
                ..ExportOptions::default()
            };
            let is_table = matches!(holds, Holds::PacketTable);
            let exported = match is_table {
                true => export_packet_table(log, &mut *sink, &find, options)?,
                false => export_packets(log, &mut *sink, FileFormat::PcapNg, &find, options)?,
            };
            exported.into()
        }
    };
    if let Some(by_link) = by_link {
        left.untested = left.untested.saturating_add(by_link.untested());
    }
    sink.flush()
        .map_err(|error| ArchiveError::Write(error.into()))?;
    Ok(left)
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
    let sought = sought(&app, &who, &log, &asked).await?;
    let shared = Arc::clone(&app);
    let reasons = app
        .work
        .long(move |stop| stored::reasons(&shared.logs, &log, &sought, limited.limit, stop));
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
