//! hooks.toml: which hooks run, for how long, and what they may do.
//!
//! A hook without an entry does not run, whatever lies in the folder: a file that came with a checkout or a backup is not a
//! decision to run it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::ranges::{Setting, check, setting};
use waybill_kernel::{Code, Error, Result};

pub const PRE_SEND: &str = "pre-send";
pub const ON_TOPIC: &str = "on-topic-";
const FIXED: &[&str] =
    &["on-message", "on-dm", "on-mention", "on-file-share", "on-disconnect", "on-reconnect", "on-startup", PRE_SEND];

pub const HOOKS_MAX: usize = 256;
pub const ENTRIES_MAX: usize = 64;
/// As long as a capability lives: a hook that ran longer could not use it.
const TIMEOUT_S: std::ops::RangeInclusive<i64> = 1..=300;
const OUTPUT_BYTES: std::ops::RangeInclusive<i64> = 1..=1 << 20;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookSettings {
    /// By the hook's name, as in `[hooks.on-message]`.
    #[serde(default)]
    pub hooks: BTreeMap<String, Hook>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hook {
    pub enabled: bool,
    pub timeout_s: u64,
    /// Of each of its two streams. The rest is read and dropped, so that the hook does not hang on a full pipe.
    pub output_size_limit: usize,
    /// Fields of the event that it does not see, as in `data.meta.token`; `*` for every element or field.
    pub redact_payload: Vec<String>,
    /// What it prints is sent as an answer to the message.
    pub allow_reply: bool,
    /// What it may do over the socket with the token it is given; without any it is given none.
    pub scopes: Vec<String>,
    pub network_policy: NetworkPolicy,
    /// Of the policy `allowlist`, as in `example.com:443`.
    pub network_allowlist: Vec<String>,
    pub fs_policy: FsPolicy,
    pub sandbox: Sandbox,
    /// A line in hooks-audit.jsonl for every run, beside the one in the log.
    pub audit: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPolicy {
    #[default]
    Allow,
    Deny,
    /// Only to the addresses listed. Nothing here filters packets, so this cannot be enforced, and is counted.
    Allowlist,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsPolicy {
    #[default]
    Full,
    /// It can write nowhere.
    ReadOnly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    #[default]
    None,
    /// No network, a file system it can only read, and processes of its own.
    Strict,
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            enabled: false,
            timeout_s: 30,
            output_size_limit: 64 << 10,
            redact_payload: Vec::new(),
            allow_reply: false,
            scopes: Vec::new(),
            network_policy: NetworkPolicy::default(),
            network_allowlist: Vec::new(),
            fs_policy: FsPolicy::default(),
            sandbox: Sandbox::default(),
            audit: true,
        }
    }
}

impl HookSettings {
    pub fn read(text: &str) -> Result<Self> {
        let invalid = |message: String| Error::new(Code::ConfigInvalid, message);
        let settings: Self = toml::from_str(text).map_err(|error| invalid(format!("hooks.toml: {error}")))?;
        settings.check().map_err(|why| invalid(format!("hooks.toml: {why}")))?;
        Ok(settings)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.hooks.len() > HOOKS_MAX {
            return Err(format!("there are more than {HOOKS_MAX} hooks."));
        }
        self.hooks.iter().try_for_each(|(name, hook)| {
            check_name(name)?;
            hook.check(name)
        })
    }

    /// Those that run, by name.
    pub fn enabled(&self, name: &str) -> Option<&Hook> {
        self.hooks.get(name).filter(|hook| hook.enabled)
    }

    /// Whether there are any that run.
    pub fn has_enabled(&self) -> bool {
        self.hooks.values().any(|hook| hook.enabled)
    }
}

/// A name becomes a path, so only names of hooks are taken.
fn check_name(name: &str) -> std::result::Result<(), String> {
    let is_topic = |topic: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !topic.is_empty() && topic.bytes().all(allowed)
    };
    if FIXED.contains(&name) || name.strip_prefix(ON_TOPIC).is_some_and(is_topic) {
        return Ok(());
    }
    Err(format!("{name:?} is no hook: there are {} and {ON_TOPIC}<topic>.", FIXED.join(", ")))
}

