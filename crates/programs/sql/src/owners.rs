//! Functions that say whose an address is, by the files of `--names` and `--mmdb`. Addresses that are in no file, and
//! texts that are no address of IP, give NULL; without such a file, the functions are refused.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, BooleanArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::cast::as_string_array;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use strata_filter::{Naming, NetworkNames as _};
use strata_networks::{ByAddress, Names};
use strata_terminal::text::chain;

/// Why whose an address is cannot be told.
#[derive(Debug)]
pub(crate) struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

fn unknown(why: String) -> DataFusionError {
    DataFusionError::External(Box::new(Unknown(why)))
}

/// What a function with one address says of it.
#[derive(Clone, Copy)]
enum Of {
    Name,
    Country,
    System,
}

impl Of {
    fn function(self) -> &'static str {
        match self {
            Self::Name => "address_name",
            Self::Country => "address_country",
            Self::System => "address_as",
        }
    }

    /// The option without which it knows nothing, if that is missing.
    fn lacks(self, names: &Names) -> Option<&'static str> {
        match self {
            Self::Name => names.files().is_empty().then_some("--names"),
            Self::Country | Self::System => (names.databases().len() == 0).then_some("--mmdb"),
        }
    }

    fn look_up(self, names: &Names, address: IpAddr) -> Result<Option<String>, DataFusionError> {
        let found = match self {
            Self::Name => Ok(names.name(address)),
            Self::Country => names.country(address),
            Self::System => names.system(address),
        };
        found.map_err(|error| unknown(chain(&error.into())))
    }
}

/// The functions: `address_name`, `address_country` and `address_as` of an address, and `address_tagged` of an address
/// and a name.
pub(crate) fn functions(names: &Arc<Names>) -> Vec<ScalarUDF> {
    let of = [Of::Name, Of::Country, Of::System].map(|of| {
        let names = Arc::clone(names);
        let called = move |args: &[ColumnarValue]| called(args, |args| texts(of, &names, args));
        create_udf(
            of.function(),
            vec![DataType::Utf8],
            DataType::Utf8,
            Volatility::Stable,
            Arc::new(called),
        )
    });
    let names = Arc::clone(names);
    let tagged = move |args: &[ColumnarValue]| called(args, |args| tagged(&names, args));
    let tagged = create_udf(
        "address_tagged",
        vec![DataType::Utf8, DataType::Utf8],
        DataType::Boolean,
        Volatility::Stable,
        Arc::new(tagged),
    );
    of.into_iter().chain([tagged]).collect()
}

/// A function of columns, called with values that may be single.
fn called(
    args: &[ColumnarValue],
    function: impl FnOnce(&[ArrayRef]) -> Result<ArrayRef, DataFusionError>,
) -> Result<ColumnarValue, DataFusionError> {
    let is_single = args
        .iter()
        .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
    let result = function(&ColumnarValue::values_to_arrays(args)?)?;
    Ok(match is_single {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?),
        false => ColumnarValue::Array(result),
    })
}

fn addresses(column: &StringArray) -> impl Iterator<Item = Option<IpAddr>> {
    column.iter().map(|text| text?.parse().ok())
}

fn texts(of: Of, names: &Names, args: &[ArrayRef]) -> Result<ArrayRef, DataFusionError> {
    if let Some(option) = of.lacks(names) {
        let function = of.function();
        return Err(unknown(format!("{function}() needs {option} FILE")));
    }
    let mut known = ByAddress::default();
    let found = addresses(as_string_array(&args[0])?).map(|address| match address {
        Some(address) => known.of(address, || of.look_up(names, address)),
        None => Ok(None),
    });
    let found = found.collect::<Result<StringArray, DataFusionError>>()?;
    Ok(Arc::new(found))
}

fn tagged(names: &Names, args: &[ArrayRef]) -> Result<ArrayRef, DataFusionError> {
    let tags = as_string_array(&args[1])?;
    let mut sets = HashMap::new();
    let mut all = Vec::with_capacity(tags.len());
    for (address, tag) in addresses(as_string_array(&args[0])?).zip(tags) {
        let (Some(address), Some(tag)) = (address, tag) else {
            all.push(None);
            continue;
        };
        if !sets.contains_key(tag) {
            let set = names.networks(Naming::Tag, tag);
            let set = set.map_err(|why| unknown(format!("address_tagged(): {why}")))?;
            sets.insert(tag, set);
        }
        all.push(sets.get(tag).map(|set| set.contains(address)));
    }
    Ok(Arc::new(BooleanArray::from(all)))
}
