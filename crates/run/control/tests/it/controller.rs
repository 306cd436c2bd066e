//! The controller: requests to it, what it does by itself, and its reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strata_classify::{DriftReport, Model};
use strata_control::config::{OnDrift, PolicyConfig};
use strata_control::elastic::ElasticOptions;
use strata_control::saved::Saved;
use strata_control::{
    Controller, CpuStatus, DriftWindow, ExportTimesRequest, Fast, InterfaceStatus, NetworkObserved,
    Observed, PolicyOrigin, ReceiveStatus, Settings, metrics,
};
use strata_filter::Filter;
use strata_policy::{ClassKept, DetailBudget, DetailCounts, ModeConfig, ShadowCounts};
use strata_rules::{Action, Policy};
use strata_testkit::workspace_root;
use strata_wire::{Counters, DropReason};

fn controller(elastic: bool) -> Controller {
    let beginning = Settings {
        modes: vec!["default".into()],
        elastic: elastic.then(ElasticOptions::default),
        ..Settings::default()
    };
    Controller::new(model(), beginning).unwrap()
}

fn policy(filter: &str, action: &str) -> PolicyConfig {
    PolicyConfig {
        matches: filter.into(),
        action: action.into(),
        priority: 100,
        interface: None,
        protect: false,
    }
}

/// A recording with this share of its memory blocks in use.
fn blocks(used: u64) -> Observed {
    let mut observed = Observed {
        blocks_bytes: 100,
        network: NetworkObserved {
            interfaces: vec![InterfaceStatus {
                name: "eth0".into(),
                received: 5,
                ..InterfaceStatus::default()
            }],
            ..NetworkObserved::default()
        },
        disk_used: Some(0.5),
        ..Observed::default()
    };
    observed.counts.ledger.in_flight = Counters {
        packets: 1,
        bytes: used,
    };
    observed
}

#[test]
fn a_shortage_is_answered_and_taken_back() {
    let controller = controller(true);
    let start = Instant::now();
    let mode_at = |seconds: f64, used: u64| {
        controller.tick(start + Duration::from_secs_f64(seconds), blocks(used));
        controller.status().mode
    };
    assert_eq!(mode_at(1.0, 90), "default");
    assert_eq!(mode_at(1.4, 90), "log-partial");
    assert_eq!(mode_at(1.8, 90), "log-sampled");
    assert_eq!(mode_at(2.2, 90), "log-minimum");
    assert_eq!(mode_at(2.6, 90), "log-minimum");
    assert_eq!(controller.steering().plan().mode_name(), "log-minimum");
    assert_eq!(controller.status().asked_mode, "default");
    // Between the thresholds nothing changes; below, each step takes the hold time.
    assert_eq!(mode_at(30.0, 50), "log-minimum");
    assert_eq!(mode_at(40.0, 10), "log-minimum");
    assert_eq!(mode_at(50.1, 10), "log-sampled");
    assert_eq!(mode_at(60.2, 10), "log-partial");
    assert_eq!(mode_at(70.3, 10), "default");
    let events = controller.events();
    assert_eq!(events.len(), 6);
    assert_eq!(
        (events[0].who.as_str(), events[0].is_alert),
        ("strata", true)
    );
    let said = |at: usize| format!("{}: {}", events[at].what, events[at].why);
    for what in [
        "mode log-partial instead of mode default: blocks is short: 90 % in use; since 20",
        "undone 10 s or more after the shortage",
        "to prevent it: keep less (--detail",
        "enabled = false in [elastic]",
    ] {
        assert!(said(0).contains(what), "{}", said(0));
    }
    let back = said(3);
    assert!(
        back.starts_with("mode log-sampled, still instead of mode default: "),
        "{back}"
    );
    let end = &events[5].what;
    assert!(
        end.starts_with("mode default again: less was kept since 20"),
        "{end}"
    );
    assert!(end.ends_with(", for 68.9 s"), "{end}");
    let lowered = controller.lowered().unwrap();
    assert_eq!((lowered.now, lowered.times), (false, 1));
    assert!((lowered.seconds - 68.9).abs() < 1e-6, "{lowered:?}");
    let change = [&*lowered.from, &lowered.to];
    assert_eq!(change, ["mode default", "mode log-partial"]);
    assert_eq!(mode_at(100.0, 90), "default");
    assert_eq!(mode_at(100.5, 90), "log-partial");
    let lowered = controller.lowered().unwrap();
    assert_eq!((lowered.now, lowered.times), (true, 2));
}

