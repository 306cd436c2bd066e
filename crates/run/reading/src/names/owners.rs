//! Whose the two ends of a packet are, as the lines and objects of `read` and `grep` say it.

use anyhow::Result;
use strata_networks::{ByAddress, Known, Names, NamesError};
use strata_query::Find;
use strata_terminal::selection::Logs;
use strata_wire::{Headers, ip_addr};

use super::NamesArgs;
use crate::line::Ends;

/// Finds out whose the ends of packets are.
#[derive(Default)]
pub(crate) struct Owners {
    /// `None` if nothing is to be known.
    names: Option<Names>,
    known: ByAddress<Known>,
}

impl Owners {
    /// With these names and, if wanted, those in the DNS answers of the logs.
    ///
    /// # Errors
    ///
    /// If a log cannot be read or understood.
    pub(crate) fn of(
        args: &NamesArgs,
        mut names: Names,
        logs: &Logs,
        find: &Find<'_>,
    ) -> Result<Self> {
        if !args.is_any(&names) {
            return Ok(Self::default());
        }
        args.read_answers(&mut names, logs, find)?;
        Ok(Self {
            names: Some(names),
            known: ByAddress::default(),
        })
    }

    /// Of a packet with these headers: nothing of ends that are not IP.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub(crate) fn ends(&mut self, headers: &Headers) -> Result<Ends, NamesError> {
        let (Some(names), Some(key)) = (&self.names, headers.key) else {
            return Ok(Ends::default());
        };
        let (source, destination) = headers.endpoints();
        let mut ends = Ends::default();
        for (known, end) in ends.iter_mut().zip([source, destination]) {
            if let Some(address) = ip_addr(key.family, end.address) {
                *known = self.known.of(address, || names.known(address))?;
            }
        }
        Ok(ends)
    }
}
