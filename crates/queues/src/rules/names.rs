//! Names of queues, alone and as the last segment of a URL.

use waybill_kernel::id::{Uuid, digest_id};
use waybill_kernel::{Caller, Code, Error, Result, Tenant};

use super::missing;

pub const NAME_CHARS_MAX: usize = 80;
const FIFO_SUFFIX: &str = ".fifo";
const ACCOUNT_DIGITS: usize = 12;
pub(crate) const DEFAULT_ACCOUNT: &str = "000000000000";

/// For a queue that is to be made.
pub fn check_new(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(missing("QueueName"));
    }
    if !is_name(name) {
        let message = format!(
            "A queue's name has 1 to {NAME_CHARS_MAX} characters, which are letters, digits, hyphens and underscores. \
             That of a FIFO queue ends in {FIFO_SUFFIX}."
        );
        return Err(Error::invalid(message));
    }
    Ok(())
}

pub fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(FIFO_SUFFIX).unwrap_or(name);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !stem.is_empty() && name.len() <= NAME_CHARS_MAX && stem.bytes().all(allowed)
}

/// Does the queue keep messages in order? Its name tells.
pub fn is_fifo(name: &str) -> bool {
    name.ends_with(FIFO_SUFFIX)
}

/// The name that a queue URL ends in. Any host is accepted: clients reach the server by more names than it knows.
pub fn queue_name(url: &str) -> Result<&str> {
    if url.is_empty() {
        return Err(missing("QueueUrl"));
    }
    let name = segments(url).next_back().unwrap_or_default();
    if is_name(name) { Ok(name) } else { Err(unknown_queue(name)) }
}

/// Refuses a URL whose account is not `account`. One without an account names the caller's own.
pub fn check_account(url: &str, account: &str) -> Result<()> {
    let mut segments = segments(url);
    let name = segments.next_back().unwrap_or_default();
    match segments.next_back().filter(|segment| is_account(segment)) {
        Some(named) if named != account => Err(unknown_queue(name)),
        _ => Ok(()),
    }
}

/// The account id in the URLs and ARNs of a tenant's queues. Derived from the tenant's public id, so it stays the
/// same in a restored or moved database.
pub fn account_of(caller: &Caller) -> String {
    account_number(caller.tenant, caller.tenant_id)
}

pub fn account_number(tenant: Tenant, tenant_id: Uuid) -> String {
    if tenant == Tenant::DEFAULT {
        return DEFAULT_ACCOUNT.to_owned();
    }
    let digest = digest_id(&[b"sqs account", tenant_id.as_bytes()]).as_u128();
    // Never the default tenant's.
    let number = digest % (10_u128.pow(ACCOUNT_DIGITS as u32) - 1) + 1;
    format!("{number:0width$}", width = ACCOUNT_DIGITS)
}

pub fn unknown_queue(name: &str) -> Error {
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    Error::new(Code::QueueDoesNotExist, format!("The queue {name:?} does not exist."))
}

pub fn is_account(segment: &str) -> bool {
    segment.len() == ACCOUNT_DIGITS && segment.bytes().all(|byte| byte.is_ascii_digit())
}

/// Of the path, without those that are empty.
fn segments(url: &str) -> impl DoubleEndedIterator<Item = &str> {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => url,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.split('/').filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use waybill_kernel::{Principal, PrincipalKind, Roles, Scopes};

    use super::*;

    #[test]
    fn a_name_has_its_alphabet_and_its_length() {
        let longest = "a".repeat(80);
        for name in ["a", "A-z_09", &longest, "000000000000", "a.fifo"] {
            assert!(is_name(name) && check_new(name).is_ok(), "{name}");
        }
        let (too_long, fifo_too_long) = ("a".repeat(81), format!("{}.fifo", "a".repeat(76)));
        for name in ["a b", "a|b", "ä", "a.b", ".fifo", "a.fifo.fifo", "a/b", "a\n", &too_long, &fifo_too_long] {
            assert_eq!(check_new(name).unwrap_err().code(), Code::InvalidRequest, "{name}");
        }
        assert_eq!(check_new("").unwrap_err().code(), Code::MissingParameter);
        assert!(is_fifo("orders.fifo") && !is_fifo("orders"));
    }

    #[test]
    fn the_name_is_the_last_segment_whatever_the_host() {
        for url in [
            "http://localhost:9324/000000000000/jobs",
            "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs",
            "http://localhost/jobs/",
            "http://localhost/jobs?x=1",
            "/000000000000/jobs",
            "/jobs",
            "jobs",
        ] {
            assert_eq!(queue_name(url).unwrap(), "jobs", "{url}");
        }
        assert_eq!(queue_name("").unwrap_err().code(), Code::MissingParameter);
        for url in ["http://localhost", "http://localhost/", "/", "http://localhost/a%20b", "/a b"] {
            assert_eq!(queue_name(url).unwrap_err().code(), Code::QueueDoesNotExist, "{url}");
        }
    }

    #[test]
    fn an_account_that_is_named_must_be_the_callers() {
        for (url, good) in [
            ("http://h/000000000000/jobs", true),
            ("http://h/jobs", true),
            ("jobs", true),
            ("http://h/queue/jobs", true),
            ("http://h/123456789012/jobs", false),
        ] {
            let refusal = check_account(url, DEFAULT_ACCOUNT).err().map(|error| error.code());
            assert_eq!(refusal, (!good).then_some(Code::QueueDoesNotExist), "{url}");
        }
    }

    #[test]
    fn every_tenant_has_twelve_digits_of_its_own() {
        let of = |tenant: i64, id: u128| {
            account_of(&Caller {
                tenant: Tenant(tenant),
                tenant_id: Uuid::from_u128(id),
                principal: Principal::new(PrincipalKind::Agent, "a").unwrap(),
                roles: Roles::default(),
                scopes: Scopes::default(),
                key: None,
            })
        };
        assert_eq!(of(1, 7), DEFAULT_ACCOUNT);
        assert_eq!(of(2, 7), of(3, 7));
        assert_ne!(of(2, 7), of(2, 8));
        assert!(is_account(&of(2, 7)) && of(2, 7) != DEFAULT_ACCOUNT);
    }
}
