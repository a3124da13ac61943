//! Payload templates: `{{now}}`, `{{schedule_id}}` and `{{run_at}}` in the strings of a JSON value. Names of fields,
//! numbers and everything else stay as they are.

use serde_json::Value as Json;

const NAMES: [&str; 3] = ["now", "schedule_id", "run_at"];

/// What the names stand for at one firing.
pub struct Values<'a> {
    pub now: &'a str,
    pub schedule_id: &'a str,
    pub run_at: &'a str,
}

impl Values<'_> {
    fn of(&self, name: &str) -> Option<&str> {
        match name {
            "now" => Some(self.now),
            "schedule_id" => Some(self.schedule_id),
            "run_at" => Some(self.run_at),
            _ => None,
        }
    }
}

/// A part of a text: as it is, or a name between braces.
enum Part<'a> {
    Plain(&'a str),
    Name(&'a str),
}

/// Refuses a template that could not be rendered in full.
pub fn check(template: &Json) -> Result<(), String> {
    match template {
        Json::String(text) => check_text(text),
        Json::Array(items) => items.iter().try_for_each(check),
        Json::Object(fields) => fields.values().try_for_each(check),
        _ => Ok(()),
    }
}

fn check_text(text: &str) -> Result<(), String> {
    let known = NAMES.map(|name| format!("{{{{{name}}}}}")).join(", ");
    for part in parts(text) {
        match part {
            Part::Name(name) if !NAMES.contains(&name) => {
                return Err(format!("payload_template names {{{{{name}}}}}; there are only {known}."));
            }
            Part::Plain(plain) if plain.contains("{{") => {
                return Err(format!("payload_template has {{{{ without }}}}; names are written like {known}."));
            }
            _ => {}
        }
    }
    Ok(())
}

pub fn render(template: &Json, values: &Values) -> Json {
    match template {
        Json::String(text) => Json::String(render_text(text, values)),
        Json::Array(items) => items.iter().map(|item| render(item, values)).collect(),
        Json::Object(fields) => {
            Json::Object(fields.iter().map(|(name, value)| (name.clone(), render(value, values))).collect())
        }
        other => other.clone(),
    }
}

fn render_text(text: &str, values: &Values) -> String {
    let rendered = |part| match part {
        Part::Plain(plain) => plain.to_owned(),
        Part::Name(name) => values.of(name).map_or_else(|| format!("{{{{{name}}}}}"), str::to_owned),
    };
    parts(text).map(rendered).collect()
}

/// Values are put in once: what they contain is not looked at again.
fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(open) = rest.find("{{") else { return Some(Part::Plain(std::mem::take(&mut rest))) };
        if open > 0 {
            let (plain, after) = rest.split_at(open);
            rest = after;
            return Some(Part::Plain(plain));
        }
        let Some(close) = rest.find("}}") else { return Some(Part::Plain(std::mem::take(&mut rest))) };
        let name = rest[2..close].trim();
        rest = &rest[close + 2..];
        Some(Part::Name(name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VALUES: Values = Values { now: "N", schedule_id: "{{now}}", run_at: "R" };

    #[test]
    fn names_are_replaced_in_strings_and_nowhere_else() {
        let template = json!({
            "{{now}}": "at {{now}}, for {{run_at}}{{ run_at }}",
            "deep": [{"id": "{{schedule_id}}"}, 7, null, true, "{now} }} {", ""],
        });
        check(&template).unwrap();
        let expected = json!({
            "{{now}}": "at N, for RR",
            "deep": [{"id": "{{now}}"}, 7, null, true, "{now} }} {", ""],
        });
        assert_eq!(render(&template, &VALUES), expected);
        assert_eq!(render(&json!("é{{now}}é"), &VALUES), json!("éNé"));
    }

    #[test]
    fn what_could_not_be_rendered_is_refused() {
        for text in ["{{then}}", "{{}}", "{{NOW}}", "a {{now", "{{now}} and {{", "{{now}", "{{{now}}}", "{{now}}{{x}}"]
        {
            assert!(check(&json!([{ "a": text }])).is_err(), "{text}");
        }
        assert!(check(&json!("{{then}}")).unwrap_err().contains("{{then}}"));
    }
}
