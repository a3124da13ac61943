use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_kernel::Caller;
use waybill_store::effects::{Follow, Holder, sweep_once};
use waybill_tasks::Settings;
use waybill_tasks::receipts::chain::{Fault, Finding, Sealed, Verifier};
use waybill_tasks::sweeps::Seal;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, plain_task, refusal};

waybill_testkit::both! {
    every_receipt_is_sealed_once_in_a_chain_of_its_tenant,
    a_change_behind_the_servers_back_is_told_where_it_is,
    what_is_erased_leaves_the_chain_whole,
    only_admins_have_the_chain_of_their_own_tenant,
    what_is_not_sealed_yet_is_told,
}

/// Transactions of other tests in the same cluster hold the feed back.
const FAILED: Duration = Duration::from_secs(60);

/// Seals until every receipt has its link.
pub async fn seal(on: &TestStore) {
    let sweep = Arc::new(Follow(Seal::new(&Settings { chain_batch: 3, ..Settings::default() })));
    let all = async {
        loop {
            sweep_once(&on.store, &sweep, Holder::new(&on.store)).await.unwrap();
            let left = "SELECT (SELECT count(*) FROM receipts) + (SELECT count(*) FROM archived_receipts) \
                        - (SELECT count(*) FROM chain)";
            if on.count(left).await.unwrap() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(FAILED, all).await.unwrap();
}

async fn export(on: &TestStore, admin: &Caller) -> Vec<Sealed> {
    let mut chain: Vec<Sealed> = Vec::new();
    loop {
        let after = chain.last().map_or(0, |sealed| sealed.position);
        let page = ok(on, admin, "export_chain", json!({ "after": after, "limit": 4 })).await;
        let page: Vec<Sealed> = serde_json::from_value(page["receipts"].clone()).unwrap();
        if page.is_empty() {
            return chain;
        }
        chain.extend(page);
    }
}

fn verify(chain: &[Sealed]) -> (Vec<Finding>, Verifier) {
    let mut verifier = Verifier::default();
    let findings = chain.iter().flat_map(|sealed| verifier.check(sealed)).collect();
    (findings, verifier)
}

pub async fn faults(on: &TestStore) -> Vec<(i64, Fault)> {
    let (findings, _) = verify(&export(on, &on.admin).await);
    findings.into_iter().map(|finding| (finding.position, finding.fault)).collect()
}

async fn every_receipt_is_sealed_once_in_a_chain_of_its_tenant(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let mut sealed = 0;
    for round in 1..=3 {
        for _ in 0..round {
            for caller in [&on.admin, &other] {
                let task_id = plain_task(&on, caller).await;
                ok(&on, caller, "cancel_task", json!({ "task_id": task_id })).await;
            }
            sealed += 3;
        }
        seal(&on).await;
        for caller in [&on.admin, &other] {
            let chain = export(&on, caller).await;
            let (findings, verifier) = verify(&chain);
            assert_eq!((findings, verifier.receipts, verifier.erased), (Vec::new(), sealed, 0));
            assert_eq!(verifier.head(), chain.last().unwrap().link);
        }
    }
    let (first, second) = (export(&on, &on.admin).await, export(&on, &other).await);
    assert!(first.iter().zip(&second).all(|(first, second)| first.link != second.link));
}

async fn a_change_behind_the_servers_back_is_told_where_it_is(on: TestStore) {
    for _ in 0..4 {
        plain_task(&on, &on.admin).await;
    }
    seal(&on).await;
    assert_eq!(faults(&on).await, []);
    let rows = on.rows("SELECT seq FROM receipts ORDER BY seq").await.unwrap();
    let second = rows[1].int(0).unwrap();
    let the_second = "(SELECT receipt_id FROM chain WHERE position = 2)";
    for (change, undo, expected) in [
        (
            format!("UPDATE receipts SET body = '{{}}' || body WHERE seq = {second}"),
            format!("UPDATE receipts SET body = substr(body, 3) WHERE seq = {second}"),
            &[(2, Fault::AlteredContent)][..],
        ),
        (
            format!("UPDATE receipts SET addressee = 'agent:mallory' WHERE seq = {second}"),
            format!("UPDATE receipts SET addressee = sender WHERE seq = {second}"),
            &[(2, Fault::AlteredParties)],
        ),
        (
            format!("UPDATE receipts SET created_at = created_at + 1 WHERE seq = {second}"),
            format!("UPDATE receipts SET created_at = created_at - 1 WHERE seq = {second}"),
            &[(2, Fault::ForeignLink)],
        ),
        (
            "UPDATE chain SET position = CASE position WHEN 2 THEN -3 ELSE -2 END WHERE position IN (2, 3)".to_owned(),
            "UPDATE chain SET position = CASE position WHEN -3 THEN 2 ELSE 3 END WHERE position < 0".to_owned(),
            &[(4, Fault::MissingPosition)],
        ),
        (
            format!("UPDATE receipts SET tenant = 99 WHERE receipt_id = {the_second}"),
            "UPDATE receipts SET tenant = 1 WHERE tenant = 99".to_owned(),
            &[(2, Fault::MissingReceipt)],
        ),
    ] {
        on.write(&change).await.unwrap();
        assert_eq!(faults(&on).await, expected, "{change}");
        on.write(&undo).await.unwrap();
        assert_eq!(faults(&on).await, [], "{undo}");
    }
    // Two that change places, with everything but their positions.
    for position in [(2, 12), (3, 2), (12, 3)] {
        on.write(&format!("UPDATE chain SET position = {} WHERE position = {}", position.1, position.0)).await.unwrap();
    }
    let swapped = [(2, Fault::ForeignLink), (3, Fault::ForeignLink), (4, Fault::ForeignLink)];
    assert_eq!(faults(&on).await, swapped);
}

async fn what_is_erased_leaves_the_chain_whole(on: TestStore) {
    for _ in 0..3 {
        plain_task(&on, &on.admin).await;
    }
    seal(&on).await;
    on.write("UPDATE chain SET salt = NULL WHERE position = 2").await.unwrap();
    on.write("UPDATE receipts SET body = '{}' WHERE receipt_id = (SELECT receipt_id FROM chain WHERE position = 2)")
        .await
        .unwrap();
    let (findings, verifier) = verify(&export(&on, &on.admin).await);
    assert_eq!((findings, verifier.receipts, verifier.erased), (Vec::new(), 3, 1));
}

async fn only_admins_have_the_chain_of_their_own_tenant(on: TestStore) {
    plain_task(&on, &on.admin).await;
    seal(&on).await;
    let other = on.tenant("other").await.unwrap();
    let page = ok(&on, &other, "export_chain", json!({})).await;
    assert_eq!(page, json!({ "receipts": [], "head": 0, "unsealed": 0 }));
    for input in [json!({ "after": -1 }), json!({ "limit": 0 })] {
        assert_eq!(refusal(&on, &on.admin, "export_chain", input).await, waybill_kernel::Code::InvalidRequest);
    }
    let spec = on.registry.find("export_chain").unwrap().spec();
    assert_eq!(spec.roles, [waybill_kernel::Role::Admin]);
}

async fn what_is_not_sealed_yet_is_told(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let unsealed = async |caller: &Caller| ok(&on, caller, "export_chain", json!({})).await["unsealed"].clone();
    for _ in 0..2 {
        plain_task(&on, &on.admin).await;
    }
    plain_task(&on, &other).await;
    assert_eq!((unsealed(&on.admin).await, unsealed(&other).await), (json!(2), json!(1)));
    seal(&on).await;
    assert_eq!((unsealed(&on.admin).await, unsealed(&other).await), (json!(0), json!(0)));
    plain_task(&on, &other).await;
    assert_eq!((unsealed(&on.admin).await, unsealed(&other).await), (json!(0), json!(1)));
}
