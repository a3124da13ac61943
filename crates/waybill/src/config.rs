//! Settings: defaults, then the file, then the environment and the flags.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Backend, PostgresOptions, SqliteOptions};

use crate::cli::{Place, Serve};
use crate::shared_token;

const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);
const SQS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9324);

/// Sizes of what one caller may send: small ones are for those who test what is too large.
const BYTES: RangeInclusive<i64> = 100..=1 << 30;
/// Numbers of things that are kept in memory.
const MANY: RangeInclusive<i64> = 1..=1_000_000;
/// Of all callers together.
const SHARED_BYTES: RangeInclusive<i64> = 16 << 20..=1 << 40;
/// From a short message to what a key's part of the room for bodies always holds.
const SQS_BODY_BYTES: RangeInclusive<i64> = 1 << 10..=8 << 20;
const PERCENT: RangeInclusive<i64> = 1..=100;
/// A second to a year.
const SECONDS: RangeInclusive<i64> = 1..=31_536_000;
/// As long, or not at all.
const PAUSE_SECONDS: RangeInclusive<i64> = 0..=31_536_000;
/// Up to a hundred years, which is for ever.
const KEEP_SECONDS: RangeInclusive<i64> = 0..=3_153_600_000;
/// Room for what the server itself writes, such as the longest reason of a cancel.
const RECEIPT_BYTES: RangeInclusive<i64> = 16_384..=1 << 30;
/// Up to the longest that any call waits.
const HEARTBEAT_SECONDS: RangeInclusive<i64> = 1..=20;

pub struct Config {
    pub data: PathBuf,
    pub http: SocketAddr,
    /// A socket in the file system where the same is served as over HTTP.
    pub socket: Option<PathBuf>,
    pub sqs_listen: SocketAddr,
    pub sqs: waybill_sqs::Settings,
    pub queues: waybill_queues::Settings,
    pub insecure_dev: bool,
    pub shared_token: Option<String>,
    pub log: String,
    pub log_format: LogFormat,
    pub doors: waybill_doors::Settings,
    pub tasks: waybill_tasks::Settings,
    pub access: waybill_access::Settings,
    pub webhooks: waybill_webhooks::Settings,
    /// Where the server's own key is, if not in the data folder.
    pub server_key_file: Option<PathBuf>,
    pub background: Background,
    pub backend: Backend,
}

/// What the program does by itself, beside the sweeps' own intervals.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Background {
    /// A sweep whose node has been silent for this long is taken over by another.
    pub sweep_lease_s: u64,
    /// Between two times at which it is written down who was seen.
    pub seen_interval_s: u64,
    /// Between two looks at how much there is to do, for the metrics.
    pub measure_interval_s: u64,
}

impl Default for Background {
    fn default() -> Self {
        Self { sweep_lease_s: 10, seen_interval_s: 60, measure_interval_s: 15 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("text or json".to_owned()),
        }
    }
}

/// The file, as people write it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    data: Option<PathBuf>,
    http: Option<SocketAddr>,
    socket: Option<PathBuf>,
    sqs: Sqs,
    store: Option<String>,
    insecure_dev: bool,
    shared_token: Option<String>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    doors: waybill_doors::Settings,
    tasks: waybill_tasks::Settings,
    access: Access,
    webhooks: waybill_webhooks::Settings,
    background: Background,
    sqlite: Sqlite,
    postgres: Postgres,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sqs {
    listen: Option<SocketAddr>,
    region: Option<String>,
    endpoint: Option<String>,
    body_bytes_max: Option<usize>,
    queues_per_tenant_max: Option<i64>,
    sweep_interval_s: Option<u64>,
}

impl Sqs {
    fn settings(&self) -> waybill_sqs::Settings {
        let usual = waybill_sqs::Settings::default();
        waybill_sqs::Settings {
            region: self.region.clone().unwrap_or(usual.region),
            endpoint: self.endpoint.clone(),
            body_bytes_max: self.body_bytes_max.unwrap_or(usual.body_bytes_max),
        }
    }

