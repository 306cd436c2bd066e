//! Man pages, one for each command: what `--help` says, with the examples as they are typed.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use strata_outline::Outline;

use crate::write;

/// Writes the page of a command line and of each command of it into a folder.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn write_all(tree: &Outline, folder: &Path) -> Result<()> {
    let version = tree.version.as_deref().context("strata has no version")?;
    write_below(tree, None, &format!("{} {version}", tree.name), folder)
}

fn write_below(
    outline: &Outline,
    above: Option<&Outline>,
    source: &str,
    folder: &Path,
) -> Result<()> {
    let text = page(outline, above, source).context("a page in memory")?;
    write(&folder.join(format!("{}.1", name(outline))), &text)?;
    for command in &outline.commands {
        write_below(command, Some(outline), source, folder)?;
    }
    Ok(())
}

/// The name of a command's page.
fn name(outline: &Outline) -> String {
    outline.full_name.replace(' ', "-")
}

fn page(outline: &Outline, above: Option<&Outline>, source: &str) -> std::io::Result<Vec<u8>> {
    let man = Man::new(outline.command())
        .title(name(outline))
        .source(source)
        .manual("Strata");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if !outline.arguments.is_empty() {
        man.render_options_section(&mut page)?;
    }
    if !outline.commands.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    let after = outline.long_after.as_ref().or(outline.after.as_ref());
    let mut rest = Roff::default();
    for part in after.iter().flat_map(|text| parts(text)) {
        part.render(&mut rest);
    }
    if let Some(above) = above {
        rest.control("SH", ["SEE ALSO"]);
        rest.text([bold(name(above)), roman("(1)")]);
    }
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// A part of the text below the options.
#[derive(PartialEq, Debug)]
enum Part<'a> {
    /// A heading, as in `Examples:`.
    Heading(&'a str),
    /// Lines as they are.
    Verbatim(Vec<&'a str>),
    /// Lines to fill.
    Paragraph(Vec<&'a str>),
}

/// Splits the text below the options: indented lines are what users type or see.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut is_new = true;
    let mut had_heading = false;
    for line in text.lines() {
        if line.trim().is_empty() {
            is_new = true;
            continue;
        }
        let heading = line.strip_suffix(':');
        let heading = heading.filter(|words| is_new && !words.contains([' ', '.']));
        match (heading, line.strip_prefix("  "), parts.last_mut()) {
            (Some(heading), None, _) => {
                had_heading = true;
                parts.push(Part::Heading(heading));
            }
            (_, Some(line), Some(Part::Verbatim(lines))) if !is_new => lines.push(line),
            (_, Some(line), _) => parts.push(Part::Verbatim(vec![line])),
            (_, None, Some(Part::Paragraph(lines))) if !is_new => lines.push(line),
            (_, None, last) => {
                // Text after the examples, or before all, is not of the section before it.
                let follows = matches!(last, Some(Part::Verbatim(_))) && had_heading;
                if last.is_none() || follows {
                    parts.push(Part::Heading("Notes"));
                    had_heading = false;
                }
                parts.push(Part::Paragraph(vec![line]));
            }
        }
        is_new = false;
    }
    parts
}

impl Part<'_> {
    fn render(&self, page: &mut Roff) {
        match self {
            Self::Heading(words) => {
                page.control("SH", [words.to_uppercase().as_str()]);
            }
            Self::Verbatim(lines) => {
                page.control("PP", []);
                page.control("nf", []);
                for line in lines {
                    page.text([roman(*line)]);
                }
                page.control("fi", []);
            }
            Self::Paragraph(lines) => {
                page.control("PP", []);
                page.text([roman(lines.join("\n"))]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_as_they_are_typed_and_text_is_filled() {
        let text =
            "Examples:\n  strata a\n  strata b\n\nOne line\nand another.\n\nMore:\n\n  code 1\n";
        let expected = [
            Part::Heading("Examples"),
            Part::Verbatim(vec!["strata a", "strata b"]),
            Part::Heading("Notes"),
            Part::Paragraph(vec!["One line", "and another."]),
            Part::Heading("More"),
            Part::Verbatim(vec!["code 1"]),
        ];
        assert_eq!(parts(text), expected);
        assert!(parts("").is_empty());
        assert_eq!(
            parts("Text."),
            [Part::Heading("Notes"), Part::Paragraph(vec!["Text."])]
        );
    }

    #[test]
    fn a_page_has_the_examples_and_names_the_one_above() {
        let all = Outline::of(
            &clap::Command::new("strata").version("1.2.3").subcommand(
                clap::Command::new("top")
                    .about("Counts packets")
                    .after_help("Examples:\n  strata top log/"),
            ),
        );
        let page = page(&all.commands[0], Some(&all), "strata 1.2.3").unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(".nf\nstrata top log/\n.fi"), "{page}");
        assert!(page.contains("strata\\-top \\- Counts packets"), "{page}");
        assert!(page.contains("SEE ALSO"), "{page}");
    }
}
