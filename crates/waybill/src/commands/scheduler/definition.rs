//! What `schedule.create` asks for, checked so that whatever is kept can fire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::cron::{self, Cron};
use super::rules::{Misfire, Timing};
use super::template;

const NAME_CHARS_MAX: usize = 200;
const TYPE_CHARS_MAX: usize = 200;
const WORDS_MAX: usize = 64;
/// Ten years.
const INTERVAL_S_MAX: i64 = 315_360_000;
/// A day: more is another schedule.
const JITTER_S_MAX: i64 = 86_400;
const UTC: &str = "UTC";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub name: String,
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron_expr: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    pub task_template: TaskTemplate,
    #[serde(default)]
    pub misfire_policy: Misfire,
    #[serde(default)]
    pub jitter_seconds: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Interval,
    Cron,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub payload_template: Json,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirements: Option<Requirements>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    #[serde(default)]
    pub capabilities: Vec<String>,
    #[serde(default)]
    pub tags: Vec<String>,
}

impl Definition {
    /// The definition and its first run after `now_s`, or why it could never fire.
    pub fn read(payload: &Json, now_s: i64) -> Result<(Self, i64), String> {
        let definition: Definition = serde_json::from_value(payload.clone())
            .map_err(|error| format!("The payload of schedule.create is not understood: {error}."))?;
        definition.check()?;
        let next = definition.timing(now_s)?.next_after(now_s);
        let next = next.ok_or_else(|| "The schedule would never run: no date matches cron_expr.".to_owned())?;
        Ok((definition, next))
    }

    fn check(&self) -> Result<(), String> {
        length("name", &self.name, NAME_CHARS_MAX)?;
        length("task_template.type", &self.task_template.kind, TYPE_CHARS_MAX)?;
        if !(0..=JITTER_S_MAX).contains(&self.jitter_seconds) {
            return Err(format!("jitter_seconds must be between 0 and {JITTER_S_MAX}."));
        }
        for words in self.task_template.requirements.iter().flat_map(|needs| [&needs.capabilities, &needs.tags]) {
            if words.len() > WORDS_MAX || words.iter().any(String::is_empty) {
                return Err(format!("requirements must be at most {WORDS_MAX} words, none of them empty."));
            }
        }
        template::check(&self.task_template.payload_template)
    }

    /// When it runs; intervals are counted from `anchor_s`.
    pub fn timing(&self, anchor_s: i64) -> Result<Timing, String> {
        let zone = self.timezone.as_deref().unwrap_or(UTC);
        match (self.mode, self.interval_seconds, &self.cron_expr) {
            (Mode::Interval, Some(seconds), None) => {
                cron::zone(zone)?;
                if !(1..=INTERVAL_S_MAX).contains(&seconds) {
                    return Err(format!("interval_seconds must be between 1 and {INTERVAL_S_MAX}."));
                }
                Ok(Timing::Every { seconds, anchor_s })
            }
            (Mode::Cron, None, Some(expression)) => Ok(Timing::Cron(Cron::new(expression, zone)?)),
            (Mode::Interval, ..) => {
                Err("A schedule of mode interval has interval_seconds and no cron_expr.".to_owned())
            }
            (Mode::Cron, ..) => Err("A schedule of mode cron has cron_expr and no interval_seconds.".to_owned()),
        }
    }
}

/// As in keys and results: UTC, whole seconds, Z.
pub fn iso(at_s: i64) -> String {
    Timestamp::from_second(at_s).map_or_else(|_| format!("@{at_s}"), |at| at.to_string())
}

/// What makes a firing one of its kind.
pub fn firing_key(schedule_id: &str, run_s: i64) -> String {
    format!("schedule:{schedule_id}:{}", iso(run_s))
}

fn length(field: &str, text: &str, max: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max {
        return Err(format!("{field} must have 1 to {max} characters."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW_S: i64 = 1_798_761_600;

    fn with(changes: &[(&str, Json)]) -> Json {
        let mut payload = json!({
            "name": "n", "mode": "interval", "interval_seconds": 60, "task_template": {"type": "echo"},
        });
        for (name, value) in changes {
            match value {
                Json::Null => drop(payload.as_object_mut().unwrap().remove(*name)),
                value => payload[*name] = value.clone(),
            }
        }
        payload
    }

    #[test]
    fn a_schedule_that_can_fire_is_kept_with_its_first_run() {
        assert_eq!(Definition::read(&with(&[]), NOW_S).unwrap().1, NOW_S + 60);
        let cron = [("mode", json!("cron")), ("interval_seconds", Json::Null), ("cron_expr", json!("0 12 * * *"))];
        let (daily, next) = Definition::read(&with(&cron), NOW_S).unwrap();
        assert_eq!((daily.misfire_policy, next), (Misfire::CatchUpOne, NOW_S + 12 * 3600));
        let zoned = [&cron[..], &[("timezone", json!("America/New_York"))][..]].concat();
        assert_eq!(Definition::read(&with(&zoned), NOW_S).unwrap().1, NOW_S + 17 * 3600);
    }

    #[test]
    fn a_schedule_that_cannot_fire_is_refused_by_name() {
        let cron = |expression: &str| {
            vec![("mode", json!("cron")), ("interval_seconds", Json::Null), ("cron_expr", json!(expression))]
        };
        let cases: Vec<(Vec<(&str, Json)>, &str)> = vec![
            (vec![("interval_seconds", json!(0))], "interval_seconds"),
            (vec![("interval_seconds", json!(-5))], "interval_seconds"),
            (vec![("interval_seconds", json!(i64::MAX))], "interval_seconds"),
            (vec![("interval_seconds", json!(1.5))], "not understood"),
            (vec![("interval_seconds", Json::Null)], "interval_seconds"),
            (vec![("cron_expr", json!("* * * * *"))], "no cron_expr"),
            (cron("0 0 30 2 *"), "never run"),
            (cron("nonsense"), "cron_expr"),
            (vec![("timezone", json!("Mars/Olympus"))], "time zone"),
            (vec![("mode", json!("lunar"))], "lunar"),
            (vec![("misfire_policy", json!("panic"))], "panic"),
            (vec![("jitter_seconds", json!(-1))], "jitter_seconds"),
            (vec![("name", json!(""))], "name"),
            (vec![("task_template", json!({"type": ""}))], "type"),
            (vec![("task_template", json!({"type": "a", "payload_template": "{{who}}"}))], "{{who}}"),
            (vec![("task_template", json!({"type": "a", "requirements": {"capabilities": [""]}}))], "requirements"),
            (vec![("surprise", json!(1))], "surprise"),
        ];
        for (changes, word) in cases {
            let error = Definition::read(&with(&changes), NOW_S).unwrap_err();
            assert!(error.contains(word), "{changes:?}: {error}");
        }
        assert!(Definition::read(&json!("x"), NOW_S).is_err());
    }

    #[test]
    fn a_key_names_the_second_in_utc() {
        assert_eq!(firing_key("s", NOW_S), "schedule:s:2027-01-01T00:00:00Z");
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
    }
}
