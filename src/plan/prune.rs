//! Which row groups can hold matching rows, by their statistics.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, Scalar, StringArray, UInt64Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, SortOrder, Type as PhysicalType};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::RowGroupMetaData;

use crate::error::{Error, Place, Result};
use crate::footer::Footer;
use crate::guard;

/// Comparisons of top-level columns with literals, all of which must hold: `a >= 5 AND b = 'x' AND c IS NOT NULL`.
///
/// It prunes row groups; it does not filter rows. A row group stays unless its statistics rule out every row. NaN matches
/// no comparison but `!=`: statistics leave it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    column: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Compare(Comparison, String),
    IsNull,
    IsNotNull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Two-character operators come first, so that `<=` is not taken for `<`.
const OPERATORS: [(&str, Comparison); 8] = [
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("!=", Comparison::NotEqual),
    ("<>", Comparison::NotEqual),
    ("==", Comparison::Equal),
    ("=", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let terms = split_outside_quotes(text, " and ").into_iter().map(term).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }
}

/// The parts of a text between separators (lower case, compared in any case) that stand outside quotes.
fn split_outside_quotes<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, it) in text.char_indices() {
        if it == '\'' {
            quoted = !quoted;
        } else if !quoted && at >= start {
            let found = text.get(at..at + separator.len()).is_some_and(|it| it.eq_ignore_ascii_case(separator));
            if found {
                parts.push(&text[start..at]);
                start = at + separator.len();
            }
        }
    }
    parts.push(&text[start..]);
    parts
}

fn term(text: &str) -> Result<Term, String> {
    let text = text.trim();
    for (words, test) in [(" is not null", Test::IsNotNull), (" is null", Test::IsNull)] {
        let at = text.len().checked_sub(words.len());
        if let Some(column) = at.filter(|at| text.get(*at..).is_some_and(|it| it.eq_ignore_ascii_case(words))) {
            return Ok(Term { column: text[..column].trim().to_string(), test });
        }
    }
    let found = text.char_indices().find_map(|(at, _)| {
        let (operator, comparison) = OPERATORS.iter().find(|(operator, _)| text[at..].starts_with(operator))?;
        Some((text[..at].trim(), *comparison, text[at + operator.len()..].trim()))
    });
    match found {
        Some((column, comparison, literal)) if !column.is_empty() && !literal.is_empty() => {
            let quoted = literal.strip_prefix('\'').and_then(|it| it.strip_suffix('\''));
            if quoted.is_none() && literal.contains(char::is_whitespace) {
                return Err(format!("`{literal}` is not one literal: quote it"));
            }
            let bare = quoted.unwrap_or(literal);
            Ok(Term { column: column.to_string(), test: Test::Compare(comparison, bare.replace("''", "'")) })
        }
        _ => Err(format!("`{text}` is not a filter: COLUMN OP LITERAL, COLUMN IS [NOT] NULL")),
    }
}

impl Filter {
    /// The row groups that may hold matching rows, ascending.
    ///
    /// # Errors
    /// [`Error::Argument`] for a column that is not there or a literal that its type cannot hold.
    pub fn row_groups(&self, footer: &Footer) -> Result<Vec<usize>> {
        let mut kept = vec![true; footer.metadata().num_row_groups()];
        for term in &self.terms {
            for (kept, may) in kept.iter_mut().zip(term.may_match(footer)?) {
                *kept &= may;
            }
        }
        Ok(kept.iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| at).collect())
    }
}

impl Term {
    /// For each row group, whether its statistics leave room for a matching row.
    fn may_match(&self, footer: &Footer) -> Result<Vec<bool>> {
        let schema = footer.schema();
        let field = schema
            .field_with_name(&self.column)
            .map_err(|_| Error::Argument(format!("there is no column {} to filter by", self.column)))?;
        if field.data_type().is_nested() {
            return Err(Error::Argument(format!("column {} is nested: it has no order", self.column)));
        }
        let literal = match &self.test {
            Test::Compare(_, literal) => Some(scalar(literal, value_type(field.data_type())).map_err(|error| {
                Error::Argument(format!("column {} cannot be compared with `{literal}`: {error}", self.column))
            })?),
            _ => None,
        };
        let evaluate = || -> ParquetResult<Vec<Option<bool>>> {
            let metadata = footer.metadata();
            let parquet_schema = metadata.file_metadata().schema_descr();
            let converter = StatisticsConverter::try_new(&self.column, schema, parquet_schema)?
                .with_missing_null_counts_as_zero(false);
            let groups = metadata.row_groups();
            match (&self.test, &literal) {
                (Test::Compare(comparison, _), Some(literal)) => {
                    let (least, most) = (converter.row_group_mins(groups)?, converter.row_group_maxes(groups)?);
                    let may = compare(*comparison, literal, &least, &most)?;
                    let column = converter.parquet_column_index();
                    let is_sound = |group: &RowGroupMetaData| column.is_some_and(|it| has_bounds(footer, group, it));
                    Ok(may.into_iter().zip(groups).map(|(may, group)| may.filter(|_| is_sound(group))).collect())
                }
                (null, _) => {
                    let nulls: UInt64Array = converter.row_group_null_counts(groups)?;
                    let rows = groups.iter().map(|it| u64::try_from(it.num_rows()).unwrap_or(u64::MAX));
                    let wants_null = *null == Test::IsNull;
                    let may =
                        |(nulls, rows): (Option<u64>, u64)| nulls.map(|it| if wants_null { it > 0 } else { it < rows });
                    Ok(nulls.iter().zip(rows).map(may).collect())
                }
            }
        };
        let outcome = guard::catch(evaluate).map_err(|error| {
            Error::from_parquet(Place { column: Some(self.column.clone()), ..Place::default() }, error)
        })?;
        // What is not known may match.
        Ok(outcome.into_iter().map(|it| it.unwrap_or(true)).collect())
    }
}

