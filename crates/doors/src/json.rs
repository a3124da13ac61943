//! Checks all JSON from the network, for every door and before any other parser: bounded in depth, strict about names, and without
//! building anything. It hands the text on, and each value is built once, where it is needed.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use waybill_kernel::{Error, Result};

/// Deeper JSON is refused: no honest request is deeper, and every later reader would have to survive it.
pub const DEPTH_MAX: usize = 64;

/// serde_json reads the text under such a name as raw JSON once more, outside of every bound.
const RESERVED: &str = "$serde_json::private::";

/// Up to this many names of one object are compared one by one, which is quicker than hashing a few.
const NAMES_COMPARED_MAX: usize = 16;

/// A text that holds one JSON value within the bounds.
#[derive(Debug)]
pub struct Checked<'a> {
    pub text: &'a str,
    /// The names of its fields, if it is an object.
    pub names: Option<Vec<Cow<'a, str>>>,
}

impl<'a> Checked<'a> {
    /// # Errors
    /// What is not UTF-8 or not JSON, too deep, or holds NUL, a reserved name, or a name twice in one object: serde_json
    /// would keep the last of the two, and which one the caller meant nobody knows.
    pub fn of(body: &'a [u8]) -> Result<Self> {
        Self::walked(body, DEPTH_MAX, false)
    }

    /// As `of`, for a body in which the request stands so much deeper.
    pub fn within(body: &'a [u8], depth_max: usize) -> Result<Self> {
        Self::walked(body, depth_max, false)
    }

    /// As `of`, but a value may hold NUL, as a name may not: for operations that have their own word for a text that they do
    /// not take, and say it of that text alone.
    pub fn with_nul(body: &'a [u8]) -> Result<Self> {
        Self::walked(body, DEPTH_MAX, true)
    }

    fn walked(body: &'a [u8], depth_max: usize, lets_nul: bool) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|_| Error::invalid("The body is not UTF-8."))?;
        let mut names = None;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let walk = Walk { room: depth_max, lets_nul, names: Some(&mut names) };
        let walked = walk.deserialize(&mut deserializer).and_then(|()| deserializer.end());
        walked.map_err(|error| Error::invalid(format!("The body cannot be read as JSON: {error}.")))?;
        Ok(Self { text: text.trim_ascii(), names })
    }
}

/// Walks through a value. `names` takes those of the outermost object.
struct Walk<'n, 'de> {
    /// How many more levels are allowed.
    room: usize,
    /// In values.
    lets_nul: bool,
    names: Option<&'n mut Option<Vec<Cow<'de, str>>>>,
}

