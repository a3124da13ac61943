//! Texts that people choose, each with what it may hold. A slug and a topic are parts of file names on every host of the mesh.

use waybill_kernel::visible;

/// A newtype over `String` whose value has passed `$check`, which says what is wrong as the rest of a sentence.
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $check:path, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = ::waybill_kernel::Error;

            fn try_from(text: String) -> ::waybill_kernel::Result<Self> {
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(wrong) => Err(::waybill_kernel::Error::invalid(format!("{wrong}."))),
                }
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = ::waybill_kernel::Error;

            fn from_str(text: &str) -> ::waybill_kernel::Result<Self> {
                Self::try_from(text.to_owned())
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(wrong) => Err(::serde::de::Error::custom(wrong)),
                }
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!($schema)
            }
        }
    };
}

name_type!(
    /// The id under which a sender may send the same message again and again.
    ClientMessageId, client_message_id, { "type": "string", "minLength": 1, "maxLength": 255 }
);
name_type!(
    /// A mesh on this server and in the folder of its daemon.
    Slug, slug, { "type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$" }
);
name_type!(
    TopicName, topic, { "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" }
);
name_type!(
    /// What members call each other.
    MemberName, member_name, { "type": "string", "minLength": 1, "maxLength": 64 }
);

pub const CLIENT_MESSAGE_ID_CHARS_MAX: usize = 255;
pub const SLUG_CHARS_MAX: usize = 63;
pub const TOPIC_CHARS_MAX: usize = 64;
pub const MEMBER_NAME_CHARS_MAX: usize = 64;

type Checked = Result<(), String>;

/// Free text, so that callers can use the keys they have.
fn client_message_id(text: &str) -> Checked {
    let chars = text.chars().count();
    if chars == 0 || chars > CLIENT_MESSAGE_ID_CHARS_MAX {
        return Err(format!("client_message_id must have 1 to {CLIENT_MESSAGE_ID_CHARS_MAX} characters"));
    }
    match text.chars().find(|character| character.is_control()) {
        Some(control) => {
            Err(format!("client_message_id must not hold U+{:04X}, a control character", u32::from(control)))
        }
        None => Ok(()),
    }
}

fn slug(text: &str) -> Checked {
    let fits = text.len() <= SLUG_CHARS_MAX
        && text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits {
        return Ok(());
    }
    Err(format!(
        "the slug of a mesh has 1 to {SLUG_CHARS_MAX} lower-case letters, digits and hyphens, and does not begin with a hyphen"
    ))
}

fn topic(text: &str) -> Checked {
    let fits = text.len() <= TOPIC_CHARS_MAX
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if fits {
        return Ok(());
    }
    Err(format!(
        "a topic has 1 to {TOPIC_CHARS_MAX} letters, digits, dots, underscores and hyphens, and begins with a letter or a digit"
    ))
}

fn member_name(text: &str) -> Checked {
    let chars = text.chars().count();
    if chars == 0 || chars > MEMBER_NAME_CHARS_MAX {
        return Err(format!("the name of a member has 1 to {MEMBER_NAME_CHARS_MAX} characters"));
    }
    // `to` takes a name or a key: a name that looks like a key would be somebody else's.
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("the name of a member must not look like a key".to_owned());
    }
    match visible::unseen(text) {
        Some(wrong) => Err(format!("the name of a member {wrong}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_kind_of_name_may_hold() {
        let long = |chars: usize| "é".repeat(chars);
        for (text, good) in [("a", true), (" any text/at all: é ", true), (&long(255), true), (&long(256), false)] {
            assert_eq!(text.parse::<ClientMessageId>().is_ok(), good, "{text}");
        }
        for text in ["", "a\0b", "a\nb", "\u{7f}", "\u{85}"] {
            assert!(text.parse::<ClientMessageId>().is_err(), "{text:?}");
        }
        for (text, good) in [("team", true), ("0-a", true), ("-a", false), ("A", false), ("a/b", false), ("..", false)]
        {
            assert_eq!(text.parse::<Slug>().is_ok(), good, "{text}");
        }
        for (text, good) in [("build.main_1-x", true), ("B", true), (".hidden", false), ("a/b", false), ("", false)] {
            assert_eq!(text.parse::<TopicName>().is_ok(), good, "{text}");
        }
        for (text, good) in [("alice", true), ("Ünsal Ä", true), ("a\u{200B}b", false), (&"0f".repeat(32), false)] {
            assert_eq!(text.parse::<MemberName>().is_ok(), good, "{text}");
        }
        assert!("a".repeat(64).parse::<Slug>().is_err() && "a".repeat(65).parse::<TopicName>().is_err());
        assert!(long(65).parse::<MemberName>().is_err() && "".parse::<Slug>().is_err());
    }

    #[test]
    fn json_is_held_to_the_same_rules() {
        assert!(serde_json::from_str::<Slug>(r#""team""#).is_ok());
        let refused = serde_json::from_str::<Slug>(r#""../etc""#).unwrap_err().to_string();
        assert!(refused.contains("lower-case letters"), "{refused}");
    }
}
