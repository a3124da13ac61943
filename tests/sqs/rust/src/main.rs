//! SQS by the AWS SDK for Rust against a running server.
//!
//! WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive
//! and manage queues. Prints one line per case and ends with `N passed, M failed`.

mod errors;
mod fifo;
mod messages;

use std::env::var;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_sqs::error::{DisplayErrorContext, SdkError};
use aws_sdk_sqs::types::{Message, QueueAttributeName};
use tokio::task::JoinHandle;

/// A shared machine may stand still for a while; a case that hangs must end all the same.
const CASE_MAX: Duration = Duration::from_secs(60);
const VERSION: &str = aws_sdk_sqs::meta::PKG_VERSION;

/// What went wrong, in words.
pub type Outcome<T = ()> = Result<T, String>;
type Running = Vec<(&'static str, JoinHandle<Outcome>)>;

#[tokio::main]
async fn main() -> ExitCode {
    let mut running = Running::new();
    messages::start(&mut running);
    errors::start(&mut running);
    fifo::start(&mut running);
    let (mut passed, mut failed) = (0, 0);
    for (name, case) in running {
        let outcome = match tokio::time::timeout(CASE_MAX, case).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(panic.to_string()),
            Err(_) => Err(format!("it was not done within {CASE_MAX:?}")),
        };
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("ok   aws-sdk-sqs {VERSION}: {name}");
            }
            Err(error) => {
                failed += 1;
                println!("FAIL aws-sdk-sqs {VERSION}: {name}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts each case on its own; they have queues of their own.
#[macro_export]
macro_rules! start {
    ($running:ident: $($case:ident),+ $(,)?) => {
        $($running.push((stringify!($case), tokio::spawn($case())));)+
    };
}

/// Fails the case unless the two are equal.
#[macro_export]
macro_rules! same {
    ($found:expr, $expected:expr) => {
        match ($found, $expected) {
            (found, expected) if found == expected => {}
            (found, expected) => return Err(format!("{}: {found:?} is not {expected:?}", stringify!($found))),
        }
    };
}

/// As users make it, apart from TLS. Nothing is tried twice: a second try would hide what the first one was answered.
pub fn client() -> Client {
    let (id, secret) = (setting("AWS_ACCESS_KEY_ID"), setting("AWS_SECRET_ACCESS_KEY"));
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(setting("WAYBILL_SQS_ENDPOINT"))
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(id, secret, None, None, "environment"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .retry_config(RetryConfig::disabled());
    Client::from_conf(config.build())
}

fn setting(name: &str) -> String {
    var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// An error of the SDK with everything below it.
pub fn told<E: std::error::Error + 'static, R: std::fmt::Debug + 'static>(error: SdkError<E, R>) -> String {
    DisplayErrorContext(error).to_string()
}

pub async fn new_queue(sqs: &Client, suffix: &str, attributes: &[(QueueAttributeName, &str)]) -> Outcome<String> {
    let mut create = sqs.create_queue().queue_name(fresh_name(suffix));
    for (name, value) in attributes {
        create = create.attributes(name.clone(), *value);
    }
    create.send().await.map_err(told)?.queue_url.ok_or_else(|| "the queue has no URL".to_owned())
}

/// Of this process and this moment.
pub fn fresh_name(suffix: &str) -> String {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros());
    format!("rust-{now}-{number}{suffix}")
}

/// Of one receive, with a wait, so that a slow machine is no failure.
pub async fn receive(sqs: &Client, url: &str) -> Outcome<Vec<Message>> {
    let asked = sqs.receive_message().queue_url(url).max_number_of_messages(10).wait_time_seconds(20);
    Ok(asked.send().await.map_err(told)?.messages.unwrap_or_default())
}

pub fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body().unwrap_or_default()).collect()
}

pub fn given<T: Display>(value: Option<T>, what: &str) -> Outcome<String> {
    value.map(|value| value.to_string()).ok_or_else(|| format!("{what} is missing"))
}
