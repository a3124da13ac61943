//! Somebody who types commands of this program: shown as typed, with what they print.

use std::ffi::OsString;
use std::process::{Output, Stdio};

use serde_json::Value as Json;
use waybill_kernel::{Code, Error, Result};

use super::stage::{self, Stage};
use crate::output::{cell, line};

pub struct Terminal {
    name: &'static str,
    env: Vec<(&'static str, OsString)>,
}

impl Terminal {
    /// On the stage's server, as its admin.
    pub fn new(stage: &Stage, name: &'static str) -> Self {
        Self { name, env: vec![("WAYBILL_DATA", stage.data().into())] }
    }

    pub fn with(mut self, variable: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((variable, value.into()));
        self
    }

    /// Shown, played, and its answer shown.
    pub async fn types(&self, words: &[&str]) -> Result<()> {
        self.shows(words)?;
        let output = self.run(words).await?;
        said(&output.stdout)?;
        succeeded(&output)
    }

    /// The same with a command that is refused, as the scene wants it.
    pub async fn types_in_vain(&self, words: &[&str]) -> Result<()> {
        self.shows(words)?;
        let output = self.run(words).await?;
        said(&output.stdout)?;
        said(&output.stderr)?;
        match output.status.code() {
            Some(0) | None => Err(Error::internal(format!("{} was not refused", words.join(" ")))),
            Some(code) => line(&format!("      (exit code {code})")),
        }
    }

    /// Not shown; the answer is for the scene.
    pub async fn asks(&self, words: &[&str]) -> Result<Json> {
        let output = self.run(&[words, &["--json"]].concat()).await?;
        succeeded(&output)?;
        serde_json::from_slice(&output.stdout).map_err(Error::internal)
    }

    /// A command as it would be typed.
    pub fn shows(&self, words: &[&str]) -> Result<()> {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        line(&format!("   {}$ waybill {}", self.name, words.join(" ")))
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    async fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = stage::program()?;
        command.args(words).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command.output().await.map_err(Error::internal)
    }
}

fn said(output: &[u8]) -> Result<()> {
    String::from_utf8_lossy(output).lines().try_for_each(|text| line(&format!("      {}", cell(&text.into()))))
}

fn succeeded(output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(Code::Internal, "A command of the demo failed.").because(told.trim()))
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=,…".contains(char);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_match_them() {
        assert_eq!(quoted("src/api/a.rs"), "src/api/a.rs");
        assert_eq!(quoted("src/api/*.rs"), "'src/api/*.rs'");
        assert_eq!(quoted("main is green"), "'main is green'");
        assert_eq!(quoted(""), "''");
    }
}
