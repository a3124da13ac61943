//! Bad input, made from what the registry says about an operation: its schema, its path, its roles and scopes.

use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Mode, Role, Scope};
use waybill_store::Entry;

use super::Row;

pub const UNKNOWN_ID: &str = "an id that nobody has";
pub const FOREIGN_ID: &str = "an id of another tenant";

/// What only the server writes; a request that names one of these wants to.
const OWNED_BY_THE_SERVER: &[&str] = &["tenant", "tenant_id", "attempt", "created_at", "owner", "hash", "surprise"];

/// One level more than the limit, and then some.
const TOO_DEEP: usize = 70;

pub fn of(entry: &dyn Entry, good: &Json) -> Vec<Row> {
    let mut maker = Maker { entry, good, schema: entry.input_schema(), rows: Vec::new() };
    maker.names();
    let properties = maker.schema["properties"].as_object().cloned().unwrap_or_default();
    for (name, property) in &properties {
        maker.types(name, property);
        maker.bounds(name, property);
        maker.texts(name, property);
    }
    maker.ids();
    maker.rights();
    maker.rows
}

struct Maker<'a> {
    entry: &'a dyn Entry,
    /// Arguments that would be accepted.
    good: &'a Json,
    schema: Json,
    rows: Vec<Row>,
}