impl Hook {
    fn check(&self, name: &str) -> std::result::Result<(), String> {
        check(&format!("hooks.{name}"), &self.ranges())?;
        let lists = [&self.redact_payload, &self.scopes, &self.network_allowlist];
        if lists.iter().any(|list| list.len() > ENTRIES_MAX) {
            return Err(format!("hooks.{name}: a list has more than {ENTRIES_MAX} entries."));
        }
        if let Some(scope) = self.scopes.iter().find(|scope| super::capability::Scope::parse(scope).is_none()) {
            return Err(format!(
                "hooks.{name}.scopes: {scope:?} is none of reply:event, dm:send:<sender>, topic:<name>:post."
            ));
        }
        if self.allow_reply && name == PRE_SEND {
            return Err("hooks.pre-send.allow_reply: there is no message to answer before one is sent.".to_owned());
        }
        if !self.network_allowlist.is_empty() && self.network_policy != NetworkPolicy::Allowlist {
            return Err(format!("hooks.{name}.network_allowlist needs network_policy = \"allowlist\"."));
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("timeout_s", self.timeout_s, TIMEOUT_S),
            setting("output_size_limit", self.output_size_limit, OUTPUT_BYTES),
        ]
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_says_nothing_does_not_run_and_every_setting_is_read() {
        let none = HookSettings::read("[hooks.on-message]\n").unwrap();
        assert_eq!(none.hooks["on-message"], Hook::default());
        assert!(none.enabled("on-message").is_none() && HookSettings::read("").unwrap().hooks.is_empty());
        let text = r#"
            [hooks.on-topic-builds]
            enabled = true
            timeout_s = 5
            output_size_limit = 1024
            redact_payload = ["data.meta.token"]
            allow_reply = true
            scopes = ["reply:event", "dm:send:<sender>", "topic:builds:post"]
            network_policy = "allowlist"
            network_allowlist = ["example.com:443"]
            fs_policy = "read_only"
            sandbox = "strict"
            audit = false
        "#;
        let settings = HookSettings::read(text).unwrap();
        let hook = settings.enabled("on-topic-builds").unwrap();
        assert_eq!((hook.timeout_s, hook.output_size_limit, hook.audit), (5, 1024, false));
        assert_eq!((hook.network_policy, hook.fs_policy), (NetworkPolicy::Allowlist, FsPolicy::ReadOnly));
    }

    #[test]
    fn what_cannot_work_is_named() {
        for (text, named) in [
            ("[hooks.on-mesage]", "on-mesage"),
            ("[hooks.\"../evil\"]", "../evil"),
            ("[hooks.\"on-topic-\"]", "on-topic-"),
            ("[hooks.\"on-topic-a/b\"]", "on-topic-a/b"),
            ("[hooks.on-dm]\ntimeout = 3", "timeout"),
            ("[hooks.on-dm]\ntimeout_s = 301", "hooks.on-dm.timeout_s"),
            ("[hooks.on-dm]\noutput_size_limit = 0", "hooks.on-dm.output_size_limit"),
            ("[hooks.on-dm]\nscopes = [\"send:all\"]", "send:all"),
            ("[hooks.on-dm]\nnetwork_allowlist = [\"x\"]", "network_policy"),
            ("[hooks.on-dm]\nsandbox = \"loose\"", "sandbox"),
            ("[hooks.pre-send]\nallow_reply = true", "allow_reply"),
        ] {
            let error = HookSettings::read(text).unwrap_err();
            assert_eq!(error.code(), Code::ConfigInvalid, "{text}");
            assert!(error.message().contains(named), "{text}: {error}");
        }
    }
}
