//! How a line looks: text for people, JSON for programs. What came from outside cannot end a line or begin another.

use std::cell::Cell;
use std::fmt::{self, Write};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use waybill_kernel::RequestId;

use crate::config::LogFormat;

/// A field that holds the sentence itself.
const MESSAGE: &str = "message";

/// What stands at the beginning of a line.
pub(super) struct Head<'a> {
    pub(super) at: Timestamp,
    pub(super) level: &'static str,
    pub(super) target: &'a str,
    pub(super) request: Option<&'a RequestId>,
}

/// Where the fields of a line go.
pub(super) trait Fields: Visit {
    /// The sentence of a line that has nothing else.
    fn sentence(&mut self, sentence: fmt::Arguments<'_>);
}

/// Writes one line, of the fields that `tell` gives.
pub(super) fn line(format: LogFormat, head: &Head<'_>, out: &mut String, tell: impl FnOnce(&mut dyn Fields)) {
    // Writing to a string does not fail.
    let _ = match format {
        LogFormat::Text => text(head, out, tell),
        LogFormat::Json => json(head, out, tell),
    };
    out.push('\n');
}

/// The time of day up to the second, as it is written.
type Second = [u8; SECOND_CHARS];
const SECOND_CHARS: usize = "1970-01-01T00:00:00".len();

/// Thousands of lines are of one second: its text is made once, and only the fraction for each of them.
fn stamp(at: Timestamp, out: &mut String) -> fmt::Result {
    thread_local! {
        static LAST: Cell<Option<(i64, Second)>> = const { Cell::new(None) };
    }
    let (second, fraction_us) = (at.as_second(), at.subsec_microsecond());
    let known = LAST.get().filter(|(last, _)| *last == second).map(|(_, text)| text);
    match known.as_ref().and_then(|text| std::str::from_utf8(text).ok()) {
        // Before 1970 a fraction counts backwards.
        Some(text) if fraction_us >= 0 => {
            out.push_str(text);
            let mut digits = *b".000000Z";
            let mut rest = fraction_us.unsigned_abs();
            for digit in digits[1..7].iter_mut().rev() {
                *digit += (rest % 10) as u8;
                rest /= 10;
            }
            out.push_str(std::str::from_utf8(&digits).unwrap_or_default());
            Ok(())
        }
        _ => {
            let from = out.len();
            write!(out, "{at:.6}")?;
            let text = out.as_bytes().get(from..from + SECOND_CHARS).and_then(|text| Second::try_from(text).ok());
            LAST.set(text.filter(|_| fraction_us >= 0).map(|text| (second, text)));
            Ok(())
        }
    }
}

fn text(head: &Head<'_>, out: &mut String, tell: impl FnOnce(&mut dyn Fields)) -> fmt::Result {
    stamp(head.at, out)?;
    write!(out, " {:>5} ", head.level)?;
    if let Some(id) = head.request {
        write!(out, "request{{id={id}}}: ")?;
    }
    write!(out, "{}:", head.target)?;
    // The sentence goes before the rest, wherever it comes.
    let sentence_at = out.len();
    tell(&mut TextFields { out, sentence_at });
    Ok(())
}

struct TextFields<'a> {
    out: &'a mut String,
    sentence_at: usize,
}

impl TextFields<'_> {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == MESSAGE {
            return self.sentence(value);
        }
        let _ = write!(self.out, " {}=", field.name()).and_then(|()| Escaped(self.out).write_fmt(value));
    }
}

impl Fields for TextFields<'_> {
    fn sentence(&mut self, sentence: fmt::Arguments<'_>) {
        let rest = self.out.split_off(self.sentence_at);
        self.out.push(' ');
        let _ = Escaped(self.out).write_fmt(sentence);
        self.out.push_str(&rest);
    }
}

impl Visit for TextFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            MESSAGE => self.add(field, format_args!("{value}")),
            _ => self.add(field, format_args!("{value:?}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

/// Control characters would end the line or move a terminal's cursor.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Nearly all of it is plain ASCII, which is told by its bytes alone.
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(char::is_control) {
            self.0.push_str(text);
            return Ok(());
        }
        for char in text.chars() {
            match char.is_control() {
                true => self.0.extend(char.escape_default()),
                false => self.0.push(char),
            }
        }
        Ok(())
    }
}

fn json(head: &Head<'_>, out: &mut String, tell: impl FnOnce(&mut dyn Fields)) -> fmt::Result {
    out.push_str("{\"timestamp\":\"");
    stamp(head.at, out)?;
    write!(out, "\",\"level\":\"{}\",\"target\":", head.level)?;
    quote(out, head.target);
    if let Some(id) = head.request {
        out.push_str(",\"request\":");
        quote(out, id.as_str());
    }
    out.push_str(",\"fields\":{");
    tell(&mut JsonFields { out, is_first: true });
    out.push_str("}}");
    Ok(())
}

struct JsonFields<'a> {
    out: &'a mut String,
    is_first: bool,
}

impl JsonFields<'_> {
    fn name(&mut self, field: &Field) -> &mut String {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
        quote(self.out, field.name());
        self.out.push(':');
        self.out
    }
}

impl Fields for JsonFields<'_> {
    fn sentence(&mut self, sentence: fmt::Arguments<'_>) {
        let _ = write!(self.out, "\"{MESSAGE}\":");
        quote(self.out, &sentence.to_string());
    }
}

impl Visit for JsonFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        quote(self.name(field), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        let _ = write!(self.name(field), "{value}");
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        let _ = write!(self.name(field), "{value}");
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let _ = write!(self.name(field), "{value}");
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // Not every float has a form in JSON.
        let _ = match value.is_finite() {
            true => write!(self.name(field), "{value}"),
            false => write!(self.name(field), "\"{value}\""),
        };
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        quote(self.name(field), &text);
    }
}

fn quote(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: LogFormat, sentence: &str) -> String {
        let id = RequestId::new("a-1");
        let head = Head { at: Timestamp::UNIX_EPOCH, level: "WARN", target: "there", request: Some(&id) };
        let mut out = String::new();
        line(format, &head, &mut out, |fields| fields.sentence(format_args!("{sentence}")));
        out
    }

    #[test]
    fn a_time_is_written_as_its_library_writes_it() {
        let nanos =
            [0, 1_000, 999_999_999, 1_000_000_000, 1_794_917_673_338_007_999, 1_794_917_673_999_999_500, -1_000];
        for at in nanos.map(|ns| Timestamp::from_nanosecond(ns).unwrap()) {
            for _ in 0..2 {
                let mut written = String::new();
                stamp(at, &mut written).unwrap();
                assert_eq!(written, format!("{at:.6}"));
            }
        }
    }

    #[test]
    fn what_came_from_outside_ends_no_line_and_begins_none() {
        let hostile = "so \"it\" is\n1970-01-01T00:00:00Z ERROR \u{1b}[2J";
        let text = written(LogFormat::Text, hostile);
        let expected = "1970-01-01T00:00:00.000000Z  WARN request{id=a-1}: there: so \"it\" is\\n1970-01-01T00:00:00Z ERROR \\u{1b}[2J\n";
        assert_eq!(text, expected);
        let json: serde_json::Value = serde_json::from_str(&written(LogFormat::Json, hostile)).unwrap();
        assert_eq!(json["fields"]["message"], hostile);
        assert_eq!(
            (&json["request"], &json["level"], &json["target"]),
            (&"a-1".into(), &"WARN".into(), &"there".into())
        );
    }
}
