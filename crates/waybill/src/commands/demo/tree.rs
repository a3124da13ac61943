//! Receipts as a tree: each under the receipt it answers.

use serde_json::Value as Json;
use waybill_client::Receipt;
use waybill_kernel::Time;
use waybill_kernel::id::Uuid;

use crate::output;

/// One line per receipt. A receipt whose parent is not among them stands at the root.
pub fn draw(receipts: &[Receipt]) -> Vec<String> {
    let begin = receipts.iter().map(|receipt| receipt.created_at).min().unwrap_or_default();
    let known = |id: &Uuid| receipts.iter().any(|receipt| receipt.receipt_id == *id);
    let roots = receipts.iter().filter(|receipt| !receipt.parents.iter().any(known)).collect::<Vec<_>>();
    let mut lines = Vec::new();
    for root in roots {
        lines.push(line(root, begin));
        branch(receipts, root.receipt_id, "", begin, &mut lines);
    }
    lines
}

fn branch(receipts: &[Receipt], parent: Uuid, indent: &str, begin: Time, lines: &mut Vec<String>) {
    // Under the first parent only, and a receipt is younger than its parent, so this ends.
    let children = receipts.iter().filter(|child| child.parents.first() == Some(&parent) && child.receipt_id != parent);
    let children = children.collect::<Vec<_>>();
    for (position, child) in children.iter().enumerate() {
        let last = position + 1 == children.len();
        let (edge, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        lines.push(format!("{indent}{edge}{}", line(child, begin)));
        branch(receipts, child.receipt_id, &format!("{indent}{below}"), begin, lines);
    }
}

fn line(receipt: &Receipt, begin: Time) -> String {
    let after = receipt.created_at.since(begin).as_secs_f64();
    let (from, to) = (&receipt.from, &receipt.to);
    let text = format!(
        "{:<18} {}:{} → {}:{}  +{after:.1} s{}",
        receipt.receipt_type,
        from.kind,
        from.id,
        to.kind,
        to.id,
        remark(receipt)
    );
    output::cell(&Json::String(text))
}

/// The one thing of the body that tells the story.
fn remark(receipt: &Receipt) -> String {
    let body = &receipt.body;
    let told = match receipt.receipt_type.as_str() {
        "lease.expired" => body["previous_worker_id"].as_str().map(|worker| format!("{worker} was not heard of again")),
        "task.completed" => Some(format!("result {}", body["result_payload"])),
        "task.result_ready" => body["status"].as_str().map(|status| format!("status {status}")),
        _ => None,
    };
    told.map_or_else(String::new, |told| format!("  ({told})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn receipt(id: u128, kind: &str, parent: Option<u128>) -> Receipt {
        serde_json::from_value(json!({
            "receipt_id": Uuid::from_u128(id), "receipt_type": kind, "created_at": format!("2027-01-01T00:00:0{id}Z"),
            "from": {"kind": "agent", "id": "a"}, "to": {"kind": "system", "id": "b\u{1b}"},
            "parents": parent.map(Uuid::from_u128).into_iter().collect::<Vec<_>>(),
            "body": {"previous_worker_id": "w1"},
        }))
        .unwrap()
    }

    #[test]
    fn receipts_stand_under_what_they_answer() {
        let drawn = draw(&[
            receipt(1, "task.assigned", None),
            receipt(2, "lease.expired", Some(1)),
            receipt(3, "task.completed", Some(1)),
            receipt(4, "task.result_ready", Some(3)),
            receipt(5, "receipt.acknowledged", Some(99)),
        ]);
        let starts =
            ["task.assigned ", "├─ lease.expired ", "└─ task.completed ", "   └─ task.result_ready ", "receipt.ack"];
        assert_eq!(drawn.len(), starts.len(), "{drawn:#?}");
        for (line, start) in drawn.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
            assert!(!line.contains('\u{1b}'), "a control character reached the terminal: {line:?}");
        }
        assert!(drawn[1].contains("w1 was not heard of again") && drawn[1].contains("+1.0 s"), "{}", drawn[1]);
    }
}