impl Maker<'_> {
    /// Somebody who may use the operation.
    fn who(&self) -> &'static str {
        // No key has scopes of queues or mail unless somebody asks for them.
        if ["queues", "mail"].contains(&self.entry.spec().domain) {
            return "admin";
        }
        let roles = self.entry.spec().roles;
        let players = [(Role::Agent, "alice"), (Role::Worker, "wendy")];
        players.iter().find(|(role, _)| roles.contains(role)).map_or("admin", |(_, who)| who)
    }

    fn add(&mut self, what: String, who: &str, args: Json, code: Code) -> &mut Row {
        let name = self.entry.spec().name;
        self.rows.push(Row::new(what, who, name, args).refused(code));
        self.rows.last_mut().unwrap()
    }

    fn with(&self, name: &str, value: Json) -> Json {
        let mut args = self.good.clone();
        args[name] = value;
        args
    }

    fn is_in_path(&self, name: &str) -> bool {
        self.entry.spec().route.path.contains(&format!("{{{name}}}"))
    }

    /// Does REST carry the field in the address, where everything is text?
    fn is_text(&self, name: &str) -> bool {
        self.is_in_path(name) || !self.entry.spec().route.method.has_body()
    }

    fn names(&mut self) {
        let who = self.who();
        for name in OWNED_BY_THE_SERVER {
            if !self.schema["properties"][*name].is_null() {
                continue;
            }
            let args = self.with(name, json!("x"));
            self.add(format!("the unknown field {name}"), who, args, Code::InvalidRequest);
        }
        let required = self.schema["required"].as_array().cloned().unwrap_or_default();
        for name in required.iter().filter_map(Json::as_str) {
            // Without a part of its path a request is one for another path.
            if !self.is_in_path(name) {
                let mut args = self.good.clone();
                args.as_object_mut().unwrap().remove(name);
                self.add(format!("{name} is missing"), who, args, Code::InvalidRequest);
            }
        }
    }

    fn types(&mut self, name: &str, property: &Json) {
        let who = self.who();
        let accepted = types_of(property);
        if accepted.is_empty() {
            return;
        }
        let candidates = [json!(true), json!(1.5), json!("x"), json!([1]), json!({ "a": 1 })];
        let textual = self.is_text(name);
        let wrong = candidates.iter().filter(|value| !accepted.contains(&type_of(value)));
        for value in wrong.filter(|value| !textual || (value.is_string() && !accepted.contains(&"string"))) {
            let args = self.with(name, value.clone());
            self.add(format!("{name} is {value}"), who, args, Code::InvalidRequest).same_message = !textual;
        }
        if !textual {
            let mut deep = json!(1);
            for _ in 0..TOO_DEEP {
                deep = json!([deep]);
            }
            let args = self.with(name, deep);
            self.add(format!("{name} is too deep"), who, args, Code::InvalidRequest);
        }
    }

    fn bounds(&mut self, name: &str, property: &Json) {
        let who = self.who();
        let mut wrong = Vec::new();
        wrong.extend(property["minimum"].as_i64().map(|minimum| json!(minimum - 1)));
        wrong.extend(property["maximum"].as_i64().map(|maximum| json!(maximum + 1)));
        wrong.extend(property["minLength"].as_u64().map(|_| json!("")));
        wrong.extend(property["maxLength"].as_u64().map(|length| json!("é".repeat(length as usize + 1))));
        if types_of(property).contains(&"integer") {
            wrong.extend([json!(u64::MAX), json!(i64::MIN)]);
        }
        for value in wrong {
            let args = self.with(name, value.clone());
            let what = format!("{name} is {}", value.to_string().chars().take(24).collect::<String>());
            // A number beyond 64 bits stays text in an address.
            let same_message = !self.is_text(name);
            self.add(what, who, args, Code::InvalidRequest).same_message = same_message;
        }
    }

    fn texts(&mut self, name: &str, property: &Json) {
        let who = self.who();
        let accepted = types_of(property);
        if accepted.is_empty() || accepted.contains(&"string") {
            let args = self.with(name, json!("a\u{0}b"));
            self.add(format!("{name} holds NUL"), who, args, Code::InvalidRequest).same_message = !self.is_text(name);
        }
        let has_form = ["format", "pattern", "enum"].iter().any(|rule| !property[*rule].is_null());
        if accepted.contains(&"string") && has_form {
            let args = self.with(name, json!("no such form"));
            self.add(format!("{name} has another form"), who, args, Code::InvalidRequest);
        }
        if name == "cursor" {
            for cursor in ["", "zz", "00", "0123456789abcdef", "é0", &"0".repeat(600)] {
                let args = self.with(name, json!(cursor));
                self.add(format!("the cursor {cursor:.20}"), who, args, Code::InvalidCursor);
            }
        }
    }

    fn ids(&mut self) {
        let who = self.who();
        if !self.is_in_path("task_id") {
            return;
        }
        let args = self.with("task_id", json!("01a1e0e7-2b84-7d12-9a6e-99fae6af2091"));
        self.add(UNKNOWN_ID.to_owned(), who, args, Code::NotFound);
        let (stranger, other, code) = match who {
            "alice" => ("stranger", "bob", Code::Forbidden),
            _ => ("strange_worker", "walt", Code::LeaseInvalidOrExpired),
        };
        self.add(FOREIGN_ID.to_owned(), stranger, self.good.clone(), Code::NotFound);
        self.add("another's id".to_owned(), other, self.good.clone(), code);
    }

    fn rights(&mut self) {
        let spec = self.entry.spec();
        let words = |scopes: &mut dyn Iterator<Item = Scope>| scopes.map(Scope::as_str).collect::<Vec<_>>().join(",");
        let every = words(&mut Scope::ALL.iter().copied());
        for role in Role::ALL.iter().filter(|role| !spec.roles.contains(role)) {
            let who = format!("{role}/{every}");
            self.add(format!("the role {role}"), &who, self.good.clone(), Code::Forbidden);
        }
        // An admin's scope stands for any, that of reading only where nothing is written.
        let supersedes =
            |scope: Scope| scope == Scope::AdminWrite || (scope == Scope::AdminRead && spec.mode == Mode::Read);
        let lacking = |scope: &Scope| !spec.scopes.contains(scope) && !supersedes(*scope);
        let others = words(&mut Scope::ALL.iter().copied().filter(lacking));
        // Where any scope will do, none is missing.
        for role in spec.roles.iter().filter(|_| !others.is_empty()) {
            let who = format!("{role}/{others}");
            self.add(format!("{role} without the scope"), &who, self.good.clone(), Code::Forbidden);
        }
    }
}

/// The JSON types a schema accepts; none when it accepts anything.
fn types_of(schema: &Json) -> Vec<&str> {
    let mut types: Vec<&str> = match &schema["type"] {
        Json::String(name) => vec![name],
        Json::Array(names) => names.iter().filter_map(Json::as_str).collect(),
        _ => schema["anyOf"].as_array().into_iter().flatten().flat_map(types_of).collect(),
    };
    types.dedup();
    types
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}
