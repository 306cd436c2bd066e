//! The fleet on the operator's page: what `strata controller` says of it, also of agents with hostile names.

use strata_agent::{ExportCount, Interface, Report, SessionCount};
use strata_auth::authority::{Key, agent};
use strata_control::agent_client::{AgentClient, Interrupt};

use super::{ALL, enrol, free_port};
use crate::common::agents::{Controller, policies, until};
use crate::common::program::{ok, refused, strata};
use crate::serve::http::Serving;

/// Would run in a page that took it for HTML.
const HOSTILE: &str = "\"><img src=x onerror=alert(1)>\u{202e}";

fn report() -> Report {
    let interface = Interface {
        name: "eth0".into(),
        alias: HOSTILE.into(),
        behind: HOSTILE.into(),
        ..Interface::default()
    };
    let session = SessionCount {
        identity: 1,
        session: 7,
        packets: 90,
    };
    let exports = ExportCount {
        name: "here".into(),
        packets: 80,
        lost: 10,
        problem: HOSTILE.into(),
        sessions: vec![session],
        ..ExportCount::default()
    };
    Report {
        run: 1,
        program: "0.0.1".into(),
        interfaces: vec![interface],
        exports: vec![exports],
        dropped: 5,
        problem: HOSTILE.into(),
        ..Report::default()
    }
}

#[test]
fn the_page_shows_what_the_controller_knows() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    let (token, authority) = controller.secrets();
    ok(&mut controller.command(&["apply", "--why", HOSTILE, &policies(dir.path(), ALL)]));
    let key = Key::generate().unwrap();
    let mut client = AgentClient::new(&address, agent(&authority, None).unwrap()).unwrap();
    let mine = client.enrol(&enrol("web-1", &token, &key)).unwrap();
    let own = agent(&authority, Some((&mine.certificate, &key.pem()))).unwrap();
    let mut client = AgentClient::new(&address, own).unwrap();
    let interrupt = Interrupt::default();
    // The identity is assigned with the first report.
    client.report(&report(), interrupt.follow()).unwrap();
    client.report(&report(), interrupt.follow()).unwrap();
    let state = controller.state.display().to_string();
    let serving = Serving::start(&[], &["--fleet", &state]);
    let fleet = serving.json("/api/v1/fleet");
    let agents = controller.json(&["agents"]);
    let (host, agent) = (&fleet["listed"][0], &agents[0]);
    for name in ["name", "state", "program", "captures", "problem", "copies"] {
        assert_eq!(host[name], agent[name], "{name}: {fleet:#}");
    }
    assert_eq!(host["version"], agent["runs"]);
    assert_eq!(host["kernel_dropped"], agent["dropped"]);
    assert_eq!(host["interfaces"][0]["alias"], HOSTILE);
    assert_eq!(
        host["interfaces"][0]["identity"],
        agent["identities"]["eth0"]
    );
    assert_eq!(host["exports"][0]["problem"], HOSTILE);
    assert!(host["clock_is_off"].as_bool().unwrap(), "{host}");
    let rollout = controller.json(&["rollout", "status"]);
    assert_eq!(fleet["rollout"]["version"], rollout["version"]);
    assert_eq!(fleet["hosts"]["behind"], 1, "{fleet:#}");
    let sums = controller.json(&["status"]);
    let (to, sum) = (&fleet["destinations"][0], &sums[0]["sum"]);
    for name in ["exported", "received", "lost", "before", "missing"] {
        assert_eq!(to["sum"][name], sum[name], "{name}");
    }
    assert_eq!(to["sum"]["exported"], 90);
    assert!(to["closes"].is_null(), "{to}");
    let doubt = "no collector of this name reports to the controller";
    let doubts = to["doubts"].as_array().unwrap();
    assert!(doubts.iter().any(|one| one == doubt), "{doubts:?}");
    let log = controller.json(&["log"]);
    let newest = log.as_array().unwrap().last().unwrap();
    assert_eq!(fleet["events"][0]["what"], newest["what"]);
    let mut events = fleet["events"].as_array().unwrap().iter();
    assert!(events.any(|event| event["why"] == HOSTILE), "{fleet:#}");
    let session = serving.json("/api/v1/session");
    assert_eq!(session["fleet"], format!("{state}/control.sock"));
    // Once it is gone, the page says so, and is served all the same.
    controller.stop();
    let asked = || serving.send("GET", "/api/v1/fleet", &[], b"");
    until("an answer that the controller is gone", || {
        asked().status == 502
    });
    let gone = asked().json();
    assert_eq!(gone["code"], "controller", "{gone}");
    assert!(
        gone["error"].as_str().unwrap().contains("no controller"),
        "{gone}"
    );
    serving.get("/api/v1/session");
}

#[test]
fn a_directory_without_a_controller_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = refused(strata().args(["serve", "--fleet"]).arg(dir.path()));
    assert!(text.contains("no controller listens there"), "{text}");
}
