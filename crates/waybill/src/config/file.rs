//! The settings file: its sections as people write them, what is refused in them, and the settings of each part of the program
//! that they become.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::{Code, Error, Result};
use waybill_queues::PartitionMap;
use waybill_store::stores::{SHARDS_MAX, check_name};
use waybill_store::{Backend, PostgresOptions, Shard, SqliteOptions};

use super::{Background, LogFormat};

/// The database of home, in the data folder.
const HOME_FILE: &str = "waybill.db";

/// The file, as people write it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) data: Option<PathBuf>,
    pub(super) http: Option<SocketAddr>,
    pub(super) socket: Option<PathBuf>,
    pub(super) sqs: Sqs,
    pub(super) store: Option<String>,
    pub(super) insecure_dev: bool,
    pub(super) shared_token: Option<String>,
    pub(super) log: Option<String>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) doors: waybill_doors::Settings,
    pub(super) tasks: waybill_tasks::Settings,
    pub(super) access: Access,
    pub(super) mail: waybill_mail::Settings,
    pub(super) mail_archive: waybill_archivist::Settings,
    pub(super) webhooks: waybill_webhooks::Settings,
    pub(super) mesh: Mesh,
    pub(super) background: Background,
    pub(super) sqlite: Sqlite,
    pub(super) postgres: Postgres,
    pub(super) shards: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Sqs {
    pub(super) listen: Option<SocketAddr>,
    region: Option<String>,
    endpoint: Option<String>,
    body_bytes_max: Option<usize>,
    queues_per_tenant_max: Option<i64>,
    sweep_interval_s: Option<u64>,
    throttle_attributes_admin_only: bool,
    fifo_partition_map: Vec<String>,
}

/// Those of the broker and those of its door, which are one section to whoever writes the file.
#[derive(Default)]
pub(super) struct Mesh {
    pub(super) broker: waybill_mesh::Settings,
    pub(super) door: waybill_mesh_door::Settings,
}

impl<'de> Deserialize<'de> for Mesh {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let table = toml::Table::deserialize(deserializer)?;
        let is_doors = |name: &String| waybill_mesh_door::Settings::NAMES.contains(&name.as_str());
        let (door, broker): (toml::Table, toml::Table) = table.into_iter().partition(|(name, _)| is_doors(name));
        let told = |error: toml::de::Error| <D::Error as serde::de::Error>::custom(error.message());
        Ok(Self { broker: broker.try_into().map_err(told)?, door: door.try_into().map_err(told)? })
    }
}

impl Sqs {
    pub(super) fn settings(&self) -> waybill_sqs::Settings {
        let usual = waybill_sqs::Settings::default();
        waybill_sqs::Settings {
            region: self.region.clone().unwrap_or(usual.region),
            endpoint: self.endpoint.clone(),
            body_bytes_max: self.body_bytes_max.unwrap_or(usual.body_bytes_max),
        }
    }

