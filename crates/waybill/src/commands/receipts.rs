//! `waybill receipts …`: prove that the ledger is whole, here or from a file on a machine that has never seen the server.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};
use waybill_tasks::receipts::chain::{Finding, Sealed, Verifier};

use super::session::Session;
use crate::cli::{Reach, Receipts};
use crate::output;

/// Receipts asked for at a time.
const PAGE: i64 = 500;
/// Between two words about how far it has come.
const PROGRESS_RECEIPTS: u64 = 10_000;
/// Findings that are shown; all are counted.
const FINDINGS_MAX: usize = 100;
/// The longest line of an export: a receipt with the largest body, every byte of it escaped, and room.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// One line of an export.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Receipt(Box<Sealed>),
    End(End),
}

/// The last line: without it the file was cut off.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    receipts: u64,
    erased: u64,
    head: String,
}

pub async fn run(command: Receipts) -> Result<()> {
    match command {
        Receipts::Verify { file: Some(file), head, reach } => {
            let mut check = Check::new(head, !reach.json);
            check.file(&file)?;
            check.conclude(reach.json)
        }
        Receipts::Verify { file: None, head, reach } => {
            let mut check = Check::new(head, !reach.json);
            server(&reach, &mut check, &mut |_| Ok(())).await?;
            check.conclude(reach.json)
        }
        Receipts::Export { file, reach } => export(file.as_deref(), &reach).await,
    }
}

/// Everything the server has sealed when this begins, checked and handed on.
async fn server(reach: &Reach, check: &mut Check, hand_on: &mut dyn FnMut(Sealed) -> Result<()>) -> Result<()> {
    let session = Session::open(reach).await?;
    let outcome = pages(&session, check, hand_on).await;
    session.close().await;
    outcome
}

async fn pages(session: &Session, check: &mut Check, hand_on: &mut dyn FnMut(Sealed) -> Result<()>) -> Result<()> {
    let mut until = None;
    loop {
        let after = check.verifier.position();
        let mut page = session.call("export_chain", json!({ "after": after, "limit": PAGE })).await?;
        check.unsealed.get_or_insert_with(|| page["unsealed"].as_i64().unwrap_or(0));
        let until = *until.get_or_insert_with(|| page["head"].as_i64().unwrap_or(0));
        let receipts: Vec<Sealed> = serde_json::from_value(page["receipts"].take()).map_err(Error::internal)?;
        let empty = receipts.is_empty();
        for sealed in receipts.into_iter().take_while(|sealed| sealed.position <= until) {
            check.next(&sealed)?;
            hand_on(sealed)?;
        }
        if empty || check.verifier.position() >= until {
            return Ok(());
        }
    }
}

async fn export(file: Option<&Path>, reach: &Reach) -> Result<()> {
    let mut check = Check::new(None, !reach.json);
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        let mut out = BufWriter::new(io::stdout().lock());
        write_all(&mut out, reach, &mut check).await.map_err(|error| unwritable(Path::new("stdout"), error))?;
        return check.found_nothing();
    };
    // All or nothing: whoever finds the file finds a whole one.
    let part = path.with_extension("part");
    let cannot = |error: io::Error| unwritable(path, Error::internal(error));
    let mut out = BufWriter::new(File::create(&part).map_err(cannot)?);
    let written = write_all(&mut out, reach, &mut check).await;
    let kept = written.and_then(|()| {
        let file = out.into_inner().map_err(|error| cannot(error.into_error()))?;
        file.sync_all().and_then(|()| std::fs::rename(&part, path)).map_err(cannot)
    });
    if let Err(error) = kept {
        let _ = std::fs::remove_file(&part);
        return Err(error);
    }
    check.conclude(reach.json)
}

async fn write_all(out: &mut impl Write, reach: &Reach, check: &mut Check) -> Result<()> {
    let mut write = |line: &Line| -> Result<()> {
        let text = serde_json::to_string(line).map_err(Error::internal)?;
        writeln!(out, "{text}").map_err(Error::internal)
    };
    server(reach, check, &mut |sealed| write(&Line::Receipt(Box::new(sealed)))).await?;
    let verifier = &check.verifier;
    write(&Line::End(End { receipts: verifier.receipts, erased: verifier.erased, head: verifier.head() }))?;
    out.flush().map_err(Error::internal)
}

fn unwritable(path: &Path, error: Error) -> Error {
    if error.code() != Code::Internal {
        return error;
    }
    let because = error.cause().unwrap_or_default().to_owned();
    Error::new(Code::PathUnusable, format!("{} cannot be written.", path.display())).because(because)
}

