//! The body of a request, record by record: protobuf or JSON, as the OTLP specification 1.9 says.
//!
//! The messages around records are walked here and not decoded as a whole, since a decoded message takes up to 100 times
//! the memory of its bytes. Each record, resource and scope is decoded alone, if it has at most [`MESSAGE_LEN_MAX`] bytes.

use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The longest record, resource, scope or `schema_url` in a body, in bytes.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;

/// The longest text of a library about an invalid message, in characters.
const PROBLEM_LEN_MAX: usize = 200;

/// A decompressed body.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// `application/x-protobuf`: an `ExportLogsServiceRequest`.
    Protobuf(&'a [u8]),
    /// `application/json`: the same in OTLP's JSON.
    Json(&'a [u8]),
}

/// A body, or a part of it, that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyError {
    /// A field of the protobuf ends after its message.
    #[error("the protobuf message is cut short")]
    Short,
    /// A number or a wire type that protobuf does not have.
    #[error("invalid protobuf: {0}")]
    Protobuf(&'static str),
    /// The library's error.
    #[error("invalid {what}: {problem}")]
    Invalid {
        /// The message.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A record, resource, scope or `schema_url` is too long.
    #[error("a {what} of {len} bytes: at most {MESSAGE_LEN_MAX} are accepted")]
    Long {
        /// The message.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
    },
}

/// Where a record comes from.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Origin {
    /// The resource, such as a service.
    pub resource: Option<Resource>,
    /// The schema of its attributes.
    pub resource_schema_url: String,
    /// The library or the module.
    pub scope: Option<InstrumentationScope>,
    /// The schema of its attributes and of the record's.
    pub schema_url: String,
}

/// Which resource and which scope of a body a record is of: records with the same numbers have the same [`Origin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Numbers {
    pub(crate) resource: u64,
    /// Scopes of another resource have other numbers.
    pub(crate) scope: u64,
}

/// A record, or why it has to be refused.
type Found<'o> = Result<(&'o Origin, LogRecord), BodyError>;

/// Calls `each` with every record of a body, in its order; a record that cannot be decoded, or whose resource or scope
/// cannot, is an error there, and the next ones follow.
///
/// # Errors
///
/// If the messages around records are invalid: records before the fault were passed on.
pub fn each_record(body: Body<'_>, mut each: impl FnMut(Found<'_>)) -> Result<(), BodyError> {
    each_numbered(body, |_, found| each(found))
}

/// As [`each_record`], with the numbers of the record's resource and of its scope in the body.
pub(crate) fn each_numbered(
    body: Body<'_>,
    mut each: impl FnMut(Numbers, Found<'_>),
) -> Result<(), BodyError> {
    match body {
        Body::Protobuf(bytes) => protobuf(bytes, &mut each),
        Body::Json(bytes) => json(bytes, &mut each),
    }
}

/// Walks a body without decoding its records: their number. If this succeeds, so does [`each_record`].
///
/// # Errors
///
/// As of [`each_record`].
pub fn count_records(body: Body<'_>) -> Result<u64, BodyError> {
    let mut records = 0_u64;
    match body {
        Body::Protobuf(bytes) => {
            each_field(bytes, REQUEST_RESOURCE_LOGS, |logs| {
                text_field(logs, RESOURCE_LOGS_SCHEMA_URL)?;
                each_field(logs, RESOURCE_LOGS_SCOPE_LOGS, |logs| {
                    text_field(logs, SCOPE_LOGS_SCHEMA_URL)?;
                    each_field(logs, SCOPE_LOGS_RECORDS, |_| {
                        records = records.saturating_add(1);
                        Ok(())
                    })
                })
            })?;
        }
        Body::Json(bytes) => {
            for logs in json_of::<JsonRequest<'_>>(bytes)?
                .resource_logs
                .into_iter()
                .flatten()
            {
                for logs in json_at::<JsonResourceLogs<'_>>(logs)?
                    .scope_logs
                    .into_iter()
                    .flatten()
                {
                    let of_scope = json_at::<JsonScopeLogs<'_>>(logs)?.log_records;
                    let count = of_scope.map_or(0, |records| records.len());
                    records = records.saturating_add(count as u64);
                }
            }
        }
    }
    Ok(records)
}

// Numbers of fields: opentelemetry/proto/collector/logs/v1/logs_service.proto and logs/v1/logs.proto.
const REQUEST_RESOURCE_LOGS: u64 = 1;
const RESOURCE_LOGS_RESOURCE: u64 = 1;
const RESOURCE_LOGS_SCOPE_LOGS: u64 = 2;
const RESOURCE_LOGS_SCHEMA_URL: u64 = 3;
const SCOPE_LOGS_SCOPE: u64 = 1;
const SCOPE_LOGS_RECORDS: u64 = 2;
const SCOPE_LOGS_SCHEMA_URL: u64 = 3;

/// A field of a protobuf message: the number, and the bytes of one that has a length.
type Field<'a> = (u64, Option<&'a [u8]>);