    pub(super) fn queues(&self) -> waybill_queues::Settings {
        let usual = waybill_queues::Settings::default();
        waybill_queues::Settings {
            region: self.settings().region,
            queues_per_tenant_max: self.queues_per_tenant_max.unwrap_or(usual.queues_per_tenant_max),
            sweep_interval_s: self.sweep_interval_s.unwrap_or(usual.sweep_interval_s),
            throttle_attributes_admin_only: self.throttle_attributes_admin_only,
            // Checked when the file was read.
            partition_map: PartitionMap::parse(&self.fifo_partition_map).unwrap_or_default(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Access {
    key_recheck_ms: Option<u64>,
    remembered_keys_max: Option<usize>,
    verifications_waiting_max: Option<usize>,
    ended_keys_interval_s: Option<u64>,
    ended_keys_retention_s: Option<u64>,
    stored_bytes_max: Option<i64>,
    blob_bytes_max: Option<i64>,
    pub(super) server_key_file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Sqlite {
    write_queue_max: Option<usize>,
    read_queue_max: Option<usize>,
    readers: Option<usize>,
    linger_us: Option<u64>,
    checkpoint_bytes: Option<u64>,
    wal_bytes_max: Option<u64>,
    check_budget_ms: Option<u64>,
    reopen_pause_ms: Option<u64>,
    ballast_bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Postgres {
    lanes: Option<usize>,
    readers: Option<usize>,
    queue_max: Option<usize>,
    connect_ms: Option<u64>,
    statement_ms: Option<u64>,
    retry_ms: Option<u64>,
    notify_ms: Option<u64>,
    wait_poll_ms: Option<u64>,
    settle_ms: Option<u64>,
    clock_ms: Option<u64>,
}

/// A file of the data folder: whoever has the folder's lock has the file, and a backup of the folder has it, too.
fn check_file(shard: &str, file: &str) -> std::result::Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_plain = file.bytes().all(allowed) && !file.starts_with('.') && file.len() <= 64;
    match is_plain && file.ends_with(".db") && file != HOME_FILE {
        true => Ok(()),
        false => Err(format!(
            "shards.{shard} must be a file in the data folder, like sqlite:{shard}.db: letters, digits, hyphens, underscores \
             and dots, with .db at its end, and not {HOME_FILE}."
        )),
    }
}

/// The message of a parser, which repeats a text that it found where it wanted something else, and speaks of Rust.
fn without_values(message: &str) -> String {
    let (before, rest) = match message.split_once("string \"") {
        Some((before, rest)) => (before, rest.rsplit_once('"').map_or("", |(_, rest)| rest)),
        None => return message.replace("expected struct", "expected a table for"),
    };
    format!("{before}a string{}", rest.replace("expected struct", "expected a table for"))
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let invalid = |why: String| Error::new(Code::ConfigInvalid, format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| {
            invalid(format!("{error}.")).with_cure("Name a file that you can read with --config, or leave it out.")
        })?;
        let file = Self::parse(&text).map_err(|error| {
            // The error's own text repeats the line, which may hold the database's password.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let error =
                invalid(format!("line {}: {}.", before.matches('\n').count() + 1, without_values(error.message())));
            error.with_cure("Correct that line; docs/settings.md has every setting with its section.")
        })?;
        file.check().map_err(invalid)?;
        Ok(file)
    }

    /// What could not work is told at the start, and not by a server that stands still, spins or refuses everybody.
    fn check(&self) -> std::result::Result<(), String> {
        let Self {
            doors, tasks, access, mail, mail_archive, webhooks, mesh, background, sqlite, postgres, sqs, ..
        } = self;
        sqs.settings().check()?;
        let map = PartitionMap::parse(&sqs.fifo_partition_map)?;
        map.check_stores(|name| self.shards.contains_key(name))?;
        self.shards(Path::new(""))?;
        sqs.queues().check()?;
        doors.check()?;
        check_profiles(doors.mcp.profiles.keys())?;
        tasks.check()?;
        access.settings().check()?;
        mail.check()?;
        mail_archive.check()?;
        webhooks.check()?;
        mesh.broker.check()?;
        mesh.door.check()?;
        background.check()?;
        sqlite.options(Path::new("")).check()?;
        postgres.options("").check()
    }

    /// An address is not repeated: there may be a password in it.
    pub(super) fn shards(&self, data: &Path) -> std::result::Result<Vec<Shard>, String> {
        if self.shards.len() > SHARDS_MAX {
            return Err(format!("[shards] has more than {SHARDS_MAX} entries."));
        }
        let mut files = Vec::new();
        let mut shards = Vec::new();
        for (name, address) in &self.shards {
            check_name(name)?;
            let backend = if let Some(file) = address.strip_prefix("sqlite:") {
                check_file(name, file)?;
                if files.contains(&file) {
                    return Err(format!("shards.{name} has the file of another shard."));
                }
                files.push(file);
                Backend::Sqlite(SqliteOptions { path: data.join(file), ..self.sqlite.options(data) })
            } else if address.starts_with("postgres://") || address.starts_with("postgresql://") {
                Backend::Postgres(self.postgres.options(address))
            } else {
                return Err(format!(
                    "shards.{name} must be `sqlite:<file>` or an address like postgres://user@host/database."
                ));
            };
            shards.push(Shard { name: name.clone(), backend });
        }
        Ok(shards)
    }

    fn parse(text: &str) -> std::result::Result<Self, toml::de::Error> {
        let file: File = toml::from_str(text)?;
        let given = file.tasks.profile.defaults();
        if given.is_empty() {
            return Ok(file);
        }
        let mut table: toml::Table = toml::from_str(text)?;
        if let Some(tasks) = table.get_mut("tasks").and_then(toml::Value::as_table_mut) {
            for (name, value) in given {
                tasks.entry(*name).or_insert(toml::Value::Integer(*value));
            }
        }
        table.try_into()
    }
}

/// A domain that has no tools, or that is mistyped, would have its profile in vain.
fn check_profiles<'a>(mut domains: impl Iterator<Item = &'a String>) -> std::result::Result<(), String> {
    let known = || waybill_domains::ALL.iter().filter(|domain| domain.mcp.is_some()).map(|domain| domain.name);
    match domains.find(|name| known().all(|known| known != name.as_str())) {
        Some(name) => Err(format!(
            "doors.mcp.profiles: there are no tools of {name}; there are those of {}.",
            known().collect::<Vec<_>>().join(", ")
        )),
        None => Ok(()),
    }
}

impl Access {
    pub(super) fn settings(&self) -> waybill_access::Settings {
        let mut settings = waybill_access::Settings::default();
        set_ms(&mut settings.key_recheck, self.key_recheck_ms);
        set(&mut settings.remembered_keys_max, self.remembered_keys_max);
        set(&mut settings.verifications_waiting_max, self.verifications_waiting_max);
        set(&mut settings.ended_keys_interval, self.ended_keys_interval_s.map(Duration::from_secs));
        set(&mut settings.ended_keys_retention, self.ended_keys_retention_s.map(Duration::from_secs));
        set(&mut settings.stored_bytes_max, self.stored_bytes_max);
        set(&mut settings.blob_bytes_max, self.blob_bytes_max);
        settings
    }
}

impl Sqlite {
    pub(super) fn options(&self, data: &Path) -> SqliteOptions {
        let mut options = SqliteOptions::at(data.join(HOME_FILE));
        set(&mut options.write_queue_max, self.write_queue_max);
        set(&mut options.read_queue_max, self.read_queue_max);
        set(&mut options.readers, self.readers);
        set(&mut options.linger_max, self.linger_us.map(Duration::from_micros));
        set(&mut options.checkpoint_bytes, self.checkpoint_bytes);
        set(&mut options.wal_bytes_max, self.wal_bytes_max);
        set_ms(&mut options.check_budget, self.check_budget_ms);
        set_ms(&mut options.reopen_pause, self.reopen_pause_ms);
        set(&mut options.ballast_bytes, self.ballast_bytes);
        options
    }
}

impl Postgres {
    pub(super) fn options(&self, url: &str) -> PostgresOptions {
        let mut options = PostgresOptions::at(url);
        set(&mut options.lanes, self.lanes);
        set(&mut options.readers, self.readers);
        set(&mut options.queue_max, self.queue_max);
        set_ms(&mut options.connect_timeout, self.connect_ms);
        set_ms(&mut options.statement_timeout, self.statement_ms);
        set_ms(&mut options.retry_for, self.retry_ms);
        set_ms(&mut options.notify_interval, self.notify_ms);
        set_ms(&mut options.wait_poll, self.wait_poll_ms);
        set_ms(&mut options.settle_max, self.settle_ms);
        set_ms(&mut options.clock_interval, self.clock_ms);
        options
    }
}

fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *setting = given;
    }
}

fn set_ms(setting: &mut Duration, given_ms: Option<u64>) {
    set(setting, given_ms.map(Duration::from_millis));
}

#[cfg(test)]
mod tests {
    use waybill_kernel::ranges::Setting;

