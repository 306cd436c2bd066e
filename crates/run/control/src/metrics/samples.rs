//! The samples of each metric, from the status.

use strata_wire::Printable;

use crate::status::{
    ClassStatus, CompactionStatus, CpuStatus, DriftStatus, EveStatus, ExportStatus,
    FlowTableStatus, FlowsStatus, InterfaceStatus, LostStatus, PacketStatus, PolicyStatus,
    ReceiveStatus, ResourceStatus, Status,
};

/// Maximum number of policies with samples of their own: those with the lowest numbers.
const POLICIES_MAX: usize = 100;
/// Maximum number of characters of a label's value.
const LABEL_MAX: usize = 128;

/// What a page shows.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) status: Status,
    pub(super) policies: Vec<PolicyStatus>,
}

/// One sample: labels and value.
pub type Sample<V> = (Vec<(&'static str, String)>, V);

pub(super) fn one<V>(value: V) -> Vec<Sample<V>> {
    vec![(Vec::new(), value)]
}

pub(super) fn maybe(value: Option<f64>) -> Vec<Sample<f64>> {
    value.into_iter().flat_map(one).collect()
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn real(count: usize) -> f64 {
    count as f64
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn amount(bytes: u64) -> f64 {
    bytes as f64
}

pub(super) fn flow_table<V>(moment: &Moment, value: fn(&FlowTableStatus) -> V) -> Vec<Sample<V>> {
    let table = moment.status.flow_table.as_ref();
    table.map(value).into_iter().flat_map(one).collect()
}

pub(super) fn results(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let all = moment.status.packets.iter();
    // In flight is not a counter: it can decrease.
    let counters = all.filter(|ended| ended.result != "in_flight");
    let sample = |ended: &PacketStatus| {
        let labels = vec![
            ("result", ended.result.clone()),
            ("reason", ended.reason.clone()),
        ];
        (labels, value(ended))
    };
    counters.map(sample).collect()
}

pub(super) fn classes(moment: &Moment, value: fn(&ClassStatus) -> u64) -> Vec<Sample<u64>> {
    let sample = |class: &ClassStatus| {
        let labels = vec![
            ("class", class.class.clone()),
            ("granularity", class.granularity.clone()),
        ];
        (labels, value(class))
    };
    moment.status.classes.iter().map(sample).collect()
}

pub(super) fn interfaces(moment: &Moment, value: fn(&InterfaceStatus) -> u64) -> Vec<Sample<u64>> {
    let all = moment.status.interfaces.iter();
    all.map(|interface| {
        (
            vec![("interface", interface.name.clone())],
            value(interface),
        )
    })
    .collect()
}

pub(super) fn kinds(label: &'static str, all: &[PacketStatus]) -> Vec<Sample<u64>> {
    all.iter()
        .map(|kind| (vec![(label, kind.result.clone())], kind.packets))
        .collect()
}

pub(super) fn reports(moment: &Moment) -> Vec<Sample<u64>> {
    let Some(reports) = &moment.status.reports else {
        return Vec::new();
    };
    let results = [
        ("sent", reports.reports),
        ("not-sent", reports.not_sent),
        ("over-limit", reports.over_limit),
    ];
    results
        .map(|(result, count)| (vec![("result", result.to_owned())], count))
        .into()
}

pub(super) fn flows(
    moment: &Moment,
    counts: impl Fn(&FlowsStatus) -> Vec<(&'static str, u64)>,
) -> Vec<Sample<u64>> {
    let all = moment.status.flows.iter().flat_map(counts);
    all.map(|(result, count)| (vec![("result", result.to_owned())], count))
        .collect()
}

pub(super) fn exports(
    moment: &Moment,
    counts: impl Fn(&ExportStatus) -> Vec<(&'static str, u64)>,
) -> Vec<Sample<u64>> {
    let of = |to: &ExportStatus| {
        let sample = |(result, count): (&str, u64)| {
            let labels = vec![
                ("destination", to.name.clone()),
                ("result", result.to_owned()),
            ];
            (labels, count)
        };
        counts(to).into_iter().map(sample).collect::<Vec<_>>()
    };
    moment.status.exports.iter().flat_map(of).collect()
}

pub(super) fn lost(moment: &Moment) -> Vec<Sample<u64>> {
    let sample = |lost: &LostStatus| {
        let labels = vec![
            ("place", lost.place.clone()),
            ("counter", lost.counter.clone()),
        ];
        (labels, lost.packets)
    };
    moment.status.lost.iter().map(sample).collect()
}

pub(super) fn hits(moment: &Moment, value: fn(&PolicyStatus) -> u64) -> Vec<Sample<u64>> {
    let sample = |policy: &PolicyStatus| {
        let labels = vec![
            ("policy", policy.id.to_string()),
            ("match", policy.matches.clone()),
        ];
        (labels, value(policy))
    };
    moment
        .policies
        .iter()
        .take(POLICIES_MAX)
        .map(sample)
        .collect()
}

pub(super) fn mode(moment: &Moment) -> Vec<Sample<f64>> {
    let labels = vec![
        ("mode", moment.status.mode.clone()),
        ("asked", moment.status.asked_mode.clone()),
    ];
    vec![(labels, 1.0)]
}

pub(super) fn detail(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let payload = moment
        .status
        .detail
        .iter()
        .flat_map(|detail| &detail.payload);
    payload
        .map(|payload| (vec![("result", payload.result.clone())], value(payload)))
        .collect()
}

pub(super) fn shadow(moment: &Moment, value: fn(&PacketStatus) -> u64) -> Vec<Sample<u64>> {
    let classes = moment.status.shadow.iter();
    let classes = classes.flat_map(|shadow| &shadow.classes);
    let samples = classes.flat_map(|of| {
        of.packets.iter().map(|packets| {
            let labels = vec![
                ("class", of.class.clone()),
                ("result", packets.result.clone()),
            ];
            (labels, value(packets))
        })
    });
    samples.collect()
}

pub(super) fn drift(moment: &Moment, value: fn(&DriftStatus) -> Option<f64>) -> Vec<Sample<f64>> {
    maybe(moment.status.drift.as_ref().and_then(value))
}

pub(super) fn eve_lines(moment: &Moment) -> Vec<Sample<u64>> {
    let of = |content: &str, count: u64| (vec![("content", content.to_owned())], count);
    let lines = |eve: &EveStatus| {
        let events = eve.lines.saturating_sub(eve.invalid);
        [
            of("alert", eve.alerts),
            of("other", events.saturating_sub(eve.alerts)),
            of("invalid", eve.invalid),
        ]
    };
    moment.status.eve.iter().flat_map(lines).collect()
}

pub(super) fn eve_flows(moment: &Moment) -> Vec<Sample<u64>> {
    let of = |result: &str, count: u64| (vec![("result", result.to_owned())], count);
    let flows = |eve: &EveStatus| [of("alerted", eve.flows), of("matched", eve.matched)];
    moment.status.eve.iter().flat_map(flows).collect()
}

pub(super) fn compaction(
    moment: &Moment,
    value: fn(&CompactionStatus) -> Option<f64>,
) -> Vec<Sample<f64>> {
    maybe(moment.status.compaction.as_ref().and_then(value))
}

pub(super) fn resources(
    moment: &Moment,
    value: fn(&ResourceStatus) -> Option<f64>,
) -> Vec<Sample<f64>> {
    let sample = |resource: &ResourceStatus| {
        let labels = vec![("resource", resource.name.clone())];
        Some((labels, value(resource)?))
    };
    moment.status.resources.iter().filter_map(sample).collect()
}

pub(super) fn receive(moment: &Moment, value: fn(&ReceiveStatus) -> f64) -> Vec<Sample<f64>> {
    let sample = |cpu: &ReceiveStatus| (vec![("cpu", cpu.cpu.to_string())], value(cpu));
    moment.status.receive.iter().map(sample).collect()
}

pub(super) fn cpu(moment: &Moment, value: fn(&CpuStatus) -> f64) -> Vec<Sample<f64>> {
    maybe(moment.status.cpu.as_ref().map(value))
}

/// The value of a label, which may come from outside. The encoder writes it as it is, and neither
/// format allows unescaped quotes, backslashes or line ends in it.
pub(super) fn label(value: &str) -> String {
    let end = value.char_indices().nth(LABEL_MAX);
    let value = end.map_or(value, |(end, _)| &value[..end]);
    let value = Printable(value).to_string();
    value.replace('\\', r"\\").replace('"', "\\\"")
}
