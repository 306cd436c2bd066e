//! Declares each column of a table once: the Parquet file, the table in SQL, exports and
//! `docs/formats/archive.md` follow from it.

use std::fmt;

/// Nanoseconds of a microsecond.
pub const NS_PER_MICRO: u64 = 1_000;

/// The column of a file with what a time column has below a microsecond.
#[must_use]
pub fn below_micros(time: &str) -> String {
    format!("{time}_ns")
}

/// The type of a column's values. All are signed, and written in encodings that every reader we
/// tried supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ns since 1970, UTC. A file has two columns: microseconds, since Spark takes nanoseconds for microseconds or
    /// refuses them, and [the nanoseconds below](below_micros), 0 to 999.
    Time,
    /// 32 bits, signed.
    Int32,
    /// 64 bits, signed.
    Int64,
    /// 32 bits.
    Float,
    /// True or false.
    Bool,
    /// UTF-8.
    Text,
    /// Bytes.
    Bytes,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Time => "timestamp",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float => "float",
            Self::Bool => "boolean",
            Self::Text => "text",
            Self::Bytes => "bytes",
        })
    }
}

/// How a column is encoded, before zstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// A dictionary, built while the column is written.
    Dictionary,
    /// A dictionary of values that are already numbered.
    Codes,
    /// Differences between consecutive values.
    Delta,
    /// The values themselves.
    Plain,
}

/// The unit of a column's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Bytes, squared.
    BytesSquared,
    /// Packets.
    Packets,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nanoseconds => "ns",
            Self::Bytes => "bytes",
            Self::BytesSquared => "bytes²",
            Self::Packets => "packets",
        })
    }
}

/// An information element of IPFIX, from IANA's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its number in records of IPv4, and of IPv6.
    pub ids: [u16; 2],
    /// Its name in each.
    pub names: [&'static str; 2],
    /// Its number and name in records of what is not IP, if these are others.
    pub mac: Option<(u16, &'static str)>,
    /// Its number and its length in bytes in NetFlow 9 (RFC 3954 §8), if these are others (ICMP has one element for both
    /// versions of IP there); a shorter number has the low bytes. The other elements are the same there: up to 127 as
    /// RFC 3954 has them, above as routers send them.
    pub netflow9: Option<(u16, u16)>,
    /// How the column's values are converted to it.
    pub form: ElementForm,
}

/// How values are converted to an information element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementForm {
    /// An integer of this many bytes, 0 if there is no value.
    Unsigned(u16),
    /// A time in ms since 1970.
    Milliseconds,
    /// An address.
    Address,
    /// The first byte of a two-byte element, whose second is the next column.
    FirstByte,
    /// The second byte of the previous column's element.
    SecondByte,
}

impl Element {
    const fn new(id: u16, name: &'static str, form: ElementForm) -> Self {
        Self {
            ids: [id; 2],
            names: [name; 2],
            mac: None,
            netflow9: None,
            form,
        }
    }

    /// An unsigned number of this many bytes.
    #[must_use]
    pub const fn unsigned(id: u16, name: &'static str, bytes: u16) -> Self {
        Self::new(id, name, ElementForm::Unsigned(bytes))
    }

    /// A time; `netflow9` is the number of the same time in NetFlow 9, which counts it by the exporter's uptime.
    #[must_use]
    pub const fn milliseconds(id: u16, name: &'static str, netflow9: u16) -> Self {
        Self::new(id, name, ElementForm::Milliseconds).in_netflow9(netflow9, 4)
    }

    /// One whose number and name depend on the version of IP: of 4, and of 6.
    #[must_use]
    pub const fn by_version(ids: [u16; 2], names: [&'static str; 2], form: ElementForm) -> Self {
        Self {
            ids,
            names,
            mac: None,
            netflow9: None,
            form,
        }
    }

    /// With this number and name in records of what is not IP.
    pub const fn of_mac(mut self, id: u16, name: &'static str) -> Self {
        self.mac = Some((id, name));
        self
    }

    /// With this number and this length in bytes in NetFlow 9.
    #[must_use]
    pub const fn in_netflow9(mut self, id: u16, bytes: u16) -> Self {
        self.netflow9 = Some((id, bytes));
        self
    }
}

/// How a comparison of a column with a value narrows down the blocks to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrows {
    /// Blocks of a time.
    Time,
    /// Blocks in which an address occurs.
    Address,
}

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, in files, in SQL, and in the CSV header.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// Whether values may be missing.
    pub optional: bool,
    /// The unit of its numbers, if any.
    pub unit: Option<Unit>,
    /// What its values mean, for `docs/formats/archive.md`.
    pub what: &'static str,
    /// How it is encoded.
    pub coding: Coding,
    /// Whether row groups have a Bloom filter of its values.
    pub filtered: bool,
    /// Whether it is exported; other columns mean nothing outside the log.
    pub exported: bool,
    /// Whether its texts are JSON.
    pub is_json: bool,
    /// Its information element in IPFIX.
    pub element: Option<Element>,
    /// Which blocks a comparison with it selects.
    pub narrows: Option<Narrows>,
    /// Whether it depends on earlier packets, or on all of a flow's: its rows cannot be made from
    /// some blocks alone.
    pub of_run: bool,
    /// Whether it is made from header contents, which takes half of the time: tables of block files
    /// parse headers only for such columns.
    pub of_headers: bool,
    /// Its field id in files, if [its place](field_ids) does not decide.
    pub field_id: Option<i32>,
}

