//! Arrow's stream format (Columnar.rst of Arrow's documentation, "Serialization and Interprocess Communication
//! (IPC)", version 5 of its metadata), as far as it is written here: columns without nulls, uncompressed. A
//! message is a FlatBuffer (Message.fbs, Schema.fbs), and the bytes of a record batch after it. Also the
//! schema that Parquet files hold for readers of Arrow.

use std::io::{self, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The type of a column, in a stream or in the schema of a Parquet file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// True or false.
    Bool,
    /// 32 bits, unsigned; in Parquet only.
    U32,
    /// 64 bits, unsigned; in Parquet only.
    U64,
    /// 64 bits, signed.
    I64,
    /// 64 bits.
    F64,
    /// UTF-8.
    Text,
    /// UTF-8, each text once and numbered by 32 bits, signed; in Parquet only.
    Dictionary,
}

/// Keys and values.
pub type Metadata<'a> = [(&'a str, &'a str)];

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its values.
    pub data_type: DataType,
    /// Whether values may be missing. In a stream, none may.
    pub nullable: bool,
    /// Further properties.
    pub metadata: &'a Metadata<'a>,
}

/// Values of a column, by row.
#[derive(Clone, Debug)]
pub enum Array {
    /// Of a [`DataType::I64`].
    I64(Vec<i64>),
    /// Of a [`DataType::F64`].
    F64(Vec<f64>),
    /// Of a [`DataType::Bool`].
    Bool(Vec<bool>),
    /// Of a [`DataType::Text`]: one after the other, and at which byte each ends.
    Text(String, Vec<i32>),
}

impl Array {
    /// Whether it has a value of this type for each row.
    fn has(&self, data_type: DataType, rows: usize) -> bool {
        match (self, data_type) {
            (Self::I64(values), DataType::I64) => values.len() == rows,
            (Self::F64(values), DataType::F64) => values.len() == rows,
            (Self::Bool(values), DataType::Bool) => values.len() == rows,
            (Self::Text(texts, ends), DataType::Text) => {
                let mut start = 0;
                let mut is_next = |end: &i32| {
                    let end = usize::try_from(*end).ok();
                    let end = end.filter(|end| *end >= start && texts.is_char_boundary(*end));
                    end.map(|end| start = end).is_some()
                };
                ends.len() == rows && ends.iter().all(&mut is_next) && start == texts.len()
            }
            _ => false,
        }
    }
}

