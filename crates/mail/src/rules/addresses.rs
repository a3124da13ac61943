//! Whom a message is for: names of the sender's project, or `project:<path or slug>#<name>` of another.

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

use super::names;

const PREFIX: &str = "project:";

/// Names as they are given: a list, or one name alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Names(pub Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Names;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list of names")
            }

            fn visit_str<E>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![name.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

impl schemars::JsonSchema for Names {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Names".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["array", "string"], "items": { "type": "string" } })
    }
}

/// Which of the three lists somebody is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    To,
    Cc,
    Bcc,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::To => "to",
            Kind::Cc => "cc",
            Kind::Bcc => "bcc",
        }
    }

    pub fn stored(text: &str) -> Self {
        match text {
            "cc" => Kind::Cc,
            "bcc" => Kind::Bcc,
            _ => Kind::To,
        }
    }
}

/// One of those a message is for, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub kind: Kind,
    /// None for the sender's own project.
    pub project: Option<String>,
    pub name: String,
}

impl Address {
    pub fn new(kind: Kind, text: &str) -> Self {
        let text = text.trim();
        let foreign = text.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('#'));
        match foreign {
            Some((project, name)) => {
                Self { kind, project: Some(project.trim().to_owned()), name: name.trim().to_owned() }
            }
            None => Self { kind, project: None, name: text.to_owned() },
        }
    }
}

/// How a recipient of another project is shown.
pub fn foreign(slug: &str, name: &str) -> String {
    format!("{PREFIX}{slug}#{name}")
}

/// How a name that was written in one project reads in another, both by their slugs: there it would be somebody else's.
pub fn seen_from(home: &str, written_in: &str, name: &str) -> String {
    match Address::new(Kind::To, name) {
        Address { project: None, .. } => foreign(written_in, name),
        Address { project: Some(slug), name: alone, .. } if slug == home => alone,
        Address { .. } => name.to_owned(),
    }
}

/// Each once: whoever is on two lists is on the more visible one, whatever the spelling. The order is the one given.
pub fn gather(to: &[String], cc: &[String], bcc: &[String]) -> Vec<Address> {
    let mut seen: HashMap<(Option<String>, String), ()> = HashMap::new();
    let lists = [(Kind::To, to), (Kind::Cc, cc), (Kind::Bcc, bcc)];
    lists
        .into_iter()
        .flat_map(|(kind, names)| names.iter().map(move |name| Address::new(kind, name)))
        .filter(|address| seen.insert((address.project.clone(), names::key(&address.name)), ()).is_none())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_address_may_name_another_project() {
        assert_eq!(
            Address::new(Kind::To, " BlueLake "),
            Address { kind: Kind::To, project: None, name: "BlueLake".into() }
        );
        let foreign = Address::new(Kind::Cc, "project:/data/x#y#RedFox");
        assert_eq!((foreign.project.as_deref(), foreign.name.as_str()), (Some("/data/x#y"), "RedFox"));
        assert_eq!(Address::new(Kind::To, "project:nothing").project, None);
    }

    #[test]
    fn a_name_reads_as_the_same_agent_in_every_project() {
        for (name, seen) in [
            ("GreenCastle", "project:there#GreenCastle"),
            ("project:home#BlueLake", "BlueLake"),
            ("project:third#RedFox", "project:third#RedFox"),
        ] {
            assert_eq!(seen_from("home", "there", name), seen);
        }
    }

    #[test]
    fn one_agent_on_two_lists_or_in_two_spellings_is_one_recipient() {
        let gathered = gather(&list(&["BlueLake"]), &list(&["bluelake", "RedFox"]), &list(&["REDFOX", "GreenCastle"]));
        let shown: Vec<_> = gathered.iter().map(|one| (one.kind, one.name.as_str())).collect();
        assert_eq!(shown, [(Kind::To, "BlueLake"), (Kind::Cc, "RedFox"), (Kind::Bcc, "GreenCastle")]);
    }

    #[test]
    fn a_name_alone_is_a_list_of_one() {
        assert_eq!(serde_json::from_str::<Names>(r#""BlueLake""#).unwrap(), Names(list(&["BlueLake"])));
        assert_eq!(serde_json::from_str::<Names>(r#"["A", "B"]"#).unwrap(), Names(list(&["A", "B"])));
        assert!(serde_json::from_str::<Names>("7").is_err());
    }
}
