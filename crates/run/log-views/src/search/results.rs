//! Results of searches, which wait to be paged through.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use strata_networks::Names;
use utoipa::ToSchema;

use crate::answers::refused::Refused;
use crate::search::found::{FLOWS_MAX, FlowRow, Found, Row};

/// Maximum number of rows of a page.
const PAGE_MAX: usize = 1000;
/// Results that wait at most, and for how long.
const RESULTS_MAX: usize = 8;
/// Flows of all of them.
const HELD_MAX: usize = 2 * FLOWS_MAX;
const RESULT_AGE_MAX: Duration = Duration::from_secs(3600);

/// A result, and the order in which it was requested last.
struct Waits {
    id: String,
    /// The user who searched: the only one who may page through it.
    user: String,
    at: Instant,
    found: Arc<Found>,
    order: Arc<Mutex<Option<Ordered>>>,
}

/// An order of a result's flows.
#[derive(Clone)]
struct Ordered {
    sort: Sort,
    is_reversed: bool,
    places: Arc<Vec<u32>>,
}

/// Results that wait to be paged through: a bounded number of flows in all.
#[derive(Default)]
pub struct Searches {
    next: Mutex<u64>,
    results: Mutex<VecDeque<Waits>>,
}

/// How flows are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sort {
    #[default]
    First,
    Last,
    Duration,
    Packets,
    WireBytes,
    KeptBytes,
    Score,
    Src,
    Dst,
    SrcPort,
    DstPort,
    Protocol,
    Class,
    Name,
}

/// The page of the request.
#[derive(Debug, Deserialize)]
pub struct Page {
    #[serde(default)]
    sort: Sort,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    #[default]
    Asc,
    Desc,
}

/// A page of a result.
#[derive(Debug, Serialize, ToSchema)]
pub struct FlowPage {
    /// Rows that can be listed.
    total: usize,
    offset: usize,
    rows: Vec<FlowRow>,
}

impl Searches {
    /// The number of another search.
    pub fn number(&self) -> String {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = next.saturating_add(1);
        next.to_string()
    }

    /// Keeps a result; the oldest ones go.
    pub fn keep(&self, (id, user): (String, &str), found: Found) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.retain(|result| result.at.elapsed() < RESULT_AGE_MAX);
        let held = |results: &VecDeque<Waits>| {
            results
                .iter()
                .map(|result| result.found.rows.len())
                .sum::<usize>()
        };
        let fits = |held: usize| held.saturating_add(found.rows.len()) <= HELD_MAX;
        while results.len() >= RESULTS_MAX || !fits(held(&results)) {
            if results.pop_front().is_none() {
                break;
            }
        }
        results.push_back(Waits {
            id,
            user: user.to_owned(),
            at: Instant::now(),
            found: Arc::new(found),
            order: Arc::default(),
        });
    }

    /// A page of a result, for the user who searched. A result of another user is refused like one that is no longer
    /// kept: its filter may have tested payload.
    ///
    /// # Errors
    ///
    /// If it is not kept any more, or a parameter is invalid.
    pub fn page(
        &self,
        (id, user): (&str, &str),
        page: &Page,
        names: &Names,
    ) -> Result<FlowPage, Refused> {
        let (found, known) = {
            let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            let mut own = results.iter().filter(|result| result.user == user);
            let result = own.find(|result| result.id == id);
            let result = result.ok_or_else(|| {
                let error = "this result is no longer kept: search again";
                Refused::new(StatusCode::NOT_FOUND, "expired", error)
            })?;
            (Arc::clone(&result.found), Arc::clone(&result.order))
        };
        let is_reversed = page.order == Order::Desc;
        let order = {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            let same = known
                .clone()
                .filter(|order| (order.sort, order.is_reversed) == (page.sort, is_reversed));
            let order = same.unwrap_or_else(|| Ordered {
                sort: page.sort,
                is_reversed,
                places: Arc::new(ordered(&found, page.sort, is_reversed)),
            });
            *known = Some(order.clone());
            order.places
        };
        let limit = page.limit.unwrap_or(100).min(PAGE_MAX);
        let rows = order.iter().skip(page.offset).take(limit);
        let rows = rows.map(|&place| found.flow(&found.rows[place as usize], names));
        Ok(FlowPage {
            total: found.rows.len(),
            offset: page.offset,
            rows: rows.collect(),
        })
    }
}

/// The places of flows in an order; equal ones as they were found.
fn ordered(found: &Found, sort: Sort, is_reversed: bool) -> Vec<u32> {
    let count = u32::try_from(found.rows.len()).expect("rows are bounded");
    let mut order: Vec<u32> = (0..count).collect();
    let row = |place: &u32| &found.rows[*place as usize];
    let mut by = |compare: &dyn Fn(&Row, &Row) -> std::cmp::Ordering| {
        order.sort_by(|a, b| {
            let ordering = compare(row(a), row(b));
            if is_reversed {
                ordering.reverse()
            } else {
                ordering
            }
        });
    };
    match sort {
        Sort::First => by(&|a, b| a.first_ns.cmp(&b.first_ns)),
        Sort::Last => by(&|a, b| a.last_ns.cmp(&b.last_ns)),
        Sort::Duration => {
            // A damaged table may have them the other way round.
            let duration = |row: &Row| row.last_ns.saturating_sub(row.first_ns);
            by(&|a, b| duration(a).cmp(&duration(b)));
        }
        Sort::Packets => by(&|a, b| a.all_packets().cmp(&b.all_packets())),
        Sort::WireBytes => by(&|a, b| a.wire_bytes.cmp(&b.wire_bytes)),
        Sort::KeptBytes => by(&|a, b| a.kept_bytes.cmp(&b.kept_bytes)),
        Sort::Score => by(&|a, b| {
            let score = |row: &Row| row.score.unwrap_or(-1.0);
            score(a).total_cmp(&score(b))
        }),
        Sort::Src | Sort::Dst => {
            let at = usize::from(sort == Sort::Dst);
            by(&|a, b| {
                let end = |row: &Row| (row.key.family, row.ends()[at].address);
                end(a).cmp(&end(b))
            });
        }
        Sort::SrcPort | Sort::DstPort => {
            let at = usize::from(sort == Sort::DstPort);
            by(&|a, b| a.ends()[at].port.cmp(&b.ends()[at].port));
        }
        Sort::Protocol => {
            by(&|a, b| (a.key.family, a.key.protocol).cmp(&(b.key.family, b.key.protocol)));
        }
        Sort::Class => by(&|a, b| found.class(a).cmp(found.class(b))),
        Sort::Name => by(&|a, b| found.name(a).cmp(&found.name(b))),
    }
    order
}
