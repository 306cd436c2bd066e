//! With the feature `verbs`: the C side of `src/verbs.rs`, and libibverbs.

fn main() {
    println!("cargo::rerun-if-changed=src/verbs.c");
    #[cfg(feature = "verbs")]
    {
        cc::Build::new()
            .file("src/verbs.c")
            .warnings(true)
            .extra_warnings(true)
            .compile("strata_verbs");
        println!("cargo::rustc-link-lib=ibverbs");
    }
}
