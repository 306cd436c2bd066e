//! A fleet as a real registry of a controller knows it.

use serde_json::{Value, json};
use strata_agent::{
    CollectedSession, CollectorReport, DocumentFile, Interface, Registry, Report, SessionCount,
};

use super::*;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000 * SECOND;
const COLLECTOR: [u8; 32] = [255; 32];
/// Would run in a page that took it for HTML.
const HOSTILE: &str = "\"><img src=x onerror=alert(1)>";

fn certificate(agent: u8) -> [u8; 32] {
    [agent; 32]
}

/// The agents 1 to `agents`, all of version 1, and the collector `here`.
fn registry(agents: u8) -> Registry {
    let mut registry = Registry::default();
    for agent in 1..=agents {
        let name = format!("web-{agent}");
        let shown = certificate(agent);
        registry.enrolled(&name, shown, 2_000_000, 0).unwrap();
    }
    registry
        .enrolled_as(true, "here", COLLECTOR, 2_000_000, 0)
        .unwrap();
    let text = "[[policy]]\nname = 'all'\nmatch = 'tcp'\naction = 'header -> here'\n".into();
    let name = "a.toml".into();
    registry.apply(&[DocumentFile { name, text }], 900).unwrap();
    registry
}

fn report(registry: &mut Registry, agent: u8, change: impl FnOnce(&mut Report), at_ns: u64) {
    let interface = Interface {
        name: "tap0".into(),
        behind: HOSTILE.into(),
        ..Interface::default()
    };
    let mut report = Report {
        run: 1,
        time_ns: at_ns,
        interfaces: vec![interface],
        runs: registry.version(),
        captures: 1,
        ..Report::default()
    };
    change(&mut report);
    let shown = certificate(agent);
    registry.report(&shown, report, "10.0.0.1", at_ns).unwrap();
}

fn exports(identity: u32, packets: u64, lost: u64) -> Vec<ExportCount> {
    vec![ExportCount {
        name: "here".into(),
        packets,
        lost,
        sessions: vec![SessionCount {
            identity,
            session: 1,
            packets,
        }],
        ..ExportCount::default()
    }]
}

fn collects(registry: &mut Registry, identity: u32, packets: u64, lost: u64, at_ns: u64) {
    let session = CollectedSession {
        identity,
        session: 1,
        packets,
        lost,
        ..CollectedSession::default()
    };
    let report = CollectorReport {
        run: 7,
        sessions: vec![session],
        ..CollectorReport::default()
    };
    registry
        .collected(&COLLECTOR, report, "10.0.0.9", at_ns)
        .unwrap();
}

fn shown(registry: &Registry, now_ns: u64) -> Value {
    // As they come from the controller's socket.
    fn sent<T: Serialize + serde::de::DeserializeOwned>(answer: &T) -> T {
        serde_json::from_str(&serde_json::to_string(answer).unwrap()).unwrap()
    }
    let known = Known {
        agents: sent(&registry.agents(now_ns)),
        rollout: sent(&registry.rollout(now_ns)),
        sums: sent(&registry.sums(now_ns)),
        events: sent(&registry.events(EVENTS_MAX)),
    };
    json!(known.fleet(String::from("control.sock")))
}

fn host<'a>(fleet: &'a Value, name: &str) -> &'a Value {
    let mut hosts = fleet["listed"].as_array().unwrap().iter();
    hosts.find(|one| one["name"] == name).unwrap()
}