/// Takes a number of up to 64 bits (protobuf encoding, "Base 128 Varints").
fn varint(bytes: &mut &[u8]) -> Result<u64, BodyError> {
    let mut number = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(BodyError::Short)?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return Err(BodyError::Protobuf("a number of more than 64 bits"));
        }
        number |= part << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(BodyError::Protobuf("a number of more than 10 bytes"))
}

/// Takes the next field.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<Option<Field<'a>>, BodyError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let key = varint(bytes)?;
    let number = key >> 3;
    let len = match key & 7 {
        0 => {
            varint(bytes)?;
            return Ok(Some((number, None)));
        }
        1 => 8,
        2 => varint(bytes)?,
        5 => 4,
        _ => return Err(BodyError::Protobuf("an unknown wire type")),
    };
    let len = usize::try_from(len).map_err(|_| BodyError::Short)?;
    let (value, rest) = bytes.split_at_checked(len).ok_or(BodyError::Short)?;
    *bytes = rest;
    Ok(Some((number, (key & 7 == 2).then_some(value))))
}

/// Calls `each` with the bytes of every field that has this number.
fn each_field<'a>(
    mut bytes: &'a [u8],
    wanted: u64,
    mut each: impl FnMut(&'a [u8]) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    while let Some((number, value)) = field(&mut bytes)? {
        if let Some(value) = value.filter(|_| number == wanted) {
            each(value)?;
        }
    }
    Ok(())
}

/// The last field with this number, since later ones replace earlier ones.
fn last_field(bytes: &[u8], wanted: u64) -> Result<Option<&[u8]>, BodyError> {
    let mut last = None;
    each_field(bytes, wanted, |value| {
        last = Some(value);
        Ok(())
    })?;
    Ok(last)
}

fn text_field(bytes: &[u8], wanted: u64) -> Result<&str, BodyError> {
    let text = last_field(bytes, wanted)?.map_or(Ok(""), std::str::from_utf8);
    text.map_err(|_| BodyError::Protobuf("a schema_url that is not UTF-8"))
}

/// Decodes a message that is not too long.
fn protobuf_of<T: Message + Default>(what: &'static str, bytes: &[u8]) -> Result<T, BodyError> {
    within(what, bytes.len())?;
    T::decode(bytes).map_err(invalid(what))
}

fn within(what: &'static str, len: usize) -> Result<(), BodyError> {
    match len > MESSAGE_LEN_MAX {
        true => Err(BodyError::Long { what, len }),
        false => Ok(()),
    }
}