/// With a budget of detail, that is what a shortage lowers first; the mode stays.
#[test]
fn a_shortage_lowers_the_budget_of_detail_before_the_mode() {
    let beginning = Settings {
        modes: vec!["default".into()],
        elastic: Some(ElasticOptions::default()),
        detail: Some(DetailBudget::Share(0.1)),
        ..Settings::default()
    };
    let controller = Controller::new(model(), beginning).unwrap();
    let start = Instant::now();
    let at = |seconds: f64, used: u64| {
        controller.tick(start + Duration::from_secs_f64(seconds), blocks(used));
        let status = controller.status();
        let detail = status.detail.unwrap();
        assert_eq!(detail.asked, "10%");
        format!("{} {}", status.mode, detail.budget)
    };
    assert_eq!(at(1.0, 90), "default 10%");
    assert_eq!(at(1.4, 90), "default 1.25%");
    let plan = controller.steering().plan();
    let detail = plan.detail().unwrap();
    assert_eq!(detail.budget, DetailBudget::Share(0.0125));
    assert_eq!(at(1.8, 90), "log-partial 1.25%");
    assert_eq!(at(2.2, 90), "log-sampled 1.25%");
    assert_eq!(at(2.6, 90), "log-minimum 1.25%");
    assert_eq!(at(3.0, 90), "log-minimum 1.25%");
    assert_eq!(at(40.0, 10), "log-minimum 1.25%");
    assert_eq!(at(50.1, 10), "log-sampled 1.25%");
    assert_eq!(at(60.2, 10), "log-partial 1.25%");
    assert_eq!(at(70.3, 10), "default 1.25%");
    assert_eq!(at(80.4, 10), "default 10%");
    let events = controller.events();
    assert_eq!(
        events[0].what,
        "mode default, detail 1.25% instead of mode default, detail 10%"
    );
    let why = &events[0].why;
    assert!(
        why.starts_with("blocks is short: 90 % in use; since "),
        "{why}"
    );
    let end = &events.last().unwrap().what;
    assert!(end.starts_with("mode default, detail 10% again: "), "{end}");
    // What users change applies at once, in a shortage in part.
    controller
        .set_detail("80MB/s", "api", "a day of it")
        .unwrap();
    assert_eq!(controller.status().detail.unwrap().budget, "80.0 MB/s");
    for text in ["10", "101%", "50MB", "", "none at all"] {
        let error = controller.set_detail(text, "api", "").unwrap_err();
        assert!(error.to_string().contains("20GB/day"), "{error}");
    }
    assert_eq!(controller.status().detail.unwrap().asked, "80.0 MB/s");
    controller.set_detail("none", "api", "").unwrap();
    assert!(controller.status().detail.is_none());
    assert!(controller.steering().plan().detail().is_none());
}

/// Where every class gets the same, there is no budget to lower: that would be a step for nothing.
#[test]
fn a_shortage_changes_a_mode_at_once_if_the_budget_decides_nothing_in_it() {
    let beginning = Settings {
        modes: vec!["log-all".into()],
        elastic: Some(ElasticOptions::default()),
        detail: Some(DetailBudget::Share(0.1)),
        ..Settings::default()
    };
    let controller = Controller::new(model(), beginning).unwrap();
    let start = Instant::now();
    let at = |seconds: f64, used: u64| {
        controller.tick(start + Duration::from_secs_f64(seconds), blocks(used));
        controller.status().mode
    };
    assert_eq!(at(1.0, 90), "log-all");
    assert_eq!(at(1.4, 90), "log-partial");
    let first = &controller.events()[0].what;
    assert_eq!(
        first,
        "mode log-partial, detail 10% instead of mode log-all"
    );
    assert_eq!(at(20.0, 10), "log-partial");
    assert_eq!(at(30.1, 10), "log-all");
    let events = controller.events();
    let end = &events.last().unwrap().what;
    assert!(
        end.starts_with("mode log-all again: less was kept "),
        "{end}"
    );
}

#[test]
fn packets_dropped_on_a_full_disk_are_told_once_and_when_it_has_room_again() {
    let controller = controller(true);
    let start = Instant::now();
    let told_at = |seconds: u64, packets: u64| {
        let mut observed = blocks(1);
        let bytes = packets * 100;
        observed.counts.ledger.dropped[DropReason::DiskFull as usize] = Counters { packets, bytes };
        controller.tick(start + Duration::from_secs(seconds), observed);
        let told = controller.events().into_iter().map(|event| event.what);
        told.filter(|what| what.contains("disk"))
            .collect::<Vec<_>>()
    };
    assert!(told_at(0, 0).is_empty());
    for (seconds, packets) in [(1, 5), (2, 9), (11, 9)] {
        let told = told_at(seconds, packets);
        assert!(
            told.len() == 1 && told[0].starts_with("the disk is full"),
            "{told:?}"
        );
    }
    let told = told_at(12, 9);
    assert!(told[1].contains("free space again: 9 packets"), "{told:?}");
    assert_eq!(told_at(13, 10).len(), 3);
}

