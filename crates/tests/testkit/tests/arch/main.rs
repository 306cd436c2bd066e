//! Checks the code against the structure that docs/ARCHITECTURE.md promises: `make arch`.
//!
//! `rules.toml` next to this file has the floors and the debts. A debt may only shrink: a new
//! violation fails, and so does a debt that is already paid, so that the list stays true.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use serde::Deserialize;
use source::{SourceFile, read_crate};
use strata_testkit::workspace_root;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Folders of `crates/`, lowest first. A crate uses crates of its own floor and of those below.
    floors: Vec<String>,
    /// By name: what is of one system and uses no other.
    systems: BTreeMap<String, System>,
    /// Files that may hold `unsafe` blocks.
    unsafe_files: BTreeSet<String>,
    /// Files that may sleep.
    sleep_files: BTreeSet<String>,
    /// Words that are not used in what people read, in lower case.
    phrases: Vec<String>,
    sizes: Sizes,
    debt: Debt,
}

/// How large things may be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    /// Lines of a crate's source.
    #[serde(rename = "crate")]
    of_crate: usize,
    /// Files of a folder.
    folder: usize,
    /// Lines of a file.
    file: usize,
    /// By path: what is larger, and its size at most.
    larger: BTreeMap<String, usize>,
}

/// A system: its crates, and the modules of other crates that are its too, as in `record::relay`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    crates: BTreeSet<String>,
    #[serde(default)]
    modules: BTreeSet<String>,
}

/// What breaks the rules today.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Debt {
    /// `user -> used`, where the used crate is on a higher floor.
    upward: BTreeSet<String>,
    /// `file -> crate`, `file -> crate::module`: what a file of a system uses of another one.
    systems: BTreeSet<String>,
    /// Files outside `unsafe_files` that hold `unsafe` blocks.
    unsafe_files: BTreeSet<String>,
    /// Files outside `sleep_files` that sleep.
    sleep_files: BTreeSet<String>,
    /// Calls of `unwrap_or(0)`, `unwrap_or(MAX)` and `unwrap_or_default()` by file.
    fallbacks: BTreeMap<String, usize>,
    /// Modules of a crate that need each other, one group a line: `crate: a b c`.
    cycles: BTreeSet<String>,
    /// The same of a crate's rooms: modules of its root with all that is below them.
    rooms: BTreeSet<String>,
}

fn rules() -> Rules {
    let path = workspace_root().join("crates/tests/testkit/tests/arch/rules.toml");
    let text = fs::read_to_string(path).expect("rules.toml is readable");
    toml::from_str(&text).expect("rules.toml is as described")
}

/// A crate of the workspace.
struct Crate {
    /// The folder that it is in, and its own.
    floor: String,
    folder: PathBuf,
    /// Which of our crates it uses.
    used: Vec<String>,
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let paths = entries.map(|entry| entry.expect("the folder is readable").path());
    paths.filter(|path| path.is_dir()).collect()
}

fn name_of(folder: &Path) -> String {
    let name = folder.file_name().expect("a folder has a name");
    name.to_string_lossy().into_owned()
}

/// The crates of the workspace, by the names of their folders.
fn crates() -> BTreeMap<String, Crate> {
    let mut all = BTreeMap::new();
    for floor in folders_in(&workspace_root().join("crates")) {
        for folder in folders_in(&floor) {
            let manifest = fs::read_to_string(folder.join("Cargo.toml"));
            let manifest = manifest.expect("a crate has a manifest");
            let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
            let used = manifest.get("dependencies").and_then(toml::Value::as_table);
            let used = used.into_iter().flat_map(toml::Table::keys);
            let used = used.filter_map(|name| name.strip_prefix("strata-").map(str::to_owned));
            let of = Crate {
                floor: name_of(&floor),
                used: used.collect(),
                folder: folder.clone(),
            };
            all.insert(name_of(&folder), of);
        }
    }
    all
}

