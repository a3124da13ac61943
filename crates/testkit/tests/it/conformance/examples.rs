//! The examples of the page are calls that the operations take, and answers that they give.

use serde_json::Value as Json;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Example, Time};
use waybill_testkit::stores;

/// What keeps a value from being one of the schema, by the words that our schemas use.
fn faults(schema: &Json, value: &Json, at: &str) -> Vec<String> {
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices.iter().any(|choice| faults(choice, value, at).is_empty());
        return if fits { Vec::new() } else { vec![format!("{at} is none of the choices")] };
    }
    let mut found = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("{at} {what}: {value}"));
        }
    };
    let types = match &schema["type"] {
        Json::Array(types) => types.clone(),
        Json::Null => Vec::new(),
        one => vec![one.clone()],
    };
    must(types.is_empty() || types.iter().any(|name| is_a(value, name)), "is of another type");
    must(schema["enum"].as_array().is_none_or(|values| values.contains(value)), "is no member");
    if let Some(text) = value.as_str() {
        must(schema["format"] != "uuid" || Uuid::try_parse(text).is_ok(), "is no id");
        let time = || serde_json::from_value::<Time>(value.clone()).is_ok();
        must(schema["format"] != "date-time" || time(), "is no time");
    }
    if let Some(number) = value.as_i64() {
        let within = schema["minimum"].as_i64().is_none_or(|least| number >= least)
            && schema["maximum"].as_i64().is_none_or(|most| number <= most);
        must(within, "is out of range");
    }
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
            must(fields.contains_key(name), &format!("lacks {name}"));
        }
        for (name, field) in fields {
            match properties.get(name) {
                Some(property) => found.extend(faults(property, field, &format!("{at}.{name}"))),
                None => found.push(format!("{at} has {name}, which nothing has")),
            }
        }
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        found.extend(list.iter().flat_map(|item| faults(items, item, &format!("{at}[]"))));
    }
    found
}

fn is_a(value: &Json, name: &Json) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    }
}

fn parsed(name: &str, text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("the example of {name} is no JSON: {error}"))
}

#[test]
fn every_operation_has_an_example_that_fits_its_schemas() {
    let registry = waybill_domains::registry();
    let operations = registry.entries().map(|entry| (entry.spec(), entry.input_schema(), Some(entry.output_schema())));
    let streams = registry.streams().map(|entry| (entry.spec(), entry.input_schema(), None));
    for (spec, input, output) in operations.chain(streams) {
        let Example { arguments, answer } = spec.example;
        assert_ne!(answer, Example::NONE.answer, "{} has no example", spec.name);
        assert_eq!(faults(&input, &parsed(spec.name, arguments), spec.name), Vec::<String>::new());
        let answer = parsed(spec.name, answer);
        if let Some(output) = output {
            assert_eq!(faults(&output, &answer, spec.name), Vec::<String>::new());
            assert!(output["properties"].is_object(), "{}: {output}", spec.name);
        }
    }
    // The one stream gives receipts out.
    let receipt = registry.find("get_receipt").unwrap().output_schema();
    for entry in registry.streams() {
        let event = parsed(entry.spec().name, entry.spec().example.answer);
        assert_eq!(faults(&receipt, &event, entry.spec().name), Vec::<String>::new());
    }
}

/// Whether there is such a task or not, the call itself is one that can be made.
#[tokio::test]
async fn every_example_is_taken_by_its_operation() {
    let on = stores::open_sqlite().await.unwrap();
    on.store.stop_waiting();
    for entry in on.registry.entries() {
        let arguments = parsed(entry.spec().name, entry.spec().example.arguments);
        if let Err(error) = on.call(&on.admin, entry.spec().name, arguments).await {
            let code = error.code();
            // The example's folder lies beneath no project root here.
            let is_expected = matches!(
                code,
                Code::NotFound
                    | Code::InvalidCursor
                    | Code::QueueDoesNotExist
                    | Code::ContactRequired
                    | Code::MemberUnknown
                    | Code::FeatureDisabled
            );
            assert!(is_expected, "{}: {error}", entry.spec().name);
        }
    }
    for entry in on.registry.streams() {
        let arguments = parsed(entry.spec().name, entry.spec().example.arguments);
        let error = entry.turn(&on.store, &on.admin, &arguments.to_string()).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidCursor, "{error}");
    }
}

#[test]
fn an_example_that_does_not_fit_would_be_seen() {
    let create = waybill_domains::registry().find("create_task").unwrap().clone();
    for (arguments, fault) in [
        (r#"{"payload": 1}"#, "lacks type"),
        (r#"{"type": "t", "colour": "red"}"#, "has colour"),
        (r#"{"type": 1}"#, "create_task.type is of another type"),
        (r#"{"type": "t", "max_attempts": 0}"#, "create_task.max_attempts is out of range"),
        (r#"{"type": "t", "requirements": {"capabilities": [1]}}"#, "create_task.requirements.capabilities[] is"),
    ] {
        let found = faults(&create.input_schema(), &parsed("create_task", arguments), "create_task");
        assert!(found.len() == 1 && found[0].contains(fault), "{arguments}: {found:?}");
    }
}