#[test]
fn a_full_disk_that_ends_the_recording_is_told_as_that() {
    for (ends_when_full, wanted) in [
        (true, "the disk is full: the recording ends"),
        (
            false,
            "the disk is full: packets are dropped until there is free space again",
        ),
    ] {
        let beginning = Settings {
            modes: vec!["default".into()],
            ends_when_full,
            ..Settings::default()
        };
        let controller = Controller::new(model(), beginning).unwrap();
        let mut observed = blocks(1);
        let (packets, bytes) = (5, 500);
        controller.tick(Instant::now(), blocks(1));
        observed.counts.ledger.dropped[DropReason::DiskFull as usize] = Counters { packets, bytes };
        controller.tick(Instant::now() + Duration::from_secs(1), observed);
        let told = controller.events().into_iter();
        let told: Vec<String> = told.map(|event| event.what).collect();
        assert!(told.iter().any(|what| what == wanted), "{told:?}");
    }
}

/// A window of the traffic whose scores differ this much from training.
fn drifted(scores: f64, is_whole: bool) -> Observed {
    let report = DriftReport {
        samples: 2_000,
        scores,
        features: vec![(String::from("tcp_window"), 3.0)],
    };
    Observed {
        drift: Some(DriftWindow { report, is_whole }),
        ..Observed::default()
    }
}

#[test]
fn a_model_that_no_longer_fits_is_told_and_answered_as_configured() {
    for (on_drift, detail, while_drifted) in [
        (OnDrift::Warn, None, "default"),
        (OnDrift::Budget, None, "default 10%"),
        (
            OnDrift::Budget,
            Some(DetailBudget::Share(0.02)),
            "default 2%",
        ),
        (OnDrift::Keep, None, "log-all"),
        (OnDrift::Keep, Some(DetailBudget::Share(0.02)), "log-all 2%"),
    ] {
        let settings = || Settings {
            modes: vec!["default".into()],
            detail,
            on_drift,
            ..Settings::default()
        };
        let controller = Controller::new(model(), settings()).unwrap();
        let at = |observed: Observed| {
            controller.tick(Instant::now(), observed);
            let status = controller.status();
            let plan = controller.steering().plan();
            assert_eq!(plan.mode_name(), status.mode);
            // Where every class is kept whole, a budget has nothing to decide.
            let decides = status.detail.is_some() && status.mode == "default";
            assert_eq!(plan.detail().is_some(), decides);
            match status.detail {
                Some(detail) => format!("{} {}", status.mode, detail.budget),
                None => status.mode,
            }
        };
        let before = at(drifted(0.1, true));
        // What is seen at the start is shown, but changes nothing.
        assert_eq!(at(drifted(9.0, false)), before);
        assert_eq!(controller.status().drift.unwrap().fits, Some(false));
        assert!(controller.events().is_empty());
        assert_eq!(at(drifted(0.3, true)), while_drifted);
        assert_eq!(
            at(drifted(0.22, true)),
            while_drifted,
            "it does not flicker"
        );
        controller.reload(settings(), "configuration").unwrap();
        assert_eq!(at(drifted(0.22, true)), while_drifted, "nor by a reload");
        assert_eq!(at(drifted(0.1, true)), before);
        let events = controller.events();
        let said: Vec<&str> = events
            .iter()
            .filter(|event| event.is_alert)
            .map(|event| event.what.split(':').next().unwrap())
            .collect();
        let expected = [
            "the model no longer fits the traffic",
            "the model fits the traffic again",
        ];
        assert_eq!(said, expected);
        assert_eq!(
            events[0].why,
            "drift index 0.30 (limit 0.25); feature that differs most from training: \
             tcp_window 3.0"
        );
    }
}

/// Workers report kernel drops less often than the controller looks.
#[test]
fn drops_are_answered_though_they_are_told_late() {
    let controller = controller(true);
    let start = Instant::now();
    let mut observed = blocks(0);
    for tick in 0..20_u32 {
        if tick.is_multiple_of(2) {
            observed.network.interfaces[0].dropped += 1;
        }
        controller.tick(start + Duration::from_millis(50) * tick, observed.clone());
    }
    assert_eq!(controller.status().mode, "log-minimum");
    let why = controller.events().remove(0).why;
    assert!(why.starts_with("the kernel drops packets; since "), "{why}");
}

/// A request never adds to what a shortage leaves, and the other way round.
#[test]
fn degradation_never_keeps_more_than_was_asked_for() {
    let controller = controller(true);
    let start = Instant::now();
    controller
        .set_modes(&["log-sampled".into()], None, "test", "")
        .unwrap();
    for step in 0..6_u32 {
        controller.tick(start + Duration::from_millis(100) * step, blocks(90));
    }
    assert_eq!(controller.status().mode, "log-minimum");
}

