//! The query of an address: each name at most once, and none that the endpoint does not know.

use std::collections::BTreeMap;

use percent_encoding::percent_decode;
use waybill_kernel::{Error, Result};

/// More than any endpoint takes.
const PAIRS_MAX: usize = 16;

#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn read(query: Option<&str>, known: &[&str]) -> Result<Self> {
        let mut pairs = BTreeMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).take(PAIRS_MAX) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if !known.contains(&name.as_str()) {
                return Err(Error::invalid(format!("There is no parameter {name:?} here.")));
            }
            if pairs.insert(name, value).is_some() {
                return Err(Error::invalid("A parameter is given twice."));
            }
        }
        Ok(Self(pairs))
    }

    /// None when it is not given, or empty.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).filter(|text| !text.is_empty())
    }

    pub fn required(&mut self, name: &str) -> Result<String> {
        self.text(name).ok_or_else(|| Error::invalid(format!("The parameter {name} is missing.")))
    }

    pub fn number(&mut self, name: &str) -> Result<Option<usize>> {
        let text = self.text(name);
        let number = text.map(|text| text.parse()).transpose();
        number.map_err(|_| Error::invalid(format!("The parameter {name} must be a number.")))
    }

    pub fn flag(&mut self, name: &str) -> Result<bool> {
        match self.text(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => Err(Error::invalid(format!("The parameter {name} must be true or false."))),
        }
    }
}

fn decoded(text: &str) -> Result<String> {
    let spaced = text.replace('+', " ");
    let text = percent_decode(spaced.as_bytes()).decode_utf8();
    let text = text.map_err(|_| Error::invalid("A parameter is not UTF-8."))?;
    if text.contains('\0') {
        return Err(Error::invalid("A parameter holds a NUL."));
    }
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_unknown_or_repeated_ones_are_refused() {
        let mut query = Query::read(Some("q=a+b%20c%26&limit=5&from="), &["q", "limit", "from", "topic"]).unwrap();
        assert_eq!(query.text("q").as_deref(), Some("a b c&"));
        assert_eq!((query.number("limit").unwrap(), query.text("from"), query.text("topic")), (Some(5), None, None));
        for bad in ["x=1", "q=1&q=2", "q=%ff", "q=%00"] {
            assert!(Query::read(Some(bad), &["q"]).is_err(), "{bad}");
        }
        assert!(Query::read(Some("limit=five"), &["limit"]).unwrap().number("limit").is_err());
        assert!(Query::read(None, &[]).unwrap().required("q").is_err());
        assert!(Query::read(Some("f=yes"), &["f"]).unwrap().flag("f").is_err());
    }
}
