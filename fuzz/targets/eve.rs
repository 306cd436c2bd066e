//! Any bytes as lines of Suricata's EVE output: a flow or none, and the same flow whichever
//! end is named first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use strata_fuzz::Bounded;
use strata_pipeline::eve_alert;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|&byte| byte == b'\n') {
        match eve_alert(line) {
            Ok(Some(flow)) => {
                if let Some(turned) = turned(line) {
                    assert_eq!(eve_alert(turned.as_bytes()).ok(), Some(Some(flow)));
                }
            }
            Ok(None) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});

/// The event with its ends exchanged; `None` if an unused field is no text.
fn turned(line: &[u8]) -> Option<String> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    let fields = event.as_object_mut()?;
    for (source, destination) in [("src_ip", "dest_ip"), ("src_port", "dest_port")] {
        let (from, to) = (fields.remove(source), fields.remove(destination));
        fields.extend(from.map(|value| (String::from(destination), value)));
        fields.extend(to.map(|value| (String::from(source), value)));
    }
    Some(event.to_string())
}