/// Whether the least and greatest values that a row group states are so in the order of the column's type.
///
/// Without a stated order, which is so of the deprecated fields, old writers compared bytes and unsigned integers as if
/// they were signed: of those nothing is believed (parquet.thrift, `Statistics` and `ColumnOrder`).
fn has_bounds(footer: &Footer, group: &RowGroupMetaData, column: usize) -> bool {
    let chunk = group.column(column);
    let Some(statistics) = chunk.statistics() else { return false };
    let descriptor = chunk.column_descr();
    let own = ColumnOrder::column_order_for_type(
        descriptor.logical_type_ref(),
        descriptor.converted_type(),
        descriptor.physical_type(),
    );
    let orders = footer.metadata().file_metadata().column_orders();
    let stated = match orders.and_then(|it| it.get(column)) {
        Some(ColumnOrder::UNKNOWN) => return false,
        Some(ColumnOrder::UNDEFINED) | None => false,
        Some(_) => !statistics.is_min_max_deprecated(),
    };
    match descriptor.physical_type() {
        PhysicalType::BOOLEAN | PhysicalType::FLOAT | PhysicalType::DOUBLE => true,
        PhysicalType::INT32 | PhysicalType::INT64 => stated || own.sort_order() == SortOrder::SIGNED,
        _ => stated && own.sort_order() != SortOrder::UNDEFINED,
    }
}

/// The type of a column's values, whether or not it holds them by a dictionary.
fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        other => other,
    }
}

/// A literal as a value of a column's type.
fn scalar(literal: &str, data_type: &DataType) -> Result<Scalar<ArrayRef>, ArrowError> {
    let text: ArrayRef = Arc::new(StringArray::from(vec![literal]));
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let value = match data_type {
        // Names of time zones need a database, which arrow-rs has only as an option. Most columns have this one.
        DataType::Timestamp(unit, Some(zone)) if matches!(zone.as_ref(), "UTC" | "Etc/UTC" | "Z") => {
            let offset = cast_with_options(&text, &DataType::Timestamp(*unit, Some("+00:00".into())), &strict)?;
            cast(&offset, data_type)?
        }
        _ => cast_with_options(&text, data_type, &strict)?,
    };
    Ok(Scalar::new(value))
}

/// Whether [`scalar`] may round to a neighbouring value, in either direction.
fn rounds(data_type: &DataType) -> bool {
    !(data_type.is_integer() || data_type == &DataType::Boolean || data_type.is_string() || data_type.is_binary())
}

/// `None` where a row group states no least or greatest value.
fn compare(
    comparison: Comparison,
    literal: &Scalar<ArrayRef>,
    least: &ArrayRef,
    most: &ArrayRef,
) -> ParquetResult<Vec<Option<bool>>> {
    let (value, _) = literal.get();
    let rounded = rounds(value.data_type());
    let (at_most, at_least) = match value.data_type().is_floating() {
        true => {
            (floats(least, value, |bound, value| bound <= value)?, floats(most, value, |bound, value| bound >= value)?)
        }
        false => (cmp::lt_eq(least, literal)?.iter().collect(), cmp::gt_eq(most, literal)?.iter().collect()),
    };
    let both = |one: Vec<Option<bool>>, other: Vec<Option<bool>>| -> Vec<Option<bool>> {
        one.into_iter().zip(other).map(|(one, other)| Some(one? && other?)).collect()
    };
    Ok(match comparison {
        Comparison::Equal => both(at_most, at_least),
        // Statistics of strings may be cut short, so equal ones do not mean that all values are.
        Comparison::NotEqual => vec![None; least.len()],
        // A literal that was rounded onto the bound may lie on either side of it.
        Comparison::Less if !rounded => cmp::lt(least, literal)?.iter().collect(),
        Comparison::Greater if !rounded => cmp::gt(most, literal)?.iter().collect(),
        Comparison::Less | Comparison::LessOrEqual => at_most,
        Comparison::Greater | Comparison::GreaterOrEqual => at_least,
    })
}

/// Compares bounds as IEEE 754 does, to which both zeros are equal: writers disagree about which of them is less. A
/// bound that is no number says nothing, and neither does a comparison with such a literal.
fn floats(bounds: &ArrayRef, value: &dyn Array, holds: fn(f64, f64) -> bool) -> ParquetResult<Vec<Option<bool>>> {
    let wide = |array: &dyn Array| cast(array, &DataType::Float64).map(|it| it.as_primitive::<Float64Type>().clone());
    let value = wide(value)?.iter().next().flatten().filter(|it| !it.is_nan());
    let bounds = wide(bounds)?;
    Ok(bounds.iter().map(|bound| Some(holds(bound.filter(|it| !it.is_nan())?, value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read() {
        let filter: Filter = "a >= 5 AND b = 'x and y''s' and c is not NULL".parse().expect("a filter");
        let expected = [
            ("a", Test::Compare(Comparison::GreaterOrEqual, "5".into())),
            ("b", Test::Compare(Comparison::Equal, "x and y's".into())),
            ("c", Test::IsNotNull),
        ];
        let expected = expected.map(|(column, test)| Term { column: column.into(), test });
        assert_eq!(filter.terms, expected);
        for wrong in ["", "a", "a >", "> 5", "a >= 5 and"] {
            wrong.parse::<Filter>().expect_err(wrong);
        }
    }
}