/// Those that the program is made of, with their names.
fn product_crates() -> impl Iterator<Item = (String, Crate)> {
    crates().into_iter().filter(|(_, of)| of.floor != "tests")
}

/// The files of all product crates, without their tests.
fn sources() -> Vec<SourceFile> {
    let root = workspace_root();
    product_crates()
        .flat_map(|(name, of)| read_crate(&root, &name, &of.folder))
        .collect()
}

/// Fails with violations beyond the debt, and with debts that are already paid.
fn hold(what: &str, found: &BTreeSet<String>, debt: &BTreeSet<String>, advice: &str) {
    let mut text = String::new();
    for new in found.difference(debt) {
        let _ = writeln!(text, "new: {new}");
    }
    for gone in debt.difference(found) {
        let _ = writeln!(text, "no longer there, remove it from rules.toml: {gone}");
    }
    assert!(text.is_empty(), "{what}\n{text}{advice}");
}

#[test]
fn crates_use_what_is_on_their_floor_or_below() {
    let rules = rules();
    let crates = crates();
    let height = |of: &Crate| rules.floors.iter().position(|floor| *floor == of.floor);
    let mut upward = BTreeSet::new();
    for (user, of) in &crates {
        let own = height(of);
        assert!(own.is_some(), "rules.toml: {} is no floor", of.floor);
        for used in &of.used {
            if height(&crates[used]) > own {
                upward.insert(format!("{user} -> {used}"));
            }
        }
    }
    let advice = format!("floors, lowest first: {}", rules.floors.join(", "));
    hold(
        "crates that use a higher floor",
        &upward,
        &rules.debt.upward,
        &advice,
    );
}

/// The system that a crate, or one of its modules, is of.
fn system_of<'a>(rules: &'a Rules, crate_name: &str, module: &[String]) -> Option<&'a str> {
    let is_of = |(_, system): &(&String, &System)| {
        let holds = |of: &String| {
            let of: Vec<&str> = of.split("::").collect();
            let mut path = vec![crate_name];
            path.extend(module.iter().map(String::as_str));
            path.starts_with(&of)
        };
        system.crates.contains(crate_name) || system.modules.iter().any(holds)
    };
    let found = rules.systems.iter().find(is_of);
    found.map(|(name, _)| name.as_str())
}

#[test]
fn systems_do_not_use_each_other() {
    let rules = rules();
    for (name, _) in crates().iter().filter(|(_, of)| of.floor == "systems") {
        let is_known = system_of(&rules, name, &[]).is_some();
        assert!(is_known, "rules.toml: {name} is of no system");
    }
    let files = sources();
    let mut modules = BTreeMap::<&str, BTreeSet<&[String]>>::new();
    for file in &files {
        let known = modules.entry(&file.crate_name).or_default();
        known.insert(&file.module);
    }
    for system in rules.systems.values() {
        for listed in &system.modules {
            let (name, module) = listed.split_once("::").expect("crate::module");
            let module: Vec<String> = module.split("::").map(str::to_owned).collect();
            let is_there = modules.get(name).is_some_and(|all| all.contains(&*module));
            assert!(is_there, "rules.toml: there is no {listed}");
        }
    }
    let mut found = BTreeSet::new();
    for (user, of) in crates() {
        let Some(own) = system_of(&rules, &user, &[]) else {
            continue;
        };
        for used in of.used {
            if system_of(&rules, &used, &[]).is_some_and(|other| other != own) {
                found.insert(format!("{}/{user}/Cargo.toml -> {used}", of.floor));
            }
        }
    }
    for file in &files {
        let Some(own) = system_of(&rules, &file.crate_name, &file.module) else {
            continue;
        };
        for used in &file.crates {
            if system_of(&rules, used, &[]).is_some_and(|other| other != own) {
                found.insert(format!("{} -> {used}", file.path));
            }
        }
        for used in file.uses(&modules[file.crate_name.as_str()]) {
            let other = system_of(&rules, &file.crate_name, used);
            if other.is_some_and(|other| other != own) {
                let used = used.join("::");
                found.insert(format!("{} -> {}::{used}", file.path, file.crate_name));
            }
        }
    }
    let advice = "what systems share belongs below them; what joins two of them is given to them \
                  by a crate above";
    hold(
        "systems that use another system",
        &found,
        &rules.debt.systems,
        advice,
    );
}

