//! Requests that are built once; only the places that change are rewritten before each is sent.

use std::net::SocketAddr;

use crate::http;

/// What changes from request to request. Each has a mark in the text, as long as what replaces it.
#[derive(Clone, Copy)]
pub enum Field {
    Sequence,
    Connection,
    Task,
    Lease,
}

impl Field {
    const ALL: [Self; 4] = [Self::Sequence, Self::Connection, Self::Task, Self::Lease];

    fn mark(self) -> &'static [u8] {
        match self {
            Self::Sequence => b"@@@@@@@@@",
            Self::Connection => b"###",
            Self::Task => b"%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%",
            Self::Lease => b"^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        }
    }
}

/// The bytes of a request, and where each field stands in them.
#[derive(Clone)]
pub struct Template {
    bytes: Vec<u8>,
    places: [Vec<usize>; Field::ALL.len()],
}

impl Template {
    pub fn get(addr: SocketAddr, path: &str, key: &str) -> Self {
        Self::new(http::head(addr, "GET", path, Some(key), 0, ""))
    }

    pub fn post(addr: SocketAddr, path: &str, key: Option<&str>, body: &str) -> Self {
        Self::new(format!("{}{body}", http::head(addr, "POST", path, key, body.len(), "")))
    }

    /// `POST` of a small task. `slice` keeps the keys of one slice apart from all others of the run.
    pub fn task(addr: SocketAddr, path: &str, key: Option<&str>, slice: usize, idempotent: bool) -> Self {
        let text = "resize the picture to 800 x 600, keep the colour profile, answer with its address";
        let idempotency = match idempotent {
            true => format!(r####","idempotency_key":"b-{slice:05}-###-@@@@@@@@@""####),
            false => String::new(),
        };
        let body = format!(r#"{{"type":"echo","payload":{{"n":1@@@@@@@@@,"text":"{text}"}}{idempotency}}}"#);
        Self::post(addr, path, key, &body)
    }

    fn new(text: String) -> Self {
        Self::raw(text.into_bytes())
    }

    pub fn raw(bytes: Vec<u8>) -> Self {
        let places = Field::ALL.map(|field| positions(&bytes, field.mark()));
        Self { bytes, places }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// # Panics
    /// When the value is not as long as the field's mark.
    pub fn set(&mut self, field: Field, value: &[u8]) {
        for at in &self.places[field as usize] {
            self.bytes[*at..at + field.mark().len()].copy_from_slice(value);
        }
    }

    pub fn number(&mut self, field: Field, number: u64) {
        for at in &self.places[field as usize] {
            write_digits(&mut self.bytes[*at..at + field.mark().len()], number);
        }
    }
}

fn positions(bytes: &[u8], marker: &[u8]) -> Vec<usize> {
    let starts = bytes.windows(marker.len()).enumerate();
    starts.filter(|(_, window)| *window == marker).map(|(at, _)| at).collect()
}

fn write_digits(field: &mut [u8], mut number: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    #[test]
    fn every_request_is_its_own() {
        let mut template = Template::task(ADDR, "/v1/tasks", Some("k"), 7, true);
        template.number(Field::Connection, 12);
        template.number(Field::Sequence, 345);
        let text = String::from_utf8(template.bytes.clone()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["payload"]["n"], 1_000_000_345);
        assert_eq!(body["idempotency_key"], "b-00007-012-000000345");
        template.number(Field::Sequence, 346);
        assert_ne!(text.into_bytes(), template.bytes);
    }

    #[test]
    fn marks_are_as_long_as_ids() {
        let id = b"01890a5d-ac96-774b-bcce-b302099a8057";
        let task = String::from_utf8_lossy(Field::Task.mark()).into_owned();
        let mut template = Template::post(ADDR, &format!("/v1/tasks/{task}/complete"), None, "{}");
        template.set(Field::Task, id);
        assert!(template.bytes().starts_with(b"POST /v1/tasks/01890a5d-ac96-774b-bcce-b302099a8057/complete HTTP"));
        assert_eq!(Field::Lease.mark().len(), id.len());
    }
}