impl Walk<'_, '_> {
    fn inside<E: serde::de::Error>(&self) -> std::result::Result<Self, E> {
        let room = self.room.checked_sub(1);
        let room = room.ok_or_else(|| E::custom(format!("it is nested more than {DEPTH_MAX} levels deep")))?;
        Ok(Self { room, lets_nul: self.lets_nul, names: None })
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, 'de> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<(), E> {
        if self.lets_nul { Ok(()) } else { refuse_nul(text) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<(), A::Error> {
        self.inside::<A::Error>()?;
        while items.next_element_seed(self.inside::<A::Error>()?)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> std::result::Result<(), A::Error> {
        let mut names = Names::default();
        while let Some(name) = fields.next_key_seed(Name)? {
            refuse_nul(&name)?;
            if name.starts_with(RESERVED) {
                return Err(A::Error::custom(format!("a name must not begin with {RESERVED}")));
            }
            if let Some(name) = names.add(name) {
                return Err(A::Error::custom(format!("{name:?} is given twice")));
            }
            fields.next_value_seed(self.inside::<A::Error>()?)?;
        }
        if let Some(outermost) = self.names {
            *outermost = Some(names.seen);
        }
        Ok(())
    }
}

fn refuse_nul<E: serde::de::Error>(text: &str) -> std::result::Result<(), E> {
    if text.contains('\0') { Err(E::custom("a text holds a NUL character")) } else { Ok(()) }
}

/// The name of a field, borrowed where it is spelled without escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> std::result::Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> std::result::Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// The names of one object.
#[derive(Default)]
struct Names<'de> {
    seen: Vec<Cow<'de, str>>,
    /// The same, once there are many.
    set: HashSet<Cow<'de, str>>,
}

impl<'de> Names<'de> {
    /// Gives the name back if the object has it already.
    fn add(&mut self, name: Cow<'de, str>) -> Option<Cow<'de, str>> {
        if self.seen.len() < NAMES_COMPARED_MAX {
            if self.seen.contains(&name) {
                return Some(name);
            }
        } else {
            if self.set.is_empty() {
                self.set.extend(self.seen.iter().cloned());
            }
            if !self.set.insert(name.clone()) {
                return Some(name);
            }
        }
        self.seen.push(name);
        None
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;

    use super::*;

    #[test]
    fn what_is_passed_is_the_text_itself_with_the_names_of_its_fields() {
        let checked = Checked::of(br#" {"a": {"b": [1, -2, 2.5, "x", null, true]}, "c\u0064": 1} "#).unwrap();
        assert_eq!(checked.text, r#"{"a": {"b": [1, -2, 2.5, "x", null, true]}, "c\u0064": 1}"#);
        assert_eq!(checked.names.unwrap(), ["a", "cd"]);
        assert!(Checked::of(b"[1]").unwrap().names.is_none());
        let many: String = (0..100).map(|number| format!("\"{number}\":0,")).collect();
        assert_eq!(Checked::of(format!("{{{many}\"x\":1}}").as_bytes()).unwrap().names.unwrap().len(), 101);
        assert!(Checked::of(format!("{{{many}\"99\":1}}").as_bytes()).is_err());
    }

    #[test]
    fn nul_stands_in_values_where_it_is_let_and_in_names_nowhere() {
        let good: [&[u8]; 3] = [br#""\u0000""#, br#"{"a":"x\u0000y"}"#, br#"{"a":[{"b":"\u0000"}]}"#];
        for body in good {
            assert!(Checked::of(body).is_err(), "{}", String::from_utf8_lossy(body));
            assert!(Checked::within(body, DEPTH_MAX).is_err(), "{}", String::from_utf8_lossy(body));
            assert_eq!(Checked::with_nul(body).unwrap().text.as_bytes(), body);
        }
        let deep = [b"[".repeat(DEPTH_MAX + 1), b"]".repeat(DEPTH_MAX + 1)].concat();
        // A byte that is zero is not JSON.
        let bad: [&[u8]; 4] = [br#"{"a\u0000":1}"#, br#"{"a":[{"\u0000":1}]}"#, b"{\"a\":\"\0\"}", &deep];
        for body in bad {
            let refused = Checked::with_nul(body).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidRequest, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_breaks_a_bound_is_refused() {
        let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        Checked::of(&nested(DEPTH_MAX)).unwrap();
        let raw = br#"{"payload": {"$serde_json::private::RawValue": "[[1]]"}}"#;
        let escaped = br#"{"\u0024serde_json::private::RawValue": "[[1]]"}"#;
        let bad: [&[u8]; 12] = [
            b"{",
            b"{} x",
            b"",
            b"{\"a\":1,\"a\":2}",
            b"{\"x\":{\"a\":1,\"\\u0061\":2}}",
            b"\xff",
            b"{\"a\":1e999}",
            b"{\"a\":\"\\u0000\"}",
            b"{\"\\u0000\":1}",
            &nested(DEPTH_MAX + 1),
            raw,
            escaped,
        ];
        for body in bad {
            assert_eq!(
                Checked::of(body).unwrap_err().code(),
                Code::InvalidRequest,
                "{}",
                String::from_utf8_lossy(body)
            );
        }
    }
}
