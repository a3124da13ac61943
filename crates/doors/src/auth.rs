//! Identifies the caller of a request, before anything else of the request is looked at.

use std::sync::Arc;

use http::Uri;
use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use subtle::ConstantTimeEq;
use waybill_access::Access;
use waybill_kernel::{Caller, Code, Error, Result};

#[derive(Clone)]
pub struct Gatekeeper {
    access: Access,
    /// With `--insecure-dev`: the caller that every request without a key becomes.
    developer: Option<Arc<Caller>>,
    /// A token that clients share instead of having keys, and the caller it stands for.
    shared: Option<(Arc<str>, Arc<Caller>)>,
}

impl Gatekeeper {
    pub fn new(access: Access, developer: Option<Caller>) -> Self {
        Self { access, developer: developer.map(Arc::new), shared: None }
    }

    #[must_use]
    pub fn with_shared(self, token: &str, caller: Caller) -> Self {
        Self { shared: Some((token.into(), Arc::new(caller))), ..self }
    }

    fn by_shared_token(&self, presented: &str) -> Option<Arc<Caller>> {
        let (token, caller) = self.shared.as_ref()?;
        bool::from(token.as_bytes().ct_eq(presented.as_bytes())).then(|| Arc::clone(caller))
    }

    pub(crate) async fn identify(&self, headers: &HeaderMap, uri: &Uri) -> Result<Arc<Caller>> {
        match bearer(headers)? {
            Some(key) => match self.by_shared_token(key) {
                Some(caller) => Ok(caller),
                None => self.access.authenticate(key).await,
            },
            None => self.developer(headers, uri)?.ok_or_else(|| unauthorized("The request carries no key.")),
        }
    }

    /// The caller without a key, where none is needed: for protocols whose credentials are not bearer keys.
    pub fn developer(&self, headers: &HeaderMap, uri: &Uri) -> Result<Option<Arc<Caller>>> {
        let Some(developer) = &self.developer else { return Ok(None) };
        refuse_foreign_page(headers, uri)?;
        Ok(Some(Arc::clone(developer)))
    }

    /// Runs `work` for a caller, and gives it up if the caller's key ends meanwhile.
    pub(crate) async fn while_allowed<T>(&self, caller: &Caller, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(key) = caller.key else { return work.await };
        tokio::select! {
            outcome = work => outcome,
            () = self.access.ended(key) => Err(unauthorized("The key of this call has ended while it waited.")),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(unauthorized("The request carries more than one Authorization header."));
    }
    let text = value.to_str().map_err(|_| unauthorized("The Authorization header is not text."))?;
    match text.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty() => Ok(Some(key.trim())),
        _ => Err(unauthorized("The Authorization header is not of the form `Bearer <key>`.")),
    }
}

/// Without keys, only these headers tell a web page in the developer's browser from the developer.
fn refuse_foreign_page(headers: &HeaderMap, uri: &Uri) -> Result<()> {
    let host =
        headers.get(HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.authority().map(|host| host.as_str()));
    let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or(""));
    let origin_host = origin.map(|origin| origin.strip_prefix("http://").unwrap_or(""));
    if host.is_some_and(is_loopback) && origin_host.is_none_or(is_loopback) {
        return Ok(());
    }
    Err(Error::new(Code::Forbidden, "Without a key only this machine's own names may be used as Host and Origin."))
}

fn is_loopback(authority: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|digit| digit.is_ascii_digit()) => name,
        _ => authority,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

fn unauthorized(message: &str) -> Error {
    Error::new(Code::Unauthorized, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_for_this_machine() {
        for own in ["localhost", "localhost:7700", "127.0.0.1:1", "[::1]:7700", "[::1]"] {
            assert!(is_loopback(own), "{own}");
        }
        for foreign in ["", "evil", "localhost.evil:80", "127.0.0.1.evil", "localhost@evil", "::1", "null"] {
            assert!(!is_loopback(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_bearer_is_one_header_of_one_form() {
        let headers = |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(bearer(&headers("Bearer abc")).unwrap(), Some("abc"));
        assert_eq!(bearer(&headers("bearer  abc ")).unwrap(), Some("abc"));
        assert_eq!(bearer(&HeaderMap::new()).unwrap(), None);
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc"] {
            assert!(bearer(&headers(bad)).is_err(), "{bad}");
        }
    }
}