/// A check under way.
struct Check {
    verifier: Verifier,
    findings: Vec<Finding>,
    faults: u64,
    /// A link that must be met, if one was given.
    wanted: Option<String>,
    /// What is wrong with the chain or the file as a whole.
    whole: Vec<String>,
    /// Receipts that the server had and had not sealed when the check began; not known from a file.
    unsealed: Option<i64>,
    talks: bool,
}

impl Check {
    fn new(wanted: Option<String>, talks: bool) -> Self {
        let wanted = wanted.map(|link| link.trim().to_ascii_lowercase());
        let (verifier, findings, whole) = (Verifier::default(), Vec::new(), Vec::new());
        Self { verifier, findings, faults: 0, wanted, whole, unsealed: None, talks }
    }

    fn next(&mut self, sealed: &Sealed) -> Result<()> {
        let found = self.verifier.check(sealed);
        self.faults += found.len() as u64;
        let room = FINDINGS_MAX.saturating_sub(self.findings.len());
        self.findings.extend(found.into_iter().take(room));
        if self.wanted.as_deref() == Some(&sealed.link) {
            self.wanted = None;
        }
        if self.talks && self.verifier.receipts.is_multiple_of(PROGRESS_RECEIPTS) {
            output::note(&format!("{} receipts …", self.verifier.receipts))?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        let unreadable =
            |error: io::Error| Error::new(Code::PathUnusable, format!("{} cannot be read: {error}.", path.display()));
        let invalid = |why: String| {
            let error = Error::invalid(format!("{} is no export: {why}.", path.display()));
            error.with_cure("Name a file that `waybill receipts export` has written, whole and unchanged.")
        };
        let mut reader: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(BufReader::new(io::stdin()))
        } else {
            Box::new(BufReader::new(File::open(path).map_err(unreadable)?))
        };
        let (mut text, mut end) = (Vec::new(), None);
        for number in 1_u64.. {
            text.clear();
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
            if read.map_err(unreadable)? == 0 {
                break;
            }
            let line = serde_json::from_slice(&text).map_err(|error| {
                invalid(format!("line {number} holds neither a receipt nor the end")).because(error)
            })?;
            match line {
                Line::Receipt(sealed) if end.is_none() => self.next(&sealed)?,
                Line::End(last) if end.is_none() => end = Some(last),
                _ => return Err(invalid(format!("line {number} comes after the end"))),
            }
        }
        self.compare(end);
        Ok(())
    }

    fn compare(&mut self, end: Option<End>) {
        let Some(end) = end else {
            self.whole.push("The file has no last line: it was cut off.".to_owned());
            return;
        };
        if end.receipts != self.verifier.receipts {
            let (said, found) = (end.receipts, self.verifier.receipts);
            self.whole.push(format!("The file says that it has {said} receipts and has {found}."));
        }
        if end.head != self.verifier.head() {
            self.whole.push("The last link is not the head that the file names.".to_owned());
        }
    }

    fn conclude(mut self, as_json: bool) -> Result<()> {
        if let Some(link) = self.wanted.take() {
            self.whole.push(format!("The chain does not lead through {link}: its end was cut off or written anew."));
        }
        let verifier = &self.verifier;
        let findings = serde_json::to_value(&self.findings).map_err(Error::internal)?;
        if as_json {
            output::json(&json!({
                "ok": self.is_whole(), "receipts": verifier.receipts, "erased": verifier.erased,
                "unsealed": self.unsealed, "head": verifier.head(), "faults": self.faults, "findings": findings, "whole": self.whole,
            }))?;
        } else {
            self.tell(&findings)?;
        }
        self.found_nothing()
    }

    fn tell(&self, findings: &Json) -> Result<()> {
        let verifier = &self.verifier;
        if !self.findings.is_empty() {
            output::table(&["position", "receipt_id", "fault"], findings.as_array().map_or(&[], Vec::as_slice))?;
        }
        for line in &self.whole {
            output::line(line)?;
        }
        if let Some(unsealed) = self.unsealed.filter(|unsealed| *unsealed > 0) {
            output::line(&format!("{unsealed} further receipts are not sealed yet, and nothing is said about them."))?;
        }
        let verdict = if self.is_whole() { "whole" } else { "NOT whole" };
        output::line(&format!(
            "{} sealed receipts, {} of them erased; the chain is {verdict}. Its head: {}",
            verifier.receipts,
            verifier.erased,
            verifier.head()
        ))
    }

    fn is_whole(&self) -> bool {
        self.faults == 0 && self.whole.is_empty()
    }

    fn found_nothing(&self) -> Result<()> {
        if self.is_whole() {
            return Ok(());
        }
        let count = self.faults + self.whole.len() as u64;
        Err(Error::new(Code::ChainBroken, format!("The receipts are not as they were sealed: {count} findings.")))
    }
}