/// While something is short, other modes are active than those requested; an unknown name is
/// invalid even then.
#[test]
fn a_mode_that_does_not_exist_is_refused_while_something_is_short() {
    let controller = controller(true);
    let start = Instant::now();
    for step in 0..30_u32 {
        controller.tick(start + Duration::from_millis(100) * step, blocks(90));
    }
    assert_eq!(controller.status().mode, "log-minimum");
    let modes = ["log-all".into(), "no such mode".into()];
    let refused = controller.set_modes(&modes, None, "test", "");
    assert!(refused.is_err(), "{:?}", controller.status());
    assert_eq!(controller.status().asked_mode, "default");
}

/// What is in force, and how long, this many seconds after the beginning.
fn mode_after(controller: &Controller, start: Instant, seconds: u64) -> (String, bool) {
    controller.tick(start + Duration::from_secs(seconds), blocks(0));
    let status = controller.status();
    (status.mode, status.mode_seconds_left.is_some())
}

#[test]
fn a_timed_mode_returns_to_the_one_before_it_with_what_is_left_of_its_time() {
    let start = Instant::now();
    let set = |controller: &Controller, mode: &str, seconds: Option<u64>| {
        let period = seconds.map(Duration::from_secs);
        controller.set_modes(&[mode.into()], period, "test", "")
    };
    let is = |mode: &str, is_timed| (mode.to_owned(), is_timed);

    // The shorter one is over first.
    let nested = controller(false);
    set(&nested, "log-all", Some(600)).unwrap();
    set(&nested, "log-minimum", Some(100)).unwrap();
    assert_eq!(nested.status().mode, "log-minimum");
    assert!(nested.status().mode_seconds_left.unwrap() <= 100.0);
    assert_eq!(mode_after(&nested, start, 300), is("log-all", true));
    let left = nested.status().mode_seconds_left.unwrap();
    assert!((500.0..=600.0).contains(&left), "{left}");
    let event = nested.events().pop().unwrap();
    assert_eq!(event.who, "timer");
    assert!(
        event.what.starts_with("mode log-all for "),
        "{}",
        event.what
    );
    assert_eq!(mode_after(&nested, start, 900), is("default", false));

    // The one before is over first, or at the same tick: it does not return.
    for (seconds, tick) in [(900, 1000), (100, 1000)] {
        let passed = controller(false);
        set(&passed, "log-all", Some(600)).unwrap();
        set(&passed, "log-minimum", Some(seconds)).unwrap();
        assert_eq!(mode_after(&passed, start, tick), is("default", false));
    }

    // The same mode again only gets another time.
    let shortened = controller(false);
    set(&shortened, "log-all", Some(600)).unwrap();
    set(&shortened, "log-all", Some(100)).unwrap();
    assert_eq!(mode_after(&shortened, start, 300), is("default", false));

    // Without a time, nothing returns.
    let forgotten = controller(false);
    set(&forgotten, "log-all", Some(600)).unwrap();
    set(&forgotten, "log-minimum", Some(100)).unwrap();
    set(&forgotten, "log-partial", None).unwrap();
    assert_eq!(
        mode_after(&forgotten, start, 1000),
        is("log-partial", false)
    );

    // A reload changes what returns after all of them.
    let reloaded = controller(false);
    set(&reloaded, "log-all", Some(600)).unwrap();
    set(&reloaded, "log-minimum", Some(100)).unwrap();
    reloaded
        .reload(configured("log-partial", &[]), "configuration")
        .unwrap();
    assert_eq!(reloaded.status().mode, "log-minimum");
    assert_eq!(mode_after(&reloaded, start, 300), is("log-all", true));
    assert_eq!(mode_after(&reloaded, start, 900), is("log-partial", false));
}

#[test]
fn timed_modes_within_one_another_have_a_limit() {
    let controller = controller(false);
    let set = |number: u32, seconds: u64| {
        let mode = if number.is_multiple_of(2) {
            "log-all"
        } else {
            "log-minimum"
        };
        let period = Some(Duration::from_secs(seconds));
        controller.set_modes(&[mode.into()], period, "test", "")
    };
    for number in 0..16 {
        set(number, 10_000 - u64::from(number) * 100).unwrap();
    }
    let error = set(16, 60).unwrap_err().to_string();
    assert!(error.contains("16 temporary modes"), "{error}");
    assert_eq!(controller.status().mode, "log-minimum");
    // One that outlasts the others needs no room.
    set(16, 20_000).unwrap();
    set(17, 60).unwrap();
}