    use super::*;
    use crate::cli::Location;
    use crate::config::Config;

    #[test]
    fn an_unknown_setting_is_named() {
        let error = toml::from_str::<File>("[doors]\ndrain_seconds = 3\n").err().unwrap();
        assert!(error.to_string().contains("drain_seconds"), "{error}");
        let file: File = toml::from_str("http = '127.0.0.1:1'\n[sqlite]\nlinger_us = 0\n").unwrap();
        assert_eq!(file.sqlite.options(Path::new("x")).linger_max, Duration::ZERO);
    }

    #[test]
    fn the_broker_and_its_door_have_one_section() {
        let file = File::parse("[mesh]\nsends_per_window = 5\nredis = 'redis://h:1/2'\nping_ms = 50\n").unwrap();
        assert_eq!((file.mesh.broker.sends_per_window, file.mesh.door.ping_ms), (5, 50));
        assert_eq!(file.mesh.door.redis.as_deref(), Some("redis://h:1/2"));
        file.check().unwrap();
        let error = File::parse("[mesh]\nsends_per_minute = 5\n").err().unwrap();
        assert!(error.to_string().contains("sends_per_minute"), "{error}");
        let wrong = File::parse("[mesh]\nredis = 'http://u:hunter2@h'\n").unwrap().check().unwrap_err();
        assert!(wrong.contains("mesh.redis") && !wrong.contains("hunter2"), "{wrong}");
    }

