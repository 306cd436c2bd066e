//! Embeds the page that npm built, if it is there: building the program needs neither Node nor the
//! network.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let dist = root.join("../../../page/dist");
    println!("cargo:rerun-if-changed=build.rs");
    let mut files = Vec::new();
    if dist.join("index.html").is_file() {
        println!("cargo:rerun-if-changed={}", dist.display());
        find(&dist, &dist, &mut files);
    } else {
        println!(
            "cargo:warning=page/dist is missing, so `strata serve` has its API only: `make page` \
             builds the page with Node.js"
        );
    }
    files.sort();
    let mut code = String::from("&[\n");
    for name in files.iter().filter(|name| !name.ends_with(".gz")) {
        let path = dist.join(name).canonicalize().expect("was found");
        let packed = format!("{name}.gz");
        let packed = match files.contains(&packed) {
            true => format!(
                "Some(include_bytes!({:?}))",
                dist.join(&packed).canonicalize().expect("was found")
            ),
            false => String::from("None"),
        };
        let _ = writeln!(code, "    ({name:?}, include_bytes!({path:?}), {packed}),");
    }
    code.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("assets.rs"), code).expect("the build's directory can be written");
}

/// Names of files below a folder, with slashes.
fn find(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder)
        .expect("page/dist can be read")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            find(root, &path, files);
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push(name.to_owned());
        }
    }
}
