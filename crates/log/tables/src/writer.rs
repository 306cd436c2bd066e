//! Tables as they are written: Parquet, a row group at a time.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter as Writer, ColumnWriterImpl, get_column_writer,
};
use parquet::data_type::DataType;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnDescPtr, ColumnPath};
use strata_columnar::Pages;

use crate::coded::{ChunkWriter, Coded, Entries, NULL};
use crate::column::{Column, PAGE_ROWS, Values};
use crate::error::{Interrupted, Source};
use crate::parallel::by_helpers;
use crate::spec::{Coding, Kind, NS_PER_MICRO, Spec, below_micros, field_ids};

/// Writes a table.
pub struct TableWriter<W: Write + Send> {
    shape: Shape,
    writer: SerializedFileWriter<W>,
    /// One for each thread.
    makers: Vec<ChunkMaker>,
}

/// The columns of a table.
struct Shape {
    specs: &'static [Spec],
    /// Of the file: of a time, two.
    columns: Vec<ColumnDescPtr>,
    /// The first of each spec.
    places: Vec<usize>,
    properties: WriterPropertiesPtr,
}

/// Makes column chunks, one at a time.
struct ChunkMaker {
    chunks: ChunkWriter,
    /// One buffer for all columns of the same type.
    scratch: Vec<(Scratch, Column)>,
    /// Of times: what is below a microsecond.
    below: Column,
}

/// Columns with the same key share their buffer.
type Scratch = (Kind, bool);

fn scratch_of(spec: &Spec) -> Scratch {
    (spec.kind, spec.coding == Coding::Codes)
}

const ZSTD_LEVEL: i32 = 1;

/// Share of absent values that a Bloom filter lets pass.
const FILTER_FALSE_SHARE: f64 = 0.01;
/// Distinct values that a Bloom filter has space for while it is filled; it is folded afterwards.
const FILTER_VALUES: u64 = 1 << 18;
/// Size of a dictionary above which the rest of a column is written without it.
const DICTIONARY_BYTES_MAX: usize = 16 << 20;