/// Writes a stream: a message with the columns, one for each batch of rows, and its end.
#[derive(Debug)]
pub struct StreamWriter<W: Write> {
    output: W,
    types: Vec<DataType>,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream of batches with these columns.
    ///
    /// # Errors
    ///
    /// If nothing can be written.
    ///
    /// # Panics
    ///
    /// If names and metadata have 4 GiB: the caller bounds them.
    pub fn new(mut output: W, fields: &[Field<'_>], metadata: &Metadata<'_>) -> io::Result<Self> {
        output.write_all(&message(SCHEMA, schema(fields, metadata), 0))?;
        let types = fields.iter().map(|field| field.data_type).collect();
        Ok(Self { output, types })
    }

    /// Writes a batch of rows, of which each column has a value. Its bytes are put together first, so memory
    /// holds the rows twice.
    ///
    /// # Errors
    ///
    /// As [`StreamWriter::new`]; [`io::ErrorKind::InvalidInput`] if the columns are not those of the stream,
    /// or one has not a value for each row. Nothing is written then.
    pub fn write(&mut self, rows: usize, columns: &[Array]) -> io::Result<()> {
        let wrong = |problem| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        if columns.len() != self.types.len() {
            let (found, expected) = (columns.len(), self.types.len());
            return wrong(format!("{found} columns instead of {expected}"));
        }
        for (at, (column, data_type)) in columns.iter().zip(&self.types).enumerate() {
            if !column.has(*data_type, rows) {
                return wrong(format!(
                    "column {at} does not have {rows} values of type {data_type:?}"
                ));
            }
        }
        let (mut nodes, mut buffers, mut body) = (Vec::new(), Vec::new(), Vec::new());
        for column in columns {
            nodes.extend([rows as u64, 0]);
            // No bits that say which values are there: all are.
            buffers.extend([body.len() as u64, 0]);
            match column {
                Array::I64(values) => add(&mut buffers, &mut body, |body| {
                    body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }),
                Array::F64(values) => add(&mut buffers, &mut body, |body| {
                    body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }),
                Array::Bool(values) => add(&mut buffers, &mut body, |body| {
                    let bits = values.chunks(8).map(|bits| {
                        let bits = bits.iter().rev();
                        bits.fold(0, |byte, bit| byte << 1 | u8::from(*bit))
                    });
                    body.extend(bits);
                }),
                Array::Text(texts, ends) => {
                    add(&mut buffers, &mut body, |body| {
                        let offsets = std::iter::once(&0).chain(ends);
                        body.extend(offsets.flat_map(|offset| offset.to_le_bytes()));
                    });
                    add(&mut buffers, &mut body, |body| {
                        body.extend_from_slice(texts.as_bytes());
                    });
                }
            }
        }
        // `RecordBatch` of Message.fbs.
        let batch = Node::Table(vec![
            Some(Node::Long(rows as u64)),
            Some(Node::Pairs(nodes)),
            Some(Node::Pairs(buffers)),
        ]);
        self.output
            .write_all(&message(RECORD_BATCH, batch, body.len()))?;
        self.output.write_all(&body)
    }

    /// Ends the stream.
    ///
    /// # Errors
    ///
    /// As [`StreamWriter::new`].
    pub fn finish(mut self) -> io::Result<()> {
        self.output.write_all(&CONTINUATION.to_le_bytes())?;
        self.output.write_all(&0_u32.to_le_bytes())
    }
}

/// Adds a buffer to a body, padded.
fn add(buffers: &mut Vec<u64>, body: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = body.len();
    fill(body);
    buffers.extend([start as u64, (body.len() - start) as u64]);
    body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
}

/// Key of a Parquet file's metadata, and value: its schema as Arrow has it, in which fields have
/// metadata, and texts are dictionaries (a message as in a stream, in base64: cpp/parquet.rst of Arrow's
/// documentation, "Serialization details"). Its readers take the file's own metadata from here too.
///
/// # Panics
///
/// As [`StreamWriter::new`].
#[must_use]
pub fn in_parquet(fields: &[Field<'_>], metadata: &Metadata<'_>) -> (String, String) {
    let schema = message(SCHEMA, schema(fields, metadata), 0);
    ("ARROW:schema".to_owned(), BASE64_STANDARD.encode(schema))
}

// Message.fbs, Schema.fbs.
const CONTINUATION: u32 = u32::MAX;
const ALIGNMENT: usize = 8;
const VERSION_5: u16 = 4;
const SCHEMA: u8 = 1;
const RECORD_BATCH: u8 = 3;
const INT: u8 = 2;
const FLOATING_POINT: u8 = 3;
const UTF8: u8 = 5;
const BOOL: u8 = 6;
const DOUBLE: u16 = 2;

/// A message, padded, but for the `body` bytes after it.
fn message(kind: u8, header: Node, body: usize) -> Vec<u8> {
    let message = Node::Table(vec![
        Some(Node::Short(VERSION_5)),
        Some(Node::Byte(kind)),
        Some(header),
        Some(Node::Long(body as u64)),
    ]);
    let flat = flat_buffer(&message);
    let mut bytes = CONTINUATION.to_le_bytes().to_vec();
    bytes.extend(of_32_bits(flat.len()).to_le_bytes());
    bytes.extend(flat);
    bytes
}

/// `Schema` of Schema.fbs, little-endian.
fn schema(fields: &[Field<'_>], metadata: &Metadata<'_>) -> Node {
    let mut dictionaries = 0_u64..;
    let fields = fields.iter().map(|field| {
        let int = |bits, signed| {
            let signed = Some(Node::Byte(u8::from(signed)));
            (INT, Node::Table(vec![Some(Node::Int(bits)), signed]))
        };
        let none = || Node::Table(Vec::new());
        let (of, data_type) = match field.data_type {
            DataType::Bool => (BOOL, none()),
            DataType::U32 => int(32, false),
            DataType::U64 => int(64, false),
            DataType::I64 => int(64, true),
            DataType::F64 => {
                let precision = Some(Node::Short(DOUBLE));
                (FLOATING_POINT, Node::Table(vec![precision]))
            }
            DataType::Text | DataType::Dictionary => (UTF8, none()),
        };
        let dictionary = (field.data_type == DataType::Dictionary).then(|| {
            let number = dictionaries.next().map(Node::Long);
            Node::Table(vec![number, Some(int(32, true).1)])
        });
        Node::Table(vec![
            Some(Node::Text(field.name.to_owned())),
            Some(Node::Byte(u8::from(field.nullable))),
            Some(Node::Byte(of)),
            Some(data_type),
            dictionary,
            Some(Node::Vector(Vec::new())),
            Some(key_values(field.metadata)),
        ])
    });
    Node::Table(vec![
        None,
        Some(Node::Vector(fields.collect())),
        Some(key_values(metadata)),
    ])
}

fn key_values(metadata: &Metadata<'_>) -> Node {
    let pairs = metadata.iter().map(|(key, value)| {
        let texts = [key, value].map(|text| Some(Node::Text((*text).to_owned())));
        Node::Table(texts.into())
    });
    Node::Vector(pairs.collect())
}

/// What a FlatBuffer is made of.
enum Node {
    Byte(u8),
    Short(u16),
    Int(u32),
    Long(u64),
    /// Fields by number.
    Table(Vec<Option<Node>>),
    Text(String),
    /// Of tables.
    Vector(Vec<Node>),
    /// Of structs of two 64-bit integers, here one after the other.
    Pairs(Vec<u64>),
}

/// A FlatBuffer with this root ("FlatBuffer Internals" of FlatBuffers' documentation: all offsets are relative,
/// and those to what is not in the table itself go forward), padded.
fn flat_buffer(root: &Node) -> Vec<u8> {
    let mut out = vec![0; 4];
    place(root, 0, &mut out);
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

/// Appends a node, to which the 4 bytes at `from` refer.
fn place(node: &Node, from: usize, out: &mut Vec<u8>) {
    match node {
        Node::Table(fields) => {
            let mut offsets = Vec::with_capacity(fields.len());
            // The offset of the table of offsets comes first.
            let mut len = 4_usize;
            for field in fields {
                let size = field.as_ref().map_or(0, Node::size);
                len = len.next_multiple_of(size.max(1)) + size;
                offsets.push(if size == 0 { 0 } else { len - size });
            }
            let short = |len: usize| u16::try_from(len).expect("tables have few fields");
            let header = 4 + 2 * fields.len();
            // The table itself is at a multiple of 8.
            align(out, header, 8);
            out.extend(short(header).to_le_bytes());
            out.extend(short(len).to_le_bytes());
            out.extend(offsets.iter().flat_map(|at| short(*at).to_le_bytes()));
            let start = out.len();
            refer(from, out);
            out.extend(of_32_bits(header).to_le_bytes());
            out.resize(start + len, 0);
            let fields = fields.iter().zip(offsets);
            for (field, offset) in fields {
                let at = start + offset;
                match field {
                    None => {}
                    Some(Node::Byte(value)) => out[at] = *value,
                    Some(Node::Short(value)) => {
                        out[at..at + 2].copy_from_slice(&value.to_le_bytes());
                    }
                    Some(Node::Int(value)) => out[at..at + 4].copy_from_slice(&value.to_le_bytes()),
                    Some(Node::Long(value)) => {
                        out[at..at + 8].copy_from_slice(&value.to_le_bytes());
                    }
                    Some(other) => place(other, at, out),
                }
            }
        }
        Node::Text(text) => {
            align(out, 0, 4);
            refer(from, out);
            out.extend(of_32_bits(text.len()).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        }
        Node::Vector(nodes) => {
            align(out, 0, 4);
            refer(from, out);
            out.extend(of_32_bits(nodes.len()).to_le_bytes());
            let start = out.len();
            out.resize(start + 4 * nodes.len(), 0);
            for (at, node) in nodes.iter().enumerate() {
                place(node, start + 4 * at, out);
            }
        }
        Node::Pairs(values) => {
            align(out, 4, 8);
            refer(from, out);
            out.extend(of_32_bits(values.len() / 2).to_le_bytes());
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Node::Byte(_) | Node::Short(_) | Node::Int(_) | Node::Long(_) => {
            unreachable!("numbers are in tables")
        }
    }
}

impl Node {
    /// Bytes in a table.
    fn size(&self) -> usize {
        match self {
            Self::Byte(_) => 1,
            Self::Short(_) => 2,
            Self::Long(_) => 8,
            Self::Int(_) | Self::Table(_) | Self::Text(_) | Self::Vector(_) | Self::Pairs(_) => 4,
        }
    }
}

/// Pads so that what comes after `header` more bytes is at a multiple of `to`.
fn align(out: &mut Vec<u8>, header: usize, to: usize) {
    let end = (out.len() + header).next_multiple_of(to);
    out.resize(end - header, 0);
}

/// Sets the 4 bytes at `from` to where the end is.
fn refer(from: usize, out: &mut [u8]) {
    let offset = of_32_bits(out.len() - from);
    out[from..from + 4].copy_from_slice(&offset.to_le_bytes());
}

fn of_32_bits(len: usize) -> u32 {
    u32::try_from(len).expect("less than 4 GiB describe a schema or a batch")
}
