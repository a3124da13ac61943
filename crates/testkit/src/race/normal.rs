//! What a run left behind, in words that do not differ between runs: ids by the order in which they are met, times as
//! times, secrets as secrets.

use std::collections::HashMap;

use serde_json::Value as Json;
use waybill_kernel::id::Uuid;

use super::watch::Contents;

/// Columns that say when and in which order, which is what a race may change.
const DROPPED: &[&str] = &["seq", "xact", "tenant", "part"];
/// Numbers that the database gives out. `words` has them as well.
const NUMBERS: &[&str] = &[
    "id",
    "project",
    "project_id",
    "product",
    "agent",
    "sender",
    "from_agent",
    "to_agent",
    "message",
    "message_id",
    "intro_message_id",
    "reservation",
    "ref",
    "row",
    "reply_to",
    "notice_id",
    "attachment",
];
const SECRET: &[&str] = &["hash", "key", "secret", "registration_token", "join_secret"];

/// Nothing a table holds is a time in µs below this: September 2001.
const TIME_US_MIN: i64 = 1_000_000_000_000_000;

/// Around an id whose name is not yet given.
const OPEN: char = '⟨';
const CLOSE: char = '⟩';

/// Both answers, then each row that came (+) or went (-).
pub(super) fn describe(
    label: &str,
    answers: &[Json; 2],
    before: &Contents,
    after: &Contents,
) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for (sign, (table, row)) in
        after.difference(before).map(|row| ('+', row)).chain(before.difference(after).map(|row| ('-', row)))
    {
        let row: Json = serde_json::from_str(row)?;
        rows.push(format!("{sign} {table} {}", scrub(label, "", &row)));
    }
    let answers = answers.iter().map(|answer| scrub(label, "", answer)).collect::<Vec<_>>();
    Ok(name_ids(&answers, rows))
}

fn scrub(label: &str, field: &str, value: &Json) -> String {
    match value {
        Json::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !DROPPED.contains(&name.as_str()));
            let fields: Vec<_> = kept.map(|(name, value)| format!("{name}={}", scrub(label, name, value))).collect();
            format!("{{{}}}", fields.join(" "))
        }
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| scrub(label, field, item)).collect();
            format!("[{}]", items.join(" "))
        }
        Json::String(_) if SECRET.contains(&field) => "secret".to_owned(),
        Json::Number(_) if field == "uptime" => "time".to_owned(),
        Json::Number(_) if NUMBERS.contains(&field) => "number".to_owned(),
        Json::String(_) if field == "words" => "words".to_owned(),
        // Under a key of mail there may be a number alone.
        Json::String(text) if field == "answer" && text.parse::<i64>().is_ok() => "number".to_owned(),
        // A text that is JSON itself has ids and times in it as well.
        Json::String(text) if text.starts_with('{') => match serde_json::from_str(text) {
            Ok(inner) => scrub(label, field, &inner),
            Err(_) => scrub_text(label, text),
        },
        Json::String(text) => scrub_text(label, text),
        Json::Number(number) if number.as_i64().is_some_and(|number| number >= TIME_US_MIN) => "time".to_owned(),
        other => other.to_string(),
    }
}

fn scrub_text(label: &str, text: &str) -> String {
    if let Some(id) = id(text) {
        return format!("{OPEN}{id}{CLOSE}");
    }
    // The account in it is the tenant's.
    if text.starts_with("arn:aws:") {
        return "arn".to_owned();
    }
    let is_time = text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z');
    if is_time { "time".to_owned() } else { format!("{:?}", text.replace(label, "label")) }
}

/// A UUID as the API and as PostgreSQL writes it, or a key id.
fn id(text: &str) -> Option<String> {
    if let Some(hex) = text.strip_prefix("\\x") {
        return Uuid::try_parse(hex)
            .map_or_else(|_| Some(hex.to_owned()), |id| Some(id.to_string()))
            .filter(|id| !id.is_empty());
    }
    if let (36, Ok(id)) = (text.len(), Uuid::try_parse(text)) {
        return Some(id.to_string());
    }
    let is_key_id = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_key_id.then(|| text.to_owned())
}

/// Ids are numbered as they are met: first in the answers, then row by row, where the next row is the one that comes first
/// by what is known of it.
fn name_ids(answers: &[String], mut rows: Vec<String>) -> String {
    let mut names = HashMap::new();
    let mut lines: Vec<String> = answers.iter().map(|answer| rename(answer, &mut names)).collect();
    while !rows.is_empty() {
        rows.sort_by_cached_key(|row| (known(row, &names), row.clone()));
        lines.push(rename(&rows.remove(0), &mut names));
    }
    lines[answers.len()..].sort();
    lines.join("\n")
}

fn known(row: &str, names: &HashMap<String, usize>) -> String {
    map_ids(row, |id| names.get(id).map_or_else(|| "#?".to_owned(), |name| format!("#{name}")))
}

fn rename(row: &str, names: &mut HashMap<String, usize>) -> String {
    map_ids(row, |id| {
        let next = names.len();
        format!("#{}", names.entry(id.to_owned()).or_insert(next))
    })
}

fn map_ids(row: &str, mut name: impl FnMut(&str) -> String) -> String {
    let mut parts = row.split(OPEN);
    let mut mapped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (id, rest) = part.split_once(CLOSE).unwrap_or((part, ""));
        mapped.push_str(&name(id));
        mapped.push_str(rest);
    }
    mapped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn contents(rows: &[Json]) -> Contents {
        rows.iter().map(|row| ("notes".to_owned(), row.to_string())).collect()
    }

    fn left(ids: [&str; 2], times: [i64; 2]) -> String {
        let answers = [json!({ "id": ids[0] }), json!({ "error": "forbidden" })];
        let hex = |id: &str| format!("\\x{}", id.replace('-', ""));
        let rows = [
            json!({ "id": hex(ids[0]), "other": hex(ids[1]), "at": times[0], "seq": times[1] % 7, "by": null }),
            json!({ "id": hex(ids[1]), "other": null, "at": null, "by": "w7" }),
        ];
        describe("w7", &answers, &Contents::new(), &contents(&rows)).unwrap()
    }

    #[test]
    fn ids_and_times_do_not_matter_and_what_they_point_at_does() {
        let (a, b) = ("0198c0de-0000-7000-8000-00000000000a", "0198c0de-0000-7000-8000-00000000000b");
        let one = left([a, b], [1_700_000_000_000_000, 1]);
        assert_eq!(one, left([b, a], [1_800_000_000_000_000, 2]));
        assert_ne!(one, left([a, a], [1_700_000_000_000_000, 1]));
        assert_ne!(one, left([a, b], [1, 1]));
        assert!(one.contains("\"label\"") && !one.contains("w7"), "{one}");
    }

    #[test]
    fn rows_that_went_are_told_from_rows_that_came() {
        let (none, some) = (Contents::new(), contents(&[json!({ "a": 1 })]));
        let answers = [Json::Null, Json::Null];
        let (came, went) =
            (describe("x", &answers, &none, &some).unwrap(), describe("x", &answers, &some, &none).unwrap());
        assert!(came.ends_with("+ notes {a=1}") && went.ends_with("- notes {a=1}"));
    }
}
