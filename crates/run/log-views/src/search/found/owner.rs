//! Whose an address is, by the server's files of names and databases.

use std::net::IpAddr;

use serde::Serialize;
use strata_networks::Names;
use strata_wire::{AddressFamily, Printable, ip_addr, start_of};
use utoipa::ToSchema;

/// Bytes of a text that are shown.
const TEXT_BYTES_MAX: usize = 255;

/// Whose an address is, by the files of names (--names) and the databases (--mmdb) of the server. Control characters in
/// texts are escaped.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"name": "web", "country": "DE", "as": "AS64500 Example", "problem": null}))]
pub(crate) struct Owner {
    /// Of the host, or of the smallest network that has the address, as in `office (10.1.0.0/16)`.
    #[schema(required)]
    name: Option<String>,
    /// A code of two letters (ISO 3166-1).
    #[schema(required)]
    country: Option<String>,
    /// As in `AS64500 Example`.
    #[schema(required)]
    #[serde(rename = "as")]
    system: Option<String>,
    /// Why a database could not tell.
    #[schema(required)]
    problem: Option<String>,
}

/// The owner of an address of a flow; `None` if nothing is known about it.
pub(super) fn owner(names: &Names, family: AddressFamily, address: u128) -> Option<Owner> {
    let address: IpAddr = ip_addr(family, address).filter(|_| !names.is_empty())?;
    let text = |text: String| {
        let printable = Printable(&text).to_string();
        start_of(&printable, TEXT_BYTES_MAX).to_owned()
    };
    let mut problem = None;
    let mut looked_up = |found: Result<Option<String>, _>| match found {
        Ok(found) => found.map(text),
        Err(error) => {
            problem = Some(text(format!("{error}")));
            None
        }
    };
    let owner = Owner {
        name: names.name(address).map(text),
        country: looked_up(names.country(address)),
        system: looked_up(names.system(address)),
        problem,
    };
    let is_any = [&owner.name, &owner.country, &owner.system, &owner.problem];
    is_any.iter().any(|text| text.is_some()).then_some(owner)
}