#[test]
fn what_is_refused_changes_nothing() {
    let controller = controller(false);
    controller
        .add_policy(&policy("tcp", "full"), "test", "")
        .unwrap();
    let before = controller.status();
    let bad_mode = ["log-all".into(), "none".into()];
    assert!(controller.set_modes(&bad_mode, None, "test", "").is_err());
    assert!(controller.set_modes(&[], None, "test", "").is_err());
    assert!(
        controller
            .add_policy(&policy("tcp[13] = 2", "full"), "test", "")
            .is_err()
    );
    assert!(controller.remove_policy(9, "test", "").is_err());
    let after = controller.status();
    assert_eq!((after.mode, after.policies), (before.mode, before.policies));
    assert_eq!(controller.events().len(), 1);
}

/// A mode that names a class unknown to every model.
fn mode_of_no_class() -> ModeConfig {
    ModeConfig {
        benign: "header".into(),
        anomalous: "full".into(),
        classes: BTreeMap::from([("no such class".into(), "full".into())]),
    }
}

/// Everything that a request can change, as seen from outside.
fn asked(controller: &Controller) -> impl PartialEq + Debug {
    let status = controller.status();
    let short_at: Vec<_> = status.resources.iter().map(|r| r.short_at).collect();
    (
        (status.mode, status.asked_mode, status.default, short_at),
        (controller.cpu_budget(), listed(controller)),
        controller.events().len(),
        Arc::as_ptr(&controller.steering().plan()),
    )
}

/// A configured mode may become active only later, when it is too late to refuse it: after a timed
/// mode, or once nothing is short.
#[test]
fn a_refused_reload_changes_nothing_whatever_is_at_work() {
    let start = Instant::now();
    let named = |mode: &str| {
        let mut beginning = configured(mode, &[policy("udp", "drop")]);
        beginning.default = Some("full".parse().unwrap());
        beginning.cpu_budget = Some(0.5);
        beginning.own_modes = BTreeMap::from([("mine".into(), mode_of_no_class())]);
        beginning
    };
    let mut mirrors = named("log-all");
    mirrors.own_modes.clear();
    let mut too_much = mirrors.clone();
    mirrors.default = Some("mirror".parse().unwrap());
    let no_policy = Filter::parse("tcp[13] = 2").unwrap();
    too_much
        .policies
        .push(Policy::new(no_policy, Action::CLASSIFY));
    for situation in ["plain", "timed", "short"] {
        let mut beginning = configured("log-partial", &[policy("tcp", "full")]);
        beginning.elastic = Some(ElasticOptions::default());
        beginning.cpu_budget = Some(2.0);
        let controller = Controller::new(model(), beginning).unwrap();
        controller
            .add_policy(&policy("port 53", "full"), "test", "")
            .unwrap();
        let minute = Some(Duration::from_secs(60));
        let used = if situation == "short" { 90 } else { 0 };
        if situation == "timed" {
            let modes = ["log-all".into()];
            controller.set_modes(&modes, minute, "test", "").unwrap();
        }
        for step in 0..30_u32 {
            controller.tick(start + Duration::from_millis(100) * step, blocks(used));
        }
        let before = asked(&controller);
        for refused in [
            named("no such mode"),
            named("mine"),
            mirrors.clone(),
            too_much.clone(),
        ] {
            let error = controller.reload(refused.clone(), "configuration");
            assert!(error.is_err(), "{situation}: {refused:?}");
            assert_eq!(asked(&controller), before, "{situation}: {error:?}");
        }
        if situation == "timed" {
            controller.tick(start + Duration::from_secs(65), blocks(0));
            assert_eq!(controller.status().mode, "log-partial");
            assert_eq!(controller.steering().plan().mode_name(), "log-partial");
        }
    }
}

/// An interface may be captured later, so that its policy is no error.
#[test]
fn a_policy_for_an_interface_that_is_not_captured_is_remarked_on() {
    let controller = controller(false);
    // Files have no interfaces.
    assert_eq!(controller.status().not_captured("nope"), None);
    controller.tick(Instant::now() + Duration::from_secs(1), blocks(1));
    let status = controller.status();
    assert_eq!(status.not_captured("eth0"), None);
    let remark = status.not_captured("nope").unwrap();
    assert!(remark.contains("'nope' (captured: eth0)"), "{remark}");
}

/// A variable of a script that is unset would drop everything.
#[test]
fn a_policy_without_a_filter_is_refused() {
    let controller = controller(false);
    for filter in ["", " ", "\n"] {
        let error = controller.add_policy(&policy(filter, "drop"), "uid 0", "");
        assert!(error.unwrap_err().to_string().contains("every packet"));
    }
    let unnamed = PolicyConfig {
        interface: Some(String::new()),
        ..policy("tcp", "drop")
    };
    assert!(controller.add_policy(&unnamed, "uid 0", "").is_err());
    assert!(controller.policies().is_empty());
}

