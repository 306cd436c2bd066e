//! Any text as a configuration file.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use strata_control::config::Config;
use strata_fuzz::Bounded;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|text: &str| -> Corpus {
    let path = Path::new("strata.toml");
    match Config::from_toml(text, path) {
        Ok(config) => {
            // Impossible numbers are refused.
            let options = config.elastic.options();
            assert!(options.hold_ns_max >= options.hold_ns);
            for policy in config.policies(path).expect("it was checked") {
                assert_eq!(policy.action.to_string().parse(), Ok(policy.action));
            }
            Corpus::Keep
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("strata.toml: "), "{said}");
            Corpus::Keep
        }
    }
});