    fn queues(&self) -> waybill_queues::Settings {
        let usual = waybill_queues::Settings::default();
        waybill_queues::Settings {
            region: self.settings().region,
            queues_per_tenant_max: self.queues_per_tenant_max.unwrap_or(usual.queues_per_tenant_max),
            sweep_interval_s: self.sweep_interval_s.unwrap_or(usual.sweep_interval_s),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Access {
    key_recheck_ms: Option<u64>,
    remembered_keys_max: Option<usize>,
    verifications_waiting_max: Option<usize>,
    ended_keys_interval_s: Option<u64>,
    ended_keys_retention_s: Option<u64>,
    server_key_file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sqlite {
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
struct Postgres {
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

impl Config {
    pub fn of_serve(flags: &Serve) -> Result<Self> {
        let mut config = Self::of_place(&flags.place)?;
        config.http = flags.http.unwrap_or(config.http);
        config.sqs_listen = flags.sqs.unwrap_or(config.sqs_listen);
        config.socket = flags.socket.clone().or(config.socket);
        config.insecure_dev |=
            flags.insecure_dev || std::env::var("ALLOW_INSECURE_DEV").is_ok_and(|value| value == "true");
        config.doors.trusted_proxy |= flags.trusted_proxy;
        config.log = flags.log.clone().unwrap_or(config.log);
        config.log_format = flags.log_format.unwrap_or(config.log_format);
        for address in [config.http, config.sqs_listen] {
            if config.insecure_dev && !address.ip().is_loopback() {
                let message = format!("--insecure-dev lets everybody in, so it is refused on {address}.");
                return Err(Error::new(Code::ConfigInvalid, message));
            }
        }
        config.shared_token = shared_token::chosen(config.shared_token, config.http)?;
        if config.insecure_dev {
            "development".clone_into(&mut config.tasks.environment);
        }
        Ok(config)
    }

    pub fn of_place(place: &Place) -> Result<Self> {
        let file = place.config.as_deref().map_or_else(|| Ok(File::default()), File::read)?;
        let data = match place.data.clone().or(file.data) {
            Some(data) => data,
            None => usual_data()?,
        };
        let store = place.store.clone().or(file.store);
        let backend = match store.as_deref() {
            None | Some("sqlite") => Backend::Sqlite(file.sqlite.options(&data)),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Backend::Postgres(file.postgres.options(url))
            }
            // Not repeated in the message: it may be a mistyped address with a password in it.
            Some(_) => {
                let message = "--store must be `sqlite` or an address like postgres://user@host/database.";
                return Err(Error::new(Code::ConfigInvalid, message));
            }
        };
        Ok(Self {
            data,
            http: file.http.unwrap_or(HTTP),
            socket: file.socket,
            sqs_listen: file.sqs.listen.unwrap_or(SQS),
            sqs: file.sqs.settings(),
            queues: file.sqs.queues(),
            insecure_dev: file.insecure_dev,
            shared_token: file.shared_token,
            log: file.log.unwrap_or_else(|| "info".to_owned()),
            log_format: file.log_format.unwrap_or_default(),
            doors: file.doors,
            tasks: file.tasks,
            server_key_file: place.server_key_file.clone().or_else(|| file.access.server_key_file.clone()),
            access: file.access.settings(),
            webhooks: file.webhooks,
            background: file.background,
            backend,
        })
    }

    /// Keys and payloads would cross a network as they are.
    pub fn in_the_open(&self) -> Option<SocketAddr> {
        let listening = [self.http, self.sqs_listen];
        listening.into_iter().find(|address| !address.ip().is_loopback() && !self.doors.trusted_proxy)
    }

    /// Whether commands find the data folder without being told.
    pub fn has_usual_data(&self) -> bool {
        usual_data().is_ok_and(|usual| usual == self.data)
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
    fn read(path: &Path) -> Result<Self> {
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
        let Self { doors, tasks, access, webhooks, background, sqlite, postgres, sqs, .. } = self;
        sqs.settings().check()?;
        sqs.queues().check()?;
        if let Some(name) = tasks.refused_switch() {
            return Err(format!("tasks.{name} cannot be turned off: leave it out or say true."));
        }
        let settings = [
            ("doors.body_bytes_max", number(doors.body_bytes_max), BYTES),
            ("doors.header_read_ms", number(doors.header_read_ms), 10..=i64::MAX),
            ("doors.body_read_ms", number(doors.body_read_ms), 10..=i64::MAX),
            ("doors.answer_ms", number(doors.answer_ms), 1_000..=i64::MAX),
            ("doors.requests_max", number(doors.requests_max), MANY),
            ("doors.connections_max", number(doors.connections_max), MANY),
            ("doors.connections_per_address_max", number(doors.connections_per_address_max), MANY),
            ("doors.idle_ms", number(doors.idle_ms), 10..=i64::MAX),
            ("doors.write_ms", number(doors.write_ms), 10..=i64::MAX),
            ("doors.answers_unread_max", number(doors.answers_unread_max), MANY),
            ("doors.answers_bytes_max", number(doors.answers_bytes_max), SHARED_BYTES),
            ("doors.bodies_bytes_max", number(doors.bodies_bytes_max), SHARED_BYTES),
            ("doors.key_share_percent", number(doors.key_share_percent), PERCENT),
            ("doors.tenant_share_percent", number(doors.tenant_share_percent), PERCENT),
            ("doors.admin_places", number(doors.admin_places), 0..=1_000_000),
            ("doors.streams_max", number(doors.streams_max), MANY),
            ("doors.heartbeat_s", number(doors.heartbeat_s), HEARTBEAT_SECONDS),
            ("sqs.body_bytes_max", number(sqs.settings().body_bytes_max), SQS_BODY_BYTES),
            ("tasks.payload_bytes_max", number(tasks.payload_bytes_max), BYTES),
            ("tasks.result_bytes_max", number(tasks.result_bytes_max), BYTES),
            ("tasks.lease_ttl_s", number(tasks.lease_ttl_s), SECONDS),
            ("tasks.lease_ttl_s_max", number(tasks.lease_ttl_s_max), SECONDS),
            ("tasks.lease_grace_s", number(tasks.lease_grace_s), 0..=86_400),
            ("tasks.renewals_max", number(tasks.renewals_max), 0..=i64::MAX),
            ("tasks.max_attempts", number(tasks.max_attempts), MANY),
            ("tasks.retry_backoff_s", number(tasks.retry_backoff_s), PAUSE_SECONDS),
            ("tasks.retry_backoff_s_max", number(tasks.retry_backoff_s_max), PAUSE_SECONDS),
            ("tasks.list_limit", number(tasks.list_limit), 1..=1_000),
            ("tasks.list_limit_max", number(tasks.list_limit_max), 1..=1_000),
            ("tasks.list_bytes_max", number(tasks.list_bytes_max), 1_024..=i64::MAX),
            ("tasks.list_scan_max", number(tasks.list_scan_max), MANY),
            ("tasks.receipt_body_bytes_max", number(tasks.receipt_body_bytes_max), RECEIPT_BYTES),
            // With none, no receipt could end an obligation.
            ("tasks.receipt_parents_max", number(tasks.receipt_parents_max), 1..=1_000),
            ("tasks.receipt_artifacts_max", number(tasks.receipt_artifacts_max), 0..=1_000_000),
            ("tasks.sweep_interval_s", number(tasks.sweep_interval_s), SECONDS),
            ("tasks.requeue_delay_s_max", number(tasks.requeue_delay_s_max), PAUSE_SECONDS),
            ("tasks.instance_forgotten_s", number(tasks.instance_forgotten_s), SECONDS),
            ("tasks.chain_interval_s", number(tasks.chain_interval_s), SECONDS),
            ("tasks.receipt_backlog", number(tasks.receipt_backlog), 1..=1_000_000_000),
            ("tasks.archive_interval_s", number(tasks.archive_interval_s), SECONDS),
            ("tasks.archive_after_s", number(tasks.archive_after_s), KEEP_SECONDS),
            ("tasks.archive_after_s_max", number(tasks.archive_after_s_max), KEEP_SECONDS),
            ("tasks.session_silence_s", number(tasks.session_silence_s), SECONDS),
            ("tasks.contact_note_s", number(tasks.contact_note_s), PAUSE_SECONDS),
            ("access.key_recheck_ms", access.key_recheck_ms.and_then(number), 0..=3_600_000),
            ("access.remembered_keys_max", access.remembered_keys_max.and_then(number), 1..=i64::MAX),
            ("access.verifications_waiting_max", access.verifications_waiting_max.and_then(number), 1..=i64::MAX),
            ("access.ended_keys_interval_s", access.ended_keys_interval_s.and_then(number), 1..=i64::MAX),
            ("webhooks.endpoints_max", number(webhooks.endpoints_max), 0..=10_000),
            ("webhooks.requests_max", number(webhooks.requests_max), 1..=10_000),
            ("webhooks.endpoint_requests_max", number(webhooks.endpoint_requests_max), 1..=1_000),
            ("webhooks.connect_ms", number(webhooks.connect_ms), 100..=60_000),
            ("webhooks.request_ms", number(webhooks.request_ms), 100..=60_000),
            ("webhooks.give_up_s", number(webhooks.give_up_s), SECONDS),
            ("webhooks.disable_after_s", number(webhooks.disable_after_s), SECONDS),
            ("webhooks.retention_s", number(webhooks.retention_s), PAUSE_SECONDS),
            ("webhooks.sweep_interval_s", number(webhooks.sweep_interval_s), SECONDS),
            ("webhooks.feed_interval_s", number(webhooks.feed_interval_s), SECONDS),
            ("background.sweep_lease_s", number(background.sweep_lease_s), SECONDS),
            ("background.seen_interval_s", number(background.seen_interval_s), SECONDS),
            ("background.measure_interval_s", number(background.measure_interval_s), SECONDS),
            ("sqlite.write_queue_max", sqlite.write_queue_max.and_then(number), MANY),
            ("sqlite.read_queue_max", sqlite.read_queue_max.and_then(number), MANY),
            ("sqlite.readers", sqlite.readers.and_then(number), 1..=64),
            ("postgres.lanes", postgres.lanes.and_then(number), 1..=1_000),
            ("postgres.readers", postgres.readers.and_then(number), 1..=1_000),
            ("postgres.queue_max", postgres.queue_max.and_then(number), MANY),
            ("postgres.connect_ms", postgres.connect_ms.and_then(number), 10..=i64::MAX),
            ("postgres.statement_ms", postgres.statement_ms.and_then(number), 100..=i64::MAX),
            ("postgres.wait_poll_ms", postgres.wait_poll_ms.and_then(number), 10..=i64::MAX),
            ("postgres.clock_ms", postgres.clock_ms.and_then(number), 100..=i64::MAX),
        ];
        for (name, value, allowed) in settings {
            if let Some(value) = value.filter(|value| !allowed.contains(value)) {
                return Err(format!("{name} is {value}; it must be {}.", shown(&allowed)));
            }
        }
        Ok(())
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

impl Access {
    fn settings(self) -> waybill_access::Settings {
        let mut settings = waybill_access::Settings::default();
        set_ms(&mut settings.key_recheck, self.key_recheck_ms);
        set(&mut settings.remembered_keys_max, self.remembered_keys_max);
        set(&mut settings.verifications_waiting_max, self.verifications_waiting_max);
        set(&mut settings.ended_keys_interval, self.ended_keys_interval_s.map(Duration::from_secs));
        set(&mut settings.ended_keys_retention, self.ended_keys_retention_s.map(Duration::from_secs));
        settings
    }
}

impl Sqlite {
    fn options(self, data: &Path) -> SqliteOptions {
        let mut options = SqliteOptions::at(data.join("waybill.db"));
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
    fn options(self, url: &str) -> PostgresOptions {
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

/// TOML has no larger numbers, so nothing is cut.
fn number(value: impl TryInto<i64>) -> Option<i64> {
    Some(value.try_into().unwrap_or(i64::MAX))
}

fn shown(allowed: &RangeInclusive<i64>) -> String {
    match (*allowed.start(), *allowed.end()) {
        (least, i64::MAX) => format!("at least {least}"),
        (least, most) => format!("from {least} to {most}"),
    }
}

fn usual_data() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Error::new(Code::ConfigInvalid, "There is no home folder: say --data <folder>."))?;
    Ok(PathBuf::from(home).join(".local/share/waybill"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_setting_is_named() {
        let error = toml::from_str::<File>("[doors]\ndrain_seconds = 3\n").err().unwrap();
        assert!(error.to_string().contains("drain_seconds"), "{error}");
        let file: File = toml::from_str("http = '127.0.0.1:1'\n[sqlite]\nlinger_us = 0\n").unwrap();
        assert_eq!(file.sqlite.options(Path::new("x")).linger_max, Duration::ZERO);
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
        Config::of_place(&Place { data: Some(folder.path().to_owned()), config: Some(path), ..Place::default() })
    }

    #[test]
    fn a_value_out_of_its_range_is_told_with_the_range() {
        const NO_END: i64 = i64::MAX;
        const YEAR_S: i64 = 365 * 86_400;
        // Those that count from nothing and have no sign: less than nothing is no number to them at all.
        const UNSIGNED: [&str; 4] = ["admin_places", "key_recheck_ms", "receipt_artifacts_max", "retention_s"];
        let rows = [
            ("doors", "body_bytes_max", 100, 1 << 30),
            ("doors", "header_read_ms", 10, NO_END),
            ("doors", "body_read_ms", 10, NO_END),
            ("doors", "answer_ms", 1_000, NO_END),
            ("doors", "requests_max", 1, 1_000_000),
            ("doors", "connections_max", 1, 1_000_000),
            ("doors", "connections_per_address_max", 1, 1_000_000),
            ("doors", "idle_ms", 10, NO_END),
            ("doors", "write_ms", 10, NO_END),
            ("doors", "answers_unread_max", 1, 1_000_000),
            ("doors", "answers_bytes_max", 16 << 20, 1 << 40),
            ("doors", "bodies_bytes_max", 16 << 20, 1 << 40),
            ("doors", "key_share_percent", 1, 100),
            ("doors", "tenant_share_percent", 1, 100),
            ("doors", "admin_places", 0, 1_000_000),
            ("doors", "streams_max", 1, 1_000_000),
            ("doors", "heartbeat_s", 1, 20),
            ("tasks", "payload_bytes_max", 100, 1 << 30),
            ("tasks", "result_bytes_max", 100, 1 << 30),
            ("tasks", "lease_ttl_s", 1, YEAR_S),
            ("tasks", "lease_ttl_s_max", 1, YEAR_S),
            ("tasks", "lease_grace_s", 0, 86_400),
            ("tasks", "renewals_max", 0, NO_END),
            ("tasks", "max_attempts", 1, 1_000_000),
            ("tasks", "retry_backoff_s", 0, YEAR_S),
            ("tasks", "retry_backoff_s_max", 0, YEAR_S),
            ("tasks", "list_limit", 1, 1_000),
            ("tasks", "list_limit_max", 1, 1_000),
            ("tasks", "list_bytes_max", 1_024, NO_END),
            ("tasks", "list_scan_max", 1, 1_000_000),
            ("tasks", "receipt_body_bytes_max", 16_384, 1 << 30),
            ("tasks", "receipt_parents_max", 1, 1_000),
            ("tasks", "receipt_artifacts_max", 0, 1_000_000),
            ("tasks", "sweep_interval_s", 1, YEAR_S),
            ("tasks", "requeue_delay_s_max", 0, YEAR_S),
            ("tasks", "instance_forgotten_s", 1, YEAR_S),
            ("tasks", "chain_interval_s", 1, YEAR_S),
            ("tasks", "receipt_backlog", 1, 1_000_000_000),
            ("tasks", "archive_interval_s", 1, YEAR_S),
            ("tasks", "archive_after_s", 0, 100 * YEAR_S),
            ("tasks", "archive_after_s_max", 0, 100 * YEAR_S),
            ("tasks", "session_silence_s", 1, YEAR_S),
            ("tasks", "contact_note_s", 0, YEAR_S),
            ("access", "key_recheck_ms", 0, 3_600_000),
            ("access", "remembered_keys_max", 1, NO_END),
            ("access", "verifications_waiting_max", 1, NO_END),
            ("access", "ended_keys_interval_s", 1, NO_END),
            ("webhooks", "endpoints_max", 0, 10_000),
            ("webhooks", "requests_max", 1, 10_000),
            ("webhooks", "endpoint_requests_max", 1, 1_000),
            ("webhooks", "connect_ms", 100, 60_000),
            ("webhooks", "request_ms", 100, 60_000),
            ("webhooks", "give_up_s", 1, YEAR_S),
            ("webhooks", "disable_after_s", 1, YEAR_S),
            ("webhooks", "retention_s", 0, YEAR_S),
            ("webhooks", "sweep_interval_s", 1, YEAR_S),
            ("webhooks", "feed_interval_s", 1, YEAR_S),
            ("background", "sweep_lease_s", 1, YEAR_S),
            ("background", "seen_interval_s", 1, YEAR_S),
            ("background", "measure_interval_s", 1, YEAR_S),
            ("sqlite", "write_queue_max", 1, 1_000_000),
            ("sqlite", "read_queue_max", 1, 1_000_000),
            ("sqlite", "readers", 1, 64),
            ("postgres", "lanes", 1, 1_000),
            ("postgres", "readers", 1, 1_000),
            ("postgres", "queue_max", 1, 1_000_000),
            ("postgres", "connect_ms", 10, NO_END),
            ("postgres", "statement_ms", 100, NO_END),
            ("postgres", "wait_poll_ms", 10, NO_END),
            ("postgres", "clock_ms", 100, NO_END),
        ];
        for (section, name, least, most) in rows {
            let set = |value: i64| read(&format!("[{section}]\n{name} = {value}\n"));
            for value in [least, most] {
                assert!(set(value).is_ok(), "{section}.{name} = {value} is refused");
            }
            let refused = |value: i64, bound: i64| {
                let error = set(value).err().unwrap_or_else(|| panic!("{section}.{name} = {value} is accepted"));
                assert_eq!(error.code(), Code::ConfigInvalid, "{error}");
                for part in [format!("{section}.{name} is {value};"), bound.to_string()] {
                    assert!(error.message().contains(&part), "{part}: {error}");
                }
            };
            if !UNSIGNED.contains(&name) {
                refused(least - 1, least);
            }
            if most < NO_END {
                refused(most + 1, most);
            }
        }
    }

    #[test]
    fn the_file_that_is_documented_is_accepted() {
        let page = include_str!("../../../docs/settings.md");
        let text = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = File::parse(text).unwrap();
        file.check().unwrap();
        assert_eq!(file.postgres.options("postgres://h/d").settle_max, Duration::from_millis(100));
        File::default().check().unwrap();
    }

    #[test]
    fn only_the_usual_data_folder_needs_no_flag() {
        let usual = usual_data().unwrap();
        let config = |data: PathBuf| Config::of_place(&Place { data: Some(data), ..Place::default() }).unwrap();
        assert!(config(usual.clone()).has_usual_data());
        assert!(!config(usual.join("other")).has_usual_data());
    }

    #[test]
    fn a_store_that_is_no_address_is_refused_without_repeating_it() {
        let place = Place { store: Some("postgre://u:hunter2@h/d".to_owned()), ..Place::default() };
        let error = Config::of_place(&place).err().unwrap();
        assert!(error.code() == Code::ConfigInvalid && !error.to_string().contains("hunter2"));
    }
}