/// The same for a user's request: an unusable mode is refused though another one is active.
#[test]
fn a_mode_of_a_class_that_does_not_exist_is_refused_while_something_is_short() {
    let start = Instant::now();
    let beginning = Settings {
        modes: vec!["default".into()],
        own_modes: BTreeMap::from([("mine".into(), mode_of_no_class())]),
        elastic: Some(ElasticOptions::default()),
        ..Settings::default()
    };
    let controller = Controller::new(model(), beginning).unwrap();
    for step in 0..30_u32 {
        controller.tick(start + Duration::from_millis(100) * step, blocks(90));
    }
    assert_eq!(controller.status().mode, "log-minimum");
    let before = asked(&controller);
    let refused = controller.set_modes(&["mine".into()], None, "test", "");
    assert!(refused.is_err());
    assert_eq!(asked(&controller), before);
}

/// A configuration.
fn configured(mode: &str, wanted: &[PolicyConfig]) -> Settings {
    Settings {
        modes: vec![mode.into()],
        policies: wanted
            .iter()
            .map(|policy| policy.policy().unwrap())
            .collect(),
        ..Settings::default()
    }
}

fn model() -> Model {
    let path = workspace_root().join("models/default.json");
    Model::from_json(&std::fs::read(path).unwrap()).unwrap()
}

fn listed(controller: &Controller) -> Vec<(u32, String, PolicyOrigin)> {
    let mut all = controller.policies();
    all.sort_by_key(|policy| policy.id);
    all.into_iter()
        .map(|policy| (policy.id, policy.matches, policy.origin))
        .collect()
}

use PolicyOrigin::{Configuration, RunTime};

#[test]
fn reloading_keeps_what_stays() {
    let wanted = ["tcp", "udp"].map(|filter| policy(filter, "full"));
    let controller = Controller::new(model(), configured("default", &wanted)).unwrap();
    controller
        .add_policy(&policy("port 53", "full"), "test", "")
        .unwrap();
    let wanted = [policy("udp", "full"), policy("icmp", "drop")];
    let beginning = configured("log-all", &wanted);
    controller.reload(beginning, "configuration").unwrap();
    let expected = [
        (2, "udp".into(), Configuration),
        (3, "port 53".into(), RunTime),
        (4, "icmp".into(), Configuration),
    ];
    assert_eq!(listed(&controller), expected);
    assert_eq!(controller.status().mode, "log-all");
    let what = controller.events().pop().unwrap().what;
    assert!(
        what.contains("1 policies added, 1 kept, 1 removed; 1 added at run time remain"),
        "{what}"
    );
    // A refused configuration changes nothing.
    let mut refused = configured("none", &[policy("ip6", "drop")]);
    assert!(controller.reload(refused.clone(), "configuration").is_err());
    refused.modes = vec!["default".into()];
    refused
        .policies
        .push(policy("arp", "mirror").policy().unwrap());
    assert!(controller.reload(refused, "configuration").is_err());
    assert_eq!(listed(&controller), expected);
    assert_eq!(controller.status().mode, "log-all");
    // Policies that appear in the file belong to the file from then on.
    let wanted = [policy("port 53", "full")];
    let beginning = configured("default", &wanted);
    controller.reload(beginning, "configuration").unwrap();
    assert_eq!(listed(&controller), [(3, "port 53".into(), Configuration)]);
}

#[test]
fn policies_of_run_time_are_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let begin = |wanted: &[PolicyConfig]| {
        let (saved, problems) = Saved::load(dir.path());
        assert!(problems.is_empty(), "{problems:?}");
        Controller::with_saved(model(), configured("default", wanted), Some(saved)).unwrap()
    };
    let first = begin(&[policy("tcp", "full")]);
    for filter in ["udp", "port 53", "ip6"] {
        first
            .add_policy(&policy(filter, "full"), "uid 0", "a test")
            .unwrap();
    }
    first.remove_policy(3, "uid 0", "").unwrap();
    drop(first);
    // The configuration has grown, by one policy that was also added at run time.
    let wanted = ["tcp", "arp", "ip6"].map(|filter| policy(filter, "full"));
    let again = begin(&wanted);
    let expected = [
        (1, "tcp".into(), Configuration),
        (2, "udp".into(), RunTime),
        (5, "arp".into(), Configuration),
        (6, "ip6".into(), Configuration),
    ];
    assert_eq!(listed(&again), expected);
    assert_eq!(
        again
            .add_policy(&policy("icmp", "drop"), "test", "")
            .unwrap(),
        7
    );
    drop(again);
    // An unusable policy is reported, and stays saved for when it can be used.
    let path = dir.path().join("policies.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"drop\"", "\"mirror\"")).unwrap();
    let third = begin(&wanted);
    assert_eq!(third.status().policies, 4);
    let told = third.take_events().iter().any(|event| {
        event
            .what
            .contains("policy 7, added at run time, is not in force: icmp: a policy mirrors")
    });
    assert!(told);
    third
        .add_policy(&policy("vlan 3", "full"), "test", "")
        .unwrap();
    let (saved, _) = Saved::load(dir.path());
    let ids: Vec<u32> = saved.policies().map(|policy| policy.id).collect();
    assert_eq!(ids, [2, 7, 10]);
}

