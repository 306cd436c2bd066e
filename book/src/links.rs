//! Links of the site: each leads to a page, a heading or a file of the repository. Links to other sites are not
//! followed, and no page may load anything from one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{files, plain};

/// A page as far as links are concerned.
struct Page {
    /// Where links may lead within it.
    ids: BTreeSet<String>,
    /// Links, and whether the page loads them.
    links: Vec<(String, bool)>,
}

/// Checks the links of every page, and copies the files of the repository that they lead to. Returns what is wrong.
pub(crate) fn check(root: &Path, html: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for path in files(html)? {
        if path.extension().is_some_and(|kind| kind == "html") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            pages.insert(path.strip_prefix(html)?.to_path_buf(), parse(&text));
        }
    }
    let mut problems = BTreeSet::new();
    for (path, page) in &pages {
        for (link, is_loaded) in &page.links {
            let problem = match link.split_once(':') {
                Some((scheme, _)) if !scheme.contains(['/', '#', '.']) => {
                    let foreign = *is_loaded && scheme != "data";
                    foreign.then(|| "is loaded from elsewhere".to_owned())
                }
                _ => follow(link, path, &pages, root, html)?,
            };
            problems.extend(
                problem.map(|what| format!("{}: the link {link} {what}", source(path).display())),
            );
        }
    }
    Ok(problems.into_iter().collect())
}

/// What is wrong with a link within the site.
fn follow(
    link: &str,
    from: &Path,
    pages: &BTreeMap<PathBuf, Page>,
    root: &Path,
    html: &Path,
) -> Result<Option<String>> {
    let (file, id) = link
        .split_once('#')
        .map_or((link, None), |(file, id)| (file, Some(id)));
    let to = match file {
        "" => from.to_path_buf(),
        file => plain(&from.parent().context("a page is in a folder")?.join(file)),
    };
    if let Some(page) = pages.get(&to) {
        let missing = id.filter(|id| !id.is_empty() && !page.ids.contains(*id));
        return Ok(missing.map(|_| format!("leads to no heading of {}", source(&to).display())));
    }
    let (there, copy) = (root.join(&to), html.join(&to));
    if copy.is_file() {
        return Ok(None);
    }
    if root.join(source(&to)).is_file() && to != source(&to) {
        return Ok(Some(
            "leads to a page that is not in docs/SUMMARY.md".to_owned(),
        ));
    }
    if there.is_dir() {
        return Ok(Some(
            "leads to a folder, which a site does not show".to_owned(),
        ));
    }
    if !there.is_file() {
        return Ok(Some("leads nowhere".to_owned()));
    }
    fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
    fs::copy(&there, &copy).with_context(|| format!("copying {}", there.display()))?;
    Ok(None)
}

/// The page in the repository of which a page of the site was made.
fn source(page: &Path) -> PathBuf {
    if page.extension().is_some_and(|kind| kind == "html") {
        page.with_extension("md")
    } else {
        page.to_path_buf()
    }
}

/// Ids and links of a page that mdBook has made: its tags are well-formed, with attributes in double quotes.
fn parse(html: &str) -> Page {
    let mut page = Page {
        ids: BTreeSet::new(),
        links: Vec::new(),
    };
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix("!--") {
            rest = after.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        if rest.starts_with("script") && !rest.starts_with("script src") {
            rest = rest.split_once("</script>").map_or("", |(_, after)| after);
            continue;
        }
        rest = tag(rest, &mut page);
    }
    page
}

/// Takes ids and links from a tag, and returns what follows it.
fn tag<'a>(mut rest: &'a str, page: &mut Page) -> &'a str {
    let is_anchor = rest.starts_with("a ");
    while let Some(next) = rest.find(['"', '>']) {
        let (before, after) = (&rest[..next], &rest[next + 1..]);
        if rest.as_bytes()[next] == b'>' {
            return after;
        }
        let Some((value, after)) = after.split_once('"') else {
            return "";
        };
        let value = value.replace("&amp;", "&");
        match before.rsplit(' ').next() {
            Some("id=") => {
                page.ids.insert(value);
            }
            Some("href=" | "src=") => page.links.push((value, !is_anchor)),
            _ => {}
        }
        rest = after;
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_attributes_of_tags_are_links() {
        let page = parse(
            r##"<!-- href="no" --><h2 class="x" id="one">a "quoted" href="no"</h2><script>x = ' href="no"';</script>
               <a title="x > y" href="two.html#a&amp;b">b</a><img src="c.png" alt="">"##,
        );
        assert_eq!(page.ids.into_iter().collect::<Vec<_>>(), ["one"]);
        let links = page
            .links
            .iter()
            .map(|(link, is_loaded)| (link.as_str(), *is_loaded));
        assert_eq!(
            links.collect::<Vec<_>>(),
            [("two.html#a&b", false), ("c.png", true)]
        );
    }
}