impl Spec {
    /// A column without special properties.
    pub const fn new(name: &'static str, kind: Kind, coding: Coding, what: &'static str) -> Self {
        let unit = match kind {
            Kind::Time => Some(Unit::Nanoseconds),
            _ => None,
        };
        Self {
            name,
            kind,
            optional: false,
            unit,
            what,
            coding,
            filtered: false,
            exported: true,
            is_json: false,
            element: None,
            narrows: None,
            of_run: false,
            of_headers: false,
            field_id: None,
        }
    }

    /// How many columns of a file it is.
    #[must_use]
    pub const fn file_columns(&self) -> usize {
        match self.kind {
            Kind::Time => 2,
            _ => 1,
        }
    }

    /// The same column, with values that may be missing.
    #[must_use]
    pub const fn or_null(mut self) -> Self {
        self.optional = true;
        self
    }

    /// The same column, with this unit.
    #[must_use]
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// The same column, with a Bloom filter in each row group.
    #[must_use]
    pub const fn filtered(mut self) -> Self {
        self.filtered = true;
        self
    }

    /// The same column, left out of exports.
    #[must_use]
    pub const fn internal(mut self) -> Self {
        self.exported = false;
        self
    }

    /// The same column, whose text is JSON.
    #[must_use]
    pub const fn json(mut self) -> Self {
        self.is_json = true;
        self
    }

    /// The same column, which is this element of IPFIX.
    #[must_use]
    pub const fn element(mut self, element: Element) -> Self {
        self.element = Some(element);
        self
    }

    /// The same column, by which a search leaves out what it does not want.
    #[must_use]
    pub const fn narrows(mut self, narrows: Narrows) -> Self {
        self.narrows = Some(narrows);
        self
    }

    /// The same column, whose values depend on all packets of a run.
    #[must_use]
    pub const fn of_run(mut self) -> Self {
        self.of_run = true;
        self
    }

    /// The same column, with this field id in files; of a time, its nanoseconds have the next one. A column that is
    /// added to a table needs it, since its place is not that of the others' ids.
    #[must_use]
    pub const fn field_id(mut self, id: i32) -> Self {
        self.field_id = Some(id);
        self
    }

    /// The same column, made from headers.
    #[must_use]
    pub const fn of_headers(mut self) -> Self {
        self.of_headers = true;
        self
    }
}

/// The field ids of a file's columns (two for a time). Tables of many files (Iceberg) know a column by its id, not by
/// its name. Columns without an id of their own are numbered from 1 in the order of the table.
#[must_use]
pub fn field_ids(specs: &[Spec]) -> Vec<i32> {
    let mut next = 1;
    let ids = specs.iter().flat_map(|spec| {
        let first = spec.field_id.unwrap_or(next);
        let columns = if spec.kind == Kind::Time { 2 } else { 1 };
        if spec.field_id.is_none() {
            next += columns;
        }
        first..first + columns
    });
    ids.collect()
}

/// The number of [field ids](field_ids) that the order of the table decides, so that a table can assert at compile time
/// that a column was added with an id of its own.
#[must_use]
pub const fn field_ids_by_place(specs: &[Spec]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < specs.len() {
        if specs[at].field_id.is_none() {
            count += specs[at].file_columns();
        }
        at += 1;
    }
    count
}

/// Declares the columns of a table: an enum of their names in the program, in the order of the
/// table, and their specs. `$declared` has a [`Spec`](crate::Spec) in `spec`.
///
/// A column added later must be [`Spec::or_null`]: the files of older logs do not have it; and it has a
/// [`Spec::field_id`].
#[macro_export]
macro_rules! columns {
    (
        $(#[$doc:meta])*
        enum $name:ident of $declared:ty {
            $($variant:ident: $column:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "`Spec::what` says what they mean")]
        pub enum $name {
            $($variant,)*
        }

        const DECLARED: &[$declared] = &[$($column,)*];

        impl $name {
            /// All columns, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Their specs.
            pub const SPECS: &'static [$crate::Spec] = &{
                let mut specs = [DECLARED[0].spec; DECLARED.len()];
                let mut at = 0;
                while at < specs.len() {
                    specs[at] = DECLARED[at].spec;
                    at += 1;
                }
                specs
            };

            /// Its number in the table.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Its spec.
            #[must_use]
            pub const fn spec(self) -> &'static $crate::Spec {
                &Self::SPECS[self as usize]
            }

            const fn declared(self) -> &'static $declared {
                &DECLARED[self as usize]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Spec = Spec::new("a", Kind::Time, Coding::Plain, "");
    const B: Spec = Spec::new("b", Kind::Int32, Coding::Plain, "");

    #[test]
    fn a_column_that_is_added_leaves_the_others_their_field_ids() {
        assert_eq!(field_ids(&[A, B, A]), [1, 2, 3, 4, 5]);
        let added = [A.field_id(20), A, B.field_id(9), B, A];
        assert_eq!(field_ids(&added), [20, 21, 1, 2, 9, 3, 4, 5]);
        assert_eq!(field_ids_by_place(&added), field_ids_by_place(&[A, B, A]));
    }
}
