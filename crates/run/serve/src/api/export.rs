//! Downloads: packets and flows of a log as files.

use std::io::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use strata_archive::ArchiveError;
use strata_control::api::Connection;
use strata_log_views::answers::refused::Refused;
use strata_log_views::logs as of_logs;
use strata_log_views::search::{Asked, Sought};
use strata_log_views::work::body::{Sink, body as streamed_body};
use strata_log_views::work::until;
use strata_query::{
    ByLink, ExportOptions, Exported, ExportedFlows, FileFormat, FlowOptions, RecordFormat,
    check_keys, export as export_packets, export_flow_table, export_flows, export_packet_table,
};
use strata_store::{Damage, Log, damage_counts, damage_texts};
use strata_wire::count_of;

use super::look::{DOWNLOAD, note_search, sought};
use super::{Shared, query};
use crate::access::trust::{Role, Who};

/// What a download holds.
enum Holds {
    Packets,
    PacketTable,
    Flows(RecordFormat),
    FlowTable,
}

impl Holds {
    /// The role that a download needs, as SQL on the same columns does: the table of flows has content of payload, such
    /// as URIs and answers of DNS, while the table of packets only has headers, sizes and reasons.
    fn needs(&self) -> Role {
        match self {
            Self::Packets | Self::Flows(_) | Self::FlowTable => Role::Payload,
            Self::PacketTable => Role::Look,
        }
    }
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
    let sought = sought(&app, &who, &asked).await?;
    let unknown = || {
        let names: Vec<&str> = FORMATS.iter().map(|of| of.asked).collect();
        let names = names.join(", ");
        Refused::invalid("format", format!("write one of {names}"))
    };
    let format = FORMATS
        .iter()
        .find(|of| asked.format.as_deref() == Some(of.asked));
    let format = format.ok_or_else(unknown)?;
    who.may(format.holds.needs(), app.spec.read_only)?;
    if matches!(format.holds, Holds::Flows(_) | Holds::FlowTable)
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
    // Only now is it certain that the download begins.
    note_search(&app, &who, &log, &sought);
    if format.holds.needs() == Role::Payload {
        let what = format!("downloaded {}: log {log}{}", format.asked, sought.words());
        app.audit.note(&who.name, &what, "");
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