#[test]
fn texts_of_requests_are_bounded() {
    let controller = controller(false);
    let long = "x".repeat(1025);
    let refused = [
        controller
            .add_policy(&policy("tcp", "full"), "test", &long)
            .unwrap_err(),
        controller
            .set_modes(&["log-all".into()], None, "test", &long)
            .unwrap_err(),
        controller
            .add_policy(
                &policy(&format!("tcp{}", " ".repeat(4096)), "full"),
                "test",
                "",
            )
            .unwrap_err(),
        controller
            .add_policy(&policy(&"(".repeat(4000), "full"), "test", "")
            .unwrap_err(),
        controller
            .set_modes(&vec!["log-all".into(); 17], None, "test", "")
            .unwrap_err(),
    ];
    let said = refused.map(|error| error.to_string());
    assert_eq!(said[0], "why: 1025 bytes; at most 1024 are allowed");
    assert_eq!(said[2], "match: 4099 bytes; at most 4096 are allowed");
    assert!(controller.events().is_empty());
    assert!(
        controller
            .add_policy(&policy("tcp", "full"), "test", &long[1..])
            .is_ok()
    );
}

/// Policies come and go by the thousand while all are compiled anew in the background.
#[test]
fn ten_thousand_policies_fit() {
    let host = |number: u32| {
        let [_, _, a, b] = number.to_be_bytes();
        policy(&format!("host 10.0.{a}.{b}"), "header")
    };
    let most: Vec<PolicyConfig> = (0..9_500).map(host).collect();
    let controller = Controller::new(model(), configured("default", &most)).unwrap();
    for number in 9_500..10_000 {
        let id = controller.add_policy(&host(number), "test", "").unwrap();
        assert_eq!(id, number + 1);
    }
    let one_more = controller.add_policy(&host(0), "test", "").unwrap_err();
    assert!(
        one_more.to_string().contains("10000 policies"),
        "{one_more}"
    );
    assert_eq!(controller.status().policies, 10_000);
    for id in 8_000..=10_000 {
        controller.remove_policy(id, "test", "").unwrap();
    }
    assert_eq!(controller.status().policies, 7_999);
    assert_eq!(controller.add_policy(&host(0), "test", "").unwrap(), 10_001);
}

/// Every metric used by the dashboard exists.
#[test]
fn the_dashboard_finds_its_metrics() {
    let controller = controller(true);
    controller
        .add_policy(&policy("tcp", "full"), "test", "")
        .unwrap();
    let mut observed = blocks(1);
    observed.counts.kept.push(ClassKept {
        class: 0,
        granularity: "full",
        captured: Counters::default(),
        kept_bytes: 0,
    });
    observed.network.receive.push(ReceiveStatus::default());
    observed.drift = drifted(0.1, true).drift;
    observed.counts.detail = Some(DetailCounts::default());
    let mut shadow = ShadowCounts::new(2);
    shadow.add([0, 1], 1_000, [54, 1_000]);
    observed.counts.shadow = Some(shadow);
    controller.tick(Instant::now(), observed);
    let cpu = CpuStatus {
        budget: 0.1,
        used: 0.05,
        flow_share: 1.0,
        short: None,
    };
    controller.note_cpu(Instant::now(), Some(cpu));
    let page = metrics::text(&controller, metrics::Format::Prometheus);
    let dashboard = std::fs::read_to_string(workspace_root().join("deploy/grafana.json")).unwrap();
    let more = "\nstrata_shadow_bytes_total{class=\"benign\",result=\"more\"} 946\n";
    assert!(page.contains(more), "{page}");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
    let names = dashboard.match_indices("strata_").map(|(at, _)| {
        let name = &dashboard[at..];
        &name[..name.find(|c| !is_name(c)).unwrap()]
    });
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        // Delays are known once a worker has adopted a change.
        if name != "strata_plan_change_delay_p99_seconds" {
            assert!(
                page.contains(&format!("\n{name}{{")) || page.contains(&format!("\n{name} ")),
                "{name} in {page}"
            );
        }
    }
}