#[test]
fn hosts_are_shown_with_silence_version_clock_and_losses_the_worst_first() {
    let mut registry = registry(5);
    for agent in 1..=3 {
        report(&mut registry, agent, |_| {}, NOW - 40 * SECOND);
    }
    // 1 is well, 2 is late with its version and its clock is slow, 3 is silent, 4 never reported, 5 is revoked.
    report(&mut registry, 1, |report| report.dropped = 3, NOW - SECOND);
    let late = |report: &mut Report| {
        report.runs = 0;
        report.time_ns = NOW - SECOND - 1_500_000_000;
        report.exports = exports(2, 10, 4);
    };
    report(&mut registry, 2, late, NOW - SECOND);
    registry.revoke("web-5").unwrap();
    let fleet = shown(&registry, NOW);
    let names: Vec<&str> = fleet["listed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["web-3", "web-4", "web-2", "web-1", "web-5"]);
    assert_eq!(
        fleet["hosts"],
        json!({
            "all": 5, "up": 2, "silent": 1, "never": 1, "revoked": 1, "behind": 2, "problems": 0, "clocks_off": 1,
        })
    );
    assert_eq!(fleet["rollout"]["version"], 1);
    assert_eq!(fleet["rollout"]["running"], 1);
    assert_eq!(fleet["rollout"]["since"], "1970-01-01T00:15:00.000000000Z");
    let (well, late) = (host(&fleet, "web-1"), host(&fleet, "web-2"));
    assert_eq!(well["version"], 1);
    assert_eq!(well["behind_why"], Value::Null);
    assert_eq!(well["kernel_dropped"], 3);
    assert_eq!(well["heard_seconds"], 1);
    assert_eq!(well["clock_offset_ms"], 0);
    assert_eq!(well["interfaces"][0]["identity"], 1);
    assert_eq!(well["interfaces"][0]["behind"], HOSTILE);
    assert_eq!(late["behind_why"], "on its way");
    assert_eq!(late["clock_offset_ms"], -1500);
    assert_eq!(late["clock_is_off"], true);
    assert_eq!(late["lost"], 4);
    let never = host(&fleet, "web-4");
    assert_eq!(never["heard_seconds"], Value::Null);
    assert_eq!(never["clock_offset_ms"], Value::Null, "{never}");
    assert_eq!(host(&fleet, "web-3")["heard_seconds"], 40);
}

#[test]
fn sums_close_do_not_close_or_are_unknown() {
    let mut registry = registry(1);
    report(&mut registry, 1, |_| {}, NOW - 2 * SECOND);
    let sends = |report: &mut Report| report.exports = exports(1, 10, 0);
    report(&mut registry, 1, sends, NOW - SECOND);
    let unknown = shown(&registry, NOW);
    let to = &unknown["destinations"][0];
    assert_eq!(to["closes"], Value::Null);
    assert_eq!(
        to["doubts"][0],
        "its collector has not reported since the controller started"
    );
    collects(&mut registry, 1, 7, 1, NOW - SECOND);
    let open = shown(&registry, NOW);
    let to = &open["destinations"][0];
    assert_eq!(to["closes"], false);
    let sum = json!({
        "name": "web-1:tap0", "identity": 1, "exported": 10, "received": 7, "lost": 1, "before": 0, "missing": 2,
    });
    assert_eq!(to["sums"], json!([sum]));
    collects(&mut registry, 1, 9, 1, NOW);
    let closed = shown(&registry, NOW);
    let to = &closed["destinations"][0];
    assert_eq!((&to["closes"], &to["doubts"]), (&json!(true), &json!([])));
    assert_eq!(to["sum"]["missing"], 0);
    // Others are compared with nothing.
    let mut sums = registry.sums(NOW);
    sums[0].without_numbers = 5;
    let partly = json!(FleetDestination::of(sums.remove(0)));
    assert_eq!(partly["closes"], Value::Null);
    assert_eq!(
        partly["doubts"],
        json!(["5 packets exported without numbers: by VXLAN, or by agents of an earlier version"])
    );
    // Neither end has reported for a while.
    let old = shown(&registry, NOW + 60 * SECOND);
    let to = &old["destinations"][0];
    assert_eq!(to["closes"], Value::Null);
    assert!(
        to["doubts"][0]
            .as_str()
            .unwrap()
            .ends_with("are not in the sums: web-1"),
        "{to}"
    );
}

#[test]
fn an_answer_is_bounded_and_says_how_much_it_leaves_out() {
    let mut registry = registry(2);
    let many = |report: &mut Report| {
        report.interfaces = (0..100)
            .map(|n| Interface {
                name: format!("tap{n:03}"),
                ..Interface::default()
            })
            .collect();
    };
    report(&mut registry, 1, many, NOW);
    let agents = registry.agents(NOW);
    let mut all = agents.clone();
    while all.len() <= HOSTS_MAX + 6 {
        all.extend(agents.clone());
    }
    let len = all.len();
    let known = Known {
        agents: all,
        rollout: registry.rollout(NOW),
        sums: registry.sums(NOW),
        events: Vec::new(),
    };
    let fleet = json!(known.fleet(String::new()));
    assert_eq!(fleet["listed"].as_array().unwrap().len(), HOSTS_MAX);
    assert_eq!(fleet["hosts_left_out"], len - HOSTS_MAX);
    assert_eq!(fleet["hosts"]["all"], len);
    let first = host(&fleet, "web-1");
    assert_eq!(
        first["interfaces"].as_array().unwrap().len(),
        INTERFACES_MAX
    );
    assert_eq!(first["interfaces_left_out"], 100 - INTERFACES_MAX);
}

#[test]
fn a_controller_that_does_not_run_is_an_error_for_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::new(dir.path());
    assert_eq!(controller.socket(), dir.path().join("control.sock"));
    let refused = controller.fleet().unwrap_err();
    assert_eq!(refused.code, "controller");
    assert!(
        refused.error.contains("no controller runs"),
        "{}",
        refused.error
    );
    let by_socket = Controller::new(&dir.path().join("control.sock"));
    assert_eq!(by_socket.socket(), controller.socket());
    let again = controller.fleet().unwrap_err();
    assert_eq!(again.error, refused.error);
}

#[test]
fn nobody_waits_for_the_answer_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::new(dir.path());
    let aged = |by: Duration| {
        let before = Instant::now().checked_sub(by).unwrap();
        controller.last().as_mut().unwrap().0 = before;
    };
    let asking = controller.asking.lock().unwrap();
    assert_eq!(controller.fleet().unwrap_err().code, "busy");
    drop(asking);
    assert_eq!(controller.fleet().unwrap_err().code, "controller");
    let asking = controller.asking.lock().unwrap();
    aged(FRESH);
    assert_eq!(controller.fleet().unwrap_err().code, "controller");
    aged(KEPT);
    assert_eq!(controller.fleet().unwrap_err().code, "busy");
    drop(asking);
    assert_eq!(controller.fleet().unwrap_err().code, "controller");
    let asked = controller.last().as_ref().unwrap().0;
    assert!(asked.elapsed() < KEPT, "it is asked again");
}
