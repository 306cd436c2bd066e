//! Collectors that report to a controller: those that start again, copies of them, and what they receive from agents
//! that are revoked.

use strata_agent::{CollectedSession, CollectorReport, Enrol, ExportCount, Report, SessionCount};
use strata_auth::authority::{Key, agent};
use strata_control::agent_client::{AgentClient, AgentClientError, Interrupt};

use super::{ALL, enrol, free_port, report};
use crate::common::agents::{Controller, policies};
use crate::common::program::ok;

/// A member of the fleet, which may connect any number of times.
struct Member {
    address: String,
    authority: String,
    certificate: String,
    key: Key,
}

impl Member {
    fn enrol(controller: &Controller, address: &str, name: &str, is_collector: bool) -> Self {
        let (token, authority) = controller.secrets();
        let key = Key::generate().unwrap();
        let mut stranger = AgentClient::new(address, agent(&authority, None).unwrap()).unwrap();
        let request = Enrol {
            is_collector,
            ..enrol(name, &token, &key)
        };
        let enrolled = stranger.enrol(&request).unwrap();
        Self {
            address: address.to_owned(),
            authority,
            certificate: enrolled.certificate,
            key,
        }
    }

    fn client(&self) -> AgentClient {
        let key = self.key.pem();
        let config = agent(&self.authority, Some((&self.certificate, &key)));
        AgentClient::new(&self.address, config.unwrap()).unwrap()
    }
}

/// What a run of a collector reports, which has received this number of packets of one session.
fn received(run: u64, was_refused: bool, packets: u64) -> CollectorReport {
    CollectorReport {
        run,
        was_refused,
        sessions: vec![CollectedSession {
            identity: 1,
            session: 7,
            packets,
            ..CollectedSession::default()
        }],
        ..CollectorReport::default()
    }
}

fn is_copy(answer: &Result<(), AgentClientError>) -> bool {
    matches!(answer, Err(AgentClientError::Refused { is_copy: true, .. }))
}

/// However soon it is there again: its connection has ended, which a copy's has not.
#[test]
fn a_collector_that_starts_again_reports_at_once_and_a_copy_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    let here = Member::enrol(&controller, &address, "here", true);
    for run in 1..10 {
        let mut client = here.client();
        client.collected(&received(run, false, 1)).unwrap();
        client.collected(&received(run, false, 2)).unwrap();
    }
    let collector = controller.json(&["status"])[0]["collector"].clone();
    assert_eq!(collector["copies"], serde_json::json!([]));
    let (mut first, mut copy) = (here.client(), here.client());
    first.collected(&received(10, false, 3)).unwrap();
    for number in 0..3 {
        assert!(is_copy(&copy.collected(&received(11, number > 0, 3))));
        first.collected(&received(10, false, 3)).unwrap();
    }
    let collector = controller.json(&["status"])[0]["collector"].clone();
    let both = serde_json::json!(["127.0.0.1", "127.0.0.1"]);
    assert_eq!(collector["copies"], both);
    // The first starts again, while the copy waits for its place.
    drop(first);
    assert!(is_copy(&copy.collected(&received(11, true, 3))));
    here.client().collected(&received(12, false, 3)).unwrap();
    let events = controller.json(&["log"]);
    let events = events.as_array().unwrap().iter();
    assert_eq!(events.filter(|event| event["kind"] == "copy").count(), 1);
    controller.stop();
}

/// It may still export, and nobody else knows how much: the sum says so.
#[test]
fn a_sum_is_not_said_to_be_complete_with_an_agent_that_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL)]));
    let host = Member::enrol(&controller, &address, "host", false);
    let here = Member::enrol(&controller, &address, "here", true);
    let interrupt = Interrupt::default();
    let mut sender = host.client();
    let assigned = sender.report(&report(), interrupt.follow()).unwrap();
    assert_eq!(assigned.unwrap().identities["eth0"], 1);
    let exports = ExportCount {
        name: "here".into(),
        packets: 10,
        sessions: vec![SessionCount {
            identity: 1,
            session: 7,
            packets: 10,
        }],
        ..ExportCount::default()
    };
    let sent = Report {
        exports: vec![exports],
        ..report()
    };
    sender.report(&sent, interrupt.follow()).unwrap();
    let mut collector = here.client();
    collector.collected(&received(1, false, 10)).unwrap();
    let complete = "each exported packet was received";
    let text = ok(&mut controller.command(&["status"]));
    assert!(text.contains(complete), "{text}");
    assert!(!text.contains("revoked"), "{text}");
    ok(&mut controller.command(&["revoke", "host"]));
    collector.collected(&received(1, false, 12)).unwrap();
    let text = ok(&mut controller.command(&["status"]));
    assert!(text.contains("here: these agents are revoked"), "{text}");
    assert!(text.contains("are not in the sums: host\n"), "{text}");
    assert!(!text.contains(complete), "{text}");
    let sum = controller.json(&["status"])[0].clone();
    assert_eq!(sum["revoked"], serde_json::json!(["host"]));
    assert_eq!(
        (&sum["sum"]["exported"], &sum["sum"]["missing"]),
        (&12.into(), &0.into())
    );
    controller.stop();
}
