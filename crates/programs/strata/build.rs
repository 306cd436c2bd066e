//! What `strata --version` says of the build that the compiler does not know.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    println!("cargo::rustc-env=STRATA_TARGET={}", variable("TARGET"));
    // Cargo names only the profile that this one inherits from; its own name is that of a folder:
    // target/PROFILE/build/strata-HASH/out.
    let out = variable("OUT_DIR");
    let named = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let named = named.and_then(|name| name.to_str()).map(str::to_owned);
    let profile = named.unwrap_or_else(|| variable("PROFILE"));
    println!("cargo::rustc-env=STRATA_PROFILE={profile}");
}
