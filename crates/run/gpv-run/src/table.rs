//! Packets into vectors, and vectors into rows of a Parquet file.

use std::io::Write;

use strata_capture::PacketRef;
use strata_gpv::{Cache, Columns, Full, Packet, Parameters, Vector};
use strata_wire::LinkType;

use crate::columns::{CAPTURED_COLUMNS, with_time};
use crate::error::{Result, VectorError};
use crate::features::{Counted, Features, Matches};
use crate::rows::{About, Rows};
use crate::seed::seed;

/// Packets that go through the cache together.
const BATCH: usize = 256;

/// A file with a row for each vector.
pub struct VectorTable<W: Write + Send> {
    features: Features,
    cache: Cache<Full>,
    batch: Vec<Packet>,
    /// `None` until it begins.
    rows: Option<Rows<W>>,
}

/// The contents of a file of vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tabled {
    /// Vectors.
    pub vectors: u64,
    /// Packets in them.
    pub packets: u64,
    /// Packets that are in no vector, or incomplete in one.
    pub counted: Counted,
}

impl<W: Write + Send> VectorTable<W> {
    /// A table whose cache has these parameters.
    ///
    /// # Errors
    ///
    /// If the parameters are refused, or the system gives no random numbers.
    pub fn new(parameters: Parameters) -> Result<Self> {
        let cache = Cache::new(parameters, seed()?);
        Ok(Self {
            features: Features::new()?,
            cache: cache.map_err(|error| VectorError::Refused(error.to_string()))?,
            batch: Vec::with_capacity(BATCH),
            rows: None,
        })
    }

    /// Prepares for packets, which must match if a filter is given. Rows have these columns, and times.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn begin(&mut self, filter: Option<Matches>, output: W, columns: Columns) -> Result<()> {
        self.features.filter(filter);
        self.rows = Some(Rows::new(output, with_time(columns))?);
        Ok(())
    }

    /// Takes a packet.
    ///
    /// # Errors
    ///
    /// If its rows cannot be written.
    pub fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        if let Some(features) = self.features.of(link, packet) {
            self.batch.push(features);
            if self.batch.len() >= BATCH {
                self.push()?;
            }
        }
        Ok(())
    }

    /// Writes the remaining vectors and the end of the file; `None` if the file has not begun.
    ///
    /// # Errors
    ///
    /// As [`VectorTable::packet`].
    pub fn finish(mut self) -> Result<Option<(W, Tabled)>> {
        self.push()?;
        let Some(mut rows) = self.rows else {
            return Ok(None);
        };
        let mut out = |vector: &Vector<'_, Full>| push(&mut rows, vector);
        self.cache.flush(&mut out);
        let tabled = Tabled {
            vectors: rows.written,
            packets: self.cache.counters().packets,
            counted: self.features.counted,
        };
        Ok(Some((rows.finish()?, tabled)))
    }

    fn push(&mut self) -> Result<()> {
        let Some(rows) = &mut self.rows else {
            return Ok(());
        };
        let mut out = |vector: &Vector<'_, Full>| push(rows, vector);
        self.cache.push(&self.batch, &mut out);
        self.batch.clear();
        rows.write()
    }
}

fn push<W: Write + Send>(rows: &mut Rows<W>, vector: &Vector<'_, Full>) {
    let about = About {
        exporter: None,
        reason: Some(vector.reason),
        saturated: Some(vector.saturated),
        known: CAPTURED_COLUMNS,
    };
    rows.push(vector, about);
}
