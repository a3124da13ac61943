//! Every operation on both stores: its effect, its errors, and that nothing but the engine differs.

mod ack_receipt;
mod bootstrap;
mod cancel_task;
mod claims;
mod complete;
mod create_key;
mod create_task;
mod create_tenant;
mod create_webhook;
mod delete_webhook;
mod enable_webhook;
mod engines;
mod examples;
mod fail;
mod few_renewals;
mod follow_receipts;
mod get_config;
mod get_receipt;
mod get_task;
mod grace;
mod lease_next;
mod lease_over;
pub mod ledger;
mod list_keys;
mod list_open_obligations;
mod list_receipts;
mod list_sweeps;
mod list_tasks;
mod list_tenants;
mod list_webhook_deliveries;
mod list_webhooks;
mod mail;
mod mail_files;
mod mesh;
mod older_tasks;
mod open_writes;
mod plans;
mod queues;
mod redeliver_webhook;
mod renew_lease;
mod report_progress;
mod revoke_key;
mod rights;
mod rotate_key;
mod schemas;
mod short_pages;
mod short_sessions;
mod strict;
mod whoami;

use waybill_testkit::stores;

/// An operation and its cases. A new operation is not done before it stands here.
const OPERATIONS: &[(&str, &[&str])] = &[
    ("create_task", create_task::CASES),
    ("get_task", get_task::CASES),
    ("list_tasks", list_tasks::CASES),
    ("cancel_task", cancel_task::CASES),
    ("lease_next", lease_next::CASES),
    ("renew_lease", renew_lease::CASES),
    ("report_progress", report_progress::CASES),
    ("complete", complete::CASES),
    ("fail", fail::CASES),
    ("export_chain", crate::tasks::chain::CASES),
    ("list_archived_receipts", crate::tasks::archive::CASES),
    ("list_open_obligations", list_open_obligations::CASES),
    ("list_receipts", list_receipts::CASES),
    ("get_receipt", get_receipt::CASES),
    ("ack_receipt", ack_receipt::CASES),
    ("get_config", get_config::CASES),
    ("bootstrap", bootstrap::CASES),
    ("create_key", create_key::CASES),
    ("list_keys", list_keys::CASES),
    ("rotate_key", rotate_key::CASES),
    ("revoke_key", revoke_key::CASES),
    ("create_tenant", create_tenant::CASES),
    ("list_tenants", list_tenants::CASES),
    ("create_webhook", create_webhook::CASES),
    ("list_webhooks", list_webhooks::CASES),
    ("delete_webhook", delete_webhook::CASES),
    ("enable_webhook", enable_webhook::CASES),
    ("list_webhook_deliveries", list_webhook_deliveries::CASES),
    ("redeliver_webhook", redeliver_webhook::CASES),
    ("list_queues", queues::CASES),
    ("create_queue", queues::CASES),
    ("get_queue", queues::CASES),
    ("set_queue_attributes", queues::CASES),
    ("peek_messages", queues::CASES),
    ("purge_queue", queues::CASES),
    ("start_redrive", queues::CASES),
    ("list_redrives", queues::CASES),
    ("cancel_redrive", queues::CASES),
    ("health_check", mail::CASES),
    ("ensure_project", mail::CASES),
    ("list_projects", mail::CASES),
    ("get_project", mail::CASES),
    ("register_agent", mail::CASES),
    ("create_agent_identity", mail::CASES),
    ("whois", mail::CASES),
    ("list_agents", mail::CASES),
    ("retire_agent", mail::CASES),
    ("unretire_agent", mail::CASES),
    ("send_message", mail::CASES),
    ("reply_message", mail::CASES),
    ("fetch_inbox", mail::CASES),
    ("fetch_inbox_events", mail::CASES),
    ("get_message", mail::CASES),
    ("get_attachment", mail::CASES),
    ("read_mailbox", mail::CASES),
    ("mark_message_read", mail::CASES),
    ("acknowledge_message", mail::CASES),
    ("request_contact", mail::CASES),
    ("respond_contact", mail::CASES),
    ("list_contacts", mail::CASES),
    ("set_contact_policy", mail::CASES),
    ("send_overseer_message", mail::CASES),
    ("install_precommit_guard", mail::CASES),
    ("uninstall_precommit_guard", mail::CASES),
    ("get_environment", mail::CASES),
    ("list_tools", mail::CASES),
    ("get_tool_schemas", mail::CASES),
    ("get_tool_metrics", mail::CASES),
    ("get_locks", mail::CASES),
    ("macro_start_session", mail::CASES),
    ("macro_prepare_thread", mail::CASES),
    ("macro_file_reservation_cycle", mail::CASES),
    ("macro_contact_handshake", mail::CASES),
    ("file_reservation_paths", mail_files::CASES),
    ("check_file_reservation_conflicts", mail_files::CASES),
    ("renew_file_reservations", mail_files::CASES),
    ("release_file_reservations", mail_files::CASES),
    ("force_release_file_reservation", mail_files::CASES),
    ("list_file_reservations", mail_files::CASES),
    ("search_messages", mail_files::CASES),
    ("summarize_thread", mail_files::CASES),
    ("get_thread", mail_files::CASES),
    ("acquire_build_slot", mail_files::CASES),
    ("renew_build_slot", mail_files::CASES),
    ("release_build_slot", mail_files::CASES),
    ("ensure_product", mail_files::CASES),
    ("products_link", mail_files::CASES),
    ("search_messages_product", mail_files::CASES),
    ("fetch_inbox_product", mail_files::CASES),
    ("summarize_thread_product", mail_files::CASES),
    ("create_mesh", mesh::CASES),
    ("list_meshes", mesh::CASES),
    ("get_mesh", mesh::CASES),
    ("set_mesh_policy", mesh::CASES),
    ("check_mesh", mesh::CASES),
    ("revoke_mesh_member", mesh::CASES),
    ("close_mesh", mesh::CASES),
    ("list_sweeps", list_sweeps::CASES),
    ("whoami", whoami::CASES),
];

#[test]
fn every_operation_of_the_registry_has_cases() {
    let registry = waybill_domains::registry();
    let covered: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    let gaps = stores::uncovered(registry.entries().map(|entry| entry.spec().name), &covered);
    assert!(gaps.is_empty(), "{gaps:?}");
    assert!(OPERATIONS.iter().all(|(_, cases)| !cases.is_empty()) && !ledger::CASES.is_empty());
    assert!(!claims::CASES.is_empty() && !older_tasks::CASES.is_empty());
    assert!(!rights::CASES.is_empty() && !strict::CASES.is_empty() && !few_renewals::CASES.is_empty());
    assert!(!lease_over::CASES.is_empty());
    assert!(!short_pages::CASES.is_empty() && !grace::CASES.is_empty() && !short_sessions::CASES.is_empty());
}

#[test]
fn an_operation_without_cases_would_be_seen() {
    let covered = ["get_task", "fly"];
    let gaps = stores::uncovered(["get_task", "new_operation"].into_iter(), &covered);
    assert_eq!(gaps, ["new_operation has no case", "fly is no operation"]);
}
