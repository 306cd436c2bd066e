//! Which of a recording's models decides.

use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_control::elastic::ElasticOptions;
use strata_control::{Controller, InForce, Observed, Settings};
use strata_testkit::workspace_root;

fn model() -> Model {
    let path = workspace_root().join("models/default.json");
    Model::from_json(&std::fs::read(path).unwrap()).unwrap()
}

/// Hardly any memory block is free.
fn blocks() -> Observed {
    let mut observed = Observed {
        blocks_bytes: 100,
        ..Observed::default()
    };
    observed.counts.ledger.in_flight.bytes = 90;
    observed
}

/// What was promoted stays promoted through shortages, modes and reloads, until it is taken back.
#[test]
fn a_promoted_model_stays_in_force_whatever_else_changes() {
    let beginning = Settings {
        modes: vec!["default".into()],
        elastic: Some(ElasticOptions::default()),
        can_rotate: true,
        ..Settings::default()
    };
    let without = Controller::new(model(), beginning.clone()).unwrap();
    let refused = without
        .put_in_force(InForce::Shadow, "api", "")
        .unwrap_err();
    assert!(refused.to_string().contains("--shadow FILE"), "{refused}");
    let at_relay = Settings {
        can_rotate: false,
        ..beginning.clone()
    };
    let at_relay = Controller::new(model(), at_relay).unwrap();
    let at_relay = at_relay.with_shadow(Some("other".into()));
    let refused = at_relay
        .put_in_force(InForce::Shadow, "api", "")
        .unwrap_err();
    assert!(refused.to_string().contains("at a relay"), "{refused}");

    let controller = Controller::new(model(), beginning.clone()).unwrap();
    let controller = controller.with_shadow(Some("other".into()));
    let in_force = || {
        let plan = controller.steering().plan();
        let context: serde_json::Value = serde_json::from_slice(&plan.context_json()).unwrap();
        assert_eq!(plan.is_of_shadow(), context["of_shadow"] == true);
        context["model"].as_str().unwrap().to_owned()
    };
    assert_eq!(in_force(), model().name);
    controller
        .put_in_force(InForce::Shadow, "api", "two weeks")
        .unwrap();
    controller
        .put_in_force(InForce::Shadow, "api", "again")
        .unwrap();
    assert_eq!(in_force(), "other");
    let told = controller.events();
    assert_eq!(told.len(), 1, "once is enough");
    assert_eq!(told[0].what, "the shadow model other is promoted");
    let now = Instant::now();
    for ms in [1_000, 1_400] {
        controller.tick(now + Duration::from_millis(ms), blocks());
    }
    assert_ne!(controller.status().mode, "default");
    assert_eq!(in_force(), "other");
    controller
        .set_modes(&["log-all".into()], None, "api", "")
        .unwrap();
    assert_eq!(in_force(), "other");
    controller.reload(beginning, "configuration").unwrap();
    assert_eq!(in_force(), "other");
    let long = "x".repeat(1_025);
    controller
        .put_in_force(InForce::Own, "api", &long)
        .unwrap_err();
    assert_eq!(in_force(), "other");
    controller.put_in_force(InForce::Own, "api", "").unwrap();
    assert_eq!(in_force(), model().name);
}
