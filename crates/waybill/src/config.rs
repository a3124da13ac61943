//! Settings: defaults, then the file, then the environment and the flags.

mod file;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use waybill_kernel::ranges::{SECONDS, Setting, check, setting};
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Backend, Shard};

use self::file::File;
use crate::cli::{Location, Serve};
use crate::shared_token;

const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);
/// The folder of the archive of mail, in the data folder.
const ARCHIVE: &str = "mail-archive";
const SQS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9324);

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
    pub mail: waybill_mail::Settings,
    pub mail_archive: waybill_archivist::Settings,
    pub webhooks: waybill_webhooks::Settings,
    pub mesh: waybill_mesh::Settings,
    pub mesh_door: waybill_mesh_door::Settings,
    /// Where the server's own key is, if not in the data folder.
    pub server_key_file: Option<PathBuf>,
    pub background: Background,
    pub backend: Backend,
    /// The stores beside home, by their names.
    pub shards: Vec<Shard>,
    /// The file that settings came from: there may be passwords in it.
    pub file: Option<PathBuf>,
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

impl Background {
    fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("sweep_lease_s", self.sweep_lease_s, SECONDS),
            setting("seen_interval_s", self.seen_interval_s, SECONDS),
            setting("measure_interval_s", self.measure_interval_s, SECONDS),
        ]
    }

    fn check(&self) -> std::result::Result<(), String> {
        check("background", &self.ranges())
    }
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

impl Config {
    pub fn of_serve(flags: &Serve) -> Result<Self> {
        let mut config = Self::at(&flags.location)?;
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

    pub fn at(location: &Location) -> Result<Self> {
        let file = location.config.as_deref().map_or_else(|| Ok(File::default()), File::read)?;
        let data = match location.data.clone().or_else(|| file.data.clone()) {
            Some(data) => data,
            None => usual_data()?,
        };
        let store = location.store.clone().or_else(|| file.store.clone());
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
        let shards = file.shards(&data).map_err(|why| Error::new(Code::ConfigInvalid, why))?;
        Ok(Self {
            shards,
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
            server_key_file: location.server_key_file.clone().or_else(|| file.access.server_key_file.clone()),
            access: file.access.settings(),
            mail: file.mail,
            mail_archive: file.mail_archive,
            webhooks: file.webhooks,
            mesh: file.mesh.broker,
            mesh_door: file.mesh.door,
            background: file.background,
            backend,
            file: location.config.clone(),
        })
    }

    /// Keys and payloads would cross a network as they are.
    pub fn in_the_open(&self) -> Option<SocketAddr> {
        let listening = [self.http, self.sqs_listen];
        listening.into_iter().find(|address| !address.ip().is_loopback() && !self.doors.trusted_proxy)
    }

    /// Where the archive of mail is.
    pub fn archive_root(&self) -> PathBuf {
        self.mail_archive.root.clone().unwrap_or_else(|| self.data.join(ARCHIVE))
    }

    /// Whether this server writes the archive of mail.
    pub fn writes_archive(&self) -> bool {
        self.mail_archive.writes(matches!(self.backend, Backend::Postgres(_)))
    }

    /// Whether commands find the data folder without being told.
    pub fn has_usual_data(&self) -> bool {
        usual_data().is_ok_and(|usual| usual == self.data)
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
    fn only_the_usual_data_folder_needs_no_flag() {
        let usual = usual_data().unwrap();
        let config = |data: PathBuf| Config::at(&Location { data: Some(data), ..Location::default() }).unwrap();
        assert!(config(usual.clone()).has_usual_data());
        assert!(!config(usual.join("other")).has_usual_data());
    }

    #[test]
    fn a_store_that_is_no_address_is_refused_without_repeating_it() {
        let location = Location { store: Some("postgre://u:hunter2@h/d".to_owned()), ..Location::default() };
        let error = Config::at(&location).err().unwrap();
        assert!(error.code() == Code::ConfigInvalid && !error.to_string().contains("hunter2"));
    }
}