fn protobuf(bytes: &[u8], each: &mut impl FnMut(Numbers, Found<'_>)) -> Result<(), BodyError> {
    let mut from = Around::default();
    each_field(bytes, REQUEST_RESOURCE_LOGS, |logs| {
        // Fields may come in any order.
        let resource = last_field(logs, RESOURCE_LOGS_RESOURCE)?;
        let resource = resource.map(|bytes| protobuf_of("resource", bytes));
        from.enter_resource(
            resource.transpose(),
            text_field(logs, RESOURCE_LOGS_SCHEMA_URL)?,
        );
        each_field(logs, RESOURCE_LOGS_SCOPE_LOGS, |logs| {
            let scope = last_field(logs, SCOPE_LOGS_SCOPE)?;
            let scope = scope.map(|bytes| protobuf_of("scope", bytes));
            from.enter_scope(scope.transpose(), text_field(logs, SCOPE_LOGS_SCHEMA_URL)?);
            each_field(logs, SCOPE_LOGS_RECORDS, |record| {
                each(from.numbers, from.of(|| protobuf_of("record", record)));
                Ok(())
            })
        })
    })
}

/// The resource and the scope of the next records, and what is wrong with them.
struct Around {
    origin: Origin,
    numbers: Numbers,
    of_resource: Option<BodyError>,
    of_scope: Option<BodyError>,
}

impl Default for Around {
    fn default() -> Self {
        Self {
            origin: Origin::default(),
            numbers: Numbers {
                resource: 0,
                scope: 0,
            },
            of_resource: None,
            of_scope: None,
        }
    }
}

impl Around {
    fn enter_resource(&mut self, resource: Result<Option<Resource>, BodyError>, url: &str) {
        self.numbers.resource = self.numbers.resource.saturating_add(1);
        let origin = &mut self.origin;
        (
            (origin.resource, origin.resource_schema_url),
            self.of_resource,
        ) = part(resource, url);
    }

    fn enter_scope(&mut self, scope: Result<Option<InstrumentationScope>, BodyError>, url: &str) {
        self.numbers.scope = self.numbers.scope.saturating_add(1);
        let origin = &mut self.origin;
        ((origin.scope, origin.schema_url), self.of_scope) = part(scope, url);
    }

    fn of(&self, record: impl FnOnce() -> Result<LogRecord, BodyError>) -> Found<'_> {
        match self.of_resource.as_ref().or(self.of_scope.as_ref()) {
            Some(error) => Err(error.clone()),
            None => Ok((&self.origin, record()?)),
        }
    }
}

/// A resource or a scope with the URL of its schema, or what is wrong with one of them.
fn part<T>(
    message: Result<Option<T>, BodyError>,
    url: &str,
) -> ((Option<T>, String), Option<BodyError>) {
    let whole = message.and_then(|message| {
        within("schema_url", url.len())?;
        Ok((message, url.to_owned()))
    });
    match whole {
        Ok(part) => (part, None),
        Err(error) => ((None, String::new()), Some(error)),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonRequest<'a> {
    #[serde(borrow)]
    resource_logs: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonResourceLogs<'a> {
    #[serde(borrow)]
    resource: Option<&'a RawValue>,
    #[serde(borrow)]
    scope_logs: Option<Vec<&'a RawValue>>,
    schema_url: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonScopeLogs<'a> {
    #[serde(borrow)]
    scope: Option<&'a RawValue>,
    #[serde(borrow)]
    log_records: Option<Vec<&'a RawValue>>,
    schema_url: Option<String>,
}

/// What a library says, as far as it fits into an answer: it may name each of many values within values.
fn invalid<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> BodyError {
    move |error| BodyError::Invalid {
        what,
        problem: error.to_string().chars().take(PROBLEM_LEN_MAX).collect(),
    }
}

fn json_of<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, BodyError> {
    serde_json::from_slice(bytes).map_err(invalid("JSON"))
}

fn json_at<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T, BodyError> {
    serde_json::from_str(text.get()).map_err(invalid("JSON"))
}

fn json_message<T: DeserializeOwned>(what: &'static str, text: &RawValue) -> Result<T, BodyError> {
    within(what, text.get().len())?;
    serde_json::from_str(text.get()).map_err(invalid(what))
}

fn json(bytes: &[u8], each: &mut impl FnMut(Numbers, Found<'_>)) -> Result<(), BodyError> {
    let mut from = Around::default();
    for logs in json_of::<JsonRequest<'_>>(bytes)?
        .resource_logs
        .into_iter()
        .flatten()
    {
        let logs: JsonResourceLogs<'_> = json_at(logs)?;
        let resource = logs.resource.map(|text| json_message("resource", text));
        let url = logs.schema_url.as_deref();
        from.enter_resource(resource.transpose(), url.unwrap_or(""));
        for logs in logs.scope_logs.into_iter().flatten() {
            let logs: JsonScopeLogs<'_> = json_at(logs)?;
            let scope = logs.scope.map(|text| json_message("scope", text));
            let url = logs.schema_url.as_deref();
            from.enter_scope(scope.transpose(), url.unwrap_or(""));
            for record in logs.log_records.into_iter().flatten() {
                each(from.numbers, from.of(|| json_message("record", record)));
            }
        }
    }
    Ok(())
}
