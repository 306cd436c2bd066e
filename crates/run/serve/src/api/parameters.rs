//! The parameters of requests: one that a path does not take is a mistake, which would otherwise be answered as if it
//! were not there.

use axum::extract::{Query, Request};
use axum::http::Uri;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use strata_log_views::answers::refused::Refused;

/// The paths that take parameters, below `/api/v1`; `*` is any segment. The names are those of `openapi.yaml`.
const PARAMETERS: [(&str, &[&str]); 11] = [
    ("/recorders/*/policies/*", &["why"]),
    ("/filter/check", &["filter"]),
    ("/filter/complete", &["filter", "at"]),
    (
        "/logs/*/series",
        &[
            "from",
            "to",
            "filter",
            "class",
            "reason",
            "granularity",
            "flow",
            "points",
        ],
    ),
    (
        "/logs/*/search",
        &[
            "filter",
            "from",
            "to",
            "class",
            "reason",
            "granularity",
            "flow",
            "points",
        ],
    ),
    ("/searches/*/flows", &["sort", "order", "offset", "limit"]),
    (
        "/logs/*/flows/*/packets",
        &["from", "to", "cursor", "limit"],
    ),
    ("/logs/*/packets/*", &["payload"]),
    (
        "/logs/*/export",
        &[
            "format",
            "filter",
            "from",
            "to",
            "class",
            "reason",
            "granularity",
            "flow",
        ],
    ),
    (
        "/logs/*/reasons",
        &[
            "from",
            "to",
            "filter",
            "class",
            "reason",
            "granularity",
            "flow",
            "limit",
        ],
    ),
    ("/logs/*/storage", &["max_age_days", "max_bytes"]),
];

/// The names that a path of the API takes.
fn names(path: &str) -> &'static [&'static str] {
    let is = |pattern: &str| {
        let mut pairs = path.split('/').zip(pattern.split('/'));
        path.split('/').count() == pattern.split('/').count()
            && pairs.all(|(segment, wanted)| wanted == "*" || segment == wanted)
    };
    match PARAMETERS.iter().find(|(pattern, _)| is(pattern)) {
        Some(&(_, names)) => names,
        None => &[],
    }
}

fn check(uri: &Uri) -> Result<(), Refused> {
    let query: Result<Query<Vec<(String, String)>>, _> = Query::try_from_uri(uri);
    let Query(given) = query.map_err(|error| Refused::invalid("query", error.to_string()))?;
    let path = uri.path();
    let names = names(path.strip_prefix("/api/v1").unwrap_or(path));
    let mut given = given.iter();
    let Some((unknown, _)) = given.find(|(name, _)| !names.contains(&name.as_str())) else {
        return Ok(());
    };
    let takes = match names {
        [] => String::from("takes no parameters"),
        names => format!("takes {}", names.join(", ")),
    };
    let error = format!("unknown parameter '{unknown}': this path {takes}");
    Err(Refused::invalid("query", error))
}

/// Refuses a request with a parameter that its path does not take.
pub(super) async fn known(request: Request, next: Next) -> Response {
    match check(request.uri()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use strata_testkit::workspace_root;

    use super::*;

    /// The names of parameters by path, as `openapi.yaml` has them, which is written by hand there: a parameter a line,
    /// or all of them in brackets.
    fn described() -> BTreeMap<String, Vec<String>> {
        let path = workspace_root().join("crates/run/serve/openapi.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let (paths, components) = text.split_once("\ncomponents:\n").unwrap();
        let word = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            text[..end.unwrap_or(text.len())].to_owned()
        };
        // Those that several paths share, by their keys.
        let (_, shared) = components.split_once("  parameters:\n").unwrap();
        let (shared, _) = shared.split_once("\n  responses:\n").unwrap();
        let mut of_query = BTreeMap::new();
        for one in format!("\n{shared}").split("\n    ").skip(1) {
            if one.starts_with(' ') {
                // A line of the one before.
                continue;
            }
            let key = word(one);
            let (_, rest) = shared.split_once(&format!("    {key}:")).unwrap();
            let name = word(rest.split_once("name: ").unwrap().1);
            let place = word(rest.split_once("in: ").unwrap().1);
            of_query.insert(key, (place == "query").then_some(name));
        }
        let mut all = BTreeMap::new();
        for of_path in paths.split("\n  /api/v1").skip(1) {
            let (path, rest) = of_path.split_once(":\n").unwrap();
            let segments = path.split('/');
            let segments = segments.map(|segment| {
                if segment.starts_with('{') {
                    "*"
                } else {
                    segment
                }
            });
            let path = segments.collect::<Vec<_>>().join("/");
            let mut names: Vec<String> = Vec::new();
            for one in rest.split("name: ").skip(1) {
                if one.split_once("in: ").unwrap().1.starts_with("query") {
                    names.push(word(one));
                }
            }
            for one in rest.split("#/components/parameters/").skip(1) {
                names.extend(of_query[&word(one)].clone());
            }
            names.sort();
            names.dedup();
            if !names.is_empty() {
                all.insert(path, names);
            }
        }
        all
    }

    #[test]
    fn paths_take_the_parameters_that_are_described() {
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            names
        };
        let here: BTreeMap<String, Vec<String>> = PARAMETERS
            .iter()
            .map(|(path, names)| ((*path).to_owned(), sorted(names)))
            .collect();
        assert_eq!(here, described());
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_known_names() {
        let refused = |target: &str| check(&target.parse().unwrap()).unwrap_err().error;
        let said = refused("/logs/0/flows/x/packets?limit=1&limt=2");
        assert_eq!(
            said,
            "unknown parameter 'limt': this path takes from, to, cursor, limit"
        );
        assert!(refused("/logs/0/search?fitler=tcp").contains("filter, from"));
        assert!(refused("/logs?x").ends_with("takes no parameters"));
        for known in [
            "/logs",
            "/logs/0/search?filter=&points=7",
            "/logs/0/packets/7?payload=false",
            "/recorders/0/policies/1?why=%20a%26b",
        ] {
            check(&known.parse().unwrap()).unwrap();
        }
    }
}
