//! What is wrong with a request, in words for whoever sent it and with the parameter's name as it was sent.

use std::fmt;

use serde::de;
use waybill_kernel::Error;
use waybill_queues::rules::missing;

#[derive(Debug)]
pub(super) struct Complaint {
    /// Of the parameter; filled by the innermost place that knows it.
    name: Option<String>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// What follows the name in a sentence.
    Wrong(String),
    /// The name is that of a parameter that is not there.
    Missing,
    /// As a struct has it; which parameter that is, its place says.
    MissingMember(&'static str),
}

impl Complaint {
    pub(super) fn wrong(text: &str) -> Self {
        Self { name: None, kind: Kind::Wrong(text.to_owned()) }
    }

    pub(super) fn missing(name: String) -> Self {
        Self { name: Some(name), kind: Kind::Missing }
    }

    /// Names the parameter, unless that was done further in.
    pub(super) fn of(mut self, name: &str) -> Self {
        self.name.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Turns a member that a struct lacks into the parameter that would have been it.
    pub(super) fn resolve(self, parameter: impl FnOnce(&'static str) -> String) -> Self {
        match self.kind {
            Kind::MissingMember(member) => Self::missing(parameter(member)),
            kind => Self { kind, ..self },
        }
    }

    pub(super) fn into_error(self) -> Error {
        match (self.kind, self.name) {
            (Kind::Missing, name) => missing(&name.unwrap_or_default()),
            (Kind::MissingMember(member), _) => missing(member),
            (Kind::Wrong(text), Some(name)) => Error::invalid(format!("{name} {text}.")),
            (Kind::Wrong(text), None) => Error::invalid(format!("The request {text}.")),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Wrong(text) => f.write_str(text),
            Kind::Missing => f.write_str("is missing"),
            Kind::MissingMember(member) => write!(f, "lacks {member}"),
        }
    }
}

impl std::error::Error for Complaint {}

impl de::Error for Complaint {
    /// Types say `must be …`; what comes from elsewhere is no half of a sentence.
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        let text = text.trim_end_matches('.');
        Self::wrong(&if text.starts_with("must ") { text.to_owned() } else { format!("cannot be read: {text}") })
    }

    fn missing_field(field: &'static str) -> Self {
        Self { name: None, kind: Kind::MissingMember(field) }
    }
}