    #[test]
    fn a_profile_of_tools_is_for_a_domain_that_has_some() {
        let check = |text: &str| File::parse(text).unwrap().check();
        check("[doors.mcp.profiles]\ntasks = 'minimal'\n").unwrap();
        for unknown in ["admin", "task"] {
            let error = check(&format!("[doors.mcp.profiles]\n{unknown} = 'core'\n")).unwrap_err();
            assert!(error.contains(unknown) && error.contains("tasks, queues"), "{error}");
        }
        assert!(File::parse("[doors.mcp.profiles]\ntasks = 'tiny'\n").is_err());
    }

    #[test]
    fn a_profile_gives_defaults_and_what_is_said_stays() {
        let tasks = |text: &str| File::parse(text).unwrap().tasks;
        let demo = tasks("[tasks]\nprofile = 'demo'\nmax_attempts = 7\n");
        assert_eq!((demo.lease_ttl_s, demo.sweep_interval_s, demo.retry_backoff_s, demo.max_attempts), (120, 5, 15, 7));
        let standard = tasks("[tasks]\nmax_attempts = 7\n");
        assert_eq!((standard.lease_ttl_s, standard.sweep_interval_s, standard.retry_backoff_s), (300, 10, 30));
        assert!(File::parse("[tasks]\nprofile = 'fast'\n").is_err());
    }

    #[test]
    fn a_switch_of_an_older_server_may_only_be_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("waybill.toml");
        for name in ["use_obligations_endpoint", "deprecate_legacy_endpoint", "requeue_on_expiry_no_increment"] {
            std::fs::write(&path, format!("[tasks]\n{name} = true\n")).unwrap();
            File::read(&path).unwrap();
            std::fs::write(&path, format!("[tasks]\n{name} = false\n")).unwrap();
            let error = File::read(&path).err().unwrap();
            assert!(error.code() == Code::ConfigInvalid && error.to_string().contains(name), "{error}");
        }
    }

    /// What `Config` makes of a file.
    fn read(text: &str) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("waybill.toml");
        std::fs::write(&path, text).unwrap();
        Config::at(&Location { data: Some(folder.path().to_owned()), config: Some(path), ..Location::default() })
    }

    #[test]
    fn a_value_out_of_its_range_is_told_with_the_range() {
        let file = File::default();
        let sections = [
            ("doors", file.doors.ranges()),
            ("tasks", file.tasks.ranges()),
            ("access", file.access.settings().ranges()),
            ("mail", file.mail.ranges()),
            ("mail_archive", file.mail_archive.ranges()),
            ("webhooks", file.webhooks.ranges()),
            ("mesh", file.mesh.broker.ranges()),
            ("mesh", file.mesh.door.ranges()),
            ("sqs", file.sqs.settings().ranges()),
            ("sqs", file.sqs.queues().ranges()),
            ("background", file.background.ranges()),
            ("sqlite", file.sqlite.options(Path::new("")).ranges()),
            ("postgres", file.postgres.options("").ranges()),
        ];
        let mut tried = 0;
        for (section, Setting { name, allowed, .. }) in
            sections.iter().flat_map(|(section, ranges)| ranges.iter().map(move |setting| (*section, setting)))
        {
            let (least, most) = (*allowed.start(), *allowed.end());
            let set = |value: i64| read(&format!("[{section}]\n{name} = {value}\n"));
            for value in [least, most] {
                assert!(set(value).is_ok(), "{section}.{name} = {value} is refused");
            }
            let refused = |value: i64, bound: i64| {
                let error = set(value).err().unwrap_or_else(|| panic!("{section}.{name} = {value} is accepted"));
                assert_eq!(error.code(), Code::ConfigInvalid, "{error}");
                // Less than nothing is no number at all to those that have no sign.
                for part in [format!("{section}.{name} is {value};"), bound.to_string()] {
                    assert!(value < 0 || error.message().contains(&part), "{part}: {error}");
                }
            };
            refused(least - 1, least);
            if most < i64::MAX {
                refused(most + 1, most);
            }
            tried += 1;
        }
        assert!(tried > 60, "{tried} settings have a range");
    }

    #[test]
    fn the_file_that_is_documented_is_accepted() {
        let page = include_str!("../../../../docs/settings.md");
        let text = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = File::parse(text).unwrap();
        file.check().unwrap();
        assert_eq!(file.postgres.options("postgres://h/d").settle_max, Duration::from_millis(100));
        File::default().check().unwrap();
    }
}