/// The files of each product crate.
fn by_crate() -> BTreeMap<String, Vec<SourceFile>> {
    let mut by_crate = BTreeMap::<String, Vec<SourceFile>>::new();
    for file in sources() {
        by_crate
            .entry(file.crate_name.clone())
            .or_default()
            .push(file);
    }
    by_crate
}

/// Groups of modules that need each other, one a line, if the first `depth` names of a module's path tell modules apart.
fn cycles(depth: usize) -> BTreeSet<String> {
    let mut cycles = BTreeSet::new();
    for (name, files) in &by_crate() {
        let modules: BTreeSet<&[String]> =
            files.iter().map(|file| file.module.as_slice()).collect();
        let mut graph = DiGraphMap::<&[String], ()>::new();
        for file in files {
            let user = &file.module[..file.module.len().min(depth)];
            for path in file.uses(&modules) {
                let used = &path[..path.len().min(depth)];
                // A module and its submodules belong together; so does the root, which only
                // re-exports.
                let inside = used.starts_with(user) || user.starts_with(used);
                if !inside && !used.is_empty() && !user.is_empty() {
                    graph.add_edge(user, used, ());
                }
            }
        }
        for group in tarjan_scc(&graph).iter().filter(|group| group.len() > 1) {
            let mut group: Vec<String> = group.iter().map(|module| module.join("::")).collect();
            group.sort_unstable();
            cycles.insert(format!("{name}: {}", group.join(" ")));
        }
    }
    cycles
}

/// What modules, or rooms, that need each other should do.
const APART: &str = "move what both need into a module of its own";

#[test]
fn modules_of_a_crate_do_not_need_each_other() {
    let owed = rules().debt.cycles;
    let found = cycles(usize::MAX);
    hold("modules that need each other", &found, &owed, APART);
}

#[test]
fn rooms_of_a_crate_do_not_need_each_other() {
    let owed = rules().debt.rooms;
    hold("rooms that need each other", &cycles(1), &owed, APART);
}

/// Lines of files, by path.
fn lengths() -> BTreeMap<PathBuf, usize> {
    let root = workspace_root();
    let mut lengths = BTreeMap::new();
    let mut folders: Vec<PathBuf> = product_crates()
        .map(|(_, of)| of.folder.join("src"))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources is readable") {
            let path = entry.expect("a folder of sources is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("schema.d.ts") {
                // Made from the description of the API when the page is built.
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source is readable");
                let path = path.strip_prefix(&root).expect("it is below the root");
                lengths.insert(path.to_owned(), text.lines().count());
            }
        }
    }
    lengths
}

#[test]
fn nothing_is_larger_than_a_reader_can_hold() {
    let sizes = rules().sizes;
    // By path: its size, and the limit.
    let mut all: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut add = |path: &Path, size: usize, limit: usize| {
        let path = path.display().to_string();
        all.entry(path).or_insert((0, limit)).0 += size;
    };
    for (path, lines) in lengths() {
        add(&path, lines, sizes.file);
        add(
            path.parent().expect("a file is in a folder"),
            1,
            sizes.folder,
        );
        let of_crate: PathBuf = path.components().take(3).collect();
        add(&of_crate, lines, sizes.of_crate);
    }
    let mut found = BTreeSet::new();
    for (path, (size, limit)) in &all {
        let most = sizes.larger.get(path);
        if size > most.unwrap_or(limit) {
            found.insert(format!("{path}: {size}"));
        }
        if most.is_some() && size <= limit {
            found.insert(format!("{path}: {size}, so it needs no line any more"));
        }
    }
    let gone = sizes.larger.keys().filter(|path| !all.contains_key(*path));
    found.extend(gone.map(|path| format!("{path}: is not there")));
    let advice = "split it by what it is about, or say in rules.toml why it is one";
    hold(
        "sizes beyond the limits of rules.toml",
        &found,
        &BTreeSet::new(),
        advice,
    );
}

