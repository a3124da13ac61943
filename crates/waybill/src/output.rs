//! What commands print: data to stdout, notes to stderr. Control characters never reach a terminal.

use std::io::Write;

use comfy_table::Table;
use serde_json::Value as Json;
use waybill_kernel::{Error, Result};

pub fn json(value: &Json) -> Result<()> {
    line(&value.to_string())
}

pub fn line(text: &str) -> Result<()> {
    written(writeln!(std::io::stdout().lock(), "{text}"))
}

pub fn note(text: &str) -> Result<()> {
    written(writeln!(std::io::stderr().lock(), "{text}"))
}

/// A line at a terminal that the next one replaces.
pub fn status(text: &str) {
    let mut terminal = std::io::stderr().lock();
    let _ = write!(terminal, "\r{text}\x1b[K").and_then(|()| terminal.flush());
}

pub fn table(columns: &[&str], rows: &[Json]) -> Result<()> {
    if rows.is_empty() {
        return note("There are none.");
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(columns);
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(&row[*column])));
    }
    line(&table.to_string())
}

/// An answer: as it is where JSON is asked for, else as a sentence.
pub fn answer(as_json: bool, answer: &Json, text: &str) -> Result<()> {
    if as_json { json(answer) } else { line(text) }
}

/// An answer as it is where JSON is asked for, else the list that it has under `name` as a table.
pub fn list(as_json: bool, answer: &Json, name: &str, columns: &[&str]) -> Result<()> {
    if as_json { json(answer) } else { table(columns, answer[name].as_array().map_or(&[], Vec::as_slice)) }
}

/// Where a list did not come to its end: how to go on. `page` is the answer that has it.
pub fn more(page: &Json) -> Result<()> {
    match &page["next_cursor"] {
        Json::Null => Ok(()),
        cursor => note(&format!("There are more: --cursor {}", cell(cursor))),
    }
}

/// One thing, a fact on each line.
pub fn facts(facts: &[(String, Json)]) -> Result<()> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    for (name, value) in facts {
        table.add_row([name.clone(), cell(value)]);
    }
    line(&table.to_string())
}

/// One value as people read it.
pub fn cell(value: &Json) -> String {
    let text = match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// A reader that has heard enough (`| head`) is no error.
fn written(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::internal(error)),
        _ => Ok(()),
    }
}
