//! Features of flows against plain arithmetic over their packets.

use std::collections::HashMap;

use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::application::{
    Application, Classifier, FLOW_FEATURES, FlowRecord, Forest, flow_features,
};
use strata_gpv::{Basic, Cache, Full, Grouped, Key, Packet, Parameters, Tuple, Vector};
use strata_testkit::sim::Rng;

use crate::common::{captured, labelled};

/// Records of whole flows.
fn records(packets: &[Packet], mut out: impl FnMut(&Record<'_, Full>)) {
    let mut cache = Cache::<Full>::new(Parameters::PAPER, 1).unwrap();
    let options = ReassemblyOptions {
        tuples_max: u16::MAX,
        interval_ns: u64::MAX,
        flows: 256,
    };
    let mut agent = Reassembly::<Full>::new(options, 1);
    let mut vectors = |vector: &Vector<'_, Full>| agent.take(vector, &mut out);
    cache.push(packets, &mut vectors);
    cache.flush(&mut vectors);
    agent.flush(&mut out);
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn mean_and_sd(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / values.len() as f64).sqrt())
}

#[test]
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn features_are_those_of_the_packets() {
    let packets = captured(&labelled("everyday-benign"), usize::MAX).unwrap();
    let mut flows: HashMap<Key, Vec<&Packet>> = HashMap::new();
    for packet in &packets {
        flows.entry(packet.key).or_default().push(packet);
    }
    let mut compared = 0;
    records(&packets, |record| {
        let flow = &flows[record.key()];
        // Flows that were cut into several records are not whole.
        if flow.len() != record.count() {
            return;
        }
        compared += 1;
        let found = flow_features(record);
        for (at, &size) in found[..8].iter().enumerate() {
            let wanted = flow.get(at).map_or(0.0, |packet| f64::from(packet.size));
            assert!((f64::from(size) - wanted).abs() < 0.5, "size {at}");
        }
        let sizes: Vec<f64> = flow.iter().map(|packet| f64::from(packet.size)).collect();
        let delays = flow.windows(2);
        // Packets that a capture does not have in the order of their times.
        let delays = delays.map(|pair| pair[1].ts_ns.saturating_sub(pair[0].ts_ns) as f64 / 1e3);
        let ordered = flow.is_sorted_by_key(|packet| packet.ts_ns);
        let delays: Vec<f64> = delays.collect();
        let (size, delay) = (mean_and_sd(&sizes), mean_and_sd(&delays));
        // The deviation of long delays that are nearly equal is not as exact.
        let wanted = [(size, 0.01), (delay, delay.0 * 1e-6 + 0.01)];
        let wanted = wanted.map(|((mean, sd), error)| [(mean, error), (sd, error)]);
        for (found, (wanted, error)) in found[8..].iter().zip(wanted.concat()) {
            let difference = (f64::from(*found) - wanted).abs();
            assert!(
                !ordered || difference < wanted * 1e-4 + error,
                "{found} for {wanted}"
            );
        }
        let whole = FlowRecord::of(record);
        assert_eq!(
            (whole.packets, whole.bytes),
            (
                flow.len() as u64,
                flow.iter().map(|p| u64::from(p.size)).sum()
            )
        );
        assert_eq!(whole.size_max, flow.iter().map(|p| p.size).max().unwrap());
        let duration = flow[flow.len() - 1].ts_ns.saturating_sub(flow[0].ts_ns);
        assert_eq!(whole.duration_ns, duration);
    });
    assert!(compared > 100, "{compared} flows");
}

#[test]
fn a_classifier_answers_for_each_record_once() {
    let packets = captured(&labelled("everyday-benign"), usize::MAX).unwrap();
    let text = format!(
        "strata-flow-forest 1\nfeatures {}\nclass small\nclass large\n\
         tree\nsplit size_mean 200 1 2\nleaf 1 0\nleaf 0 1\n",
        FLOW_FEATURES.join(" ")
    );
    let mut found = Vec::new();
    let mut classifier = Classifier::new(
        Forest::parse(&text).unwrap(),
        |key: &Key, class, share: f32| {
            assert!(share > 0.9);
            found.push((*key, class));
        },
    );
    let mut wanted = Vec::new();
    records(&packets, |record| {
        wanted.push((*record.key(), usize::from(flow_features(record)[8] > 200.0)));
        classifier.take(0, record);
    });
    classifier.finish();
    assert_eq!(found, wanted);
}

/// What a classifier sums in columns, and by vector code, is what each flow by itself has; the paper's
/// tuples and our own, vectors of the cache and records.
#[test]
fn flows_classified_together_are_as_each_by_itself() {
    let packets = captured(&labelled("everyday-benign"), 20_000).unwrap();
    let mut rng = Rng::new(3);
    let mut text = format!(
        "strata-flow-forest 1\nfeatures {}\n",
        FLOW_FEATURES.join(" ")
    );
    text += "class a\nclass b\nclass c\nclass d\nclass e\n";
    for _ in 0..12 {
        text += "tree\n";
        for node in 0..127 {
            if node < 63 {
                let feature = usize::try_from(rng.below(12)).unwrap();
                let below = if feature < 10 { 1500 } else { 2_000_000 };
                let (name, at_most) = (FLOW_FEATURES[feature], rng.below(below));
                text += &format!("split {name} {at_most} {} {}\n", 2 * node + 1, 2 * node + 2);
            } else {
                let mut shares = ["0"; 5];
                shares[usize::try_from(rng.below(5)).unwrap()] = "0.5";
                shares[usize::try_from(rng.below(5)).unwrap()] = "0.25";
                text += &format!("leaf {}\n", shares.join(" "));
            }
        }
    }
    let forest = Forest::parse(&text).unwrap();
    compare::<Basic>(&forest, &packets);
    compare::<Full>(&forest, &packets);
}

fn compare<T: Tuple>(forest: &Forest, packets: &[Packet]) {
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    let mut classifier = Classifier::new(forest.clone(), |key: &Key, class, share: f32| {
        found.push((*key, class, share.to_bits()));
    });
    let mut each = |key: &Key, features| {
        forest.classify(&[features], |_, class, share| {
            wanted.push((*key, class, share.to_bits()));
        });
    };
    let mut cache = Cache::<T>::new(Parameters::PAPER, 1).unwrap();
    let mut agent = Reassembly::<T>::new(ReassemblyOptions::default(), 1);
    let mut records = |record: &Record<'_, T>| {
        each(record.key(), flow_features(record));
        classifier.take(0, record);
    };
    let mut vectors = |vector: &Vector<'_, T>| agent.take(vector, &mut records);
    cache.push(packets, &mut vectors);
    cache.flush(&mut vectors);
    agent.flush(&mut records);
    let mut cache = Cache::<T>::new(Parameters::PAPER, 1).unwrap();
    let mut vectors = |vector: &Vector<'_, T>| {
        each(vector.key(), flow_features(vector));
        classifier.take(0, vector);
    };
    cache.push(packets, &mut vectors);
    cache.flush(&mut vectors);
    classifier.finish();
    assert!(found.len() > 1000, "{} flows", found.len());
    assert_eq!(found, wanted);
}
