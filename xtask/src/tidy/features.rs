//! The feature that plants bugs stays out of every normal build: no default holds it, no dependency asks for it, and
//! only the store, the archive, queues, the two ends of the mesh and the program have it.

use serde_json::Value;

pub const SABOTAGE: &str = "sabotage";
const OWNERS: &[&str] =
    &["waybill", "waybill-store", "waybill-archive", "waybill-queues", "waybill-mesh", "waybill-daemon"];

/// Findings over the output of `cargo metadata --no-deps`.
pub fn check(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut findings = Vec::new();
    for (feature, enables) in package["features"].as_object().into_iter().flatten() {
        if feature == SABOTAGE {
            if !OWNERS.contains(&name) {
                findings.push(format!("{name} has a feature {SABOTAGE}: only {} may", OWNERS.join(" and ")));
            }
        } else if mentions(enables) {
            findings.push(format!("feature {feature} of {name} turns {SABOTAGE} on"));
        }
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten().filter(|it| mentions(&it["features"])) {
        findings.push(format!("{name} depends on {} with {SABOTAGE}", dependency["name"].as_str().unwrap_or_default()));
    }
    for target in package["targets"].as_array().into_iter().flatten() {
        let planted = target["name"].as_str().is_some_and(|target| target.contains(SABOTAGE));
        if planted && !mentions(&target["required-features"]) {
            findings.push(format!("target {} of {name} does not require {SABOTAGE}", target["name"]));
        }
    }
    findings
}

/// In a list of features, whichever crate's it is.
fn mentions(features: &Value) -> bool {
    let names = features.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.into_iter().any(|name| name.rsplit(['/', ':']).next() == Some(SABOTAGE))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(package: Value) -> usize {
        check(&json!({ "packages": [package] })).len()
    }

    #[test]
    fn only_who_asks_for_sabotage_gets_it() {
        let on = json!({ "name": "waybill", "features": { "sabotage": ["waybill-store/sabotage"] } });
        assert_eq!(findings(on), 0);
        for bad in [
            json!({ "name": "waybill", "features": { "default": ["sabotage"], "sabotage": [] } }),
            json!({ "name": "waybill", "features": { "default": ["waybill-store/sabotage"] } }),
            json!({ "name": "waybill-doors", "features": { "sabotage": [] } }),
            json!({ "name": "waybill", "dependencies": [{ "name": "waybill-store", "features": ["sabotage"] }] }),
            json!({ "name": "waybill", "targets": [{ "name": "waybill-sabotaged" }] }),
        ] {
            assert_eq!(findings(bad.clone()), 1, "{bad}");
        }
    }
}
