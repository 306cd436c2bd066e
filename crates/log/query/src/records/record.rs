//! One row of `flows`, independent of the output format.

use std::net::IpAddr;

use serde_json::Value;
use strata_archive::FlowColumn;

use crate::parts::cells::WrongValue;

/// One row of `flows`, by column.
#[derive(Clone, Debug)]
pub struct FlowRecord {
    /// Ordered as [`FlowColumn::ALL`].
    pub(crate) values: Vec<Value>,
}

impl FlowRecord {
    /// A row of these values, in the order of [`FlowColumn::ALL`].
    #[must_use]
    pub fn of(values: Vec<Value>) -> Self {
        Self { values }
    }

    /// The columns that are exported, in order.
    pub fn columns() -> impl Iterator<Item = FlowColumn> {
        let columns = FlowColumn::ALL.iter().copied();
        columns.filter(|column| column.spec().exported)
    }

    /// A column's value; null if there is none.
    #[must_use]
    pub fn get(&self, column: FlowColumn) -> &Value {
        &self.values[column.index()]
    }

    /// Whether it has packets of this class.
    #[must_use]
    pub fn has_class(&self, class: &str) -> bool {
        let classes = self.get(FlowColumn::Classes).as_str();
        let counts = classes.and_then(|json| serde_json::from_str::<Value>(json).ok());
        counts.is_some_and(|counts| counts.get(class).is_some())
    }

    /// A column's number, if there is one.
    pub(crate) fn int<T: TryFrom<i64>>(&self, column: FlowColumn) -> Result<Option<T>, WrongValue> {
        let value = self.get(column).as_i64().map(T::try_from).transpose();
        value.map_err(|_| self.wrong(column))
    }

    /// The error for an impossible value.
    pub(crate) fn wrong(&self, column: FlowColumn) -> WrongValue {
        let value = self.get(column).as_i64();
        WrongValue {
            column: column.spec().name,
            value: value.expect("only numbers are wrong"),
        }
    }

    /// A column's time, ns.
    pub(crate) fn time(&self, column: FlowColumn) -> u64 {
        let ns = self.get(column).as_i64();
        ns.expect("a flow has its times").cast_unsigned()
    }

    /// When its last packet arrived, ns since 1970.
    ///
    /// # Panics
    ///
    /// If the values were not those of a flow.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.time(FlowColumn::LastTime)
    }

    /// About how many bytes of memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let texts = self.values.iter().filter_map(Value::as_str);
        let texts: usize = texts.map(str::len).sum();
        texts.saturating_add(size_of_val(self.values.as_slice()))
    }

    pub(crate) fn address(&self, column: FlowColumn) -> Option<IpAddr> {
        self.get(column).as_str()?.parse().ok()
    }
}