#[test]
fn the_impossible_is_not_turned_into_zero_or_the_maximum() {
    let owed = rules().debt.fallbacks;
    let mut found = BTreeMap::new();
    for file in sources() {
        if file.fallbacks > 0 {
            found.insert(file.path.clone(), file.fallbacks);
        }
    }
    let lines = |counts: &BTreeMap<String, usize>| -> BTreeSet<String> {
        counts
            .iter()
            .map(|(path, count)| format!("{path}: {count}"))
            .collect()
    };
    hold(
        "unwrap_or(0), unwrap_or(MAX), unwrap_or_default(), map_or(0, |x| x), and impossible values that become a number",
        &lines(&found),
        &lines(&owed),
        "convert checked, return an error, or assert with expect(\"why it cannot be\")",
    );
}

/// The files for which `wanted` is true and that are not listed.
fn unlisted(wanted: fn(&SourceFile) -> bool, listed: &BTreeSet<String>) -> BTreeSet<String> {
    let files = sources().into_iter().filter(wanted).map(|file| file.path);
    files.filter(|path| !is_among(path, listed)).collect()
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    let rules = rules();
    let found = unlisted(|file| file.has_unsafe, &rules.unsafe_files);
    let advice = "system calls, rings and mappings belong in one crate";
    hold("unsafe blocks", &found, &rules.debt.unsafe_files, advice);
}

#[test]
fn product_code_does_not_sleep() {
    let rules = rules();
    let found = unlisted(|file| file.sleeps, &rules.sleep_files);
    let advice = "take time as an input, or wait for the state";
    hold("sleeps", &found, &rules.debt.sleep_files, advice);
}

/// Whether the file is listed, or in a folder that is.
fn is_among(path: &str, listed: &BTreeSet<String>) -> bool {
    listed
        .iter()
        .any(|entry| Path::new(path).starts_with(entry))
}

/// Everything of ours that is read and ends so, below the root.
fn read_by_people() -> Vec<PathBuf> {
    const ENDINGS: [&str; 6] = ["rs", "md", "ts", "tsx", "py", "service"];
    const PLACES: [&str; 8] = [
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "crates",
        "deploy",
        "docs",
        "page/src",
        "python/strata",
    ];
    let root = workspace_root();
    let mut found = Vec::new();
    let mut paths: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(path).expect("a folder of ours is readable");
            paths.extend(entries.map(|entry| entry.expect("a folder of ours is readable").path()));
        } else if path
            .extension()
            .is_some_and(|of| ENDINGS.iter().any(|ending| of == *ending))
        {
            found.push(path);
        }
    }
    found
}

/// Whether a text has these words, none of them as a part of a longer one.
fn has_words(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_letter(text[..at].chars().next_back())
            && !is_letter(text[at + words.len()..].chars().next())
    })
}

#[test]
fn words_that_make_a_reader_look_for_the_noun_are_not_used() {
    let phrases = rules().phrases;
    let root = workspace_root();
    let mut found = BTreeSet::new();
    for path in read_by_people() {
        let text = fs::read_to_string(&path).expect("a text of ours is readable");
        let named = path.strip_prefix(&root).expect("it is below the root");
        for (line, text) in text.to_lowercase().lines().enumerate() {
            // Names of tests too.
            let text = text.replace('_', " ");
            for phrase in phrases.iter().filter(|phrase| has_words(&text, phrase)) {
                found.insert(format!("{}:{}: {phrase}", named.display(), line + 1));
            }
        }
    }
    assert!(has_words("in all. ", "in all") && !has_words("within all", "in all"));
    hold(
        "phrases of rules.toml",
        &found,
        &BTreeSet::new(),
        "name who does it, and how much",
    );
}
