//! Makes the site of `docs/` with mdBook, and checks its links: `make check-docs`.
//!
//! mdBook copies everything beside its pages, so it gets a folder with the pages of `docs/SUMMARY.md` and nothing
//! else. They lie there as in the repository, so that a link between two of them is the same in both. What pages link
//! to that is not a page (a picture, a unit of systemd) is copied when the links are checked.

mod links;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use mdbook_driver::MDBook;
use mdbook_driver::config::Config;
use mdbook_summary::{Link, Summary, SummaryItem, parse_summary};

fn main() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("book/ is in the repository")?;
    let site = root.join("target/site");
    let mut summary = read_summary(root)?;
    let pages = places(&mut summary);

    if site.exists() {
        fs::remove_dir_all(&site).with_context(|| format!("removing {}", site.display()))?;
    }
    for page in &pages {
        let copy = site.join("pages").join(page);
        fs::create_dir_all(copy.parent().context("a page is in a folder")?)?;
        fs::copy(root.join(page), copy)
            .with_context(|| format!("docs/SUMMARY.md lists {}", page.display()))?;
    }
    let mut config = Config::from_disk(root.join("docs/book.toml"))?;
    config.book.src = "pages".into();
    config.build.build_dir = "html".into();
    MDBook::load_with_config_and_summary(&site, config, summary)?.build()?;

    let mut problems = unlisted(root, &pages)?;
    problems.extend(links::check(root, &site.join("html"))?);
    for problem in &problems {
        eprintln!("{problem}");
    }
    if !problems.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!("{} pages: target/site/html/index.html", pages.len());
    Ok(ExitCode::SUCCESS)
}

fn read_summary(root: &Path) -> Result<Summary> {
    let path = root.join("docs/SUMMARY.md");
    parse_summary(
        &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?,
    )
}

/// Makes the places of pages, which are relative to `docs/`, relative to the repository. Returns them.
fn places(summary: &mut Summary) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let parts = [
        &mut summary.prefix_chapters,
        &mut summary.numbered_chapters,
        &mut summary.suffix_chapters,
    ];
    for part in parts {
        place(part, &mut pages);
    }
    pages
}

fn place(items: &mut [SummaryItem], pages: &mut Vec<PathBuf>) {
    for item in items {
        let SummaryItem::Link(Link {
            location,
            nested_items,
            ..
        }) = item
        else {
            continue;
        };
        if let Some(location) = location {
            *location = plain(&Path::new("docs").join(&*location));
            pages.push(location.clone());
        }
        place(nested_items, pages);
    }
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Pages of `docs/` that readers of the site would not find.
fn unlisted(root: &Path, pages: &[PathBuf]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in files(&root.join("docs"))? {
        let path = path.strip_prefix(root)?;
        let is_page = path.extension().is_some_and(|kind| kind == "md")
            && path != Path::new("docs/SUMMARY.md");
        if is_page && !pages.iter().any(|page| page == path) {
            problems.push(format!("{}: is not in docs/SUMMARY.md", path.display()));
        }
    }
    Ok(problems)
}

/// All files in a folder and the folders in it, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