impl<W: Write + Send> TableWriter<W> {
    /// Starts a table; `about` goes into the file's metadata.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn new(
        output: W,
        name: &str,
        specs: &'static [Spec],
        about: &[(&str, String)],
    ) -> Result<Self, Source> {
        let schema = Arc::new(parse_message_type(&schema(name, specs))?);
        let about = about
            .iter()
            .map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            .set_created_by(concat!("strata ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_dictionary_page_size_limit(DICTIONARY_BYTES_MAX)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_key_value_metadata(Some(about.collect()));
        for spec in specs {
            let path = ColumnPath::from(spec.name);
            let dictionary = spec.coding == Coding::Dictionary && spec.kind != Kind::Bool;
            properties = properties.set_column_dictionary_enabled(path.clone(), dictionary);
            let encoding = match (spec.coding, spec.kind) {
                (Coding::Delta, Kind::Time | Kind::Int32 | Kind::Int64) => {
                    Encoding::DELTA_BINARY_PACKED
                }
                (Coding::Delta | Coding::Dictionary | Coding::Codes, Kind::Text | Kind::Bytes) => {
                    Encoding::DELTA_BYTE_ARRAY
                }
                (_, Kind::Bool) => Encoding::PLAIN,
                (Coding::Dictionary | Coding::Codes, Kind::Time | Kind::Int32 | Kind::Int64) => {
                    Encoding::DELTA_BINARY_PACKED
                }
                _ => Encoding::PLAIN,
            };
            if spec.filtered {
                properties = properties
                    .set_column_bloom_filter_fpp(path.clone(), FILTER_FALSE_SHARE)
                    .set_column_bloom_filter_max_ndv(path.clone(), FILTER_VALUES);
            }
            properties = properties.set_column_encoding(path, encoding);
            if spec.kind == Kind::Time {
                let below = ColumnPath::from(below_micros(spec.name));
                properties = properties
                    .set_column_dictionary_enabled(below.clone(), false)
                    .set_column_encoding(below, Encoding::DELTA_BINARY_PACKED);
            }
        }
        let properties = Arc::new(properties.build());
        let writer = SerializedFileWriter::new(output, schema, Arc::clone(&properties))?;
        let places = specs.iter().scan(0, |next, spec| {
            let place = *next;
            *next += spec.file_columns();
            Some(place)
        });
        Ok(Self {
            shape: Shape {
                specs,
                places: places.collect(),
                properties,
                columns: writer.schema_descr().columns().to_vec(),
            },
            writer,
            makers: vec![ChunkMaker::new()?],
        })
    }

    /// This many threads make its columns.
    ///
    /// # Errors
    ///
    /// If there is no memory for zstd.
    pub fn with_threads(mut self, threads: NonZeroUsize) -> Result<Self, Source> {
        let makers = (0..threads.get()).map(|_| ChunkMaker::new());
        self.makers = makers.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Writes one row group. `filler` makes what fills a column by its number, for each thread its own.
    /// Ends with [`Interrupted`] before the next column once `stop` is set.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], or if a column's type is not the declared one, or cannot be written.
    pub fn group<F: FnMut(usize, &mut Column)>(
        &mut self,
        stop: &AtomicBool,
        filler: impl Fn() -> F + Sync,
    ) -> Result<(), Source> {
        let mut group = self.writer.next_row_group()?;
        let shape = &self.shape;
        let columns: Vec<usize> = (0..shape.specs.len()).collect();
        let chunks = by_helpers(&mut self.makers, &columns, |maker| {
            let mut fill = filler();
            move |&index: &usize| {
                if stop.load(Ordering::Relaxed) {
                    return Err(Interrupted.into());
                }
                maker.chunk(shape, index, |column| fill(index, column))
            }
        });
        for chunk in chunks {
            for (bytes, close) in chunk? {
                group.append_column(&bytes, close)?;
            }
        }
        group.close()?;
        Ok(())
    }

    /// Adds to what the file's metadata say.
    pub fn note(&mut self, key: &str, value: String) {
        let note = KeyValue::new(key.to_owned(), value);
        self.writer.append_key_value_metadata(note);
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn finish(self) -> Result<W, Source> {
        Ok(self.writer.into_inner()?)
    }
}

impl ChunkMaker {
    fn new() -> Result<Self, Source> {
        Ok(Self {
            chunks: ChunkWriter::new(ZSTD_LEVEL)?,
            scratch: Vec::new(),
            below: Column::of(Kind::Int32),
        })
    }

    /// The bytes of the column chunks of what `fill` fills, and their metadata: of a time, two chunks.
    fn chunk(
        &mut self,
        shape: &Shape,
        index: usize,
        fill: impl FnOnce(&mut Column),
    ) -> Result<Vec<(Bytes, ColumnCloseResult)>, Source> {
        let (spec, place_in_file) = (&shape.specs[index], shape.places[index]);
        let key = scratch_of(spec);
        let place = self.scratch.iter().position(|(of, _)| *of == key);
        let place = place.unwrap_or_else(|| {
            let mut column = Column::of(spec.kind);
            if spec.coding == Coding::Codes {
                column.values = Values::Coded(Coded::default());
            }
            self.scratch.push((key, column));
            self.scratch.len() - 1
        });
        let column = &mut self.scratch[place].1;
        column.clear();
        fill(column);
        let below = &mut self.below;
        let all = match spec.kind {
            Kind::Time => {
                split(column, below).ok_or("a column of times has others")?;
                vec![column, below]
            }
            _ => vec![column],
        };
        let places = place_in_file..;
        let written = all.into_iter().zip(places);
        let written = written.map(|(column, place)| self.chunks.of(shape, (spec, place), column));
        written.collect()
    }
}

/// Divides times into microseconds and the nanoseconds below; `None` if there are other values.
fn split(column: &mut Column, below: &mut Column) -> Option<()> {
    let (Values::Int64(times), Values::Int32(rest)) = (&mut column.values, &mut below.values)
    else {
        return None;
    };
    rest.clear();
    for time in times {
        let ns = time.cast_unsigned();
        *time = (ns / NS_PER_MICRO).cast_signed();
        rest.push(i32::try_from(ns % NS_PER_MICRO).expect("below 1,000"));
    }
    below.levels.clone_from(&column.levels);
    Some(())
}

impl ChunkWriter {
    /// A column chunk, and its metadata.
    fn of(
        &mut self,
        shape: &Shape,
        (spec, place): (&Spec, usize),
        column: &mut Column,
    ) -> Result<(Bytes, ColumnCloseResult), Source> {
        let descriptor = &shape.columns[place];
        if let Values::Coded(coded) = &mut column.values {
            return self.chunk(descriptor, coded, PAGE_ROWS);
        }
        if column.has_no_values() {
            // Without any values, dictionary codes take only a few bytes.
            let mut none = Coded {
                codes: vec![NULL; column.levels.len()],
                ..Coded::default()
            };
            if matches!(column.values, Values::Float(_)) {
                none.entries = Entries::Float(Vec::new());
            } else if matches!(column.values, Values::Bytes(_)) {
                none.entries = Entries::Bytes(Vec::new());
            }
            return self.chunk(descriptor, &mut none, PAGE_ROWS);
        }
        let levels = match spec.optional {
            true => Some(column.levels.as_slice()),
            false => None,
        };
        let mut bytes = Vec::with_capacity(64 << 10);
        let pages = Box::new(Pages(&mut bytes));
        let properties = Arc::clone(&shape.properties);
        let writer = get_column_writer(Arc::clone(descriptor), properties, pages);
        let close = match (&column.values, writer) {
            (Values::Int32(values), Writer::Int32ColumnWriter(to)) => write(to, values, levels),
            (Values::Int64(values), Writer::Int64ColumnWriter(to)) => write(to, values, levels),
            (Values::Float(values), Writer::FloatColumnWriter(to)) => write(to, values, levels),
            (Values::Bool(values), Writer::BoolColumnWriter(to)) => write(to, values, levels),
            (Values::Bytes(values), Writer::ByteArrayColumnWriter(to)) => write(to, values, levels),
            _ => Err(format!("column {} has another type", spec.name).into()),
        }?;
        Ok((Bytes::from(bytes), close))
    }
}

fn write<T: DataType>(
    mut writer: ColumnWriterImpl<'_, T>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<ColumnCloseResult, Source> {
    writer.write_batch(values, levels, None)?;
    Ok(writer.close()?)
}

fn schema(name: &str, specs: &[Spec]) -> String {
    let mut text = format!("message {name} {{");
    let mut ids = field_ids(specs).into_iter();
    let mut id = || ids.next().expect("as many ids as columns");
    for spec in specs {
        let repetition = if spec.optional {
            "OPTIONAL"
        } else {
            "REQUIRED"
        };
        let (kind, logical) = match spec.kind {
            Kind::Time => ("INT64", " (TIMESTAMP(MICROS,true))"),
            Kind::Int32 => ("INT32", ""),
            Kind::Int64 => ("INT64", ""),
            Kind::Float => ("FLOAT", ""),
            Kind::Bool => ("BOOLEAN", ""),
            Kind::Text => ("BYTE_ARRAY", " (STRING)"),
            Kind::Bytes => ("BYTE_ARRAY", ""),
        };
        let (name, field) = (spec.name, id());
        text += &format!("{repetition} {kind} {name}{logical} = {field};");
        if spec.kind == Kind::Time {
            let (below, field) = (below_micros(name), id());
            text += &format!("{repetition} INT32 {below} (INTEGER(16,true)) = {field};");
        }
    }
    text.push('}');
    text
}