/// Rates are measured once a second: an excess in one of them is answered by one step, not by one
/// each time the controller looks.
#[test]
fn a_rate_that_is_too_high_once_is_one_step() {
    let path = workspace_root().join("models/default.json");
    let model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
    let beginning = Settings {
        modes: vec!["default".into()],
        elastic: Some(ElasticOptions {
            bits_per_second: Some(8e6),
            ..ElasticOptions::default()
        }),
        ..Settings::default()
    };
    let controller = Controller::new(model, beginning).unwrap();
    let start = Instant::now();
    let mut observed = blocks(0);
    // 2 MB a second, until the mode degrades: then 0.5.
    let mut modes = Vec::new();
    for tick in 0..120_u32 {
        let degraded = controller.status().mode != "default";
        observed.counts.ledger.logged.bytes += if degraded { 25_000 } else { 100_000 };
        controller.tick(start + Duration::from_millis(50) * tick, observed.clone());
        let mode = controller.status().mode;
        if modes.last() != Some(&mode) {
            modes.push(mode);
        }
    }
    assert_eq!(modes, ["default", "log-partial"]);
}

/// Readings of fast sensors are answered between looks, by their own times.
#[test]
fn fast_sensors_are_answered_at_once_and_once() {
    let controller = controller(true);
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    controller.tick(at(0), blocks(0));
    for ms in 1..=301 {
        let fast = Fast {
            ring_fill: Some((0.9, at(ms))),
            ..Fast::default()
        };
        controller.sense(at(ms), &fast);
    }
    assert_eq!(controller.status().mode, "log-sampled");
    // A worker with nothing new has not repeated its report.
    for ms in 302..2_000 {
        let fast = Fast {
            ring_fill: Some((0.9, at(301))),
            ..Fast::default()
        };
        controller.sense(at(ms), &fast);
    }
    assert_eq!(controller.status().mode, "log-sampled");
    // A kernel drop is seen in the next look.
    for ms in 2_000..2_400 {
        let fast = Fast {
            dropped: Some(7),
            ..Fast::default()
        };
        controller.sense(at(ms), &fast);
    }
    assert_eq!(controller.events().len(), 1, "the mode is the same");
    let ring = &controller.status().resources[2];
    assert_eq!((ring.name.as_str(), ring.degradation_steps), ("ring", 1));
}

/// The reading of the path to a relay is a share of what was sent since the last one: at most all of it, and
/// nothing where one of two reporters is behind the other.
#[test]
fn the_share_of_lost_messages_is_a_share() {
    let controller = controller(true);
    let start = Instant::now();
    let mut ms = 0;
    let mut reads = |rdma: (u64, u64)| {
        ms += 1_500;
        let fast = Fast {
            rdma: Some(rdma),
            ..Fast::default()
        };
        controller.sense(start + Duration::from_millis(ms), &fast);
        let status = controller.status();
        let of = status.resources.iter().find(|of| of.name == "rdma");
        of.unwrap().used
    };
    assert_eq!(reads((1_000, 0)), Some(0.0));
    assert_eq!(reads((2_000, 10)), Some(0.01));
    // An older report of the other thread, and a newer one of what was lost: 99,400 % once.
    assert_eq!(reads((1_999, 1_004)), Some(0.01));
    // What was lost is known, but nothing was sent since: not yet a share.
    assert_eq!(reads((2_000, 1_004)), Some(0.01));
    // Most of it was sent before.
    assert_eq!(reads((2_010, 1_004)), Some(1.0));
    assert_eq!(reads((3_010, 1_004)), Some(0.0));
}

/// Times from which or until which is exported: before they come, or not at all.
#[test]
fn export_times_are_adopted_before_they_come() {
    let controller = controller(false);
    let times = || controller.export_times().now();
    assert_eq!(times(), 0..u64::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now_ns = u64::try_from(now.as_nanos()).unwrap();
    let ask = |from, until| controller.set_export_times(ExportTimesRequest { from, until });
    let later = now_ns + 3_600_000_000_000;
    ask(Some(later), Some(later + 1)).unwrap();
    assert_eq!(times(), later..later + 1);
    for late in [0, now_ns - 1, now_ns] {
        let error = ask(Some(late), None).unwrap_err().to_string();
        assert!(error.starts_with("from: "), "{error}");
        let error = ask(None, Some(late)).unwrap_err().to_string();
        assert!(error.starts_with("until: "), "{error}");
    }
    assert_eq!(times(), later..later + 1, "nothing has changed");
    ask(None, None).unwrap();
    assert_eq!(times(), 0..u64::MAX);
}
