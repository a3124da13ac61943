//! Names for what only the store knows. The model says `<task 3>` or `<time 7 + 60 s>`; the first real value met under
//! a name is bound to it, and every later one must be the same.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use serde_json::{Value as Json, json};
use waybill_kernel::Time;

use crate::support::NOBODY;

pub fn task(number: usize) -> Json {
    json!(format!("<task {number}>"))
}

pub fn receipt(number: usize) -> Json {
    json!(format!("<receipt {number}>"))
}

pub fn lease(number: usize) -> Json {
    json!(format!("<lease {number}>"))
}

/// A receipt's hash: always the same, and equal for equal proofs.
pub fn hash(receipt: usize) -> Json {
    json!(format!("<hash {receipt}>"))
}

/// What the model has no opinion on.
pub fn anything() -> Json {
    json!(ANYTHING)
}

const ANYTHING: &str = "<anything>";

pub fn cursor(number: usize) -> Json {
    json!(format!("<cursor {number}>"))
}

/// The time of a step, or so many seconds later. All that one step writes bears one time.
pub fn time(step: usize, plus_s: i64) -> Json {
    json!(format!("<time {step} + {plus_s} s>"))
}

#[derive(Default)]
pub struct Names {
    bound: HashMap<String, String>,
    times: HashMap<usize, Time>,
    /// When each step began and ended, on the store's clock.
    pub spans: Vec<(Time, Time)>,
}

impl Names {
    /// The input with real values. A task that was never made has an id that nobody has.
    pub fn fill(&self, input: &Json) -> Json {
        match input {
            Json::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect(),
            Json::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Json::String(text) if is_name(text) => json!(self.bound.get(text).map_or(NOBODY, String::as_str)),
            other => other.clone(),
        }
    }

    /// What the store calls it, if it is known yet.
    pub fn value(&self, name: &Json) -> Option<&str> {
        self.bound.get(name.as_str()?).map(String::as_str)
    }

    /// The same fields and values, where a name stands for its value.
    pub fn check(&mut self, path: &str, expected: &Json, actual: &Json) -> anyhow::Result<()> {
        match (expected, actual) {
            (Json::Object(wanted), Json::Object(found)) => {
                for name in wanted.keys().chain(found.keys()) {
                    let field = format!("{path}.{name}");
                    let wanted =
                        wanted.get(name).with_context(|| format!("{field} is not expected: {}", found[name]))?;
                    let found = found.get(name).with_context(|| format!("{field} is missing, expected {wanted}"))?;
                    self.check(&field, wanted, found)?;
                }
                Ok(())
            }
            (Json::Array(wanted), Json::Array(found)) => {
                for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                    self.check(&format!("{path}[{index}]"), wanted, found)?;
                }
                ensure!(wanted.len() == found.len(), "{path} has {} items, expected {}", found.len(), wanted.len());
                Ok(())
            }
            (Json::String(name), _) if name == ANYTHING => Ok(()),
            (Json::String(name), Json::String(value)) if is_name(name) => self.bind(path, name, value),
            _ if expected == actual => Ok(()),
            _ => bail!("{path} is {actual}, expected {expected}"),
        }
    }

    fn bind(&mut self, path: &str, name: &str, value: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = name.trim_matches(['<', '>']).split(' ').collect();
        if let ["time", step, "+", seconds, "s"] = words[..] {
            return self.bind_time(path, step.parse()?, seconds.parse()?, value);
        }
        if let Some(known) = self.bound.get(name) {
            ensure!(known == value, "{path} is {value}, expected {name}, which is {known}");
            return Ok(());
        }
        // The same page read twice gives the same cursor, and the same words have the same hash; ids are nobody else's.
        if !["cursor", "hash"].contains(&words[0])
            && let Some((other, _)) = self.bound.iter().find(|(_, known)| *known == value)
        {
            bail!("{path} is {value}, which is {other}, expected the new {name}");
        }
        self.bound.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn bind_time(&mut self, path: &str, step: usize, plus_s: i64, value: &str) -> anyhow::Result<()> {
        let shown: Time = serde_json::from_value(json!(value))?;
        let time = Time::from_micros(shown.micros() - plus_s * 1_000_000);
        let (began, ended) = self.spans[step];
        ensure!(
            began < time && time < ended,
            "{path} is {value}, expected step {step} + {plus_s} s, {began} to {ended}"
        );
        let known = *self.times.entry(step).or_insert(time);
        ensure!(known == time, "{path} is {value}, expected {plus_s} s after the other times of step {step}, {known}");
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with('<') && text.ends_with('>')
}

#[test]
fn a_name_means_one_value_and_a_value_has_one_name() {
    let mut names = Names { spans: vec![(Time::from_micros(10), Time::from_micros(20))], ..Names::default() };
    let mut check = |expected: Json, actual: Json| names.check("it", &expected, &actual).is_ok();
    assert!(check(json!([task(0), task(1)]), json!(["a", "b"])));
    assert!(check(json!({ "x": task(1) }), json!({ "x": "b" })));
    assert!(!check(task(1), json!("a")));
    assert!(!check(task(2), json!("a")));
    assert!(!check(json!({ "x": 1 }), json!({ "x": 1, "y": 1 })));
    assert!(!check(json!({ "x": 1 }), json!({})));
    assert!(!check(json!([1]), json!([1, 2])));
    assert!(check(anything(), json!(7)) && check(anything(), json!("a")));
    assert!(check(json!([hash(0), hash(1)]), json!(["h", "h"])) && !check(hash(0), json!("i")));
    assert!(check(time(0, 0), json!(Time::from_micros(15))));
    assert!(check(time(0, 1), json!(Time::from_micros(1_000_015))));
    assert!(!check(time(0, 0), json!(Time::from_micros(16))));
    assert!(!check(time(0, 0), json!(Time::from_micros(20))));
}
